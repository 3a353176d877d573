//! Fields of Ironic's and Magnum's bodies that mean nothing here: how their table in core is checked and filled in.

use serde_json::{Map, Value};
use stemma_core::manifest::Kept;
use stemma_core::manifest::KeptForm::{self, Any, Flag, List, Name, Number, Object, Text, Uuid};
use stemma_wire::error::{ApiError, ErrorType};

use crate::api::http::query::truth;

/// Gives a body the defaults of its kind's kept fields, where it has none.
pub(super) fn fill(fields: &[Kept], body: &mut Map<String, Value>) {
    for (name, default) in fields.iter().filter_map(|kept| Some((kept.name, kept.default?))) {
        let default = || serde_json::from_str(default).expect("the tables of kept fields hold JSON texts");
        body.entry(name.to_owned()).or_insert_with(default);
    }
}

/// Checks the kept fields of a body that came in, and brings words for numbers and truth into JSON's own form.
///
/// # Errors
/// The first one of another form.
pub(super) fn check(fields: &[Kept], body: &mut Map<String, Value>) -> Result<(), ApiError> {
    for kept in fields {
        if let Some(value) = body.get_mut(kept.name) {
            read(kept.name, kept.form, value)?;
        }
    }
    Ok(())
}

fn read(name: &str, form: KeptForm, value: &mut Value) -> Result<(), ApiError> {
    let needed = match (form, &*value) {
        // Core reads a uuid, of a manifest too.
        (_, Value::Null)
        | (Any | Uuid, _)
        | (Number, Value::Number(_))
        | (Flag, Value::Bool(_))
        | (Object, Value::Object(_))
        | (List, Value::Array(_)) => {
            return Ok(());
        }
        (Name(most) | Text(most), Value::String(text)) if text.chars().count() <= most => return Ok(()),
        (Name(most) | Text(most), _) => format!("a text of at most {most} characters"),
        (Number, Value::String(text)) if text.trim().parse::<i64>().is_ok() => {
            *value = text.trim().parse::<i64>().map_or(Value::Null, Value::from);
            return Ok(());
        }
        (Flag, Value::String(_) | Value::Number(_)) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if let Some(read) = truth(&text) {
                *value = Value::Bool(read);
                return Ok(());
            }
            "true or false".to_owned()
        }
        (Number, _) => "a whole number".to_owned(),
        (Flag, _) => "true or false".to_owned(),
        (Object, _) => "an object".to_owned(),
        (List, _) => "a list".to_owned(),
    };
    let found: String = value.to_string().chars().take(64).collect();
    let reason = format!("{needed} is needed here, not {found}");
    let message = format!("Invalid input for field {name}: {reason}");
    Err(ApiError::new(ErrorType::FieldInvalid, message).field(name).reason(reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stemma_core::manifest::Fields;
    use stemma_core::object::{ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec};

    use super::*;

    #[test]
    fn forms_are_checked_and_words_are_read() {
        let mut body = json!({"node_count": "2", "master_lb_enabled": "yes", "keypair": null});
        check(ClusterSpec::EXTRA, body.as_object_mut().unwrap()).unwrap();
        assert_eq!(body, json!({"node_count": 2, "master_lb_enabled": true, "keypair": null}));
        for body in [json!({"resource_class": "x".repeat(81)}), json!({"driver": 5}), json!({"extra": []})] {
            assert!(check(NodeSpec::EXTRA, &mut body.as_object().unwrap().clone()).is_err(), "{body}");
        }
    }

    #[test]
    fn every_default_is_json() {
        for fields in [ClusterTemplateSpec::EXTRA, ClusterSpec::EXTRA, NodeGroupSpec::EXTRA, NodeSpec::EXTRA] {
            let mut body = Map::new();
            fill(fields, &mut body);
            assert_eq!(body.len(), fields.iter().filter(|kept| kept.default.is_some()).count());
        }
    }
}
