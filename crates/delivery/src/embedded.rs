//! The embedded broker: an outbox with HTTP subscribers, for when there is no broker to install.
//!
//! `Ok` from it means stored. Each subscriber has its own queue, worker and circuit, and gets every event at least
//! once, in order per subject. An event that is published again after it was delivered is delivered again: whoever
//! publishes decided that it is needed. One that supersedes others takes the place of those that still wait for the
//! same subscriber, so that the queue of one that is away does not grow with time. Subscribers are known by name: a
//! changed URL keeps the queue, a subscriber that is no longer configured loses it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use rusqlite::Connection;
use url::Url;
use watchfire_runtime::clock;
use watchfire_runtime::health::Health;
use watchfire_runtime::redact::host;

use crate::event::CloudEvent;
use crate::metrics::Metrics;
use crate::outbox::{self, Filter, Repeat, SinkId, State};
use crate::retention::Retention;
use crate::sink::http::{self, Http};
use crate::sink::{self, EventSink};
use crate::store::{self, Store};
use crate::worker::{self, Queue, Worker};

/// Rows that one transaction of a large window writes.
const ROWS: usize = 500;
/// How long a window may take to be stored.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Who gets every event. `Debug` shows no credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Subscriber {
    /// Its name in metrics, logs and the store: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Where events are posted.
    pub url: Url,
}

impl std::fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriber").field("name", &self.name).field("url", &host(&self.url)).finish()
    }
}

/// Why the embedded broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of subscribers is empty, so that nothing could ever be delivered.
    #[error("read the subscribers: there is none; write name=URL,name=URL")]
    NoSubscribers,
    /// An entry of the list is not `name=URL`.
    #[error("read subscriber {number}: {problem}; write name=URL, for example dns=http://localhost:9000/events")]
    Subscriber {
        /// Its place in the list, from 1.
        number: usize,
        /// What is wrong. The entry itself is not shown, since a URL may carry credentials.
        problem: &'static str,
    },
    /// The store cannot be used.
    #[error("open the embedded broker")]
    Store(#[from] store::Error),
    /// A subscriber's URL cannot be used.
    #[error("set up subscriber {name}")]
    Sink {
        /// The subscriber.
        name: String,
        /// Why.
        #[source]
        source: sink::Error,
    },
}

impl Subscriber {
    /// Reads `name=URL,name=URL`, as in `BROKER_HTTP_SUBSCRIBERS`. A comma in a URL is written `%2C`.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, Error> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let subscribers: Vec<_> =
            entries.enumerate().map(|(index, entry)| parse(index + 1, entry)).collect::<Result<_, _>>()?;
        check(&subscribers)?;
        Ok(subscribers)
    }
}

fn parse(number: usize, entry: &str) -> Result<Subscriber, Error> {
    let wrong = |problem| Error::Subscriber { number, problem };
    let (name, url) = entry.split_once('=').ok_or_else(|| wrong("it has no ="))?;
    let url: Url = url.trim().parse().map_err(|_| wrong("its URL cannot be read"))?;
    Ok(Subscriber { name: name.trim().to_owned(), url })
}

fn check(subscribers: &[Subscriber]) -> Result<(), Error> {
    if subscribers.is_empty() {
        return Err(Error::NoSubscribers);
    }
    let mut names = HashSet::new();
    for (index, Subscriber { name, url }) in subscribers.iter().enumerate() {
        let wrong = |problem| Err(Error::Subscriber { number: index + 1, problem });
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.is_empty() || !name.bytes().all(legal) {
            return wrong("its name is not made of letters, digits, '-', '_' and '.'");
        }
        if !matches!(url.scheme(), "http" | "https") {
            return wrong("its URL is neither http nor https");
        }
        if !names.insert(name) {
            return wrong("its name appears twice");
        }
    }
    Ok(())
}

/// How the embedded broker works.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its store file.
    pub path: PathBuf,
    /// Who gets every event.
    pub subscribers: Vec<Subscriber>,
    /// How long what was delivered is kept, to be looked at.
    pub keep: Duration,
    /// Bytes that are left free on the store's volume; below it nothing more is taken in.
    pub floor: u64,
    /// Time for one request to a subscriber.
    pub timeout: Duration,
    /// How each subscriber's worker delivers.
    pub worker: worker::Config,
}

impl Config {
    /// The defaults: an hour is kept, 10 seconds for a request, 16 requests at a time for each subscriber.
    pub fn new(path: PathBuf, subscribers: Vec<Subscriber>) -> Self {
        Self {
            path,
            subscribers,
            keep: Duration::from_hours(1),
            floor: store::Options::default().floor,
            timeout: Duration::from_secs(10),
            worker: worker::Config::default(),
        }
    }
}

/// The broker as the sink that publishers use.
pub struct Embedded {
    store: Store,
    sinks: Arc<[SinkId]>,
}

/// What the process runs beside the publishers.
pub struct Tasks {
    /// One per subscriber.
    pub workers: Vec<Worker>,
    /// Removes what was delivered long ago.
    pub retention: Retention,
}

