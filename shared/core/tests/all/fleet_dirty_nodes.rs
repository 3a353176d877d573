//! The nodes that a change marks dirty (to be resolved again), and the nodes whose desired state then differs.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::NodeName;
use stemma_core::object::{ClusterId, FactMap, Node, NodeGroup, NodeId, Observation, ReportedLabel, ReportedState, Timestamp};
use stemma_core::requirement::Requirement;
use stemma_core::resolve::ResolveCache;

use crate::fleet_fixture::{
    FleetFixture, build_objects, default_matching_site, etc_file_task, release_manifest, site_manifests, task_manifests,
    to_changes,
};

/// The first argument of `site_with` is the index of a document: 0 is the template, 2 the cluster, 4 the group of
/// web-1, 6 db-10 and 7 web-1.
#[test]
fn change_marks_affected_nodes_dirty() {
    let tasks = json!([
        etc_file_task("ntp", "nginx", "{{ labels.ntp }}"),
        etc_file_task("size", "mysql", "{{ params.size }}"),
        etc_file_task("peers", "nginx", "{% for n in nodes(tag='mysql') %}{{ n.address }}{% endfor %}"),
        etc_file_task("leader", "nginx", "{{ primary('mysql').name }}"),
    ]);
    let base = default_matching_site(&tasks);
    let site_with = |index: usize, field: &str, value: Value| {
        let mut documents = base.clone();
        documents[index][field] = value;
        documents
    };
    for (change, documents, expected) in [
        ("nothing", base.clone(), &[][..]),
        (
            "a label that all nodes inherit",
            site_with(0, "labels", json!({"ntp": "b", "tier": "std"})),
            &["db-10", "db-2", "web-1"],
        ),
        ("a label that a group overrides", site_with(0, "labels", json!({"ntp": "a", "tier": "x"})), &["db-10", "db-2"]),
        ("a parameter that only databases read", site_with(2, "parameters", json!({"size": 4})), &["db-10", "db-2"]),
        ("a parameter that nobody reads", site_with(2, "parameters", json!({"other": 4})), &[]),
        ("a description", site_with(2, "description", json!("x")), &[]),
        ("a group's mode", site_with(4, "mode", json!("noop")), &["web-1"]),
        ("a node's own label", site_with(6, "labels", json!({"rack": "r1"})), &["db-10"]),
        ("a node's tag, which others look up", site_with(7, "tags", json!({"assigned": ["mysql"]})), &["web-1"]),
    ] {
        let mut fixture = FleetFixture::from_manifests(&base);
        let dirty = fixture.fleet.apply_all(to_changes(build_objects(&documents)));
        assert_eq!(fixture.node_names(&dirty), expected, "{change}");
        let fresh = FleetFixture::from_manifests(&documents);
        assert_eq!(fixture.digests(), fresh.digests(), "{change}: the cache changes no result");
    }
}

/// Document 6 is db-10, which provides the annotation `owner`. Document 7 is web-1, which has a tombstone for it. So of
/// the nodes only db-2 inherits `owner`.
#[test]
fn annotation_marks_inheriting_nodes_dirty() {
    let (template, cluster, dbs_group, webs_group) = (0, 2, 3, 4);
    let mut base = site_manifests(&json!({}), &task_manifests());
    base[6]["annotations"] = json!({"owner": "own"});
    base[7]["annotations"] = json!({"owner": null});
    for (level, key, expected) in [
        (template, "note", &["db-10", "db-2", "web-1"][..]),
        (template, "owner", &["db-2"]),
        (cluster, "note", &["db-10", "db-2", "web-1"]),
        (cluster, "owner", &["db-2"]),
        (dbs_group, "note", &["db-10", "db-2"]),
        (dbs_group, "owner", &["db-2"]),
        (webs_group, "note", &["web-1"]),
        (webs_group, "owner", &[]),
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

/// The input of the task is a map of labels. A node shares the map of its group if its own map is equal. Regression:
/// after a change of the map, each node had a copy of its own.
/// Documents 3 and 5 are the group `dbs` and its node db-2. The method `own_inputs` returns the inputs that are not
/// shared.
#[test]
fn x03_f07_changed_label_map_stays_shared_by_group() {
    let tasks = json!([etc_file_task("map", "mysql", "{{ labels_with_prefix('a/') | length }}")]);
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
            let task_set = node.task_set().expect("a task set");
            let inputs = serde_json::to_value(task_set.inputs()).expect("JSON");
            assert_eq!(inputs, json!({"labels_with_prefix('a/')": {"value": labels}}), "{name}");
            assert_eq!(task_set.own_inputs().count(), own_count, "{name} at {value}");
        }
    }
}

