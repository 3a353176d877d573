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

/// In this test, node web-1 has the labels of its group, web-2 also has a reported label, and web-3 inherits no labels.
/// With a shared cache, each node gets the same digest as with a cache of its own. Document 4 is the group.
#[test]
fn resolve_cache_separates_nodes_when_labels_differ_from_group() {
    let file = |id: &str, template: &str| json!({"id": id, "type": "file", "tags": ["nginx"], "parameters": {"path": format!("/etc/{id}"), "template": template}});
    let tasks = json!([file("own", "{{ labels.z | default('-') }}"), file("ntp", "{{ labels.ntp | default('-') }}")]);
    let mut documents = site_manifests(&json!({}), &tasks);
    documents[4]["host_labels"] = json!({"accept": ["z"]});
    documents.push(json!({"kind": "Node", "name": "web-2", "nodegroup": "prod/webs", "reports": {"labels": {"z": "host"}}}));
    documents.push(json!({"kind": "Node", "name": "web-3", "nodegroup": "prod/webs", "merge_labels": false, "labels": {}}));
    let fixture = FleetFixture::from_manifests(&documents);
    let digest = |cache: &ResolveCache, name: &str| match resolve_node(&fixture.fleet, cache, fixture.node(name).id()) {
        Resolution::Complete(resolved_node) => NodeOutput::from_node(&resolved_node).task_digest,
        Resolution::Incomplete(missing) => panic!("{missing:?}"),
    };
    let shared_cache = ResolveCache::new();
    let names = ["web-1", "web-2", "web-3"];
    let digests = names.map(|name| digest(&shared_cache, name));
    assert_eq!(digests, names.map(|name| digest(&ResolveCache::new(), name)));
    assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2], "{digests:?}");
}

/// Document 6 is node db-10.
#[test]
fn explain_task_gives_reason_when_mode_is_noop() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents[6]["mode"] = json!("noop");
    let fixture = FleetFixture::from_manifests(&documents);
    let run_state = TaskRunState {
        should_run: Some(&|_| true),
        has_task_set: true,
        too_large: None,
        kept_release: None,
        is_confirmed: true,
        outcome: None,
        closed_barriers: &Vec::new,
    };
    let set_aside_reasons = |name| {
        explain::explain_task(&fixture.resolved_node(name), "every", Timestamp(1), &run_state).expect("a task")["set_aside"]
            .clone()
    };
    assert_eq!(set_aside_reasons("db-2"), json!([]));
    assert_eq!(set_aside_reasons("db-10"), json!(["its mode is noop: tasks are checked, and nothing is changed"]));
}

/// Documents 0 and 2 are the cluster template and the cluster. Neither merges inherited labels. Each expected item has
/// the result of one level, from the template to the node, and its `merges`, which is true for a level without the key
/// unless the level replaces the labels above it.
#[test]
fn explain_label_lists_replacing_level_for_omitted_keys() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents[0]["merge_labels"] = json!(false);
    documents[2]["labels"] = json!({"own": "1"});
    documents[2]["merge_labels"] = json!(false);
    let fixture = FleetFixture::from_manifests(&documents);
    let level_results = |key: &str| -> Vec<(String, bool)> {
        let explanation = explain::explain_label(&fixture.resolved_node("web-1"), key, |time| time.0.to_string());
        let entries = explanation["levels"].as_array().expect("levels").iter();
        entries.map(|entry| (entry["result"].as_str().expect("a text").to_owned(), entry["merges"] == true)).collect()
    };
    let expected = |entries: [(&str, bool); 4]| entries.map(|(result, merges)| (result.to_owned(), merges)).to_vec();
    let nothing_provided = ("says nothing", true);
    assert_eq!(
        level_results("ntp"),
        expected([("not merged by the cluster", false), ("replaces what is above", false), nothing_provided, nothing_provided])
    );
    assert_eq!(
        level_results("none"),
        expected([nothing_provided, ("replaces what is above", false), nothing_provided, nothing_provided])
    );
}

