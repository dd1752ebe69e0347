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

/// Why a run did not come to its end.
pub(in crate::script) struct Failure {
    /// The error as a script could catch it, and the line that it names; of the end of memory Lua names none.
    pub text: Vec<u8>,
    pub line: Option<u32>,
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
    /// What a command has replied: where it begins among the texts of the run, and how long it is.
    Reply(usize, usize),
    /// A table with `ok`, as a status is given: the same, and which of the run's calls has given it, as no two tables are equal.
    Status(u32, usize, u32),
}

impl<'r> Held<'r> {
    fn is_true(self) -> bool {
        !matches!(self, Held::Nil | Held::Boolean(false))
    }

    /// The string that it is, if it is one.
    fn text<'t>(self, texts: &'t [u8]) -> Option<&'t [u8]>
    where
        'r: 't,
    {
        match self {
            Held::Text(text) => Some(text),
            Held::Reply(start, len) => texts.get(start..start + len),
            _ => None,
        }
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
        let texts = std::mem::take(&mut (*interpreter).texts);
        let mut run = Run { interpreter, keys, args, locals: SmallVec::new(), texts, calls: 0 };
        let done = run.block(&plan.steps);
        (*interpreter).frame.engine = std::ptr::null_mut();
        let mut texts = run.texts;
        match done? {
            None | Some(Held::Nil | Held::Boolean(false)) => reply.null(),
            Some(Held::Boolean(true)) => reply.integer(1),
            Some(Held::Number(number)) => reply.integer(truncate(number)),
            Some(Held::Status(_, start, len)) => write_status(&texts[start..][..len as usize], reply),
            Some(held) => reply.bulk(held.text(&texts).unwrap_or_default()),
        }
        if texts.capacity() <= TEXTS_KEPT {
            texts.clear();
            (*interpreter).texts = texts;
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
    /// The replies so far that are strings, one behind the other.
    texts: Vec<u8>,
    calls: u32,
}

impl<'r> Run<'r> {
    /// Carries statements out; what they return, if they do.
    fn block(&mut self, steps: &'r [Step]) -> Result<Option<Held<'r>>> {
        for step in steps {
            match step {
                Step::Keep(place, value) => {
                    let held = self.value(value)?;
                    self.locals.truncate(*place);
                    self.locals.push(held);
                }
                Step::Call(call) => drop(self.call(call)?),
                Step::Choose(arms) => {
                    for (condition, steps) in arms {
                        if self.holds(condition)? {
                            if let Some(returned) = self.block(steps)? {
                                return Ok(Some(returned));
                            }
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
        let stop = |text: &[u8], counted| Box::new(Failure { text: text.to_vec(), line: Some(call.line), counted });
        let mut numbers = [const { MaybeUninit::<[u8; DOUBLE_MAX]>::uninit() }; FEW];
        // While the reply is written behind them, the texts may move.
        let earlier = if call.of_locals { self.texts.clone() } else { Vec::new() };
        let mut arguments: [&[u8]; FEW] = [&[]; FEW];
        for ((argument, given), number) in call.arguments.iter().zip(&mut arguments).zip(&mut numbers) {
            let text = match argument {
                Value::Text(text) => Some(&**text),
                Value::Key(index) => self.keys.get(index - 1).copied(),
                Value::Argument(index) => self.args.get(index - 1).copied(),
                Value::Local(place) => match self.locals[*place] {
                    Held::Number(value) => Some(call::format_number(value, number.write([0; DOUBLE_MAX]))),
                    held => held.text(&earlier),
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
            let memory = &(*interpreter).memory;
            let limit = memory.limit.saturating_sub(memory.used);
            let mut reply = Reply { held: Held::Nil, failed: None, call: self.calls, texts: &mut self.texts, limit };
            call::carry_out(interpreter, &call.known, arguments, &mut reply);
            let Reply { held, failed, .. } = reply;
            bounds::charge_call(interpreter, call.known.least_work, arguments.len(), 0);
            if bounds::settle_quietly(interpreter) {
                return Err(stop(&[b"ERR ", bounds::KILLED].concat(), false));
            }
            match failed {
                None => Ok(held),
                Some(Failed::Refused(text)) => Err(stop(failure::trimmed(&text), true)),
                Some(Failed::TooLong) => {
                    Err(Box::new(Failure { text: b"not enough memory".to_vec(), line: None, counted: false }))
                }
            }
        }
    }
}

/// The reply of one call.
struct Reply<'t> {
    held: Held<'static>,
    failed: Option<Failed>,
    /// Which of the run's calls it is.
    call: u32,
    /// Where strings go, and how many bytes there may be.
    texts: &'t mut Vec<u8>,
    limit: usize,
}

/// Why there is no reply.
enum Failed {
    /// It is an error.
    Refused(Vec<u8>),
    /// There is no room for it.
    TooLong,
}

impl Reply<'_> {
    /// Where a text lies that is taken in.
    fn take(&mut self, text: &[u8]) -> usize {
        let start = self.texts.len();
        if start + text.len() <= self.limit {
            self.texts.extend_from_slice(text);
        } else {
            self.failed = Some(Failed::TooLong);
        }
        start
    }

    /// None of the commands that a plan calls replies like that.
    fn aggregate(&mut self) {
        debug_assert!(false, "an aggregate");
        self.failed = Some(Failed::Refused(b"ERR a script's command replied with an aggregate".to_vec()));
    }
}

/// As scripts are given replies as long as they ask for nothing else: see [`LuaSink`](crate::script::sink::LuaSink).
impl Sink for Reply<'_> {
    fn protocol(&self) -> Protocol {
        Protocol::Resp2
    }

    fn simple(&mut self, text: &str) {
        self.held = Held::Status(self.call, self.take(text.as_bytes()), text.len() as u32);
    }

    fn error(&mut self, text: &[u8]) {
        self.failed = Some(Failed::Refused(text.to_vec()));
    }

    fn integer(&mut self, n: i64) {
        self.held = Held::Number(n as f64);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.held = Held::Reply(self.take(bytes), bytes.len());
    }

    fn null(&mut self) {
        self.held = Held::Boolean(false);
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
        match self.line {
            Some(line) => {
                let mut text = self.text.clone();
                for part in [b" script: ", name, b", on @user_script:", line.to_string().as_bytes(), b"."] {
                    text.extend_from_slice(part);
                }
                text
            }
            None => [b"ERR Error running script ", name, b", ", &self.text].concat(),
        }
    }
}
