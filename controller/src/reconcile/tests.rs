//! Tests of the passes of the reconciler: barriers, releases that are refused, and the quota of records.

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use stemma_core::key::{LabelKey, LabelValue};
use stemma_core::name::{Name, NodeName, ObjectName, ReleaseRef};
use stemma_core::object::{ClusterSpec, GroupId, Kind, Meta, NodeGroupSpec, NodeSpec, Object, ReleaseSpec, Spec};
use stemma_core::ownership::{Manager, OwnedMap, ProvidedValue};
use stemma_core::status::HostConfirmation;
use stemma_wire::clock::FixedClock;
use stemma_wire::message::PartDigest;
use stemma_wire::message::observed::{Outcome, TaskResult};

use super::*;
use crate::intake::SentParts;
use crate::records::reported::{ResultsRecord, SentRecord, StoredResult};
use crate::records::{codec, key};
use crate::store::faulty::{FaultyStore, InjectedFault};
use crate::store::{CreateOptions, Epoch, RedbOptions, RedbStore, Revision, Store, Transaction};

const CLUSTER: Uuid = Uuid::from_u128(1);
const FIRST_GROUP: Uuid = Uuid::from_u128(2);
const SECOND_GROUP: Uuid = Uuid::from_u128(3);
const NODE: Uuid = Uuid::from_u128(4);
const WAITING_NODE: Uuid = Uuid::from_u128(5);
const STAYING_NODE: Uuid = Uuid::from_u128(7);
const OTHER_CLUSTER: Uuid = Uuid::from_u128(8);
const OTHER_GROUP: Uuid = Uuid::from_u128(9);
/// Maximum size of the records of a cluster with three nodes, in bytes: 32 MiB, and 16 KiB for each node.
const FULL_BYTES: u64 = 33_603_584;

/// A reconciler with a store of its own. Most tests do not start the loop of the reconciler, and run single passes.
pub(crate) struct ReconcilerSite {
    _directory: tempfile::TempDir,
    store: Arc<FaultyStore>,
    cache: Arc<Cache>,
    counters: Arc<Counters>,
    reconciler: Arc<Reconciler>,
}

