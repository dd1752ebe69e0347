//! Connections with requests on their way, for the CPU time of servers.
//!
//! All is ready before anything is measured, and next to nothing is done between a reply and the next request: a server that waits for
//! its clients falls asleep and is woken again and again, which costs it as much as some requests do, and the more often the faster it is.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portcullis::bench::servers::wire::{REPLY_TIMEOUT, connect, unexpected_reply};
use rustix::event::epoll;

use crate::workloads::Workload;

/// A connection, and what is sent over it.
pub struct Pipe {
    socket: TcpStream,
    /// All requests, one behind the other.
    requests: Vec<u8>,
    batches: Vec<Batch>,
    /// The batch that is on its way, and how many bytes of its replies have come.
    at: usize,
    filled: usize,
}

/// Requests that are sent at once.
struct Batch {
    /// Where they end among all requests.
    end: usize,
    /// What comes back to each of them, with # for any digit.
    reply: &'static str,
    count: usize,
}

impl Pipe {
    /// A connection.
    pub fn new(addr: SocketAddr) -> Result<Pipe> {
        Ok(Pipe { socket: connect(addr)?, requests: Vec::new(), batches: Vec::new(), at: 0, filled: 0 })
    }

    /// Prepares a workload for these keys, `depth` at a time.
    pub fn load(&mut self, workload: &Workload, keys: &[String], depth: usize) {
        self.requests.clear();
        self.batches.clear();
        (self.at, self.filled) = (0, 0);
        for some in keys.chunks(depth) {
            for step in workload.steps {
                some.iter().for_each(|key| self.requests.extend_from_slice(&(step.request)(key)));
                self.batches.push(Batch { end: self.requests.len(), reply: step.reply, count: some.len() });
            }
        }
    }

    fn send(&mut self) -> Result<()> {
        let start = self.at.checked_sub(1).map_or(0, |before| self.batches[before].end);
        self.socket.write_all(&self.requests[start..self.batches[self.at].end])
    }

    /// Reads once, which waits for nothing after the system has said that there is something; true when all replies have come.
    fn turn(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let Some(batch) = self.batches.get(self.at) else { return Err(Error::other("the server says more than it was asked")) };
        let count = self.socket.read(buffer)?;
        if count == 0 {
            return Err(Error::other("the server closed a connection"));
        }
        let got = &buffer[..count];
        if !is_right(batch.reply.as_bytes(), self.filled, got) {
            return Err(self.wrong_reply(got.to_vec()));
        }
        self.filled += count;
        if self.filled > batch.reply.len() * batch.count {
            return Err(self.wrong_reply(got.to_vec()));
        }
        if self.filled == batch.reply.len() * batch.count {
            (self.at, self.filled) = (self.at + 1, 0);
            if self.at == self.batches.len() {
                return Ok(true);
            }
            self.send()?;
        }
        Ok(false)
    }

    /// There may be more of it, for people to read.
    fn wrong_reply(&mut self, mut got: Vec<u8>) -> Error {
        let mut rest = [0; 256];
        let timeout = self.socket.set_read_timeout(Some(Duration::from_millis(20)));
        if let Ok(count) = timeout.and_then(|()| self.socket.read(&mut rest)) {
            got.extend_from_slice(&rest[..count]);
        }
        unexpected_reply("a request", &got)
    }
}

/// Whether that is what comes behind so many bytes of the same reply again and again.
fn is_right(reply: &[u8], filled: usize, got: &[u8]) -> bool {
    let mut at = filled % reply.len();
    let mut rest = got;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(reply.len() - at));
        let right = &reply[at..at + part.len()];
        let alike = |(right, got): (&u8, &u8)| right == got || (*right == b'#' && got.is_ascii_digit());
        if part != right && !right.iter().zip(part).all(alike) {
            return false;
        }
        (rest, at) = (behind, 0);
    }
    true
}

/// Sends all that is loaded, and reads the replies to it.
pub fn drive(pipes: &mut [Pipe]) -> Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, pipe) in pipes.iter_mut().enumerate() {
        epoll::add(&poll, &pipe.socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
        pipe.send()?;
    }
    let timeout = rustix::time::Timespec { tv_sec: REPLY_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    let (mut left, mut events, mut buffer) = (pipes.len(), Vec::with_capacity(pipes.len()), vec![0; 64 << 10]);
    while left > 0 {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
        if events.is_empty() {
            return Err(Error::new(ErrorKind::TimedOut, "it does not answer"));
        }
        for event in &events {
            left -= usize::from(pipes[event.data.u64() as usize].turn(&mut buffer)?);
        }
    }
    Ok(())
}
