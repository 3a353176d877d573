//! Limits the size of the stored records of what is released to the nodes of a cluster.
//!
//! Values that the tasks of many nodes read alike are stored once, and nearly equal texts are stored in chunks. The
//! rest of a record belongs to one node alone, and is limited by what one host may be sent. Without a limit for all
//! nodes together, an operator of one cluster could fill memory and disk with one label that many reads of each node
//! include. So the records of a cluster's nodes have a budget.
//!
//! Only the part of a record that belongs to one node alone counts. The digits of revisions and times, which differ
//! with each release, do not count. Nodes without a cluster have one budget together, because a record moves with its
//! node.
//!
//! A write that exceeds the budget is refused. Changes that a write cannot foresee, such as facts, are left to
//! reconcile. It releases nothing to a node if that would exceed the budget of its cluster.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::{ClusterId, NodeId};

/// Base of the maximum size of a cluster's records, in bytes. This is the maximum for a cluster without nodes.
const CLUSTER_BASE_BYTES: u64 = 32 * 1024 * 1024;
/// Number of bytes that each node adds to the maximum size of its cluster's records.
const BYTES_PER_NODE: u64 = 16 * 1024;

/// Returns the maximum size of the records of a cluster with this number of nodes, in bytes.
pub const fn max_record_bytes(nodes: usize) -> u64 {
    CLUSTER_BASE_BYTES + BYTES_PER_NODE * nodes as u64
}

/// The size of the record of what is released to a node, in bytes. Only the part that belongs to this node alone
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSize {
    /// The node.
    pub node: NodeId,
    /// The cluster of the node, or `None` if it has none.
    pub cluster: Option<ClusterId>,
    /// The size of the stored record, or `None` if there is none.
    pub stored: Option<u64>,
    /// The size of the record to store, or `None` if the stored one stays.
    pub next: Option<u64>,
}

/// The sizes of records, by node and by cluster, in bytes. The cluster `None` stands for all nodes without a cluster.
#[derive(Debug, Default)]
pub struct RecordQuota {
    by_node: BTreeMap<NodeId, (Option<ClusterId>, u64)>,
    by_cluster: BTreeMap<Option<ClusterId>, ClusterUsage>,
}

/// The bytes that the records of a cluster's nodes use.
#[derive(Debug, Default)]
struct ClusterUsage {
    bytes: u64,
    /// The nodes whose record was refused, each with the number of bytes by which the record would have grown.
    refused: BTreeMap<NodeId, u64>,
}

/// The decision about records to store.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QuotaDecision {
    /// The nodes whose record must not be stored, because it exceeds the budget of their cluster.
    pub refused: BTreeSet<NodeId>,
    /// The nodes that were refused earlier and whose record fits now.
    pub retry: BTreeSet<NodeId>,
}

impl RecordQuota {
    /// Updates the records of some nodes, each once, and removes the nodes in `gone`. A record that is larger than the
    /// stored one is refused if it exceeds the budget of its cluster. The stored record then stays. Records that do not
    /// grow are updated first, so that they free bytes for the others. A first record that is no larger than what its
    /// node adds to the budget is always accepted. `nodes_of` returns the number of nodes of a cluster.
    pub fn admit(
        &mut self,
        records: &[RecordSize],
        gone: &[NodeId],
        nodes_of: impl Fn(Option<ClusterId>) -> usize,
    ) -> QuotaDecision {
        let nodes = records.iter().map(|record| record.node).chain(gone.iter().copied());
        let old_clusters = nodes.filter_map(|node| Some(self.node_usage(node)?.0));
        let touched: BTreeSet<_> = old_clusters.chain(records.iter().map(|record| record.cluster)).collect();
        for node in gone {
            self.set_usage(*node, None);
        }
        let mut growing = Vec::new();
        for RecordSize { node, cluster, stored, next } in records.iter().copied() {
            let before = stored.unwrap_or_default();
            let grows = next.filter(|next| *next > stored.unwrap_or(BYTES_PER_NODE));
            growing.extend(grows.map(|next| (node, cluster, next - before)));
            let bytes = next.filter(|_| grows.is_none()).unwrap_or(before);
            self.set_usage(node, Some((cluster, bytes)));
        }
        let mut refused = BTreeSet::new();
        for (node, cluster, growth) in growing {
            if growth <= self.free_bytes(cluster, &nodes_of) {
                let (_, stored) = self.node_usage(node).expect("it was just set");
                self.set_usage(node, Some((cluster, stored + growth)));
            } else {
                refused.insert(node);
                self.by_cluster.entry(cluster).or_default().refused.insert(node, growth);
            }
        }
        QuotaDecision {
            refused,
            retry: touched.into_iter().flat_map(|cluster| self.nodes_to_retry(cluster, &nodes_of)).collect(),
        }
    }

