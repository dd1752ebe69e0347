//! What an operator reads in the log: lines with fields, at the level `notice`, and not too many of them.

use std::path::Path;

use crate::common::servers::Server;
use crate::common::talk::{call, until};
use crate::common::wire::Wire;

/// A server that logs in JSON, and a connection of its user.
fn start(args: &[&str]) -> (Server, Wire) {
    let args = [args, &["--log-format", "json", "--requirepass", "secret"]].concat();
    let server = Server::portcullis_with(Path::new(env!("CARGO_BIN_EXE_portcullis")), &args).unwrap();
    let mut wire = Wire::connect(server.addr).unwrap();
    assert_eq!(call(&mut wire, "AUTH secret"), "+OK");
    assert_eq!(call(&mut wire, "CLIENT SETNAME ann"), "+OK");
    (server, wire)
}

/// The lines with this message.
fn lines(server: &Server, message: &str) -> Vec<String> {
    let message = format!("\"message\":\"{message}\"");
    server.log().lines().filter(|line| line.contains(&message)).map(str::to_owned).collect()
}

#[track_caller]
fn has(line: &str, fields: &[&str]) {
    assert!(line.contains("\"level\":\"INFO\""), "{line}");
    fields.iter().for_each(|field| assert!(line.contains(field), "{field} in {line}"));
}

#[test]
fn changes_by_an_operator_are_told_with_who_made_them() {
    let (server, mut wire) = start(&[]);
    assert_eq!(call(&mut wire, "CONFIG SET requirepass other timeout 7"), "+OK");
    let told = lines(&server, "the configuration was changed");
    assert_eq!(told.len(), 1, "{told:?}");
    has(&told[0], &["requirepass=(redacted) timeout=7", "\"name\":\"ann\"", "\"user\":\"default\"", "\"addr\":\"127.0.0.1:"]);
    assert!(!server.log().contains("other"), "{}", server.log());
    assert_eq!(call(&mut wire, "MSET a 1 b 2"), "+OK");
    assert_eq!(call(&mut wire, "FLUSHDB"), "+OK");
    has(&lines(&server, "a database was emptied")[0], &["\"db\":0", "\"keys\":2", "\"name\":\"ann\""]);
    assert_eq!(call(&mut wire, "FLUSHALL"), "+OK");
    has(&lines(&server, "all databases were emptied")[0], &["\"keys\":0"]);
    assert!(call(&mut wire, "CONFIG SET timeout x").starts_with('-'));
    assert_eq!(lines(&server, "the configuration was changed").len(), 1, "nothing was changed");
}

#[test]
fn what_is_refused_is_told_and_cannot_fill_the_disk() {
    let (server, mut wire) = start(&[]);
    let mut stranger = Wire::connect(server.addr).unwrap();
    (0..200).for_each(|_| assert!(call(&mut stranger, "AUTH eve wrong").starts_with("-WRONGPASS")));
    let told = lines(&server, "a login failed");
    assert!(told.len() >= 10 && told.len() < 100, "{} lines", told.len());
    has(&told[0], &["\"user\":\"eve\"", "\"client\":"]);
    assert_eq!(call(&mut wire, "CONFIG SET maxmemory 1"), "+OK");
    assert!(call(&mut wire, "SET a 1").starts_with("-OOM"));
    has(&lines(&server, "a command was refused: maxmemory is used up")[0], &["\"command\":\"set\"", "\"maxmemory\":1"]);
    assert_eq!(call(&mut wire, "CONFIG SET maxmemory 0 maxclients 1"), "+OK");
    let mut refused = Wire::connect(server.addr).unwrap();
    assert!(refused.reply().unwrap().frame.is_error("ERR max number of clients reached"));
    has(&lines(&server, "a connection was refused")[0], &["max number of clients reached", "\"addr\":\"127.0.0.1:"]);
}

#[test]
fn a_slow_script_is_told() {
    let (server, mut wire) = start(&[]);
    // Longer than 10 ms on any machine.
    let script = "local t = 0 for i = 1, 30000000 do t = t + i end return 1";
    wire.queue(&["EVAL", script, "0"]);
    wire.flush().unwrap();
    assert_eq!(wire.reply().unwrap().frame.integer(), Some(1));
    assert_eq!(call(&mut wire, "PING"), "+PONG");
    let told = lines(&server, "a slow command; SLOWLOG GET has its arguments");
    assert_eq!(told.len(), 1, "{}", server.log());
    has(&told[0], &["\"command\":\"EVAL\"", "\"us\":", "\"name\":\"ann\""]);
    assert!(!told[0].contains("local"), "{}", told[0]);
}

