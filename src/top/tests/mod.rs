//! What is shown of replies, and what actions do.

pub mod samples;

use std::time::Duration;

use serde_json::json;

use crate::client::Value;
use crate::top::facts::{Absence, Facts, Replies};
use crate::top::headline::headline;
use crate::top::input::{Action, Focus};
use crate::top::json::json as to_json;
use crate::top::names::Name;
use crate::top::rows::{self, Row, bar};
use crate::top::screen::{Effect, Field, Overlay, Phase, Screen, Sort};
use crate::top::tests::samples::{graph, holder, in_resp2, jam, jam_in_detail, list, redis, reply, stats};
use crate::top::text::text;

fn headline_of(replies: &Replies) -> String {
    headline(&Facts::of(replies)).text
}

/// A screen that has looked once, ten seconds after it began.
fn screen(replies: &Replies) -> Screen {
    let mut screen = Screen { now: Duration::from_secs(10), page: 5, ..Screen::default() };
    screen.take(replies);
    screen
}

fn names(screen: &Screen) -> Vec<String> {
    screen.locks.iter().map(|lock| lock.name.to_string()).collect()
}

fn select(screen: &mut Screen, name: &str) {
    screen.selected = names(screen).iter().position(|found| found == name).expect("it is there");
    screen.is_chosen = true;
}

fn type_text(screen: &mut Screen, text: &str) {
    text.chars().for_each(|c| drop(screen.act(Action::Type(c))));
}

#[test]
fn the_headline_names_the_root_of_most_waits() {
    assert_eq!(
        headline_of(&jam()),
        "24 clients wait for order:42 (7 directly), held for 3 min by worker-7 (billing, 10.0.0.3:40112, connection gone for 2 min); \
         2 other locks block 3 clients"
    );
    let one =
        json!([{ "depth": 0, "name": "a", "waiters": 1, "blocked": 1, "oldest-wait": 5, "holders": [holder("x", 1, 900, 1)] }]);
    assert_eq!(
        headline_of(&Replies { graph: Ok(reply(&one)), ..jam() }),
        "1 client waits for a, held for 900 ms by x (billing, 10.0.0.3:40112)"
    );
    let key = json!([graph()[4]]);
    assert_eq!(
        headline_of(&Replies { graph: Ok(reply(&key)), ..jam() }),
        "2 clients wait for lock:cart, a key of type string that web-3 (10.0.0.9:1000, connection gone for 2 min) wrote, which never expires"
    );
}

#[test]
fn without_a_graph_the_headline_names_the_longest_queue() {
    let older = Replies { graph: Err(Absence::Missing), ..jam() };
    assert!(headline_of(&older).starts_with("17 clients wait for item:7, held for 1 min by web-2"), "{}", headline_of(&older));
    let quiet = |waiting: u64| Replies {
        list: Ok(reply(&json!([]))),
        graph: Ok(reply(&json!([]))),
        stats: Ok(reply(&json!({ "waiting": waiting }))),
        ..jam()
    };
    assert_eq!(headline_of(&quiet(0)), "Nobody waits for a lock.");
    assert_eq!(headline_of(&quiet(2)), "2 clients wait for locks, none of them in this database or filter.");
}

#[test]
fn a_server_without_the_commands_is_told_from_one_that_refuses_them() {
    assert_eq!(
        headline_of(&redis()),
        "This server (redis 7.2.4) has no LOCK commands: it knows keys, not which of them are locks or who polls for them. \
         3 clients wait in some blocking command."
    );
    let facts = Facts::of(&redis());
    assert_eq!(rows::figures(&facts, None), ["clients 41", "blocked 3", "commands/s 1200", "keys 7", "memory 1.50M"]);
    let refused = Replies { list: Err(Absence::Refused("NOPERM no".into())), ..jam() };
    assert_eq!(headline_of(&refused), "The server refuses LOCK.LIST: NOPERM no");
}

