//! A session: what the engine knows of one connection.

use std::sync::Arc;

use crate::engine::command::Command;
use crate::engine::transaction::Transaction;
use crate::engine::users::UserId;
use crate::keyspace::interests::NIL;
use crate::resp::reply::Protocol;

bitflags::bitflags! {
    /// What is switched on for a session.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SessionFlags: u32 {
        /// Has logged in, or needed not to when it connected.
        const AUTHENTICATED = 1 << 0;
        /// `CLIENT NO-EVICT on`.
        const NO_EVICT = 1 << 1;
        /// `CLIENT NO-TOUCH on`.
        const NO_TOUCH = 1 << 2;
        /// `CLIENT REPLY OFF`: replies are thrown away.
        const REPLY_OFF = 1 << 3;
        /// `CLIENT REPLY SKIP` was the running command: the reply to the next one is thrown away.
        const REPLY_SKIP_NEXT = 1 << 4;
        /// To be closed as soon as its outbox is written.
        const CLOSE_AFTER_REPLY = 1 << 5;
        /// To be closed at once, its outbox thrown away.
        const CLOSE_NOW = 1 << 6;
        /// Waits in the engine's list of sessions to flush.
        const DIRTY = 1 << 7;
        /// Connected over a unix socket.
        const UNIX_SOCKET = 1 << 8;
        /// The reply to the running command is thrown away, unless it switches replies on.
        const REPLY_SKIP = 1 << 9;
        /// Between `MULTI` and `EXEC`: requests are queued.
        const MULTI = 1 << 10;
        /// `EXEC` runs what was queued.
        const IN_EXEC = 1 << 11;
        /// Its request waits, for a key or for the end of a pause: no other is executed meanwhile.
        const BLOCKED = 1 << 12;
        /// `MONITOR`: is shown all requests.
        const MONITOR = 1 << 13;
        /// Its request goes on, and then its connection is closed without a reply (`FAULT`).
        const CLOSE_WHEN_DONE = 1 << 14;
        /// Its connection is closed by a TCP reset (`FAULT`).
        const RESET_SOCKET = 1 << 15;
        /// What it is sent passes gates (`FAULT`): see `engine/gates.rs`.
        const GATED = 1 << 16;
        /// Its request waits, and the reply is to be held back then (`FAULT`).
        const PACED = 1 << 17;
        /// Has subscriptions.
        const SUBSCRIBED = 1 << 18;
        /// May do everything, logged in or not: its user's rules need not be looked at. See `engine/users/access.rs`.
        const UNRESTRICTED = 1 << 31;
    }
}

/// Where a session comes from, for `CLIENT LIST`, logs and protected mode.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// `ip:port` of the client, or the path of the unix socket followed by `:0`.
    pub addr: Box<str>,
    /// `ip:port` it connected to; most sessions share one.
    pub laddr: Arc<str>,
    /// Whether it came over a unix socket.
    pub unix: bool,
}

/// One connection's state. Kept small: there may be tens of thousands of idle ones.
#[derive(Debug)]
pub struct Session {
    /// The client id: never given out twice.
    pub id: u64,
    /// Whose rules hold for it.
    pub user: UserId,
    /// Selected database.
    pub db: u32,
    /// Spoken protocol.
    pub protocol: Protocol,
    /// Switches.
    pub flags: SessionFlags,
    /// Replies and pushes that are not yet written to the socket.
    pub out: Vec<u8>,
    /// Bytes at the beginning of `out` that are written already, as told by the shell.
    pub sent: usize,
    /// `CLIENT SETNAME`.
    pub name: Option<Box<[u8]>>,
    /// `CLIENT SETINFO lib-name` and `lib-ver`.
    pub lib: Option<Box<(String, String)>>,
    /// Where it comes from, and where it connected to: see [`Peer`].
    pub addr: Box<str>,
    /// Most sessions share one.
    pub laddr: Arc<str>,
    /// Monotonic milliseconds of the connect.
    pub created_ms: u64,
    /// Monotonic milliseconds of the last command.
    pub last_ms: u64,
    /// The last command that was found in the table.
    pub last_command: Option<&'static Command>,
    /// Bytes of incomplete requests that the shell holds for it, for `CLIENT LIST`.
    pub query_buffer: u32,
    /// Commands executed.
    pub commands: u64,
    /// Bytes read and written, as told by the shell.
    pub net_in: u64,
    /// Bytes written.
    pub net_out: u64,
    /// Number of channels, patterns and shard channels it is subscribed to.
    pub subscriptions: [u32; 3],
    /// What was queued since `MULTI`.
    pub transaction: Option<Box<Transaction>>,
    /// Its number among those who watch keys; [`NIL`] where it watches none.
    pub watcher: u32,
    /// Its number among those who wait for keys; [`NIL`] where it waits for none.
    pub waiter: u32,
    /// Its number among those who wait for locks; [`NIL`] where it waits for none.
    pub lock_waiter: u32,
    /// Its number among those who track keys; [`NIL`] where it does not.
    pub tracker: u32,
    /// Bytes of pushes and of what `MONITOR` shows that came into `out` since it was empty last.
    pub pushed: u64,
    /// The number of its request among those that a pause holds back; 0 for none.
    pub held: u64,
}

impl Session {
    /// A session at its first byte.
    pub fn new(id: u64, peer: Peer, now_ms: u64) -> Self {
        Session {
            id,
            user: UserId::DEFAULT,
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

    /// Whether replies, though not pushes, are thrown away.
    pub fn silenced(&self) -> bool {
        self.flags.intersects(SessionFlags::REPLY_OFF | SessionFlags::REPLY_SKIP)
    }

    /// Whether its requests are executed as they come, as far as that lies with it: it may do everything, queues nothing, is shown nothing and
    /// has its replies.
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

    /// Begins with a request, whose reply is thrown away if the one before asked for that.
    pub(super) fn begin_reply(&mut self) {
        let skip = self.flags.contains(SessionFlags::REPLY_SKIP_NEXT);
        self.flags.remove(SessionFlags::REPLY_SKIP_NEXT);
        self.flags.set(SessionFlags::REPLY_SKIP, skip);
    }

    /// Goes on with the request that it was blocked in. If the reply to that was to be thrown away, it still is.
    pub(super) fn resume(&mut self) {
        self.flags.remove(SessionFlags::BLOCKED);
        self.flags.set(SessionFlags::REPLY_SKIP_NEXT, self.flags.contains(SessionFlags::REPLY_SKIP));
    }

    /// Whether nothing but (P|S)SUBSCRIBE and its kin may be called: a RESP2 session with subscriptions.
    pub fn subscribed_mode(&self) -> bool {
        self.protocol == Protocol::Resp2 && self.flags.contains(SessionFlags::SUBSCRIBED)
    }

    /// To be called after `subscriptions` has changed.
    pub(crate) fn update_subscribed(&mut self) {
        self.flags.set(SessionFlags::SUBSCRIBED, self.subscriptions != [0; 3]);
    }
}
