//! The fleet in memory at one revision of the store. Handlers build responses from it, and writes are decided with it.
//!
//! A model refers to most objects twice. An index contains the object, for lists and names. The `Fleet` of
//! `stemma_core` contains it too, with the values that are computed from all objects, but without allocations and
//! principals. Both are persistent (immutable, shared) data structures, so a clone of the model is cheap. To decide a
//! write, the controller clones the model, changes the clone, and drops the clone afterwards.

mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use serde::de::DeserializeOwned;
use stemma_core::access::{AccessScope, Rights};
use stemma_core::epoch::{EpochHistory, HeldRevision};
use stemma_core::fleet::{DirtyNodes, Fleet, FleetChange};
use stemma_core::name::{NodeName, ReleaseRef};
use stemma_core::object::{
    AllocationSpec, ClusterId, ClusterSpec, ClusterTemplateSpec, DroppedReportCounts, InspectionRuleSpec, Kind, NamespaceSpec,
    NodeGroupSpec, NodeId, NodeSpec, Object, PrimarySpec, PrincipalRole, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec,
    ReportedState, Timestamp,
};
use stemma_core::release::ReleaseError;
use stemma_core::resolve::{Resolution, ResolveCache, resolve_node};
use stemma_core::status::{STUCK_FACT, stuck_reason};
use stemma_core::task::Task;
use stemma_wire::message::Hash;
use uuid::Uuid;

pub use kinds::index::{ListOrder, ObjectIndex};
pub use kinds::{ObjectReference, Resource, certificate_key, fixed_content_error, protected_error, token_key};

use crate::records::common_values::{CommonValues, ValueList, ValuePart};
use crate::records::enrolled::{TokenRecord, TokenTarget};
use crate::records::fleet::BackupRecord;
use crate::records::reported::{
    LivenessRecord, ObservationRecord, ProfileRecord, ReleasedRecord, ReportRecord, ResultsRecord, SentRecord, StoredResult,
    agent_facts,
};
use crate::records::{codec, key};
use crate::store::{Revision, StoreError};
use kinds::KINDS;

/// A map of records by the uuid of their node.
pub type ByNode<T> = OrdMap<Uuid, Arc<T>>;

