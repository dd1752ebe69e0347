//! What the engine tells of itself: counters, slow log, latency, MONITOR, and the time that commands take.
//!
//! Begin at [`stats`] for INFO's counters and at [`timing`] for how requests are timed.

pub mod client_line;
pub mod command_stats;
pub mod figures;
pub mod latency;
pub mod monitor;
pub mod redact;
pub mod slowlog;
pub mod stats;
pub mod timing;
pub mod turns;
