//! A session: the engine's state of one connection.

use std::sync::Arc;

use crate::base::ids::UserId;
use crate::base::words::brief;
use crate::engine::transaction::Transaction;
use crate::keyspace::interests::NIL;
use crate::lock::UserKey;
use crate::resp::reply::Protocol;

bitflags::bitflags! {
    /// Flags of a session.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SessionFlags: u32 {
        /// Is authenticated, or connected when no authentication was needed.
        const AUTHENTICATED = 1 << 0;
        /// `CLIENT NO-EVICT on`.
        const NO_EVICT = 1 << 1;
        /// `CLIENT NO-TOUCH on`.
        const NO_TOUCH = 1 << 2;
        /// `CLIENT REPLY OFF`: replies are discarded.
        const REPLY_OFF = 1 << 3;
        /// The running command is `CLIENT REPLY SKIP`: the reply to the next one is discarded.
        const REPLY_SKIP_NEXT = 1 << 4;
        /// Close as soon as the outbox is written.
        const CLOSE_AFTER_REPLY = 1 << 5;
        /// Close at once, and discard the outbox.
        const CLOSE_NOW = 1 << 6;
        /// Is in the engine's list of sessions to flush.
        const PENDING_WRITE = 1 << 7;
        /// Connected over a unix socket.
        const UNIX_SOCKET = 1 << 8;
        /// The reply to the running command is discarded, unless the command turns replies on.
        const REPLY_SKIP = 1 << 9;
        /// Between `MULTI` and `EXEC`: requests are queued.
        const MULTI = 1 << 10;
        /// `EXEC` runs the queue.
        const IN_EXEC = 1 << 11;
        /// Blocked on keys, on locks or by a pause: no other request is executed meanwhile.
        const BLOCKED = 1 << 12;
        /// `MONITOR`: sees all requests.
        const MONITOR = 1 << 13;
        /// Close the connection without a reply when the request is done (`FAULT`).
        const CLOSE_WHEN_DONE = 1 << 14;
        /// Close the connection by a TCP reset (`FAULT`).
        const RESET_SOCKET = 1 << 15;
        /// Output passes gates (`FAULT`): see `engine/faults/gates`.
        const FAULT_GATED = 1 << 16;
        /// The request is blocked, and its reply is to be held back (`FAULT`).
        const PACED = 1 << 17;
        /// Has subscriptions.
        const SUBSCRIBED = 1 << 18;
        /// Output waits until what it shows is on the disk, or committed by the nodes. The driver holds it back.
        const UNSETTLED = 1 << 19;
        /// Applies files at a start: no request waits, and none is done in steps, as the next one follows at once.
        const NEVER_WAITS = 1 << 20;
        /// Has acquired a lock, or asked for one: its name and address are remembered when it ends.
        const ACQUIRED = 1 << 21;
        /// May do everything, authenticated or not: its user's rules need no check. See `engine/users/access.rs`.
        const UNRESTRICTED = 1 << 31;
    }
}

/// The origin of a session, for `CLIENT LIST`, logs and protected mode.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// `ip:port` of the client, or the path of the unix socket followed by `:0`.
    pub addr: Box<str>,
    /// Local `ip:port` of the connection; most sessions share one.
    pub laddr: Arc<str>,
    /// Whether the connection uses the unix socket.
    pub unix: bool,
}

/// The state of one connection. Kept small: there may be tens of thousands of idle ones.
#[derive(Debug)]
pub struct Session {
    /// The client id, which is never reused.
    pub id: u64,
    /// The user whose rules apply.
    pub user: UserId,
    /// Tells the owners of locks that are this user's from those of others.
    pub user_key: UserKey,
    /// Selected database.
    pub db: u32,
    /// The protocol.
    pub protocol: Protocol,
    /// Flags.
    pub flags: SessionFlags,
    /// Replies and pushes that are not written to the socket yet.
    pub out: Vec<u8>,
    /// Number of bytes at the beginning of `out` that the server has already written.
    pub sent: usize,
    /// `CLIENT SETNAME`.
    pub name: Option<Box<[u8]>>,
    /// `CLIENT SETINFO lib-name` and `lib-ver`.
    pub lib: Option<Box<(String, String)>>,
    /// Client address; see [`Peer`].
    pub addr: Box<str>,
    /// Local address, which most sessions share.
    pub laddr: Arc<str>,
    /// Monotonic milliseconds at connect.
    pub created_ms: u64,
    /// Monotonic milliseconds of the last command.
    pub last_ms: u64,
    /// The last command that was found in the table: its slot in [`crate::engine::observe::command_stats::CommandStats`].
    pub last_command: Option<u16>,
    /// Bytes of incomplete requests that the server holds for the session, for `CLIENT LIST`.
    pub query_buffer: u32,
    /// Commands executed.
    pub commands: u64,
    /// Bytes read, as reported by the server.
    pub net_in: u64,
    /// Bytes written, as reported by the server.
    pub net_out: u64,
    /// Number of subscriptions: channels, patterns and shard channels.
    pub subscriptions: [u32; 3],
    /// The requests queued since `MULTI`.
    pub transaction: Option<Box<Transaction>>,
    /// Its number among the watchers of keys; [`NIL`] if it watches none.
    pub watcher: u32,
    /// Its number among the waiters for keys; [`NIL`] if it waits for none.
    pub waiter: u32,
    /// Its number among the waiters for locks; [`NIL`] if it waits for none.
    pub lock_waiter: u32,
    /// Its number among the trackers of keys; [`NIL`] if it does not track.
    pub tracker: u32,
    /// Bytes of pushes and `MONITOR` output added to `out` since it was last empty.
    pub pushed: u64,
    /// The number of its request that a pause holds back; 0 for none.
    pub held: u64,
}

