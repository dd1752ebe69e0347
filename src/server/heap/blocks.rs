//! Small blocks for the threads that execute commands: nearly all that keys, values and scripts consist of.
//!
//! The C library's allocator gives memory back only by looking through all that is free, in one go: some 60 ms a gigabyte, for which
//! everybody would have to wait. Here blocks of one size lie side by side in spans, a span knows how many of its blocks are in use, and
//! one that is empty goes back by itself. Nor has a block a head: a key of a hundred bytes takes twelve fewer on the average.
//!
//! ```text
//!   region, reserved once:  │ span of 64 KiB │ span │ span │ …      heads of spans, side by side elsewhere
//!                             cell│cell│cell…                       found by a cell's address
//! ```
//!
//! A thread that has a [`Heap`] takes small blocks from it; others use the C library. Whoever frees a block can tell by its address
//! where it belongs, and one that belongs to another thread's heap is put on that heap's list of strays.

mod shadow;

use std::alloc::Layout;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::base::prefetch::prefetch;

/// Larger blocks are left to the C library, in bytes. Of the largest there is one to a span, and what is left of that is never touched.
const SMALL_MAX: usize = SPAN;
/// Up to so many bytes, sizes of blocks are multiples of this; from there on there are eight to each power of two.
const FINE_MAX: usize = 1024;
const STEP: usize = 8;
const FINE_CLASSES: usize = FINE_MAX / STEP + 1;
/// The largest alignment that blocks have, where their size is a multiple of it.
const ALIGN_MAX: usize = 16;
const CLASSES: usize = FINE_CLASSES + 8 * (SMALL_MAX / FINE_MAX).ilog2() as usize;
/// Bytes of a block of each class.
const SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = if class < FINE_CLASSES {
            (class * STEP) as u32
        } else {
            let (power, eighth) = ((class - FINE_CLASSES) / 8, (class - FINE_CLASSES) % 8);
            ((FINE_MAX + (eighth + 1) * FINE_MAX / 8) << power) as u32
        };
        class += 1;
    }
    sizes
};
/// Bytes of a span.
pub const SPAN: usize = 64 << 10;
/// Free blocks of a size that are kept at hand, at most: so many, and so many bytes of them.
const CACHED: (u32, u32) = (64, 4 << 10);
/// Spans that are made accessible at once: what is reserved is not charged for before, however strictly the system keeps account.
const SPANS_AT_ONCE: u32 = 64;
/// The address space that is reserved, at least.
const REGION_MIN: usize = 256 << 20;
/// No span.
const NONE: u32 = u32::MAX;

/// Where the region begins, how long it is, and the heads of its spans. Its length is 0 until the rest is known.
static BASE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);
static HEADS: AtomicPtr<Head> = AtomicPtr::new(ptr::null_mut());
static SHARED: Mutex<Shared> = Mutex::new(Shared { free: NONE, next: 0, accessible: 0, orphans: ptr::null_mut() });

/// What all heaps share.
struct Shared {
    /// The first of the spans that nobody has, linked by their heads. Their memory is with the system.
    free: u32,
    /// The first span that nobody has ever had.
    next: u32,
    /// Spans from this one on cannot be accessed yet.
    accessible: u32,
    /// Heaps whose threads have ended, to be had by others.
    orphans: *mut Heap,
}

// SAFETY: what it points to is reached through the lock alone.
unsafe impl Send for Shared {}

impl Shared {
    /// Whether there is a span that nobody has ever had, and that can be accessed now.
    fn has_next(&mut self) -> bool {
        if self.next < self.accessible {
            return true;
        }
        let count = SPANS_AT_ONCE.min((LEN.load(Ordering::Relaxed) / SPAN) as u32 - self.accessible);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: these spans lie in the region, and nobody has had any of them.
        if count == 0 || unsafe { libc::mprotect(start_of(self.next).cast(), count as usize * SPAN, access) } != 0 {
            return false;
        }
        self.accessible += count;
        true
    }
}

