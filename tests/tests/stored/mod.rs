//! What a controller's store holds, and that it holds together: each object with its after-image, each after-image with the audit
//! event of its commit, each request's record with the commit that it made.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_controller::records::audit::{Action, AuditEvent, AuditRecord, Whose};
use stemma_controller::records::codec;
use stemma_controller::records::key;
use stemma_controller::records::request::RequestRecord;
use stemma_controller::store::{Entry, Query, RedbOptions, RedbStore, Store as _};
use stemma_core::object::{Kind, Principal};
use uuid::Uuid;

/// A store as it stood when it was copied.
pub(crate) struct Stored {
    objects: Vec<Entry>,
    /// After-images by the object's key below `history/`, then by revision.
    images: BTreeMap<String, BTreeMap<u64, Entry>>,
    events: BTreeMap<u64, AuditEvent>,
    requests: BTreeMap<String, (RequestRecord, u64)>,
}

impl Stored {
    /// Reads a copy of the store in a data directory, whose controller was killed, stopped or is held: opening may repair the copy, and leaves
    /// the store itself as the next controller will find it.
    pub(crate) fn copied(data: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("store.redb");
        std::fs::copy(data.join("store.redb"), &path)?;
        let store = RedbStore::open(&path, RedbOptions::default())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(Self::read(&store))
    }

    async fn read(store: &RedbStore) -> Result<Self> {
        let snapshot = store.snapshot().await?;
        let list = async |prefix: &str| anyhow::Ok(snapshot.list(&Query::prefix(prefix.to_owned())).await?.entries);
        let mut images = BTreeMap::<_, BTreeMap<_, _>>::new();
        for entry in list(key::HISTORY).await? {
            let (object, revision) = at_revision(&entry.key, key::HISTORY)?;
            images.entry(object.trim_end_matches('/').to_owned()).or_default().insert(revision, entry);
        }
        let mut events = BTreeMap::new();
        for entry in list(key::AUDIT).await? {
            if let AuditRecord::Commit(event) = codec::decode(&entry.value)? {
                events.insert(at_revision(&entry.key, key::AUDIT)?.1, event);
            }
        }
        let mut requests = BTreeMap::new();
        for entry in list(key::REQUESTS).await? {
            let name = std::str::from_utf8(&entry.key)?.to_owned();
            requests.insert(name, (codec::decode(&entry.value)?, entry.mod_revision.get()));
        }
        Ok(Self { objects: list(key::OBJECTS).await?, images, events, requests })
    }

    /// What a request was answered and at which revision, when it was made.
    pub(crate) fn request(&self, principal: &str, id: Uuid) -> Option<&(RequestRecord, u64)> {
        let by_uuid = self.uuid_of(principal).and_then(|uuid| self.requests.get(&key::request(&uuid, id)));
        // One that was made before its principal was stored, or by an earlier version.
        by_uuid.or_else(|| self.requests.get(&key::request(principal, id)))
    }

    fn uuid_of(&self, principal: &str) -> Option<String> {
        self.objects.iter().find_map(|one| {
            let (kind, uuid) = key::read_object(&one.key)?;
            let object: Principal = (kind == Kind::Principal.word()).then(|| codec::decode(&one.value).ok())??;
            (object.meta.name.to_string() == principal).then(|| uuid.to_string())
        })
    }

    /// The audit event of a revision.
    pub(crate) fn event(&self, revision: u64) -> Option<&AuditEvent> {
        self.events.get(&revision)
    }

    /// How many commits of a principal the audit has.
    pub(crate) fn commits(&self, principal: &str) -> usize {
        self.events.values().filter(|event| event.principal == principal).count()
    }

    /// That nothing of a commit is there without the rest of it.
    pub(crate) fn check(&self) -> Result<()> {
        for object in &self.objects {
            let name = std::str::from_utf8(&object.key)?.trim_start_matches(key::OBJECTS);
            let newest = self.images.get(name).and_then(BTreeMap::last_key_value);
            let (revision, image) = newest.with_context(|| format!("{name} has no after-image"))?;
            let found = (*revision, &image.value);
            ensure!(found == (object.mod_revision.get(), &object.value), "{name}: the newest after-image is another");
        }
        for (name, images) in &self.images {
            self.check_images(name, images).with_context(|| name.clone())?;
        }
        for (revision, event) in &self.events {
            self.check_event(*revision, event).with_context(|| format!("the audit event of revision {revision}"))?;
        }
        for (name, (record, revision)) in &self.requests {
            let event = self.events.get(revision);
            let is_audited = event.is_some_and(|event| {
                let whose = match event.whose {
                    Some(Whose::Principal(uuid)) => uuid.to_string(),
                    Some(Whose::Nobody) | None => event.principal.clone(),
                };
                name.starts_with(&format!("{}{whose}/", key::REQUESTS))
            });
            ensure!(record.answer.unchanged != is_audited, "{name} at {revision}: the audit has {event:?}");
        }
        Ok(())
    }

    fn check_images(&self, name: &str, images: &BTreeMap<u64, Entry>) -> Result<()> {
        let object = format!("{}{name}", key::OBJECTS);
        let is_there = self.objects.iter().any(|one| one.key == object);
        for (revision, image) in images {
            let event = self.event(*revision).with_context(|| format!("revision {revision} has no audit event"))?;
            let named = event.objects.iter().find(|object| format!("{}/{}", object.kind.word(), object.uuid) == name);
            let named = named.with_context(|| format!("the audit event of {revision} does not name it"))?;
            let is_gone = codec::decode::<Value>(&image.value)?.is_null();
            ensure!(is_gone == (named.action == Action::Deleted), "revision {revision}: {named:?}");
            let earlier = images.range(..revision).next_back().filter(|_| named.action != Action::Created);
            ensure!(named.before == earlier.map(|(revision, _)| *revision), "revision {revision}: {named:?}");
            let is_last = images.range(revision + 1..).next().is_none();
            ensure!(!is_last || is_gone != is_there, "revision {revision}: the object is there: {is_there}");
        }
        Ok(())
    }

    fn check_event(&self, revision: u64, event: &AuditEvent) -> Result<()> {
        ensure!(!event.principal.is_empty() && event.at.0 > 0, "{event:?}");
        for object in event.objects.iter().filter(|object| object.action != Action::Unchanged) {
            let images = self.images.get(&format!("{}/{}", object.kind.word(), object.uuid));
            ensure!(images.is_some_and(|images| images.contains_key(&revision)), "no after-image of {object:?}");
        }
        Ok(())
    }
}

/// A key that ends in a revision: what stands before that below the prefix, and the revision.
fn at_revision<'a>(key: &'a [u8], prefix: &str) -> Result<(&'a str, u64)> {
    let rest = key.strip_prefix(prefix.as_bytes()).context("a key below its prefix")?;
    let (name, revision) = rest.split_last_chunk::<8>().context("a key that ends in a revision")?;
    Ok((std::str::from_utf8(name)?, u64::from_be_bytes(*revision)))
}
