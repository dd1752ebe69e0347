use futures_util::StreamExt;
use futures_util::stream;
use openraft::errors::RPCError;
use openraft::network::RaftNetworkV2;
use openraft::raft::StreamAppendError;

use super::*;

fn vote() -> VoteRequest<Types> {
    VoteRequest::new(Vote::new(3, 1), Some(log_id(4)))
}

#[tokio::test]
async fn appends_overlap_and_their_results_keep_the_order() {
    const COUNT: u64 = 40;
    let answers = Answers { turn: Some(watch::Sender::new(1)), ..Answers::default() };
    let two = TestNode::with(2, Setup { answers, ..Setup::default() }).await;
    let one = TestNode::start(1).await;
    let mut client = one.client(2, two.addr).await;
    assert!(soon(client.append_entries(append(1, 1), option())).await.is_ok());
    // The last append is answered first: each waits for all that come after it.
    two.answers.turn.as_ref().unwrap().send_replace(COUNT);
    let input = stream::iter((2..=COUNT).map(|index| append(index, 1_000)));
    let results = client.stream_append(input, option()).await.unwrap();
    let results: Vec<_> = soon(results.collect()).await;
    let expected: Vec<_> = (2..=COUNT).map(|index| Ok(Ok(Some(log_id(index))))).collect();
    assert_eq!(results, expected);
    assert_eq!(*two.answers.appends.lock().unwrap(), (1..=COUNT).collect::<Vec<_>>(), "they begin in order");
    assert_eq!(one.directory().get(2).unwrap().appends.count, COUNT);
}

#[tokio::test]
async fn a_stream_sends_what_comes_later_and_ends_with_its_input() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let mut client = one.client(2, two.addr).await;
    let (sender, input) = tokio::sync::mpsc::unbounded_channel();
    let input = stream::unfold(input, |mut input| async { input.recv().await.map(|append| (append, input)) });
    let mut results = client.stream_append(Box::pin(input), option()).await.unwrap();
    for index in 1..5 {
        sender.send(append(index, 0)).unwrap();
        assert_eq!(soon(results.next()).await, Some(Ok(Ok(Some(log_id(index))))));
    }
    drop(sender);
    assert_eq!(soon(results.next()).await, None);
}

#[tokio::test]
async fn an_append_that_only_says_what_is_committed_goes_with_the_next_one() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let mut client = one.client(2, two.addr).await;
    let (sender, input) = tokio::sync::mpsc::unbounded_channel();
    let input = stream::unfold(input, |mut input| async { input.recv().await.map(|append| (append, input)) });
    let mut results = client.stream_append(Box::pin(input), option()).await.unwrap();
    let commit = |index| AppendEntriesRequest { leader_commit: Some(log_id(index)), ..append(index + 1, 0) };
    let only = |index| AppendEntriesRequest { entries: Vec::new(), ..commit(index) };
    // The first append of a stream is never held: it finds out what the other node has.
    let sent = [AppendEntriesRequest { entries: Vec::new(), ..append(1, 0) }, append(1, 0), only(1), commit(1), only(2)];
    sent.into_iter().for_each(|append| sender.send(append).unwrap());
    for index in [0, 1, 2, 2] {
        assert_eq!(soon(results.next()).await, Some(Ok(Ok(Some(log_id(index))))));
    }
    assert_eq!(*two.answers.commits.lock().unwrap(), [(0, None), (1, None), (1, Some(1)), (0, Some(2))]);
    // Nothing is held back for ever: neither at the end of the input nor before an error.
    sender.send(only(2)).unwrap();
    drop(sender);
    assert_eq!(soon(results.next()).await, Some(Ok(Ok(Some(log_id(2))))));
    assert_eq!(soon(results.next()).await, None);
}

