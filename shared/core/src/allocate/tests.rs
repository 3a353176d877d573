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

/// Returns a node of class `rc` with these traits and this memory.
fn node(name: &str, traits: &[&str], memory: i64) -> Node {
    let manager = Manager::new("test").unwrap();
    let traits = traits.iter().map(|name| (Trait::new(name).unwrap(), ProvidedValue::Value(()))).collect();
    let spec = NodeSpec {
        traits: OwnedMap::default().update(&manager, &traits),
        properties: json!({"memory_mb": memory, "disk_gb": 100 - memory}).as_object().unwrap().clone(),
        extra: json!({"resource_class": "rc"}).as_object().unwrap().clone(),
        ..NodeSpec::default()
    };
    let uuid = Uuid::from_u128(name.bytes().fold(0, |all, byte| all * 256 + u128::from(byte)));
    Object { meta: Meta::new(uuid, Some(NodeName::new(name).unwrap()), Timestamp(0)), spec }
}

fn fleet(nodes: impl IntoIterator<Item = Node>) -> Fleet {
    let mut fleet = Fleet::new();
    let _dirty = fleet.apply_all(nodes.into_iter().map(|node| FleetChange::Node(Arc::new(node))));
    fleet.set_loaded();
    fleet
}

fn spec(traits: &[&str], requirements: &[&str]) -> AllocationSpec {
    AllocationSpec {
        resource_class: "rc".to_owned(),
        traits: traits.iter().map(|name| Trait::new(name).unwrap()).collect(),
        requirements: Requirements::parse(requirements).unwrap(),
        ..AllocationSpec::default()
    }
}

/// Returns the name of the chosen node, or the sentence of the failure.
fn chosen_node(fleet: &Fleet, asked: &AllocationSpec) -> String {
    match allocate(fleet, asked, None) {
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
        // Fewest surplus traits, then the name, digits as numbers.
        (&["CUSTOM_A"][..], &[][..], "big"),
        (&["CUSTOM_A"], &["property:memory_mb >= 4"], "n9"),
        (&["CUSTOM_GPU"], &[], "gpu"),
        (&[], &[], "bare"),
        // A required trait counts as requested.
        (&[], &["trait:CUSTOM_GPU required", "trait:CUSTOM_A required"], "gpu"),
        (&[], &["trait:CUSTOM_A forbidden"], "bare"),
        // Smallest surplus, by key: disk_gb sorts before memory_mb.
        (&["CUSTOM_A"], &["property:memory_mb >= 4", "property:disk_gb >= 1"], "big"),
        (&["CUSTOM_A"], &["property:memory_mb <= 64"], "big"),
        (&["CUSTOM_A"], &["property:memory_mb == 8"], "n9"),
    ] {
        assert_eq!(chosen_node(&fleet, &spec(traits, requirements)), name, "{traits:?} {requirements:?}");
    }
    let decided = allocate(&fleet, &spec(&["CUSTOM_A"], &["property:memory_mb >= 6"]), None);
    let AllocationDecision::Chosen { because, .. } = decided else { panic!("{decided:?}") };
    let spare = [("property:memory_mb".to_owned(), 2.0)].into();
    assert_eq!(because, SelectionReason { candidates: 3, surplus_traits: Vec::new(), headroom: spare });
}

#[test]
fn allocate_ignores_order_of_nodes() {
    let nodes: Vec<Node> = (0..20).map(|n| node(&format!("n{n}"), &["CUSTOM_A"], 8 + n % 3)).collect();
    let wanted = spec(&["CUSTOM_A"], &["property:memory_mb >= 8"]);
    let forwards = chosen_node(&fleet(nodes.clone()), &wanted);
    let backwards = chosen_node(&fleet(nodes.into_iter().rev()), &wanted);
    assert_eq!((forwards.as_str(), backwards.as_str()), ("n0", "n0"));
}

