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

/// The changes that a write makes.
type WriteFn = Box<dyn Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const CLUSTER: Uuid = Uuid::from_u128(0xc);
const OTHER_CLUSTER: Uuid = Uuid::from_u128(0xd);

/// A registry with its own store. The store has the release of [`release`], a cluster with a group for each role, and a
/// second cluster with one group.
struct WriteSite {
    registry: Registry,
    /// The caller of the writes.
    caller: Caller,
    _directory: tempfile::TempDir,
}

/// Returns the id of the group whose only role is `role`. `WriteSite::new` creates the groups a, b and z, and o in
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

/// Returns a release with a cycle: task ta of tag a waits for task tb on the nodes with tag b, and tb waits for ta on
/// the nodes with tag a. So a write is refused if a cluster then has a node with tag a and another node with tag b.
fn release() -> ReleaseSpec {
    let task = |id: &str, own_tag: &str, awaited_task: &str, awaited_tag: &str| json!({"id": id, "type": "shell", "tags": [own_tag], "cross_depends": [{"name": awaited_task, "tags": [awaited_tag]}], "parameters": {"script": "true"}});
    let spec = json!({
        "roles": {"a": {"tags": ["a", "x"]}, "b": {"tags": ["b", "x"]}, "z": {"tags": ["z"]}}, "tags": {"a": {}, "b": {}, "x": {}, "z": {}},
        "tasks": [task("ta", "a", "tb", "b"), task("tb", "b", "ta", "a")],
    });
    serde_json::from_value(spec).unwrap()
}

impl WriteSite {
    /// Creates a store with the release and two clusters without nodes. The first cluster has a group for each role of
    /// the release. The second cluster has the group o, whose role the release does not have.
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::default(), fleet: Bytes::new() };
        let store: Arc<dyn Store> =
            Arc::new(RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap());
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (cache_follower, followed_store) = (Arc::clone(&cache), Arc::clone(&store));
        // The cache follows the store on its own thread, because a decision can block the thread of the test.
        std::thread::spawn(move || runtime().block_on(cache_follower.follow(followed_store.as_ref())));
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

    /// Makes a write as the site's caller, and returns the revision of its commit.
    async fn write(&self, decide: impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError>) -> Result<Revision, ApiError> {
        self.write_by(&self.caller, decide).await
    }

    /// Makes a write as this caller, and returns the revision of its commit.
    async fn write_by(
        &self,
        caller: &Caller,
        decide: impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError>,
    ) -> Result<Revision, ApiError> {
        let decide_and_finish = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            decide(&mut work)?;
            work.finish(StoredAnswer::empty(200))
        };
        Ok(self.registry.write_at(caller, decide_and_finish).await?.1)
    }

    /// Makes a write. A rival write commits between the first decision of this write and its commit. Returns the result
    /// of the write, and the number of its decisions that succeeded.
    async fn race(&self, write: &WriteFn, rival: &WriteFn) -> (Result<Revision, ApiError>, usize) {
        self.race_as((write, &self.caller), (rival, &self.caller)).await
    }

    /// Makes a write, during which a rival write of another caller commits. Returns the result of the write, and the
    /// number of its decisions that succeeded. See [`Self::race`].
    async fn race_as(
        &self,
        (write, caller): (&WriteFn, &Caller),
        (rival, rival_caller): (&WriteFn, &Caller),
    ) -> (Result<Revision, ApiError>, usize) {
        let attempts = AtomicUsize::new(0);
        let decide = |context: &Context<'_>| {
            let mut work = PendingWrite::new(context);
            write(&mut work)?;
            let decision = work.finish(StoredAnswer::empty(200))?;
            if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
                self.write_concurrently(&[rival], rival_caller);
            }
            Ok(decision)
        };
        let result = self.registry.write_at(caller, decide).await;
        (result.map(|(_, revision)| revision), attempts.into_inner())
    }

    /// Makes writes while another write is being decided. They run on a thread of their own, because the decision
    /// blocks its thread.
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

    /// Returns a node, by the number that is its uuid, as the cache has it.
    fn node(&self, number: u128) -> Arc<Object<NodeSpec>> {
        Arc::clone(self.registry.cache().model().nodes.get(Uuid::from_u128(number)).unwrap())
    }

    /// Returns the keys of the marks of the clusters, each with the revision that wrote the mark. Writes that place
    /// nodes require these marks unchanged or write them, so that only one of two conflicting writes commits.
    fn cluster_marks(&self) -> Vec<(String, Revision)> {
        let model = self.registry.cache().model();
        let cluster_marks = model.marks.iter().filter(|(mark, _)| mark.starts_with("order/") || mark.starts_with("placed/"));
        cluster_marks.map(|(mark, revision)| (mark.clone(), *revision)).collect()
    }
}

