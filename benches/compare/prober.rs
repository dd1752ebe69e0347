//! A client that sends a request every 200 µs, even while earlier ones are unanswered, and records the latency of each. So every
//! stretch of time has the same weight, whether the server stalls or not.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use portcullis::bench::servers::wire::{REPLY_TIMEOUT, call_expecting, connect, encode, unexpected_reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Interval between requests.
const PACE: Duration = Duration::from_micros(200);
const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";

/// Sends PING and GET in turns.
pub struct Prober {
    socket: TcpStream,
    requests: [Vec<u8>; 2],
    replies: [Vec<u8>; 2],
    sent: VecDeque<Instant>,
    asked: usize,
    answered: usize,
    received: Vec<u8>,
    due: Instant,
    /// Whether all requests are sent, and only replies are awaited.
    is_last: bool,
    /// Latencies in microseconds, with the times when the requests were sent.
    pub latencies: Vec<(Instant, i64)>,
}

impl Prober {
    /// Connects, and sets the key of the GET requests.
    pub fn new(addr: SocketAddr) -> Result<Prober> {
        call_expecting(addr, &["SET", "stays", VALUE], "+OK\r\n")?;
        let socket = connect(addr)?;
        socket.set_nonblocking(true)?;
        Ok(Prober {
            socket,
            requests: [encode(&["PING"]), encode(&["GET", "stays"])],
            replies: [b"+PONG\r\n".to_vec(), format!("${}\r\n{VALUE}\r\n", VALUE.len()).into_bytes()],
            sent: VecDeque::new(),
            asked: 0,
            answered: 0,
            received: Vec::new(),
            due: Instant::now(),
            is_last: false,
            latencies: Vec::new(),
        })
    }

    /// Waits until the next request is due or a socket is readable: the own one or `other`. Sends the request if it is due, and
    /// reads replies.
    pub fn turn(&mut self, other: Option<&TcpStream>) -> Result<()> {
        let left = self.due.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let own = PollFd::new(&self.socket, PollFlags::IN);
        match other {
            Some(other) => poll(&mut [own, PollFd::new(other, PollFlags::IN)], Some(&wait))?,
            None => poll(&mut [own], Some(&wait))?,
        };
        self.receive()?;
        let now = Instant::now();
        if now >= self.due {
            self.sent.push_back(now);
            // Requests are small and replies are read, so the socket's buffer has room.
            self.socket.write_all(&self.requests[self.asked % 2])?;
            self.asked += 1;
            self.due = (self.due + PACE).max(now);
        }
        match self.sent.front() {
            Some(sent) if sent.elapsed() > REPLY_TIMEOUT => Err(Error::other("it does not answer")),
            _ => Ok(()),
        }
    }

    /// Waits for the outstanding replies.
    pub fn finish(&mut self) -> Result<()> {
        self.is_last = true;
        self.socket.set_nonblocking(false)?;
        while !self.sent.is_empty() {
            self.receive()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 1 << 14];
        let read = match self.socket.read(&mut buffer) {
            Ok(0) => return Err(Error::other("the server closed a connection")),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock && !self.is_last => return Ok(()),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        self.received.extend_from_slice(&buffer[..read]);
        let mut rest = self.received.as_slice();
        while let Some(after) = rest.strip_prefix(&self.replies[self.answered % 2][..]) {
            let since = self.sent.pop_front().ok_or_else(|| unexpected_reply("PING and GET", rest))?;
            self.latencies.push((since, (now - since).as_micros() as i64));
            self.answered += 1;
            rest = after;
        }
        if !self.replies[self.answered % 2].starts_with(rest) {
            return Err(unexpected_reply("PING and GET", rest));
        }
        self.received.drain(..self.received.len() - rest.len());
        Ok(())
    }
}
