//! The nodes of a set, in the order of a list: as they came, or by name.

use std::ops::{Bound, Range};
use std::vec;

use super::{Among, BLOCK, Block, Fleet, Index, Term};
use crate::object::{Node, NodeId};

/// How many blocks are looked at first, and at most at once: a list that finds its page soon looks at few.
const FIRST_LOOK: u32 = 2;
const LARGEST_LOOK: u32 = 64;
/// A set of no more nodes is sorted by name, if it is no larger a part of the fleet either; of another one the names are walked.
const SORTED: u32 = 2048;
const SPARSE: usize = 16;
/// A block with fewer nodes of the set is looked up bit by bit.
const FEW: u32 = 16;

/// The nodes of a set in the order in which they came.
struct Walk<'f> {
    index: &'f Index,
    among: Among,
    /// Behind this place, or before it where the last come first.
    behind: Option<u32>,
    last_first: bool,
    ahead: Range<u32>,
    look: u32,
    found: vec::IntoIter<NodeId>,
}

impl Fleet {
    /// The nodes of a set in the order in which they came, or the last first; those behind this one alone. `None`: no index is kept.
    pub fn walk(
        &self,
        among: Among,
        behind: Option<NodeId>,
        last_first: bool,
    ) -> Option<impl Iterator<Item = NodeId> + use<'_>> {
        let index = self.index.as_ref()?;
        Some(index.walk(among, behind, last_first))
    }

    /// The same by name; those without a name come before the others, as they came.
    pub fn walk_by_name<'f>(
        &'f self,
        among: &Among,
        behind: Option<&Node>,
        last_first: bool,
    ) -> Option<Box<dyn Iterator<Item = NodeId> + 'f>> {
        let index = self.index.as_ref()?;
        let is_named = behind.map(|node| node.meta.name.is_some());
        let name = behind.and_then(|node| node.meta.name.clone());
        let nameless = (is_named != Some(!last_first)).then(|| {
            let those = Among::AllOf(vec![among.clone(), Among::Of(Term::Nameless)]);
            index.walk(those, behind.filter(|_| is_named == Some(false)).map(Node::id), last_first)
        });
        let named = (is_named != Some(false) || !last_first)
            .then(|| self.walk_named(index, among, name.as_deref(), last_first));
        let (nameless, named) = (nameless.into_iter().flatten(), named.into_iter().flatten());
        Some(if last_first { Box::new(named.chain(nameless)) } else { Box::new(nameless.chain(named)) })
    }

    fn walk_named<'f>(
        &'f self,
        index: &'f Index,
        among: &Among,
        behind: Option<&str>,
        last_first: bool,
    ) -> Box<dyn Iterator<Item = NodeId> + 'f> {
        let all = Range { start: 0, end: index.blocks().end };
        let bits = index.bits(among, &all);
        let is_behind = |name: &str| behind.is_none_or(|end| if last_first { name < end } else { name > end });
        let found = bits.iter().flatten().map(|word| word.count_ones()).sum::<u32>();
        if found <= SORTED && found as usize * SPARSE <= index.places.len() {
            let nodes = index.nodes_at(&bits, &all).into_iter();
            let name = |id: &NodeId| self.node(*id)?.meta.name.clone();
            let named = nodes.filter_map(|id| Some((name(&id)?, id)));
            let mut named: Vec<_> = named.filter(|(name, _)| is_behind(name)).collect();
            named.sort_unstable();
            if last_first {
                named.reverse();
            }
            return Box::new(named.into_iter().map(|(_, id)| id));
        }
        let end = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let range = if last_first { (Bound::Unbounded, end) } else { (end, Bound::Unbounded) };
        let names = self.by_name.range::<_, str>(range).map(|(_, id)| *id);
        let is_in = move |id: &NodeId| index.places.get(id).is_some_and(|place| Index::has(&bits, *place));
        if last_first { Box::new(names.rev().filter(is_in)) } else { Box::new(names.filter(is_in)) }
    }
}

impl Index {
    fn walk(&self, among: Among, behind: Option<NodeId>, last_first: bool) -> Walk<'_> {
        let behind = behind.and_then(|id| self.places.get(&id).copied());
        let blocks = self.blocks();
        let ahead = match behind.map(|place| place / BLOCK) {
            None => blocks,
            Some(block) if last_first => blocks.start..(block + 1).max(blocks.start),
            Some(block) => block.min(blocks.end)..blocks.end,
        };
        Walk { index: self, among, behind, last_first, ahead, look: FIRST_LOOK, found: Vec::new().into_iter() }
    }

    /// The nodes of these bits.
    fn nodes_at(&self, bits: &[Block], blocks: &Range<u32>) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for (block, words) in blocks.clone().zip(bits) {
            let first = block * BLOCK;
            let is_in = |place: u32| Self::has(std::slice::from_ref(words), place - first);
            match words.iter().map(|word| word.count_ones()).sum::<u32>() {
                0 => {}
                1..FEW => {
                    let places = (first..first + BLOCK).filter(|place| is_in(*place));
                    nodes.extend(places.filter_map(|place| self.nodes.get(&place)));
                }
                _ => {
                    let those = self.nodes.range(first..first + BLOCK).filter(|(place, _)| is_in(**place));
                    nodes.extend(those.map(|(_, id)| *id));
                }
            }
        }
        nodes
    }
}

impl Walk<'_> {
    /// Looks at the next blocks; `None`: there are none.
    fn look(&mut self) -> Option<Vec<NodeId>> {
        let left = self.ahead.end.checked_sub(self.ahead.start).filter(|left| *left > 0)?;
        let size = self.look.min(left);
        self.look = (self.look * 2).min(LARGEST_LOOK);
        let blocks = if self.last_first {
            self.ahead.end -= size;
            self.ahead.end..self.ahead.end + size
        } else {
            self.ahead.start += size;
            self.ahead.start - size..self.ahead.start
        };
        let mut nodes = self.index.nodes_at(&self.index.bits(&self.among, &blocks), &blocks);
        if let Some(end) = self.behind.take() {
            let is_behind = |place: &u32| if self.last_first { *place < end } else { *place > end };
            nodes.retain(|id| self.index.places.get(id).is_some_and(is_behind));
        }
        if self.last_first {
            nodes.reverse();
        }
        Some(nodes)
    }
}

impl Iterator for Walk<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        loop {
            if let Some(id) = self.found.next() {
                return Some(id);
            }
            self.found = self.look()?.into_iter();
        }
    }
}
