//! Privileged tasks: names that an operator assigned can place one. Names that an extension adds or that a host reports
//! cannot.

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

const SKIP_REASON: &str = "it is privileged, and no role or tag that an operator gave the node places it: what an extension adds does not \
                   count, nor does the name master";

fn tag_name(name: &str) -> TagName {
    TagName::new(name).expect("a tag")
}

/// Returns the site with a tag `spare` that no role declares. An extension decides the tags of role `web`.
fn extension_site(tasks: &Value) -> FleetFixture {
    let mut documents = site_manifests(&json!({}), tasks);
    documents[1]["tags"]["spare"] = json!({"has_primary": true});
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    FleetFixture::from_manifests(&documents)
}

/// Lets the extension give web-1 these tags for its role, and assigns one more tag by hand if `by_hand` is set.
fn set_tags(made: &mut FleetFixture, tags: &[&str], by_hand: Option<&str>) {
    let mut web = (**made.node("web-1")).clone();
    let tags = tags.iter().map(|name| tag_name(name)).collect();
    let decided = DecidedTags { extension: "rack".to_owned(), cluster: made.cluster_id(), tags, question: String::new() };
    web.spec.tags.decided.insert(Name::new("web").expect("a role"), decided);
    let said = by_hand.iter().map(|name| (tag_name(name), Some(ProvidedValue::Value(())))).collect();
    web.spec.tags.assigned = OwnedSet::default().patch(&Manager::new("test").expect("a manager"), &said);
    made.fleet.apply(FleetChange::Node(Arc::new(web)));
}

/// Returns the tasks that run on a node, and the skipped ones with the reason.
fn running_and_skipped(made: &FleetFixture, node: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let plain = made.node_output(node);
    (plain.tasks.into_iter().collect(), plain.skipped)
}

fn ids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn x04_privileged_task_is_skipped_when_placed_only_by_extension() {
    let task = |id: &str, more: Value| {
        let mut task = json!({"id": id, "type": "puppet", "privileged": true});
        task.as_object_mut().expect("a task").extend(more.as_object().expect("fields").clone());
        task
    };
    let mut made = extension_site(&json!([
        task("by-tag", json!({"tags": ["spare"]})),
        task("by-pattern", json!({"tags": ["/spa/"]})),
        task("by-primary", json!({"tags": ["primary-spare"]})),
        task("by-group", json!({})),
        {"id": "all", "type": "group", "tags": ["spare"], "tasks": ["by-group"]},
        task("declared", json!({"tags": ["nginx"]})),
        task("either", json!({"tags": ["spare", "nginx"]})),
        task("role", json!({"roles": ["web"]})),
        {"id": "plain", "type": "puppet", "tags": ["spare"]},
    ]));
    let asserted = ["declared", "either", "role"];
    let by_extension = ["by-group", "by-pattern", "by-primary", "by-tag"];
    assert_eq!(running_and_skipped(&made, "web-1"), (ids(&asserted), BTreeMap::new()));

    set_tags(&mut made, &["nginx", "spare"], None);
    let left_out: BTreeMap<_, _> = by_extension.map(|id| (id.to_owned(), SKIP_REASON.to_owned())).into();
    assert_eq!(running_and_skipped(&made, "web-1"), (ids(&[&asserted[..], &["plain"]].concat()), left_out));
    let findings = made.resolved_node("web-1").findings();
    let found: Vec<_> = findings.iter().filter(|one| one.code == "task.not_asserted").collect();
    let objects: Vec<_> = found.iter().map(|one| one.object.as_str()).collect();
    assert_eq!(objects, by_extension.map(|id| format!("node/web-1 task/{id}")));
    for one in found {
        let sentence = format!("{SKIP_REASON}; assign the tag by hand, or let the role declare it");
        assert_eq!((one.severity, one.message.as_str()), (Severity::Warning, sentence.as_str()));
    }

    set_tags(&mut made, &["nginx", "spare"], Some("spare"));
    let all = [&asserted[..], &by_extension, &["plain"]].concat();
    assert_eq!(running_and_skipped(&made, "web-1"), (ids(&all), BTreeMap::new()), "an operator gave the tag too");

    set_tags(&mut made, &[], None);
    assert_eq!(running_and_skipped(&made, "web-1"), (ids(&["role"]), BTreeMap::new()), "an extension may take away");
}

