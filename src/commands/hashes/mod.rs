//! Hash commands. Start with [`fields`]. [`expiry`] and [`leases`] have the commands for field deadlines.

pub mod expiry;
pub mod fields;
pub mod leases;

#[cfg(test)]
mod tests;