/// The task of web-1 looks up the addresses of the databases. The task of a database reads a fact of its own host. The
/// reports are all of host db-2.
#[test]
fn report_marks_nodes_with_lookup_dirty() {
    let tasks = json!([
        etc_file_task("peers", "nginx", "{% for n in nodes(tag='mysql') %}{{ n.address }}{% endfor %}"),
        etc_file_task("own", "mysql", "{{ facts.os.id }}"),
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
    let task_set = node.task_set().expect("a task set");
    // The empty item is db-10, which has reported no address.
    assert_eq!(
        serde_json::to_value(task_set.inputs()).expect("JSON"),
        json!({"nodes(tag='mysql'){address}": {"value": [{"address": "10.0.0.3"}, {}]}})
    );
}

/// The only task reads label `ntp`. Document 0 is the cluster template.
#[test]
fn unread_label_changes_no_digest() {
    let tasks = json!([etc_file_task("ntp", "nginx", "{{ labels.ntp }}")]);
    let base = default_matching_site(&tasks);
    let digest = |labels: Value| {
        let mut documents = base.clone();
        documents[0]["labels"] = labels;
        FleetFixture::from_manifests(&documents).node_output("web-1").task_digest
    };
    assert_eq!(digest(json!({"ntp": "a", "x": "1"})), digest(json!({"ntp": "a", "x": "2"})));
    assert_ne!(digest(json!({"ntp": "a"})), digest(json!({"ntp": "b"})));
    assert_ne!(digest(json!({"ntp": ""})), digest(json!({})), "an absent label differs from an empty one");
}

/// A changed label of the template is merged again into each group below. Regression: the conditions of all nodes were
/// then evaluated again, even if no task reads the label. Document 0 is the template. Equal pointers show that the task
/// set was not computed again.
#[test]
fn x03_f06_unread_value_causes_no_recomputation() {
    let conditional = json!({"id": "c", "type": "shell", "tags": ["nginx"], "condition": "labels.own == 'x'", "parameters": {"script": "true"}});
    let tasks = json!([etc_file_task("ntp", "nginx", "{{ labels.ntp }} {{ node.name }}"), conditional]);
    let mut documents = default_matching_site(&tasks);
    documents[0]["labels"] = json!({"ntp": "a", "x": "1"});
    let mut fixture = FleetFixture::from_manifests(&documents);
    let task_set = |fixture: &FleetFixture| Arc::clone(fixture.resolved_node("web-1").task_set().expect("it is placed"));
    let first_task_set = task_set(&fixture);
    for (labels, is_same) in [
        (json!({"ntp": "a", "x": "2"}), true),
        (json!({"ntp": "a"}), true),
        (json!({"ntp": "b"}), false),
        (json!({"ntp": "b", "own": "x"}), false),
    ] {
        documents[0]["labels"] = labels.clone();
        let change = to_changes(build_objects(&documents)).into_iter().find(|change| matches!(change, FleetChange::Template(_)));
        drop(fixture.fleet.apply(change.expect("the template")));
        assert_eq!(Arc::ptr_eq(&task_set(&fixture), &first_task_set), is_same, "{labels}");
        assert_eq!(
            task_set(&fixture).digest,
            FleetFixture::from_manifests(&documents).resolved_node("web-1").task_set().expect("it is placed").digest
        );
    }
}

/// Document 5 is node db-2. Before it moves to cluster `lab`, it is the primary of tag `mysql` in its cluster.
#[test]
fn moved_node_releases_primaries() {
    let mut documents = default_matching_site(&task_manifests());
    documents.push(json!({"kind": "Cluster", "name": "lab", "cluster_template": "base"}));
    documents.push(json!({"kind": "NodeGroup", "cluster": "lab", "name": "dbs", "roles": ["db"]}));
    let mut fixture = FleetFixture::from_manifests(&documents);
    documents[5]["nodegroup"] = json!("lab/dbs");
    let node_change = to_changes(build_objects(&documents))
        .into_iter()
        .find(|change| matches!(change, FleetChange::Node(node) if node.display_name() == "db-2"));
    let dirty = fixture.fleet.apply(node_change.expect("the node"));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert_eq!(fixture.node_output("db-10").primary_tags.len(), 1);
    assert_eq!(fixture.node_output("db-2").primary_tags.len(), 1, "db-2 is the first node with the tag in its new cluster");
}

/// A look-up lists nodes in the order of their names, even if the template reads no name. Documents 5 and 6 are db-2
/// and db-10.
#[test]
fn renamed_node_changes_position_in_lookup() {
    let zones = json!({"id": "zones", "type": "file", "tags": ["nginx"], "parameters": {
        "path": "/zones", "template": "{% for n in nodes(tag='mysql') %}{{ n.labels.zone }} {% endfor %}",
    }});
    let mut documents = site_manifests(&json!({}), &json!([zones]));
    documents[5]["labels"] = json!({"zone": "east"});
    documents[6]["labels"] = json!({"zone": "west"});
    let mut fixture = FleetFixture::from_manifests(&documents);
    let old_digest = fixture.node_output("web-1").task_digest;
    let mut node = Node::clone(fixture.node("db-2"));
    node.meta.name = Some(NodeName::new("db-20").expect("a name"));
    let dirty = fixture.fleet.apply(FleetChange::Node(Arc::new(node)));
    assert!(fixture.node_names(&dirty).contains(&"web-1".to_owned()));
    let new_digest = fixture.node_output("web-1").task_digest;
    assert_ne!(old_digest, new_digest);
    let mut fresh = Fleet::new();
    fresh.apply_all(to_changes(build_objects(&documents)).into_iter().filter(|change| !matches!(change, FleetChange::Node(_))));
    fresh.apply_all(fixture.fleet.nodes().cloned().map(FleetChange::Node));
    fresh.set_loaded();
    let fresh = FleetFixture { fleet: fresh, cache: ResolveCache::new() };
    assert_eq!(new_digest, fresh.node_output("web-1").task_digest, "a newly built fleet gives the same digest");
}

/// Root can park or pause a node on its host. Other nodes wait for the tasks of a paused node, but not for those of a
/// parked one. In this test, no choice of a primary is stored, so a node that is parked does not remain primary.
#[test]
fn node_parked_on_host_is_excluded_from_primaries_and_barriers() {
    let mut fixture = FleetFixture::from_manifests(&site_manifests(&json!({}), &task_manifests()));
    let id = fixture.node("db-2").id();
    let parked = ReportedState { parked: Some("re\npair".into()), ..ReportedState::default() };
    let dirty = fixture.fleet.apply(FleetChange::ReportedState(id, Some(Arc::new(parked))));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert!(fixture.node_output("db-2").primary_tags.is_empty());
    assert_eq!(fixture.node_output("db-10").primary_tags.len(), 1);
    assert!(!fixture.fleet.counts_for_barriers(id) && !fixture.resolved_node("db-2").is_parked(), "its spec is not parked");
    let findings = fixture.resolved_node("db-2").host_findings(Timestamp(0));
    assert_eq!(
        findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["info host.parked node/db-2: it is parked on its host (re\\npair): barriers do not wait for it"]
    );
    let paused = ReportedState { paused: true, ..ReportedState::default() };
    let dirty = fixture.fleet.apply(FleetChange::ReportedState(id, Some(Arc::new(paused))));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert!(fixture.fleet.counts_for_barriers(id), "other nodes wait for a paused node");
    assert_eq!(fixture.node_output("db-2").primary_tags.len(), 1);
    let dirty = fixture.fleet.apply(FleetChange::ReportedState(id, None));
    assert_eq!(fixture.node_names(&dirty), ["db-2"], "the primary does not change");
    assert!(fixture.resolved_node("db-2").host_findings(Timestamp(0)).is_empty());
}

/// The controller stores the name of the release with each released task set. So a node must be resolved again even if
/// only the name of its release changes. Document 4 is the group of the databases.
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
    let release_name = |node: &str| fixture.resolved_node(node).release().map(|release| release.name.to_string());
    assert_eq!((release_name("db-2"), release_name("web-1")), (Some("site@2".into()), Some("site@1".into())));
    assert_eq!(fixture.digests(), digests, "the tasks are the same");
}

/// Document 2 is the cluster, and document 3 is the group of the databases.
#[test]
fn w03_parameter_change_rechecks_requirement() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents[2]["parameters"] = json!({"size": 1});
    documents[3]["requirements"] = json!({"param:size": ">= 2"});
    let mut fixture = FleetFixture::from_manifests(&documents);
    assert_eq!(fixture.resolved_node("db-2").unmet_requirements().len(), 1);
    documents[2]["parameters"] = json!({"size": 2});
    assert_eq!(
        fixture.apply(&documents),
        ["db-10", "db-2"],
        "no task reads the parameter, and the group of web-1 requires nothing"
    );
    assert!(fixture.resolved_node("db-2").unmet_requirements().is_empty());
}