/// When the guard is dropped, the client no longer waits for the answer. Loops over the affected nodes then end at
/// once, and the write fails.
#[tokio::test]
async fn w10_05_decision_ends_without_commit_when_canceled() {
    let site = WriteSite::new().await;
    let caller = caller();
    let client_guard = caller.canceled.guard();
    let add_ten = |context: &Context<'_>, reached_count: &AtomicUsize| {
        let mut work = PendingWrite::new(context);
        for number in 1..=10 {
            add_node(number, "a")(&mut work)?;
        }
        reached_count.store(work.affected_nodes().count(), Ordering::Relaxed);
        work.finish(StoredAnswer::empty(200))
    };
    let dry_run_caller = Caller { dry_run: true, ..caller.clone() };
    let reached_count = AtomicUsize::new(0);
    site.registry.write(&dry_run_caller, |context| add_ten(context, &reached_count)).await.unwrap();
    assert_eq!(reached_count.load(Ordering::Relaxed), 10, "the client still waits");
    drop(client_guard);
    let error = site.registry.write(&caller, |context| add_ten(context, &reached_count)).await.unwrap_err();
    assert_eq!((error.kind, reached_count.load(Ordering::Relaxed)), (ErrorType::ServerStopping, 0));
    assert_eq!(site.registry.cache().model().nodes.iter().count(), 0, "nothing was changed");
}

/// The labels of the last of 201 new nodes are larger than an agent accepts, so the write fails. The decision often
/// checks whether the client has disconnected. In each round, the client disconnects at another of these checks. No
/// node may be committed in any round.
#[tokio::test]
async fn decision_commits_nothing_when_canceled_during_checks() {
    let site = WriteSite::new().await;
    let decide = |context: &Context<'_>| {
        let mut work = PendingWrite::new(context);
        (1..=200).try_for_each(|n| add_node(n, "a")(&mut work))?;
        let key = |n: u32| LabelKey::new(&format!("key-{n:03}")).unwrap();
        let value = LabelValue::new(&"x".repeat(1_000)).unwrap();
        let labels = (0..100).map(|n| (key(n), ProvidedValue::Value(value.clone()))).collect();
        let mut spec = NodeSpec { nodegroup: Some(group("a")), ..NodeSpec::default() };
        spec.inherited.labels.provided = Some(OwnedMap::default().update(&caller().manager, &labels));
        work.create(Uuid::from_u128(u128::MAX), Some(NodeName::new("last").unwrap()), spec)?;
        work.finish(StoredAnswer::empty(200))
    };
    let waiting_caller = caller();
    let error = site.registry.write(&waiting_caller, decide).await.expect_err("the last node has too many labels");
    assert!(error.message.contains("node last"), "{error:?}");
    let check_count = waiting_caller.canceled.check_count();
    assert!(check_count > 200, "the decision checks before each node: {check_count} checks");
    for check in (0..check_count).step_by(check_count / 60) {
        let leaving_caller = Caller { canceled: Canceled::from_check(check), ..caller() };
        let error = site.registry.write(&leaving_caller, decide).await.expect_err("the write is canceled");
        assert_eq!(error.kind, ErrorType::ServerStopping, "at check {check} of {check_count}: {error:?}");
    }
    assert_eq!(site.registry.cache().model().nodes.iter().count(), 0);
}

/// Returns the roles of a list that is separated by commas.
fn roles(list: &str) -> Vec<Name> {
    list.split(',').filter(|role| !role.is_empty()).map(|role| Name::new(role).unwrap()).collect()
}

/// Returns a write that creates a node with this number in the group of a role. The number is also the node's uuid.
fn add_node(number: u128, role: &str) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync {
    move |work| {
        let spec = NodeSpec { nodegroup: Some(group(role)), ..NodeSpec::default() };
        work.create(Uuid::from_u128(number), Some(NodeName::new(&format!("n{number}")).unwrap()), spec)?;
        Ok(())
    }
}

/// Returns a write that changes the spec of the node with this number.
fn edit_node<'a>(
    number: u128,
    change: impl Fn(&mut NodeSpec) + Send + Sync + 'a,
) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync + 'a {
    move |work| {
        let old_node = Arc::clone(work.model.nodes.get(Uuid::from_u128(number)).unwrap());
        let mut spec = old_node.spec.clone();
        change(&mut spec);
        work.update(&old_node, old_node.meta.name.clone(), spec)?;
        Ok(())
    }
}

/// Returns a write that moves the node with this number to the group of a role.
fn move_node(number: u128, role: &str) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync {
    edit_node(number, move |spec| spec.nodegroup = Some(group(role)))
}

