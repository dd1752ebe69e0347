#![allow(clippy::unwrap_used)]
use super::*;
use crate::base::scaled;
use proptest::prelude::*;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

const LIMITS: Limits = Limits { max_bulk_len: 1000, max_args: 100, max_inline: 64, authenticated: true };
const UNAUTHENTICATED: Limits =
    Limits { max_bulk_len: 512 * 1024 * 1024, max_args: 1024 * 1024, max_inline: 64 * 1024, authenticated: false };

type Request = Vec<Vec<u8>>;

fn owned<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Request {
    arguments.map(<[u8]>::to_vec).collect()
}

/// The request that [`whole_request`] finds, and its length.
fn whole(buf: &[u8], limits: &Limits) -> Option<(Request, usize)> {
    let mut arguments = vec![&b"before"[..]];
    let behind = whole_request(buf, limits, &mut arguments);
    assert_eq!(arguments.len() > 1, behind.is_some(), "all of a request or nothing");
    behind.map(|behind| (owned(arguments.into_iter().skip(1)), buf.len() - behind.len()))
}

/// What a stream came to: its requests, and the error that ended it.
fn parse_whole(stream: &[u8], limits: &Limits) -> (Vec<Request>, Option<ProtocolError>) {
    parse_pieces(stream, [stream.len()], limits)
}

/// The same, with the stream arriving in pieces, each time at another address.
fn parse_pieces(
    stream: &[u8],
    pieces: impl IntoIterator<Item = usize>,
    limits: &Limits,
) -> (Vec<Request>, Option<ProtocolError>) {
    let mut parser = RequestParser::new();
    let mut requests = Vec::new();
    let (mut start, mut end) = (0, 0);
    let mut pieces = pieces.into_iter();
    while end < stream.len() {
        end = pieces.next().map_or(stream.len(), |piece| (end + piece).min(stream.len()));
        loop {
            let buf = stream[start..end].to_vec();
            let whole = if parser.is_partial() { None } else { whole(&buf, limits) };
            let progress = parser.parse(&buf, limits);
            if let Some((request, consumed)) = whole {
                assert_eq!(progress, Ok(Progress::Complete { consumed }));
                assert_eq!(request, owned(parser.arguments(&buf)));
            }
            match progress {
                Err(error) => return (requests, Some(error)),
                Ok(Progress::Incomplete) => {
                    assert!(parser.needed() >= 1);
                    assert_eq!(parser.arguments(&buf).len(), 0);
                    break;
                }
                Ok(Progress::Complete { consumed }) => {
                    assert!(consumed <= buf.len() && consumed > 0);
                    let request = owned(parser.arguments(&buf));
                    assert!(!request.is_empty());
                    requests.push(request);
                    start += consumed;
                }
                Ok(Progress::Empty { consumed }) => {
                    assert!(consumed <= buf.len() && consumed > 0);
                    start += consumed;
                }
            }
            parser.reset();
        }
    }
    (requests, None)
}

/// The requests of a stream that is sound, byte by byte as well as at once.
fn requests(stream: &[u8]) -> Vec<Request> {
    let whole = parse_whole(stream, &LIMITS);
    assert_eq!(whole, parse_pieces(stream, std::iter::repeat(1), &LIMITS));
    assert_eq!(whole.1, None);
    whole.0
}

/// The text that ends a stream, byte by byte as well as at once.
fn error_with(stream: &[u8], limits: &Limits) -> String {
    let whole = parse_whole(stream, limits);
    assert_eq!(whole, parse_pieces(stream, std::iter::repeat(1), limits));
    whole.1.unwrap_or_else(|| panic!("no error for {:?}", String::from_utf8_lossy(stream))).to_string()
}

fn error(stream: &[u8]) -> String {
    error_with(stream, &LIMITS)
}

/// Asserts that a stream just goes on.
fn goes_on(stream: &[u8]) {
    assert_eq!(requests(stream), Vec::<Request>::new(), "{:?}", String::from_utf8_lossy(stream));
}

