//! Writes the result of a library function, which then becomes a Lua string.
//!
//! Written bytes consume fuel (see [`fuel`]), so a function that writes consumes fuel only for its other work.

use mlua::ffi::*;

use crate::script::fuel::{self, BYTES_PER_STEP};
use crate::script::interpreter::Interpreter;
use crate::script::libraries::buffer::CHECK_EVERY;
use crate::script::lua::stack::push_bytes;

/// Bytes that [`Writer::put_pieces`] writes at once.
pub(super) const PIECE: usize = 4 << 10;

/// Bytes written in one step, if they are written one by one.
const WRITTEN_PER_STEP: u64 = 4;

/// Writes to the interpreter's buffer. Only one writer is in use at a time: while a library function writes, it calls nothing that
/// could run a script's code.
#[derive(Clone, Copy)]
pub(super) struct Writer {
    lua: *mut lua_State,
    interpreter: *mut Interpreter,
}

impl Writer {
    /// Begins a result, with an empty buffer.
    ///
    /// # Safety
    /// Lua called a function of the interpreter, and the writer is used only in that function.
    pub(super) unsafe fn new(lua: *mut lua_State) -> Self {
        // SAFETY: Lua called a function of the interpreter, so the state belongs to it.
        let writer = unsafe { Writer { lua, interpreter: Interpreter::of(lua) } };
        writer.clear();
        writer
    }

    /// Discards what was written.
    pub(super) fn clear(self) {
        // SAFETY: the interpreter outlives the function that uses this, and nothing else has a reference to its parts.
        unsafe { (*self.interpreter).buffer.clear(&mut (*self.interpreter).memory) }
    }

    /// Appends bytes. Raises an error if there is no memory for them, or the script must end.
    ///
    /// # Safety
    /// An error jumps over the caller and all frames up to Lua: nothing with a destructor is alive in them. `bytes` are not part
    /// of the buffer.
    #[inline]
    pub(super) unsafe fn put(self, bytes: &[u8]) {
        // SAFETY: as for `clear`.
        unsafe {
            let buffer = &(*self.interpreter).buffer;
            if buffer.bytes.len() + bytes.len() > buffer.unchecked_to {
                self.make_room(bytes.len());
            }
            (*self.interpreter).buffer.bytes.extend_from_slice(bytes);
        }
    }

    /// As [`Writer::put`], but at the lower cost of copying many bytes at once.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    pub(super) unsafe fn put_many(self, bytes: &[u8]) {
        // SAFETY: as for `clear`, and as promised; nothing is owned when an error is raised.
        unsafe {
            self.put(bytes);
            (*self.interpreter).buffer.counted += bytes.len();
            fuel::consume(self.lua, self.interpreter, 1 + bytes.len() as u64 / BYTES_PER_STEP);
        }
    }

    /// As [`Writer::put_many`] for bytes of any number, in pieces, so that fuel is checked in between.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    pub(super) unsafe fn put_pieces(self, bytes: &[u8]) {
        // SAFETY: as promised.
        unsafe {
            bytes.chunks(PIECE).for_each(|piece| self.put_many(piece));
        }
    }

    /// Makes room for `more` bytes, and consumes fuel for those that were written.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    #[cold]
    unsafe fn make_room(self, more: usize) {
        // SAFETY: as for `clear`. No reference to the buffer is left, and nothing owned, when an error is raised.
        unsafe {
            let work = (*self.interpreter).buffer.take_uncounted() + more as u64 / BYTES_PER_STEP;
            fuel::consume(self.lua, self.interpreter, work / WRITTEN_PER_STEP);
            self.reserve(more);
            let buffer = &mut (*self.interpreter).buffer;
            let len = buffer.bytes.len();
            buffer.unchecked_to = (len + more.max(CHECK_EVERY)).min(buffer.bytes.capacity());
        }
    }

    /// Makes room for `len` bytes. Raises an error if there is no memory for them.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    pub(super) unsafe fn reserve(self, len: usize) {
        if !self.grow(len) {
            // Lua did not ask for this memory, so it has not collected its garbage.
            // SAFETY: as for `clear`, and as promised; all that is in use lies on the stack.
            unsafe {
                lua_gc(self.lua, LUA_GCCOLLECT, 0);
                if !self.grow(len) {
                    self.out_of_memory();
                }
            }
        }
    }

    /// Makes room if there is none. Returns false if there is no memory.
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
        // SAFETY: the byte is in this frame, and so not part of the buffer. Nothing with a destructor is alive when an error is
        // raised, as promised.
        unsafe { self.put(&[byte]) }
    }

    /// Number of bytes written.
    pub(super) fn len(self) -> usize {
        // SAFETY: as for `clear`.
        unsafe { (*self.interpreter).buffer.bytes.len() }
    }

    /// Pushes what was written as a string, and clears the buffer.
    ///
    /// # Safety
    /// As for [`Writer::put`]; the stack has room for it.
    pub(super) unsafe fn push(self) {
        // SAFETY: the stack has room for the string, and nothing with a destructor is alive when an error is raised, as promised.
        // Lua copies the bytes, and if it has no memory for that, they stay until the next writer clears them.
        unsafe {
            let work = (*self.interpreter).buffer.take_uncounted();
            fuel::consume(self.lua, self.interpreter, work / WRITTEN_PER_STEP);
            let buffer = &raw const (*self.interpreter).buffer.bytes;
            push_bytes(self.lua, (*buffer).as_slice());
        }
        self.clear();
    }

    /// Raises Lua's error for lack of memory.
    ///
    /// # Safety
    /// As for [`Writer::put`].
    #[cold]
    unsafe fn out_of_memory(self) -> ! {
        // SAFETY: a writer is used in functions that Lua called, and nothing with a destructor is alive in them. The limit
        // leaves no room for this allocation, so Lua raises its own error, `LUA_ERRMEM`. After the run all garbage is collected.
        unsafe {
            let memory = &raw mut (*self.interpreter).memory;
            (*memory).may_fail = true;
            lua_newuserdata(self.lua, (*memory).limit);
            lua_error(self.lua)
        }
    }
}
