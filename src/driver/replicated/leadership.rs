//! What a node decides as leader and as follower, beside its engine: which committed batches are its own, how long it certainly
//! leads, when it is cut off, and what a change of leaders makes of it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::gate::{BatchNumber, CommitGate, Executed};
use crate::driver::replay::Purpose;
use crate::driver::replicated::clock::moment_of;
use crate::driver::replicated::follower::Follower;
use crate::driver::replicated::leading::Leading;
use crate::engine::Engine;
use crate::engine::replication::Role;
use crate::engine::session::SessionFlags;
use crate::persist::append::batch::HEADER;
use crate::quorum::node::{Applied, Committed, Status};
use crate::quorum::store::DiskNow;
use crate::quorum::types::{Batch, ClusterTime, LeaderId, NodeId, Origin};

/// Number of leases without contact to a majority after which a leader tells its clients so.
const LEASES_ALONE: u32 = 3;

/// Number of leases for which the disk of a leader may not answer before it hands over: about an election time-out.
const LEASES_HANGING: u32 = 4;
/// Number of leases after which it steps down, if no other node could take over; and after which a leader tells its clients so if
/// the others answer and store nothing.
const STEP_DOWN_LEASES: u32 = 9;

/// Whether a disk does not answer whose oldest operation is not done for so long. `lease_max` is the length of a whole lease.
pub fn hangs(busy: Duration, lease_max: Duration) -> bool {
    busy > lease_max * LEASES_HANGING
}

/// Of the nodes that could lead instead of node `me`, because they vote and answer: the wanted one, or else the one that has most
/// of the log. If a disk hangs, it is not known which one: `stored` asks for a node that has stored all that is committed.
pub fn successor(
    status: &Status,
    me: NodeId,
    wanted: Option<NodeId>,
    stored: bool,
    answers: impl Fn(NodeId) -> bool,
) -> Option<NodeId> {
    let voters = status.members.keys().copied().filter(|id| *id != me && !status.learners.contains(id));
    let has_all = |id: &NodeId| !stored || status.matched.get(id).is_some_and(|index| *index >= status.committed);
    let mut successors = voters.filter(|id| answers(*id)).filter(has_all);
    match wanted {
        Some(wanted) => successors.find(|id| *id == wanted),
        None => successors.max_by_key(|id| status.matched.get(id).copied()),
    }
}

/// What a leader does about its own disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskStep {
    /// Nothing.
    Stay,
    /// It hands the leadership over if another node can lead.
    HandOver,
}

/// What this node does for the cluster.
pub enum NodeState {
    /// It applies what is committed.
    Follows(Box<Follower>),
    /// It executes requests.
    Leads(Box<Leading>),
    /// It has dropped its state, and is given it again with the next entry.
    Empty,
}

/// What committed entries were to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCommitted {
    /// Whether they are applied.
    pub applied: Applied,
    /// The last of this leader's own batches among them.
    pub settled: Option<BatchNumber>,
    /// The position in the leader's log behind that last one.
    pub position: u64,
    /// The index of that last one in the nodes' log.
    pub index: u64,
    /// Bytes of its own batches among them.
    pub bytes: u64,
    /// When that last one was proposed, in nanoseconds of the monotonic clock.
    pub since_ns: Option<u64>,
    /// Whether another leader's batch is among them: this one does not lead any more.
    pub foreign: bool,
}

/// What a change of leaders asks of this node, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleChange {
    /// It ceases to lead.
    pub ceases: bool,
    /// It begins to lead.
    pub begins: Option<LeaderId>,
}

impl NodeState {
    /// What clients are shown of node `me`, if the cluster's leader is `leader` as far as it knows. `was_alone`: it has led,
    /// reached no majority, and known no leader since.
    pub fn role(&self, me: NodeId, leader: Option<NodeId>, was_alone: bool) -> Role {
        match (self, leader) {
            (NodeState::Leads(leading), _) if leading.leadership.alone => Role::NoQuorum,
            (NodeState::Leads(_), _) => Role::Leader,
            (_, None) if was_alone => Role::NoQuorum,
            _ => Role::Follower { leader: leader.filter(|leader| *leader != me) },
        }
    }

