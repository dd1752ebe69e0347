//! One cached script.

use std::rc::Rc;

use crate::script::interpreter::function::Function;
use crate::script::plan::Plan;
use crate::script::sha::Sha;
use crate::script::shebang::ScriptFlags;

/// A cached script.
pub(crate) struct Script {
    pub(crate) sha: Sha,
    pub(super) function: Function,
    pub(super) flags: ScriptFlags,
    /// Its plan. `None` until its first run.
    pub(super) plan: Option<MaybePlan>,
    pub(super) source: Box<[u8]>,
    /// Its links in the list of evaluated scripts. `None` for a script that was loaded, which stays.
    pub(super) links: Option<Links>,
}

/// A plan, or `None` for a script that runs in Lua.
pub(super) type MaybePlan = Option<Rc<Plan>>;

/// Neighbors in the list of evaluated scripts, which is ordered by last use.
#[derive(Clone, Copy)]
pub(super) struct Links {
    pub older: usize,
    pub newer: usize,
}

impl Script {
    /// Bytes of its plan.
    pub(super) fn plan_bytes(&self) -> usize {
        self.plan.iter().flatten().map(|plan| plan.bytes()).sum()
    }
}