impl Session {
    /// A new session.
    pub fn new(id: u64, peer: Peer, now_ms: u64) -> Self {
        Session {
            id,
            user: UserId::DEFAULT,
            user_key: UserKey::default(),
            db: 0,
            protocol: Protocol::Resp2,
            flags: if peer.unix { SessionFlags::UNIX_SOCKET } else { SessionFlags::empty() },
            out: Vec::new(),
            sent: 0,
            name: None,
            lib: None,
            addr: peer.addr,
            laddr: peer.laddr,
            created_ms: now_ms,
            last_ms: now_ms,
            last_command: None,
            query_buffer: 0,
            commands: 0,
            net_in: 0,
            net_out: 0,
            subscriptions: [0; 3],
            transaction: None,
            watcher: NIL,
            waiter: NIL,
            lock_waiter: NIL,
            tracker: NIL,
            pushed: 0,
            held: 0,
        }
    }

    /// The beginning of its name, as everything but its own commands shows and remembers it; empty for none.
    pub fn brief_name(&self) -> &[u8] {
        brief(self.name.as_deref().unwrap_or_default())
    }

    /// Whether replies, but not pushes, are discarded.
    pub fn silenced(&self) -> bool {
        self.flags.intersects(SessionFlags::REPLY_OFF | SessionFlags::REPLY_SKIP)
    }

    /// Whether this session allows the fast path: it may do everything, queues nothing, does not monitor, has no subscriptions
    /// and no pending `CLIENT REPLY SKIP`. After `CLIENT REPLY OFF` it stays on the fast path.
    #[inline]
    pub(super) fn is_ordinary(&self) -> bool {
        const ASKED: SessionFlags = SessionFlags::UNRESTRICTED
            .union(SessionFlags::SUBSCRIBED)
            .union(SessionFlags::MULTI)
            .union(SessionFlags::MONITOR)
            .union(SessionFlags::REPLY_SKIP_NEXT)
            .union(SessionFlags::REPLY_SKIP);
        self.flags.intersection(ASKED) == SessionFlags::UNRESTRICTED
    }

    /// Begins a request. Its reply is discarded if the previous request asked for that.
    pub(super) fn begin_reply(&mut self) {
        let skip = self.flags.contains(SessionFlags::REPLY_SKIP_NEXT);
        self.flags.remove(SessionFlags::REPLY_SKIP_NEXT);
        self.flags.set(SessionFlags::REPLY_SKIP, skip);
    }

    /// Resumes the request that the session was blocked in. If its reply was to be discarded, it still is.
    pub(super) fn resume(&mut self) {
        self.flags.remove(SessionFlags::BLOCKED);
        self.flags.set(SessionFlags::REPLY_SKIP_NEXT, self.flags.contains(SessionFlags::REPLY_SKIP));
    }

    /// Whether only (P|S)SUBSCRIBE and related commands are allowed: a RESP2 session with subscriptions.
    pub fn subscribed_mode(&self) -> bool {
        self.protocol == Protocol::Resp2 && self.flags.contains(SessionFlags::SUBSCRIBED)
    }

    /// Counts a subscription of a kind that has begun (1) or ended (-1).
    pub(super) fn count_subscription(&mut self, kind: usize, change: i32) {
        self.subscriptions[kind] = self.subscriptions[kind].saturating_add_signed(change);
        self.flags.set(SessionFlags::SUBSCRIBED, self.subscriptions != [0; 3]);
    }

    /// Counts all subscriptions as ended.
    pub(super) fn forget_subscriptions(&mut self) {
        self.subscriptions = [0; 3];
        self.flags.remove(SessionFlags::SUBSCRIBED);
    }
}
