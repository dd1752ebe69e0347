//! Scripts of any kind, as text and from a grammar. They do not panic or break the interpreter, and always come to an end. Their
//! replies are well-formed, the engine's invariants hold, and the next script finds everything unchanged.
//!
//! An input that begins with `r` continues with the text of a script, one with `f` with the body of a function. With any other
//! byte, the rest are the choices from which [`grammar`] makes a script.

#[path = "grammar.rs"]
mod grammar;

use std::hash::{DefaultHasher, Hasher};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::driver::Driver;
use portcullis::engine::config::Config;

/// Maximum number of steps: enough for thousands of instructions, and few enough for a thousand scripts per second.
const STEPS_MAX: u64 = 10_000;
const MEMORY_MAX: u64 = 2 << 20;
/// Maximum size of an input in bytes.
const INPUT_MAX: usize = 4 << 10;
/// Stack size, as of the thread that runs commands. Two hundred nested C functions need much of it.
const STACK: usize = 64 << 20;

/// A script that describes everything that scripts can reach as text, with functions by their addresses. Tables are traversed in
/// their own order, which does not change unless something is written to them.
const WALK: &str = "
    local seen, found, n = {}, {}, 0
    local function walk(value)
        if seen[value] then return end
        seen[value] = true
        for name, inner in pairs(value) do
            local is_table = type(inner) == 'table'
            found[n + 1], found[n + 2], n = name, is_table and '{}' or tostring(inner), n + 2
            if is_table then walk(inner) end
        end
        local meta = getmetatable(value)
        if meta then walk(meta) end
    end
    walk(_G)
    walk(getmetatable(''))
    return table.concat(found, '\\n') .. ('x'):upper() .. bit.band(7, 12) .. #KEYS .. #ARGV .. redis.call('ping').ok";

/// Runs one input on a thread with a large stack. Expensive checks run for some inputs only, depending on the input's digest.
pub fn run(data: &[u8]) {
    let mut digest = DefaultHasher::new();
    digest.write(data);
    let digest = digest.finish();
    run_as(data, Thorough { walk: digest.is_multiple_of(3), library: (digest >> 32).is_multiple_of(4) });
}

/// Runs one input with all checks.
#[allow(dead_code, reason = "the target leaves it to the digest")]
pub fn run_thoroughly(data: &[u8]) {
    run_as(data, Thorough { walk: true, library: true });
}

/// The checks beside running the script.
#[derive(Clone, Copy)]
struct Thorough {
    /// Compare everything that a script can reach with what there was before.
    walk: bool,
    /// Load the script as a library, and flush.
    library: bool,
}

fn run_as(data: &[u8], thorough: Thorough) {
    type Ended = std::thread::Result<()>;
    type Input = (Vec<u8>, Thorough);
    // One thread for all inputs: creating one takes as long as a short script.
    static WORKER: LazyLock<Mutex<(SyncSender<Input>, Receiver<Ended>)>> = LazyLock::new(|| {
        let (inputs, next) = sync_channel::<Input>(0);
        let (ended, outcomes) = sync_channel(0);
        let work = move || {
            for (data, thorough) in next {
                if ended.send(std::panic::catch_unwind(|| play(&data, thorough))).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().stack_size(STACK).spawn(work).expect("there is a thread");
        Mutex::new((inputs, outcomes))
    });
    let worker = WORKER.lock().unwrap_or_else(PoisonError::into_inner);
    worker.0.send((data[..data.len().min(INPUT_MAX)].to_vec(), thorough)).expect("it waits for the next one");
    let ended = worker.1.recv().expect("it comes to an end");
    drop(worker);
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

fn play(data: &[u8], thorough: Thorough) {
    let (kind, rest) = match data.split_first() {
        Some((b'r', rest)) => (Kind::Script, rest.to_vec()),
        Some((b'f', rest)) => (Kind::Function, rest.to_vec()),
        Some((&first, rest)) => (if first % 8 == 0 { Kind::Function } else { Kind::Script }, grammar::script(rest)),
        None => return,
    };
    let mut run = Run::new(data.len().is_multiple_of(2));
    let whole = if thorough.walk { run.walk() } else { b"$".to_vec() };
    assert!(whole.starts_with(b"$"), "{}", whole.escape_ascii());
    // Twice: compiled, and from the cache.
    for keys in [&[b"k".as_slice(), b"l"][..], &[]] {
        match kind {
            Kind::Script => run.call(&with_keys(&[b"EVAL", &rest], keys)),
            Kind::Function => {
                let before = b"#!lua name=fuzzed\nredis.register_function('fuzzed', function(KEYS, ARGV) ".as_slice();
                run.call(&[b"FUNCTION", b"LOAD", b"REPLACE", &[before, &rest, b"\nend)"].concat()]);
                run.call(&with_keys(&[b"FCALL", b"fuzzed"], keys))
            }
        };
        assert_eq!(run.call(&[b"GET", b"nothing"]), if run.resp3 { b"_\r\n".as_slice() } else { b"$-1\r\n" });
    }
    if thorough.walk {
        let now = run.walk();
        assert!(now == whole, "another script finds {}", now.escape_ascii());
    }
    run.driver.engine.check_invariants();
    // A library, a flush, and the deferred freeing of memory.
    if thorough.library {
        run.call(&[b"FUNCTION", b"LOAD", &[b"#!lua name=loaded\n".as_slice(), &rest].concat()]);
        run.call(&[b"SCRIPT", b"FLUSH"]);
        run.call(&[b"FUNCTION", b"FLUSH"]);
        for _ in 0..1000 {
            if !run.driver.engine.advance(run.driver.now) {
                break;
            }
        }
        run.driver.engine.check_invariants();
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Script,
    Function,
}

fn with_keys<'a>(words: &[&'a [u8]], keys: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let count: &[u8] = if keys.is_empty() { b"0" } else { b"2" };
    [words, &[count], keys, &[b"7", b"a\0\xff"]].concat()
}

struct Run {
    driver: Driver,
    resp3: bool,
}

impl Run {
    fn new(resp3: bool) -> Self {
        let config = Config { proto_max_bulk_len: 1 << 20, script_memory_limit: MEMORY_MAX, ..Config::default() };
        let mut driver = Driver::new(config);
        driver.engine.bound_scripts(Some(STEPS_MAX));
        let mut run = Run { driver, resp3 };
        if resp3 {
            run.call(&[b"HELLO", b"3"]);
        }
        run.call(&[b"HSET", b"h", b"f", b"1", b"g", b"x"]);
        run.call(&[b"SET", b"s", b"12"]);
        run
    }

    /// What a script can reach, as text.
    fn walk(&mut self) -> Vec<u8> {
        self.driver.engine.bound_scripts(None);
        let found = self.call(&[b"EVAL", WALK.as_bytes(), b"0"]);
        self.driver.engine.bound_scripts(Some(STEPS_MAX));
        found
    }

    fn call(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.driver.call(args, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_what_the_grammar_makes_can_be_compiled() {
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let mut run = Run::new(false);
        let compiled = (0..200)
            .filter(|number| {
                let choices: Vec<u8> = (0..20 + number * 2).map(|_| byte()).collect();
                run.call(&[b"SCRIPT", b"LOAD", &grammar::script(&choices)]).starts_with(b"$")
            })
            .count();
        assert!(compiled > 150, "only {compiled} of 200");
    }
}
