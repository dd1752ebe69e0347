//! The kinds of faults, by their names on the command line.

named! {
    /// A kind of fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Fault in EVERY {
        /// Clients stop for a time that may be longer than a lease, as in a garbage collection.
        Pause = "pause": "clients stop for up to three leases, as in a garbage collection",
        /// Clients' wall clocks are wrong by minutes and are set, and all their clocks run fast or slow. So do those of nodes.
        Skew = "skew": "wall clocks are wrong by minutes and are set; clocks run fast or slow",
        /// Clients crash, some with their machines, and start again.
        Crash = "crash": "clients crash, half of them with their machines, and start again",
        /// Servers end, lose all data and start again. Durable servers and nodes start again from their files.
        Restart = "restart": "servers end, lose all data unless they keep files, and start again",
        /// Servers end and lose their last writes, as in a failover to a replica that lags behind.
        Lose = "lose": "servers end and lose their last writes, as in a failover to a replica that lags",
        /// Messages are late.
        Delay = "delay": "messages are late",
        /// Packets are lost: TCP sends them again, or the connection breaks.
        Drop = "drop": "packets are lost: messages are late, or connections break",
        /// A reply is lost with its connection, and the client library resends the command.
        Duplicate = "duplicate": "a reply is lost with its connection, and the client library sends the command again",
        /// The machines of durable servers and nodes lose their power and boot again.
        PowerLoss = "powerloss": "machines of servers lose their power and boot again",
        /// Nodes are cut off from other nodes, in one direction or in both.
        Partition = "partition": "nodes are cut off from others, in one direction or in both",
        /// What nodes send to each other is late or lost, and connections break.
        Disorder = "disorder": "what nodes send to each other is late or lost, and connections break",
        /// Nodes stop for a time.
        Stall = "stall": "nodes stop for a time",
        /// Nodes lose their disks: one at a time, so that a majority has what was committed.
        Wipe = "wipe": "nodes lose their disks, one at a time",
        /// The disks of nodes are full or fail for a time: one at a time.
        BadDisk = "baddisk": "disks of nodes are full or fail for a time, one at a time",
        /// A part of a node's files is damaged or lost while it is down: one node at a time.
        BitRot = "bitrot": "files of nodes are damaged while they are down, one node at a time",
        /// Nodes are removed from the members and added again, the leader included.
        Members = "members": "nodes are removed from the members and added again",
        /// The leader is cut off from all other nodes for up to four leases. Its clients still reach it.
        CutOff = "cutoff": "the leader is cut off from the other nodes, and not from its clients",
        /// The disks of nodes answer nothing for a time, and nothing is lost.
        HungDisk = "hungdisk": "disks of nodes answer nothing for up to a minute",
        /// A node of another cluster runs at the address of a node: one node at a time.
        Foreign = "foreign": "a node of another cluster runs at the address of a node, one at a time",
    }
}

named! {
    /// What kind of servers a run has, in words.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Servers in ALL {
        /// They have no files.
        Plain = "servers without files",
        /// They keep an append-only file.
        Durable = "durable servers",
        /// They are nodes of one replicated service.
        Replicated = "replicated servers",
        /// They are nodes of one replicated service, and processes.
        Processes = "replicated servers in a live run",
    }
}

impl Servers {
    /// The kind of servers that are durable, or replicated, or neither.
    pub fn of(durable: bool, replicated: bool) -> Servers {
        match (durable, replicated) {
            (_, true) => Servers::Replicated,
            (true, false) => Servers::Durable,
            (false, false) => Servers::Plain,
        }
    }
}

impl Fault {
    /// All kinds that servers without files have.
    pub const ALL: [Fault; 8] =
        [Fault::Pause, Fault::Skew, Fault::Crash, Fault::Restart, Fault::Lose, Fault::Delay, Fault::Drop, Fault::Duplicate];

    /// All kinds that durable servers have: a server on one machine does not fail over to a replica.
    pub const DURABLE: [Fault; 8] =
        [Fault::Pause, Fault::Skew, Fault::Crash, Fault::Restart, Fault::Delay, Fault::Drop, Fault::Duplicate, Fault::PowerLoss];

    /// All kinds that the nodes of a replicated service have.
    pub const REPLICATED: [Fault; 18] = [
        Fault::Pause,
        Fault::Skew,
        Fault::Crash,
        Fault::Restart,
        Fault::Delay,
        Fault::Drop,
        Fault::Duplicate,
        Fault::PowerLoss,
        Fault::Partition,
        Fault::Disorder,
        Fault::Stall,
        Fault::Wipe,
        Fault::BadDisk,
        Fault::BitRot,
        Fault::Members,
        Fault::CutOff,
        Fault::HungDisk,
        Fault::Foreign,
    ];

