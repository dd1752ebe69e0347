//! The SHA-1 that identifies a script.

use std::hash::Hasher;

use sha1::{Digest, Sha1};

/// The SHA-1 of a script in 40 lower-case hexadecimal digits.
pub type Sha = [u8; 40];

/// The SHA-1 of bytes in 40 lower-case hexadecimal digits.
pub(crate) fn sha1_hex(bytes: &[u8]) -> Sha {
    hex(Sha1::new_with_prefix(bytes))
}

/// The result of a SHA-1 in 40 lower-case hexadecimal digits.
pub(crate) fn hex(digest: Sha1) -> Sha {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 40];
    for (pair, byte) in text.chunks_exact_mut(2).zip(digest.finalize()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

/// Hashes a [`Sha`] by its first eight digits, because a SHA-1 is random enough.
#[derive(Default)]
pub(crate) struct ShaHasher(u64);

impl Hasher for ShaHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            let product = u128::from(u64::from_ne_bytes(*first)) * 0x9e37_79b9_7f4a_7c15;
            self.0 = product as u64 ^ (product >> 64) as u64;
        }
    }

    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
