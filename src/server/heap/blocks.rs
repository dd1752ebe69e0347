//! Small blocks for the threads that execute commands: they hold nearly all keys, values and scripts.
//!
//! The C library's allocator returns memory only by searching all free blocks in one go: some 60 ms per gigabyte, for which all
//! clients would wait. Here blocks of one size lie side by side in spans, a span counts its blocks in use, and an empty span can
//! be returned alone. Blocks have no headers: a key of a hundred bytes takes twelve bytes fewer on average.
//!
//! ```text
//!   region, reserved once:  │ span of 64 KiB │ span │ span │ …      heads of spans, side by side elsewhere
//!                             cell│cell│cell…                       found by a cell's address
//! ```
//!
//! A thread with a [`Heap`] takes small blocks from it; other threads use the C library. The address of a freed block tells where
//! it belongs. A block that belongs to another thread's heap goes onto that heap's list of strays.

mod shadow;
mod strays;
mod system;

use std::alloc::Layout;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::base::prefetch::prefetch;
use crate::server::heap::blocks::strays::Strays;

/// Larger blocks are left to the C library, in bytes. A span holds only one block of the largest sizes, and the rest of
/// the span is never touched.
const SMALL_MAX: usize = SPAN;
/// Up to this many bytes, block sizes are multiples of `STEP`; above, there are eight sizes per power of two.
const FINE_MAX: usize = 1024;
const STEP: usize = 8;
const FINE_CLASSES: usize = FINE_MAX / STEP + 1;
/// The largest alignment of blocks, for sizes that are a multiple of it.
const ALIGN_MAX: usize = 16;
const CLASSES: usize = FINE_CLASSES + 8 * (SMALL_MAX / FINE_MAX).ilog2() as usize;
/// Block size of each class, in bytes.
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
/// Size of a span, in bytes.
pub const SPAN: usize = 64 << 10;
/// Maximum number of free blocks cached per size, and maximum number of their bytes.
const CACHED: (u32, u32) = (64, 4 << 10);
/// Number of spans made accessible at once: reserved spans are not charged before that, however strict the system's overcommit
/// accounting is.
const SPANS_AT_ONCE: u32 = 64;
/// Minimum size of the reserved address space. Miri fills the memory of it, and its tests need some 10 MiB.
const REGION_MIN: usize = if cfg!(miri) { 16 << 20 } else { 256 << 20 };
/// No span.
const NONE: u32 = u32::MAX;

/// Start and length of the region, and the heads of its spans. The length is 0 until the others are set.
static BASE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);
static HEADS: AtomicPtr<Head> = AtomicPtr::new(ptr::null_mut());
static SHARED: Mutex<Shared> = Mutex::new(Shared { free: NONE, next: 0, accessible: 0, orphans: ptr::null_mut() });

/// State shared by all heaps.
struct Shared {
    /// The first of the spans without an owner, linked by their heads. Their memory has been returned to the system.
    free: u32,
    /// The first span that was never used.
    next: u32,
    /// The first span that is not yet accessible.
    accessible: u32,
    /// Heaps whose threads have ended, free to be adopted.
    orphans: *mut Heap,
}

// SAFETY: its pointer is followed only while the lock is held.
unsafe impl Send for Shared {}

impl Shared {
    /// Whether there is a never-used span that is accessible, after making more accessible if needed.
    fn has_next(&mut self) -> bool {
        if self.next < self.accessible {
            return true;
        }
        let count = SPANS_AT_ONCE.min((LEN.load(Ordering::Relaxed) / SPAN) as u32 - self.accessible);
        // SAFETY: these spans lie in the region and were never used.
        if count == 0 || unsafe { !system::make_accessible(start_of(self.next), count as usize * SPAN) } {
            return false;
        }
        self.accessible += count;
        true
    }
}

/// The head of a span. All zeros is the head of a never-used span.
///
/// Other threads read `owner` while the owner changes the rest, so code accesses the head's fields, never a reference to the
/// whole head.
struct Head {
    /// The strays list of the heap that owns the span.
    owner: AtomicPtr<Strays>,
    /// First free block, which begins with the address of the next one. Never-used blocks are not in this list.
    free: *mut u8,
    /// Offset of the first never-used block.
    fresh: u32,
    /// Number of blocks in use, including cached ones.
    used: u32,
    /// Block size in bytes, and the class.
    size: u32,
    class: u32,
    /// Neighbours in the list of the class's spans with free blocks.
    prev: u32,
    next: u32,
    linked: bool,
}

