//! Replies, and their conversion to Rust types.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use bytes::Bytes;

use crate::client::error::{Error, ReplyError, Result};

/// A reply. RESP2 has fewer types than RESP3; [`FromValue`] accepts a map, a set, a boolean or a double in either form.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// The null value (`nil`).
    Null,
    /// An integer.
    Integer(i64),
    /// A floating-point number; RESP3 only.
    Double(f64),
    /// A boolean; RESP3 only.
    Boolean(bool),
    /// The digits of a number that is too large for [`Value::Integer`]; RESP3 only.
    BigNumber(Bytes),
    /// A bulk string.
    Bytes(Bytes),
    /// A status such as `OK`.
    Status(Bytes),
    /// Human-readable text; RESP3 only.
    Verbatim(Bytes),
    /// Values in order.
    Array(Vec<Value>),
    /// Values without a meaningful order; RESP3 only.
    Set(Vec<Value>),
    /// Keys and values, in the order of the reply; RESP3 only.
    Map(Vec<(Value, Value)>),
    /// An out-of-band message from the server; RESP3 only.
    Push(Vec<Value>),
    /// An error inside another reply, or among the replies of a pipeline.
    Error(ReplyError),
}

impl Value {
    /// Whether it is [`Value::Null`].
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The bytes of a string or status.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Bytes(bytes) | Value::Status(bytes) | Value::Verbatim(bytes) | Value::BigNumber(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text of a string or status, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// The value of an integer or boolean, or of a string of digits.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            Value::Boolean(boolean) => Some(i64::from(*boolean)),
            _ => self.as_str()?.parse().ok(),
        }
    }

    /// The elements of an array, set or push.
    pub fn as_array(&self) -> Option<&[Value]> {
        if let Value::Array(items) | Value::Set(items) | Value::Push(items) = self { Some(items) } else { None }
    }

    /// The value of a field, in a map or in an array of alternating fields and values.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Map(pairs) => pairs.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value),
            _ => self.as_array()?.chunks_exact(2).find(|pair| pair[0].as_str() == Some(name)).map(|pair| &pair[1]),
        }
    }

    /// Converts [`Value::Error`] to `Err`.
    ///
    /// # Errors
    /// If the reply is [`Value::Error`].
    pub fn into_result(self) -> Result<Value> {
        match self {
            Value::Error(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Converts the reply; see [`FromValue`].
    ///
    /// # Errors
    /// If the reply is an error, or does not convert to this type.
    pub fn into<T: FromValue>(self) -> Result<T> {
        T::from_value(self)
    }

    /// The error of a reply that does not convert to the wanted type.
    fn mismatch(self, wanted: &'static str) -> Error {
        /// Maximum number of characters of the reply in the error.
        const SHOWN: usize = 200;
        match self {
            Value::Error(error) => error.into(),
            other => {
                let mut got = format!("{other:?}");
                if let Some((end, _)) = got.char_indices().nth(SHOWN) {
                    got.truncate(end);
                    got.push('…');
                }
                Error::Type { wanted, got }
            }
        }
    }
}

/// Types that a reply converts to.
pub trait FromValue: Sized {
    /// Converts a reply.
    ///
    /// # Errors
    /// If the reply is an error, or does not convert to this type.
    fn from_value(value: Value) -> Result<Self>;
}

impl FromValue for Value {
    fn from_value(value: Value) -> Result<Self> {
        value.into_result()
    }
}

/// Accepts any reply but an error.
impl FromValue for () {
    fn from_value(value: Value) -> Result<Self> {
        value.into_result().map(drop)
    }
}

/// `nil` is `None`.
impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Result<Self> {
        if value.is_null() { Ok(None) } else { T::from_value(value).map(Some) }
    }
}

/// `OK` and any number but 0 are true; `nil` and 0 are false. So `SET … NX` converts to whether it set the key.
impl FromValue for bool {
    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Null => Ok(false),
            Value::Boolean(boolean) => Ok(boolean),
            Value::Integer(number) => Ok(number != 0),
            Value::Status(ref status) if status == "OK" => Ok(true),
            Value::Bytes(ref bytes) if bytes == "1" || bytes == "0" => Ok(bytes == "1"),
            other => Err(other.mismatch("a boolean")),
        }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl FromValue for $number {
            fn from_value(value: Value) -> Result<Self> {
                match value.as_integer().and_then(|number| <$number>::try_from(number).ok()) {
                    Some(number) => Ok(number),
                    None => Err(value.mismatch(concat!("a number of type ", stringify!($number)))),
                }
            }
        }
    )*};
}
numbers!(i64, u64, i32, u32, usize);

impl FromValue for f64 {
    fn from_value(value: Value) -> Result<Self> {
        let number = match &value {
            Value::Double(number) => Some(*number),
            Value::Integer(number) => Some(*number as f64),
            other => other.as_str().and_then(|text| text.parse().ok()),
        };
        number.ok_or_else(|| value.mismatch("a number"))
    }
}

impl FromValue for Bytes {
    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Bytes(bytes) | Value::Status(bytes) | Value::Verbatim(bytes) | Value::BigNumber(bytes) => Ok(bytes),
            Value::Integer(number) => Ok(Bytes::from(number.to_string())),
            other => Err(other.mismatch("a string")),
        }
    }
}

