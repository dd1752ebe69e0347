//! How clients find the leader of a replicated service: as a plain client does, by trying its nodes.

use super::{Event, Net, SlabKey, Usage};
use crate::client::{Command, Error, Result, Value};
use crate::torture::plan::UNSEEN_LEASES;

/// Codes of errors with which a node refuses what only the leader may answer. It has not carried out the request.
const NOT_THE_LEADER: [&str; 5] = ["READONLY", "CLUSTERDOWN", "MOVED", "MASTERDOWN", "LOADING"];
/// Pause before the next node is tried, and before the first is tried again.
const PAUSE_US: (u64, u64) = (1_000, 100_000);

impl Net {
    /// Number of nodes of the replicated service; 0 if there is none.
    fn nodes(&self) -> u32 {
        if self.servers == self.known_servers { 0 } else { self.servers }
    }

    /// The machine of a server that algorithms know by its number.
    pub(super) fn machine(&self, client: u32, server: u32) -> u32 {
        match self.nodes() {
            0 => server,
            _ if server < self.known_servers => self.clients[client as usize].leader,
            nodes => nodes,
        }
    }

    /// Lets a client take any node for the leader.
    pub fn forget_leader(&mut self, client: u32) {
        let node = self.random(client) % u64::from(self.nodes().max(1));
        self.clients[client as usize].leader = node as u32;
    }

    /// Whether a command has a request id, with which it may be sent again to another node.
    pub(super) fn has_request_id(&self, command: &Command) -> bool {
        self.nodes() > 0 && command.arguments().any(|argument| argument == b"REQUEST")
    }

    /// If a call was not answered by the leader: its client takes another node for the leader, and sends the call to it if that can do
    /// no harm. Returns whether it does, or has been answered
    /// before.
    pub(super) fn moves(&mut self, key: SlabKey, result: &Result<Value>) -> bool {
        let nodes = self.nodes();
        let Some(call) = self.calls.get_mut(key.index as usize).filter(|call| call.number == key.number) else { return false };
        let conn = &self.conns[call.conn as usize];
        let (client, server) = (conn.client as usize, conn.server);
        if server >= nodes || conn.usage == Usage::Subscription {
            return false;
        }
        // It has timed out, and now its connection is closed.
        if call.done.is_some() {
            return true;
        }
        let lost = match result {
            Err(Error::Reply(reply)) if NOT_THE_LEADER.contains(&reply.code()) => false,
            Err(Error::Connect(_)) => false,
            Err(Error::Disconnected { .. } | Error::Timeout { .. }) => true,
            _ => return false,
        };
        let leader = &mut self.clients[client].leader;
        if *leader == server {
            *leader = (server + 1) % nodes;
        }
        let may_move = !lost || (call.again && matches!(result, Err(Error::Disconnected { .. })));
        if !may_move {
            return false;
        }
        if lost {
            call.resent_us = Some(self.now_us);
        }
        call.moved += 1;
        let pause_us = if call.moved.is_multiple_of(nodes) { PAUSE_US.1 } else { PAUSE_US.0 };
        // The call ends with its time-out. One without a time-out would try for ever.
        if u64::from(call.moved) > u64::from(UNSEEN_LEASES) * u64::from(nodes) * self.lease_us / PAUSE_US.1 {
            return false;
        }
        self.at(self.now_us + pause_us, Event::Again(key));
        true
    }

    /// Sends a call again, to the node that its client takes for the leader.
    pub fn send_again(&mut self, key: SlabKey) {
        let call = self.calls.get(key.index as usize).filter(|call| call.number == key.number && call.done.is_none());
        let Some((conn, command)) = call.and_then(|call| Some((call.conn, call.command.clone()?))) else { return };
        let (client, usage) = (self.conns[conn as usize].client, self.conns[conn as usize].usage);
        let leader = self.clients[client as usize].leader;
        let conn = self.conn_for(client, leader, usage);
        if let Some(call) = self.calls.get_mut(key.index as usize) {
            call.conn = conn;
        }
        self.send_call(conn, key, command);
    }
}
