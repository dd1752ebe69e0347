//! Appends in a stream: each is sent as soon as there is one, whether or not those before it have been answered.
//!
//! After each commit openraft makes an append without entries, which only says what is committed. It is held for a moment, and the next
//! append with entries says the same: under load that halves the number of messages, and no client waits for what it says.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError, Timeout, Unreachable};
use openraft::network::RPCTypes;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult};
use tokio::sync::oneshot;

use crate::quorum::net::frame::{Kind, decode_message, encode_message};
use crate::quorum::net::link::{Answer, Link, Peer};
use crate::quorum::runtime::{Instant, Sleep, sleep};
use crate::quorum::sane;
use crate::quorum::types::{Entry, LogId, NodeId, Types, Vote};

type Append = AppendEntriesRequest<Types>;
type Failure = RPCError<Types>;

/// Maximum number of appends without an answer in a stream, and of their bytes. No more is read from the log until answers come.
const WINDOW: (usize, usize) = (64, 16 << 20);

/// Length in bytes above which an append is sent in several parts.
const PART_MAX: usize = 1 << 20;

/// How long an append that only says what is committed waits for entries that go with it. A follower applies what it confirmed by that
/// much later.
const HELD: Duration = Duration::from_millis(5);

/// Bytes of an entry besides its batch, at most, for estimates.
const ENTRY_OVERHEAD: usize = 64;

/// An append that has been sent.
pub struct Sent {
    answer: oneshot::Receiver<Answer>,
    vote: Vote,
    at: Instant,
    bytes: usize,
    prev: Option<LogId>,
    last: Option<LogId>,
}

impl Sent {
    /// Sends an append. `None` if it is too long for a frame.
    pub fn new(link: &Link, append: &Append) -> Option<Sent> {
        let last = append.entries.last().map(RaftEntry::log_id).or(append.prev_log_id);
        let frame = encode_message(Kind::Append, 0, append, length(append))?;
        let bytes = frame.len();
        Some(Sent { at: Instant::now(), answer: link.send(frame), vote: append.vote, bytes, prev: append.prev_log_id, last })
    }

    /// Polls for the answer.
    pub fn poll(&mut self, peer: &Peer, cx: &mut Context<'_>) -> Poll<Result<AppendEntriesResponse<Types>, Failure>> {
        let answered = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready(read_answer(peer.node(), answered).and_then(|response: AppendEntriesResponse<Types>| {
            peer.judge(sane::appended(&response, self.prev.as_ref(), self.last.as_ref()))
                .map_err(|nonsense| NetworkError::new(&nonsense))?;
            peer.traffic().appends.record(self.at.elapsed());
            if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
                peer.acks().record(peer.node(), &self.vote, self.at);
            }
            Ok(response)
        }))
    }

    fn result(self, response: AppendEntriesResponse<Types>) -> StreamAppendResult<Types> {
        response.into_stream_result(self.prev, self.last)
    }
}

/// Reads the answer to a request.
pub fn read_answer<T: serde::de::DeserializeOwned>(
    node: NodeId,
    answered: Result<Answer, oneshot::error::RecvError>,
) -> Result<T, Failure> {
    match answered {
        Err(_) => Err(NetworkError::from_string(format!("the connection to node {node} was lost")).into()),
        Ok(Err(reason)) => Err(Unreachable::from_string(format!("node {node}: {reason}")).into()),
        Ok(Ok(body)) => decode_message(&body).map_err(|malformed| NetworkError::new(&malformed).into()),
    }
}

fn length(append: &Append) -> usize {
    append.entries.iter().map(entry_length).sum::<usize>() + ENTRY_OVERHEAD
}

fn entry_length(entry: &Entry) -> usize {
    let batch = if let openraft::EntryPayload::Normal(batch) = &entry.payload { batch.bytes.len() } else { 0 };
    batch + ENTRY_OVERHEAD
}

/// Cuts an append into parts of bounded length, each of at least one entry.
pub fn parts(mut append: Append) -> VecDeque<Append> {
    let mut parts = VecDeque::new();
    let mut rest = std::mem::take(&mut append.entries).into_iter().peekable();
    let mut prev = append.prev_log_id;
    loop {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while let Some(entry) = rest.next_if(|entry| entries.is_empty() || bytes + entry_length(entry) <= PART_MAX) {
            bytes += entry_length(&entry);
            entries.push(entry);
        }
        let last = entries.last().map(RaftEntry::log_id).or(prev);
        parts.push_back(Append { prev_log_id: prev, entries, ..append.clone() });
        prev = last;
        if rest.peek().is_none() {
            return parts;
        }
    }
}

/// Sends appends and returns their results in the same order.
///
/// `me`: the number of this node. `patience`: how long it waits for a connection, and for the next answer.
pub fn stream<S>(
    peer: Arc<Peer>,
    me: NodeId,
    input: S,
    patience: Duration,
) -> impl Stream<Item = Result<StreamAppendResult<Types>, Failure>> + Send
where
    S: Stream<Item = Append> + Send + Unpin + 'static,
{
    futures_util::stream::once(async move {
        match peer.connection(patience).await {
            Some(link) => Ok(Appends::new(peer, me, link, input, patience)),
            None => Err(Unreachable::from_string(format!("there is no connection to node {}", peer.node())).into()),
        }
    })
    .flat_map(|opened: Result<_, Failure>| match opened {
        Ok(mut appends) => poll_stream(move |cx| appends.poll_next(cx)).left_stream(),
        Err(failure) => futures_util::stream::once(std::future::ready(Err(failure))).right_stream(),
    })
}

