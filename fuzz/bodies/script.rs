//! Scripts of any kind, as text and made from a grammar: they never panic or break the interpreter, always come to an end, their
//! replies are well-formed, the engine's invariants hold, and the next script finds everything as it was.
//!
//! An input that begins with `r` goes on with a script as a person writes it, one with `f` with the body of a function, and with any
//! other byte with choices that [`grammar`] makes a script of.

#[path = "grammar.rs"]
mod grammar;

use crate::frames;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::{Peer, SessionId};
use portcullis::engine::time::Now;

/// Longer replies are not decoded, for speed.
const DECODED_MAX: usize = 64 * 1024;
/// Enough for thousands of instructions, little enough for thousands of scripts.
const STEPS_MAX: u64 = 100_000;
const MEMORY_MAX: u64 = 8 << 20;
/// As the thread that runs commands has; two hundred functions of C in each other take much.
const STACK: usize = 64 << 20;

/// Walks all that a script can reach and gives it as text, functions by their addresses.
const WALK: &str = "
    local seen, found = {}, {}
    local function walk(path, value)
        if type(value) ~= 'table' then found[#found + 1] = path .. '=' .. tostring(value) return end
        if seen[value] then found[#found + 1] = path .. ' is ' .. seen[value] return end
        seen[value] = path
        local names = {}
        for name in pairs(value) do names[#names + 1] = name end
        table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
        for _, name in ipairs(names) do walk(path .. '.' .. tostring(name), value[name]) end
        if getmetatable(value) then walk(path .. '()', getmetatable(value)) end
    end
    walk('_G', _G)
    walk('string', getmetatable(''))
    return table.concat(found, '\\n') .. ('x'):upper() .. bit.band(7, 12) .. #KEYS .. #ARGV .. redis.call('ping').ok";

/// Runs one input.
pub fn run(data: &[u8]) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let ended = thread.spawn_scoped(scope, || play(data)).expect("there is a thread").join();
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

fn play(data: &[u8]) {
    let (kind, rest) = match data.split_first() {
        Some((b'r', rest)) => (Kind::Script, rest.to_vec()),
        Some((b'f', rest)) => (Kind::Function, rest.to_vec()),
        Some((&first, rest)) => (if first % 8 == 0 { Kind::Function } else { Kind::Script }, grammar::script(rest)),
        None => return,
    };
    let mut run = Run::new(data.len().is_multiple_of(2));
    let whole = run.call(&[b"EVAL", WALK.as_bytes(), b"0"]);
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
        run.engine.check_invariants();
        run.engine.script_steps_max = None;
        let now = run.call(&[b"EVAL", WALK.as_bytes(), b"0"]);
        assert!(now == whole, "another script finds {}", now.escape_ascii());
        assert_eq!(run.call(&[b"GET", b"nothing"]), if run.resp3 { b"_\r\n".as_slice() } else { b"$-1\r\n" });
        run.engine.script_steps_max = Some(STEPS_MAX);
    }
    // A library, a flush, and what is left to be freed afterwards.
    run.call(&[b"FUNCTION", b"LOAD", &[b"#!lua name=loaded\n".as_slice(), &rest].concat()]);
    run.call(&[b"SCRIPT", b"FLUSH"]);
    run.call(&[b"FUNCTION", b"FLUSH"]);
    for _ in 0..1000 {
        if !run.engine.advance(run.now) {
            break;
        }
    }
    run.engine.check_invariants();
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
    engine: Engine,
    now: Now,
    session: SessionId,
    resp3: bool,
}

impl Run {
    fn new(resp3: bool) -> Self {
        let now = Now::new(1_000_000, 1_700_000_000_000);
        let config = Config { proto_max_bulk_len: 1 << 20, script_memory_limit: MEMORY_MAX, ..Config::default() };
        let mut engine = Engine::new(config, 1, now);
        engine.script_steps_max = Some(STEPS_MAX);
        let session = engine.connect(now, Peer::default());
        let mut run = Run { engine, now, session, resp3 };
        if resp3 {
            run.call(&[b"HELLO", b"3"]);
        }
        run.call(&[b"HSET", b"h", b"f", b"1", b"g", b"x"]);
        run.call(&[b"SET", b"s", b"12"]);
        run
    }

    fn call(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.engine.execute(self.now, self.session, args);
        self.engine.take_dirty(&mut Vec::new());
        self.engine.take_actions();
        let session = &mut self.engine.sessions[self.session.0 as usize];
        let out = std::mem::take(&mut session.out);
        assert!(!out.is_empty(), "no reply");
        if out.len() <= DECODED_MAX {
            frames::assert_whole(&out, session.protocol, true);
        }
        out
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
