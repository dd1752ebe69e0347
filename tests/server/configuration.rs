//! Configuration of Redis and Valkey: every name that they know is known, their files still start, and what would take a protection
//! away is refused, wherever it is said.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::servers::{Server, on_path};
use crate::common::talk::call;
use crate::common::wire::Wire;
use crate::program::Folder;
use portcullis::engine::config::Directive;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portcullis");

/// The lines that the `redis.conf` and `valkey.conf` of all versions set, as they are shipped.
const SHIPPED: &str = r#"
bind 127.0.0.1 -::1
protected-mode yes
port 6379
tcp-backlog 511
timeout 0
tcp-keepalive 300
daemonize no
pidfile /var/run/redis_6379.pid
loglevel notice
logfile ""
databases 16
always-show-logo no
set-proc-title yes
proc-title-template "{title} {listen-addr} {server-mode}"
stop-writes-on-bgsave-error yes
rdbcompression yes
rdbchecksum yes
dbfilename dump.rdb
rdb-del-sync-files no
dir ./
replica-serve-stale-data yes
replica-read-only yes
repl-diskless-sync yes
repl-diskless-sync-delay 5
repl-diskless-sync-max-replicas 0
repl-diskless-load disabled
repl-disable-tcp-nodelay no
replica-priority 100
acllog-max-len 128
lazyfree-lazy-eviction no
lazyfree-lazy-expire no
lazyfree-lazy-server-del no
replica-lazy-flush no
lazyfree-lazy-user-del no
lazyfree-lazy-user-flush no
oom-score-adj no
oom-score-adj-values 0 200 800
disable-thp yes
appendonly no
appendfilename "appendonly.aof"
appenddirname "appendonlydir"
appendfsync everysec
no-appendfsync-on-rewrite no
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
aof-load-truncated yes
aof-use-rdb-preamble yes
aof-timestamp-enabled no
slowlog-log-slower-than 10000
slowlog-max-len 128
latency-monitor-threshold 0
notify-keyspace-events ""
hash-max-listpack-entries 512
hash-max-listpack-value 64
list-max-listpack-size -2
list-compress-depth 0
set-max-intset-entries 512
zset-max-listpack-entries 128
zset-max-listpack-value 64
hll-sparse-max-bytes 3000
stream-node-max-bytes 4096
stream-node-max-entries 100
activerehashing yes
client-output-buffer-limit normal 0 0 0
client-output-buffer-limit replica 256mb 64mb 60
client-output-buffer-limit pubsub 32mb 8mb 60
hz 10
dynamic-hz yes
aof-rewrite-incremental-fsync yes
rdb-save-incremental-fsync yes
jemalloc-bg-thread yes
"#;

/// What the files of later versions set besides.
const LATER: [(&str, &str); 3] = [
    ("Redis 7.0", ""),
    ("Redis 7.2 to 8.2", "locale-collate \"\"\nset-max-listpack-entries 128\nset-max-listpack-value 64\n"),
    (
        "Valkey",
        "locale-collate \"\"\nset-max-listpack-entries 128\nset-max-listpack-value 64\npidfile /var/run/valkey_6379.pid\n\
         hide-user-data-from-log yes\ndual-channel-replication-enabled no\nlazyfree-lazy-eviction yes\nlazyfree-lazy-expire yes\n\
         lazyfree-lazy-server-del yes\nlazyfree-lazy-user-del yes\nlazyfree-lazy-user-flush yes\nreplica-lazy-flush yes\n",
    ),
];

