//! Races of writes, and the effects of a write on other objects. The tests use a real store and count the
//! decisions.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use stemma_core::access::Rights;
use stemma_core::graph::ClusterGraph;
use stemma_core::host_labels::HostLabels;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::name::{Name, NodeName, ReleaseRef, TagName};
use stemma_core::object::{
    AllocationDecision, AllocationSpec, ClusterSpec, GroupId, InspectionRuleSpec, NodeGroupSpec, NodeSpec, ReleaseSpec,
    RoleChange, SelectionReason,
};
use stemma_core::ownership::{Manager, OwnedMap, OwnedSet, ProvidedValue};
use stemma_core::traits::Trait;
use stemma_wire::clock::FixedClock;

use super::*;
use crate::cache::Cache;
use crate::records::key;
use crate::registry::{Caller, Canceled, Registry, Requester};
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision, Store};

mod counts;
mod privileged;

type WriteFn = Box<dyn Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const CLUSTER: Uuid = Uuid::from_u128(0xc);
const OTHER_CLUSTER: Uuid = Uuid::from_u128(0xd);

/// A registry with its own store. In its release, task ta waits for tb and tb for ta, each on the other's nodes. It has
/// a cluster with a group for each role, and a second cluster with one group.
struct WriteSite {
    registry: Registry,
    /// The caller of the writes.
    caller: Caller,
    _directory: tempfile::TempDir,
}

/// Returns the id of the group that has this role alone. `WriteSite::new` creates the groups a, b and z, and o in
/// another cluster.
fn group(role: &str) -> GroupId {
    GroupId(Uuid::from_u128(u128::from(role.as_bytes()[0])))
}

/// Returns a caller with all rights.
fn caller() -> Caller {
    Caller {
        requester: Requester::from_listener("test"),
        manager: Manager::new("test").unwrap(),
        address: String::new(),
        reason: None,
        request_id: String::new(),
        idempotency_key: None,
        dry_run: false,
        canceled: Canceled::default(),
    }
}

/// Returns a release with a cycle: a node with tag a waits for the nodes with tag b, and the other way round. So a
/// write that gives one cluster nodes with both tags is refused.
fn release() -> ReleaseSpec {
    let task = |id: &str, on: &str, after: &str, of: &str| json!({"id": id, "type": "shell", "tags": [on], "cross_depends": [{"name": after, "tags": [of]}], "parameters": {"script": "true"}});
    let spec = json!({
        "roles": {"a": {"tags": ["a", "x"]}, "b": {"tags": ["b", "x"]}, "z": {"tags": ["z"]}}, "tags": {"a": {}, "b": {}, "x": {}, "z": {}},
        "tasks": [task("ta", "a", "tb", "b"), task("tb", "b", "ta", "a")],
    });
    serde_json::from_value(spec).unwrap()
}

