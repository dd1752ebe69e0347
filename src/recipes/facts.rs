//! What to know about an algorithm before using it. `ALGORITHMS.md` is generated from the facts of all algorithms.

/// Facts about an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The algorithm's number in the list of [`crate::recipes`]. Variants of an algorithm have the same number.
    pub number: u8,
    /// A short name that selects it, such as `set-nx-px`.
    pub name: &'static str,
    /// A one-line summary.
    pub summary: &'static str,
    /// Its guarantees.
    pub guarantees: &'static [&'static str],
    /// Its failure modes.
    pub failures: &'static [&'static str],
    /// Whether it is here to show its flaws, and not for use.
    pub flawed: bool,
    /// Its origin.
    pub source: &'static str,
    /// Maximum number of concurrent holders: 1 for a mutex, `None` if it is a setting.
    pub holders: Option<u32>,
    /// Whether an owner can acquire the lock again while it holds it.
    pub reentrant: bool,
    /// Whether a grant ends by itself when its lease is over.
    pub expires: bool,
    /// Whether [`Algorithm::renew`](crate::recipes::Algorithm::renew) can restart the lease.
    pub renews: bool,
    /// Whether the lock can be shared.
    pub shared: bool,
    /// Whether its grants come with fencing tokens.
    pub fenced: bool,
    /// Whether it needs native locks, which only this crate's server has.
    pub native: bool,
    /// Whether a grant also ends when a server sees the end of its connection.
    pub session: bool,
}

impl Facts {
    /// A mutex that expires and can do nothing else. The facts of an algorithm name what differs.
    pub(crate) const MUTEX: Facts = Facts {
        number: 0,
        name: "",
        summary: "",
        guarantees: &[],
        failures: &[],
        flawed: false,
        source: "",
        holders: Some(1),
        reentrant: false,
        expires: true,
        renews: false,
        shared: false,
        fenced: false,
        native: false,
        session: false,
    };
}

// Guarantees that several algorithms have.

pub(crate) const ONE_HOLDER: &str = "the server grants the lock to at most one holder at a time, as long as it keeps its data";
pub(crate) const ONE_HOLDER_WITHIN_LEASE: &str = "at most one holder at a time, as long as no holder exceeds its lease";
pub(crate) const OWNER_CHECKED: &str = "only the owner can release or renew the lock";
pub(crate) const REENTRANT: &str = "the owner can acquire the lock again, and has to release it as many times";
pub(crate) const ENDS_WITH_LEASE: &str = "the lock ends with its lease, whatever happens to the holder";

// Failure modes that several algorithms have.

pub(crate) const PAUSED_HOLDER: &str =
    "a holder that pauses beyond its lease continues beside the next holder: only a fencing token would help, and there is none";
pub(crate) const PAUSED_HOLDER_FENCED: &str =
    "a holder that pauses beyond its lease continues beside the next holder, and does harm where the store checks no tokens";
pub(crate) const FAILOVER: &str = "a failover to a replica, or a restart that loses the last writes, loses the lock";
pub(crate) const SLOW_HOLDER_DELETES: &str = "a holder that exceeds its lease deletes the lock of the next holder";
pub(crate) const NO_OWNER: &str = "no owner check: any client's DEL frees the lock";
pub(crate) const SHORTER_LEASE: &str =
    "acquired again for a shorter lease, the lock ends with that lease, although the first acquisition was granted a longer one";
pub(crate) const POLLING: &str = "waiters poll, and are served in no particular order";
pub(crate) const WAKES_ALL: &str = "each release wakes all waiters, which are served in no particular order";
