//! Memory use of the role tables of a cluster: all groups that run one release share one table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use stemma_author::SyntaxReader;
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::{ObjectName, ReleaseRef, TagName};
use stemma_core::object::{
    Cluster, ClusterId, ClusterSpec, GroupId, Meta, NodeGroup, NodeGroupSpec, ReleaseSpec, ReleaseTags, ReleaseTagsSpec, TagSpec,
    Timestamp,
};
use stemma_core::release::compile;
use stemma_core::role::RoleTable;
use stemma_counting::held_bytes;
use uuid::Uuid;

/// Serializes the tests, because the memory of the whole program is counted.
static TEST_LOCK: Mutex<()> = Mutex::new(());

const GROUP_COUNT: u128 = 2_000;
const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(1));

fn release_ref(text: &str) -> ReleaseRef {
    text.parse().expect("a release's name")
}

fn release_change(name: &str) -> FleetChange {
    let spec = ReleaseSpec { tags: tag_specs(1, "own"), ..ReleaseSpec::default() };
    FleetChange::Release(compile(&release_ref(name), &spec, &|_| None, &SyntaxReader).expect("a release"))
}

/// Returns `count` tags, each with a title of 1,000 bytes. A cluster may have up to 256 tags.
fn tag_specs(count: usize, prefix: &str) -> BTreeMap<TagName, TagSpec> {
    let tag = |n: usize| TagName::new(&format!("{prefix}{n}")).expect("a tag");
    (0..count).map(|n| (tag(n), TagSpec { title: "t".repeat(1_000), ..TagSpec::default() })).collect()
}

fn cluster_change(description: &str, prefix: &str) -> FleetChange {
    let spec = ClusterSpec {
        description: description.to_owned(),
        release: Some(release_ref("site@1")),
        tags: tag_specs(256, prefix),
        ..ClusterSpec::default()
    };
    let name = ObjectName::new("c").expect("a name");
    FleetChange::Cluster(Arc::new(Cluster { meta: Meta::new(CLUSTER.0, name, Timestamp(0)), spec }))
}

fn group_change(n: u128, release: Option<&str>) -> FleetChange {
    let spec = NodeGroupSpec { release: release.map(release_ref), ..NodeGroupSpec::new(CLUSTER) };
    let name = ObjectName::new(&format!("g{n}")).expect("a name");
    FleetChange::NodeGroup(Arc::new(NodeGroup { meta: Meta::new(group_id(n).0, name, Timestamp(0)), spec }))
}

fn group_id(n: u128) -> GroupId {
    GroupId(Uuid::from_u128(1_000 + n))
}

fn role_table(fleet: &Fleet, n: u128) -> Arc<RoleTable> {
    fleet.resolved_group(group_id(n)).expect("it is whole").role_table.clone().expect("it runs a release")
}

fn has_tag(fleet: &Fleet, n: u128, tag: &str) -> bool {
    role_table(fleet, n).tag(tag).is_some()
}

fn is_shared(fleet: &Fleet) -> bool {
    let first = role_table(fleet, 0);
    (1..GROUP_COUNT).all(|n| Arc::ptr_eq(&first, &role_table(fleet, n)))
}

#[test]
fn x03_f07_groups_of_cluster_share_role_table() {
    let _guard = TEST_LOCK.lock();
    let groups = || (0..GROUP_COUNT).map(|n| group_change(n, None));
    // The order of writes, the order in which a store returns objects at a start, and the reverse.
    let orders: [&dyn Fn() -> Vec<FleetChange>; 3] = [
        &|| [release_change("site@1"), cluster_change("", "a")].into_iter().chain(groups()).collect(),
        &|| [cluster_change("", "a")].into_iter().chain(groups()).chain([release_change("site@1")]).collect(),
        &|| groups().chain([release_change("site@1"), cluster_change("", "a")]).collect(),
    ];
    for (at, order) in orders.into_iter().enumerate() {
        let before = held_bytes();
        let mut fleet = Fleet::new();
        fleet.apply_all(order());
        fleet.set_loaded();
        assert!(is_shared(&fleet), "order {at}");
        let first = role_table(&fleet, 0);
        fleet.apply(cluster_change("another", "a"));
        assert!(is_shared(&fleet) && Arc::ptr_eq(&first, &role_table(&fleet, 0)), "the same tags are the same table");
        fleet.apply(cluster_change("another", "b"));
        assert!(is_shared(&fleet) && !has_tag(&fleet, 0, "a0") && has_tag(&fleet, 0, "b0"));
        drop(first);
        // A table for each group would take half a gigabyte.
        let held = held_bytes() - before;
        assert!(held < 32 * 1024 * 1024, "order {at}: {held} bytes");
    }
}

#[test]
fn role_table_is_rebuilt_when_inputs_change() {
    let _alone = TEST_LOCK.lock();
    let mut fleet = Fleet::new();
    fleet.apply_all([
        release_change("site@1"),
        release_change("site@2"),
        cluster_change("", "a"),
        group_change(0, None),
        group_change(1, Some("site@2")),
    ]);
    fleet.set_loaded();
    assert!(!Arc::ptr_eq(&role_table(&fleet, 0), &role_table(&fleet, 1)), "each release has its own");
    // A tag of the `ReleaseTags` of the release is in the tables of both versions.
    let release_tags_change = |prefix: &str| {
        let spec = ReleaseTagsSpec { tags: tag_specs(1, prefix) };
        let meta = Meta::new(Uuid::from_u128(9), "site".parse().expect("a name"), Timestamp(0));
        FleetChange::ReleaseTags(Arc::new(ReleaseTags { meta, spec }))
    };
    fleet.apply(release_tags_change("x"));
    assert!(has_tag(&fleet, 0, "x0") && has_tag(&fleet, 1, "x0"));
    // The `ReleaseTags` change while no group runs `site@2`. A group that returns to `site@2` gets the new tags.
    fleet.apply(group_change(1, None));
    assert!(Arc::ptr_eq(&role_table(&fleet, 0), &role_table(&fleet, 1)));
    fleet.apply(release_tags_change("y"));
    fleet.apply(group_change(1, Some("site@2")));
    assert!(has_tag(&fleet, 1, "y0") && !has_tag(&fleet, 1, "x0") && has_tag(&fleet, 1, "own0"));
}
