//! What is kept of what was: images of objects, the audit, records of requests. It goes by age, by number, and by what it takes together.
//!
//! An image says what an object was until another took its place: so its age counts from then, and all that was so within that time can be
//! asked for. The present image of a living object stays, whatever it takes. Where all images together take too much, those go first that
//! were replaced first, whosever they are. Revisions are in the order of time, so "first" needs no clock.

use std::collections::{BTreeMap, BinaryHeap};

use serde::Deserialize;

const DAY_MS: u64 = 24 * 3600 * 1000;
const MIB: u64 = 1024 * 1024;
/// Beyond its bound so much more goes, as a part of the bound: else each write would make something go.
const SLACK: u64 = 16;
/// Of the records of requests one principal has so much, as a part of all, before those of others go for want of room.
const SHARE: u64 = 4;

/// The most days that can be said.
pub const MAX_DAYS: u64 = 36_500;
/// The most revisions of an object.
pub const MAX_REVISIONS: u64 = 1_000_000;
/// The most mebibytes.
pub const MAX_MEBIBYTES: u64 = 1024 * 1024;

/// How much of the history of objects is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryKeep {
    /// For how long an image is kept after another took its place.
    pub days: u64,
    /// How many images of one object are kept, the present one among them.
    pub revisions: u64,
    /// How much all images may take together.
    pub mebibytes: u64,
}

/// How much of the audit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditKeep {
    /// For how long an entry is kept.
    pub days: u64,
    /// How much all entries may take together.
    pub mebibytes: u64,
}

/// For how long something is kept, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// For how long, in milliseconds.
    pub age_ms: u64,
    /// How much of it together, in bytes.
    pub bytes: u64,
}

/// An object as it was from one revision on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// The revision.
    pub revision: u64,
    /// When that was, in milliseconds since 1970.
    pub at_ms: u64,
    /// What it takes.
    pub bytes: u64,
    /// Whether it says that the object is gone.
    pub is_gone: bool,
}

/// What becomes of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes.
    Goes,
    /// It stays unless room is wanted.
    MayGo {
        /// The revision that took its place, or by which the object went.
        over_since: u64,
    },
    /// It is what a living object is.
    Stays,
}

/// Finds the revision up to which things go, so that the oldest go and so many bytes with them. It remembers no more than those.
#[derive(Clone, Debug, Default)]
pub struct Oldest {
    wanted: u64,
    found: u64,
    /// Revision and bytes of each, the latest first.
    latest: BinaryHeap<(u64, u64)>,
}

impl Default for HistoryKeep {
    fn default() -> Self {
        Self { days: 90, revisions: 100, mebibytes: 1024 }
    }
}

impl Default for AuditKeep {
    fn default() -> Self {
        Self { days: 400, mebibytes: 1024 }
    }
}

impl HistoryKeep {
    /// For how long, and how much together.
    pub const fn keep(&self) -> Keep {
        Keep { age_ms: self.days.saturating_mul(DAY_MS), bytes: self.mebibytes.saturating_mul(MIB) }
    }

    /// What becomes of each image of one object. They are all that there are of it, in the order of revisions. For want of room those go
    /// that are over since this revision or an earlier one; 0: none.
    pub fn judge(&self, images: &[Image], now_ms: u64, up_to: u64) -> Vec<Fate> {
        let (keep, count) = (self.keep(), images.len());
        let fate = |(at, image): (usize, &Image)| {
            let (over_since, over_at_ms) = match images.get(at + 1) {
                Some(next) => (next.revision, next.at_ms),
                None if image.is_gone => (image.revision, image.at_ms),
                None => return Fate::Stays,
            };
            let is_surplus = (count - at) as u64 > self.revisions;
            if is_surplus || over_since <= up_to || keep.is_old(over_at_ms, now_ms) {
                Fate::Goes
            } else {
                Fate::MayGo { over_since }
            }
        };
        images.iter().enumerate().map(fate).collect()
    }
}

impl AuditKeep {
    /// For how long, and how much together.
    pub const fn keep(&self) -> Keep {
        Keep { age_ms: self.days.saturating_mul(DAY_MS), bytes: self.mebibytes.saturating_mul(MIB) }
    }
}

impl Keep {
    /// Whether what was over then is kept no longer.
    pub const fn is_old(&self, at_ms: u64, now_ms: u64) -> bool {
        at_ms.saturating_add(self.age_ms) <= now_ms
    }

