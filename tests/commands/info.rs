//! INFO has the fields that exporters need, and its counters are right.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::servers::{self, Server};
use crate::common::wire::Wire;

/// Fields that redis-server 7.0, the version of Debian 12, does not have yet.
const SINCE_7_2: [&str; 22] = [
    "clients:pubsub_clients",
    "clients:watching_clients",
    "clients:total_watched_keys",
    "clients:total_blocking_keys",
    "clients:total_blocking_keys_on_nokey",
    "memory:allocator_muzzy",
    "memory:mem_overhead_db_hashtable_rehashing",
    "stats:acl_access_denied_auth",
    "stats:acl_access_denied_channel",
    "stats:acl_access_denied_cmd",
    "stats:acl_access_denied_key",
    "stats:client_output_buffer_limit_disconnections",
    "stats:client_query_buffer_limit_disconnections",
    "stats:eventloop_cycles",
    "stats:eventloop_duration_cmd_sum",
    "stats:eventloop_duration_sum",
    "stats:evicted_scripts",
    "stats:expired_subkeys",
    "stats:instantaneous_eventloop_cycles_per_sec",
    "stats:instantaneous_eventloop_duration_usec",
    "server:listener0",
    "server:multiplexing_api",
];

/// The lines of INFO, as `section:field` and value.
fn fields(wire: &mut Wire, section: &str) -> Vec<(String, String)> {
    let reply = wire.call(&["INFO", section]).unwrap();
    let (mut heading, mut fields) = (String::new(), Vec::new());
    for line in String::from_utf8(reply.frame.text().unwrap().to_vec()).unwrap().lines() {
        if let Some(name) = line.strip_prefix("# ") {
            heading = name.to_lowercase();
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((format!("{heading}:{name}"), value.to_owned()));
        }
    }
    fields
}

fn number(wire: &mut Wire, name: &str) -> u64 {
    let (section, _) = name.split_once(':').unwrap();
    let found = fields(wire, section).into_iter().find(|(field, _)| field == name).unwrap_or_else(|| panic!("no field {name}"));
    found.1.parse().unwrap_or_else(|_| panic!("{name} is {}", found.1))
}

/// The names of fields, without those of single commands, errors and databases.
fn names(wire: &mut Wire) -> BTreeSet<String> {
    const OF_EACH: [&str; 4] = ["commandstats:", "errorstats:", "latencystats:", "keyspace:"];
    let all = fields(wire, "everything").into_iter().map(|(name, _)| name);
    all.filter(|name| !OF_EACH.iter().any(|section| name.starts_with(section))).collect()
}

#[test]
fn it_has_the_fields_of_redis_server() {
    let server = TestServer::start();
    let ours = names(&mut Wire::connect(server.addr()).unwrap());
    for name in SINCE_7_2 {
        assert!(ours.contains(name), "{name} is missing");
    }
    let Some(program) = servers::on_path("redis-server") else {
        assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "there is no redis-server on the PATH");
        println!("SKIPPED: there is no redis-server on the PATH");
        return;
    };
    let redis = Server::redis(&program).unwrap();
    let theirs = names(&mut Wire::connect(redis.addr).unwrap());
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "not shown: {missing:?}");
    let later: BTreeSet<String> = SINCE_7_2.map(str::to_owned).into();
    let ours_alone = |name: &&String| ["portcullis:", "locks:"].iter().any(|section| name.starts_with(section));
    let own: Vec<&String> = ours.difference(&theirs).filter(|name| !ours_alone(name) && !later.contains(*name)).collect();
    assert!(own.is_empty(), "fields of our own belong to the sections portcullis and locks: {own:?}");
}