#[test]
fn replies_of_both_protocols_and_of_older_servers_are_read() {
    let facts = Facts::of(&jam());
    let older = Replies {
        list: Ok(in_resp2(reply(&list()))),
        graph: Ok(in_resp2(reply(&graph()))),
        stats: Ok(in_resp2(reply(&stats()))),
        ..jam()
    };
    let other = Facts::of(&older);
    assert_eq!((facts.locks, facts.graph, facts.stats), (other.locks, other.graph, other.stats));
    // Before there were kinds, longest waits and names of clients.
    let bare = json!([{ "name": "a", "mode": "free", "limit": 3, "holders": [], "waiters": [{ "owner": "x", "waited": 70 }] }]);
    let facts = Facts::of(&Replies { list: Ok(reply(&bare)), ..jam() });
    let lock = &facts.locks.expect("locks")[0];
    assert_eq!((lock.kind.to_string().as_str(), lock.waiting, lock.oldest_ms), ("semaphore", 1, 70));
}

#[test]
fn json_has_the_fields_of_the_replies() {
    let found = to_json(&jam());
    assert_eq!((&found["locks"], &found["graph"], &found["stats"]), (&list(), &graph(), &stats()));
    assert_eq!(found["server"]["version"], "0.1.0");
    assert_eq!(found["server"]["missing"], json!(["LOCK.RECENT"]));
    let resp2 = to_json(&Replies { list: Ok(in_resp2(reply(&list()))), graph: Ok(in_resp2(reply(&graph()))), ..jam() });
    assert_eq!(resp2["locks"][0]["holders"][0]["owner"], "worker-7");
    assert_eq!(resp2["locks"][4]["last-end"]["reason"], "hung");
    assert_eq!(resp2["graph"][1]["waiters"], 14);
    let none = to_json(&redis());
    assert_eq!((&none["locks"], &none["server"]["missing"][0]), (&serde_json::Value::Null, &json!("LOCK.LIST")));
    let odd = to_json(&Replies { list: Ok(reply(&json!([{ "name": "\\xff\\x5c" }]))), ..jam() });
    assert_eq!(odd["locks"][0]["name"], "\\xff\\x5c");
}

#[test]
fn the_text_names_root_holder_and_tree() {
    let shown = text(&Facts::of(&jam()));
    for line in [
        "24 clients wait for order:42 (7 directly)",
        "portcullis 0.1.0 at 127.0.0.1:6379/0, up 3 h",
        "waiting 27 (oldest 3m03s)  held 6 (longest 3m05s)",
        "WHO WAITS FOR WHOM",
        "├ item:7  14 wait (oldest 59s), 17 with those below; web-2 holds it for 1m00s and waits above",
        "│ └ item:8  3 wait (oldest 9.0s); web-5 holds it for 12s and waits above",
        "└ item:9  0 wait",
        "4.0s ago: nightly, cron-1, token 6, by ops: hung",
    ] {
        assert!(shown.lines().any(|found| found.starts_with(line)), "{line}\n{shown}");
    }
    assert!(text(&Facts::of(&redis())).starts_with("This server (redis 7.2.4) has no LOCK commands"));
}

#[test]
fn control_characters_reach_neither_text_nor_screen() {
    let evil = json!([{
        "name": "a\\x1b[2Jb", "waiters": [], "waiting": 1, "oldest-wait": 1, "kind": "lo\\x07ck",
        "holders": [{ "owner": "\\x0d\\x0aowner", "token": 1, "client-name": "\\x9b31m", "addr": "\\xe2\\x80\\xae" }],
    }]);
    let shown = text(&Facts::of(&Replies { list: Ok(reply(&evil)), graph: Err(Absence::Refused("x".into())), ..jam() }));
    assert!(shown.chars().all(|c| c == '\n' || (!c.is_control() && c != '\u{202e}')), "{shown:?}");
    assert!(shown.contains("a\\x1b[2Jb") && shown.contains("\\x0d\\x0aowner") && shown.contains("\\xe2\\x80\\xae"));
}

#[test]
fn each_order_sorts_the_greatest_first() {
    let mut screen = screen(&jam());
    let mut orders = vec![(screen.sort, names(&screen))];
    for _ in 0..3 {
        assert_eq!(screen.act(Action::Sort), Some(Effect::Look));
        orders.push((screen.sort, names(&screen)));
    }
    let expected = [
        (Sort::OldestWait, ["order:42", "item:7", "lock:cart", "pool", "nightly"]),
        (Sort::Waiters, ["item:7", "order:42", "lock:cart", "pool", "nightly"]),
        (Sort::Held, ["order:42", "item:7", "nightly", "pool", "lock:cart"]),
        (Sort::Name, ["item:7", "lock:cart", "nightly", "order:42", "pool"]),
    ];
    assert_eq!(orders, expected.map(|(sort, names)| (sort, names.map(str::to_owned).to_vec())));
}

