//! Whom a change reaches, and whom it tells something else.

use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::NodeName;
use stemma_core::object::{
    ClusterId, FactMap, Node, NodeGroup, NodeId, Observation, ReportedLabel, SaidOnHost, Timestamp,
};
use stemma_core::requirement::Requirement;
use stemma_core::resolve::ResolveCache;

use crate::made::{Made, changes, file, objects, reading, release, site, tasks};

#[test]
fn a_change_reaches_those_whom_it_concerns() {
    let tasks = json!([
        file("ntp", "nginx", "{{ labels.ntp }}"),
        file("size", "mysql", "{{ params.size }}"),
        file("peers", "nginx", "{% for n in nodes(tag='mysql') %}{{ n.address }}{% endfor %}"),
        file("leader", "nginx", "{{ primary('mysql').name }}"),
    ]);
    let base = reading(&tasks);
    let with = |at: usize, field: &str, value: Value| {
        let mut documents = base.clone();
        documents[at][field] = value;
        documents
    };
    for (what, documents, reached) in [
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
        let mut made = Made::of(&base);
        let dirty = made.fleet.apply_all(changes(objects(&documents)));
        assert_eq!(made.names(&dirty), reached, "{what}");
        let fresh = Made::of(&documents);
        assert_eq!(made.digests(), fresh.digests(), "{what}: with memory and without");
    }
}

#[test]
fn an_annotation_reaches_those_who_inherit_it() {
    let (template, cluster, dbs, webs) = (0, 2, 3, 4);
    let mut base = site(&json!({}), &tasks());
    base[6]["annotations"] = json!({"owner": "own"});
    base[7]["annotations"] = json!({"owner": null});
    for (level, key, reached) in [
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
        let mut made = Made::of(&base);
        assert_eq!(made.edit(&documents), reached, "{key} of {}", base[level]["name"]);
        let fresh = Made::of(&documents);
        for name in ["db-10", "db-2", "web-1"] {
            let has = made.plain(name).annotations;
            assert_eq!(has, fresh.plain(name).annotations, "{name}");
            assert_eq!(has.get(key).is_some_and(|value| value == "above"), reached.contains(&name), "{name}");
        }
    }
}

/// A map of labels is asked of each node, and most find their group's. After a change of it each node held a map of its own, as large as the group's.
#[test]
fn x03_f07_a_map_of_labels_that_changes_is_still_its_groups() {
    let tasks = json!([file("map", "mysql", "{{ labels_with_prefix('a/') | length }}")]);
    let mut documents = reading(&tasks);
    documents[5]["labels"] = json!({"a/own": "x"});
    let mut made = Made::of(&documents);
    for value in ["1", "2", "3"] {
        documents[3]["labels"] = json!({"a/of-group": value});
        made.edit(&documents);
        for (name, of_its_own, labels) in
            [("db-10", 0, json!({"a/of-group": value})), ("db-2", 1, json!({"a/of-group": value, "a/own": "x"}))]
        {
            let answer = made.answer(name);
            let set = answer.task_set().expect("a task set");
            let read = serde_json::to_value(set.inputs()).expect("JSON");
            assert_eq!(read, json!({"labels_with_prefix('a/')": {"value": labels}}), "{name}");
            assert_eq!(set.own_inputs().count(), of_its_own, "{name} at {value}");
        }
    }
}

