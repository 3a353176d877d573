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

/// An inspection rule that adds a trait, two labels and a property if the host has reported its number of processors.
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

/// A release, a cluster, and a node group that requires the trait and property of [`RULE`]. A task writes the rule's
/// label `example.net/host` to a file. The cluster has its own value of the rule's label `tier`.
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

/// Writes a file in the directory of the fleet, and returns its path.
fn write_file(fleet: &TempFleet, name: &str, text: &str) -> Result<String> {
    let path = fleet.dir().join(name);
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

/// Returns the JSON output of a `stemma` command.
fn get_json(fleet: &TempFleet, words: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&[words, &["-o", "json"]].concat())?)?)
}

fn read_node(fleet: &TempFleet) -> Result<Value> {
    get_json(fleet, &["get", "node", "web-1"])
}

/// Returns the list of sources of a trait of node `web-1`, or null if the node does not have the trait.
fn trait_sources(fleet: &TempFleet, name: &str) -> Result<Value> {
    Ok(read_node(fleet)?["trait_sources"][name].clone())
}

#[test]
fn rule_values_name_rule_and_end_with_deletion() -> Result<()> {
    let mut fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "site.yaml", SITE)?])?;
    let agent = fleet.join("web-1", "prod/web")?;
    eventually("the host has reported, and the requirement is not met", || {
        let node = read_node(&fleet)?;
        ensure!(node["findings"].to_string().contains("requirement.unmet") && node["last_seen"].is_string(), "{node}");
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
    eventually("the values of the edited rule", || {
        ensure!(trait_sources(&fleet, "CUSTOM_COUNTED")?.is_null());
        ensure!(trait_sources(&fleet, "CUSTOM_OTHER")? == json!(["rule cpus"]));
        Ok(())
    })?;
    fleet.stemma(&["delete", "inspectionrule", "cpus"])?;
    eventually("the end of the values of the deleted rule", || {
        let node = read_node(&fleet)?;
        ensure!(node["trait_sources"]["CUSTOM_OTHER"].is_null() && node["labels"]["example.net/host"].is_null(), "{node}");
        Ok(())
    })
}

/// Kills the controller and starts it again. Checks that this writes nothing: the node's versions and values, and the
/// number of audit entries, stay the same.
fn check_restart_writes_nothing(fleet: &mut TempFleet) -> Result<()> {
    eventually("the results of the host's tasks", || {
        let node = read_node(fleet)?;
        ensure!(node["state"] == "converged", "{node}");
        Ok(())
    })?;
    let stored_values = |fleet: &TempFleet| -> Result<Value> {
        let node = read_node(fleet)?;
        Ok(json!([node["resource_version"], node["labels"], node["trait_sources"], node["generation"]]))
    };
    let values_before = stored_values(fleet)?;
    let audit_before = get_json(fleet, &["audit"])?;
    fleet.crash_controller()?;
    eventually("the connection of the host", || {
        let node = read_node(fleet)?;
        ensure!(node["connected"] == json!(true), "{node}");
        Ok(())
    })?;
    assert_eq!(stored_values(fleet)?, values_before);
    let audit_after = get_json(fleet, &["audit"])?;
    // The list of entries is the answer itself, or its field `audit`.
    let entry_count = |audit: &Value| audit["audit"].as_array().or_else(|| audit.as_array()).map(Vec::len);
    assert_eq!(
        entry_count(&audit_after).context("an audit")?,
        entry_count(&audit_before).context("an audit")?,
        "nothing was written"
    );
    Ok(())
}

/// No answer shows the content of a rule that was made sensitive: neither lists nor the audit, nor the error of a
/// refused write. The rule cannot be made public again.
#[test]
fn sensitive_rule_is_hidden() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "rule.yaml", RULE)?])?;
    let sensitive = format!("{RULE}sensitive: true\n");
    let path = write_file(&fleet, "rule.yaml", &sensitive)?;
    // Neither the write that hides the content nor the history shows what the rule contained before.
    for arguments in [&["apply", "-f", &path, "--dry-run", "-o", "json"][..], &["apply", "-f", &path, "-o", "json"]] {
        let stdout = fleet.stemma(arguments)?;
        ensure!(!stdout.contains("CUSTOM_COUNTED"), "{stdout}");
    }
    let shown = get_json(&fleet, &["get", "inspectionrule", "cpus"])?;
    assert_eq!((&shown["conditions"], &shown["actions"]), (&Value::Null, &Value::Null), "{shown}");
    for arguments in [&["get", "inspectionrules", "-o", "json"][..], &["describe", "inspectionrule", "cpus"], &["audit"]] {
        let stdout = fleet.stemma(arguments)?;
        ensure!(!stdout.contains("CUSTOM_COUNTED"), "{arguments:?}: {stdout}");
    }
    // The conflict of another manager does not show the content either, and nobody can make the rule public again.
    let refused_output = fleet.cli(&[
        "apply",
        "-f",
        &write_file(&fleet, "other.yaml", &sensitive.replace("CUSTOM_COUNTED", "CUSTOM_OTHER"))?,
        "--manager",
        "other",
    ])?;
    let stderr = String::from_utf8_lossy(&refused_output.stderr).into_owned();
    ensure!(!refused_output.status.success() && stderr.contains("actions") && !stderr.contains("CUSTOM_COUNTED"), "{stderr}");
    let public_output = fleet.cli(&["apply", "-f", &write_file(&fleet, "rule.yaml", RULE)?])?;
    ensure!(!public_output.status.success(), "{}", String::from_utf8_lossy(&public_output.stdout));
    fleet.stemma(&["delete", "inspectionrule", "cpus"])?;
    Ok(())
}

