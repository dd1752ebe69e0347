//! HTTP over TLS: on loopback when asked for, beyond it always.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use portcullis::TestServer;
use rcgen::CertifiedKey;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{Answer, PATIENCE, Talk, text};

/// A certificate of its own authority, in files.
struct Paper {
    folder: PathBuf,
    certificate: CertificateDer<'static>,
}

impl Paper {
    fn new(name: &str) -> Paper {
        let folder = std::env::temp_dir().join(format!("portcullis-http-{}-tls-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut paper = Paper { folder, certificate: CertificateDer::from(Vec::new()) };
        paper.renew();
        paper
    }

    /// Writes another certificate into the same files.
    fn renew(&mut self) {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(self.path("crt"), cert.pem()).unwrap();
        std::fs::write(self.path("key"), signing_key.serialize_pem()).unwrap();
        self.certificate = cert.der().clone();
    }

    fn path(&self, kind: &str) -> String {
        self.folder.join(format!("server.{kind}")).to_string_lossy().into_owned()
    }

    /// A server with this certificate.
    fn server(&self, http: &str, more: &[(&str, &str)]) -> (TestServer, SocketAddr) {
        let (crt, key) = (self.path("crt"), self.path("key"));
        let set = [("http", http), ("tls-cert-file", crt.as_str()), ("tls-key-file", key.as_str()), ("tls-auth-clients", "no")];
        let all = set.iter().chain(more);
        let server = all.fold(TestServer::builder(), |builder, (name, value)| builder.config(name, value)).start();
        let port = server.http_addr().unwrap().port();
        (server, SocketAddr::from(([127, 0, 0, 1], port)))
    }

    fn get(&self, addr: SocketAddr, path: &str, headers: &[&str]) -> std::io::Result<Answer> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream);
        tls.write_all(text(addr, &format!("GET {path}"), headers, "").as_bytes())?;
        let mut bytes = Vec::new();
        let read = tls.read_to_end(&mut bytes);
        if bytes.is_empty() {
            read?;
        }
        Ok(Answer::read(&bytes))
    }
}

impl Drop for Paper {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn loopback_is_encrypted_when_asked_for_and_certificates_are_renewed() {
    let mut paper = Paper::new("loopback");
    let (server, addr) = paper.server("127.0.0.1:0", &[("http-tls", "yes")]);
    assert_eq!(paper.get(addr, "/healthz", &[]).unwrap().status, 200);
    // The certificate proves the name, so any is right; an origin of plain HTTP is another one.
    let host = "Host: locks.example:9121";
    assert_eq!(paper.get(addr, "/api/locks", &[host, "Origin: https://locks.example:9121"]).unwrap().status, 200);
    assert_eq!(paper.get(addr, "/api/locks", &[host, "Origin: http://locks.example:9121"]).unwrap().status, 403);
    // Nothing is answered in the clear.
    let mut plain = TcpStream::connect(addr).unwrap();
    plain.write_all(text(addr, "GET /healthz", &[], "").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"), "{:?}", String::from_utf8_lossy(&bytes));
    let crt = paper.path("crt");
    paper.renew();
    assert!(paper.get(addr, "/healthz", &[]).is_err(), "the old certificate is in force");
    assert_eq!(Talk::to(server.addr()).say(&format!("CONFIG SET tls-cert-file {crt}")), "+OK");
    assert_eq!(paper.get(addr, "/healthz", &[]).unwrap().status, 200);
}

#[test]
fn beyond_loopback_it_is_encrypted_and_needs_credentials_for_ever() {
    let paper = Paper::new("beyond");
    let (server, addr) = paper.server("0.0.0.0:0", &[("requirepass", "secret")]);
    assert_eq!(paper.get(addr, "/healthz", &[]).unwrap().status, 200);
    assert_eq!(paper.get(addr, "/metrics", &[]).unwrap().status, 401);
    assert_eq!(paper.get(addr, "/metrics", &["Authorization: Bearer secret"]).unwrap().status, 200);
    let mut talk = Talk::to(server.addr());
    assert_eq!(talk.say("AUTH secret"), "+OK");
    assert_eq!(talk.say("ACL SETUSER default nopass"), "+OK");
    for path in ["/", "/metrics", "/api/locks"] {
        assert_eq!(paper.get(addr, path, &[]).unwrap().status, 401, "{path}");
    }
}
