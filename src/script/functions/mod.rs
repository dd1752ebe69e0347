//! Functions: libraries of Lua that stay until they are deleted.
//!
//! ```text
//!   FUNCTION LOAD, RESTORE ─▶ metadata: name ─▶ loading: run once ─▶ registered functions ─▶ libraries
//!   FCALL ─▶ callback by name ─▶ the run that scripts share
//! ```
//!
//! They have an interpreter of their own, so flushing scripts does not touch them. They belong to the server, not to a database.

pub(in crate::script) mod loading;
mod metadata;
mod payload;

use std::collections::BTreeMap;
use std::ptr::NonNull;

use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::keyspace::change::{Change, Changes, Classes, Effect, Event};
use crate::script::interpreter::Interpreter;
use crate::script::shebang::{self, ScriptFlags};
use crate::script::{MEMORY_LIMIT, ScriptState};
use crate::script::{Program, Request, Retired, execute};

pub(in crate::script) use loading::Draft;
use loading::{Host, Registered};
use payload::Sources;

/// What is done on `FUNCTION RESTORE` with the libraries that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They go.
    Flush,
    /// They stay; one of the same name as a restored one is an error.
    Append,
    /// They stay, but for those of the same name as a restored one.
    Replace,
}

/// One library.
struct Library {
    /// Its source, first line included.
    source: Vec<u8>,
    /// Its functions by name.
    functions: BTreeMap<Vec<u8>, Registered>,
}

/// What `FCALL` finds by a name, whose case does not matter.
struct Callback {
    program: Program,
    /// The name as it was registered.
    name: Vec<u8>,
    /// Its library's name.
    library: Vec<u8>,
}

/// Libraries and what can be called in them.
#[derive(Default)]
struct Libraries {
    by_name: BTreeMap<Vec<u8>, Library>,
    /// By the function's name in lower case.
    callbacks: BTreeMap<Vec<u8>, Callback>,
    /// Bytes of sources, names and descriptions.
    bytes: usize,
}

impl Libraries {
    fn link(&mut self, name: Vec<u8>, library: Library) {
        for (function, registered) in &library.functions {
            let program = Program { function: registered.function, flags: registered.flags, plan: None };
            self.callbacks.entry(function.to_ascii_lowercase()).or_insert_with(|| Callback {
                program,
                name: function.clone(),
                library: name.clone(),
            });
        }
        self.bytes += library.bytes(&name);
        self.by_name.insert(name, library);
    }

    fn unlink(&mut self, name: &[u8]) -> Option<Library> {
        let library = self.by_name.remove(name)?;
        for function in library.functions.keys() {
            let lower = function.to_ascii_lowercase();
            if self.callbacks.get(&lower).is_some_and(|callback| callback.library == name) {
                self.callbacks.remove(&lower);
            }
        }
        self.bytes -= library.bytes(name);
        Some(library)
    }

    /// Errors where one of these functions is in a library that stays.
    fn check_free<'a>(
        &self,
        mut functions: impl Iterator<Item = &'a Vec<u8>>,
        stays: impl Fn(&[u8]) -> bool,
    ) -> std::result::Result<(), Error> {
        let taken = |name: &[u8]| self.callbacks.get(&name.to_ascii_lowercase()).is_some_and(|callback| stays(&callback.library));
        match functions.find(|name| taken(name)) {
            Some(name) => Err(Error::quoting("ERR Function ", name, " already exists")),
            None => Ok(()),
        }
    }

    /// Loads a library and gives its name; with `replace`, in place of another with that name.
    ///
    /// # Safety
    /// The interpreter is that of all these functions, and runs nothing. The host's engine, if it has one, is reached by it alone.
    unsafe fn load(&mut self, interpreter: NonNull<Interpreter>, host: Host, source: &[u8], replace: bool) -> Result<Vec<u8>> {
        let metadata::Metadata { name, body } = metadata::read(source)?;
        if !replace && self.by_name.contains_key(&name) {
            return Err(Error::quoting("ERR Library '", &name, "' already exists"));
        }
        // SAFETY: as promised.
        let functions = unsafe { loading::load(interpreter.as_ptr(), host, body) }.map_err(Error::of_bytes)?;
        let checked = if functions.is_empty() {
            Err(Error::new("ERR No functions registered"))
        } else {
            self.check_free(functions.keys(), |library| library != name)
        };
        let library = Library { source: source.to_vec(), functions };
        if let Err(error) = checked {
            // SAFETY: as promised.
            unsafe { library.forget(interpreter) };
            return Err(error);
        }
        if let Some(old) = self.unlink(&name) {
            // SAFETY: as promised.
            unsafe { old.forget(interpreter) };
        }
        self.link(name.clone(), library);
        Ok(name)
    }

    /// Gives up all functions.
    ///
    /// # Safety
    /// As for [`Libraries::load`].
    unsafe fn forget(self, interpreter: NonNull<Interpreter>) {
        for library in self.by_name.into_values() {
            // SAFETY: as promised.
            unsafe { library.forget(interpreter) }
        }
    }
}

