//! Drops history images (old versions of objects) and audit entries whose retention time has ended, and the oldest
//! images, audit entries and request records if too much is stored. The rules are in core. Nothing is dropped while the
//! clock is suspect, even if too much is stored. The clock is checked again for each object and audit page.
//!
//! The store knows the size of each class of entries. So nothing is read while all classes are within their limits,
//! except for the sweep by age once an hour. A sweep reads one page at a time, and deletes entries in separate commits.
//! Watchers may skip these commits. The store's file does not shrink, but the free space in the file is reused.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use stemma_core::object::Timestamp;
use stemma_core::retention::{
    AuditRetention, HistoryImage, HistoryRetention, ImageDecision, OldestFinder, RetentionLimit, cutoff_by_principal,
};
use tokio::time::Instant;

use super::Registry;
use crate::records::audit::AuditTime;
use crate::records::history::ImageTime;
use crate::records::request::{MAX_REQUESTS_BYTES, REQUEST_RETENTION_MS};
use crate::records::{codec, key};
use crate::store::{Entry, KeyRange, ListQuery, Op, Revision, Snapshot, Store, StoreError, Transaction, sweep};

/// Interval between sweeps of all classes.
const FULL_SWEEP_INTERVAL: Duration = Duration::from_hours(1);
/// Maximum size of the entries that are read at the same time, in bytes.
const PAGE_BYTES: usize = 1 << 20;
/// Maximum number of entries that one commit drops.
const MAX_ENTRIES_PER_COMMIT: usize = 500;
/// Total size of collected entries, in bytes, at which a commit drops them. The commit can exceed it by one entry.
const MAX_BYTES_PER_COMMIT: u64 = 4 << 20;
/// Maximum total size of the oldest images (stored versions of objects) that one sweep collects, in bytes. The sweep
/// holds the revision and size of each collected image in memory.
const MAX_CANDIDATE_BYTES: u64 = 256 << 20;

/// The configured limits on the age and size of the history of objects and of the audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionLimits {
    /// The limits for the history of objects.
    pub history: HistoryRetention,
    /// The limits for the entries of the audit.
    pub audit: AuditRetention,
}

/// A class of store entries that is limited by age and total size: the images of objects in the history, the audit
/// entries, and the records of requests with an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RetentionClass {
    History,
    Audit,
    Requests,
}

/// Drops entries that exceed the retention limits. Remembers the results of earlier sweeps, so that unnecessary sweeps
/// are skipped.
#[derive(Debug)]
pub struct RetentionSweeper {
    limits: RetentionLimits,
    /// The time of the last sweep of all classes, or `None` before the first.
    swept_at: Option<Instant>,
    /// The size of each class after its last sweep, in bytes. If the size has hardly grown since, another sweep by size
    /// would find nothing to drop.
    remaining_bytes: BTreeMap<RetentionClass, u64>,
}

/// The number and size of the entries that a sweep dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedTotals {
    /// Number of dropped entries.
    pub entries: u64,
    /// Size of the dropped entries, in bytes.
    pub bytes: u64,
}

impl RetentionClass {
    const ALL: [Self; 3] = [Self::History, Self::Audit, Self::Requests];

    /// Returns the name of the class in the journal.
    const fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Audit => "audit",
            Self::Requests => "requests",
        }
    }

    /// Returns the prefix of the keys of this class in the store.
    const fn prefix(self) -> &'static str {
        match self {
            Self::History => key::HISTORY,
            Self::Audit => key::AUDIT,
            Self::Requests => key::REQUESTS,
        }
    }

    /// Returns the limits of this class on age and total size.
    const fn limit(self, limits: &RetentionLimits) -> RetentionLimit {
        match self {
            Self::History => limits.history.limit(),
            Self::Audit => limits.audit.limit(),
            Self::Requests => RetentionLimit { age_ms: REQUEST_RETENTION_MS, bytes: MAX_REQUESTS_BYTES },
        }
    }
}

impl RetentionSweeper {
    /// Creates a sweeper that has not swept yet.
    pub fn new(limits: RetentionLimits) -> Self {
        Self { limits, swept_at: None, remaining_bytes: BTreeMap::new() }
    }