/// State of a span before it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// It may have been used before.
    Used,
    /// Never used: as it came from the system.
    Untouched,
}

/// The cached free blocks of one size.
#[derive(Clone, Copy)]
struct Cache {
    /// The first block, which begins with the address of the next one.
    first: *mut u8,
    len: u32,
    /// Maximum number of blocks.
    max: u32,
}

/// The small blocks of one thread.
pub struct Heap {
    caches: [Cache; CLASSES],
    /// First span with free blocks, per class.
    open: [u32; CLASSES],
    /// The first empty span, the number of empty spans, and their minimum number since the last reset by [`account`].
    empty: u32,
    empties: usize,
    fewest_empties: usize,
    /// Number of spans, including empty ones.
    spans: usize,
    /// Bytes of the blocks that the thread was given, minus those it has freed.
    in_use: i64,
    /// Blocks that other threads have freed. It lives for ever, like the heap, and is a separate allocation, because a thread accesses
    /// its heap through a unique reference.
    strays: &'static Strays,
    /// The next heap whose thread has ended.
    next_orphan: *mut Heap,
}

thread_local! {
    static HEAP: Cell<*mut Heap> = const { Cell::new(ptr::null_mut()) };
}

/// While it lives, its thread takes small blocks from its own heap. It stays on that thread, and so is not `Send`.
pub struct Owner(PhantomData<*mut Heap>);

