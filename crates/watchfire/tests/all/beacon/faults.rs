//! Seeded rounds of faults: what is announced is what happened, in order, whatever fails meanwhile.
//!
//! `WATCHFIRE_FAULT_SEED` and `WATCHFIRE_FAULT_ROUNDS` say which rounds; a few run each time. A seed plans the same
//! round again; how processes interleave it cannot give.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use watchfire_testkit::control_plane;
use watchfire_testkit::kubernetes::{Component, ControlPlane};

use super::*;

/// How long a round goes on.
const ROUND: Duration = Duration::from_secs(6);

/// Names that objects have: few, so that they are taken again and again.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A beginning or an end of an episode, as the cluster was told of it.
#[derive(Debug, Clone)]
struct Happened {
    created: bool,
    uid: String,
    begun: Instant,
    ended: Instant,
}

/// Objects, and what happened to them.
#[derive(Default)]
struct World {
    /// Of those that are there: the UID, and whether they have the annotation.
    there: BTreeMap<&'static str, (String, bool)>,
    happened: BTreeMap<&'static str, Vec<Happened>>,
}

impl World {
    async fn change(&mut self, stage: &Stage, name: &'static str, random: &mut StdRng) {
        let begun = Instant::now();
        let before = self.there.get(name).cloned();
        let after = match &before {
            None => {
                let marked = random.random_bool(0.8);
                Some((stage.create(name, marked.then_some("x")).await, marked))
            }
            Some((uid, marked)) if random.random_bool(0.5) => {
                stage.annotate(name, (!marked).then_some("y")).await;
                Some((uid.clone(), !marked))
            }
            Some(_) => {
                stage.delete(name).await;
                None
            }
        };
        let ended = Instant::now();
        let marked =
            |it: &Option<(String, bool)>| it.as_ref().filter(|(_, marked)| *marked).map(|(uid, _)| uid.clone());
        let happened = self.happened.entry(name).or_default();
        let mut note = |created, uid| happened.push(Happened { created, uid, begun, ended });
        match (marked(&before), marked(&after)) {
            (None, Some(uid)) => note(true, uid),
            (Some(uid), None) => note(false, uid),
            _ => {}
        }
        match after {
            Some(after) => self.there.insert(name, after),
            None => self.there.remove(name),
        };
    }

    /// Fails unless what was told of each name is what happened to it; returns how many events there were.
    fn compare(mut self, events: Vec<Value>, gaps: &[Gap], begun: Instant, seed: &str, said: &str) -> usize {
        let (mut told, events) = heard(events);
        for name in NAMES {
            let (happened, told) =
                (self.happened.remove(name).unwrap_or_default(), told.remove(name).unwrap_or_default());
            let millis = |at: Instant| at.saturating_duration_since(begun).as_millis();
            let short = |created: bool, uid: &str| format!("{} {}", if created { "+" } else { "-" }, &uid[..8]);
            let happened_as: Vec<_> =
                happened.iter().map(|it| format!("{} at {}", short(it.created, &it.uid), millis(it.begun))).collect();
            let told_as: Vec<_> = told.iter().map(|(created, uid)| short(*created, uid)).collect();
            let gaps_at: Vec<_> = gaps.iter().map(|gap| (millis(gap.from), millis(gap.until))).collect();
            assert!(
                is_told(&happened, &told, gaps),
                "{seed}, {name}: {happened_as:#?} was told as {told_as:#?}, with gaps {gaps_at:?}\n{said}"
            );
        }
        events
    }
}

/// So long before it is killed a process may not have noted yet what it heard.
const NOTED: Duration = Duration::from_millis(300);

/// From the last time that a process had heard everything before it was killed, until the next one knew what there was.
struct Gap {
    from: Instant,
    until: Instant,
}

/// Whether what was told of a name is what happened to it. What came and went while no process ran leaves no trace: an
/// episode of which both ends lie in one gap, and an annotation that was away only then.
fn is_told(happened: &[Happened], told: &[(bool, String)], gaps: &[Gap]) -> bool {
    let unseen = |first: &Happened, second: &Happened| {
        let within = |gap: &Gap, it: &Happened| it.ended >= gap.from && it.begun <= gap.until;
        first.uid == second.uid && gaps.iter().any(|gap| within(gap, first) && within(gap, second))
    };
    match (happened, told) {
        ([], told) => told.is_empty(),
        ([first, ..], [(created, uid), ..])
            if (first.created, &first.uid) == (*created, uid) && is_told(&happened[1..], &told[1..], gaps) =>
        {
            true
        }
        ([first, second, rest @ ..], told) if unseen(first, second) => is_told(rest, told, gaps),
        _ => false,
    }
}

