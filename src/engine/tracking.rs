//! Client tracking: turns the changes that [`crate::keyspace::tracking`] has recorded into invalidation messages.
//!
//! A RESP3 client gets a push. RESP2 has no pushes, so a RESP2 client may redirect its messages to another connection, which gets
//! them as channel messages and must have subscriptions.

use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags};
use crate::engine::context::Caller;
use crate::engine::pubsub::subscriptions::is_of_leader;
use crate::engine::pubsub::{self, Kind};
use crate::engine::session::SessionFlags;
use crate::keyspace::interests::NIL;
use crate::keyspace::tracking::{Client, Message, Options, Told};
use crate::resp::reply::{Protocol, Sink, WireReply};

/// The channel of invalidation messages for RESP2 clients.
const CHANNEL: &[u8] = b"__redis__:invalidate";

impl Engine {
    /// Finds a client by its id. Visits all sessions.
    pub fn find_client(&self, number: u64) -> Option<Client> {
        self.clients.sessions.find(number).map(|id| Client { number, id })
    }

    /// Turns tracking on for a session, with these options.
    pub(crate) fn track(&mut self, id: SessionId, options: Options, redirect: Option<Client>, prefixes: &[&[u8]]) {
        let session = &mut self.clients.sessions[id];
        let client = Client { number: session.id, id };
        session.tracker = self.keyspace.changes.tracking.track(session.tracker, client, options, redirect, prefixes);
        self.update_observers();
    }

    /// Whether a session hears of keys that change: it tracks keys, or is subscribed to invalidations, keyspace events or lost locks.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "asked only where keys may become another node's"))]
    pub fn hears_of_keys(&self, id: SessionId) -> bool {
        let tells = |name: &[u8]| is_of_leader(name) || name == CHANNEL;
        let subscribed = || [Kind::Channel, Kind::Pattern].iter().any(|&kind| self.clients.pubsub.names_of(kind, id).any(tells));
        self.clients.sessions[id].tracker != NIL || subscribed()
    }

    /// Turns tracking off for a session.
    pub(crate) fn untrack(&mut self, id: SessionId) {
        let tracker = std::mem::replace(&mut self.clients.sessions[id].tracker, NIL);
        if tracker != NIL {
            self.keyspace.changes.tracking.untrack(tracker);
            self.update_observers();
        }
    }

    /// The keys that a command declares for the script that it runs; empty for any other command, or if the client does not
    /// track.
    pub(super) fn declared_keys(&self, id: SessionId, command: &'static Command, args: &[&[u8]]) -> Vec<Box<[u8]>> {
        let tracks = self.keyspace.changes.tracking.get(self.clients.sessions[id].tracker).is_some();
        if !tracks || !command.flags.contains(Flags::SKIP_MONITOR) {
            return Vec::new();
        }
        command.key_positions(args).into_iter().flatten().map(|key| args[key.position].into()).collect()
    }

    /// After a command: records the keys that its client may have read. For a script these are its declared keys.
    pub(super) fn remember_reads(&mut self, id: SessionId, caller: Caller, command: &'static Command, args: &[&[u8]]) {
        let number = self.clients.sessions[id].tracker;
        let tracking = &mut self.keyspace.changes.tracking;
        let Some(tracker) = tracking.get(number) else { return };
        // The commands that a script calls show whether it reads. Channel commands read no keys.
        let reads =
            command.flags.contains(Flags::READONLY) && !command.flags.intersects(Flags::SKIP_MONITOR.union(Flags::PUBSUB));
        let caching = tracker.options.contains(Options::CACHING);
        let wanted = match tracker.options {
            options if options.contains(Options::BCAST) => false,
            options if options.contains(Options::OPTIN) => caching,
            options if options.contains(Options::OPTOUT) => !caching,
            _ => true,
        };
        if !reads || !wanted {
            return;
        }
        let bytes_max = self.config.client_query_buffer_limit;
        if caller == Caller::Script {
            let declared = std::mem::take(&mut tracking.declared);
            for key in &declared {
                tracking.remember(number, key, bytes_max);
            }
            tracking.declared = declared;
            return;
        }
        for key in command.key_positions(args).into_iter().flatten() {
            tracking.remember(number, args[key.position], bytes_max);
        }
    }

