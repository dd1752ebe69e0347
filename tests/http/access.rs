//! Who is let in, and what pages of other sites cannot do.

use std::process::{Command, Stdio};

use portcullis::TestServer;

use crate::client::{Talk, builder, get, send, start};

const ALICE: &str = "Authorization: Basic YWxpY2U6d29uZGVy"; // alice:wonder
const BREAK: &str = r#"{"db":0,"name":"a","token":1}"#;

#[test]
fn without_a_password_nobody_needs_one() {
    let (_server, addr) = start(builder());
    assert_eq!(get(addr, "/metrics").status, 200);
    assert_eq!(get(addr, "/api/locks").status, 200);
    // A wrong name is wrong even then.
    let answer = send(addr, "GET /metrics", &["Authorization: Basic bm9ib2R5Ong="], "");
    assert_eq!((answer.status, answer.error().as_str()), (401, "WRONGPASS invalid username-password pair or user is disabled."));
}

#[test]
fn with_a_password_it_is_needed_at_once() {
    let (server, addr) = start(builder());
    assert_eq!(get(addr, "/metrics").status, 200);
    let mut talk = Talk::to(server.addr());
    assert_eq!(talk.say("CONFIG SET requirepass secret"), "+OK");
    for path in ["/", "/metrics", "/api/locks", "/api/lock?name=a", "/api/graph", "/api/figures", "/api/recent", "/api/events"] {
        let answer = get(addr, path);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Basic realm="), "{path}");
        assert!(answer.error().starts_with("NOAUTH"), "{path}");
    }
    let secret =
        ["Authorization: Basic OnNlY3JldA==", "Authorization: Bearer secret", "Authorization: Bearer ZGVmYXVsdDpzZWNyZXQ="];
    for header in secret {
        assert_eq!(send(addr, "GET /metrics", &[header], "").status, 200, "{header}");
    }
    let wrong = ["Authorization: Basic OndyYXRo", "Authorization: Bearer wrong"];
    for header in wrong {
        let answer = send(addr, "GET /metrics", &[header], "");
        assert_eq!((answer.status, answer.error().starts_with("WRONGPASS")), (401, true), "{header}");
    }
    assert_eq!(send(addr, "GET /metrics", &["Authorization: Digest x"], "").status, 400);
    // Health tells nothing, and asks for nothing.
    assert_eq!((get(addr, "/healthz").status, get(addr, "/readyz").status), (200, 200));
    // The password that was right is not any more.
    assert_eq!(talk.say("CONFIG SET requirepass other"), "+OK");
    assert_eq!(send(addr, "GET /metrics", &[secret[0]], "").status, 401);
}

#[test]
fn users_may_do_what_their_rules_allow() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    assert_eq!(talk.say("ACL SETUSER alice on >wonder +info +lock.list ~a*"), "+OK");
    let ask = |path: &str| send(addr, &format!("GET {path}"), &[ALICE], "");
    assert_eq!(ask("/metrics").status, 200);
    let locks = ask("/api/locks");
    assert_eq!(locks.status, 200, "{locks:?}");
    for path in ["/api/lock?name=a", "/api/figures"] {
        let answer = ask(path);
        assert_eq!((answer.status, answer.error().starts_with("NOPERM")), (403, true), "{path}: {answer:?}");
    }
    let answer = send(addr, "POST /api/break", &[ALICE, "X-Portcullis: 1", "Content-Type: application/json"], BREAK);
    assert!(answer.status == 403 && answer.error().starts_with("NOPERM"), "{answer:?}");
    assert_eq!(talk.say("ACL SETUSER alice off"), "+OK");
    assert_eq!(ask("/metrics").status, 401);
}

#[test]
fn a_wrong_password_does_nothing_as_the_default_user() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    // The endpoint asks for figures as the default user by itself, and in its own time.
    let did_nothing = |stats: &str| !stats.contains("cmdstat_lock.break") && !stats.contains("cmdstat_lock.info");
    let before = talk.say("INFO commandstats");
    assert!(did_nothing(&before), "{before}");
    let headers = ["Authorization: Basic YWxpY2U6d29uZGVy", "X-Portcullis: 1", "Content-Type: application/json"];
    assert_eq!(send(addr, "POST /api/break", &headers, BREAK).status, 401);
    assert_eq!(send(addr, "GET /api/lock?name=never-seen", &headers[..1], "").status, 401);
    let after = talk.say("INFO commandstats");
    assert!(did_nothing(&after), "{after}");
}

