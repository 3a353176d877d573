//! The alert rules and the dashboard of the package `stemma-controller`. Each metric that they name is exported by a
//! running controller, and promtool accepts them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::program::{run, succeed};
use stemma_tests::tool::is_available;

/// The alert rules, relative to the repository.
const RULES: &str = "packaging/files/stemma.rules.yml";
/// The dashboard, relative to the repository.
const DASHBOARD: &str = "packaging/files/stemma-dashboard.json";
/// The unit tests of the alert rules, relative to the repository.
const RULE_TESTS: [&str; 2] = ["tests/data/stemma.rules.test.yml", "tests/data/stemma.rules.healthy.test.yml"];
/// The labels that Prometheus adds to each sample of a target.
const TARGET_LABELS: [&str; 2] = ["instance", "job"];
/// The labels whose values are all exported at all times.
const COMPLETE_LABELS: [&str; 3] = ["state", "note", "of"];
/// The exit status of `promtool check metrics` if it parsed all metrics and would name some of them differently.
const LINT_STATUS: i32 = 3;

fn repository_path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(relative)
}

fn read(relative: &str) -> Result<String> {
    std::fs::read_to_string(repository_path(relative)).with_context(|| relative.to_owned())
}

/// A label matcher of a selector, such as `state="failed"`.
#[derive(Debug)]
struct Matcher<'a> {
    label: &'a str,
    operator: &'a str,
    value: &'a str,
}

/// Returns the length of the metric or label name at the start of a text.
fn name_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Returns each name in a text that begins with `stemma_`, with the label matchers that follow it.
fn selectors(text: &str) -> Result<Vec<(&str, Vec<Matcher<'_>>)>> {
    let mut selectors = Vec::new();
    for (start, _) in text.match_indices("stemma_") {
        let (name, rest) = text[start..].split_at(name_length(&text[start..]));
        let matchers = match rest.strip_prefix('{') {
            Some(rest) => matchers(rest).with_context(|| format!("the labels of {name}"))?,
            None => Vec::new(),
        };
        selectors.push((name, matchers));
    }
    Ok(selectors)
}

/// Returns the label matchers of a selector. `text` begins after the opening brace.
fn matchers(text: &str) -> Result<Vec<Matcher<'_>>> {
    let (mut matchers, mut rest) = (Vec::new(), text.trim_start());
    while !rest.starts_with('}') {
        let (label, after_label) = rest.split_at(name_length(rest));
        let (operator, after_operator) = after_label.split_once('"').context("a quoted value")?;
        let (value, after_value) = after_operator.split_once('"').context("the end of a quoted value")?;
        ensure!(["=", "!=", "=~", "!~"].contains(&operator), "{label}{operator}");
        matchers.push(Matcher { label, operator, value });
        rest = after_value.trim_start_matches([',', ' ']);
    }
    Ok(matchers)
}

/// The exported samples: for each metric the values of each of its labels.
type ExportedLabels<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<&'a str>>>;

/// Reads a response of `/metrics`. A metric without samples has no labels.
fn exported_labels(metrics: &str) -> Result<ExportedLabels<'_>> {
    let mut exported = ExportedLabels::new();
    for line in metrics.lines() {
        if let Some(metric_type) = line.strip_prefix("# TYPE ") {
            exported.entry(metric_type.split(' ').next().unwrap_or_default()).or_default();
        } else if !line.starts_with('#') {
            let (name, matchers) = selectors(line)?.into_iter().next().context("a sample")?;
            let labels = exported.entry(name).or_default();
            for matcher in matchers {
                labels.entry(matcher.label).or_default().insert(matcher.value);
            }
        }
    }
    Ok(exported)
}