    /// What becomes of this node if the cluster's leadership is `leads`, where this node has it.
    pub fn change_to(&self, leads: Option<LeaderId>) -> RoleChange {
        let before = if let NodeState::Leads(leading) = self { Some(leading.leadership.id) } else { None };
        RoleChange { ceases: before.is_some() && before != leads, begins: leads.filter(|leads| Some(*leads) != before) }
    }

    /// Ends the state of a follower that begins to lead: everything that was committed before is applied. `set_clock` lets the
    /// clock go on from the last committed time, and returns what it shows then. `purpose` is to take over from another leader.
    /// Returns the engine and that time.
    ///
    /// # Errors
    /// In words: there is no state, or its records contradict each other.
    pub fn finish(&mut self, purpose: Purpose, set_clock: impl FnOnce(ClusterTime) -> Now) -> Result<(Box<Engine>, Now), String> {
        match std::mem::replace(self, NodeState::Empty) {
            NodeState::Follows(follower) => {
                let now = set_clock(follower.time());
                Ok((follower.finish(moment_of(now), purpose)?, now))
            }
            state => {
                *self = state;
                Err("it leads without a state".to_owned())
            }
        }
    }
}

/// A leadership of this process.
pub struct Leadership {
    /// The leadership.
    pub id: LeaderId,
    origin: Origin,
    /// Batches that were proposed and are not committed: their lengths in bytes, and when that was, in nanoseconds of the
    /// monotonic clock.
    proposed: VecDeque<(BatchNumber, u64, u64)>,
    /// Position in the leader's log behind all batches that are committed.
    position: u64,
    /// Until when no other node can lead, in nanoseconds of the monotonic clock, as far as was looked.
    lease_until_ns: u64,
    /// Whether a majority is out of reach or stores nothing, or the node has stepped down because of its disk.
    alone: bool,
    /// When it was last looked at, in nanoseconds of the monotonic clock.
    looked_ns: u64,
    /// The oldest batch that is not committed, and when it was first seen so, in nanoseconds of the monotonic clock.
    oldest: Option<(BatchNumber, u64)>,
    /// Whether the node has stepped down because of its disk. While its followers hear nothing from it, they elect another
    /// leader. It cannot note that: a vote is stored first.
    stepped_down: bool,
}

impl Leadership {
    /// A leadership that begins now, in nanoseconds of the monotonic clock.
    pub fn new(id: LeaderId, origin: Origin, now_ns: u64) -> Leadership {
        Leadership {
            id,
            origin,
            proposed: VecDeque::new(),
            position: 0,
            lease_until_ns: now_ns,
            alone: false,
            looked_ns: now_ns,
            oldest: None,
            stepped_down: false,
        }
    }

    /// Number of batches that were proposed and are not committed.
    pub fn proposed(&self) -> u64 {
        self.proposed.len() as u64
    }

    /// Whether it serves nothing: a majority is out of reach or stores nothing, or it has stepped down.
    pub fn alone(&self) -> bool {
        self.alone
    }

    /// Whether it has stepped down because of its disk. Then it must propose nothing: followers that hear of it elect nobody
    /// else.
    pub fn stepped_down(&self) -> bool {
        self.stepped_down
    }

    /// Steps down because of the disk, until the disk answers again.
    pub fn step_down(&mut self) {
        (self.stepped_down, self.alone) = (true, true);
    }

    /// Looks at the node's own disk. Must come before [`Leadership::look`]. openraft commits without it if the others have stored
    /// something, so that a leader whose disk hangs would lead for ever. A disk that is full answers: the node hands over, but it
    /// goes on to serve reads if no other node can take over. `lease_max` is the length of a whole lease.
    pub fn look_at_disk(&mut self, disk: DiskNow, lease_max: Duration) -> DiskStep {
        if !hangs(disk.busy, lease_max) {
            self.stepped_down = false;
        } else if !self.stepped_down {
            self.stepped_down = disk.busy > lease_max * STEP_DOWN_LEASES && !disk.refuses;
            return if self.stepped_down { DiskStep::Stay } else { DiskStep::HandOver };
        }
        DiskStep::Stay
    }

