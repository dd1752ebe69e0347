//! Replies of commands that show locks, as maps.

use crate::common::talk::call;
use crate::common::wire::{Frame, Wire};

/// Sends a request and returns its reply.
#[track_caller]
pub fn ask(wire: &mut Wire, request: &str) -> Frame {
    let reply = wire.call(&request.split_whitespace().collect::<Vec<_>>()).expect("a reply").frame;
    assert!(!reply.is_error(""), "{request}: {reply:?}");
    reply
}

/// Sends a request whose reply is a list of maps.
#[track_caller]
pub fn maps(wire: &mut Wire, request: &str) -> Vec<Frame> {
    ask(wire, request).elements().expect("an array").to_vec()
}

/// A field of a map, if the map has it.
pub fn find<'a>(map: &'a Frame, name: &str) -> Option<&'a Frame> {
    let mut pairs = map.elements()?.chunks_exact(2);
    pairs.find(|pair| pair[0].text() == Some(name.as_bytes())).map(|pair| &pair[1])
}

/// A field of a map.
#[track_caller]
pub fn get<'a>(map: &'a Frame, name: &str) -> &'a Frame {
    find(map, name).unwrap_or_else(|| panic!("no {name} in {map:?}"))
}

/// A number of a map.
#[track_caller]
pub fn number(map: &Frame, name: &str) -> i64 {
    get(map, name).integer().unwrap_or_else(|| panic!("{name} is no number in {map:?}"))
}

/// A text of a map.
#[track_caller]
pub fn text(map: &Frame, name: &str) -> String {
    let text = get(map, name).text().unwrap_or_else(|| panic!("{name} is no text in {map:?}"));
    String::from_utf8(text.to_vec()).unwrap()
}

/// The maps of a list in a map.
#[track_caller]
pub fn of<'a>(map: &'a Frame, name: &str) -> &'a [Frame] {
    get(map, name).elements().unwrap_or_else(|| panic!("{name} is no list in {map:?}"))
}

/// The names of the fields of a map.
pub fn names(map: &Frame) -> Vec<String> {
    let text = |frame: &Frame| String::from_utf8(frame.text().unwrap().to_vec()).unwrap();
    map.elements().unwrap().iter().step_by(2).map(text).collect()
}

/// Waits until so many clients wait for locks.
pub fn until_waiting(control: &mut Wire, count: i64) {
    while number(&ask(control, "LOCK.STATS"), "waiting") != count {}
}

/// Waits until the server has noticed that only so many clients are connected.
pub fn until_clients(control: &mut Wire, count: usize) {
    while call(control, "CLIENT LIST").matches("id=").count() != count {}
}
