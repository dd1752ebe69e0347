//! The plan of one episode: what each client does and when, and which faults occur. All of it is drawn from the seed beforehand,
//! so that a part can be removed without changing the rest.

use std::cmp::Reverse;
use std::fmt;

use crate::torture::random::Random;
use crate::torture::sim::disk::Planted;

/// For this many leases a server may serve a client that is gone, and a command may be in transit after its client gave it up. The
/// simulation and the live run keep to it; the checks rest on it.
pub const UNSEEN_LEASES: u32 = 2;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Clients stop for a time that may be longer than a lease, as in a garbage collection.
    Pause,
    /// Clients' wall clocks are wrong by minutes and are set, and all their clocks run fast or slow.
    Skew,
    /// Clients crash, some with their machines, and start again.
    Crash,
    /// Servers end, lose all data and start again. Durable servers start again from their files.
    Restart,
    /// Servers end and lose their last writes, as in a failover to a replica that lags behind.
    Lose,
    /// Messages are late.
    Delay,
    /// Packets are lost: TCP sends them again, or the connection breaks.
    Drop,
    /// A reply is lost with its connection, and the client library resends the command.
    Duplicate,
    /// The machines of durable servers lose their power and boot again.
    PowerLoss,
}

impl Fault {
    /// All kinds that servers without files have.
    pub const ALL: [Fault; 8] =
        [Fault::Pause, Fault::Skew, Fault::Crash, Fault::Restart, Fault::Lose, Fault::Delay, Fault::Drop, Fault::Duplicate];

    /// All kinds that durable servers have: a server on one machine does not fail over to a replica.
    pub const DURABLE: [Fault; 8] =
        [Fault::Pause, Fault::Skew, Fault::Crash, Fault::Restart, Fault::Delay, Fault::Drop, Fault::Duplicate, Fault::PowerLoss];

    /// All kinds that servers have.
    pub fn all(durable: bool) -> [Fault; 8] {
        if durable { Fault::DURABLE } else { Fault::ALL }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Pause => "pause",
            Fault::Skew => "skew",
            Fault::Crash => "crash",
            Fault::Restart => "restart",
            Fault::Lose => "lose",
            Fault::Delay => "delay",
            Fault::Drop => "drop",
            Fault::Duplicate => "duplicate",
            Fault::PowerLoss => "powerloss",
        }
    }

    /// Formats a list in the form that [`Fault::parse_list`] reads.
    pub fn format_list(faults: &[Fault]) -> String {
        match faults {
            [] => "none".to_owned(),
            faults if faults == Fault::ALL || faults == Fault::DURABLE => "all".to_owned(),
            faults => faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(","),
        }
    }

    /// Parses a list such as `pause,skew`, `all` or `none`, for servers that are durable or not.
    ///
    /// # Errors
    /// Names the word that is not a fault, or not one that such servers have.
    pub fn parse_list(text: &str, durable: bool) -> Result<Vec<Fault>, String> {
        let mut faults = Vec::new();
        let named = |list: [Fault; 8], word: &str| list.into_iter().find(|fault| fault.name() == word);
        for word in text.split(',') {
            match word {
                "none" => {}
                "all" => faults.extend(Fault::all(durable)),
                _ => match (named(Fault::all(durable), word), named(Fault::all(!durable), word)) {
                    (Some(fault), _) => faults.push(fault),
                    (None, Some(_)) if durable => return Err(format!("durable servers do not have the fault '{word}'")),
                    (None, Some(_)) => return Err(format!("only durable servers have the fault '{word}'")),
                    (None, None) => return Err(format!("'{word}' is no fault")),
                },
            }
        }
        faults.sort_unstable();
        faults.dedup();
        Ok(faults)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

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
        }
    }
}

/// When a fault occurs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At this time since the beginning.
    At(u64),
    /// After a client has sent a number of commands.
    Sent {
        /// Number of the client.
        client: u32,
        /// Number of the command, counted from 1.
        nth: u64,
        /// Time from the command to the fault.
        after_us: u64,
    },
}

