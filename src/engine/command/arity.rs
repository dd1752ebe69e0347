//! The number of arguments that a row's syntax takes, counted at compile time.
//!
//! ```text
//!   key value [NX | XX] [EX seconds | PX milliseconds]      at least 2, and more
//! ```

/// The number of arguments that a syntax takes, as an arity: negative if it is the minimum. `words` are those of the command's name.
pub const fn of_syntax(syntax: &str, words: i32) -> i32 {
    let Length { least, more, .. } = length(syntax.as_bytes(), 0);
    if more { -(words + least) } else { words + least }
}

/// The number of arguments that a part of a syntax takes.
struct Length {
    least: i32,
    /// Whether it may take more.
    more: bool,
    /// Where the part ends.
    end: usize,
}

/// The length of the sequence that begins at a position and ends with the text, with a bar or with a closing bracket. The text must
/// be in the notation of `commands::reference::syntax`; a test reads every row with that parser.
const fn length(text: &[u8], at: usize) -> Length {
    let mut found = Length { least: 0, more: false, end: at };
    while found.end < text.len() {
        match text[found.end] {
            b'|' | b'>' => break,
            b' ' => found.end += 1,
            // An option or a repetition.
            b'[' => {
                found.more = true;
                found.end = after_brackets(text, found.end);
            }
            b'<' => {
                let choice = choice(text, found.end + 1);
                found.least += choice.least;
                found.more |= choice.more;
                found.end = choice.end;
            }
            _ => {
                found.least += 1;
                while found.end < text.len() && !matches!(text[found.end], b' ' | b'[' | b']' | b'<' | b'>' | b'|') {
                    found.end += 1;
                }
            }
        }
    }
    found
}

/// The length of the alternatives that begin at a position and end with `>`. At least one argument is taken, even if all arguments
/// of an alternative are optional.
const fn choice(text: &[u8], at: usize) -> Length {
    let mut found = Length { least: i32::MAX, more: false, end: at };
    while text[found.end - 1] != b'>' {
        let alternative = length(text, found.end);
        let least = if alternative.least > 1 { alternative.least } else { 1 };
        found.more |= alternative.more || found.least != i32::MAX && least != found.least;
        found.least = if least < found.least { least } else { found.least };
        found.end = alternative.end + 1;
    }
    found
}

/// The position after the brackets that open at a position.
const fn after_brackets(text: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    loop {
        match text[at] {
            b'[' => depth += 1,
            b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arity_follows_from_the_syntax() {
        for (syntax, arity) in [
            ("", 1),
            ("key value", 3),
            ("key [key ...]", -2),
            ("key value [NX | XX] [EX seconds | PX milliseconds]", -3),
            ("key seconds FIELDS numfields field [field ...]", -6),
            ("<ip:port | ID client-id>", -2),
            ("key <ASC | DESC> [[a] b]", -3),
            ("<NO ONE | host port>", 3),
            ("<a | <b c | d e> f>", -2),
        ] {
            assert_eq!(of_syntax(syntax, 1), arity, "{syntax}");
        }
        assert_eq!(of_syntax("pattern", 2), 3);
    }
}
