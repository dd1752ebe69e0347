//! Nodes as child processes of this program, on loopback: those of `cluster try`, and those that `torture --live` harms.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::files;
use crate::ports;

/// Runs a program that ignores the signal for a file that exceeds the limit: the program gets an error of the write instead, as from
/// a full disk.
const WITHOUT_XFSZ: [&str; 4] = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];

/// The nodes' folder. A temporary one is removed with it.
pub struct Place {
    /// Its path.
    pub folder: PathBuf,
    /// Whether it is temporary.
    pub temporary: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.folder)
        {
            eprintln!("portcullis: {}: {error}", self.folder.display());
        }
    }
}

impl Place {
    /// The folder `keep`, or else a temporary one whose name begins with `prefix`.
    ///
    /// # Errors
    /// In words: it cannot be made.
    pub fn of(keep: Option<&Path>, prefix: &str) -> Result<Place, String> {
        let unique = format!("{prefix}-{}", std::process::id());
        let Some(folder) = keep else {
            let folder = files::temporary_folder(&unique).and_then(std::path::absolute);
            return folder.map(|folder| Place { folder, temporary: true }).map_err(|error| format!("{unique}: {error}"));
        };
        let made = std::path::absolute(folder).and_then(|folder| std::fs::create_dir_all(&folder).map(|()| folder));
        let folder = made.map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Place { folder, temporary: false })
    }

    /// The `dir` of a node, counted from 1.
    pub fn dir(&self, node: usize) -> PathBuf {
        self.folder.join(node.to_string())
    }

    /// A node's log.
    pub fn text(&self, node: usize) -> String {
        std::fs::read_to_string(self.log(node)).unwrap_or_default()
    }

    /// The last lines of a node's log.
    pub fn last_lines(&self, node: usize, count: usize) -> Vec<String> {
        let log = self.text(node);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(count)..].iter().map(|line| (*line).to_owned()).collect()
    }

    fn log(&self, node: usize) -> PathBuf {
        self.folder.join(format!("{node}.log"))
    }
}

/// How a node is started.
#[derive(Clone, Copy, Debug)]
pub struct NodeStart<'a> {
    /// Its number, counted from 1.
    pub node: usize,
    /// The value of `--peers`.
    pub peers: &'a str,
    /// Its port for clients.
    pub port: u16,
    /// More arguments.
    pub more: &'a [String],
    /// Whether the size of its files will be limited.
    pub limited: bool,
}

/// Starts a node. It ends with its standard input, and thus with this process.
///
/// # Errors
/// In words.
pub fn spawn(place: &Place, start: NodeStart<'_>) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let dir = place.dir(start.node);
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut command = if start.limited {
        let mut shell = Command::new(WITHOUT_XFSZ[0]);
        shell.args(&WITHOUT_XFSZ[1..]).arg(&program);
        shell
    } else {
        Command::new(&program)
    };
    command.args(["serve", "--node-id", &start.node.to_string(), "--peers", start.peers, "--bind", "127.0.0.1"]);
    command.args(["--port", &start.port.to_string(), "--end-with-stdin"]).args(start.more);
    command.arg("--dir").arg(dir);
    let log = place.log(start.node);
    let log = files::append(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    // Ctrl-C is for this process alone.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    command.spawn().map_err(|error| format!("{}: {error}", program.display()))
}

/// The value of `--peers` for nodes that reach each other at these ports.
pub fn peers(ports: impl IntoIterator<Item = u16>) -> String {
    let peers: Vec<String> = ports.into_iter().zip(1..).map(|(port, id)| format!("{id}=127.0.0.1:{port}")).collect();
    peers.join(",")
}

/// Ports that are free.
pub fn free_ports(count: usize) -> Option<Vec<u16>> {
    (0..count).map(|_| ports::free().ok()).collect()
}

/// Ends a process at once, and waits for its end. What clients were told is on the disk.
pub fn end(child: &mut Child) {
    // It may have ended.
    let _ = child.kill();
    let _ = child.wait();
}
