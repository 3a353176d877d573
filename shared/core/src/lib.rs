//! stemma-core

pub mod condition;
pub mod digest;
pub mod finding;
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
pub mod requirement;
pub mod selector;
pub mod task;
pub mod traits;
