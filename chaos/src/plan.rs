//! What a seed means: a fleet, a configuration, adapters, and what goes wrong when.
//!
//! Pure: the same seed gives the same plan. How the threads of a round interleave is not in it.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use watchfire_simulator::Knobs;

/// For how long things go wrong, more or less: no fault is planned to end after it.
const LENGTH: Duration = Duration::from_secs(9);
/// For how long the fleet changes: less, so that the faults end last.
const CHANGES: Duration = Duration::from_secs(6);

/// Which broker a round runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    RabbitMq,
    PubSub,
}

/// What the round's resources are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two adapters must report.
    Clusters,
    /// Owned by a cluster; one adapter must report.
    NodePools,
    /// Nobody has to report: the API never says that it is reconciled.
    Channels,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clusters => "Cluster",
            Self::NodePools => "NodePool",
            Self::Channels => "Channel",
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::NodePools => "nodepools",
            Self::Channels => "channels",
        }
    }
}

/// One round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) broker: BrokerKind,
    pub(crate) kind: Kind,
    /// Resources at the start.
    pub(crate) size: usize,
    pub(crate) poll: Duration,
    pub(crate) not_ready: Duration,
    pub(crate) ready: Duration,
    pub(crate) adapters: Vec<(&'static str, Knobs)>,
    pub(crate) api: Vec<Step<ApiFault>>,
    pub(crate) link: Vec<Step<LinkFault>>,
    pub(crate) process: Vec<Step<ProcessFault>>,
    pub(crate) fleet: Vec<Step<Change>>,
}

/// Something that is done after a pause, and then kept up for a while.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step<T> {
    pub(crate) pause: Duration,
    pub(crate) what: T,
    pub(crate) lasts: Duration,
}

/// What goes wrong between the sentinel and the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiFault {
    Delay(Duration),
    Cut,
    HalfOpen,
    Reset,
    Refuse,
    Slow(usize),
    Status(u16),
    TooMany { retry_after: u8 },
    Truncated,
    BrokenOff,
    Garbled,
    Html,
    Empty,
}

/// What goes wrong between the sentinel and the broker, or with the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkFault {
    Delay(Duration),
    Cut,
    HalfOpen,
    Reset,
    Refuse,
    Slow(usize),
    /// Events arrive and confirms do not.
    OneWay,
    /// The same, and then the connection breaks: the confirms never come.
    LostConfirms,
    Stop,
    Kill,
    DiskAlarm,
}

/// What happens to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessFault {
    Kill,
    Pause,
    /// Its wall clock is this far off for a while.
    Clock(SignedDuration),
}

/// What happens to the fleet meanwhile; the number picks a resource.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Create,
    Spec(usize),
    Delete(usize),
    /// The adapter of that number misbehaves like this from here on.
    Adapter(usize, Knobs),
}

impl Plan {
    /// Whether a report time can lie ahead of the process's clock.
    pub(crate) fn has_clocks_that_differ(&self) -> bool {
        let ahead = |knobs: &Knobs| knobs.clock_offset.is_positive();
        let changed = |step: &Step<Change>| matches!(&step.what, Change::Adapter(_, knobs) if ahead(knobs));
        self.adapters.iter().any(|(_, knobs)| ahead(knobs)) || self.fleet.iter().any(changed) || self.sets_the_clock()
    }

    /// Whether the process's clock is set.
    pub(crate) fn sets_the_clock(&self) -> bool {
        self.process.iter().any(|step| matches!(step.what, ProcessFault::Clock(_)))
    }

