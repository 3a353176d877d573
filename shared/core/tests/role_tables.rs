//! Memory use of role tables, and the changes after which they are rebuilt. A role table has the roles and tags of a
//! release with the changes of a cluster. All groups of a cluster that run one release share one table.

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
use stemma_counting::allocated_bytes;
use uuid::Uuid;

/// Lock of all tests in this program. The tests must run one after the other, because they measure the memory of the
/// whole program.
static TEST_LOCK: Mutex<()> = Mutex::new(());

/// Number of groups in the cluster.
const GROUP_COUNT: u128 = 2_000;
/// Id of the cluster.
const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(1));

fn release_ref(text: &str) -> ReleaseRef {
    text.parse().expect("a release's name")
}

/// Returns the change that stores a release with one tag, `own0`.
fn release_change(name: &str) -> FleetChange {
    let spec = ReleaseSpec { tags: tag_specs(1, "own"), ..ReleaseSpec::default() };
    FleetChange::Release(compile(&release_ref(name), &spec, &|_| None, &SyntaxReader).expect("a release"))
}

/// Returns `count` tags whose names are the prefix and a number. Each tag has a title of 1,000 bytes.
fn tag_specs(count: usize, prefix: &str) -> BTreeMap<TagName, TagSpec> {
    let tag = |number: usize| TagName::new(&format!("{prefix}{number}")).expect("a tag");
    (0..count).map(|number| (tag(number), TagSpec { title: "t".repeat(1_000), ..TagSpec::default() })).collect()
}

/// Returns the change that stores the cluster, with 256 tags of this prefix. A cluster may have at most 256 tags.
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

/// Returns the change that stores a group of the cluster. Without a release, the group runs the release of the
/// cluster.
fn group_change(number: u128, release: Option<&str>) -> FleetChange {
    let spec = NodeGroupSpec { release: release.map(release_ref), ..NodeGroupSpec::new(CLUSTER) };
    let name = ObjectName::new(&format!("g{number}")).expect("a name");
    FleetChange::NodeGroup(Arc::new(NodeGroup { meta: Meta::new(group_id(number).0, name, Timestamp(0)), spec }))
}

fn group_id(number: u128) -> GroupId {
    GroupId(Uuid::from_u128(1_000 + number))
}

/// Returns the role table (the valid roles and tags) of the group with this number.
fn role_table(fleet: &Fleet, number: u128) -> Arc<RoleTable> {
    fleet.resolved_group(group_id(number)).expect("it is whole").role_table.clone().expect("it runs a release")
}

/// Returns whether the role table of the group with this number has the tag.
fn has_tag(fleet: &Fleet, number: u128, tag: &str) -> bool {
    role_table(fleet, number).tag(tag).is_some()
}

/// Returns whether all groups share the role table of the first group in memory.
fn is_shared(fleet: &Fleet) -> bool {
    let first_table = role_table(fleet, 0);
    (1..GROUP_COUNT).all(|number| Arc::ptr_eq(&first_table, &role_table(fleet, number)))
}

#[test]
fn x03_f07_groups_of_cluster_share_role_table() {
    let _guard = TEST_LOCK.lock();
    let groups = || (0..GROUP_COUNT).map(|number| group_change(number, None));
    // The order of writes, the order in which the store returns objects at a start, and an order with the groups first.
    let orders: [&dyn Fn() -> Vec<FleetChange>; 3] = [
        &|| [release_change("site@1"), cluster_change("", "a")].into_iter().chain(groups()).collect(),
        &|| [cluster_change("", "a")].into_iter().chain(groups()).chain([release_change("site@1")]).collect(),
        &|| groups().chain([release_change("site@1"), cluster_change("", "a")]).collect(),
    ];
    for (order_index, changes) in orders.into_iter().enumerate() {
        let old_bytes = allocated_bytes();
        let mut fleet = Fleet::new();
        fleet.apply_all(changes());
        fleet.set_loaded();
        assert!(is_shared(&fleet), "order {order_index}");
        let first_table = role_table(&fleet, 0);
        fleet.apply(cluster_change("another", "a"));
        assert!(
            is_shared(&fleet) && Arc::ptr_eq(&first_table, &role_table(&fleet, 0)),
            "a cluster with the same tags has the same table"
        );
        fleet.apply(cluster_change("another", "b"));
        assert!(is_shared(&fleet) && !has_tag(&fleet, 0, "a0") && has_tag(&fleet, 0, "b0"));
        drop(first_table);
        // A separate table for each group would need half a gigabyte.
        let used_bytes = allocated_bytes() - old_bytes;
        assert!(used_bytes < 32 * 1024 * 1024, "order {order_index}: {used_bytes} bytes");
    }
}

#[test]
fn role_table_is_rebuilt_when_inputs_change() {
    let _guard = TEST_LOCK.lock();
    let mut fleet = Fleet::new();
    fleet.apply_all([
        release_change("site@1"),
        release_change("site@2"),
        cluster_change("", "a"),
        group_change(0, None),
        group_change(1, Some("site@2")),
    ]);
    fleet.set_loaded();
    assert!(!Arc::ptr_eq(&role_table(&fleet, 0), &role_table(&fleet, 1)), "each release has its own table");
    // An object `ReleaseTags` adds tags to all versions of a release. So both tables get its tag.
    let release_tags_change = |prefix: &str| {
        let spec = ReleaseTagsSpec { tags: tag_specs(1, prefix) };
        let meta = Meta::new(Uuid::from_u128(9), "site".parse().expect("a name"), Timestamp(0));
        FleetChange::ReleaseTags(Arc::new(ReleaseTags { meta, spec }))
    };
    fleet.apply(release_tags_change("x"));
    assert!(has_tag(&fleet, 0, "x0") && has_tag(&fleet, 1, "x0"));
    // The object `ReleaseTags` changes while no group runs `site@2`. A group that then runs `site@2` gets the new tags.
    fleet.apply(group_change(1, None));
    assert!(Arc::ptr_eq(&role_table(&fleet, 0), &role_table(&fleet, 1)));
    fleet.apply(release_tags_change("y"));
    fleet.apply(group_change(1, Some("site@2")));
    // `own0` is the tag of the release itself.
    assert!(has_tag(&fleet, 1, "y0") && !has_tag(&fleet, 1, "x0") && has_tag(&fleet, 1, "own0"));
}