/// How the endpoint answers, and what it took.
struct Endpoint {
    /// The percentage of requests that fail.
    failing: Arc<AtomicU32>,
    taken: Arc<Mutex<HashMap<String, u32>>>,
}

impl Endpoint {
    fn of(receiver: &Receiver, seed: u64) -> Self {
        let answers = Mutex::new(StdRng::seed_from_u64(seed));
        let (failing, taken) = (Arc::new(AtomicU32::new(20)), Arc::<Mutex<HashMap<String, u32>>>::default());
        let (share, times) = (Arc::clone(&failing), Arc::clone(&taken));
        receiver.choose(move |request| {
            let mut answers = answers.lock().unwrap();
            if answers.random_ratio(share.load(Ordering::Relaxed), 100) {
                let status = Answer::status([500, 502, 503, 504, 429, 408, 425, 401, 403][answers.random_range(0..9)]);
                return Some(match answers.random_range(0..40) {
                    0 => Answer::hang(),
                    1 => status.after(Duration::from_millis(300)),
                    2 => status.body("x".repeat(1 << 20)).times(50),
                    3 => status.header("retry-after", "1"),
                    _ => status,
                });
            }
            let event: Value = serde_json::from_slice(&request.body).unwrap();
            *times.lock().unwrap().entry(event["id"].as_str().unwrap().to_owned()).or_default() += 1;
            Some(Answer::status(200))
        });
        Self { failing, taken }
    }

    fn fails(&self, percent: u32) {
        self.failing.store(percent, Ordering::Relaxed);
    }

    /// Events that were taken more than once.
    fn again(&self) -> u32 {
        self.taken.lock().unwrap().values().map(|times| times - 1).sum()
    }
}

