//! The connections that other nodes open to this one: takes their requests, and returns the answers as they come.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::quorum::admission::{Admission, Participation};
use crate::quorum::append_check::LeaderCheck;
use crate::quorum::cluster::{Side, Standing};
use crate::quorum::net::dial::{self, Listener};
use crate::quorum::net::directory::Inbound;
use crate::quorum::net::frame::{Frame, Kind, Malformed, decode_beginning, decode_message, encode, encode_message};
use crate::quorum::net::handler::{Failed, Handler};
use crate::quorum::net::hello::{self, Failure, Hello, Purpose, Refusal, reason};
use crate::quorum::net::keeper::Shared;
use crate::quorum::net::link;
use crate::quorum::net::quiet::Quiet;
use crate::quorum::net::snapshot::{self, SnapshotSink};
use crate::quorum::net::transport::HandOver;
use crate::quorum::net::wire::{Socket, Wire};
use crate::quorum::runtime::{Ticks, sleep, spawn};
use crate::quorum::sane::{self, Nonsense};
use crate::quorum::types::{LogId, NodeId, Types, Vote};

/// Maximum number of requests of a connection that are under way, and of their bytes. No more is read until answers are there.
const UNDER_WAY_MAX: (usize, usize) = (256, 64 << 20);

/// Number of bytes of answers that wait to be sent above which no more requests are read.
const QUEUE_MAX: usize = 1 << 20;

/// Interval at which a connection's silence is measured, and the number of intervals after which it is closed.
const SILENCE: (Duration, u32) = (Duration::from_millis(500), 10);

/// Maximum number of snapshots that arrive at the same time.
const SNAPSHOTS_MAX: usize = 2;

/// Maximum number of nodes that this node has heard of. It bounds what a node without a secret can be made to remember.
const NODES_MAX: usize = 1_000;

/// Pause after `accept` fails, which it does when descriptors or memory are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the connections share.
pub struct Service<H, K> {
    /// The transport.
    pub shared: Arc<Shared>,
    /// Answers requests.
    pub handler: H,
    /// Takes snapshots.
    pub sink: K,
    /// What this node takes part in.
    pub admission: Arc<Admission>,
    /// Orders a hand-over of the leadership.
    pub hand_over: HandOver,
    /// Maximum number of connections.
    pub connections_max: usize,
}

/// Accepts connections until everything is to end.
pub async fn serve<H: Handler, K: SnapshotSink>(listener: impl Listener, service: Arc<Service<H, K>>) {
    let places = Arc::new(Semaphore::new(service.connections_max));
    let snapshots = Arc::new(Semaphore::new(SNAPSHOTS_MAX));
    let quiet = Arc::new(Quiet::default());
    loop {
        let accepted = tokio::select! {
            biased;
            () = service.shared.ended() => return,
            accepted = listener.accept() => accepted,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log(&quiet, &format!("Accepting a node's connection failed: {error}"));
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            Wire::new(socket).send_refusal(&Refusal::Full.to_string()).await;
            log(&quiet, &format!("A node's connection was refused: {}", Refusal::Full));
            continue;
        };
        let (service, snapshots, quiet) = (service.clone(), snapshots.clone(), quiet.clone());
        spawn(async move {
            tokio::select! {
                biased;
                () = service.shared.ended() => {}
                () = connection(socket, from, &service, &snapshots, &quiet) => {}
            }
            drop(place);
        });
    }
}

fn log_once(quiet: &Quiet, text: &str) {
    if quiet.is_new(text) {
        tracing::warn!("{text}");
    }
}

fn log(quiet: &Quiet, text: &str) {
    if quiet.allows(text) {
        tracing::warn!("{text}");
    }
}

async fn connection<H: Handler, K: SnapshotSink>(
    socket: Box<dyn Socket>,
    from: IpAddr,
    service: &Service<H, K>,
    snapshots: &Semaphore,
    quiet: &Quiet,
) {
    let shared = &service.shared;
    let (mut wire, hello, purpose) = match begin(socket, shared).await {
        Ok(begun) => begun,
        Err(failure) => {
            let text = format!("A node's connection from {from} was not taken: {failure}");
            return match failure {
                failure if failure.is_early() => {}
                Failure::Refusing(refusal) => {
                    shared.directory.note_refused(format!("a node at {from}"), refusal.to_string());
                    log_once(quiet, &text);
                }
                failure if failure.lasts() => log_once(quiet, &text),
                _ => log(quiet, &text),
            };
        }
    };
    let node = hello.node;
    if shared.directory.get(node).is_none() && shared.directory.all().len() >= NODES_MAX {
        wire.refuse("too many nodes are known").await;
        return log(quiet, &format!("Node {node} at {from} was refused: too many nodes are known"));
    }
    shared.directory.set_hello(hello.clone());
    let inbound = shared.directory.inbound(node);
    let ended = match purpose {
        Purpose::Requests => requests(&mut wire, hello, &inbound, service).await,
        Purpose::Snapshot => match snapshots.try_acquire() {
            Ok(_place) if !service.admission.permits(Participation::Follows) => {
                Err("this node does not take part yet".to_owned())
            }
            Ok(_place) => {
                tracing::info!("Receiving a snapshot from node {node}");
                let received = snapshot::receive(&mut wire, node, &shared.leader, &service.handler, &service.sink).await;
                received.map_err(|error| format!("its snapshot was not installed: {error}"))
            }
            Err(_) => Err("too many snapshots are being received".to_owned()),
        },
    };
    if let Err(reason) = ended {
        wire.refuse(&reason).await;
        log(quiet, &format!("The connection of node {node} at {from} was closed: {reason}"));
    }
}

