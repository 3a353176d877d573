//! Inspection rules with the operator's command and a real agent. A rule adds values to a host that has reported, each
//! view of such a value names the rule, the values end with the rule, and a restart writes nothing.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::TempFleet;
use stemma_tests::operator::OperatorClient;
use stemma_tests::plain_controller::PlainController;
use stemma_tests::program::eventually;
use stemma_tests::python::environment;

/// A rule that adds a trait, a label and a property to every host that has reported its number of processors.
const RULE: &str = r#"kind: InspectionRule
name: cpus
priority: 100
conditions:
  - {op: "!is-empty", args: {value: "{inventory[cpu][count]}"}}
actions:
  - {op: add-trait, args: {name: CUSTOM_COUNTED}}
  - {op: set-attribute, args: {path: labels/example.net/host, value: "{node.name}"}}
  - {op: set-attribute, args: {path: properties/counted, value: 2}}
  - {op: set-attribute, args: {path: labels/tier, value: rule}}
"#;

/// A group that requires what the rule adds, with a file that reads it.
const SITE: &str = r#"kind: Release
name: site
version: "1"
roles: {web: {tags: [web]}}
tags: {web: {}}
tasks:
  - {id: host, type: file, tags: [web], condition: "'CUSTOM_COUNTED' in traits",
     parameters: {path: /etc/host-label, template: "{{ labels['example.net/host'] | default('none') }}"}}
---
kind: Cluster
name: prod
release: site@1
labels: {tier: gold}
---
kind: NodeGroup
cluster: prod
name: web
roles: [web]
requirements: {"trait:CUSTOM_COUNTED": required, "property:counted": ">= 2"}
"#;

fn write_file(fleet: &TempFleet, name: &str, text: &str) -> Result<String> {
    let path = fleet.dir().join(name);
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

fn get_json(fleet: &TempFleet, words: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&[words, &["-o", "json"]].concat())?)?)
}

fn read_node(fleet: &TempFleet) -> Result<Value> {
    get_json(fleet, &["get", "node", "web-1"])
}

fn trait_sources(fleet: &TempFleet, name: &str) -> Result<Value> {
    Ok(read_node(fleet)?["trait_sources"][name].clone())
}

#[test]
fn rule_values_name_rule_and_end_with_deletion() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "site.yaml", SITE)?])?;
    let agent = fleet.join("web-1", "prod/web")?;
    eventually("the host has reported, and the requirement is not met", || {
        let told = read_node(&fleet)?;
        ensure!(told["findings"].to_string().contains("requirement.unmet") && told["last_seen"].is_string(), "{told}");
        Ok(())
    })?;
    ensure!(!agent.path("/etc/host-label").exists());
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "rule.yaml", RULE)?])?;
    // The values of the rule meet the requirement, and the file reads the rule's label.
    eventually("the file is written", || {
        ensure!(std::fs::read_to_string(agent.path("/etc/host-label"))?.trim() == "web-1");
        Ok(())
    })?;
    assert_eq!(trait_sources(&fleet, "CUSTOM_COUNTED")?, json!(["rule cpus"]));
    let list = fleet.stemma(&["trait", "list", "web-1"])?;
    ensure!(list.lines().any(|line| line.contains("CUSTOM_COUNTED") && line.contains("rule cpus")), "{list}");
    let found = get_json(&fleet, &["get", "nodes", "--trait", "CUSTOM_COUNTED", "--requirement", "property:counted >= 2"])?;
    ensure!(found.to_string().contains("web-1"), "{found}");
    let explained = get_json(&fleet, &["explain", "node", "web-1", "label", "example.net/host"])?;
    assert_eq!(explained["value"], "web-1", "{explained}");
    assert_eq!(explained["rules"][0]["rule"], "cpus", "{explained}");
    assert_eq!(explained["rules"][0]["result"], "wins", "{explained}");
    // The value of a level takes precedence over the rule's.
    let explained = get_json(&fleet, &["explain", "node", "web-1", "label", "tier"])?;
    assert_eq!((&explained["value"], &explained["rules"][0]["says"]), (&json!("gold"), &json!("rule")), "{explained}");
    let explained = get_json(&fleet, &["explain", "node", "web-1", "trait", "CUSTOM_COUNTED"])?;
    assert_eq!(explained["sources"], json!(["rule cpus"]), "{explained}");
    // The manifest of the node contains no value of the rule.
    let manifest = fleet.stemma(&["get", "node", "web-1", "-o", "manifest"])?;
    ensure!(!manifest.contains("CUSTOM_COUNTED") && !manifest.contains("example.net/host"), "{manifest}");
    check_restart_writes_nothing(&mut fleet)?;
    // An edit of the rule changes its values, and its deletion removes them.
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "rule.yaml", &RULE.replace("CUSTOM_COUNTED", "CUSTOM_OTHER"))?])?;
    eventually("the edit has come through", || {
        ensure!(trait_sources(&fleet, "CUSTOM_COUNTED")?.is_null());
        ensure!(trait_sources(&fleet, "CUSTOM_OTHER")? == json!(["rule cpus"]));
        Ok(())
    })?;
    fleet.stemma(&["delete", "inspectionrule", "cpus"])?;
    eventually("it is gone", || {
        let told = read_node(&fleet)?;
        ensure!(told["trait_sources"]["CUSTOM_OTHER"].is_null() && told["labels"]["example.net/host"].is_null(), "{told}");
        Ok(())
    })
}

