//! Tests of the findings of an edit: the findings that exist after the edit and did not exist before. The expected
//! sentences are handwritten.

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

use crate::fleet_fixture::{FleetFixture, etc_file_task, release_manifest, site_manifests};

/// Returns the manifest of a node in a group of cluster `prod`.
fn node_manifest(name: &str, group: &str) -> Value {
    json!({"kind": "Node", "name": name, "nodegroup": format!("prod/{group}")})
}

/// Returns the manifests of two database servers and `webs` web servers. A web server runs the tasks `conf` and
/// `always`. Tests edit the documents by index: 0 is the cluster template, 1 the release, 2 the cluster, 3 and 4 the
/// groups `dbs` and `webs`, 5 and 6 the databases, and 7 is web-1.
fn fleet_manifests(webs: usize) -> Vec<Value> {
    let tasks = json!([
        {"id": "always", "type": "shell", "parameters": {"script": "true"}, "roles": ["*"]},
        {"id": "conf", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"]},
        {"id": "store", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"]},
    ]);
    let mut documents = site_manifests(&json!({}), &tasks);
    documents.truncate(7);
    documents.extend((1..=webs).map(|n| node_manifest(&format!("web-{n}"), "webs")));
    documents
}

/// Returns each finding as `CODE OBJECT: MESSAGE`.
fn messages(findings: &[stemma_core::finding::Finding]) -> Vec<String> {
    findings.iter().map(|finding| format!("{} {}: {}", finding.code, finding.object, finding.message)).collect()
}

fn all_nodes(fixture: &FleetFixture) -> Vec<NodeId> {
    fixture.fleet.nodes().map(|node| node.id()).collect()
}

/// Document 4 is the group of the web servers, and document 1 is the release. The first edits take the role from the
/// group. The last edit takes the tag from the role.
#[test]
fn edit_finds_lost_tasks_once_for_nodes_losing_the_same() {
    for (webs, others) in [(1, ""), (2, " and on 1 other node"), (4, " and on 3 other nodes")] {
        let mut fixture = FleetFixture::from_manifests(&fleet_manifests(webs));
        let (fleet_before, nodes) = (fixture.fleet.clone(), all_nodes(&fixture));
        let mut edited_manifests = fleet_manifests(webs);
        edited_manifests[4]["roles"] = json!([]);
        fixture.apply(&edited_manifests);
        assert_eq!(
            messages(&newly_orphaned(&fleet_before, &fixture.fleet, nodes.iter().copied())),
            [format!("task.orphaned node/web-1: tasks always, conf no longer run on it{others}: the changes there remain")]
        );
    }
    let mut fixture = FleetFixture::from_manifests(&fleet_manifests(1));
    let (fleet_before, nodes) = (fixture.fleet.clone(), all_nodes(&fixture));
    let mut edited_manifests = fleet_manifests(1);
    edited_manifests[1]["roles"]["web"] = json!({"tags": []});
    fixture.apply(&edited_manifests);
    assert_eq!(
        messages(&newly_orphaned(&fleet_before, &fixture.fleet, nodes.into_iter())),
        ["task.orphaned node/web-1: task conf no longer runs on it: the changes there remain"]
    );
}

/// Regression: the finding claimed that the task runs on no node, while nodes of a group with another release ran it.
/// After the insertion of release `site@2`, document 5 is the group of web-1, which then runs that release.
#[test]
fn y09_unplaced_task_finding_names_release_and_nodes() {
    let mut documents = fleet_manifests(1);
    let mut second_release = documents[1].clone();
    second_release["version"] = json!("2");
    second_release["tasks"]
        .as_array_mut()
        .expect("tasks")
        .push(json!({"id": "more", "type": "shell", "parameters": {"script": "true"}, "roles": ["*"]}));
    documents.insert(2, second_release);
    documents[5]["release"] = json!("site@2");
    let fixture = FleetFixture::from_manifests(&documents);
    let findings = messages(&cluster_findings(&fixture.fleet, fixture.cluster_id()));
    let unplaced: Vec<_> = findings.iter().filter(|message| message.starts_with("task.unplaced")).collect();
    let expected = "task.unplaced cluster/prod task/conf: task conf of release site@1 runs on no node: it is placed by tags nginx; the \
                task of this id in release site@2 does";
    assert!(unplaced.iter().any(|message| *message == expected), "{unplaced:?}");
}

/// Documents 4 and 7 are the group of web-1 and web-1.
#[test]
fn edit_reports_newly_caused_cluster_finding() {
    let mut fixture = FleetFixture::from_manifests(&fleet_manifests(1));
    let fleet_before = fixture.fleet.clone();
    let mut edited_manifests = fleet_manifests(1);
    edited_manifests[7]["tags"] = json!({"assigned": ["unseen"]});
    edited_manifests[4]["roles"] = json!(["web", "wbe"]);
    edited_manifests[4]["requirements"] = json!({"property:memory_mb": ">=3"});
    fixture.apply(&edited_manifests);
    let findings = cluster_findings(&fixture.fleet, fixture.cluster_id());
    assert!(findings.iter().any(|finding| finding.code == "requirement.text"), "the edit also causes a finding about one field");
    let new_findings = messages(&new_placement_findings(&fleet_before, &fixture.fleet, fixture.cluster_id()));
    let unseen = "tag.unknown node/web-1: is assigned tag unseen, which is declared neither in the release nor in the cluster";
    assert_eq!(new_findings.iter().filter(|finding| *finding == unseen).count(), 1, "{new_findings:?}");
    for code in ["task.type", "requirement.text"] {
        assert!(
            !new_findings.iter().any(|finding| finding.starts_with(code)),
            "{code} is about one field by itself: {new_findings:?}"
        );
    }
    assert_eq!(
        messages(&new_placement_findings(&fixture.fleet, &fixture.fleet, fixture.cluster_id())),
        [""; 0],
        "the finding existed before"
    );

    let undeclared = |before: &Fleet, after: &Fleet, id| messages(&newly_undeclared(before, after, id));
    let group = LevelId::Group(
        fixture
            .fleet
            .groups()
            .find(|group| &*group.meta.name == "webs")
            .map(|group| GroupId(group.meta.uuid))
            .expect("the group"),
    );
    let group_finding =
        "role.unknown nodegroup/prod/webs: has role wbe, which release site@1 does not declare: it produces no tag";
    assert_eq!(undeclared(&fleet_before, &fixture.fleet, group), [group_finding]);
    assert_eq!(undeclared(&fixture.fleet, &fixture.fleet, group), [""; 0]);
    let mut edited_again = edited_manifests.clone();
    edited_again[7]["roles"] = json!(["dbb"]);
    let with_group = fixture.fleet.clone();
    fixture.apply(&edited_again);
    let web = LevelId::Node(fixture.node("web-1").id());
    let node_finding = "role.unknown node/web-1: has role dbb, which release site@1 does not declare: it produces no tag";
    assert_eq!(undeclared(&with_group, &fixture.fleet, web), [node_finding]);
}

/// If a write adds the first nodes of a cluster, the tags and tasks that still have no node are not reported, because
/// the write did not cause this. The first five manifests (`empty`) have no nodes, and document 1 is the release.
#[test]
fn new_placement_findings_exclude_first_nodes_and_new_tasks() {
    let new_findings = |manifests_before: &[Value], manifests_after: &[Value]| {
        let mut fixture = FleetFixture::from_manifests(manifests_before);
        let fleet_before = fixture.fleet.clone();
        fixture.apply(manifests_after);
        messages(&new_placement_findings(&fleet_before, &fixture.fleet, fixture.cluster_id()))
    };
    let (full, empty) = (fleet_manifests(1), &fleet_manifests(0)[..5]);
    let with_first_node = [empty, &[node_manifest("web-1", "webs")]].concat();
    assert_eq!(new_findings(empty, &with_first_node), [""; 0]);
    let mut node_with_unknown_tag = node_manifest("web-1", "webs");
    node_with_unknown_tag["tags"] = json!({"assigned": ["unseen"]});
    assert_eq!(
        new_findings(empty, &[empty, &[node_with_unknown_tag]].concat()),
        ["tag.unknown node/web-1: is assigned tag unseen, which is declared neither in the release nor in the cluster"]
    );
    let mut with_another_task = full.clone();
    with_another_task[1]["tasks"]
        .as_array_mut()
        .expect("tasks")
        .push(json!({"id": "more", "type": "shell", "parameters": {"script": "true"}, "roles": ["*"]}));
    assert_eq!(new_findings(&full, &with_another_task), [""; 0], "a finding about a task alone belongs to the write of the task");
    // Here web-1 moves to the group of the databases, so no node has tag `nginx`.
    let without_web_nodes =
        [empty, &[node_manifest("db-2", "dbs"), node_manifest("db-10", "dbs"), node_manifest("web-1", "dbs")]].concat();
    assert_eq!(
        new_findings(&full, &without_web_nodes),
        [
            "tag.unheld cluster/prod tag/nginx: no node holds tag nginx, which release site@1 declares",
            "task.unplaced cluster/prod task/conf: task conf of release site@1 runs on no node: it is placed by tags nginx",
        ]
    );
}

/// Document 4 is the group of web-1, which gets a requirement that web-1 does not meet. The message about one node has
/// the value of the node. The message about several nodes has no value.
#[test]
fn edit_reports_newly_unmet_requirement() {
    let mut fixture = FleetFixture::from_manifests(&fleet_manifests(1));
    let (fleet_before, node) = (fixture.fleet.clone(), fixture.node("web-1").id());
    let mut edited_manifests = fleet_manifests(1);
    edited_manifests[4]["requirements"] = json!({"property:memory_mb": ">= 1024"});
    fixture.apply(&edited_manifests);
    let fleet_after = &fixture.fleet;
    let has_error = |fleet: &Fleet| resolve_node(fleet, &fixture.cache, node).has_error();
    assert!(has_error(fleet_after) && !has_error(&fleet_before));
    assert!(resolve_node(fleet_after, &fixture.cache, NodeId(Uuid::nil())).has_error(), "an unknown node cannot be resolved");
    let unmet_texts: Vec<String> = newly_unmet(&fleet_before, fleet_after, node).iter().map(ToString::to_string).collect();
    assert_eq!(unmet_texts, ["requirement property:memory_mb >= 1024 is not met"]);
    let unmet = &newly_unmet(&fleet_before, fleet_after, node)[0];
    let consequence = "the next task set is withheld until it is met";
    let message_of_one = format!("requirement property:memory_mb >= 1024 is not met by web-1 (the node has none): {consequence}");
    assert_eq!(unmet.message(&["web-1".to_owned()]), message_of_one);
    let message_of_two = format!("requirement property:memory_mb >= 1024 is not met by web-1, web-2: {consequence}");
    assert_eq!(unmet.message(&["web-1".to_owned(), "web-2".to_owned()]), message_of_two);
    let finding_message = unmet.finding(fixture.node("web-1")).message;
    assert_eq!(finding_message, "requirement property:memory_mb >= 1024 is not met: the node has none");
    assert_eq!(newly_unmet(fleet_after, fleet_after, node), [], "the requirement was unmet before");
    assert_eq!(newly_unmet(fleet_after, &fleet_before, node), [], "the edit removes the requirement");
}

/// Document 7 is web-1, the only host with a report. The new inspection rule lets the inspection of every report fail.
#[test]
fn edit_reports_failure_of_new_inspection_rule() {
    let mut documents = fleet_manifests(1);
    documents[7]["reports"] = json!({"facts": {"cpu": {"count": 4}}});
    let mut fixture = FleetFixture::from_manifests(&documents);
    let (fleet_before, nodes) = (fixture.fleet.clone(), all_nodes(&fixture));
    let spec = serde_json::from_value(json!({"actions": [{"op": "fail", "args": {"msg": "too old"}}]})).expect("a rule");
    let meta = Meta::new(Uuid::from_u128(1), ObjectName::new("age").ok(), Timestamp(0));
    fixture.fleet.apply(FleetChange::Rule(Arc::new(Object { meta, spec })));
    let new_findings = |fleet_before: &Fleet, fleet_after: &Fleet| {
        messages(&new_rule_findings(fleet_before, fleet_after, &ResolveCache::new(), nodes.iter().copied()))
    };
    let findings = new_findings(&fleet_before, &fixture.fleet);
    assert!(
        findings.len() == 1 && findings[0].starts_with("inspection.refused node/web-1: ") && findings[0].contains("too old"),
        "{findings:?}"
    );
    assert_eq!(new_findings(&fixture.fleet, &fixture.fleet), [""; 0]);
}

/// In this test, the condition reads a fact that no host has reported, so its evaluation fails on each web server.
/// Document 1 is the release.
#[test]
fn failing_condition_is_one_finding_when_many_hosts_fail() {
    let tasks = json!([{"id": "conf", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "condition": "facts.cpu.count > 4"}]);
    for (webs, hosts) in [(1, "1 host (web-1)"), (3, "3 hosts (web-1, web-2, web-3)"), (4, "4 hosts (web-1, web-2, web-3, …)")]
    {
        let mut documents = fleet_manifests(webs);
        documents[1] = release_manifest(&json!({}), &tasks);
        let fixture = FleetFixture::from_manifests(&documents);
        let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("the fleet is complete").findings;
        let failed: Vec<_> = findings.iter().filter(|finding| finding.code == "condition.failed").collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].object, "release/site@1 task conf");
        assert!(failed[0].message.starts_with(&format!("on {hosts}: ")), "{}", failed[0].message);
    }
}

