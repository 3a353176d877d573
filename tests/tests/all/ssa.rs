//! Who owns which key, as the given scenarios of Kubernetes' server-side apply have it, through the real listener: each operation is a
//! request over mutual TLS, and what came of it is read back the same way. Those of Kubernetes' own tests are also told by an operator's
//! commands, `stemma apply` and `stemma label`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::chance::is_long;
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::Operator;
use stemma_tests::shared;

/// How many of the random scenarios are run, unless all are.
const RANDOM: usize = 60;

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| format!("{field} of {value}"))
}

/// The keys in conflict, each with an owner, sorted.
fn clashes(conflicts: &Value) -> Result<Vec<(String, String)>> {
    let all = conflicts.as_array().into_iter().flatten();
    let mut all = all
        .map(|one| Ok((text(one, "key")?.to_owned(), text(one, "manager")?.to_owned())))
        .collect::<Result<Vec<_>>>()?;
    all.sort();
    Ok(all)
}

fn owners(value: &Value) -> Result<BTreeMap<String, Vec<String>>> {
    Ok(serde_json::from_value(value.clone())?)
}

/// By what a scenario is told.
#[derive(Clone, Copy)]
enum By {
    Requests,
    Commands,
}

/// One operation as a request.
fn ask(operator: &mut Operator, at: &str, step: &Value, expected: &Value) -> Result<()> {
    let (manager, force) = (text(step, "manager")?, step["force"].as_bool().unwrap_or(false));
    let body = json!({"labels": step["labels"]});
    let (status, answer) = match text(step, "op")? {
        "apply" => {
            let path = format!("{at}?manager={manager}&force={force}");
            operator.call("PATCH", &path, "application/apply-patch+json", &body)?
        }
        _ => operator.call("PUT", &format!("{at}/labels?manager={manager}"), "application/json", &body)?,
    };
    let wanted = clashes(&expected["conflict"])?;
    ensure!(status == if wanted.is_empty() { 200 } else { 409 }, "{status} {answer}");
    ensure!(clashes(&answer["conflicts"])? == wanted, "{answer}");
    Ok(())
}

/// One operation as a command. An update writes what is to be; the command is told what changes.
fn command(fleet: &Fleet, name: &str, (before, step, expected): (&Value, &Value, &Value)) -> Result<()> {
    let mut words: Vec<String> = match text(step, "op")? {
        "apply" => {
            let file = fleet.dir().join("template.yaml");
            let manifest = json!({"kind": "ClusterTemplate", "name": name, "labels": step["labels"]});
            std::fs::write(&file, manifest.to_string())?;
            let force = step["force"].as_bool().unwrap_or(false).then_some("--force");
            ["apply", "-f", &file.to_string_lossy()].into_iter().chain(force).map(str::to_owned).collect()
        }
        _ => {
            let labels = |value: &Value| anyhow::Ok(serde_json::from_value::<BTreeMap<String, String>>(value.clone())?);
            let (is, wanted) = (labels(before)?, labels(&step["labels"])?);
            let set = wanted.iter().filter(|(key, value)| is.get(*key) != Some(value));
            let set = set.map(|(key, value)| format!("{key}={value}"));
            let gone = is.keys().filter(|key| !wanted.contains_key(*key)).map(|key| format!("{key}-"));
            let changes: Vec<_> = set.chain(gone).collect();
            if changes.is_empty() {
                return Ok(());
            }
            ["label", "clustertemplate", name, "--overwrite"].map(str::to_owned).into_iter().chain(changes).collect()
        }
    };
    words.extend(["--manager".to_owned(), text(step, "manager")?.to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = fleet.cli(&words)?;
    let (wanted, error) = (clashes(&expected["conflict"])?, String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() == wanted.is_empty(), "{words:?}: {} {error}", output.status);
    ensure!(wanted.iter().all(|(key, owner)| error.contains(key) && error.contains(owner)), "{words:?}: {error}");
    Ok(())
}

/// What is there after an operation.
fn check(operator: &mut Operator, at: &str, expected: &Value) -> Result<()> {
    let (_, object) = operator.get(at)?;
    ensure!(object["labels"] == expected["labels"], "{object}");
    ensure!(owners(&object["label_owners"])? == owners(&expected["owners"])?, "{object}");
    Ok(())
}

fn scenarios(file: &str, most: usize, by: By) -> Result<()> {
    let Some(path) = shared::path(&format!("vectors/propagation/{file}")) else { return Ok(()) };
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let fleet = Fleet::start()?;
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?;
    for case in vectors["cases"].as_array().context("cases")?.iter().take(most) {
        let name = text(case, "name")?.replace('_', "-");
        let (status, made) =
            operator.call("POST", "/v1/clustertemplates", "application/json", &json!({"name": name}))?;
        ensure!(status == 201, "{name}: {status} {made}");
        let (ops, expected) = (case["ops"].as_array().context("ops")?, case["expect"].as_array().context("expect")?);
        let (at, mut before) = (format!("/v1/clustertemplates/{name}"), &json!({}));
        for (one, expected) in ops.iter().zip(expected) {
            let made = match by {
                By::Requests => ask(&mut operator, &at, one, expected),
                By::Commands => command(&fleet, &name, (before, one, expected)),
            };
            made.and_then(|()| check(&mut operator, &at, expected)).with_context(|| format!("{name}: {one}"))?;
            before = &expected["labels"];
        }
    }
    Ok(())
}

#[test]
fn ownership_over_the_real_listener_is_that_of_the_given_scenarios() -> Result<()> {
    scenarios("ssa_map.json", usize::MAX, By::Requests)
}

#[test]
fn ownership_by_the_operators_commands_is_that_of_the_given_scenarios() -> Result<()> {
    scenarios("ssa_map.json", usize::MAX, By::Commands)
}

#[test]
fn ownership_over_the_real_listener_is_that_of_random_scenarios() -> Result<()> {
    scenarios("ssa_map_fuzz.json", if is_long() { usize::MAX } else { RANDOM }, By::Requests)
}