/// Expects that no other process is connected at the address of this node.
fn expect_no_twin(shared: &Shared, hello: &Hello) -> Result<(), Refusal> {
    let known = shared.directory.get(hello.node);
    match known.as_ref().and_then(|known| known.connected_hello()) {
        Some(twin) if twin.client != hello.client => {
            let addr = format!("{}:{}", twin.client.host, twin.client.port.max(twin.client.tls_port));
            Err(Refusal::Twin(hello.node, shared.me.standing().borrow().cluster.id, addr))
        }
        _ => Ok(()),
    }
}

async fn begin(socket: Box<dyn Socket>, shared: &Shared) -> Result<(Wire, Hello, Purpose), Failure> {
    let mut wire = dial::accepted(socket, &shared.security).await?;
    let (hello, purpose) = hello::accept(&mut wire, &shared.me, |hello| expect_no_twin(shared, hello)).await?;
    Ok((wire, hello, purpose))
}

/// A request that has been read.
enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    TransferLeader(TransferLeaderRequest<Types>),
}

/// Takes requests until the connection ends.
///
/// # Errors
/// Why it was closed, if the other node has not just closed it.
async fn requests<H: Handler, K>(
    wire: &mut Wire,
    mut hello: Hello,
    inbound: &Inbound,
    service: &Service<H, K>,
) -> Result<(), String> {
    let shared = &service.shared;
    // What this node was when the other one was checked last. It may have changed since the connection began.
    let mut own = Standing::default();
    let mut under_way = FuturesUnordered::new();
    let mut bytes = 0;
    let mut expected = Expected { sender: hello.node, appended: None };
    let mut silent = 0;
    let mut ticks = Ticks::new(SILENCE.0);
    loop {
        let receive = under_way.len() < UNDER_WAY_MAX.0 && bytes < UNDER_WAY_MAX.1 && wire.queued() < QUEUE_MAX;
        // Answers first: there may always be more requests. Silence last: a process that was stopped reads what has come meanwhile.
        tokio::select! {
            biased;
            Some((length, answer)) = under_way.next() => {
                bytes -= length;
                wire.push(answer?);
            }
            frame = wire.next_if(receive) => {
                let frame = match frame {
                    Ok(frame) => frame,
                    Err(error) if is_end(&error) => return Ok(()),
                    Err(error) => return Err(error.to_string()),
                };
                silent = 0;
                inbound.heard();
                let (id, length) = (frame.id, frame.body.len());
                let now = *shared.me.standing().borrow();
                if !std::mem::replace(&mut own, now).is_same_cluster(&now) {
                    // The other node may belong to another cluster than this one does now.
                    link::check(&shared.me, &hello, hello.node, Side::Acceptor)?;
                }
                match frame.kind {
                    Kind::Ping => wire.push(pong(&frame, &mut hello, shared)?),
                    Kind::HandOver => {
                        let to = decode_message(&frame.body).map_err(|malformed: Malformed| malformed.to_string())?;
                        (service.hand_over)(to);
                        wire.push(encode(Kind::Answer, id, &[]));
                    }
                    Kind::Refused => return Err(format!("refused by the other node: {}", reason(&frame))),
                    Kind::Message => {
                        if let Some(take) = shared.on_message.get() {
                            take(frame.body);
                        }
                    }
                    _ => {
                        let request = read(&frame)?;
                        let is_consecutive = expected.check(&request, &shared.leader).map_err(|nonsense| nonsense.to_string())?;
                        bytes += length;
                        let answer = perform(service, id, request, is_consecutive);
                        under_way.push(async move { (length, answer.await) });
                    }
                }
            }
            () = ticks.tick() => {
                fail_if!(silent >= SILENCE.1, "nothing was heard from it".to_owned());
                silent += 1;
            }
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Notes what the other node says of itself now, and answers the same.
fn pong(frame: &Frame, known: &mut Hello, shared: &Shared) -> Result<Vec<u8>, String> {
    let mut hello: Hello = decode_beginning(&frame.body).map_err(|malformed| malformed.to_string())?;
    hello.check().map_err(|nonsense| nonsense.to_string())?;
    hello.greeting = known.greeting;
    link::check(&shared.me, &hello, known.node, Side::Acceptor)?;
    *known = hello.clone();
    shared.directory.set_hello(hello);
    encode_message(Kind::Pong, frame.id, &shared.me.hello(), 128).ok_or_else(|| "a pong is too long".to_owned())
}

fn read(frame: &Frame) -> Result<Request, String> {
    let request = match frame.kind {
        Kind::Append => decode_message(&frame.body).map(Request::Append),
        Kind::Vote => decode_message(&frame.body).map(Request::Vote),
        Kind::PreVote => decode_message(&frame.body).map(Request::PreVote),
        Kind::TransferLeader => decode_message(&frame.body).map(Request::TransferLeader),
        kind => return Err(format!("an unexpected frame, {kind:?}")),
    };
    request.map_err(|malformed: Malformed| malformed.to_string())
}

/// What this node expects of the requests on a connection.
struct Expected {
    sender: NodeId,
    /// The vote of the last append with entries, and the last of these.
    appended: Option<(Vote, LogId)>,
}

impl Expected {
    /// Returns whether the request is an append that comes behind the one before it.
    ///
    /// # Errors
    /// Why the connection must end.
    fn check(&mut self, request: &Request, leader: &LeaderCheck) -> Result<bool, Nonsense> {
        let append = match request {
            Request::Append(append) => append,
            Request::Vote(vote) | Request::PreVote(vote) => return sane::vote(vote, self.sender).map(|()| false),
            Request::TransferLeader(transfer) => return sane::transfer(transfer, self.sender).map(|()| false),
        };
        sane::append(append, self.sender)?;
        let ids = append.prev_log_id.into_iter().chain(append.entries.iter().map(RaftEntry::log_id));
        leader.note(&append.vote, ids.chain(append.leader_commit))?;
        let of_vote = |id| (append.vote, id);
        let is_consecutive = self.appended.is_some() && self.appended == append.prev_log_id.map(of_vote);
        // A heartbeat has no entries, and may come between two appends.
        if let Some(last) = append.entries.last().map(RaftEntry::log_id) {
            self.appended = Some(of_vote(last));
        }
        Ok(is_consecutive)
    }
}

/// Has a request answered, and encodes the answer. `is_consecutive` says that it is an append that comes behind the one before it.
///
/// # Errors
/// Why the connection must end.
async fn perform<H: Handler, K>(
    service: &Service<H, K>,
    id: u64,
    request: Request,
    is_consecutive: bool,
) -> Result<Vec<u8>, String> {
    const NO_VOTE: &str =
        "it does not lead before it has caught up, because it has lost its log or a part of it, or never had one";
    const NO_PART: &str = "it takes part in nothing yet, because it has lost its log or a part of it, or never had one";
    let Service { handler, admission, .. } = service;
    let needs = if matches!(request, Request::TransferLeader(_)) { Participation::Votes } else { Participation::Follows };
    if !admission.permits(needs) {
        let reason = if needs == Participation::Follows { NO_PART } else { NO_VOTE };
        return Ok(encode(Kind::Failed, id, reason.as_bytes()));
    }
    Ok(match request {
        Request::Append(request) => answer(id, append(service, request, is_consecutive).await?),
        Request::Vote(request) | Request::PreVote(request) if !admission.gives_vote(&request) => {
            // It says what it has, and gives nothing.
            let response = handler.pre_vote(request).await;
            answer(id, response.map(|response| VoteResponse { vote_granted: false, ..response }))
        }
        Request::Vote(request) => answer(id, handler.vote(request).await),
        Request::PreVote(request) => answer(id, handler.pre_vote(request).await),
        Request::TransferLeader(request) => answer(id, handler.transfer_leader(request).await),
    })
}

/// Has an append answered in its turn.
///
/// # Errors
/// Why the connection must end.
async fn append<H: Handler, K>(
    service: &Service<H, K>,
    mut request: AppendEntriesRequest<Types>,
    is_consecutive: bool,
) -> Result<Result<AppendEntriesResponse<Types>, Failed>, String> {
    let leader = &service.shared.leader;
    let (vote, ids) = (request.vote, sane::ids(&request));
    let _turn = leader.admit(&mut request, &ids, is_consecutive, &service.handler).await?;
    service.admission.hear(&request);
    let answered = service.handler.append_entries(request).await;
    if let Ok(AppendEntriesResponse::Success) = answered {
        leader.note_match(&vote, &ids);
    }
    Ok(answered)
}

fn answer<T: Serialize>(id: u64, answer: Result<T, Failed>) -> Vec<u8> {
    let encoded = match &answer {
        Ok(answer) => encode_message(Kind::Answer, id, answer, 64),
        Err(reason) => Some(encode(Kind::Failed, id, reason.as_bytes())),
    };
    encoded.unwrap_or_else(|| encode(Kind::Failed, id, b"its answer is too long"))
}
