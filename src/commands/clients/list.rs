//! `CLIENT LIST` and `CLIENT INFO`: one line per connection.

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::base::number::parse_i64;
use crate::base::time::Now;
use crate::commands::clients::client::{Type, by_age};
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::jobs::{ReplyKind, Work};
use crate::engine::observe::client_line::{describe, describe_own};
use crate::engine::session::SessionFlags;

pub(crate) fn info(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let mut text = String::new();
    describe_own(&mut text, cx.engine, cx.now, cx.session, cx.db);
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

pub(crate) fn list(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
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

/// Lists all sessions of a type, or all sessions.
fn list_all(cx: &mut Context<'_>, wanted: Option<Type>) -> Result {
    let all = by_age(cx);
    if cx.may_start_job(all.len()) {
        cx.start_job(Listing { all, at: 0, wanted });
        return Ok(());
    }
    let mut text = String::new();
    for (_, id) in all {
        if wanted.is_none_or(|wanted| Type::of(&cx.engine.sessions()[id]) == wanted) {
            describe_to(&mut text, cx, id);
        }
    }
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

/// A list of thousands of sessions, in steps. Sessions that connect meanwhile are not listed.
struct Listing {
    /// The ids of the sessions, and their positions when the list began.
    all: Vec<(u64, SessionId)>,
    at: usize,
    wanted: Option<Type>,
}

impl Work for Listing {
    fn slice(&self) -> u32 {
        // A line takes 0.6 µs.
        256
    }

    fn go_on(&mut self, engine: &mut Engine, now: Now, own: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        // The client does not show itself as blocked.
        engine.sessions_mut()[own].flags.remove(SessionFlags::BLOCKED);
        let mut text = String::new();
        let end = self.all.len().min(self.at + count as usize);
        for &(_, id) in &self.all[self.at..end] {
            if let Some(session) =
                engine.sessions().get(id).filter(|session| self.wanted.is_none_or(|wanted| Type::of(session) == wanted))
            {
                describe(&mut text, engine, now, id, session.db);
            }
        }
        engine.sessions_mut()[own].flags |= SessionFlags::BLOCKED;
        reply.extend_from_slice(text.as_bytes());
        self.at = end;
        end == self.all.len()
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Text
    }
}

/// Appends the line of a session.
fn describe_to(line: &mut String, cx: &Context<'_>, id: SessionId) {
    // A `SELECT` in the running command counts already; it is stored in the session when the command ends.
    let db = if id == cx.session { cx.db } else { cx.engine.sessions()[id].db };
    describe(line, cx.engine, cx.now, id, db);
}