    /// Drops images and audit entries whose retention time has ended, and the oldest entries of each class that is too
    /// large. All classes are swept once an hour. Between these sweeps, a class is swept only if it is too large and
    /// has grown since its last sweep. Drops nothing while the clock is suspect. A call is cheap if no sweep is due.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn sweep(&mut self, registry: &Registry, now: Instant) -> Result<(), StoreError> {
        if registry.clock.trusted_now().is_none() {
            return Ok(());
        }
        let is_full_sweep = self.swept_at.is_none_or(|swept_at| now.saturating_duration_since(swept_at) >= FULL_SWEEP_INTERVAL);
        if is_full_sweep {
            self.swept_at = Some(now);
        }
        for class in RetentionClass::ALL {
            let (bytes, limit) = (registry.stored_bytes(class), class.limit(&self.limits));
            let remaining = self.remaining_bytes.get(&class).copied().unwrap_or_default();
            if !is_full_sweep && !limit.is_due(bytes, remaining) {
                continue;
            }
            let dropped = match class {
                RetentionClass::History => registry.sweep_history(&self.limits.history).await?,
                RetentionClass::Audit => registry.sweep_audit(&self.limits.audit).await?,
                RetentionClass::Requests => registry.sweep_requests(MAX_REQUESTS_BYTES).await?,
            };
            let remaining = registry.stored_bytes(class);
            self.remaining_bytes.insert(class, remaining);
            if dropped != DroppedTotals::default() {
                let reason = if bytes > limit.bytes { "size" } else { "age" };
                log::info!(kind = class.name(), reason, count = dropped.entries, bytes = dropped.bytes; "entries over their retention limit were dropped");
            }
            if is_full_sweep && remaining > limit.bytes {
                log::warn!(kind = class.name(), bytes = remaining; "entries that cannot be dropped exceed the retention limit");
            }
        }
        Ok(())
    }
}

impl Registry {
    /// Returns the total size of the entries of a class in bytes, or 0 while the size is not known.
    fn stored_bytes(&self, class: RetentionClass) -> u64 {
        self.store.stats().prefix_bytes(class.prefix()).unwrap_or_default()
    }

