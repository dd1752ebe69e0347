//! openraft's own suite for storages.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, TryStreamExt, future};
use openraft::alias::{SnapshotOf, StoredMembershipOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{OptionalSend, StorageError};

use super::*;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::quorum::store::LogThread;
use crate::quorum::types::SnapshotMeta;

/// A state machine that knows only what it was given last.
#[derive(Clone, Default)]
struct Machine {
    applied: SnapshotMeta,
    snapshot: Arc<Mutex<Option<SnapshotMeta>>>,
}

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        *self.snapshot.lock().unwrap() = Some(self.applied.clone());
        Ok(Snapshot { meta: self.applied.clone(), snapshot: () })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembershipOf<Types>)> {
        Ok((self.applied.last_log_id, self.applied.last_membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            self.applied.last_log_id = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                self.applied.last_membership = openraft::StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, (): ()) -> io::Result<()> {
        self.applied = meta.clone();
        *self.snapshot.lock().unwrap() = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        Ok(self.snapshot.lock().unwrap().clone().map(|meta| Snapshot { meta, snapshot: () }))
    }
}

struct Builder;

impl StoreBuilder<Types, LogStore, Machine, LogThread> for Builder {
    async fn build(&self) -> Result<(LogThread, LogStore, Machine), StorageError<Types>> {
        let (store, worker) = LogStore::open(SimulatedDisk::new(1), options(Planted::Nothing)).unwrap();
        let thread = worker.spawn(&store).unwrap();
        Ok((thread, store, Machine::default()))
    }
}

type Tests = Suite<Types, LogStore, Machine, Builder, LogThread>;

/// Runs tests of the suite at the same time: some of them sleep for seconds.
macro_rules! suite {
    ($($test:ident)*) => {
        future::try_join_all([$(async {
            let (thread, store, machine) = Builder.build().await.unwrap();
            Tests::$test(store, machine).await.unwrap_or_else(|error| panic!("{}: {error}", stringify!($test)));
            thread.close()
        }.boxed_local()),*]).await.unwrap();
    };
}

#[test]
fn the_suite_of_openraft_passes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        suite!(last_membership_in_log_initial last_membership_in_log last_membership_in_log_multi_step get_membership_initial
            get_membership_from_log_and_empty_sm get_membership_from_empty_log_and_sm get_membership_from_log_le_sm_last_applied
            get_membership_from_log_gt_sm_last_applied_1 get_membership_from_log_gt_sm_last_applied_2
            get_initial_state_without_init get_initial_state_membership_from_empty_log_and_sm
            get_initial_state_membership_from_sm_inlog_is_smaller get_initial_state_membership_from_log_insm_is_smaller
            get_initial_state_with_state get_initial_state_last_log_gt_sm get_initial_state_last_log_lt_sm
            get_initial_state_inverted_log_order get_initial_state_conflict_at_same_index get_initial_state_log_ids
            get_initial_state_re_apply_committed save_vote get_log_entries limited_get_log_entries leader_bounded_stream
            entries_stream try_get_log_entry log_reader_reads_new_entries initial_logs get_log_state get_log_id last_id_in_log
            last_applied_state purge_logs_upto_0 purge_logs_upto_5 purge_logs_upto_20 delete_logs_after_11 delete_logs_after_5
            delete_logs_after_0 delete_logs_after_none append_to_log snapshot_meta snapshot_meta_optional apply_single
            apply_multiple);
        Tests::transfer_snapshot(&Builder).await.unwrap();
        // The list above is the suite's; all of it, one after the other, takes ten seconds.
        if std::env::var_os("PORTCULLIS_QUORUM_SEEDS").is_some() {
            Tests::test_all(Builder).await.unwrap();
        }
    });
}
