//! The sentinel against a simulated API and real brokers, and its templates against Go.

mod api;
mod cycle;
mod families;
mod far;
mod feedback;
mod integration;
mod outage;
mod pace;
mod paging;
mod refusals;
mod shards;
mod support;
mod template_go;
mod wire;
