//! The connections of a client: one shared connection, and a pool of connections that are leased to one user at a time.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::client::command::{Blocking, Command};
use crate::client::connection::backoff::Backoff;
use crate::client::connection::multiplexed::{Connection, Reply, received};
use crate::client::connection::pushes::Pushes;
use crate::client::connection::stream::Connector;
use crate::client::connection::wire::Wire;
use crate::client::error::{Error, Result};
use crate::client::locks::holds::Holds;
use crate::client::options::Options;
use crate::client::value::Value;

/// State that all clones of a client share.
pub(crate) struct Core {
    pub options: Options,
    pub pushes: Arc<Pushes>,
    pub holds: Holds,
    /// The runtime that drives the connections, also when callers outside of it drop them.
    pub runtime: Handle,
    /// Prefix of the client's unique names, and the number of the next one.
    unique: (String, AtomicU64),
    connector: Connector,
    shared: Mutex<Option<Connection>>,
    /// Locked by the task that is opening the shared connection.
    connecting: tokio::sync::Mutex<Backoff>,
    /// When it was last looked which node leads, and which it was.
    looked: tokio::sync::Mutex<Option<(Instant, Option<usize>)>>,
    /// Unused connections of the pool.
    idle: Mutex<Vec<Connection>>,
    /// Bounds the number of connections in use.
    in_use: Arc<Semaphore>,
}

