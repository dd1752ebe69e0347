//! Access control: checks sessions against the rules of their users.
//!
//! A session whose user may do everything has [`SessionFlags::UNRESTRICTED`], and no check here runs for it: the flag is updated
//! whenever the session gets another user or the user gets other rules. For all other sessions, every command is checked: when a
//! client sends it, when it is queued and when its transaction runs, and when a script calls it.

use std::collections::BTreeMap;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags};
use crate::engine::context::Context;
use crate::engine::observe::client_line;
use crate::engine::observe::notices::Notice;
use crate::engine::pubsub::Kind;
use crate::engine::session::{Session, SessionFlags};
use crate::engine::users::guesses::Source;
use crate::engine::users::log::{Denied, Place, Reason};
use crate::engine::users::selector::{Denial, Permission, Selector};
use crate::engine::users::sight::Sight;
use crate::engine::users::user::User;
use crate::engine::users::{Replaced, UserId, Users};

impl Engine {
    /// Whether the session must authenticate before it is served.
    #[inline]
    pub fn must_log_in(&self, id: SessionId) -> bool {
        let flags = self.clients.sessions[id].flags;
        !flags.intersects(SessionFlags::AUTHENTICATED | SessionFlags::UNRESTRICTED) && self.users.login_needed()
    }

    /// Whether the session's user may run a request. A session inside the process may run everything.
    pub fn permits(&self, id: SessionId, command: &'static Command, args: &[&[u8]]) -> Result<(), Denial> {
        let session = &self.clients.sessions[id];
        if session.flags.contains(SessionFlags::UNRESTRICTED) {
            return Ok(());
        }
        self.users.get(session.user).map_or(Ok(()), |user| user.check(command, args))
    }

    /// Checks a request of a session without [`SessionFlags::UNRESTRICTED`].
    #[cold]
    pub(crate) fn check_access(
        &mut self,
        now: Now,
        id: SessionId,
        command: &'static Command,
        args: &[&[u8]],
        place: Place,
    ) -> Result<(), Error> {
        fail_if!(self.must_log_in(id) && !command.flags.contains(Flags::NO_AUTH), Error::NO_AUTH);
        self.permits(id, command, args).map_err(|denial| {
            self.note_denial(now, id, command, args, denial, place);
            self.denial_error(id, command, denial)
        })
    }

