//! Iterates over the nodes of a set in the order of a list: as they were added, or by name.

use std::ops::{Bound, Range};
use std::vec;

use super::{BLOCK_BITS, BitBlock, Fleet, IndexTerm, NodeIndex, NodeSet};
use crate::object::{Node, NodeId};

/// Number of blocks in the first batch of a walk. Each further batch is twice as large. A list that fills its page
/// early therefore reads few blocks.
const FIRST_BATCH_BLOCKS: u32 = 2;
/// Maximum number of blocks in a batch.
const MAX_BATCH_BLOCKS: u32 = 64;
/// Maximum number of nodes in a set that is sorted by name. For a larger set, all names of the fleet are read in order
/// and filtered.
const MAX_SORTED_NODES: u32 = 2048;
/// Minimum number of nodes in the fleet for each node of a set that is sorted by name. If a set is a larger share of
/// the fleet, all names of the fleet are read in order and filtered.
const SPARSE_RATIO: usize = 16;
/// Minimum number of members of a set in a block for which all nodes of the block are read and filtered. In a block
/// with fewer members, only the members are looked up.
const MIN_SCANNED_MEMBERS: u32 = 16;

/// An iterator over the nodes of a set in the order in which they were added, or in reverse.
struct NodeWalk<'f> {
    index: &'f NodeIndex,
    set: NodeSet,
    /// The place after which the walk starts in its direction. `None` if it starts at the first node, or once the first
    /// batch was read.
    after: Option<u32>,
    is_descending: bool,
    /// The blocks that have not been read yet.
    remaining: Range<u32>,
    /// Number of blocks in the next batch.
    batch_blocks: u32,
    /// The nodes of the last batch that have not been returned yet.
    batch: vec::IntoIter<NodeId>,
}

impl Fleet {
    /// Returns the nodes of a set in the order in which they were added, or in reverse. Starts after the node `after`.
    /// If `after` is `None` or not in the index, starts at the first node. Returns `None` if the fleet has no index.
    pub fn walk(
        &self,
        set: NodeSet,
        after: Option<NodeId>,
        is_descending: bool,
    ) -> Option<impl Iterator<Item = NodeId> + use<'_>> {
        let index = self.index.as_ref()?;
        Some(index.walk(set, after, is_descending))
    }

    /// Returns the nodes of a set: first those without a name, in the order in which they were added, then the others
    /// in the order of their names. `is_descending` reverses the whole order. Starts after the node `after`, if there
    /// is one. Returns `None` if the fleet has no index.
    pub fn walk_by_name<'f>(
        &'f self,
        set: &NodeSet,
        after: Option<&Node>,
        is_descending: bool,
    ) -> Option<Box<dyn Iterator<Item = NodeId> + 'f>> {
        let index = self.index.as_ref()?;
        // `None` if the walk starts at the beginning.
        let starts_at_named = after.map(|node| node.meta.name.is_some());
        let name = after.and_then(|node| node.meta.name.clone());
        // In ascending order, nodes without a name come first, so after a named node none of them follows.
        let nameless = (is_descending || starts_at_named != Some(true)).then(|| {
            let nameless_set = NodeSet::AllOf(vec![set.clone(), NodeSet::Term(IndexTerm::Nameless)]);
            index.walk(nameless_set, after.filter(|_| starts_at_named == Some(false)).map(Node::id), is_descending)
        });
        // In descending order, named nodes come first, so after a node without a name none of them follows.
        let named_nodes = (starts_at_named != Some(false) || !is_descending)
            .then(|| self.walk_names(index, set, name.as_deref(), is_descending));
        let (nameless, named_nodes) = (nameless.into_iter().flatten(), named_nodes.into_iter().flatten());
        Some(if is_descending { Box::new(named_nodes.chain(nameless)) } else { Box::new(nameless.chain(named_nodes)) })
    }

    /// Returns the named nodes of a set in the order of their names, or in reverse, after the name `after`. A small set
    /// is sorted. For a large set, all names of the fleet are read in order and filtered.
    fn walk_names<'f>(
        &'f self,
        index: &'f NodeIndex,
        set: &NodeSet,
        after: Option<&str>,
        is_descending: bool,
    ) -> Box<dyn Iterator<Item = NodeId> + 'f> {
        let blocks = Range { start: 0, end: index.blocks().end };
        let bits = index.bits(set, &blocks);
        let is_after = |name: &str| after.is_none_or(|last| if is_descending { name < last } else { name > last });
        let count = bits.iter().flatten().map(|word| word.count_ones()).sum::<u32>();
        if count <= MAX_SORTED_NODES && count as usize * SPARSE_RATIO <= index.places.len() {
            let nodes = index.nodes_at(&bits, &blocks).into_iter();
            let name = |id: &NodeId| self.node(*id)?.meta.name.clone();
            let named_nodes = nodes.filter_map(|id| Some((name(&id)?, id)));
            let mut named_nodes: Vec<_> = named_nodes.filter(|(name, _)| is_after(name)).collect();
            named_nodes.sort_unstable();
            if is_descending {
                named_nodes.reverse();
            }
            return Box::new(named_nodes.into_iter().map(|(_, id)| id));
        }
        let bound = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = if is_descending { (Bound::Unbounded, bound) } else { (bound, Bound::Unbounded) };
        let names = self.by_name.range::<_, str>(range).map(|(_, id)| *id);
        let is_member = move |id: &NodeId| index.places.get(id).is_some_and(|place| NodeIndex::contains(&bits, *place));
        if is_descending { Box::new(names.rev().filter(is_member)) } else { Box::new(names.filter(is_member)) }
    }
}