#[test]
fn x04_privileged_task_is_not_placed_by_reported_labels() {
    let mut documents = site_manifests(
        &json!({}),
        &json!([
            {"id": "keys", "type": "puppet", "roles": ["master"], "privileged": true},
            {"id": "plain", "type": "puppet", "roles": ["master"]},
            {"id": "web", "type": "puppet", "tags": ["master", "nginx"], "privileged": true},
        ]),
    );
    documents.push(json!({"kind": "Node", "name": "master", "nodegroup": "prod/webs"}));
    let made = FleetFixture::from_manifests(&documents);
    let left_out = BTreeMap::from([("keys".to_owned(), SKIP_REASON.to_owned())]);
    assert_eq!(running_and_skipped(&made, "master"), (ids(&["plain", "web"]), left_out));
}

/// Profiles contain who gave the tags only if a task depends on it. Otherwise a fleet would have more profiles than it
/// needs.
#[test]
fn x04_tag_source_matters_only_for_privileged_task() {
    for privileged in [false, true] {
        let task = json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": privileged});
        let mut made = extension_site(&json!([task]));
        set_tags(&mut made, &["nginx", "spare"], None);
        let profile = made.fleet.profile(made.node("web-1").id()).expect("it is placed");
        assert_eq!(profile.key.asserted.is_some(), privileged);
        assert_eq!(running_and_skipped(&made, "web-1").0, ids(&["keys"]));
    }
}

/// An undecided condition counts as one that may be met. A report could decide it later, and no operator would be asked
/// then.
#[test]
fn x04_privileged_task_starts_when_condition_changes_to_met_or_undecided() {
    let task = |id: &str, privileged: bool| json!({"id": id, "type": "puppet", "tags": ["nginx"], "privileged": privileged, "condition": "has(labels.go)"});
    let always = json!({"id": "always", "type": "puppet", "tags": ["nginx"], "privileged": true});
    let made =
        FleetFixture::from_manifests(&site_manifests(&json!({}), &json!([task("keys", true), task("plain", false), always])));
    let answer = made.resolved_node("web-1");
    let set = answer.task_set().expect("it is placed");
    let keys = set.profile.release.task_index("keys").expect("the task");
    let with = |left_out: Option<SkipReason>| {
        TaskSet::new(&set.group_inputs, left_out.map(|why| (keys, why)).into_iter().collect(), &set.inputs())
    };
    let no = || Some(SkipReason::False { condition: "has(labels.go)".into() });
    let failed = || Some(SkipReason::Failed { reason: "".into() });
    let undecided = || Some(SkipReason::Undecided { reason: "".into() });
    let yes = || None;
    for (before, after, begun) in [
        (no(), yes(), Some(ConditionOutcome::Yes)),
        (failed(), yes(), Some(ConditionOutcome::Yes)),
        (undecided(), yes(), Some(ConditionOutcome::Yes)),
        (no(), undecided(), Some(ConditionOutcome::Undecided)),
        (no(), failed(), None),
        (undecided(), undecided(), None),
        (yes(), undecided(), None),
        (yes(), yes(), None),
        (yes(), no(), None),
    ] {
        let text = format!("{before:?} -> {after:?}");
        let (before, after) = (with(before), with(after));
        let expected: Vec<_> = begun.map(|met| ("keys", met)).into_iter().collect();
        assert_eq!(after.newly_run_privileged(Some(&before)), expected, "{text}");
    }
    assert_eq!(with(yes()).newly_run_privileged(None), [("keys", ConditionOutcome::Yes)], "it had no tasks before");
}

/// A report is not a write, so no operator is asked when it arrives. The question is asked when a label is opened to
/// reports.
#[test]
fn x04_label_is_open_when_accepted_and_set_by_no_level() {
    let keys = json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": true,
        "condition": "has(labels.go) || size(labels_with_prefix('x/')) > 0"});
    let plain = json!({"id": "plain", "type": "puppet", "tags": ["nginx"], "condition": "has(labels.rack)"});
    let open = |accept: Value, labels: Value| {
        let mut documents = site_manifests(&json!({}), &json!([keys, plain]));
        documents[4]["host_labels"] = json!({"accept": accept});
        documents[7]["labels"] = labels;
        let made = FleetFixture::from_manifests(&documents);
        open_reads(&made.fleet.host_controlled_reads(made.node("web-1").id()))
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
        assert_eq!(open(accept.clone(), labels.clone()), expected, "{accept} {labels}");
    }
}

fn open_reads(open: &BTreeSet<HostControlledRead<'_>>) -> Vec<String> {
    open.iter().map(|open| format!("{} {}", open.task, open.description)).collect()
}

