//! How a refused body is answered.

use stemma_core::manifest::{BodyError, BodyErrorKind, MapConflict, WriteError};
use stemma_core::object::Spec;
use stemma_wire::error::{ApiError, ErrorType, quote};

/// The refusal of a body.
pub fn bad_body<S: Spec>(error: WriteError) -> ApiError {
    match error {
        WriteError::Body(error) => bad_field(S::KIND.word(), &error),
        WriteError::Conflicts(ref conflicts) => {
            let list: Vec<_> = conflicts.iter().map(conflict).collect();
            let refusal = ApiError::new(ErrorType::LabelConflict, error.to_string()).extra("conflicts", list.into());
            match conflicts.first() {
                Some(first) => refusal.field(field_of(first)),
                None => refusal,
            }
        }
    }
}

/// The field of a body that a conflict is about, as other refusals name it.
fn field_of(one: &MapConflict) -> String {
    if one.map == "fields" { one.key.clone() } else { format!("{}.{}", one.map, one.key) }
}

fn conflict(one: &MapConflict) -> serde_json::Value {
    serde_json::json!({"map": one.map, "key": one.key, "manager": one.owner.to_string(), "value": one.value})
}

/// The refusal of a field; `what` is the kind of the object or message that it stands in.
pub fn bad_field(what: &str, error: &BodyError) -> ApiError {
    let error_type = error_type(error.kind);
    let message = match error_type {
        ErrorType::FieldUnknown => format!("Unknown attribute for {what}: {}: {}", quote(&error.field), error.reason),
        _ => format!("Invalid input for {what}: {error}"),
    };
    ApiError::new(error_type, message).field(error.field.clone()).reason(error.reason.clone())
}

/// The refusal of what stands in an object, as that of a request whose body is this part alone. `part` is where it stands in the object.
pub fn of_part(refusal: ApiError, part: &str) -> ApiError {
    let within = refusal.field.as_deref().and_then(|field| field.strip_prefix(part)?.strip_prefix('.'));
    let Some(within) = within.map(str::to_owned) else { return refusal };
    let message = refusal.message.replacen(&format!("{part}.{within}: "), &format!("{within}: "), 1);
    ApiError { message, ..refusal.field(within) }
}

/// The API's type of an error in a body.
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