/// Checks that each metric in a text is exported, with the labels that the text selects by. An equal matcher of a
/// label whose values are all exported must name one of the values.
fn check_metrics_exist(file: &str, text: &str, exported: &ExportedLabels<'_>) -> Result<()> {
    let selectors = selectors(text)?;
    ensure!(selectors.len() > 30, "{file} names only {} metrics", selectors.len());
    for (name, matchers) in selectors {
        let labels = exported.get(name).with_context(|| format!("{file} names {name}, which is not exported"))?;
        for matcher in matchers.iter().filter(|matcher| !TARGET_LABELS.contains(&matcher.label)) {
            let values = labels.get(matcher.label).with_context(|| format!("{file}: {name} has no label in {matcher:?}"))?;
            let is_known = values.contains(matcher.value);
            ensure!(
                is_known || matcher.operator != "=" || !COMPLETE_LABELS.contains(&matcher.label),
                "{file}: {name}: no sample meets {matcher:?}; the values are {values:?}"
            );
        }
    }
    Ok(())
}

/// Returns the panels of the dashboard.
fn panels() -> Result<Vec<Value>> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)?)?;
    ensure!(dashboard["uid"] == "stemma-fleet" && dashboard["schemaVersion"] == 38, "the identity of the dashboard");
    let variables = dashboard["templating"]["list"].as_array().context("the variables")?;
    let names: Vec<_> = variables.iter().map(|variable| &variable["name"]).collect();
    ensure!(names == ["datasource", "instance"], "{names:?}");
    Ok(dashboard["panels"].as_array().context("the panels")?.clone())
}

/// Returns the expressions of the dashboard. Grafana's variables are replaced with values.
fn dashboard_expressions() -> Result<Vec<String>> {
    let panels = panels()?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions = targets.map(|target| {
        let text = target["expr"].as_str().with_context(|| format!("no expression in {target}"))?;
        Ok(text.replace("$__rate_interval", "5m").replace("$instance", "stemma.example.net:9443"))
    });
    expressions.collect()
}

/// Starts a fleet with a backup, a principal and a refused request, so that each metric has a sample, and returns
/// `/metrics`.
fn metrics_of_used_controller() -> Result<String> {
    let fleet = TempFleet::start()?;
    let path = |name: &str| fleet.dir().join(name).to_string_lossy().into_owned();
    let data = fleet.data().to_string_lossy().into_owned();
    succeed("stemma-controller", ["backup", &path("backup"), "--data-dir", &data, "--unencrypted"])?;
    fleet.stemma(&["principal", "create", "bob", "--role", "viewer", "--to", &path("bob")])?;
    let certificates: Value = serde_json::from_str(&fleet.stemma(&["cert", "list", "-o", "json"])?)?;
    let mut certificates = certificates.as_array().into_iter().flatten();
    let certificate = certificates.find(|certificate| certificate["principal"] == "bob").context("the certificate of bob")?;
    fleet.stemma(&["cert", "revoke", certificate["serial"].as_str().context("a serial number")?])?;
    let refused = run("stemma", ["--context", &path("bob/context.toml"), "get", "nodes"])?;
    ensure!(!refused.status.success(), "a revoked certificate is not accepted");
    fleet.stemma(&["get", "--raw", "/metrics"])
}

/// Runs promtool with an input, and returns its output.
fn run_promtool(arguments: &[&str], input: &str) -> Result<Output> {
    let mut command = Command::new("promtool");
    let piped = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn()?;
    child.stdin.take().context("the input of promtool")?.write_all(input.as_bytes())?;
    Ok(child.wait_with_output()?)
}

/// Runs promtool, which must succeed, and returns its standard output.
fn check_with_promtool(arguments: &[&str]) -> Result<String> {
    let output = run_promtool(arguments, "")?;
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "promtool {arguments:?}: {text}");
    Ok(text)
}

