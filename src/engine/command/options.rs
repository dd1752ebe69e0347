//! Reads the options of a request, which are words in any case.
//!
//! A handler goes through a [`Tail`] and matches each word in [`upper`] case. [`words`] splits the options of commands in which
//! they decide what the other arguments are:
//!
//! ```text
//!   SORT mine  LIMIT 0 5  STORE by  GET #        words(args, 2, OPTIONS)
//!              ─────────  ────────  ─────
//! ```
//! The row's key function and the handler go through the same parts, so they cannot read a request in two ways.

use std::ops::Deref;

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::command::keys::{Access, KeyAt, KeyUse};

/// Maximum number of bytes of a word in upper case.
const UPPER_MAX: usize = 16;

/// A word in ASCII upper case; see [`upper`].
pub struct Upper {
    letters: [u8; UPPER_MAX],
    len: usize,
}

impl Deref for Upper {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.letters[..self.len]
    }
}

/// A word in ASCII upper case. One of more than 16 bytes is no option, and becomes empty.
#[inline]
pub fn upper(word: &[u8]) -> Upper {
    let mut letters = [0; UPPER_MAX];
    let mut len = 0;
    if let Some(start) = letters.get_mut(..word.len()) {
        start.copy_from_slice(word);
        len = word.len();
    }
    // All of them: the length is known to the compiler.
    letters.make_ascii_uppercase();
    Upper { letters, len }
}

/// What a word in any case stands for; `None` if it is none of these words.
#[inline]
pub fn choice<T: Copy>(word: &[u8], of: &[(&str, T)]) -> Option<T> {
    of.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes())).map(|&(_, value)| value)
}

/// Whether a command's only option is given: one of these words. Fails with a syntax error if anything else is.
pub fn flag(args: &[&[u8]], names: &[&str]) -> Result<bool> {
    match optional(args)? {
        None => Ok(false),
        Some(word) if names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes())) => Ok(true),
        Some(_) => Err(Error::SYNTAX),
    }
}

/// A command's only argument of a kind; `None` without it. Fails with a syntax error if there are more.
#[inline]
pub fn optional<'a>(args: &[&'a [u8]]) -> Result<Option<&'a [u8]>> {
    if args.len() > 1 { Err(Error::SYNTAX) } else { Ok(args.first().copied()) }
}

/// The argument of a command's only option; `None` without the option. Fails with a syntax error if anything else is given.
#[inline]
pub fn option<'a>(args: &[&'a [u8]], name: &str) -> Result<Option<&'a [u8]>> {
    if args.len() > 2 { Err(Error::SYNTAX) } else { Tail(args).value_of(name) }
}

/// An integer. Fails with Redis's error if the argument is none.
#[inline]
pub fn integer(argument: &[u8]) -> Result<i64> {
    parse_i64(argument).ok_or(Error::NOT_INTEGER)
}

/// The arguments of a request that have not been read yet.
pub struct Tail<'r, 'a>(pub &'r [&'a [u8]]);

impl<'a> Iterator for Tail<'_, 'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (first, left) = self.0.split_first()?;
        self.0 = left;
        Some(first)
    }
}

impl<'a> Tail<'_, 'a> {
    /// The number of arguments that are left.
    #[inline]
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// The next argument. Fails with a syntax error if there is none.
    #[inline]
    pub fn value(&mut self) -> Result<&'a [u8]> {
        self.next().ok_or(Error::SYNTAX)
    }

    /// The next argument as an integer. Fails with a syntax error if there is none, and with Redis's error if it is no integer.
    #[inline]
    pub fn integer(&mut self) -> Result<i64> {
        integer(self.value()?)
    }

    /// The argument of the next option, which must be this one; `None` at the end. Fails with a syntax error if it is another
    /// option, or has no argument.
    #[inline]
    pub fn value_of(&mut self, name: &str) -> Result<Option<&'a [u8]>> {
        match self.next() {
            None => Ok(None),
            Some(word) if word.eq_ignore_ascii_case(name.as_bytes()) => self.value().map(Some),
            Some(_) => Err(Error::SYNTAX),
        }
    }
}

/// For [`Options`]: an option with all arguments that follow, at least one.
pub const REST: usize = usize::MAX;

/// The options of a command in upper case, and how many arguments each takes.
pub type Options = &'static [(&'static str, usize)];

/// An option of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'r, 'a> {
    /// Its name in the table; empty if the argument is no option, or if arguments are missing. A handler refuses it. What follows
    /// it is the next option.
    pub name: &'static str,
    /// Its arguments.
    pub args: &'r [&'a [u8]],
    /// The position of the first of them in the request.
    pub at: usize,
}

