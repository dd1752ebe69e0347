//! Sentinel's events, published to the subscribers of this node: clients follow the leader by them.
//!
//! The names and texts are Redis Sentinel's. Clients subscribe to `+switch-master` (redis-py does not subscribe, ioredis, Jedis,
//! Lettuce, go-redis and Redisson do), and some of them to `+slave`, `+sdown`, `-sdown` and `+failover-end`.

use std::fmt::Write;

use crate::engine::Engine;
use crate::engine::pubsub::{self, Kind};
use crate::engine::replication::{Node, Replication, State};

/// Messages with their channels, in order.
type Events = Vec<(&'static str, String)>;

impl Engine {
    /// Publishes what has changed since the `old` state, whose last leader was `before`.
    pub(super) fn announce_replication(&mut self, old: &State, before: Option<&Node>) {
        if !self.replication.is_on() || *old == self.replication.state {
            return;
        }
        for (channel, message) in self.replication.events(old, before, &self.config.cluster_name) {
            pubsub::publish(self, Kind::Channel, channel.as_bytes(), message.as_bytes());
        }
    }
}

/// `name host port`, as events name the master.
fn master_text(name: &str, node: &Node) -> String {
    format!("{name} {} {}", node.host, node.port_for(false))
}

/// `slave host:port host port @ name host port`, as events name a replica.
fn replica_text(name: &str, node: &Node, master: &Node) -> String {
    let (host, port) = (&node.host, node.port_for(false));
    format!("slave {host}:{port} {host} {port} @ {}", master_text(name, master))
}

impl Replication {
    fn events(&self, old: &State, before: Option<&Node>, name: &str) -> Events {
        let mut events = Events::new();
        let Some(master) = self.master() else { return events };
        let address = |node: &Node| (node.id, node.host.clone(), node.port_for(false));
        let old_view = Replication { state: old.clone(), last_leader: before.cloned(), ..Replication::default() };
        let switched = before.filter(|before| address(before) != address(master));
        match (before, switched, self.leader()) {
            (None, _, _) => {
                events.push(("+monitor", format!("master {} quorum {}", master_text(name, master), self.majority())));
            }
            (Some(_), Some(before), _) => {
                if before.id != master.id {
                    events.push(("+promoted-slave", replica_text(name, master, before)));
                    events.push(("+failover-end", format!("master {}", master_text(name, before))));
                }
                events.push((
                    "+switch-master",
                    format!("{} {} {}", master_text(name, before), master.host, master.port_for(false)),
                ));
            }
            (Some(_), None, None) if old_view.leader().is_some() => {
                let (text, quorum) = (master_text(name, master), self.quorum());
                events.push(("+sdown", format!("master {text}")));
                events.push(("+odown", format!("master {text} #quorum {}/{}", quorum.usable, quorum.majority)));
            }
            (Some(_), None, Some(_)) if old_view.leader().is_none() => {
                let text = master_text(name, master);
                events.push(("-sdown", format!("master {text}")));
                events.push(("-odown", format!("master {text}")));
            }
            _ => {}
        }
        // After a switch the master's replicas are named anew, as Sentinel does.
        let named_anew = before.is_none() || switched.is_some();
        for node in self.replicas() {
            let text = replica_text(name, node, master);
            match old_view.find(node.id).filter(|old| !named_anew && old.is_shown()) {
                None => {
                    let is_down = !self.is_up(node);
                    events.push(("+slave", text.clone()));
                    events.extend(is_down.then_some(("+sdown", text)));
                }
                Some(old) => match (old_view.is_up(old), self.is_up(node)) {
                    (true, false) => events.push(("+sdown", text)),
                    (false, true) => events.push(("-sdown", text)),
                    _ => {}
                },
            }
        }
        for node in self.shown_others().filter(|node| !old_view.find(node.id).is_some_and(Node::is_shown)) {
            let mut text = format!("sentinel {} {} {} ", self.name_of(node.id), node.host, node.port_for(false));
            let _ = write!(text, "@ {}", master_text(name, master));
            events.push(("+sentinel", text));
        }
        events
    }
}
