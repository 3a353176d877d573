//! The tests of the core as one program, which is linked once. Those that measure are programs of their own.

#[path = "../given/mod.rs"]
mod given;
#[path = "../made/mod.rs"]
mod made;
#[path = "../support/mod.rs"]
mod support;

mod change_classes;
mod cluster_findings;
mod edit_findings;
mod explained;
mod findings;
mod fleet_findings;
mod fleet_model;
mod fleet_primaries;
mod fleet_properties;
mod fleet_reach;
mod fuel_library;
mod labels_properties;
mod order_by_hand;
mod order_properties;
mod ownership_properties;
mod paths;
mod privileged;
mod release_candidates;
mod release_refused;
mod rollout_barriers;
mod selector_properties;
mod task_digest;
mod vectors_inspection;
mod vectors_labels;
mod vectors_match;
mod vectors_ownership;
mod vectors_tasks;
