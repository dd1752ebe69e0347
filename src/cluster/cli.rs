//! The command line of `portcullis cluster`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};

use crate::cluster::trial::Trial;
use crate::cluster::{change, recover, secret, status, survey, trial};

const AFTER: &str = "\
URL is that of any node for clients, redis://[user][:password@]host[:port] or rediss://…; several are separated by commas, and the first \
one that answers is asked for the others.

Examples:
  portcullis cluster try
  portcullis cluster status redis://10.0.0.1
  portcullis cluster add redis://10.0.0.1 4 10.0.0.4:7600
  portcullis cluster remove redis://10.0.0.1 1";

const TRY: &str = "Starts three nodes on this machine, and ends them with Ctrl-C";
const STATUS: &str = "Shows all nodes. The exit code is 1 if none leads, or one does not answer";
const ADD: &str = "Adds a running node, and waits until it votes";
const REMOVE: &str = "Removes a node, which hands its leadership over first";
const HAND_OVER: &str = "Hands the leadership over to a node, or to the one that has most of the log";
const SECRET: &str = "Prints a new secret for --cluster-secret";
const RECOVER: &str =
    "After the loss of a majority: makes a stopped node the only member of its cluster. May lose writes and locks";

const CONFIRMATION: &str = "yes-lose-what-was-not-replicated";

/// The `cluster` subcommand.
pub fn command() -> Command {
    Command::new("cluster")
        .about("Operates a cluster of replicated servers")
        .after_help(AFTER)
        .arg_required_else_help(true)
        .subcommand_required(true)
        .defer(with_subcommands)
}

fn with_subcommands(command: Command) -> Command {
    let urls =
        || Arg::new("url").value_name("URL").required(true).help("URL of a node for clients, or several, separated by commas");
    let id = |required| {
        let id = Arg::new("node-id").value_name("NODE-ID").required(required).help("Number of the node");
        id.value_parser(value_parser!(u64).range(1..))
    };
    let folder = |name: &'static str, help: &'static str| {
        let folder = Arg::new(name).long(name).value_name("DIR").help(help);
        folder.value_parser(value_parser!(PathBuf)).value_hint(ValueHint::DirPath)
    };
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let port = Arg::new("port").long("port").value_name("PORT").value_parser(value_parser!(u16).range(1..));
    let port = port.help("Port of the first node for clients; those of the others follow, and the nodes' own are 10000 higher");
    let address = Arg::new("address").value_name("HOST:PORT").required(true).help("Address of the node among the nodes");
    let name = Arg::new("cluster-name").long("cluster-name").value_name("NAME").default_value("mymaster");
    command
        .subcommand(
            Command::new("try").about(TRY).arg(port).arg(folder("keep", "Folder that is kept, and taken again the next time")),
        )
        .subcommand(Command::new("secret").about(SECRET))
        .subcommand(Command::new("status").about(STATUS).arg(urls()).arg(flag("json", "Prints JSON")))
        .subcommand(Command::new("add").about(ADD).arg(urls()).arg(id(true)).arg(address))
        .subcommand(Command::new("remove").about(REMOVE).arg(urls()).arg(id(true)))
        .subcommand(Command::new("handover").about(HAND_OVER).arg(urls()).arg(id(false)))
        .subcommand(
            Command::new("recover")
                .about(RECOVER)
                .arg(folder("dir", "The node's dir").required(true))
                .arg(id(true).long("node-id"))
                .arg(name.help("The directive of the same name"))
                .arg(flag(CONFIRMATION, "Takes the step. Without it, what would happen is said")),
        )
}

/// Runs the subcommand.
pub fn run(matches: &ArgMatches) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(dispatch(matches)));
    match ended {
        Ok(code) => code,
        Err(message) => {
            eprintln!("portcullis: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn dispatch(matches: &ArgMatches) -> Result<ExitCode, String> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(ExitCode::FAILURE) };
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let id = || matches.get_one::<u64>("node-id").copied();
    let done = match name {
        "try" => {
            let trial = Trial { port: matches.get_one("port").copied(), keep: matches.get_one("keep").cloned() };
            return trial::run(&trial).await.map(|()| ExitCode::SUCCESS);
        }
        "secret" => secret::draw(),
        "status" => return show(text("url"), matches.get_flag("json")).await,
        "add" => change::add(text("url"), id().unwrap_or(0), text("address")).await,
        "remove" => change::remove(text("url"), id().unwrap_or(0)).await,
        "handover" => change::hand_over(text("url"), id()).await,
        _ => {
            let dir = matches.get_one::<PathBuf>("dir").cloned().unwrap_or_default();
            recover::recover(&dir, id().unwrap_or(0), text("cluster-name"), matches.get_flag(CONFIRMATION)).await
        }
    };
    print(&format!("{}\n", done?));
    Ok(ExitCode::SUCCESS)
}

async fn show(urls: &str, as_json: bool) -> Result<ExitCode, String> {
    let found = survey::survey(urls).await?;
    print(&if as_json { format!("{:#}\n", status::json(&found)) } else { status::table(&found) });
    let problems = status::problems(&found);
    problems.iter().for_each(|problem| eprintln!("portcullis: {problem}"));
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints. The reader may have closed the pipe.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_is_sound() {
        super::command().debug_assert();
    }
}
