//! Properties of the fleet's model: whoever is told something else was reached, and memory changes no answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_author::Reader;
use stemma_core::fleet::{Change, Dirty, Fleet};
use stemma_core::manifest::{Objects, assemble, read_document};
use stemma_core::name::NodeName;
use stemma_core::object::{FactMap, Node, NodeId, Observation};
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{PlainAnswer, Resolution, ResolveCache, resolve_node};

/// One edit: which object, and which of its few forms it takes.
#[derive(Clone, Debug)]
struct Edit {
    object: usize,
    form: usize,
}

/// The site's documents in every form that an edit may give them. The first form of each is where all begin.
fn documents() -> Vec<Vec<Value>> {
    let template =
        |labels: Value, more: Value| merged(json!({"kind": "ClusterTemplate", "name": "base", "labels": labels}), more);
    let cluster =
        |name: &str, more: Value| merged(json!({"kind": "Cluster", "name": name, "cluster_template": "base"}), more);
    let group = |cluster: &str, name: &str, more: Value| {
        merged(json!({"kind": "NodeGroup", "cluster": cluster, "name": name}), more)
    };
    let node = |name: &str, more: Value| merged(json!({"kind": "Node", "name": name}), more);
    let nodes = ["n1", "n2", "n10"].map(|name| {
        vec![
            node(name, json!({"nodegroup": "c/a"})),
            node(name, json!({"nodegroup": "c/b"})),
            node(name, json!({"nodegroup": "d/a"})),
            node(name, json!({})),
            node(name, json!({"nodegroup": "c/a", "labels": {"x": "own"}})),
            node(name, json!({"nodegroup": "c/a", "labels": {"x": null}, "parameters": {"p": 2}})),
            node(name, json!({"nodegroup": "c/b", "merge_labels": false, "labels": {"y": "alone"}})),
            node(name, json!({"nodegroup": "c/a", "parked": true})),
            node(name, json!({"nodegroup": "c/a", "tags": {"assigned": ["web"], "unassigned": ["db"]}})),
            node(name, json!({"nodegroup": "c/a", "roles": ["web"], "traits": ["CUSTOM_FAST"]})),
            node(
                name,
                json!({"nodegroup": "c/a", "merge_labels": false, "labels": {"y": "alone"}, "properties": {"size": 2}}),
            ),
            node(name, json!({"nodegroup": "c/a", "merge_labels": false, "labels": {"z": null}})),
        ]
    });
    let mut all = vec![
        vec![release("{{ labels.x }}"), release("{{ labels.y | default('') }}")],
        vec![
            template(json!({"x": "1", "y": "1"}), json!({"release": "site@1"})),
            template(json!({"x": "2"}), json!({"release": "site@1", "parameters": {"p": 1}})),
            template(json!({}), json!({"release": "site@1", "node_drain_timeout": 5})),
            template(json!({"z": "set"}), json!({"release": "site@1", "parameters": {"q": 3}})),
            template(json!({"z": null}), json!({"release": "site@1"})),
        ],
        vec![
            cluster("c", json!({})),
            cluster("c", json!({"labels": {"x": "c"}})),
            cluster("c", json!({"parameters": {"q": 1}})),
            cluster("c", json!({"roles": {"db": {"remove_tags": ["db"]}}})),
            cluster("c", json!({"tags": {"extra": {"has_primary": true, "role": "db"}}, "paused": true})),
        ],
        vec![cluster("d", json!({}))],
        vec![
            group("c", "a", json!({"roles": ["db"]})),
            group("c", "a", json!({"roles": ["db", "web"], "labels": {"y": "a"}})),
            group(
                "c",
                "a",
                json!({"roles": ["db"], "mode": "noop", "requirements": {"trait:CUSTOM_FAST": "required"}}),
            ),
            group("c", "a", json!({"roles": ["db"], "host_labels": {"accept": ["z"]}})),
            group(
                "c",
                "a",
                json!({"roles": ["db"], "host_labels": {"accept": ["z"]}, "requirements": {
                    "param:q": ">= 2", "label:z": "host", "property:size": ">= 2", "fact:os.id": "debian",
                }}),
            ),
        ],
        vec![group("c", "b", json!({"roles": ["web"]})), group("c", "b", json!({}))],
        vec![group("d", "a", json!({"roles": ["db"]}))],
    ];
    all.extend(nodes);
    all
}

fn merged(mut document: Value, more: Value) -> Value {
    let Value::Object(more) = more else { unreachable!("the forms are objects") };
    document.as_object_mut().expect("an object").extend(more);
    document
}

fn release(template: &str) -> Value {
    let file = |id: &str, tag: &str, text: &str| json!({"id": id, "type": "file", "tags": [tag], "parameters": {"path": format!("/{id}"), "template": text}});
    json!({
        "kind": "Release", "name": "site", "version": "1",
        "roles": {"db": {"tags": ["db", "common"]}, "web": {"tags": ["web", "common"]}},
        "tags": {"db": {"has_primary": true}, "web": {}, "common": {}},
        "tasks": [
            file("conf", "common", template),
            file("params", "db", "{{ params.p | default(0) }}"),
            file("peers", "web", "{% for n in nodes(tag='db') %}{{ n.name }} {{ n.address }} {{ n.labels.x }}{% endfor %}"),
            file("addresses", "web", "{% for n in nodes(tag='db') %}{{ n.address }} {% endfor %}"),
            file("leader", "web", "{{ primary('db').name }}"),
            file("all", "db", "{{ nodes(role=['db', 'web']) | length }}"),
            file("facts", "db", "{{ facts.os.id | default('') }} {{ node.address | default('') }}"),
            file("prefix", "web", "{{ labels_with_prefix('z') | length }}"),
            {"id": "lead", "type": "puppet", "tags": ["primary-db"]},
            {"id": "fast", "type": "puppet", "roles": ["*"], "condition": "'CUSTOM_FAST' in traits && labels.x == '2'"},
        ],
    })
}