impl ReconcilerSite {
    /// Creates an empty store, and a reconciler that has run no pass yet.
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let create = CreateOptions { epoch: Epoch::new([7; 16]), base: Revision::ZERO, fleet: Bytes::new() };
        let path = directory.path().join("store.redb");
        let inner = RedbStore::create(&path, &create, RedbOptions::default()).unwrap();
        let store = Arc::new(FaultyStore::new(Arc::new(inner)));
        let cache = Arc::new(Cache::load(store.as_ref()).await.unwrap());
        let (cache_follower, followed_store) = (Arc::clone(&cache), Arc::clone(&store));
        tokio::spawn(async move { cache_follower.follow(followed_store.as_ref()).await });
        let registry = Registry::new(Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&cache), Arc::new(FixedClock(3600)));
        let (counters, table) = (Arc::new(Counters::default()), crate::desired::tests::table());
        let reconciler = Arc::new(Reconciler::new(Arc::new(registry), table, Arc::clone(&counters)));
        Self { _directory: directory, store, cache, counters, reconciler }
    }

    /// Returns the reconciler.
    pub(crate) fn reconciler(&self) -> &Arc<Reconciler> {
        &self.reconciler
    }

    /// Returns a lock for which [`Reconciler::run`] waits before its first pass.
    pub(crate) async fn lock_requests(&self) -> tokio::sync::MutexGuard<'_, mpsc::Receiver<oneshot::Sender<usize>>> {
        self.reconciler.full_request_queue.lock().await
    }

    /// Stores an object directly, and waits until the cache has it.
    async fn put<S: Spec>(&self, id: Uuid, name: S::Name, spec: S)
    where
        Object<S>: Serialize,
    {
        let object = Object { meta: Meta::new(id, name, Timestamp(0)), spec };
        let put = Transaction::new().put(key::object(S::KIND, id), codec::encode(&object));
        self.cache.wait_for(self.store.commit(put).await.unwrap()).await;
    }

    /// Stores a node in this group, or in no group. Its name is `n` and the number of its id.
    async fn put_node(&self, id: Uuid, group: Option<Uuid>) {
        let name = NodeName::new(&format!("n{}", id.as_u128())).ok();
        self.put(id, name, NodeSpec { nodegroup: group.map(GroupId), ..NodeSpec::default() }).await;
    }

    /// Stores a cluster with two nodes in its first group and one node in its second group. Task b of the second group
    /// waits for task a of the first group. Also stores another cluster, whose only group has the role of the first
    /// group and no node.
    ///
    /// If one node leaves the first group, the other node still has the same profile. So the wave is not built again.
    async fn put_waiting_cluster(&self) {
        let task = |id: &str, extra: serde_json::Value| {
            let mut task = json!({"id": id, "type": "shell", "tags": [id], "parameters": {"script": "true"}});
            task.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            task
        };
        let release: ReleaseSpec = serde_json::from_value(json!({
            "roles": {"a": {}, "b": {}}, "tags": {"a": {}, "b": {}},
            "tasks": [task("a", json!({})), task("b", json!({"cross_depends": [{"name": "a", "tags": ["a"]}]}))],
        }))
        .unwrap();
        let (release_name, name) = (ReleaseRef::new("site").unwrap(), |cluster_name| ObjectName::new(cluster_name).unwrap());
        self.put(Uuid::from_u128(10), release_name.clone(), release).await;
        for (cluster, cluster_name) in [(CLUSTER, "c"), (OTHER_CLUSTER, "d")] {
            self.put(cluster, name(cluster_name), ClusterSpec { release: Some(release_name.clone()), ..ClusterSpec::default() })
                .await;
        }
        for (group, cluster, role, nodes) in [
            (FIRST_GROUP, CLUSTER, "a", &[NODE, STAYING_NODE][..]),
            (SECOND_GROUP, CLUSTER, "b", &[WAITING_NODE]),
            (OTHER_GROUP, OTHER_CLUSTER, "a", &[]),
        ] {
            let roles = vec![Name::new(role).unwrap()];
            let spec = NodeGroupSpec { roles, ..NodeGroupSpec::new(ClusterId(cluster)) };
            self.put(group, name(role), spec).await;
            for node in nodes {
                self.put_node(*node, Some(group)).await;
            }
        }
    }

    /// Stores a release whose tasks read twelve labels, and nodes (each with its group) that provide long values of
    /// these labels. The records of the nodes are larger than the 16 KiB that each node adds to the limit of its
    /// cluster.
    async fn put_large_release(&self, nodes: &[(Uuid, Uuid)]) {
        let keys: Vec<String> = (0..12).map(|nth| format!("k{nth}")).collect();
        let template: String = keys.iter().map(|key| format!("{{{{ labels.{key} }}}}")).collect();
        let task =
            |tag: &str| json!({"id": tag, "type": "file", "tags": [tag], "parameters": {"path": "/x", "template": template}});
        let release = json!({"roles": {"a": {}, "b": {}}, "tags": {"a": {}, "b": {}}, "tasks": [task("a"), task("b")]});
        let release: ReleaseSpec = serde_json::from_value(release).unwrap();
        self.put(Uuid::from_u128(10), ReleaseRef::new("site").unwrap(), release).await;
        for (node, group) in nodes {
            let mut spec = NodeSpec { nodegroup: Some(GroupId(*group)), ..NodeSpec::default() };
            let value = |key: &String| LabelValue::new(&format!("{node}{key}{}", "x".repeat(1_900))).unwrap();
            let labels = keys.iter().map(|key| (LabelKey::new(key).unwrap(), ProvidedValue::Value(value(key)))).collect();
            spec.inherited.labels.provided = Some(OwnedMap::default().update(&Manager::new("test").unwrap(), &labels));
            self.put(*node, NodeName::new(&format!("n{}", node.as_u128())).ok(), spec).await;
        }
    }

    /// Creates a site with the cluster of [`Self::put_waiting_cluster`], and runs two passes. The node of the second
    /// group then waits.
    async fn with_waiting_node() -> Self {
        let site = Self::new().await;
        site.put_waiting_cluster().await;
        site.reconciler.run_first_pass().await;
        site.reconciler.run_pass().await;
        site
    }

    /// Stores the result that a node has succeeded in task `a` of its desired task set.
    async fn put_result(&self, node: Uuid) {
        let (_, task_set) = self.reconciler.table.digests(node).unwrap();
        self.put_result_for(node, task_set).await;
    }

    /// Stores the result that a node has succeeded in task `a` of this task set.
    async fn put_result_for(&self, node: Uuid, task_set: PartDigest) {
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
        let put = Transaction::new().put(key::node_entry(key::RESULTS, node), codec::encode(&record));
        self.cache.wait_for(self.store.commit(put).await.unwrap()).await;
    }

    /// Returns the nodes for which the node of the second group waits, as of the last pass.
    fn awaited_nodes(&self) -> Vec<NodeId> {
        let closed = self.reconciler.lock_waves().closed_barriers(&self.cache.model(), NodeId(WAITING_NODE));
        closed
            .expect("the last pass was for this model")
            .into_iter()
            .flat_map(|barrier| barrier.awaited_nodes)
            .map(|awaited| awaited.node)
            .collect()
    }
}

