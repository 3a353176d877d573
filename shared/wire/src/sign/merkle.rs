//! Merkle trees in the form of RFC 6962. A tree of n leaves is split at the largest power of two below n. A leaf is
//! hashed with another prefix than an inner node. A path is verified as in RFC 9162, section 2.1.3.2.

use sha2::{Digest, Sha256};

use super::Leaf;

/// The first byte that is hashed for a leaf. It distinguishes a leaf from an inner node.
pub(super) const LEAF_PREFIX: u8 = 0;
/// The first byte that is hashed for an inner node. It distinguishes an inner node from a leaf.
const NODE_PREFIX: u8 = 1;

/// Maximum length of a path from a leaf to the root, in hashes. A tree therefore has at most 2³² leaves.
pub const MAX_PATH_HASHES: usize = 32;

/// The root hash of a Merkle tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MerkleRoot(pub [u8; 32]);

/// A Merkle tree with the hashes of all of its levels, leaves first. It uses twice the memory of the leaves alone, but
/// the path of a leaf can be read without computing hashes.
#[derive(Debug)]
pub(super) struct MerkleTree {
    levels: Vec<Vec<[u8; 32]>>,
}

impl MerkleTree {
    /// Builds the tree of these leaves. Each level has the hashes of the pairs of the level below. A last node without
    /// a partner moves up unchanged. The result is the tree of RFC 6962.
    pub(super) fn from_leaves(leaves: &[Leaf]) -> Self {
        let mut levels = vec![leaves.iter().map(|leaf| leaf.0).collect::<Vec<_>>()];
        while let Some(lower_level) = levels.last().filter(|level| level.len() > 1) {
            let level = lower_level.chunks(2).map(hash_pair).collect();
            levels.push(level);
        }
        Self { levels }
    }

    /// Returns the root. A tree without leaves has the root that RFC 6962 defines for it.
    pub(super) fn root(&self) -> MerkleRoot {
        let top = self.levels.last().and_then(|level| level.first());
        MerkleRoot(top.copied().unwrap_or_else(|| Sha256::digest([]).into()))
    }

    /// Returns the path of a leaf: the hash of the sibling at each level on the way to the root. A level where the node
    /// has no sibling is skipped. `index ^ 1` is the index of the sibling.
    pub(super) fn path(&self, mut index: usize) -> Vec<[u8; 32]> {
        let mut path = Vec::with_capacity(self.levels.len());
        for level in &self.levels {
            path.extend(level.get(index ^ 1));
            index /= 2;
        }
        path
    }
}

/// Returns the parent of a pair of nodes. The parent of a single node is the node itself.
fn hash_pair(pair: &[[u8; 32]]) -> [u8; 32] {
    match pair {
        [left, right] => hash_node(left, right),
        [node] => *node,
        _ => unreachable!("chunks of two"),
    }
}

/// Returns the hash of an inner node with these two children.
fn hash_node(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut hasher = Sha256::new_with_prefix([NODE_PREFIX]);
    hasher.update(left);
    hasher.update(right);
    hasher.finalize().into()
}

/// Computes the root of a tree from one leaf and the path of that leaf. `size` is the number of leaves of the tree.
/// Returns `None` if there is no leaf at this index, or if the path is too short or too long for this index. The
/// algorithm is that of RFC 9162, section 2.1.3.2.
pub(super) fn root_from_path(leaf: Leaf, index: u64, size: u64, path: &[[u8; 32]]) -> Option<MerkleRoot> {
    if path.len() > MAX_PATH_HASHES || index >= size {
        return None;
    }
    // The indexes of the current node and of the last node, both at the current level.
    let (mut node_index, mut last_index, mut hash) = (index, size - 1, leaf.0);
    for sibling in path {
        if last_index == 0 {
            return None;
        }
        // The sibling is the left one if this node has an odd index, or if it is the last node and was moved up.
        if node_index & 1 == 1 || node_index == last_index {
            hash = hash_node(sibling, &hash);
            // The path has no hash for a level at which this node has no sibling. So the loop skips these levels.
            while node_index & 1 == 0 && node_index != 0 {
                (node_index, last_index) = (node_index >> 1, last_index >> 1);
            }
        } else {
            hash = hash_node(&hash, sibling);
        }
        (node_index, last_index) = (node_index >> 1, last_index >> 1);
    }
    (last_index == 0).then_some(MerkleRoot(hash))
}
