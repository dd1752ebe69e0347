//! How algorithms wait for a lock.
//!
//! [`poll`] repeats attempts after pauses. [`messages`] repeats them when a message arrives. [`retry`] decides how long to pause
//! and when to give up. [`race`] has the combinators of futures that all of them need, without a runtime.

pub(crate) mod messages;
pub(crate) mod poll;
pub(crate) mod race;
pub(crate) mod retry;
