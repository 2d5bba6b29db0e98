//! `watchfire outbox`: what was not delivered, why, and what to do about it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, anyhow};
use serde_json::json;
use watchfire_delivery::outbox::{self, Changed, Entry, Filter, SinkId, State};
use watchfire_delivery::store::{self, Connection, Tx, open_beside, write_beside};
use watchfire_runtime::{clock, one_line};

use crate::cli::{DeliveryArgs, Format, OutboxCommand};
use crate::failure::{Failure, say, tell};

/// Events that are read at once for an export; each may have some megabytes.
const EXPORTED_AT_ONCE: u32 = 50;

pub(crate) fn run(store: &Path, command: &OutboxCommand) -> Result<(), Failure> {
    let connection =
        open_beside(store, &[outbox::MODULE]).context("look into the outbox (--store names another store)")?;
    let now = clock::now();
    let sink = |name: &str| -> Result<SinkId, Failure> {
        let known = outbox::sinks(&connection).context("list the subscribers")?.join(", ");
        let found = outbox::find(&connection, name).context("find the subscriber")?;
        found.ok_or_else(|| Failure::Configuration(anyhow!("no subscriber is called {name:?}; known are {known}")))
    };
    // A name that is not there is a mistake, and not one of which there is nothing to do.
    if let OutboxCommand::List { which, .. }
    | OutboxCommand::Export(which)
    | OutboxCommand::Retry(which)
    | OutboxCommand::Discard { which, .. } = command
    {
        which.sink.as_deref().map(sink).transpose()?;
    }
    match command {
        OutboxCommand::List { which, limit, output } => {
            let entries = outbox::list(&connection, &filter(which, *limit)?).context("list deliveries")?;
            if entries.is_empty() {
                find_named(&connection, which)?;
            }
            match output.format {
                Format::Text => tell(&table(&entries)),
                Format::Json if entries.is_empty() => Ok(()),
                Format::Json => say(&lines(&entries)),
            }
        }
        OutboxCommand::Show { number } => match outbox::show(&connection, *number).context("show a delivery")? {
            Some((entry, body)) => say(&format!("{}\n{}", lines(&[entry]).trim_end(), String::from_utf8_lossy(&body))),
            None => Err(no_such(*number)),
        },
        OutboxCommand::Export(which) => export(&connection, which),
        OutboxCommand::Retry(which) => {
            let filter = filter(which, outbox::STEP)?;
            let count = in_steps(&connection, filter, |tx, step| outbox::retry(tx, step, now));
            told_of(&connection, which, count.context("queue deliveries again")?, "queued again")
        }
        OutboxCommand::Discard { which, reason } => {
            let filter = filter(which, outbox::STEP)?;
            let count = in_steps(&connection, filter, |tx, step| outbox::discard(tx, step, reason, now));
            told_of(&connection, which, count.context("discard deliveries")?, "discarded")
        }
        OutboxCommand::Pause { sink: name, reason } => {
            let id = sink(name)?;
            write_beside(&connection, |tx: &Tx<'_>| outbox::pause(tx, id, reason, now)).context("pause deliveries")?;
            tell(&format!("deliveries to {name} are paused"))
        }
        OutboxCommand::Resume { sink: name } => {
            let id = sink(name)?;
            write_beside(&connection, |tx: &Tx<'_>| outbox::resume(tx, id)).context("resume deliveries")?;
            tell(&format!("deliveries to {name} go on"))
        }
    }
}

/// Changes all that is there at this moment, in transactions so short that the service beside can write in between.
fn in_steps(
    connection: &Connection,
    mut filter: Filter,
    change: impl Fn(&Tx<'_>, &Filter) -> Result<Changed, store::Error>,
) -> Result<usize, store::Error> {
    filter.until = Some(outbox::last(connection)?);
    let mut count = 0;
    loop {
        let changed = write_beside(connection, |tx: &Tx<'_>| change(tx, &filter))?;
        count += changed.count;
        let Some(last) = changed.last else { return Ok(count) };
        filter.after = Some(last);
    }
}

/// Prints the events a few at a time, so that neither the process nor the store holds them all.
fn export(connection: &Connection, which: &DeliveryArgs) -> Result<(), Failure> {
    let mut filter = Filter { state: state(which)?, ..filter(which, EXPORTED_AT_ONCE)? };
    if outbox::events(connection, &Filter { limit: 1, ..filter.clone() }).context("export events")?.is_empty() {
        find_named(connection, which)?;
    }
    loop {
        let events = outbox::events(connection, &filter).context("export events")?;
        let Some((last, _)) = events.last() else { return Ok(()) };
        filter.after = Some(*last);
        // A line break in JSON stands between two of its parts, where a space says the same.
        let lines = events.iter().map(|(_, body)| String::from_utf8_lossy(body).replace(['\n', '\r'], " "));
        say(&lines.collect::<Vec<_>>().join("\n"))?;
    }
}

/// Tells how many deliveries were changed; none is a mistake where one was named.
fn told_of(connection: &Connection, which: &DeliveryArgs, count: usize, done: &str) -> Result<(), Failure> {
    if count == 0 {
        find_named(connection, which)?;
    }
    tell(&format!("{count} {done}"))
}

/// Why nothing was found to do about the one delivery that was named, if one was.
fn find_named(connection: &Connection, which: &DeliveryArgs) -> Result<(), Failure> {
    let Some(number) = which.number else { return Ok(()) };
    let found = outbox::list(connection, &Filter { seq: Some(number), limit: 1, ..Filter::default() });
    let Some(Entry { state: stands, sink, .. }) = found.context("find the delivery")?.pop() else {
        return Err(no_such(number));
    };
    let meant = which.sink.as_ref().is_none_or(|name| *name == sink) && state(which)?.is_none_or(|it| it == stands);
    let why = if meant { "nothing is left to do about it" } else { "--sink or --state leaves it out" };
    let stands = stands.as_str();
    Err(Failure::Configuration(anyhow!("delivery {number}, to {sink}, is {stands}: {why}")))
}

fn no_such(number: i64) -> Failure {
    Failure::Configuration(anyhow!(
        "no delivery has the number {number}; `watchfire outbox list` has those of dead letters, and one that was queued \
         again has another"
    ))
}

fn state(which: &DeliveryArgs) -> Result<Option<State>, Failure> {
    let Some(name) = which.state.as_deref() else { return Ok(None) };
    let state = State::ALL.into_iter().find(|state| state.as_str() == name);
    let names = State::ALL.map(State::as_str).join(", ");
    state.map(Some).ok_or_else(|| Failure::Configuration(anyhow!("--state {name:?} is not one of {names}")))
}

/// Dead letters are what one comes for; anything else has to be named.
fn filter(which: &DeliveryArgs, limit: u32) -> Result<Filter, Failure> {
    let state = state(which)?.or_else(|| which.number.is_none().then_some(State::Dead));
    Ok(Filter { seq: which.number, sink: which.sink.clone(), state, limit, ..Filter::default() })
}

fn lines(entries: &[Entry]) -> String {
    let line = |entry: &Entry| {
        json!({
            "number": entry.seq, "state": entry.state.as_str(), "sink": entry.sink, "id": entry.id,
            "source": entry.source, "subject": entry.subject, "attempts": entry.attempts, "reason": entry.reason,
            "queued": entry.queued.to_string(), "changed": entry.changed.to_string(),
            "next_attempt": (entry.state == State::Pending).then(|| entry.next_attempt.to_string()),
        })
    };
    entries.iter().map(|entry| format!("{}\n", line(entry))).collect::<Vec<_>>().concat()
}

fn table(entries: &[Entry]) -> String {
    let mut text = format!(
        "{:>8}  {:<9}  {:<16}  {:<24}  {:<36}  {:>8}  {:<20}  REASON",
        "NUMBER", "STATE", "SINK", "SUBJECT", "ID", "ATTEMPTS", "DUE"
    );
    for entry in entries {
        let Entry { seq, sink, subject, id, attempts, next_attempt, .. } = entry;
        let due = if entry.state == State::Pending { format!("{next_attempt:.0}") } else { String::new() };
        let (state, subject, id) = (entry.state.as_str(), one_line(subject), one_line(id));
        let reason = one_line(entry.reason.as_deref().unwrap_or_default());
        // Writing to a String cannot fail.
        let _infallible = write!(
            text,
            "\n{seq:>8}  {state:<9}  {sink:<16}  {subject:<24}  {id:<36}  {attempts:>8}  {due:<20}  {reason}"
        );
    }
    text
}