/// The message for a write after which task ta of n1 and task tb of n2 would wait for each other.
const CYCLE_MESSAGE: &str = "tasks wait for each other: n1/ta -> n2/tb -> n1/ta; remove one of these dependencies, or place a task elsewhere; nothing was changed";

/// A node with tag a and a node with tag b in one cluster close a cycle of tasks (see [`release`]). In each case, two
/// concurrent writes give the cluster these two nodes. The write that commits later is refused.
#[tokio::test]
async fn check_order_refuses_second_write_when_cycle_closes_concurrently() {
    let change_cluster_role = |work: &mut PendingWrite<'_>| {
        let old_cluster = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let change = RoleChange { add_tags: vec![TagName::new("b").unwrap()], remove_tags: vec![] };
        let spec = ClusterSpec { roles: [(Name::new("z").unwrap(), change)].into(), ..old_cluster.spec.clone() };
        work.update(&old_cluster, old_cluster.meta.name.clone(), spec)?;
        Ok(())
    };
    // Second column: the roles of the groups of n1 and n2 before the writes, or "" if the node does not exist yet.
    let cases: [(&str, [&str; 2], WriteFn, WriteFn); 5] = [
        ("two new nodes", ["", ""], Box::new(add_node(1, "a")), Box::new(add_node(2, "b"))),
        (
            "a new node, and a node that moves into the cluster",
            ["", "o"],
            Box::new(add_node(1, "a")),
            Box::new(move_node(2, "b")),
        ),
        (
            "a move, and another role of a node",
            ["o", "z"],
            Box::new(move_node(1, "a")),
            Box::new(edit_node(2, |spec| spec.roles = roles("b"))),
        ),
        ("a new node and a group's roles", ["", "z"], Box::new(add_node(1, "a")), Box::new(change_group("z", "b"))),
        (
            "a new node, and a tag that the cluster adds to a role",
            ["", "z"],
            Box::new(add_node(1, "a")),
            Box::new(change_cluster_role),
        ),
    ];
    for (case, initial_roles, first, second) in cases {
        for (first, second) in [(&first, &second), (&second, &first)] {
            let site = WriteSite::new().await;
            for (number, group_role) in (1..).zip(initial_roles).filter(|(_, group_role)| !group_role.is_empty()) {
                site.write(add_node(number, group_role)).await.unwrap();
            }
            let (result, attempts) = site.race(first, second).await;
            assert_eq!((result.unwrap_err().message.as_str(), attempts), (CYCLE_MESSAGE, 1), "{case}");
            let model = site.registry.cache().model();
            assert!(ClusterGraph::from_fleet(&model.fleet, ClusterId(CLUSTER)).check().is_ok(), "{case}");
        }
    }
}

#[tokio::test]
async fn check_order_finds_cycle_when_node_left_concurrently() {
    // The write adds n3 with the profile of n2, and is decided while n2 exists. Before the commit of this write, other
    // writes delete n2 and add n1. With n1, the new node n3 would close a cycle.
    let site = WriteSite::new().await;
    site.write(add_node(2, "b")).await.unwrap();
    let attempts = AtomicUsize::new(0);
    let delete_n2: WriteFn = Box::new(|work| {
        let node = Arc::clone(work.model.nodes.get(Uuid::from_u128(2)).unwrap());
        work.delete_node(&node)
    });
    let add_n1: WriteFn = Box::new(add_node(1, "a"));
    let decide = |context: &Context<'_>| {
        let mut work = PendingWrite::new(context);
        add_node(3, "b")(&mut work)?;
        let decision = work.finish(StoredAnswer::empty(200))?;
        if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
            site.write_concurrently(&[&delete_n2, &add_n1], &site.caller);
        }
        Ok(decision)
    };
    let error = site.registry.write(&caller(), decide).await.unwrap_err();
    assert_eq!(error.message, CYCLE_MESSAGE.replace("n2", "n3"));
}

/// In each case, the second write commits between the decision of the first write and its commit. The first write is
/// committed without a further decision, because the two writes cannot close a cycle of tasks.
#[tokio::test]
async fn check_order_decides_once_when_cycle_is_impossible() {
    let site = WriteSite::new().await;
    site.write(add_node(1, "a")).await.unwrap();
    let cases: [(&str, WriteFn, WriteFn); 3] = [
        ("new nodes with a known profile", Box::new(add_node(3, "a")), Box::new(add_node(4, "a"))),
        ("an edit that places no node", Box::new(edit_node(1, |spec| spec.description = "x".into())), Box::new(add_node(2, "z"))),
        ("another cluster", Box::new(add_node(5, "o")), Box::new(add_node(6, "a"))),
    ];
    for (case, first, second) in cases {
        let (result, attempts) = site.race(&first, &second).await;
        assert!(result.is_ok() && attempts == 1, "{case}: {result:?} after {attempts}");
    }
}

