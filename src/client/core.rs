//! The connections of a client: one shared connection, and a pool of connections that are leased to one user at a time.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::connection::{Connection, Reply, received};
use crate::client::error::{Error, Result};
use crate::client::holds::Holds;
use crate::client::options::Options;
use crate::client::pushes::Pushes;
use crate::client::stream::Connector;
use crate::client::value::Value;
use crate::client::wire::Wire;

/// State that all clones of a client share.
pub(crate) struct Core {
    pub options: Options,
    pub pushes: Arc<Pushes>,
    pub holds: Holds,
    /// The runtime that drives the connections, also for callers that drop them outside of it.
    pub runtime: Handle,
    /// Prefix of the client's unique names, and the number of the next one.
    unique: (String, AtomicU64),
    connector: Connector,
    shared: Mutex<Option<Connection>>,
    /// Held by the task that opens the shared connection, while it does.
    connecting: tokio::sync::Mutex<Backoff>,
    /// Unused connections of the pool.
    idle: Mutex<Vec<Connection>>,
    /// Bounds the number of connections in use.
    in_use: Arc<Semaphore>,
}

/// Number of consecutive broken connections after which a command that waits is given up.
const FAILURES_MAX: u32 = 10;

/// Decides when to connect again.
pub(crate) struct Backoff {
    failures: u32,
    next: Instant,
}

impl Backoff {
    pub fn new() -> Backoff {
        Backoff { failures: 0, next: Instant::now() }
    }

    /// Records a failed attempt and schedules the next one.
    pub fn failed(&mut self, (first, at_most): (Duration, Duration)) {
        let doubled = first.saturating_mul(1 << self.failures.min(16)).min(at_most);
        // Between half of the pause and all of it, so that clients that lost the same server do not all reconnect at once.
        // Without randomness, all of it.
        let random = getrandom::u32().unwrap_or(u32::MAX);
        self.next = Instant::now() + doubled.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX));
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns itself, or a new back-off if the last attempt lasted for at least `long`.
    pub fn unless_long_since(self, begun: Instant, long: Duration) -> Backoff {
        if begun.elapsed() < long { self } else { Backoff::new() }
    }

    /// Whether so many attempts in a row have failed that further ones are pointless.
    pub fn is_hopeless(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Waits until the next attempt is due. Returns false if that is after the deadline.
    pub async fn wait(&self, deadline: Instant) -> bool {
        if self.next >= deadline {
            return false;
        }
        sleep_until(self.next).await;
        true
    }
}

/// Whether connecting again may help: nothing listens yet, or the server is not ready.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Reply(reply) => matches!(reply.code(), "LOADING" | "BUSY" | "TRYAGAIN" | "MASTERDOWN"),
        error => error.is_of_connection(),
    }
}

