//! Describes an allocation: which node it has and why, or what the user can do if it has none.

use anyhow::Result;
use serde_json::Value;

use crate::api::ApiClient;
use crate::args::KindArg;
use crate::command::manifest::is_set;
use crate::command::read;
use crate::output::{cell_text, shell_quoted};

/// Returns the name of an allocation's node, or `None` if it has no node. If the node does not exist, returns its uuid.
///
/// # Errors
/// If the node can't be read.
pub(crate) async fn node_name(api: &mut ApiClient, allocation: &Value) -> Result<Option<String>> {
    let Some(uuid) = allocation.get("node_uuid").and_then(Value::as_str) else { return Ok(None) };
    let node = api.find(&KindArg::Node.path(uuid)?).await?;
    Ok(Some(node.map_or_else(|| uuid.to_owned(), |node| read::object_name(KindArg::Node, &node))))
}

/// Returns one line with the reason why the controller chose the node. Returns `None` if the allocation contains no
/// explanation.
pub(crate) fn reason(allocation: &Value) -> Option<String> {
    let explanation = allocation.get("explanation").filter(|value| value.is_object())?;
    let mut text = match explanation.get("candidates").and_then(Value::as_u64) {
        Some(1) => "the only one that fits".to_owned(),
        Some(count) => format!("the best of the {count} that fit"),
        // A caller that is bound to a cluster does not see the number of candidates.
        None => "the best of those that fit".to_owned(),
    };
    for (field, label) in [("surplus_traits", "traits that were not asked for"), ("to_spare", "to spare")] {
        if let Some(value) = explanation.get(field).filter(|entry| is_set(entry)) {
            text.push_str(&format!("; {label}: {}", cell_text(Some(value))));
        }
    }
    Some(text)
}

/// Returns the next step if no node was available, with a command that lists the nodes that would fit, apart from their
/// resource class. The field `requirements` of the allocation is a map or a list of maps.
pub(crate) fn next_step(name: &str, allocation: &Value) -> String {
    let mut command = "stemma get nodes".to_owned();
    for (option, field) in [("nodegroup", "nodegroup"), ("trait", "traits")] {
        if let Some(value) = allocation.get(field).filter(|value| is_set(value)) {
            command.push_str(&format!(" --{option} {}", shell_quoted(&cell_text(Some(value)))));
        }
    }
    let requirements = allocation.get("requirements");
    let maps = requirements
        .and_then(Value::as_array)
        .map_or_else(|| requirements.into_iter().collect(), |list| list.iter().collect::<Vec<_>>());
    for (key, expression) in maps.into_iter().filter_map(Value::as_object).flatten() {
        command.push_str(&format!(" --requirement {}", shell_quoted(&format!("{key} {}", cell_text(Some(expression))))));
    }
    format!(
        "{command} lists the nodes with these traits and requirements; once one of class {} is free: stemma delete allocation {}, and create it again",
        cell_text(allocation.get("resource_class")),
        shell_quoted(name)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn allocation_shows_reason_or_next_step() {
        for (explanation, expected) in [
            (json!(null), None),
            (json!({"candidates": 1, "surplus_traits": [], "to_spare": {}}), Some("the only one that fits")),
            (
                json!({"candidates": 3, "surplus_traits": ["CUSTOM_A", "CUSTOM_B"], "to_spare": {"property:memory_gb": 16.0}}),
                Some(
                    "the best of the 3 that fit; traits that were not asked for: CUSTOM_A,CUSTOM_B; to spare: property:memory_gb=16.0",
                ),
            ),
            (json!({"surplus_traits": [], "to_spare": {}}), Some("the best of those that fit")),
        ] {
            assert_eq!(reason(&json!({"explanation": explanation})).as_deref(), expected);
        }
        let advice = "lists the nodes with these traits and requirements; once one of class rc is free: stemma delete allocation a, and create it again";
        for (fields, command) in [
            (json!({}), "stemma get nodes"),
            (json!({"traits": ["CUSTOM_A", "CUSTOM_B"]}), "stemma get nodes --trait CUSTOM_A,CUSTOM_B"),
            (json!({"nodegroup": "prod/web"}), "stemma get nodes --nodegroup prod/web"),
            (json!({"requirements": {"label:a": "it's"}}), r"stemma get nodes --requirement 'label:a it'\''s'"),
            (
                json!({"requirements": {"property:memory_gb": ">= 48"}}),
                "stemma get nodes --requirement 'property:memory_gb >= 48'",
            ),
            (
                json!({"requirements": [{"label:a": "b"}, {"label:a": "<in> c"}]}),
                "stemma get nodes --requirement 'label:a b' --requirement 'label:a <in> c'",
            ),
        ] {
            let mut allocation = fields;
            allocation["resource_class"] = "rc".into();
            assert_eq!(next_step("a", &allocation), format!("{command} {advice}"));
        }
    }
}
