//! The servers that are started side by side: where their programs are, and what flags they take.

use std::io::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::process::{Process, free_port};

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// redis-server, or anything that takes its flags.
    Redis,
    /// valkey-server.
    Valkey,
    /// kevy.
    Kevy,
    /// This crate's program.
    Portcullis,
}

impl Peer {
    /// All of them, in the order in which tables show them.
    pub const ALL: [Peer; 4] = [Peer::Redis, Peer::Valkey, Peer::Kevy, Peer::Portcullis];

    /// What its program is called.
    pub const fn name(self) -> &'static str {
        match self {
            Peer::Redis => "redis-server",
            Peer::Valkey => "valkey-server",
            Peer::Kevy => "kevy",
            Peer::Portcullis => "portcullis",
        }
    }

    /// The environment variable that may name its program.
    pub const fn variable(self) -> &'static str {
        match self {
            Peer::Redis => "REDIS_SERVER",
            Peer::Valkey => "VALKEY_SERVER",
            Peer::Kevy => "KEVY",
            Peer::Portcullis => "PORTCULLIS",
        }
    }

    /// How to come by the version that figures are published for.
    pub const fn how_to_install(self) -> &'static str {
        match self {
            Peer::Redis => "apt-get install redis-server",
            Peer::Valkey => "apt-get install -t bookworm-backports valkey-server",
            Peer::Kevy => "cargo install kevy --version 3.17.3 --locked",
            Peer::Portcullis => "cargo build --release",
        }
    }

    /// The one of that name, with or without `-server`.
    pub fn by_name(name: &str) -> Option<Peer> {
        Peer::ALL.into_iter().find(|peer| peer.name() == name || peer.name().strip_suffix("-server") == Some(name))
    }

    /// What a program is by its file's name; what is not known takes Redis's flags.
    pub fn of(program: &Path) -> Peer {
        program.file_stem().and_then(|name| Peer::by_name(name.to_str()?)).unwrap_or(Peer::Redis)
    }

    /// Its program: what the environment names, or what is in the path.
    pub fn find(self) -> Option<PathBuf> {
        match std::env::var_os(self.variable()) {
            Some(named) => Some(PathBuf::from(named)).filter(|path| path.is_file()),
            None => on_path(self.name()),
        }
    }

    /// How its program is started to listen on a port of 127.0.0.1, with nothing on disk.
    pub fn command(self, program: &Path, port: u16) -> Command {
        // It is started in a folder of its own.
        let named = program.components().count() > 1;
        let program = if named { std::path::absolute(program).unwrap_or_else(|_| program.into()) } else { program.into() };
        let (mut command, port) = (Command::new(program), port.to_string());
        match self {
            Peer::Portcullis => command.args(["serve", "--bind", "127.0.0.1", "--port", &port]),
            Peer::Kevy => command.args(["--bind", "127.0.0.1", "--port", &port, "--threads", "1", "--no-aof", "--dir", "."]),
            Peer::Redis | Peer::Valkey => {
                command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"])
            }
        };
        command
    }

    /// Starts its program on a free port, and waits until it listens.
    ///
    /// # Errors
    /// Where it cannot be started, ends at once, or does not listen.
    pub fn start(self, program: &Path) -> Result<Process> {
        let port = free_port()?;
        let mut process = Process::spawn(self.command(program, port), port)?;
        process.until_it_listens()?;
        Ok(process)
    }
}

/// A program of this name in the path.
pub fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_names() {
        for peer in Peer::ALL {
            assert_eq!(Peer::by_name(peer.name()), Some(peer));
            assert_eq!(Peer::of(&Path::new("/opt/bin").join(peer.name())), peer);
        }
        assert_eq!(Peer::by_name("valkey"), Some(Peer::Valkey));
        assert_eq!(Peer::by_name("memcached"), None);
        assert_eq!(Peer::of(Path::new("/opt/redis8/redis-fork")), Peer::Redis);
    }

    #[test]
    fn a_program_in_the_path_is_found() {
        assert!(on_path("sh").unwrap().is_file());
        assert_eq!(on_path("no-such-program"), None);
    }
}
