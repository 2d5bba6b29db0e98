//! A process's life: configuration, supervised tasks and shutdown, the admin server, telemetry.
//!
//! Everything here is shared by all services and knows nothing about any of them.

pub mod clock;
