//! The requirements of an instance are checked before the node's first task set, and not again.

use serde_json::{Value, json};
use stemma_wire::message::desired::InputValue;

use crate::fleet::Fleet;
use crate::held_task_set::new_parts;

/// Builds a release, a cluster with the label `ntp`, and a group. The nodes of the group write a file that contains the
/// label. The cluster has this release, or none.
fn site(release: Option<&str>, ntp: &str) -> Value {
    let task = json!({"id": "ntp", "type": "file", "tags": ["common"],
        "parameters": {"path": "/etc/ntp", "template": "server {{ labels.ntp }}\n"}});
    json!([
        {"kind": "Release", "name": "site", "version": "1", "roles": {"all": {"tags": ["common"]}}, "tags": {"common": {}}, "tasks": [task]},
        {"kind": "Cluster", "name": "c", "release": release, "labels": {"ntp": ntp}},
        {"kind": "NodeGroup", "cluster": "c", "name": "g", "roles": ["all"]},
    ])
}

/// Applies node n with these traits. Its `instance_info` requires the trait `CUSTOM_GPU`. Its label `gpus` is the
/// number of traits.
async fn set_instance(fleet: &Fleet, traits: &[&str]) {
    let instance = json!({"traits": ["CUSTOM_GPU"]});
    let node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "instance_info": instance, "traits": traits, "labels": {"gpus": traits.len().to_string()}});
    fleet.apply(json!([node])).await;
}

/// The node lacks a trait that its `instance_info` requires. So its first task set with tasks is withheld.
#[tokio::test]
async fn check_in_omits_task_set_when_instance_is_unmet() {
    let fleet = Fleet::start_reconciled().await;
    fleet.apply(site(None, "one")).await;
    let mut host = fleet.join_group("c/g", "n").await;
    assert_eq!(new_parts(&mut host).await.1.expect("a task set without tasks").profile, None, "the cluster has no release yet");
    set_instance(&fleet, &[]).await;
    assert_eq!(new_parts(&mut host).await.0.expect("the known part").labels["gpus"].value, "0");

    fleet.apply(site(Some("site@1"), "two")).await;
    let (known, task_set) = new_parts(&mut host).await;
    assert_eq!(known.expect("the known part").labels["ntp"].value, "two");
    assert_eq!(task_set, None, "the first task set is withheld");
    let explanation = fleet.read("/v1/nodes/n/explain?task=ntp").await;
    let deploy = fleet.read("/v1/nodes/n/validate").await["deploy"].clone();
    let reason = deploy["reason"].as_str().expect("a sentence");
    assert!(reason.ends_with("is missing traits CUSTOM_GPU"), "{deploy}");
    assert_eq!(explanation["set_aside"], json!([format!("{reason}: no new task set is released")]), "{explanation}");
    assert_eq!(explanation["released"], false);

    set_instance(&fleet, &["CUSTOM_GPU"]).await;
    let ntp = |value: &str| InputValue::Json(format!("\"{value}\"").into());
    assert_eq!(new_parts(&mut host).await.1.expect("the first task set").inputs["labels.ntp"], ntp("two"));

    // The node is in use, so a trait that it loses causes a finding and withholds nothing.
    set_instance(&fleet, &[]).await;
    new_parts(&mut host).await.0.expect("the known part");
    fleet.apply(site(Some("site@1"), "three")).await;
    assert_eq!(new_parts(&mut host).await.1.expect("the next task set").inputs["labels.ntp"], ntp("three"));
    let findings = fleet.read("/v1/nodes/n").await["findings"].clone();
    assert!(findings.to_string().contains(reason), "{findings}");
    fleet.controller.stop().await;
}
