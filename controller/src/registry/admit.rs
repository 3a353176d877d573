//! How a refused body is answered.

use stemma_core::manifest::{BodyError, MapConflict, WriteError};
use stemma_core::object::{Kind, Spec};
use stemma_wire::error::{ApiError, ErrorType, quote};

/// The refusal of a body.
pub fn bad_body<S: Spec>(error: WriteError) -> ApiError {
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
