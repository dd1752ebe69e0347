//! Carrying a plan out.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::resp::double::{DOUBLE_MAX, format_double};
use crate::resp::reply::{Protocol, Sink};
use crate::script::answer::{truncate, write_status};
use crate::script::bounds;
use crate::script::call::{self, FEW};
use crate::script::failure;
use crate::script::interpreter::{Frame, Interpreter};
use crate::script::plan::{Call, Order, Plan, Step, Value};

/// Room for the texts of replies that is kept from run to run, in bytes.
const TEXTS_KEPT: usize = 4 << 10;
/// A longer text has a block of its own.
const SHORT: usize = 512;

/// Why a run did not come to its end.
pub(in crate::script) struct Failure {
    /// The error as a script could catch it, and the line that it names.
    text: Vec<u8>,
    line: u32,
    /// Whether it has been counted already.
    pub counted: bool,
}

type Result<T> = std::result::Result<T, Box<Failure>>;

/// What an expression has come to.
#[derive(Clone, Copy)]
enum Held<'r> {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(&'r [u8]),
    /// What a command has replied: where it begins among the short texts of the run, and how long it is.
    Short(u32, u32),
    /// The same, if it is long: its number among those.
    Long(u32),
    /// A table with `ok`, as a status is given, which is a short text; and which of the run's calls has given it, as no two tables are
    /// equal.
    Status(u32, u32, u32),
}

/// The texts that commands have replied with. Like strings of Lua they are there once only, if they are long, and no longer than needed.
#[derive(Default)]
struct Texts {
    /// Those that are short, one behind the other.
    short: Vec<u8>,
    long: Vec<Vec<u8>>,
}

impl<'r> Held<'r> {
    fn is_true(self) -> bool {
        !matches!(self, Held::Nil | Held::Boolean(false))
    }

    /// The string that it is, if it is one.
    fn text<'t>(self, texts: &'t Texts) -> Option<&'t [u8]>
    where
        'r: 't,
    {
        match self {
            Held::Text(text) => Some(text),
            Held::Short(start, len) => Some(texts.short(start, len)),
            Held::Long(number) => texts.long.get(number as usize).map(Vec::as_slice),
            _ => None,
        }
    }
}

impl Texts {
    fn short(&self, start: u32, len: u32) -> &[u8] {
        self.short.get(start as usize..(start + len) as usize).unwrap_or_default()
    }

    /// Takes a short text in and gives where it is.
    fn keep_short(&mut self, text: &[u8]) -> (u32, u32) {
        // A script has no more than some hundreds of calls.
        let start = self.short.len() as u32;
        self.short.extend_from_slice(text);
        (start, text.len() as u32)
    }

    fn keep_long(&mut self, text: Vec<u8>) -> u32 {
        let number = self.long.iter().position(|other| *other == text).unwrap_or_else(|| {
            self.long.push(text);
            self.long.len() - 1
        });
        number as u32
    }
}

/// Carries a plan out for the run that the frame is of, and writes what it returns.
///
/// # Safety
/// The interpreter is valid and runs nothing. The frame's engine is valid, and reached through the frame only until this returns.
pub(in crate::script) unsafe fn run(
    plan: &Plan,
    interpreter: *mut Interpreter,
    frame: Frame,
    (keys, args): (&[&[u8]], &[&[u8]]),
    reply: &mut dyn Sink,
) -> Result<()> {
    // SAFETY: as promised. What is in the frame is used by one function at a time.
    unsafe {
        (*interpreter).frame = frame;
        let [short, spare] = std::mem::take(&mut (*interpreter).texts);
        let texts = Texts { short, long: Vec::new() };
        let mut run = Run { interpreter, keys, args, locals: SmallVec::new(), texts, spare, calls: 0 };
        let done = run.block(&plan.steps);
        (*interpreter).frame.engine = std::ptr::null_mut();
        let Run { mut texts, mut spare, .. } = run;
        match done? {
            None | Some(Held::Nil | Held::Boolean(false)) => reply.null(),
            Some(Held::Boolean(true)) => reply.integer(1),
            Some(Held::Number(number)) => reply.integer(truncate(number)),
            Some(Held::Status(_, start, len)) => write_status(texts.short(start, len), reply),
            Some(held) => reply.bulk(held.text(&texts).unwrap_or_default()),
        }
        if texts.short.capacity() <= TEXTS_KEPT && spare.capacity() <= TEXTS_KEPT {
            texts.short.clear();
            spare.clear();
            (*interpreter).texts = [texts.short, spare];
        }
        Ok(())
    }
}

struct Run<'r> {
    /// It is valid, and its frame is that of this run.
    interpreter: *mut Interpreter,
    keys: &'r [&'r [u8]],
    args: &'r [&'r [u8]],
    locals: SmallVec<[Held<'r>; 4]>,
    texts: Texts,
    /// Where the text of a reply is written to.
    spare: Vec<u8>,
    calls: u32,
}

