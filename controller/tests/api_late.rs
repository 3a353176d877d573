//! The tests of the operators' API over an engine that answers each call 5 ms late. They show that a decision never
//! waits for the store.

mod served;

#[path = "all/api.rs"]
mod api;
#[path = "all/api_catalog.rs"]
mod api_catalog;
#[path = "all/api_changes.rs"]
mod api_changes;
#[path = "all/api_patch.rs"]
mod api_patch;
