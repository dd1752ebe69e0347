//! Clients that each send a request, wait for the reply, and send the next one. One thread drives all of them.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use portcullis::bench::report::statistics::quantile;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{REPLY_TIMEOUT, call_expecting, connect, encode, unexpected_reply};
use rustix::event::epoll;

const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
const LEASE_MS: &str = "36000000";

/// A client with one request in flight.
struct Client {
    socket: TcpStream,
    /// Whether it writes. Others read a key that is never written to.
    writes: bool,
    /// The beginning of its keys.
    name: String,
    sent: usize,
    began: Instant,
    filled: usize,
}

impl Client {
    fn ask(&mut self) -> Result<()> {
        let request = if self.writes {
            encode(&["SET", &format!("{}:{:06}", self.name, self.sent), VALUE, "NX", "PX", LEASE_MS])
        } else {
            encode(&["GET", "stays"])
        };
        self.sent += 1;
        self.filled = 0;
        self.began = Instant::now();
        self.socket.write_all(&request)
    }

    /// Reads once. Returns the latency in microseconds if the reply has come.
    fn turn(&mut self) -> Result<Option<i64>> {
        const STAYS: &[u8] = b"$36\r\n5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21\r\n";
        let reply: &[u8] = if self.writes { b"+OK\r\n" } else { STAYS };
        let mut buffer = [0; 64];
        let count = self.socket.read(&mut buffer)?;
        if count == 0 {
            return Err(Error::other("the server closed a connection"));
        }
        if !reply[self.filled..].starts_with(&buffer[..count]) {
            return Err(unexpected_reply("a request", &buffer[..count]));
        }
        self.filled += count;
        Ok((self.filled == reply.len()).then(|| self.began.elapsed().as_micros() as i64))
    }
}

fn clients(process: &Process, count: usize, writes: bool, slice: &str) -> Result<Vec<Client>> {
    let client = |number: usize| {
        let name = format!("lock:{slice}:{number:03}");
        Ok(Client { socket: connect(process.addr())?, writes, name, sent: 0, began: Instant::now(), filled: 0 })
    };
    (0..count).map(client).collect()
}

/// Runs the clients until `goes_on` says no for each of them. It is asked before each request but the first, with the number of
/// requests of that client. `took` gets the latencies.
fn run(clients: &mut [Client], goes_on: impl Fn(usize) -> bool, mut took: impl FnMut(&Client, i64)) -> Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, client) in clients.iter_mut().enumerate() {
        epoll::add(&poll, &client.socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
        client.ask()?;
    }
    let timeout = rustix::time::Timespec { tv_sec: REPLY_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    let (mut left, mut events) = (clients.len(), Vec::with_capacity(clients.len()));
    while left > 0 {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
        if events.is_empty() {
            return Err(Error::new(ErrorKind::TimedOut, "it does not answer"));
        }
        for event in &events {
            let client = &mut clients[event.data.u64() as usize];
            if let Some(us) = client.turn()? {
                took(client, us);
                if goes_on(client.sent) { client.ask()? } else { left -= 1 }
            }
        }
    }
    Ok(())
}

/// `SET NX PX` of new keys by so many clients. Returns nanoseconds for each: of time, and of the server's CPU.
pub fn set(process: &Process, count: usize, per_client: usize, round: usize) -> Result<(f64, f64)> {
    let mut clients = clients(process, count, true, &format!("{count}:{round}"))?;
    let before_ns = process.cpu_ns()?;
    let began = Instant::now();
    run(&mut clients, |sent| sent < per_client, |_, _| ())?;
    let ns = began.elapsed().as_nanos() as f64;
    // The server may still be busy for a moment after its last reply: under `everysec` it has not written the last batch yet.
    std::thread::sleep(Duration::from_millis(20));
    let operations = (count * per_client) as f64;
    Ok((ns / operations, (process.cpu_ns()? - before_ns) as f64 / operations))
}

/// `GET` by so many clients, beside some that write. Returns the 99th percentile of its latency in microseconds.
pub fn get(process: &Process, readers: usize, writers: usize, time: Duration, round: usize) -> Result<f64> {
    call_expecting(process.addr(), &["SET", "stays", VALUE], "+OK\r\n")?;
    let mut all = clients(process, readers, false, "")?;
    all.extend(clients(process, writers, true, &format!("beside:{round}"))?);
    let end = Instant::now() + time;
    let mut us = Vec::new();
    run(&mut all, |_| Instant::now() < end, |client, latency| us.extend((!client.writes).then_some(latency)))?;
    us.sort_unstable();
    Ok(quantile(&us, 0.99).unwrap_or(0) as f64)
}
