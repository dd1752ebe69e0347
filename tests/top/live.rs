//! The live view in a terminal.

use std::time::Duration;

use portcullis::TestServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::talk::{call, token};
use crate::jam::Jam;
use crate::terminal::Terminal;

fn top(jam: &Jam, columns: u16, rows: u16) -> Terminal {
    Terminal::start(columns, rows, &["--interval", "50", &jam.url()], &[])
}

#[test]
fn it_names_the_root_at_each_size() {
    let jam = Jam::start();
    let mut terminal = top(&jam, 80, 24);
    terminal.sees("8 clients wait for order:42 (5 directly), held for 3 min by worker-7");
    terminal.sees("connection gone for 3 min)");
    terminal.sees("> order:42");
    terminal.sees("└ item:7  3 wait");
    terminal.resize(40, 10);
    terminal.sees("? help  Enter detail  b break  q quit");
    terminal.sees("8 clients wait for order:42");
    terminal.resize(120, 40);
    terminal.sees("address");
    terminal.press("q");
    assert!(terminal.ends_restored().success());
}

#[test]
fn a_grant_is_broken_from_the_dialog() {
    let mut jam = Jam::start();
    let mut terminal = top(&jam, 100, 30);
    terminal.sees("> order:42");
    terminal.press("b");
    terminal.sees(&format!("token   {}", jam.token));
    terminal.press("hung\r");
    terminal.sees("Broken. web-0 holds it now, with token ");
    terminal.sees(", 4 wait.");
    terminal.sees_no("behind  ");
    assert_eq!(call(&mut jam.root, &format!("LOCK.CHECK order:42 {}", jam.token)), ":0");
    let why = call(&mut jam.root, "LOCK.WHY order:42");
    assert!(why.contains("broken") && why.contains("hung"), "{why}");
    terminal.press("x");
    terminal.sees("worker-7, token");
    // With the user, the address and the reason.
    terminal.sees("by portcullis-top at 127.0.0.1:");
    terminal.sees(": hung");
    // The next owner has it.
    terminal.sees("web-0");
    terminal.press("q");
    assert!(terminal.ends_restored().success());
}

#[test]
fn a_grant_that_has_ended_meanwhile_is_not_broken() {
    let mut jam = Jam::start();
    let mut terminal = top(&jam, 80, 24);
    terminal.sees("> order:42");
    terminal.press("b");
    terminal.sees("token   ");
    call(&mut jam.root, "LOCK.RELEASE order:42 worker-7");
    terminal.press("hung\r");
    terminal.sees("Nothing was broken. NOTHELD");
    terminal.sees("web-0 holds it now");
    // Whoever has it now keeps it.
    let info = call(&mut jam.root, "LOCK.INFO order:42");
    assert!(info.contains("$5 owner $5 web-0"), "{info}");
}

#[test]
fn a_lock_is_shown_in_detail_and_locks_are_filtered() {
    let jam = Jam::start();
    let mut terminal = top(&jam, 100, 30);
    terminal.sees("> order:42");
    terminal.press("\r");
    terminal.sees("5 waiters in the queue:");
    terminal.sees("Last events:");
    terminal.press("\x1b");
    terminal.sees_no("5 waiters in the queue:");
    terminal.press("/item\r");
    terminal.sees("named item");
    terminal.sees("> item:7");
    terminal.sees("Esc ends the filter");
    terminal.press("\x1b");
    terminal.sees_no("named item");
    terminal.press("o\x15pi-1\r");
    terminal.sees("of owner or client pi-1");
    terminal.sees("1 lock, by oldest wait");
    terminal.press("s");
    terminal.sees("by waiters");
    terminal.press("p");
    terminal.sees("PAUSED");
    terminal.press("?");
    terminal.sees("this help");
    terminal.press("?");
    terminal.sees_no("this help");
    terminal.press("\x03");
    assert!(terminal.ends_restored().success());
}

