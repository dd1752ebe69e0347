//! Clients whose replies are not checked: operators, those that make noise, and those of a server that is rebuilt. What they send and how
//! they read, others decide.

use std::collections::BTreeMap;

use bytes::BytesMut;

use crate::base::ids::SessionId;
use crate::client::{Command, Decoder, Value};
use crate::driver::connections::turn::{Next, Turn};
use crate::driver::round::adapter::Adapter;
use crate::driver::round::{Driving, RECEIVED_MAX, Socket};
use crate::torture::sim::net::Net;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::server::{REPLY_MAX, Server, Who, hello};

/// Number of a client. Numbers are not used again while a process runs.
pub(in crate::torture::sim) type LocalId = u64;

/// One of them.
#[derive(Default)]
pub(in crate::torture::sim) struct Local {
    /// Its session, once it was accepted.
    id: Option<SessionId>,
    /// What was sent and the server has not received, and whether the client has ended its output behind that.
    pub(in crate::torture::sim) input: Vec<u8>,
    pub(in crate::torture::sim) ended: bool,
    /// Whether its connection is broken.
    pub(in crate::torture::sim) broken: bool,
    /// Number of bytes that it still reads.
    pub(in crate::torture::sim) room: usize,
    /// Maximum number of bytes that the server receives at once.
    pub(in crate::torture::sim) piece: usize,
    /// What it has read; `None` if it forgets that.
    heard: Option<Heard>,
}

/// What a client has read.
struct Heard {
    decoder: Decoder,
    /// What is no whole reply yet.
    read: BytesMut,
    /// Number of replies, and the last of them.
    replies: usize,
    last: Value,
}

impl Local {
    /// A client that reads all, and has sent this.
    pub(in crate::torture::sim) fn new(input: Vec<u8>) -> Local {
        Local { input, room: usize::MAX, piece: usize::MAX, ..Local::default() }
    }

    /// A client that has logged in and sent this. It remembers what it reads.
    pub(in crate::torture::sim) fn asking(command: &Command) -> Local {
        let heard = Some(Heard { decoder: Decoder::new(REPLY_MAX), read: BytesMut::new(), replies: 0, last: Value::Null });
        Local { heard, ..Local::new([hello().wire(), command.wire()].concat()) }
    }

    /// The reply to what it has asked for.
    fn reply(&self) -> Option<&Value> {
        // The first is that to `HELLO`.
        self.heard.as_ref().filter(|heard| heard.replies > 1).map(|heard| &heard.last)
    }
}

/// All of them.
#[derive(Default)]
pub(in crate::torture::sim) struct Locals {
    clients: BTreeMap<LocalId, Local>,
    last: LocalId,
}

impl Locals {
    /// All connections have ended with the server.
    pub(in crate::torture::sim) fn clear(&mut self) {
        self.clients.clear();
    }

    /// A client.
    pub(in crate::torture::sim) fn get_mut(&mut self, local: LocalId) -> Option<&mut Local> {
        self.clients.get_mut(&local)
    }

    /// The connection of a client is closed.
    pub(in crate::torture::sim) fn remove(&mut self, local: LocalId) {
        self.clients.remove(&local);
    }

    /// A client got a session.
    pub(in crate::torture::sim) fn accepted(&mut self, local: LocalId, id: SessionId) {
        if let Some(client) = self.clients.get_mut(&local) {
            client.id = Some(id);
        }
    }
}

impl Server {
    /// A client connects.
    pub(in crate::torture::sim) fn open_local(&mut self, client: Local) -> LocalId {
        self.locals.last += 1;
        self.locals.clients.insert(self.locals.last, client);
        self.arriving.push(Who::Local(self.locals.last));
        self.locals.last
    }

    /// Does something to a client, whose connection gets a turn for that. Nothing happens if the server has closed it.
    pub(in crate::torture::sim) fn act_on_local(&mut self, local: LocalId, act: impl FnOnce(&mut Local)) {
        let Some(client) = self.locals.get_mut(local) else { return };
        act(client);
        client.id.into_iter().for_each(|id| self.driver.wake(id));
    }

    /// Asks the server for something, on a connection of its own.
    pub(in crate::torture::sim) fn ask_locally(&mut self, command: &Command) -> LocalId {
        self.open_local(Local::asking(command))
    }

    /// The reply to what a client has asked for; or whether its connection has ended without one.
    pub(in crate::torture::sim) fn local_reply(&self, local: LocalId) -> Result<Option<&Value>, ()> {
        self.locals.clients.get(&local).map(Local::reply).ok_or(())
    }

    /// Asks the server for something, and has it answer at once.
    pub(in crate::torture::sim) fn answer(&mut self, net: &mut Net, command: &Command) -> Value {
        let local = self.ask_locally(command);
        self.on(net).wake(|_| ());
        let reply = self.local_reply(local).ok().flatten().cloned();
        self.act_on_local(local, |client| client.broken = true);
        self.on(net).wake(|_| ());
        reply.unwrap_or(Value::Null)
    }
}

impl Socket<Serving<'_>> for (SessionId, &mut Local) {
    fn id(&self) -> SessionId {
        self.0
    }

    fn write(&mut self, serving: &mut Serving<'_>, turn: &mut Turn) -> Result<(), Next> {
        fail_if!(self.1.broken, Next::Close);
        let output = serving.driver().output(self.0, turn);
        let taken = output.len().min(self.1.room);
        fail_if!(taken == 0, Next::Wait);
        if let Some(heard) = &mut self.1.heard {
            heard.read.extend_from_slice(&output[..taken]);
            // The engine writes valid replies.
            while let Ok(Some(value)) = heard.decoder.decode(&mut heard.read) {
                (heard.replies, heard.last) = (heard.replies + 1, value);
            }
        }
        self.1.room = self.1.room.saturating_sub(taken);
        serving.driver().written(self.0, taken, turn);
        Ok(())
    }

    fn receive(&mut self, serving: &mut Serving<'_>, turn: &mut Turn) -> Result<(), Next> {
        fail_if!(self.1.broken, Next::Close);
        let piece = self.1.input.len().min(self.1.piece).min(RECEIVED_MAX);
        let input: Vec<u8> = self.1.input.drain(..piece).collect();
        fail_if!(input.is_empty() && !self.1.ended, Next::Wait);
        serving.received(self.0, &input, turn)
    }
}
