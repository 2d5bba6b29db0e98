//! Judges a round by what a consumer received, against what the fleet went through. Pure.
//!
//! What is allowed, and why:
//!
//! - **The same event again** (same id): once per kill, since the memory of what was published dies with the process;
//!   once per disturbance of the link in which an attempt ended without a confirm, since nobody knows whether it had
//!   arrived (a link breaks once, and the attempts that find it broken carry nothing); once per restart of the broker,
//!   which may deliver again what it had delivered; once per time that the process's clock was off, which can make the
//!   memory expire. On Pub/Sub once per disturbance of the link as well: its client resends within one attempt.
//! - **Another event for the same generation** not before `max_age_not_ready` has passed between the times at which the
//!   two became due, but for a second, which is how exact report times are; nearer once per kill, and once per time that
//!   the clock was off. An answer of the API that was delayed may be as old as its timeout when it is decided on.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::SignedDuration;
use uuid::Uuid;
use watchfire_sentinel::decision::Reason;
use watchfire_sentinel::event::SOURCE;

use crate::child::Outcome;
use crate::plan::{BrokerKind, LinkFault, ProcessFault};
use crate::receipt::Event;
use crate::round::{API_TIMEOUT, Evidence, Incident, Trouble};
use crate::vitals::PATIENCE;

/// Resident memory at the most, in KiB: the fleets are small.
const MAX_RSS: u64 = 96 * 1024;
/// What it may gain from the first look at which it is ready to the last.
const MAX_GROWTH: u64 = 24 * 1024;
/// Threads and open files that it may gain: pools that have filled up, never one per lost connection.
const MAX_MORE_THREADS: u64 = 6;
const MAX_MORE_FILES: u64 = 12;
/// Report times are whole seconds.
const EXACTNESS: Duration = Duration::from_secs(1);
/// What the harness's own clock and the order of its observations are good for.
const SLACK: Duration = Duration::from_millis(500);
/// How long an attempt may go on after its cause has gone: the sinks' timeout.
const REACH: Duration = Duration::from_secs(12);

/// What a round came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    /// Events that were received a second time, and how many such would have been in order.
    pub(crate) repeats: u64,
    pub(crate) allowed: u64,
}

/// One event as it was received: when, first to last.
struct Arrivals<'a> {
    event: &'a Event,
    at: Vec<Duration>,
}

pub(crate) fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict { violations: evidence.failures.clone(), ..Verdict::default() };
    let arrivals = invented(evidence, &mut verdict.violations);
    repeated(evidence, &arrivals, &mut verdict);
    crowded(evidence, &arrivals, &mut verdict.violations);
    refused(evidence, &mut verdict.violations);
    vitals(evidence, &mut verdict.violations);
    verdict
}

/// Every event is about a generation that was there, and its id is that of its cause. Returns them by id.
fn invented<'a>(evidence: &'a Evidence, violations: &mut Vec<String>) -> BTreeMap<&'a str, Arrivals<'a>> {
    let mut arrivals: BTreeMap<&str, Arrivals<'_>> = BTreeMap::new();
    for receipt in &evidence.receipts {
        let event = match &receipt.event {
            Ok(event) => event,
            Err(why) => {
                violations.push(format!("received at {:?} what is no event: {why}", receipt.at));
                continue;
            }
        };
        let generations = evidence.lives.get(&event.resource).map(|life| life.generations.as_slice());
        let index = usize::try_from(event.generation).ok().and_then(|generation| generation.checked_sub(1));
        let born = generations.unwrap_or_default().get(index.unwrap_or(usize::MAX));
        if born.is_none_or(|born| *born > receipt.at + SLACK) {
            violations.push(format!("received at {:?} about a generation that is not there: {event:?}", receipt.at));
        }
        let known = arrivals.entry(&event.id).or_insert_with(|| Arrivals { event, at: Vec::new() });
        if (&known.event.resource, known.event.generation) != (&event.resource, event.generation) {
            violations.push(format!("one id, two causes: {:?} and {event:?}", known.event));
        }
        if !receipt.redelivered {
            known.at.push(receipt.at);
        }
        // A report time in the future is part of a cause, and stands in no event.
        if !evidence.plan.has_clocks_that_differ() && !is_derived(evidence, event) {
            violations.push(format!("an id that no cause has: {event:?}"));
        }
    }
    arrivals
}

