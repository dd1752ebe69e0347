//! Users and their permissions: over the engine, and over TCP where files, closed connections and the whole program matter.

use std::path::{Path, PathBuf};

use portcullis::base::ids::SessionId;
use portcullis::commands;
use portcullis::engine::command::{Command, Flags};
use portcullis::engine::session::SessionFlags;
use portcullis::engine::users::file::UsersFile;

use crate::bare::Bare;
use crate::common::scenes::play_here;
use crate::common::servers::Server;
use crate::common::wire::{Frame, Wire};

const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.";
const NO_KEY: &str = "-NOPERM No permissions to access a key";
const NO_CHANNEL: &str = "-NOPERM No permissions to access a channel";

const CHANGED: &str = "-NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
                       is no longer allowed for the following reason: no permission to execute the ";

fn no_command(user: &str, command: &str) -> String {
    format!("-NOPERM User {user} has no permissions to run the '{command}' command")
}

/// An engine with a user. Returns a session of this user, and one that may do everything.
fn with_user(name: &str, rules: &str) -> (Bare, SessionId, SessionId) {
    let mut bare = Bare::new();
    let root = bare.connect();
    let id = bare.connect();
    bare.script(root, &[(&format!("ACL SETUSER {name} on >pw {rules}"), "+OK")]);
    bare.script(id, &[(&format!("AUTH {name} pw"), "+OK")]);
    (bare, root, id)
}

fn flags(bare: &Bare, id: SessionId) -> SessionFlags {
    bare.engine.sessions()[id].flags
}

#[test]
fn a_destination_without_sources_needs_its_permission_too() {
    play_here(
        "A: ACL SETUSER ann on nopass ~x* +pfmerge => +OK
         B: AUTH ann x => +OK
         B: PFMERGE y => -NOPERM*
         B: PFMERGE x => +OK
         A: EXISTS y x => :1",
    );
}

#[test]
fn logins_need_the_right_pair_of_an_enabled_user() {
    let mut bare = Bare::new();
    let root = bare.connect();
    let id = bare.connect();
    bare.script(
        root,
        &[("ACL SETUSER bob >pw ~* +@all", "+OK"), ("ACL WHOAMI", "$7 default"), ("ACL USERS", "*2 $3 bob $7 default")],
    );
    bare.script(id, &[("AUTH bob pw", WRONGPASS), ("ACL WHOAMI", "$7 default")]);
    bare.script(root, &[("ACL SETUSER bob on", "+OK")]);
    bare.script(
        id,
        &[
            ("AUTH bob no", WRONGPASS),
            ("AUTH nobody pw", WRONGPASS),
            ("AUTH bob pw", "+OK"),
            ("ACL WHOAMI", "$3 bob"),
            ("AUTH default anything", "+OK"),
            ("ACL WHOAMI", "$7 default"),
            ("HELLO 3 AUTH bob no", WRONGPASS),
        ],
    );
    assert!(bare.run(id, "HELLO 3 AUTH bob pw SETNAME me").starts_with("%7\r\n"));
    bare.script(id, &[("ACL WHOAMI", "$3 bob"), ("CLIENT GETNAME", "$2 me"), ("RESET", "+RESET"), ("ACL WHOAMI", "$7 default")]);
}

#[test]
fn a_default_user_with_a_password_lets_nobody_in_without_it() {
    let mut bare = Bare::new();
    let root = bare.connect();
    bare.script(root, &[("ACL SETUSER default resetpass >pw", "+OK"), ("GET k", "$-1")]);
    let id = bare.connect();
    let hello = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
                 option can be used to authenticate the client and select the RESP protocol version at the same time";
    bare.script(
        id,
        &[
            ("GET k", "-NOAUTH Authentication required."),
            ("ACL WHOAMI", "-NOAUTH Authentication required."),
            ("HELLO 3", hello),
            ("AUTH no", WRONGPASS),
            ("AUTH pw", "+OK"),
            ("GET k", "$-1"),
            ("RESET", "+RESET"),
            ("GET k", "-NOAUTH Authentication required."),
        ],
    );
    bare.script(root, &[("ACL SETUSER default nopass", "+OK")]);
    bare.script(id, &[("GET k", "$-1")]);
    bare.script(root, &[("ACL SETUSER default off", "+OK"), ("GET k", "$-1")]);
    bare.script(id, &[("GET k", "-NOAUTH Authentication required."), ("AUTH default x", WRONGPASS)]);
}

#[test]
fn requirepass_is_the_default_users_only_password() {
    let mut bare = Bare::with(|config| config.requirepass = b"first".to_vec());
    let root = bare.connect();
    let hash = |bare: &mut Bare| bare.run(root, "ACL LIST").split('#').nth(1).map(|rest| rest[..8].to_owned());
    bare.script(root, &[("GET k", "-NOAUTH Authentication required."), ("AUTH first", "+OK")]);
    assert_eq!(hash(&mut bare).as_deref(), Some("a7937b64"));
    bare.script(root, &[("CONFIG SET requirepass second", "+OK"), ("AUTH first", WRONGPASS), ("AUTH second", "+OK")]);
    bare.script(root, &[("ACL SETUSER default >third", "+OK"), ("AUTH third", "+OK"), ("AUTH second", "+OK")]);
    // Setting the same value again is no change, as in Redis.
    bare.script(root, &[("CONFIG SET requirepass second", "+OK"), ("AUTH third", "+OK")]);
    bare.args(root, &[b"CONFIG", b"SET", b"requirepass", b""]);
    assert_eq!(hash(&mut bare), None);
    let said = bare.run(root, "AUTH third");
    assert!(said.starts_with("-ERR AUTH <password> called without any password configured for the default user."), "{said}");
}