/// A long pass counts as progress, although the loop makes no turn during the pass. Only a part of a pass runs here.
#[tokio::test(start_paused = true)]
async fn pass_makes_progress_when_resolving_node() {
    let site = ReconcilerSite::new().await;
    site.put_node(NODE, None).await;
    let model = site.cache.model();
    for (nodes, expected) in [(BTreeSet::new(), false), (BTreeSet::from([NODE]), true)] {
        let progress = tokio::time::timeout(Duration::from_mins(1), site.reconciler.wait_for_progress());
        let (result, _) = tokio::join!(progress, async { site.reconciler.resolve(&model, &nodes) });
        assert_eq!(result.is_ok(), expected, "{nodes:?}");
    }
}

/// A node leaves the first group, and the pass that handles the move fails to store. After the next passes, the node of
/// the second group must wait only for the node that stayed in the first group. So its barrier is still closed.
#[tokio::test]
async fn pass_drops_awaited_node_when_node_moved_during_failed_pass() {
    let missing_group = Uuid::from_u128(99);
    for target_group in [None, Some(SECOND_GROUP), Some(OTHER_GROUP), Some(missing_group)] {
        let site = ReconcilerSite::with_waiting_node().await;
        assert_eq!(site.awaited_nodes(), [NodeId(NODE), NodeId(STAYING_NODE)]);
        site.put_node(NODE, target_group).await;
        // The new node makes the pass write to the store.
        site.put_node(Uuid::from_u128(6), Some(SECOND_GROUP)).await;
        site.store.inject_faults([Some(InjectedFault::CommitLost)]);
        site.reconciler.run_pass().await;
        assert!(site.reconciler.lock_state().unpublished.contains(&NODE), "the next pass must publish the node");
        site.reconciler.run_pass().await;
        site.reconciler.run_pass().await;
        assert_eq!(site.awaited_nodes(), [NodeId(STAYING_NODE)], "the node moved to {target_group:?}");
    }
}

/// The stored record of the sent state decides whether a node is confirmed, because no host has checked in since the
/// controller started. A record that an earlier version of Stemma wrote has no digests of the parts (`None`). For such
/// a record, the revision that was sent and the task set of the stored result decide.
#[tokio::test]
async fn y06_confirmation_follows_sent_record_before_first_check_in() {
    let site = ReconcilerSite::with_waiting_node().await;
    site.put_result(NODE).await;
    let (known, task_set) = site.reconciler.table.digests(NODE).unwrap();
    let parts = |known| Some(SentParts { known, task_set });
    let released_revision = site.cache.model().released.get(&NODE).unwrap().revision;
    let (current_set, previous_set) = (task_set, PartDigest([8; 32]));
    for (reported_set, parts, revision, is_unconfirmed, expected) in [
        (current_set, parts(known), released_revision, false, HostConfirmation::Confirmed),
        (current_set, parts(known), released_revision, true, HostConfirmation::Unconfirmed),
        (current_set, parts(PartDigest([9; 32])), released_revision + 5, false, HostConfirmation::Unconfirmed),
        (current_set, parts(PartDigest([9; 32])), released_revision + 5, true, HostConfirmation::Unconfirmed),
        (current_set, None, released_revision, false, HostConfirmation::Confirmed),
        (current_set, None, released_revision - 1, false, HostConfirmation::Unconfirmed),
        // The host confirmed the task set, and has not run it yet.
        (previous_set, parts(known), released_revision, false, HostConfirmation::Confirmed),
        (previous_set, parts(known), released_revision, true, HostConfirmation::Unconfirmed),
        (previous_set, None, released_revision, false, HostConfirmation::Unconfirmed),
    ] {
        site.put_result_for(NODE, reported_set).await;
        let record = SentRecord { epoch: Uuid::from_u128(7), revision, parts, unconfirmed: is_unconfirmed };
        let put = Transaction::new().put(key::node_entry(key::SENT_STATES, NODE), codec::encode(&record));
        site.cache.wait_for(site.store.commit(put).await.unwrap()).await;
        let model = site.cache.model();
        let (resolution, task_set_digests) = (model.resolve(NODE), state_inputs::released_task_set_digests(&model, NODE));
        let resolved_node = resolution.resolved_node().map(|node| &**node);
        assert_eq!(
            state_inputs::confirmation(&model, &site.reconciler.table, (NODE, resolved_node), &task_set_digests),
            expected,
            "{record:?}"
        );
    }
}