/// The changes of one object in one form; of several documents those that concern it.
fn change(all: &[Vec<Value>], forms: &[usize], object: usize) -> Change {
    let documents: Vec<_> = all
        .iter()
        .zip(forms)
        .map(|(forms, form)| read_document(&forms[*form].to_string()).expect("a document of the test"))
        .collect();
    let manager = Manager::new("test").expect("a manager");
    let objects = assemble(&documents, &manager).expect("manifests of the test");
    changes(objects).remove(object)
}

/// The same change, with the node under another name: one that sorts first.
fn renamed(change: Change, is_renamed: bool) -> Change {
    match change {
        Change::Node(node) if is_renamed => {
            let mut node = Node::clone(&node);
            let name = node.meta.name.as_ref().map(|name| format!("a-{name}")).expect("a node of the test has a name");
            node.meta.name = Some(NodeName::new(&name).expect("a name"));
            Change::Node(Arc::new(node))
        }
        other => other,
    }
}

/// In the order of the documents.
fn changes(objects: Objects) -> Vec<Change> {
    let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
    let releases = compile_set(&specs, &Reader).expect("releases of the test");
    let mut changes: Vec<Change> = releases.into_values().map(Change::Release).collect();
    changes.extend(objects.templates.into_iter().map(|one| Change::Template(Arc::new(one))));
    changes.extend(objects.clusters.into_iter().map(|one| Change::Cluster(Arc::new(one))));
    changes.extend(objects.groups.into_iter().map(|one| Change::NodeGroup(Arc::new(one))));
    changes.extend(objects.nodes.into_iter().map(|one| Change::Node(Arc::new(one))));
    changes
}

fn observed(node: NodeId, form: usize) -> Change {
    let facts = [
        json!({}),
        json!({"network": {"address": "10.0.0.1"}, "os": {"id": "debian"}}),
        json!({"network": {"address": "no address"}, "os": {"id": "fedora"}}),
    ];
    let facts = FactMap::from_tree(facts[form % 3].as_object().expect("facts"));
    let label = stemma_core::object::ReportedLabel { key: "z".into(), value: "host".into(), source: "f:1".into() };
    let labels = (form >= 3).then_some(label).into_iter().collect();
    Change::Observation(node, Arc::new(Observation { facts, labels, ..Observation::default() }))
}

type Answers = BTreeMap<NodeId, Option<PlainAnswer>>;

fn answers(fleet: &Fleet, cache: &ResolveCache) -> Answers {
    let of = |id| match resolve_node(fleet, cache, id) {
        Resolution::Complete(answer) => {
            let mut plain = PlainAnswer::of(&answer);
            // What else a host is told, so that it is compared too.
            let told = format!("{:?} {:?} {:?} {}", answer.mode(), answer.limits(), answer.unmet(), answer.is_paused());
            plain.annotations.insert("told".into(), told);
            Some(plain)
        }
        Resolution::Incomplete(_) => None,
    };
    fleet.nodes().map(|node| (node.id(), of(node.id()))).collect()
}

fn edit() -> impl Strategy<Value = Edit> {
    (0..16_usize, 0..12_usize).prop_map(|(object, form)| Edit { object, form })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 10, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn whoever_is_told_something_else_was_reached(edits in proptest::collection::vec(edit(), 1..12)) {
        let all = documents();
        let mut forms = vec![0; all.len()];
        // Objects under another name: nodes alone are renamed.
        let mut other_name = vec![false; all.len()];
        let mut fleet = Fleet::new();
        for object in 0..all.len() {
            fleet.apply(change(&all, &forms, object));
        }
        fleet.set_loaded();
        let cache = ResolveCache::new();
        let ids: Vec<NodeId> = ["n1", "n2", "n10"].iter().map(|name| fleet.node_named(name).unwrap().id()).collect();
        let mut before = answers(&fleet, &cache);
        for Edit { object, form } in edits {
            let dirty: Dirty = if object < all.len() {
                forms[object] = form % all[object].len();
                fleet.apply(renamed(change(&all, &forms, object), other_name[object]))
            } else if object >= all.len() + 3 {
                let node = object - 6;
                other_name[node] = !other_name[node];
                fleet.apply(renamed(change(&all, &forms, node), other_name[node]))
            } else {
                fleet.apply(observed(ids[(object - all.len()) % 3], form % 6))
            };
            let after = answers(&fleet, &cache);
            for (id, answer) in &after {
                prop_assert!(
                    dirty.contains(*id) || before[id] == *answer,
                    "{} was not reached: {:?} {:?}", fleet.node(*id).unwrap().display_name(), before[id], answer
                );
            }
            prop_assert_eq!(&after, &answers(&fleet, &ResolveCache::new()), "memory changes no answer");
            before = after;
        }
        let mut fresh = Fleet::new();
        for object in (0..all.len()).rev() {
            fresh.apply(renamed(change(&all, &forms, object), other_name[object]));
        }
        for id in &ids {
            if let Some(seen) = fleet.observation(*id) {
                fresh.apply(Change::Observation(*id, Arc::clone(seen)));
            }
        }
        fresh.set_loaded();
        prop_assert_eq!(answers(&fresh, &ResolveCache::new()), before, "the order of changes means nothing");
    }
}
