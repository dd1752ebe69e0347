//! Kinds of directives: parsing, checking and formatting of their values.

use super::rules::Rules;
use crate::base::number::parse_f64;
use crate::keyspace::change::Classes;

/// A limit on the unwritten replies of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    /// Bytes at which the client is closed immediately; 0 for never.
    pub hard: u64,
    /// Bytes at which the client is closed after `seconds`; 0 for never.
    pub soft: u64,
    /// Seconds for which `soft` may be exceeded.
    pub seconds: u64,
}

const INT_MAX: i128 = i32::MAX as i128;
const LONG_MAX: i128 = i64::MAX as i128;

/// Maximum number of addresses to listen on.
const ADDRESSES_MAX: usize = 16;

/// The classes of `client-output-buffer-limit`, in the order and with the names of `CONFIG GET`.
pub const OUTPUT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

/// A value of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// Yes or no.
    Bool(bool),
    /// A number, in a type that holds every `u64`.
    Int(i128),
    /// Bytes.
    Text(Vec<u8>),
    /// One of several words.
    Choice(&'static str),
    /// A list of words.
    Words(Vec<String>),
    /// Classes of events.
    Events(Classes),
    /// One limit for each of [`OUTPUT_CLASSES`].
    Output([OutputLimit; 3]),
    /// The rules of `lock-expiry-publish`.
    Rules(Rules),
}

/// The kind of a directive's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    /// A decimal number between two bounds.
    Integer(i128, i128),
    /// An octal number between two bounds.
    Octal(i128, i128),
    /// A number of bytes between two bounds, optionally with a unit: `k m g` are powers of 1000, `kb mb gb` of 1024.
    Memory(i128, i128),
    /// As `Memory`, or a percentage up to 100, which is stored as a negative number.
    MemoryOrPercent,
    /// Any text.
    Text,
    /// The name of a file, without a folder; a name with one is refused with this reason.
    FileName(&'static str),
    /// Any text, which is not logged.
    Secret,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Host names and addresses, at most [`ADDRESSES_MAX`].
    Addresses,
    /// Any number of percentages.
    Percentiles,
    /// The letters of `notify-keyspace-events`.
    Events,
    /// Groups of four words: class, hard limit, soft limit, seconds.
    OutputLimits,
    /// Groups of three words: a key pattern, a channel and a message; or names of shipped sets of such groups. Several lines in a
    /// file accumulate.
    Rules,
    /// Pairs of seconds and numbers of changes. Several lines in a file accumulate; an empty word clears them.
    SavePoints,
    /// Plain words, at least one.
    Words,
}

impl Kind {
    /// Whether a value with spaces consists of several words.
    pub fn takes_words(self) -> bool {
        matches!(self, Kind::Addresses | Kind::Words | Kind::Percentiles | Kind::OutputLimits | Kind::Rules | Kind::SavePoints)
    }

    /// Whether values in a file or in flags accumulate. `CONFIG SET` replaces all of them.
    pub fn accumulates(self) -> bool {
        matches!(self, Kind::Rules | Kind::SavePoints)
    }

