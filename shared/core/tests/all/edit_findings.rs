//! Findings of an edit: those that are true after it and were not before. The expected sentences are handwritten.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::catalog::SuggestionCache;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::{Name, NamespaceName, ObjectName, TagName};
use stemma_core::object::{DecidedTags, GroupId, LevelId, Meta, NodeId, Object, TemplateId, Timestamp};
use stemma_core::resolve::{
    ResolveCache, cluster_findings, new_placement_findings, new_rule_findings, newly_colliding_below, newly_orphaned,
    newly_uncatalogued, newly_undeclared, newly_unmet, object_catalog_findings, resolve_cluster, resolve_fleet, resolve_node,
    unset_in_empty_groups,
};
use uuid::Uuid;

use crate::fleet_fixture::{FleetFixture, file_manifest, release_manifest, site_manifests};

/// Returns a node in a group.
fn node_manifest(name: &str, group: &str) -> Value {
    json!({"kind": "Node", "name": name, "nodegroup": format!("prod/{group}")})
}

/// Returns two databases and `webs` web servers, which run `conf` and `always`.
fn fleet_manifests(webs: usize) -> Vec<Value> {
    let tasks = json!([
        {"id": "always", "type": "puppet", "roles": ["*"]},
        {"id": "conf", "type": "puppet", "tags": ["nginx"]},
        {"id": "store", "type": "puppet", "tags": ["mysql"]},
    ]);
    let mut documents = site_manifests(&json!({}), &tasks);
    documents.truncate(7);
    documents.extend((1..=webs).map(|n| node_manifest(&format!("web-{n}"), "webs")));
    documents
}

fn messages(found: &[stemma_core::finding::Finding]) -> Vec<String> {
    found.iter().map(|one| format!("{} {}: {}", one.code, one.object, one.message)).collect()
}

fn all_nodes(made: &FleetFixture) -> Vec<NodeId> {
    made.fleet.nodes().map(|node| node.id()).collect()
}

#[test]
fn edit_finds_lost_tasks_once_for_nodes_losing_the_same() {
    for (webs, others) in [(1, ""), (2, " and on 1 other node"), (4, " and on 3 other nodes")] {
        let mut made = FleetFixture::from_manifests(&fleet_manifests(webs));
        let (before, nodes) = (made.fleet.clone(), all_nodes(&made));
        let mut edited = fleet_manifests(webs);
        edited[4]["roles"] = json!([]);
        made.apply(&edited);
        assert_eq!(
            messages(&newly_orphaned(&before, &made.fleet, nodes.iter().copied())),
            [format!("task.orphaned node/web-1: tasks always, conf no longer run on it{others}: what was done there stays")]
        );
    }
    let mut made = FleetFixture::from_manifests(&fleet_manifests(1));
    let (before, nodes) = (made.fleet.clone(), all_nodes(&made));
    let mut edited = fleet_manifests(1);
    edited[1]["roles"]["web"] = json!({"tags": []});
    made.apply(&edited);
    assert_eq!(
        messages(&newly_orphaned(&before, &made.fleet, nodes.into_iter())),
        ["task.orphaned node/web-1: task conf no longer runs on it: what was done there stays"]
    );
}

/// Regression: the finding claimed that the task runs on no node, while nodes of a group with another release ran it.
#[test]
fn y09_unplaced_task_finding_names_release_and_nodes() {
    let mut documents = fleet_manifests(1);
    let mut next = documents[1].clone();
    next["version"] = json!("2");
    next["tasks"].as_array_mut().expect("tasks").push(json!({"id": "more", "type": "puppet", "roles": ["*"]}));
    documents.insert(2, next);
    documents[5]["release"] = json!("site@2");
    let made = FleetFixture::from_manifests(&documents);
    let found = messages(&cluster_findings(&made.fleet, made.cluster_id()));
    let unplaced: Vec<_> = found.iter().filter(|one| one.starts_with("task.unplaced")).collect();
    let says = "task.unplaced cluster/prod task/conf: task conf of release site@1 runs on no node: it is placed by tags nginx; that \
                of release site@2 does";
    assert!(unplaced.iter().any(|one| *one == says), "{unplaced:?}");
}