#[test]
fn the_selection_follows_its_lock() {
    let mut screen = screen(&jam());
    screen.act(Action::Sort);
    assert_eq!(names(&screen)[..2], ["item:7", "order:42"]);
    assert_eq!(screen.selected, 1, "until the user selects one, it is the one that the headline names");
    (0..3).for_each(|_| drop(screen.act(Action::Sort)));
    assert_eq!(screen.act(Action::Move(1)), None);
    assert_eq!(screen.selected_lock().map(|lock| lock.name.to_string()).as_deref(), Some("item:7"));
    screen.act(Action::Sort);
    assert_eq!(screen.selected_lock().map(|lock| lock.name.to_string()).as_deref(), Some("item:7"));
    (0..3).for_each(|_| drop(screen.act(Action::Sort)));
    for (action, expected) in
        [(Action::Last, 4), (Action::Move(1), 4), (Action::Page(-1), 0), (Action::Move(-1), 0), (Action::Page(1), 4)]
    {
        screen.act(action);
        assert_eq!(screen.selected, expected, "{action:?}");
    }
    screen.take(&Replies { list: Ok(reply(&json!([list()[0]]))), ..jam() });
    assert_eq!(screen.selected, 0, "the last lock that there is");
    screen.take(&Replies { list: Ok(reply(&json!([]))), ..jam() });
    assert_eq!(screen.selected_lock(), None);
    assert_eq!(screen.act(Action::Open), None);
}

#[test]
fn filters_become_the_question() {
    let mut screen = screen(&jam());
    screen.act(Action::FilterNames);
    assert_eq!(screen.focus(), Focus::Typing);
    type_text(&mut screen, "orderz");
    screen.act(Action::Erase);
    assert_eq!(screen.act(Action::Accept), Some(Effect::Look));
    assert_eq!(screen.question().matching.as_deref(), Some(&b"*order*"[..]));
    for (typed, pattern) in [("order:*", &b"order:*"[..]), ("a\\x00b?", b"a\0b?")] {
        screen.act(Action::FilterNames);
        screen.act(Action::EraseAll);
        type_text(&mut screen, typed);
        screen.act(Action::Accept);
        assert_eq!(screen.question().matching.as_deref(), Some(pattern));
    }
    screen.act(Action::FilterOwner);
    assert_eq!(screen.overlay, Some(Overlay::Entry(Field::Who, "worker-7".to_owned())), "the selected lock's holder");
    screen.act(Action::Close);
    assert_eq!(screen.question().who, None);
    screen.act(Action::FilterOwner);
    screen.act(Action::Accept);
    assert_eq!(screen.question().who, Some(Name::from("worker-7")));
    screen.act(Action::All);
    assert!(screen.question().all);
    screen.take(&jam());
    assert_eq!(names(&screen), ["order:42"]);
    // Escape ends both filters, once.
    assert_eq!(screen.act(Action::Close), Some(Effect::Look));
    assert_eq!((screen.question().matching, screen.question().who), (None, None));
    assert_eq!(screen.act(Action::Close), None);
    screen.take(&jam());
    assert_eq!(names(&screen).len(), 5);
}

#[test]
fn a_part_of_an_owner_a_client_or_an_address_is_enough() {
    let mut screen = screen(&jam());
    let mut found = |typed: &str, replies: &Replies| {
        screen.act(Action::FilterOwner);
        screen.act(Action::EraseAll);
        type_text(&mut screen, typed);
        screen.act(Action::Accept);
        screen.take(replies);
        names(&screen)
    };
    assert_eq!(found("rker-", &jam()), ["order:42"]);
    assert_eq!(found("billing", &jam()), ["order:42", "item:7", "pool", "nightly"]);
    assert_eq!(found("10.0.0.8:50016", &jam()), ["item:7"], "a waiter");
    assert_eq!(found("nobody", &jam()), [""; 0]);
    // What the server finds of a whole owner may not be among the locks that it lists.
    let far = json!([{ "name": "far", "waiters": [], "holders": [holder("web-99", 70, 1, 1)] }, list()[1]]);
    assert_eq!(found("web-99", &Replies { owned: Ok(reply(&far)), ..jam() }), ["item:7", "far"]);
}

