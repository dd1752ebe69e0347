//! The request parser with arbitrary bytes. It does not panic. The result does not depend on how the stream is cut. The fast path
//! for whole requests finds the same requests. Where redis-protocol reads a request too, both give the same one.
//!
//! The first byte of an input says how the rest is cut, and whether the client is authenticated.

use portcullis::resp::request::{Limits, Progress, ProtocolError, RequestParser, whole_request};
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

/// The result of parsing a stream: its requests with their lengths, and the error that ended it.
type Outcome = (Vec<(Vec<Vec<u8>>, usize)>, Option<ProtocolError>);

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&control, stream)) = data.split_first() else { return };
    // Small limits, so that inputs reach them.
    let limits = Limits { max_bulk_len: 20_000, max_args: 200, max_inline: 128, authenticated: control & 1 == 0 };
    let whole = parse(stream, stream.len(), &limits);
    let piece = 1 + (control >> 1) as usize % 31;
    assert_eq!(parse(stream, piece, &limits), whole, "cut into pieces of {piece}");
    compare(stream, &whole);
}

fn parse(stream: &[u8], piece: usize, limits: &Limits) -> Outcome {
    let mut parser = RequestParser::new();
    let mut requests = Vec::new();
    let (mut start, mut end) = (0, 0);
    while end < stream.len() {
        end = (end + piece.max(1)).min(stream.len());
        loop {
            let buf = &stream[start..end];
            let mut whole = Vec::new();
            let behind = if parser.is_partial() { None } else { whole_request(buf, limits, &mut whole) };
            let progress = parser.parse(buf, limits);
            match behind {
                Some(behind) => {
                    assert_eq!(progress, Ok(Progress::Complete { consumed: buf.len() - behind.len() }));
                    assert!(parser.arguments(buf).eq(whole), "other arguments without the parser than with it");
                }
                None => assert!(whole.is_empty(), "arguments of no request"),
            }
            let (arguments, consumed) = match progress {
                Err(error) => return (requests, Some(error)),
                Ok(Progress::Incomplete) => {
                    assert!((1..=limits.max_bulk_len as usize + 2).contains(&parser.needed()), "needs {}", parser.needed());
                    break;
                }
                Ok(Progress::Complete { consumed }) => (parser.arguments(buf).map(<[u8]>::to_vec).collect(), consumed),
                Ok(Progress::Empty { consumed }) => (Vec::new(), consumed),
            };
            assert!((1..=buf.len()).contains(&consumed), "consumed {consumed} of {}", buf.len());
            requests.push((arguments, consumed));
            start += consumed;
            parser.reset();
        }
    }
    (requests, None)
}

/// Decodes each multibulk request with redis-protocol too. It accepts more (nested arrays, lengths with leading zeros) and less
/// (bytes behind an argument that are not CR and LF). Only requests that both accept are compared.
fn compare(stream: &[u8], (requests, error): &Outcome) {
    let mut rest = stream;
    for (arguments, consumed) in requests {
        if rest.first() == Some(&b'*')
            && let Ok(Some((frame, len))) = decode(&rest[..*consumed])
        {
            assert_eq!(len, *consumed);
            match frame {
                OwnedFrame::Null => assert!(arguments.is_empty()),
                OwnedFrame::Array(frames) => {
                    assert_eq!(frames.len(), arguments.len());
                    for (frame, argument) in frames.iter().zip(arguments) {
                        assert_eq!(frame, &OwnedFrame::BulkString(argument.clone()));
                    }
                }
                frame => panic!("{frame:?} from {arguments:?}"),
            }
        }
        rest = &rest[*consumed..];
    }
    if error.is_none()
        && rest.first() == Some(&b'*')
        && let Ok(Some((OwnedFrame::Array(frames), _))) = decode(rest)
    {
        let request = frames.iter().all(|frame| matches!(frame, OwnedFrame::BulkString(_)));
        assert!(!request, "redis-protocol finds a request where the parser wants more");
    }
}
