//! The request parser. (placeholder, for now)