/// Whether the id is that of some reason, counted back from the time at which the event was due.
fn is_derived(evidence: &Evidence, event: &Event) -> bool {
    let before = |age: Duration| {
        let age = SignedDuration::try_from(age).ok()?;
        Some(event.time.checked_sub(age).ok()?.to_string())
    };
    let since = [Some(String::new()), before(evidence.plan.ready), before(evidence.plan.not_ready)];
    since.iter().flatten().any(|since| {
        Reason::ALL.iter().any(|reason| {
            let cause = format!("{SOURCE}\n{}\n{}\n{since}\n{}", event.generation, reason.as_str(), event.resource);
            Uuid::new_v5(&Uuid::NAMESPACE_OID, cause.as_bytes()).to_string() == event.id
        })
    })
}

/// No event comes again without an excuse.
fn repeated(evidence: &Evidence, arrivals: &BTreeMap<&str, Arrivals<'_>>, verdict: &mut Verdict) {
    for arrival in arrivals.values() {
        let (Some(first), Some(last)) = (arrival.at.first(), arrival.at.last()) else { continue };
        let repeats = arrival.at.len() as u64 - 1;
        if repeats == 0 {
            continue;
        }
        let between = first.saturating_sub(SLACK)..=*last + SLACK;
        let unconfirmed = unconfirmed(evidence, &arrival.event.id, *between.end());
        let excuses = evidence.incidents.iter().filter(|incident| excuses(incident, evidence.plan.broker));
        let meets =
            |incident: &&Incident| incident.begun <= *between.end() && incident.ended + REACH >= *between.start();
        let allowed = (unconfirmed + excuses.filter(meets).count()) as u64;
        verdict.repeats += repeats;
        verdict.allowed += allowed;
        if repeats > allowed {
            let Arrivals { event, at } = arrival;
            verdict.violations.push(format!("received {} times at {at:?}, {allowed} excuses: {event:?}", at.len()));
        }
    }
}

/// How many attempts at the event may have arrived though the process calls them failed, until then and however long
/// ago: what a blocked broker has not read yet arrives when it does. At most one for each disturbance of the link.
fn unconfirmed(evidence: &Evidence, id: &str, until: Duration) -> usize {
    let attempts = evidence
        .said
        .iter()
        .filter(|said| said.at <= until && matches!(&said.what, Outcome::Refused { event } if event == id));
    let broke = |incident: &&Incident| {
        matches!(incident.what, Trouble::Link(_)) && attempts.clone().any(|said| reaches(incident, said.at))
    };
    attempts.clone().count().min(evidence.incidents.iter().filter(broke).count())
}

/// Whether an attempt that ended then may have ended because of it.
fn reaches(incident: &Incident, at: Duration) -> bool {
    incident.begun <= at && incident.ended + REACH >= at
}

/// Whether an event may come once more because of it, beyond the attempts that the process itself calls failed.
fn excuses(incident: &Incident, broker: BrokerKind) -> bool {
    match incident.what {
        Trouble::Process(ProcessFault::Kill | ProcessFault::Clock(_))
        | Trouble::Link(LinkFault::Stop | LinkFault::Kill) => true,
        Trouble::Link(_) => broker == BrokerKind::PubSub,
        Trouble::Process(ProcessFault::Pause) | Trouble::Api(_) => false,
    }
}

/// Two events for one generation are at least one max age apart.
fn crowded(evidence: &Evidence, arrivals: &BTreeMap<&str, Arrivals<'_>>, violations: &mut Vec<String>) {
    let mut by_generation: BTreeMap<(&str, i32), Vec<(Duration, &Event)>> = BTreeMap::new();
    for arrival in arrivals.values() {
        let Some(first) = arrival.at.first() else { continue };
        let key = (arrival.event.resource.as_str(), arrival.event.generation);
        by_generation.entry(key).or_default().push((*first, arrival.event));
    }
    for events in by_generation.values_mut() {
        events.sort_by_key(|(at, event)| (event.time, *at));
        let mut excused = 0;
        for pair in events.windows(2) {
            let [(at, event), (next_at, next)] = pair else { continue };
            let meets = |incident: &Incident| {
                incident.begun <= (*next_at).max(*at) + SLACK && incident.ended + REACH >= (*at).min(*next_at)
            };
            let late = |incident: &Incident| matches!(incident.what, Trouble::Api(_)) && meets(incident);
            let delayed = if evidence.incidents.iter().any(late) { API_TIMEOUT } else { Duration::ZERO };
            let window = evidence.plan.not_ready.saturating_sub(EXACTNESS + SLACK + delayed);
            let apart = next.time.duration_since(event.time);
            if SignedDuration::try_from(window).is_ok_and(|window| apart >= window) {
                continue;
            }
            // However long ago: when the first of the two left the process, its receipt does not say.
            let forgot = |incident: &&Incident| forgets(incident) && incident.begun <= (*next_at).max(*at) + SLACK;
            if excused < evidence.incidents.iter().filter(forgot).count() {
                excused += 1;
            } else {
                violations.push(format!(
                    "only {apart} apart, where {window:?} is due: {event:?} at {at:?}, {next:?} at {next_at:?}"
                ));
            }
        }
    }
}

