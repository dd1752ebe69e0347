//! Native locks: holders, queues, leases, fencing tokens, and the graph of who waits for whom.
//!
//! This module knows nothing of requests and replies, nor of how locks are stored: [`Locks`] reads and writes them through
//! [`Keys`], and reports results for other connections as [`Outcome`]s. `guide/native-locks.md` describes what it promises, and
//! `tests/locks` holds it to that.
//!
//! ```text
//!   acquire ─▶ Keys::take ─▶ Lock ─▶ granted ───────────────▶ Keys::put
//!                             │
//!                             └────▶ held ─▶ find_cycle ─▶ Queues ◀─ release, leases, connections that close, deadlines
//!                                                            └─▶ the first one is granted ─▶ Outcome
//! ```
//!
//! Times are monotonic. A lock without waiters is only the value of its key, and its lease is the key's deadline. Only contended
//! or shared names have a queue and an entry in the deadline set of this module.
//!
//! # Two mechanisms end leases
//!
//! ```text
//!   lease of a lock without a queue ─▶ deadline of the key ─▶ store::wheel ─▶ the key is removed       millions; 3 ns to file
//!   lease of a lock with a queue    ─┐
//!   time-out of a waiter            ─┼▶ Locks::deadlines, a BTreeSet ─▶ the queue's first is granted   as many as there are queues
//!   end of a delay or a plain key   ─┘                                                                 and waiters
//! ```
//!
//! A key's timer on the [wheel](crate::store::wheel) stays filed while the lock has a queue, but the set is due first:
//! `Engine::advance` settles it before it polls the wheel, and commands settle it before they run, so that a lease that ends is
//! passed on in the same step and no command can come in between. The set provides what the wheel does not:
//!
//! - **an exact order** at one instant: queues before waiters, waiters by their arrival, so that a lease and a time-out of the
//!   same millisecond end in the same order in every replay. The wheel orders by deadline only.
//! - **its first element**, which every command compares with `now` ([`Locks::next_ms`]); the wheel has to search for its next
//!   slot.
//! - **removal** when a queue's next event moves to an earlier instant or a waiter leaves, as most do; the wheel files a timer
//!   again when it moves to an earlier instant.
//!
//! An entry costs 0.3 to 1 µs instead of 3 to 50 ns, but an uncontended lock is never in the set.

pub mod ended_clients;
pub mod grant;
pub mod graph;
pub mod held_counts;
pub mod history;
pub mod holders;
pub mod interface;
pub mod locks;
pub mod owner_queues;
pub mod queue;
pub mod requests;
pub mod sessions;
pub mod stats;

#[cfg(test)]
mod model_tests;

pub use grant::{Bound, Client, Grant, Mode, UserKey};
pub use holders::{Holders, Lock};
pub use interface::{Acquired, AllAcquired, Claim, Found, Keys, Outcome, Refusal, Request};
pub use locks::Locks;
pub use locks::adopting::Fate;
pub use locks::losing::Deletion;

/// Budget steps for notifying the holder of a lost lock. Freeing an entry takes one step.
pub(crate) const LOST_STEPS: u32 = 4;
