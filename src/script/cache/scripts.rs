//! The cache of scripts and their interpreter.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ptr::NonNull;
use std::rc::Rc;

use slab::Slab;

use crate::base::error::Error;
use crate::engine::observe::command_stats::CommandStats;
use crate::engine::table::CommandTable;
use crate::script::cache::lazyfree::Lazyfree;
use crate::script::cache::script::{Links, MaybePlan, Script};
use crate::script::interpreter::Interpreter;
use crate::script::lua::memory;
use crate::script::plan::Plan;
use crate::script::program::Program;
use crate::script::sha::{Sha, ShaHasher, sha1_hex};
use crate::script::shebang::{self, ScriptFlags};

/// Maximum number of scripts that were evaluated but never loaded. Beyond it, the least recently used one is evicted.
pub(crate) const EVALUATED_MAX: usize = 500;

/// The end of the list of evaluated scripts.
const NONE: usize = usize::MAX;

/// Number of slots for recently used scripts. A power of two.
const RECENT: usize = 16;

/// The slot of a SHA-1 among the recently used scripts.
#[inline]
fn recent_slot(digits: &Sha) -> usize {
    // The low four bits of a hexadecimal digit vary most.
    let bits = digits[..3].iter().fold(0, |bits, digit| bits << 1 ^ usize::from(*digit));
    bits % RECENT
}

/// Cached scripts and their interpreter, which is created for the first script.
pub struct Scripts {
    pub(crate) interpreter: Option<NonNull<Interpreter>>,
    by_sha: HashMap<Sha, usize, BuildHasherDefault<ShaHasher>>,
    scripts: Slab<Script>,
    /// Indices of the scripts found most recently, by a hash of the SHA-1 and by the length of the source. A slot may be outdated,
    /// so its script is compared with the request.
    recent_by_sha: [usize; RECENT],
    recent_by_source: [usize; RECENT],
    /// The least and the most recently used evaluated script.
    oldest: usize,
    newest: usize,
    /// Number of evaluated scripts.
    evaluated: usize,
    /// Bytes of the sources of all scripts.
    source_bytes: usize,
    /// Bytes of the plans of all scripts.
    plan_bytes: usize,
    /// Maximum memory of the interpreter in bytes, from the configuration.
    memory_limit: usize,
    /// Number of scripts evicted since the start.
    pub evicted: u64,
    /// Runs all scripts in Lua. Only for tests, which compare plans with Lua.
    pub(crate) plans_disabled: bool,
}

impl Default for Scripts {
    fn default() -> Self {
        Scripts {
            interpreter: None,
            by_sha: HashMap::default(),
            scripts: Slab::new(),
            recent_by_sha: [NONE; RECENT],
            recent_by_source: [NONE; RECENT],
            oldest: NONE,
            newest: NONE,
            evaluated: 0,
            source_bytes: 0,
            plan_bytes: 0,
            memory_limit: usize::try_from(memory::LIMIT).unwrap_or(usize::MAX),
            evicted: 0,
            plans_disabled: false,
        }
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nothing else has it; `free` leaks one with an unfinished run.
            unsafe { Interpreter::free(interpreter) }
        }
    }
}

impl Scripts {
    /// Number of cached scripts.
    pub fn len(&self) -> usize {
        self.scripts.len()
    }

    /// Memory of the interpreter in bytes.
    pub fn interpreter_bytes(&self) -> usize {
        // SAFETY: it is valid as long as it is here.
        self.interpreter.map_or(0, |interpreter| unsafe { (*interpreter.as_ptr()).memory.used })
    }

    /// Bytes of the cached sources and plans and of their entries.
    pub fn cache_bytes(&self) -> usize {
        self.source_bytes + self.plan_bytes + self.scripts.len() * (size_of::<Script>() + size_of::<(Sha, usize)>())
    }

    /// Sets the maximum memory of the interpreter in bytes.
    pub fn set_memory_limit(&mut self, bytes: u64) {
        self.memory_limit = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(interpreter) = self.interpreter {
            // SAFETY: it is valid as long as it is here, and no script runs: those cannot change the configuration.
            unsafe { (*interpreter.as_ptr()).memory.limit = self.memory_limit }
        }
    }

