use openraft::network::RaftNetworkV2;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::quorum::net::frame::{Decoder, FRAME_MAX, Frame, Kind, encode, encode_message};

/// Tries to connect from one node to another, and returns why it fails.
async fn failure(from: Setup, to: Setup, target: NodeId) -> String {
    let to = TestNode::with(2, to).await;
    let from = TestNode::with(1, from).await;
    from.meet(&[(target, to.addr)]);
    let info = known(from.directory(), target, |info| info.failure.is_some()).await;
    assert!(!info.connected);
    assert_eq!(to.directory().get(1).map_or(0, |info| info.inbound), 0);
    info.failure.unwrap()
}

fn secret(secret: &'static str) -> Setup {
    Setup { secret: Some(secret), ..Setup::default() }
}

fn cluster(cluster: u8) -> Setup {
    Setup { cluster, ..Setup::default() }
}

#[tokio::test]
async fn nodes_are_refused_with_a_reason() {
    let other = "refused by the other node: ";
    let wrong = format!("{other}wrong cluster-secret");
    assert_eq!(failure(secret("a"), secret("b"), 2).await, wrong);
    assert_eq!(failure(Setup::default(), secret("b"), 2).await, wrong);
    assert_eq!(
        failure(secret("a"), Setup::default(), 2).await,
        format!("{other}a cluster-secret was given, but this node has none")
    );
    assert_eq!(
        failure(cluster(0x11), cluster(0x22), 2).await,
        format!(
            "{other}node 1 belongs to cluster {}, and node 2 belongs to cluster {}: their clusters have different names \
             (cluster-name)",
            "11".repeat(8),
            "22".repeat(8)
        )
    );
    assert_eq!(
        failure(Setup::default(), Setup::default(), 3).await,
        format!("{other}node 3 was expected at this address, which is that of node 2")
    );
    let full = Setup { connections_max: Some(0), ..Setup::default() };
    assert_eq!(failure(Setup::default(), full, 2).await, format!("{other}too many connections"));
}

#[tokio::test]
async fn nodes_with_the_same_secret_know_each_other_and_are_told_of_changes() {
    let two = TestNode::with(2, Setup { secret: Some("s"), cluster: 7, ..Setup::default() }).await;
    let one = TestNode::with(1, Setup { secret: Some("s"), cluster: 7, ..Setup::default() }).await;
    one.meet(&[(1, one.addr), (2, two.addr)]);
    let info = known(one.directory(), 2, |info| info.connected).await;
    assert_eq!(info.addr, Some(two.addr.to_string()));
    assert_eq!(info.client(), Some(&ClientAddress { host: "client.example".to_owned(), port: 2, tls_port: 0 }));
    assert_eq!(info.hello.as_ref().unwrap().cluster, Cluster::from([7; 16]));
    assert_eq!(info.dialled, info.hello);
    assert_eq!(info.failure, None);
    let info = known(two.directory(), 1, |info| info.inbound == 1).await;
    assert_eq!((info.addr, info.connected), (None, false), "node 1 is no member at node 2");
    assert_eq!(info.hello.as_ref().unwrap().program, env!("CARGO_PKG_VERSION"));
    assert_eq!(one.directory().all().len(), 1, "a node is not in its own directory");

    let cluster = Cluster::from([7; 16]);
    let standing = Standing { cluster, blank: true, ..Standing::default() };
    one.stand(standing);
    let info = known(two.directory(), 1, |info| info.hello.as_ref().is_some_and(|hello| hello.blank)).await;
    assert_eq!((info.hello.as_ref().unwrap().cluster, info.dialled), (cluster, None), "node 1 has connected, not node 2");
    two.stand(standing);
    known(one.directory(), 2, |info| info.hello.as_ref().unwrap().blank).await;
    let info = one.directory().get(2).unwrap();
    assert!(info.pings.count > 0 && info.pings.p50_us > 0);
    assert!(info.last_heard.unwrap() < LONG);

    two.stand(Standing { cluster: Cluster { id: 8, ..cluster }, votes: true, ..Standing::default() });
    let info = known(one.directory(), 2, |info| !info.connected).await;
    let failure = info.failure.as_ref().unwrap();
    assert!(failure.contains("belongs to cluster 0000000000000008") && failure.contains("0707070707070707"), "{failure}");
}

