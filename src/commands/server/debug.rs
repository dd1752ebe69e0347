//! DEBUG: commands for tests and for inspecting a server. Its row is in `process.rs`.

use crate::base::error::{Error, Result};
use crate::base::number::{parse_f64, parse_i64};
use crate::commands::keys::names;
use crate::commands::reference::help;
use crate::commands::server::debug_digest;
use crate::engine::Action;
use crate::engine::command::Handler;
use crate::engine::command::options::upper;
use crate::engine::context::Context;
use crate::engine::persistence::{Reload, ReloadFrom};
use crate::engine::session::SessionFlags;
use crate::keyspace::lru::idle_seconds;
use crate::resp::reply::Protocol;

/// Whether `enable-debug-command` lets this session use DEBUG.
fn may_debug(cx: &mut Context<'_>) -> bool {
    match cx.engine.config().enable_debug_command {
        "yes" => true,
        "local" => {
            let session = cx.session();
            let (unix, addr) = (session.flags.contains(SessionFlags::UNIX_SOCKET), &session.addr);
            // A session without an address belongs to this process.
            unix || addr.is_empty() || addr.starts_with("127.") || addr.starts_with("[::1]:")
        }
        _ => false,
    }
}

/// A subcommand of `DEBUG`.
struct Subcommand {
    /// Number of arguments, including the two words of the name; [`ANY`] for any number.
    args: usize,
    run: Handler,
    /// Whether it reads keys, which a follower does not serve.
    reads_keys: bool,
    /// Its lines of `DEBUG HELP`, the first of which begins with its name.
    help: &'static [&'static str],
}

const ANY: usize = 0;

impl Subcommand {
    const fn new(args: usize, run: Handler, help: &'static [&'static str]) -> Subcommand {
        Subcommand { args, run, reads_keys: false, help }
    }

    const fn reading(args: usize, run: Handler, help: &'static [&'static str]) -> Subcommand {
        Subcommand { args, run, reads_keys: true, help }
    }

    fn is_named(&self, word: &[u8]) -> bool {
        let name = self.help[0].split(' ').next().unwrap_or_default();
        word.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// The subcommands, in the order of `DEBUG HELP`.
const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand::new(2, change_repl_id, &["CHANGE-REPL-ID", "    Change the replication ID."]),
    Subcommand::reading(
        2,
        digest,
        &[
            "DIGEST",
            "    Output a hex signature representing the current DB content. Blocks the server",
            "    until it is computed.",
        ],
    ),
    Subcommand::reading(
        ANY,
        digest_value,
        &["DIGEST-VALUE <key> [<key> ...]", "    Output a hex signature of the values of all the specified keys."],
    ),
    Subcommand::new(3, error, &["ERROR <string>", "    Reply with this error."]),
    Subcommand::new(
        ANY,
        load_log,
        &["LOADAOF", "    Load the append-only file in place of the current DB content. Blocks the", "    server."],
    ),
    Subcommand::new(3, log, &["LOG <message>", "    Write <message> to the server log."]),
    Subcommand::reading(3, debug_object, &["OBJECT <key>", "    Show low level info about `key` and associated value."]),
    Subcommand::new(
        3,
        protocol,
        &[
            "PROTOCOL <type>",
            "    Reply with a test value of the specified type. <type> can be: string,",
            "    integer, double, bignum, null, array, set, map, attrib, push, verbatim,",
            "    true, false.",
        ],
    ),
    Subcommand::new(
        3,
        accept,
        &["QUICKLIST-PACKED-THRESHOLD <size>", "    Accepted; lists have no nodes for single large elements."],
    ),
    Subcommand::new(
        ANY,
        reload,
        &[
            "RELOAD [option ...]",
            "    Save the RDB on disk and load it in place of the current DB content. Blocks",
            "    the server. The options are:",
            "    * MERGE: a key that is loaded replaces one of its name.",
            "    * NOFLUSH: the current content stays, and what is loaded comes to it.",
            "    * NOSAVE: the RDB is loaded as it is.",
        ],
    ),
    Subcommand::new(
        3,
        set_active_expire,
        &["SET-ACTIVE-EXPIRE <0|1>", "    Setting it to 0 disables expiring keys that are not accessed."],
    ),
    Subcommand::new(
        3,
        set_disable_deny_scripts,
        &["SET-DISABLE-DENY-SCRIPTS <0|1>", "    Setting it to 1 allows scripts to call DEBUG."],
    ),
    Subcommand::new(3, sleep, &["SLEEP <seconds>", "    Stop the server for <seconds>. Decimals allowed."]),
];

/// `DEBUG subcommand …`
pub(crate) fn debug(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!may_debug(cx), Error::DEBUG_NOT_ALLOWED);
    let Some(subcommand) = SUBCOMMANDS.iter().find(|subcommand| subcommand.is_named(args[1])) else {
        if args.len() == 2 && args[1].eq_ignore_ascii_case(b"help") {
            let lines: Vec<&str> = SUBCOMMANDS.iter().flat_map(|subcommand| subcommand.help).copied().collect();
            return help::reply(cx, args, &lines);
        }
        return Err(Error::subcommand_syntax(args));
    };
    if subcommand.reads_keys {
        cx.engine.check_leads(cx.session)?;
    }
    fail_if!(subcommand.args != ANY && subcommand.args != args.len(), Error::subcommand_syntax(args));
    (subcommand.run)(cx, args)
}

