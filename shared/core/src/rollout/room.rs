//! How much may be stored of what is released to the nodes of a cluster.
//!
//! What the tasks of many nodes read alike is stored once, and texts that are nearly alike in chunks. What is left in the record of each node is its
//! own. It is bounded by what one host may be sent. Without a bound for all nodes together, an operator of one cluster could fill memory and disk
//! with one label that many reads of each node show. So the records of a cluster's nodes have a budget.
//!
//! What counts is what of a record is the node's own: digits of revisions and times, of which each release writes others, do not. Nodes that stand in no
//! cluster have a budget of their own together, since what is held goes with its node.
//!
//! A write that goes beyond it is refused. What a write cannot know, facts among it, is left to reconcile: it releases nothing to a
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

/// The size of the record of what is released to a node: in bytes, of what of it is the node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSize {
    /// The node.
    pub node: NodeId,
    /// The cluster in which it stands; `None`: in none.
    pub cluster: Option<ClusterId>,
    /// That of the record that is stored; `None`: there is none.
    pub stored: Option<u64>,
    /// That of the one that is to be stored; `None`: the stored one stays.
    pub next: Option<u64>,
}

/// What records take, by node and by cluster, in bytes. In place of a cluster, `None` stands for all nodes that are in none.
#[derive(Debug, Default)]
pub struct Room {
    of_nodes: BTreeMap<NodeId, (Option<ClusterId>, u64)>,
    of_clusters: BTreeMap<Option<ClusterId>, Taken>,
}

/// What the records of a cluster's nodes take.
#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    /// The nodes whose record was refused, and by how much each would have grown.
    refused: BTreeMap<NodeId, u64>,
}

/// What became of records that were to be stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// The nodes whose record is not to be stored: their cluster has no room for it.
    pub refused: BTreeSet<NodeId>,
    /// The nodes that were refused earlier and for which there is room now.
    pub again: BTreeSet<NodeId>,
}

impl Room {
    /// Takes in the records of some nodes, each once, and the nodes that are gone. A record that is larger than the stored one is refused where
    /// its cluster has no room for it: then the stored one stays. Those that are no larger make room for the others, and a first record that is no larger
    /// than what its node adds to the budget is always taken. `nodes_of` gives how many nodes a cluster has.
    pub fn admit(
        &mut self,
        records: &[RecordSize],
        gone: &[NodeId],
        nodes_of: impl Fn(Option<ClusterId>) -> usize,
    ) -> Admitted {
        let nodes = records.iter().map(|record| record.node).chain(gone.iter().copied());
        let stood_in = nodes.filter_map(|node| Some(self.of_node(node)?.0));
        let touched: BTreeSet<_> = stood_in.chain(records.iter().map(|record| record.cluster)).collect();
        for node in gone {
            self.set(*node, None);
        }
        let mut growing = Vec::new();
        for RecordSize { node, cluster, stored, next } in records.iter().copied() {
            let before = stored.unwrap_or_default();
            let grows = next.filter(|next| *next > stored.unwrap_or(OF_NODE));
            growing.extend(grows.map(|next| (node, cluster, next - before)));
            let bytes = next.filter(|_| grows.is_none()).unwrap_or(before);
            self.set(node, Some((cluster, bytes)));
        }
        let mut refused = BTreeSet::new();
        for (node, cluster, more) in growing {
            if more <= self.free(cluster, &nodes_of) {
                let (_, stored) = self.of_node(node).expect("it was just set");
                self.set(node, Some((cluster, stored + more)));
            } else {
                refused.insert(node);
                self.of_clusters.entry(cluster).or_default().refused.insert(node, more);
            }
        }
        Admitted { refused, again: touched.into_iter().flat_map(|cluster| self.again(cluster, &nodes_of)).collect() }
    }

    /// Where a node stands, and what its record takes of what may be taken there.
    pub fn of_node(&self, node: NodeId) -> Option<(Option<ClusterId>, u64)> {
        self.of_nodes.get(&node).copied()
    }

