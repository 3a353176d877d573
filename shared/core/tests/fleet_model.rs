//! The fleet's model: placement under the default matching, primaries, and whom a change reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_author::Reader;
use stemma_core::finding::Severity;
use stemma_core::fleet::{Change, Dirty, Fleet, Missing};
use stemma_core::manifest::{Objects, assemble, read_document};
use stemma_core::name::{NodeName, TagName};
use stemma_core::object::{
    ClusterId, FactMap, Meta, Node, NodeGroup, NodeId, NotTaken, Object, Observation, PrimarySpec, RefusedTraits,
    ReportedLabel, SaidOnHost, Timestamp,
};
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{Answer, PlainAnswer, Resolution, ResolveCache, resolve_fleet, resolve_node};
use uuid::Uuid;

/// A fleet of manifests, with the changes that made it.
struct Made {
    fleet: Fleet,
    cache: ResolveCache,
}

fn objects(documents: &[Value]) -> Objects {
    let documents: Vec<_> =
        documents.iter().map(|one| read_document(&one.to_string()).expect("a document of the test")).collect();
    assemble(&documents, &Manager::new("test").expect("a manager")).expect("manifests of the test")
}

fn changes(objects: Objects) -> Vec<Change> {
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let releases = compile_set(&specs, &Reader).expect("releases of the test");
    let mut changes: Vec<Change> = releases.into_values().map(Change::Release).collect();
    changes.extend(objects.templates.into_iter().map(|one| Change::Template(Arc::new(one))));
    changes.extend(objects.clusters.into_iter().map(|one| Change::Cluster(Arc::new(one))));
    changes.extend(objects.groups.into_iter().map(|one| Change::NodeGroup(Arc::new(one))));
    changes.extend(objects.nodes.into_iter().map(|one| Change::Node(Arc::new(one))));
    changes.extend(objects.observations.into_iter().map(|(id, seen)| Change::Observation(id, Arc::new(seen))));
    changes
}

impl Made {
    fn of(documents: &[Value]) -> Self {
        let mut fleet = Fleet::new();
        fleet.apply_all(changes(objects(documents)));
        fleet.set_loaded();
        Self { fleet, cache: ResolveCache::new() }
    }

    /// Applies documents anew, in full: a store would send what an edit made of them.
    fn edit(&mut self, documents: &[Value]) -> Vec<String> {
        let dirty = self.fleet.apply_all(changes(objects(documents)));
        self.names(&dirty)
    }

    fn names(&self, dirty: &Dirty) -> Vec<String> {
        let mut names: Vec<_> = dirty.nodes().filter_map(|id| Some(self.fleet.node(id)?.display_name())).collect();
        names.sort();
        names
    }

    fn node(&self, name: &str) -> &Arc<Node> {
        self.fleet.node_named(name).expect("a node of the test")
    }

    fn answer(&self, name: &str) -> Arc<Answer> {
        match resolve_node(&self.fleet, &self.cache, self.node(name).id()) {
            Resolution::Complete(answer) => answer,
            Resolution::Incomplete(missing) => panic!("{missing:?}"),
        }
    }

    fn plain(&self, name: &str) -> PlainAnswer {
        PlainAnswer::of(&self.answer(name))
    }

    fn digests(&self) -> BTreeMap<NodeId, Option<String>> {
        let of = |node: &Arc<Node>| (node.id(), PlainAnswer::of(&self.answer(&node.display_name())).task_digest);
        self.fleet.nodes().map(of).collect()
    }

    fn cluster(&self) -> ClusterId {
        ClusterId(self.fleet.clusters().next().expect("a cluster").meta.uuid)
    }
}

fn release(matching: &Value, tasks: &Value) -> Value {
    json!({
        "kind": "Release", "name": "site", "version": "1", "matching": matching,
        "roles": {"db": {"tags": ["mysql"]}, "web": {"tags": ["nginx"]}},
        "tags": {"mysql": {"has_primary": true}, "nginx": {}},
        "tasks": tasks,
    })
}

fn tasks() -> Value {
    json!([
        {"id": "server", "type": "puppet", "tags": ["mysql"]},
        {"id": "bootstrap", "type": "puppet", "tags": ["primary-mysql"]},
        {"id": "by-role", "type": "puppet", "roles": ["db"]},
        {"id": "by-empty-tags", "type": "puppet", "tags": [], "roles": ["db"]},
        {"id": "every", "type": "puppet", "roles": ["*"]},
    ])
}