#[test]
fn commands_keys_and_channels_are_denied_by_rule() {
    let (mut bare, _, id) =
        with_user("bob", "~b* %R~r* &b* +get +set +mget +config|get +publish +subscribe +psubscribe +select|0");
    bare.script(
        id,
        &[
            ("SET b1 v", "+OK"),
            ("GET b1", "$1 v"),
            ("GET r1", "$-1"),
            ("SET r1 v", NO_KEY),
            ("GET x", NO_KEY),
            ("MGET b1 x", NO_KEY),
            ("DEL b1", &no_command("bob", "del")),
            ("CONFIG SET timeout 1", &no_command("bob", "config|set")),
            ("CONFIG GET timeout", "*2 $7 timeout $1 0"),
            ("SELECT 0", "+OK"),
            ("SELECT 1", &no_command("bob", "select")),
            ("PUBLISH b m", ":0"),
            ("PUBLISH c m", NO_CHANNEL),
            ("SUBSCRIBE b c", NO_CHANNEL),
            ("PSUBSCRIBE b?", NO_CHANNEL),
            ("PSUBSCRIBE b*", "*3 $10 psubscribe $2 b* :1"),
            ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with:"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
        ],
    );
}

#[test]
fn scripts_may_do_what_their_user_may() {
    let (mut bare, _, id) = with_user("bob", "~b* &b* +eval +get +publish +script +function|load +fcall");
    let eval = |bare: &mut Bare, script: &str| bare.args(id, &[b"EVAL", script.as_bytes(), b"0"]);
    assert_eq!(eval(&mut bare, "return redis.call('get', 'b1')"), "$-1\r\n");
    let key = eval(&mut bare, "return redis.call('get', 'x')");
    assert!(key.starts_with("-ERR ACL failure in script: No permissions to access a key script: "), "{key}");
    let command = eval(&mut bare, "return redis.call('set', 'b1', 'v')");
    assert!(
        command.starts_with("-ERR ACL failure in script: User bob has no permissions to run the 'set' command script: "),
        "{command}"
    );
    assert_eq!(
        eval(&mut bare, "return redis.pcall('publish', 'c', 'm')"),
        "-ERR ACL failure in script: No permissions to access a channel\r\n"
    );
    for (call, permitted) in [
        ("'get', 'b'", 1),
        ("'get', 'x'", 0),
        ("'set', 'b', 'v'", 0),
        ("'publish', 'b', 'm'", 1),
        ("'publish', 'c', 'm'", 0),
        ("'script', 'load', 'x'", 1),
        ("'config', 'get', 'x'", 0),
        ("'get'", 1),
        ("'get', 1", 0),
    ] {
        let script = format!("return redis.acl_check_cmd({call}) and 1 or 0");
        assert_eq!(eval(&mut bare, &script), format!(":{permitted}\r\n"), "{call}");
    }
    let unknown = eval(&mut bare, "return redis.acl_check_cmd('nosuch')");
    assert!(unknown.contains("Invalid command passed to redis.acl_check_cmd()"), "{unknown}");

    let library = "#!lua name=l\nredis.register_function('f', function(k) return redis.call('get', k[1] or 'x') end)";
    assert_eq!(bare.args(id, &[b"FUNCTION", b"LOAD", library.as_bytes()]), "$1\r\nl\r\n");
    bare.script(id, &[("FCALL f 1 b1", "$-1"), ("FCALL f 1 x", NO_KEY)]);
    let inside = bare.run(id, "FCALL f 0");
    assert!(inside.starts_with("-ERR ACL failure in script: No permissions to access a key"), "{inside}");
}

