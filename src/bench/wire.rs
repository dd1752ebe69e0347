//! Requests byte by byte, and their replies, for what is measured too finely for a client library.

use std::io::{Error, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// How long a reply may take before the server counts as one that does not answer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request as it goes on the wire.
pub fn encode(args: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_onto(&mut out, args);
    out
}

/// A request behind others.
pub fn encode_onto(out: &mut Vec<u8>, args: &[&str]) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
}

/// A connection on which nothing is held back, and nothing is waited for without end.
///
/// # Errors
/// Where the server does not let it in.
pub fn connect(addr: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Sends one request on a connection of its own and gives the raw reply.
///
/// # Errors
/// Where the server does not answer.
pub fn call(addr: SocketAddr, args: &[&str]) -> Result<String> {
    let mut socket = connect(addr)?;
    socket.write_all(&encode(args))?;
    socket.shutdown(Shutdown::Write)?;
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// Sends one request on a connection of its own, to which there is one right reply.
///
/// # Errors
/// Where there is another, with it.
pub fn call_for(addr: SocketAddr, args: &[&str], right: &str) -> Result<()> {
    let reply = call(addr, args)?;
    if reply == right { Ok(()) } else { Err(wrong(args.first().unwrap_or(&""), reply.as_bytes())) }
}

/// A reply that was not to be expected, to something, as an error for people.
pub fn wrong(to: &str, reply: &[u8]) -> Error {
    const MOST: usize = 120;
    let lines: Vec<&str> = std::str::from_utf8(reply).unwrap_or("bytes that are no text").lines().collect();
    let text: String = lines.join(" ").chars().map(|c| if c.is_control() { '?' } else { c }).take(MOST).collect();
    Error::other(format!("{to}: {}", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_an_array_of_bulk_strings() {
        assert_eq!(encode(&["GET", "ä"]), "*2\r\n$3\r\nGET\r\n$2\r\nä\r\n".as_bytes());
    }

    #[test]
    fn a_wrong_reply_is_told_in_one_line() {
        assert_eq!(wrong("SET a", b"-ERR no\r\n").to_string(), "SET a: -ERR no");
        assert_eq!(wrong("x", b"$1\r\ny\r\n").to_string(), "x: $1 y");
        assert_eq!(wrong("x", &b"y\r\n".repeat(200)).to_string().lines().count(), 1);
    }
}
