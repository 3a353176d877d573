//! Limits the size of the stored records of what is released to the nodes of a cluster.
//!
//! A record is what the controller stores about the task set that it released to a node. Values that the tasks of many
//! nodes read alike are stored once, and nearly equal texts are stored in chunks. The rest of a record belongs to one
//! node alone. Its size is limited only by the maximum size of a message to a host. So without a limit for all nodes
//! together, an operator of one cluster could fill memory and disk with one label that many tasks read. For this reason
//! the records of a cluster's nodes have a budget in bytes.
//!
//! Only the part of a record that belongs to one node alone counts against the budget. The digits of revisions and
//! times differ with each release and do not count. If a node moves to another cluster, its record counts there. All
//! nodes without a cluster have one budget together.
//!
//! A write is refused if the records would exceed the budget, and by more than without the write. The size also changes
//! without a write, for example with the facts that hosts report. So the reconcile loop checks the budget too. If a
//! record grows and its cluster would then exceed the budget, the loop does not release the task set.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::{ClusterId, NodeId};

/// The part of a cluster's budget that is the same for every cluster, in bytes. The budget limits the size of the
/// stored records of what was released to the cluster's nodes. [`BYTES_PER_NODE`] is added for each node.
const CLUSTER_BASE_BYTES: u64 = 32 * 1024 * 1024;
/// Number of bytes that each node adds to the maximum size of the records of what was released to its cluster's nodes.
const BYTES_PER_NODE: u64 = 16 * 1024;

/// Returns the budget of a cluster with this number of nodes, in bytes.
pub const fn max_record_bytes(nodes: usize) -> u64 {
    CLUSTER_BASE_BYTES + BYTES_PER_NODE * nodes as u64
}

/// The sizes of a node's stored and next release record, in bytes. A release record describes the task set that was
/// released to the node. Content that several nodes share is stored once, and is not in these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSize {
    /// The node.
    pub node: NodeId,
    /// The cluster of the node, or `None` if it has none.
    pub cluster: Option<ClusterId>,
    /// The size of the stored record in bytes, or `None` if the node has no record.
    pub stored: Option<u64>,
    /// The size of the record to store next in bytes, or `None` if the stored record remains.
    pub next: Option<u64>,
}

/// The sizes of the records of what was released to the nodes, by node and by cluster, in bytes, and the nodes whose
/// larger record was refused. The cluster `None` holds the sum of all nodes without a cluster.
#[derive(Debug, Default)]
pub struct RecordQuota {
    by_node: BTreeMap<NodeId, (Option<ClusterId>, u64)>,
    by_cluster: BTreeMap<Option<ClusterId>, ClusterUsage>,
}

/// The total bytes of the records of a cluster's nodes, and the nodes whose next record did not fit.
#[derive(Debug, Default)]
struct ClusterUsage {
    bytes: u64,
    /// The nodes whose next record was refused, each with the number of bytes by which the record would have grown.
    refused_growth: BTreeMap<NodeId, u64>,
}

/// The decision about which release records of nodes the controller may store.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QuotaDecision {
    /// The nodes whose next record must not be stored, because their cluster would exceed its budget of bytes.
    pub refused: BTreeSet<NodeId>,
    /// The nodes whose record was refused earlier and fits now.
    pub retry: BTreeSet<NodeId>,
}

impl RecordQuota {
    /// Updates the record sizes of the nodes in `records`, each listed once, and forgets the nodes in `removed_nodes`.
    /// Returns which records are refused, and which earlier refused nodes can be tried again. `node_count` returns the
    /// number of nodes of a cluster.
    ///
    /// A record that is larger than the stored one is refused if its cluster would exceed its budget
    /// ([`max_record_bytes`]). The stored record then still counts. Records that do not grow are counted first, because
    /// they free bytes for the others. A node's first record of at most [`BYTES_PER_NODE`] is always accepted, because
    /// the node adds as much to the budget.
    pub fn update_and_decide(
        &mut self,
        records: &[RecordSize],
        removed_nodes: &[NodeId],
        node_count: impl Fn(Option<ClusterId>) -> usize,
    ) -> QuotaDecision {
        let nodes = records.iter().map(|record| record.node).chain(removed_nodes.iter().copied());
        let old_clusters = nodes.filter_map(|node| Some(self.node_usage(node)?.0));
        let affected_clusters: BTreeSet<_> = old_clusters.chain(records.iter().map(|record| record.cluster)).collect();
        for node in removed_nodes {
            self.set_usage(*node, None);
        }
        let mut growing_records = Vec::new();
        for RecordSize { node, cluster, stored, next } in records.iter().copied() {
            let stored_bytes = stored.unwrap_or_default();
            // This is `None` for a record that does not grow, and for a small first record.
            let larger_size = next.filter(|next| *next > stored.unwrap_or(BYTES_PER_NODE));
            growing_records.extend(larger_size.map(|next| (node, cluster, next - stored_bytes)));
            // A growing record is counted with its stored size for now.
            let counted_bytes = next.filter(|_| larger_size.is_none()).unwrap_or(stored_bytes);
            self.set_usage(node, Some((cluster, counted_bytes)));
        }
        let mut refused = BTreeSet::new();
        for (node, cluster, growth) in growing_records {
            if growth <= self.free_bytes(cluster, &node_count) {
                let (_, stored) = self.node_usage(node).expect("the first loop set the usage of each node");
                self.set_usage(node, Some((cluster, stored + growth)));
            } else {
                refused.insert(node);
                self.by_cluster.entry(cluster).or_default().refused_growth.insert(node, growth);
            }
        }
        QuotaDecision {
            refused,
            retry: affected_clusters.into_iter().flat_map(|cluster| self.refused_nodes_that_fit(cluster, &node_count)).collect(),
        }
    }