/// A reported label fills only a key that no level decides. A level above decides a key by a value or a tombstone, even
/// for a node that does not merge the labels of that level.
/// Documents 0, 3 and 5 are the template, the group of the databases and db-2.
#[test]
fn w03_host_label_fills_no_key_decided_by_unmerged_level() {
    for template_labels in [json!({"z": "set"}), json!({"z": null})] {
        let mut documents = site_manifests(&json!({}), &task_manifests());
        documents[3]["host_labels"] = json!({"accept": ["z"]});
        documents[5]["merge_labels"] = json!(false);
        documents[5]["labels"] = json!({"own": "1"});
        let mut fixture = FleetFixture::from_manifests(&documents);
        let label = ReportedLabel { key: "z".into(), value: "host".into(), source: "f:1".into() };
        let observation = Observation { labels: [label].into_iter().collect(), ..Observation::default() };
        fixture.fleet.apply(FleetChange::Observation(fixture.node("db-2").id(), Arc::new(observation)));
        assert_eq!(fixture.node_output("db-2").labels.get("z").map(String::as_str), Some("host"));
        documents[0]["labels"] = template_labels;
        let dirty = fixture.apply(&documents);
        assert!(dirty.contains(&"db-2".to_owned()), "{dirty:?}");
        assert_eq!(fixture.node_output("db-2").labels.get("z"), None);
    }
}

