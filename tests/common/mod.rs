//! Helpers that several integration tests share: a seeded random generator, ports, the wire, clients, server processes, requests
//! and replies as lines of words, and scenes of several clients.
#![allow(dead_code)] // each test program uses its own part of it

pub mod clients;
pub mod ports;
pub mod random;
pub mod reserved;
pub mod scenes;
pub mod servers;
pub mod talk;
pub mod wire;