/// The fleet at one revision of the store: all objects, and the records from which decisions and responses are
/// computed. A clone is cheap.
#[derive(Clone, Default)]
pub struct Model {
    /// The revision of the store at which the model is.
    pub revision: Revision,
    /// The objects of the indexes below, except allocations and principals, with the computed relations between them
    /// (such as inherited labels and roles). Releases are in their compiled form.
    pub fleet: Fleet,
    /// The cache of task sets and of the values from which they are computed. An entry is found by its content. So all
    /// readers and all pending writes share this cache, although their models are at different revisions.
    pub resolve_cache: Arc<ResolveCache>,
    /// The index of releases, each named `NAME@VERSION`.
    pub releases: ObjectIndex<ReleaseSpec>,
    /// The reasons why stored releases do not compile, by release.
    pub broken_releases: OrdMap<ReleaseRef, Arc<str>>,
    /// The tags that users declared in addition to a release's content, by the name of the release without a version.
    pub release_tags: ObjectIndex<ReleaseTagsSpec>,
    /// Cluster templates.
    pub templates: ObjectIndex<ClusterTemplateSpec>,
    /// Clusters.
    pub clusters: ObjectIndex<ClusterSpec>,
    /// The index of node groups. The name of a group is unique in its cluster.
    pub groups: ObjectIndex<NodeGroupSpec>,
    /// Nodes.
    pub nodes: ObjectIndex<NodeSpec>,
    /// Allocations.
    pub allocations: ObjectIndex<AllocationSpec>,
    /// The index of stored primaries. Each is named by its tag, and its scope is its cluster.
    pub primaries: ObjectIndex<PrimarySpec>,
    /// Principals.
    pub principals: ObjectIndex<PrincipalSpec>,
    /// The cluster to which the caller that uses this model is bound. The indexes then hide objects of other clusters,
    /// and objects of no cluster unless every caller may read them. `None` means that everything is visible.
    pub visible_cluster: Option<ClusterId>,
    /// The index of namespaces of the catalogue.
    pub namespaces: ObjectIndex<NamespaceSpec>,
    /// The index of inspection rules (as in Ironic).
    pub rules: ObjectIndex<InspectionRuleSpec>,
    /// The time at which a namespace first named a resource type (of Glance), by resource type.
    pub resource_types: OrdMap<String, Arc<Timestamp>>,
    /// The last observation of each host: its stable facts, its detected traits, and the labels of its label files.
    pub observations: ByNode<ObservationRecord>,
    /// The pause, hold and park that root set on each host with `stemma-agent`, as the host reported them last.
    pub reported_states: ByNode<ReportedState>,
    /// The task set that was last released to each node.
    pub released: ByNode<ReleasedRecord>,
    /// The profiles to which the released task sets refer, by hash. A profile has the definitions and the order of
    /// tasks.
    pub profiles: OrdMap<Hash, Arc<ProfileRecord>>,
    /// The lists of values that many task sets have in common, by hash. Released task sets refer to them.
    pub value_lists: OrdMap<Hash, Arc<ValueList>>,
    /// The parts of the lists of values that many task sets have in common, by hash.
    pub common_parts: OrdMap<Hash, Arc<ValuePart>>,
    /// The pieces of large texts in released task sets, and in the values that many task sets have in common, by hash.
    pub common_chunks: OrdMap<Hash, Arc<str>>,
    /// The last results of each node's tasks.
    pub results: ByNode<ResultsRecord>,
    /// The last stored `Report` message of each host's agent, without the results of tasks.
    pub reports: ByNode<ReportRecord>,
    /// The time at which each node became silent (its agent did not check in), or at which it checked in again.
    pub silence: ByNode<LivenessRecord>,
    /// The record of the desired state that was last sent to each host, and whether the host has confirmed it.
    pub sent_records: ByNode<SentRecord>,
    /// The revision of the store when the first record of [`Self::sent_records`] was written. If a host has no such
    /// record, no desired state of a later revision was sent to it. `None` if the store never had such a record.
    pub sent_recorded_since: Option<HeldRevision>,
    /// The epochs of the store. `None` if the store is in its first epoch.
    pub epoch_history: Option<Arc<Versioned<EpochHistory>>>,
    /// The record of the last backup, if there is one.
    pub last_backup: Option<Arc<Versioned<BackupRecord>>>,
    /// The join tokens, by id.
    pub tokens: OrdMap<String, Arc<Versioned<TokenRecord>>>,
    /// The marks: keys without a value, each with the revision of its last write. A write that relies on something
    /// unchanged fails if a concurrent write has written the mark for it (see [`key::MARKS`]).
    pub marks: OrdMap<String, Revision>,
}

/// A record and the revision that last wrote it. A commit that depends on the record fails if the record has another
/// revision by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The decoded record.
    pub record: T,
    /// The revision that last wrote the record.
    pub mod_revision: Revision,
}

/// The nodes that one or more changes of the store affect.
#[derive(Clone, Debug, Default)]
pub struct AffectedNodes {
    /// Nodes for which resolving may now have another result.
    pub dirty: DirtyNodes,
    /// Nodes whose state may have changed although they are resolved as before, with the tasks whose result was
    /// replaced, added or removed. The set of tasks is empty if something else changed, such as the facts that the
    /// node's agent reports about itself.
    pub new_results: BTreeMap<Uuid, BTreeSet<String>>,
    /// Nodes that were deleted.
    pub deleted: BTreeSet<Uuid>,
    /// True if all nodes must count as affected, for example because the whole store was read again.
    pub all: bool,
}

impl AffectedNodes {
    /// Adds the nodes that another change affects.
    pub fn extend(&mut self, other: Self) {
        self.dirty.extend(other.dirty);
        for (node, tasks) in other.new_results {
            self.new_results.entry(node).or_default().extend(tasks);
        }
        self.deleted.extend(other.deleted);
        self.all |= other.all;
    }
}