#[test]
fn rules_and_dashboard_name_only_exported_metrics() -> Result<()> {
    let metrics = metrics_of_used_controller()?;
    let exported = exported_labels(&metrics)?;
    check_metrics_exist(RULES, &read(RULES)?, &exported)?;
    check_metrics_exist(DASHBOARD, &dashboard_expressions()?.join("\n"), &exported)?;
    let page = read("docs/monitoring.md")?;
    for name in exported.keys() {
        ensure!(page.contains(&format!("`{name}")), "docs/monitoring.md does not describe {name}");
    }
    ensure!(metrics.contains("stemma_rejected_total{reason=\"auth.revoked\"} 1\n"), "{metrics}");
    if is_available("promtool", &["--version"]) {
        let output = run_promtool(&["check", "metrics"], &metrics)?;
        let is_parsed = output.status.success() || output.status.code() == Some(LINT_STATUS);
        ensure!(is_parsed, "{}\n{metrics}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Each alert has texts for the person who gets it, a test in which it fires, and an entry on the page.
#[test]
fn each_alert_has_texts_test_and_page_entry() -> Result<()> {
    let (rules, tests, page) = (read(RULES)?, read(RULE_TESTS[0])?, read("docs/monitoring.md")?);
    let mut alerts = rules.split("\n      - alert: ");
    alerts.next();
    let mut names = BTreeSet::new();
    for alert in alerts {
        let name = &alert[..name_length(alert)];
        ensure!(names.insert(name), "{name} is defined twice");
        for field in ["expr: ", "severity: ", "summary: ", "description: ", "action: "] {
            ensure!(alert.contains(&format!(" {field}")), "{name} has no {field}");
        }
        let severity = ["critical", "warning", "info"].into_iter().find(|level| alert.contains(&format!("severity: {level}\n")));
        let severity = severity.with_context(|| format!("{name} has an unknown severity"))?;
        let is_firing = |line: &str| {
            line.contains(&format!("ALERTS{{alertname=\"{name}\", alertstate=\"firing\"")) && line.contains("value: 1,")
        };
        ensure!(tests.lines().any(is_firing), "{} has no test in which {name} fires", RULE_TESTS[0]);
        let row = format!("| `{name}` | {severity} |");
        ensure!(page.contains(&row), "docs/monitoring.md has no row {row}");
    }
    ensure!(names.len() > 40, "{names:?}");
    Ok(())
}

/// Each panel has an id of its own and a place in the 24 columns. Each target uses the data source that is chosen.
#[test]
fn dashboard_panels_have_ids_places_and_targets() -> Result<()> {
    let mut ids = BTreeSet::new();
    for panel in panels()? {
        let id = panel["id"].as_u64().context("an id")?;
        ensure!(ids.insert(id), "{panel}");
        let place = |name: &str| panel["gridPos"][name].as_u64().with_context(|| format!("{name} of {panel}"));
        ensure!(place("w")? > 0 && place("x")? + place("w")? <= 24 && place("h")? > 0, "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        ensure!(panel["fieldConfig"]["defaults"]["unit"].is_string() || panel["type"] == "table", "{panel}");
        let targets = panel["targets"].as_array().with_context(|| panel.to_string())?;
        ensure!(!targets.is_empty() && panel["description"].is_string(), "{panel}");
        for target in targets {
            ensure!(target["datasource"]["uid"] == "${datasource}", "{target}");
        }
    }
    Ok(())
}

/// The expressions of the dashboard are checked as rules, because promtool has no check of dashboards.
#[test]
fn promtool_accepts_rules_and_dashboard() -> Result<()> {
    if !is_available("promtool", &["--version"]) {
        return Ok(());
    }
    let path = |relative: &str| repository_path(relative).to_string_lossy().into_owned();
    check_with_promtool(&["check", "rules", &path(RULES)])?;
    let tests = RULE_TESTS.map(path);
    check_with_promtool(&["test", "rules", &tests[0], &tests[1]])?;

    let expressions = dashboard_expressions()?.into_iter().enumerate();
    let rules: Vec<_> = expressions.map(|(n, text)| json!({"record": format!("dashboard:{n}"), "expr": text})).collect();
    let dir = tempfile::tempdir()?;
    // JSON is also YAML.
    let file = dir.path().join("dashboard.rules.yml");
    std::fs::write(&file, json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string())?;
    let text = check_with_promtool(&["check", "rules", &file.to_string_lossy()])?;
    ensure!(text.contains(&format!("{} rules found", rules.len())), "{text}");
    Ok(())
}