/// Documents 0, 2, 4 and 7 are the levels of web-1, from the template to the node. The new namespace permits only the
/// value `gold` for label `tier`, and each level provides another value.
#[test]
fn edit_reports_disallowed_value_at_each_level() {
    let mut documents = fleet_manifests(1);
    for (index, value) in [(0, "t"), (2, "c"), (4, "g"), (7, "n")] {
        documents[index]["labels"] = json!({"tier": value});
    }
    let mut fixture = FleetFixture::from_manifests(&documents);
    let spec = serde_json::from_value(json!({
        "resource_type_associations": [{"name": "Stemma::Label"}],
        "properties": {"tier": {"title": "Tier", "type": "string", "enum": ["gold"]}},
    }));
    let meta = Meta::new(Uuid::from_u128(7), NamespaceName::new("Site").expect("a name"), Timestamp(0));
    let fleet_before = fixture.fleet.clone();
    fixture.fleet.apply(FleetChange::Namespace(Arc::new(Object { meta, spec: spec.expect("a namespace") })));
    let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("the fleet is complete").findings;
    let objects_of = |findings: &[stemma_core::finding::Finding]| -> Vec<String> {
        let value_findings = findings.iter().filter(|finding| finding.code == "catalog.value");
        value_findings.map(|finding| finding.object.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    let all_levels = ["cluster/prod", "clustertemplate/base", "node/web-1", "nodegroup/prod/webs"];
    assert_eq!(objects_of(&findings), all_levels);
    let mut cluster_objects = objects_of(&resolve_cluster(&fixture.fleet, &fixture.cache, fixture.cluster_id()).findings);
    cluster_objects.sort();
    assert_eq!(cluster_objects, all_levels);
    let suggestions = SuggestionCache::default();
    let objects_at = |id| objects_of(&object_catalog_findings(&fixture.fleet, &suggestions, id));
    assert_eq!(objects_at(LevelId::Cluster(fixture.cluster_id())), ["cluster/prod"]);
    assert_eq!(objects_at(LevelId::Node(fixture.node("web-1").id())), ["node/web-1"]);
    assert_eq!(objects_at(LevelId::Node(fixture.node("db-2").id())), [""; 0]);
    let group = fixture.node("web-1").spec.nodegroup.expect("a group");
    assert_eq!(objects_at(LevelId::Group(group)), ["nodegroup/prod/webs"]);
    let new_objects = |fleet_before: &Fleet| objects_of(&newly_uncatalogued(fleet_before, &fixture.fleet, LevelId::Group(group)));
    assert_eq!(new_objects(&fleet_before), ["nodegroup/prod/webs"]);
    assert_eq!(new_objects(&fixture.fleet), [""; 0], "the finding existed before");
}

/// An extension is a program outside of Stemma that decides which tags a role gives a node. Here it gives web-1 the
/// tags `nginx` and `gone`, and the release (document 1) declares only `nginx`.
#[test]
fn undeclared_tag_from_extension_is_finding() {
    let mut documents = fleet_manifests(1);
    documents[1]["extensions"] = json!([{"roles": ["web"], "use": "rack"}]);
    let mut fixture = FleetFixture::from_manifests(&documents);
    let mut web = (**fixture.node("web-1")).clone();
    let (rack, cluster) = ("rack".to_owned(), fixture.cluster_id());
    let tags = ["nginx", "gone"].map(|tag| TagName::new(tag).expect("a tag")).to_vec();
    web.spec
        .tags
        .decided
        .insert(Name::new("web").expect("a role"), DecidedTags { extension: rack, cluster, tags, question: String::new() });
    fixture.fleet.apply(FleetChange::Node(Arc::new(web)));
    let findings = resolve_fleet(&fixture.fleet, &fixture.cache).expect("the fleet is complete").findings;
    let unknown: Vec<_> = findings.iter().filter(|finding| finding.code == "tag.unknown").collect();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    assert_eq!(unknown[0].object, "node/web-1");
    assert!(unknown[0].message.starts_with("extension rack gives it tag gone for role web, which is declared neither"));
}

/// Node `spare` is in no group. The finding about its tombstone, which has no effect because the node does not merge
/// labels, is listed once.
#[test]
fn fleet_resolution_contains_unplaced_nodes_once() {
    let mut documents = fleet_manifests(1);
    documents.push(json!({"kind": "Node", "name": "spare", "labels": {"kept": null}, "merge_labels": false}));
    let fixture = FleetFixture::from_manifests(&documents);
    let resolution = resolve_fleet(&fixture.fleet, &fixture.cache).expect("the fleet is complete");
    assert_eq!(resolution.nodes.keys().collect::<Vec<_>>(), ["db-10", "db-2", "spare", "web-1"]);
    assert_eq!(resolution.resolved_nodes.len(), 4);
    let expected = "label.idle_null node/spare: label kept is null where nothing is merged: it has no effect";
    assert_eq!(messages(&resolution.findings).iter().filter(|message| *message == expected).count(), 1);
    assert_eq!(fixture.resolved_node("web-1").group_path().as_deref(), Some("prod/webs"));
    assert_eq!(fixture.resolved_node("spare").group_path(), None);
}

/// In this test, the group of the web servers has no node at first. Only task `conf` always reads a label that the
/// group lacks. The other tasks read such a label only inside an `if`. Document 1 is the release.
#[test]
fn empty_group_finding_lists_references_missing_for_future_nodes() {
    let tasks = json!([
        etc_file_task("conf", "nginx", "{{ labels.rack }}"),
        etc_file_task("perhaps", "nginx", "{% if labels.tier == 'gold' %}{{ labels.slot }}{% endif %}"),
        etc_file_task("zone", "nginx", "{% if labels.zone is defined %}{{ labels.zone }}{% endif %}")
    ]);
    let mut documents = fleet_manifests(0);
    documents[1] = release_manifest(&json!({}), &tasks);
    let fixture = FleetFixture::from_manifests(&documents);
    let groups = || fixture.fleet.groups().map(|group| GroupId(group.meta.uuid));
    let findings = messages(&unset_in_empty_groups(&fixture.fleet, groups()));
    assert!(findings.len() == 1 && findings[0].contains("labels.rack") && findings[0].contains("prod/webs"), "{findings:?}");
    documents.push(node_manifest("web-1", "webs"));
    let fixture = FleetFixture::from_manifests(&documents);
    let groups = fixture.fleet.groups().map(|group| GroupId(group.meta.uuid));
    assert_eq!(
        messages(&unset_in_empty_groups(&fixture.fleet, groups)),
        [""; 0],
        "in a group with nodes, the findings of the nodes name the references"
    );
}

/// Returns the manifests of a template, a cluster and a group. Each argument contains the labels of one of them.
fn level_manifests(template: &Value, cluster: &Value, group: &Value) -> Vec<Value> {
    vec![
        json!({"kind": "ClusterTemplate", "name": "t", "labels": template}),
        json!({"kind": "Cluster", "name": "c", "cluster_template": "t", "merge_labels": true, "labels": cluster}),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "merge_labels": true, "labels": group}),
    ]
}