impl Library {
    fn bytes(&self, name: &[u8]) -> usize {
        let function = |(name, registered): (&Vec<u8>, &Registered)| {
            // The name is there twice, as a key and as what is called.
            2 * name.len() + registered.description.as_ref().map_or(0, Vec::len) + size_of::<Registered>() + size_of::<Callback>()
        };
        self.source.len() + name.len() + size_of::<Library>() + self.functions.iter().map(function).sum::<usize>()
    }

    /// Lets the interpreter collect the functions.
    ///
    /// # Safety
    /// As for [`Libraries::load`].
    unsafe fn forget(&self, interpreter: NonNull<Interpreter>) {
        for registered in self.functions.values() {
            // SAFETY: as promised.
            unsafe { Interpreter::forget(interpreter.as_ptr(), registered.function) }
        }
    }
}

/// The libraries of a server and their interpreter, which is made when the first library comes.
pub struct Functions {
    interpreter: Option<NonNull<Interpreter>>,
    libraries: Libraries,
    /// Bytes that the interpreter may take.
    memory_limit: usize,
}

impl Default for Functions {
    fn default() -> Self {
        let memory_limit = usize::try_from(MEMORY_LIMIT).unwrap_or(usize::MAX);
        Functions { interpreter: None, libraries: Libraries::default(), memory_limit }
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nobody else has it; `free` leaves one alone that runs.
            unsafe { Interpreter::free(interpreter) }
        }
    }
}

/// A library as `FUNCTION LIST` shows it.
pub struct Listed<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its source.
    pub source: &'a [u8],
    functions: &'a BTreeMap<Vec<u8>, Registered>,
}

/// A function as `FUNCTION LIST` shows it.
pub struct ListedFunction<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its description, if it has one.
    pub description: Option<&'a [u8]>,
    /// The names of its flags.
    pub flags: Vec<&'static str>,
}

impl<'a> Listed<'a> {
    /// Its functions, in the order of their names.
    pub fn functions(&self) -> impl ExactSizeIterator<Item = ListedFunction<'a>> {
        self.functions.iter().map(|(name, registered)| ListedFunction {
            name,
            description: registered.description.as_deref(),
            flags: registered.flags.names().collect(),
        })
    }
}

impl Functions {
    /// Number of libraries.
    pub fn libraries(&self) -> usize {
        self.libraries.by_name.len()
    }

    /// Number of functions in all libraries.
    pub fn functions(&self) -> usize {
        self.libraries.by_name.values().map(|library| library.functions.len()).sum()
    }

    /// Bytes that the interpreter has taken.
    pub fn interpreter_bytes(&self) -> usize {
        // SAFETY: it is valid as long as it is here.
        self.interpreter.map_or(0, |interpreter| unsafe { (*interpreter.as_ptr()).memory.used })
    }

    /// Bytes of the libraries' sources, names and descriptions.
    pub fn library_bytes(&self) -> usize {
        self.libraries.bytes
    }

