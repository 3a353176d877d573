//! Privileged tasks. A role or tag that an operator gave a node can place such a task there. A tag that an extension
//! gave and the name of a node cannot. An extension is a program that decides which tags a role gives a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::Severity;
use stemma_core::fleet::{FleetChange, HostControlledRead};
use stemma_core::name::{Name, ObjectName, TagName};
use stemma_core::object::{DecidedTags, Meta, Object, Timestamp};
use stemma_core::ownership::{Manager, OwnedSet, ProvidedValue};
use stemma_core::resolve::{ConditionOutcome, SkipReason, TaskSet};
use uuid::Uuid;

use crate::fleet_fixture::{FleetFixture, site_manifests};

/// The reason for which a privileged task is skipped on a node.
const SKIP_REASON: &str = "it is privileged, and no role or tag that an operator gave the node places it: what an extension adds does not \
                   count, nor does the name master";

fn tag_name(name: &str) -> TagName {
    TagName::new(name).expect("a tag")
}

/// Builds a fleet with these tasks and with a tag `spare` that no role declares. An extension (another program) decides
/// which tags role `web` gives a node. Document 1 is the release.
fn extension_site(tasks: &Value) -> FleetFixture {
    let mut documents = site_manifests(&json!({}), tasks);
    documents[1]["tags"]["spare"] = json!({"has_primary": true});
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    FleetFixture::from_manifests(&documents)
}

/// Stores that the extension gives web-1 these tags for its role. Also stores that an operator assigned the tag
/// `by_hand`, unless `by_hand` is `None`.
fn set_tags(fixture: &mut FleetFixture, tags: &[&str], by_hand: Option<&str>) {
    let mut web_node = (**fixture.node("web-1")).clone();
    let tags = tags.iter().map(|name| tag_name(name)).collect();
    let decision = DecidedTags { extension: "rack".to_owned(), cluster: fixture.cluster_id(), tags, question: String::new() };
    web_node.spec.tags.decided.insert(Name::new("web").expect("a role"), decision);
    let assigned = by_hand.iter().map(|name| (tag_name(name), Some(ProvidedValue::Value(())))).collect();
    web_node.spec.tags.assigned = OwnedSet::default().patch(&Manager::new("test").expect("a manager"), &assigned);
    fixture.fleet.apply(FleetChange::Node(Arc::new(web_node)));
}

/// Returns the ids of the tasks that run on a node, and the ids of the skipped tasks, each with the reason.
fn running_and_skipped(fixture: &FleetFixture, node: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let output = fixture.node_output(node);
    (output.tasks.into_iter().collect(), output.skipped)
}

fn ids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// In this test, the extension first has decided nothing for web-1. Then it gives web-1 the tags `nginx` and `spare`,
/// then an operator assigns `spare` too, and in the end both withdraw their tags. Node web-1 has role `web` from its
/// group, and the role declares tag `nginx`.
#[test]
fn x04_privileged_task_is_skipped_when_placed_only_by_extension() {
    let task = |id: &str, fields: Value| {
        let mut task = json!({"id": id, "type": "shell", "parameters": {"script": "true"}, "privileged": true});
        task.as_object_mut().expect("a task").extend(fields.as_object().expect("fields").clone());
        task
    };
    let mut fixture = extension_site(&json!([
        task("by-tag", json!({"tags": ["spare"]})),
        task("by-pattern", json!({"tags": ["/spa/"]})),
        task("by-primary", json!({"tags": ["primary-spare"]})),
        task("by-group", json!({})),
        {"id": "all", "type": "group", "tags": ["spare"], "tasks": ["by-group"]},
        task("declared", json!({"tags": ["nginx"]})),
        task("either", json!({"tags": ["spare", "nginx"]})),
        task("role", json!({"roles": ["web"]})),
        {"id": "plain", "type": "shell", "parameters": {"script": "true"}, "tags": ["spare"]},
    ]));
    let by_operator = ["declared", "either", "role"];
    let by_extension = ["by-group", "by-pattern", "by-primary", "by-tag"];
    assert_eq!(running_and_skipped(&fixture, "web-1"), (ids(&by_operator), BTreeMap::new()));

    set_tags(&mut fixture, &["nginx", "spare"], None);
    let skipped: BTreeMap<_, _> = by_extension.map(|id| (id.to_owned(), SKIP_REASON.to_owned())).into();
    assert_eq!(running_and_skipped(&fixture, "web-1"), (ids(&[&by_operator[..], &["plain"]].concat()), skipped));
    let findings = fixture.resolved_node("web-1").findings();
    let skip_findings: Vec<_> = findings.iter().filter(|finding| finding.code == "task.not_asserted").collect();
    let objects: Vec<_> = skip_findings.iter().map(|finding| finding.object.as_str()).collect();
    assert_eq!(objects, by_extension.map(|id| format!("node/web-1 task/{id}")));
    for finding in skip_findings {
        let message = format!("{SKIP_REASON}; assign the tag by hand, or let the role declare it");
        assert_eq!((finding.severity, finding.message.as_str()), (Severity::Warning, message.as_str()));
    }

    set_tags(&mut fixture, &["nginx", "spare"], Some("spare"));
    let all_tasks = [&by_operator[..], &by_extension, &["plain"]].concat();
    assert_eq!(running_and_skipped(&fixture, "web-1"), (ids(&all_tasks), BTreeMap::new()), "an operator assigned the tag too");

    set_tags(&mut fixture, &[], None);
    assert_eq!(running_and_skipped(&fixture, "web-1"), (ids(&["role"]), BTreeMap::new()), "an extension can withdraw a tag");
}

