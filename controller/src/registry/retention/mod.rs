//! Drops history images, audit entries and request records whose retention has ended. The rules are in core. While the
//! clock is suspect nothing is dropped, even if too much is stored. The clock is checked again for each object and
//! page.
//!
//! The store knows the size of each class. So nothing is read while all classes are within their limits, except for the
//! sweep by age once an hour. A sweep reads page by page, and deletes in commits of its own, which watchers may skip.
//! The store's file does not shrink: the free space in it is reused.

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

/// The interval between sweeps of everything by age.
const FULL_SWEEP_INTERVAL: Duration = Duration::from_hours(1);
/// Maximum size of the entries that are read at once, in bytes.
const PAGE_BYTES: usize = 1 << 20;
/// Maximum number and size of the entries that one commit drops.
const MAX_ENTRIES_PER_COMMIT: usize = 500;
const MAX_BYTES_PER_COMMIT: u64 = 4 << 20;
/// Maximum size of the oldest images that one sweep looks for, in bytes. The sweep holds each of these images in
/// memory.
const MAX_CANDIDATE_BYTES: u64 = 256 << 20;

/// How much is retained, as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionLimits {
    /// The limits for the history of objects.
    pub history: HistoryRetention,
    /// The limits for the entries of the audit.
    pub audit: AuditRetention,
}

/// A class of entries that is retained by age and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RetentionClass {
    History,
    Audit,
    Requests,
}

/// Drops entries that exceed the retention limits.
#[derive(Debug)]
pub struct RetentionSweeper {
    limits: RetentionLimits,
    /// The time of the last full sweep.
    swept_at: Option<Instant>,
    /// The size of each class after its last sweep, in bytes.
    remaining_bytes: BTreeMap<RetentionClass, u64>,
}

/// The total of what a sweep dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedTotals {
    /// The number of dropped entries.
    pub entries: u64,
    /// The size of the dropped entries, in bytes.
    pub bytes: u64,
}

impl RetentionClass {
    const ALL: [Self; 3] = [Self::History, Self::Audit, Self::Requests];

