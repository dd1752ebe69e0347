//! The handshake and CLIENT, over the engine.

use portcullis::base::ids::SessionId;
use portcullis::engine::session::SessionFlags;
use portcullis::resp::reply::Protocol;

use crate::bare::Bare;

fn flags(bare: &Bare, id: SessionId) -> SessionFlags {
    bare.engine.sessions()[id].flags
}

/// The value of a field of a CLIENT LIST line.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let found = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {name} in {line}")).trim_end()
}

#[test]
fn ping_echo_and_select() {
    let mut bare = Bare::new();
    let id = bare.connect();
    bare.script(
        id,
        &[
            ("PING", "+PONG"),
            ("ping hello", "$5 hello"),
            ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
            ("ECHO x", "$1 x"),
            ("ECHO", "-ERR wrong number of arguments for 'echo' command"),
            ("SELECT 15", "+OK"),
            ("SELECT 16", "-ERR DB index is out of range"),
            ("SELECT -1", "-ERR DB index is out of range"),
            ("SELECT abc", "-ERR value is not an integer or out of range"),
            ("SELECT 2147483648", "-ERR value is out of range, value must between -2147483648 and 2147483647"),
        ],
    );
    assert_eq!(bare.engine.sessions()[id].db, 15, "a refused SELECT leaves the database");
}

