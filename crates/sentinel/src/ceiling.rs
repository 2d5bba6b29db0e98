//! Holds events back, so that no more than so many go out in a second.
//!
//! There is one for a process: what shares it shares the rate. A turn is for a whole window, and turns are given in the
//! order in which they were asked for; windows are a tenth of a second's worth, so that a broker still gets many events
//! at once. Nothing is saved up: after a pause the rate is what it was.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Windows in a second: few enough to be worth their round trips, and enough that none is a burst.
const WINDOWS: u32 = 10;

/// The most events in a second, over all that share it.
#[derive(Debug)]
pub struct Ceiling {
    per_second: NonZeroU32,
    /// When the next turn may begin.
    free: Mutex<Option<Instant>>,
}

impl Ceiling {
    /// Lets this many events through in a second.
    pub fn new(per_second: NonZeroU32) -> Self {
        Self { per_second, free: Mutex::default() }
    }

    /// The lowest of several ceilings, for sentinels that share a process.
    pub fn lowest(each: impl IntoIterator<Item = Option<NonZeroU32>>) -> Option<Self> {
        each.into_iter().flatten().min().map(Self::new)
    }

    /// How many events go out in one turn.
    pub(crate) fn window(&self) -> usize {
        (self.per_second.get() / WINDOWS).max(1) as usize
    }

    /// Waits until so many events may go out; returns how long that was.
    pub(crate) async fn turn(&self, events: usize) -> Duration {
        let now = Instant::now();
        let begin = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = free.map_or(now, |free| free.max(now));
            *free = Some(begin + Duration::from_secs(events as u64) / self.per_second.get());
            begin
        };
        sleep_until(begin).await;
        begin - now
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    fn ceiling(per_second: u32) -> Ceiling {
        Ceiling::new(NonZeroU32::new(per_second).unwrap())
    }

    #[test]
    fn a_window_is_a_tenth_of_a_second_and_one_event_at_least() {
        assert_eq!([1, 9, 19, 20, 10_000].map(|rate| ceiling(rate).window()), [1, 1, 1, 2, 1000]);
    }

    #[test]
    fn those_who_share_a_process_share_the_lowest() {
        let lowest = Ceiling::lowest([None, NonZeroU32::new(50), NonZeroU32::new(20)]).unwrap();
        assert_eq!(lowest.per_second.get(), 20);
        assert!(Ceiling::lowest([None, None]).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn turns_come_at_the_rate_and_the_first_at_once() {
        let ceiling = ceiling(100);
        let mut waits = Vec::new();
        for events in [10, 10, 5, 10] {
            waits.push(ceiling.turn(events).await.as_millis());
        }
        assert_eq!(waits, [0, 100, 100, 50]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_saves_nothing_up() {
        let ceiling = ceiling(100);
        ceiling.turn(10).await;
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(ceiling.turn(10).await, Duration::ZERO);
        assert_eq!(ceiling.turn(10).await, Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_share_it_together_keep_below_it() {
        let ceiling = ceiling(50);
        let begun = Instant::now();
        let one = async || {
            for _ in 0..20 {
                ceiling.turn(5).await;
            }
        };
        join_all([one(), one(), one()]).await;
        // 300 events, the first window of which waits for nothing.
        assert_eq!(begun.elapsed(), Duration::from_millis(5900));
    }
}
