//! TLS: which clients are accepted, and that no client can hold up others.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, version};

use crate::common::ports;
use crate::common::servers::{Server, on_path, while_stopped};
use crate::common::wire::Wire;

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_portcullis"))
}

/// Certificates in a directory.
struct Papers {
    dir: PathBuf,
}

impl Papers {
    /// Creates an authority `ca` with certificates for `server` and `client`, and another authority `foreign` with `stranger` and
    /// `other`.
    fn new(name: &str) -> Papers {
        let dir = std::env::temp_dir().join(format!("portcullis-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let papers = Papers { dir };
        for (authority, holders) in [("ca", ["server", "client"]), ("foreign", ["stranger", "other"])] {
            let mut params = CertificateParams::new(Vec::new()).expect("parameters");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, authority);
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate");
            papers.write(authority, "crt", &issuer.pem());
            for holder in holders {
                let key = KeyPair::generate().expect("a key");
                let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
                papers.write(holder, "crt", &params.signed_by(&key, &issuer).expect("a certificate").pem());
                papers.write(holder, "key", &key.serialize_pem());
            }
        }
        papers
    }

    fn write(&self, name: &str, kind: &str, text: &str) {
        std::fs::write(self.dir.join(format!("{name}.{kind}")), text).expect("a file");
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// Flags for a server with the certificate of `holder`, and its TLS port.
    fn flags(&self, holder: &str, auth: &str) -> (u16, Vec<String>) {
        let port = ports::free();
        let mut flags = vec!["--tls-port".to_owned(), port.to_string(), "--tls-auth-clients".to_owned(), auth.to_owned()];
        for (flag, file) in [("cert", format!("{holder}.crt")), ("key", format!("{holder}.key")), ("ca-cert", "ca.crt".into())] {
            flags.extend([format!("--tls-{flag}-file"), self.path(&file)]);
        }
        (port, flags)
    }

    /// A server that listens only for TLS, on one port.
    fn server(&self, auth: &str, more: &[&str]) -> Server {
        let mut last = None;
        for _ in 0..5 {
            let (_, flags) = self.flags("server", auth);
            let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
            match Server::portcullis_with(program(), &flags) {
                Ok(server) => return server,
                // Another process may take the port before the server does.
                Err(error) => last = Some(error),
            }
        }
        panic!("{last:?}");
    }

    fn client(&self, holder: Option<&str>, authority: &str, version: Option<u8>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path(authority)).expect("a certificate")).expect("a root");
        let versions: &[_] = match version {
            Some(2) => &[&version::TLS12],
            Some(_) => &[&version::TLS13],
            None => &[&version::TLS13, &version::TLS12],
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        match holder {
            None => builder.with_no_client_auth(),
            Some(holder) => {
                let chain = vec![CertificateDer::from_pem_file(self.path(&format!("{holder}.crt"))).expect("a certificate")];
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{holder}.key"))).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        }
    }
}

impl Drop for Papers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn connect(addr: SocketAddr, config: ClientConfig) -> Tls {
    let stream = TcpStream::connect(addr).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    let name = ServerName::try_from("localhost").expect("a name");
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("a client"), stream)
}

/// Sends a request and reads the expected reply.
fn exchange(tls: &mut Tls, request: &str, awaited: &str) -> io::Result<()> {
    tls.write_all(request.as_bytes())?;
    tls.flush()?;
    let mut got = vec![0; awaited.len()];
    tls.read_exact(&mut got)?;
    assert_eq!(String::from_utf8_lossy(&got), awaited, "{request}");
    Ok(())
}

fn ping(addr: SocketAddr, config: ClientConfig) -> io::Result<Tls> {
    let mut tls = connect(addr, config);
    exchange(&mut tls, "PING\r\n", "+PONG\r\n")?;
    Ok(tls)
}

#[test]
fn who_shows_the_right_certificate_is_served_in_both_versions() {
    let papers = Papers::new("right");
    let server = papers.server("yes", &[]);
    for tls_version in [2, 3] {
        let mut tls = ping(server.addr, papers.client(Some("client"), "ca.crt", Some(tls_version))).expect("a reply");
        exchange(&mut tls, "SET k v\r\nGET k\r\n", "+OK\r\n$1\r\nv\r\n").expect("replies");
        let wanted = if tls_version == 2 { "TLSv1_2" } else { "TLSv1_3" };
        assert_eq!(format!("{:?}", tls.conn.protocol_version().expect("a version")), wanted);
        // The server sends close_notify, so that the end is not taken for a truncation.
        exchange(&mut tls, "QUIT\r\n", "+OK\r\n").expect("a reply");
        assert_eq!(tls.read(&mut [0; 1]).expect("a proper end"), 0);
    }
}

#[test]
fn who_shows_none_or_another_is_not() {
    let papers = Papers::new("wrong");
    let server = papers.server("yes", &[]);
    for tls_version in [2, 3] {
        assert!(ping(server.addr, papers.client(None, "ca.crt", Some(tls_version))).is_err());
        assert!(ping(server.addr, papers.client(Some("stranger"), "ca.crt", Some(tls_version))).is_err());
    }
    // A client does not talk to a server whose authority it does not know.
    assert!(ping(server.addr, papers.client(Some("client"), "foreign.crt", None)).is_err());
    ping(server.addr, papers.client(Some("client"), "ca.crt", None)).expect("others are served");

    let optional = papers.server("optional", &[]);
    ping(optional.addr, papers.client(None, "ca.crt", None)).expect("none is needed");
    ping(optional.addr, papers.client(Some("client"), "ca.crt", None)).expect("the right one is welcome");
    assert!(ping(optional.addr, papers.client(Some("stranger"), "ca.crt", None)).is_err());

    let open = papers.server("no", &["--tls-ca-cert-file", "", "--requirepass", "pw"]);
    let mut tls = connect(open.addr, papers.client(None, "ca.crt", None));
    exchange(&mut tls, "PING\r\nAUTH pw\r\nPING\r\n", "-NOAUTH Authentication required.\r\n+OK\r\n+PONG\r\n").expect("replies");
}

#[test]
fn both_ports_are_told_of_and_each_refuses_what_belongs_to_the_other() {
    let papers = Papers::new("ports");
    let plain_port = ports::free();
    let (tls_port, flags) = papers.flags("server", "no");
    let plain = plain_port.to_string();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--port", &plain]).collect();
    let server = Server::portcullis_with(program(), &flags).expect("a server");
    let tls_addr = SocketAddr::from(([127, 0, 0, 1], tls_port));

    let mut wire = Wire::connect(server.addr).expect("a connection");
    let info = wire.call(&["INFO", "server"]).expect("a reply");
    let info = String::from_utf8_lossy(&info.raw).into_owned();
    assert!(info.contains(&format!("tcp_port:{plain_port}\r\n")), "{info}");
    assert!(info.contains("name=tcp,bind=127.0.0.1"), "{info}");
    assert!(info.contains(&format!("port={tls_port}")), "{info}");

    let began = Instant::now();
    for request in [b"PING\r\n".as_slice(), b"*1\r\n$4\r\nPING\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[0; 100]] {
        let mut stream = TcpStream::connect(tls_addr).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        stream.write_all(request).expect("it is sent");
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(got.is_empty() || got[0] == 0x15, "nothing but an alert: {}", got.escape_ascii());
    }
    assert!(ping(server.addr, papers.client(None, "ca.crt", None)).is_err(), "TLS on the other port");
    // A server that waited for the rest of a handshake would wait for 10 s each time.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    wire.call(&["PING"]).expect("a reply");
    ping(tls_addr, papers.client(None, "ca.crt", None)).expect("a reply");
}

#[test]
fn tls_begins_moves_and_ends_while_the_server_runs() {
    let papers = Papers::new("moves");
    let server = Server::portcullis_with(program(), &["--tls-auth-clients", "no"]).expect("a server");
    let mut wire = Wire::connect(server.addr).expect("a connection");
    let mut set = |pairs: &[&str], reply: &str| {
        let got = wire.call(&[&["CONFIG", "SET"], pairs].concat()).expect("a reply").raw;
        assert_eq!(String::from_utf8_lossy(&got), reply, "{pairs:?}");
    };
    let free = || ports::free().to_string();
    let failed =
        |why: &str| format!("-ERR CONFIG SET failed (possibly related to argument 'tls-port') - {why} Check server logs.\r\n");
    let (first, second) = (free(), free());
    let at = |port: &str| SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")));
    let client = || papers.client(None, "ca.crt", None);
    set(&["tls-port", &first], &failed("Unable to update TLS configuration."));
    let (cert, key) = (papers.path("server.crt"), papers.path("server.key"));
    set(&["tls-port", &first, "tls-cert-file", &cert, "tls-key-file", &key], "+OK\r\n");
    let mut tls = ping(at(&first), client()).expect("a reply");
    let taken = server.addr.port().to_string();
    set(&["tls-port", &taken], &failed("Unable to listen on this port."));
    ping(at(&first), client()).expect("it listens there still");
    set(&["tls-port", &second], "+OK\r\n");
    ping(at(&second), client()).expect("a reply");
    assert!(TcpStream::connect(at(&first)).is_err(), "nothing listens there any more");
    set(&["tls-port", "0"], "+OK\r\n");
    assert!(TcpStream::connect(at(&second)).is_err(), "nothing listens there any more");
    exchange(&mut tls, "PING\r\n", "+PONG\r\n").expect("who is connected stays");
    // Both ports move with their addresses, or neither does.
    set(&["tls-port", &second], "+OK\r\n");
    set(&["bind", "127.0.0.2"], "+OK\r\n");
    assert!(TcpStream::connect(at(&second)).is_err() && TcpStream::connect(server.addr).is_err());
    ping(SocketAddr::from(([127, 0, 0, 2], at(&second).port())), client()).expect("a reply");
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'bind') - Failed to bind to specified addresses.\r\n";
    set(&["bind", "127.0.0.1 192.0.2.1"], refused);
    ping(SocketAddr::from(([127, 0, 0, 2], at(&second).port())), client()).expect("it listens there again");
    set(&["bind", "127.0.0.1"], "+OK\r\n");
    ping(at(&second), client()).expect("a reply");
}

#[test]
fn much_goes_both_ways() {
    let papers = Papers::new("much");
    let server = papers.server("no", &[]);
    let mut tls = connect(server.addr, papers.client(None, "ca.crt", None));
    let value = "0123456789abcdef".repeat(1 << 18);
    let header = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", value.len());
    exchange(&mut tls, &format!("{header}{value}\r\n"), "+OK\r\n").expect("a reply");
    let reply = format!("${}\r\n{value}\r\n", value.len());
    exchange(&mut tls, "GET k\r\n", &reply).expect("a reply");
    // Replies wait for a client that does not read, and arrive when it does.
    tls.write_all("GET k\r\n".repeat(4).as_bytes()).expect("it is sent");
    tls.flush().expect("it is sent");
    std::thread::sleep(Duration::from_millis(100));
    ping(server.addr, papers.client(None, "ca.crt", None)).expect("others are served meanwhile");
    exchange(&mut tls, "PING\r\n", &(reply.repeat(4) + "+PONG\r\n")).expect("replies");
    exchange(&mut tls, &"PING\r\n".repeat(20_000), &"+PONG\r\n".repeat(20_000)).expect("replies");
    // A push comes without being asked for.
    exchange(&mut tls, "SUBSCRIBE c\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n").expect("a reply");
    let mut other = connect(server.addr, papers.client(None, "ca.crt", None));
    exchange(&mut other, "PUBLISH c m\r\n", ":1\r\n").expect("a reply");
    exchange(&mut tls, "", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n").expect("the message");
}

#[test]
fn certificates_are_read_again_when_they_are_set() {
    let papers = Papers::new("again");
    let server = papers.server("no", &[]);
    let mut old = ping(server.addr, papers.client(None, "ca.crt", None)).expect("a reply");
    let set = format!("CONFIG SET tls-cert-file {} tls-key-file {}\r\n", papers.path("other.crt"), papers.path("other.key"));
    // A key that does not belong to the certificate is refused, and nothing changes.
    let mixed = format!("CONFIG SET tls-cert-file {}\r\n", papers.path("other.crt"));
    let refused = "-ERR CONFIG SET failed (possibly related to argument 'tls-cert-file') - Unable to update TLS configuration. Check \
                   server logs.\r\n";
    exchange(&mut old, &mixed, refused).expect("a reply");
    exchange(&mut old, "CONFIG SET tls-key-file /nonexistent\r\n", &refused.replace("cert-file", "key-file")).expect("a reply");
    ping(server.addr, papers.client(None, "ca.crt", None)).expect("the old certificate");
    exchange(&mut old, &set, "+OK\r\n").expect("a reply");
    assert!(ping(server.addr, papers.client(None, "ca.crt", None)).is_err(), "it is another's now");
    ping(server.addr, papers.client(None, "foreign.crt", None)).expect("the new certificate");
    exchange(&mut old, "PING\r\n", "+PONG\r\n").expect("who is connected stays so");
    // Setting the same name again reads the file again.
    for kind in ["crt", "key"] {
        std::fs::copy(papers.path(&format!("server.{kind}")), papers.path(&format!("other.{kind}"))).expect("a copy");
    }
    exchange(&mut old, &set, "+OK\r\n").expect("a reply");
    ping(server.addr, papers.client(None, "ca.crt", None)).expect("the certificate of the file");
    exchange(&mut old, "CONFIG SET tls-auth-clients yes\r\n", "+OK\r\n").expect("a reply");
    assert!(ping(server.addr, papers.client(None, "ca.crt", None)).is_err());
    ping(server.addr, papers.client(Some("client"), "ca.crt", None)).expect("with a certificate");
    exchange(&mut old, "CONFIG SET tls-protocols TLSv1.3\r\n", "+OK\r\n").expect("a reply");
    assert!(ping(server.addr, papers.client(Some("client"), "ca.crt", Some(2))).is_err());
    ping(server.addr, papers.client(Some("client"), "ca.crt", Some(3))).expect("in the one version");
}

#[test]
fn silent_clients_do_not_keep_others_out() {
    let papers = Papers::new("silent");
    let server = papers.server("no", &[]);
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(server.addr).expect("a connection")).collect();
    let began = Instant::now();
    let mut tls = ping(server.addr, papers.client(None, "ca.crt", None)).expect("a reply");
    // The server gives up a handshake after a second when it needs room for others, and otherwise after ten.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // These connections never became clients.
    let mut line = Vec::new();
    tls.write_all(b"INFO clients\r\n").expect("it is sent");
    while !line.ends_with(b"connected_clients:1\r\n") {
        let mut byte = [0];
        tls.read_exact(&mut byte).expect("connected_clients:1 in the reply");
        line.push(byte[0]);
    }
    drop(silent);
}

#[test]
fn a_storm_of_handshakes_goes_on_among_the_requests_of_others() {
    // Between the reply to the request and the look at the handshakes, a busy machine may let the server do the rest of them.
    let mut before = Vec::new();
    while before.len() < 8 && before.last().is_none_or(|before| *before >= 150) {
        before.push(answered_before_a_request());
    }
    assert!(before.last() < Some(&150), "of 200 handshakes, these went on before a request of another: {before:?}");
}

/// How many of 200 handshakes go on before a request that the server finds with them.
fn answered_before_a_request() -> usize {
    let papers = Papers::new("storm");
    let server = papers.server("no", &[]);
    let mut known = ping(server.addr, papers.client(None, "ca.crt", None)).expect("a reply");
    let config = Arc::new(papers.client(None, "ca.crt", None));
    let sockets = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("its descriptors").flatten();
        files.filter(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))).count()
    };
    let before = sockets();
    let mut storm: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(server.addr).expect("a connection")).collect();
    exchange(&mut known, "PING\r\n", "+PONG\r\n").expect("a reply");
    // The server has accepted all of them, and finds all that follows at once.
    crate::until("all connections to be accepted", || sockets() >= before + storm.len());
    while_stopped(server.pid(), || {
        for stream in &mut storm {
            let name = ServerName::try_from("localhost").expect("a name");
            let mut client = ClientConnection::new(Arc::clone(&config), name).expect("a client");
            client.write_tls(stream).expect("a hello is sent");
        }
        known.write_all(b"PING\r\n").and_then(|()| known.flush()).expect("it is sent");
    });
    exchange(&mut known, "", "+PONG\r\n").expect("a reply");
    let answered = |stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket that does not wait");
        stream.peek(&mut [0]).is_ok_and(|count| count > 0)
    };
    let before = storm.iter().filter(|stream| answered(stream)).count();
    crate::until("all to be answered", || storm.iter().all(answered));
    before
}

