//! Hash commands. Begin at [`fields`]; [`expiry`] and [`leases`] are about fields with a time to live.

pub mod expiry;
pub mod fields;
pub mod leases;

#[cfg(test)]
mod tests;
