//! The screen at several sizes, as text. `TOP_SNAPSHOTS=write` writes what is drawn over the expected files.

use std::path::Path;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::json;

use crate::top::facts::{Absence, Replies};
use crate::top::input::Action;
use crate::top::screen::Screen;
use crate::top::tests::samples::{jam, jam_in_detail, redis, reply};
use crate::top::view::{self, Palette};

fn screen(replies: &Replies) -> Screen {
    let mut screen = Screen { now: Duration::from_secs(10), ..Screen::default() };
    screen.take(replies);
    screen
}

fn drawn(screen: &mut Screen, wide: u16, high: u16, palette: Palette) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(wide, high)).expect("a terminal");
    let draw = |frame: &mut ratatui::Frame<'_>| {
        screen.page = view::page(screen, frame.area());
        view::draw(frame, screen, palette);
    };
    terminal.draw(draw).expect("it draws");
    terminal
}

fn lines(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let cells = |row: u16| (0..buffer.area.width).map(|column| buffer[(column, row)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|row| format!("{}\n", cells(row).trim_end())).collect()
}

#[track_caller]
fn shows(name: &str, screen: &mut Screen, wide: u16, high: u16) {
    let found = lines(&drawn(screen, wide, high, Palette::Plain));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/view/expected").join(format!("{name}.txt"));
    if std::env::var_os("TOP_SNAPSHOTS").is_some_and(|value| value == "write") {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &found).expect("it is written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{name} is\n{found}");
}

#[test]
fn the_jam_at_each_size() {
    shows("jam-80x24", &mut screen(&jam()), 80, 24);
    shows("jam-120x40", &mut screen(&jam()), 120, 40);
    shows("jam-40x10", &mut screen(&jam()), 40, 10);
}

#[test]
fn a_holder_that_is_gone_is_marked_in_the_table_and_in_the_tree() {
    let mut screen = screen(&jam());
    screen.act(Action::Move(1));
    let terminal = drawn(&mut screen, 80, 24, Palette::Colours);
    let text = lines(&terminal);
    let marked: Vec<usize> =
        text.lines().enumerate().filter(|(_, line)| line.starts_with("! order:42 ")).map(|(at, _)| at).collect();
    assert_eq!(marked.len(), 2, "{text}");
    let buffer = terminal.backend().buffer();
    let colour = |row: usize| buffer[(2, row as u16)].fg;
    let other = text.lines().position(|line| line.starts_with("  lock:cart ")).expect("it is listed");
    assert!(marked.iter().all(|&row| colour(row) != colour(other)), "it has the colour of an alarm");
}

#[test]
fn what_the_server_refuses_is_said_in_its_place() {
    let refused = || Err(Absence::Refused("NOPERM User ann has no permissions".to_owned()));
    let text = lines(&drawn(&mut screen(&Replies { graph: refused(), ..jam() }), 80, 24, Palette::Plain));
    assert!(
        text.contains("The server refuses LOCK.GRAPH: NOPERM User ann has no permissions") && text.contains("! order:42 "),
        "{text}"
    );
    let text = lines(&drawn(&mut screen(&Replies { list: refused(), ..jam() }), 80, 24, Palette::Plain));
    assert!(text.contains("The server refuses LOCK.LIST: NOPERM User ann has no permissions"), "{text}");
}

#[test]
fn a_server_of_another_kind() {
    shows("redis-80x24", &mut screen(&redis()), 80, 24);
    shows("redis-40x10", &mut screen(&redis()), 40, 10);
}

#[test]
fn the_detail_of_a_lock() {
    let mut screen = screen(&jam());
    screen.act(Action::Open);
    screen.take(&jam_in_detail("order:42"));
    shows("detail-80x24", &mut screen, 80, 24);
    screen.act(Action::Page(1));
    shows("detail-40x10", &mut screen, 40, 10);
}

#[test]
fn the_dialog_shows_owner_token_and_reason_at_each_size() {
    let mut screen = screen(&jam());
    screen.act(Action::Break);
    "no answer since the deploy".chars().for_each(|c| drop(screen.act(Action::Type(c))));
    screen.now += Duration::from_secs(5);
    shows("break-80x24", &mut screen, 80, 24);
    shows("break-40x10", &mut screen, 40, 10);
    screen.act(Action::Accept);
    screen.take_outcome(
        "Nothing was broken. NOTHELD lock 'order:42' has no grant with token 3676804863340549: released".to_owned(),
    );
    shows("broken-80x24", &mut screen, 80, 24);
    shows("broken-40x10", &mut screen, 40, 10);
}

#[test]
fn the_keys_the_pause_and_the_time_without_an_answer() {
    let mut screen = screen(&jam());
    screen.act(Action::Pause);
    screen.act(Action::Help);
    shows("help-80x24", &mut screen, 80, 24);
    screen.act(Action::Close);
    screen.act(Action::FilterNames);
    screen.act(Action::Type('o'));
    screen.now += Duration::from_secs(17);
    screen.lose("no connection: Connection refused (os error 111)".to_owned(), 1_700_000_017_000);
    shows("lost-80x24", &mut screen, 80, 24);
}

#[test]
fn no_size_and_no_name_is_too_much() {
    let wide = json!([{
        "name": "鍵".repeat(100), "waiting": 3, "oldest-wait": 5, "waiters": [], "kind": "lock",
        "holders": [{ "owner": "\\x1b[2J".repeat(50), "token": 1, "lease": 5, "held": u64::MAX >> 1, "gone": 1 }],
    }]);
    for replies in [jam(), redis(), Replies { list: Ok(reply(&wide)), ..jam() }, jam_in_detail("order:42")] {
        for (overlay, act) in
            [("none", None), ("help", Some(Action::Help)), ("break", Some(Action::Break)), ("detail", Some(Action::Open))]
        {
            let mut screen = screen(&replies);
            act.map(|act| screen.act(act));
            screen.take(&replies);
            for (wide, high) in [(1, 1), (2, 40), (5, 3), (9, 9), (20, 5), (40, 10), (200, 2), (300, 100)] {
                let terminal = drawn(&mut screen, wide, high, Palette::Plain);
                assert!(!lines(&terminal).contains('\x1b'), "{overlay} {wide}x{high}");
            }
        }
    }
}

#[test]
fn without_colour_no_cell_has_one() {
    let coloured = |palette: Palette| {
        let terminal = drawn(&mut screen(&jam()), 80, 24, palette);
        terminal.backend().buffer().content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(coloured(Palette::Colours) && !coloured(Palette::Plain));
}
