//! The results of reads: entries and their revisions. Also the ranges and queries that select them.

use bytes::Bytes;

/// The number of a state of a store. Each commit that changes something makes a new state, with the next number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, derive_more::Display)]
pub struct Revision(u64);

impl Revision {
    /// The revision of a new fleet's store before its first commit.
    pub const ZERO: Self = Self(0);

    /// Creates a revision from its number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the revision, as in `resource_version`.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the next revision, or the maximum if this is the maximum. After a list, a caller watches from the
    /// revision after that of the list.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns eight bytes that sort in the order of revisions. The keys of stored object versions and of audit events
    /// end in these bytes.
    pub const fn to_key(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// The identity of the first epoch of a fleet: the bytes of a random UUID, which the creator of a store supplies. A
/// restored store has the same bytes. Later epochs are in the history of epochs, which is a record in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{:032x}", u128::from_be_bytes(*_0))]
pub struct Epoch([u8; 16]);

impl Epoch {
    /// Creates an epoch from 16 bytes. The bytes must be random, because two fleets must never share an epoch.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the epoch, in the form in which signatures include them.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A key, its value and its version, and the revisions of its first and last write. The fields are named as in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// The value that was last put.
    pub value: Bytes,
    /// The revision that created the entry. If the entry was deleted and created again, this is the last creation.
    pub create_revision: Revision,
    /// The revision that last wrote the entry.
    pub mod_revision: Revision,
    /// Number of writes of the entry since its creation. The creation is the first write.
    pub version: u64,
}

impl Entry {
    /// Returns the size of the key and the value, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// A range of keys, from `start` (included) to `end` (excluded) or to the last key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key of the range.
    pub start: Bytes,
    /// The first key after the range, or `None` for a range without an end.
    pub end: Option<Bytes>,
}

impl KeyRange {
    /// Creates the range of all keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = after_prefix(&start);
        Self { start, end }
    }

    /// Returns the part of this range after `key`. If `key` is the last key of a page, this is the range of the next
    /// page. The result never begins before this range.
    #[must_use]
    pub fn after(mut self, key: &[u8]) -> Self {
        // The smallest key that is greater than `key` has one zero byte more.
        let start = [key, &[0]].concat();
        if start.as_slice() > self.start.as_ref() {
            self.start = start.into();
        }
        self
    }

    /// Returns the part of this range before `key`. If `key` is the last key of a descending page, this is the range of
    /// the next page. The result never ends after this range.
    #[must_use]
    pub fn before(mut self, key: &[u8]) -> Self {
        if self.end.as_ref().is_none_or(|end| key < end.as_ref()) {
            self.end = Some(Bytes::copy_from_slice(key));
        }
        self
    }

    /// Returns whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// Returns the first key after all keys that begin with `prefix`. Returns `None` if no such key exists, because
/// `prefix` is empty or all of its bytes are 255.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last_index = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last_index].to_vec();
    end[last_index] += 1;
    Some(end.into())
}

/// The order in which a list returns entries: ascending or descending by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortOrder {
    /// From the first key to the last.
    #[default]
    Ascending,
    /// From the last key to the first. If the keys end in a revision, the newest entries are listed first.
    Descending,
}

/// The query of a list: the range of keys, the limits and the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    /// The range of keys.
    pub range: KeyRange,
    /// Maximum number of entries, or `None` for no limit.
    pub limit: Option<usize>,
    /// Maximum size of all returned keys and values together, in bytes, or `None` for no limit. The first entry is
    /// returned even if its size exceeds this limit.
    pub max_bytes: Option<usize>,
    /// The direction in which the keys are listed.
    pub order: SortOrder,
}

impl ListQuery {
    /// Creates a query for all entries of a range, in ascending order.
    pub const fn range(range: KeyRange) -> Self {
        Self { range, limit: None, max_bytes: None, order: SortOrder::Ascending }
    }

    /// Creates a query for all entries whose keys begin with `prefix`, in ascending order.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::range(KeyRange::prefix(prefix))
    }

    /// Limits the number of entries that the query returns.
    #[must_use]
    pub const fn with_limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Limits the size of all returned keys and values together, in bytes. The first entry is returned even if its size
    /// exceeds this limit.
    #[must_use]
    pub const fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Makes the query list its entries from the last key to the first.
    #[must_use]
    pub const fn descending(mut self) -> Self {
        self.order = SortOrder::Descending;
        self
    }
}

/// The result of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryList {
    /// The entries, in the requested direction.
    pub entries: Vec<Entry>,
    /// The revision at which the entries were read.
    pub revision: Revision,
    /// True if a limit cut the list, so that more entries exist. The range of the next page comes from
    /// [`KeyRange::after`] with the last returned key. For a descending list it comes from [`KeyRange::before`].
    pub has_more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case is a prefix, and the end of its range. To form the end, the last byte of the prefix that is not 255 is
    /// increased by one, and the bytes after it are dropped. The byte after `/` is `0`.
    #[test]
    fn prefix_range_ends_after_last_key_of_prefix() {
        let cases: [(&[u8], Option<&[u8]>); 5] =
            [(b"a/", Some(b"a0")), (b"a", Some(b"b")), (b"", None), (&[0xff, 0xff], None), (&[b'a', 0xff], Some(b"b"))];
        for (prefix, end) in cases {
            assert_eq!(KeyRange::prefix(prefix).end.as_deref(), end, "{prefix:?}");
        }
    }

    /// `after` and `before` exclude the given key, and never extend the range beyond its old limits.
    #[test]
    fn key_range_only_narrows_when_paging() {
        let range = KeyRange::prefix("b/");
        let contains = |range: KeyRange, key: &[u8]| key >= &*range.start && range.end.is_none_or(|end| key < &*end);
        assert!(contains(range.clone().after(b"a"), b"b/"));
        assert!(!contains(range.clone().after(b"b/1"), b"b/1"));
        assert!(contains(range.clone().after(b"b/1"), b"b/1\0"));
        assert!(!contains(range.clone().before(b"b/1"), b"b/1"));
        assert!(!contains(range.clone().before(b"z"), b"c"));
        assert!(range.after(b"c").is_empty());
    }

    #[test]
    fn revision_keys_sort_as_revisions() {
        assert!(Revision::new(255).to_key() < Revision::new(256).to_key());
    }

    #[test]
    fn epoch_displays_32_hex_digits() {
        let mut bits = [0; 16];
        bits[15] = 0x2a;
        assert_eq!(Epoch::new(bits).to_string(), "0000000000000000000000000000002a");
    }
}