    /// Draws the plan of a seed. Even seeds run on RabbitMQ, odd ones on Pub/Sub.
    pub(crate) fn of(seed: u64) -> Self {
        let mut dice = Dice(StdRng::seed_from_u64(seed));
        let broker = if seed.is_multiple_of(2) { BrokerKind::RabbitMq } else { BrokerKind::PubSub };
        let kind = dice.one_of(&[Kind::Clusters, Kind::Clusters, Kind::NodePools, Kind::Channels]);
        let size = if dice.chance(0.25) { dice.between(101, 240) } else { dice.between(1, 40) };
        let not_ready = dice.millis(4_000, 6_000);
        let names: &[&str] = if kind == Kind::NodePools { &["validation"] } else { &["validation", "dns"] };
        Self {
            seed,
            broker,
            kind,
            size,
            poll: dice.millis(200, 800),
            not_ready,
            ready: not_ready + dice.millis(1_000, 4_000),
            adapters: names.iter().map(|&name| (name, dice.knobs())).collect(),
            api: dice.lane(LENGTH, 3_000, |dice| (dice.api_fault(), dice.millis(300, 3_000))),
            link: dice.lane(LENGTH, 3_000, |dice| (dice.link_fault(broker), dice.millis(300, 4_000))),
            process: dice.lane(LENGTH, 6_000, Dice::process_fault),
            fleet: dice.lane(CHANGES, 1_500, |dice| (dice.change(names.len()), Duration::ZERO)),
        }
    }
}

struct Dice(StdRng);

impl Dice {
    fn between(&mut self, low: usize, high: usize) -> usize {
        self.0.random_range(low..=high)
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.0.random_range(low..=high))
    }

    fn chance(&mut self, share: f64) -> bool {
        self.0.random_bool(share)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.random_range(0..all.len())]
    }

    /// Steps with pauses of up to so many milliseconds, for so long.
    fn lane<T>(
        &mut self,
        length: Duration,
        longest_pause: u64,
        mut draw: impl FnMut(&mut Self) -> (T, Duration),
    ) -> Vec<Step<T>> {
        let (mut steps, mut at) = (Vec::new(), Duration::ZERO);
        loop {
            let pause = self.millis(100, longest_pause);
            let (what, lasts) = draw(self);
            at += pause + lasts;
            if at > length {
                return steps;
            }
            steps.push(Step { pause, what, lasts });
        }
    }

    fn api_fault(&mut self) -> ApiFault {
        let delay = self.millis(50, 900);
        let (slow, status) = (self.between(2_000, 60_000), self.one_of(&[408, 500, 502, 503, 504]));
        let retry_after = self.one_of(&[1, 2, 3]);
        self.one_of(&[
            ApiFault::Delay(delay),
            ApiFault::Cut,
            ApiFault::HalfOpen,
            ApiFault::Reset,
            ApiFault::Refuse,
            ApiFault::Slow(slow),
            ApiFault::Status(status),
            ApiFault::TooMany { retry_after },
            ApiFault::Truncated,
            ApiFault::BrokenOff,
            ApiFault::Garbled,
            ApiFault::Html,
            ApiFault::Empty,
        ])
    }

    fn link_fault(&mut self, broker: BrokerKind) -> LinkFault {
        let delay = self.millis(20, 400);
        let slow = self.between(1_000, 40_000);
        let anywhere = [
            LinkFault::Delay(delay),
            LinkFault::Cut,
            LinkFault::HalfOpen,
            LinkFault::Reset,
            LinkFault::Refuse,
            LinkFault::Slow(slow),
            LinkFault::OneWay,
            LinkFault::LostConfirms,
        ];
        // The emulator keeps its topics in memory: one that is stopped has lost what it confirmed.
        let with_a_broker_to_stop = [LinkFault::Stop, LinkFault::Kill, LinkFault::DiskAlarm];
        if broker == BrokerKind::RabbitMq && self.chance(0.25) {
            self.one_of(&with_a_broker_to_stop)
        } else {
            self.one_of(&anywhere)
        }
    }

    fn process_fault(&mut self) -> (ProcessFault, Duration) {
        let lasts = self.millis(500, 4_000);
        match self.between(0, 3) {
            0 | 1 => (ProcessFault::Kill, self.millis(0, 600)),
            2 => (ProcessFault::Pause, lasts),
            _ => {
                let seconds = self.one_of(&[3_600, 60, 20, -20, -60, -3_600]);
                (ProcessFault::Clock(SignedDuration::from_secs(seconds)), lasts)
            }
        }
    }

    fn change(&mut self, adapters: usize) -> Change {
        let which = self.between(0, usize::from(u16::MAX));
        match self.between(0, 9) {
            0 | 1 => Change::Create,
            2..=6 => Change::Spec(which),
            7 => Change::Delete(which),
            _ => Change::Adapter(which % adapters, self.knobs()),
        }
    }

    /// Half of all adapters behave well.
    fn knobs(&mut self) -> Knobs {
        let mut knobs = Knobs { latency: self.millis(0, 60), ..Knobs::default() };
        match self.between(0, 13) {
            0 => knobs.failures = 0.3,
            1 => knobs.unknown = 0.3,
            2 => knobs.silent = true,
            3 => knobs.stale_generation = true,
            4 => knobs.clock_offset = SignedDuration::from_secs(self.one_of(&[-120, -5, 5, 120])),
            5 => knobs.drops = 0.3,
            6 => knobs.latency = self.millis(500, 1_500),
            _ => {}
        }
        knobs
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, broker, kind, size, poll, not_ready, ready, .. } = self;
        writeln!(
            f,
            "seed {seed}: {broker:?}, {size} {}, poll {poll:?}, ages {not_ready:?} and {ready:?}",
            kind.plural()
        )?;
        for (name, knobs) in &self.adapters {
            writeln!(f, "  adapter {name}: {}", described(knobs))?;
        }
        lane(f, "api", &self.api, |fault| format!("{fault:?}"))?;
        lane(f, "broker", &self.link, |fault| format!("{fault:?}"))?;
        lane(f, "process", &self.process, |fault| format!("{fault:?}"))?;
        lane(f, "fleet", &self.fleet, |change| match change {
            Change::Adapter(which, knobs) => format!("adapter {which}: {}", described(knobs)),
            Change::Create | Change::Spec(_) | Change::Delete(_) => format!("{change:?}"),
        })
    }
}