    /// Drops images (stored versions of objects in the history) that are too old or too many. If the remaining images
    /// are still too large together, sweeps again and drops the oldest images that may be dropped.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn sweep_history(&self, policy: &HistoryRetention) -> Result<DroppedTotals, StoreError> {
        let limit = policy.limit();
        let mut total = DroppedTotals::default();
        // Images that were replaced up to this revision are dropped because of the size. With 0, none is.
        let mut cutoff = 0;
        loop {
            let mut oldest_images =
                OldestFinder::new(limit.excess_bytes(self.stored_bytes(RetentionClass::History)).min(MAX_CANDIDATE_BYTES));
            let dropped = self.walk_history(policy, cutoff, &mut oldest_images).await?;
            total.add(dropped);
            // The sweep may have dropped enough images by age, so the excess is computed again.
            cutoff = oldest_images.cutoff_revision(limit.excess_bytes(self.stored_bytes(RetentionClass::History)));
            if cutoff == 0 {
                return Ok(total);
            }
        }
    }

    /// Sweeps the history once, object by object. Drops images (stored versions) that are too old or too many, and
    /// images that were replaced up to the revision `cutoff` (0 for none) to free space. `oldest_images` collects the
    /// images that a next sweep may drop to free space.
    async fn walk_history(
        &self,
        policy: &HistoryRetention,
        cutoff: u64,
        oldest_images: &mut OldestFinder,
    ) -> Result<DroppedTotals, StoreError> {
        let mut batch = DropBatch::new(self.store.as_ref());
        let (mut object, mut images): (Vec<u8>, Vec<HistoryImage>) = (Vec::new(), Vec::new());
        let mut range = KeyRange::prefix(key::HISTORY);
        loop {
            let snapshot = self.store.snapshot().await?;
            let page = snapshot.list(&ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES)).await?;
            for entry in &page.entries {
                let Some((next_object, revision)) = key::read_image(&entry.key) else { continue };
                if *next_object != *object {
                    self.drop_images(policy, cutoff, (&object[..], &images[..]), oldest_images, &mut batch).await?;
                    next_object.clone_into(&mut object);
                    images.clear();
                }
                let image = self.read_image(snapshot.as_ref(), entry, revision, images.last()).await?;
                images.push(image);
            }
            let Some(last) = page.entries.last().filter(|_| page.has_more) else { break };
            range = range.after(&last.key);
            tokio::task::yield_now().await;
        }
        self.drop_images(policy, cutoff, (&object[..], &images[..]), oldest_images, &mut batch).await?;
        batch.finish().await
    }

    /// Returns the image (stored version of an object) in an entry of the history: its revision, time and size.
    /// `previous` is the object's image before this one.
    async fn read_image(
        &self,
        snapshot: &dyn Snapshot,
        entry: &Entry,
        revision: u64,
        previous: Option<&HistoryImage>,
    ) -> Result<HistoryImage, StoreError> {
        let age_start = |at| self.clock.age_start(at, Revision::new(revision)).0;
        let (at_ms, is_deletion) = match codec::decode::<Option<ImageTime>>(&entry.value) {
            Ok(Some(time)) => (age_start(time.updated_at()), false),
            Ok(None) => {
                // The time of a deletion is only in the audit, which may be retained for a shorter time. Then the time
                // of the previous image is used.
                let event = snapshot.get(&key::audit(Revision::new(revision))).await?;
                let at = event.and_then(|event| codec::decode::<AuditTime>(&event.value).ok()).map(|time| age_start(time.at));
                (at.or(previous.map(|previous| previous.at_ms)).unwrap_or_default(), true)
            }
            // An unreadable image has no known time. With a low time, the previous image would appear to be replaced
            // long ago.
            Err(_) => (u64::MAX, false),
        };
        Ok(HistoryImage { revision, at_ms, bytes: entry.size_bytes() as u64, is_deletion })
    }

    /// Drops the images (stored versions) of one object that are too old, too many, or replaced up to the revision
    /// `cutoff`. Adds the other images that may be dropped to `oldest_images`, each with the revision `over_since` at
    /// which it was replaced.
    async fn drop_images(
        &self,
        policy: &HistoryRetention,
        cutoff: u64,
        (object, images): (&[u8], &[HistoryImage]),
        oldest_images: &mut OldestFinder,
        batch: &mut DropBatch<'_>,
    ) -> Result<(), StoreError> {
        let Some(now) = self.clock.trusted_now() else { return Ok(()) };
        let decisions = policy.decide(images, now.0, cutoff);
        for (image, decision) in images.iter().zip(decisions) {
            match decision {
                ImageDecision::Delete => batch.push(key::image(object, image.revision).into(), image.bytes).await?,
                ImageDecision::MayDelete { over_since } => oldest_images.add(over_since, image.bytes),
                ImageDecision::Keep => {}
            }
        }
        Ok(())
    }

    /// Drops audit entries whose retention time has ended, and the oldest entries if the audit is too large. Entries
    /// are ordered by time, so the sweep ends at the first page without an entry to drop.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn sweep_audit(&self, policy: &AuditRetention) -> Result<DroppedTotals, StoreError> {
        let limit = policy.limit();
        let mut excess_bytes = limit.excess_bytes(self.stored_bytes(RetentionClass::Audit));
        let mut batch = DropBatch::new(self.store.as_ref());
        let mut range = KeyRange::prefix(key::AUDIT);
        loop {
            let Some(now) = self.clock.trusted_now() else { return batch.finish().await };
            let page = self.store.snapshot().await?.list(&ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES)).await?;
            let mut is_done = true;
            for entry in &page.entries {
                // The time of an unreadable entry is not known. Such an entry is dropped only if the audit is too
                // large.
                let is_old = codec::decode::<AuditTime>(&entry.value).is_ok_and(|time| {
                    let Timestamp(at) = self.clock.age_start(time.at, entry.mod_revision);
                    limit.is_expired(at, now.0)
                });
                if is_old || excess_bytes > 0 {
                    let bytes = entry.size_bytes() as u64;
                    (excess_bytes, is_done) = (excess_bytes.saturating_sub(bytes), false);
                    batch.push(entry.key.clone(), bytes).await?;
                }
            }
            let Some(last) = page.entries.last().filter(|_| page.has_more && !is_done) else {
                return batch.finish().await;
            };
            range = range.after(&last.key);
            tokio::task::yield_now().await;
        }
    }

    /// Drops the oldest request records if all records together are larger than `max_bytes`. If a principal has more
    /// than a quarter of `max_bytes`, its oldest records over the quarter are dropped first. Drops nothing while the
    /// clock is suspect. [`Registry::prune_requests`] drops records that are too old.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn sweep_requests(&self, max_bytes: u64) -> Result<DroppedTotals, StoreError> {
        let old_bytes = self.stored_bytes(RetentionClass::Requests);
        if old_bytes <= max_bytes || self.clock.trusted_now().is_none() {
            return Ok(DroppedTotals::default());
        }
        // The revision and size of each record, by requester.
        let mut records: BTreeMap<Bytes, Vec<(u64, u64)>> = BTreeMap::new();
        let mut range = KeyRange::prefix(key::REQUESTS);
        loop {
            let page = self.store.snapshot().await?.list(&ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES)).await?;
            for entry in &page.entries {
                records.entry(request_owner(entry)).or_default().push((entry.mod_revision.get(), entry.size_bytes() as u64));
            }
            let Some(last) = page.entries.last().filter(|_| page.has_more) else { break };
            range = range.after(&last.key);
            tokio::task::yield_now().await;
        }
        // The revision up to which the records of each requester are dropped.
        let cutoffs = cutoff_by_principal(&records, max_bytes);
        let is_dropped =
            |entry: &Entry| cutoffs.get(&request_owner(entry)).is_some_and(|cutoff| entry.mod_revision.get() <= *cutoff);
        let entries = sweep(self.store.as_ref(), key::REQUESTS, |entry| Ok(is_dropped(entry))).await? as u64;
        Ok(DroppedTotals { entries, bytes: old_bytes.saturating_sub(self.stored_bytes(RetentionClass::Requests)) })
    }
}

