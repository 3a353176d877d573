//! stemma-core

pub mod condition;
pub mod digest;
pub mod finding;
pub mod fleet;
pub mod host_labels;
pub mod input;
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
pub mod role;
pub mod selector;
pub mod task;
pub mod traits;
