//! What happens in the demo, in the order in which it is seen.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::{broadcast, mpsc};
use watchfire_delivery::CloudEvent;
use watchfire_simulator::{Change, Simulator, Status, What};

use super::ready;

/// The fleet, what changes in it, and what the sentinels publish.
pub(super) struct Story {
    pub(super) fleet: Simulator,
    changes: broadcast::Receiver<Change>,
    published: mpsc::Receiver<CloudEvent>,
    pub(super) begun: Instant,
    /// Resources by plural and id.
    pub(super) rows: BTreeMap<(String, String), Row>,
    pub(super) events: u64,
    /// When everything was ready for the first time.
    pub(super) all_ready: Option<Duration>,
}

/// One resource on its way.
#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) generation: i32,
    pub(super) ready: bool,
    pub(super) deleting: bool,
    /// What each adapter said last, and of which generation.
    pub(super) adapters: BTreeMap<String, Status>,
    pub(super) events: u64,
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) at: Duration,
    pub(super) verb: &'static str,
    pub(super) subject: String,
    pub(super) text: String,
}

impl Story {
    pub(super) fn new(
        fleet: Simulator,
        changes: broadcast::Receiver<Change>,
        published: mpsc::Receiver<CloudEvent>,
    ) -> Self {
        Self { fleet, changes, published, begun: Instant::now(), rows: BTreeMap::new(), events: 0, all_ready: None }
    }

    /// Waits for the next thing to happen; nothing once everything has ended.
    pub(super) async fn next(&mut self) -> Option<Vec<Line>> {
        loop {
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => return Some(self.changed(&change)),
                    // Lines are lost, the rows catch up with the next change of each resource.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
                Some(event) = self.published.recv() => return Some(self.sent(&event)),
            }
        }
    }

    /// A cluster whose spec can be changed: the first in the list that is ready, else any.
    pub(super) fn a_cluster(&self) -> Option<String> {
        let mut clusters = self.rows.iter().filter(|((plural, _), row)| plural == "clusters" && !row.deleting);
        let any = clusters.clone().next();
        clusters.find(|(_, row)| row.ready).or(any).map(|((_, id), _)| id.clone())
    }

    /// How many are ready, of how many: as the fleet is now, which the rows follow.
    pub(super) fn ready(&self) -> (u64, u64) {
        ready(&self.fleet)
    }

    fn changed(&mut self, change: &Change) -> Vec<Line> {
        let key = (change.plural.clone(), change.id.clone());
        if change.what == What::Removed {
            let row = self.rows.remove(&key).unwrap_or_default();
            return vec![self.line("removed", &change.plural, &row.name, String::new())];
        }
        let fleet = &self.fleet;
        let row = self.rows.entry(key).or_insert_with(|| Row {
            name: fleet.get(&change.plural, &change.id).map(|resource| resource.name).unwrap_or_default(),
            ..Row::default()
        });
        let was_ready = std::mem::replace(&mut row.ready, change.ready);
        if std::mem::replace(&mut row.generation, change.generation) != change.generation {
            row.adapters.clear();
        }
        let (verb, text) = match &change.what {
            What::Created => ("created", format!("generation {}, id {}", change.generation, change.id)),
            What::Changed => ("changed", format!("its spec, generation {}", change.generation)),
            What::Deleting => {
                row.deleting = true;
                ("deleting", format!("generation {}", change.generation))
            }
            What::Reported { adapter, available } => {
                row.adapters.insert(adapter.clone(), *available);
                ("report", format!("{adapter} {}", available.as_str()))
            }
            What::Removed => ("removed", String::new()),
        };
        let name = row.name.clone();
        let mut lines = vec![self.line(verb, &change.plural, &name, text)];
        if change.ready && !was_ready {
            lines.push(self.line("READY", &change.plural, &name, format!("generation {}", change.generation)));
            let (ready, all) = self.ready();
            if ready == all {
                self.all_ready.get_or_insert_with(|| self.begun.elapsed());
            }
        }
        lines
    }

    fn sent(&mut self, event: &CloudEvent) -> Vec<Line> {
        self.events += 1;
        let data: serde_json::Value = serde_json::from_str(event.data().get()).unwrap_or_default();
        let id = data["id"].as_str().unwrap_or_default().to_owned();
        let plural = format!("{}s", data["kind"].as_str().unwrap_or_default().to_lowercase());
        let name = match self.rows.get_mut(&(plural.clone(), id.clone())) {
            Some(row) => {
                row.events += 1;
                row.name.clone()
            }
            None => id,
        };
        let short = event.id().get(..8).unwrap_or_default().to_owned();
        vec![self.line("event", &plural, &name, format!("{} {short}", event.attributes().ty))]
    }

    fn line(&self, verb: &'static str, plural: &str, name: &str, text: String) -> Line {
        let kind = plural.strip_suffix('s').unwrap_or(plural);
        Line { at: self.begun.elapsed(), verb, subject: format!("{kind}/{name}"), text }
    }
}