fn poll_stream<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<Option<T>>) -> impl Stream<Item = T> {
    futures_util::stream::poll_fn(move |cx| poll(cx))
}

struct Appends<S> {
    peer: Arc<Peer>,
    me: NodeId,
    link: Link,
    /// `None` after its end.
    input: Option<S>,
    /// Parts of an append that are yet to be sent.
    parts: VecDeque<Append>,
    sent: VecDeque<Sent>,
    sent_bytes: usize,
    /// The last entry that was sent in this stream; `None` before the first append.
    last: Option<Option<LogId>>,
    /// An append without entries that waits for some.
    held: Option<Append>,
    /// Runs from the moment at which one was held.
    hold: Pin<Box<Sleep>>,
    patience: Duration,
    /// When something was sent or answered last.
    progress: Instant,
    alarm: Pin<Box<Sleep>>,
    ended: bool,
}

impl<S: Stream<Item = Append> + Unpin> Appends<S> {
    fn new(peer: Arc<Peer>, me: NodeId, link: Link, input: S, patience: Duration) -> Appends<S> {
        Appends {
            peer,
            me,
            link,
            input: Some(input),
            parts: VecDeque::new(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            last: None,
            held: None,
            hold: Box::pin(sleep(Duration::ZERO)),
            patience,
            progress: Instant::now(),
            alarm: Box::pin(sleep(patience)),
            ended: false,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<StreamAppendResult<Types>, Failure>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let result = match self.poll_result(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(result) => result,
        };
        // What follows an error was sent for nothing: the log is not where the sender thought, or nobody listens.
        self.ended = !matches!(result, Some(Ok(Ok(_))));
        Poll::Ready(result)
    }

    fn poll_result(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<StreamAppendResult<Types>, Failure>>> {
        if let Err(failure) = self.send_more(cx) {
            return Poll::Ready(Some(Err(failure)));
        }
        let Some(first) = self.sent.front_mut() else {
            let ended = self.input.is_none() && self.parts.is_empty() && self.held.is_none();
            return if ended { Poll::Ready(None) } else { Poll::Pending };
        };
        match first.poll(&self.peer, cx) {
            Poll::Pending => {
                ready!(self.poll_late(cx));
                let timeout =
                    Timeout { action: RPCTypes::AppendEntries, id: self.me, target: self.peer.node(), timeout: self.patience };
                Poll::Ready(Some(Err(timeout.into())))
            }
            Poll::Ready(answer) => {
                self.progress = Instant::now();
                let Some(sent) = self.sent.pop_front() else { return Poll::Ready(None) };
                self.sent_bytes -= sent.bytes;
                Poll::Ready(Some(answer.map(|response| sent.result(response))))
            }
        }
    }

    /// Sends what the input has and the window allows.
    fn send_more(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while self.sent.len() < WINDOW.0 && self.sent_bytes < WINDOW.1 {
            let Some(append) = self.parts.pop_front() else {
                match self.input.as_mut().map(|input| input.poll_next_unpin(cx)) {
                    Some(Poll::Ready(Some(append))) => self.parts = parts(append),
                    Some(Poll::Ready(None)) => self.input = None,
                    Some(Poll::Pending) if self.held.is_some() && self.hold.as_mut().poll(cx).is_pending() => break,
                    Some(Poll::Pending) | None => match self.held.take() {
                        Some(held) => self.send(&held)?,
                        None => break,
                    },
                }
                continue;
            };
            if append.entries.is_empty() && self.last == Some(append.prev_log_id) {
                if self.held.replace(append).is_none() {
                    self.hold.set(sleep(HELD));
                }
                continue;
            }
            // It says what the held one says, and its answer is an answer to both.
            self.held = None;
            self.send(&append)?;
        }
        Ok(())
    }

    fn send(&mut self, append: &Append) -> Result<(), Failure> {
        if self.sent.is_empty() {
            self.progress = Instant::now();
        }
        let Some(sent) = Sent::new(&self.link, append) else {
            return Err(Unreachable::from_string("an entry is too long to be sent").into());
        };
        self.last = Some(sent.last);
        self.sent_bytes += sent.bytes;
        self.sent.push_back(sent);
        Ok(())
    }

    /// Ready if the next answer is late. One timer serves all: it is set anew only when it has run.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let rest = self.patience.saturating_sub(self.progress.elapsed());
            if rest.is_zero() {
                return Poll::Ready(());
            }
            self.alarm.set(sleep(rest));
        }
    }
}

/// Waits for the answer to one append.
pub async fn answer(sent: &mut Sent, peer: &Peer) -> Result<AppendEntriesResponse<Types>, Failure> {
    poll_fn(|cx| sent.poll(peer, cx)).await
}
