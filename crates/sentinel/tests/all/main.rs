//! The sentinel against a simulated API and real brokers, and its templates against Go.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "in a test, what cannot go on is the failure to report")]

mod api;
mod at_scale;
mod corpus;
mod cycle;
mod expression_go;
mod families;
mod far;
mod feedback;
mod feeds;
mod forms;
mod integration;
mod outage;
mod pace;
mod paging;
mod refusals;
mod replay;
mod shards;
mod support;
mod template_go;
mod watching;
mod wire;