#[test]
fn what_happens_to_locks_is_told() {
    let (server, mut ann) = start(&[]);
    let mut eve = Wire::connect(server.addr).unwrap();
    assert_eq!(call(&mut eve, "AUTH secret"), "+OK");
    let token = call(&mut ann, "LOCK.ACQUIRE a ann 600000");
    assert!(call(&mut eve, "LOCK.ACQUIRE b eve 600000").starts_with(':'));
    eve.queue(&["LOCK.ACQUIRE", "a", "eve", "600000", "WAIT", "0"]);
    eve.flush().unwrap();
    until(&mut ann, "LOCK.LIST CONTENDED", "eve");
    assert!(call(&mut ann, "LOCK.ACQUIRE b ann 600000 WAIT 0").starts_with("-DEADLOCK"));
    has(&lines(&server, "a deadlock was refused")[0], &["'ann' waits for 'b' held by 'eve'", "\"name\":\"ann\""]);
    ann.queue(&["LOCK.BREAK", "a", "TOKEN", &token[1..], "REASON", "it hangs\n"]);
    ann.flush().unwrap();
    assert_eq!(ann.reply().unwrap().frame.integer(), Some(1));
    has(
        &lines(&server, "a lock was broken")[0],
        &["\"lock\":\"a\"", "\"owner\":\"ann\"", "\"reason\":\"it hangs\\n\"", &format!("\"token\":{}", &token[1..])],
    );
    assert!(eve.reply().unwrap().frame.integer().is_some(), "the waiter was granted");
    // A lease that ends while another one waits, and one that nobody waits for.
    assert!(call(&mut ann, "LOCK.ACQUIRE c ann 30").starts_with(':'));
    assert!(call(&mut ann, "LOCK.ACQUIRE d ann 30").starts_with(':'));
    assert!(call(&mut ann, "LOCK.ACQUIRE c bob 600000 WAIT 0").starts_with(':'));
    let told = lines(&server, "a lease ended while others waited");
    assert_eq!(told.len(), 1, "{told:?}");
    has(&told[0], &["\"lock\":\"c\"", "\"owner\":\"ann\"", "\"waiters\":1"]);
    (0..3).for_each(|n| assert!(call(&mut eve, &format!("LOCK.ACQUIRE s{n} eve 600000 SESSION")).starts_with(':')));
    drop(eve);
    until(&mut ann, "EXISTS s0 s1 s2", ":0");
    let told = lines(&server, "a session ended with locks");
    assert_eq!(told.len(), 1, "{told:?}");
    has(&told[0], &["\"locks\":3", "\"owner\":\"eve\""]);
}

/// What a client would send to make a line of its own, or to hide one.
const FORGED: &str = "x\n2026-01-01T00:00:00.000000Z  WARN forged by=root\r\n\u{85}\u{2028}\u{1b}[2K\u{8}\u{202e}\0 user=\"a b\"";