    /// All libraries, in the order of their names.
    pub fn list(&self) -> impl Iterator<Item = Listed<'_>> {
        let by_name = &self.libraries.by_name;
        by_name.iter().map(|(name, library)| Listed { name, source: &library.source, functions: &library.functions })
    }

    /// Loads a library and gives its name. One of the same name is an error, or with `replace` makes way.
    pub fn load(&mut self, source: &[u8], replace: bool) -> Result<Vec<u8>> {
        // SAFETY: nobody is to be asked.
        unsafe { self.load_for(Host::none(), source, replace) }
    }

    /// As [`Functions::load`]; meanwhile the host's engine is asked whether the library may go on.
    ///
    /// # Safety
    /// The engine is reached by the host alone, and these functions are not among its own.
    unsafe fn load_for(&mut self, host: Host, source: &[u8], replace: bool) -> Result<Vec<u8>> {
        self.leave_if_broken();
        let interpreter = *self.interpreter.get_or_insert_with(|| loading::create(self.memory_limit));
        // SAFETY: as promised. The interpreter is valid and runs nothing: commands that load are not allowed from scripts.
        unsafe { self.libraries.load(interpreter, host, source, replace) }
    }

    /// Deletes a library.
    pub fn delete(&mut self, name: &[u8]) -> Result {
        self.leave_if_broken();
        let library = self.libraries.unlink(name).ok_or(Error::new("ERR Library not found"))?;
        if let Some(interpreter) = self.interpreter {
            // SAFETY: as for `load`.
            unsafe { library.forget(interpreter) }
        }
        Ok(())
    }

    /// Bounds what the interpreter may take, in bytes.
    pub fn set_memory_limit(&mut self, bytes: u64) {
        self.memory_limit = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(interpreter) = self.interpreter {
            // SAFETY: it is valid as long as it is here, and no function runs: those cannot change the configuration.
            unsafe { (*interpreter.as_ptr()).memory.limit = self.memory_limit }
        }
    }

    /// Deletes all libraries, and the interpreter with them, which may take its time to be freed.
    pub(crate) fn flush(&mut self, retired: &mut Retired) {
        self.leave_if_broken();
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nobody else has it, and it runs nothing: commands that flush are not allowed from scripts.
            unsafe { retired.add(interpreter) }
        }
        let memory_limit = self.memory_limit;
        *self = Functions::default();
        self.memory_limit = memory_limit;
    }

    /// All libraries as a payload for `Functions::restore`.
    pub fn dump(&self) -> Vec<u8> {
        payload::write(self.libraries.by_name.values().map(|library| library.source.as_slice()))
    }

    /// Loads the libraries of a payload, and gives their names; all of them, or none and an error.
    ///
    /// # Safety
    /// As for [`Functions::load_for`].
    unsafe fn restore(&mut self, host: Host, payload: &[u8], policy: Policy) -> Result<Vec<Vec<u8>>> {
        self.leave_if_broken();
        let sources = Sources::new(payload).map_err(Error::new)?;
        let interpreter = *self.interpreter.get_or_insert_with(|| loading::create(self.memory_limit));
        let mut restored = Libraries::default();
        for source in sources {
            // SAFETY: as for `load`.
            let loaded =
                source.map_err(Error::new).and_then(|source| unsafe { restored.load(interpreter, host, &source, false) });
            if let Err(error) = loaded {
                // SAFETY: as for `load`.
                unsafe { restored.forget(interpreter) };
                return Err(error);
            }
        }
        if let Err(error) = self.check_restored(&restored, policy) {
            // SAFETY: as for `load`.
            unsafe { restored.forget(interpreter) };
            return Err(error);
        }
        let names: Vec<_> = restored.by_name.keys().cloned().collect();
        if policy == Policy::Flush {
            let old = std::mem::replace(&mut self.libraries, restored);
            // SAFETY: as for `load`.
            unsafe { old.forget(interpreter) };
            return Ok(names);
        }
        for name in &names {
            if let Some(old) = self.libraries.unlink(name) {
                // SAFETY: as for `load`.
                unsafe { old.forget(interpreter) };
            }
        }
        for (name, library) in restored.by_name {
            self.libraries.link(name, library);
        }
        Ok(names)
    }

    /// Errors where restored libraries cannot stand beside those that stay.
    fn check_restored(&self, restored: &Libraries, policy: Policy) -> Result {
        if policy == Policy::Flush {
            return Ok(());
        }
        if policy == Policy::Append
            && let Some(name) = restored.by_name.keys().find(|name| self.libraries.by_name.contains_key(*name))
        {
            return Err(Error::quoting("ERR Library ", name, " already exists"));
        }
        let functions = restored.by_name.values().flat_map(|library| library.functions.keys());
        self.libraries.check_free(functions, |library| !restored.by_name.contains_key(library))
    }

    /// The function of a name, in any case.
    fn find(&self, name: &[u8]) -> Option<&Callback> {
        let lower: SmallVec<[u8; 64]> = name.iter().map(u8::to_ascii_lowercase).collect();
        self.libraries.callbacks.get(lower.as_slice())
    }

    /// The name of a function as it was registered, for one in any case.
    pub fn registered_name(&self, name: &[u8]) -> Option<&[u8]> {
        self.find(name).map(|callback| &*callback.name)
    }

    /// What the function of a name, in any case, says of itself.
    pub(super) fn flags(&self, name: &[u8]) -> Option<ScriptFlags> {
        self.find(name).map(|callback| callback.program.flags)
    }

    /// Whether there is a function of a name, in any case.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// Leaves an interpreter behind in which a run never came to its end, as when a command's handler panicked, and loads all
    /// libraries into a new one.
    fn leave_if_broken(&mut self) {
        // SAFETY: it is valid as long as it is here.
        if self.interpreter.is_some_and(|interpreter| unsafe { Interpreter::is_running(interpreter.as_ptr()) }) {
            let interpreter = loading::create(self.memory_limit);
            self.interpreter = Some(interpreter);
            for (name, library) in std::mem::take(&mut self.libraries).by_name {
                // SAFETY: as for `load`.
                if let Err(error) = unsafe { self.libraries.load(interpreter, Host::none(), &library.source, true) } {
                    let name = String::from_utf8_lossy(&name);
                    tracing::warn!(target: "script", "the library {name} is lost: {error}");
                }
            }
        }
    }

    /// Panics where the libraries are not what they should be. Walks everything.
    pub fn check_invariants(&self) {
        for (lower, callback) in &self.libraries.callbacks {
            assert_eq!(callback.name.to_ascii_lowercase(), *lower);
            let registered = &self.libraries.by_name[&callback.library].functions[&callback.name];
            assert_eq!(registered.function, callback.program.function);
        }
        for (name, library) in &self.libraries.by_name {
            assert!(!library.functions.is_empty());
            for function in library.functions.keys() {
                assert_eq!(&self.find(function).expect("each function is found by its name").library, name);
            }
        }
        let bytes = self.libraries.by_name.iter().map(|(name, library)| library.bytes(name)).sum::<usize>();
        assert_eq!(self.libraries.bytes, bytes);
        assert!(self.interpreter.is_some() || self.libraries.by_name.is_empty());
    }
}

