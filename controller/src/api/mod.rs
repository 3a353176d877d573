//! The operators' side over HTTP.
//!
//! Which paths there are, who may call them and with what stands in `stemma_wire::endpoint`; here each is given what it does, by an
//! exhaustive match. Handlers read the cache and write through the registry: none of them sees the store, a socket or a clock.

mod apply;
mod clusters;
mod dispatch;
mod explain;
mod filter;
mod findings;
mod groups;
mod json;
mod kept;
mod lists;
mod machine;
mod maps;
mod nodes;
mod objects;
mod patch;
mod patching;
mod place;
mod query;
mod releases;
mod request;
mod resolved;
mod roles;
mod serve;
mod state;
mod tags;
mod templates;
mod traits;
mod version;
mod view;
mod writes;

use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::traits::TraitNames;
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::serve::Rejected;

pub use serve::{Guarding, answer, handler};

use crate::blobs::Blobs;
use crate::cache::Cache;
use crate::desired::DesiredTable;
use crate::identity::Identities;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::registry::admit::Admitted;

/// What the handlers share.
pub struct Api {
    /// Writes.
    pub registry: Arc<Registry>,
    /// Bodies of files.
    pub blobs: Arc<Blobs>,
    /// What nodes were told, and who waits to hear more; none in a test without agents.
    pub desired: Option<Arc<DesiredTable>>,
    /// Which nodes have joined; likewise.
    pub identities: Option<Arc<Identities>>,
    /// What is counted; likewise.
    pub metrics: Option<Arc<Metrics>>,
    /// What is refused.
    pub rejected: Arc<Rejected>,
    /// The traits that are known at this site.
    pub traits: TraitNames,
    /// Which requests the listener takes.
    pub guarding: Guarding,
}

impl Api {
    /// Reads.
    pub fn cache(&self) -> &Arc<Cache> {
        self.registry.cache()
    }
}

/// Takes the name out of the body of a new object.
///
/// # Errors
/// That there is none, or that it is none.
fn name_of_new<S: Admitted>(fields: &mut Map<String, Value>) -> Result<S::Name, ApiError> {
    match fields.remove("name") {
        Some(Value::String(name)) => S::parse_name(&name),
        None | Some(Value::Null) => {
            Err(ApiError::new(ErrorType::FieldMissing, format!("a {} needs a name", S::KIND.word())).field("name"))
        }
        Some(other) => {
            let other: String = other.to_string().chars().take(64).collect();
            Err(ApiError::new(ErrorType::FieldInvalid, format!("a {}'s name is a text, not {other}", S::KIND.word()))
                .field("name"))
        }
    }
}

/// The refusal of a field, with what is meant instead.
fn unknown_field(name: &str, advice: &str) -> ApiError {
    ApiError::new(ErrorType::FieldUnknown, format!("Unknown attribute {}", quote(name))).field(name).detail(advice)
}
