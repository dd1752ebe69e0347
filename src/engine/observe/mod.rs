//! Observability: counters, slow log, latency, MONITOR, and the time that commands take.
//!
//! Start with [`stats`] for INFO's counters and with [`timing`] for how requests are timed.

pub mod client_line;
pub mod command_stats;
pub mod diagnosis;
pub mod figures;
pub mod histogram;
pub mod latency;
pub mod measure;
pub mod monitor;
pub mod notices;
pub mod redact;
pub mod slowlog;
pub mod stats;
mod tell;
pub mod timing;
pub mod turns;