/// Whether the process may know less, or another time, after it.
fn forgets(incident: &Incident) -> bool {
    match incident.what {
        Trouble::Process(ProcessFault::Kill | ProcessFault::Clock(_)) => true,
        Trouble::Process(ProcessFault::Pause) | Trouble::Api(_) | Trouble::Link(_) => false,
    }
}

/// An attempt fails only where something was wrong with the broker.
fn refused(evidence: &Evidence, violations: &mut Vec<String>) {
    let troubles =
        || evidence.incidents.iter().filter(|incident| matches!(incident.what, Trouble::Link(_) | Trouble::Process(_)));
    for said in &evidence.said {
        if matches!(said.what, Outcome::Refused { .. }) && !troubles().any(|incident| reaches(incident, said.at)) {
            violations
                .push(format!("an event about {} was refused at {:?}, and nothing was wrong", said.resource, said.at));
        }
    }
}

/// It lives, whatever happens around it, and grows no threads, files or memory.
fn vitals(evidence: &Evidence, violations: &mut Vec<String>) {
    // A look that began before may last until then, and the process takes a moment to come to itself.
    let held = |at: Duration| {
        let mut process = evidence.incidents.iter().filter(|incident| matches!(incident.what, Trouble::Process(_)));
        process.any(|incident| incident.begun <= at + PATIENCE && incident.ended + PATIENCE >= at)
    };
    for look in &evidence.looks {
        match look.alive {
            Some(200) => {}
            Some(status) => violations.push(format!("/healthz answered {status} at {:?}", look.at)),
            None if held(look.at) => {}
            None => violations.push(format!("/healthz did not answer at {:?}", look.at)),
        }
        if look.rss_kib > MAX_RSS {
            violations.push(format!("{} KiB resident at {:?}", look.rss_kib, look.at));
        }
    }
    // A killed process starts anew, with less: what counts is the last one.
    let born = evidence.incidents.iter().filter(|incident| incident.what == Trouble::Process(ProcessFault::Kill));
    let born = born.map(|incident| incident.ended).max().unwrap_or_default();
    let mut lasting = evidence.looks.iter().filter(|look| look.at > born && look.ready);
    let (Some(first), Some(last)) = (lasting.next(), lasting.next_back()) else { return };
    for (what, before, after, more) in [
        ("KiB", first.rss_kib, last.rss_kib, MAX_GROWTH),
        ("threads", first.threads, last.threads, MAX_MORE_THREADS),
        ("open files", first.files, last.files, MAX_MORE_FILES),
    ] {
        if after > before + more {
            violations.push(format!("grew from {before} to {after} {what}"));
        }
    }
}

/// The kinds of faults that struck, for the closing table.
pub(crate) fn kinds(evidence: &Evidence) -> Vec<String> {
    let name = |incident: &Incident| match incident.what {
        Trouble::Api(fault) => format!("api {}", word(&format!("{fault:?}"))),
        Trouble::Link(fault) => format!("broker {}", word(&format!("{fault:?}"))),
        Trouble::Process(fault) => format!("process {}", word(&format!("{fault:?}"))),
    };
    evidence.incidents.iter().map(name).collect()
}

/// The variant's name alone.
fn word(debug: &str) -> String {
    debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// How many different events were received.
pub(crate) fn distinct(evidence: &Evidence) -> usize {
    let events = evidence.receipts.iter().filter_map(|receipt| receipt.event.as_ref().ok());
    events.map(|event| event.id.as_str()).collect::<HashSet<_>>().len()
}

#[cfg(test)]
mod tests;