/// The labels `a` and `A` of one host would be the same environment variable. Each row has the labels of the three
/// levels, and the level that combines the two labels. At first, no node is below the levels.
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
        let problem = "labels A, a would all be STEMMA_LABEL_A: none of them is in labels.env; rename all but one";
        let expected = |object: Option<&str>| -> Vec<String> {
            object.iter().map(|object| format!("label.variable {object}: {problem}")).collect()
        };
        let collisions = |fixture: &FleetFixture| -> Vec<String> {
            let resolution = resolve_fleet(&fixture.fleet, &ResolveCache::new()).expect("the fleet is complete");
            messages(&resolution.findings).into_iter().filter(|message| message.starts_with("label.variable")).collect()
        };
        let mut fixture = FleetFixture::from_manifests(&level_manifests(&none(), &none(), &none()));
        let fleet_before = fixture.fleet.clone();
        let _dirty = fixture.apply(&documents);
        assert_eq!(collisions(&fixture), expected(object), "{documents:?}");
        let template = fixture.fleet.templates().next().expect("a template").meta.uuid;
        let new_collisions =
            messages(&newly_colliding_below(&fleet_before, &fixture.fleet, LevelId::Template(TemplateId(template))));
        assert_eq!(new_collisions, expected(object), "after a write of the template, the highest level: {documents:?}");
        documents.push(json!({"kind": "Node", "name": "n", "nodegroup": "c/g"}));
        let node = object.map(|_| "node/n");
        assert_eq!(
            collisions(&FleetFixture::from_manifests(&documents)),
            expected(node),
            "if a node is below the level, the finding is about the node: {documents:?}"
        );
    }
}
