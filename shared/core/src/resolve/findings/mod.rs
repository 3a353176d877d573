//! The findings about nodes and the levels above them, from the resolved fleet or from what the controller observes.
//!
//! The findings about a release alone are created when the release is compiled. They are stored with the compiled
//! release, because they are the same in every cluster.

mod catalog;
mod cluster;
mod failing;
mod level;
mod node;
mod outdated;
mod placement;
mod primary;
mod unset;

pub(crate) use catalog::catalog_findings;
pub use catalog::{all_catalog_findings, newly_uncatalogued, object_catalog_findings};
pub use cluster::{cluster_findings, newly_undeclared};
pub use failing::{FailingTasks, is_aggregated, newly_obstructed};
pub use level::{level_findings, newly_colliding_below};
pub use node::{
    duplicate_host, fleet_waiting, host_ahead, host_awaited, host_stuck, new_rule_findings, newly_colliding, newly_unmet,
    orphans, reboot_wanted, release_broken, release_refused, report_dropped, report_findings, report_refused, report_waiting,
    too_large,
};
pub use outdated::{OutdatedAgents, newly_outdated};
pub use placement::{new_placement_findings, newly_orphaned, retain_new_findings};
pub use primary::{newly_parked_primaries, primaries_edit_hint};
pub use unset::{UnsetReferences, newly_unset, unset_in_empty_groups};
