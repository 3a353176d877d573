//! Owners of keys, as in the given scenarios of Kubernetes' server-side apply, through the real listener. Each
//! operation is a request over mutual TLS, and its result is read back the same way. The scenarios of Kubernetes' own
//! tests are also run with an operator's commands, `stemma apply` and `stemma label`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::OperatorClient;
use stemma_tests::seed::is_long;
use stemma_tests::shared;

/// Number of random scenarios that a short run uses. A long run uses all.
const RANDOM_SCENARIOS: usize = 60;

/// Returns the text of a field. Fails if the field is not a text.
fn text_field<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| format!("{field} of {value}"))
}

/// Returns the key and the owning manager of each conflict, sorted.
fn conflict_list(conflicts: &Value) -> Result<Vec<(String, String)>> {
    let pairs = conflicts.as_array().into_iter().flatten();
    let mut pairs = pairs
        .map(|conflict| Ok((text_field(conflict, "key")?.to_owned(), text_field(conflict, "manager")?.to_owned())))
        .collect::<Result<Vec<_>>>()?;
    pairs.sort();
    Ok(pairs)
}

/// Returns the owners of each key.
fn owner_map(value: &Value) -> Result<BTreeMap<String, Vec<String>>> {
    Ok(serde_json::from_value(value.clone())?)
}

/// The form in which the operations of a scenario are sent.
#[derive(Clone, Copy)]
enum ScenarioForm {
    /// HTTP requests to the API.
    Requests,
    /// `stemma apply` and `stemma label`.
    Commands,
}

/// Sends one operation as a request for the object at this path, and checks the status and the conflicts of the answer.
fn send_step(operator: &mut OperatorClient, object_path: &str, step: &Value, expected: &Value) -> Result<()> {
    let (manager, force) = (text_field(step, "manager")?, step["force"].as_bool().unwrap_or(false));
    let body = json!({"labels": step["labels"]});
    let (status, answer) = match text_field(step, "op")? {
        "apply" => {
            let path = format!("{object_path}?manager={manager}&force={force}");
            operator.send_typed("PATCH", &path, "application/apply-patch+json", &body)?
        }
        // Any other operation is an update, which replaces all labels.
        _ => operator.send_typed("PUT", &format!("{object_path}/labels?manager={manager}"), "application/json", &body)?,
    };
    let expected_conflicts = conflict_list(&expected["conflict"])?;
    ensure!(status == if expected_conflicts.is_empty() { 200 } else { 409 }, "{status} {answer}");
    ensure!(conflict_list(&answer["conflicts"])? == expected_conflicts, "{answer}");
    Ok(())
}

/// Runs one operation as a command, and checks its exit status and conflicts. An update contains all labels of an
/// object. The command gets only the changes from `labels_before`.
fn run_step_command(fleet: &TempFleet, name: &str, (labels_before, step, expected): (&Value, &Value, &Value)) -> Result<()> {
    let mut words: Vec<String> = match text_field(step, "op")? {
        "apply" => {
            let file = fleet.dir().join("template.yaml");
            let manifest = json!({"kind": "ClusterTemplate", "name": name, "labels": step["labels"]});
            std::fs::write(&file, manifest.to_string())?;
            let force = step["force"].as_bool().unwrap_or(false).then_some("--force");
            ["apply", "-f", &file.to_string_lossy()].into_iter().chain(force).map(str::to_owned).collect()
        }
        _ => {
            let labels = |value: &Value| anyhow::Ok(serde_json::from_value::<BTreeMap<String, String>>(value.clone())?);
            let (old_labels, new_labels) = (labels(labels_before)?, labels(&step["labels"])?);
            let additions = new_labels.iter().filter(|(key, value)| old_labels.get(*key) != Some(value));
            let additions = additions.map(|(key, value)| format!("{key}={value}"));
            let removals = old_labels.keys().filter(|key| !new_labels.contains_key(*key)).map(|key| format!("{key}-"));
            let changes: Vec<_> = additions.chain(removals).collect();
            // `stemma label` cannot be called without a change.
            if changes.is_empty() {
                return Ok(());
            }
            ["label", "clustertemplate", name, "--overwrite"].map(str::to_owned).into_iter().chain(changes).collect()
        }
    };
    words.extend(["--manager".to_owned(), text_field(step, "manager")?.to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = fleet.cli(&words)?;
    let (conflicts, error) = (conflict_list(&expected["conflict"])?, String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() == conflicts.is_empty(), "{words:?}: {} {error}", output.status);
    ensure!(conflicts.iter().all(|(key, owner)| error.contains(key) && error.contains(owner)), "{words:?}: {error}");
    Ok(())
}

/// Checks the labels and their owners after an operation.
fn check_object(operator: &mut OperatorClient, object_path: &str, expected: &Value) -> Result<()> {
    let (_, object) = operator.get(object_path)?;
    ensure!(object["labels"] == expected["labels"], "{object}");
    ensure!(owner_map(&object["label_owners"])? == owner_map(&expected["owners"])?, "{object}");
    Ok(())
}

/// Runs at most `max_scenarios` scenarios of a file in this form. Checks the labels and their owners after each
/// operation.
fn run_scenarios(file: &str, max_scenarios: usize, form: ScenarioForm) -> Result<()> {
    let Some(path) = shared::path(&format!("vectors/propagation/{file}")) else { return Ok(()) };
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let fleet = TempFleet::start()?;
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?;
    for case in vectors["cases"].as_array().context("cases")?.iter().take(max_scenarios) {
        let name = text_field(case, "name")?.replace('_', "-");
        let (status, outcome) =
            operator.send_typed("POST", "/v1/clustertemplates", "application/json", &json!({"name": name}))?;
        ensure!(status == 201, "{name}: {status} {outcome}");
        let (ops, expected) = (case["ops"].as_array().context("ops")?, case["expect"].as_array().context("expect")?);
        let (object_path, mut labels_before) = (format!("/v1/clustertemplates/{name}"), &json!({}));
        for (step, expected) in ops.iter().zip(expected) {
            let outcome = match form {
                ScenarioForm::Requests => send_step(&mut operator, &object_path, step, expected),
                ScenarioForm::Commands => run_step_command(&fleet, &name, (labels_before, step, expected)),
            };
            outcome
                .and_then(|()| check_object(&mut operator, &object_path, expected))
                .with_context(|| format!("{name}: {step}"))?;
            labels_before = &expected["labels"];
        }
    }
    Ok(())
}

#[test]
fn api_ownership_matches_given_scenarios() -> Result<()> {
    run_scenarios("ssa_map.json", usize::MAX, ScenarioForm::Requests)
}

#[test]
fn cli_ownership_matches_given_scenarios() -> Result<()> {
    run_scenarios("ssa_map.json", usize::MAX, ScenarioForm::Commands)
}

#[test]
fn api_ownership_matches_random_scenarios() -> Result<()> {
    run_scenarios("ssa_map_fuzz.json", if is_long() { usize::MAX } else { RANDOM_SCENARIOS }, ScenarioForm::Requests)
}
