//! The work for a report under a thousand rules, in allocations of this thread. It must be the same among 20 hosts and
//! among 2,000.

use std::sync::Arc;

use serde_json::json;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::NodeName;
use stemma_core::object::{FactMap, Meta, Node, NodeId, NodeSpec, Object, Observation, Timestamp};
use stemma_core::resolve::{Resolution, ResolveCache, resolve_node};
use stemma_counting::thread_allocations;
use uuid::Uuid;

const RULE_COUNT: u16 = 1_000;

/// Returns a rule that acts on each host of a model.
fn rule_change(nth: u16, actions: &serde_json::Value) -> FleetChange {
    let spec = json!({
        "priority": nth,
        "conditions": [{"op": "contains", "args": {"value": "{inventory[cpu][model]}", "regex": format!("model {nth}$")}}],
        "actions": actions,
    });
    let spec = serde_json::from_value(spec).expect("a rule");
    let meta = Meta::new(Uuid::from_u128(u128::from(nth)), None, Timestamp(0));
    FleetChange::Rule(Arc::new(Object { meta, spec }))
}

fn observation(model: &str) -> Arc<Observation> {
    let facts = json!({"cpu": {"count": 8, "model": model}});
    Arc::new(Observation { facts: FactMap::from_tree(facts.as_object().expect("facts")), ..Observation::default() })
}

fn build_fleet(nodes: u128) -> Fleet {
    let mut fleet = Fleet::new();
    for n in 0..RULE_COUNT {
        fleet.apply(rule_change(n, &json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_{n}")}}])));
    }
    for n in 0..nodes {
        let meta = Meta::new(Uuid::from_u128(n), NodeName::new(&format!("n{n}")).ok(), Timestamp(0));
        fleet.apply(FleetChange::Node(Arc::new(Node { meta, spec: NodeSpec::default() })));
        fleet.apply(FleetChange::Observation(NodeId(Uuid::from_u128(n)), observation("none")));
    }
    fleet.set_loaded();
    fleet
}

/// Returns the allocations for one report and the resolve after it, as the minimum of several runs.
fn allocations_per_report(fleet: &mut Fleet) -> u64 {
    let cache = ResolveCache::default();
    let id = NodeId(Uuid::from_u128(3));
    let once = |n: u16| {
        let before = thread_allocations();
        let dirty = fleet.apply(FleetChange::Observation(id, observation(&format!("model {n}"))));
        assert_eq!(dirty.nodes(fleet).collect::<Vec<_>>(), [id], "a report reaches its own node alone");
        let Resolution::Complete(answer) = resolve_node(fleet, &cache, id) else { panic!("it is complete") };
        assert!(answer.traits().has_trait(&format!("CUSTOM_{n}")));
        thread_allocations() - before
    };
    (0..5).map(once).min().expect("several")
}

#[test]
fn report_allocates_equally_in_small_and_large_fleet() {
    let (small, large) = (allocations_per_report(&mut build_fleet(20)), allocations_per_report(&mut build_fleet(2_000)));
    assert!(large < small * 11 / 10, "{small} allocations among 20 hosts, {large} among 2,000");
}

#[test]
fn rule_edit_runs_no_rule() {
    let edit = |fleet: &mut Fleet| {
        let once = |priority: u16| {
            let meta = Meta::new(Uuid::from_u128(1), None, Timestamp(0));
            let actions = json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_X{priority}")}}]);
            let spec = serde_json::from_value(json!({"priority": priority, "actions": actions})).expect("a rule");
            let before = thread_allocations();
            let dirty = fleet.apply(FleetChange::Rule(Arc::new(Object { meta, spec })));
            let work = thread_allocations() - before;
            (dirty.nodes(fleet).count(), work)
        };
        (2..7).map(once).min_by_key(|(_, work)| *work).expect("several")
    };
    let mut large = build_fleet(2_000);
    let (reached, work) = edit(&mut large);
    assert_eq!(reached, 2_000);
    // A thousand rules on two thousand hosts are two million conditions, and each would allocate.
    assert!(work < 2_000, "{work} allocations");
}

/// One apply may write a thousand rules. All are added before their results are computed.
#[test]
fn rule_work_is_proportional_to_rule_count() {
    let actions: Vec<_> = (0..20)
        .map(|n| json!({"op": "set-attribute", "args": {"path": format!("labels/l{n}"), "value": "{inventory[cpu][model]}"}}))
        .collect();
    let of = |count: u16| {
        let once = |_| {
            let rules: Vec<FleetChange> = (0..count).map(|nth| rule_change(nth, &json!(actions))).collect();
            let (mut fleet, id) = (Fleet::new(), NodeId(Uuid::from_u128(1)));
            let meta = Meta::new(id.0, None, Timestamp(0));
            fleet.apply(FleetChange::Node(Arc::new(Node { meta, spec: NodeSpec::default() })));
            fleet.apply(FleetChange::Observation(id, observation("none")));
            fleet.set_loaded();
            let before = thread_allocations();
            for rule in rules {
                fleet.apply(rule);
            }
            resolve_node(&fleet, &ResolveCache::default(), id);
            thread_allocations() - before
        };
        (0..3).map(once).min().expect("several")
    };
    let (few, many) = (of(100), of(1_000));
    // Quadratic growth would be about a hundred times.
    assert!(many < few * 12, "{few} allocations for 100 rules, {many} for 1,000");
}
