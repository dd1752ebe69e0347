//! Geo commands: sorted sets whose scores are geohashes. Begin at [`points`].

pub mod geohash;
pub mod points;
pub mod search;
