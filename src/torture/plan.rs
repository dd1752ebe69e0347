//! One episode before it is run: who wants what and when, and what goes wrong. All of it is drawn from the seed beforehand, so that a part
//! can be taken out and the rest stays as it was.

use std::fmt;

use crate::torture::random::Random;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Clients stop for a time that may be longer than a lease, as in a collection of garbage.
    Pause,
    /// Clients' wall clocks are wrong by minutes and are set, and their clocks run fast or slow.
    Skew,
    /// Clients crash, some with their machines, and start again.
    Crash,
    /// Servers end, lose everything and start again.
    Restart,
    /// Servers end and lose their last writes, as in a fail-over to a replica that was behind.
    Lose,
    /// Messages are late.
    Delay,
    /// Messages get lost: TCP sends them again, or the connection breaks.
    Drop,
    /// Clients' libraries send a command again whose reply was lost with its connection.
    Duplicate,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 8] =
        [Fault::Pause, Fault::Skew, Fault::Crash, Fault::Restart, Fault::Lose, Fault::Delay, Fault::Drop, Fault::Duplicate];

    /// Its name.
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
        }
    }

    /// Writes a list as [`Fault::read_list`] reads it.
    pub fn write_list(faults: &[Fault]) -> String {
        match faults {
            [] => "none".to_owned(),
            faults if faults.len() == Fault::ALL.len() => "all".to_owned(),
            faults => faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(","),
        }
    }

    /// Reads a list such as `pause,skew`, `all` or `none`.
    ///
    /// # Errors
    /// The word that is no fault.
    pub fn read_list(text: &str) -> Result<Vec<Fault>, String> {
        let mut faults = Vec::new();
        for word in text.split(',') {
            match word {
                "none" => {}
                "all" => faults.extend(Fault::ALL),
                _ => match Fault::ALL.iter().find(|fault| fault.name() == word) {
                    Some(fault) => faults.push(*fault),
                    None => return Err(format!("'{word}' is no fault")),
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

/// The measure of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What all chance follows from.
    pub seed: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Clients of an episode.
    pub clients: u32,
    /// Locks of an episode.
    pub locks: u32,
    /// Independent servers.
    pub servers: u32,
    /// How long an episode lasts.
    pub episode_us: u64,
    /// The lease of every acquisition.
    pub lease_us: u64,
    /// From one wish of a client to its next, on average.
    pub think_us: u64,
    /// A server that has lost something starts no sooner than this after its end.
    pub restart_delay_us: u64,
    /// Whether the guarded resource looks at fencing tokens.
    pub fencing: bool,
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
        }
    }
}

/// When something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At this time.
    At(u64),
    /// So long after a client has sent its so-manieth command.
    Sent {
        /// Which client.
        client: u32,
        /// Which command; the first is 1.
        nth: u64,
        /// How long after it.
        after_us: u64,
    },
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Harm {
    /// Nothing of a client runs.
    Pause {
        /// Which client.
        client: u32,
        /// For how long.
        for_us: u64,
    },
    /// A client's wall clock is set.
    Jump {
        /// Which client.
        client: u32,
        /// By how much.
        by_ms: i64,
    },
    /// A client's clocks run fast or slow; from the beginning on.
    Drift {
        /// Which client.
        client: u32,
        /// By so many millionths.
        ppm: i64,
    },
    /// A client crashes.
    Crash {
        /// Which client.
        client: u32,
        /// With its machine: nobody tells the servers.
        machine: bool,
        /// When it starts again.
        again_after_us: u64,
    },
    /// A server ends.
    Down {
        /// Which server.
        server: u32,
        /// So many writes are lost; all where it is `None`.
        lost: Option<u64>,
        /// When it starts again.
        again_after_us: u64,
    },
    /// Messages between a client and a server are late.
    Delay {
        /// Which client.
        client: u32,
        /// Which server.
        server: u32,
        /// How long that lasts.
        for_us: u64,
        /// How late they are at most.
        most_us: u64,
    },
    /// Messages between a client and a server get lost.
    Loss {
        /// Which client.
        client: u32,
        /// Which server.
        server: u32,
        /// How long that lasts.
        for_us: u64,
        /// How many of a hundred.
        percent: u64,
        /// Whether connections break by it.
        breaks: bool,
    },
    /// The reply to the command that a client has just sent is lost with its connection, and the command sent again.
    Resend {
        /// Which client.
        client: u32,
    },
}

impl Harm {
    /// The client that it concerns, if it is one.
    pub fn client(&self) -> Option<u32> {
        match self {
            Harm::Pause { client, .. }
            | Harm::Jump { client, .. }
            | Harm::Drift { client, .. }
            | Harm::Crash { client, .. }
            | Harm::Delay { client, .. }
            | Harm::Loss { client, .. }
            | Harm::Resend { client } => Some(*client),
            Harm::Down { .. } => None,
        }
    }
}

/// Something that goes wrong, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    /// When.
    pub when: When,
    /// What.
    pub harm: Harm,
}

