//! Messages of clients for the subscribers of other nodes.
//!
//! ```text
//!   PUBLISH ─▶ subscribers of this node
//!        └──▶ Relay ─▶ driver ── when what the message may show is settled ──▶ other nodes ─▶ Engine::deliver ─▶ their subscribers
//! ```
//!
//! Keyspace events and Sentinel's events stay on their node. A message that finds no other node is lost, as in Redis.

use crate::engine::Engine;
use crate::engine::pubsub::deliver::publish;
use crate::engine::pubsub::relayed::Relayed;
use crate::engine::pubsub::subscriptions::Kind;

/// Delivers a message as [`publish`] does, and gives it to the driver for the other nodes.
pub fn publish_to_all(engine: &mut Engine, kind: Kind, channel: &[u8], message: &[u8]) -> usize {
    engine.clients.pubsub.relay.add(kind, channel, message);
    publish(engine, kind, channel, message)
}

impl Engine {
    /// Delivers a message of another node to the subscribers of this one.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "without nodes nothing arrives"))]
    pub fn deliver(&mut self, relayed: &Relayed) {
        publish(self, relayed.kind, &relayed.channel, &relayed.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;
    use crate::engine::replication::Role;

    #[test]
    fn messages_of_clients_go_to_other_nodes_and_come_from_them_but_not_back() {
        let mut h = Harness::replicated(Role::Leader, false);
        h.script(&[
            ("CONFIG SET notify-keyspace-events KEA", "+OK"),
            ("SET a 1", "+OK"),
            ("PUBLISH news 1", ":0"),
            ("MULTI", "+OK"),
            ("PUBLISH news 2", "+QUEUED"),
            ("EXEC", "*1 :0"),
            ("SPUBLISH shard 3", ":0"),
        ]);
        assert_eq!(h.args(&[b"EVAL", b"return redis.call('PUBLISH', 'news', 4)", b"0"]), b":0\r\n");
        let sent = h.engine.clients.pubsub.relay.take();
        let shown: Vec<_> = sent.iter().map(|sent| (sent.kind, String::from_utf8_lossy(&sent.message).into_owned())).collect();
        let of = |kind, message: &str| (kind, message.to_owned());
        assert_eq!(shown, [of(Kind::Channel, "1"), of(Kind::Channel, "2"), of(Kind::Shard, "3"), of(Kind::Channel, "4")]);

        h.become_one(Role::Follower { leader: Some(2) });
        h.script(&[("SUBSCRIBE news", "*3 $9 subscribe $4 news :1"), ("PSUBSCRIBE n*", "*3 $10 psubscribe $2 n* :2")]);
        h.engine.deliver(&sent[0]);
        h.engine.deliver(&sent[2]);
        assert_eq!(h.outbox(h.session), "*3 $7 message $4 news $1 1 *4 $8 pmessage $2 n* $4 news $1 1");
        assert!(!h.engine.clients.pubsub.relay.has_messages(), "it does not go back");
        let other = h.engine.connect(h.now, crate::engine::session::Peer::default());
        h.engine.execute(h.now, other, &[b"PUBLISH", b"news", b"5"]);
        assert_eq!(h.outbox(other), ":2");
        assert_eq!(h.engine.clients.pubsub.relay.take().len(), 1, "a follower's message goes to all nodes as well");
    }

    #[test]
    fn a_server_without_nodes_gathers_no_messages() {
        let mut h = Harness::new();
        h.script(&[("PUBLISH news 1", ":0")]);
        assert!(!h.engine.clients.pubsub.relay.has_messages());
    }
}
