//! The `CLIENT LIST` line of a session, which the ACL log shows too.

use std::fmt::Write;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::base::words::brief;
use crate::engine::Engine;
use crate::engine::session::{Session, SessionFlags};
use crate::keyspace::tracking::Options;
use crate::resp::reply::Protocol;

/// Appends a session's line, as others see it, with this database: of long names, it has the beginning.
pub(crate) fn describe(line: &mut String, engine: &Engine, now: Now, id: SessionId, db: u32) {
    describe_with(line, engine, now, id, db, brief);
}

/// As [`describe`], with the whole names: the session asks for its own line.
pub(crate) fn describe_own(line: &mut String, engine: &Engine, now: Now, id: SessionId, db: u32) {
    describe_with(line, engine, now, id, db, |name| name);
}

/// Fields without a meaning here are 0.
fn describe_with(line: &mut String, engine: &Engine, now: Now, id: SessionId, db: u32, cut: fn(&[u8]) -> &[u8]) {
    let session = &engine.clients.sessions[id];
    let seconds = |since_ms: u64| now.mono_ms().saturating_sub(since_ms) / 1000;
    let (name, version) = session.lib.as_deref().map_or(("", ""), |lib| (lib.0.as_str(), lib.1.as_str()));
    let [name, version] = [name, version].map(|text| String::from_utf8_lossy(cut(text.as_bytes())));
    let own_name = cut(session.name.as_deref().map_or(&b""[..], shown));
    let user = engine.users.name(session.user).unwrap_or(b"(superuser)");
    let watches = &engine.keyspace.changes.watches;
    let waits = &engine.keyspace.changes.waits;
    let tracking = &engine.keyspace.changes.tracking;
    let tracker = tracking.get(session.tracker);
    let redirect = tracker.map_or(-1, |tracker| tracker.redirect.map_or(0, |client| client.number as i64));
    let waiting = waits.bytes(session.waiter) + engine.clients.pause.bytes(session.held);
    // While a transaction runs, the engine has it, and not the session.
    let in_exec = session.flags.contains(SessionFlags::IN_EXEC).then_some(engine.running.executing);
    let transaction = session.transaction.as_ref().map(|transaction| (transaction.len(), transaction.memory())).or(in_exec);
    let queued = transaction.map_or(0, |(_, memory)| memory);
    let memory = engine.client_memory(id);
    let written = write!(
        line,
        "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} db={db} sub={} psub={} ssub={} multi={} watch={} qbuf={} \
         qbuf-free=0 argv-mem={waiting} multi-mem={queued} rbs=0 rbp=0 obl={} oll=0 omem={} tot-mem={memory} events={} cmd={} user={} \
         redir={redirect} resp={} lib-name={name} lib-ver={version} io-thread=0 tot-net-in={} tot-net-out={} tot-cmds={}",
        session.id,
        session.addr,
        session.laddr,
        String::from_utf8_lossy(own_name),
        seconds(session.created_ms),
        seconds(session.last_ms),
        letters(session, engine.watched_touched(id), tracker.map(|tracker| tracker.options)),
        session.subscriptions[0],
        session.subscriptions[1],
        session.subscriptions[2],
        transaction.map_or(-1, |(count, _)| count as i64),
        watches.count(session.watcher),
        session.query_buffer,
        session.out.len(),
        session.out.len(),
        if session.out.is_empty() { "r" } else { "rw" },
        engine.last_command(session).map_or("NULL".into(), |command| engine.commands.full_name(command)),
        String::from_utf8_lossy(user),
        if session.protocol == Protocol::Resp3 { 3 } else { 2 },
        session.net_in,
        session.net_out,
        session.commands,
    );
    debug_assert!(written.is_ok(), "a String takes what is written to it");
    line.push('\n');
}

/// The letters of a session's flags.
fn letters(session: &Session, touched: bool, tracking: Option<Options>) -> String {
    let tracks = |how| tracking.is_some_and(|options| options.contains(how));
    let has = |flag| session.flags.contains(flag);
    let switches = [
        ('O', has(SessionFlags::MONITOR)),
        ('P', session.subscriptions != [0; 3]),
        ('x', has(SessionFlags::MULTI)),
        ('b', has(SessionFlags::BLOCKED)),
        ('t', tracking.is_some()),
        ('R', tracks(Options::BROKEN)),
        ('B', tracks(Options::BCAST)),
        ('d', touched),
        ('c', has(SessionFlags::CLOSE_AFTER_REPLY)),
        ('A', has(SessionFlags::CLOSE_NOW)),
        ('U', has(SessionFlags::UNIX_SOCKET)),
        ('e', has(SessionFlags::NO_EVICT)),
        ('T', has(SessionFlags::NO_TOUCH)),
    ];
    let letters: String = switches.iter().filter(|(_, on)| *on).map(|(letter, _)| letter).collect();
    if letters.is_empty() { "N".to_owned() } else { letters }
}

/// The text before the first NUL, because names are shown as C strings.
pub(crate) fn shown(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}
