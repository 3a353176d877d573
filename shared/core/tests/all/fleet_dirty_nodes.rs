//! Which nodes a change marks dirty, and which get a new output.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::NodeName;
use stemma_core::object::{ClusterId, FactMap, Node, NodeGroup, NodeId, Observation, ReportedLabel, ReportedState, Timestamp};
use stemma_core::requirement::Requirement;
use stemma_core::resolve::ResolveCache;

use crate::fleet_fixture::{
    FleetFixture, build_objects, default_matching_site, file_manifest, release_manifest, site_manifests, task_manifests,
    to_changes,
};

#[test]
fn change_marks_affected_nodes_dirty() {
    let tasks = json!([
        file_manifest("ntp", "nginx", "{{ labels.ntp }}"),
        file_manifest("size", "mysql", "{{ params.size }}"),
        file_manifest("peers", "nginx", "{% for n in nodes(tag='mysql') %}{{ n.address }}{% endfor %}"),
        file_manifest("leader", "nginx", "{{ primary('mysql').name }}"),
    ]);
    let base = default_matching_site(&tasks);
    let with = |at: usize, field: &str, value: Value| {
        let mut documents = base.clone();
        documents[at][field] = value;
        documents
    };
    for (what, documents, expected) in [
        ("nothing", base.clone(), &[][..]),
        ("a label of all", with(0, "labels", json!({"ntp": "b", "tier": "std"})), &["db-10", "db-2", "web-1"]),
        ("a label that a group overrides", with(0, "labels", json!({"ntp": "a", "tier": "x"})), &["db-10", "db-2"]),
        ("a parameter that only databases read", with(2, "parameters", json!({"size": 4})), &["db-10", "db-2"]),
        ("a parameter that nobody reads", with(2, "parameters", json!({"other": 4})), &[]),
        ("a description", with(2, "description", json!("x")), &[]),
        ("a group's mode", with(4, "mode", json!("noop")), &["web-1"]),
        ("a node's own label", with(6, "labels", json!({"rack": "r1"})), &["db-10"]),
        ("a node's tag, which others look up", with(7, "tags", json!({"assigned": ["mysql"]})), &["web-1"]),
    ] {
        let mut fixture = FleetFixture::from_manifests(&base);
        let dirty = fixture.fleet.apply_all(to_changes(build_objects(&documents)));
        assert_eq!(fixture.node_names(&dirty), expected, "{what}");
        let fresh = FleetFixture::from_manifests(&documents);
        assert_eq!(fixture.digests(), fresh.digests(), "{what}: with memory and without");
    }
}

#[test]
fn annotation_marks_inheriting_nodes_dirty() {
    let (template, cluster, dbs, webs) = (0, 2, 3, 4);
    let mut base = site_manifests(&json!({}), &task_manifests());
    base[6]["annotations"] = json!({"owner": "own"});
    base[7]["annotations"] = json!({"owner": null});
    for (level, key, expected) in [
        (template, "note", &["db-10", "db-2", "web-1"][..]),
        (template, "owner", &["db-2"]),
        (cluster, "note", &["db-10", "db-2", "web-1"]),
        (cluster, "owner", &["db-2"]),
        (dbs, "note", &["db-10", "db-2"]),
        (dbs, "owner", &["db-2"]),
        (webs, "note", &["web-1"]),
        (webs, "owner", &[]),
    ] {
        let mut documents = base.clone();
        documents[level]["annotations"] = json!({key: "above"});
        let mut fixture = FleetFixture::from_manifests(&base);
        assert_eq!(fixture.apply(&documents), expected, "{key} of {}", base[level]["name"]);
        let fresh = FleetFixture::from_manifests(&documents);
        for name in ["db-10", "db-2", "web-1"] {
            let annotations = fixture.node_output(name).annotations;
            assert_eq!(annotations, fresh.node_output(name).annotations, "{name}");
            assert_eq!(annotations.get(key).is_some_and(|value| value == "above"), expected.contains(&name), "{name}");
        }
    }
}

