//! The client itself: commands, pipelines, transactions.

use std::str::FromStr;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::client::command::{Blocking, Command, of_slice};
use crate::client::connection::backoff::Backoff;
use crate::client::connection::multiplexed::not_answered;
use crate::client::core::{Core, Leased};
use crate::client::error::{Error, ReplyError, Result};
use crate::client::options::Options;
use crate::client::value::{FromValue, Value};

/// A client of one server, which is this crate's server or one of the Redis family. Clones share their connections.
///
/// The commands of all tasks share one connection and are written together. A blocking command (`BLPOP`, `LOCK.ACQUIRE … WAIT`)
/// has a connection from a pool to itself. When a connection breaks, the next command opens a new one, and commands in flight
/// fail with an error that says [whether they may have been carried out](Error::maybe_applied).
///
/// A client lives on the tokio runtime on which it was connected.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

impl Client {
    /// Connects to a server; see [`Options`] for the accepted URLs.
    ///
    /// # Errors
    /// If the URL is wrong, the server cannot be reached (there is no second attempt, except where the URL
    /// names several nodes), or the server rejects the client.
    pub async fn connect(url: &str) -> Result<Client> {
        Client::with(Options::from_str(url)?).await
    }

    /// As [`Client::connect`], with options.
    ///
    /// # Errors
    /// As [`Client::connect`]; also if the caller is outside of a tokio runtime.
    pub async fn with(options: Options) -> Result<Client> {
        let core = Arc::new(Core::new(options)?);
        core.connect().await?;
        Ok(Client { core })
    }

    /// Returns a globally unique name for the owner of a lock: 32 hexadecimal digits, which are random for each client, and a
    /// counter.
    pub fn unique_name(&self) -> String {
        self.core.unique_name()
    }