#[test]
fn without_descriptors_a_handshake_under_way_hurries_no_attempt_to_accept() {
    let papers = Papers::new("descriptors");
    let server = papers.server("no", &[]);
    let mut known = ping(server.addr, papers.client(None, "ca.crt", None)).expect("a reply");
    let _half = TcpStream::connect(server.addr).expect("a connection");
    exchange(&mut known, "PING\r\n", "+PONG\r\n").expect("a reply");
    let pid = Pid::from_raw(server.pid() as i32);
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("its descriptors").count() as u64;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("its limits");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("that on open files");
    let [soft, hard] = [0, 1].map(|nth| files.split_whitespace().nth(nth).and_then(|word| word.parse().ok()));
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(open), maximum: hard }).expect("a limit");
    let mut late = connect(server.addr, papers.client(None, "ca.crt", None));
    let attempts = || server.log().matches("cannot accept a connection").count() as u128;
    let began = Instant::now();
    crate::until("the first attempt", || attempts() > 0);
    while began.elapsed() < Duration::from_millis(300) {
        exchange(&mut known, "PING\r\n", "+PONG\r\n").expect("a reply");
    }
    let attempts = attempts();
    assert!(attempts <= 2 + began.elapsed().as_millis() / 100, "{attempts} attempts in {:?}", began.elapsed());
    prlimit(pid, Resource::Nofile, Rlimit { current: soft, maximum: hard }).expect("a limit");
    exchange(&mut late, "PING\r\n", "+PONG\r\n").expect("a reply");
}

