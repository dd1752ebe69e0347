//! Pipelined requests that are parsed before they execute, so that the memory they touch is prefetched.
//!
//! A lookup among a million keys waits for memory twice: for the slot and for the entry. A single request cannot avoid that, but
//! the requests of a pipeline can overlap their waits: all slots are prefetched first, then all entries, and then the requests
//! execute.
//!
//! ```text
//!   input ─▶ fill: arguments of up to 16 requests, in one list ─▶ prefetch: rows, keys, hashes ─▶ execute one after the other
//! ```

use std::borrow::Cow;

use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::resp::request::{Limits, Progress, ProtocolError, RequestParser, whole_request};
use crate::store::dict::KeyHash;

/// Maximum number of requests parsed ahead.
pub(super) const WINDOW: usize = 16;
/// No more requests are parsed ahead once they have this many arguments, each blank line counted as one.
const ARGUMENTS_AHEAD: usize = 512;
/// Maximum capacity for arguments kept between turns; a request may have a million.
const ARGUMENTS_KEPT: usize = 2 * ARGUMENTS_AHEAD;

/// A parsed request that waits for its execution.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    /// Offset of its end in the input.
    pub end: usize,
    /// Its row, if it was looked up.
    pub command: Option<&'static Command>,
    /// Number of its arguments in the shared list; 0 if they do not lie in the input.
    arguments: usize,
    /// Index of the first key among its arguments, or 0 if the key was not looked up; and the key's hash.
    key: (usize, KeyHash),
}

/// The parsed requests that wait for their execution.
#[derive(Default)]
pub(super) struct Window<'a> {
    requests: Vec<Pending>,
    arguments: Vec<&'a [u8]>,
    /// Requests with quotes, whose arguments do not lie in the input: the end of each, and the parser that holds its arguments.
    quoted: Vec<(usize, RequestParser)>,
    /// Number of blank lines and empty requests between them.
    pub blank: usize,
}

impl<'a> Window<'a> {
    /// Parses requests from offset `at` until there are `ahead`, or until something else stops it. Returns where parsing ended,
    /// and what stopped it. Afterwards the parser holds the incomplete last request; before, it may hold one that began in
    /// earlier input.
    #[inline]
    pub fn fill(
        &mut self,
        parser: &mut RequestParser,
        input: &'a [u8],
        at: usize,
        ahead: usize,
        limits: &Limits,
    ) -> (usize, Option<Result<Progress, ProtocolError>>) {
        self.clear();
        let mut rest = &input[at..];
        let mut partial = parser.is_partial();
        while self.requests.len() < ahead && self.arguments.len() + self.blank < ARGUMENTS_AHEAD {
            let first = self.arguments.len();
            let whole = if partial { None } else { whole_request(rest, limits, &mut self.arguments) };
            if let Some(behind) = whole {
                rest = behind;
                self.push(first, input.len() - rest.len());
            } else {
                let stop;
                (rest, stop) = self.parse(parser, rest, input.len(), limits);
                if stop.is_some() {
                    return (input.len() - rest.len(), stop);
                }
                partial = false;
            }
            if rest.is_empty() {
                return (input.len(), Some(Ok(Progress::Incomplete)));
            }
        }
        (input.len() - rest.len(), None)
    }

    #[inline]
    fn push(&mut self, first: usize, end: usize) {
        let arguments = self.arguments.len() - first;
        self.requests.push(Pending { end, command: None, arguments, key: (0, KeyHash::ZERO) });
    }

    /// Slow path: continues with the parser. Returns the rest of the input, and the parser's result if it is not a request.
    #[cold]
    #[inline(never)]
    fn parse(
        &mut self,
        parser: &mut RequestParser,
        rest: &'a [u8],
        input_len: usize,
        limits: &Limits,
    ) -> (&'a [u8], Option<Result<Progress, ProtocolError>>) {
        match parser.parse(rest, limits) {
            Ok(Progress::Complete { consumed }) => {
                let (first, behind) = (self.arguments.len(), &rest[consumed..]);
                let end = input_len - behind.len();
                if parser.append_arguments(rest, &mut self.arguments) {
                    parser.reset();
                } else {
                    self.quoted.push((end, std::mem::take(parser)));
                }
                self.push(first, end);
                (behind, None)
            }
            Ok(Progress::Empty { consumed }) => {
                parser.reset();
                self.blank += 1;
                (&rest[consumed..], None)
            }
            other => (rest, Some(other)),
        }
    }

    /// Prefetches the memory that the requests of a session will touch first, if there are several.
    #[inline]
    pub fn prefetch(&mut self, engine: &Engine, id: SessionId) {
        if self.requests.len() < 2 {
            return;
        }
        let ahead = engine.keyspace().ahead(engine.sessions()[id].db);
        let commands = engine.commands();
        let mut rest = &self.arguments[..];
        for request in &mut self.requests {
            let arguments;
            (arguments, rest) = rest.split_at(request.arguments);
            let Some(name) = arguments.first() else { continue };
            let position;
            (request.command, position) = commands.lookup_with_first_key(name);
            // Nothing is checked yet: a wrong guess costs only the lookup.
            if position > 0
                && let Some(key) = arguments.get(position)
            {
                request.key = (position, ahead.ask_for_slot(key));
            }
        }
        for request in self.requests.iter().filter(|request| request.key.0 > 0) {
            ahead.ask_for_entry(request.key.1);
        }
    }

