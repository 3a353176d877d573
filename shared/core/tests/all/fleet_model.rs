//! The fleet model: what a node inherits from the levels above, the order of its tasks, and the messages about missing
//! objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::explain::{self, TaskRunState};
use stemma_core::finding::has_error;
use stemma_core::fleet::{Fleet, FleetChange, MissingParent};
use stemma_core::object::{ClusterId, GroupId, Kind, Observation, ReportedState, TemplateId, Timestamp};
use stemma_core::resolve::{NodeOutput, Resolution, ResolveCache, resolve_fleet, resolve_node};
use stemma_core::traits::Trait;
use uuid::Uuid;

use crate::fleet_fixture::{FleetFixture, build_objects, default_matching_site, site_manifests, task_manifests, to_changes};

#[test]
fn resolve_cache_separates_nodes_when_labels_differ_from_group() {
    let file = |id: &str, template: &str| json!({"id": id, "type": "file", "tags": ["nginx"], "parameters": {"path": format!("/etc/{id}"), "template": template}});
    let tasks = json!([file("own", "{{ labels.z | default('-') }}"), file("ntp", "{{ labels.ntp | default('-') }}")]);
    let mut documents = site_manifests(&json!({}), &tasks);
    documents[4]["host_labels"] = json!({"accept": ["z"]});
    documents.push(json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/webs", "reports": {"labels": {"z": "host"}}}));
    documents.push(json!({"kind": "Node", "name": "web-3", "nodegroup": "prod/webs", "merge_labels": false, "labels": {}}));
    let made = FleetFixture::from_manifests(&documents);
    let digest = |cache: &ResolveCache, name: &str| match resolve_node(&made.fleet, cache, made.node(name).id()) {
        Resolution::Complete(answer) => NodeOutput::from_node(&answer).task_digest,
        Resolution::Incomplete(missing) => panic!("{missing:?}"),
    };
    let shared = ResolveCache::new();
    let names = ["web-1", "web-2", "web-3"];
    let digests = names.map(|name| digest(&shared, name));
    assert_eq!(digests, names.map(|name| digest(&ResolveCache::new(), name)));
    assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2], "{digests:?}");
}

#[test]
fn explain_task_gives_reason_when_node_is_set_aside() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents[6]["mode"] = json!("noop");
    let made = FleetFixture::from_manifests(&documents);
    let ran = TaskRunState {
        should_run: Some(&|_| true),
        has_task_set: true,
        too_large: None,
        kept_release: None,
        is_confirmed: true,
        outcome: None,
        closed_barriers: &Vec::new,
    };
    let aside = |name| {
        explain::explain_task(&made.resolved_node(name), "every", Timestamp(1), &ran).expect("a task")["set_aside"].clone()
    };
    assert_eq!(aside("db-2"), json!([]));
    assert_eq!(aside("db-10"), json!(["its mode is noop: tasks are checked, and nothing is changed"]));
}

#[test]
fn replacing_level_is_in_provenance_of_omitted_keys() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents[0]["merge_labels"] = json!(false);
    documents[2]["labels"] = json!({"own": "1"});
    documents[2]["merge_labels"] = json!(false);
    let made = FleetFixture::from_manifests(&documents);
    let levels = |key: &str| -> Vec<(String, bool)> {
        let explained = explain::explain_label(&made.resolved_node("web-1"), key, |at| at.0.to_string());
        let rows = explained["levels"].as_array().expect("levels").iter();
        rows.map(|row| (row["result"].as_str().expect("a text").to_owned(), row["merges"] == true)).collect()
    };
    let expected = |rows: [(&str, bool); 4]| rows.map(|(result, merges)| (result.to_owned(), merges)).to_vec();
    let silent = ("says nothing", true);
    assert_eq!(
        levels("ntp"),
        expected([("not merged by the cluster", false), ("replaces what is above", false), silent, silent])
    );
    assert_eq!(levels("none"), expected([silent, ("replaces what is above", false), silent, silent]));
}

