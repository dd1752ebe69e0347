//! Parses README.md and the pages of `guide/`: fenced blocks, the comments before them, and links.

use std::path::{Path, PathBuf};

/// The kinds of fenced blocks that a page may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A transcript: commands with their output. The test runs it.
    Console,
    /// Commands without output, which take long or change the machine. The test checks their words.
    Sh,
    /// Rust, compiled as a doctest. An excerpt with `ignore` has a reason.
    Rust,
    /// A dependency in a `Cargo.toml`.
    Toml,
    /// Code of another language that is also in a file of `tests/embed` or `tests/languages`.
    Embedded,
    /// A drawing, or output without a command.
    Text,
}

impl Kind {
    /// The kind for the words behind a fence.
    fn of(info: &str) -> Option<Kind> {
        Some(match info.split(',').next()? {
            "console" => Kind::Console,
            "sh" => Kind::Sh,
            "rust" => Kind::Rust,
            "toml" => Kind::Toml,
            "python" | "js" | "go" | "java" | "php" | "ruby" => Kind::Embedded,
            "text" => Kind::Text,
            _ => return None,
        })
    }
}

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    pub kind: Kind,
    /// The number of the first line after the fence.
    pub line: usize,
    pub lines: Vec<String>,
    /// The reason of the comment `<!-- not run: … -->` before the fence.
    pub not_run: Option<String>,
    /// Whether it has the comment `<!-- figures vary -->`.
    pub figures_vary: bool,
    /// Whether rustdoc does not compile it.
    pub ignored: bool,
}

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// The path in the repository.
    pub name: String,
    pub text: String,
    pub blocks: Vec<Block>,
    /// Whether the page has the comment `<!-- time: real -->`: the clock of its server runs.
    pub real_time: bool,
}

/// README.md, all pages of the guide and the other pages of the project. Errors of their form are appended to `faults`.
pub fn all(faults: &mut Vec<String>) -> Vec<Page> {
    let mut names = vec!["README.md".to_owned()];
    let mut guide: Vec<PathBuf> = std::fs::read_dir(root().join("guide")).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Folders have files that pages link to.
    guide.retain(|path| path.is_file());
    guide.sort();
    names.extend(guide.iter().map(|path| format!("guide/{}", path.file_name().unwrap().to_str().unwrap())));
    names.extend(["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(str::to_owned));
    let read = |name: &String| Page::parse(name, &std::fs::read_to_string(root().join(name)).unwrap(), faults);
    names.iter().map(read).collect()
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Page {
    /// Finds the blocks of a page, and reports everything that could hide a transcript from the test.
    pub fn parse(name: &str, text: &str, faults: &mut Vec<String>) -> Page {
        let mut page = Page { name: name.to_owned(), text: text.to_owned(), blocks: Vec::new(), real_time: false };
        let mut open: Option<Block> = None;
        let mut skipping = false;
        let (mut not_run, mut figures_vary) = (None, false);
        for (at, line) in text.lines().enumerate() {
            let mut fault = |what: &str| faults.push(format!("{name}:{}: {what}", at + 1));
            let fence = line.trim_start().strip_prefix("```");
            if let Some(block) = &mut open {
                match fence {
                    Some(_) => page.blocks.extend(open.take()),
                    None => block.lines.push(line.to_owned()),
                }
                continue;
            }
            if skipping {
                skipping = fence.is_none();
                continue;
            }
            if let Some(info) = fence {
                if line.starts_with(' ') {
                    fault("a fenced block begins at the start of its line");
                }
                let (not_run, figures_vary) = (not_run.take(), std::mem::take(&mut figures_vary));
                let ignored = info.contains("ignore");
                match Kind::of(info.trim()) {
                    Some(kind) => open = Some(Block { kind, line: at + 2, lines: Vec::new(), not_run, figures_vary, ignored }),
                    None => {
                        fault(&format!("the test does not know blocks of the kind '{}'", info.trim()));
                        skipping = true;
                    }
                }
                continue;
            }
            if line.trim_start().starts_with("~~~") {
                fault("a fence is made of three backticks");
            }
            let word = line.trim_start().trim_start_matches('>').trim_start();
            if line.starts_with("    ") && (word.starts_with("$ ") || is_request(word)) {
                fault("a transcript stands in a fenced block");
            }
            if let Some(comment) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
                match comment.split_once(": ") {
                    Some(("not run", reason)) => not_run = Some(reason.to_owned()),
                    Some(("time", "real")) => page.real_time = true,
                    None if comment == "figures vary" => figures_vary = true,
                    None if ["commands", "directives", "torture", "durable", "compare", "long turns"]
                        .contains(&comment.trim_start_matches('/')) => {}
                    _ => fault(&format!("the test does not know the comment '{comment}'")),
                }
            } else if (not_run.is_some() || figures_vary) && !line.trim().is_empty() {
                fault("a comment about a block stands on the line before its fence");
                (not_run, figures_vary) = (None, false);
            }
        }
        if open.is_some() || skipping {
            faults.push(format!("{name}: a fenced block does not end"));
        }
        page
    }

    /// The lines outside of blocks, with their numbers.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fenced = false;
        self.text.lines().enumerate().filter_map(move |(at, line)| {
            let fence = line.starts_with("```");
            fenced ^= fence;
            (!fenced && !fence).then_some((at + 1, line))
        })
    }

    /// The targets of links, with their lines.
    pub fn links(&self) -> Vec<(usize, String)> {
        let targets = |line| str::split(line, "](").skip(1).filter_map(|part| Some(part.split(')').next()?.to_owned()));
        self.prose().flat_map(|(at, line)| targets(line).map(move |target| (at, target))).collect()
    }

    /// Commands in running text, with their lines. Those with an ellipsis are left out.
    pub fn commands_in_text(&self) -> Vec<(usize, String)> {
        let programs = ["cargo ", "portcullis ", "python3 ", "fuzz/long "];
        let is_command = |code: &str| programs.iter().any(|program| code.starts_with(program)) && !code.contains('…');
        self.code_in_text().filter(|(_, code)| is_command(code)).collect()
    }

    /// What stands between backticks in running text, with its line.
    pub fn code_in_text(&self) -> impl Iterator<Item = (usize, String)> {
        let code = |line| str::split(line, '`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        self.prose().flat_map(move |(at, line)| code(line).into_iter().map(move |code| (at, code)))
    }

    /// The anchors of its headings, as GitHub makes them.
    pub fn anchors(&self) -> Vec<String> {
        let heading = |line: &str| {
            let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?.to_lowercase();
            Some(title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c)).collect::<String>().replace(' ', "-"))
        };
        self.text.lines().filter_map(heading).collect()
    }
}

/// Whether a line begins with redis-cli's prompt.
pub fn is_request(line: &str) -> bool {
    line.strip_prefix("127.0.0.1:").and_then(|rest| rest.split_once("> ")).is_some_and(|(port, _)| port.parse::<u16>().is_ok())
}