/// The pass that receives the results fails to store. The next passes must handle these results nevertheless.
#[tokio::test]
async fn pass_opens_barrier_when_results_arrived_during_failed_pass() {
    let site = ReconcilerSite::with_waiting_node().await;
    site.put_result(NODE).await;
    site.put_result(STAYING_NODE).await;
    // A node of another cluster has something to store.
    site.put_node(Uuid::from_u128(6), Some(OTHER_GROUP)).await;
    site.store.inject_faults([Some(InjectedFault::CommitLost)]);
    site.reconciler.run_pass().await;
    assert!(site.reconciler.lock_state().unpublished_results.contains_key(&NODE), "the next pass must publish the results");
    site.reconciler.run_pass().await;
    site.reconciler.run_pass().await;
    assert_eq!(site.awaited_nodes(), []);
}

/// If no pass received the results, the full resolve opens the barrier, and counts the waiting node as missed. If a
/// pass received them, the full resolve counts nothing.
#[tokio::test]
async fn resolve_all_counts_miss_when_pass_saw_no_result() {
    for (is_seen, expected_misses) in [(true, 0), (false, 1)] {
        let site = ReconcilerSite::with_waiting_node().await;
        let missed = || site.counters.missed.get();
        site.put_result(NODE).await;
        site.put_result(STAYING_NODE).await;
        if !is_seen {
            // Another reader drains the changes, so no pass sees them.
            drop(site.cache.take_changes());
        }
        assert_eq!(
            (site.reconciler.resolve_all().await, missed()),
            (expected_misses, expected_misses as u64),
            "seen by the pass: {is_seen}"
        );
        assert_eq!(site.awaited_nodes(), []);
        assert_eq!(
            (site.reconciler.resolve_all().await, missed()),
            (0, expected_misses as u64),
            "the first full resolve corrected the nodes"
        );
    }
}

#[tokio::test]
async fn pass_opens_barrier_when_results_arrived_in_watch_gap() {
    let site = ReconcilerSite::with_waiting_node().await;
    site.put_result(NODE).await;
    site.put_result(STAYING_NODE).await;
    // The list of the nodes with new results is lost. After the reload, the next pass builds the waves from the store.
    drop(site.cache.take_changes());
    site.cache.reload(site.store.as_ref()).await.unwrap();
    site.reconciler.run_pass().await;
    assert_eq!(site.awaited_nodes(), []);
}

#[tokio::test]
async fn resolve_all_counts_no_miss_when_previous_pass_failed() {
    let site = ReconcilerSite::with_waiting_node().await;
    site.put_result(STAYING_NODE).await;
    site.reconciler.run_pass().await;
    site.put_node(NODE, None).await;
    // The node of another cluster makes the pass write. In this cluster, only the node that left it has changed.
    site.put_node(Uuid::from_u128(6), Some(OTHER_GROUP)).await;
    // The full resolve first runs a normal pass. That pass fails to store, so the full resolve handles the change that
    // opens the barrier.
    site.store.inject_faults([Some(InjectedFault::CommitLost)]);
    assert_eq!((site.reconciler.resolve_all().await, site.counters.missed.get()), (0, 0));
    site.reconciler.run_pass().await;
    assert_eq!(site.awaited_nodes(), [], "every remaining node of the first group has succeeded");
}