#[test]
fn pages_of_other_sites_are_refused() {
    let (server, addr) = start(builder());
    let mut talk = Talk::to(server.addr());
    let token: i64 = talk.say("LOCK.ACQUIRE a alice 60000").trim_start_matches(':').parse().unwrap();
    let body = format!(r#"{{"name":"a","token":{token}}}"#);
    let json = "Content-Type: application/json";
    let own = format!("Origin: http://{addr}");
    let is_held = |talk: &mut Talk| talk.say("LOCK.INFO a").contains("alice");
    for (headers, why) in [
        (vec![json], "no header of ours"),
        (vec![json, "X-Portcullis: 0"], "another value"),
        (vec![json, "X-Portcullis: 1", "Origin: http://evil.example"], "a foreign origin"),
        (vec![json, "X-Portcullis: 1", "Origin: null"], "no origin"),
        (vec![json, "X-Portcullis: 1", "Host: evil.example"], "a name that was pointed here"),
        (vec![json, "X-Portcullis: 1", "Origin: http://evil.example", "Host: evil.example"], "both"),
    ] {
        let answer = send(addr, "POST /api/break", &headers, &body);
        assert_eq!(answer.status, 403, "{why}: {answer:?}");
        assert!(is_held(&mut talk), "{why}");
    }
    // A form of another site can send such a body, but not as JSON.
    let answer = send(addr, "POST /api/break", &["X-Portcullis: 1", "Content-Type: text/plain"], &body);
    assert_eq!(answer.status, 415, "{answer:?}");
    // What asks before it sends, gets no permission.
    let asks = ["Origin: http://evil.example", "Access-Control-Request-Method: POST"];
    let answer = send(addr, "OPTIONS /api/break", &asks, "");
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None), "{answer:?}");
    let answer = send(addr, "POST /api/break", &[json, "X-Portcullis: 1", &own], &body);
    assert!(!answer.head.to_ascii_lowercase().contains("access-control-"), "{answer:?}");
    // Reads of foreign pages are refused, too, and those under names of this machine are not.
    assert_eq!(send(addr, "GET /api/locks", &["Origin: http://evil.example"], "").status, 403);
    for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:9121"] {
        assert_eq!(send(addr, "GET /api/locks", &[&format!("Host: {host}")], "").status, 200, "{host}");
    }
}

#[test]
fn every_answer_has_the_headers_that_bind_browsers() {
    let (_server, addr) = start(builder());
    for path in ["/", "/metrics", "/healthz", "/api/locks", "/nosuch", "/api/lock"] {
        let answer = get(addr, path);
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
        assert!(answer.header("content-security-policy").unwrap().starts_with("default-src 'none'"), "{path}");
    }
    let page = get(addr, "/");
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("'sha256-") && !policy.contains("unsafe"), "{policy}");
    assert!(page.header("content-type").unwrap().starts_with("text/html") && page.body.contains("<!doctype html>"));
}

#[test]
fn an_address_beyond_loopback_needs_passwords_and_tls() {
    let refused = |configs: &[(&str, &str)]| {
        let builder = configs.iter().fold(TestServer::builder(), |builder, (name, value)| builder.config(name, value));
        builder.try_start().err().map(|error| error.to_string()).unwrap_or_else(|| panic!("{configs:?} is accepted"))
    };
    for address in ["0.0.0.0:0", "[::]:0"] {
        let told = refused(&[("http", address)]);
        assert!(told.starts_with("http: ") && told.contains("needs no password"), "{told}");
        let told = refused(&[("http", address), ("requirepass", "secret")]);
        assert!(told.contains("tls-cert-file"), "{told}");
        let told = refused(&[("http", address), ("requirepass", "secret"), ("tls-cert-file", "nosuch.crt")]);
        assert!(told.contains("TLS cannot be configured"), "{told}");
    }
    let told = refused(&[("http", "127.0.0.1")]);
    assert!(told.contains("host:port"), "{told}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let told = refused(&[("http", &taken.local_addr().unwrap().to_string())]);
    assert!(told.contains("Could not bind"), "{told}");
}

#[test]
fn the_program_says_why_it_does_not_start() {
    let program = env!("CARGO_BIN_EXE_portcullis");
    let run = Command::new(program).args(["serve", "--port", "0", "--http", "0.0.0.0:0"]).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success() && told.contains("needs no password"), "{told}");
}

#[test]
fn the_connections_are_clients_with_a_name() {
    let (server, addr) = start(builder());
    assert_eq!(get(addr, "/metrics").status, 200);
    let list = Talk::to(server.addr()).say("CLIENT LIST");
    let ours: Vec<&str> = list.split("id=").filter(|line| line.contains("name=http")).collect();
    assert!(!ours.is_empty(), "{list}");
    assert!(ours.iter().all(|line| line.contains("addr=http:0 ") && !line.contains("flags=b")), "{list}");
}