/// Regression: an operator met one half of a condition before the host reported the other half, and the task ran. Only
/// the order decided.
#[test]
fn x04_condition_open_to_reports_is_found_when_changed() {
    let go = json!({"labels": {"go": "1"}});
    let suppressed = json!({"suppressed_traits": ["HW_CPU_X86_SSE"]});
    let with_go = |mut node: Value| {
        node["labels"] = json!({"go": "1"});
        node
    };
    let half = "has(labels.go) && 'HW_CPU_X86_SSE' in traits";
    let given = json!({"traits": ["HW_CPU_X86_SSE"]});
    let looked_up = "has(labels.go) && nodes(tag='nginx').exists(n, n.facts.cpu.count > 4)";
    for (condition, before, after, expected) in [
        (half, json!({}), go.clone(), &["keys trait HW_CPU_X86_SSE"][..]),
        (half, go.clone(), json!({"labels": {"go": "2"}}), &["keys trait HW_CPU_X86_SSE"]),
        (half, json!({}), json!({"labels": {"other": "1"}}), &[]),
        // No report is involved here, so a comparison of the tasks before and after is enough.
        (half, suppressed.clone(), with_go(suppressed.clone()), &[]),
        (half, given.clone(), with_go(given), &[]),
        ("has(labels.go)", json!({}), go.clone(), &[]),
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
        (looked_up, json!({}), go, &["keys values that hosts report about themselves"]),
        ("'HW_CPU_X86_SSE' in traits", suppressed.clone(), json!({}), &["keys trait HW_CPU_X86_SSE"]),
        ("'HW_CPU_X86_SSE' in traits", json!({}), suppressed, &[]),
    ] {
        let keys = json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": true, "condition": condition});
        let mut documents = site_manifests(&json!({}), &json!([keys]));
        let plain = documents[7].clone();
        let mut say = |more: &Value| {
            documents[7] = plain.clone();
            documents[7].as_object_mut().expect("a node").extend(more.as_object().expect("fields").clone());
            documents.clone()
        };
        let mut made = FleetFixture::from_manifests(&say(&before));
        let then = made.fleet.clone();
        made.apply(&say(&after));
        let opened = made.fleet.newly_host_controlled(&then, made.node("web-1").id());
        assert_eq!(open_reads(&opened), expected, "{condition}: {before} {after}");
    }
}

/// What rules set depends on reports, so no operator is asked when a report arrives.
#[test]
fn x04_labels_set_by_inspection_rules_are_open() {
    let condition = "has(labels.rack) || has(node.properties.size) || size(labels_with_prefix('x/')) > 0";
    let keys = json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": true, "condition": condition});
    for (path, labels, expected) in [
        ("/labels/rack", json!({}), &["keys label rack"][..]),
        ("/labels/rack", json!({"rack": "by hand"}), &[]),
        ("/labels/other", json!({}), &[]),
        ("/properties/size", json!({}), &["keys node.properties.size"]),
        ("/labels/x/a", json!({}), &["keys labels that begin with x/"]),
    ] {
        let mut documents = site_manifests(&json!({}), &json!([keys]));
        documents[7]["labels"] = labels;
        let mut made = FleetFixture::from_manifests(&documents);
        let node = made.node("web-1").id();
        assert_eq!(open_reads(&made.fleet.host_controlled_reads(node)), [""; 0]);
        let action = json!({"op": "set-attribute", "args": {"path": path, "value": "r1"}});
        let spec = serde_json::from_value(json!({"actions": [action]})).expect("a rule");
        let meta = Meta::new(Uuid::from_u128(1), ObjectName::new("gives").ok(), Timestamp(0));
        made.fleet.apply(FleetChange::Rule(Arc::new(Object { meta, spec })));
        assert_eq!(open_reads(&made.fleet.host_controlled_reads(node)), expected, "{path}");
    }
}

/// Regression: the field was accepted on a group and had no effect.
#[test]
fn x04_privileged_group_makes_listed_tasks_privileged() {
    let mut made = extension_site(&json!([
        {"id": "member", "type": "puppet"},
        {"id": "all", "type": "group", "tags": ["spare"], "tasks": ["member"], "privileged": true},
        {"id": "other", "type": "puppet"},
        {"id": "others", "type": "group", "tags": ["spare"], "tasks": ["other"]},
    ]));
    let without = Arc::clone(made.fleet.profile(made.node("web-1").id()).expect("it is placed"));
    set_tags(&mut made, &["nginx", "spare"], None);
    let left_out = BTreeMap::from([("member".to_owned(), SKIP_REASON.to_owned())]);
    assert_eq!(running_and_skipped(&made, "web-1"), (ids(&["other"]), left_out));
    set_tags(&mut made, &["nginx", "spare"], Some("spare"));
    assert_eq!(running_and_skipped(&made, "web-1"), (ids(&["member", "other"]), BTreeMap::new()));
    let profile = made.fleet.profile(made.node("web-1").id()).expect("it is placed");
    assert_eq!(profile.additional_privileged(Some(&without)), ["member"]);
    assert!(profile.release.findings.iter().all(|one| one.code != "field.idle"), "{:?}", profile.release.findings);
}
