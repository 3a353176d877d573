//! The fleet in memory as of one revision: what handlers answer from and what writes are decided on.

use std::sync::Arc;

use imbl::OrdMap;
use serde::de::DeserializeOwned;
use stemma_core::object::{
    ClusterSpec, ClusterTemplateSpec, NodeGroupSpec, NodeSpec, Object, PrimarySpec, ReleaseSpec, ReleaseTagsSpec,
};
use stemma_wire::message::Hash;
use uuid::Uuid;

use super::shelf::Shelf;
use crate::registry::reported::{
    ObservationRecord, ProfileRecord, ReleasedRecord, ReportRecord, ResultsRecord, SeenRecord,
};
use crate::registry::{Stored, codec, key};
use crate::store::{Revision, StoreError};

/// Records by node.
pub type ByNode<T> = OrdMap<Uuid, Arc<T>>;

/// Everything that is stored and decides something, as of one revision. A clone is free.
#[derive(Clone, Default)]
pub struct Model {
    /// The revision of the store that this is.
    pub revision: Revision,
    /// Releases, by `NAME@VERSION`.
    pub releases: Shelf<ReleaseSpec>,
    /// User-defined tags beside releases, by the release's name.
    pub release_tags: Shelf<ReleaseTagsSpec>,
    /// Cluster templates.
    pub templates: Shelf<ClusterTemplateSpec>,
    /// Clusters.
    pub clusters: Shelf<ClusterSpec>,
    /// Node groups, each named within its cluster.
    pub groups: Shelf<NodeGroupSpec>,
    /// Nodes.
    pub nodes: Shelf<NodeSpec>,
    /// Primaries, each named by its tag within its cluster.
    pub primaries: Shelf<PrimarySpec>,
    /// What hosts were seen to be.
    pub observations: ByNode<ObservationRecord>,
    /// What was released to them.
    pub released: ByNode<ReleasedRecord>,
    /// The profiles that these name.
    pub profiles: OrdMap<Hash, Arc<ProfileRecord>>,
    /// What became of their tasks.
    pub results: ByNode<ResultsRecord>,
    /// What they last said beside.
    pub reports: ByNode<ReportRecord>,
    /// When their silence began or ended.
    pub seen: ByNode<SeenRecord>,
}

/// What a change of the store touched.
#[derive(Clone, Debug)]
pub enum Changed {
    /// A release: before and after.
    Release(Pair<ReleaseSpec>),
    /// Tags beside a release.
    ReleaseTags(Pair<ReleaseTagsSpec>),
    /// A template.
    Template(Pair<ClusterTemplateSpec>),
    /// A cluster.
    Cluster(Pair<ClusterSpec>),
    /// A group.
    Group(Pair<NodeGroupSpec>),
    /// A node.
    Node(Pair<NodeSpec>),
    /// A primary.
    Primary(Pair<PrimarySpec>),
    /// What a host was seen to be.
    Observation(Uuid),
    /// What became of a node's tasks.
    Results(Uuid),
    /// A node's silence began or ended.
    Seen(Uuid),
}

/// An object before and after a change.
#[derive(Clone, Debug)]
pub struct Pair<S: Stored> {
    /// Before; `None` for a new one.
    pub before: Option<Arc<Object<S>>>,
    /// After; `None` for one that is gone.
    pub after: Option<Arc<Object<S>>>,
}

/// What stands under a key now.
pub struct Now<'a> {
    /// The value; `None`: nothing.
    pub value: Option<&'a [u8]>,
    /// The revision that wrote it.
    pub written: Revision,
    /// The revision that made it.
    pub made: Revision,
}

impl Model {
    /// Takes in one entry. What the model does not hold is passed over.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a record that can't be read.
    pub fn take(&mut self, key: &[u8], now: &Now<'_>) -> Result<Option<Changed>, StoreError> {
        if let Some((kind, uuid)) = key::read_object(key) {
            return self.take_object(kind, uuid, now).map_err(|e| corrupt(key, &e));
        }
        self.take_record(key, now).map_err(|e| corrupt(key, &e))
    }