    /// Ends `CLIENT CACHING`, which applies to one command or transaction, after the next one.
    pub(super) fn forget_caching(&mut self, session: u32) {
        if let Some(tracker) = self.keyspace.changes.tracking.get_mut(session) {
            tracker.options.remove(Options::CACHING);
        }
    }

    /// Notifies clients other than the current one of its changes.
    #[inline]
    pub(super) fn invalidate_others(&mut self) {
        if self.keyspace.changes.tracking.has_others() {
            let messages = self.keyspace.changes.tracking.take_others();
            self.send_invalidations(messages);
        }
    }

    /// Notifies the current client of its own changes.
    pub(super) fn invalidate_own(&mut self) {
        let messages = self.keyspace.changes.tracking.take_own();
        self.send_invalidations(messages);
    }

    /// After a turn: notifies the clients that track by prefix.
    #[cold]
    pub(super) fn invalidate_changed(&mut self) {
        let messages = self.keyspace.changes.tracking.take_changed();
        self.send_invalidations(messages);
    }

    fn send_invalidations(&mut self, messages: Vec<Message>) {
        for Message { told, to } in messages {
            self.running.visited += to.len() as u64;
            // One frame for each protocol, encoded for the first client that uses it.
            let mut frames: [Option<Vec<u8>>; 2] = [None, None];
            for (tracker, client) in to {
                let Some((id, protocol)) = self.receiver(tracker, client) else { continue };
                if let Some(seen) = self.seen_of(tracker, &told) {
                    if !seen.is_empty() {
                        pubsub::push_to(self, id, &encode(&Told::Keys(seen), protocol));
                    }
                    continue;
                }
                let frame = frames[(protocol == Protocol::Resp3) as usize].get_or_insert_with(|| encode(&told, protocol));
                pubsub::push_to(self, id, frame);
            }
        }
    }

    /// Of a message about keys that the tracker has not read: those that its user may see. `None` if that is the whole message.
    fn seen_of(&self, number: u32, told: &Told) -> Option<Vec<Box<[u8]>>> {
        let Told::Keys(keys) = told else { return None };
        let tracker = self.keyspace.changes.tracking.get(number)?;
        let session = self.clients.sessions.get(tracker.client.id)?;
        if !tracker.options.contains(Options::BCAST) || session.flags.contains(SessionFlags::UNRESTRICTED) {
            return None;
        }
        Some(keys.iter().filter(|key| self.users.lets_see(session, key)).cloned().collect())
    }

    /// The session that receives a tracker's messages, and its protocol: the redirection target or the tracker itself. `None` if
    /// there is no receiver.
    fn receiver(&mut self, number: u32, client: u64) -> Option<(SessionId, Protocol)> {
        let tracker = self.keyspace.changes.tracking.get_mut(number).filter(|tracker| tracker.client.number == client)?;
        let session_of = |client: Client| self.clients.sessions.get(client.id);
        let Some(redirect) = tracker.redirect else {
            let protocol = session_of(tracker.client)?.protocol;
            return (protocol == Protocol::Resp3).then_some((tracker.client.id, protocol));
        };
        match session_of(redirect) {
            Some(session) => {
                let listens = session.protocol == Protocol::Resp3 || session.subscriptions != [0; 3];
                listens.then_some((redirect.id, session.protocol))
            }
            None => {
                tracker.options |= Options::BROKEN;
                let own = tracker.client;
                if session_of(own)?.protocol == Protocol::Resp3 {
                    let mut frame = Vec::new();
                    let mut reply = WireReply::new(&mut frame, Protocol::Resp3);
                    reply.push(2);
                    reply.bulk(b"tracking-redir-broken");
                    reply.integer(redirect.number as i64);
                    pubsub::push_to(self, own.id, &frame);
                }
                None
            }
        }
    }
}

fn encode(told: &Told, protocol: Protocol) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut reply = WireReply::new(&mut frame, protocol);
    match protocol {
        Protocol::Resp3 => {
            reply.push(2);
            reply.bulk(b"invalidate");
        }
        Protocol::Resp2 => {
            reply.push(3);
            reply.bulk(b"message");
            reply.bulk(CHANNEL);
        }
    }
    match told {
        Told::Flush => reply.null(),
        Told::Keys(keys) => {
            reply.array(keys.len());
            keys.iter().for_each(|key| reply.bulk(key));
        }
    }
    frame
}
