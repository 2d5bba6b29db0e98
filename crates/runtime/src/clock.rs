//! The one place that reads the wall clock.
//!
//! Loops read the time here, once per unit of work, and hand it to decisions as an argument.

use jiff::Timestamp;

/// Returns the current wall-clock time.
#[expect(clippy::disallowed_methods, reason = "this is the replacement that the ban names")]
pub fn now() -> Timestamp {
    Timestamp::now()
}
