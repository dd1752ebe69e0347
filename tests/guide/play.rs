//! Runs the transcripts of a page, in order, against one server.
//!
//! The server is the program with `--test-mode` on a free port. Its clock is frozen and moves a quarter of a second before each
//! request. With the comment `<!-- time: real -->` on the page the clock runs. A `portcullis serve --port N` in a transcript
//! starts another server, also on a free port; `-p N` or the prompt `127.0.0.1:N>` refers to it.
//!
//! A line that begins with `$ ` is a command. This test stands in for `redis-cli`, with a new connection for each command; other
//! commands run in a shell. A line that begins with `127.0.0.1:N> ` is a request on a lasting connection. A command that ends
//! with `&` blocks: its output follows that of the command that ends its wait.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::cli;
use crate::common::servers::Server;
use crate::common::wire::{Frame, Wire};
use crate::compare::{self, Tokens};
use crate::pages::{Block, Page, is_request};

/// Milliseconds by which the server's clock moves before each request.
const STEP_MS: &str = "250";
/// Maximum time until a command begins or ends its wait.
const PATIENCE: Duration = Duration::from_secs(10);
/// The port of a server that is started without one.
const PORT: u16 = 6379;

/// A running server of the page.
struct Running {
    server: Server,
    /// The connection that moves the clock and counts blocked clients.
    control: Wire,
    /// The connection of the prompt.
    session: Option<Wire>,
    /// Whether the clock moves before each request.
    steps: bool,
    /// Blocked commands: their lines, and the source of their output.
    waiting: Vec<(usize, Receiver<Vec<String>>)>,
}

/// A command with its output on the page.
struct Step {
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// Runs the transcripts of a page.
pub struct Player<'a> {
    page: &'a Page,
    servers: BTreeMap<u16, Running>,
    tokens: Tokens,
    /// The working directory of shell commands, with the program in `bin`.
    folder: PathBuf,
    /// The exit code of the last shell command.
    status: i32,
    /// Number of commands that were run.
    pub played: usize,
    pub faults: Vec<String>,
}

