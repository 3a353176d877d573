//! What a commit asks for, and the refusals that need no look at the store.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use super::entry::Revision;

/// All of it, or nothing: operations on entries, under preconditions on what they build on.
///
/// One write of the API is one transaction: the object, its after-image, an audit event and the record of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold, judged together before the first operation.
    pub preconditions: Vec<Precondition>,
    /// What is done. No key stands in two operations. Deletes are done first.
    pub ops: Vec<Op>,
}

impl Transaction {
    /// One that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, under one more precondition.
    #[must_use]
    pub fn require(mut self, precondition: Precondition) -> Self {
        self.preconditions.push(precondition);
        self
    }

    /// The same, with an entry written whole.
    #[must_use]
    pub fn put(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.ops.push(Op::Put { key: key.into(), value: value.into() });
        self
    }

    /// The same, with an entry written at `prefix` and the eight big-endian bytes of the revision that this commit gets.
    #[must_use]
    pub fn put_at_revision(mut self, prefix: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.ops.push(Op::PutAtRevision { prefix: prefix.into(), value: value.into() });
        self
    }

    /// The same, with an entry taken away; that it is there is no precondition.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Bytes>) -> Self {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }

    /// The operations in the order in which they are done: deletes first, so that none takes away what the same commit writes.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Op> {
        self.ops.iter().filter(|op| op.is_delete()).chain(self.ops.iter().filter(|op| !op.is_delete()))
    }

    /// What limits count: keys and values, those of preconditions included.
    pub fn size_bytes(&self) -> usize {
        let preconditions: usize = self.preconditions.iter().map(|p| p.key().len()).sum();
        preconditions + self.ops.iter().map(Op::size_bytes).sum::<usize>()
    }

    /// Refuses what no engine could commit, before anything is written.
    ///
    /// # Errors
    /// [`Refusal`], naming the limit or the key.
    pub fn check(&self, limits: &Limits) -> Result<(), Refusal> {
        let ops = self.ops.len() + self.preconditions.len();
        if ops > limits.max_ops {
            return Err(Refusal::TooManyOps { ops, max: limits.max_ops, raised_by: limits.ops_raised_by });
        }
        let bytes = self.size_bytes();
        if bytes > limits.max_bytes {
            return Err(Refusal::TooLarge { bytes, max: limits.max_bytes, raised_by: limits.bytes_raised_by });
        }
        self.check_keys(limits)
    }

    fn check_keys(&self, limits: &Limits) -> Result<(), Refusal> {
        let mut keys = HashSet::with_capacity(self.ops.len());
        let mut prefixes = HashSet::new();
        for op in &self.ops {
            let (key, longest) = match op {
                Op::Put { key, .. } | Op::Delete { key } => (key, limits.max_key_bytes),
                Op::PutAtRevision { prefix, .. } => (prefix, limits.max_key_bytes.saturating_sub(REVISION_BYTES)),
            };
            if key.is_empty() {
                return Err(Refusal::EmptyKey);
            }
            if key.len() > longest {
                return Err(Refusal::LongKey { bytes: key.len(), max: longest, key: ShownKey(key.clone()) });
            }
            let seen = if matches!(op, Op::PutAtRevision { .. }) { &mut prefixes } else { &mut keys };
            if !seen.insert(key.as_ref()) {
                return Err(Refusal::DuplicateKey { key: ShownKey(key.clone()) });
            }
        }
        // Which revision a key will end in is not known here, so a put of a key that could be one of these is refused whatever
        // it ends in: else two puts of one key would pass or fail by chance. A delete is none of these: it is done before the
        // puts, and finds entries of earlier revisions alone.
        let clash = |key: &&[u8]| key.len() > REVISION_BYTES && prefixes.contains(&key[..key.len() - REVISION_BYTES]);
        let mut puts = self.ops.iter().filter_map(|op| match op {
            Op::Put { key, .. } => Some(key.as_ref()),
            Op::PutAtRevision { .. } | Op::Delete { .. } => None,
        });
        match puts.find(clash) {
            Some(key) => Err(Refusal::DuplicateKey { key: ShownKey(Bytes::copy_from_slice(key)) }),
            None => Ok(()),
        }
    }
}

const REVISION_BYTES: usize = size_of::<Revision>();

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes an entry whole, new or not. Equal content is written too: who wants no revision for it asks first.
    Put {
        /// Where.
        key: Bytes,
        /// What.
        value: Bytes,
    },
    /// Writes an entry whose key ends in the revision of this very commit, as after-images and audit events do.
    ///
    /// An engine that does not know its revision beforehand (etcd) may store it otherwise, as long as reads and watches show
    /// this key.
    PutAtRevision {
        /// The key up to the revision.
        prefix: Bytes,
        /// What.
        value: Bytes,
    },
    /// Takes an entry away, if it is there.
    Delete {
        /// Which.
        key: Bytes,
    },
}

impl Op {
    /// Whether it takes an entry away.
    fn is_delete(&self) -> bool {
        matches!(self, Self::Delete { .. })
    }

