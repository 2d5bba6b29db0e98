//! One round: a world is built, things go wrong in it as planned, it is healed, and what came of it is written down.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::SignedDuration;
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use watchfire_simulator::{
    self as simulator, Adapter, AdapterConfig, Deleted, Dialect, Fault, FaultBody, Knobs, NewResource, Patch, Scope,
    Server, Simulator, Times,
};
use watchfire_testkit::{Mode, Proxy, missing, unique};

use crate::child::{Launch, Outcome, Process, Said};
use crate::clock::Clock;
use crate::far::Far;
use crate::plan::{ApiFault, Change, Kind, LinkFault, Plan, ProcessFault, Step};
use crate::receipt::{Inbox, Receipt};
use crate::vitals::{Look, Vitals};

/// Until the process is ready for the first time.
const START: Duration = Duration::from_mins(1);
/// Until everything is as it should be, once nothing is wrong any more; the figures say how long it took.
pub(crate) const RECOVERY: Duration = Duration::from_mins(1);
/// What a refresh may come late by: a poll, a list that is retried, and a machine that does other things.
const LATE: Duration = Duration::from_secs(15);
/// For an orderly stop.
const GRACE: Duration = Duration::from_secs(25);
/// For one request to the API.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two looks at a condition.
const POLL: Duration = Duration::from_millis(50);

/// What happened in a round.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    pub(crate) plan: Plan,
    pub(crate) lives: BTreeMap<String, Life>,
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) said: Vec<Said>,
    pub(crate) incidents: Vec<Incident>,
    pub(crate) looks: Vec<Look>,
    /// How long it took, from when nothing was wrong any more, until the process was ready and every resource's last
    /// generation was known.
    pub(crate) recovery: Option<Duration>,
    /// What did not come true, and the ends that nobody asked for.
    pub(crate) failures: Vec<String>,
    pub(crate) tail: Vec<String>,
}

/// The generations of a resource: when each one came about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) generations: Vec<Duration>,
}

/// Something that went wrong on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Incident {
    pub(crate) what: Trouble,
    pub(crate) begun: Duration,
    pub(crate) ended: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Api(ApiFault),
    Link(LinkFault),
    Process(ProcessFault),
}

struct World<'a> {
    plan: &'a Plan,
    begun: Instant,
    simulator: Simulator,
    api: Proxy,
    link: Proxy,
    process: Process,
    adapters: Vec<Adapter>,
    inbox: Arc<Inbox>,
    clock: Option<Clock>,
    lives: Mutex<BTreeMap<String, Life>>,
    incidents: Mutex<Vec<Incident>>,
}

/// Runs the plan.
pub(crate) async fn run(plan: &Plan, far: &mut Far, binary: &Path) -> anyhow::Result<Evidence> {
    let (begun, token, folder) = (Instant::now(), CancellationToken::new(), tempfile::tempdir()?);
    let _stop = token.clone().drop_guard();
    let simulator = Simulator::with_kinds(Dialect::Hyperfleet, kinds());
    let server = Server::bind(([127, 0, 0, 1], 0).into(), simulator.clone()).await?;
    let (api, link) = (Proxy::start(server.addr()).await, Proxy::start(far.address()).await);
    let topic = unique("chaos");
    let route = far.route(&topic);
    route.prepare().await?;

    let inbox = Arc::new(Inbox::new(plan.kind.name(), begun));
    let url = url::Url::parse(&server.url())?;
    let adapter = |(name, knobs): &(&str, Knobs)| {
        let config = AdapterConfig { seed: plan.seed, ..AdapterConfig::new(name, url.clone()) };
        Adapter::new(config.knobs(knobs.clone()))
    };
    let adapters: Vec<Adapter> = plan.adapters.iter().map(adapter).collect::<Result<_, _>>()?;
    let mut tasks = JoinSet::new();
    for adapter in &adapters {
        tasks.spawn(route.clone().drive(adapter.clone(), token.clone()));
    }
    tasks.spawn(route.observe(Arc::clone(&inbox), token.clone()));
    let serving = server.run(token.clone());
    tasks.spawn(async { drop(serving.await) });

    let clock = Clock::find(folder.path());
    if clock.is_none() && plan.sets_the_clock() {
        missing(&format!("the clock's steps in round {}", plan.seed), "libfaketime", "`apt-get install libfaketime`");
    }
    let mut env = far.env(&topic, link.address());
    env.extend(clock.iter().flat_map(Clock::env));
    let launch = launch(plan, binary, folder.path(), api.address(), env)?;
    let mut world = World {
        plan,
        begun,
        simulator,
        api,
        link,
        adapters,
        inbox,
        clock,
        lives: Mutex::default(),
        incidents: Mutex::default(),
        process: Process::start(launch, begun)?,
    };
    let evidence = world.story(far).await;
    token.cancel();
    tasks.shutdown().await;
    evidence
}

