//! The notation of a row's `syntax` and the argument tree it stands for.
//!
//! ```text
//!   key value [NX | XX] [EX seconds | PX milliseconds]
//!    │    │       │            └ oneof, optional: integer with token EX, integer with token PX
//!    │    │       └ oneof, optional: two pure tokens
//!    │    └ string
//!    └ key
//! ```
//!
//! Words in upper case are tokens, all others are arguments. A token takes the arguments that follow it, up to the next token or
//! optional part: one becomes an argument with a token, several become a block. `[…]` is optional, `<… | …>` is a required
//! choice, and `X [X ...]` repeats `X`, which may be several words and may begin with a token. The type of an argument follows
//! from its name; `name:type` overrides it. A text that does not render to itself is an error, so each row has a single notation.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Maximum nesting depth that [`parse`] accepts.
const DEPTH_MAX: usize = 16;

/// The type of an argument in `COMMAND DOCS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    String,
    Integer,
    Double,
    Key,
    Pattern,
    UnixTime,
}

impl Type {
    const NAMES: [(Type, &'static str); 6] = [
        (Type::String, "string"),
        (Type::Integer, "integer"),
        (Type::Double, "double"),
        (Type::Key, "key"),
        (Type::Pattern, "pattern"),
        (Type::UnixTime, "unix-time"),
    ];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(known, _)| *known == self).map_or("string", |(_, name)| name)
    }

    fn named(name: &str) -> Option<Type> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(known, _)| *known)
    }

    /// The default type of an argument with this name.
    fn of(name: &str) -> Type {
        match name {
            "key" | "key1" | "key2" | "newkey" | "source" | "destination" | "destkey" => Type::Key,
            "pattern" => Type::Pattern,
            "unix-time-seconds" | "unix-time-milliseconds" => Type::UnixTime,
            "score" | "longitude" | "latitude" | "radius" | "width" | "height" | "weight" => Type::Double,
            "seconds" | "milliseconds" | "count" | "cursor" | "offset" | "increment" | "decrement" | "index" | "index1"
            | "index2" | "destination-db" | "numkeys" | "numfields" | "numlocal" | "numreplicas" | "start" | "stop" | "end"
            | "length" | "timeout" | "protover" | "client-id" | "maxage" | "version" | "bit" | "rank" | "numlocks" | "lease"
            | "fencing-token" => Type::Integer,
            _ => Type::String,
        }
    }
}

/// The kind of an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind<'a> {
    /// A value.
    Value(Type),
    /// Only a token.
    PureToken,
    /// One of these.
    OneOf(Vec<Arg<'a>>),
    /// All of these, in order.
    Block(Vec<Arg<'a>>),
}

/// One argument of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its kind.
    pub kind: Kind<'a>,
    /// The word before it.
    pub token: Option<&'a str>,
    /// It may be omitted.
    pub optional: bool,
    /// It may be repeated.
    pub multiple: bool,
    /// Its token is repeated with it.
    pub multiple_token: bool,
}

impl<'a> Arg<'a> {
    fn new(name: impl Into<Cow<'a, str>>, kind: Kind<'a>) -> Self {
        Arg { name: name.into(), kind, token: None, optional: false, multiple: false, multiple_token: false }
    }

