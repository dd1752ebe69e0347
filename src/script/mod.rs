//! Scripts: Lua inside the engine.
//!
//! ```text
//!   EVAL, EVALSHA ─▶ Scripts: SHA-1 ─▶ compiled function ─▶ interpreter: run ─▶ answer: Lua value ─▶ reply
//!                                                             │        ▲
//!                                              redis.call ─▶ call    sink: reply ─▶ Lua value
//!                                                             └─▶ engine ─┘
//! ```
//!
//! It is not a general binding: the hot path speaks to Lua's C interface directly, because a call through safe closures costs more
//! than most commands. Three rules make that sound: Lua raises errors (which jump over Rust frames) only where nothing with a
//! destructor is alive; allocations cannot fail outside of the script's own code (`memory`); and while a script runs, the engine is
//! reached through its frame alone (`interpreter`).

mod answer;
mod api;
pub mod bounds;
mod call;
mod failure;
pub mod functions;
mod globals;
mod interpreter;
mod layout;
mod libraries;
mod locals;
mod memory;
mod names;
mod parameters;
mod plan;
mod protect;
mod retired;
mod shebang;
mod sink;
mod stack;
mod state;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::rc::Rc;

use sha1::{Digest, Sha1};
use slab::Slab;

use crate::base::error::{Error, Result};
use crate::engine::context::Context;
use crate::engine::observe::command_stats::CommandStats;
use crate::engine::session::SessionFlags;
use crate::engine::table::CommandTable;
use crate::engine::{Action, Engine};
use crate::resp::reply::Sink;
use crate::script::bounds::Bounds;
use crate::script::interpreter::{Frame, Function, Interpreter};
pub(crate) use crate::script::layout::check_at_start as check_layout;
pub use crate::script::libraries::random::ScriptRandom;
pub use crate::script::memory::LIMIT as MEMORY_LIMIT;
use crate::script::plan::Plan;
pub use crate::script::retired::Retired;
use crate::script::shebang::ScriptFlags;
pub use crate::script::state::ScriptState;
pub(crate) use crate::script::state::scripting;

/// The SHA-1 of a script, in forty lower-case hexadecimal digits.
pub type Sha = [u8; 40];

/// Scripts that were never loaded, only evaluated, are kept up to this number; then the one not used for longest goes.
const EVALUATED_MAX: usize = 500;

/// The end of the list of evaluated scripts.
const NONE: usize = usize::MAX;

/// Scripts that are remembered by how they were asked for; a power of two.
const RECENT: usize = 16;

/// One cached script.
struct Script {
    sha: Sha,
    function: Function,
    flags: ScriptFlags,
    /// How it is carried out without Lua; `None` until it is run for the first time.
    plan: Option<Planned>,
    source: Box<[u8]>,
    /// Neighbours in the list of evaluated scripts; `None` for a script that was loaded, which stays.
    neighbours: Option<Neighbours>,
}

impl Script {
    fn plan_bytes(&self) -> usize {
        self.plan.iter().flatten().map(|plan| plan.bytes()).sum()
    }
}

/// A plan, or `None` for a script that runs in Lua.
type Planned = Option<Rc<Plan>>;

#[derive(Clone, Copy)]
struct Neighbours {
    older: usize,
    newer: usize,
}

/// The hash of a SHA-1: its first eight digits, mixed.
#[derive(Default)]
struct FirstDigits(u64);

