use openraft::EntryPayload;
use openraft::errors::RPCError;
use openraft::network::RaftNetworkV2;

use super::*;
use crate::quorum::append_check::{Here, LeadersLog, Said, fits};
use crate::quorum::sane::{INDEX_MAX, TERM_FLOOR, append as check, appended, term_max, vote as check_vote};

fn id(term: u64, node_id: u64, index: u64) -> LogId {
    openraft::LogId::new(openraft::impls::leader_id_adv::LeaderId { term, node_id }, index)
}

fn wrong(change: impl FnOnce(&mut AppendEntriesRequest<Types>)) -> String {
    let mut request = append(5, 1);
    request.entries.push(entry(6, 1));
    change(&mut request);
    check(&request, 1).err().map_or_else(|| "nothing".to_owned(), |nonsense| nonsense.to_string())
}

#[test]
fn the_largest_term_is_far_and_goes_on() {
    for (unix_ms, max) in [(0, TERM_FLOOR), (TERM_FLOOR + 5, TERM_FLOOR + 5), (4_000_000_000_000, 4_000_000_000_000)] {
        assert_eq!(term_max(unix_ms), max);
    }
    let vote_in = |term| check_vote(&VoteRequest::new(Vote::new(term, 1), None), 1).map_err(|nonsense| nonsense.to_string());
    assert_eq!((vote_in(1), vote_in(TERM_FLOOR)), (Ok(()), Ok(())));
    let far = vote_in(u64::MAX - 1).unwrap_err();
    assert!(far.ends_with(": term 18446744073709551614"), "{far}");
}

#[test]
fn an_append_is_in_the_senders_name_and_without_gaps() {
    assert_eq!(wrong(|_| ()), "nothing");
    for (says, told) in [
        ("in the name of node 2", wrong(|request| request.vote = Vote::new_committed(1, 2))),
        ("does not lead", wrong(|request| request.vote = Vote::new(1, 1))),
        ("behind", wrong(|request| request.entries[0] = entry(50, 1))),
        ("behind", wrong(|request| request.entries.swap(0, 1))),
        ("behind nothing", wrong(|request| request.prev_log_id = None)),
        ("later than vote", wrong(|request| request.entries[1].log_id = id(2, 1, 6))),
        ("later than vote", wrong(|request| request.leader_commit = Some(id(1, 2, 6)))),
        ("entry", wrong(|request| request.prev_log_id = Some(id(1, 1, u64::MAX)))),
        ("entry", wrong(|request| request.leader_commit = Some(id(1, 1, INDEX_MAX + 1)))),
        ("members", wrong(|request| request.entries[1].payload = EntryPayload::Membership(openraft::Membership::default()))),
    ] {
        assert!(told.to_lowercase().contains(says), "{told}, not {says}");
    }
}

#[test]
fn an_append_contradicts_nothing_that_is_committed() {
    let at = |index| (index <= 12).then(|| id(1, 1, index));
    let own = Vote::new_committed(3, 1);
    let committed = id(2, 2, 9);
    let committed = Some(&committed);
    let here = Here { vote: &own, committed, matched: None, at };
    let told = |term, prev: Option<LogId>, ids: &[LogId]| {
        let ids = prev.iter().chain(ids).copied().collect();
        fits(&Said { ids, commit: None }, &Vote::new_committed(term, 2), &here).is_ok()
    };
    assert!(told(3, Some(id(1, 1, 8)), &[id(2, 2, 9), id(3, 2, 10)]) && told(3, Some(id(7, 7, 10)), &[]));
    assert!(!told(3, Some(id(1, 2, 8)), &[]) && !told(3, None, &[id(1, 1, 0), id(2, 1, 1)]));
    assert!(!told(3, Some(id(1, 1, 8)), &[id(3, 2, 9)]), "in the place of the last one");
    assert!(told(2, Some(id(1, 2, 8)), &[]), "openraft refuses the vote");
    let said = |prev: Option<LogId>, commit| Said { ids: prev.into_iter().collect(), commit };
    let nowhere = Here { at: |_| None, vote: &own, committed, matched: None };
    let purged = |term| fits(&said(Some(id(term, 2, 3)), None), &own, &nowhere).is_ok();
    assert!(purged(2) && !purged(3), "what is here no longer is no later than what is committed");
    let passed_on = |commit| fits(&said(None, Some(commit)), &own, &here).unwrap().is_some();
    assert!(passed_on(id(1, 1, 10)) && !passed_on(id(2, 2, 11)), "another one is here");
    for behind in [id(2, 2, 13), id(3, 1, 20), id(1, 1, 1 << 25), id(2, 1, 13)] {
        assert!(!passed_on(behind), "{behind} is not here");
        assert!(fits(&said(Some(behind), Some(behind)), &own, &here).unwrap().is_some(), "{behind} comes with the append");
    }
    let kept = Here { vote: &own, committed, matched: Some(id(1, 1, 11)), at };
    let told = |prev| fits(&said(Some(prev), None), &own, &kept).is_ok();
    assert!(told(id(1, 1, 10)) && told(id(3, 1, 12)), "what is here and what comes behind it");
    assert!(!told(id(1, 2, 10)) && !told(id(1, 2, 11)), "in the place of what the leader has had this node keep");
}

