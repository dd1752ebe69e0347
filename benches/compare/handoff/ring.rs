//! The clients of one server, among whom a lock goes round.

use std::collections::VecDeque;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portcullis::bench::servers::info::field;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{REPLY_TIMEOUT, call, call_expecting, encode, unexpected_reply};
use rustix::event::{Timespec, epoll};

use super::Method;
use super::client::{CHANNEL, Client};
use crate::redisson;
use crate::workloads::{UNLOCK, UNLOCK_SHA};

/// The only reply that a client which released the lock can get before it is granted the lock again.
const RELEASED: &[u8] = b":0\r\n";
const PUSHED: &[u8] = b":1\r\n";
const TAKEN: &[u8] = b"*2\r\n$5\r\ntoken\r\n$1\r\nt\r\n";
/// With polling: how long the lock is held, and the pause between attempts.
const HELD: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(10);
/// Time that clients get to block, on a server that does not report the number of blocked clients.
const SETTLED: Duration = Duration::from_millis(300);

/// The clients, and the server's costs.
pub struct Ring {
    method: Method,
    /// The server.
    pub process: Process,
    poll: OwnedFd,
    clients: Vec<Client>,
    /// With polling: when each holder releases the lock, and when each other client tries again. Sorted by time.
    holding: VecDeque<(Instant, usize)>,
    pausing: VecDeque<(Instant, usize)>,
    /// Nanoseconds of CPU time per acquisition, of each slice.
    pub costs: Vec<f64>,
    acquired: u64,
    /// The largest fencing token.
    token: u64,
    /// The client that holds the lock between slices.
    holder: usize,
    /// Number of releases that sent a message to all clients.
    messages: usize,
}

impl Ring {
    /// Connects the clients, lets them block if the method blocks on the server, and checks that the server can run the method.
    pub fn new(process: Process, method: Method, count: usize) -> Result<Ring> {
        let addr = process.addr();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        if matches!(method, Method::Subscribe | Method::Polling) {
            for (script, sha) in
                [(redisson::ACQUIRE, redisson::ACQUIRE_SHA), (redisson::RELEASE, redisson::RELEASE_SHA), (UNLOCK, UNLOCK_SHA)]
            {
                call_expecting(addr, &["SCRIPT", "LOAD", script], &format!("$40\r\n{sha}\r\n"))?;
            }
        }
        if method == Method::Subscribe {
            call_expecting(addr, &["EVALSHA", redisson::ACQUIRE_SHA, "1", "tried", "1000", "me"], "$-1\r\n")?;
            call_expecting(addr, &["EVALSHA", redisson::RELEASE_SHA, "2", "tried", "nobody", "0", "1000", "me"], ":1\r\n")?;
        }
        let clients = (0..count).map(|number| Client::new(addr, &poll, method, number)).collect::<Result<Vec<_>>>()?;
        let mut ring = Ring {
            method,
            process,
            poll,
            clients,
            holding: VecDeque::new(),
            pausing: VecDeque::new(),
            costs: Vec::new(),
            acquired: 0,
            token: 0,
            holder: 0,
            messages: 0,
        };
        if matches!(method, Method::Native | Method::Blpop) {
            ring.clients.iter_mut().try_for_each(Client::request)?;
            // With native locks the first client is granted the lock. With a list the token is still missing.
            ring.until_blocked(if method == Method::Native { count - 1 } else { count })?;
        }
        if method == Method::Native {
            ring.read_grant()?;
        }
        ring.clients.iter_mut().for_each(|client| client.sent = 0);
        Ok(ring)
    }