#[test]
fn edit_reports_newly_caused_cluster_finding() {
    let mut made = FleetFixture::from_manifests(&fleet_manifests(1));
    let before = made.fleet.clone();
    let mut edited = fleet_manifests(1);
    edited[7]["tags"] = json!({"assigned": ["unseen"]});
    edited[4]["roles"] = json!(["web", "wbe"]);
    edited[4]["requirements"] = json!({"property:memory_mb": ">=3"});
    made.apply(&edited);
    let all = cluster_findings(&made.fleet, made.cluster_id());
    assert!(all.iter().any(|one| one.code == "requirement.text"), "the edit also brings a finding about one field");
    let odd = messages(&new_placement_findings(&before, &made.fleet, made.cluster_id()));
    let unseen = "tag.unknown node/web-1: is assigned tag unseen, which is declared neither in the release nor in the cluster";
    assert_eq!(odd.iter().filter(|one| *one == unseen).count(), 1, "{odd:?}");
    for code in ["task.type", "requirement.text"] {
        assert!(!odd.iter().any(|one| one.starts_with(code)), "{code} is about one field by itself: {odd:?}");
    }
    assert_eq!(messages(&new_placement_findings(&made.fleet, &made.fleet, made.cluster_id())), [""; 0], "it is so already");

    let undeclared = |fleet: &Fleet, after: &Fleet, id| messages(&newly_undeclared(fleet, after, id));
    let group = LevelId::Group(
        made.fleet.groups().find(|group| &*group.meta.name == "webs").map(|group| GroupId(group.meta.uuid)).expect("the group"),
    );
    let wbe = "role.unknown nodegroup/prod/webs: has role wbe, which release site@1 does not declare: it produces no tag";
    assert_eq!(undeclared(&before, &made.fleet, group), [wbe]);
    assert_eq!(undeclared(&made.fleet, &made.fleet, group), [""; 0]);
    let mut again = edited.clone();
    again[7]["roles"] = json!(["dbb"]);
    let with_group = made.fleet.clone();
    made.apply(&again);
    let web = LevelId::Node(made.node("web-1").id());
    let dbb = "role.unknown node/web-1: has role dbb, which release site@1 does not declare: it produces no tag";
    assert_eq!(undeclared(&with_group, &made.fleet, web), [dbb]);
}

#[test]
fn edit_reports_no_cluster_finding_when_first_nodes_are_added() {
    let told = |before: &[Value], after: &[Value]| {
        let mut made = FleetFixture::from_manifests(before);
        let was = made.fleet.clone();
        made.apply(after);
        messages(&new_placement_findings(&was, &made.fleet, made.cluster_id()))
    };
    let (whole, empty) = (fleet_manifests(1), &fleet_manifests(0)[..5]);
    let first = [empty, &[node_manifest("web-1", "webs")]].concat();
    assert_eq!(told(empty, &first), [""; 0]);
    let mut odd = node_manifest("web-1", "webs");
    odd["tags"] = json!({"assigned": ["unseen"]});
    assert_eq!(
        told(empty, &[empty, &[odd]].concat()),
        ["tag.unknown node/web-1: is assigned tag unseen, which is declared neither in the release nor in the cluster"]
    );
    let mut typed = whole.clone();
    typed[1]["tasks"].as_array_mut().expect("tasks").push(json!({"id": "more", "type": "puppet", "roles": ["*"]}));
    assert_eq!(told(&whole, &typed), [""; 0], "what is so of a task by itself is said where it is written");
    let moved = [empty, &[node_manifest("db-2", "dbs"), node_manifest("db-10", "dbs"), node_manifest("web-1", "dbs")]].concat();
    assert_eq!(
        told(&whole, &moved),
        [
            "tag.unheld cluster/prod tag/nginx: no node holds tag nginx, which release site@1 declares",
            "task.unplaced cluster/prod task/conf: task conf of release site@1 runs on no node: it is placed by tags nginx",
        ]
    );
}

