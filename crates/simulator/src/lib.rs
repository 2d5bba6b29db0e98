//! A HyperFleet API with true aggregation, and adapters with faults, for the demo, the tests and the benches.
//!
//! [`Simulator`] is the state; [`Server`] serves it over HTTP; an [`Adapter`] consumes events and reports. Nothing here
//! spawns a task: every `run` is a future for the caller's supervisor.

pub mod adapter;
pub mod aggregation;
mod api;
pub mod dialect;
pub mod faults;
mod fleet;
mod input;
pub mod kind;
pub mod problem;
pub mod resource;
pub mod search;
mod server;
mod simulator;
mod synthetic;
mod table;
mod view;

/// The examples of the guide, which are compiled and run with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/simulator.md")]
struct Guide;

pub use adapter::{Adapter, AdapterConfig, Knobs};
pub use dialect::Dialect;
pub use faults::{Fault, FaultBody, Scope, Times};
pub use fleet::{Change, Deleted, Reported, What};
pub use input::{NewCondition, NewReport, NewResource, Patch};
pub use kind::Kind;
pub use problem::Problem;
pub use resource::{Condition, Report, Resource, Status};
pub use server::Server;
pub use simulator::{Counts, Simulator};
pub use synthetic::FleetState;
