//! Puts a beacon together: a watch for each scope, the ledger, and what delivers from it.

use std::convert::Infallible;
use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use watchfire_delivery::metrics::Metrics;
use watchfire_delivery::outbox;
use watchfire_delivery::retention::Retention as OutboxRetention;
use watchfire_delivery::sink::{self, http::Http};
use watchfire_delivery::store::{self, Store};
use watchfire_delivery::worker::{Queue, Worker};
use watchfire_runtime::clock;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};

use crate::config::{BeaconConfig, Retention};
use crate::ledger;
use crate::watch::{Common, Watch};

/// The name of the one sink, in the outbox, in metrics and in readiness.
pub const SINK: &str = "endpoint";

/// Episodes that go in one transaction.
const STEP: u32 = 500;

/// Why a beacon does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger cannot be used.
    #[error("open the ledger")]
    Ledger(#[from] store::Error),
    /// The endpoint cannot be used.
    #[error("set up the endpoint")]
    Endpoint(#[from] sink::Error),
}

/// A beacon that is put together and does nothing yet.
pub struct Beacon {
    store: Store,
    watches: Vec<Watch>,
    worker: Worker,
    retention: Option<Retention>,
}

impl Beacon {
    /// Opens the ledger; asks neither cluster nor endpoint yet.
    pub async fn open(config: BeaconConfig, client: Client, metrics: &Metrics, health: &Health) -> Result<Self, Error> {
        let options = store::Options { metrics: metrics.store.clone(), ..store::Options::default() };
        let path = config.store;
        let opened =
            tokio::task::spawn_blocking(move || Store::open(&path, &[outbox::MODULE, ledger::MODULE], options));
        let store = opened.await.map_err(|_| store::Error::Closed)??;
        let sink = store.write(|tx| outbox::register(tx, SINK)).await?;
        let http = Http::new(config.endpoint)?;
        let queue = Queue { name: SINK.to_owned(), id: sink, store: store.clone() };
        let one_order = config.worker.lanes.get() == 1;
        let worker = Worker::new(queue, Arc::new(http), config.worker, metrics.sink(SINK), health);
        let common = Common {
            client,
            store: store.clone(),
            sink,
            rule: config.rule,
            allowed: config.allowed,
            envelope: config.envelope,
            one_order,
            reconciliation: config.reconciliation,
            health: health.clone(),
        };
        let mut watches = Vec::new();
        for entry in config.entries {
            match entry.namespaces.clone() {
                None => watches.push(Watch::new(common.clone(), entry, None)),
                Some(namespaces) => watches.extend(
                    namespaces.into_iter().map(|namespace| Watch::new(common.clone(), entry.clone(), Some(namespace))),
                ),
            }
        }
        Ok(Self { store, watches, worker, retention: config.retention })
    }

    /// Makes it tasks of this process.
    pub fn spawn(self, tasks: &mut Tasks) {
        for watch in self.watches {
            tasks.essential("watch", watch.run(tasks.token()));
        }
        tasks.essential_at(Stage::Workers, "delivery", self.worker.run(tasks.stage_token(Stage::Workers)));
        if let Some(retention) = self.retention {
            let store = self.store.clone();
            let of_outbox = OutboxRetention::new(store.clone(), retention.keep, retention.every);
            tasks.auxiliary_at(Stage::Workers, "retention", move |token| of_outbox.clone().run(token));
            tasks.auxiliary_at(Stage::Workers, "ledger-retention", move |token| clean(store.clone(), retention, token));
        }
        let (store, stop) = (self.store, tasks.stage_token(Stage::Outbox));
        tasks.essential_at(Stage::Outbox, "ledger", async move {
            stop.cancelled().await;
            store.close().await;
            Ok::<_, Infallible>(())
        });
    }
}

/// Removes what is over, and was told, for long enough.
async fn clean(
    store: Store,
    Retention { every, keep }: Retention,
    token: CancellationToken,
) -> Result<(), store::Error> {
    let mut ticks = interval(every);
    while token.run_until_cancelled(ticks.tick()).await.is_some() {
        let before = clock::now().checked_sub(keep).unwrap_or(Timestamp::MIN);
        loop {
            match store.write(move |tx| ledger::prune(tx, before, STEP)).await {
                Ok(0) => break,
                Ok(episodes) => debug!(episodes, "ledger cleaned"),
                Err(store::Error::Closed) => return Err(store::Error::Closed),
                Err(error) => {
                    warn!(%error, hint = error.hint(), "ledger not cleaned");
                    break;
                }
            }
        }
    }
    Ok(())
}
