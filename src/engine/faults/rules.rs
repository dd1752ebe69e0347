//! Rules of faults: which requests they affect, and how. Tests give them as values, or in the syntax of `FAULT ADD`.

use std::str::FromStr;

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::base::number::{parse_f64, parse_i64};
use crate::engine::command::options::{Tail, choice, upper};
use crate::engine::faults::gates::Pace;
use crate::engine::faults::test_mode::FAR_MS;
use crate::keyspace::journal::WRITES_MAX;
use crate::resp::request::{Limits, Progress, RequestParser};

/// Maximum number of bytes at a time in a trickle.
const TRICKLE_MAX: u64 = 1 << 40;

impl FromStr for Rule {
    type Err = String;

    /// Parses the syntax of `FAULT ADD`, such as `lost DROP-REPLY ON set TIMES 1`. Words with blanks are quoted.
    fn from_str(words: &str) -> std::result::Result<Rule, String> {
        let line = format!("{}\n", words.replace(['\r', '\n'], " "));
        let mut parser = RequestParser::new();
        let limits = Limits { authenticated: true, max_inline: usize::MAX, ..Limits::default() };
        match parser.parse(line.as_bytes(), &limits) {
            Ok(Progress::Complete { .. }) => {}
            Ok(_) => return Err("no rule".to_owned()),
            Err(error) => return Err(format!("{words}: {error:?}")),
        }
        let args: Vec<&[u8]> = parser.arguments(line.as_bytes()).collect();
        Rule::parse(&args).map_err(|error| format!("{words}: {error}"))
    }
}

impl TryFrom<&str> for Rule {
    type Error = String;

    fn try_from(words: &str) -> std::result::Result<Rule, String> {
        words.parse()
    }
}

/// The effect of a fault on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is not executed; the reply is this error.
    Error(String),
    /// The request is executed this many milliseconds later; further requests of its client wait behind it.
    Delay(u64),
    /// The request is lost: it is not executed and gets no reply.
    Drop,
    /// The request is executed, and its reply is lost.
    DropReply,
    /// The request is executed, and its reply arrives at this pace, and so does the output behind it.
    PaceReply(Pace),
    /// The request is not executed, and the connection is closed, by a TCP reset if that is set.
    Close {
        /// Whether to close by a TCP reset.
        reset: bool,
    },
    /// The request is executed, and the connection is closed without a reply.
    CloseAfter {
        /// Whether to close by a TCP reset.
        reset: bool,
    },
    /// The server behaves as a process that was killed and started again: see `Engine::restart`.
    Restart {
        /// When that happens.
        when: When,
        /// Number of last writes that are lost; `None` loses everything.
        lose: Option<u64>,
    },
}

/// When a request restarts the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before it is executed: the request itself is lost.
    Before,
    /// After it was executed, or has blocked, and before its reply: its write is the last one.
    After,
    /// After it was executed and its reply was sent.
    AfterReply,
}

/// The names of the times of restarts.
const RESTARTS: [(&str, When); 3] =
    [("RESTART", When::Before), ("RESTART-AFTER", When::After), ("RESTART-AFTER-REPLY", When::AfterReply)];

fn count(text: &[u8]) -> Result<u64> {
    parse_i64(text).and_then(|n| u64::try_from(n).ok()).ok_or(Error::NOT_INTEGER)
}

fn milliseconds(text: &[u8]) -> Result<u64> {
    count(text).and_then(|ms| if ms <= FAR_MS { Ok(ms) } else { Err(Error::OUT_OF_RANGE) })
}

/// Parses an optional `LOSE n`. Returns it with the remaining words.
pub(crate) fn lost<'a, 'b>(words: &'a [&'b [u8]]) -> Result<(Option<u64>, &'a [&'b [u8]])> {
    match words {
        [lose, n, rest @ ..] if lose.eq_ignore_ascii_case(b"LOSE") => match count(n)? {
            n if n <= WRITES_MAX => Ok((Some(n), rest)),
            _ => Err(Error::OUT_OF_RANGE),
        },
        _ => Ok((None, words)),
    }
}