#[test]
fn hello_chooses_the_protocol_and_tells_about_the_server() {
    let mut bare = Bare::new();
    let id = bare.connect();
    let version = "$6 server $5 redis $7 version $5 7.4.2 $5 proto";
    let rest = "$2 id :1 $4 mode $10 standalone $4 role $6 master $7 modules *0";
    bare.script(
        id,
        &[
            ("HELLO", &format!("*14 {version} :2 {rest}")),
            ("HELLO 3", &format!("%7 {version} :3 {rest}")),
            ("GET none", "_"),
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
            ("HELLO 1", "-NOPROTO unsupported protocol version"),
            ("HELLO two", "-ERR Protocol version is not an integer or out of range"),
            ("HELLO 2 NAME", "-ERR Syntax error in HELLO option 'NAME'"),
            ("HELLO 2 AUTH default", "-ERR Syntax error in HELLO option 'AUTH'"),
            ("HELLO 2 SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'"),
            ("HELLO 2 AUTH nobody x SETNAME n", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("GET none", "_"),
            ("CLIENT GETNAME", "_"),
            ("HELLO 2 SETNAME me AUTH default any", &format!("*14 {version} :2 {rest}")),
            ("CLIENT GETNAME", "$2 me"),
            ("GET none", "$-1"),
        ],
    );
    let reply = bare.args(id, &[b"HELLO", b"3", b"SETNAME", b"a b"]);
    assert_eq!(reply, "-ERR Client names cannot contain spaces, newlines or special characters.\r\n");
    assert_eq!(bare.engine.sessions()[id].protocol, Protocol::Resp2);
}

#[test]
fn without_a_password_set_auth_says_so() {
    let mut bare = Bare::new();
    let id = bare.connect();
    bare.script(
        id,
        &[
            (
                "AUTH x",
                "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ),
            ("AUTH default x", "+OK"),
            ("AUTH other x", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("AUTH a b c", "-ERR syntax error"),
            ("AUTH", "-ERR wrong number of arguments for 'auth' command"),
        ],
    );
}

#[test]
fn with_a_password_set_nothing_goes_before_it() {
    let mut bare = Bare::with(|config| config.requirepass = b"secret".to_vec());
    let id = bare.connect();
    bare.script(
        id,
        &[
            ("GET x", "-NOAUTH Authentication required."),
            ("PING", "-NOAUTH Authentication required."),
            ("NONSENSE", "-ERR unknown command 'NONSENSE', with args beginning with:"),
            (
                "HELLO 3",
                "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
            ),
            ("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("AUTH secre", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("AUTH other secret", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("GET x", "-NOAUTH Authentication required."),
            ("AUTH secret", "+OK"),
            ("GET x", "$-1"),
            ("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("GET x", "$-1"),
            ("RESET", "+RESET"),
            ("GET x", "-NOAUTH Authentication required."),
        ],
    );
    assert!(bare.run(id, "HELLO 3 AUTH default secret").starts_with("%7\r\n"));
    bare.script(id, &[("GET x", "_")]);
    let quitting = bare.connect();
    bare.script(quitting, &[("QUIT", "+OK")]);
    assert!(flags(&bare, quitting).contains(SessionFlags::CLOSE_AFTER_REPLY));
}

#[test]
fn reset_puts_everything_back() {
    let mut bare = Bare::new();
    let id = bare.connect3();
    for request in ["SELECT 3", "CLIENT SETNAME me", "CLIENT NO-EVICT ON", "CLIENT NO-TOUCH ON", "CLIENT SETINFO LIB-NAME lib"] {
        assert_eq!(bare.run(id, request), "+OK\r\n");
    }
    bare.run(id, "SUBSCRIBE a b");
    bare.run(id, "PSUBSCRIBE a*");
    bare.run(id, "SSUBSCRIBE s");
    bare.run(id, "CLIENT REPLY OFF");
    bare.script(id, &[("RESET", "+RESET"), ("CLIENT GETNAME", "$-1")]);
    let session = &bare.engine.sessions()[id];
    assert_eq!((session.db, session.protocol, session.subscriptions), (0, Protocol::Resp2, [0; 3]));
    let line = bare.run(id, "CLIENT INFO");
    assert_eq!((field(&line, "flags"), field(&line, "lib-name")), ("N", "lib"), "the library stays known");
    bare.script(id, &[("PUBLISH a x", ":0"), ("SPUBLISH s x", ":0")]);
}

#[test]
fn replies_can_be_switched_off_and_on() {
    let mut bare = Bare::new();
    let id = bare.connect();
    bare.script(
        id,
        &[
            ("CLIENT REPLY SKIP", ""),
            ("PING", ""),
            ("PING", "+PONG"),
            ("CLIENT REPLY SKIP", ""),
            ("CLIENT REPLY ON", "+OK"),
            ("CLIENT REPLY OFF", ""),
            ("PING", ""),
            ("NONSENSE", ""),
            ("CLIENT REPLY SKIP", ""),
            ("PING", ""),
            ("PING", ""),
            ("CLIENT REPLY maybe", ""),
            ("CLIENT REPLY ON", "+OK"),
            ("PING", "+PONG"),
            ("CLIENT REPLY maybe", "-ERR syntax error"),
        ],
    );
}

#[test]
fn names_and_library_are_kept_if_they_can_be_listed() {
    let mut bare = Bare::new();
    let id = bare.connect();
    bare.script(
        id,
        &[
            ("CLIENT GETNAME", "$-1"),
            ("CLIENT SETNAME worker-1", "+OK"),
            ("CLIENT GETNAME", "$8 worker-1"),
            ("CLIENT SETINFO lib-NAME redis-rs", "+OK"),
            ("CLIENT SETINFO LIB-VER 1.0", "+OK"),
            ("CLIENT SETINFO LIB-X 1.0", "-ERR Unrecognized option 'LIB-X'"),
            ("CLIENT SETINFO LIB-VER", "-ERR wrong number of arguments for 'client|setinfo' command"),
            ("CLIENT ID", ":1"),
            ("CLIENT CAPA redirect", "+OK"),
            ("CLIENT NO-TOUCH x", "-ERR syntax error"),
            ("CLIENT NOTHING", "-ERR unknown subcommand 'NOTHING'. Try CLIENT HELP."),
        ],
    );
    for bad in [&b"a b"[..], b"a\nb", b"\x7f", b"caf\xc3\xa9"] {
        let reply = bare.args(id, &[b"CLIENT", b"SETNAME", bad]);
        assert_eq!(reply, "-ERR Client names cannot contain spaces, newlines or special characters.\r\n");
        let reply = bare.args(id, &[b"CLIENT", b"SETINFO", b"Lib-Ver", bad]);
        assert_eq!(reply, "-ERR Lib-Ver cannot contain spaces, newlines or special characters.\r\n");
    }
    let line = bare.run(id, "CLIENT INFO");
    assert_eq!((field(&line, "name"), field(&line, "lib-name"), field(&line, "lib-ver")), ("worker-1", "redis-rs", "1.0"));
    bare.args(id, &[b"CLIENT", b"SETNAME", b""]);
    bare.args(id, &[b"CLIENT", b"SETINFO", b"LIB-VER", b""]);
    let line = bare.run(id, "CLIENT INFO");
    assert_eq!((field(&line, "name"), field(&line, "lib-ver")), ("", ""));
    bare.script(id, &[("CLIENT GETNAME", "$-1")]);
}

#[test]
fn client_list_has_the_fields_of_redis_in_their_order() {
    let mut bare = Bare::new();
    let first = bare.connect();
    bare.pass(2_500);
    let second = bare.connect3();
    bare.run(second, "SELECT 4");
    bare.run(second, "SUBSCRIBE a b");
    bare.run(second, "PSUBSCRIBE p*");
    bare.pass(1_600);
    let listed = bare.run(first, "CLIENT LIST");
    let lines: Vec<&str> = listed.lines().skip(1).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 2);
    let names: Vec<&str> = lines[0].split(' ').filter_map(|field| field.split('=').next()).collect();
    let wanted = "id addr laddr fd name age idle flags db sub psub ssub multi watch qbuf qbuf-free argv-mem multi-mem rbs rbp obl oll \
                  omem tot-mem events cmd user redir resp lib-name lib-ver io-thread tot-net-in tot-net-out tot-cmds";
    assert_eq!(names.join(" "), wanted);
    let shown = |line, names: &[&str]| names.iter().map(|name| field(line, name)).collect::<Vec<_>>().join(" ");
    let some = ["id", "addr", "age", "idle", "flags", "db", "sub", "psub", "cmd", "resp", "tot-cmds"];
    assert_eq!(shown(lines[0], &some), "1 127.0.0.1:40001 4 0 N 0 0 0 client|list 2 0");
    assert_eq!(shown(lines[1], &some), "2 127.0.0.1:40002 1 1 P 4 2 1 psubscribe 3 4");

    let ids = |reply: &str| {
        reply.lines().filter(|line| line.starts_with("id=")).map(|line| field(line, "id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&bare.run(first, "CLIENT LIST TYPE pubsub")), ["2"]);
    assert_eq!(ids(&bare.run(first, "CLIENT LIST TYPE NORMAL")), ["1"]);
    assert!(ids(&bare.run(first, "CLIENT LIST TYPE replica")).is_empty());
    assert_eq!(ids(&bare.run(first, "CLIENT LIST ID 2 77 1 2")), ["2", "1", "2"]);
    bare.script(
        first,
        &[
            ("CLIENT LIST TYPE odd", "-ERR Unknown client type 'odd'"),
            ("CLIENT LIST ID", "-ERR syntax error"),
            ("CLIENT LIST ID 1 x", "-ERR Invalid client ID"),
            ("CLIENT LIST ALL", "-ERR syntax error"),
        ],
    );
    assert!(bare.run(second, "CLIENT INFO").starts_with('='), "a verbatim text on RESP3");
}

#[test]
fn client_kill_closes_whom_its_filters_let_through() {
    let mut bare = Bare::new();
    let killer = bare.connect();
    let others: Vec<SessionId> = (0..5).map(|_| bare.connect()).collect();
    bare.script(
        killer,
        &[
            ("CLIENT KILL", "-ERR wrong number of arguments for 'client|kill' command"),
            ("CLIENT KILL 1.2.3.4:5", "-ERR No such client"),
            ("CLIENT KILL ID 0", "-ERR client-id should be greater than 0"),
            ("CLIENT KILL ID x", "-ERR client-id should be greater than 0"),
            ("CLIENT KILL TYPE odd", "-ERR Unknown client type 'odd'"),
            ("CLIENT KILL USER odd", "-ERR No such user 'odd'"),
            ("CLIENT KILL MAXAGE x", "-ERR maxage is not an integer or out of range"),
            ("CLIENT KILL MAXAGE 0", "-ERR maxage should be greater than 0"),
            ("CLIENT KILL SKIPME perhaps", "-ERR syntax error"),
            ("CLIENT KILL ID 2 ADDR", "-ERR syntax error"),
            ("CLIENT KILL ODD 2", "-ERR syntax error"),
        ],
    );
    let mut dirty = Vec::new();
    bare.engine.take_pending_writes(&mut dirty);
    assert!(dirty.is_empty(), "a refused KILL closes nobody");

    bare.run(others[1], "SUBSCRIBE c");
    bare.script(
        killer,
        &[
            ("CLIENT KILL 127.0.0.1:40002", "+OK"),
            ("CLIENT KILL 127.0.0.1:40002", "-ERR No such client"),
            ("CLIENT KILL TYPE pubsub", ":1"),
            ("CLIENT KILL ID 4 ADDR 127.0.0.1:40001", ":0"),
            ("CLIENT KILL ID 4 ADDR 127.0.0.1:40004 LADDR 127.0.0.1:6379 USER default", ":1"),
            ("CLIENT KILL MAXAGE 10", ":0"),
        ],
    );
    bare.pass(10_000);
    let late = bare.connect();
    bare.script(killer, &[("CLIENT KILL MAXAGE 10", ":2")]);
    bare.engine.take_pending_writes(&mut dirty);
    assert_eq!(dirty, others);
    assert!(others.iter().all(|&id| flags(&bare, id).contains(SessionFlags::CLOSE_NOW)));
    assert!(!flags(&bare, late).contains(SessionFlags::CLOSE_NOW));

    dirty.clear();
    bare.script(killer, &[("CLIENT KILL SKIPME no LADDR 127.0.0.1:6379", ":2")]);
    bare.engine.take_pending_writes(&mut dirty);
    assert_eq!(
        flags(&bare, killer) & (SessionFlags::CLOSE_NOW | SessionFlags::CLOSE_AFTER_REPLY),
        SessionFlags::CLOSE_AFTER_REPLY
    );
    assert_eq!(dirty, [killer, late]);
}

#[test]
fn help_is_a_list_of_statuses() {
    let mut bare = Bare::new();
    let id = bare.connect();
    for container in ["client", "PUBSUB"] {
        let reply = bare.run(id, &format!("{container} HELP"));
        let lines: Vec<&str> = reply.lines().collect();
        assert_eq!(lines[0], format!("*{}", lines.len() - 1));
        let name = container.to_uppercase();
        assert_eq!(lines[1], format!("+{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
        assert_eq!(&lines[lines.len() - 2..], ["+HELP", "+    Print this help."]);
    }
}
