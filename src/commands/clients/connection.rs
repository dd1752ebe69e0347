//! Connection commands: AUTH, HELLO, PING, SELECT and others.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::base::version::REDIS_VERSION;
use crate::commands::clients::client;
use crate::engine::command::options::{Tail, integer, upper};
use crate::engine::command::{Command, Flags, Group, Positions, Replies, Traits, row, rows};
use crate::engine::context::{Caller, Context};
use crate::engine::session::SessionFlags;
use crate::engine::users::DEFAULT_NAME;
use crate::resp::reply::Protocol;

/// Flags of commands that are always allowed: before authentication, while data is loaded, and while a long script runs.
const HANDSHAKE: Flags =
    Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::FAST).union(Flags::NO_AUTH).union(Flags::ALLOW_BUSY);

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("auth", auth, "[username] password", "Authenticates the connection.";
        secrets: |args| (1..args.len()).collect(), flags: HANDSHAKE, group: Group::Connection, since: "1.0.0",
        complexity: "O(N) where N is the number of passwords of the user", ..Command::DEFAULT),
    row!("echo", echo, "message", "Returns the given string.";
        replies: Replies::Scalar, flags: Flags::LOADING.union(Flags::STALE).union(Flags::FAST), group: Group::Connection,
        since: "1.0.0", ..Command::DEFAULT),
    row!("hello", hello, "[protover [AUTH username password] [SETNAME clientname]]",
        "Selects the protocol version, authenticates and names the connection, and returns information about the server.";
        secrets: secrets_of_hello, flags: HANDSHAKE, group: Group::Connection, since: "6.0.0", ..Command::DEFAULT),
    row!("ping", ping, "[message]", "Returns PONG or the given message.";
        traits: Traits::WHILE_SUBSCRIBED.union(Traits::TELLS_OF_DISK), flags: Flags::FAST, group: Group::Connection,
        since: "1.0.0", tips: &["request_policy:all_shards", "response_policy:all_succeeded"], ..Command::DEFAULT),
    row!("quit", quit, "Closes the connection.";
        traits: Traits::AT_ONCE.union(Traits::WHILE_SUBSCRIBED), arity: -1, flags: HANDSHAKE, group: Group::Connection,
        since: "1.0.0", ..Command::DEFAULT),
    row!("reset", reset, "Resets the connection to its initial state.";
        traits: Traits::AT_ONCE.union(Traits::WHILE_SUBSCRIBED), flags: HANDSHAKE, group: Group::Connection, since: "6.2.0",
        ..Command::DEFAULT),
    row!("select", select, "index", "Selects the database of the connection.";
        flags: Flags::LOADING.union(Flags::STALE).union(Flags::FAST), group: Group::Connection, since: "1.0.0",
        ..Command::DEFAULT),
]);

/// The names and passwords after each `AUTH`. The argument of `SETNAME` is skipped, because it may be the word `AUTH`.
fn secrets_of_hello(args: &[&[u8]]) -> Positions {
    let (mut secrets, mut at) = (Positions::new(), 2);
    while at < args.len() {
        if args[at].eq_ignore_ascii_case(b"auth") && at + 2 < args.len() {
            secrets.extend([at + 1, at + 2]);
            at += 3;
        } else {
            at += if args[at].eq_ignore_ascii_case(b"setname") { 2 } else { 1 };
        }
    }
    secrets
}

fn ping(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(args.len() > 2, Error::arity("ping"));
    if cx.caller == Caller::Client && cx.session().subscribed_mode() {
        pong_among_messages(cx, args);
        return Ok(());
    }
    match args.get(1) {
        Some(message) => cx.reply.bulk(message),
        None => cx.reply.pong(),
    }
    Ok(())
}

/// The reply to `PING` of a RESP2 client with subscriptions: an array, because clients read arrays as messages.
#[cold]
fn pong_among_messages(cx: &mut Context<'_>, args: &[&[u8]]) {
    cx.reply.array(2);
    cx.reply.bulk(b"pong");
    cx.reply.bulk(args.get(1).copied().unwrap_or_default());
}

