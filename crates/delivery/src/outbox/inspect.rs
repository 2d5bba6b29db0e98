//! Looking into the outbox, and deciding about what it could not deliver: for command-line tools and pages.

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, named_params};
use serde::{Deserialize, Serialize};

use super::{SinkId, enqueue, leave, time};
use crate::store::{Error, Tx};

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits for its turn.
    Pending,
    /// The far side took it.
    Delivered,
    /// The far side will never take it.
    Dead,
    /// Someone decided against it.
    Discarded,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivered, Self::Dead, Self::Discarded];

    /// The name in the store, in tools and in pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
        }
    }
}

impl FromSql for State {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let name = value.as_str()?;
        Self::ALL.into_iter().find(|state| state.as_str() == name).ok_or(FromSqlError::InvalidType)
    }
}

/// Which deliveries are meant; what is `None` does not restrict.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// One delivery.
    pub seq: Option<i64>,
    /// The sink's name.
    pub sink: Option<String>,
    /// The event's subject.
    pub subject: Option<String>,
    /// Where they stand.
    pub state: Option<State>,
    /// Only those after this one: for paging.
    pub after: Option<i64>,
    /// Only those up to this one: what is queued again meanwhile is behind it.
    pub until: Option<i64>,
    /// At most so many.
    pub limit: u32,
}

/// A delivery as tools and pages show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The delivery.
    pub seq: i64,
    /// The event's source.
    pub source: String,
    /// The event's id.
    pub id: String,
    /// The sink's name.
    pub sink: String,
    /// The event's subject, empty if it has none.
    pub subject: String,
    /// Where it stands.
    pub state: State,
    /// Attempts that counted.
    pub attempts: u32,
    /// Since when it waits.
    pub queued: Timestamp,
    /// When it is tried next, if it is pending.
    pub next_attempt: Timestamp,
    /// When it last changed.
    pub changed: Timestamp,
    /// Why it is not delivered.
    pub reason: Option<String>,
}

/// Deliveries that one transaction changes at most, where many are meant: everybody else who writes waits for it.
pub const STEP: u32 = 500;

/// What a step of [`retry`] or [`discard`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// How many deliveries it changed.
    pub count: usize,
    /// After which delivery the next step goes on; none if there is no more to do.
    pub last: Option<i64>,
}

const SELECT: &str = "
    SELECT d.seq, e.source, e.id, s.name, d.subject, d.state, d.attempts, d.queued, d.next_attempt, d.changed, d.reason
    FROM deliveries d JOIN events e ON e.seq = d.event JOIN sinks s ON s.id = d.sink ";

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        seq: row.get(0)?,
        source: row.get(1)?,
        id: row.get(2)?,
        sink: row.get(3)?,
        subject: row.get(4)?,
        state: row.get(5)?,
        attempts: row.get(6)?,
        queued: time(row, 7)?,
        next_attempt: time(row, 8)?,
        changed: time(row, 9)?,
        reason: row.get(10)?,
    })
}

const MEANT: &str = "
    (:seq IS NULL OR d.seq = :seq) AND (:sink IS NULL OR s.name = :sink)
    AND (:subject IS NULL OR d.subject = :subject) AND (:state IS NULL OR d.state = :state) ";

