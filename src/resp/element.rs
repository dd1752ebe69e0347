//! Elements of replies that are values of Rust: the fields of maps, and values that may be missing.

use crate::resp::reply::Sink;

/// A value that is an element of a reply.
pub trait Element {
    /// Writes it.
    fn write(self, reply: &mut dyn Sink);
}

impl dyn Sink + '_ {
    /// An element.
    pub fn element(&mut self, value: impl Element) {
        value.write(self);
    }

    /// A field of a map: its name and its value.
    pub fn entry(&mut self, name: &str, value: impl Element) {
        self.bulk(name.as_bytes());
        self.element(value);
    }
}

impl<T: AsRef<[u8]> + ?Sized> Element for &T {
    fn write(self, reply: &mut dyn Sink) {
        reply.bulk(self.as_ref());
    }
}

impl Element for i64 {
    fn write(self, reply: &mut dyn Sink) {
        reply.integer(self);
    }
}

impl Element for u64 {
    fn write(self, reply: &mut dyn Sink) {
        reply.integer(i64::try_from(self).unwrap_or(i64::MAX));
    }
}

impl Element for usize {
    fn write(self, reply: &mut dyn Sink) {
        reply.element(self as u64);
    }
}

impl Element for f64 {
    fn write(self, reply: &mut dyn Sink) {
        reply.double(self);
    }
}

impl Element for bool {
    fn write(self, reply: &mut dyn Sink) {
        reply.boolean(self);
    }
}

/// What is missing is null.
impl<T: Element> Element for Option<T> {
    fn write(self, reply: &mut dyn Sink) {
        if let Some(value) = self { value.write(reply) } else { reply.null() }
    }
}
