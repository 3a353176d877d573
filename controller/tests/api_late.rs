//! Modules of the tests of the operators' API, over a store whose answers arrive 5 ms late. The delay finds callers
//! that treat a late answer as current.

mod served;

#[path = "all/api.rs"]
mod api;
#[path = "all/api_catalog.rs"]
mod api_catalog;
#[path = "all/api_changes.rs"]
mod api_changes;
#[path = "all/api_patch.rs"]
mod api_patch;