/// Writes a file in a folder. Returns its path.
fn written(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.file(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs `serve` with these arguments, which it has to refuse. Returns what it says.
#[track_caller]
fn refusal(args: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    let output = command.arg("serve").args(args).args(["--port", "0", "--end-with-stdin"]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{args:?} is not refused: {text}");
    text
}

#[test]
fn the_files_of_redis_and_valkey_start_as_they_are_shipped() {
    let folder = Folder::new("shipped");
    for (version, later) in LATER {
        let text = format!("{SHIPPED}{later}");
        let file = written(&folder, "shipped.conf", &text);
        let server = Server::portcullis_with(Path::new(PROGRAM), &[&file]).unwrap_or_else(|error| panic!("{version}: {error}"));
        let mut wire = Wire::connect(server.addr).unwrap();
        for name in text.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()) {
            assert!(call(&mut wire, &format!("CONFIG GET {name}")).starts_with("*2 "), "{version}: {name}");
        }
        assert_eq!(call(&mut wire, "CONFIG REWRITE"), "+OK");
        drop((wire, server));
        Server::portcullis_with(Path::new(PROGRAM), &[&file]).unwrap_or_else(|error| panic!("{version}, rewritten: {error}"));
    }
}

#[test]
fn every_name_of_redis_and_valkey_is_known() {
    const VERSIONS: [&str; 5] = ["Redis 7.0", "Redis 7.4", "Redis 8.2", "Valkey 8", "Valkey 9"];
    let mut counts = [0; VERSIONS.len()];
    let mut unknown = Vec::new();
    for line in include_str!("directives.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, letters) = line.split_once(' ').unwrap();
        let versions = letters.bytes().map(|letter| usize::from(letter - b'a'));
        versions.clone().for_each(|at| counts[at] += 1);
        if !["include", "user"].contains(&name) && Directive::find(name.as_bytes()).is_none() {
            unknown.push(format!("{name} of {}", versions.map(|at| VERSIONS[at]).collect::<Vec<_>>().join(", ")));
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(counts.iter().all(|&count| count > 180), "{counts:?}");
}

/// Every directive that an installed server shows is known; those of the table of what Portcullis does not have have the same default.
#[test]
fn what_installed_servers_show_is_known() {
    let named =
        ["PORTCULLIS_REDIS8", "REDIS_SERVER", "VALKEY_SERVER"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let programs: Vec<PathBuf> = ["redis-server", "valkey-server"].into_iter().filter_map(on_path).chain(named).collect();
    if programs.is_empty() {
        assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "there is no redis-server on the PATH");
        println!("SKIPPED: there is no redis-server on the PATH");
    }
    for program in programs {
        let server = Server::redis(&program).unwrap();
        let reply = Wire::connect(server.addr).unwrap().call(&["CONFIG", "GET", "*"]).unwrap().frame;
        let words: Vec<String> =
            reply.elements().unwrap().iter().map(|word| String::from_utf8_lossy(word.text().unwrap()).into_owned()).collect();
        assert!(words.len() > 300, "{} words", words.len());
        for pair in words.chunks(2) {
            let (name, value) = (&pair[0], &pair[1]);
            let Some((directive, _)) = Directive::find(name.as_bytes()) else {
                panic!("{}: {name} is unknown", program.display())
            };
            // The harness sets these.
            if directive.fate().is_some() && !["daemonize", "crash-memcheck-enabled"].contains(&name.as_str()) {
                let ours = String::from_utf8(directive.get(&Default::default())).unwrap();
                assert_eq!(ours, *value, "{}: the default of {name}", program.display());
            }
        }
    }
}

#[test]
fn a_typing_error_or_a_missing_protection_ends_the_start() {
    let folder = Folder::new("typing");
    for (name, value, told) in [
        ("cluster-secrets", "x", "cluster-secret"),
        ("hide-user-data-from-logs", "yes", "hide-user-data-from-log"),
        ("requirepas", "x", "requirepass"),
        ("min-replicas-to-writ", "1", "min-replicas-to-write"),
        ("min-replicas-to-write", "1", "no replicas to wait for"),
        ("bind-source-addr", "127.0.0.1", "the address that the system chooses"),
        ("tls-auth-clients-user", "CN", "A certificate does not choose the user"),
        ("unixsocketgroup", "nobody", "the group of the process"),
        ("socket-mark-id", "7", "get no mark"),
        ("syslog-enabled", "yes", "not to syslog"),
        ("cluster-replica-no-failover", "yes", "may become its leader"),
    ] {
        let line = format!("{name} {value}\n");
        let included = written(&folder, "included.conf", &line);
        let file = written(&folder, "file.conf", &format!("timeout 0\ninclude {included}\n"));
        for args in [&[&included[..]][..], &[&file], &[&format!("--{name}"), value], &[&format!("--{name}={value}")]] {
            let text = refusal(args);
            assert!(text.contains(told) && text.contains(name), "{args:?}: {text}");
        }
    }
}

#[test]
fn a_node_without_its_number_does_not_run_alone() {
    let text = refusal(&["--peers", "1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3"]);
    assert!(text.contains("peers: node-id has to say which of them this node is"), "{text}");
}