    /// Parses a value. `old` is the current value, of which it may change a part.
    pub fn parse(self, words: &[&[u8]], old: &Raw) -> Result<Raw, String> {
        fail_if!(!self.takes_words() && words.len() != 1, "wrong number of arguments".to_owned());
        let word = words.first().copied().unwrap_or_default();
        match self {
            Kind::Bool if word.eq_ignore_ascii_case(b"yes") => Ok(Raw::Bool(true)),
            Kind::Bool if word.eq_ignore_ascii_case(b"no") => Ok(Raw::Bool(false)),
            Kind::Bool => Err("argument must be 'yes' or 'no'".to_owned()),
            Kind::Integer(min, max) => {
                let n = integer(word).ok_or("argument couldn't be parsed into an integer")?;
                within(n, min, max).then_some(Raw::Int(n)).ok_or_else(|| bounds(min, max))
            }
            Kind::Octal(min, max) => {
                let text = std::str::from_utf8(word).unwrap_or_default();
                let n = i64::from_str_radix(text, 8).map_err(|_| "argument couldn't be parsed as an octal number")?;
                let refusal = || format!("argument must be between {min:o} and {max:o} inclusive");
                within(n.into(), min, max).then_some(Raw::Int(n.into())).ok_or_else(refusal)
            }
            Kind::Memory(min, max) => {
                let n = memory(word).ok_or("argument must be a memory value")?.into();
                within(n, min, max).then_some(Raw::Int(n)).ok_or_else(|| bounds(min, max))
            }
            Kind::MemoryOrPercent => {
                let percent = || word.strip_suffix(b"%").and_then(integer).filter(|percent| *percent >= 0);
                match (memory(word), percent()) {
                    (Some(bytes), _) if i64::try_from(bytes).is_ok() => Ok(Raw::Int(bytes.into())),
                    (None, Some(percent @ 0..=100)) => Ok(Raw::Int(-percent)),
                    (None, None) => Err("argument must be a memory or percent value".to_owned()),
                    _ => Err("percentage argument must be less or equal to 100".to_owned()),
                }
            }
            Kind::FileName(refusal) if word.iter().any(|byte| b"/\\".contains(byte)) => Err(refusal.to_owned()),
            Kind::Text | Kind::FileName(_) | Kind::Secret => Ok(Raw::Text(word.to_vec())),
            Kind::Choice(all) => {
                let found = all.iter().find(|known| known.as_bytes().eq_ignore_ascii_case(word));
                let refusal = || format!("argument(s) must be one of the following: {}", all.join(", "));
                found.map(|known| Raw::Choice(known)).ok_or_else(refusal)
            }
            Kind::Addresses if words.len() > ADDRESSES_MAX => Err("Too many bind addresses specified.".to_owned()),
            Kind::Words if words.is_empty() => Err("wrong number of arguments".to_owned()),
            Kind::Addresses | Kind::Words => {
                // CONFIG GET and CONFIG REWRITE write the words unquoted, separated by spaces.
                let plain = |word: &str| word.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\'));
                let word = |word: &&[u8]| std::str::from_utf8(word).ok().filter(|word| plain(word)).map(str::to_owned);
                let words = words.iter().filter(|word| !word.is_empty());
                let words = words.map(word).collect::<Option<_>>().ok_or("argument(s) must be plain words")?;
                Ok(Raw::Words(words))
            }
            Kind::Percentiles => {
                let percent = |word: &&[u8]| match parse_f64(word) {
                    None => Err("Invalid latency-tracking-info-percentiles parameters".to_owned()),
                    Some(percent) if (0.0..=100.0).contains(&percent) => Ok(percent.to_string()),
                    Some(_) => Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".to_owned()),
                };
                words.iter().filter(|word| !word.is_empty()).map(percent).collect::<Result<_, _>>().map(Raw::Words)
            }
            Kind::Events => match Classes::parse(word) {
                Some(classes) => Ok(Raw::Events(classes)),
                None => Err("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned()),
            },
            Kind::OutputLimits => match old {
                Raw::Output(limits) => output_limits(words, *limits).map(Raw::Output).map_err(str::to_owned),
                _ => Err("wrong number of arguments".to_owned()),
            },
            Kind::Rules => match old {
                Raw::Rules(old) => old.with(words).map(Raw::Rules),
                _ => Err("wrong number of arguments".to_owned()),
            },
            Kind::SavePoints if matches!(words, [] | [b""]) => Ok(Raw::Words(Vec::new())),
            Kind::SavePoints => {
                let pair = |pair: &[&[u8]]| match pair {
                    [seconds, changes] => {
                        let (seconds, changes) = (integer(seconds)?, integer(changes)?);
                        (within(seconds, 1, LONG_MAX) && within(changes, 0, INT_MAX))
                            .then(|| [seconds.to_string(), changes.to_string()])
                    }
                    _ => None,
                };
                // From `CONFIG SET` and flags all of them come as one word.
                let split: Vec<&[u8]> = words.iter().flat_map(|word| word.split(|byte| *byte == b' ')).collect();
                let pairs = split.chunks(2).map(pair).collect::<Option<Vec<_>>>().ok_or("Invalid save parameters")?;
                let old = if let Raw::Words(old) = old { old.clone() } else { Vec::new() };
                Ok(Raw::Words(old.into_iter().chain(pairs.into_iter().flatten()).collect()))
            }
        }
    }

    /// Formats a value for `CONFIG GET`.
    pub fn show(self, raw: &Raw) -> Vec<u8> {
        match raw {
            Raw::Bool(true) => b"yes".to_vec(),
            Raw::Bool(false) => b"no".to_vec(),
            Raw::Int(n) if matches!(self, Kind::Octal(..)) => format!("{n:o}").into_bytes(),
            Raw::Int(n @ ..0) if matches!(self, Kind::MemoryOrPercent) => format!("{}%", -n).into_bytes(),
            Raw::Int(n) => n.to_string().into_bytes(),
            Raw::Text(text) => text.clone(),
            Raw::Choice(word) => word.as_bytes().to_vec(),
            Raw::Words(words) => words.join(" ").into_bytes(),
            Raw::Events(classes) => classes.letters().into_bytes(),
            Raw::Rules(rules) => rules.shown().join(&b' '),
            Raw::Output(limits) => {
                let each =
                    OUTPUT_CLASSES.iter().zip(limits).map(|(name, l)| format!("{name} {} {} {}", l.hard, l.soft, l.seconds));
                each.collect::<Vec<_>>().join(" ").into_bytes()
            }
        }
    }
}

fn within(n: i128, min: i128, max: i128) -> bool {
    (min..=max).contains(&n)
}

fn bounds(min: i128, max: i128) -> String {
    format!("argument must be between {min} and {max} inclusive")
}

/// Parses a decimal `i64` like Redis: without a plus sign, spaces or leading zeros.
fn integer(word: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(word).ok()?;
    let n: i64 = text.parse().ok()?;
    (n.to_string() == text).then_some(n.into())
}

/// Parses a number of bytes with its unit.
fn memory(word: &[u8]) -> Option<u64> {
    let digits = word.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = word.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    std::str::from_utf8(number).ok()?.parse::<u64>().ok()?.checked_mul(factor)
}

fn output_limits(words: &[&[u8]], mut limits: [OutputLimit; 3]) -> Result<[OutputLimit; 3], &'static str> {
    fail_if!(!words.len().is_multiple_of(4), "Wrong number of arguments in buffer limit configuration.");
    for group in words.chunks_exact(4) {
        let class = match group[0].to_ascii_lowercase().as_slice() {
            b"normal" => 0,
            b"slave" | b"replica" => 1,
            b"pubsub" => 2,
            _ => return Err("Invalid client class specified in buffer limit configuration."),
        };
        let seconds = integer(group[3]).and_then(|n| u64::try_from(n).ok());
        let (Some(hard), Some(soft), Some(seconds)) = (memory(group[1]), memory(group[2]), seconds) else {
            return Err("Error in hard, soft or soft_seconds setting in buffer limit configuration.");
        };
        limits[class] = OutputLimit { hard, soft, seconds };
    }
    Ok(limits)
}

