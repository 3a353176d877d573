//! How much may be stored of what is released to the nodes of a cluster.
//!
//! What the tasks of many nodes read alike is stored once, and texts that are nearly alike in chunks. What is left in the record of each node is its
//! own. It is bounded by what one host may be sent. Without a bound for all nodes together, an operator of one cluster could fill memory and disk
//! with one label that many reads of each node show. So the records of a cluster's nodes have a budget.
//!
//! A write that goes beyond it is refused, by an estimate. What an estimate cannot know, facts among it, is left to reconcile: it releases nothing to a
//! node by which its cluster would go beyond the budget.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::{ClusterId, NodeId};

/// What the records of a cluster's nodes may take together, in bytes, before its nodes are counted.
const OF_CLUSTER: u64 = 32 * 1024 * 1024;
/// And so much more for each node.
const OF_NODE: u64 = 16 * 1024;

/// How many bytes the records of so many nodes of one cluster may take together.
pub const fn most_of_records(nodes: usize) -> u64 {
    OF_CLUSTER + OF_NODE * nodes as u64
}

/// The size of the record of what is released to a node, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSize {
    /// The node.
    pub node: NodeId,
    /// The cluster in which it stands; `None`: in none, and nothing bounds it.
    pub cluster: Option<ClusterId>,
    /// What the record takes that is stored; 0 where there is none.
    pub stored: u64,
    /// What the one takes that is to be stored; `None`: the stored one stays.
    pub next: Option<u64>,
}

/// What records take, by node and by cluster, in bytes.
#[derive(Debug, Default)]
pub struct Room {
    of_nodes: BTreeMap<NodeId, (ClusterId, u64)>,
    of_clusters: BTreeMap<ClusterId, Taken>,
}

/// What the records of a cluster's nodes take.
#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    /// How many nodes the cluster had when records were last admitted to it.
    nodes: usize,
}

/// What became of records that were to be stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// The nodes whose record is not to be stored: their cluster has no room for it.
    pub refused: BTreeSet<NodeId>,
    /// The clusters that have more room than before: what was refused there earlier may be tried again.
    pub roomier: BTreeSet<ClusterId>,
}

impl Room {
    /// Takes in the records of some nodes, each once, and the nodes that are gone. A record that is larger than the stored one is refused where
    /// its cluster has no room for it: then the stored one stays. Those that are no larger make room for the others. `nodes_of` gives how many nodes a
    /// cluster has.
    pub fn admit(
        &mut self,
        records: &[RecordSize],
        gone: &[NodeId],
        nodes_of: impl Fn(ClusterId) -> usize,
    ) -> Admitted {
        let stood_in = records.iter().map(|record| record.node).chain(gone.iter().copied());
        let stood_in = stood_in.filter_map(|node| self.of_nodes.get(&node).map(|(cluster, _)| *cluster));
        let touched: BTreeSet<ClusterId> = stood_in.chain(records.iter().filter_map(|record| record.cluster)).collect();
        let free_before: Vec<(ClusterId, u64)> =
            touched.iter().filter_map(|one| Some((*one, self.free(*one)?))).collect();
        for node in gone {
            self.set(*node, None);
        }
        let mut growing = Vec::new();
        for RecordSize { node, cluster, stored, next } in records.iter().copied() {
            let grows = next.filter(|next| *next > stored).zip(cluster);
            growing.extend(grows.map(|(next, cluster)| (node, cluster, next - stored)));
            let bytes = next.map_or(stored, |next| next.min(stored));
            self.set(node, cluster.map(|cluster| (cluster, bytes)));
        }
        for cluster in touched {
            if let Some(taken) = self.of_clusters.get_mut(&cluster) {
                taken.nodes = nodes_of(cluster);
            }
        }
        let mut refused = BTreeSet::new();
        for (node, cluster, more) in growing {
            if self.of_cluster(cluster) + more > most_of_records(nodes_of(cluster)) {
                refused.insert(node);
            } else {
                self.set(node, Some((cluster, self.of_node_in(cluster, node) + more)));
            }
        }
        let is_roomier = |(cluster, before): &(ClusterId, u64)| self.free(*cluster).is_none_or(|free| free > *before);
        Admitted { refused, roomier: free_before.into_iter().filter(is_roomier).map(|(cluster, _)| cluster).collect() }
    }

    /// What the record of a node takes of what its cluster may have; nothing where it stood in another one.
    pub fn of_node_in(&self, cluster: ClusterId, node: NodeId) -> u64 {
        self.of_nodes.get(&node).filter(|(of, _)| *of == cluster).map_or(0, |(_, bytes)| *bytes)
    }

    /// What the records of a cluster's nodes take together.
    pub fn of_cluster(&self, cluster: ClusterId) -> u64 {
        self.of_clusters.get(&cluster).map_or(0, |taken| taken.bytes)
    }

    /// What they may take beside that; `None`: none of its nodes has a record.
    fn free(&self, cluster: ClusterId) -> Option<u64> {
        let Taken { bytes, nodes } = self.of_clusters.get(&cluster)?;
        Some(most_of_records(*nodes).saturating_sub(*bytes))
    }