/// How the process is started: its file, and an environment of its own.
fn launch(
    plan: &Plan,
    binary: &Path,
    folder: &Path,
    api: SocketAddr,
    mut env: Vec<(String, String)>,
) -> anyhow::Result<Launch> {
    let file = folder.join("sentinel.yaml");
    let config = json!({
        "resource_type": plan.kind.plural(),
        "poll_interval": format!("{}ms", plan.poll.as_millis()),
        "max_age_not_ready": format!("{}ms", plan.not_ready.as_millis()),
        "max_age_ready": format!("{}ms", plan.ready.as_millis()),
        "hyperfleet_api": {"endpoint": format!("http://{api}"), "timeout": format!("{}ms", API_TIMEOUT.as_millis())},
    });
    std::fs::write(&file, config.to_string()).context("write the configuration")?;
    let args = ["sentinel", "--config", &file.display().to_string(), "--health-bind-address", "127.0.0.1:0"];
    let more = ["--metrics-bind-address", "127.0.0.1:0"];
    env.push(("RUST_LOG".to_owned(), "info,watchfire_sentinel::publish=debug".to_owned()));
    env.extend(["PATH", "HOME"].iter().filter_map(|&name| Some((name.to_owned(), std::env::var(name).ok()?))));
    let args = args.into_iter().chain(more).map(str::to_owned).collect();
    Ok(Launch { binary: binary.to_owned(), args, env })
}

