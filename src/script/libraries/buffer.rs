//! Where libraries write their results before they become Lua strings.
//!
//! Lua's errors jump over Rust frames, so the bytes belong to the interpreter and not to the function that writes them: what an
//! error leaves behind is found, and forgotten, by the next writer.
//!
//! What is written is counted as work (see [`bounds`]), so whoever writes needs to count only what it does without writing.

use mlua::ffi::*;

use crate::script::bounds;
use crate::script::interpreter::Interpreter;
use crate::script::memory::Memory;
use crate::script::stack::push_bytes;

/// So much is kept from one use to the next, in bytes.
const KEPT_MAX: usize = 64 << 10;

/// The first growth goes to here, in bytes.
const FIRST: usize = 1 << 10;

/// Bytes that are written between two looks at whether the script may go on.
const LOOK_EVERY: usize = 16 << 10;

/// Bytes that are written in the time of an instruction, one by one as it were.
const WRITTEN_PER_STEP: u64 = 4;

/// The bytes of the result that is being written; they count as the interpreter's.
#[derive(Default)]
pub(in crate::script) struct Buffer {
    bytes: Vec<u8>,
    /// Up to this length, which is within the capacity, nothing needs to be looked at.
    free_to: usize,
    /// What is written up to here is counted as work.
    counted: usize,
}

impl Buffer {
    /// Makes room for `more` bytes; false where memory or the account has none.
    #[cold]
    fn grow(&mut self, memory: &mut Memory, more: usize) -> bool {
        let capacity = self.bytes.capacity();
        let room = memory.limit.saturating_sub(memory.used).saturating_add(capacity);
        let Some(least) = self.bytes.len().checked_add(more).filter(|least| *least <= room) else { return false };
        let wanted = least.max(capacity * 2).max(FIRST).min(room.max(least));
        if self.bytes.try_reserve_exact(wanted - self.bytes.len()).is_err() {
            return false;
        }
        memory.used += self.bytes.capacity() - capacity;
        true
    }

    /// Bytes that are not yet counted as work.
    fn uncounted(&mut self) -> u64 {
        let len = self.bytes.len();
        (len - std::mem::replace(&mut self.counted, len)) as u64
    }

    /// Forgets the bytes, and gives memory back that is more than is worth keeping.
    pub(in crate::script) fn clear(&mut self, memory: &mut Memory) {
        self.bytes.clear();
        let capacity = self.bytes.capacity();
        if capacity > KEPT_MAX {
            self.bytes = Vec::new();
            memory.used -= capacity;
        }
        (self.free_to, self.counted) = (self.bytes.capacity().min(LOOK_EVERY), 0);
    }
}

/// An array or a map that is not complete; the interpreter keeps a list of them for whoever reads or writes nested tables, so that
/// nesting takes no stack of ours. Never more than the Lua stack has room for.
#[derive(Clone, Copy)]
pub(in crate::script) struct Level {
    pub kind: Kind,
    /// Values that are done, keys included.
    pub done: u64,
    /// All of them, where that is known.
    pub len: u64,
}

/// What a level is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::script) enum Kind {
    /// Values by number.
    Array,
    /// Keys and values.
    Map,
}

/// Writes to the interpreter's buffer, which is empty at first. Only one writer is in use at a time: nothing that a library calls
/// while it writes can run a script's code.
#[derive(Clone, Copy)]
pub(super) struct Writer {
    lua: *mut lua_State,
    interpreter: *mut Interpreter,
}

impl Writer {
    /// Begins a result.
    ///
    /// # Safety
    /// Called from a function of the interpreter that Lua called, and the writer is used only there.
    pub(super) unsafe fn new(lua: *mut lua_State) -> Self {
        // SAFETY: as promised.
        let writer = unsafe { Writer { lua, interpreter: Interpreter::of(lua) } };
        writer.clear();
        writer
    }

    /// Begins anew.
    pub(super) fn clear(self) {
        // SAFETY: the interpreter outlives the function that uses this, and nobody else has a reference to its parts.
        unsafe { (*self.interpreter).buffer.clear(&mut (*self.interpreter).memory) }
    }

    /// Appends bytes; raises an error where there is no memory for them, or where the script is to end.
    ///
    /// # Safety
    /// An error jumps over the caller and all frames up to Lua: nothing with a destructor is alive in them, and `bytes` are none of the
    /// buffer's own.
    #[inline]
    pub(super) unsafe fn put(self, bytes: &[u8]) {
        // SAFETY: as for `clear`.
        unsafe {
            let buffer = &(*self.interpreter).buffer;
            if buffer.bytes.len() + bytes.len() > buffer.free_to {
                self.make_free(bytes.len());
            }
            (*self.interpreter).buffer.bytes.extend_from_slice(bytes);
        }
    }

