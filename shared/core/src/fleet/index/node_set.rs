//! Sets of nodes, built from terms and stored as bits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{BLOCK_BITS, BLOCK_WORDS, BitBlock, Fleet, IndexTerm, NodeIndex, bit_position};
use crate::object::NodeId;

/// A set of nodes, described by index terms and by other sets.
#[derive(Clone, Debug)]
pub enum NodeSet {
    /// All nodes.
    All,
    /// The nodes for which an index term holds.
    Term(IndexTerm),
    /// The nodes whose bits are set in these blocks, by the number of the block.
    Blocks(Arc<BTreeMap<u32, BitBlock>>),
    /// The union of these sets.
    AnyOf(Vec<Self>),
    /// The intersection of these sets.
    AllOf(Vec<Self>),
    /// The complement of a set. If the set may contain nodes that it should not, the complement may lack nodes that it
    /// should contain.
    Not(Box<Self>),
}

impl NodeSet {
    /// Returns the nodes for which any of these terms holds.
    pub fn any(terms: impl IntoIterator<Item = IndexTerm>) -> Self {
        Self::AnyOf(terms.into_iter().map(Self::Term).collect())
    }

    /// Returns the nodes for which all of these terms hold.
    pub fn all(terms: impl IntoIterator<Item = IndexTerm>) -> Self {
        Self::AllOf(terms.into_iter().map(Self::Term).collect())
    }

    /// Returns the nodes that are not in the set.
    #[must_use]
    pub fn complement(self) -> Self {
        Self::Not(Box::new(self))
    }

    /// Returns the set, or its complement if `is_in` is false.
    #[must_use]
    pub fn complement_unless(self, is_in: bool) -> Self {
        if is_in { self } else { self.complement() }
    }
}

impl Fleet {
    /// Returns the set of these nodes, or of all nodes if the fleet has no index.
    pub fn listed_set(&self, nodes: impl IntoIterator<Item = NodeId>) -> NodeSet {
        let Some(index) = &self.index else { return NodeSet::All };
        let mut blocks = BTreeMap::new();
        for place in nodes.into_iter().filter_map(|node| index.places.get(&node)) {
            let (block, word, bit) = bit_position(*place);
            blocks.entry(block).or_insert([0; BLOCK_WORDS])[word] |= bit;
        }
        NodeSet::Blocks(Arc::new(blocks))
    }
}

impl NodeIndex {
    /// Returns the range from the first to the last block number that has a node.
    pub(super) fn blocks(&self) -> Range<u32> {
        let first = self.nodes.get_min().map_or(0, |(place, _)| place / BLOCK_BITS);
        let end = self.nodes.get_max().map_or(0, |(place, _)| place / BLOCK_BITS + 1);
        first..end
    }

    /// Returns the bits of a set, one entry for each of these blocks.
    pub(super) fn bits(&self, set: &NodeSet, blocks: &Range<u32>) -> Vec<BitBlock> {
        let mut bits = vec![[0; BLOCK_WORDS]; (blocks.end - blocks.start) as usize];
        self.union_into(set, blocks, &mut bits);
        bits
    }

    /// Returns whether a set contains the node at a place. `bits` are the bits of the set from block 0 on.
    pub(super) fn contains(bits: &[BitBlock], place: u32) -> bool {
        let (block, word, bit) = bit_position(place);
        bits.get(block as usize).is_some_and(|words| words[word] & bit != 0)
    }

    /// Adds the bits of a set to `into`, which has one entry for each of these blocks.
    fn union_into(&self, set: &NodeSet, blocks: &Range<u32>, into: &mut [BitBlock]) {
        match set {
            NodeSet::All => self.union_term_into(&IndexTerm::Present, blocks, into),
            NodeSet::Term(term) => self.union_term_into(term, blocks, into),
            NodeSet::Blocks(listed) => {
                listed.range(blocks.clone()).for_each(|(block, words)| or_block(blocks, into, *block, words));
            }
            NodeSet::AnyOf(sets) => sets.iter().for_each(|part| self.union_into(part, blocks, into)),
            NodeSet::AllOf(sets) => {
                let mut result = self.bits(&NodeSet::All, blocks);
                for part in sets {
                    if result.iter().flatten().all(|word| *word == 0) {
                        return;
                    }
                    zip_words(&mut result, &self.bits(part, blocks), |word, other| *word &= other);
                }
                zip_words(into, &result, |word, other| *word |= other);
            }
            NodeSet::Not(excluded) => {
                let mut result = self.bits(&NodeSet::All, blocks);
                zip_words(&mut result, &self.bits(excluded, blocks), |word, other| *word &= !other);
                zip_words(into, &result, |word, other| *word |= other);
            }
        }
    }

    /// Adds the bits of the nodes for which a term holds to `into`, which has one entry for each of these blocks.
    fn union_term_into(&self, term: &IndexTerm, blocks: &Range<u32>, into: &mut [BitBlock]) {
        let range = (term.clone(), blocks.start)..(term.clone(), blocks.end);
        self.blocks.range(range).for_each(|((_, block), words)| or_block(blocks, into, *block, words));
    }
}

/// Adds the bits of block `block` to its entry in `into`, whose first entry is for the first of `blocks`.
fn or_block(blocks: &Range<u32>, into: &mut [BitBlock], block: u32, words: &BitBlock) {
    let target = &mut into[(block - blocks.start) as usize];
    target.iter_mut().zip(words).for_each(|(word, other)| *word |= other);
}

/// Calls `change` with each word of `blocks` and the word at the same position in `others`.
fn zip_words(blocks: &mut [BitBlock], others: &[BitBlock], change: impl Fn(&mut u64, u64)) {
    blocks.iter_mut().flatten().zip(others.iter().flatten()).for_each(|(word, other)| change(word, *other));
}