/// The value and revisions of one key of the store.
pub struct StoredValue<'a> {
    /// The value, or `None` if the key does not exist.
    pub value: Option<&'a [u8]>,
    /// The revision that last wrote or deleted the key.
    pub mod_revision: Revision,
    /// The revision that created the key. It has no meaning if the key does not exist.
    pub create_revision: Revision,
}

impl Model {
    /// Returns the name of a node for log lines, which also contain its uuid. Returns `None` if the node does not exist
    /// or has no name.
    pub fn node_name(&self, node: Uuid) -> Option<&str> {
        self.nodes.get(node)?.meta.name.as_ref().map(NodeName::as_str)
    }

    /// Returns the hashes of all file bodies that are still needed: those that stored releases or released task sets
    /// name.
    pub fn named_blobs(&self) -> BTreeSet<Hash> {
        let mut hashes: BTreeSet<Hash> = self.profiles.values().flat_map(|profile| profile.blobs.iter().copied()).collect();
        let sources = self.releases.iter().flat_map(|release| &release.spec.tasks).flat_map(Task::sources);
        hashes.extend(sources.filter_map(|(_, source)| Hash::from_source(source).ok()));
        hashes
    }

    /// Returns the model as a caller that is bound to `visible_cluster` sees it: the indexes hide the objects of other
    /// clusters, and objects of no cluster unless every caller may read them. The `Fleet` in it stays complete, because
    /// the cluster's nodes may depend on all of it. For `None`, the model is returned unchanged.
    ///
    /// An object that is added to the returned model later is visible, so that a write sees its own new objects. Other
    /// code checks whether the caller may write the object.
    #[must_use]
    pub fn visible_in(self: &Arc<Self>, visible_cluster: Option<ClusterId>) -> Arc<Self> {
        let Some(cluster) = visible_cluster else { return Arc::clone(self) };
        let mut visible = Self { visible_cluster, ..Self::clone(self) };
        for functions in &KINDS {
            (functions.hide)(&mut visible, self, cluster);
        }
        Arc::new(visible)
    }

    /// Hides the objects of one kind that a caller that is bound to `cluster` cannot see. `full_model` is the model in
    /// which nothing is hidden.
    fn hide_other_clusters<S: Resource>(&mut self, full_model: &Arc<Self>, cluster: ClusterId) {
        // Every role may read, so the lowest one shows the same objects.
        let (full_model, rights) = (Arc::clone(full_model), Rights { role: PrincipalRole::Viewer, cluster: Some(cluster) });
        let full_model_for_list = Arc::clone(&full_model);
        // An object that the full model does not have was created by a write on this model, and is visible.
        let is_visible =
            move |uuid| S::index(&full_model).get(uuid).is_none_or(|object| rights.can_see(S::access_scope(&full_model, object)));
        let short_list = move |limit| S::objects_in_cluster(&full_model_for_list, cluster, limit);
        S::index_mut(self).show_only(is_visible, short_list);
    }

    /// Makes all objects visible again, also those that are hidden from the caller of this model.
    pub fn show_all(&mut self) {
        self.visible_cluster = None;
        for functions in &KINDS {
            (functions.show_all)(self);
        }
    }

    /// Returns the numbers of facts, task results and texts that were dropped or cut when the last report of the node's
    /// host and the results of its tasks were stored. Dropped items of the host's observation are not counted.
    pub fn dropped_counts(&self, node: Uuid) -> DroppedReportCounts {
        let report_counts = self.reports.get(&node).map(|record| record.left_out).unwrap_or_default();
        let result_counts = self.results.get(&node).map(|record| record.dropped_counts()).unwrap_or_default();
        report_counts.merge(result_counts)
    }

    /// Returns the nodes for which a part of the host's observation, last report or task results was not stored.
    pub fn nodes_with_dropped_reports(&self) -> impl Iterator<Item = Uuid> {
        let is_completely_stored = |node: &Uuid| {
            let observation = self.observations.get(node);
            observation.is_none_or(|record| record.observation.not_taken.is_none()) && self.dropped_counts(*node).is_empty()
        };
        self.nodes.iter().map(|node| node.meta.uuid).filter(move |node| !is_completely_stored(node))
    }

