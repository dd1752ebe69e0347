//! Connections between clients and servers: opened, used, cut and closed.

use std::collections::VecDeque;

use super::{Conn, ConnId, Event, Net, ToClient, ToServer, Usage};
use crate::client::{Error, Message, Value};
use crate::torture::plan::UNSEEN_LEASES;
use crate::torture::sim::link::Delivery;

impl Net {
    /// Opens a new connection.
    pub(super) fn open(&mut self, client: u32, server: u32, usage: Usage) -> ConnId {
        self.conns.push(Conn {
            client,
            server,
            usage,
            open: true,
            cut: false,
            gone: false,
            has_sent: false,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            arrives_us: (0, 0),
            in_flight: VecDeque::new(),
            messages: VecDeque::new(),
            waker: None,
        });
        self.conns.len() as ConnId - 1
    }

    /// A connection for this use: an existing one if there is one, otherwise a new one.
    pub(super) fn conn_for(&mut self, client: u32, server: u32, usage: Usage) -> ConnId {
        let of = &mut self.clients[client as usize];
        let found = match usage {
            Usage::Shared => of.shared[server as usize],
            Usage::Pooled => of.idle[server as usize].pop(),
            Usage::Subscription => None,
        };
        let conn = found.unwrap_or_else(|| self.open(client, server, usage));
        if usage == Usage::Shared {
            self.clients[client as usize].shared[server as usize] = Some(conn);
        }
        conn
    }

    /// Sends a message from a client. The first one waits for the handshake.
    pub(super) fn send(&mut self, id: ConnId, message: ToServer) {
        let now_us = self.now_us;
        let conn = &self.conns[id as usize];
        if conn.cut {
            return;
        }
        let has_sent = conn.has_sent;
        let link = self.link_of(id);
        let handshake_us = if has_sent { 0 } else { link.latency_us(now_us) + link.latency_us(now_us) };
        match link.send(now_us) {
            Delivery::Breaks => self.cut(id),
            Delivery::Arrives(after_us) => {
                let conn = &mut self.conns[id as usize];
                conn.has_sent = true;
                let at_us = (now_us + handshake_us + after_us).max(conn.arrives_us.0);
                conn.arrives_us.0 = at_us;
                conn.to_server.push_back(message);
                self.at(at_us, Event::ToServer(id));
            }
        }
    }

    /// Sends a message from a server.
    pub fn send_back(&mut self, id: ConnId, message: ToClient) {
        let now_us = self.now_us;
        if self.conns[id as usize].cut {
            return;
        }
        match self.link_of(id).send(now_us) {
            Delivery::Breaks => self.cut(id),
            Delivery::Arrives(after_us) => {
                let conn = &mut self.conns[id as usize];
                let at_us = (now_us + after_us).max(conn.arrives_us.1);
                conn.arrives_us.1 = at_us;
                conn.to_client.push_back(message);
                self.at(at_us, Event::ToClient(id));
            }
        }
    }

    /// Cuts a connection: nothing passes any more, and each side notices at some time.
    fn cut(&mut self, id: ConnId) {
        let conn = &mut self.conns[id as usize];
        if std::mem::replace(&mut conn.cut, true) {
            return;
        }
        let (now_us, lease_us, timeout_us) = (self.now_us, self.lease_us, self.timeout_us());
        let random = self.link_of(id).random(now_us);
        let (client_us, server_us) = (random.below(timeout_us), random.below(u64::from(UNSEEN_LEASES) * lease_us));
        self.at(self.now_us + client_us, Event::Broken(id));
        self.at(self.now_us + server_us, Event::BrokenAtServer(id));
    }

    /// The server of a connection ends. The client notices soon if the machine closes the connection (`told`), and otherwise at
    /// some time.
    pub fn abandon(&mut self, id: ConnId, told: bool) {
        let (now_us, timeout_us) = (self.now_us, self.timeout_us());
        let link = self.link_of(id);
        let noticed_us = if told { link.latency_us(now_us) } else { link.random(now_us).below(timeout_us) };
        let conn = &mut self.conns[id as usize];
        (conn.cut, conn.gone) = (true, true);
        self.at(self.now_us + noticed_us, Event::Broken(id));
    }

