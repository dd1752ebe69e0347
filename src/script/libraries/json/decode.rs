//! `cjson.decode`.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use super::number::{self, Number};
use super::settings;
use crate::script::fuel;
use crate::script::interpreter::Interpreter;
use crate::script::libraries::buffer::{Kind, Level};
use crate::script::libraries::raise::{raise, raise_numbers};
use crate::script::libraries::writer::Writer;
use crate::script::lua::stack::{bytes, push_bytes};

/// Bytes read between two checks of the fuel, and in one step.
const CHECK_EVERY: usize = 4 << 10;
const READ_PER_STEP: usize = 2;

/// Maximum number of digits for which every integer is exact in a double.
const EXACT_DIGITS: usize = 15;

/// `cjson.decode(text)`
pub(super) unsafe extern "C-unwind" fn decode(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values, and it was set with the interpreter and its settings. The text stays on
    // the stack as the argument. Nothing has a destructor where errors are raised.
    unsafe {
        luaL_argcheck(lua, c_int::from(lua_gettop(lua) == 1), 1, c"expected 1 argument".as_ptr());
        luaL_checklstring(lua, 1, std::ptr::null_mut());
        let text = bytes(lua, 1).unwrap_or_default();
        if let [first, second, ..] = text
            && (*first == 0 || *second == 0)
        {
            raise(lua, c"JSON parser does not support UTF-16 or UTF-32");
        }
        let settings = &*settings(lua);
        let mut parser = Parser {
            lua,
            text,
            at: 0,
            token_at: 0,
            counted: 0,
            unescaped: Writer::new(lua),
            any_number: settings.decode_invalid_numbers != 0,
            depth_max: settings.decode_max_depth as usize,
        };
        parser.run(&raw mut (*Interpreter::of(lua)).nesting);
        parser.consume_fuel();
    }
    1
}

// SAFETY of the functions below: as for `decode`; `run` makes room on the stack before it enters a table.

/// A token of JSON.
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Colon,
    Comma,
    End,
    Null,
    Boolean(bool),
    Number(f64),
    Text(&'static [u8]),
    /// A string with escapes. The buffer has its decoded text.
    Unescaped,
    /// An invalid token, with the reason.
    Bad(&'static CStr),
}

impl Token {
    /// Its name in errors.
    fn name(&self) -> &'static CStr {
        match self {
            Token::ObjectBegin => c"T_OBJ_BEGIN",
            Token::ObjectEnd => c"T_OBJ_END",
            Token::ArrayBegin => c"T_ARR_BEGIN",
            Token::ArrayEnd => c"T_ARR_END",
            Token::Colon => c"T_COLON",
            Token::Comma => c"T_COMMA",
            Token::End => c"T_END",
            Token::Null => c"T_NULL",
            Token::Boolean(_) => c"T_BOOLEAN",
            Token::Number(_) => c"T_NUMBER",
            Token::Text(_) | Token::Unescaped => c"T_STRING",
            Token::Bad(why) => why,
        }
    }
}

/// Parses one text.
struct Parser {
    lua: *mut lua_State,
    text: &'static [u8],
    /// Offset of the next byte to read.
    at: usize,
    /// Offset of the last token, or of the error in it.
    token_at: usize,
    /// Number of bytes for which fuel was consumed.
    counted: usize,
    unescaped: Writer,
    /// Whether numbers that JSON does not have are accepted.
    any_number: bool,
    depth_max: usize,
}

impl Parser {
    /// Pushes the value that the whole text represents. Incomplete tables are in `levels`. On the stack each of them lies below its
    /// current element; an object also below the key.
    unsafe fn run(&mut self, levels: *mut Vec<Level>) {
        let lua = self.lua;
        // SAFETY: nothing else uses the levels meanwhile, as nothing here calls a script's code. `open` makes room for each
        // table, a key and a value, and nothing has a destructor when an error is raised.
        unsafe {
            (*levels).clear();
            let mut token = self.next();
            loop {
                match token {
                    Token::ObjectBegin => {
                        self.open((*levels).len() + 1, 3);
                        token = self.next();
                        if !matches!(token, Token::ObjectEnd) {
                            (*levels).push(Level { kind: Kind::Map, done: 0, len: 0 });
                            token = self.key(token);
                            continue;
                        }
                    }
                    Token::ArrayBegin => {
                        self.open((*levels).len() + 1, 2);
                        token = self.next();
                        if !matches!(token, Token::ArrayEnd) {
                            (*levels).push(Level { kind: Kind::Array, done: 0, len: 0 });
                            continue;
                        }
                    }
                    Token::Text(text) => push_bytes(lua, text),
                    Token::Unescaped => self.unescaped.push(),
                    Token::Number(number) => lua_pushnumber(lua, number),
                    Token::Boolean(value) => lua_pushboolean(lua, c_int::from(value)),
                    Token::Null => lua_pushlightuserdata(lua, std::ptr::null_mut()),
                    _ => self.unexpected(c"value", &token),
                }
                // A value is complete. It may complete the tables that surround it.
                loop {
                    let Some(level) = (*levels).last_mut() else {
                        return match self.next() {
                            Token::End => {}
                            token => self.unexpected(c"the end", &token),
                        };
                    };
                    level.done += 1;
                    let kind = level.kind;
                    match kind {
                        Kind::Array => lua_rawseti_(lua, -2, level.done as c_int),
                        Kind::Map => lua_rawset(lua, -3),
                    }
                    token = self.next();
                    match (kind, &token) {
                        (Kind::Array, Token::ArrayEnd) | (Kind::Map, Token::ObjectEnd) => {
                            (*levels).pop();
                        }
                        (Kind::Array, Token::Comma) => {
                            token = self.next();
                            break;
                        }
                        (Kind::Map, Token::Comma) => {
                            token = self.next();
                            token = self.key(token);
                            break;
                        }
                        (Kind::Array, _) => self.unexpected(c"comma or array end", &token),
                        (Kind::Map, _) => self.unexpected(c"comma or object end", &token),
                    }
                }
            }
        }
    }