/// A fault, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Injection {
    /// A client pauses: none of its code runs.
    Pause {
        /// Number of the client.
        client: u32,
        /// Length of the pause.
        for_us: u64,
    },
    /// A client's wall clock is set.
    Jump {
        /// Number of the client.
        client: u32,
        /// The change, in milliseconds.
        by_ms: i64,
    },
    /// A client's clocks run fast or slow from the beginning.
    Drift {
        /// Number of the client.
        client: u32,
        /// The rate in parts per million. Positive is fast.
        ppm: i64,
    },
    /// A client crashes.
    Crash {
        /// Number of the client.
        client: u32,
        /// Whether its machine crashes too, so that servers are not told.
        machine: bool,
        /// Time until the client starts again.
        again_after_us: u64,
    },
    /// A server ends.
    Down {
        /// Number of the server.
        server: u32,
        /// Number of its last writes that are lost. `None` stands for all data.
        lost: Option<u64>,
        /// Time until the server starts again.
        again_after_us: u64,
    },
    /// The machine of a durable server loses its power.
    PowerLoss {
        /// Number of the server.
        server: u32,
        /// How the wall clock is set at the next boot, in milliseconds.
        wall_step_ms: i64,
        /// Time until the server starts again.
        again_after_us: u64,
    },
    /// Messages between a client and a server are late.
    Delay {
        /// Number of the client.
        client: u32,
        /// Number of the server.
        server: u32,
        /// How long the fault lasts.
        for_us: u64,
        /// Maximum delay of a message.
        most_us: u64,
    },
    /// Packets between a client and a server are lost.
    Loss {
        /// Number of the client.
        client: u32,
        /// Number of the server.
        server: u32,
        /// How long the fault lasts.
        for_us: u64,
        /// Probability of a loss, in percent.
        percent: u64,
        /// Whether a loss may break the connection.
        breaks: bool,
    },
    /// The reply to the command that a client sent last is lost with its connection, and the command is resent.
    Resend {
        /// Number of the client.
        client: u32,
    },
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
            Injection::Down { .. } | Injection::PowerLoss { .. } => None,
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
}

impl Plan {
    /// Draws the plan of an episode.
    pub fn draw(settings: &Settings, episode: u64) -> Plan {
        let seed = Random::new(settings.seed, streams::EPISODE, episode).draw();
        let clients = (0..settings.clients).map(|client| jobs(settings, seed, client)).collect();
        let mut faults = Vec::new();
        for fault in &settings.faults {
            let mut random = Random::new(seed, streams::FAULTS, *fault as u64);
            draw_faults(settings, *fault, &mut random, &mut faults);
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
    }
}

fn draw_faults(settings: &Settings, fault: Fault, random: &mut Random, faults: &mut Vec<PlannedFault>) {
    let lease_us = settings.lease_us;
    // All times scale with the lease. With a lease of ten seconds the unit is a second.
    let unit_us = lease_us / 10;
    let of_servers = matches!(fault, Fault::Restart | Fault::Lose | Fault::PowerLoss);
    let many = if of_servers { settings.servers } else { settings.clients };
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
            let server = random.below(u64::from(settings.servers) + 1) as u32;
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
                    lost: settings.durable.map(|_| 0),
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
            let when = if just_then { When::Sent { client: sender, nth: nth + 1, after_us } } else { When::At(at_us) };
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

    #[test]
    fn lists_of_faults_are_read() {
        assert_eq!(Fault::parse_list("skew,pause", false).unwrap(), [Fault::Pause, Fault::Skew]);
        assert_eq!(Fault::parse_list("all", false).unwrap(), Fault::ALL);
        assert_eq!(Fault::parse_list("all", true).unwrap(), Fault::DURABLE);
        assert_eq!(Fault::parse_list("none", false).unwrap(), []);
        for (list, durable) in [("rain", false), ("rain", true), ("powerloss", false), ("lose", true)] {
            assert!(Fault::parse_list(list, durable).is_err());
        }
        for list in ["none", "all", "pause", "crash,drop"] {
            for durable in [false, true] {
                assert_eq!(Fault::format_list(&Fault::parse_list(list, durable).unwrap()), list);
            }
        }
    }
}
