//! Streams in a payload: runs of entries as listpacks, then counters, then groups.
//!
//! ```text
//!   run     = first id, 16 bytes as a string · listpack of a master entry and entries, as a string
//!   master  = count · deleted · number of fields · the fields · 0
//!   entry   = flags · ms and seq relative to the first id · [number of fields · field · value … | value …] · elements of the entry
//!   group   = name · last id · entries read · { id · delivered ms · deliveries } · { consumer · times · its ids }
//! ```

use std::collections::BTreeMap;

use crate::base::number::parse_i64;
use crate::keyspace::rdb::compact;
use crate::keyspace::rdb::compact::Elements;
use crate::keyspace::rdb::kind;
use crate::keyspace::rdb::parts::{VERSION, VERSION_WITH_DELIVERIES, chunk, plain_length, put_length, put_string, string};
use crate::store::values::stream::{BlockLimits, Entry, Group, Stream, StreamId};

/// The entry was deleted and does not count.
const DELETED: i64 = 1;
/// Its fields are those of the master entry.
const SAME_FIELDS: i64 = 2;

/// Number of entries per run that we write.
const RUN: usize = 100;
/// Bytes of a run after which we begin another one.
const RUN_BYTES: usize = 1 << 20;

/// A listpack while it is written.
struct Listpack {
    bytes: Vec<u8>,
    count: usize,
}

impl Listpack {
    fn new() -> Self {
        // Total bytes and count are filled in at the end.
        Listpack { bytes: vec![0; 6], count: 0 }
    }

    /// Ends an element that began at `start`: appends its length, seven bits per byte, the highest first, with a mark on all but
    /// the first.
    fn end(&mut self, start: usize) {
        let len = self.bytes.len() - start;
        let groups = compact::backwards(len);
        for group in (0..groups).rev() {
            let mark = if group == groups - 1 { 0 } else { 0x80 };
            self.bytes.push((len >> (7 * group)) as u8 & 0x7f | mark);
        }
        self.count += 1;
    }

    fn integer(&mut self, n: i64) {
        let start = self.bytes.len();
        match (u8::try_from(n), i16::try_from(n), i32::try_from(n)) {
            (Ok(n), ..) if n < 0x80 => self.bytes.push(n),
            (_, Ok(n), _) => {
                self.bytes.push(0xf1);
                self.bytes.extend_from_slice(&n.to_le_bytes());
            }
            (_, _, Ok(n)) => {
                self.bytes.push(0xf3);
                self.bytes.extend_from_slice(&n.to_le_bytes());
            }
            _ => {
                self.bytes.push(0xf4);
                self.bytes.extend_from_slice(&n.to_le_bytes());
            }
        }
        self.end(start);
    }

    fn text(&mut self, text: &[u8]) {
        let start = self.bytes.len();
        match text.len() {
            len @ 0..0x40 => self.bytes.push(0x80 | len as u8),
            len @ 0x40..0x1000 => self.bytes.extend_from_slice(&[0xe0 | (len >> 8) as u8, len as u8]),
            len => {
                self.bytes.push(0xf0);
                self.bytes.extend_from_slice(&(len as u32).to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(text);
        self.end(start);
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0xff);
        let total = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&total.to_le_bytes());
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        self.bytes[4..6].copy_from_slice(&count.to_le_bytes());
        self.bytes
    }
}

fn id_bytes(id: StreamId) -> [u8; 16] {
    (u128::from(id.ms) << 64 | u128::from(id.seq)).to_be_bytes()
}

fn put_number(out: &mut Vec<u8>, n: u64) {
    put_length(out, n as usize);
}

fn put_id(out: &mut Vec<u8>, id: StreamId) {
    put_number(out, id.ms);
    put_number(out, id.seq);
}

/// Entries of a stream, run by run.
fn runs(stream: &Stream) -> Vec<Vec<Entry<'_>>> {
    let mut runs: Vec<Vec<Entry<'_>>> = Vec::new();
    let mut bytes = 0;
    for entry in stream.range(StreamId::MIN, StreamId::MAX) {
        bytes += entry.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        match runs.last_mut() {
            Some(run) if run.len() < RUN && bytes <= RUN_BYTES => run.push(entry),
            _ => {
                bytes = 0;
                runs.push(vec![entry]);
            }
        }
    }
    runs
}

