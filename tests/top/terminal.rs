//! The program in a pseudo terminal, and a small terminal that knows what stands on its screen.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Time within which something must be seen.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program and its terminal.
pub struct Terminal {
    child: Child,
    keyboard: File,
    /// The side of the program, which stays open so that its modes can be read.
    other: File,
    screen: Arc<Mutex<Screen>>,
}

/// What the terminal shows.
#[derive(Default)]
struct Screen {
    raw: Vec<u8>,
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    pending: Vec<u8>,
}

impl Screen {
    /// Interprets output: characters, positions, and clearing. Other control sequences change nothing that is looked at.
    fn take(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while let Some(&first) = rest.first() {
            let length = match first {
                0x1b if rest.len() < 2 => break,
                0x1b if rest[1] == b'[' => match rest[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)) {
                    Some(at) => {
                        self.control(&rest[2..2 + at], rest[2 + at]);
                        at + 3
                    }
                    None => break,
                },
                0x1b => 2,
                b'\r' | b'\n' => 1,
                _ => {
                    let length = match first {
                        0xf0.. => 4,
                        0xe0.. => 3,
                        0xc0.. => 2,
                        _ => 1,
                    };
                    if rest.len() < length {
                        break;
                    }
                    let c = std::str::from_utf8(&rest[..length]).unwrap().chars().next().unwrap();
                    let (row, column) = (self.row, self.column);
                    if self.cells.len() <= row {
                        self.cells.resize(row + 1, Vec::new());
                    }
                    let cells = &mut self.cells[row];
                    if cells.len() <= column {
                        cells.resize(column + 1, ' ');
                    }
                    cells[column] = c;
                    self.column += 1;
                    length
                }
            };
            rest = &rest[length..];
        }
        self.pending = rest.to_vec();
    }

    fn control(&mut self, parameters: &[u8], end: u8) {
        let parameters = String::from_utf8_lossy(parameters);
        let mut numbers = parameters.split(';').map(|number| number.parse::<usize>().unwrap_or(1).max(1) - 1);
        match end {
            b'H' => (self.row, self.column) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)),
            b'J' => self.cells.clear(),
            _ => {}
        }
    }

    fn text(&self) -> String {
        self.cells.iter().map(|cells| format!("{}\n", cells.iter().collect::<String>().trim_end())).collect()
    }
}

impl Terminal {
    /// Starts `portcullis top` in a terminal of this size.
    pub fn start(columns: u16, rows: u16, args: &[&str], environment: &[(&str, &str)]) -> Terminal {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        resize(&master, columns, rows);
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let other = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let stdio = || Stdio::from(other.try_clone().unwrap());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_portcullis"), "top"]).args(args);
        command.env_remove("NO_COLOR").env_remove("REDISCLI_AUTH").envs(environment.iter().copied());
        let child = command.env("TERM", "xterm-256color").stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(Screen::default()));
        let shared = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                match output.read(&mut bytes) {
                    Ok(0) => return,
                    Ok(count) => shared.lock().unwrap().take(&bytes[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        });
        Terminal { child, keyboard, other, screen }
    }

    /// Types.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the terminal another size.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        resize(&OwnedFd::from(self.keyboard.try_clone().unwrap()), columns, rows);
    }

    /// The screen as text.
    pub fn text(&self) -> String {
        self.screen.lock().unwrap().text()
    }

    /// All output, with its control sequences.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap().raw).into_owned()
    }

    /// Waits until the screen shows this.
    #[track_caller]
    pub fn sees(&self, text: &str) {
        self.until(|screen| screen.contains(text), text);
    }

    /// Waits until the screen no longer shows this.
    #[track_caller]
    pub fn sees_no(&self, text: &str) {
        self.until(|screen| !screen.contains(text), text);
    }

    #[track_caller]
    fn until(&self, is_so: impl Fn(&str) -> bool, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !is_so(&self.text()) {
            assert!(Instant::now() < end, "'{text}' in vain:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The id of the program.
    pub fn pid(&self) -> i32 {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        std::fs::read_to_string(children).unwrap().trim().parse().unwrap_or(self.child.id() as i32)
    }

    /// Waits for the end of the program, and checks that the terminal is as it was: the ordinary screen, with echo and lines.
    #[track_caller]
    pub fn ends_restored(mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        let end = Instant::now() + PATIENCE;
        // What the program wrote last may not have been read yet.
        let restored =
            |raw: String| raw.rfind("\x1b[?1049l") > raw.rfind("\x1b[?1049h") && raw.rfind("\x1b[?25h") > raw.rfind("\x1b[?25l");
        while !restored(self.raw()) {
            assert!(Instant::now() < end, "the alternate screen is still there, or the cursor is hidden");
            std::thread::sleep(Duration::from_millis(5));
        }
        let modes = tcgetattr(&self.other).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        status
    }
}

fn resize(terminal: &OwnedFd, columns: u16, rows: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Its terminal hangs up when both sides are closed; `setsid` waits for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
