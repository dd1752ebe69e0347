//! Ports for servers that are told theirs, and for those that are started again on the same one.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The ports given here. The system picks its own from 32,768 on, so nobody gets one of these who does not name it: not between the moment
/// at which it is found to be free and the start of its server, and not while that server is restarted.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// A port of 127.0.0.1 on which nothing listens. No other call in this process returns it.
pub fn free() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Test programs that run at the same time begin at different places.
    let begin = std::process::id().wrapping_mul(7_919);
    for _ in 0..COUNT {
        let port = FIRST + begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(port).expect("a port");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Waits until nothing listens on a port any more. A server of this process that has ended leaves its socket in the children that other
/// tests are just starting, until these run their program.
pub fn until_free(port: u16) {
    let end = Instant::now() + Duration::from_secs(20);
    while TcpListener::bind(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "port {port} does not become free");
        std::thread::sleep(Duration::from_millis(2));
    }
}
