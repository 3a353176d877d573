//! Transactions, and the checks of them that do not read the store.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use thiserror::Error;

use super::entry::Revision;

/// Operations on entries, and preconditions for the operations. Either all operations are done, or none.
///
/// One write of the API is one transaction. It contains the changed objects, an image of each for the history, an audit
/// event and, for a request with an idempotency key, the record by which a repetition is recognized.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The preconditions. All are checked before the first operation.
    pub preconditions: Vec<Precondition>,
    /// The operations. [`Self::check`] refuses a key that is in two of them. Deletes are done first.
    pub ops: Vec<Op>,
}

impl Transaction {
    /// Creates a transaction without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a precondition.
    #[must_use]
    pub fn require(mut self, precondition: Precondition) -> Self {
        self.preconditions.push(precondition);
        self
    }

    /// Adds an operation that writes an entry.
    #[must_use]
    pub fn put(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.ops.push(Op::Put { key: key.into(), value: value.into() });
        self
    }

    /// Adds an operation that writes an entry at `prefix` followed by the eight big-endian bytes of this commit's
    /// revision.
    #[must_use]
    pub fn put_at_revision(mut self, prefix: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.ops.push(Op::PutAtRevision { prefix: prefix.into(), value: value.into() });
        self
    }

    /// Adds an operation that deletes an entry, if it exists.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Bytes>) -> Self {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }

    /// Returns the operations in the order in which they are done. Deletes are first, so that no delete removes an
    /// entry that the same commit writes.
    pub(super) fn ordered_ops(&self) -> impl Iterator<Item = &Op> {
        self.ops.iter().filter(|op| op.is_delete()).chain(self.ops.iter().filter(|op| !op.is_delete()))
    }

    /// Returns the size that [`TransactionLimits::max_bytes`] limits, in bytes: all keys and values, and the keys of
    /// the preconditions.
    pub fn size_bytes(&self) -> usize {
        let preconditions: usize = self.preconditions.iter().map(|p| p.key().len()).sum();
        preconditions + self.ops.iter().map(Op::size_bytes).sum::<usize>()
    }

    /// Checks, before anything is written, that an engine can commit this transaction.
    ///
    /// # Errors
    /// [`Refusal`] that names the exceeded limit or the invalid key.
    pub fn check(&self, limits: &TransactionLimits) -> Result<(), Refusal> {
        // The limit includes the preconditions.
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

    /// Checks that no operation's key is empty or too long, and that no two could have the same key at some revision.
    fn check_keys(&self, limits: &TransactionLimits) -> Result<(), Refusal> {
        let mut keys = HashSet::with_capacity(self.ops.len());
        let mut prefixes = HashSet::new();
        for op in &self.ops {
            let (key, max_bytes) = match op {
                Op::Put { key, .. } | Op::Delete { key } => (key, limits.max_key_bytes),
                Op::PutAtRevision { prefix, .. } => (prefix, limits.max_key_bytes.saturating_sub(REVISION_BYTES)),
            };
            if key.is_empty() {
                return Err(Refusal::EmptyKey);
            }
            if key.len() > max_bytes {
                return Err(Refusal::LongKey { bytes: key.len(), max: max_bytes, key: KeyDisplay(key.clone()) });
            }
            let known_keys = if matches!(op, Op::PutAtRevision { .. }) { &mut prefixes } else { &mut keys };
            if !known_keys.insert(key.as_ref()) {
                return Err(Refusal::DuplicateKey { key: KeyDisplay(key.clone()) });
            }
        }
        // The key of a `PutAtRevision` ends in the revision of this commit, which is not known yet. So a `Put` is
        // refused if its key is such a prefix with any revision after it. Otherwise it would depend on chance whether
        // the two write one key. A delete of such a key is allowed: it is done before the puts, and finds only entries
        // of earlier revisions.
        let is_clash = |key: &&[u8]| key.len() > REVISION_BYTES && prefixes.contains(&key[..key.len() - REVISION_BYTES]);
        let mut puts = self.ops.iter().filter_map(|op| match op {
            Op::Put { key, .. } => Some(key.as_ref()),
            Op::PutAtRevision { .. } | Op::Delete { .. } => None,
        });
        match puts.find(is_clash) {
            Some(key) => Err(Refusal::DuplicateKey { key: KeyDisplay(Bytes::copy_from_slice(key)) }),
            None => Ok(()),
        }
    }
}

/// Length of a revision at the end of a key, in bytes.
const REVISION_BYTES: usize = size_of::<Revision>();

/// An operation on one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes an entry, new or existing. Writing the value that the entry already has also creates a revision. A
    /// caller that wants to avoid this must read first.
    Put {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
    },
    /// Writes an entry whose key ends in the revision of this commit, as the keys of stored object versions and of
    /// audit events do.
    ///
    /// An engine that does not know the revision of a commit in advance (etcd) may store the entry under another key,
    /// as long as reads and watches show the key that ends in the revision.
    PutAtRevision {
        /// The key without the revision.
        prefix: Bytes,
        /// The value.
        value: Bytes,
    },
    /// Deletes an entry, if it exists.
    Delete {
        /// The key.
        key: Bytes,
    },
}