    /// Returns the cluster of a node and the size of its record, in bytes.
    pub fn node_usage(&self, node: NodeId) -> Option<(Option<ClusterId>, u64)> {
        self.by_node.get(&node).copied()
    }

    /// Returns the total size of the records of a cluster's nodes, in bytes.
    pub fn cluster_usage(&self, cluster: Option<ClusterId>) -> u64 {
        self.by_cluster.get(&cluster).map_or(0, |usage| usage.bytes)
    }

    /// Returns the number of bytes that are left of the cluster's budget.
    fn free_bytes(&self, cluster: Option<ClusterId>, nodes_of: impl Fn(Option<ClusterId>) -> usize) -> u64 {
        max_record_bytes(nodes_of(cluster)).saturating_sub(self.cluster_usage(cluster))
    }

    /// Returns the refused nodes of a cluster whose records now fit together.
    fn nodes_to_retry(&self, cluster: Option<ClusterId>, nodes_of: impl Fn(Option<ClusterId>) -> usize) -> Vec<NodeId> {
        let Some(usage) = self.by_cluster.get(&cluster).filter(|usage| !usage.refused.is_empty()) else {
            return Vec::new();
        };
        let mut free = self.free_bytes(cluster, nodes_of);
        let fitting = usage.refused.iter().filter(|(_, growth)| {
            let remaining = free.checked_sub(**growth);
            free = remaining.unwrap_or(free);
            remaining.is_some()
        });
        fitting.map(|(node, _)| *node).collect()
    }

