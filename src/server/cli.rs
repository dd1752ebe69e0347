//! The command line of `portcullis serve`, made from the table of directives.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};

use crate::engine::config::{Config, Directive, Kind, Section};
use crate::resp::request::split_words;
use crate::server::file::{self, Extra};
use crate::server::log::Format;

const AFTER: &str = "\
Every directive that CONFIG GET * shows can be given as a flag, by Redis's name for it, or in a file in the form of redis.conf. \
Flags win over the file.

Examples:
  portcullis serve --port 7000 --requirepass secret
  portcullis serve redis.conf --bind 127.0.0.1 ::1 --maxclients 50000
  portcullis serve --port 0 --ready-file /run/portcullis.ready --test-mode";

/// What `portcullis serve` was asked to do.
pub struct Invocation {
    /// The directives, from file and flags.
    pub config: Config,
    /// The configuration file, if any.
    pub file: Option<PathBuf>,
    /// What else is in the file: directives that have no meaning here, and users, to which those of flags are added.
    pub extra: Extra,
    /// Written when connections are accepted.
    pub ready_file: Option<PathBuf>,
    /// How log lines look.
    pub log_format: Format,
    /// Whether tests have the clock and faults in their hands.
    pub test_mode: bool,
    /// Whether it ends when its standard input does.
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
                .help("File in the form of redis.conf")
                .value_hint(ValueHint::FilePath),
        )
        .next_help_heading("Program")
        .arg(
            Arg::new("ready-file")
                .long("ready-file")
                .value_name("PATH")
                .help("File that is written with host:port once connections are accepted, and removed at the end")
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            Arg::new("test-mode")
                .long("test-mode")
                .help("For tests: CLOCK moves the server's clock, and FAULT has requests go wrong")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("end-with-stdin")
                .long("end-with-stdin")
                .help("End when standard input is closed: with whoever holds its other end, however that one ends")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("log-format")
                .long("log-format")
                .value_name("FORMAT")
                .help("How log lines look")
                .value_parser(["text", "json"])
                .default_value("text"),
        );
    let defaults = Config::default();
    for (section, heading) in [
        (Section::Network, "Network"),
        (Section::Security, "Security"),
        (Section::Limits, "Limits"),
        (Section::Behaviour, "Behaviour"),
        (Section::Logging, "Logging"),
        (Section::Compatibility, "Compatibility"),
    ] {
        command = command.next_help_heading(heading);
        for directive in Directive::all().iter().filter(|directive| directive.section == section) {
            command = command.arg(flag(directive, &defaults));
        }
        if section == Section::Security {
            command = command.arg(
                Arg::new("user")
                    .long("user")
                    .value_name("NAME RULE...")
                    .help("A user and its rules, as in ACL SETUSER; may be given several times")
                    .action(ArgAction::Append)
                    .allow_hyphen_values(true),
            );
        }
    }
    command
}

fn flag(directive: &'static Directive, defaults: &Config) -> Arg {
    let default = String::from_utf8_lossy(&directive.get(defaults)).into_owned();
    let help = directive.help.trim_end_matches('.');
    let help = if default.is_empty() { help.to_owned() } else { format!("{help} [{default}]") };
    let mut arg = Arg::new(directive.name)
        .long(directive.name)
        .value_name(value_name(directive.kind))
        .help(help)
        .action(if directive.kind.adds_up() { ArgAction::Append } else { ArgAction::Set })
        .allow_hyphen_values(true)
        .hide(directive.section == Section::Compatibility);
    if !directive.kind.adds_up() {
        // The last one wins, as the last line of a file does.
        arg = arg.overrides_with(directive.name);
    }
    if let Some(alias) = directive.alias {
        arg = arg.alias(alias);
    }
    arg
}

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "YES|NO",
        Kind::Integer(..) => "N",
        Kind::Octal(..) => "OCTAL",
        Kind::Memory(..) => "BYTES",
        Kind::MemoryOrPercent => "BYTES|PERCENT%",
        Kind::Choice(_) => "WORD",
        Kind::Words => "WORD...",
        Kind::Percentiles => "PERCENT...",
        Kind::OutputLimits => "LIMITS...",
        Kind::Events => "LETTERS",
        Kind::Rules => "RULES...",
        Kind::Text | Kind::Secret | Kind::Only(..) => "TEXT",
    }
}

/// Makes one argument of a flag's several words, as in `--bind 127.0.0.1 ::1`: they go on until the next flag.
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

/// Reads what was given; the error is for the person who gave it.
pub fn read(matches: &ArgMatches) -> Result<Invocation, String> {
    let mut config = Config::default();
    let file = matches.get_one::<String>("config-file").map(PathBuf::from);
    let mut extra = Extra::default();
    if let Some(file) = &file {
        extra = file::load(file, &mut config).map_err(|error| error.to_string())?;
    }
    for directive in Directive::all() {
        for value in matches.get_many::<String>(directive.name).into_iter().flatten() {
            let set = if directive.kind.adds_up() {
                directive.set(&mut config, &[value.as_bytes()])
            } else {
                directive.set_from_value(&mut config, value.as_bytes())
            };
            set.map_err(|reason| format!("--{} {value:?}: {reason}", directive.name))?;
        }
    }
    for line in matches.get_many::<String>("user").unwrap_or_default() {
        let words = split_words(line.as_bytes()).map_err(|_| format!("--user {line:?}: unbalanced quotes"))?;
        extra.users.push(words);
    }
    let log_format = match matches.get_one::<String>("log-format").map(String::as_str) {
        Some("json") => Format::Json,
        _ => Format::Text,
    };
    let ready_file = matches.get_one::<String>("ready-file").map(PathBuf::from);
    let (test_mode, end_with_stdin) = (matches.get_flag("test-mode"), matches.get_flag("end-with-stdin"));
    Ok(Invocation { config, file, extra, ready_file, log_format, test_mode, end_with_stdin })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Invocation, String> {
        let args = join_words(line.split_whitespace().map(|word| word.replace("''", "")));
        read(&command().try_get_matches_from(args).map_err(|error| error.to_string())?)
    }

    #[test]
    fn the_command_is_sound_and_has_every_directive() {
        command().debug_assert();
        let help = command().render_long_help().to_string();
        for directive in Directive::all().iter().filter(|directive| directive.section != Section::Compatibility) {
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

    #[test]
    fn mistakes_are_told() {
        assert!(parse("serve --nosuch 1").is_err_and(|error| error.contains("--nosuch")));
        assert!(parse("serve --port x").is_err_and(|error| error.contains("--port") && error.contains("integer")));
        assert!(parse("serve --daemonize yes").is_err_and(|error| error.contains("foreground")));
        assert!(parse("serve nosuch.conf").is_err_and(|error| error.contains("nosuch.conf")));
    }
}
