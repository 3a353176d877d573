//! Retention of history: images of objects, entries of the audit, and records of requests. All three are deleted by age
//! and by total size, and images also by number.
//!
//! An image is the state of an object from one revision until another image replaces it. Its age is counted from the
//! replacement, so that every state within the retention time can be read. The current image of an existing object is
//! never deleted, whatever its size. If all images together are too large, the images that were replaced first are
//! deleted first, across all objects. Revisions are in the order of time, so this order needs no clock.

use std::collections::{BTreeMap, BinaryHeap};

use serde::Deserialize;

const DAY_MS: u64 = 24 * 3600 * 1000;
const MIB: u64 = 1024 * 1024;
/// A deletion frees the bytes over the limit, and in addition a slack: the limit divided by this number. Without the
/// slack, every write at the limit would cause a deletion.
const SLACK_DIVISOR: u64 = 16;
/// The share of one principal (the user who sends requests) in the records of requests is the limit divided by this
/// number. If the records are too large, those of a principal beyond its share are deleted first.
const PRINCIPAL_DIVISOR: u64 = 4;

/// Maximum retention time that can be configured, in days.
pub const MAX_DAYS: u64 = 36_500;
/// Maximum number of retained states of one object that can be configured.
pub const MAX_REVISIONS: u64 = 1_000_000;
/// Maximum total size that can be configured, in mebibytes.
pub const MAX_MEBIBYTES: u64 = 1024 * 1024;

/// The limits of the retained history of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryRetention {
    /// Time for which an old state of an object is retained after its replacement, in days.
    pub days: u64,
    /// Maximum number of retained states of one object, including the current one.
    pub revisions: u64,
    /// Maximum size of the retained states of all objects together, including the current ones, in mebibytes.
    pub mebibytes: u64,
}

/// The limits of the retained audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditRetention {
    /// Time for which an entry is retained, in days.
    pub days: u64,
    /// Maximum size of all entries together, in mebibytes.
    pub mebibytes: u64,
}

/// Maximum age and total size of retained entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionLimit {
    /// Maximum age, in milliseconds.
    pub age_ms: u64,
    /// Maximum total size, in bytes.
    pub bytes: u64,
}

/// An image: the stored state of an object from one revision until the next image replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryImage {
    /// The revision of the store that wrote the state.
    pub revision: u64,
    /// Time of the revision, in milliseconds since 1970.
    pub at_ms: u64,
    /// Size of the image, in bytes.
    pub bytes: u64,
    /// True if this image records that the object was deleted.
    pub is_deletion: bool,
}

/// The decision whether an image, a stored state of an object, is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageDecision {
    /// The image is deleted.
    Delete,
    /// The image is retained, unless the images of all objects together are too large.
    MayDelete {
        /// The revision at which the image was replaced, or at which the object was deleted.
        over_since: u64,
    },
    /// The image is the current one of an existing object, and is retained.
    Keep,
}

/// Finds the revision up to which the oldest entries must be deleted to free a number of bytes. To use little memory,
/// the finder stores only the entries up to that revision.
#[derive(Clone, Debug, Default)]
pub struct OldestFinder {
    target_bytes: u64,
    found_bytes: u64,
    /// The revision and the size in bytes of each stored entry, the latest first.
    latest: BinaryHeap<(u64, u64)>,
}

impl Default for HistoryRetention {
    fn default() -> Self {
        Self { days: 90, revisions: 100, mebibytes: 1024 }
    }
}

impl Default for AuditRetention {
    fn default() -> Self {
        Self { days: 400, mebibytes: 1024 }
    }
}

impl HistoryRetention {
    /// Returns the maximum age and total size.
    pub const fn limit(&self) -> RetentionLimit {
        RetentionLimit { age_ms: self.days.saturating_mul(DAY_MS), bytes: self.mebibytes.saturating_mul(MIB) }
    }