impl WriteSite {
    /// Creates a store with the release, two clusters, and a group for each role, without nodes.
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::default(), fleet: Bytes::new() };
        let store: Arc<dyn Store> =
            Arc::new(RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap());
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
        // A separate thread, so that it continues while a decision waits.
        std::thread::spawn(move || runtime().block_on(following.follow(followed.as_ref())));
        let registry = Registry::new(store, cache, Arc::new(FixedClock(1_000_000)));
        let site = Self { registry, caller: caller(), _directory: directory };
        site.write(|work| {
            let name: ReleaseRef = ReleaseRef::new("site").unwrap();
            work.create(Uuid::from_u128(1), name.clone(), release())?;
            for (uuid, cluster) in [(CLUSTER, "c"), (OTHER_CLUSTER, "d")] {
                let spec = ClusterSpec { release: Some(name.clone()), ..ClusterSpec::default() };
                work.create(uuid, stemma_core::name::ObjectName::new(cluster).unwrap(), spec)?;
            }
            for (role, cluster) in [("a", CLUSTER), ("b", CLUSTER), ("z", CLUSTER), ("o", OTHER_CLUSTER)] {
                let spec = NodeGroupSpec { roles: roles(role), ..NodeGroupSpec::new(ClusterId(cluster)) };
                work.create(group(role).0, stemma_core::name::ObjectName::new(role).unwrap(), spec)?;
            }
            Ok(())
        })
        .await
        .unwrap();
        site
    }

    async fn write(&self, decide: impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError>) -> Result<Revision, ApiError> {
        self.write_by(&self.caller, decide).await
    }

    /// Makes a write as this caller, and returns the revision of its commit.
    async fn write_by(
        &self,
        caller: &Caller,
        decide: impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError>,
    ) -> Result<Revision, ApiError> {
        let decided = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            decide(&mut work)?;
            work.finish(StoredAnswer::empty(200))
        };
        Ok(self.registry.write_at(caller, decided).await?.1)
    }

    /// Runs a write, and commits a rival write after the first decision. Returns the result of the write, and how often
    /// it was decided.
    async fn race(&self, write: &WriteFn, rival: &WriteFn) -> (Result<Revision, ApiError>, usize) {
        self.race_as((write, &self.caller), (rival, &self.caller)).await
    }

    /// Like `race`, with a caller for each write.
    async fn race_as(
        &self,
        (write, first): (&WriteFn, &Caller),
        (rival, second): (&WriteFn, &Caller),
    ) -> (Result<Revision, ApiError>, usize) {
        let attempts = AtomicUsize::new(0);
        let decide = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            write(&mut work)?;
            let decision = work.finish(StoredAnswer::empty(200))?;
            if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
                self.write_concurrently(&[rival], second);
            }
            Ok(decision)
        };
        let result = self.registry.write_at(first, decide).await;
        (result.map(|(_, revision)| revision), attempts.into_inner())
    }

    /// Makes writes from within a decision.
    fn write_concurrently(&self, writes: &[&WriteFn], caller: &Caller) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                runtime().block_on(async {
                    for write in writes {
                        self.write_by(caller, write).await.unwrap();
                    }
                });
            });
        });
    }

    fn node(&self, n: u128) -> Arc<Object<NodeSpec>> {
        Arc::clone(self.registry.cache().model().nodes.get(Uuid::from_u128(n)).unwrap())
    }

    /// Returns the marks of the clusters.
    fn marks(&self) -> Vec<(String, Revision)> {
        let model = self.registry.cache().model();
        let all = model.marks.iter().filter(|(mark, _)| mark.starts_with("order/") || mark.starts_with("placed/"));
        all.map(|(mark, written)| (mark.clone(), *written)).collect()
    }
}

#[tokio::test]
async fn w10_05_decision_ends_without_commit_when_canceled() {
    let site = WriteSite::new().await;
    let caller = caller();
    let waiting = caller.canceled.guard();
    let add_ten = |context: &Context<'_>, reached: &AtomicUsize| {
        let mut work = PendingWrite::new(context);
        for n in 1..=10 {
            add(n, "a")(&mut work)?;
        }
        reached.store(work.reached_nodes().count(), Ordering::Relaxed);
        work.finish(StoredAnswer::empty(200))
    };
    let dry_run_caller = Caller { dry_run: true, ..caller.clone() };
    let reached = AtomicUsize::new(0);
    site.registry.write(&dry_run_caller, |context| add_ten(context, &reached)).await.unwrap();
    assert_eq!(reached.load(Ordering::Relaxed), 10, "somebody waits");
    drop(waiting);
    let refused = site.registry.write(&caller, |context| add_ten(context, &reached)).await.unwrap_err();
    assert_eq!((refused.kind, reached.load(Ordering::Relaxed)), (ErrorType::ServerStopping, 0));
    assert_eq!(site.registry.cache().model().nodes.iter().count(), 0, "nothing was changed");
}