    fn until_blocked(&self, waiting: usize) -> Result<()> {
        let began = Instant::now();
        loop {
            let info = call(self.process.addr(), &["INFO", "clients"])?;
            match field(&info, "blocked_clients").map(str::parse::<usize>) {
                Some(Ok(blocked)) if waiting == blocked => return Ok(()),
                None if began.elapsed() > SETTLED => return Ok(()),
                _ if began.elapsed() > REPLY_TIMEOUT => return Err(Error::other("clients do not begin to wait")),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Waits for the first grant.
    fn read_grant(&mut self) -> Result<()> {
        while self.token == 0 {
            for number in self.wait(Some(REPLY_TIMEOUT))? {
                let client = &mut self.clients[number];
                client.receive()?;
                if let Some(token) = next_token(client)? {
                    (self.token, self.holder) = (token, number);
                }
            }
        }
        Ok(())
    }

    /// Waits until a socket is readable, for at most this time. Returns the data of the readable sockets.
    fn wait(&self, most: Option<Duration>) -> Result<Vec<usize>> {
        let most = most.unwrap_or(REPLY_TIMEOUT);
        let wait = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let mut events = Vec::with_capacity(16);
        epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
        if events.is_empty() && most == REPLY_TIMEOUT {
            return Err(Error::other("it does not answer"));
        }
        Ok(events.iter().map(|event| event.data.u64() as usize).collect())
    }

    /// Hands the lock on this many times, and checks every byte.
    pub fn slice(&mut self, hand_offs: usize) -> Result<()> {
        let before = self.process.cpu_ns()?;
        match self.method {
            Method::Native => self.clients[self.holder].hand_on()?,
            Method::Blpop => call_expecting(self.process.addr(), &["RPUSH", "token", "t"], ":1\r\n")?,
            Method::Subscribe => self.clients.iter_mut().try_for_each(Client::request)?,
            Method::Polling => {
                // The clients start at different times.
                let (now, count) = (Instant::now(), self.clients.len() as u32);
                self.pausing = (0..count).map(|number| (now + PAUSE * number / count, number as usize)).collect();
            }
        }
        let mut left = hand_offs;
        while left > 0 || !self.is_quiet() {
            let due = if self.method == Method::Polling { self.act(left)? } else { None };
            for number in self.wait(due)? {
                match self.method {
                    Method::Native => self.on_native(number, &mut left)?,
                    Method::Blpop => self.on_blpop(number, &mut left)?,
                    Method::Subscribe => self.on_subscribe(number, &mut left)?,
                    Method::Polling => self.on_polling(number, &mut left)?,
                }
            }
        }
        self.costs.push((self.process.cpu_ns()? - before) as f64 / hand_offs as f64);
        self.acquired += hand_offs as u64;
        Ok(())
    }

    /// Whether all clients are idle and have received all messages.
    fn is_quiet(&self) -> bool {
        let message_bytes = self.messages * encode(&["message", CHANNEL, "0"]).len();
        match self.method {
            Method::Native | Method::Blpop => true,
            Method::Subscribe => self.clients.iter().all(|client| !client.awaits_reply && client.message_bytes == message_bytes),
            Method::Polling => self.holding.is_empty() && self.clients.iter().all(|client| !client.awaits_reply),
        }
    }

    /// With polling: does what is due. Returns the time until the next action.
    fn act(&mut self, left: usize) -> Result<Option<Duration>> {
        let now = Instant::now();
        let is_due = |queue: &VecDeque<(Instant, usize)>| queue.front().is_some_and(|(due, _)| *due <= now);
        while is_due(&self.holding)
            && let Some((_, number)) = self.holding.pop_front()
        {
            self.clients[number].hand_on()?;
        }
        if left == 0 {
            self.pausing.clear();
        }
        while is_due(&self.pausing)
            && let Some((_, number)) = self.pausing.pop_front()
        {
            self.clients[number].request()?;
        }
        let next = [&self.holding, &self.pausing].into_iter().filter_map(|queue| queue.front()).map(|(due, _)| *due).min();
        Ok(next.map(|due| due.saturating_duration_since(Instant::now())))
    }

    fn on_polling(&mut self, number: usize, left: &mut usize) -> Result<()> {
        let client = &mut self.clients[number];
        client.receive()?;
        let Some(reply) = client.line() else { return Ok(()) };
        client.awaits_reply = false;
        let now = Instant::now();
        match (client.holds, &reply[..]) {
            (true, b":1\r\n") => {
                client.holds = false;
                self.pausing.push_back((now + PAUSE, number));
            }
            (false, b"+OK\r\n") => {
                client.holds = true;
                client.acquisitions += 1;
                *left = left.saturating_sub(1);
                self.holding.push_back((now + HELD, number));
            }
            (false, b"$-1\r\n") => self.pausing.push_back((now + PAUSE, number)),
            _ => return Err(unexpected_reply("SET NX PX or compare-and-delete", &reply)),
        }
        Ok(())
    }

    fn on_native(&mut self, number: usize, left: &mut usize) -> Result<()> {
        let client = &mut self.clients[number];
        client.receive()?;
        if client.read.starts_with(RELEASED) {
            client.read.drain(..RELEASED.len());
        }
        let Some(token) = next_token(client)? else { return Ok(()) };
        if token <= self.token {
            return Err(Error::other(format!("fencing tokens do not grow: {token} after {}", self.token)));
        }
        (self.token, self.holder) = (token, number);
        client.acquisitions += 1;
        *left = left.saturating_sub(1);
        if *left > 0 { client.hand_on() } else { Ok(()) }
    }

    fn on_blpop(&mut self, number: usize, left: &mut usize) -> Result<()> {
        let client = &mut self.clients[number];
        client.receive()?;
        // The reply to its RPUSH comes before the token.
        if client.read.starts_with(PUSHED) {
            client.read.drain(..PUSHED.len());
        }
        if client.read != TAKEN {
            return if TAKEN.starts_with(&client.read) { Ok(()) } else { Err(unexpected_reply("BLPOP", &client.read)) };
        }
        client.read.clear();
        client.acquisitions += 1;
        *left = left.saturating_sub(1);
        // The last holder keeps the token: the next slice begins with a new one.
        if *left > 0 { client.hand_on() } else { client.request() }
    }

    fn on_subscribe(&mut self, number: usize, left: &mut usize) -> Result<()> {
        let (client, listens) = (&mut self.clients[number / 2], number % 2 == 1);
        if listens {
            client.listen()?;
            return if client.notified && !client.awaits_reply && *left > 0 { client.request() } else { Ok(()) };
        }
        client.receive()?;
        let Some(reply) = client.line() else { return Ok(()) };
        client.awaits_reply = false;
        match (client.holds, &reply[..]) {
            (true, b":1\r\n") => {
                client.holds = false;
                self.messages += 1;
                if *left > 0 { client.request() } else { Ok(()) }
            }
            (false, b"$-1\r\n") => {
                client.acquisitions += 1;
                *left = left.saturating_sub(1);
                client.holds = true;
                client.hand_on()
            }
            (false, [b':', ..]) if client.notified && *left > 0 => client.request(),
            (false, [b':', ..]) => Ok(()),
            _ => Err(unexpected_reply("EVALSHA", &reply)),
        }
    }

    /// Number of acquisitions of each client. Empty if there were too few for a comparison.
    pub fn shares(&self) -> Vec<u64> {
        let enough = self.acquired as usize >= 8 * self.clients.len();
        self.clients.iter().filter(|_| enough).map(|client| client.acquisitions).collect()
    }

    /// Number of commands per acquisition.
    pub fn commands_each(&self) -> f64 {
        self.clients.iter().map(|client| client.sent).sum::<u64>() as f64 / self.acquired.max(1) as f64
    }
}

/// Takes the fencing token, if it has come completely.
fn next_token(client: &mut Client) -> Result<Option<u64>> {
    let Some(reply) = client.line() else { return Ok(None) };
    let text = String::from_utf8_lossy(&reply);
    let token = text.strip_prefix(':').and_then(|rest| rest.trim_end().parse().ok());
    token.map(Some).ok_or_else(|| unexpected_reply("LOCK.ACQUIRE", &reply))
}
