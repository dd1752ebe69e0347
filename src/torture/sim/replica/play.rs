//! The part of an episode that nodes play: their tasks, their sockets, and their faults.

use crate::persist::disk::simulated::Injected;
use crate::torture::history::{EventKind, NO_CLIENT};
use crate::torture::plan::Injection;
use crate::torture::sim::Simulation;
use crate::torture::sim::net::Event;
use crate::torture::sim::replica::node::{End, Replica};
use crate::torture::sim::world::lock;

/// Time after which a node is started again that could not go on or start because of its disk.
const AGAIN_US: u64 = 1_000_000;
/// Time after which nobody waits any more at a former leader that runs: it has noticed by then that it reaches no majority.
const LEFT_WAITING_US: u64 = 6_000_000;
/// Time in which the process of another node starts at a node's address.
const AWAY_US: u64 = 10_000;

impl Simulation<'_> {
    /// Whether a node could not start because of its disk, and is started again later.
    pub(in crate::torture::sim) fn starts_later(&self, server: u32) -> bool {
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        let replica = self.servers[server as usize].replica.as_ref();
        let bad = replica.is_some_and(|replica| replica.is_bad() || replica.hangs(now_us).is_some());
        if bad {
            let at_us = net.now_us + AGAIN_US;
            net.at(at_us, Event::Up(server));
        }
        bad
    }

    /// Whether a node has refused files that are damaged: then its operator deletes them, and starts it again.
    pub(in crate::torture::sim) fn starts_anew(&mut self, server: u32) -> bool {
        let deleted = self.delete_if_damaged(server);
        if deleted {
            let mut net = lock(&self.net);
            let at_us = net.now_us + AGAIN_US;
            net.at(at_us, Event::Up(server));
        }
        deleted
    }

    /// Deletes the files of a node that were damaged, and that it could not read. Returns whether there were any.
    fn delete_if_damaged(&mut self, server: u32) -> bool {
        let replica = self.servers[server as usize].replica.as_mut();
        let Some(replica) = replica.filter(|replica| replica.damaged && !replica.is_bad()) else { return false };
        replica.wipe();
        lock(&self.net).record(NO_CLIENT, EventKind::Replaced { server });
        true
    }

    /// Whether a node may lose its disk, or a part of it: all others have theirs, and what was in them; and all are members.
    fn may_lose_a_disk(&self, now_us: u64) -> bool {
        if self.cluster.as_ref().is_some_and(|cluster| cluster.operator.is_busy()) {
            return false;
        }
        let committed = self.servers.iter().map(|server| server.committed()).max().unwrap_or(0);
        self.servers.iter().all(|server| server.has_all(now_us, committed))
    }

    /// Starts all nodes.
    pub(in crate::torture::sim) fn start_nodes(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        // Clocks that run fast or slow do so from the beginning.
        for fault in &self.plan.faults {
            if let Injection::DriftOfNode { server, ppm } = fault.injection {
                cluster.runtime.set_ppm(server, ppm);
                if let Some(replica) = &mut self.servers[server as usize].replica {
                    replica.ppm = ppm;
                }
            }
        }
        let mut net = lock(&self.net);
        net.record(NO_CLIENT, EventKind::Leaderless);
        for server in 0..cluster.nodes as usize {
            self.servers[server].start_node(&mut net, &mut cluster.runtime);
        }
    }

    /// Runs the nodes' tasks, and carries out what they ask of their servers. Returns whether there was anything.
    pub(in crate::torture::sim) fn settle_nodes(&mut self) -> bool {
        let Some(cluster) = &mut self.cluster else { return false };
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        let mut any = cluster.runtime.run(now_us);
        let ran = cluster.runtime.take_ran();
        for server in (0..cluster.nodes).filter(|server| ran >> server & 1 == 1) {
            let of = &mut self.servers[server as usize];
            if of.stalled_until_us > now_us {
                continue;
            }
            any |= of.serve_node(&mut net, &cluster.runtime);
            cluster.runtime.enter_thread(server, now_us);
            if let Some(replica) = &mut of.replica
                && let Some(work_us) = replica.work(now_us)
            {
                net.at(now_us + work_us, Event::Synced(server, replica.number));
            }
        }
        any |= cluster.send(&mut net);
        let of = &mut self.servers;
        let ended = (0..cluster.nodes).find(|server| of[*server as usize].take_ended().is_some());
        if let Some(server) = ended {
            net.record(NO_CLIENT, EventKind::Down { server, lost: Some(0) });
            net.at(now_us + AGAIN_US, Event::Up(server));
            drop(net);
            self.servers[server as usize].down(&self.net, Some(0), false);
            self.end_node(server, End::InOrder);
            // What it cannot read of damaged files, it cannot read the next time.
            self.delete_if_damaged(server);
            return true;
        }
        if !any {
            let servers = &self.servers;
            let runs = |node: u32| servers[node as usize].up && servers[node as usize].stalled_until_us <= now_us;
            // One whose disk takes what it writes, and that belongs to the cluster.
            let stores = |replica: &Replica| !replica.is_bad() && replica.hangs(now_us).is_none() && !replica.is_away();
            let acts = |node: u32| runs(node) && servers[node as usize].replica.as_deref().is_none_or(stores);
            let serves = |node: &u32| {
                // A leader that stands still serves nobody. One whose disk hangs does, as long as the others store what it sends.
                let voters = servers[*node as usize].serves().filter(|_| runs(*node));
                voters.is_some_and(|voters| cluster.reaches_majority(now_us, *node, voters, acts))
            };
            let leader = (0..cluster.nodes).find(serves);
            if leader != cluster.leader {
                (cluster.leader, net.serving_node) = (leader, leader);
                cluster.leader_since_us = now_us;
                if let Some(leader) = leader {
                    net.at(now_us + LEFT_WAITING_US, Event::NobodyWaits(leader, now_us));
                }
                net.record(NO_CLIENT, leader.map_or(EventKind::Leaderless, |server| EventKind::Leads { server }));
            }
            for server in 0..cluster.nodes {
                let of = &mut self.servers[server as usize];
                let leads = of.stalled_until_us <= now_us && of.serves().is_some();
                if let Some(for_us) = of.replica.as_mut().and_then(|replica| replica.is_hung_leader(now_us, leads)) {
                    net.record(NO_CLIENT, EventKind::HungLeader { server, for_us });
                }
            }
        }
        any
    }

    /// Rings the nodes' next alarms, if they are due before anything else. Returns whether they are.
    pub(in crate::torture::sim) fn ring(&mut self) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let mut net = lock(&self.net);
        let Some(at_us) = cluster.runtime.next_us().filter(|at_us| *at_us <= self.plan.end_us) else { return false };
        if net.next_us().is_some_and(|next_us| next_us < at_us) {
            return false;
        }
        net.now_us = net.now_us.max(at_us);
        cluster.runtime.ring(net.now_us);
        true
    }

    /// Whether an event is one of a node that stands still: then it comes when the node goes on. Otherwise the code of its node runs, if it is one of a server.
    pub(in crate::torture::sim) fn waits_for_node(&mut self, event: Event) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let mut net = lock(&self.net);
        let server = match event {
            Event::ToServer(conn) | Event::BrokenAtServer(conn) => net.conn(conn).server,
            Event::Tick(server) | Event::Threads(server) | Event::Synced(server, _) | Event::Noise(server) => server,
            _ => return false,
        };
        let until_us = self.servers[server as usize].stalled_until_us;
        if until_us > net.now_us {
            net.at(until_us, event);
            return true;
        }
        if server < cluster.nodes {
            cluster.runtime.enter(server, net.now_us);
        }
        false
    }

    /// A disk has done its work.
    pub(in crate::torture::sim) fn synced(&mut self, server: u32, process: u64) {
        let replica = self.servers[server as usize].replica.as_mut();
        let Some(replica) = replica.filter(|replica| replica.number == process) else { return };
        let mut net = lock(&self.net);
        let now_us = net.now_us;
        if let Some(until_us) = replica.hangs(now_us) {
            return net.at(until_us, Event::Synced(server, process));
        }
        replica.worked(now_us);
        if let Some(work_us) = replica.work(now_us) {
            net.at(now_us + work_us, Event::Synced(server, process));
        }
    }

    /// Handles an event that only nodes have.
    pub(in crate::torture::sim) fn handle_of_nodes(&mut self, event: Event) {
        let Some(cluster) = &mut self.cluster else { return };
        match event {
            Event::Arrives(..) | Event::SentAgain(..) | Event::Breaks(_) => cluster.handle(&mut lock(&self.net), event),
            Event::NobodyWaits(leader, since_us) if (cluster.leader, cluster.leader_since_us) == (Some(leader), since_us) => {
                let (nodes, mut net) = (cluster.nodes, lock(&self.net));
                let others = self.servers[..nodes as usize].iter().filter(|server| server.number != leader);
                let running = others.filter(|server| server.up && server.stalled_until_us + LEFT_WAITING_US < net.now_us);
                let waiting: Vec<_> = running.flat_map(|server| server.waiting()).collect();
                waiting.into_iter().for_each(|conn| net.record_left_waiting(conn));
            }
            Event::Operate => self.operate(),
            Event::Home(server) => self.come_home(server),
            Event::Mended(server) => {
                if let Some(replica) = &mut self.servers[server as usize].replica {
                    replica.set_bad(None);
                }
            }
            // It may have been stopped again meanwhile.
            Event::GoOn(server) if self.servers[server as usize].stalled_until_us <= lock(&self.net).now_us => {
                let now_us = lock(&self.net).now_us;
                cluster.runtime.resume(server, now_us);
                // Before it reads anything that has come meanwhile.
                self.servers[server as usize].go_on(&mut lock(&self.net));
            }
            _ => {}
        }
    }

    /// The process of a node ends.
    pub(in crate::torture::sim) fn end_node(&mut self, server: u32, how: End) {
        let now_us = lock(&self.net).now_us;
        let of = &mut self.servers[server as usize];
        if let (Some(cluster), Some(replica)) = (&mut self.cluster, &mut of.replica) {
            cluster.runtime.resume(server, now_us);
            of.stalled_until_us = 0;
            replica.end_process(&mut cluster.runtime, &mut of.driver, now_us, how);
        }
    }

    /// The node of another cluster ends, and the node to whose address it came starts again.
    fn come_home(&mut self, server: u32) {
        let was_up = self.servers[server as usize].down(&self.net, Some(0), false);
        self.end_node(server, End::Killed);
        if let Some(replica) = &mut self.servers[server as usize].replica {
            replica.come_home();
        }
        // If it was down, it starts again by another event.
        if was_up {
            let mut net = lock(&self.net);
            net.record(NO_CLIENT, EventKind::Down { server, lost: Some(0) });
            let at_us = net.now_us + AWAY_US;
            net.at(at_us, Event::Up(server));
        }
    }

    /// Sets the wall clock of a node.
    pub(in crate::torture::sim) fn step_node(&mut self, server: u32, by_ms: i64) {
        let of = &mut self.servers[server as usize];
        if let Some(replica) = &mut of.replica {
            replica.wall_ms += by_ms;
            of.clock.step_wall(by_ms);
        }
    }

    /// A fault that only nodes have.
    pub(in crate::torture::sim) fn inject_in_nodes(&mut self, injection: Injection) {
        let now_us = lock(&self.net).now_us;
        let Some(cluster) = &mut self.cluster else { return };
        let kind = match injection {
            Injection::Partition { apart, ways, for_us } => {
                cluster.links.part(now_us + for_us, apart, ways);
                EventKind::Partition { apart, ways, for_us }
            }
            Injection::CutOff { for_us } => {
                let Some(leader) = cluster.leader else { return };
                let (apart, ways) = ((1 << leader, !(1 << leader)), (true, true));
                cluster.links.part(now_us + for_us, apart, ways);
                EventKind::Partition { apart, ways, for_us }
            }
            Injection::Disorder { for_us, most_us, lost_percent, broken_permille } => {
                cluster.links.disorder(now_us + for_us, most_us, lost_percent, broken_permille);
                EventKind::Disorder { for_us }
            }
            Injection::Stall { server, for_us } => {
                let of = &mut self.servers[server as usize];
                if !of.up || of.stalled_until_us > now_us {
                    return;
                }
                of.stalled_until_us = now_us + for_us;
                cluster.runtime.pause(server);
                lock(&self.net).at(now_us + for_us, Event::GoOn(server));
                EventKind::Stall { server, for_us }
            }
            Injection::BadDisk { server, full, for_us } => {
                let bad = |server: &crate::torture::sim::server::Server| {
                    server.replica.as_ref().is_some_and(|replica| replica.is_bad())
                };
                let any = self.servers.iter().any(bad);
                let Some(replica) = self.servers[server as usize].replica.as_mut().filter(|_| !any) else { return };
                replica.set_bad(Some(if full { Injected::Full } else { Injected::Failed }));
                lock(&self.net).at(now_us + for_us, Event::Mended(server));
                EventKind::BadDisk { server, full, for_us }
            }
            Injection::HungDisk { server, for_us } => {
                let Some(replica) = self.servers[server as usize].replica.as_mut() else { return };
                replica.hang(now_us + for_us);
                EventKind::HungDisk { server, for_us }
            }
            Injection::Wipe { server, again_after_us } => {
                if !self.may_lose_a_disk(now_us) || !self.servers[server as usize].down(&self.net, Some(0), true) {
                    return;
                }
                self.end_node(server, End::PowerLost);
                if let Some(replica) = &mut self.servers[server as usize].replica {
                    replica.wipe();
                }
                lock(&self.net).at(now_us + again_after_us, Event::Up(server));
                EventKind::Wipe { server }
            }
            Injection::BitRot { server, rot, place, power, again_after_us } => {
                if !self.may_lose_a_disk(now_us) || !self.servers[server as usize].down(&self.net, Some(0), power) {
                    return;
                }
                self.end_node(server, if power { End::PowerLost } else { End::Killed });
                let up_us = now_us + again_after_us;
                if let Some(replica) = &mut self.servers[server as usize].replica {
                    replica.damage(rot, place, up_us);
                }
                lock(&self.net).at(up_us, Event::Up(server));
                EventKind::BitRot { server, rot }
            }
            Injection::Foreign { server, place, again_after_us } => {
                if !self.may_lose_a_disk(now_us) || !self.servers[server as usize].down(&self.net, Some(0), false) {
                    return;
                }
                self.end_node(server, End::Killed);
                let mut net = lock(&self.net);
                let Some(replica) = &mut self.servers[server as usize].replica else { return };
                match replica.send_away(place) {
                    Ok(()) => net.at(now_us + again_after_us, Event::Home(server)),
                    Err(reason) => tracing::debug!(reason, "there is no other node"),
                }
                net.at(now_us + AWAY_US, Event::Up(server));
                EventKind::Foreign { server, for_us: again_after_us }
            }
            Injection::Members { away, fresh, for_us } => {
                if !self.may_lose_a_disk(now_us) {
                    return;
                }
                self.change_members(away, fresh, now_us + for_us);
                EventKind::Members { away, for_us }
            }
            Injection::DriftOfNode { server, ppm } => EventKind::DriftOfNode { server, ppm },
            Injection::StepOfNode { server, by_ms } => {
                self.step_node(server, by_ms);
                EventKind::StepOfNode { server, by_ms }
            }
            _ => return,
        };
        lock(&self.net).record(NO_CLIENT, kind);
    }
}
