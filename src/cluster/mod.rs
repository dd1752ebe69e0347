//! `portcullis cluster`: operates a cluster of replicated servers.
//!
//! ```text
//!   cli ─┬─ try ────────────────────▶ trial ─▶ processes: three servers as child processes
//!        ├─ secret ─────────────────▶ secret: random, for --cluster-secret
//!        ├─ status ─▶ survey ───────▶ NODE STATUS of every node ─▶ table, JSON
//!        ├─ add, remove, handover ──▶ change: NODE ADD, REMOVE, HANDOVER at the leader
//!        └─ recover ────────────────▶ recover: the folder of a stopped node
//! ```
//!
//! `status` and what changes the members are clients of running servers. What they do can be done with any client of Redis, by the command `NODE`.

mod change;
pub mod cli;
pub(crate) mod processes;
mod recover;
mod secret;
mod status;
pub(crate) mod survey;
mod trial;