fn words(words: &[&str]) -> Request {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn multibulk(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(format!("${}\r\n", arg.len()).bytes());
        out.extend(arg);
        out.extend(b"\r\n");
    }
    out
}

#[test]
fn a_multibulk_request_is_found_in_place() {
    let stream = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n";
    assert_eq!(requests(stream), [words(&["SET", "k", ""]), words(&["PING"])]);
    let mut parser = RequestParser::new();
    assert_eq!(parser.parse(stream, &LIMITS), Ok(Progress::Complete { consumed: 26 }));
    let first = parser.arguments(stream).next().unwrap();
    assert!(std::ptr::eq(first, &stream[8..11]));
}

#[test]
fn a_request_as_nearly_all_are_needs_no_parser() {
    let (name, value) = ("lock:order:000012345", "v".repeat(500));
    for args in [&["PING"][..], &["GET", ""], &["SET", name, &value, "NX", "PX", "30000"], &["x"; 37]] {
        let request = multibulk(&words(args));
        let stream = [&request[..], b"*1\r\n"].concat();
        assert_eq!(whole(&stream, &LIMITS), Some((words(args), request.len())), "{args:?}");
        let mut arguments = Vec::new();
        whole_request(&stream, &LIMITS, &mut arguments).unwrap();
        assert!(stream.as_ptr_range().contains(&arguments[0].as_ptr()));
        for len in 0..request.len() {
            assert_eq!(whole(&request[..len], &LIMITS), None, "{args:?} cut at {len}");
        }
    }
    for other in
        ["PING\r\nPING\r\n", "*0\r\n$4\r\nPING\r\n", "*01\r\n$4\r\nPING\r\n", "*1\r\n$04\r\nPING\r\n", "*-1\r\n$4\r\nPING\r\n"]
    {
        assert_eq!(whole(other.as_bytes(), &LIMITS), None, "{other:?}");
    }
    assert_eq!(whole(&multibulk(&words(&["x", &"v".repeat(1001)])), &LIMITS), None);
    assert_eq!(whole(&multibulk(&words(&["x"; 20])), &Limits { max_args: 19, ..LIMITS }), None);
    assert_eq!(whole(&multibulk(&words(&["x"; 11])), &UNAUTHENTICATED), None);
    assert!(whole(&multibulk(&words(&["x"; 10])), &UNAUTHENTICATED).is_some());
    for (len, taken) in [(16_384, true), (16_385, false)] {
        assert_eq!(whole(&multibulk(&[vec![b'v'; len]]), &UNAUTHENTICATED).is_some(), taken, "{len}");
    }
    let tight = Limits { max_bulk_len: 20, ..LIMITS };
    for len in [20, 21, 98, 99, 100] {
        let stream = multibulk(&[vec![b'v'; len]]);
        assert_eq!(whole(&stream, &tight), None);
        assert_eq!(parse_whole(&stream, &tight).1.is_some(), len > 20);
    }
}

#[test]
fn the_two_bytes_behind_an_argument_are_skipped_unread() {
    assert_eq!(requests(b"*2\r\n$4\r\nECHOxy$1\r\nk??"), [words(&["ECHO", "k"])]);
    assert_eq!(requests(b"*1\rX$4\rYPING\r\n"), [words(&["PING"])]);
}

#[test]
fn counts_that_ask_for_nothing() {
    for stream in [&b"*0\r\n"[..], b"*-1\r\n", b"*-9223372036854775808\r\n", b"\r\n", b"\n", b"  \t \r\n"] {
        let mut parser = RequestParser::new();
        assert_eq!(parser.parse(stream, &LIMITS), Ok(Progress::Empty { consumed: stream.len() }));
        assert_eq!(parser.arguments(stream).len(), 0);
        goes_on(stream);
    }
    assert_eq!(requests(b"*0\r\nPING\r\n*-7\r\n\r\nPING\r\n"), [words(&["PING"]), words(&["PING"])]);
}

