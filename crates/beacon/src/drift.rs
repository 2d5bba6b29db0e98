//! Compares cluster and ledger from time to time, besides all that is watched.
//!
//! It is no second way into the ledger: an object of which the two seem to differ is asked about in its scope's own
//! task, where the answer has its place among what is watched. That it was listed or not, a moment ago, decides
//! nothing.

use std::collections::HashMap;
use std::time::Duration;

use kube::api::Api;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use watchfire_delivery::store::{self, Store};
use watchfire_runtime::clock;
use watchfire_runtime::health::Dependency;

use crate::config::Reconciliation;
use crate::episode::{Object, Rule};
use crate::ledger::{self, Name, ScopeId};
use crate::metrics::Metrics;
use crate::objects::{Metadata, each, told};
use crate::watch::Question;

/// The comparison of one scope.
pub(crate) struct Comparison {
    pub(crate) api: Api<Metadata>,
    pub(crate) scope: ScopeId,
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) metrics: Metrics,
    pub(crate) rule: Rule,
    pub(crate) store: Store,
    pub(crate) questions: mpsc::Sender<Question>,
    /// Whether the two can be compared.
    pub(crate) state: Dependency,
}

/// An object of which the two differ.
#[derive(PartialEq, Eq)]
struct Suspect {
    /// The UID that the ledger has.
    ledger: Option<String>,
    /// The UID that the cluster has.
    cluster: Option<String>,
}

/// So long a watch has to tell of what a list has told already.
const SETTLES: Duration = Duration::from_secs(5);

/// Why cluster and ledger were not compared.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("list the cluster's objects")]
    Cluster(#[from] kube::Error),
    #[error("read the ledger's objects")]
    Ledger(#[from] store::Error),
}

impl Comparison {
    /// Compares until told to stop.
    pub(crate) async fn run(self, every: Reconciliation, token: CancellationToken) {
        let Reconciliation { interval, timeout: patience } = every;
        // A list at the start is compared by whoever watches.
        let mut ticks = interval_at(Instant::now() + interval, interval.max(Duration::from_millis(10)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures = 0;
        while token.run_until_cancelled(ticks.tick()).await.is_some() {
            let begun = Instant::now();
            let compared = token.run_until_cancelled(timeout(patience, self.compare())).await;
            let objects = match compared {
                None => return,
                Some(Ok(Ok(objects))) => Ok(objects),
                Some(Ok(Err(error))) => Err(told(&error)),
                Some(Err(_)) => Err(format!("no answer within {patience:?}")),
            };
            self.metrics.compared(&self.kind, objects.as_ref().ok().copied(), begun.elapsed());
            match objects {
                Ok(_) => {
                    if std::mem::take(&mut failures) > 0 {
                        info!(scope = self.name, "cluster and ledger are compared again");
                    }
                    self.state.up();
                }
                Err(error) => {
                    failures += 1;
                    // Once is none: a watch that is well says more. Twice in a row is a watch that may hear nothing.
                    if failures > 1 {
                        self.state
                            .down(format!("cluster and ledger were not compared {failures} times in a row: {error}"));
                    }
                    if failures == 1 {
                        warn!(scope = self.name, error, "cluster and ledger are not compared, doing so again later");
                    } else {
                        debug!(scope = self.name, error, "cluster and ledger are still not compared");
                    }
                }
            }
        }
    }

    /// Asks about each object of which the two differ, and go on to differ in the same way while the watch has its
    /// time; returns how many were compared.
    async fn compare(&self) -> Result<u64, Error> {
        let (compared, mut suspects) = self.look().await?;
        if !suspects.is_empty() {
            sleep(SETTLES).await;
            let (_, still) = self.look().await?;
            suspects.retain(|at, suspect| still.get(at) == Some(suspect));
        }
        for ((namespace, name), Suspect { ledger, .. }) in suspects {
            debug!(scope = self.name, namespace, name, "cluster and ledger differ");
            // Whoever has left asks nobody any more.
            drop(self.questions.send(Question { namespace, name, uid: ledger }).await);
        }
        let scope = self.scope;
        self.store.write(move |tx| ledger::reconciled(tx, scope, clock::now())).await?;
        Ok(compared)
    }

    /// How many objects there are in either, and those of which the two differ.
    async fn look(&self) -> Result<(u64, HashMap<Name, Suspect>), Error> {
        let scope = self.scope;
        let mut open = self.store.read(move |connection| ledger::open_uids(connection, scope)).await?;
        let (mut compared, mut suspects) = (0, HashMap::new());
        let compare = |Object { namespace, name, uid, annotations, .. }: Object| {
            let marked = self.rule.value(&annotations).is_some();
            let at = (namespace, name);
            let ledger = open.remove(&at);
            compared += u64::from(marked || ledger.is_some());
            if ledger.as_ref().map_or(marked, |known| !marked || *known != uid) {
                suspects.insert(at, Suspect { ledger, cluster: Some(uid) });
            }
        };
        each(&self.api, compare).await?;
        compared += open.len() as u64;
        suspects.extend(open.into_iter().map(|(at, uid)| (at, Suspect { ledger: Some(uid), cluster: None })));
        Ok((compared, suspects))
    }
}
