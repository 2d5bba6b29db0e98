//! The rows of the beacon: what it adds to a bare watch, what its ledger costs, how fast a queue goes out, and the
//! memory that a large cluster takes. The API server is a real one, of this run alone.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::{StreamExt, TryStreamExt, pin_mut, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};
use watchfire_beacon::episode::{Snapshot, Source, Step};
use watchfire_beacon::ledger::{self, Book, ScopeKey};
use watchfire_beacon::service::SINK;
use watchfire_beacon::{Envelope, Order};
use watchfire_delivery::outbox::{self, Mark};
use watchfire_delivery::store::{Options, Store, Tx};
use watchfire_runtime::clock;
use watchfire_testkit::kubernetes::{Cluster, ControlPlane, Namespace};
use watchfire_testkit::{Receiver, control_plane};

use crate::played::{self, Played};
use crate::process::Service;
use crate::report::{Row, median};

const KEY: &str = "watchfire.example.com/bench";

/// Requests at a time, where one wants more than the default.
const LANES: usize = 64;

/// Objects that are written at a time.
const WRITERS: usize = 32;

/// How much is measured.
pub(crate) struct Size {
    pub(crate) rounds: usize,
    pub(crate) seconds: u64,
    pub(crate) objects: usize,
    pub(crate) rows: usize,
    pub(crate) queued: usize,
}

pub(crate) async fn rows(size: &Size) -> anyhow::Result<Vec<Row>> {
    let mut rows = operations(size.rows).await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let mut plane = control_plane("bench").await.context("start a control plane (see testbed/up kubernetes)")?;
    for _ in 0..size.rounds {
        let (drained, posted) = drain(plane.cluster(), size.queued).await?;
        ours.push(drained);
        bare.push(posted);
    }
    rows.push(Row {
        what: format!("{} queued, order per object kept, with {LANES} at a time", size.queued),
        value: median(ours),
        unit: "/s",
        ceiling: Some(median(bare)),
        must: ">= 3500 /s",
        aim: ">= 8000 /s",
    });
    for (rate, played) in [(200, false), (1_000, false), (1_000, true)] {
        let (mut beyond, mut reached) = (Vec::new(), Vec::new());
        for _ in 0..size.rounds {
            let far = if played {
                Far::Played(Played::start().await?)
            } else {
                Far::Real(Box::new(plane.cluster().namespace().await))
            };
            let (p95, rate) = latency(&far, rate, size.seconds).await?;
            far.clear().await?;
            beyond.push(p95);
            reached.push(rate);
        }
        let reached = median(reached);
        // What the API server does not reach says how a full machine does.
        let holds = reached >= 0.9 * f64::from(rate);
        let whom = if played { "told by a played API server" } else { "written to the API server" };
        rows.push(Row {
            what: format!("{whom} at {rate}/s (came to {reached:.0}): p95 beyond a watch"),
            value: median(beyond),
            unit: "ms",
            ceiling: None,
            must: if holds { "<= 60 ms" } else { "" },
            aim: if holds { "<= 20 ms" } else { "" },
        });
    }
    rows.extend(memory(&mut plane, size.objects).await?);
    Ok(rows)
}

fn config(namespace: &str, url: &str, worker: &str) -> String {
    format!(
        "resources:\n  - {{apiVersion: v1, kind: ConfigMap, namespaces: [{namespace}]}}\nannotation: {{key: {KEY}}}\nendpoint: \
         {{url: '{url}'}}\nworker: {{{worker}}}\nstorage: {{dbPath: events.db, warningThreshold: 100, criticalThreshold: \
         100}}\n"
    )
}

fn object(name: String) -> ConfigMap {
    let annotations = Some(BTreeMap::from([(KEY.to_owned(), "true".to_owned())]));
    let labels = Some(BTreeMap::from([("app".to_owned(), name.clone())]));
    ConfigMap {
        metadata: ObjectMeta { name: Some(name), annotations, labels, ..ObjectMeta::default() },
        ..ConfigMap::default()
    }
}

fn kubeconfig(cluster: &Cluster, folder: &Path) -> Vec<(&'static str, String)> {
    let path = folder.join("kubeconfig");
    cluster.write_kubeconfig(&path);
    vec![("KUBECONFIG", path.display().to_string())]
}

/// Where objects are made.
enum Far {
    Real(Box<Namespace>),
    Played(Played),
}

impl Far {
    fn namespace(&self) -> &str {
        match self {
            Self::Real(namespace) => namespace.name(),
            Self::Played(_) => played::NAMESPACE,
        }
    }

