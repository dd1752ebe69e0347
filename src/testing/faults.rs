//! Failures that a test orders: faults, restarts and failovers.

use std::fmt::Display;

use super::{FaultRule, TestServer, TestServerBuilder};

impl TestServerBuilder {
    /// Adds a fault that is active from the start, as a value or in the syntax of `FAULT ADD`. It affects requests that arrive
    /// over TCP.
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
    /// If the text is not valid `FAULT ADD` syntax.
    pub fn fault<R: TryInto<FaultRule>>(mut self, rule: R) -> Self
    where
        R::Error: Display,
    {
        self.rules.push(read(rule));
        self
    }

    /// Number of last writes to keep, so that [`TestServer::restart_losing`] can lose them. None unless given.
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

/// The faults of a [`TestServer`]. They affect requests that arrive over TCP.
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
    /// Adds a rule, as a value or in the syntax of `FAULT ADD`. A rule with the same name is replaced.
    ///
    /// # Panics
    ///
    /// If the text is not valid `FAULT ADD` syntax, or there are a thousand rules already.
    pub fn add<R: TryInto<FaultRule>>(&self, rule: R)
    where
        R::Error: Display,
    {
        let rule = read(rule);
        let added = self.server.control(move |shell| {
            let added = shell.driver.engine.faults_mut().add(rule);
            shell.driver.engine.update_journal();
            added
        });
        assert!(added, "too many faults");
    }

    /// Removes a rule. Returns false if no rule has that name.
    pub fn remove(&self, name: &str) -> bool {
        let name = name.as_bytes().to_vec();
        self.server.control(move |shell| {
            let removed = shell.driver.engine.faults_mut().remove(&name);
            shell.driver.engine.update_journal();
            removed
        })
    }

    /// Removes all rules and returns their number. Requests and replies that are already delayed stay delayed.
    pub fn clear(&self) -> usize {
        self.server.control(|shell| {
            let removed = shell.driver.engine.faults_mut().clear();
            shell.driver.engine.update_journal();
            removed
        })
    }

    /// Restarts the random sequence of the `PROBABILITY` option from this seed.
    pub fn seed(&self, seed: u64) {
        self.server.control(move |shell| shell.driver.engine.faults_mut().seed(seed));
    }

    /// The rules, each with the number of times that it was checked and that it fired.
    pub fn rules(&self) -> Vec<FaultRule> {
        self.server.control(|shell| shell.driver.engine.faults().rules().to_vec())
    }

    /// Number of times that the rule with this name has fired; 0 if there is none.
    pub fn fired(&self, name: &str) -> u64 {
        self.rules().iter().find(|rule| rule.name == name.as_bytes()).map_or(0, |rule| rule.fired)
    }
}

impl TestServer {
    /// The server's faults.
    pub fn faults(&self) -> TestFaults<'_> {
        TestFaults { server: self }
    }

    /// Simulates a kill and a restart at the same port: all connections are closed and all data is lost. Configuration, users,
    /// clock and faults stay, and fencing tokens keep growing.
    pub fn restart(&self) {
        self.control(|shell| shell.restart(None, None));
    }

    /// Simulates the failover to a replica that has not received the last writes: all connections are closed, and those writes
    /// are lost. One write is everything that one request changed, including a script or a transaction. Returns the number of
    /// lost writes, which is at most the number of writes since the journal began.
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
    /// If it would lose more writes than are kept: see [`TestServerBuilder::journal`].
    pub fn restart_losing(&self, writes: u64) -> usize {
        let (kept, lost) = self.control(move |shell| {
            let kept = shell.driver.engine.journal_limit();
            let lost = shell.driver.engine.keyspace().changes.journal.as_ref().map_or(0, |journal| journal.len());
            if writes <= kept as u64 {
                shell.restart(None, Some(writes));
            }
            (kept, lost.min(writes as usize))
        });
        assert!(
            writes <= kept as u64,
            "the last {kept} writes are kept, not {writes}; TestServerBuilder::journal sets their number"
        );
        lost
    }
}
