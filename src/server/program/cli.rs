//! The command line of `portcullis serve`, generated from the table of directives.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};

use crate::engine::config::{Config, Directive, Kind, Section};
use crate::resp::request::split_words;
use crate::server::file;
use crate::server::file::Extra;
use crate::server::program::log::Format;

const AFTER: &str = "\
Every directive that CONFIG GET * shows can be given as a flag, by Redis's name for it, or in a file in the form of redis.conf. \
Flags win over the file.

Examples:
  portcullis serve --port 7000 --requirepass secret
  portcullis serve redis.conf --bind 127.0.0.1 ::1 --maxclients 50000
  portcullis serve --port 0 --ready-file /run/portcullis.ready --test-mode";

/// Names of the log formats; the first is the default.
const LOG_FORMATS: [&str; 2] = ["text", "json"];

/// Everything that the command line of `portcullis serve` asks for.
pub struct Invocation {
    /// The directives, from file and flags.
    pub config: Config,
    /// The configuration file, if any.
    pub file: Option<PathBuf>,
    /// Other contents of the file: directives without a meaning here, and users, to which those of flags are added.
    pub extra: Extra,
    /// Path of the file that is written once connections are accepted.
    pub ready_file: Option<PathBuf>,
    /// Format of log lines.
    pub log_format: Format,
    /// Whether `CLOCK` and `FAULT` are allowed.
    pub test_mode: bool,
    /// Whether the server ends when its standard input does.
    pub end_with_stdin: bool,
}

/// The `serve` subcommand.
pub fn command() -> Command {
    let mut command = Command::new("serve")
        .about("Runs the server")
        .after_help(AFTER)
        .arg(
            Arg::new("config-file")
                .value_name("CONFIG-FILE")
                .help("Configuration file in the form of redis.conf")
                .value_hint(ValueHint::FilePath),
        )
        .next_help_heading("Program")
        .arg(
            Arg::new("ready-file")
                .long("ready-file")
                .value_name("PATH")
                .help("Writes host:port to this file once the server accepts connections, and removes the file at the end")
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            Arg::new("test-mode")
                .long("test-mode")
                .help("For tests: CLOCK moves the server's clock, and FAULT injects faults")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("end-with-stdin")
                .long("end-with-stdin")
                .help("Ends the server when standard input is closed, so that it ends with the process that started it")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("log-format")
                .long("log-format")
                .value_name("FORMAT")
                .help("Format of log lines")
                .value_parser(LOG_FORMATS)
                .default_value(LOG_FORMATS[0]),
        );
    let defaults = Config::default();
    for (section, heading) in [
        (Section::Network, "Network"),
        (Section::Security, "Security"),
        (Section::Limits, "Limits"),
        (Section::Behaviour, "Behaviour"),
        (Section::Logging, "Logging"),
        (Section::Persistence, "Persistence"),
        (Section::Testing, "Testing"),
        (Section::Compatibility, "Compatibility"),
        (Section::File, "Compatibility"),
    ] {
        command = command.next_help_heading(heading);
        for directive in Directive::all().iter().filter(|directive| directive.section == section && is_flag(directive)) {
            command = command.arg(flag(directive, &defaults));
        }
        if section == Section::Security {
            command = command.arg(
                Arg::new("user")
                    .long("user")
                    .value_name("NAME RULE...")
                    .help("User and its rules, as in ACL SETUSER; may be repeated")
                    .action(ArgAction::Append)
                    .allow_hyphen_values(true),
            );
        }
    }
    command
}

/// Whether a directive is a flag. One is not: the program has a flag of that name.
fn is_flag(directive: &Directive) -> bool {
    directive.name != "log-format"
}