#[test]
fn invalid_counts() {
    let text = "ERR Protocol error: invalid multibulk length";
    for count in ["", "x", "+1", "01", "-", "-0", "--1", "1x", " 1", "1 ", "3.0", "*1", "101", "1000000000", "2147483648"] {
        assert_eq!(error(format!("*{count}\r\n").as_bytes()), text, "{count}");
    }
    for count in ["9223372036854775808", "-9223372036854775809", "99999999999999999999999999"] {
        assert_eq!(error(format!("*{count}\r\n").as_bytes()), text, "{count}");
    }
    assert_eq!(error(&b"*1".repeat(200_000)), "ERR Protocol error: too big mbulk count string");
    assert_eq!(error(&b"*1\r\n".repeat(200_000)), "ERR Protocol error: expected '$', got '*'");
}

#[test]
fn invalid_lengths() {
    let text = "ERR Protocol error: invalid bulk length";
    for len in ["", "x", "-1", "+1", "00", "01", "-0", "1x", " 1", "1001", "99999999999", "99999999999999999999"] {
        assert_eq!(error(format!("*2\r\n$4\r\nECHO\r\n${len}\r\n").as_bytes()), text, "{len}");
    }
    let huge = Limits { max_bulk_len: u64::MAX, ..LIMITS };
    assert_eq!(error_with(b"*1\r\n$9223372036854775807\r\n", &huge), text);
}

#[test]
fn something_else_than_a_length() {
    for (stream, got) in [(&b"*1\r\nPING\r\n"[..], "P"), (b"*1\r\n:1\r\n", ":"), (b"*1\r\n\r\n", "\r"), (b"*1\r\n\n\r\n", "\n")] {
        assert_eq!(error(stream), format!("ERR Protocol error: expected '$', got '{got}'"));
    }
    assert_eq!(ProtocolError::ExpectedDollar(0xff).text().last_chunk::<5>().unwrap(), b"t '\xff'");
    // It is the whole line that is judged, as on Redis.
    goes_on(b"*1\r\nPING");
    goes_on(b"*1\r\nPING\r");
}

#[test]
fn lines_that_do_not_end() {
    let long = "1".repeat(64);
    goes_on(format!("*{}", &long[1..]).as_bytes());
    assert_eq!(error(format!("*{long}").as_bytes()), "ERR Protocol error: too big mbulk count string");
    assert_eq!(error(format!("*{long}\r\n").as_bytes()), "ERR Protocol error: too big mbulk count string");
    goes_on(format!("*1\r\n${}", &long[1..]).as_bytes());
    assert_eq!(error(format!("*1\r\n${long}").as_bytes()), "ERR Protocol error: too big bulk count string");
    assert_eq!(error(format!("*1\r\nx{long}").as_bytes()), "ERR Protocol error: too big bulk count string");
    goes_on(long.as_bytes());
    assert_eq!(requests(format!("{long}\n").as_bytes()), [words(&[&long])]);
    assert_eq!(error(format!("{long}1").as_bytes()), "ERR Protocol error: too big inline request");
    assert_eq!(error(format!("{long}1\n").as_bytes()), "ERR Protocol error: too big inline request");
    let megabyte = vec![b'a'; 1 << 20];
    assert_eq!(parse_whole(&megabyte, &Limits::default()).1, Some(ProtocolError::TooBigInline));
}

#[test]
fn a_nul_hides_the_end_of_a_line() {
    goes_on(b"PI\0NG\r\nPING\r\n");
    goes_on(b"*1\0\r\n$4\r\nPING\r\n");
    goes_on(b"*1\r\n$4\0\r\nPING\r\n");
    goes_on(b"*1\r\n\x004\r\nPING\r\n");
    goes_on(b"*1\r\n\x0014\r\nPINGPINGPINGPI\r\n");
    assert_eq!(error(&[b"PI\0NG\r\n", &[b'x'; 64][..]].concat()), "ERR Protocol error: too big inline request");
    assert_eq!(requests(b"*1\r\n$4\r\nP\0\0G\r\n"), [words(&["P\0\0G"])]);
}

