//! Calls, which wait for replies, and subscriptions, which wait for messages.

use std::cmp::Reverse;
use std::task::Waker;
use std::time::Duration;

use super::{Answer, Call, Conn, ConnId, Event, Key, Net, ToServer, Use, keep};
use crate::client::{Blocking, Command, Error, Message, Result, Value};
use crate::torture::history::Stamp;

impl Net {
    /// Sends a command.
    pub fn call(&mut self, client: u32, server: u32, command: Command) -> Key {
        let blocking = command.blocking();
        let usage = if blocking == Blocking::No { Use::Shared } else { Use::Pooled };
        let conn = self.conn_for(client, server, usage);
        let wait = match blocking {
            Blocking::No => Some(Duration::ZERO),
            Blocking::For(wait) => Some(wait),
            Blocking::Forever => None,
        };
        self.begin(conn, command, wait)
    }

    /// Sends a command on a connection.
    fn begin(&mut self, conn: ConnId, command: Command, wait: Option<Duration>) -> Key {
        self.last += 1;
        let number = self.last;
        // As the client of this crate does: what does no harm twice is sent again.
        let again = self.loses && command.is_idempotent();
        let kept = (again || self.keeps).then(|| command.clone());
        let call = Call { number, conn, command: kept, again, resent_us: None, waker: None, done: None };
        let key = Key { index: self.calls.insert(call) as u32, number };
        self.conns[conn as usize].in_flight.push_back(key);
        if let Some(wait) = wait.filter(|_| self.loses) {
            let client = self.conns[conn as usize].client;
            let after_us = self.clients[client as usize].clock.true_duration_us(wait + Duration::from_micros(self.timeout_us()));
            self.at(self.now_us + after_us, Event::Timeout(key));
        }
        self.count_sent(conn);
        self.send(conn, ToServer::Request(command));
        key
    }

    /// Has go wrong what is to go wrong after that many commands.
    fn count_sent(&mut self, conn: ConnId) {
        let now_us = self.now_us;
        let client = self.conns[conn as usize].client;
        let of = &mut self.clients[client as usize];
        of.sent += 1;
        of.last_conn = Some(conn);
        while let Some((_, after_us, fault)) = of.triggers.pop_if(|(nth, ..)| *nth <= of.sent) {
            self.last += 1;
            self.queue.push(Reverse((now_us + after_us, self.last, Event::Fault(fault))));
        }
    }

    /// The reply to the last command that a client has sent is lost, and the command sent again. Gives its server.
    pub fn resend(&mut self, client: u32) -> Option<u32> {
        let id = self.clients[client as usize].last_conn?;
        let conn = &mut self.conns[id as usize];
        if !conn.open || conn.in_flight.is_empty() || conn.usage == Use::Subscription {
            return None;
        }
        let server = conn.server;
        for key in &conn.in_flight {
            if let Some(call) = self.calls.get_mut(key.index as usize).filter(|call| call.number == key.number) {
                call.again = true;
            }
        }
        // What was sent arrives.
        conn.cut = true;
        let arrived_us = conn.arrives_us.0.max(self.now_us);
        let now_us = self.now_us;
        let random = self.link_of(id).random(now_us);
        let (client_us, server_us) = (random.between(2_000, 300_000), random.between(2_000, 300_000));
        self.at(self.now_us + client_us, Event::Broken(id));
        self.at(arrived_us + server_us, Event::BrokenAtServer(id));
        Some(server)
    }

    pub(super) fn finish(&mut self, key: Key, result: Result<Value>, stamps: Option<(Stamp, Stamp)>) {
        let Some(call) = self.calls.get_mut(key.index as usize).filter(|call| call.number == key.number) else { return };
        if call.again
            && matches!(result, Err(Error::Disconnected { .. }))
            && let Some(command) = call.command.take()
        {
            (call.again, call.resent_us) = (false, Some(self.now_us));
            let Conn { client, server, usage, .. } = self.conns[call.conn as usize];
            let conn = self.conn_for(client, server, usage);
            self.calls[key.index as usize].conn = conn;
            self.conns[conn as usize].in_flight.push_back(key);
            return self.send(conn, ToServer::Request(command));
        }
        let waited = self.conns[call.conn as usize].usage == Use::Pooled;
        call.done = Some(Answer { result, stamps, resent_us: call.resent_us, waited });
        if let Some(waker) = call.waker.take() {
            waker.wake();
        }
    }

    /// What has become of a call, or whom to wake when that is known.
    pub fn poll_call(&mut self, key: Key, waker: &Waker) -> Option<Answer> {
        let call = self.calls.get_mut(key.index as usize).filter(|call| call.number == key.number)?;
        match call.done.take() {
            Some(done) => {
                self.calls.remove(key.index as usize);
                Some(done)
            }
            None => {
                keep(&mut call.waker, waker);
                None
            }
        }
    }

    /// Nobody waits for a reply any more. A connection that waits on the server for it is closed.
    pub fn drop_call(&mut self, key: Key) {
        let Some(call) = self.calls.get(key.index as usize).filter(|call| call.number == key.number) else { return };
        let (conn, done) = (call.conn, call.done.is_some());
        self.calls.remove(key.index as usize);
        if !done && self.conns[conn as usize].usage != Use::Shared {
            self.close(conn);
        }
    }

    /// A call has waited for too long: it fails, and its connection is closed.
    pub fn time_out(&mut self, key: Key) {
        let Some(call) = self.calls.get(key.index as usize).filter(|call| call.number == key.number && call.done.is_none())
        else {
            return;
        };
        let conn = call.conn;
        self.finish(key, Err(Error::Timeout { maybe_applied: true, after: Duration::from_micros(self.timeout_us()) }), None);
        if self.conns[conn as usize].open {
            self.send(conn, ToServer::Close);
            self.broken(conn, false);
        }
    }

    /// Begins to listen to a channel on a connection of its own, and gives that and the call that waits for it.
    pub fn subscribe(&mut self, client: u32, server: u32, channel: &[u8]) -> (ConnId, Key) {
        let conn = self.open(client, server, Use::Subscription);
        let key = self.begin(conn, Command::new("SUBSCRIBE").arg(channel), Some(Duration::ZERO));
        (conn, key)
    }

    /// The next message; an error where the connection is broken; `None` where there is none, and whom to wake then.
    pub fn poll_message(&mut self, id: ConnId, waker: &Waker) -> Option<Result<Message>> {
        let conn = &mut self.conns[id as usize];
        if let Some(message) = conn.messages.pop_front() {
            return Some(Ok(message));
        }
        if !conn.open {
            let reason = "connection reset by peer".to_owned();
            return Some(Err(Error::Disconnected { maybe_applied: false, reason }));
        }
        keep(&mut conn.waker, waker);
        None
    }

    /// Nobody listens any more.
    pub fn drop_subscription(&mut self, id: ConnId) {
        self.close(id);
    }
}
