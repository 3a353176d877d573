//! The tests of the controller as one program, which is linked once. Those that measure are programs of their own.

#[path = "../fleet/mod.rs"]
mod fleet;
#[path = "../served/mod.rs"]
mod served;

mod admin_loopback;
mod admin_tls;
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
mod by_hand;
mod checkin;
mod enrolment;
mod events;
mod forms;
mod held;
mod instance;
mod noticed;
mod owned;
mod paths;
mod primaries;
mod principals;
mod reported;
mod restored;
mod said_on_host;
mod slow_store;
mod start;
mod states;
mod strict;
mod task_results;
mod times;
mod tls_refusals;
