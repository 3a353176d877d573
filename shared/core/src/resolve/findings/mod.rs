//! Everything that resolve finds, about a node and about a cluster: there is no other list.
//!
//! What a release's compiler finds stands with the release, since it is the same wherever the release runs.

mod catalog;
mod cluster;
mod failing;
mod level;
mod node;
mod placed;
mod primary;
mod unset;

pub(crate) use catalog::catalog_findings;
pub use catalog::{all_catalog_findings, catalog_findings_of, newly_uncatalogued};
pub use cluster::{cluster_findings, newly_undeclared};
pub use failing::{FailingTasks, is_told_together, newly_without_path};
pub use level::{level_findings, newly_meeting_below};
pub use node::{
    broken, doubled, fleet_waiting, host_ahead, host_awaited, host_stuck, newly_meeting, newly_ruled, newly_unmet,
    orphaned_paths, release_refused, report_findings, report_left_out, report_refused, report_waiting, too_large,
};
pub use placed::{keep_new, newly_odd, newly_orphaned};
pub use primary::{naming_another, newly_parked_primaries};
pub use unset::{Unset, newly_unset, unset_in_empty};
