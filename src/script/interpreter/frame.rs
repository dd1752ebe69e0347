//! What a running script can reach.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::resp::reply::Protocol;
use crate::script::fuel::counter::Fuel;

/// The state of one run.
pub(crate) struct Frame {
    /// The engine. Null while no script runs.
    pub engine: *mut Engine,
    /// The instant of the whole run.
    pub now: Now,
    /// The session that runs the script.
    pub session: SessionId,
    /// The database of its commands.
    pub db: u32,
    /// The protocol whose types the replies of its commands have (`redis.setresp`).
    pub protocol: Protocol,
    /// Whether commands that write are refused.
    pub read_only: bool,
    /// Whether commands run although `maxmemory` is exceeded.
    pub allow_oom: bool,
    /// Whether a command that writes was called.
    pub wrote: bool,
    /// Whether this is a function rather than a script.
    pub is_function: bool,
    /// In a cluster, the slot that all keys of its commands must have: that of the keys it was given, or else the first slot that a
    /// command used. `None` until then.
    pub slot: Option<u16>,
    /// Whether each of its commands may use another slot.
    pub cross_slot: bool,
    /// Whether its user may run every command. A user's rules do not change during a run.
    pub unrestricted: bool,
    /// Whether calls of commands need no checks: the user may run every command, the script may write, `maxmemory` is not set, and
    /// there is no cluster. None of these changes during a run.
    pub skips_checks: bool,
    /// Its fuel.
    pub fuel: Fuel,
}

impl Frame {
    /// The frame of a new run.
    pub(crate) fn new(engine: *mut Engine, now: Now, session: SessionId, db: u32) -> Self {
        let protocol = Protocol::Resp2;
        let fuel = Fuel::default();
        Frame {
            engine,
            now,
            session,
            db,
            protocol,
            read_only: false,
            allow_oom: false,
            wrote: false,
            is_function: false,
            slot: None,
            cross_slot: false,
            unrestricted: false,
            skips_checks: false,
            fuel,
        }
    }
}