/// Checks that a restart after a kill writes nothing: the node's versions and the number of audit entries stay the
/// same.
fn check_restart_writes_nothing(fleet: &mut TempFleet) -> Result<()> {
    eventually("the host has told what became of its tasks", || {
        let told = read_node(fleet)?;
        ensure!(told["state"] == "converged", "{told}");
        Ok(())
    })?;
    let stands = |fleet: &TempFleet| -> Result<Value> {
        let told = read_node(fleet)?;
        Ok(json!([told["resource_version"], told["labels"], told["trait_sources"], told["generation"]]))
    };
    let before = stands(fleet)?;
    let audited = get_json(fleet, &["audit"])?;
    fleet.crash_controller()?;
    eventually("the host is heard again", || {
        let told = read_node(fleet)?;
        ensure!(told["connected"] == json!(true), "{told}");
        Ok(())
    })?;
    assert_eq!(stands(fleet)?, before);
    let after = get_json(fleet, &["audit"])?;
    let count = |audit: &Value| audit["audit"].as_array().or_else(|| audit.as_array()).map(Vec::len);
    assert_eq!(count(&after).context("an audit")?, count(&audited).context("an audit")?, "nothing was written");
    Ok(())
}

#[test]
fn sensitive_rule_is_hidden() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "rule.yaml", RULE)?])?;
    let sensitive = format!("{RULE}sensitive: true\n");
    let path = write_file(&fleet, "rule.yaml", &sensitive)?;
    // Neither the write that hides the content nor the history shows what the rule contained before.
    for words in [&["apply", "-f", &path, "--dry-run", "-o", "json"][..], &["apply", "-f", &path, "-o", "json"]] {
        let told = fleet.stemma(words)?;
        ensure!(!told.contains("CUSTOM_COUNTED"), "{told}");
    }
    let shown = get_json(&fleet, &["get", "inspectionrule", "cpus"])?;
    assert_eq!((&shown["conditions"], &shown["actions"]), (&Value::Null, &Value::Null), "{shown}");
    for words in [&["get", "inspectionrules", "-o", "json"][..], &["describe", "inspectionrule", "cpus"], &["audit"]] {
        let told = fleet.stemma(words)?;
        ensure!(!told.contains("CUSTOM_COUNTED"), "{words:?}: {told}");
    }
    // The conflict of another manager does not show the content either, and nobody can make the rule public again.
    let other = fleet.cli(&[
        "apply",
        "-f",
        &write_file(&fleet, "other.yaml", &sensitive.replace("CUSTOM_COUNTED", "CUSTOM_OTHER"))?,
        "--manager",
        "other",
    ])?;
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    ensure!(!other.status.success() && said.contains("actions") && !said.contains("CUSTOM_COUNTED"), "{said}");
    let public = fleet.cli(&["apply", "-f", &write_file(&fleet, "rule.yaml", RULE)?])?;
    ensure!(!public.status.success(), "{}", String::from_utf8_lossy(&public.stdout));
    fleet.stemma(&["delete", "inspectionrule", "cpus"])?;
    Ok(())
}