impl Embedded {
    /// Opens the store, makes the subscribers known, and drops the queues of those that are gone. `health` hears of
    /// each subscriber's queue.
    pub async fn open(config: Config, metrics: &Metrics, health: &Health) -> Result<(Self, Tasks), Error> {
        check(&config.subscribers)?;
        let options =
            store::Options { floor: config.floor, metrics: metrics.store.clone(), ..store::Options::default() };
        let path = config.path.clone();
        let opened = tokio::task::spawn_blocking(move || Store::open(&path, &[outbox::MODULE], options)).await;
        let store = opened.map_err(|_| store::Error::Closed)??;
        let names: Vec<String> = config.subscribers.iter().map(|subscriber| subscriber.name.clone()).collect();
        let ids = store
            .write(move |tx| names.iter().map(|name| outbox::register(tx, name)).collect::<Result<Vec<_>, _>>())
            .await?;
        drop_gone(&store, &config.subscribers).await?;
        let mut workers = Vec::with_capacity(ids.len());
        for (Subscriber { name, url }, id) in config.subscribers.into_iter().zip(&ids) {
            let http =
                http::Config { timeout: config.timeout, concurrency: config.worker.lanes, ..http::Config::new(url) };
            let sink = Http::new(http).map_err(|source| Error::Sink { name: name.clone(), source })?;
            let metrics = metrics.sink(&name);
            let queue = Queue { name, id: *id, store: store.clone() };
            workers.push(Worker::new(queue, Arc::new(sink), config.worker, metrics, health));
        }
        let retention = Retention::new(store.clone(), config.keep, Duration::from_mins(1));
        Ok((Self { store, sinks: ids.into() }, Tasks { workers, retention }))
    }

    /// The store, to look into it and to close it when the workers have ended.
    pub fn store(&self) -> &Store {
        &self.store
    }

    async fn append(&self, events: Vec<CloudEvent>) -> Result<(), store::Error> {
        let sinks = Arc::clone(&self.sinks);
        let work = move |tx: &store::Tx<'_>| {
            // Not before the work's turn has come: what became due while it waited may be under way.
            let now = clock::now();
            events.iter().try_for_each(|event| outbox::append(tx, event, &sinks, Repeat::Redeliver, now).map(drop))
        };
        self.store.write(work).await
    }
}

async fn drop_gone(store: &Store, subscribers: &[Subscriber]) -> Result<(), store::Error> {
    for name in store.read(outbox::sinks).await? {
        if subscribers.iter().any(|subscriber| subscriber.name == name) {
            continue;
        }
        let idle = {
            let name = name.clone();
            move |connection: &Connection| is_idle(connection, name)
        };
        if store.read(idle).await? {
            continue;
        }
        // Whoever comes back under its name begins anew, and not with a pause that a predecessor's 410 began.
        let gone = name.clone();
        let resume = move |tx: &store::Tx<'_>| match outbox::find(tx, &gone)? {
            Some(id) => outbox::resume(tx, id),
            None => Ok(()),
        };
        store.write(resume).await?;
        let mut dropped = 0;
        let (sink, state) = (Some(name.clone()), Some(State::Pending));
        let mut filter = Filter { sink, state, limit: outbox::STEP, ..Filter::default() };
        loop {
            let (now, step) = (clock::now(), filter.clone());
            let reason = "its subscriber is no longer configured";
            let changed = store.write(move |tx| outbox::discard(tx, &step, reason, now)).await?;
            dropped += changed.count;
            let Some(last) = changed.last else { break };
            filter.after = Some(last);
        }
        if dropped > 0 {
            tracing::warn!(subscriber = name, dropped, "subscriber is no longer configured, its queue is discarded");
        }
    }
    Ok(())
}

/// Whether nothing waits for a sink, and nothing holds it up: most often, and then nothing is written.
fn is_idle(connection: &Connection, name: String) -> Result<bool, store::Error> {
    let Some(id) = outbox::find(connection, &name)? else { return Ok(true) };
    let waiting = Filter { sink: Some(name), state: Some(State::Pending), limit: 1, ..Filter::default() };
    Ok(outbox::paused(connection, id)?.is_none() && outbox::list(connection, &waiting)?.is_empty())
}

impl EventSink for Embedded {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        Box::pin(async move {
            let size = (ROWS / (1 + self.sinks.len())).max(1);
            let stored = join_all(events.chunks(size).map(|chunk| self.append(chunk.to_vec())));
            let Ok(stored) = tokio::time::timeout(TIMEOUT, stored).await else {
                let late = || Err(sink::Error::Timeout { target: "the embedded broker".to_owned(), after: TIMEOUT });
                return events.iter().map(|_| late()).collect();
            };
            let outcome = |(chunk, stored): (&[CloudEvent], Result<(), store::Error>)| {
                let failed = stored.err().map(Arc::new);
                let outcome = move |_| match &failed {
                    None => Ok(()),
                    Some(error) => Err(sink::Error::Store { source: Arc::clone(error) }),
                };
                (0..chunk.len()).map(outcome)
            };
            events.chunks(size).zip(stored).flat_map(outcome).collect()
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        Box::pin(
            async move { self.store.check().await.map_err(|error| sink::Error::Store { source: Arc::new(error) }) },
        )
    }
}

#[cfg(test)]
mod tests;
