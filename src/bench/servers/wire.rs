//! Requests and replies byte by byte, for measurements that are too fine for a client library.

use std::io::{Error, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Maximum time that a reply may take.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Encodes a request.
pub fn encode(args: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_onto(&mut out, args);
    out
}

/// Appends an encoded request.
pub fn encode_onto(out: &mut Vec<u8>, args: &[&str]) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
}

/// Connects with TCP_NODELAY and with time-outs for reads and writes.
///
/// # Errors
/// Those of the socket.
pub fn connect(addr: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    socket.set_write_timeout(Some(REPLY_TIMEOUT))?;
    Ok(socket)
}

/// Sends one request on a new connection and returns the raw reply.
///
/// # Errors
/// Those of the socket.
pub fn call(addr: SocketAddr, args: &[&str]) -> Result<String> {
    let mut socket = connect(addr)?;
    socket.write_all(&encode(args))?;
    socket.shutdown(Shutdown::Write)?;
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// Sends one request on a new connection and checks the reply.
///
/// # Errors
/// Those of the socket, or the reply if it is another one.
pub fn call_expecting(addr: SocketAddr, args: &[&str], expected: &str) -> Result<()> {
    let reply = call(addr, args)?;
    if reply == expected { Ok(()) } else { Err(unexpected_reply(args.first().unwrap_or(&""), reply.as_bytes())) }
}

/// The error for an unexpected reply to `to`, in one line for people.
pub fn unexpected_reply(to: &str, reply: &[u8]) -> Error {
    const MOST: usize = 120;
    let lines: Vec<&str> = std::str::from_utf8(reply).unwrap_or("bytes that are not UTF-8").lines().collect();
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
    fn the_error_for_an_unexpected_reply_is_one_line() {
        assert_eq!(unexpected_reply("SET a", b"-ERR no\r\n").to_string(), "SET a: -ERR no");
        assert_eq!(unexpected_reply("x", b"$1\r\ny\r\n").to_string(), "x: $1 y");
        assert_eq!(unexpected_reply("x", &b"y\r\n".repeat(200)).to_string().lines().count(), 1);
    }
}