impl Op {
    /// Returns whether the operation deletes an entry.
    fn is_delete(&self) -> bool {
        matches!(self, Self::Delete { .. })
    }

    /// Returns the size of the key and the value, in bytes. The key of a `PutAtRevision` includes the revision.
    fn size_bytes(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::PutAtRevision { prefix, value } => prefix.len() + REVISION_BYTES + value.len(),
            Self::Delete { key } => key.len(),
        }
    }
}

/// A condition on one entry. A transaction is committed only if all of its conditions hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// The entry does not exist.
    Absent {
        /// The key of the entry.
        key: Bytes,
    },
    /// The entry exists, with any value.
    Present {
        /// The key of the entry.
        key: Bytes,
    },
    /// The entry exists and was last written at this revision, so it has not changed since the caller read it.
    Unchanged {
        /// The key of the entry.
        key: Bytes,
        /// The `mod_revision` of the entry when the caller read it: the revision that had last written the entry.
        mod_revision: Revision,
    },
}

impl Precondition {
    /// Creates a [`Precondition::Absent`].
    pub fn absent(key: impl Into<Bytes>) -> Self {
        Self::Absent { key: key.into() }
    }

    /// Creates a [`Precondition::Present`].
    pub fn present(key: impl Into<Bytes>) -> Self {
        Self::Present { key: key.into() }
    }

    /// Creates a [`Precondition::Unchanged`].
    pub fn unchanged(key: impl Into<Bytes>, mod_revision: Revision) -> Self {
        Self::Unchanged { key: key.into(), mod_revision }
    }

    /// Creates the precondition that an entry has not changed since the caller read it. `read_revision` is the
    /// `mod_revision` of the entry at that time, or `None` if the entry did not exist and must still not exist.
    pub fn unchanged_since(key: impl Into<Bytes>, read_revision: Option<Revision>) -> Self {
        match read_revision {
            Some(revision) => Self::unchanged(key, revision),
            None => Self::absent(key),
        }
    }

    /// Returns the key of the entry that the precondition is about.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Absent { key } | Self::Present { key } | Self::Unchanged { key, .. } => key,
        }
    }
}

impl fmt::Display for Precondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = KeyDisplay(self.key().clone());
        match self {
            Self::Absent { .. } => write!(f, "{key} is absent"),
            Self::Present { .. } => write!(f, "{key} is present"),
            Self::Unchanged { mod_revision, .. } => write!(f, "{key} is as of revision {mod_revision}"),
        }
    }
}

