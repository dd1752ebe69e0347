//! Scripts and interpreters that a flush has left: they are freed bit by bit, as all that is large, since nobody is to wait for it.
//!
//! Lua frees a state in one step, and a script may have left millions of tables in it. So first all that keeps values alive is taken
//! from it, some entries at a time; then its own collector frees them, a step at a time; and what is left of the state is small.

use std::ptr::NonNull;

use slab::Slab;

use crate::script::Script;
use crate::script::interpreter::Interpreter;

/// With no more memory than this, in bytes, an interpreter is freed at once.
const SMALL: usize = 128 << 10;

/// What one step of a collector counts as among the steps of [`crate::engine::Engine::advance`].
const STEP_COST: u32 = 16;

/// Entries that are taken from an interpreter in one such step.
const ENTRIES: u32 = 64;

/// Cycles of the collector until all is free: the one that was under way may pass over some of it.
const CYCLES: u8 = 2;

/// How far an interpreter has come.
enum Stage {
    /// There may be more that keeps values alive.
    Full,
    /// Its collector has so many cycles yet to end.
    Emptied(u8),
}

/// What waits to be freed.
#[derive(Default)]
pub struct Retired {
    interpreters: Vec<(NonNull<Interpreter>, Stage)>,
    /// The scripts of one flush each, which are no longer found.
    scripts: Vec<slab::IntoIter<Script>>,
}

impl Retired {
    /// Takes an interpreter over.
    ///
    /// # Safety
    /// It came from [`Interpreter::create`], nobody else has it, and it runs nothing.
    pub(super) unsafe fn add(&mut self, interpreter: NonNull<Interpreter>) {
        // SAFETY: as promised.
        unsafe {
            assert!(!Interpreter::is_running(interpreter.as_ptr()), "an interpreter that runs is not taken over");
            if (*interpreter.as_ptr()).memory.used <= SMALL {
                return Interpreter::free(interpreter);
            }
            Interpreter::empty(interpreter.as_ptr());
        }
        self.interpreters.push((interpreter, Stage::Full));
    }

    /// Takes scripts over, whose functions an interpreter has that was added.
    pub(super) fn add_scripts(&mut self, scripts: Slab<Script>) {
        if scripts.len() > ENTRIES as usize {
            self.scripts.push(scripts.into_iter());
        }
    }

    /// Whether there is nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.interpreters.is_empty() && self.scripts.is_empty()
    }

    /// Frees some of it, for at most `budget` steps. Gives whether an interpreter is all free.
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
            // SAFETY: nobody else has it, and it runs nothing.
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

impl Drop for Retired {
    fn drop(&mut self) {
        for (interpreter, _) in self.interpreters.drain(..) {
            // SAFETY: nobody else has it.
            unsafe { Interpreter::free(interpreter) }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn what_scripts_have_left_is_freed_in_steps() {
        let mut h = Harness::new();
        let script = "local t = {} for i = 1, 1e5 do t[i] = {i} end return #t";
        for flush in [&[&b"SCRIPT"[..], b"FLUSH"][..], &[b"SCRIPT", b"FLUSH", b"ASYNC"], &[b"SCRIPT", b"FLUSH", b"SYNC"]] {
            assert_eq!(h.args(&[b"EVAL", script.as_bytes(), b"0"]), b":100000\r\n");
            assert!(h.engine.lua().scripts.interpreter_bytes() > 1 << 20);
            assert_eq!(h.args(flush), b"+OK\r\n");
            assert!(h.engine.next_deadline().is_some_and(|at| h.now.reached(at)), "there is something to free");
            // Meanwhile another interpreter runs scripts.
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
    fn what_is_small_is_freed_at_once() {
        let mut h = Harness::new();
        h.script(&[("EVAL return(1) 0", ":1"), ("SCRIPT FLUSH", "+OK")]);
        assert_eq!(h.engine.next_deadline(), None);
        // What is not free yet when the engine ends is freed with it.
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
        let sha = crate::script::sha1_hex(b"return 4998");
        assert_eq!(h.args(&[b"SCRIPT", b"EXISTS", &sha]), b"*1\r\n:0\r\n");
        let mut turns = 1;
        while h.engine.advance(h.now) {
            h.engine.check_invariants();
            turns += 1;
        }
        // Five thousand sources, and as many entries of the interpreter, which has to be collected then.
        assert!(turns >= 10 + 3, "{turns}");
        assert!(h.engine.lua().retired.is_empty());
        h.script(&[("EVAL return(1) 0", ":1")]);
        // What is not free yet when the engine ends is freed with it, whatever has been taken from it by then.
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