#[test]
fn a_report_reaches_those_who_look_it_up() {
    let tasks = json!([
        file("peers", "nginx", "{% for n in nodes(tag='mysql') %}{{ n.address }}{% endfor %}"),
        file("own", "mysql", "{{ facts.os.id }}"),
    ]);
    let mut made = Made::of(&reading(&tasks));
    let seen = |facts: Value| {
        let facts = FactMap::from_tree(facts.as_object().expect("facts"));
        Arc::new(Observation { facts, ..Observation::default() })
    };
    for (facts, reached) in [
        (json!({"network": {"address": "10.0.0.2"}}), &["web-1"][..]),
        (json!({"network": {"address": "10.0.0.2"}}), &[]),
        (json!({"network": {"address": "10.0.0.2"}, "os": {"id": "debian"}}), &["db-2"]),
        (json!({"network": {"address": "not an address"}, "os": {"id": "debian"}}), &["web-1"]),
        (json!({"network": {"address": "10.0.0.3"}, "os": {"id": "debian"}, "timezone": "UTC"}), &["web-1"]),
    ] {
        let dirty = made.fleet.apply(Change::Observation(made.node("db-2").id(), seen(facts.clone())));
        assert_eq!(made.names(&dirty), reached, "{facts}");
    }
    let answer = made.answer("web-1");
    let set = answer.task_set().expect("a task set");
    assert_eq!(
        serde_json::to_value(set.inputs()).expect("JSON"),
        json!({"nodes(tag='mysql'){address}": {"value": [{"address": "10.0.0.3"}, {}]}})
    );
}

#[test]
fn a_label_that_no_task_reads_changes_no_digest() {
    let tasks = json!([file("ntp", "nginx", "{{ labels.ntp }}")]);
    let base = reading(&tasks);
    let digest = |labels: Value| {
        let mut documents = base.clone();
        documents[0]["labels"] = labels;
        Made::of(&documents).plain("web-1").task_digest
    };
    assert_eq!(digest(json!({"ntp": "a", "x": "1"})), digest(json!({"ntp": "a", "x": "2"})));
    assert_ne!(digest(json!({"ntp": "a"})), digest(json!({"ntp": "b"})));
    assert_ne!(digest(json!({"ntp": ""})), digest(json!({})), "absent is an input of its own");
}

/// A label that no task reads makes another fold of each group below it. Conditions of all its nodes were evaluated again.
#[test]
fn x03_f06_what_no_task_reads_has_nothing_worked_out_again() {
    let conditional = json!({"id": "c", "type": "shell", "tags": ["nginx"], "condition": "labels.own == 'x'", "parameters": {"script": "true"}});
    let tasks = json!([file("ntp", "nginx", "{{ labels.ntp }} {{ node.name }}"), conditional]);
    let mut documents = reading(&tasks);
    documents[0]["labels"] = json!({"ntp": "a", "x": "1"});
    let mut made = Made::of(&documents);
    let set = |made: &Made| Arc::clone(made.answer("web-1").task_set().expect("it is placed"));
    let before = set(&made);
    for (labels, is_same) in [
        (json!({"ntp": "a", "x": "2"}), true),
        (json!({"ntp": "a"}), true),
        (json!({"ntp": "b"}), false),
        (json!({"ntp": "b", "own": "x"}), false),
    ] {
        documents[0]["labels"] = labels.clone();
        let change = changes(objects(&documents)).into_iter().find(|change| matches!(change, Change::Template(_)));
        drop(made.fleet.apply(change.expect("the template")));
        assert_eq!(Arc::ptr_eq(&set(&made), &before), is_same, "{labels}");
        assert_eq!(set(&made).digest, Made::of(&documents).answer("web-1").task_set().expect("it is placed").digest);
    }
}

#[test]
fn a_node_that_moves_gives_back_its_primaries() {
    let mut documents = reading(&tasks());
    documents.push(json!({"kind": "Cluster", "name": "lab", "cluster_template": "base"}));
    documents.push(json!({"kind": "NodeGroup", "cluster": "lab", "name": "dbs", "roles": ["db"]}));
    let mut made = Made::of(&documents);
    documents[5]["nodegroup"] = json!("lab/dbs");
    let moved = changes(objects(&documents))
        .into_iter()
        .find(|change| matches!(change, Change::Node(node) if node.display_name() == "db-2"));
    let dirty = made.fleet.apply(moved.expect("the node"));
    assert_eq!(made.names(&dirty), ["db-10", "db-2"]);
    assert_eq!(made.plain("db-10").primary_tags.len(), 1);
    assert_eq!(made.plain("db-2").primary_tags.len(), 1, "it is the first of its new cluster");
}

