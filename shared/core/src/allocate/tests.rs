use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::fleet::FleetChange;
use crate::name::{NodeName, ObjectName};
use crate::object::{
    Cluster, ClusterSpec, GroupId, Meta, Node, NodeGroup, NodeGroupSpec, NodeSpec, Object, ReportedState, Timestamp,
};
use crate::ownership::{Manager, OwnedMap, ProvidedValue};

/// Returns a node of resource class `rc` with these traits. It has `memory` MB of memory, and 100 minus `memory` GB of
/// disk. Its uuid consists of the bytes of its name.
fn node(name: &str, traits: &[&str], memory: i64) -> Node {
    let manager = Manager::new("test").unwrap();
    let traits = traits.iter().map(|name| (Trait::new(name).unwrap(), ProvidedValue::Value(()))).collect();
    let spec = NodeSpec {
        traits: OwnedMap::default().update(&manager, &traits),
        properties: json!({"memory_mb": memory, "disk_gb": 100 - memory}).as_object().unwrap().clone(),
        extra: json!({"resource_class": "rc"}).as_object().unwrap().clone(),
        ..NodeSpec::default()
    };
    let uuid = Uuid::from_u128(name.bytes().fold(0, |number, byte| number * 256 + u128::from(byte)));
    Object { meta: Meta::new(uuid, Some(NodeName::new(name).unwrap()), Timestamp(0)), spec }
}

/// Returns a fleet of these nodes.
fn fleet(nodes: impl IntoIterator<Item = Node>) -> Fleet {
    let mut fleet = Fleet::new();
    let _dirty = fleet.apply_all(nodes.into_iter().map(|node| FleetChange::Node(Arc::new(node))));
    fleet.set_loaded();
    fleet
}

/// Returns an allocation of resource class `rc` with these traits and requirements.
fn spec(traits: &[&str], requirements: &[&str]) -> AllocationSpec {
    AllocationSpec {
        resource_class: "rc".to_owned(),
        traits: traits.iter().map(|name| Trait::new(name).unwrap()).collect(),
        requirements: Requirements::parse(requirements).unwrap(),
        ..AllocationSpec::default()
    }
}

/// Returns the name of the chosen node, or the reason of the failure.
fn chosen_node(fleet: &Fleet, allocation: &AllocationSpec) -> String {
    match allocate(fleet, allocation, None) {
        AllocationDecision::Chosen { node, .. } => fleet.node(node).unwrap().display_name(),
        AllocationDecision::Failed { reason } => reason,
    }
}

#[test]
fn allocate_chooses_node_with_smallest_surplus() {
    let fleet = fleet([
        node("n10", &["CUSTOM_A"], 8),
        node("n9", &["CUSTOM_A"], 8),
        node("big", &["CUSTOM_A"], 64),
        node("gpu", &["CUSTOM_A", "CUSTOM_GPU"], 4),
        node("bare", &[], 64),
    ]);
    for (traits, requirements, name) in [
        // Order: fewest surplus traits, smallest `headroom` of each number, name (in which digits form a number).
        (&["CUSTOM_A"][..], &[][..], "big"),
        (&["CUSTOM_A"], &["property:memory_mb >= 4"], "n9"),
        (&["CUSTOM_GPU"], &[], "gpu"),
        (&[], &[], "bare"),
        // A trait that a requirement names counts as requested.
        (&[], &["trait:CUSTOM_GPU required", "trait:CUSTOM_A required"], "gpu"),
        (&[], &["trait:CUSTOM_A forbidden"], "bare"),
        // The numbers are compared by property: disk_gb, of which `big` has the least, before memory_mb. The surplus is
        // the distance to the number, also for `<=`, so a node with 64 has no surplus.
        (&["CUSTOM_A"], &["property:memory_mb >= 4", "property:disk_gb >= 1"], "big"),
        (&["CUSTOM_A"], &["property:memory_mb <= 64"], "big"),
        (&["CUSTOM_A"], &["property:memory_mb == 8"], "n9"),
    ] {
        assert_eq!(chosen_node(&fleet, &spec(traits, requirements)), name, "{traits:?} {requirements:?}");
    }
    let decision = allocate(&fleet, &spec(&["CUSTOM_A"], &["property:memory_mb >= 6"]), None);
    let AllocationDecision::Chosen { because: reason, .. } = decision else { panic!("{decision:?}") };
    let expected_headroom = [("property:memory_mb".to_owned(), 2.0)].into();
    assert_eq!(reason, SelectionReason { candidates: 3, surplus_traits: Vec::new(), headroom: expected_headroom });
}

#[test]
fn allocate_ignores_order_of_nodes() {
    let nodes: Vec<Node> = (0..20).map(|n| node(&format!("n{n}"), &["CUSTOM_A"], 8 + n % 3)).collect();
    let allocation = spec(&["CUSTOM_A"], &["property:memory_mb >= 8"]);
    let forwards = chosen_node(&fleet(nodes.clone()), &allocation);
    let backwards = chosen_node(&fleet(nodes.into_iter().rev()), &allocation);
    assert_eq!((forwards.as_str(), backwards.as_str()), ("n0", "n0"));
}

