//! A replicated service in the simulation: openraft, its storage, its transport, the engine and what a leader and a follower do
//! are the real ones. The network between the nodes, their disks and their clocks are simulated.
//!
//! ```text
//!   clients ─▶ sim/server.rs ─▶ engine ─▶ node: batches ─▶ openraft ─▶ store ─▶ disk
//!                  ▲ gate                     ▲  │ tasks of runtime       ▲ Event::Synced
//!                  └──────── machine ◀────────┘  └─▶ sockets ─▶ links ─▶ Event::Arrives ─▶ the other nodes
//! ```
//!
//! - [`cluster`]: what the nodes share;
//! - [`runtime`]: tasks, time and random numbers of the nodes; each node has a clock of its own that may run fast or slow;
//! - [`sockets`]: what nodes reach each other by; [`links`]: whether and when what they send arrives; [`voting`]: tells of votes;
//! - [`disk`]: a disk that the parts of a node share; [`damage`]: what happens to its files while a node is down; [`foreign`]: the
//!   files of a node of another cluster;
//! - [`machine`]: what openraft asks of the server;
//! - [`node`]: one node with its process; [`serve`]: what makes a server of it;
//! - [`operator`]: who removes members and adds them again;
//! - [`play`]: their part in an episode.
//!
//! An episode has one thread. Whatever happens follows from the plan.

pub mod cluster;
pub mod damage;
pub mod disk;
pub mod foreign;
pub mod links;
pub mod machine;
pub mod node;
pub mod operator;
pub mod play;
pub mod runtime;
pub mod serve;
pub mod sockets;
pub mod voting;

use crate::driver;
use crate::quorum::node::Timing;
use crate::quorum::store::Planted;

/// By how much the times of simulated nodes are longer than those of a server, so that a simulated hour has fewer events: a failover
/// takes some seconds.
const SLOWER: u64 = 6;
/// Interval at which a leader has its time committed if nothing else is, in milliseconds.
pub const TICK_MS: u64 = SLOWER * crate::server::replicated::TICK_MS;

/// Times of the simulated nodes. Snapshots come often.
pub fn timing() -> Timing {
    let Timing { heartbeat_ms, election_ms: (least, most), .. } = Timing::default();
    let election_ms = (SLOWER * least, SLOWER * most);
    Timing { heartbeat_ms: SLOWER * heartbeat_ms, election_ms, snapshot_entries: 400, kept_entries: 50, lag_entries_max: 200 }
}

named! {
    /// A fault that is planted in the nodes, so that tests show that they find it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Flaw in ALL {
        /// None: the nodes are as they should be.
        #[default]
        Nothing = "",
        /// Replies leave the leader before their batch is on a majority.
        AcknowledgeBeforeMajority = "early-reply",
        /// A node that does not lead answers from what it has.
        FollowerAnswers = "follower-answers",
        /// A new leader counts tokens from what its wall clock shows.
        TokenFromClock = "token-from-clock",
        /// A vote is not synced.
        VoteNotSynced = "unsynced-vote",
        /// The clock of a new leader is its own, and does not go on from the last committed time.
        LeaseNotShifted = "unshifted-lease",
        /// A leader answers reads whether or not it has a lease.
        ReadsWithoutLease = "unleased-read",
        /// Entries and votes are taken for durable though the disk has refused them.
        WriteErrorIgnored = "ignored-write-error",
        /// A node does not look at the checksums in its log when it starts.
        LogUnchecked = "unchecked-log",
        /// A node whose log was cut votes as if it had forgotten nothing.
        CutVotes = "cut-votes",
        /// A new leader ends session grants as a server does that was restarted: it takes their connections for ended.
        SessionsEnded = "ended-sessions",
        /// A leader that is cut off leaves those waiting who wait.
        WaitersLeft = "left-waiters",
        /// A leader that was cut off goes on leading without another election.
        AloneLeads = "alone-leads",
        /// A leader does not look whether its disk answers.
        HungDiskLeads = "hung-disk-leads",
        /// Nodes do not look at the ids of clusters.
        AnyCluster = "any-cluster",
        /// A node that does not lead any more keeps its libraries of functions.
        LibrariesKept = "kept-libraries",
    }
}

impl Flaw {
    /// The fault of the driver that this one is.
    fn of_driver(self) -> driver::flaw::Flaw {
        use driver::flaw::Flaw as Driver;
        match self {
            Flaw::AcknowledgeBeforeMajority => Driver::AcknowledgeEarly,
            Flaw::FollowerAnswers => Driver::FollowerAnswers,
            Flaw::TokenFromClock => Driver::TokenFromClock,
            Flaw::LeaseNotShifted => Driver::LeaseNotShifted,
            Flaw::ReadsWithoutLease => Driver::ReadsWithoutLease,
            Flaw::HungDiskLeads => Driver::HungDiskLeads,
            Flaw::SessionsEnded => Driver::SessionsEnded,
            Flaw::WaitersLeft => Driver::WaitersLeft,
            Flaw::AloneLeads => Driver::AloneLeads,
            Flaw::LibrariesKept => Driver::LibrariesKept,
            Flaw::Nothing
            | Flaw::VoteNotSynced
            | Flaw::WriteErrorIgnored
            | Flaw::LogUnchecked
            | Flaw::CutVotes
            | Flaw::AnyCluster => Driver::Nothing,
        }
    }

    /// The fault of the log that this one is.
    fn of_store(self) -> Planted {
        match self {
            Flaw::VoteNotSynced => Planted::VoteNotSynced,
            Flaw::WriteErrorIgnored => Planted::WriteErrorIgnored,
            Flaw::LogUnchecked => Planted::NoChecksum,
            Flaw::CutVotes => Planted::CutNotMarked,
            _ => Planted::Nothing,
        }
    }
}
