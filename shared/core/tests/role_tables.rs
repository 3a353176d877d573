//! How much a fleet holds of the tags of a cluster: one table for each release, however many groups run it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use stemma_author::Reader;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::{ObjectName, ReleaseRef, TagName};
use stemma_core::object::{
    Cluster, ClusterId, ClusterSpec, GroupId, Meta, NodeGroup, NodeGroupSpec, ReleaseSpec, ReleaseTags,
    ReleaseTagsSpec, TagSpec, Timestamp,
};
use stemma_core::release::compile;
use stemma_core::role::RoleTable;
use stemma_counting::held_bytes;
use uuid::Uuid;

/// What is counted is of the whole program.
static ALONE: Mutex<()> = Mutex::new(());

const GROUPS: u128 = 2_000;
const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(1));

fn version(text: &str) -> ReleaseRef {
    text.parse().expect("a release's name")
}

fn release(name: &str) -> Change {
    let spec = ReleaseSpec { tags: tags(1, "own"), ..ReleaseSpec::default() };
    Change::Release(compile(&version(name), &spec, &|_| None, &Reader).expect("a release"))
}

/// As many tags as a cluster may have, each with a kilobyte of title.
fn tags(count: usize, prefix: &str) -> BTreeMap<TagName, TagSpec> {
    let tag = |n: usize| TagName::new(&format!("{prefix}{n}")).expect("a tag");
    (0..count).map(|n| (tag(n), TagSpec { title: "t".repeat(1_000), ..TagSpec::default() })).collect()
}

fn cluster(description: &str, prefix: &str) -> Change {
    let spec = ClusterSpec {
        description: description.to_owned(),
        release: Some(version("site@1")),
        tags: tags(256, prefix),
        ..ClusterSpec::default()
    };
    let name = ObjectName::new("c").expect("a name");
    Change::Cluster(Arc::new(Cluster { meta: Meta::new(CLUSTER.0, name, Timestamp(0)), spec }))
}

fn group(n: u128, release: Option<&str>) -> Change {
    let spec = NodeGroupSpec { release: release.map(version), ..NodeGroupSpec::new(CLUSTER) };
    let name = ObjectName::new(&format!("g{n}")).expect("a name");
    Change::NodeGroup(Arc::new(NodeGroup { meta: Meta::new(id(n).0, name, Timestamp(0)), spec }))
}

fn id(n: u128) -> GroupId {
    GroupId(Uuid::from_u128(1_000 + n))
}

fn table(fleet: &Fleet, n: u128) -> Arc<RoleTable> {
    fleet.fold(id(n)).expect("it is whole").table.clone().expect("it runs a release")
}

fn has(fleet: &Fleet, n: u128, tag: &str) -> bool {
    table(fleet, n).tag(tag).is_some()
}

fn is_shared(fleet: &Fleet) -> bool {
    let first = table(fleet, 0);
    (1..GROUPS).all(|n| Arc::ptr_eq(&first, &table(fleet, n)))
}

#[test]
fn x03_f07_two_thousand_groups_hold_the_tags_of_their_cluster_once() {
    let _alone = ALONE.lock();
    let groups = || (0..GROUPS).map(|n| group(n, None));
    // As they are written, as a store gives them at a start, and the other way round.
    let orders: [&dyn Fn() -> Vec<Change>; 3] = [
        &|| [release("site@1"), cluster("", "a")].into_iter().chain(groups()).collect(),
        &|| [cluster("", "a")].into_iter().chain(groups()).chain([release("site@1")]).collect(),
        &|| groups().chain([release("site@1"), cluster("", "a")]).collect(),
    ];
    for (at, order) in orders.into_iter().enumerate() {
        let before = held_bytes();
        let mut fleet = Fleet::new();
        fleet.apply_all(order());
        fleet.set_loaded();
        assert!(is_shared(&fleet), "order {at}");
        let first = table(&fleet, 0);
        fleet.apply(cluster("another", "a"));
        assert!(is_shared(&fleet) && Arc::ptr_eq(&first, &table(&fleet, 0)), "the same tags are the same table");
        fleet.apply(cluster("another", "b"));
        assert!(is_shared(&fleet) && !has(&fleet, 0, "a0") && has(&fleet, 0, "b0"));
        drop(first);
        // A table of its own for each group would be half a gigabyte.
        let held = held_bytes() - before;
        assert!(held < 32 * 1024 * 1024, "order {at}: {held} bytes");
    }
}

#[test]
fn a_table_is_made_again_of_what_is_another() {
    let _alone = ALONE.lock();
    let mut fleet = Fleet::new();
    fleet.apply_all([release("site@1"), release("site@2"), cluster("", "a"), group(0, None), group(1, Some("site@2"))]);
    fleet.set_loaded();
    assert!(!Arc::ptr_eq(&table(&fleet, 0), &table(&fleet, 1)), "each release has its own");
    // A tag beside the release is seen in both.
    let beside = |prefix: &str| {
        let spec = ReleaseTagsSpec { tags: tags(1, prefix) };
        let meta = Meta::new(Uuid::from_u128(9), "site".parse().expect("a name"), Timestamp(0));
        Change::ReleaseTags(Arc::new(ReleaseTags { meta, spec }))
    };
    fleet.apply(beside("x"));
    assert!(has(&fleet, 0, "x0") && has(&fleet, 1, "x0"));
    // While nobody runs the second one, what is beside it changes; who comes back finds what is there then.
    fleet.apply(group(1, None));
    assert!(Arc::ptr_eq(&table(&fleet, 0), &table(&fleet, 1)));
    fleet.apply(beside("y"));
    fleet.apply(group(1, Some("site@2")));
    assert!(has(&fleet, 1, "y0") && !has(&fleet, 1, "x0") && has(&fleet, 1, "own0"));
}
