//! The table of directives. A row is a field of [`Config`], with its name, type, default, bounds and help text.

use std::collections::BTreeMap;

use super::kind::{Field, Kind, OutputLimit};
use super::rules::Rules;
use super::{Directive, Effect, Place, Section};
use crate::keyspace::change::Classes;
use crate::keyspace::eviction::POLICY_NAMES;

const INT: i128 = i32::MAX as i128;
const UINT: i128 = u32::MAX as i128;
const LONG: i128 = i64::MAX as i128;
const ULONG: i128 = u64::MAX as i128;
const MIB: i128 = 1 << 20;
const DECADE_MS: i128 = 10 * 365 * 86_400_000;
/// Default of `script-memory-limit`, in bytes.
pub const SCRIPT_MEMORY: u64 = if cfg!(test) { 64 << 20 } else { 1 << 30 };

const LOG_LEVELS: &[&str] = &["debug", "verbose", "notice", "warning", "nothing"];

macro_rules! directives {
    ($(
        $section:ident $name:literal $(/ $alias:literal)? => $field:ident: $type:ty = $default:expr, $kind:expr, $fixed:ident $(($effect:ident))?, $help:literal;
    )*) => {
        /// The values of all directives. The help text of each row documents its field.
        #[derive(Clone, Debug)]
        pub struct Config {
            $(#[doc = concat!("`", $name, "`: ", $help)] pub $field: $type,)*
            /// Values of directives that Portcullis does not have, by name; those that are not here have their defaults.
            pub foreign: BTreeMap<&'static str, Vec<u8>>,
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($field: $default,)* foreign: BTreeMap::new() }
            }
        }

        /// The rows.
        pub const DIRECTIVES: &[Directive] = &[$(
            Directive {
                name: $name,
                alias: directives!(@alias $($alias)?),
                kind: $kind,
                fixed: directives!(@fixed $fixed),
                protected: directives!(@protected $fixed),
                effect: directives!(@effect $($effect)?),
                section: Section::$section,
                help: $help,
                place: Place::Field {
                    read: |config| Field::to_raw(&config.$field),
                    write: |config, raw| match Field::from_raw(raw) {
                        Some(value) => {
                            config.$field = value;
                            true
                        }
                        None => false,
                    },
                },
            },
        )*];
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
    (@effect) => { None };
    (@effect $effect:ident) => { Some(Effect::$effect) };
    (@fixed live) => { false };
    (@fixed $other:ident) => { true };
    (@protected protected) => { true };
    (@protected $other:ident) => { false };
}

use Kind::{
    Addresses, Bool, Choice, Events, FileName, Integer, Memory, MemoryOrPercent, Octal, OutputLimits, Percentiles, SavePoints,
    Secret, Text,
};