    /// Checks a request that a script makes. The error has the wording for scripts.
    #[cold]
    pub(crate) fn check_access_of_script(
        &mut self,
        now: Now,
        id: SessionId,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Result<(), Error> {
        self.permits(id, command, args).map_err(|denial| {
            self.note_denial(now, id, command, args, denial, Place::Lua);
            let error = self.denial_error(id, command, denial);
            let text = error.text().strip_prefix(b"NOPERM ".as_slice()).unwrap_or_default();
            Error::quoting("ERR ACL failure in script: ", text, "")
        })
    }

    /// Checks a queued request when its transaction runs: the rules may have changed, or the session's user may be gone.
    #[cold]
    pub(crate) fn check_access_of_queued(
        &mut self,
        now: Now,
        id: SessionId,
        command: &'static Command,
        args: &[&[u8]],
    ) -> Result<(), Error> {
        let permitted = if self.must_log_in(id) { Err(Denial::Command) } else { self.permits(id, command, args) };
        permitted.map_err(|denial| {
            self.note_denial(now, id, command, args, denial, Place::Multi);
            let reason = match denial {
                Denial::Command => "no permission to execute the command or subcommand",
                Denial::Key(_) => "no permission to touch the specified keys",
                Denial::Channel(_) => "no permission to access one of the channels used as arguments",
            };
            Error::new(format!(
                "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is \
                 no longer allowed for the following reason: {reason}"
            ))
        })
    }

    /// Whether the session's user may run a request and, by the same selector, read every key. The patterns of `SORT` need that.
    pub fn permits_reading_every_key(&self, id: SessionId, command: &'static Command, args: &[&[u8]]) -> bool {
        let session = &self.clients.sessions[id];
        session.flags.contains(SessionFlags::UNRESTRICTED)
            || self.users.get(session.user).is_none_or(|user| user.check_with_every_key(command, args, Permission::READ))
    }

    /// The keys that a request of a session shows besides those that it names.
    pub fn sight(&self, id: SessionId, command: &'static Command, args: &[&[u8]]) -> Sight {
        let session = &self.clients.sessions[id];
        if session.flags.contains(SessionFlags::UNRESTRICTED) {
            return Sight::ALL;
        }
        self.users.get(session.user).map_or(Sight::ALL, |user| user.sight(command, args))
    }

    fn denial_error(&self, id: SessionId, command: &'static Command, denial: Denial) -> Error {
        match denial {
            Denial::Key(_) => Error::NO_PERMISSION_KEY,
            Denial::Channel(_) => Error::NO_PERMISSION_CHANNEL,
            Denial::Command => {
                let user = self.users.name(self.clients.sessions[id].user).unwrap_or_default();
                let what = format!(" has no permissions to run the '{}' command", self.commands.full_name(command));
                Error::quoting("NOPERM User ", user, &what)
            }
        }
    }

    fn note_denial(&mut self, now: Now, id: SessionId, command: &'static Command, args: &[&[u8]], denial: Denial, place: Place) {
        let user = self.users.name(self.clients.sessions[id].user).unwrap_or_default().to_vec();
        let name = self.commands.full_name(command);
        let (reason, object) = match denial {
            Denial::Command => (Reason::Command, name.as_bytes()),
            Denial::Key(position) => (Reason::Key, args[position]),
            Denial::Channel(position) => (Reason::Channel, args[position]),
        };
        self.note_denied(now, id, reason, place, object, &user);
    }

    fn note_denied(&mut self, now: Now, id: SessionId, reason: Reason, place: Place, object: &[u8], user: &[u8]) {
        let mut client = String::new();
        client_line::describe(&mut client, self, now, id, self.clients.sessions[id].db);
        let client = client.trim_end().into();
        let entries_max = usize::try_from(self.config.acllog_max_len).unwrap_or(usize::MAX);
        self.users.log.add(Denied::new(reason, place, object, user, client), now, entries_max);
        self.bound_diagnosis();
    }

    /// Authenticates a session as the user with this name if the password is right; otherwise leaves it unchanged. `asked_by` is
    /// the request's command, for the log.
    ///
    /// # Errors
    /// [`Error::WRONG_PASS`].
    pub fn log_in(&mut self, now: Now, id: SessionId, name: &[u8], password: &[u8], asked_by: &[u8]) -> Result<(), Error> {
        let found = self.users.find(name).filter(|user| self.users.get(*user).is_some_and(|user| user.admits(password)));
        let Some(user) = found else {
            let place = self.place(id);
            self.note_denied(now, id, Reason::Auth, place, asked_by, name);
            let wait_ms = self.source(id).map_or(0, |source| self.login_failed(now, source));
            self.notice(now, Some(id), Notice::LoginFailed { user: name, wait_ms });
            return Err(Error::WRONG_PASS);
        };
        let session = &mut self.clients.sessions[id];
        session.user = user;
        session.flags |= SessionFlags::AUTHENTICATED;
        self.renew_access(id);
        Ok(())
    }

    /// Where a session's logins come from; `None` for one of this machine.
    fn source(&self, id: SessionId) -> Option<Source> {
        let session = &self.clients.sessions[id];
        if session.flags.contains(SessionFlags::UNIX_SOCKET) { None } else { Source::of_client(&session.addr) }
    }

    /// The monotonic millisecond at which a login that comes now may be tried; `None`: at once. See [`Guesses::due`].
    ///
    /// [`Guesses::due`]: crate::engine::users::guesses::Guesses::due
    pub fn login_due(&mut self, now: Now, source: Source) -> Option<u64> {
        self.users.guesses.due(now.mono_ms(), source, self.config.login_delay_max.into())
    }

    /// Records a failed login. Returns the milliseconds for which the next one from there waits.
    pub fn login_failed(&mut self, now: Now, source: Source) -> u64 {
        match self.config.login_delay_max {
            0 => 0,
            max_ms => self.users.guesses.failed(now.mono_ms(), source, max_ms.into()),
        }
    }

    /// Resets a session to the default user, as when it connected.
    pub fn log_out(&mut self, id: SessionId) {
        let authenticated = !self.users.login_needed();
        let session = &mut self.clients.sessions[id];
        session.user = UserId::DEFAULT;
        session.flags.set(SessionFlags::AUTHENTICATED, authenticated);
        self.renew_access(id);
    }

    /// Lets a session do everything: it belongs to a caller inside the process, not to a client.
    pub fn trust(&mut self, id: SessionId) {
        let session = &mut self.clients.sessions[id];
        session.user = UserId::INSIDE;
        session.flags |= SessionFlags::AUTHENTICATED;
        self.renew_access(id);
    }

    /// The origin of the session's requests, for the log.
    pub(crate) fn place(&self, id: SessionId) -> Place {
        let in_multi = self.clients.sessions[id].flags.contains(SessionFlags::MULTI);
        if in_multi { Place::Multi } else { Place::TopLevel }
    }

    fn unrestricted(&self, id: SessionId) -> bool {
        let session = &self.clients.sessions[id];
        let let_in = session.flags.contains(SessionFlags::AUTHENTICATED) || !self.users.login_needed();
        let_in && self.users.get(session.user).is_none_or(User::is_unrestricted)
    }

    fn renew_access(&mut self, id: SessionId) {
        let unrestricted = self.unrestricted(id);
        let session = &mut self.clients.sessions[id];
        session.flags.set(SessionFlags::UNRESTRICTED, unrestricted);
        session.user_key = self.users.key(session.user);
    }

    fn sessions_of(&self, user: UserId) -> Vec<SessionId> {
        let of_user = self.clients.sessions.iter().filter(|(_, session)| session.user == user);
        of_user.map(|(id, _)| id).collect()
    }

    /// Sets a user's rules, or creates the user. Disconnects sessions whose subscriptions are no longer allowed, `running` after
    /// its reply.
    pub fn set_user(&mut self, running: SessionId, name: &[u8], user: User) {
        let old = self.users.find(name).and_then(|id| self.users.get(id)).cloned();
        let id = self.users.set(name, user);
        if let Some(old) = old {
            self.user_changed(running, id, &old);
        }
    }

    /// Removes a user and disconnects its sessions. Returns whether the user existed.
    pub fn remove_user(&mut self, running: SessionId, name: &[u8]) -> bool {
        let removed = self.users.remove(name);
        if let Some(id) = removed {
            self.user_gone(running, id);
        }
        removed.is_some()
    }

    /// Replaces all users by those of the ACL file.
    ///
    /// # Errors
    /// The errors of the file; nothing has changed then.
    pub fn load_users(&mut self, running: SessionId) -> Result<(), Error> {
        let Some(file) = &mut self.host.users_file else { return Err(Error::NO_ACL_FILE) };
        let others = match (file.load)() {
            Ok(text) => self.users.parse_file(&file.path, &text).map_err(|errors| Error::quoting("ERR ", &errors, ""))?,
            Err(reason) => {
                return Err(Error::new(format!("ERR Error loading ACLs, opening file '{}': {reason}", file.path)));
            }
        };
        self.replace_users(running, others);
        Ok(())
    }

    fn replace_users(&mut self, running: SessionId, others: BTreeMap<Box<[u8]>, User>) {
        for replaced in self.users.replace(others) {
            match replaced {
                Replaced::Changed(id, old) => self.user_changed(running, id, &old),
                Replaced::Gone(id) => self.user_gone(running, id),
            }
        }
    }

    /// Applies the configured password of the default user; an empty one means none.
    pub(crate) fn set_default_password(&mut self) {
        self.users.set_default_password(&self.config.requirepass);
        for id in self.sessions_of(UserId::DEFAULT) {
            self.renew_access(id);
        }
    }

    fn user_changed(&mut self, running: SessionId, user: UserId, old: &User) {
        let sessions = self.sessions_of(user);
        for &id in &sessions {
            self.renew_access(id);
        }
        let Some(selectors) = self.users.get(user).map(|user| user.selectors().to_vec()) else { return };
        if !loses_channels(old.selectors(), &selectors) {
            return;
        }
        for id in sessions {
            if self.listens_beyond(id, &selectors) {
                self.expel(running, id);
            }
        }
    }

    fn user_gone(&mut self, running: SessionId, user: UserId) {
        for id in self.sessions_of(user) {
            self.expel(running, id);
        }
    }

    /// Whether a session has a subscription that none of the selectors allows.
    fn listens_beyond(&self, id: SessionId, selectors: &[Selector]) -> bool {
        Kind::ALL.into_iter().any(|kind| {
            self.clients
                .pubsub
                .names_of(kind, id)
                .any(|name| !selectors.iter().any(|selector| selector.allows_channel(name, kind == Kind::Pattern)))
        })
    }

    /// Disconnects a session and removes its user: the running one after its reply, any other at once.
    fn expel(&mut self, running: SessionId, id: SessionId) {
        let session = &mut self.clients.sessions[id];
        session.user = UserId::DEFAULT;
        session.flags.remove(SessionFlags::AUTHENTICATED);
        if id == running {
            session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
        } else {
            session.flags |= SessionFlags::CLOSE_NOW;
            session.out = Vec::new();
        }
        self.renew_access(id);
        self.mark_pending_write(id);
    }

    /// Panics if a session's flag does not match its user's rules.
    pub(crate) fn check_access_invariants(&self) {
        self.users.check_invariants();
        for (id, session) in self.clients.sessions.iter() {
            let marked = session.flags.contains(SessionFlags::UNRESTRICTED);
            assert_eq!(marked, self.unrestricted(id), "UNRESTRICTED matches the user's rules");
            assert_eq!(session.user_key, self.users.key(session.user), "a session has the key of its user");
            assert!(session.user == UserId::INSIDE || self.users.get(session.user).is_some(), "a session's user is there");
        }
    }
}

impl Context<'_> {
    /// Has a login wait if others from its address have failed. Returns whether it waits; then the request is executed again.
    ///
    /// # Errors
    /// It would have to wait, and cannot: in a transaction, or while a script runs long.
    pub fn await_login(&mut self, args: &[&[u8]]) -> Result<bool, Error> {
        if self.engine.users.guesses.has_waited {
            return Ok(false);
        }
        let Some(source) = self.engine.source(self.session) else { return Ok(false) };
        let Some(due) = self.engine.login_due(self.now, source) else { return Ok(false) };
        if let Some(run) = &self.engine.scripting.long_run {
            return Err(run.busy());
        }
        fail_if!(!self.may_block(), Error::LOGIN_MUST_WAIT);
        self.block_for_login(args, due);
        Ok(true)
    }
}

impl Users {
    /// Whether a message to a session may name a key.
    pub fn lets_see(&self, session: &Session, key: &[u8]) -> bool {
        session.flags.contains(SessionFlags::UNRESTRICTED) || self.get(session.user).is_none_or(|user| user.may_read(key))
    }
}

impl Context<'_> {
    /// The keys that this request shows besides those that it names.
    pub fn sight(&self, args: &[&[u8]]) -> Sight {
        self.engine.sight(self.session, self.command, args)
    }
}

/// Whether the old rules may allow subscriptions that the new ones do not.
fn loses_channels(old: &[Selector], new: &[Selector]) -> bool {
    if new.iter().any(Selector::allows_every_channel) {
        return false;
    }
    let kept = |channel: &[u8]| new.iter().flat_map(Selector::channels).any(|known| **known == *channel);
    old.iter().any(|selector| selector.allows_every_channel() || !selector.channels().iter().all(|channel| kept(channel)))
}
