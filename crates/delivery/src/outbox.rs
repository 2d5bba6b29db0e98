//! What is still to be delivered: events with their frozen bodies, and one delivery per event and sink.
//!
//! Order is kept per sink and subject, or what an event says instead ([`CloudEvent::in_order_of`]). Only the head of
//! each such queue is ready; settling it promotes the next, so that finding what is due costs the same however long the
//! queues are, and an event that cannot be delivered holds up its own subject only. An event without a subject has no
//! order to keep, and is ready at once. One that supersedes others has what it is about for its subject, and takes the
//! place of those that wait there, so that the queue of a sink that is away grows with what there is to tell and not
//! with time.
//!
//! Nothing is written when a delivery begins: after a crash it is simply still pending, and goes out again under the
//! same id with the same bytes. Functions take a connection or a transaction of the [`Store`](crate::store::Store).

mod inspect;
mod order;

use std::collections::HashSet;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::event::CloudEvent;
use crate::store::{Error, Module, Tx};

pub use inspect::{Changed, Entry, Filter, STEP, State, discard, events, last, list, of_event, retry, show};
pub use order::reorder;

/// The outbox's tables, for [`Store::open`](crate::store::Store::open).
pub const MODULE: Module = Module { name: "outbox", migrations: &[include_str!("outbox.sql")] };

/// A sink as the outbox knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkId(i64);

/// What appending does with an event that is in the outbox already, by source and id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Nothing: it was or will be delivered.
    Ignore,
    /// Delivers it again if it was settled: whoever publishes decided again that it is needed.
    Redeliver,
}

/// What appending did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// At least one delivery was queued.
    Queued,
    /// The event is known, or there is no sink, and nothing was queued.
    Known,
}

/// How a delivery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// The far side took it.
    Delivered,
    /// It is tried again, and this attempt counts.
    Retry {
        /// Not before this.
        at: Timestamp,
        /// Why it failed.
        reason: String,
    },
    /// It is tried again, and this attempt does not count.
    Postpone {
        /// Not before this.
        at: Timestamp,
        /// Why it failed.
        reason: String,
    },
    /// It is never tried again, unless someone asks for it.
    Dead {
        /// Why.
        reason: String,
    },
}

/// A delivery that is due.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The delivery.
    pub seq: i64,
    /// Attempts that counted so far.
    pub attempts: u32,
    /// The event, with its frozen body.
    pub event: CloudEvent,
}

/// What is due now, and when there is more.
#[derive(Debug, Default)]
pub struct Due {
    /// Deliveries that are due, the longest due first.
    pub claims: Vec<Claim>,
    /// Deliveries that are due and whose body is no event, which happens only if someone edited the file.
    pub unreadable: Vec<i64>,
    /// When the next one becomes due, if nothing is added.
    pub next: Option<Timestamp>,
    /// Whether there may be more that is due than was asked for.
    pub more: bool,
}

/// How a sink's queue stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Deliveries that wait.
    pub pending: i64,
    /// Since when the first of them waits.
    pub oldest: Option<Timestamp>,
    /// Dead letters.
    pub dead: i64,
    /// Why the sink is paused, if it is.
    pub paused: Option<String>,
}

/// Makes a sink known, and returns its id: the same one for the same name, after every restart.
pub fn register(connection: &Connection, name: &str) -> Result<SinkId, Error> {
    // Most often it is there, and then nothing is written: the volume may be full.
    if let Some(id) = find(connection, name)? {
        return Ok(id);
    }
    connection.execute("INSERT INTO sinks (name) VALUES (?1)", [name])?;
    find(connection, name)?.ok_or(Error::Sqlite(rusqlite::Error::QueryReturnedNoRows))
}

/// Finds a sink that was registered under this name.
pub fn find(connection: &Connection, name: &str) -> Result<Option<SinkId>, Error> {
    let mut statement = connection.prepare_cached("SELECT id FROM sinks WHERE name = ?1")?;
    Ok(statement.query_row([name], |row| row.get(0).map(SinkId)).optional()?)
}

/// The names of all sinks that were ever registered.
pub fn sinks(connection: &Connection) -> Result<Vec<String>, Error> {
    let mut statement = connection.prepare("SELECT name FROM sinks ORDER BY id")?;
    let names = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(names)
}

