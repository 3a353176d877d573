//! Who owns which key, as the given scenarios of Kubernetes' server-side apply have it, through the real listener: each operation is a
//! request over mutual TLS, and what came of it is read back the same way.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
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

/// One operation, and what is there after it.
fn step(operator: &mut Operator, at: &str, step: &Value, expected: &Value) -> Result<()> {
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
    let (_, object) = operator.get(at)?;
    ensure!(object["labels"] == expected["labels"], "{object}");
    ensure!(owners(&object["label_owners"])? == owners(&expected["owners"])?, "{object}");
    Ok(())
}

fn scenarios(file: &str, most: usize) -> Result<()> {
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
        for (one, expected) in ops.iter().zip(expected) {
            let at = format!("/v1/clustertemplates/{name}");
            step(&mut operator, &at, one, expected).with_context(|| format!("{name}: {one}"))?;
        }
    }
    Ok(())
}

#[test]
fn ownership_over_the_real_listener_is_that_of_the_given_scenarios() -> Result<()> {
    scenarios("ssa_map.json", usize::MAX)
}

#[test]
fn ownership_over_the_real_listener_is_that_of_random_scenarios() -> Result<()> {
    let all = std::env::var_os("STEMMA_TEST_LONG").is_some();
    scenarios("ssa_map_fuzz.json", if all { usize::MAX } else { RANDOM })
}
