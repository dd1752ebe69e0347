//! The table of directives that Redis (7.0 to 8.2) or Valkey has and Portcullis does not.
//!
//! A name that is in neither table is refused, so that a typing error switches nothing off. A name in this table is refused if somebody
//! may rely on it for a protection or a service. The other names can be set, and change nothing.
//! Defaults and bounds are those of Redis. The guide shows this table.

use super::kind::Kind;
use super::{Directive, Place, Section};

/// What follows when a directive of this table is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// What it asks for is true anyway.
    Holds,
    /// No client and no operator relies on it.
    Harmless,
    /// It is refused, unless it has one of these values, which ask for nothing that is not true.
    Refused(&'static [&'static str]),
}

impl Fate {
    /// Checks a value. `why` is the row's help text.
    pub(super) fn admit(self, words: &[&[u8]], why: &str) -> Result<(), String> {
        let Fate::Refused(admitted) = self else { return Ok(()) };
        let value = words.join(&b' ');
        if admitted.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(&value)) {
            return Ok(());
        }
        let admitted: Vec<&str> = admitted.iter().copied().filter(|known| !known.is_empty()).collect();
        let reason = why.trim_end_matches('.');
        Err(match &admitted[..] {
            [] => reason.to_owned(),
            known => format!("{reason}; it can only be {}", known.join(" or ")),
        })
    }
}

