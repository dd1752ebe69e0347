//! The arguments of a request that outlives the buffer it came in.

use smallvec::SmallVec;

/// Arguments of one request, in one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    bytes: Box<[u8]>,
    /// The end of each argument in `bytes`.
    ends: Box<[usize]>,
}

impl Arguments {
    /// Copies borrowed arguments.
    pub fn new(args: &[&[u8]]) -> Self {
        let mut end = 0;
        let ends = args.iter().map(|arg| {
            end += arg.len();
            end
        });
        Arguments { ends: ends.collect(), bytes: args.concat().into() }
    }

    /// The arguments in the form that handlers take.
    pub fn borrow(&self) -> SmallVec<[&[u8]; 16]> {
        split(&self.bytes, 0, &self.ends)
    }

    /// Bytes that they take up.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.ends)
    }
}

/// The pieces of `bytes` from `start` on with these ends.
pub fn split<'a>(bytes: &'a [u8], mut start: usize, ends: &[usize]) -> SmallVec<[&'a [u8]; 16]> {
    let piece = |&end: &usize| &bytes[std::mem::replace(&mut start, end)..end];
    ends.iter().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_back_as_they_were() {
        for args in [&[][..], &[&b"GET"[..], b"", b"k\0ey", b""], &[b""]] {
            let owned = Arguments::new(args);
            assert_eq!(&owned.borrow()[..], args);
        }
    }
}
