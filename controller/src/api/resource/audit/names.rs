//! The past names of the objects that audited values refer to. Since the write, these objects may have been renamed or
//! deleted.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, GroupId, InspectionRuleSpec, Kind, LevelId, NamespaceSpec, NodeGroupSpec,
    NodeSpec, Object, PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::{codec, key};
use crate::registry::{damaged_record, store_error};
use crate::store::{KeyRange, ListQuery, Revision, Snapshot};

/// A kind of object whose changed values the audit shows.
pub(super) trait AuditReference: Resource {
    /// Returns the object that this spec refers to by uuid, and that the audit shows by name, such as the group of a
    /// node. Most kinds have no such object.
    fn reference(&self) -> Option<LevelId> {
        None
    }
}

impl AuditReference for ClusterSpec {
    fn reference(&self) -> Option<LevelId> {
        self.cluster_template.map(LevelId::Template)
    }
}

impl AuditReference for NodeSpec {
    fn reference(&self) -> Option<LevelId> {
        self.nodegroup.map(LevelId::Group)
    }
}

impl AuditReference for AllocationSpec {
    fn reference(&self) -> Option<LevelId> {
        self.nodegroup.map(LevelId::Group)
    }
}

impl AuditReference for PrimarySpec {
    fn reference(&self) -> Option<LevelId> {
        Some(LevelId::Node(self.node))
    }
}

impl AuditReference for PrincipalSpec {
    fn reference(&self) -> Option<LevelId> {
        self.cluster.map(LevelId::Cluster)
    }
}

impl AuditReference for ReleaseSpec {}
impl AuditReference for ReleaseTagsSpec {}
impl AuditReference for ClusterTemplateSpec {}
impl AuditReference for NodeGroupSpec {}
impl AuditReference for NamespaceSpec {}
impl AuditReference for InspectionRuleSpec {}

/// The name that an object had at a revision of the store.
#[derive(Clone)]
struct RecordedName {
    name: String,
    /// The object that the name is unique in: for a group, its cluster.
    scope: Option<Uuid>,
}

/// A range of revisions in which an object had the same name.
struct NameSpan {
    from: Revision,
    until: Revision,
    /// The name. `None` if the history no longer has it, or if the caller cannot see it.
    name: Option<RecordedName>,
}

/// The reader of the past names of objects for one page of the audit. It reads the versions of objects that the history
/// stores.
pub(super) struct NameReader<'a> {
    /// The fleet as the caller sees it.
    model: &'a Model,
    /// The whole fleet.
    full_model: Arc<Model>,
    /// The names that were read from the history for this page, by kind and uuid of the object.
    cached_spans: BTreeMap<(Kind, Uuid), Vec<NameSpan>>,
    /// Size of the stored versions that were read since the last call of [`Self::take_bytes`], in bytes.
    uncounted_bytes: usize,
}

impl<'a> NameReader<'a> {
    /// Creates a reader that has not read any names.
    pub(super) fn new(model: &'a Model, full_model: Arc<Model>) -> Self {
        Self { model, full_model, cached_spans: BTreeMap::new(), uncounted_bytes: 0 }
    }

    /// Returns the size of the stored versions that were read since the last call, in bytes.
    pub(super) fn take_bytes(&mut self) -> usize {
        mem::take(&mut self.uncounted_bytes)
    }

    /// Returns the name that an object had at a revision; a group's name is `CLUSTER/GROUP`. If the object was already
    /// deleted at that revision, this is its last name. Returns `None` if the history does not reach so far back, or if
    /// the caller cannot see the object as it was then.
    ///
    /// # Errors
    /// Fails if the store fails or a stored version cannot be decoded.
    pub(super) async fn name(
        &mut self,
        snapshot: &dyn Snapshot,
        level: LevelId,
        at: Revision,
    ) -> Result<Option<String>, ApiError> {
        let recorded = match level {
            LevelId::Template(id) => self.recorded_name::<ClusterTemplateSpec>(snapshot, id.0, at).await?,
            LevelId::Cluster(id) => self.recorded_name::<ClusterSpec>(snapshot, id.0, at).await?,
            LevelId::Node(id) => self.recorded_name::<NodeSpec>(snapshot, id.0, at).await?,
            LevelId::Group(id) => return self.group_path(snapshot, id, at).await,
        };
        Ok(recorded.map(|past_name| past_name.name))
    }

    /// Returns the name that a group had at a revision, as `CLUSTER/GROUP`. Returns `None` if the name of the group or
    /// of its cluster is unknown.
    async fn group_path(&mut self, snapshot: &dyn Snapshot, id: GroupId, at: Revision) -> Result<Option<String>, ApiError> {
        let Some(group) = self.recorded_name::<NodeGroupSpec>(snapshot, id.0, at).await? else { return Ok(None) };
        // The scope of a group's name is the uuid of its cluster.
        let Some(cluster) = group.scope else { return Ok(None) };
        let cluster = self.recorded_name::<ClusterSpec>(snapshot, cluster, at).await?;
        Ok(cluster.map(|cluster| format!("{}/{}", cluster.name, group.name)))
    }