/// A manifest of what is shown would delete the conditions and actions, and nobody could restore them.
#[test]
fn y07_sensitive_rule_is_unexported_and_kept_by_apply() -> Result<()> {
    let fleet = TempFleet::start()?;
    let open = RULE.replace("name: cpus", "name: open");
    let all = format!("{RULE}sensitive: true\n---\n{open}");
    let applied = fleet.stemma(&["apply", "-f", &write_file(&fleet, "rules.yaml", &all)?, "-o", "manifest"])?;
    ensure!(applied.contains("# Left out: inspectionrule/cpus is sensitive"), "{applied}");
    ensure!(applied.contains("name: open") && !applied.contains("name: cpus"), "{applied}");
    let before = get_json(&fleet, &["get", "inspectionrule", "cpus"])?;
    for verb in ["get", "describe"] {
        let (printed, said, status) = fleet.run_cli(&[verb, "inspectionrule", "cpus", "-o", "manifest"])?;
        ensure!(status != 0 && printed.is_empty(), "{verb}: {said}");
        ensure!(said.contains("inspectionrule/cpus is sensitive") && said.contains("keep the manifest"), "{said}");
    }

    let (printed, said, status) = fleet.run_cli(&["get", "inspectionrules", "-o", "manifest"])?;
    ensure!(status == 0 && said.contains("left out: inspectionrule/cpus is sensitive"), "{said}");
    ensure!(printed.starts_with("# Left out: inspectionrule/cpus is sensitive"), "{printed}");
    ensure!(printed.contains("name: open") && !printed.contains("name: cpus"), "{printed}");
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "exported.yaml", &printed)?])?;
    let after = get_json(&fleet, &["get", "inspectionrule", "cpus"])?;
    assert_eq!((&after["generation"], &after["field_owners"]), (&before["generation"], &before["field_owners"]));
    Ok(())
}

/// Ironic's clients create rules without a name. A manifest identifies a rule by its name.
#[test]
fn y07_export_reports_rule_without_name() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "rule.yaml", RULE)?])?;
    let nameless = json!({"description": "no name", "actions": [{"op": "fail", "args": {"msg": "x"}}]});
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let (status, made) = operator.send_typed("POST", "/v1/inspection_rules", "application/json", &nameless)?;
    ensure!(status == 201, "{status}: {made}");
    let uuid = made["uuid"].as_str().context("a uuid")?.to_owned();
    let (printed, said, status) = fleet.run_cli(&["get", "inspectionrules", "-o", "manifest"])?;
    let why = format!("inspectionrule/{uuid} has no name");
    ensure!(status == 0 && printed.contains(&why) && said.contains(&why), "{printed}{said}");
    let again = fleet.stemma(&["apply", "-f", &write_file(&fleet, "exported.yaml", &printed)?])?;
    ensure!(again.contains("unchanged"), "{again}");
    let (printed, said, status) = fleet.run_cli(&["get", "inspectionrule", &uuid, "-o", "manifest"])?;
    ensure!(status != 0 && printed.is_empty(), "{said}");
    Ok(())
}

/// Ironic's command, in the version that its script was validated with.
const CLIENT_PACKAGE: [&str; 1] = ["python-ironicclient==6.3.0"];

#[test]
fn ironic_command_manages_rules() -> Result<()> {
    let venv = environment(env!("CARGO_TARGET_TMPDIR"), "ironic-rules", &CLIENT_PACKAGE)?;
    let controller = PlainController::start()?;
    let admin = controller.addresses.admin.clone();
    let baremetal = |words: &[&str]| -> Result<String> {
        let mut command = Command::new(venv.join("bin/baremetal"));
        command.args(["--os-auth-type", "none", "--os-endpoint", &admin, "--max-retries", "0", "inspection", "rule"]);
        let output = command.args(words).output()?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{words:?}: {text}");
        Ok(text)
    };
    let uuid = "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6";
    let actions = r#"[{"op": "add-trait", "args": {"name": "CUSTOM_A"}}]"#;
    let conditions = r#"[{"op": "eq", "args": {"values": ["{node.name}", "n1"]}}]"#;
    baremetal(&["create", "--uuid", uuid, "--description", "first", "--actions", actions, "--conditions", conditions])?;
    ensure!(baremetal(&["show", uuid])?.contains("CUSTOM_A"));
    ensure!(baremetal(&["show", uuid, "--fields", "description"])?.contains("first"));
    let listed = baremetal(&["list"])?;
    ensure!(listed.contains(uuid) && listed.contains("first") && !listed.contains("CUSTOM_A"), "{listed}");
    ensure!(baremetal(&["list", "--long"])?.contains("CUSTOM_A"));
    ensure!(baremetal(&["list", "--fields", "uuid", "actions"])?.contains("CUSTOM_A"));
    baremetal(&["set", uuid, "--description", "second", "--priority", "7", "--actions", &actions.replace("_A", "_B")])?;
    let shown = baremetal(&["show", uuid, "-f", "json"])?;
    let shown: Value = serde_json::from_str(&shown)?;
    assert_eq!((&shown["description"], &shown["priority"]), (&json!("second"), &json!(7)), "{shown}");
    ensure!(shown.to_string().contains("CUSTOM_B"), "{shown}");
    let wrong = baremetal(&["create", "--actions", r#"[{"op": "api-call", "args": {"url": "http://x"}}]"#]).unwrap_err();
    ensure!(wrong.to_string().contains("api-call is not done by Stemma"), "{wrong}");
    baremetal(&["delete", uuid])?;
    ensure!(!baremetal(&["list"])?.contains(uuid));
    controller.stop()
}
