//! `CLIENT LIST` and `CLIENT INFO`: a line for each connection.

use std::fmt::Write;

use crate::commands::client::{Type, by_age, shown};
use crate::commands::full_name;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::error::{Error, Result};
use crate::engine::number::parse_i64;
use crate::engine::session::{Session, SessionFlags, SessionId};
use crate::engine::time::Now;
use crate::engine::tracking::Options;
use crate::engine::walks::{Course, ReplyKind};
use crate::resp::reply::Protocol;

pub(super) fn info(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let mut text = String::new();
    describe_to(&mut text, cx, cx.session);
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

pub(super) fn list(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut text = String::new();
    match args[2..] {
        [] => return list_all(cx, None),
        [option, name] if option.eq_ignore_ascii_case(b"type") => {
            let wanted = Type::parse(name)?;
            return list_all(cx, Some(wanted));
        }
        [option, ref ids @ ..] if option.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
            let all = by_age(cx);
            for id in ids {
                let id = parse_i64(id).ok_or(Error::CLIENT_ID_INVALID)? as u64;
                if let Ok(at) = all.binary_search_by_key(&id, |(id, _)| *id) {
                    describe_to(&mut text, cx, all[at].1);
                }
            }
        }
        _ => return Err(Error::SYNTAX),
    }
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

/// All sessions of a type, or of any.
fn list_all(cx: &mut Context<'_>, wanted: Option<Type>) -> Result {
    let all = by_age(cx);
    if cx.may_walk(all.len()) {
        cx.walk(Listing { all, at: 0, wanted });
        return Ok(());
    }
    let mut text = String::new();
    for (_, id) in all {
        if wanted.is_none_or(|wanted| Type::of(&cx.engine.sessions[id.0 as usize]) == wanted) {
            describe_to(&mut text, cx, id);
        }
    }
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

/// Thousands of sessions. Those that come meanwhile are not among them.
struct Listing {
    /// Their numbers and where they were.
    all: Vec<(u64, SessionId)>,
    at: usize,
    wanted: Option<Type>,
}

impl Course for Listing {
    fn slice(&self) -> u32 {
        // A line takes 0.6 µs.
        256
    }

    fn go_on(&mut self, engine: &mut Engine, now: Now, own: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        // In its own list it does not wait.
        engine.sessions[own.0 as usize].flags.remove(SessionFlags::BLOCKED);
        let mut text = String::new();
        let end = self.all.len().min(self.at + count as usize);
        for &(number, id) in &self.all[self.at..end] {
            let there = engine.sessions.get(id.0 as usize).filter(|session| session.id == number);
            if let Some(session) = there.filter(|session| self.wanted.is_none_or(|wanted| Type::of(session) == wanted)) {
                describe(&mut text, engine, now, id, session.db);
            }
        }
        engine.sessions[own.0 as usize].flags |= SessionFlags::BLOCKED;
        reply.extend_from_slice(text.as_bytes());
        self.at = end;
        end == self.all.len()
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Text
    }
}

/// Appends a session's line.
fn describe_to(line: &mut String, cx: &Context<'_>, id: SessionId) {
    // A `SELECT` of the running command counts; the session learns of it when the command ends.
    let db = if id == cx.session { cx.db } else { cx.engine.sessions[id.0 as usize].db };
    describe(line, cx.engine, cx.now, id, db);
}

/// Appends a session's line, with the database that it is to show. Fields of what does not exist here are 0.
pub(crate) fn describe(line: &mut String, engine: &Engine, now: Now, id: SessionId, db: u32) {
    let session = &engine.sessions[id.0 as usize];
    let seconds = |since_ms: u64| now.mono_ms().saturating_sub(since_ms) / 1000;
    let (name, version) = session.lib.as_deref().map_or(("", ""), |lib| (lib.0.as_str(), lib.1.as_str()));
    let own_name = session.name.as_deref().map_or(&b""[..], shown);
    let user = engine.users.name(session.user).unwrap_or(b"(superuser)");
    let watches = &engine.keyspace.changes.watches;
    let waits = &engine.keyspace.changes.waits;
    let tracking = &engine.keyspace.changes.tracking;
    let tracker = tracking.get(session.tracker);
    let redirect = tracker.map_or(-1, |tracker| tracker.redirect.map_or(0, |client| client.number as i64));
    let waiting = waits.bytes(session.waiter) + engine.pause.bytes(session.held);
    // While a transaction runs the engine has it, and not its session.
    let in_exec = session.flags.contains(SessionFlags::IN_EXEC).then_some(engine.executing);
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
        session.last_command.map_or("NULL".into(), full_name),
        String::from_utf8_lossy(user),
        if session.protocol == Protocol::Resp3 { 3 } else { 2 },
        session.net_in,
        session.net_out,
        session.commands,
    );
    debug_assert!(written.is_ok(), "a String takes what is written to it");
    line.push('\n');
}

/// The flags of a session as letters.
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
