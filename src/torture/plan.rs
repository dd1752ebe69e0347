//! The plan of one episode: what each client does and when, and which faults occur. All of it is drawn from the seed beforehand,
//! so that a part can be removed without changing the rest.

mod nodes;

use std::cmp::Reverse;

pub use crate::torture::fault::{Fault, Servers};
use crate::torture::random::Random;
use crate::torture::sim::disk::Planted;
use crate::torture::sim::replica::Flaw;
use crate::torture::sim::replica::damage::Rot;

/// For this many leases a server may serve a client that is gone, and a command may be in transit after its client gave it up. The
/// simulation and the live run keep to it; the checks rest on it.
pub const UNSEEN_LEASES: u32 = 2;

/// The settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The seed of all random choices.
    pub seed: u64,
    /// The kinds of faults.
    pub faults: Vec<Fault>,
    /// Number of clients.
    pub clients: u32,
    /// Number of locks.
    pub locks: u32,
    /// Number of independent servers.
    pub servers: u32,
    /// Length of an episode.
    pub episode_us: u64,
    /// The lease of every acquisition.
    pub lease_us: u64,
    /// Average time between the starts of a client's jobs.
    pub think_us: u64,
    /// Minimum time from the end of a server that lost data to its restart.
    pub restart_delay_us: u64,
    /// Whether the guarded resource checks fencing tokens.
    pub fencing: bool,
    /// Whether the servers are durable, and the fault that is planted in them.
    pub durable: Option<Planted>,
    /// Whether the service is replicated.
    pub replicas: Option<Replicas>,
}

/// A replicated service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// Number of nodes.
    pub nodes: u32,
    /// The fault that is planted in them.
    pub planted: Flaw,
}

impl Settings {
    /// Number of servers in the simulation, without that of the guarded resources.
    pub fn machines(&self) -> u32 {
        self.replicas.map_or(self.servers, |replicas| replicas.nodes)
    }

    /// What kind of servers there are.
    pub fn kind(&self) -> Servers {
        Servers::of(self.durable.is_some(), self.replicas.is_some())
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            faults: Vec::new(),
            clients: 4,
            locks: 1,
            servers: 1,
            episode_us: 300_000_000,
            lease_us: 10_000_000,
            think_us: 2_000_000,
            restart_delay_us: 0,
            fencing: true,
            durable: None,
            replicas: None,
        }
    }
}

/// When a fault occurs. `client` and `server` are numbers; `after_us` is the time from the command or the vote to the fault.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At this time since the beginning.
    At(u64),
    /// After a client has sent a number of commands. `nth`: the number of the command, counted from 1.
    Sent { client: u32, nth: u64, after_us: u64 },
    /// After a node has given its vote, the first one after the time `from_us`.
    Voted { server: u32, from_us: u64, after_us: u64 },
}

/// A fault, with its parameters. `client` and `server` are numbers, and a node is a server, too. `for_us` is how long the
/// fault lasts, and `again_after_us` the time until what has ended starts again. `by_ms` is the change of a clock in
/// milliseconds; `ppm` is its rate in parts per million, and positive is fast.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Injection {
    /// A client pauses: none of its code runs.
    Pause { client: u32, for_us: u64 },
    /// A client's wall clock is set.
    Jump { client: u32, by_ms: i64 },
    /// A client's clocks run fast or slow from the beginning.
    Drift { client: u32, ppm: i64 },
    /// A client crashes. With its machine, servers are not told.
    Crash { client: u32, machine: bool, again_after_us: u64 },
    /// A server ends and loses a number of its last writes. `None` stands for all data.
    Down { server: u32, lost: Option<u64>, again_after_us: u64 },
    /// The machine of a durable server loses its power. At the next boot, its wall clock is set by `wall_step_ms`
    /// milliseconds.
    PowerLoss { server: u32, wall_step_ms: i64, again_after_us: u64 },
    /// Messages between a client and a server are late, each by at most `most_us`.
    Delay { client: u32, server: u32, for_us: u64, most_us: u64 },
    /// Packets between a client and a server are lost with this probability. `breaks`: a loss may break the connection.
    Loss { client: u32, server: u32, for_us: u64, percent: u64, breaks: bool },
    /// Some nodes are cut off from others. `apart`: the nodes, and from whom they are cut off, a bit for each. `ways`:
    /// whether they cannot send, and whether they cannot receive.
    Partition { apart: (u32, u32), ways: (bool, bool), for_us: u64 },
    /// What nodes send to each other is late or lost, as on a bad network, and connections break. `most_us`: the maximum
    /// delay of a segment. `lost_percent`: how many segments are lost; they are sent again. `broken_permille`: how many are
    /// the last ones of their connections.
    Disorder { for_us: u64, most_us: u64, lost_percent: u64, broken_permille: u64 },
    /// A node stops for a time: none of its code runs.
    Stall { server: u32, for_us: u64 },
    /// A node loses its disk, if all others have theirs and it is not needed for a majority.
    Wipe { server: u32, again_after_us: u64 },
    /// The disk of a node is full or fails for a time, unless that of another one is or does. If it fails, half of the writes
    /// and syncs do.
    BadDisk { server: u32, full: bool, for_us: u64 },
    /// The disk of a node answers nothing for a time. Nothing is lost.
    HungDisk { server: u32, for_us: u64 },
    /// A node ends, and its files are damaged in this way before it starts again; if all others have theirs and it is not
    /// needed for a majority. `place` decides on where the damage is. `power`: its machine loses its power; otherwise, its
    /// process ends.
    BitRot { server: u32, rot: Rot, place: u64, power: bool, again_after_us: u64 },
    /// The nodes `away`, a bit for each, are removed from the members, and added again; if all nodes are members and have
    /// their disks. Those in `fresh` are added with an empty disk.
    Members { away: u32, fresh: u32, for_us: u64 },
    /// The node that leads then is cut off from all others, in both directions.
    CutOff { for_us: u64 },
    /// A node ends, and a node of another cluster, with the same number and the same members, runs at its address; if all
    /// nodes are members and have their disks. `place` decides on what the other node has in its log.
    Foreign { server: u32, place: u64, again_after_us: u64 },
    /// A node's clocks run fast or slow from the beginning.
    DriftOfNode { server: u32, ppm: i64 },
    /// A node's wall clock is set.
    StepOfNode { server: u32, by_ms: i64 },
    /// The reply to the command that a client sent last is lost with its connection, and the command is resent.
    Resend { client: u32 },
}