/// What a client wants once.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// When it wants it, or later.
    pub at_us: u64,
    /// Which lock.
    pub lock: u32,
    /// How long it waits for it.
    pub wait_us: u64,
    /// Steps of its work: between two of them it writes, and sees to it that it still holds the lock.
    pub steps_us: Vec<u64>,
    /// How long it computes between looking whether it holds the lock and writing.
    pub compute_us: u64,
    /// Whether it renews its lease as it works.
    pub renews: bool,
}

/// One episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What the luck of clients and links follows from.
    pub seed: u64,
    /// Locks.
    pub locks: u32,
    /// Independent servers; the guarded resources are on one more.
    pub servers: u32,
    /// When it ends for who is not done by then.
    pub end_us: u64,
    /// The lease of every acquisition.
    pub lease_us: u64,
    /// Whether the guarded resource looks at fencing tokens.
    pub fencing: bool,
    /// What each client wants.
    pub clients: Vec<Vec<Wish>>,
    /// What goes wrong.
    pub faults: Vec<Planned>,
}

/// Purposes of chance.
pub(crate) mod purpose {
    pub const EPISODE: u64 = 1;
    pub const WISHES: u64 = 2;
    pub const FAULTS: u64 = 3;
    pub const CLIENT: u64 = 4;
    pub const LINK: u64 = 5;
    pub const ENGINE: u64 = 6;
}

impl Plan {
    /// The plan of an episode, by its number.
    pub fn draw(settings: &Settings, episode: u64) -> Plan {
        let seed = Random::new(settings.seed, purpose::EPISODE, episode).draw();
        let clients = (0..settings.clients).map(|client| wishes(settings, seed, client)).collect();
        let mut faults = Vec::new();
        for fault in &settings.faults {
            let mut random = Random::new(seed, purpose::FAULTS, *fault as u64);
            draw_faults(settings, *fault, &mut random, &mut faults);
        }
        Plan {
            seed,
            locks: settings.locks,
            servers: settings.servers,
            // Whoever began last has had the time to wait, and to have waited for those who waited.
            end_us: settings.episode_us + 8 * settings.lease_us,
            lease_us: settings.lease_us,
            fencing: settings.fencing,
            clients,
            faults,
        }
    }

    /// Wishes of all clients.
    pub fn wishes(&self) -> usize {
        self.clients.iter().map(Vec::len).sum()
    }
}

fn wishes(settings: &Settings, seed: u64, client: u32) -> Vec<Wish> {
    let random = &mut Random::new(seed, purpose::WISHES, u64::from(client));
    let (lease_us, think_us) = (settings.lease_us, settings.think_us);
    let mut wishes = Vec::new();
    let mut at_us = random.below(think_us);
    while at_us < settings.episode_us {
        let renews = random.percent(5);
        let steps = random.between(1, 4);
        // Without renewal all of the work takes less than a lease by far: whoever is late has met with something.
        let step_us = |random: &mut Random| match renews {
            true => random.between(lease_us / 5, lease_us / 3),
            false => random.below(lease_us / 20),
        };
        let slow = random.percent(20);
        wishes.push(Wish {
            at_us,
            lock: random.below(u64::from(settings.locks)) as u32,
            wait_us: 3 * lease_us,
            steps_us: (0..if renews { steps + 2 } else { steps }).map(|_| step_us(random)).collect(),
            compute_us: random.between(50, if slow { 20_000 } else { 1_000 }),
            renews,
        });
        at_us += random.around(think_us) + 1_000;
    }
    wishes
}