/// Each node reads a map of labels, and most have the same map as their group. Regression: after a change of
/// the map, each node held a map of its own, as large as the group's.
#[test]
fn x03_f07_changed_label_map_stays_shared_by_group() {
    let tasks = json!([file_manifest("map", "mysql", "{{ labels_with_prefix('a/') | length }}")]);
    let mut documents = default_matching_site(&tasks);
    documents[5]["labels"] = json!({"a/own": "x"});
    let mut fixture = FleetFixture::from_manifests(&documents);
    for value in ["1", "2", "3"] {
        documents[3]["labels"] = json!({"a/of-group": value});
        fixture.apply(&documents);
        for (name, own_count, labels) in
            [("db-10", 0, json!({"a/of-group": value})), ("db-2", 1, json!({"a/of-group": value, "a/own": "x"}))]
        {
            let node = fixture.resolved_node(name);
            let set = node.task_set().expect("a task set");
            let inputs = serde_json::to_value(set.inputs()).expect("JSON");
            assert_eq!(inputs, json!({"labels_with_prefix('a/')": {"value": labels}}), "{name}");
            assert_eq!(set.own_inputs().count(), own_count, "{name} at {value}");
        }
    }
}

#[test]
fn report_marks_nodes_with_lookup_dirty() {
    let tasks = json!([
        file_manifest("peers", "nginx", "{% for n in nodes(tag='mysql') %}{{ n.address }}{% endfor %}"),
        file_manifest("own", "mysql", "{{ facts.os.id }}"),
    ]);
    let mut fixture = FleetFixture::from_manifests(&default_matching_site(&tasks));
    let observation = |facts: Value| {
        let facts = FactMap::from_tree(facts.as_object().expect("facts"));
        Arc::new(Observation { facts, ..Observation::default() })
    };
    for (facts, expected) in [
        (json!({"network": {"address": "10.0.0.2"}}), &["web-1"][..]),
        (json!({"network": {"address": "10.0.0.2"}}), &[]),
        (json!({"network": {"address": "10.0.0.2"}, "os": {"id": "debian"}}), &["db-2"]),
        (json!({"network": {"address": "not an address"}, "os": {"id": "debian"}}), &["web-1"]),
        (json!({"network": {"address": "10.0.0.3"}, "os": {"id": "debian"}, "timezone": "UTC"}), &["web-1"]),
    ] {
        let dirty = fixture.fleet.apply(FleetChange::Observation(fixture.node("db-2").id(), observation(facts.clone())));
        assert_eq!(fixture.node_names(&dirty), expected, "{facts}");
    }
    let node = fixture.resolved_node("web-1");
    let set = node.task_set().expect("a task set");
    assert_eq!(
        serde_json::to_value(set.inputs()).expect("JSON"),
        json!({"nodes(tag='mysql'){address}": {"value": [{"address": "10.0.0.3"}, {}]}})
    );
}

#[test]
fn unread_label_changes_no_digest() {
    let tasks = json!([file_manifest("ntp", "nginx", "{{ labels.ntp }}")]);
    let base = default_matching_site(&tasks);
    let digest = |labels: Value| {
        let mut documents = base.clone();
        documents[0]["labels"] = labels;
        FleetFixture::from_manifests(&documents).node_output("web-1").task_digest
    };
    assert_eq!(digest(json!({"ntp": "a", "x": "1"})), digest(json!({"ntp": "a", "x": "2"})));
    assert_ne!(digest(json!({"ntp": "a"})), digest(json!({"ntp": "b"})));
    assert_ne!(digest(json!({"ntp": ""})), digest(json!({})), "absent is an input of its own");
}

/// A label that no task reads causes a new merge for each group below. Regression: the conditions of all nodes were
/// then evaluated again.
#[test]
fn x03_f06_unread_value_causes_no_recomputation() {
    let conditional = json!({"id": "c", "type": "shell", "tags": ["nginx"], "condition": "labels.own == 'x'", "parameters": {"script": "true"}});
    let tasks = json!([file_manifest("ntp", "nginx", "{{ labels.ntp }} {{ node.name }}"), conditional]);
    let mut documents = default_matching_site(&tasks);
    documents[0]["labels"] = json!({"ntp": "a", "x": "1"});
    let mut fixture = FleetFixture::from_manifests(&documents);
    let set = |fixture: &FleetFixture| Arc::clone(fixture.resolved_node("web-1").task_set().expect("it is placed"));
    let before = set(&fixture);
    for (labels, is_same) in [
        (json!({"ntp": "a", "x": "2"}), true),
        (json!({"ntp": "a"}), true),
        (json!({"ntp": "b"}), false),
        (json!({"ntp": "b", "own": "x"}), false),
    ] {
        documents[0]["labels"] = labels.clone();
        let change = to_changes(build_objects(&documents)).into_iter().find(|change| matches!(change, FleetChange::Template(_)));
        drop(fixture.fleet.apply(change.expect("the template")));
        assert_eq!(Arc::ptr_eq(&set(&fixture), &before), is_same, "{labels}");
        assert_eq!(
            set(&fixture).digest,
            FleetFixture::from_manifests(&documents).resolved_node("web-1").task_set().expect("it is placed").digest
        );
    }
}

