//! Which nodes a list may have, without a look at each: sets of nodes by what a filter asks for.
//!
//! A node has a place, a number that grows in the order in which nodes come, so a set is a row of bits, and the union, the
//! intersection and the complement of sets are operations on words. Bits are kept in blocks, and blocks in one persistent map: a
//! snapshot is free, and an edit writes the blocks of what it changes for one node and no other. What comes down to a node from its
//! group stands in no set of nodes: groups are asked when a list is (`seek.rs`), so that a label of a cluster costs its nodes nothing.
//!
//! The index leaves no node out that a filter keeps. It may keep more, so whoever lists asks each node that is found.
//!
//! A place is not given twice. After many nodes came and went, blocks are thin; a restart numbers the nodes again.

mod among;
mod order;
mod seek;
mod term;

use imbl::OrdMap;

pub use among::Among;
pub use term::{KEPT, Term, kept_form};

use super::{Fleet, NodeEntry};
use crate::object::NodeId;

/// How many words a block has.
const WORDS: usize = 8;
/// How many places that is.
const BLOCK: u32 = 512;

/// The bits of one block.
type Block = [u64; WORDS];

/// Nodes by what is looked for.
#[derive(Clone, Default)]
pub(super) struct Index {
    next: u32,
    places: OrdMap<NodeId, u32>,
    nodes: OrdMap<u32, NodeId>,
    blocks: OrdMap<(Term, u32), Block>,
}

impl Fleet {
    /// Keeps an index from now on. Nodes that are there already come in this order, those that come later behind them.
    pub fn keep_index(&mut self, order: impl IntoIterator<Item = NodeId>) {
        let mut index = Index::default();
        for id in order {
            index.replace(id, None, self.nodes.get(&id).map(|entry| &**entry));
        }
        self.index = Some(index);
    }
}

impl Index {
    /// Takes in that a node is another, is new or is gone.
    pub(super) fn replace(&mut self, id: NodeId, before: Option<&NodeEntry>, after: Option<&NodeEntry>) {
        let known = self.places.get(&id).copied();
        let Some(place) = known.or_else(|| after.map(|_| self.give_place(id))) else { return };
        let (gone, new) = term::changes(before.filter(|_| known.is_some()), after);
        for term in gone {
            self.unset(term, place);
        }
        for term in new {
            self.set(term, place);
        }
        if after.is_none() {
            self.places.remove(&id);
            self.nodes.remove(&place);
        }
    }

    fn give_place(&mut self, id: NodeId) -> u32 {
        let place = self.next;
        self.next += 1;
        self.places.insert(id, place);
        self.nodes.insert(place, id);
        place
    }

    fn set(&mut self, term: Term, place: u32) {
        let (block, word, bit) = at(place);
        self.blocks.entry((term, block)).or_insert([0; WORDS])[word] |= bit;
    }

    fn unset(&mut self, term: Term, place: u32) {
        let (block, word, bit) = at(place);
        let key = (term, block);
        let Some(words) = self.blocks.get_mut(&key) else { return };
        words[word] &= !bit;
        if words.iter().all(|word| *word == 0) {
            self.blocks.remove(&key);
        }
    }
}

/// The block of a place, and where it stands there.
fn at(place: u32) -> (u32, usize, u64) {
    let within = place % BLOCK;
    (place / BLOCK, (within / u64::BITS) as usize, 1 << (within % u64::BITS))
}
