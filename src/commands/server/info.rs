//! INFO: the state of the server, in sections of `name:value` lines.
//!
//! All values are true. Fields that clients and exporters require, but that concern features that do not exist here (replicas,
//! forks, modules), are zero. Values that are unknown without a clock or a profiler are left out.

use std::fmt::{Display, Write};

use crate::base::durations::Durations;
use crate::base::error::Error;
use crate::base::time::Now;
use crate::base::version::{PORTCULLIS_VERSION, REDIS_VERSION};
use crate::commands;
use crate::commands::server::info_replication;
use crate::commands::server::memory::Overhead;
use crate::engine::command::Command;
use crate::engine::environment::Usage;
use crate::engine::observe::command_stats::Slot;
use crate::engine::persistence::Loading;
use crate::engine::pubsub::Kind;
use crate::engine::{ADVANCE_BUDGET, Engine};

/// Number of keys that are sampled to estimate the average time to live in a database.
const TTL_SAMPLES: usize = 64;

/// A section of the report.
struct Section {
    /// Its name in requests, in lower case.
    name: &'static str,
    heading: &'static str,
    write: fn(&mut Report<'_>),
}

const SECTIONS: &[Section] = &[
    Section { name: "server", heading: "Server", write: server },
    Section { name: "portcullis", heading: "Portcullis", write: portcullis },
    Section { name: "clients", heading: "Clients", write: clients },
    Section { name: "memory", heading: "Memory", write: memory },
    Section { name: "persistence", heading: "Persistence", write: persistence },
    Section { name: "stats", heading: "Stats", write: stats },
    Section { name: LOCKS, heading: "Locks", write: locks },
    Section { name: "replication", heading: "Replication", write: info_replication::replication },
    Section { name: "cpu", heading: "CPU", write: cpu },
    Section { name: "modules", heading: "Modules", write: |_| {} },
    Section { name: "commandstats", heading: "Commandstats", write: commandstats },
    Section { name: "errorstats", heading: "Errorstats", write: errorstats },
    Section { name: "latencystats", heading: "Latencystats", write: latencystats },
    Section { name: "cluster", heading: "Cluster", write: cluster },
    Section { name: SENTINEL, heading: "Sentinel", write: info_replication::sentinel },
    Section { name: KEYSPACE, heading: "Keyspace", write: keyspace },
];

/// The section that only a replicated server has.
const SENTINEL: &str = "sentinel";
/// The sections about keys, which a follower does not have.
const KEYSPACE: &str = "keyspace";
const LOCKS: &str = "locks";

/// Sections that are not part of the default.
const ON_REQUEST: [&str; 2] = ["commandstats", "latencystats"];

/// The source of the values, and the report so far.
pub(super) struct Report<'a> {
    pub(super) engine: &'a mut Engine,
    now: Now,
    usage: Usage,
    text: String,
}

impl Report<'_> {
    pub(super) fn line(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.text, "{name}:{value}\r\n");
    }

    /// Writes a number of bytes, and again in human-readable form.
    fn bytes(&mut self, name: &str, bytes: u64) {
        self.line(name, bytes);
        self.line(&format!("{name}_human"), human(bytes));
    }

    pub(super) fn zeros(&mut self, names: &[&str]) {
        for name in names {
            self.line(name, 0);
        }
    }
}

/// Whether a report with these sections counts keys or locks.
pub fn counts_keys(asked: &[&[u8]]) -> bool {
    let sections = ["all", "everything", "default", KEYSPACE, LOCKS];
    asked.is_empty() || asked.iter().any(|word| sections.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes())))
}

