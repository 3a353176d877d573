//! Sets of nodes, put together of terms, as rows of bits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{BLOCK, Block, Fleet, Index, Term, WORDS, at};
use crate::object::NodeId;

/// A set of nodes.
#[derive(Clone, Debug)]
pub enum Among {
    /// All nodes.
    All,
    /// Those of which a term holds.
    Of(Term),
    /// Those that were named, by block.
    These(Arc<BTreeMap<u32, Block>>),
    /// Those of any of these sets.
    AnyOf(Vec<Self>),
    /// Those of all of these sets.
    AllOf(Vec<Self>),
    /// Those that are not in a set. Of a set that may hold more than it is meant to, this may leave nodes out that it is not meant to.
    Not(Box<Self>),
}

impl Among {
    /// Those of which any of these terms holds.
    pub fn any(terms: impl IntoIterator<Item = Term>) -> Self {
        Self::AnyOf(terms.into_iter().map(Self::Of).collect())
    }

    /// Those of which all of these terms hold.
    pub fn every(terms: impl IntoIterator<Item = Term>) -> Self {
        Self::AllOf(terms.into_iter().map(Self::Of).collect())
    }

    /// Those that are not in it.
    #[must_use]
    pub fn complement(self) -> Self {
        Self::Not(Box::new(self))
    }

    /// It, or its complement.
    #[must_use]
    pub fn which(self, is_in: bool) -> Self {
        if is_in { self } else { self.complement() }
    }
}

impl Fleet {
    /// These nodes. Where no index is kept: all.
    pub fn among_these(&self, nodes: impl IntoIterator<Item = NodeId>) -> Among {
        let Some(index) = &self.index else { return Among::All };
        let mut blocks = BTreeMap::new();
        for place in nodes.into_iter().filter_map(|node| index.places.get(&node)) {
            let (block, word, bit) = at(*place);
            blocks.entry(block).or_insert([0; WORDS])[word] |= bit;
        }
        Among::These(Arc::new(blocks))
    }
}

impl Index {
    /// The blocks that have a node.
    pub(super) fn blocks(&self) -> Range<u32> {
        let first = self.nodes.get_min().map_or(0, |(place, _)| place / BLOCK);
        let end = self.nodes.get_max().map_or(0, |(place, _)| place / BLOCK + 1);
        first..end
    }

    /// The bits of a set in these blocks.
    pub(super) fn bits(&self, among: &Among, blocks: &Range<u32>) -> Vec<Block> {
        let mut bits = vec![[0; WORDS]; (blocks.end - blocks.start) as usize];
        self.join(among, blocks, &mut bits);
        bits
    }

    /// Whether a set has a place, of whose bits these are.
    pub(super) fn has(bits: &[Block], place: u32) -> bool {
        let (block, word, bit) = at(place);
        bits.get(block as usize).is_some_and(|words| words[word] & bit != 0)
    }

    /// Adds the bits of a set.
    fn join(&self, among: &Among, blocks: &Range<u32>, into: &mut [Block]) {
        match among {
            Among::All => self.join_term(&Term::Present, blocks, into),
            Among::Of(term) => self.join_term(term, blocks, into),
            Among::These(own) => own.range(blocks.clone()).for_each(|(block, words)| add(blocks, into, *block, words)),
            Among::AnyOf(all) => all.iter().for_each(|one| self.join(one, blocks, into)),
            Among::AllOf(all) => {
                let mut both = self.bits(&Among::All, blocks);
                for one in all {
                    if both.iter().flatten().all(|word| *word == 0) {
                        return;
                    }
                    each(&mut both, &self.bits(one, blocks), |word, other| *word &= other);
                }
                each(into, &both, |word, other| *word |= other);
            }
            Among::Not(one) => {
                let mut rest = self.bits(&Among::All, blocks);
                each(&mut rest, &self.bits(one, blocks), |word, other| *word &= !other);
                each(into, &rest, |word, other| *word |= other);
            }
        }
    }

    fn join_term(&self, term: &Term, blocks: &Range<u32>, into: &mut [Block]) {
        let range = (term.clone(), blocks.start)..(term.clone(), blocks.end);
        self.blocks.range(range).for_each(|((_, block), words)| add(blocks, into, *block, words));
    }
}

/// Adds the bits of one block to those of several.
fn add(blocks: &Range<u32>, into: &mut [Block], block: u32, words: &Block) {
    let own = &mut into[(block - blocks.start) as usize];
    own.iter_mut().zip(words).for_each(|(word, other)| *word |= other);
}

fn each(blocks: &mut [Block], others: &[Block], change: impl Fn(&mut u64, u64)) {
    blocks.iter_mut().flatten().zip(others.iter().flatten()).for_each(|(word, other)| change(word, *other));
}
