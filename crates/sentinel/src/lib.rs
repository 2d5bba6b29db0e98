//! Polls a HyperFleet API, decides per resource whether it is due, and publishes reconcile events.

pub mod payload;
pub mod template;