    /// Returns the cluster of a node and the size of its record, in bytes. `None` if the node has no recorded size.
    pub fn node_usage(&self, node: NodeId) -> Option<(Option<ClusterId>, u64)> {
        self.by_node.get(&node).copied()
    }

    /// Returns the total size of the records of a cluster's nodes, or of all nodes without a cluster, in bytes.
    pub fn cluster_usage(&self, cluster: Option<ClusterId>) -> u64 {
        self.by_cluster.get(&cluster).map_or(0, |usage| usage.bytes)
    }

    /// Returns how many bytes of a cluster's budget are free, or 0 if the cluster exceeds its budget. `node_count`
    /// returns the number of nodes of a cluster.
    fn free_bytes(&self, cluster: Option<ClusterId>, node_count: impl Fn(Option<ClusterId>) -> usize) -> u64 {
        max_record_bytes(node_count(cluster)).saturating_sub(self.cluster_usage(cluster))
    }

    /// Returns the nodes of a cluster whose records were refused and now fit. Reserves the bytes of each such node
    /// before it checks the next one, in the order of ids, so that all returned nodes fit together.
    fn refused_nodes_that_fit(&self, cluster: Option<ClusterId>, node_count: impl Fn(Option<ClusterId>) -> usize) -> Vec<NodeId> {
        let Some(usage) = self.by_cluster.get(&cluster).filter(|usage| !usage.refused_growth.is_empty()) else {
            return Vec::new();
        };
        let mut available_bytes = self.free_bytes(cluster, node_count);
        let fitting_nodes = usage.refused_growth.iter().filter(|(_, growth)| {
            let bytes_after = available_bytes.checked_sub(**growth);
            available_bytes = bytes_after.unwrap_or(available_bytes);
            bytes_after.is_some()
        });
        fitting_nodes.map(|(node, _)| *node).collect()
    }