    /// Pushes the table for an array or object, and makes room for `values` values. Raises an error if `depth` is too large.
    unsafe fn open(&self, depth: usize, values: c_int) {
        // SAFETY: `decode` is the function that Lua called, and nothing there has a destructor when the error is raised.
        // `lua_checkstack` makes room before the table is pushed.
        unsafe {
            if depth > self.depth_max || lua_checkstack(self.lua, values) == 0 {
                let format = c"Found too many nested data structures (%d) at character %d";
                raise_numbers(self.lua, format, depth as c_int, self.at as c_int);
            }
            lua_createtable(self.lua, 0, 0);
        }
    }

    /// Pushes a key. Returns the first token of its value.
    unsafe fn key(&mut self, token: Token) -> Token {
        // SAFETY: `open` has made room for the key above its table. Nothing in `decode` has a destructor when an error is raised.
        unsafe {
            match token {
                Token::Text(text) => push_bytes(self.lua, text),
                Token::Unescaped => self.unescaped.push(),
                _ => self.unexpected(c"object key string", &token),
            }
            match self.next() {
                Token::Colon => self.next(),
                token => self.unexpected(c"colon", &token),
            }
        }
    }

    /// Raises the error for an unexpected token.
    unsafe fn unexpected(&self, expected: &'static CStr, token: &Token) -> ! {
        let (lua, found) = (self.lua, token.name());
        // SAFETY: the emptied stack has room for the message, whose texts are constants. Nothing in `decode` has a destructor.
        unsafe {
            lua_settop(lua, 0);
            luaL_where(lua, 1);
            let format = c"Expected %s but found %s at character %d";
            lua_pushfstring(lua, format.as_ptr(), expected.as_ptr(), found.as_ptr(), (self.token_at + 1) as c_int);
            lua_concat(lua, 2);
            lua_error(lua)
        }
    }

    /// The byte at an offset. NUL, which ends every text, after the last one.
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    /// Consumes fuel for the bytes read since the last call.
    unsafe fn consume_fuel(&mut self) {
        let read = self.at - std::mem::replace(&mut self.counted, self.at);
        // SAFETY: as for all of the parser: a script runs, and nothing with a destructor is alive when an error is raised.
        unsafe { fuel::consume(self.lua, Interpreter::of(self.lua), (read / READ_PER_STEP) as u64) }
    }

    /// An invalid token at the current offset.
    fn bad(&mut self, why: &'static CStr) -> Token {
        self.token_at = self.at;
        Token::Bad(why)
    }

    /// The next token.
    unsafe fn next(&mut self) -> Token {
        // SAFETY: as for `consume_fuel` and `string`.
        unsafe {
            loop {
                if self.at - self.counted >= CHECK_EVERY {
                    self.consume_fuel();
                }
                if !matches!(self.byte(self.at), b' ' | b'\t' | b'\n' | b'\r') {
                    break;
                }
                self.at += 1;
            }
            self.token_at = self.at;
            let (token, len) = match self.byte(self.at) {
                b'{' => (Token::ObjectBegin, 1),
                b'}' => (Token::ObjectEnd, 1),
                b'[' => (Token::ArrayBegin, 1),
                b']' => (Token::ArrayEnd, 1),
                b':' => (Token::Colon, 1),
                b',' => (Token::Comma, 1),
                0 => (Token::End, 0),
                b'"' => return self.string(),
                b'-' | b'0'..=b'9' if !self.any_number && self.is_non_json_number() => return self.bad(c"invalid number"),
                b'-' | b'0'..=b'9' => return self.number(),
                first => {
                    let rest = self.text.get(self.at..).unwrap_or_default();
                    if rest.starts_with(b"true") {
                        (Token::Boolean(true), 4)
                    } else if rest.starts_with(b"false") {
                        (Token::Boolean(false), 5)
                    } else if rest.starts_with(b"null") {
                        (Token::Null, 4)
                    } else if self.any_number && matches!(first, b'+' | b'i' | b'I' | b'n' | b'N') && self.is_non_json_number() {
                        return self.number();
                    } else {
                        return self.bad(c"invalid token");
                    }
                }
            };
            self.at += len;
            token
        }
    }

