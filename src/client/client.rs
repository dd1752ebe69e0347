//! The client itself: commands, pipelines, transactions.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::client::command::{Command, Patience, of_slice};
use crate::client::core::{Backoff, Core, Leased};
use crate::client::error::{Error, ReplyError, Result};
use crate::client::options::Options;
use crate::client::value::{FromValue, Value};

/// A client of one server, of this crate or of the Redis family. Clones are the same client.
///
/// Commands of all tasks share one connection and are written together. A command that waits on the server (`BLPOP`,
/// `LOCK.ACQUIRE … WAIT`) has a connection of a pool for itself meanwhile. When a connection breaks, the next command makes a new one; what was
/// under way fails, with an error that says [whether it may have been carried out](Error::maybe_applied).
///
/// It lives on the tokio runtime on which it was connected.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

impl Client {
    /// Connects to a server; see [`Options`] for the URLs there are.
    ///
    /// # Errors
    /// Where the URL is wrong, nobody answers (this is not tried again), or the server does not let the client in.
    pub async fn connect(url: &str) -> Result<Client> {
        Client::with(Options::from_str(url)?).await
    }

    /// As [`Client::connect`], by options.
    ///
    /// # Errors
    /// As there, and outside of a tokio runtime.
    pub async fn with(options: Options) -> Result<Client> {
        let core = Arc::new(Core::new(options)?);
        core.begin().await?;
        Ok(Client { core })
    }

    /// A name that nobody else has, here or elsewhere, to own a lock by: 32 random digits that are those of this client, and a number.
    pub fn unique_name(&self) -> String {
        self.core.unique_name()
    }

    /// Sends a command given word by word.
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

    /// Sends a command, and turns its reply into a type.
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
    /// As [`Client::run`], and where the reply is not of that type.
    pub async fn query<T: FromValue>(&self, command: Command) -> Result<T> {
        T::from_value(self.run(command).await?)
    }

    /// Sends a command and waits for its reply. The future may be dropped: what was sent is carried out all the same, but for a command that
    /// waits on the server, whose connection is closed.
    ///
    /// # Errors
    /// [`Error::Reply`] and its kin where the server refuses it; [`Error::Invalid`] for what cannot share a connection, such as `MULTI`;
    /// otherwise those of the connection.
    pub async fn run(&self, command: Command) -> Result<Value> {
        command.check_shared()?;
        let (core, idempotent) = (&self.core, command.is_idempotent());
        match command.patience() {
            Patience::Usual => {
                let wire = command.wire();
                core.exchange(core.deadline(Duration::ZERO), idempotent, |on| async move { on.send(wire.to_vec()).await }).await
            }
            patience => {
                let mut again = Backoff::new();
                loop {
                    let leased = core.lease(core.deadline(Duration::ZERO)).await?;
                    let begun = Instant::now();
                    match waited(core, leased, &command, patience).await {
                        Err(error @ Error::Disconnected { .. }) if idempotent || !error.maybe_applied() => {
                            again = again.unless_long_since(begun, core.options.response_timeout);
                            again.failed(core.options.backoff);
                            if again.is_hopeless() {
                                return Err(error);
                            }
                            again.wait(core.deadline(Duration::ZERO)).await;
                        }
                        outcome => return outcome,
                    }
                }
            }
        }
    }

    /// Sends commands together, in one packet where they fit, and gives their replies in order; that of a command that failed is
    /// [`Value::Error`]. They are carried out in order, but those of other tasks may come in between.
    ///
    /// # Errors
    /// As [`Client::run`]; [`Error::maybe_applied`] is then about any of them. Commands that wait on the server are [`Error::Invalid`].
    pub async fn pipeline(&self, commands: &[Command]) -> Result<Vec<Value>> {
        let mut wire = Vec::new();
        for command in commands {
            command.check_shared()?;
            if command.patience() != Patience::Usual {
                return Err(Error::Invalid("a command that waits would hold up all others".to_owned()));
            }
            wire.extend_from_slice(command.wire());
        }
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.send_together(&wire, commands.len(), commands.iter().all(Command::is_idempotent)).await
    }

