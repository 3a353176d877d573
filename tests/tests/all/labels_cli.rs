//! `stemma create … --labels` parses labels like Magnum's command. The cases were recorded from that command.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::TempFleet;
use stemma_tests::shared;

/// The recorded cases in which Stemma's result differs from Magnum's, each with the reason.
const DIFFERENCES: &[(&str, &str)] = &[
    ("cluster-create/only-eq", KEY_REASON),
    ("cluster-create/spaces", KEY_REASON),
    ("nodegroup-create/empty-key", KEY_REASON),
    ("nodegroup-create/only-eq", KEY_REASON),
    ("nodegroup-create/unicode", KEY_REASON),
    ("cluster-template-create/empty-key", KEY_REASON),
    ("cluster-template-create/spaces", KEY_REASON),
    ("cluster-template-create/trailing-comma-single", "an entry between commas is never empty"),
    ("nodegroup-create/newline", "a label's value has no control characters"),
    ("cluster-create/abbrev-label", ABBREVIATION_REASON),
    ("nodegroup-create/abbrev-label", ABBREVIATION_REASON),
    ("nodegroup-create/abbrev-merge", ABBREVIATION_REASON),
    ("nodegroup-create/override-labels", "Magnum's specification has this name for --merge-labels"),
];
const KEY_REASON: &str = "the controller refuses this key, because it is not a valid key of a Kubernetes label";
const ABBREVIATION_REASON: &str = "an option has one name, so that a new one never changes what an old script means";

/// Runs recorded commands of Magnum that create an object with labels, as `stemma create`. The labels or the error must
/// be as recorded, except in listed cases.
#[test]
fn labels_of_new_object_are_parsed_like_magnum_command() -> Result<()> {
    let Some(path) = shared::path("vectors/labels/labels_cli.json") else { return Ok(()) };
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let fleet = TempFleet::start()?;
    fleet.stemma(&["create", "cluster", "home"])?;
    let mut mismatches = Vec::new();
    for (number, case) in vectors["vectors"].as_array().context("cases")?.iter().enumerate() {
        let id = case["id"].as_str().context("an id")?;
        let name = format!("c{number}");
        let (kind, full_name, mut arguments) = match case["command"].as_str().context("a command")? {
            "cluster create" => ("cluster", name.clone(), vec!["create", "cluster", &name]),
            "cluster template create" => ("clustertemplate", name.clone(), vec!["create", "clustertemplate", &name]),
            "nodegroup create" => ("nodegroup", format!("home/{name}"), vec!["create", "nodegroup", "home", &name]),
            // Labels are changed with another command: `stemma label`.
            _ => continue,
        };
        arguments.extend(case["args"].as_array().context("words")?.iter().filter_map(Value::as_str));
        let output = fleet.cli(&arguments)?;
        let result = &case["result"];
        let is_as_recorded = if output.status.success() {
            let object: Value = serde_json::from_str(&fleet.stemma(&["get", kind, &full_name, "-o", "json"])?)?;
            let stored = object["provided_labels"].as_object().filter(|labels| !labels.is_empty());
            result.get("error").is_none() && stored == result["labels"].as_object().filter(|labels| !labels.is_empty())
        } else {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let error = &result["error"];
            // Messages of Magnum's argument parser are not compared.
            error["type"] == "argparse" || error["message"].as_str().is_some_and(|message| stderr.contains(message.trim_end()))
        };
        // A listed case must differ from the record, and every other case must equal the record.
        if is_as_recorded == DIFFERENCES.iter().any(|(listed_id, _)| *listed_id == id) {
            mismatches.push(format!("{id}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    ensure!(mismatches.is_empty(), "{}", mismatches.join("\n"));
    Ok(())
}
