//! Connections without sockets: the bytes that clients send arrive in pieces, and their sockets take what they are sent in pieces.

use std::collections::BTreeMap;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::connections::execute::BatchStart;
use crate::driver::connections::turn::{Next, Step};
use crate::driver::{Driver, Present};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::session::Peer;
use crate::persist::append::log_writer::{Order, Report};
use crate::persist::natives::clock::BootClock;

/// A client, and its socket.
#[derive(Default)]
struct Client {
    /// What it has sent, and the server has not received.
    sent: Vec<u8>,
    /// Whether it sends no more.
    ended: bool,
    /// What it has received.
    received: Vec<u8>,
    /// Number of bytes that its socket takes until it is readable again; `None` if it takes all.
    takes: Option<usize>,
    closed: bool,
}

/// A driver and its clients.
struct Clients {
    driver: Driver,
    now: Now,
    clients: BTreeMap<SessionId, Client>,
}

impl Clients {
    fn new(config: Config) -> Clients {
        let now = Now::new(1_000_000_000, 1_700_000_000_000);
        let driver = Driver::new(Engine::new(config, 7, now, crate::commands::table()));
        Clients { driver, now, clients: BTreeMap::new() }
    }

    fn connect(&mut self) -> SessionId {
        let id = self.driver.engine.connect(self.now, Peer::default());
        self.driver.add_connection(self.now, id);
        self.clients.insert(id, Client::default());
        id
    }

    fn of(&mut self, id: SessionId) -> &mut Client {
        self.clients.get_mut(&id).unwrap()
    }

    fn send(&mut self, id: SessionId, bytes: &[u8]) {
        self.of(id).sent.extend_from_slice(bytes);
        self.driver.wake(id);
    }

    fn reading(&self) -> BatchStart {
        BatchStart { now: self.now, ns: self.now.mono_us() * 1_000, stopwatch: None }
    }

    /// One turn of the next connection in the run queue.
    fn turn(&mut self) -> Option<(SessionId, Next)> {
        let id = self.driver.next_connection()?;
        let reading = self.reading();
        let (at, client) = (self.at(), self.clients.get_mut(&id)?);
        let mut turn = self.driver.begin_turn();
        let next = loop {
            let step = self.driver.step(id, &mut turn);
            if matches!(step, Step::ExecuteKept | Step::Receive) && self.driver.engine.has_work(self.now) {
                self.driver.advance(at);
            }
            match step {
                Step::Write => {
                    let output = self.driver.output(id, &turn);
                    let taken = client.takes.unwrap_or(usize::MAX).min(output.len());
                    if taken == 0 {
                        break Next::Wait;
                    }
                    client.received.extend_from_slice(&output[..taken]);
                    client.takes = client.takes.map(|takes| takes - taken);
                    self.driver.written(id, taken, &mut turn);
                    continue;
                }
                Step::Flush => continue,
                Step::ExecuteKept => self.driver.execute_kept(reading, id, &mut turn),
                Step::Receive if !client.sent.is_empty() => {
                    self.driver.execute_received(reading, id, &std::mem::take(&mut client.sent), &mut turn);
                }
                Step::Receive => break if client.ended { self.driver.end_input(id) } else { Next::Wait },
                Step::End(next) => break next,
            }
            self.driver.wake_recipients(self.now, Some(id));
        };
        match next {
            Next::Wait => {}
            Next::Soon | Next::Later => self.driver.wake(id),
            Next::Close => {
                client.closed = true;
                self.driver.remove_connection(self.now, id);
                self.driver.wake_recipients(self.now, None);
            }
        }
        Some((id, next))
    }

    fn run(&mut self) {
        let mut turns = 0;
        while self.turn().is_some() {
            turns += 1;
            assert!(turns < 10_000, "connections go on for ever");
        }
        self.driver.engine.check_invariants();
    }

    fn at(&self) -> Present {
        Present { now: self.now, ns: self.now.mono_us() * 1_000, frozen: false }
    }

    /// It gets later, before the timer fires.
    fn wait(&mut self, ms: u64) {
        self.now = Now::new(self.now.mono_us() + ms * 1_000, self.now.unix_ms() - (self.now.mono_us() / 1_000) as i64);
    }

    fn advance(&mut self, ms: u64) {
        self.wait(ms);
        while self.driver.engine.has_work(self.now) {
            self.driver.advance(self.at());
        }
        self.driver.housekeep(self.at());
        self.driver.wake_recipients(self.now, None);
        self.run();
    }

