//! Retention of history: images of objects, the audit, and records of requests. They are deleted by age, by number and
//! by total size.
//!
//! An image is an object as it was until another image replaced it. Its age counts from the replacement, so that every
//! state within the retention time can be read. The current image of an existing object is never deleted, whatever its
//! size. If all images together are too large, the images that were replaced first are deleted first, across all
//! objects. Revisions are in the order of time, so this order needs no clock.

use std::collections::{BTreeMap, BinaryHeap};

use serde::Deserialize;

const DAY_MS: u64 = 24 * 3600 * 1000;
const MIB: u64 = 1024 * 1024;
/// A deletion frees the excess plus a slack, which is the limit divided by this number. Otherwise every write at the
/// limit would cause a deletion.
const SLACK_DIVISOR: u64 = 16;
/// The share of one principal in the records of requests is the limit divided by this number. Records of a principal
/// beyond its share are deleted first.
const PRINCIPAL_DIVISOR: u64 = 4;

/// Maximum number of days.
pub const MAX_DAYS: u64 = 36_500;
/// Maximum number of revisions of an object.
pub const MAX_REVISIONS: u64 = 1_000_000;
/// Maximum size, in mebibytes.
pub const MAX_MEBIBYTES: u64 = 1024 * 1024;

/// How much of the history of objects is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryRetention {
    /// How long an image is retained after its replacement, in days.
    pub days: u64,
    /// Maximum number of images of one object, including the current one.
    pub revisions: u64,
    /// Maximum size of all images together, in mebibytes.
    pub mebibytes: u64,
}

/// How much of the audit is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditRetention {
    /// How long an entry is retained, in days.
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

/// An object as it was from one revision on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryImage {
    /// The revision.
    pub revision: u64,
    /// Time of the revision, in milliseconds since 1970.
    pub at_ms: u64,
    /// Size, in bytes.
    pub bytes: u64,
    /// True if this image records that the object was deleted.
    pub is_deletion: bool,
}

/// The decision for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageDecision {
    /// The image is deleted.
    Delete,
    /// The image is retained unless space is needed.
    MayDelete {
        /// The revision that replaced the image or deleted the object.
        over_since: u64,
    },
    /// The image is the current one of an existing object, and is retained.
    Keep,
}

/// Finds the revision up to which the oldest entries must be deleted to free a number of bytes. To use little memory,
/// it stores only the entries up to that revision.
#[derive(Clone, Debug, Default)]
pub struct OldestFinder {
    target_bytes: u64,
    found_bytes: u64,
    /// Revision and bytes of each entry, latest first.
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