/// A type of the fields of [`super::Config`].
pub(crate) trait Field: Sized {
    /// Converts a parsed value; `None` if it does not fit.
    fn from_raw(raw: Raw) -> Option<Self>;
    /// Converts to a value for formatting.
    fn to_raw(&self) -> Raw;
}

macro_rules! fields {
    ($($type:ty: $variant:ident),*) => {$(
        impl Field for $type {
            fn from_raw(raw: Raw) -> Option<Self> {
                if let Raw::$variant(value) = raw { value.try_into().ok() } else { None }
            }

            fn to_raw(&self) -> Raw {
                Raw::$variant(self.clone().into())
            }
        }
    )*};
}

fields!(u16: Int, u32: Int, u64: Int, i64: Int, bool: Bool, Vec<u8>: Text, &'static str: Choice, Vec<String>: Words, Classes: Events, Rules: Rules);

impl Field for [OutputLimit; 3] {
    fn from_raw(raw: Raw) -> Option<Self> {
        if let Raw::Output(limits) = raw { Some(limits) } else { None }
    }

    fn to_raw(&self) -> Raw {
        Raw::Output(*self)
    }
}

impl Field for String {
    fn from_raw(raw: Raw) -> Option<Self> {
        if let Raw::Text(text) = raw { String::from_utf8(text).ok() } else { None }
    }

    fn to_raw(&self) -> Raw {
        Raw::Text(self.clone().into_bytes())
    }
}
