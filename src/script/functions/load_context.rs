//! The functions that a library registers while it loads.

use std::collections::BTreeMap;

use crate::script::interpreter::function::Function;
use crate::script::shebang::ScriptFlags;

/// Maximum number of bytes of names and descriptions that one library may register. They are not part of Lua's memory and its
/// limit.
const REGISTERED_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// One function of a library.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredFunction {
    /// Its Lua function.
    pub function: Function,
    /// The flags that it declares.
    pub flags: ScriptFlags,
    /// Its description, if it has one.
    pub description: Option<Vec<u8>>,
}

/// The functions that a loading library has registered so far.
#[derive(Default)]
pub(crate) struct LoadContext {
    /// By name.
    pub(super) functions: BTreeMap<Vec<u8>, RegisteredFunction>,
    bytes: usize,
}

impl LoadContext {
    /// Adds a function. The error is that of `redis.register_function`.
    pub(super) fn add(&mut self, name: Vec<u8>, registered: RegisteredFunction) -> Result<(), &'static str> {
        let bytes = name.len() + registered.description.as_ref().map_or(0, Vec::len) + size_of::<RegisteredFunction>();
        fail_if!(bytes > REGISTERED_BYTES_MAX - self.bytes, "not enough memory");
        self.bytes += bytes;
        self.functions.insert(name, registered);
        Ok(())
    }
}