#[tokio::test]
async fn no_message_of_another_cluster_is_taken_even_if_a_node_changes_its_cluster_meanwhile() {
    let name = Cluster { name: 7, id: 0xa };
    let same = || Setup { cluster_id: Some(name), ..Setup::default() };
    let (one, two) = (TestNode::with(1, same()).await, TestNode::with(2, same()).await);
    let mut client = one.client(2, two.addr).await;
    known(one.directory(), 2, |info| info.connected).await;
    assert!(soon(client.append_entries(append(1, 10), option())).await.unwrap().is_success());
    for (node, id) in [(&two, 0xb), (&one, 0xc)] {
        node.stand(Standing { cluster: Cluster { id, ..name }, votes: true, ..Standing::default() });
        // Whatever comes first: the request, or that the other node hears of the change.
        let short = RPCOption::new(Duration::from_millis(200));
        assert!(soon(client.append_entries(append(2, 10), short)).await.is_err());
    }
    assert_eq!(*two.answers.appends.lock().unwrap(), [1]);
    let info = known(one.directory(), 2, |info| info.failure.as_ref().is_some_and(|reason| reason.contains("c,"))).await;
    let failure = info.failure.unwrap();
    assert!(failure.contains("000000000000000b") && failure.contains("000000000000000c"), "{failure}");
    let refused = two.directory().refused();
    assert!(refused.iter().any(|reason| reason.contains("only a node with an empty folder can join")), "{refused:?}");
}

#[tokio::test]
async fn a_node_that_is_left_behind_by_a_recovery_is_told_of_it_by_a_member_that_knows_the_secret() {
    let name = Cluster { name: 7, id: 0xa };
    let with = |secret| Setup { secret: Some(secret), cluster_id: Some(name), ..Setup::default() };
    let recovered = Standing { cluster: Cluster { id: 0xb, ..name }, parent: 0xa, votes: true, ..Standing::default() };
    let (left, new, liar) =
        (TestNode::with(1, with("s")).await, TestNode::with(2, with("s")).await, TestNode::with(3, with("t")).await);
    new.stand(recovered);
    liar.stand(recovered);
    left.meet(&[(3, liar.addr)]);
    known(left.directory(), 3, |info| info.failure.is_some()).await;
    let mut successor = left.transport.successor();
    assert_eq!(*successor.borrow_and_update(), 0);
    left.meet(&[(2, new.addr)]);
    assert_eq!(*soon(successor.wait_for(|id| *id != 0)).await.unwrap(), 0xb);
    let failure = known(left.directory(), 2, |info| info.failure.is_some()).await.failure.unwrap();
    assert!(failure.contains("cluster 000000000000000b was recovered from cluster 000000000000000a"), "{failure}");
}

#[tokio::test]
async fn a_second_process_with_the_folder_of_a_node_is_refused() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.meet(&[(2, two.addr)]);
    known(one.directory(), 2, |info| info.connected).await;
    let copy = TestNode::with(2, Setup { client_port: Some(9), ..Setup::default() }).await;
    copy.meet(&[(1, one.addr)]);
    let failure = known(copy.directory(), 1, |info| info.failure.as_ref().is_some_and(|reason| reason.contains("copies"))).await;
    let failure = failure.failure.unwrap();
    assert!(
        failure.contains("node 2 of cluster 0000000000000000 is another process, for clients at client.example:2"),
        "{failure}"
    );
    two.meet(&[(1, one.addr)]);
    known(two.directory(), 1, |info| info.connected).await;
}

/// A connection of a test that knows the protocol.
struct Raw {
    stream: TcpStream,
    decoder: Decoder,
}

