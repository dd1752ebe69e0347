//! Fields of replies. A field that an older server does not have is absent, not an error.

use crate::client::Value;
use crate::top::names::Name;

/// A field that is a number of 0 or more.
pub fn number(reply: &Value, field: &str) -> Option<u64> {
    reply.field(field)?.as_integer().and_then(|number| u64::try_from(number).ok())
}

/// A field that is a number of 0 or more, and what stands for it if it is absent.
pub fn number_or(reply: &Value, field: &str, absent: u64) -> u64 {
    number(reply, field).unwrap_or(absent)
}

/// A field that is an integer.
pub fn integer(reply: &Value, field: &str) -> Option<i64> {
    reply.field(field)?.as_integer()
}

/// A field that is a string; empty if it is absent.
pub fn name(reply: &Value, field: &str) -> Name {
    Name(reply.field(field).and_then(Value::as_bytes).unwrap_or_default().to_vec())
}

/// A field that is a string; `None` if it is nil, absent or empty.
pub fn name_if_any(reply: &Value, field: &str) -> Option<Name> {
    Some(name(reply, field)).filter(|name| !name.is_empty())
}

/// A field that is true or false; false if it is absent.
pub fn is(reply: &Value, field: &str) -> bool {
    reply.field(field).and_then(Value::as_integer).is_some_and(|number| number != 0)
}

/// A field that is an array of maps.
pub fn maps<'a>(reply: &'a Value, field: &str) -> &'a [Value] {
    reply.field(field).and_then(Value::as_array).unwrap_or_default()
}

/// The pairs of a field that is a map of names to names; none if it is absent.
pub fn fields(reply: &Value, field: &str) -> Vec<(Name, Name)> {
    let Some(map) = map(reply, field) else { return Vec::new() };
    let name = |value: &Value| Name(value.as_bytes().unwrap_or_default().to_vec());
    match map {
        Value::Map(pairs) => pairs.iter().map(|(field, value)| (name(field), name(value))).collect(),
        other => other.as_array().unwrap_or_default().chunks_exact(2).map(|pair| (name(&pair[0]), name(&pair[1]))).collect(),
    }
}

/// A field that is a map; `None` if it is nil or absent.
pub fn map<'a>(reply: &'a Value, field: &str) -> Option<&'a Value> {
    reply.field(field).filter(|value| !value.is_null())
}
