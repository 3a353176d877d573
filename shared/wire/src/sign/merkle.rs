//! Merkle trees in the form of RFC 6962: a tree of n leaves is split at the largest power of two below n, leaves and inner nodes
//! are told apart by a prefix, and a path is checked as RFC 9162, section 2.1.3.2 has it.

use sha2::{Digest, Sha256};

use super::Leaf;

/// The prefix of a leaf's hash.
pub(super) const LEAF: u8 = 0;
/// The prefix of an inner node's hash.
const INNER: u8 = 1;

/// The longest path, in hashes; a batch has at most 2³² leaves.
pub const MAX_PATH: usize = 32;

/// A tree's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root(pub [u8; 32]);

/// A tree with all of its levels, leaves first: twice the leaves in memory, and each path is a look-up.
#[derive(Debug)]
pub(super) struct Tree {
    levels: Vec<Vec<[u8; 32]>>,
}

impl Tree {
    /// Builds the tree over at least one leaf. Joining neighbours level by level, with the odd one at the end carried
    /// up as it is, is the RFC's tree.
    pub(super) fn build(leaves: &[Leaf]) -> Self {
        let mut levels = vec![leaves.iter().map(|leaf| leaf.0).collect::<Vec<_>>()];
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            let level = below.chunks(2).map(join).collect();
            levels.push(level);
        }
        Self { levels }
    }

    /// The root; the RFC's hash of nothing where there is no leaf.
    pub(super) fn root(&self) -> Root {
        let top = self.levels.last().and_then(|level| level.first());
        Root(top.copied().unwrap_or_else(|| Sha256::digest([]).into()))
    }

    /// The hashes beside the way up from a leaf.
    pub(super) fn path(&self, mut index: usize) -> Vec<[u8; 32]> {
        let mut path = Vec::with_capacity(self.levels.len());
        for level in &self.levels {
            path.extend(level.get(index ^ 1));
            index /= 2;
        }
        path
    }
}

fn join(pair: &[[u8; 32]]) -> [u8; 32] {
    match pair {
        [left, right] => inner(left, right),
        [alone] => *alone,
        _ => unreachable!("chunks of two"),
    }
}

fn inner(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut hash = Sha256::new_with_prefix([INNER]);
    hash.update(left);
    hash.update(right);
    hash.finalize().into()
}

/// The root that a leaf's path leads to; `None` where the path is not one of a leaf at that place in a tree of that size.
pub(super) fn root_of(leaf: Leaf, index: u64, size: u64, path: &[[u8; 32]]) -> Option<Root> {
    if path.len() > MAX_PATH || index >= size {
        return None;
    }
    let (mut node, mut last, mut hash) = (index, size - 1, leaf.0);
    for sibling in path {
        if last == 0 {
            return None;
        }
        if node & 1 == 1 || node == last {
            hash = inner(sibling, &hash);
            // Levels at which this node was carried up alone have no sibling in the path.
            while node & 1 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            hash = inner(&hash, sibling);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    (last == 0).then_some(Root(hash))
}