/// A node that is named `master` has the role `master` without an assignment, as in Fuel.
#[test]
fn x04_privileged_task_is_not_placed_by_name_master() {
    let mut documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "keys", "type": "shell", "parameters": {"script": "true"}, "roles": ["master"], "privileged": true},
            {"id": "plain", "type": "shell", "parameters": {"script": "true"}, "roles": ["master"]},
            {"id": "web", "type": "shell", "parameters": {"script": "true"}, "tags": ["master", "nginx"], "privileged": true},
        ]),
    );
    documents.push(json!({"kind": "Node", "name": "master", "nodegroup": "prod/webs"}));
    let fixture = FleetFixture::from_manifests(&documents);
    let skipped = BTreeMap::from([("keys".to_owned(), SKIP_REASON.to_owned())]);
    assert_eq!(running_and_skipped(&fixture, "master"), (ids(&["plain", "web"]), skipped));
}

/// The nodes with the same release, roles and tags share one profile. A profile records which tags operators gave only
/// if the release has a privileged task. Otherwise the fleet would have more profiles than it needs.
#[test]
fn x04_tag_source_matters_only_for_privileged_task() {
    for privileged in [false, true] {
        let task =
            json!({"id": "keys", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "privileged": privileged});
        let mut fixture = extension_site(&json!([task]));
        set_tags(&mut fixture, &["nginx", "spare"], None);
        let profile = fixture.fleet.profile(fixture.node("web-1").id()).expect("it is placed");
        // This field has the names that operators assigned.
        assert_eq!(profile.key.asserted.is_some(), privileged);
        assert_eq!(running_and_skipped(&fixture, "web-1").0, ids(&["keys"]));
    }
}