impl Injection {
    /// The number of the client that the fault concerns, if it is one of a client.
    pub fn client(&self) -> Option<u32> {
        match self {
            Injection::Pause { client, .. }
            | Injection::Jump { client, .. }
            | Injection::Drift { client, .. }
            | Injection::Crash { client, .. }
            | Injection::Delay { client, .. }
            | Injection::Loss { client, .. }
            | Injection::Resend { client } => Some(*client),
            Injection::Down { .. }
            | Injection::PowerLoss { .. }
            | Injection::Partition { .. }
            | Injection::Disorder { .. }
            | Injection::Stall { .. }
            | Injection::Wipe { .. }
            | Injection::BadDisk { .. }
            | Injection::HungDisk { .. }
            | Injection::BitRot { .. }
            | Injection::Members { .. }
            | Injection::CutOff { .. }
            | Injection::Foreign { .. }
            | Injection::DriftOfNode { .. }
            | Injection::StepOfNode { .. } => None,
        }
    }
}

/// A fault and when it occurs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedFault {
    /// When it occurs.
    pub when: When,
    /// What occurs.
    pub injection: Injection,
}

/// One job of a client: acquire a lock, work, release it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The earliest start.
    pub at_us: u64,
    /// Number of the lock.
    pub lock: u32,
    /// Maximum time to wait for the lock.
    pub wait_us: u64,
    /// Lengths of the steps of work. Before each step the client checks that it still holds the lock, and writes.
    pub steps_us: Vec<u64>,
    /// Time that the client computes between the check and the write.
    pub compute_us: u64,
    /// Whether the client renews its lease between steps.
    pub renews: bool,
}

/// The plan of one episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed of the episode.
    pub seed: u64,
    /// Number of locks.
    pub locks: u32,
    /// Number of independent servers. The guarded resources are on an additional one.
    pub servers: u32,
    /// The end of the episode, whether clients are done or not.
    pub end_us: u64,
    /// The lease of every acquisition.
    pub lease_us: u64,
    /// Whether the guarded resource checks fencing tokens.
    pub fencing: bool,
    /// Whether the servers are durable, and the fault that is planted in them.
    pub durable: Option<Planted>,
    /// Whether the service is replicated.
    pub replicas: Option<Replicas>,
    /// The jobs of each client.
    pub clients: Vec<Vec<Job>>,
    /// The faults.
    pub faults: Vec<PlannedFault>,
}

/// A fault that follows a client's command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trigger {
    /// Number of the command, counted from 1.
    pub nth: u64,
    /// Time from the command to the fault.
    pub after_us: u64,
    /// Index of the fault in the plan.
    pub fault: u32,
}