    /// As [`Writer::put`] for many bytes at once, which are copied and so count less.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    pub(super) unsafe fn put_many(self, bytes: &[u8]) {
        // SAFETY: as for `clear`, and as promised; nothing is owned when an error is raised.
        unsafe {
            self.put(bytes);
            (*self.interpreter).buffer.counted += bytes.len();
            bounds::spend(self.lua, self.interpreter, 1 + bytes.len() as u64 / bounds::BYTES_PER_STEP);
        }
    }

    /// Makes room for `more` bytes, and counts those that were written.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    #[cold]
    unsafe fn make_free(self, more: usize) {
        // SAFETY: as for `clear`. No reference to the buffer is left, and nothing owned, when an error is raised.
        unsafe {
            let work = (*self.interpreter).buffer.uncounted() + more as u64 / bounds::BYTES_PER_STEP;
            bounds::spend(self.lua, self.interpreter, work / WRITTEN_PER_STEP);
            self.reserve(more);
            let buffer = &mut (*self.interpreter).buffer;
            let len = buffer.bytes.len();
            buffer.free_to = (len + more.max(LOOK_EVERY)).min(buffer.bytes.capacity());
        }
    }

    /// Makes room for so many bytes at once; raises an error where there is no memory for them.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    pub(super) unsafe fn reserve(self, len: usize) {
        if !self.grow(len) {
            // Lua does not know that memory is short: it may have garbage.
            // SAFETY: as for `clear`, and as promised; all that is in use lies on the stack.
            unsafe {
                lua_gc(self.lua, LUA_GCCOLLECT, 0);
                if !self.grow(len) {
                    self.out_of_memory();
                }
            }
        }
    }

    /// Makes room if there is none; false where there is no memory.
    fn grow(self, more: usize) -> bool {
        // SAFETY: as for `clear`.
        unsafe {
            let buffer = &mut (*self.interpreter).buffer;
            buffer.bytes.capacity() - buffer.bytes.len() >= more || buffer.grow(&mut (*self.interpreter).memory, more)
        }
    }

    /// Appends a byte.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    #[inline]
    pub(super) unsafe fn byte(self, byte: u8) {
        // SAFETY: as promised.
        unsafe { self.put(&[byte]) }
    }

    /// Number of bytes written.
    pub(super) fn len(self) -> usize {
        // SAFETY: as for `clear`.
        unsafe { (*self.interpreter).buffer.bytes.len() }
    }

    /// Pushes what was written as a string, and begins anew.
    ///
    /// # Safety
    /// As for [`Writer::put`]; the stack has room for it.
    pub(super) unsafe fn push(self) {
        // SAFETY: as promised; Lua copies the bytes, and if it has no memory for that, they stay for the next writer to forget.
        unsafe {
            let work = (*self.interpreter).buffer.uncounted();
            bounds::spend(self.lua, self.interpreter, work / WRITTEN_PER_STEP);
            let buffer = &raw const (*self.interpreter).buffer.bytes;
            push_bytes(self.lua, (*buffer).as_slice());
        }
        self.clear();
    }

    /// Raises Lua's error.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    #[cold]
    unsafe fn out_of_memory(self) -> ! {
        // SAFETY: a writer is used in functions that Lua called, and nothing with a destructor is alive in them. There is no room for
        // so much: Lua raises its own error, after which it collects its garbage.
        unsafe {
            let memory = &raw mut (*self.interpreter).memory;
            (*memory).strict = true;
            lua_newuserdata(self.lua, (*memory).limit);
            lua_error(self.lua)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_accounted_for_and_bounded() {
        let mut memory = Memory::new(100_000);
        let mut buffer = Buffer::default();
        assert!(buffer.grow(&mut memory, 10));
        assert_eq!(memory.used, FIRST);
        buffer.bytes.extend_from_slice(&[1; 1000]);
        assert!(buffer.grow(&mut memory, 90_000));
        assert_eq!(memory.used, 91_000);
        assert!(!buffer.grow(&mut memory, 99_001));
        assert!(!buffer.grow(&mut memory, usize::MAX));
        assert_eq!(buffer.bytes, [1; 1000]);
        buffer.clear(&mut memory);
        assert_eq!((buffer.bytes.len(), memory.used), (0, 0));
        assert!(buffer.grow(&mut memory, 10));
        buffer.clear(&mut memory);
        assert_eq!(memory.used, FIRST);
    }
}