    /// Its type in the protocol.
    pub fn type_name(&self) -> &'static str {
        match &self.kind {
            Kind::Value(kind) => kind.name(),
            Kind::PureToken => "pure-token",
            Kind::OneOf(_) => "oneof",
            Kind::Block(_) => "block",
        }
    }

    /// The arguments inside it.
    pub fn children(&self) -> &[Arg<'a>] {
        if let Kind::OneOf(children) | Kind::Block(children) = &self.kind { children } else { &[] }
    }

    fn write_inner(&self, out: &mut String, style: Style) {
        match &self.kind {
            Kind::Value(kind) => {
                out.push_str(&self.name);
                if style == Style::Notation && *kind != Type::of(&self.name) {
                    let _ = write!(out, ":{}", kind.name());
                }
            }
            Kind::PureToken => out.push_str(self.token.unwrap_or("")),
            Kind::Block(children) => write_sequence(children, out, style),
            Kind::OneOf(children) => {
                // A choice in brackets needs no angle brackets of its own, unless there is a token or a repetition.
                let bare = self.optional && self.token.is_none() && !self.multiple;
                out.push_str(if bare { "" } else { "<" });
                for (i, child) in children.iter().enumerate() {
                    out.push_str(if i > 0 { " | " } else { "" });
                    child.write(out, style);
                }
                out.push_str(if bare { "" } else { ">" });
            }
        }
    }

    /// One occurrence, without the brackets of an optional argument: `COUNT count`.
    fn write_once(&self, out: &mut String, style: Style) {
        if let Some(token) = self.token
            && self.kind != Kind::PureToken
        {
            let _ = write!(out, "{token} ");
        }
        self.write_inner(out, style);
    }

    fn write(&self, out: &mut String, style: Style) {
        out.push_str(if self.optional { "[" } else { "" });
        self.write_once(out, style);
        if self.multiple {
            out.push_str(" [");
            if self.multiple_token {
                self.write_once(out, style)
            } else {
                self.write_inner(out, style)
            }
            out.push_str(" ...]");
        }
        out.push_str(if self.optional { "]" } else { "" });
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// The notation of rows.
    Notation,
    /// The notation for readers, without types.
    Plain,
}

