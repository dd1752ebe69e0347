//! The executor's heap, in a program that counts its memory. This test has its own program: a heap outlives its thread and is
//! reused by the next one, with blocks that other threads may free later, so its counters would not stand still beside other
//! servers.

#![allow(clippy::unwrap_used)]

mod common;

use common::reserved;
use portcullis::server::heap::allocator;
use portcullis::server::heap::allocator::Counting;
use portcullis::testing::TestServer;

// As in the program: the server measures the memory that its thread allocated.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_executor_has_a_heap_of_its_own() {
    let _server = TestServer::builder().frozen(true).start();
    assert!(reserved::as_much_as_the_memory());
    let run = || {
        // So that some memory is in use.
        let _large = std::hint::black_box(vec![0u8; 1 << 20]);
        let heap = allocator::own_heap();
        assert!(heap.is_some() && allocator::own_heap().is_none(), "one is enough");
        let account = || (allocator::balance().unwrap(), allocator::library_balance().unwrap());
        let before = account();
        let block = std::hint::black_box(vec![1u8; 1000]);
        assert_eq!(account(), (before.0 + 1000, before.1));
        drop(heap);
        // A block may outlive the heap's thread.
        assert!(block.iter().all(|&byte| byte == 1));
    };
    std::thread::spawn(run).join().unwrap();
}