impl<'r> Run<'r> {
    /// Carries statements out; what they return, if they do.
    fn block(&mut self, steps: &'r [Step]) -> Result<Option<Held<'r>>> {
        for step in steps {
            match step {
                Step::Keep(place, value) => {
                    let long = self.texts.long.len();
                    let held = self.value(value)?;
                    if !matches!(held, Held::Long(_)) {
                        self.texts.long.truncate(long);
                    }
                    self.locals.truncate(*place);
                    self.locals.push(held);
                }
                Step::Call(call) => {
                    let long = self.texts.long.len();
                    self.call(call)?;
                    self.texts.long.truncate(long);
                }
                Step::Choose(arms) => {
                    for (condition, steps) in arms {
                        let long = self.texts.long.len();
                        let holds = self.holds(condition)?;
                        self.texts.long.truncate(long);
                        if holds {
                            if let Some(returned) = self.block(steps)? {
                                return Ok(Some(returned));
                            }
                            // Its locals are gone.
                            self.texts.long.truncate(long);
                            break;
                        }
                    }
                }
                Step::Return(value) => return self.value(value).map(Some),
            }
        }
        Ok(None)
    }

    /// Whether a condition holds.
    fn holds(&mut self, value: &'r Value) -> Result<bool> {
        Ok(match value {
            Value::Not(value) => !self.holds(value)?,
            Value::And(sides) => self.holds(&sides[0])? && self.holds(&sides[1])?,
            Value::Or(sides) => self.holds(&sides[0])? || self.holds(&sides[1])?,
            Value::Equal(sides) => self.equal(sides)?,
            Value::Unequal(sides) => !self.equal(sides)?,
            Value::Ordered(order, sides) => {
                // Both are numbers: the plan has been made so.
                let mut number =
                    |value| self.value(value).map(|held| if let Held::Number(number) = held { number } else { f64::NAN });
                let (left, right) = (number(&sides[0])?, number(&sides[1])?);
                match order {
                    Order::Less => left < right,
                    Order::LessOrEqual => left <= right,
                    Order::Greater => left > right,
                    Order::GreaterOrEqual => left >= right,
                }
            }
            _ => self.value(value)?.is_true(),
        })
    }

    fn equal(&mut self, sides: &'r [Value; 2]) -> Result<bool> {
        let left = self.value(&sides[0])?;
        // What most compare with.
        let given = match &sides[1] {
            Value::Argument(index) => self.args.get(index - 1),
            _ => None,
        };
        if let Some(given) = given {
            return Ok(left.text(&self.texts) == Some(given));
        }
        let right = self.value(&sides[1])?;
        Ok(match (left, right) {
            (Held::Nil, Held::Nil) => true,
            (Held::Boolean(a), Held::Boolean(b)) => a == b,
            (Held::Number(a), Held::Number(b)) => a == b,
            (Held::Status(a, ..), Held::Status(b, ..)) => a == b,
            _ => left.text(&self.texts).is_some_and(|a| right.text(&self.texts).is_some_and(|b| a == b)),
        })
    }

    fn value(&mut self, value: &'r Value) -> Result<Held<'r>> {
        Ok(match value {
            Value::Nil => Held::Nil,
            Value::True => Held::Boolean(true),
            Value::False => Held::Boolean(false),
            Value::Number(number) => Held::Number(*number),
            Value::Text(text) => Held::Text(text),
            Value::Key(index) => self.keys.get(index - 1).map_or(Held::Nil, |text| Held::Text(text)),
            Value::Argument(index) => self.args.get(index - 1).map_or(Held::Nil, |text| Held::Text(text)),
            Value::Local(place) => self.locals[*place],
            Value::Call(call) => self.call(call)?,
            Value::And(sides) => {
                let left = self.value(&sides[0])?;
                if left.is_true() { self.value(&sides[1])? } else { left }
            }
            Value::Or(sides) => {
                let left = self.value(&sides[0])?;
                if left.is_true() { left } else { self.value(&sides[1])? }
            }
            Value::Not(_) | Value::Equal(_) | Value::Unequal(_) | Value::Ordered(..) => Held::Boolean(self.holds(value)?),
        })
    }

    /// Makes a call.
    fn call(&mut self, call: &'r Call) -> Result<Held<'r>> {
        let stop = |text: &[u8], counted| {
            // As C reads it.
            let end = memchr::memchr(0, text).unwrap_or(text.len());
            Box::new(Failure { text: text[..end].to_vec(), line: call.line, counted })
        };
        let mut numbers = [const { MaybeUninit::<[u8; DOUBLE_MAX]>::uninit() }; FEW];
        let mut arguments: [&[u8]; FEW] = [&[]; FEW];
        for ((argument, given), number) in call.arguments.iter().zip(&mut arguments).zip(&mut numbers) {
            let text = match argument {
                Value::Text(text) => Some(&**text),
                Value::Key(index) => self.keys.get(index - 1).copied(),
                Value::Argument(index) => self.args.get(index - 1).copied(),
                Value::Local(place) => match self.locals[*place] {
                    Held::Number(value) => Some(call::format_number(value, number.write([0; DOUBLE_MAX]))),
                    held => held.text(&self.texts),
                },
                _ => None,
            };
            match text {
                Some(text) => *given = text,
                None => return Err(stop(&[b"ERR ", call::ARGUMENT_TYPES].concat(), false)),
            }
        }
        // There is a place for each: a call with more has no plan.
        let arguments = &arguments[..call.arguments.len()];
        let interpreter = self.interpreter;
        self.calls += 1;
        // SAFETY: as promised to `run`; no reference to the interpreter or to the engine is alive.
        unsafe {
            if let Err(error) = call::admit(interpreter, &call.known, arguments) {
                let engine = &mut *(*interpreter).frame.engine;
                engine.stats.error(&error);
                return Err(stop(failure::trimmed(error.text()), true));
            }
            let mut reply = Reply { came: Came::Nothing, failed: None, text: std::mem::take(&mut self.spare) };
            call::carry_out(interpreter, &call.known, arguments, &mut reply);
            let Reply { came, failed, mut text } = reply;
            bounds::charge_call(interpreter, call.known.least_work, arguments.len(), 0);
            let held = match came {
                Came::Nothing => Held::Boolean(false),
                Came::Number(number) => Held::Number(number),
                Came::Status => {
                    let (start, len) = self.texts.keep_short(&text);
                    Held::Status(self.calls, start, len)
                }
                Came::Text if text.len() <= SHORT => {
                    let (start, len) = self.texts.keep_short(&text);
                    Held::Short(start, len)
                }
                Came::Text => {
                    bounds::charge(interpreter, text.len() as u64 / bounds::BYTES_PER_STEP);
                    Held::Long(self.texts.keep_long(std::mem::take(&mut text)))
                }
            };
            text.clear();
            self.spare = text;
            if bounds::settle_quietly(interpreter) {
                return Err(stop(&[b"ERR ", bounds::KILLED].concat(), false));
            }
            match failed {
                None => Ok(held),
                Some(text) => Err(stop(failure::trimmed(&text), true)),
            }
        }
    }
}

/// The reply of one call.
struct Reply {
    came: Came,
    failed: Option<Vec<u8>>,
    /// The string or the status.
    text: Vec<u8>,
}

/// What a reply is.
enum Came {
    Nothing,
    Number(f64),
    Text,
    Status,
}

impl Reply {
    /// None of the commands that a plan calls replies like that.
    fn aggregate(&mut self) {
        debug_assert!(false, "an aggregate");
        self.failed = Some(b"ERR a script's command replied with an aggregate".to_vec());
    }
}

/// As scripts are given replies as long as they ask for nothing else: see [`LuaSink`](crate::script::sink::LuaSink).
impl Sink for Reply {
    fn protocol(&self) -> Protocol {
        Protocol::Resp2
    }

    fn simple(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
        self.came = Came::Status;
    }

    fn error(&mut self, text: &[u8]) {
        self.failed = Some(text.to_vec());
    }

    fn integer(&mut self, n: i64) {
        self.came = Came::Number(n as f64);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
        self.came = Came::Text;
    }

    fn null(&mut self) {
        self.came = Came::Nothing;
    }

    fn null_array(&mut self) {
        self.null();
    }

    fn array(&mut self, _: usize) {
        self.aggregate();
    }

    fn map(&mut self, _: usize) {
        self.aggregate();
    }

    fn set(&mut self, _: usize) {
        self.aggregate();
    }

    fn push(&mut self, _: usize) {
        self.aggregate();
    }

    fn double(&mut self, value: f64) {
        let mut text = [0; DOUBLE_MAX];
        self.bulk(format_double(value, &mut text));
    }

    fn boolean(&mut self, value: bool) {
        self.integer(value.into());
    }

    fn big_number(&mut self, decimal: &str) {
        self.bulk(decimal.as_bytes());
    }

    fn verbatim(&mut self, _: &str, text: &[u8]) {
        self.bulk(text);
    }
}

impl Failure {
    /// The error as the client is given it.
    pub(in crate::script) fn reply(&self, name: &[u8]) -> Vec<u8> {
        let mut text = self.text.clone();
        for part in [b" script: ", name, b", on @user_script:", self.line.to_string().as_bytes(), b"."] {
            text.extend_from_slice(part);
        }
        text
    }
}