impl Hasher for FirstDigits {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            let product = u128::from(u64::from_ne_bytes(*first)) * 0x9e37_79b9_7f4a_7c15;
            self.0 = product as u64 ^ (product >> 64) as u64;
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Where the script with these digits is remembered.
#[inline]
fn place_of(digits: &Sha) -> usize {
    // Of a digit, the low four bits tell most.
    let bits = digits[..3].iter().fold(0, |bits, digit| bits << 1 ^ usize::from(*digit));
    bits % RECENT
}

/// Cached scripts and their interpreter, which is made when the first script comes.
pub struct Scripts {
    interpreter: Option<NonNull<Interpreter>>,
    by_sha: HashMap<Sha, usize, BuildHasherDefault<FirstDigits>>,
    scripts: Slab<Script>,
    /// Which scripts were found last by digits, and which by their source, each in a place that follows from what was asked for. One
    /// that is there no more, or is another now, is told by what it has.
    recent_digits: [usize; RECENT],
    recent_sources: [usize; RECENT],
    /// The evaluated script that was not used for longest, and the one used last.
    oldest: usize,
    newest: usize,
    /// Number of evaluated scripts.
    evaluated: usize,
    /// Bytes of the sources of all scripts.
    source_bytes: usize,
    /// Bytes of their plans.
    plan_bytes: usize,
    /// Bytes that the interpreter may take; the engine says how many.
    memory_limit: usize,
    /// Scripts evicted since the start.
    pub evicted: u64,
    /// All scripts run in Lua, for tests that compare.
    pub(crate) without_plans: bool,
}

impl Default for Scripts {
    fn default() -> Self {
        Scripts {
            interpreter: None,
            by_sha: HashMap::default(),
            scripts: Slab::new(),
            recent_digits: [NONE; RECENT],
            recent_sources: [NONE; RECENT],
            oldest: NONE,
            newest: NONE,
            evaluated: 0,
            source_bytes: 0,
            plan_bytes: 0,
            memory_limit: usize::try_from(MEMORY_LIMIT).unwrap_or(usize::MAX),
            evicted: 0,
            without_plans: false,
        }
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nobody else has it; `free` leaves one alone that runs.
            unsafe { Interpreter::free(interpreter) }
        }
    }
}

impl Scripts {
    /// Number of cached scripts.
    pub fn len(&self) -> usize {
        self.scripts.len()
    }

    /// Bytes that the interpreter has taken.
    pub fn interpreter_bytes(&self) -> usize {
        // SAFETY: it is valid as long as it is here.
        self.interpreter.map_or(0, |interpreter| unsafe { (*interpreter.as_ptr()).memory.used })
    }

    /// Bytes of the sources and plans of cached scripts, and of what keeps them.
    pub fn cache_bytes(&self) -> usize {
        self.source_bytes + self.plan_bytes + self.scripts.len() * (size_of::<Script>() + size_of::<(Sha, usize)>())
    }

    /// Bounds what the interpreter may take, in bytes.
    pub fn set_memory_limit(&mut self, bytes: u64) {
        self.memory_limit = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(interpreter) = self.interpreter {
            // SAFETY: it is valid as long as it is here, and no script runs: those cannot change the configuration.
            unsafe { (*interpreter.as_ptr()).memory.limit = self.memory_limit }
        }
    }

    /// Whether a script is cached; the digits of its SHA-1 may be in any case.
    pub fn contains(&self, digits: &[u8]) -> bool {
        self.find(digits).is_some()
    }

    /// The sources of all cached scripts.
    pub fn sources(&self) -> impl Iterator<Item = &[u8]> {
        self.scripts.iter().map(|(_, script)| &*script.source)
    }

    /// The source of a cached script; the digits of its SHA-1 may be in any case.
    pub fn source(&self, digits: &[u8]) -> Option<&[u8]> {
        self.find(digits).map(|index| &*self.scripts[index].source)
    }

    /// The flags that a cached script declares.
    fn flags(&self, digits: &[u8]) -> Option<ScriptFlags> {
        self.find(digits).map(|index| self.scripts[index].flags)
    }

    #[inline]
    fn find(&self, digits: &[u8]) -> Option<usize> {
        let digits: &Sha = digits.try_into().ok()?;
        match self.by_sha.get(digits) {
            Some(&index) => Some(index),
            None => self.by_sha.get(&digits.map(|digit| digit.to_ascii_lowercase())).copied(),
        }
    }

    /// As [`Scripts::find`] for a script that is to be run, and then most often again and again.
    #[inline]
    fn find_to_run(&mut self, digits: &[u8]) -> Option<usize> {
        let digits: &Sha = digits.try_into().ok()?;
        let recent = self.recent_digits[place_of(digits)];
        if self.scripts.get(recent).is_some_and(|script| script.sha == *digits) {
            return Some(recent);
        }
        let index = self.find(digits)?;
        self.recent_digits[place_of(digits)] = index;
        Some(index)
    }

