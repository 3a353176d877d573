//! Explanations: why a node has a tag, and why a task runs on a node. The expected sentences are handwritten.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::explain::{self, FleetContext, TaskRunState};
use stemma_core::fleet::FleetChange;
use stemma_core::name::{Name, TagName};
use stemma_core::object::{DecidedTags, Timestamp};
use stemma_core::resolve::resolve_node;
use stemma_core::status::{RebootReport, RebootTask};

use crate::fleet_fixture::{FleetFixture, site_manifests};

/// An extension is a program outside of Stemma. It decides which tags a role gives a node. Document 1 is the release.
#[test]
fn explain_tag_names_deciding_extension() {
    let mut documents = site_manifests(
        &json!({}),
        &json!([{"id": "conf", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx", "mysql"]}]),
    );
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    let mut fixture = FleetFixture::from_manifests(&documents);
    let has_and_reason = |fixture: &FleetFixture, tag: &str| -> (Value, String) {
        let resolve = |id| resolve_node(&fixture.fleet, &fixture.cache, id);
        let explanation =
            explain::explain_tag(FleetContext { fleet: &fixture.fleet, resolve: &resolve }, &fixture.resolved_node("web-1"), tag);
        (explanation["has"].clone(), explanation["why"].as_str().expect("a text").to_owned())
    };
    let present_because = |reason: &str| (json!(true), reason.to_owned());
    let absent_because = |reason: &str| (json!(false), reason.to_owned());
    let not_produced = "no role of the node produces it, and it was not assigned";
    assert_eq!(has_and_reason(&fixture, "nginx"), present_because("the node has role web, which produces it"));
    assert_eq!(has_and_reason(&fixture, "mysql"), absent_because(not_produced));
    let mut web_node = (**fixture.node("web-1")).clone();
    let tags = vec![TagName::new("mysql").expect("a tag")];
    let decided = DecidedTags { extension: "rack".to_owned(), cluster: fixture.cluster_id(), tags, question: String::new() };
    web_node.spec.tags.decided.insert(Name::new("web").expect("a role"), decided);
    fixture.fleet.apply(FleetChange::Node(Arc::new(web_node)));
    assert_eq!(
        has_and_reason(&fixture, "mysql"),
        present_because("the node has role web, which produces it, as extension rack decided")
    );
    let decided_otherwise = format!("{not_produced}: role web declares it, and extension rack decided otherwise for this node");
    assert_eq!(has_and_reason(&fixture, "nginx"), absent_because(&decided_otherwise));
    assert_eq!(has_and_reason(&fixture, "other"), absent_because(not_produced));
}

/// The reason names each way in which a task is placed: by its own tags, and by each group that lists the task. It also
/// names ways that do not apply to the node: web-1 has tag `nginx` and lacks tag `mysql`.
#[test]
fn explain_task_names_placing_group() {
    let documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "all", "type": "group", "tags": ["nginx"], "tasks": ["member", "both", "away"]},
            {"id": "bare", "type": "group", "tasks": ["away"]},
            {"id": "member", "type": "shell", "parameters": {"script": "true"}},
            {"id": "both", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"]},
            {"id": "away", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"], "condition": "false"},
            {"id": "alone", "type": "shell", "parameters": {"script": "true"}},
        ]),
    );
    let fixture = FleetFixture::from_manifests(&documents);
    let run_state = TaskRunState {
        should_run: None,
        has_task_set: false,
        too_large: None,
        kept_release: None,
        is_confirmed: false,
        outcome: None,
        closed_barriers: &Vec::new,
    };
    let reason = |task: &str| {
        let explanation = explain::explain_task(&fixture.resolved_node("web-1"), task, Timestamp(1), &run_state).expect("a task");
        explanation["why"].as_str().expect("a text").to_owned()
    };
    assert_eq!(reason("member"), "it runs on this node by group all (placed by tags nginx)");
    assert_eq!(reason("both"), "it runs on this node by tags mysql, or group all (placed by tags nginx)");
    assert_eq!(
        reason("away"),
        "it is placed on this node by tags mysql, or group all (placed by tags nginx), or group bare (placed by nothing), and is left out: \
         condition is false: false"
    );
    assert_eq!(reason("alone"), "it does not run on this node: it is placed by nothing: give it tags or roles");
}

/// Regression test: nothing said that a task waits for a reboot, which only a finding of the node named.
#[test]
fn explain_names_reboot_before_task() {
    let shell = |id: &str, requires: &[&str]| json!({"id": id, "type": "shell", "tags": ["nginx"], "requires": requires, "parameters": {"script": "true"}});
    let boot = json!({"id": "boot", "type": "reboot", "tags": ["nginx"]});
    let tasks = json!([boot, shell("app", &["boot"]), shell("pages", &["app"]), shell("other", &[])]);
    let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &tasks));
    let asked = RebootTask { task: "boot".to_owned(), reason: "a new kernel".to_owned() };
    let report = RebootReport { since: Some(7), tasks: vec![asked], problem: None };
    let explain = |task: &str, has_ended, report: &RebootReport| {
        explain::explain_reboot(&fixture.resolved_node("web-1"), task, has_ended, report).unwrap_or_default()
    };
    assert_eq!(
        explain("boot", false, &report),
        "it waits for a reboot of its host, for which it has asked: a new kernel: run `stemma node reboot web-1`"
    );
    for task in ["app", "pages"] {
        let expected = "it waits for task boot, which waits for a reboot of its host: run `stemma node reboot web-1`";
        assert_eq!(explain(task, false, &report), expected);
        assert_eq!(explain(task, true, &report), "");
    }
    assert_eq!(explain("other", false, &report), "");
    assert_eq!(explain("boot", false, &RebootReport::default()), "");
    let blocked = RebootReport { problem: Some("a backup runs".to_owned()), ..report };
    let text = explain("app", false, &blocked);
    assert!(text.contains("; the last reboot has not happened: a backup runs: run `stemma node reboot"), "{text}");
}