/// There are no replicas, so only the id changes.
fn change_repl_id(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.engine.change_replication_id();
    cx.reply.ok();
    Ok(())
}

fn digest(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let digest = debug_digest::of_all(cx.engine, cx.now);
    cx.reply.simple(&digest.hex());
    Ok(())
}

fn digest_value(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    cx.reply.array(args.len() - 2);
    for key in &args[2..] {
        let (mut db, reply) = cx.db_and_reply();
        reply.simple(&debug_digest::of_value(db.peek(key)).hex());
    }
    Ok(())
}

fn error(_: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let line: Vec<u8> = args[2].iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }).collect();
    Err(Error::new(String::from_utf8_lossy(&line).into_owned()))
}

fn log(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    tracing::warn!("DEBUG LOG: {}", String::from_utf8_lossy(args[2]));
    cx.reply.ok();
    Ok(())
}

/// Lists have no nodes for single large elements, so there is no threshold to set.
fn accept(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.ok();
    Ok(())
}

fn reload(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut reload = Reload { flush: true, merge: false };
    let mut save = true;
    for option in &args[2..] {
        match &*upper(option) {
            b"MERGE" => reload.merge = true,
            b"NOFLUSH" => reload.flush = false,
            b"NOSAVE" => save = false,
            _ => return Err(Error::RELOAD_OPTIONS),
        }
    }
    begin_reload(cx, args, ReloadFrom::Snapshot { save, reload })
}

fn load_log(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    begin_reload(cx, args, ReloadFrom::Log)
}

fn set_active_expire(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    cx.engine.keyspace_mut().active_expire = parse_i64(args[2]).is_some_and(|on| on != 0);
    cx.reply.ok();
    Ok(())
}

fn set_disable_deny_scripts(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    cx.engine.let_scripts_debug(parse_i64(args[2]).is_some_and(|on| on != 0));
    cx.reply.ok();
    Ok(())
}

fn sleep(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let seconds = parse_f64(args[2]).filter(|seconds| *seconds >= 0.0).ok_or(Error::NOT_FLOAT)?;
    cx.engine.ask(Action::Sleep((seconds * 1e6) as u64));
    cx.reply.ok();
    Ok(())
}

/// Asks the driver to load files. It replies when the engine has what they have.
fn begin_reload(cx: &mut Context<'_>, args: &[&[u8]], from: ReloadFrom) -> Result {
    fail_if!(cx.engine.replication().is_on(), Error::new("ERR A replicated server loads its files only when it starts"));
    fail_if!(cx.engine.is_loading(), Error::LOADING);
    if !cx.may_block() {
        // Redis loads in the middle of a transaction or a script.
        return Err(Error::NOT_IN_MULTI);
    }
    cx.block_for_driver(args);
    let session = cx.session;
    cx.engine.ask(Action::Reload(session, from));
    Ok(())
}

/// Replies to `DEBUG OBJECT`. The address is always 0x0. Values are not serialized, so `serializedlength` is the memory usage.
fn debug_object(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let second = cx.now.mono_us() / 1_000_000;
    let (mut db, reply) = cx.db_and_reply();
    let entry = db.peek(args[2]).ok_or(Error::NO_SUCH_KEY)?;
    let (encoding, length, idle) = (names::encoding(entry), entry.allocated(), idle_seconds(entry, second));
    let lru = entry.access();
    reply.simple(&format!(
        "Value at:0x0 refcount:1 encoding:{encoding} serializedlength:{length} lru:{lru} lru_seconds_idle:{idle}"
    ));
    Ok(())
}