    /// Whether a script is cached. The digits of the SHA-1 may be in any case.
    pub fn contains(&self, digits: &[u8]) -> bool {
        self.find(digits).is_some()
    }

    /// The sources of all cached scripts.
    pub fn sources(&self) -> impl Iterator<Item = &[u8]> {
        self.scripts.iter().map(|(_, script)| &*script.source)
    }

    /// The source of a cached script. The digits of its SHA-1 may be in any case.
    pub fn source(&self, digits: &[u8]) -> Option<&[u8]> {
        self.find(digits).map(|index| &*self.scripts[index].source)
    }

    /// The flags that a cached script declares.
    pub(crate) fn flags(&self, digits: &[u8]) -> Option<ScriptFlags> {
        self.find(digits).map(|index| self.scripts[index].flags)
    }

    /// The SHA-1 of the script at an index.
    pub(crate) fn sha(&self, index: usize) -> &Sha {
        &self.scripts[index].sha
    }

    #[inline]
    fn find(&self, digits: &[u8]) -> Option<usize> {
        let digits: &Sha = digits.try_into().ok()?;
        match self.by_sha.get(digits) {
            Some(&index) => Some(index),
            None => self.by_sha.get(&digits.map(|digit| digit.to_ascii_lowercase())).copied(),
        }
    }

    /// The index of a cached script that is about to run. Faster than a lookup if the script ran recently.
    #[inline]
    pub(crate) fn find_to_run(&mut self, digits: &[u8]) -> Option<usize> {
        let digits: &Sha = digits.try_into().ok()?;
        let recent = self.recent_by_sha[recent_slot(digits)];
        if self.scripts.get(recent).is_some_and(|script| script.sha == *digits) {
            return Some(recent);
        }
        let index = self.find(digits)?;
        self.recent_by_sha[recent_slot(digits)] = index;
        Some(index)
    }

    /// The program of the script at an index, with its plan, and whether the script was evaluated rather than loaded.
    #[inline]
    pub(crate) fn program(&mut self, index: usize, commands: &CommandTable, stats: &mut CommandStats) -> (Program, bool) {
        let script = &self.scripts[index];
        let (function, flags, evaluated) = (script.function, script.flags, script.links.is_some());
        let plan = if let Some(plan) = &script.plan { plan.clone() } else { self.make_plan(index, commands, stats) };
        (Program { function, flags, plan }, evaluated)
    }