    /// What the records of a cluster's nodes take together.
    pub fn of_cluster(&self, cluster: Option<ClusterId>) -> u64 {
        self.of_clusters.get(&cluster).map_or(0, |taken| taken.bytes)
    }

    /// What they may take beside that.
    fn free(&self, cluster: Option<ClusterId>, nodes_of: impl Fn(Option<ClusterId>) -> usize) -> u64 {
        most_of_records(nodes_of(cluster)).saturating_sub(self.of_cluster(cluster))
    }

    /// The nodes of a cluster that were refused and for all of which there is room now.
    fn again(&self, cluster: Option<ClusterId>, nodes_of: impl Fn(Option<ClusterId>) -> usize) -> Vec<NodeId> {
        let Some(taken) = self.of_clusters.get(&cluster).filter(|taken| !taken.refused.is_empty()) else {
            return Vec::new();
        };
        let mut free = self.free(cluster, nodes_of);
        let fitting = taken.refused.iter().filter(|(_, more)| {
            let left = free.checked_sub(**more);
            free = left.unwrap_or(free);
            left.is_some()
        });
        fitting.map(|(node, _)| *node).collect()
    }

    /// Takes in where a node stands and what its record takes; `None`: it is gone.
    fn set(&mut self, node: NodeId, record: Option<(Option<ClusterId>, u64)>) {
        let before = match record {
            Some(record) => self.of_nodes.insert(node, record),
            None => self.of_nodes.remove(&node),
        };
        if let Some((cluster, bytes)) = record {
            self.of_clusters.entry(cluster).or_default().bytes += bytes;
        }
        for (cluster, bytes) in before.into_iter().chain(record.map(|(cluster, _)| (cluster, 0))) {
            if let Some(taken) = self.of_clusters.get_mut(&cluster) {
                taken.bytes -= bytes;
                taken.refused.remove(&node);
                if taken.bytes == 0 && taken.refused.is_empty() {
                    self.of_clusters.remove(&cluster);
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
    /// What three nodes may have.
    const MOST: u64 = 33_603_584;
    /// What a node adds to that, and more.
    const LARGE: u64 = 20_000;

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

    fn admitted(refused: &[u128], again: &[u128]) -> Admitted {
        let [refused, again] = [refused, again].map(|nodes| nodes.iter().map(|number| node(*number)).collect());
        Admitted { refused, again }
    }

    #[test]
    fn x03_f07_the_budget_is_of_the_cluster_and_of_each_node() {
        assert_eq!([0, 3, 1_000].map(most_of_records), [33_554_432, MOST, 49_938_432], "32 MiB and 16 KiB for each");
    }

    #[test]
    fn x03_f07_sums_follow_nodes_that_change_move_and_go() {
        let mut room = Room::default();
        for (records, gone, sums) in [
            (&[size(3, ONE, None, 10), size(4, ONE, 5, None)][..], &[][..], [15, 0, 0]),
            (&[size(3, ONE, 10, 7)], &[], [12, 0, 0]),
            (&[size(3, OTHER, 7, 8)], &[], [5, 8, 0]),
            (&[], &[node(4)], [0, 8, 0]),
            (&[], &[node(4)], [0, 8, 0]),
            (&[size(3, None, 8, None)], &[], [0, 0, 8]),
            (&[], &[node(3)], [0, 0, 0]),
        ] {
            assert_eq!(room.admit(records, gone, |_| 3), Admitted::default(), "{records:?} {gone:?}");
            assert_eq!([ONE, OTHER, None].map(|of| room.of_cluster(of)), sums, "{records:?} {gone:?}");
        }
        assert_eq!((room.of_nodes.len(), room.of_clusters.len()), (0, 0), "nothing is left of them");
    }

    #[test]
    fn x03_f07_a_record_that_grows_beyond_the_budget_is_refused_and_the_stored_one_counts() {
        let mut room = Room::default();
        let first = [size(3, ONE, MOST - 10, None), size(4, ONE, 5, 16), size(5, OTHER, 5, 16)];
        assert_eq!(room.admit(&first, &[], |_| 3), admitted(&[4], &[]));
        assert_eq!([4, 5].map(|number| room.of_node(node(number))), [Some((ONE, 5)), Some((OTHER, 16))]);
        let full = [size(4, ONE, 5, 10)];
        assert_eq!(room.admit(&full, &[], |_| 3), admitted(&[], &[]), "just as many as there may be");
        assert_eq!(room.of_cluster(ONE), MOST);
    }

    #[test]
    fn x03_f07_records_that_are_smaller_make_room_for_others_of_the_same_pass() {
        let mut room = Room::default();
        let records = [size(3, ONE, 5, 16), size(4, ONE, MOST, MOST - 16)];
        assert_eq!(room.admit(&records, &[], |_| 3), admitted(&[], &[]));
        assert_eq!(room.of_cluster(ONE), MOST);
    }

    /// After a start nothing is known of records: each counts before any of them grows, and one that is smaller than the stored one does not grow.
    #[test]
    fn x03_f07_all_stored_records_count_before_one_of_them_grows() {
        let half = MOST / 2;
        for (second, third, refused) in [(half, half, &[3][..]), (half + 10, half, &[3]), (half + 10, half - 2, &[])] {
            let mut room = Room::default();
            let records = [size(3, ONE, 1, 2), size(4, ONE, second, half), size(5, ONE, third, None)];
            assert_eq!(room.admit(&records, &[], |_| 3).refused, admitted(refused, &[]).refused, "{second} {third}");
        }
    }

    #[test]
    fn x03_f07_who_was_refused_is_tried_again_once_there_is_room_for_it() {
        let mut room = Room::default();
        let full = [size(3, ONE, MOST, None), size(4, ONE, None, LARGE), size(5, ONE, None, LARGE)];
        let waiting = admitted(&[4, 5], &[]);
        assert_eq!(room.admit(&full, &[], |_| 3), waiting);
        assert_eq!(room.admit(&[size(3, ONE, MOST, MOST - 1)], &[], |_| 3), admitted(&[], &[]), "a byte is not enough");
        assert_eq!(room.admit(&[size(3, ONE, MOST - 1, MOST - LARGE)], &[], |_| 3), admitted(&[], &[4]), "for one");
        assert_eq!(room.admit(&[size(4, ONE, None, LARGE)], &[], |_| 3), admitted(&[], &[]), "it has it now");
        assert_eq!(room.admit(&[size(5, ONE, None, LARGE)], &[node(4)], |_| 3), admitted(&[], &[]));
        assert_eq!(room.admit(&full[1..2], &[], |_| 3), admitted(&[4], &[]));
        assert_eq!(room.admit(&[size(5, OTHER, LARGE, None)], &[], |_| 3), admitted(&[], &[4]), "another one left");
        assert_eq!(room.admit(&[], &[node(4)], |_| 3), admitted(&[], &[]), "it is gone");
        assert_eq!(room.admit(&full[1..2], &[], |_| 3), admitted(&[], &[]));
        assert_eq!(room.admit(&full[2..], &[], |_| 3), admitted(&[5], &[]));
        assert_eq!(
            room.admit(&[size(6, ONE, None, None)], &[], |_| 5),
            admitted(&[], &[5]),
            "nodes bring room with them"
        );
    }

    /// A cluster has more than it may once nodes with small records are gone. It takes others that bring as much as they take.
    #[test]
    fn x03_f07_a_first_record_no_larger_than_what_its_node_brings_is_taken() {
        let mut room = Room::default();
        assert_eq!(room.admit(&[size(3, ONE, 2 * MOST, None)], &[], |_| 3), admitted(&[], &[]));
        let small = [size(4, ONE, None, 16_384), size(5, ONE, None, 16_385), size(6, ONE, 1, 2), size(7, ONE, 0, 1)];
        assert_eq!(room.admit(&small, &[], |_| 3), admitted(&[5, 6, 7], &[]));
        assert_eq!(room.of_cluster(ONE), 2 * MOST + 16_385);
    }
}
