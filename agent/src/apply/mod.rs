//! The root half: verifies desired states, stores them, and makes the host match them.

pub mod applier;
pub mod clean_ups;
pub mod executor;
pub mod hooks;
pub mod ledger;
pub mod left_commands;
pub mod leftovers;
mod listing;
pub mod memory;
pub mod orphans;
pub mod outputs;
pub mod reboots;
pub mod recent_checks;
pub mod rendering;
pub mod seal;
pub mod task;
#[cfg(test)]
pub(crate) mod testing;
pub mod verify;
pub mod wake;
pub mod worker;