#[test]
fn locks_of_the_same_holder_are_one_cause() {
    let node = |name: &str, waiters: u64, blocked: u64, owner: &str| json!({ "depth": 0, "name": name, "waiters": waiters, "blocked": blocked, "holders": [holder(owner, 1, 9, 9)] });
    let of = |nodes: serde_json::Value, waiting: u64| {
        headline_of(&Replies {
            graph: Ok(reply(&nodes)),
            stats: Ok(reply(&json!({ "waiting": waiting, "contended": 211 }))),
            ..jam()
        })
    };
    let nodes = json!([node("other", 30, 30, "x"), node("ledger", 8, 8, "report-2"), node("daily", 1, 31, "report-2")]);
    assert_eq!(
        of(nodes.clone(), 69),
        "report-2 (billing, 10.0.0.3:40112) blocks 39 clients with 2 locks: daily (31), ledger (8); 1 other lock blocks 30 clients"
    );
    // Who waits for both is counted once.
    assert!(of(nodes.clone(), 35).starts_with("report-2 (billing, 10.0.0.3:40112) blocks 35 clients"));
    let facts = Facts::of(&Replies { graph: Ok(reply(&nodes)), ..jam() });
    assert_eq!(headline(&facts).lock, Some(Name::from("daily")));
    let many = |count: u64| json!((0..count).map(|at| node(&format!("l{at}"), 1, 1, "x")).collect::<Vec<_>>());
    assert!(of(many(3), 3).ends_with("blocks 3 clients with 3 locks: l0 (1), l1 (1), l2 (1)"));
    assert!(of(many(12), 12).ends_with("blocks 12 clients with 12 locks: l0 (1), l1 (1), l2 (1) and 9 more"));
    // One client that waits for three locks of a lock's waiter is one client behind it.
    assert!(of(json!([node("root", 1, 4, "ann")]), 2).starts_with("2 clients wait for root (1 directly), held for"));
}

#[test]
fn what_the_tree_leaves_out_is_told() {
    let node = |name: &str, owner: &str, elsewhere: serde_json::Value, partial: bool| {
        json!({ "depth": 0, "name": name, "waiters": 1, "blocked": 2, "holders": [holder(owner, 1, 9_000, 9)], "cut": false,
                "elsewhere": elsewhere, "partial": partial })
    };
    let there = json!({ "db": 1, "name": "there", "owner": "bob" });
    let of = |nodes: serde_json::Value| Facts::of(&Replies { graph: Ok(reply(&nodes)), ..jam() });
    let facts = of(json!([node("here", "bob", there.clone(), false)]));
    assert_eq!(
        headline(&facts).text,
        "2 clients wait for here (1 directly), held for 9.0 s by bob (billing, 10.0.0.3:40112), who waits for there in database 1"
    );
    assert!(
        text(&facts).contains("2 with those below; bob waits for there in database 1; bob holds it for 9.0s"),
        "{}",
        text(&facts)
    );
    let unseen = json!({ "db": null, "name": null, "owner": "bob" });
    let facts = of(json!([node("here", "bob", unseen, false)]));
    assert!(headline(&facts).text.ends_with("by bob (billing, 10.0.0.3:40112), who waits for a lock that you may not see"));
    assert!(text(&facts).contains("; bob waits for a lock that you may not see; bob holds it for 9.0s"), "{}", text(&facts));
    let other = of(json!([node("here", "ann", there.clone(), false)]));
    assert!(headline(&other).text.ends_with(", of whom bob waits for there in database 1"), "{}", headline(&other).text);
    let both = of(json!([node("a", "bob", there.clone(), false), node("b", "bob", serde_json::Value::Null, false)]));
    assert!(
        headline(&both).text.ends_with("with 2 locks: a (2), b (2), and waits for there in database 1"),
        "{}",
        headline(&both).text
    );
    // RESP2 does not tell maps from arrays.
    let replies = Replies { graph: Ok(in_resp2(reply(&json!([node("here", "bob", there.clone(), true)])))), ..jam() };
    assert_eq!(to_json(&replies)["graph"][0]["elsewhere"], there);
    let facts = Facts::of(&replies);
    assert!(headline(&facts).text.starts_with("At least 2 clients wait for here (1 directly), held for 9.0 s by bob"));
    assert!(text(&facts).contains("WHO WAITS FOR WHOM, AS FAR AS THE SERVER HAS FOLLOWED THEM"));
    let two = of(json!([node("a", "bob", there.clone(), true), node("b", "bob", there, true)]));
    assert!(headline(&two).text.contains(" blocks at least 4 clients with 2 locks"), "{}", headline(&two).text);
}

