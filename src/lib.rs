//! Portcullis: a Redis-compatible in-memory lock server.

pub mod commands;
pub mod engine;
pub mod resp;
pub mod script;
pub mod server;
pub mod store;
pub mod testing;

pub use testing::TestServer;