/// The first precondition of a transaction that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetPrecondition {
    /// The index of the precondition in [`Transaction::preconditions`].
    pub index: usize,
    /// The precondition.
    pub precondition: Precondition,
    /// The `mod_revision` of the existing entry, or `None` if there is none.
    pub found: Option<Revision>,
    /// The revision of the store at which the precondition was checked. A read at this revision returns the entry that
    /// `found` describes.
    pub at: Revision,
}

impl fmt::Display for UnmetPrecondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "precondition {} does not hold at revision {}: {}, but ", self.index, self.at, self.precondition)?;
        match self.found {
            Some(revision) => write!(f, "it was written by revision {revision}"),
            None => write!(f, "it does not exist"),
        }
    }
}

/// The limits of one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionLimits {
    /// Maximum number of operations and preconditions together.
    pub max_ops: usize,
    /// Maximum total size of all keys and values of a transaction, in bytes. The keys of the preconditions count too.
    pub max_bytes: usize,
    /// Maximum length of an operation's key, in bytes, with the revision that a `PutAtRevision` appends to its prefix.
    pub max_key_bytes: usize,
    /// The flag that raises `max_ops`, if the limit is that of another program (etcd: `--max-txn-ops`).
    pub ops_raised_by: Option<&'static str>,
    /// The flag that raises `max_bytes`, if the limit is that of another program (etcd: `--max-request-bytes`).
    pub bytes_raised_by: Option<&'static str>,
}

/// The reason why a transaction is refused without a read of the store.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The transaction has more operations and preconditions than [`TransactionLimits::max_ops`].
    #[error("{ops} operations in one transaction, the limit max_ops is {max}{}", raise_advice(*raised_by))]
    TooManyOps {
        /// Number of operations and preconditions.
        ops: usize,
        /// The limit.
        max: usize,
        /// The flag of another program (etcd) that raises the limit, or `None` if the limit is Stemma's own.
        raised_by: Option<&'static str>,
    },
    /// The transaction is larger than [`TransactionLimits::max_bytes`].
    #[error("{bytes} bytes in one transaction, the limit max_bytes is {max}{}", raise_advice(*raised_by))]
    TooLarge {
        /// Size of the transaction, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        max: usize,
        /// The flag of another program (etcd) that raises the limit, or `None` if the limit is Stemma's own.
        raised_by: Option<&'static str>,
    },
    /// A key is longer than [`TransactionLimits::max_key_bytes`].
    #[error("a key of {bytes} bytes, but the limit max_key_bytes allows {max}: {key}")]
    LongKey {
        /// Length of the key, in bytes. For a `PutAtRevision`, the length of the prefix, without the revision.
        bytes: usize,
        /// Maximum value of `bytes`. For a prefix, the revision at the end of the key is already subtracted.
        max: usize,
        /// The key, or the prefix of a `PutAtRevision`.
        key: KeyDisplay,
    },
    /// The key of an operation, or the prefix of a `PutAtRevision`, is empty.
    #[error("a key must not be empty")]
    EmptyKey,
    /// Two operations write or delete the same key, or a `Put` writes a key that a `PutAtRevision` could get too.
    #[error("two operations of one transaction on the key {key}")]
    DuplicateKey {
        /// The key, or the prefix if two `PutAtRevision` have the same prefix.
        key: KeyDisplay,
    },
}

/// Returns the end of a message that names the flag that raises a limit, or an empty text if there is no flag.
fn raise_advice(raised_by: Option<&'static str>) -> String {
    raised_by.map_or_else(String::new, |flag| format!(" (raised by {flag})"))
}

/// A key in the form for messages: in quotes, with unprintable bytes escaped, cut to 64 characters.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyDisplay(pub Bytes);

impl fmt::Display for KeyDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.escape_ascii().to_string();
        // The escaped text is ASCII, so a cut after 64 bytes is a cut after 64 characters.
        match whole.get(..64) {
            Some(start) if start.len() < whole.len() => write!(f, "\"{start}…\""),
            _ => write!(f, "\"{whole}\""),
        }
    }
}

impl fmt::Debug for KeyDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
