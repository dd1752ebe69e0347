//! Frees the scripts and interpreters that a flush has removed, in small steps, so that no client waits for it.
//!
//! Lua can free a state only at once, and a script may have left millions of tables in it. Therefore the references that keep
//! objects alive are removed first, a few at a time. Then the state's own collector frees the objects in steps. The rest of the
//! state is small.

use std::ptr::NonNull;

use slab::Slab;

use crate::script::cache::script::Script;
use crate::script::interpreter::Interpreter;

/// Up to this size in bytes, an interpreter is freed at once.
const SMALL: usize = 128 << 10;

/// Cost of one step for an interpreter, in the steps of [`crate::engine::Engine::advance`].
const STEP_COST: u32 = 16;

/// Registry entries removed from an interpreter in one such step.
const ENTRIES: u32 = 64;

/// Cycles of the collector until all objects are freed: a cycle that is half done may miss some.
const CYCLES: u8 = 2;

/// The progress of an interpreter.
enum Stage {
    /// Its registry may contain references.
    Full,
    /// Its registry is empty, and its collector still has to complete this number of cycles.
    Emptied(u8),
}

/// Removed scripts and interpreters that wait to be freed.
#[derive(Default)]
pub struct Lazyfree {
    interpreters: Vec<(NonNull<Interpreter>, Stage)>,
    /// The removed scripts of each flush.
    scripts: Vec<slab::IntoIter<Script>>,
}

impl Lazyfree {
    /// Takes an interpreter.
    ///
    /// # Safety
    /// It came from [`Interpreter::create`], nothing else has it, and it runs nothing.
    pub(crate) unsafe fn add(&mut self, interpreter: NonNull<Interpreter>) {
        // SAFETY: the interpreter came from `create`, nothing else has it, and it runs nothing. So it may be freed, or emptied.
        unsafe {
            assert!(!Interpreter::is_running(interpreter.as_ptr()), "an interpreter with an unfinished run cannot be freed");
            if (*interpreter.as_ptr()).memory.used <= SMALL {
                return Interpreter::free(interpreter);
            }
            Interpreter::empty(interpreter.as_ptr());
        }
        self.interpreters.push((interpreter, Stage::Full));
    }

    /// Takes scripts. Their functions belong to an interpreter that was added.
    pub(super) fn add_scripts(&mut self, scripts: Slab<Script>) {
        if scripts.len() > ENTRIES as usize {
            self.scripts.push(scripts.into_iter());
        }
    }

    /// Whether nothing waits to be freed.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.interpreters.is_empty() && self.scripts.is_empty()
    }

    /// Frees scripts and interpreters for at most `budget` steps. Returns whether an interpreter was freed whole.
    pub(crate) fn free_some(&mut self, budget: &mut u32) -> bool {
        while *budget > 0
            && let Some(scripts) = self.scripts.last_mut()
        {
            *budget -= 1;
            if scripts.next().is_none() {
                self.scripts.pop();
            }
        }
        let count = self.interpreters.len();
        while let Some((interpreter, stage)) = self.interpreters.last_mut()
            && *budget > 0
        {
            *budget = budget.saturating_sub(STEP_COST);
            // SAFETY: nothing else has it, and it runs nothing.
            unsafe {
                match stage {
                    Stage::Full if Interpreter::empty_some(interpreter.as_ptr(), ENTRIES) => *stage = Stage::Emptied(CYCLES),
                    Stage::Full => (),
                    Stage::Emptied(0) => {
                        Interpreter::free(*interpreter);
                        self.interpreters.pop();
                    }
                    Stage::Emptied(cycles) => *cycles -= u8::from(Interpreter::collect_some(interpreter.as_ptr())),
                }
            }
        }
        self.interpreters.len() < count
    }
}

impl Drop for Lazyfree {
    fn drop(&mut self) {
        for (interpreter, _) in self.interpreters.drain(..) {
            // SAFETY: nothing else has it.
            unsafe { Interpreter::free(interpreter) }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn an_interpreter_is_freed_in_steps() {
        let mut h = Harness::new();
        let script = "local t = {} for i = 1, 1e5 do t[i] = {i} end return #t";
        for flush in [&[&b"SCRIPT"[..], b"FLUSH"][..], &[b"SCRIPT", b"FLUSH", b"ASYNC"], &[b"SCRIPT", b"FLUSH", b"SYNC"]] {
            assert_eq!(h.args(&[b"EVAL", script.as_bytes(), b"0"]), b":100000\r\n");
            assert!(h.engine.lua().scripts.interpreter_bytes() > 1 << 20);
            assert_eq!(h.args(flush), b"+OK\r\n");
            assert!(h.engine.next_deadline().is_some_and(|at| h.now.reached(at)), "memory waits to be freed");
            // Scripts run in a new interpreter meanwhile.
            assert_eq!(h.args(&[b"EVAL", b"return 1", b"0"]), b":1\r\n");
            let mut turns = 1;
            while h.engine.advance(h.now) {
                turns += 1;
            }
            assert!(turns > 10, "{turns}");
            assert_eq!(h.engine.next_deadline(), None);
        }
        let library =
            b"#!lua name=x\nlocal t = {} for i = 1, 1e5 do t[i] = {i} end redis.register_function('f', function() return #t end)";
        assert_eq!(h.args(&[b"FUNCTION", b"LOAD", library]), b"$1\r\nx\r\n");
        assert_eq!(h.args(&[b"FCALL", b"f", b"0"]), b":100000\r\n");
        assert_eq!(h.args(&[b"FUNCTION", b"FLUSH"]), b"+OK\r\n");
        assert!(h.engine.has_work(h.now));
        h.pass(1);
        assert!(!h.engine.has_work(h.now));
    }

    #[test]
    fn a_small_interpreter_is_freed_at_once() {
        let mut h = Harness::new();
        h.script(&[("EVAL return(1) 0", ":1"), ("SCRIPT FLUSH", "+OK")]);
        assert_eq!(h.engine.next_deadline(), None);
        // Memory that has not been freed when the engine is dropped is freed then.
        h.args(&[b"EVAL", b"local t = {} for i = 1, 1e5 do t[i] = {i} end", b"0"]);
        h.run("SCRIPT FLUSH");
        assert!(h.engine.has_work(h.now));
    }

    #[test]
    fn thousands_of_scripts_are_freed_in_steps() {
        let mut h = Harness::new();
        for n in 0..5000 {
            h.args(&[b"SCRIPT", b"LOAD", format!("return {n}").as_bytes()]);
        }
        h.script(&[("SCRIPT FLUSH", "+OK"), ("EVAL return(4999) 0", ":4999")]);
        let sha = crate::script::sha::sha1_hex(b"return 4998");
        assert_eq!(h.args(&[b"SCRIPT", b"EXISTS", &sha]), b"*1\r\n:0\r\n");
        let mut turns = 1;
        while h.engine.advance(h.now) {
            h.engine.check_invariants();
            turns += 1;
        }
        // Five thousand sources, as many registry entries, and then the collection.
        assert!(turns >= 10 + 3, "{turns}");
        assert!(h.engine.lua().lazyfree.is_empty());
        h.script(&[("EVAL return(1) 0", ":1")]);
        // Memory that has not been freed when the engine is dropped is freed then, at any stage.
        for advances in [0, 12, 16] {
            for n in 0..5000 {
                h.args(&[b"SCRIPT", b"LOAD", format!("return {n}").as_bytes()]);
            }
            h.run("SCRIPT FLUSH");
            for _ in 0..advances {
                h.engine.advance(h.now);
            }
        }
        assert!(h.engine.has_work(h.now));
    }
}
