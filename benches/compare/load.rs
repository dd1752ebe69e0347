//! Loads keys by the million and checks each reply; and the wall clock, for their deadlines.

use std::io::{Error, Read, Result, Write};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portcullis::bench::servers::wire::{connect, unexpected_reply};

/// Number of requests that are sent at once.
const BATCH: usize = 1_000;

/// Sends `count` requests in batches and checks that each has this reply, in which # stands for any digit.
pub fn send(addr: SocketAddr, count: usize, what: &str, right: &[u8], request: impl Fn(&mut Vec<u8>, usize)) -> Result<()> {
    let mut socket = connect(addr)?;
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for first in (0..count).step_by(BATCH) {
        let batch = BATCH.min(count - first);
        requests.clear();
        (first..first + batch).for_each(|n| request(&mut requests, n));
        socket.write_all(&requests)?;
        replies.resize(right.len() * batch, 0);
        // A wrong reply may be shorter than the expected ones, with nothing behind it.
        let mut filled = 0;
        while filled < replies.len() {
            match socket.read(&mut replies[filled..])? {
                0 => return Err(Error::other("the server closed a connection")),
                count => filled += count,
            }
            let is_right = |(&got, &right): (&u8, &u8)| got == right || (right == b'#' && got.is_ascii_digit());
            if let Some(reply) = replies[..filled].chunks(right.len()).find(|reply| !reply.iter().zip(right).all(is_right)) {
                return Err(unexpected_reply(what, reply));
            }
        }
    }
    Ok(())
}

/// Microseconds since the Unix epoch.
pub fn unix_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// Milliseconds since the Unix epoch.
pub fn unix_ms() -> u64 {
    (unix_us() / 1000) as u64
}

/// Sleeps until a time in milliseconds since the Unix epoch.
pub fn sleep_until(unix_ms_wanted: u64) {
    std::thread::sleep(Duration::from_millis(unix_ms_wanted.saturating_sub(unix_ms())));
}

/// A number with a comma every three digits.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}
