//! Replies on the wire.

use portcullis::resp::reply::Protocol;

/// Panics if an outbox holds anything but complete replies. With `free`, big numbers may have any text, as scripts can return
/// them. (redis-protocol cannot decode a set of maps, as in COMMAND INFO.)
pub fn assert_whole(out: &[u8], protocol: Protocol, free: bool) {
    let mut rest = out;
    while !rest.is_empty() {
        rest = frame(rest, protocol, free, 0).unwrap_or_else(|| panic!("no whole replies: {:?}", String::from_utf8_lossy(out)));
    }
}

/// The replies and pushes in an outbox. Panics if there is anything else.
#[allow(dead_code, reason = "not every target takes an outbox apart")]
pub fn split(out: &[u8], protocol: Protocol) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (Vec::new(), out);
    while !rest.is_empty() {
        let behind = frame(rest, protocol, false, 0).unwrap_or_else(|| panic!("no whole replies: {}", out.escape_ascii()));
        parts.push(&rest[..rest.len() - behind.len()]);
        rest = behind;
    }
    parts
}

/// What follows the first reply. `None` if there is no valid and complete reply.
fn frame(out: &[u8], protocol: Protocol, free: bool, depth: usize) -> Option<&[u8]> {
    let end = out.iter().position(|&byte| byte == b'\r' || byte == b'\n')?;
    let rest = out[end..].strip_prefix(b"\r\n")?;
    let (kind, text) = out[..end].split_first()?;
    let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    let typed = protocol == Protocol::Resp3;
    let elements = match kind {
        b'+' | b'-' => return Some(rest),
        b':' => return number().map(|_| rest),
        b',' if typed => return std::str::from_utf8(text).ok()?.parse::<f64>().ok().map(|_| rest),
        b'#' if typed => return matches!(text, b"t" | b"f").then_some(rest),
        b'_' if typed => return text.is_empty().then_some(rest),
        b'(' if typed && free => return Some(rest),
        b'(' if typed => return text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-').then_some(rest),
        b'$' if !typed && text == b"-1" => return Some(rest),
        b'$' => return rest.get(number()?.try_into().ok()?..)?.strip_prefix(b"\r\n"),
        b'=' if typed => return rest.get(number()?.try_into().ok()?..)?.strip_prefix(b"\r\n"),
        b'*' if !typed && text == b"-1" => return Some(rest),
        b'*' => number()?,
        b'~' if typed => number()?,
        b'%' if typed => number()? * 2,
        // Attributes, and the reply that they belong to.
        b'|' if typed => number()? * 2 + 1,
        // Pushes occur only at the top level.
        b'>' if typed && depth == 0 => number()?,
        _ => return None,
    };
    let elements = usize::try_from(elements).ok()?;
    (0..elements).try_fold(rest, |rest, _| frame(rest, protocol, free, depth + 1))
}