/// What is known of a span. All zeros is the head of one that nobody has ever had.
///
/// Other threads read `owner` while the owner changes the rest: the head is reached through its fields, never by a reference to all of it.
struct Head {
    /// The list of strays of the heap whose it is.
    owner: AtomicPtr<Strays>,
    /// Its first free block, which begins with the address of the next one. Those that were never used are not among them.
    free: *mut u8,
    /// Offset of the first block that was never used.
    fresh: u32,
    /// Blocks in use, those that are kept at hand included.
    used: u32,
    /// Bytes of a block, and its class.
    size: u32,
    class: u32,
    /// Neighbours among the spans of its size that have free blocks.
    prev: u32,
    next: u32,
    linked: bool,
}

/// What a span was before it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// Somebody's, perhaps.
    Used,
    /// Nobody's ever: as it came from the system.
    Untouched,
}

/// Free blocks of one size that are kept at hand.
#[derive(Clone, Copy)]
struct Cache {
    /// The first one, which begins with the address of the next one.
    first: *mut u8,
    len: u32,
    /// How many there are at most.
    max: u32,
}

/// The blocks of one heap that other threads have freed: all that other threads reach of a heap. An allocation of its own, because a
/// thread has its heap by a unique reference.
struct Strays(AtomicPtr<u8>);

/// The small blocks of one thread.
pub struct Heap {
    caches: [Cache; CLASSES],
    /// The first span of each size that has free blocks.
    open: [u32; CLASSES],
    /// The first of the empty spans, how many there are, and how few there were since they were last asked for.
    empty: u32,
    empties: usize,
    fewest_empties: usize,
    /// Spans, the empty ones included.
    spans: usize,
    /// Bytes of the blocks that the thread was given less those that it has given back.
    in_use: i64,
    /// Lives for ever, as the heap does.
    strays: &'static Strays,
    /// The next heap whose thread has ended.
    next_orphan: *mut Heap,
}

thread_local! {
    static HEAP: Cell<*mut Heap> = const { Cell::new(ptr::null_mut()) };
}

/// While it lives, its thread takes small blocks from a heap of its own. It stays on that thread, and so is not `Send`.
pub struct Owner(PhantomData<*mut Heap>);

impl Owner {
    /// Gives the thread that calls it a heap, whatever the program's allocator is. `None` where it has one, or the system has no room
    /// for any.
    pub fn new() -> Option<Owner> {
        if !HEAP.get().is_null() || !reserve() {
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut heap = shared.orphans;
        if heap.is_null() {
            // It is never freed: its blocks may outlive the thread.
            heap = Box::into_raw(Box::new(Heap::new()));
        } else {
            // SAFETY: an orphan is ours alone, and so is its link, under the lock.
            shared.orphans = unsafe { (*heap).next_orphan };
        }
        HEAP.set(heap);
        Some(Owner(PhantomData))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let heap = HEAP.replace(ptr::null_mut());
        assert!(!heap.is_null(), "a heap's owner is dropped by the thread that has the heap");
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: it was this thread's and is used no more.
        unsafe { (*heap).next_orphan = shared.orphans };
        shared.orphans = heap;
    }
}

/// The size class of a layout; `None` where it is not one of ours.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let (size, align) = (layout.size(), layout.align());
    if align > ALIGN_MAX || size.wrapping_sub(1) >= SMALL_MAX {
        return None;
    }
    // Less one than what sizes are multiples of.
    let odd = if align <= STEP { STEP - 1 } else { ALIGN_MAX - 1 };
    Some(if size <= FINE_MAX { ((size + odd) & !odd) / STEP } else { coarse_class(size) })
}

#[inline]
fn coarse_class(size: usize) -> usize {
    let power = (size - 1).ilog2();
    let eighth = (size - 1 - (1 << power)) >> (power - 3);
    FINE_CLASSES + (power - FINE_MAX.ilog2()) as usize * 8 + eighth
}

