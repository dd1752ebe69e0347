//! Carrying a plan out.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::resp::double::{DOUBLE_MAX, format_double};
use crate::resp::reply::{Protocol, Sink};
use crate::script::answer::{truncate, write_status};
use crate::script::bounds;
use crate::script::call::{self, FEW};
use crate::script::failure;
use crate::script::interpreter::Interpreter;
use crate::script::plan::{Call, Given, Order, Plan, Step, Value};

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
    Text(Text<'r>),
    /// A table with `ok`, as a status is given; and which of the run's calls has given it, as no two tables are equal.
    Status(u32, Text<'r>),
}

/// A string.
#[derive(Clone, Copy)]
enum Text<'r> {
    /// It lies in the plan, in the request, or in the room that the run has for short replies.
    Here(&'r [u8]),
    /// What a command has replied with: its number among the texts that have blocks of their own.
    Kept(u32),
}

/// Texts that commands have replied with and that have a block of their own, for being long or for want of room. Like strings of Lua
/// they are there once only.
type Kept = Vec<Vec<u8>>;

impl<'r> Held<'r> {
    #[inline]
    fn is_true(self) -> bool {
        !matches!(self, Held::Nil | Held::Boolean(false))
    }

    /// The string that it is, if it is one.
    #[inline]
    fn text<'t>(self, kept: &'t Kept) -> Option<&'t [u8]>
    where
        'r: 't,
    {
        if let Held::Text(text) = self { Some(text.bytes(kept)) } else { None }
    }

    /// Whether it has to do with a text that has a block of its own.
    #[inline]
    fn is_kept(self) -> bool {
        matches!(self, Held::Text(Text::Kept(_)) | Held::Status(_, Text::Kept(_)))
    }
}

impl<'r> Text<'r> {
    #[inline]
    fn bytes<'t>(self, kept: &'t Kept) -> &'t [u8]
    where
        'r: 't,
    {
        match self {
            Text::Here(text) => text,
            Text::Kept(number) => kept.get(number as usize).map(Vec::as_slice).unwrap_or_default(),
        }
    }
}

/// Room for short texts.
struct Room<'r>(&'r mut [u8]);

impl<'r> Room<'r> {
    /// Takes a text in; `None` where it is long, or there is no room any more.
    #[inline]
    fn take(&mut self, text: &[u8]) -> Option<&'r [u8]> {
        if text.len() > SHORT.min(self.0.len()) {
            return None;
        }
        let (place, rest) = std::mem::take(&mut self.0).split_at_mut(text.len());
        self.0 = rest;
        place.copy_from_slice(text);
        Some(place)
    }
}

/// Carries a plan out and writes what it returns.
///
/// # Safety
/// The interpreter is valid and runs nothing else. Its frame is that of this run; the frame's engine is valid, and reached through the
/// frame only until this returns.
#[inline(always)]
pub(in crate::script) unsafe fn run(
    plan: &Plan,
    interpreter: *mut Interpreter,
    keys: &[&[u8]],
    args: &[&[u8]],
    reply: &mut dyn Sink,
) -> Result<()> {
    // SAFETY: as promised; nobody else uses the room for texts now.
    let room = Room(unsafe { &mut (*interpreter).texts });
    // SAFETY: as promised; what is in the frame is used by one function at a time.
    let engine = unsafe { (*interpreter).frame.engine };
    // Most calls are about the first key.
    // SAFETY: as promised.
    let remembers = keys.first().map(|key| unsafe { (*engine).keyspace.space.cache_place(key) });
    let mut run = Run { interpreter, keys, args, locals: SmallVec::new(), room, kept: Kept::new(), calls: 0 };
    let done = run.block(&plan.steps);
    // SAFETY: as promised.
    unsafe {
        if let Some(none_was_known) = remembers {
            (*engine).keyspace.space.uncache_place(none_was_known);
        }
        (*interpreter).frame.engine = std::ptr::null_mut();
    }
    match done? {
        Some(Held::Number(number)) => reply.integer(truncate(number)),
        None | Some(Held::Nil | Held::Boolean(false)) => reply.null(),
        Some(Held::Boolean(true)) => reply.integer(1),
        Some(Held::Text(text)) => reply.bulk(text.bytes(&run.kept)),
        Some(Held::Status(_, text)) => write_status(text.bytes(&run.kept), reply),
    }
    Ok(())
}

struct Run<'r> {
    /// It is valid, and its frame is that of this run.
    interpreter: *mut Interpreter,
    keys: &'r [&'r [u8]],
    args: &'r [&'r [u8]],
    locals: SmallVec<[Held<'r>; 4]>,
    room: Room<'r>,
    kept: Kept,
    calls: u32,
}

