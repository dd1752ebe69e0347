//! Times of last deliveries to consumers, which the form of streams for Redis 7.0 does not have: a record of the kind AUX before the
//! stream.
//!
//! ```text
//!   PORTCULLIS.CONSUMERS   name of the stream that follows · { group · consumer · time of its last delivery, Unix ms }
//! ```

use crate::persist::natives::{Fields, Payload, Refusal};
use crate::store::values::stream::{Consumer, Stream};

/// The name of the field.
pub const NAME: &[u8] = b"PORTCULLIS.CONSUMERS";

/// The payload for a stream: the consumers whose last delivery is not their last read.
pub fn consumers(name: &[u8], stream: &Stream) -> Vec<u8> {
    let groups = stream.groups().flat_map(|(group, of)| of.consumers().map(move |consumer| (group, consumer)));
    let inexact = |(_, consumer): &(&[u8], &Consumer)| consumer.active_ms != Some(consumer.seen_ms);
    let mut payload = Payload::begin();
    payload.string(name);
    for (group, consumer) in groups.filter(inexact) {
        payload.string(group);
        payload.string(&consumer.name);
        payload.optional(consumer.active_ms);
    }
    payload.end()
}

/// A group, a consumer, and the time of its last delivery in Unix milliseconds, if there was one.
pub type Delivery = (Box<[u8]>, Box<[u8]>, Option<i64>);

/// Times of last deliveries, of consumers of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// The name of the stream.
    pub stream: Box<[u8]>,
    /// Of each consumer.
    pub consumers: Vec<Delivery>,
}

impl Deliveries {
    /// Reads [`consumers`].
    pub fn read(payload: &[u8]) -> Result<Deliveries, Refusal> {
        let mut fields = Fields::open(payload)?;
        Deliveries::of(&mut fields).ok_or(Refusal::Malformed)
    }

    fn of(fields: &mut Fields<'_>) -> Option<Deliveries> {
        let mut deliveries = Deliveries { stream: fields.string()?.into(), consumers: Vec::new() };
        while fields.end().is_none() {
            let (group, consumer) = (fields.string()?.into(), fields.string()?.into());
            deliveries.consumers.push((group, consumer, fields.optional()?));
        }
        Some(deliveries)
    }

    /// Sets them in the stream.
    pub fn set_in(&self, stream: &mut Stream) {
        for (group, name, active_ms) in &self.consumers {
            if let Some(group) = stream.group_mut(group)
                && let Some(seen_ms) = group.consumer(name).map(|consumer| consumer.seen_ms)
            {
                group.set_consumer(name, seen_ms, *active_ms);
            }
        }
    }
}
