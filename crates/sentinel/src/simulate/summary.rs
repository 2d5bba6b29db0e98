//! What a simulation came to.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::decision::Reason;

/// What one configuration came to.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The configuration.
    pub config: String,
    /// What to bear in mind.
    pub notes: Vec<String>,
    /// When the first poll began.
    pub from: Option<Timestamp>,
    /// When the last one ended.
    pub to: Option<Timestamp>,
    /// How often this configuration polled.
    pub polls: u64,
    /// How many events were published.
    pub events: u64,
    /// How many by each reason.
    pub by_reason: BTreeMap<&'static str, u64>,
    /// How many more the broker refused when it was recorded; they were decided again.
    pub refused: u64,
    /// Places where the recording misses something.
    pub gaps: u64,
    /// From the poll that first showed a new spec to its event; nothing without one.
    pub latency: Option<Latency>,
    /// The most events in one second.
    pub peak_second: Peak,
    /// The most events in one minute.
    pub peak_minute: Peak,
    /// How many resources had an event.
    pub resources: usize,
    /// The resources with the most events.
    pub busiest: Vec<Busiest>,
    #[serde(skip)]
    each: Vec<[u32; Reason::ALL.len()]>,
    #[serde(skip)]
    waits: Vec<SignedDuration>,
    /// The times of the events of the poll in hand: they are not told in their order.
    #[serde(skip)]
    times: Vec<Timestamp>,
}

/// How long new specs waited for their events, in seconds.
#[derive(Debug, PartialEq, Serialize)]
pub struct Latency {
    /// How many there were.
    pub count: usize,
    /// Half of them waited no longer.
    pub p50: f64,
    /// 95 of 100 waited no longer.
    pub p95: f64,
    /// None waited longer.
    pub max: f64,
}

/// The most events in a span of time of the calendar.
#[derive(Debug, Default, Serialize)]
pub struct Peak {
    /// How many.
    pub events: u64,
    /// In which span; nothing without events.
    pub at: Option<Timestamp>,
    #[serde(skip)]
    current: (i64, u64),
}

impl Peak {
    fn event(&mut self, at: Timestamp, seconds: i64) {
        let span = at.as_second().div_euclid(seconds);
        if self.current.0 != span {
            self.current = (span, 0);
        }
        self.current.1 += 1;
        if self.current.1 > self.events {
            self.events = self.current.1;
            self.at = Timestamp::from_second(span * seconds).ok();
        }
    }
}

/// A resource with many events.
#[derive(Debug, Serialize)]
pub struct Busiest {
    /// The resource.
    pub id: String,
    /// How many events are about it.
    pub events: u64,
    /// How many by each reason.
    pub by_reason: BTreeMap<&'static str, u64>,
}

impl Summary {
    pub(super) fn new(config: String) -> Self {
        Self {
            config,
            notes: Vec::new(),
            from: None,
            to: None,
            polls: 0,
            events: 0,
            by_reason: BTreeMap::new(),
            refused: 0,
            gaps: 0,
            latency: None,
            peak_second: Peak::default(),
            peak_minute: Peak::default(),
            resources: 0,
            busiest: Vec::new(),
            each: Vec::new(),
            waits: Vec::new(),
            times: Vec::new(),
        }
    }

    pub(super) fn poll(&mut self, at: Timestamp) {
        self.from.get_or_insert(at);
        self.polls += 1;
    }

    pub(super) fn until(&mut self, at: Timestamp) {
        self.to = Some(at);
        self.count();
    }

    /// Counts the events of a poll towards the peaks, in the order of time.
    fn count(&mut self) {
        self.times.sort_unstable();
        for at in self.times.drain(..) {
            self.peak_second.event(at, 1);
            self.peak_minute.event(at, 60);
        }
    }

    pub(super) fn event(&mut self, number: usize, reason: Reason, at: Timestamp, waited: Option<SignedDuration>) {
        self.events += 1;
        if number >= self.each.len() {
            self.each.resize(number + 1, [0; Reason::ALL.len()]);
        }
        self.each[number][reason as usize] += 1;
        self.waits.extend(waited);
        self.times.push(at);
    }

    pub(super) fn conclude(&mut self, top: usize, id: impl Fn(usize) -> String) {
        self.count();
        let named = |counts: &[u64]| {
            let named = Reason::ALL.into_iter().map(|reason| (reason.as_str(), counts[reason as usize]));
            named.filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()
        };
        let wide = |counts: &[u32]| counts.iter().map(|&count| u64::from(count)).collect::<Vec<_>>();
        let mut totals = vec![0; Reason::ALL.len()];
        for counts in &self.each {
            totals.iter_mut().zip(counts).for_each(|(total, &count)| *total += u64::from(count));
        }
        self.by_reason = named(&totals);
        let mut busiest: Vec<_> =
            self.each.iter().map(|counts| wide(counts).iter().sum::<u64>()).enumerate().filter(|it| it.1 > 0).collect();
        self.resources = busiest.len();
        busiest.sort_by_key(|&(number, events)| (std::cmp::Reverse(events), number));
        self.busiest = busiest
            .into_iter()
            .take(top)
            .map(|(number, events)| Busiest { id: id(number), events, by_reason: named(&wide(&self.each[number])) })
            .collect();
        self.latency = latency(std::mem::take(&mut self.waits));
    }
}

fn latency(mut waits: Vec<SignedDuration>) -> Option<Latency> {
    waits.sort_unstable();
    // The smallest wait that is not exceeded by this part of them.
    let at = |percent: usize| waits.get((waits.len() * percent).div_ceil(100).saturating_sub(1));
    let seconds = |percent| at(percent).map(SignedDuration::as_secs_f64);
    Some(Latency { count: waits.len(), p50: seconds(50)?, p95: seconds(95)?, max: seconds(100)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_wait_that_occurred() {
        let waits = |seconds: std::ops::RangeInclusive<i64>| seconds.rev().map(SignedDuration::from_secs).collect();
        assert_eq!(latency(waits(1..=100)), Some(Latency { count: 100, p50: 50.0, p95: 95.0, max: 100.0 }));
        assert_eq!(latency(waits(7..=7)), Some(Latency { count: 1, p50: 7.0, p95: 7.0, max: 7.0 }));
        assert_eq!(latency(Vec::new()), None);
    }

    #[test]
    fn a_peak_has_all_events_of_its_span_whatever_the_order_in_which_a_poll_tells_them() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut summary = Summary::new("a".to_owned());
        for second in [59, 60, 61, 58, 60] {
            summary.event(0, Reason::MaxAgeReady, at(second), None);
        }
        summary.until(at(62));
        assert_eq!((summary.peak_second.events, summary.peak_second.at), (2, Some(at(60))));
        assert_eq!((summary.peak_minute.events, summary.peak_minute.at), (3, Some(at(60))));
    }

    #[test]
    fn a_peak_is_the_fullest_span() {
        let mut peak = Peak::default();
        for second in [0, 0, 61, 62, 119, 120, 121] {
            peak.event(Timestamp::from_second(second).unwrap(), 60);
        }
        assert_eq!((peak.events, peak.at), (3, Timestamp::from_second(60).ok()));
    }
}
