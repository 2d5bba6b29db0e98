//! The retry policy: what an answer means, and when to try again.

use std::time::Duration;

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

/// Says what an HTTP status means for the event that got it.
pub fn classify(status: u16, retry_after: Option<Duration>) -> Verdict {
    match status {
        401 | 403 => Verdict::Provisional,
        410 => Verdict::Pause,
        408 | 425 | 429 | 500.. => Verdict::Retry { after: retry_after },
        _ => Verdict::Permanent,
    }
}
