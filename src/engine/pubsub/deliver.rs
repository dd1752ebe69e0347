//! Delivers messages and pushes to the outboxes of their receivers.

use crate::base::glob;
use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::engine::clients::sessions::Sessions;
use crate::engine::clients::state::Clients;
use crate::engine::config::OutputLimit;
use crate::engine::observe::stats::Stats;
use crate::engine::pubsub::registry::Registry;
use crate::engine::pubsub::subscriptions::{Kind, PubSub};
use crate::engine::session::SessionFlags;
use crate::engine::users::Users;
use crate::resp::reply::{Protocol, Sink, WireReply};

/// Buffers that grew beyond this many elements are freed when they are empty again.
pub(super) const KEPT: usize = 4096;

/// What delivery may change, besides the registries.
struct Outboxes<'a> {
    sessions: &'a mut Sessions,
    users: &'a Users,
    pending_writes: &'a mut Vec<SessionId>,
    stats: &'a mut Stats,
    /// Size at which an outbox is too full, in bytes; 0 for no limit.
    hard_limit: u64,
}

impl Outboxes<'_> {
    /// Appends a push to the outboxes of these sessions, except those whose users may not see the key that it is about. Returns the
    /// number of receivers.
    fn append_to(&mut self, ids: impl Iterator<Item = SessionId>, about: Option<&[u8]>, frame: &mut [u8]) -> usize {
        let mut receivers = 0;
        for id in ids {
            let sees = |key: &[u8]| self.sessions.get(id).is_some_and(|session| self.users.lets_see(session, key));
            if about.is_none_or(sees) {
                self.append(id, frame);
                receivers += 1;
            }
        }
        receivers
    }

    /// Appends a push to a session's outbox. `frame` begins with the type of a RESP3 push, which becomes an array for RESP2.
    fn append(&mut self, id: SessionId, frame: &mut [u8]) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.flags.contains(SessionFlags::CLOSE_NOW) {
            return;
        }
        frame[0] = if session.protocol == Protocol::Resp3 { b'>' } else { b'*' };
        self.append_as_it_is(id, frame);
    }

    /// Appends unsolicited bytes to a session's outbox. For a session without subscriptions, only such bytes count towards the
    /// limit: its replies may have any size.
    fn append_as_it_is(&mut self, id: SessionId, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.flags.contains(SessionFlags::CLOSE_NOW) {
            return;
        }
        if session.out.is_empty() {
            session.pushed = 0;
        }
        session.pushed += bytes.len() as u64;
        let unread = (session.out.len() + bytes.len()) as u64;
        let counted = if session.subscriptions == [0; 3] { session.pushed.min(unread) } else { unread };
        if self.hard_limit != 0 && counted >= self.hard_limit {
            // A subscriber that is too slow is disconnected; no other session waits for it.
            session.flags |= SessionFlags::CLOSE_NOW;
            session.out = Vec::new();
            self.stats.output_limit_disconnections += 1;
        } else {
            session.out.extend_from_slice(bytes);
        }
        if !session.flags.contains(SessionFlags::PENDING_WRITE) {
            session.flags |= SessionFlags::PENDING_WRITE;
            self.pending_writes.push(id);
        }
    }
}

/// Appends unsolicited bytes to a session's outbox. Closes the session if its outbox is too full.
pub(in crate::engine) fn push_to(engine: &mut Engine, id: SessionId, bytes: &[u8]) {
    let [.., OutputLimit { hard: hard_limit, .. }] = engine.config.client_output_buffer_limit;
    let Clients { sessions, pending_writes, .. } = &mut engine.clients;
    let (users, stats) = (&engine.users, &mut engine.diagnosis.stats);
    Outboxes { sessions, users, pending_writes, stats, hard_limit }.append_as_it_is(id, bytes);
}

/// Delivers a message to the subscribers of the channel and, unless it is a shard channel, of the patterns that match it. Returns
/// the number of receivers.
pub fn publish(engine: &mut Engine, kind: Kind, channel: &[u8], message: &[u8]) -> usize {
    deliver(engine, kind, channel, message, None)
}

/// As [`publish`] for a message of the server about a key: only subscribers that may see the key receive it.
pub fn publish_about(engine: &mut Engine, key: &[u8], channel: &[u8], message: &[u8]) -> usize {
    deliver(engine, Kind::Channel, channel, message, Some(key))
}

fn deliver(engine: &mut Engine, kind: Kind, channel: &[u8], message: &[u8], about: Option<&[u8]>) -> usize {
    let [.., OutputLimit { hard: hard_limit, .. }] = engine.config.client_output_buffer_limit;
    let Clients { pubsub, sessions, pending_writes, .. } = &mut engine.clients;
    let PubSub { registries: [channels, patterns, shards], frame, .. } = pubsub;
    let mut outboxes =
        Outboxes { sessions, users: &engine.users, pending_writes, stats: &mut engine.diagnosis.stats, hard_limit };
    let (registry, patterns, word): (_, Option<&Registry>, &[u8]) = match kind {
        Kind::Shard => (&*shards, None, b"smessage"),
        Kind::Channel | Kind::Pattern => (&*channels, Some(patterns), b"message"),
    };
    let mut receivers = 0;
    if let Some(topic) = registry.find(channel) {
        encode(frame, &[word, channel, message]);
        receivers += outboxes.append_to(registry.listeners(&registry.topics[topic]), about, frame);
    }
    if let Some(patterns) = patterns {
        for (_, topic) in patterns.topics() {
            if glob::matches(&topic.name, channel, false) {
                encode(frame, &[b"pmessage", &topic.name, channel, message]);
                receivers += outboxes.append_to(patterns.listeners(topic), about, frame);
            }
        }
    }
    if frame.capacity() > KEPT {
        *frame = Vec::new();
    }
    engine.running.visited += (receivers + patterns.map_or(0, |patterns| patterns.topics.len())) as u64;
    receivers
}

/// Encodes a push of strings, once for all receivers.
fn encode(frame: &mut Vec<u8>, parts: &[&[u8]]) {
    frame.clear();
    let mut reply = WireReply::new(frame, Protocol::Resp3);
    reply.push(parts.len());
    for part in parts {
        reply.bulk(part);
    }
}