/// Redis up to 7.2.15 and 7.4.10 looks for keys in another way than its commands do: redis/redis#15478, valkey-io/valkey#3971.
#[test]
fn words_of_options_hide_no_key() {
    let (mut bare, root, id) = with_user("bob", "~mine ~mine2 ~STREAMS ~BY ~GET ~LIMIT +@all");
    bare.script(
        root,
        &[
            ("XADD secret 1-1 a b", "$3 1-1"),
            ("XGROUP CREATE secret g 0", "+OK"),
            ("XGROUP CREATE STREAMS g 0 MKSTREAM", "+OK"),
            ("SADD mine 1", ":1"),
            ("GEOADD places 13 38 a", ":1"),
            ("COPY places mine2", ":1"),
        ],
    );
    let requests = [
        "XREADGROUP NOACK GROUP g STREAMS STREAMS secret >",
        "XREADGROUP GROUP STREAMS STREAMS STREAMS secret 0",
        "XREADGROUP COUNT 1 GROUP g STREAMS STREAMS STREAMS secret > >",
        "XREAD STREAMS STREAMS secret 0 0",
        "SORT mine STORE BY STORE secret",
        "SORT mine STORE GET STORE secret",
        "SORT mine STORE LIMIT STORE secret LIMIT 0 1",
        "GEORADIUS mine2 13 38 1 km STORE mine STORE secret",
        "GEORADIUS mine2 13 38 1 km STOREDIST mine STORE secret",
        "GEORADIUSBYMEMBER mine2 a 1 km STORE mine STOREDIST secret",
        "GEORADIUSBYMEMBER BY a 1 km STORE mine STORE secret",
    ];
    for request in requests {
        assert_eq!(bare.run(id, request), format!("{NO_KEY}\r\n"), "{request}");
        bare.script(id, &[("MULTI", "+OK")]);
        assert_eq!(bare.run(id, request), format!("{NO_KEY}\r\n"), "{request}");
        assert!(bare.run(id, "EXEC").starts_with("-EXECABORT"), "{request}");
        let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
        let script = [b"EVAL".as_slice(), b"return redis.call(unpack(ARGV))", b"0"];
        let reply = bare.args(id, &[&script, &words[..]].concat());
        assert!(reply.starts_with("-ERR ACL failure in script: No permissions to access a key"), "{request}: {reply}");
        let dry = bare.run(root, &format!("ACL DRYRUN bob {request}"));
        assert!(dry.contains("has no permissions to access the '"), "{request}: {dry}");
    }
    bare.script(root, &[("TYPE secret", "+stream"), ("XPENDING secret g", "*4 :0 $-1 $-1 *-1")]);
    for request in
        ["SORT mine STORE BY", "SORT mine STORE secret STORE GET", "GEORADIUS mine2 13 38 1 km STORE secret STORE mine"]
    {
        assert_eq!(bare.run(id, request), ":1\r\n", "{request}");
    }
}

/// Whoever may only write a key could guess its value, or read it, with these.
#[test]
fn what_tells_of_a_value_takes_the_permission_to_read() {
    let (mut bare, root, id) = with_user("bob", "%W~* +@all");
    bare.script(root, &[("SET k v", "+OK"), ("XADD s 1-1 a b", "$3 1-1"), ("XGROUP CREATE s g 0", "+OK")]);
    for request in [
        "SET k x IFEQ v",
        "SET k x IFNE v",
        "SET k x GET",
        "SET k x XX IFEQ",
        "DELEX k IFEQ v",
        "DELEX k IFNE x",
        "DELIFEQ k v",
        "XCLAIM s g c 0 1-1 FORCE",
        "XAUTOCLAIM s g c 0 0",
    ] {
        let refused = if request.ends_with("XX IFEQ") { "-ERR syntax error" } else { NO_KEY };
        bare.script(id, &[(request, refused)]);
    }
    bare.script(id, &[("SET k get", "+OK"), ("SET k x NX", "$-1"), ("SET k IFEQ XX", "+OK"), ("DELEX k", ":1")]);
    let (mut bare, _, id) = with_user("bob", "~* +@all");
    bare.script(id, &[("SET k GET", "+OK"), ("SET k x IFEQ GET", "+OK"), ("SET k NX IFEQ x", "+OK"), ("DELIFEQ k NX", ":1")]);
}

/// The shortest request for a row, with arguments that are keys and channels of no user.
fn request_for(container: Option<&'static Command>, row: &'static Command) -> Vec<Vec<u8>> {
    let mut args: Vec<Vec<u8>> = container.into_iter().chain([row]).map(|row| row.name.as_bytes().to_vec()).collect();
    while args.len() < row.arity.unsigned_abs() as usize {
        args.push(b"1".to_vec());
    }
    args
}

/// Every row that can be called. Containers do nothing by themselves.
fn rows() -> impl Iterator<Item = (Option<&'static Command>, &'static Command)> {
    commands::all().flat_map(|row| {
        let own = (row.subcommands.is_empty() || row.takes(1)).then_some((None, row));
        own.into_iter().chain(row.subcommands.iter().map(move |sub| (Some(row), sub)))
    })
}

