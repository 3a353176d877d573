//! What the objects that values name were called when they were written: by now they may be called otherwise, or be gone.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use stemma_core::object::{
    AllocationSpec, ClusterSpec, ClusterTemplateSpec, GroupId, InspectionRuleSpec, Kind, LevelId, NamespaceSpec,
    NodeGroupSpec, NodeSpec, Object, PrimarySpec, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::{codec, key};
use crate::registry::{damaged, store_error};
use crate::store::{KeyRange, Query, Revision, Snapshot};

/// A kind of which the audit tells values.
pub(super) trait Mentions: Resource {
    /// The object that one of its values names: it is stored by uuid, and shown by name. Most kinds have no such value.
    fn mention(&self) -> Option<LevelId> {
        None
    }
}

impl Mentions for ClusterSpec {
    fn mention(&self) -> Option<LevelId> {
        self.cluster_template.map(LevelId::Template)
    }
}

impl Mentions for NodeSpec {
    fn mention(&self) -> Option<LevelId> {
        self.nodegroup.map(LevelId::Group)
    }
}

impl Mentions for AllocationSpec {
    fn mention(&self) -> Option<LevelId> {
        self.nodegroup.map(LevelId::Group)
    }
}

impl Mentions for PrimarySpec {
    fn mention(&self) -> Option<LevelId> {
        Some(LevelId::Node(self.node))
    }
}

impl Mentions for PrincipalSpec {
    fn mention(&self) -> Option<LevelId> {
        self.cluster.map(LevelId::Cluster)
    }
}

impl Mentions for ReleaseSpec {}
impl Mentions for ReleaseTagsSpec {}
impl Mentions for ClusterTemplateSpec {}
impl Mentions for NodeGroupSpec {}
impl Mentions for NamespaceSpec {}
impl Mentions for InspectionRuleSpec {}

/// What an object was called.
#[derive(Clone)]
struct Called {
    name: String,
    /// Within what.
    scope: Option<Uuid>,
}

/// Revisions between which an object was called the same.
struct Span {
    from: Revision,
    until: Revision,
    /// How; nothing where that is not kept, or not shown to who asks.
    called: Option<Called>,
}

/// Reads what objects were called, for one page.
pub(super) struct NameReader<'a> {
    /// The fleet as whoever asks sees it.
    model: &'a Model,
    /// All of it.
    whole: Arc<Model>,
    /// What was read before.
    known: BTreeMap<(Kind, Uuid), Vec<Span>>,
    /// How many bytes of images were read and not counted.
    bytes: usize,
}

impl<'a> NameReader<'a> {
    pub(super) fn new(model: &'a Model, whole: Arc<Model>) -> Self {
        Self { model, whole, known: BTreeMap::new(), bytes: 0 }
    }

    /// How many bytes were read since this was asked last.
    pub(super) fn take_bytes(&mut self) -> usize {
        mem::take(&mut self.bytes)
    }

    /// What an object was called at a revision, a group as `CLUSTER/GROUP`, and one that was gone by then before that. Nothing where the history
    /// does not reach so far back, or who asks may not see the object as it was.
    ///
    /// # Errors
    /// What the store says; an image that cannot be read.
    pub(super) async fn name(
        &mut self,
        snapshot: &dyn Snapshot,
        of: LevelId,
        at: Revision,
    ) -> Result<Option<String>, ApiError> {
        let called = match of {
            LevelId::Template(id) => self.called::<ClusterTemplateSpec>(snapshot, id.0, at).await?,
            LevelId::Cluster(id) => self.called::<ClusterSpec>(snapshot, id.0, at).await?,
            LevelId::Node(id) => self.called::<NodeSpec>(snapshot, id.0, at).await?,
            LevelId::Group(id) => return self.group_path(snapshot, id, at).await,
        };
        Ok(called.map(|called| called.name))
    }

    async fn group_path(
        &mut self,
        snapshot: &dyn Snapshot,
        id: GroupId,
        at: Revision,
    ) -> Result<Option<String>, ApiError> {
        let Some(group) = self.called::<NodeGroupSpec>(snapshot, id.0, at).await? else { return Ok(None) };
        let Some(cluster) = group.scope else { return Ok(None) };
        let cluster = self.called::<ClusterSpec>(snapshot, cluster, at).await?;
        Ok(cluster.map(|cluster| format!("{}/{}", cluster.name, group.name)))
    }

    async fn called<S: Resource>(
        &mut self,
        snapshot: &dyn Snapshot,
        uuid: Uuid,
        at: Revision,
    ) -> Result<Option<Called>, ApiError> {
        // Most have not changed since, and nothing has to be read. The cache may be behind the store: then it does not know.
        let is_as_then = |now: &&Arc<Object<S>>| at <= self.whole.revision && now.meta.resource_version <= at.get();
        if let Some(now) = S::shelf(&self.whole).get(uuid).filter(is_as_then) {
            return Ok(self.if_seen::<S>(now));
        }
        let mut spans = self.known.get(&(S::KIND, uuid)).into_iter().flatten();
        if let Some(span) = spans.find(|span| span.from <= at && at <= span.until) {
            return Ok(span.called.clone());
        }
        let (from, image) = self.last_image::<S>(snapshot, uuid, at).await?;
        let called = image.and_then(|image| self.if_seen(&image));
        let span = Span { from, until: at, called: called.clone() };
        self.known.entry((S::KIND, uuid)).or_default().push(span);
        Ok(called)
    }

    /// What an image calls its object, where who asks may see it where it stood.
    fn if_seen<S: Resource>(&self, image: &Object<S>) -> Option<Called> {
        let is_seen = self.model.sees(S::place(&self.whole, image));
        is_seen.then(|| Called { name: S::title(image), scope: image.spec.scope() })
    }

    /// The last image of an object up to a revision that is not the one of its end, and from which revision on nothing else was written of it.
    async fn last_image<S: Resource>(
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
            let query = Query::range(range.clone()).descending().limit(1);
            let list = snapshot.list(&query).await.map_err(|error| store_error(&error))?;
            let Some(entry) = list.entries.first() else { return Ok((from.unwrap_or(Revision::ZERO), None)) };
            self.bytes += entry.value.len();
            let from = *from.get_or_insert(entry.mod_revision);
            if let Some(image) = codec::decode::<Option<Object<S>>>(&entry.value).map_err(|error| damaged(&error))? {
                return Ok((from, Some(image)));
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

    /// A fleet that did not know of a rename yet gave the name before it as the one after it.
    #[tokio::test]
    async fn y06_a_fleet_that_is_behind_the_store_does_not_say_what_an_object_was_called() {
        let (store, uuid) = (memory_store(), Uuid::from_u128(1));
        let write = |name: &str| {
            let meta = Meta::new(uuid, ObjectName::new(name).unwrap(), Timestamp(0));
            let image = codec::encode(&Object { meta, spec: ClusterSpec::default() });
            let (at, history) = (key::object(Kind::Cluster, uuid), key::history(Kind::Cluster, uuid));
            store.commit(Transaction::new().put(at, image.clone()).put_at_revision(history, image))
        };
        let made = write("a").await.unwrap();
        let behind = Cache::load(store.as_ref()).await.unwrap().model();
        let renamed = write("b").await.unwrap();
        let snapshot = store.snapshot().await.unwrap();
        let mut names = NameReader::new(&behind, Arc::clone(&behind));
        for (at, expected) in [(made, "a"), (renamed, "b")] {
            let name = names.name(snapshot.as_ref(), LevelId::Cluster(ClusterId(uuid)), at).await.unwrap();
            assert_eq!(name.as_deref(), Some(expected), "{at}");
        }
    }
}
