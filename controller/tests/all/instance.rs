//! The requirements of an instance are checked before the node's first task set, and not again.

use serde_json::{Value, json};
use stemma_wire::message::desired::InputValue;

use crate::fleet::Fleet;
use crate::held_task_set::new_parts;

/// Builds a group whose nodes write a file that reads the label `ntp`. The cluster names the release, or none yet.
fn site(release: Option<&str>, ntp: &str) -> Value {
    let task = json!({"id": "ntp", "type": "file", "tags": ["common"],
        "parameters": {"path": "/etc/ntp", "template": "server {{ labels.ntp }}\n"}});
    json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"all": {"tags": ["common"]}}, "tags": {"common": {}}, "tasks": [task]},
        {"kind": "Cluster", "name": "c", "release": release, "labels": {"ntp": ntp}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ])
}

/// Applies node n, whose instance requires a GPU, with these traits.
async fn set_instance(fleet: &Fleet, traits: &[&str]) {
    let instance = json!({"traits": ["CUSTOM_GPU"]});
    let node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "instance_info": instance, "traits": traits, "labels": {"gpus": traits.len().to_string()}});
    fleet.apply(json!([node])).await;
}

#[tokio::test]
async fn check_in_omits_task_set_when_instance_is_unmet() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site(None, "one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert_eq!(new_parts(&mut host).await.1.expect("one without tasks").profile, None, "there is no release yet");
    set_instance(&fleet, &[]).await;
    assert_eq!(new_parts(&mut host).await.0.expect("its labels").labels["gpus"].value, "0");

    fleet.apply(site(Some("site@1"), "two")).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.expect("its labels").labels["ntp"].value, "two");
    assert_eq!(task_set, None, "its first task set is kept from it");
    let account = fleet.read("/v1/nodes/n/explain?task=ntp").await;
    let deploy = fleet.read("/v1/nodes/n/validate").await["deploy"].clone();
    let reason = deploy["reason"].as_str().expect("a sentence");
    assert!(reason.ends_with("is missing traits CUSTOM_GPU"), "{deploy}");
    assert_eq!(account["set_aside"], json!([format!("{reason}: no new task set is released")]), "{account}");
    assert_eq!(account["released"], false);

    set_instance(&fleet, &["CUSTOM_GPU"]).await;
    let ntp = |value: &str| InputValue::Json(format!("\"{value}\"").into());
    assert_eq!(new_parts(&mut host).await.1.expect("its first task set").inputs["labels.ntp"], ntp("two"));

    // The node is in use, so a trait that it loses causes a finding and withholds nothing.
    set_instance(&fleet, &[]).await;
    new_parts(&mut host).await.0.expect("its labels");
    fleet.apply(site(Some("site@1"), "three")).await;
    assert_eq!(new_parts(&mut host).await.1.expect("its next task set").inputs["labels.ntp"], ntp("three"));
    let findings = fleet.read("/v1/nodes/n").await["findings"].clone();
    assert!(findings.to_string().contains(reason), "{findings}");
    fleet.controller.stop().await;
}
