//! Blocks for what every connection has two of: its task and its socket's readiness, which tokio aligns to 128 bytes.
//!
//! glibc spends 384 bytes on one of 256 with that alignment. Here they lie side by side in slabs, which are given back when they are
//! empty. Asked for when connections come and go, and never in between, so one lock will do.
//!
//! ```text
//!   slab (64 KiB, aligned to its size): head │ cell │ cell │ …      a cell's slab is found by its address
//! ```

use std::alloc::Layout;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// Bytes of a cell.
const CELL: usize = 256;
/// The alignment that asks for a cell.
pub const ALIGN: usize = 128;
/// Bytes of a slab, and its alignment.
const SLAB: usize = 64 << 10;
/// Cells of a slab; the first lies behind the head.
const CELLS: usize = SLAB / CELL - 1;

/// The beginning of a slab.
struct Head {
    /// The first free cell, which begins with the address of the next one. Those that were never used are not among them.
    free: *mut u8,
    /// Cells that were ever used: so many behind the head.
    touched: usize,
    used: usize,
    /// Neighbours among the slabs with free cells.
    prev: *mut Head,
    next: *mut Head,
}

/// The slabs with free cells.
struct Cells {
    open: *mut Head,
}

// SAFETY: the slabs are reached through the lock alone.
unsafe impl Send for Cells {}

static SHARED: Mutex<Cells> = Mutex::new(Cells { open: ptr::null_mut() });

/// Whether a block of this layout is a cell.
#[inline]
pub fn is_cell(layout: Layout) -> bool {
    layout.align() == ALIGN && layout.size() <= CELL
}