    /// Whether the next token looks like a number that C reads and JSON does not have.
    fn is_non_json_number(&self) -> bool {
        let at = match self.byte(self.at) {
            b'+' => return true,
            b'-' => self.at + 1,
            _ => self.at,
        };
        match self.byte(at) {
            b'0' => matches!(self.byte(at + 1), b'x' | b'X' | b'0'..=b'9'),
            b'i' | b'I' | b'n' | b'N' => {
                let word = [self.byte(at), self.byte(at + 1), self.byte(at + 2)].map(|byte| byte.to_ascii_lowercase());
                word == *b"inf" || word == *b"nan"
            }
            _ => false,
        }
    }

    /// Reads a number.
    fn number(&mut self) -> Token {
        let negative = self.byte(self.at) == b'-';
        let digits = self.text.get(self.at + usize::from(negative)..).unwrap_or_default();
        let len = digits.iter().take(EXACT_DIGITS + 1).take_while(|byte| byte.is_ascii_digit()).count();
        let follows = digits.get(len).copied().unwrap_or(0);
        if (1..=EXACT_DIGITS).contains(&len) && !matches!(follows, b'.' | b'e' | b'E' | b'x' | b'X') {
            let value = digits[..len].iter().fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0')) as f64;
            self.at += usize::from(negative) + len;
            return Token::Number(if negative { -value } else { value });
        }
        let rest = self.text.get(self.at..).unwrap_or_default();
        let (value, len) = match number::read(rest) {
            Number::Value(value, len) => (value, len),
            // SAFETY: there is room for the value to come, and so for its text. Nothing in `decode` has a destructor if Lua runs
            // out of memory.
            Number::Hexadecimal(len) => unsafe {
                push_bytes(self.lua, &rest[..len]);
                let value = lua_tonumber(self.lua, -1);
                lua_pop(self.lua, 1);
                (value, len)
            },
            Number::None => return self.bad(c"invalid number"),
        };
        self.at += len;
        Token::Number(value)
    }

    /// Reads a string.
    unsafe fn string(&mut self) -> Token {
        // SAFETY: as for the functions above; decoded text is written to the buffer, and nothing with a destructor is alive.
        unsafe {
            self.at += 1;
            let begin = self.at;
            let mut escaped = false;
            loop {
                let rest = self.text.get(self.at..).unwrap_or_default();
                let plain = memchr::memchr3(b'"', b'\\', 0, rest).unwrap_or(rest.len());
                let end = self.at + plain;
                match self.byte(end) {
                    b'"' if !escaped => {
                        self.at = end + 1;
                        return Token::Text(&self.text[begin..end]);
                    }
                    b'"' => {
                        self.unescaped.put(&rest[..plain]);
                        self.at = end + 1;
                        return Token::Unescaped;
                    }
                    b'\\' => {
                        if !escaped {
                            self.unescaped.clear();
                            escaped = true;
                        }
                        self.unescaped.put(&rest[..plain]);
                        self.at = end;
                        if let Err(why) = self.escape() {
                            return self.bad(why);
                        }
                    }
                    _ => {
                        self.at = end;
                        return self.bad(c"unexpected end of string");
                    }
                }
            }
        }
    }

    /// Reads an escape, at its backslash.
    unsafe fn escape(&mut self) -> Result<(), &'static CStr> {
        // SAFETY: as for the functions above; decoded text is written to the buffer, and nothing with a destructor is alive.
        unsafe {
            let byte = match self.byte(self.at + 1) {
                byte @ (b'"' | b'\\' | b'/') => byte,
                b'b' => 0x08,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => return self.unicode_escape().ok_or(c"invalid unicode escape code"),
                _ => return Err(c"invalid escape code"),
            };
            self.unescaped.byte(byte);
            self.at += 2;
            Ok(())
        }
    }

    /// Reads `\uXXXX`, or two of them that are a surrogate pair.
    unsafe fn unicode_escape(&mut self) -> Option<()> {
        // SAFETY: as for the functions above; decoded text is written to the buffer, and nothing with a destructor is alive.
        unsafe {
            let (mut code, mut len) = (self.four_digits(self.at + 2)?, 6);
            if (0xd800..0xe000).contains(&code) {
                if code >= 0xdc00 || self.byte(self.at + 6) != b'\\' || self.byte(self.at + 7) != b'u' {
                    return None;
                }
                let low = self.four_digits(self.at + 8).filter(|low| (0xdc00..0xe000).contains(low))?;
                code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
                len = 12;
            }
            let character = char::from_u32(code)?;
            self.unescaped.put(character.encode_utf8(&mut [0; 4]).as_bytes());
            self.at += len;
            Some(())
        }
    }

    /// The number in the four hexadecimal digits at an offset.
    fn four_digits(&self, at: usize) -> Option<u32> {
        (at..at + 4).try_fold(0, |code, at| Some(code << 4 | char::from(self.byte(at)).to_digit(16)?))
    }
}