/// A cluster has two marks that order writes. Every write that places a node writes `placed`. A write that gives a node
/// a profile that no node of the cluster had also writes `order`. The deletion of the cluster deletes both.
#[tokio::test]
async fn check_order_writes_marks_only_for_placements() {
    let site = WriteSite::new().await;
    assert_eq!(site.cluster_marks(), [], "a cluster without nodes has no mark");
    let first_revision = site.write(add_node(1, "a")).await.unwrap();
    let (order_mark, placed_mark) = (format!("order/{CLUSTER}"), format!("placed/{CLUSTER}"));
    assert_eq!(site.cluster_marks(), [(order_mark.clone(), first_revision), (placed_mark.clone(), first_revision)]);
    let second_revision = site.write(add_node(2, "a")).await.unwrap();
    assert_eq!(site.cluster_marks(), [(order_mark.clone(), first_revision), (placed_mark.clone(), second_revision)]);
    site.write(edit_node(2, |spec| spec.description = "other".to_owned())).await.unwrap();
    for number in [1, 2] {
        site.write(|work| work.delete_node(&site.node(number))).await.unwrap();
    }
    assert_eq!(site.cluster_marks(), [(order_mark, first_revision), (placed_mark, second_revision)]);
    site.write(|work| {
        let cluster = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        work.delete_cluster(&cluster)
    })
    .await
    .unwrap();
    assert_eq!(site.cluster_marks(), []);
}

/// Returns a set in which the manager `test` unassigned these tags.
fn unassigned_tags(tags: &[&str]) -> OwnedSet<TagName> {
    let entries = tags.iter().map(|tag| (TagName::new(tag).unwrap(), Some(ProvidedValue::Value(())))).collect();
    OwnedSet::default().patch(&Manager::new("test").unwrap(), &entries)
}

/// Returns a write that gives the group of `old_role` the roles `new_roles`, separated by commas.
fn change_group(
    old_role: &'static str,
    new_roles: &'static str,
) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> + Send + Sync {
    move |work| {
        let old_group = Arc::clone(work.model.groups.get(group(old_role).0).unwrap());
        let spec = NodeGroupSpec { roles: roles(new_roles), ..old_group.spec.clone() };
        work.update(&old_group, old_group.meta.name.clone(), spec)?;
        Ok(())
    }
}

/// Tags x and z of n1 are unassigned. Role a of its group produces the tags a and x, and role b produces b and x. The
/// third column of a case lists the tags, apart from z, that are still unassigned after the write.
#[tokio::test]
async fn unassignment_ends_when_last_role_of_tag_is_removed() {
    let cluster_role = |work: &mut PendingWrite<'_>, role: &str, removed_tag: &str| -> Result<(), DecisionError> {
        let old_object = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let change = RoleChange { add_tags: vec![], remove_tags: vec![TagName::new(removed_tag).unwrap()] };
        let spec = ClusterSpec { roles: [(Name::new(role).unwrap(), change)].into(), ..old_object.spec.clone() };
        work.update(&old_object, old_object.meta.name.clone(), spec)?;
        Ok(())
    };
    let new_release = |work: &mut PendingWrite<'_>| -> Result<(), DecisionError> {
        let old_object = Arc::clone(work.model.releases.get(Uuid::from_u128(1)).unwrap());
        let mut spec = old_object.spec.clone();
        spec.roles.get_mut("a").unwrap().tags = Some(vec![TagName::new("a").unwrap()]);
        work.update(&old_object, old_object.meta.name.clone(), spec)?;
        Ok(())
    };
    let cases: [(&str, WriteFn, &[&str]); 7] = [
        ("the group's roles", Box::new(change_group("a", "z")), &[]),
        ("the group gets another role that produces tag x too", Box::new(change_group("a", "b")), &["x"]),
        ("a move", Box::new(move_node(1, "z")), &[]),
        ("a move to a group whose role produces tag x too", Box::new(move_node(1, "b")), &["x"]),
        ("out of all groups", Box::new(edit_node(1, |spec| spec.nodegroup = None)), &[]),
        ("the cluster removes the tag from the role", Box::new(move |work| cluster_role(work, "a", "x")), &[]),
        ("the release removes the tag from the role", Box::new(new_release), &[]),
    ];
    for (case, write, expected) in cases {
        let site = WriteSite::new().await;
        site.write(add_node(1, "a")).await.unwrap();
        site.write(edit_node(1, |spec| spec.tags.unassigned = unassigned_tags(&["x", "z"]))).await.unwrap();
        let revision = site.write(write).await.unwrap();
        let remaining: Vec<String> = site.node(1).spec.tags.unassigned.members().map(ToString::to_string).collect();
        // The unassignment of tag z remains, because no role of the node produced tag z before the write.
        let expected: Vec<_> = expected.iter().copied().chain(["z"]).collect();
        assert_eq!(remaining, expected, "{case}");
        if remaining.len() == 1 {
            assert_eq!(site.node(1).meta.resource_version, revision.get(), "{case}: in the same commit");
        }
    }
}

