//! Properties of the fleet model: a change marks every node dirty (to be resolved again) whose desired state then
//! differs, and caches change no result.

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

/// An edit in a random sequence. `object` is an index in [`site_versions`], and `form` selects the version that the
/// object gets (its index modulo the number of versions). The three indices after the last object select a report of
/// each node, and the next three a rename of each node. A second rename of a node restores its name.
#[derive(Clone, Debug)]
struct Edit {
    object: usize,
    form: usize,
}

/// Returns for each object of the site all versions of its document. A test starts with the first version of each
/// object.
fn site_versions() -> Vec<Vec<Value>> {
    let template =
        |labels: Value, fields: Value| with_fields(json!({"kind": "ClusterTemplate", "name": "base", "labels": labels}), fields);
    let cluster =
        |name: &str, fields: Value| with_fields(json!({"kind": "Cluster", "name": name, "cluster_template": "base"}), fields);
    let group = |cluster: &str, name: &str, fields: Value| {
        with_fields(json!({"kind": "NodeGroup", "cluster": cluster, "name": name}), fields)
    };
    let node = |name: &str, fields: Value| with_fields(json!({"kind": "Node", "name": name}), fields);
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
    let mut versions = vec![
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
    versions.extend(nodes);
    versions
}

/// Returns the document with these fields added or replaced.
fn with_fields(mut document: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { unreachable!("the forms are objects") };
    document.as_object_mut().expect("an object").extend(fields);
    document
}

/// Returns release `site@1`. Its task `conf` has this template. The other tasks read parameters, facts, labels, traits
/// and other nodes.
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
            {"id": "lead", "type": "shell", "parameters": {"script": "true"}, "tags": ["primary-db"]},
            {"id": "fast", "type": "shell", "parameters": {"script": "true"}, "roles": ["*"], "condition": "'CUSTOM_FAST' in traits && labels.x == '2'"},
        ],
    })
}

/// Returns the change that stores one object. `forms` has the index of the current version of each object.
fn object_change(versions_by_object: &[Vec<Value>], forms: &[usize], object: usize) -> FleetChange {
    let documents: Vec<_> = versions_by_object
        .iter()
        .zip(forms)
        .map(|(versions, form)| read_document(&versions[*form].to_string()).expect("a document of the test"))
        .collect();
    let manager = Manager::new("test").expect("a manager");
    let objects = assemble(&documents, &manager).expect("manifests of the test");
    // The changes have the order of the objects in `site_versions`.
    with_decision(to_changes(objects).remove(object), forms[object])
}

/// The extension that one version of the release names. An extension is a program that decides which tags a role gives
/// a node.
const EXTENSION: &str = "placement";

/// Returns the change, with an extension's decision added to version 4 of a node. A manifest cannot contain a decision.
/// One of the decided tags is not a tag of the release.
fn with_decision(change: FleetChange, form: usize) -> FleetChange {
    match change {
        FleetChange::Node(node) if form == 4 => {
            let mut node = Node::clone(&node);
            let decision = DecidedTags {
                extension: EXTENSION.to_owned(),
                cluster: ClusterId(uuid::Uuid::nil()),
                tags: vec![TagName::new("web").expect("a tag"), TagName::new("gone").expect("a tag")],
                question: String::new(),
            };
            node.spec.tags.decided.insert(Name::new("db").expect("a role"), decision);
            FleetChange::Node(Arc::new(node))
        }
        unchanged => unchanged,
    }
}

/// Returns the change, with a new name for its node if `is_renamed` is set. The new name sorts before all other names
/// of the site.
fn with_name(change: FleetChange, is_renamed: bool) -> FleetChange {
    match change {
        FleetChange::Node(node) if is_renamed => {
            let mut node = Node::clone(&node);
            let name = node.meta.name.as_ref().map(|name| format!("a-{name}")).expect("a node of the test has a name");
            node.meta.name = Some(NodeName::new(&name).expect("a name"));
            FleetChange::Node(Arc::new(node))
        }
        unchanged => unchanged,
    }
}

