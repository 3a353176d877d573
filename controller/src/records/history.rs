//! What is read of an image in the history where its kind does not matter. `null` stands there once the object is gone.

use serde::Deserialize;
use stemma_core::object::Timestamp;

/// When an object became what an image says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ImageTime {
    meta: MetaTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct MetaTime {
    updated_at: Timestamp,
}

impl ImageTime {
    /// When.
    pub const fn at(self) -> Timestamp {
        self.meta.updated_at
    }
}