/// Returns a write that replaces the tasks of the release `site`.
fn replace_tasks(tasks: serde_json::Value) -> impl Fn(&mut PendingWrite<'_>) -> Result<(), DecisionError> {
    move |work| {
        let old_release = Arc::clone(work.model.releases.get(Uuid::from_u128(1)).unwrap());
        let tasks = serde_json::from_value(tasks.clone()).unwrap();
        let spec = ReleaseSpec { tasks, ..old_release.spec.clone() };
        work.update(&old_release, old_release.meta.name.clone(), spec)?;
        Ok(())
    }
}

/// Task ta waits for itself on the other nodes that have the task. A single node with the task waits for no other node.
/// Two such nodes would wait for each other.
#[tokio::test]
async fn check_order_refuses_second_node_when_task_waits_for_itself() {
    let message = "tasks wait for each other: n1/ta -> n2/ta -> n1/ta; remove one of these dependencies, or place a task elsewhere; nothing was changed";
    for (case, dependency) in [
        ("by a pattern", json!({"name": "/t.*/", "tags": ["a"]})),
        ("by its name", json!({"name": "ta", "tags": ["a"]})),
        ("on all nodes", json!({"name": "ta"})),
        ("until one node has succeeded", json!({"name": "ta", "tags": ["a"], "policy": "any"})),
    ] {
        let site = WriteSite::new().await;
        let task =
            json!({"id": "ta", "type": "shell", "tags": ["a"], "cross_depends": [dependency], "parameters": {"script": "true"}});
        site.write(replace_tasks(json!([task]))).await.unwrap();
        site.write(add_node(1, "a")).await.unwrap();
        site.write(add_node(3, "z")).await.unwrap();
        let error = site.write(add_node(2, "a")).await.unwrap_err();
        assert_eq!(error.message, message, "{case}");
        let error = site.write(edit_node(3, |spec| spec.nodegroup = Some(group("a")))).await.unwrap_err();
        assert_eq!(error.message, message.replace("n2", "n3"), "{case}");
        site.write(add_node(4, "z")).await.unwrap();
    }
}

#[tokio::test]
async fn check_order_refuses_concurrent_node_when_task_waits_for_itself() {
    // Each of the two writes adds the only node that has the task, so the task would wait for no other node. With both
    // nodes, the tasks would wait for each other.
    let site = WriteSite::new().await;
    let task = json!({"id": "ta", "type": "shell", "tags": ["a"], "cross_depends": [{"name": "ta", "tags": ["a"]}], "parameters": {"script": "true"}});
    site.write(replace_tasks(json!([task]))).await.unwrap();
    let (result, attempts) = site.race(&(Box::new(add_node(1, "a")) as WriteFn), &(Box::new(add_node(2, "a")) as WriteFn)).await;
    assert!(result.is_err() && attempts == 1, "{result:?} after {attempts}");
}

/// An allocation chooses node 1 in group a. A rival write commits between its decision and its commit. The number of a
/// case is the number of decisions: two if the choice depends on the object that the rival write changes.
#[tokio::test]
async fn allocation_is_decided_again_when_level_or_rule_changes() {
    let allocate = |work: &mut PendingWrite<'_>| {
        let decision = AllocationDecision::Chosen { node: NodeId(Uuid::from_u128(1)), because: SelectionReason::default() };
        let spec = AllocationSpec { resource_class: "small".to_owned(), decision: Some(decision), ..AllocationSpec::default() };
        let allocation = work.create(Uuid::from_u128(77), None, spec)?;
        work.assign_node(&allocation.object)?;
        Ok(())
    };
    let pause_cluster = |uuid: Uuid| {
        move |work: &mut PendingWrite<'_>| {
            let old_cluster = Arc::clone(work.model.clusters.get(uuid).unwrap());
            let spec = ClusterSpec { paused: true, ..old_cluster.spec.clone() };
            work.update(&old_cluster, old_cluster.meta.name.clone(), spec)?;
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
    for (case, rival, expected) in cases {
        let site = WriteSite::new().await;
        site.write(add_node(1, "a")).await.unwrap();
        let (result, attempts) = site.race(&(Box::new(allocate) as WriteFn), &rival).await;
        assert_eq!((result.map(drop).map_err(|error| error.message), attempts), (Ok(()), expected), "{case}");
    }
}