    /// Forgets all scripts, and the interpreter with them, which may take their time to be freed.
    pub(crate) fn flush(&mut self, retired: &mut Retired) {
        self.leave_if_broken();
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nobody else has it, and it runs nothing: commands that flush are not allowed from scripts.
            unsafe { retired.add(interpreter) }
        }
        retired.add_scripts(std::mem::take(&mut self.scripts));
        self.forget();
    }

    /// Forgets all scripts.
    fn forget(&mut self) {
        let (memory_limit, evicted, without_plans) = (self.memory_limit, self.evicted, self.without_plans);
        *self = Scripts::default();
        (self.memory_limit, self.evicted, self.without_plans) = (memory_limit, evicted, without_plans);
    }

    /// Caches a script for good; gives its SHA-1.
    pub fn load(&mut self, source: &[u8]) -> std::result::Result<Sha, Error> {
        self.leave_if_broken();
        let sha = sha1_hex(source);
        match self.by_sha.get(&sha) {
            Some(&index) => self.unlink(index),
            None => {
                self.compile(sha, source)?;
            }
        }
        Ok(sha)
    }

    /// The cached script for a source, compiled when it is new. It then makes place for newer ones, unless it is loaded later.
    fn evaluate(&mut self, source: &[u8]) -> std::result::Result<usize, Error> {
        let place = source.len() % RECENT;
        let recent = self.recent_sources[place];
        if self.scripts.get(recent).is_some_and(|script| *script.source == *source) {
            return Ok(recent);
        }
        let sha = sha1_hex(source);
        let index = match self.by_sha.get(&sha) {
            Some(&index) => index,
            None => {
                let index = self.compile(sha, source)?;
                while self.evaluated >= EVALUATED_MAX {
                    self.evict(self.oldest);
                }
                self.link_newest(index);
                index
            }
        };
        self.recent_sources[place] = index;
        Ok(index)
    }

    /// Leaves an interpreter behind in which a run never came to its end, as when a command's handler panicked: nobody knows its
    /// state, so it is not closed either.
    fn leave_if_broken(&mut self) {
        // SAFETY: it is valid as long as it is here.
        if self.interpreter.is_some_and(|interpreter| unsafe { Interpreter::is_running(interpreter.as_ptr()) }) {
            self.interpreter = None;
            self.forget();
        }
    }

    /// Plans a script that is run for the first time.
    #[cold]
    fn make_plan(&mut self, index: usize, commands: &CommandTable, stats: &mut CommandStats) -> Planned {
        let script = &mut self.scripts[index];
        let body = shebang::split(&script.source).map_or(&[][..], |(_, body)| body);
        let made = Plan::of(body, commands, stats).filter(|_| !self.without_plans).map(Rc::new);
        self.plan_bytes += made.as_ref().map_or(0, |plan| plan.bytes());
        script.plan.insert(made).clone()
    }

    fn compile(&mut self, sha: Sha, source: &[u8]) -> std::result::Result<usize, Error> {
        let (flags, body) = shebang::split(source).map_err(|text| Error::of_bytes(text.into_owned()))?;
        let interpreter = self.interpreter.get_or_insert_with(|| Interpreter::create(self.memory_limit)).as_ptr();
        // SAFETY: the interpreter is valid, and no script runs: commands that compile are not allowed from scripts.
        let function = unsafe { Interpreter::compile(interpreter, body) }
            .map_err(|message| Error::of_bytes([b"ERR Error compiling script (new function): ", message.as_slice()].concat()))?;
        let index = self.scripts.insert(Script { sha, function, flags, plan: None, source: source.into(), neighbours: None });
        self.by_sha.insert(sha, index);
        self.source_bytes += source.len();
        Ok(index)
    }

    fn evict(&mut self, index: usize) {
        self.unlink(index);
        let script = self.scripts.remove(index);
        self.by_sha.remove(&script.sha);
        self.source_bytes -= script.source.len();
        self.plan_bytes -= script.plan_bytes();
        self.evicted += 1;
        if let Some(interpreter) = self.interpreter {
            // SAFETY: as for `compile`; the function came from this interpreter.
            unsafe { Interpreter::forget(interpreter.as_ptr(), script.function) }
        }
    }

    /// Takes a script out of the list of evaluated ones, if it is there.
    fn unlink(&mut self, index: usize) {
        let Some(Neighbours { older, newer }) = self.scripts[index].neighbours.take() else { return };
        match self.scripts.get_mut(older).and_then(|script| script.neighbours.as_mut()) {
            Some(neighbours) => neighbours.newer = newer,
            None => self.oldest = newer,
        }
        match self.scripts.get_mut(newer).and_then(|script| script.neighbours.as_mut()) {
            Some(neighbours) => neighbours.older = older,
            None => self.newest = older,
        }
        self.evaluated -= 1;
    }

    fn link_newest(&mut self, index: usize) {
        let older = std::mem::replace(&mut self.newest, index);
        match self.scripts.get_mut(older).and_then(|script| script.neighbours.as_mut()) {
            Some(neighbours) => neighbours.newer = index,
            None => self.oldest = index,
        }
        self.scripts[index].neighbours = Some(Neighbours { older, newer: NONE });
        self.evaluated += 1;
    }

    /// Notes that an evaluated script was used.
    #[inline]
    fn touch(&mut self, index: usize) {
        if index != self.newest && self.scripts.get(index).is_some_and(|script| script.neighbours.is_some()) {
            self.unlink(index);
            self.link_newest(index);
        }
    }

    /// Panics where the cache is not what it should be. Walks everything.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_sha.len(), self.scripts.len());
        for (index, script) in &self.scripts {
            assert_eq!(self.by_sha.get(&script.sha), Some(&index));
        }
        assert_eq!(self.source_bytes, self.scripts.iter().map(|(_, script)| script.source.len()).sum::<usize>());
        assert_eq!(self.plan_bytes, self.scripts.iter().map(|(_, script)| script.plan_bytes()).sum::<usize>());
        let (mut count, mut older, mut index) = (0, NONE, self.oldest);
        while let Some(neighbours) = self.scripts.get(index).and_then(|script| script.neighbours) {
            assert_eq!(neighbours.older, older);
            (older, index, count) = (index, neighbours.newer, count + 1);
        }
        assert_eq!((index, older), (NONE, self.newest));
        assert_eq!(count, self.evaluated);
        assert_eq!(count, self.scripts.iter().filter(|(_, script)| script.neighbours.is_some()).count());
        assert!(self.evaluated <= EVALUATED_MAX);
    }
}

