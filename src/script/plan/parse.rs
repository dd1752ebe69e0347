//! From a script that Lua has compiled to a plan, if it has nothing that a plan has not.

use crate::engine::observe::command_stats::CommandStats;
use crate::engine::table::CommandTable;
use crate::resp::double::DOUBLE_MAX;
use crate::script::calls::call::{INLINE_ARGUMENTS, format_number};
use crate::script::calls::command_cache::CallableCommand;
use crate::script::fuel;
use crate::script::plan::commands::{Reply, reply};
use crate::script::plan::tokens::{Token, Tokens};
use crate::script::plan::{Call, Given, Order, Plan, Step, Value};

/// How deep statements and values may lie in each other.
const DEPTH_MAX: usize = 24;
/// The longest script that is looked at, in bytes.
const SOURCE_MAX: usize = 8 << 10;

impl Plan {
    /// The plan of a script that Lua has compiled; `None` where it is to run there.
    pub(crate) fn of(source: &[u8], commands: &CommandTable, stats: &mut CommandStats) -> Option<Plan> {
        if source.len() > SOURCE_MAX {
            return None;
        }
        let mut parser = Parser { tokens: Tokens::new(source), token: Token::End, locals: Vec::new(), depth: 0, commands, stats };
        parser.advance()?;
        let steps = parser.block()?;
        if parser.token == Token::End { Some(Plan { steps }) } else { None }
    }
}

/// A name and whether it always is a number.
type Local<'a> = (&'a [u8], bool);

struct Parser<'a, 's> {
    tokens: Tokens<'a>,
    /// The next word.
    token: Token<'a>,
    /// Those that are visible, each in its place.
    locals: Vec<Local<'a>>,
    depth: usize,
    commands: &'s CommandTable,
    stats: &'s mut CommandStats,
}

/// Levels of operators: `or`, `and`, and what is between the operands of those.
const LEVELS: usize = 3;