/// The last of 200 new nodes has more labels than an agent accepts. The client disconnects at many of the points where
/// the decision checks for that. None of the nodes may be committed, whichever point it is.
#[tokio::test]
async fn decision_commits_none_when_canceled_during_checks() {
    let site = WriteSite::new().await;
    let decide = |context: &Context<'_>| {
        let mut work = PendingWrite::new(context);
        (1..=200).try_for_each(|n| add(n, "a")(&mut work))?;
        let key = |n: u32| LabelKey::new(&format!("key-{n:03}")).unwrap();
        let value = LabelValue::new(&"x".repeat(1_000)).unwrap();
        let many = (0..100).map(|n| (key(n), ProvidedValue::Value(value.clone()))).collect();
        let mut spec = NodeSpec { nodegroup: Some(group("a")), ..NodeSpec::default() };
        spec.inherited.labels.provided = Some(OwnedMap::default().update(&caller().manager, &many));
        work.create(Uuid::from_u128(u128::MAX), Some(NodeName::new("last").unwrap()), spec)?;
        work.finish(StoredAnswer::empty(200))
    };
    let waiting = caller();
    let refused = site.registry.write(&waiting, decide).await.expect_err("it is too large");
    assert!(refused.message.contains("node last"), "{refused:?}");
    let looks = waiting.canceled.check_count();
    assert!(looks > 200, "it is looked before each node: {looks}");
    for look in (0..looks).step_by(looks / 60) {
        let leaving = Caller { canceled: Canceled::from_check(look), ..caller() };
        let refused = site.registry.write(&leaving, decide).await.expect_err("nothing of it is committed");
        assert_eq!(refused.kind, ErrorType::ServerStopping, "at look {look} of {looks}: {refused:?}");
    }
    assert_eq!(site.registry.cache().model().nodes.iter().count(), 0);
}

fn roles(text: &str) -> Vec<Name> {
    text.split(',').filter(|role| !role.is_empty()).map(|role| Name::new(role).unwrap()).collect()
}

/// Returns a write that adds node `n` to the group of a role.
fn add(n: u128, at: &str) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync {
    move |work| {
        let spec = NodeSpec { nodegroup: Some(group(at)), ..NodeSpec::default() };
        work.create(Uuid::from_u128(n), Some(NodeName::new(&format!("n{n}")).unwrap()), spec)?;
        Ok(())
    }
}

/// Returns a write that changes the spec of node `n`.
fn edit<'a>(
    n: u128,
    change: impl Fn(&mut NodeSpec) + Send + Sync + 'a,
) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync + 'a {
    move |work| {
        let before = Arc::clone(work.model.nodes.get(Uuid::from_u128(n)).unwrap());
        let mut spec = before.spec.clone();
        change(&mut spec);
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    }
}

fn move_node(n: u128, at: &str) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync {
    edit(n, move |spec| spec.nodegroup = Some(group(at)))
}

const CYCLE: &str = "tasks wait for each other: n1/ta -> n2/tb -> n1/ta; remove one of these dependencies, or place a task elsewhere; nothing was changed";

#[tokio::test]
async fn check_order_refuses_second_write_when_cycle_closes_concurrently() {
    let change_cluster_role = |work: &mut PendingWrite<'_>| {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let change = RoleChange { add_tags: vec![TagName::new("b").unwrap()], remove_tags: vec![] };
        let spec = ClusterSpec { roles: [(Name::new("z").unwrap(), change)].into(), ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    };
    // Column two: the groups of n1 and n2 before the writes.
    let cases: [(&str, [&str; 2], WriteFn, WriteFn); 5] = [
        ("two new nodes", ["", ""], Box::new(add(1, "a")), Box::new(add(2, "b"))),
        ("a new one and one that is moved here", ["", "o"], Box::new(add(1, "a")), Box::new(move_node(2, "b"))),
        ("a move and a role", ["o", "z"], Box::new(move_node(1, "a")), Box::new(edit(2, |spec| spec.roles = roles("b")))),
        ("a new node and a group's roles", ["", "z"], Box::new(add(1, "a")), Box::new(change_group("z", "b"))),
        ("a new node and what the cluster makes of a role", ["", "z"], Box::new(add(1, "a")), Box::new(change_cluster_role)),
    ];
    for (what, before, one, other) in cases {
        for (one, other) in [(&one, &other), (&other, &one)] {
            let site = WriteSite::new().await;
            for (n, at) in (1..).zip(before).filter(|(_, at)| !at.is_empty()) {
                site.write(add(n, at)).await.unwrap();
            }
            let (result, attempts) = site.race(one, other).await;
            assert_eq!((result.unwrap_err().message.as_str(), attempts), (CYCLE, 1), "{what}");
            let model = site.registry.cache().model();
            assert!(ClusterGraph::from_fleet(&model.fleet, ClusterId(CLUSTER)).check().is_ok(), "{what}");
        }
    }
}