fn write_sequence(args: &[Arg<'_>], out: &mut String, style: Style) {
    for (i, arg) in args.iter().enumerate() {
        out.push_str(if i > 0 { " " } else { "" });
        arg.write(out, style);
    }
}

fn sequence_text(args: &[Arg<'_>], style: Style) -> String {
    let mut text = String::new();
    write_sequence(args, &mut text, style);
    text
}

/// The arguments in the notation that [`parse`] reads.
pub fn render(args: &[Arg<'_>]) -> String {
    sequence_text(args, Style::Notation)
}

/// The arguments as in the documentation: as [`render`], without explicit types.
pub fn display(args: &[Arg<'_>]) -> String {
    sequence_text(args, Style::Plain)
}

/// An error in the notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Byte offset in the text.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

impl std::error::Error for SyntaxError {}

/// Parses the notation. The result renders to the same text.
pub fn parse(text: &str) -> Result<Vec<Arg<'_>>, SyntaxError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    let args = parser.sequence()?;
    fail_if!(parser.at < text.len(), parser.fail("a closing bracket or bar too many"));
    fail_if!(render(&args) != text, SyntaxError { at: 0, what: "not written the way it is shown" });
    Ok(args)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// The parsed part of a sequence: finished arguments, and the last token with its arguments so far.
#[derive(Default)]
struct Gathered<'a> {
    done: Vec<Arg<'a>>,
    open: Option<(&'a str, Vec<Arg<'a>>)>,
}

impl<'a> Gathered<'a> {
    fn list(&mut self) -> &mut Vec<Arg<'a>> {
        if let Some((_, args)) = &mut self.open { args } else { &mut self.done }
    }

    /// Ends the open token: without arguments it is a pure token, with one it is that argument's token, several become a block.
    fn close(&mut self) {
        let Some((token, mut args)) = self.open.take() else { return };
        let mut arg = match args.len() {
            0 => Arg::new(token.to_ascii_lowercase(), Kind::PureToken),
            1 if args[0].token.is_none() => args.remove(0),
            _ => Arg::new(token.to_ascii_lowercase(), Kind::Block(args)),
        };
        if matches!(arg.kind, Kind::OneOf(_)) {
            arg.name = token.to_ascii_lowercase().into();
        }
        arg.token = Some(token);
        self.done.push(arg);
    }

    /// Marks the last arguments as repeated, if they render as `text`. Returns false if they do not.
    fn repeat(&mut self, text: &str) -> bool {
        let list = self.list();
        for count in 1..=list.len() {
            let from = list.len() - count;
            if sequence_text(&list[from..], Style::Notation) != text {
                continue;
            }
            if count == 1 && list[from].token.is_none() {
                list[from].multiple = true;
            } else {
                let parts = list.split_off(from);
                list.push(Arg { multiple: true, ..Arg::new("data", Kind::Block(parts)) });
            }
            return true;
        }
        self.close();
        match self.done.last_mut() {
            Some(last) if last.token.is_some() && sequence_text(std::slice::from_ref(last), Style::Notation) == text => {
                last.multiple = true;
                last.multiple_token = true;
                true
            }
            _ => false,
        }
    }
}

impl<'a> Parser<'a> {
    fn fail(&self, what: &'static str) -> SyntaxError {
        SyntaxError { at: self.at, what }
    }

    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|&&b| b == b' ').count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find([' ', '[', ']', '<', '>', '|']).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Parses up to the end, a bar or a closing bracket.
    fn sequence(&mut self) -> Result<Vec<Arg<'a>>, SyntaxError> {
        let mut gathered = Gathered::default();
        while let Some(next) = self.peek() {
            match next {
                b'|' | b']' | b'>' => break,
                b'[' => match self.repetition() {
                    Some(text) if gathered.repeat(text) => {}
                    Some(_) => return Err(self.fail("repeats something else than what stands before it")),
                    None => {
                        gathered.close();
                        let arg = self.bracketed(b']')?;
                        gathered.done.push(arg);
                    }
                },
                b'<' => {
                    let arg = self.bracketed(b'>')?;
                    gathered.list().push(arg);
                }
                _ => {
                    let word = self.word();
                    fail_if!(word == "...", self.fail("repeats nothing"));
                    if is_token(word) {
                        gathered.close();
                        gathered.open = Some((word, Vec::new()));
                    } else {
                        gathered.list().push(value(word));
                    }
                }
            }
        }
        gathered.close();
        Ok(gathered.done)
    }

    /// At `[X ...]`: skips it and returns `X`.
    fn repetition(&mut self) -> Option<&'a str> {
        let inner = &self.text[self.at + 1..];
        let mut depth = 1;
        let end = inner.bytes().position(|b| {
            depth += (b == b'[') as i32 - (b == b']') as i32;
            depth == 0
        })?;
        let repeated = inner[..end].strip_suffix(" ...")?;
        self.at += end + 2;
        Some(repeated)
    }

    /// Parses `[a | b]` or `<a | b>`.
    fn bracketed(&mut self, closing: u8) -> Result<Arg<'a>, SyntaxError> {
        self.depth += 1;
        fail_if!(self.depth > DEPTH_MAX, self.fail("nested too deeply"));
        self.at += 1;
        let mut choices = Vec::new();
        loop {
            let args = self.sequence()?;
            let Some(first) = args.first() else { return Err(self.fail("nothing to choose")) };
            choices.push(match args.len() {
                1 => args.into_iter().next().ok_or_else(|| self.fail("nothing to choose"))?,
                _ => {
                    let name = format!("{}-block", first.name);
                    Arg::new(name, Kind::Block(args))
                }
            });
            match self.peek() {
                Some(b'|') => self.at += 1,
                Some(b) if b == closing => break,
                _ => return Err(self.fail("a bracket that does not match")),
            }
        }
        self.at += 1;
        self.depth -= 1;
        let mut arg = if choices.len() > 1 {
            let name = choice_name(&choices);
            Arg::new(name, Kind::OneOf(choices))
        } else {
            choices.pop().ok_or_else(|| self.fail("nothing to choose"))?
        };
        if closing == b']' {
            fail_if!(arg.optional, self.fail("brackets within brackets"));
            arg.optional = true;
        }
        Ok(arg)
    }
}

/// Whether a word is a token: upper case letters, or text that cannot begin a name (`""`, `*`, `=`, `~`, `$`).
fn is_token(word: &str) -> bool {
    !word.bytes().any(|b| b.is_ascii_lowercase())
}

fn value(word: &str) -> Arg<'_> {
    if let Some((name, kind)) = word.rsplit_once(':')
        && let Some(kind) = Type::named(kind)
    {
        return Arg::new(name, Kind::Value(kind));
    }
    Arg::new(word, Kind::Value(Type::of(word)))
}