/// What is to be run.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A script.
    Text(&'a [u8]),
    /// One that is cached, by the forty digits of its SHA-1.
    Digits(&'a [u8]),
}

/// A command that runs a script or a function: all its arguments, the name counted.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Name, script or function, number of keys, keys, arguments.
    pub command: &'a [&'a [u8]],
    /// The keys among them.
    pub keys: &'a [&'a [u8]],
    /// The arguments among them.
    pub args: &'a [&'a [u8]],
    /// Whether what it runs cannot write.
    pub read_only: bool,
}

impl<'a> Request<'a> {
    /// What a command asks for whose arguments these are, of which so many are keys; an error where there are not as many.
    #[inline]
    pub fn new(command: &'a [&'a [u8]], keys: i64, read_only: bool) -> Result<Request<'a>> {
        /// Where the keys begin.
        const KEYS_AT: usize = 3;
        if keys < 0 {
            return Err(Error::NEGATIVE_KEYS);
        }
        let given = command.get(KEYS_AT..).unwrap_or_default();
        let split = usize::try_from(keys).ok().and_then(|keys| given.split_at_checked(keys));
        let (keys, args) = split.ok_or(Error::MORE_KEYS_THAN_ARGUMENTS)?;
        Ok(Request { command, keys, args, read_only })
    }
}

/// Runs a script for a session and replies with its result.
#[inline]
pub fn run(cx: &mut Context<'_>, source: Source<'_>, request: Request<'_>) -> Result {
    let scripts = &mut ScriptState::of_mut(&mut *cx.engine.scripts).scripts;
    scripts.leave_if_broken();
    let index = match source {
        Source::Text(text) => scripts.evaluate(text)?,
        Source::Digits(digits) => scripts.find_to_run(digits).ok_or(Error::NO_SCRIPT)?,
    };
    let Some(interpreter) = scripts.interpreter else { return Err(Error::NO_SCRIPT) };
    let script = &scripts.scripts[index];
    let (function, flags, stays) = (script.function, script.flags, script.neighbours.is_none());
    let plan = match &script.plan {
        Some(plan) => plan.clone(),
        None => scripts.make_plan(index, cx.engine.commands, &mut cx.engine.command_stats),
    };
    execute(cx, interpreter, Program { function, flags, plan }, request, |engine| &engine.lua().scripts.scripts[index].sha)?;
    if !stays {
        cx.engine.lua_mut().scripts.touch(index);
    }
    Ok(())
}

/// What an interpreter runs: a script, or a function of a library.
#[derive(Clone)]
struct Program {
    function: Function,
    flags: ScriptFlags,
    plan: Option<Rc<Plan>>,
}

