//! The work for a report of a host when there are 1,000 inspection rules, and for edits of rules, measured in memory
//! allocations of this thread. The work for a report must be about the same in fleets of 20 and of 2,000 hosts.

use std::sync::Arc;

use serde_json::json;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::NodeName;
use stemma_core::object::{FactMap, Meta, Node, NodeId, NodeSpec, Object, Observation, Timestamp};
use stemma_core::resolve::{Resolution, ResolveCache, resolve_node};
use stemma_counting::thread_allocations;
use uuid::Uuid;

/// Number of inspection rules in each fleet.
const RULE_COUNT: u16 = 1_000;

/// Returns the change that stores an inspection rule. The rule with number N acts on hosts whose CPU model ends with
/// `model N`.
fn rule_change(number: u16, actions: &serde_json::Value) -> FleetChange {
    let spec = json!({
        "priority": number,
        "conditions": [{"op": "contains", "args": {"value": "{inventory[cpu][model]}", "regex": format!("model {number}$")}}],
        "actions": actions,
    });
    let spec = serde_json::from_value(spec).expect("a rule");
    let meta = Meta::new(Uuid::from_u128(u128::from(number)), None, Timestamp(0));
    FleetChange::Rule(Arc::new(Object { meta, spec }))
}

/// Returns the observation (the reported facts) of a host with this CPU model.
fn observation(model: &str) -> Arc<Observation> {
    let facts = json!({"cpu": {"count": 8, "model": model}});
    Arc::new(Observation { facts: FactMap::from_tree(facts.as_object().expect("facts")), ..Observation::default() })
}

/// Builds a fleet with 1,000 rules and this number of nodes. Each host has reported a CPU model for which no rule acts.
fn build_fleet(nodes: u128) -> Fleet {
    let mut fleet = Fleet::new();
    for number in 0..RULE_COUNT {
        fleet.apply(rule_change(number, &json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_{number}")}}])));
    }
    for number in 0..nodes {
        let meta = Meta::new(Uuid::from_u128(number), NodeName::new(&format!("n{number}")).ok(), Timestamp(0));
        fleet.apply(FleetChange::Node(Arc::new(Node { meta, spec: NodeSpec::default() })));
        fleet.apply(FleetChange::Observation(NodeId(Uuid::from_u128(number)), observation("none")));
    }
    fleet.set_loaded();
    fleet
}

/// Returns the memory allocations of applying one observation and resolving its node, as the minimum of five runs.
fn allocations_per_observation(fleet: &mut Fleet) -> u64 {
    let cache = ResolveCache::default();
    let id = NodeId(Uuid::from_u128(3));
    let measure_report = |number: u16| {
        let old_count = thread_allocations();
        let dirty = fleet.apply(FleetChange::Observation(id, observation(&format!("model {number}"))));
        assert_eq!(dirty.nodes(fleet).collect::<Vec<_>>(), [id], "a report marks only its own node dirty");
        let Resolution::Complete(resolved_node) = resolve_node(fleet, &cache, id) else { panic!("an object is missing") };
        assert!(resolved_node.traits().has_trait(&format!("CUSTOM_{number}")));
        thread_allocations() - old_count
    };
    (0..5).map(measure_report).min().expect("five results")
}

#[test]
fn observation_work_stays_same_when_fleet_grows() {
    let (small, large) =
        (allocations_per_observation(&mut build_fleet(20)), allocations_per_observation(&mut build_fleet(2_000)));
    assert!(large < small * 11 / 10, "{small} allocations among 20 hosts, {large} among 2,000");
}

/// An edit of a rule only marks the nodes dirty. The rules run when a node is resolved. `work` is the number of memory
/// allocations of an edit.
#[test]
fn rule_edit_runs_no_rule() {
    let measure = |fleet: &mut Fleet| {
        let measure_edit = |priority: u16| {
            let meta = Meta::new(Uuid::from_u128(1), None, Timestamp(0));
            let actions = json!([{"op": "add-trait", "args": {"name": format!("CUSTOM_X{priority}")}}]);
            let spec = serde_json::from_value(json!({"priority": priority, "actions": actions})).expect("a rule");
            let old_count = thread_allocations();
            let dirty = fleet.apply(FleetChange::Rule(Arc::new(Object { meta, spec })));
            let work = thread_allocations() - old_count;
            (dirty.nodes(fleet).count(), work)
        };
        // Each priority differs from the stored one, which is 1 at first. So each edit is a change.
        (2..7).map(measure_edit).min_by_key(|(_, work)| *work).expect("five results")
    };
    let mut large = build_fleet(2_000);
    let (dirty_count, work) = measure(&mut large);
    assert_eq!(dirty_count, 2_000);
    // To run 1,000 rules for 2,000 hosts would need at least two million allocations.
    assert!(work < 2_000, "{work} allocations");
}

/// One apply can write 1,000 rules. All rules are stored before the node is resolved.
#[test]
fn rule_work_is_proportional_to_rule_count() {
    let actions: Vec<_> = (0..20)
        .map(|label_index| json!({"op": "set-attribute", "args": {"path": format!("labels/l{label_index}"), "value": "{inventory[cpu][model]}"}}))
        .collect();
    let allocations_for = |count: u16| {
        let measure = |_| {
            let rules: Vec<FleetChange> = (0..count).map(|number| rule_change(number, &json!(actions))).collect();
            let (mut fleet, id) = (Fleet::new(), NodeId(Uuid::from_u128(1)));
            let meta = Meta::new(id.0, None, Timestamp(0));
            fleet.apply(FleetChange::Node(Arc::new(Node { meta, spec: NodeSpec::default() })));
            fleet.apply(FleetChange::Observation(id, observation("none")));
            fleet.set_loaded();
            let old_count = thread_allocations();
            for rule in rules {
                fleet.apply(rule);
            }
            resolve_node(&fleet, &ResolveCache::default(), id);
            thread_allocations() - old_count
        };
        (0..3).map(measure).min().expect("three results")
    };
    let (few, many) = (allocations_for(100), allocations_for(1_000));
    // Ten times as many rules may need a little more than ten times the work. Quadratic growth would be 100 times.
    assert!(many < few * 12, "{few} allocations for 100 rules, {many} for 1,000");
}