#[test]
fn unauthenticated_clients_are_held_short() {
    assert_eq!(error_with(b"*11\r\n", &UNAUTHENTICATED), "ERR Protocol error: unauthenticated multibulk length");
    assert_eq!(error_with(b"*1\r\n$16385\r\n", &UNAUTHENTICATED), "ERR Protocol error: unauthenticated bulk length");
    assert_eq!(error_with(b"*2000000000\r\n", &UNAUTHENTICATED), "ERR Protocol error: invalid multibulk length");
    assert_eq!(parse_whole(b"*10\r\n$16384\r\n", &UNAUTHENTICATED), (vec![], None));
}

#[test]
fn inline_requests() {
    assert_eq!(
        requests(b"PING\r\nSET  k\t v \n\x0bGET k\r\n"),
        [words(&["PING"]), words(&["SET", "k", "v"]), words(&["GET", "k"])]
    );
    assert_eq!(requests(b"a\x0bb\x0c c\rd\r\r\n"), [words(&["a\x0bb\x0c", "c", "d"])]);
    assert_eq!(requests(b"$3 :x\n"), [words(&["$3", ":x"])]);
}

#[test]
fn inline_quotes() {
    let cases: &[(&str, &[&[u8]])] = &[
        (r#"SET k "a b""#, &[b"SET", b"k", b"a b"]),
        (r#""\x41\xfF\n\r\t\b\a\q\"\\""#, &[b"A\xff\n\r\t\x08\x07q\"\\"]),
        (r#""\x4""#, &[b"x4"]),
        (r#""\xzz""#, &[b"xzz"]),
        (r"'a\n\'b' c", &[b"a\\n'b", b"c"]),
        (r#"'"' "'""#, &[b"\"", b"'"]),
        (r#"a"b c""#, &[b"ab c"]),
        (r#"a'b'"#, &[b"ab"]),
        (r#""" ''"#, &[b"", b""]),
        ("\"a\"\x0bb", &[b"a", b"b"]),
        (r#"a\"b c""#, &[b"a\\b c"]),
        (r#"'a' "#, &[b"a"]),
    ];
    for (line, expected) in cases {
        assert_eq!(requests(format!("{line}\r\n").as_bytes()), [owned(expected.iter().copied())], "{line}");
    }
    for line in [r#"""#, "'", r#"a "b"#, r#""a"b"#, r#""a""b""#, "'a'b", "''''", r#""a\"#, r#""a\""#, r"'a\'", r#"x"y"z"#] {
        assert_eq!(error(format!("{line}\r\n").as_bytes()), "ERR Protocol error: unbalanced quotes in request", "{line}");
    }
}

#[test]
fn a_declared_length_reserves_nothing() {
    let mut parser = RequestParser::new();
    let limits = Limits::default();
    assert_eq!(parser.parse(b"*1048576\r\n", &limits), Ok(Progress::Incomplete));
    assert!(parser.spans.capacity() <= 4);
    assert_eq!(parser.parse(b"*1048576\r\n$536870912\r\nab", &limits), Ok(Progress::Incomplete));
    assert!(parser.spans.capacity() <= 4);
    assert_eq!(parser.needed(), 536_870_912);
    assert!(parser.is_partial());
}

#[test]
fn an_idle_parser_is_small() {
    assert!(size_of::<RequestParser>() <= 64);
    let mut parser = RequestParser::new();
    let long = multibulk(&vec![b"x".to_vec(); scaled(10_000, 300)]);
    assert_eq!(parser.parse(&long, &Limits::default()), Ok(Progress::Complete { consumed: long.len() }));
    assert_eq!(parser.arguments(&long).len(), scaled(10_000, 300));
    parser.reset();
    assert_eq!(parser.spans.capacity(), 0);
    let short = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    assert!(parser.parse(short, &LIMITS).is_ok());
    let kept = parser.spans.capacity();
    parser.reset();
    assert_eq!(parser.spans.capacity(), kept);
    assert_eq!(parser.parse(b"'a b'\n", &LIMITS), Ok(Progress::Complete { consumed: 6 }));
    parser.reset();
    assert!(parser.unquoted.is_none() && !parser.is_partial());
}

#[test]
fn needed_is_what_is_missing_of_an_argument() {
    let stream = b"*2\r\n$3\r\nGET\r\n$10\r\n0123456789\r\n";
    let mut parser = RequestParser::new();
    for len in 0..stream.len() {
        assert_eq!(parser.parse(&stream[..len], &LIMITS), Ok(Progress::Incomplete));
        assert!(parser.needed() >= 1 && len + parser.needed() <= stream.len());
        if len >= 18 {
            assert_eq!(len + parser.needed(), stream.len());
        }
    }
}

/// Bytes that mean something to the parser, in no particular order.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        6 => prop::sample::select(&b"*$\r\n0123456789-"[..]),
        2 => prop::sample::select(&b" \t\"'\\xabn\0\x0b"[..]),
        1 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..60)
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => prop::collection::vec(any::<u8>(), 0..12), 1 => prop::collection::vec(any::<u8>(), 90..120), 1 => noise()]
}

fn chunk() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(argument(), 0..6).prop_map(|args| multibulk(&args)),
        2 => "[a-z\"' \\\\]{0,30}\r?\n".prop_map(String::into_bytes),
        1 => noise(),
        1 => (-3i64..120).prop_map(|count| format!("*{count}\r\n").into_bytes()),
    ]
}

/// Puts arguments into the inline form, every byte escaped that could mean something.
fn inline(args: &[Vec<u8>]) -> Vec<u8> {
    let mut line = Vec::new();
    for arg in args {
        line.extend(b" \"");
        for &byte in arg {
            match byte {
                b'a'..=b'z' => line.push(byte),
                b'"' | b'\\' => line.extend([b'\\', byte]),
                _ => line.extend(format!("\\x{byte:02x}").bytes()),
            }
        }
        line.push(b'"');
    }
    line.extend(b"\r\n");
    line
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(700, 4)))]

    #[test]
    fn how_a_stream_is_cut_makes_no_difference(
        chunks in prop::collection::vec(chunk(), 0..8),
        pieces in prop::collection::vec(1usize..40, 0..60),
    ) {
        let stream = chunks.concat();
        let whole = parse_whole(&stream, &LIMITS);
        prop_assert_eq!(&parse_pieces(&stream, pieces, &LIMITS), &whole);
        prop_assert_eq!(&parse_pieces(&stream, std::iter::repeat(1), &LIMITS), &whole);
    }

    #[test]
    fn arguments_come_back_from_both_forms(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..6)) {
        let limits = Limits { max_inline: 1000, ..LIMITS };
        prop_assert_eq!(parse_whole(&multibulk(&args), &limits), (vec![args.clone()], None));
        prop_assert_eq!(parse_whole(&inline(&args), &limits), (vec![args], None));
    }

    #[test]
    fn redis_protocol_finds_the_same_arguments(args in prop::collection::vec(argument(), 1..8), cut in any::<prop::sample::Index>()) {
        let stream = multibulk(&args);
        let (frame, len) = decode(&stream).unwrap().unwrap();
        let OwnedFrame::Array(frames) = frame else { panic!("{frame:?}") };
        let theirs: Request = frames.into_iter().map(|frame| match frame {
            OwnedFrame::BulkString(bytes) => bytes,
            frame => panic!("{frame:?}"),
        }).collect();
        prop_assert_eq!(parse_whole(&stream, &LIMITS), (vec![theirs], None));
        let mut parser = RequestParser::new();
        prop_assert_eq!(parser.parse(&stream, &LIMITS), Ok(Progress::Complete { consumed: len }));
        let part = &stream[..cut.index(stream.len())];
        prop_assert!(decode(part).unwrap().is_none());
        prop_assert_eq!(parse_whole(part, &LIMITS), (vec![], None));
    }
}
