//! Remembers our own confirmed events until a report overtakes them.
//!
//! Memory only: after a restart what has no report yet is sent once more, under the same id. Bounded: beyond its
//! capacity the oldest entry goes, which costs at most one early event for that resource.
//!
//! The surprise: while a resource is not ready, a report overtakes its event without ending its entry. The event no
//! longer counts as a clock then, but as an attempt.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lru::LruCache;

use crate::adapters::{Set, Waiting};
use crate::decision::Published;
use crate::resource::Resource;

/// Entries kept at the most: about 100 bytes each.
pub const CAPACITY: usize = 1_000_000;

/// Our last confirmed event per resource.
pub struct InFlight {
    // Keyed by two independent hashes of the id: 16 bytes instead of a string, and no collision that matters.
    entries: LruCache<(u64, u64), Entry>,
    hashers: (RandomState, RandomState),
    capacity: usize,
    lifetime: Duration,
    evicted: u64,
    waiting: Waiting,
    /// From the event to the report that overtook it, since they were last taken.
    answered: Vec<SignedDuration>,
}

/// As [`Published`], and the adapters that did not report on the event before: flat, so that it stays small.
#[derive(Clone, Copy)]
struct Entry {
    generation: Option<i64>,
    at: Timestamp,
    attempts: u16,
    /// Whether a report has overtaken it.
    answered: bool,
    /// Whether the resource was listed since the last whole list.
    listed: bool,
    silent: Set,
}

impl Entry {
    /// The report, if it can be one of the event: not from the future, and of no older generation.
    fn report(&self, resource: &Resource<'_>, report: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        report.filter(|report| *report <= now && resource.status.observed_generation >= self.generation)
    }

    /// Whether the resource is ready and a report has overtaken the event. As a clock it is overtaken only by what is
    /// surely later: a second's beginning would make the next event early.
    fn is_over(&self, resource: &Resource<'_>, report: Option<Timestamp>, now: Timestamp) -> bool {
        self.report(resource, report, now).is_some_and(|report| report >= self.at.min(now)) && resource.status.ready
    }

    /// After the clock was set back the resource would be silent until it has caught up.
    fn published(&self, now: Timestamp) -> Published {
        Published { generation: self.generation, at: self.at.min(now), attempts: self.attempts.into() }
    }
}

impl InFlight {
    /// Remembers at most `capacity` events, each for `lifetime`: well beyond the longest max age, so that an event that
    /// is due by it keeps its id for as long as the broker stays away.
    pub fn new(capacity: usize, lifetime: Duration) -> Self {
        Self {
            entries: LruCache::unbounded(),
            hashers: (RandomState::new(), RandomState::new()),
            capacity,
            lifetime,
            evicted: 0,
            waiting: Waiting::default(),
            answered: Vec::new(),
        }
    }