impl Owner {
    /// Gives the calling thread a heap, whatever the program's allocator is. Returns `None` if the thread has one already, or if
    /// the system has no address space for one.
    pub fn new() -> Option<Owner> {
        if !HEAP.get().is_null() || !reserve() {
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut heap = shared.orphans;
        if heap.is_null() {
            // A heap is never freed: its blocks may outlive the thread.
            heap = Box::into_raw(Box::new(Heap::new()));
        } else {
            // SAFETY: an orphan belongs to no thread, and its link is protected by the lock.
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
        // SAFETY: the heap was this thread's, and the thread no longer uses it.
        unsafe { (*heap).next_orphan = shared.orphans };
        shared.orphans = heap;
    }
}

/// Returns the size class of a layout; `None` if blocks of this heap cannot serve it.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let (size, align) = (layout.size(), layout.align());
    if align > ALIGN_MAX || size.wrapping_sub(1) >= SMALL_MAX {
        return None;
    }
    // One less than the number that the size is rounded up to a multiple of.
    let odd = if align <= STEP { STEP - 1 } else { ALIGN_MAX - 1 };
    Some(if size <= FINE_MAX { ((size + odd) & !odd) / STEP } else { coarse_class(size) })
}

#[inline]
fn coarse_class(size: usize) -> usize {
    let power = (size - 1).ilog2();
    let eighth = (size - 1 - (1 << power)) >> (power - 3);
    FINE_CLASSES + (power - FINE_MAX.ilog2()) as usize * 8 + eighth
}

/// Takes a cached block. Returns null if none is cached; [`take`] may still have one.
#[inline]
pub fn at_hand(layout: Layout) -> *mut u8 {
    let heap = HEAP.get();
    let Some(class) = class_of(layout).filter(|_| !heap.is_null()) else { return ptr::null_mut() };
    // SAFETY: only the thread itself uses its heap.
    unsafe { (*heap).at_hand(class) }
}

/// Takes a block. Returns null if the layout has no class, the thread has no heap, or no span is left.
#[inline]
pub fn take(layout: Layout) -> *mut u8 {
    let heap = HEAP.get();
    let Some(class) = class_of(layout).filter(|_| !heap.is_null()) else { return ptr::null_mut() };
    // SAFETY: only the thread itself uses its heap.
    unsafe { (*heap).take(class) }
}

/// As [`take`], but the block is all zeros.
#[inline]
pub fn take_zeroed(layout: Layout) -> *mut u8 {
    let heap = HEAP.get();
    let Some(class) = class_of(layout).filter(|_| !heap.is_null()) else { return ptr::null_mut() };
    // SAFETY: only the thread itself uses its heap; the block is as long as its layout says.
    unsafe {
        let untouched = layout.size() > SPAN / 2 && (*heap).opens_untouched(class);
        let block = (*heap).take(class);
        if !block.is_null() && !untouched {
            block.write_bytes(0, layout.size());
        }
        block
    }
}

/// Whether a block lies in the region.
#[inline]
pub fn owns(block: *mut u8) -> bool {
    // Acquire makes the values stored before the length visible.
    let len = LEN.load(Ordering::Acquire);
    block.addr().wrapping_sub(BASE.load(Ordering::Relaxed).addr()) < len
}

/// Frees a block.
///
/// # Safety
/// The block came from [`take`] with this layout, and is no longer used.
#[inline]
pub unsafe fn give_back(block: *mut u8, layout: Layout) {
    let heap = HEAP.get();
    // SAFETY: guaranteed by the caller; only the thread itself uses its heap, and a span with blocks in use has an owner.
    unsafe {
        match class_of(layout) {
            Some(class) if !heap.is_null() => (*heap).give_back(block, class),
            _ => stray(block),
        }
    }
}

/// Whether both layouts have blocks of one size.
#[inline]
pub fn alike(a: Layout, b: Layout) -> bool {
    class_of(a) == class_of(b)
}

/// Bytes of the blocks that this thread holds, approximately: blocks freed by other threads are included for a while.
#[inline]
pub fn in_use() -> i64 {
    // SAFETY: only the thread itself uses its heap.
    unsafe { HEAP.get().as_ref() }.map_or(0, |heap| heap.in_use)
}

/// Number of empty spans of this thread's heap.
#[inline]
pub fn empties() -> usize {
    // SAFETY: only the thread itself uses its heap.
    unsafe { HEAP.get().as_ref() }.map_or(0, |heap| heap.empties)
}

/// Returns the number of spans of this thread's heap, and the minimum number of empty ones since the last call with `anew`.
pub fn account(anew: bool) -> (usize, usize) {
    // SAFETY: only the thread itself uses its heap.
    unsafe { HEAP.get().as_mut() }.map_or((0, 0), |heap| {
        let fewest = heap.fewest_empties;
        if anew {
            heap.fewest_empties = heap.empties;
        }
        (heap.spans, fewest)
    })
}

/// Puts cached blocks and strays back into their spans, so that spans become empty.
pub fn tidy() {
    // SAFETY: only the thread itself uses its heap.
    if let Some(heap) = unsafe { HEAP.get().as_mut() } {
        heap.collect_strays();
        for class in 1..CLASSES {
            heap.flush(class, 0);
        }
    }
}

/// Releases up to `count` empty spans of this thread's heap to the system. Returns how many.
pub fn return_spans(count: usize) -> usize {
    // SAFETY: only the thread itself uses its heap.
    let Some(heap) = (unsafe { HEAP.get().as_mut() }) else { return 0 };
    let count = count.min(heap.empties);
    for _ in 0..count {
        // SAFETY: there are at least `count` empty spans.
        unsafe { heap.return_span() };
    }
    heap.fewest_empties = heap.fewest_empties.min(heap.empties);
    count
}

/// Frees a block of another thread's heap.
///
/// # Safety
/// The block lies in the region, and is no longer used.
#[cold]
unsafe fn stray(block: *mut u8) {
    // SAFETY: its span has a block in use, and so an owner, whose list lives for ever.
    unsafe {
        let head = head_of(block);
        shadow::forbid_free(block, (*head).size);
        (*(*head).owner.load(Ordering::Relaxed)).push(block);
    }
}

/// Reserves the region once. Returns whether there is one.
#[cold]
fn reserve() -> bool {
    let _shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if LEN.load(Ordering::Relaxed) > 0 {
        return true;
    }
    let mut len = system::region_bytes();
    while len >= REGION_MIN {
        let heads = len / SPAN * size_of::<Head>();
        let (region, heads) = (system::map(len + SPAN, false), system::map(heads, true));
        if !region.is_null() && !heads.is_null() {
            HEADS.store(heads.cast(), Ordering::Relaxed);
            BASE.store(region.wrapping_add(region.align_offset(SPAN)), Ordering::Relaxed);
            LEN.store(len, Ordering::Release);
            return true;
        }
        // SAFETY: they were mapped with these lengths a moment ago, and nothing has used them.
        unsafe {
            system::unmap(region, len + SPAN);
            system::unmap(heads, len / SPAN * size_of::<Head>());
        }
        len /= 2;
    }
    false
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
            strays: Box::leak(Box::new(Strays::new())),
            next_orphan: ptr::null_mut(),
        }
    }

    #[inline]
    fn take(&mut self, class: usize) -> *mut u8 {
        let block = self.at_hand(class);
        if block.is_null() { self.refill(class) } else { block }
    }

    /// Takes one of the cached blocks; null if there is none.
    #[inline]
    fn at_hand(&mut self, class: usize) -> *mut u8 {
        let cache = &mut self.caches[class];
        let block = cache.first;
        if !block.is_null() {
            // SAFETY: a cached block is ours and begins with the address of the next one.
            cache.first = unsafe { block.cast::<*mut u8>().read() };
            cache.len -= 1;
            shadow::allow(block, SIZES[class] as usize);
            self.in_use += i64::from(SIZES[class]);
        }
        block
    }

    /// # Safety
    /// The block belongs to this class and is no longer used.
    #[inline]
    unsafe fn give_back(&mut self, block: *mut u8, class: usize) {
        let cache = &mut self.caches[class];
        // SAFETY: guaranteed by the caller; the smallest block has room for an address.
        unsafe { block.cast::<*mut u8>().write(cache.first) };
        cache.first = block;
        cache.len += 1;
        shadow::forbid_free(block, SIZES[class]);
        self.in_use -= i64::from(SIZES[class]);
        if cache.len > cache.max {
            self.flush(class, self.caches[class].max / 2);
        }
    }

    /// For a class with one block per span: whether the next block comes from a never-used span. Then it is all zeros, including
    /// the address of the next block that it begins with, as there is no next block.
    #[cold]
    fn opens_untouched(&mut self, class: usize) -> bool {
        self.caches[class].first.is_null() && self.open[class] == NONE && self.open_span(class) == Some(Span::Untouched)
    }

    /// Takes blocks from a span: returns one, and caches the others.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, class: usize) -> *mut u8 {
        if !self.strays.is_empty() {
            self.collect_strays();
        }
        if self.open[class] == NONE && self.open_span(class).is_none() {
            return ptr::null_mut();
        }
        let span = self.open[class];
        let (start, size) = (start_of(span), SIZES[class] as usize);
        // SAFETY: an open span is ours, and so are the free blocks below its end.
        unsafe {
            let head = head(span);
            let mut wanted = (self.caches[class].max / 2).max(1);
            let first = if (*head).free.is_null() {
                // In address order.
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
                // One block only: where blocks were freed here and there, finding each next one means a cache miss. The next free
                // block is prefetched now, and arrives before it is needed.
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

    /// Puts cached blocks back into their spans, all but the first `kept`.
    #[cold]
    #[inline(never)]
    fn flush(&mut self, class: usize, kept: u32) {
        let cache = &mut self.caches[class];
        if cache.len <= kept {
            return;
        }
        // SAFETY: cached blocks are ours, and each begins with the address of the next one.
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

    /// Takes the strays, which other threads have freed, and puts them back into their spans.
    #[cold]
    fn collect_strays(&mut self) {
        let mut block = self.strays.take_all();
        while !block.is_null() {
            // SAFETY: a stray is one of our blocks, unused, and begins with the address of the next one.
            unsafe {
                let next = block.cast::<*mut u8>().read();
                self.in_use -= i64::from((*head_of(block)).size);
                self.release(block);
                block = next;
            }
        }
    }

    /// Puts a block back into its span.
    ///
    /// # Safety
    /// The block is no longer used.
    unsafe fn release(&mut self, block: *mut u8) {
        let span = span_of(block);
        // SAFETY: guaranteed by the caller: its span has a block in use.
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

    /// Opens a span for a class: an empty one, a returned one or a never-used one. Returns `None` if the region is used up.
    #[cold]
    fn open_span(&mut self, class: usize) -> Option<Span> {
        let mut span = self.empty;
        let mut was = Span::Used;
        // SAFETY: empty spans are ours; spans without an owner belong to the holder of the lock.
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
        // SAFETY: guaranteed by the caller; nothing in the span is used.
        unsafe {
            self.empty = (*head(span)).next;
            system::discard(start_of(span), SPAN);
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
        // SAFETY: guaranteed by the caller; the first span of the class is ours, too.
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
        // SAFETY: guaranteed by the caller; its neighbours are ours, too.
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

/// Held by a test while it uses heaps: heaps pass from one thread to the next, and tests inspect them.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "heap_tests.rs"]
mod tests;
