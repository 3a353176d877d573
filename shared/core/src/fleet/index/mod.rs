//! Index of nodes by the properties that list filters select. It finds the nodes that a list may contain without
//! reading each node.
//!
//! A node has a place, a number that grows in the order in which nodes are added. A set is therefore a row of bits, and
//! the union, the intersection and the complement of sets are operations on words. Bits are stored in blocks, and
//! blocks in one persistent map. A snapshot is free, and an edit of a node writes only the blocks of the terms that
//! change. What a node inherits from its group is in no set of nodes. Groups are checked when a list is read
//! (`filter.rs`), so a label of a cluster costs nothing per node.
//!
//! The index never omits a node that a filter selects. It may return more, so the caller applies the filter to each
//! node that is found.
//!
//! A place is never reused. After many nodes were added and deleted, blocks are sparse. A restart numbers the nodes
//! again.

mod filter;
mod node_set;
mod order;
mod term;

use imbl::OrdMap;

pub use node_set::NodeSet;
pub use term::{IRONIC_FIELDS, IndexTerm, normalized_text};

use super::{Fleet, NodeEntry};
use crate::object::NodeId;

/// Number of 64-bit words in a block of bits.
const BLOCK_WORDS: usize = 8;
/// Number of bits in a block: one for each place (the number of a node in the index).
const BLOCK_BITS: u32 = 512;

/// The bits of one block. Each bit is set if the node at its place belongs to a set.
type BitBlock = [u64; BLOCK_WORDS];

/// For each index term, the nodes for which it holds, as bits. The place of a node is the number of its bit.
#[derive(Clone, Default)]
pub(super) struct NodeIndex {
    /// The place of the next node that is added.
    next_place: u32,
    /// The place of each node.
    places: OrdMap<NodeId, u32>,
    /// The node at each place.
    nodes: OrdMap<u32, NodeId>,
    /// The bits of the nodes for which a term holds, by the term and the number of the block of bits.
    blocks: OrdMap<(IndexTerm, u32), BitBlock>,
}

impl Fleet {
    /// Builds an index of the nodes in `order`, which [`Fleet::apply`] then updates. `order` must contain all nodes of
    /// the fleet. They get places in this sequence, and later nodes get the places after them.
    pub fn build_index(&mut self, order: impl IntoIterator<Item = NodeId>) {
        let mut index = NodeIndex::default();
        for id in order {
            index.update(id, None, self.nodes.get(&id).map(|entry| &**entry));
        }
        self.index = Some(index);
    }
}

impl NodeIndex {
    /// Updates the index after a node was added, changed or deleted. `old_entry` is `None` if the node was added, and
    /// `new_entry` is `None` if it was deleted.
    pub(super) fn update(&mut self, id: NodeId, old_entry: Option<&NodeEntry>, new_entry: Option<&NodeEntry>) {
        let old_place = self.places.get(&id).copied();
        let Some(place) = old_place.or_else(|| new_entry.map(|_| self.assign_place(id))) else { return };
        // A node without a place has no bits yet, so its old entry is ignored.
        let (removed, added) = term::term_changes(old_entry.filter(|_| old_place.is_some()), new_entry);
        for term in removed {
            self.clear_bit(term, place);
        }
        for term in added {
            self.set_bit(term, place);
        }
        if new_entry.is_none() {
            self.places.remove(&id);
            self.nodes.remove(&place);
        }
    }

    /// Gives a node the next place, which is the number of its bit in the index.
    fn assign_place(&mut self, id: NodeId) -> u32 {
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(id, place);
        self.nodes.insert(place, id);
        place
    }

    /// Records that a term holds for the node at a place.
    fn set_bit(&mut self, term: IndexTerm, place: u32) {
        let (block, word, bit) = bit_position(place);
        self.blocks.entry((term, block)).or_insert([0; BLOCK_WORDS])[word] |= bit;
    }

    /// Records that a term no longer holds for the node at a place. A block without nodes is removed.
    fn clear_bit(&mut self, term: IndexTerm, place: u32) {
        let (block, word, bit) = bit_position(place);
        let key = (term, block);
        let Some(words) = self.blocks.get_mut(&key) else { return };
        words[word] &= !bit;
        if words.iter().all(|word| *word == 0) {
            self.blocks.remove(&key);
        }
    }
}

/// Returns the position of the bit of a place: the number of its block, the number of the word in the block, and a word
/// with only this bit set.
fn bit_position(place: u32) -> (u32, usize, u64) {
    let offset = place % BLOCK_BITS;
    (place / BLOCK_BITS, (offset / u64::BITS) as usize, 1 << (offset % u64::BITS))
}
