//! `maxmemory-clients`: which connections are closed when all clients together use too much memory, here and on redis-server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portcullis::testing::TestServer;

use crate::common::servers::{Server, on_path};
use crate::common::wire::Wire;
use crate::until;

/// Runs a scene against both servers.
fn on_both(scene: impl Fn(SocketAddr)) {
    let server = TestServer::builder().config("enable-debug-command", "yes").start();
    scene(server.addr());
    server.check_invariants();
    match on_path("redis-server") {
        Some(program) => scene(Server::redis(&program).unwrap().addr),
        None => println!("SKIPPED: no redis-server on the PATH, the scene was not held against one"),
    }
}

/// A client that inspects the others and is never evicted.
struct Control(Wire);

impl Control {
    fn connect(addr: SocketAddr) -> Control {
        let mut control = Control(Wire::connect(addr).unwrap());
        control.ok("CLIENT NO-EVICT ON");
        control
    }

    fn call(&mut self, words: &str) -> String {
        let args: Vec<&str> = words.split(' ').collect();
        String::from_utf8_lossy(&self.0.call(&args).unwrap().raw).into_owned()
    }

    #[track_caller]
    fn ok(&mut self, words: &str) {
        assert_eq!(self.call(words), "+OK\r\n", "{words}");
    }

    /// A number from `CLIENT LIST` for each client of this name.
    fn field(&mut self, name: &str, field: &str) -> Vec<u64> {
        let list = self.call("CLIENT LIST");
        let lines = list.lines().filter(|line| line.contains(&format!(" name={name} ")));
        lines.map(|line| line.split(&format!(" {field}=")).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()).collect()
    }

    fn evicted(&mut self) -> u64 {
        let info = self.call("INFO stats");
        info.lines().find_map(|line| line.strip_prefix("evicted_clients:")).unwrap().parse().unwrap()
    }
}

fn named(addr: SocketAddr, name: &str) -> Wire {
    let mut wire = Wire::connect(addr).unwrap();
    assert_eq!(wire.call(&["CLIENT", "SETNAME", name]).unwrap().raw, b"+OK\r\n");
    wire
}

/// A client with an incomplete request, whose bytes are kept in its query buffer.
fn half_a_request(addr: SocketAddr, name: &str, bytes: usize) -> Wire {
    let mut wire = named(addr, name);
    let mut request = format!("*2\r\n$4\r\nECHO\r\n${bytes}\r\n").into_bytes();
    request.resize(request.len() + bytes, b'v');
    // The client may be evicted before everything is sent.
    let _ = wire.send_raw(&request);
    wire
}

#[test]
fn the_directive_takes_bytes_and_percent() {
    on_both(|addr| {
        let mut control = Control::connect(addr);
        let refused = "-ERR CONFIG SET failed (possibly related to argument 'maxmemory-clients') - ";
        for (value, shown) in [
            ("5%", "5%"),
            ("101%", "percentage argument must be less or equal to 100"),
            ("100%", "100%"),
            ("0%", "0"),
            ("-1%", "argument must be a memory or percent value"),
            ("-5", "argument must be a memory or percent value"),
            ("1mb", "1048576"),
            ("1zz", "argument must be a memory or percent value"),
            ("%", "argument must be a memory or percent value"),
            ("00%", "argument must be a memory or percent value"),
            ("0", "0"),
        ] {
            let reply = control.call(&format!("CONFIG SET maxmemory-clients {value}"));
            if shown.contains(' ') {
                assert_eq!(reply, format!("{refused}{shown}\r\n"), "{value}");
            } else {
                assert_eq!(reply, "+OK\r\n", "{value}");
                let got = control.call("CONFIG GET maxmemory-clients");
                assert!(got.ends_with(&format!("\r\n{shown}\r\n")), "{value}: {got}");
            }
        }
    });
}

