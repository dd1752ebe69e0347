//! Input that is kept from one turn to the next.

use std::collections::VecDeque;

use crate::resp::request::RequestParser;

/// Size of the blocks in which a blocked connection's input is kept.
pub(super) const BLOCK: usize = 1 << 20;

/// Input that is kept from one turn to the next.
pub(super) struct Kept {
    pub(super) bytes: Vec<u8>,
    /// Input that arrived while the session was blocked. It may be very large, so it is never moved.
    pub(super) behind: VecDeque<Vec<u8>>,
    behind_len: usize,
    /// Offset of the first byte that is not yet executed.
    pub(super) start: usize,
    pub(super) parser: Box<RequestParser>,
    /// Whether a complete request may be in it.
    pub(super) ready: bool,
}

impl Kept {
    pub(super) fn new(bytes: Vec<u8>, parser: Box<RequestParser>, ready: bool) -> Box<Kept> {
        Box::new(Kept { bytes, behind: VecDeque::new(), behind_len: 0, start: 0, parser, ready })
    }

    /// Number of bytes not yet executed.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start + self.behind_len
    }

    /// Appends input behind what cannot be executed now.
    pub(super) fn append_behind(&mut self, input: &[u8]) {
        self.behind_len += input.len();
        match self.behind.back_mut() {
            Some(block) if block.len() + input.len() <= BLOCK => block.extend_from_slice(input),
            _ => self.behind.push_back(input.to_vec()),
        }
    }

    /// Continues with the next block. Returns false if there is none.
    pub(super) fn next_block(&mut self) -> bool {
        let Some(block) = self.behind.pop_front() else { return false };
        self.behind_len -= block.len();
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.is_empty() {
            self.bytes = block;
        } else {
            self.bytes.extend_from_slice(&block);
        }
        true
    }

    /// Removes what was executed, if that is worth it.
    pub(super) fn compact(&mut self) {
        if (!self.ready && self.start > 0) || self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}