#[test]
fn resolve_names_missing_parent_and_returns_nothing() {
    let all = to_changes(build_objects(&site_manifests(&json!({}), &task_manifests())));
    let resolve = |fleet: &Fleet| {
        let node = fleet.node_by_name("web-1").expect("the node").id();
        resolve_node(fleet, &ResolveCache::new(), node)
    };
    for left_out in 0..all.len() {
        let is_parent = matches!(all[left_out], FleetChange::Release(_) | FleetChange::Template(_) | FleetChange::Cluster(_));
        let mut fleet = Fleet::new();
        let others = all.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, change)| change.clone());
        fleet.apply_all(others.rev());
        fleet.set_loaded();
        if is_parent {
            assert!(matches!(resolve(&fleet), Resolution::Incomplete(missing) if missing.len() == 1), "{left_out}");
            fleet.apply(all[left_out].clone());
            assert!(matches!(resolve(&fleet), Resolution::Complete(_)), "{left_out}");
        }
    }
    let mut loading = Fleet::new();
    loading.apply_all(all);
    assert!(matches!(resolve(&loading), Resolution::Incomplete(missing) if missing == [MissingParent::Store]));
}

#[test]
fn false_condition_skips_task_with_reason() {
    let condition = |id: &str, text: &str| json!({"id": id, "type": "puppet", "roles": ["*"], "condition": text});
    let tasks = json!([
        condition("gold", "labels.tier == 'gold'"),
        condition("absent", "labels.absent == 'x'"),
        {"id": "marker", "type": "skipped", "roles": ["*"]},
    ]);
    let made = FleetFixture::from_manifests(&default_matching_site(&tasks));
    let web = made.node_output("web-1");
    assert_eq!(web.tasks, ["gold"]);
    assert_eq!(web.skipped["marker"], "type is skipped");
    assert!(web.skipped["absent"].starts_with("condition counts as false: it reads `labels.absent`"), "{:?}", web.skipped);
    let db = made.node_output("db-2");
    assert_eq!(db.skipped["gold"], "condition is false: labels.tier == 'gold'");
    assert!(made.resolved_node("db-2").findings().iter().any(|finding| finding.code == "condition.failed"));
}

