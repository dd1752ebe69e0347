//! The program.

use std::process::ExitCode;

use portcullis::engine::config::Config;
use portcullis::server::{Options, Server};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let port = args.iter().position(|a| a == "--port").and_then(|i| args.get(i + 1)?.parse().ok()).unwrap_or(6379);
    match Server::start(Config { port, ..Config::default() }, Options::default()) {
        Ok(mut server) => {
            eprintln!("listening on {}", server.addresses()[0]);
            match server.wait() {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