    /// Stores the cluster of a node and the size of its record. `None` removes the node.
    fn set_usage(&mut self, node: NodeId, record: Option<(Option<ClusterId>, u64)>) {
        let before = match record {
            Some(record) => self.by_node.insert(node, record),
            None => self.by_node.remove(&node),
        };
        if let Some((cluster, bytes)) = record {
            self.by_cluster.entry(cluster).or_default().bytes += bytes;
        }
        for (cluster, bytes) in before.into_iter().chain(record.map(|(cluster, _)| (cluster, 0))) {
            if let Some(usage) = self.by_cluster.get_mut(&cluster) {
                usage.bytes -= bytes;
                usage.refused.remove(&node);
                if usage.bytes == 0 && usage.refused.is_empty() {
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

    const ONE: Option<ClusterId> = Some(ClusterId(Uuid::from_u128(1)));
    const OTHER: Option<ClusterId> = Some(ClusterId(Uuid::from_u128(2)));
    /// The maximum for three nodes.
    const MAX_BYTES: u64 = 33_603_584;
    /// A size larger than what a node adds to the maximum.
    const LARGE_BYTES: u64 = 20_000;

    fn node(number: u128) -> NodeId {
        NodeId(Uuid::from_u128(number))
    }

    fn size(
        number: u128,
        cluster: Option<ClusterId>,
        stored: impl Into<Option<u64>>,
        next: impl Into<Option<u64>>,
    ) -> RecordSize {
        RecordSize { node: node(number), cluster, stored: stored.into(), next: next.into() }
    }

    fn decision(refused: &[u128], again: &[u128]) -> QuotaDecision {
        let [refused, again] = [refused, again].map(|nodes| nodes.iter().map(|number| node(*number)).collect());
        QuotaDecision { refused, retry: again }
    }

    #[test]
    fn x03_f07_max_record_bytes_grows_with_node_count() {
        assert_eq!([0, 3, 1_000].map(max_record_bytes), [33_554_432, MAX_BYTES, 49_938_432], "32 MiB and 16 KiB for each");
    }

    #[test]
    fn x03_f07_record_quota_follows_changed_and_moved_nodes() {
        let mut room = RecordQuota::default();
        for (records, gone, sums) in [
            (&[size(3, ONE, None, 10), size(4, ONE, 5, None)][..], &[][..], [15, 0, 0]),
            (&[size(3, ONE, 10, 7)], &[], [12, 0, 0]),
            (&[size(3, OTHER, 7, 8)], &[], [5, 8, 0]),
            (&[], &[node(4)], [0, 8, 0]),
            (&[], &[node(4)], [0, 8, 0]),
            (&[size(3, None, 8, None)], &[], [0, 0, 8]),
            (&[], &[node(3)], [0, 0, 0]),
        ] {
            assert_eq!(room.admit(records, gone, |_| 3), QuotaDecision::default(), "{records:?} {gone:?}");
            assert_eq!([ONE, OTHER, None].map(|of| room.cluster_usage(of)), sums, "{records:?} {gone:?}");
        }
        assert_eq!((room.by_node.len(), room.by_cluster.len()), (0, 0), "nothing is left of them");
    }

    #[test]
    fn x03_f07_record_quota_counts_stored_record_when_larger_is_refused() {
        let mut room = RecordQuota::default();
        let first = [size(3, ONE, MAX_BYTES - 10, None), size(4, ONE, 5, 16), size(5, OTHER, 5, 16)];
        assert_eq!(room.admit(&first, &[], |_| 3), decision(&[4], &[]));
        assert_eq!([4, 5].map(|number| room.node_usage(node(number))), [Some((ONE, 5)), Some((OTHER, 16))]);
        let full = [size(4, ONE, 5, 10)];
        assert_eq!(room.admit(&full, &[], |_| 3), decision(&[], &[]), "just as many as there may be");
        assert_eq!(room.cluster_usage(ONE), MAX_BYTES);
    }

    #[test]
    fn x03_f07_record_quota_admits_growth_when_others_shrink_in_pass() {
        let mut room = RecordQuota::default();
        let records = [size(3, ONE, 5, 16), size(4, ONE, MAX_BYTES, MAX_BYTES - 16)];
        assert_eq!(room.admit(&records, &[], |_| 3), decision(&[], &[]));
        assert_eq!(room.cluster_usage(ONE), MAX_BYTES);
    }

    /// After a start no record is known. Each stored record counts before any of them grows. A record that is smaller
    /// than the stored one does not grow.
    #[test]
    fn x03_f07_record_quota_counts_all_stored_records_before_growth() {
        let half = MAX_BYTES / 2;
        for (second, third, refused) in [(half, half, &[3][..]), (half + 10, half, &[3]), (half + 10, half - 2, &[])] {
            let mut room = RecordQuota::default();
            let records = [size(3, ONE, 1, 2), size(4, ONE, second, half), size(5, ONE, third, None)];
            assert_eq!(room.admit(&records, &[], |_| 3).refused, decision(refused, &[]).refused, "{second} {third}");
        }
    }

    #[test]
    fn x03_f07_record_quota_retries_refused_node_when_bytes_are_free() {
        let mut room = RecordQuota::default();
        let full = [size(3, ONE, MAX_BYTES, None), size(4, ONE, None, LARGE_BYTES), size(5, ONE, None, LARGE_BYTES)];
        let waiting = decision(&[4, 5], &[]);
        assert_eq!(room.admit(&full, &[], |_| 3), waiting);
        assert_eq!(room.admit(&[size(3, ONE, MAX_BYTES, MAX_BYTES - 1)], &[], |_| 3), decision(&[], &[]), "a byte is not enough");
        assert_eq!(
            room.admit(&[size(3, ONE, MAX_BYTES - 1, MAX_BYTES - LARGE_BYTES)], &[], |_| 3),
            decision(&[], &[4]),
            "for one"
        );
        assert_eq!(room.admit(&[size(4, ONE, None, LARGE_BYTES)], &[], |_| 3), decision(&[], &[]), "it has it now");
        assert_eq!(room.admit(&[size(5, ONE, None, LARGE_BYTES)], &[node(4)], |_| 3), decision(&[], &[]));
        assert_eq!(room.admit(&full[1..2], &[], |_| 3), decision(&[4], &[]));
        assert_eq!(room.admit(&[size(5, OTHER, LARGE_BYTES, None)], &[], |_| 3), decision(&[], &[4]), "another one left");
        assert_eq!(room.admit(&[], &[node(4)], |_| 3), decision(&[], &[]), "it is gone");
        assert_eq!(room.admit(&full[1..2], &[], |_| 3), decision(&[], &[]));
        assert_eq!(room.admit(&full[2..], &[], |_| 3), decision(&[5], &[]));
        assert_eq!(room.admit(&[size(6, ONE, None, None)], &[], |_| 5), decision(&[], &[5]), "nodes bring room with them");
    }

    /// A cluster may exceed its maximum after nodes with small records are deleted. It still accepts a node whose
    /// record is no larger than what the node adds to the maximum.
    #[test]
    fn x03_f07_record_quota_admits_first_record_within_bytes_per_node() {
        let mut room = RecordQuota::default();
        assert_eq!(room.admit(&[size(3, ONE, 2 * MAX_BYTES, None)], &[], |_| 3), decision(&[], &[]));
        let small = [size(4, ONE, None, 16_384), size(5, ONE, None, 16_385), size(6, ONE, 1, 2), size(7, ONE, 0, 1)];
        assert_eq!(room.admit(&small, &[], |_| 3), decision(&[5, 6, 7], &[]));
        assert_eq!(room.cluster_usage(ONE), 2 * MAX_BYTES + 16_385);
    }
}
