//! The worker with and without a thread: full disks, failed syncs, groups, and files of the system.

use std::sync::atomic::Ordering;

use futures_util::{StreamExt, future};
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;

use super::*;
use crate::persist::disk::simulated::{Injected, SimulatedDisk};
use crate::quorum::store::FolderLock;
use crate::server::durable::folder::Folder;

/// Number of operations that opening an empty folder takes.
fn operations() -> u64 {
    let mut disk = SimulatedDisk::new(1);
    drop(LogStore::open(&mut disk, options(Planted::Nothing)).unwrap());
    disk.operations()
}

#[test]
fn a_full_disk_delays_and_loses_nothing() {
    let mut disk = SimulatedDisk::new(1);
    disk.fail_at(operations(), Injected::Full);
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    let (sender, mut flushed) = Types::oneshot();
    store.order_append(vec![entry(log_id(1, 0), 1, 100)], IOFlushed::signal(sender)).unwrap();
    worker.turn();
    assert!((&mut flushed).now_or_never().is_none());
    assert!(store.progress().stuck.load(Ordering::Relaxed));
    assert_eq!(read(&store, &mut worker, 0, 9, None).unwrap().len(), 1, "it is in memory");
    // The disk has taken a part, and may take some more before it has room.
    let told = (0..1000).find_map(|_| {
        assert!(worker.turn());
        (&mut flushed).now_or_never()
    });
    assert!(matches!(told, Some(Ok(Ok(())))));
    assert!(!store.progress().stuck.load(Ordering::Relaxed));
}

#[test]
fn after_a_failed_sync_nothing_is_tried_again() {
    let mut disk = SimulatedDisk::new(1);
    (1..20).for_each(|more| disk.fail_at(operations() + more, Injected::Failed));
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    assert!(!vote(&store, &mut worker, Vote::new(1, 1)));
    assert!(store.progress().failed.load(Ordering::Relaxed));
    assert_eq!(store.order_vote(Vote::new(2, 1)).unwrap_err().to_string(), "Input/output error");
    assert!(worker.turn());
    worker.tidy();
    drop((store, worker));
    assert!(disk.operations() <= operations() + 3, "{} operations", disk.operations());
}

#[test]
fn one_sync_serves_all_that_waits() {
    let (store, mut worker) = LogStore::open(SimulatedDisk::new(1), options(Planted::Nothing)).unwrap();
    let mut waiting = Vec::new();
    for index in 0..10 {
        let (sender, flushed) = Types::oneshot();
        store.order_append(vec![entry(log_id(1, index), index, 10)], IOFlushed::signal(sender)).unwrap();
        waiting.push(flushed);
    }
    let voted = store.order_vote(Vote::new(2, 1)).unwrap();
    worker.turn();
    assert!(waiting.into_iter().all(|flushed| matches!(flushed.now_or_never(), Some(Ok(Ok(()))))));
    assert!(matches!(voted.now_or_never(), Some(Ok(Ok(())))));
    let progress = store.progress();
    assert_eq!((progress.syncs.read().count, progress.entries.load(Ordering::Relaxed)), (1, 10));
}

#[test]
fn memory_is_bounded_and_purged_segments_are_removed() {
    let mut disk = SimulatedDisk::new(1);
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    for index in 0..100 {
        assert!(append(&store, &mut worker, vec![entry(log_id(1, index), index, 100)]));
        assert!(store.progress().cached_bytes.load(Ordering::Relaxed) <= 700);
    }
    let before = store.progress().segments.load(Ordering::Relaxed);
    let limited = read(&store, &mut worker, 0, 100, Some(1000)).unwrap();
    assert!((2..10).contains(&limited.len()), "{} entries have 1000 bytes", limited.len());
    assert_eq!(read(&store, &mut worker, 5, 100, Some(1)).unwrap().len(), 1, "at least one");
    store.order_purge(log_id(1, 90)).unwrap();
    worker.turn();
    let after = store.progress().segments.load(Ordering::Relaxed);
    assert!(before > 5 && after <= 2, "{before} segments, {after} after the purge");
    assert_eq!(read(&store, &mut worker, 0, 100, None).unwrap().len(), 9);
    drop((store, worker));
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    assert_eq!(read(&store, &mut worker, 0, 100, None).unwrap().len(), 9);
}

#[test]
fn a_thread_writes_a_folder_of_the_system() {
    let path = std::env::temp_dir().join(format!("portcullis-quorum-store-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let open = || {
        let folder = Folder::open(&path).unwrap();
        let lock = FolderLock::acquire(&path).unwrap();
        let (store, worker) = LogStore::open(folder, Options { lock: Some(lock), ..options(Planted::Nothing) }).unwrap();
        let thread = worker.spawn(&store).unwrap();
        (store, thread)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for start in 0..3 {
        let (mut store, thread) = open();
        runtime.block_on(async {
            store.save_vote(&Vote::new(start + 1, 1)).await.unwrap();
            let mut waiting = Vec::new();
            for index in start * 50..start * 50 + 50 {
                let (sender, flushed) = Types::oneshot();
                store.append([entry(log_id(1, index), index, 50)], IOFlushed::signal(sender)).await.unwrap();
                waiting.push(flushed);
            }
            future::join_all(waiting).await.into_iter().for_each(|flushed| flushed.unwrap().unwrap());
            store.save_committed(Some(log_id(1, start * 50 + 20))).await.unwrap();
            let entries: Vec<_> = store.entries_stream(..).await.map(Result::unwrap).collect().await;
            assert!(numbers(&entries).into_iter().eq((0..start * 50 + 50).map(|index| (log_id(1, index), index))));
        });
        assert!(FolderLock::acquire(&path).is_err());
        assert!(store.progress().syncs.read().p50_us > 0);
        thread.close().unwrap();
        assert!(store.order_purge(log_id(1, 1)).is_err(), "it is closed");
        let (mut store, thread) = open();
        runtime.block_on(async {
            assert_eq!(store.read_vote().await.unwrap(), Some(Vote::new(start + 1, 1)));
            assert_eq!(store.read_committed().await.unwrap(), Some(log_id(1, start * 50 + 20)));
        });
        thread.close().unwrap();
    }
    std::fs::remove_dir_all(&path).unwrap();
}
