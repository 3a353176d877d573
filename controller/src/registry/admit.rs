//! What must hold of an object for it to be stored, beyond what its fields say of themselves.

use std::collections::BTreeSet;

use stemma_core::manifest::{BodyError, MapConflict, WriteError};
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{
    ClusterSpec, ClusterTemplateSpec, Kind, NodeGroupSpec, NodeSpec, ReleaseSpec, ReleaseTagsSpec,
};
use stemma_core::release::has_same_content;
use stemma_core::traits::MAX_TRAITS;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::work::{content_fixed, unassignments_left};
use crate::cache::model::{Model, Shelved};
use crate::records::Stored;

/// A kind that operators write.
pub trait Admitted: Shelved {
    /// Reads a name.
    ///
    /// # Errors
    /// That it is none.
    fn parse_name(text: &str) -> Result<Self::Name, ApiError>;
    /// Checks what only the whole fleet can tell.
    ///
    /// # Errors
    /// What does not hold.
    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }
    /// What the write that is to put it in the place of what is stored makes of it, by what holds in the fleet then (what is
    /// stored) and now (with all that is written with it).
    #[must_use]
    fn settled(self, _uuid: Uuid, _then: &Model, _now: &Model) -> Self {
        self
    }
    /// Checks whether it may be changed into what comes next.
    ///
    /// # Errors
    /// That it may not.
    fn check_change(&self, _next: &Self, _name: &Self::Name, _model: &Model) -> Result<(), ApiError> {
        Ok(())
    }
}

impl Admitted for ReleaseTagsSpec {
    fn parse_name(text: &str) -> Result<Name, ApiError> {
        Name::new(text).map_err(|e| bad_name(&e))
    }
}

impl Admitted for ReleaseSpec {
    fn parse_name(text: &str) -> Result<ReleaseRef, ApiError> {
        ReleaseRef::new(text).map_err(|e| bad_name(&e))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        for (at, import) in self.imports.iter().enumerate() {
            release_exists(model, &format!("imports[{at}]"), Some(import))?;
        }
        Ok(())
    }

    /// A version's content is fixed from the first task set that was released with it, or with a release that imports it; one
    /// without a version may be edited, each edit being other content. What a store of before the marks says
    /// ([`crate::records::key::fixed`]) is found by what runs.
    fn check_change(&self, next: &Self, name: &ReleaseRef, model: &Model) -> Result<(), ApiError> {
        if has_same_content(self, next) || name.version.is_none() {
            return Ok(());
        }
        let full = name.to_string();
        let imports = |running: &str| {
            let running = ReleaseRef::new(running).ok().and_then(|running| model.fleet.release(&running));
            running.is_some_and(|running| running.all_imports.contains(name))
        };
        let runs = |running: &str| running == full || imports(running);
        let running: BTreeSet<&str> = model.released.values().filter_map(|one| one.release.as_deref()).collect();
        if running.into_iter().any(runs) { Err(content_fixed(&full)) } else { Ok(()) }
    }
}

impl Admitted for ClusterTemplateSpec {
    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        ObjectName::new(text).map_err(|e| bad_name(&e))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}

impl Admitted for ClusterSpec {
    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        ObjectName::new(text).map_err(|e| bad_name(&e))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}

impl Admitted for NodeGroupSpec {
    fn parse_name(text: &str) -> Result<ObjectName, ApiError> {
        ObjectName::new(text).map_err(|e| bad_name(&e))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}

impl Admitted for NodeSpec {
    fn parse_name(text: &str) -> Result<Option<NodeName>, ApiError> {
        NodeName::new(text).map(Some).map_err(|e| bad_name(&e))
    }

    fn settled(self, uuid: Uuid, then: &Model, now: &Model) -> Self {
        match unassignments_left(then, now, uuid, &self) {
            Some(tags) => Self { tags, ..self },
            None => self,
        }
    }

    fn check(&self, _model: &Model) -> Result<(), ApiError> {
        if self.traits.len() > MAX_TRAITS {
            let message = format!(
                "a node has at most {MAX_TRAITS} traits from its operators, these would be {}",
                self.traits.len()
            );
            return Err(ApiError::new(ErrorType::TraitInvalid, message).field("traits"));
        }
        let both = self.tags.assigned.members().find(|tag| self.tags.unassigned.get(*tag).is_some());
        both.map_or(Ok(()), |tag| {
            let message = format!("the tag {} can't be assigned and unassigned at once", quote(tag));
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("tags"))
        })
    }
}

fn bad_name(error: &stemma_core::name::InvalidName) -> ApiError {
    ApiError::new(ErrorType::FieldInvalid, error.to_string()).field("name")
}

fn release_exists(model: &Model, field: &str, release: Option<&ReleaseRef>) -> Result<(), ApiError> {
    match release {
        Some(release) if model.releases.named(None, &release.to_string()).is_none() => {
            let message = format!("there is no release {}", quote(&release.to_string()));
            let advice = "store the release first, or apply it together with this object; NAME@VERSION names one version, NAME one without";
            Err(ApiError::new(ErrorType::ReferenceDangling, message).field(field).detail(advice))
        }
        _ => Ok(()),
    }
}

/// The refusal of a body.
pub fn bad_body<S: Stored>(error: WriteError) -> ApiError {
    match error {
        WriteError::Body(error) => bad_field(S::KIND, &error),
        WriteError::Conflicts(ref conflicts) => {
            let list: Vec<_> = conflicts.iter().map(conflict).collect();
            ApiError::new(ErrorType::LabelConflict, error.to_string()).extra("conflicts", list.into())
        }
    }
}

fn conflict(one: &MapConflict) -> serde_json::Value {
    serde_json::json!({"map": one.map, "key": one.key, "manager": one.owner.to_string(), "value": one.value})
}

/// The refusal of a field. Core's reader says what is wrong in a sentence; which type of error that is follows
/// from the field, and from the few sentences that begin in a fixed way.
pub fn bad_field(kind: Kind, error: &BodyError) -> ApiError {
    let root = error.field.split(['.', '[']).next().unwrap_or_default();
    let error_type = match root {
        _ if error.reason.starts_with("is no field") || error.reason.starts_with("is called") => {
            ErrorType::FieldUnknown
        }
        _ if error.reason.starts_with("is missing") => ErrorType::FieldMissing,
        _ if error.reason.starts_with("there is no") => ErrorType::ReferenceDangling,
        "labels" => ErrorType::LabelInvalid,
        "traits" | "suppressed_traits" => ErrorType::TraitInvalid,
        "requirements" => ErrorType::RequirementInvalid,
        _ => ErrorType::FieldInvalid,
    };
    let message = match error_type {
        ErrorType::FieldUnknown => {
            format!("Unknown attribute for {}: {}: {}", kind.word(), quote(&error.field), error.reason)
        }
        _ => format!("Invalid input for {}: {error}", kind.word()),
    };
    ApiError::new(error_type, message).field(error.field.clone())
}
