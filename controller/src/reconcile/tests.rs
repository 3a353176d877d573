use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{ClusterSpec, GroupId, Kind, Meta, NodeGroupSpec, NodeSpec, Object, ReleaseSpec, Spec};
use stemma_core::ownership::{Manager, OwnedMap, Said};
use stemma_core::status::Told;
use stemma_wire::clock::FixedClock;
use stemma_wire::message::PartDigest;
use stemma_wire::message::observed::{Outcome, TaskResult};

use super::*;
use crate::intake::ToldParts;
use crate::records::reported::{ResultsRecord, StoredResult, ToldRecord};
use crate::records::{codec, key};
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision, Store, Transaction};

const CLUSTER: Uuid = Uuid::from_u128(1);
const FIRST: Uuid = Uuid::from_u128(2);
const SECOND: Uuid = Uuid::from_u128(3);
const NODE: Uuid = Uuid::from_u128(4);
const WAITS: Uuid = Uuid::from_u128(5);
const STAYS: Uuid = Uuid::from_u128(7);
const OTHER_CLUSTER: Uuid = Uuid::from_u128(8);
const FAR: Uuid = Uuid::from_u128(9);
/// What three nodes of a cluster may have: 32 MiB, and 16 KiB for each.
const FULL: u64 = 33_603_584;

/// A reconciler over a store of its own, that nobody runs.
struct Small {
    _directory: tempfile::TempDir,
    store: Arc<FaultyStore>,
    cache: Arc<Cache>,
    counters: Arc<Counters>,
    reconciler: Arc<Reconciler>,
}

