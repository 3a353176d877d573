//! stemma-core

pub mod condition;
pub mod input;
