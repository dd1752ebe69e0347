//! Native locks, semaphores, latches and guarded resources.
//!
//! ```text
//!   Lock, LockAll, Semaphore ─▶ LockRequest ─▶ acquire ─▶ Held ─▶ LockGuard
//!                                                          └─ renews every third of the lease, detects the loss
//! ```
//!
//! `lock` holds the builders. `request` makes the commands. `acquire` is one acquisition, including what happens when its
//! connection breaks or its caller goes away. `held` is a lock while it is held, and `guard` is the caller's side of it. `holds`
//! counts the guards of an owner that the caller has named.

pub(crate) mod acquire;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod holds;
pub(crate) mod latch;
pub(crate) mod lock;
pub(crate) mod request;
pub(crate) mod resource;
pub(crate) mod semaphore;
