//! A client's world in the simulation, which algorithms and the workload use.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::client::{Command, Error, Message, Result, Value};
use crate::recipes::{Messages, World};
use crate::torture::history::{EventKind, Op, Trace};
use crate::torture::sim::net::{Answer, ConnId, Net, SlabKey};
use crate::torture::traced_world::TracedWorld;

/// The network, shared by all clients. The lock is never contended, because there is one thread.
pub type Shared = Arc<Mutex<Net>>;

/// Locks the network.
pub fn lock(net: &Shared) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One client's world.
#[derive(Clone)]
pub struct SimWorld {
    net: Shared,
    client: u32,
    servers: usize,
    trace: Arc<Mutex<Trace>>,
}

impl SimWorld {
    /// The world of a client.
    pub fn new(net: Shared, client: u32) -> SimWorld {
        let servers = lock(&net).known_servers as usize;
        SimWorld { net, client, servers, trace: Arc::default() }
    }

    /// From now on the client takes any node of a replicated service for the leader.
    pub fn forget_leader(&self) {
        lock(&self.net).forget_leader(self.client);
    }
}

/// The future of a reply.
struct Reply {
    world: SimWorld,
    /// The request, until it is sent: the server, a command that goes before it, and the command.
    request: Option<(u32, Option<Command>, Command)>,
    key: Option<SlabKey>,
}

impl Future for Reply {
    type Output = Result<Value>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Value>> {
        let this = &mut *self;
        let mut net = lock(&this.world.net);
        if let Some((server, prelude, command)) = this.request.take() {
            this.key = Some(net.call(this.world.client, server, prelude, command));
        }
        let Some(key) = this.key else { return Poll::Pending };
        let Some(done) = net.poll_call(key, context.waker()) else { return Poll::Pending };
        this.key = None;
        let now_us = net.now_us;
        drop(net);
        this.world.note(&done, now_us);
        Poll::Ready(done.result)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut net = lock(&self.world.net);
            net.drop_call(key);
            let now_us = net.now_us;
            drop(net);
            self.world.change_trace(|trace| trace.lost_us = Some(now_us));
        }
    }
}

/// The future of a sleep.
struct Sleep {
    net: Shared,
    client: u32,
    time: Duration,
    key: Option<SlabKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut net = lock(&this.net);
        let key = match this.key {
            Some(key) => key,
            None => {
                let after_us = net.clients[this.client as usize].clock.true_duration_us(this.time);
                *this.key.insert(net.timer(after_us))
            }
        };
        if net.poll_timer(key, context.waker()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            lock(&self.net).drop_timer(key);
        }
    }
}

