//! Turns errors in a request body into errors of the API.

use stemma_core::manifest::{BodyError, BodyErrorKind, MapConflict, WriteError};
use stemma_core::object::Spec;
use stemma_wire::error::{ApiError, ErrorType, quote};

/// Returns the API error for a body that is refused. The error names an invalid field, or lists the keys that another
/// manager owns. For such conflicts, the field of the error is that of the first conflict.
pub fn bad_body<S: Spec>(error: WriteError) -> ApiError {
    match error {
        WriteError::Body(error) => bad_field(S::KIND.word(), &error),
        WriteError::Conflicts(ref conflicts) => {
            let list: Vec<_> = conflicts.iter().map(conflict_json).collect();
            let refusal = ApiError::new(ErrorType::LabelConflict, error.to_string()).extra("conflicts", list.into());
            match conflicts.first() {
                Some(first) => refusal.field(conflict_field(first)),
                None => refusal,
            }
        }
    }
}

/// Returns the path of the field that a conflict is about, in the same form as in other field errors. The map name
/// `fields` means a top-level field, so it is not part of the path.
fn conflict_field(conflict: &MapConflict) -> String {
    if conflict.map == "fields" { conflict.key.clone() } else { format!("{}.{}", conflict.map, conflict.key) }
}

/// Returns a conflict as a JSON object, for the member `conflicts` of the error response.
fn conflict_json(conflict: &MapConflict) -> serde_json::Value {
    serde_json::json!({"map": conflict.map, "key": conflict.key, "manager": conflict.owner.to_string(), "value": conflict.value})
}

/// Returns the API error for an invalid, unknown or missing field of an object or message of the kind `subject_kind`.
pub fn bad_field(subject_kind: &str, error: &BodyError) -> ApiError {
    let error_type = error_type(error.kind);
    let message = match error_type {
        ErrorType::FieldUnknown => format!("Unknown attribute for {subject_kind}: {}: {}", quote(&error.field), error.reason),
        _ => format!("Invalid input for {subject_kind}: {error}"),
    };
    ApiError::new(error_type, message).field(error.field.clone()).reason(error.reason.clone())
}

/// Converts an error in an object to the error of a request whose body is only one part of the object, such as its
/// labels. Removes the path `part` from the error's field and message, because the client sent only this part. Returns
/// any other error unchanged.
pub fn part_refusal(refusal: ApiError, part: &str) -> ApiError {
    let subfield = refusal.field.as_deref().and_then(|field| field.strip_prefix(part)?.strip_prefix('.'));
    let Some(subfield) = subfield.map(str::to_owned) else { return refusal };
    let message = refusal.message.replacen(&format!("{part}.{subfield}: "), &format!("{subfield}: "), 1);
    ApiError { message, ..refusal.field(subfield) }
}

/// Returns the API's error type for an error in a body.
fn error_type(kind: BodyErrorKind) -> ErrorType {
    match kind {
        BodyErrorKind::UnknownField => ErrorType::FieldUnknown,
        BodyErrorKind::MissingField => ErrorType::FieldMissing,
        BodyErrorKind::MissingObject => ErrorType::ReferenceDangling,
        BodyErrorKind::Label => ErrorType::LabelInvalid,
        BodyErrorKind::Trait => ErrorType::TraitInvalid,
        BodyErrorKind::Requirement => ErrorType::RequirementInvalid,
        BodyErrorKind::Unsupported => ErrorType::ActionUnsupported,
        BodyErrorKind::Value => ErrorType::FieldInvalid,
    }
}