impl<'a> Parser<'a, '_> {
    fn advance(&mut self) -> Option<()> {
        self.token = self.tokens.next()?;
        Some(())
    }

    /// Whether this is the next word, which is then passed.
    fn passes(&mut self, token: Token<'_>) -> Option<bool> {
        let is = self.token == token;
        if is {
            self.advance()?;
        }
        Some(is)
    }

    fn expect(&mut self, token: Token<'_>) -> Option<()> {
        self.passes(token)?.then_some(())
    }

    fn keyword(&mut self, word: &str) -> Option<()> {
        self.expect(Token::Name(word.as_bytes()))
    }

    /// Statements up to a word that ends a block, which is left.
    fn block(&mut self) -> Option<Box<[Step]>> {
        self.deeper(|parser| {
            let visible = parser.locals.len();
            let mut steps = Vec::new();
            loop {
                match parser.token {
                    Token::End | Token::Name(b"end" | b"else" | b"elseif") => break,
                    Token::Name(b"return") => {
                        parser.advance()?;
                        steps.push(Step::Return(parser.result()?));
                        parser.passes(Token::Symbol(";"))?;
                        break;
                    }
                    Token::Name(b"local") => steps.push(parser.local()?),
                    Token::Name(b"if") => steps.push(parser.choice()?),
                    Token::Name(b"redis") => match parser.primary()? {
                        Value::Call(call) => steps.push(Step::Call(call)),
                        _ => return None,
                    },
                    _ => return None,
                }
                parser.passes(Token::Symbol(";"))?;
            }
            parser.locals.truncate(visible);
            Some(steps.into())
        })
    }

    /// Something that may have the like in it.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// What is behind `return`.
    fn result(&mut self) -> Option<Value> {
        match self.token {
            Token::End | Token::Symbol(";") | Token::Name(b"end" | b"else" | b"elseif") => Some(Value::Nil),
            _ => self.value(),
        }
    }

    fn local(&mut self) -> Option<Step> {
        self.advance()?;
        let Token::Name(name) = self.token else { return None };
        self.advance()?;
        self.expect(Token::Symbol("="))?;
        let value = self.value()?;
        // Not visible in its own value, and with more than one name it would not be at its end.
        if matches!(self.token, Token::Symbol(",")) {
            return None;
        }
        let place = self.locals.len();
        self.locals.push((name, self.is_number(&value)));
        Some(Step::Keep(place, value))
    }

    fn choice(&mut self) -> Option<Step> {
        let mut arms = Vec::new();
        loop {
            // `if` or `elseif`
            self.advance()?;
            let condition = self.value()?;
            self.keyword("then")?;
            arms.push((condition, self.block()?));
            match self.token {
                Token::Name(b"elseif") => {}
                Token::Name(b"else") => {
                    self.advance()?;
                    arms.push((Value::True, self.block()?));
                    break;
                }
                _ => break,
            }
        }
        self.keyword("end")?;
        Some(Step::Choose(arms.into()))
    }

    fn value(&mut self) -> Option<Value> {
        self.deeper(|parser| parser.level(0))
    }

    /// `or`, below it `and`, below it comparisons, of which there is one only.
    fn level(&mut self, level: usize) -> Option<Value> {
        if level == LEVELS - 1 {
            return self.comparison();
        }
        let (word, make): (&[u8], fn(_) -> Value) = if level == 0 { (b"or", Value::Or) } else { (b"and", Value::And) };
        let mut value = self.level(level + 1)?;
        while self.passes(Token::Name(word))? {
            let other = self.level(level + 1)?;
            value = self.deepened(make, value, other)?;
        }
        Some(value)
    }

    /// A chain of operators is a value as deep as it is long.
    fn deepened(&self, make: fn(Box<[Value; 2]>) -> Value, left: Value, right: Value) -> Option<Value> {
        let value = make(Box::new([left, right]));
        (depth(&value) <= DEPTH_MAX).then_some(value)
    }

    fn comparison(&mut self) -> Option<Value> {
        let left = self.unary()?;
        let Token::Symbol(symbol) = self.token else { return Some(left) };
        let order = match symbol {
            "==" | "~=" => None,
            "<" => Some(Order::Less),
            "<=" => Some(Order::LessOrEqual),
            ">" => Some(Order::Greater),
            ">=" => Some(Order::GreaterOrEqual),
            _ => return Some(left),
        };
        self.advance()?;
        let right = self.unary()?;
        if matches!(self.token, Token::Symbol("==" | "~=" | "<" | "<=" | ">" | ">=")) {
            return None;
        }
        let numbers = self.is_number(&left) && self.is_number(&right);
        let sides = Box::new([left, right]);
        match order {
            None if symbol == "==" => Some(Value::Equal(sides)),
            None => Some(Value::Unequal(sides)),
            // Of anything else, Lua may have to raise an error, or to compare as the locale says.
            Some(order) => numbers.then_some(Value::Ordered(order, sides)),
        }
    }

    fn unary(&mut self) -> Option<Value> {
        if self.passes(Token::Name(b"not"))? {
            return self.deeper(Self::unary).map(|value| Value::Not(Box::new(value)));
        }
        self.primary()
    }

    fn primary(&mut self) -> Option<Value> {
        let value = match self.token {
            Token::Number(number) => {
                self.advance()?;
                Value::Number(number)
            }
            Token::Text(text) => {
                self.advance()?;
                Value::Text(text.into())
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
        // It goes on: an index, a method, a call of what came of it, an operator that a plan has not. `-1` may be a subtraction.
        match self.token {
            Token::Symbol("." | "[" | "(" | "..") | Token::Text(_) | Token::Number(_) => None,
            _ => Some(value),
        }
    }

    fn named(&mut self, name: &[u8]) -> Option<Value> {
        let local = self.locals.iter().rposition(|(local, _)| *local == name);
        self.advance()?;
        if let Some(place) = local {
            return Some(Value::Local(place));
        }
        match name {
            b"nil" => Some(Value::Nil),
            b"true" => Some(Value::True),
            b"false" => Some(Value::False),
            b"KEYS" => self.index().map(Value::Key),
            b"ARGV" => self.index().map(Value::Argument),
            b"redis" => {
                self.expect(Token::Symbol("."))?;
                self.keyword("call")?;
                self.call().map(Value::Call)
            }
            _ => None,
        }
    }

    /// `[n]`, with a whole number from 1 on; counted from zero.
    fn index(&mut self) -> Option<usize> {
        self.expect(Token::Symbol("["))?;
        let Token::Number(number) = self.token else { return None };
        self.advance()?;
        self.expect(Token::Symbol("]"))?;
        (number.fract() == 0.0 && (1.0..1e9).contains(&number)).then(|| number as usize - 1)
    }

    /// What is behind `redis.call`.
    fn call(&mut self) -> Option<Call> {
        let line = self.tokens.line();
        self.expect(Token::Symbol("("))?;
        let Given::Text(name) = self.argument()? else { return None };
        let mut arguments = Vec::new();
        while self.passes(Token::Symbol(","))? {
            arguments.push(self.argument()?);
        }
        self.expect(Token::Symbol(")"))?;
        let (command, count) = (self.commands.lookup(&name)?, 1 + arguments.len());
        reply(command, count)?;
        let known = CallableCommand::new(command, self.stats);
        let callable = known.allowed && known.accepts(count) && count <= INLINE_ARGUMENTS;
        let work = fuel::unvisited_call_cost(known.min_cost, count);
        callable.then(|| Call { known, work, name, arguments: arguments.into(), line })
    }

    fn argument(&mut self) -> Option<Given> {
        match self.primary()? {
            Value::Number(number) => Some(Given::Text(format_number(number, &mut [0; DOUBLE_MAX]).into())),
            Value::Text(text) => Some(Given::Text(text)),
            Value::Key(index) => Some(Given::Key(index)),
            Value::Argument(index) => Some(Given::Argument(index)),
            Value::Local(place) => Some(Given::Local(place)),
            _ => None,
        }
    }

    fn is_number(&self, value: &Value) -> bool {
        match value {
            Value::Number(_) => true,
            Value::Local(place) => self.locals[*place].1,
            Value::Call(call) => reply(call.known.command, 1 + call.arguments.len()) == Some(Reply::Integer),
            _ => false,
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::And(sides) | Value::Or(sides) => 1 + depth(&sides[0]).max(depth(&sides[1])),
        _ => 1,
    }
}
