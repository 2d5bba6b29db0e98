//! The binary as its users meet it: started, watched, signalled, killed.

mod config;
mod demo;
mod sentinel;
mod support;
mod view;
