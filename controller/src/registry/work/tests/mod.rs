//! Races of writes, and what a write ends elsewhere: over a real store, each decision counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use stemma_core::access::Rights;
use stemma_core::graph::ClusterGraph;
use stemma_core::host_labels::HostLabels;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::name::{Name, NodeName, ReleaseRef, TagName};
use stemma_core::object::{
    AllocationDecision, AllocationSpec, ClusterSpec, GroupId, InspectionRuleSpec, Merits, NodeGroupSpec, NodeSpec,
    ReleaseSpec, RoleChange,
};
use stemma_core::ownership::{Manager, OwnedMap, OwnedSet, Said};
use stemma_core::traits::Trait;
use stemma_wire::clock::FixedClock;

use super::*;
use crate::cache::Cache;
use crate::records::key;
use crate::registry::{Abandoned, Caller, Registry, Who};
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision, Store};

mod counts;
mod privileged;

type Write = Box<dyn Fn(&mut Work<'_>) -> Result<(), Undecided> + Send + Sync>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const CLUSTER: Uuid = Uuid::from_u128(0xc);
const OTHER: Uuid = Uuid::from_u128(0xd);

/// A registry over a store of its own, with a release in which a waits for b and b for a, each on the other's nodes; a
/// cluster with a group for each role, and a second cluster with one group.
struct Site {
    registry: Registry,
    /// Who writes.
    caller: Caller,
    _directory: tempfile::TempDir,
}

fn group(role: &str) -> GroupId {
    GroupId(Uuid::from_u128(u128::from(role.as_bytes()[0])))
}

fn caller() -> Caller {
    Caller {
        who: Who::by_way("test"),
        manager: Manager::new("test").unwrap(),
        address: String::new(),
        reason: None,
        request_id: String::new(),
        mark: None,
        dry_run: false,
        abandoned: Abandoned::default(),
    }
}

fn release() -> ReleaseSpec {
    let task = |id: &str, on: &str, after: &str, of: &str| json!({"id": id, "type": "shell", "tags": [on], "cross_depends": [{"name": after, "tags": [of]}], "parameters": {"script": "true"}});
    let spec = json!({
        "roles": {"a": {"tags": ["a", "x"]}, "b": {"tags": ["b", "x"]}, "z": {"tags": ["z"]}}, "tags": {"a": {}, "b": {}, "x": {}, "z": {}},
        "tasks": [task("ta", "a", "tb", "b"), task("tb", "b", "ta", "a")],
    });
    serde_json::from_value(spec).unwrap()
}

impl Site {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::default(), fleet: Bytes::new() };
        let store: Arc<dyn Store> =
            Arc::new(RedbStore::create(&directory.path().join("store.redb"), &create, RedbOptions::default()).unwrap());
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
        // In a thread of its own, so that it goes on while a decision waits.
        std::thread::spawn(move || runtime().block_on(following.follow(followed.as_ref())));
        let registry = Registry::new(store, cache, Arc::new(FixedClock(1_000_000)));
        let site = Self { registry, caller: caller(), _directory: directory };
        site.write(|work| {
            let name: ReleaseRef = ReleaseRef::new("site").unwrap();
            work.create(Uuid::from_u128(1), name.clone(), release())?;
            for (uuid, cluster) in [(CLUSTER, "c"), (OTHER, "d")] {
                let spec = ClusterSpec { release: Some(name.clone()), ..ClusterSpec::default() };
                work.create(uuid, stemma_core::name::ObjectName::new(cluster).unwrap(), spec)?;
            }
            for (role, cluster) in [("a", CLUSTER), ("b", CLUSTER), ("z", CLUSTER), ("o", OTHER)] {
                let spec = NodeGroupSpec { roles: roles(role), ..NodeGroupSpec::new(ClusterId(cluster)) };
                work.create(group(role).0, stemma_core::name::ObjectName::new(role).unwrap(), spec)?;
            }
            Ok(())
        })
        .await
        .unwrap();
        site
    }

    async fn write(&self, decide: impl Fn(&mut Work<'_>) -> Result<(), Undecided>) -> Result<Revision, ApiError> {
        self.write_by(&self.caller, decide).await
    }

    async fn write_by(
        &self,
        caller: &Caller,
        decide: impl Fn(&mut Work<'_>) -> Result<(), Undecided>,
    ) -> Result<Revision, ApiError> {
        let decided = |context: &Context<'_>| {
            let mut work = Work::on(context);
            decide(&mut work)?;
            work.finish(Answer::empty(200))
        };
        Ok(self.registry.write_at(caller, decided).await?.1)
    }

    /// Two writes of which each decides before the other is committed: the second is made while the first has decided for
    /// the first time. What became of the first, and how often it decided.
    async fn race(&self, one: &Write, other: &Write) -> (Result<Revision, ApiError>, usize) {
        self.race_of((one, &self.caller), (other, &self.caller)).await
    }

    /// The same of two callers.
    async fn race_of(
        &self,
        (one, first): (&Write, &Caller),
        (other, second): (&Write, &Caller),
    ) -> (Result<Revision, ApiError>, usize) {
        let tried = AtomicUsize::new(0);
        let decide = |context: &Context<'_>| {
            let mut work = Work::on(context);
            one(&mut work)?;
            let decision = work.finish(Answer::empty(200))?;
            if tried.fetch_add(1, Ordering::Relaxed) == 0 {
                self.meanwhile(&[other], second);
            }
            Ok(decision)
        };
        let made = self.registry.write_at(first, decide).await;
        (made.map(|(_, revision)| revision), tried.into_inner())
    }

    /// Makes writes from within a decision.
    fn meanwhile(&self, writes: &[&Write], caller: &Caller) {
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

    /// The marks of clusters.
    fn marks(&self) -> Vec<(String, Revision)> {
        let model = self.registry.cache().model();
        let all = model.marks.iter().filter(|(mark, _)| mark.starts_with("order/") || mark.starts_with("placed/"));
        all.map(|(mark, written)| (mark.clone(), *written)).collect()
    }
}

