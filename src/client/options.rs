//! Connection options, and the URLs that they are parsed from.

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
/// | `redis://host1:port1,host2:port2,host3:port3/…` | the nodes of a replicated server, of which the client uses the leader |
/// | `rediss://…` | TLS over TCP |
/// | `unix:///path/to.sock?db=2&user=…&password=…` | a unix socket; also `redis+unix:` |
///
/// After a `?`, each kind of URL accepts the parameters `db`, `user`, `password`, `name` (of the connections) and `protocol`
/// (`resp2` or `resp3`), and `rediss` also `ca` (a PEM file with certificate authorities). Special characters are
/// percent-encoded, as in all URLs: `%2F` for `/`.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) address: Address,
    /// Further nodes of the same replicated server: the client uses the one that leads.
    pub(crate) others: Vec<Address>,
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
            others: Vec::new(),
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

    /// The same options for another server, over TCP.
    #[cfg(feature = "quorum")]
    pub(crate) fn at(mut self, host: &str, port: u16) -> Options {
        self.address = Address::Tcp { host: host.to_owned(), port };
        self
    }

    setters! {
        /// The user and password to log in with.
        pub fn credentials(self, user: impl Into<String>, password: impl Into<String>) {
            (self.user, self.password) = (Some(user.into()), Some(password.into()));
        }

        /// The database. 0 unless given.
        pub fn db(self, db: u32) { self.db = db }

        /// The name of the connections, which `CLIENT LIST` shows.
        pub fn name(self, name: impl Into<String>) { self.name = Some(name.into()) }

        /// Uses RESP2, even if the server supports RESP3. On RESP2 the client learns of a lost lock only at its next renewal and from
        /// its own clock, because the server cannot push it.
        pub fn resp2(self) { self.resp2 = true }

        /// Time-out of one attempt to connect. 5 s unless given.
        pub fn connect_timeout(self, timeout: Duration) { self.connect_timeout = timeout }

        /// Time-out of a reply, including all attempts to reconnect before it. The time-out of a blocking command is added to it. 10
        /// s unless given.
        pub fn response_timeout(self, timeout: Duration) { self.response_timeout = timeout }

        /// Pauses after failed attempts to reconnect: the first one and the longest one. Each pause is twice the one before, and a
        /// random part of up to half is subtracted. 10 ms and 2 s unless given.
        pub fn backoff(self, first: Duration, at_most: Duration) {
            self.backoff = (first.max(Duration::from_millis(1)), at_most.max(first));
        }

        /// Maximum number of connections in use for blocking commands, locks that are bound to a connection, subscriptions, and
        /// [`Client::dedicated`](crate::client::Client::dedicated). Further requests wait for a free connection. 1,024 unless given.
        pub fn connections_max(self, connections: usize) {
            self.connections_max = connections.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        }

        /// Maximum number of idle connections that are kept. 16 unless given.
        pub fn idle_max(self, connections: usize) { self.idle_max = connections }

        /// Maximum number of bytes in one reply. 512 MiB unless given.
        pub fn reply_bytes_max(self, bytes: usize) { self.reply_bytes_max = bytes }

        /// A PEM file with the certificate authorities to trust. Without it, the client trusts the system's authorities. Each of the
        /// three TLS options turns TLS on, whatever the URL's scheme is.
        pub fn tls_ca_file(self, path: impl Into<PathBuf>) { self.tls.get_or_insert_default().ca = Some(path.into()) }

        /// PEM files with the client's own certificate chain and key, for servers that require one.
        pub fn tls_identity(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) {
            self.tls.get_or_insert_default().identity = Some((certificate.into(), key.into()));
        }

        /// The name that the server's certificate must have, if it differs from the URL's host.
        pub fn tls_server_name(self, name: impl Into<String>) { self.tls.get_or_insert_default().server_name = Some(name.into()) }
    }
}

fn invalid_url(what: &str) -> Error {
    Error::Invalid(format!("invalid server URL: {what}"))
}

impl FromStr for Options {
    type Err = Error;