/// A cell; null where the system has no memory.
pub fn take() -> *mut u8 {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Gives a cell back.
///
/// # Safety
/// It came from [`take`], and nobody uses it any more.
pub unsafe fn give_back(cell: *mut u8) {
    // SAFETY: as promised to us.
    unsafe { SHARED.lock().unwrap_or_else(PoisonError::into_inner).give_back(cell) }
}

impl Cells {
    fn take(&mut self) -> *mut u8 {
        if self.open.is_null() {
            self.add_slab();
        }
        let slab = self.open;
        if slab.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: an open slab is ours and has a free cell: one that begins with the address of the next one, or one never used.
        unsafe {
            let mut cell = (*slab).free;
            if cell.is_null() {
                (*slab).touched += 1;
                cell = slab.cast::<u8>().add((*slab).touched * CELL);
            } else {
                (*slab).free = cell.cast::<*mut u8>().read();
            }
            (*slab).used += 1;
            if (*slab).used == CELLS {
                self.unlink(slab);
            }
            cell
        }
    }

    /// # Safety
    /// The cell is one of ours and is not used any more.
    unsafe fn give_back(&mut self, cell: *mut u8) {
        let slab = cell.map_addr(|address| address & !(SLAB - 1)).cast::<Head>();
        // SAFETY: a slab is aligned to its size, so this is the head of the one that the cell lies in.
        unsafe {
            let was_full = (*slab).used == CELLS;
            cell.cast::<*mut u8>().write((*slab).free);
            (*slab).free = cell;
            (*slab).used -= 1;
            if was_full {
                self.link(slab);
            }
            // One is kept: connections come and go.
            if (*slab).used == 0 && !((*slab).next.is_null() && (*slab).prev.is_null()) {
                self.unlink(slab);
                unmap(slab.cast(), SLAB);
            }
        }
    }

    #[cold]
    fn add_slab(&mut self) {
        let slab = map().cast::<Head>();
        if slab.is_null() {
            return;
        }
        // SAFETY: the head lies inside of a slab.
        unsafe {
            slab.write(Head { free: ptr::null_mut(), touched: 0, used: 0, prev: ptr::null_mut(), next: ptr::null_mut() });
            self.link(slab);
        }
    }

    /// # Safety
    /// The slab is ours and is not linked.
    unsafe fn link(&mut self, slab: *mut Head) {
        // SAFETY: as promised to us; the first one that is linked is ours, too.
        unsafe {
            (*slab).prev = ptr::null_mut();
            (*slab).next = self.open;
            if let Some(next) = self.open.as_mut() {
                next.prev = slab;
            }
        }
        self.open = slab;
    }

    /// # Safety
    /// The slab is linked.
    unsafe fn unlink(&mut self, slab: *mut Head) {
        // SAFETY: as promised to us, so its neighbours are ours, too.
        unsafe {
            let (prev, next) = ((*slab).prev, (*slab).next);
            match prev.as_mut() {
                Some(prev) => prev.next = next,
                None => self.open = next,
            }
            if let Some(next) = next.as_mut() {
                next.prev = prev;
            }
            ((*slab).prev, (*slab).next) = (ptr::null_mut(), ptr::null_mut());
        }
    }
}

/// Memory for a slab, from the system: its own allocator would spend another slab on the alignment. Null where there is none.
fn map() -> *mut u8 {
    const TWICE: usize = 2 * SLAB;
    // SAFETY: new memory, of which what lies before and behind an aligned half is given back.
    unsafe {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        let base = libc::mmap(ptr::null_mut(), TWICE, access, kind, -1, 0);
        if base == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        let base = base.cast::<u8>();
        let before = base.align_offset(SLAB);
        if before > 0 {
            unmap(base, before);
        }
        let slab = base.add(before);
        unmap(slab.add(SLAB), SLAB - before);
        slab
    }
}

/// # Safety
/// The memory came from [`map`], and nobody uses it any more.
unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: as promised to us. Where it fails, the memory is lost, and nothing else.
    unsafe {
        libc::munmap(base.cast(), len);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    impl Cells {
        /// Slabs with free cells, and cells of those that are free.
        fn count(&self) -> (usize, usize) {
            let (mut slabs, mut cells, mut slab, mut prev) = (0, 0, self.open, ptr::null_mut());
            // SAFETY: what is linked is ours.
            while let Some(head) = unsafe { slab.as_ref() } {
                assert_eq!(head.prev, prev);
                let (mut free, mut count) = (head.free, CELLS - head.touched);
                while !free.is_null() {
                    count += 1;
                    // SAFETY: a free cell begins with the address of the next one.
                    free = unsafe { free.cast::<*mut u8>().read() };
                }
                assert_eq!(count + head.used, CELLS);
                assert!(count > 0, "a full slab is not linked");
                (slabs, cells) = (slabs + 1, cells + count);
                (prev, slab) = (slab, head.next);
            }
            (slabs, cells)
        }
    }

    proptest! {
        #[test]
        fn no_two_have_the_same_cell_and_empty_slabs_go(steps in prop::collection::vec((any::<bool>(), any::<u16>()), 0..2000)) {
            let mut cells = Cells { open: ptr::null_mut() };
            let (mut held, mut seen) = (Vec::new(), HashSet::new());
            for (take, which) in steps {
                if take || held.is_empty() {
                    let cell = cells.take();
                    prop_assert!(!cell.is_null() && cell.addr().is_multiple_of(ALIGN));
                    prop_assert!(seen.insert(cell.addr()), "given out twice");
                    // SAFETY: it is ours alone, and so long.
                    unsafe { cell.write_bytes(0xab, CELL) };
                    held.push(cell);
                } else {
                    let cell = held.swap_remove(usize::from(which) % held.len());
                    seen.remove(&cell.addr());
                    // SAFETY: taken above, and not used from here on.
                    unsafe { cells.give_back(cell) };
                }
                let (slabs, free) = cells.count();
                prop_assert!((held.len() + free).is_multiple_of(CELLS));
                prop_assert!(free < CELLS || slabs > 1 || held.len().is_multiple_of(CELLS));
            }
            for cell in held {
                // SAFETY: taken above, and not used from here on.
                unsafe { cells.give_back(cell) };
            }
            prop_assert!(cells.count().0 <= 1);
            if !cells.open.is_null() {
                // SAFETY: the last slab is empty.
                unsafe { unmap(cells.open.cast(), SLAB) };
            }
        }
    }
}