#[test]
fn whoever_takes_up_too_much_alone_is_closed_whatever_it_is() {
    type Attack = fn(&mut Wire, u64) -> std::io::Result<()>;
    let attacks: [(&str, u64, Attack); 8] = [
        ("a request", 3_000_000, |wire, limit| {
            wire.call(&[&b"MSET"[..], b"k", b"v", b"l", &vec![b'v'; limit as usize]]).map(drop)
        }),
        ("half a request", 3_000_000, |wire, limit| {
            wire.send_raw(format!("*1\r\n${}\r\n{}", limit + 1, "v".repeat(limit as usize)).as_bytes())?;
            wire.reply().map(drop)
        }),
        ("a transaction", 3_000_000, |wire, limit| {
            wire.call(&["MULTI"])?;
            (0..5).try_for_each(|_| wire.call(&["SET", "k", &"v".repeat(limit as usize / 4)]).map(drop))
        }),
        ("watched keys", 200_000, |wire, limit| (0..limit).try_for_each(|n| wire.call(&["WATCH", &n.to_string()]).map(drop))),
        ("patterns", 200_000, |wire, limit| (0..limit).try_for_each(|n| wire.call(&["PSUBSCRIBE", &n.to_string()]).map(drop))),
        ("channels", 200_000, |wire, limit| (0..limit).try_for_each(|n| wire.call(&["SUBSCRIBE", &n.to_string()]).map(drop))),
        ("shard channels", 200_000, |wire, limit| {
            (0..limit).try_for_each(|n| wire.call(&["SSUBSCRIBE", &n.to_string()]).map(drop))
        }),
        ("prefixes", 200_000, |wire, limit| {
            wire.call(&["HELLO", "3"])?;
            (0..limit).try_for_each(|n| {
                wire.call(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", &format!("a{n:09}"), "PREFIX", &format!("b{n:09}")])
                    .map(drop)
            })
        }),
    ];
    on_both(|addr| {
        let mut control = Control::connect(addr);
        let mut evicted = 0;
        for (what, limit, attack) in attacks {
            control.ok(&format!("CONFIG SET maxmemory-clients {limit}"));
            let mut wire = named(addr, "attacker");
            assert!(attack(&mut wire, limit).is_err(), "{what}: it goes on and on");
            until(what, || control.field("attacker", "tot-mem").is_empty());
            evicted += 1;
            assert_eq!(control.evicted(), evicted, "{what}");
        }
        // Less than the limit.
        control.ok("CONFIG SET maxmemory-clients 3000000");
        let mut wire = named(addr, "modest");
        for request in [&["MULTI"][..], &["SET", "k", &"v".repeat(700_000)], &["SET", "k", &"v".repeat(700_000)], &["EXEC"]] {
            wire.call(request).unwrap();
        }
        assert_eq!(control.evicted(), evicted);
    });
}

#[test]
fn a_percentage_follows_maxmemory() {
    on_both(|addr| {
        let mut control = Control::connect(addr);
        control.ok("CONFIG SET maxmemory 12mb");
        control.ok("CONFIG SET maxmemory-clients 7%");
        let limit = (12 << 20) * 7 / 100;
        let half = half_a_request(addr, "half", limit / 2);
        until("it to be read", || control.field("half", "tot-mem").first().is_some_and(|&bytes| bytes as usize >= limit / 2));
        drop(half);
        until("it to be gone", || control.field("half", "tot-mem").is_empty());
        assert_eq!(control.evicted(), 0);
        let mut whole = half_a_request(addr, "whole", limit);
        assert!(whole.reply().is_err());
        assert_eq!(control.evicted(), 1);
    });
}

#[test]
fn unread_replies_and_messages_for_others_count() {
    on_both(|addr| {
        let mut control = Control::connect(addr);
        control.ok("CONFIG SET maxmemory-clients 3000000");
        control.0.call(&["SETRANGE", "k", "200000", "v"]).unwrap();
        let mut deaf = named(addr, "deaf");
        // The socket buffers take some of it.
        let mut request = vec!["MGET"];
        request.resize(100, "k");
        deaf.queue(&request);
        deaf.flush().unwrap();
        until("it to be closed", || control.field("deaf", "tot-mem").is_empty());
        assert_eq!(control.evicted(), 1);
        // Messages that one client causes for another count for the latter.
        let mut told = named(addr, "told");
        told.call(&["SUBSCRIBE", "__redis__:invalidate"]).unwrap();
        let mut tracker = named(addr, "tracker");
        let id = control.call("CLIENT LIST");
        let id = id.lines().find(|line| line.contains(" name=told ")).unwrap().split(['=', ' ']).nth(1).unwrap().to_owned();
        tracker.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id, "BCAST"]).unwrap();
        let key = "k".repeat(200_000);
        let script = format!("redis.call('incr', '{key}')");
        let end = Instant::now() + Duration::from_secs(20);
        while !control.field("told", "tot-mem").is_empty() {
            assert!(Instant::now() < end, "it is never closed");
            tracker.call(&["EVAL", &script, "0"]).unwrap();
        }
        assert_eq!((control.evicted(), control.field("tracker", "db").len()), (2, 1));
    });
}