#[test]
fn moved_node_releases_primaries() {
    let mut documents = default_matching_site(&task_manifests());
    documents.push(json!({"kind": "Cluster", "name": "lab", "cluster_template": "base"}));
    documents.push(json!({"kind": "NodeGroup", "cluster": "lab", "name": "dbs", "roles": ["db"]}));
    let mut fixture = FleetFixture::from_manifests(&documents);
    documents[5]["nodegroup"] = json!("lab/dbs");
    let moved = to_changes(build_objects(&documents))
        .into_iter()
        .find(|change| matches!(change, FleetChange::Node(node) if node.display_name() == "db-2"));
    let dirty = fixture.fleet.apply(moved.expect("the node"));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert_eq!(fixture.node_output("db-10").primary_tags.len(), 1);
    assert_eq!(fixture.node_output("db-2").primary_tags.len(), 1, "it is the first of its new cluster");
}

/// A look-up is a list in the order of the node names, even if it reads no name.
#[test]
fn renamed_node_changes_position_in_lookup() {
    let zones = json!({"id": "zones", "type": "file", "tags": ["nginx"], "parameters": {
        "path": "/zones", "template": "{% for n in nodes(tag='mysql') %}{{ n.labels.zone }} {% endfor %}",
    }});
    let mut documents = site_manifests(&json!({}), &json!([zones]));
    documents[5]["labels"] = json!({"zone": "east"});
    documents[6]["labels"] = json!({"zone": "west"});
    let mut fixture = FleetFixture::from_manifests(&documents);
    let before = fixture.node_output("web-1").task_digest;
    let mut node = Node::clone(fixture.node("db-2"));
    node.meta.name = Some(NodeName::new("db-20").expect("a name"));
    let dirty = fixture.fleet.apply(FleetChange::Node(Arc::new(node)));
    assert!(fixture.node_names(&dirty).contains(&"web-1".to_owned()));
    let after = fixture.node_output("web-1").task_digest;
    assert_ne!(before, after);
    let mut fresh = Fleet::new();
    fresh.apply_all(to_changes(build_objects(&documents)).into_iter().filter(|one| !matches!(one, FleetChange::Node(_))));
    fresh.apply_all(fixture.fleet.nodes().cloned().map(FleetChange::Node));
    fresh.set_loaded();
    let fresh = FleetFixture { fleet: fresh, cache: ResolveCache::new() };
    assert_eq!(after, fresh.node_output("web-1").task_digest, "as at a start");
}

#[test]
fn node_parked_on_host_is_excluded_from_primaries_and_barriers() {
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let id = fixture.node("db-2").id();
    let parked = ReportedState { parked: Some("re\npair".into()), ..ReportedState::default() };
    let dirty = fixture.fleet.apply(FleetChange::ReportedState(id, Some(Arc::new(parked))));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert!(fixture.node_output("db-2").primary_tags.is_empty());
    assert_eq!(fixture.node_output("db-10").primary_tags.len(), 1);
    assert!(!fixture.fleet.counts_for_barriers(id) && !fixture.resolved_node("db-2").is_parked(), "its spec says nothing");
    let found = fixture.resolved_node("db-2").host_findings(Timestamp(0));
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["info host.parked node/db-2: it is parked on its host (re\\npair): barriers pass it over"]
    );
    let paused = ReportedState { paused: true, ..ReportedState::default() };
    let dirty = fixture.fleet.apply(FleetChange::ReportedState(id, Some(Arc::new(paused))));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert!(fixture.fleet.counts_for_barriers(id), "what is paused is waited for");
    assert_eq!(fixture.node_output("db-2").primary_tags.len(), 1);
    let dirty = fixture.fleet.apply(FleetChange::ReportedState(id, None));
    assert_eq!(fixture.node_names(&dirty), ["db-2"], "who holds the tag stays as it is");
    assert!(fixture.resolved_node("db-2").host_findings(Timestamp(0)).is_empty());
}

/// The released task set is recorded under the release name that the node's levels provide, so these nodes must be
/// reconciled.
#[test]
fn w01_release_with_same_content_marks_nodes_dirty() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    let mut twin = documents[1].clone();
    twin["version"] = "2".into();
    documents.insert(1, twin);
    let mut fixture = FleetFixture::from_manifests(&documents);
    let digests = fixture.digests();
    documents[4]["release"] = "site@2".into();
    assert_eq!(fixture.apply(&documents), ["db-10", "db-2"]);
    let name = |node: &str| fixture.resolved_node(node).release().map(|release| release.name.to_string());
    assert_eq!((name("db-2"), name("web-1")), (Some("site@2".into()), Some("site@1".into())));
    assert_eq!(fixture.digests(), digests, "they run the same");
}