    /// Returns the name that an object of one kind had at a revision. The name is read from the current fleet if the
    /// object has not changed since that revision. Otherwise it is read from the history.
    async fn recorded_name<S: Resource>(
        &mut self,
        snapshot: &dyn Snapshot,
        uuid: Uuid,
        at: Revision,
    ) -> Result<Option<RecordedName>, ApiError> {
        // Most objects have not changed since that revision, so the model still has their name. If the model is behind
        // the revision, it cannot be used.
        let is_unchanged = |object: &&Arc<Object<S>>| at <= self.full_model.revision && object.meta.resource_version <= at.get();
        if let Some(object) = S::index(&self.full_model).get(uuid).filter(is_unchanged) {
            return Ok(self.visible_name::<S>(object));
        }
        let mut spans = self.cached_spans.get(&(S::KIND, uuid)).into_iter().flatten();
        if let Some(span) = spans.find(|span| span.from <= at && at <= span.until) {
            return Ok(span.name.clone());
        }
        let (from, version) = self.last_version::<S>(snapshot, uuid, at).await?;
        let recorded = version.and_then(|version| self.visible_name(&version));
        let span = NameSpan { from, until: at, name: recorded.clone() };
        self.cached_spans.entry((S::KIND, uuid)).or_default().push(span);
        Ok(recorded)
    }

    /// Returns the name in a stored version of an object. Returns `None` if the caller cannot see objects of the
    /// cluster in which this version is.
    fn visible_name<S: Resource>(&self, version: &Object<S>) -> Option<RecordedName> {
        let may_see = self.model.is_visible(S::access_scope(&self.full_model, version));
        may_see.then(|| RecordedName { name: S::title(version), scope: version.spec.scope() })
    }

    /// Returns the last stored version of an object up to the revision `at`. An entry of the history that records a
    /// deletion has no version, and is skipped. Also returns the revision of the last entry up to `at`. The object was
    /// not written between that revision and `at`, so it had one name in this time.
    async fn last_version<S: Resource>(
        &mut self,
        snapshot: &dyn Snapshot,
        uuid: Uuid,
        at: Revision,
    ) -> Result<(Revision, Option<Object<S>>), ApiError> {
        let prefix = key::history(S::KIND, uuid);
        let end = [prefix.as_bytes(), &at.next().to_key()].concat();
        let mut range = KeyRange::prefix(prefix).before(&end);
        let mut from = None;
        loop {
            let query = ListQuery::range(range.clone()).descending().with_limit(1);
            let list = snapshot.list(&query).await.map_err(|error| store_error(&error))?;
            let Some(entry) = list.entries.first() else { return Ok((from.unwrap_or(Revision::ZERO), None)) };
            self.uncounted_bytes += entry.value.len();
            let from = *from.get_or_insert(entry.mod_revision);
            if let Some(version) = codec::decode::<Option<Object<S>>>(&entry.value).map_err(|error| damaged_record(&error))? {
                return Ok((from, Some(version)));
            }
            range = range.before(&entry.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use stemma_core::name::ObjectName;
    use stemma_core::object::{ClusterId, Meta, Timestamp};

    use super::*;
    use crate::cache::Cache;
    use crate::store::Transaction;
    use crate::store::redb::testing::memory_store;

    /// Regression test: a model that was behind the store once returned the name before a rename as the name after the
    /// rename.
    #[tokio::test]
    async fn y06_name_reader_reads_history_when_model_is_behind_store() {
        let (store, uuid) = (memory_store(), Uuid::from_u128(1));
        let write = |name: &str| {
            let meta = Meta::new(uuid, ObjectName::new(name).unwrap(), Timestamp(0));
            let version = codec::encode(&Object { meta, spec: ClusterSpec::default() });
            let (at, history) = (key::object(Kind::Cluster, uuid), key::history(Kind::Cluster, uuid));
            store.commit(Transaction::new().put(at, version.clone()).put_at_revision(history, version))
        };
        let created = write("a").await.unwrap();
        let old_model = Cache::load(store.as_ref()).await.unwrap().model();
        let renamed = write("b").await.unwrap();
        let snapshot = store.snapshot().await.unwrap();
        let mut names = NameReader::new(&old_model, Arc::clone(&old_model));
        for (at, expected) in [(created, "a"), (renamed, "b")] {
            let name = names.name(snapshot.as_ref(), LevelId::Cluster(ClusterId(uuid)), at).await.unwrap();
            assert_eq!(name.as_deref(), Some(expected), "{at}");
        }
    }
}
