//! Lock algorithms on the client's side, from `SETNX` to RedLock, over any server that speaks the Redis protocol.
//!
//! An [`Algorithm`] is one way to take a lock and to give it back. It reaches servers, clocks, sleep and chance through a [`World`] only, so
//! that the same code runs over sockets and in a simulation on virtual time.

mod algorithm;
mod world;

pub use algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, Retry};
pub use world::{Messages, World};
