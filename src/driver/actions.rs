//! What the engine asks of its driver.

use crate::driver::{Driver, Present};
use crate::engine::Action;

impl Driver {
    /// Carries out an action of the engine, if that needs nothing but the driver. Returns it otherwise. [`Driver::submit`]
    /// belongs behind it.
    #[cold]
    pub fn act(&mut self, at: Present, action: Action) -> Option<Action> {
        match action {
            Action::Save { session, anew } => self.save(at, session, anew),
            Action::RewriteLog => self.rewrite(at),
            #[cfg(feature = "quorum")]
            Action::HandOver { to } => self.transfer_leadership(at, to),
            #[cfg(feature = "quorum")]
            Action::LookAtFollowers => self.look_at_followers(at),
            // Without the feature no server is one of several.
            #[cfg(not(feature = "quorum"))]
            Action::HandOver { .. } | Action::LookAtFollowers => {}
            Action::ConfigChanged("timeout" | "client-output-buffer-limit") => self.sweep_soon(at.now),
            Action::ConfigChanged("appendfsync") => self.sync_as_configured(),
            Action::ConfigChanged("appendonly") => self.log_as_configured(at),
            Action::ConfigChanged("save" | "stop-writes-on-bgsave-error") => self.save_as_configured(at),
            Action::ConfigChanged("aof-timestamp-enabled" | "latency-monitor-threshold") => self.log_details_as_configured(),
            other => return Some(other),
        }
        None
    }
}
