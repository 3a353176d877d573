//! Resolve: what a node is told, from the fleet's model and nothing else.
//!
//! One pure function serves the agent, `explain`, `diff` and the tests. It gives an [`Answer`], or says what is
//! missing: only the first can be encoded and sent, so nothing is ever removed from a host on incomplete knowledge.

mod answer;
mod aside;
mod conditions;
mod findings;
mod memory;
mod node;
mod plain;
mod whole;

pub use answer::{Answer, GroupInputs, LeftOut, Met, NoPath, Resolution, TaskSet, WithoutPath};
pub use aside::SetAside;
pub(crate) use findings::catalog_findings;
pub use findings::{
    FailingTasks, Unset, all_catalog_findings, broken, catalog_findings_of, cluster_findings, doubled, fleet_waiting,
    host_ahead, host_awaited, host_stuck, is_told_together, keep_new, level_findings, naming_another, newly_meeting,
    newly_meeting_below, newly_odd, newly_orphaned, newly_parked_primaries, newly_ruled, newly_uncatalogued,
    newly_undeclared, newly_unmet, newly_unset, newly_without_path, orphaned_paths, release_refused, report_findings,
    report_left_out, report_refused, report_waiting, too_large, unset_in_empty,
};
pub use node::{ResolveCache, resolve_node};
pub use plain::PlainAnswer;
pub use whole::{ClusterAnswer, FleetAnswer, ResolveError, resolve_cluster, resolve_fleet};
