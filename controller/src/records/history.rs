//! The part of a history image that is the same for all kinds. An image is the state of an object after a change. The
//! image of a deletion is `null`.

use serde::Deserialize;
use stemma_core::object::Timestamp;

/// The time of a history image: the time at which the object got the state of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct ImageTime {
    meta: MetaTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct MetaTime {
    updated_at: Timestamp,
}

impl ImageTime {
    /// Returns the time of the change that gave the object the state of this image.
    pub const fn updated_at(self) -> Timestamp {
        self.meta.updated_at
    }
}
