//! A client that asks every 200 µs whatever happens, and notes how long each reply took: so each stretch of time counts alike, stalled or not.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use portcullis::bench::servers::wire::{REPLY_TIMEOUT, call_expecting, connect, encode, unexpected_reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Distance of the requests.
const PACE: Duration = Duration::from_micros(200);
const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";

/// Sends PING and GET by turns.
pub struct Asker {
    socket: TcpStream,
    requests: [Vec<u8>; 2],
    replies: [Vec<u8>; 2],
    sent: VecDeque<Instant>,
    asked: usize,
    answered: usize,
    received: Vec<u8>,
    due: Instant,
    /// Nothing is asked any more, and replies are waited for.
    is_last: bool,
    /// Microseconds that replies took, and when their requests were sent.
    pub latencies: Vec<(Instant, i64)>,
}

impl Asker {
    /// Connects, and sets the key that is asked for.
    pub fn new(addr: SocketAddr) -> Result<Asker> {
        call_expecting(addr, &["SET", "stays", VALUE], "+OK\r\n")?;
        let socket = connect(addr)?;
        socket.set_nonblocking(true)?;
        Ok(Asker {
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

    /// Waits until the next request is due, or something has come here or on the other socket; sends what is due, and reads what has come.
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
            // A request is small, and its replies are read: there is room.
            self.socket.write_all(&self.requests[self.asked % 2])?;
            self.asked += 1;
            self.due = (self.due + PACE).max(now);
        }
        match self.sent.front() {
            Some(sent) if sent.elapsed() > REPLY_TIMEOUT => Err(Error::other("it does not answer")),
            _ => Ok(()),
        }
    }

    /// Waits for the replies to what has been asked.
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
