//! Merkle trees in the form of RFC 6962. A tree of n leaves is split at the largest power of two below n. A prefix
//! distinguishes leaves from inner nodes. A path is verified as in RFC 9162, section 2.1.3.2.

use sha2::{Digest, Sha256};

use super::Leaf;

/// The prefix of a leaf's hash.
pub(super) const LEAF_PREFIX: u8 = 0;
/// The prefix of an inner node's hash.
const NODE_PREFIX: u8 = 1;

/// Maximum length of a path, in hashes. A batch has at most 2³² leaves.
pub const MAX_PATH_HASHES: usize = 32;

/// The root hash of a Merkle tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MerkleRoot(pub [u8; 32]);

/// A tree with all of its levels, leaves first. It needs twice the memory of the leaves alone, but a path needs no
/// hashing.
#[derive(Debug)]
pub(super) struct MerkleTree {
    levels: Vec<Vec<[u8; 32]>>,
}

impl MerkleTree {
    /// Builds the tree over at least one leaf. Hashing pairs level by level, and moving an odd last node up unchanged,
    /// gives the tree of the RFC.
    pub(super) fn from_leaves(leaves: &[Leaf]) -> Self {
        let mut levels = vec![leaves.iter().map(|leaf| leaf.0).collect::<Vec<_>>()];
        while let Some(lower_level) = levels.last().filter(|level| level.len() > 1) {
            let level = lower_level.chunks(2).map(hash_pair).collect();
            levels.push(level);
        }
        Self { levels }
    }

    /// Returns the root. Without leaves, it is the RFC's hash of an empty tree.
    pub(super) fn root(&self) -> MerkleRoot {
        let top = self.levels.last().and_then(|level| level.first());
        MerkleRoot(top.copied().unwrap_or_else(|| Sha256::digest([]).into()))
    }

    /// Returns the sibling hashes on the way from a leaf to the root.
    pub(super) fn path(&self, mut index: usize) -> Vec<[u8; 32]> {
        let mut path = Vec::with_capacity(self.levels.len());
        for level in &self.levels {
            path.extend(level.get(index ^ 1));
            index /= 2;
        }
        path
    }
}

fn hash_pair(pair: &[[u8; 32]]) -> [u8; 32] {
    match pair {
        [left, right] => hash_node(left, right),
        [node] => *node,
        _ => unreachable!("chunks of two"),
    }
}

fn hash_node(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut hasher = Sha256::new_with_prefix([NODE_PREFIX]);
    hasher.update(left);
    hasher.update(right);
    hasher.finalize().into()
}

/// Returns the root that a leaf's path leads to, or `None` if the path does not fit a leaf at this index in a tree of
/// this size.
pub(super) fn root_from_path(leaf: Leaf, index: u64, size: u64, path: &[[u8; 32]]) -> Option<MerkleRoot> {
    if path.len() > MAX_PATH_HASHES || index >= size {
        return None;
    }
    let (mut node, mut last, mut hash) = (index, size - 1, leaf.0);
    for sibling in path {
        if last == 0 {
            return None;
        }
        if node & 1 == 1 || node == last {
            hash = hash_node(sibling, &hash);
            // If this node was moved up without a sibling, the path has no hash for those levels.
            while node & 1 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            hash = hash_node(&hash, sibling);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    (last == 0).then_some(MerkleRoot(hash))
}
