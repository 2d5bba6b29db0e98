//! The sentinel against a simulated API and real brokers, and its templates against Go.

mod api;
mod cycle;
mod paging;
mod support;
mod template_go;