    /// Decides which images of one object are deleted. `images` must be all images of the object, in the order of
    /// revisions. To free space, images that were replaced at revision `cutoff` or earlier are deleted too. 0 means
    /// none.
    pub fn decide(&self, images: &[HistoryImage], now_ms: u64, cutoff: u64) -> Vec<ImageDecision> {
        let (limit, count) = (self.limit(), images.len());
        let decide = |(at, image): (usize, &HistoryImage)| {
            let (over_since, over_at_ms) = match images.get(at + 1) {
                Some(next) => (next.revision, next.at_ms),
                None if image.is_deletion => (image.revision, image.at_ms),
                None => return ImageDecision::Keep,
            };
            let is_surplus = (count - at) as u64 > self.revisions;
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
    /// Returns whether an entry that ended at `at_ms` has exceeded the maximum age.
    pub const fn is_expired(&self, at_ms: u64, now_ms: u64) -> bool {
        at_ms.saturating_add(self.age_ms) <= now_ms
    }

    /// Returns how many of `bytes` to delete, including the slack. It is 0 up to the limit.
    pub const fn excess_bytes(&self, bytes: u64) -> u64 {
        if bytes <= self.bytes { 0 } else { bytes - (self.bytes - self.bytes / SLACK_DIVISOR) }
    }

    /// Returns whether a deletion is due. `retained` is the size after the last deletion, which may be over the limit
    /// if entries had to be retained. Another deletion is due only after growth, so that these are not scanned for each
    /// write.
    pub const fn is_due(&self, bytes: u64, retained: u64) -> bool {
        bytes > self.bytes && bytes > retained.saturating_add(self.bytes / SLACK_DIVISOR)
    }
}

impl OldestFinder {
    /// Creates a finder for this number of bytes.
    pub fn new(wanted: u64) -> Self {
        Self { target_bytes: wanted, ..Self::default() }
    }

    /// Adds an entry. The order does not matter.
    pub fn add(&mut self, revision: u64, bytes: u64) {
        if self.target_bytes > 0 {
            self.latest.push((revision, bytes));
            self.found_bytes = self.found_bytes.saturating_add(bytes);
            self.drop_latest();
        }
    }

    /// Returns the revision up to which the oldest entries together have `wanted` bytes. `wanted` is capped at the
    /// target. Returns 0 if nothing is wanted or there are no entries.
    pub fn cutoff_revision(mut self, wanted: u64) -> u64 {
        if wanted == 0 {
            return 0;
        }
        self.target_bytes = self.target_bytes.min(wanted);
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

/// Returns the revision up to which the records of each principal are deleted, so that all records together have at
/// most `limit` bytes. Records of principals with more than a quarter of `limit` are deleted first, so that the writes
/// of one principal cannot displace the records of others. Then the oldest records of all principals are deleted. A
/// record is its revision and its size in bytes.
pub fn cutoff_by_principal<K: Ord + Clone>(records: &BTreeMap<K, Vec<(u64, u64)>>, limit: u64) -> BTreeMap<K, u64> {
    let sum = |entries: &[(u64, u64)]| entries.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let total = records.values().fold(0_u64, |all, entries| all.saturating_add(sum(entries)));
    let mut wanted = RetentionLimit { age_ms: 0, bytes: limit }.excess_bytes(total);
    let mut cutoffs = BTreeMap::new();
    if wanted == 0 {
        return cutoffs;
    }
    for (principal, entries) in records {
        let surplus = sum(entries).saturating_sub(limit / PRINCIPAL_DIVISOR);
        let cutoff = oldest_cutoff(entries.iter().copied(), surplus);
        let freed: u64 = entries.iter().filter(|(revision, _)| *revision <= cutoff).map(|(_, bytes)| bytes).sum();
        wanted = wanted.saturating_sub(freed);
        cutoffs.insert(principal.clone(), cutoff);
    }
    let remaining = records.iter().flat_map(|(principal, entries)| {
        let cutoff = cutoffs.get(principal).copied().unwrap_or_default();
        entries.iter().copied().filter(move |(revision, _)| *revision > cutoff)
    });
    let total_cutoff = oldest_cutoff(remaining, wanted);
    cutoffs.into_iter().map(|(principal, cutoff)| (principal, cutoff.max(total_cutoff))).collect()
}

/// Returns the revision up to which the oldest entries together have `wanted` bytes.
fn oldest_cutoff(entries: impl Iterator<Item = (u64, u64)>, wanted: u64) -> u64 {
    let mut oldest = OldestFinder::new(wanted);
    entries.for_each(|(revision, bytes)| oldest.add(revision, bytes));
    oldest.cutoff_revision(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = DAY_MS;

    fn image(revision: u64, day: u64) -> HistoryImage {
        HistoryImage { revision, at_ms: day * DAY, bytes: 10, is_deletion: false }
    }

    fn deletion(revision: u64, day: u64) -> HistoryImage {
        HistoryImage { is_deletion: true, ..image(revision, day) }
    }

    /// Returns the revisions of the deleted images.
    fn deleted_revisions(keep: HistoryRetention, images: &[HistoryImage], day: u64, up_to: u64) -> Vec<u64> {
        let fates = keep.decide(images, day * DAY, up_to);
        images.iter().zip(fates).filter(|(_, fate)| *fate == ImageDecision::Delete).map(|(image, _)| image.revision).collect()
    }

    #[test]
    fn x03_history_keeps_image_until_age_since_replacement() {
        let keep = HistoryRetention::default();
        let living = [image(3, 1), image(7, 2), image(9, 60)];
        for (day, goes) in [(91, vec![]), (92, vec![3]), (149, vec![3]), (150, vec![3, 7]), (9_999, vec![3, 7])] {
            assert_eq!(deleted_revisions(keep, &living, day, 0), goes, "on day {day}");
        }
        let deleted = [image(3, 1), image(7, 2), deletion(9, 60)];
        for (day, goes) in [(91, vec![]), (92, vec![3]), (149, vec![3]), (150, vec![3, 7, 9])] {
            assert_eq!(deleted_revisions(keep, &deleted, day, 0), goes, "on day {day}, of one that is gone");
        }
        let anew = [image(3, 1), deletion(5, 2), image(9, 3)];
        assert_eq!(deleted_revisions(keep, &anew, 93, 0), [3, 5], "one that was made anew stays");
        assert_eq!(deleted_revisions(keep, &[], 93, 0), [0; 0]);
    }

    #[test]
    fn x03_history_keeps_number_of_revisions() {
        let images: Vec<HistoryImage> = (1..=250).map(|revision| image(revision, 1)).collect();
        assert_eq!(deleted_revisions(HistoryRetention::default(), &images, 1, 0), (1..=150).collect::<Vec<_>>());
        let one = HistoryRetention { revisions: 1, ..HistoryRetention::default() };
        assert_eq!(deleted_revisions(one, &images, 1, 0), (1..=249).collect::<Vec<_>>());
        assert_eq!(deleted_revisions(one, &[image(1, 1), deletion(2, 1)], 1, 0), [1]);
    }

    #[test]
    fn x03_history_deletes_in_order_of_replacement_when_too_large() {
        let keep = HistoryRetention::default();
        let images = [image(3, 1), image(7, 1), image(9, 1)];
        let fates = keep.decide(&images, DAY, 0);
        assert_eq!(
            fates,
            [ImageDecision::MayDelete { over_since: 7 }, ImageDecision::MayDelete { over_since: 9 }, ImageDecision::Keep]
        );
        assert_eq!(deleted_revisions(keep, &images, 1, 6), [0; 0]);
        assert_eq!(deleted_revisions(keep, &images, 1, 7), [3]);
        assert_eq!(deleted_revisions(keep, &images, 1, u64::MAX), [3, 7], "the present one stays, whatever it takes");
        assert_eq!(deleted_revisions(keep, &[image(3, 1), deletion(7, 1)], 1, 7), [3, 7]);
    }

    #[test]
    fn retention_limit_deletes_with_slack_when_exceeded() {
        let keep = RetentionLimit { age_ms: DAY, bytes: 160 };
        for (bytes, excess) in [(0, 0), (160, 0), (161, 11), (320, 170)] {
            assert_eq!(keep.excess_bytes(bytes), excess, "{bytes}");
        }
        for (bytes, left, is_due) in
            [(160, 0, false), (161, 0, true), (161, 151, false), (162, 151, true), (300, 295, false), (306, 295, true)]
        {
            assert_eq!(keep.is_due(bytes, left), is_due, "{bytes} of which {left} were left");
        }
        assert!(keep.is_expired(0, DAY) && !keep.is_expired(1, DAY) && !keep.is_expired(u64::MAX, DAY));
    }

    #[test]
    fn oldest_finder_accepts_records_in_any_order() {
        let all = [(5, 10), (1, 10), (4, 10), (2, 10), (3, 10)];
        for (wanted, up_to) in [(0, 0), (1, 1), (10, 1), (11, 2), (45, 5), (50, 5), (999, 5)] {
            assert_eq!(oldest_cutoff(all.into_iter(), wanted), up_to, "{wanted}");
        }
        let mut some = OldestFinder::new(40);
        for (revision, bytes) in all {
            some.add(revision, bytes);
        }
        assert_eq!(some.latest.len(), 4, "no more are remembered than are wanted");
        assert_eq!((some.clone().cutoff_revision(15), some.cutoff_revision(0)), (2, 0), "fewer may be wanted in the end");
    }

    #[test]
    fn x03_cutoff_by_principal_deletes_first_of_largest_share() {
        let many: Vec<(u64, u64)> = (10..30).map(|revision| (revision, 10)).collect();
        let records = BTreeMap::from([("few", vec![(1, 10), (2, 10)]), ("many", many)]);
        assert_eq!(cutoff_by_principal(&records, 220), BTreeMap::new(), "at the bound nothing goes");
        // `many` has 200 bytes, more than a quarter of 160. 160 bytes of it are deleted, and nothing of `few`.
        assert_eq!(cutoff_by_principal(&records, 160), BTreeMap::from([("few", 0), ("many", 25)]));
        // No principal has more than a quarter, so the oldest of all are deleted.
        let each: BTreeMap<u64, Vec<(u64, u64)>> = (1..9).map(|who| (who, vec![(who, 10), (who + 8, 10)])).collect();
        let over = cutoff_by_principal(&each, 100);
        assert!(over.values().all(|up_to| *up_to == 7), "{over:?}");
    }
}
