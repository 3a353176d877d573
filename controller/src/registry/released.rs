//! How much is stored of what is released to the nodes of each cluster.
//!
//! What tasks read alike on many nodes is stored once ([`crate::records::common`]), and the texts that are nearly alike in chunks. What is left in the
//! record of each node is its own. It is bounded by what one host may be sent, and without a bound for all together an operator of one cluster
//! could fill memory and disk with one label that many reads of each node show. So the records of a cluster's nodes have a budget.
//!
//! A write that goes beyond it is refused, by an estimate. What an estimate cannot know, facts among it, is left to reconcile: it releases nothing to a
//! node by which its cluster would go beyond the budget.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stemma_core::object::ClusterId;
use uuid::Uuid;

/// What the records of a cluster's nodes may take together, in bytes, before its nodes are counted.
const OF_CLUSTER: u64 = 32 * 1024 * 1024;
/// And so much more for each node.
const OF_NODE: u64 = 16 * 1024;

/// What the records of what is released to nodes take, by node and by cluster, in bytes. Reconcile tells it of each node that it looks at.
#[derive(Debug, Default)]
pub struct ReleasedBytes(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    of_nodes: HashMap<Uuid, (ClusterId, u64)>,
    of_clusters: HashMap<ClusterId, u64>,
}

/// How many bytes the records of so many nodes of one cluster may take together.
pub const fn most_of_records(nodes: usize) -> u64 {
    OF_CLUSTER + OF_NODE * nodes as u64
}

impl ReleasedBytes {
    /// Takes in what the record of a node takes, and in which cluster the node stands; `None`: it stands in none, or is gone.
    pub fn set(&self, node: Uuid, record: Option<(ClusterId, u64)>) {
        let mut sums = self.sums();
        let before = match record {
            Some(record) => sums.of_nodes.insert(node, record),
            None => sums.of_nodes.remove(&node),
        };
        if let Some((cluster, bytes)) = record {
            *sums.of_clusters.entry(cluster).or_default() += bytes;
        }
        if let Some((cluster, bytes)) = before {
            let left = sums.of_clusters.get(&cluster).copied().unwrap_or_default().saturating_sub(bytes);
            if left == 0 {
                sums.of_clusters.remove(&cluster);
            } else {
                sums.of_clusters.insert(cluster, left);
            }
        }
    }

    /// What the record of a node takes of what its cluster may have; nothing where it stood in another one.
    pub fn of_node_in(&self, cluster: ClusterId, node: Uuid) -> u64 {
        self.sums().of_nodes.get(&node).filter(|(of, _)| *of == cluster).map_or(0, |(_, bytes)| *bytes)
    }

    /// The cluster in which a node stood.
    pub fn cluster_of(&self, node: Uuid) -> Option<ClusterId> {
        self.sums().of_nodes.get(&node).map(|(cluster, _)| *cluster)
    }

    /// What the records of a cluster's nodes take together.
    pub fn of_cluster(&self, cluster: ClusterId) -> u64 {
        self.sums().of_clusters.get(&cluster).copied().unwrap_or_default()
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x03_f07_sums_follow_nodes_that_change_move_and_go() {
        let (one, other) = (ClusterId(Uuid::from_u128(1)), ClusterId(Uuid::from_u128(2)));
        let (first, second) = (Uuid::from_u128(3), Uuid::from_u128(4));
        let bytes = ReleasedBytes::default();
        for (node, record, sums) in [
            (first, Some((one, 10)), (10, 0)),
            (second, Some((one, 5)), (15, 0)),
            (first, Some((one, 7)), (12, 0)),
            (first, Some((other, 8)), (5, 8)),
            (second, None, (0, 8)),
            (second, None, (0, 8)),
            (first, Some((other, 0)), (0, 0)),
        ] {
            bytes.set(node, record);
            assert_eq!((bytes.of_cluster(one), bytes.of_cluster(other)), sums, "{node} {record:?}");
            let of_node = [one, other].map(|cluster| bytes.of_node_in(cluster, node)).into_iter().sum::<u64>();
            assert_eq!(
                (of_node, bytes.cluster_of(node)),
                (record.map_or(0, |(_, bytes)| bytes), record.map(|(of, _)| of))
            );
        }
        assert_eq!(most_of_records(1_000), 49_938_432, "32 MiB and 16 KiB for each");
    }
}
