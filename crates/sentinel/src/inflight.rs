//! Remembers our own confirmed events until a report overtakes them.
//!
//! Memory only: after a restart what has no report yet is sent once more, under the same id. Bounded: beyond its
//! capacity the oldest entry goes, which costs at most one early event for that resource.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lru::LruCache;

use crate::decision::Published;
use crate::resource::Resource;

/// Entries kept at the most: about 100 bytes each.
pub const CAPACITY: usize = 1_000_000;

/// Our last confirmed event per resource.
pub struct InFlight {
    // Keyed by two independent hashes of the id: 16 bytes instead of a string, and no collision that matters.
    entries: LruCache<(u64, u64), Published>,
    hashers: (RandomState, RandomState),
    capacity: usize,
    lifetime: Duration,
    evicted: u64,
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
        }
    }

    /// Remembers at most `capacity` events from here on.
    pub fn limit(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// What was published for this resource; forgets it if a report of that very generation has overtaken it.
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
        let published = self.entries.peek_mut(&key)?;
        // After the clock was set back the resource would be silent until it has caught up.
        published.at = published.at.min(now);
        let published = *published;
        let overtaken = report.is_some_and(|report| report >= published.at && report <= now)
            && resource.status.observed_generation >= published.generation;
        if overtaken {
            self.entries.pop(&key);
            return None;
        }
        Some(published)
    }

    /// Forgets what is older than its lifetime: resources that are gone, or that nobody reports on.
    pub fn expire(&mut self, now: Timestamp) {
        let Ok(lifetime) = SignedDuration::try_from(self.lifetime) else { return };
        while self.entries.peek_lru().is_some_and(|(_, oldest)| now.duration_since(oldest.at) >= lifetime) {
            self.entries.pop_lru();
        }
    }

    /// Remembers a confirmed event.
    pub fn confirm(&mut self, id: &str, published: Published) {
        let key = self.key(id);
        self.entries.put(key, published);
        if self.entries.len() > self.capacity && self.entries.pop_lru().is_some() {
            self.evicted += 1;
        }
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

    fn key(&self, id: &str) -> (u64, u64) {
        (self.hashers.0.hash_one(id), self.hashers.1.hash_one(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Labels, Status};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn resource(id: &str, observed: i64) -> Resource<'static> {
        Resource {
            id: id.to_owned().into(),
            kind: "Cluster".into(),
            generation: Some(2),
            labels: Labels::default(),
            status: Status { observed_generation: Some(observed), ..Status::default() },
        }
    }

    fn memory(capacity: usize) -> InFlight {
        let mut memory = InFlight::new(capacity, Duration::from_mins(1));
        memory.confirm("a", Published { generation: Some(2), at: at(100) });
        memory
    }

    #[test]
    fn a_confirmed_event_is_remembered_until_a_report_passes_it() {
        let mut memory = memory(10);
        let seen = resource("a", 2);
        assert_eq!(memory.published(&seen, None, at(110)).map(|p| p.at), Some(at(100)));
        assert_eq!(memory.published(&seen, Some(at(99)), at(110)).map(|p| p.at), Some(at(100)));
        assert_eq!(memory.published(&resource("b", 2), None, at(110)), None);
        assert_eq!(memory.published(&seen, Some(at(100)), at(110)), None);
        assert!(memory.is_empty());
    }

    #[test]
    fn a_report_of_an_older_generation_does_not_overtake_the_event_of_the_new_one() {
        let mut memory = memory(10);
        assert!(memory.published(&resource("a", 1), Some(at(105)), at(110)).is_some());
        assert_eq!((memory.len(), memory.is_empty()), (1, false));
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
    fn an_entry_expires_with_its_lifetime() {
        let mut memory = memory(10);
        memory.confirm("b", Published { generation: None, at: at(101) });
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
        memory.confirm("b", Published { generation: None, at: at(101) });
        memory.confirm("a", Published { generation: None, at: at(102) });
        assert_eq!(memory.take_evicted(), 0);
        memory.confirm("c", Published { generation: None, at: at(103) });
        assert_eq!((memory.len(), memory.take_evicted(), memory.take_evicted()), (2, 1, 0));
        assert_eq!(memory.published(&resource("b", 2), None, at(104)), None);
        assert!(memory.published(&resource("a", 2), None, at(104)).is_some());
    }
}