#[tokio::test]
async fn an_answer_proves_that_the_node_followed_unless_it_knows_a_higher_vote() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let mut client = one.client(2, two.addr).await;
    let (leader, sets) = (log_id(0).leader_id, [[1, 2, 3].into()]);
    let followed = || one.directory().acks.quorum(1, leader, &sets, crate::quorum::runtime::Instant::now());
    assert_eq!(followed(), None);
    let before = crate::quorum::runtime::Instant::now();
    soon(client.append_entries(heartbeat(), option())).await.unwrap();
    let first = followed().unwrap();
    assert!(first >= before && first <= crate::quorum::runtime::Instant::now());
    two.answers.higher.store(true, Relaxed);
    soon(client.append_entries(heartbeat(), option())).await.unwrap();
    assert_eq!(followed(), Some(first));
}

#[tokio::test]
async fn an_append_of_many_bytes_is_sent_in_parts() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let mut client = one.client(2, two.addr).await;
    let large = || AppendEntriesRequest { entries: (1..=5).map(|index| entry(index, 400_000)).collect(), ..append(1, 0) };
    let results = client.stream_append(stream::iter([large()]), option()).await.unwrap();
    let results: Vec<_> = soon(results.collect()).await;
    assert_eq!(results, [2, 4, 5].map(|index| Ok(Ok(Some(log_id(index))))));
    assert_eq!(*two.answers.appends.lock().unwrap(), [1, 3, 5]);
    let response = soon(client.append_entries(large(), option())).await;
    assert_eq!(response, Ok(AppendEntriesResponse::PartialSuccess(Some(log_id(2)))));
    // An entry of its own length is sent as it is, up to the length of a frame.
    assert!(soon(client.append_entries(append(1, 20 << 20), option())).await.unwrap().is_success());
    assert!(soon(client.append_entries(append(1, 65 << 20), option())).await.is_ok(), "an entry is sent whole");
}

#[tokio::test]
async fn a_conflict_ends_a_stream_and_one_with_nothing_is_no_panic() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    two.answers.conflict.store(true, Relaxed);
    let mut client = one.client(2, two.addr).await;
    let input = stream::iter((7..9).map(|index| append(index, 1)));
    let results: Vec<_> = soon(client.stream_append(input, option()).await.unwrap().collect()).await;
    assert_eq!(results, [Ok(Err(StreamAppendError::Conflict(log_id(6))))]);
    let results: Vec<_> = soon(client.stream_append(stream::iter([heartbeat()]), option()).await.unwrap().collect()).await;
    assert!(matches!(results[..], [Err(RPCError::Network(_))]), "{results:?}");
}

#[tokio::test]
async fn errors_say_whether_to_wait() {
    let mut two = TestNode::start(2).await;
    let one = TestNode::start(1).await;
    let mut client = one.client(2, two.addr).await;
    known(one.directory(), 2, |info| info.connected).await;

    two.answers.stopped.store(true, Relaxed);
    let stopped = soon(client.append_entries(heartbeat(), option())).await;
    assert!(matches!(&stopped, Err(RPCError::Unreachable(error)) if error.to_string().contains("raft stopped")), "{stopped:?}");

    two.stop().await;
    known(one.directory(), 2, |info| !info.connected).await;
    let short = RPCOption::new(Duration::from_millis(20));
    assert!(matches!(soon(client.vote(vote(), short)).await, Err(RPCError::Unreachable(_))));
}

#[tokio::test]
async fn a_lost_connection_fails_what_is_under_way_and_a_slow_answer_is_late() {
    let answers = Answers { turn: Some(watch::Sender::new(4)), ..Answers::default() };
    let mut two = TestNode::with(2, Setup { answers, ..Setup::default() }).await;
    let one = TestNode::start(1).await;
    let mut client = one.client(2, two.addr).await;
    known(one.directory(), 2, |info| info.connected).await;
    assert!(soon(client.append_entries(append(4, 1), option())).await.is_ok());
    let late = soon(client.append_entries(append(5, 1), RPCOption::new(Duration::from_millis(20)))).await;
    assert!(matches!(late, Err(RPCError::Timeout(_))), "{late:?}");
    let arrived = async {
        while two.answers.appends.lock().unwrap().len() < 3 {
            tokio::task::yield_now().await;
        }
        two.shutdown = None;
    };
    let lost = async {
        let mut results = client.stream_append(stream::iter([append(6, 1)]), option()).await.unwrap();
        (results.next().await, results.next().await)
    };
    let ((lost, end), ()) = soon(async { tokio::join!(lost, arrived) }).await;
    assert!(matches!(lost, Some(Err(RPCError::Network(_)))), "{lost:?}");
    assert_eq!(end, None);
}

