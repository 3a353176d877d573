//! Computes the desired state of a node from the fleet's model alone.
//!
//! The function [`resolve_node`] has no side effects. It returns a [`ResolvedNode`], or the missing objects. Only a
//! [`ResolvedNode`] can be encoded and sent. So a missing object never removes anything from a host.

mod agent_types;
mod blocker;
mod cache;
mod findings;
mod fleet;
mod node;
mod outcome_cache;
mod output;
mod resolved_node;

pub use agent_types::UnknownFeatures;
pub use blocker::NodeBlocker;
pub(crate) use findings::catalog_findings;
pub use findings::{
    FailingTasks, OutdatedAgents, UnsetReferences, all_catalog_findings, cluster_findings, duplicate_host, fleet_waiting,
    host_ahead, host_awaited, host_stuck, is_aggregated, level_findings, new_placement_findings, new_rule_findings,
    newly_colliding, newly_colliding_below, newly_obstructed, newly_orphaned, newly_outdated, newly_parked_primaries,
    newly_uncatalogued, newly_undeclared, newly_unmet, newly_unset, object_catalog_findings, orphans, primaries_edit_hint,
    reboot_wanted, release_broken, release_refused, report_dropped, report_findings, report_refused, report_waiting,
    retain_new_findings, too_large, unset_in_empty_groups,
};
pub use fleet::{ClusterOutput, FleetOutput, ResolveError, resolve_cluster, resolve_fleet};
pub use node::{ResolveCache, resolve_node};
pub use output::NodeOutput;
pub use resolved_node::{
    ConditionOutcome, GroupInputs, PathProblem, Resolution, ResolvedNode, SkipReason, TaskSet, UnusablePath,
};