impl World<'_> {
    async fn story(&mut self, far: &mut Far) -> anyhow::Result<Evidence> {
        for number in 0..self.plan.size {
            self.create(number)?;
        }
        let vitals = Vitals::default();
        let told = tokio::select! {
            watched = vitals.watch(&self.process, self.begun) => watched.map(|()| None),
            told = self.play(far, &vitals) => told.map(Some),
        };
        let (recovery, mut failures) = told?.context("the watch ended")?;
        if let Err(error) = self.process.stop(GRACE).await {
            failures.push(format!("{error:#}"));
        }
        failures.extend(self.process.unexpected());
        Ok(Evidence {
            plan: self.plan.clone(),
            lives: std::mem::take(&mut *locked(&self.lives)),
            receipts: self.inbox.receipts(),
            said: self.process.said(),
            incidents: std::mem::take(&mut *locked(&self.incidents)),
            looks: vitals.looks(),
            recovery,
            failures,
            tail: self.process.tail(),
        })
    }

    /// Everything goes wrong, then nothing does any more, and then everything has to come true.
    async fn play(&self, far: &mut Far, vitals: &Vitals) -> anyhow::Result<(Option<Duration>, Vec<String>)> {
        let ready = || vitals.ready_since(Duration::ZERO);
        anyhow::ensure!(comes_true(START, ready).await, "not ready in the first {START:?}");
        tokio::try_join!(self.api_lane(), self.link_lane(far), self.process_lane(), self.fleet_lane())?;
        let healed = self.begun.elapsed();
        let mut failures = Vec::new();
        let recovered = comes_true(RECOVERY, || vitals.ready_since(healed) && self.unsettled().is_empty()).await;
        let at = self.begun.elapsed();
        if !recovered {
            let state = if vitals.ready_since(healed) { "ready" } else { "not ready" };
            failures.push(format!(
                "{state} {RECOVERY:?} after the last fault, and never published: {:?}",
                self.unsettled()
            ));
            return Ok((None, failures));
        }
        // Each age counts from the last report, so that one age from here everything has been due once more.
        let refresh = self.plan.ready + self.plan.poll + LATE;
        if !comes_true(refresh, || self.stale(at).is_empty()).await {
            failures.push(format!("no event within {refresh:?} of the recovery about {:?}", self.stale(at)));
        }
        if !comes_true(LATE, || self.lost().is_empty()).await {
            failures.push(format!("confirmed and never received: {:?}", self.lost()));
        }
        Ok((Some(at.saturating_sub(healed)), failures))
    }

    /// Resources whose generation neither an event nor every adapter's report has named.
    fn unsettled(&self) -> Vec<String> {
        let required = required(self.plan.kind);
        let settled = |id: &String| {
            let Some(resource) = self.simulator.get(self.plan.kind.plural(), id) else { return true };
            let reported = |adapter: &&str| {
                let report = resource.reports.iter().find(|report| report.adapter == **adapter);
                report.is_some_and(|report| report.observed_generation >= resource.generation)
            };
            self.inbox.has(id, resource.generation) || (!required.is_empty() && required.iter().all(reported))
        };
        locked(&self.lives).keys().filter(|id| !settled(id)).cloned().collect()
    }

    /// Resources about which no event has come since then.
    fn stale(&self, since: Duration) -> Vec<String> {
        let seen = self.inbox.about_since(since);
        let there = |id: &&String| self.simulator.get(self.plan.kind.plural(), id).is_some();
        locked(&self.lives).keys().filter(there).filter(|id| !seen.contains(*id)).cloned().collect()
    }

    /// Events that the broker confirmed, as the process says, and that have not come.
    fn lost(&self) -> Vec<String> {
        let confirmed = self.process.said().into_iter().filter_map(|said| match said.what {
            Outcome::Confirmed { event, .. } => Some(event),
            Outcome::Refused { .. } => None,
        });
        confirmed.filter(|event| !self.inbox.has_event(event)).collect()
    }

    fn create(&self, number: usize) -> anyhow::Result<()> {
        let owner = match self.plan.kind {
            Kind::NodePools => {
                Some(self.simulator.create("clusters", NewResource::named(format!("owner-{number}")))?.id)
            }
            Kind::Clusters | Kind::Channels => None,
        };
        let new = NewResource::named(format!("chaos-{number}"));
        let resource = self.simulator.create_in(self.plan.kind.plural(), owner.as_deref(), new)?;
        self.note(&resource.id, resource.generation);
        Ok(())
    }

    /// Writes down that a resource has come to a generation.
    fn note(&self, id: &str, generation: i32) {
        let mut lives = locked(&self.lives);
        let life = lives.entry(id.to_owned()).or_default();
        if usize::try_from(generation).is_ok_and(|generation| generation > life.generations.len()) {
            life.generations.push(self.begun.elapsed());
        }
    }

    /// Keeps a fault up for its time, and writes it down.
    async fn keep_up(&self, what: Trouble, lasting: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
        let begun = self.begun.elapsed();
        lasting.await?;
        locked(&self.incidents).push(Incident { what, begun, ended: self.begun.elapsed() });
        Ok(())
    }

    async fn api_lane(&self) -> anyhow::Result<()> {
        for step in &self.plan.api {
            sleep(step.pause).await;
            self.keep_up(Trouble::Api(step.what), self.disturb_api(step)).await?;
        }
        Ok(())
    }

    async fn disturb_api(&self, step: &Step<ApiFault>) -> anyhow::Result<()> {
        let answer = |status, retry_after: Option<u8>, body| Fault::Answer {
            status,
            retry_after: retry_after.map(|seconds| seconds.to_string()),
            body,
        };
        let wrong = match step.what {
            ApiFault::Cut => {
                self.api.cut();
                return Ok(());
            }
            ApiFault::Delay(delay) => return disturb(&self.api, Mode::Delay(delay), step.lasts).await,
            ApiFault::HalfOpen => return disturb(&self.api, Mode::Blackhole, step.lasts).await,
            ApiFault::Reset => return disturb(&self.api, Mode::Reset, step.lasts).await,
            ApiFault::Refuse => return disturb(&self.api, Mode::Refuse, step.lasts).await,
            ApiFault::Slow(rate) => return disturb(&self.api, Mode::Slow(rate), step.lasts).await,
            ApiFault::Status(status) => answer(status, None, FaultBody::Problem),
            ApiFault::TooMany { retry_after } => answer(429, Some(retry_after), FaultBody::Problem),
            ApiFault::Truncated => answer(200, None, FaultBody::Truncated),
            ApiFault::BrokenOff => answer(200, None, FaultBody::Cut),
            ApiFault::Garbled => answer(200, None, FaultBody::Garbled),
            ApiFault::Html => answer(200, None, FaultBody::Html),
            ApiFault::Empty => answer(200, None, FaultBody::Empty),
        };
        self.simulator.faults().arm(Scope::Lists, wrong, Times::Always);
        sleep(step.lasts).await;
        self.simulator.faults().clear();
        Ok(())
    }

    async fn link_lane(&self, far: &mut Far) -> anyhow::Result<()> {
        for step in &self.plan.link {
            sleep(step.pause).await;
            self.keep_up(Trouble::Link(step.what), self.disturb_link(step, far)).await?;
        }
        Ok(())
    }

    async fn disturb_link(&self, step: &Step<LinkFault>, far: &mut Far) -> anyhow::Result<()> {
        match step.what {
            LinkFault::Cut => self.link.cut(),
            LinkFault::Delay(delay) => disturb(&self.link, Mode::Delay(delay), step.lasts).await?,
            LinkFault::HalfOpen => disturb(&self.link, Mode::Blackhole, step.lasts).await?,
            LinkFault::Reset => disturb(&self.link, Mode::Reset, step.lasts).await?,
            LinkFault::Refuse => disturb(&self.link, Mode::Refuse, step.lasts).await?,
            LinkFault::Slow(rate) => disturb(&self.link, Mode::Slow(rate), step.lasts).await?,
            LinkFault::OneWay => disturb(&self.link, Mode::OneWay, step.lasts).await?,
            LinkFault::LostConfirms => {
                self.link.set(Mode::OneWay).await;
                sleep(step.lasts).await;
                self.link.cut();
                self.link.set(Mode::Pass).await;
            }
            LinkFault::Stop => far.stop_and_start(step.lasts).await,
            LinkFault::Kill => far.kill_and_start(step.lasts).await,
            LinkFault::DiskAlarm => far.disk_alarm(step.lasts).await,
        }
        Ok(())
    }

    async fn process_lane(&self) -> anyhow::Result<()> {
        for step in &self.plan.process {
            sleep(step.pause).await;
            match (step.what, &self.clock) {
                (ProcessFault::Kill, _) => {
                    self.keep_up(Trouble::Process(step.what), self.process.kill(step.lasts)).await?;
                }
                (ProcessFault::Pause, _) => self.keep_up(Trouble::Process(step.what), self.pause(step.lasts)).await?,
                (ProcessFault::Clock(offset), Some(clock)) => {
                    let off = async {
                        clock.set(offset)?;
                        sleep(step.lasts).await;
                        clock.set(SignedDuration::ZERO)
                    };
                    self.keep_up(Trouble::Process(step.what), off).await?;
                }
                (ProcessFault::Clock(_), None) => {}
            }
        }
        Ok(())
    }

    async fn pause(&self, lasts: Duration) -> anyhow::Result<()> {
        self.process.signal(Signal::STOP)?;
        sleep(lasts).await;
        self.process.signal(Signal::CONT)
    }

    async fn fleet_lane(&self) -> anyhow::Result<()> {
        for (number, step) in self.plan.fleet.iter().enumerate() {
            sleep(step.pause).await;
            let pick = |which: usize| {
                let lives = locked(&self.lives);
                lives.keys().nth(which.checked_rem(lives.len())?).cloned()
            };
            let plural = self.plan.kind.plural();
            match &step.what {
                Change::Create => self.create(self.plan.size + number)?,
                // One that is gone, or on its way, is left alone.
                Change::Spec(which) => {
                    let spec = Patch::spec(&json!({"step": number}));
                    if let Some(Ok(changed)) = pick(*which).map(|id| self.simulator.patch(plural, &id, spec)) {
                        self.note(&changed.id, changed.generation);
                    }
                }
                Change::Delete(which) => {
                    if let Some(Ok(Deleted::Marked(marked))) = pick(*which).map(|id| self.simulator.delete(plural, &id))
                    {
                        self.note(&marked.id, marked.generation);
                    }
                }
                Change::Adapter(which, knobs) => {
                    if let Some(adapter) = self.adapters.get(*which) {
                        adapter.set_knobs(knobs.clone());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Treats open connections and new ones like that for a while.
async fn disturb(proxy: &Proxy, mode: Mode, lasts: Duration) -> anyhow::Result<()> {
    proxy.set(mode).await;
    if matches!(mode, Mode::Reset | Mode::Refuse) {
        proxy.cut();
    }
    sleep(lasts).await;
    proxy.set(Mode::Pass).await;
    Ok(())
}

async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits until it is so; false if it is not in time.
async fn comes_true(within: Duration, condition: impl Fn() -> bool) -> bool {
    let waiting = async {
        while !condition() {
            sleep(POLL).await;
        }
    };
    tokio::time::timeout(within, waiting).await.is_ok()
}

fn kinds() -> Vec<simulator::Kind> {
    vec![simulator::Kind::clusters(), simulator::Kind::nodepools(), simulator::Kind::new("Channel", "channels", &[])]
}

fn required(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Clusters => &["validation", "dns"],
        Kind::NodePools => &["validation"],
        Kind::Channels => &[],
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
