//! The scripts of an engine, and the engine's access to them.

use std::any::Any;

use crate::base::error::Error;
use crate::engine::Engine;
use crate::engine::command::{Flags, Runs};
use crate::engine::scripting::Scripting;
use crate::script::cache::lazyfree::Lazyfree;
use crate::script::cache::scripts::Scripts;
use crate::script::functions::store::Functions;
use crate::script::libraries::random::ScriptRandom;
use crate::script::shebang;

/// Cached scripts, libraries of functions, and the state that their interpreters share.
#[derive(Default)]
pub struct ScriptState {
    /// Cached scripts and their interpreter.
    pub scripts: Scripts,
    /// Libraries of functions and their interpreter.
    pub functions: Functions,
    /// The generator of `math.random`.
    pub random: ScriptRandom,
    /// Removed scripts and interpreters that wait to be freed.
    pub lazyfree: Lazyfree,
}

/// The state of a new engine, without scripts.
pub(crate) fn scripting() -> Box<dyn Scripting> {
    Box::<ScriptState>::default()
}

impl ScriptState {
    /// The state behind the engine's trait object.
    #[inline]
    pub fn of(scripts: &dyn Scripting) -> &ScriptState {
        let scripts: &dyn Any = scripts;
        scripts.downcast_ref().expect("engines are made with the scripts of this module")
    }

    /// See [`ScriptState::of`].
    #[inline]
    pub fn of_mut(scripts: &mut dyn Scripting) -> &mut ScriptState {
        let scripts: &mut dyn Any = scripts;
        scripts.downcast_mut().expect("engines are made with the scripts of this module")
    }
}

impl Engine {
    /// The scripts and functions of this engine.
    #[inline]
    pub fn lua(&self) -> &ScriptState {
        ScriptState::of(self.scripts())
    }

    /// See [`Engine::lua`].
    #[inline]
    pub fn lua_mut(&mut self) -> &mut ScriptState {
        ScriptState::of_mut(self.scripts_mut())
    }
}

impl Scripting for ScriptState {
    fn flags(&self, runs: Runs, flags: Flags, args: &[&[u8]]) -> Flags {
        let declared = match runs {
            Runs::Nothing => return flags,
            Runs::Source => shebang::split(args[1]).ok().map(|(flags, _)| flags),
            Runs::Digest => self.scripts.flags(args[1]),
            Runs::Function => self.functions.flags(args[1]),
        };
        declared.map_or(flags, |declared| shebang::command_flags(flags, declared))
    }

    fn set_memory_limit(&mut self, bytes: u64) {
        self.scripts.set_memory_limit(bytes);
        self.functions.set_memory_limit(bytes);
    }

    fn sources(&self) -> Vec<Box<[u8]>> {
        self.scripts.sources().map(Box::from).collect()
    }

    fn load_script(&mut self, source: &[u8]) -> Result<(), Error> {
        self.scripts.load(source).map(|_| ())
    }

    fn libraries(&self) -> Vec<Box<[u8]>> {
        self.functions.list().map(|library| library.source.into()).collect()
    }

    fn load_library(&mut self, source: &[u8]) -> Result<(), Error> {
        self.functions.load(source, true).map(|_| ())
    }

    fn flush(&mut self) -> bool {
        self.scripts.flush(&mut self.lazyfree);
        let had_libraries = self.functions.libraries() > 0;
        if had_libraries {
            self.functions.flush(&mut self.lazyfree);
        }
        had_libraries
    }

    fn has_garbage(&self) -> bool {
        !self.lazyfree.is_empty()
    }

    fn free_some(&mut self, budget: &mut u32) -> bool {
        self.lazyfree.free_some(budget)
    }

    fn check_invariants(&self) {
        self.scripts.check_invariants();
        self.functions.check_invariants();
    }
}