    /// Removes all scripts and hands the interpreter over to be freed in steps.
    pub(crate) fn flush(&mut self, lazyfree: &mut Lazyfree) {
        self.leak_poisoned_interpreter();
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nothing else has it, and it runs nothing: scripts cannot call commands that flush.
            unsafe { lazyfree.add(interpreter) }
        }
        lazyfree.add_scripts(std::mem::take(&mut self.scripts));
        self.clear();
    }

    /// Removes all scripts.
    fn clear(&mut self) {
        let (memory_limit, evicted, plans_disabled) = (self.memory_limit, self.evicted, self.plans_disabled);
        *self = Scripts::default();
        (self.memory_limit, self.evicted, self.plans_disabled) = (memory_limit, evicted, plans_disabled);
    }

    /// Caches a script until the next flush. Returns its SHA-1.
    pub fn load(&mut self, source: &[u8]) -> Result<Sha, Error> {
        self.leak_poisoned_interpreter();
        let sha = sha1_hex(source);
        match self.by_sha.get(&sha) {
            Some(&index) => self.unlink(index),
            None => {
                self.compile(sha, source)?;
            }
        }
        Ok(sha)
    }

    /// The index of the script with this source. A new script is compiled and cached; it may be evicted unless it is loaded later.
    pub(crate) fn evaluate(&mut self, source: &[u8]) -> Result<usize, Error> {
        let slot = source.len() % RECENT;
        let recent = self.recent_by_source[slot];
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
        self.recent_by_source[slot] = index;
        Ok(index)
    }

    /// If a run has not ended, as when a command's handler panicked, leaks the interpreter and removes all scripts. The
    /// interpreter's state is unknown, so it is not closed.
    #[inline]
    pub(crate) fn leak_poisoned_interpreter(&mut self) {
        // SAFETY: it is valid as long as it is here.
        if self.interpreter.is_some_and(|interpreter| unsafe { Interpreter::is_running(interpreter.as_ptr()) }) {
            self.interpreter = None;
            self.clear();
        }
    }

    /// Plans a script before its first run.
    #[cold]
    fn make_plan(&mut self, index: usize, commands: &CommandTable, stats: &mut CommandStats) -> MaybePlan {
        let script = &mut self.scripts[index];
        let body = shebang::split(&script.source).map_or(&[][..], |(_, body)| body);
        let plan = Plan::of(body, commands, stats).filter(|_| !self.plans_disabled).map(Rc::new);
        self.plan_bytes += plan.as_ref().map_or(0, |plan| plan.bytes());
        script.plan.insert(plan).clone()
    }

    fn compile(&mut self, sha: Sha, source: &[u8]) -> Result<usize, Error> {
        let (flags, body) = shebang::split(source).map_err(|text| Error::of_bytes(text.into_owned()))?;
        let interpreter = self.interpreter.get_or_insert_with(|| Interpreter::create(self.memory_limit)).as_ptr();
        // SAFETY: the interpreter is valid, and no script runs: scripts cannot call commands that compile.
        let function = unsafe { Interpreter::compile(interpreter, body) }
            .map_err(|message| Error::of_bytes([b"ERR Error compiling script (new function): ", message.as_slice()].concat()))?;
        let index = self.scripts.insert(Script { sha, function, flags, plan: None, source: source.into(), links: None });
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
            unsafe { Interpreter::release(interpreter.as_ptr(), script.function) }
        }
    }

    /// Removes a script from the list of evaluated scripts, if it is there.
    fn unlink(&mut self, index: usize) {
        let Some(Links { older, newer }) = self.scripts[index].links.take() else { return };
        match self.scripts.get_mut(older).and_then(|script| script.links.as_mut()) {
            Some(links) => links.newer = newer,
            None => self.oldest = newer,
        }
        match self.scripts.get_mut(newer).and_then(|script| script.links.as_mut()) {
            Some(links) => links.older = older,
            None => self.newest = older,
        }
        self.evaluated -= 1;
    }

    fn link_newest(&mut self, index: usize) {
        let older = std::mem::replace(&mut self.newest, index);
        match self.scripts.get_mut(older).and_then(|script| script.links.as_mut()) {
            Some(links) => links.newer = index,
            None => self.oldest = index,
        }
        self.scripts[index].links = Some(Links { older, newer: NONE });
        self.evaluated += 1;
    }

    /// Makes an evaluated script the most recently used one.
    #[inline]
    pub(crate) fn touch(&mut self, index: usize) {
        if index != self.newest && self.scripts.get(index).is_some_and(|script| script.links.is_some()) {
            self.unlink(index);
            self.link_newest(index);
        }
    }

    /// Panics if the cache is inconsistent. Takes time proportional to the number of scripts.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_sha.len(), self.scripts.len());
        for (index, script) in &self.scripts {
            assert_eq!(self.by_sha.get(&script.sha), Some(&index));
        }
        assert_eq!(self.source_bytes, self.scripts.iter().map(|(_, script)| script.source.len()).sum::<usize>());
        assert_eq!(self.plan_bytes, self.scripts.iter().map(|(_, script)| script.plan_bytes()).sum::<usize>());
        let (mut count, mut older, mut index) = (0, NONE, self.oldest);
        while let Some(links) = self.scripts.get(index).and_then(|script| script.links) {
            assert_eq!(links.older, older);
            (older, index, count) = (index, links.newer, count + 1);
        }
        assert_eq!((index, older), (NONE, self.newest));
        assert_eq!(count, self.evaluated);
        assert_eq!(count, self.scripts.iter().filter(|(_, script)| script.links.is_some()).count());
        assert!(self.evaluated <= EVALUATED_MAX);
    }
}