/// Lists deliveries in the order in which they were queued.
pub fn list(connection: &Connection, filter: &Filter) -> Result<Vec<Entry>, Error> {
    let sql = format!(
        "{SELECT} WHERE {MEANT} AND d.seq > coalesce(:after, -1) AND d.seq <= coalesce(:until, {})
        ORDER BY d.seq LIMIT :limit",
        i64::MAX
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let Filter { seq, sink, subject, state, after, until, limit } = filter;
    let state = state.map(State::as_str);
    let parameters = named_params! {
        ":seq": seq, ":sink": sink, ":subject": subject, ":state": state, ":after": after, ":until": until,
        ":limit": limit,
    };
    let entries = statement.query_map(parameters, entry)?.collect::<Result<_, _>>()?;
    Ok(entries)
}

/// The deliveries of one event, in the order in which they were queued.
pub fn of_event(connection: &Connection, source: &str, id: &str) -> Result<Vec<Entry>, Error> {
    let sql = format!("{SELECT} WHERE e.source = ?1 AND e.id = ?2 ORDER BY d.seq");
    let mut statement = connection.prepare_cached(&sql)?;
    let entries = statement.query_map([source, id], entry)?.collect::<Result<_, _>>()?;
    Ok(entries)
}

/// The delivery that was queued last; 0 if there is none.
pub fn last(connection: &Connection) -> Result<i64, Error> {
    Ok(connection.query_row("SELECT coalesce(max(seq), 0) FROM deliveries", [], |row| row.get(0))?)
}

/// Shows one delivery with the body of its event, exactly as it is sent.
pub fn show(connection: &Connection, seq: i64) -> Result<Option<(Entry, Bytes)>, Error> {
    let Some(entry) = list(connection, &Filter { seq: Some(seq), limit: 1, ..Filter::default() })?.pop() else {
        return Ok(None);
    };
    let sql = "SELECT body FROM events WHERE seq = (SELECT event FROM deliveries WHERE seq = ?1)";
    let body: Option<Vec<u8>> = connection.query_row(sql, [seq], |row| row.get(0)).optional()?;
    Ok(body.map(|body| (entry, body.into())))
}

/// Hands over the events of deliveries, each once and in the order in which they came in: a number to go on after, and
/// the body, exactly as it is sent. Where the filter names neither a state nor one delivery, they are those that may
/// still be wanted: of pending and of dead deliveries. Of the filter's two ends, only `after` counts.
pub fn events(connection: &Connection, filter: &Filter) -> Result<Vec<(i64, Bytes)>, Error> {
    let sql = format!(
        "SELECT seq, body FROM events WHERE seq > coalesce(:after, -1) AND EXISTS (
            SELECT 1 FROM deliveries d JOIN sinks s ON s.id = d.sink
            WHERE d.event = events.seq AND {MEANT} AND (:state IS NOT NULL OR :seq IS NOT NULL OR d.state IN ('pending', 'dead'))
        ) ORDER BY seq LIMIT :limit"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let Filter { seq, sink, subject, state, after, limit, .. } = filter;
    let state = state.map(State::as_str);
    let parameters = named_params! {
        ":seq": seq, ":sink": sink, ":subject": subject, ":state": state, ":after": after, ":limit": limit,
    };
    let event = |row: &Row<'_>| Ok((row.get(0)?, Bytes::from(row.get::<_, Vec<u8>>(1)?)));
    let events = statement.query_map(parameters, event)?.collect::<Result<_, _>>()?;
    Ok(events)
}

/// Queues dead and discarded deliveries again, behind what their subject has waiting, with their attempts forgotten.
/// Pending ones become due at once. Whoever goes on after [`Changed::last`] sets the filter's `until` to [`last`]
/// first, or meets again what is refused meanwhile.
pub fn retry(tx: &Tx<'_>, filter: &Filter, now: Timestamp) -> Result<Changed, Error> {
    let mut changed = Changed { count: 0, last: None };
    for found in list(tx, filter)? {
        changed.last = Some(found.seq);
        match found.state {
            State::Dead | State::Discarded => {
                let sql = "DELETE FROM deliveries WHERE seq = ?1 RETURNING event, sink";
                let (event, sink) =
                    tx.prepare_cached(sql)?.query_row([found.seq], |row| Ok((row.get(0)?, SinkId(row.get(1)?))))?;
                enqueue(tx, event, sink, &found.subject, now)?;
            }
            State::Pending => {
                let sql = "UPDATE deliveries SET next_attempt = min(next_attempt, ?2) WHERE seq = ?1";
                tx.prepare_cached(sql)?.execute((found.seq, now.as_millisecond()))?;
            }
            State::Delivered => continue,
        }
        changed.count += 1;
    }
    tx.wake();
    Ok(changed)
}

/// Gives up pending and dead deliveries, and says why.
pub fn discard(tx: &Tx<'_>, filter: &Filter, reason: &str, now: Timestamp) -> Result<Changed, Error> {
    let mut changed = Changed { count: 0, last: None };
    for found in list(tx, filter)? {
        changed.last = Some(found.seq);
        match found.state {
            State::Pending => leave(tx, found.seq, State::Discarded, 0, Some(reason), now.as_millisecond())?,
            State::Dead => {
                let sql = "UPDATE deliveries SET state = 'discarded', changed = ?2, reason = ?3 WHERE seq = ?1";
                tx.prepare_cached(sql)?.execute((found.seq, now.as_millisecond(), reason))?;
            }
            State::Delivered | State::Discarded => continue,
        }
        changed.count += 1;
    }
    tx.wake();
    Ok(changed)
}