    /// The requests with their arguments (at least one each), in the order of arrival.
    #[inline]
    pub fn requests(&self) -> impl Iterator<Item = (&Pending, Cow<'_, [&[u8]]>)> {
        let mut rest = &self.arguments[..];
        self.requests.iter().map(move |request| {
            let arguments;
            (arguments, rest) = rest.split_at(request.arguments);
            (request, if arguments.is_empty() { self.quoted_arguments(request).into() } else { arguments.into() })
        })
    }

    #[cold]
    fn quoted_arguments(&self, request: &Pending) -> Vec<&[u8]> {
        let parser = self.quoted.iter().find(|(end, _)| *end == request.end).map(|(_, parser)| parser);
        parser.into_iter().flat_map(|parser| parser.arguments(&[])).collect()
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.arguments.clear();
        self.quoted.clear();
        self.blank = 0;
    }

    /// Empties the window, and keeps its capacity for other input.
    #[inline]
    pub fn emptied(mut self) -> Window<'static> {
        self.clear();
        if self.arguments.capacity() > ARGUMENTS_KEPT {
            self.arguments = Vec::new();
        }
        // The list is empty: this changes its lifetime only, and reuses its allocation.
        let arguments = self.arguments.into_iter().map(|_| &[][..]).collect();
        Window { requests: self.requests, arguments, quoted: self.quoted, blank: 0 }
    }
}

impl Pending {
    /// Its first key and the key's hash, if they were looked up.
    #[inline]
    pub fn key<'b>(&self, arguments: &[&'b [u8]]) -> Option<(&'b [u8], KeyHash)> {
        let (position, hash) = self.key;
        if position > 0 { arguments.get(position).map(|key| (*key, hash)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsed requests, as a line and an end offset each.
    fn filled(window: &Window<'_>) -> Vec<(String, usize)> {
        let line = |arguments: &[&[u8]]| String::from_utf8_lossy(&arguments.join(&b' ')).into_owned();
        window.requests().map(|(request, arguments)| (line(&arguments), request.end)).collect()
    }

    #[test]
    fn requests_of_all_forms_are_parsed_ahead() {
        let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nGET 'a b'\r\n\r\n*1\r\n$4\r\nPING\r\nSET k \"v\"\nGET k\r\n*2\r\n$3\r\nGET\r\n$9\r\nlock";
        let (mut parser, limits) = (RequestParser::new(), Limits::default());
        let mut window = Window::default();
        let (at, stop) = window.fill(&mut parser, input, 0, WINDOW, &limits);
        assert_eq!((at, stop, window.blank), (64, Some(Ok(Progress::Incomplete)), 1));
        let all = [("GET k", 20), ("GET a b", 31), ("PING", 47), ("SET k v", 57), ("GET k", 64)];
        assert_eq!(filled(&window), all.map(|(line, end)| (line.to_owned(), end)));
        // The rest of the last request arrives.
        let more = [&input[at..], b":1234\r\nPING\r\n"].concat();
        let mut window = window.emptied();
        let (at, stop) = window.fill(&mut parser, &more, 0, 1, &limits);
        assert_eq!((at, stop, window.blank), (more.len() - 6, None, 0));
        assert_eq!(filled(&window), [("GET lock:1234".to_owned(), at)]);
        let (at, stop) = window.fill(&mut parser, &more, at, 1, &limits);
        assert_eq!((at, stop), (more.len(), Some(Ok(Progress::Incomplete))));
        assert_eq!(filled(&window), [("PING".to_owned(), at)]);
        assert!(!parser.is_partial());
    }

    #[test]
    fn what_is_parsed_ahead_is_bounded() {
        let (mut parser, limits) = (RequestParser::new(), Limits::default());
        let (short, long) =
            (b"*1\r\n$4\r\nPING\r\n".repeat(100), [b"*300\r\n".to_vec(), b"$1\r\nx\r\n".repeat(300)].concat().repeat(9));
        let mut window = Window::default();
        assert_eq!(window.fill(&mut parser, &short, 0, WINDOW, &limits), (WINDOW * 14, None));
        assert_eq!(window.requests.len(), WINDOW);
        assert_eq!(window.fill(&mut parser, &long, 0, WINDOW, &limits), (long.len() / 9 * 2, None));
        assert_eq!((window.requests.len(), window.requests[1].arguments), (2, 300));
        let error = window.fill(&mut parser, b"PING\r\n*x\r\nPING\r\n", 0, WINDOW, &limits);
        assert_eq!(error, (6, Some(Err(ProtocolError::InvalidMultibulkLength))));
        assert_eq!(window.requests.len(), 1);
    }

    #[test]
    fn room_is_kept_and_much_room_is_not() {
        let short = b"*1\r\n$4\r\nPING\r\n".repeat(16);
        let long = [b"*5000\r\n".to_vec(), b"$1\r\nx\r\n".repeat(5000)].concat();
        let (mut parser, limits) = (RequestParser::new(), Limits::default());
        let mut window = Window::default();
        window.fill(&mut parser, &short, 0, WINDOW, &limits);
        let (room, address) = (window.arguments.capacity(), window.arguments.as_ptr().addr());
        let mut window = window.emptied();
        assert_eq!((window.arguments.capacity(), window.arguments.as_ptr().addr(), window.requests.len()), (room, address, 0));
        window.fill(&mut parser, &long, 0, WINDOW, &limits);
        assert_eq!(window.requests[0].arguments, 5000);
        assert_eq!(window.emptied().arguments.capacity(), 0);
    }
}
