//! Privileged tasks: which names place one. What operators gave does; what an extension adds and what a host calls itself do not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::finding::Severity;
use stemma_core::fleet::{Change, OpenRead};
use stemma_core::name::{Name, ObjectName, TagName};
use stemma_core::object::{DecidedTags, Meta, Object, Timestamp};
use stemma_core::ownership::{Manager, OwnedSet, Said};
use stemma_core::resolve::{LeftOut, Met, TaskSet};
use uuid::Uuid;

use crate::made::{Made, site};

const WHY: &str = "it is privileged, and no role or tag that an operator gave the node places it: what an extension adds does not \
                   count, nor does the name master";

fn tag(name: &str) -> TagName {
    TagName::new(name).expect("a tag")
}

/// The site with a tag `spare` that no role declares, whose role `web` is decided by an extension.
fn decided_site(tasks: &Value) -> Made {
    let mut documents = site(&json!({}), tasks);
    documents[1]["tags"]["spare"] = json!({"has_primary": true});
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    Made::of(&documents)
}

/// Lets the extension give web-1 these tags for its role, with one assigned by hand if there is one.
fn give(made: &mut Made, tags: &[&str], by_hand: Option<&str>) {
    let mut web = (**made.node("web-1")).clone();
    let tags = tags.iter().map(|name| tag(name)).collect();
    let decided = DecidedTags { extension: "rack".to_owned(), cluster: made.cluster(), tags, question: String::new() };
    web.spec.tags.decided.insert(Name::new("web").expect("a role"), decided);
    let said = by_hand.iter().map(|name| (tag(name), Some(Said::Value(())))).collect();
    web.spec.tags.assigned = OwnedSet::default().patch(&Manager::new("test").expect("a manager"), &said);
    made.fleet.apply(Change::Node(Arc::new(web)));
}

/// The tasks that run on a node, and those that fall to it and do not, each with the reason.
fn of(made: &Made, node: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let plain = made.plain(node);
    (plain.tasks.into_iter().collect(), plain.skipped)
}

