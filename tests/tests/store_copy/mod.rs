//! Reads a controller's store and checks its consistency: each object has its after-image (a copy of its value
//! in the history), each after-image has the audit event of its commit, and each request record has its commit.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use stemma_controller::records::audit::{Action, AuditEvent, AuditRecord, PrincipalRef};
use stemma_controller::records::codec;
use stemma_controller::records::key;
use stemma_controller::records::request::RequestRecord;
use stemma_controller::store::{Entry, ListQuery, RedbOptions, RedbStore, Store as _};
use stemma_core::object::{Kind, Principal};
use uuid::Uuid;

/// The objects, after-images, audit events and request records of a store. An after-image is the value of an object
/// after one commit, or null after its deletion.
pub(crate) struct StoreCopy {
    objects: Vec<Entry>,
    /// After-images by the key of the object below `history/`, then by revision.
    images: BTreeMap<String, BTreeMap<u64, Entry>>,
    /// Audit events by the revision of their commit.
    events: BTreeMap<u64, AuditEvent>,
    /// Request records by their key, each with the revision at which it was written. A request record stores the answer
    /// to a request, so that the controller can repeat the answer.
    requests: BTreeMap<String, (RequestRecord, u64)>,
}

impl StoreCopy {
    /// Reads a temporary copy of the store in a data directory. The controller must be killed, stopped or paused.
    /// Opening may repair the copy, while the store itself stays unchanged for the next controller.
    pub(crate) fn copy_from(data: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("store.redb");
        std::fs::copy(data.join("store.redb"), &path)?;
        let store = RedbStore::open(&path, RedbOptions::default())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(Self::read(&store))
    }

    /// Reads all objects, after-images, audit events and request records of a store.
    async fn read(store: &RedbStore) -> Result<Self> {
        let snapshot = store.snapshot().await?;
        let list = async |prefix: &str| anyhow::Ok(snapshot.list(&ListQuery::prefix(prefix.to_owned())).await?.entries);
        let mut images = BTreeMap::<_, BTreeMap<_, _>>::new();
        for entry in list(key::HISTORY).await? {
            let (object, revision) = split_revision(&entry.key, key::HISTORY)?;
            images.entry(object.trim_end_matches('/').to_owned()).or_default().insert(revision, entry);
        }
        let mut events = BTreeMap::new();
        for entry in list(key::AUDIT).await? {
            if let AuditRecord::Commit(event) = codec::decode(&entry.value)? {
                events.insert(split_revision(&entry.key, key::AUDIT)?.1, event);
            }
        }
        let mut requests = BTreeMap::new();
        for entry in list(key::REQUESTS).await? {
            let name = std::str::from_utf8(&entry.key)?.to_owned();
            requests.insert(name, (codec::decode(&entry.value)?, entry.mod_revision.get()));
        }
        Ok(Self { objects: list(key::OBJECTS).await?, images, events, requests })
    }

    /// Returns the record of a request and the revision at which the record was written, if it is stored.
    pub(crate) fn request_record(&self, principal: &str, id: Uuid) -> Option<&(RequestRecord, u64)> {
        let by_uuid = self.principal_uuid(principal).and_then(|uuid| self.requests.get(&key::request(&uuid, id)));
        // The key contains the principal's name instead of its uuid in two cases: the record is older than the stored
        // principal, or an earlier version of the controller wrote the record.
        by_uuid.or_else(|| self.requests.get(&key::request(principal, id)))
    }

    /// Returns the uuid of the stored principal with this name.
    fn principal_uuid(&self, principal: &str) -> Option<String> {
        self.objects.iter().find_map(|entry| {
            let (kind, uuid) = key::read_object(&entry.key)?;
            let object: Principal = (kind == Kind::Principal.word()).then(|| codec::decode(&entry.value).ok())??;
            (object.meta.name.to_string() == principal).then(|| uuid.to_string())
        })
    }

    /// Returns the audit event of a revision.
    pub(crate) fn audit_event(&self, revision: u64) -> Option<&AuditEvent> {
        self.events.get(&revision)
    }

    /// Returns the number of commits of a principal in the audit.
    pub(crate) fn commit_count(&self, principal: &str) -> usize {
        self.events.values().filter(|event| event.principal == principal).count()
    }

    /// Checks that each commit is complete: the newest after-image of an object equals the object, and after-images,
    /// audit events and request records agree.
    pub(crate) fn check(&self) -> Result<()> {
        for object in &self.objects {
            let name = std::str::from_utf8(&object.key)?.trim_start_matches(key::OBJECTS);
            let newest = self.images.get(name).and_then(BTreeMap::last_key_value);
            let (revision, image) = newest.with_context(|| format!("{name} has no after-image"))?;
            let actual = (*revision, &image.value);
            ensure!(
                actual == (object.mod_revision.get(), &object.value),
                "{name}: the newest after-image differs from the object"
            );
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
                let owner = match event.whose {
                    Some(PrincipalRef::Principal(uuid)) => uuid.to_string(),
                    Some(PrincipalRef::Nobody) | None => event.principal.clone(),
                };
                name.starts_with(&format!("{}{owner}/", key::REQUESTS))
            });
            // Only a request that changed nothing has no audit event.
            ensure!(record.answer.unchanged != is_audited, "{name} at {revision}: the audit has {event:?}");
        }
        Ok(())
    }

    /// Checks the after-images of an object: each agrees with its audit event, and the last is null if it is gone.
    fn check_images(&self, name: &str, images: &BTreeMap<u64, Entry>) -> Result<()> {
        let object = format!("{}{name}", key::OBJECTS);
        let exists = self.objects.iter().any(|entry| entry.key == object);
        for (revision, image) in images {
            let event = self.audit_event(*revision).with_context(|| format!("revision {revision} has no audit event"))?;
            let found_change = event.objects.iter().find(|object| format!("{}/{}", object.kind.word(), object.uuid) == name);
            let object_change =
                found_change.with_context(|| format!("the audit event of {revision} does not name the object"))?;
            let is_deleted = codec::decode::<Value>(&image.value)?.is_null();
            ensure!(is_deleted == (object_change.action == Action::Deleted), "revision {revision}: {object_change:?}");
            let earlier = images.range(..revision).next_back().filter(|_| object_change.action != Action::Created);
            ensure!(object_change.before == earlier.map(|(revision, _)| *revision), "revision {revision}: {object_change:?}");
            // After the last change, the object exists unless that change deleted it.
            let is_last = images.range(revision + 1..).next().is_none();
            ensure!(!is_last || is_deleted != exists, "revision {revision}: the object exists: {exists}");
        }
        Ok(())
    }

    /// Checks that an audit event has a principal and a time, and that each changed object has an after-image.
    fn check_event(&self, revision: u64, event: &AuditEvent) -> Result<()> {
        ensure!(!event.principal.is_empty() && event.at.0 > 0, "{event:?}");
        for object in event.objects.iter().filter(|object| object.action != Action::Unchanged) {
            let images = self.images.get(&format!("{}/{}", object.kind.word(), object.uuid));
            ensure!(images.is_some_and(|images| images.contains_key(&revision)), "no after-image of {object:?}");
        }
        Ok(())
    }
}

/// Splits a key that ends in a revision into the part between prefix and revision, and the revision.
fn split_revision<'a>(key: &'a [u8], prefix: &str) -> Result<(&'a str, u64)> {
    let rest = key.strip_prefix(prefix.as_bytes()).context("a key below its prefix")?;
    let (name, revision) = rest.split_last_chunk::<8>().context("a key that ends in a revision")?;
    Ok((std::str::from_utf8(name)?, u64::from_be_bytes(*revision)))
}
