//! Names the adapters that a resource waits for.
//!
//! The report time of a resource is that of the adapter which reported least recently, so that one silent adapter
//! freezes it. Which one that is, the adapters' own conditions tell. Looked at only where an event of ours brought no
//! news, which is rare; nothing here is about whether to publish.
//!
//! The surprise: an adapter that never reported has no condition. Only the words of `Reconciled` name it.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::decision::{ASKED, Published};

/// Adapters have this much time to report before they are called silent.
const GRACE: SignedDuration = SignedDuration::from_mins(1);

/// Report times have no finer resolution than this.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// What one adapter last said about a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The adapter's name.
    pub adapter: String,
    /// The generation that it saw; none, if it never reported.
    pub generation: Option<i64>,
    /// When it reported.
    pub at: Option<Timestamp>,
}

/// Reads what each adapter last said, those included of which `Reconciled` says that they never reported.
pub fn read(json: &str) -> Vec<Said> {
    let Ok(resource) = serde_json::from_str::<Value>(json) else { return Vec::new() };
    let conditions = resource["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut said: Vec<_> = conditions
        .iter()
        .filter_map(|condition| {
            let name = condition["type"].as_str()?.strip_suffix("Successful")?;
            Some(Said {
                adapter: kebab(&short(name)),
                generation: Some(condition["observed_generation"].as_i64().unwrap_or(0)),
                at: condition["last_updated_time"].as_str().and_then(|time| time.parse().ok()),
            })
        })
        .collect();
    let summary = conditions.iter().find(|it| it["type"] == "Reconciled" || it["type"] == "Ready");
    let missing = summary.and_then(|summary| summary["message"].as_str()).map(never_reported).unwrap_or_default();
    said.extend(missing.into_iter().map(|adapter| Said { adapter: short(adapter), generation: None, at: None }));
    said
}

/// The adapters whose silence keeps a resource waiting, given our last event for it.
pub fn silent(said: &[Said], published: Published, now: Timestamp) -> Vec<&Said> {
    // The first event of a generation may be a moment old.
    let had_time = published.attempts >= ASKED || now.duration_since(published.at) >= GRACE;
    let is_silent = |said: &&Said| match (said.generation, said.at) {
        (Some(generation), Some(at)) if Some(generation) >= published.generation => {
            had_time && published.at.duration_since(at) >= RESOLUTION && now.duration_since(at) >= GRACE
        }
        _ => had_time,
    };
    said.iter().filter(is_silent).collect()
}

/// What the API writes may be of any length; a name is not.
fn short(name: &str) -> String {
    name.chars().take(63).collect()
}

/// `GcpDns` is what the API makes of `gcp-dns`.
fn kebab(name: &str) -> String {
    let mut kebab = String::with_capacity(name.len() + 2);
    for (at, char) in name.chars().enumerate() {
        if char.is_uppercase() && at > 0 {
            kebab.push('-');
        }
        kebab.extend(char.to_lowercase());
    }
    kebab
}

/// The API writes `Required adapters not reporting Available=True: [a, b]. Currently reporting: [a]`: who is in the
/// first list and not in the second has never reported. Other words name nobody.
fn never_reported(message: &str) -> BTreeSet<&str> {
    let mut lists = message.split('[').skip(1).filter_map(|rest| rest.split_once(']')).map(|(list, _)| {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.collect::<BTreeSet<_>>()
    });
    match (lists.next(), lists.next()) {
        (Some(wanted), Some(reporting)) => &wanted - &reporting,
        _ => BTreeSet::new(),
    }
}

/// A set of adapters, as places in a [`Roster`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Set(u32);

impl Set {
    fn places(self) -> impl Iterator<Item = usize> {
        (0..Roster::CAPACITY).filter(move |place| self.0 & (1 << place) != 0)
    }
}

/// How many resources wait for each adapter.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    resources: usize,
    of: [usize; Roster::CAPACITY],
}

impl Waiting {
    pub(crate) fn begin(&mut self, adapters: Set) {
        self.resources += usize::from(adapters != Set::default());
        adapters.places().for_each(|place| self.of[place] += 1);
    }

    pub(crate) fn end(&mut self, adapters: Set) {
        self.resources -= usize::from(adapters != Set::default());
        adapters.places().for_each(|place| self.of[place] -= 1);
    }

    /// Resources that wait for any adapter.
    pub(crate) fn resources(&self) -> usize {
        self.resources
    }
}

/// The adapters that were found silent, and whether that has been told.
#[derive(Debug, Default)]
pub(crate) struct Roster(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    adapter: String,
    /// A resource that waits for it, for whoever looks into it.
    example: String,
    told: bool,
}

/// A change worth telling.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Silent { adapter: &'a str, resources: usize, example: &'a str },
    Reports { adapter: &'a str },
}

impl Roster {
    /// Adapters that are told apart; kinds have a handful.
    const CAPACITY: usize = 32;

    /// The places of these adapters; one that has none any more is not counted.
    pub(crate) fn enter(&mut self, silent: &[&Said], resource: &str) -> Set {
        let mut set = Set::default();
        for Said { adapter, .. } in silent {
            let known = self.0.iter().position(|entry| entry.adapter == *adapter);
            let place = known.unwrap_or(self.0.len());
            if place == Self::CAPACITY {
                continue;
            }
            if known.is_none() {
                self.0.push(Entry { adapter: adapter.clone(), example: String::new(), told: false });
            }
            if !self.0[place].told {
                resource.clone_into(&mut self.0[place].example);
            }
            set.0 |= 1 << place;
        }
        set
    }

    /// What has changed since the last time, each change once.
    pub(crate) fn changes(&mut self, waiting: &Waiting) -> Vec<Change<'_>> {
        let mut changes = Vec::new();
        for (Entry { adapter, example, told }, resources) in self.0.iter_mut().zip(waiting.of) {
            let before = std::mem::replace(told, resources > 0);
            match (before, *told) {
                (false, true) => changes.push(Change::Silent { adapter, resources, example }),
                (true, false) => changes.push(Change::Reports { adapter }),
                (false, false) | (true, true) => {}
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests;