    fn kubeconfig(&self, folder: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
        match self {
            Self::Real(namespace) => Ok(kubeconfig(namespace.cluster(), folder)),
            Self::Played(played) => {
                let path = folder.join("kubeconfig");
                std::fs::write(&path, serde_json::to_vec(&played.kubeconfig())?)?;
                Ok(vec![("KUBECONFIG", path.display().to_string())])
            }
        }
    }

    fn api(&self) -> anyhow::Result<Api<ConfigMap>> {
        Ok(match self {
            Self::Real(namespace) => namespace.api(),
            Self::Played(played) => {
                let client = kube::Client::try_from(kube::Config::new(played.url.parse()?))?;
                Api::namespaced(client, played::NAMESPACE)
            }
        })
    }

    /// Removes what was made, so that the next round has the machine for itself.
    async fn clear(&self) -> anyhow::Result<()> {
        let Self::Real(namespace) = self else { return Ok(()) };
        let api: Api<ConfigMap> = namespace.api();
        let bench = ListParams::default().limit(1).labels("app");
        while !api.list_metadata(&bench).await?.items.is_empty() {
            api.delete_collection(&DeleteParams::default(), &ListParams::default().labels("app")).await?;
        }
        Ok(())
    }

    async fn make(&self, api: &Api<ConfigMap>, n: u64) -> anyhow::Result<()> {
        let mut object = object(format!("o-{n}"));
        match self {
            Self::Real(_) => drop(api.create(&PostParams::default(), &object).await?),
            Self::Played(played) => {
                object.metadata.uid = Some(format!("0c4c189d-7122-4b7c-82c9-{n:012}"));
                object.metadata.namespace = Some(played::NAMESPACE.to_owned());
                object.metadata.resource_version = Some((n + 2).to_string());
                played.add(&serde_json::to_value(&object.metadata)?);
            }
        }
        Ok(())
    }
}

/// Tells when a bare watch hears of each object.
#[expect(clippy::disallowed_methods, reason = "a bench has no supervisor; the task ends with it")]
async fn watched(api: Api<ConfigMap>) -> anyhow::Result<(Arc<Mutex<HashMap<String, Instant>>>, DropGuard)> {
    let version = api.list_metadata(&ListParams::default()).await?.metadata.resource_version;
    let version = version.context("read the version")?;
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let (token, notes) = (CancellationToken::new(), Arc::clone(&seen));
    let stop = token.clone().drop_guard();
    let watching = async move {
        let events = api.watch_metadata(&WatchParams::default(), &version).await?;
        pin_mut!(events);
        while let Some(event) = events.try_next().await? {
            let now = Instant::now();
            if let WatchEvent::Added(it) = event {
                let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                notes.insert(it.metadata.name.unwrap_or_default(), now);
            }
        }
        anyhow::Ok(())
    };
    tokio::spawn(token.run_until_cancelled_owned(watching));
    Ok((seen, stop))
}

/// Of objects that are written at a rate: the time that lies between a bare watch telling of one and the endpoint
/// having its event, in milliseconds, of which 95 in 100 are shorter; and the rate that was reached.
async fn latency(far: &Far, rate: u32, seconds: u64) -> anyhow::Result<(f64, f64)> {
    let (folder, receiver) = (tempfile::tempdir()?, Receiver::start().await);
    let env = far.kubeconfig(folder.path())?;
    let worker = format!("concurrency: {LANES}");
    let mut beacon = Service::start("beacon", &config(far.namespace(), receiver.url(), &worker), folder.path(), &env)?;
    beacon.ready().await?;
    let api = far.api()?;
    let (seen, _stop) = watched(api.clone()).await?;
    let seen = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    let count = u64::from(rate) * seconds;
    let mut ticks = interval(Duration::from_secs(1) / rate);
    // What is late makes up for it: what is asked for is the rate.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let begun = Instant::now();
    let paced = stream::unfold((ticks, 0), |(mut ticks, n)| async move {
        ticks.tick().await;
        (n < count).then_some((n, (ticks, n + 1)))
    });
    paced.map(|n| far.make(&api, n)).buffer_unordered(WRITERS * 4).try_collect::<()>().await?;
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let reached = count as f64 / begun.elapsed().as_secs_f64();
    let wanted = usize::try_from(count)?;
    beacon.wait(async |_| receiver.posts() >= wanted && seen().len() >= wanted).await?;
    let seen = seen();
    let mut beyond = Vec::new();
    for request in receiver.requests() {
        let event: serde_json::Value = serde_json::from_slice(&request.body)?;
        let name = event["subject"].as_str().context("read the subject")?;
        beyond.push(request.at.saturating_duration_since(seen[name]).as_secs_f64() * 1e3);
    }
    ensure!(beyond.len() == wanted, "{} of {count} came, each once", beyond.len());
    Ok((percentile(beyond, 95), reached))
}

fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() * percent / 100).copied().unwrap_or(f64::NAN)
}

fn snapshot(n: usize, uid: usize) -> Snapshot {
    Snapshot {
        namespace: "models".into(),
        name: format!("object-{n}"),
        uid: format!("0c4c189d-7122-4b7c-82c9-{uid:012}"),
        value: "true".into(),
        annotations: BTreeMap::new(),
        labels: [("app".to_owned(), format!("object-{n}"))].into(),
        resource_version: uid.to_string(),
    }
}

/// A ledger, and the book of a scope that no configuration here has.
async fn ledger_at(path: &Path) -> anyhow::Result<(Store, Book)> {
    let store = Store::open(path, &[outbox::MODULE, ledger::MODULE], Options::default())?;
    let key =
        ScopeKey { group: String::new(), resource: "pods".into(), namespace: "models".into(), kind: "Pod".into() };
    let envelope = Envelope { source: "/beacon".into(), type_prefix: "net.bakerapps.beacon.resource".into() };
    let of = key.clone();
    let made = store.write(move |tx| Ok((ledger::scope(tx, &of)?.0, outbox::register(tx, SINK)?))).await?;
    Ok((store, Book { id: made.0, key, envelope, sink: made.1, order: Order::Name }))
}

async fn note(store: &Store, book: &Book, steps: Vec<Step>) -> anyhow::Result<()> {
    let book = book.clone();
    let now = clock::now();
    let work = move |tx: &Tx<'_>| steps.iter().try_for_each(|step| book.note(tx, step, now).map(drop));
    Ok(store.write(work).await?)
}

