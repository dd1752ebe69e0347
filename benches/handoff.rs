//! What handing a token on costs among those who wait for it: `cargo bench --bench handoff [-- --quick]`.
//!
//! W clients wait in `BLPOP`. Whoever gets the token gives it back with `RPUSH` and waits again, in one write: each hand-off is one
//! push, one client served and one that begins to wait. Runs against both servers in alternating slices and prints the server's own
//! CPU time per hand-off, the median of the slices, and how far the clients' shares are from their mean.

mod servers;

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::event::epoll;

use servers::Server;

const WAITERS: [usize; 5] = [1, 16, 64, 256, 1024];
const TAKE: &[u8] = b"*3\r\n$5\r\nBLPOP\r\n$5\r\ntoken\r\n$1\r\n0\r\n";
const HAND_ON: &[u8] = b"*3\r\n$5\r\nRPUSH\r\n$5\r\ntoken\r\n$1\r\nt\r\n*3\r\n$5\r\nBLPOP\r\n$5\r\ntoken\r\n$1\r\n0\r\n";
const TAKEN: &[u8] = b"*2\r\n$5\r\ntoken\r\n$1\r\nt\r\n";
const PUSHED: &[u8] = b":1\r\n";

/// A client that waits, and what it has read of its next reply.
struct Waiter {
    socket: TcpStream,
    read: Vec<u8>,
    served: u64,
}

/// Clients of one server, all of which wait for one token.
struct Ring {
    server: Server,
    poll: std::os::fd::OwnedFd,
    waiters: Vec<Waiter>,
    /// Nanoseconds per hand-off of each slice.
    costs: Vec<f64>,
    worst_share: f64,
}

impl Ring {
    fn new(server: Server, count: usize) -> Ring {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let mut waiters = Vec::new();
        for number in 0..count {
            let mut socket = TcpStream::connect(server.addr).expect("connect");
            socket.set_nodelay(true).expect("nodelay");
            epoll::add(&poll, &socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN).expect("epoll");
            socket.write_all(TAKE).expect("write");
            waiters.push(Waiter { socket, read: Vec::new(), served: 0 });
        }
        let ring = Ring { server, poll, waiters, costs: Vec::new(), worst_share: 0.0 };
        while !ring.server.call(&["INFO", "clients"]).contains(&format!("blocked_clients:{count}\r\n")) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        ring
    }

    /// Lets the token go round so many times, and checks every byte.
    fn slice(&mut self, rounds: usize) {
        let hand_offs = (rounds * self.waiters.len()) as u64;
        self.waiters.iter_mut().for_each(|waiter| waiter.served = 0);
        let mut buffer = [0; 256];
        let mut left = hand_offs;
        let mut events = Vec::with_capacity(16);
        let before = self.server.cpu_ns();
        assert_eq!(self.server.call(&["RPUSH", "token", "t"]), ":1\r\n");
        while left > 0 {
            events.clear();
            epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), None).expect("epoll");
            for event in &events {
                let waiter = &mut self.waiters[event.data.u64() as usize];
                let count = waiter.socket.read(&mut buffer).expect("read");
                assert!(count > 0, "the server closed a connection");
                waiter.read.extend_from_slice(&buffer[..count]);
                // What it pushed before is answered before the token comes to it again.
                if waiter.read.starts_with(PUSHED) {
                    waiter.read.drain(..PUSHED.len());
                }
                if waiter.read == TAKEN {
                    waiter.read.clear();
                    waiter.served += 1;
                    left = left.saturating_sub(1);
                    let request = if left > 0 { HAND_ON } else { TAKE };
                    waiter.socket.write_all(request).expect("write");
                } else {
                    assert!(TAKEN.starts_with(&waiter.read), "{:?}", String::from_utf8_lossy(&waiter.read));
                }
            }
        }
        let after = self.server.cpu_ns();
        self.costs.push((after - before) as f64 / hand_offs as f64);
        for waiter in &self.waiters {
            self.worst_share = self.worst_share.max((waiter.served as f64 - rounds as f64).abs());
        }
    }

    fn median(&mut self) -> f64 {
        self.costs.sort_by(f64::total_cmp);
        self.costs[self.costs.len() / 2]
    }
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (slices, hand_offs) = if quick { (5, 4_096) } else { (11, 32_768) };
    servers::raise_file_limit(8_192);
    println!("server CPU per hand-off of a token, ns; the farthest that a client's share of a slice was from the mean");
    println!("{:>8}  {:>12}  {:>12}  {:>6}  {:>10}  {:>10}", "waiters", "portcullis", "redis", "ratio", "share", "redis's");
    for count in WAITERS {
        let mut ours = Ring::new(Server::portcullis(), count);
        let mut theirs = Server::redis().map(|server| Ring::new(server, count));
        for _ in 0..slices {
            ours.slice(hand_offs / count);
            if let Some(theirs) = &mut theirs {
                theirs.slice(hand_offs / count);
            }
        }
        let own = ours.median();
        match &mut theirs {
            Some(theirs) => {
                let other = theirs.median();
                let ratio = other / own;
                println!(
                    "{count:>8}  {own:>12.0}  {other:>12.0}  {ratio:>6.2}  {:>10}  {:>10}",
                    ours.worst_share, theirs.worst_share
                );
            }
            None => println!("{count:>8}  {own:>12.0}  {:>12}  {:>6}  {:>10}", "-", "-", ours.worst_share),
        }
    }
}
