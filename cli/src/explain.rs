//! `explain` as people read it: one line a level, the winner in capitals, what the host said below.

use std::fmt::Write as _;

use serde_json::Value;

use crate::output::{cell, table};

/// The line of descent of one label on one node.
pub(crate) fn label(node: &str, key: &str, explained: &Value) -> String {
    let group = explained.get("group").and_then(Value::as_str).unwrap_or("unplaced");
    let mut text = match explained.get("value").and_then(Value::as_str) {
        Some(value) => format!("{key} = {value}      {node} ({group})"),
        None => format!("{key} is not set      {node} ({group})"),
    };
    let levels = rows(explained, "levels", |line| {
        vec![
            cell(line.get("level")),
            cell(line.get("object")),
            says(line),
            cell(line.get("owners")),
            cell(line.get("since")),
            result(line),
        ]
    });
    let reported = rows(explained, "reported", |line| {
        vec![
            "(reported)".to_owned(),
            node.to_owned(),
            cell(line.get("value")),
            cell(line.get("source")),
            "-".to_owned(),
            result(line),
        ]
    });
    let lines = table(&["level", "object", "says", "owner", "since", "result"], levels.into_iter().chain(reported));
    let _ = write!(text, "\n  {}", lines.replace('\n', "\n  "));
    for (title, field) in [("Used by  ", "used_by"), ("Flows to ", "flows_to")] {
        if let Some(Value::Array(items)) =
            explained.get(field).filter(|items| items.as_array().is_some_and(|all| !all.is_empty()))
        {
            let _ =
                write!(text, "\n{title} {}", items.iter().map(|item| cell(Some(item))).collect::<Vec<_>>().join(", "));
        }
    }
    text
}

fn rows(explained: &Value, field: &str, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    explained.get(field).and_then(Value::as_array).into_iter().flatten().map(row).collect()
}

/// Why a tag, a task or a trait is there or not: what was asked first, then each thing that is known.
pub(crate) fn other(what: &str, explained: &Value) -> String {
    let row = |(key, value): (&String, &Value)| vec![key.clone(), cell(Some(value))];
    let rest = explained.as_object().into_iter().flatten().filter(|(key, value)| *key != what && !value.is_null());
    let asked = vec![what.to_owned(), cell(explained.get(what))];
    table(&["", ""], std::iter::once(asked).chain(rest.map(row))).trim_start().to_owned()
}

/// The winner is seen at a glance.
fn result(line: &Value) -> String {
    match line.get("result").and_then(Value::as_str) {
        Some("wins") => "WINS: nearest level that sets it".to_owned(),
        _ => cell(line.get("result")),
    }
}

fn says(line: &Value) -> String {
    if line.get("stops").and_then(Value::as_bool) == Some(true) {
        return "null (not inherited)".to_owned();
    }
    cell(line.get("says"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_level_has_a_line_and_the_host_is_shown_below() {
        let text = label(
            "web-1",
            "tier",
            &json!({"group": "prod/frontends", "value": "gold",
                "levels": [
                    {"level": "clustertemplate", "object": "base", "says": "standard", "owners": ["site:apply"], "result": "overridden by nodegroup"},
                    {"level": "cluster", "object": "prod", "says": null, "owners": [], "result": null},
                    {"level": "nodegroup", "object": "frontends", "says": "gold", "owners": ["site:apply"], "result": "WINS: nearest level that sets it"},
                    {"level": "node", "object": "web-1", "stops": true, "owners": ["ops:update"], "result": null}],
                "reported": [{"value": "silver", "source": "labels.d/local:1", "result": "shadowed: cannot override an operator"}],
                "used_by": ["site-conf"]}),
        );
        for line in [
            "tier = gold      web-1 (prod/frontends)",
            "clustertemplate  base       standard",
            "WINS: nearest level that sets it",
            "null (not inherited)",
            "labels.d/local:1",
            "Used by   site-conf",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
    }
}
