//! The parser: makes a plan of a script that Lua has compiled. Its functions return `None` if the script must run in Lua.

use crate::engine::observe::command_stats::CommandStats;
use crate::engine::table::CommandTable;
use crate::resp::double::DOUBLE_MAX;
use crate::script::calls::call::{INLINE_ARGUMENTS, format_number};
use crate::script::calls::command_cache::CallableCommand;
use crate::script::fuel;
use crate::script::plan::reply_type::{ReplyType, reply_type};
use crate::script::plan::tokens::{Token, Tokens};
use crate::script::plan::{Argument, Call, Comparison, Expr, Plan, Statement};

/// Maximum depth of nested statements and expressions.
const DEPTH_MAX: usize = 24;
/// Maximum length of a script in bytes.
const SOURCE_MAX: usize = 8 << 10;

impl Plan {
    /// The plan of a script that Lua has compiled. `None` if it must run in Lua.
    pub(crate) fn of(source: &[u8], commands: &CommandTable, stats: &mut CommandStats) -> Option<Plan> {
        if source.len() > SOURCE_MAX {
            return None;
        }
        let mut parser = Parser { tokens: Tokens::new(source), token: Token::End, locals: Vec::new(), depth: 0, commands, stats };
        parser.advance()?;
        let statements = parser.block()?;
        if parser.token == Token::End { Some(Plan { statements }) } else { None }
    }
}

/// A local: its name, and whether it is always a number.
type Local<'a> = (&'a [u8], bool);

struct Parser<'a, 's> {
    tokens: Tokens<'a>,
    /// The next token.
    token: Token<'a>,
    /// The visible locals. Their index is their slot.
    locals: Vec<Local<'a>>,
    depth: usize,
    commands: &'s CommandTable,
    stats: &'s mut CommandStats,
}

/// Levels of precedence: `or`, `and`, and comparisons.
const LEVELS: usize = 3;

