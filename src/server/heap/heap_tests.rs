//! Tests of the heap: no block is given out twice, empty spans are returned, and blocks freed by other threads are not lost.

use std::collections::BTreeMap;
use std::sync::mpsc;

use proptest::prelude::*;

use crate::base::scaled;
use crate::server::heap::blocks::*;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

impl Heap {
    /// Panics if the heap violates an invariant. Returns the number of blocks in use.
    fn check_invariants(&self) -> usize {
        let mut at_hand = 0;
        for (class, cache) in self.caches.iter().enumerate().skip(1) {
            let mut block = cache.first;
            let mut len = 0;
            while !block.is_null() {
                // SAFETY: a cached block begins with the address of the next one.
                block = unsafe { block.cast::<*mut u8>().read() };
                len += 1;
            }
            assert_eq!(len, cache.len, "blocks of {} at hand", SIZES[class]);
            assert!(len <= cache.max);
            at_hand += len as usize;
        }
        let mut empty = 0;
        let mut span = self.empty;
        while span != NONE {
            // SAFETY: an empty span is ours.
            let head = unsafe { &*head(span) };
            assert_eq!(head.used, 0);
            assert!(!head.linked, "an empty span has no size");
            (empty, span) = (empty + 1, head.next);
        }
        assert_eq!(empty, self.empties);
        assert!(self.fewest_empties <= empty && empty <= self.spans);
        let (mut used, mut owned) = (0, 0);
        let next = SHARED.lock().unwrap().next;
        for span in 0..next {
            // SAFETY: no other thread works on this heap, and of the spans of other heaps only the owner is read.
            unsafe {
                if !ptr::eq((*head(span)).owner.load(Ordering::Relaxed), self.strays) {
                    continue;
                }
                let head = &*head(span);
                let mut free = 0;
                let mut block = head.free;
                while !block.is_null() && head.used > 0 {
                    assert_eq!(span_of(block), span, "a block in another's span");
                    assert!((block.addr() - start_of(span).addr()).is_multiple_of(head.size as usize));
                    block = block.cast::<*mut u8>().read();
                    free += 1;
                }
                if head.used > 0 {
                    owned += 1;
                    used += head.used as usize;
                    assert_eq!((free + head.used) * head.size, head.fresh, "blocks of a span");
                    let has_room = free > 0 || SPAN - head.fresh as usize >= head.size as usize;
                    assert_eq!(head.linked, has_room, "linked where there is room");
                }
            }
        }
        assert_eq!(owned + self.empties, self.spans);
        used - at_hand
    }
}

/// Runs `what` on a thread with a heap.
fn with_heap<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let run = move || {
        let _owner = Owner::new().expect("address space for small blocks");
        // The heap may be that of an earlier test.
        return_all();
        what()
    };
    std::thread::spawn(run).join().unwrap()
}

fn check() -> usize {
    // SAFETY: the calling thread has a heap, and no other thread works on it.
    unsafe { (*HEAP.get()).check_invariants() }
}

/// Frees everything and returns the spans. Returns how many are left.
fn return_all() -> usize {
    tidy();
    while return_spans(7) > 0 {}
    check();
    account(true).0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(32, 1), ..ProptestConfig::default() })]
    #[test]
    fn blocks_are_nobody_elses(steps in prop::collection::vec((any::<u16>(), prop_oneof![3 => 0..1100usize, 1 => 1000..70_000usize], 0..5u32), 1..scaled(600, 30))) {
        let _alone = alone();
        with_heap(move || {
            assert_eq!(check(), 0);
            let mut held: BTreeMap<usize, (Layout, u8)> = BTreeMap::new();
            for (which, size, align) in steps {
                let layout = layout(size, 1 << align);
                if which % 3 == 0 && !held.is_empty() {
                    let nth = usize::from(which) % held.len();
                    let (&address, &(layout, mark)) = held.iter().nth(nth).unwrap();
                    held.remove(&address);
                    let block = ptr::with_exposed_provenance_mut::<u8>(address);
                    // SAFETY: taken below with this length, and not used afterwards.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(block, layout.size());
                        assert!(bytes == vec![mark; layout.size()], "written to by another");
                        give_back(block, layout);
                    }
                    continue;
                }
                for _ in 0..(which % scaled(90, 9)) {
                    let block = take(layout);
                    let ours = (1..=SMALL_MAX).contains(&size);
                    assert_eq!(!block.is_null(), ours, "{layout:?}");
                    if !ours {
                        break;
                    }
                    let at = block.expose_provenance();
                    assert!(owns(block) && at.is_multiple_of(layout.align()));
                    let before = held.range(..=at).next_back();
                    assert!(before.is_none_or(|(start, (layout, _))| start + layout.size() <= at), "given out twice");
                    assert!(held.range(at..).next().is_none_or(|(start, _)| at + size <= *start), "given out twice");
                    let mark = held.len() as u8;
                    // SAFETY: it has this length, and is ours.
                    unsafe { block.write_bytes(mark, size) };
                    held.insert(at, (layout, mark));
                }
                assert_eq!(check(), held.len());
            }
            for (address, (layout, _)) in held {
                // SAFETY: taken above, and not used afterwards.
                unsafe { give_back(ptr::with_exposed_provenance_mut(address), layout) };
            }
            assert_eq!(return_all(), 0, "spans that are empty go back");
        });
    }
}