impl NodeIndex {
    /// Returns a walk over the nodes of a set. If the node `after` is not in the index, the walk starts at the first
    /// node.
    fn walk(&self, set: NodeSet, after: Option<NodeId>, is_descending: bool) -> NodeWalk<'_> {
        let after = after.and_then(|id| self.places.get(&id).copied());
        let blocks = self.blocks();
        // The block of `after` is read too, because it may contain further nodes of the walk.
        let remaining = match after.map(|place| place / BLOCK_BITS) {
            None => blocks,
            Some(block) if is_descending => blocks.start..(block + 1).max(blocks.start),
            Some(block) => block.min(blocks.end)..blocks.end,
        };
        NodeWalk {
            index: self,
            set,
            after,
            is_descending,
            remaining,
            batch_blocks: FIRST_BATCH_BLOCKS,
            batch: Vec::new().into_iter(),
        }
    }

    /// Returns the nodes whose bits are set in these blocks, in the order of their places. In a block with few members,
    /// only these are looked up. In a fuller block, one pass over all of its nodes is faster.
    fn nodes_at(&self, bits: &[BitBlock], blocks: &Range<u32>) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for (block, words) in blocks.clone().zip(bits) {
            let first_place = block * BLOCK_BITS;
            let is_member = |place: u32| Self::contains(std::slice::from_ref(words), place - first_place);
            match words.iter().map(|word| word.count_ones()).sum::<u32>() {
                0 => {}
                1..MIN_SCANNED_MEMBERS => {
                    let places = (first_place..first_place + BLOCK_BITS).filter(|place| is_member(*place));
                    nodes.extend(places.filter_map(|place| self.nodes.get(&place)));
                }
                _ => {
                    let members = self.nodes.range(first_place..first_place + BLOCK_BITS).filter(|(place, _)| is_member(**place));
                    nodes.extend(members.map(|(_, id)| *id));
                }
            }
        }
        nodes
    }
}

impl NodeWalk<'_> {
    /// Reads the next blocks and returns the nodes of the set in them. Returns `None` if all blocks were read.
    fn next_batch(&mut self) -> Option<Vec<NodeId>> {
        let blocks_left = self.remaining.end.checked_sub(self.remaining.start).filter(|count| *count > 0)?;
        let block_count = self.batch_blocks.min(blocks_left);
        self.batch_blocks = (self.batch_blocks * 2).min(MAX_BATCH_BLOCKS);
        let blocks = if self.is_descending {
            self.remaining.end -= block_count;
            self.remaining.end..self.remaining.end + block_count
        } else {
            self.remaining.start += block_count;
            self.remaining.start - block_count..self.remaining.start
        };
        let mut nodes = self.index.nodes_at(&self.index.bits(&self.set, &blocks), &blocks);
        if let Some(last_place) = self.after.take() {
            let is_after = |place: &u32| if self.is_descending { *place < last_place } else { *place > last_place };
            nodes.retain(|id| self.index.places.get(id).is_some_and(is_after));
        }
        if self.is_descending {
            nodes.reverse();
        }
        Some(nodes)
    }
}

impl Iterator for NodeWalk<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        loop {
            if let Some(id) = self.batch.next() {
                return Some(id);
            }
            self.batch = self.next_batch()?.into_iter();
        }
    }
}
