//! The command table is complete and consistent, and the guide shows it.

#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::wire::Frame;
use portcullis::commands;
use portcullis::commands::reference::forms::{self, Slot};
use portcullis::commands::reference::missing;
use portcullis::commands::reference::syntax;
use portcullis::commands::reference::syntax::{Arg, Kind, Type};
use portcullis::engine::command::keys::{Begin, KeyUse};
use portcullis::engine::command::{Access, Command, Flags, Group, Keys};
use portcullis::engine::config;

/// Every row with its full name and the number of words in the name.
fn rows() -> Vec<(String, usize, &'static Command)> {
    let mut rows = Vec::new();
    for command in commands::all() {
        rows.push((command.name.to_owned(), 1, command));
        rows.extend(command.subcommands.iter().map(|sub| (format!("{}|{}", command.name, sub.name), 2, sub)));
    }
    rows
}

/// The minimum and maximum number of arguments of a syntax tree. `None` means no limit.
fn lengths(args: &[Arg<'_>]) -> (usize, Option<usize>) {
    let mut total = (0, Some(0));
    for arg in args {
        let inner = match &arg.kind {
            Kind::Value(_) => (1, Some(1)),
            Kind::PureToken => (0, Some(0)),
            Kind::Block(parts) => lengths(parts),
            Kind::OneOf(choices) => {
                let each: Vec<_> = choices.iter().map(|choice| lengths(std::slice::from_ref(choice))).collect();
                let most = each.iter().map(|(_, most)| *most).reduce(|a, b| Some(a?.max(b?))).flatten();
                // A choice takes at least one argument, even if its alternatives are optional.
                (each.iter().map(|(least, _)| (*least).max(1)).min().unwrap_or(0), most)
            }
        };
        let token = arg.token.is_some() as usize;
        let least = if arg.optional { 0 } else { inner.0 + token };
        let most = if arg.multiple { None } else { inner.1.map(|most| most + token) };
        total = (total.0 + least, total.1.zip(most).map(|(a, b)| a + b));
    }
    total
}

fn count_keys(args: &[Arg<'_>]) -> usize {
    args.iter().map(|arg| (arg.kind == Kind::Value(Type::Key)) as usize + count_keys(arg.children())).sum()
}

#[test]
fn names_are_unique_and_lower_case() {
    let mut seen = BTreeSet::new();
    for (name, _, _) in rows() {
        assert!(seen.insert(name.clone()), "{name} is there twice");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-|.".contains(&b)), "{name}");
    }
}

/// Fails with all problems, not only the first.
fn report(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_row_is_filled_in() {
    let mut wrong = Vec::new();
    for (name, _, command) in rows() {
        let summary = command.summary;
        if summary.len() <= 8
            || !summary.ends_with('.')
            || !summary.starts_with(|c: char| c.is_ascii_uppercase())
            || summary.contains(['\n', '`', '|'])
        {
            wrong.push(format!("summary of {name}: {summary:?}"));
        }
        if !command.complexity.contains("O(") && !command.complexity.starts_with("Depends") {
            wrong.push(format!("complexity of {name}: {:?}", command.complexity));
        }
        let since = command.since.strip_prefix("Portcullis ").unwrap_or(command.since);
        let parts: Vec<&str> = since.split('.').collect();
        if parts.len() != 3 || !parts.iter().all(|part| part.parse::<u16>().is_ok()) {
            wrong.push(format!("since of {name}: {:?}", command.since));
        }
        if command.tips.iter().any(|tip| tip.is_empty() || tip.contains(|c: char| c.is_ascii_uppercase() || c == ' ')) {
            wrong.push(format!("tips of {name}: {:?}", command.tips));
        }
    }
    report(wrong);
}

#[test]
fn the_syntax_of_every_row_reads_back() {
    let mut wrong = Vec::new();
    for (name, _, command) in rows() {
        match syntax::parse(command.syntax) {
            Ok(args) => assert_eq!(syntax::render(&args), command.syntax, "{name}"),
            Err(error) => wrong.push(format!("{name}: {error}: {}", command.syntax)),
        }
    }
    report(wrong);
}

#[test]
fn arity_agrees_with_the_syntax() {
    let mut wrong = Vec::new();
    for (name, words, command) in rows() {
        if !command.subcommands.is_empty() {
            if !command.syntax.is_empty() || command.arity != -1 && command.arity != -2 {
                wrong.push(format!("a container takes what its subcommands take: {name}"));
            }
            continue;
        }
        let (least, most) = lengths(&syntax::parse(command.syntax).unwrap_or_default());
        let (least, most) = (least + words, most.map(|most| most + words));
        let (arity, syntax) = (command.arity, command.syntax);
        // These commands accept and ignore any arguments.
        let most = if ["quit", "psync"].contains(&&*name) { None } else { most };
        if arity.unsigned_abs() as usize != least || (arity > 0) != (most == Some(least)) {
            wrong.push(format!("{name} has arity {arity}, but takes {least} to {most:?} arguments: {syntax}"));
        }
    }
    report(wrong);
}

#[test]
fn flags_agree_with_each_other() {
    const DATA: [Group; 10] = [
        Group::String,
        Group::Hash,
        Group::List,
        Group::Set,
        Group::SortedSet,
        Group::Stream,
        Group::Bitmap,
        Group::Hyperloglog,
        Group::Geo,
        Group::Lock,
    ];
    let mut wrong = Vec::new();
    for (name, _, command) in rows() {
        let flags = command.flags;
        let container = !command.subcommands.is_empty();
        if flags.contains(Flags::WRITE | Flags::READONLY) {
            wrong.push(format!("{name} both writes and only reads"));
        }
        let works_on_data = DATA.contains(&command.group) && command.has_keys();
        if works_on_data && !flags.intersects(Flags::WRITE | Flags::READONLY) {
            wrong.push(format!("{name} neither writes nor only reads"));
        }
        if flags.contains(Flags::DENYOOM) && !flags.contains(Flags::WRITE) && command.group != Group::Scripting {
            wrong.push(format!("{name} takes memory, but does not write"));
        }
        if container && command.has_keys() {
            wrong.push(format!("the keys of {name} are those of its subcommands"));
        }
    }
    report(wrong);
}

#[test]
fn keys_are_within_bounds_and_are_what_the_syntax_names() {
    let mut wrong = Vec::new();
    for (name, words, command) in rows() {
        let least = command.arity.unsigned_abs() as usize;
        let fits = match command.keys {
            Keys::None => true,
            _ if !command.has_keys() => true,
            Keys::Range { first, last, step } => {
                let bounded = last < 0 || last >= first && (last as usize) < least;
                first as usize >= words && step >= 1 && (first as usize) < least && bounded
            }
            Keys::Counted { numkeys, step } => numkeys >= words && numkeys < least && step >= 1,
            Keys::Specified(specs) | Keys::Parsed { shown: specs, .. } => specs.iter().all(|spec| match spec.begin {
                Begin::Index(index) => index >= words && index < least,
                Begin::Keyword { word, from } => from >= words && command.syntax.contains(word),
                // The option may be missing, or no argument names the keys.
                Begin::Option | Begin::Nowhere => true,
            }),
        };
        if !fits {
            wrong.push(format!("{name}: {:?} with arity {}", command.keys, command.arity));
        }
        let named = count_keys(&syntax::parse(command.syntax).unwrap_or_default());
        let right = match command.keys {
            Keys::Range { first, last, .. } if last > 0 && command.has_keys() => named as i32 == last - first + 1,
            _ => (named > 0) == command.has_keys(),
        };
        if !right {
            wrong.push(format!("{name}: {:?} against {}", command.keys, command.syntax));
        }
        for spec in command.key_specs() {
            let writes = spec.access != Access::Read || spec.uses.intersects(KeyUse::UPDATE | KeyUse::INSERT | KeyUse::DELETE);
            // A command may store what it computed with the value, as PFCOUNT does.
            let keeps = command.flags.contains(Flags::MAY_REPLICATE);
            if writes && !keeps && command.flags.contains(Flags::READONLY) && command.group != Group::Scripting {
                wrong.push(format!("{name} changes its keys, but only reads"));
            }
        }
    }
    report(wrong);
}

/// Checks that a file has the right text. With UPDATE_README=1, writes it.
fn shows(path: &str, text: impl FnOnce(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let expected = text(&found);
    if std::env::var_os("UPDATE_README").is_some_and(|set| set == "1") {
        std::fs::write(&path, expected).unwrap();
    } else {
        assert!(found == expected, "{} shows other commands than there are: run this test with UPDATE_README=1", path.display());
    }
}

#[test]
fn the_guide_shows_the_tables() {
    shows("guide/compatibility.md", |page| {
        let tables = [("commands", commands::markdown_names()), ("directives", config::foreign::markdown())];
        tables.into_iter().fold(page.to_owned(), |page, (mark, table)| {
            let [start, end] = ["", "/"].map(|slash| format!("<!-- {slash}{mark} -->"));
            let (before, rest) = page.split_once(&start).expect("the page has the marker at the start of the table");
            let (_, after) = rest.split_once(&end).expect("the page has the marker at the end of the table");
            format!("{before}{start}\n{table}{end}{after}")
        })
    });
}

#[test]
fn the_page_shows_every_command() {
    shows("src/commands/COMMANDS.md", |_| commands::markdown_page());
}

/// Every command and every option of the installed redis-server is in the table or listed as missing.
#[test]
fn what_is_missing_is_said() {
    let Some(program) = common::servers::on_path("redis-server") else {
        assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "there is no redis-server on the PATH");
        println!("SKIPPED: there is no redis-server on the PATH");
        return;
    };
    let program = std::env::var_os("PORTCULLIS_REDIS8").map(Into::into).unwrap_or(program);
    let server = common::servers::Server::redis(&program).unwrap();
    let mut wire = common::wire::Wire::connect(server.addr).unwrap();
    let ours: BTreeMap<String, &Command> = rows().into_iter().map(|(name, _, command)| (name, command)).collect();
    let missing: BTreeSet<&str> = missing::COMMANDS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let options: BTreeSet<&str> = missing::OPTIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let mut wrong = Vec::new();
    for name in &missing {
        if ours.contains_key(*name) {
            wrong.push(format!("{name} is there, and said to be missing"));
        }
    }
    let names = wire.call(&["COMMAND", "LIST"]).unwrap().frame;
    for name in names.elements().unwrap() {
        let name = String::from_utf8(name.text().unwrap().to_vec()).unwrap();
        let Some(command) = ours.get(&name) else {
            if !missing.contains(name.as_str()) {
                wrong.push(format!("{name} is missing, and nobody says so"));
            }
            continue;
        };
        let docs = wire.call(&["COMMAND", "DOCS", &name]).unwrap().frame;
        let mut tokens = BTreeSet::new();
        collect_tokens(&docs, &mut tokens);
        let words: BTreeSet<&str> = command.syntax.split([' ', '[', ']', '|', '<', '>', '(', ')']).collect();
        for token in tokens {
            let option = format!("{name} {token}");
            if !words.contains(token.as_str()) && !options.contains(option.as_str()) {
                wrong.push(format!("the option {option} is missing: {}", command.syntax));
            }
        }
    }
    report(wrong);
}

/// As `COMMAND GETKEYSANDFLAGS` of the row replies.
fn keys_of(row: &Command, request: &[Vec<u8>]) -> String {
    const USES: [(KeyUse, &str); 5] = [
        (KeyUse::ACCESS, "access"),
        (KeyUse::UPDATE, "update"),
        (KeyUse::INSERT, "insert"),
        (KeyUse::DELETE, "delete"),
        (KeyUse::NOT_KEY, "not_key"),
    ];
    let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
    let keys = match row.checked_key_positions(&args) {
        Ok(keys) => keys,
        Err(error) => return String::from_utf8_lossy(error.text()).into_owned(),
    };
    let each = keys.iter().map(|key| {
        let access = match key.access {
            Access::Read => "RO",
            Access::ReadWrite => "RW",
            Access::Overwrite => "OW",
            Access::Remove => "RM",
        };
        let access = if key.uses.contains(KeyUse::UNKNOWN) { "" } else { access };
        let uses = USES.iter().filter(|(flag, _)| key.uses.contains(*flag)).map(|(_, name)| *name);
        let flags: Vec<&str> = [access].into_iter().filter(|access| !access.is_empty()).chain(uses).collect();
        format!("{}:{}", request[key.position].escape_ascii(), flags.join(","))
    });
    each.collect::<Vec<_>>().join(" ")
}

/// The same of a reply.
fn keys_in(reply: &Frame) -> String {
    let text = |frame: &Frame| frame.text().unwrap_or_default().escape_ascii().to_string();
    let Some(keys) = reply.elements() else { return text(reply) };
    let each = keys.iter().filter_map(|key| {
        let [key, flags] = key.elements()? else { return None };
        Some(format!("{}:{}", text(key), flags.elements()?.iter().map(text).collect::<Vec<_>>().join(",")))
    });
    each.collect::<Vec<_>>().join(" ")
}

/// Why the installed redis-server (7.0 to 7.4.10, if it is one of these) names other keys for a request; `None` if it must not.
fn names_other_keys(name: &str, request: &[Vec<u8>]) -> Option<&'static str> {
    let count = |words: &[&str]| {
        let is = |arg: &[u8]| words.iter().any(|word| arg.eq_ignore_ascii_case(word.as_bytes()));
        request.iter().skip(1).filter(|arg| is(arg)).count()
    };
    // An odd number of arguments follows STREAMS, or it is an argument of the option before it, or it comes before GROUP.
    let streams = || {
        let at = request.iter().position(|arg| arg.eq_ignore_ascii_case(b"STREAMS")).unwrap_or(0);
        let takes = |arg: &Vec<u8>| ["BLOCK", "COUNT", "GROUP"].iter().any(|word| arg.eq_ignore_ascii_case(word.as_bytes()));
        (request.len() - at).is_multiple_of(2)
            || name == "xreadgroup" && at < 4
            || request[at.saturating_sub(2)..at].iter().any(takes)
    };
    match name {
        "xread" | "xreadgroup" if count(&["STREAMS"]) > 1 || streams() => {
            Some("it takes the first STREAMS, an argument of an option too")
        }
        "georadius" | "georadiusbymember" if count(&["STORE", "STOREDIST"]) > 1 || count(&["COUNT"]) > 0 => {
            Some("it takes the first STORE and the first STOREDIST, arguments of options too")
        }
        "sort" if count(&["STORE"]) > 1 => Some("it reads the argument of STORE as an option"),
        "set" if count(&["IFEQ", "IFNE", "IFDEQ", "IFDNE"]) > 0 => {
            Some("it has no such options; a comparison tells of the value")
        }
        "set" if count(&["GET"]) > 0 && count(&["EX", "PX", "EXAT", "PXAT"]) > 0 => {
            Some("it takes GET for an option that is the argument of one")
        }
        "xclaim" | "xautoclaim" => Some("it says that it reads nothing, and shows the entries"),
        "zrank" | "zrevrank" => Some("7.0 has no WITHSCORE and refuses the number of arguments"),
        "pfmerge" if request.len() == 2 => Some("it finds no destination without sources"),
        "sinterstore" => Some("7.0 says that it reads its destination"),
        _ => None,
    }
}

/// `COMMAND GETKEYSANDFLAGS` of the installed redis-server names the keys that the rows name, for options in every order.
#[test]
fn keys_are_those_that_redis_names() {
    let Some(program) = common::servers::on_path("redis-server") else {
        assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "there is no redis-server on the PATH");
        println!("SKIPPED: there is no redis-server on the PATH");
        return;
    };
    let server = common::servers::Server::redis(&program).unwrap();
    let mut wire = common::wire::Wire::connect(server.addr).unwrap();
    let random = RefCell::new(common::random::Random::new(8));
    let (mut wrong, mut compared, mut others) = (Vec::new(), 0, BTreeMap::new());
    for (name, _, row) in rows().into_iter().filter(|(_, _, row)| row.subcommands.is_empty() && row.has_keys()) {
        let names: Vec<&str> = name.split('|').collect();
        if wire.call(&["COMMAND", "INFO", &name]).unwrap().frame.elements().unwrap()[0].elements().is_none() {
            continue;
        }
        let forms = forms::orders(&names, row, 2).unwrap();
        let words: Vec<&String> = forms
            .iter()
            .flat_map(|form| &form.slots)
            .filter_map(|slot| if let Slot::Word(word) = slot { Some(word) } else { None })
            .collect();
        let requests: Vec<Vec<Vec<u8>>> = forms
            .iter()
            .cycle()
            .take(forms.len().clamp(100, 1000))
            .map(|form| {
                let word = |or: &str| {
                    let random = &mut *random.borrow_mut();
                    if random.one_in(3) { random.pick(&words).as_bytes().to_vec() } else { or.as_bytes().to_vec() }
                };
                form.request(std::iter::from_fn(|| Some(word("key"))), |_| word("1"))
            })
            .collect();
        for requests in requests.chunks(100) {
            for request in requests {
                let head = ["COMMAND", "GETKEYSANDFLAGS"].map(|word| word.as_bytes().to_vec());
                wire.queue(&[&head[..], request].concat());
            }
            wire.flush().unwrap();
            for request in requests {
                let (theirs, ours) = (keys_in(&wire.reply().unwrap().frame), keys_of(row, request));
                compared += 1;
                match names_other_keys(&name, request) {
                    _ if theirs == ours => {}
                    Some(why) => *others.entry(why).or_insert(0) += 1,
                    None => wrong.push(format!("{}: {theirs} is {ours} here", request.join(&b' ').escape_ascii())),
                }
            }
        }
    }
    println!("{compared} requests; on purpose: {others:?}");
    wrong.truncate(40);
    report(wrong);
    assert!(compared > 10_000, "{compared}");
}

/// The values of all `token` entries in a reply to `COMMAND DOCS`, without those of subcommands.
fn collect_tokens(frame: &Frame, into: &mut BTreeSet<String>) {
    let Some(elements) = frame.elements() else { return };
    for (at, element) in elements.iter().enumerate() {
        match element.text() {
            Some(b"subcommands") => return,
            Some(b"token") => {
                if let Some(token) = elements.get(at + 1).and_then(Frame::text) {
                    into.insert(String::from_utf8(token.to_vec()).unwrap());
                }
            }
            _ => collect_tokens(element, into),
        }
    }
}
