//! `portcullis torture`: tests whether a lock algorithm keeps its guarantees under faults.
//!
//! ```text
//!   seed ─▶ Plan (jobs of clients, faults) ─▶ sim: engine, network, clocks, clients ─▶ History ─▶ check ─▶ verdicts
//!              ▲                              or live: real servers behind proxies                  │
//!              └──────────── shrink: the shortest plan that still shows a violation ◀───────────────┘
//! ```
//!
//! A run consists of many episodes of some minutes. Each episode is planned from the seed and its number, so that it can be run
//! again alone. The simulated clients run the real algorithms against the real engine. Only the network, the clocks and the crashes
//! are simulated:
//!
//! - Messages go over TCP. On a connection they arrive once and in order. When packets are lost, messages are late, or the
//!   connection breaks and each side notices at some time. Commands in transit may be carried out after their client gave them
//!   up.
//! - A client that pauses does nothing; messages to it wait. A client that crashes loses its state. If its machine crashes,
//!   servers notice only later.
//! - A server that ends loses all of its data, or its last writes. For the latter, all requests before those writes are replayed
//!   into a new engine.
//! - The client library gives a reply up after a fifth of a lease and closes the connection. It resends idempotent commands, and
//!   under the fault `duplicate` other commands too.
//!
//! The guarded resource is a list on an additional server that has no faults. A write carries its fencing token, if the algorithm
//! has one, and a script checks it with `LOCK.GUARD`.
//!
//! Begin with [`plan`], then [`workload`] for what clients do and [`check`] for the properties. [`cli`] ties everything together.

pub mod check;
pub mod cli;
pub mod fault;
pub mod history;
pub mod known;
pub mod list;
pub mod live;
pub mod plan;
pub mod random;
pub mod report;
pub mod run;
pub mod shrink;
pub mod sim;
pub mod subject;
pub mod table;
pub mod traced_world;
pub mod workload;
