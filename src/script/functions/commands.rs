//! Operations on functions for a session: they report changes, and call functions.

use crate::base::error::{Error, Result};
use crate::base::time::Now;
use crate::engine::context::Context;
use crate::keyspace::change::{Change, Changes, Classes, Effect, Event};
use crate::script::execute::{Request, execute};
use crate::script::functions::libraries::Library;
use crate::script::functions::loading::LoadEnvironment;
use crate::script::functions::store::{Functions, Policy};
use crate::script::state::ScriptState;

/// Reports a change of the libraries.
fn emit(changes: &mut Changes, now: Now, effect: Effect<'_>) {
    changes.emit(change_of(now, effect));
}

fn change_of(now: Now, effect: Effect<'_>) -> Change<'_> {
    Change { now, db: 0, key: b"", event: Event::new(Classes::empty(), "function"), effect }
}

/// Takes the functions out of the engine while `work` runs: a library that loads reaches the engine through its environment.
fn with_functions<T>(cx: &mut Context<'_>, work: impl FnOnce(&mut Functions, LoadEnvironment) -> T) -> T {
    let mut functions = std::mem::take(&mut cx.engine.lua_mut().functions);
    let environment = LoadEnvironment { engine: &raw mut *cx.engine, now: cx.now, session: cx.session };
    let done = work(&mut functions, environment);
    cx.engine.lua_mut().functions = functions;
    done
}

/// Loads a library and returns its name. An existing library of the same name is an error, or with `replace` is replaced.
pub fn load(cx: &mut Context<'_>, source: &[u8], replace: bool) -> Result<Vec<u8>> {
    // SAFETY: `with_functions` has taken the functions out of the engine, which is reached through the environment only.
    let name = with_functions(cx, |functions, environment| unsafe { functions.load_in(environment, source, replace) })?;
    emit(&mut cx.engine.keyspace_mut().changes, cx.now, Effect::LoadLibrary { source });
    Ok(name)
}

/// Deletes a library.
pub fn delete(cx: &mut Context<'_>, name: &[u8]) -> Result {
    cx.engine.lua_mut().functions.delete(name)?;
    emit(&mut cx.engine.keyspace_mut().changes, cx.now, Effect::DeleteLibrary { name });
    Ok(())
}

/// Deletes all libraries.
pub fn flush(cx: &mut Context<'_>) {
    let ScriptState { functions, lazyfree, .. } = cx.engine.lua_mut();
    functions.flush(lazyfree);
    emit(&mut cx.engine.keyspace_mut().changes, cx.now, Effect::FlushLibraries);
}

/// Loads the libraries of a payload. If one fails, none is loaded.
pub fn restore(cx: &mut Context<'_>, payload: &[u8], policy: Policy) -> Result {
    let (old, names) = with_functions(cx, |functions, environment| {
        let old: Vec<Vec<u8>> = functions.libraries.by_name.keys().cloned().collect();
        // SAFETY: `with_functions` has taken the functions out of the engine, which is reached through the environment only.
        unsafe { functions.restore(environment, payload, policy) }.map(|names| (old, names))
    })?;
    if policy == Policy::Flush {
        emit(&mut cx.engine.keyspace_mut().changes, cx.now, Effect::FlushLibraries);
    } else {
        // Two replaced libraries may have exchanged functions: none may be loaded while an old one is there.
        for name in old.iter().filter(|name| names.contains(name)) {
            cx.engine.keyspace_mut().changes.emit_end(change_of(cx.now, Effect::DeleteLibrary { name }));
        }
    }
    for name in &names {
        let (scripts, keyspace) = cx.engine.scripts_and_keyspace();
        let functions = &ScriptState::of(scripts).functions;
        let Some(Library { source, .. }) = functions.libraries.by_name.get(name) else { continue };
        emit(&mut keyspace.changes, cx.now, Effect::LoadLibrary { source });
    }
    Ok(())
}

/// Calls a function and replies with its result.
pub fn call(cx: &mut Context<'_>, name: &[u8], request: Request<'_>) -> Result {
    const NOT_FOUND: Error = Error::FUNCTION_NOT_FOUND;
    let functions = &mut cx.engine.lua_mut().functions;
    functions.replace_poisoned_interpreter();
    let program = functions.find(name).ok_or(NOT_FOUND)?.program.clone();
    let interpreter = functions.interpreter.ok_or(NOT_FOUND)?;
    execute(cx, (interpreter, true), program, request, |engine| {
        engine.lua().functions.find(name).map_or(b"", |callback| &callback.name)
    })
}
