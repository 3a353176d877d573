use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::fleet::Change;
use crate::name::{NodeName, ObjectName};
use crate::object::{
    Cluster, ClusterSpec, GroupId, Meta, Node, NodeGroup, NodeGroupSpec, NodeSpec, Object, SaidOnHost, Timestamp,
};
use crate::ownership::{Manager, OwnedMap, Said};

/// A node of the class `rc` with traits and memory.
fn node(name: &str, traits: &[&str], memory: i64) -> Node {
    let manager = Manager::new("test").unwrap();
    let traits = traits.iter().map(|name| (Trait::new(name).unwrap(), Said::Value(()))).collect();
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
    let _dirty = fleet.apply_all(nodes.into_iter().map(|node| Change::Node(Arc::new(node))));
    fleet.set_loaded();
    fleet
}

fn asked(traits: &[&str], requirements: &[&str]) -> AllocationSpec {
    AllocationSpec {
        resource_class: "rc".to_owned(),
        traits: traits.iter().map(|name| Trait::new(name).unwrap()).collect(),
        requirements: Requirements::parse(requirements).unwrap(),
        ..AllocationSpec::default()
    }
}

/// The name of the node that is chosen, or the sentence.
fn chosen(fleet: &Fleet, asked: &AllocationSpec) -> String {
    match allocate(fleet, asked, None) {
        AllocationDecision::Chosen { node, .. } => fleet.node(node).unwrap().display_name(),
        AllocationDecision::Failed { reason } => reason,
    }
}

#[test]
fn the_best_fit_is_taken() {
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
        // A trait that is required was asked for.
        (&[], &["trait:CUSTOM_GPU required", "trait:CUSTOM_A required"], "gpu"),
        (&[], &["trait:CUSTOM_A forbidden"], "bare"),
        // Least to spare, by key: disk_gb comes before memory_mb.
        (&["CUSTOM_A"], &["property:memory_mb >= 4", "property:disk_gb >= 1"], "big"),
        (&["CUSTOM_A"], &["property:memory_mb <= 64"], "big"),
        (&["CUSTOM_A"], &["property:memory_mb == 8"], "n9"),
    ] {
        assert_eq!(chosen(&fleet, &asked(traits, requirements)), name, "{traits:?} {requirements:?}");
    }
    let decided = allocate(&fleet, &asked(&["CUSTOM_A"], &["property:memory_mb >= 6"]), None);
    let AllocationDecision::Chosen { because, .. } = decided else { panic!("{decided:?}") };
    let spare = [("property:memory_mb".to_owned(), 2.0)].into();
    assert_eq!(because, Merits { candidates: 3, surplus_traits: Vec::new(), to_spare: spare });
}

#[test]
fn the_choice_does_not_depend_on_the_order_in_which_the_fleet_was_read() {
    let nodes: Vec<Node> = (0..20).map(|n| node(&format!("n{n}"), &["CUSTOM_A"], 8 + n % 3)).collect();
    let wanted = asked(&["CUSTOM_A"], &["property:memory_mb >= 8"]);
    let forwards = chosen(&fleet(nodes.clone()), &wanted);
    let backwards = chosen(&fleet(nodes.into_iter().rev()), &wanted);
    assert_eq!((forwards.as_str(), backwards.as_str()), ("n0", "n0"));
}