    /// Returns the decision for each image, a stored state of one object. `images` must be all images of the object, in
    /// the order of revisions.
    ///
    /// An image is deleted if it was replaced too long ago, or if the object has too many later images. To free space,
    /// an image that was replaced at revision `cutoff` or earlier is deleted too. A `cutoff` of 0 frees no space. The
    /// image that records a deletion counts as replaced at its own revision.
    pub fn decide(&self, images: &[HistoryImage], now_ms: u64, cutoff: u64) -> Vec<ImageDecision> {
        let (limit, count) = (self.limit(), images.len());
        let decide = |(position, image): (usize, &HistoryImage)| {
            let (over_since, over_at_ms) = match images.get(position + 1) {
                Some(next) => (next.revision, next.at_ms),
                None if image.is_deletion => (image.revision, image.at_ms),
                None => return ImageDecision::Keep,
            };
            let is_surplus = (count - position) as u64 > self.revisions;
            if is_surplus || over_since <= cutoff || limit.is_expired(over_at_ms, now_ms) {
                ImageDecision::Delete
            } else {
                ImageDecision::MayDelete { over_since }
            }
        };
        images.iter().enumerate().map(decide).collect()
    }
}

impl AuditRetention {
    /// Returns the maximum age and total size.
    pub const fn limit(&self) -> RetentionLimit {
        RetentionLimit { age_ms: self.days.saturating_mul(DAY_MS), bytes: self.mebibytes.saturating_mul(MIB) }
    }
}

impl RetentionLimit {
    /// Returns whether an entry has reached the maximum age at the time `now_ms`. `at_ms` is the time at which its age
    /// began. Both are milliseconds since 1970.
    pub const fn is_expired(&self, at_ms: u64, now_ms: u64) -> bool {
        at_ms.saturating_add(self.age_ms) <= now_ms
    }

    /// Returns the number of bytes to delete if all entries have the size `bytes`: the excess over the limit plus the
    /// slack. Returns 0 if `bytes` is within the limit.
    pub const fn excess_bytes(&self, bytes: u64) -> u64 {
        if bytes <= self.bytes { 0 } else { bytes - (self.bytes - self.bytes / SLACK_DIVISOR) }
    }

    /// Returns whether a deletion is due when all entries have the size `bytes`. `retained` is the size after the last
    /// deletion. It may be over the limit if entries could not be deleted. Another deletion is due only after the size
    /// has grown by the slack, so that not each write scans these entries again.
    pub const fn is_due(&self, bytes: u64, retained: u64) -> bool {
        bytes > self.bytes && bytes > retained.saturating_add(self.bytes / SLACK_DIVISOR)
    }
}

impl OldestFinder {
    /// Creates a finder. `bytes` is the largest number of bytes that [`Self::cutoff_revision`] can be asked to free.
    pub fn new(bytes: u64) -> Self {
        Self { target_bytes: bytes, ..Self::default() }
    }

    /// Adds an entry with its revision and its size in bytes. Entries may be added in any order.
    pub fn add(&mut self, revision: u64, bytes: u64) {
        if self.target_bytes > 0 {
            self.latest.push((revision, bytes));
            self.found_bytes = self.found_bytes.saturating_add(bytes);
            self.drop_latest();
        }
    }

    /// Returns the revision up to which the oldest entries together have at least `bytes_to_free` bytes, or the latest
    /// revision if all entries have less. If `bytes_to_free` is larger than the number given to [`Self::new`], that
    /// number is used instead. Returns 0 if `bytes_to_free` is 0 or there are no entries.
    pub fn cutoff_revision(mut self, bytes_to_free: u64) -> u64 {
        if bytes_to_free == 0 {
            return 0;
        }
        self.target_bytes = self.target_bytes.min(bytes_to_free);
        self.drop_latest();
        self.latest.peek().map_or(0, |(revision, _)| *revision)
    }

    /// Drops the latest entries that are not needed to reach the target.
    fn drop_latest(&mut self) {
        while let Some((_, bytes)) = self.latest.peek()
            && self.found_bytes.saturating_sub(*bytes) >= self.target_bytes
        {
            self.found_bytes = self.found_bytes.saturating_sub(*bytes);
            self.latest.pop();
        }
    }
}