#[test]
fn a_full_tree_is_no_total() {
    let nodes: Vec<_> = (0..100)
        .map(|at| json!({ "depth": 0, "name": format!("l{at}"), "waiters": 2, "blocked": 2, "holders": [holder(&format!("o{at}"), 1, 9, 9)] }))
        .collect();
    let of =
        |stats: serde_json::Value| headline_of(&Replies { graph: Ok(reply(&json!(nodes))), stats: Ok(reply(&stats)), ..jam() });
    assert!(of(json!({ "waiting": 253, "contended": 211 })).ends_with("; in all, 253 clients wait for 211 locks"));
    assert!(of(json!({ "waiting": 253 })).ends_with("; at least 99 other locks block at least 198 clients"));
}

#[test]
fn long_names_are_cut_in_text_and_whole_in_json() {
    let long = "n".repeat(300);
    let mut entries = list();
    entries[0]["name"] = json!(long);
    entries[1]["holders"][0]["owner"] = json!(long);
    let node = json!([{ "depth": 0, "name": long, "waiters": 1, "blocked": 0, "holders": [holder(&long, 1, 9, 9)] }]);
    let replies = Replies { list: Ok(reply(&entries)), graph: Ok(reply(&node)), ..jam() };
    // The headline is a sentence, and has the whole name.
    let lines: Vec<String> = text(&Facts::of(&replies)).lines().skip(1).map(str::to_owned).collect();
    assert!(lines.iter().all(|line| line.chars().count() < 260), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with(&format!("{}…  lock", "n".repeat(59)))), "{lines:#?}");
    assert_eq!(to_json(&replies)["locks"][0]["name"], json!(long));
}

#[test]
fn who_holds_a_lock_now_is_a_sentence() {
    let of = |json: serde_json::Value| rows::holds_now(&reply(&json));
    assert_eq!(of(list()[1].clone()), "web-2 holds it now, with token 8, 17 wait.");
    assert_eq!(of(list()[2].clone()), "2 owners hold it now, 1 wait.");
    assert_eq!(of(list()[3].clone()), "Nobody holds it now, 2 wait.");
    assert_eq!(of(serde_json::Value::Null), "Nobody holds it now.");
}

#[test]
fn recent_events_say_who_broke_a_grant() {
    let broken = |name: &str, db: u64, by_name: &str| {
        json!({
            "event": "broken", "db": db, "name": name, "owner": "cron-1", "client": 4, "ago": 4_000, "token": 6, "by": 88,
            "by-user": "ops", "by-name": by_name, "by-addr": "10.0.0.5:4711", "reason": "hung",
        })
    };
    let recent =
        json!([broken("nightly", 0, "desk"), broken("elsewhere", 3, "desk"), { "event": "expired", "db": 0, "name": "x" }]);
    let replies = Replies { recent: Ok(reply(&recent)), ..jam() };
    let screen = screen(&replies);
    assert_eq!(screen.broken.len(), 1, "neither of another database nor ended in another way");
    let shown = |one: &serde_json::Value| {
        rows::broken(&Name::from("a"), &Facts::of(&Replies { recent: Ok(reply(&json!([one]))), ..jam() }).broken[0].1, 0)
    };
    assert_eq!(shown(&broken("a", 0, "desk")), "0ms ago: a, cron-1, token 6, by ops, desk at 10.0.0.5:4711: hung");
    assert_eq!(shown(&broken("a", 0, "")), "0ms ago: a, cron-1, token 6, by ops, 10.0.0.5:4711: hung");
    assert!(text(&Facts::of(&replies)).contains("nightly, cron-1, token 6, by ops, desk at 10.0.0.5:4711: hung"));
    assert_eq!(to_json(&replies)["recent"][0]["by-name"], "desk");
}

