//! The libraries of a server and their interpreter.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::script::cache::lazyfree::Lazyfree;
use crate::script::functions::libraries::{Callback, Libraries};
use crate::script::functions::load_context::RegisteredFunction;
use crate::script::functions::loading::{self, LoadEnvironment};
use crate::script::functions::payload::{self, Sources};
use crate::script::interpreter::Interpreter;
use crate::script::lua::memory;
use crate::script::shebang::ScriptFlags;

/// What `FUNCTION RESTORE` does with existing libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They are deleted.
    Flush,
    /// They stay. A restored library of the same name is an error.
    Append,
    /// They stay, except that restored libraries replace those of the same name.
    Replace,
}

/// The libraries of a server and their interpreter, which is created for the first library.
pub struct Functions {
    pub(super) interpreter: Option<NonNull<Interpreter>>,
    pub(super) libraries: Libraries,
    /// Maximum memory of the interpreter in bytes.
    memory_limit: usize,
}

impl Default for Functions {
    fn default() -> Self {
        let memory_limit = usize::try_from(memory::LIMIT).unwrap_or(usize::MAX);
        Functions { interpreter: None, libraries: Libraries::default(), memory_limit }
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nothing else has it; `free` leaks one with an unfinished run.
            unsafe { Interpreter::free(interpreter) }
        }
    }
}

/// A library as `FUNCTION LIST` shows it.
pub struct ListedLibrary<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its source.
    pub source: &'a [u8],
    functions: &'a BTreeMap<Vec<u8>, RegisteredFunction>,
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

impl<'a> ListedLibrary<'a> {
    /// Its functions, ordered by name.
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

    /// Memory of the interpreter in bytes.
    pub fn interpreter_bytes(&self) -> usize {
        // SAFETY: it is valid as long as it is here.
        self.interpreter.map_or(0, |interpreter| unsafe { (*interpreter.as_ptr()).memory.used })
    }

    /// Bytes of the libraries' sources, names and descriptions.
    pub fn library_bytes(&self) -> usize {
        self.libraries.bytes
    }

