//! The values of a running plan.

/// Maximum length in bytes of a text in the arena. A longer text is allocated.
pub(super) const SHORT: usize = 512;

/// The value of an expression.
#[derive(Clone, Copy)]
pub(super) enum Value<'r> {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(Text<'r>),
    /// A status reply, which in Lua is a table with `ok`, and the number of the call that returned it: no two tables are equal.
    Status(u32, Text<'r>),
}

/// A string.
#[derive(Clone, Copy)]
pub(super) enum Text<'r> {
    /// A text in the plan, in the request or in the arena.
    Borrowed(&'r [u8]),
    /// The index of an allocated text in [`OwnedTexts`].
    Owned(u32),
}

/// Replies that are allocated, because they are long or the arena is full. Equal texts are stored once, like strings of Lua.
pub(super) type OwnedTexts = Vec<Vec<u8>>;

impl<'r> Value<'r> {
    #[inline]
    pub(super) fn is_true(self) -> bool {
        !matches!(self, Value::Nil | Value::Boolean(false))
    }

    /// The bytes of the string, if the value is one.
    #[inline]
    pub(super) fn text<'t>(self, owned: &'t OwnedTexts) -> Option<&'t [u8]>
    where
        'r: 't,
    {
        if let Value::Text(text) = self { Some(text.bytes(owned)) } else { None }
    }

    /// Whether the value refers to an allocated text.
    #[inline]
    pub(super) fn is_owned(self) -> bool {
        matches!(self, Value::Text(Text::Owned(_)) | Value::Status(_, Text::Owned(_)))
    }
}

impl<'r> Text<'r> {
    #[inline]
    pub(super) fn bytes<'t>(self, owned: &'t OwnedTexts) -> &'t [u8]
    where
        'r: 't,
    {
        match self {
            Text::Borrowed(text) => text,
            Text::Owned(number) => owned.get(number as usize).map(Vec::as_slice).unwrap_or_default(),
        }
    }
}

/// Memory for short replies. It is filled from the front, and empty again at the next run.
pub(super) struct Arena<'r>(pub &'r mut [u8]);

impl<'r> Arena<'r> {
    /// Copies a text into the arena. `None` if the text is long or the arena is full.
    #[inline]
    pub(super) fn copy(&mut self, text: &[u8]) -> Option<&'r [u8]> {
        if text.len() > SHORT.min(self.0.len()) {
            return None;
        }
        let (place, rest) = std::mem::take(&mut self.0).split_at_mut(text.len());
        self.0 = rest;
        place.copy_from_slice(text);
        Some(place)
    }
}
