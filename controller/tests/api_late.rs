//! The tests of the operators' API over an engine that answers each call 5 ms late: a decision never waits for the store.

#![allow(clippy::duplicate_mod, reason = "each file of tests brings its own controller")]

#[path = "api.rs"]
mod api;
#[path = "api_catalog.rs"]
mod api_catalog;
#[path = "api_changes.rs"]
mod api_changes;
#[path = "api_patch.rs"]
mod api_patch;