#[test]
fn a_grant_is_broken_by_the_token_that_was_shown() {
    let mut screen = screen(&jam());
    screen.act(Action::Break);
    let Some(Overlay::Break(dialog)) = &screen.overlay else { panic!("no dialog") };
    assert_eq!(
        (dialog.name.clone(), dialog.phase.clone(), dialog.waiting),
        (Name::from("order:42"), Phase::Reason(String::new()), 7)
    );
    assert_eq!(screen.act(Action::Accept), None, "a reason is needed");
    type_text(&mut screen, "hung for 3 min");
    // Meanwhile it has passed to another owner.
    let mut passed = list();
    passed[0]["holders"] = json!([holder("web-1", 99, 10, 1000)]);
    screen.take(&Replies { list: Ok(reply(&passed)), ..jam() });
    let effect = screen.act(Action::Accept);
    let expected =
        Effect::Break { name: Name::from("order:42"), token: 3_676_804_863_340_549, reason: "hung for 3 min".to_owned() };
    assert_eq!(effect, Some(expected));
    assert_eq!(screen.act(Action::Accept), None, "it is sent once");
    screen.take_outcome("Nothing was broken. NOTHELD".to_owned());
    assert_eq!(screen.notice.as_deref(), Some("Nothing was broken. NOTHELD"), "the dialog was closed before the answer");
}

#[test]
fn of_several_holders_one_is_chosen() {
    let mut screen = screen(&jam());
    select(&mut screen, "pool");
    screen.act(Action::Break);
    assert_eq!(screen.focus(), Focus::Choosing);
    screen.act(Action::First);
    screen.act(Action::Accept);
    type_text(&mut screen, "why");
    assert!(matches!(screen.act(Action::Accept), Some(Effect::Break { token: 9, .. })));
    screen.take_outcome("done".to_owned());
    assert!(matches!(&screen.overlay, Some(Overlay::Break(dialog)) if dialog.phase == Phase::Done("done".to_owned())));
    assert_eq!(screen.act(Action::Close), Some(Effect::Look));
    assert_eq!(screen.overlay, None);
}

#[test]
fn what_cannot_be_broken_is_said() {
    let mut screen = screen(&jam());
    select(&mut screen, "lock:cart");
    screen.act(Action::Break);
    assert_eq!(screen.notice.as_deref(), Some("lock:cart has no holder: there is no grant to break."));
    screen.take(&Replies { can_break: false, ..jam() });
    select(&mut screen, "order:42");
    screen.act(Action::Break);
    assert_eq!(screen.notice.as_deref(), Some("This server does not have LOCK.BREAK."));
    assert_eq!(screen.overlay, None);
    let long = "x".repeat(400);
    let mut screen = self::screen(&jam());
    screen.act(Action::Break);
    type_text(&mut screen, &long);
    assert!(matches!(screen.act(Action::Accept), Some(Effect::Break { reason, .. }) if reason.len() <= 128));
}

#[test]
fn broken_grants_are_remembered() {
    let mut screen = screen(&jam());
    assert_eq!(screen.broken.len(), 1);
    screen.now += Duration::from_secs(5);
    screen.take(&Replies { list: Ok(reply(&json!([]))), ..jam() });
    assert_eq!((screen.broken[0].name.clone(), screen.broken[0].ago_ms(screen.now)), (Name::from("nightly"), 9_000));
    // A break that the events of a lock tell of.
    screen.act(Action::Open);
    screen.take(&jam_in_detail("order:42"));
    assert_eq!(screen.broken.len(), 2);
}