    /// Returns the nodes whose last report has [`Self::host_findings`].
    pub fn nodes_with_host_findings(&self) -> impl Iterator<Item = Uuid> {
        self.nodes.iter().map(|node| node.meta.uuid).filter(|node| self.host_findings(*node).next().is_some())
    }

    /// Returns the findings in the last report of a node's host, such as labels that the host could not use. The reason
    /// why its agent is stuck is omitted, because it has a separate finding.
    pub fn host_findings(&self, node: Uuid) -> impl Iterator<Item = &str> {
        let report = self.reports.get(&node).map(|record| &record.report);
        let stuck_reason_text = report.and_then(|report| stuck_reason(report.facts.get(STUCK_FACT)?));
        let findings = report.into_iter().flat_map(|report| &report.findings).map(String::as_str);
        findings.filter(move |finding| Some(*finding) != stuck_reason_text.as_deref())
    }

    /// Returns whether the caller of this model can see objects in this access scope.
    pub fn is_visible(&self, scope: AccessScope) -> bool {
        Rights { role: PrincipalRole::Viewer, cluster: self.visible_cluster }.can_see(scope)
    }

    /// Returns the access scope of an object, or `None` if the object does not exist or is not visible.
    pub fn access_scope(&self, kind: Kind, uuid: Uuid) -> Option<AccessScope> {
        (kinds::kind_ops(kind.name())?.access_scope)(self, uuid)
    }

    /// Returns the title of an object (its name, or else its uuid), or `None` if the object does not exist or is not
    /// visible.
    pub fn title(&self, kind: Kind, uuid: Uuid) -> Option<String> {
        (kinds::kind_ops(kind.name())?.title)(self, uuid)
    }

    /// Returns the access scope of the hosts that can join with a token which has this target.
    pub fn token_scope(&self, target: TokenTarget) -> AccessScope {
        let cluster = match target {
            // Such a host creates a node without a group, so the node is in no cluster.
            TokenTarget::Fleet => None,
            TokenTarget::Group(uuid) => self.groups.get(uuid).map(|group| group.spec.cluster),
            TokenTarget::Node(uuid) => self.fleet.cluster_of_node(NodeId(uuid)),
        };
        cluster.map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }

    /// Resolves a node: computes its effective labels, tags, task set and other values from the fleet.
    pub fn resolve(&self, node: Uuid) -> Resolution {
        resolve_node(&self.fleet, &self.resolve_cache, NodeId(node))
    }

    /// Returns the number of nodes in a cluster. For `None`, returns the number of nodes that are in no cluster.
    pub fn count_nodes_in(&self, cluster: Option<ClusterId>) -> usize {
        let count_in_clusters = || self.clusters.iter().map(|cluster| self.fleet.node_count(ClusterId(cluster.meta.uuid))).sum();
        cluster.map_or_else(|| self.nodes.len().saturating_sub(count_in_clusters()), |cluster| self.fleet.node_count(cluster))
    }