    /// Takes in where a node stands and what its record takes; `None`: it stands in no cluster, or is gone.
    fn set(&mut self, node: NodeId, record: Option<(ClusterId, u64)>) {
        let before = match record {
            Some(record) => self.of_nodes.insert(node, record),
            None => self.of_nodes.remove(&node),
        };
        if let Some((cluster, bytes)) = record {
            self.of_clusters.entry(cluster).or_default().bytes += bytes;
        }
        if let Some((cluster, bytes)) = before
            && let Some(taken) = self.of_clusters.get_mut(&cluster)
        {
            taken.bytes -= bytes;
            if taken.bytes == 0 {
                self.of_clusters.remove(&cluster);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const ONE: ClusterId = ClusterId(Uuid::from_u128(1));
    const OTHER: ClusterId = ClusterId(Uuid::from_u128(2));
    /// What three nodes may have.
    const MOST: u64 = 33_603_584;

    fn node(number: u128) -> NodeId {
        NodeId(Uuid::from_u128(number))
    }

    fn size(number: u128, cluster: Option<ClusterId>, stored: u64, next: impl Into<Option<u64>>) -> RecordSize {
        RecordSize { node: node(number), cluster, stored, next: next.into() }
    }

    fn admitted(refused: &[u128], roomier: &[ClusterId]) -> Admitted {
        Admitted {
            refused: refused.iter().map(|number| node(*number)).collect(),
            roomier: roomier.iter().copied().collect(),
        }
    }

    #[test]
    fn x03_f07_the_budget_is_of_the_cluster_and_of_each_node() {
        assert_eq!([0, 3, 1_000].map(most_of_records), [33_554_432, MOST, 49_938_432], "32 MiB and 16 KiB for each");
    }

    #[test]
    fn x03_f07_sums_follow_nodes_that_change_move_and_go() {
        let mut room = Room::default();
        for (records, gone, sums, roomier) in [
            (&[size(3, Some(ONE), 0, 10), size(4, Some(ONE), 5, None)][..], &[][..], (15, 0), &[][..]),
            (&[size(3, Some(ONE), 10, 7)], &[], (12, 0), &[ONE]),
            (&[size(3, Some(OTHER), 7, 8)], &[], (5, 8), &[ONE]),
            (&[], &[node(4)], (0, 8), &[ONE]),
            (&[], &[node(4)], (0, 8), &[]),
            (&[size(3, None, 8, 9)], &[], (0, 0), &[OTHER]),
        ] {
            assert_eq!(room.admit(records, gone, |_| 3), admitted(&[], roomier), "{records:?} {gone:?}");
            assert_eq!((room.of_cluster(ONE), room.of_cluster(OTHER)), sums, "{records:?} {gone:?}");
        }
    }

    #[test]
    fn x03_f07_a_record_that_grows_beyond_the_budget_is_refused_and_the_stored_one_counts() {
        let mut room = Room::default();
        let first = [size(3, Some(ONE), MOST - 10, None), size(4, Some(ONE), 5, 16), size(5, Some(OTHER), 5, 16)];
        assert_eq!(room.admit(&first, &[], |_| 3), admitted(&[4], &[]));
        assert_eq!((room.of_node_in(ONE, node(4)), room.of_node_in(OTHER, node(5))), (5, 16));
        let full = [size(4, Some(ONE), 5, 10)];
        assert_eq!(room.admit(&full, &[], |_| 3), admitted(&[], &[]), "just as many as there may be");
        assert_eq!(room.of_cluster(ONE), MOST);
        assert_eq!(room.admit(&[], &[node(3)], |_| 2), admitted(&[], &[ONE]), "one that goes makes room");
    }

    #[test]
    fn x03_f07_records_that_are_smaller_make_room_for_others_of_the_same_pass() {
        let mut room = Room::default();
        let records = [size(3, Some(ONE), 5, 16), size(4, Some(ONE), MOST, MOST - 16)];
        assert_eq!(room.admit(&records, &[], |_| 3), admitted(&[], &[]));
        assert_eq!(room.of_cluster(ONE), MOST);
    }

    /// After a start nothing is known of records: each counts before any of them grows, and one that is smaller than the stored one does not grow.
    #[test]
    fn x03_f07_all_stored_records_count_before_one_of_them_grows() {
        let half = MOST / 2;
        for (second, third, refused) in [(half, half, &[3][..]), (half + 10, half, &[3]), (half + 10, half - 1, &[])] {
            let mut room = Room::default();
            let records = [size(3, Some(ONE), 0, 1), size(4, Some(ONE), second, half), size(5, Some(ONE), third, None)];
            assert_eq!(room.admit(&records, &[], |_| 3).refused, admitted(refused, &[]).refused, "{second} {third}");
            assert!(room.of_cluster(ONE) <= MOST);
        }
    }

    #[test]
    fn x03_f07_a_node_that_comes_brings_room_with_it() {
        let mut room = Room::default();
        let full = [size(3, Some(ONE), MOST, None), size(4, Some(ONE), 0, 16)];
        assert_eq!(room.admit(&full, &[], |_| 3), admitted(&[4], &[]));
        assert_eq!(room.admit(&[size(5, Some(ONE), 0, None)], &[], |_| 4), admitted(&[], &[ONE]));
        assert_eq!(room.admit(&[size(4, Some(ONE), 0, 16)], &[], |_| 4), admitted(&[], &[]));
    }
}