fn lane<T>(f: &mut fmt::Formatter<'_>, name: &str, steps: &[Step<T>], word: impl Fn(&T) -> String) -> fmt::Result {
    for Step { pause, what, lasts } in steps {
        let lasting = if lasts.is_zero() { String::new() } else { format!(" for {lasts:?}") };
        writeln!(f, "  {name}: after {pause:?} {}{lasting}", word(what))?;
    }
    Ok(())
}

/// How an adapter behaves, without what it does not do.
fn described(knobs: &Knobs) -> String {
    let Knobs { latency, failures, unknown, silent, stale_generation, clock_offset, drops, .. } = knobs;
    let share = |share: &f64, word: &str| (*share > 0.0).then(|| format!("{word} {share}"));
    let odd = [
        share(failures, "fails"),
        share(unknown, "unknown"),
        share(drops, "drops"),
        silent.then(|| "silent".to_owned()),
        stale_generation.then(|| "stale generation".to_owned()),
        (!clock_offset.is_zero()).then(|| format!("clock {clock_offset}")),
    ];
    let words: Vec<String> = [Some(format!("takes {latency:?}"))].into_iter().chain(odd).flatten().collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_is_the_same_plan_and_another_is_another() {
        for seed in 0..200 {
            assert_eq!(Plan::of(seed), Plan::of(seed));
            assert_ne!(Plan::of(seed).to_string(), Plan::of(seed + 1000).to_string());
        }
    }

    #[test]
    fn two_hundred_seeds_meet_every_fault() {
        let plans: Vec<Plan> = (0..200).map(Plan::of).collect();
        let api = plans.iter().flat_map(|plan| &plan.api).map(|step| std::mem::discriminant(&step.what));
        assert_eq!(api.collect::<std::collections::HashSet<_>>().len(), 13);
        let link = plans.iter().flat_map(|plan| &plan.link).map(|step| std::mem::discriminant(&step.what));
        assert_eq!(link.collect::<std::collections::HashSet<_>>().len(), 11);
        let process = plans.iter().flat_map(|plan| &plan.process).map(|step| std::mem::discriminant(&step.what));
        assert_eq!(process.collect::<std::collections::HashSet<_>>().len(), 3);
        for plan in &plans {
            let took: Duration = plan.api.iter().map(|step| step.pause + step.lasts).sum();
            assert!(took <= LENGTH, "bounded: {plan}");
        }
    }
}