    fn size_bytes(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::PutAtRevision { prefix, value } => prefix.len() + REVISION_BYTES + value.len(),
            Self::Delete { key } => key.len(),
        }
    }
}

/// What a transaction builds on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// There is no such entry.
    Absent {
        /// Its key.
        key: Bytes,
    },
    /// There is such an entry, whatever it holds.
    Present {
        /// Its key.
        key: Bytes,
    },
    /// The entry is there and was last written by this revision: it is what the caller read.
    Unchanged {
        /// Its key.
        key: Bytes,
        /// Its `mod_revision`.
        mod_revision: Revision,
    },
}

impl Precondition {
    /// [`Precondition::Absent`].
    pub fn absent(key: impl Into<Bytes>) -> Self {
        Self::Absent { key: key.into() }
    }

    /// [`Precondition::Present`].
    pub fn present(key: impl Into<Bytes>) -> Self {
        Self::Present { key: key.into() }
    }

    /// [`Precondition::Unchanged`].
    pub fn unchanged(key: impl Into<Bytes>, mod_revision: Revision) -> Self {
        Self::Unchanged { key: key.into(), mod_revision }
    }

    /// That an entry is as it was read: [`Precondition::unchanged`] since the revision that wrote it, or still absent.
    pub fn as_read(key: impl Into<Bytes>, written: Option<Revision>) -> Self {
        match written {
            Some(revision) => Self::unchanged(key, revision),
            None => Self::absent(key),
        }
    }

    /// The key that it speaks of.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Absent { key } | Self::Present { key } | Self::Unchanged { key, .. } => key,
        }
    }
}

impl fmt::Display for Precondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = ShownKey(self.key().clone());
        match self {
            Self::Absent { .. } => write!(f, "{key} is absent"),
            Self::Present { .. } => write!(f, "{key} is present"),
            Self::Unchanged { mod_revision, .. } => write!(f, "{key} is as of revision {mod_revision}"),
        }
    }
}

/// The first precondition of a transaction that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// Its place in [`Transaction::preconditions`].
    pub index: usize,
    /// It, whole.
    pub precondition: Precondition,
    /// The `mod_revision` of what was found instead ; `None` when there was nothing.
    pub found: Option<Revision>,
    /// The revision that it was judged at: a read at this revision or later sees what was found.
    pub at: Revision,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "precondition {} does not hold at revision {}: {}, but ", self.index, self.at, self.precondition)?;
        match self.found {
            Some(revision) => write!(f, "it was written by revision {revision}"),
            None => write!(f, "there is none"),
        }
    }
}

/// The bounds of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Operations and preconditions together.
    pub max_ops: usize,
    /// Keys and values together.
    pub max_bytes: usize,
    /// One key, with the revision that it may end in.
    pub max_key_bytes: usize,
    /// The flag that raises `max_ops` where the limit is another program's (etcd: `--max-txn-ops`).
    pub ops_raised_by: Option<&'static str>,
    /// The flag that raises `max_bytes` likewise (etcd: `--max-request-bytes`).
    pub bytes_raised_by: Option<&'static str>,
}

/// Why a transaction is refused by its shape alone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// More than [`Limits::max_ops`].
    #[error("{ops} operations in one transaction, the limit max_ops is {max}{}", raised(*raised_by))]
    TooManyOps {
        /// How many.
        ops: usize,
        /// The limit.
        max: usize,
        /// The flag that raises it.
        raised_by: Option<&'static str>,
    },
    /// More than [`Limits::max_bytes`].
    #[error("{bytes} bytes in one transaction, the limit max_bytes is {max}{}", raised(*raised_by))]
    TooLarge {
        /// How many.
        bytes: usize,
        /// The limit.
        max: usize,
        /// The flag that raises it.
        raised_by: Option<&'static str>,
    },
    /// More than [`Limits::max_key_bytes`].
    #[error("a key of {bytes} bytes, the limit max_key_bytes leaves {max} for it: {key}")]
    LongKey {
        /// How long.
        bytes: usize,
        /// The limit.
        max: usize,
        /// Which.
        key: ShownKey,
    },
    /// A key of no bytes.
    #[error("a key must not be empty")]
    EmptyKey,
    /// A key in two operations: which one wins would be anybody's guess.
    #[error("two operations of one transaction on the key {key}")]
    DuplicateKey {
        /// Which.
        key: ShownKey,
    },
}

fn raised(by: Option<&'static str>) -> String {
    by.map_or_else(String::new, |flag| format!(" (raised by {flag})"))
}

/// A key as it stands in messages: printable text, other bytes escaped, cut at 64 characters.
#[derive(Clone, PartialEq, Eq)]
pub struct ShownKey(pub Bytes);

impl fmt::Display for ShownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.escape_ascii().to_string();
        match whole.get(..64) {
            Some(start) if start.len() < whole.len() => write!(f, "\"{start}…\""),
            _ => write!(f, "\"{whole}\""),
        }
    }
}

impl fmt::Debug for ShownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
