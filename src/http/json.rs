//! Replies as JSON, and names in both directions.

use serde_json::{Map, Value as Json};

use crate::client::Value;

/// Text of bytes. What is not UTF-8, and the backslash itself, is escaped: `\xff`, `\x5c`. So no two names have the same text.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |text: &mut String, byte: u8| text.push_str(&format!("\\x{byte:02x}"));
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' { escape(&mut text, b'\\') } else { text.push(c) }
        }
        chunk.invalid().iter().for_each(|&byte| escape(&mut text, byte));
    }
    text
}

/// The bytes of a text in the form of [`text`]. A backslash that begins no escape stands for itself.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        let escaped = if let [b'\\', b'x', high, low, ..] = rest { digit(*high).zip(digit(*low)) } else { None };
        if let Some((high, low)) = escaped {
            bytes.push(high << 4 | low);
            rest = &rest[4..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    bytes
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// A reply as JSON: maps are objects, and strings have the form of [`text`].
pub fn of(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Integer(number) => Json::from(*number),
        Value::Double(number) => Json::from(*number),
        Value::Boolean(boolean) => Json::from(*boolean),
        Value::BigNumber(bytes) | Value::Bytes(bytes) | Value::Status(bytes) | Value::Verbatim(bytes) => Json::from(text(bytes)),
        Value::Array(items) | Value::Set(items) | Value::Push(items) => items.iter().map(of).collect(),
        Value::Map(pairs) => Json::Object(pairs.iter().map(|(key, value)| (name(key), of(value))).collect::<Map<_, _>>()),
        Value::Error(error) => Json::from(error.to_string()),
    }
}

/// The name of an object's field.
fn name(key: &Value) -> String {
    if let Some(bytes) = key.as_bytes() { text(bytes) } else { of(key).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_in_both_directions() {
        for (raw, shown) in [
            (&b"plain"[..], "plain"),
            ("Türe".as_bytes(), "Türe"),
            (b"a\\b", "a\\x5cb"),
            (b"\xff\x00a", "\\xff\0a"),
            (b"\\x41", "\\x5cx41"),
            (b"", ""),
        ] {
            assert_eq!(text(raw), shown);
            assert_eq!(bytes(shown), raw);
        }
        // Patterns have backslashes of their own.
        assert_eq!(bytes("a\\*\\x4\\"), b"a\\*\\x4\\");
        assert_eq!(bytes("\\xFf"), b"\xff");
    }

    #[test]
    fn replies_become_json() {
        let string = |text: &'static str| Value::Bytes(bytes::Bytes::from_static(text.as_bytes()));
        let map = Value::Map(vec![(string("a"), Value::Integer(1)), (Value::Integer(2), Value::Array(vec![Value::Null]))]);
        assert_eq!(of(&map), serde_json::json!({"a": 1, "2": [null]}));
        assert_eq!(of(&Value::Double(f64::INFINITY)), Json::Null);
    }
}
