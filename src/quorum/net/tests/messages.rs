use super::*;

/// Gathers the messages that a node gets.
fn gather(node: &TestNode) -> Arc<Mutex<Vec<Bytes>>> {
    let got = Arc::<Mutex<Vec<Bytes>>>::default();
    let into = Arc::clone(&got);
    node.transport.on_message(Box::new(move |message| into.lock().unwrap().push(message)));
    got
}

#[tokio::test]
async fn messages_reach_all_connected_nodes_in_order_and_wait_for_nobody() {
    let (one, two, three) = (TestNode::start(1).await, TestNode::start(2).await, TestNode::start(3).await);
    let got = [gather(&two), gather(&three)];
    one.meet(&[(2, two.addr), (3, three.addr), (4, "127.0.0.1:1".parse().unwrap())]);
    for node in [2, 3] {
        known(one.directory(), node, |info| info.connected).await;
    }
    let messages: Vec<Bytes> = (0..100).map(|number| Bytes::from(format!("message {number}"))).collect();
    messages.iter().for_each(|message| one.transport.tell_all(message));
    // A request behind them is answered when they have arrived.
    for node in [&two, &three] {
        let number = if std::ptr::eq(node, &two) { 2 } else { 3 };
        let mut client = one.client(number, node.addr).await;
        soon(openraft::network::RaftNetworkV2::vote(&mut client, VoteRequest::new(Vote::new(3, 1), None), option()))
            .await
            .unwrap();
    }
    for got in &got {
        assert_eq!(*got.lock().unwrap(), messages);
    }
}

#[tokio::test]
async fn messages_that_nobody_takes_are_dropped_and_take_bounded_memory() {
    let (link, _requests) = crate::quorum::net::link::Link::new();
    // The connection's task does not run: it takes nothing.
    for _ in 0..100 {
        link.tell(vec![0; 1 << 20]);
    }
    assert!(link.waiting() <= 8 << 20, "{} bytes wait", link.waiting());
    assert!(link.waiting() >= 7 << 20);
}
