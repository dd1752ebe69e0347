//! Geo commands: sorted sets with geohashes as scores. Start with [`points`].

pub mod geohash;
pub mod points;
pub mod search;