#[test]
fn w03_parameter_change_rechecks_requirement() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents[2]["parameters"] = json!({"size": 1});
    documents[3]["requirements"] = json!({"param:size": ">= 2"});
    let mut fixture = FleetFixture::from_manifests(&documents);
    assert_eq!(fixture.resolved_node("db-2").unmet_requirements().len(), 1);
    documents[2]["parameters"] = json!({"size": 2});
    assert_eq!(fixture.apply(&documents), ["db-10", "db-2"], "no task reads it, and the group of web-1 asks for nothing");
    assert!(fixture.resolved_node("db-2").unmet_requirements().is_empty());
}

#[test]
fn w03_host_label_fills_no_key_decided_by_level_without_merge() {
    for set in [json!({"z": "set"}), json!({"z": null})] {
        let mut documents = site_manifests(&json!({}), &task_manifests());
        documents[3]["host_labels"] = json!({"accept": ["z"]});
        documents[5]["merge_labels"] = json!(false);
        documents[5]["labels"] = json!({"own": "1"});
        let mut fixture = FleetFixture::from_manifests(&documents);
        let label = ReportedLabel { key: "z".into(), value: "host".into(), source: "f:1".into() };
        let observation = Observation { labels: [label].into_iter().collect(), ..Observation::default() };
        fixture.fleet.apply(FleetChange::Observation(fixture.node("db-2").id(), Arc::new(observation)));
        assert_eq!(fixture.node_output("db-2").labels.get("z").map(String::as_str), Some("host"));
        documents[0]["labels"] = set;
        let reached = fixture.apply(&documents);
        assert!(reached.contains(&"db-2".to_owned()), "{reached:?}");
        assert_eq!(fixture.node_output("db-2").labels.get("z"), None);
    }
}

#[test]
fn group_moved_to_another_cluster_is_placed_there() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents.push(json!({"kind": "Cluster", "name": "lab", "cluster_template": "base"}));
    let mut fixture = FleetFixture::from_manifests(&documents);
    let id = fixture.node("db-2").spec.nodegroup.expect("a group");
    let mut group = NodeGroup::clone(fixture.fleet.group(id).expect("the group"));
    let home = group.spec.cluster;
    let mut clusters = fixture.fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid));
    let lab = clusters.find(|id| *id != home).expect("the other cluster");
    drop(clusters);
    group.spec.cluster = lab;
    let dirty = fixture.fleet.apply(FleetChange::NodeGroup(Arc::new(group)));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert_eq!(fixture.node_output("db-2").primary_tags.len(), 1);
    assert_eq!(fixture.node_output("db-10").tasks, ["by-empty-tags", "by-role", "every", "server"]);
    assert_eq!((fixture.fleet.holders(home).count(), fixture.fleet.holders(lab).count()), (0, 1));
}

#[test]
fn w10_05_condition_limit_change_marks_nodes_dirty() {
    let tasks = json!([{
        "id": "zone", "type": "shell", "roles": ["web"], "parameters": {"script": "true"},
        "condition": "nodes(role='web').exists(n, n.name == 'nobody' && n.labels.zone == labels.zone)",
    }]);
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "prod/web", "labels": {"zone": format!("zone-{n:040}")}});
    let mut documents = vec![
        release_manifest(&json!({}), &tasks),
        json!({"kind": "Cluster", "name": "prod", "release": "site@1"}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"]}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "spare"}),
    ];
    documents.extend((0..1024).map(node));
    let mut fixture = FleetFixture::from_manifests(&documents);
    let skipped = |fixture: &FleetFixture| fixture.node_output("n1").skipped.len();
    assert_eq!(skipped(&fixture), 1);
    let fresh = FleetFixture { fleet: fixture.fleet.clone(), cache: ResolveCache::new() };
    assert_eq!(fresh.node_output("n1"), fixture.node_output("n1"), "memory changes no answer");

    // Nodes of no cluster do not count. Nodes of the cluster count, even if no look-up finds them.
    assert_eq!(fixture.apply(&[json!({"kind": "Node", "name": "apart"})]), ["apart"]);
    let spare = |n: usize| {
        let node = json!({"kind": "Node", "name": format!("m{n}"), "nodegroup": "prod/spare"});
        [&documents[..4], &[node]].concat()
    };
    assert_eq!(fixture.apply(&spare(0)).len(), 1025, "all that look nodes up, at a power of two");
    assert_eq!(fixture.apply(&spare(1)), ["m1"]);
    assert_eq!(skipped(&fixture), 1);
    let few = FleetFixture::from_manifests(&documents[..300]);
    assert!(few.resolved_node("n1").findings().iter().all(|finding| finding.code != "condition.failed"), "300 nodes are few");
}