#[test]
fn every_size_has_the_least_class_that_holds_it() {
    for size in (1..=SMALL_MAX).step_by(scaled(1, 101)) {
        for align in [1, 8, 16] {
            let class = class_of(layout(size, align)).unwrap();
            let bytes = SIZES[class] as usize;
            assert!(bytes >= size && bytes.is_multiple_of(align), "{bytes} for {size}");
            assert!(align == 16 || (SIZES[class - 1] as usize) < size, "{bytes} for {size}");
            assert!(bytes - size < (size / 8).max(16), "{bytes} for {size}");
        }
    }
    assert!(SIZES.is_sorted() && SIZES[CLASSES - 1] as usize == SMALL_MAX);
    assert!(
        class_of(layout(SMALL_MAX + 1, 8)).is_none() && class_of(layout(0, 8)).is_none() && class_of(layout(64, 32)).is_none()
    );
}

#[test]
fn what_others_free_comes_back() {
    let _alone = alone();
    with_heap(|| {
        let layout = layout(100, 8);
        let blocks: Vec<usize> = (0..scaled(5000, 500)).map(|_| take(layout).expose_provenance()).collect();
        let (to_other, from_us) = mpsc::channel::<Vec<usize>>();
        let free = move |blocks: Vec<usize>| {
            for address in blocks {
                // SAFETY: taken above, and not used afterwards.
                unsafe { give_back(ptr::with_exposed_provenance_mut(address), layout) };
            }
        };
        // One thread has no heap, the other has one of its own.
        let other = std::thread::spawn(move || {
            free(from_us.recv().unwrap());
            let rest = from_us.recv().unwrap();
            with_heap(move || {
                free(rest);
                assert_eq!(return_all(), 0);
            });
        });
        to_other.send(blocks[..scaled(2000, 200)].to_vec()).unwrap();
        to_other.send(blocks[scaled(2000, 200)..].to_vec()).unwrap();
        other.join().unwrap();
        assert_eq!(return_all(), 0);
    });
}

#[test]
fn a_thread_that_ends_leaves_its_heap_to_the_next() {
    let _alone = alone();
    let layout = layout(64, 8);
    let block = with_heap(move || take(layout).expose_provenance());
    assert!(owns(ptr::with_exposed_provenance_mut(block)));
    assert!(take(layout).is_null(), "this thread has no heap");
    // SAFETY: taken above, and not used.
    unsafe { give_back(ptr::with_exposed_provenance_mut(block), layout) };
    assert!(!owns(&raw mut *Box::new(1u8)), "the C library's");
}