    /// Replaces the cluster of a node and the size of its record in bytes, and updates the sums of the old and the new
    /// cluster. `None` removes the node. The node is removed from the refused nodes of both clusters. A cluster with 0
    /// bytes and without refused nodes is removed.
    fn set_usage(&mut self, node: NodeId, new_record: Option<(Option<ClusterId>, u64)>) {
        let old_record = match new_record {
            Some(new_record) => self.by_node.insert(node, new_record),
            None => self.by_node.remove(&node),
        };
        if let Some((cluster, bytes)) = new_record {
            self.by_cluster.entry(cluster).or_default().bytes += bytes;
        }
        // Nothing is subtracted from the new cluster. It is in the list because the node may be refused there.
        for (cluster, bytes) in old_record.into_iter().chain(new_record.map(|(cluster, _)| (cluster, 0))) {
            if let Some(usage) = self.by_cluster.get_mut(&cluster) {
                usage.bytes -= bytes;
                usage.refused_growth.remove(&node);
                if usage.bytes == 0 && usage.refused_growth.is_empty() {
                    self.by_cluster.remove(&cluster);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const CLUSTER_ONE: Option<ClusterId> = Some(ClusterId(Uuid::from_u128(1)));
    const CLUSTER_TWO: Option<ClusterId> = Some(ClusterId(Uuid::from_u128(2)));
    /// The maximum size of the records of a cluster with three nodes.
    const MAX_BYTES: u64 = 33_603_584;
    /// A record size that is larger than what one node adds to the maximum of its cluster.
    const LARGE_BYTES: u64 = 20_000;

    fn node(number: u128) -> NodeId {
        NodeId(Uuid::from_u128(number))
    }

    /// Returns the sizes of the stored and the next record of a node, in bytes. `number` is the number in the node's
    /// id.
    fn size(
        number: u128,
        cluster: Option<ClusterId>,
        stored: impl Into<Option<u64>>,
        next: impl Into<Option<u64>>,
    ) -> RecordSize {
        RecordSize { node: node(number), cluster, stored: stored.into(), next: next.into() }
    }

    /// Returns a decision. `refused` lists the refused nodes, and `retry_nodes` the nodes that can be tried again. A
    /// node is given by the number in its id.
    fn decision(refused: &[u128], retry_nodes: &[u128]) -> QuotaDecision {
        let [refused, retry_nodes] = [refused, retry_nodes].map(|nodes| nodes.iter().map(|number| node(*number)).collect());
        QuotaDecision { refused, retry: retry_nodes }
    }

    #[test]
    fn x03_f07_max_record_bytes_grows_with_node_count() {
        assert_eq!([0, 3, 1_000].map(max_record_bytes), [33_554_432, MAX_BYTES, 49_938_432], "32 MiB and 16 KiB for each");
    }

    /// Each row has the records and the removed nodes of one update. It then has the expected bytes of cluster one, of
    /// cluster two, and of the nodes without a cluster. Node 4 is removed twice, and the second removal changes
    /// nothing.
    #[test]
    fn x03_f07_record_quota_follows_changed_and_moved_nodes() {
        let mut quota = RecordQuota::default();
        for (records, removed_nodes, cluster_bytes) in [
            (&[size(3, CLUSTER_ONE, None, 10), size(4, CLUSTER_ONE, 5, None)][..], &[][..], [15, 0, 0]),
            (&[size(3, CLUSTER_ONE, 10, 7)], &[], [12, 0, 0]),
            (&[size(3, CLUSTER_TWO, 7, 8)], &[], [5, 8, 0]),
            (&[], &[node(4)], [0, 8, 0]),
            (&[], &[node(4)], [0, 8, 0]),
            (&[size(3, None, 8, None)], &[], [0, 0, 8]),
            (&[], &[node(3)], [0, 0, 0]),
        ] {
            assert_eq!(
                quota.update_and_decide(records, removed_nodes, |_| 3),
                QuotaDecision::default(),
                "{records:?} {removed_nodes:?}"
            );
            assert_eq!(
                [CLUSTER_ONE, CLUSTER_TWO, None].map(|cluster| quota.cluster_usage(cluster)),
                cluster_bytes,
                "{records:?} {removed_nodes:?}"
            );
        }
        assert_eq!((quota.by_node.len(), quota.by_cluster.len()), (0, 0), "no node and no cluster is left");
    }

    /// In this test, 5 bytes are free in cluster one. Node 4 is refused, because its record would grow by 11 bytes.
    /// Cluster two has enough free bytes for the same record.
    #[test]
    fn x03_f07_record_quota_counts_stored_record_when_larger_is_refused() {
        let mut quota = RecordQuota::default();
        let first_records =
            [size(3, CLUSTER_ONE, MAX_BYTES - 10, None), size(4, CLUSTER_ONE, 5, 16), size(5, CLUSTER_TWO, 5, 16)];
        assert_eq!(quota.update_and_decide(&first_records, &[], |_| 3), decision(&[4], &[]));
        assert_eq!([4, 5].map(|number| quota.node_usage(node(number))), [Some((CLUSTER_ONE, 5)), Some((CLUSTER_TWO, 16))]);
        let filling_records = [size(4, CLUSTER_ONE, 5, 10)];
        assert_eq!(quota.update_and_decide(&filling_records, &[], |_| 3), decision(&[], &[]), "exactly the maximum is accepted");
        assert_eq!(quota.cluster_usage(CLUSTER_ONE), MAX_BYTES);
    }

    /// Both records are in one update. The record of node 3 grows by 11 bytes, which fit only because the record of
    /// node 4 shrinks by 16 bytes.
    #[test]
    fn x03_f07_record_quota_admits_growth_when_other_record_shrinks() {
        let mut quota = RecordQuota::default();
        let records = [size(3, CLUSTER_ONE, 5, 16), size(4, CLUSTER_ONE, MAX_BYTES, MAX_BYTES - 16)];
        assert_eq!(quota.update_and_decide(&records, &[], |_| 3), decision(&[], &[]));
        assert_eq!(quota.cluster_usage(CLUSTER_ONE), MAX_BYTES);
    }

    /// After a start of the controller, the quota knows no record. The quota must count the records that remain or
    /// shrink before it decides about a record that grows. Here the record of node 3 grows by one byte, which fits only
    /// in the last row.
    #[test]
    fn x03_f07_record_quota_counts_all_stored_records_before_growth() {
        let half_bytes = MAX_BYTES / 2;
        for (second_stored, third_stored, refused) in
            [(half_bytes, half_bytes, &[3][..]), (half_bytes + 10, half_bytes, &[3]), (half_bytes + 10, half_bytes - 2, &[])]
        {
            let mut quota = RecordQuota::default();
            let records = [
                size(3, CLUSTER_ONE, 1, 2),
                size(4, CLUSTER_ONE, second_stored, half_bytes),
                size(5, CLUSTER_ONE, third_stored, None),
            ];
            assert_eq!(
                quota.update_and_decide(&records, &[], |_| 3).refused,
                decision(refused, &[]).refused,
                "{second_stored} {third_stored}"
            );
        }
    }

    /// Nodes 4 and 5 each need 20,000 bytes for their first record. At first, node 3 uses all bytes of cluster one.
    /// Each further update changes records or the number of nodes.
    #[test]
    fn x03_f07_record_quota_retries_refused_node_when_bytes_are_free() {
        let mut quota = RecordQuota::default();
        let records = [
            size(3, CLUSTER_ONE, MAX_BYTES, None),
            size(4, CLUSTER_ONE, None, LARGE_BYTES),
            size(5, CLUSTER_ONE, None, LARGE_BYTES),
        ];
        let both_refused = decision(&[4, 5], &[]);
        assert_eq!(quota.update_and_decide(&records, &[], |_| 3), both_refused);
        assert_eq!(
            quota.update_and_decide(&[size(3, CLUSTER_ONE, MAX_BYTES, MAX_BYTES - 1)], &[], |_| 3),
            decision(&[], &[]),
            "one free byte is not enough for a record"
        );
        assert_eq!(
            quota.update_and_decide(&[size(3, CLUSTER_ONE, MAX_BYTES - 1, MAX_BYTES - LARGE_BYTES)], &[], |_| 3),
            decision(&[], &[4]),
            "the free bytes are enough for one of the two records"
        );
        assert_eq!(
            quota.update_and_decide(&[size(4, CLUSTER_ONE, None, LARGE_BYTES)], &[], |_| 3),
            decision(&[], &[]),
            "node 4 now has its record, so it is no longer refused"
        );
        assert_eq!(quota.update_and_decide(&[size(5, CLUSTER_ONE, None, LARGE_BYTES)], &[node(4)], |_| 3), decision(&[], &[]));
        assert_eq!(quota.update_and_decide(&records[1..2], &[], |_| 3), decision(&[4], &[]));
        assert_eq!(
            quota.update_and_decide(&[size(5, CLUSTER_TWO, LARGE_BYTES, None)], &[], |_| 3),
            decision(&[], &[4]),
            "another node left the cluster"
        );
        assert_eq!(quota.update_and_decide(&[], &[node(4)], |_| 3), decision(&[], &[]), "a removed node is not tried again");
        assert_eq!(quota.update_and_decide(&records[1..2], &[], |_| 3), decision(&[], &[]));
        assert_eq!(quota.update_and_decide(&records[2..], &[], |_| 3), decision(&[5], &[]));
        assert_eq!(
            quota.update_and_decide(&[size(6, CLUSTER_ONE, None, None)], &[], |_| 5),
            decision(&[], &[5]),
            "new nodes enlarge the budget"
        );
    }

    /// A cluster may exceed its maximum after nodes with small records are deleted. The cluster still accepts a first
    /// record of at most 16 KiB, because each node adds as much to the maximum.
    #[test]
    fn x03_f07_record_quota_admits_first_record_within_bytes_per_node() {
        let mut quota = RecordQuota::default();
        assert_eq!(quota.update_and_decide(&[size(3, CLUSTER_ONE, 2 * MAX_BYTES, None)], &[], |_| 3), decision(&[], &[]));
        let small_records = [
            size(4, CLUSTER_ONE, None, 16_384),
            size(5, CLUSTER_ONE, None, 16_385),
            size(6, CLUSTER_ONE, 1, 2),
            size(7, CLUSTER_ONE, 0, 1),
        ];
        assert_eq!(quota.update_and_decide(&small_records, &[], |_| 3), decision(&[5, 6, 7], &[]));
        // Node 4 adds its new record of 16,384 bytes. Node 6 keeps its stored record of one byte.
        assert_eq!(quota.cluster_usage(CLUSTER_ONE), 2 * MAX_BYTES + 16_385);
    }
}