fn put_run(out: &mut Vec<u8>, run: &[Entry<'_>]) {
    let first = run[0];
    let mut listpack = Listpack::new();
    listpack.integer(run.len() as i64);
    listpack.integer(0);
    listpack.integer(first.len() as i64);
    first.iter().for_each(|(name, _)| listpack.text(name));
    listpack.integer(0);
    for entry in run {
        let same = entry.len() == first.len() && entry.iter().zip(first.iter()).all(|((a, _), (b, _))| a == b);
        listpack.integer(if same { SAME_FIELDS } else { 0 });
        listpack.integer(entry.id.ms.wrapping_sub(first.id.ms) as i64);
        listpack.integer(entry.id.seq.wrapping_sub(first.id.seq) as i64);
        if !same {
            listpack.integer(entry.len() as i64);
        }
        for (name, value) in entry.iter() {
            if !same {
                listpack.text(name);
            }
            listpack.text(value);
        }
        let elements = if same { entry.len() + 3 } else { 2 * entry.len() + 4 };
        listpack.integer(elements as i64);
    }
    put_string(out, &id_bytes(first.id));
    put_string(out, &listpack.finish());
}

/// Whether the older form of a stream says everything: each consumer's last delivery is as old as its last read.
pub fn fits_older_form(stream: &Stream) -> bool {
    stream.groups().all(|(_, group)| group.consumers().all(|consumer| consumer.active_ms == Some(consumer.seen_ms)))
}

/// The type under which a stream is written, and the version of the format that it needs, which is at most `newest`. Redis 7.2
/// added the time of a consumer's last delivery; the older form takes the last read for it.
pub fn kind_of(stream: &Stream, newest: u16) -> (u8, u16) {
    if newest < VERSION_WITH_DELIVERIES || fits_older_form(stream) {
        (kind::STREAM_LISTPACKS_2, VERSION)
    } else {
        (kind::STREAM_LISTPACKS_3, VERSION_WITH_DELIVERIES)
    }
}

/// Writes a stream with its type in the form that Redis 7.0 reads, without the times of consumers' last deliveries.
pub fn put_stream_for_7_0(out: &mut Vec<u8>, stream: &Stream) {
    out.push(kind::STREAM_LISTPACKS_2);
    put_stream(out, kind::STREAM_LISTPACKS_2, stream);
}

/// Writes a stream without its type, which [`kind_of`] returned.
pub fn put_stream(out: &mut Vec<u8>, kind: u8, stream: &Stream) {
    let older = kind == kind::STREAM_LISTPACKS_2;
    let runs = runs(stream);
    put_length(out, runs.len());
    for run in &runs {
        put_run(out, run);
    }
    put_number(out, stream.len());
    put_id(out, stream.last_id);
    put_id(out, stream.first_id());
    put_id(out, stream.max_deleted_id);
    put_number(out, stream.entries_added);
    put_length(out, stream.groups().len());
    for (name, group) in stream.groups() {
        put_string(out, name);
        put_id(out, group.last_id);
        put_number(out, group.entries_read.unwrap_or(u64::MAX));
        put_length(out, group.pending().len());
        for (id, pending) in group.pending() {
            out.extend_from_slice(&id_bytes(*id));
            out.extend_from_slice(&pending.delivered_ms.to_le_bytes());
            put_number(out, pending.count as u64);
        }
        put_length(out, group.consumers().len());
        for consumer in group.consumers() {
            put_string(out, &consumer.name);
            out.extend_from_slice(&consumer.seen_ms.to_le_bytes());
            if !older {
                out.extend_from_slice(&consumer.active_ms.unwrap_or(-1).to_le_bytes());
            }
            put_length(out, consumer.pending().len());
            for id in consumer.pending() {
                out.extend_from_slice(&id_bytes(*id));
            }
        }
    }
}

fn id_of(bytes: [u8; 16]) -> StreamId {
    let both = u128::from_be_bytes(bytes);
    StreamId::new((both >> 64) as u64, both as u64)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    plain_length(rest).map(|n| n as u64)
}

fn id(rest: &mut &[u8]) -> Option<StreamId> {
    Some(StreamId::new(number(rest)?, number(rest)?))
}

/// Reads the entries of one run.
fn read_run(stream: &mut Stream, limits: BlockLimits, first: StreamId, elements: &Elements<'_>) -> Option<()> {
    let mut rest = elements.iter().map(|element| &**element);
    let integer = |rest: &mut dyn Iterator<Item = &'_ [u8]>| rest.next().and_then(parse_i64);
    let (_count, _deleted) = (integer(&mut rest)?, integer(&mut rest)?);
    let fields = usize::try_from(integer(&mut rest)?).ok()?;
    if fields > elements.len() {
        return None;
    }
    let names: Vec<&[u8]> = rest.by_ref().take(fields).collect();
    if names.len() != fields || integer(&mut rest)? != 0 {
        return None;
    }
    while rest.len() > 0 {
        let flags = integer(&mut rest)?;
        let ms = first.ms.wrapping_add(integer(&mut rest)? as u64);
        let id = StreamId::new(ms, first.seq.wrapping_add(integer(&mut rest)? as u64));
        let same = flags & SAME_FIELDS != 0;
        let fields = if same { fields } else { usize::try_from(integer(&mut rest)?).ok()? };
        let parts = if same { fields } else { fields.checked_mul(2)? };
        if fields == 0 || parts > rest.len() {
            return None;
        }
        let mut pairs: Vec<&[u8]> = Vec::with_capacity(2 * fields);
        let mut own_names = names.iter();
        for _ in 0..fields {
            pairs.push(if same { own_names.next()? } else { rest.next()? });
            pairs.push(rest.next()?);
        }
        let elements = if same { fields + 3 } else { 2 * fields + 4 };
        if integer(&mut rest)? != elements as i64 {
            return None;
        }
        if flags & DELETED == 0 {
            if id <= stream.last_id {
                return None;
            }
            stream.append(limits, id, &pairs);
        }
    }
    Some(())
}

fn read_group(kind: u8, rest: &mut &[u8], stream: &Stream) -> Option<Group> {
    let last_id = id(rest)?;
    let entries_read = match kind {
        kind::STREAM_LISTPACKS => stream.entries_up_to(last_id),
        _ => Some(number(rest)?).filter(|&read| read != u64::MAX),
    };
    let mut group = Group::new(last_id, entries_read);
    let mut pending = BTreeMap::new();
    for _ in 0..plain_length(rest)? {
        let (id, delivered_ms) = (id_of(chunk(rest)?), i64::from_le_bytes(chunk(rest)?));
        let count = i64::try_from(number(rest)?).ok()?;
        if pending.insert(id, (delivered_ms, count)).is_some() {
            return None;
        }
    }
    for _ in 0..plain_length(rest)? {
        let name = string(rest)?;
        if group.consumer(&name).is_some() {
            return None;
        }
        let seen_ms = i64::from_le_bytes(chunk(rest)?);
        let active_ms = match kind {
            kind::STREAM_LISTPACKS_3 => Some(i64::from_le_bytes(chunk(rest)?)).filter(|&ms| ms != -1),
            _ => Some(seen_ms),
        };
        group.set_consumer(&name, seen_ms, active_ms);
        for _ in 0..plain_length(rest)? {
            let id = id_of(chunk(rest)?);
            let (delivered_ms, count) = pending.remove(&id)?;
            group.set_pending(id, &name, delivered_ms, count);
        }
    }
    // Every pending entry must belong to a consumer.
    pending.is_empty().then_some(group)
}

/// Reads a stream of one of the three types.
pub fn read_stream(kind: u8, rest: &mut &[u8], limits: BlockLimits) -> Option<Stream> {
    let mut stream = Stream::default();
    for _ in 0..plain_length(rest)? {
        let key = string(rest)?;
        let first = id_of(key.as_ref().try_into().ok()?);
        let listpack = string(rest)?;
        read_run(&mut stream, limits, first, &compact::listpack(&listpack)?)?;
    }
    let len = number(rest)?;
    let last_id = id(rest)?;
    if len != stream.len() || last_id < stream.last_id {
        return None;
    }
    stream.last_id = last_id;
    if kind == kind::STREAM_LISTPACKS {
        stream.entries_added = len;
    } else {
        let _first_id = id(rest)?;
        stream.max_deleted_id = id(rest)?;
        stream.entries_added = number(rest)?;
    }
    for _ in 0..plain_length(rest)? {
        let name = string(rest)?;
        let group = read_group(kind, rest, &stream)?;
        if stream.group(&name).is_some() {
            return None;
        }
        stream.add_group(&name, group);
    }
    Some(stream)
}