    /// Returns the name in the journal.
    const fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Audit => "audit",
            Self::Requests => "requests",
        }
    }

    /// Returns the prefix of the keys.
    const fn prefix(self) -> &'static str {
        match self {
            Self::History => key::HISTORY,
            Self::Audit => key::AUDIT,
            Self::Requests => key::REQUESTS,
        }
    }

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

    /// Drops entries whose retention has ended: of all classes once an hour, otherwise of those that are too large.
    /// Drops nothing while the clock is suspect. A call that finds nothing due is cheap.
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
    /// Returns the size of a class in bytes, or 0 until it is known.
    fn stored_bytes(&self, class: RetentionClass) -> u64 {
        self.store.stats().prefix_bytes(class.prefix()).unwrap_or_default()
    }

    /// Drops history images whose retention has ended. If the rest is still too large, sweeps again and drops the
    /// oldest images that may be dropped.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn sweep_history(&self, policy: &HistoryRetention) -> Result<DroppedTotals, StoreError> {
        let bound = policy.limit();
        let mut total = DroppedTotals::default();
        let mut cutoff = 0;
        loop {
            let mut oldest =
                OldestFinder::new(bound.excess_bytes(self.stored_bytes(RetentionClass::History)).min(MAX_CANDIDATE_BYTES));
            let dropped = self.walk_history(policy, cutoff, &mut oldest).await?;
            total.add(dropped);
            // The images dropped by age may be sufficient.
            cutoff = oldest.cutoff_revision(bound.excess_bytes(self.stored_bytes(RetentionClass::History)));
            if cutoff == 0 {
                return Ok(total);
            }
        }
    }

    /// Sweeps the history once, object by object. `cutoff` is the revision up to which images are dropped because of
    /// the size limit, or 0. `oldest` collects the images that may be dropped next.
    async fn walk_history(
        &self,
        policy: &HistoryRetention,
        cutoff: u64,
        oldest: &mut OldestFinder,
    ) -> Result<DroppedTotals, StoreError> {
        let mut drops = DropBatch::new(self.store.as_ref());
        let (mut object, mut images): (Vec<u8>, Vec<HistoryImage>) = (Vec::new(), Vec::new());
        let mut range = KeyRange::prefix(key::HISTORY);
        loop {
            let snapshot = self.store.snapshot().await?;
            let page = snapshot.list(&ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES)).await?;
            for entry in &page.entries {
                let Some((next_object, revision)) = key::read_image(&entry.key) else { continue };
                if *next_object != *object {
                    self.drop_images(policy, cutoff, (&object[..], &images[..]), oldest, &mut drops).await?;
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
        self.drop_images(policy, cutoff, (&object[..], &images[..]), oldest, &mut drops).await?;
        drops.finish().await
    }

    /// Returns the image in an entry of the history. `before` is the previous image of the object.
    async fn read_image(
        &self,
        snapshot: &dyn Snapshot,
        entry: &Entry,
        revision: u64,
        before: Option<&HistoryImage>,
    ) -> Result<HistoryImage, StoreError> {
        let age_start = |at| self.clock.age_start(at, Revision::new(revision)).0;
        let (at_ms, is_deletion) = match codec::decode::<Option<ImageTime>>(&entry.value) {
            Ok(Some(time)) => (age_start(time.updated_at()), false),
            Ok(None) => {
                // The time of a deletion is only in the audit, which may be retained for a shorter time.
                let event = snapshot.get(&key::audit(Revision::new(revision))).await?;
                let at = event.and_then(|event| codec::decode::<AuditTime>(&event.value).ok()).map(|time| age_start(time.at));
                (at.or(before.map(|before| before.at_ms)).unwrap_or_default(), true)
            }
            // An unreadable image has no known time. It must not make the one before it count as old.
            Err(_) => (u64::MAX, false),
        };
        Ok(HistoryImage { revision, at_ms, bytes: entry.size_bytes() as u64, is_deletion })
    }

    /// Drops those images of one object whose retention has ended, and adds the others that may be dropped to `oldest`.
    async fn drop_images(
        &self,
        policy: &HistoryRetention,
        cutoff: u64,
        (object, images): (&[u8], &[HistoryImage]),
        oldest: &mut OldestFinder,
        drops: &mut DropBatch<'_>,
    ) -> Result<(), StoreError> {
        let Some(now) = self.clock.trusted_now() else { return Ok(()) };
        let decisions = policy.decide(images, now.0, cutoff);
        for (image, decision) in images.iter().zip(decisions) {
            match decision {
                ImageDecision::Delete => drops.push(key::image(object, image.revision).into(), image.bytes).await?,
                ImageDecision::MayDelete { over_since } => oldest.add(over_since, image.bytes),
                ImageDecision::Keep => {}
            }
        }
        Ok(())
    }

    /// Drops audit entries whose retention has ended. They are ordered by time, so the sweep ends at a page of which
    /// nothing is dropped.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn sweep_audit(&self, policy: &AuditRetention) -> Result<DroppedTotals, StoreError> {
        let bound = policy.limit();
        let mut excess = bound.excess_bytes(self.stored_bytes(RetentionClass::Audit));
        let mut drops = DropBatch::new(self.store.as_ref());
        let mut range = KeyRange::prefix(key::AUDIT);
        loop {
            let Some(now) = self.clock.trusted_now() else { return drops.finish().await };
            let page = self.store.snapshot().await?.list(&ListQuery::range(range.clone()).with_max_bytes(PAGE_BYTES)).await?;
            let mut is_done = true;
            for entry in &page.entries {
                // An unreadable entry has no known time. It is dropped only if the audit is too large.
                let is_old = codec::decode::<AuditTime>(&entry.value).is_ok_and(|time| {
                    let Timestamp(at) = self.clock.age_start(time.at, entry.mod_revision);
                    bound.is_expired(at, now.0)
                });
                if is_old || excess > 0 {
                    let bytes = entry.size_bytes() as u64;
                    (excess, is_done) = (excess.saturating_sub(bytes), false);
                    drops.push(entry.key.clone(), bytes).await?;
                }
            }
            let Some(last) = page.entries.last().filter(|_| page.has_more && !is_done) else {
                return drops.finish().await;
            };
            range = range.after(&last.key);
            tokio::task::yield_now().await;
        }
    }

    /// Drops the oldest request records if all of them together are too large. [`Registry::prune_requests`] drops those
    /// that are too old.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn sweep_requests(&self, max_bytes: u64) -> Result<DroppedTotals, StoreError> {
        let before = self.stored_bytes(RetentionClass::Requests);
        if before <= max_bytes || self.clock.trusted_now().is_none() {
            return Ok(DroppedTotals::default());
        }
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
        let cutoffs = cutoff_by_principal(&records, max_bytes);
        let is_dropped =
            |entry: &Entry| cutoffs.get(&request_owner(entry)).is_some_and(|cutoff| entry.mod_revision.get() <= *cutoff);
        let entries = sweep(self.store.as_ref(), key::REQUESTS, |entry| Ok(is_dropped(entry))).await? as u64;
        Ok(DroppedTotals { entries, bytes: before.saturating_sub(self.stored_bytes(RetentionClass::Requests)) })
    }
}

/// Returns the owner of the request that a record belongs to, as in its key.
fn request_owner(entry: &Entry) -> Bytes {
    key::read_request(&entry.key).map_or_else(Bytes::new, |owner| entry.key.slice_ref(owner))
}

/// Entries to drop, in commits of a bounded size. Such entries are written only once, so none can have changed since it
/// was read.
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

    /// Adds an entry to drop with the next commit.
    async fn push(&mut self, key: Bytes, bytes: u64) -> Result<(), StoreError> {
        self.pending.ops.push(Op::Delete { key });
        self.bytes += bytes;
        if self.pending.ops.len() >= MAX_ENTRIES_PER_COMMIT || self.bytes >= MAX_BYTES_PER_COMMIT {
            self.commit().await
        } else {
            Ok(())
        }
    }

    /// Drops the entries that are pending, and returns the total.
    async fn finish(mut self) -> Result<DroppedTotals, StoreError> {
        self.commit().await?;
        Ok(self.totals)
    }

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
    fn add(&mut self, more: Self) {
        self.entries += more.entries;
        self.bytes += more.bytes;
    }
}

#[cfg(test)]
mod tests;
