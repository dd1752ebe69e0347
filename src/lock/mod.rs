//! Native locks: holders, queues, leases, fencing tokens, and who waits for whom.
//!
//! What is here knows nothing of requests and replies, nor where locks are kept: [`Locks`] is told of the names it works on through
//! [`Keys`], and gives what others have to be told as [`Outcome`]s. `LOCKS.md` of the project's papers is the contract that it keeps.
//!
//! ```text
//!   acquire ─▶ Keys::take ─▶ Lock ─▶ granted ───────────────▶ Keys::put
//!                             │
//!                             └────▶ held ─▶ find_cycle ─▶ Queues ◀─ release, leases, connections that close, deadlines
//!                                                            └─▶ the first one is granted ─▶ Outcome
//! ```
//!
//! Times are monotonic. A lock that nobody waits for is what is kept under its name and nothing beside; there its lease is the
//! deadline of the key. Only of names that are contended, or shared, is there a queue, and a place among the deadlines here.

pub mod grant;
pub mod graph;
pub mod held;
pub mod history;
pub mod holders;
pub mod holds;
pub mod locks;
pub mod queue;
pub mod stats;
pub mod terms;

#[cfg(test)]
mod model_tests;

pub use grant::{Client, Grant, Mode};
pub use holders::{Holders, Lock};
pub use locks::Locks;
pub use locks::losing::Origin;
pub use terms::{Acquired, Found, Keys, Outcome, Refusal, Request};