#[tokio::test]
async fn check_order_finds_cycle_when_node_left_concurrently() {
    // A node gets the profile of n2, on a snapshot that contains n2. Before the commit, n2 is deleted, and a node is
    // added that closes a cycle with that profile.
    let site = WriteSite::new().await;
    site.write(add(2, "b")).await.unwrap();
    let tried = AtomicUsize::new(0);
    let leave: WriteFn = Box::new(|work| {
        let node = Arc::clone(work.model.nodes.get(Uuid::from_u128(2)).unwrap());
        work.delete_node(&node)
    });
    let come: WriteFn = Box::new(add(1, "a"));
    let decide = |context: &Context<'_>| {
        let mut work = PendingWrite::new(context);
        add(3, "b")(&mut work)?;
        let decision = work.finish(StoredAnswer::empty(200))?;
        if tried.fetch_add(1, Ordering::Relaxed) == 0 {
            site.write_concurrently(&[&leave, &come], &site.caller);
        }
        Ok(decision)
    };
    let refused = site.registry.write(&caller(), decide).await.unwrap_err();
    assert_eq!(refused.message, CYCLE.replace("n2", "n3"));
}

#[tokio::test]
async fn check_order_decides_once_when_cycle_is_impossible() {
    let site = WriteSite::new().await;
    site.write(add(1, "a")).await.unwrap();
    let cases: [(&str, WriteFn, WriteFn); 3] = [
        ("hosts that come under a known profile", Box::new(add(3, "a")), Box::new(add(4, "a"))),
        ("an edit that places nobody", Box::new(edit(1, |spec| spec.description = "x".into())), Box::new(add(2, "z"))),
        ("another cluster", Box::new(add(5, "o")), Box::new(add(6, "a"))),
    ];
    for (what, one, other) in cases {
        let (made, tried) = site.race(&one, &other).await;
        assert!(made.is_ok() && tried == 1, "{what}: {made:?} after {tried}");
    }
}

#[tokio::test]
async fn check_order_writes_marks_only_for_placements() {
    let site = WriteSite::new().await;
    assert_eq!(site.marks(), [], "without nodes nothing is placed");
    let first = site.write(add(1, "a")).await.unwrap();
    let (order, placed) = (format!("order/{CLUSTER}"), format!("placed/{CLUSTER}"));
    assert_eq!(site.marks(), [(order.clone(), first), (placed.clone(), first)]);
    let second = site.write(add(2, "a")).await.unwrap();
    assert_eq!(site.marks(), [(order.clone(), first), (placed.clone(), second)]);
    site.write(edit(2, |spec| spec.description = "other".to_owned())).await.unwrap();
    for n in [1, 2] {
        site.write(|work| work.delete_node(&site.node(n))).await.unwrap();
    }
    assert_eq!(site.marks(), [(order, first), (placed, second)]);
    site.write(|work| {
        let cluster = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        work.delete_cluster(&cluster)
    })
    .await
    .unwrap();
    assert_eq!(site.marks(), []);
}

fn unassigned_tags(tags: &[&str]) -> OwnedSet<TagName> {
    let entries = tags.iter().map(|tag| (TagName::new(tag).unwrap(), Some(ProvidedValue::Value(())))).collect();
    OwnedSet::default().patch(&Manager::new("test").unwrap(), &entries)
}

