//! `portcullis torture`: whether a lock algorithm keeps its promises when things go wrong.
//!
//! ```text
//!   seed ─▶ Plan (who wants what and when, what goes wrong) ─▶ sim: engine, network, clocks, clients ─▶ History ─▶ check ─▶ verdicts
//!              ▲                                               or live: real servers behind proxies                  │
//!              └─────────────── shrink: the shortest plan that still shows it ◀──────────────────────────────────────┘
//! ```
//!
//! A run is many episodes of some minutes, each planned from the seed and its number, so that each can be run again by itself. The simulated
//! clients run the real recipes against the real engine; only the network, the clocks and the crashes are made up:
//!
//! - Messages go over TCP: in order and once on a connection, late when packets are lost, or the connection breaks and each side notices some
//!   time. Commands that were on their way may be carried out after their client has given them up.
//! - A client that pauses does nothing; what is sent to it waits. A client that crashes loses all it knew. Where its machine crashes, servers
//!   notice only later.
//! - A server that ends loses everything, or its last writes: it is brought back to what it was before them by doing all before them again.
//! - The client's library gives a reply up after a fifth of a lease and closes the connection, sends idempotent commands again, and others where
//!   that is what goes wrong.
//!
//! The guarded resource is a list on one more server, which nothing happens to. A write goes there with its fencing token, if the algorithm has
//! one, by `LOCK.GUARD` in a script.

pub mod arena;
pub mod check;
pub mod cli;
pub mod history;
pub mod known;
pub mod live;
pub mod plan;
pub mod random;
pub mod report;
pub mod run;
pub mod shrink;
pub mod sim;
pub mod subject;
pub mod table;
pub mod timeline;
pub mod workload;
