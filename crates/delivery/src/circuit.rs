//! The circuit of one sink: whether to keep sending to a far side that fails.
//!
//! It opens after a run of failures that more than one event met, so that a single event that the far side chokes on
//! cannot stop the others. Once open it lets nothing out for a while, then a few events; if one is taken it closes, if
//! not it waits longer. A refusal of credentials has a shorter run, so that a rotated token does not burn the queue.
//! Pure: `now` and the random number are arguments.

use std::time::Duration;

use jiff::Timestamp;

use crate::retry::Backoff;

/// The longest that it stays open because one answer asked for it: not everything waits for a day.
const LONGEST: Duration = Duration::from_mins(5);

/// When the circuit opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Failures in a row, of at least two events.
    pub failures: u32,
    /// Refused credentials (401, 403) in a row, of at least two events.
    pub refusals: u32,
    /// How long it stays open, the first time and after each further failure.
    pub open: Backoff,
}

impl Default for Config {
    fn default() -> Self {
        let open = Backoff { max: Duration::from_secs(30), ..Backoff::default() };
        Self { failures: 5, refusals: 3, open }
    }
}

/// What went wrong, as far as the circuit minds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The far side cannot be reached, or fails.
    Down {
        /// How long it asked to be left alone.
        after: Option<Duration>,
    },
    /// The far side refuses our credentials.
    Refused,
}

/// What may be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// Everything.
    All,
    /// A few events, with nothing else under way.
    Few,
    /// Nothing before this.
    NotBefore(Timestamp),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open { since: Timestamp, until: Timestamp },
    HalfOpen,
}

/// The state of one sink's circuit.
#[derive(Debug, Clone)]
pub struct Circuit {
    config: Config,
    state: State,
    /// Failures in a row since the far side last took something, and refusals among them since the last other failure.
    failures: u32,
    refusals: u32,
    /// The event that the run began with, and whether another one met it.
    first: Option<i64>,
    several: bool,
    /// How often it opened since it was last closed.
    opened: u32,
}

impl Circuit {
    /// A closed circuit.
    pub fn new(config: Config) -> Self {
        let state = State::Closed;
        Self { config, state, failures: 0, refusals: 0, first: None, several: false, opened: 0 }
    }

    /// Says what may be sent, and half-opens when the time has come; at once where the clock was set back to before it
    /// opened: until it has caught up would be any time.
    pub fn permit(&mut self, now: Timestamp) -> Permit {
        match self.state {
            State::Open { since, until } if since <= now && now < until => Permit::NotBefore(until),
            State::Open { .. } | State::HalfOpen => {
                self.state = State::HalfOpen;
                Permit::Few
            }
            State::Closed => Permit::All,
        }
    }

    /// Until when nothing is sent, if the circuit is open.
    pub fn open_until(&self) -> Option<Timestamp> {
        match self.state {
            State::Open { until, .. } => Some(until),
            State::Closed | State::HalfOpen => None,
        }
    }

    /// Notes that the far side works, whether or not it liked the event. Returns whether it had failed long enough
    /// to be called down.
    pub fn worked(&mut self) -> bool {
        let was_down = self.is_down();
        *self = Self::new(self.config);
        was_down
    }

    /// Notes a failure of `event`. Returns whether the far side is called down with this one, and was not before.
    pub fn failed(&mut self, event: i64, failure: Failure, random: f64, now: Timestamp) -> bool {
        let was_down = self.is_down();
        self.failures = self.failures.saturating_add(1);
        self.refusals = if failure == Failure::Refused { self.refusals.saturating_add(1) } else { 0 };
        self.several |= self.first.is_some_and(|first| first != event);
        self.first = self.first.or(Some(event));
        let opens = match self.state {
            State::Closed => self.is_down() && self.several,
            State::HalfOpen => true,
            State::Open { .. } => false, // Was under way when the circuit opened.
        };
        if opens {
            let after =
                if let Failure::Down { after } = failure { after.map(|after| after.min(LONGEST)) } else { None };
            let wait = self.config.open.delay(self.opened, random, after);
            self.opened = self.opened.saturating_add(1);
            self.state = State::Open { since: now, until: now.checked_add(wait).unwrap_or(Timestamp::MAX) };
        }
        self.is_down() && !was_down
    }

    fn is_down(&self) -> bool {
        self.state != State::Closed || self.failures >= self.config.failures || self.refusals >= self.config.refusals
    }
}

#[cfg(test)]
mod tests;
