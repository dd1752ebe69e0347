//! `MONITOR`, and other observers of commands.
//!
//! None of this runs while no session monitors or tracks keys: see `engine/slow_path`.

use std::borrow::Cow;

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags, Traits};
use crate::engine::context::{Caller, Context};
use crate::engine::observe::redact;
use crate::engine::pubsub;
use crate::engine::session::{Session, SessionFlags};
use crate::engine::slow_path::SlowPath;

impl Context<'_> {
    /// As [`Context::run`], while a session monitors or tracks.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn run_observed(&mut self, args: &[&[u8]]) {
        let (now, id, caller, command) = (self.now, self.session, self.caller, self.command);
        let engine = &mut *self.engine;
        let current = engine.clients.sessions[id].id;
        let tracking = &mut engine.keyspace.changes.tracking;
        let outer = std::mem::replace(&mut tracking.current, current);
        let from_outer = std::mem::replace(&mut tracking.from_script, caller == Caller::Script);
        let first_time = engine.running.resumed.is_none();
        // A script is shown before the commands that it calls.
        if command.flags.contains(Flags::SKIP_MONITOR) {
            engine.show(now, id, self.db, caller, command, args);
        }
        let declares = caller == Caller::Client;
        if declares {
            engine.keyspace.changes.tracking.declared = engine.declared_keys(id, command, args);
        }
        self.handle(args);
        let engine = &mut *self.engine;
        if declares {
            engine.keyspace.changes.tracking.declared.clear();
        }
        // A request that was blocked was shown when it began to wait.
        if first_time && !command.flags.intersects(Flags::SKIP_MONITOR.union(Flags::ADMIN)) {
            engine.show(now, id, self.db, caller, command, args);
        }
        engine.remember_reads(id, caller, command, args);
        let tracking = &mut engine.keyspace.changes.tracking;
        (tracking.current, tracking.from_script) = (outer, from_outer);
        engine.invalidate_others();
        engine.publish_events();
        if !engine.on_slow_path(SlowPath::MONITOR_OR_TRACKING) {
            // The last tracking session may have ended tracking, in a transaction that has changed its own keys.
            engine.invalidate_own();
        }
    }
}

/// Turns monitoring on for the calling session. Does nothing if it is on already.
pub fn begin(cx: &mut Context<'_>) -> Result {
    fail_if!(cx.session().flags.contains(SessionFlags::IN_EXEC), Error::MONITOR_IN_TRANSACTION);
    if !cx.session().flags.contains(SessionFlags::MONITOR) {
        cx.session().flags |= SessionFlags::MONITOR;
        cx.engine.clients.monitors.push(cx.session);
        cx.engine.update_observers();
        cx.reply.ok();
    }
    Ok(())
}

impl Engine {
    /// Turns monitoring off for a session.
    pub(crate) fn end_monitor(&mut self, id: SessionId) {
        let flags = &mut self.clients.sessions[id].flags;
        if flags.contains(SessionFlags::MONITOR) {
            flags.remove(SessionFlags::MONITOR);
            self.clients.monitors.retain(|&other| other != id);
            self.update_observers();
        }
    }

    /// Must be called after a session has begun or ceased to monitor or to track.
    pub(in crate::engine) fn update_observers(&mut self) {
        self.update_slow_path();
        self.keyspace.changes.update_observed();
    }

    pub(crate) fn has_observers(&self) -> bool {
        !self.clients.monitors.is_empty() || self.keyspace.changes.tracking.trackers() > 0
    }

    /// After a request of a session, while a session monitors or tracks: notifies it of its own changes.
    #[cold]
    pub(crate) fn end_observed(&mut self, id: SessionId, command: Option<&'static Command>) {
        self.invalidate_others();
        self.invalidate_own();
        let session = &self.clients.sessions[id];
        let keeps = command.is_some_and(|command| command.traits.contains(Traits::KEEPS_CACHING));
        if !session.flags.contains(SessionFlags::MULTI) && !keeps {
            self.forget_caching(session.tracker);
        }
    }

    /// After a refused request: an `EXEC` is shown all the same, because its `MULTI` was.
    #[cold]
    pub(crate) fn show_refused(&mut self, now: Now, id: SessionId, args: &[&[u8]]) {
        if let Some(command) = self.commands.lookup(args[0]).filter(|command| command.is_exec()) {
            let db = self.clients.sessions[id].db;
            self.show(now, id, db, Caller::Client, command, args);
        }
    }

    /// Shows a request to all monitors.
    fn show(&mut self, now: Now, id: SessionId, db: u32, caller: Caller, command: &'static Command, args: &[&[u8]]) {
        if self.clients.monitors.is_empty() {
            return;
        }
        let line = line(now, &self.clients.sessions[id], db, caller, &redact::shown(command, args));
        self.running.visited += self.clients.monitors.len() as u64;
        for index in 0..self.clients.monitors.len() {
            let monitor = self.clients.monitors[index];
            if self.clients.sessions.get(monitor).is_some_and(|session| !session.flags.contains(SessionFlags::REPLY_OFF)) {
                pubsub::push_to(self, monitor, &line);
            }
        }
    }

    /// Panics if the state violates an invariant.
    pub(crate) fn check_observers(&self) {
        let tracking = &self.keyspace.changes.tracking;
        let mut trackers = 0;
        for (id, session) in self.clients.sessions.iter() {
            let listed = self.clients.monitors.iter().filter(|&&other| other == id).count();
            assert_eq!(listed, usize::from(session.flags.contains(SessionFlags::MONITOR)), "each monitor is listed once");
            if let Some(tracker) = tracking.get(session.tracker) {
                assert_eq!((tracker.client.number, tracker.client.id), (session.id, id), "a session knows its tracker");
                trackers += 1;
            }
        }
        assert_eq!(tracking.trackers(), trackers, "each tracker is a session's");
    }
}

/// `+1700000000.123456 [0 127.0.0.1:1234] "set" "k" "v"`
fn line(now: Now, session: &Session, db: u32, caller: Caller, args: &[&[u8]]) -> Vec<u8> {
    let us = now.unix_us().max(0);
    let source: Cow<'_, str> = match caller {
        Caller::Script => "lua".into(),
        Caller::Client if session.flags.contains(SessionFlags::UNIX_SOCKET) => {
            format!("unix:{}", session.addr.strip_suffix(":0").unwrap_or(&session.addr)).into()
        }
        Caller::Client => (*session.addr).into(),
    };
    let mut line = format!("+{}.{:06} [{db} {source}]", us / 1_000_000, us % 1_000_000).into_bytes();
    for arg in args {
        line.extend_from_slice(b" \"");
        for &byte in *arg {
            quote(&mut line, byte);
        }
        line.push(b'"');
    }
    line.extend_from_slice(b"\r\n");
    line
}

/// A byte as written between quotation marks.
fn quote(line: &mut Vec<u8>, byte: u8) {
    match byte {
        b'\\' | b'"' => line.extend_from_slice(&[b'\\', byte]),
        b'\n' => line.extend_from_slice(b"\\n"),
        b'\r' => line.extend_from_slice(b"\\r"),
        b'\t' => line.extend_from_slice(b"\\t"),
        0x07 => line.extend_from_slice(b"\\a"),
        0x08 => line.extend_from_slice(b"\\b"),
        b' '..=b'~' => line.push(byte),
        _ => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            let digit = |half: u8| DIGITS[half as usize];
            line.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
        }
    }
}
