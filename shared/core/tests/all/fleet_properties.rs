//! Properties of the fleet model: every node with a new output was marked dirty, and caches change no result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_core::fleet::{DirtyNodes, Fleet, FleetChange, IndexTerm, NodeSet, NodeView};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::name::{Name, NodeName, TagName};
use stemma_core::object::{ClusterId, DecidedTags, FactMap, Node, NodeId, Observation};
use stemma_core::ownership::Manager;
use stemma_core::requirement::Requirement;
use stemma_core::resolve::{NodeOutput, Resolution, ResolveCache, resolve_node};
use stemma_core::selector::Selector;
use stemma_core::traits::Trait;

use crate::fleet_fixture::{file_task, to_changes};

/// An edit: the index of the object, and the index of the version (form) that it gets.
#[derive(Clone, Debug)]
struct Edit {
    object: usize,
    form: usize,
}

/// Returns all versions of the site's documents. Each object begins with its first version.
fn site_versions() -> Vec<Vec<Value>> {
    let template =
        |labels: Value, more: Value| with_fields(json!({"kind": "ClusterTemplate", "name": "base", "labels": labels}), more);
    let cluster =
        |name: &str, more: Value| with_fields(json!({"kind": "Cluster", "name": name, "cluster_template": "base"}), more);
    let group = |cluster: &str, name: &str, more: Value| {
        with_fields(json!({"kind": "NodeGroup", "cluster": cluster, "name": name}), more)
    };
    let node = |name: &str, more: Value| with_fields(json!({"kind": "Node", "name": name}), more);
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
            node(name, json!({"nodegroup": "c/a", "merge_labels": false, "labels": {"y": "alone"}, "properties": {"size": 2}})),
            node(name, json!({"nodegroup": "c/a", "merge_labels": false, "labels": {"z": null}})),
        ]
    });
    let mut all = vec![
        vec![
            release_manifest("{{ labels.x }}"),
            release_manifest("{{ labels.y | default('') }}"),
            with_fields(release_manifest("{{ labels.x }}"), json!({"extensions": [{"roles": ["db"], "use": EXTENSION}]})),
        ],
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
            cluster("c", json!({"primaries": {"db": "n10"}})),
        ],
        vec![cluster("d", json!({}))],
        vec![
            group("c", "a", json!({"roles": ["db"]})),
            group("c", "a", json!({"roles": ["db", "web"], "labels": {"y": "a"}})),
            group("c", "a", json!({"roles": ["db"], "mode": "noop", "requirements": {"trait:CUSTOM_FAST": "required"}})),
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

fn with_fields(mut document: Value, more: Value) -> Value {
    let Value::Object(more) = more else { unreachable!("the forms are objects") };
    document.as_object_mut().expect("an object").extend(more);
    document
}

fn release_manifest(template: &str) -> Value {
    json!({
        "kind": "Release", "name": "site", "version": "1",
        "roles": {"db": {"tags": ["db", "common"]}, "web": {"tags": ["web", "common"]}},
        "tags": {"db": {"has_primary": true}, "web": {}, "common": {}},
        "tasks": [
            file_task("conf", "common", template),
            file_task("params", "db", "{{ params.p | default(0) }}"),
            file_task("peers", "web", "{% for n in nodes(tag='db') %}{{ n.name }} {{ n.address }} {{ n.labels.x }}{% endfor %}"),
            file_task("addresses", "web", "{% for n in nodes(tag='db') %}{{ n.address }} {% endfor %}"),
            file_task("leader", "web", "{{ primary('db').name }}"),
            file_task("all", "db", "{{ nodes(role=['db', 'web']) | length }}"),
            file_task("facts", "db", "{{ facts.os.id | default('') }} {{ node.address | default('') }}"),
            file_task("prefix", "web", "{{ labels_with_prefix('z') | length }}"),
            {"id": "lead", "type": "puppet", "tags": ["primary-db"]},
            {"id": "fast", "type": "puppet", "roles": ["*"], "condition": "'CUSTOM_FAST' in traits && labels.x == '2'"},
        ],
    })
}

/// Returns the change of one object to its version in `forms`.
fn object_change(all: &[Vec<Value>], forms: &[usize], object: usize) -> FleetChange {
    let documents: Vec<_> = all
        .iter()
        .zip(forms)
        .map(|(forms, form)| read_document(&forms[*form].to_string()).expect("a document of the test"))
        .collect();
    let manager = Manager::new("test").expect("a manager");
    let objects = assemble(&documents, &manager).expect("manifests of the test");
    with_decision(to_changes(objects).remove(object), forms[object])
}

/// The extension that one version of the release names.
const EXTENSION: &str = "placement";

/// Adds an extension's decision to one version of a node. Manifests cannot contain decisions.
fn with_decision(change: FleetChange, form: usize) -> FleetChange {
    match change {
        FleetChange::Node(node) if form == 4 => {
            let mut node = Node::clone(&node);
            let made = DecidedTags {
                extension: EXTENSION.to_owned(),
                cluster: ClusterId(uuid::Uuid::nil()),
                tags: vec![TagName::new("web").expect("a tag"), TagName::new("gone").expect("a tag")],
                question: String::new(),
            };
            node.spec.tags.decided.insert(Name::new("db").expect("a role"), made);
            FleetChange::Node(Arc::new(node))
        }
        other => other,
    }
}

/// Gives a renamed node its other name, which sorts before the names of the site.
fn with_name(change: FleetChange, is_renamed: bool) -> FleetChange {
    match change {
        FleetChange::Node(node) if is_renamed => {
            let mut node = Node::clone(&node);
            let name = node.meta.name.as_ref().map(|name| format!("a-{name}")).expect("a node of the test has a name");
            node.meta.name = Some(NodeName::new(&name).expect("a name"));
            FleetChange::Node(Arc::new(node))
        }
        other => other,
    }
}

fn observation_change(node: NodeId, form: usize) -> FleetChange {
    let facts = [
        json!({}),
        json!({"network": {"address": "10.0.0.1"}, "os": {"id": "debian"}}),
        json!({"network": {"address": "no address"}, "os": {"id": "fedora"}}),
    ];
    let facts = FactMap::from_tree(facts[form % 3].as_object().expect("facts"));
    let label = stemma_core::object::ReportedLabel { key: "z".into(), value: "host".into(), source: "f:1".into() };
    let labels = (form >= 3).then_some(label).into_iter().collect();
    let traits = (form >= 4).then(|| Trait::new("CUSTOM_SEEN").expect("a trait"));
    let traits = Arc::new(traits.into_iter().collect());
    FleetChange::Observation(node, Arc::new(Observation { facts, traits, labels, ..Observation::default() }))
}

/// Function that returns the nodes that the index selects for a filter's text.
type IndexLookup = fn(&Fleet, &str) -> NodeSet;
/// Function that returns whether the filter selects a node.
type NodePredicate = fn(&NodeView<'_>, &str) -> bool;
/// A filter for lists of nodes.
type NodeFilter = (&'static str, IndexLookup, NodePredicate);

const LABEL_SELECTOR_FILTER: (IndexLookup, NodePredicate) = (
    |fleet, text| fleet.selector_set(&Selector::parse(text).expect("a selector")),
    |view, text| Selector::parse(text).expect("a selector").matches(view, &view.reported_labels()),
);
const REQUIREMENT_FILTER: (IndexLookup, NodePredicate) = (
    |fleet, text| fleet.requirement_set(&Requirement::parse(text).expect("a requirement")),
    |view, text| Requirement::parse(text).expect("a requirement").holds(view),
);

fn node_filters() -> Vec<NodeFilter> {
    let selected = [
        "x=1",
        "x=c",
        "x!=1",
        "x",
        "!x",
        "y in (a,alone)",
        "y notin (a,alone)",
        "z=host",
        "z",
        "!z",
        "z!=host",
        "x>1",
        "reported:z=host",
        "reported:z",
        "reported:z in (host,other)",
        "reported:!z",
        "reported:z!=x",
        "x=own,y=a",
    ];
    let met = [
        "trait:CUSTOM_FAST required",
        "trait:CUSTOM_FAST forbidden",
        "trait:CUSTOM_SEEN required",
        "label:z host",
        "x >= 2",
        "x 1",
        "x <or> 1 <or> c",
        "y s!= a",
        "property:size >= 2",
        "property:size < 2",
        "fact:os.id debian",
        "param:q >= 2",
    ];
    let selected = selected.into_iter().map(|text| (text, LABEL_SELECTOR_FILTER.0, LABEL_SELECTOR_FILTER.1));
    let met = met.into_iter().map(|text| (text, REQUIREMENT_FILTER.0, REQUIREMENT_FILTER.1));
    let others: [NodeFilter; 2] = [
        (
            "web",
            |fleet, role| fleet.role_set(&Name::new(role).expect("a name")),
            |view, role| view.roles().iter().any(|own| own.as_str() == role),
        ),
        (
            "db",
            |_, tag| NodeSet::Term(IndexTerm::Tag(TagName::new(tag).expect("a tag"))),
            |view, tag| view.tags().iter().any(|own| own.as_str() == tag),
        ),
    ];
    selected.chain(met).chain(others).collect()
}

/// Returns the nodes of a set in each order that a list of nodes can have.
fn ordered_results(fleet: &Fleet, among: &NodeSet) -> [Vec<NodeId>; 4] {
    let walk = |last_first| fleet.walk(among.clone(), None, last_first).expect("an index").collect();
    let by_name = |last_first| fleet.walk_by_name(among, None, last_first).expect("an index").collect();
    [walk(false), walk(true), by_name(false), by_name(true)]
}

/// Checks that every filter finds the nodes that it selects, and that the index equals a rebuilt one.
fn check_index(fleet: &Fleet) -> Result<(), TestCaseError> {
    let mut rebuilt = fleet.clone();
    let order: Vec<NodeId> = fleet.walk(NodeSet::All, None, false).expect("an index").collect();
    rebuilt.build_index(order.iter().copied());
    prop_assert_eq!(order.len(), fleet.nodes().count());
    for (text, among, is_selected) in node_filters() {
        let among = among(fleet, text);
        let [in_order, backwards, by_name, by_name_backwards] = ordered_results(fleet, &among);
        prop_assert_eq!(ordered_results(&rebuilt, &among), ordered_results(fleet, &among), "{} in an index made anew", text);
        let matching = order.iter().filter(|id| is_selected(&fleet.node_view(**id).expect("a node"), text));
        for id in matching {
            prop_assert!(in_order.contains(id), "{} leaves out {}", text, fleet.node(*id).expect("a node").display_name());
        }
        let name = |id: &NodeId| fleet.node(*id).expect("a node").meta.name.clone();
        prop_assert!(by_name.is_sorted_by_key(name));
        let set = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<_>>();
        prop_assert_eq!(set(&in_order), set(&by_name));
        prop_assert!(in_order.iter().rev().eq(&backwards) && by_name.iter().rev().eq(&by_name_backwards), "{}", text);
        for (at, id) in in_order.iter().enumerate() {
            let after: Vec<NodeId> = fleet.walk(among.clone(), Some(*id), false).expect("an index").collect();
            prop_assert_eq!(&after[..], &in_order[at + 1..], "{} behind a node", text);
            let before: Vec<NodeId> = fleet.walk(among.clone(), Some(*id), true).expect("an index").collect();
            prop_assert!(before.iter().rev().eq(&in_order[..at]), "{} before a node", text);
        }
        for (at, id) in by_name.iter().enumerate() {
            let node = fleet.node(*id).expect("a node");
            let after: Vec<NodeId> = fleet.walk_by_name(&among, Some(node), false).expect("an index").collect();
            prop_assert_eq!(&after[..], &by_name[at + 1..], "{} behind a name", text);
        }
    }
    Ok(())
}

type NodeOutputs = BTreeMap<NodeId, Option<NodeOutput>>;

fn node_outputs(fleet: &Fleet, cache: &ResolveCache) -> NodeOutputs {
    let output_of = |id| match resolve_node(fleet, cache, id) {
        Resolution::Complete(node) => {
            let mut output = NodeOutput::from_node(&node);
            // Other values that a host receives, so that they are compared too.
            let other_values =
                format!("{:?} {:?} {:?} {}", node.mode(), node.lifecycle_limits(), node.unmet_requirements(), node.is_paused());
            output.annotations.insert("told".into(), other_values);
            Some(output)
        }
        Resolution::Incomplete(_) => None,
    };
    fleet.nodes().map(|node| (node.id(), output_of(node.id()))).collect()
}

fn edit_strategy() -> impl Strategy<Value = Edit> {
    (0..16_usize, 0..12_usize).prop_map(|(object, form)| Edit { object, form })
}

/// The objects of the two cases of [`notable_edit_sequences`], as indices of an [`Edit`].
const TEMPLATE: usize = 1;
const CLUSTER: usize = 2;
const GROUP: usize = 4;
const NODE: usize = 7;
const OBSERVATION: usize = 10;

/// Returns edits that produce two known regressions for the first node, with other edits before, between and after
/// them, and the positions of the two edits that change the node's output. In the first case a host fills `z` of a node
/// that does not merge, and then the template sets `z`. In the second case the group requires a parameter that nothing
/// else reads, and the cluster changes it.
fn notable_edit_sequences() -> impl Strategy<Value = (Vec<Edit>, [usize; 2])> {
    let required = [(GROUP, 3), (NODE, 10), (OBSERVATION, 3), (TEMPLATE, 3), (GROUP, 4), (CLUSTER, 2)];
    let free = (0..16_usize, 0..12_usize).prop_map(|(object, form)| Edit { object, form });
    let is_free = |edit: &Edit| ![TEMPLATE, CLUSTER, GROUP, NODE, OBSERVATION].contains(&edit.object);
    let between = proptest::collection::vec(free.prop_filter("it leaves them as they are", is_free), 0..2);
    let behind = proptest::collection::vec(edit_strategy(), 0..4);
    (proptest::collection::vec(between, required.len()), behind).prop_map(move |(between, behind)| {
        let (mut edits, mut positions) = (Vec::new(), Vec::new());
        for ((object, form), others) in required.into_iter().zip(between) {
            edits.extend(others);
            positions.push(edits.len());
            edits.push(Edit { object, form });
        }
        edits.extend(behind);
        (edits, [positions[3], positions[5]])
    })
}

/// Applies the edits in order. Checks that each node with a new output was marked dirty, and that neither caches nor
/// the order of edits change a result. Returns for each edit whether it changed the first node's output.
fn apply_edits(edits: Vec<Edit>) -> Result<Vec<bool>, TestCaseError> {
    let all = site_versions();
    let mut forms = vec![0; all.len()];
    // True for each object that has its other name. Only nodes are renamed.
    let mut other_name = vec![false; all.len()];
    let mut fleet = Fleet::new();
    for object in 0..all.len() {
        fleet.apply(object_change(&all, &forms, object));
    }
    fleet.set_loaded();
    fleet.build_index(fleet.clone().nodes().map(|node| node.id()));
    let cache = ResolveCache::new();
    let ids: Vec<NodeId> =
        ["n1", "n2", "n10"].iter().map(|name| fleet.node_by_name(name).expect("the site has it").id()).collect();
    let mut before = node_outputs(&fleet, &cache);
    let mut changed = Vec::new();
    for Edit { object, form } in edits {
        let dirty: DirtyNodes = if object < all.len() {
            forms[object] = form % all[object].len();
            fleet.apply(with_name(object_change(&all, &forms, object), other_name[object]))
        } else if object >= all.len() + 3 {
            let node = object - 6;
            other_name[node] = !other_name[node];
            fleet.apply(with_name(object_change(&all, &forms, node), other_name[node]))
        } else {
            fleet.apply(observation_change(ids[(object - all.len()) % 3], form % 6))
        };
        check_index(&fleet)?;
        let after = node_outputs(&fleet, &cache);
        let reached: BTreeSet<_> = dirty.nodes(&fleet).collect();
        for (id, answer) in &after {
            prop_assert!(
                reached.contains(id) || before[id] == *answer,
                "{} was not reached: {:?} {:?}",
                fleet.node(*id).expect("who answers is there").display_name(),
                before[id],
                answer
            );
        }
        prop_assert_eq!(&after, &node_outputs(&fleet, &ResolveCache::new()), "memory changes no answer");
        changed.push(before[&ids[0]] != after[&ids[0]]);
        before = after;
    }
    let mut fresh = Fleet::new();
    for object in (0..all.len()).rev() {
        fresh.apply(with_name(object_change(&all, &forms, object), other_name[object]));
    }
    for id in &ids {
        if let Some(seen) = fleet.observation(*id) {
            fresh.apply(FleetChange::Observation(*id, Arc::clone(seen)));
        }
    }
    fresh.set_loaded();
    prop_assert_eq!(node_outputs(&fresh, &ResolveCache::new()), before, "the order of changes means nothing");
    Ok(changed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 10, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn dirty_nodes_include_every_node_with_new_output(edits in proptest::collection::vec(edit_strategy(), 1..12)) {
        apply_edits(edits)?;
    }

    #[test]
    fn w03_dirty_nodes_include_changed_nodes_in_known_regressions((edits, counted) in notable_edit_sequences()) {
        let told = apply_edits(edits)?;
        prop_assert!(counted.iter().all(|place| told[*place]), "both constellations are made: {:?}", told);
    }
}
