//! Kinds of servers: where their programs are, and what flags they take.

use std::io::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::servers::process::Process;
use crate::ports;

named! {
    /// A kind of server, with the name of its program. The order is that of the rows in tables.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ServerKind in ALL {
        /// redis-server, or any other program that takes its flags.
        Redis = "redis-server",
        /// valkey-server.
        Valkey = "valkey-server",
        /// kevy.
        Kevy = "kevy",
        /// The program of this crate.
        Portcullis = "portcullis",
    }
}

impl ServerKind {
    /// The environment variable that may hold the path of the program.
    pub const fn variable(self) -> &'static str {
        match self {
            ServerKind::Redis => "REDIS_SERVER",
            ServerKind::Valkey => "VALKEY_SERVER",
            ServerKind::Kevy => "KEVY",
            ServerKind::Portcullis => "PORTCULLIS",
        }
    }

    /// How to install the version for which figures are published.
    pub const fn how_to_install(self) -> &'static str {
        match self {
            ServerKind::Redis => "apt-get install redis-server",
            ServerKind::Valkey => "apt-get install -t bookworm-backports valkey-server",
            ServerKind::Kevy => "cargo install kevy --version 3.17.3 --locked",
            ServerKind::Portcullis => "cargo build --release",
        }
    }

    /// The kind of a name, with or without `-server`.
    pub fn by_name(name: &str) -> Option<ServerKind> {
        ServerKind::ALL.into_iter().find(|kind| kind.name() == name || kind.name().strip_suffix("-server") == Some(name))
    }

    /// The kind of a program, by its file name. An unknown program is taken as one with Redis's flags.
    pub fn of(program: &Path) -> ServerKind {
        program.file_stem().and_then(|name| ServerKind::by_name(name.to_str()?)).unwrap_or(ServerKind::Redis)
    }

    /// The path of the program, from the environment variable or from `PATH`.
    pub fn find(self) -> Option<PathBuf> {
        match std::env::var_os(self.variable()) {
            Some(path) => Some(PathBuf::from(path)).filter(|path| path.is_file()),
            None => on_path(self.name()),
        }
    }

    /// The command that starts a program on a port of 127.0.0.1, without persistence.
    pub fn command(self, program: &Path, port: u16) -> Command {
        // A relative path would not survive the change of the working directory in `Process::spawn`.
        let is_path = program.components().count() > 1;
        let program = if is_path { std::path::absolute(program).unwrap_or_else(|_| program.into()) } else { program.into() };
        let (mut command, port) = (Command::new(program), port.to_string());
        match self {
            ServerKind::Portcullis => command.args(["serve", "--bind", "127.0.0.1", "--port", &port]),
            ServerKind::Kevy => {
                command.args(["--bind", "127.0.0.1", "--port", &port, "--threads", "1", "--no-aof", "--dir", "."])
            }
            ServerKind::Redis | ServerKind::Valkey => {
                command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"])
            }
        };
        command
    }

    /// Starts a program on a free port, and waits until it accepts connections.
    ///
    /// # Errors
    /// The program cannot be started, ends at once, or does not listen in time.
    pub fn start(self, program: &Path) -> Result<Process> {
        let port = ports::free()?;
        let mut process = Process::spawn(self.command(program, port), port)?;
        process.wait_until_listening()?;
        Ok(process)
    }
}

/// The program of this name in `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_recognized_by_their_names() {
        for kind in ServerKind::ALL {
            assert_eq!(ServerKind::by_name(kind.name()), Some(kind));
            assert_eq!(ServerKind::of(&Path::new("/opt/bin").join(kind.name())), kind);
        }
        assert_eq!(ServerKind::by_name("valkey"), Some(ServerKind::Valkey));
        assert_eq!(ServerKind::by_name("memcached"), None);
        assert_eq!(ServerKind::of(Path::new("/opt/redis8/redis-fork")), ServerKind::Redis);
    }

    #[test]
    fn a_program_in_path_is_found() {
        assert!(on_path("sh").unwrap().is_file());
        assert_eq!(on_path("no-such-program"), None);
    }
}
