//! The tests of the core as one program, which is linked once. Tests that measure are separate programs.

#[path = "../fleet_fixture/mod.rs"]
mod fleet_fixture;
#[path = "../support/mod.rs"]
mod support;
#[path = "../vectors/mod.rs"]
mod vectors;

mod agent_types;
mod cluster_findings;
mod edit_findings;
mod explain;
mod findings;
mod fleet_dirty_nodes;
mod fleet_findings;
mod fleet_model;
mod fleet_primaries;
mod fleet_properties;
mod fuel_library;
mod labels_properties;
mod on_unassign;
mod order_examples;
mod order_properties;
mod ownership_properties;
mod paths;
mod privileged;
mod propagation;
mod release_candidates;
mod release_errors;
mod rollout_barriers;
mod selector_properties;
mod task_conflicts;
mod task_digest;
mod vectors_inspection;
mod vectors_labels;
mod vectors_match;
mod vectors_ownership;
mod vectors_tasks;