/// Stores an event for delivery to `sinks`, in the caller's transaction. Fails when the volume is nearly full.
pub fn append(
    tx: &Tx<'_>,
    event: &CloudEvent,
    sinks: &[SinkId],
    repeat: Repeat,
    now: Timestamp,
) -> Result<Appended, Error> {
    tx.admit()?;
    if sinks.is_empty() {
        return Ok(Appended::Known);
    }
    let attributes = event.attributes();
    let known: Option<i64> = tx
        .prepare_cached("SELECT seq FROM events WHERE source = ?1 AND id = ?2")?
        .query_row((&attributes.source, &attributes.id), |row| row.get(0))
        .optional()?;
    let seq = match known {
        Some(seq) => seq,
        None => tx.prepare_cached("INSERT INTO events (source, id, body) VALUES (?1, ?2, ?3)")?.insert((
            &attributes.source,
            &attributes.id,
            event.body().as_ref(),
        ))?,
    };
    let subject = event.supersedes().or_else(|| event.order()).or(attributes.subject.as_deref()).unwrap_or_default();
    let mut appended = Appended::Known;
    for sink in sinks {
        if known.is_some() {
            if repeat == Repeat::Redeliver {
                tx.prepare_cached("DELETE FROM deliveries WHERE event = ?1 AND sink = ?2 AND state != 'pending'")?
                    .execute((seq, sink.0))?;
            }
            let kept =
                tx.prepare_cached("SELECT 1 FROM deliveries WHERE event = ?1 AND sink = ?2")?.exists((seq, sink.0))?;
            if kept {
                continue;
            }
        }
        if event.supersedes().is_some() {
            supersede(tx, *sink, subject, now)?;
        }
        enqueue(tx, seq, *sink, subject, now)?;
        appended = Appended::Queued;
    }
    if appended == Appended::Queued {
        tx.wake();
    }
    Ok(appended)
}

/// Discards what waits for a sink about a subject, but for what may be under way: a head that is due.
fn supersede(connection: &Connection, sink: SinkId, subject: &str, now: Timestamp) -> Result<(), Error> {
    let sql = "
        UPDATE deliveries SET state = 'discarded', head = 0, changed = ?3, reason = 'superseded by a later event'
        WHERE sink = ?1 AND subject = ?2 AND state = 'pending' AND (head = 0 OR next_attempt > ?3)";
    connection.prepare_cached(sql)?.execute((sink.0, subject, now.as_millisecond()))?;
    Ok(())
}

fn enqueue(connection: &Connection, event: i64, sink: SinkId, subject: &str, now: Timestamp) -> Result<(), Error> {
    let sql = "
        INSERT INTO deliveries (event, sink, subject, state, head, attempts, queued, next_attempt, changed)
        VALUES (?1, ?2, ?3, 'pending', ?3 = '' OR NOT EXISTS (
            SELECT 1 FROM deliveries WHERE sink = ?2 AND subject = ?3 AND state = 'pending'
        ), 0, ?4, ?4, ?4)";
    connection.prepare_cached(sql)?.execute((event, sink.0, subject, now.as_millisecond()))?;
    Ok(())
}

/// Finds up to `limit` deliveries that are due, but for those in `taken`. Writes nothing.
#[expect(clippy::implicit_hasher, reason = "one caller, with the default hasher")]
pub fn claim(
    connection: &Connection,
    sink: SinkId,
    limit: usize,
    taken: &HashSet<i64>,
    now: Timestamp,
) -> Result<Due, Error> {
    let sql = "
        SELECT d.seq, d.attempts, e.body FROM deliveries d JOIN events e ON e.seq = d.event
        WHERE d.sink = ?1 AND d.head = 1 AND d.next_attempt <= ?2 ORDER BY d.next_attempt, d.seq LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let asked = i64::try_from(limit.saturating_add(taken.len())).unwrap_or(i64::MAX);
    let mut rows = statement.query((sink.0, now.as_millisecond(), asked))?;
    let mut due = Due::default();
    while let Some(row) = rows.next()? {
        let seq = row.get(0)?;
        if taken.contains(&seq) {
            continue;
        }
        match CloudEvent::from_structured(row.get_ref(2)?.as_blob().unwrap_or_default()) {
            Ok(event) => due.claims.push(Claim { seq, attempts: row.get(1)?, event }),
            Err(_) => due.unreadable.push(seq),
        }
        if due.claims.len() == limit {
            due.more = true;
            break;
        }
    }
    let sql = "
        SELECT next_attempt FROM deliveries WHERE sink = ?1 AND head = 1 AND next_attempt > ?2
        ORDER BY next_attempt LIMIT 1";
    let mut statement = connection.prepare_cached(sql)?;
    due.next = statement.query_row((sink.0, now.as_millisecond()), |row| time(row, 0)).optional()?;
    Ok(due)
}

/// Makes due what was put off by a clock that has been set back since: until it has caught up would be any time.
/// Returns how many deliveries that are.
pub fn hasten(connection: &Connection, sink: SinkId, now: Timestamp) -> Result<usize, Error> {
    let sql = "
        UPDATE deliveries SET next_attempt = ?2, changed = ?2
        WHERE sink = ?1 AND state = 'pending' AND changed > ?2 AND next_attempt > ?2";
    Ok(connection.prepare_cached(sql)?.execute((sink.0, now.as_millisecond()))?)
}

/// Notes how a delivery ended. A delivery that someone else settled meanwhile stays as they left it.
pub fn settle(connection: &Connection, seq: i64, mark: &Mark, now: Timestamp) -> Result<(), Error> {
    let now = now.as_millisecond();
    match mark {
        Mark::Delivered => leave(connection, seq, State::Delivered, 1, None, now),
        Mark::Dead { reason } => leave(connection, seq, State::Dead, 1, Some(reason), now),
        Mark::Retry { at, reason } => again(connection, seq, *at, 1, reason, now),
        Mark::Postpone { at, reason } => again(connection, seq, *at, 0, reason, now),
    }
}

