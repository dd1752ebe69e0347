//! Where and how to connect: URLs, and the options that a URL does not carry.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::client::error::{Error, Result};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Options of a [`Client`](crate::client::Client). Parse a URL, then adjust:
///
/// ```
/// use std::time::Duration;
/// use portcullis::client::Options;
///
/// # fn main() -> portcullis::client::Result<()> {
/// let options: Options = "redis://worker:secret@127.0.0.1:6379/2".parse()?;
/// let options = options.name("worker-1").response_timeout(Duration::from_secs(2));
/// # let _ = options;
/// # Ok(())
/// # }
/// ```
///
/// | URL | |
/// | --- | --- |
/// | `redis://[user][:password]@host[:port][/db]` | TCP; port 6379 unless given |
/// | `rediss://…` | TLS over TCP |
/// | `unix:///path/to.sock?db=2&user=…&password=…` | a unix socket; also `redis+unix:` |
///
/// After a `?`, each of them accepts `db`, `user`, `password`, `name` (of the connections), `protocol` (`resp2` or `resp3`) and
/// `ca` (a file with the certificates of authorities). Special characters are percent-encoded, as in all URLs: `%2F` for `/`.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) address: Address,
    pub(crate) tls: Option<Tls>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: u32,
    pub(crate) name: Option<String>,
    pub(crate) resp2: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) connections_max: usize,
    pub(crate) idle_max: usize,
    pub(crate) reply_bytes_max: usize,
}

/// TLS options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    pub ca: Option<PathBuf>,
    pub identity: Option<(PathBuf, PathBuf)>,
    pub server_name: Option<String>,
}

impl Options {
    fn new(address: Address) -> Options {
        Options {
            address,
            tls: None,
            user: None,
            password: None,
            db: 0,
            name: None,
            resp2: false,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(10),
            backoff: (Duration::from_millis(10), Duration::from_secs(2)),
            connections_max: 1024,
            idle_max: 16,
            reply_bytes_max: 512 << 20,
        }
    }

    /// The user and password to log in with.
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Options {
        (self.user, self.password) = (Some(user.into()), Some(password.into()));
        self
    }

    /// The database. 0 unless given.
    pub fn db(mut self, db: u32) -> Options {
        self.db = db;
        self
    }

    /// The name of the connections, which `CLIENT LIST` shows.
    pub fn name(mut self, name: impl Into<String>) -> Options {
        self.name = Some(name.into());
        self
    }

    /// Uses RESP2, even if the server supports RESP3. On RESP2 the client learns of a lost lock only at its next renewal and from
    /// its own clock, because the server cannot push it.
    pub fn resp2(mut self) -> Options {
        self.resp2 = true;
        self
    }

    /// Time-out of one attempt to connect. 5 s unless given.
    pub fn connect_timeout(mut self, timeout: Duration) -> Options {
        self.connect_timeout = timeout;
        self
    }

    /// Time-out of a reply, including all attempts to reconnect before it. For a command that waits on the server it is added to
    /// that wait. 10 s unless given.
    pub fn response_timeout(mut self, timeout: Duration) -> Options {
        self.response_timeout = timeout;
        self
    }

    /// Pauses after failed attempts to reconnect: the first one and the longest one. Pauses double, with some randomness. 10 ms
    /// and 2 s unless given.
    pub fn backoff(mut self, first: Duration, at_most: Duration) -> Options {
        self.backoff = (first.max(Duration::from_millis(1)), at_most.max(first));
        self
    }

    /// Maximum number of connections in use for commands that wait, grants that are bound to a connection, subscriptions, and
    /// [`Client::dedicated`](crate::client::Client::dedicated). 1,024 unless given; further requests wait for a free connection.
    pub fn connections_max(mut self, connections: usize) -> Options {
        self.connections_max = connections.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// Maximum number of idle connections that are kept. 16 unless given.
    pub fn idle_max(mut self, connections: usize) -> Options {
        self.idle_max = connections;
        self
    }

    /// Maximum number of bytes in one reply. 512 MiB unless given.
    pub fn reply_bytes_max(mut self, bytes: usize) -> Options {
        self.reply_bytes_max = bytes;
        self
    }

    /// A PEM file with the only authorities that may have signed the server's certificate. Without it, the system's authorities
    /// are trusted. Each of the three TLS options turns TLS on, whatever the URL's scheme.
    pub fn tls_ca_file(mut self, path: impl Into<PathBuf>) -> Options {
        self.tls.get_or_insert_default().ca = Some(path.into());
        self
    }

    /// PEM files with the client's own certificate chain and key, for servers that require one.
    pub fn tls_identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Options {
        self.tls.get_or_insert_default().identity = Some((certificate.into(), key.into()));
        self
    }

    /// The name that the server's certificate must have, if it differs from the URL's host.
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Options {
        self.tls.get_or_insert_default().server_name = Some(name.into());
        self
    }
}

fn invalid(what: &str) -> Error {
    Error::Invalid(format!("the URL is not one of a server: {what}"))
}

impl FromStr for Options {
    type Err = Error;