    /// All kinds that nodes have that are processes: those of simulated ones but the loss of power, which needs a machine, damage
    /// of files, which needs a look into them, and changes of the members.
    pub const PROCESSES: [Fault; 15] = {
        use Fault::{BitRot, Members, PowerLoss};
        let (mut kinds, mut from, mut to) = ([Fault::Pause; 15], 0, 0);
        while from < Fault::REPLICATED.len() {
            if !matches!(Fault::REPLICATED[from], PowerLoss | BitRot | Members) {
                kinds[to] = Fault::REPLICATED[from];
                to += 1;
            }
            from += 1;
        }
        kinds
    };

    /// All kinds that servers have.
    pub fn all(servers: Servers) -> &'static [Fault] {
        match servers {
            Servers::Plain => &Fault::ALL,
            Servers::Durable => &Fault::DURABLE,
            Servers::Replicated => &Fault::REPLICATED,
            Servers::Processes => &Fault::PROCESSES,
        }
    }

    /// Whether only nodes have it.
    pub fn is_of_nodes(self) -> bool {
        use Fault::{BadDisk, BitRot, CutOff, Disorder, Foreign, HungDisk, Members, Partition, Stall, Wipe};
        matches!(self, Partition | Disorder | Stall | Wipe | BadDisk | BitRot | Members | CutOff | HungDisk | Foreign)
    }

    /// Which servers alone have the fault, in brackets. Empty if all have it.
    pub fn only_with(self) -> &'static str {
        let has = |servers: Servers| Fault::all(servers).contains(&self);
        match Servers::ALL.map(has) {
            [true, true, true, true] => "",
            [true, false, false, false] => " (without files)",
            [false, true, true, _] => " (--durable, --replicas)",
            [false, false, true, true] => " (--replicas)",
            [false, false, true, false] => " (--replicas, not --live)",
            _ => " (some servers)",
        }
    }

    /// Formats a list in the form that [`Fault::parse_list`] reads.
    pub fn format_list(faults: &[Fault]) -> String {
        match faults {
            [] => "none".to_owned(),
            faults if Servers::ALL.into_iter().any(|kind| faults == Fault::all(kind)) => "all".to_owned(),
            faults => faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(","),
        }
    }

    /// Parses a list such as `pause,skew`, `all` or `none`, for servers of a kind.
    ///
    /// # Errors
    /// Names the word that is not a fault, or not one that such servers have.
    pub fn parse_list(text: &str, servers: Servers) -> Result<Vec<Fault>, String> {
        let mut faults = Vec::new();
        let named = |servers: Servers, word: &str| Fault::all(servers).iter().copied().find(|fault| fault.name() == word);
        for word in text.split(',') {
            match word {
                "none" => {}
                "all" => faults.extend(Fault::all(servers)),
                _ => match (named(servers, word), Servers::ALL.into_iter().find(|kind| named(*kind, word).is_some())) {
                    (Some(fault), _) => faults.push(fault),
                    (None, Some(_)) => return Err(format!("{} do not have the fault '{word}'", servers.name())),
                    (None, None) => return Err(format!("'{word}' is no fault")),
                },
            }
        }
        faults.sort_unstable();
        faults.dedup();
        Ok(faults)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_faults_are_read() {
        assert_eq!(Fault::parse_list("skew,pause", Servers::Plain).unwrap(), [Fault::Pause, Fault::Skew]);
        for (list, servers) in [
            ("rain", Servers::Plain),
            ("rain", Servers::Durable),
            ("powerloss", Servers::Plain),
            ("lose", Servers::Durable),
            ("wipe", Servers::Durable),
            ("lose", Servers::Replicated),
            ("powerloss", Servers::Processes),
            ("bitrot", Servers::Processes),
            ("members", Servers::Processes),
        ] {
            assert!(Fault::parse_list(list, servers).is_err(), "{list}");
        }
        for servers in Servers::ALL {
            assert_eq!(Fault::parse_list("all", servers).unwrap(), Fault::all(servers));
            for list in ["none", "all", "pause", "crash,drop"] {
                assert_eq!(Fault::format_list(&Fault::parse_list(list, servers).unwrap()), list);
            }
        }
    }
}