/// What one operation takes on a ledger with so many rows.
async fn operations(rows: usize) -> anyhow::Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let (store, book) = ledger_at(&folder.path().join("events.db")).await?;
    for chunk in (0..rows).collect::<Vec<_>>().chunks(500) {
        let begun = chunk.iter().map(|&n| Step::Begin(snapshot(n, n), Source::Watch)).collect();
        note(&store, &book, begun).await?;
        // As the worker would have it, so that what waits is what is measured.
        let delivered = |tx: &Tx<'_>| {
            let sql = "UPDATE deliveries SET state = 'delivered', head = 0 WHERE state = 'pending'";
            Ok(tx.execute(sql, [])?)
        };
        store.write(delivered).await?;
    }
    let (mut noted, mut claimed, mut settled) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..1_000 {
        // Something that is there ends, and something new begins.
        for step in
            [Step::End(snapshot(n, n * 7 % rows).uid, Source::Watch), Step::Begin(snapshot(n, rows + n), Source::Watch)]
        {
            let begun = Instant::now();
            note(&store, &book, vec![step]).await?;
            noted.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        let begun = Instant::now();
        let sink = book.sink;
        let now = clock::now();
        let due = store.read(move |it| outbox::claim(it, sink, 5, &std::collections::HashSet::new(), now)).await?;
        claimed.push(begun.elapsed().as_secs_f64() * 1e3);
        for claim in due.claims {
            let begun = Instant::now();
            store.write(move |tx| outbox::settle(tx, claim.seq, &Mark::Delivered, now)).await?;
            settled.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    store.close().await;
    let row = |what: &str, values| Row {
        what: format!("ledger of {rows} rows, {what}: p95"),
        value: percentile(values, 95),
        unit: "ms",
        ceiling: None,
        must: "<= 100 ms",
        aim: "<= 5 ms",
    };
    Ok(vec![
        row("a beginning or an end noted", noted),
        row("what is due read", claimed),
        row("a delivery noted", settled),
    ])
}

/// How many events a second go out of a full queue, and how many a bare client posts of the same.
async fn drain(cluster: &Cluster, queued: usize) -> anyhow::Result<(f64, f64)> {
    let (folder, namespace) = (tempfile::tempdir()?, cluster.namespace().await);
    let path = folder.path().join("events.db");
    let (store, book) = ledger_at(&path).await?;
    // Four events of each name.
    let mut steps = Vec::new();
    for turn in 0..2 {
        for n in 0..queued / 4 {
            let it = snapshot(n, turn * queued + n);
            steps.extend([Step::Begin(it.clone(), Source::Watch), Step::End(it.uid, Source::Watch)]);
        }
    }
    let expected = steps.len();
    for chunk in steps.chunks(500) {
        note(&store, &book, chunk.to_vec()).await?;
    }
    store.close().await;
    let receiver = Receiver::start().await;
    let env = kubeconfig(cluster, folder.path());
    let worker = format!("concurrency: {LANES}");
    let mut beacon = Service::start("beacon", &config(namespace.name(), receiver.url(), &worker), folder.path(), &env)?;
    beacon.wait(async |_| receiver.posts() >= expected).await?;
    drop(beacon);
    let requests = receiver.take();
    ensure!(requests.len() == expected, "{} came of {expected}", requests.len());
    let mut told: HashMap<String, Vec<(String, bool)>> = HashMap::new();
    for request in &requests {
        let event: serde_json::Value = serde_json::from_slice(&request.body)?;
        let created = event["type"].as_str().is_some_and(|ty| ty.ends_with(".created"));
        let of = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let uid = of(&event["data"]["resource"]["uid"]);
        told.entry(of(&event["subject"])).or_default().push((uid, created));
    }
    // Of each name the UIDs rise.
    let in_order =
        |told: &Vec<(String, bool)>| told.len() == 4 && told.is_sorted_by(|a, b| (&a.0, !a.1) < (&b.0, !b.1));
    ensure!(told.values().all(in_order), "the order of an object was not kept");
    let rate = |first: Instant, last: Instant| {
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let events = expected as f64;
        events / (last - first).as_secs_f64()
    };
    let drained = rate(requests[0].at, requests[expected - 1].at);

    let client = reqwest::Client::builder().pool_max_idle_per_host(LANES).build()?;
    let bodies: Vec<_> = requests.into_iter().map(|request| request.body).collect();
    let url = receiver.url().to_owned();
    let posts = stream::iter(bodies).map(|body| client.post(&url).body(body).send());
    posts.buffer_unordered(LANES).map_ok(drop).try_collect::<()>().await?;
    let requests = receiver.take();
    Ok((drained, rate(requests[0].at, requests[requests.len() - 1].at)))
}

/// What a cluster with so many annotated objects takes of memory, idle and while all are listed again.
async fn memory(plane: &mut ControlPlane, objects: usize) -> anyhow::Result<Vec<Row>> {
    let cluster = plane.cluster().clone();
    let namespace = cluster.namespace().await;
    let api: Api<ConfigMap> = namespace.api();
    let post = PostParams::default();
    let made = stream::iter(0..objects).map(|n| {
        let (api, post) = (&api, &post);
        async move { api.create(post, &object(format!("o-{n}"))).await.map(drop) }
    });
    made.buffer_unordered(WRITERS).try_collect::<()>().await?;
    let (folder, receiver) = (tempfile::tempdir()?, Receiver::start().await);
    let env = kubeconfig(&cluster, folder.path());
    let text = config(namespace.name(), receiver.url(), "");
    let mut beacon = Service::start("beacon", &text, folder.path(), &env)?;
    beacon.wait(async |_| receiver.posts() >= objects).await?;
    beacon.wait(async |beacon| beacon.metric("outbox_deliveries_pending").await == Some(0.0)).await?;
    let first = beacon.memory("VmHWM")?;
    let _told = receiver.take();
    drop(beacon);
    // As it goes on from there.
    let mut beacon = Service::start("beacon", &text, folder.path(), &env)?;
    beacon.ready().await?;
    let idle = beacon.memory("VmRSS")?;
    plane.forget_history().await;
    // Whatever was watched is over, and what comes next makes the version of before too old.
    beacon.wait(async |beacon| beacon.metric("event_reconnects_total").await.is_some_and(|times| times >= 1.0)).await?;
    beacon.ready().await?;
    let peak = beacon.memory("VmHWM")?;
    ensure!(receiver.posts() == 0, "a list told {} events again", receiver.posts());
    drop(beacon);
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    let row = |what: &str, value, must| Row {
        what: format!("{objects} watched objects, {what}"),
        value,
        unit: "MiB",
        ceiling: None,
        must,
        aim: if must.is_empty() { "" } else { "<= 80 MiB" },
    };
    Ok(vec![
        row("known already: memory", idle, "<= 100 MiB"),
        row("the same, peak while all are listed again", peak, "<= 100 MiB"),
        row("all of them announced: peak", first, ""),
    ])
}
