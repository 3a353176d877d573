//! Inspection rules by the operator's command and a real agent: what a rule gives a host that has reported, that it names the rule wherever it
//! is shown, that it is gone with the rule, and that a restart writes nothing.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use stemma_tests::fleet::Fleet;
use stemma_tests::operator::Operator;
use stemma_tests::plain::Plain;
use stemma_tests::program::eventually;
use stemma_tests::python::environment;

/// A rule that gives a trait, a label and a property to every host that has reported how many processors it has.
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

/// A group that requires what the rule gives, with a file that reads it.
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

fn write(fleet: &Fleet, name: &str, text: &str) -> Result<String> {
    let path = fleet.dir().join(name);
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

fn get(fleet: &Fleet, words: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&fleet.stemma(&[words, &["-o", "json"]].concat())?)?)
}

fn node(fleet: &Fleet) -> Result<Value> {
    get(fleet, &["get", "node", "web-1"])
}

fn sources(fleet: &Fleet, name: &str) -> Result<Value> {
    Ok(node(fleet)?["trait_sources"][name].clone())
}

#[test]
fn what_a_rule_gives_a_host_names_it_and_goes_with_it() -> Result<()> {
    let mut fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", &write(&fleet, "site.yaml", SITE)?])?;
    let agent = fleet.join("web-1", "prod/web")?;
    eventually("the host has reported, and the requirement is not met", || {
        let told = node(&fleet)?;
        ensure!(told["findings"].to_string().contains("requirement.unmet") && told["last_seen"].is_string(), "{told}");
        Ok(())
    })?;
    ensure!(!agent.path("/etc/host-label").exists());
    fleet.stemma(&["apply", "-f", &write(&fleet, "rule.yaml", RULE)?])?;
    // The requirement is met by what the rule gives, and the file reads the rule's label.
    eventually("the file is written", || {
        ensure!(std::fs::read_to_string(agent.path("/etc/host-label"))?.trim() == "web-1");
        Ok(())
    })?;
    assert_eq!(sources(&fleet, "CUSTOM_COUNTED")?, json!(["rule cpus"]));
    let list = fleet.stemma(&["trait", "list", "web-1"])?;
    ensure!(list.lines().any(|line| line.contains("CUSTOM_COUNTED") && line.contains("rule cpus")), "{list}");
    let found = get(&fleet, &["get", "nodes", "--trait", "CUSTOM_COUNTED", "--requirement", "property:counted >= 2"])?;
    ensure!(found.to_string().contains("web-1"), "{found}");
    let explained = get(&fleet, &["explain", "node", "web-1", "label", "example.net/host"])?;
    assert_eq!(explained["value"], "web-1", "{explained}");
    assert_eq!(explained["rules"][0]["rule"], "cpus", "{explained}");
    assert_eq!(explained["rules"][0]["result"], "wins", "{explained}");
    // What a level says holds.
    let explained = get(&fleet, &["explain", "node", "web-1", "label", "tier"])?;
    assert_eq!((&explained["value"], &explained["rules"][0]["says"]), (&json!("gold"), &json!("rule")), "{explained}");
    let explained = get(&fleet, &["explain", "node", "web-1", "trait", "CUSTOM_COUNTED"])?;
    assert_eq!(explained["sources"], json!(["rule cpus"]), "{explained}");
    // Nothing of it stands in what operators say.
    let manifest = fleet.stemma(&["get", "node", "web-1", "-o", "manifest"])?;
    ensure!(!manifest.contains("CUSTOM_COUNTED") && !manifest.contains("example.net/host"), "{manifest}");
    restart_writes_nothing(&mut fleet)?;
    // An edit of the rule changes it, and its end takes it back.
    fleet.stemma(&["apply", "-f", &write(&fleet, "rule.yaml", &RULE.replace("CUSTOM_COUNTED", "CUSTOM_OTHER"))?])?;
    eventually("the edit has come through", || {
        ensure!(sources(&fleet, "CUSTOM_COUNTED")?.is_null());
        ensure!(sources(&fleet, "CUSTOM_OTHER")? == json!(["rule cpus"]));
        Ok(())
    })?;
    fleet.stemma(&["delete", "inspectionrule", "cpus"])?;
    eventually("it is gone", || {
        let told = node(&fleet)?;
        ensure!(
            told["trait_sources"]["CUSTOM_OTHER"].is_null() && told["labels"]["example.net/host"].is_null(),
            "{told}"
        );
        Ok(())
    })
}