/// In this test, the group of the databases moves to another cluster. Its nodes keep their tasks, and tag `mysql` has a
/// primary in the new cluster only. `holders` returns the primaries of a cluster.
#[test]
fn group_moved_to_another_cluster_is_placed_there() {
    let mut documents = site_manifests(&json!({}), &task_manifests());
    documents.push(json!({"kind": "Cluster", "name": "lab", "cluster_template": "base"}));
    let mut fixture = FleetFixture::from_manifests(&documents);
    let id = fixture.node("db-2").spec.nodegroup.expect("a group");
    let mut group = NodeGroup::clone(fixture.fleet.group(id).expect("the group"));
    let old_cluster = group.spec.cluster;
    let mut clusters = fixture.fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid));
    let new_cluster = clusters.find(|id| *id != old_cluster).expect("the other cluster");
    drop(clusters);
    group.spec.cluster = new_cluster;
    let dirty = fixture.fleet.apply(FleetChange::NodeGroup(Arc::new(group)));
    assert_eq!(fixture.node_names(&dirty), ["db-10", "db-2"]);
    assert_eq!(fixture.node_output("db-2").primary_tags.len(), 1);
    assert_eq!(fixture.node_output("db-10").tasks, ["by-empty-tags", "by-role", "every", "server"]);
    assert_eq!((fixture.fleet.holders(old_cluster).count(), fixture.fleet.holders(new_cluster).count()), (0, 1));
}