#[test]
fn no_command_is_reachable_that_is_not_allowed() {
    let (mut bare, root, id) = with_user("bob", "allkeys allchannels -@all +eval +evalsha +fcall +multi +exec +discard");
    let library: &[u8] = b"#!lua name=l\nredis.register_function('f', function(_, a) return redis.pcall(unpack(a)) end)";
    assert_eq!(bare.args(root, &[b"FUNCTION", b"LOAD", library]), "$1\r\nl\r\n");
    let mut denied = 0;
    for (container, row) in rows() {
        let name = commands::full_name(row);
        if row.flags.contains(Flags::NO_AUTH) || ["eval", "evalsha", "fcall", "multi", "exec", "discard"].contains(&&*name) {
            continue;
        }
        let request = request_for(container, row);
        let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        let keyspace = bare.engine.keyspace().changes.count;
        assert_eq!(bare.args(id, &args), format!("{}\r\n", no_command("bob", &name)), "{name}");
        assert_eq!(bare.run(root, &format!("ACL DRYRUN bob {}", words(&args))), {
            let text = format!("User bob has no permissions to run the '{name}' command");
            format!("${}\r\n{text}\r\n", text.len())
        });
        // In a script the error says that the user may not call the command, or that no script may.
        for call in [vec![b"EVAL".as_slice(), b"return redis.pcall(unpack(ARGV))", b"0"], vec![b"FCALL", b"f", b"0"]] {
            let said = bare.args(id, &[call.as_slice(), &args].concat());
            let forbidden =
                said.starts_with(&format!("-ERR ACL failure in script: User bob has no permissions to run the '{name}'"));
            let noscript = row.flags.contains(Flags::NOSCRIPT) && said.starts_with("-ERR This Redis command is not allowed from");
            assert!(forbidden || noscript, "{name}: {said}");
        }
        // A transaction with a refused command does not run.
        assert_eq!(bare.run(id, "MULTI"), "+OK\r\n");
        let said = bare.args(id, &args);
        // A server without replication has no commands for it.
        let refused = said.contains("not allowed inside a transaction") || said.starts_with("-ERR unknown command ");
        let not_in_multi = row.flags.contains(Flags::NO_MULTI) && refused;
        assert!(not_in_multi || said == format!("{}\r\n", no_command("bob", &name)), "{name}: {said}");
        assert!(bare.run(id, "EXEC").starts_with("-EXECABORT"), "{name}");
        // A command that was queued while it was allowed does not run either.
        if !row.flags.contains(Flags::NO_MULTI) && !["watch"].contains(&&*name) {
            bare.script(root, &[(&format!("ACL SETUSER bob +{name}"), "+OK")]);
            assert_eq!(bare.run(id, "MULTI"), "+OK\r\n");
            assert_eq!(bare.args(id, &args), "+QUEUED\r\n", "{name}");
            bare.script(root, &[(&format!("ACL SETUSER bob -{name}"), "+OK")]);
            assert_eq!(bare.run(id, "EXEC"), format!("*1\r\n{CHANGED}command or subcommand\r\n"), "{name}");
        }
        assert_eq!(bare.engine.keyspace().changes.count, keyspace, "{name} changed something");
        denied += 1;
    }
    assert!(denied > 150, "{denied} rows were tried");
}

fn words(args: &[&[u8]]) -> String {
    String::from_utf8_lossy(&args.join(&b' ')).into_owned()
}

#[test]
fn each_allowed_command_alone_is_allowed_and_no_other() {
    let mut bare = Bare::new();
    let root = bare.connect();
    for (container, row) in rows() {
        let name = commands::full_name(row);
        bare.script(root, &[(&format!("ACL SETUSER one reset on nopass allkeys allchannels +{name}"), "+OK")]);
        let args = request_for(container, row);
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        bare.script(root, &[(&format!("ACL DRYRUN one {}", words(&args)), "+OK")]);
        let other = if name == "get" { "strlen" } else { "get" };
        let denied = bare.run(root, &format!("ACL DRYRUN one {other} k"));
        assert!(denied.contains("has no permissions to run"), "{name}");
    }
}

#[test]
fn rules_that_change_hold_at_once_for_who_is_connected() {
    let (mut bare, root, id) = with_user("bob", "~* &* +@all");
    assert!(flags(&bare, id).contains(SessionFlags::UNRESTRICTED));
    bare.script(id, &[("GET k", "$-1")]);
    bare.script(root, &[("ACL SETUSER bob -get", "+OK")]);
    bare.script(id, &[("GET k", &no_command("bob", "get")), ("SET k v", "+OK")]);
    bare.script(root, &[("ACL SETUSER bob +get resetkeys ~x", "+OK")]);
    bare.script(id, &[("GET k", NO_KEY), ("GET x", "$-1")]);
    // A user that is logged in stays so when it can no longer log in.
    bare.script(root, &[("ACL SETUSER bob off allkeys", "+OK")]);
    bare.script(id, &[("GET k", "$1 v"), ("AUTH bob pw", WRONGPASS), ("ACL WHOAMI", "$3 bob")]);
    bare.script(root, &[("ACL SETUSER default -@all +acl", "+OK"), ("GET k", &no_command("default", "get"))]);
}

#[test]
fn a_transaction_is_checked_when_it_is_queued_and_when_it_runs() {
    let (mut bare, root, id) = with_user("bob", "~b* ~c* &b* &c* +get +set +publish +multi +exec");
    bare.script(
        id,
        &[
            ("MULTI", "+OK"),
            ("SET b 1", "+QUEUED"),
            ("GET x", NO_KEY),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
            ("GET b", "$-1"),
            ("MULTI", "+OK"),
            ("SET b 1", "+QUEUED"),
            ("SET c 1", "+QUEUED"),
            ("PUBLISH b m", "+QUEUED"),
            ("PUBLISH c m", "+QUEUED"),
            ("GET b", "+QUEUED"),
        ],
    );
    bare.script(root, &[("ACL SETUSER bob resetkeys ~b* resetchannels &b* -get", "+OK"), ("ACL LOG RESET", "+OK")]);
    let changed = CHANGED.split(" no permission to").next().expect("the text");
    bare.script(
        id,
        &[(
            "EXEC",
            &format!(
                "*5 +OK {changed} no permission to touch the specified keys :0 {changed} no permission to access one of the channels \
                 used as arguments {changed} no permission to execute the command or subcommand"
            ),
        )],
    );
    let logged: Vec<_> = log(&mut bare, root, "ACL LOG").iter().map(|entry| [3, 5, 7].map(|at| entry[at].clone())).collect();
    assert_eq!(logged, [["command", "multi", "get"], ["channel", "multi", "c"], ["key", "multi", "c"]]);
    // Without the right to EXEC, a queued transaction cannot run.
    bare.script(root, &[("ACL SETUSER bob -exec", "+OK")]);
    let refused = no_command("bob", "exec").replace("-NOPERM", "-EXECABORT Transaction discarded because of: NOPERM");
    bare.script(id, &[("MULTI", "+OK"), ("SET b 2", "+QUEUED"), ("EXEC", &refused), ("EXEC", &refused)]);
}