/// The revision that the node's desired state and the store are at, before and after the controller was killed.
fn restart_writes_nothing(fleet: &mut Fleet) -> Result<()> {
    eventually("the host has told what became of its tasks", || {
        let told = node(fleet)?;
        ensure!(told["state"] == "converged", "{told}");
        Ok(())
    })?;
    let stands = |fleet: &Fleet| -> Result<Value> {
        let told = node(fleet)?;
        Ok(json!([told["resource_version"], told["labels"], told["trait_sources"], told["generation"]]))
    };
    let before = stands(fleet)?;
    let audited = get(fleet, &["audit"])?;
    fleet.crash_controller()?;
    eventually("the host is heard again", || {
        let told = node(fleet)?;
        ensure!(told["connected"] == json!(true), "{told}");
        Ok(())
    })?;
    assert_eq!(stands(fleet)?, before);
    let after = get(fleet, &["audit"])?;
    let count = |audit: &Value| audit["audit"].as_array().or_else(|| audit.as_array()).map(Vec::len);
    assert_eq!(count(&after).context("an audit")?, count(&audited).context("an audit")?, "nothing was written");
    Ok(())
}

#[test]
fn a_sensitive_rule_is_shown_to_nobody() -> Result<()> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", &write(&fleet, "rule.yaml", RULE)?])?;
    let sensitive = format!("{RULE}sensitive: true\n");
    let path = write(&fleet, "rule.yaml", &sensitive)?;
    // What stood there before is not told by the write that hides it, nor by what is told of the past.
    for words in [&["apply", "-f", &path, "--dry-run", "-o", "json"][..], &["apply", "-f", &path, "-o", "json"]] {
        let told = fleet.stemma(words)?;
        ensure!(!told.contains("CUSTOM_COUNTED"), "{told}");
    }
    let shown = get(&fleet, &["get", "inspectionrule", "cpus"])?;
    assert_eq!((&shown["conditions"], &shown["actions"]), (&Value::Null, &Value::Null), "{shown}");
    for words in [&["get", "inspectionrules", "-o", "json"][..], &["describe", "inspectionrule", "cpus"], &["audit"]] {
        let told = fleet.stemma(words)?;
        ensure!(!told.contains("CUSTOM_COUNTED"), "{words:?}: {told}");
    }
    // Another manager's conflict does not tell it, and nobody makes it public again.
    let other = fleet.cli(&[
        "apply",
        "-f",
        &write(&fleet, "other.yaml", &sensitive.replace("CUSTOM_COUNTED", "CUSTOM_OTHER"))?,
        "--manager",
        "other",
    ])?;
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    ensure!(!other.status.success() && said.contains("actions") && !said.contains("CUSTOM_COUNTED"), "{said}");
    let public = fleet.cli(&["apply", "-f", &write(&fleet, "rule.yaml", RULE)?])?;
    ensure!(!public.status.success(), "{}", String::from_utf8_lossy(&public.stdout));
    fleet.stemma(&["delete", "inspectionrule", "cpus"])?;
    Ok(())
}