fn flag(directive: &'static Directive, defaults: &Config) -> Arg {
    let default = String::from_utf8_lossy(&directive.get(defaults)).into_owned();
    let help = directive.help.trim_end_matches('.');
    let help = if default.is_empty() { help.to_owned() } else { format!("{help} [{default}]") };
    let mut arg = Arg::new(directive.name)
        .long(directive.name)
        .value_name(value_name(directive.kind))
        .help(help)
        .action(if directive.kind.accumulates() { ArgAction::Append } else { ArgAction::Set })
        .allow_hyphen_values(true)
        .hide(is_hidden(directive));
    if !directive.kind.accumulates() {
        // The last one wins, as the last line of a file does.
        arg = arg.overrides_with(directive.name);
    }
    if let Some(alias) = directive.alias {
        arg = arg.alias(alias);
    }
    arg
}

/// Whether `--help` leaves out a directive.
fn is_hidden(directive: &Directive) -> bool {
    matches!(directive.section, Section::Compatibility | Section::Testing | Section::File)
}

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "YES|NO",
        Kind::Integer(..) => "N",
        Kind::Octal(..) => "OCTAL",
        Kind::Memory(..) => "BYTES",
        Kind::MemoryOrPercent => "BYTES|PERCENT%",
        Kind::Choice(_) => "WORD",
        Kind::Addresses => "ADDRESS...",
        Kind::Percentiles => "PERCENT...",
        Kind::OutputLimits => "LIMITS...",
        Kind::Events => "LETTERS",
        Kind::Rules => "RULES...",
        Kind::SavePoints => "SECONDS CHANGES...",
        Kind::FileName(_) => "NAME",
        Kind::Words => "WORD...",
        Kind::Text | Kind::Secret => "TEXT",
    }
}

/// Joins the words of a flag into one argument, as in `--bind 127.0.0.1 ::1`: they extend to the next flag.
pub fn join_words(args: impl Iterator<Item = String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let mut open = false;
    for arg in args {
        if let Some(name) = arg.strip_prefix("--") {
            let name = name.split('=').next().unwrap_or(name);
            open = name == "user" || Directive::find(name.as_bytes()).is_some_and(|(directive, _)| directive.kind.takes_words());
            joined.push(if open && !arg.contains('=') { arg + "=" } else { arg });
        } else if open && let Some(flag) = joined.last_mut() {
            if !flag.ends_with('=') {
                flag.push(' ');
            }
            flag.push_str(&arg);
        } else {
            joined.push(arg);
        }
    }
    joined
}

/// The arguments after `serve`, split but not yet interpreted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    file: Option<String>,
    /// Values of directives, in the order of the table.
    directives: BTreeMap<usize, Vec<String>>,
    users: Vec<String>,
    ready_file: Option<String>,
    log_format: Option<String>,
    test_mode: bool,
    end_with_stdin: bool,
}

