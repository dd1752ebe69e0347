//! Small scripts, carried out without Lua.
//!
//! What lock libraries send is a few calls with conditions between them: compare and delete, compare and renew, a reentrant lock's
//! steps. In such a script, Lua itself costs more than the commands: its entry, its strings (each argument and each reply is hashed
//! and looked up), its tables. So a script that consists of nothing but
//!
//! ```text
//!   local name = value      if value then … elseif value then … else … end      return value      redis.call(…)
//!   value: literals, KEYS[n], ARGV[n], names, redis.call('command', …), and, or, not, ==, ~=, and <, <=, >, >= of numbers
//! ```
//!
//! is carried out as a [`Plan`]. All others, whatever it is that they have more, run in Lua as ever, and there is no way to tell from
//! outside: replies, errors and the lines they name, statistics, rules for users, limits and what the change log says are the same,
//! which a property test holds against Lua itself.
//!
//! Two things make that simple. A plan is made only of a script that Lua has compiled, so that nothing need be refused here, only
//! left alone. And nothing in a plan can fail but a call: `<` is taken only of what is always a number, and a command is called only
//! if its reply is never an aggregate. There are no loops, so that a plan ends by itself.

mod commands;
mod parse;
mod run;
#[cfg(test)]
mod tests;
mod tokens;

use crate::script::calls::command_cache::CallableCommand;

pub(crate) use run::run;

/// A script that can be carried out without Lua.
#[derive(Debug)]
pub(crate) struct Plan {
    steps: Box<[Step]>,
}

impl Plan {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Plan>() + steps_bytes(&self.steps)
    }
}

fn steps_bytes(steps: &[Step]) -> usize {
    let of_step = |step: &Step| match step {
        Step::Keep(_, value) | Step::Return(value) => value.bytes(),
        Step::Call(call) => call.bytes(),
        Step::Choose(arms) => {
            size_of_val(&**arms) + arms.iter().map(|(value, steps)| value.bytes() + steps_bytes(steps)).sum::<usize>()
        }
    };
    size_of_val(steps) + steps.iter().map(of_step).sum::<usize>()
}

impl Value {
    /// Bytes that it takes beside its own place.
    fn bytes(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::Call(call) => call.bytes(),
            Value::Not(value) => size_of::<Value>() + value.bytes(),
            Value::And(sides) | Value::Or(sides) | Value::Equal(sides) | Value::Unequal(sides) | Value::Ordered(_, sides) => {
                size_of_val(&**sides) + sides[0].bytes() + sides[1].bytes()
            }
            _ => 0,
        }
    }
}

impl Call {
    fn bytes(&self) -> usize {
        let of_argument = |argument: &Given| if let Given::Text(text) = argument { text.len() } else { 0 };
        self.name.len() + size_of_val(&*self.arguments) + self.arguments.iter().map(of_argument).sum::<usize>()
    }
}

/// A statement.
#[derive(Debug)]
enum Step {
    /// `local name = value`: it gets this place.
    Keep(usize, Value),
    /// `redis.call(…)`, whatever it replies.
    Call(Call),
    /// `if value then … elseif value then … else … end`: the first of which the value holds, which for `else` is [`Value::True`].
    Choose(Box<[(Value, Box<[Step]>)]>),
    /// `return value`
    Return(Value),
}

/// An expression.
#[derive(Debug)]
enum Value {
    Nil,
    True,
    False,
    Number(f64),
    Text(Box<[u8]>),
    /// `KEYS[n]`, counted from zero.
    Key(usize),
    /// `ARGV[n]`, counted from zero.
    Argument(usize),
    /// The local at this place.
    Local(usize),
    Call(Call),
    Not(Box<Value>),
    And(Box<[Value; 2]>),
    Or(Box<[Value; 2]>),
    Equal(Box<[Value; 2]>),
    Unequal(Box<[Value; 2]>),
    /// Of two numbers.
    Ordered(Order, Box<[Value; 2]>),
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug)]
enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// `redis.call(…)`
struct Call {
    known: CallableCommand,
    /// What it counts where the command visits nothing beside what it is given: see [`fuel::add_planned_call`](super::fuel::add_planned_call).
    work: u64,
    /// The command, as it is named here.
    name: Box<[u8]>,
    /// What is behind the name.
    arguments: Box<[Given]>,
    /// The line that an error names.
    line: u32,
}

/// An argument of a call, which is there already when the call is made.
#[derive(Debug)]
enum Given {
    Text(Box<[u8]>),
    /// `KEYS[n]`, counted from zero.
    Key(usize),
    /// `ARGV[n]`, counted from zero.
    Argument(usize),
    /// The local at this place.
    Local(usize),
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} in line {}", self.known.command.name, self.arguments, self.line)
    }
}
