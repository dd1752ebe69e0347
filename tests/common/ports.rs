//! Ports for servers that are told theirs, and for those that are started again on the same one.

use std::net::TcpListener;
use std::time::{Duration, Instant};

/// A port of 127.0.0.1 on which nothing listens. No other call in this process returns it.
pub fn free() -> u16 {
    portcullis::ports::free().expect("a free port")
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