impl<'r> Run<'r> {
    /// Carries statements out; what they return, if they do.
    fn block(&mut self, mut steps: &'r [Step]) -> Result<Option<Held<'r>>> {
        while let Some((step, rest)) = steps.split_first() {
            steps = rest;
            match step {
                Step::Keep(place, value) => {
                    let kept = self.kept.len();
                    let held = self.value(value)?;
                    if !held.is_kept() {
                        self.kept.truncate(kept);
                    }
                    // Behind it there may be others, of blocks that have ended.
                    match self.locals.get_mut(*place) {
                        Some(local) => *local = held,
                        None => self.locals.push(held),
                    }
                }
                Step::Call(call) => {
                    let kept = self.kept.len();
                    self.call(call)?;
                    self.kept.truncate(kept);
                }
                Step::Choose(arms) => {
                    let kept = self.kept.len();
                    if let Some(chosen) = self.choose(arms)? {
                        if rest.is_empty() {
                            // Nothing comes after it.
                            steps = chosen;
                        } else if let Some(returned) = self.block(chosen)? {
                            return Ok(Some(returned));
                        } else {
                            // Its locals are gone.
                            self.kept.truncate(kept);
                        }
                    }
                }
                Step::Return(value) => return self.value(value).map(Some),
            }
        }
        Ok(None)
    }

    /// The statements of which the condition holds, if there are such.
    #[inline(always)]
    fn choose(&mut self, arms: &'r [(Value, Box<[Step]>)]) -> Result<Option<&'r [Step]>> {
        for (condition, steps) in arms {
            let kept = self.kept.len();
            let holds = self.holds(condition)?;
            self.kept.truncate(kept);
            if holds {
                return Ok(Some(steps));
            }
        }
        Ok(None)
    }

    /// Whether a condition holds.
    #[inline(always)]
    fn holds(&mut self, value: &'r Value) -> Result<bool> {
        match value {
            Value::Equal(sides) => self.equal(sides),
            _ => self.composed_holds(value),
        }
    }

    /// Goes on with what is composed of others.
    #[inline(never)]
    fn composed_holds(&mut self, value: &'r Value) -> Result<bool> {
        Ok(match value {
            Value::Not(value) => !self.holds(value)?,
            Value::And(sides) => self.holds(&sides[0])? && self.holds(&sides[1])?,
            Value::Or(sides) => self.holds(&sides[0])? || self.holds(&sides[1])?,
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
        let (left, right) = (self.value(&sides[0])?, self.value(&sides[1])?);
        Ok(match left {
            Held::Text(left) => matches!(right, Held::Text(right) if left.bytes(&self.kept) == right.bytes(&self.kept)),
            Held::Number(left) => matches!(right, Held::Number(right) if left == right),
            Held::Boolean(left) => matches!(right, Held::Boolean(right) if left == right),
            Held::Nil => matches!(right, Held::Nil),
            Held::Status(left, _) => matches!(right, Held::Status(right, _) if left == right),
        })
    }

    /// What an expression comes to.
    #[inline(always)]
    fn value(&mut self, value: &'r Value) -> Result<Held<'r>> {
        let given = |text: Option<&&'r [u8]>| text.map_or(Held::Nil, |text| Held::Text(Text::Here(text)));
        match value {
            Value::Call(call) => self.call(call),
            Value::Number(number) => Ok(Held::Number(*number)),
            Value::Key(index) => Ok(given(self.keys.get(*index))),
            Value::Argument(index) => Ok(given(self.args.get(*index))),
            Value::Local(place) => Ok(self.locals[*place]),
            _ => self.composed(value),
        }
    }

    /// Goes on with what is less frequent, or composed of others.
    #[inline(never)]
    fn composed(&mut self, value: &'r Value) -> Result<Held<'r>> {
        Ok(match value {
            Value::Nil => Held::Nil,
            Value::True => Held::Boolean(true),
            Value::False => Held::Boolean(false),
            Value::Text(text) => Held::Text(Text::Here(text)),
            Value::And(sides) => {
                let left = self.value(&sides[0])?;
                if left.is_true() { self.value(&sides[1])? } else { left }
            }
            Value::Or(sides) => {
                let left = self.value(&sides[0])?;
                if left.is_true() { left } else { self.value(&sides[1])? }
            }
            Value::Not(_) | Value::Equal(_) | Value::Unequal(_) | Value::Ordered(..) => Held::Boolean(self.holds(value)?),
            Value::Call(_) | Value::Number(_) | Value::Key(_) | Value::Argument(_) | Value::Local(_) => self.value(value)?,
        })
    }

    /// Makes a call.
    fn call(&mut self, call: &'r Call) -> Result<Held<'r>> {
        let mut numbers = [const { MaybeUninit::<[u8; DOUBLE_MAX]>::uninit() }; FEW];
        let mut numbers = numbers.iter_mut();
        let mut arguments = [const { MaybeUninit::<&[u8]>::uninit() }; FEW];
        arguments[0].write(&call.name);
        for (at, given) in call.arguments.iter().enumerate() {
            let text = match given {
                Given::Text(text) => Some(&**text),
                Given::Key(index) => self.keys.get(*index).copied(),
                Given::Argument(index) => self.args.get(*index).copied(),
                Given::Local(place) => match self.locals[*place] {
                    Held::Number(value) => numbers.next().map(|number| call::format_number(value, number.write([0; DOUBLE_MAX]))),
                    held => held.text(&self.kept),
                },
            };
            match text {
                Some(text) => arguments[1 + at].write(text),
                None => return Err(call.fails(&[b"ERR ", call::ARGUMENT_TYPES].concat(), false)),
            };
        }
        // There is a place for each, as a call with more has no plan.
        let arguments = &arguments[..=call.arguments.len()];
        // SAFETY: all of these have been written.
        let arguments = unsafe { std::slice::from_raw_parts(arguments.as_ptr().cast::<&[u8]>(), arguments.len()) };
        let interpreter = self.interpreter;
        self.calls += 1;
        let mut reply = Reply { room: &mut self.room, call: self.calls, held: Held::Boolean(false), aside: None };
        // SAFETY: as promised to `run`; no reference to the engine or to the frame is alive.
        let due = unsafe {
            if let Err(error) = call::admit(interpreter, &call.known, arguments) {
                (*(*interpreter).frame.engine).stats.error(&error);
                return Err(call.fails(failure::trimmed(error.text()), true));
            }
            call::carry_out(interpreter, &call.known, arguments, &mut reply);
            bounds::charge_planned(interpreter, call.work, (call.known.least_work, arguments.len()));
            bounds::is_due(interpreter)
        };
        let Reply { held, aside, .. } = reply;
        if due | aside.is_some() { self.settle(call, held, aside) } else { Ok(held) }
    }

    /// Goes on after a call of which the run is asked about, or whose reply is none of the usual ones.
    #[cold]
    fn settle(&mut self, call: &Call, held: Held<'r>, aside: Option<Aside>) -> Result<Held<'r>> {
        if let Some(Aside::Text(text) | Aside::Status(text)) = &aside
            && text.len() > SHORT
        {
            // SAFETY: as promised to `run`.
            unsafe { bounds::charge(self.interpreter, text.len() as u64 / bounds::BYTES_PER_STEP) }
        }
        // SAFETY: as promised to `run`; no reference to the engine or to the frame is alive.
        if unsafe { bounds::settle_quietly(self.interpreter) } {
            return Err(call.fails(&[b"ERR ", bounds::KILLED].concat(), false));
        }
        match aside {
            None => Ok(held),
            Some(Aside::Text(text)) => Ok(Held::Text(self.keep(text))),
            Some(Aside::Status(text)) => Ok(Held::Status(self.calls, self.keep(text))),
            Some(Aside::Error(text)) => Err(call.fails(failure::trimmed(&text), true)),
        }
    }

    /// Keeps a text in a block of its own, unless it is there already.
    fn keep(&mut self, text: Vec<u8>) -> Text<'r> {
        let number = self.kept.iter().position(|other| *other == text).unwrap_or_else(|| {
            self.kept.push(text);
            self.kept.len() - 1
        });
        Text::Kept(number as u32)
    }
}

impl Call {
    /// The error that a run ends with.
    #[cold]
    fn fails(&self, text: &[u8], counted: bool) -> Box<Failure> {
        // As C reads it.
        let end = memchr::memchr(0, text).unwrap_or(text.len());
        Box::new(Failure { text: text[..end].to_vec(), line: self.line, counted })
    }
}

/// The reply of one call.
struct Reply<'c, 'r> {
    room: &'c mut Room<'r>,
    /// Which call of the run it is.
    call: u32,
    /// The reply, if it is none of those.
    held: Held<'r>,
    aside: Option<Aside>,
}

/// A text for which there is no room, or an error.
enum Aside {
    Text(Vec<u8>),
    Status(Vec<u8>),
    Error(Vec<u8>),
}

impl Reply<'_, '_> {
    /// None of the commands that a plan calls replies like that.
    #[cold]
    fn aggregate(&mut self) {
        debug_assert!(false, "an aggregate");
        self.error(b"ERR a script's command replied with an aggregate");
    }

    #[cold]
    fn set_aside(&mut self, text: &[u8], aside: fn(Vec<u8>) -> Aside) {
        self.aside = Some(aside(text.to_vec()));
    }
}

/// As scripts are given replies as long as they ask for nothing else: see [`LuaSink`](crate::script::sink::LuaSink).
impl Sink for Reply<'_, '_> {
    fn protocol(&self) -> Protocol {
        Protocol::Resp2
    }

    fn simple(&mut self, text: &str) {
        match self.room.take(text.as_bytes()) {
            Some(text) => self.held = Held::Status(self.call, Text::Here(text)),
            None => self.set_aside(text.as_bytes(), Aside::Status),
        }
    }

    fn error(&mut self, text: &[u8]) {
        self.set_aside(text, Aside::Error);
    }

    fn integer(&mut self, n: i64) {
        self.held = Held::Number(n as f64);
    }

    fn bulk(&mut self, bytes: &[u8]) {
        match self.room.take(bytes) {
            Some(text) => self.held = Held::Text(Text::Here(text)),
            None => self.set_aside(bytes, Aside::Text),
        }
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
        let mut text = self.text.clone();
        for part in [b" script: ", name, b", on @user_script:", self.line.to_string().as_bytes(), b"."] {
            text.extend_from_slice(part);
        }
        text
    }
}