impl Small {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        let path = directory.path().join("store.redb");
        let inner = RedbStore::create(&path, &create, RedbOptions::default()).unwrap();
        let store = Arc::new(FaultyStore::new(Arc::new(inner)));
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (following, followed) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { following.follow(followed.as_ref()).await });
        let registry =
            Registry::new(Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&cache), Arc::new(FixedClock(3600)));
        let (counters, table) = (Arc::new(Counters::default()), crate::desired::tests::table());
        let reconciler = Arc::new(Reconciler::new(Arc::new(registry), table, Arc::clone(&counters)));
        Self { _directory: directory, store, cache, counters, reconciler }
    }

    async fn put<S: Spec>(&self, id: Uuid, name: S::Name, spec: S)
    where
        Object<S>: Serialize,
    {
        let object = Object { meta: Meta::new(id, name, Timestamp(0)), spec };
        let put = Transaction::new().put(key::object(S::KIND, id), codec::encode(&object));
        self.cache.reached(self.store.commit(put).await.unwrap()).await;
    }

    async fn put_node(&self, id: Uuid, group: Option<Uuid>) {
        let name = NodeName::new(&format!("n{}", id.as_u128())).ok();
        self.put(id, name, NodeSpec { nodegroup: group.map(GroupId), ..NodeSpec::default() }).await;
    }

    /// Puts a cluster whose second group waits for what the first one runs, with two nodes in the first and one in the second; and
    /// another cluster, whose group is as the first one and has no node. The first group keeps its profile when one of its nodes goes,
    /// so that the wave is not built again for that.
    async fn put_waiting(&self) {
        let task = |id: &str, more: serde_json::Value| {
            let mut task = json!({"id": id, "type": "shell", "tags": [id], "parameters": {"script": "true"}});
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            task
        };
        let release: ReleaseSpec = serde_json::from_value(json!({
            "roles": {"a": {}, "b": {}}, "tags": {"a": {}, "b": {}},
            "tasks": [task("a", json!({})), task("b", json!({"cross_depends": [{"name": "a", "tags": ["a"]}]}))],
        }))
        .unwrap();
        let (own, name) = (ReleaseRef::new("site").unwrap(), |text| ObjectName::new(text).unwrap());
        self.put(Uuid::from_u128(10), own.clone(), release).await;
        for (cluster, text) in [(CLUSTER, "c"), (OTHER_CLUSTER, "d")] {
            self.put(cluster, name(text), ClusterSpec { release: Some(own.clone()), ..ClusterSpec::default() }).await;
        }
        for (group, cluster, role, nodes) in [
            (FIRST, CLUSTER, "a", &[NODE, STAYS][..]),
            (SECOND, CLUSTER, "b", &[WAITS]),
            (FAR, OTHER_CLUSTER, "a", &[]),
        ] {
            let roles = vec![Name::new(role).unwrap()];
            let spec = NodeGroupSpec { roles, ..NodeGroupSpec::new(ClusterId(cluster)) };
            self.put(group, name(role), spec).await;
            for node in nodes {
                self.put_node(*node, Some(group)).await;
            }
        }
    }

    /// Puts a release whose tasks read twelve labels, and nodes that say them: their records take more than the nodes add to what their cluster may have.
    async fn put_large(&self, nodes: &[(Uuid, Uuid)]) {
        let keys: Vec<String> = (0..12).map(|nth| format!("k{nth}")).collect();
        let template: String = keys.iter().map(|key| format!("{{{{ labels.{key} }}}}")).collect();
        let task = |tag: &str| json!({"id": tag, "type": "file", "tags": [tag], "parameters": {"path": "/x", "template": template}});
        let release = json!({"roles": {"a": {}, "b": {}}, "tags": {"a": {}, "b": {}}, "tasks": [task("a"), task("b")]});
        let release: ReleaseSpec = serde_json::from_value(release).unwrap();
        self.put(Uuid::from_u128(10), ReleaseRef::new("site").unwrap(), release).await;
        for (node, group) in nodes {
            let mut spec = NodeSpec { nodegroup: Some(GroupId(*group)), ..NodeSpec::default() };
            let value = |key: &String| LabelValue::new(&format!("{node}{key}{}", "x".repeat(1_900))).unwrap();
            let labels = keys.iter().map(|key| (LabelKey::new(key).unwrap(), Said::Value(value(key)))).collect();
            spec.inherited.labels.provided = Some(OwnedMap::default().update(&Manager::new("test").unwrap(), &labels));
            self.put(*node, NodeName::new(&format!("n{}", node.as_u128())).ok(), spec).await;
        }
    }

    /// One in which the second group's node waits, and nothing is left to do.
    async fn waiting() -> Self {
        let small = Self::new().await;
        small.put_waiting().await;
        small.reconciler.start().await;
        small.reconciler.pass().await;
        small
    }

    /// Puts that a node has succeeded in task a of what it is to have.
    async fn put_result(&self, node: Uuid) {
        let (_, task_set) = self.reconciler.table.digests(node).unwrap();
        self.put_result_of(node, task_set).await;
    }

    /// Puts that a node has succeeded in task a of this task set.
    async fn put_result_of(&self, node: Uuid, task_set: PartDigest) {
        let result = TaskResult {
            sequence: 1,
            task_set,
            task: "a".to_owned(),
            outcome: Outcome::Changed,
            message: String::new(),
            output: String::new(),
            diff: String::new(),
            duration_ms: 1,
        };
        let tasks = BTreeMap::from([("a".to_owned(), StoredResult { at: Timestamp(0), result, is_cut: false })]);
        let record = ResultsRecord { acknowledged: 1, tasks, left_out: 0 };
        let put = Transaction::new().put(key::of_node(key::RESULTS, node), codec::encode(&record));
        self.cache.reached(self.store.commit(put).await.unwrap()).await;
    }

    /// The nodes for which the second group's node waits, by the last pass.
    fn waited_for(&self) -> Vec<NodeId> {
        let shut = self.reconciler.waves().shut(&self.cache.model(), NodeId(WAITS));
        shut.expect("the last pass was for this model")
            .into_iter()
            .flat_map(|shut| shut.nodes)
            .map(|one| one.node)
            .collect()
    }
}