    /// Lets changes go to a file, and output wait for them.
    fn store(&mut self) {
        let (file, _) = self.driver.new_file(self.now, BootClock::default());
        self.driver.resume_file(self.at(), file, 1);
        assert!(self.driver.holds_output());
    }

    /// All changes so far are durable.
    fn settle(&mut self) {
        self.driver.submit(self.at(), true, BootClock::default);
        for order in self.driver.take_demands().file {
            if let Order::Append(number, _) = order {
                self.driver.take_report(self.at(), Report::Settled(number));
            }
        }
        self.run();
    }

    /// What a client has received since it was last asked, as text.
    fn received(&mut self, id: SessionId) -> String {
        String::from_utf8(std::mem::take(&mut self.of(id).received)).unwrap()
    }
}

fn request(words: &[&str]) -> Vec<u8> {
    let arguments = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    [format!("*{}\r\n", words.len())].into_iter().chain(arguments).collect::<String>().into_bytes()
}

#[test]
fn however_input_and_output_are_cut_the_replies_are_the_same() {
    crate::on_executor_stack(|| {
        for seed in 0..60 {
            let mut source = Engine::new(Config::default(), seed, Now::new(0, 0), crate::commands::table());
            let mut below = |limit: u64| (source.random() % limit) as usize;
            let requests: Vec<Vec<u8>> = (0..40)
                .map(|at| match below(9) {
                    0 => request(&["SET", "a", &at.to_string()]),
                    1 => request(&["GET", "a"]),
                    2 => request(&["INCR", "b"]),
                    3 => request(&["APPEND", "c", &"x".repeat(below(3_000))]),
                    4 => request(&["GET", "c"]),
                    5 => b"INCR b\r\n\r\n".to_vec(),
                    6 => [request(&["MULTI"]), request(&["INCR", "b"]), request(&["EXEC"])].concat(),
                    7 => request(&["LRANGE", "b", "0", "-1"]),
                    _ => request(&["EVAL", "return {KEYS[1], redis.call('INCR', KEYS[1])}", "1", "b"]),
                })
                .collect();
            let mut whole = Clients::new(Config::default());
            let one = whole.connect();
            for request in &requests {
                whole.send(one, request);
                whole.run();
            }
            let expected = whole.received(one);
            let mut cut = Clients::new(Config::default());
            let one = cut.connect();
            let bytes = requests.concat();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at((1 + below(700)).min(rest.len()));
                rest = behind;
                cut.of(one).takes = Some(below(500));
                cut.send(one, piece);
                cut.run();
            }
            cut.of(one).takes = None;
            cut.driver.wake(one);
            cut.run();
            assert_eq!(cut.received(one), expected, "seed {seed}");
        }
    });
}

#[test]
fn what_a_blocked_client_sends_waits_and_the_waker_is_answered_behind_it() {
    crate::on_executor_stack(|| {
        let mut all = Clients::new(Config::default());
        let (waiter, other) = (all.connect(), all.connect());
        all.send(waiter, &[request(&["BLPOP", "q", "0"]), request(&["PING"])].concat());
        all.run();
        all.send(waiter, &request(&["ECHO", "later"]));
        all.run();
        assert_eq!(all.received(waiter), "");
        all.send(other, &[request(&["RPUSH", "q", "v"]), request(&["PING"])].concat());
        // The pusher lets the waiter run before it is answered itself.
        assert_eq!(all.turn(), Some((other, Next::Soon)));
        assert_eq!(
            (all.turn().map(|(id, _)| id), all.received(waiter).as_str()),
            (Some(waiter), "*2\r\n$1\r\nq\r\n$1\r\nv\r\n+PONG\r\n$5\r\nlater\r\n")
        );
        assert_eq!(all.received(other), "");
        all.run();
        assert_eq!(all.received(other), ":1\r\n+PONG\r\n");
    });
}

#[test]
fn who_sends_much_lets_others_have_their_turns() {
    crate::on_executor_stack(|| {
        let mut all = Clients::new(Config::default());
        let (much, little) = (all.connect(), all.connect());
        all.send(much, &request(&["PING"]).repeat(2_000));
        all.send(little, &request(&["PING"]));
        assert_eq!(all.turn(), Some((much, Next::Later)));
        let first = all.received(much).len() / "+PONG\r\n".len();
        assert!((512..2_000).contains(&first), "{first} requests ran");
        assert_eq!(all.turn(), Some((little, Next::Wait)));
        all.run();
        assert_eq!(all.received(much).len() / "+PONG\r\n".len(), 2_000 - first);
    });
}