    /// How many bytes are to go where there are so many: none up to the bound.
    pub const fn excess(&self, bytes: u64) -> u64 {
        if bytes <= self.bytes { 0 } else { bytes - (self.bytes - self.bytes / SLACK) }
    }

    /// Whether something is to go now, where so many bytes were left the last time: what has to stay is not looked through again and again.
    pub const fn is_due(&self, bytes: u64, left: u64) -> bool {
        bytes > self.bytes && bytes > left.saturating_add(self.bytes / SLACK)
    }
}

impl Oldest {
    /// Looks for so many bytes.
    pub fn new(wanted: u64) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Takes one into account, in any order.
    pub fn see(&mut self, revision: u64, bytes: u64) {
        if self.wanted > 0 {
            self.latest.push((revision, bytes));
            self.found = self.found.saturating_add(bytes);
            self.leave_out();
        }
    }

    /// The revision up to which those go that make up so many bytes, which are no more than were looked for; 0 where there are none.
    pub fn up_to(mut self, wanted: u64) -> u64 {
        if wanted == 0 {
            return 0;
        }
        self.wanted = self.wanted.min(wanted);
        self.leave_out();
        self.latest.peek().map_or(0, |(revision, _)| *revision)
    }

    /// Forgets the latest ones, without which there are enough.
    fn leave_out(&mut self) {
        while let Some((_, bytes)) = self.latest.peek()
            && self.found.saturating_sub(*bytes) >= self.wanted
        {
            self.found = self.found.saturating_sub(*bytes);
            self.latest.pop();
        }
    }
}

/// Up to which revision the records of each principal go, so that all together take no more than `most`: first of those who have more than a
/// quarter of it, so that nobody's writes make those of others be forgotten, then the oldest of all. Records are revision and bytes.
pub fn over_of_each<K: Ord + Clone>(records: &BTreeMap<K, Vec<(u64, u64)>>, most: u64) -> BTreeMap<K, u64> {
    let sum = |own: &[(u64, u64)]| own.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let all = records.values().fold(0_u64, |all, own| all.saturating_add(sum(own)));
    let mut wanted = Keep { age_ms: 0, bytes: most }.excess(all);
    let mut over = BTreeMap::new();
    if wanted == 0 {
        return over;
    }
    for (who, own) in records {
        let surplus = sum(own).saturating_sub(most / SHARE);
        let up_to = oldest(own.iter().copied(), surplus);
        let gone: u64 = own.iter().filter(|(revision, _)| *revision <= up_to).map(|(_, bytes)| bytes).sum();
        wanted = wanted.saturating_sub(gone);
        over.insert(who.clone(), up_to);
    }
    let left = records.iter().flat_map(|(who, own)| {
        let up_to = over.get(who).copied().unwrap_or_default();
        own.iter().copied().filter(move |(revision, _)| *revision > up_to)
    });
    let of_all = oldest(left, wanted);
    over.into_iter().map(|(who, up_to)| (who, up_to.max(of_all))).collect()
}

