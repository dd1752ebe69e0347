//! A connection to a server of the Redis protocol, for replies of one line.

use std::io::{Error, Result};
use std::net::SocketAddr;

use portcullis::bench::servers::wire::unexpected_reply;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection.
pub struct Wire {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub async fn connect(addr: SocketAddr) -> Result<Wire> {
        let socket = TcpStream::connect(addr).await?;
        socket.set_nodelay(true)?;
        Ok(Wire { socket, read: Vec::new() })
    }

    pub async fn send(&mut self, requests: &[u8]) -> Result<()> {
        self.socket.write_all(requests).await
    }

    /// The next line of a reply, without its end.
    pub async fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.read[..end]).into_owned();
                self.read.drain(..end + 2);
                return Ok(line);
            }
            if self.socket.read_buf(&mut self.read).await? == 0 {
                return Err(Error::other("the server closed a connection"));
            }
        }
    }

    /// The next reply, an integer that is at least `least`.
    pub async fn integer(&mut self, to: &str, least: u64) -> Result<u64> {
        let line = self.line().await?;
        let number = line.strip_prefix(':').and_then(|number| number.parse().ok()).filter(|number| *number >= least);
        number.ok_or_else(|| unexpected_reply(to, line.as_bytes()))
    }
}
