//! A connection that stays open.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a reply, a push or the end of a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection.
pub struct Session(BufReader<TcpStream>);

impl Session {
    /// Connects to a node.
    pub fn open(addr: SocketAddr) -> Session {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Session(BufReader::new(stream))
    }

    /// Sends a request of words between spaces.
    pub fn send(&mut self, request: &str) {
        self.send_words(&request.split(' ').collect::<Vec<_>>());
    }

    /// Sends a request.
    pub fn send_words(&mut self, words: &[&str]) {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_mut().write_all(bytes.as_bytes()).unwrap();
    }

    /// Sends a request and returns its reply, with the elements of an aggregate between spaces.
    #[track_caller]
    pub fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.next().unwrap_or_else(|error| panic!("no reply to {request}: {error}"))
    }

    /// The next reply or push.
    pub fn next(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or(ErrorKind::UnexpectedEof)?;
        let count = || rest.parse::<i64>().map_err(Error::other);
        match kind {
            "$" if count()? >= 0 => {
                let mut text = vec![0; count()? as usize + 2];
                self.0.read_exact(&mut text)?;
                Ok(String::from_utf8_lossy(&text[..text.len() - 2]).into_owned())
            }
            "*" | ">" | "%" if count()? >= 0 => {
                let elements = count()? * if kind == "%" { 2 } else { 1 };
                let elements: Result<Vec<String>> = (0..elements).map(|_| self.next()).collect();
                Ok(elements?.join(" "))
            }
            _ => Ok(line.to_owned()),
        }
    }

    /// Whether the server closes the connection, maybe after more replies.
    pub fn closes(&mut self) -> bool {
        loop {
            match self.next() {
                Ok(_) => {}
                Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        }
    }
}
