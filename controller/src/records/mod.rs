//! The contents of the store: keys, encoding, and the stored form of everything that is not an object.
//!
//! This is the layer below the cache and the registry, which use these modules. These modules use neither of the two.

pub mod audit;
pub mod chunks;
pub mod clock;
pub mod codec;
pub mod common_values;
pub mod enrolled;
pub mod fleet;
pub mod history;
pub mod key;
pub mod reported;
pub mod request;
