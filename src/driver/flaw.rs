//! Faults that a test plants in the driver, so that it shows that it finds them.

/// A fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(any(test, feature = "torture")), allow(dead_code))]
pub enum Flaw {
    /// None: the driver is as it should be.
    #[default]
    Nothing,
    /// Replies leave before their batch is settled.
    AcknowledgeEarly,
    /// A node that does not lead answers from what it has.
    FollowerAnswers,
    /// A new leader counts tokens from what its wall clock shows.
    TokenFromClock,
    /// The clock of a new leader is its own, and does not go on from the last committed time.
    LeaseNotShifted,
    /// A leader answers reads whether or not it has a lease.
    ReadsWithoutLease,
    /// A leader does not look whether its disk answers.
    HungDiskLeads,
    /// A new leader ends session grants as a server does that was restarted: it takes their connections for ended.
    SessionsEnded,
    /// A leader that is cut off leaves those waiting who wait.
    WaitersLeft,
    /// A leader that was cut off goes on leading without another election.
    AloneLeads,
    /// A node that does not lead any more keeps its libraries of functions.
    LibrariesKept,
    /// A batch that is settled opens the gates of what gathers for the next one, too.
    SettlesAhead,
    /// Writes are not refused, however much waits to be stored.
    Unbounded,
    /// A file that is switched on records changes only when its base is on the disk.
    SwitchLosesChanges,
    /// A new base lacks the last of the increments that it replaces.
    BaseLacksIncrement,
}