    fn take_object(&mut self, kind: &str, uuid: Uuid, now: &Now<'_>) -> Result<Option<Changed>, codec::BadRecord> {
        Ok(match kind {
            "release" => Some(Changed::Release(swap(&mut self.releases, uuid, now)?)),
            "releasetags" => Some(Changed::ReleaseTags(swap(&mut self.release_tags, uuid, now)?)),
            "clustertemplate" => Some(Changed::Template(swap(&mut self.templates, uuid, now)?)),
            "cluster" => Some(Changed::Cluster(swap(&mut self.clusters, uuid, now)?)),
            "nodegroup" => Some(Changed::Group(swap(&mut self.groups, uuid, now)?)),
            "node" => Some(Changed::Node(swap(&mut self.nodes, uuid, now)?)),
            "primary" => Some(Changed::Primary(swap(&mut self.primaries, uuid, now)?)),
            // A kind of a later program's, in a store that this one may still open.
            _ => None,
        })
    }

    fn take_record(&mut self, key: &[u8], now: &Now<'_>) -> Result<Option<Changed>, codec::BadRecord> {
        if let Some(node) = key::read_node(key::OBSERVATIONS, key) {
            set(&mut self.observations, node, now)?;
            return Ok(Some(Changed::Observation(node)));
        }
        if let Some(node) = key::read_node(key::RESULTS, key) {
            set(&mut self.results, node, now)?;
            return Ok(Some(Changed::Results(node)));
        }
        if let Some(node) = key::read_node(key::SEEN, key) {
            set(&mut self.seen, node, now)?;
            return Ok(Some(Changed::Seen(node)));
        }
        if let Some(node) = key::read_node(key::RELEASED, key) {
            set(&mut self.released, node, now)?;
        } else if let Some(hash) = key::read_profile(key) {
            set(&mut self.profiles, hash, now)?;
        } else if let Some(node) = key::read_node(key::REPORTS, key) {
            set(&mut self.reports, node, now)?;
        }
        Ok(None)
    }
}

fn swap<S: Stored>(shelf: &mut Shelf<S>, uuid: Uuid, now: &Now<'_>) -> Result<Pair<S>, codec::BadRecord> {
    let Some(value) = now.value else { return Ok(Pair { before: shelf.take(uuid), after: None }) };
    let mut object: Object<S> = codec::decode(value)?;
    object.meta.resource_version = now.written.get();
    let object = Arc::new(object);
    let before = shelf.put(now.made.get(), Arc::clone(&object));
    Ok(Pair { before, after: Some(object) })
}

fn set<K: Ord + Clone, T: DeserializeOwned>(
    map: &mut OrdMap<K, Arc<T>>,
    key: K,
    now: &Now<'_>,
) -> Result<(), codec::BadRecord> {
    match now.value {
        Some(value) => drop(map.insert(key, Arc::new(codec::decode(value)?))),
        None => drop(map.remove(&key)),
    }
    Ok(())
}

fn corrupt(key: &[u8], error: &codec::BadRecord) -> StoreError {
    StoreError::Corrupt { what: format!("{}: {error}", key.escape_ascii()) }
}

/// A kind that the model holds.
pub trait Shelved: Stored {
    /// Where its objects are.
    fn shelf(model: &Model) -> &Shelf<Self>;
    /// The same, to change: for a decision's own copy.
    fn shelf_mut(model: &mut Model) -> &mut Shelf<Self>;
}

macro_rules! shelved {
    ($($spec:ident: $shelf:ident),+ $(,)?) => {$(
        impl Shelved for $spec {
            fn shelf(model: &Model) -> &Shelf<Self> {
                &model.$shelf
            }
            fn shelf_mut(model: &mut Model) -> &mut Shelf<Self> {
                &mut model.$shelf
            }
        }
    )+};
}

shelved!(
    ReleaseSpec: releases,
    ReleaseTagsSpec: release_tags,
    ClusterTemplateSpec: templates,
    ClusterSpec: clusters,
    NodeGroupSpec: groups,
    NodeSpec: nodes,
    PrimarySpec: primaries,
);