/// Two databases and a web server, below a template.
fn site(matching: &Value, tasks: &Value) -> Vec<Value> {
    vec![
        json!({"kind": "ClusterTemplate", "name": "base", "release": "site@1", "labels": {"ntp": "a", "tier": "std"}}),
        release(matching, tasks),
        json!({"kind": "Cluster", "name": "prod", "cluster_template": "base"}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "dbs", "roles": ["db"]}),
        json!({"kind": "NodeGroup", "cluster": "prod", "name": "webs", "roles": ["web"], "labels": {"tier": "gold"}}),
        json!({"kind": "Node", "name": "db-2", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "db-10", "nodegroup": "prod/dbs"}),
        json!({"kind": "Node", "name": "web-1", "nodegroup": "prod/webs"}),
    ]
}

#[test]
fn a_primary_holds_both_names_by_default() {
    let made = Made::of(&site(&json!({}), &tasks()));
    let (first, second) = (made.plain("db-2"), made.plain("db-10"));
    assert_eq!(first.tags.iter().collect::<Vec<_>>(), ["mysql", "primary-mysql"]);
    assert_eq!(first.primary_tags.iter().collect::<Vec<_>>(), ["mysql"]);
    assert_eq!(first.tasks, ["bootstrap", "by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(second.tasks, ["by-empty-tags", "by-role", "every", "server"]);
    assert_eq!(made.plain("web-1").tasks, ["every"]);
}

#[test]
fn matching_decides_what_roles_and_primaries_mean() {
    for (matching, first, second) in [
        (
            json!({"roles": "own", "primary": "replaces"}),
            &["bootstrap", "by-empty-tags", "by-role", "every"][..],
            &["by-empty-tags", "by-role", "every", "server"][..],
        ),
        (json!({"roles": "tags", "primary": "adds"}), &["bootstrap", "every", "server"], &["every", "server"]),
        (json!({"roles": "tags", "primary": "replaces"}), &["bootstrap", "every"], &["every", "server"]),
    ] {
        let made = Made::of(&site(&matching, &tasks()));
        assert_eq!(made.plain("db-2").tasks, first, "{matching}");
        assert_eq!(made.plain("db-10").tasks, second, "{matching}");
    }
}

#[test]
fn a_role_and_a_tag_of_one_name_share_an_election() {
    let mut documents = site(&json!({}), &json!([{"id": "first", "type": "puppet", "roles": ["primary-db"]}]));
    documents[1]["roles"] = json!({"db": {}, "web": {}});
    documents[1]["tags"] = json!({"db": {"has_primary": true}});
    let made = Made::of(&documents);
    assert_eq!(made.plain("db-2").tasks, ["first"]);
    assert!(made.plain("db-10").tasks.is_empty());
}

#[test]
fn a_stored_choice_holds_while_its_node_could_be_it() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    let (cluster, tag) = (made.cluster(), TagName::new("mysql").expect("a tag"));
    assert_eq!(made.fleet.unstored_holders(cluster), [(tag.clone(), made.node("db-2").id())]);
    let spec = PrimarySpec { cluster, node: made.node("db-10").id(), since: Timestamp(1), epoch: 1 };
    let chosen = Object { meta: Meta::new(Uuid::from_u128(9), tag, Timestamp(1)), spec };
    let dirty = made.fleet.apply(Change::Primary(Arc::new(chosen)));
    assert_eq!(made.names(&dirty), ["db-10", "db-2"]);
    assert_eq!(made.plain("db-10").primary_tags.len(), 1);
    assert!(made.fleet.unstored_holders(cluster).is_empty());

    let parked = json!({"kind": "Node", "name": "db-10", "nodegroup": "prod/dbs", "parked": true});
    let cluster_and_groups = &site(&json!({}), &tasks())[..5];
    made.edit(&[cluster_and_groups, &[parked]].concat());
    assert!(made.plain("db-10").primary_tags.is_empty());
    assert_eq!(made.plain("db-2").primary_tags.len(), 1, "a parked node holds nothing");
}

#[test]
fn what_is_missing_is_named_and_nothing_is_answered() {
    let all = changes(objects(&site(&json!({}), &tasks())));
    let resolve = |fleet: &Fleet| {
        let node = fleet.node_named("web-1").expect("the node").id();
        resolve_node(fleet, &ResolveCache::new(), node)
    };
    for left_out in 0..all.len() {
        let is_parent = matches!(all[left_out], Change::Release(_) | Change::Template(_) | Change::Cluster(_));
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
    assert!(matches!(resolve(&loading), Resolution::Incomplete(missing) if missing == [Missing::Store]));
}

fn reading(tasks: &Value) -> Vec<Value> {
    site(&json!({}), tasks)
}

fn file(id: &str, tag: &str, template: &str) -> Value {
    json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/etc/{id}"), "template": template}})
}

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
        serde_json::to_value(&set.inputs).expect("JSON"),
        json!({"nodes(tag='mysql'){address}": {"value": [{"address": "10.0.0.3"}, {}]}})
    );
}