/// Runs a program for a session and replies with its result. `name` is what errors call it; it is asked for when there is one.
fn execute(
    cx: &mut Context<'_>,
    interpreter: NonNull<Interpreter>,
    program: Program,
    request: Request<'_>,
    name: impl for<'e> FnOnce(&'e Engine) -> &'e [u8],
) -> Result {
    let Program { function, flags, plan } = program;
    let is_function = cx.engine.lua().scripts.interpreter != Some(interpreter);
    let interpreter = interpreter.as_ptr();
    // A script that says nothing of itself is held to what its commands are allowed.
    let declared = !flags.contains(ScriptFlags::COMPAT);
    if declared {
        admit_declared(cx, flags, request.read_only)?;
    }

    cx.engine.visited = 0;
    let in_cluster = cx.engine.in_cluster();
    let slot = if in_cluster { cx.engine.slot_of_script(cx.command, request.command) } else { None };
    let unrestricted = cx.session().flags.contains(SessionFlags::UNRESTRICTED);
    let read_only = request.read_only | flags.contains(ScriptFlags::NO_WRITES);
    let free = unrestricted & !read_only & !in_cluster & (cx.engine.config.maxmemory == 0);
    // From here on the engine is reached through this pointer alone, by the script's calls and then by us.
    let engine: *mut Engine = &raw mut *cx.engine;
    // SAFETY: the interpreter is valid and runs nothing, as commands that run scripts are not allowed from scripts. It is not freed
    // meanwhile, as those that flush scripts are not either. `engine` comes from the exclusive reference in `cx`, which is not used
    // until the last use of the pointer. After the run, allocations cannot fail.
    unsafe {
        (*interpreter).frame = Frame {
            bounds: Bounds::of(request.command),
            unrestricted,
            free,
            read_only,
            function: is_function,
            slot,
            // A script that says nothing of itself may go from slot to slot, call by call, as it could before there were flags.
            cross_slot: !declared | flags.contains(ScriptFlags::ALLOW_CROSS_SLOT),
            allow_oom: flags.contains(ScriptFlags::ALLOW_OOM),
            ..Frame::new(engine, cx.now, cx.session, cx.db)
        };
        if let Some(plan) = plan {
            if let Err(failure) = plan::run(&plan, interpreter, request.keys, request.args, cx.reply) {
                let name = name(&*engine);
                fail(cx.reply, &mut *engine, &failure.reply(name), failure.counted);
                (*engine).command_stats.of(cx.command).failed += 1;
            }
            return Ok(());
        }
        let done = Interpreter::run(interpreter, function, request.keys, request.args);
        let lua = (*interpreter).lua;
        let failed = if done {
            answer::write(lua, (*interpreter).frame.protocol, &mut *engine, cx.reply)
        } else {
            let failure = failure::read(lua, name(&*engine));
            fail(cx.reply, &mut *engine, &failure.text, failure.counted);
            true
        };
        if failed {
            (*engine).command_stats.of(cx.command).failed += 1;
        }
        if Interpreter::finish(interpreter) {
            (*engine).act(Action::ReturnMemory);
        }
    }
    Ok(())
}

/// Whether a program that says of itself what it does may be run, and run so.
#[inline(never)]
fn admit_declared(cx: &mut Context<'_>, flags: ScriptFlags, read_only: bool) -> Result {
    if flags.contains(ScriptFlags::NO_CLUSTER) && cx.engine.in_cluster() {
        return Err(Error::new("ERR Can not run script on cluster, 'no-cluster' flag is set."));
    }
    if !flags.contains(ScriptFlags::NO_WRITES) {
        if read_only {
            return Err(Error::new("ERR Can not execute a script with write flag using *_ro command."));
        }
        if !flags.contains(ScriptFlags::ALLOW_OOM) {
            cx.engine.check_room(cx.now, 0).map_err(|_| Error::OOM_IN_SCRIPT)?;
        }
    }
    Ok(())
}

/// Replies with what a run has failed of.
#[cold]
fn fail(reply: &mut dyn Sink, engine: &mut Engine, text: &[u8], counted: bool) {
    if !counted {
        engine.stats.error(&Error::of_bytes(text.to_vec()));
    }
    reply.error(&failure::blank_start(text));
}

/// The SHA-1 of bytes in forty lower-case digits.
pub(crate) fn sha1_hex(bytes: &[u8]) -> Sha {
    hex(Sha1::new_with_prefix(bytes))
}

/// What a SHA-1 has come to, in forty lower-case digits.
fn hex(digest: Sha1) -> Sha {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 40];
    for (pair, byte) in text.chunks_exact_mut(2).zip(digest.finalize()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

#[cfg(test)]
mod places_tests;
#[cfg(test)]
mod semantics_tests;
#[cfg(test)]
mod tests;
