//! The binary as its users meet it: started, watched, signalled, killed.

mod demo;

mod support;
mod view;
