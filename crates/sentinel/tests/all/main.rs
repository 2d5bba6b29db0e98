//! The sentinel against a simulated API and real brokers.

mod api;
mod cycle;
mod paging;
mod support;