macro_rules! foreign {
    ($($fate:expr, $why:literal => {
        $($section:ident $name:literal $(/ $alias:literal)? = $default:literal, $kind:expr, $fixed:expr;)*
    })*) => {
        /// The rows. Those of one reason follow each other.
        pub const FOREIGN: &[Directive] = &[$($(
            Directive {
                name: $name,
                alias: foreign!(@alias $($alias)?),
                kind: $kind,
                fixed: $fixed,
                protected: false,
                effect: None,
                section: Section::$section,
                help: $why,
                place: Place::Foreign { default: $default, fate: $fate },
            },
        )*)*];
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
}

use Fate::{Harmless, Holds, Refused};
use Kind::{Bool, Choice, Integer, Memory, Secret, Text, Words};

const INT: i128 = i32::MAX as i128;
const LONG: i128 = i64::MAX as i128;
const NO_YES_LOCAL: Kind = Choice(&["no", "yes", "local"]);
const PORT: Kind = Integer(0, 65535);
const NUMBER: Kind = Integer(0, INT);
const LARGE: Kind = Integer(0, LONG);
const BYTES: Kind = Memory(0, LONG);
/// Whether `CONFIG SET` cannot change a directive.
const FIXED: bool = true;
const LIVE: bool = false;

foreign! {
    Refused(&["0"]), "A server alone has no replicas to wait for, and of nodes that replicate a majority always has each write." => {
        Compatibility "min-replicas-to-write" / "min-slaves-to-write" = "0", NUMBER, LIVE;
    }
    Refused(&[""]), "Connections to other nodes leave from the address that the system chooses." => {
        Compatibility "bind-source-addr" = "", Text, LIVE;
    }
    Refused(&["0"]), "Sockets get no mark, so rules of a firewall would not apply to them." => {
        Compatibility "socket-mark-id" = "0", Integer(0, u32::MAX as i128), FIXED;
    }
    Refused(&[""]), "The Unix socket belongs to the group of the process." => {
        Compatibility "unixsocketgroup" = "", Text, FIXED;
    }
    Refused(&["off"]), "A certificate does not choose the user; clients log in with AUTH." => {
        Compatibility "tls-auth-clients-user" = "off", Text, LIVE;
    }
    Refused(&[""]), "The ciphers of TLSv1.2 cannot be configured: all offered ones are secure." => {
        Compatibility "tls-ciphers" = "", Text, LIVE;
    }
    Refused(&[""]), "The ciphers of TLSv1.3 cannot be configured: all offered ones are secure." => {
        Compatibility "tls-ciphersuites" = "", Text, LIVE;
    }
    Refused(&[""]), "Encrypted private keys are not supported; decrypt the key file and make it readable only for the server." => {
        Compatibility "tls-key-file-pass" = "", Secret, LIVE;
    }
    Refused(&["0"]), "Certificates are read again only by CONFIG SET tls-cert-file." => {
        Compatibility "tls-auto-reload-interval" = "0", NUMBER, LIVE;
    }
    Refused(&["no"]), "The log goes to standard error or to logfile, not to syslog." => {
        Compatibility "syslog-enabled" = "no", Bool, FIXED;
    }
    Refused(&["no"]), "The server does not protect itself from the OOM killer; use OOMScoreAdjust= of systemd." => {
        Compatibility "oom-score-adj" = "no", Choice(&["no", "yes", "relative", "absolute"]), LIVE;
    }
    Refused(&["default", "now", "force", "now force", "force now"]), "A signal ends the server like SHUTDOWN without arguments: it writes a snapshot if there are save points." => {
        Compatibility "shutdown-on-sigint" = "default", Words, LIVE;
        Compatibility "shutdown-on-sigterm" = "default", Words, LIVE;
    }
    Refused(&["no"]), "Every node of a cluster may become its leader." => {
        Compatibility "cluster-replica-no-failover" / "cluster-slave-no-failover" = "no", Bool, LIVE;
    }
    Refused(&["ip"]), "Clients of a cluster are told addresses, not names." => {
        Compatibility "cluster-preferred-endpoint-type" = "ip", Choice(&["ip", "hostname", "unknown-endpoint"]), LIVE;
    }
    Refused(&["0"]), "Clients of a cluster are told tls-port, or the port to which they are connected." => {
        Compatibility "cluster-announce-tls-port" = "0", PORT, LIVE;
        Compatibility "cluster-announce-client-tls-port" = "0", PORT, LIVE;
    }
    Refused(&["0"]), "Clients of a cluster are told cluster-announce-port." => {
        Compatibility "cluster-announce-client-port" = "0", PORT, LIVE;
    }
    Refused(&[""]), "Clients of a cluster are told cluster-announce-ip." => {
        Compatibility "cluster-announce-client-ipv4" = "", Text, LIVE;
        Compatibility "cluster-announce-client-ipv6" = "", Text, LIVE;
    }
    Refused(&["no"]), "Keys expire while data is imported, too." => {
        Compatibility "import-mode" = "no", Bool, LIVE;
    }
    Refused(&["", "no one"]), "Replication is not supported in this form; nodes replicate with --peers." => {
        Compatibility "replicaof" / "slaveof" = "", Words, FIXED;
    }
    Refused(&["no"]), "Portcullis stays in the foreground; run it in the background with systemd, a container or a shell's &." => {
        Compatibility "daemonize" = "no", Bool, FIXED;
    }
    Refused(&["no", "auto", "systemd"]), "Service managers are told by NOTIFY_SOCKET only." => {
        Compatibility "supervised" = "no", Choice(&["no", "auto", "systemd", "upstart"]), FIXED;
    }
    Refused(&["1"]), "Portcullis executes commands and serves sockets on one thread." => {
        Compatibility "io-threads" = "1", Integer(1, INT), FIXED;
    }
    Refused(&["0"]), "RDMA is not supported." => {
        Compatibility "rdma-port" = "0", PORT, LIVE;
    }
    Refused(&[""]), "RDMA is not supported." => {
        Compatibility "rdma-bind" = "", Words, LIVE;
    }
    Refused(&[]), "Commands keep their names; rules of users take commands away, such as -flushall." => {
        File "rename-command" = "", Words, FIXED;
    }
    Refused(&[]), "There are no modules." => {
        File "loadmodule" = "", Words, FIXED;
    }
    Refused(&[]), "The Sentinel protocol is answered without a Sentinel: see cluster-name." => {
        File "sentinel" = "", Words, FIXED;
    }
    Refused(&["legacy"]), "The flag --log-format chooses the format of the log." => {
        File "log-format" = "legacy", Text, FIXED;
    }

    Holds, "Directives that name files cannot be set at run time." => {
        Compatibility "enable-protected-configs" = "no", NO_YES_LOCAL, FIXED;
    }
    Holds, "No client can load a module: there are none." => {
        Compatibility "enable-module-command" = "no", NO_YES_LOCAL, FIXED;
    }
    Holds, "Scripts never get the insecure parts of Lua." => {
        Compatibility "lua-enable-insecure-api" / "lua-enable-deprecated-api" = "no", Bool, LIVE;
    }
    Holds, "Every value is checked when it is loaded or restored." => {
        Compatibility "sanitize-dump-payload" = "no", Choice(&["no", "yes", "clients"]), LIVE;
    }
    Holds, "TLS offers only key exchanges by elliptic curves." => {
        Compatibility "tls-dh-params-file" = "", Text, LIVE;
    }
    Holds, "The append-only file is synced during a rewrite, too, and its base is an RDB." => {
        Compatibility "no-appendfsync-on-rewrite" = "no", Bool, LIVE;
        Compatibility "aof-use-rdb-preamble" = "yes", Bool, LIVE;
    }
    Holds, "Files are written and synced in pieces." => {
        Compatibility "aof-rewrite-incremental-fsync" = "yes", Bool, LIVE;
        Compatibility "rdb-save-incremental-fsync" = "yes", Bool, LIVE;
    }
    Holds, "A file with a damaged end is never cut without --fix." => {
        Compatibility "aof-load-corrupt-tail-max-size" = "0", BYTES, LIVE;
    }
    Holds, "Tables grow in small steps, and memory is freed in small steps." => {
        Compatibility "activerehashing" = "yes", Bool, LIVE;
        Compatibility "lazyfree-lazy-eviction" = "no", Bool, LIVE;
        Compatibility "lazyfree-lazy-expire" = "no", Bool, LIVE;
        Compatibility "lazyfree-lazy-server-del" = "no", Bool, LIVE;
        Compatibility "lazyfree-lazy-user-del" = "no", Bool, LIVE;
        Compatibility "lazyfree-lazy-user-flush" = "no", Bool, LIVE;
    }
    Holds, "Every key expires on its millisecond." => {
        Compatibility "active-expire-effort" = "1", Integer(1, 10), LIVE;
    }
    Holds, "Only a leader that a majority has confirmed answers, reads as well, and it has every confirmed write." => {
        Compatibility "replica-serve-stale-data" / "slave-serve-stale-data" = "yes", Bool, LIVE;
        Compatibility "replica-read-only" / "slave-read-only" = "yes", Bool, LIVE;
        Compatibility "cluster-replica-validity-factor" / "cluster-slave-validity-factor" = "10", NUMBER, LIVE;
        Compatibility "cluster-allow-reads-when-down" = "no", Bool, LIVE;
    }
    Holds, "A cluster has one shard, which has all slots and all databases." => {
        Compatibility "cluster-require-full-coverage" = "yes", Bool, LIVE;
        Compatibility "cluster-migration-barrier" = "1", NUMBER, LIVE;
        Compatibility "cluster-allow-replica-migration" = "yes", Bool, LIVE;
        Compatibility "cluster-databases" = "1", Integer(1, INT), FIXED;
        Compatibility "cluster-slot-migration-log-max-len" = "1000", LARGE, LIVE;
        Compatibility "slot-migration-max-failover-repl-bytes" = "0", Integer(-1, LONG), LIVE;
    }

    Harmless, "It bounds the age of the replicas that min-replicas-to-write counts." => {
        Compatibility "min-replicas-max-lag" / "min-slaves-max-lag" = "10", NUMBER, LIVE;
    }
    Harmless, "Nodes replicate by Raft, with limits and times of their own; there are no replicas as in Redis." => {
        Compatibility "masterauth" / "primaryauth" = "", Secret, LIVE;
        Compatibility "masteruser" / "primaryuser" = "", Secret, LIVE;
        Compatibility "repl-ping-replica-period" / "repl-ping-slave-period" = "10", Integer(1, INT), LIVE;
        Compatibility "repl-timeout" = "60", Integer(1, INT), LIVE;
        Compatibility "repl-backlog-size" = "1048576", Memory(1, LONG), LIVE;
        Compatibility "repl-backlog-ttl" = "3600", LARGE, LIVE;
        Compatibility "repl-disable-tcp-nodelay" = "no", Bool, LIVE;
        Compatibility "repl-diskless-load" = "disabled", Choice(&["disabled", "on-empty-db", "swapdb", "flush-before-load"]), LIVE;
        Compatibility "repl-diskless-sync" = "yes", Bool, LIVE;
        Compatibility "repl-diskless-sync-delay" = "5", NUMBER, LIVE;
        Compatibility "repl-diskless-sync-max-replicas" = "0", NUMBER, LIVE;
        Compatibility "repl-mptcp" = "no", Bool, LIVE;
        Compatibility "dual-channel-replication-enabled" = "no", Bool, LIVE;
        Compatibility "rdb-del-sync-files" = "no", Bool, LIVE;
        Compatibility "replica-announce-ip" / "slave-announce-ip" = "", Text, LIVE;
        Compatibility "replica-announce-port" / "slave-announce-port" = "0", PORT, LIVE;
        Compatibility "replica-announced" = "yes", Bool, LIVE;
        Compatibility "replica-full-sync-buffer-limit" = "0", BYTES, LIVE;
        Compatibility "replica-ignore-disk-write-errors" = "no", Bool, LIVE;
        Compatibility "replica-ignore-maxmemory" / "slave-ignore-maxmemory" = "yes", Bool, LIVE;
        Compatibility "replica-lazy-flush" / "slave-lazy-flush" = "no", Bool, LIVE;
        Compatibility "replica-priority" / "slave-priority" = "100", NUMBER, LIVE;
        Compatibility "propagation-error-behavior" = "ignore", Choice(&["ignore", "panic", "panic-on-replicas"]), LIVE;
        Compatibility "shutdown-timeout" = "10", NUMBER, LIVE;
    }
    Harmless, "Nodes find each other by peers and listen on peer-listen; there is no cluster bus and no nodes.conf." => {
        Compatibility "cluster-announce-bus-port" = "0", PORT, LIVE;
        Compatibility "cluster-announce-hostname" = "", Text, LIVE;
        Compatibility "cluster-announce-human-nodename" = "", Text, LIVE;
        Compatibility "cluster-allow-pubsubshard-when-down" = "yes", Bool, LIVE;
        Compatibility "cluster-blacklist-ttl" = "60", LARGE, LIVE;
        Compatibility "cluster-config-file" = "nodes.conf", Text, FIXED;
        Compatibility "cluster-config-save-behavior" = "sync", Text, LIVE;
        Compatibility "cluster-link-sendbuf-limit" = "0", BYTES, LIVE;
        Compatibility "cluster-manual-failover-timeout" = "5000", NUMBER, LIVE;
        Compatibility "cluster-message-gossip-perc" = "10", NUMBER, LIVE;
        Compatibility "cluster-node-timeout" = "15000", LARGE, LIVE;
        Testing "cluster-ping-interval" = "0", LARGE, LIVE;
        Compatibility "cluster-port" = "0", PORT, FIXED;
    }
    Harmless, "These figures are not counted." => {
        Compatibility "cluster-compatibility-sample-ratio" = "0", Integer(0, 100), LIVE;
        Compatibility "cluster-slot-stats-enabled" = "no", Bool, LIVE;
        Compatibility "commandlog-request-larger-than" = "1048576", Integer(-1, LONG), LIVE;
        Compatibility "commandlog-large-request-max-len" = "128", LARGE, LIVE;
        Compatibility "commandlog-reply-larger-than" = "1048576", Integer(-1, LONG), LIVE;
        Compatibility "commandlog-large-reply-max-len" = "128", LARGE, LIVE;
        Compatibility "key-memory-histograms" = "no", Bool, LIVE;
    }
    Harmless, "There are no periodic jobs; INFO shows the value." => {
        Compatibility "hz" = "10", NUMBER, LIVE;
        Compatibility "dynamic-hz" = "yes", Bool, LIVE;
    }
    Harmless, "Values are stored in forms of their own." => {
        Compatibility "list-compress-depth" = "0", NUMBER, LIVE;
        Compatibility "rdbcompression" = "yes", Bool, LIVE;
        Compatibility "rdb-version-check" = "strict", Choice(&["strict", "relaxed"]), LIVE;
        Compatibility "hash-seed" = "", Text, FIXED;
        File "list-max-ziplist-entries" = "", Words, FIXED;
        File "list-max-ziplist-value" = "", Words, FIXED;
    }
    Harmless, "Memory is the server's own: freed blocks are used again, and no child process shares them." => {
        Compatibility "activedefrag" = "no", Bool, LIVE;
        Compatibility "active-defrag-cycle-max" = "25", Integer(1, 99), LIVE;
        Compatibility "active-defrag-cycle-min" = "1", Integer(1, 99), LIVE;
        Compatibility "active-defrag-cycle-us" = "500", Integer(0, 100_000), LIVE;
        Compatibility "active-defrag-ignore-bytes" = "104857600", Memory(1, LONG), LIVE;
        Compatibility "active-defrag-max-scan-fields" = "1000", Integer(1, LONG), LIVE;
        Compatibility "active-defrag-threshold-lower" = "10", Integer(0, 1000), LIVE;
        Compatibility "active-defrag-threshold-upper" = "100", Integer(0, 1000), LIVE;
        Compatibility "disable-thp" = "yes", Bool, FIXED;
        Compatibility "jemalloc-bg-thread" = "yes", Bool, LIVE;
        Compatibility "oom-score-adj-values" = "0 200 800", Words, LIVE;
    }
    Harmless, "Connections are accepted, and requests and replies moved, in bounded steps of one thread." => {
        Compatibility "io-threads-do-reads" = "no", Bool, FIXED;
        Compatibility "io-threads-always-active" = "no", Bool, LIVE;
        Compatibility "events-per-io-thread" = "2", NUMBER, LIVE;
        Compatibility "prefetch-batch-max-size" = "16", Integer(0, 128), LIVE;
        Compatibility "min-io-threads-avoid-copy-reply" = "7", NUMBER, LIVE;
        Compatibility "min-string-size-avoid-copy-reply" = "16384", NUMBER, LIVE;
        Compatibility "min-string-size-avoid-copy-reply-threaded" = "65536", NUMBER, LIVE;
        Compatibility "max-new-connections-per-cycle" = "10", Integer(1, 1000), LIVE;
        Compatibility "max-new-tls-connections-per-cycle" = "1", Integer(1, 1000), LIVE;
        Compatibility "vset-force-single-threaded-execution" = "no", Bool, FIXED;
        Compatibility "mptcp" = "no", Bool, FIXED;
        Compatibility "rdma-rx-size" = "1048576", BYTES, FIXED;
        Compatibility "rdma-completion-vector" = "-1", Integer(-1, INT), FIXED;
        Compatibility "server-cpulist" / "server_cpulist" = "", Text, FIXED;
        Compatibility "bio-cpulist" / "bio_cpulist" = "", Text, FIXED;
        Compatibility "aof-rewrite-cpulist" / "aof_rewrite_cpulist" = "", Text, FIXED;
        Compatibility "bgsave-cpulist" / "bgsave_cpulist" = "", Text, FIXED;
    }
    Harmless, "Nodes use tls-cert-file in both directions, and sessions are resumed by tickets that the clients keep." => {
        Compatibility "tls-client-cert-file" = "", Text, LIVE;
        Compatibility "tls-client-key-file" = "", Text, LIVE;
        Compatibility "tls-client-key-file-pass" = "", Secret, LIVE;
        Compatibility "tls-session-cache-size" = "20480", NUMBER, LIVE;
        Compatibility "tls-session-cache-timeout" = "300", NUMBER, LIVE;
    }
    Harmless, "They are about the process and its log: its title, its logo, its PID file, its reports." => {
        Compatibility "pidfile" = "", Text, FIXED;
        Compatibility "always-show-logo" = "no", Bool, FIXED;
        Compatibility "set-proc-title" = "yes", Bool, FIXED;
        Compatibility "proc-title-template" = "{title} {listen-addr} {server-mode}", Text, LIVE;
        Compatibility "availability-zone" = "", Text, LIVE;
        Compatibility "crash-log-enabled" = "yes", Bool, LIVE;
        Compatibility "crash-memcheck-enabled" = "yes", Bool, LIVE;
        Compatibility "syslog-ident" = "redis", Text, FIXED;
        Compatibility "syslog-facility" = "local0", Text, FIXED;
        Compatibility "log-timestamp-format" = "legacy", Choice(&["legacy", "iso8601", "milliseconds"]), LIVE;
        Compatibility "ignore-warnings" = "", Text, LIVE;
    }
    Harmless, "It does not change what a client of Portcullis gets." => {
        Compatibility "extended-redis-compatibility" = "no", Bool, LIVE;
        Compatibility "locale-collate" = "", Text, LIVE;
        File "lua-replicate-commands" = "", Words, FIXED;
    }
    Harmless, "They are for tests of the server itself." => {
        Testing "aof-disable-auto-gc" = "no", Bool, LIVE;
        Testing "debug-context" = "", Text, LIVE;
        Testing "enable-debug-assert" = "no", Bool, FIXED;
        Testing "loading-process-events-interval-bytes" = "2097152", Integer(1024, INT), LIVE;
        Testing "rdb-key-save-delay" = "0", Integer(-INT - 1, INT), LIVE;
        Testing "use-exit-on-panic" = "no", Bool, LIVE;
        Testing "watchdog-period" = "0", NUMBER, LIVE;
    }
}

/// This table in Markdown, for the guide: a line for each reason.
#[cfg(any(test, feature = "internals"))]
pub fn markdown() -> String {
    use std::fmt::Write;

    let mut text = String::from("\n| directives | when set | why |\n| --- | --- | --- |\n");
    for rows in FOREIGN.chunk_by(|one, next| (one.help, one.fate()) == (next.help, next.fate())) {
        let names = rows.iter().flat_map(|row| [Some(row.name), row.alias]).flatten();
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        let follows = match rows[0].fate() {
            Some(Fate::Holds) => "true anyway".to_owned(),
            Some(Fate::Harmless) => "no effect".to_owned(),
            Some(Fate::Refused(admitted)) => {
                let admitted = admitted.iter().filter(|word| !word.is_empty()).map(|word| format!("`{word}`"));
                match admitted.collect::<Vec<_>>().join(", ") {
                    none if none.is_empty() => "**refused**".to_owned(),
                    words => format!("**refused**, except {words}"),
                }
            }
            None => continue,
        };
        let _ = writeln!(text, "| {} | {follows} | {} |", names.join(" "), rows[0].help.replace('|', "\\|"));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::config::Config;

    fn row(name: &str) -> &'static Directive {
        Directive::find(name.as_bytes()).unwrap().0
    }

    #[test]
    fn what_asks_for_nothing_is_taken_and_what_asks_for_a_protection_is_refused() {
        for row in FOREIGN {
            let Some(Fate::Refused(admitted)) = row.fate() else { continue };
            for value in admitted {
                let mut config = Config::default();
                row.set_from_value(&mut config, value.as_bytes())
                    .unwrap_or_else(|reason| panic!("{} {value}: {reason}", row.name));
                assert_eq!(row.get(&config), value.as_bytes(), "{}", row.name);
            }
        }
        for (name, value, refusal) in [
            (
                "min-replicas-to-write",
                "1",
                "A server alone has no replicas to wait for, and of nodes that replicate a majority always has each write; it can only \
                 be 0",
            ),
            ("bind-source-addr", "10.0.0.1", "Connections to other nodes leave from the address that the system chooses"),
            ("rename-command", "FLUSHALL", "Commands keep their names; rules of users take commands away, such as -flushall"),
            (
                "replicaof",
                "10.0.0.1 6379",
                "Replication is not supported in this form; nodes replicate with --peers; it can only be no one",
            ),
        ] {
            let mut config = Config::default();
            assert_eq!(row(name).set_from_value(&mut config, value.as_bytes()).unwrap_err(), refusal);
            assert_eq!(
                row(name).set(&mut config, &value.split(' ').map(str::as_bytes).collect::<Vec<_>>()).unwrap_err(),
                refusal
            );
            assert!(config.foreign.is_empty());
        }
    }

    #[test]
    fn values_are_remembered_and_held_to_their_kind() {
        let mut config = Config::default();
        for (name, value, shown) in [
            ("hz", "50", "50"),
            ("repl-backlog-size", "2mb", "2097152"),
            ("oom-score-adj-values", "0 100 200", "0 100 200"),
            ("slave-priority", "7", "7"),
            ("replicaof", "no one", "no one"),
            ("replicaof", "", ""),
        ] {
            row(name).set_from_value(&mut config, value.as_bytes()).unwrap();
            assert_eq!(row(name).get(&config), shown.as_bytes(), "{name}");
        }
        for (name, value) in
            [("hz", "x"), ("hz", "-1"), ("activedefrag", "maybe"), ("repl-timeout", "0"), ("repl-diskless-load", "on")]
        {
            assert!(row(name).set_from_value(&mut config, value.as_bytes()).is_err(), "{name} {value}");
        }
        assert_eq!(
            config.foreign.keys().copied().collect::<Vec<_>>(),
            ["hz", "oom-score-adj-values", "repl-backlog-size", "replica-priority"]
        );
        row("hz").set_from_value(&mut config, b"10").unwrap();
        assert!(!config.foreign.contains_key("hz"), "the default is not kept");
    }

    #[test]
    fn rows_of_one_reason_follow_each_other() {
        let groups = FOREIGN.chunk_by(|one, next| (one.help, one.fate()) == (next.help, next.fate()));
        let mut reasons: Vec<String> = groups.map(|rows| format!("{} {:?}", rows[0].help, rows[0].fate())).collect();
        let count = reasons.len();
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), count);
    }
}