    /// All libraries, ordered by name.
    pub fn list(&self) -> impl Iterator<Item = ListedLibrary<'_>> {
        let by_name = &self.libraries.by_name;
        by_name.iter().map(|(name, library)| ListedLibrary { name, source: &library.source, functions: &library.functions })
    }

    /// Loads a library and returns its name. An existing library of the same name is an error, or with `replace` is replaced.
    pub fn load(&mut self, source: &[u8], replace: bool) -> Result<Vec<u8>> {
        // SAFETY: there is no engine.
        unsafe { self.load_in(LoadEnvironment::without_engine(), source, replace) }
    }

    /// As [`Functions::load`], with an engine whose supervisor decides whether the library may continue.
    ///
    /// # Safety
    /// The engine is reached through the environment only, and is not the owner of these functions.
    pub(super) unsafe fn load_in(&mut self, environment: LoadEnvironment, source: &[u8], replace: bool) -> Result<Vec<u8>> {
        self.replace_poisoned_interpreter();
        let interpreter = *self.interpreter.get_or_insert_with(|| loading::create(self.memory_limit));
        // SAFETY: the interpreter came from `loading::create`, and runs nothing: one with an unfinished run has just been
        // replaced. The engine is reached through the environment only, as promised.
        unsafe { self.libraries.load(interpreter, environment, source, replace) }
    }

    /// Deletes a library.
    pub fn delete(&mut self, name: &[u8]) -> Result {
        self.replace_poisoned_interpreter();
        let library = self.libraries.remove(name).ok_or(Error::new("ERR Library not found"))?;
        if let Some(interpreter) = self.interpreter {
            // SAFETY: as for `load`.
            unsafe { library.release(interpreter) }
        }
        Ok(())
    }

    /// Sets the maximum memory of the interpreter in bytes.
    pub fn set_memory_limit(&mut self, bytes: u64) {
        self.memory_limit = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(interpreter) = self.interpreter {
            // SAFETY: it is valid as long as it is here, and no function runs: those cannot change the configuration.
            unsafe { (*interpreter.as_ptr()).memory.limit = self.memory_limit }
        }
    }

    /// Deletes all libraries and hands the interpreter over to be freed in steps.
    pub(crate) fn flush(&mut self, lazyfree: &mut Lazyfree) {
        self.replace_poisoned_interpreter();
        if let Some(interpreter) = self.interpreter.take() {
            // SAFETY: nothing else has it, and it runs nothing: scripts cannot call commands that flush.
            unsafe { lazyfree.add(interpreter) }
        }
        let memory_limit = self.memory_limit;
        *self = Functions::default();
        self.memory_limit = memory_limit;
    }

    /// All libraries as a payload for [`Functions::restore`].
    pub fn dump(&self) -> Vec<u8> {
        payload::write(self.libraries.by_name.values().map(|library| library.source.as_slice()))
    }

    /// Loads the libraries of a payload and returns their names. If one fails, none is loaded.
    ///
    /// # Safety
    /// As for [`Functions::load_in`].
    pub(super) unsafe fn restore(
        &mut self,
        environment: LoadEnvironment,
        payload: &[u8],
        policy: Policy,
    ) -> Result<Vec<Vec<u8>>> {
        self.replace_poisoned_interpreter();
        let sources = Sources::new(payload).map_err(Error::new)?;
        let interpreter = *self.interpreter.get_or_insert_with(|| loading::create(self.memory_limit));
        let mut restored = Libraries::default();
        for source in sources {
            // SAFETY: as for `load`.
            let loaded =
                source.map_err(Error::new).and_then(|source| unsafe { restored.load(interpreter, environment, &source, false) });
            if let Err(error) = loaded {
                // SAFETY: as for `load`.
                unsafe { restored.release(interpreter) };
                return Err(error);
            }
        }
        if let Err(error) = self.check_restored(&restored, policy) {
            // SAFETY: as for `load`.
            unsafe { restored.release(interpreter) };
            return Err(error);
        }
        let names: Vec<_> = restored.by_name.keys().cloned().collect();
        if policy == Policy::Flush {
            let old = std::mem::replace(&mut self.libraries, restored);
            // SAFETY: as for `load`.
            unsafe { old.release(interpreter) };
            return Ok(names);
        }
        for name in &names {
            if let Some(old) = self.libraries.remove(name) {
                // SAFETY: as for `load`.
                unsafe { old.release(interpreter) };
            }
        }
        for (name, library) in restored.by_name {
            self.libraries.insert(name, library);
        }
        Ok(names)
    }

    /// Checks that no restored library or function conflicts with one that stays.
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

    /// The function with this name. Case does not matter.
    pub(super) fn find(&self, name: &[u8]) -> Option<&Callback> {
        let lower: SmallVec<[u8; 64]> = name.iter().map(u8::to_ascii_lowercase).collect();
        self.libraries.callbacks.get(lower.as_slice())
    }

    /// The name of a function as it was registered. Case does not matter in `name`.
    pub fn registered_name(&self, name: &[u8]) -> Option<&[u8]> {
        self.find(name).map(|callback| &*callback.name)
    }

    /// The flags of a function. Case does not matter in `name`.
    pub(crate) fn flags(&self, name: &[u8]) -> Option<ScriptFlags> {
        self.find(name).map(|callback| callback.program.flags)
    }

    /// Whether there is a function with this name. Case does not matter.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.find(name).is_some()
    }

    /// If a run has not ended, as when a command's handler panicked, leaks the interpreter and loads all libraries into a new one.
    pub(super) fn replace_poisoned_interpreter(&mut self) {
        // SAFETY: it is valid as long as it is here.
        if self.interpreter.is_some_and(|interpreter| unsafe { Interpreter::is_running(interpreter.as_ptr()) }) {
            let interpreter = loading::create(self.memory_limit);
            self.interpreter = Some(interpreter);
            let environment = LoadEnvironment::without_engine();
            for (name, library) in std::mem::take(&mut self.libraries).by_name {
                // SAFETY: as for `load`.
                if let Err(error) = unsafe { self.libraries.load(interpreter, environment, &library.source, true) } {
                    let name = String::from_utf8_lossy(&name);
                    tracing::warn!(target: "script", "the library {name} is lost: {error}");
                }
            }
        }
    }

    /// Panics if the libraries are inconsistent. Takes time proportional to their number.
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
