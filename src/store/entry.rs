//! A thin entry: key, deadline and a short string value in one allocation.
//!
//! ```text
//!   0        8        16                                    (bit 0 of `kind` bits says what follows)
//!   │ w0     │ w1     │ [deadline u64, key_len u64 if EXTENDED] [Box<Value> if BOXED] key bytes [string bytes]
//!   w0 = deadline (44 bits, ms; 0 none) | access clock (20 bits)
//!   w1 = timer (28 bits; 0 none) | key_len (16) | value_len (12) | kind (8)
//! ```
//! Strings up to [`INLINE_MAX`] bytes are stored inline, and so is a hash of one field with a small number, as reentrant locks of
//! Redis clients use it: of its `value_len`, 8 bits are the length of the field and 4 the number. Everything else is a boxed
//! [`Value`]. A field of a hash table has the same layout: its key is the field's name.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::base::integer;
use crate::store::values::value::Value;
use crate::store::wheel::TIMER_LIMIT;

/// Longest string, in bytes, that is stored inline.
pub const INLINE_MAX: usize = 4095;

const HEAD: usize = 16;
const EXTENSION: usize = 16;
const DEADLINE_MAX: u64 = (1 << 44) - 1;
const KEY_MAX: usize = (1 << 16) - 1;
/// The access clock counts seconds modulo this.
pub const ACCESS_PERIOD: u32 = 1 << 20;

const KIND_BOXED: u8 = 1;
const KIND_EXTENDED: u8 = 2;
/// A string that was appended to or written into: `OBJECT ENCODING` says `raw`.
const KIND_RAW: u8 = 4;
/// A string that Redis would store as text though it is a number: `OBJECT ENCODING` says `embstr`.
const KIND_TEXT: u8 = 8;
/// The packed grant of a lock, stored in place of a string.
const KIND_GRANT: u8 = 16;
/// The field of a hash with one small number, stored in place of a string.
const KIND_COUNT: u8 = 32;
/// The client that wrote the value is noted; see [`crate::store::writers`].
const KIND_WITH_WRITER: u8 = 64;
/// Kinds whose value is not an inline string.
const NO_STRING: u8 = KIND_BOXED | KIND_GRANT | KIND_COUNT;

/// Longest field, in bytes, that is stored inline.
pub const COUNT_FIELD_MAX: usize = 255;
/// Largest number that is stored inline with its field.
pub const COUNT_MAX: u8 = 15;

/// How Redis would store a string, where its bytes do not determine that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Form {
    /// As a number if it is one.
    #[default]
    Shortest,
    /// As text: the result of `INCRBYFLOAT`.
    Text,
    /// As a growing buffer: a string that was appended to or written into.
    Raw,
}