directives! {
    Network "port" => port: u16 = 6379, Integer(0, 65535), live, "TCP port to listen on. 0 at startup: any free port, which is printed, or none if there is a tls-port. Set to 0 at run time: none.";
    Network "bind" => bind: Vec<String> = vec!["127.0.0.1".into(), "-::1".into()], Addresses, live, "Addresses to listen on. * is every address. An address that begins with - is optional.";
    Network "unixsocket" => unixsocket: String = String::new(), Text, fixed, "Path of a Unix socket to listen on, too.";
    Network "unixsocketperm" => unixsocketperm: u32 = 0, Octal(0, 0o777), fixed, "Permissions of the Unix socket, in octal.";
    Network "tcp-backlog" => tcp_backlog: u32 = 511, Integer(0, INT), fixed, "Maximum number of connections that wait to be accepted.";
    Network "tcp-keepalive" => tcp_keepalive: u32 = 300, Integer(0, INT), live, "Seconds of silence after which a connection is probed; 0 never.";
    Network "timeout" => timeout: u32 = 0, Integer(0, INT), live(Sweep), "Seconds after which an idle connection is closed; 0 never.";

    Network "tls-port" => tls_port: u16 = 0, Integer(0, 65535), live, "TCP port for TLS; 0 for none.";
    Network "tls-cert-file" => tls_cert_file: String = String::new(), Text, live, "Certificate of the server and its chain, in PEM. Setting it again reloads the file.";
    Network "tls-key-file" => tls_key_file: String = String::new(), Text, live, "Private key of the certificate, in PEM.";
    Network "tls-ca-cert-file" => tls_ca_cert_file: String = String::new(), Text, live, "Certificates of the authorities that sign the certificates of clients, in PEM.";
    Network "tls-ca-cert-dir" => tls_ca_cert_dir: String = String::new(), Text, live, "Directory with files like tls-ca-cert-file.";
    Network "tls-auth-clients" => tls_auth_clients: &'static str = "yes", Choice(&["no", "yes", "optional"]), live, "Whether clients must present a certificate. optional: a certificate that is presented must be valid.";
    Network "tls-protocols" => tls_protocols: String = String::new(), Text, live, "TLS versions: TLSv1.2, TLSv1.3 or both. Empty: both.";
    Network "tls-prefer-server-ciphers" => tls_prefer_server_ciphers: bool = false, Bool, live, "Prefer the server's order of ciphers to the client's.";
    Network "tls-session-caching" => tls_session_caching: bool = true, Bool, live, "Let clients resume their sessions with tickets.";
    Network "tls-replication" => tls_replication: bool = false, Bool, fixed, "The same as tls-cluster.";
    Network "tls-cluster" => tls_cluster: bool = false, Bool, fixed, "Encrypt what replicated servers send each other. Each proves by its certificate (tls-cert-file) that it is one of them; tls-ca-cert-file signs all of these.";

    Network "http" => http: String = String::new(), Text, fixed, "Address for HTTP, as host:port: metrics for Prometheus, health, and a page about the locks. Beyond loopback it needs TLS and users with passwords. Empty: none.";
    Network "http-tls" => http_tls: bool = false, Bool, fixed, "HTTP over TLS on loopback, too. Beyond loopback it always is.";
    Network "http-metrics-locks" => http_metrics_locks: u32 = 20, Integer(0, 1000), fixed, "Maximum number of locks with metrics of their own: those that are waited for longest.";

    Security "requirepass" => requirepass: Vec<u8> = Vec::new(), Secret, live, "Password of the default user.";
    Security "login-delay-max" => login_delay_max: u32 = 1000, Integer(0, 60_000), live, "Maximum milliseconds for which a login waits after failed ones from the same address; 0: none waits. Clients on the same machine never wait.";
    Security "protected-mode" => protected_mode: bool = true, Bool, live, "Refuse clients from other machines while there is no password.";

    Security "aclfile" => aclfile: String = String::new(), Text, fixed, "File with the users. ACL LOAD reads it, and ACL SAVE writes it.";
    Security "acl-pubsub-default" => acl_pubsub_default: &'static str = "resetchannels", Choice(&["allchannels", "resetchannels"]), live, "Channels that a new user may access: none or all.";
    Security "acllog-max-len" => acllog_max_len: u64 = 128, Integer(0, LONG), live, "Maximum number of entries in ACL LOG.";

    Limits "maxclients" => maxclients: u32 = 10_000, Integer(1, UINT), live(Descriptors), "Maximum number of connected clients.";
    Limits "maxmemory" => maxmemory: u64 = 0, Memory(0, ULONG), live, "Memory limit in bytes; 0 for none. Beyond it, keys are evicted according to maxmemory-policy, or commands that need memory are refused.";
    Limits "maxmemory-policy" => maxmemory_policy: &'static str = "noeviction", Choice(&POLICY_NAMES), live, "Which keys are evicted when maxmemory is reached. noeviction: none, so that no lock is lost silently.";
    Limits "maxmemory-samples" => maxmemory_samples: u32 = 5, Integer(1, 64), live, "Number of sampled keys for each evicted key.";
    Limits "maxmemory-eviction-tenacity" => maxmemory_eviction_tenacity: u32 = 10, Integer(0, 100), live, "How much eviction work is done in one step: 0 the least, 10 the most. Larger values count as 10, so that no step is long.";
    Limits "lfu-log-factor" => lfu_log_factor: u32 = 10, Integer(0, INT), live, "How slowly the access counter of a key grows under an LFU policy.";
    Limits "lfu-decay-time" => lfu_decay_time: u32 = 1, Integer(0, INT), live, "Minutes without access after which the access counter decreases by one; 0 never.";
    Limits "databases" => databases: u32 = 16, Integer(1, 16_384), fixed, "Number of databases.";
    Limits "proto-max-bulk-len" => proto_max_bulk_len: u64 = 512 << 20, Memory(MIB, LONG), live, "Maximum bytes of an argument and of a string value.";
    Limits "client-query-buffer-limit" => client_query_buffer_limit: u64 = 1 << 30, Memory(MIB, LONG), live, "Maximum bytes of an incomplete request, of pipelined requests behind a blocking command, and of queued requests, watched keys and subscriptions. A client that exceeds it is closed. Of tracked keys, the oldest are dropped instead.";
    Limits "client-output-buffer-limit" => client_output_buffer_limit: [OutputLimit; 3] = OUTPUT_LIMITS, OutputLimits, live(Sweep), "Maximum bytes of unread replies: class, hard limit, soft limit, seconds. Class pubsub is for subscribers, MONITOR clients and invalidation messages of tracking.";
    Limits "maxmemory-clients" => maxmemory_clients: i64 = 0, MemoryOrPercent, live, "Maximum bytes, or percentage of maxmemory, of the buffers, watched keys, subscriptions and similar data of all clients, at least 128 KiB; 0 for none. Beyond it, the largest clients are closed.";

    Behaviour "notify-keyspace-events" => notify_keyspace_events: Classes = Classes::empty(), Events, live, "Classes of keyspace events that are published, such as KEA.";
    Behaviour "lock-expiry-publish" => lock_expiry_publish: Rules = Rules::default(), Kind::Rules, live, "Messages that are published when a key expires, for waiters on a library's unlock channel. Rules of key pattern, channel and message, or names of shipped sets: redisson, spring, redis-lock-py, simple-redis-mutex. {name}, {hashtag}, {1} and {head:list} are placeholders.";
    Behaviour "busy-reply-threshold" / "lua-time-limit" => busy_reply_threshold: u64 = 5000, Integer(0, LONG), live, "Milliseconds after which a running script may be killed, and other clients get BUSY errors; 0 never.";
    Limits "script-memory-limit" => script_memory_limit: u64 = SCRIPT_MEMORY, Memory(MIB, LONG), live, "Maximum bytes of memory that scripts use at a time, and, separately, functions. Beyond it, the script fails with an error.";
    Compatibility "hash-max-listpack-entries" / "hash-max-ziplist-entries" => hash_max_listpack_entries: u64 = 512, Integer(0, LONG), live, "Maximum number of fields of a hash with the encoding listpack.";
    Compatibility "hash-max-listpack-value" / "hash-max-ziplist-value" => hash_max_listpack_value: u64 = 64, Memory(0, LONG), live, "Maximum bytes of a field or value of a hash with the encoding listpack.";
    Compatibility "list-max-listpack-size" / "list-max-ziplist-size" => list_max_listpack_size: i64 = -2, Integer(-INT - 1, INT), live, "Maximum size of a list in one buffer and of a node of a longer list: a number of elements, or -1 to -5 for 4 to 64 KiB.";
    Compatibility "set-max-intset-entries" => set_max_intset_entries: u64 = 512, Integer(0, LONG), live, "Maximum number of members of a set with the encoding intset.";
    Compatibility "set-max-listpack-entries" => set_max_listpack_entries: u64 = 128, Integer(0, LONG), live, "Maximum number of members of a set with the encoding listpack.";
    Compatibility "set-max-listpack-value" => set_max_listpack_value: u64 = 64, Integer(0, LONG), live, "Maximum bytes of a member of a set with the encoding listpack.";
    Behaviour "hll-sparse-max-bytes" => hll_sparse_max_bytes: u64 = 3000, Memory(0, LONG), live, "Maximum bytes of a HyperLogLog in its sparse encoding.";
    Compatibility "zset-max-listpack-entries" / "zset-max-ziplist-entries" => zset_max_listpack_entries: u64 = 128, Integer(0, LONG), live, "Maximum number of members of a sorted set with the encoding listpack.";
    Compatibility "zset-max-listpack-value" / "zset-max-ziplist-value" => zset_max_listpack_value: u64 = 64, Memory(0, LONG), live, "Maximum bytes of a member of a sorted set with the encoding listpack.";
    Behaviour "stream-node-max-bytes" => stream_node_max_bytes: u64 = 4096, Memory(0, LONG), live, "Maximum bytes of a block of a stream; 0 for no limit.";
    Behaviour "stream-node-max-entries" => stream_node_max_entries: u64 = 100, Integer(0, LONG), live, "Maximum entries of a block of a stream; 0 for no limit.";
    Behaviour "slowlog-log-slower-than" / "commandlog-execution-slower-than" => slowlog_log_slower_than: i64 = 10_000, Integer(-1, LONG), live, "Microseconds from which a request is logged in the slow log; -1 never. Below 1000, every request is timed on its own.";
    Behaviour "slowlog-max-len" / "commandlog-slow-execution-max-len" => slowlog_max_len: u64 = 128, Integer(0, LONG), live, "Maximum number of entries in the slow log.";
    Behaviour "lock-slowlog-log-slower-than" => lock_slowlog_log_slower_than: i64 = 1000, Integer(-1, LONG), live, "Milliseconds from which a wait for a native lock is logged in LOCK.SLOWLOG; 0 always, -1 never.";
    Behaviour "lock-slowlog-max-len" => lock_slowlog_max_len: u64 = 128, Integer(0, 65_536), live, "Maximum number of entries in LOCK.SLOWLOG.";
    Behaviour "lock-history-max-names" => lock_history_max_names: u64 = 4096, Integer(0, 16_777_216), live, "Maximum number of native locks, the most recently used ones, with a history for LOCK.WHY. 0: no history, and NOTHELD errors have no cause.";
    Behaviour "lock-session-grace" => lock_session_grace: u64 = 5000, Integer(0, 86_400_000), live, "Minimum milliseconds for which a named lock session waits for its client after a restart. Its own GRACE may be longer.";
    Behaviour "lock-requests-max" => lock_requests_max: u64 = 100_000, Integer(0, 16_777_216), live, "Maximum number of owners of ended grants whose REQUEST ids are remembered, for up to a minute. Beyond it, those that ended first are forgotten.";
    Behaviour "lock-history-max-events" => lock_history_max_events: u64 = 16, Integer(1, 1024), live, "Maximum number of events in the history of a lock.";
    Limits "diagnostics-max-memory" => diagnostics_max_memory: u64 = 16 << 20, Memory(0, ULONG), live, "Maximum bytes of all that is remembered for diagnosis together: SLOWLOG, ACL LOG, LOCK.SLOWLOG, the histories of locks, their latest events, and clients that have ended. Beyond it, the oldest of all is forgotten. It does not count against maxmemory.";
    Behaviour "latency-monitor-threshold" => latency_monitor_threshold: u64 = 0, Integer(0, LONG), live(LogDetails), "Milliseconds from which a latency event is recorded for LATENCY; 0 never.";
    Behaviour "latency-tracking" => latency_tracking: bool = true, Bool, live, "Record the execution times of each command for INFO latencystats and LATENCY HISTOGRAM.";
    Behaviour "latency-tracking-info-percentiles" => latency_percentiles: Vec<String> = vec!["50".into(), "99".into(), "99.9".into()], Percentiles, live, "Percentiles in INFO latencystats.";
    Limits "tracking-table-max-keys" => tracking_table_max_keys: u64 = 1_000_000, Integer(0, LONG), live, "Maximum number of keys that are tracked for client-side caching; 0 for no limit. Beyond it, random keys are invalidated.";
    Behaviour "enable-debug-command" => enable_debug_command: &'static str = "local", Choice(&["no", "yes", "local"]), fixed, "Who may use DEBUG.";

    Logging "loglevel" => loglevel: &'static str = "notice", Choice(LOG_LEVELS), live(LogLevel), "Minimum level of logged events.";
    Logging "logfile" => logfile: String = String::new(), Text, fixed, "File to which the log is appended. Empty: standard error.";
    Logging "hide-user-data-from-log" => hide_user_data_from_log: bool = false, Bool, live, "Leave out of the log what clients have sent: names of keys, locks, owners and clients, and reasons.";

    Persistence "appendonly" => appendonly: bool = false, Bool, live(Log), "Write each change to an append-only file, and start from it.";
    Persistence "appendfsync" => appendfsync: &'static str = "everysec", Choice(&["everysec", "always", "no"]), live(Syncs), "When the append-only file is synced. always: replies wait until what they show is durable. everysec: once a second. no: when the system likes.";
    Persistence "dir" => dir: String = ".".into(), Text, protected, "Working directory, which has appenddirname and dbfilename.";
    Persistence "dbfilename" => dbfilename: String = "dump.rdb".into(), FileName("dbfilename can't be a path, just a filename"), protected, "Snapshot file in dir, which is loaded at the start with appendonly no. Empty: none is loaded or written.";
    Persistence "rdbchecksum" => rdbchecksum: bool = true, Bool, fixed, "Check the checksum of a snapshot when it is loaded, and write one.";
    Persistence "appenddirname" => appenddirname: String = "appendonlydir".into(), Text, fixed, "Folder of the append-only file, below dir.";
    Persistence "appendfilename" => appendfilename: String = "appendonly.aof".into(), Text, fixed, "Beginning of the names of its files.";
    Persistence "aof-load-truncated" => aof_load_truncated: bool = true, Bool, live, "Start from a file that ends in the middle of a batch, and cut that off. no: refuse to start.";
    Persistence "aof-timestamp-enabled" => aof_timestamp_enabled: bool = false, Bool, live(LogDetails), "Write times into the append-only file, at which redis-check-aof --truncate-to-timestamp can cut it.";
    Testing "key-load-delay" => key_load_delay: i64 = 0, Integer(-INT - 1, INT), live, "Microseconds to wait after each loaded key or request, for tests. -N: a microsecond after each N.";
    Testing "test-wall-clock-ms" => test_wall_clock_ms: i64 = 0, Integer(-DECADE_MS, DECADE_MS), live, "Milliseconds by which the wall clock is wrong, for tests.";
    Testing "test-disk-hangs-ms" => test_disk_hangs_ms: u64 = 0, Integer(0, LONG), live, "Milliseconds for which the disk of a replicated node answers nothing from now on, for tests.";
    Persistence "auto-aof-rewrite-percentage" => auto_aof_rewrite_percentage: u32 = 100, Integer(0, INT), live, "Make a new base when the files have grown by this percentage since the last one; 0 for never.";
    Persistence "auto-aof-rewrite-min-size" => auto_aof_rewrite_min_size: u64 = 64 << 20, Memory(0, LONG), live, "Make no new base before the files have this many bytes.";
    Persistence "save" => save: Vec<String> = Vec::new(), SavePoints, live(SavePoints), "Pairs of seconds and changes: write an RDB snapshot when that many keys have changed in that time, and when the server ends. Empty: never.";
    Persistence "stop-writes-on-bgsave-error" => stop_writes_on_bgsave_error: bool = true, Bool, live(SavePoints), "Refuse writes if there are save points and the last snapshot failed.";
    Behaviour "cluster-enabled" => cluster_enabled: bool = false, Bool, fixed, "Act as a cluster with one shard, for clients that require a cluster: of this node, or of the replicated ones.";
    Behaviour "cluster-announce-ip" => cluster_announce_ip: String = String::new(), Text, live, "Address that clients of a cluster of one node are told. Empty: the address to which they are connected.";
    Behaviour "cluster-announce-port" => cluster_announce_port: u16 = 0, Integer(0, 65535), live, "Port that clients of a cluster of one node are told; 0 for the port to which they are connected.";
    Behaviour "cluster-name" => cluster_name: String = "mymaster".into(), Text, live, "Name by which clients ask for the leader of replicated servers, as for the master of Redis Sentinel.";
    Behaviour "node-id" => node_id: u64 = 0, Integer(0, LONG), fixed, "Number of this node among those that replicate, from 1; 0 for a server on its own.";
    Behaviour "peers" => peers: String = String::new(), Text, fixed, "All nodes of a new cluster, this one included, with their addresses among themselves: 1=host:port,2=host:port,3=host:port.";
    Behaviour "peer-listen" => peer_listen: String = String::new(), Text, fixed, "Address on which this node listens for the other nodes, as host:port, if it is not the one that they have of it in peers: in a container, or behind a proxy.";
    Behaviour "cluster-secret" => cluster_secret: Vec<u8> = Vec::new(), Secret, fixed, "Secret that the nodes of a cluster share. Nodes that do not know it are refused. Empty: none.";
}

const OUTPUT_LIMITS: [OutputLimit; 3] = [
    OutputLimit { hard: 0, soft: 0, seconds: 0 },
    OutputLimit { hard: 256 << 20, soft: 64 << 20, seconds: 60 },
    OutputLimit { hard: 32 << 20, soft: 8 << 20, seconds: 60 },
];