/// The report of `INFO` with the requested sections, or the default ones if there are none.
pub fn report(engine: &mut Engine, now: Now, asked: &[&[u8]]) -> String {
    let has = |name: &str| asked.iter().any(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    let all = has("all") || has("everything");
    let default = asked.is_empty() || has("default");
    let usage = engine.usage();
    let mut report = Report { engine, now, usage, text: String::new() };
    for section in SECTIONS {
        let by_default = default && !ON_REQUEST.contains(&section.name);
        let replication = report.engine.replication();
        let exists = match section.name {
            SENTINEL => replication.is_on(),
            // Those of the keys that this server serves, which are none on a follower.
            KEYSPACE | LOCKS => !replication.refuses(),
            _ => true,
        };
        if !exists || !all && !by_default && !has(section.name) {
            continue;
        }
        if !report.text.is_empty() {
            report.text.push_str("\r\n");
        }
        let _ = write!(report.text, "# {}\r\n", section.heading);
        (section.write)(&mut report);
    }
    report.text
}

/// A number of bytes in human-readable form: `1.52M`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "K", "M", "G", "T", "P"];
    let unit = ((bytes.max(1).ilog2() / 10) as usize).min(UNITS.len() - 1);
    match unit {
        0 => format!("{bytes}B"),
        _ => format!("{:.2}{}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit]),
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn server(r: &mut Report<'_>) {
    let environment = r.engine.environment().clone();
    let uptime_s = (r.now.mono_us() - r.engine.started().mono_us().min(r.now.mono_us())) / 1_000_000;
    r.line("redis_version", REDIS_VERSION);
    r.line("redis_git_sha1", "00000000");
    r.line("redis_git_dirty", 0);
    r.line("redis_build_id", "0");
    let mode = if r.engine.in_cluster() { "cluster" } else { "standalone" };
    r.line("redis_mode", mode);
    r.line("os", &environment.os);
    r.line("arch_bits", usize::BITS);
    r.line("monotonic_clock", "POSIX clock_gettime");
    r.line("multiplexing_api", environment.multiplexing);
    r.line("atomicvar_api", "c11-builtin");
    // As Redis has it where it was not built by GCC.
    r.line("gcc_version", "0.0.0");
    r.line("process_id", environment.process_id);
    r.line("process_supervised", "no");
    let run_id = r.engine.run_id().to_owned();
    r.line("run_id", run_id);
    r.line("tcp_port", environment.tcp_port);
    r.line("server_time_usec", r.now.unix_us());
    r.line("uptime_in_seconds", uptime_s);
    r.line("uptime_in_days", uptime_s / 86_400);
    // There are no periodic jobs, but some clients divide by this value.
    let hz = String::from_utf8_lossy(&r.engine.config().get("hz").unwrap_or_default()).into_owned();
    r.line("hz", &hz);
    r.line("configured_hz", &hz);
    r.line("lru_clock", (r.now.unix_ms() / 1000) & 0xff_ffff);
    r.line("executable", &environment.executable);
    r.line("config_file", &environment.config_file);
    r.line("io_threads_active", 0);
    for (i, listener) in environment.listeners.iter().enumerate() {
        r.line(&format!("listener{i}"), listener);
    }
}

fn portcullis(r: &mut Report<'_>) {
    let (timers, late_ms_max) = (r.engine.keyspace().timers(), r.engine.keyspace().stats.late_ms_max);
    let next_ms = r.engine.next_deadline().map_or(-1, |at| r.now.left_ms(at) as i64);
    let unfreed = r.engine.keyspace().has_unfreed() as u8;
    let (changes, turns, full_turns) =
        (r.engine.keyspace().changes.count, r.engine.stats().advances, r.engine.stats().full_advances);
    r.line("portcullis_version", PORTCULLIS_VERSION);
    r.line("timers", timers);
    r.line("next_wake_in_milliseconds", next_ms);
    r.line("expiry_lateness_milliseconds_max", late_ms_max);
    r.line("timer_turns", turns);
    r.line("timer_turns_at_budget", full_turns);
    r.line("timer_turn_budget", ADVANCE_BUDGET);
    r.line("memory_waits_to_be_freed", unfreed);
    let turns = r.engine.turns();
    let (count, us, long, off_cpu_us) = (turns.histogram.total(), turns.ns / 1000, turns.long, turns.off_cpu_ns / 1000);
    let longest = turns.longest.clone().unwrap_or_default();
    let percentiles = [50.0, 99.0, 99.9].map(|p| format!("p{p}={:.3}", turns.histogram.percentile(p) as f64 / 1000.0));
    let bounds: Vec<String> = turns.histogram.cumulative().iter().map(|(us, count)| format!("{us}={count}")).collect();
    r.line("turns", count);
    r.line("turns_usec", us);
    r.line("turns_over_1_millisecond", long);
    r.line("turns_without_processor_usec", off_cpu_us);
    r.line("turn_longest_usec", longest.ns / 1000);
    r.line("turn_longest_processor_usec", longest.cpu_ns / 1000);
    r.line("turn_longest_task", longest.task);
    r.line("turn_longest_command", longest.command.unwrap_or_default());
    r.line("turn_percentiles_usec", percentiles.join(","));
    r.line("turn_histogram_usec", bounds.join(","));
    let stats = r.engine.stats();
    let closed = stats.query_limit_disconnections + stats.output_limit_disconnections;
    r.line("client_limit_disconnections", closed);
    r.line("changes", changes);
}

fn clients(r: &mut Report<'_>) {
    let sessions = || r.engine.sessions().iter().map(|(_, session)| session);
    let connected = r.engine.sessions().len();
    let in_max = sessions().map(|session| session.query_buffer as usize).max().unwrap_or(0);
    let out_max = sessions().map(|session| session.out.len()).max().unwrap_or(0);
    let subscribed = sessions().filter(|session| session.subscriptions != [0; 3]).count();
    r.line("connected_clients", connected);
    r.line("cluster_connections", 0);
    r.line("maxclients", r.engine.config().maxclients);
    r.line("client_recent_max_input_buffer", in_max);
    r.line("client_recent_max_output_buffer", out_max);
    let changes = &r.engine.keyspace().changes;
    let (waiters, timed, waited) = (changes.waits.waiters(), changes.waits.timed(), changes.waits.keys());
    let (watchers, watched) = (changes.watches.watchers(), changes.watches.keys());
    let trackers = changes.tracking.trackers();
    let held = r.engine.pause_state().held();
    let on_removal = changes.waits.keys_waited_on_removal();
    let for_locks = changes.locks.as_ref().map_or(0, |locks| locks.queues.waiters());
    r.line("blocked_clients", waiters + held + for_locks);
    r.line("tracking_clients", trackers);
    r.line("pubsub_clients", subscribed);
    r.line("watching_clients", watchers);
    r.line("clients_in_timeout_table", timed);
    r.line("total_watched_keys", watched);
    r.line("total_blocking_keys", waited);
    r.line("total_blocking_keys_on_nokey", on_removal);
}

fn memory(r: &mut Report<'_>) {
    let usage = r.usage;
    let (peak, overhead) = (r.engine.stats().memory_peak, Overhead::of(r.engine));
    let dataset = usage.allocated.saturating_sub(overhead.total());
    r.bytes("used_memory", usage.allocated);
    r.bytes("used_memory_rss", usage.resident);
    r.bytes("used_memory_peak", peak);
    r.line("used_memory_peak_perc", format!("{:.2}%", ratio(usage.allocated, peak) * 100.0));
    r.line("used_memory_overhead", overhead.total());
    r.line("used_memory_startup", 0);
    r.line("used_memory_dataset", dataset);
    r.line("used_memory_dataset_perc", format!("{:.2}%", ratio(dataset, usage.allocated) * 100.0));
    r.line("allocator_allocated", usage.allocated);
    r.line("allocator_active", usage.resident);
    r.line("allocator_resident", usage.resident);
    r.zeros(&["allocator_muzzy", "rss_overhead_bytes"]);
    let fragmented = usage.resident.saturating_sub(usage.allocated);
    r.line(
        "allocator_frag_ratio",
        format!("{:.2}", if usage.allocated == 0 { 1.0 } else { ratio(usage.resident, usage.allocated) }),
    );
    r.line("allocator_frag_bytes", fragmented);
    r.line("allocator_rss_ratio", "1.00");
    r.line("allocator_rss_bytes", 0);
    r.line("rss_overhead_ratio", "1.00");
    let system = r.engine.environment().system_memory;
    r.bytes("total_system_memory", system);
    let (interpreter, cache) = (r.engine.lua().scripts.interpreter_bytes() as u64, r.engine.lua().scripts.cache_bytes() as u64);
    r.bytes("used_memory_lua", interpreter);
    r.line("used_memory_vm_eval", interpreter);
    r.line("used_memory_scripts_eval", cache);
    r.line("number_of_cached_scripts", r.engine.lua().scripts.len());
    let (functions, libraries) = (r.engine.lua().functions.functions(), r.engine.lua().functions.libraries());
    r.line("number_of_functions", functions);
    r.line("number_of_libraries", libraries);
    let functions_interpreter = r.engine.lua().functions.interpreter_bytes() as u64;
    r.line("used_memory_vm_functions", functions_interpreter);
    r.bytes("used_memory_vm_total", interpreter + functions_interpreter);
    let library_bytes = r.engine.lua().functions.library_bytes() as u64;
    r.line("used_memory_functions", library_bytes);
    r.bytes("used_memory_scripts", cache + library_bytes);
    let maxmemory = r.engine.config().maxmemory;
    r.bytes("maxmemory", maxmemory);
    let policy = r.engine.config().maxmemory_policy;
    r.line("maxmemory_policy", policy);
    let fragmentation = if usage.allocated == 0 { 1.0 } else { ratio(usage.resident, usage.allocated) };
    r.line("mem_fragmentation_ratio", format!("{fragmentation:.2}"));
    r.line("mem_fragmentation_bytes", usage.resident as i64 - usage.allocated as i64);
    let not_counted = r.engine.not_counted();
    r.line("mem_not_counted_for_evict", not_counted);
    r.zeros(&["mem_replication_backlog", "mem_total_replication_buffers"]);
    // Tables grow incrementally and are never held twice.
    r.zeros(&["mem_overhead_db_hashtable_rehashing", "mem_clients_slaves"]);
    r.line("mem_clients_normal", overhead.clients);
    r.zeros(&["mem_cluster_links", "mem_aof_buffer"]);
    let allocator = r.engine.environment().allocator;
    r.line("mem_allocator", allocator);
    r.line("active_defrag_running", 0);
    let (pending, freed) = (r.engine.keyspace().space.unfreed_len(), r.engine.keyspace().space.freed());
    r.line("lazyfree_pending_objects", pending);
    r.line("lazyfreed_objects", freed);
}

fn persistence(r: &mut Report<'_>) {
    let snapshot = r.engine.persistence().snapshot.clone();
    let status = |failed: bool| if failed { "err" } else { "ok" };
    let now_ms = r.now.mono_ms();
    let seconds_since = |since_ms: Option<u64>| since_ms.map_or(-1, |since_ms| (now_ms.saturating_sub(since_ms) / 1000) as i64);
    let seconds = |seconds: Option<u64>| seconds.map_or(-1, |seconds| seconds as i64);
    let started_s = r.engine.started().unix_ms() / 1000;
    let loading = r.engine.persistence().loading().cloned();
    r.line("loading", u8::from(loading.is_some()));
    r.zeros(&["async_loading"]);
    let changes = snapshot.changes_since(r.engine.keyspace().changes.count);
    r.line("rdb_changes_since_last_save", changes);
    r.line("rdb_bgsave_in_progress", u8::from(snapshot.since_ms.is_some()));
    r.line("rdb_last_save_time", snapshot.last_unix_s.unwrap_or(started_s));
    r.line("rdb_last_bgsave_status", status(snapshot.failed));
    r.line("rdb_last_bgsave_time_sec", seconds(snapshot.took_s));
    r.line("rdb_current_bgsave_time_sec", seconds_since(snapshot.since_ms));
    r.line("rdb_saves", snapshot.made);
    r.zeros(&["rdb_last_cow_size"]);
    let [expired, loaded] = r.engine.persistence().last_load;
    r.line("rdb_last_load_keys_expired", expired);
    r.line("rdb_last_load_keys_loaded", loaded);
    let figures = r.engine.persistence().figures.as_ref().map(|figures| figures());
    let log = figures.clone().unwrap_or_default();
    r.line("aof_enabled", u8::from(figures.is_some()));
    r.line("aof_rewrite_in_progress", u8::from(log.rewriting_since_ms.is_some()));
    let refusal = r.engine.persistence().refusal();
    let log_refuses = refusal.is_some_and(|refusal| *refusal != Error::MISCONF_SNAPSHOTS);
    let scheduled = r.engine.persistence().rewrite_scheduled;
    r.line("aof_rewrite_scheduled", u8::from(scheduled));
    r.line("aof_rewrites_consecutive_failures", log.rewrite_failures);
    r.line("aof_last_rewrite_time_sec", seconds(log.rewrite_s));
    r.line("aof_current_rewrite_time_sec", seconds_since(log.rewriting_since_ms));
    r.line("aof_last_bgrewrite_status", status(log.rewrite_failures > 0));
    r.line("aof_last_write_status", status(log_refuses));
    r.zeros(&[
        "aof_last_cow_size",
        "module_fork_in_progress",
        "module_fork_last_cow_size",
        "current_cow_peak",
        "current_cow_size",
    ]);
    r.zeros(&["current_cow_size_age"]);
    let [processed, total] = snapshot.keys;
    r.line("current_save_keys_processed", processed);
    r.line("current_save_keys_total", total);
    r.line("aof_rewrites", log.rewrites);
    // Redis's name; nothing is forked.
    let share = if total == 0 { 0.0 } else { processed as f64 * 100.0 / total as f64 };
    r.line("current_fork_perc", format_args!("{share:.2}"));
    if figures.is_some() {
        r.line("aof_current_size", log.size);
        r.line("aof_base_size", log.base_size);
        r.zeros(&["aof_pending_rewrite"]);
        r.line("aof_buffer_length", log.queued);
        r.line("aof_pending_bio_fsync", u8::from(log.syncing));
        r.line("aof_delayed_fsync", log.delayed_syncs);
        let [written, durable] = log.batches;
        r.line("log_batch_written", written);
        r.line("log_batch_durable", durable);
        let Durations { count, p50_us, p99_us, max_us } = log.syncs;
        r.line("log_held_replies", log.held);
        r.line("log_syncs", count);
        r.line("log_sync_usec", format_args!("p50={p50_us},p99={p99_us},max={max_us}"));
    }
    if let Some(loading) = loading {
        show_loading(r, &loading);
    }
}

/// The fields that are there only while files are loaded.
fn show_loading(r: &mut Report<'_>, loading: &Loading) {
    let Loading { started_s, total_bytes, loaded_bytes, used_memory } = *loading;
    let elapsed_s = (r.now.unix_ms() / 1000).saturating_sub(started_s).max(0) as u64;
    let left = total_bytes.saturating_sub(loaded_bytes);
    // As Redis: a second, as long as there is no measure.
    let eta_s = if elapsed_s == 0 { 1 } else { elapsed_s.saturating_mul(left) / (loaded_bytes + 1) };
    r.line("loading_start_time", started_s);
    r.line("loading_total_bytes", total_bytes);
    r.line("loading_rdb_used_mem", used_memory);
    r.line("loading_loaded_bytes", loaded_bytes);
    r.line("loading_loaded_perc", format_args!("{:.2}", loaded_bytes as f64 / total_bytes.max(1) as f64 * 100.0));
    r.line("loading_eta_seconds", eta_s);
}

fn stats(r: &mut Report<'_>) {
    let counters = r.engine.stats().clone();
    let keys = r.engine.keyspace().stats;
    let [commands, bytes_in, bytes_out, cycles, busy_us] = r.engine.rates().per_second();
    r.line("total_connections_received", counters.connections);
    r.line("total_commands_processed", counters.commands);
    r.line("instantaneous_ops_per_sec", commands);
    r.line("total_net_input_bytes", counters.net_in);
    r.line("total_net_output_bytes", counters.net_out);
    r.zeros(&["total_net_repl_input_bytes", "total_net_repl_output_bytes"]);
    r.line("instantaneous_input_kbps", format!("{:.2}", bytes_in as f64 / 1024.0));
    r.line("instantaneous_output_kbps", format!("{:.2}", bytes_out as f64 / 1024.0));
    for name in ["instantaneous_input_repl_kbps", "instantaneous_output_repl_kbps"] {
        r.line(name, "0.00");
    }
    r.line("rejected_connections", counters.rejected);
    r.zeros(&["sync_full", "sync_partial_ok", "sync_partial_err"]);
    r.line("expired_subkeys", keys.expired_fields);
    r.line("expired_keys", keys.expired);
    r.line("expired_stale_perc", "0.00");
    r.line("expired_time_cap_reached_count", counters.full_advances);
    r.line("expire_cycle_cpu_milliseconds", counters.expiring_ns / 1_000_000);
    r.line("evicted_keys", keys.evicted);
    r.line("evicted_clients", counters.evicted_clients);
    r.line("evicted_scripts", r.engine.lua().scripts.evicted);
    let over_us = r.engine.over_maxmemory_us(r.now);
    r.line("total_eviction_exceeded_time", (counters.over_maxmemory_us + over_us) / 1000);
    r.line("current_eviction_exceeded_time", over_us / 1000);
    r.line("keyspace_hits", keys.hits);
    r.line("keyspace_misses", keys.misses);
    let [channels, patterns, shards] = Kind::ALL.map(|kind| r.engine.pubsub().topic_count(kind));
    r.line("pubsub_channels", channels);
    r.line("pubsub_patterns", patterns);
    r.line("pubsubshard_channels", shards);
    r.zeros(&["latest_fork_usec", "total_forks", "migrate_cached_sockets", "slave_expires_tracked_keys"]);
    let tracking = &r.engine.keyspace().changes.tracking;
    let (tracked, items, prefixes) = (tracking.keys(), tracking.items(), tracking.prefixes());
    r.line("tracking_total_keys", tracked);
    r.line("tracking_total_items", items);
    r.line("tracking_total_prefixes", prefixes);
    // Only replicas cause these errors.
    r.zeros(&["unexpected_error_replies"]);
    r.line("total_reads_processed", counters.reads);
    r.line("total_writes_processed", counters.writes);
    r.zeros(&["io_threaded_reads_processed", "io_threaded_writes_processed"]);
    r.line("client_query_buffer_limit_disconnections", counters.query_limit_disconnections);
    r.line("client_output_buffer_limit_disconnections", counters.output_limit_disconnections);
    // There is a single reply buffer, which serves one client at a time.
    r.zeros(&["reply_buffer_shrinks", "reply_buffer_expands"]);
    let [all_cycles, all_busy_us] = r.engine.event_loop();
    // The commands in a transaction are counted themselves, so EXEC is left out.
    let commands = known_commands(r.engine).filter(|(row, _)| !row.is_exec());
    let command_us = commands.map(|(_, slot)| slot.ns).sum::<u64>() / 1000;
    r.line("eventloop_cycles", all_cycles);
    r.line("eventloop_duration_sum", all_busy_us);
    r.line("eventloop_duration_cmd_sum", command_us);
    r.line("instantaneous_eventloop_cycles_per_sec", cycles);
    r.line("instantaneous_eventloop_duration_usec", busy_us.checked_div(cycles).unwrap_or(0));
    r.zeros(&["active_defrag_hits", "active_defrag_misses", "active_defrag_key_hits", "active_defrag_key_misses"]);
    // RESTORE always checks a payload while it loads it, so there are no separate sanitizations.
    r.zeros(&["total_active_defrag_time", "current_active_defrag_time", "dump_payload_sanitizations"]);
    r.line("total_error_replies", counters.error_replies);
    let [auth, command, key, channel] = r.engine.users().log.denied();
    for (what, count) in [("auth", auth), ("cmd", command), ("key", key), ("channel", channel)] {
        r.line(&format!("acl_access_denied_{what}"), count);
    }
}

fn cpu(r: &mut Report<'_>) {
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    let (system, user) = (seconds(r.usage.cpu_system_us), seconds(r.usage.cpu_user_us));
    r.line("used_cpu_sys", system);
    r.line("used_cpu_user", user);
    r.line("used_cpu_sys_children", "0.000000");
    r.line("used_cpu_user_children", "0.000000");
    let (system, user) = (seconds(r.usage.thread_system_us), seconds(r.usage.thread_user_us));
    r.line("used_cpu_sys_main_thread", system);
    r.line("used_cpu_user_main_thread", user);
}

fn errorstats(r: &mut Report<'_>) {
    let errors = std::mem::take(&mut r.engine.stats_mut().errors);
    for (code, count) in &errors {
        // A script can produce any error code. Characters that would break the line are replaced by `_`.
        let code: String = code.chars().map(|c| if c.is_ascii_graphic() && c != ':' { c } else { '_' }).collect();
        r.line(&format!("errorstat_{code}"), format_args!("count={count}"));
    }
    r.engine.stats_mut().errors = errors;
}

/// All commands that have been called or refused, with their statistics.
fn known_commands(engine: &Engine) -> impl Iterator<Item = (&'static Command, &Slot)> {
    let rows = commands::all().flat_map(|row| std::iter::once(row).chain(row.subcommands));
    rows.filter_map(|row| engine.command_stats().get(row).map(|slot| (row, slot)))
}

fn commandstats(r: &mut Report<'_>) {
    for (row, slot) in known_commands(r.engine) {
        let Slot { calls, rejected, failed, ns, .. } = *slot;
        if (calls, rejected, failed) == (0, 0, 0) {
            continue;
        }
        let us = ns / 1000;
        let _ = write!(
            r.text,
            "cmdstat_{}:calls={calls},usec={us},usec_per_call={:.2},rejected_calls={rejected},failed_calls={failed}\r\n",
            commands::full_name(row),
            ratio(ns, calls) / 1000.0
        );
    }
}

fn latencystats(r: &mut Report<'_>) {
    for (row, slot) in known_commands(r.engine) {
        let Some(histogram) = &slot.histogram else { continue };
        let percentile = |percent: &String| {
            let ns = percent.parse().map_or(0, |percent| histogram.percentile(percent));
            format!("p{percent}={:.3}", ns as f64 / 1000.0)
        };
        let shown: Vec<String> = r.engine.config().latency_percentiles.iter().map(percentile).collect();
        let _ = write!(r.text, "latency_percentiles_usec_{}:{}\r\n", commands::full_name(row), shown.join(","));
    }
}

fn cluster(r: &mut Report<'_>) {
    let enabled = r.engine.in_cluster() as u8;
    r.line("cluster_enabled", enabled);
}

fn keyspace(r: &mut Report<'_>) {
    for index in 0..r.engine.keyspace().databases() as u32 {
        let now = r.now;
        let db = r.engine.keyspace_mut().db(index, now);
        let (keys, expires) = (db.len(), db.volatile());
        if keys == 0 {
            continue;
        }
        let avg_ttl = if expires == 0 { 0 } else { db.sampled_ttl_ms(TTL_SAMPLES) };
        let subexpiry = db.volatile_hashes();
        let line = format!("keys={keys},expires={expires},avg_ttl={avg_ttl},subexpiry={subexpiry}");
        r.line(&format!("db{index}"), line);
    }
}

/// Native locks of all databases. The counters are those of `LOCK.STATS`, and so are the figures of the present.
fn locks(r: &mut Report<'_>) {
    let Some(locks) = r.engine.keyspace_mut().changes.locks.take() else { return };
    let (held, stats) = (locks.held.total(), &locks.stats);
    let now: [(&str, u64); 12] = [
        ("lock_held", held.locks),
        ("lock_semaphores_held", held.semaphores),
        ("lock_permits_out", held.permits),
        ("lock_holders", held.grants),
        ("lock_session_holders", locks.session_grants() as u64),
        ("lock_waiters", locks.queues.waiters() as u64),
        ("lock_contended", locks.queues.contended() as u64),
        ("lock_longest_queue", u64::from(stats.longest_queue)),
        ("lock_last_fence", locks.next_token() - 1),
        ("lock_slowlog_len", stats.long.len() as u64),
        ("lock_remembered_names", locks.history.len() as u64),
        ("lock_expiry_publish_rules", r.engine.config().lock_expiry_publish.all().len() as u64),
    ];
    let totals = [
        ("lock_grants", stats.grants),
        ("lock_immediate_grants", stats.immediate),
        ("lock_queued_grants", stats.queued),
        ("lock_releases", stats.releases),
        ("lock_expiries", stats.expiries),
        ("lock_session_ends", stats.session_ends),
        ("lock_deletions", stats.deletions),
        ("lock_timeouts", stats.timeouts),
        ("lock_deadlocks_refused", stats.deadlocks),
        ("lock_expiry_messages", r.engine.stats().expiry_messages),
    ];
    let waits = [("p50", 50.0), ("p99", 99.0), ("p999", 99.9), ("max", 100.0)];
    let percentiles = locks.wait_percentiles_us(r.now, waits.map(|(_, percent)| percent));
    let figures = locks.figures(r.now);
    r.engine.keyspace_mut().changes.locks = Some(locks);
    now.into_iter().chain(totals).for_each(|(name, value)| r.line(name, value));
    // Two have lines already: the number of waiters, and that of held locks.
    for (name, value) in figures.into_iter().filter(|(name, _)| !["waiting", "held"].contains(name)) {
        r.line(&format!("lock_{}", name.replace('-', "_")), value);
    }
    for ((name, _), us) in waits.into_iter().zip(percentiles) {
        r.line(&format!("lock_wait_usec_{name}"), us);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::config::Config;
    use crate::engine::session::Peer;

    fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    #[test]
    fn sections_are_chosen_by_name_in_any_case() {
        let mut engine = Engine::new(Config::default(), 1, Now::default(), crate::commands::table());
        let headings = |engine: &mut Engine, asked: &[&[u8]]| -> Vec<String> {
            let text = report(engine, Now::default(), asked);
            text.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(headings(&mut engine, &[b"SERVER", b"keyspace"]), ["# Server", "# Keyspace"]);
        // One section is that of replicated servers.
        let all = SECTIONS.len() - 1;
        assert_eq!(headings(&mut engine, &[]).len(), all - ON_REQUEST.len());
        assert_eq!(headings(&mut engine, &[b"default"]).len(), all - ON_REQUEST.len());
        assert_eq!(headings(&mut engine, &[b"default", b"commandstats"]).len(), all - ON_REQUEST.len() + 1);
        assert_eq!(headings(&mut engine, &[b"ALL"]).len(), all);
        assert_eq!(headings(&mut engine, &[b"everything"]).len(), all);
        assert_eq!(headings(&mut engine, &[b"sentinel"]).len(), 0);
        assert_eq!(headings(&mut engine, &[b"nosuch"]).len(), 0);
    }

    #[test]
    fn what_was_done_is_counted() {
        let now = Now::new(1_000_000, 1_700_000_000_000);
        let mut engine = Engine::new(Config::default(), 1, now, crate::commands::table());
        let id = engine.connect(now, Peer::default());
        let requests: [&[&[u8]]; 5] =
            [&[b"set", b"a", b"1", b"px", b"5000"], &[b"get", b"a"], &[b"get", b"b"], &[b"nosuch"], &[b"set", b"b", b"2"]];
        for args in requests {
            engine.execute(now, id, args);
        }
        let later = Now::new(now.mono_us() + 2_000_000, now.wall_offset_ms());
        engine.advance(later);
        let text = report(&mut engine, later, &[]);
        // The timer wheel may have work before the deadline.
        let wake_ms: i64 = field(&text, "next_wake_in_milliseconds").unwrap().parse().unwrap();
        assert!((1..=3000).contains(&wake_ms), "{wake_ms}");
        assert!(text.lines().all(|line| line.is_empty() || line.starts_with("# ") || line.contains(':')));
        for (name, value) in [
            ("uptime_in_seconds", "2"),
            ("connected_clients", "1"),
            ("total_commands_processed", "4"),
            ("keyspace_hits", "1"),
            ("keyspace_misses", "1"),
            ("errorstat_ERR", "count=1"),
            ("db0", "keys=2,expires=1,avg_ttl=3000,subexpiry=0"),
            ("timers", "1"),
            ("role", "master"),
        ] {
            assert_eq!(field(&text, name), Some(value), "{name}");
        }
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(human(0), "0B");
        assert_eq!(human(1023), "1023B");
        assert_eq!(human(1024), "1.00K");
        assert_eq!(human(1_597_720), "1.52M");
        assert_eq!(human(u64::MAX), "16384.00P");
    }
}
