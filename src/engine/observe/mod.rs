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

use crate::base::rate::Rates;
use crate::base::time::Now;
use crate::engine::observe::command_stats::CommandStats;
use crate::engine::observe::latency::Latency;
use crate::engine::observe::notices::Notices;
use crate::engine::observe::slowlog::SlowLog;
use crate::engine::observe::stats::Stats;
use crate::engine::observe::timing::Timing;
use crate::engine::observe::turns::Turns;

/// What the engine counts, times and remembers of its own work.
pub(super) struct Diagnosis {
    /// Counters of `INFO`.
    pub(super) stats: Stats,
    /// Calls, failures and times of each command.
    pub(super) command_stats: CommandStats,
    /// The last slow requests (`SLOWLOG`).
    pub(super) slowlog: SlowLog,
    /// How much of each kind the log was told.
    pub(super) notices: Notices,
    /// Latency events (`LATENCY`).
    pub(super) latency: Latency,
    /// Times requests.
    pub(super) timing: Timing,
    /// Times the executor's turns: stretches of work during which no other session is served.
    pub(super) turns: Turns,
    /// Rates of commands, bytes read, bytes written, rounds of the event loop and their microseconds, for `INFO`.
    pub(super) rates: Rates<5>,
    /// Whether the memories of diagnosis have more than their budget, and go on to forget.
    pub(super) exceeds: bool,
}

impl Diagnosis {
    /// Nothing has happened yet.
    pub(super) fn new(now: Now) -> Diagnosis {
        Diagnosis {
            stats: Stats::default(),
            command_stats: CommandStats::default(),
            slowlog: SlowLog::default(),
            notices: Notices::default(),
            latency: Latency::default(),
            timing: Timing::default(),
            turns: Turns::default(),
            rates: Rates::new(now.mono_us()),
            exceeds: false,
        }
    }
}
