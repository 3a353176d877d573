//! The catalogue: what Glance's clients see of it, and what a namespace that binds keys says of their values.

mod bind;
mod builtin;
mod glance;
mod said;
mod value;

pub(crate) use bind::odd_resource_type;
pub use bind::{Binding, Bound, Catalog, NotAllowed};
pub use builtin::builtin;
pub use glance::{READ_ONLY, as_written, merged, prefix, prefixed, schema, turn_tags, without_read_only};
pub use said::{Meant, SaidIn, Sayings, Says};