impl<'a> Parser<'a, '_> {
    fn advance(&mut self) -> Option<()> {
        self.token = self.tokens.next()?;
        Some(())
    }

    /// Consumes this token if it is the next one. Returns whether it is.
    fn accept(&mut self, token: Token<'_>) -> Option<bool> {
        let is = self.token == token;
        if is {
            self.advance()?;
        }
        Some(is)
    }

    fn expect(&mut self, token: Token<'_>) -> Option<()> {
        self.accept(token)?.then_some(())
    }

    fn keyword(&mut self, word: &str) -> Option<()> {
        self.expect(Token::Name(word.as_bytes()))
    }

    /// Statements up to the keyword that ends the block. The keyword is not consumed.
    fn block(&mut self) -> Option<Box<[Statement]>> {
        self.nested(|parser| {
            let visible = parser.locals.len();
            let mut statements = Vec::new();
            loop {
                match parser.token {
                    Token::End | Token::Name(b"end" | b"else" | b"elseif") => break,
                    Token::Name(b"return") => {
                        parser.advance()?;
                        statements.push(Statement::Return(parser.result()?));
                        parser.accept(Token::Symbol(";"))?;
                        break;
                    }
                    Token::Name(b"local") => statements.push(parser.local()?),
                    Token::Name(b"if") => statements.push(parser.if_statement()?),
                    Token::Name(b"redis") => match parser.primary()? {
                        Expr::Call(call) => statements.push(Statement::Call(call)),
                        _ => return None,
                    },
                    _ => return None,
                }
                parser.accept(Token::Symbol(";"))?;
            }
            parser.locals.truncate(visible);
            Some(statements.into())
        })
    }

    /// Parses something that may contain more of its kind.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// The expression after `return`.
    fn result(&mut self) -> Option<Expr> {
        match self.token {
            Token::End | Token::Symbol(";") | Token::Name(b"end" | b"else" | b"elseif") => Some(Expr::Nil),
            _ => self.value(),
        }
    }

    fn local(&mut self) -> Option<Statement> {
        self.advance()?;
        let Token::Name(name) = self.token else { return None };
        self.advance()?;
        self.expect(Token::Symbol("="))?;
        let value = self.value()?;
        // The local is not visible in its own value. A list of values is not supported.
        if matches!(self.token, Token::Symbol(",")) {
            return None;
        }
        let slot = self.locals.len();
        self.locals.push((name, self.is_number(&value)));
        Some(Statement::Local(slot, value))
    }

    fn if_statement(&mut self) -> Option<Statement> {
        let mut branches = Vec::new();
        loop {
            // `if` or `elseif`
            self.advance()?;
            let condition = self.value()?;
            self.keyword("then")?;
            branches.push((condition, self.block()?));
            match self.token {
                Token::Name(b"elseif") => {}
                Token::Name(b"else") => {
                    self.advance()?;
                    branches.push((Expr::True, self.block()?));
                    break;
                }
                _ => break,
            }
        }
        self.keyword("end")?;
        Some(Statement::If(branches.into()))
    }

    fn value(&mut self) -> Option<Expr> {
        self.nested(|parser| parser.operators(0))
    }

    /// Operators from this level of precedence on: `or`, then `and`, then one comparison.
    fn operators(&mut self, level: usize) -> Option<Expr> {
        if level == LEVELS - 1 {
            return self.comparison();
        }
        let (word, make): (&[u8], fn(_) -> Expr) = if level == 0 { (b"or", Expr::Or) } else { (b"and", Expr::And) };
        let mut value = self.operators(level + 1)?;
        while self.accept(Token::Name(word))? {
            let other = self.operators(level + 1)?;
            value = self.combined(make, value, other)?;
        }
        Some(value)
    }

    /// An expression of two operands. A chain of operators is as deep as it is long, so its depth is checked.
    fn combined(&self, make: fn(Box<[Expr; 2]>) -> Expr, left: Expr, right: Expr) -> Option<Expr> {
        let value = make(Box::new([left, right]));
        (depth(&value) <= DEPTH_MAX).then_some(value)
    }

    fn comparison(&mut self) -> Option<Expr> {
        let left = self.unary()?;
        let Token::Symbol(symbol) = self.token else { return Some(left) };
        let comparison = match symbol {
            "==" | "~=" => None,
            "<" => Some(Comparison::Less),
            "<=" => Some(Comparison::LessOrEqual),
            ">" => Some(Comparison::Greater),
            ">=" => Some(Comparison::GreaterOrEqual),
            _ => return Some(left),
        };
        self.advance()?;
        let right = self.unary()?;
        if matches!(self.token, Token::Symbol("==" | "~=" | "<" | "<=" | ">" | ">=")) {
            return None;
        }
        let numbers = self.is_number(&left) && self.is_number(&right);
        let sides = Box::new([left, right]);
        match comparison {
            None if symbol == "==" => Some(Expr::Equal(sides)),
            None => Some(Expr::Unequal(sides)),
            // For other values Lua may raise an error, or compare strings by the locale.
            Some(comparison) => numbers.then_some(Expr::Compare(comparison, sides)),
        }
    }

    fn unary(&mut self) -> Option<Expr> {
        if self.accept(Token::Name(b"not"))? {
            return self.nested(Self::unary).map(|value| Expr::Not(Box::new(value)));
        }
        self.primary()
    }

    fn primary(&mut self) -> Option<Expr> {
        let value = match self.token {
            Token::Number(number) => {
                self.advance()?;
                Expr::Number(number)
            }
            Token::Text(text) => {
                self.advance()?;
                Expr::Text(text.into())
            }
            Token::Symbol("(") => {
                self.advance()?;
                let value = self.value()?;
                self.expect(Token::Symbol(")"))?;
                value
            }
            Token::Name(name) => self.named(name)?,
            _ => return None,
        };
        // An index, a method, a call of the result, or an unsupported operator follows. `-1` may be a subtraction.
        match self.token {
            Token::Symbol("." | "[" | "(" | "..") | Token::Text(_) | Token::Number(_) => None,
            _ => Some(value),
        }
    }

    /// A local, a keyword, `KEYS[n]`, `ARGV[n]` or a call. `name` is the current token.
    fn named(&mut self, name: &[u8]) -> Option<Expr> {
        let local = self.locals.iter().rposition(|(local, _)| *local == name);
        self.advance()?;
        if let Some(slot) = local {
            return Some(Expr::Local(slot));
        }
        match name {
            b"nil" => Some(Expr::Nil),
            b"true" => Some(Expr::True),
            b"false" => Some(Expr::False),
            b"KEYS" => self.index().map(Expr::Key),
            b"ARGV" => self.index().map(Expr::Arg),
            b"redis" => {
                self.expect(Token::Symbol("."))?;
                self.keyword("call")?;
                self.call().map(Expr::Call)
            }
            _ => None,
        }
    }

    /// `[n]` with a whole number from 1 on. Returns the number counted from zero.
    fn index(&mut self) -> Option<usize> {
        self.expect(Token::Symbol("["))?;
        let Token::Number(number) = self.token else { return None };
        self.advance()?;
        self.expect(Token::Symbol("]"))?;
        (number.fract() == 0.0 && (1.0..1e9).contains(&number)).then(|| number as usize - 1)
    }

    /// The arguments after `redis.call`.
    fn call(&mut self) -> Option<Call> {
        let line = self.tokens.line();
        self.expect(Token::Symbol("("))?;
        let Argument::Text(name) = self.argument()? else { return None };
        let mut arguments = Vec::new();
        while self.accept(Token::Symbol(","))? {
            arguments.push(self.argument()?);
        }
        self.expect(Token::Symbol(")"))?;
        let (command, count) = (self.commands.lookup(&name)?, 1 + arguments.len());
        reply_type(command, count)?;
        let callable = CallableCommand::new(command, self.stats);
        let allowed = callable.allowed && callable.accepts(count) && count <= INLINE_ARGUMENTS;
        let cost = fuel::unvisited_call_cost(callable.min_cost, count);
        allowed.then(|| Call { callable, cost, name, arguments: arguments.into(), line })
    }

    fn argument(&mut self) -> Option<Argument> {
        match self.primary()? {
            Expr::Number(number) => Some(Argument::Text(format_number(number, &mut [0; DOUBLE_MAX]).into())),
            Expr::Text(text) => Some(Argument::Text(text)),
            Expr::Key(index) => Some(Argument::Key(index)),
            Expr::Arg(index) => Some(Argument::Arg(index)),
            Expr::Local(slot) => Some(Argument::Local(slot)),
            _ => None,
        }
    }

    /// Whether an expression is always a number.
    fn is_number(&self, value: &Expr) -> bool {
        match value {
            Expr::Number(_) => true,
            Expr::Local(slot) => self.locals[*slot].1,
            Expr::Call(call) => reply_type(call.callable.command, 1 + call.arguments.len()) == Some(ReplyType::Integer),
            _ => false,
        }
    }
}

/// Depth of nested `and` and `or`.
fn depth(value: &Expr) -> usize {
    if let Expr::And(sides) | Expr::Or(sides) = value { 1 + depth(&sides[0]).max(depth(&sides[1])) } else { 1 }
}