#[tokio::test]
async fn a_node_that_moved_in_a_pass_that_could_not_store_leaves_no_barrier_shut() {
    let nowhere = Uuid::from_u128(99);
    for to in [None, Some(SECOND), Some(FAR), Some(nowhere)] {
        let small = Small::waiting().await;
        assert_eq!(small.waited_for(), [NodeId(NODE), NodeId(STAYS)]);
        small.put_node(NODE, to).await;
        // One that is new has something to store.
        small.put_node(Uuid::from_u128(6), Some(SECOND)).await;
        small.store.plan_commits([Some(Fault::CommitLost)]);
        small.reconciler.pass().await;
        assert!(small.reconciler.memory().left.contains(&NODE), "it is left to do");
        small.reconciler.pass().await;
        small.reconciler.pass().await;
        assert_eq!(small.waited_for(), [NodeId(STAYS)], "it moved to {to:?}");
    }
}

/// Nobody has checked in since the start: a record of an earlier version has no parts.
#[tokio::test]
async fn y06_before_a_host_comes_its_record_says_whether_it_was_told() {
    let small = Small::waiting().await;
    small.put_result(NODE).await;
    let (known, task_set) = small.reconciler.table.digests(NODE).unwrap();
    let parts = |known| Some(ToldParts { known, task_set });
    let released = small.cache.model().released.get(&NODE).unwrap().revision;
    let (now, before) = (task_set, PartDigest([8; 32]));
    for (results_of, parts, revision, unconfirmed, told) in [
        (now, parts(known), released, false, Told::Yes),
        (now, parts(known), released, true, Told::No),
        (now, parts(PartDigest([9; 32])), released + 5, false, Told::No),
        (now, parts(PartDigest([9; 32])), released + 5, true, Told::No),
        (now, None, released, false, Told::Yes),
        (now, None, released - 1, false, Told::No),
        // It confirmed the task set, and has not run it yet.
        (before, parts(known), released, false, Told::Yes),
        (before, parts(known), released, true, Told::No),
        (before, None, released, false, Told::No),
    ] {
        small.put_result_of(NODE, results_of).await;
        let record = ToldRecord { epoch: Uuid::from_u128(7), revision, parts, unconfirmed };
        let put = Transaction::new().put(key::of_node(key::TOLD, NODE), codec::encode(&record));
        small.cache.reached(small.store.commit(put).await.unwrap()).await;
        let model = small.cache.model();
        let (resolution, set) = (model.resolve(NODE), facts::task_set(&model, NODE));
        let answer = resolution.answer().map(|answer| &**answer);
        assert_eq!(facts::told(&model, &small.reconciler.table, (NODE, answer), &set), told, "{record:?}");
    }
}

#[tokio::test]
async fn results_that_come_in_a_pass_that_cannot_store_open_a_barrier_in_the_next_one() {
    let small = Small::waiting().await;
    small.put_result(NODE).await;
    small.put_result(STAYS).await;
    // A node of another cluster has something to store.
    small.put_node(Uuid::from_u128(6), Some(FAR)).await;
    small.store.plan_commits([Some(Fault::CommitLost)]);
    small.reconciler.pass().await;
    assert!(small.reconciler.memory().left_moved.contains_key(&NODE), "they are left to do");
    small.reconciler.pass().await;
    small.reconciler.pass().await;
    assert_eq!(small.waited_for(), []);
}

#[tokio::test]
async fn a_result_opens_a_barrier_in_the_pass_that_hears_of_it_and_else_in_a_full_one_that_counts_it() {
    for (is_heard_of, found) in [(true, 0), (false, 1)] {
        let small = Small::waiting().await;
        let missed = || small.counters.missed.get();
        small.put_result(NODE).await;
        small.put_result(STAYS).await;
        if !is_heard_of {
            // Somebody else is told, so that no pass is.
            drop(small.cache.take_changes());
        }
        assert_eq!((small.reconciler.full().await, missed()), (found, found as u64), "heard of: {is_heard_of}");
        assert_eq!(small.waited_for(), []);
        assert_eq!((small.reconciler.full().await, missed()), (0, found as u64), "it is mended");
    }
}

#[tokio::test]
async fn results_that_came_in_a_gap_of_the_watch_open_a_barrier_in_the_pass_behind_it() {
    let small = Small::waiting().await;
    small.put_result(NODE).await;
    small.put_result(STAYS).await;
    // Nobody is told which nodes had results: all is read again.
    drop(small.cache.take_changes());
    small.cache.read_again(small.store.as_ref()).await.unwrap();
    small.reconciler.pass().await;
    assert_eq!(small.waited_for(), []);
}