/// In release `forth`, stage s2 runs after s1. In release `back`, s1 runs after s2. The stages of all groups of a
/// cluster are ordered together, so groups with these releases close a cycle even without nodes.
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
    let create_group = |number: u128, name: &'static str| -> WriteFn {
        Box::new(move |work| {
            let spec = NodeGroupSpec { release: Some(release(name)), ..NodeGroupSpec::new(ClusterId(CLUSTER)) };
            work.create(Uuid::from_u128(number), stemma_core::name::ObjectName::new(name).unwrap(), spec)?;
            Ok(())
        })
    };
    let (create_forth, create_back) = (create_group(60, "forth"), create_group(61, "back"));
    let (result, _) = site.race(&create_back, &create_forth).await;
    let cycle = "tasks wait for each other: stage s1 -> stage s2 -> stage s1; remove one of these dependencies, or place a task elsewhere; nothing was changed";
    assert_eq!(result.unwrap_err().message, cycle);
    // The group `forth` exists now. An edit of release `site`, which the cluster and a group without nodes use, is
    // refused too, because it orders the stages the other way round.
    site.write(|work| {
        let spec = NodeGroupSpec { release: Some(release("site")), ..NodeGroupSpec::new(ClusterId(CLUSTER)) };
        work.create(Uuid::from_u128(62), stemma_core::name::ObjectName::new("empty").unwrap(), spec)?;
        Ok(())
    })
    .await
    .unwrap();
    let error = site.write(replace_tasks(json!(stages("s2", "s1").tasks))).await.unwrap_err();
    assert_eq!(error.message, cycle);
}

/// Returns a release with these tasks and imports.
fn release_importing(tasks: &serde_json::Value, imports: &[&str]) -> ReleaseSpec {
    serde_json::from_value(json!({"imports": imports, "roles": {}, "tags": {}, "tasks": tasks})).unwrap()
}

/// Returns a write that creates a release. The number is its uuid.
fn create_release(number: u128, name: &'static str, spec: ReleaseSpec) -> WriteFn {
    Box::new(move |work| {
        work.create(Uuid::from_u128(number), ReleaseRef::new(name).unwrap(), spec.clone())?;
        Ok(())
    })
}

/// Returns a write that replaces the spec of the release whose uuid is this number.
fn update_release(number: u128, spec: ReleaseSpec) -> WriteFn {
    Box::new(move |work| {
        let old_release = Arc::clone(work.model.releases.get(Uuid::from_u128(number)).unwrap());
        work.update(&old_release, old_release.meta.name.clone(), spec.clone())?;
        Ok(())
    })
}

/// A write stores a release with a task that requires task `needed` of the imported release `lib`. A concurrent edit
/// removes that task from `lib`. The write that commits later is refused.
#[tokio::test]
async fn check_releases_refuses_write_when_imports_no_longer_compile() {
    let stage = |id: &str| json!([{"id": id, "type": "stage"}]);
    let app = release_importing(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["lib"]);
    let app_without_tasks = release_importing(&json!([]), &["mid"]);
    let app_through_mid = release_importing(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["mid"]);
    // Second column: the writes that are committed first. Third column: one of the two writes of the race.
    let cases: [(&str, Vec<WriteFn>, WriteFn); 2] = [
        ("a new release", vec![], create_release(52, "app", app)),
        (
            "an edit of a release that imports lib through mid",
            vec![create_release(52, "app", app_without_tasks)],
            update_release(52, app_through_mid),
        ),
    ];
    for (case, earlier_writes, write) in cases {
        for edit_first in [false, true] {
            let site = WriteSite::new().await;
            site.write(create_release(50, "lib", release_importing(&stage("needed"), &[]))).await.unwrap();
            site.write(create_release(51, "mid", release_importing(&json!([]), &["lib"]))).await.unwrap();
            for earlier_write in &earlier_writes {
                site.write(earlier_write).await.unwrap();
            }
            let edit = update_release(50, release_importing(&stage("other"), &[]));
            let (first, second) = if edit_first { (&edit, &write) } else { (&write, &edit) };
            let (result, attempts) = site.race(first, second).await;
            let refusal = result.expect_err("the write is decided again, after the other write was committed");
            assert!(refusal.message.contains("needed"), "{case}: {}", refusal.message);
            assert_eq!(attempts, 1, "{case}: the first decision succeeded, and the second one refused the write");
            let model = site.registry.cache().model();
            let reloaded = Cache::load(site.registry.store().as_ref()).await.unwrap();
            assert_eq!(reloaded.model().fleet.releases().count(), model.releases.iter().count(), "{case}: all compile");
        }
    }
}

