//! A socket that sends requests and receives replies, and the handshake that opens it.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::client::command::Command;
use crate::client::connection::decode::Decoder;
use crate::client::connection::stream::{Connector, Stream};
use crate::client::error::{Error, ReplyError, Result};
use crate::client::options::Options;
use crate::client::value::Value;

/// Number of bytes to read at once.
pub(crate) const READ: usize = 16 << 10;

pub(crate) struct Wire {
    pub stream: Stream,
    /// Received bytes that are not decoded yet.
    pub inbox: BytesMut,
    pub decoder: Decoder,
    /// The protocol version, 2 or 3.
    pub protocol: u8,
    /// The connection's id on the server; 0 if unknown.
    pub id: i64,
    /// Whether the server is one of several nodes, and was the leader when the connection was opened.
    pub to_leader: bool,
    /// The number of that node.
    pub node: usize,
}

/// The error of a broken connection. A command that was already sent may have been carried out.
fn disconnected(error: &io::Error) -> Error {
    Error::Disconnected { maybe_applied: true, reason: error.to_string() }
}

pub(crate) fn closed_by_server() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed it")
}

impl Wire {
    /// Connects to the server, or to the node that leads, and performs the handshake. The caller must apply the time-out `within`.
    pub async fn open(connector: &Connector, options: &Options, within: Duration) -> Result<Wire> {
        if !connector.has_nodes() {
            return Wire::open_to(connector, options, 0).await;
        }
        let mut outcome = Err(Error::Connect("there is no node".to_owned()));
        // A node that does not answer leaves time for the others.
        let time = within / (1 + options.others.len() as u32);
        for number in connector.order() {
            outcome = timeout(time, Wire::open_to_leader(connector, options, number))
                .await
                .unwrap_or_else(|_| Err(Error::Connect("connecting timed out".to_owned())));
            match &outcome {
                Ok(_) => {
                    connector.leads(number);
                    return outcome;
                }
                // Another node would refuse the client as well.
                Err(error) if !error.is_of_connection() && !is_not_leader(error) => return outcome,
                Err(_) => {}
            }
        }
        outcome
    }

    /// Connects to a node, and fails unless it leads.
    async fn open_to_leader(connector: &Connector, options: &Options, number: usize) -> Result<Wire> {
        let mut wire = Wire::open_to(connector, options, number).await?;
        wire.send(Command::new("ROLE").wire()).await?;
        // A server that does not say what it is refuses what it cannot do.
        let role = wire.receive().await?;
        match role.as_array().and_then(|items| items.first()?.as_str()) {
            Some(role) if role != "master" => Err(Error::Connect("the node does not lead".to_owned())),
            _ => Ok(Wire { to_leader: true, ..wire }),
        }
    }

    async fn open_to(connector: &Connector, options: &Options, number: usize) -> Result<Wire> {
        let stream = connector.connect(number).await.map_err(|error| Error::Connect(error.to_string()))?;
        let decoder = Decoder::new(options.reply_bytes_max);
        let mut wire = Wire { stream, inbox: BytesMut::new(), decoder, protocol: 2, id: 0, to_leader: false, node: number };
        match wire.handshake(options).await {
            Ok(()) => Ok(wire),
            // No request of the caller has been sent yet.
            Err(Error::Disconnected { reason, .. }) => Err(Error::Connect(reason)),
            Err(error) => Err(error),
        }
    }

    /// Agrees on the protocol, authenticates, names the connection and selects the database.
    async fn handshake(&mut self, options: &Options) -> Result {
        if !options.resp2 {
            self.hello(options).await?;
        }
        let required = required_setup(options, self.protocol);
        // A server may refuse the optional commands, because it does not know them or does not allow them.
        let set_info = |field: &str, value: &str| Command::new("CLIENT").arg("SETINFO").arg(field).arg(value);
        let info = [set_info("LIB-NAME", "portcullis"), set_info("LIB-VER", env!("CARGO_PKG_VERSION"))];
        let client_id = (self.id == 0).then(|| Command::new("CLIENT").arg("ID"));
        let mut out = Vec::new();
        required.iter().chain(&info).chain(&client_id).for_each(|command| out.extend_from_slice(command.wire()));
        self.send(&out).await?;
        for _ in &required {
            self.receive().await?.into_result()?;
        }
        for _ in &info {
            self.receive().await?;
        }
        if client_id.is_some() {
            self.id = self.receive().await?.as_integer().unwrap_or(0);
        }
        Ok(())
    }

    /// Asks for RESP3, with the credentials and the connection's name. If the server does not support RESP3, the connection stays
    /// in RESP2, unauthenticated and without a name.
    async fn hello(&mut self, options: &Options) -> Result {
        let mut hello = Command::new("HELLO").arg(3);
        if let Some(password) = &options.password {
            hello = hello.arg("AUTH").arg(options.user.as_deref().unwrap_or("default")).arg(password);
        }
        if let Some(name) = &options.name {
            hello = hello.arg("SETNAME").arg(name);
        }
        self.send(hello.wire()).await?;
        match self.receive().await? {
            Value::Error(error) if refuses_resp3(&error) => {}
            Value::Error(error) => return Err(error.into()),
            reply => {
                self.protocol = 3;
                self.id = reply.field("id").and_then(Value::as_integer).unwrap_or(0);
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

/// Whether a server refuses a request because it is a node that does not lead, or has ended a wait because it no longer leads.
/// Nothing was carried out. `CLIENT UNBLOCK … ERROR` has the same code as the latter, and another text.
pub(crate) fn is_not_leader(error: &Error) -> bool {
    match error {
        Error::Reply(reply) => match reply.code() {
            "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "LOADING" => true,
            "UNBLOCKED" => reply.message().starts_with("force unblock "),
            _ => false,
        },
        _ => false,
    }
}

/// The commands after `HELLO` that must succeed. `HELLO` has already authenticated and named a RESP3 connection.
fn required_setup(options: &Options, protocol: u8) -> Vec<Command> {
    let mut commands = Vec::new();
    if protocol == 2 {
        match (&options.user, &options.password) {
            (Some(user), Some(password)) => commands.push(Command::new("AUTH").arg(user).arg(password)),
            (_, Some(password)) => commands.push(Command::new("AUTH").arg(password)),
            _ => {}
        }
        if let Some(name) = &options.name {
            commands.push(Command::new("CLIENT").arg("SETNAME").arg(name));
        }
    }
    if options.db != 0 {
        commands.push(Command::new("SELECT").arg(options.db));
    }
    commands
}

/// Whether a server that replied this to `HELLO 3` does not support RESP3, or does not know `HELLO` at all.
fn refuses_resp3(error: &ReplyError) -> bool {
    let message = error.message().to_ascii_lowercase();
    error.code() == "NOPROTO" || (error.code() == "ERR" && (message.contains("hello") || message.starts_with("unknown command")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_lead_is_told_from_other_errors() {
        let is = |text: &str| is_not_leader(&Error::from(ReplyError::new(text.as_bytes())));
        assert!(is("READONLY You can't write against a read only replica."));
        assert!(is("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"));
        assert!(!is("UNBLOCKED client unblocked via CLIENT UNBLOCK"));
        assert!(!is("ERR syntax error"));
        assert!(!is("NOTHELD lock 'a' is not held by 'x': never held"));
    }
}
