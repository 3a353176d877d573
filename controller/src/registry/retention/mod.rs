//! Drops what is kept no longer: images of objects, entries of the audit, records of requests. Core says which. While the clock is suspect
//! nothing is dropped, for want of room neither: it is looked at anew for each object and page.
//!
//! What these take is known from the store's sums, so nothing is read while all are within their bounds, but for the look at their age once an
//! hour. What is looked through is read page by page, and goes in commits of their own that any watcher may pass over. A file of the store
//! does not shrink by it: what becomes free in it is written again.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use stemma_core::object::Timestamp;
use stemma_core::retention::{AuditKeep, Fate, HistoryKeep, Image, Keep, Oldest, over_of_each};
use tokio::time::Instant;

use super::Registry;
use crate::records::audit::EntryTime;
use crate::records::history::ImageTime;
use crate::records::request::{REQUEST_KEPT_MS, REQUESTS_BYTES};
use crate::records::{codec, key};
use crate::store::{Entry, KeyRange, Op, Query, Revision, Snapshot, Store, StoreError, Transaction, sweep};

/// How often all is looked through for what is too old.
const LOOK_AT_AGE: Duration = Duration::from_hours(1);
/// How many bytes of entries are read at once.
const PAGE_BYTES: usize = 1 << 20;
/// How many entries one commit drops, and how many bytes of them.
const AT_ONCE: usize = 500;
const BYTES_AT_ONCE: u64 = 4 << 20;
/// For how many bytes at most the oldest images are looked for at once: each is remembered meanwhile.
const MOST_LOOKED_FOR: u64 = 256 << 20;

/// How much is kept, as the configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Of the history of objects.
    pub history: HistoryKeep,
    /// Of the audit.
    pub audit: AuditKeep,
}

/// What is kept by age and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    History,
    Audit,
    Requests,
}

/// Looks after what is kept.
#[derive(Debug)]
pub struct Keeper {
    kept: Kept,
    /// When all was last looked through.
    looked: Option<Instant>,
    /// What was left of each after the last look.
    left: BTreeMap<What, u64>,
}

/// How much was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// How many entries.
    pub entries: u64,
    /// What they took.
    pub bytes: u64,
}

impl What {
    const ALL: [Self; 3] = [Self::History, Self::Audit, Self::Requests];

    /// Its name in the journal.
    const fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Audit => "audit",
            Self::Requests => "requests",
        }
    }

    /// The prefix of its keys.
    const fn prefix(self) -> &'static str {
        match self {
            Self::History => key::HISTORY,
            Self::Audit => key::AUDIT,
            Self::Requests => key::REQUESTS,
        }
    }

    const fn keep(self, kept: &Kept) -> Keep {
        match self {
            Self::History => kept.history.keep(),
            Self::Audit => kept.audit.keep(),
            Self::Requests => Keep { age_ms: REQUEST_KEPT_MS, bytes: REQUESTS_BYTES },
        }
    }
}

impl Keeper {
    /// One that has looked at nothing yet.
    pub fn new(kept: Kept) -> Self {
        Self { kept, looked: None, left: BTreeMap::new() }
    }

    /// Drops what is kept no longer: of all once an hour, else of what takes more than it may; nothing while the clock is suspect. It is cheap
    /// to be asked often.
    ///
    /// # Errors
    /// What the store says.
    pub async fn look(&mut self, registry: &Registry, now: Instant) -> Result<(), StoreError> {
        if registry.clock.trusted_now().is_none() {
            return Ok(());
        }
        let is_hour = self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_AT_AGE);
        if is_hour {
            self.looked = Some(now);
        }
        for what in What::ALL {
            let (bytes, keep) = (registry.taken(what), what.keep(&self.kept));
            let left = self.left.get(&what).copied().unwrap_or_default();
            if !is_hour && !keep.is_due(bytes, left) {
                continue;
            }
            let dropped = match what {
                What::History => registry.sweep_history(&self.kept.history).await?,
                What::Audit => registry.sweep_audit(&self.kept.audit).await?,
                What::Requests => registry.sweep_requests(REQUESTS_BYTES).await?,
            };
            let left = registry.taken(what);
            self.left.insert(what, left);
            if dropped != Dropped::default() {
                let reason = if bytes > keep.bytes { "size" } else { "age" };
                log::info!(kind = what.name(), reason, count = dropped.entries, bytes = dropped.bytes; "what is kept no longer was dropped");
            }
            if is_hour && left > keep.bytes {
                log::warn!(kind = what.name(), bytes = left; "what has to stay takes more than is to be kept");
            }
        }
        Ok(())
    }
}

