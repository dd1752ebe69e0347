//! What clients are shown of the cluster.

use crate::driver::flaw::Flaw;
use crate::driver::replicated::Member;
use crate::driver::{Driver, Present};
use crate::engine::replication::{Node, Role, State};

impl Member {
    /// The state that clients see. `recorded`: whether there are changes that no batch has.
    fn state(&self, recorded: bool) -> State {
        let directory = self.node.directory();
        let status = self.node.status();
        let proposed = self.leading().map_or(0, |leading| leading.leadership.proposed());
        let mut nodes: Vec<Node> = self
            .status
            .members
            .iter()
            .map(|(&id, _)| {
                let voter = !self.status.learners.contains(&id);
                if id == self.id {
                    let position = status.applied + proposed + u64::from(recorded);
                    let client = &self.client;
                    return Node {
                        id,
                        host: client.host.clone(),
                        port: client.port,
                        tls_port: client.tls_port,
                        voter,
                        link_up: true,
                        lag_ms: 0,
                        position,
                    };
                }
                let peer = directory.get(id);
                let client = peer.as_ref().and_then(|peer| peer.client().cloned());
                let heard = peer.as_ref().and_then(|peer| peer.last_heard);
                Node {
                    id,
                    host: client.as_ref().map_or_else(String::new, |client| client.host.clone()),
                    port: client.as_ref().map_or(0, |client| client.port),
                    tls_port: client.as_ref().map_or(0, |client| client.tls_port),
                    voter,
                    link_up: peer.is_some_and(|peer| peer.connected || peer.inbound > 0),
                    lag_ms: heard.map_or(0, |heard| heard.as_millis() as u64),
                    position: status.matched.get(&id).copied().unwrap_or(0),
                }
            })
            .collect();
        if !nodes.iter().any(|node| node.id == self.id) {
            let client = &self.client;
            nodes.push(Node {
                id: self.id,
                host: client.host.clone(),
                port: client.port,
                tls_port: client.tls_port,
                link_up: true,
                ..Node::default()
            });
            nodes.sort_by_key(|node| node.id);
        }
        State {
            role: self.state.role(self.id, self.status.leader, self.was_alone),
            // Clients tell clusters of the same name apart by it.
            cluster: self.cluster ^ self.status.cluster,
            node: self.id,
            term: self.status.term,
            nodes,
            handing_over: self.handing_over.is_some(),
        }
    }
}

impl Driver {
    /// Shows clients the present state of the cluster.
    pub(super) fn show_cluster(&mut self, at: Present) {
        let recorded = self.log().is_some_and(|log| log.records.pending_bytes() > 0);
        let state = self.member().map(|member| member.state(recorded));
        let shown = state.map(|state| State { role: self.role_shown(state.role), ..state });
        shown.into_iter().for_each(|state| self.engine.set_replication(at.now, state));
    }

    /// The role that clients see: with a flaw planted, another one than it is.
    fn role_shown(&self, role: Role) -> Role {
        let answers = match role {
            Role::Follower { .. } => self.has_flaw(Flaw::FollowerAnswers),
            // Otherwise the engine ends the waits by an error.
            Role::NoQuorum => self.has_flaw(Flaw::WaitersLeft),
            Role::Leader | Role::Single => false,
        };
        if answers { Role::Leader } else { role }
    }
}