#[test]
fn those_who_are_refused_are_told_so() {
    let papers = Papers::new("refused");
    let server = papers.server("no", &["--maxclients", "1"]);
    let _one = ping(server.addr, papers.client(None, "ca.crt", None)).expect("a reply");
    let mut two = connect(server.addr, papers.client(None, "ca.crt", None));
    exchange(&mut two, "", "-ERR max number of clients reached\r\n").expect("the refusal");
    assert_eq!(two.read(&mut [0; 1]).expect("a proper end"), 0);
}

#[test]
fn while_a_script_runs_long_clients_are_answered_and_new_ones_let_in() {
    let papers = Papers::new("busy");
    let server = papers.server("no", &["--lua-time-limit", "50"]);
    let busy = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
    let mut known = ping(server.addr, papers.client(None, "ca.crt", None)).expect("a reply");
    let mut running = connect(server.addr, papers.client(None, "ca.crt", None));
    running.write_all(b"*3\r\n$4\r\nEVAL\r\n$17\r\nwhile true do end\r\n$1\r\n0\r\n").expect("it is sent");
    running.flush().expect("it is sent");
    // Until the script has run for as long as makes a server busy.
    loop {
        known.write_all(b"PING\r\n").and_then(|()| known.flush()).expect("it is sent");
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n") {
            let mut byte = [0];
            known.read_exact(&mut byte).expect("a reply");
            reply.push(byte[0]);
        }
        match reply == busy.as_bytes() {
            true => break,
            false => assert_eq!(reply, b"+PONG\r\n"),
        }
    }
    exchange(&mut known, "GET k\r\nGET k\r\n", &busy.repeat(2)).expect("replies");
    let mut late = connect(server.addr, papers.client(None, "ca.crt", None));
    exchange(&mut late, "GET k\r\n", busy).expect("a reply");
    // The handshake begins during the script and ends after it.
    let half = TcpStream::connect(server.addr).expect("a connection");
    std::thread::sleep(Duration::from_millis(100));
    exchange(&mut late, "SCRIPT KILL\r\n", "+OK\r\n").expect("a reply");
    let mut killed = [0; 4];
    running.read_exact(&mut killed).expect("a reply");
    assert_eq!(&killed, b"-ERR");
    for tls in [&mut known, &mut late] {
        exchange(tls, "PING\r\n", "+PONG\r\n").expect("a reply");
    }
    let name = ServerName::try_from("localhost").expect("a name");
    let config = Arc::new(papers.client(None, "ca.crt", None));
    let mut half = StreamOwned::new(ClientConnection::new(config, name).expect("a client"), half);
    exchange(&mut half, "PING\r\n", "+PONG\r\n").expect("a reply");
}