impl Word<'_, '_> {
    /// The destination that an option names: a key that is overwritten.
    pub fn destination(&self) -> KeyAt {
        KeyAt { position: self.at, access: Access::Overwrite, uses: KeyUse::UPDATE }
    }
}

/// The options of a request from a position on.
pub fn words<'r, 'a>(args: &'r [&'a [u8]], from: usize, options: Options) -> impl Iterator<Item = Word<'r, 'a>> {
    let mut next = from;
    std::iter::from_fn(move || {
        let word = args.get(next)?;
        let at = next + 1;
        let rest = &args[at..];
        let found = options.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        let taken = found.and_then(|&(name, takes)| match takes {
            REST if !rest.is_empty() => Some((name, rest)),
            _ => Some((name, rest.get(..takes)?)),
        });
        let (name, args) = taken.unwrap_or(("", &[]));
        next = at + args.len();
        Some(Word { name, args, at })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_known_in_any_case() {
        for (word, folded) in [
            (&b"limit"[..], &b"LIMIT"[..]),
            (b"LiMiT", b"LIMIT"),
            (b"", b""),
            (b"a-1 \xe4{", b"A-1 \xe4{"),
            (b"exactly16bytesxx", b"EXACTLY16BYTESXX"),
            (b"exactly16bytesxxx", b""),
            (b"limit\0", b"LIMIT\0"),
        ] {
            assert_eq!(&*upper(word), folded);
        }
        let sides = [("LEFT", 1), ("right", 2)];
        assert_eq!(["left", "Right", "lef", ""].map(|word| choice(word.as_bytes(), &sides)), [Some(1), Some(2), None, None]);
    }

    #[test]
    fn what_is_missing_or_too_much_is_a_syntax_error() {
        let nothing: [&[u8]; 0] = [];
        assert_eq!(flag(&nothing, &["SYNC", "ASYNC"]), Ok(false));
        assert_eq!(flag(&[b"async"], &["SYNC", "ASYNC"]), Ok(true));
        assert_eq!(flag(&[b"syn"], &["SYNC", "ASYNC"]), Err(Error::SYNTAX));
        assert_eq!(flag(&[b"sync", b"sync"], &["SYNC", "ASYNC"]), Err(Error::SYNTAX));
        assert_eq!(optional(&nothing), Ok(None));
        assert_eq!(optional(&[b"7"]), Ok(Some(&b"7"[..])));
        assert_eq!(optional(&[b"7", b"8"]), Err(Error::SYNTAX));
        assert_eq!(option(&nothing, "PX"), Ok(None));
        assert_eq!(option(&[b"px", b"7"], "PX"), Ok(Some(&b"7"[..])));
        assert_eq!(option(&[b"px"], "PX"), Err(Error::SYNTAX));
        assert_eq!(option(&[b"ex", b"7"], "PX"), Err(Error::SYNTAX));
        assert_eq!(option(&[b"px", b"7", b"px"], "PX"), Err(Error::SYNTAX));
    }

    #[test]
    fn a_tail_is_read_to_its_end() {
        let mut rest = Tail(&[b"count", b"5", b"-7", b"x", b"other"]);
        assert_eq!(rest.value_of("COUNT"), Ok(Some(&b"5"[..])));
        assert_eq!((rest.left(), rest.integer(), rest.integer()), (3, Ok(-7), Err(Error::NOT_INTEGER)));
        assert_eq!(rest.value_of("COUNT"), Err(Error::SYNTAX));
        assert_eq!((rest.left(), rest.next(), rest.value_of("COUNT")), (0, None, Ok(None)));
        assert_eq!((rest.value(), rest.integer()), (Err(Error::SYNTAX), Err(Error::SYNTAX)));
    }

    #[test]
    fn each_option_takes_its_arguments_whatever_they_say() {
        const OPTIONS: Options = &[("BY", 1), ("LIMIT", 2), ("ALPHA", 0), ("STREAMS", REST)];
        let split = |line: &str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let text = |word: Word<'_, '_>| {
                let args: Vec<_> = word.args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
                format!("{}@{}({})", word.name, word.at, args.join(" "))
            };
            words(&args, 1, OPTIONS).map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(split("sort"), "");
        assert_eq!(split("sort by limit Limit by by alpha"), "BY@2(limit) LIMIT@4(by by) ALPHA@7()");
        assert_eq!(split("sort x by"), "@2() @3()");
        assert_eq!(split("sort limit 1"), "@2() @3()");
        assert_eq!(split("sort by streams streams streams a"), "BY@2(streams) STREAMS@4(streams a)");
        assert_eq!(split("sort streams"), "@2()");
    }
}