/// Returns, for each principal, the revision up to which its records must be deleted, so that all records together have
/// at most `limit` bytes. Returns an empty map if nothing must be deleted. A record is its revision and its size in
/// bytes.
///
/// The excess of principals with more than a quarter of `limit` is deleted first, so that the writes of one principal
/// cannot displace the records of others. If this is not enough, the oldest records of all principals are deleted.
pub fn cutoff_by_principal<K: Ord + Clone>(records: &BTreeMap<K, Vec<(u64, u64)>>, limit: u64) -> BTreeMap<K, u64> {
    let sum = |entries: &[(u64, u64)]| entries.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let total = records.values().fold(0_u64, |total, entries| total.saturating_add(sum(entries)));
    let mut bytes_to_free = RetentionLimit { age_ms: 0, bytes: limit }.excess_bytes(total);
    let mut cutoffs = BTreeMap::new();
    if bytes_to_free == 0 {
        return cutoffs;
    }
    for (principal, entries) in records {
        let surplus = sum(entries).saturating_sub(limit / PRINCIPAL_DIVISOR);
        let cutoff = oldest_cutoff(entries.iter().copied(), surplus);
        let freed: u64 = entries.iter().filter(|(revision, _)| *revision <= cutoff).map(|(_, bytes)| bytes).sum();
        bytes_to_free = bytes_to_free.saturating_sub(freed);
        cutoffs.insert(principal.clone(), cutoff);
    }
    let remaining = records.iter().flat_map(|(principal, entries)| {
        let cutoff = cutoffs.get(principal).copied().unwrap_or_default();
        entries.iter().copied().filter(move |(revision, _)| *revision > cutoff)
    });
    let total_cutoff = oldest_cutoff(remaining, bytes_to_free);
    cutoffs.into_iter().map(|(principal, cutoff)| (principal, cutoff.max(total_cutoff))).collect()
}

