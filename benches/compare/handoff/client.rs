//! A client that contends for the lock.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use portcullis::bench::servers::wire::{connect, encode, unexpected_reply};
use rustix::event::epoll;

use super::Method;
use crate::redisson;
use crate::workloads::UNLOCK_SHA;

/// The channel for the message that the lock was released.
pub const CHANNEL: &str = "redisson_lock__channel:{lock}";
/// The lease: long enough that none ends.
const LEASE_MS: &str = "30000";

/// A client.
pub struct Client {
    socket: TcpStream,
    /// The connection that receives messages.
    listening: Option<TcpStream>,
    /// Received bytes that are not processed yet.
    pub read: Vec<u8>,
    take: Vec<u8>,
    /// The request that releases the lock. With methods that queue on the server, followed by the next request to acquire it.
    hand_on: Vec<u8>,
    /// Number of commands in `hand_on`.
    hand_on_commands: u64,
    /// Number of commands sent.
    pub sent: u64,
    /// Number of acquisitions.
    pub acquisitions: u64,
    /// Number of bytes of messages received.
    pub message_bytes: usize,
    /// Whether a reply is outstanding.
    pub awaits_reply: bool,
    /// Whether the client holds the lock.
    pub holds: bool,
    /// Whether a message came after the last request.
    pub notified: bool,
}

impl Client {
    /// Connects a client and registers its sockets with the poll. Their data is the client's number; if it also receives
    /// messages, twice the number for requests and one more for messages.
    pub fn new(addr: SocketAddr, poll: &OwnedFd, method: Method, number: usize) -> Result<Client> {
        let connected = |data: usize| -> Result<TcpStream> {
            let socket = connect(addr)?;
            epoll::add(poll, &socket, epoll::EventData::new_u64(data as u64), epoll::EventFlags::IN)?;
            Ok(socket)
        };
        let owner = format!("{number:08x}-8f0e-4f0c-9a31-0a6c1d8f4e21");
        let (take, give) = match method {
            Method::Native => {
                (encode(&["LOCK.ACQUIRE", "lock", &owner, LEASE_MS, "WAIT", "0"]), encode(&["LOCK.RELEASE", "lock", &owner]))
            }
            Method::Blpop => (encode(&["BLPOP", "token", "0"]), encode(&["RPUSH", "token", "t"])),
            Method::Subscribe => (
                encode(&["EVALSHA", redisson::ACQUIRE_SHA, "1", "lock", LEASE_MS, &owner]),
                encode(&["EVALSHA", redisson::RELEASE_SHA, "2", "lock", CHANNEL, "0", LEASE_MS, &owner]),
            ),
            Method::Polling => {
                (encode(&["SET", "lock", &owner, "NX", "PX", LEASE_MS]), encode(&["EVALSHA", UNLOCK_SHA, "1", "lock", &owner]))
            }
        };
        let queues = matches!(method, Method::Native | Method::Blpop);
        let again = if queues { &take[..] } else { &[] };
        let hand_on = [&give, again].concat();
        let listens = method == Method::Subscribe;
        Ok(Client {
            socket: connected(if listens { 2 * number } else { number })?,
            listening: if listens { Some(subscribed(connected(2 * number + 1)?)?) } else { None },
            read: Vec::new(),
            take,
            hand_on,
            hand_on_commands: 1 + u64::from(queues),
            sent: 0,
            acquisitions: 0,
            message_bytes: 0,
            awaits_reply: false,
            holds: false,
            notified: false,
        })
    }

    /// Requests the lock.
    pub fn request(&mut self) -> Result<()> {
        (self.awaits_reply, self.notified) = (true, false);
        self.sent += 1;
        self.socket.write_all(&self.take)
    }

    /// Releases the lock. With methods that queue on the server, requests it again.
    pub fn hand_on(&mut self) -> Result<()> {
        self.awaits_reply = true;
        self.sent += self.hand_on_commands;
        self.socket.write_all(&self.hand_on)
    }

    /// Reads from the socket.
    pub fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 256];
        let count = self.socket.read(&mut buffer)?;
        if count == 0 {
            return Err(Error::other("the server closed a connection"));
        }
        self.read.extend_from_slice(&buffer[..count]);
        Ok(())
    }

    /// Takes a reply of one line, if it is complete.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        self.read.ends_with(b"\r\n").then(|| std::mem::take(&mut self.read))
    }

    /// Reads messages.
    pub fn listen(&mut self) -> Result<()> {
        let mut buffer = [0; 1024];
        let Some(socket) = &mut self.listening else { return Ok(()) };
        match socket.read(&mut buffer) {
            Ok(0) => Err(Error::other("the server closed a connection")),
            Ok(count) => {
                (self.message_bytes, self.notified) = (self.message_bytes + count, true);
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
