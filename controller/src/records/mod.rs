//! What stands in the store, and how: keys, encoding, and the stored form of everything that is no object.
//!
//! The floor below cache and registry: both read these, and neither is known here.

pub mod audit;
pub mod chunks;
pub mod clock;
pub mod codec;
pub mod common;
pub mod enrolled;
pub mod fleet;
pub mod history;
pub mod key;
pub mod reported;
pub mod request;