    /// Ends the server's session of a connection. Later messages to the server are dropped.
    pub fn end_session(&mut self, id: ConnId) {
        self.conns[id as usize].gone = true;
    }

    /// Closes a connection from the client's side. Earlier messages still arrive.
    pub(super) fn close(&mut self, id: ConnId) {
        if self.conns[id as usize].open {
            self.send(id, ToServer::Close);
            self.forget(id);
        }
    }

    /// Removes a connection from its client's state.
    fn forget(&mut self, id: ConnId) {
        let conn = &mut self.conns[id as usize];
        conn.open = false;
        let (client, server) = (conn.client as usize, conn.server as usize);
        let of = &mut self.clients[client];
        if of.shared[server] == Some(id) {
            of.shared[server] = None;
        }
        of.idle[server].retain(|idle| *idle != id);
    }

    /// The client notices that a connection is broken.
    pub fn broken(&mut self, id: ConnId, refused: bool) {
        if !self.conns[id as usize].open {
            return;
        }
        self.forget(id);
        let conn = &mut self.conns[id as usize];
        if let Some(waker) = conn.waker.take() {
            waker.wake();
        }
        for key in std::mem::take(&mut conn.in_flight) {
            let error = match refused {
                true => Error::Connect("connection refused".to_owned()),
                false => Error::Disconnected { maybe_applied: true, reason: "connection reset by peer".to_owned() },
            };
            self.finish(key, Err(error), None);
        }
    }

    /// Takes the next message for a connection's server. `None` if the server has ended the session.
    pub fn take_to_server(&mut self, id: ConnId) -> Option<ToServer> {
        let conn = &mut self.conns[id as usize];
        conn.to_server.pop_front().filter(|_| !conn.gone)
    }

    /// Delivers the next message to a connection's client.
    pub fn arrive(&mut self, id: ConnId) {
        let conn = &mut self.conns[id as usize];
        let Some(message) = conn.to_client.pop_front() else { return };
        if !conn.open {
            return;
        }
        match message {
            ToClient::Refused => self.broken(id, true),
            ToClient::Reset => self.broken(id, false),
            ToClient::Reply(value, arrived, answered) => {
                let Some(key) = conn.in_flight.pop_front() else { return };
                if conn.usage == Usage::Pooled && conn.in_flight.is_empty() {
                    let (client, server) = (conn.client as usize, conn.server as usize);
                    self.clients[client].idle[server].push(id);
                }
                self.finish(key, value.into_result(), Some((arrived, answered)));
            }
            ToClient::Push(parts) => match (parts.first().and_then(Value::as_str), &parts[..]) {
                (Some("message"), [_, Value::Bytes(channel), Value::Bytes(payload)]) => {
                    let message = Message { channel: channel.clone(), pattern: None, payload: payload.clone() };
                    conn.messages.push_back(message);
                    if let Some(waker) = conn.waker.take() {
                        waker.wake();
                    }
                }
                (Some("subscribe"), _) => {
                    let Some(key) = conn.in_flight.pop_front() else { return };
                    self.finish(key, Ok(Value::Null), None);
                }
                // Other push messages, such as the loss of a lock: no algorithm here uses them.
                _ => {}
            },
        }
    }

    /// A client crashes and forgets its connections. Servers notice at once, unless its machine crashed too.
    pub fn crash(&mut self, client: u32, machine: bool, again_us: u64) {
        for id in 0..self.conns.len() as ConnId {
            let conn = &self.conns[id as usize];
            if conn.client != client || !conn.open {
                continue;
            }
            match machine {
                false => self.send(id, ToServer::Close),
                true => {
                    self.conns[id as usize].cut = true;
                    let (now_us, lease_us) = (self.now_us, self.lease_us);
                    let noticed_us = self.link_of(id).random(now_us).below(u64::from(UNSEEN_LEASES) * lease_us);
                    self.at((self.now_us + noticed_us).min(again_us), Event::BrokenAtServer(id));
                }
            }
            self.forget(id);
            self.conns[id as usize].in_flight.clear();
        }
    }
}
