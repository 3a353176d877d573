//! stemma-wire

pub mod message;
