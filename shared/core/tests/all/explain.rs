//! Explains why a node has or lacks a tag that an extension decides. The expected sentences are handwritten.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::explain::{self, FleetContext, TaskRunState};
use stemma_core::fleet::FleetChange;
use stemma_core::name::{Name, TagName};
use stemma_core::object::{DecidedTags, Timestamp};
use stemma_core::resolve::resolve_node;

use crate::fleet_fixture::{FleetFixture, site_manifests};

#[test]
fn explain_tag_names_deciding_extension() {
    let mut documents = site_manifests(&json!({}), &json!([{"id": "conf", "type": "puppet", "tags": ["nginx", "mysql"]}]));
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    let mut made = FleetFixture::from_manifests(&documents);
    let why = |made: &FleetFixture, tag: &str| -> (Value, String) {
        let resolve = |id| resolve_node(&made.fleet, &made.cache, id);
        let told =
            explain::explain_tag(FleetContext { fleet: &made.fleet, resolve: &resolve }, &made.resolved_node("web-1"), tag);
        (told["has"].clone(), told["why"].as_str().expect("a text").to_owned())
    };
    let has = |why: &str| (json!(true), why.to_owned());
    let has_not = |why: &str| (json!(false), why.to_owned());
    let none = "no role of the node produces it, and it was not assigned";
    assert_eq!(why(&made, "nginx"), has("the node has role web, which produces it"));
    assert_eq!(why(&made, "mysql"), has_not(none));
    let mut web = (**made.node("web-1")).clone();
    let tags = vec![TagName::new("mysql").expect("a tag")];
    let decided = DecidedTags { extension: "rack".to_owned(), cluster: made.cluster_id(), tags, question: String::new() };
    web.spec.tags.decided.insert(Name::new("web").expect("a role"), decided);
    made.fleet.apply(FleetChange::Node(Arc::new(web)));
    assert_eq!(why(&made, "mysql"), has("the node has role web, which produces it, as extension rack decided"));
    let withheld = format!("{none}: role web declares it, and extension rack decided otherwise for this node");
    assert_eq!(why(&made, "nginx"), has_not(&withheld));
    assert_eq!(why(&made, "other"), has_not(none));
}

#[test]
fn explain_task_names_placing_group() {
    let documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "all", "type": "group", "tags": ["nginx"], "tasks": ["member", "both", "away"]},
            {"id": "bare", "type": "group", "tasks": ["away"]},
            {"id": "member", "type": "puppet"},
            {"id": "both", "type": "puppet", "tags": ["mysql"]},
            {"id": "away", "type": "puppet", "tags": ["mysql"], "condition": "false"},
            {"id": "alone", "type": "puppet"},
        ]),
    );
    let made = FleetFixture::from_manifests(&documents);
    let ran = TaskRunState {
        should_run: None,
        has_task_set: false,
        too_large: None,
        kept_release: None,
        is_confirmed: false,
        outcome: None,
        closed_barriers: &Vec::new,
    };
    let why = |task: &str| {
        let told = explain::explain_task(&made.resolved_node("web-1"), task, Timestamp(1), &ran).expect("a task");
        told["why"].as_str().expect("a text").to_owned()
    };
    assert_eq!(why("member"), "it runs on this node by group all (placed by tags nginx)");
    assert_eq!(why("both"), "it runs on this node by tags mysql, or group all (placed by tags nginx)");
    assert_eq!(
        why("away"),
        "it is placed on this node by tags mysql, or group all (placed by tags nginx), or group bare (placed by nothing), and is left out: \
         condition is false: false"
    );
    assert_eq!(why("alone"), "it does not run on this node: it is placed by nothing: give it tags or roles");
}
