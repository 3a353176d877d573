//! The root half: it verifies what it is given, keeps it, and makes the host so.

pub mod ledger;
pub mod outputs;