/// The revision up to which the oldest go that make up so many bytes.
fn oldest(all: impl Iterator<Item = (u64, u64)>, wanted: u64) -> u64 {
    let mut oldest = Oldest::new(wanted);
    all.for_each(|(revision, bytes)| oldest.see(revision, bytes));
    oldest.up_to(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = DAY_MS;

    fn image(revision: u64, day: u64) -> Image {
        Image { revision, at_ms: day * DAY, bytes: 10, is_gone: false }
    }

    fn gone(revision: u64, day: u64) -> Image {
        Image { is_gone: true, ..image(revision, day) }
    }

    /// The revisions of the images that go.
    fn going(keep: HistoryKeep, images: &[Image], day: u64, up_to: u64) -> Vec<u64> {
        let fates = keep.judge(images, day * DAY, up_to);
        images.iter().zip(fates).filter(|(_, fate)| *fate == Fate::Goes).map(|(image, _)| image.revision).collect()
    }

    #[test]
    fn x03_history_is_kept_by_the_age_since_it_was_replaced_and_the_present_stays() {
        let keep = HistoryKeep::default();
        let living = [image(3, 1), image(7, 2), image(9, 60)];
        for (day, goes) in [(91, vec![]), (92, vec![3]), (149, vec![3]), (150, vec![3, 7]), (9_999, vec![3, 7])] {
            assert_eq!(going(keep, &living, day, 0), goes, "on day {day}");
        }
        let deleted = [image(3, 1), image(7, 2), gone(9, 60)];
        for (day, goes) in [(91, vec![]), (92, vec![3]), (149, vec![3]), (150, vec![3, 7, 9])] {
            assert_eq!(going(keep, &deleted, day, 0), goes, "on day {day}, of one that is gone");
        }
        let anew = [image(3, 1), gone(5, 2), image(9, 3)];
        assert_eq!(going(keep, &anew, 93, 0), [3, 5], "one that was made anew stays");
        assert_eq!(going(keep, &[], 93, 0), [0; 0]);
    }

    #[test]
    fn x03_history_is_kept_by_the_number_of_revisions() {
        let images: Vec<Image> = (1..=250).map(|revision| image(revision, 1)).collect();
        assert_eq!(going(HistoryKeep::default(), &images, 1, 0), (1..=150).collect::<Vec<_>>());
        let one = HistoryKeep { revisions: 1, ..HistoryKeep::default() };
        assert_eq!(going(one, &images, 1, 0), (1..=249).collect::<Vec<_>>());
        assert_eq!(going(one, &[image(1, 1), gone(2, 1)], 1, 0), [1]);
    }

    #[test]
    fn x03_history_is_kept_by_its_size_and_goes_in_the_order_in_which_it_was_replaced() {
        let keep = HistoryKeep::default();
        let images = [image(3, 1), image(7, 1), image(9, 1)];
        let fates = keep.judge(&images, DAY, 0);
        assert_eq!(fates, [Fate::MayGo { over_since: 7 }, Fate::MayGo { over_since: 9 }, Fate::Stays]);
        assert_eq!(going(keep, &images, 1, 6), [0; 0]);
        assert_eq!(going(keep, &images, 1, 7), [3]);
        assert_eq!(going(keep, &images, 1, u64::MAX), [3, 7], "the present one stays, whatever it takes");
        assert_eq!(going(keep, &[image(3, 1), gone(7, 1)], 1, 7), [3, 7]);
    }

    #[test]
    fn what_goes_beyond_a_bound_goes_with_some_slack_and_not_again_at_once() {
        let keep = Keep { age_ms: DAY, bytes: 160 };
        for (bytes, excess) in [(0, 0), (160, 0), (161, 11), (320, 170)] {
            assert_eq!(keep.excess(bytes), excess, "{bytes}");
        }
        for (bytes, left, is_due) in
            [(160, 0, false), (161, 0, true), (161, 151, false), (162, 151, true), (300, 295, false), (306, 295, true)]
        {
            assert_eq!(keep.is_due(bytes, left), is_due, "{bytes} of which {left} were left");
        }
        assert!(keep.is_old(0, DAY) && !keep.is_old(1, DAY) && !keep.is_old(u64::MAX, DAY));
    }

    #[test]
    fn the_oldest_are_found_in_any_order() {
        let all = [(5, 10), (1, 10), (4, 10), (2, 10), (3, 10)];
        for (wanted, up_to) in [(0, 0), (1, 1), (10, 1), (11, 2), (45, 5), (50, 5), (999, 5)] {
            assert_eq!(oldest(all.into_iter(), wanted), up_to, "{wanted}");
        }
        let mut some = Oldest::new(40);
        for (revision, bytes) in all {
            some.see(revision, bytes);
        }
        assert_eq!(some.latest.len(), 4, "no more are remembered than are wanted");
        assert_eq!((some.clone().up_to(15), some.up_to(0)), (2, 0), "fewer may be wanted in the end");
    }

    #[test]
    fn x03_records_of_requests_go_first_of_who_has_more_than_a_quarter() {
        let many: Vec<(u64, u64)> = (10..30).map(|revision| (revision, 10)).collect();
        let records = BTreeMap::from([("few", vec![(1, 10), (2, 10)]), ("many", many)]);
        assert_eq!(over_of_each(&records, 220), BTreeMap::new(), "at the bound nothing goes");
        // 200 of one, who has more than a quarter of 160: 160 of them go, and nothing of the other.
        assert_eq!(over_of_each(&records, 160), BTreeMap::from([("few", 0), ("many", 25)]));
        // Nobody has more than a quarter: then the oldest of all go.
        let each: BTreeMap<u64, Vec<(u64, u64)>> = (1..9).map(|who| (who, vec![(who, 10), (who + 8, 10)])).collect();
        let over = over_of_each(&each, 100);
        assert!(over.values().all(|up_to| *up_to == 7), "{over:?}");
    }
}
