//! What the engine asks of its driver.

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::driver::{Driver, Present};
use crate::engine::Action;
use crate::engine::config::Effect;
use crate::engine::session::SessionFlags;
use crate::persist::natives::clock::BootClock;
use crate::resp::reply::{Sink, WireReply};

impl Driver {
    /// Carries out what the engine has asked for, and hands the changes on behind it. Returns the first action that only the
    /// adapter can carry out; then this has to be called again. `boot` reads the boot clock.
    #[cold]
    pub fn perform_own_actions(&mut self, at: Present, boot: impl FnOnce() -> BootClock) -> Option<Action> {
        while let Some(action) = self.engine.take_action() {
            if let Some(action) = self.perform_own(at, action) {
                return Some(action);
            }
        }
        // What was switched off or is rewritten is handed on before anything else is written.
        self.submit(at, false, boot);
        self.engine.finish_actions(at.now);
        None
    }

    /// Tells a session that has asked for the end of the server that it goes on.
    pub(super) fn refuse_to_end(&mut self, id: SessionId) {
        let session = &mut self.engine.sessions_mut()[id];
        session.flags.remove(SessionFlags::CLOSE_AFTER_REPLY);
        WireReply::new(&mut session.out, session.protocol).error(Error::SHUTDOWN_FAILED.text());
        self.engine.mark_pending_write(id);
    }

    /// Carries out an action, if that needs nothing but the driver. Returns it otherwise.
    fn perform_own(&mut self, at: Present, action: Action) -> Option<Action> {
        match action {
            Action::Save { session, anew } => self.save(at, session, anew),
            Action::RewriteLog => self.rewrite(at),
            #[cfg(feature = "quorum")]
            Action::HandOver { to } => self.transfer_leadership(at, to),
            #[cfg(feature = "quorum")]
            Action::LookAtFollowers => self.look_at_followers(at),
            #[cfg(feature = "quorum")]
            Action::ChangeMembers(id, change) => self.change_members(at, id, change),
            // Without the feature no server is one of several.
            #[cfg(not(feature = "quorum"))]
            Action::HandOver { .. } | Action::LookAtFollowers | Action::ChangeMembers(..) => {}
            Action::Reconfigured(effect) => match effect {
                Effect::Sweep => self.sweep_soon(at.now),
                Effect::Syncs => self.sync_as_configured(),
                Effect::Log => self.log_as_configured(at),
                Effect::SavePoints => self.save_as_configured(at),
                Effect::LogDetails => self.log_details_as_configured(),
                Effect::LogLevel | Effect::Descriptors => return Some(action),
            },
            other => return Some(other),
        }
        None
    }
}