    /// Makes the proposal of a batch, as it was taken from the log. `now_ns`: the monotonic clock.
    pub fn next_proposal(&mut self, number: BatchNumber, batch: Vec<u8>, now: Now, now_ns: u64) -> Batch {
        self.proposed.push_back((number, batch.len() as u64, now_ns));
        // The header is for files: a record of the quorum has a checksum of its own.
        let bytes = if batch.is_empty() { Bytes::new() } else { Bytes::from(batch).slice(HEADER..) };
        let time = ClusterTime { us: now.mono_us(), wall_offset_ms: now.wall_offset_ms() };
        Batch { origin: self.origin, number, time, bytes }
    }

    /// Finds its own batches among committed entries: these are settled.
    pub fn settle_own(&mut self, entries: &[Committed]) -> OwnCommitted {
        let applied = Applied::Done;
        let mut own = OwnCommitted { applied, settled: None, position: 0, index: 0, bytes: 0, since_ns: None, foreign: false };
        for entry in entries {
            let batch = (entry.batch.origin, entry.batch.number);
            let first = self.proposed.front().filter(|(number, ..)| batch == (self.origin, *number));
            let Some(&(number, len, since_ns)) = first else {
                return OwnCommitted { applied: Applied::StartsAnew, foreign: true, ..own };
            };
            self.proposed.pop_front();
            self.position += len;
            own.bytes += len;
            own.settled = Some(number);
            (own.position, own.index) = (self.position, entry.index);
            own.since_ns = Some(since_ns);
        }
        own
    }

    /// Whether no other node can lead now: what is settled here is what the cluster has. `left` is the rest of the lease.
    pub fn has_lease(&mut self, now_ns: u64, left: impl FnOnce() -> Duration) -> bool {
        if now_ns < self.lease_until_ns {
            return true;
        }
        let left_ns = left().as_nanos() as u64;
        if left_ns > 0 {
            self.lease_until_ns = now_ns + left_ns;
        }
        left_ns > 0
    }

    /// Whether the process stood still for longer than its lease since the last look, which comes at this interval, and has lost
    /// it: another node may lead. It need not be [`Leadership::alone`] yet, but who waits or holds by a session must not be
    /// answered.
    pub fn stood_still(&mut self, now_ns: u64, every: Duration, lease_max: Duration, left: impl FnOnce() -> Duration) -> bool {
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
        passed_ns > (every + lease_max).as_nanos() as u64 && !self.has_lease(now_ns, left)
    }

    /// Looks whether it is [`Leadership::alone`]. Returns whether that has changed. `lease_max` is the length of a whole lease.
    pub fn look(&mut self, now_ns: u64, lease_max: Duration, left: impl FnOnce() -> Duration) -> bool {
        let held = self.has_lease(now_ns, left);
        let until_ns = self.lease_until_ns + u64::from(LEASES_ALONE) * lease_max.as_nanos() as u64;
        let cut_off = !held && now_ns > until_ns;
        let alone = cut_off || self.stepped_down || self.is_stalled(now_ns, lease_max);
        std::mem::replace(&mut self.alone, alone) != alone
    }

    /// Whether the others answer and have stored nothing for long, because their disks hang.
    fn is_stalled(&mut self, now_ns: u64, lease_max: Duration) -> bool {
        let oldest = self.proposed.front().map(|(number, ..)| *number);
        if self.oldest.map(|(number, _)| number) != oldest {
            self.oldest = oldest.map(|number| (number, now_ns));
        }
        self.oldest
            .is_some_and(|(_, since_ns)| now_ns.saturating_sub(since_ns) > (lease_max * STEP_DOWN_LEASES).as_nanos() as u64)
    }

    /// What the reply to a request waits for, which shows changes up to `batch`. If it shows keys, and another node may lead, a
    /// majority is asked by a batch. Without a majority all requests for keys are refused, and refusals do not wait.
    pub fn wait_of(
        &mut self,
        batch: BatchNumber,
        gate: &CommitGate,
        request: &Executed<'_>,
        now_ns: u64,
        left: impl FnOnce() -> Duration,
    ) -> Wait {
        if self.alone && request.reply.starts_with(b"-") {
            return Wait::For(0);
        }
        if batch > gate.settled() || self.alone || !request.may_show_keys() || self.has_lease(now_ns, left) {
            return Wait::For(batch);
        }
        Wait::ForMajority
    }
}