fn change_group(at: &'static str, to: &'static str) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync {
    move |work| {
        let before = Arc::clone(work.model.groups.get(group(at).0).unwrap());
        let spec = NodeGroupSpec { roles: roles(to), ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    }
}

#[tokio::test]
async fn unassignment_ends_when_last_role_of_tag_is_removed() {
    let cluster_role = |work: &mut PendingWrite<'_>, role: &str, removed: &str| -> Result<(), DecisionError> {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let change = RoleChange { add_tags: vec![], remove_tags: vec![TagName::new(removed).unwrap()] };
        let spec = ClusterSpec { roles: [(Name::new(role).unwrap(), change)].into(), ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    };
    let new_release = |work: &mut PendingWrite<'_>| -> Result<(), DecisionError> {
        let before = Arc::clone(work.model.releases.get(Uuid::from_u128(1)).unwrap());
        let mut spec = before.spec.clone();
        spec.roles.get_mut("a").unwrap().tags = Some(vec![TagName::new("a").unwrap()]);
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    };
    let cases: [(&str, WriteFn, &[&str]); 7] = [
        ("the group's roles", Box::new(change_group("a", "z")), &[]),
        ("another role of the group produces it too", Box::new(change_group("a", "b")), &["x"]),
        ("a move", Box::new(move_node(1, "z")), &[]),
        ("a move to where it is produced too", Box::new(move_node(1, "b")), &["x"]),
        ("out of all groups", Box::new(edit(1, |spec| spec.nodegroup = None)), &[]),
        ("what the cluster makes of the role", Box::new(move |work| cluster_role(work, "a", "x")), &[]),
        ("what the release makes of it", Box::new(new_release), &[]),
    ];
    for (what, write, expected) in cases {
        let site = WriteSite::new().await;
        site.write(add(1, "a")).await.unwrap();
        site.write(edit(1, |spec| spec.tags.unassigned = unassigned_tags(&["x", "z"]))).await.unwrap();
        let revision = site.write(write).await.unwrap();
        let remaining: Vec<String> = site.node(1).spec.tags.unassigned.members().map(ToString::to_string).collect();
        // An unassignment of a tag that no role ever produced stays.
        let expected: Vec<_> = expected.iter().copied().chain(["z"]).collect();
        assert_eq!(remaining, expected, "{what}");
        if remaining.len() == 1 {
            assert_eq!(site.node(1).meta.resource_version, revision.get(), "{what}: in the same commit");
        }
    }
}

fn replace_tasks(tasks: serde_json::Value) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> {
    move |work| {
        let before = Arc::clone(work.model.releases.get(Uuid::from_u128(1)).unwrap());
        let tasks = serde_json::from_value(tasks.clone()).unwrap();
        let spec = ReleaseSpec { tasks, ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    }
}

#[tokio::test]
async fn check_order_refuses_second_node_when_task_waits_for_itself() {
    let itself = "tasks wait for each other: n1/ta -> n2/ta -> n1/ta; remove one of these dependencies, or place a task elsewhere; nothing was changed";
    for (what, cross) in [
        ("by a pattern", json!({"name": "/t.*/", "tags": ["a"]})),
        ("by its name", json!({"name": "ta", "tags": ["a"]})),
        ("on everybody", json!({"name": "ta"})),
        ("for the first of them", json!({"name": "ta", "tags": ["a"], "policy": "any"})),
    ] {
        let site = WriteSite::new().await;
        let task =
            json!({"id": "ta", "type": "shell", "tags": ["a"], "cross_depends": [cross], "parameters": {"script": "true"}});
        site.write(replace_tasks(json!([task]))).await.unwrap();
        site.write(add(1, "a")).await.unwrap();
        site.write(add(3, "z")).await.unwrap();
        let refused = site.write(add(2, "a")).await.unwrap_err();
        assert_eq!(refused.message, itself, "{what}");
        let refused = site.write(edit(3, |spec| spec.nodegroup = Some(group("a")))).await.unwrap_err();
        assert_eq!(refused.message, itself.replace("n2", "n3"), "{what}");
        site.write(add(4, "z")).await.unwrap();
    }
}

#[tokio::test]
async fn check_order_refuses_concurrent_node_when_task_waits_for_itself() {
    // Both writes see a class with one node. The second of them would be its third node.
    let site = WriteSite::new().await;
    let task = json!({"id": "ta", "type": "shell", "tags": ["a"], "cross_depends": [{"name": "ta", "tags": ["a"]}], "parameters": {"script": "true"}});
    site.write(replace_tasks(json!([task]))).await.unwrap();
    let (made, tried) = site.race(&(Box::new(add(1, "a")) as WriteFn), &(Box::new(add(2, "a")) as WriteFn)).await;
    assert!(made.is_err() && tried == 1, "{made:?} after {tried}");
}

#[tokio::test]
async fn allocation_is_decided_again_when_basis_changes() {
    let allocate = |work: &mut PendingWrite<'_>| {
        let decision = AllocationDecision::Chosen { node: NodeId(Uuid::from_u128(1)), because: SelectionReason::default() };
        let spec = AllocationSpec { resource_class: "small".to_owned(), decision: Some(decision), ..AllocationSpec::default() };
        let made = work.create(Uuid::from_u128(77), None, spec)?;
        work.assign_node(&made.object)?;
        Ok(())
    };
    let pause_cluster = |uuid: Uuid| {
        move |work: &mut PendingWrite<'_>| {
            let before = Arc::clone(work.model.clusters.get(uuid).unwrap());
            let spec = ClusterSpec { paused: true, ..before.spec.clone() };
            work.update(&before, before.meta.name.clone(), spec)?;
            Ok(())
        }
    };
    let create_rule = |work: &mut PendingWrite<'_>| {
        work.create(Uuid::from_u128(78), None, InspectionRuleSpec::default())?;
        Ok(())
    };
    let cases: [(&str, WriteFn, usize); 5] = [
        ("the node's group", Box::new(change_group("a", "z")), 2),
        ("its cluster", Box::new(pause_cluster(CLUSTER)), 2),
        ("a rule", Box::new(create_rule), 2),
        ("another group", Box::new(change_group("b", "z")), 1),
        ("another cluster", Box::new(pause_cluster(OTHER_CLUSTER)), 1),
    ];
    for (what, other, expected) in cases {
        let site = WriteSite::new().await;
        site.write(add(1, "a")).await.unwrap();
        let (result, attempts) = site.race(&(Box::new(allocate) as WriteFn), &other).await;
        assert_eq!((result.map(drop).map_err(|refused| refused.message), attempts), (Ok(()), expected), "{what}");
    }
}

