//! Iterates over the nodes of a set in the order of a list: as they were added, or by name.

use std::ops::{Bound, Range};
use std::vec;

use super::{BLOCK_BITS, BitBlock, Fleet, IndexTerm, NodeIndex, NodeSet};
use crate::object::{Node, NodeId};

/// Number of blocks that a walk reads first. Each further batch is twice as large. So a list that fills its page early
/// reads few blocks.
const FIRST_BATCH_BLOCKS: u32 = 2;
/// Maximum number of blocks of a batch.
const MAX_BATCH_BLOCKS: u32 = 64;
/// Maximum number of nodes of a set that is sorted by name. For a larger set, all names of the fleet are read in order.
const MAX_SORTED_NODES: u32 = 2048;
/// Minimum number of nodes of the fleet per node of a set that is sorted by name. For a larger share of the fleet, all
/// names are read in order.
const SPARSE_RATIO: usize = 16;
/// A block with fewer nodes of the set than this is searched bit by bit. In another block, all of its nodes are read.
const MAX_SCANNED_NODES: u32 = 16;

/// An iterator over the nodes of a set in the order in which they were added.
struct NodeWalk<'f> {
    index: &'f NodeIndex,
    set: NodeSet,
    /// The walk starts after this place, or before it if the order is descending.
    after: Option<u32>,
    is_descending: bool,
    /// The blocks that were not read yet.
    remaining: Range<u32>,
    /// Number of blocks of the next batch.
    batch_blocks: u32,
    /// The nodes that were read and not returned yet.
    batch: vec::IntoIter<NodeId>,
}

impl Fleet {
    /// Returns the nodes of a set in the order in which they were added, or in reverse. Starts after the given node, if
    /// any. `None` if there is no index.
    pub fn walk(
        &self,
        set: NodeSet,
        after: Option<NodeId>,
        is_descending: bool,
    ) -> Option<impl Iterator<Item = NodeId> + use<'_>> {
        let index = self.index.as_ref()?;
        Some(index.walk(set, after, is_descending))
    }

    /// Returns the nodes of a set by name, or in reverse. Nodes without a name come before the others, in the order in
    /// which they were added. `None` if there is no index.
    pub fn walk_by_name<'f>(
        &'f self,
        set: &NodeSet,
        after: Option<&Node>,
        is_descending: bool,
    ) -> Option<Box<dyn Iterator<Item = NodeId> + 'f>> {
        let index = self.index.as_ref()?;
        let is_named = after.map(|node| node.meta.name.is_some());
        let name = after.and_then(|node| node.meta.name.clone());
        let unnamed = (is_named != Some(!is_descending)).then(|| {
            let unnamed_set = NodeSet::AllOf(vec![set.clone(), NodeSet::Term(IndexTerm::Nameless)]);
            index.walk(unnamed_set, after.filter(|_| is_named == Some(false)).map(Node::id), is_descending)
        });
        let named =
            (is_named != Some(false) || !is_descending).then(|| self.walk_names(index, set, name.as_deref(), is_descending));
        let (unnamed, named) = (unnamed.into_iter().flatten(), named.into_iter().flatten());
        Some(if is_descending { Box::new(named.chain(unnamed)) } else { Box::new(unnamed.chain(named)) })
    }

    /// Returns the nodes of a set that have a name, by name. A small set is sorted. For another set, all names of the
    /// fleet are read in order and filtered.
    fn walk_names<'f>(
        &'f self,
        index: &'f NodeIndex,
        set: &NodeSet,
        after: Option<&str>,
        is_descending: bool,
    ) -> Box<dyn Iterator<Item = NodeId> + 'f> {
        let blocks = Range { start: 0, end: index.blocks().end };
        let bits = index.bits(set, &blocks);
        let is_after = |name: &str| after.is_none_or(|end| if is_descending { name < end } else { name > end });
        let count = bits.iter().flatten().map(|word| word.count_ones()).sum::<u32>();
        if count <= MAX_SORTED_NODES && count as usize * SPARSE_RATIO <= index.places.len() {
            let nodes = index.nodes_at(&bits, &blocks).into_iter();
            let name = |id: &NodeId| self.node(*id)?.meta.name.clone();
            let named = nodes.filter_map(|id| Some((name(&id)?, id)));
            let mut named: Vec<_> = named.filter(|(name, _)| is_after(name)).collect();
            named.sort_unstable();
            if is_descending {
                named.reverse();
            }
            return Box::new(named.into_iter().map(|(_, id)| id));
        }
        let end = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = if is_descending { (Bound::Unbounded, end) } else { (end, Bound::Unbounded) };
        let names = self.by_name.range::<_, str>(range).map(|(_, id)| *id);
        let is_in = move |id: &NodeId| index.places.get(id).is_some_and(|place| NodeIndex::contains(&bits, *place));
        if is_descending { Box::new(names.rev().filter(is_in)) } else { Box::new(names.filter(is_in)) }
    }
}

impl NodeIndex {
    /// Starts a walk over the nodes of a set. If `after` has no place, the walk starts at the first node.
    fn walk(&self, set: NodeSet, after: Option<NodeId>, is_descending: bool) -> NodeWalk<'_> {
        let after = after.and_then(|id| self.places.get(&id).copied());
        let blocks = self.blocks();
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

    /// Returns the nodes whose bits are set in these blocks, in the order of places.
    fn nodes_at(&self, bits: &[BitBlock], blocks: &Range<u32>) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for (block, words) in blocks.clone().zip(bits) {
            let first = block * BLOCK_BITS;
            let is_in = |place: u32| Self::contains(std::slice::from_ref(words), place - first);
            match words.iter().map(|word| word.count_ones()).sum::<u32>() {
                0 => {}
                1..MAX_SCANNED_NODES => {
                    let places = (first..first + BLOCK_BITS).filter(|place| is_in(*place));
                    nodes.extend(places.filter_map(|place| self.nodes.get(&place)));
                }
                _ => {
                    let members = self.nodes.range(first..first + BLOCK_BITS).filter(|(place, _)| is_in(**place));
                    nodes.extend(members.map(|(_, id)| *id));
                }
            }
        }
        nodes
    }
}

impl NodeWalk<'_> {
    /// Reads the next blocks and returns their nodes. Returns `None` if all blocks were read.
    fn next_batch(&mut self) -> Option<Vec<NodeId>> {
        let blocks_left = self.remaining.end.checked_sub(self.remaining.start).filter(|left| *left > 0)?;
        let size = self.batch_blocks.min(blocks_left);
        self.batch_blocks = (self.batch_blocks * 2).min(MAX_BATCH_BLOCKS);
        let blocks = if self.is_descending {
            self.remaining.end -= size;
            self.remaining.end..self.remaining.end + size
        } else {
            self.remaining.start += size;
            self.remaining.start - size..self.remaining.start
        };
        let mut nodes = self.index.nodes_at(&self.index.bits(&self.set, &blocks), &blocks);
        if let Some(end) = self.after.take() {
            let is_after = |place: &u32| if self.is_descending { *place < end } else { *place > end };
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
