//! Runs a plan.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use crate::base::error::Error;
use crate::resp::double::DOUBLE_MAX;
use crate::resp::reply::Sink;
use crate::script::calls::call::{self, INLINE_ARGUMENTS};
use crate::script::calls::checks::check_call;
use crate::script::conversion::errors;
use crate::script::conversion::to_reply::{truncate, write_status};
use crate::script::fuel;
use crate::script::interpreter::Interpreter;
use crate::script::plan::sink::{CallSink, Overflow};
use crate::script::plan::values::{Arena, OwnedTexts, SHORT, Text, Value};
use crate::script::plan::{Argument, Call, Comparison, Expr, Plan, Statement};

/// The error of a run.
pub(crate) struct PlanError {
    /// The error as a script could catch it.
    text: Vec<u8>,
    /// The line that raised it.
    line: u32,
    /// Whether the error has been counted.
    pub counted: bool,
}

type Result<T> = std::result::Result<T, Box<PlanError>>;

/// Runs a plan and replies with the value that it returns.
///
/// # Safety
/// The interpreter is valid and runs nothing else. Its frame is that of this run; the frame's engine is valid, and reached through
/// the frame only until this returns.
#[inline(always)]
pub(crate) unsafe fn run(
    plan: &Plan,
    interpreter: *mut Interpreter,
    keys: &[&[u8]],
    args: &[&[u8]],
    reply: &mut dyn Sink,
) -> Result<()> {
    // SAFETY: the interpreter is valid and runs nothing else, so nothing else uses this memory now.
    let arena = Arena(unsafe { &mut (*interpreter).plan_texts });
    // SAFETY: the interpreter is valid, and nothing has a reference to its frame now.
    let engine = unsafe { (*interpreter).frame.engine };
    // Most calls use the first key, so the keyspace remembers its location.
    // SAFETY: the frame's engine is valid, and nothing else has a reference to it now.
    let remembered = keys.first().map(|key| unsafe { (*engine).keyspace_mut().space.cache_place(key) });
    let mut run = Run { interpreter, keys, args, locals: SmallVec::new(), arena, owned: OwnedTexts::new(), calls: 0 };
    let done = run.block(&plan.statements);
    // SAFETY: the plan has run, so nothing else has a reference to the engine, which is still valid, or to the frame.
    unsafe {
        if let Some(none_was_cached) = remembered {
            (*engine).keyspace_mut().space.uncache_place(none_was_cached);
        }
        (*interpreter).frame.engine = std::ptr::null_mut();
    }
    match done? {
        Some(Value::Number(number)) => reply.integer(truncate(number)),
        None | Some(Value::Nil | Value::Boolean(false)) => reply.null(),
        Some(Value::Boolean(true)) => reply.integer(1),
        Some(Value::Text(text)) => reply.bulk(text.bytes(&run.owned)),
        Some(Value::Status(_, text)) => write_status(text.bytes(&run.owned), reply),
    }
    Ok(())
}

/// A running plan.
struct Run<'r> {
    /// It is valid, and its frame is that of this run.
    interpreter: *mut Interpreter,
    keys: &'r [&'r [u8]],
    args: &'r [&'r [u8]],
    locals: SmallVec<[Value<'r>; 4]>,
    arena: Arena<'r>,
    /// Allocated texts. Those that no local refers to any more are removed from the end after each statement.
    owned: OwnedTexts,
    /// Number of calls so far.
    calls: u32,
}