#[test]
fn a_request_that_waited_is_checked_again_when_it_is_served() {
    let (mut bare, root, id) = with_user("bob", "~* +blpop +brpop");
    let other = bare.connect();
    bare.script(other, &[("AUTH bob pw", "+OK")]);
    assert_eq!((bare.run(id, "BLPOP l 0"), bare.run(other, "BRPOP l 0")), (String::new(), String::new()));
    bare.script(root, &[("ACL SETUSER bob -blpop", "+OK"), ("RPUSH l a", ":1")]);
    assert_eq!(bare.take(id), format!("{}\r\n", no_command("bob", "blpop")));
    assert_eq!(bare.take(other), "*2\r\n$1\r\nl\r\n$1\r\na\r\n");
    // A waiter whose user is deleted gets nothing, and takes nothing from others.
    assert_eq!(bare.run(other, "BRPOP l 0"), "");
    bare.script(root, &[("ACL DELUSER bob", ":1"), ("RPUSH l b", ":1"), ("LLEN l", ":1")]);
    assert!(flags(&bare, other).contains(SessionFlags::CLOSE_NOW) && bare.take(other).is_empty());
}

#[test]
fn reading_every_key_takes_one_selector_that_allows_the_command_and_all_keys() {
    for (rules, allowed) in [
        ("~* +get", true),
        ("%R~* +get", true),
        ("%RW~* +get", true),
        ("%W~* ~k* +get", false),
        ("~k* +get", false),
        ("~* -@all", false),
        ("~k* +get (~* +set)", false),
        ("~k* +get (%R~* +get)", true),
    ] {
        let (bare, _, id) = with_user("bob", rules);
        let args: [&[u8]; 2] = [b"get", b"k"];
        let row = commands::table().named(&args).expect("a row");
        assert_eq!(bare.engine.permits_reading_every_key(id, row, &args), allowed, "{rules}");
    }
}

#[test]
fn a_user_that_removes_itself_in_a_transaction_does_no_more_in_it() {
    let (mut bare, _, id) = with_user("bob", "~* &* +@all");
    bare.script(
        id,
        &[("MULTI", "+OK"), ("ACL SETUSER default >pw", "+QUEUED"), ("ACL DELUSER bob", "+QUEUED"), ("SET k v", "+QUEUED")],
    );
    assert_eq!(bare.run(id, "EXEC"), format!("*3\r\n+OK\r\n:1\r\n{CHANGED}command or subcommand\r\n"));
}

#[test]
fn a_user_that_goes_takes_its_connections_along() {
    let (mut bare, root, id) = with_user("bob", "~* &* +@all");
    let own = bare.connect();
    bare.script(own, &[("AUTH bob pw", "+OK")]);
    bare.script(
        root,
        &[
            ("ACL DELUSER default bob", "-ERR The 'default' user cannot be removed"),
            ("ACL DELUSER nobody", ":0"),
            ("ACL GETUSER bob nosuch", "-ERR wrong number of arguments for 'acl|getuser' command"),
        ],
    );
    bare.script(own, &[("ACL DELUSER nobody bob", ":1")]);
    assert!(flags(&bare, own).contains(SessionFlags::CLOSE_AFTER_REPLY));
    assert!(flags(&bare, id).contains(SessionFlags::CLOSE_NOW));
    assert!(!flags(&bare, root).intersects(SessionFlags::CLOSE_NOW | SessionFlags::CLOSE_AFTER_REPLY));
    bare.script(root, &[("ACL GETUSER bob", "$-1"), ("ACL LIST", "*1 $51 user default on nopass sanitize-payload ~* &* +@all")]);
}

