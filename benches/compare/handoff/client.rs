//! A client that wants the lock.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use portcullis::bench::servers::wire::{connect, encode, unexpected_reply};
use rustix::event::epoll;

use super::Way;
use crate::redisson;
use crate::workloads::UNLOCK_SHA;

/// Where it is told that the lock was given back.
pub const CHANNEL: &str = "redisson_lock__channel:{lock}";
/// How long a lease is: nothing is to end by itself.
const LEASE_MS: &str = "30000";

/// A client, and what it has read of its next reply.
pub struct Client {
    socket: TcpStream,
    /// Where messages come in.
    listening: Option<TcpStream>,
    /// What has come and was not understood yet.
    pub read: Vec<u8>,
    take: Vec<u8>,
    /// Gives the lock back, and takes it again where the server has a line.
    hand_on: Vec<u8>,
    /// Commands in [`Client::hand_on`].
    handing_on: u64,
    /// Commands that it has sent.
    pub sent: u64,
    /// Acquisitions.
    pub served: u64,
    /// Bytes of messages.
    pub heard: usize,
    /// A reply is to come.
    pub asked: bool,
    /// It has the lock.
    pub holds: bool,
    /// A message came after the request that is on its way.
    pub called: bool,
}

impl Client {
    /// Connects the one of that number, and has the poll tell of it: with its number, or with twice that and one more where messages come in.
    pub fn new(addr: SocketAddr, poll: &OwnedFd, way: Way, number: usize) -> Result<Client> {
        let told_by = |data: usize| -> Result<TcpStream> {
            let socket = connect(addr)?;
            epoll::add(poll, &socket, epoll::EventData::new_u64(data as u64), epoll::EventFlags::IN)?;
            Ok(socket)
        };
        let owner = format!("{number:08x}-8f0e-4f0c-9a31-0a6c1d8f4e21");
        let (take, give) = match way {
            Way::Native => {
                (encode(&["LOCK.ACQUIRE", "lock", &owner, LEASE_MS, "WAIT", "0"]), encode(&["LOCK.RELEASE", "lock", &owner]))
            }
            Way::Blpop => (encode(&["BLPOP", "token", "0"]), encode(&["RPUSH", "token", "t"])),
            Way::Subscribe => (
                encode(&["EVALSHA", redisson::ACQUIRE_SHA, "1", "lock", LEASE_MS, &owner]),
                encode(&["EVALSHA", redisson::RELEASE_SHA, "2", "lock", CHANNEL, "0", LEASE_MS, &owner]),
            ),
            Way::Polling => {
                (encode(&["SET", "lock", &owner, "NX", "PX", LEASE_MS]), encode(&["EVALSHA", UNLOCK_SHA, "1", "lock", &owner]))
            }
        };
        let has_line = matches!(way, Way::Native | Way::Blpop);
        let again = if has_line { &take[..] } else { &[] };
        let hand_on = [&give, again].concat();
        let listens = way == Way::Subscribe;
        Ok(Client {
            socket: told_by(if listens { 2 * number } else { number })?,
            listening: if listens { Some(subscribed(told_by(2 * number + 1)?)?) } else { None },
            read: Vec::new(),
            take,
            hand_on,
            handing_on: 1 + u64::from(has_line),
            sent: 0,
            served: 0,
            heard: 0,
            asked: false,
            holds: false,
            called: false,
        })
    }

    /// Asks for the lock.
    pub fn ask(&mut self) -> Result<()> {
        (self.asked, self.called) = (true, false);
        self.sent += 1;
        self.socket.write_all(&self.take)
    }

    /// Gives the lock back, and asks for it again where the server has a line.
    pub fn hand_on(&mut self) -> Result<()> {
        self.asked = true;
        self.sent += self.handing_on;
        self.socket.write_all(&self.hand_on)
    }

    /// Reads what has come.
    pub fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 256];
        let count = self.socket.read(&mut buffer)?;
        if count == 0 {
            return Err(Error::other("the server closed a connection"));
        }
        self.read.extend_from_slice(&buffer[..count]);
        Ok(())
    }

    /// A reply of one line that has come whole.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        self.read.ends_with(b"\r\n").then(|| std::mem::take(&mut self.read))
    }

    /// Reads messages that have come.
    pub fn listen(&mut self) -> Result<()> {
        let mut buffer = [0; 1024];
        let Some(socket) = &mut self.listening else { return Ok(()) };
        match socket.read(&mut buffer) {
            Ok(0) => Err(Error::other("the server closed a connection")),
            Ok(count) => {
                (self.heard, self.called) = (self.heard + count, true);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn subscribed(mut socket: TcpStream) -> Result<TcpStream> {
    socket.write_all(&encode(&["SUBSCRIBE", CHANNEL]))?;
    let right = format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{CHANNEL}\r\n:1\r\n", CHANNEL.len());
    let mut reply = vec![0; right.len()];
    socket.read_exact(&mut reply)?;
    if reply != right.as_bytes() {
        return Err(unexpected_reply("SUBSCRIBE", &reply));
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}
