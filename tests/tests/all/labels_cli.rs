//! `stemma create … --labels` reads labels as Magnum's command does, by the cases that were recorded from that.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_tests::fleet::Fleet;
use stemma_tests::shared;

/// What differs, each with its reason.
const OTHERWISE: &[(&str, &str)] = &[
    ("cluster-create/only-eq", KEY),
    ("cluster-create/spaces", KEY),
    ("nodegroup-create/empty-key", KEY),
    ("nodegroup-create/only-eq", KEY),
    ("nodegroup-create/unicode", KEY),
    ("cluster-template-create/empty-key", KEY),
    ("cluster-template-create/spaces", KEY),
    ("cluster-template-create/trailing-comma-single", "an entry between commas is never empty"),
    ("nodegroup-create/newline", "a label's value has no control characters"),
    ("cluster-create/abbrev-label", ABBREVIATED),
    ("nodegroup-create/abbrev-label", ABBREVIATED),
    ("nodegroup-create/abbrev-merge", ABBREVIATED),
    ("nodegroup-create/override-labels", "Magnum's specification has this name for --merge-labels"),
];
const KEY: &str = "the controller refuses such a key, since it is no key of a Kubernetes label";
const ABBREVIATED: &str = "an option has one name, so that a new one never changes what an old script means";

#[test]
fn labels_of_new_objects_are_read_as_magnums_command_reads_them() -> Result<()> {
    let Some(path) = shared::path("vectors/labels/labels_cli.json") else { return Ok(()) };
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let fleet = Fleet::start()?;
    fleet.stemma(&["create", "cluster", "home"])?;
    let mut wrong = Vec::new();
    for (n, case) in vectors["vectors"].as_array().context("cases")?.iter().enumerate() {
        let id = case["id"].as_str().context("an id")?;
        let name = format!("c{n}");
        let (kind, shown, mut words) = match case["command"].as_str().context("a command")? {
            "cluster create" => ("cluster", name.clone(), vec!["create", "cluster", &name]),
            "cluster template create" => ("clustertemplate", name.clone(), vec!["create", "clustertemplate", &name]),
            "nodegroup create" => ("nodegroup", format!("home/{name}"), vec!["create", "nodegroup", "home", &name]),
            // What is changed is said otherwise: `stemma label`.
            _ => continue,
        };
        words.extend(case["args"].as_array().context("words")?.iter().filter_map(Value::as_str));
        let output = fleet.cli(&words)?;
        let result = &case["result"];
        let is_met = if output.status.success() {
            let object: Value = serde_json::from_str(&fleet.stemma(&["get", kind, &shown, "-o", "json"])?)?;
            let made = object["provided_labels"].as_object().filter(|labels| !labels.is_empty());
            result.get("error").is_none() && made == result["labels"].as_object().filter(|labels| !labels.is_empty())
        } else {
            let said = String::from_utf8_lossy(&output.stderr);
            let error = &result["error"];
            error["type"] == "argparse"
                || error["message"].as_str().is_some_and(|message| said.contains(message.trim_end()))
        };
        if is_met == OTHERWISE.iter().any(|(other, _)| *other == id) {
            wrong.push(format!("{id}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
