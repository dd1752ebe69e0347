//! What several integration tests share: a seeded generator of numbers, the wire, and servers to talk to.
#![allow(dead_code)] // each test program uses its own part of it

pub mod random;
pub mod servers;
pub mod wire;
