//! Libraries of functions and the names by which `FCALL` finds their functions.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use crate::base::error::{Error, Result};
use crate::script::functions::load_context::RegisteredFunction;
use crate::script::functions::loading::{self, LoadEnvironment};
use crate::script::functions::metadata;
use crate::script::interpreter::Interpreter;
use crate::script::program::Program;

/// One library.
pub(super) struct Library {
    /// Its source, including the first line.
    pub source: Vec<u8>,
    /// Its functions by name.
    pub functions: BTreeMap<Vec<u8>, RegisteredFunction>,
}

/// A function as `FCALL` finds it.
pub(super) struct Callback {
    pub program: Program,
    /// Its name as it was registered.
    pub name: Vec<u8>,
    /// The name of its library.
    pub library: Vec<u8>,
}

/// Libraries and their functions.
#[derive(Default)]
pub(super) struct Libraries {
    pub by_name: BTreeMap<Vec<u8>, Library>,
    /// By the function's name in lower case. If names in a library differ only in case, `FCALL` finds the first one in byte order.
    pub callbacks: BTreeMap<Vec<u8>, Callback>,
    /// Bytes of sources, names and descriptions.
    pub bytes: usize,
}

impl Libraries {
    /// Adds a loaded library and its functions.
    pub(super) fn insert(&mut self, name: Vec<u8>, library: Library) {
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

    /// Removes a library and its functions.
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Library> {
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

    /// Checks that none of these functions is in a library that stays.
    pub(super) fn check_free<'a>(
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

    /// Loads a library and returns its name. With `replace`, it may replace a library of the same name.
    ///
    /// # Safety
    /// The interpreter is that of all these functions, and runs nothing. The environment's engine is null, or is reached through
    /// the environment only.
    pub(super) unsafe fn load(
        &mut self,
        interpreter: NonNull<Interpreter>,
        environment: LoadEnvironment,
        source: &[u8],
        replace: bool,
    ) -> Result<Vec<u8>> {
        let metadata::Metadata { name, body } = metadata::read(source)?;
        fail_if!(!replace && self.by_name.contains_key(&name), Error::quoting("ERR Library '", &name, "' already exists"));
        // SAFETY: the interpreter is that of all functions, and so came from `loading::create`, and it runs nothing. The engine
        // is null, or reached through the environment only.
        let functions = unsafe { loading::load(interpreter.as_ptr(), environment, body) }.map_err(Error::of_bytes)?;
        let checked = if functions.is_empty() {
            Err(Error::new("ERR No functions registered"))
        } else {
            self.check_free(functions.keys(), |library| library != name)
        };
        let library = Library { source: source.to_vec(), functions };
        if let Err(error) = checked {
            // SAFETY: the functions have just been registered in this interpreter, which runs nothing.
            unsafe { library.release(interpreter) };
            return Err(error);
        }
        if let Some(old) = self.remove(&name) {
            // SAFETY: the functions of the old library are in the same interpreter, which runs nothing.
            unsafe { old.release(interpreter) };
        }
        self.insert(name.clone(), library);
        Ok(name)
    }

    /// Releases all functions in the interpreter.
    ///
    /// # Safety
    /// As for [`Libraries::load`].
    pub(super) unsafe fn release(self, interpreter: NonNull<Interpreter>) {
        for library in self.by_name.into_values() {
            // SAFETY: as promised.
            unsafe { library.release(interpreter) }
        }
    }
}

impl Library {
    /// Bytes of the library, whose name is `name`, and of what refers to it.
    pub(super) fn bytes(&self, name: &[u8]) -> usize {
        let function = |(name, registered): (&Vec<u8>, &RegisteredFunction)| {
            // The name is stored twice: in the library and in the callback.
            2 * name.len()
                + registered.description.as_ref().map_or(0, Vec::len)
                + size_of::<RegisteredFunction>()
                + size_of::<Callback>()
        };
        self.source.len() + name.len() + size_of::<Library>() + self.functions.iter().map(function).sum::<usize>()
    }

    /// Releases its functions in the interpreter, whose collector frees them.
    ///
    /// # Safety
    /// As for [`Libraries::load`].
    pub(super) unsafe fn release(&self, interpreter: NonNull<Interpreter>) {
        for registered in self.functions.values() {
            // SAFETY: the functions were registered in this interpreter, which runs nothing.
            unsafe { Interpreter::release(interpreter.as_ptr(), registered.function) }
        }
    }
}
