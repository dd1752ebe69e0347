//! Steps of the nodes' faults.

/// A step for the task that controls the run.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The fault of this number in the schedule strikes.
    Strike(usize),
    /// A node that was killed starts again.
    Start(usize),
    /// A node that was stopped goes on.
    GoOn(usize),
    /// A node's disk has space again.
    Space(usize),
    /// The node of another cluster that runs at a node's address ends, and the node starts again.
    Home(usize),
    /// Have processes ended by themselves?
    Look,
}
