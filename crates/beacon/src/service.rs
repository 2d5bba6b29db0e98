//! Puts a beacon together: a watch for each scope, the ledger, and what delivers from it.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use watchfire_delivery::metrics::Metrics as DeliveryMetrics;
use watchfire_delivery::outbox;
use watchfire_delivery::retention::{Looks, Retention as OutboxRetention};
use watchfire_delivery::sink::{self, http::Http};
use watchfire_delivery::store::{self, Damaged, Store, open_beside};
use watchfire_delivery::worker::{Queue, Worker};
use watchfire_runtime::chain;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};

use crate::config::{BeaconConfig, Retention, Storage};
use crate::endpoint::Endpoint;
use crate::ledger;
use crate::metrics::{Component, Metrics};
use crate::notice::Order;
use crate::storage::Monitor;
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
    monitor: Monitor,
    metrics: Metrics,
}

impl Beacon {
    /// Opens the ledger; asks neither cluster nor endpoint yet.
    pub async fn open(
        config: BeaconConfig,
        client: Client,
        (metrics, delivery): (&Metrics, &DeliveryMetrics),
        health: &Health,
    ) -> Result<Self, Error> {
        // An empty ledger would announce everything again, and never what is gone.
        let damaged = Damaged::Refuse;
        let options = store::Options { metrics: delivery.store.clone(), damaged, ..store::Options::default() };
        let Storage { ledger: path, volume, every, thresholds } = config.storage;
        let opened = tokio::task::spawn_blocking(move || {
            refuse_foreign(&path)?;
            Store::open(&path, &[outbox::MODULE, ledger::MODULE], options)
        });
        let store = opened.await.map_err(|_| store::Error::Closed)??;
        let sink = store.write(|tx| outbox::register(tx, SINK)).await?;
        let endpoint = Arc::new(Http::new(config.endpoint)?);
        let queue = Queue { name: SINK.to_owned(), id: sink, store: store.clone() };
        let order = if config.worker.lanes.get() == 1 { Order::All } else { Order::Name };
        store.write(move |tx| outbox::reorder(tx, sink, |event| order.key_of(event))).await?;
        if store.read(ledger::is_new).await? {
            info!(ledger = %store.path().display(), "the ledger is new: every annotated object that is there is announced");
        }
        for (kind, group, namespace) in store.read(ledger::open_places).await? {
            if !config.entries.iter().any(|entry| entry.covers(&kind, &group, &namespace)) {
                warn!(kind, group, namespace, "no longer watched: what was announced of it stays as it is");
            }
        }
        let worker = Worker::new(queue, endpoint, config.worker, delivery.sink(SINK), health);
        let worker = worker.observed_by(Arc::new(Endpoint(metrics.clone())));
        // Nothing is taken in before the volume was looked at.
        let (intake, open) = watch::channel(false);
        let of_ledger = health.dependency("ledger");
        of_ledger.up();
        let common = Common {
            client,
            store: store.clone(),
            sink,
            rule: config.rule,
            allowed: config.allowed,
            envelope: config.envelope,
            order,
            reconciliation: config.reconciliation,
            on_startup: config.on_startup,
            intake: open,
            of_ledger: of_ledger.clone(),
            metrics: metrics.clone(),
            health: health.clone(),
        };
        let mut watches = Vec::new();
        for entry in config.entries {
            let of = |namespace: Option<&str>| Watch::new(common.clone(), entry.clone(), namespace.map(str::to_owned));
            watches.extend(entry.places().into_iter().map(of));
        }
        let (store_of, metrics) = (store.clone(), metrics.clone());
        let state = health.dependency("storage");
        let keep = config.retention.map(|retention| retention.keep);
        let monitor = Monitor {
            volume,
            store: store_of,
            every,
            thresholds,
            keep,
            metrics: metrics.clone(),
            state,
            of_ledger,
            intake,
        };
        Ok(Self { store, watches, worker, retention: config.retention, monitor, metrics })
    }

    /// Makes it tasks of this process.
    pub fn spawn(self, tasks: &mut Tasks) {
        for watch in self.watches {
            tasks.essential("watch", watch.run(tasks.token()));
        }
        tasks.essential_at(Stage::Workers, "storage", self.monitor.run(tasks.stage_token(Stage::Workers)));
        tasks.essential_at(Stage::Workers, "delivery", self.worker.run(tasks.stage_token(Stage::Workers)));
        if let Some(retention) = self.retention {
            let (store, metrics) = (self.store.clone(), self.metrics);
            let of_outbox = OutboxRetention::new(store.clone(), retention.keep, retention.every);
            tasks.auxiliary_at(Stage::Workers, "retention", move |token| of_outbox.clone().run(token));
            let mut runs = false;
            tasks.auxiliary_at(Stage::Workers, "ledger-retention", move |token| {
                if std::mem::replace(&mut runs, true) {
                    metrics.restarted(Component::Cleaner, "failed");
                }
                clean(store.clone(), retention, metrics.clone(), token)
            });
        }
        let (store, stop) = (self.store, tasks.stage_token(Stage::Outbox));
        tasks.essential_at(Stage::Outbox, "ledger", async move {
            stop.cancelled().await;
            store.close().await;
            Ok::<_, Infallible>(())
        });
    }
}

/// A queue for others is not a ledger: whoever made the file goes on to need it.
fn refuse_foreign(path: &Path) -> Result<(), store::Error> {
    // Whatever else is wrong with it is told when it is opened.
    let Ok(connection) = open_beside(path, &[outbox::MODULE, ledger::MODULE]) else { return Ok(()) };
    let others = outbox::sinks(&connection).unwrap_or_default().into_iter().any(|name| name != SINK);
    if others { Err(store::Error::OfAnother(path.to_owned())) } else { Ok(()) }
}

/// Removes what is over, and was told, for long enough.
async fn clean(
    store: Store,
    retention: Retention,
    metrics: Metrics,
    token: CancellationToken,
) -> Result<(), store::Error> {
    let mut looks = Looks::new(retention.keep, retention.every);
    while let Some(before) = looks.next(&token).await {
        let begun = Instant::now();
        let cleaned = async {
            let mut episodes = 0;
            while !token.is_cancelled() {
                match store.write(move |tx| ledger::prune(tx, before, STEP)).await? {
                    0 => return Ok(episodes),
                    removed => episodes += removed as u64,
                }
            }
            Ok(episodes)
        };
        let cleaned = match cleaned.await {
            Ok(episodes) => Some(episodes),
            Err(store::Error::Closed) => return Err(store::Error::Closed),
            Err(error) => {
                warn!(error = chain(&error), hint = error.hint(), "ledger not cleaned");
                None
            }
        };
        metrics.cleaned(cleaned, begun.elapsed());
    }
    Ok(())
}
