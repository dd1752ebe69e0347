//! The tokens of a script, as far as plans support them.

/// A token of Lua.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name or a keyword.
    Name(&'a [u8]),
    Number(f64),
    /// A string without escapes.
    Text(&'a [u8]),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// A longer symbol comes before its prefixes.
const SYMBOLS: [&str; 15] = ["==", "~=", "<=", ">=", "..", "<", ">", "=", "(", ")", "[", "]", ",", ";", "."];

/// The rest of a script.
#[derive(Clone)]
pub(super) struct Tokens<'a> {
    rest: &'a [u8],
    line: u32,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(source: &'a [u8]) -> Self {
        Tokens { rest: source, line: 1 }
    }

    /// The line of the last token.
    pub(super) fn line(&self) -> u32 {
        self.line
    }

    /// The next token. `None` if plans do not support it.
    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blank()?;
        let Some(&first) = self.rest.first() else { return Some(Token::End) };
        match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => Some(Token::Name(self.take_while(is_name_byte))),
            b'0'..=b'9' => self.number(),
            b'"' | b'\'' => self.text(first),
            b'-' => {
                // A sign is supported only before a number. After a value it is a subtraction, which the parser rejects.
                self.rest = &self.rest[1..];
                self.skip_blank()?;
                match self.rest.first()? {
                    b'0'..=b'9' => match self.number()? {
                        Token::Number(number) => Some(Token::Number(-number)),
                        _ => None,
                    },
                    _ => None,
                }
            }
            _ => {
                let symbol = SYMBOLS.into_iter().find(|symbol| self.rest.starts_with(symbol.as_bytes()))?;
                self.rest = &self.rest[symbol.len()..];
                Some(Token::Symbol(symbol))
            }
        }
    }

    fn take_while(&mut self, belongs: impl Fn(&u8) -> bool) -> &'a [u8] {
        let len = self.rest.iter().position(|byte| !belongs(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// Skips blanks, line ends and comments. `None` before a comment that may be a long one.
    fn skip_blank(&mut self) -> Option<()> {
        loop {
            match self.rest {
                [b' ' | b'\t' | 11 | 12, rest @ ..] => self.rest = rest,
                // `\r\n` and `\n\r` are one line end.
                [b'\r', b'\n', rest @ ..] | [b'\n', b'\r', rest @ ..] | [b'\r' | b'\n', rest @ ..] => {
                    self.rest = rest;
                    self.line += 1;
                }
                [b'-', b'-', b'[', ..] => return None,
                [b'-', b'-', ..] => drop(self.take_while(|byte| !matches!(byte, b'\r' | b'\n'))),
                _ => return Some(()),
            }
        }
    }

    /// Digits with an optional fraction.
    fn number(&mut self) -> Option<Token<'a>> {
        let text = self.take_while(|&byte| is_name_byte(&byte) || byte == b'.');
        let plain = text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        let whole_before_fraction = text.last() != Some(&b'.');
        if !plain || !whole_before_fraction {
            return None;
        }
        std::str::from_utf8(text).ok()?.parse().ok().map(Token::Number)
    }

    fn text(&mut self, quote: u8) -> Option<Token<'a>> {
        let inner = &self.rest[1..];
        let end = inner.iter().position(|&byte| byte == quote || matches!(byte, b'\\' | b'\r' | b'\n'))?;
        if inner[end] != quote {
            return None;
        }
        self.rest = &inner[end + 1..];
        Some(Token::Text(&inner[..end]))
    }
}

/// Whether a name in Lua may contain the byte.
pub(crate) fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(source: &str) -> Option<Vec<(Token<'_>, u32)>> {
        let mut tokens = Tokens::new(source.as_bytes());
        let mut all = Vec::new();
        loop {
            match tokens.next()? {
                Token::End => return Some(all),
                token => all.push((token, tokens.line())),
            }
        }
    }

    #[test]
    fn tokens_and_their_lines() {
        let symbol = |symbol, line| (Token::Symbol(symbol), line);
        assert_eq!(
            all("if a1 ~= 'x\"y' -- why\r\n then\n\rreturn -1.5 .. \"\"").unwrap(),
            [
                (Token::Name(b"if"), 1),
                (Token::Name(b"a1"), 1),
                symbol("~=", 1),
                (Token::Text(b"x\"y"), 1),
                (Token::Name(b"then"), 2),
                (Token::Name(b"return"), 3),
                (Token::Number(-1.5), 3),
                symbol("..", 3),
                (Token::Text(b""), 3),
            ]
        );
    }

    #[test]
    fn other_tokens_are_not_supported() {
        for source in
            ["1e3", "0x10", "3.", "1.2.3", "'a\\n'", "'a\nb'", "'a", "[[a]] #", "--[[ a ]]", "- a", "a + b", "{}", "\0", "1..2"]
        {
            assert_eq!(all(source), None, "{source:?}");
        }
    }
}