#[test]
fn who_listens_to_what_is_revoked_is_disconnected() {
    let listeners = ["SUBSCRIBE a1", "PSUBSCRIBE a*", "SSUBSCRIBE a1", "SUBSCRIBE b1"];
    // Rules, and which of the four clients they close.
    for (rules, closed) in [
        ("&*", [false; 4]),
        ("resetchannels &a* &b*", [false; 4]),
        ("resetchannels &b*", [true, true, true, false]),
        ("resetchannels &a1 &b1", [false, true, false, false]),
        ("resetchannels", [true; 4]),
        ("resetchannels (&a* +@all) (&b1)", [false; 4]),
    ] {
        let mut bare = Bare::new();
        let root = bare.connect();
        bare.script(root, &[("ACL SETUSER bob on nopass +@all &a* &b*", "+OK")]);
        let ids = listeners.map(|request| {
            let id = bare.connect();
            bare.script(id, &[("AUTH bob x", "+OK")]);
            bare.run(id, request);
            id
        });
        let other = bare.connect();
        bare.run(other, "SUBSCRIBE a1");
        let request = format!("ACL SETUSER bob {rules}");
        let args: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
        assert_eq!(bare.args(root, &args), "+OK\r\n");
        assert_eq!(ids.map(|id| flags(&bare, id).contains(SessionFlags::CLOSE_NOW)), closed, "{rules}");
        assert!(!flags(&bare, other).contains(SessionFlags::CLOSE_NOW), "another user's client stays");
    }
}

#[test]
fn a_user_is_described_in_both_protocols() {
    let (mut bare, root, _) = with_user("bob", "~b* %R~r* resetchannels &c +get -@read (+set ~s)");
    let hash = "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
    let rest = format!(
        "$9 passwords *1 $64 {hash} $8 commands $17 -@all +get -@read $4 keys $9 ~b* %R~r* $8 channels $2 &c $9 selectors"
    );
    let two = format!(
        "*12 $5 flags *2 $2 on $16 sanitize-payload {rest} *1 *6 $8 commands $10 -@all +set $4 keys $2 ~s $8 channels $0"
    );
    let three =
        format!("%6 $5 flags ~2 $2 on $16 sanitize-payload {rest} *1 %3 $8 commands $10 -@all +set $4 keys $2 ~s $8 channels $0");
    bare.script(root, &[("ACL GETUSER bob", &two), ("ACL GETUSER nobody", "$-1")]);
    bare.run(root, "HELLO 3");
    bare.script(root, &[("ACL GETUSER bob", &three), ("ACL GETUSER nobody", "_")]);
}

#[test]
fn categories_list_their_commands() {
    let mut bare = Bare::new();
    let id = bare.connect();
    assert!(bare.run(id, "ACL CAT").starts_with("*23\r\n$8\r\nkeyspace\r\n$4\r\nread\r\n"));
    let admin = bare.run(id, "ACL CAT Admin");
    assert!(admin.contains("config|set") && admin.contains("acl|setuser") && !admin.contains("acl|whoami"));
    bare.script(
        id,
        &[
            ("ACL CAT nosuch", "-ERR Unknown category 'nosuch'"),
            ("ACL CAT a b", "-ERR unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP."),
            ("ACL NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try ACL HELP."),
            ("ACL LIST x", "-ERR wrong number of arguments for 'acl|list' command"),
        ],
    );
    assert!(bare.run(id, "ACL HELP").starts_with("*29\r\n+ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n"));
}

#[test]
fn passwords_are_generated_with_as_many_bits_as_wanted() {
    let mut bare = Bare::new();
    let id = bare.connect();
    let mut generate = |request: &str| bare.run(id, request).split("\r\n").nth(1).unwrap_or_default().to_owned();
    let (one, two) = (generate("ACL GENPASS"), generate("ACL GENPASS"));
    assert!(one.len() == 64 && one != two && one.bytes().all(|b| b.is_ascii_hexdigit()));
    assert_eq!(["1", "4", "5", "4096"].map(|bits| generate(&format!("ACL GENPASS {bits}")).len()), [1, 1, 2, 1024]);
    let bits = "-ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096";
    bare.script(
        id,
        &[("ACL GENPASS 0", bits), ("ACL GENPASS 4097", bits), ("ACL GENPASS x", "-ERR value is not an integer or out of range")],
    );
    bare.engine.set_entropy(Box::new(|bytes| {
        bytes.fill(0xab);
        true
    }));
    bare.script(id, &[("ACL GENPASS 20", "$5 ababa")]);
    bare.engine.set_entropy(Box::new(|_| false));
    bare.script(id, &[("ACL GENPASS", "-ERR The system provides no random bytes")]);
}

/// The entries of ACL LOG, as names and values in turn.
fn log(bare: &mut Bare, root: SessionId, request: &str) -> Vec<Vec<String>> {
    let reply = bare.run(root, request);
    let mut entries: Vec<Vec<String>> = Vec::new();
    for line in reply.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with(['$', '*'])) {
        if line == "count" {
            entries.push(Vec::new());
        }
        entries.last_mut().expect("an entry begins with its count").push(line.to_owned());
    }
    entries
}