/// A privileged task counts as newly run also if its condition changes from not met to undecided, because a later
/// report of the host can decide the condition. No permission is checked when a report arrives.
#[test]
fn x04_newly_run_privileged_lists_task_when_condition_becomes_met() {
    let task = |id: &str, privileged: bool| json!({"id": id, "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "privileged": privileged, "condition": "has(labels.go)"});
    let always =
        json!({"id": "always", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "privileged": true});
    let fixture =
        FleetFixture::from_manifests(&site_manifests(&json!({}), &json!([task("keys", true), task("plain", false), always])));
    let resolved_node = fixture.resolved_node("web-1");
    let task_set = resolved_node.task_set().expect("it is placed");
    let keys_index = task_set.profile.release.task_index("keys").expect("the task");
    let task_set_with = |skip_reason: Option<SkipReason>| {
        TaskSet::new(
            &task_set.group_inputs,
            skip_reason.map(|reason| (keys_index, reason)).into_iter().collect(),
            &task_set.inputs(),
        )
    };
    let not_met = || Some(SkipReason::False { condition: "has(labels.go)".into() });
    let failed = || Some(SkipReason::Failed { reason: "".into() });
    let undecided = || Some(SkipReason::Undecided { reason: "".into() });
    let met = || None;
    for (old_set, new_set, expected_outcome) in [
        (not_met(), met(), Some(ConditionOutcome::Yes)),
        (failed(), met(), Some(ConditionOutcome::Yes)),
        (undecided(), met(), Some(ConditionOutcome::Yes)),
        (not_met(), undecided(), Some(ConditionOutcome::Undecided)),
        (not_met(), failed(), None),
        (undecided(), undecided(), None),
        (met(), undecided(), None),
        (met(), met(), None),
        (met(), not_met(), None),
    ] {
        let text = format!("{old_set:?} -> {new_set:?}");
        let (old_set, new_set) = (task_set_with(old_set), task_set_with(new_set));
        let expected: Vec<_> = expected_outcome.map(|outcome| ("keys", outcome)).into_iter().collect();
        assert_eq!(new_set.newly_run_privileged(Some(&old_set)), expected, "{text}");
    }
    assert_eq!(
        task_set_with(met()).newly_run_privileged(None),
        [("keys", ConditionOutcome::Yes)],
        "the node had no task set before"
    );
}

/// A report is not a write, so no permission is checked when a report arrives. The permission is checked when an edit
/// lets hosts report a label that a privileged task reads. Documents 4 and 7 are the group of web-1 and web-1.
#[test]
fn x04_label_is_host_controlled_when_set_by_no_level() {
    let keys = json!({"id": "keys", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "privileged": true,
        "condition": "has(labels.go) || size(labels_with_prefix('x/')) > 0"});
    let plain = json!({"id": "plain", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "condition": "has(labels.rack)"});
    let reads_with = |accept: Value, labels: Value| {
        let mut documents = site_manifests(&json!({}), &json!([keys, plain]));
        documents[4]["host_labels"] = json!({"accept": accept});
        documents[7]["labels"] = labels;
        let fixture = FleetFixture::from_manifests(&documents);
        format_reads(&fixture.fleet.host_controlled_reads(fixture.node("web-1").id()))
    };
    for (accept, labels, expected) in [
        (json!([]), json!({}), &[][..]),
        (json!(["rack", "gone"]), json!({}), &[]),
        (json!(["go"]), json!({}), &["keys label go"]),
        (json!(["go"]), json!({"go": "no"}), &[]),
        (json!(["go"]), json!({"go": null}), &[]),
        (json!(["x/a", "y/a"]), json!({"rack": "r"}), &["keys label x/a"]),
        (json!(["go", "x/a"]), json!({"x/a": "1"}), &["keys label go"]),
    ] {
        assert_eq!(reads_with(accept.clone(), labels.clone()), expected, "{accept} {labels}");
    }
}

/// Returns each read of a privileged task as text: the id of the task, and the value that hosts control.
fn format_reads(reads: &BTreeSet<HostControlledRead<'_>>) -> Vec<String> {
    reads.iter().map(|read| format!("{} {}", read.task, read.description)).collect()
}

/// An operator must not be able to meet one half of a condition while a report can still meet the other half.
/// Regression: the task ran if the operator was first, and was refused if the report was first.
#[test]
fn x04_condition_open_to_reports_is_found_when_changed() {
    let go_label = json!({"labels": {"go": "1"}});
    let suppressed = json!({"suppressed_traits": ["HW_CPU_X86_SSE"]});
    let with_go = |mut node: Value| {
        node["labels"] = json!({"go": "1"});
        node
    };
    let two_part_condition = "has(labels.go) && 'HW_CPU_X86_SSE' in traits";
    let with_trait = json!({"traits": ["HW_CPU_X86_SSE"]});
    let lookup_condition = "has(labels.go) && nodes(tag='nginx').exists(n, n.facts.cpu.count > 4)";
    for (condition, old_fields, new_fields, expected) in [
        (two_part_condition, json!({}), go_label.clone(), &["keys trait HW_CPU_X86_SSE"][..]),
        (two_part_condition, go_label.clone(), json!({"labels": {"go": "2"}}), &["keys trait HW_CPU_X86_SSE"]),
        (two_part_condition, json!({}), json!({"labels": {"other": "1"}}), &[]),
        // No report can decide the next three conditions, so comparing the tasks before and after is enough.
        (two_part_condition, suppressed.clone(), with_go(suppressed.clone()), &[]),
        (two_part_condition, with_trait.clone(), with_go(with_trait), &[]),
        ("has(labels.go)", json!({}), go_label.clone(), &[]),
        ("has(params.go) && facts.cpu.count > 0", json!({}), json!({"parameters": {"go": 1}}), &["keys facts.cpu.count"]),
        (
            "has(node.properties.go) && node.address == '10.0.0.1'",
            json!({}),
            json!({"properties": {"go": 1}}),
            &["keys node.address"],
        ),
        (
            "'mysql' in tags && facts.cpu.count > 0",
            json!({}),
            json!({"tags": {"assigned": ["mysql"]}}),
            &["keys facts.cpu.count"],
        ),
        (lookup_condition, json!({}), go_label, &["keys values that hosts report about themselves"]),
        ("'HW_CPU_X86_SSE' in traits", suppressed.clone(), json!({}), &["keys trait HW_CPU_X86_SSE"]),
        ("'HW_CPU_X86_SSE' in traits", json!({}), suppressed, &[]),
    ] {
        let keys = json!({"id": "keys", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "privileged": true, "condition": condition});
        let mut documents = site_manifests(&json!({}), &json!([keys]));
        let plain = documents[7].clone();
        let mut documents_with = |fields: &Value| {
            documents[7] = plain.clone();
            documents[7].as_object_mut().expect("a node").extend(fields.as_object().expect("fields").clone());
            documents.clone()
        };
        let mut fixture = FleetFixture::from_manifests(&documents_with(&old_fields));
        let old_fleet = fixture.fleet.clone();
        fixture.apply(&documents_with(&new_fields));
        let new_reads = fixture.fleet.newly_host_controlled(&old_fleet, fixture.node("web-1").id());
        assert_eq!(format_reads(&new_reads), expected, "{condition}: {old_fields} {new_fields}");
    }
}

/// An inspection rule sets values that depend on reports. So a report can decide a value that a rule may set. Document
/// 7 is node web-1.
#[test]
fn x04_values_set_by_inspection_rules_are_host_controlled() {
    let condition = "has(labels.rack) || has(node.properties.size) || size(labels_with_prefix('x/')) > 0";
    let keys = json!({"id": "keys", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "privileged": true, "condition": condition});
    for (path, labels, expected) in [
        ("/labels/rack", json!({}), &["keys label rack"][..]),
        ("/labels/rack", json!({"rack": "by hand"}), &[]),
        ("/labels/other", json!({}), &[]),
        ("/properties/size", json!({}), &["keys node.properties.size"]),
        ("/labels/x/a", json!({}), &["keys labels that begin with x/"]),
    ] {
        let mut documents = site_manifests(&json!({}), &json!([keys]));
        documents[7]["labels"] = labels;
        let mut fixture = FleetFixture::from_manifests(&documents);
        let node = fixture.node("web-1").id();
        assert_eq!(format_reads(&fixture.fleet.host_controlled_reads(node)), [""; 0]);
        let action = json!({"op": "set-attribute", "args": {"path": path, "value": "r1"}});
        let spec = serde_json::from_value(json!({"actions": [action]})).expect("a rule");
        let meta = Meta::new(Uuid::from_u128(1), ObjectName::new("gives").ok(), Timestamp(0));
        fixture.fleet.apply(FleetChange::Rule(Arc::new(Object { meta, spec })));
        assert_eq!(format_reads(&fixture.fleet.host_controlled_reads(node)), expected, "{path}");
    }
}

/// Regression: the field `privileged` had no effect on a task of type `group`.
#[test]
fn x04_privileged_group_makes_listed_tasks_privileged() {
    let mut fixture = extension_site(&json!([
        {"id": "member", "type": "shell", "parameters": {"script": "true"}},
        {"id": "all", "type": "group", "tags": ["spare"], "tasks": ["member"], "privileged": true},
        {"id": "other", "type": "shell", "parameters": {"script": "true"}},
        {"id": "others", "type": "group", "tags": ["spare"], "tasks": ["other"]},
    ]));
    let old_profile = Arc::clone(fixture.fleet.profile(fixture.node("web-1").id()).expect("it is placed"));
    set_tags(&mut fixture, &["nginx", "spare"], None);
    let skipped = BTreeMap::from([("member".to_owned(), SKIP_REASON.to_owned())]);
    assert_eq!(running_and_skipped(&fixture, "web-1"), (ids(&["other"]), skipped));
    set_tags(&mut fixture, &["nginx", "spare"], Some("spare"));
    assert_eq!(running_and_skipped(&fixture, "web-1"), (ids(&["member", "other"]), BTreeMap::new()));
    let profile = fixture.fleet.profile(fixture.node("web-1").id()).expect("it is placed");
    assert_eq!(profile.additional_privileged(Some(&old_profile)), ["member"]);
    assert!(profile.release.findings.iter().all(|finding| finding.code != "field.idle"), "{:?}", profile.release.findings);
}