#[tokio::test]
async fn resolve_all_counts_missed_node_when_pass_saw_no_change() {
    let site = ReconcilerSite::new().await;
    let (reconciler, missed) = (&site.reconciler, || site.counters.missed.get());
    reconciler.run_first_pass().await;
    site.put_node(Uuid::from_u128(1), None).await;
    assert_eq!((reconciler.resolve_all().await, missed()), (0, 0), "a full resolve sees the change like any other pass");
    site.put_node(Uuid::from_u128(2), None).await;
    // Another reader drains the changes, so no pass sees them.
    drop(site.cache.take_changes());
    reconciler.run_pass().await;
    assert_eq!((reconciler.resolve_all().await, missed()), (1, 1));
    assert_eq!((reconciler.resolve_all().await, missed()), (0, 1), "the first full resolve corrected the node");
}

#[tokio::test]
async fn x01_pass_releases_remaining_nodes_when_store_refuses_record() {
    let site = ReconcilerSite::new().await;
    let (reconciler, table) = (&site.reconciler, &site.reconciler.table);
    let refusal = |node| table.status().refused_release(node);
    site.put_waiting_cluster().await;
    site.store.refuse_key(Some(key::node_entry(key::RELEASED, NODE)));
    reconciler.run_first_pass().await;
    // The store double reports a limit of 7 bytes for a refused key.
    let is_refused = || refusal(NODE).is_some_and(|reason| reason.contains(" the limit max_bytes is 7;"));
    assert!(is_refused(), "{:?}", refusal(NODE));
    assert_eq!(table.status().nodes_with_refused_release(), [NODE]);
    let has_state = |node| table.digests(node).is_some();
    assert_eq!([NODE, STAYING_NODE, WAITING_NODE].map(has_state), [false, true, true]);
    assert!(reconciler.lock_state().unpublished.is_empty(), "the release is not retried each second");
    // The release is retried in a full resolve, and when the node changes.
    assert_eq!((reconciler.resolve_all().await, is_refused()), (0, true));
    site.store.refuse_key(None);
    assert_eq!((reconciler.resolve_all().await, site.counters.missed.get()), (0, 0), "the node does not count as missed");
    assert_eq!((refusal(NODE), has_state(NODE)), (None, true));
}

/// The records of the cluster use its whole quota, so no task set is released there. After records are deleted, the
/// next pass releases the task sets.
#[tokio::test]
async fn x03_f07_pass_withholds_releases_until_cluster_has_room() {
    let site = ReconcilerSite::new().await;
    let (reconciler, table) = (&site.reconciler, &site.reconciler.table);
    site.put_waiting_cluster().await;
    let other_cluster_node = Uuid::from_u128(6);
    site.put_large_release(&[
        (NODE, FIRST_GROUP),
        (STAYING_NODE, FIRST_GROUP),
        (WAITING_NODE, SECOND_GROUP),
        (other_cluster_node, OTHER_GROUP),
    ])
    .await;
    // The record of a node that does not exist uses the whole quota of the cluster, which has three nodes.
    let (filler, cluster) = (Uuid::from_u128(77), Some(ClusterId(CLUSTER)));
    let filler_size = RecordSize { node: NodeId(filler), cluster, stored: Some(FULL_BYTES), next: None };
    assert_eq!(reconciler.registry.record_quota().update_and_decide(&[filler_size], &[], |_| 3), QuotaDecision::default());
    let cluster_usage = || reconciler.registry.record_quota().cluster_usage(cluster);
    reconciler.run_first_pass().await;
    let refusal = |node| table.status().refused_release(node);
    for node in [NODE, STAYING_NODE, WAITING_NODE] {
        let reason = refusal(node).unwrap_or_default();
        let expected_start =
            "with it, the task sets of cluster c would need more than 33554432 bytes plus 16384 for each of its nodes; ";
        assert!(reason.starts_with(expected_start), "{reason}");
    }
    let task_set = |node| table.digests(node).unwrap().1;
    let empty_set = task_set(NODE);
    assert!(task_set(other_cluster_node) != empty_set && refusal(other_cluster_node).is_none(), "the other cluster has space");
    assert_eq!(cluster_usage(), FULL_BYTES, "the refused records use no space");
    // Publish the deletion of the node that used all of the space. A new revision must exist for that, so an unrelated
    // key is written first.
    site.cache.wait_for(site.store.commit(Transaction::new().put("x", Bytes::new())).await.unwrap()).await;
    drop(reconciler.publish(&site.cache.model(), BTreeSet::from([filler]), BTreeMap::new(), Timestamp(0)).await);
    assert!(reconciler.lock_state().unpublished.contains(&NODE), "the next pass retries the node");
    reconciler.run_pass().await;
    assert_eq!((refusal(NODE), reconciler.resolve_all().await), (None, 0));
    assert_ne!(task_set(NODE), empty_set);
    let (cluster_bytes, node_bytes) = (cluster_usage(), site.cache.model().released[&NODE].own_bytes());
    let usage = reconciler.registry.record_quota().node_usage(NodeId(NODE));
    assert!(
        node_bytes > 12 * 1_900 && cluster_bytes > 2 * node_bytes && usage == Some((cluster, node_bytes)),
        "{node_bytes} of {cluster_bytes} bytes"
    );
}