    fn from_str(url: &str) -> Result<Options> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| invalid("it does not begin with redis:, rediss: or unix:"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = match scheme.to_ascii_lowercase().as_str() {
            "unix" | "redis+unix" => {
                let path = decode(rest.strip_prefix("//").unwrap_or(rest))?;
                if path.is_empty() {
                    return Err(invalid("there is no path"));
                }
                Options::new(Address::Unix(path.into()))
            }
            scheme @ ("redis" | "rediss") => {
                let mut options = tcp(rest.strip_prefix("//").ok_or_else(|| invalid("there is no //"))?)?;
                options.tls = (scheme == "rediss").then(Tls::default);
                options
            }
            _ => return Err(invalid("it does not begin with redis:, rediss: or unix:")),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            match key {
                "db" => options.db = database(&value)?,
                "user" | "username" => options.user = Some(value),
                "pass" | "password" => options.password = Some(value),
                "name" => options.name = Some(value),
                "ca" if options.tls.is_some() => options = options.tls_ca_file(value),
                "protocol" if matches!(value.as_str(), "resp2" | "2" | "resp3" | "3") => options.resp2 = value.ends_with('2'),
                _ => return Err(invalid(&format!("{key}={value} is not known"))),
            }
        }
        Ok(options)
    }
}

fn database(text: &str) -> Result<u32> {
    text.parse().map_err(|_| invalid("the database is no number"))
}

/// `[user][:password]@host[:port][/db]`
fn tcp(rest: &str) -> Result<Options> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, place) = match authority.rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, authority),
    };
    let (host, port) = if let Some(bracketed) = place.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']').ok_or_else(|| invalid("the address has no end"))?;
        (host, after.strip_prefix(':').unwrap_or(after))
    } else {
        place.split_once(':').unwrap_or((place, ""))
    };
    let port = if port.is_empty() { 6379 } else { port.parse().map_err(|_| invalid("the port is none"))? };
    let host = if host.is_empty() { "127.0.0.1".to_owned() } else { decode(host)? };
    let mut options = Options::new(Address::Tcp { host, port });
    if !path.is_empty() {
        options.db = database(path)?;
    }
    if let Some(login) = login {
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        options.user = Some(decode(user)?).filter(|user| !user.is_empty());
        options.password = password.map(decode).transpose()?;
    }
    Ok(options)
}

/// Percent-decoding.
fn decode(text: &str) -> Result<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(bytes.next()), digit(bytes.next()));
        let (Some(high), Some(low)) = (high, low) else { return Err(invalid("a % without two digits")) };
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).map_err(|_| invalid("it is not UTF-8"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let options = |url: &str| url.parse::<Options>().unwrap();
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        assert_eq!(options("redis://localhost").address, tcp("localhost", 6379));
        assert_eq!(options("redis://").address, tcp("127.0.0.1", 6379));
        assert_eq!(options("redis://[::1]:7000/").address, tcp("::1", 7000));
        let all = options("rediss://us%40er:p%3Aa:ss%2f@example.org:1/12?name=w&protocol=resp2&ca=/a%20b");
        assert_eq!(all.address, tcp("example.org", 1));
        assert_eq!((all.user.as_deref(), all.password.as_deref()), (Some("us@er"), Some("p:a:ss/")));
        assert_eq!((all.db, all.name.as_deref(), all.resp2), (12, Some("w"), true));
        assert_eq!(all.tls.unwrap().ca.unwrap().to_str(), Some("/a b"));
        assert_eq!(options("redis://:secret@h").user, None);
        assert_eq!(options("redis://:secret@h").password.as_deref(), Some("secret"));
        for url in ["unix:///tmp/a.sock?db=3", "unix:/tmp/a.sock?db=3", "redis+unix:///tmp/a.sock?db=3"] {
            assert_eq!((options(url).address, options(url).db), (Address::Unix("/tmp/a.sock".into()), 3));
        }
        for url in
            ["", "localhost", "http://a", "redis:a", "redis://a:x", "redis://a/x", "redis://[::1", "redis://a?b=c", "unix:"]
        {
            assert!(matches!(url.parse::<Options>(), Err(Error::Invalid(_))), "{url}");
        }
        assert!("redis://a?ca=/x".parse::<Options>().is_err(), "no TLS was asked for");
        assert!("redis://%zz".parse::<Options>().is_err());
    }
}