/// Reports what has become of the libraries.
fn emit(changes: &mut Changes, now: Now, effect: Effect<'_>) {
    let event = Event::new(Classes::empty(), "function");
    changes.emit(Change { now, db: 0, key: b"", event, effect });
}

/// Works on the libraries outside of the engine, which a library that loads may ask meanwhile whether it may go on.
fn detached<T>(cx: &mut Context<'_>, work: impl FnOnce(&mut Functions, Host) -> T) -> T {
    let mut functions = std::mem::take(&mut cx.engine.lua_mut().functions);
    let host = Host { engine: &raw mut *cx.engine, now: cx.now, session: cx.session };
    let done = work(&mut functions, host);
    cx.engine.lua_mut().functions = functions;
    done
}

/// Loads a library and gives its name. One of the same name is an error, or with `replace` makes way.
pub fn load(cx: &mut Context<'_>, source: &[u8], replace: bool) -> Result<Vec<u8>> {
    // SAFETY: `detached` promises it.
    let name = detached(cx, |functions, host| unsafe { functions.load_for(host, source, replace) })?;
    emit(&mut cx.engine.keyspace.changes, cx.now, Effect::LoadLibrary { source });
    Ok(name)
}

/// Deletes a library.
pub fn delete(cx: &mut Context<'_>, name: &[u8]) -> Result {
    cx.engine.lua_mut().functions.delete(name)?;
    emit(&mut cx.engine.keyspace.changes, cx.now, Effect::DeleteLibrary { name });
    Ok(())
}

/// Deletes all libraries.
pub fn flush(cx: &mut Context<'_>) {
    let ScriptState { functions, retired, .. } = cx.engine.lua_mut();
    functions.flush(retired);
    emit(&mut cx.engine.keyspace.changes, cx.now, Effect::FlushLibraries);
}

/// Loads the libraries of a payload; all of them, or none and an error.
pub fn restore(cx: &mut Context<'_>, payload: &[u8], policy: Policy) -> Result {
    // SAFETY: `detached` promises it.
    let names = detached(cx, |functions, host| unsafe { functions.restore(host, payload, policy) })?;
    if policy == Policy::Flush {
        emit(&mut cx.engine.keyspace.changes, cx.now, Effect::FlushLibraries);
    }
    for name in &names {
        let Engine { scripts, keyspace, .. } = &mut *cx.engine;
        let functions = &ScriptState::of(&**scripts).functions;
        let Some(Library { source, .. }) = functions.libraries.by_name.get(name) else { continue };
        emit(&mut keyspace.changes, cx.now, Effect::LoadLibrary { source });
    }
    Ok(())
}

/// Calls a function for a session and replies with its result.
pub fn call(cx: &mut Context<'_>, name: &[u8], request: Request<'_>) -> Result {
    const NOT_FOUND: Error = Error::FUNCTION_NOT_FOUND;
    let functions = &mut cx.engine.lua_mut().functions;
    functions.leave_if_broken();
    let program = functions.find(name).ok_or(NOT_FOUND)?.program.clone();
    let interpreter = functions.interpreter.ok_or(NOT_FOUND)?;
    execute(cx, interpreter, program, request, |engine| engine.lua().functions.find(name).map_or(b"", |callback| &callback.name))
}

impl ScriptFlags {
    /// Their names, in the order in which Redis lists them.
    fn names(self) -> impl Iterator<Item = &'static str> {
        shebang::NAMES.iter().filter(move |(_, flag)| self.contains(*flag)).map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests;