#[test]
fn reads_writes_and_rounds_are_counted() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let before = ["stats:total_reads_processed", "stats:total_writes_processed"].map(|name| number(&mut wire, name));
    let rounds = number(&mut wire, "stats:eventloop_cycles");
    for _ in 0..10 {
        assert_eq!(wire.call(&["SET", "k", "v"]).unwrap().raw, b"+OK\r\n");
    }
    // Each request is one read and one write. A reply counts when it is written, so the reply with the counters is not included.
    assert_eq!(number(&mut wire, "stats:total_reads_processed"), before[0] + 13);
    assert_eq!(number(&mut wire, "stats:total_writes_processed"), before[1] + 13);
    assert!(number(&mut wire, "stats:eventloop_cycles") >= rounds + 10);
    wire.call(&["EVAL", "for i = 1, 300000 do end", "0"]).unwrap();
    let (in_commands, in_all) =
        (number(&mut wire, "stats:eventloop_duration_cmd_sum"), number(&mut wire, "stats:eventloop_duration_sum"));
    assert!(in_commands >= 100 && in_all >= in_commands, "{in_commands} of {in_all} us");
    assert_eq!(wire.call(&["CONFIG", "RESETSTAT"]).unwrap().raw, b"+OK\r\n");
    assert!(number(&mut wire, "stats:eventloop_cycles") < rounds + 10);
    assert_eq!(number(&mut wire, "stats:total_reads_processed"), 2);
    let spent = fields(&mut wire, "cpu");
    let seconds = |names: [&str; 2]| -> f64 {
        names.iter().map(|name| spent.iter().find(|(field, _)| field == name).unwrap().1.parse::<f64>().unwrap()).sum()
    };
    let by_main = seconds(["cpu:used_cpu_sys_main_thread", "cpu:used_cpu_user_main_thread"]);
    let by_all = seconds(["cpu:used_cpu_sys", "cpu:used_cpu_user"]);
    assert!(by_main > 0.0 && by_main <= by_all, "{by_main} of {by_all}");
}

#[test]
fn what_is_freed_in_pieces_is_counted() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let mut args = vec!["SADD".to_owned(), "large".to_owned()];
    args.extend((0..5000).map(|n| format!("member:{n}")));
    wire.call(&args).unwrap();
    wire.call(&["SET", "small", "v"]).unwrap();
    // In one turn, so that no memory is freed between the two commands.
    wire.send_raw(b"DEL large small\r\nINFO memory\r\n").unwrap();
    assert_eq!(wire.reply().unwrap().raw, b":2\r\n");
    let shown = String::from_utf8(wire.reply().unwrap().raw).unwrap();
    assert!(shown.contains("\nlazyfree_pending_objects:1\r\nlazyfreed_objects:0\r\n"), "{shown}");
    server.clock().advance(Duration::from_millis(100));
    assert_eq!(number(&mut wire, "memory:lazyfree_pending_objects"), 0);
    assert_eq!(number(&mut wire, "memory:lazyfreed_objects"), 1);
    wire.call(&["MSET", "a", "1", "b", "2"]).unwrap();
    wire.send_raw(b"FLUSHALL\r\nINFO memory\r\n").unwrap();
    assert_eq!(wire.reply().unwrap().raw, b"+OK\r\n");
    assert!(String::from_utf8(wire.reply().unwrap().raw).unwrap().contains("\nlazyfree_pending_objects:2\r\n"));
    server.clock().advance(Duration::from_millis(100));
    assert_eq!(number(&mut wire, "memory:lazyfreed_objects"), 3);
    wire.call(&["CONFIG", "RESETSTAT"]).unwrap();
    assert_eq!(number(&mut wire, "memory:lazyfreed_objects"), 0);
}

#[test]
fn time_above_maxmemory_is_counted() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let (total, current) = ("stats:total_eviction_exceeded_time", "stats:current_eviction_exceeded_time");
    wire.call(&["SET", "k", "v"]).unwrap();
    wire.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    assert!(wire.call(&["SET", "k", "w"]).unwrap().frame.is_error("OOM"));
    server.clock().advance(Duration::from_millis(1500));
    assert_eq!((number(&mut wire, total), number(&mut wire, current)), (1500, 1500));
    wire.call(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    server.clock().advance(Duration::from_millis(500));
    assert_eq!(number(&mut wire, current), 0);
    let all = number(&mut wire, total);
    assert!((1500..=1501).contains(&all), "{all}");
    wire.call(&["CONFIG", "RESETSTAT"]).unwrap();
    assert_eq!(number(&mut wire, total), 0);
}