    /// Sends a command that is given as a list of words.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
    /// # let server = portcullis::TestServer::start();
    /// use portcullis::client::{Client, Value};
    ///
    /// let client = Client::connect(&server.url()).await?;
    /// client.command(&["SET", "k", "5"]).await?;
    /// assert_eq!(client.command(&["INCR", "k"]).await?, Value::Integer(6));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn command<A: AsRef<[u8]>>(&self, words: &[A]) -> Result<Value> {
        self.run(of_slice(words)?).await
    }

    /// Sends a command and converts its reply.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
    /// # let server = portcullis::TestServer::start();
    /// # let client = portcullis::client::Client::connect(&server.url()).await?;
    /// use portcullis::client::Command;
    ///
    /// let lock = |owner| Command::new("SET").arg("lock:door").arg(owner).arg("NX").arg("PX").arg(30_000);
    /// assert!(client.query::<bool>(lock("alice")).await?);
    /// assert!(!client.query::<bool>(lock("bob")).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Client::run`]; also if the reply does not convert to that type.
    pub async fn query<T: FromValue>(&self, command: Command) -> Result<T> {
        T::from_value(self.run(command).await?)
    }

    /// Sends a command and waits for its reply. If the future is dropped, the server still carries out a command that was sent.
    /// If the command blocks, its connection is closed, which ends the wait on the server.
    ///
    /// # Errors
    /// [`Error::Reply`] and the more specific error replies if the server refuses the command; [`Error::Invalid`] for commands
    /// that cannot share a connection, such as `MULTI`; otherwise connection errors.
    pub async fn run(&self, command: Command) -> Result<Value> {
        command.check_shared()?;
        match command.blocking() {
            Blocking::No => self.core.call(&command, command.is_idempotent()).await,
            blocking => self.run_blocking(&command, blocking).await,
        }
    }

    /// Sends a blocking command on a leased connection. Sends it again if the connection broke before the command was written, or
    /// if the command is idempotent.
    async fn run_blocking(&self, command: &Command, blocking: Blocking) -> Result<Value> {
        let mut backoff = Backoff::new();
        loop {
            let mut leased = self.core.lease(self.core.deadline()).await?;
            let sent = Instant::now();
            let outcome = tokio::select! {
                outcome = call_leased(&self.core, &leased, command, blocking) => outcome,
                () = self.core.deposed(&leased) => Err(not_answered()),
            };
            leased.reusable = outcome.as_ref().map_or_else(|error| !error.is_of_connection(), |_| true);
            drop(leased);
            match outcome {
                Err(error @ Error::Disconnected { .. }) if command.is_idempotent() || !error.maybe_applied() => {
                    fail_if!(!self.core.back_off(&mut backoff, sent).await, error);
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends commands together, in one packet if they fit, and returns their replies in order. A failed command's reply is
    /// [`Value::Error`]. The commands run in order, but commands of other tasks may run between them.
    ///
    /// # Errors
    /// As [`Client::run`]. [`Error::maybe_applied`] then means that any of the commands may have been carried out. A blocking
    /// command is [`Error::Invalid`].
    pub async fn pipeline(&self, commands: &[Command]) -> Result<Vec<Value>> {
        let mut wire = Vec::new();
        for command in commands {
            command.check_shared()?;
            if command.blocking() != Blocking::No {
                return Err(Error::Invalid(
                    "a pipeline cannot contain a blocking command, which would delay the commands of all tasks".to_owned(),
                ));
            }
            wire.extend_from_slice(command.wire());
        }
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let idempotent = commands.iter().all(Command::is_idempotent);
        self.core.call_many(&wire, commands.len(), idempotent, self.core.deadline()).await
    }

    /// Sends commands as a transaction (`MULTI` … `EXEC`): either all run, with nothing in between, or none. Returns their
    /// replies in order. For `WATCH` see [`Client::dedicated`].
    ///
    /// # Errors
    /// As [`Client::run`]. If the server discards the transaction because it refused a command before `EXEC`, the error is that
    /// command's.
    pub async fn transaction(&self, commands: &[Command]) -> Result<Vec<Value>> {
        let mut wire = Command::new("MULTI").wire().to_vec();
        for command in commands {
            command.check_shared()?;
            wire.extend_from_slice(command.wire());
        }
        wire.extend_from_slice(Command::new("EXEC").wire());
        let replies = self.core.call_many(&wire, commands.len() + 2, false, self.core.deadline()).await?;
        let refused = replies.iter().find_map(|reply| match reply {
            Value::Error(error) if error.code() != "EXECABORT" => Some(error.clone()),
            _ => None,
        });
        match replies.into_iter().next_back() {
            Some(Value::Array(replies)) => Ok(replies),
            Some(Value::Error(error)) => Err(refused.unwrap_or(error).into()),
            _ => Err(Error::Reply(ReplyError::new(b"EXECABORT Transaction discarded"))),
        }
    }

    /// Leases a connection to the caller, for commands that change the state of their connection: `WATCH`, `SELECT`,
    /// `CLIENT TRACKING`. Dropping the [`Dedicated`] closes the connection.
    ///
    /// # Errors
    /// If no connection becomes available within the response time-out.
    pub async fn dedicated(&self) -> Result<Dedicated> {
        Ok(Dedicated { leased: self.core.lease(self.core.deadline()).await?, core: Arc::clone(&self.core) })
    }

    /// RESP3 pushes on any connection of this client, such as invalidations of tracked keys. A listener that is more than 1,024
    /// pushes behind misses the oldest ones and receives an error that says so.
    pub fn pushes(&self) -> broadcast::Receiver<Vec<Value>> {
        self.core.pushes.subscribe()
    }

    /// The protocol version in use, 2 or 3.
    ///
    /// # Errors
    /// If there is no connection, and no connection can be opened in time.
    pub async fn protocol(&self) -> Result<u8> {
        Ok(self.core.shared(self.core.deadline()).await?.protocol())
    }
}

/// Sends a command on a leased connection and waits for its reply.
async fn call_leased(core: &Core, leased: &Leased, command: &Command, blocking: Blocking) -> Result<Value> {
    let deadline = core.blocking_deadline(blocking);
    let mut reply = leased.send(command.wire().to_vec()).await?;
    core.reply(&mut reply, deadline).await
}

/// A connection for one caller; see [`Client::dedicated`].
pub struct Dedicated {
    leased: Leased,
    core: Arc<Core>,
}

impl Dedicated {
    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// As [`Client::run`]. After the connection broke, all further commands fail, because the connection's state is lost.
    pub async fn run(&mut self, command: Command) -> Result<Value> {
        command.check_dedicated()?;
        call_leased(&self.core, &self.leased, &command, command.blocking()).await
    }

    /// Sends a command that is given as a list of words.
    ///
    /// # Errors
    /// As [`Dedicated::run`].
    pub async fn command<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Value> {
        self.run(of_slice(words)?).await
    }

    /// Sends a command and converts its reply.
    ///
    /// # Errors
    /// As [`Dedicated::run`]; also if the reply does not convert to that type.
    pub async fn query<T: FromValue>(&mut self, command: Command) -> Result<T> {
        T::from_value(self.run(command).await?)
    }

    /// The connection's id on the server; 0 if unknown.
    pub fn id(&self) -> i64 {
        self.leased.id()
    }

    /// Returns when the connection breaks.
    pub async fn closed(&self) {
        self.leased.closed().await;
    }
}