/// Why a node closes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It leads and reaches no majority.
    CutOff,
    /// It does not lead any more.
    Deposed,
}

/// Marks the sessions whose connections a node closes at once, and returns them. `is_unsettled` says whether output of a session
/// waits for the quorum: what it shows may never happen.
///
/// A leader that is cut off closes those that wait for something, and those that hold locks by a session: another leader may
/// serve others meanwhile. One that is deposed closes all but those that only subscribe, which hear what the next leader
/// publishes; keyspace events and invalidations of keys come from the leader alone. Nobody has seen the end of any of these
/// clients, so no grant ends.
pub fn close_sessions(
    engine: &mut Engine,
    now: Now,
    closing: Closing,
    is_unsettled: impl Fn(&Engine, SessionId) -> bool,
) -> Vec<SessionId> {
    let ids: Vec<SessionId> = engine.sessions().iter().map(|(id, _)| id).collect();
    let mut closed = Vec::new();
    for id in ids {
        let flags = engine.sessions()[id].flags;
        let holds = engine.has_session_grants(id);
        let must_know = is_unsettled(engine, id) || flags.contains(SessionFlags::BLOCKED) || holds;
        let only_subscribes = || flags.contains(SessionFlags::SUBSCRIBED) && !engine.hears_of_keys(id);
        if !must_know && (closing == Closing::CutOff || only_subscribes()) {
            continue;
        }
        engine.sessions_mut()[id].flags |= SessionFlags::CLOSE_NOW;
        if holds {
            engine.lose_sight(now, id);
        }
        closed.push(id);
    }
    closed
}