impl Raw {
    async fn connect(node: &TestNode) -> Raw {
        Raw { stream: TcpStream::connect(node.addr).await.unwrap(), decoder: Decoder::new(FRAME_MAX) }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The next frame, or `None` at the end of the connection.
    async fn next(&mut self) -> Option<Frame> {
        soon(async {
            loop {
                if let Some(frame) = self.decoder.next().unwrap() {
                    return Some(frame);
                }
                if !matches!(self.stream.read_buf(self.decoder.room()).await, Ok(1..)) {
                    return None;
                }
            }
        })
        .await
    }

    /// Sends a hello as node 1.
    async fn hello(&mut self, version: u16) {
        self.send(&encode(Kind::Hello, 0, &hello(version, 1))).await;
    }
}

fn hello(version: u16, node: u64) -> Vec<u8> {
    let hello = crate::quorum::net::hello::Hello {
        node,
        cluster: Cluster::default(),
        blank: true,
        votes: false,
        client: ClientAddress::default(),
        program: "test".to_owned(),
        greeting: None,
    };
    let mut body = [b"PTCLNODE".as_slice(), &version.to_le_bytes()].concat();
    // Nonce, no target, requests.
    body.extend(postcard::to_stdvec(&(hello, [9u8; 32], None::<u64>, 0u8)).unwrap());
    body
}

#[tokio::test]
async fn another_version_is_refused_before_anything_else_is_read() {
    let node = TestNode::start(2).await;
    let mut raw = Raw::connect(&node).await;
    raw.send(&encode(Kind::Hello, 0, b"PTCLNODE\x63\x00 what version 99 says here")).await;
    let frame = raw.next().await.unwrap();
    assert_eq!(frame.kind, Kind::Refused);
    assert_eq!(frame.body, "protocol version 99, but this node speaks version 1");
    assert_eq!(raw.next().await, None);
}

#[tokio::test]
async fn a_later_minor_version_is_understood() {
    let node = TestNode::start(2).await;
    let mut raw = Raw::connect(&node).await;
    // What a later version knows besides is behind what this one knows.
    let mut later = hello(0x0901, 1);
    later.extend(b"more");
    raw.send(&encode(Kind::Hello, 0, &later)).await;
    let answer = raw.next().await.unwrap();
    assert_eq!((answer.kind, &answer.body[..10]), (Kind::Hello, &b"PTCLNODE\x01\x01"[..]));
    raw.send(&encode(Kind::Proof, 0, b"")).await;
    assert_eq!(raw.next().await.unwrap().kind, Kind::Welcome);
    raw.send(&encode_message(Kind::Append, 5, &append(1, 10), 0).unwrap()).await;
    assert_eq!(raw.next().await.map(|frame| (frame.kind, frame.id)), Some((Kind::Answer, 5)));
    let mut ping = postcard::to_stdvec(&two_minors_later()).unwrap();
    ping.extend(b"more");
    raw.send(&encode(Kind::Ping, 6, &ping)).await;
    assert_eq!(raw.next().await.map(|frame| (frame.kind, frame.id)), Some((Kind::Pong, 6)));
    let known = node.directory().get(1).unwrap();
    assert_eq!((known.hello.unwrap().program.as_str(), known.inbound), ("0.3.0", 1));
}

fn two_minors_later() -> crate::quorum::net::hello::Hello {
    let program = "0.3.0".to_owned();
    crate::quorum::net::hello::Hello {
        node: 1,
        cluster: Cluster::default(),
        blank: true,
        votes: false,
        client: ClientAddress::default(),
        program,
        greeting: None,
    }
}

#[tokio::test]
async fn no_request_is_taken_before_the_secret_is_proven() {
    let node = TestNode::with(2, secret("s")).await;
    let request = encode_message(Kind::Append, 1, &append(1, 10), 0).unwrap();
    for proof in [None, Some(Vec::new()), Some(vec![0; 32])] {
        let mut raw = Raw::connect(&node).await;
        raw.hello(1).await;
        assert_eq!(raw.next().await.unwrap().kind, Kind::Hello);
        let refused = proof.is_some();
        if let Some(proof) = proof {
            raw.send(&encode(Kind::Proof, 0, &proof)).await;
        }
        let _ = raw.stream.write_all(&request).await;
        match raw.next().await {
            Some(frame) => assert_eq!((frame.kind, &frame.body[..]), (Kind::Refused, &b"wrong cluster-secret"[..])),
            None => assert!(!refused),
        }
        assert_eq!(raw.next().await, None);
    }
    assert!(node.answers.appends.lock().unwrap().is_empty());
    assert!(node.directory().get(1).is_none(), "nothing that was not proven is remembered");
}

#[tokio::test]
async fn a_node_that_returns_the_proof_it_was_given_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = TestNode::with(1, secret("s")).await;
    one.meet(&[(2, listener.local_addr().unwrap())]);
    let mut raw = Raw { stream: soon(listener.accept()).await.unwrap().0, decoder: Decoder::new(FRAME_MAX) };
    assert_eq!(raw.next().await.unwrap().kind, Kind::Hello);
    raw.send(&encode(Kind::Hello, 0, &hello(1, 2))).await;
    let proof = raw.next().await.unwrap();
    assert_eq!((proof.kind, proof.body.len()), (Kind::Proof, 32));
    raw.send(&encode(Kind::Welcome, 0, &proof.body)).await;
    let refused = raw.next().await.unwrap();
    assert_eq!((refused.kind, &refused.body[..]), (Kind::Refused, &b"wrong cluster-secret"[..]));
    assert!(known(one.directory(), 2, |info| info.failure.is_some()).await.failure.unwrap().contains("wrong cluster-secret"));
}