#[test]
fn what_is_denied_is_logged_and_counted() {
    let (mut bare, root, id) = with_user("bob", "~b* &b* +get +eval +publish");
    bare.script(root, &[("ACL LOG", "*0")]);
    bare.run(id, "SET b v");
    bare.run(id, "GET x");
    bare.pass(1500);
    bare.run(id, "GET x");
    bare.run(id, "PUBLISH c m");
    bare.args(id, &[b"EVAL", b"return redis.pcall('get', 'x')", b"0"]);
    bare.run(id, "AUTH nobody x");
    bare.pass(250);
    let entries = log(&mut bare, root, "ACL LOG");
    let summary: Vec<_> = entries.iter().map(|entry| [1, 3, 5, 7, 9, 11].map(|at| entry[at].as_str()).join(" ")).collect();
    assert_eq!(
        summary,
        [
            ":1 auth toplevel AUTH nobody 0.25",
            ":1 key lua x bob 0.25",
            ":1 channel toplevel c bob 0.25",
            ":2 key toplevel x bob 0.25",
            ":1 command toplevel set bob 1.75",
        ]
    );
    assert_eq!(entries[0][10..12], ["age-seconds", "0.25"]);
    let client = &entries[0][13];
    assert!(client.starts_with("id=2 addr=127.0.0.1:40002 ") && client.contains(" cmd=auth user=bob "), "{client}");
    assert!(entries[1][13].contains(" cmd=eval user=bob "));
    assert_eq!(
        entries[3][14..],
        ["entry-id", ":1", "timestamp-created", ":1700000005000", "timestamp-last-updated", ":1700000006500"]
    );
    assert_eq!(log(&mut bare, root, "ACL LOG 2").len(), 2);
    assert_eq!(log(&mut bare, root, "ACL LOG -1").len(), 0);
    bare.script(root, &[("ACL LOG x", "-ERR value is not an integer or out of range"), ("CONFIG SET acllog-max-len 2", "+OK")]);
    bare.run(id, "SET b v");
    assert_eq!(log(&mut bare, root, "ACL LOG").len(), 2);
    bare.script(root, &[("ACL LOG RESET", "+OK"), ("ACL LOG", "*0")]);
    let info = bare.run(root, "INFO stats");
    for line in ["acl_access_denied_auth:1", "acl_access_denied_cmd:2", "acl_access_denied_key:3", "acl_access_denied_channel:1"]
    {
        assert!(info.contains(line), "{line}");
    }
}

#[test]
fn clients_are_listed_and_killed_by_user() {
    let (mut bare, root, id) = with_user("bob", "~* +@all");
    let list = bare.run(root, "CLIENT LIST");
    assert!(list.contains("id=1 ") && list.contains(" user=default ") && list.contains(" user=bob "));
    bare.script(
        root,
        &[
            ("CLIENT KILL USER nobody", "-ERR No such user 'nobody'"),
            ("CLIENT KILL USER bob", ":1"),
            ("CLIENT KILL USER bob", ":0"),
        ],
    );
    assert!(flags(&bare, id).contains(SessionFlags::CLOSE_NOW));
}

#[test]
fn new_users_listen_to_what_the_configuration_says() {
    let mut bare = Bare::with(|config| config.acl_pubsub_default = "allchannels");
    let id = bare.connect();
    let all = "user bob off sanitize-payload &* -@all";
    let none = "user bob off sanitize-payload resetchannels -@all";
    let shown = |bare: &mut Bare| bare.run(id, "ACL LIST").split("\r\n").nth(2).map(str::to_owned);
    bare.script(id, &[("ACL SETUSER bob", "+OK")]);
    assert_eq!(shown(&mut bare).as_deref(), Some(all));
    bare.script(id, &[("CONFIG SET acl-pubsub-default resetchannels", "+OK"), ("ACL SETUSER bob reset", "+OK")]);
    assert_eq!(shown(&mut bare).as_deref(), Some(none));
}

#[test]
fn names_that_would_break_a_line_are_refused() {
    let mut bare = Bare::new();
    let id = bare.connect();
    for name in [b"a b".as_slice(), b"a\0b", b"a\nb"] {
        let said = bare.args(id, &[b"ACL", b"SETUSER", name, b"on"]);
        assert_eq!(said, "-ERR Usernames can't contain spaces or null characters\r\n");
    }
}

