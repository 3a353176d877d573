//! The contents of the store: keys, encoding, and the stored form of everything that is not an object.
//!
//! This layer is below the cache and the registry. The cache and the registry use these modules, and these modules do
//! not use the cache or the registry.

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
