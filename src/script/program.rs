//! A program that an interpreter can run.

use std::rc::Rc;

use crate::script::interpreter::function::Function;
use crate::script::plan::Plan;
use crate::script::shebang::ScriptFlags;

/// A script, or a function of a library.
#[derive(Clone)]
pub(crate) struct Program {
    pub function: Function,
    pub flags: ScriptFlags,
    /// `None` if it runs in Lua.
    pub plan: Option<Rc<Plan>>,
}