/// How often a fault comes: once in so many tenths of a lease, for each client or server.
fn every(fault: Fault) -> u64 {
    match fault {
        Fault::Pause => 40,
        Fault::Skew => 60,
        Fault::Crash => 60,
        Fault::Restart | Fault::Lose => 60,
        Fault::Delay => 30,
        Fault::Drop => 30,
        Fault::Duplicate => 20,
    }
}

fn draw_faults(settings: &Settings, fault: Fault, random: &mut Random, faults: &mut Vec<Planned>) {
    let lease_us = settings.lease_us;
    // All times go by the lease: a second where that is ten.
    let unit_us = lease_us / 10;
    let of_servers = matches!(fault, Fault::Restart | Fault::Lose);
    let many = if of_servers { settings.servers } else { settings.clients };
    // Commands that a client sends in that time, more or less: for faults that come just as one is under way.
    let per_unit = 3;
    for which in 0..many {
        if fault == Fault::Skew {
            faults.push(Planned {
                when: When::At(0),
                harm: Harm::Jump { client: which, by_ms: random.below(600_000) as i64 - 300_000 },
            });
            faults.push(Planned {
                when: When::At(0),
                harm: Harm::Drift { client: which, ppm: random.below(10_000) as i64 - 5_000 },
            });
        }
        let mut at_us = 0;
        loop {
            at_us += random.between(unit_us, 2 * every(fault) * unit_us);
            if at_us >= settings.episode_us {
                break;
            }
            let client = which;
            // The resource's server is one of those that a client speaks with, as far as the network is concerned.
            let server = random.below(u64::from(settings.servers) + 1) as u32;
            let harm = match fault {
                Fault::Pause => {
                    let longest_us = if random.percent(30) { 3 * lease_us } else { lease_us * 13 / 10 };
                    Harm::Pause { client, for_us: random.between(lease_us / 10, longest_us) }
                }
                Fault::Skew => Harm::Jump { client, by_ms: random.below(240_000) as i64 - 120_000 },
                Fault::Crash => {
                    let again_after_us = random.between(unit_us, 2 * lease_us);
                    Harm::Crash { client, machine: random.percent(50), again_after_us }
                }
                Fault::Restart => Harm::Down {
                    server: which,
                    lost: None,
                    again_after_us: random.between(unit_us / 100, unit_us).max(settings.restart_delay_us),
                },
                Fault::Lose => Harm::Down {
                    server: which,
                    lost: Some(random.between(1, 12)),
                    again_after_us: random.between(unit_us / 100, unit_us).max(settings.restart_delay_us),
                },
                Fault::Delay => Harm::Delay {
                    client,
                    server,
                    for_us: random.between(unit_us, 10 * unit_us),
                    most_us: random.between(unit_us / 100, lease_us / 5),
                },
                Fault::Drop => Harm::Loss {
                    client,
                    server,
                    for_us: random.between(unit_us / 10, 3 * unit_us),
                    percent: if random.percent(50) { 100 } else { 30 },
                    breaks: random.percent(60),
                },
                Fault::Duplicate => Harm::Resend { client },
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
            faults.push(Planned { when, harm });
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
        assert_eq!(Fault::read_list("skew,pause").unwrap(), [Fault::Pause, Fault::Skew]);
        assert_eq!(Fault::read_list("all").unwrap(), Fault::ALL);
        assert_eq!(Fault::read_list("none").unwrap(), []);
        assert!(Fault::read_list("rain").is_err());
        for list in ["none", "all", "pause", "crash,drop"] {
            assert_eq!(Fault::write_list(&Fault::read_list(list).unwrap()), list);
        }
    }
}