#[test]
fn x04_f06_condition_limit_changes_only_in_growing_cluster() {
    let tasks = json!([{
        "id": "zone", "type": "shell", "roles": ["web"], "parameters": {"script": "true"},
        "condition": "labels.zone == 'x'",
    }]);
    let cluster = |name: &str| {
        [
            json!({"kind": "Cluster", "name": name, "release": "site@1"}),
            json!({"kind": "NodeGroup", "cluster": name, "name": "g", "roles": ["web"]}),
        ]
    };
    let node = |cluster: &str, n: usize| json!({"kind": "Node", "name": format!("{cluster}{n:02}"), "nodegroup": format!("{cluster}/g"), "labels": {"zone": "x"}});
    let above = [vec![release_manifest(&json!({}), &tasks)], cluster("a").to_vec(), cluster("b").to_vec()].concat();
    let nodes = ["a", "b"].into_iter().flat_map(|cluster| (0..16).map(move |n| node(cluster, n)));
    let mut fixture = FleetFixture::from_manifests(&above.iter().cloned().chain(nodes).collect::<Vec<_>>());

    let with = |more: &[Value]| [&above[..], more].concat();
    let reached = fixture.apply(&with(&[node("a", 16)]));
    assert_eq!(reached.len(), 17, "{reached:?}");
    let is_of_a = |name: &String| name.starts_with('a');
    assert!(reached.iter().all(is_of_a), "those of the other cluster may take what they might: {reached:?}");
    assert_eq!(fixture.apply(&with(&[node("a", 17)])), ["a17"]);

    // Only fleet admins create clusters. A third cluster with a node reduces the limit of all.
    assert_eq!(fixture.apply(&with(&cluster("c"))), Vec::<String>::new(), "one without nodes does not count");
    let third = [cluster("c").to_vec(), vec![node("c", 0)]].concat();
    assert_eq!(fixture.apply(&with(&third)).len(), 18 + 16 + 1, "what all may take has changed");
    assert_eq!(fixture.apply(&with(&[cluster("c").to_vec(), vec![node("c", 1)]].concat())), ["c01"]);
    let fresh = FleetFixture { fleet: fixture.fleet.clone(), cache: ResolveCache::new() };
    assert_eq!(fresh.digests(), fixture.digests(), "memory changes no answer");
}

#[test]
fn reported_label_fills_nothing_when_value_is_invalid() {
    let documents = |at: &str| {
        let group = json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": {"free": at}, "host_labels": {"accept": ["free"]}});
        let node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "labels": {"own": "1"}, "merge_labels": false});
        [json!({"kind": "Cluster", "name": "c"}), group, node]
    };
    for (value, is_dirty) in [("x", true), ("x\n", false)] {
        let mut fixture = FleetFixture::from_manifests(&documents("1"));
        let label = ReportedLabel { key: "free".into(), value: value.into(), source: "test".into() };
        let id = fixture.node("n").id();
        let observation = Observation { labels: [label].into_iter().collect(), ..Observation::default() };
        fixture.fleet.apply(FleetChange::Observation(id, Arc::new(observation)));
        assert_eq!(fixture.apply(&documents("2")[..2]) == ["n"], is_dirty);
    }
}

/// If a label has more than 1,024 values, a comparison must scan all nodes. A requirement that names values still uses
/// the index.
#[test]
fn requirement_with_values_uses_index_for_any_number() {
    let node =
        |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "labels": {"rack": format!("r{n}")}});
    let mut documents = vec![json!({"kind": "Cluster", "name": "c"}), json!({"kind": "NodeGroup", "cluster": "c", "name": "g"})];
    documents.extend((0..1025).map(node));
    let mut fixture = FleetFixture::from_manifests(&documents);
    let order: Vec<NodeId> = fixture.fleet.nodes().map(|node| node.id()).collect();
    fixture.fleet.build_index(order);
    let count_matches = |text: &str| {
        let set = fixture.fleet.requirement_set(&Requirement::parse(text).expect("a requirement"));
        fixture.fleet.walk(set, None, false).expect("an index").count()
    };
    assert_eq!((count_matches("rack r7"), count_matches("rack <or> r7 <or> r8"), count_matches("rack >= 7")), (1, 2, 1025));
}