impl FromValue for Vec<u8> {
    fn from_value(value: Value) -> Result<Self> {
        Bytes::from_value(value).map(Vec::from)
    }
}

/// Accepts bytes that are UTF-8.
impl FromValue for String {
    fn from_value(value: Value) -> Result<Self> {
        String::from_utf8(Vec::from_value(value)?)
            .map_err(|error| Error::Type { wanted: "UTF-8", got: format!("{:?}", Bytes::from(error.into_bytes())) })
    }
}

/// Accepts an array or set; `nil` has no elements.
impl<T: FromElement> FromValue for Vec<T> {
    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) | Value::Set(items) | Value::Push(items) => items.into_iter().map(T::from_value).collect(),
            other => Err(other.mismatch("an array")),
        }
    }
}

/// Types that can be an element of a `Vec`: everything but `u8`, because a `Vec<u8>` is a string.
pub trait FromElement: FromValue {}
impl FromElement for Value {}
impl<T: FromValue> FromElement for Option<T> {}
impl FromElement for bool {}
impl FromElement for i64 {}
impl FromElement for u64 {}
impl FromElement for f64 {}
impl FromElement for Bytes {}
impl FromElement for String {}
impl<T> FromElement for Vec<T> where Vec<T>: FromValue {}
impl<A: FromValue, B: FromValue> FromElement for (A, B) {}

/// Accepts an array of two.
impl<A: FromValue, B: FromValue> FromValue for (A, B) {
    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Array(items) if items.len() == 2 => {
                let mut items = items.into_iter();
                let mut next = || items.next().unwrap_or(Value::Null);
                Ok((A::from_value(next())?, B::from_value(next())?))
            }
            other => Err(other.mismatch("an array of two")),
        }
    }
}

/// Accepts an array of three.
impl<A: FromValue, B: FromValue, C: FromValue> FromValue for (A, B, C) {
    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Array(items) if items.len() == 3 => {
                let mut items = items.into_iter();
                let mut next = || items.next().unwrap_or(Value::Null);
                Ok((A::from_value(next())?, B::from_value(next())?, C::from_value(next())?))
            }
            other => Err(other.mismatch("an array of three")),
        }
    }
}

/// The pairs of a map, or of an array of alternating keys and values.
fn pairs(value: Value) -> Result<Vec<(Value, Value)>> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Map(pairs) => Ok(pairs),
        Value::Array(items) if items.len() % 2 == 0 => Ok(pair_up(items)),
        other => Err(other.mismatch("a map")),
    }
}

/// Pairs alternating keys and values.
pub(crate) fn pair_up(items: Vec<Value>) -> Vec<(Value, Value)> {
    let mut pairs = Vec::with_capacity(items.len() / 2);
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    pairs
}

/// Accepts a map, or an array of alternating keys and values.
impl<K: FromValue + Eq + Hash, V: FromValue> FromValue for HashMap<K, V> {
    fn from_value(value: Value) -> Result<Self> {
        pairs(value)?.into_iter().map(|(key, value)| Ok((K::from_value(key)?, V::from_value(value)?))).collect()
    }
}

/// Accepts a map, or an array of alternating keys and values.
impl<K: FromValue + Ord, V: FromValue> FromValue for BTreeMap<K, V> {
    fn from_value(value: Value) -> Result<Self> {
        pairs(value)?.into_iter().map(|(key, value)| Ok((K::from_value(key)?, V::from_value(value)?))).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(text: &'static str) -> Value {
        Value::Bytes(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn replies_of_both_protocols_convert_to_the_same_types() {
        let pair = || (text("a"), Value::Integer(1));
        let map: BTreeMap<String, i64> = Value::Map(vec![pair()]).into().unwrap();
        let same: BTreeMap<String, i64> = Value::Array(vec![pair().0, text("1")]).into().unwrap();
        assert_eq!(map, same);
        assert_eq!(Value::Double(1.5).into::<f64>(), text("1.5").into::<f64>());
        assert_eq!(Value::Boolean(true).into::<bool>(), Value::Integer(1).into::<bool>());
        assert_eq!(Value::Set(vec![text("x")]).into::<Vec<String>>(), Value::Array(vec![text("x")]).into::<Vec<String>>());
        assert_eq!(Value::Map(vec![pair()]).field("a"), Some(&Value::Integer(1)));
        assert_eq!(Value::Array(vec![pair().0, pair().1]).field("a"), Some(&Value::Integer(1)));
    }

    #[test]
    fn a_reply_of_another_type_is_an_error() {
        assert!(matches!(text("x").into::<i64>(), Err(Error::Type { .. })));
        assert!(matches!(Value::Integer(-1).into::<u64>(), Err(Error::Type { .. })));
        assert!(matches!(Value::Null.into::<String>(), Err(Error::Type { .. })));
        assert_eq!(Value::Null.into::<Option<String>>(), Ok(None));
        assert_eq!(Value::Error(ReplyError::new(b"ERR no")).into::<()>().unwrap_err().code(), Some("ERR"));
        assert!(Value::Array(vec![Value::Error(ReplyError::new(b"ERR no"))]).into::<Vec<i64>>().is_err());
        let long = Value::Bytes(Bytes::from(vec![0xff; 100_000]));
        let Err(Error::Type { got, .. }) = long.into::<i64>() else { panic!("no error") };
        assert!(got.len() < 300);
    }
}
