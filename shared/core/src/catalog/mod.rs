//! The catalogue: what Glance's clients see of it, and what a namespace that binds keys says of their values.

mod bind;
mod builtin;
mod glance;
mod value;

use std::collections::BTreeSet;

pub use bind::{Binding, Bound, Catalog, NotAllowed, Sayings, Says};
pub use builtin::builtin;
pub use glance::{READ_ONLY, as_written, merged, prefix, prefixed, schema, turn_tags, without_read_only};

use crate::name::near;

/// The key that may have been meant: the most like it.
fn near_key(key: &str, keys: &BTreeSet<String>) -> Option<String> {
    near(key, keys.iter().map(String::as_str)).map(str::to_owned)
}