#[test]
fn edit_reports_newly_unmet_requirement() {
    let mut made = FleetFixture::from_manifests(&fleet_manifests(1));
    let (before, node) = (made.fleet.clone(), made.node("web-1").id());
    let mut edited = fleet_manifests(1);
    edited[4]["requirements"] = json!({"property:memory_mb": ">= 1024"});
    made.apply(&edited);
    let after = &made.fleet;
    let has_error = |fleet: &Fleet| resolve_node(fleet, &made.cache, node).has_error();
    assert!(has_error(after) && !has_error(&before));
    assert!(resolve_node(after, &made.cache, NodeId(Uuid::nil())).has_error(), "an unknown node cannot be resolved");
    let says: Vec<String> = newly_unmet(&before, after, node).iter().map(ToString::to_string).collect();
    assert_eq!(says, ["requirement property:memory_mb >= 1024 is not met"]);
    let unmet = &newly_unmet(&before, after, node)[0];
    let held = "the next task set is withheld until it is met";
    let by_web_1 = format!("requirement property:memory_mb >= 1024 is not met by web-1 (the node has none): {held}");
    assert_eq!(unmet.message(&["web-1".to_owned()]), by_web_1);
    let by_both = format!("requirement property:memory_mb >= 1024 is not met by web-1, web-2: {held}");
    assert_eq!(unmet.message(&["web-1".to_owned(), "web-2".to_owned()]), by_both);
    let found = unmet.finding(made.node("web-1")).message;
    assert_eq!(found, "requirement property:memory_mb >= 1024 is not met: the node has none");
    assert_eq!(newly_unmet(after, after, node), []);
    assert_eq!(newly_unmet(after, &before, node), []);
}

#[test]
fn edit_reports_new_notes_of_rule() {
    let mut documents = fleet_manifests(1);
    documents[7]["reports"] = json!({"facts": {"cpu": {"count": 4}}});
    let mut made = FleetFixture::from_manifests(&documents);
    let (before, nodes) = (made.fleet.clone(), all_nodes(&made));
    let spec = serde_json::from_value(json!({"actions": [{"op": "fail", "args": {"msg": "too old"}}]})).expect("a rule");
    let meta = Meta::new(Uuid::from_u128(1), ObjectName::new("age").ok(), Timestamp(0));
    made.fleet.apply(FleetChange::Rule(Arc::new(Object { meta, spec })));
    let found =
        |before: &Fleet, after: &Fleet| messages(&new_rule_findings(before, after, &ResolveCache::new(), nodes.iter().copied()));
    let told = found(&before, &made.fleet);
    assert!(told.len() == 1 && told[0].starts_with("inspection.refused node/web-1: ") && told[0].contains("too old"), "{told:?}");
    assert_eq!(found(&made.fleet, &made.fleet), [""; 0]);
}

#[test]
fn failing_condition_is_one_finding_when_many_hosts_fail() {
    let tasks = json!([{"id": "conf", "type": "puppet", "tags": ["nginx"], "condition": "facts.cpu.count > 4"}]);
    for (webs, hosts) in [(1, "1 host (web-1)"), (3, "3 hosts (web-1, web-2, web-3)"), (4, "4 hosts (web-1, web-2, web-3, …)")]
    {
        let mut documents = fleet_manifests(webs);
        documents[1] = release_manifest(&json!({}), &tasks);
        let made = FleetFixture::from_manifests(&documents);
        let found = resolve_fleet(&made.fleet, &made.cache).expect("it is whole").findings;
        let failed: Vec<_> = found.iter().filter(|one| one.code == "condition.failed").collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].object, "release/site@1 task conf");
        assert!(failed[0].message.starts_with(&format!("on {hosts}: ")), "{}", failed[0].message);
    }
}

