//! Compares cluster and ledger from time to time, besides all that is watched.
//!
//! It is no second way into the ledger: an object of which the two seem to differ is asked about in its scope's own task,
//! where the answer has its place among what is watched. That it was listed or not, a moment ago, decides nothing.

use std::collections::HashMap;
use std::time::Duration;

use kube::api::{Api, ListParams};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use watchfire_delivery::store::{self, Store};
use watchfire_runtime::chain;

use crate::config::Reconciliation;
use crate::episode::{Object, Rule};
use crate::ledger::{self, ScopeId};
use crate::watch::{Metadata, PAGE, Question, object};

/// The comparison of one scope.
pub(crate) struct Comparison {
    pub(crate) api: Api<Metadata>,
    pub(crate) scope: ScopeId,
    pub(crate) name: String,
    pub(crate) rule: Rule,
    pub(crate) store: Store,
    pub(crate) questions: mpsc::Sender<Question>,
}

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
        while token.run_until_cancelled(ticks.tick()).await.is_some() {
            let compared = token.run_until_cancelled(timeout(patience, self.compare())).await;
            match compared {
                None => return,
                Some(Ok(Ok(asked))) => debug!(scope = self.name, asked, "cluster and ledger compared"),
                Some(Ok(Err(error))) => {
                    warn!(
                        scope = self.name,
                        error = chain(&error),
                        "cluster and ledger are not compared, doing so again later"
                    );
                }
                Some(Err(_)) => {
                    warn!(scope = self.name, after = ?patience, "cluster and ledger are not compared: it takes too long");
                }
            }
        }
    }

    /// Asks about each object of which the two differ; returns how many these are.
    async fn compare(&self) -> Result<usize, Error> {
        let scope = self.scope;
        let open = self.store.read(move |connection| ledger::open(connection, scope)).await?;
        let mut open: HashMap<_, _> = open.into_iter().map(|it| ((it.namespace, it.name), it.uid)).collect();
        let (mut asked, mut page) = (0, ListParams::default().limit(PAGE));
        loop {
            let listed = self.api.list(&page).await?;
            for item in listed.items {
                let Object { namespace, name, uid, annotations, .. } = object(item.metadata);
                let marked = self.rule.value(&annotations).is_some();
                let known = open.remove(&(namespace.clone(), name.clone()));
                if known.is_some_and(|known| known == uid) != marked {
                    asked += self.ask(namespace, name).await;
                }
            }
            match listed.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => break,
            }
        }
        for (namespace, name) in open.into_keys() {
            asked += self.ask(namespace, name).await;
        }
        Ok(asked)
    }

    async fn ask(&self, namespace: String, name: String) -> usize {
        // Whoever has left asks nobody any more.
        usize::from(self.questions.send(Question { namespace, name }).await.is_ok())
    }
}