#[tokio::test]
async fn w10_05_a_decision_that_nobody_waits_for_ends_and_changes_nothing() {
    let site = Site::new().await;
    let caller = caller();
    let waiting = caller.abandoned.until_dropped();
    let add_ten = |context: &Context<'_>, reached: &AtomicUsize| {
        let mut work = Work::on(context);
        for n in 1..=10 {
            add(n, "a")(&mut work)?;
        }
        reached.store(work.reached().count(), Ordering::Relaxed);
        work.finish(Answer::empty(200))
    };
    let tried = Caller { dry_run: true, ..caller.clone() };
    let reached = AtomicUsize::new(0);
    site.registry.write(&tried, |context| add_ten(context, &reached)).await.unwrap();
    assert_eq!(reached.load(Ordering::Relaxed), 10, "somebody waits");
    drop(waiting);
    let refused = site.registry.write(&caller, |context| add_ten(context, &reached)).await.unwrap_err();
    assert_eq!((refused.kind, reached.load(Ordering::Relaxed)), (ErrorType::ServerStopping, 0));
    assert_eq!(site.registry.cache().model().nodes.iter().count(), 0, "nothing was changed");
}

/// Of 200 new nodes the last has more labels than an agent takes. The client goes away at many of the looks of the decision whether it is
/// still there: none of them is one at which the last node is not looked at and the others are committed.
#[tokio::test]
async fn a_decision_that_is_left_half_way_through_its_checks_commits_nothing() {
    let site = Site::new().await;
    let decide = |context: &Context<'_>| {
        let mut work = Work::on(context);
        (1..=200).try_for_each(|n| add(n, "a")(&mut work))?;
        let key = |n: u32| LabelKey::new(&format!("key-{n:03}")).unwrap();
        let value = LabelValue::new(&"x".repeat(1_000)).unwrap();
        let many = (0..100).map(|n| (key(n), Said::Value(value.clone()))).collect();
        let mut spec = NodeSpec { nodegroup: Some(group("a")), ..NodeSpec::default() };
        spec.inherited.labels.provided = Some(OwnedMap::default().update(&caller().manager, &many));
        work.create(Uuid::from_u128(u128::MAX), Some(NodeName::new("last").unwrap()), spec)?;
        work.finish(Answer::empty(200))
    };
    let waiting = caller();
    let refused = site.registry.write(&waiting, decide).await.expect_err("it is too large");
    assert!(refused.message.contains("node last"), "{refused:?}");
    let looks = waiting.abandoned.looks();
    assert!(looks > 200, "it is looked before each node: {looks}");
    for look in (0..looks).step_by(looks / 60) {
        let leaving = Caller { abandoned: Abandoned::from_look(look), ..caller() };
        let refused = site.registry.write(&leaving, decide).await.expect_err("nothing of it is committed");
        assert_eq!(refused.kind, ErrorType::ServerStopping, "at look {look} of {looks}: {refused:?}");
    }
    assert_eq!(site.registry.cache().model().nodes.iter().count(), 0);
}