#[test]
fn clients_that_were_closed_are_counted_by_what_they_exceeded() {
    let server = TestServer::builder().config("client-query-buffer-limit", "1mb").start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let mut large = Wire::connect(server.addr()).unwrap();
    let chunk = vec![b'x'; 64 << 10];
    large.send_raw(b"*2\r\n$3\r\nGET\r\n$4000000\r\n").unwrap();
    while large.send_raw(&chunk).is_ok() {}
    wire.call(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0"]).unwrap();
    wire.call(&["SETRANGE", "k", "1500000", "v"]).unwrap();
    let mut deaf = Wire::connect(server.addr()).unwrap();
    deaf.send_raw(b"GET k\r\n").unwrap();
    let output = "stats:client_output_buffer_limit_disconnections";
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while number(&mut wire, output) == 0 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(number(&mut wire, output), 1);
    assert_eq!(number(&mut wire, "stats:client_query_buffer_limit_disconnections"), 1);
    assert_eq!(number(&mut wire, "portcullis:client_limit_disconnections"), 2);
}

/// A number from the reply to `LATENCY TURNS`.
fn turns(wire: &mut Wire, name: &str) -> i64 {
    let reply = wire.call(&["LATENCY", "TURNS"]).unwrap();
    let elements = reply.frame.elements().unwrap();
    let at = elements.iter().position(|element| element.text() == Some(name.as_bytes())).unwrap();
    elements[at + 1].integer().unwrap()
}

#[test]
fn turns_of_the_executor_are_timed_and_the_longest_is_named() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    wire.call(&["CONFIG", "RESETSTAT"]).unwrap();
    let before = turns(&mut wire, "turns");
    for _ in 0..20 {
        wire.call(&["PING"]).unwrap();
    }
    let after = turns(&mut wire, "turns");
    assert!((21..40).contains(&(after - before)), "a request at a time is a turn each: {before} to {after}");
    wire.call(&["DEBUG", "SLEEP", "0.05"]).unwrap();
    assert!(turns(&mut wire, "over_1_millisecond") >= 1);
    // On a busy machine another turn may be longer.
    let longest = turns(&mut wire, "longest_usec");
    assert!(longest >= 50_000, "{longest}");
    let shown = fields(&mut wire, "portcullis");
    let value = |name: &str| shown.iter().find(|(field, _)| field.ends_with(name)).map(|(_, value)| value.as_str()).unwrap();
    if longest < 100_000 {
        assert_eq!((value(":turn_longest_task"), value(":turn_longest_command")), ("client", "debug"));
    }
    // The thread slept and did not use the processor.
    let worked = turns(&mut wire, "longest_processor_usec");
    assert!(worked <= longest - 40_000, "{worked} of {longest}");
    // Each figure is rounded down.
    assert!(turns(&mut wire, "without_processor_usec") >= longest - worked - 1);
    let (_, most) = value(":turn_histogram_usec").rsplit_once('=').unwrap();
    assert!(most.parse::<i64>().unwrap() >= after, "{most} turns of {after}");
}

