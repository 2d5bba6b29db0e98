//! The sentinel against a simulated API and real brokers, and its templates against Go.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "in a test, what cannot go on is the failure to report")]

mod api;
mod cycle;
mod paging;
mod support;
mod template_go;