impl Registry {
    /// What entries take, in bytes; nothing before that is known.
    fn taken(&self, what: What) -> u64 {
        self.store.stats().bytes_below(what.prefix()).unwrap_or_default()
    }

    /// Drops images of objects that are kept no longer.
    ///
    /// # Errors
    /// What the store says.
    pub async fn sweep_history(&self, keep: &HistoryKeep) -> Result<Dropped, StoreError> {
        let bound = keep.keep();
        let mut all = Dropped::default();
        let mut up_to = 0;
        loop {
            let mut oldest = Oldest::new(bound.excess(self.taken(What::History)).min(MOST_LOOKED_FOR));
            let dropped = self.walk_history(keep, up_to, &mut oldest).await?;
            all.add(dropped);
            // What has gone by its age may be enough.
            up_to = oldest.up_to(bound.excess(self.taken(What::History)));
            if up_to == 0 {
                return Ok(all);
            }
        }
    }

    /// Looks once through the history, object by object.
    async fn walk_history(&self, keep: &HistoryKeep, up_to: u64, oldest: &mut Oldest) -> Result<Dropped, StoreError> {
        let mut drops = Drops::of(self.store.as_ref());
        let (mut object, mut images): (Vec<u8>, Vec<Image>) = (Vec::new(), Vec::new());
        let mut range = KeyRange::prefix(key::HISTORY);
        loop {
            let snapshot = self.store.snapshot().await?;
            let page = snapshot.list(&Query::range(range.clone()).bytes(PAGE_BYTES)).await?;
            for entry in &page.entries {
                let Some((of, revision)) = key::read_image(&entry.key) else { continue };
                if *of != *object {
                    self.judge(keep, up_to, (&object[..], &images[..]), oldest, &mut drops).await?;
                    of.clone_into(&mut object);
                    images.clear();
                }
                let image = self.image(snapshot.as_ref(), entry, revision, images.last()).await?;
                images.push(image);
            }
            let Some(last) = page.entries.last().filter(|_| page.more) else { break };
            range = range.after(&last.key);
            tokio::task::yield_now().await;
        }
        self.judge(keep, up_to, (&object[..], &images[..]), oldest, &mut drops).await?;
        drops.end().await
    }

    /// What an entry of the history says of its object; `before` is the image before it.
    async fn image(
        &self,
        snapshot: &dyn Snapshot,
        entry: &Entry,
        revision: u64,
        before: Option<&Image>,
    ) -> Result<Image, StoreError> {
        let written = |at| self.clock.counts_from(at, Revision::new(revision)).0;
        let (at_ms, is_gone) = match codec::decode::<Option<ImageTime>>(&entry.value) {
            Ok(Some(time)) => (written(time.at()), false),
            Ok(None) => {
                // When an object went stands in the audit alone, which may be kept for a shorter time.
                let event = snapshot.get(&key::audit(Revision::new(revision))).await?;
                let at =
                    event.and_then(|event| codec::decode::<EntryTime>(&event.value).ok()).map(|time| written(time.at));
                (at.or(before.map(|before| before.at_ms)).unwrap_or_default(), true)
            }
            // One that cannot be read is of no known time, and makes none before it old.
            Err(_) => (u64::MAX, false),
        };
        Ok(Image { revision, at_ms, bytes: entry.size_bytes() as u64, is_gone })
    }

    /// Drops what of the images of one object is kept no longer, and notes what else may go.
    async fn judge(
        &self,
        keep: &HistoryKeep,
        up_to: u64,
        (object, images): (&[u8], &[Image]),
        oldest: &mut Oldest,
        drops: &mut Drops<'_>,
    ) -> Result<(), StoreError> {
        let Some(now) = self.clock.trusted_now() else { return Ok(()) };
        let fates = keep.judge(images, now.0, up_to);
        for (image, fate) in images.iter().zip(fates) {
            match fate {
                Fate::Goes => drops.push(key::image(object, image.revision).into(), image.bytes).await?,
                Fate::MayGo { over_since } => oldest.see(over_since, image.bytes),
                Fate::Stays => {}
            }
        }
        Ok(())
    }