#[test]
fn edit_reports_disallowed_value_at_each_level() {
    let mut documents = fleet_manifests(1);
    for (at, value) in [(0, "t"), (2, "c"), (4, "g"), (7, "n")] {
        documents[at]["labels"] = json!({"tier": value});
    }
    let mut made = FleetFixture::from_manifests(&documents);
    let spec = serde_json::from_value(json!({
        "resource_type_associations": [{"name": "Stemma::Label"}],
        "properties": {"tier": {"title": "Tier", "type": "string", "enum": ["gold"]}},
    }));
    let meta = Meta::new(Uuid::from_u128(7), NamespaceName::new("Site").expect("a name"), Timestamp(0));
    let before = made.fleet.clone();
    made.fleet.apply(FleetChange::Namespace(Arc::new(Object { meta, spec: spec.expect("a namespace") })));
    let found = resolve_fleet(&made.fleet, &made.cache).expect("it is whole").findings;
    let wrong = |found: &[stemma_core::finding::Finding]| -> Vec<String> {
        let of_values = found.iter().filter(|one| one.code == "catalog.value");
        of_values.map(|one| one.object.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    let all = ["cluster/prod", "clustertemplate/base", "node/web-1", "nodegroup/prod/webs"];
    assert_eq!(wrong(&found), all);
    let mut of_cluster = wrong(&resolve_cluster(&made.fleet, &made.cache, made.cluster_id()).findings);
    of_cluster.sort();
    assert_eq!(of_cluster, all);
    let meant = SuggestionCache::default();
    let of = |id| wrong(&object_catalog_findings(&made.fleet, &meant, id));
    assert_eq!(of(LevelId::Cluster(made.cluster_id())), ["cluster/prod"]);
    assert_eq!(of(LevelId::Node(made.node("web-1").id())), ["node/web-1"]);
    assert_eq!(of(LevelId::Node(made.node("db-2").id())), [""; 0]);
    let group = made.node("web-1").spec.nodegroup.expect("a group");
    assert_eq!(of(LevelId::Group(group)), ["nodegroup/prod/webs"]);
    let newly = |before: &Fleet| wrong(&newly_uncatalogued(before, &made.fleet, LevelId::Group(group)));
    assert_eq!(newly(&before), ["nodegroup/prod/webs"]);
    assert_eq!(newly(&made.fleet), [""; 0], "it was found before");
}

#[test]
fn edit_reports_newly_undeclared_extension_tag() {
    let mut documents = fleet_manifests(1);
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    let mut made = FleetFixture::from_manifests(&documents);
    let mut web = (**made.node("web-1")).clone();
    let (rack, cluster) = ("rack".to_owned(), made.cluster_id());
    let tags = ["nginx", "gone"].map(|tag| TagName::new(tag).expect("a tag")).to_vec();
    web.spec
        .tags
        .decided
        .insert(Name::new("web").expect("a role"), DecidedTags { extension: rack, cluster, tags, question: String::new() });
    made.fleet.apply(FleetChange::Node(Arc::new(web)));
    let found = resolve_fleet(&made.fleet, &made.cache).expect("it is whole").findings;
    let unknown: Vec<_> = found.iter().filter(|one| one.code == "tag.unknown").collect();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    assert_eq!(unknown[0].object, "node/web-1");
    assert!(unknown[0].message.starts_with("extension rack gives it tag gone for role web, which is declared neither"));
}

#[test]
fn edit_resolves_unplaced_nodes_once() {
    let mut documents = fleet_manifests(1);
    documents.push(json!({"kind": "Node", "name": "spare", "labels": {"kept": null}, "merge_labels": false}));
    let made = FleetFixture::from_manifests(&documents);
    let whole = resolve_fleet(&made.fleet, &made.cache).expect("it is whole");
    assert_eq!(whole.nodes.keys().collect::<Vec<_>>(), ["db-10", "db-2", "spare", "web-1"]);
    assert_eq!(whole.resolved_nodes.len(), 4);
    let idle = "label.idle_null node/spare: label kept is null where nothing is merged: it has no effect";
    assert_eq!(messages(&whole.findings).iter().filter(|one| *one == idle).count(), 1);
    assert_eq!(made.resolved_node("web-1").group_path().as_deref(), Some("prod/webs"));
    assert_eq!(made.resolved_node("spare").group_path(), None);
}

#[test]
fn empty_group_finding_lists_references_missing_for_future_nodes() {
    let tasks = json!([
        file_manifest("conf", "nginx", "{{ labels.rack }}"),
        file_manifest("perhaps", "nginx", "{% if labels.tier == 'gold' %}{{ labels.slot }}{% endif %}"),
        file_manifest("zone", "nginx", "{% if labels.zone is defined %}{{ labels.zone }}{% endif %}")
    ]);
    let mut documents = fleet_manifests(0);
    documents[1] = release_manifest(&json!({}), &tasks);
    let made = FleetFixture::from_manifests(&documents);
    let groups = || made.fleet.groups().map(|group| GroupId(group.meta.uuid));
    let found = messages(&unset_in_empty_groups(&made.fleet, groups()));
    assert!(found.len() == 1 && found[0].contains("labels.rack") && found[0].contains("prod/webs"), "{found:?}");
    documents.push(node_manifest("web-1", "webs"));
    let made = FleetFixture::from_manifests(&documents);
    let groups = made.fleet.groups().map(|group| GroupId(group.meta.uuid));
    assert_eq!(messages(&unset_in_empty_groups(&made.fleet, groups)), [""; 0], "a group with nodes says what they lack");
}

/// Returns the levels as manifests, each with these labels.
fn level_manifests(template: &Value, cluster: &Value, group: &Value) -> Vec<Value> {
    vec![
        json!({"kind": "ClusterTemplate", "name": "t", "labels": template}),
        json!({"kind": "Cluster", "name": "c", "cluster_template": "t", "merge_labels": true, "labels": cluster}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "merge_labels": true, "labels": group}),
    ]
}

#[test]
fn y08_label_variable_clash_is_found_at_level_without_nodes() {
    let none = || json!({});
    for (template, cluster, group, object) in [
        (json!({"a": "1", "A": "2"}), none(), none(), Some("clustertemplate/t")),
        (none(), json!({"a": "1", "A": "2"}), none(), Some("cluster/c")),
        (json!({"a": "1"}), json!({"A": "2"}), none(), Some("cluster/c")),
        (none(), none(), json!({"a": "1", "A": "2"}), Some("nodegroup/c/g")),
        (none(), json!({"a": "1"}), json!({"A": "2"}), Some("nodegroup/c/g")),
        (json!({"a": "1"}), none(), json!({"A": "2"}), Some("nodegroup/c/g")),
        (none(), json!({"a": "1"}), json!({"A": "2", "a": null}), None),
        (none(), json!({"a": "1"}), json!({"b": "2"}), None),
    ] {
        let mut documents = level_manifests(&template, &cluster, &group);
        let says = "labels A, a would all be STEMMA_LABEL_A: none of them is in labels.env; rename all but one";
        let expected = |object: Option<&str>| -> Vec<String> {
            object.iter().map(|object| format!("label.variable {object}: {says}")).collect()
        };
        let found = |made: &FleetFixture| -> Vec<String> {
            let whole = resolve_fleet(&made.fleet, &ResolveCache::new()).expect("it resolves");
            messages(&whole.findings).into_iter().filter(|one| one.starts_with("label.variable")).collect()
        };
        let mut made = FleetFixture::from_manifests(&level_manifests(&none(), &none(), &none()));
        let before = made.fleet.clone();
        let _dirty = made.apply(&documents);
        assert_eq!(found(&made), expected(object), "{documents:?}");
        let template = made.fleet.templates().next().expect("a template").meta.uuid;
        let newly = messages(&newly_colliding_below(&before, &made.fleet, LevelId::Template(TemplateId(template))));
        assert_eq!(newly, expected(object), "of a write of what is above all: {documents:?}");
        documents.push(json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}));
        let node = object.map(|_| "node/n");
        assert_eq!(
            found(&FleetFixture::from_manifests(&documents)),
            expected(node),
            "a node below says so itself: {documents:?}"
        );
    }
}
