//! What several integration tests share: a seeded generator of numbers, the wire, clients, servers to talk to, requests and replies as
//! lines of words, and scenes to play.
#![allow(dead_code)] // each test program uses its own part of it

pub mod clients;
pub mod random;
pub mod reserved;
pub mod scenes;
pub mod servers;
pub mod talk;
pub mod wire;