#[test]
fn no_client_forges_a_line() {
    let args = ["--enable-debug-command", "yes", "--requirepass", "secret"];
    let server = Server::portcullis_with(Path::new(env!("CARGO_BIN_EXE_portcullis")), &args).unwrap();
    let mut wires: Vec<Wire> = (0..3).map(|_| Wire::connect(server.addr).unwrap()).collect();
    let mut ask = |wire: usize, words: &[&str], is_answered: bool| {
        wires[wire].queue(words);
        wires[wire].flush().unwrap();
        if is_answered {
            let reply = wires[wire].reply().unwrap();
            return String::from_utf8_lossy(&reply.raw).into_owned();
        }
        String::new()
    };
    for wire in 0..3 {
        assert!(ask(wire, &["AUTH", FORGED, FORGED], true).starts_with("-WRONGPASS"));
        assert_eq!(ask(wire, &["AUTH", "secret"], true), "+OK\r\n");
        assert_eq!(ask(wire, &["CLIENT", "SETNAME", "a\"=\\b"], true), "+OK\r\n");
    }
    ask(0, &["EVAL", "redis.log(redis.LOG_WARNING, ARGV[1])", "0", FORGED], true);
    ask(0, &["DEBUG", "LOG", FORGED], true);
    ask(0, &["ACL", "SETUSER", "u", &format!("+get|{FORGED}").replace(' ', "_")], true);
    assert_eq!(ask(0, &["CONFIG", "SET", "tls-ca-cert-dir", FORGED], true), "+OK\r\n");
    ask(0, &[FORGED, FORGED], true);
    // A lock that is broken, a deadlock, a lease that ends while another one waits, and a session that ends with a lock.
    let [first, second] = ["1", "2"].map(|number| format!("{FORGED}{number}"));
    let token = ask(0, &["LOCK.ACQUIRE", &first, &first, "600000"], true);
    ask(1, &["LOCK.ACQUIRE", &second, &second, "600000"], true);
    ask(1, &["LOCK.ACQUIRE", &first, &second, "600000", "WAIT", "0"], false);
    let waits = |server: &Server| {
        let mut wire = Wire::connect(server.addr).unwrap();
        call(&mut wire, "AUTH secret");
        until(&mut wire, "INFO locks", "lock_waiters:1");
    };
    waits(&server);
    assert!(ask(0, &["LOCK.ACQUIRE", &second, &first, "600000", "WAIT", "0"], true).starts_with("-DEADLOCK"));
    ask(0, &["LOCK.BREAK", &first, "TOKEN", token[1..].trim(), "REASON", FORGED], true);
    ask(0, &["LOCK.ACQUIRE", &format!("{FORGED}3"), FORGED, "30"], true);
    assert!(ask(2, &["LOCK.ACQUIRE", &format!("{FORGED}3"), "other", "600000", "SESSION", "WAIT", "0"], true).starts_with(':'));
    assert!(ask(2, &["LOCK.ACQUIRE", &format!("{FORGED}4"), FORGED, "600000", "SESSION"], true).starts_with(':'));
    ask(2, &["QUIT"], true);
    let told = [
        "a login failed",
        "script: x",
        "DEBUG LOG: x",
        "a lock was broken",
        "a deadlock was refused",
        "a session ended with locks",
        "a lease ended while others waited",
        "the configuration was changed",
    ];
    let mut log = String::new();
    for _ in 0..500 {
        log = server.log();
        if told.iter().all(|message| log.contains(message)) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    for message in told {
        let line = log.lines().find(|line| line.contains(message)).unwrap_or_else(|| panic!("{message}: {log}"));
        assert!(line.contains("x\\n2026-01-01T00:00:00.000000Z  WARN forged by=root\\r\\n\\u{85}\\u{2028}\\u{1b}[2K"), "{line}");
        assert!(!message.starts_with("a ") || line.contains("=\""), "a text with blanks is quoted: {line}");
    }
    assert!(log.contains(r#"name="a\"=\\b""#), "{log}");
    for line in log.lines().filter(|line| !line.starts_with("portcullis ")) {
        let (time, rest) = line.split_at(27);
        assert!(time.ends_with('Z') && !time.starts_with("2026-01-01T00:00:00.0"), "{line}");
        assert!(["INFO ", "WARN ", "ERROR "].iter().any(|level| rest.trim_start().starts_with(level)), "{line}");
        assert!(!line.contains(|c: char| c.is_control() || ['\u{2028}', '\u{202e}'].contains(&c)), "{line:?}");
    }
}

#[test]
fn what_clients_have_sent_is_left_out_of_the_log_on_demand() {
    let (server, mut ann) = start(&["--hide-user-data-from-log", "yes"]);
    let token = call(&mut ann, "LOCK.ACQUIRE payroll alice 600000");
    ann.queue(&["LOCK.BREAK", "payroll", "TOKEN", &token[1..], "REASON", "bankrupt"]);
    ann.flush().unwrap();
    assert_eq!(ann.reply().unwrap().frame.integer(), Some(1));
    let told = lines(&server, "a lock was broken");
    let hidden = ["lock", "owner", "reason", "name"].map(|field| format!("\"{field}\":\"(redacted)\""));
    has(&told[0], &hidden.each_ref().map(String::as_str));
    has(&told[0], &[&format!("\"token\":{}", &token[1..]), "\"user\":\"default\""]);
    assert!(call(&mut Wire::connect(server.addr).unwrap(), "AUTH eve wrong").starts_with("-WRONGPASS"));
    has(&lines(&server, "a login failed")[0], &["\"user\":\"(redacted)\""]);
    for text in ["payroll", "alice", "bankrupt", "ann", "eve"] {
        assert!(!server.log().contains(&format!("\"{text}\"")), "{text} in {}", server.log());
    }
    assert_eq!(call(&mut ann, "CONFIG SET hide-user-data-from-log no"), "+OK");
    assert!(call(&mut Wire::connect(server.addr).unwrap(), "AUTH eve wrong").starts_with("-WRONGPASS"));
    has(&lines(&server, "a login failed")[1], &["\"user\":\"eve\""]);
}