/// A look-up is a list in the order of its nodes' names, also where it reads no name.
#[test]
fn a_node_that_is_renamed_changes_its_place_in_a_look_up() {
    let zones = json!({"id": "zones", "type": "file", "tags": ["nginx"], "parameters": {
        "path": "/zones", "template": "{% for n in nodes(tag='mysql') %}{{ n.labels.zone }} {% endfor %}",
    }});
    let mut documents = site(&json!({}), &json!([zones]));
    documents[5]["labels"] = json!({"zone": "east"});
    documents[6]["labels"] = json!({"zone": "west"});
    let mut made = Made::of(&documents);
    let before = made.plain("web-1").task_digest;
    let mut node = Node::clone(made.node("db-2"));
    node.meta.name = Some(NodeName::new("db-20").expect("a name"));
    let dirty = made.fleet.apply(Change::Node(Arc::new(node)));
    assert!(made.names(&dirty).contains(&"web-1".to_owned()));
    let after = made.plain("web-1").task_digest;
    assert_ne!(before, after);
    let mut fresh = Fleet::new();
    fresh.apply_all(changes(objects(&documents)).into_iter().filter(|one| !matches!(one, Change::Node(_))));
    fresh.apply_all(made.fleet.nodes().cloned().map(Change::Node));
    fresh.set_loaded();
    let fresh = Made { fleet: fresh, cache: ResolveCache::new() };
    assert_eq!(after, fresh.plain("web-1").task_digest, "as at a start");
}

#[test]
fn a_node_parked_on_its_host_is_elected_to_no_primary_and_takes_no_part() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    let id = made.node("db-2").id();
    let parked = SaidOnHost { parked: Some("re\npair".into()), ..SaidOnHost::default() };
    let dirty = made.fleet.apply(Change::Said(id, Some(Arc::new(parked))));
    assert_eq!(made.names(&dirty), ["db-10", "db-2"]);
    assert!(made.plain("db-2").primary_tags.is_empty());
    assert_eq!(made.plain("db-10").primary_tags.len(), 1);
    assert!(!made.fleet.takes_part(id) && !made.answer("db-2").is_parked(), "its spec says nothing");
    let found = made.answer("db-2").findings_of_host(Timestamp(0));
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["info host.parked node/db-2: it is parked on its host (re\\npair): barriers pass it over"]
    );
    let paused = SaidOnHost { paused: true, ..SaidOnHost::default() };
    let dirty = made.fleet.apply(Change::Said(id, Some(Arc::new(paused))));
    assert_eq!(made.names(&dirty), ["db-10", "db-2"]);
    assert!(made.fleet.takes_part(id), "what is paused is waited for");
    assert_eq!(made.plain("db-2").primary_tags.len(), 1);
    let dirty = made.fleet.apply(Change::Said(id, None));
    assert_eq!(made.names(&dirty), ["db-2"], "who holds the tag stays as it is");
    assert!(made.answer("db-2").findings_of_host(Timestamp(0)).is_empty());
}

/// What is released to them is recorded under the name that their levels say, so they are looked at again.
#[test]
fn w01_whoever_is_given_another_release_of_the_same_content_is_reached() {
    let mut documents = site(&json!({}), &tasks());
    let mut twin = documents[1].clone();
    twin["version"] = "2".into();
    documents.insert(1, twin);
    let mut made = Made::of(&documents);
    let digests = made.digests();
    documents[4]["release"] = "site@2".into();
    assert_eq!(made.edit(&documents), ["db-10", "db-2"]);
    let name = |node: &str| made.answer(node).release().map(|release| release.name.to_string());
    assert_eq!((name("db-2"), name("web-1")), (Some("site@2".into()), Some("site@1".into())));
    assert_eq!(made.digests(), digests, "they run the same");
}

#[test]
fn w03_a_requirement_on_a_parameter_is_looked_at_again_when_the_parameter_changes() {
    let mut documents = site(&json!({}), &tasks());
    documents[2]["parameters"] = json!({"size": 1});
    documents[3]["requirements"] = json!({"param:size": ">= 2"});
    let mut made = Made::of(&documents);
    assert_eq!(made.answer("db-2").unmet().len(), 1);
    documents[2]["parameters"] = json!({"size": 2});
    assert_eq!(made.edit(&documents), ["db-10", "db-2"], "no task reads it, and the group of web-1 asks for nothing");
    assert!(made.answer("db-2").unmet().is_empty());
}