/// Random streams, by purpose.
pub(crate) mod streams {
    pub const EPISODE: u64 = 1;
    pub const JOBS: u64 = 2;
    pub const FAULTS: u64 = 3;
    pub const CLIENT: u64 = 4;
    pub const LINK: u64 = 5;
    pub const ENGINE: u64 = 6;
    pub const DISK: u64 = 7;
    pub const RAFT: u64 = 8;
    pub const NODES: u64 = 9;
    pub const NOISE: u64 = 10;
    pub const TIMER: u64 = 11;
}

impl Plan {
    /// Number of servers in the simulation, without that of the guarded resources: the next number is its.
    pub fn machines(&self) -> u32 {
        self.replicas.map_or(self.servers, |replicas| replicas.nodes)
    }

    /// Draws the plan of an episode.
    pub fn draw(settings: &Settings, episode: u64) -> Plan {
        let seed = Random::new(settings.seed, streams::EPISODE, episode).draw();
        let clients = (0..settings.clients).map(|client| jobs(settings, seed, client)).collect();
        let mut faults = Vec::new();
        for fault in &settings.faults {
            let mut random = Random::new(seed, streams::FAULTS, *fault as u64);
            draw_faults(settings, *fault, &mut random, &mut faults);
            if settings.replicas.is_some() {
                nodes::draw_faults(settings, *fault, &mut random, &mut faults);
            }
        }
        Plan {
            seed,
            locks: settings.locks,
            servers: settings.servers,
            // Long enough for the last client to wait for its maximum time behind others that do the same.
            end_us: settings.episode_us + 8 * settings.lease_us,
            lease_us: settings.lease_us,
            fencing: settings.fencing,
            durable: settings.durable,
            replicas: settings.replicas,
            clients,
            faults,
        }
    }

    /// The faults that follow a client's commands, sorted by the number of the command in descending order: [`Vec::pop_if`] takes
    /// the next one.
    pub fn triggers(&self, client: u32) -> Vec<Trigger> {
        let trigger = |(index, fault): (usize, &PlannedFault)| match fault.when {
            When::Sent { client: sender, nth, after_us } if sender == client => {
                Some(Trigger { nth, after_us, fault: index as u32 })
            }
            _ => None,
        };
        let mut triggers: Vec<_> = self.faults.iter().enumerate().filter_map(trigger).collect();
        triggers.sort_by_key(|trigger| Reverse((trigger.nth, trigger.fault)));
        triggers
    }

    /// Number of jobs of all clients.
    pub fn jobs(&self) -> usize {
        self.clients.iter().map(Vec::len).sum()
    }
}

fn jobs(settings: &Settings, seed: u64, client: u32) -> Vec<Job> {
    let random = &mut Random::new(seed, streams::JOBS, u64::from(client));
    let (lease_us, think_us) = (settings.lease_us, settings.think_us);
    let mut jobs = Vec::new();
    let mut at_us = random.below(think_us);
    while at_us < settings.episode_us {
        let renews = random.percent(5);
        let steps = random.between(1, 4);
        // Without renewal all steps together take far less than a lease: a client that exceeds its lease has met a fault.
        let step_us = |random: &mut Random| match renews {
            true => random.between(lease_us / 5, lease_us / 3),
            false => random.below(lease_us / 20),
        };
        let slow = random.percent(20);
        jobs.push(Job {
            at_us,
            lock: random.below(u64::from(settings.locks)) as u32,
            wait_us: 3 * lease_us,
            steps_us: (0..if renews { steps + 2 } else { steps }).map(|_| step_us(random)).collect(),
            compute_us: random.between(50, if slow { 20_000 } else { 1_000 }),
            renews,
        });
        at_us += random.around(think_us) + 1_000;
    }
    jobs
}

/// Average time between two faults of a kind, in tenths of a lease, for each client or server.
fn mean_interval(fault: Fault) -> u64 {
    match fault {
        Fault::Pause => 40,
        Fault::Skew => 60,
        Fault::Crash => 60,
        Fault::Restart | Fault::Lose | Fault::PowerLoss => 60,
        Fault::Delay => 30,
        Fault::Drop => 30,
        Fault::Duplicate => 20,
        Fault::Partition | Fault::Disorder | Fault::Stall => 30,
        Fault::Wipe | Fault::BadDisk | Fault::BitRot | Fault::HungDisk | Fault::Foreign => 60,
        Fault::Members | Fault::CutOff => 80,
    }
}