fn roles(text: &str) -> Vec<Name> {
    text.split(',').filter(|role| !role.is_empty()).map(|role| Name::new(role).unwrap()).collect()
}

fn add(n: u128, at: &str) -> impl Fn(&mut Work<'_>) -> Result<(), Undecided> + Send + Sync {
    move |work| {
        let spec = NodeSpec { nodegroup: Some(group(at)), ..NodeSpec::default() };
        work.create(Uuid::from_u128(n), Some(NodeName::new(&format!("n{n}")).unwrap()), spec)?;
        Ok(())
    }
}

fn edit<'a>(
    n: u128,
    change: impl Fn(&mut NodeSpec) + Send + Sync + 'a,
) -> impl Fn(&mut Work<'_>) -> Result<(), Undecided> + Send + Sync + 'a {
    move |work| {
        let before = Arc::clone(work.model.nodes.get(Uuid::from_u128(n)).unwrap());
        let mut spec = before.spec.clone();
        change(&mut spec);
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    }
}

fn move_to(n: u128, at: &str) -> impl Fn(&mut Work<'_>) -> Result<(), Undecided> + Send + Sync {
    edit(n, move |spec| spec.nodegroup = Some(group(at)))
}

const CYCLE: &str = "tasks wait for each other: n1/ta -> n2/tb -> n1/ta; take one of these dependencies away, or place a task elsewhere; nothing was changed";

#[tokio::test]
async fn two_writes_that_close_a_cycle_only_together_are_not_both_made() {
    let role_of_cluster = |work: &mut Work<'_>| {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let change = RoleChange { add_tags: vec![TagName::new("b").unwrap()], remove_tags: vec![] };
        let spec = ClusterSpec { roles: [(Name::new("z").unwrap(), change)].into(), ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    };
    // Each with where n1 and n2 stand before.
    let cases: [(&str, [&str; 2], Write, Write); 5] = [
        ("two new nodes", ["", ""], Box::new(add(1, "a")), Box::new(add(2, "b"))),
        ("a new one and one that is moved here", ["", "o"], Box::new(add(1, "a")), Box::new(move_to(2, "b"))),
        ("a move and a role", ["o", "z"], Box::new(move_to(1, "a")), Box::new(edit(2, |spec| spec.roles = roles("b")))),
        ("a new node and a group's roles", ["", "z"], Box::new(add(1, "a")), Box::new(change_group("z", "b"))),
        (
            "a new node and what the cluster makes of a role",
            ["", "z"],
            Box::new(add(1, "a")),
            Box::new(role_of_cluster),
        ),
    ];
    for (what, before, one, other) in cases {
        for (one, other) in [(&one, &other), (&other, &one)] {
            let site = Site::new().await;
            for (n, at) in (1..).zip(before).filter(|(_, at)| !at.is_empty()) {
                site.write(add(n, at)).await.unwrap();
            }
            let (made, tried) = site.race(one, other).await;
            assert_eq!((made.unwrap_err().message.as_str(), tried), (CYCLE, 1), "{what}");
            let model = site.registry.cache().model();
            assert!(ClusterGraph::of(&model.fleet, ClusterId(CLUSTER)).check().is_ok(), "{what}");
        }
    }
}

#[tokio::test]
async fn what_leaves_between_does_not_hide_a_cycle() {
    // A node is put under the profile of n2, on a snapshot in which n2 is there; meanwhile n2 goes, and then comes what
    // closes a cycle with that profile.
    let site = Site::new().await;
    site.write(add(2, "b")).await.unwrap();
    let tried = AtomicUsize::new(0);
    let leave: Write = Box::new(|work| {
        let node = Arc::clone(work.model.nodes.get(Uuid::from_u128(2)).unwrap());
        work.delete_node(&node)
    });
    let come: Write = Box::new(add(1, "a"));
    let decide = |context: &Context<'_>| {
        let mut work = Work::on(context);
        add(3, "b")(&mut work)?;
        let decision = work.finish(Answer::empty(200))?;
        if tried.fetch_add(1, Ordering::Relaxed) == 0 {
            site.meanwhile(&[&leave, &come], &site.caller);
        }
        Ok(decision)
    };
    let refused = site.registry.write(&caller(), decide).await.unwrap_err();
    assert_eq!(refused.message, CYCLE.replace("n2", "n3"));
}