/// The steps of conditions are limited for each node. Among others, the limit depends on the number of nodes in the
/// cluster, rounded up to a power of two. The condition of this task exceeds the limit in a cluster of 1,024 nodes.
#[test]
fn w10_05_condition_limit_change_marks_nodes_dirty() {
    let tasks = json!([{
        "id": "zone", "type": "shell", "roles": ["web"], "parameters": {"script": "true"},
        "condition": "nodes(role='web').exists(n, n.name == 'nobody' && n.labels.zone == labels.zone)",
    }]);
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "prod/web", "labels": {"zone": format!("zone-{number:040}")}});
    let mut documents = vec![
        release_manifest(&json!({}), &tasks),
        json!({"kind": "Cluster", "name": "prod", "release": "site@1"}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"]}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "spare"}),
    ];
    documents.extend((0..1024).map(node));
    let mut fixture = FleetFixture::from_manifests(&documents);
    let skipped_count = |fixture: &FleetFixture| fixture.node_output("n1").skipped.len();
    assert_eq!(skipped_count(&fixture), 1);
    let fresh = FleetFixture { fleet: fixture.fleet.clone(), cache: ResolveCache::new() };
    assert_eq!(fresh.node_output("n1"), fixture.node_output("n1"), "the cache changes no result");

    // A node outside of the cluster does not change the limit. Node m0 is number 1,025 of the cluster and changes the
    // limit, although no look-up finds it. Node m1 does not change the limit.
    assert_eq!(fixture.apply(&[json!({"kind": "Node", "name": "apart"})]), ["apart"]);
    let spare = |number: usize| {
        let node = json!({"kind": "Node", "name": format!("m{number}"), "nodegroup": "prod/spare"});
        [&documents[..4], &[node]].concat()
    };
    assert_eq!(fixture.apply(&spare(0)).len(), 1025, "a new limit for all nodes of the cluster, at a power of two");
    assert_eq!(fixture.apply(&spare(1)), ["m1"]);
    assert_eq!(skipped_count(&fixture), 1);
    let small_fleet = FleetFixture::from_manifests(&documents[..300]);
    assert!(
        small_fleet.resolved_node("n1").findings().iter().all(|finding| finding.code != "condition.failed"),
        "the limit suffices for 300 nodes"
    );
}

