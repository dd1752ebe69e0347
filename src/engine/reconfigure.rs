//! Configuration changes: applies a new configuration to the parts of the engine.

use crate::engine::config::{Config, Effect};
use crate::engine::{Action, Engine};

impl Engine {
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
        self.actions.extend(effects.map(Action::Reconfigured));
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
        self.scripts.set_memory_limit(self.config.script_memory_limit);
    }
}