#[test]
fn who_cannot_be_taken_is_counted() {
    let mut parked = node("parked", &[], 8);
    parked.spec.parked = true;
    let mut used = node("used", &[], 8);
    used.spec.extra.insert("instance_uuid".into(), "0d8e1f4a-5b6c-4d7e-8f90-a1b2c3d4e5f6".into());
    let mut other = node("other", &[], 8);
    other.spec.extra.insert("resource_class".into(), "RC".into());
    let on_host = node("on-host", &[], 8);
    let mut whole = fleet([parked, used, other, on_host.clone()]);
    let said = SaidOnHost { parked: Some("a disk".into()), ..SaidOnHost::default() };
    let _dirty = whole.apply(Change::Said(on_host.id(), Some(Arc::new(said))));
    let none = "no available nodes match the resource class rc. Of that class there are 2 parked, 1 used already.";
    assert_eq!(chosen(&whole, &asked(&[], &[])), none);
    let named = AllocationSpec { candidate_nodes: vec![on_host.id()], ..asked(&[], &[]) };
    assert_eq!(
        chosen(&whole, &named),
        "none of the requested nodes are available and match the resource class rc. Of that class there are 1 parked."
    );
    let _dirty = whole.apply(Change::Said(on_host.id(), None));
    assert_eq!(chosen(&whole, &named), "on-host");
    let lacks = "no suitable nodes have the requested traits CUSTOM_A.";
    assert!(chosen(&whole, &asked(&["CUSTOM_A"], &[])).starts_with(lacks));
    let small = "no suitable nodes meet the requirements property:memory_mb >= 9.";
    assert!(chosen(&whole, &asked(&[], &["property:memory_mb >= 9"])).starts_with(small));
}

/// As in Ironic, an allocation with an owner takes nodes of that owner or lessee.
#[test]
fn an_allocation_with_an_owner_takes_only_nodes_of_that_owner_or_lessee() {
    let of = |name: &str, field: &str, who: &str| {
        let mut node = node(name, &[], 8);
        node.spec.extra.insert(field.into(), who.into());
        node
    };
    let fleet = fleet([of("bought", "owner", "red"), of("rented", "lessee", "blue"), node("free", &[], 8)]);
    let asked_for = |owner: &str| AllocationSpec { owner: Some(owner.to_owned()), ..asked(&[], &[]) };
    assert_eq!([chosen(&fleet, &asked_for("red")), chosen(&fleet, &asked_for("blue"))], ["bought", "rented"]);
    let none = chosen(&fleet, &asked_for("green"));
    assert!(none.starts_with("no available nodes match the resource class rc"), "{none}");
    assert_eq!(chosen(&fleet, &asked(&[], &[])), "bought", "without an owner any node is taken");
}

#[test]
fn a_group_and_a_cluster_bound_what_is_taken() {
    let id = |n| Uuid::from_u128(n);
    let name = |text: &str| ObjectName::new(text).unwrap();
    let cluster = |n, text: &str| -> Cluster {
        Object { meta: Meta::new(id(n), name(text), Timestamp(0)), spec: ClusterSpec::default() }
    };
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
        Change::Cluster(Arc::new(cluster(1, "one"))),
        Change::Cluster(Arc::new(cluster(2, "two"))),
        Change::NodeGroup(Arc::new(group(11, "a", 1, &["property:memory_mb >= 8"]))),
        Change::NodeGroup(Arc::new(group(12, "b", 2, &[]))),
    ]);
    let of = |n| AllocationSpec { nodegroup: Some(GroupId(id(n))), ..asked(&[], &[]) };
    assert_eq!(chosen(&fleet, &of(11)), "a2", "the group's requirements hold as well");
    assert_eq!(chosen(&fleet, &of(12)), "b1");
    let within = |asked: &AllocationSpec, cluster| match allocate(&fleet, asked, Some(ClusterId(id(cluster)))) {
        AllocationDecision::Chosen { node, .. } => fleet.node(node).unwrap().display_name(),
        AllocationDecision::Failed { .. } => "none".to_owned(),
    };
    let anywhere = asked(&[], &[]);
    assert_eq!([within(&anywhere, 1), within(&anywhere, 2)], ["a1", "b1"]);
    assert_eq!(within(&of(11), 2), "none", "another cluster's group");
    let free = fleet.node_named("free").unwrap().id();
    let named = AllocationSpec { candidate_nodes: vec![free], ..asked(&[], &[]) };
    assert_eq!(within(&named, 1), "none", "a node of no cluster");
    let taken: BTreeSet<String> = [chosen(&fleet, &named), chosen(&fleet, &anywhere)].into();
    assert_eq!(taken, BTreeSet::from(["free".to_owned(), "a1".to_owned()]));
}