/// The steps of conditions are limited for each node. The limit depends on the number of nodes in the cluster and on
/// the number of clusters with nodes, both rounded up to a power of two.
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
    let node = |cluster: &str, number: usize| json!({"kind": "Node", "name": format!("{cluster}{number:02}"), "nodegroup": format!("{cluster}/g"), "labels": {"zone": "x"}});
    let documents = [vec![release_manifest(&json!({}), &tasks)], cluster("a").to_vec(), cluster("b").to_vec()].concat();
    let nodes = ["a", "b"].into_iter().flat_map(|cluster| (0..16).map(move |number| node(cluster, number)));
    let mut fixture = FleetFixture::from_manifests(&documents.iter().cloned().chain(nodes).collect::<Vec<_>>());

    let documents_with = |additional: &[Value]| [&documents[..], additional].concat();
    let dirty = fixture.apply(&documents_with(&[node("a", 16)]));
    assert_eq!(dirty.len(), 17, "{dirty:?}");
    let is_of_a = |name: &String| name.starts_with('a');
    assert!(dirty.iter().all(is_of_a), "the limit of the other cluster has not changed: {dirty:?}");
    assert_eq!(fixture.apply(&documents_with(&[node("a", 17)])), ["a17"]);

    // Only fleet admins create clusters. A third cluster with a node reduces the limit of all.
    assert_eq!(fixture.apply(&documents_with(&cluster("c"))), Vec::<String>::new(), "a cluster without nodes changes no limit");
    let third_cluster = [cluster("c").to_vec(), vec![node("c", 0)]].concat();
    assert_eq!(fixture.apply(&documents_with(&third_cluster)).len(), 18 + 16 + 1, "the limit of all nodes has changed");
    assert_eq!(fixture.apply(&documents_with(&[cluster("c").to_vec(), vec![node("c", 1)]].concat())), ["c01"]);
    let fresh = FleetFixture { fleet: fixture.fleet.clone(), cache: ResolveCache::new() };
    assert_eq!(fresh.digests(), fixture.digests(), "the cache changes no result");
}

/// In this test, the node inherits no label, and its group lets the host report label `free`. The group decides whether
/// the reported label fills the key. So a change of the group's value marks the node dirty (to be resolved again),
/// unless the reported value is invalid anyway.
#[test]
fn group_change_marks_node_dirty_unless_reported_label_is_invalid() {
    let documents = |group_value: &str| {
        let group = json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": {"free": group_value}, "host_labels": {"accept": ["free"]}});
        let node = json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "labels": {"own": "1"}, "merge_labels": false});
        [json!({"kind": "Cluster", "name": "c"}), group, node]
    };
    for (value, is_dirty) in [("x", true), ("x\n", false)] {
        let mut fixture = FleetFixture::from_manifests(&documents("1"));
        let label = ReportedLabel { key: "free".into(), value: value.into(), source: "test".into() };
        let id = fixture.node("n").id();
        let observation = Observation { labels: [label].into_iter().collect(), ..Observation::default() };
        fixture.fleet.apply(FleetChange::Observation(id, Arc::new(observation)));
        // Only the cluster and the group are applied again.
        assert_eq!(fixture.apply(&documents("2")[..2]) == ["n"], is_dirty);
    }
}

/// A comparison such as `>=` must scan all nodes if a label has more than 1,024 values. A requirement that names values
/// still uses the index.
#[test]
fn requirement_with_values_uses_index_for_any_value_count() {
    let node = |number: usize| json!({"kind": "Node", "name": format!("n{number}"), "nodegroup": "c/g", "labels": {"rack": format!("r{number}")}});
    let mut documents = vec![json!({"kind": "Cluster", "name": "c"}), json!({"kind": "NodeGroup", "cluster": "c", "name": "g"})];
    documents.extend((0..1025).map(node));
    let mut fixture = FleetFixture::from_manifests(&documents);
    let order: Vec<NodeId> = fixture.fleet.nodes().map(|node| node.id()).collect();
    fixture.fleet.build_index(order);
    let count_matches = |text: &str| {
        let set = fixture.fleet.requirement_set(&Requirement::parse(text).expect("a requirement"));
        fixture.fleet.walk(set, None, false).expect("an index").count()
    };
    // For `>=` the index gives all nodes, which the caller must check one by one.
    assert_eq!((count_matches("rack r7"), count_matches("rack <or> r7 <or> r8"), count_matches("rack >= 7")), (1, 2, 1025));
}
