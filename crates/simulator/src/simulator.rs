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
        let (resource, change) = self.write().create(plural, owner, new, clock::now())?;
        self.tell([change]);
        Ok(resource)
    }

    /// Replaces labels or spec; the generation grows if they differ.
    pub fn patch(&self, plural: &str, id: &str, patch: Patch) -> Result<Resource, Problem> {
        let (resource, change) = self.write().patch(plural, id, patch, clock::now())?;
        self.tell(change);
        Ok(resource)
    }

    /// Asks for deletion.
    pub fn delete(&self, plural: &str, id: &str) -> Result<Deleted, Problem> {
        let (deleted, changes) = self.write().delete(plural, id, clock::now())?;
        self.tell(changes);
        Ok(deleted)
    }

    /// Removes a resource and what it owns at once, whatever its adapters say.
    pub fn force_delete(&self, plural: &str, id: &str) -> Result<(), Problem> {
        let changes = self.write().force_delete(plural, id)?;
        self.tell(changes);
        Ok(())
    }

    /// Takes an adapter's report.
    pub fn report(&self, plural: &str, id: &str, report: NewReport) -> Result<Reported, Problem> {
        self.report_at(plural, id, report, clock::now())
    }

    /// Takes an adapter's report as if it were `now`, so that a test can bring a resource to any age.
    pub fn report_at(&self, plural: &str, id: &str, report: NewReport, now: Timestamp) -> Result<Reported, Problem> {
        let (reported, changes) = self.write().report(plural, id, report, now)?;
        self.tell(changes);
        Ok(reported)
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

    fn tell(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            // Nobody has to listen.
            drop(self.inner.changes.send(change));
        }
    }
}