/// One node is parked by its spec, one on its host, one is in use, and one has another resource class. The node
/// `on-host` qualifies as soon as its host is no longer parked.
#[test]
fn allocate_counts_rejected_nodes_by_reason() {
    let mut parked_node = node("parked", &[], 8);
    parked_node.spec.parked = true;
    let mut used_node = node("used", &[], 8);
    used_node.spec.extra.insert("instance_uuid".into(), "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6".into());
    let mut other_class_node = node("other", &[], 8);
    other_class_node.spec.extra.insert("resource_class".into(), "RC".into());
    let parked_on_host = node("on-host", &[], 8);
    let mut nodes = fleet([parked_node, used_node, other_class_node, parked_on_host.clone()]);
    let host_state = ReportedState { parked: Some("a disk".into()), ..ReportedState::default() };
    let _dirty = nodes.apply(FleetChange::ReportedState(parked_on_host.id(), Some(Arc::new(host_state))));
    let expected = "no available nodes match the resource class rc. Of that class there are 2 parked, 1 used already.";
    assert_eq!(chosen_node(&nodes, &spec(&[], &[])), expected);
    let one_candidate = AllocationSpec { candidate_nodes: vec![parked_on_host.id()], ..spec(&[], &[]) };
    assert_eq!(
        chosen_node(&nodes, &one_candidate),
        "none of the requested nodes are available and match the resource class rc. Of that class there are 1 parked."
    );
    let _dirty = nodes.apply(FleetChange::ReportedState(parked_on_host.id(), None));
    assert_eq!(chosen_node(&nodes, &one_candidate), "on-host");
    let trait_reason = "no suitable nodes have the requested traits CUSTOM_A.";
    assert!(chosen_node(&nodes, &spec(&["CUSTOM_A"], &[])).starts_with(trait_reason));
    let memory_reason = "no suitable nodes meet the requirements property:memory_mb >= 9.";
    assert!(chosen_node(&nodes, &spec(&[], &["property:memory_mb >= 9"])).starts_with(memory_reason));
}

/// As in Ironic, an allocation with an owner uses only nodes whose owner or lessee has this name.
#[test]
fn allocate_chooses_only_nodes_of_owner_or_lessee() {
    let node_with = |name: &str, field: &str, value: &str| {
        let mut node = node(name, &[], 8);
        node.spec.extra.insert(field.into(), value.into());
        node
    };
    let fleet = fleet([node_with("bought", "owner", "red"), node_with("rented", "lessee", "blue"), node("free", &[], 8)]);
    let allocation_of = |owner: &str| AllocationSpec { owner: Some(owner.to_owned()), ..spec(&[], &[]) };
    assert_eq!([chosen_node(&fleet, &allocation_of("red")), chosen_node(&fleet, &allocation_of("blue"))], ["bought", "rented"]);
    let reason = chosen_node(&fleet, &allocation_of("green"));
    assert!(reason.starts_with("no available nodes match the resource class rc"), "{reason}");
    assert_eq!(chosen_node(&fleet, &spec(&[], &[])), "bought", "without an owner, any node can be chosen");
}

/// Group `a` (uuid 11) is in cluster `one` (1), group `b` (12) in cluster `two` (2), and node `free` in no group. The
/// group or candidates that a request names, the caller's cluster and the group's requirements limit the choice.
#[test]
fn allocate_chooses_only_nodes_of_group_and_cluster() {
    let id = |n| Uuid::from_u128(n);
    let name = |text: &str| ObjectName::new(text).unwrap();
    let cluster =
        |n, text: &str| -> Cluster { Object { meta: Meta::new(id(n), name(text), Timestamp(0)), spec: ClusterSpec::default() } };
    let group = |n, text: &str, cluster, requirements: &[&str]| -> NodeGroup {
        let requirements = Requirements::parse(requirements).unwrap();
        let spec = NodeGroupSpec { requirements, ..NodeGroupSpec::new(ClusterId(id(cluster))) };
        Object { meta: Meta::new(id(n), name(text), Timestamp(0)), spec }
    };
    let node_in_group = |text: &str, group, memory| {
        let mut node = node(text, &[], memory);
        node.spec.nodegroup = Some(GroupId(id(group)));
        node
    };
    let mut fleet =
        fleet([node_in_group("a1", 11, 4), node_in_group("a2", 11, 8), node_in_group("b1", 12, 4), node("free", &[], 4)]);
    let _dirty = fleet.apply_all([
        FleetChange::Cluster(Arc::new(cluster(1, "one"))),
        FleetChange::Cluster(Arc::new(cluster(2, "two"))),
        FleetChange::NodeGroup(Arc::new(group(11, "a", 1, &["property:memory_mb >= 8"]))),
        FleetChange::NodeGroup(Arc::new(group(12, "b", 2, &[]))),
    ]);
    let in_group = |n| AllocationSpec { nodegroup: Some(GroupId(id(n))), ..spec(&[], &[]) };
    assert_eq!(chosen_node(&fleet, &in_group(11)), "a2", "the node must also meet the group's requirements");
    assert_eq!(chosen_node(&fleet, &in_group(12)), "b1");
    let choose_in_cluster =
        |allocation: &AllocationSpec, cluster| match allocate(&fleet, allocation, Some(ClusterId(id(cluster)))) {
            AllocationDecision::Chosen { node, .. } => fleet.node(node).unwrap().display_name(),
            AllocationDecision::Failed { .. } => "none".to_owned(),
        };
    let anywhere = spec(&[], &[]);
    assert_eq!([choose_in_cluster(&anywhere, 1), choose_in_cluster(&anywhere, 2)], ["a1", "b1"]);
    assert_eq!(choose_in_cluster(&in_group(11), 2), "none", "another cluster's group");
    let free = fleet.node_by_name("free").unwrap().id();
    let one_candidate = AllocationSpec { candidate_nodes: vec![free], ..spec(&[], &[]) };
    assert_eq!(choose_in_cluster(&one_candidate, 1), "none", "a node of no cluster");
    let chosen: BTreeSet<String> = [chosen_node(&fleet, &one_candidate), chosen_node(&fleet, &anywhere)].into();
    assert_eq!(chosen, BTreeSet::from(["free".to_owned(), "a1".to_owned()]));
}