#[test]
fn who_reads_nothing_sends_too_much_or_is_idle_is_closed() {
    crate::on_executor_stack(|| {
        let config = Config { client_query_buffer_limit: 1_000, timeout: 10, ..Config::default() };
        let mut all = Clients::new(config);
        all.driver.engine.change_config(|config| config.client_output_buffer_limit[0].hard = 100_000);
        let clients = [all.connect(), all.connect(), all.connect(), all.connect()];
        let [slow, long, idle, waiter] = clients;
        all.send(slow, &request(&["SET", "k", &"x".repeat(900)]));
        all.run();
        all.of(slow).takes = Some(0);
        // What it sends while it reads nothing is not received. But the replies to what it has sent at once are too long.
        all.send(slow, &request(&["GET", "k"]).repeat(300));
        all.run();
        assert!(all.of(slow).closed);
        all.send(long, b"*2\r\n$3\r\nGET\r\n$5000\r\n");
        all.send(long, &[b'x'; 1_001]);
        all.run();
        assert!(all.of(long).closed);
        all.send(waiter, &request(&["BLPOP", "q", "0"]));
        all.run();
        all.advance(9_000);
        assert!(!all.of(idle).closed);
        all.advance(2_000);
        assert_eq!((all.of(idle).closed, all.of(waiter).closed), (true, false));
        assert!(
            all.driver.engine.stats().output_limit_disconnections == 1
                && all.driver.engine.stats().query_limit_disconnections == 1
        );
    });
}

#[test]
fn who_sends_no_more_is_answered_first_if_that_takes_time() {
    crate::on_executor_stack(|| {
        let mut all = Clients::new(Config::default());
        let (one, other) = (all.connect(), all.connect());
        all.send(one, &request(&["PING"]));
        all.of(one).ended = true;
        all.run();
        assert_eq!((all.received(one).as_str(), all.of(one).closed), ("+PONG\r\n", true));
        // A client that waits has gone.
        all.send(other, &request(&["BLPOP", "q", "0"]));
        all.of(other).ended = true;
        all.run();
        assert!(all.of(other).closed && all.received(other).is_empty());
        assert_eq!(all.driver.engine.blocked_clients(), 0);
    });
}

#[test]
fn what_waits_behind_a_request_stays_in_order_when_that_times_out_before_the_next_piece() {
    crate::on_executor_stack(|| {
        let mut all = Clients::new(Config::default());
        let one = all.connect();
        all.send(one, &request(&["BLPOP", "q", "0.05"]));
        all.run();
        let rest = [request(&["ECHO", "first"]), request(&["ECHO", "second"])].concat();
        for piece in [&rest[..9], &rest[9..20]] {
            all.send(one, piece);
            all.run();
        }
        all.wait(100);
        all.send(one, &rest[20..]);
        all.run();
        assert_eq!(all.received(one), "*-1\r\n$5\r\nfirst\r\n$6\r\nsecond\r\n");
    });
}

#[test]
fn what_time_has_shown_before_a_batch_waits_for_the_disk_like_everything_else() {
    crate::on_executor_stack(|| {
        let config = Config { appendonly: true, appendfsync: "always", ..Config::default() };
        let mut all = Clients::new(config);
        all.store();
        let (holder, waiter) = (all.connect(), all.connect());
        all.send(holder, &request(&["LOCK.ACQUIRE", "door", "a", "100"]));
        all.run();
        all.settle();
        all.send(waiter, &request(&["LOCK.ACQUIRE", "door", "b", "60000", "WAIT", "60000"]));
        all.run();
        all.settle();
        assert!(all.received(holder).starts_with(':') && all.received(waiter).is_empty());
        // The lease ends, and the waiter is the first whose turn it is.
        all.wait(200);
        all.send(waiter, &request(&["PING"]));
        all.run();
        assert_eq!(all.received(waiter), "", "the grant is not durable");
        all.settle();
        let told = all.received(waiter);
        assert!(told.starts_with(':') && told.ends_with("+PONG\r\n"), "{told}");
    });
}

#[test]
fn what_is_kept_for_a_connection_that_has_closed_reaches_no_other() {
    let mut all = Clients::new(Config::default());
    let first = all.connect();
    all.driver.wake(first);
    all.driver.remove_connection(all.now, first);
    let second = all.connect();
    assert_eq!(second.number(), first.number(), "the number is used again");
    all.driver.wake(first);
    assert_eq!(all.driver.next_connection(), None, "neither the turn of before nor a new one is the other's");
    all.driver.wake(second);
    all.driver.remove_connection(all.now, first);
    assert_eq!(all.driver.next_connection(), Some(second), "the end of the first is not that of the second");
}