fn echo(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    cx.reply.bulk(args[1]);
    Ok(())
}

fn select(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let index = integer(args[1])?;
    let index = i32::try_from(index).map_err(|_| Error::NOT_AN_INT)?;
    match u32::try_from(index) {
        Ok(1..) | Err(_) if cx.engine.in_cluster() => return Err(Error::new("ERR SELECT is not allowed in cluster mode")),
        Ok(index) if (index as usize) < cx.engine.keyspace().databases() => cx.db = index,
        _ => return Err(Error::DB_RANGE),
    }
    cx.reply.ok();
    Ok(())
}

fn quit(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.ok();
    cx.session().flags |= SessionFlags::CLOSE_AFTER_REPLY;
    let id = cx.session;
    cx.engine.mark_pending_write(id);
    Ok(())
}

fn auth(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (user, password) = match *args {
        [_, _] if cx.engine.users().default_user().nopass => return Err(Error::NO_PASSWORD_SET),
        [_, password] => (DEFAULT_NAME, password),
        [_, user, password] => (user, password),
        _ => return Err(Error::SYNTAX),
    };
    if cx.await_login(args)? {
        return Ok(());
    }
    cx.engine.log_in(cx.now, cx.session, user, password, args[0])?;
    cx.reply.ok();
    Ok(())
}

fn hello(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let protocol = match args.get(1) {
        None => None,
        Some(version) => match parse_i64(version).ok_or(Error::NOT_A_PROTOCOL)? {
            2 => Some(Protocol::Resp2),
            3 => Some(Protocol::Resp3),
            _ => return Err(Error::NO_PROTO),
        },
    };
    let (mut credentials, mut name) = (None, None);
    let mut rest = Tail(args.get(2..).unwrap_or_default());
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"AUTH" if rest.left() >= 2 => credentials = Some((rest.value()?, rest.value()?)),
            b"SETNAME" if rest.left() > 0 => {
                let value = rest.value()?;
                client::check_name(value)?;
                name = Some(value);
            }
            _ => return Err(Error::quoting("ERR Syntax error in HELLO option '", option, "'")),
        }
    }

    if let Some((user, password)) = credentials {
        if cx.await_login(args)? {
            return Ok(());
        }
        cx.engine.log_in(cx.now, cx.session, user, password, args[0])?;
    }
    let session = cx.session();
    fail_if!(!session.flags.contains(SessionFlags::AUTHENTICATED), Error::HELLO_NO_AUTH);
    if let Some(name) = name {
        client::set_name(session, name);
    }
    if let Some(protocol) = protocol {
        session.protocol = protocol;
        cx.reply.switch(protocol);
    }
    let mode: &[u8] = if cx.engine.in_cluster() { b"cluster" } else { b"standalone" };
    let role: &[u8] = if cx.engine.replication().refuses() { b"replica" } else { b"master" };
    let session = cx.session();
    let (id, protocol) = (session.id, session.protocol);
    let reply = &mut *cx.reply;
    reply.map(7);
    reply.entry("server", "redis");
    reply.entry("version", REDIS_VERSION);
    reply.entry("proto", if protocol == Protocol::Resp3 { 3_i64 } else { 2 });
    reply.entry("id", id);
    reply.entry("mode", mode);
    reply.entry("role", role);
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

fn reset(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.engine.unsubscribe_all(cx.session);
    cx.engine.end_transaction(cx.session);
    cx.engine.untrack(cx.session);
    cx.engine.end_monitor(cx.session);
    // For locks, RESET ends the connection.
    let now = cx.now;
    cx.engine.end_lock_session(now, cx.session, true);
    cx.engine.log_out(cx.session);
    let session = cx.session();
    session.name = None;
    session.protocol = Protocol::Resp2;
    session
        .flags
        .remove(SessionFlags::REPLY_OFF | SessionFlags::REPLY_SKIP_NEXT | SessionFlags::NO_TOUCH | SessionFlags::NO_EVICT);
    cx.db = 0;
    cx.reply.switch(Protocol::Resp2);
    cx.reply.simple("RESET");
    Ok(())
}
