//! What a read gives: entries, the revisions they carry, and the ranges they are asked for by.

use bytes::Bytes;

/// A point in the one history of a store. Every commit that changes something makes the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, derive_more::Display)]
pub struct Revision(u64);

impl Revision {
    /// Before anything was written.
    pub const ZERO: Self = Self(0);

    /// The revision of this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number, as it stands in `resource_version`.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one after it: where a watch goes on after a list. It stops at the last number there is.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The eight bytes that sort as revisions do, which keys under history and audit end in.
    pub const fn to_key(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// The identity of one line of revisions: 128 random bits that whoever creates a store brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{:032x}", u128::from_be_bytes(*_0))]
pub struct Epoch([u8; 16]);

impl Epoch {
    /// The epoch of these bits, which must be random: two fleets must never share one.
    pub const fn new(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// Its bits, as they are signed.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// One key, its value, and what is known of how it came to be (etcd's `create_revision`, `mod_revision`, `version`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// What was last put there.
    pub value: Bytes,
    /// The revision that made it, since it was last absent.
    pub create_revision: Revision,
    /// The revision that last wrote it.
    pub mod_revision: Revision,
    /// How often it was written since it was last absent; 1 for one that was never changed.
    pub version: u64,
}

impl Entry {
    /// What it takes: its key and its value.
    pub fn size_bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// A range of keys: from `start`, which is in it, to `end`, which is not, or to the last key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key that may be in it.
    pub start: Bytes,
    /// The first key that is no longer in it; `None` is no end.
    pub end: Option<Bytes>,
}

impl KeyRange {
    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = after_prefix(&start);
        Self { start, end }
    }

    /// The part of this range behind `key`: where the next page of a list begins.
    #[must_use]
    pub fn after(mut self, key: &[u8]) -> Self {
        let behind = [key, &[0]].concat();
        if behind.as_slice() > self.start.as_ref() {
            self.start = behind.into();
        }
        self
    }

    /// The part of this range before `key`: the next page of a list that runs backwards.
    #[must_use]
    pub fn before(mut self, key: &[u8]) -> Self {
        if self.end.as_ref().is_none_or(|end| key < end.as_ref()) {
            self.end = Some(Bytes::copy_from_slice(key));
        }
        self
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// The first key behind all that begin with `prefix`; none, when it is empty or all ones.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// Which way a list runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// From the first key on.
    #[default]
    Ascending,
    /// From the last key back: the newest of a history first.
    Descending,
}

/// What a list is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The keys.
    pub range: KeyRange,
    /// At most so many entries; `None` is all of them.
    pub limit: Option<usize>,
    /// At most so many bytes of keys and values together, and one entry where that alone has more; `None` is all of them.
    pub bytes: Option<usize>,
    /// From which end.
    pub order: Order,
}

impl Query {
    /// All entries of a range, ascending.
    pub const fn range(range: KeyRange) -> Self {
        Self { range, limit: None, bytes: None, order: Order::Ascending }
    }

    /// All entries whose keys begin with `prefix`, ascending.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::range(KeyRange::prefix(prefix))
    }

    /// The same, at most so many.
    #[must_use]
    pub const fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The same, at most so many bytes, and one entry where that alone has more.
    #[must_use]
    pub const fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// The same, from the last key back.
    #[must_use]
    pub const fn descending(mut self) -> Self {
        self.order = Order::Descending;
        self
    }
}

/// What a list gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// In the order asked for.
    pub entries: Vec<Entry>,
    /// The revision it was read at.
    pub revision: Revision,
    /// Whether a limit cut it: go on with [`KeyRange::after`] (or `before`) the last key.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_range_ends_behind_the_last_key_with_that_prefix() {
        let cases: [(&[u8], Option<&[u8]>); 5] =
            [(b"a/", Some(b"a0")), (b"a", Some(b"b")), (b"", None), (&[0xff, 0xff], None), (&[b'a', 0xff], Some(b"b"))];
        for (prefix, end) in cases {
            assert_eq!(KeyRange::prefix(prefix).end.as_deref(), end, "{prefix:?}");
        }
    }

    #[test]
    fn a_range_is_narrowed_and_never_widened_by_paging() {
        let range = KeyRange::prefix("b/");
        let is_in = |range: KeyRange, key: &[u8]| key >= &*range.start && range.end.is_none_or(|end| key < &*end);
        assert!(is_in(range.clone().after(b"a"), b"b/"));
        assert!(!is_in(range.clone().after(b"b/1"), b"b/1"));
        assert!(is_in(range.clone().after(b"b/1"), b"b/1\0"));
        assert!(!is_in(range.clone().before(b"b/1"), b"b/1"));
        assert!(!is_in(range.clone().before(b"z"), b"c"));
        assert!(range.after(b"c").is_empty());
    }

    #[test]
    fn revisions_sort_as_the_keys_that_end_in_them() {
        assert!(Revision::new(255).to_key() < Revision::new(256).to_key());
    }

    #[test]
    fn an_epoch_is_shown_as_32_digits() {
        let mut bits = [0; 16];
        bits[15] = 0x2a;
        assert_eq!(Epoch::new(bits).to_string(), "0000000000000000000000000000002a");
    }
}