/// What was told of each name, each event once; one that came again is what it was. Returns how many there were, too.
fn heard(events: Vec<Value>) -> (BTreeMap<String, Vec<(bool, String)>>, usize) {
    let (mut bodies, mut told) = (HashMap::<String, Value>::new(), BTreeMap::<_, Vec<_>>::new());
    for event in events {
        let id = event["id"].as_str().unwrap().to_owned();
        if let Some(before) = bodies.insert(id.clone(), event.clone()) {
            assert_eq!(before, event, "{id} is not what it was");
            continue;
        }
        let resource = &event["data"]["resource"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let created = text(&event["type"]).ends_with(".created");
        told.entry(text(&resource["name"])).or_default().push((created, text(&resource["uid"])));
    }
    (told, bodies.len())
}

/// The API server is killed, and starts again; or it has forgotten what was, as well.
async fn begin_anew(plane: &mut ControlPlane, forgets: bool) {
    if forgets {
        plane.forget_history().await;
    } else {
        plane.kill(Component::ApiServer);
        plane.restart(Component::ApiServer).await;
    }
}

/// One round; with a control plane of its own, also what becomes of that.
async fn round(stage: Stage, seed: u64, mut plane: Option<&mut ControlPlane>) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let proxy = Proxy::start(stage.namespace.cluster().address()).await;
    let network = Proxy::start(stage.receiver.address()).await;
    let kubeconfig = stage.account.kubeconfig_over(proxy.address());
    let more = "  timeout: 1s\nworker: {concurrency: 4}\nreconciliation: {interval: 1s}\n";
    let config = stage.config("", more, "warningThreshold: 100, criticalThreshold: 100");
    let config = config.replace(stage.receiver.url(), &format!("http://{}", network.address()));
    let start = || stage.process_of(&kubeconfig, &config);
    let endpoint = Endpoint::of(&stage.receiver, seed);
    let mut beacon = Beacon::started(start()).await;
    beacon.readiness(200).await;
    let (mut world, mut gaps, mut kills, mut cuts) = (World::default(), Vec::new(), 0_u32, 0_u32);
    let kinds = if plane.is_some() { 11 } else { 9 };
    let (mut said, mut barriers, mut restarts) = (String::new(), 0, 0);
    // Since when it may not hear everything.
    let mut deaf: Option<Instant> = None;
    let begun = Instant::now();
    while begun.elapsed() < ROUND {
        for _ in 0..random.random_range(1..12) {
            let name = NAMES[random.random_range(0..NAMES.len())];
            world.change(&stage, name, &mut random).await;
        }
        match random.random_range(0..kinds) {
            0 | 1 => {
                let from = deaf.take().unwrap_or_else(Instant::now).checked_sub(NOTED).unwrap();
                said.push_str(&beacon.process.out());
                beacon.kill().await;
                kills += 1;
                for _ in 0..random.random_range(0..6) {
                    let name = NAMES[random.random_range(0..NAMES.len())];
                    world.change(&stage, name, &mut random).await;
                }
                proxy.set(Mode::Pass).await;
                beacon = Beacon::started(start()).await;
                beacon.readiness(200).await;
                gaps.push(Gap { from, until: Instant::now() });
            }
            2 => {
                deaf.get_or_insert_with(Instant::now);
                proxy.cut();
            }
            3 => {
                deaf.get_or_insert_with(Instant::now);
                proxy.set(Mode::Refuse).await;
                proxy.cut();
            }
            4 => {
                deaf.get_or_insert_with(Instant::now);
                proxy.set(Mode::Blackhole).await;
            }
            5 => {
                proxy.set(Mode::Pass).await;
                proxy.cut();
                barriers += 1;
                stage.hears(&format!("barrier-{barriers}"), seed).await;
                deaf = None;
            }
            6 => endpoint.fails(random.random_range(0..90)),
            7 => {
                network.set([Mode::Pass, Mode::Pass, Mode::Refuse, Mode::Blackhole][random.random_range(0..4)]).await;
                network.cut();
                cuts += 1;
            }
            what @ (9 | 10) => {
                let Some(plane) = &mut plane else { unreachable!("only with a plane") };
                let from = deaf.take().unwrap_or_else(Instant::now).checked_sub(NOTED).unwrap();
                // What a watch has not heard by then is told by a list, which has no more than what there is.
                begin_anew(plane, what == 10).await;
                restarts += 1;
                proxy.set(Mode::Pass).await;
                barriers += 1;
                stage.hears(&format!("barrier-{barriers}"), seed).await;
                gaps.push(Gap { from, until: Instant::now() });
            }
            _ => tokio::time::sleep(Duration::from_millis(random.random_range(1..200))).await,
        }
    }
    proxy.set(Mode::Pass).await;
    proxy.cut();
    network.set(Mode::Pass).await;
    endpoint.fails(0);
    beacon.readiness(200).await;
    eventually(DEADLINE, &format!("cluster, ledger and deliveries alike, seed {seed}"), async || {
        stage.verify().await.0.then_some(())
    })
    .await;
    said.push_str(&beacon.process.out());
    beacon.stop().await;

    let events = world.compare(stage.events(), &gaps, begun, &format!("seed {seed}"), &said);
    // Of each lane one event is on its way, or being noted, when the process is killed or the connection cut.
    let (again, most) = (endpoint.again(), 4 * (kills + cuts));
    assert!(again <= most, "seed {seed}: {again} events were taken again, with {kills} kills, {cuts} cuts");
    format!(
        "seed {seed}: {events} events, {again} taken again, {kills} kills, {cuts} cuts, {restarts} restarts of the API server"
    )
}

