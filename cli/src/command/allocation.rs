//! An allocation in words: which node it has and why that one, or why it has none and what to do.

use anyhow::Result;
use serde_json::Value;

use crate::api::Api;
use crate::args::Kind;
use crate::command::question;
use crate::command::written::is_said;
use crate::output::{cell, shell_word};

/// What the node of an allocation is called; `None`: it has none.
///
/// # Errors
/// When the node can't be read.
pub(crate) async fn node(api: &mut Api, allocation: &Value) -> Result<Option<String>> {
    let Some(uuid) = allocation.get("node_uuid").and_then(Value::as_str) else { return Ok(None) };
    let node = api.find(&Kind::Node.path(uuid)?).await?;
    Ok(Some(node.map_or_else(|| uuid.to_owned(), |node| question::name(Kind::Node, &node))))
}

/// Why its node was chosen.
pub(crate) fn why(allocation: &Value) -> Option<String> {
    let because = allocation.get("explanation").filter(|because| because.is_object())?;
    let mut text = match because.get("candidates").and_then(Value::as_u64) {
        Some(1) => "the only one that fits".to_owned(),
        Some(fit) => format!("the best of the {fit} that fit"),
        // Who is bound to a cluster is not told how many others there were.
        None => "the best of those that fit".to_owned(),
    };
    for (field, says) in [("surplus_traits", "traits that were not asked for"), ("to_spare", "to spare")] {
        if let Some(said) = because.get(field).filter(|said| is_said(said)) {
            text.push_str(&format!("; {says}: {}", cell(Some(said))));
        }
    }
    Some(text)
}

/// What to do where no node was there.
pub(crate) fn next(name: &str, allocation: &Value) -> String {
    let mut look = "stemma get nodes".to_owned();
    for (option, field) in [("nodegroup", "nodegroup"), ("trait", "traits")] {
        if let Some(said) = allocation.get(field).filter(|said| is_said(said)) {
            look.push_str(&format!(" --{option} {}", shell_word(&cell(Some(said)))));
        }
    }
    let requirements = allocation.get("requirements");
    let maps = requirements
        .and_then(Value::as_array)
        .map_or_else(|| requirements.into_iter().collect(), |all| all.iter().collect::<Vec<_>>());
    for (key, expression) in maps.into_iter().filter_map(Value::as_object).flatten() {
        look.push_str(&format!(" --requirement {}", shell_word(&format!("{key} {}", cell(Some(expression))))));
    }
    format!(
        "{look} lists the nodes with these traits and requirements; once one of class {} is free: stemma delete allocation {}, and create it again",
        cell(allocation.get("resource_class")),
        shell_word(name)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_choice_is_explained_and_a_failure_says_what_to_do() {
        for (because, expected) in [
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
            assert_eq!(why(&json!({"explanation": because})).as_deref(), expected);
        }
        let then = "lists the nodes with these traits and requirements; once one of class rc is free: stemma delete allocation a, and create it again";
        for (asked, look) in [
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
            let mut allocation = asked;
            allocation["resource_class"] = "rc".into();
            assert_eq!(next("a", &allocation), format!("{look} {then}"));
        }
    }
}