/// The fleet lacks one object at a time. Node web-1 is incomplete without its release, template or cluster, and also
/// until the fleet is loaded.
#[test]
fn resolve_is_incomplete_while_parent_is_missing() {
    let changes = to_changes(build_objects(&site_manifests(&json!({}), &task_manifests())));
    let resolve = |fleet: &Fleet| {
        let node = fleet.node_by_name("web-1").expect("the node").id();
        resolve_node(fleet, &ResolveCache::new(), node)
    };
    for omitted in 0..changes.len() {
        let is_parent = matches!(changes[omitted], FleetChange::Release(_) | FleetChange::Template(_) | FleetChange::Cluster(_));
        let mut fleet = Fleet::new();
        let other_changes = changes.iter().enumerate().filter(|(index, _)| *index != omitted).map(|(_, change)| change.clone());
        fleet.apply_all(other_changes.rev());
        fleet.set_loaded();
        if is_parent {
            assert!(matches!(resolve(&fleet), Resolution::Incomplete(missing) if missing.len() == 1), "{omitted}");
            fleet.apply(changes[omitted].clone());
            assert!(matches!(resolve(&fleet), Resolution::Complete(_)), "{omitted}");
        }
    }
    let mut loading = Fleet::new();
    loading.apply_all(changes);
    assert!(matches!(resolve(&loading), Resolution::Incomplete(missing) if missing == [MissingParent::Store]));
}

/// In this test, label `tier` is `gold` on web-1 and `std` on db-2. No node has label `absent`, so the condition that
/// reads it counts as false. A task of type `skipped` is skipped everywhere.
#[test]
fn false_condition_skips_task_with_reason() {
    let condition = |id: &str, text: &str| json!({"id": id, "type": "shell", "parameters": {"script": "true"}, "roles": ["*"], "condition": text});
    let tasks = json!([
        condition("gold", "labels.tier == 'gold'"),
        condition("absent", "labels.absent == 'x'"),
        {"id": "marker", "type": "skipped", "roles": ["*"]},
    ]);
    let fixture = FleetFixture::from_manifests(&default_matching_site(&tasks));
    let web = fixture.node_output("web-1");
    assert_eq!(web.tasks, ["gold"]);
    assert_eq!(web.skipped["marker"], "type is skipped");
    assert!(web.skipped["absent"].starts_with("condition counts as false: it reads `labels.absent`"), "{:?}", web.skipped);
    let db = fixture.node_output("db-2");
    assert_eq!(db.skipped["gold"], "condition is false: labels.tier == 'gold'");
    assert!(fixture.resolved_node("db-2").findings().iter().any(|finding| finding.code == "condition.failed"));
}