#[tokio::test]
async fn barriers_that_come_of_what_was_touched_meanwhile_are_not_counted_as_missed() {
    let small = Small::waiting().await;
    small.put_result(STAYS).await;
    small.reconciler.pass().await;
    small.put_node(NODE, None).await;
    // One of another cluster has something to store: of this one's nodes only the one that left it was touched.
    small.put_node(Uuid::from_u128(6), Some(FAR)).await;
    // The pass before the full one stores nothing, and leaves it what opens the barrier.
    small.store.plan_commits([Some(Fault::CommitLost)]);
    assert_eq!((small.reconciler.full().await, small.counters.missed.get()), (0, 0));
    small.reconciler.pass().await;
    assert_eq!(small.waited_for(), [], "nobody is left who has not succeeded");
}

#[tokio::test]
async fn what_no_pass_was_told_of_is_found_by_a_full_one_and_counted() {
    let small = Small::new().await;
    let (reconciler, missed) = (&small.reconciler, || small.counters.missed.get());
    reconciler.start().await;
    small.put_node(Uuid::from_u128(1), None).await;
    assert_eq!((reconciler.full().await, missed()), (0, 0), "a full pass hears of it as any other does");
    small.put_node(Uuid::from_u128(2), None).await;
    // Somebody else is told, so that no pass is.
    drop(small.cache.take_changes());
    reconciler.pass().await;
    assert_eq!((reconciler.full().await, missed()), (1, 1));
    assert_eq!((reconciler.full().await, missed()), (0, 1), "it is mended");
}

#[tokio::test]
async fn x01_a_release_that_the_store_refuses_holds_back_no_other_node() {
    let small = Small::new().await;
    let (reconciler, table) = (&small.reconciler, &small.reconciler.table);
    let refusal = |node| table.status().refused_release(node);
    small.put_waiting().await;
    small.store.set_refused(Some(key::of_node(key::RELEASED, NODE)));
    reconciler.start().await;
    let is_refused = || refusal(NODE).is_some_and(|why| why.contains(" the limit max_bytes is 7;"));
    assert!(is_refused(), "{:?}", refusal(NODE));
    assert_eq!(table.status().nodes_with_refused_release(), [NODE]);
    let told = |node| table.digests(node).is_some();
    assert_eq!([NODE, STAYS, WAITS].map(told), [false, true, true]);
    assert!(reconciler.memory().left.is_empty(), "nothing is tried again each second");
    // It is tried again in a full resolve, and when the node changes.
    assert_eq!((reconciler.full().await, is_refused()), (0, true));
    small.store.set_refused(None);
    assert_eq!((reconciler.full().await, small.counters.missed.get()), (0, 0), "it was not missed");
    assert_eq!((refusal(NODE), told(NODE)), (None, true));
}

#[tokio::test]
async fn x03_f07_what_goes_beyond_the_budget_of_a_cluster_is_released_to_no_node_until_there_is_room() {
    let small = Small::new().await;
    let (reconciler, table) = (&small.reconciler, &small.reconciler.table);
    small.put_waiting().await;
    let elsewhere = Uuid::from_u128(6);
    small.put_large(&[(NODE, FIRST), (STAYS, FIRST), (WAITS, SECOND), (elsewhere, FAR)]).await;
    let (full, of) = (Uuid::from_u128(77), Some(ClusterId(CLUSTER)));
    let all = RecordSize { node: NodeId(full), cluster: of, stored: Some(FULL), next: None };
    assert_eq!(reconciler.registry.room().admit(&[all], &[], |_| 3), Admitted::default());
    let held = || reconciler.registry.room().of_cluster(of);
    reconciler.start().await;
    let refusal = |node| table.status().refused_release(node);
    for node in [NODE, STAYS, WAITS] {
        let why = refusal(node).unwrap_or_default();
        let begins = "with it what is released to the nodes of cluster c would take more than 33554432 bytes, and 16384 more for each node; ";
        assert!(why.starts_with(begins), "{why}");
    }
    let runs = |node| table.digests(node).unwrap().1;
    let nothing = runs(NODE);
    assert!(runs(elsewhere) != nothing && refusal(elsewhere).is_none(), "another cluster has room");
    assert_eq!(held(), FULL, "nothing was taken");
    // The node that had it all goes.
    small.cache.reached(small.store.commit(Transaction::new().put("x", Bytes::new())).await.unwrap()).await;
    drop(reconciler.publish(&small.cache.model(), BTreeSet::from([full]), BTreeMap::new(), Timestamp(0)).await);
    assert!(reconciler.memory().left.contains(&NODE), "it is tried again at once");
    reconciler.pass().await;
    assert_eq!((refusal(NODE), reconciler.full().await), (None, 0));
    assert_ne!(runs(NODE), nothing);
    let (all, one) = (held(), small.cache.model().released[&NODE].own_bytes());
    let of_node = reconciler.registry.room().of_node(NodeId(NODE));
    assert!(one > 12 * 1_900 && all > 2 * one && of_node == Some((of, one)), "{one} of {all} bytes");
}