    /// Returns the kind and the full title ([`Resource::full_title`]) of each visible object that refers to `target`.
    pub fn referrers<'m>(&'m self, target: &'m ObjectReference) -> impl Iterator<Item = (Kind, String)> {
        KINDS.iter().flat_map(|functions| (functions.referrers)(self, target).map(|name| (functions.kind, name)))
    }

    /// Inserts or replaces an object in its index and in the fleet. Returns the nodes that this affects.
    ///
    /// # Errors
    /// Fails with the errors of a release that does not compile. In this case nothing is changed.
    pub fn put<S: Resource>(
        &mut self,
        create_revision: u64,
        object: &Arc<Object<S>>,
    ) -> Result<AffectedNodes, Vec<ReleaseError>> {
        let mut changes = S::put_changes(self, object)?;
        // The fleet finds a release by its name. After a rename, the release with the old name must be removed from it.
        // The reference to any other object contains its uuid and does not change.
        let old_object = S::index(self)
            .get(object.meta.uuid)
            .filter(|old_object| old_object.meta.name != object.meta.name)
            .filter(|old_object| ObjectReference::new::<S>(old_object) != ObjectReference::new::<S>(object));
        changes.extend(old_object.and_then(|old_object| S::remove_change(old_object)));
        for change in &changes {
            if let FleetChange::Release(compiled) = change {
                self.broken_releases.remove(&compiled.name);
            }
            if let FleetChange::RemoveRelease(name) = change {
                self.broken_releases.remove(name);
            }
        }
        let affected = self.apply_changes(changes);
        S::index_mut(self).insert(create_revision, Arc::clone(object));
        Ok(affected)
    }

    /// Removes an object from its index and from the fleet. Returns the object and the affected nodes, or `None` if it
    /// does not exist.
    pub fn remove<S: Resource>(&mut self, uuid: Uuid) -> Option<(Arc<Object<S>>, AffectedNodes)> {
        let object = S::index_mut(self).remove(uuid)?;
        let change = S::remove_change(&object);
        if let Some(FleetChange::RemoveRelease(name)) = &change {
            self.broken_releases.remove(name);
        }
        let mut affected = self.apply_changes(change.into_iter().collect());
        if S::KIND == Kind::Node {
            affected.deleted.insert(uuid);
        }
        Some((object, affected))
    }

    /// Applies changes to the fleet, and returns the nodes for which resolving may now have another result.
    fn apply_changes(&mut self, changes: Vec<FleetChange>) -> AffectedNodes {
        let dirty = self.fleet.apply_all(changes);
        AffectedNodes { dirty, ..AffectedNodes::default() }
    }

    /// Adds all loaded objects, observations and reported states to the fleet, in one pass. A stored release may not
    /// compile, because another version of the controller accepted it by different rules. Such a release is recorded as
    /// broken, and each cluster with nodes that use it has a finding. These nodes cannot be resolved completely.
    pub(super) fn finish_load(&mut self) {
        let mut changes: Vec<FleetChange> = KINDS.iter().flat_map(|functions| (functions.load_changes)(self)).collect();
        changes.extend(self.observations.iter().map(|(node, record)| observation_change(*node, record)));
        changes.extend(
            self.reported_states.iter().map(|(node, state)| FleetChange::ReportedState(NodeId(*node), Some(Arc::clone(state)))),
        );
        // The affected nodes are not needed, because the next pass of the reconciler resolves all nodes.
        drop(self.fleet.apply_all(changes));
        self.fleet.build_index(self.nodes.iter().map(|node| node.id()));
        // Until this call, every node counts as not resolvable.
        self.fleet.set_loaded();
    }

    /// Adds one entry of the store to the model, while the whole store is read: at a start, or after the watch missed
    /// changes. When all entries are read, the caller must call [`Self::finish_load`].
    ///
    /// # Errors
    /// Fails with [`StoreError::Corrupt`] or [`StoreError::Newer`] if the record cannot be decoded.
    pub(super) fn read_entry(&mut self, key: &[u8], stored: &StoredValue<'_>) -> Result<(), StoreError> {
        match key::read_object(key) {
            Some((kind, _)) => kinds::kind_ops(kind).map_or(Ok(()), |functions| (functions.read_entry)(self, stored)),
            None => self.apply_record(key, stored).map(drop),
        }
        .map_err(|error| record_error(key, &error))
    }

    /// Applies one change of a key to the model, and returns the nodes that it affects. A key that the model does not
    /// contain is ignored.
    ///
    /// # Errors
    /// Fails with [`StoreError::Corrupt`] or [`StoreError::Newer`] if the record cannot be decoded.
    pub fn apply_entry(&mut self, key: &[u8], stored: &StoredValue<'_>) -> Result<AffectedNodes, StoreError> {
        let result = match key::read_object(key) {
            Some((kind, uuid)) => kinds::kind_ops(kind)
                .map_or_else(|| Ok(AffectedNodes::default()), |functions| (functions.apply_entry)(self, uuid, stored)),
            None => self.apply_record(key, stored),
        };
        result.map_err(|error| record_error(key, &error))
    }

    /// Adds a loaded object to its index, but not to the fleet: [`Self::finish_load`] does that.
    fn load_object<S: Resource>(&mut self, stored: &StoredValue<'_>) -> Result<(), codec::BadRecord> {
        if let Some(value) = stored.value {
            S::index_mut(self).insert(stored.create_revision.get(), decode_object(value, stored)?);
        }
        Ok(())
    }

    /// Applies a committed write or deletion of an object. Returns the nodes that it affects.
    fn apply_object<S: Resource>(&mut self, uuid: Uuid, stored: &StoredValue<'_>) -> Result<AffectedNodes, codec::BadRecord> {
        let Some(value) = stored.value else {
            return Ok(self.remove::<S>(uuid).map(|(_, affected)| affected).unwrap_or_default());
        };
        let object = decode_object::<S>(value, stored)?;
        match self.put(stored.create_revision.get(), &object) {
            Ok(affected) => Ok(affected),
            // Another version of the controller accepted the release by different rules. The fleet keeps the last
            // version of the release that compiled.
            Err(errors) => {
                if let Some(name) = S::name_text(&object.meta.name).and_then(|name| ReleaseRef::new(&name).ok()) {
                    self.record_broken(&name, &errors);
                }
                S::index_mut(self).insert(stored.create_revision.get(), object);
                Ok(AffectedNodes::default())
            }
        }
    }

    /// Records that a stored release does not compile, with the reasons.
    fn record_broken(&mut self, name: &ReleaseRef, errors: &[ReleaseError]) {
        let reason = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        self.broken_releases.insert(name.clone(), reason.into());
    }

    /// Logs each release that does not compile, unless `previous` has it with the same reason. Call this after all
    /// changes of a commit. Before, a release may lack an import that the same commit creates.
    pub fn log_broken_releases(&self, previous: &Self) {
        for (name, reason) in &self.broken_releases {
            if previous.broken_releases.get(name) != Some(reason) {
                log::error!(release:% = name, reason:% = reason; "a stored release does not compile");
            }
        }
    }

    /// Applies a stored or deleted record that is not an object, and returns the nodes that this affects. The key
    /// determines the map or field of the model. A record that the model does not contain is ignored.
    fn apply_record(&mut self, key: &[u8], stored: &StoredValue<'_>) -> Result<AffectedNodes, codec::BadRecord> {
        let find_node_record = |(prefix, apply): &(&str, ApplyRecord)| Some((key::read_node(prefix, key)?, *apply));
        if let Some((node, apply)) = NODE_RECORDS.iter().find_map(find_node_record) {
            return apply(self, node, stored);
        }
        if let Some(hash) = key::read_profile(key) {
            set_record(&mut self.profiles, hash, stored)?;
        } else if let Some(hash) = key::read_common_chunk(key) {
            match stored.value {
                Some(value) => {
                    let mut chunk: Arc<str> = codec::decode::<String>(value)?.into();
                    self.resolve_cache.texts().intern_all([&mut chunk].into_iter());
                    self.common_chunks.insert(hash, chunk);
                }
                None => drop(self.common_chunks.remove(&hash)),
            }
        } else if let Some(hash) = key::read_common_part(key) {
            let (chunks, texts) = (&self.common_chunks, self.resolve_cache.texts());
            set_converted_record(&mut self.common_parts, hash, stored, |stored: CommonValues| {
                stored.resolve_part(|hash| chunks.get(hash).cloned(), texts)
            })?;
        } else if let Some(hash) = key::read_common_values(key) {
            let parts = &self.common_parts;
            set_converted_record(&mut self.value_lists, hash, stored, |stored: CommonValues| {
                stored.resolve_list(|name| parts.get(name).cloned())
            })?;
        } else if let Some(token) = key::read_token(key) {
            match stored.value {
                Some(value) => {
                    let entry = Versioned { record: codec::decode(value)?, mod_revision: stored.mod_revision };
                    self.tokens.insert(token.to_owned(), Arc::new(entry));
                }
                None => drop(self.tokens.remove(token)),
            }
        } else if key == key::EPOCH_LINE.as_bytes() {
            let history = stored.value.map(codec::decode).transpose()?;
            self.epoch_history = history.map(|record| Arc::new(Versioned { record, mod_revision: stored.mod_revision }));
            // A new epoch can change the state of every node, because no host has reached that epoch yet.
            return Ok(AffectedNodes { all: true, ..AffectedNodes::default() });
        } else if key == key::SENT_SINCE.as_bytes() {
            self.sent_recorded_since = stored.value.map(codec::decode).transpose()?;
        } else if key == key::LAST_BACKUP.as_bytes() {
            let backup = stored.value.map(codec::decode).transpose()?;
            self.last_backup = backup.map(|record| Arc::new(Versioned { record, mod_revision: stored.mod_revision }));
        } else if let Some(name) = key::read_resource_type(key) {
            set_record(&mut self.resource_types, name.to_owned(), stored)?;
        } else if let Some(mark) = key::read_mark(key) {
            match stored.value {
                Some(_) => drop(self.marks.insert(mark.to_owned(), stored.mod_revision)),
                None => drop(self.marks.remove(mark)),
            }
        }
        Ok(AffectedNodes::default())
    }
}