/// What a reply waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until this batch is settled; 0 for nothing.
    For(BatchNumber),
    /// Until the pending batch is settled, which must be proposed even if it is empty.
    ForMajority,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::driver::log::Log;
    use crate::engine::config::Config;
    use crate::persist::append::log::AppendLog;

    fn leadership(term: u64) -> Leadership {
        Leadership::new(LeaderId { term, node_id: 1 }, 77, 1_000)
    }

    fn leading(leadership: Leadership) -> Box<Leading> {
        let (now, progress) = (Now::new(0, 0), Default::default());
        Box::new(Leading::new(Log::new(AppendLog::new(now, moment_of(now).boot, 0), 0), leadership, &progress))
    }

    fn committed(index: u64, batch: Batch) -> Committed {
        Committed { index, batch }
    }

    #[test]
    fn a_leader_settles_its_own_batches_and_ceases_with_the_first_of_another() {
        let mut leads = leadership(3);
        let now = Now::new(5, 7);
        let own: Vec<Batch> = (1..=3).map(|number| leads.next_proposal(number, vec![0; HEADER + 10], now, number)).collect();
        assert_eq!((own[0].bytes.len(), own[0].time, leads.proposed()), (10, ClusterTime { us: 5, wall_offset_ms: 7 }, 3));
        let entries = [committed(8, own[0].clone()), committed(9, own[1].clone())];
        let bytes = 2 * (HEADER as u64 + 10);
        assert_eq!(
            leads.settle_own(&entries),
            OwnCommitted {
                applied: Applied::Done,
                settled: Some(2),
                position: bytes,
                index: 9,
                bytes,
                since_ns: Some(2),
                foreign: false
            },
            "the third, which is pending, does not count for the position"
        );
        // The same number of another leadership, or a batch that is missing.
        for wrong in [Batch { origin: 78, ..own[2].clone() }, Batch { number: 4, ..own[2].clone() }] {
            let own = leads.settle_own(&[committed(10, wrong)]);
            assert_eq!((own.applied, own.settled, own.foreign), (Applied::StartsAnew, None, true));
        }
    }

    #[test]
    fn a_change_of_leaders_ends_a_leadership_and_begins_another() {
        let id = |term| LeaderId { term, node_id: 1 };
        let state = NodeState::Leads(leading(leadership(3)));
        assert_eq!(state.change_to(Some(id(3))), RoleChange::default());
        assert_eq!(state.change_to(None), RoleChange { ceases: true, begins: None });
        assert_eq!(state.change_to(Some(id(4))), RoleChange { ceases: true, begins: Some(id(4)) });
        assert_eq!(NodeState::Empty.change_to(Some(id(4))), RoleChange { ceases: false, begins: Some(id(4)) });
        assert!(NodeState::Empty.finish(Purpose::TakeOver, |_| Now::new(0, 0)).is_err(), "there is nothing to lead with");
    }

    #[test]
    fn the_clock_of_a_leader_goes_on_from_the_last_committed_time() {
        let engine = Engine::new(Config::default(), 1, Now::new(0, 0), crate::commands::table());
        let mut follower = Follower::new(Box::new(engine));
        follower.set_time(ClusterTime { us: 9_000_000, wall_offset_ms: 0 });
        let mut state = NodeState::Follows(Box::new(follower));
        let (_, now) = state.finish(Purpose::TakeOver, |time| Now::new(time.us, 0)).unwrap();
        assert_eq!(now.mono_us(), 9_000_000);
        assert!(matches!(state, NodeState::Empty));
    }

    #[test]
    fn a_leader_that_has_not_heard_of_a_majority_for_three_leases_is_alone() {
        let mut leads = leadership(1);
        let (lease, none) = (Duration::from_nanos(100), || Duration::ZERO);
        assert!(!leads.has_lease(1_000, none));
        assert!(leads.has_lease(2_000, || lease));
        assert!(leads.has_lease(2_099, none) && !leads.has_lease(2_100, none));
        assert!(!leads.look(2_400, lease, none) && !leads.alone());
        assert!(leads.look(2_401, lease, none) && leads.alone());
        assert!(!leads.look(2_402, lease, none) && leads.alone(), "that is no news");
        assert!(leads.look(2_403, lease, || lease) && !leads.alone());
    }

    #[test]
    fn a_leader_that_stood_still_for_longer_than_its_lease_has_lost_it_unless_others_say_so() {
        let (lease, every) = (Duration::from_nanos(400), Duration::from_nanos(100));
        let none = || Duration::ZERO;
        let mut leads = leadership(1);
        assert!(!leads.stood_still(1_500, every, lease, none));
        assert!(leads.stood_still(2_001, every, lease, none) && !leads.stood_still(2_002, every, lease, none));
        assert!(!leadership(1).stood_still(9_000, every, lease, || lease), "the executor alone was busy");
    }

    #[test]
    fn a_leader_whose_disk_hangs_hands_over_and_then_steps_down() {
        let mut leads = leadership(1);
        let lease = Duration::from_millis(10);
        let busy = |ms| DiskNow { busy: Duration::from_millis(ms), refuses: false };
        let held = || lease;
        assert_eq!(leads.look_at_disk(busy(40), lease), DiskStep::Stay);
        assert_eq!(leads.look_at_disk(busy(41), lease), DiskStep::HandOver);
        assert!(!leads.look(2_000, lease, held) && !leads.alone(), "it serves until another node can");
        assert_eq!(leads.look_at_disk(busy(90), lease), DiskStep::HandOver);
        assert_eq!(leads.look_at_disk(busy(91), lease), DiskStep::Stay);
        assert!(leads.look(3_000, lease, held) && leads.alone() && leads.stepped_down(), "though it has a lease");
        assert_eq!(leads.look_at_disk(busy(41), lease), DiskStep::Stay);
        assert!(!leads.look(4_000, lease, held) && leads.stepped_down(), "another operation hangs");
        assert_eq!(leads.look_at_disk(busy(0), lease), DiskStep::Stay);
        assert!(leads.look(5_000, lease, held) && !leads.alone() && !leads.stepped_down());
    }

    #[test]
    fn a_leader_whose_batches_are_not_stored_is_alone_until_they_are() {
        let mut leads = leadership(1);
        let (lease, now) = (Duration::from_nanos(100), Now::new(0, 0));
        let held = || lease;
        let first = leads.next_proposal(1, vec![0; HEADER + 1], now, 1_000);
        leads.next_proposal(2, vec![0; HEADER + 1], now, 1_000);
        assert!(!leads.look(2_000, lease, held) && !leads.look(2_900, lease, held));
        assert!(leads.look(2_901, lease, held) && leads.alone() && !leads.stepped_down());
        leads.settle_own(&[committed(5, first)]);
        assert!(leads.look(3_000, lease, held) && !leads.alone(), "the majority is slow, and stores something");
        assert!(!leads.look(3_900, lease, held) && leads.look(3_901, lease, held));
    }

    #[test]
    fn a_leader_whose_disk_is_full_hands_over_and_serves_until_then() {
        let mut leads = leadership(1);
        let lease = Duration::from_millis(10);
        let full = DiskNow { busy: Duration::from_secs(100), refuses: true };
        assert_eq!(leads.look_at_disk(full, lease), DiskStep::HandOver);
        assert!(!leads.look(2_000, lease, || lease) && !leads.alone());
        leads.step_down();
        assert!(leads.alone() && leads.stepped_down());
        assert_eq!(leads.look_at_disk(full, lease), DiskStep::Stay, "it has handed over");
        assert!(!leads.look(3_000, lease, || lease) && leads.alone());
    }

    #[test]
    fn a_node_succeeds_that_votes_answers_and_has_stored_what_is_committed() {
        let members = (1..=4).map(|id| (id, String::new())).collect();
        let matched = [(1, 9), (2, 7), (3, 9), (4, 9)].into();
        let status = Status { members, matched, committed: 8, learners: vec![4], ..Status::default() };
        let any = |_| true;
        assert_eq!(successor(&status, 1, None, false, any), Some(3));
        assert_eq!(successor(&status, 1, Some(2), false, any), Some(2));
        assert_eq!(successor(&status, 1, Some(4), false, any), None, "it does not vote");
        assert_eq!(successor(&status, 1, None, false, |id| id != 3), Some(2));
        assert_eq!(successor(&status, 1, None, true, |id| id != 3), None, "its disk may hang as well");
        assert_eq!(successor(&status, 3, None, true, any), Some(1));
    }

    #[test]
    fn a_read_without_a_lease_waits_for_a_majority() {
        let mut leads = leadership(1);
        let gate = CommitGate::default();
        let commands = crate::commands::table();
        let args: [&[u8]; 2] = [b"GET", b"key"];
        let read = Executed { commands, row: None, args: &args, db: 0, queued: false, reply: b"$-1\r\n" };
        let none = || Duration::ZERO;
        assert_eq!(leads.wait_of(0, &gate, &read, 2_000, none), Wait::ForMajority);
        assert_eq!(
            leads.wait_of(2, &gate, &read, 2_000, none),
            Wait::For(2),
            "a batch that is on its way asks the majority as well"
        );
        let ping = Executed { args: &[b"PING"], ..read };
        assert_eq!(leads.wait_of(0, &gate, &ping, 2_000, none), Wait::For(0));
        // What counts keys or locks is a read as well.
        let counting =
            ["INFO", "INFO locks", "info server KEYSPACE", "INFO all", "LOCK.STATS", "MEMORY STATS", "DBSIZE", "LOCK.LIST"];
        for (request, wait) in counting.map(|request| (request, Wait::ForMajority)).into_iter().chain(
            ["INFO server", "INFO replication", "MEMORY DOCTOR", "CLIENT LIST", "WAIT 1 0"]
                .map(|request| (request, Wait::For(0))),
        ) {
            let args: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
            let request = Executed { args: &args, ..read };
            assert_eq!(leads.wait_of(0, &gate, &request, 2_000, none), wait, "{args:?}");
        }
        assert_eq!(leads.wait_of(0, &gate, &read, 2_000, || Duration::from_nanos(50)), Wait::For(0));
        assert_eq!(leads.wait_of(0, &gate, &read, 2_050, none), Wait::ForMajority);
        assert!(leads.look(9_000, Duration::from_nanos(50), none));
        let refused = Executed { reply: b"-READONLY", ..read };
        assert_eq!(leads.wait_of(3, &gate, &refused, 9_000, none), Wait::For(0));
    }
}
