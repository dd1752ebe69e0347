//! The recordings: files of cases with Redis's replies, which the unit tests of `script` replay too.

use std::path::PathBuf;

/// The protocol of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Resp2,
    Resp3,
}

/// A request and its replies.
pub struct Case {
    /// The case as in the file: a script, or the arguments of a request.
    pub text: String,
    /// Whether this case and those behind it begin with an empty server.
    pub begins: bool,
    /// The arguments to send.
    pub request: Vec<Vec<u8>>,
    /// The replies over RESP2, and over RESP3 if that is different, as in the file.
    replies: [Option<Vec<u8>>; 2],
}

impl Case {
    /// The recorded reply.
    pub fn recorded(&self, protocol: Protocol) -> &[u8] {
        let [first, second] = &self.replies;
        let reply = if protocol == Protocol::Resp3 { second.as_ref().or(first.as_ref()) } else { first.as_ref() };
        reply.map_or(b"", Vec::as_slice)
    }

    /// Records a reply. The reply over RESP2 must come first.
    pub fn record(&mut self, protocol: Protocol, reply: &[u8]) {
        match protocol {
            Protocol::Resp2 => self.replies[0] = Some(reply.to_vec()),
            Protocol::Resp3 => self.replies[1] = Some(reply.to_vec()).filter(|reply| Some(reply) != self.replies[0].as_ref()),
        }
    }
}

enum Line {
    /// A comment or a title.
    Text(String),
    Case(Case),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Each line is a script with its replies, separated by tabs.
    Scripts,
    /// A request follows `>`, its replies follow `2` and `3` on their own lines, and `##` begins with an empty server.
    Requests,
}

/// A file of cases.
pub struct Recording {
    /// The path in the repository.
    pub name: &'static str,
    format: Format,
    lines: Vec<Line>,
}

/// All recordings.
pub fn all() -> Vec<Recording> {
    [
        ("src/script/cases.txt", Format::Scripts),
        ("src/script/cases-api.txt", Format::Scripts),
        ("src/script/cases-sandbox.txt", Format::Scripts),
        ("src/script/cases-language.txt", Format::Scripts),
        ("src/script/cases-libraries.txt", Format::Scripts),
        ("src/script/cases-requests.txt", Format::Requests),
        ("src/script/functions/cases.txt", Format::Requests),
    ]
    .map(|(name, format)| Recording::read(name, format))
    .into()
}

impl Recording {
    fn read(name: &'static str, format: Format) -> Recording {
        let text = std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut lines = Vec::new();
        let mut begins = true;
        for line in text.lines() {
            match format {
                Format::Scripts if line.starts_with("# ") => lines.push(Line::Text(line.to_owned())),
                Format::Scripts => {
                    let mut fields = line.split('\t');
                    let script = fields.next().unwrap_or_default();
                    let mut request = vec![b"EVAL".to_vec(), unescape(script)];
                    request.extend([&b"2"[..], b"k1", b"k2", b"a1", b"a2", b"a3"].map(<[u8]>::to_vec));
                    let replies = [fields.next().map(unescape), fields.next().map(unescape)];
                    let begins = std::mem::take(&mut begins);
                    lines.push(Line::Case(Case { text: script.to_owned(), begins, request, replies }));
                }
                Format::Requests => {
                    let (mark, text) = line.split_at(line.find(' ').map_or(line.len(), |blank| blank + 1));
                    match mark {
                        "> " => {
                            let request = text.split('\t').map(unescape).collect();
                            let begins = std::mem::take(&mut begins);
                            lines.push(Line::Case(Case { text: text.to_owned(), begins, request, replies: [None, None] }));
                        }
                        "2 " | "3 " => {
                            let Some(Line::Case(case)) = lines.last_mut() else { panic!("{name}: a reply to nothing: {line}") };
                            case.replies[usize::from(mark == "3 ")] = Some(unescape(text));
                        }
                        _ => {
                            begins |= mark == "## ";
                            lines.push(Line::Text(line.to_owned()));
                        }
                    }
                }
            }
        }
        Recording { name, format, lines }
    }

    /// The cases, in order.
    pub fn cases_mut(&mut self) -> impl Iterator<Item = &mut Case> {
        self.lines.iter_mut().filter_map(|line| match line {
            Line::Case(case) => Some(case),
            Line::Text(_) => None,
        })
    }

    /// Whether its cases are scripts.
    pub fn is_of_scripts(&self) -> bool {
        self.format == Format::Scripts
    }

    /// Writes the file with the new replies.
    pub fn write(&self) {
        let mut out = String::new();
        for line in &self.lines {
            match line {
                Line::Text(text) => out.push_str(text),
                Line::Case(case) => {
                    let before: [&str; 3] = if self.is_of_scripts() { ["", "\t", "\t"] } else { ["> ", "\n2 ", "\n3 "] };
                    out.push_str(before[0]);
                    out.push_str(&case.text);
                    for (before, reply) in before[1..].iter().zip(&case.replies) {
                        if let Some(reply) = reply {
                            out.push_str(before);
                            escape(reply, &mut out);
                        }
                    }
                }
            }
            out.push('\n');
        }
        std::fs::write(path(self.name), out).expect("the recording is written");
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn escape(bytes: &[u8], out: &mut String) {
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => out.push(byte.into()),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b't') => out.push(b'\t'),
            Some(b'0') => out.push(0),
            Some(b'x') => {
                let digits = [rest.next(), rest.next()].map(|digit| char::from(digit.unwrap_or(b'?')).to_digit(16));
                let [Some(high), Some(low)] = digits else { panic!("no two digits behind \\x in {text}") };
                out.push((high * 16 + low) as u8);
            }
            Some(other) => out.push(other),
            None => panic!("a single backslash ends {text}"),
        }
    }
    out
}
