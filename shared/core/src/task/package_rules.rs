//! The rules about parameters of a `package` task that contradict or need each other.

use serde_json::{Map, Value};

use super::parameter_type::repeated_name_error;
use super::parameter_values::{error_at, is_set};

/// The package of the agent.
pub const AGENT_PACKAGE: &str = "stemma-agent";

/// The error message of a `package` task that would remove the agent.
pub const AGENT_REMOVES_ITSELF: &str = "the agent does not remove itself, because nothing would install it again: run `stemma-agent leave` on the host, and \
    then remove the package there by hand";

/// Returns the errors of a `package` task whose parameters contradict each other, each as the path of the field and a
/// message.
pub(super) fn package_contradictions(values: &Map<String, Value>) -> Vec<(String, String)> {
    let is_set = |name: &str| is_set(values, name);
    let is_written = |name: &str| values.get(name).is_some_and(|value| !value.is_null());
    let mut errors = Vec::new();
    let mut add = |name: &str, message: String| errors.push(error_at(name, message));
    if is_set("absent") {
        if names_agent(values) {
            add("name", AGENT_REMOVES_ITSELF.to_owned());
        }
        for name in ["version", "min_version", "hold"].into_iter().filter(|name| is_written(name)) {
            add(name, "contradicts absent: remove one of them".to_owned());
        }
        if is_set("recommends") {
            add("recommends", "is only for packages that are installed: remove it, or `absent`".to_owned());
        }
    } else if is_set("purge") {
        add(
            "purge",
            "removes configuration files together with their package: write `absent: true` too, or remove it".to_owned(),
        );
    }
    if is_set("version") && is_set("min_version") {
        add("min_version", "is set together with version: remove one of them".to_owned());
    }
    let names = values.get("name").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if names.len() > 1 {
        for name in ["version", "min_version"].into_iter().filter(|name| is_set(name)) {
            add(name, format!("is for a single package, and name has {}: write a task for each version", names.len()));
        }
    }
    if let Some(error) = values.get("name").and_then(repeated_name_error) {
        add("name", error);
    }
    errors
}

/// Returns whether a package of the task is that of the agent.
fn names_agent(values: &Map<String, Value>) -> bool {
    let is_agent = |value: &Value| value.as_str().is_some_and(|name| name.split(':').next() == Some(AGENT_PACKAGE));
    values.get("name").is_some_and(|value| is_agent(value) || value.as_array().is_some_and(|names| names.iter().any(is_agent)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn package_contradictions_are_found_where_written() {
        for (parameters, expected) in [
            (json!({"name": "nginx"}), vec![]),
            (json!({"name": ["a1", "b1"], "hold": false, "recommends": true}), vec![]),
            (json!({"name": "nginx", "absent": true, "purge": true}), vec![]),
            (json!({"name": "nginx", "absent": false, "version": "1"}), vec![]),
            (json!({"name": "nginx", "absent": true, "version": null, "purge": false}), vec![]),
            (json!({"name": "nginx", "absent": true, "version": "1", "hold": false}), vec!["version", "hold"]),
            (json!({"name": "nginx", "absent": true, "min_version": "1", "recommends": true}), vec!["min_version", "recommends"]),
            (json!({"name": "nginx", "purge": true}), vec!["purge"]),
            (json!({"name": "nginx", "version": "1", "min_version": "1"}), vec!["min_version"]),
            (json!({"name": ["a1", "b1"], "version": "1"}), vec!["version"]),
            (json!({"name": ["a1"], "version": "1"}), vec![]),
            (json!({"name": ["a1", "b1", "a1"]}), vec!["name"]),
            (json!({"name": "stemma-agent", "absent": true}), vec!["name"]),
            (json!({"name": ["curl", "stemma-agent:amd64"], "absent": true, "purge": true}), vec!["name"]),
            (json!({"name": ["stemma-agent", "stemma-agent-extra"]}), vec![]),
            (json!({"name": "stemma-agent", "absent": false, "version": "1"}), vec![]),
            (json!({"name": "stemma-agent-extra", "absent": true}), vec![]),
        ] {
            let errors = package_contradictions(parameters.as_object().unwrap());
            let fields: Vec<_> = errors.iter().map(|(field, _)| field.strip_prefix("parameters.").unwrap()).collect();
            assert_eq!(fields, expected, "{parameters}: {errors:?}");
        }
    }
}