/// Returns the change that stores a report of the node. `form` (0 to 5) selects the facts. A form of 3 or more also
/// reports a label, and a form of 4 or more also a trait.
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

/// Function that returns the nodes that the index finds for the text of a filter.
type IndexLookup = fn(&Fleet, &str) -> NodeSet;
/// Function that returns whether a node meets the text of a filter.
type NodePredicate = fn(&NodeView<'_>, &str) -> bool;
/// A filter for lists of nodes: its text, its look-up in the index, and its test of a single node.
type NodeFilter = (&'static str, IndexLookup, NodePredicate);

/// The functions of a filter by a label selector.
const LABEL_SELECTOR_FILTER: (IndexLookup, NodePredicate) = (
    |fleet, text| fleet.selector_set(&Selector::parse(text).expect("a selector")),
    |view, text| Selector::parse(text).expect("a selector").matches(view, &view.reported_labels()),
);
/// The functions of a filter by a requirement.
const REQUIREMENT_FILTER: (IndexLookup, NodePredicate) = (
    |fleet, text| fleet.requirement_set(&Requirement::parse(text).expect("a requirement")),
    |view, text| Requirement::parse(text).expect("a requirement").is_met_by(view),
);

/// Returns filters by label selectors, by requirements, by a role and by a tag.
fn node_filters() -> Vec<NodeFilter> {
    let selectors = [
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
    let requirements = [
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
    let selectors = selectors.into_iter().map(|text| (text, LABEL_SELECTOR_FILTER.0, LABEL_SELECTOR_FILTER.1));
    let requirements = requirements.into_iter().map(|text| (text, REQUIREMENT_FILTER.0, REQUIREMENT_FILTER.1));
    let others: [NodeFilter; 2] = [
        (
            "web",
            |fleet, role| fleet.role_set(&Name::new(role).expect("a name")),
            |view, role| view.roles().iter().any(|name| name.as_str() == role),
        ),
        (
            "db",
            |_, tag| NodeSet::Term(IndexTerm::Tag(TagName::new(tag).expect("a tag"))),
            |view, tag| view.tags().iter().any(|name| name.as_str() == tag),
        ),
    ];
    selectors.chain(requirements).chain(others).collect()
}

/// Returns the nodes of the set in four orders: the order of the index, its reverse, by name, and by name in reverse.
fn ordered_results(fleet: &Fleet, node_set: &NodeSet) -> [Vec<NodeId>; 4] {
    let walk = |is_reversed| fleet.walk(node_set.clone(), None, is_reversed).expect("an index").collect();
    let by_name = |is_reversed| fleet.walk_by_name(node_set, None, is_reversed).expect("an index").collect();
    [walk(false), walk(true), by_name(false), by_name(true)]
}

/// Checks for each filter that the index finds all nodes that the filter selects, in every order and from every node
/// on. Checks that a rebuilt index gives the same results.
fn check_index(fleet: &Fleet) -> Result<(), TestCaseError> {
    let mut rebuilt = fleet.clone();
    let order: Vec<NodeId> = fleet.walk(NodeSet::All, None, false).expect("an index").collect();
    rebuilt.build_index(order.iter().copied());
    prop_assert_eq!(order.len(), fleet.nodes().count());
    for (text, look_up, is_selected) in node_filters() {
        let node_set = look_up(fleet, text);
        let [in_order, in_reverse_order, by_name, by_name_reversed] = ordered_results(fleet, &node_set);
        prop_assert_eq!(ordered_results(&rebuilt, &node_set), ordered_results(fleet, &node_set), "{} in a rebuilt index", text);
        let selected_nodes = order.iter().filter(|id| is_selected(&fleet.node_view(**id).expect("a node"), text));
        for id in selected_nodes {
            // The index may find further nodes, which its caller must check one by one.
            prop_assert!(in_order.contains(id), "{} leaves out {}", text, fleet.node(*id).expect("a node").display_name());
        }
        let name = |id: &NodeId| fleet.node(*id).expect("a node").meta.name.clone();
        prop_assert!(by_name.is_sorted_by_key(name));
        let to_set = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<_>>();
        prop_assert_eq!(to_set(&in_order), to_set(&by_name));
        prop_assert!(in_order.iter().rev().eq(&in_reverse_order) && by_name.iter().rev().eq(&by_name_reversed), "{}", text);
        for (position, id) in in_order.iter().enumerate() {
            let nodes_after: Vec<NodeId> = fleet.walk(node_set.clone(), Some(*id), false).expect("an index").collect();
            prop_assert_eq!(&nodes_after[..], &in_order[position + 1..], "{} after a node", text);
            let nodes_before: Vec<NodeId> = fleet.walk(node_set.clone(), Some(*id), true).expect("an index").collect();
            prop_assert!(nodes_before.iter().rev().eq(&in_order[..position]), "{} before a node", text);
        }
        for (position, id) in by_name.iter().enumerate() {
            let node = fleet.node(*id).expect("a node");
            let nodes_after: Vec<NodeId> = fleet.walk_by_name(&node_set, Some(node), false).expect("an index").collect();
            prop_assert_eq!(&nodes_after[..], &by_name[position + 1..], "{} after a name", text);
            let nodes_before: Vec<NodeId> = fleet.walk_by_name(&node_set, Some(node), true).expect("an index").collect();
            prop_assert!(nodes_before.iter().rev().eq(&by_name[..position]), "{} before a name", text);
        }
    }
    Ok(())
}

/// The desired state of each node, or `None` for a node that cannot be resolved.
type NodeOutputs = BTreeMap<NodeId, Option<NodeOutput>>;

/// Resolves all nodes of the fleet. Returns the desired state of each node, or `None` if an object that the node needs
/// is missing.
fn node_outputs(fleet: &Fleet, cache: &ResolveCache) -> NodeOutputs {
    let output_of = |id| match resolve_node(fleet, cache, id) {
        Resolution::Complete(node) => {
            let mut output = NodeOutput::from_node(&node);
            // The output lacks these values. As an annotation, they are compared too.
            let other_values =
                format!("{:?} {:?} {:?} {}", node.mode(), node.lifecycle_limits(), node.unmet_requirements(), node.is_paused());
            output.annotations.insert("told".into(), other_values);
            Some(output)
        }
        Resolution::Incomplete(_) => None,
    };
    fleet.nodes().map(|node| (node.id(), output_of(node.id()))).collect()
}

/// Generates an [`Edit`]. The indices 0 to 9 are objects of the site, 10 to 12 are reports of the three nodes, and 13
/// to 15 are renames of the three nodes.
fn edit_strategy() -> impl Strategy<Value = Edit> {
    (0..16_usize, 0..12_usize).prop_map(|(object, form)| Edit { object, form })
}

/// Index of the cluster template in an [`Edit`].
const TEMPLATE: usize = 1;
/// Index of cluster `c` in an [`Edit`].
const CLUSTER: usize = 2;
/// Index of group `a` of cluster `c` in an [`Edit`].
const GROUP: usize = 4;
/// Index of the first node in an [`Edit`].
const NODE: usize = 7;
/// Index of the reports of the first node in an [`Edit`].
const OBSERVATION: usize = 10;

/// Generates edits that contain two known regressions for the first node, with random edits before, between and after
/// them. Returns also the positions of the two edits that change the output of the node.
///
/// In the first case, the host reports label `z` of a node that does not merge, and then the template provides `z`. In
/// the second case, the group requires a parameter that no task reads, and then the cluster changes the parameter.
fn notable_edit_sequences() -> impl Strategy<Value = (Vec<Edit>, [usize; 2])> {
    let required_edits = [(GROUP, 3), (NODE, 10), (OBSERVATION, 3), (TEMPLATE, 3), (GROUP, 4), (CLUSTER, 2)];
    let free_edit = (0..16_usize, 0..12_usize).prop_map(|(object, form)| Edit { object, form });
    let is_free = |edit: &Edit| ![TEMPLATE, CLUSTER, GROUP, NODE, OBSERVATION].contains(&edit.object);
    let other_edits = proptest::collection::vec(free_edit.prop_filter("it edits no object of the two cases", is_free), 0..2);
    let last_edits = proptest::collection::vec(edit_strategy(), 0..4);
    (proptest::collection::vec(other_edits, required_edits.len()), last_edits).prop_map(move |(other_edits, last_edits)| {
        let (mut edits, mut positions) = (Vec::new(), Vec::new());
        for ((object, form), edits_before) in required_edits.into_iter().zip(other_edits) {
            edits.extend(edits_before);
            positions.push(edits.len());
            edits.push(Edit { object, form });
        }
        edits.extend(last_edits);
        (edits, [positions[3], positions[5]])
    })
}

/// Applies the edits in order. Checks the index, that each node with a new output was marked dirty, and that neither a
/// cache nor the order of changes affects a result. Returns for each edit whether it changed the first node's output.
fn apply_edits(edits: Vec<Edit>) -> Result<Vec<bool>, TestCaseError> {
    let versions = site_versions();
    let mut forms = vec![0; versions.len()];
    // True for each object that is renamed. Only nodes are renamed.
    let mut is_renamed = vec![false; versions.len()];
    let mut fleet = Fleet::new();
    for object in 0..versions.len() {
        fleet.apply(object_change(&versions, &forms, object));
    }
    fleet.set_loaded();
    fleet.build_index(fleet.clone().nodes().map(|node| node.id()));
    let cache = ResolveCache::new();
    let ids: Vec<NodeId> =
        ["n1", "n2", "n10"].iter().map(|name| fleet.node_by_name(name).expect("the site has it").id()).collect();
    let mut old_outputs = node_outputs(&fleet, &cache);
    let mut has_changed_first = Vec::new();
    for Edit { object, form } in edits {
        let dirty: DirtyNodes = if object < versions.len() {
            forms[object] = form % versions[object].len();
            fleet.apply(with_name(object_change(&versions, &forms, object), is_renamed[object]))
        } else if object >= versions.len() + 3 {
            let node = object - 6;
            is_renamed[node] = !is_renamed[node];
            fleet.apply(with_name(object_change(&versions, &forms, node), is_renamed[node]))
        } else {
            fleet.apply(observation_change(ids[(object - versions.len()) % 3], form % 6))
        };
        check_index(&fleet)?;
        let new_outputs = node_outputs(&fleet, &cache);
        let dirty_ids: BTreeSet<_> = dirty.nodes(&fleet).collect();
        for (id, output) in &new_outputs {
            prop_assert!(
                dirty_ids.contains(id) || old_outputs[id] == *output,
                "{} was not marked dirty: {:?} {:?}",
                fleet.node(*id).expect("who answers is there").display_name(),
                old_outputs[id],
                output
            );
        }
        prop_assert_eq!(&new_outputs, &node_outputs(&fleet, &ResolveCache::new()), "the cache changes no result");
        has_changed_first.push(old_outputs[&ids[0]] != new_outputs[&ids[0]]);
        old_outputs = new_outputs;
    }
    let mut fresh = Fleet::new();
    for object in (0..versions.len()).rev() {
        fresh.apply(with_name(object_change(&versions, &forms, object), is_renamed[object]));
    }
    for id in &ids {
        if let Some(observation) = fleet.observation(*id) {
            fresh.apply(FleetChange::Observation(*id, Arc::clone(observation)));
        }
    }
    fresh.set_loaded();
    prop_assert_eq!(
        node_outputs(&fresh, &ResolveCache::new()),
        old_outputs,
        "the result does not depend on the order of changes"
    );
    Ok(has_changed_first)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 10, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn dirty_nodes_include_every_node_with_new_output(edits in proptest::collection::vec(edit_strategy(), 1..12)) {
        apply_edits(edits)?;
    }

    #[test]
    fn w03_dirty_nodes_include_changed_nodes_in_known_regressions((edits, changing_edits) in notable_edit_sequences()) {
        let has_changed = apply_edits(edits)?;
        prop_assert!(changing_edits.iter().all(|position| has_changed[*position]), "both regressions occur: {:?}", has_changed);
    }
}