#[tokio::test]
async fn garbage_ends_its_connection_alone() {
    let node = TestNode::start(2).await;
    for garbage in
        [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 64], encode(Kind::Append, 1, b"x"), encode(Kind::Hello, 0, b"PTCL")]
    {
        let mut raw = Raw::connect(&node).await;
        raw.send(&garbage).await;
        assert_eq!(raw.next().await, None);
    }
    // From a node that has begun well.
    for garbage in [encode(Kind::Append, 1, b"x"), encode(Kind::Ping, 1, b""), encode(Kind::Answer, 1, b""), vec![1, 2, 3, 255]] {
        let mut raw = Raw::connect(&node).await;
        raw.hello(1).await;
        assert_eq!(raw.next().await.unwrap().kind, Kind::Hello);
        raw.send(&encode(Kind::Proof, 0, b"")).await;
        assert_eq!(raw.next().await.unwrap().kind, Kind::Welcome);
        raw.send(&encode_message(Kind::Append, 5, &append(1, 10), 0).unwrap()).await;
        assert_eq!(raw.next().await.map(|frame| (frame.kind, frame.id)), Some((Kind::Answer, 5)));
        raw.send(&garbage).await;
        assert_eq!(raw.next().await.map(|frame| frame.kind), Some(Kind::Refused));
        assert_eq!(raw.next().await, None);
    }
    let one = TestNode::start(1).await;
    one.meet(&[(2, node.addr)]);
    known(one.directory(), 2, |info| info.connected).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn connections_are_encrypted_where_the_cluster_says_so() {
    use tokio_rustls::rustls::crypto::ring::default_provider;
    use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(default_provider());
    let connector = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let acceptor = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let security = Security { connector: Some(Arc::new(connector).into()), acceptor: Some(Arc::new(acceptor).into()) };
    let encrypted = |secret| Setup { security: security.clone(), secret, ..Setup::default() };

    let two = TestNode::with(2, encrypted(Some("s"))).await;
    let one = TestNode::with(1, encrypted(Some("s"))).await;
    let mut client = one.client(2, two.addr).await;
    known(one.directory(), 2, |info| info.connected).await;
    assert!(soon(client.append_entries(append(1, 3 << 20), option())).await.unwrap().is_success());

    let plain = TestNode::with(3, secret("s")).await;
    plain.meet(&[(2, two.addr)]);
    known(plain.directory(), 2, |info| info.failure.is_some()).await;
}
