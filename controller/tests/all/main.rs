//! The tests of the controller as one program, which is linked once. Tests that measure are separate programs.

#[path = "../fleet/mod.rs"]
mod fleet;
#[path = "../served/mod.rs"]
mod served;

mod admin_loopback;
mod admin_tls;
mod agent_types;
mod agents_authority;
mod api;
mod api_catalog;
mod api_changes;
mod api_lists;
mod api_patch;
mod audit;
mod audit_names;
mod blocked;
mod bounds;
mod checkin;
mod enrolment;
mod events;
mod held_task_set;
mod instance;
mod manual_edits;
mod ownership;
mod paths;
mod primaries;
mod principals;
mod reboot;
mod regressions;
mod reported;
mod reported_state;
mod restored;
mod slow_store;
mod start;
mod states;
mod strict;
mod task_results;
mod tls_refusals;
mod value_forms;
mod write_forms;