/// A function that applies a write or deletion of one record of a node, and returns the affected nodes.
type ApplyRecord = fn(&mut Model, Uuid, &StoredValue<'_>) -> Result<AffectedNodes, codec::BadRecord>;

/// The records that exist for each node: the prefix of their keys, and the function that applies a record.
const NODE_RECORDS: [(&str, ApplyRecord); 7] = [
    (key::OBSERVATIONS, |model, node, stored| {
        let texts = model.resolve_cache.texts();
        set_converted_record(&mut model.observations, node, stored, |record: ObservationRecord| {
            Ok(record.with_shared_facts(texts))
        })?;
        let change = match model.observations.get(&node) {
            Some(record) => observation_change(node, record),
            None => FleetChange::RemoveObservation(NodeId(node)),
        };
        Ok(model.apply_changes(vec![change]))
    }),
    (key::REPORTED_STATES, |model, node, stored| {
        set_record(&mut model.reported_states, node, stored)?;
        Ok(model.apply_changes(vec![FleetChange::ReportedState(NodeId(node), model.reported_states.get(&node).cloned())]))
    }),
    (key::RELEASED, |model, node, stored| {
        let (common, chunks) = (&model.value_lists, &model.common_chunks);
        set_converted_record(&mut model.released, node, stored, |stored: ReleasedRecord| {
            let chunk = |hash: &Hash| chunks.get(hash).cloned();
            stored.resolve(|name| common.get(name).cloned(), chunk, model.resolve_cache.texts())
        })?;
        Ok(AffectedNodes::default())
    }),
    (key::RESULTS, |model, node, stored| {
        let old_results = model.results.get(&node).cloned();
        set_record(&mut model.results, node, stored)?;
        let tasks = changed_tasks(old_results.as_deref(), model.results.get(&node).map(|record| &**record));
        Ok(AffectedNodes { new_results: BTreeMap::from([(node, tasks)]), ..AffectedNodes::default() })
    }),
    (key::REPORTS, |model, node, stored| {
        let old_report = model.reports.get(&node).cloned();
        set_record(&mut model.reports, node, stored)?;
        let is_same = report_facts(old_report.as_ref()).eq(report_facts(model.reports.get(&node)));
        let new_results = (!is_same).then(|| (node, BTreeSet::new())).into_iter().collect();
        Ok(AffectedNodes { new_results, ..AffectedNodes::default() })
    }),
    (key::LIVENESS, |model, node, stored| set_record(&mut model.silence, node, stored).map(|()| AffectedNodes::default())),
    (key::SENT_STATES, |model, node, stored| {
        let epoch = |model: &Model| model.sent_records.get(&node).map(|sent| sent.epoch);
        let old_epoch = epoch(model);
        set_record(&mut model.sent_records, node, stored)?;
        let has_changed = old_epoch.is_some() && old_epoch != epoch(model);
        let new_results = has_changed.then(|| (node, BTreeSet::new())).into_iter().collect();
        Ok(AffectedNodes { new_results, ..AffectedNodes::default() })
    }),
];

/// Returns the prefixes of all keys that the model contains, in the order in which a start loads them.
pub(super) fn prefixes() -> impl Iterator<Item = &'static str> {
    let node_records = NODE_RECORDS.iter().map(|(prefix, _)| *prefix);
    let other_records = [key::PROFILES, key::TOKENS, key::RESOURCE_TYPES, key::SENT_SINCE, key::EPOCH_LINE, key::LAST_BACKUP];
    // A record that other records complete is loaded after them: common values after their chunks and parts, and task
    // sets after the common values.
    let common_values = [key::COMMON_CHUNKS, key::COMMON_PARTS, key::COMMON_VALUES];
    [key::OBJECTS].into_iter().chain(common_values).chain(node_records).chain(other_records).chain(key::MARKS)
}