    async fn send_together(&self, wire: &[u8], count: usize, idempotent: bool) -> Result<Vec<Value>> {
        let deadline = self.core.deadline(Duration::ZERO);
        self.core.exchange(deadline, idempotent, |on| async move { on.send_many(wire.to_vec(), count).await }).await
    }

    /// Sends commands as a transaction (`MULTI` … `EXEC`): all are carried out with nothing in between, or none. Gives their replies in
    /// order. For `WATCH` see [`Client::dedicated`].
    ///
    /// # Errors
    /// As [`Client::pipeline`]; and the server's `EXECABORT` where it refused one of them before it began.
    pub async fn transaction(&self, commands: &[Command]) -> Result<Vec<Value>> {
        let mut wire = Command::new("MULTI").wire().to_vec();
        for command in commands {
            command.check_shared()?;
            wire.extend_from_slice(command.wire());
        }
        wire.extend_from_slice(Command::new("EXEC").wire());
        let replies = self.send_together(&wire, commands.len() + 2, false).await?;
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

    /// A connection of the caller's own, for what belongs to a connection: `WATCH`, `SELECT`, `CLIENT TRACKING`. It is closed when it is
    /// dropped.
    ///
    /// # Errors
    /// Where none can be had within the time for a reply.
    pub async fn dedicated(&self) -> Result<Dedicated> {
        Ok(Dedicated { leased: self.core.lease(self.core.deadline(Duration::ZERO)).await?, core: Arc::clone(&self.core) })
    }

    /// What the server says unasked on any connection of this client, in RESP3: invalidations of tracked keys, for example. A listener that is behind by more than 1,024 misses the oldest, and is told so.
    pub fn pushes(&self) -> broadcast::Receiver<Vec<Value>> {
        self.core.pushes.listen()
    }

    /// The version of the protocol that is spoken, 2 or 3.
    ///
    /// # Errors
    /// Where there is no connection, and none can be made in time.
    pub async fn protocol(&self) -> Result<u8> {
        Ok(self.core.shared(self.core.deadline(Duration::ZERO)).await?.protocol())
    }
}

/// Sends a command that waits on the server, on a connection of its own.
async fn waited(core: &Arc<Core>, mut leased: Leased, command: &Command, patience: Patience) -> Result<Value> {
    let deadline = match patience {
        Patience::Usual => Some(core.deadline(Duration::ZERO)),
        Patience::Waits(wait) => Some(core.deadline(wait)),
        Patience::Forever => None,
    };
    let mut reply = leased.send(command.wire().to_vec()).await?;
    let outcome = core.reply(&mut reply, deadline).await;
    leased.reusable = outcome.as_ref().map_or_else(|error| !error.is_of_connection(), |_| true);
    outcome
}

/// A connection of one's own; see [`Client::dedicated`].
pub struct Dedicated {
    leased: Leased,
    core: Arc<Core>,
}

impl Dedicated {
    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// As [`Client::run`]. When the connection is broken, all further commands fail, as what belonged to it is gone.
    pub async fn run(&mut self, command: Command) -> Result<Value> {
        command.check_dedicated()?;
        let deadline = match command.patience() {
            Patience::Usual => Some(self.core.deadline(Duration::ZERO)),
            Patience::Waits(wait) => Some(self.core.deadline(wait)),
            Patience::Forever => None,
        };
        let mut reply = self.leased.send(command.wire().to_vec()).await?;
        self.core.reply(&mut reply, deadline).await
    }

    /// Sends a command given word by word.
    ///
    /// # Errors
    /// As [`Dedicated::run`].
    pub async fn command<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Value> {
        self.run(of_slice(words)?).await
    }

    /// Sends a command, and turns its reply into a type.
    ///
    /// # Errors
    /// As [`Dedicated::run`], and where the reply is not of that type.
    pub async fn query<T: FromValue>(&mut self, command: Command) -> Result<T> {
        T::from_value(self.run(command).await?)
    }

    /// The connection's number on the server; 0 where that is not known.
    pub fn id(&self) -> i64 {
        self.leased.id()
    }

    /// Returns when the connection is broken.
    pub async fn closed(&self) {
        self.leased.closed().await;
    }
}