/// The test stores a release directly, without the checks of a write. Its only task requires a task that does not
/// exist.
#[tokio::test]
async fn cache_lists_broken_release_when_loaded() {
    let site = WriteSite::new().await;
    site.write(create_release(50, "bad", release_importing(&json!([]), &[]))).await.unwrap();
    let mut bad_release = Object::clone(site.registry.cache().model().releases.get(Uuid::from_u128(50)).unwrap());
    bad_release.spec = release_importing(&json!([{"id": "x", "type": "stage", "requires": ["ghost"]}]), &[]);
    let object_key = key::object(Kind::Release, bad_release.meta.uuid);
    let put = crate::store::Transaction::new().put(object_key, crate::records::codec::encode(&bad_release));
    site.registry.cache().wait_for(site.registry.store().commit(put).await.unwrap()).await;
    let model = Cache::load(site.registry.store().as_ref()).await.unwrap().model();
    let names: Vec<String> = model.fleet.releases().map(|release| release.name.to_string()).collect();
    assert_eq!(names, ["site"]);
    let broken: Vec<String> = model.broken_releases.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
    assert!(broken.len() == 1 && broken[0].starts_with("bad: ") && broken[0].contains("ghost"), "{broken:?}");
}

/// Checks for the cache, and for a new cache of the store, that no release is broken and that `app` imports `lib`.
async fn check_app_compiles(site: &WriteSite) {
    for model in [site.registry.cache().model(), Cache::load(site.registry.store().as_ref()).await.unwrap().model()] {
        assert!(model.broken_releases.is_empty(), "{:?}", model.broken_releases);
        let app = model.fleet.release(&ReleaseRef::new("app").unwrap()).expect("app compiles");
        assert_eq!(app.all_imports.iter().map(ToString::to_string).collect::<Vec<_>>(), ["lib"]);
    }
}