/// Returns the facts in a report that an agent reports about itself. The result is empty if there is no report.
fn report_facts(record: Option<&Arc<ReportRecord>>) -> impl Iterator<Item = (&String, &String)> {
    record.into_iter().flat_map(|record| agent_facts(&record.report))
}

/// Returns the tasks that have different results in two records, or a result in only one of them.
fn changed_tasks(old_results: Option<&ResultsRecord>, new_results: Option<&ResultsRecord>) -> BTreeSet<String> {
    let no_results = BTreeMap::new();
    let old_results = old_results.map_or(&no_results, |record| &record.tasks);
    let new_results = new_results.map_or(&no_results, |record| &record.tasks);
    let differs = |(task, outcome): &(&String, &StoredResult)| old_results.get(*task) != Some(outcome);
    let removed = old_results.keys().filter(|task| !new_results.contains_key(*task));
    new_results.iter().filter(differs).map(|(task, _)| task).chain(removed).cloned().collect()
}

/// Returns the change that adds the last observation of a node's host to the fleet.
fn observation_change(node: Uuid, record: &Arc<ObservationRecord>) -> FleetChange {
    FleetChange::Observation(NodeId(node), Arc::new(record.observation.clone()))
}

/// Decodes a stored object, and sets its `resource_version` to the revision that last wrote it.
fn decode_object<S: Resource>(value: &[u8], stored: &StoredValue<'_>) -> Result<Arc<Object<S>>, codec::BadRecord> {
    let mut object: Object<S> = codec::decode(value)?;
    object.meta.resource_version = stored.mod_revision.get();
    Ok(Arc::new(object))
}

/// Decodes a record and inserts it in a map. If the record was deleted, its key is removed from the map.
fn set_record<K: Ord + Clone, T: DeserializeOwned>(
    map: &mut OrdMap<K, Arc<T>>,
    key: K,
    stored: &StoredValue<'_>,
) -> Result<(), codec::BadRecord> {
    set_converted_record(map, key, stored, Ok)
}

/// Decodes a record, converts it with `convert`, and inserts the result in a map. If the record was deleted, its key is
/// removed from the map.
fn set_converted_record<K: Ord + Clone, T: DeserializeOwned, H>(
    map: &mut OrdMap<K, Arc<H>>,
    key: K,
    stored: &StoredValue<'_>,
    convert: impl FnOnce(T) -> Result<H, codec::BadRecord>,
) -> Result<(), codec::BadRecord> {
    match stored.value {
        Some(value) => drop(map.insert(key, Arc::new(convert(codec::decode(value)?)?))),
        None => drop(map.remove(&key)),
    }
    Ok(())
}

/// Returns the error for a record that cannot be decoded. It names the record's key.
fn record_error(key: &[u8], error: &codec::BadRecord) -> StoreError {
    StoreError::unreadable(format!("{}: {error}", key.escape_ascii()), error.is_newer())
}
