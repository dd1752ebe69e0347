//! How much processor time the threads get that make files beside the executor.

/// How much nicer than the executor a thread is that the executor waits for.
const NICER: i32 = 5;

/// Makes the calling thread yield to others. For threads that must keep up with what the executor sends them.
pub fn be_nice() {
    // It is as good as any other where the system does not allow it.
    let _ = rustix::process::nice(NICER);
}

/// Gives the calling thread what processor time is left by others. A thread that wakes up takes its processor at once, which a nice
/// thread would keep for some milliseconds.
pub fn be_idle() {
    // SAFETY: the call reads the parameter, and no more; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 }) };
    if result != 0 {
        be_nice();
    }
}