/// A sensitive rule is shown without its conditions and actions, and an apply of such a manifest would delete them for
/// ever. So an export of all rules omits the rule with a note, and an export of this rule fails.
#[test]
fn y07_sensitive_rule_is_unexported_and_unchanged_by_apply() -> Result<()> {
    let fleet = TempFleet::start()?;
    let public_rule = RULE.replace("name: cpus", "name: open");
    let rules = format!("{RULE}sensitive: true\n---\n{public_rule}");
    let applied = fleet.stemma(&["apply", "-f", &write_file(&fleet, "rules.yaml", &rules)?, "-o", "manifest"])?;
    ensure!(applied.contains("# Left out: inspectionrule/cpus is sensitive"), "{applied}");
    ensure!(applied.contains("name: open") && !applied.contains("name: cpus"), "{applied}");
    let rule_before = get_json(&fleet, &["get", "inspectionrule", "cpus"])?;
    for verb in ["get", "describe"] {
        let (stdout, stderr, status) = fleet.run_cli(&[verb, "inspectionrule", "cpus", "-o", "manifest"])?;
        ensure!(status != 0 && stdout.is_empty(), "{verb}: {stderr}");
        ensure!(stderr.contains("inspectionrule/cpus is sensitive") && stderr.contains("keep the manifest"), "{stderr}");
    }

    let (stdout, stderr, status) = fleet.run_cli(&["get", "inspectionrules", "-o", "manifest"])?;
    ensure!(status == 0 && stderr.contains("left out: inspectionrule/cpus is sensitive"), "{stderr}");
    ensure!(stdout.starts_with("# Left out: inspectionrule/cpus is sensitive"), "{stdout}");
    ensure!(stdout.contains("name: open") && !stdout.contains("name: cpus"), "{stdout}");
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "exported.yaml", &stdout)?])?;
    let rule_after = get_json(&fleet, &["get", "inspectionrule", "cpus"])?;
    assert_eq!(
        (&rule_after["generation"], &rule_after["field_owners"]),
        (&rule_before["generation"], &rule_before["field_owners"])
    );
    Ok(())
}

/// Ironic's clients can create rules without a name. An export omits these rules with a note, because a manifest
/// identifies a rule by its name.
#[test]
fn y07_export_reports_rule_without_name() -> Result<()> {
    let fleet = TempFleet::start()?;
    fleet.stemma(&["apply", "-f", &write_file(&fleet, "rule.yaml", RULE)?])?;
    let nameless = json!({"description": "no name", "actions": [{"op": "fail", "args": {"msg": "x"}}]});
    // Without the headers for API versions, the client uses the controller's own API.
    let mut operator = OperatorClient::from_data(&fleet.data(), fleet.addresses())?.without_versions();
    let (status, created) = operator.send_typed("POST", "/v1/inspection_rules", "application/json", &nameless)?;
    ensure!(status == 201, "{status}: {created}");
    let uuid = created["uuid"].as_str().context("a uuid")?.to_owned();
    let (stdout, stderr, status) = fleet.run_cli(&["get", "inspectionrules", "-o", "manifest"])?;
    let note = format!("inspectionrule/{uuid} has no name");
    ensure!(status == 0 && stdout.contains(&note) && stderr.contains(&note), "{stdout}{stderr}");
    let applied = fleet.stemma(&["apply", "-f", &write_file(&fleet, "exported.yaml", &stdout)?])?;
    ensure!(applied.contains("unchanged"), "{applied}");
    let (stdout, stderr, status) = fleet.run_cli(&["get", "inspectionrule", &uuid, "-o", "manifest"])?;
    ensure!(status != 0 && stdout.is_empty(), "{stderr}");
    Ok(())
}

/// The package of Ironic's command, in the version with which this test was written.
const CLIENT_PACKAGE: [&str; 1] = ["python-ironicclient==6.3.0"];

/// The command `baremetal` creates, shows, lists, changes and deletes a rule. A rule with an unsupported action is
/// refused.
#[test]
fn ironic_command_manages_rules() -> Result<()> {
    let venv = environment(env!("CARGO_TARGET_TMPDIR"), "ironic-rules", &CLIENT_PACKAGE)?;
    let controller = PlainController::start()?;
    let admin = controller.addresses.admin.clone();
    let baremetal = |arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(venv.join("bin/baremetal"));
        command.args(["--os-auth-type", "none", "--os-endpoint", &admin, "--max-retries", "0", "inspection", "rule"]);
        let output = command.args(arguments).output()?;
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{arguments:?}: {text}");
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
    let error = baremetal(&["create", "--actions", r#"[{"op": "api-call", "args": {"url": "http://x"}}]"#]).unwrap_err();
    ensure!(error.to_string().contains("api-call is not supported by Stemma"), "{error}");
    baremetal(&["delete", uuid])?;
    ensure!(!baremetal(&["list"])?.contains(uuid));
    controller.stop()
}