#[test]
fn what_a_leader_says_of_its_log_is_in_one_order() {
    let mut log = LeadersLog::default();
    let vote = Vote::new_committed(3, 1);
    assert!(log.note(&vote, [id(2, 2, 6), id(3, 1, 7), id(1, 1, 2), id(3, 1, 30)]).is_ok());
    for wrong in [id(1, 1, 1 << 25), id(2, 2, 7), id(2, 1, 1), id(3, 1, 6), id(2, 3, 40)] {
        let mut log = log.clone();
        assert!(log.note(&vote, [wrong]).is_err(), "{wrong}");
    }
    assert!(log.note(&vote, [id(1, 1, 1), id(2, 2, 5)]).is_ok());
    assert!(log.note(&Vote::new_committed(2, 2), [id(1, 1, 1 << 25)]).is_ok(), "openraft refuses the vote");
    assert!(log.note(&Vote::new_committed(4, 1), [id(1, 1, 1 << 25)]).is_ok(), "another leader has another log");
}

#[test]
fn what_is_known_to_be_here_is_one_run_up_to_the_last_match() {
    let (mut log, vote) = (LeadersLog::default(), Vote::new_committed(3, 1));
    log.note_match(&vote, &[id(2, 2, 6)]);
    assert!(log.matched(&vote).is_none(), "nothing was heard of that leader");
    log.note(&vote, []).unwrap();
    log.note_match(&vote, &[id(2, 2, 5), id(2, 2, 6), id(3, 1, 7), id(3, 1, 8)]);
    log.note_match(&vote, &[id(3, 1, 8), id(3, 1, 9)]);
    log.note_match(&vote, &[id(2, 2, 6)]);
    assert_eq!(log.matched(&vote), Some(id(3, 1, 9)));
    let is_here = |id| log.has(&vote, &id);
    assert!((7..10).all(|index| is_here(id(3, 1, index))));
    assert!(!is_here(id(2, 2, 6)) && !is_here(id(3, 1, 10)) && !is_here(id(3, 2, 8)));
    log.note_match(&vote, &[id(3, 1, 12)]);
    assert!(log.has(&vote, &id(3, 1, 12)) && !log.has(&vote, &id(3, 1, 9)), "between them there may be anything");
    assert!(log.matched(&Vote::new_committed(4, 1)).is_none());
}

#[test]
fn an_answer_is_about_what_was_sent() {
    let (prev, last) = (log_id(4), log_id(6));
    let is_right = |response| appended(&response, Some(&prev), Some(&last)).is_ok();
    for upto in [4, 5, 6] {
        assert!(is_right(AppendEntriesResponse::PartialSuccess(Some(log_id(upto)))));
    }
    for upto in [None, Some(log_id(3)), Some(log_id(7))] {
        assert!(!is_right(AppendEntriesResponse::PartialSuccess(upto)));
    }
    assert!(is_right(AppendEntriesResponse::Conflict) && is_right(AppendEntriesResponse::HigherVote(Vote::new(9, 2))));
    assert!(!is_right(AppendEntriesResponse::HigherVote(Vote::new(u64::MAX, 2))));
    assert!(appended(&AppendEntriesResponse::Conflict, None, Some(&last)).is_err());
}

#[tokio::test]
async fn a_request_that_makes_no_sense_ends_the_connection_and_is_answered_by_nobody() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let mut client = one.client(2, two.addr).await;
    let last = VoteRequest::new(Vote::new(u64::MAX - 1, 1), Some(log_id(4)));
    assert!(check_vote(&last, 1).is_err());
    let lost = soon(client.vote(last, option())).await;
    assert!(matches!(lost, Err(RPCError::Network(_))), "{lost:?}");
    assert_eq!(two.answers.votes.load(Relaxed), 0);
    let told = known(one.directory(), 2, |info| info.failure.is_some() || info.connected).await;
    assert!(told.failure.is_none_or(|reason| reason.contains("makes no sense")));
    // It connects again, and what makes sense is answered.
    assert!(soon(client.append_entries(append(1, 1), option())).await.is_ok());
}