impl Given {
    /// Fast path: splits a line of complete flags and values after `serve`, as programs that start a server nearly always use.
    /// Returns `None` for any other line, and for a wrong one: [`command`] knows all forms and their error messages. Building
    /// that parser takes 0.2 ms, a tenth of the whole start.
    pub fn plainly(words: &[String]) -> Option<Given> {
        let mut given = Given::default();
        let mut words = words.iter();
        words.next()?;
        if words.next()? != "serve" {
            return None;
        }
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else {
                if word.is_empty() || word.starts_with('-') || given.file.replace(word.clone()).is_some() {
                    return None;
                }
                continue;
            };
            let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            let switch = match name {
                "test-mode" => Some(&mut given.test_mode),
                "end-with-stdin" => Some(&mut given.end_with_stdin),
                _ => None,
            };
            if let Some(switch) = switch {
                if value.is_some() || std::mem::replace(switch, true) {
                    return None;
                }
                continue;
            }
            let value = if let Some(value) = value { value } else { words.next().filter(|word| !word.starts_with('-'))? };
            given.take(name, value.to_owned())?;
        }
        given.log_format.get_or_insert_with(|| LOG_FORMATS[0].to_owned());
        Some(given)
    }

    /// Takes the value of a flag. Returns `None` if the fast path does not handle it.
    fn take(&mut self, name: &str, value: String) -> Option<()> {
        let once = match name {
            "ready-file" => &mut self.ready_file,
            "log-format" if LOG_FORMATS.contains(&value.as_str()) => &mut self.log_format,
            "user" => {
                self.users.push(value);
                return Some(());
            }
            _ => {
                let is_named = |directive: &Directive| is_flag(directive) && directive.names().any(|known| known == name);
                let index = Directive::all().iter().position(is_named)?;
                let values = self.directives.entry(index).or_default();
                if !Directive::all()[index].kind.accumulates() {
                    values.clear();
                }
                values.push(value);
                return Some(());
            }
        };
        // The fast path handles neither an empty value nor a repeated one.
        (!value.is_empty() && once.replace(value).is_none()).then_some(())
    }

    /// Collects the matches of the `serve` subcommand.
    pub fn of(matches: &ArgMatches) -> Given {
        let one = |name: &str| matches.get_one::<String>(name).cloned();
        let all = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned().collect::<Vec<_>>();
        let directives = Directive::all().iter().enumerate().filter(|(_, directive)| is_flag(directive));
        let directives = directives.map(|(index, directive)| (index, all(directive.name)));
        Given {
            file: one("config-file"),
            directives: directives.filter(|(_, values)| !values.is_empty()).collect(),
            users: all("user"),
            ready_file: one("ready-file"),
            log_format: one("log-format"),
            test_mode: matches.get_flag("test-mode"),
            end_with_stdin: matches.get_flag("end-with-stdin"),
        }
    }

    /// Interprets the arguments. The error is a message for the operator.
    pub fn read(self) -> Result<Invocation, String> {
        let mut config = Config::default();
        let file = self.file.map(PathBuf::from);
        let mut extra = Extra::default();
        if let Some(file) = &file {
            extra = file::load(file, &mut config).map_err(|error| error.to_string())?;
        }
        for (index, values) in &self.directives {
            let directive = &Directive::all()[*index];
            for value in values {
                let set = if directive.kind.accumulates() {
                    directive.set(&mut config, &[value.as_bytes()])
                } else {
                    directive.set_from_value(&mut config, value.as_bytes())
                };
                set.map_err(|reason| format!("--{} {value:?}: {reason}", directive.name))?;
            }
        }
        for line in &self.users {
            let words = split_words(line.as_bytes()).map_err(|_| format!("--user {line:?}: unbalanced quotes"))?;
            extra.users.push(words);
        }
        let log_format = if self.log_format.as_deref() == Some("json") { Format::Json } else { Format::Text };
        let Given { test_mode, end_with_stdin, .. } = self;
        Ok(Invocation {
            config,
            file,
            extra,
            ready_file: self.ready_file.map(PathBuf::from),
            log_format,
            test_mode,
            end_with_stdin,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Invocation, String> {
        let args = join_words(line.split_whitespace().map(|word| word.replace("''", "")));
        Given::of(&command().try_get_matches_from(args).map_err(|error| error.to_string())?).read()
    }

    #[test]
    fn the_command_is_sound_and_has_every_directive() {
        command().debug_assert();
        let help = command().render_long_help().to_string();
        for directive in Directive::all().iter().filter(|directive| !is_hidden(directive)) {
            assert!(help.contains(&format!("--{} ", directive.name)), "{}", directive.name);
        }
    }

    #[test]
    fn flags_take_values_as_redis_does() {
        let given = parse(
            "serve --port 7000 --bind 127.0.0.1 -::1 --save '' --slowlog-log-slower-than -1 --lua-time-limit 7 --port 7001",
        )
        .unwrap();
        assert_eq!(given.config.port, 7001);
        assert_eq!(given.config.bind, ["127.0.0.1", "-::1"]);
        assert_eq!(given.config.slowlog_log_slower_than, -1);
        assert_eq!(given.config.busy_reply_threshold, 7);
        let given = parse("serve --client-output-buffer-limit pubsub 1mb 0 0 --log-format json --ready-file r").unwrap();
        assert_eq!(given.config.client_output_buffer_limit[2].hard, 1 << 20);
        assert_eq!(given.log_format, Format::Json);
        assert_eq!(given.ready_file.as_deref(), Some(std::path::Path::new("r")));
        assert_eq!(parse("serve --bind=127.0.0.2").unwrap().config.bind, ["127.0.0.2"]);
        let given = parse("serve --lock-expiry-publish a* c:{name} 0 --port 1 --lock-expiry-publish redisson").unwrap();
        assert_eq!(given.config.get("lock-expiry-publish").unwrap(), b"a* c:{name} 0 redisson");
    }

    /// Words for lines that are right, wrong, and in between.
    const WORDS: [&str; 34] = [
        "--port",
        "--port=0",
        "--port=",
        "7000",
        "-1",
        "",
        "x y",
        "--bind",
        "127.0.0.1",
        "::1",
        "--bind=a",
        "--save",
        "--user",
        "alice on",
        "--user=",
        "--lock-expiry-publish",
        "a*",
        "--test-mode",
        "--test-mode=yes",
        "--end-with-stdin",
        "--log-format",
        "--log-format=json",
        "text",
        "--ready-file",
        "--ready-file=",
        "r",
        "--nosuch",
        "--",
        "-h",
        "--help",
        "--hash-max-ziplist-entries",
        "--PORT",
        "serve",
        "--requirepass",
    ];

    proptest::proptest! {
        #[test]
        fn plain_lines_are_taken_apart_as_others_are(picks in proptest::collection::vec(0..WORDS.len(), 0..7)) {
            let line = ["portcullis", "serve"].into_iter().chain(picks.into_iter().map(|pick| WORDS[pick]));
            let words = join_words(line.map(str::to_owned));
            if let Some(given) = Given::plainly(&words) {
                let matches = command().try_get_matches_from(&words[1..]).expect("what is plain is right");
                assert_eq!(given, Given::of(&matches));
            }
        }
    }

    #[test]
    fn what_programs_start_servers_by_is_plain() {
        let plain = |line: &str| Given::plainly(&join_words(line.split(' ').map(str::to_owned)));
        for line in [
            "portcullis serve",
            "portcullis serve --bind 127.0.0.1 ::1 --port 0 --ready-file r --test-mode --end-with-stdin",
            "portcullis serve redis.conf --requirepass=x --log-format json --user alice on nopass --user bob",
        ] {
            let given = plain(line).unwrap();
            let words = join_words(line.split(' ').map(str::to_owned));
            assert_eq!(given, Given::of(&command().try_get_matches_from(&words[1..]).unwrap()), "{line}");
        }
        for line in [
            "portcullis",
            "portcullis bench",
            "portcullis serve --help",
            "portcullis serve --nosuch 1",
            "portcullis serve --port",
        ] {
            assert_eq!(plain(line), None, "{line}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        assert!(parse("serve --nosuch 1").is_err_and(|error| error.contains("--nosuch")));
        let told = |line: &str| parse(line).map(|_| ()).unwrap_err();
        assert!(told("serve --clutser-secret x").contains("a similar argument exists: '--cluster-secret'"));
        assert!(told("serve --min-replicas-to-write 1").contains("A server alone has no replicas"));
        assert!(told("serve --replicaof 10.0.0.1 6379 --port 1").contains("Replication is not supported"));
        assert!(told("serve --rename-command FLUSHALL ''").contains("Commands keep their names"));
        assert!(told("serve --log-format legacy").contains("--log-format"));
        let given = parse("serve --repl-backlog-size 1mb --min-slaves-to-write 0 --oom-score-adj-values 0 1 2 --hz 7").unwrap();
        assert_eq!(given.config.foreign.len(), 2);
        assert_eq!(given.config.get("oom-score-adj-values").unwrap(), b"0 1 2");
        assert!(parse("serve --port x").is_err_and(|error| error.contains("--port") && error.contains("integer")));
        assert!(parse("serve --daemonize yes").is_err_and(|error| error.contains("foreground")));
        assert!(parse("serve nosuch.conf").is_err_and(|error| error.contains("nosuch.conf")));
    }
}