impl Core {
    pub fn new(options: Options) -> Result<Core> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Error::Invalid(format!("the system gives no randomness: {error}")))?;
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
            idle: Mutex::default(),
            in_use,
        })
    }

    /// Returns a globally unique name, for owners and requests.
    pub fn unique_name(&self) -> String {
        format!("{}:{}", self.unique.0, self.unique.1.fetch_add(1, Ordering::Relaxed))
    }

    /// The deadline of a request that begins now and waits on the server for `beside`.
    pub fn deadline(&self, beside: Duration) -> Instant {
        Instant::now() + self.options.response_timeout.saturating_add(beside).min(FAR)
    }

    fn timeout(&self, maybe_applied: bool) -> Error {
        Error::Timeout { maybe_applied, after: self.options.response_timeout }
    }

    /// Opens a connection, in one attempt.
    pub async fn open(&self, deadline: Instant) -> Result<Wire> {
        let deadline = deadline.min(Instant::now() + self.options.connect_timeout);
        match timeout_at(deadline, Wire::open(&self.connector, &self.options)).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::Connect("no answer in time".to_owned())),
        }
    }

    /// Opens a connection, with as many attempts as the deadline allows.
    pub async fn open_by(&self, deadline: Instant, backoff: &mut Backoff) -> Result<Wire> {
        loop {
            match self.open(deadline).await {
                Ok(wire) => {
                    backoff.succeeded();
                    return Ok(wire);
                }
                Err(error) => {
                    backoff.failed(self.options.backoff);
                    if !may_pass(&error) || !backoff.wait(deadline).await {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn live(&self) -> Option<Connection> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.as_ref().filter(|connection| !connection.is_closed()).cloned()
    }

    /// Opens the shared connection, in one attempt.
    pub async fn begin(&self) -> Result {
        let wire = self.open(self.deadline(Duration::ZERO)).await?;
        self.share(wire);
        Ok(())
    }

    fn share(&self, wire: Wire) -> Connection {
        let connection = Connection::spawn(&self.runtime, wire, Arc::clone(&self.pushes), Some(self.options.response_timeout));
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        connection
    }

    /// Returns the shared connection, and opens a new one if there is none.
    pub async fn shared(&self, deadline: Instant) -> Result<Connection> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let mut backoff = timeout_at(deadline, self.connecting.lock()).await.map_err(|_| self.timeout(false))?;
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        if !backoff.wait(deadline).await {
            return Err(Error::Connect("the last attempt has failed, and the next would come too late".to_owned()));
        }
        let wire = self.open_by(deadline, &mut backoff).await?;
        Ok(self.share(wire))
    }

    /// Sends requests on the shared connection and waits for their replies. Sends them again if the connection broke before they
    /// were written, or if they are idempotent.
    pub async fn exchange<T, F>(
        self: &Arc<Self>,
        deadline: Instant,
        idempotent: bool,
        send: impl Fn(Connection) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Reply<T>>>,
    {
        let mut again = Backoff::new();
        loop {
            let connection = self.shared(deadline).await?;
            let attempt = async {
                let mut reply = send(connection).await?;
                received(&mut reply).await
            };
            match timeout_at(deadline, attempt).await {
                Err(_) => return Err(self.timeout(true)),
                Ok(Err(error @ Error::Disconnected { .. })) if idempotent || !error.maybe_applied() => {
                    again.failed(self.options.backoff);
                    if !again.wait(deadline).await {
                        return Err(error);
                    }
                }
                Ok(outcome) => return outcome,
            }
        }
    }

    /// Sends commands on one connection and waits for their replies.
    pub async fn on(&self, connection: &Connection, wire: &[u8], count: usize, deadline: Instant) -> Result<Vec<Value>> {
        let attempt = async {
            let mut replies = connection.send_many(wire.to_vec(), count).await?;
            received(&mut replies).await
        };
        timeout_at(deadline, attempt).await.unwrap_or_else(|_| Err(self.timeout(true)))
    }

    /// Waits for a reply on a leased connection; without limit if there is no deadline.
    pub async fn reply(&self, reply: &mut Reply<Value>, deadline: Option<Instant>) -> Result<Value> {
        match deadline {
            None => received(reply).await,
            Some(deadline) => timeout_at(deadline, received(reply)).await.unwrap_or_else(|_| Err(self.timeout(true))),
        }
    }

    /// Leases a connection to one user.
    pub async fn lease(self: &Arc<Self>, deadline: Instant) -> Result<Leased> {
        let permit = self.permit(deadline).await?;
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(connection) if connection.is_closed() => {}
                Some(connection) => return Ok(self.leased(connection, permit)),
                None => break,
            }
        }
        let wire = self.open_by(deadline, &mut Backoff::new()).await?;
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

/// Far enough away to mean never, and near enough not to overflow.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A connection of the pool, leased to one user. Dropping it closes it, unless it is marked as reusable.
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
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("only the drop takes the connection out"),
        }
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take().filter(|connection| self.reusable && !connection.is_closed()) else {
            return;
        };
        let mut idle = self.core.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.core.options.idle_max {
            idle.push(connection);
        }
    }
}