#[tokio::test]
async fn what_cannot_close_a_cycle_waits_for_nobody() {
    let site = Site::new().await;
    site.write(add(1, "a")).await.unwrap();
    let cases: [(&str, Write, Write); 3] = [
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
async fn only_what_places_writes_a_mark_and_they_go_with_their_cluster() {
    let site = Site::new().await;
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

fn unassigned(tags: &[&str]) -> OwnedSet<TagName> {
    let said = tags.iter().map(|tag| (TagName::new(tag).unwrap(), Some(Said::Value(())))).collect();
    OwnedSet::default().patch(&Manager::new("test").unwrap(), &said)
}

fn change_group(at: &'static str, to: &'static str) -> impl Fn(&mut Work<'_>) -> Result<(), Undecided> + Send + Sync {
    move |work| {
        let before = Arc::clone(work.model.groups.get(group(at).0).unwrap());
        let spec = NodeGroupSpec { roles: roles(to), ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    }
}

#[tokio::test]
async fn an_unassignment_is_forgotten_with_the_last_role_that_produces_its_tag() {
    let cluster_role = |work: &mut Work<'_>, role: &str, removed: &str| -> Result<(), Undecided> {
        let before = Arc::clone(work.model.clusters.get(CLUSTER).unwrap());
        let change = RoleChange { add_tags: vec![], remove_tags: vec![TagName::new(removed).unwrap()] };
        let spec = ClusterSpec { roles: [(Name::new(role).unwrap(), change)].into(), ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    };
    let new_release = |work: &mut Work<'_>| -> Result<(), Undecided> {
        let before = Arc::clone(work.model.releases.get(Uuid::from_u128(1)).unwrap());
        let mut spec = before.spec.clone();
        spec.roles.get_mut("a").unwrap().tags = Some(vec![TagName::new("a").unwrap()]);
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    };
    let cases: [(&str, Write, &[&str]); 7] = [
        ("the group's roles", Box::new(change_group("a", "z")), &[]),
        ("another role of the group produces it too", Box::new(change_group("a", "b")), &["x"]),
        ("a move", Box::new(move_to(1, "z")), &[]),
        ("a move to where it is produced too", Box::new(move_to(1, "b")), &["x"]),
        ("out of all groups", Box::new(edit(1, |spec| spec.nodegroup = None)), &[]),
        ("what the cluster makes of the role", Box::new(move |work| cluster_role(work, "a", "x")), &[]),
        ("what the release makes of it", Box::new(new_release), &[]),
    ];
    for (what, write, expected) in cases {
        let site = Site::new().await;
        site.write(add(1, "a")).await.unwrap();
        site.write(edit(1, |spec| spec.tags.unassigned = unassigned(&["x", "z"]))).await.unwrap();
        let at = site.write(write).await.unwrap();
        let left: Vec<String> = site.node(1).spec.tags.unassigned.members().map(ToString::to_string).collect();
        // What no role ever produced is as it was said.
        let expected: Vec<_> = expected.iter().copied().chain(["z"]).collect();
        assert_eq!(left, expected, "{what}");
        if left.len() == 1 {
            assert_eq!(site.node(1).meta.resource_version, at.get(), "{what}: in the same commit");
        }
    }
}

fn tasks(tasks: serde_json::Value) -> impl Fn(&mut Work<'_>) -> Result<(), Undecided> {
    move |work| {
        let before = Arc::clone(work.model.releases.get(Uuid::from_u128(1)).unwrap());
        let tasks = serde_json::from_value(tasks.clone()).unwrap();
        let spec = ReleaseSpec { tasks, ..before.spec.clone() };
        work.update(&before, before.meta.name.clone(), spec)?;
        Ok(())
    }
}

#[tokio::test]
async fn a_second_node_of_a_profile_whose_task_waits_for_itself_is_refused() {
    let itself = "tasks wait for each other: n1/ta -> n2/ta -> n1/ta; take one of these dependencies away, or place a task elsewhere; nothing was changed";
    for (what, cross) in [
        ("by a pattern", json!({"name": "/t.*/", "tags": ["a"]})),
        ("by its name", json!({"name": "ta", "tags": ["a"]})),
        ("on everybody", json!({"name": "ta"})),
        ("for the first of them", json!({"name": "ta", "tags": ["a"], "policy": "any"})),
    ] {
        let site = Site::new().await;
        let task = json!({"id": "ta", "type": "shell", "tags": ["a"], "cross_depends": [cross], "parameters": {"script": "true"}});
        site.write(tasks(json!([task]))).await.unwrap();
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
async fn of_two_who_come_to_one_that_waits_for_itself_none_slips_by() {
    // Both see a class of one node; the second of them would be the third.
    let site = Site::new().await;
    let task = json!({"id": "ta", "type": "shell", "tags": ["a"], "cross_depends": [{"name": "ta", "tags": ["a"]}], "parameters": {"script": "true"}});
    site.write(tasks(json!([task]))).await.unwrap();
    let (made, tried) = site.race(&(Box::new(add(1, "a")) as Write), &(Box::new(add(2, "a")) as Write)).await;
    assert!(made.is_err() && tried == 1, "{made:?} after {tried}");
}

#[tokio::test]
async fn an_allocation_is_decided_again_when_what_it_rests_on_changes() {
    let allocate = |work: &mut Work<'_>| {
        let decision = AllocationDecision::Chosen { node: NodeId(Uuid::from_u128(1)), because: Merits::default() };
        let spec = AllocationSpec {
            resource_class: "small".to_owned(),
            decision: Some(decision),
            ..AllocationSpec::default()
        };
        let made = work.create(Uuid::from_u128(77), None, spec)?;
        work.take_node(&made.object)?;
        Ok(())
    };
    let cluster = |uuid: Uuid| {
        move |work: &mut Work<'_>| {
            let before = Arc::clone(work.model.clusters.get(uuid).unwrap());
            let spec = ClusterSpec { paused: true, ..before.spec.clone() };
            work.update(&before, before.meta.name.clone(), spec)?;
            Ok(())
        }
    };
    let rule = |work: &mut Work<'_>| {
        work.create(Uuid::from_u128(78), None, InspectionRuleSpec::default())?;
        Ok(())
    };
    let cases: [(&str, Write, usize); 5] = [
        ("the node's group", Box::new(change_group("a", "z")), 2),
        ("its cluster", Box::new(cluster(CLUSTER)), 2),
        ("a rule", Box::new(rule), 2),
        ("another group", Box::new(change_group("b", "z")), 1),
        ("another cluster", Box::new(cluster(OTHER)), 1),
    ];
    for (what, other, decided) in cases {
        let site = Site::new().await;
        site.write(add(1, "a")).await.unwrap();
        let (made, tried) = site.race(&(Box::new(allocate) as Write), &other).await;
        assert_eq!((made.map(drop).map_err(|refused| refused.message), tried), (Ok(()), decided), "{what}");
    }
}

#[tokio::test]
async fn a_group_without_nodes_brings_no_other_order_of_stages() {
    let site = Site::new().await;
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
    let named = |n: u128, name: &'static str| -> Write {
        Box::new(move |work| {
            let spec = NodeGroupSpec { release: Some(release(name)), ..NodeGroupSpec::new(ClusterId(CLUSTER)) };
            work.create(Uuid::from_u128(n), stemma_core::name::ObjectName::new(name).unwrap(), spec)?;
            Ok(())
        })
    };
    let (forth, back) = (named(60, "forth"), named(61, "back"));
    let (made, _) = site.race(&back, &forth).await;
    let cycle = "tasks wait for each other: stage s1 -> stage s2 -> stage s1; take one of these dependencies away, or place a task elsewhere; nothing was changed";
    assert_eq!(made.unwrap_err().message, cycle);
    // Nor does an edit of the release that an empty group names, nor one of the cluster.
    site.write(|work| {
        let spec = NodeGroupSpec { release: Some(release("site")), ..NodeGroupSpec::new(ClusterId(CLUSTER)) };
        work.create(Uuid::from_u128(62), stemma_core::name::ObjectName::new("empty").unwrap(), spec)?;
        Ok(())
    })
    .await
    .unwrap();
    let refused = site.write(tasks(json!(stages("s2", "s1").tasks))).await.unwrap_err();
    assert_eq!(refused.message, cycle);
}

fn release_of(tasks: &serde_json::Value, imports: &[&str]) -> ReleaseSpec {
    serde_json::from_value(json!({"imports": imports, "roles": {}, "tags": {}, "tasks": tasks})).unwrap()
}

fn make(n: u128, name: &'static str, spec: ReleaseSpec) -> Write {
    Box::new(move |work| {
        work.create(Uuid::from_u128(n), ReleaseRef::new(name).unwrap(), spec.clone())?;
        Ok(())
    })
}

fn set(n: u128, spec: ReleaseSpec) -> Write {
    Box::new(move |work| {
        let before = Arc::clone(work.model.releases.get(Uuid::from_u128(n)).unwrap());
        work.update(&before, before.meta.name.clone(), spec.clone())?;
        Ok(())
    })
}

#[tokio::test]
async fn a_release_and_what_it_imports_are_stored_only_as_they_compile_together() {
    let stage = |id: &str| json!([{"id": id, "type": "stage"}]);
    let app = release_of(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["lib"]);
    let plain = release_of(&json!([]), &["mid"]);
    let over_mid = release_of(&json!([{"id": "own", "type": "stage", "requires": ["needed"]}]), &["mid"]);
    // What is stored first, then the two writes: each decides before the other is committed.
    let cases: [(&str, Vec<Write>, Write); 2] = [
        ("a new one", vec![], make(52, "app", app)),
        ("an edit, through another", vec![make(52, "app", plain)], set(52, over_mid)),
    ];
    for (what, before, write) in cases {
        for edit_first in [false, true] {
            let site = Site::new().await;
            site.write(make(50, "lib", release_of(&stage("needed"), &[]))).await.unwrap();
            site.write(make(51, "mid", release_of(&json!([]), &["lib"]))).await.unwrap();
            for one in &before {
                site.write(one).await.unwrap();
            }
            let edit = set(50, release_of(&stage("other"), &[]));
            let (one, other) = if edit_first { (&edit, &write) } else { (&write, &edit) };
            let (made, tried) = site.race(one, other).await;
            let refusal = made.expect_err("the second one sees the first");
            assert!(refusal.message.contains("needed"), "{what}: {}", refusal.message);
            assert_eq!(tried, 1, "{what}: it decided once, and was refused when it decided again");
            let model = site.registry.cache().model();
            let again = Cache::load(site.registry.store().as_ref()).await.unwrap();
            assert_eq!(again.model().fleet.releases().count(), model.releases.iter().count(), "{what}: all compile");
        }
    }
}

#[tokio::test]
async fn a_stored_release_that_does_not_compile_takes_no_other_away() {
    let site = Site::new().await;
    site.write(make(50, "bad", release_of(&json!([]), &[]))).await.unwrap();
    let mut bad = Object::clone(site.registry.cache().model().releases.get(Uuid::from_u128(50)).unwrap());
    bad.spec = release_of(&json!([{"id": "x", "type": "stage", "requires": ["ghost"]}]), &[]);
    let at = key::object(Kind::Release, bad.meta.uuid);
    let put = crate::store::Transaction::new().put(at, crate::records::codec::encode(&bad));
    site.registry.cache().reached(site.registry.store().commit(put).await.unwrap()).await;
    let again = Cache::load(site.registry.store().as_ref()).await.unwrap().model();
    let names: Vec<String> = again.fleet.releases().map(|one| one.name.to_string()).collect();
    assert_eq!(names, ["site"]);
    let broken: Vec<String> = again.broken.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    assert!(broken.len() == 1 && broken[0].starts_with("bad: ") && broken[0].contains("ghost"), "{broken:?}");
}

#[tokio::test]
async fn what_hosts_would_refuse_is_refused_of_a_write_and_served_where_it_is_stored() {
    let task = |id: &str, path: &str| json!({"id": id, "type": "file", "parameters": {"path": path, "content": "x"}});
    let old = release_of(&json!([task("old", "etc/old")]), &[]);
    let site = Site::new().await;
    let refused = site.write(make(50, "lib", old.clone())).await.expect_err("a relative path");
    assert_eq!(refused.message, "task old parameters.path: path \"etc/old\" is relative; write it from `/` on");
    assert_eq!(refused.extra["errors"][0]["field"], "task old parameters.path");
    // As an earlier version stored it.
    site.write(make(50, "lib", release_of(&json!([]), &[]))).await.unwrap();
    let mut stored = Object::clone(site.registry.cache().model().releases.get(Uuid::from_u128(50)).unwrap());
    stored.spec = old.clone();
    let at = key::object(Kind::Release, stored.meta.uuid);
    let put = crate::store::Transaction::new().put(at, crate::records::codec::encode(&stored));
    site.registry.cache().reached(site.registry.store().commit(put).await.unwrap()).await;
    for model in [site.registry.cache().model(), Cache::load(site.registry.store().as_ref()).await.unwrap().model()] {
        let compiled = model.fleet.release(&ReleaseRef::new("lib").unwrap()).expect("it is served").clone();
        assert_eq!(compiled.findings.iter().map(|one| one.code.as_str()).collect::<Vec<_>>(), ["task.parameters"]);
        assert!(model.broken.is_empty());
    }
    // Its other fields are edited, and what imports it is stored; a task that changes is judged.
    site.write(make(51, "over", release_of(&json!([]), &["lib"]))).await.unwrap();
    site.write(set(50, ReleaseSpec { description: "old".to_owned(), ..old })).await.unwrap();
    site.write(set(50, release_of(&json!([task("old", "etc/old"), task("new", "/new")]), &[]))).await.unwrap();
    let refused = site.write(set(50, release_of(&json!([task("old", "etc/other")]), &[]))).await.expect_err("its task");
    assert!(refused.message.contains("path \"etc/other\" is relative"), "{}", refused.message);
    site.write(set(50, release_of(&json!([task("old", "/etc/other")]), &[]))).await.unwrap();
}

#[tokio::test]
async fn a_version_is_fixed_where_it_is_imported_and_also_after_it_runs_nowhere() {
    let (old, new) = (json!([{"id": "a", "type": "stage"}]), json!([{"id": "b", "type": "stage"}]));
    for (what, marked) in [("what runs, in a store without marks", false), ("a mark", true)] {
        let site = Site::new().await;
        site.write(make(50, "lib@1", release_of(&old, &[]))).await.unwrap();
        site.write(make(51, "app@1", release_of(&json!([]), &["lib@1"]))).await.unwrap();
        site.write(set(50, release_of(&json!([]), &[]))).await.expect("nothing runs it");
        let put = crate::store::Transaction::new();
        let put = if marked {
            put.put(key::fixed("lib@1"), Bytes::new())
        } else {
            let record = crate::records::reported::ReleasedRecord::new(
                1,
                stemma_core::object::Timestamp(0),
                stemma_wire::message::desired::TaskSet::default(),
                Some("app@1".into()),
            );
            put.put(key::of_node(key::RELEASED, Uuid::from_u128(9)), crate::records::codec::encode(&record))
        };
        site.registry.cache().reached(site.registry.store().commit(put).await.unwrap()).await;
        let refused = site.write(set(50, release_of(&new, &[]))).await.expect_err(what);
        assert_eq!(refused.kind, ErrorType::ObjectInUse, "{what}");
        assert!(refused.message.contains("the release lib@1"), "{what}: {}", refused.message);
        let described = ReleaseSpec { description: "for people".into(), ..release_of(&json!([]), &[]) };
        site.write(set(50, described)).await.expect("its content is the same");
    }
}

#[tokio::test]
async fn whoever_refers_to_an_object_is_named_where_it_is_to_be_deleted() {
    let site = Site::new().await;
    site.write(add(1, "a")).await.unwrap();
    let node = site.node(1).display_name();
    let a_release = |work: &mut Work<'_>| work.delete_unused(&work.model.releases.named(None, "site").unwrap().clone());
    let a_group = |work: &mut Work<'_>| work.delete_unused(&work.model.groups.get(group("a").0).unwrap().clone());
    let a_cluster = |work: &mut Work<'_>| work.delete_cluster(&work.model.clusters.get(CLUSTER).unwrap().clone());
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
    let other = |work: &mut Work<'_>| work.delete_cluster(&work.model.clusters.get(OTHER).unwrap().clone());
    site.write(other).await.unwrap();
    assert!(site.registry.cache().model().groups.get(group("o").0).is_none(), "a group without nodes goes along");
}