#[test]
fn cycle_from_placement_is_spelled_out() {
    let tasks = json!([
        {"id": "app", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"]}]},
        {"id": "db", "type": "puppet", "tags": ["mysql"], "requires": ["app"]},
    ]);
    let mut documents = default_matching_site(&tasks);
    let made = FleetFixture::from_manifests(&documents);
    assert!(resolve_fleet(&made.fleet, &made.cache).is_ok());
    documents[5]["roles"] = json!(["web"]);
    // With policy `any`, the first node by name is awaited, which is the waiting node itself.
    for policy in ["all", "any"] {
        documents[1]["tasks"][0]["cross_depends"][0]["policy"] = json!(policy);
        let made = FleetFixture::from_manifests(&documents);
        let errors = resolve_fleet(&made.fleet, &made.cache).expect_err("a cycle");
        assert_eq!(
            errors[0].to_string(),
            "cluster prod: tasks wait for each other: db-2/app -> db-2/db -> db-2/app; \
             remove one of these dependencies, or place a task elsewhere"
        );
    }
}

#[test]
fn unplaced_node_has_labels_and_no_tasks() {
    let mut documents = default_matching_site(&task_manifests());
    documents.push(json!({"kind": "Node", "name": "spare", "labels": {"rack": "r1"}}));
    let made = FleetFixture::from_manifests(&documents);
    let spare = made.node_output("spare");
    assert_eq!((spare.labels.len(), spare.tasks.len(), spare.task_digest), (1, 0, None));
    assert!(made.resolved_node("spare").group_path().is_none());
}

#[test]
fn effective_traits_exclude_suppressed_traits() {
    let mut documents = default_matching_site(&task_manifests());
    documents[7]["traits"] = json!(["CUSTOM_SET", "HW_CPU_X86_VMX"]);
    documents[7]["suppressed_traits"] = json!(["CUSTOM_SEEN_BY_HOST"]);
    let mut made = FleetFixture::from_manifests(&documents);
    let id = made.node("web-1").id();
    let traits = ["CUSTOM_SEEN_BY_HOST", "HW_CPU_X86_AVX2"].map(|one| Trait::new(one).expect("a trait"));
    let seen = Observation { traits: Arc::new(traits.into_iter().collect()), ..Observation::default() };
    made.fleet.apply(FleetChange::Observation(id, Arc::new(seen)));
    let plain = made.node_output("web-1").traits;
    assert_eq!(plain.iter().collect::<Vec<_>>(), ["CUSTOM_SET", "HW_CPU_X86_AVX2", "HW_CPU_X86_VMX"]);
    assert!(made.node_output("db-2").traits.is_empty());
}

#[test]
fn fleet_output_lists_stages_order_and_master_tasks() {
    let tasks = json!([
        {"id": "begin", "type": "stage"},
        {"id": "keys", "type": "puppet", "roles": ["master"], "requires": ["begin"]},
        {"id": "db", "type": "puppet", "tags": ["mysql"], "cross_depends": [{"name": "keys", "role": "master"}]},
        {"id": "app", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"], "policy": "any"}]},
        {"id": "bye", "type": "puppet", "tags": ["nginx"], "phase": "cleanup", "requires": ["app"]},
    ]);
    let made = FleetFixture::from_manifests(&default_matching_site(&tasks));
    let answer = resolve_fleet(&made.fleet, &made.cache).expect("it resolves");
    let printed = serde_json::to_value(&answer).expect("JSON");
    assert_eq!(printed["stages"], json!(["begin"]));
    assert_eq!(
        printed["order"],
        json!([
            [[null, "begin"], ["master", "keys"]],
            [["db-2", "db"], ["web-1", "app"]],
            [["master", "keys"], ["db-10", "db"]],
            [["master", "keys"], ["db-2", "db"]],
        ])
    );
    assert_eq!(printed["nodes"]["master"]["tasks"], json!(["keys"]));
    assert_eq!(printed["nodes"]["web-1"]["tasks"], json!(["app"]), "cleanup stands in neither");
    assert_eq!(printed["nodes"]["db-2"]["primary_tags"], json!(["mysql"]));
    assert!(answer.findings.iter().any(|finding| finding.code == "master.absent"));
}

/// In a dependency, `role: '*'` means the same as in a task's `roles`, and the text `tags: '*'` selects nodes with any
/// tag. db-2 has a role and no tag, and `tagged` has a tag and no role.
#[test]
fn w04_star_selects_nodes_with_any_role_or_any_tag() {
    let documents = |matching: &Value, mut entry: Value| {
        entry["name"] = "/first/".into();
        let tasks = json!([
            {"id": "first-by-role", "type": "puppet", "roles": "*"},
            {"id": "first-by-tag", "type": "puppet", "tags": "*"},
            {"id": "first-by-item", "type": "puppet", "tags": ["*"]},
            {"id": "last", "type": "puppet", "tags": ["late"], "cross_depends": [entry]},
        ]);
        let mut documents = site_manifests(matching, &tasks);
        documents[1]["tags"]["late"] = json!({});
        documents[5]["tags"] = json!({"unassigned": ["mysql"]});
        documents.extend([
            json!({"kind": "NodeGroup", "cluster": "prod", "name": "bare"}),
            json!({"kind": "Node", "name": "tagged", "nodegroup": "prod/bare", "tags": {"assigned": ["mysql"]}}),
            json!({"kind": "Node", "name": "waits", "nodegroup": "prod/bare", "tags": {"assigned": ["late"]}}),
        ]);
        documents
    };
    for (matching, entry, first) in [
        (json!({}), json!({"role": "*"}), &["db-10", "db-2", "web-1"][..]),
        (json!({}), json!({"role": ["*"]}), &["db-10", "db-2", "web-1"]),
        (json!({}), json!({"tags": "*"}), &["db-10", "tagged", "web-1"]),
        (json!({}), json!({"tags": ["*"]}), &[]),
        (json!({}), json!({}), &["db-10", "db-2", "tagged", "web-1"]),
        (json!({"roles": "tags"}), json!({"role": "*"}), &["db-10", "tagged", "web-1"]),
    ] {
        let made = FleetFixture::from_manifests(&documents(&matching, entry.clone()));
        let order = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").order;
        let before = order.into_iter().filter(|[_, (_, after)]| after == "last").filter_map(|[(node, _), _]| node);
        let before: BTreeSet<String> = before.filter(|node| node != "waits").collect();
        assert_eq!(before.iter().map(String::as_str).collect::<Vec<_>>(), first, "{matching} {entry}");
    }
    let made = FleetFixture::from_manifests(&documents(&json!({}), json!({})));
    for (node, tasks) in [("db-2", &["first-by-role"][..]), ("tagged", &["first-by-tag"])] {
        assert_eq!(made.node_output(node).tasks, tasks, "{node}");
    }
}

/// This also holds if tasks between the stages define the order.
#[test]
fn w04_stages_keep_declared_order() {
    let tasks = json!([
        {"id": "a-last", "type": "stage"},
        {"id": "b-middle", "type": "stage", "requires": ["z-first"]},
        {"id": "c-beside", "type": "stage"},
        {"id": "m-task", "type": "puppet", "tags": ["nginx"], "requires": ["b-middle"],
            "required_for": ["a-last"]},
        {"id": "z-first", "type": "stage"},
    ]);
    let made = FleetFixture::from_manifests(&site_manifests(&json!({}), &tasks));
    let stages = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").stages;
    assert_eq!(stages, ["c-beside", "z-first", "b-middle", "a-last"]);
}

/// Returns a template, a cluster of it with two groups, and a node with labels of its own in the first group.
fn level_objects() -> [Value; 6] {
    let said = |level: &str| {
        let map = json!({"at": level, level: "1"});
        json!({"labels": map, "annotations": map, "parameters": map, "merge_labels": true})
    };
    let object = |kind: &str, more: Value| {
        let mut object = json!({"kind": kind});
        let parts = [more, said(&kind.to_lowercase())].map(|part| part.as_object().expect("an object").clone());
        for part in parts {
            object.as_object_mut().expect("an object").extend(part);
        }
        object
    };
    [
        json!({"kind": "Release", "name": "r", "version": "1", "roles": {"web": {"tags": ["nginx"]}}, "tags": {"nginx": {}}}),
        object("ClusterTemplate", json!({"name": "base", "release": "r@1"})),
        object("Cluster", json!({"name": "c", "cluster_template": "base", "tags": {"own": {}}})),
        object("NodeGroup", json!({"cluster": "c", "name": "g", "roles": ["web"]})),
        json!({"kind": "NodeGroup", "cluster": "c", "name": "empty"}),
        object("Node", json!({"name": "n", "nodegroup": "c/g"})),
    ]
}

#[test]
fn node_maps_contain_own_values_when_parent_is_missing() {
    let mut made = FleetFixture::from_manifests(&level_objects());
    let keys = |fleet: &Fleet, id| {
        let view = fleet.node_view(id).expect("a node of the test");
        let labels: Vec<_> = view.labels().iter().map(|(key, _)| key.to_string()).collect();
        let annotations: Vec<_> = view.annotations().iter().map(|(key, _)| key.to_string()).collect();
        let parameters: Vec<_> = view.parameters().iter().map(|(key, _)| key.to_string()).collect();
        let added = view.label_diff().map(|labels| labels.added.into_keys().map(|key| key.to_string()).collect());
        ([labels, annotations, parameters], added)
    };
    let id = made.node("n").id();
    let whole = ["at", "cluster", "clustertemplate", "node", "nodegroup"].map(str::to_owned).to_vec();
    assert_eq!(keys(&made.fleet, id), (std::array::from_fn(|_| whole.clone()), Some(vec!["node".to_owned()])));
    let template = made.fleet.templates().next().expect("a template").meta.uuid;
    made.fleet.apply(FleetChange::RemoveTemplate(TemplateId(template)));
    let own = ["at", "node"].map(str::to_owned).to_vec();
    assert_eq!(keys(&made.fleet, id), (std::array::from_fn(|_| own.clone()), None));
    let resolution = resolve_node(&made.fleet, &made.cache, id);
    let found = resolution.findings(made.node("n"));
    assert!(has_error(&found));
    let said = format!("error node.incomplete node/n: its cluster template {template} is not there");
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [said]);
    assert_eq!(resolution.unusable_reason(), Some(format!("its cluster template {template} is not there")));
}

#[test]
fn cluster_has_releases_and_tags_used_by_default_groups() {
    let made = FleetFixture::from_manifests(&level_objects());
    let resolved = made.fleet.resolved_group(made.node("n").spec.nodegroup.expect("a group")).expect("nothing is missing");
    assert_eq!(made.fleet.cluster_release(&resolved.cluster), resolved.release.as_ref().map(|release| &release.value.name));
    assert_eq!(Some(made.fleet.role_table(&resolved.cluster)), resolved.role_table.as_deref().cloned());
    assert!(made.fleet.role_table(&resolved.cluster).tags().any(|(name, _)| name.as_str() == "own"));
}

#[test]
fn level_lookups_return_descendants_and_cluster() {
    let made = FleetFixture::from_manifests(&level_objects());
    let fleet = &made.fleet;
    let cluster = fleet.clusters().next().expect("a cluster").meta.uuid;
    let template = fleet.templates().next().expect("a template").meta.uuid;
    let node = made.node("n");
    let group = node.spec.nodegroup.expect("a group");
    let all: BTreeSet<GroupId> = fleet.groups_in_cluster(ClusterId(cluster)).collect();
    assert_eq!(all.len(), 2);
    let (one, none) = (BTreeSet::from([group]), BTreeSet::new());
    for (kind, uuid, below, stands_in) in [
        (Kind::Release, Uuid::nil(), &all, None),
        (Kind::ReleaseTags, Uuid::nil(), &all, None),
        (Kind::ClusterTemplate, template, &all, None),
        (Kind::ClusterTemplate, Uuid::nil(), &none, None),
        (Kind::Cluster, cluster, &all, Some(ClusterId(cluster))),
        (Kind::NodeGroup, group.0, &one, Some(ClusterId(cluster))),
        (Kind::Node, node.meta.uuid, &none, Some(ClusterId(cluster))),
        (Kind::Principal, Uuid::nil(), &none, None),
    ] {
        assert_eq!(fleet.groups_below(kind, uuid).into_iter().collect::<BTreeSet<_>>(), *below, "{kind}");
        assert_eq!(fleet.cluster_of_object(kind, uuid), stands_in, "{kind}");
    }
}

#[test]
fn host_hold_is_reported_until_end() {
    let mut made = FleetFixture::from_manifests(&level_objects());
    let id = made.node("n").id();
    for (until_s, now_ms, is_told) in [(5, 4_999, true), (5, 5_000, false), (5, 9_000, false), (u64::MAX, 9_000, true)] {
        let said = ReportedState { hold: Some((until_s, "a disk".into())), ..ReportedState::default() };
        made.fleet.apply(FleetChange::ReportedState(id, Some(Arc::new(said))));
        let found: Vec<_> = made.resolved_node("n").host_findings(Timestamp(now_ms)).iter().map(ToString::to_string).collect();
        let told = "info host.held node/n: it is held on its host (a disk): it keeps its task set";
        assert_eq!(found == [told], is_told, "{until_s} s at {now_ms} ms: {found:?}");
    }
}
