//! Everything that resolve finds, about a node and about a cluster: there is no other list.
//!
//! What a release's compiler finds stands with the release, since it is the same wherever the release runs.

mod catalog;
mod cluster;
mod node;
mod unset;

pub use catalog::{ObjectId, all_catalog_findings, catalog_findings, catalog_findings_of};
pub use cluster::{cluster_findings, undeclared_roles};
pub use unset::{Unset, newly_unset, unset_in_empty};
