//! Commands that run scripts: EVAL and SCRIPT in [`eval`], FCALL and FUNCTION in [`functions`]. Lua itself is in [`crate::script`].

pub mod eval;
pub mod functions;