/// Whether another attempt to connect may succeed: no server listens yet, or the server is not ready.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::Reply(reply) => {
            matches!(reply.code(), "LOADING" | "BUSY" | "TRYAGAIN" | "MASTERDOWN" | "READONLY" | "CLUSTERDOWN")
        }
        error => error.is_of_connection(),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn new(options: Options) -> Result<Core> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Error::Invalid(format!("the system's random number generator failed: {error}")))?;
        let connector = Connector::new(&options)?;
        let in_use = Arc::new(Semaphore::new(options.connections_max));
        Ok(Core {
            options,
            pushes: Arc::new(Pushes::new()),
            holds: Holds::default(),
            runtime: Handle::try_current().map_err(|error| Error::Invalid(error.to_string()))?,
            unique: (format!("{:032x}", u128::from_le_bytes(random)), AtomicU64::new(0)),
            connector,
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::new(Backoff::new()),
            looked: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
            in_use,
        })
    }

    /// Returns a globally unique name, for owners and requests.
    pub fn unique_name(&self) -> String {
        format!("{}:{}", self.unique.0, self.unique.1.fetch_add(1, Ordering::Relaxed))
    }

    /// The deadline of a command that is sent now and that the server answers at once.
    pub fn deadline(&self) -> Instant {
        self.deadline_after(Duration::ZERO)
    }

    /// The deadline of a command that is sent now and may block on the server; `None` if it may block without limit.
    pub fn blocking_deadline(&self, blocking: Blocking) -> Option<Instant> {
        match blocking {
            Blocking::No => Some(self.deadline()),
            Blocking::For(wait) => Some(self.deadline_after(wait)),
            Blocking::Forever => None,
        }
    }

    fn deadline_after(&self, wait: Duration) -> Instant {
        Instant::now() + self.options.response_timeout.saturating_add(wait).min(FAR)
    }

    /// The error of a deadline that has passed.
    pub fn timeout(&self, maybe_applied: bool) -> Error {
        Error::Timeout { maybe_applied, after: self.options.response_timeout }
    }

    /// Opens a connection, in one attempt.
    async fn open_once(&self, deadline: Instant) -> Result<Wire> {
        let within = deadline.saturating_duration_since(Instant::now()).min(self.options.connect_timeout);
        match timeout(within, Wire::open(&self.connector, &self.options, within)).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::Connect("connecting timed out".to_owned())),
        }
    }

    /// Opens a connection, with as many attempts as the deadline allows.
    pub async fn open(&self, deadline: Instant, backoff: &mut Backoff) -> Result<Wire> {
        loop {
            match self.open_once(deadline).await {
                Ok(wire) => {
                    backoff.reset();
                    return Ok(wire);
                }
                Err(error) => {
                    backoff.failed(self.options.backoff);
                    fail_if!(!is_transient(&error) || !backoff.wait(deadline).await, error);
                }
            }
        }
    }

    /// Opens the shared connection, in one attempt; to one of several nodes, within the response time-out.
    pub async fn connect(&self) -> Result {
        let deadline = self.deadline();
        let wire = if self.connector.has_nodes() {
            // An election may be under way.
            self.open(deadline, &mut Backoff::new()).await?
        } else {
            self.open_once(deadline).await?
        };
        self.share(wire);
        Ok(())
    }

    /// Makes this the shared connection.
    fn share(&self, wire: Wire) -> Connection {
        let connection = Connection::spawn(&self.runtime, wire, Arc::clone(&self.pushes), Some(self.options.response_timeout));
        *locked(&self.shared) = Some(connection.clone());
        connection
    }

    /// The shared connection, if there is one and it is open.
    fn shared_if_open(&self) -> Option<Connection> {
        locked(&self.shared).as_ref().filter(|connection| !connection.is_closed()).cloned()
    }

    /// Returns the shared connection, and opens a new one if there is none.
    pub async fn shared(&self, deadline: Instant) -> Result<Connection> {
        if let Some(connection) = self.shared_if_open() {
            return Ok(connection);
        }
        let mut backoff = timeout_at(deadline, self.connecting.lock()).await.map_err(|_| self.timeout(false))?;
        if let Some(connection) = self.shared_if_open() {
            return Ok(connection);
        }
        if !backoff.wait(deadline).await {
            return Err(Error::Connect("the last attempt failed, and the next one is due after the time-out".to_owned()));
        }
        let wire = self.open(deadline, &mut backoff).await?;
        Ok(self.share(wire))
    }

    /// Sends a command on the shared connection and waits for its reply; see [`Core::exchange`].
    pub async fn call(&self, command: &Command, idempotent: bool) -> Result<Value> {
        let wire = command.wire();
        self.exchange(self.deadline(), idempotent, |connection| async move { connection.send(wire.to_vec()).await }).await
    }

    /// Sends encoded commands on the shared connection and waits for their replies; see [`Core::exchange`].
    pub async fn call_many(&self, wire: &[u8], count: usize, idempotent: bool, deadline: Instant) -> Result<Vec<Value>> {
        self.exchange(deadline, idempotent, |connection| async move { connection.send_many(wire.to_vec(), count).await }).await
    }

    /// Sends a request on the shared connection and waits for its reply. Sends it again if the connection broke before the
    /// request was written, or if the request is idempotent.
    async fn exchange<T, F>(&self, deadline: Instant, idempotent: bool, send: impl Fn(Connection) -> F) -> Result<T>
    where
        F: Future<Output = Result<Reply<T>>>,
    {
        let mut backoff = Backoff::new();
        loop {
            let connection = self.shared(deadline).await?;
            let attempt = async {
                let mut reply = send(connection).await?;
                received(&mut reply).await
            };
            match timeout_at(deadline, attempt).await {
                Err(_) => return Err(self.timeout(true)),
                Ok(Err(error @ Error::Disconnected { .. })) if idempotent || !error.maybe_applied() => {
                    backoff.failed(self.options.backoff);
                    fail_if!(!backoff.wait(deadline).await, error);
                }
                Ok(outcome) => return outcome,
            }
        }
    }

    /// Sends encoded commands on this connection and waits for their replies.
    pub async fn call_many_on(
        &self,
        connection: &Connection,
        wire: &[u8],
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<Value>> {
        let attempt = async {
            let mut replies = connection.send_many(wire.to_vec(), count).await?;
            received(&mut replies).await
        };
        timeout_at(deadline, attempt).await.unwrap_or_else(|_| Err(self.timeout(true)))
    }

    /// As [`Core::call_many`], for idempotent commands that are soon sent again if there is no reply. The connection on which none has
    /// come is then left for a new one, to another node if there are several.
    pub async fn try_many(&self, wire: &[u8], count: usize, deadline: Instant) -> Result<Vec<Value>> {
        let outcome = self.call_many(wire, count, true, deadline).await;
        if matches!(outcome, Err(Error::Timeout { .. }))
            && let Some(silent) = self.shared_if_open()
        {
            self.doubt(&silent);
        }
        outcome
    }

    /// Leaves the connections to a node that did not answer in time. It may be cut off from the others, which have another leader
    /// then.
    pub fn doubt(&self, silent: &Connection) {
        locked(&self.shared)
            .take_if(|shared| shared.is_same(silent) || (self.connector.has_nodes() && shared.node() == silent.node()));
        locked(&self.idle).retain(|idle| idle.node() != silent.node());
        self.connector.doubt(silent.node());
    }

    /// The deadline of one attempt at what has to be answered within `left`: there must be time for another connection, and for the
    /// other nodes.
    pub fn attempt_until(&self, left: Duration) -> Instant {
        let part = left / if self.connector.has_nodes() { 4 } else { 2 };
        Instant::now() + part.max(ATTEMPT_MIN.min(left)).min(self.options.response_timeout)
    }

    /// Returns when another node leads than the one that a connection leads to; never with one server. A leader that stands still
    /// keeps its connections open and says nothing on them.
    pub async fn deposed(&self, connection: &Connection) {
        if !self.connector.has_nodes() {
            return std::future::pending().await;
        }
        loop {
            sleep(self.options.response_timeout).await;
            if self.leading_node().await.is_some_and(|leads| leads != connection.node()) {
                return;
            }
        }
    }

    /// The node that leads, as one of all who wait has found out lately.
    async fn leading_node(&self) -> Option<usize> {
        let mut looked = self.looked.lock().await;
        match *looked {
            Some((at, leads)) if at.elapsed() < self.options.response_timeout / 2 => leads,
            _ => {
                let leads = self.open_once(self.deadline()).await.ok().map(|wire| wire.node);
                *looked = Some((Instant::now(), leads));
                leads
            }
        }
    }

    /// Waits for a reply on a leased connection; without limit if there is no deadline.
    pub async fn reply(&self, reply: &mut Reply<Value>, deadline: Option<Instant>) -> Result<Value> {
        match deadline {
            None => received(reply).await,
            Some(deadline) => timeout_at(deadline, received(reply)).await.unwrap_or_else(|_| Err(self.timeout(true))),
        }
    }

    /// Pauses before a blocking command is sent again because its connection broke. `sent` is when the last attempt was sent: if
    /// that attempt lasted for at least the response time-out, the back-off starts over. Returns false if ten attempts in a row
    /// have failed.
    pub async fn back_off(&self, backoff: &mut Backoff, sent: Instant) -> bool {
        if sent.elapsed() >= self.options.response_timeout {
            *backoff = Backoff::new();
        }
        backoff.failed(self.options.backoff);
        if backoff.is_exhausted() {
            return false;
        }
        backoff.wait(self.deadline()).await;
        true
    }

    /// Leases a connection of the pool to one user.
    pub async fn lease(self: &Arc<Self>, deadline: Instant) -> Result<Leased> {
        let permit = self.permit(deadline).await?;
        loop {
            let idle = locked(&self.idle).pop();
            match idle {
                Some(connection) if connection.is_closed() => {}
                Some(connection) => return Ok(self.leased(connection, permit)),
                None => break,
            }
        }
        let wire = self.open(deadline, &mut Backoff::new()).await?;
        Ok(self.leased(Connection::spawn(&self.runtime, wire, Arc::clone(&self.pushes), None), permit))
    }

    /// Acquires a permit for one more connection.
    pub async fn permit(&self, deadline: Instant) -> Result<OwnedSemaphorePermit> {
        match timeout_at(deadline, Arc::clone(&self.in_use).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::TooManyConnections),
        }
    }

    fn leased(self: &Arc<Self>, connection: Connection, permit: OwnedSemaphorePermit) -> Leased {
        Leased { connection: Some(connection), core: Arc::clone(self), reusable: false, _permit: permit }
    }
}

/// An attempt takes less time only if less is left.
const ATTEMPT_MIN: Duration = Duration::from_millis(250);

/// Maximum time-out, a hundred years. Adding it to the present does not overflow.
const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A connection of the pool, leased to one user. Dropping it closes the connection, unless it is marked as reusable.
pub(crate) struct Leased {
    connection: Option<Connection>,
    core: Arc<Core>,
    /// Whether the connection has no request in flight and no state left by its user.
    pub reusable: bool,
    _permit: OwnedSemaphorePermit,
}

impl Deref for Leased {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        if let Some(connection) = &self.connection { connection } else { unreachable!("only the drop takes the connection out") }
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take().filter(|connection| self.reusable && !connection.is_closed()) else {
            return;
        };
        let mut idle = locked(&self.core.idle);
        if idle.len() < self.core.options.idle_max {
            idle.push(connection);
        }
    }
}
