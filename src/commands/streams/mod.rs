//! Stream commands. Start with [`entries`]. Consumer groups are in [`groups`], [`reads`] and [`claims`].

pub mod claims;
pub mod entries;
pub mod groups;
pub mod info;
pub mod reads;
