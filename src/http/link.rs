//! Asks the server over client connections within the process.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::client::{Command, Decoder, Value};
use crate::http::credentials::Who;
use crate::http::trouble::Trouble;

/// What a server is able to do at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whether it is loading its files.
    pub loading: bool,
    /// Whether it is one of several nodes and knows no leader.
    pub leaderless: bool,
}

/// Whom a connection serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Whoever asks.
    Anyone,
    /// The client of the endpoint at this address, which the server shows.
    One(SocketAddr),
    /// The endpoint itself, which may do everything.
    Trusted,
}

/// The server, as the endpoint reaches it.
pub trait Inside: Send + Sync + 'static {
    /// Opens a connection of a client.
    ///
    /// # Errors
    /// The system provides no sockets.
    fn connect(&self, serves: Serves) -> io::Result<std::os::unix::net::UnixStream>;

    /// Asks for the state. `tell` is dropped if the server has ended.
    fn state(&self, tell: Box<dyn FnOnce(State) + Send>);

    /// Asks how long a login of a client at this address must wait. `tell` is dropped if the server has ended.
    fn login(&self, from: IpAddr, tell: Box<dyn FnOnce(Duration) + Send>);

    /// Tells the server that a login of a client at this address has failed.
    fn login_failed(&self, from: IpAddr);
}

/// The name of the connections in `CLIENT LIST`.
const NAME: &str = "http";
/// Time within which the server must answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Maximum number of connections that are kept for further requests.
const IDLE_MAX: usize = 4;
/// Maximum bytes of a reply.
const REPLY_MAX: usize = 64 << 20;
/// What the server answers a new connection if there are too many.
const FULL: &str = "max number of clients reached";
/// Number of bytes to read at once.
const READ: usize = 16 << 10;

/// A connection to the server.
struct Wire {
    stream: UnixStream,
    inbox: BytesMut,
    decoder: Decoder,
}

impl Wire {
    fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Wire> {
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        Ok(Wire { stream, inbox: BytesMut::new(), decoder: Decoder::new(REPLY_MAX) })
    }

    /// Whether the server has not closed it, and has sent nothing that nobody asked for.
    fn is_still(&self) -> bool {
        let mut byte = [0];
        self.inbox.is_empty()
            && matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The next reply.
    async fn receive(&mut self) -> Result<Value, Trouble> {
        loop {
            match self.decoder.decode(&mut self.inbox) {
                Ok(Some(Value::Push(_))) => continue,
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                Err(error) => return Err(Trouble::new(StatusCode::BAD_GATEWAY, error.to_string())),
            }
            self.inbox.reserve(READ);
            match self.stream.read_buf(&mut self.inbox).await {
                Ok(0) => return Err(Trouble::unavailable("the server has closed the connection")),
                Ok(_) => {}
                Err(error) => return Err(Trouble::unavailable(error.to_string())),
            }
        }
    }

    async fn send(&mut self, commands: &[Command]) -> Result<(), Trouble> {
        let out: Vec<u8> = commands.iter().flat_map(|command| command.wire().iter().copied()).collect();
        self.stream.write_all(&out).await.map_err(|error| Trouble::unavailable(error.to_string()))
    }
}

/// A pool of connections, and one that may do everything.
pub struct Link {
    inside: Arc<dyn Inside>,
    idle: Mutex<VecDeque<Wire>>,
    trusted: Mutex<Option<Wire>>,
}

impl Link {
    pub fn new(inside: Arc<dyn Inside>) -> Link {
        Link { inside, idle: Mutex::default(), trusted: Mutex::default() }
    }

    /// Runs commands as a user, in a database, and returns their replies, among which errors are.
    ///
    /// # Errors
    /// The user is not let in, the database does not exist, or the server does not answer.
    pub async fn ask(&self, who: &Who, db: u32, commands: &[Command]) -> Result<Vec<Value>, Trouble> {
        within(ANSWER_TIME, async {
            let mut wire = self.take()?;
            // Every request logs in anew, so what the connection was before does not matter, and a changed password counts at once.
            let replies = run(&mut wire, greeting(Some(who)), db, commands).await?;
            self.give_back(wire);
            Ok(replies)
        })
        .await
    }

    /// As [`Link::ask`] over a connection of its own, which the server shows by the address of the one who asks.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn ask_for(&self, from: SocketAddr, who: &Who, db: u32, commands: &[Command]) -> Result<Vec<Value>, Trouble> {
        let own = within(ANSWER_TIME, async {
            let mut wire = self.open(Serves::One(from))?;
            run(&mut wire, greeting(Some(who)), db, commands).await
        })
        .await;
        match own {
            // There are `maxclients` connections: the kept ones serve, too.
            Err(trouble) if trouble.text.contains(FULL) => self.ask(who, db, commands).await,
            answered => answered,
        }
    }