impl Stage {
    /// Waits until the beacon has heard of an object that is made now, and so of all that came before.
    async fn hears(&self, barrier: &str, seed: u64) {
        self.create(barrier, Some("x")).await;
        eventually(DEADLINE, &format!("cluster and ledger are alike, seed {seed}"), async || {
            let (_, found) = self.verify().await;
            (found["unannounced"] == json!([]) && found["vanished"] == json!([])).then_some(())
        })
        .await;
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_what_happened_whatever_fails() {
    let (seed, rounds) = (number("WATCHFIRE_FAULT_SEED", 1), number("WATCHFIRE_FAULT_ROUNDS", 2));
    for seed in seed..seed + rounds {
        let Some(stage) = Stage::set("beacon::faults").await else { return };
        println!("{}", round(stage, seed, None).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_what_happened_whatever_becomes_of_the_api_server() {
    let (seed, rounds) = (number("WATCHFIRE_FAULT_SEED", 1), number("WATCHFIRE_FAULT_ROUNDS", 1));
    let Some(mut plane) = control_plane("beacon::faults").await else { return };
    for seed in seed..seed + rounds {
        let rights = vec![rule("", &["configmaps"], &["get", "list", "watch"])];
        let stage = Stage::on(&plane.cluster().clone(), rights).await;
        println!("{}", round(stage, seed, Some(&mut plane)).await);
        // It waits longer each time that the API server was away, and the next round's namespace waits for it.
        plane.restart(Component::ControllerManager).await;
    }
}

/// S6, S14: where the API server has forgotten from where a watch would go on, a list tells what came, what is gone,
/// and what took a name over.
#[tokio::test]
async fn what_the_api_server_has_forgotten_is_told_by_a_list() {
    let Some(mut plane) = control_plane("beacon::forgets").await else { return };
    let rights = vec![rule("", &["configmaps"], &["get", "list", "watch"])];
    let stage = Stage::on(&plane.cluster().clone(), rights).await;
    let proxy = Proxy::start(stage.namespace.cluster().address()).await;
    let beacon = stage.begin_over(&stage.account.kubeconfig_over(proxy.address()), "").await;
    beacon.readiness(200).await;
    stage.create("goes", Some("1")).await;
    stage.create("stays", Some("1")).await;
    eventually(DEADLINE, "two are told", async || (stage.told().len() == 2).then_some(())).await;
    proxy.set(Mode::Refuse).await;
    proxy.cut();
    for name in ["goes", "stays"] {
        stage.delete(name).await;
    }
    stage.create("stays", Some("2")).await;
    stage.create("comes", Some("1")).await;
    plane.forget_history().await;
    proxy.set(Mode::Pass).await;
    eventually(DEADLINE, "six are told", async || (stage.told().len() >= 6).then_some(())).await;
    stage.barrier().await;
    let told = stage.told();
    let of = |name: &str| told.iter().filter(|it| it.contains(name)).map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of(" goes="), ["created goes=1", "deleted goes=1"]);
    assert_eq!(of(" stays="), ["created stays=1", "deleted stays=1", "created stays=2"]);
    assert_eq!((of(" comes="), told.len()), (vec!["created comes=1"], 7));
    let anew = beacon.series("event_reconnects_total{").await;
    assert!(anew.iter().any(|line| line.contains("relist") && !line.ends_with(" 0")), "{anew:?}");
    beacon.stop().await;
}

#[test]
fn the_judge_knows_what_may_be_missing() {
    let begun = Instant::now();
    let at = |millis| begun + Duration::from_millis(millis);
    let it = |created, uid: &str, millis| Happened { created, uid: uid.into(), begun: at(millis), ended: at(millis) };
    let told = |of: &[(bool, &str)]| of.iter().map(|(created, uid)| (*created, (*uid).to_owned())).collect::<Vec<_>>();
    let gap = [Gap { from: at(10), until: at(20) }];
    let happened = [it(true, "1", 0), it(false, "1", 12), it(true, "2", 14), it(false, "2", 16), it(true, "3", 30)];
    let all = told(&[(true, "1"), (false, "1"), (true, "2"), (false, "2"), (true, "3")]);
    assert!(is_told(&happened, &all, &gap) && is_told(&happened, &all, &[]));
    let without = told(&[(true, "1"), (false, "1"), (true, "3")]);
    assert!(is_told(&happened, &without, &gap), "2 came and went in the gap");
    assert!(!is_told(&happened, &without, &[]), "somebody watched");
    assert!(!is_told(&happened, &told(&[(true, "1"), (true, "3")]), &gap), "1 was there before");
    let invented = told(&[(true, "1"), (false, "1"), (true, "4"), (false, "4"), (true, "3")]);
    assert!(!is_told(&happened, &invented, &gap));
    let away = [it(true, "1", 0), it(false, "1", 12), it(true, "1", 14)];
    assert!(is_told(&away, &told(&[(true, "1")]), &gap) && !is_told(&away, &told(&[(true, "1")]), &[]));
}