#[tokio::test]
async fn check_order_refuses_stage_cycle_of_group_without_nodes() {
    let site = WriteSite::new().await;
    let stages = |first: &str, second: &str| -> ReleaseSpec {
        let tasks = json!([{"id": first, "type": "stage"}, {"id": second, "type": "stage", "requires": [first]}]);
        serde_json::from_value(json!({"roles": {}, "tags": {}, "tasks": tasks})).unwrap()
    };
    let release = |name: &str| ReleaseRef::new(name).unwrap();
    site.write(|work| {
        work.create(Uuid::from_u128(50), release("forth"), stages("s1", "s2"))?;
        work.create(Uuid::from_u128(51), release("back"), stages("s2", "s1"))?;
        Ok(())
    })
    .await
    .unwrap();
    let create_group = |n: u128, name: &'static str| -> WriteFn {
        Box::new(move |work| {
            let spec = NodeGroupSpec { release: Some(release(name)), ..NodeGroupSpec::new(ClusterId(CLUSTER)) };
            work.create(Uuid::from_u128(n), stemma_core::name::ObjectName::new(name).unwrap(), spec)?;
            Ok(())
        })
    };
    let (forth, back) = (create_group(60, "forth"), create_group(61, "back"));
    let (result, _) = site.race(&back, &forth).await;
    let cycle = "tasks wait for each other: stage s1 -> stage s2 -> stage s1; remove one of these dependencies, or place a task elsewhere; nothing was changed";
    assert_eq!(result.unwrap_err().message, cycle);
    // An edit of the release of an empty group, or of the cluster, is refused as well.
    site.write(|work| {
        let spec = NodeGroupSpec { release: Some(release("site")), ..NodeGroupSpec::new(ClusterId(CLUSTER)) };
        work.create(Uuid::from_u128(62), stemma_core::name::ObjectName::new("empty").unwrap(), spec)?;
        Ok(())
    })
    .await
    .unwrap();
    let refused = site.write(replace_tasks(json!(stages("s2", "s1").tasks))).await.unwrap_err();
    assert_eq!(refused.message, cycle);
}

fn release_importing(tasks: &serde_json::Value, imports: &[&str]) -> ReleaseSpec {
    serde_json::from_value(json!({"imports": imports, "roles": {}, "tags": {}, "tasks": tasks})).unwrap()
}

fn create_release(n: u128, name: &'static str, spec: ReleaseSpec) -> WriteFn {
    Box::new(move |work| {
        work.create(Uuid::from_u128(n), ReleaseRef::new(name).unwrap(), spec.clone())?;
        Ok(())
    })
}

fn update_release(n: u128, spec: ReleaseSpec) -> WriteFn {
    Box::new(move |work| {
        let before = Arc::clone(work.model.releases.get(Uuid::from_u128(n)).unwrap());
        work.update(&before, before.meta.name.clone(), spec.clone())?;
        Ok(())
    })
}

