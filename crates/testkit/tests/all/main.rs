//! The test tools tested: a proxy that does not cut or a receiver that does not record would make other tests lie.

mod brokers;
mod proxy;
mod receiver;
