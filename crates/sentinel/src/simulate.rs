//! Runs a configuration over a recording, in virtual time and with the service's own decisions, memory and events.
//!
//! It is an open loop: reports stand as they were recorded, so that another configuration's events change nothing about
//! them. What became of an event is taken from the recording where the sentinel itself recorded that very event; any
//! other is confirmed at once.
//!
//! A resource is looked at again when it changed, or when its last decision said that it would be due: what happens to
//! be in between would decide the same. That makes a day a matter of seconds. Where an expression of the user's
//! own decides, each is looked at in every poll.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::config::SentinelConfig;
use crate::engine::{About, Engine, Verdict};
use crate::metrics::{Families, Shard};
use crate::recording::{By, Cut, Error, Fate, Header, Kept, Observed, Reader, decides_by};
use crate::resource::parse_id;

mod summary;

pub use summary::{Busiest, Latency, Peak, Summary};

/// Differing events that are kept to be shown.
const SHOWN: usize = 10;

/// How many polls one configuration may be ahead of the one that it is compared with.
const POLLS_AHEAD: usize = 1000;

/// What configurations came to, over the same recording.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Each configuration.
    pub runs: Vec<Summary>,
    /// What differs between the first and the second, if there are two.
    pub difference: Option<Difference>,
    /// The segments that are not whole, and up to where they were used.
    pub cuts: Vec<Cut>,
}

/// Runs configurations, by name, over a recording, each on a thread; the `top` busiest resources are named.
pub fn run(recording: &Path, configs: Vec<(String, SentinelConfig)>, top: usize) -> Result<Report, Error> {
    thread::scope(|scope| {
        let begin = |(name, config)| {
            let (sender, polls) = mpsc::sync_channel(POLLS_AHEAD);
            (polls, scope.spawn(move || run_one(recording, Simulation::new(name, config), top, &sender)))
        };
        let (polls, threads): (Vec<_>, Vec<_>) = configs.into_iter().map(begin).unzip();
        let difference = <[_; 2]>::try_from(polls).ok().map(|[a, b]| {
            let mut difference = Difference::default();
            a.iter().zip(b.iter()).for_each(|(a, b)| difference.compare(a, b));
            difference
        });
        let (mut runs, mut cuts) = (Vec::new(), Vec::new());
        for thread in threads {
            let (summary, found) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            runs.push(summary);
            cuts = found;
        }
        Ok(Report { runs, difference, cuts })
    })
}

/// Tells what is published in each poll, as long as somebody listens; returns what it comes to, and which segments are
/// not whole.
fn run_one(
    recording: &Path,
    mut run: Simulation,
    top: usize,
    polls: &mpsc::SyncSender<Vec<Published>>,
) -> Result<(Summary, Vec<Cut>), Error> {
    let mut reader = Reader::open(recording)?;
    let mut listed = false;
    while let Some(observed) = reader.read()? {
        if let Observed::Begun(header) = &observed {
            let expected = &run.engine.config.api.resource_type;
            if *expected != header.resource_type {
                let (found, expected) = (header.resource_type.clone(), expected.clone());
                return Err(Error::Mixed { file: recording.display().to_string(), found, expected });
            }
        }
        listed |= matches!(observed, Observed::End(_, true));
        run.observe(&observed, &reader);
        if matches!(observed, Observed::End(..)) {
            // With one configuration, or after the other one failed, nobody compares.
            _ = polls.send(run.take_published());
        }
    }
    if !listed && run.summary.events == 0 {
        return Err(Error::NoList { recording: recording.display().to_string() });
    }
    Ok((run.finish(&reader, top), reader.cuts))
}

/// One configuration over one recording.
pub struct Simulation {
    engine: Engine,
    header: Option<Header>,
    /// When to look at each resource again, by its number.
    next: Vec<Timestamp>,
    specs: Vec<Spec>,
    /// Events that were decided on in the poll in hand, by their id, until it is known what became of them.
    pending: HashMap<String, Pending>,
    /// Whether this configuration polls in the poll in hand; nothing between two of them.
    poll: Option<bool>,
    next_poll: Timestamp,
    /// When the last poll began.
    begun: Timestamp,
    /// Whether the first list is through: what it shows is not new.
    acquainted: bool,
    published: Vec<Published>,
    summary: Summary,
    /// Looks at every resource in every poll, as the service does.
    thorough: bool,
}

/// What is known of a resource's generation.
#[derive(Debug, Clone, Copy, Default)]
struct Spec {
    generation: Option<i64>,
    /// Changed since it was looked at, first at this time.
    changed: Option<Timestamp>,
    /// A new generation waits for its event, since then.
    waiting: Option<Timestamp>,
}

struct Pending {
    number: usize,
    about: About,
    decided: Timestamp,
}