fn ids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn x04_a_privileged_task_that_an_extension_alone_places_is_left_out_and_said() {
    let task = |id: &str, more: Value| {
        let mut task = json!({"id": id, "type": "puppet", "privileged": true});
        task.as_object_mut().expect("a task").extend(more.as_object().expect("fields").clone());
        task
    };
    let mut made = decided_site(&json!([
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
    assert_eq!(of(&made, "web-1"), (ids(&asserted), BTreeMap::new()));

    give(&mut made, &["nginx", "spare"], None);
    let left_out: BTreeMap<_, _> = by_extension.map(|id| (id.to_owned(), WHY.to_owned())).into();
    assert_eq!(of(&made, "web-1"), (ids(&[&asserted[..], &["plain"]].concat()), left_out));
    let findings = made.answer("web-1").findings();
    let found: Vec<_> = findings.iter().filter(|one| one.code == "task.not_asserted").collect();
    let objects: Vec<_> = found.iter().map(|one| one.object.as_str()).collect();
    assert_eq!(objects, by_extension.map(|id| format!("node/web-1 task/{id}")));
    for one in found {
        let sentence = format!("{WHY}; assign the tag by hand, or let the role declare it");
        assert_eq!((one.severity, one.message.as_str()), (Severity::Warning, sentence.as_str()));
    }

    give(&mut made, &["nginx", "spare"], Some("spare"));
    let all = [&asserted[..], &by_extension, &["plain"]].concat();
    assert_eq!(of(&made, "web-1"), (ids(&all), BTreeMap::new()), "an operator gave the tag too");

    give(&mut made, &[], None);
    assert_eq!(of(&made, "web-1"), (ids(&["role"]), BTreeMap::new()), "an extension may take away");
}

#[test]
fn x04_a_privileged_task_is_not_placed_by_what_a_host_calls_itself() {
    let mut documents = site(
        &json!({}),
        &json!([
            {"id": "keys", "type": "puppet", "roles": ["master"], "privileged": true},
            {"id": "plain", "type": "puppet", "roles": ["master"]},
            {"id": "web", "type": "puppet", "tags": ["master", "nginx"], "privileged": true},
        ]),
    );
    documents.push(json!({"kind": "Node", "name": "master", "nodegroup": "prod/webs"}));
    let made = Made::of(&documents);
    let left_out = BTreeMap::from([("keys".to_owned(), WHY.to_owned())]);
    assert_eq!(of(&made, "master"), (ids(&["plain", "web"]), left_out));
}

/// Nodes are told apart by who gave their tags only where a task asks for that: else a fleet would have more profiles than it needs.
#[test]
fn x04_who_gave_a_tag_counts_only_where_a_task_is_privileged() {
    for privileged in [false, true] {
        let task = json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": privileged});
        let mut made = decided_site(&json!([task]));
        give(&mut made, &["nginx", "spare"], None);
        let profile = made.fleet.profile(made.node("web-1").id()).expect("it is placed");
        assert_eq!(profile.place.asserted.is_some(), privileged);
        assert_eq!(of(&made, "web-1").0, ids(&["keys"]));
    }
}

/// A condition that is undecided counts as one that may be met: a report could decide it later, and then nobody would be asked.
#[test]
fn x04_a_privileged_task_has_begun_where_its_condition_lets_it_run_or_may_and_did_not() {
    let task = |id: &str, privileged: bool| json!({"id": id, "type": "puppet", "tags": ["nginx"], "privileged": privileged, "condition": "has(labels.go)"});
    let always = json!({"id": "always", "type": "puppet", "tags": ["nginx"], "privileged": true});
    let made = Made::of(&site(&json!({}), &json!([task("keys", true), task("plain", false), always])));
    let answer = made.answer("web-1");
    let set = answer.task_set().expect("it is placed");
    let keys = set.profile.release.find("keys").expect("the task");
    let with = |left_out: Option<LeftOut>| {
        TaskSet::new(&set.group, left_out.map(|why| (keys, why)).into_iter().collect(), &set.inputs())
    };
    let no = || Some(LeftOut::False { condition: "has(labels.go)".into() });
    let failed = || Some(LeftOut::Failed { reason: "".into() });
    let undecided = || Some(LeftOut::Undecided { reason: "".into() });
    let yes = || None;
    for (before, after, begun) in [
        (no(), yes(), Some(Met::Yes)),
        (failed(), yes(), Some(Met::Yes)),
        (undecided(), yes(), Some(Met::Yes)),
        (no(), undecided(), Some(Met::Undecided)),
        (no(), failed(), None),
        (undecided(), undecided(), None),
        (yes(), undecided(), None),
        (yes(), yes(), None),
        (yes(), no(), None),
    ] {
        let text = format!("{before:?} -> {after:?}");
        let (before, after) = (with(before), with(after));
        let expected: Vec<_> = begun.map(|met| ("keys", met)).into_iter().collect();
        assert_eq!(after.privileged_started_since(Some(&before)), expected, "{text}");
    }
    assert_eq!(with(yes()).privileged_started_since(None), [("keys", Met::Yes)], "it had no tasks before");
}

/// A report is no write, so nobody is asked when it comes: it is asked when a label is opened to reports.
#[test]
fn x04_a_label_is_open_to_reports_where_accept_names_it_and_no_level_speaks_for_it() {
    let keys = json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": true,
        "condition": "has(labels.go) || size(labels_with_prefix('x/')) > 0"});
    let plain = json!({"id": "plain", "type": "puppet", "tags": ["nginx"], "condition": "has(labels.rack)"});
    let open = |accept: Value, labels: Value| {
        let mut documents = site(&json!({}), &json!([keys, plain]));
        documents[4]["host_labels"] = json!({"accept": accept});
        documents[7]["labels"] = labels;
        let made = Made::of(&documents);
        told(&made.fleet.open_reads(made.node("web-1").id()))
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

fn told(open: &BTreeSet<OpenRead<'_>>) -> Vec<String> {
    open.iter().map(|open| format!("{} {}", open.task, open.what)).collect()
}

/// An operator met the half of a condition before the host reported the other half, and then the task ran: only the order decided.
#[test]
fn x04_a_condition_that_a_report_may_meet_is_open_where_a_write_changes_what_else_it_reads_or_opens_it() {
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
        // No report has a part in these: what the tasks were and are says all.
        (half, suppressed.clone(), with_go(suppressed.clone()), &[]),
        (half, given.clone(), with_go(given), &[]),
        ("has(labels.go)", json!({}), go.clone(), &[]),
        (
            "has(params.go) && facts.cpu.count > 0",
            json!({}),
            json!({"parameters": {"go": 1}}),
            &["keys facts.cpu.count"],
        ),
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
        (looked_up, json!({}), go, &["keys what hosts report of themselves"]),
        ("'HW_CPU_X86_SSE' in traits", suppressed.clone(), json!({}), &["keys trait HW_CPU_X86_SSE"]),
        ("'HW_CPU_X86_SSE' in traits", json!({}), suppressed, &[]),
    ] {
        let keys =
            json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": true, "condition": condition});
        let mut documents = site(&json!({}), &json!([keys]));
        let plain = documents[7].clone();
        let mut say = |more: &Value| {
            documents[7] = plain.clone();
            documents[7].as_object_mut().expect("a node").extend(more.as_object().expect("fields").clone());
            documents.clone()
        };
        let mut made = Made::of(&say(&before));
        let then = made.fleet.clone();
        made.edit(&say(&after));
        let opened = made.fleet.opened_since(&then, made.node("web-1").id());
        assert_eq!(told(&opened), expected, "{condition}: {before} {after}");
    }
}

/// What rules give follows from reports, so nobody is asked when it comes.
#[test]
fn x04_what_inspection_rules_may_give_is_open_to_reports() {
    let condition = "has(labels.rack) || has(node.properties.size) || size(labels_with_prefix('x/')) > 0";
    let keys = json!({"id": "keys", "type": "puppet", "tags": ["nginx"], "privileged": true, "condition": condition});
    for (path, labels, expected) in [
        ("/labels/rack", json!({}), &["keys label rack"][..]),
        ("/labels/rack", json!({"rack": "by hand"}), &[]),
        ("/labels/other", json!({}), &[]),
        ("/properties/size", json!({}), &["keys node.properties.size"]),
        ("/labels/x/a", json!({}), &["keys labels that begin with x/"]),
    ] {
        let mut documents = site(&json!({}), &json!([keys]));
        documents[7]["labels"] = labels;
        let mut made = Made::of(&documents);
        let node = made.node("web-1").id();
        assert_eq!(told(&made.fleet.open_reads(node)), [""; 0]);
        let action = json!({"op": "set-attribute", "args": {"path": path, "value": "r1"}});
        let spec = serde_json::from_value(json!({"actions": [action]})).expect("a rule");
        let meta = Meta::new(Uuid::from_u128(1), ObjectName::new("gives").ok(), Timestamp(0));
        made.fleet.apply(Change::Rule(Arc::new(Object { meta, spec })));
        assert_eq!(told(&made.fleet.open_reads(node)), expected, "{path}");
    }
}

/// The field was taken on a group, and restricted nobody.
#[test]
fn x04_a_privileged_group_makes_the_tasks_that_it_lists_privileged() {
    let mut made = decided_site(&json!([
        {"id": "member", "type": "puppet"},
        {"id": "all", "type": "group", "tags": ["spare"], "tasks": ["member"], "privileged": true},
        {"id": "other", "type": "puppet"},
        {"id": "others", "type": "group", "tags": ["spare"], "tasks": ["other"]},
    ]));
    let without = Arc::clone(made.fleet.profile(made.node("web-1").id()).expect("it is placed"));
    give(&mut made, &["nginx", "spare"], None);
    let left_out = BTreeMap::from([("member".to_owned(), WHY.to_owned())]);
    assert_eq!(of(&made, "web-1"), (ids(&["other"]), left_out));
    give(&mut made, &["nginx", "spare"], Some("spare"));
    assert_eq!(of(&made, "web-1"), (ids(&["member", "other"]), BTreeMap::new()));
    let profile = made.fleet.profile(made.node("web-1").id()).expect("it is placed");
    assert_eq!(profile.privileged_beyond(Some(&without)), ["member"]);
    assert!(profile.release.findings.iter().all(|one| one.code != "field.idle"), "{:?}", profile.release.findings);
}
