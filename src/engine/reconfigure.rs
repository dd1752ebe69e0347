//! Configuration changes: applies a new configuration to the parts of the engine.

use crate::engine::config::{Config, Directive, Effect};
use crate::engine::environment::{ApplyConfig, RewriteConfig};
use crate::engine::{Action, Engine};

/// Greatest values of `proto-max-bulk-len` and `client-query-buffer-limit` on a node. A request is one entry of the log: while a
/// long one is on its way, the other nodes hear nothing else of the leader, and elect another one.
const REQUEST_MAX: [(&str, u64); 2] = [("proto-max-bulk-len", 32 << 20), ("client-query-buffer-limit", 64 << 20)];

/// Expects that a node can have this configuration: no client may send more than it can pass on, and there is no append-only file.
///
/// # Errors
/// The directive that is wrong, and why.
fn check_for_node(config: &Config) -> Result<(), (&'static str, String)> {
    fail_if!(config.appendonly, ("appendonly", "the nodes have a log of their own".to_owned()));
    let values = [config.proto_max_bulk_len, config.client_query_buffer_limit];
    match values.into_iter().zip(REQUEST_MAX).find(|(value, (_, most))| value > most) {
        Some((_, (name, most))) => Err((name, format!("a node passes on at most {}mb at once", most >> 20))),
        None => Ok(()),
    }
}

impl Engine {
    /// Sets what is called before `CONFIG SET` takes effect.
    pub fn on_apply_config(&mut self, apply: ApplyConfig) {
        self.host.apply_config = Some(apply);
    }

    /// Sets what writes the configuration file.
    pub fn on_rewrite_config(&mut self, rewrite: RewriteConfig) {
        self.host.rewrite_config = Some(rewrite);
    }

    /// Has the host apply a configuration in which these directives were set, and switches to it.
    ///
    /// # Errors
    /// The directive that the host refuses, and why. Nothing has changed then.
    pub fn apply_config(&mut self, config: Config, set: &[&'static Directive]) -> Result<(), (&'static str, String)> {
        if self.host.is_node {
            check_for_node(&config)?;
        }
        if let Some(apply) = &mut self.host.apply_config {
            let names: Vec<&'static str> = set.iter().map(|directive| directive.name).collect();
            apply(&config, &names, &mut self.host.environment)?;
        }
        self.reconfigure(config, set.iter().filter_map(|directive| directive.effect));
        Ok(())
    }

    /// Writes the configuration file; `None` without one. Users that have a file of their own are not written to it.
    pub fn rewrite_config(&mut self) -> Option<Result<(), String>> {
        let users = if self.host.users_file.is_some() { Vec::new() } else { self.users.lines() };
        self.host.rewrite_config.as_mut().map(|rewrite| rewrite(&self.config, &users))
    }

    /// Changes directives, as `CONFIG SET` would without the host.
    #[cfg(any(test, feature = "internals"))]
    pub fn change_config(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = self.config.clone();
        change(&mut config);
        self.reconfigure(config, std::iter::empty());
    }

    /// The server is a node from now on: lowers what a client may send to what a node can pass on.
    #[cfg(feature = "quorum")]
    pub fn be_node(&mut self) {
        let [(_, bulk_max), (_, buffer_max)] = REQUEST_MAX;
        self.host.is_node = true;
        self.config.proto_max_bulk_len = self.config.proto_max_bulk_len.min(bulk_max);
        self.config.client_query_buffer_limit = self.config.client_query_buffer_limit.min(buffer_max);
    }

    /// Sets `key-load-delay`, which only the loading of files looks at.
    pub fn set_key_load_delay(&mut self, delay: i64) {
        self.config.key_load_delay = delay;
    }

    /// Sets `maxmemory`, `proto-max-bulk-len` and `script-memory-limit` of an engine that loads files. Returns what they were.
    pub fn set_limits(&mut self, [memory, string, script]: [u64; 3]) -> [u64; 3] {
        let memory = std::mem::replace(&mut self.config.maxmemory, memory);
        let string = std::mem::replace(&mut self.config.proto_max_bulk_len, string);
        let script = std::mem::replace(&mut self.config.script_memory_limit, script);
        self.scripting.interpreters.set_memory_limit(self.config.script_memory_limit);
        self.update_slow_path();
        [memory, string, script]
    }

    /// Switches to a new configuration, and asks the driver for what follows from the directives that were set.
    pub fn reconfigure(&mut self, config: Config, effects: impl Iterator<Item = Effect>) {
        let password_changed = config.requirepass != self.config.requirepass;
        let clients_changed = config.maxmemory_clients != self.config.maxmemory_clients;
        let memory_changed = (config.maxmemory, config.maxmemory_policy) != (self.config.maxmemory, self.config.maxmemory_policy);
        self.config = config;
        self.distribute_config();
        if memory_changed {
            // Forces a new measurement.
            self.memory.measure_again(self.config.maxmemory != 0);
        }
        if clients_changed {
            self.configure_client_memory();
        }
        if password_changed {
            self.set_default_password();
        }
        self.work.actions.extend(effects.map(Action::Reconfigured));
        self.update_slow_path();
    }

    /// Copies the values of the configuration to the parts of the engine that work by them.
    pub(super) fn distribute_config(&mut self) {
        self.configure_eviction();
        self.users.all_channels = self.config.acl_pubsub_default == "allchannels";
        self.keyspace.changes.notify = self.config.notify_keyspace_events;
        self.update_expiry_rules();
        self.keyspace.hash_limits = self.config.hash_limits();
        self.keyspace.list_limits = self.config.list_limits();
        self.keyspace.zset_limits = self.config.zset_limits();
        self.keyspace.set_limits = self.config.set_limits();
        self.keyspace.stream_limits = self.config.stream_limits();
        self.keyspace.changes.tracking.keys_max = self.config.tracking_table_max_keys;
        self.update_timing();
        self.bound_lock_records();
        self.bound_diagnosis();
        self.scripting.interpreters.set_memory_limit(self.config.script_memory_limit);
    }
}
