//! The cache of scripts.

use crate::engine::harness::Harness;
use crate::script::cache::scripts::EVALUATED_MAX;
use crate::script::sha::sha1_hex;
use crate::script::tests::Scripted;

#[test]
fn a_script_is_found_by_its_sha_once_it_was_evaluated_or_loaded() {
    let mut server = Scripted::new();
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(server.send(&["EVALSHA", sha, "0"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["EVALSHA", "short", "-1"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["SCRIPT", "EXISTS", sha, "x"]), "*2\r\n:0\r\n:0\r\n");
    assert_eq!(server.eval("return 1"), ":1\r\n");
    assert_eq!(server.send(&["EVALSHA", sha, "0"]), ":1\r\n");
    assert_eq!(server.send(&["EVALSHA", &sha.to_uppercase(), "0"]), ":1\r\n");
    assert_eq!(server.send(&["SCRIPT", "EXISTS", sha, &sha.to_uppercase(), "x"]), "*3\r\n:1\r\n:1\r\n:0\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    assert_eq!(server.send(&["EVALSHA", sha, "0"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["SCRIPT", "LOAD", "return 1"]), format!("$40\r\n{sha}\r\n"));
    assert_eq!(server.send(&["EVALSHA_RO", sha, "0"]), ":1\r\n");
    assert_eq!(server.send(&["SCRIPT", "SHOW", sha]), "$8\r\nreturn 1\r\n");
    assert_eq!(server.send(&["SCRIPT", "SHOW", "short"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "async"]), "+OK\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "SYNC"]), "+OK\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "SYNC", "x"]), "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "later"]), "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n");
}

#[test]
fn evaluated_scripts_are_evicted_and_loaded_ones_stay() {
    let mut server = Scripted::new();
    let loaded = server.send(&["SCRIPT", "LOAD", "return 'loaded'"])[5..45].to_owned();
    let mut shas = Vec::new();
    for n in 0..EVALUATED_MAX {
        server.eval(&format!("return {n}"));
        shas.push(String::from_utf8(sha1_hex(format!("return {n}").as_bytes()).to_vec()).unwrap());
    }
    let cached = |server: &mut Scripted, sha: &str| server.send(&["SCRIPT", "EXISTS", sha]) == "*1\r\n:1\r\n";
    assert!(shas.iter().all(|sha| cached(&mut server, sha)));
    // The first is used again and the second is loaded, so the third is evicted.
    server.send(&["EVALSHA", &shas[0], "0"]);
    server.send(&["SCRIPT", "LOAD", "return 1"]);
    server.eval("return 'one more'");
    server.eval("return 'and another'");
    assert!(cached(&mut server, &shas[0]) && cached(&mut server, &shas[1]) && cached(&mut server, &loaded));
    assert!(!cached(&mut server, &shas[2]) && cached(&mut server, &shas[3]));
    assert_eq!(server.0.engine.lua().scripts.evicted, 1);
    assert_eq!(server.0.engine.lua().scripts.len(), EVALUATED_MAX + 2);
    // References of evicted scripts are reused.
    for n in 0..2000 {
        assert_eq!(server.eval(&format!("return -{n}")), format!(":{}\r\n", -n));
    }
}

#[test]
fn a_poisoned_interpreter_is_not_used_again() {
    let mut server = Scripted::new();
    server.eval("return 1");
    let engine: *mut _ = &raw mut server.0.engine;
    let interpreter = server.0.engine.lua().scripts.interpreter.unwrap();
    // SAFETY: this is the state that a panic in a handler leaves behind.
    unsafe { (*interpreter.as_ptr()).frame.engine = engine };
    assert_eq!(server.eval("return 2"), ":2\r\n");
    assert_eq!(server.0.engine.lua().scripts.len(), 1);
    // SAFETY: its run had in fact ended.
    unsafe {
        (*interpreter.as_ptr()).frame.engine = std::ptr::null_mut();
        crate::script::interpreter::Interpreter::free(interpreter);
    }
}

#[test]
fn scripts_that_the_supervisor_drops_are_not_freed_during_a_run() {
    use crate::engine::jobs::long_run::Verdict;
    use crate::script::cache::scripts::Scripts;
    #[cfg(address_sanitizer)]
    unsafe extern "C" {
        fn __lsan_disable();
        fn __lsan_enable();
    }
    let mut harness = Harness::new();
    harness.engine.set_supervisor(Some(Box::new(|engine, _, _, _| {
        engine.lua_mut().scripts = Scripts::default();
        Verdict::Continue
    })));
    let script = b"local t = {} for i = 1, 1e6 do t[i % 100] = {} end return 'done'";
    // The interpreter is leaked on purpose.
    #[cfg(address_sanitizer)]
    // SAFETY: changes only the sanitizer's own state.
    unsafe {
        __lsan_disable();
    }
    assert_eq!(harness.args(&[b"EVAL", script, b"0"]), b"$4\r\ndone\r\n");
    #[cfg(address_sanitizer)]
    // SAFETY: changes only the sanitizer's own state.
    unsafe {
        __lsan_enable();
    }
    harness.engine.set_supervisor(None);
    assert_eq!(harness.args(&[b"EVAL", script, b"0"]), b"$4\r\ndone\r\n");
    harness.engine.lua().scripts.check_invariants();
}
