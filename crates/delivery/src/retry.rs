//! The retry policy: what an answer means, and when to try again.
//!
//! Everything here takes values and returns values: the random number and `now` are arguments.

use std::time::{Duration, UNIX_EPOCH};

use jiff::Timestamp;

/// The longest `Retry-After` that is honoured as asked; a far side that asks for more is tried after this.
pub const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

/// What to do with an event after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Try again, not before `after` if the far side asked for it.
    Retry {
        /// The far side's `Retry-After`.
        after: Option<Duration>,
    },
    /// Trying again cannot help.
    Permanent,
    /// 401 and 403: permanent only once the endpoint accepts another event with the same credentials.
    Provisional,
    /// 410: the endpoint is gone; the whole sink pauses.
    Pause,
}

/// Says whether an HTTP status means that the far side has taken the event.
pub fn is_delivered(status: u16) -> bool {
    matches!(status, 200..=299)
}

/// Says what an HTTP status that is not a success means for the event that got it.
///
/// Redirects are permanent: they are never followed, since where they lead was not configured.
pub fn classify(status: u16, retry_after: Option<Duration>) -> Verdict {
    match status {
        401 | 403 => Verdict::Provisional,
        410 => Verdict::Pause,
        408 | 425 | 429 | 500.. => Verdict::Retry { after: retry_after },
        _ => Verdict::Permanent,
    }
}

/// Reads a `Retry-After` header: seconds or an HTTP date. `None` when it is neither.
pub fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit are a very long time.
        return Some(value.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs).min(MAX_RETRY_AFTER));
    }
    let date = httpdate::parse_http_date(value).ok()?.duration_since(UNIX_EPOCH).ok()?;
    let now = Duration::from_millis(u64::try_from(now.as_millisecond()).unwrap_or_default());
    Some(date.saturating_sub(now).min(MAX_RETRY_AFTER))
}

/// How long to wait between attempts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub initial: Duration,
    /// The longest wait, before jitter.
    pub max: Duration,
    /// What each further failure multiplies the wait with.
    pub multiplier: f64,
    /// The share of the wait, 0 to 1, by which it is moved at random, up or down.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), max: Duration::from_mins(5), multiplier: 2.0, jitter: 0.1 }
    }
}

impl Backoff {
    /// Computes `min(initial x multiplier^attempt, max)`, moved by the jitter that `random` (0 to 1) picks, and never
    /// less than `after`. `attempt` counts the failures before this one.
    ///
    /// A multiplier below 1 and numbers that are not numbers count as 1, so that waits never shrink.
    pub fn delay(&self, attempt: u32, random: f64, after: Option<Duration>) -> Duration {
        let exponent = i32::try_from(attempt).unwrap_or(i32::MAX);
        let factor = self.multiplier.max(1.0).powi(exponent);
        let grown = (self.initial.as_secs_f64() * factor).min(self.max.as_secs_f64());
        let moved = grown * (1.0 + self.jitter.clamp(0.0, 1.0) * (2.0 * random.clamp(0.0, 1.0) - 1.0));
        let wait = Duration::try_from_secs_f64(moved).unwrap_or(self.max);
        wait.max(after.unwrap_or_default().min(MAX_RETRY_AFTER))
    }
}

#[cfg(test)]
mod tests;
