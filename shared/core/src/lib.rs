//! Stemma's decisions: which labels, traits, tags and tasks a host has, and where each came from.
//!
//! Every function here depends on its arguments only. The crate uses no file, socket, clock, environment or randomness.
//! Its `Cargo.toml` and `clippy.toml` enforce this. So the controller, the operator's command and a test get the same
//! result from the same objects, and a result can be computed again later.

pub mod access;
pub mod allocate;
pub mod catalog;
pub mod change;
pub mod clock;
pub mod condition;
pub mod digest;
pub mod epoch;
pub mod explain;
pub mod extension;
pub mod field;
pub mod finding;
pub mod fleet;
pub mod graph;
pub mod host_labels;
pub mod input;
pub mod inspection;
pub mod json;
pub mod key;
pub mod labels;
pub mod lifecycle;
pub mod manifest;
pub mod name;
pub mod object;
pub mod origin;
pub mod ownership;
pub mod release;
pub mod requirement;
pub mod resolve;
pub mod retention;
pub mod role;
pub mod rollout;
pub mod selector;
pub mod shared_text;
pub mod shares;
pub mod status;
pub mod task;
pub mod time;
pub mod traits;
pub mod unimplemented;
