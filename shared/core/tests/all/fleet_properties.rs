//! Properties of the fleet's model: whoever is told something else was reached, and memory changes no answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_core::fleet::{Among, Change, Dirty, Fleet, NodeView, Term};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::name::{Name, NodeName, TagName};
use stemma_core::object::{ClusterId, DecidedTags, FactMap, Node, NodeId, Observation};
use stemma_core::ownership::Manager;
use stemma_core::requirement::Requirement;
use stemma_core::resolve::{PlainAnswer, Resolution, ResolveCache, resolve_node};
use stemma_core::selector::Selector;
use stemma_core::traits::Trait;

use crate::made::{changes, file_task};

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
        vec![
            release("{{ labels.x }}"),
            release("{{ labels.y | default('') }}"),
            merged(release("{{ labels.x }}"), json!({"extensions": [{"roles": ["db"], "use": DECIDES}]})),
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

/// The changes of one object in one form; of several documents those that concern it.
fn change(all: &[Vec<Value>], forms: &[usize], object: usize) -> Change {
    let documents: Vec<_> = all
        .iter()
        .zip(forms)
        .map(|(forms, form)| read_document(&forms[*form].to_string()).expect("a document of the test"))
        .collect();
    let manager = Manager::new("test").expect("a manager");
    let objects = assemble(&documents, &manager).expect("manifests of the test");
    decided(changes(objects).remove(object), forms[object])
}

/// The extension that one form of the release names.
const DECIDES: &str = "placement";

/// The same change, where in one form of a node an extension has decided what its role gives. No manifest says that.
fn decided(change: Change, form: usize) -> Change {
    match change {
        Change::Node(node) if form == 4 => {
            let mut node = Node::clone(&node);
            let made = DecidedTags {
                extension: DECIDES.to_owned(),
                cluster: ClusterId(uuid::Uuid::nil()),
                tags: vec![TagName::new("web").expect("a tag"), TagName::new("gone").expect("a tag")],
                question: String::new(),
            };
            node.spec.tags.decided.insert(Name::new("db").expect("a role"), made);
            Change::Node(Arc::new(node))
        }
        other => other,
    }
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

fn observed(node: NodeId, form: usize) -> Change {
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
    Change::Observation(node, Arc::new(Observation { facts, traits, labels, ..Observation::default() }))
}

/// The set that the index knows for a filter's text.
type Known = fn(&Fleet, &str) -> Among;
/// Whether a node is meant by it.
type Means = fn(&NodeView<'_>, &str) -> bool;
/// What a list of nodes is filtered by.
type Filter = (&'static str, Known, Means);

const SELECTED: (Known, Means) = (
    |fleet, text| fleet.among_selected(&Selector::parse(text).expect("a selector")),
    |view, text| Selector::parse(text).expect("a selector").matches(view, &view.reported()),
);
const MET: (Known, Means) = (
    |fleet, text| fleet.among_meeting(&Requirement::parse(text).expect("a requirement")),
    |view, text| Requirement::parse(text).expect("a requirement").holds(view),
);

fn filters() -> Vec<Filter> {
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
    let selected = selected.into_iter().map(|text| (text, SELECTED.0, SELECTED.1));
    let met = met.into_iter().map(|text| (text, MET.0, MET.1));
    let others: [Filter; 2] = [
        (
            "web",
            |fleet, role| fleet.among_role(&Name::new(role).expect("a name")),
            |view, role| view.roles().iter().any(|own| own.as_str() == role),
        ),
        (
            "db",
            |_, tag| Among::Of(Term::Tag(TagName::new(tag).expect("a tag"))),
            |view, tag| view.tags().iter().any(|own| own.as_str() == tag),
        ),
    ];
    selected.chain(met).chain(others).collect()
}

/// The nodes of a set, in each of the orders of a list.
fn found(fleet: &Fleet, among: &Among) -> [Vec<NodeId>; 4] {
    let walk = |last_first| fleet.walk(among.clone(), None, last_first).expect("an index").collect();
    let by_name = |last_first| fleet.walk_by_name(among, None, last_first).expect("an index").collect();
    [walk(false), walk(true), by_name(false), by_name(true)]
}

/// Every filter finds the nodes that it means, and the index is what it would be if it were made now.
fn is_indexed(fleet: &Fleet) -> Result<(), TestCaseError> {
    let mut anew = fleet.clone();
    let order: Vec<NodeId> = fleet.walk(Among::All, None, false).expect("an index").collect();
    anew.keep_index(order.iter().copied());
    prop_assert_eq!(order.len(), fleet.nodes().count());
    for (text, among, means) in filters() {
        let among = among(fleet, text);
        let [made, backwards, by_name, by_name_backwards] = found(fleet, &among);
        prop_assert_eq!(found(&anew, &among), found(fleet, &among), "{} in an index made anew", text);
        let meant = order.iter().filter(|id| means(&fleet.node_view(**id).expect("a node"), text));
        for id in meant {
            prop_assert!(made.contains(id), "{} leaves out {}", text, fleet.node(*id).expect("a node").display_name());
        }
        let name = |id: &NodeId| fleet.node(*id).expect("a node").meta.name.clone();
        prop_assert!(by_name.is_sorted_by_key(name));
        let set = |nodes: &[NodeId]| nodes.iter().copied().collect::<BTreeSet<_>>();
        prop_assert_eq!(set(&made), set(&by_name));
        prop_assert!(made.iter().rev().eq(&backwards) && by_name.iter().rev().eq(&by_name_backwards), "{}", text);
        for (at, id) in made.iter().enumerate() {
            let behind: Vec<NodeId> = fleet.walk(among.clone(), Some(*id), false).expect("an index").collect();
            prop_assert_eq!(&behind[..], &made[at + 1..], "{} behind a node", text);
            let ahead: Vec<NodeId> = fleet.walk(among.clone(), Some(*id), true).expect("an index").collect();
            prop_assert!(ahead.iter().rev().eq(&made[..at]), "{} before a node", text);
        }
        for (at, id) in by_name.iter().enumerate() {
            let node = fleet.node(*id).expect("a node");
            let behind: Vec<NodeId> = fleet.walk_by_name(&among, Some(node), false).expect("an index").collect();
            prop_assert_eq!(&behind[..], &by_name[at + 1..], "{} behind a name", text);
        }
    }
    Ok(())
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

/// The objects that the two constellations of issue 8 are made of, as indices of an [`Edit`].
const TEMPLATE: usize = 1;
const CLUSTER: usize = 2;
const GROUP: usize = 4;
const NODE: usize = 7;
const SEEN: usize = 10;

/// Edits that make both constellations for the first node, with others before, between and behind them; and the places of the two edits
/// by which it is told something else. A host fills `z` though its node does not merge, and the template sets it; the group requires a
/// parameter that nothing else reads, and the cluster changes it.
fn constellations() -> impl Strategy<Value = (Vec<Edit>, [usize; 2])> {
    let made = [(GROUP, 3), (NODE, 10), (SEEN, 3), (TEMPLATE, 3), (GROUP, 4), (CLUSTER, 2)];
    let free = (0..16_usize, 0..12_usize).prop_map(|(object, form)| Edit { object, form });
    let is_free = |edit: &Edit| ![TEMPLATE, CLUSTER, GROUP, NODE, SEEN].contains(&edit.object);
    let between = proptest::collection::vec(free.prop_filter("it leaves them as they are", is_free), 0..2);
    let behind = proptest::collection::vec(edit(), 0..4);
    (proptest::collection::vec(between, made.len()), behind).prop_map(move |(between, behind)| {
        let (mut edits, mut places) = (Vec::new(), Vec::new());
        for ((object, form), others) in made.into_iter().zip(between) {
            edits.extend(others);
            places.push(edits.len());
            edits.push(Edit { object, form });
        }
        edits.extend(behind);
        (edits, [places[3], places[5]])
    })
}

/// Makes the edits one after the other. Whoever is told something else by one was reached by it, and memory and order change no answer.
/// Gives for each edit whether it told the first node something else.
fn make(edits: Vec<Edit>) -> Result<Vec<bool>, TestCaseError> {
    let all = documents();
    let mut forms = vec![0; all.len()];
    // Objects under another name: nodes alone are renamed.
    let mut other_name = vec![false; all.len()];
    let mut fleet = Fleet::new();
    for object in 0..all.len() {
        fleet.apply(change(&all, &forms, object));
    }
    fleet.set_loaded();
    fleet.keep_index(fleet.clone().nodes().map(|node| node.id()));
    let cache = ResolveCache::new();
    let ids: Vec<NodeId> =
        ["n1", "n2", "n10"].iter().map(|name| fleet.node_named(name).expect("the site has it").id()).collect();
    let mut before = answers(&fleet, &cache);
    let mut told = Vec::new();
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
        is_indexed(&fleet)?;
        let after = answers(&fleet, &cache);
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
        prop_assert_eq!(&after, &answers(&fleet, &ResolveCache::new()), "memory changes no answer");
        told.push(before[&ids[0]] != after[&ids[0]]);
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
    Ok(told)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 10, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn whoever_is_told_something_else_was_reached(edits in proptest::collection::vec(edit(), 1..12)) {
        make(edits)?;
    }

    #[test]
    fn w03_whoever_is_told_something_else_was_reached_in_what_was_once_missed((edits, counted) in constellations()) {
        let told = make(edits)?;
        prop_assert!(counted.iter().all(|place| told[*place]), "both constellations are made: {:?}", told);
    }
}