/// A block that is kept at hand; null where there is none, which does not mean that [`take`] has none.
#[inline]
pub fn at_hand(layout: Layout) -> *mut u8 {
    let heap = HEAP.get();
    let Some(class) = class_of(layout).filter(|_| !heap.is_null()) else { return ptr::null_mut() };
    // SAFETY: a thread's heap is its alone.
    unsafe { (*heap).at_hand(class) }
}

/// A block; null where the layout is not one of ours, the thread has no heap, or that has no room.
#[inline]
pub fn take(layout: Layout) -> *mut u8 {
    let heap = HEAP.get();
    let Some(class) = class_of(layout).filter(|_| !heap.is_null()) else { return ptr::null_mut() };
    // SAFETY: a thread's heap is its alone.
    unsafe { (*heap).take(class) }
}

/// As [`take`], a block that is all zeros.
#[inline]
pub fn take_zeroed(layout: Layout) -> *mut u8 {
    let heap = HEAP.get();
    let Some(class) = class_of(layout).filter(|_| !heap.is_null()) else { return ptr::null_mut() };
    // SAFETY: a thread's heap is its alone; the block is as long as its layout says.
    unsafe {
        let untouched = layout.size() > SPAN / 2 && (*heap).opens_untouched(class);
        let block = (*heap).take(class);
        if !block.is_null() && !untouched {
            block.write_bytes(0, layout.size());
        }
        block
    }
}

/// Whether a block is one of ours.
#[inline]
pub fn owns(block: *mut u8) -> bool {
    // What was stored before the length is seen with it.
    let len = LEN.load(Ordering::Acquire);
    block.addr().wrapping_sub(BASE.load(Ordering::Relaxed).addr()) < len
}

/// Takes a block back.
///
/// # Safety
/// It came from [`take`] with this layout, and nobody uses it any more.
#[inline]
pub unsafe fn give_back(block: *mut u8, layout: Layout) {
    let heap = HEAP.get();
    // SAFETY: as promised to us; a thread's heap is its alone, and a span with blocks in use has an owner.
    unsafe {
        match class_of(layout) {
            Some(class) if !heap.is_null() => (*heap).give_back(block, class),
            _ => stray(block),
        }
    }
}

/// Whether both layouts' blocks are of one size.
#[inline]
pub fn alike(a: Layout, b: Layout) -> bool {
    class_of(a) == class_of(b)
}

/// Bytes of the blocks that this thread has, about: those that others have freed are among them for a while.
#[inline]
pub fn in_use() -> i64 {
    // SAFETY: a thread's heap is its alone.
    unsafe { HEAP.get().as_ref() }.map_or(0, |heap| heap.in_use)
}

/// Empty spans of this thread's heap.
#[inline]
pub fn empties() -> usize {
    // SAFETY: a thread's heap is its alone.
    unsafe { HEAP.get().as_ref() }.map_or(0, |heap| heap.empties)
}

/// What the heap of this thread has of the system's memory: spans, and how many of them were empty ever since it was last asked with
/// `anew`.
pub fn account(anew: bool) -> (usize, usize) {
    // SAFETY: a thread's heap is its alone.
    unsafe { HEAP.get().as_mut() }.map_or((0, 0), |heap| {
        let fewest = heap.fewest_empties;
        if anew {
            heap.fewest_empties = heap.empties;
        }
        (heap.spans, fewest)
    })
}

/// Puts the blocks that are kept at hand where they belong, so that spans become empty.
pub fn tidy() {
    // SAFETY: a thread's heap is its alone.
    if let Some(heap) = unsafe { HEAP.get().as_mut() } {
        heap.collect_strays();
        for class in 1..CLASSES {
            heap.flush(class, 0);
        }
    }
}

/// Gives up to so many empty spans of this thread's heap back to the system; gives how many.
pub fn return_spans(count: usize) -> usize {
    // SAFETY: a thread's heap is its alone.
    let Some(heap) = (unsafe { HEAP.get().as_mut() }) else { return 0 };
    let count = count.min(heap.empties);
    for _ in 0..count {
        // SAFETY: there are so many.
        unsafe { heap.return_span() };
    }
    heap.fewest_empties = heap.fewest_empties.min(heap.empties);
    count
}