/// Returns the revision up to which the oldest entries together have at least `bytes_to_free` bytes, or 0 if nothing
/// must be freed.
fn oldest_cutoff(entries: impl Iterator<Item = (u64, u64)>, bytes_to_free: u64) -> u64 {
    let mut finder = OldestFinder::new(bytes_to_free);
    entries.for_each(|(revision, bytes)| finder.add(revision, bytes));
    finder.cutoff_revision(bytes_to_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = DAY_MS;

    /// Returns the state that a revision wrote on a day.
    fn image(revision: u64, day: u64) -> HistoryImage {
        HistoryImage { revision, at_ms: day * DAY, bytes: 10, is_deletion: false }
    }

    /// Returns the record that a revision deleted the object on a day.
    fn deletion(revision: u64, day: u64) -> HistoryImage {
        HistoryImage { is_deletion: true, ..image(revision, day) }
    }

    /// Returns the revisions of the images that are deleted on a day. States that were replaced at revision `cutoff` or
    /// earlier are deleted too.
    fn deleted_revisions(retention: HistoryRetention, images: &[HistoryImage], day: u64, cutoff: u64) -> Vec<u64> {
        let decisions = retention.decide(images, day * DAY, cutoff);
        images
            .iter()
            .zip(decisions)
            .filter(|(_, decision)| *decision == ImageDecision::Delete)
            .map(|(image, _)| image.revision)
            .collect()
    }

    /// `image(7, 2)` is the state that revision 7 wrote on day 2. By default, a state is retained for 90 days after its
    /// replacement.
    #[test]
    fn x03_history_keeps_image_until_age_since_replacement() {
        let retention = HistoryRetention::default();
        let existing = [image(3, 1), image(7, 2), image(9, 60)];
        for (day, revisions) in [(91, vec![]), (92, vec![3]), (149, vec![3]), (150, vec![3, 7]), (9_999, vec![3, 7])] {
            assert_eq!(deleted_revisions(retention, &existing, day, 0), revisions, "on day {day}");
        }
        let deleted = [image(3, 1), image(7, 2), deletion(9, 60)];
        for (day, revisions) in [(91, vec![]), (92, vec![3]), (149, vec![3]), (150, vec![3, 7, 9])] {
            assert_eq!(deleted_revisions(retention, &deleted, day, 0), revisions, "on day {day}, of a deleted object");
        }
        let recreated = [image(3, 1), deletion(5, 2), image(9, 3)];
        assert_eq!(deleted_revisions(retention, &recreated, 93, 0), [3, 5], "the present state is retained");
        assert_eq!(deleted_revisions(retention, &[], 93, 0), [0; 0]);
    }

    /// By default, 100 states of an object are retained.
    #[test]
    fn x03_history_keeps_number_of_revisions() {
        let images: Vec<HistoryImage> = (1..=250).map(|revision| image(revision, 1)).collect();
        assert_eq!(deleted_revisions(HistoryRetention::default(), &images, 1, 0), (1..=150).collect::<Vec<_>>());
        let retention_of_one = HistoryRetention { revisions: 1, ..HistoryRetention::default() };
        assert_eq!(deleted_revisions(retention_of_one, &images, 1, 0), (1..=249).collect::<Vec<_>>());
        assert_eq!(deleted_revisions(retention_of_one, &[image(1, 1), deletion(2, 1)], 1, 0), [1]);
    }

    /// The last argument of `deleted_revisions` is the cutoff: states that were replaced at this revision or earlier
    /// are deleted.
    #[test]
    fn x03_history_deletes_in_order_of_replacement_when_too_large() {
        let retention = HistoryRetention::default();
        let images = [image(3, 1), image(7, 1), image(9, 1)];
        let decisions = retention.decide(&images, DAY, 0);
        assert_eq!(
            decisions,
            [ImageDecision::MayDelete { over_since: 7 }, ImageDecision::MayDelete { over_since: 9 }, ImageDecision::Keep]
        );
        assert_eq!(deleted_revisions(retention, &images, 1, 6), [0; 0]);
        assert_eq!(deleted_revisions(retention, &images, 1, 7), [3]);
        assert_eq!(deleted_revisions(retention, &images, 1, u64::MAX), [3, 7], "the current state is retained");
        assert_eq!(deleted_revisions(retention, &[image(3, 1), deletion(7, 1)], 1, 7), [3, 7]);
    }

    #[test]
    fn retention_limit_decides_excess_deletion_and_expiry() {
        let limit = RetentionLimit { age_ms: DAY, bytes: 160 };
        for (bytes, excess) in [(0, 0), (160, 0), (161, 11), (320, 170)] {
            assert_eq!(limit.excess_bytes(bytes), excess, "{bytes}");
        }
        for (bytes, retained, is_due) in
            [(160, 0, false), (161, 0, true), (161, 151, false), (162, 151, true), (300, 295, false), (306, 295, true)]
        {
            assert_eq!(limit.is_due(bytes, retained), is_due, "{bytes} of which {retained} were left");
        }
        assert!(limit.is_expired(0, DAY) && !limit.is_expired(1, DAY) && !limit.is_expired(u64::MAX, DAY));
    }

    #[test]
    fn oldest_finder_accepts_records_in_any_order() {
        // Each record has a revision and its size in bytes.
        let records = [(5, 10), (1, 10), (4, 10), (2, 10), (3, 10)];
        for (bytes_to_free, cutoff) in [(0, 0), (1, 1), (10, 1), (11, 2), (45, 5), (50, 5), (999, 5)] {
            assert_eq!(oldest_cutoff(records.into_iter(), bytes_to_free), cutoff, "{bytes_to_free}");
        }
        let mut finder = OldestFinder::new(40);
        for (revision, bytes) in records {
            finder.add(revision, bytes);
        }
        assert_eq!(finder.latest.len(), 4, "the finder stores only the entries that it needs");
        assert_eq!((finder.clone().cutoff_revision(15), finder.cutoff_revision(0)), (2, 0), "fewer bytes may be requested");
    }

    /// Each record has a revision and its size in bytes. The expected number of a principal is the revision up to which
    /// its records are deleted, or 0 if none is.
    #[test]
    fn x03_cutoff_by_principal_deletes_first_of_largest_share() {
        let many: Vec<(u64, u64)> = (10..30).map(|revision| (revision, 10)).collect();
        let records = BTreeMap::from([("few", vec![(1, 10), (2, 10)]), ("many", many)]);
        assert_eq!(cutoff_by_principal(&records, 220), BTreeMap::new(), "at the limit nothing is deleted");
        // `many` has 200 bytes, more than a quarter of 160. 160 bytes of it are deleted, and nothing of `few`.
        assert_eq!(cutoff_by_principal(&records, 160), BTreeMap::from([("few", 0), ("many", 25)]));
        // No principal has more than a quarter, so the oldest of all are deleted.
        let records_by_principal: BTreeMap<u64, Vec<(u64, u64)>> =
            (1..9).map(|principal| (principal, vec![(principal, 10), (principal + 8, 10)])).collect();
        let cutoffs = cutoff_by_principal(&records_by_principal, 100);
        assert!(cutoffs.values().all(|cutoff| *cutoff == 7), "{cutoffs:?}");
    }
}
