//! The tests of the operators' API over an engine that answers each call 5 ms late: a decision never waits for the store.

#[path = "api.rs"]
mod api;