#[test]
fn w03_a_host_fills_no_label_that_a_level_sets_or_stops_though_its_node_does_not_merge() {
    for set in [json!({"z": "set"}), json!({"z": null})] {
        let mut documents = site(&json!({}), &tasks());
        documents[3]["host_labels"] = json!({"accept": ["z"]});
        documents[5]["merge_labels"] = json!(false);
        documents[5]["labels"] = json!({"own": "1"});
        let mut made = Made::of(&documents);
        let label = ReportedLabel { key: "z".into(), value: "host".into(), source: "f:1".into() };
        let seen = Observation { labels: [label].into_iter().collect(), ..Observation::default() };
        made.fleet.apply(Change::Observation(made.node("db-2").id(), Arc::new(seen)));
        assert_eq!(made.plain("db-2").labels.get("z").map(String::as_str), Some("host"));
        documents[0]["labels"] = set;
        let reached = made.edit(&documents);
        assert!(reached.contains(&"db-2".to_owned()), "{reached:?}");
        assert_eq!(made.plain("db-2").labels.get("z"), None);
    }
}

#[test]
fn a_group_that_moves_to_another_cluster_is_placed_there() {
    let mut documents = site(&json!({}), &tasks());
    documents.push(json!({"kind": "Cluster", "name": "lab", "cluster_template": "base"}));
    let mut made = Made::of(&documents);
    let id = made.node("db-2").spec.nodegroup.expect("a group");
    let mut group = NodeGroup::clone(made.fleet.group(id).expect("the group"));
    let home = group.spec.cluster;
    let mut clusters = made.fleet.clusters().map(|cluster| ClusterId(cluster.meta.uuid));
    let lab = clusters.find(|id| *id != home).expect("the other cluster");
    drop(clusters);
    group.spec.cluster = lab;
    let dirty = made.fleet.apply(Change::NodeGroup(Arc::new(group)));
    assert_eq!(made.names(&dirty), ["db-10", "db-2"]);
    assert_eq!(made.plain("db-2").primary_tags.len(), 1);
    assert_eq!(made.plain("db-10").tasks, ["by-empty-tags", "by-role", "every", "server"]);
    assert_eq!((made.fleet.holders(home).count(), made.fleet.holders(lab).count()), (0, 1));
}

#[test]
fn w10_05_what_a_condition_may_cost_follows_from_the_number_of_nodes_and_reaches_them_where_it_changes() {
    let tasks = json!([{
        "id": "zone", "type": "shell", "roles": ["web"], "parameters": {"script": "true"},
        "condition": "nodes(role='web').exists(n, n.name == 'nobody' && n.labels.zone == labels.zone)",
    }]);
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "prod/web", "labels": {"zone": format!("zone-{n:040}")}});
    let mut documents = vec![
        release(&json!({}), &tasks),
        json!({"kind": "Cluster", "name": "prod", "release": "site@1"}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "web", "roles": ["web"]}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "spare"}),
    ];
    documents.extend((0..1024).map(node));
    let mut made = Made::of(&documents);
    let skipped = |made: &Made| made.plain("n1").skipped.len();
    assert_eq!(skipped(&made), 1);
    let fresh = Made { fleet: made.fleet.clone(), cache: ResolveCache::new() };
    assert_eq!(fresh.plain("n1"), made.plain("n1"), "memory changes no answer");

    // Nodes elsewhere do not count; those of the cluster do, also where nobody looks them up.
    assert_eq!(made.edit(&[json!({"kind": "Node", "name": "apart"})]), ["apart"]);
    let spare = |n: usize| {
        let node = json!({"kind": "Node", "name": format!("m{n}"), "nodegroup": "prod/spare"});
        [&documents[..4], &[node]].concat()
    };
    assert_eq!(made.edit(&spare(0)).len(), 1025, "all that look nodes up, at a power of two");
    assert_eq!(made.edit(&spare(1)), ["m1"]);
    assert_eq!(skipped(&made), 1);
    let few = Made::of(&documents[..300]);
    assert!(few.answer("n1").findings().iter().all(|finding| finding.code != "condition.failed"), "300 nodes are few");
}

