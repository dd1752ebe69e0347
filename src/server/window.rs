//! Pipelined requests that are parsed ahead of their execution, so that the memory they will touch is on its way.
//!
//! A lookup among a million keys waits for memory twice: for the slot and for the entry. One request cannot avoid that, but the
//! requests of a pipeline can wait together: first all their slots are asked for, then all their entries, then they are executed.

use smallvec::SmallVec;

use crate::commands;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::session::SessionId;
use crate::resp::request::RequestParser;
use crate::store::dict::KeyHash;

/// Requests that are parsed ahead at most.
pub const WINDOW: usize = 16;

/// One request that is parsed and waits to be executed.
#[derive(Default)]
pub struct Pending {
    /// Holds its arguments.
    pub parser: RequestParser,
    /// Where it begins in the input.
    pub start: usize,
    /// Where it ends in the input.
    pub end: usize,
    /// Its row, where it was looked up already.
    pub command: Option<&'static Command>,
    /// Which of its arguments is the first key, and its hash, where that was looked up.
    key: Option<(usize, KeyHash)>,
}

impl Pending {
    /// Begins with a request that lies there in the input.
    #[inline]
    pub fn place(&mut self, start: usize, end: usize) {
        (self.start, self.end, self.command, self.key) = (start, end, None, None);
    }

    /// Its first key, among its arguments, and the key's hash, where that was looked up.
    #[inline]
    pub fn key<'a>(&self, args: &[&'a [u8]]) -> Option<(&'a [u8], KeyHash)> {
        self.key.and_then(|(position, hash)| Some((*args.get(position)?, hash)))
    }

    /// Its arguments.
    pub fn arguments<'a>(&'a self, input: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.parser.arguments(&input[self.start..])
    }

    /// Puts its arguments into an empty list.
    #[inline]
    pub fn collect_arguments<'a>(&'a self, input: &'a [u8], list: &mut SmallVec<[&'a [u8]; 16]>) {
        let arguments = self.arguments(input);
        if arguments.len() > list.inline_size() {
            list.extend(arguments);
            return;
        }
        for argument in arguments {
            list.push(argument);
        }
    }
}

/// Asks memory for what several requests of a session will touch first.
pub fn prefetch(engine: &Engine, id: SessionId, pending: &mut [Pending], input: &[u8]) {
    let db = engine.sessions[id.0 as usize].db;
    let keyspace = &engine.keyspace;
    for request in &mut *pending {
        let (command, key) = first_key(request, input);
        let key = key.map(|(position, key)| (position, keyspace.prefetch_slot(db, key)));
        (request.command, request.key) = (command, key);
    }
    for (_, hash) in pending.iter().filter_map(|request| request.key) {
        keyspace.prefetch_entry(db, hash);
    }
}

/// The row and the first key of a request, where it has them. Nothing is checked yet: a guess that misses costs only the look.
#[inline]
fn first_key<'a>(request: &'a Pending, input: &'a [u8]) -> (Option<&'static Command>, Option<(usize, &'a [u8])>) {
    let mut arguments = request.arguments(input);
    let Some((command, position)) = arguments.next().and_then(commands::lookup_with_key) else { return (None, None) };
    (Some(command), if position == 0 { None } else { arguments.nth(position - 1).map(|key| (position, key)) })
}
