//! Calls, which wait for replies; and subscriptions, which wait for messages.

use std::cmp::Reverse;
use std::task::Waker;
use std::time::Duration;

use super::{Answer, Call, Conn, ConnId, Event, Net, SlabKey, ToServer, Usage, store_waker};
use crate::client::{Blocking, Command, Error, Message, Result, Value};
use crate::torture::history::Stamp;

impl Net {
    /// Sends a command of a client, on a shared or a pooled connection. `prelude` goes before it on the same connection, also when the
    /// command is sent again.
    pub fn call(&mut self, client: u32, server: u32, prelude: Option<Command>, command: Command) -> SlabKey {
        let server = self.machine(client, server);
        let blocking = command.blocking();
        let usage = if blocking == Blocking::No { Usage::Shared } else { Usage::Pooled };
        let conn = self.conn_for(client, server, usage);
        let wait = match blocking {
            Blocking::No => Some(Duration::ZERO),
            Blocking::For(wait) => Some(wait),
            Blocking::Forever => None,
        };
        self.begin(conn, prelude, command, wait)
    }

    /// Sends a command on a connection.
    fn begin(&mut self, conn: ConnId, prelude: Option<Command>, command: Command, wait: Option<Duration>) -> SlabKey {
        self.last += 1;
        let number = self.last;
        // Like the client of this crate, resends idempotent commands.
        let again = self.may_lose_replies && (command.is_idempotent() || self.has_request_id(&command));
        let kept = (again || self.may_resend).then(|| command.clone());
        let call = Call { number, conn, command: kept, prelude, again, moved: 0, resent_us: None, waker: None, done: None };
        let key = SlabKey { index: self.calls.insert(call) as u32, number };
        if let Some(wait) = wait.filter(|_| self.may_lose_replies) {
            let client = self.conns[conn as usize].client;
            let after_us = self.clients[client as usize].clock.true_duration_us(wait + Duration::from_micros(self.timeout_us()));
            self.at(self.now_us + after_us, Event::Timeout(key));
        }
        self.count_sent(conn);
        self.send_call(conn, key, command);
        key
    }

    /// Sends the command of a call on a connection, behind its prelude.
    pub(super) fn send_call(&mut self, conn: ConnId, key: SlabKey, command: Command) {
        if let Some(prelude) = self.calls.get(key.index as usize).and_then(|call| call.prelude.clone()) {
            // No call has this number.
            self.conns[conn as usize].in_flight.push_back(SlabKey { number: 0, ..key });
            self.send(conn, ToServer::Request(prelude));
        }
        self.conns[conn as usize].in_flight.push_back(key);
        self.send(conn, ToServer::Request(command));
    }

    /// Counts a sent command, and schedules the faults that follow it.
    fn count_sent(&mut self, conn: ConnId) {
        let now_us = self.now_us;
        let client = self.conns[conn as usize].client;
        let of = &mut self.clients[client as usize];
        of.sent += 1;
        of.last_conn = Some(conn);
        while let Some(trigger) = of.triggers.pop_if(|trigger| trigger.nth <= of.sent) {
            self.last += 1;
            self.queue.push(Reverse((now_us + trigger.after_us, self.last, Event::Fault(trigger.fault))));
        }
    }

    /// Loses the reply to the last command of a client with its connection. The command is resent. Returns the number of the
    /// server.
    pub fn resend(&mut self, client: u32) -> Option<u32> {
        let id = self.clients[client as usize].last_conn?;
        let conn = &mut self.conns[id as usize];
        if !conn.open || conn.in_flight.is_empty() || conn.usage == Usage::Subscription {
            return None;
        }
        let server = conn.server;
        for key in &conn.in_flight {
            if let Some(call) = self.calls.get_mut(key.index as usize).filter(|call| call.number == key.number) {
                call.again = true;
            }
        }
        // Sent messages still arrive.
        conn.cut = true;
        let arrived_us = conn.arrives_us.0.max(self.now_us);
        let now_us = self.now_us;
        let random = self.link_of(id).random(now_us);
        let (client_us, server_us) = (random.between(2_000, 300_000), random.between(2_000, 300_000));
        self.at(self.now_us + client_us, Event::Broken(id));
        self.at(arrived_us + server_us, Event::BrokenAtServer(id));
        Some(server)
    }

    pub(super) fn finish(&mut self, key: SlabKey, result: Result<Value>, stamps: Option<(Stamp, Stamp)>) {
        if self.moves(key, &result) {
            return;
        }
        let Some(call) = self.calls.get_mut(key.index as usize).filter(|call| call.number == key.number) else { return };
        if call.again
            && matches!(result, Err(Error::Disconnected { .. }))
            && let Some(command) = call.command.take()
        {
            (call.again, call.resent_us) = (false, Some(self.now_us));
            let Conn { client, server, usage, .. } = self.conns[call.conn as usize];
            let conn = self.conn_for(client, server, usage);
            self.calls[key.index as usize].conn = conn;
            return self.send_call(conn, key, command);
        }
        let waited = self.conns[call.conn as usize].usage == Usage::Pooled;
        call.done = Some(Answer { result, stamps, resent_us: call.resent_us, waited });
        if let Some(waker) = call.waker.take() {
            waker.wake();
        }
    }

    /// Returns the result of a call. If there is none yet, it will wake the waker.
    pub fn poll_call(&mut self, key: SlabKey, waker: &Waker) -> Option<Answer> {
        let call = self.calls.get_mut(key.index as usize).filter(|call| call.number == key.number)?;
        match call.done.take() {
            Some(done) => {
                self.calls.remove(key.index as usize);
                Some(done)
            }
            None => {
                store_waker(&mut call.waker, waker);
                None
            }
        }
    }

    /// Drops a call. Its connection is closed, unless it is shared.
    pub fn drop_call(&mut self, key: SlabKey) {
        let Some(call) = self.calls.get(key.index as usize).filter(|call| call.number == key.number) else { return };
        let (conn, done) = (call.conn, call.done.is_some());
        self.calls.remove(key.index as usize);
        if !done && self.conns[conn as usize].usage != Usage::Shared {
            self.close(conn);
        }
    }

    /// A call times out: it fails, and its connection is closed.
    pub fn time_out(&mut self, key: SlabKey) {
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

    /// Subscribes to a channel on a new connection. Returns the connection and the call that waits for the confirmation.
    pub fn subscribe(&mut self, client: u32, server: u32, channel: &[u8]) -> (ConnId, SlabKey) {
        let server = self.machine(client, server);
        let conn = self.open(client, server, Usage::Subscription);
        let key = self.begin(conn, None, Command::new("SUBSCRIBE").arg(channel), Some(Duration::ZERO));
        (conn, key)
    }

    /// The next message, or an error if the connection is broken. If there is neither yet, `None`, and it will wake the waker.
    pub fn poll_message(&mut self, id: ConnId, waker: &Waker) -> Option<Result<Message>> {
        let conn = &mut self.conns[id as usize];
        if let Some(message) = conn.messages.pop_front() {
            return Some(Ok(message));
        }
        if !conn.open {
            let reason = "connection reset by peer".to_owned();
            return Some(Err(Error::Disconnected { maybe_applied: false, reason }));
        }
        store_waker(&mut conn.waker, waker);
        None
    }

    /// Drops a subscription.
    pub fn drop_subscription(&mut self, id: ConnId) {
        self.close(id);
    }
}