/// A value stored in an entry.
#[derive(Debug)]
pub enum ValueRef<'a> {
    /// A string.
    Bytes(&'a [u8]),
    /// The only grant of a lock; see [`crate::lock::grant::pack`].
    Grant(&'a [u8]),
    /// A hash of one field, whose value is a small number.
    Count {
        /// The field.
        field: &'a [u8],
        /// The number.
        count: u8,
    },
    /// Anything else, or a long string.
    Boxed(&'a Value),
}

/// A value to be stored in an entry.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// A string of any length; copied.
    Bytes(&'a [u8]),
    /// The only grant of a lock, packed into at most [`INLINE_MAX`] bytes; copied.
    Grant(&'a [u8]),
    /// A hash of one field of at most [`COUNT_FIELD_MAX`] bytes, whose value is a number up to [`COUNT_MAX`]; copied.
    Count {
        /// The field.
        field: &'a [u8],
        /// The number.
        count: u8,
    },
    /// An existing boxed value.
    Boxed(Box<Value>),
}

/// An owned entry: one allocation. Moving an `Entry` does not move the allocation, so its address identifies the entry as long as
/// it lives.
pub struct Entry {
    ptr: NonNull<u8>,
}

/// A shared reference to an entry.
#[derive(Clone, Copy)]
pub struct EntryRef<'a> {
    ptr: NonNull<u8>,
    owner: PhantomData<&'a Value>,
}

/// An exclusive reference to an entry, to change it in place. The key cannot be changed.
pub struct EntryMut<'a> {
    ptr: NonNull<u8>,
    owner: PhantomData<&'a mut Value>,
}

impl Entry {
    /// Creates an entry without a timer.
    #[inline]
    pub fn new(key: &[u8], value: NewValue<'_>, deadline: Option<u64>) -> Entry {
        let (kind, bytes) = match &value {
            NewValue::Bytes(bytes) => (0, *bytes),
            NewValue::Grant(bytes) => (KIND_GRANT, *bytes),
            _ => return Entry::general(key, value, deadline),
        };
        if bytes.len() <= INLINE_MAX && key.len() <= KEY_MAX && deadline.is_none_or(|d| d <= DEADLINE_MAX) {
            Entry::short(key, kind, bytes, deadline)
        } else {
            Entry::general(key, value, deadline)
        }
    }

    /// As [`Entry::new`], for values stored inline as bytes, with a key and a deadline that need no extension.
    #[inline]
    fn short(key: &[u8], kind: u8, bytes: &[u8], deadline: Option<u64>) -> Entry {
        let layout = layout(0, key.len(), bytes.len());
        let deadline = deadline.map_or(0, |d| d.max(1));
        // SAFETY: the layout is not empty, and head, key and bytes are what it adds up.
        unsafe {
            let Some(ptr) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            let base = ptr.as_ptr();
            base.cast::<u64>().write(deadline << 20);
            base.cast::<u64>().add(1).write(((key.len() as u64) << 20) | ((bytes.len() as u64) << 8) | u64::from(kind));
            copy(key, base.add(HEAD));
            copy(bytes, base.add(HEAD + key.len()));
            Entry { ptr }
        }
    }

    #[inline(never)]
    fn general(key: &[u8], value: NewValue<'_>, deadline: Option<u64>) -> Entry {
        let extended = key.len() > KEY_MAX || deadline.is_some_and(|d| d > DEADLINE_MAX);
        let (mut kind, mut number) = (0, 0);
        let (boxed, bytes): (Option<Box<Value>>, &[u8]) = match value {
            NewValue::Grant(b) => {
                assert!(b.len() <= INLINE_MAX, "a packed grant is short");
                kind |= KIND_GRANT;
                (None, b)
            }
            NewValue::Count { field, count } => {
                assert!(field.len() <= COUNT_FIELD_MAX && count <= COUNT_MAX, "a short field with a small number");
                kind |= KIND_COUNT;
                number = u64::from(count) << 8;
                (None, field)
            }
            NewValue::Bytes(b) if b.len() <= INLINE_MAX => (None, b),
            NewValue::Bytes(b) => (Some(Box::new(Value::Bytes(b.to_vec()))), &[]),
            NewValue::Boxed(v) => (Some(v), &[]),
        };
        if extended {
            kind |= KIND_EXTENDED;
        }
        if boxed.is_some() {
            kind |= KIND_BOXED;
        }
        let short_len = if extended { 0 } else { key.len() as u64 };
        let layout = layout(kind, key.len(), bytes.len());
        // SAFETY: the layout is not empty. Every write below stays inside it: head, extension, box, key and bytes are what
        // `layout` adds up.
        unsafe {
            let Some(ptr) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            let base = ptr.as_ptr();
            base.cast::<u64>().write(0);
            base.cast::<u64>().add(1).write((short_len << 20) | ((number | bytes.len() as u64) << 8) | u64::from(kind));
            let mut at = HEAD;
            if extended {
                base.add(HEAD).cast::<u64>().write(0);
                base.add(HEAD + 8).cast::<u64>().write(key.len() as u64);
                at += EXTENSION;
            }
            if let Some(value) = boxed {
                base.add(at).cast::<*mut Value>().write(Box::into_raw(value));
                at += 8;
            }
            std::ptr::copy_nonoverlapping(key.as_ptr(), base.add(at), key.len());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(at + key.len()), bytes.len());
            let mut entry = Entry { ptr };
            let fits = entry.change().set_deadline(deadline);
            debug_assert!(fits);
            entry
        }
    }

    /// Borrows the entry.
    #[inline]
    pub fn read(&self) -> EntryRef<'_> {
        EntryRef { ptr: self.ptr, owner: PhantomData }
    }

    /// Borrows the entry mutably.
    #[inline]
    pub fn change(&mut self) -> EntryMut<'_> {
        EntryMut { ptr: self.ptr, owner: PhantomData }
    }

    /// Turns the entry into its address without freeing it; [`Entry::from_address`] takes it back.
    #[inline]
    pub fn into_address(self) -> u64 {
        // Exposes the provenance, so that the address alone is enough to reach the allocation again.
        let address = self.ptr.as_ptr().expose_provenance() as u64;
        std::mem::forget(self);
        address
    }

    /// Takes ownership of an entry back.
    ///
    /// # Safety
    /// `address` came from [`Entry::into_address`], and nothing else takes ownership of it.
    #[inline]
    pub unsafe fn from_address(address: u64) -> Entry {
        // SAFETY: an address given out by `into_address` is not null.
        Entry { ptr: unsafe { pointer_to(address) } }
    }

    /// Takes the boxed value out, and drops the rest.
    pub fn into_boxed(mut self) -> Option<Box<Value>> {
        self.take_boxed()
    }

    /// Takes the boxed value out, and leaves an empty string in its place.
    fn take_boxed(&mut self) -> Option<Box<Value>> {
        let value = self.change().boxed()?;
        Some(Box::new(std::mem::replace(value, Value::Bytes(Vec::new()))))
    }

    /// The same entry with another deadline, in a new allocation if the deadline is too far away for this one. Timer, access
    /// clock and everything else but the signature stay the same.
    pub fn with_deadline(mut self, deadline: Option<u64>) -> Entry {
        if self.change().set_deadline(deadline) {
            return self;
        }
        let boxed = self.take_boxed();
        let short = self.read();
        let value = match boxed {
            Some(value) => NewValue::Boxed(value),
            None => match short.value() {
                ValueRef::Grant(bytes) => NewValue::Grant(bytes),
                ValueRef::Count { field, count } => NewValue::Count { field, count },
                _ => NewValue::Bytes(short.bytes().unwrap_or_default()),
            },
        };
        let mut long = Entry::new(short.key(), value, deadline);
        long.change().set_timer(short.timer());
        long.change().touch(u64::from(short.access()));
        long.change().set_form(short.form());
        long
    }
}