#[test]
fn one_that_is_not_to_be_closed_is_closed_when_it_may_be() {
    on_both(|addr| {
        let mut control = Control::connect(addr);
        control.ok("CONFIG SET maxmemory-clients 200000");
        let mut large = named(addr, "large");
        large.call(&["HELLO", "3"]).unwrap();
        large.call(&["CLIENT", "NO-EVICT", "ON"]).unwrap();
        let names: Vec<String> = (0..20_000).map(|n| format!("channel:{n}")).collect();
        large.queue(&[&["SUBSCRIBE".to_owned()], &names[..]].concat());
        large.flush().unwrap();
        for _ in names {
            large.reply().unwrap();
        }
        control.ok("SET l 1");
        assert!(control.field("large", "tot-mem")[0] > 200_000);
        assert_eq!(control.evicted(), 0);
        large.call(&["CLIENT", "NO-EVICT", "OFF"]).unwrap();
        until("it to be closed", || control.field("large", "tot-mem").is_empty());
    });
}

#[test]
fn the_largest_are_closed_first_and_the_others_stay() {
    on_both(|addr| {
        let mut control = Control::connect(addr);
        let sizes = [128 << 10, 1 << 20, 3 << 20];
        let mut kept = Vec::new();
        for (name, size) in ["small", "middle", "large"].into_iter().zip(sizes) {
            kept.extend((0..3).map(|_| half_a_request(addr, name, size)));
            until("them to be read", || {
                control.field(name, "tot-mem").iter().filter(|&&bytes| bytes as usize >= size).count() == 3
            });
        }
        let present = |control: &mut Control| ["small", "middle", "large"].map(|name| control.field(name, "db").len());
        assert_eq!(present(&mut control), [3, 3, 3]);
        // Room for all smaller clients, but not for one more.
        let bytes = |control: &mut Control, name: &str| control.field(name, "tot-mem").iter().sum::<u64>();
        let (small, middle) = (bytes(&mut control, "small"), bytes(&mut control, "middle"));
        control.ok(&format!("CONFIG SET maxmemory-clients {}", small + middle + (100 << 10)));
        until("the large ones to be gone", || present(&mut control) == [3, 3, 0]);
        control.ok(&format!("CONFIG SET maxmemory-clients {}", small + middle / 3 + (100 << 10)));
        until("two of the others to be gone", || present(&mut control) == [3, 1, 0]);
        control.ok(&format!("CONFIG SET maxmemory-clients {}", small + (100 << 10)));
        until("the last of them to be gone", || present(&mut control) == [3, 0, 0]);
        assert_eq!(control.evicted(), 6);
        control.ok("CONFIG SET maxmemory-clients 0");
        assert_eq!(present(&mut control), [3, 0, 0]);
    });
}

#[test]
fn whoever_goes_for_its_output_makes_room_for_the_rest() {
    on_both(|addr| {
        let mut control = Control::connect(addr);
        control.ok("CONFIG SET maxmemory-clients 10mb");
        let limit = control.0.call(&["CONFIG", "SET", "client-output-buffer-limit", "normal 3mb 0 0"]).unwrap();
        assert_eq!(limit.raw, b"+OK\r\n");
        control.0.call(&["SETRANGE", "k", "4194304", "v"]).unwrap();
        let size = (10 << 20) - (5 << 20);
        let _kept = half_a_request(addr, "kept", size);
        until("it to be read", || control.field("kept", "tot-mem").first().is_some_and(|&bytes| bytes as usize >= size));
        let mut greedy: Vec<Wire> = (0..4).map(|_| named(addr, "greedy")).collect();
        for wire in &mut greedy {
            wire.queue(&["GET", "k"]);
            wire.flush().unwrap();
        }
        until("the greedy to be gone", || control.field("greedy", "db").is_empty());
        assert_eq!((control.field("kept", "db").len(), control.evicted()), (1, 0));
    });
}
