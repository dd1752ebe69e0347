//! Connections with several requests in flight, for the CPU time of servers.
//!
//! All requests are prepared before the measurement, and little happens between a reply and the next request. A server that waits
//! for slow clients falls asleep and is woken again and again. That costs it as much as some requests, and a faster server falls
//! asleep more often.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portcullis::bench::servers::wire::{REPLY_TIMEOUT, connect, unexpected_reply};
use rustix::event::epoll;

use crate::workloads::Workload;

/// A connection with its prepared requests.
pub struct Pipe {
    socket: TcpStream,
    /// All requests, concatenated.
    requests: Vec<u8>,
    batches: Vec<Batch>,
    /// The index of the batch in flight, and the number of bytes of its replies so far.
    at: usize,
    filled: usize,
}

/// Requests that are sent at once.
struct Batch {
    /// The end of the batch in `requests`.
    end: usize,
    /// The reply to each request, in which # stands for any digit.
    reply: &'static str,
    count: usize,
}

impl Pipe {
    /// Connects.
    pub fn new(addr: SocketAddr) -> Result<Pipe> {
        Ok(Pipe { socket: connect(addr)?, requests: Vec::new(), batches: Vec::new(), at: 0, filled: 0 })
    }

    /// Prepares the requests of a workload for these keys, in batches of `depth` keys.
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

    /// Reads once from a readable socket, which does not block. Returns whether all replies have come.
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

    /// The error for a wrong reply, with the bytes that follow it.
    fn wrong_reply(&mut self, mut got: Vec<u8>) -> Error {
        let mut rest = [0; 256];
        let timeout = self.socket.set_read_timeout(Some(Duration::from_millis(20)));
        if let Ok(count) = timeout.and_then(|()| self.socket.read(&mut rest)) {
            got.extend_from_slice(&rest[..count]);
        }
        unexpected_reply("a request", &got)
    }
}

/// Whether `got` continues a repetition of `reply` at byte `filled`.
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

/// Sends all prepared requests and reads their replies.
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