/// Returns the requester part of a request record's key, or an empty value if the key is invalid.
fn request_owner(entry: &Entry) -> Bytes {
    key::read_request(&entry.key).map_or_else(Bytes::new, |owner| entry.key.slice_ref(owner))
}

/// A batch of entries to drop, in commits of a limited size. The entries are images in the history and audit entries.
/// Each entry is written only once, so none of the entries can have changed since it was read.
struct DropBatch<'a> {
    store: &'a dyn Store,
    pending: Transaction,
    bytes: u64,
    totals: DroppedTotals,
}

impl<'a> DropBatch<'a> {
    fn new(store: &'a dyn Store) -> Self {
        Self { store, pending: Transaction::new(), bytes: 0, totals: DroppedTotals::default() }
    }

    /// Adds an entry to drop. Commits the batch if it has reached its maximum number or size.
    async fn push(&mut self, key: Bytes, bytes: u64) -> Result<(), StoreError> {
        self.pending.ops.push(Op::Delete { key });
        self.bytes += bytes;
        if self.pending.ops.len() >= MAX_ENTRIES_PER_COMMIT || self.bytes >= MAX_BYTES_PER_COMMIT {
            self.commit().await
        } else {
            Ok(())
        }
    }

    /// Drops the remaining entries of the batch, and returns the totals of all its commits.
    async fn finish(mut self) -> Result<DroppedTotals, StoreError> {
        self.commit().await?;
        Ok(self.totals)
    }

    /// Drops the entries that were added since the last commit.
    async fn commit(&mut self) -> Result<(), StoreError> {
        let transaction = std::mem::take(&mut self.pending);
        let (entries, bytes) = (transaction.ops.len() as u64, std::mem::take(&mut self.bytes));
        if entries > 0 {
            self.store.commit(transaction).await?;
            self.totals.add(DroppedTotals { entries, bytes });
        }
        Ok(())
    }
}

impl DroppedTotals {
    fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests;