    fn from_str(url: &str) -> Result<Options> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| invalid_url("the scheme is not redis:, rediss: or unix:"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = match scheme.to_ascii_lowercase().as_str() {
            "unix" | "redis+unix" => {
                let path = percent_decode(rest.strip_prefix("//").unwrap_or(rest))?;
                fail_if!(path.is_empty(), invalid_url("the path is missing"));
                Options::new(Address::Unix(path.into()))
            }
            scheme @ ("redis" | "rediss") => {
                let mut options =
                    parse_tcp(rest.strip_prefix("//").ok_or_else(|| invalid_url("'//' is missing after the scheme"))?)?;
                options.tls = (scheme == "rediss").then(Tls::default);
                options
            }
            _ => return Err(invalid_url("the scheme is not redis:, rediss: or unix:")),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode(value)?;
            match key {
                "db" => options.db = parse_db(&value)?,
                "user" | "username" => options.user = Some(value),
                "pass" | "password" => options.password = Some(value),
                "name" => options.name = Some(value),
                "ca" if options.tls.is_some() => options = options.tls_ca_file(value),
                "protocol" if matches!(value.as_str(), "resp2" | "2" | "resp3" | "3") => options.resp2 = value.ends_with('2'),
                _ => return Err(invalid_url(&format!("unknown parameter {key}={value}"))),
            }
        }
        Ok(options)
    }
}

fn parse_db(text: &str) -> Result<u32> {
    text.parse().map_err(|_| invalid_url("the database is not a number"))
}

/// Parses `host[:port]`.
fn parse_address(address: &str) -> Result<Address> {
    let (host, port) = if let Some(bracketed) = address.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']').ok_or_else(|| invalid_url("']' is missing after the address"))?;
        (host, after.strip_prefix(':').unwrap_or(after))
    } else {
        address.split_once(':').unwrap_or((address, ""))
    };
    let port =
        if port.is_empty() { 6379 } else { port.parse().map_err(|_| invalid_url("the port is not a number up to 65535"))? };
    let host = if host.is_empty() { "127.0.0.1".to_owned() } else { percent_decode(host)? };
    Ok(Address::Tcp { host, port })
}

/// Parses `[user][:password]@host[:port][,host[:port]…][/db]`.
fn parse_tcp(rest: &str) -> Result<Options> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, addresses) = match authority.rsplit_once('@') {
        Some((login, addresses)) => (Some(login), addresses),
        None => (None, authority),
    };
    let (first, others) = addresses.split_once(',').map_or((addresses, None), |(first, others)| (first, Some(others)));
    let mut options = Options::new(parse_address(first)?);
    options.others = others.into_iter().flat_map(|others| others.split(',')).map(parse_address).collect::<Result<_>>()?;
    if !path.is_empty() {
        options.db = parse_db(path)?;
    }
    if let Some(login) = login {
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        options.user = Some(percent_decode(user)?).filter(|user| !user.is_empty());
        options.password = password.map(percent_decode).transpose()?;
    }
    Ok(options)
}

/// Decodes percent-encoding.
fn percent_decode(text: &str) -> Result<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(bytes.next()), digit(bytes.next()));
        let (Some(high), Some(low)) = (high, low) else { return Err(invalid_url("two hexadecimal digits must follow '%'")) };
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).map_err(|_| invalid_url("a decoded part is not UTF-8"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
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
        let nodes = options("redis://u:p@a,b:7001,[::1]:7002/3");
        assert_eq!((nodes.address, nodes.others), (tcp("a", 6379), vec![tcp("b", 7001), tcp("::1", 7002)]));
        assert_eq!((nodes.user.as_deref(), nodes.db), (Some("u"), 3));
        assert!("redis://a,b:x".parse::<Options>().is_err());
        assert_eq!(options("redis://:secret@h").password.as_deref(), Some("secret"));
        for url in ["unix:///tmp/a.sock?db=3", "unix:/tmp/a.sock?db=3", "redis+unix:///tmp/a.sock?db=3"] {
            assert_eq!((options(url).address, options(url).db), (Address::Unix("/tmp/a.sock".into()), 3));
        }
        for url in
            ["", "localhost", "http://a", "redis:a", "redis://a:x", "redis://a/x", "redis://[::1", "redis://a?b=c", "unix:"]
        {
            assert!(matches!(url.parse::<Options>(), Err(Error::Invalid(_))), "{url}");
        }
        assert!("redis://a?ca=/x".parse::<Options>().is_err(), "the URL does not ask for TLS");
        assert!("redis://%zz".parse::<Options>().is_err());
    }
}