impl SimWorld {
    fn change_trace(&self, change: impl FnOnce(&mut Trace)) {
        change(&mut self.trace.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note(&self, answer: &Answer, now_us: u64) {
        let lost_us = match &answer.result {
            Err(error) if error.is_of_connection() && error.maybe_applied() => Some(now_us),
            _ => answer.resent_us,
        };
        self.change_trace(|trace| {
            if let Some((arrived, answered)) = answer.stamps {
                trace.first = Some(trace.first.map_or(arrived, |first| first.min(arrived)));
                trace.last = Some(trace.last.map_or(answered, |last| last.max(answered)));
                let served = match &answer.result {
                    Ok(value) => *value != Value::Null,
                    // The lock was granted and lost again.
                    Err(Error::NotHeld(_)) => true,
                    Err(_) => false,
                };
                if answer.waited && trace.served.is_some() {
                    // The earlier grant is lost. The client waits again, at the end of the queue.
                    trace.first = Some(arrived);
                }
                if answer.waited && served {
                    trace.served = Some(answered);
                }
            }
            trace.resent |= answer.resent_us.is_some();
            trace.lost_us = trace.lost_us.max(lost_us);
        });
    }
}

impl World for SimWorld {
    type Messages = SimMessages;

    fn servers(&self) -> usize {
        self.servers
    }

    fn call(&self, server: usize, command: Command) -> impl Future<Output = Result<Value>> + Send {
        Reply { world: self.clone(), request: Some((server as u32, None, command)), key: None }
    }

    fn call_together(&self, server: usize, first: Command, then: Command) -> impl Future<Output = Result<Value>> + Send {
        Reply { world: self.clone(), request: Some((server as u32, Some(first), then)), key: None }
    }

    async fn subscribe(&self, server: usize, channel: &[u8]) -> Result<SimMessages> {
        let channel = channel.to_vec();
        let mut messages = SimMessages { world: self.clone(), server: server as u32, channel, conn: None };
        messages.listen().await?;
        Ok(messages)
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        Sleep { net: Arc::clone(&self.net), client: self.client, time, key: None }
    }

    fn elapsed(&self) -> Duration {
        let net = lock(&self.net);
        Duration::from_micros(net.clients[self.client as usize].clock.elapsed_us(net.now_us))
    }

    fn unix_ms(&self) -> i64 {
        let net = lock(&self.net);
        net.clients[self.client as usize].clock.unix_ms(net.now_us)
    }

    fn random(&self) -> u64 {
        lock(&self.net).random(self.client)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        lock(&self.net).spawned.push((self.client, Box::pin(task)));
    }
}

impl TracedWorld for SimWorld {
    fn true_us(&self) -> u64 {
        lock(&self.net).now_us
    }

    fn true_of(&self, elapsed: Duration) -> u64 {
        lock(&self.net).clients[self.client as usize].clock.true_duration_us(elapsed)
    }

    fn traced(&self) -> Self {
        SimWorld { trace: Arc::default(), ..self.clone() }
    }

    fn trace(&self) -> Trace {
        *self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_op(&self) -> Op {
        lock(&self.net).next_op()
    }

    fn record(&self, kind: EventKind) {
        lock(&self.net).record(self.client, kind);
    }

    fn store(&self) -> usize {
        self.servers
    }
}

/// A subscription.
pub struct SimMessages {
    world: SimWorld,
    server: u32,
    channel: Vec<u8>,
    conn: Option<ConnId>,
}

impl SimMessages {
    async fn listen(&mut self) -> Result<()> {
        let (conn, key) = lock(&self.world.net).subscribe(self.world.client, self.server, &self.channel);
        self.conn = Some(conn);
        let noted = Reply { world: self.world.traced(), request: None, key: Some(key) }.await;
        if noted.is_err() {
            self.conn = None;
        }
        noted.map(drop)
    }
}

impl Messages for SimMessages {
    async fn next(&mut self) -> Result<Message> {
        if self.conn.is_none() {
            self.listen().await?;
        }
        let next = std::future::poll_fn(|context| {
            let Some(conn) = self.conn else { return Poll::Pending };
            lock(&self.world.net).poll_message(conn, context.waker()).map_or(Poll::Pending, Poll::Ready)
        });
        let next = next.await;
        if next.is_err() {
            self.conn = None;
        }
        next
    }
}

impl Drop for SimMessages {
    fn drop(&mut self) {
        if let Some(conn) = self.conn {
            lock(&self.world.net).drop_subscription(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::history::Stamp;
    use crate::torture::plan::{Plan, Settings};

    #[test]
    fn a_client_that_waits_anew_has_a_new_place_in_the_queue() {
        let net = Arc::new(Mutex::new(Net::new(&Plan::draw(&Settings::default(), 0))));
        let at = |order: u64| Stamp { order, at_us: order };
        let answer = |result: Value, waited: bool, from: u64, to: u64| Answer {
            result: Ok(result),
            stamps: Some((at(from), at(to))),
            resent_us: None,
            waited,
        };
        let world = SimWorld::new(net, 0);
        // A wait times out, the next one is granted, and a command asks for the rest of the lease.
        world.note(&answer(Value::Null, true, 1, 2), 0);
        world.note(&answer(Value::Integer(7), true, 3, 4), 0);
        world.note(&answer(Value::Integer(9_000), false, 5, 6), 0);
        assert_eq!(world.trace(), Trace { first: Some(at(1)), last: Some(at(6)), served: Some(at(4)), ..Trace::default() });
        // The lease is over.
        world.note(&answer(Value::Integer(8), true, 7, 8), 0);
        assert_eq!(world.trace(), Trace { first: Some(at(7)), last: Some(at(8)), served: Some(at(8)), ..Trace::default() });
    }
}
