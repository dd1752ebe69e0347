//! The table of directives. A row is a field of [`Config`]: its name, type, default, bounds and meaning in one place.

use super::kind::{Field, Kind, OutputLimit};
use super::rules::Rules;
use super::{Directive, Section};
use crate::keyspace::change::Classes;
use crate::keyspace::eviction::POLICY_NAMES;

const INT: i128 = i32::MAX as i128;
const UINT: i128 = u32::MAX as i128;
const LONG: i128 = i64::MAX as i128;
const ULONG: i128 = u64::MAX as i128;
const MIB: i128 = 1 << 20;
/// Default of `script-memory-limit`, in bytes.
pub const SCRIPT_MEMORY: u64 = if cfg!(test) { 64 << 20 } else { 1 << 30 };

const LOG_LEVELS: &[&str] = &["debug", "verbose", "notice", "warning", "nothing"];
const NO_FILES: &str = "Portcullis keeps nothing on disk in this version";

macro_rules! directives {
    ($(
        $section:ident $name:literal $(/ $alias:literal)? => $field:ident: $type:ty = $default:expr, $kind:expr, $fixed:ident, $help:literal;
    )*) => {
        /// The values of all directives; each field is documented by the help line of its row.
        #[derive(Clone, Debug)]
        pub struct Config {
            $(#[doc = concat!("`", $name, "`: ", $help)] pub $field: $type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($field: $default,)* }
            }
        }

        /// The rows.
        pub const DIRECTIVES: &[Directive] = &[$(
            Directive {
                name: $name,
                alias: directives!(@alias $($alias)?),
                kind: $kind,
                fixed: directives!(@fixed $fixed),
                section: Section::$section,
                help: $help,
                read: |config| Field::to_raw(&config.$field),
                write: |config, raw| match Field::from_raw(raw) {
                    Some(value) => {
                        config.$field = value;
                        true
                    }
                    None => false,
                },
            },
        )*];
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
    (@fixed fixed) => { true };
    (@fixed live) => { false };
}

use Kind::{
    Addresses, Bool, Choice, Events, Integer, Memory, MemoryOrPercent, Octal, Only, OutputLimits, Percentiles, Secret, Text,
};

directives! {
    Network "port" => port: u16 = 6379, Integer(0, 65535), live, "TCP port to listen on; 0 takes any free one at the start and prints it, or none beside a tls-port. Set to 0 while it runs, it listens on none.";
    Network "bind" => bind: Vec<String> = vec!["127.0.0.1".into(), "-::1".into()], Addresses, live, "Addresses to listen on; * is all of them, and one that begins with - may be missing.";
    Network "unixsocket" => unixsocket: String = String::new(), Text, fixed, "Path of a unix socket to listen on as well.";
    Network "unixsocketperm" => unixsocketperm: u32 = 0, Octal(0, 0o777), fixed, "Permissions of the unix socket, in octal.";
    Network "tcp-backlog" => tcp_backlog: u32 = 511, Integer(0, INT), fixed, "Connections that may wait to be accepted.";
    Network "tcp-keepalive" => tcp_keepalive: u32 = 300, Integer(0, INT), live, "Seconds after which a silent connection is probed; 0 never.";
    Network "timeout" => timeout: u32 = 0, Integer(0, INT), live, "Seconds after which an idle connection is closed; 0 never.";

    Network "tls-port" => tls_port: u16 = 0, Integer(0, 65535), live, "TCP port for TLS; 0 for none.";
    Network "tls-cert-file" => tls_cert_file: String = String::new(), Text, live, "Certificate of the server, and those that lead from it to its authority, in PEM; set again, it is read again.";
    Network "tls-key-file" => tls_key_file: String = String::new(), Text, live, "Private key of the certificate, in PEM.";
    Network "tls-ca-cert-file" => tls_ca_cert_file: String = String::new(), Text, live, "Certificates that those of clients must be signed by, in PEM.";
    Network "tls-ca-cert-dir" => tls_ca_cert_dir: String = String::new(), Text, live, "Directory of files as tls-ca-cert-file.";
    Network "tls-auth-clients" => tls_auth_clients: &'static str = "yes", Choice(&["no", "yes", "optional"]), live, "Whether clients must show a certificate; optional: one that is shown must be right.";
    Network "tls-protocols" => tls_protocols: String = String::new(), Text, live, "Versions of TLS, of TLSv1.2 and TLSv1.3; without any, both.";
    Network "tls-prefer-server-ciphers" => tls_prefer_server_ciphers: bool = false, Bool, live, "Choose by our order of ciphers, not by the client's.";
    Network "tls-session-caching" => tls_session_caching: bool = true, Bool, live, "Let clients resume their sessions by tickets.";
    Compatibility "tls-key-file-pass" => tls_key_file_pass: &'static str = "", Only("", "encrypted private keys are not supported; decrypt the key file, and let only the server read it"), live, "Has no value: private keys are not encrypted.";
    Compatibility "tls-ciphers" => tls_ciphers: &'static str = "", Only("", "the ciphers of TLSv1.2 cannot be chosen: all that are offered are sound"), live, "Has no value.";
    Compatibility "tls-ciphersuites" => tls_ciphersuites: &'static str = "", Only("", "the ciphers of TLSv1.3 cannot be chosen: all that are offered are sound"), live, "Has no value.";
    Compatibility "tls-replication" => tls_replication: &'static str = "no", Only("no", "replication is not supported"), live, "Has the value no.";
    Compatibility "tls-cluster" => tls_cluster: &'static str = "no", Only("no", "Portcullis is no Redis Cluster node"), live, "Has the value no.";

    Security "requirepass" => requirepass: Vec<u8> = Vec::new(), Secret, live, "Password that clients must give first.";
    Security "protected-mode" => protected_mode: bool = true, Bool, live, "Refuse clients of other machines while there is no password.";

    Security "aclfile" => aclfile: String = String::new(), Text, fixed, "File with the users; ACL LOAD reads and ACL SAVE writes it.";
    Security "acl-pubsub-default" => acl_pubsub_default: &'static str = "resetchannels", Choice(&["allchannels", "resetchannels"]), live, "What a new user may listen to: nothing or all channels.";
    Security "acllog-max-len" => acllog_max_len: u64 = 128, Integer(0, LONG), live, "Entries of ACL LOG that are kept.";

    Limits "maxclients" => maxclients: u32 = 10_000, Integer(1, UINT), live, "Clients that may be connected at once.";
    Limits "maxmemory" => maxmemory: u64 = 0, Memory(0, ULONG), live, "Bytes beyond which keys give way by maxmemory-policy, or commands that need more are refused; 0 no bound.";
    Limits "maxmemory-policy" => maxmemory_policy: &'static str = "noeviction", Choice(&POLICY_NAMES), live, "Which keys give way when maxmemory is reached; with noeviction none, so that no lock is lost silently.";
    Limits "maxmemory-samples" => maxmemory_samples: u32 = 5, Integer(1, 64), live, "Keys that are looked at for each that gives way.";
    Limits "maxmemory-eviction-tenacity" => maxmemory_eviction_tenacity: u32 = 10, Integer(0, 100), live, "How many keys give way in one step, 0 to 10; more counts as 10, so that no step is long.";
    Limits "lfu-log-factor" => lfu_log_factor: u32 = 10, Integer(0, INT), live, "How slowly the counter of a key's uses grows under an lfu policy.";
    Limits "lfu-decay-time" => lfu_decay_time: u32 = 1, Integer(0, INT), live, "Minutes without use after which that counter falls by one; 0 never.";
    Limits "databases" => databases: u32 = 16, Integer(1, 16_384), fixed, "Number of databases.";
    Limits "proto-max-bulk-len" => proto_max_bulk_len: u64 = 512 << 20, Memory(MIB, LONG), live, "Bytes of one argument, and of one string, at most.";
    Limits "client-query-buffer-limit" => client_query_buffer_limit: u64 = 1 << 30, Memory(MIB, LONG), live, "Bytes of one incomplete request at most, or of what waits behind a blocking command, is queued since MULTI, watched or subscribed to: beyond it the client is closed. Of keys that it tracks it gives up the oldest.";
    Limits "client-output-buffer-limit" => client_output_buffer_limit: [OutputLimit; 3] = OUTPUT_LIMITS, OutputLimits, live, "Bytes of replies that a client may leave unread: class, hard limit, soft limit, seconds. Class pubsub is for subscribers, for clients that MONITOR, and for what clients that track keys are told.";
    Limits "maxmemory-clients" => maxmemory_clients: i64 = 0, MemoryOrPercent, live, "Bytes, or percent of maxmemory, that all clients together may take up with buffers, watched keys, channels and the like, 128 KiB at least: beyond it the largest are closed; 0 no bound.";

    Behaviour "notify-keyspace-events" => notify_keyspace_events: Classes = Classes::empty(), Events, live, "Classes of key events that are published, such as KEA.";
    Behaviour "lock-expiry-publish" => lock_expiry_publish: Rules = Rules::default(), Kind::Rules, live, "What is published when a key has expired, for those who wait on a library's unlock channel: rules of key pattern, channel and message, or shipped ones by name: redisson, spring, redis-lock-py, simple-redis-mutex. {name}, {hashtag}, {1} and {head:list} are filled in.";
    Behaviour "busy-reply-threshold" / "lua-time-limit" => busy_reply_threshold: u64 = 5000, Integer(0, LONG), live, "Milliseconds after which a script that runs may be killed, and others are told that the server is busy; 0 never.";
    Limits "script-memory-limit" => script_memory_limit: u64 = SCRIPT_MEMORY, Memory(MIB, LONG), live, "Bytes that scripts, and again functions, may have in use at once; what needs more ends in an error.";
    Compatibility "hash-max-listpack-entries" / "hash-max-ziplist-entries" => hash_max_listpack_entries: u64 = 512, Integer(0, LONG), live, "Fields up to which OBJECT ENCODING calls a hash a listpack.";
    Compatibility "hash-max-listpack-value" / "hash-max-ziplist-value" => hash_max_listpack_value: u64 = 64, Memory(0, LONG), live, "Bytes of a field or value up to which a hash is called a listpack.";
    Compatibility "list-max-listpack-size" / "list-max-ziplist-size" => list_max_listpack_size: i64 = -2, Integer(-INT - 1, INT), live, "Up to which a list is one buffer, and so is each node of a longer one: so many elements, or -1 to -5 for 4 to 64 KiB.";
    Compatibility "list-compress-depth" => list_compress_depth: u32 = 0, Integer(0, INT), live, "Accepted; the nodes of a list are not compressed.";
    Compatibility "set-max-intset-entries" => set_max_intset_entries: u64 = 512, Integer(0, LONG), live, "Members up to which a set of integers is called an intset.";
    Compatibility "set-max-listpack-entries" => set_max_listpack_entries: u64 = 128, Integer(0, LONG), live, "Members up to which a set is called a listpack.";
    Compatibility "set-max-listpack-value" => set_max_listpack_value: u64 = 64, Integer(0, LONG), live, "Bytes of a member up to which a set is called a listpack.";
    Behaviour "hll-sparse-max-bytes" => hll_sparse_max_bytes: u64 = 3000, Memory(0, LONG), live, "Bytes up to which a HyperLogLog is kept in its sparse form.";
    Compatibility "zset-max-listpack-entries" / "zset-max-ziplist-entries" => zset_max_listpack_entries: u64 = 128, Integer(0, LONG), live, "Members up to which a sorted set is called a listpack.";
    Compatibility "zset-max-listpack-value" / "zset-max-ziplist-value" => zset_max_listpack_value: u64 = 64, Memory(0, LONG), live, "Bytes of a member up to which a sorted set is called a listpack.";
    Behaviour "stream-node-max-bytes" => stream_node_max_bytes: u64 = 4096, Memory(0, LONG), live, "Bytes of a block of a stream; 0 no bound.";
    Behaviour "stream-node-max-entries" => stream_node_max_entries: u64 = 100, Integer(0, LONG), live, "Entries of a block of a stream; 0 no bound.";
    Behaviour "slowlog-log-slower-than" => slowlog_log_slower_than: i64 = 10_000, Integer(-1, LONG), live, "Microseconds from which a request is in the slow log; -1 none. Below 1000, every request is timed by itself.";
    Behaviour "slowlog-max-len" => slowlog_max_len: u64 = 128, Integer(0, LONG), live, "Requests that the slow log keeps.";
    Behaviour "lock-slowlog-log-slower-than" => lock_slowlog_log_slower_than: i64 = 1000, Integer(-1, LONG), live, "Milliseconds from which a wait for a native lock is in LOCK.SLOWLOG; 0 all are, -1 none.";
    Behaviour "lock-slowlog-max-len" => lock_slowlog_max_len: u64 = 128, Integer(0, 65_536), live, "Waits that LOCK.SLOWLOG keeps.";
    Behaviour "lock-history-max-names" => lock_history_max_names: u64 = 4096, Integer(0, 16_777_216), live, "Native locks, those used last, whose last events LOCK.WHY knows; with 0 none, and causes of NOTHELD are not told apart.";
    Behaviour "lock-session-grace" => lock_session_grace: u64 = 5000, Integer(0, 86_400_000), live, "Milliseconds for which a named session of native locks waits for its client after a restart, at least; its own GRACE may be longer.";
    Behaviour "lock-requests-max" => lock_requests_max: u64 = 100_000, Integer(0, 16_777_216), live, "Owners of ended grants of native locks whose requests (REQUEST) are remembered, for a minute at most; those that ended first are forgotten early.";
    Behaviour "lock-history-max-events" => lock_history_max_events: u64 = 16, Integer(1, 1024), live, "Events of each of them that are known.";
    Behaviour "latency-monitor-threshold" => latency_monitor_threshold: u64 = 0, Integer(0, LONG), live, "Milliseconds from which a pause is recorded for LATENCY; 0 none is.";
    Behaviour "latency-tracking" => latency_tracking: bool = true, Bool, live, "Keep how long the calls of each command took, for INFO latencystats.";
    Behaviour "latency-tracking-info-percentiles" => latency_percentiles: Vec<String> = vec!["50".into(), "99".into(), "99.9".into()], Percentiles, live, "Percentiles that INFO latencystats shows.";
    Limits "tracking-table-max-keys" => tracking_table_max_keys: u64 = 1_000_000, Integer(0, LONG), live, "Keys that are remembered for client-side caching; beyond it some key, chosen by chance, is told as changed; 0 no bound.";
    Behaviour "enable-debug-command" => enable_debug_command: &'static str = "local", Choice(&["no", "yes", "local"]), fixed, "Who may use DEBUG.";

    Logging "loglevel" => loglevel: &'static str = "notice", Choice(LOG_LEVELS), live, "How much is logged.";
    Logging "logfile" => logfile: String = String::new(), Text, fixed, "File that the log is appended to; without it, the standard error.";

    Compatibility "appendonly" => appendonly: &'static str = "no", Only("no", NO_FILES), live, "Has the value no: nothing is kept on disk.";
    Compatibility "appendfsync" => appendfsync: &'static str = "everysec", Choice(&["everysec", "always", "no"]), live, "Accepted; without effect while nothing is kept on disk.";
    Compatibility "save" => save: &'static str = "", Only("", NO_FILES), live, "Has no value: nothing is kept on disk.";
    Compatibility "dir" => dir: String = ".".into(), Text, fixed, "Working directory.";
    Compatibility "daemonize" => daemonize: &'static str = "no", Only("no", "Portcullis stays in the foreground; let systemd, a container or a shell's & put it in the background"), fixed, "Has the value no: it stays in the foreground.";
    Behaviour "cluster-enabled" => cluster_enabled: bool = false, Bool, fixed, "Be a cluster of one node: for clients that want a cluster.";
    Behaviour "cluster-announce-ip" => cluster_announce_ip: String = String::new(), Text, live, "Address that clients of the cluster are told; without it, the one they have reached.";
    Behaviour "cluster-announce-port" => cluster_announce_port: u16 = 0, Integer(0, 65535), live, "Port that clients of the cluster are told; 0 the one they have reached.";
    Compatibility "io-threads" => io_threads: &'static str = "1", Only("1", "Portcullis runs commands and sockets on one thread"), fixed, "Has the value 1: one thread does it all.";
    Compatibility "replicaof" / "slaveof" => replicaof: &'static str = "", Only("", "replication is not supported"), fixed, "Has no value: it is nobody's replica.";
    Compatibility "replica-read-only" / "slave-read-only" => replica_read_only: bool = true, Bool, live, "Accepted; there is no replication.";
    Compatibility "repl-ping-replica-period" / "repl-ping-slave-period" => repl_ping_replica_period: u32 = 10, Integer(1, INT), live, "Accepted; there is no replication.";
    Compatibility "masterauth" => masterauth: Vec<u8> = Vec::new(), Secret, live, "Accepted; there is no replication.";
    Compatibility "stop-writes-on-bgsave-error" => stop_writes_on_bgsave_error: bool = true, Bool, live, "Accepted; there is no BGSAVE that could fail.";
    Compatibility "hz" => hz: u32 = 10, Integer(0, INT), live, "Accepted; nothing runs on a fixed tick.";
    Compatibility "dynamic-hz" => dynamic_hz: bool = true, Bool, live, "Accepted; nothing runs on a fixed tick.";
    Compatibility "activerehashing" => activerehashing: bool = true, Bool, live, "Accepted; tables grow in small steps anyway.";
    Compatibility "active-expire-effort" => active_expire_effort: u32 = 1, Integer(1, 10), live, "Accepted; every key ends on its millisecond anyway.";
    Compatibility "lazyfree-lazy-eviction" => lazyfree_lazy_eviction: bool = false, Bool, live, "Accepted; memory is given back in small steps anyway.";
    Compatibility "lazyfree-lazy-expire" => lazyfree_lazy_expire: bool = false, Bool, live, "Accepted; memory is given back in small steps anyway.";
    Compatibility "lazyfree-lazy-server-del" => lazyfree_lazy_server_del: bool = false, Bool, live, "Accepted; memory is given back in small steps anyway.";
    Compatibility "lazyfree-lazy-user-del" => lazyfree_lazy_user_del: bool = false, Bool, live, "Accepted; memory is given back in small steps anyway.";
    Compatibility "lazyfree-lazy-user-flush" => lazyfree_lazy_user_flush: bool = false, Bool, live, "Accepted; memory is given back in small steps anyway.";
}

const OUTPUT_LIMITS: [OutputLimit; 3] = [
    OutputLimit { hard: 0, soft: 0, seconds: 0 },
    OutputLimit { hard: 256 << 20, soft: 64 << 20, seconds: 60 },
    OutputLimit { hard: 32 << 20, soft: 8 << 20, seconds: 60 },
];

/// Directives of a stock `redis.conf` that a configuration file may have and that mean nothing here: they are about files,
/// replicas, clusters, TLS or the inside of Redis.
pub const IGNORED: &[&str] = &[
    "activedefrag",
    "active-defrag-cycle-max",
    "active-defrag-cycle-min",
    "active-defrag-ignore-bytes",
    "active-defrag-max-scan-fields",
    "active-defrag-threshold-lower",
    "active-defrag-threshold-upper",
    "always-show-logo",
    "aof-load-truncated",
    "aof-rewrite-incremental-fsync",
    "aof-timestamp-enabled",
    "aof-use-rdb-preamble",
    "aof_rewrite_cpulist",
    "appenddirname",
    "appendfilename",
    "auto-aof-rewrite-min-size",
    "auto-aof-rewrite-percentage",
    "bgsave_cpulist",
    "bio_cpulist",
    "crash-log-enabled",
    "crash-memcheck-enabled",
    "dbfilename",
    "disable-thp",
    "enable-module-command",
    "enable-protected-configs",
    "ignore-warnings",
    "io-threads-do-reads",
    "jemalloc-bg-thread",
    "locale-collate",
    "max-new-connections-per-cycle",
    "max-new-tls-connections-per-cycle",
    "no-appendfsync-on-rewrite",
    "oom-score-adj",
    "oom-score-adj-values",
    "pidfile",
    "proc-title-template",
    "rdb-del-sync-files",
    "rdb-save-incremental-fsync",
    "rdbchecksum",
    "rdbcompression",
    "repl-backlog-size",
    "repl-backlog-ttl",
    "repl-disable-tcp-nodelay",
    "repl-diskless-load",
    "repl-diskless-sync",
    "repl-diskless-sync-delay",
    "repl-diskless-sync-max-replicas",
    "replica-lazy-flush",
    "replica-priority",
    "replica-serve-stale-data",
    "server_cpulist",
    "set-proc-title",
    "shutdown-timeout",
    "shutdown-on-sigint",
    "shutdown-on-sigterm",
    "socket-mark-id",
    "supervised",
    "syslog-enabled",
    "syslog-facility",
    "syslog-ident",
    "tls-client-cert-file",
    "tls-client-key-file",
    "tls-client-key-file-pass",
    "tls-dh-params-file",
    "tls-session-cache-size",
    "tls-session-cache-timeout",
];