    /// Drops entries of the audit that are kept no longer. They are in the order of time, so a look ends at a page of which nothing goes.
    ///
    /// # Errors
    /// What the store says.
    pub async fn sweep_audit(&self, keep: &AuditKeep) -> Result<Dropped, StoreError> {
        let bound = keep.keep();
        let mut excess = bound.excess(self.taken(What::Audit));
        let mut drops = Drops::of(self.store.as_ref());
        let mut range = KeyRange::prefix(key::AUDIT);
        loop {
            let Some(now) = self.clock.trusted_now() else { return drops.end().await };
            let page = self.store.snapshot().await?.list(&Query::range(range.clone()).bytes(PAGE_BYTES)).await?;
            let mut is_over = true;
            for entry in &page.entries {
                // One that cannot be read is of no known time, and goes for want of room alone.
                let is_old = codec::decode::<EntryTime>(&entry.value).is_ok_and(|time| {
                    let Timestamp(at) = self.clock.counts_from(time.at, entry.mod_revision);
                    bound.is_old(at, now.0)
                });
                if is_old || excess > 0 {
                    let bytes = entry.size_bytes() as u64;
                    (excess, is_over) = (excess.saturating_sub(bytes), false);
                    drops.push(entry.key.clone(), bytes).await?;
                }
            }
            let Some(last) = page.entries.last().filter(|_| page.more && !is_over) else { return drops.end().await };
            range = range.after(&last.key);
            tokio::task::yield_now().await;
        }
    }

    /// Drops the oldest records of requests where all together take more than they may. Those that are too old go by
    /// [`Registry::forget_requests`].
    ///
    /// # Errors
    /// What the store says.
    pub async fn sweep_requests(&self, most: u64) -> Result<Dropped, StoreError> {
        let before = self.taken(What::Requests);
        if before <= most || self.clock.trusted_now().is_none() {
            return Ok(Dropped::default());
        }
        let mut records: BTreeMap<Bytes, Vec<(u64, u64)>> = BTreeMap::new();
        let mut range = KeyRange::prefix(key::REQUESTS);
        loop {
            let page = self.store.snapshot().await?.list(&Query::range(range.clone()).bytes(PAGE_BYTES)).await?;
            for entry in &page.entries {
                records.entry(owner(entry)).or_default().push((entry.mod_revision.get(), entry.size_bytes() as u64));
            }
            let Some(last) = page.entries.last().filter(|_| page.more) else { break };
            range = range.after(&last.key);
            tokio::task::yield_now().await;
        }
        let over = over_of_each(&records, most);
        let is_over = |entry: &Entry| over.get(&owner(entry)).is_some_and(|up_to| entry.mod_revision.get() <= *up_to);
        let entries = sweep(self.store.as_ref(), key::REQUESTS, |entry| Ok(is_over(entry))).await? as u64;
        Ok(Dropped { entries, bytes: before.saturating_sub(self.taken(What::Requests)) })
    }
}

/// Whose request a record is of.
fn owner(entry: &Entry) -> Bytes {
    key::read_request(&entry.key).map_or_else(Bytes::new, |owner| entry.key.slice_ref(owner))
}

/// Entries that go, in commits of a bounded size. They are such as are written once, so none can have changed since it was read.
struct Drops<'a> {
    store: &'a dyn Store,
    waiting: Transaction,
    bytes: u64,
    dropped: Dropped,
}

impl<'a> Drops<'a> {
    fn of(store: &'a dyn Store) -> Self {
        Self { store, waiting: Transaction::new(), bytes: 0, dropped: Dropped::default() }
    }

    /// Drops one, with the next commit.
    async fn push(&mut self, key: Bytes, bytes: u64) -> Result<(), StoreError> {
        self.waiting.ops.push(Op::Delete { key });
        self.bytes += bytes;
        if self.waiting.ops.len() >= AT_ONCE || self.bytes >= BYTES_AT_ONCE { self.commit().await } else { Ok(()) }
    }

    /// Drops what waits, and says how much went in all.
    async fn end(mut self) -> Result<Dropped, StoreError> {
        self.commit().await?;
        Ok(self.dropped)
    }

    async fn commit(&mut self) -> Result<(), StoreError> {
        let waiting = std::mem::take(&mut self.waiting);
        let (entries, bytes) = (waiting.ops.len() as u64, std::mem::take(&mut self.bytes));
        if entries > 0 {
            self.store.commit(waiting).await?;
            self.dropped.add(Dropped { entries, bytes });
        }
        Ok(())
    }
}

impl Dropped {
    fn add(&mut self, more: Self) {
        self.entries += more.entries;
        self.bytes += more.bytes;
    }
}

#[cfg(test)]
mod tests;
