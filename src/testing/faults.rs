//! What goes wrong, as a test orders it: faults, restarts and failovers.

use std::fmt::Display;

use super::{FaultRule, TestServer, TestServerBuilder};

impl TestServerBuilder {
    /// A fault from the start on, as a value or in the words of `FAULT ADD`. It meets what comes over TCP.
    ///
    /// ```
    /// use portcullis::testing::{Fault, FaultRule};
    ///
    /// let server = portcullis::TestServer::builder()
    ///     .fault(FaultRule::new("lost", Fault::DropReply).on("set").times(1))
    ///     .fault("full ERROR 'OOM no room' ON lpush PROBABILITY 0.1")
    ///     .start();
    /// assert_eq!(server.faults().rules().len(), 2);
    /// ```
    ///
    /// # Panics
    ///
    /// Where the words are none of `FAULT ADD`.
    pub fn fault<R: TryInto<FaultRule>>(mut self, rule: R) -> Self
    where
        R::Error: Display,
    {
        self.rules.push(read(rule));
        self
    }

    /// How many of the last writes are kept, so that [`TestServer::restart_losing`] can lose them. None unless given.
    pub fn journal(mut self, writes: u64) -> Self {
        self.journal = writes;
        self
    }
}

fn read<R: TryInto<FaultRule>>(rule: R) -> FaultRule
where
    R::Error: Display,
{
    match rule.try_into() {
        Ok(rule) => rule,
        Err(reason) => panic!("no fault: {reason}"),
    }
}

/// The faults of a [`TestServer`]: what requests over TCP meet.
///
/// ```
/// # fn main() -> redis::RedisResult<()> {
/// let server = portcullis::TestServer::start();
/// let mut client = redis::Client::open(server.url())?.get_connection()?;
/// server.faults().add("lost RESET-AFTER ON set TIMES 1");
/// let locked = redis::cmd("SET").arg("lock:a").arg("mine").arg("NX").query::<bool>(&mut client);
/// // The client does not know that it has the lock, which only the value tells.
/// assert!(locked.is_err());
/// assert_eq!(server.get("lock:a").as_deref(), Some("mine"));
/// assert_eq!(server.faults().fired("lost"), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct TestFaults<'a> {
    server: &'a TestServer,
}

impl TestFaults<'_> {
    /// Adds a rule, as a value or in the words of `FAULT ADD`; one of the same name is replaced.
    ///
    /// # Panics
    ///
    /// Where the words are none of `FAULT ADD`, or there are a thousand rules.
    pub fn add<R: TryInto<FaultRule>>(&self, rule: R)
    where
        R::Error: Display,
    {
        let rule = read(rule);
        let added = self.server.control(move |shell| {
            let added = shell.engine.faults.add(rule);
            shell.engine.update_journal();
            added
        });
        assert!(added, "too many faults");
    }

    /// Removes a rule; false where there is none of that name.
    pub fn remove(&self, name: &str) -> bool {
        let name = name.as_bytes().to_vec();
        self.server.control(move |shell| {
            let removed = shell.engine.faults.remove(&name);
            shell.engine.update_journal();
            removed
        })
    }

    /// Removes all rules; gives how many there were. What is delayed stays so.
    pub fn clear(&self) -> usize {
        self.server.control(|shell| {
            let removed = shell.engine.faults.clear();
            shell.engine.update_journal();
            removed
        })
    }

    /// Begins the sequence anew from which chance is drawn.
    pub fn seed(&self, seed: u64) {
        self.server.control(move |shell| shell.engine.faults.seed(seed));
    }

    /// The rules, and how often each was asked and has fired.
    pub fn rules(&self) -> Vec<FaultRule> {
        self.server.control(|shell| shell.engine.faults.rules().to_vec())
    }

    /// How often the rule of a name has fired; 0 where there is none.
    pub fn fired(&self, name: &str) -> u64 {
        self.rules().iter().find(|rule| rule.name == name.as_bytes()).map_or(0, |rule| rule.fired)
    }
}

impl TestServer {
    /// Its faults.
    pub fn faults(&self) -> TestFaults<'_> {
        TestFaults { server: self }
    }

    /// As if it were killed and started again, at the same port: all connections are closed, and nothing that it held is left. Configuration,
    /// users, clock and faults stay; fencing tokens go on growing.
    pub fn restart(&self) {
        self.control(|shell| shell.restart(None, None));
    }

    /// As if its replica took over that had not heard of the last writes: all connections are closed, and those writes are lost. A write is what one
    /// request has changed, be it a script or a transaction. Gives how many were lost: no more than there were since the journal began.
    ///
    /// ```
    /// # use portcullis::TestServer;
    /// let server = TestServer::builder().journal(100).start();
    /// server.execute(&["SET", "other", "1"]);
    /// server.execute(&["SET", "lock", "alice", "NX"]);
    /// assert_eq!(server.restart_losing(1), 1);
    /// assert_eq!(server.keys(), ["other"]);
    /// ```
    ///
    /// # Panics
    ///
    /// Where it is to lose more writes than are kept: see [`TestServerBuilder::journal`].
    pub fn restart_losing(&self, writes: u64) -> usize {
        let (kept, lost) = self.control(move |shell| {
            let kept = shell.engine.journal_limit();
            let lost = shell.engine.keyspace.changes.journal.as_ref().map_or(0, |journal| journal.len());
            if writes <= kept as u64 {
                shell.restart(None, Some(writes));
            }
            (kept, lost.min(writes as usize))
        });
        assert!(
            writes <= kept as u64,
            "the last {kept} writes are kept, not {writes}: have more kept with TestServerBuilder::journal"
        );
        lost
    }
}