#[tokio::test]
async fn check_releases_refuses_write_when_imports_no_longer_compile() {
    let stage = |id: &str| json!([{"id": id, "type": "stage"}]);
    let app = release_importing(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["lib"]);
    let plain = release_importing(&json!([]), &["mid"]);
    let over_mid = release_importing(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["mid"]);
    // The writes to store first, then one of the two writes of the race.
    let cases: [(&str, Vec<WriteFn>, WriteFn); 2] = [
        ("a new one", vec![], create_release(52, "app", app)),
        ("an edit, through another", vec![create_release(52, "app", plain)], update_release(52, over_mid)),
    ];
    for (what, before, write) in cases {
        for edit_first in [false, true] {
            let site = WriteSite::new().await;
            site.write(create_release(50, "lib", release_importing(&stage("needed"), &[]))).await.unwrap();
            site.write(create_release(51, "mid", release_importing(&json!([]), &["lib"]))).await.unwrap();
            for one in &before {
                site.write(one).await.unwrap();
            }
            let edit = update_release(50, release_importing(&stage("other"), &[]));
            let (one, other) = if edit_first { (&edit, &write) } else { (&write, &edit) };
            let (result, attempts) = site.race(one, other).await;
            let refusal = result.expect_err("the second one sees the first");
            assert!(refusal.message.contains("needed"), "{what}: {}", refusal.message);
            assert_eq!(attempts, 1, "{what}: it decided once, and was refused when it decided again");
            let model = site.registry.cache().model();
            let again = Cache::load(site.registry.store().as_ref()).await.unwrap();
            assert_eq!(again.model().fleet.releases().count(), model.releases.iter().count(), "{what}: all compile");
        }
    }
}

#[tokio::test]
async fn cache_lists_broken_release_when_loaded() {
    let site = WriteSite::new().await;
    site.write(create_release(50, "bad", release_importing(&json!([]), &[]))).await.unwrap();
    let mut bad = Object::clone(site.registry.cache().model().releases.get(Uuid::from_u128(50)).unwrap());
    bad.spec = release_importing(&json!([{"id": "x", "type": "stage", "requires": ["ghost"]}]), &[]);
    let at = key::object(Kind::Release, bad.meta.uuid);
    let put = crate::store::Transaction::new().put(at, crate::records::codec::encode(&bad));
    site.registry.cache().wait_for(site.registry.store().commit(put).await.unwrap()).await;
    let again = Cache::load(site.registry.store().as_ref()).await.unwrap().model();
    let names: Vec<String> = again.fleet.releases().map(|one| one.name.to_string()).collect();
    assert_eq!(names, ["site"]);
    let broken: Vec<String> = again.broken_releases.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    assert!(broken.len() == 1 && broken[0].starts_with("bad: ") && broken[0].contains("ghost"), "{broken:?}");
}

#[tokio::test]
async fn release_write_refuses_new_relative_path_and_accepts_stored() {
    let task = |id: &str, path: &str| json!({"id": id, "type": "file", "parameters": {"path": path, "content": "x"}});
    let old = release_importing(&json!([task("old", "etc/old")]), &[]);
    let site = WriteSite::new().await;
    let refused = site.write(create_release(50, "lib", old.clone())).await.expect_err("a relative path");
    assert_eq!(refused.message, "task old parameters.path: path \"etc/old\" is relative; write it from `/` on");
    assert_eq!(refused.extra["errors"][0]["field"], "task old parameters.path");
    // Stored by an earlier version, without this check.
    site.write(create_release(50, "lib", release_importing(&json!([]), &[]))).await.unwrap();
    let mut stored = Object::clone(site.registry.cache().model().releases.get(Uuid::from_u128(50)).unwrap());
    stored.spec = old.clone();
    let at = key::object(Kind::Release, stored.meta.uuid);
    let put = crate::store::Transaction::new().put(at, crate::records::codec::encode(&stored));
    site.registry.cache().wait_for(site.registry.store().commit(put).await.unwrap()).await;
    for model in [site.registry.cache().model(), Cache::load(site.registry.store().as_ref()).await.unwrap().model()] {
        let compiled = model.fleet.release(&ReleaseRef::new("lib").unwrap()).expect("it is served").clone();
        assert_eq!(compiled.findings.iter().map(|one| one.code.as_str()).collect::<Vec<_>>(), ["task.parameters"]);
        assert!(model.broken_releases.is_empty());
    }
    // Other fields of it can be edited, and a release that imports it can be stored. A changed task is checked.
    site.write(create_release(51, "over", release_importing(&json!([]), &["lib"]))).await.unwrap();
    site.write(update_release(50, ReleaseSpec { description: "old".to_owned(), ..old })).await.unwrap();
    site.write(update_release(50, release_importing(&json!([task("old", "etc/old"), task("new", "/new")]), &[]))).await.unwrap();
    let refused =
        site.write(update_release(50, release_importing(&json!([task("old", "etc/other")]), &[]))).await.expect_err("its task");
    assert!(refused.message.contains("path \"etc/other\" is relative"), "{}", refused.message);
    site.write(update_release(50, release_importing(&json!([task("old", "/etc/other")]), &[]))).await.unwrap();
}

