//! Refuses what only the leader may answer: on a follower, everything that reads or writes keys, locks or scripts.
//!
//! A follower never answers from its own keys, not even after `READONLY` in a cluster: a grant that it shows may have ended.

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::engine::cluster;
use crate::engine::command::{Command, Flags, Group, Traits};
use crate::engine::replication::{Patience, Role};
use crate::engine::session::SessionFlags;

impl Command {
    /// Whether its row says that it needs the keys, locks, scripts or subscribers of the whole server, so that only a leader may
    /// execute it. Commands about the process, the connection or this node's subscriptions do not.
    pub fn needs_leader(&self) -> bool {
        const NEEDS: Flags = Flags::WRITE.union(Flags::READONLY).union(Flags::MAY_REPLICATE).union(Flags::BLOCKING);
        // PUBLISH and SPUBLISH: any node takes messages for the subscribers of all. WAIT and WAITAOF refuse by themselves, as in Redis.
        if self.publishes() || self.waits_for_replicas() {
            return false;
        }
        // What Redis allows on a stale replica or while it loads: HELP, and SCRIPT KILL of what runs here.
        const NEEDS_NOTHING: Flags = Flags::STALE.union(Flags::LOADING).union(Flags::ALLOW_BUSY);
        // BGSAVE and others write the keys to a file.
        let of_files = self.flags.contains(Flags::NO_ASYNC_LOADING) && !self.flags.contains(Flags::STALE);
        let of_scripts = self.group == Group::Scripting && !self.flags.intersects(NEEDS_NOTHING);
        self.flags.intersects(NEEDS) || self.has_keys() || self.group == Group::Lock || of_files || of_scripts
    }

    /// Whether it waits for replicas.
    fn waits_for_replicas(&self) -> bool {
        self.traits.contains(Traits::WAITS_FOR_REPLICAS)
    }

    /// Whether it ends subscriptions.
    fn ends_subscriptions(&self) -> bool {
        self.traits.contains(Traits::ENDS_SUBSCRIPTIONS)
    }

    /// Whether it publishes a message.
    fn publishes(&self) -> bool {
        self.group == Group::PubSub && self.flags.contains(Flags::MAY_REPLICATE)
    }
}

impl Engine {
    /// Refuses a command that only the leader may execute, and the `EXEC` of one.
    #[cold]
    pub(in crate::engine) fn check_role(&self, id: SessionId, command: &Command, args: &[&[u8]]) -> Result {
        let queued = self.clients.sessions[id].transaction.as_ref().filter(|_| command.is_exec());
        // Shard channels belong to a slot. Without a cluster, SSUBSCRIBE is a subscription to this node as others are. The end of a
        // subscription is about the connection alone: a leader that is deposed keeps its subscribers.
        let slots = self.in_cluster() && command.slot_args.is_some() && !command.ends_subscriptions();
        // A node without a majority reaches its own subscribers only. It refuses messages, so that clients look for the majority.
        let cut_off = self.replication.state.role == Role::NoQuorum;
        let barred = |row: &Command| row.needs_leader() || (cut_off && row.publishes());
        match queued {
            // Its EXEC says why.
            Some(transaction) if transaction.refused || transaction.crosses => return Ok(()),
            Some(transaction) => {
                let rows = transaction.queue.iter().map(|queued| self.diagnosis.command_stats.row(queued.slot.into()));
                if !rows.flatten().any(barred) {
                    return Ok(());
                }
            }
            None if barred(command) || slots => {}
            None => return Ok(()),
        }
        let (flags, slot) = match queued {
            Some(transaction) => (transaction.flags, transaction.slot),
            None if self.in_cluster() => (self.flags_of(command, args), cluster::request_slot(command, args)?),
            None => (self.flags_of(command, args), None),
        };
        Err(self.not_the_leader(id, flags, slot))
    }

    /// How a request waits until a leader is known; `None` if it does not wait. These are requests of a cluster's clients:
    ///
    /// - Subscriptions to shard channels, which belong to the leader. Libraries such as Redisson break on an error in place of the
    ///   confirmation.
    /// - Questions for the nodes while the last leader is dead. Clients ask when they lose their connections to it, which is before the
    ///   next one is elected. A reply that names the dead one costs them an interval: Redisson asks again after 5 s, and Jedis retries
    ///   with growing pauses for 10 s.
    pub(in crate::engine) fn patience(&self, id: SessionId, command: &Command) -> Option<Patience> {
        let replication = &self.replication;
        if !self.in_cluster() || !replication.refuses() || replication.gives_up || replication.has_live_leader() {
            return None;
        }
        if self.clients.sessions[id].flags.intersects(SessionFlags::MULTI.union(SessionFlags::NEVER_WAITS)) {
            return None;
        }
        let fails_over = replication.state.role != Role::NoQuorum && replication.last_leader.is_some();
        if command.traits.contains(Traits::AWAITS_LEADER) {
            return Some(Patience::OF_SUBSCRIPTION);
        }
        (fails_over && command.traits.contains(Traits::ASKS_FOR_NODES)).then_some(Patience::OF_QUESTION)
    }

    /// Fails unless this server may answer from its keys: it leads, or it is not replicated. For commands that need keys only with
    /// certain arguments.
    pub(crate) fn check_leads(&self, id: SessionId) -> Result {
        if self.replication.refuses() { Err(self.not_the_leader(id, Flags::READONLY, None)) } else { Ok(()) }
    }

    /// The error of a request that the leader must execute. `slot` is that of its keys, if the server is in a cluster.
    fn not_the_leader(&self, id: SessionId, flags: Flags, slot: Option<u16>) -> Error {
        let leader = self.replication.leader();
        let address = leader.map(|node| (&node.host, node.port_for(self.uses_tls(id))));
        if self.in_cluster() {
            // Cluster clients look for the new leader when they get these: redis-py, ioredis, Jedis, go-redis and redis-rs read the
            // nodes again and retry after CLUSTERDOWN, and all follow MOVED. Requests without keys have no slot to move to.
            match (address, slot) {
                (None, _) => return Error::CLUSTER_DOWN,
                (Some((host, port)), Some(slot)) => return Error::new(format!("MOVED {slot} {host}:{port}")),
                (Some(_), None) => {}
            }
        }
        if self.replication.state.role == Role::NoQuorum {
            // Redis's code for a replica without its master is MASTERDOWN, but a client that gets READONLY does the right thing: it
            // leaves this node and asks Sentinel again. redis-py closes the connection and looks the master up before it retries,
            // ioredis's `reconnectOnError` matches this code, and go-redis, Redisson and redis-client retry after either.
            // redis-py and ioredis give MASTERDOWN to the application.
            return Error::new(
                "READONLY Link with MASTER is down: this node reaches no majority of its cluster, and neither reads nor writes.",
            );
        }
        if flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) {
            return Error::READ_ONLY_REPLICA;
        }
        match address {
            Some((host, port)) => Error::new(format!(
                "READONLY You can't read from this replica, which may be late. The master is at {host}:{port}."
            )),
            None => Error::new("READONLY You can't read from this replica, which may be late. No master is known at present."),
        }
    }

    /// Whether a session's connection uses TLS: its local port is the TLS port.
    pub(crate) fn uses_tls(&self, id: SessionId) -> bool {
        let port = self.clients.sessions[id].laddr.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        self.config.tls_port != 0 && port == Some(self.config.tls_port)
    }
}
