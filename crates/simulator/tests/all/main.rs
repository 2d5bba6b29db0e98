//! The simulator over HTTP, as its clients see it.

mod api;
mod replay;
mod support;