#[test]
fn a_paused_view_asks_the_server_for_nothing() {
    let mut jam = Jam::start();
    let mut terminal = top(&jam, 80, 24);
    terminal.sees("> order:42");
    terminal.press("p");
    terminal.sees("PAUSED");
    let lists = |jam: &mut Jam| -> u64 {
        let stats = call(&mut jam.root, "INFO commandstats");
        let calls = stats.split("cmdstat_lock.list:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.and_then(|calls| calls.parse().ok()).unwrap()
    };
    let before = lists(&mut jam);
    // The program has a clock of its own. Ten looks fit into this time, and one may have been under way.
    std::thread::sleep(Duration::from_millis(500));
    assert!(lists(&mut jam) <= before + 1, "it looks while it is paused");
    call(&mut jam.root, "LOCK.RELEASE order:42 worker-7");
    assert!(terminal.text().contains("by worker-7"), "{}", terminal.text());
    terminal.press("p");
    // The new holder has another lock, too.
    terminal.sees("blocks 7 clients with 2 locks: order:42 (4)");
    terminal.sees_no("PAUSED");
    terminal.press("q");
    assert!(terminal.ends_restored().success());
}

#[test]
fn every_signal_restores_the_terminal() {
    let jam = Jam::start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = top(&jam, 80, 24);
        terminal.sees("order:42");
        kill_process(Pid::from_raw(terminal.pid()).unwrap(), signal).unwrap();
        assert!(terminal.ends_restored().success(), "{signal:?}");
    }
}

#[test]
fn a_server_that_is_gone_is_said_and_found_again() {
    let server = TestServer::start();
    let addr = server.addr();
    let mut terminal = Terminal::start(100, 24, &["--interval", "50", &format!("redis://{addr}")], &[]);
    terminal.sees("Nobody waits for a lock.");
    drop(server);
    terminal.sees(&format!("NO ANSWER from {addr} since "));
    terminal.sees("Nobody waits for a lock.");
    crate::common::ports::until_free(addr.port());
    let server = TestServer::builder().config("port", &addr.port().to_string()).frozen(true).start();
    terminal.sees_no("NO ANSWER");
    let jam = Jam::on(server);
    terminal.sees("8 clients wait for order:42");
    drop(jam);
    terminal.sees("NO ANSWER");
    terminal.press("q");
    assert!(terminal.ends_restored().success());
}

#[test]
fn names_do_not_reach_the_terminal_as_control_sequences() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = crate::common::wire::Wire::connect(server.addr()).unwrap();
    wire.call(&["LOCK.ACQUIRE", "a\x1b]0;pwned\x07", "\x1b[5;5Howner", "60000"]).unwrap();
    token(&mut wire, "LOCK.ACQUIRE plain ann 60000");
    server.clock().advance(Duration::from_secs(1));
    let mut terminal = Terminal::start(100, 24, &[&format!("redis://{}", server.addr())], &[("NO_COLOR", "1")]);
    terminal.sees("Nobody waits");
    terminal.press("a");
    terminal.sees("a\\x1b]0;pwned\\x07");
    terminal.sees("\\x1b[5;5Howner");
    terminal.press("q");
    let raw = terminal.raw();
    assert!(!raw.contains("\x1b]0;") && !raw.contains("\x1b[5;5Howner"));
    // Neither of the sixteen colours nor another one.
    for code in 30..=37 {
        assert!(!raw.contains(&format!("\x1b[{code}m")) && !raw.contains(&format!("[38;5;{}m", code - 30)), "{code}");
    }
    assert!(terminal.ends_restored().success());
}

#[test]
fn a_server_that_is_not_there_leaves_the_terminal_alone() {
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], crate::common::ports::free()));
    let terminal = Terminal::start(80, 24, &[&format!("redis://{free}")], &[]);
    terminal.sees("no connection");
    assert!(!terminal.raw().contains("\x1b[?1049h"));
}