/// An event that was published, as far as the recording tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Published {
    /// When.
    pub at: Timestamp,
    /// The event's id.
    pub event: String,
    /// The resource that it is about.
    pub resource: String,
    /// Why.
    pub reason: &'static str,
    /// The generation it carries.
    pub generation: Option<i64>,
}

impl Simulation {
    /// Prepares a configuration; `name` is what the summary calls it.
    pub fn new(name: String, config: SentinelConfig) -> Self {
        let shard = Shard { resource_type: String::new(), resource_selector: String::new(), shard: String::new() };
        // Counted as the service counts, and scraped by nobody.
        let metrics = Families::default().of(&shard, "simulation", String::new());
        Self {
            // It may read the time, so that it may say something else whenever it is asked.
            thorough: config.effective.message_decision.is_some(),
            engine: Engine::new(Arc::new(config), metrics, Timestamp::MAX),
            header: None,
            next: Vec::new(),
            specs: Vec::new(),
            pending: HashMap::new(),
            poll: None,
            next_poll: Timestamp::MIN,
            begun: Timestamp::MIN,
            acquainted: false,
            published: Vec::new(),
            summary: Summary::new(name),
        }
    }

    /// Goes on with what the recording shows next.
    pub fn observe(&mut self, observed: &Observed, reader: &Reader) {
        match observed {
            Observed::Begun(header) => self.begin(header),
            Observed::Page(at) => self.page(*at, reader),
            Observed::Event(Fate { id, at, refused, .. }) => match (self.pending.remove(id), refused) {
                (Some(pending), None) => self.publish(id.clone(), &pending, *at),
                (Some(_), Some(_)) => self.summary.refused += 1,
                // Another configuration's.
                (None, _) => {}
            },
            Observed::End(at, whole) => self.end(*at, *whole),
            Observed::Gap(_) => self.summary.gaps += 1,
        }
    }

    /// What was published since the last call.
    pub fn take_published(&mut self) -> Vec<Published> {
        std::mem::take(&mut self.published)
    }

    /// What it came to; the busiest `top` resources are named.
    fn finish(mut self, reader: &Reader, top: usize) -> Summary {
        self.summary.conclude(top, |number| parse_id(reader.item(number)).unwrap_or_default().into());
        self.summary
    }

    fn begin(&mut self, header: &Header) {
        // A poll that was going on when the segment before broke off never ended.
        self.poll = None;
        self.pending.clear();
        for note in notes(header, &self.engine.config) {
            if !self.summary.notes.contains(&note) {
                self.summary.notes.push(note);
            }
        }
        if self.header.is_some() && header.by == By::Sentinel && !header.continues {
            // The process that recorded had forgotten its events here, and so would this one.
            self.engine.forget();
            self.next.fill(Timestamp::MIN);
        }
        self.header = Some(header.clone());
    }

    fn page(&mut self, at: Timestamp, reader: &Reader) {
        let polls = match self.poll {
            Some(polls) => polls,
            None => self.begin_poll(at),
        };
        for &(number, changed) in reader.page() {
            if number >= self.next.len() {
                self.next.resize(number + 1, Timestamp::MIN);
                self.specs.resize(number + 1, Spec::default());
            }
            if changed {
                self.next[number] = Timestamp::MIN;
                self.specs[number].changed.get_or_insert(at);
            }
            if polls && (self.thorough || self.next[number] <= at) {
                self.look(number, reader.item(number), at);
            }
        }
    }

    /// Whether this configuration polls when the recording did: a longer interval leaves some polls out.
    fn begin_poll(&mut self, at: Timestamp) -> bool {
        // The clock was set back: what was due at a time may be due before that.
        if at < std::mem::replace(&mut self.begun, at) {
            self.next.fill(Timestamp::MIN);
            self.next_poll = Timestamp::MIN;
        }
        let interval = self.engine.config.poll_interval;
        let recorded = Duration::from_millis(self.header.as_ref().map_or(0, |header| header.poll_millis));
        let polls = interval <= recorded || add(at, recorded / 2) >= self.next_poll;
        if polls {
            self.next_poll = add(at, interval);
            self.summary.poll(at);
        }
        self.poll = Some(polls);
        polls
    }

    fn look(&mut self, number: usize, item: &str, at: Timestamp) {
        let verdict = self.engine.take(item, at);
        let spec = &mut self.specs[number];
        let changed = spec.changed.take().filter(|_| self.acquainted);
        let mut see = |generation: Option<i64>| {
            if generation > spec.generation {
                spec.waiting = changed;
                spec.generation = generation;
            }
        };
        self.next[number] = match verdict {
            Verdict::Unreadable | Verdict::NotSelected => Timestamp::MAX,
            Verdict::Skipped { decision, generation, .. } => {
                see(generation);
                // A report from the future counts once it is past, whatever the decision says until then.
                decision.due.filter(|_| !decision.from_future).unwrap_or(Timestamp::MIN)
            }
            Verdict::Due(cause) => {
                let about = Engine::about(&cause);
                see(about.generation);
                self.pending.insert(cause.event(), Pending { number, about, decided: at });
                Timestamp::MIN
            }
        };
    }