/// # Safety
/// `address` came from [`Entry::into_address`].
#[inline]
unsafe fn pointer_to(address: u64) -> NonNull<u8> {
    // SAFETY: an address given out by `into_address` is not null.
    unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut::<u8>(address as usize)) }
}

impl<'a> EntryRef<'a> {
    /// # Safety
    /// `address` came from [`Entry::into_address`], and the entry is neither changed nor dropped during `'a`.
    #[inline]
    pub unsafe fn at(address: u64) -> EntryRef<'a> {
        // SAFETY: as promised by the caller.
        EntryRef { ptr: unsafe { pointer_to(address) }, owner: PhantomData }
    }

    /// The address, a multiple of 8 below 2^48. It identifies the entry until the entry is dropped.
    #[inline]
    pub fn address(self) -> u64 {
        self.ptr.as_ptr().expose_provenance() as u64
    }

    #[inline]
    fn word(self, index: usize) -> u64 {
        // SAFETY: the two words of the head always exist, and those of the extension exist if `kind` has it.
        unsafe { self.ptr.as_ptr().cast::<u64>().add(index).read() }
    }

    #[inline]
    fn kind(self) -> u8 {
        self.word(1) as u8
    }

    #[inline]
    fn box_offset(self) -> usize {
        if self.kind() & KIND_EXTENDED != 0 { HEAD + EXTENSION } else { HEAD }
    }

    #[inline]
    fn key_offset(self) -> usize {
        // Branchless: `KIND_BOXED`, 1, stands for 8 bytes and `KIND_EXTENDED`, 2, for 16.
        HEAD + usize::from(self.kind() & (KIND_BOXED | KIND_EXTENDED)) * 8
    }

    #[inline]
    fn key_len(self) -> usize {
        if self.kind() & KIND_EXTENDED != 0 { self.word(3) as usize } else { (self.word(1) >> 20) as usize & 0xffff }
    }

    #[inline]
    fn inline_len(self) -> usize {
        let mask = if self.kind() & KIND_COUNT == 0 { 0xfff } else { 0xff };
        (self.word(1) >> 8) as usize & mask
    }

    fn box_ptr(self) -> *mut Value {
        // SAFETY: only called on a boxed entry, whose box pointer lies at this offset (a multiple of 8).
        unsafe { self.ptr.as_ptr().add(self.box_offset()).cast::<*mut Value>().read() }
    }

    /// The key.
    #[inline]
    pub fn key(self) -> &'a [u8] {
        // SAFETY: `Entry::new` wrote that many bytes there, and the key is never changed.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(self.key_offset()), self.key_len()) }
    }

    /// The value.
    #[inline]
    pub fn value(self) -> ValueRef<'a> {
        if self.kind() & KIND_BOXED != 0 {
            // SAFETY: a boxed entry owns the box whose pointer lies there.
            return ValueRef::Boxed(unsafe { &*self.box_ptr() });
        }
        let at = self.key_offset() + self.key_len();
        // SAFETY: `Entry::new` wrote that many bytes behind the key.
        let bytes = unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(at), self.inline_len()) };
        match self.kind() & (KIND_GRANT | KIND_COUNT) {
            0 => ValueRef::Bytes(bytes),
            KIND_GRANT => ValueRef::Grant(bytes),
            _ => ValueRef::Count { field: bytes, count: (self.word(1) >> 16) as u8 & COUNT_MAX },
        }
    }

    /// The string, if the value is one.
    #[inline]
    pub fn bytes(self) -> Option<&'a [u8]> {
        if self.kind() & NO_STRING == 0 {
            let at = self.key_offset() + self.key_len();
            // SAFETY: `Entry::new` wrote that many bytes behind the key.
            return Some(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(at), self.inline_len()) });
        }
        match self.value() {
            ValueRef::Bytes(bytes) => Some(bytes),
            ValueRef::Boxed(Value::Bytes(bytes)) => Some(bytes),
            ValueRef::Boxed(_) | ValueRef::Grant(_) | ValueRef::Count { .. } => None,
        }
    }

    /// Whether its value is a separate allocation.
    #[inline]
    pub fn is_boxed(self) -> bool {
        self.kind() & KIND_BOXED != 0
    }

    /// Whether it holds an inline string or hash, and so is neither boxed nor native.
    #[inline]
    pub fn is_plain_bytes(self) -> bool {
        self.kind() & (KIND_GRANT | KIND_BOXED) == 0
    }

    /// Whether it is a lock, a semaphore, a latch or a guard, which plain commands must not change.
    #[inline]
    pub fn is_native(self) -> bool {
        !self.is_plain_bytes() && (self.kind() & KIND_GRANT != 0 || self.has_native_box())
    }

    #[inline(never)]
    fn has_native_box(self) -> bool {
        matches!(self.value(), ValueRef::Boxed(value) if value.is_native())
    }

    /// Whether it is a lock or a semaphore, whose lease only its holders extend.
    #[inline]
    pub fn is_lock(self) -> bool {
        matches!(self.value(), ValueRef::Grant(_) | ValueRef::Boxed(Value::Lock(_)))
    }

    /// Whether only its own commands set its deadline: it is a lock, a semaphore or a latch.
    #[inline]
    pub fn has_own_deadline(self) -> bool {
        !self.is_plain_bytes() && (self.kind() & KIND_GRANT != 0 || self.is_box_with_own_deadline())
    }

    #[inline(never)]
    fn is_box_with_own_deadline(self) -> bool {
        matches!(self.value(), ValueRef::Boxed(Value::Lock(_) | Value::Latch(_)))
    }

    /// Whether the client that wrote the value is noted.
    #[inline]
    pub fn has_writer(self) -> bool {
        self.kind() & KIND_WITH_WRITER != 0
    }

    /// The reply of `TYPE`.
    pub fn type_name(self) -> &'static str {
        match self.value() {
            ValueRef::Bytes(_) => "string",
            ValueRef::Grant(_) => "lock",
            ValueRef::Count { .. } => "hash",
            ValueRef::Boxed(value) => value.type_name(),
        }
    }

    /// How Redis would store the string.
    pub fn form(self) -> Form {
        match self.kind() & (KIND_RAW | KIND_TEXT) {
            0 => Form::Shortest,
            KIND_TEXT => Form::Text,
            _ => Form::Raw,
        }
    }

    /// Monotonic deadline in milliseconds.
    #[inline]
    pub fn deadline(self) -> Option<u64> {
        let deadline = if self.kind() & KIND_EXTENDED != 0 { self.word(2) } else { self.word(0) >> 20 };
        (deadline != 0).then_some(deadline)
    }

    /// Its timer on the wheel; 0 if there is none.
    #[inline]
    pub fn timer(self) -> u32 {
        (self.word(1) >> 36) as u32
    }

    /// The access clock: seconds of the last access, modulo [`ACCESS_PERIOD`].
    pub fn access(self) -> u32 {
        (self.word(0) & 0xf_ffff) as u32
    }

    /// Bytes of the allocation, without the allocator's overhead and without the boxed value.
    pub fn allocated(self) -> usize {
        layout(self.kind(), self.key_len(), self.inline_len()).size()
    }
}

