//! Polls a HyperFleet API, decides per resource whether it is due, and publishes reconcile events.
