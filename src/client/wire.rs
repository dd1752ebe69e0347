//! A socket for requests and replies, and its handshake.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::command::Command;
use crate::client::decode::Decoder;
use crate::client::error::{Error, ReplyError, Result};
use crate::client::options::Options;
use crate::client::stream::{Connector, Stream};
use crate::client::value::Value;

/// Number of bytes to read at once.
pub(crate) const READ: usize = 16 << 10;

pub(crate) struct Wire {
    pub stream: Stream,
    pub inbox: BytesMut,
    pub decoder: Decoder,
    /// The protocol version, 2 or 3.
    pub protocol: u8,
    /// The connection's id on the server; 0 if the server does not tell.
    pub id: i64,
}

/// The error of a broken connection. A command that was already sent may have been carried out.
pub(crate) fn disconnected(error: &io::Error) -> Error {
    Error::Disconnected { maybe_applied: true, reason: error.to_string() }
}

pub(crate) fn closed_by_server() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it")
}

impl Wire {
    /// Connects, and performs the handshake: protocol, user, name, database. The caller must apply a time-out.
    pub async fn open(connector: &Connector, options: &Options) -> Result<Wire> {
        let stream = connector.connect().await.map_err(|error| Error::Connect(error.to_string()))?;
        let decoder = Decoder::new(options.reply_bytes_max);
        let mut wire = Wire { stream, inbox: BytesMut::new(), decoder, protocol: 2, id: 0 };
        match wire.introduce(options).await {
            Ok(()) => Ok(wire),
            // No request of the caller has been sent yet.
            Err(Error::Disconnected { reason, .. }) => Err(Error::Connect(reason)),
            Err(error) => Err(error),
        }
    }

    async fn introduce(&mut self, options: &Options) -> Result {
        let mut said = 0;
        if !options.resp2 {
            self.send(hello(options).wire()).await?;
            match self.receive().await? {
                Value::Error(error) if !is_no_resp3(&error) => return Err(error.into()),
                Value::Error(_) => {}
                reply => {
                    self.protocol = 3;
                    self.id = reply.field("id").and_then(Value::as_integer).unwrap_or(0);
                }
            }
        }
        let mut out = Vec::new();
        let mut say = |command: Command| {
            out.extend_from_slice(command.wire());
            said += 1;
        };
        let mut must = Vec::new();
        if self.protocol == 2 {
            match (&options.user, &options.password) {
                (Some(user), Some(password)) => must.push(Command::new("AUTH").arg(user).arg(password)),
                (_, Some(password)) => must.push(Command::new("AUTH").arg(password)),
                _ => {}
            }
            if let Some(name) = &options.name {
                must.push(Command::new("CLIENT").arg("SETNAME").arg(name));
            }
        }
        if options.db != 0 {
            must.push(Command::new("SELECT").arg(options.db));
        }
        let must_count = must.len();
        must.into_iter().for_each(&mut say);
        // Optional commands: a server that does not know or allow them is fine.
        say(Command::new("CLIENT").arg("SETINFO").arg("LIB-NAME").arg("portcullis"));
        say(Command::new("CLIENT").arg("SETINFO").arg("LIB-VER").arg(env!("CARGO_PKG_VERSION")));
        if self.id == 0 {
            say(Command::new("CLIENT").arg("ID"));
        }
        self.send(&out).await?;
        for at in 0..said {
            let reply = self.receive().await?;
            if at < must_count {
                reply.into_result()?;
            } else if at >= must_count + 2 {
                self.id = reply.as_integer().unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Writes all bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> Result {
        self.stream.write_all(bytes).await.map_err(|error| disconnected(&error))?;
        self.stream.flush().await.map_err(|error| disconnected(&error))
    }

    /// The next reply or push. The future may be dropped without losing data.
    pub async fn receive(&mut self) -> Result<Value> {
        loop {
            if let Some(value) = self.decoder.decode(&mut self.inbox)? {
                return Ok(value);
            }
            self.inbox.reserve(READ);
            match self.stream.read_buf(&mut self.inbox).await {
                Ok(0) => return Err(disconnected(&closed_by_server())),
                Ok(_) => {}
                Err(error) => return Err(disconnected(&error)),
            }
        }
    }
}

fn hello(options: &Options) -> Command {
    let mut hello = Command::new("HELLO").arg(3);
    if let Some(password) = &options.password {
        hello = hello.arg("AUTH").arg(options.user.as_deref().unwrap_or("default")).arg(password);
    }
    if let Some(name) = &options.name {
        hello = hello.arg("SETNAME").arg(name);
    }
    hello
}

/// Whether a server refused RESP3, or does not know `HELLO` at all.
fn is_no_resp3(error: &ReplyError) -> bool {
    let message = error.message().to_ascii_lowercase();
    error.code() == "NOPROTO" || (error.code() == "ERR" && (message.contains("hello") || message.starts_with("unknown command")))
}