#[test]
fn x04_f06_what_conditions_may_take_together_changes_in_the_cluster_whose_nodes_are_more() {
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
    let above = [vec![release(&json!({}), &tasks)], cluster("a").to_vec(), cluster("b").to_vec()].concat();
    let nodes = ["a", "b"].into_iter().flat_map(|cluster| (0..16).map(move |n| node(cluster, n)));
    let mut made = Made::of(&above.iter().cloned().chain(nodes).collect::<Vec<_>>());

    let with = |more: &[Value]| [&above[..], more].concat();
    let reached = made.edit(&with(&[node("a", 16)]));
    assert_eq!(reached.len(), 17, "{reached:?}");
    let is_of_a = |name: &String| name.starts_with('a');
    assert!(reached.iter().all(is_of_a), "those of the other cluster may take what they might: {reached:?}");
    assert_eq!(made.edit(&with(&[node("a", 17)])), ["a17"]);

    // Clusters are made by admins of the fleet. A third one with a node takes a part from all.
    assert_eq!(made.edit(&with(&cluster("c"))), Vec::<String>::new(), "one without nodes does not count");
    let third = [cluster("c").to_vec(), vec![node("c", 0)]].concat();
    assert_eq!(made.edit(&with(&third)).len(), 18 + 16 + 1, "what all may take has changed");
    assert_eq!(made.edit(&with(&[cluster("c").to_vec(), vec![node("c", 1)]].concat())), ["c01"]);
    let fresh = Made { fleet: made.fleet.clone(), cache: ResolveCache::new() };
    assert_eq!(fresh.digests(), made.digests(), "memory changes no answer");
}

#[test]
fn a_label_that_no_level_could_give_fills_nothing() {
    let documents = |at: &str| {
        let group = json!({"kind": "NodeGroup", "cluster": "c", "name": "g", "labels": {"free": at}, "host_labels": {"accept": ["free"]}});
        let node =
            json!({"kind": "Node", "name": "n", "nodegroup": "c/g", "labels": {"own": "1"}, "merge_labels": false});
        [json!({"kind": "Cluster", "name": "c"}), group, node]
    };
    for (value, is_reached) in [("x", true), ("x\n", false)] {
        let mut made = Made::of(&documents("1"));
        let label = ReportedLabel { key: "free".into(), value: value.into(), source: "test".into() };
        let id = made.node("n").id();
        let seen = Observation { labels: [label].into_iter().collect(), ..Observation::default() };
        made.fleet.apply(Change::Observation(id, Arc::new(seen)));
        assert_eq!(made.edit(&documents("2")[..2]) == ["n"], is_reached);
    }
}

/// Beyond 1,024 values of a label a comparison has to look at every node. A requirement that names values still looks them up.
#[test]
fn a_requirement_that_names_values_looks_up_their_nodes_however_many_values_there_are() {
    let node = |n: usize| json!({"kind": "Node", "name": format!("n{n}"), "nodegroup": "c/g", "labels": {"rack": format!("r{n}")}});
    let mut documents =
        vec![json!({"kind": "Cluster", "name": "c"}), json!({"kind": "NodeGroup", "cluster": "c", "name": "g"})];
    documents.extend((0..1025).map(node));
    let mut made = Made::of(&documents);
    let order: Vec<NodeId> = made.fleet.nodes().map(|node| node.id()).collect();
    made.fleet.keep_index(order);
    let asked = |text: &str| {
        let among = made.fleet.among_meeting(&Requirement::parse(text).expect("a requirement"));
        made.fleet.walk(among, None, false).expect("an index").count()
    };
    assert_eq!((asked("rack r7"), asked("rack <or> r7 <or> r8"), asked("rack >= 7")), (1, 2, 1025));
}