    /// Runs commands as a user, or with `None` as nobody who could be refused.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn ask_as(&self, who: Option<&Who>, db: u32, commands: &[Command]) -> Result<Vec<Value>, Trouble> {
        if let Some(who) = who { self.ask(who, db, commands).await } else { self.ask_trusted(db, commands).await }
    }

    /// Runs commands that no user has asked for: nothing is refused.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn ask_trusted(&self, db: u32, commands: &[Command]) -> Result<Vec<Value>, Trouble> {
        within(ANSWER_TIME, async {
            let kept = lock(&self.trusted).take().filter(Wire::is_still);
            let mut wire = if let Some(wire) = kept { wire } else { self.open(Serves::Trusted)? };
            let mut asked = vec![Command::new("SELECT").arg(db)];
            asked.extend_from_slice(commands);
            let replies = run(&mut wire, greeting(None), 0, &asked).await?;
            *lock(&self.trusted) = Some(wire);
            Ok(replies.into_iter().skip(1).collect())
        })
        .await
    }

    /// Whether the executor answers `PING` within a time, whatever it answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self, time: Duration) -> Result<(), Trouble> {
        within(time, async {
            let mut wire = self.take()?;
            wire.send(&[Command::new("PING")]).await?;
            wire.receive().await?;
            self.give_back(wire);
            Ok(())
        })
        .await
    }

    /// The server's state.
    ///
    /// # Errors
    /// The executor does not answer within the time.
    pub async fn state(&self, time: Duration) -> Result<State, Trouble> {
        within(time, async {
            let (tell, told) = oneshot::channel();
            self.inside.state(Box::new(move |state| {
                let _ = tell.send(state);
            }));
            told.await.map_err(|_| Trouble::unavailable("the server has ended"))
        })
        .await
    }

    /// How long a login of a client at this address must wait before its password is looked at.
    ///
    /// # Errors
    /// The executor does not answer.
    pub async fn login_wait(&self, from: IpAddr) -> Result<Duration, Trouble> {
        within(ANSWER_TIME, async {
            let (tell, told) = oneshot::channel();
            self.inside.login(
                from,
                Box::new(move |wait| {
                    let _ = tell.send(wait);
                }),
            );
            told.await.map_err(|_| Trouble::unavailable("the server has ended"))
        })
        .await
    }

    /// Tells the server that a login has failed.
    pub fn login_failed(&self, from: IpAddr) {
        self.inside.login_failed(from);
    }

    fn take(&self) -> Result<Wire, Trouble> {
        loop {
            let kept = lock(&self.idle).pop_back();
            match kept {
                Some(wire) if wire.is_still() => return Ok(wire),
                Some(_) => {}
                None => return self.open(Serves::Anyone),
            }
        }
    }

    fn open(&self, serves: Serves) -> Result<Wire, Trouble> {
        let opened = self.inside.connect(serves).and_then(Wire::new);
        opened.map_err(|error| Trouble::unavailable(format!("no connection to the server: {error}")))
    }

    fn give_back(&self, wire: Wire) {
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_MAX {
            idle.push_back(wire);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn within<T>(time: Duration, asking: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let late = || Trouble::unavailable(format!("the server did not answer within {} s", time.as_secs()));
    timeout(time, asking).await.unwrap_or_else(|_| Err(late()))
}

/// The commands that come first: with a user, the connection becomes a new one of that user.
fn greeting(who: Option<&Who>) -> Vec<Command> {
    let hello = Command::new("HELLO").arg(3);
    let hello = if let Some(Who::User(user, password)) = who { hello.arg("AUTH").arg(user).arg(password) } else { hello };
    let hello = hello.arg("SETNAME").arg(NAME);
    if who.is_some() { vec![Command::new("RESET"), hello] } else { vec![hello] }
}

async fn run(wire: &mut Wire, mut first: Vec<Command>, db: u32, commands: &[Command]) -> Result<Vec<Value>, Trouble> {
    if db != 0 {
        first.push(Command::new("SELECT").arg(db));
    }
    // The commands wait for these replies: after a wrong password, the default user would run them.
    wire.send(&first).await?;
    for _ in &first {
        accepted(wire.receive().await?)?;
    }
    let mut replies = Vec::with_capacity(commands.len());
    for command in commands {
        // One at a time: commands that come together run in one turn of the executor, for which all other clients wait.
        wire.send(std::slice::from_ref(command)).await?;
        replies.push(wire.receive().await?);
    }
    Ok(replies)
}

/// Refuses a reply that is an error.
///
/// # Errors
/// The server's error.
pub fn accepted(reply: Value) -> Result<Value, Trouble> {
    match reply {
        Value::Error(error) => Err(Trouble::from(&error)),
        reply => Ok(reply),
    }
}