#[test]
fn a_condition_leaves_out_and_says_why() {
    let condition = |id: &str, text: &str| json!({"id": id, "type": "puppet", "roles": ["*"], "condition": text});
    let tasks = json!([
        condition("gold", "labels.tier == 'gold'"),
        condition("absent", "labels.absent == 'x'"),
        {"id": "marker", "type": "skipped", "roles": ["*"]},
    ]);
    let made = Made::of(&reading(&tasks));
    let web = made.plain("web-1");
    assert_eq!(web.tasks, ["gold"]);
    assert_eq!(web.skipped["marker"], "type is skipped");
    assert!(
        web.skipped["absent"].starts_with("condition counts as false: it reads `labels.absent`"),
        "{:?}",
        web.skipped
    );
    let db = made.plain("db-2");
    assert_eq!(db.skipped["gold"], "condition is false: labels.tier == 'gold'");
    assert!(made.answer("db-2").findings().iter().any(|finding| finding.code == "condition.failed"));
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

#[test]
fn an_unmet_requirement_is_said() {
    let mut documents = reading(&json!([]));
    documents[4]["requirements"] = json!({"property:memory_mb": ">= 1024", "trait:HW_CPU_X86_AVX2": "forbidden"});
    let made = Made::of(&documents);
    let unmet: Vec<_> = made.answer("web-1").unmet().iter().map(ToString::to_string).collect();
    assert_eq!(unmet, ["requirement property:memory_mb >= 1024 is not met"]);
    documents[7]["properties"] = json!({"memory_mb": 2048});
    assert!(Made::of(&documents).answer("web-1").unmet().is_empty());
}

#[test]
fn a_cycle_that_comes_by_placement_is_spelled_out() {
    let tasks = json!([
        {"id": "app", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"]}]},
        {"id": "db", "type": "puppet", "tags": ["mysql"], "requires": ["app"]},
    ]);
    let mut documents = reading(&tasks);
    let made = Made::of(&documents);
    assert!(resolve_fleet(&made.fleet, &made.cache).is_ok());
    documents[5]["roles"] = json!(["web"]);
    // Of `any`, the first by name is waited for, which is the very node.
    for policy in ["all", "any"] {
        documents[1]["tasks"][0]["cross_depends"][0]["policy"] = json!(policy);
        let made = Made::of(&documents);
        let errors = resolve_fleet(&made.fleet, &made.cache).expect_err("a cycle");
        assert_eq!(
            errors[0].to_string(),
            "cluster prod: tasks wait for each other: db-2/app -> db-2/db -> db-2/app; \
             take one of these dependencies away, or place a task elsewhere"
        );
    }
}

#[test]
fn an_unplaced_node_has_labels_and_no_tasks() {
    let mut documents = reading(&tasks());
    documents.push(json!({"kind": "Node", "name": "spare", "labels": {"rack": "r1"}}));
    let made = Made::of(&documents);
    let spare = made.plain("spare");
    assert_eq!((spare.labels.len(), spare.tasks.len(), spare.task_digest), (1, 0, None));
    assert!(made.answer("spare").place().is_none());
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
fn a_node_parked_on_its_host_holds_no_primary_and_takes_no_part() {
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
        ["info host.parked node/db-2: it is parked on its host (re\\npair): barriers and primaries pass it over"]
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

#[test]
fn s38_traits_that_are_not_taken_are_a_finding_of_their_node() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    let id = made.node("web-1").id();
    let refused = RefusedTraits { unknown: [Box::from("'NO_SUCH'")].into(), unknown_count: 3, surplus: 1 };
    let left_out = NotTaken { traits: refused, ..NotTaken::default() };
    let seen = Observation { not_taken: left_out.boxed(), ..Observation::default() };
    made.fleet.apply(Change::Observation(id, Arc::new(seen)));
    assert_eq!(
        made.answer("web-1").findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "warning trait.refused node/web-1: its host reports traits that are not taken: 'NO_SUCH' and 2 more (a standard name, or \
          CUSTOM_ and then capitals, digits and '_', at most 255 characters); 1 beyond the 50 that one source may give"
        ]
    );
    assert_eq!(made.answer("web-1").traits().names().len(), 0);
}

#[test]
fn s39_what_a_host_reports_beyond_the_bounds_is_a_finding_of_its_node() {
    let mut made = Made::of(&site(&json!({}), &tasks()));
    let id = made.node("web-1").id();
    let left_out = NotTaken { facts: 2, labels: 1, ..NotTaken::default() };
    let seen = Observation { not_taken: left_out.boxed(), ..Observation::default() };
    made.fleet.apply(Change::Observation(id, Arc::new(seen)));
    assert_eq!(
        made.answer("web-1").findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "warning report.left_out node/web-1: its host reports more than is taken; left out: 2 facts (a path has at most 16 names \
          and 255 bytes, a value 16384 bytes, all together 262144); 1 labels (a value has at most 4096 bytes, all together 65536)"
        ]
    );
}

#[test]
fn a_fleet_is_printed_with_stages_order_and_what_falls_to_master() {
    let tasks = json!([
        {"id": "begin", "type": "stage"},
        {"id": "keys", "type": "puppet", "roles": ["master"], "requires": ["begin"]},
        {"id": "db", "type": "puppet", "tags": ["mysql"], "cross_depends": [{"name": "keys", "role": "master"}]},
        {"id": "app", "type": "puppet", "tags": ["nginx"], "cross_depends": [{"name": "db", "tags": ["mysql"], "policy": "any"}]},
        {"id": "bye", "type": "puppet", "tags": ["nginx"], "phase": "cleanup", "requires": ["app"]},
    ]);
    let made = Made::of(&reading(&tasks));
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

/// Each field that nothing acts on yet is said where it is given, and is no error.
#[test]
fn w02_no_field_is_taken_in_silence_that_nothing_acts_on() {
    let shell = |more: Value| {
        let mut task = json!({"id": "conf", "type": "shell", "tags": ["nginx"], "parameters": {"script": "true"}});
        task.as_object_mut().expect("a task").extend(more.as_object().expect("fields").clone());
        task
    };
    let idle = json!({"id": "conf", "on_unassign": "undo", "disruptive": true, "max_nodes": 1, "privileged": true,
        "timeout_seconds": 9, "on_interrupt": "again", "tasks": ["undo"]});
    let file = json!({"id": "file", "type": "file", "tags": ["nginx"], "timeout_seconds": 9, "on_interrupt": "again",
        "parameters": {"path": "/f", "content": ""}});
    let tasks = json!([shell(idle), shell(json!({"id": "undo", "phase": "cleanup"})), file,
        {"id": "all", "type": "group", "tags": ["nginx"], "tasks": ["undo"], "requires": ["conf"]},
        {"id": "point", "type": "stage", "required_for": ["conf"], "condition": "true"}]);
    let mut documents = site(&json!({}), &tasks);
    let given = [
        json!({"node_deletion_timeout": 5}),
        json!({"extensions": [{"roles": ["web"], "use": "x"}]}),
        json!({"rollout": {"max_groups": 1}, "min_ready_seconds": 5, "host_labels": {"annotations": ["a/.*"]},
            "tags": {"extra": {"ready": [{"tcp": 80}]}}}),
        json!({"strategy": {"max_unavailable": 1}, "mend_offline": true}),
        json!({"node_volume_detach_timeout": 5}),
        json!({"node_drain_timeout": 5}),
    ];
    for (document, given) in documents.iter_mut().zip(given) {
        document.as_object_mut().expect("a document").extend(given.as_object().expect("fields").clone());
    }
    documents[1]["roles"]["web"]["fault_tolerance"] = json!(1);
    documents[1]["tags"]["nginx"]["ready"] = json!([{"tcp": 80}]);
    let made = Made::of(&documents);
    let findings = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").findings;
    let idle: Vec<_> = findings.into_iter().filter(|finding| finding.code == "field.idle").collect();
    assert!(idle.iter().all(|finding| finding.severity == Severity::Info));
    let objects: Vec<_> = idle.iter().map(|finding| finding.object.as_str()).collect();
    assert_eq!(
        objects,
        [
            "cluster/prod host_labels.annotations",
            "cluster/prod min_ready_seconds",
            "cluster/prod rollout",
            "cluster/prod tags.extra.ready",
            "clustertemplate/base node_deletion_timeout",
            "node/db-2 node_drain_timeout",
            "nodegroup/prod/dbs mend_offline",
            "nodegroup/prod/dbs strategy",
            "nodegroup/prod/webs node_volume_detach_timeout",
            "release/site@1 extensions",
            "release/site@1 roles.web.fault_tolerance",
            "release/site@1 tags.nginx.ready",
            "release/site@1 task all requires",
            "release/site@1 task conf disruptive",
            "release/site@1 task conf max_nodes",
            "release/site@1 task conf on_unassign",
            "release/site@1 task conf privileged",
            "release/site@1 task conf tasks",
            "release/site@1 task file on_interrupt",
            "release/site@1 task file timeout_seconds",
            "release/site@1 task point condition",
            "release/site@1 task undo phase",
        ]
    );
    let made = Made::of(&site(&json!({}), &json!([shell(json!({"timeout_seconds": 9, "on_interrupt": "again"}))])));
    let findings = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").findings;
    assert!(findings.iter().all(|finding| finding.code != "field.idle"), "{findings:?}");
}

/// In a dependency `role: '*'` means what it means in a task's `roles`, and the text `tags: '*'` whoever has a tag. Of the nodes, db-2
/// has a role and no tag, and tagged has a tag and no role.
#[test]
fn w04_a_star_means_whoever_has_a_role_or_whoever_has_a_tag() {
    let documents = |matching: &Value, mut entry: Value| {
        entry["name"] = "/first/".into();
        let tasks = json!([
            {"id": "first-by-role", "type": "puppet", "roles": "*"},
            {"id": "first-by-tag", "type": "puppet", "tags": "*"},
            {"id": "first-by-item", "type": "puppet", "tags": ["*"]},
            {"id": "last", "type": "puppet", "tags": ["late"], "cross_depends": [entry]},
        ]);
        let mut documents = site(matching, &tasks);
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
        let made = Made::of(&documents(&matching, entry.clone()));
        let order = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").order;
        let before = order.into_iter().filter(|[_, (_, after)]| after == "last").filter_map(|[(node, _), _]| node);
        let before: BTreeSet<String> = before.filter(|node| node != "waits").collect();
        assert_eq!(before.iter().map(String::as_str).collect::<Vec<_>>(), first, "{matching} {entry}");
    }
    let made = Made::of(&documents(&json!({}), json!({})));
    for (node, tasks) in [("db-2", &["first-by-role"][..]), ("tagged", &["first-by-tag"])] {
        assert_eq!(made.plain(node).tasks, tasks, "{node}");
    }
}

/// Also where tasks between them give the order.
#[test]
fn w04_stages_stand_in_their_order() {
    let tasks = json!([
        {"id": "a-last", "type": "stage"},
        {"id": "b-middle", "type": "stage", "requires": ["z-first"]},
        {"id": "c-beside", "type": "stage"},
        {"id": "m-task", "type": "puppet", "tags": ["nginx"], "requires": ["b-middle"],
            "required_for": ["a-last"]},
        {"id": "z-first", "type": "stage"},
    ]);
    let made = Made::of(&site(&json!({}), &tasks));
    let stages = resolve_fleet(&made.fleet, &made.cache).expect("it resolves").stages;
    assert_eq!(stages, ["c-beside", "z-first", "b-middle", "a-last"]);
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
