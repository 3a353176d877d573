//! How much work a report is under a thousand rules, counted in allocations of this thread: as much among twenty hosts as among two thousand.

use std::sync::Arc;

use serde_json::json;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::NodeName;
use stemma_core::object::{FactMap, Meta, Node, NodeId, NodeSpec, Object, Observation, Timestamp};
use stemma_core::resolve::{Resolution, ResolveCache, resolve_node};
use stemma_counting::allocations_of_thread;
use uuid::Uuid;

const RULES: u16 = 1_000;

/// A rule that acts on each host of a model.
fn rule(nth: u16, actions: &serde_json::Value) -> Change {
    let spec = json!({
        "priority": nth,
        "conditions": [{"op": "contains", "args": {"value": "{inventory[cpu][model]}", "regex": format!("model {nth}$")}}],
        "actions": actions,
    });
    let spec = serde_json::from_value(spec).expect("a rule");
    let meta = Meta::new(Uuid::from_u128(u128::from(nth)), None, Timestamp(0));
    Change::Rule(Arc::new(Object { meta, spec }))
}

fn seen(model: &str) -> Arc<Observation> {
    let facts = json!({"cpu": {"count": 8, "model": model}});
    Arc::new(Observation { facts: FactMap::from_tree(facts.as_object().expect("facts")), ..Observation::default() })
}

fn fleet(nodes: u128) -> Fleet {
    let mut fleet = Fleet::new();
    for n in 0..RULES {
        fleet.apply(rule(n, &json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_{n}")}}])));
    }
    for n in 0..nodes {
        let meta = Meta::new(Uuid::from_u128(n), NodeName::new(&format!("n{n}")).ok(), Timestamp(0));
        fleet.apply(Change::Node(Arc::new(Node { meta, spec: NodeSpec::default() })));
        fleet.apply(Change::Observation(NodeId(Uuid::from_u128(n)), seen("none")));
    }
    fleet.set_loaded();
    fleet
}

/// The allocations of one report, with the answer that follows from it: the least of several.
fn of_a_report(fleet: &mut Fleet) -> u64 {
    let cache = ResolveCache::default();
    let id = NodeId(Uuid::from_u128(3));
    let once = |n: u16| {
        let before = allocations_of_thread();
        let dirty = fleet.apply(Change::Observation(id, seen(&format!("model {n}"))));
        assert_eq!(dirty.nodes(fleet).collect::<Vec<_>>(), [id], "a report reaches its own node alone");
        let Resolution::Complete(answer) = resolve_node(fleet, &cache, id) else { panic!("it is complete") };
        assert!(answer.traits().has(&format!("CUSTOM_{n}")));
        allocations_of_thread() - before
    };
    (0..5).map(once).min().expect("several")
}

#[test]
fn a_report_takes_the_same_work_in_a_small_fleet_and_in_a_large_one() {
    let (small, large) = (of_a_report(&mut fleet(20)), of_a_report(&mut fleet(2_000)));
    assert!(large < small * 11 / 10, "{small} allocations among 20 hosts, {large} among 2,000");
}

#[test]
fn an_edit_of_a_rule_asks_no_rule_of_any_host() {
    let edit = |fleet: &mut Fleet| {
        let once = |priority: u16| {
            let meta = Meta::new(Uuid::from_u128(1), None, Timestamp(0));
            let actions = json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_X{priority}")}}]);
            let spec = serde_json::from_value(json!({"priority": priority, "actions": actions})).expect("a rule");
            let before = allocations_of_thread();
            let dirty = fleet.apply(Change::Rule(Arc::new(Object { meta, spec })));
            let work = allocations_of_thread() - before;
            (dirty.nodes(fleet).count(), work)
        };
        (2..7).map(once).min_by_key(|(_, work)| *work).expect("several")
    };
    let mut large = fleet(2_000);
    let (reached, work) = edit(&mut large);
    assert_eq!(reached, 2_000);
    // Two thousand hosts with a thousand rules each would be two million conditions, each of which allocates.
    assert!(work < 2_000, "{work} allocations");
}

/// One apply may write a thousand rules: each is put before anybody asks what they give together.
#[test]
fn rules_take_work_in_proportion_to_their_number() {
    let actions: Vec<_> = (0..20)
        .map(|n| json!({"op": "set-attribute", "args": {"path": format!("labels/l{n}"), "value": "{inventory[cpu][model]}"}}))
        .collect();
    let of = |count: u16| {
        let once = |_| {
            let rules: Vec<Change> = (0..count).map(|nth| rule(nth, &json!(actions))).collect();
            let (mut fleet, id) = (Fleet::new(), NodeId(Uuid::from_u128(1)));
            let meta = Meta::new(id.0, None, Timestamp(0));
            fleet.apply(Change::Node(Arc::new(Node { meta, spec: NodeSpec::default() })));
            fleet.apply(Change::Observation(id, seen("none")));
            fleet.set_loaded();
            let before = allocations_of_thread();
            for rule in rules {
                fleet.apply(rule);
            }
            resolve_node(&fleet, &ResolveCache::default(), id);
            allocations_of_thread() - before
        };
        (0..3).map(once).min().expect("several")
    };
    let (few, many) = (of(100), of(1_000));
    // As the square of their number it would be near a hundred times.
    assert!(many < few * 12, "{few} allocations for 100 rules, {many} for 1,000");
}