#[test]
fn spans_go_back_a_few_at_a_time_and_only_when_they_were_not_wanted() {
    let _alone = alone();
    with_heap(|| {
        let layout = layout(512, 8);
        let take_all = || -> Vec<usize> { (0..SPAN / 512 * 40).map(|_| take(layout).expose_provenance()).collect() };
        let free_all = |blocks: Vec<usize>| {
            for address in blocks {
                // SAFETY: taken above, and not used afterwards.
                unsafe { give_back(ptr::with_exposed_provenance_mut(address), layout) };
            }
            tidy();
        };
        let blocks = take_all();
        assert_eq!(account(true), (40, 0));
        free_all(blocks);
        assert_eq!(account(true), (40, 0), "they were all wanted");
        assert_eq!(account(true), (40, 40), "they were not wanted since");
        let blocks = take_all();
        assert_eq!(account(false), (40, 0), "they were taken again");
        free_all(blocks);
        assert_eq!((return_spans(16), return_spans(16), return_spans(16)), (16, 16, 8));
        assert_eq!(account(true), (0, 0));
        check();
    });
}

#[test]
fn zeroed_blocks_are_zeros_whoever_had_them_before() {
    let _alone = alone();
    let _owner = Owner::new();
    for size in [24, 4096, SPAN / 2, SPAN / 2 + 1, SPAN] {
        let layout = layout(size, 8);
        let mut had = Vec::new();
        for round in 0..3 {
            for _ in 0..5 {
                let block = take_zeroed(layout);
                // SAFETY: it is ours alone, and has this length.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block, size) };
                assert!(bytes == vec![0; size], "{size} bytes, round {round}");
                bytes.fill(0xab);
                had.push(block);
            }
            if round == 1 {
                tidy();
                return_spans(2);
            }
            for block in had.drain(..) {
                // SAFETY: taken above with this layout, and not used from here on.
                unsafe { give_back(block, layout) };
            }
        }
    }
}

/// Errors that the sanitizers and Miri must find: `.ci/sanitize` and `.ci/models` run each test alone and require it to end in a report.
#[cfg(any(address_sanitizer, thread_sanitizer, miri))]
mod planted {
    use super::*;

    #[cfg(address_sanitizer)]
    #[test]
    #[ignore = "ends the process: .ci/sanitize runs it by itself"]
    fn a_block_of_a_heap_is_read_after_it_was_given_back() {
        let _alone = alone();
        let _owner = Owner::new().unwrap();
        let layout = layout(100, 8);
        let block = take_zeroed(layout);
        // SAFETY: deliberately violated: the block is read after it was freed.
        let read = unsafe {
            give_back(block, layout);
            block.add(64).read_volatile()
        };
        assert_eq!(read, 0, "nothing was found");
    }

    #[cfg(any(address_sanitizer, miri))]
    #[test]
    #[ignore = "ends the process: .ci/sanitize and .ci/models run it by itself"]
    fn a_block_of_the_c_library_is_read_after_it_was_freed() {
        let block = Box::into_raw(Box::new(0u64));
        // SAFETY: deliberately violated: the block is read after it was freed.
        let read = unsafe {
            drop(Box::from_raw(block));
            block.read_volatile()
        };
        assert_eq!(read, 0, "nothing was found");
    }

    #[cfg(any(thread_sanitizer, miri))]
    #[test]
    #[ignore = "ends the process: .ci/sanitize and .ci/models run it by itself"]
    fn two_threads_write_one_block() {
        let _alone = alone();
        let _owner = Owner::new().unwrap();
        let layout = layout(100, 8);
        let block = take_zeroed(layout).expose_provenance();
        let write = move || {
            // SAFETY: deliberately violated: another thread writes there, too.
            unsafe { ptr::with_exposed_provenance_mut::<u64>(block).write_volatile(1) };
        };
        let other = std::thread::spawn(write);
        write();
        other.join().unwrap();
        // SAFETY: taken above, and not used afterwards.
        unsafe { give_back(ptr::with_exposed_provenance_mut(block), layout) };
    }
}

/// Does not compile if an owner can be moved to, or shared with, another thread: both would let it be dropped, or used, where the
/// heap is not that thread's.
#[test]
fn an_owner_stays_on_its_thread() {
    trait Otherwise<Marker> {
        fn holds() {}
    }
    struct IsSend;
    struct IsSync;
    impl<T: ?Sized> Otherwise<()> for T {}
    impl<T: ?Sized + Send> Otherwise<IsSend> for T {}
    impl<T: ?Sized + Sync> Otherwise<IsSync> for T {}
    // Ambiguous, and so an error, if the type has one of the two traits.
    <Owner as Otherwise<_>>::holds();
}