fn again(connection: &Connection, seq: i64, at: Timestamp, count: u32, reason: &str, now: i64) -> Result<(), Error> {
    let sql = "
        UPDATE deliveries SET attempts = attempts + ?2, next_attempt = ?3, changed = ?4, reason = ?5
        WHERE seq = ?1 AND state = 'pending'";
    connection.prepare_cached(sql)?.execute((seq, count, at.as_millisecond(), now, reason))?;
    Ok(())
}

/// Takes a delivery out of its queue, and promotes the next one if it was the head.
fn leave(
    connection: &Connection,
    seq: i64,
    state: State,
    attempts: u32,
    reason: Option<&str>,
    now: i64,
) -> Result<(), Error> {
    let sql = "
        UPDATE deliveries SET state = ?2, head = 0, attempts = attempts + ?3, changed = ?4, reason = ?5
        WHERE seq = ?1 AND state = 'pending' RETURNING sink, subject";
    let left = connection
        .prepare_cached(sql)?
        .query_row((seq, state.as_str(), attempts, now, reason), |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    let Some((sink, subject)) = left.filter(|(_, subject)| !subject.is_empty()) else { return Ok(()) };
    // The first of the queue is or becomes its head, whether or not it was the head that left.
    let sql = "
        UPDATE deliveries SET head = 1 WHERE head = 0 AND seq = (
            SELECT seq FROM deliveries WHERE sink = ?1 AND subject = ?2 AND state = 'pending' ORDER BY seq LIMIT 1
        )";
    connection.prepare_cached(sql)?.execute((sink, subject))?;
    Ok(())
}

/// Stops deliveries to a sink until it is resumed, also after a restart. Its queue is kept.
pub fn pause(connection: &Connection, sink: SinkId, reason: &str, now: Timestamp) -> Result<(), Error> {
    let sql = "UPDATE sinks SET paused_reason = ?2, paused_at = ?3 WHERE id = ?1 AND paused_reason IS NULL";
    connection.prepare_cached(sql)?.execute((sink.0, reason, now.as_millisecond()))?;
    Ok(())
}

/// Lets deliveries to a sink go on.
pub fn resume(tx: &Tx<'_>, sink: SinkId) -> Result<(), Error> {
    tx.execute("UPDATE sinks SET paused_reason = NULL, paused_at = NULL WHERE id = ?1", [sink.0])?;
    tx.wake();
    Ok(())
}

/// Says why a sink is paused, if it is.
pub fn paused(connection: &Connection, sink: SinkId) -> Result<Option<String>, Error> {
    let mut statement = connection.prepare_cached("SELECT paused_reason FROM sinks WHERE id = ?1")?;
    Ok(statement.query_row([sink.0], |row| row.get(0))?)
}

/// Counts a sink's queue; reads an index of everything that is pending.
pub fn stats(connection: &Connection, sink: SinkId) -> Result<Stats, Error> {
    let sql = "SELECT count(*), min(seq) FROM deliveries WHERE sink = ?1 AND state = 'pending'";
    let (pending, first): (i64, Option<i64>) =
        connection.prepare_cached(sql)?.query_row([sink.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let sql = "SELECT queued FROM deliveries WHERE seq = ?1";
    let oldest = connection.prepare_cached(sql)?.query_row([first], |row| time(row, 0)).optional()?;
    let sql = "SELECT count(*) FROM deliveries WHERE sink = ?1 AND state = 'dead'";
    let dead = connection.prepare_cached(sql)?.query_row([sink.0], |row| row.get(0))?;
    Ok(Stats { pending, oldest, dead, paused: paused(connection, sink)? })
}

/// Removes up to `limit` deliveries that were delivered or discarded before `before`, and events that have no
/// delivery left. Dead letters stay until someone decides about them. Returns how many deliveries went.
pub fn prune(connection: &Connection, before: Timestamp, limit: u32) -> Result<usize, Error> {
    let sql = "
        DELETE FROM deliveries WHERE seq IN (
            SELECT seq FROM deliveries WHERE state IN ('delivered', 'discarded') AND changed < ?1
            ORDER BY changed LIMIT ?2
        ) RETURNING event";
    let mut statement = connection.prepare_cached(sql)?;
    let events = statement
        .query_map((before.as_millisecond(), limit), |row| row.get::<_, i64>(0))?
        .collect::<Result<Vec<_>, _>>()?;
    let sql = "DELETE FROM events WHERE seq = ?1 AND NOT EXISTS (SELECT 1 FROM deliveries WHERE event = ?1)";
    let mut statement = connection.prepare_cached(sql)?;
    for event in &events {
        statement.execute([event])?;
    }
    Ok(events.len())
}

fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    // Out of jiff's range only if someone edited the file; then it is due.
    Ok(Timestamp::from_millisecond(row.get(column)?).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests;