#[test]
fn a_long_turn_is_named_after_its_client_not_after_whom_it_wrote_to() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let mut listening = Wire::connect(server.addr()).unwrap();
    listening.call(&["SUBSCRIBE", "news"]).unwrap();
    wire.call(&["CONFIG", "RESETSTAT"]).unwrap();
    wire.send_raw(b"DEBUG SLEEP 0.05\r\nPUBLISH news x\r\n").unwrap();
    listening.raw_until(b"x\r\n").unwrap();
    assert_eq!([wire.reply().unwrap().raw, wire.reply().unwrap().raw], [b"+OK\r\n".to_vec(), b":1\r\n".to_vec()]);
    let longest = turns(&mut wire, "longest_usec");
    assert!(longest >= 50_000, "{longest}");
    let shown = fields(&mut wire, "portcullis");
    let command = shown.iter().find(|(field, _)| field.ends_with(":turn_longest_command")).map(|(_, value)| value.as_str());
    if longest < 100_000 {
        assert_eq!(command, Some("publish"));
    }
}

#[test]
fn the_event_loop_is_busy_for_at_least_as_long_as_its_commands() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    // The executor does not wait between the first and the last of these requests.
    wire.send_raw(b"DEBUG SLEEP 0.05\r\nINFO stats\r\n").unwrap();
    wire.reply().unwrap();
    let shown = String::from_utf8(wire.reply().unwrap().raw).unwrap();
    let busy = shown.lines().find_map(|line| line.strip_prefix("eventloop_duration_sum:")).unwrap();
    assert!(busy.parse::<u64>().unwrap() >= 50_000, "{busy}");
}

#[test]
fn turns_are_not_timed_by_a_clock_that_stands_still() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    wire.call(&["PING"]).unwrap();
    server.clock().advance(Duration::from_secs(3600));
    assert_eq!(turns(&mut wire, "turns"), 0);
}

#[test]
fn a_large_reply_is_written_a_few_at_a_time() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    wire.call(&["SETRANGE", "k", "16777215", "x"]).unwrap();
    let before = turns(&mut wire, "turns");
    assert_eq!(wire.call(&["GET", "k"]).unwrap().frame.text().unwrap().len(), 16 << 20);
    let took = turns(&mut wire, "turns") - before;
    assert!(took >= 64, "16 MiB were written in {took} turns");
}

#[test]
fn keys_of_a_large_database_come_as_one_reply_while_others_are_served() {
    let server = TestServer::start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let mut other = Wire::connect(server.addr()).unwrap();
    for first in (0..100_000).step_by(1000) {
        let mut request = String::new();
        (first..first + 1000).for_each(|n| request += &format!("SET key:{n} v\r\n"));
        wire.send_raw(request.as_bytes()).unwrap();
        (0..1000).for_each(|_| assert_eq!(wire.reply().unwrap().raw, b"+OK\r\n"));
    }
    // Later requests are answered after it, in order.
    wire.send_raw(b"KEYS *\r\nKEYS key:9999?\r\nPING\r\n").unwrap();
    assert_eq!(other.call(&["PING"]).unwrap().raw, b"+PONG\r\n");
    assert_eq!(wire.reply().unwrap().frame.elements().unwrap().len(), 100_000);
    assert_eq!(wire.reply().unwrap().frame.elements().unwrap().len(), 10);
    assert_eq!(wire.reply().unwrap().raw, b"+PONG\r\n");
    let stats = fields(&mut wire, "commandstats");
    let calls = stats.iter().find(|(name, _)| name == "commandstats:cmdstat_keys").map(|(_, value)| value.as_str()).unwrap();
    assert!(calls.starts_with("calls=2,"), "{calls}");
    let processed = number(&mut wire, "stats:total_commands_processed");
    assert!((100_000..100_010).contains(&processed), "{processed}");
    // A client that leaves in the middle of the reply leaves nothing behind.
    wire.send_raw(b"KEYS *\r\n").unwrap();
    drop(wire);
    assert_eq!(other.call(&["PING"]).unwrap().raw, b"+PONG\r\n");
    // A frozen clock does not hold it up.
    let mut wire = Wire::connect(server.addr()).unwrap();
    server.clock().freeze();
    assert_eq!(wire.call(&["KEYS", "*"]).unwrap().frame.elements().unwrap().len(), 100_000);
}
