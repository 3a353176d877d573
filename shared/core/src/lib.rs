//! stemma-core

pub mod condition;
pub mod input;
pub mod key;
pub mod labels;
pub mod lifecycle;
pub mod name;
pub mod origin;
pub mod ownership;
