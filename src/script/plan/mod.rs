//! Plans: small scripts that run without Lua.
//!
//! Lock libraries send scripts of a few calls with conditions between them: compare and delete, compare and renew, the steps of a
//! reentrant lock. In such a script Lua costs more than the commands: the entry into its interpreter, its strings (each argument
//! and each reply is hashed and looked up) and its tables. A script that consists only of
//!
//! ```text
//!   local name = value      if value then … elseif value then … else … end      return value      redis.call(…)
//!   value: literals, KEYS[n], ARGV[n], names, redis.call('command', …), and, or, not, ==, ~=, and <, <=, >, >= of numbers
//! ```
//!
//! therefore runs as a [`Plan`]. All other scripts run in Lua. Clients cannot see the difference: replies, errors and their lines,
//! statistics, users' rules, limits and the change log are the same. A property test compares plans with Lua.
//!
//! Two properties keep plans simple. A plan is made only of a script that Lua has compiled, so the parser never has to report an
//! error: it gives up. And only a call can fail: `<` is accepted only for expressions that are always numbers, and a command only
//! if its reply is never an aggregate. There are no loops, so a plan always ends.
//!
//! [`parse`] makes a plan of a source, from the tokens of [`tokens`]. [`mod@run`] runs it, with the values in [`values`].

mod parse;
mod reply_type;
mod run;
mod sink;
#[cfg(test)]
mod tests;
pub(crate) mod tokens;
mod values;

use crate::script::calls::command_cache::CallableCommand;

pub(crate) use run::run;

/// A script that runs without Lua.
#[derive(Debug)]
pub(crate) struct Plan {
    statements: Box<[Statement]>,
}

/// A statement.
#[derive(Debug)]
enum Statement {
    /// `local name = value`. The local gets this slot.
    Local(usize, Expr),
    /// `redis.call(…)`, whose reply is discarded.
    Call(Call),
    /// `if value then … elseif value then … else … end`. Runs the first block whose condition holds. That of `else` is [`Expr::True`].
    If(Box<[(Expr, Box<[Statement]>)]>),
    /// `return value`
    Return(Expr),
}

/// An expression.
#[derive(Debug)]
enum Expr {
    Nil,
    True,
    False,
    Number(f64),
    Text(Box<[u8]>),
    /// `KEYS[n]`, with `n` from zero.
    Key(usize),
    /// `ARGV[n]`, with `n` from zero.
    Arg(usize),
    /// The local in this slot.
    Local(usize),
    Call(Call),
    Not(Box<Expr>),
    And(Box<[Expr; 2]>),
    Or(Box<[Expr; 2]>),
    Equal(Box<[Expr; 2]>),
    Unequal(Box<[Expr; 2]>),
    /// A comparison of two numbers.
    Compare(Comparison, Box<[Expr; 2]>),
}

/// A comparison operator.
#[derive(Clone, Copy, Debug)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// `redis.call(…)`
struct Call {
    callable: CallableCommand,
    /// Its fuel if the command visits no elements; see [`fuel::consume_planned_call`](super::fuel::consume_planned_call).
    cost: u64,
    /// The command's name as the script spells it.
    name: Box<[u8]>,
    /// The arguments after the name.
    arguments: Box<[Argument]>,
    /// The line that an error names.
    line: u32,
}

/// An argument of a call. Its value is known before the call.
#[derive(Debug)]
enum Argument {
    Text(Box<[u8]>),
    /// `KEYS[n]`, with `n` from zero.
    Key(usize),
    /// `ARGV[n]`, with `n` from zero.
    Arg(usize),
    /// The local in this slot.
    Local(usize),
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} in line {}", self.callable.command.name, self.arguments, self.line)
    }
}

impl Plan {
    /// Its size in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Plan>() + block_bytes(&self.statements)
    }
}

/// Size of a block of statements in bytes.
fn block_bytes(block: &[Statement]) -> usize {
    let of_statement = |statement: &Statement| match statement {
        Statement::Local(_, expr) | Statement::Return(expr) => expr.heap_bytes(),
        Statement::Call(call) => call.heap_bytes(),
        Statement::If(branches) => {
            let of_branch = |(condition, block): &(Expr, Box<[Statement]>)| condition.heap_bytes() + block_bytes(block);
            size_of_val(&**branches) + branches.iter().map(of_branch).sum::<usize>()
        }
    };
    size_of_val(block) + block.iter().map(of_statement).sum::<usize>()
}

impl Expr {
    /// Bytes that it has on the heap.
    fn heap_bytes(&self) -> usize {
        match self {
            Expr::Text(text) => text.len(),
            Expr::Call(call) => call.heap_bytes(),
            Expr::Not(expr) => size_of::<Expr>() + expr.heap_bytes(),
            Expr::And(sides) | Expr::Or(sides) | Expr::Equal(sides) | Expr::Unequal(sides) | Expr::Compare(_, sides) => {
                size_of_val(&**sides) + sides[0].heap_bytes() + sides[1].heap_bytes()
            }
            _ => 0,
        }
    }
}

impl Call {
    /// Bytes that it has on the heap.
    fn heap_bytes(&self) -> usize {
        let of_argument = |argument: &Argument| if let Argument::Text(text) = argument { text.len() } else { 0 };
        self.name.len() + size_of_val(&*self.arguments) + self.arguments.iter().map(of_argument).sum::<usize>()
    }
}
