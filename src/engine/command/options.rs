//! Splits the options of a request, for commands whose options decide what their other arguments are.
//!
//! ```text
//!   SORT mine  LIMIT 0 5  STORE by  GET #        words(args, 2, OPTIONS)
//!              ─────────  ────────  ─────
//! ```
//! The row's key function and the handler go through the same parts, so they cannot read a request in two ways.

use crate::engine::command::keys::{Access, KeyAt, KeyUse};

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
