//! One of several replicas leads: elected by a Lease, kept as the controllers of Kubernetes keep theirs.
//!
//! The leader renews the lease; whoever sees it unchanged for its whole duration, by its own clock, takes it over. No
//! time that another machine wrote is compared with ours. A leader trusts its own renewal for less long than the others
//! do, so that one that was cut off or stopped knows that it leads no more before anybody else begins.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::health::{Dependency, Health};
use crate::{chain, clock};

/// How long a lease lasts, and how it is kept.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Others wait for so long after the last renewal that they saw.
    pub duration: Duration,
    /// The leader leads for so long after a renewal; shorter than `duration`.
    pub renew_deadline: Duration,
    /// Between two attempts; shorter than `renew_deadline`.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let (duration, renew_deadline, retry_period) =
            (Duration::from_secs(15), Duration::from_secs(10), Duration::from_secs(2));
        Self { duration, renew_deadline, retry_period }
    }
}

/// Whether this replica leads.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Leads for ever: there is one replica.
    pub fn alone() -> Self {
        // Thirty years are for ever, and no overflow.
        let (_, receiver) = watch::channel(Some(Instant::now() + Duration::from_hours(30 * 365 * 24)));
        Self(receiver)
    }

    /// Whether it leads now; true for no longer than the last renewal counts, also in a process that was stopped
    /// meanwhile.
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until it leads.
    pub async fn won(&mut self) {
        let ended = self.0.wait_for(|until| until.is_some_and(|until| Instant::now() < until)).await.is_err();
        if ended {
            // Whoever elects has ended: nobody will say that we lead.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it is no more as it was found to be, `leads` or not; at once, where that is over already.
    pub async fn changed(&mut self, leads: bool) {
        if leads { self.lost().await } else { self.won().await }
    }

    /// Waits until it leads no more.
    pub async fn lost(&mut self) {
        loop {
            let until = *self.0.borrow_and_update();
            let Some(until) = until else { return };
            if Instant::now() >= until {
                return;
            }
            tokio::select! {
                changed = self.0.changed() => if changed.is_err() {
                    sleep_until(until).await;
                    return;
                },
                () = sleep_until(until) => {}
            }
        }
    }
}

/// Whether this replica leads, for the metrics; named as the controllers of Kubernetes name it.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Family<LeaseLabels, Gauge>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaseLabels {
    name: String,
}

impl Metrics {
    /// Registers it; nothing is shown until there is an election.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Whether this replica leads (1), or stands by or cannot renew its Lease (0)";
        registry.register("leader_election_master_status", help, self.0.clone());
    }
}

/// Takes part in an election.
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    timing: Timing,
    state: Dependency,
    leading: Gauge,
    seen: Option<Seen>,
    until: watch::Sender<Option<Instant>>,
}

/// The lease of another, as it was when it last changed.
struct Seen {
    version: Option<String>,
    since: Instant,
    /// When it has run out, if it does not change until then.
    runs_out: Instant,
}

/// What an attempt came to.
enum Turn {
    Ours,
    Theirs(String),
    /// Somebody wrote it at the same moment: the next attempt will tell.
    Contested,
}

impl Election {
    /// Prepares to take part, under a name that no other replica has.
    pub fn new(
        leases: Api<Lease>,
        name: String,
        identity: String,
        timing: Timing,
        health: &Health,
        metrics: &Metrics,
    ) -> (Self, Leadership) {
        let (until, receiver) = watch::channel(None);
        let state = health.dependency("leader_election");
        let leading = metrics.0.get_or_create_owned(&LeaseLabels { name: name.clone() });
        (Self { leases, name, identity, timing, state, leading, seen: None, until }, Leadership(receiver))
    }