    /// Remembers at most `capacity` events from here on.
    pub fn limit(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Remembers each event for so long from here on.
    pub fn keep_for(&mut self, lifetime: Duration) {
        self.lifetime = lifetime;
    }

    /// What was published for this resource, never later than `now`: an event from before the clock was set back counts
    /// from when that is seen. Forgets it once the resource is ready and a report of that very generation has overtaken
    /// the event.
    pub fn published(
        &mut self,
        resource: &Resource<'_>,
        report: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Published> {
        if self.entries.is_empty() {
            return None;
        }
        let key = self.key(&resource.id);
        let entry = self.entries.peek_mut(&key)?;
        // The clock was set back: see `Entry::published`.
        entry.at = entry.at.min(now);
        entry.listed = true;
        if let Some(report) = entry.report(resource, report, now).filter(|report| answers(*report, entry.at))
            && !std::mem::replace(&mut entry.answered, true)
        {
            self.answered.push(report.duration_since(entry.at));
        }
        let entry = *entry;
        if entry.is_over(resource, report, now) {
            self.entries.pop(&key);
            self.waiting.end(entry.silent);
            return None;
        }
        Some(entry.published(now))
    }

    /// As [`Self::published`], and changes nothing: for whoever only asks.
    pub fn peek(&self, resource: &Resource<'_>, report: Option<Timestamp>, now: Timestamp) -> Option<Published> {
        let entry = self.entries.peek(&self.key(&resource.id))?;
        (!entry.is_over(resource, report, now)).then(|| entry.published(now))
    }

    /// Forgets what is older than its lifetime: resources that are gone, or that nobody reports on.
    pub fn expire(&mut self, now: Timestamp) {
        let Ok(lifetime) = SignedDuration::try_from(self.lifetime) else { return };
        while self.entries.peek_lru().is_some_and(|(_, oldest)| now.duration_since(oldest.at) >= lifetime) {
            self.forget_oldest();
        }
    }

    /// Remembers a confirmed event, and which adapters had not reported on the one before.
    pub(crate) fn confirm(&mut self, id: &str, generation: Option<i64>, silent: Set, at: Timestamp) {
        let key = self.key(id);
        let before = self.entries.peek(&key).filter(|before| before.generation == generation);
        let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
        self.waiting.begin(silent);
        if let Some(before) =
            self.entries.put(key, Entry { generation, at, attempts, silent, answered: false, listed: true })
        {
            self.waiting.end(before.silent);
        }
        if self.entries.len() > self.capacity && self.forget_oldest() {
            self.evicted += 1;
        }
    }

    /// The list was read to its end: what it does not show waits for nobody any more.
    pub(crate) fn end_of_list(&mut self) {
        if self.waiting.resources() == 0 {
            return;
        }
        for (_, entry) in &mut self.entries {
            if !std::mem::replace(&mut entry.listed, false) {
                self.waiting.end(std::mem::take(&mut entry.silent));
            }
        }
    }

    fn forget_oldest(&mut self) -> bool {
        let oldest = self.entries.pop_lru();
        if let Some((_, oldest)) = &oldest {
            self.waiting.end(oldest.silent);
        }
        oldest.is_some()
    }

    /// What is known of resources that wait for silent adapters.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// How many events are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no event is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many entries had to go for want of room, since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// How long each report took that has overtaken an event, since the last call.
    pub fn take_answered(&mut self) -> Vec<SignedDuration> {
        std::mem::take(&mut self.answered)
    }

    fn key(&self, id: &str) -> (u64, u64) {
        (self.hashers.0.hash_one(id), self.hashers.1.hash_one(id))
    }
}

/// Whether a report came after an event; the API cuts off the fraction of a second where it projects.
fn answers(report: Timestamp, event: Timestamp) -> bool {
    report >= event || (report.subsec_nanosecond() == 0 && report.as_second() == event.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::{Roster, Said};
    use crate::decision::{Answer, MaxAge, Policy, Rules, decide};
    use crate::resource::{Labels, Status};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn resource(id: &str, observed: i64) -> Resource<'static> {
        let status = Status { ready: true, observed_generation: Some(observed), ..Status::default() };
        Resource {
            id: id.to_owned().into(),
            kind: "Cluster".into(),
            generation: Some(2),
            labels: Labels::default(),
            deleted_time: None,
            status,
        }
    }

    fn memory(capacity: usize) -> InFlight {
        let mut memory = InFlight::new(capacity, Duration::from_mins(1));
        memory.confirm("a", Some(2), Set::default(), at(100));
        memory
    }

    #[test]
    fn a_confirmed_event_is_remembered_until_a_report_passes_it() {
        let mut memory = memory(10);
        let seen = resource("a", 2);
        assert_eq!(memory.published(&seen, None, at(110)).map(|p| p.at), Some(at(100)));
        assert_eq!(memory.published(&seen, Some(at(99)), at(110)).map(|p| p.at), Some(at(100)));
        assert_eq!(memory.published(&resource("b", 2), None, at(110)), None);
        assert!(memory.take_answered().is_empty());
        assert_eq!(memory.published(&seen, Some(at(103)), at(110)), None);
        assert_eq!(memory.take_answered(), [SignedDuration::from_secs(3)]);
        assert!(memory.take_answered().is_empty(), "told once");
        assert!(memory.is_empty());
    }

    #[test]
    fn a_look_sees_the_same_and_changes_nothing() {
        for (observed, report) in [(2, None), (2, Some(at(99))), (2, Some(at(103))), (1, Some(at(103)))] {
            let (mut memory, seen) = (memory(10), resource("a", observed));
            let looked = memory.peek(&seen, report, at(110));
            assert_eq!(memory.len(), 1);
            assert_eq!(looked, memory.published(&seen, report, at(110)), "{observed} {report:?}");
        }
        assert_eq!(memory(10).peek(&resource("b", 2), None, at(110)), None);
    }

    #[test]
    fn a_lower_limit_holds_from_the_next_event_on() {
        let mut memory = memory(10);
        memory.limit(1);
        memory.confirm("b", Some(1), Set::default(), at(101));
        assert_eq!((memory.len(), memory.take_evicted()), (1, 1));
        assert!(memory.published(&resource("a", 2), None, at(110)).is_none());
    }

    #[test]
    fn a_report_of_an_older_generation_does_not_overtake_the_event_of_the_new_one() {
        let mut memory = memory(10);
        assert!(memory.published(&resource("a", 1), Some(at(105)), at(110)).is_some());
        assert_eq!((memory.len(), memory.is_empty()), (1, false));
    }

    #[test]
    fn while_a_resource_is_not_ready_its_attempts_are_counted_whether_or_not_reports_come() {
        let mut memory = memory(10);
        let attempts = |memory: &mut InFlight, ready, generation| {
            let mut resource = resource("a", generation);
            resource.status.ready = ready;
            memory.published(&resource, Some(at(500)), at(500)).map(|published| published.attempts)
        };
        memory.confirm("a", Some(2), Set::default(), at(110));
        assert_eq!(attempts(&mut memory, false, 2), Some(2));
        memory.confirm("a", Some(2), Set::default(), at(120));
        assert_eq!(attempts(&mut memory, true, 1), Some(3), "a report of an older generation ends nothing");
        assert_eq!(attempts(&mut memory, true, 2), None, "ready again");
        memory.confirm("a", Some(2), Set::default(), at(130));
        assert_eq!(attempts(&mut memory, false, 2), Some(1));
        memory.confirm("a", Some(3), Set::default(), at(140));
        assert_eq!(attempts(&mut memory, false, 3), Some(1), "another generation");
    }

    #[test]
    fn what_waits_for_a_silent_adapter_does_so_until_a_report_comes_or_its_entry_goes() {
        let mut roster = Roster::default();
        let dns = Said { adapter: "dns".to_owned(), generation: None, at: None };
        let silent = roster.enter(&[&dns], "a");
        let mut memory = InFlight::new(3, Duration::from_mins(1));
        for (index, id) in ["a", "b", "c"].into_iter().enumerate() {
            memory.confirm(id, Some(2), silent, at(100));
            memory.confirm(id, Some(2), silent, at(100));
            assert_eq!(memory.waiting().resources(), index + 1);
        }
        // Not ready: the entry stays, and so does the wait; another adapter may have reported.
        let mut reported = resource("a", 2);
        reported.status.ready = false;
        memory.published(&reported, Some(at(105)), at(110));
        assert_eq!((memory.len(), memory.waiting().resources()), (3, 3));
        memory.published(&resource("a", 2), Some(at(105)), at(110));
        assert_eq!((memory.len(), memory.waiting().resources()), (2, 2));
        memory.published(&resource("b", 2), Some(at(105)), at(110));
        assert_eq!((memory.len(), memory.waiting().resources()), (1, 1));
        memory.confirm("c", Some(2), Set::default(), at(111));
        assert_eq!(memory.waiting().resources(), 0);
        // Evicted, and expired.
        memory.confirm("d", Some(2), silent, at(112));
        for id in ["e", "f", "g"] {
            memory.confirm(id, Some(2), Set::default(), at(113));
        }
        assert_eq!(memory.waiting().resources(), 0);
        memory.confirm("h", Some(2), silent, at(114));
        memory.expire(at(300));
        assert_eq!(memory.waiting().resources(), 0);
    }

    #[test]
    fn what_a_whole_list_does_not_show_waits_for_nobody() {
        let dns = Said { adapter: "dns".to_owned(), generation: None, at: None };
        let silent = Roster::default().enter(&[&dns], "a");
        let mut memory = InFlight::new(3, Duration::from_mins(1));
        for id in ["a", "gone"] {
            memory.confirm(id, Some(2), silent, at(100));
        }
        memory.end_of_list();
        assert_eq!(memory.waiting().resources(), 2, "both were listed when their events were due");
        memory.published(&resource("a", 2), None, at(110));
        memory.end_of_list();
        assert_eq!((memory.waiting().resources(), memory.len()), (1, 2), "its event may still count");
        memory.end_of_list();
        assert_eq!(memory.waiting().resources(), 0);
    }

    #[test]
    fn an_entry_takes_about_a_hundred_bytes() {
        assert!(size_of::<Entry>() <= 40);
    }

    #[test]
    fn a_report_without_a_fraction_may_be_from_any_part_of_its_second() {
        let millis = |millis| Timestamp::from_millisecond(millis).unwrap();
        assert!(answers(millis(100_000), millis(100_000)) && answers(millis(100_000), millis(100_900)));
        assert!(!answers(millis(100_800), millis(100_900)), "it has a fraction, and that is earlier");
        assert!(!answers(millis(99_000), millis(100_000)) && answers(millis(101_000), millis(100_900)));
    }

    #[test]
    fn a_report_from_the_future_overtakes_nothing() {
        let mut memory = memory(10);
        assert!(memory.published(&resource("a", 2), Some(at(300)), at(110)).is_some());
    }

    #[test]
    fn an_event_from_before_the_clock_was_set_back_counts_from_when_it_was() {
        let mut memory = memory(10);
        let seen = resource("a", 2);
        for (now, at_) in [(40, 40), (45, 40), (110, 40)] {
            assert_eq!(memory.published(&seen, None, at(now)).map(|p| p.at), Some(at(at_)));
        }
    }

    #[test]
    fn after_the_clock_was_set_back_a_resource_is_due_one_max_age_later_under_every_policy() {
        let max_age = MaxAge { ready: Duration::from_secs(30), not_ready: Duration::from_secs(10) };
        for policy in [Policy::GenerationAware, Policy::TimeOnly, Policy::Expression(Answer::True)] {
            let mut memory = memory(10);
            let seen = resource("a", 2);
            let mut is_due = |now: i64| {
                let published = memory.published(&seen, None, at(now));
                decide(&Rules::new(policy, max_age), &seen, published, at(now)).reason.publishes()
            };
            // Published at 100; after that the clock says 40.
            assert_eq!([129, 40, 69, 70].map(&mut is_due), [false, false, false, true], "{policy:?}");
        }
    }

    #[test]
    fn an_entry_expires_with_its_lifetime() {
        let mut memory = memory(10);
        memory.confirm("b", None, Set::default(), at(101));
        memory.expire(at(159));
        assert_eq!(memory.len(), 2);
        memory.expire(at(160));
        assert_eq!(memory.len(), 1);
        assert!(memory.published(&resource("a", 2), None, at(160)).is_none());
        assert!(memory.published(&resource("b", 2), None, at(160)).is_some());
    }

    #[test]
    fn beyond_its_capacity_the_oldest_goes_and_is_counted() {
        let mut memory = memory(2);
        memory.confirm("b", None, Set::default(), at(101));
        memory.confirm("a", None, Set::default(), at(102));
        assert_eq!(memory.take_evicted(), 0);
        memory.confirm("c", None, Set::default(), at(103));
        assert_eq!((memory.len(), memory.take_evicted(), memory.take_evicted()), (2, 1, 0));
        assert_eq!(memory.published(&resource("b", 2), None, at(104)), None);
        assert!(memory.published(&resource("a", 2), None, at(104)).is_some());
    }
}