/// Documents 1 and 5 are the release and node db-2. With both roles, db-2 has both tasks, which wait for each other.
#[test]
fn resolve_lists_tasks_of_cycle_from_placement() {
    let tasks = json!([
        {"id": "app", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"]}]},
        {"id": "db", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"], "requires": ["app"]},
    ]);
    let mut documents = default_matching_site(&tasks);
    let fixture = FleetFixture::from_manifests(&documents);
    assert!(resolve_fleet(&fixture.fleet, &fixture.cache).is_ok());
    documents[5]["roles"] = json!(["web"]);
    // With policy `any`, a task waits only for the first node by name. Here the waiting node itself is the first.
    for policy in ["all", "any"] {
        documents[1]["tasks"][0]["cross_depends"][0]["policy"] = json!(policy);
        let fixture = FleetFixture::from_manifests(&documents);
        let errors = resolve_fleet(&fixture.fleet, &fixture.cache).expect_err("a cycle");
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
    let fixture = FleetFixture::from_manifests(&documents);
    let spare = fixture.node_output("spare");
    assert_eq!((spare.labels.len(), spare.tasks.len(), spare.task_digest), (1, 0, None));
    assert!(fixture.resolved_node("spare").group_path().is_none());
}

/// Document 7 is node web-1.
#[test]
fn effective_traits_exclude_suppressed_traits() {
    let mut documents = default_matching_site(&task_manifests());
    documents[7]["traits"] = json!(["CUSTOM_SET", "HW_CPU_X86_VMX"]);
    documents[7]["suppressed_traits"] = json!(["CUSTOM_SEEN_BY_HOST"]);
    let mut fixture = FleetFixture::from_manifests(&documents);
    let id = fixture.node("web-1").id();
    let traits = ["CUSTOM_SEEN_BY_HOST", "HW_CPU_X86_AVX2"].map(|name| Trait::new(name).expect("a trait"));
    let observation = Observation { traits: Arc::new(traits.into_iter().collect()), ..Observation::default() };
    fixture.fleet.apply(FleetChange::Observation(id, Arc::new(observation)));
    let web_traits = fixture.node_output("web-1").traits;
    assert_eq!(web_traits.iter().collect::<Vec<_>>(), ["CUSTOM_SET", "HW_CPU_X86_AVX2", "HW_CPU_X86_VMX"]);
    assert!(fixture.node_output("db-2").traits.is_empty());
}

/// Role `master` is reserved: it selects the node of that name, as in Fuel. In this test, no node has the name.
#[test]
fn fleet_output_lists_stages_order_and_master_tasks() {
    let tasks = json!([
        {"id": "begin", "type": "stage"},
        {"id": "keys", "type": "shell", "parameters": {"script": "true"}, "roles": ["master"], "requires": ["begin"]},
        {"id": "db", "type": "shell", "parameters": {"script": "true"}, "tags": ["mysql"], "cross_depends": [{"name": "keys", "role": "master"}]},
        {"id": "app", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"], "policy": "any"}]},
        {"id": "bye", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "phase": "cleanup", "requires": ["app"]},
    ]);
    let fixture = FleetFixture::from_manifests(&default_matching_site(&tasks));
    let fleet_output = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves");
    let output = serde_json::to_value(&fleet_output).expect("JSON");
    assert_eq!(output["stages"], json!(["begin"]));
    assert_eq!(
        output["order"],
        json!([
            [[null, "begin"], ["master", "keys"]],
            [["db-2", "db"], ["web-1", "app"]],
            [["master", "keys"], ["db-10", "db"]],
            [["master", "keys"], ["db-2", "db"]],
        ])
    );
    assert_eq!(output["nodes"]["master"]["tasks"], json!(["keys"]));
    assert_eq!(output["nodes"]["web-1"]["tasks"], json!(["app"]), "a task of phase cleanup is not among the tasks");
    assert_eq!(output["nodes"]["db-2"]["primary_tags"], json!(["mysql"]));
    assert!(fleet_output.findings.iter().any(|finding| finding.code == "master.absent"));
}

/// In a dependency, `role: '*'` selects the nodes with any role, as in a task's `roles`. The text `tags: '*'` selects
/// the nodes with any tag. Node db-2 has a role and no tag, and node `tagged` has a tag and no role.
/// Documents 1 and 5 are the release and db-2.
#[test]
fn w04_star_selects_nodes_with_any_role_or_any_tag() {
    let documents = |matching: &Value, mut dependency: Value| {
        dependency["name"] = "/first/".into();
        let tasks = json!([
            {"id": "first-by-role", "type": "shell", "parameters": {"script": "true"}, "roles": "*"},
            {"id": "first-by-tag", "type": "shell", "parameters": {"script": "true"}, "tags": "*"},
            {"id": "first-by-item", "type": "shell", "parameters": {"script": "true"}, "tags": ["*"]},
            {"id": "last", "type": "shell", "parameters": {"script": "true"}, "tags": ["late"], "cross_depends": [dependency]},
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
    for (matching, dependency, expected_nodes) in [
        (json!({}), json!({"role": "*"}), &["db-10", "db-2", "web-1"][..]),
        (json!({}), json!({"role": ["*"]}), &["db-10", "db-2", "web-1"]),
        (json!({}), json!({"tags": "*"}), &["db-10", "tagged", "web-1"]),
        (json!({}), json!({"tags": ["*"]}), &[]),
        (json!({}), json!({}), &["db-10", "db-2", "tagged", "web-1"]),
        (json!({"roles": "tags"}), json!({"role": "*"}), &["db-10", "tagged", "web-1"]),
    ] {
        let fixture = FleetFixture::from_manifests(&documents(&matching, dependency.clone()));
        let order = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").order;
        let awaited = order.into_iter().filter(|[_, (_, waiting_task)]| waiting_task == "last").filter_map(|[(node, _), _]| node);
        // A stage has no node. The tasks on the waiting node itself are left out.
        let awaited: BTreeSet<String> = awaited.filter(|node| node != "waits").collect();
        assert_eq!(awaited.iter().map(String::as_str).collect::<Vec<_>>(), expected_nodes, "{matching} {dependency}");
    }
    let fixture = FleetFixture::from_manifests(&documents(&json!({}), json!({})));
    for (node, tasks) in [("db-2", &["first-by-role"][..]), ("tagged", &["first-by-tag"])] {
        assert_eq!(fixture.node_output(node).tasks, tasks, "{node}");
    }
}

/// A stage comes after the stages that it depends on. If several stages can be next, the first by id is next. A
/// dependency through a task counts: `m-task` runs after `b-middle` and before `a-last`.
#[test]
fn w04_stages_are_ordered_by_dependency_then_id() {
    let tasks = json!([
        {"id": "a-last", "type": "stage"},
        {"id": "b-middle", "type": "stage", "requires": ["z-first"]},
        {"id": "c-beside", "type": "stage"},
        {"id": "m-task", "type": "shell", "parameters": {"script": "true"}, "tags": ["nginx"], "requires": ["b-middle"],
            "required_for": ["a-last"]},
        {"id": "z-first", "type": "stage"},
    ]);
    let fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &tasks));
    let stages = resolve_fleet(&fixture.fleet, &fixture.cache).expect("it resolves").stages;
    assert_eq!(stages, ["c-beside", "z-first", "b-middle", "a-last"]);
}

/// Returns a release, a template, a cluster with two groups, and a node in group `g`. Each level but group `empty`
/// provides labels, annotations and parameters with two keys: `at`, and the kind of the level in small letters.
fn level_objects() -> [Value; 6] {
    let level_maps = |level: &str| {
        let map = json!({"at": level, level: "1"});
        json!({"labels": map, "annotations": map, "parameters": map, "merge_labels": true})
    };
    let object = |kind: &str, fields: Value| {
        let mut object = json!({"kind": kind});
        let parts = [fields, level_maps(&kind.to_lowercase())].map(|part| part.as_object().expect("an object").clone());
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

/// Without the template, only the values that the node provides itself are certain. `keys` returns the keys of the
/// node's three maps, and the label keys that the node adds to those of its parent.
#[test]
fn node_maps_contain_own_values_when_parent_is_missing() {
    let mut fixture = FleetFixture::from_manifests(&level_objects());
    let keys = |fleet: &Fleet, id| {
        let view = fleet.node_view(id).expect("a node of the test");
        let labels: Vec<_> = view.labels().iter().map(|(key, _)| key.to_string()).collect();
        let annotations: Vec<_> = view.annotations().iter().map(|(key, _)| key.to_string()).collect();
        let parameters: Vec<_> = view.parameters().iter().map(|(key, _)| key.to_string()).collect();
        let added_keys = view.label_diff().map(|labels| labels.added.into_keys().map(|key| key.to_string()).collect());
        ([labels, annotations, parameters], added_keys)
    };
    let id = fixture.node("n").id();
    let all_keys = ["at", "cluster", "clustertemplate", "node", "nodegroup"].map(str::to_owned).to_vec();
    assert_eq!(keys(&fixture.fleet, id), (std::array::from_fn(|_| all_keys.clone()), Some(vec!["node".to_owned()])));
    let template = fixture.fleet.templates().next().expect("a template").meta.uuid;
    fixture.fleet.apply(FleetChange::RemoveTemplate(TemplateId(template)));
    let own_keys = ["at", "node"].map(str::to_owned).to_vec();
    assert_eq!(keys(&fixture.fleet, id), (std::array::from_fn(|_| own_keys.clone()), None));
    let resolution = resolve_node(&fixture.fleet, &fixture.cache, id);
    let findings = resolution.findings(fixture.node("n"));
    assert!(has_error(&findings));
    let expected_finding = format!("error node.incomplete node/n: its cluster template {template} is not there");
    assert_eq!(findings.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected_finding]);
    assert_eq!(resolution.unusable_reason(), Some(format!("its cluster template {template} is not there")));
}

/// A role table has the roles and tags of a release, with the changes that the cluster makes to them.
#[test]
fn cluster_release_and_role_table_equal_values_of_group() {
    let fixture = FleetFixture::from_manifests(&level_objects());
    let resolved = fixture.fleet.resolved_group(fixture.node("n").spec.nodegroup.expect("a group")).expect("nothing is missing");
    assert_eq!(fixture.fleet.cluster_release(&resolved.cluster), resolved.release.as_ref().map(|release| &release.value.name));
    assert_eq!(Some(fixture.fleet.role_table(&resolved.cluster)), resolved.role_table.as_deref().cloned());
    assert!(fixture.fleet.role_table(&resolved.cluster).tags().any(|(name, _)| name.as_str() == "own"));
}

/// A release may concern every group. A template concerns the groups of its clusters, and a cluster its own groups.
#[test]
fn groups_below_and_cluster_of_object_depend_on_kind() {
    let fixture = FleetFixture::from_manifests(&level_objects());
    let fleet = &fixture.fleet;
    let cluster = fleet.clusters().next().expect("a cluster").meta.uuid;
    let template = fleet.templates().next().expect("a template").meta.uuid;
    let node = fixture.node("n");
    let group = node.spec.nodegroup.expect("a group");
    let all_groups: BTreeSet<GroupId> = fleet.groups_in_cluster(ClusterId(cluster)).collect();
    assert_eq!(all_groups.len(), 2);
    let (node_group, no_groups) = (BTreeSet::from([group]), BTreeSet::new());
    for (kind, uuid, expected_groups, expected_cluster) in [
        (Kind::Release, Uuid::nil(), &all_groups, None),
        (Kind::ReleaseTags, Uuid::nil(), &all_groups, None),
        (Kind::ClusterTemplate, template, &all_groups, None),
        (Kind::ClusterTemplate, Uuid::nil(), &no_groups, None),
        (Kind::Cluster, cluster, &all_groups, Some(ClusterId(cluster))),
        (Kind::NodeGroup, group.0, &node_group, Some(ClusterId(cluster))),
        (Kind::Node, node.meta.uuid, &no_groups, Some(ClusterId(cluster))),
        (Kind::Principal, Uuid::nil(), &no_groups, None),
    ] {
        assert_eq!(fleet.groups_below(kind, uuid).into_iter().collect::<BTreeSet<_>>(), *expected_groups, "{kind}");
        assert_eq!(fleet.cluster_of_object(kind, uuid), expected_cluster, "{kind}");
    }
}

/// The end of the hold is in seconds, and the time of the check is in milliseconds.
#[test]
fn host_hold_is_reported_until_end() {
    let mut fixture = FleetFixture::from_manifests(&level_objects());
    let id = fixture.node("n").id();
    for (until_s, now_ms, is_reported) in [(5, 4_999, true), (5, 5_000, false), (5, 9_000, false), (u64::MAX, 9_000, true)] {
        let state = ReportedState { hold: Some((until_s, "a disk".into())), ..ReportedState::default() };
        fixture.fleet.apply(FleetChange::ReportedState(id, Some(Arc::new(state))));
        let findings: Vec<_> =
            fixture.resolved_node("n").host_findings(Timestamp(now_ms)).iter().map(ToString::to_string).collect();
        let hold_finding = "info host.held node/n: it is held on its host (a disk): it keeps its task set";
        assert_eq!(findings == [hold_finding], is_reported, "{until_s} s at {now_ms} ms: {findings:?}");
    }
}