/// The name of a choice, which the notation does not have; it is derived from its alternatives.
fn choice_name(choices: &[Arg<'_>]) -> &'static str {
    const NAMES: &[(&[&str], &str)] = &[
        (&["EX", "PX", "PERSIST", "KEEPTTL"], "expiration"),
        (&["NX", "XX", "FNX", "FXX", "IFEQ", "IFNE"], "condition"),
        (&["GT", "LT"], "comparison"),
        (&["ASYNC", "SYNC"], "flush-type"),
        (&["SAVE", "NOSAVE"], "save-selector"),
        (&["ASC", "DESC"], "order"),
        (&["BYSCORE", "BYLEX"], "sortby"),
        (&["MIN", "MAX"], "where"),
        (&["ON", "OFF"], "status"),
        (&["LEFT", "RIGHT", "BEFORE", "AFTER"], "where"),
        (&["BYTE", "BIT"], "unit"),
        (&["AND", "OR"], "operation"),
        (&["WRAP", "SAT"], "overflow-type"),
        (&["INCRBY"], "write-operation"),
        (&["GET"], "operation"),
    ];
    let has = |tokens: &[&str]| choices.iter().any(|arg| arg.token.is_some_and(|token| tokens.contains(&token)));
    NAMES.iter().find(|(tokens, _)| has(tokens)).map_or("choice", |(_, name)| name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shape(text: &str) -> String {
        fn one(arg: &Arg<'_>) -> String {
            let mut text = format!("{}:{}", arg.name, arg.type_name());
            if let Some(token) = arg.token.filter(|_| arg.kind != Kind::PureToken) {
                text = format!("{token}={text}");
            }
            if !arg.children().is_empty() {
                let inner: Vec<String> = arg.children().iter().map(one).collect();
                text = format!("{text}({})", inner.join(" "));
            }
            text + if arg.optional { "?" } else { "" }
                + if arg.multiple { "*" } else { "" }
                + if arg.multiple_token { "+" } else { "" }
        }
        parse(text).unwrap().iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn trees_have_the_shape_of_the_documented_ones() {
        for (text, expected) in [
            ("", ""),
            ("key [key ...]", "key:key*"),
            ("script numkeys [key [key ...]] [arg [arg ...]]", "script:string numkeys:integer key:key?* arg:string?*"),
            ("key value [key value ...]", "data:block(key:key value:string)*"),
            (
                "key seconds [NX | XX] FIELDS numfields field [field ...]",
                "key:key seconds:integer condition:oneof(nx:pure-token xx:pure-token)? \
                 FIELDS=fields:block(numfields:integer field:string*)",
            ),
            (
                "FIELDS numfields field value [field value ...]",
                "FIELDS=fields:block(numfields:integer data:block(field:string value:string)*)",
            ),
            ("[MATCH pattern] [COUNT count]", "MATCH=pattern:pattern? COUNT=count:integer?"),
            ("[GET pattern [GET pattern ...]]", "GET=pattern:pattern?*+"),
            ("[ID client-id [client-id ...]]", "ID=client-id:integer?*"),
            ("key increment:double", "key:key increment:double"),
            ("<ip:port | ID client-id>", "choice:oneof(ip:port:string ID=client-id:integer)"),
            (
                "[FILTERBY <MODULE module-name | PATTERN pattern>]",
                "FILTERBY=filterby:oneof(MODULE=module-name:string PATTERN=pattern:pattern)?",
            ),
            (
                "[protover [AUTH username password]]",
                "protover-block:block(protover:integer AUTH=auth:block(username:string password:string)?)?",
            ),
            ("[LIMIT offset count]", "LIMIT=limit:block(offset:integer count:integer)?"),
            ("STREAMS key [key ...] id [id ...]", "STREAMS=streams:block(key:key* id:string*)"),
        ] {
            assert_eq!(shape(text), expected, "{text}");
        }
    }

    #[test]
    fn what_would_not_read_back_is_refused() {
        for text in ["[", "]", "[]", "a |", "<a | b", "[a>", "key [value ...]", "...", "[[a]]", "key  value", "[a|b]", "<a>"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"[a ".repeat(5000)).is_err());
    }

    #[test]
    fn types_are_not_shown_to_people() {
        assert_eq!(display(&parse("key increment:double").unwrap()), "key increment");
        assert_eq!(render(&parse("key increment:double").unwrap()), "key increment:double");
    }
}
