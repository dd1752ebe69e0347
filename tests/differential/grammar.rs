//! A grammar of command lines: one line of text stands for all calls of a command.
//!
//! `WORD` is sent literally. `<slot>` is filled in (see [`crate::slots`]). `( a | b )` takes one alternative, `[ a | b ]` one or
//! none. `[ a | b ]*` takes up to four in any order, so options repeat and conflict. `{ a }` takes one to four in a row.

/// A part of a line.
#[derive(Debug)]
pub enum Node {
    /// Sent literally.
    Word(&'static str),
    /// A slot that is filled in.
    Slot(&'static str),
    /// Between `least` and `most` picks from the alternatives.
    Pick {
        /// The alternatives.
        alternatives: Vec<Vec<Node>>,
        /// Minimum number of picks.
        least: i64,
        /// Maximum number of picks.
        most: i64,
    },
}

/// One command of the catalogue.
#[derive(Debug)]
pub struct Line {
    /// How often it occurs, relative to the other lines of its family.
    pub weight: u32,
    /// Whether it is only sent as written, without misspelt options, which could end or block the server.
    pub exact: bool,
    /// The words of the line.
    pub nodes: Vec<Node>,
}

impl Line {
    /// Parses `weight[!] WORD …`. `!` makes it exact.
    pub fn parse(text: &'static str) -> Line {
        let (weight, rest) = text.split_once(' ').unwrap_or((text, ""));
        let exact = weight.ends_with('!');
        let weight = weight.trim_end_matches('!').parse().unwrap_or_else(|_| panic!("no weight: {text}"));
        let tokens = tokens(rest);
        let mut at = 0;
        let nodes = sequence(&tokens, &mut at);
        assert_eq!(at, tokens.len(), "unbalanced: {text}");
        Line { weight, exact, nodes }
    }

    /// The command's name.
    pub fn name(&self) -> &'static str {
        match self.nodes.first() {
            Some(Node::Word(name)) => name,
            _ => panic!("a line begins with its command's name"),
        }
    }
}

fn tokens(text: &'static str) -> Vec<&'static str> {
    let mut found = Vec::new();
    for word in text.split_whitespace() {
        let mut rest = word;
        while !rest.is_empty() {
            let brackets: &[char] = &['[', ']', '(', ')', '{', '}', '|'];
            let end = if rest.starts_with("]*") { 2 } else { rest.find(brackets).map_or(rest.len(), |at| at.max(1)) };
            found.push(&rest[..end]);
            rest = &rest[end..];
        }
    }
    found
}

fn sequence(tokens: &[&'static str], at: &mut usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    while let Some(&token) = tokens.get(*at) {
        match token {
            "]" | "]*" | ")" | "}" | "|" => break,
            "[" | "(" | "{" => {
                *at += 1;
                let mut alternatives = vec![sequence(tokens, at)];
                while tokens.get(*at) == Some(&"|") {
                    *at += 1;
                    alternatives.push(sequence(tokens, at));
                }
                let (least, most) = match (token, tokens.get(*at).copied()) {
                    ("[", Some("]")) => (0, 1),
                    ("[", Some("]*")) => (0, 4),
                    ("(", Some(")")) => (1, 1),
                    ("{", Some("}")) => (1, 4),
                    (open, close) => panic!("{open} closed by {close:?}"),
                };
                *at += 1;
                nodes.push(Node::Pick { alternatives, least, most });
            }
            _ => {
                *at += 1;
                nodes.push(match token.strip_prefix('<').and_then(|t| t.strip_suffix('>')) {
                    Some(slot) => Node::Slot(slot),
                    None => Node::Word(token),
                });
            }
        }
    }
    nodes
}