#[test]
fn a_detail_shows_holders_waiters_and_events() {
    let mut screen = screen(&jam());
    assert_eq!(screen.act(Action::Open), Some(Effect::Look));
    assert_eq!((screen.question().detail, screen.focus()), (Some(Name::from("order:42")), Focus::Detail));
    screen.take(&jam_in_detail("order:42"));
    let lines = screen.detail_lines().expect("a detail").join("\n");
    for part in [
        "worker-7  exclusive  token 3676804863340549  for 3m05s  lease left 40s  never renewed",
        "connection gone for 2m05s  billing  10.0.0.3:40112  client 12  user default",
        "7 waiters in the queue:",
        "web-0  exclusive  waits for 3m03s, without limit  10.0.0.8:50000  client 20",
        "broken 3m06s ago: worker-6, token 5, by ops, shell at 10.0.0.1:999: deploy",
        "3m05s ago  granted  worker-7  token 7  after 1m30s",
    ] {
        assert!(lines.contains(part), "{part}\n{lines}");
    }
    screen.act(Action::Move(1));
    assert_eq!(screen.top, 1);
    screen.act(Action::Close);
    assert_eq!((screen.detail.clone(), screen.focus()), (None, Focus::Table));
    screen.act(Action::Open);
    screen.take(&Replies { detail: Some((Name::from("order:42"), Ok(Value::Null), Ok(Value::Array(Vec::new())))), ..jam() });
    assert!(screen.detail_lines().expect("a detail")[0].starts_with("free: no owner holds it"));
}

#[test]
fn leases_are_shown_as_parts_of_the_whole() {
    let screen = screen(&jam());
    let part = |screen: &Screen, name: &str| {
        let lock = screen.locks.iter().find(|lock| lock.name == Name::from(name)).expect("it is there").clone();
        Row::of(&lock, &screen.leases).lease_part.expect("a holder")
    };
    assert!((part(&screen, "item:7") - 25.0 / 85.0).abs() < 1e-9, "25 s are left of 85 s");
    // A lease that was renewed before the first look: its length is what has been seen at most.
    let mut renewed = list();
    renewed[1]["holders"][0]["renewed"] = json!(4);
    let mut screen = self::screen(&Replies { list: Ok(reply(&renewed)), ..jam() });
    assert!((part(&screen, "item:7") - 1.0).abs() < 1e-9);
    renewed[1]["holders"][0]["lease"] = json!(5_000);
    screen.take(&Replies { list: Ok(reply(&renewed)), ..jam() });
    assert!((part(&screen, "item:7") - 0.2).abs() < 1e-9);
    assert_eq!((bar(0.0, 4), bar(0.01, 4), bar(1.0, 4)), ("░░░░".to_owned(), "█░░░".to_owned(), "████".to_owned()));
}

#[test]
fn figures_show_the_rate_between_two_looks() {
    let mut screen = screen(&jam());
    assert_eq!(screen.grants_per_s, None);
    screen.now += Duration::from_secs(2);
    let mut more = stats();
    more["grants"] = json!(1500);
    screen.take(&Replies { stats: Ok(reply(&more)), ..jam() });
    assert_eq!(screen.grants_per_s, Some(250.0));
    // A server that has started again counts from 0.
    screen.now += Duration::from_secs(2);
    screen.take(&jam());
    assert_eq!(screen.grants_per_s, None);
}

#[test]
fn the_time_without_an_answer_begins_with_the_last_one() {
    let mut screen = screen(&jam());
    screen.now += Duration::from_secs(3);
    screen.lose("refused".to_owned(), 4_000);
    screen.now += Duration::from_secs(7);
    screen.lose("timed out".to_owned(), 11_000);
    let lost = screen.lost.clone().expect("lost");
    assert_eq!((lost.since, lost.since_unix_ms, lost.reason.as_str()), (Duration::from_secs(10), 1_000, "timed out"));
    assert_eq!(names(&screen).len(), 5, "the last look stays");
    screen.take(&jam());
    assert_eq!(screen.lost, None);
}

#[test]
fn a_pause_ends_with_a_look() {
    let mut screen = screen(&jam());
    assert_eq!((screen.act(Action::Pause), screen.paused), (None, true));
    assert_eq!((screen.act(Action::Pause), screen.paused), (Some(Effect::Look), false));
    assert_eq!(screen.act(Action::Help), None);
    assert_eq!(screen.focus(), Focus::Notice);
    assert_eq!(screen.act(Action::Close), None);
    assert_eq!((screen.focus(), screen.act(Action::Quit)), (Focus::Table, Some(Effect::Quit)));
}
