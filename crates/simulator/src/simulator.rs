//! The handle on a simulated fleet: direct calls for tests, the same rules as over HTTP.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use jiff::Timestamp;
use tokio::sync::broadcast;
use watchfire_runtime::clock;

use crate::dialect::Dialect;
use crate::faults::Faults;
use crate::fleet::{Change, Deleted, Fleet, Reported};
use crate::input::{NewReport, NewResource, Patch};
use crate::kind::Kind;
use crate::problem::Problem;
use crate::resource::Resource;
use crate::synthetic::FleetState;
use crate::table::Row;

/// Changes kept for a slow subscriber before it loses the oldest: a few seconds of a busy demo.
const CHANGES_KEPT: usize = 4096;

/// A simulated fleet and its API; clones share it.
#[derive(Debug, Clone)]
pub struct Simulator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fleet: RwLock<Fleet>,
    changes: broadcast::Sender<Change>,
    faults: Faults,
}

/// How many resources of a kind are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub total: u64,
    /// Reconciled at their current generation.
    pub ready: u64,
    /// Waiting for adapters.
    pub not_ready: u64,
    /// Marked for deletion; they are also among the others.
    pub deleting: u64,
}

impl Default for Simulator {
    /// Today's API with clusters and node pools.
    fn default() -> Self {
        Self::new(Dialect::Hyperfleet)
    }
}

impl Simulator {
    /// An empty fleet of clusters and node pools.
    pub fn new(dialect: Dialect) -> Self {
        Self::with_kinds(dialect, vec![Kind::clusters(), Kind::nodepools()])
    }

    /// An empty fleet of the given kinds.
    pub fn with_kinds(dialect: Dialect, kinds: Vec<Kind>) -> Self {
        let fleet = RwLock::new(Fleet::new(dialect, kinds));
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        Self { inner: Arc::new(Inner { fleet, changes, faults: Faults::default() }) }
    }

    /// Adds `count` synthetic resources to an empty kind without parent; they are computed when looked at.
    pub fn seed(&self, plural: &str, count: u32, state: FleetState) -> Result<(), Problem> {
        self.write().seed(plural, count, state, clock::now())
    }

    /// Creates a resource.
    pub fn create(&self, plural: &str, new: NewResource) -> Result<Resource, Problem> {
        self.create_in(plural, None, new)
    }

    /// Creates a resource below its owner.
    pub fn create_in(&self, plural: &str, owner: Option<&str>, new: NewResource) -> Result<Resource, Problem> {
        self.change(|fleet| {
            let (resource, change) = fleet.create(plural, owner, new, clock::now())?;
            Ok((resource, [change]))
        })
    }

    /// Replaces labels or spec; the generation grows if they differ.
    pub fn patch(&self, plural: &str, id: &str, patch: Patch) -> Result<Resource, Problem> {
        self.change(|fleet| fleet.patch(plural, id, patch, clock::now()))
    }

    /// Asks for deletion.
    pub fn delete(&self, plural: &str, id: &str) -> Result<Deleted, Problem> {
        self.change(|fleet| fleet.delete(plural, id, clock::now()))
    }

    /// Removes a resource and what it owns at once, whatever its adapters say.
    pub fn force_delete(&self, plural: &str, id: &str) -> Result<(), Problem> {
        self.change(|fleet| Ok(((), fleet.force_delete(plural, id)?)))
    }

    /// Takes an adapter's report.
    pub fn report(&self, plural: &str, id: &str, report: NewReport) -> Result<Reported, Problem> {
        self.report_at(plural, id, report, clock::now())
    }

    /// Takes an adapter's report as if it were `now`, so that a test can bring a resource to any age.
    pub fn report_at(&self, plural: &str, id: &str, report: NewReport, now: Timestamp) -> Result<Reported, Problem> {
        self.change(|fleet| fleet.report(plural, id, report, now))
    }

    /// The resource as it is.
    pub fn get(&self, plural: &str, id: &str) -> Option<Resource> {
        match self.read().get(plural, id).ok()? {
            Row::Stored(resource) => Some(resource.clone()),
            Row::Synthetic(synthetic, index) => Some(synthetic.materialise(index)),
        }
    }

    /// Counts the resources of a kind by state.
    pub fn counts(&self, plural: &str) -> Counts {
        let fleet = self.read();
        let Some(table) = fleet.table(plural) else { return Counts::default() };
        let (pristine, pristine_ready, stored) = table.census();
        let mut counts = Counts { total: pristine, ready: pristine_ready, ..Counts::default() };
        for resource in stored {
            counts.total += 1;
            counts.ready += u64::from(resource.is_ready() || table.kind.required_adapters.is_empty());
            counts.deleting += u64::from(resource.deleted_time.is_some());
        }
        counts.not_ready = counts.total - counts.ready;
        counts
    }

    /// Every change from now on; a subscriber that falls behind loses the oldest and is told so.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.inner.changes.subscribe()
    }

    /// The switches for faults, and the log of requests.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Fleet> {
        self.inner.fleet.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Fleet> {
        self.inner.fleet.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the fleet and tells of it under the lock, so that changes are heard in the order in which they happened.
    fn change<T, Changes: IntoIterator<Item = Change>>(
        &self,
        make: impl FnOnce(&mut Fleet) -> Result<(T, Changes), Problem>,
    ) -> Result<T, Problem> {
        let mut fleet = self.write();
        let (outcome, changes) = make(&mut fleet)?;
        for change in changes {
            // Nobody has to listen.
            drop(self.inner.changes.send(change));
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use serde_json::json;

    use super::*;

    #[test]
    fn changes_made_at_once_are_heard_in_the_order_in_which_they_happened() {
        const EACH: u64 = 500;
        let fleet = Simulator::default();
        let cluster = fleet.create("clusters", NewResource::named("alpha")).unwrap();
        let mut changes = fleet.changes();
        thread::scope(|scope| {
            for thread in 0..4 {
                let (fleet, id) = (&fleet, &cluster.id);
                scope.spawn(move || {
                    for change in 0..EACH {
                        fleet.patch("clusters", id, Patch::spec(&json!({"value": [thread, change]}))).unwrap();
                    }
                });
            }
        });
        let heard: Vec<i32> = (0..4 * EACH).map(|_| changes.try_recv().unwrap().generation).collect();
        assert!(heard.is_sorted(), "{heard:?}");
    }
}