#[test]
fn the_users_file_is_loaded_as_a_whole_or_not_at_all() {
    use std::cell::RefCell;
    use std::rc::Rc;
    let (mut bare, root, id) = with_user("bob", "~* &* +@all");
    let missing = "-ERR This Redis instance is not configured to use an ACL file.";
    for request in ["ACL LOAD", "ACL SAVE"] {
        assert!(bare.run(root, request).starts_with(missing));
    }
    let text = Rc::new(RefCell::new(b"user ann on >pw ~* +@all\nuser bob nosuch\n".to_vec()));
    let (from, to) = (Rc::clone(&text), Rc::clone(&text));
    bare.engine.set_users_file(Some(UsersFile {
        path: "u.acl".into(),
        load: Box::new(move || Ok(from.borrow().clone())),
        save: Box::new(move |text| {
            *to.borrow_mut() = text.to_vec();
            Ok(())
        }),
    }));
    bare.script(
        root,
        &[(
            "ACL LOAD",
            "-ERR u.acl:2: Syntax error. WARNING: ACL errors detected, no change to the previously active ACL rules was performed",
        )],
    );
    bare.script(id, &[("ACL WHOAMI", "$3 bob")]);
    *text.borrow_mut() = b"user ann on >pw ~* +@all\nuser bob on ~x +get\n".to_vec();
    bare.script(root, &[("ACL LOAD", "+OK"), ("ACL USERS", "*3 $3 ann $3 bob $7 default")]);
    bare.script(id, &[("GET x", "$-1"), ("GET y", NO_KEY)]);
    bare.script(root, &[("ACL SETUSER bob nopass", "+OK"), ("ACL SAVE", "+OK")]);
    let saved = String::from_utf8(text.borrow().clone()).expect("text");
    assert_eq!(saved.lines().nth(1), Some("user bob on nopass sanitize-payload ~x resetchannels -@all +get"));
    *text.borrow_mut() = b"user ann on >pw ~* +@all".to_vec();
    bare.script(root, &[("ACL LOAD", "+OK")]);
    assert!(flags(&bare, id).contains(SessionFlags::CLOSE_NOW), "bob is gone");
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_portcullis"))
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("portcullis-acl-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

fn said(wire: &mut Wire, request: &str) -> String {
    let args: Vec<&str> = request.split(' ').collect();
    let reply = wire.call(&args).expect("a reply");
    String::from_utf8_lossy(&reply.raw).trim_end().replace("\r\n", " ")
}

#[test]
fn users_of_a_configuration_file_and_of_flags_are_there_and_written_back() {
    let dir = scratch("config");
    let file = dir.join("p.conf");
    std::fs::write(&file, "user ann on >pw ~a* +@all\nuser default on >root ~* &* +@all\n").expect("a file");
    let path = file.to_string_lossy().into_owned();
    let server = Server::portcullis_with(program(), &[&path, "--user", "bob", "on", "nopass", "+ping"]).expect("a server");
    let mut wire = Wire::connect(server.addr).expect("a connection");
    assert_eq!(said(&mut wire, "PING"), "-NOAUTH Authentication required.");
    assert_eq!(said(&mut wire, "AUTH root"), "+OK");
    assert_eq!(said(&mut wire, "ACL USERS"), "*3 $3 ann $3 bob $7 default");
    assert_eq!(said(&mut wire, "ACL SETUSER ann off"), "+OK");
    assert_eq!(said(&mut wire, "CONFIG REWRITE"), "+OK");
    let written = std::fs::read_to_string(&file).expect("the file");
    let lines: Vec<&str> = written.lines().collect();
    assert!(lines[0].starts_with("user ann off sanitize-payload #30c952fa"), "{written}");
    assert_eq!(lines[1], "user bob on nopass sanitize-payload resetchannels -@all +ping");
    assert!(lines.iter().any(|line| line.starts_with("user default on sanitize-payload #")), "{written}");
    std::fs::remove_dir_all(dir).expect("the directory goes");
}

#[test]
fn an_acl_file_is_read_at_the_start_and_by_load_and_written_by_save() {
    let dir = scratch("file");
    let file = dir.join("users.acl");
    let path = file.to_string_lossy().into_owned();
    std::fs::write(&file, "user ann on >pw ~* &* +@all\n").expect("a file");
    let server = Server::portcullis_with(program(), &["--aclfile", &path]).expect("a server");
    let mut wire = Wire::connect(server.addr).expect("a connection");
    let mut ann = Wire::connect(server.addr).expect("a connection");
    assert_eq!(said(&mut ann, "AUTH ann pw"), "+OK");
    assert_eq!(said(&mut wire, "ACL SETUSER bob on nopass +ping"), "+OK");
    assert_eq!(said(&mut wire, "ACL SAVE"), "+OK");
    let saved = std::fs::read_to_string(&file).expect("the file");
    assert_eq!(saved.lines().count(), 3);
    assert!(saved.contains("\nuser bob on nopass sanitize-payload resetchannels -@all +ping\n"), "{saved}");
    std::fs::write(&file, "user bob on nopass +ping\n").expect("a file");
    assert_eq!(said(&mut wire, "ACL LOAD"), "+OK");
    assert_eq!(said(&mut wire, "ACL USERS"), "*2 $3 bob $7 default");
    assert!(ann.call(&["PING"]).is_err(), "a removed user's connection is closed");
    // A client that deletes its own user gets the reply first.
    let mut bob = Wire::connect(server.addr).expect("a connection");
    assert_eq!(said(&mut wire, "ACL SETUSER bob +acl"), "+OK");
    assert_eq!(said(&mut bob, "AUTH bob x"), "+OK");
    assert_eq!(said(&mut bob, "ACL DELUSER bob"), ":1");
    assert!(bob.reply().is_err());
    std::fs::remove_file(&file).expect("the file goes");
    assert_eq!(said(&mut wire, "ACL LOAD"), format!("-ERR Error loading ACLs, opening file '{path}': No such file or directory"));
    assert!(matches!(wire.call(&["ACL", "GENPASS"]).expect("a reply").frame, Frame::Bulk(password) if password.len() == 64));
    std::fs::remove_dir_all(dir).expect("the directory goes");
}

#[test]
fn a_configuration_with_both_kinds_of_users_does_not_start() {
    for (args, told) in [
        (vec!["--aclfile", "/nonexistent/u", "--user", "bob", "on"], "but not both"),
        (vec!["--aclfile", "/nonexistent/u"], "opening file '/nonexistent/u'"),
        (vec!["--user", "bob", "+nosuch"], "Unknown command or category name in ACL"),
    ] {
        let output =
            std::process::Command::new(program()).args(["serve", "--port", "0"]).args(&args).output().expect("the program runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(told), "{args:?}: {error}");
    }
}