    /// Takes part until told to stop; the lease is given back then, so that another one need not wait for its end.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), std::convert::Infallible> {
        let (mut leader, mut failing) = (None, false);
        // One that hangs leaves time for another before the deadline.
        let patience = (self.timing.renew_deadline / 2).max(self.timing.retry_period);
        loop {
            let begun = Instant::now();
            let Some(attempt) = token.run_until_cancelled(timeout(patience, self.attempt())).await else { break };
            match attempt {
                Ok(Ok(turn)) => {
                    failing = false;
                    self.state.up();
                    self.tell(&mut leader, turn, begun);
                }
                Ok(Err(error)) => self.tell_failure(&mut failing, &why(&error)),
                Err(_) => self.tell_failure(&mut failing, "no answer in time; check that the API server answers"),
            }
            if leader.as_ref() == Some(&self.identity) && !self.leads() {
                warn!(
                    lease = self.name,
                    identity = self.identity,
                    "leads no more: the lease could not be renewed in time"
                );
                leader = None;
            }
            self.leading.set(i64::from(self.leads()));
            let next = Instant::now() + self.timing.retry_period;
            let next = self.seen.as_ref().map_or(next, |seen| next.min(seen.runs_out.max(Instant::now())));
            if token.run_until_cancelled(sleep_until(next)).await.is_none() {
                break;
            }
        }
        self.release().await;
        self.leading.set(0);
        Ok(())
    }

    fn leads(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    fn tell(&self, leader: &mut Option<String>, turn: Turn, begun: Instant) {
        let (holder, until) = match turn {
            // It counts from before it was made.
            Turn::Ours => (self.identity.clone(), Some(begun + self.timing.renew_deadline)),
            Turn::Theirs(holder) => (holder, None),
            Turn::Contested => return,
        };
        self.until.send_replace(until);
        if leader.as_ref() != Some(&holder) {
            info!(
                lease = self.name,
                identity = self.identity,
                leader = holder,
                leads = until.is_some(),
                "leader elected"
            );
            *leader = Some(holder);
        }
    }

    /// What was won before goes on until its deadline.
    fn tell_failure(&self, failing: &mut bool, error: &str) {
        self.state.down(format!("the Lease {}: {error}", self.name));
        if !std::mem::replace(failing, true) {
            warn!(lease = self.name, error, "cannot read or renew the lease, trying again");
        }
    }

    async fn attempt(&mut self) -> Result<Turn, kube::Error> {
        let now = clock::now();
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.taken(now, 0)) };
            return Self::turn(self.leases.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder == self.identity {
            // The duration too: others go by it, and somebody may have written another.
            let lease_duration_seconds = Some(self.seconds());
            lease.spec = Some(LeaseSpec { renew_time: Some(MicroTime(now)), lease_duration_seconds, ..spec });
        } else if holder.is_empty() || self.has_run_out(&lease.metadata, &spec) {
            lease.spec = Some(self.taken(now, spec.lease_transitions.unwrap_or_default().saturating_add(1)));
        } else {
            return Ok(Turn::Theirs(holder));
        }
        self.seen = None;
        // With the version that was read: of two that try, one is refused.
        Self::turn(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn turn(written: Result<Lease, kube::Error>) -> Result<Turn, kube::Error> {
        match written {
            Ok(_) => Ok(Turn::Ours),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Turn::Contested),
            Err(error) => Err(error),
        }
    }

    fn seconds(&self) -> i32 {
        i32::try_from(self.timing.duration.as_secs()).unwrap_or(i32::MAX)
    }

    fn taken(&self, now: Timestamp, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.seconds()),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Whether another's lease was seen unchanged for its whole duration.
    fn has_run_out(&mut self, metadata: &ObjectMeta, spec: &LeaseSpec) -> bool {
        let now = Instant::now();
        let seen = self.seen.take().filter(|seen| seen.version == metadata.resource_version);
        let since = seen.map_or(now, |seen| seen.since);
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
        // One that says nothing, or less, was written by somebody who counts differently.
        let runs_out = since + Duration::from_secs(seconds).max(self.timing.duration);
        self.seen = Some(Seen { version: metadata.resource_version.clone(), since, runs_out });
        now >= runs_out
    }

    /// Gives back what we hold; one that cannot runs out by itself.
    async fn release(&self) {
        let held = self.until.send_replace(None).is_some();
        if !held {
            return;
        }
        let released = async {
            let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
            let ours = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity));
            if let Some(spec) = ours {
                spec.holder_identity = Some(String::new());
                spec.renew_time = Some(MicroTime(clock::now()));
                self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        let why = match timeout(self.timing.retry_period, released).await {
            Ok(Ok(())) => return info!(lease = self.name, "lease given back"),
            Ok(Err(error)) => chain(&error),
            Err(_) => "no answer in time".to_owned(),
        };
        warn!(lease = self.name, error = why, "cannot give the lease back, it runs out by itself");
    }
}

/// What the API server said, or why it could not be asked, and what to try.
fn why(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            format!("{}; allow the ServiceAccount to get, create and update leases", status.message)
        }
        kube::Error::Api(status) => status.message.clone(),
        _ => format!("{}; check that the API server answers", chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_leader_leads_for_as_long_as_its_renewal_counts_and_not_a_moment_longer() {
        let (sender, receiver) = watch::channel(None);
        let mut leadership = Leadership(receiver);
        assert!(!leadership.holds());
        sender.send_replace(Some(Instant::now() + Duration::from_secs(10)));
        leadership.changed(false).await;
        assert!(leadership.holds());
        advance(Duration::from_secs(9)).await;
        sender.send_replace(Some(Instant::now() + Duration::from_secs(10)));
        advance(Duration::from_secs(9)).await;
        assert!(leadership.holds(), "renewed");
        // As in a process that was stopped: nobody has said anything meanwhile.
        advance(Duration::from_secs(1)).await;
        assert!(!leadership.holds());
        sender.send_replace(Some(Instant::now() + Duration::from_secs(10)));
        leadership.won().await;
        sender.send_replace(None);
        leadership.changed(true).await;
        assert!(!leadership.holds(), "given back");
    }

    #[tokio::test(start_paused = true)]
    async fn the_only_replica_leads_for_ever_and_one_whose_election_ended_never_again() {
        let mut alone = Leadership::alone();
        alone.won().await;
        assert!(tokio::time::timeout(Duration::from_hours(24 * 365), alone.lost()).await.is_err());
        let (sender, receiver) = watch::channel(None);
        drop(sender);
        let mut orphan = Leadership(receiver);
        assert!(tokio::time::timeout(Duration::from_hours(24), orphan.won()).await.is_err());
    }
}