impl<'a> EntryMut<'a> {
    /// # Safety
    /// `address` came from [`Entry::into_address`], and nothing else reads, changes or drops the entry during `'a`.
    #[inline]
    pub unsafe fn at(address: u64) -> EntryMut<'a> {
        // SAFETY: as promised by the caller.
        EntryMut { ptr: unsafe { pointer_to(address) }, owner: PhantomData }
    }

    /// Borrows the entry.
    #[inline]
    pub fn read(&self) -> EntryRef<'_> {
        EntryRef { ptr: self.ptr, owner: PhantomData }
    }

    /// Turns this into a shared reference.
    #[inline]
    pub fn into_ref(self) -> EntryRef<'a> {
        EntryRef { ptr: self.ptr, owner: PhantomData }
    }

    #[inline]
    fn set_word(&mut self, index: usize, word: u64) {
        // SAFETY: the two words of the head always exist, and those of the extension exist if `kind` has it.
        unsafe { self.ptr.as_ptr().cast::<u64>().add(index).write(word) }
    }

    /// The boxed value, if there is one.
    pub fn boxed(self) -> Option<&'a mut Value> {
        if self.read().kind() & KIND_BOXED == 0 {
            return None;
        }
        // SAFETY: a boxed entry owns the box whose pointer lies there, and the access is unique during `'a`.
        Some(unsafe { &mut *self.read().box_ptr() })
    }

    /// Overwrites an inline string with one of the same length. Returns false if that is not possible in place.
    #[inline]
    pub fn overwrite(&mut self, bytes: &[u8]) -> bool {
        self.overwrite_as(0, bytes)
    }

    /// Overwrites a packed grant with one of the same length. Returns false if that is not possible in place.
    pub fn overwrite_grant(&mut self, bytes: &[u8]) -> bool {
        self.overwrite_as(KIND_GRANT, bytes)
    }

    #[inline]
    fn overwrite_as(&mut self, kind: u8, bytes: &[u8]) -> bool {
        let entry = self.read();
        if entry.kind() & NO_STRING != kind || entry.inline_len() != bytes.len() {
            return false;
        }
        let (at, word) = (entry.key_offset() + entry.key_len(), entry.word(1));
        // SAFETY: the inline value has exactly this length, and `bytes` cannot overlap memory that only we may access.
        unsafe { copy(bytes, self.ptr.as_ptr().add(at)) };
        self.set_word(1, word & !u64::from(KIND_RAW | KIND_TEXT | KIND_WITH_WRITER));
        true
    }

    /// Records that the client which wrote the inline value is noted, until the value is overwritten or moved. Returns false for a
    /// boxed value, which may change in place.
    #[inline]
    pub fn note_writer(&mut self) -> bool {
        if self.read().is_boxed() {
            return false;
        }
        let word = self.read().word(1) | u64::from(KIND_WITH_WRITER);
        self.set_word(1, word);
        true
    }

    /// Clears the mark of [`EntryMut::note_writer`]: the writer is not known.
    pub fn forget_writer(&mut self) {
        let word = self.read().word(1) & !u64::from(KIND_WITH_WRITER);
        self.set_word(1, word);
    }

    /// The number in an inline string of at most eight digits in canonical form, see [`integer::parse_i64`], and its last digit
    /// as a mutable byte; `None` for any other value, and for one with a noted writer.
    #[inline]
    pub fn short_number(&mut self) -> Option<(u32, &mut u8)> {
        let entry = self.read();
        if entry.kind() & (NO_STRING | KIND_WITH_WRITER) != 0 {
            return None;
        }
        let len = entry.inline_len();
        if !(1..=8).contains(&len) {
            return None;
        }
        // SAFETY: `end` is the end of the inline value, whose last byte only we may access. The head alone puts at least eight
        // bytes of the allocation before its end, all of them written.
        unsafe {
            let end = self.ptr.as_ptr().add(entry.key_offset() + entry.key_len() + len);
            let number = integer::parse_word(end.sub(8).cast::<[u8; 8]>().read(), len)?;
            Some((number as u32, &mut *end.sub(1)))
        }
    }

    /// Sets the number of an inline hash of one field. Returns false if the entry is none, or the number is too large.
    pub fn set_count(&mut self, count: u8) -> bool {
        if self.read().kind() & KIND_COUNT == 0 || count > COUNT_MAX {
            return false;
        }
        let word = self.read().word(1) & !(u64::from(COUNT_MAX) << 16);
        self.set_word(1, word | (u64::from(count) << 16));
        true
    }

    /// Records how Redis would store the string; a new value begins as [`Form::Shortest`].
    pub fn set_form(&mut self, form: Form) {
        let bits = match form {
            Form::Shortest => 0,
            Form::Text => KIND_TEXT,
            Form::Raw => KIND_RAW,
        };
        let word = self.read().word(1) & !u64::from(KIND_RAW | KIND_TEXT);
        self.set_word(1, word | u64::from(bits));
    }

    /// Sets or clears the deadline. Returns false if it is too far away for this entry's head; the entry must be rebuilt then.
    #[must_use]
    #[inline]
    pub fn set_deadline(&mut self, deadline: Option<u64>) -> bool {
        let deadline = deadline.map_or(0, |d| d.max(1));
        if self.read().kind() & KIND_EXTENDED != 0 {
            self.set_word(2, deadline);
            return true;
        }
        if deadline > DEADLINE_MAX {
            return false;
        }
        let access = self.read().word(0) & 0xf_ffff;
        self.set_word(0, access | (deadline << 20));
        true
    }

    /// Stores the timer's number (below [`TIMER_LIMIT`]: the wheel returns no other).
    #[inline]
    pub fn set_timer(&mut self, timer: u32) {
        debug_assert!(timer < TIMER_LIMIT, "a timer's number would be cut off");
        let word = self.read().word(1) & ((1 << 36) - 1);
        self.set_word(1, word | (u64::from(timer) << 36));
    }

    /// Records an access at a second of the monotonic clock.
    #[inline]
    pub fn touch(&mut self, second: u64) {
        let (word, stamp) = (self.read().word(0), second & 0xf_ffff);
        if word & 0xf_ffff != stamp {
            self.set_word(0, (word & !0xf_ffff) | stamp);
        }
    }
}