fn draw_faults(settings: &Settings, fault: Fault, random: &mut Random, faults: &mut Vec<PlannedFault>) {
    if fault.is_of_nodes() {
        return;
    }
    let lease_us = settings.lease_us;
    // All times scale with the lease. With a lease of ten seconds the unit is a second.
    let unit_us = lease_us / 10;
    let of_servers = matches!(fault, Fault::Restart | Fault::Lose | Fault::PowerLoss);
    let many = if of_servers { settings.machines() } else { settings.clients };
    // About as many commands as a client sends in one unit, for faults that occur right after a command.
    let per_unit = 3;
    for which in 0..many {
        if fault == Fault::Skew {
            faults.push(PlannedFault {
                when: When::At(0),
                injection: Injection::Jump { client: which, by_ms: random.below(600_000) as i64 - 300_000 },
            });
            faults.push(PlannedFault {
                when: When::At(0),
                injection: Injection::Drift { client: which, ppm: random.below(10_000) as i64 - 5_000 },
            });
        }
        let mut at_us = 0;
        loop {
            at_us += random.between(unit_us, 2 * mean_interval(fault) * unit_us);
            if at_us >= settings.episode_us {
                break;
            }
            let client = which;
            // A client's network faults also affect the server of the guarded resources.
            let server = random.below(u64::from(settings.machines()) + 1) as u32;
            let injection = match fault {
                Fault::Pause => {
                    let longest_us = if random.percent(30) { 3 * lease_us } else { lease_us * 13 / 10 };
                    Injection::Pause { client, for_us: random.between(lease_us / 10, longest_us) }
                }
                Fault::Skew => Injection::Jump { client, by_ms: random.below(240_000) as i64 - 120_000 },
                Fault::Crash => {
                    let again_after_us = random.between(unit_us, 2 * lease_us);
                    Injection::Crash { client, machine: random.percent(50), again_after_us }
                }
                Fault::Restart => Injection::Down {
                    server: which,
                    lost: (settings.kind() != Servers::Plain).then_some(0),
                    again_after_us: random.between(unit_us / 100, unit_us).max(settings.restart_delay_us),
                },
                Fault::Lose => Injection::Down {
                    server: which,
                    lost: Some(random.between(1, 12)),
                    again_after_us: random.between(unit_us / 100, unit_us).max(settings.restart_delay_us),
                },
                Fault::Delay => Injection::Delay {
                    client,
                    server,
                    for_us: random.between(unit_us, 10 * unit_us),
                    most_us: random.between(unit_us / 100, lease_us / 5),
                },
                Fault::Drop => Injection::Loss {
                    client,
                    server,
                    for_us: random.between(unit_us / 10, 3 * unit_us),
                    percent: if random.percent(50) { 100 } else { 30 },
                    breaks: random.percent(60),
                },
                Fault::Duplicate => Injection::Resend { client },
                // See `nodes`.
                Fault::Partition
                | Fault::Disorder
                | Fault::Stall
                | Fault::Wipe
                | Fault::BadDisk
                | Fault::BitRot
                | Fault::Members
                | Fault::CutOff
                | Fault::HungDisk
                | Fault::Foreign => break,
                Fault::PowerLoss => Injection::PowerLoss {
                    server: which,
                    // A lease ends earlier by as much as the clock is set forward. Clients allow for a hundredth of it.
                    wall_step_ms: match random.percent(50) {
                        true => random.below(lease_us / 500_000) as i64,
                        false => -(random.below(lease_us / 3_000) as i64),
                    },
                    again_after_us: random.between(unit_us / 100, 3 * unit_us).max(settings.restart_delay_us),
                },
            };
            let just_then = match fault {
                Fault::Duplicate => true,
                Fault::Skew | Fault::Delay => false,
                _ => random.percent(60),
            };
            let sender = if of_servers { random.below(u64::from(settings.clients)) as u32 } else { client };
            let nth = at_us / unit_us * per_unit + random.below(per_unit);
            let after_us = if random.percent(70) { random.below(1_200) } else { random.below(12_000) };
            let votes = settings.replicas.is_some() && fault == Fault::PowerLoss && random.percent(50);
            let when = if votes {
                When::Voted { server: which, from_us: at_us, after_us: random.below(600) }
            } else if just_then {
                When::Sent { client: sender, nth: nth + 1, after_us }
            } else {
                When::At(at_us)
            };
            faults.push(PlannedFault { when, injection });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn plans_follow_from_the_seed_alone() {
        let settings = Settings { faults: Fault::ALL.to_vec(), ..Settings::default() };
        assert_eq!(Plan::draw(&settings, 3), Plan::draw(&settings, 3));
        assert_ne!(Plan::draw(&settings, 3), Plan::draw(&settings, 4));
        let fewer = Plan::draw(&Settings { faults: vec![Fault::Crash], ..settings.clone() }, 3);
        let all = Plan::draw(&settings, 3);
        assert_eq!(fewer.clients, all.clients, "what goes wrong changes nothing of what is wanted");
        assert!(fewer.faults.iter().all(|fault| all.faults.contains(fault)), "nor of what else goes wrong");
    }
}