/// A certificate of version 1, made by `openssl x509 -req` of OpenSSL 3.0 without `-extfile`.
const OLD: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBGDCBvwIUDRy3FPFgAAvlCHWBi0tDXUxWNIMwCgYIKoZIzj0EAwIwDjEMMAoG\n\
A1UEAwwDb2xkMCAXDTI2MTEyMjAyMzgxMloYDzIxMjYxMDI5MDIzODEyWjAOMQww\n\
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARk6JhTBML39XGQ\n\
O6rbTbjcMe0/s3nU5MvcIc66isJJZ2AD9Hxczyla8LVWbjy3zPZZD2voBnF5/Hil\n\
NmG4h2hsMAoGCCqGSM49BAMCA0gAMEUCIBBrhVts4KxGhsR/ZBMAlXA4MdMMFpsm\n\
qpxQUU/GhP5GAiEAh2eIL4CGRkNsIHHHCyGNGUnc9Se5L8GE4ZU9e/rie3g=\n\
-----END CERTIFICATE-----";

#[test]
fn what_cannot_work_does_not_start() {
    let papers = Papers::new("start");
    let (server, key, ca) = (papers.path("server.crt"), papers.path("server.key"), papers.path("ca.crt"));
    let client_key = papers.path("client.key");
    papers.write("old", "crt", OLD);
    let old = papers.path("old.crt");
    let pair = ["--tls-cert-file", &server, "--tls-key-file", &key];
    for (args, told) in [
        (vec!["--tls-cert-file", &old, "--tls-key-file", &key, "--tls-ca-cert-file", &ca], "must be one of X.509 version 3"),
        (vec![], "tls-cert-file is not set"),
        (vec!["--tls-cert-file", &server], "tls-key-file is not set"),
        (vec!["--tls-cert-file", "/nonexistent", "--tls-key-file", &key], "tls-cert-file /nonexistent: "),
        (vec!["--tls-cert-file", &key, "--tls-key-file", &key], "there is no certificate in it"),
        (pair.to_vec(), "Either tls-ca-cert-file or tls-ca-cert-dir must be specified"),
        (vec!["--tls-cert-file", &server, "--tls-key-file", &client_key, "--tls-ca-cert-file", &ca], "tls-key-file"),
        ([&pair[..], &["--tls-ca-cert-file", &ca, "--tls-protocols", "TLSv1.1"]].concat(), "only TLSv1.2 and TLSv1.3"),
        (vec!["--tls-key-file-pass", "x"], "Encrypted private keys are not supported"),
        (vec!["--tls-ciphers", "x"], "cannot be configured"),
    ] {
        let output = Command::new(program())
            .args(["serve", "--port", "0", "--tls-port", "1"])
            .args(&args)
            .output()
            .expect("the program runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(told), "{args:?}: {error}");
    }
}

#[test]
fn redis_cli_speaks_to_it() {
    let Some(cli) = on_path("redis-cli") else {
        eprintln!("skipped: there is no redis-cli on the PATH");
        return;
    };
    let papers = Papers::new("cli");
    let server = papers.server("yes", &[]);
    let run = |more: &[&str]| {
        let mut command = Command::new(&cli);
        command.args(["-h", "localhost", "-p", &server.addr.port().to_string(), "--tls", "--cacert", &papers.path("ca.crt")]);
        command.args(more).args(["SET", "k", "v"]).output().expect("redis-cli runs")
    };
    let help = Command::new(&cli).arg("--help").output().expect("redis-cli runs");
    if ![help.stdout, help.stderr].iter().any(|text| String::from_utf8_lossy(text).contains("--tls")) {
        eprintln!("skipped: this redis-cli was built without TLS");
        return;
    }
    let with = run(&["--cert", &papers.path("client.crt"), "--key", &papers.path("client.key")]);
    assert_eq!(String::from_utf8_lossy(&with.stdout), "OK\n", "{}", String::from_utf8_lossy(&with.stderr));
    assert_ne!(String::from_utf8_lossy(&run(&[]).stdout), "OK\n");
}

#[test]
fn the_client_of_this_crate_checks_the_server_and_shows_its_own_certificate() {
    use portcullis::client::{Client, Command, Error, Options};

    let papers = Papers::new("own");
    let server = papers.server("yes", &[]);
    let url = format!("rediss://localhost:{}", server.addr.port());
    let options = |ca: &str| url.parse::<Options>().expect("options").tls_ca_file(papers.path(ca));
    let with_identity = |ca: &str| options(ca).tls_identity(papers.path("client.crt"), papers.path("client.key"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::with(with_identity("ca.crt")).await.expect("a client");
        let large = vec![7; 5 << 20];
        client.query::<()>(Command::new("SET").arg("k").arg(&large)).await.expect("a reply");
        assert_eq!(client.query::<Vec<u8>>(Command::new("GET").arg("k")).await, Ok(large));
        let guard = client.lock("a").session().acquire().await.expect("granted");
        guard.release().await.expect("released");

        let refused = [
            ("no certificate", options("ca.crt")),
            ("another authority", with_identity("foreign.crt")),
            ("another name", with_identity("ca.crt").tls_server_name("example.org")),
            ("those of the system", url.parse().expect("options")),
        ];
        for (what, options) in refused {
            let error = Client::with(options).await.err().unwrap_or_else(|| panic!("{what}: it was let in"));
            // A system may have no authorities at all.
            assert!(matches!(error, Error::Connect(_)) || what == "those of the system", "{what}: {error}");
        }
        for file in ["nosuch.crt", "client.key"] {
            let error = Client::with(options(file)).await.err().expect("no authority");
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
    });
}