/// Copies bytes. Up to 64 bytes, the usual size of keys and values of locks, are copied without a call: both ends are copied, and
/// these meet or overlap.
///
/// # Safety
/// `to` has room for `from`, and the two do not overlap.
#[inline(always)]
unsafe fn copy(from: &[u8], to: *mut u8) {
    type Half = [u8; 16];
    let (start, len) = (from.as_ptr(), from.len());
    // SAFETY: `to` has room for `from`, and the two do not overlap, as promised. No access goes beyond the last byte, and arrays
    // of bytes need no alignment.
    unsafe {
        match len {
            16..=32 => {
                let (a, b) = (start.cast::<Half>().read(), start.add(len - 16).cast::<Half>().read());
                to.cast::<Half>().write(a);
                to.add(len - 16).cast::<Half>().write(b);
            }
            33..=64 => {
                let (a, b) = (start.cast::<[Half; 2]>().read(), start.add(len - 32).cast::<[Half; 2]>().read());
                to.cast::<[Half; 2]>().write(a);
                to.add(len - 32).cast::<[Half; 2]>().write(b);
            }
            _ => std::ptr::copy_nonoverlapping(start, to, len),
        }
    }
}

#[inline]
fn layout(kind: u8, key_len: usize, inline_len: usize) -> Layout {
    // As in `key_offset`.
    let size = HEAD + usize::from(kind & (KIND_BOXED | KIND_EXTENDED)) * 8 + key_len + inline_len;
    // Aligned to 8: the table's slots use the three low bits of the address.
    Layout::from_size_align(size, 8).expect("a key is shorter than isize::MAX")
}

impl Drop for Entry {
    #[inline]
    fn drop(&mut self) {
        let entry = self.read();
        if entry.is_boxed() {
            // SAFETY: nothing uses the box after this.
            unsafe { drop_box(entry) };
        }
        let layout = layout(entry.kind(), entry.key_len(), entry.inline_len());
        // SAFETY: the allocation is ours, made with exactly this layout, and nothing uses it after this.
        unsafe { dealloc(self.ptr.as_ptr(), layout) };
    }
}

/// Drops the box of a boxed entry.
///
/// # Safety
/// The entry owns the box, and neither is used after this, except that the allocation of the entry is freed.
#[inline(never)]
unsafe fn drop_box(entry: EntryRef<'_>) {
    // SAFETY: the entry owns the box, whose pointer came from a box, and neither is used after this.
    drop(unsafe { Box::from_raw(entry.box_ptr()) });
}

impl std::fmt::Debug for EntryRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("value", &self.value())
            .field("deadline", &self.deadline())
            .finish()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.read().fmt(f)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