impl Fault {
    /// Parses a fault. Returns it with the remaining words.
    fn parse<'a, 'b>(word: &[u8], rest: &'a [&'b [u8]]) -> Result<(Fault, &'a [&'b [u8]])> {
        if let Some(when) = choice(word, &RESTARTS) {
            let (lose, rest) = lost(rest)?;
            return Ok((Fault::Restart { when, lose }, rest));
        }
        let fault = match (&*upper(word), rest) {
            (b"ERROR", [text, rest @ ..]) => {
                let line: Vec<u8> = text.iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }).collect();
                return Ok((Fault::Error(String::from_utf8_lossy(&line).into_owned()), rest));
            }
            (b"DELAY", [ms, rest @ ..]) => return Ok((Fault::Delay(milliseconds(ms)?), rest)),
            (b"DELAY-REPLY", [ms, rest @ ..]) => return Ok((Fault::PaceReply(Pace::Late(milliseconds(ms)?)), rest)),
            (b"TRICKLE", [bytes, ms, rest @ ..]) => {
                let bytes = count(bytes)?;
                fail_if!(!(1..=TRICKLE_MAX).contains(&bytes), Error::OUT_OF_RANGE);
                return Ok((Fault::PaceReply(Pace::Trickle { bytes, every_ms: milliseconds(ms)? }), rest));
            }
            (b"DROP", _) => Fault::Drop,
            (b"DROP-REPLY", _) => Fault::DropReply,
            (b"CLOSE", _) => Fault::Close { reset: false },
            (b"RESET", _) => Fault::Close { reset: true },
            (b"CLOSE-AFTER", _) => Fault::CloseAfter { reset: false },
            (b"RESET-AFTER", _) => Fault::CloseAfter { reset: true },
            _ => return Err(Error::SYNTAX),
        };
        Ok((fault, rest))
    }

    /// The fault in the syntax of `FAULT ADD`.
    pub fn words(&self) -> String {
        match self {
            Fault::Error(text) => format!("ERROR {text}"),
            Fault::Delay(ms) => format!("DELAY {ms}"),
            Fault::PaceReply(Pace::Late(ms)) => format!("DELAY-REPLY {ms}"),
            Fault::PaceReply(Pace::Trickle { bytes, every_ms }) => format!("TRICKLE {bytes} {every_ms}"),
            Fault::Drop => "DROP".to_owned(),
            Fault::DropReply => "DROP-REPLY".to_owned(),
            Fault::Close { reset } => (if *reset { "RESET" } else { "CLOSE" }).to_owned(),
            Fault::CloseAfter { reset } => (if *reset { "RESET-AFTER" } else { "CLOSE-AFTER" }).to_owned(),
            Fault::Restart { when, lose } => {
                let name = RESTARTS.iter().find(|(_, of)| of == when).map_or("RESTART", |(name, _)| name);
                lose.map_or_else(|| name.to_owned(), |n| format!("{name} LOSE {n}"))
            }
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name.
    pub name: Vec<u8>,
    /// The fault.
    pub fault: Fault,
    /// Commands that it affects, as a case-insensitive glob: `set`, `lock.*`, `config|get`. `None` for all.
    pub on: Option<Vec<u8>>,
    /// Clients that it affects, as a glob for names or addresses. `None` for all.
    pub client: Option<Vec<u8>>,
    /// Probability that it fires, from 0 to 1.
    pub probability: f64,
    /// Maximum number of times that it fires.
    pub times: Option<u64>,
    /// Number of matching requests that pass before it can fire.
    pub after: u64,
    /// Number of matching requests so far.
    pub matched: u64,
    /// Number of times that it has fired.
    pub fired: u64,
}

impl Rule {
    /// A rule for all requests that always fires.
    pub fn new(name: impl AsRef<[u8]>, fault: Fault) -> Rule {
        let name = name.as_ref().to_vec();
        Rule { name, fault, on: None, client: None, probability: 1.0, times: None, after: 0, matched: 0, fired: 0 }
    }

    /// Restricts the rule to commands that match a pattern, such as `set`, `lock.*` or `config|get`.
    pub fn on(self, command: impl AsRef<[u8]>) -> Rule {
        Rule { on: Some(command.as_ref().to_vec()), ..self }
    }

    /// Restricts the rule to clients whose names or addresses match a pattern.
    pub fn client(self, client: impl AsRef<[u8]>) -> Rule {
        Rule { client: Some(client.as_ref().to_vec()), ..self }
    }

    /// Sets the probability, from 0 to 1.
    pub fn probability(self, probability: f64) -> Rule {
        Rule { probability, ..self }
    }

    /// Limits the number of times that the rule fires.
    pub fn times(self, times: u64) -> Rule {
        Rule { times: Some(times), ..self }
    }

    /// Lets this many matching requests pass first.
    pub fn after(self, after: u64) -> Rule {
        Rule { after, ..self }
    }

    /// Parses the words of `FAULT ADD`: a name, a fault, and the requests that it affects.
    pub fn parse(words: &[&[u8]]) -> Result<Rule> {
        let [name, what, rest @ ..] = words else { return Err(Error::SYNTAX) };
        let (fault, rest) = Fault::parse(what, rest)?;
        let (mut rule, mut rest) = (Rule::new(name, fault), Tail(rest));
        while let Some(option) = rest.next() {
            let value = rest.value()?;
            match &*upper(option) {
                b"ON" => rule = rule.on(value),
                b"CLIENT" => rule = rule.client(value),
                b"PROBABILITY" => {
                    let likely = parse_f64(value).filter(|p| (0.0..=1.0).contains(p));
                    rule.probability = likely.ok_or_else(|| Error::new("ERR PROBABILITY is a number from 0 to 1"))?;
                }
                b"TIMES" => rule.times = Some(count(value)?),
                b"AFTER" => rule.after = count(value)?,
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(rule)
    }

    pub(crate) fn spent(&self) -> bool {
        self.times.is_some_and(|times| self.fired >= times)
    }

    pub(crate) fn is_for(&self, command: &[u8], client: &[u8], addr: &[u8]) -> bool {
        let container = command.split(|&b| b == b'|').next().unwrap_or(command);
        let on = |pattern: &Vec<u8>| glob::matches(pattern, command, true) || glob::matches(pattern, container, true);
        let by = |pattern: &Vec<u8>| glob::matches(pattern, client, false) || glob::matches(pattern, addr, false);
        self.on.as_ref().is_none_or(on) && self.client.as_ref().is_none_or(by)
    }
}