/// Frees a block of a heap that is not the caller's.
///
/// # Safety
/// It is one of ours, and nobody uses it any more.
#[cold]
unsafe fn stray(block: *mut u8) {
    // SAFETY: its span has a block in use, and so an owner, which lives for ever.
    unsafe {
        let head = head_of(block);
        shadow::forbid_free(block, (*head).size);
        let Strays(strays) = &*(*head).owner.load(Ordering::Relaxed);
        let mut first = strays.load(Ordering::Relaxed);
        loop {
            block.cast::<*mut u8>().write(first);
            match strays.compare_exchange_weak(first, block, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// Reserves the region, once; whether there is one.
#[cold]
fn reserve() -> bool {
    let _shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if LEN.load(Ordering::Relaxed) > 0 {
        return true;
    }
    let memory = rustix::system::sysinfo();
    // Twice what the machine has: address space alone, which takes no memory.
    let mut len =
        ((memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit)) as usize).next_power_of_two().saturating_mul(2);
    while len >= REGION_MIN {
        let heads = len / SPAN * size_of::<Head>();
        let (region, heads) = (map(len + SPAN, libc::PROT_NONE), map(heads, libc::PROT_READ | libc::PROT_WRITE));
        if !region.is_null() && !heads.is_null() {
            HEADS.store(heads.cast(), Ordering::Relaxed);
            BASE.store(region.wrapping_add(region.align_offset(SPAN)), Ordering::Relaxed);
            LEN.store(len, Ordering::Release);
            return true;
        }
        unmap(region, len + SPAN);
        unmap(heads, len / SPAN * size_of::<Head>());
        len /= 2;
    }
    false
}

fn map(len: usize, access: libc::c_int) -> *mut u8 {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
    // SAFETY: new memory.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
    if base == libc::MAP_FAILED { ptr::null_mut() } else { base.cast() }
}

fn unmap(base: *mut u8, len: usize) {
    if !base.is_null() {
        // SAFETY: it was mapped a moment ago, and nobody has used it.
        unsafe { libc::munmap(base.cast(), len) };
    }
}

fn head(span: u32) -> *mut Head {
    // Only called for spans of the region.
    HEADS.load(Ordering::Relaxed).wrapping_add(span as usize)
}

fn span_of(block: *mut u8) -> u32 {
    ((block.addr() - BASE.load(Ordering::Relaxed).addr()) / SPAN) as u32
}

fn head_of(block: *mut u8) -> *mut Head {
    head(span_of(block))
}

fn start_of(span: u32) -> *mut u8 {
    // Only called for spans of the region.
    BASE.load(Ordering::Relaxed).wrapping_add(span as usize * SPAN)
}

impl Heap {
    fn new() -> Heap {
        let cache = |class: usize| {
            let max = CACHED.0.min(CACHED.1 / SIZES[class].max(1)).max(1);
            Cache { first: ptr::null_mut(), len: 0, max }
        };
        Heap {
            caches: std::array::from_fn(cache),
            open: [NONE; CLASSES],
            empty: NONE,
            empties: 0,
            fewest_empties: 0,
            spans: 0,
            in_use: 0,
            strays: Box::leak(Box::new(Strays(AtomicPtr::new(ptr::null_mut())))),
            next_orphan: ptr::null_mut(),
        }
    }

    #[inline]
    fn take(&mut self, class: usize) -> *mut u8 {
        let block = self.at_hand(class);
        if block.is_null() { self.refill(class) } else { block }
    }

    /// One of the blocks that are kept at hand; null where there is none.
    #[inline]
    fn at_hand(&mut self, class: usize) -> *mut u8 {
        let cache = &mut self.caches[class];
        let block = cache.first;
        if !block.is_null() {
            // SAFETY: a block at hand is ours and begins with the address of the next one.
            cache.first = unsafe { block.cast::<*mut u8>().read() };
            cache.len -= 1;
            shadow::allow(block, SIZES[class] as usize);
            self.in_use += i64::from(SIZES[class]);
        }
        block
    }

    /// # Safety
    /// It is a block of this class that nobody uses any more.
    #[inline]
    unsafe fn give_back(&mut self, block: *mut u8, class: usize) {
        let cache = &mut self.caches[class];
        // SAFETY: as promised to us; the smallest block has room for an address.
        unsafe { block.cast::<*mut u8>().write(cache.first) };
        cache.first = block;
        cache.len += 1;
        shadow::forbid_free(block, SIZES[class]);
        self.in_use -= i64::from(SIZES[class]);
        if cache.len > cache.max {
            self.flush(class, self.caches[class].max / 2);
        }
    }

    /// For a class of which there is one block to a span: whether the next block is that of a span which nobody has ever had. It is all
    /// zeros then, and so is the address of the next block that it begins with, as there is none.
    #[cold]
    fn opens_untouched(&mut self, class: usize) -> bool {
        self.caches[class].first.is_null() && self.open[class] == NONE && self.open_span(class) == Some(Span::Untouched)
    }

    /// Takes some blocks from a span: gives one, and keeps the others at hand.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, class: usize) -> *mut u8 {
        if !self.strays.0.load(Ordering::Relaxed).is_null() {
            self.collect_strays();
        }
        if self.open[class] == NONE && self.open_span(class).is_none() {
            return ptr::null_mut();
        }
        let span = self.open[class];
        let (start, size) = (start_of(span), SIZES[class] as usize);
        // SAFETY: an open span is ours, and what lies in it below its end and is free is, too.
        unsafe {
            let head = head(span);
            let mut wanted = (self.caches[class].max / 2).max(1);
            let first = if (*head).free.is_null() {
                // In the order of their addresses.
                let fresh = ((SPAN - (*head).fresh as usize) / size).min(wanted as usize);
                let first = start.add((*head).fresh as usize);
                for number in 0..fresh {
                    let block = first.add(number * size);
                    let next = if number + 1 < fresh { block.add(size) } else { ptr::null_mut() };
                    shadow::forbid_free(block, SIZES[class]);
                    block.cast::<*mut u8>().write(next);
                }
                (*head).fresh += (fresh * size) as u32;
                wanted = fresh as u32;
                first
            } else {
                // One only: where blocks were freed here and there, each has to be waited for to know the next, but that one is asked for
                // now and comes until it is wanted.
                let first = (*head).free;
                (*head).free = first.cast::<*mut u8>().read();
                first.cast::<*mut u8>().write(ptr::null_mut());
                prefetch((*head).free);
                wanted = 1;
                first
            };
            (*head).used += wanted;
            if (*head).free.is_null() && SPAN - ((*head).fresh as usize) < size {
                self.unlink(span, class);
            }
            let cache = &mut self.caches[class];
            (cache.first, cache.len) = (first, wanted);
        }
        self.take(class)
    }

    /// Puts blocks that are at hand where they belong, all but the first so many.
    #[cold]
    #[inline(never)]
    fn flush(&mut self, class: usize, kept: u32) {
        let cache = &mut self.caches[class];
        if cache.len <= kept {
            return;
        }
        // SAFETY: blocks at hand are ours, and each begins with the address of the next one.
        unsafe {
            let mut rest = cache.first;
            if kept == 0 {
                cache.first = ptr::null_mut();
            } else {
                for _ in 1..kept {
                    rest = rest.cast::<*mut u8>().read();
                }
                let last = rest.cast::<*mut u8>();
                rest = last.read();
                last.write(ptr::null_mut());
            }
            cache.len = kept;
            while !rest.is_null() {
                let next = rest.cast::<*mut u8>().read();
                self.release(rest);
                rest = next;
            }
        }
    }

    /// Puts what others have freed where it belongs.
    #[cold]
    fn collect_strays(&mut self) {
        let mut block = self.strays.0.swap(ptr::null_mut(), Ordering::Acquire);
        while !block.is_null() {
            // SAFETY: a stray is one of ours that nobody uses, and begins with the address of the next one.
            unsafe {
                let next = block.cast::<*mut u8>().read();
                self.in_use -= i64::from((*head_of(block)).size);
                self.release(block);
                block = next;
            }
        }
    }

    /// Gives a block back to its span.
    ///
    /// # Safety
    /// It is a block that nobody uses.
    unsafe fn release(&mut self, block: *mut u8) {
        let span = span_of(block);
        // SAFETY: as promised to us: its span has a block in use.
        unsafe {
            let head = head(span);
            if !ptr::eq((*head).owner.load(Ordering::Relaxed), self.strays) {
                return stray(block);
            }
            block.cast::<*mut u8>().write((*head).free);
            (*head).free = block;
            (*head).used -= 1;
            let class = (*head).class as usize;
            if (*head).used == 0 {
                if (*head).linked {
                    self.unlink(span, class);
                }
                (*head).next = self.empty;
                self.empty = span;
                self.empties += 1;
            } else if !(*head).linked {
                self.link(span, class);
            }
        }
    }

    /// Sees to it that there is a span with free blocks of a class; `None` where the region is used up.
    #[cold]
    fn open_span(&mut self, class: usize) -> Option<Span> {
        let mut span = self.empty;
        let mut was = Span::Used;
        // SAFETY: empty spans are ours; those that nobody has are whoever's holds the lock.
        unsafe {
            if span != NONE {
                self.empty = (*head(span)).next;
                self.empties -= 1;
                self.fewest_empties = self.fewest_empties.min(self.empties);
            } else {
                let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
                span = shared.free;
                if span != NONE {
                    shared.free = (*head(span)).next;
                } else if shared.has_next() {
                    span = shared.next;
                    shared.next += 1;
                    was = Span::Untouched;
                } else {
                    return None;
                }
                self.spans += 1;
            }
            let head = head(span);
            (*head).owner.store(ptr::from_ref(self.strays).cast_mut(), Ordering::Relaxed);
            ((*head).free, (*head).fresh, (*head).used, (*head).linked) = (ptr::null_mut(), 0, 0, false);
            ((*head).size, (*head).class) = (SIZES[class], class as u32);
            shadow::forbid(start_of(span), SPAN);
            self.link(span, class);
        }
        Some(was)
    }

    /// # Safety
    /// There is an empty span.
    unsafe fn return_span(&mut self) {
        let span = self.empty;
        // SAFETY: as promised to us; nobody uses anything in it.
        unsafe {
            self.empty = (*head(span)).next;
            libc::madvise(start_of(span).cast(), SPAN, libc::MADV_DONTNEED);
            self.empties -= 1;
            self.spans -= 1;
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            (*head(span)).next = shared.free;
            shared.free = span;
        }
    }

    /// # Safety
    /// The span is ours and not linked.
    unsafe fn link(&mut self, span: u32, class: usize) {
        // SAFETY: as promised to us, and so is the first one.
        unsafe {
            let first = self.open[class];
            let head_of_span = head(span);
            ((*head_of_span).prev, (*head_of_span).next, (*head_of_span).linked) = (NONE, first, true);
            if first != NONE {
                (*head(first)).prev = span;
            }
        }
        self.open[class] = span;
    }

    /// # Safety
    /// The span is ours and linked.
    unsafe fn unlink(&mut self, span: u32, class: usize) {
        // SAFETY: as promised to us, and so are its neighbours.
        unsafe {
            let (prev, next) = ((*head(span)).prev, (*head(span)).next);
            match prev {
                NONE => self.open[class] = next,
                prev => (*head(prev)).next = next,
            }
            if next != NONE {
                (*head(next)).prev = prev;
            }
            (*head(span)).linked = false;
        }
    }
}

/// Held by a test for as long as it uses heaps: they are handed on, and looked into.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "heap_tests.rs"]
mod tests;