/// A manifest of what is shown would take the conditions and actions away, which nobody could give back.
#[test]
fn y07_a_sensitive_rule_is_not_exported_and_applying_what_is_exported_leaves_it() -> Result<()> {
    let fleet = Fleet::start()?;
    let open = RULE.replace("name: cpus", "name: open");
    let all = format!("{RULE}sensitive: true\n---\n{open}");
    let applied = fleet.stemma(&["apply", "-f", &write(&fleet, "rules.yaml", &all)?, "-o", "manifest"])?;
    ensure!(applied.contains("# Left out: inspectionrule/cpus is sensitive"), "{applied}");
    ensure!(applied.contains("name: open") && !applied.contains("name: cpus"), "{applied}");
    let before = get(&fleet, &["get", "inspectionrule", "cpus"])?;
    for verb in ["get", "describe"] {
        let (printed, said, status) = fleet.ran(&[verb, "inspectionrule", "cpus", "-o", "manifest"])?;
        ensure!(status != 0 && printed.is_empty(), "{verb}: {said}");
        ensure!(said.contains("inspectionrule/cpus is sensitive") && said.contains("keep the manifest"), "{said}");
    }

    let (printed, said, status) = fleet.ran(&["get", "inspectionrules", "-o", "manifest"])?;
    ensure!(status == 0 && said.contains("left out: inspectionrule/cpus is sensitive"), "{said}");
    ensure!(printed.starts_with("# Left out: inspectionrule/cpus is sensitive"), "{printed}");
    ensure!(printed.contains("name: open") && !printed.contains("name: cpus"), "{printed}");
    fleet.stemma(&["apply", "-f", &write(&fleet, "exported.yaml", &printed)?])?;
    let after = get(&fleet, &["get", "inspectionrule", "cpus"])?;
    assert_eq!((&after["generation"], &after["field_owners"]), (&before["generation"], &before["field_owners"]));
    Ok(())
}

/// Ironic's clients give a rule no name, and a manifest says by the name whose it is.
#[test]
fn y07_a_rule_without_a_name_is_left_out_of_an_export_and_said() -> Result<()> {
    let fleet = Fleet::start()?;
    fleet.stemma(&["apply", "-f", &write(&fleet, "rule.yaml", RULE)?])?;
    let nameless = json!({"description": "no name", "actions": [{"op": "fail", "args": {"msg": "x"}}]});
    let mut operator = Operator::of(&fleet.data(), fleet.bound())?.without_versions();
    let (status, made) = operator.call("POST", "/v1/inspection_rules", "application/json", &nameless)?;
    ensure!(status == 201, "{status}: {made}");
    let uuid = made["uuid"].as_str().context("a uuid")?.to_owned();
    let (printed, said, status) = fleet.ran(&["get", "inspectionrules", "-o", "manifest"])?;
    let why = format!("inspectionrule/{uuid} has no name");
    ensure!(status == 0 && printed.contains(&why) && said.contains(&why), "{printed}{said}");
    let again = fleet.stemma(&["apply", "-f", &write(&fleet, "exported.yaml", &printed)?])?;
    ensure!(again.contains("unchanged"), "{again}");
    let (printed, said, status) = fleet.ran(&["get", "inspectionrule", &uuid, "-o", "manifest"])?;
    ensure!(status != 0 && printed.is_empty(), "{said}");
    Ok(())
}

/// Ironic's command, in the version that its script was validated with.
const CLIENT: [&str; 1] = ["python-ironicclient==6.3.0"];

#[test]
fn ironics_command_works_with_rules() -> Result<()> {
    let venv = environment(env!("CARGO_TARGET_TMPDIR"), "ironic-rules", &CLIENT)?;
    let controller = Plain::start()?;
    let admin = controller.bound.admin.clone();
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
    let wrong =
        baremetal(&["create", "--actions", r#"[{"op": "api-call", "args": {"url": "http://x"}}]"#]).unwrap_err();
    ensure!(wrong.to_string().contains("api-call is not done by Stemma"), "{wrong}");
    baremetal(&["delete", uuid])?;
    ensure!(!baremetal(&["list"])?.contains(uuid));
    controller.stop()
}