impl<'r> Run<'r> {
    /// Runs a block. Returns the value of its `return` statement, if it reaches one.
    fn block(&mut self, mut block: &'r [Statement]) -> Result<Option<Value<'r>>> {
        while let Some((statement, rest)) = block.split_first() {
            block = rest;
            match statement {
                Statement::Local(slot, expr) => {
                    let owned = self.owned.len();
                    let value = self.evaluate(expr)?;
                    if !value.is_owned() {
                        self.owned.truncate(owned);
                    }
                    // Later slots may still hold locals of blocks that have ended.
                    if let Some(local) = self.locals.get_mut(*slot) { *local = value } else { self.locals.push(value) }
                }
                Statement::Call(call) => {
                    let owned = self.owned.len();
                    self.call(call)?;
                    self.owned.truncate(owned);
                }
                Statement::If(branches) => {
                    let owned = self.owned.len();
                    if let Some(chosen) = self.choose_branch(branches)? {
                        if rest.is_empty() {
                            // Nothing follows the `if` statement.
                            block = chosen;
                        } else if let Some(returned) = self.block(chosen)? {
                            return Ok(Some(returned));
                        } else {
                            // The locals of the branch have ended.
                            self.owned.truncate(owned);
                        }
                    }
                }
                Statement::Return(expr) => return self.evaluate(expr).map(Some),
            }
        }
        Ok(None)
    }

    /// The block of the first branch whose condition holds.
    #[inline(always)]
    fn choose_branch(&mut self, branches: &'r [(Expr, Box<[Statement]>)]) -> Result<Option<&'r [Statement]>> {
        for (condition, block) in branches {
            let owned = self.owned.len();
            let holds = self.holds(condition)?;
            self.owned.truncate(owned);
            if holds {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Whether a condition holds.
    #[inline(always)]
    fn holds(&mut self, expr: &'r Expr) -> Result<bool> {
        if let Expr::Equal(sides) = expr { self.equal(sides) } else { self.other_holds(expr) }
    }

    /// [`Run::holds`] for the less frequent conditions.
    #[inline(never)]
    fn other_holds(&mut self, expr: &'r Expr) -> Result<bool> {
        Ok(match expr {
            Expr::Not(expr) => !self.holds(expr)?,
            Expr::And(sides) => self.holds(&sides[0])? && self.holds(&sides[1])?,
            Expr::Or(sides) => self.holds(&sides[0])? || self.holds(&sides[1])?,
            Expr::Unequal(sides) => !self.equal(sides)?,
            Expr::Compare(comparison, sides) => {
                let (left, right) = (self.number(&sides[0])?, self.number(&sides[1])?);
                match comparison {
                    Comparison::Less => left < right,
                    Comparison::LessOrEqual => left <= right,
                    Comparison::Greater => left > right,
                    Comparison::GreaterOrEqual => left >= right,
                }
            }
            _ => self.evaluate(expr)?.is_true(),
        })
    }

    /// The value of an expression that the parser has found to be a number.
    #[inline(always)]
    fn number(&mut self, expr: &'r Expr) -> Result<f64> {
        Ok(if let Value::Number(number) = self.evaluate(expr)? { number } else { f64::NAN })
    }

    fn equal(&mut self, sides: &'r [Expr; 2]) -> Result<bool> {
        let (left, right) = (self.evaluate(&sides[0])?, self.evaluate(&sides[1])?);
        Ok(match left {
            Value::Text(left) => matches!(right, Value::Text(right) if left.bytes(&self.owned) == right.bytes(&self.owned)),
            Value::Number(left) => matches!(right, Value::Number(right) if left == right),
            Value::Boolean(left) => matches!(right, Value::Boolean(right) if left == right),
            Value::Nil => matches!(right, Value::Nil),
            Value::Status(left, _) => matches!(right, Value::Status(right, _) if left == right),
        })
    }

    /// The value of an expression.
    #[inline(always)]
    fn evaluate(&mut self, expr: &'r Expr) -> Result<Value<'r>> {
        let given = |text: Option<&&'r [u8]>| text.map_or(Value::Nil, |text| Value::Text(Text::Borrowed(text)));
        match expr {
            Expr::Call(call) => self.call(call),
            Expr::Number(number) => Ok(Value::Number(*number)),
            Expr::Key(index) => Ok(given(self.keys.get(*index))),
            Expr::Arg(index) => Ok(given(self.args.get(*index))),
            Expr::Local(slot) => Ok(self.locals[*slot]),
            _ => self.evaluate_other(expr),
        }
    }

    /// [`Run::evaluate`] for the less frequent expressions.
    #[inline(never)]
    fn evaluate_other(&mut self, expr: &'r Expr) -> Result<Value<'r>> {
        Ok(match expr {
            Expr::Nil => Value::Nil,
            Expr::True => Value::Boolean(true),
            Expr::False => Value::Boolean(false),
            Expr::Text(text) => Value::Text(Text::Borrowed(text)),
            Expr::And(sides) => {
                let left = self.evaluate(&sides[0])?;
                if left.is_true() { self.evaluate(&sides[1])? } else { left }
            }
            Expr::Or(sides) => {
                let left = self.evaluate(&sides[0])?;
                if left.is_true() { left } else { self.evaluate(&sides[1])? }
            }
            Expr::Not(_) | Expr::Equal(_) | Expr::Unequal(_) | Expr::Compare(..) => Value::Boolean(self.holds(expr)?),
            Expr::Call(_) | Expr::Number(_) | Expr::Key(_) | Expr::Arg(_) | Expr::Local(_) => self.evaluate(expr)?,
        })
    }

    /// Makes a call and returns its reply.
    fn call(&mut self, call: &'r Call) -> Result<Value<'r>> {
        let mut numbers = [const { MaybeUninit::<[u8; DOUBLE_MAX]>::uninit() }; INLINE_ARGUMENTS];
        let mut numbers = numbers.iter_mut();
        let mut arguments = [const { MaybeUninit::<&[u8]>::uninit() }; INLINE_ARGUMENTS];
        arguments[0].write(&call.name);
        for (at, argument) in call.arguments.iter().enumerate() {
            let text = match argument {
                Argument::Text(text) => Some(&**text),
                Argument::Key(index) => self.keys.get(*index).copied(),
                Argument::Arg(index) => self.args.get(*index).copied(),
                Argument::Local(slot) => match self.locals[*slot] {
                    Value::Number(value) => {
                        numbers.next().map(|number| call::format_number(value, number.write([0; DOUBLE_MAX])))
                    }
                    value => value.text(&self.owned),
                },
            };
            if let Some(text) = text {
                arguments[1 + at].write(text)
            } else {
                return Err(call.error_of_arguments());
            };
        }
        // The array is large enough: the parser rejects calls with more arguments.
        let arguments = &arguments[..=call.arguments.len()];
        // SAFETY: all of these have been written.
        let arguments = unsafe { std::slice::from_raw_parts(arguments.as_ptr().cast::<&[u8]>(), arguments.len()) };
        let interpreter = self.interpreter;
        self.calls += 1;
        let mut sink = CallSink { arena: &mut self.arena, call: self.calls, value: Value::Boolean(false), overflow: None };
        // SAFETY: a plan runs, so the interpreter and its engine are valid, and no reference to the engine or to the frame is
        // alive. Allocations cannot fail, because no Lua code runs.
        let is_check_due = unsafe {
            if let Err(error) = check_call(interpreter, &call.callable, arguments) {
                (*(*interpreter).frame.engine).stats_mut().error(&error);
                return Err(call.error_of_check(&error));
            }
            call::run_command(interpreter, &call.callable, arguments, &mut sink);
            fuel::consume_planned_call(interpreter, call.cost, (call.callable.min_cost, arguments.len()));
            fuel::is_check_due(interpreter)
        };
        let CallSink { value, overflow, .. } = sink;
        if is_check_due | overflow.is_some() { self.finish_call(call, value, overflow) } else { Ok(value) }
    }

    /// Finishes a call after which a check of the fuel is due, or whose reply is in `overflow`.
    #[cold]
    fn finish_call(&mut self, call: &Call, value: Value<'r>, overflow: Option<Overflow>) -> Result<Value<'r>> {
        if let Some(Overflow::Text(text) | Overflow::Status(text)) = &overflow
            && text.len() > SHORT
        {
            // SAFETY: a plan runs, so the interpreter is valid, and no reference to the frame is alive.
            unsafe { fuel::consume_unchecked(self.interpreter, text.len() as u64 / fuel::BYTES_PER_STEP) }
        }
        // SAFETY: a plan runs, so the interpreter and its engine are valid, and no reference to the engine or to the frame is
        // alive.
        fail_if!(unsafe { fuel::try_check(self.interpreter) }, call.error(&[b"ERR ", fuel::KILLED].concat(), false));
        match overflow {
            None => Ok(value),
            Some(Overflow::Text(text)) => Ok(Value::Text(self.own(text))),
            Some(Overflow::Status(text)) => Ok(Value::Status(self.calls, self.own(text))),
            Some(Overflow::Error(text)) => Err(call.error(errors::without_line_ends(&text), true)),
        }
    }

    /// Stores an allocated text, unless an equal one is stored.
    fn own(&mut self, text: Vec<u8>) -> Text<'r> {
        let index = self.owned.iter().position(|other| *other == text).unwrap_or_else(|| {
            self.owned.push(text);
            self.owned.len() - 1
        });
        Text::Owned(index as u32)
    }
}

impl Call {
    /// The error for an argument that is neither a string nor a number.
    #[cold]
    #[inline(never)]
    fn error_of_arguments(&self) -> Box<PlanError> {
        self.error(format!("ERR {}", call::ARGUMENT_TYPES).as_bytes(), false)
    }

    #[cold]
    #[inline(never)]
    fn error_of_check(&self, error: &Error) -> Box<PlanError> {
        self.error(errors::without_line_ends(error.text()), true)
    }

    /// The error with which a run ends at this call. The text ends at its first NUL, as for Redis.
    #[cold]
    fn error(&self, text: &[u8], counted: bool) -> Box<PlanError> {
        let end = memchr::memchr(0, text).unwrap_or(text.len());
        Box::new(PlanError { text: text[..end].to_vec(), line: self.line, counted })
    }
}

impl PlanError {
    /// The error reply. `name` identifies the script.
    pub(crate) fn reply(&self, name: &[u8]) -> Vec<u8> {
        let mut text = self.text.clone();
        for part in [b" script: ", name, b", on @user_script:", self.line.to_string().as_bytes(), b"."] {
            text.extend_from_slice(part);
        }
        text
    }
}