/// Replies with a value of each type, to test clients. Also allowed in scripts, after `DEBUG SET-DISABLE-DENY-SCRIPTS 1`.
fn protocol(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let reply = &mut *cx.reply;
    match args[2].to_ascii_lowercase().as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.integer(12345),
        b"double" => reply.double(3141.0 / 1000.0),
        b"bignum" => reply.big_number("1234567999999999999999999999999999999"),
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|n| reply.integer(n));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|n| reply.integer(n));
        }
        b"map" => {
            reply.map(3);
            for n in 0..3 {
                reply.integer(n);
                reply.boolean(n == 1);
            }
        }
        b"attrib" => {
            if reply.attribute(1) {
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.integer(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" if reply.protocol() == Protocol::Resp2 => return Err(Error::new("ERR RESP2 is not supported by this command")),
        b"push" => {
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.integer(42);
            reply.bulk(b"Some real reply following the push reply");
        }
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        b"verbatim" => reply.verbatim("txt", b"This is a verbatim\nstring"),
        _ => {
            return Err(Error::new(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::base::error::Error;
    use crate::engine::Action;
    use crate::engine::harness::Harness;
    use crate::engine::persistence::{Reload, ReloadFrom};

    #[test]
    fn there_is_a_reply_of_every_type() {
        let types =
            ["string", "integer", "double", "bignum", "null", "array", "set", "map", "attrib", "true", "false", "VERBATIM"];
        let shown = |harness: &mut Harness| types.map(|kind| harness.run(&format!("DEBUG PROTOCOL {kind}")));
        let mut harness = Harness::new();
        assert_eq!(
            shown(&mut harness),
            [
                "$11 Hello World",
                ":12345",
                "$5 3.141",
                "$37 1234567999999999999999999999999999999",
                "$-1",
                "*3 :0 :1 :2",
                "*3 :0 :1 :2",
                "*6 :0 :0 :1 :1 :2 :0",
                "$39 Some real reply following the attribute",
                ":1",
                ":0",
                "$25 This is a verbatim\nstring",
            ]
        );
        harness.script(&[
            ("DEBUG PROTOCOL push", "-ERR RESP2 is not supported by this command"),
            (
                "DEBUG PROTOCOL x",
                "-ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ),
        ]);
        harness.run("HELLO 3");
        assert_eq!(
            shown(&mut harness),
            [
                "$11 Hello World",
                ":12345",
                ",3.141",
                "(1234567999999999999999999999999999999",
                "_",
                "*3 :0 :1 :2",
                "~3 :0 :1 :2",
                "%3 :0 #f :1 #t :2 #f",
                "|1 $14 key-popularity *2 $7 key:123 :90 $39 Some real reply following the attribute",
                "#t",
                "#f",
                "=29 txt:This is a verbatim\nstring",
            ]
        );
        harness.script(&[("DEBUG PROTOCOL push", ">2 $16 server-cpu-usage :42 $40 Some real reply following the push reply")]);
    }

    #[test]
    fn debug_sleeps_and_looks_only_where_it_may() {
        let mut harness = Harness::new();
        harness.script(&[
            ("DEBUG SLEEP 0.25", "+OK"),
            ("DEBUG SLEEP x", "-ERR value is not a valid float"),
            ("DEBUG SLEEP -1", "-ERR value is not a valid float"),
            ("DEBUG nothing", "-ERR unknown subcommand or wrong number of arguments for 'nothing'. Try DEBUG HELP."),
            ("DEBUG OBJECT k", "-ERR no such key"),
            ("DEBUG CHANGE-REPL-ID", "+OK"),
            ("DEBUG QUICKLIST-PACKED-THRESHOLD 100b", "+OK"),
            ("DEBUG ERROR boom", "-boom"),
            ("DEBUG LOG hello", "+OK"),
            ("SET k 12", "+OK"),
        ]);
        assert_eq!(harness.engine.take_actions(), [Action::Sleep(250_000)]);
        harness.pass(3000);
        let object = harness.run("DEBUG OBJECT k");
        assert!(
            object.starts_with("+Value at:0x0 refcount:1 encoding:int ") && object.ends_with("lru_seconds_idle:3"),
            "{object}"
        );
        harness.engine.sessions_mut()[harness.session].addr = "10.0.0.1:5000".into();
        assert!(harness.run("DEBUG SLEEP 0").starts_with("-ERR DEBUG command not allowed."));
    }

    #[test]
    fn the_driver_is_asked_to_load_files() {
        let mut harness = Harness::new();
        let options = "-ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.";
        harness.script(&[
            ("DEBUG RELOAD NOSAVE now", options),
            ("MULTI", "+OK"),
            ("DEBUG LOADAOF", "+QUEUED"),
            ("EXEC", "*1 -ERR Command not allowed inside a transaction"),
            ("DEBUG RELOAD nosave Merge", ""),
        ]);
        let (now, session) = (harness.now, harness.session);
        let reload = Reload { flush: true, merge: true };
        let from = ReloadFrom::Snapshot { save: false, reload };
        assert_eq!(harness.engine.take_actions(), [Action::Reload(session, from)]);
        harness.engine.end_wait_for_driver(now, session, Some(&Error::RELOAD_FAILED));
        let output = |harness: &mut Harness| std::mem::take(&mut harness.engine.sessions_mut()[session].out);
        assert_eq!(output(&mut harness), b"-ERR Error trying to load the RDB dump, check server logs.\r\n");
        assert_eq!(harness.run("DEBUG LOADAOF whatever"), "", "the reply comes when they are loaded");
        assert_eq!(harness.engine.take_actions(), [Action::Reload(session, ReloadFrom::Log)]);
        harness.engine.end_wait_for_driver(now, session, None);
        assert_eq!(output(&mut harness), b"+OK\r\n");
    }

    #[test]
    fn keys_end_only_when_looked_at_while_active_expiry_is_off() {
        let mut harness = Harness::new();
        harness.script(&[("DEBUG SET-ACTIVE-EXPIRE 0", "+OK"), ("SET k v PX 10", "+OK")]);
        harness.pass(20);
        harness.script(&[("DBSIZE", ":1"), ("GET k", "$-1"), ("DBSIZE", ":0")]);
        harness.script(&[("SET k v PX 10", "+OK"), ("DEBUG SET-ACTIVE-EXPIRE 1", "+OK")]);
        harness.pass(20);
        harness.script(&[("DBSIZE", ":0")]);
    }
}