#[tokio::test]
async fn check_pinned_refuses_content_when_version_was_released() {
    let (old, new) = (json!([{"id": "a", "type": "stage"}]), json!([{"id": "b", "type": "stage"}]));
    for (what, marked) in [("what runs, in a store without marks", false), ("a mark", true)] {
        let site = WriteSite::new().await;
        site.write(create_release(50, "lib@1", release_importing(&old, &[]))).await.unwrap();
        site.write(create_release(51, "app@1", release_importing(&json!([]), &["lib@1"]))).await.unwrap();
        site.write(update_release(50, release_importing(&json!([]), &[]))).await.expect("nothing runs it");
        let put = crate::store::Transaction::new();
        let put = if marked {
            put.put(key::pin_mark("lib@1"), Bytes::new())
        } else {
            let record = crate::records::reported::ReleasedRecord::new(
                1,
                stemma_core::object::Timestamp(0),
                stemma_wire::message::desired::TaskSet::default(),
                Some("app@1".into()),
            );
            put.put(key::node_entry(key::RELEASED, Uuid::from_u128(9)), crate::records::codec::encode(&record))
        };
        site.registry.cache().wait_for(site.registry.store().commit(put).await.unwrap()).await;
        let refused = site.write(update_release(50, release_importing(&new, &[]))).await.expect_err(what);
        assert_eq!(refused.kind, ErrorType::ObjectInUse, "{what}");
        assert!(refused.message.contains("the release lib@1"), "{what}: {}", refused.message);
        let described = ReleaseSpec { description: "for people".into(), ..release_importing(&json!([]), &[]) };
        site.write(update_release(50, described)).await.expect("its content is the same");
    }
}

#[tokio::test]
async fn delete_unused_lists_referrers_when_object_is_used() {
    let site = WriteSite::new().await;
    site.write(add(1, "a")).await.unwrap();
    let node = site.node(1).display_name();
    let a_release =
        |work: &mut PendingWrite<'_>| work.delete_unused(&work.model.releases.get_by_name(None, "site").unwrap().clone());
    let a_group = |work: &mut PendingWrite<'_>| work.delete_unused(&work.model.groups.get(group("a").0).unwrap().clone());
    let a_cluster = |work: &mut PendingWrite<'_>| work.delete_cluster(&work.model.clusters.get(CLUSTER).unwrap().clone());
    let refused = [
        (site.write(a_release).await, "release 'site' is in use by cluster c, cluster d".to_owned()),
        (site.write(a_group).await, format!("nodegroup 'c/a' is in use by node {node}")),
        (site.write(a_cluster).await, format!("cluster 'c' is in use by node {node}")),
    ];
    for (refused, says) in refused {
        let refused = refused.unwrap_err();
        assert_eq!(refused.message, format!("{says}; nothing was deleted"));
        let (_, users) = says.split_once(" by ").unwrap();
        let users: Vec<String> = users.split(", ").map(|user| user.replacen(' ', "/", 1)).collect();
        assert_eq!(refused.body()["used_by"], serde_json::json!(users));
    }
    let other = |work: &mut PendingWrite<'_>| work.delete_cluster(&work.model.clusters.get(OTHER_CLUSTER).unwrap().clone());
    site.write(other).await.unwrap();
    assert!(site.registry.cache().model().groups.get(group("o").0).is_none(), "a group without nodes goes along");
}