/// After a start, what is stored counts also where nothing is decided of its node, and what the store does not take leaves its room to others.
#[tokio::test]
async fn x03_f07_the_room_of_a_cluster_is_what_is_stored() {
    let small = Small::new().await;
    small.put_waiting().await;
    small.put_large(&[(NODE, FIRST), (STAYS, FIRST)]).await;
    small.store.set_refused(Some(key::of_node(key::RELEASED, NODE)));
    small.reconciler.start().await;
    let stored = |node| small.cache.model().released.get(&node).map(|record| record.own_bytes());
    let held = |reconciler: &Reconciler| {
        [NODE, STAYS].map(|node| reconciler.registry.room().of_node(NodeId(node)).map(|(_, bytes)| bytes))
    };
    let large = stored(STAYS).unwrap();
    assert_eq!((held(&small.reconciler), stored(NODE)), ([Some(0), Some(large)], None));
    small.store.set_refused(None);
    assert_eq!(small.reconciler.full().await, 0);
    // Its group is gone, so that it cannot be resolved.
    small.put_node(STAYS, Some(Uuid::from_u128(99))).await;
    small.reconciler.pass().await;
    assert_eq!(held(&small.reconciler), [stored(NODE), Some(large)], "it keeps it in no cluster");
    small.put_large(&[(STAYS, FIRST)]).await;
    small.reconciler.pass().await;
    assert_eq!(held(&small.reconciler), [stored(NODE), stored(STAYS)]);
    // Without a release nothing is decided of them.
    let gone = Transaction::new().delete(key::object(Kind::Release, Uuid::from_u128(10)));
    small.cache.reached(small.store.commit(gone).await.unwrap()).await;
    let (store, cache) = (Arc::clone(&small.store) as Arc<dyn Store>, Arc::clone(&small.cache));
    let registry = Arc::new(Registry::new(store, cache, Arc::new(FixedClock(3600))));
    let restarted = Reconciler::new(registry, crate::desired::tests::table(), Arc::default());
    assert_eq!(held(&restarted), [stored(NODE), stored(STAYS)], "before anything is resolved");
    restarted.start().await;
    assert_eq!(restarted.memory().untold.len(), 3, "each node of the cluster");
    assert_eq!(held(&restarted), [stored(NODE), stored(STAYS)]);
}

#[tokio::test]
async fn a_full_resolve_that_is_asked_for_before_the_first_pass_follows_it() {
    let small = Small::new().await;
    small.put_node(Uuid::from_u128(1), None).await;
    let found = tokio::select! {
        biased;
        found = small.reconciler.check_now() => found,
        never = small.reconciler.run() => match never {},
    };
    assert_eq!((found, small.counters.missed.get()), (Some(0), 0));
}

#[test]
fn why_a_node_is_not_told_is_news_once() {
    let (mut memory, node) = (Memory::default(), Uuid::from_u128(1));
    let news = ["no release", "no release", "no cluster"].map(|why| memory.note_untold(node, why));
    assert_eq!(news, [true, false, true]);
}