impl<'a> Player<'a> {
    pub fn new(page: &'a Page) -> Player<'a> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("portcullis-guide-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_portcullis"), folder.join("bin/portcullis")).unwrap();
        Player { page, servers: BTreeMap::new(), tokens: Tokens::default(), folder, status: 0, played: 0, faults: Vec::new() }
    }

    /// Runs a page's transcripts.
    pub fn play(&mut self) {
        for block in &self.page.blocks {
            if block.kind == crate::pages::Kind::Console && block.not_run.is_none() {
                self.block(block);
            }
        }
        for (line, _) in std::mem::take(&mut self.servers).into_values().flat_map(|running| running.waiting) {
            self.fault(line, "this command waits for ever, or its output is not shown");
        }
    }

    fn fault(&mut self, line: usize, what: &str) {
        self.faults.push(format!("{}:{line}: {what}", self.page.name));
    }

    fn block(&mut self, block: &Block) {
        for step in steps(block) {
            if step.command.is_empty() {
                self.fault(step.line, "a transcript begins with a command");
                continue;
            }
            self.played += 1;
            // A machine that is busy with other work makes the server log so. It is not what a page shows.
            let by_itself = |line: &String| !line.contains(" all clients waited for other work ");
            match self.step(&step).map(|printed| printed.into_iter().filter(by_itself).collect::<Vec<_>>()) {
                Ok(printed) if compare::same(&step.expected, &printed, block.figures_vary, &mut self.tokens) => {}
                Ok(printed) => {
                    let what = format!(
                        "'{}' prints\n{}\nand is shown with\n{}",
                        step.command,
                        printed.join("\n"),
                        step.expected.join("\n")
                    );
                    self.fault(step.line, &what);
                }
                Err(error) => self.fault(step.line, &format!("'{}': {error}", step.command)),
            }
        }
    }

    /// Runs one command and returns its output.
    fn step(&mut self, step: &Step) -> Result<Vec<String>, String> {
        let Some(command) = step.command.strip_prefix("$ ") else {
            let (port, request) = step.command["127.0.0.1:".len()..].split_once("> ").unwrap_or_default();
            let (port, args) = (port.parse().map_err(|_| "what port?")?, cli::words(request)?);
            let printed = self.server(port)?.request(&args)?;
            return self.with_output_of_waiting(port, printed, step);
        };
        let (command, pipe) = match command.split_once(" | ") {
            Some((command, pipe)) if command.starts_with("redis-cli") => (command, Some(pipe)),
            _ => (command, None),
        };
        let (command, in_background) = command.strip_suffix(" &").map_or((command, false), |command| (command, true));
        if command.starts_with("portcullis serve") {
            return self.serve(&cli::words(command)?[2..]);
        }
        let Some(rest) = command.strip_prefix("redis-cli ") else { return self.shell(command, None) };
        let mut args: Vec<String> = cli::words(rest)?.into_iter().map(|word| self.tokens.sent(word)).collect();
        let (mut port, mut resp3) = (PORT, false);
        while args.first().is_some_and(|word| word.starts_with('-')) {
            match args.remove(0).as_str() {
                "-3" => resp3 = true,
                "-p" => port = args.remove(0).parse().map_err(|_| "what port?")?,
                flag => return Err(format!("the test's redis-cli does not know {flag}")),
            }
        }
        if args.is_empty() {
            return Err("redis-cli without a request: write the prompt and the request".to_owned());
        }
        let server = self.server(port)?;
        if in_background {
            server.wait_for(step.line, args, resp3)?;
            return Ok(Vec::new());
        }
        let printed = server.once(&args, resp3, pipe.is_some())?;
        if let Some(pipe) = pipe {
            return self.shell(pipe, Some(&printed));
        }
        self.with_output_of_waiting(port, printed, step)
    }

    /// Appends the output of commands whose wait has ended, if the page shows more than this command's output.
    fn with_output_of_waiting(&mut self, port: u16, mut printed: Vec<String>, step: &Step) -> Result<Vec<String>, String> {
        let running = self.server(port)?;
        while printed.len() < step.expected.len() && !running.waiting.is_empty() && !step.expected.iter().any(|line| line == "…")
        {
            let end = Instant::now() + PATIENCE;
            let ended = loop {
                let ended = running.waiting.iter().enumerate().find_map(|(at, (_, output))| Some((at, output.try_recv().ok()?)));
                match ended {
                    None if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                    ended => break ended,
                }
            };
            let Some((at, output)) = ended else { break };
            running.waiting.remove(at);
            printed.extend(output);
        }
        Ok(printed)
    }

    /// The server of a port. It is started if the page does not start it.
    fn server(&mut self, port: u16) -> Result<&mut Running, String> {
        if !self.servers.contains_key(&port) {
            if port != PORT {
                return Err(format!("the page starts no server on port {port}"));
            }
            self.serve(&[])?;
        }
        Ok(self.servers.get_mut(&port).expect("it was started"))
    }

    /// Starts a server and returns its output.
    fn serve(&mut self, args: &[String]) -> Result<Vec<String>, String> {
        let mut args = args.to_vec();
        let mut port = PORT;
        if let Some(at) = args.iter().position(|word| word == "--port") {
            port = args.get(at + 1).and_then(|word| word.parse().ok()).ok_or("what port?")?;
            args.drain(at..at + 2);
        }
        let in_test_mode = args.iter().any(|word| word == "--test-mode");
        if !in_test_mode {
            args.push("--test-mode".to_owned());
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let server =
            Server::portcullis_with(Path::new(env!("CARGO_BIN_EXE_portcullis")), &args).map_err(|error| error.to_string())?;
        let control = Wire::connect(server.addr).map_err(|error| error.to_string())?;
        let printed = hello(&server, port, in_test_mode);
        let mut running = Running { server, control, session: None, steps: !self.page.real_time, waiting: Vec::new() };
        if running.steps {
            running.ask(&["CLOCK", "FREEZE"])?;
        }
        self.servers.insert(port, running);
        Ok(printed)
    }

    /// Runs a command in a shell and returns both of its outputs.
    fn shell(&mut self, command: &str, input: Option<&[String]>) -> Result<Vec<String>, String> {
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let given = self.folder.join("input");
        std::fs::write(&given, input.unwrap_or_default().iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1\n(exit {})\n{command}", self.status)])
            .current_dir(&self.folder)
            .env("PATH", path)
            .stdin(std::fs::File::open(given).unwrap())
            .output()
            .map_err(|error| error.to_string())?;
        self.status = output.status.code().unwrap_or(-1);
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }
}

impl Drop for Player<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Running {
    /// Sends a request on the connection of the prompt. Like redis-cli, connects again if the connection has ended.
    fn request(&mut self, args: &[String]) -> Result<Vec<String>, String> {
        self.tick()?;
        let mut wire = match self.session.take() {
            Some(wire) => wire,
            None => Wire::connect(self.server.addr).map_err(|error| error.to_string())?,
        };
        let printed = match wire.call(args) {
            Ok(reply) => cli::shown(&reply.frame, cli::is_raw(args)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Ok(vec!["Error: Connection reset by peer".to_owned()]);
            }
            Err(error) if [ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe].contains(&error.kind()) => {
                return Ok(vec!["Error: Server closed the connection".to_owned()]);
            }
            Err(error) => return Err(error.to_string()),
        };
        // A restart closes the connection after its reply. The next request must find it closed.
        let end = Instant::now() + PATIENCE;
        if args.len() > 1 && args[0].eq_ignore_ascii_case("FAULT") && args[1].eq_ignore_ascii_case("RESTART") {
            while !wire.has_input() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.session = Some(wire);
        Ok(printed)
    }

    /// Sends a request on a new connection, which is closed on return.
    fn once(&mut self, args: &[String], resp3: bool, raw: bool) -> Result<Vec<String>, String> {
        self.tick()?;
        let before = self.clients()?;
        let printed = call(self.server.addr, args, resp3, raw)?;
        let end = Instant::now() + PATIENCE;
        while before > 0 && self.clients()? > before && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(printed)
    }

    /// Sends a blocking request.
    fn wait_for(&mut self, line: usize, args: Vec<String>, resp3: bool) -> Result<(), String> {
        self.tick()?;
        let (sender, output) = channel();
        let (addr, before) = (self.server.addr, self.blocked()?);
        std::thread::spawn(move || sender.send(call(addr, &args, resp3, false).unwrap_or_else(|error| vec![error])));
        let end = Instant::now() + PATIENCE;
        while self.blocked()? == before {
            if let Ok(printed) = output.try_recv() {
                return Err(format!("it does not wait, and prints\n{}", printed.join("\n")));
            }
            if Instant::now() > end {
                return Err("it does not wait".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.waiting.push((line, output));
        Ok(())
    }

    /// Moves the clock before a request.
    fn tick(&mut self) -> Result<(), String> {
        if self.steps {
            self.ask(&["CLOCK", "ADVANCE", STEP_MS])?;
        }
        Ok(())
    }

    /// A request of the test itself. A restart of the server closes its connection too.
    fn ask(&mut self, args: &[&str]) -> Result<Frame, String> {
        let reply = self.control.call(args).or_else(|_| {
            self.control = Wire::connect(self.server.addr)?;
            self.control.call(args)
        });
        reply.map(|reply| reply.frame).map_err(|error| error.to_string())
    }

    /// Number of clients that are blocked or run a long script.
    fn blocked(&mut self) -> Result<i64, String> {
        let reply = self.ask(&["CLOCK", "INFO"])?;
        if reply.is_error("BUSY") {
            return Ok(i64::MAX);
        }
        let mut pairs = reply.elements().unwrap_or_default().chunks(2);
        let found = pairs.find(|pair| pair[0].text() == Some(b"blocked-clients")).and_then(|pair| pair[1].integer());
        found.ok_or_else(|| format!("CLOCK INFO answers {reply:?}"))
    }

    /// Number of connected clients. 0 while a script keeps the server busy.
    fn clients(&mut self) -> Result<usize, String> {
        let reply = self.ask(&["CLIENT", "LIST"])?;
        Ok(if reply.is_error("BUSY") { 0 } else { reply.text().unwrap_or_default().split(|&byte| byte == b'\n').count() })
    }
}

/// The output of a starting server, with the port of the page. Test mode is mentioned if the page asks for it.
fn hello(server: &Server, port: u16, in_test_mode: bool) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    while !server.log().contains("ready to accept connections") && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let log = server.log().replace(&server.addr.port().to_string(), &port.to_string());
    log.lines().filter(|line| in_test_mode || !line.contains(" test mode: ")).map(str::to_owned).collect()
}

/// The output of redis-cli for a request on a new connection.
fn call(addr: std::net::SocketAddr, args: &[String], resp3: bool, raw: bool) -> Result<Vec<String>, String> {
    let mut wire = Wire::connect(addr).map_err(|error| error.to_string())?;
    if resp3 {
        wire.call(&["HELLO", "3"]).map_err(|error| error.to_string())?;
    }
    let reply = wire.call(args).map_err(|error| error.to_string())?;
    Ok(cli::shown(&reply.frame, raw || cli::is_raw(args)))
}

/// The commands of a transcript with their output.
fn steps(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continued = false;
    for (at, line) in block.lines.iter().enumerate() {
        let line_number = block.line + at;
        match steps.last_mut() {
            Some(step) if continued => {
                step.command.truncate(step.command.len() - 1);
                step.command += line.trim_start();
            }
            _ if line.starts_with("$ ") || is_request(line) => {
                steps.push(Step { line: line_number, command: line.clone(), expected: Vec::new() });
            }
            Some(step) => step.expected.push(line.clone()),
            None => steps.push(Step { line: line_number, command: String::new(), expected: vec![line.clone()] }),
        }
        continued = steps.last().is_some_and(|step| step.expected.is_empty() && step.command.ends_with('\\'));
    }
    steps
}