/// After a start, each stored record counts for the quota of its cluster, even if the reconciler decides nothing for
/// the node. The space of a record that the store refused is free for other nodes.
#[tokio::test]
async fn x03_f07_cluster_usage_equals_stored_bytes_after_start() {
    let site = ReconcilerSite::new().await;
    site.put_waiting_cluster().await;
    site.put_large_release(&[(NODE, FIRST_GROUP), (STAYING_NODE, FIRST_GROUP)]).await;
    site.store.refuse_key(Some(key::node_entry(key::RELEASED, NODE)));
    site.reconciler.run_first_pass().await;
    let stored_bytes = |node| site.cache.model().released.get(&node).map(|record| record.own_bytes());
    let usage = |reconciler: &Reconciler| {
        [NODE, STAYING_NODE].map(|node| reconciler.registry.record_quota().node_usage(NodeId(node)).map(|(_, bytes)| bytes))
    };
    let large_bytes = stored_bytes(STAYING_NODE).unwrap();
    assert_eq!((usage(&site.reconciler), stored_bytes(NODE)), ([Some(0), Some(large_bytes)], None));
    site.store.refuse_key(None);
    assert_eq!(site.reconciler.resolve_all().await, 0);
    // The node's new group does not exist, so the node cannot be resolved.
    site.put_node(STAYING_NODE, Some(Uuid::from_u128(99))).await;
    site.reconciler.run_pass().await;
    assert_eq!(
        usage(&site.reconciler),
        [stored_bytes(NODE), Some(large_bytes)],
        "the node without a cluster still has its record"
    );
    // The node returns to its group.
    site.put_large_release(&[(STAYING_NODE, FIRST_GROUP)]).await;
    site.reconciler.run_pass().await;
    assert_eq!(usage(&site.reconciler), [stored_bytes(NODE), stored_bytes(STAYING_NODE)]);
    // Without a release, nothing is decided for the nodes.
    let deletion = Transaction::new().delete(key::object(Kind::Release, Uuid::from_u128(10)));
    site.cache.wait_for(site.store.commit(deletion).await.unwrap()).await;
    let (store, cache) = (Arc::clone(&site.store) as Arc<dyn Store>, Arc::clone(&site.cache));
    let registry = Arc::new(Registry::new(store, cache, Arc::new(FixedClock(3600))));
    let restarted = Reconciler::new(registry, crate::desired::tests::table(), Arc::default());
    assert_eq!(usage(&restarted), [stored_bytes(NODE), stored_bytes(STAYING_NODE)], "before the first pass");
    restarted.run_first_pass().await;
    assert_eq!(restarted.lock_state().undecided_reasons.len(), 3, "each node of the cluster has a reason");
    assert_eq!(usage(&restarted), [stored_bytes(NODE), stored_bytes(STAYING_NODE)]);
}

/// The full resolve is requested before `run` starts. It runs after the first pass, so it finds no missed node.
#[tokio::test]
async fn resolve_all_now_follows_first_pass_when_requested_before() {
    let site = ReconcilerSite::new().await;
    site.put_node(Uuid::from_u128(1), None).await;
    let missed_count = tokio::select! {
        biased;
        missed_count = site.reconciler.resolve_all_now() => missed_count,
        never = site.reconciler.run() => match never {},
    };
    assert_eq!((missed_count, site.counters.missed.get()), (Some(0), 0));
}

#[test]
fn note_undecided_returns_true_only_when_reason_is_new() {
    let (mut state, node) = (PassState::default(), Uuid::from_u128(1));
    let is_new = ["no release", "no release", "no cluster"].map(|reason| state.note_undecided(node, reason));
    assert_eq!(is_new, [true, false, true]);
}