#[test]
fn allocate_counts_rejected_nodes_by_reason() {
    let mut parked = node("parked", &[], 8);
    parked.spec.parked = true;
    let mut used = node("used", &[], 8);
    used.spec.extra.insert("instance_uuid".into(), "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6".into());
    let mut other = node("other", &[], 8);
    other.spec.extra.insert("resource_class".into(), "RC".into());
    let on_host = node("on-host", &[], 8);
    let mut whole = fleet([parked, used, other, on_host.clone()]);
    let said = ReportedState { parked: Some("a disk".into()), ..ReportedState::default() };
    let _dirty = whole.apply(FleetChange::ReportedState(on_host.id(), Some(Arc::new(said))));
    let none = "no available nodes match the resource class rc. Of that class there are 2 parked, 1 used already.";
    assert_eq!(chosen_node(&whole, &spec(&[], &[])), none);
    let named = AllocationSpec { candidate_nodes: vec![on_host.id()], ..spec(&[], &[]) };
    assert_eq!(
        chosen_node(&whole, &named),
        "none of the requested nodes are available and match the resource class rc. Of that class there are 1 parked."
    );
    let _dirty = whole.apply(FleetChange::ReportedState(on_host.id(), None));
    assert_eq!(chosen_node(&whole, &named), "on-host");
    let lacks = "no suitable nodes have the requested traits CUSTOM_A.";
    assert!(chosen_node(&whole, &spec(&["CUSTOM_A"], &[])).starts_with(lacks));
    let small = "no suitable nodes meet the requirements property:memory_mb >= 9.";
    assert!(chosen_node(&whole, &spec(&[], &["property:memory_mb >= 9"])).starts_with(small));
}

/// As in Ironic, an allocation with an owner uses only nodes of that owner or lessee.
#[test]
fn allocate_takes_only_nodes_of_owner_or_lessee() {
    let of = |name: &str, field: &str, who: &str| {
        let mut node = node(name, &[], 8);
        node.spec.extra.insert(field.into(), who.into());
        node
    };
    let fleet = fleet([of("bought", "owner", "red"), of("rented", "lessee", "blue"), node("free", &[], 8)]);
    let asked_for = |owner: &str| AllocationSpec { owner: Some(owner.to_owned()), ..spec(&[], &[]) };
    assert_eq!([chosen_node(&fleet, &asked_for("red")), chosen_node(&fleet, &asked_for("blue"))], ["bought", "rented"]);
    let none = chosen_node(&fleet, &asked_for("green"));
    assert!(none.starts_with("no available nodes match the resource class rc"), "{none}");
    assert_eq!(chosen_node(&fleet, &spec(&[], &[])), "bought", "without an owner any node is taken");
}

#[test]
fn allocate_takes_only_nodes_of_group_and_cluster() {
    let id = |n| Uuid::from_u128(n);
    let name = |text: &str| ObjectName::new(text).unwrap();
    let cluster =
        |n, text: &str| -> Cluster { Object { meta: Meta::new(id(n), name(text), Timestamp(0)), spec: ClusterSpec::default() } };
    let group = |n, text: &str, cluster, requirements: &[&str]| -> NodeGroup {
        let requirements = Requirements::parse(requirements).unwrap();
        let spec = NodeGroupSpec { requirements, ..NodeGroupSpec::new(ClusterId(id(cluster))) };
        Object { meta: Meta::new(id(n), name(text), Timestamp(0)), spec }
    };
    let placed = |text: &str, group, memory| {
        let mut node = node(text, &[], memory);
        node.spec.nodegroup = Some(GroupId(id(group)));
        node
    };
    let mut fleet = fleet([placed("a1", 11, 4), placed("a2", 11, 8), placed("b1", 12, 4), node("free", &[], 4)]);
    let _dirty = fleet.apply_all([
        FleetChange::Cluster(Arc::new(cluster(1, "one"))),
        FleetChange::Cluster(Arc::new(cluster(2, "two"))),
        FleetChange::NodeGroup(Arc::new(group(11, "a", 1, &["property:memory_mb >= 8"]))),
        FleetChange::NodeGroup(Arc::new(group(12, "b", 2, &[]))),
    ]);
    let of = |n| AllocationSpec { nodegroup: Some(GroupId(id(n))), ..spec(&[], &[]) };
    assert_eq!(chosen_node(&fleet, &of(11)), "a2", "the group's requirements hold as well");
    assert_eq!(chosen_node(&fleet, &of(12)), "b1");
    let within = |asked: &AllocationSpec, cluster| match allocate(&fleet, asked, Some(ClusterId(id(cluster)))) {
        AllocationDecision::Chosen { node, .. } => fleet.node(node).unwrap().display_name(),
        AllocationDecision::Failed { .. } => "none".to_owned(),
    };
    let anywhere = spec(&[], &[]);
    assert_eq!([within(&anywhere, 1), within(&anywhere, 2)], ["a1", "b1"]);
    assert_eq!(within(&of(11), 2), "none", "another cluster's group");
    let free = fleet.node_by_name("free").unwrap().id();
    let named = AllocationSpec { candidate_nodes: vec![free], ..spec(&[], &[]) };
    assert_eq!(within(&named, 1), "none", "a node of no cluster");
    let taken: BTreeSet<String> = [chosen_node(&fleet, &named), chosen_node(&fleet, &anywhere)].into();
    assert_eq!(taken, BTreeSet::from(["free".to_owned(), "a1".to_owned()]));
}
