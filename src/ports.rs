//! Ports for servers that are told theirs, and for those that are started again on the same one.

use std::io::{Error, ErrorKind, Result};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// The ports given here. When a program does not name a port, systems choose one from 32,768 on, unless they are set up otherwise. So a
/// port of these stays free between this check and the start of its server, and while that server is down.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// A port of 127.0.0.1 on which nothing listens. No other call in this process returns it.
///
/// # Errors
/// No port is free.
pub fn free() -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Programs that run at the same time begin at different places.
    let begin = std::process::id().wrapping_mul(7_919);
    let given = (0..COUNT).map(|_| FIRST + begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT);
    let mut ports = given.filter_map(|port| u16::try_from(port).ok());
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.ok_or_else(|| Error::new(ErrorKind::AddrNotAvailable, "no port is free"))
}
