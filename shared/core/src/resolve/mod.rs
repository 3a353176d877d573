//! Resolve: what a node is told, from the fleet's model and nothing else.
//!
//! One pure function serves the agent, `explain`, `diff` and the tests. It gives an [`Answer`], or says what is
//! missing: only the first can be encoded and sent, so nothing is ever removed from a host on incomplete knowledge.

mod answer;
mod conditions;
mod findings;
mod memory;
mod node;
mod plain;
mod whole;

pub use answer::{Answer, LeftOut, Resolution, TaskSet, Unmet};
pub use findings::{
    ObjectId, Unset, all_catalog_findings, catalog_findings, catalog_findings_of, cluster_findings, newly_unset,
    undeclared_roles, unset_in_empty,
};
pub use node::{ResolveCache, resolve_node};
pub use plain::PlainAnswer;
pub use whole::{ClusterAnswer, FleetAnswer, ResolveError, resolve_cluster, resolve_fleet, sort_findings};