#[tokio::test]
async fn nodes_connect_again_after_a_restart_and_at_another_address() {
    let mut two = TestNode::start(2).await;
    let one = TestNode::start(1).await;
    one.meet(&[(2, two.addr)]);
    known(one.directory(), 2, |info| info.connected).await;
    two.stop().await;
    known(one.directory(), 2, |info| !info.connected).await;
    let two = TestNode::with(2, Setup { addr: Some(two.addr), ..Setup::default() }).await;
    known(one.directory(), 2, |info| info.connected).await;
    assert_eq!(known(two.directory(), 1, |info| info.inbound == 1).await.inbound, 1);

    let moved = TestNode::start(2).await;
    one.meet(&[(2, moved.addr)]);
    known(moved.directory(), 1, |info| info.inbound == 1).await;
    known(two.directory(), 1, |info| info.inbound == 0).await;
    one.meet(&[]);
    known(moved.directory(), 1, |info| info.inbound == 0).await;
    let info = known(one.directory(), 2, |info| !info.connected && info.addr.is_none()).await;
    assert!(info.hello.is_some(), "what was known stays known");
}

#[tokio::test]
async fn a_node_without_a_vote_says_what_it_has_and_gives_nothing() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let mut client = one.client(2, two.addr).await;
    two.admission.set(Participation::Follows);
    for told in [soon(client.vote(vote(), option())).await, soon(client.pre_vote(vote(), option())).await] {
        assert!(told.as_ref().is_ok_and(|told| !told.vote_granted), "{told:?}");
    }
    assert_eq!(two.answers.votes.load(Relaxed), 0, "only what changes nothing is asked of it");
    let request = TransferLeaderRequest::new(Vote::new_committed(3, 1), 2, None);
    let refused = soon(client.transfer_leader(request.clone(), option())).await;
    assert!(matches!(&refused, Err(RPCError::Unreachable(error)) if error.to_string().contains("does not lead")), "{refused:?}");
    assert!(soon(client.append_entries(heartbeat(), option())).await.unwrap().is_success());
    // It gives its vote to those that have enough.
    for (least, given) in [(5, false), (4, true)] {
        two.admission.set_least(Some(log_id(least)));
        assert_eq!(soon(client.vote(vote(), option())).await.unwrap().vote_granted, given);
    }
    assert_eq!(two.answers.votes.load(Relaxed), 1);
    two.admission.set(Participation::Nothing);
    assert!(soon(client.append_entries(heartbeat(), option())).await.is_err());
    two.admission.set(Participation::Votes);
    assert!(soon(client.vote(vote(), option())).await.unwrap().vote_granted);
    assert!(soon(client.pre_vote(vote(), option())).await.unwrap().vote_granted);
    assert_eq!(soon(client.transfer_leader(request, option())).await, Ok(Ok(())));
}

#[tokio::test]
async fn everything_ends_with_the_shutdown() {
    let (mut one, mut two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.meet(&[(2, two.addr)]);
    two.meet(&[(1, one.addr)]);
    known(one.directory(), 2, |info| info.connected && info.inbound == 1).await;
    one.stop().await;
    two.stop().await;
    assert!(tokio::net::TcpStream::connect(one.addr).await.is_err());
    let handle = tokio::runtime::Handle::current();
    soon(async {
        while handle.metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_asks_the_leader_to_hand_over() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    assert_eq!(one.transport.ask_hand_over(2, None).await, Err("node 2, which leads, does not answer".to_owned()));
    one.meet(&[(2, two.addr)]);
    for to in [Some(1), None] {
        assert_eq!(soon(one.transport.ask_hand_over(2, to)).await, Ok(()));
    }
    assert_eq!(*two.hand_overs.lock().unwrap(), [Some(1), None]);
}
