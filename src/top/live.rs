//! The live view: the terminal, the keys, and a look at the server now and then.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::client::{Error, Options};
use crate::top::ask::{Asker, Question, break_grant, explained};
use crate::top::facts::Replies;
use crate::top::input::action;
use crate::top::screen::{Effect, Screen};
use crate::top::view::{self, Palette};

/// Maximum number of keys that wait to be handled.
const KEYS_MAX: usize = 256;
/// Interval between redraws while the server does not answer, so that the time without an answer is right.
const REDRAW: Duration = Duration::from_secs(1);

/// Something under way. It is polled by the loop, not spawned, so that a panic in it ends the program.
type Under<T> = Option<Pin<Box<dyn Future<Output = T>>>>;

/// A look gives its asker back.
type Looked = (Asker, Result<Replies, Error>);

/// Shows the server until the user has seen enough, the terminal is gone, or a signal ends the program. With `all`, it begins with all
/// locks.
///
/// # Errors
/// In words: the server cannot be reached at the beginning, or the terminal fails.
pub async fn run(options: Options, at: String, all: bool, interval: Duration) -> Result<(), String> {
    let words = |error: Error| format!("{at}: {}", explained(&error));
    let asker = Asker::connect(options, at.clone()).await.map_err(words)?;
    let signals = Signals::install().map_err(|error| error.to_string())?;
    let mut terminal = Terminal::open()?;
    let ended = watch(asker, all, interval, &mut terminal, signals).await;
    drop(terminal);
    ended
}

/// The terminal in raw mode, on its alternate screen. It is restored when this is dropped, and before a panic is reported.
struct Terminal(ratatui::DefaultTerminal);

impl Terminal {
    fn open() -> Result<Terminal, String> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Terminal(terminal)),
            Err(error) => {
                // It may have failed half way.
                let _ = ratatui::try_restore();
                Err(format!("the terminal cannot be used: {error}"))
            }
        }
    }

    fn draw(&mut self, screen: &mut Screen, palette: Palette) -> Result<(), String> {
        let drawn = self.0.draw(|frame| {
            screen.page = view::page(screen, frame.area());
            view::draw(frame, screen, palette);
        });
        drawn.map(drop).map_err(|error| format!("the terminal is gone: {error}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The panic hook has done it. A second time would put the cursor back on top of the report.
        if !std::thread::panicking() {
            let _ = ratatui::try_restore();
        }
    }
}

/// The signals that end the program. Without a handler they would end it before the terminal is restored.
struct Signals([Signal; 3]);

impl Signals {
    fn install() -> std::io::Result<Signals> {
        Ok(Signals([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?]))
    }

    async fn any(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

async fn watch(asker: Asker, all: bool, interval: Duration, terminal: &mut Terminal, mut signals: Signals) -> Result<(), String> {
    let began = Instant::now();
    let palette =
        if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) { Palette::Plain } else { Palette::Colours };
    let client = asker.client();
    let mut keys = keys().map_err(|error| error.to_string())?;
    let mut screen = Screen { all, ..Screen::default() };
    let (mut idle, mut looking, mut breaking): (Option<Asker>, Under<Looked>, Under<String>) = (Some(asker), None, None);
    let mut due = Some(Instant::now());
    loop {
        screen.now = began.elapsed();
        if due.is_some_and(|due| due <= Instant::now())
            && let Some(asker) = idle.take()
        {
            looking = Some(Box::pin(look(asker, screen.question())));
            due = None;
        }
        terminal.draw(&mut screen, palette)?;
        let redraw = Instant::now() + REDRAW;
        let wake = due.filter(|_| idle.is_some()).unwrap_or(redraw).min(redraw);
        tokio::select! {
            key = keys.recv() => match key {
                Some(Event::Key(key)) => {
                    screen.now = began.elapsed();
                    let effect = action(key, screen.focus()).and_then(|action| screen.act(action));
                    match effect {
                        Some(Effect::Quit) => return Ok(()),
                        Some(Effect::Look) => due = Some(Instant::now()),
                        Some(Effect::Break { .. }) if breaking.is_some() => {
                            screen.take_outcome("Nothing was broken: the answer to the last LOCK.BREAK is still to come.".to_owned());
                        }
                        Some(Effect::Break { name, token, reason }) => {
                            breaking = Some(Box::pin(break_grant(client.clone(), name, token, reason)));
                        }
                        None => {}
                    }
                }
                // The next drawing has the new size.
                Some(_) => {}
                None => return Err("the terminal is gone".to_owned()),
            },
            (asker, looked) = ended(&mut looking) => {
                looking = None;
                idle = Some(asker);
                screen.now = began.elapsed();
                match looked {
                    Ok(replies) => screen.take(&replies),
                    Err(error) => screen.lose(explained(&error), unix_ms()),
                }
                // A look that was asked for meanwhile is due already.
                if due.is_none() && !screen.paused {
                    due = Some(Instant::now() + interval);
                }
            }
            outcome = ended(&mut breaking) => {
                breaking = None;
                screen.take_outcome(outcome);
                due = Some(Instant::now());
            }
            () = sleep_until(wake) => {}
            () = signals.any() => return Ok(()),
        }
        if screen.paused && looking.is_none() && due.is_some_and(|due| due > Instant::now()) {
            due = None;
        }
    }
}

async fn look(mut asker: Asker, question: Question) -> Looked {
    let looked = asker.look(&question).await;
    (asker, looked)
}

/// What comes of something under way; never, if nothing is.
async fn ended<T>(under: &mut Under<T>) -> T {
    if let Some(future) = under { future.as_mut().await } else { std::future::pending().await }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Reads the keys on a thread, which ends with the program.
fn keys() -> std::io::Result<mpsc::Receiver<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    let read = move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(receiver)
}