    fn publish(&mut self, event: String, pending: &Pending, at: Timestamp) {
        let Pending { number, about, .. } = pending;
        self.engine.ledger.confirm(about, at);
        let waited = self.specs[*number].waiting.take().map(|since| at.duration_since(since));
        self.summary.event(*number, about.reason, at, waited);
        let (resource, reason) = (about.id.clone(), about.reason.as_str());
        self.published.push(Published { at, event, resource, reason, generation: about.generation });
    }

    /// What is not known to have been refused was confirmed at once; unless the poll broke off: then nobody knows, and
    /// it is decided again.
    fn end(&mut self, at: Timestamp, whole: bool) {
        self.poll = None;
        self.acquainted |= whole;
        let mut pending: Vec<_> = std::mem::take(&mut self.pending).into_iter().collect();
        pending.sort_unstable_by_key(|(_, pending)| (pending.decided, pending.number));
        for (event, pending) in pending.into_iter().filter(|_| whole) {
            self.publish(event, &pending, pending.decided);
        }
        let mut ledger = self.engine.ledger.lock();
        ledger.expire(at);
        // For metrics that nobody reads.
        drop(ledger.take_answered());
        drop(ledger);
        self.summary.until(at);
    }
}

/// What differs between two configurations over the same recording.
#[derive(Debug, Default, Serialize)]
pub struct Difference {
    /// Events that only the first publishes.
    pub only_a: u64,
    /// Events that only the second publishes.
    pub only_b: u64,
    /// The first events that only one of them publishes.
    pub first: Vec<Differing>,
}

/// An event that only one of two configurations publishes.
#[derive(Debug, Serialize)]
pub struct Differing {
    /// `A` or `B`.
    pub only: &'static str,
    /// The event.
    #[serde(flatten)]
    pub event: Published,
}

impl Difference {
    /// Compares what both published in the same poll: whoever takes them does the same, whatever the reason.
    fn compare(&mut self, a: Vec<Published>, b: Vec<Published>) {
        let about = |it: &Published| (it.resource.clone(), it.generation);
        let all = |events: &[Published]| events.iter().map(about).collect::<HashSet<_>>();
        let (in_a, in_b) = (all(&a), all(&b));
        let only_a = a.into_iter().filter(|it| !in_b.contains(&about(it))).map(|event| Differing { only: "A", event });
        let only_b = b.into_iter().filter(|it| !in_a.contains(&about(it))).map(|event| Differing { only: "B", event });
        for differing in only_a.chain(only_b) {
            *(if differing.only == "A" { &mut self.only_a } else { &mut self.only_b }) += 1;
            if self.first.len() < SHOWN {
                self.first.push(differing);
            }
        }
    }
}

/// What to bear in mind when this configuration runs over this recording.
fn notes(header: &Header, config: &SentinelConfig) -> Vec<String> {
    let mut notes = Vec::new();
    let selector = config.selector.labels();
    let shown = |selector: &Option<String>| selector.clone().unwrap_or_else(|| "everything".to_owned());
    if header.selector.is_some() && header.selector != selector {
        let (recorded, selects) = (shown(&header.selector), shown(&selector));
        notes.push(format!("the recording holds only what {recorded} selects; the configuration selects {selects}"));
    }
    if let Some(held) = &header.fields {
        let missing = match Kept::read_by(config).fields() {
            None => "fields that it does not name".to_owned(),
            Some(read) => read.difference(held).map(|field| format!(".{field}")).collect::<Vec<_>>().join(", "),
        };
        if !missing.is_empty() {
            let to_do = "record with a configuration that reads them, or with --whole";
            notes.push(format!("the configuration may read what the recording does not hold: {missing}; {to_do}"));
        }
    }
    let redacted: Vec<_> = header.redacted.iter().filter(|path| decides_by(config, path)).map(String::as_str).collect();
    if !redacted.is_empty() {
        notes
            .push(format!("the configuration decides by what was taken out of the recording: {}", redacted.join(", ")));
    }
    let recorded = Duration::from_millis(header.poll_millis);
    if config.poll_interval > recorded {
        let interval = config.poll_interval;
        notes.push(format!(
            "recorded every {recorded:?}: polls between those of an interval of {interval:?} are left out"
        ));
    }
    if config.poll_interval < recorded {
        let interval = config.poll_interval;
        notes.push(format!(
            "recorded every {recorded:?}: nothing is known in between for a poll interval of {interval:?}"
        ));
    }
    notes
}

/// Adds without overflow.
fn add(at: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration).ok().and_then(|duration| at.checked_add(duration).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