/// The cache applies the changes of a commit in the order of their keys, which is the order of the uuids for objects of
/// one kind. So it applies the edit of `app`, which has the lower uuid, before `lib` exists.
#[tokio::test]
async fn cache_accepts_release_with_import_of_same_commit() {
    let site = WriteSite::new().await;
    site.write(create_release(50, "app", release_importing(&json!([]), &[]))).await.unwrap();
    let create_lib = create_release(51, "lib", release_importing(&json!([{"id": "needed", "type": "stage"}]), &[]));
    let app = release_importing(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["lib"]);
    let update_app = update_release(50, app);
    site.write(|work: &mut PendingWrite<'_>| create_lib(work).and_then(|()| update_app(work))).await.unwrap();
    check_app_compiles(&site).await;
}

/// The test stores `lib` directly with content that does not compile, as if an earlier version of the controller had
/// accepted it. After a reload, the cache lists `app` as broken too, because its import `lib` is broken.
#[tokio::test]
async fn cache_compiles_importers_again_when_broken_import_is_corrected() {
    let site = WriteSite::new().await;
    let lib = release_importing(&json!([{"id": "needed", "type": "stage"}]), &[]);
    site.write(create_release(51, "lib", lib.clone())).await.unwrap();
    let app = release_importing(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["lib"]);
    site.write(create_release(50, "app", app)).await.unwrap();
    let mut bad_lib = Object::clone(site.registry.cache().model().releases.get(Uuid::from_u128(51)).unwrap());
    bad_lib.spec = release_importing(&json!([{"id": "needed", "type": "stage", "requires": ["ghost"]}]), &[]);
    let object_key = key::object(Kind::Release, bad_lib.meta.uuid);
    let put = crate::store::Transaction::new().put(object_key, crate::records::codec::encode(&bad_lib));
    site.registry.cache().wait_for(site.registry.store().commit(put).await.unwrap()).await;
    site.registry.cache().reload(site.registry.store().as_ref()).await.unwrap();
    let model = site.registry.cache().model();
    assert_eq!(model.broken_releases.keys().map(ToString::to_string).collect::<Vec<_>>(), ["app", "lib"]);
    site.write(update_release(51, lib)).await.unwrap();
    check_app_compiles(&site).await;
}

#[tokio::test]
async fn release_write_refuses_new_relative_path_and_accepts_stored() {
    let task = |id: &str, path: &str| json!({"id": id, "type": "file", "parameters": {"path": path, "content": "x"}});
    let old_release = release_importing(&json!([task("old", "etc/old")]), &[]);
    let site = WriteSite::new().await;
    let error = site.write(create_release(50, "lib", old_release.clone())).await.expect_err("a relative path");
    assert_eq!(error.message, "task old parameters.path: path \"etc/old\" is relative; write it from `/` on");
    assert_eq!(error.extra["errors"][0]["field"], "task old parameters.path");
    // An earlier version of Stemma, which had no such check, stored the relative path.
    site.write(create_release(50, "lib", release_importing(&json!([]), &[]))).await.unwrap();
    let mut stored_release = Object::clone(site.registry.cache().model().releases.get(Uuid::from_u128(50)).unwrap());
    stored_release.spec = old_release.clone();
    let object_key = key::object(Kind::Release, stored_release.meta.uuid);
    let put = crate::store::Transaction::new().put(object_key, crate::records::codec::encode(&stored_release));
    site.registry.cache().wait_for(site.registry.store().commit(put).await.unwrap()).await;
    for model in [site.registry.cache().model(), Cache::load(site.registry.store().as_ref()).await.unwrap().model()] {
        let compiled = model.fleet.release(&ReleaseRef::new("lib").unwrap()).expect("the release compiles").clone();
        assert_eq!(compiled.findings.iter().map(|finding| finding.code.as_str()).collect::<Vec<_>>(), ["task.parameters"]);
        assert!(model.broken_releases.is_empty());
    }
    // Other fields of this release can be edited, and a release that imports it can be stored. A changed task is
    // checked.
    site.write(create_release(51, "over", release_importing(&json!([]), &["lib"]))).await.unwrap();
    site.write(update_release(50, ReleaseSpec { description: "old".to_owned(), ..old_release })).await.unwrap();
    site.write(update_release(50, release_importing(&json!([task("old", "etc/old"), task("new", "/new")]), &[]))).await.unwrap();
    let error = site
        .write(update_release(50, release_importing(&json!([task("old", "etc/other")]), &[])))
        .await
        .expect_err("a changed task is checked");
    assert!(error.message.contains("path \"etc/other\" is relative"), "{}", error.message);
    site.write(update_release(50, release_importing(&json!([task("old", "/etc/other")]), &[]))).await.unwrap();
}

/// A version of a release is pinned when a task set that uses it was released to a host. The content of a pinned
/// version cannot be changed. Here, lib@1 is pinned directly, or through app@1, which imports it.
#[tokio::test]
async fn check_pinned_refuses_content_when_version_was_released() {
    let (old_tasks, new_tasks) = (json!([{"id": "a", "type": "stage"}]), json!([{"id": "b", "type": "stage"}]));
    for (case, has_mark) in [("a released task set, in a store without marks", false), ("a mark", true)] {
        let site = WriteSite::new().await;
        site.write(create_release(50, "lib@1", release_importing(&old_tasks, &[]))).await.unwrap();
        site.write(create_release(51, "app@1", release_importing(&json!([]), &["lib@1"]))).await.unwrap();
        site.write(update_release(50, release_importing(&json!([]), &[])))
            .await
            .expect("no task set of the version was released");
        let put = crate::store::Transaction::new();
        let put = if has_mark {
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
        let error = site.write(update_release(50, release_importing(&new_tasks, &[]))).await.expect_err(case);
        assert_eq!(error.kind, ErrorType::ObjectInUse, "{case}");
        assert!(error.message.contains("the release lib@1"), "{case}: {}", error.message);
        let with_description = ReleaseSpec { description: "for people".into(), ..release_importing(&json!([]), &[]) };
        site.write(update_release(50, with_description)).await.expect("the content is the same");
    }
}

#[tokio::test]
async fn delete_unused_lists_referrers_when_object_is_used() {
    let site = WriteSite::new().await;
    site.write(add_node(1, "a")).await.unwrap();
    let node_name = site.node(1).display_name();
    let delete_release =
        |work: &mut PendingWrite<'_>| work.delete_unused(&work.model.releases.get_by_name(None, "site").unwrap().clone());
    let delete_group = |work: &mut PendingWrite<'_>| work.delete_unused(&work.model.groups.get(group("a").0).unwrap().clone());
    let delete_cluster = |work: &mut PendingWrite<'_>| work.delete_cluster(&work.model.clusters.get(CLUSTER).unwrap().clone());
    let refusals = [
        (site.write(delete_release).await, "release 'site' is in use by cluster c, cluster d".to_owned()),
        (site.write(delete_group).await, format!("nodegroup 'c/a' is in use by node {node_name}")),
        (site.write(delete_cluster).await, format!("cluster 'c' is in use by node {node_name}")),
    ];
    for (result, expected) in refusals {
        let error = result.unwrap_err();
        assert_eq!(error.message, format!("{expected}; nothing was deleted"));
        let (_, users) = expected.split_once(" by ").unwrap();
        let users: Vec<String> = users.split(", ").map(|user| user.replacen(' ', "/", 1)).collect();
        assert_eq!(error.body()["used_by"], serde_json::json!(users));
    }
    let delete_other_cluster =
        |work: &mut PendingWrite<'_>| work.delete_cluster(&work.model.clusters.get(OTHER_CLUSTER).unwrap().clone());
    site.write(delete_other_cluster).await.unwrap();
    assert!(
        site.registry.cache().model().groups.get(group("o").0).is_none(),
        "a group without nodes is deleted with its cluster"
    );
}
