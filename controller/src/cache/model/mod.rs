//! The fleet in memory as of one revision. Handlers answer from it, and writes are decided on it.
//!
//! A model points to each object twice: from an index, for lists and names, and from the `Fleet` of `stemma_core`,
//! which also has what follows from the objects for placement. Indexes and fleet are persistent data structures, so a
//! clone of the model is cheap. A decision about a write clones the model, changes the clone and drops it afterwards.

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

/// Records by node.
pub type ByNode<T> = OrdMap<Uuid, Arc<T>>;

/// The fleet as of one revision: all objects, and the records that decisions and responses depend on. A clone is cheap.
#[derive(Clone, Default)]
pub struct Model {
    /// The store revision of this model.
    pub revision: Revision,
    /// The objects of the indexes below, with everything that follows from them for the placement of tasks.
    pub fleet: Fleet,
    /// The results of earlier resolves, for any revision. Shared by all readers, and by drafts.
    pub resolve_cache: Arc<ResolveCache>,
    /// Releases, by `NAME@VERSION`.
    pub releases: ObjectIndex<ReleaseSpec>,
    /// Stored releases that do not compile, with the reasons.
    pub broken_releases: OrdMap<ReleaseRef, Arc<str>>,
    /// User-defined tags of releases, by the name of the release.
    pub release_tags: ObjectIndex<ReleaseTagsSpec>,
    /// Cluster templates.
    pub templates: ObjectIndex<ClusterTemplateSpec>,
    /// Clusters.
    pub clusters: ObjectIndex<ClusterSpec>,
    /// Node groups, each named within its cluster.
    pub groups: ObjectIndex<NodeGroupSpec>,
    /// Nodes.
    pub nodes: ObjectIndex<NodeSpec>,
    /// Allocations.
    pub allocations: ObjectIndex<AllocationSpec>,
    /// Primaries, each named by its tag within its cluster.
    pub primaries: ObjectIndex<PrimarySpec>,
    /// Principals.
    pub principals: ObjectIndex<PrincipalSpec>,
    /// The cluster to which the reader of this model is bound. The indexes show no objects of other clusters.
    pub visible_cluster: Option<ClusterId>,
    /// Namespaces of the catalogue.
    pub namespaces: ObjectIndex<NamespaceSpec>,
    /// Inspection rules.
    pub rules: ObjectIndex<InspectionRuleSpec>,
    /// The time at which a namespace first named each resource type.
    pub resource_types: OrdMap<String, Arc<Timestamp>>,
    /// The last observation of each host.
    pub observations: ByNode<ObservationRecord>,
    /// The pause, hold and park that were set on each host.
    pub reported_states: ByNode<ReportedState>,
    /// The task set that was released to each node.
    pub released: ByNode<ReleasedRecord>,
    /// The profiles that the released task sets name.
    pub common_values: OrdMap<Hash, Arc<ProfileRecord>>,
    /// The common values that the released task sets name.
    pub common: OrdMap<Hash, Arc<ValueList>>,
    /// The parts of the common values.
    pub common_parts: OrdMap<Hash, Arc<ValuePart>>,
    /// The chunks of large texts in released task sets and in the parts of common values.
    pub common_chunks: OrdMap<Hash, Arc<str>>,
    /// The results of each node's tasks.
    pub results: ByNode<ResultsRecord>,
    /// The last report of each host.
    pub reports: ByNode<ReportRecord>,
    /// When each node's silence began or ended.
    pub silence: ByNode<LivenessRecord>,
    /// What was last sent to each host.
    pub sent_records: ByNode<SentRecord>,
    /// The revision of the store at which [`Self::sent_records`] got its first record; `None` if it never had one.
    pub sent_recorded_since: Option<HeldRevision>,
    /// The epochs of the store; `None` if the store is in its first epoch.
    pub epoch_line: Option<Arc<Versioned<EpochHistory>>>,
    /// The last backup, if there is one.
    pub last_backup: Option<Arc<Versioned<BackupRecord>>>,
    /// Join tokens, by id.
    pub tokens: OrdMap<String, Arc<Versioned<TokenRecord>>>,
    /// Marks that order writes of different objects, each with the revision that wrote it last (see [`key::MARKS`]).
    pub marks: OrdMap<String, Revision>,
}

/// A record with the revision that wrote it. A commit that builds on the record requires this revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The record.
    pub record: T,
    /// The revision that wrote it.
    pub mod_revision: Revision,
}

/// The nodes that a change of the store affects.
#[derive(Clone, Debug, Default)]
pub struct AffectedNodes {
    /// Nodes that may resolve to another result.
    pub dirty: DirtyNodes,
    /// Nodes whose state may have changed without another resolve, each with the tasks that have a new result. The set
    /// of tasks is empty for a node whose agent reported other facts about itself, or whose host reached the present
    /// epoch of the store.
    pub new_results: BTreeMap<Uuid, BTreeSet<String>>,
    /// Deleted nodes.
    pub deleted: BTreeSet<Uuid>,
    /// True if it is unknown what changed, because the whole store was read again.
    pub all: bool,
}

impl AffectedNodes {
    /// Adds what another change affects.
    pub fn extend(&mut self, other: Self) {
        self.dirty.extend(other.dirty);
        for (node, tasks) in other.new_results {
            self.new_results.entry(node).or_default().extend(tasks);
        }
        self.deleted.extend(other.deleted);
        self.all |= other.all;
    }
}

/// The value of a key at one revision.
pub struct StoredValue<'a> {
    /// The value; `None` if the key does not exist.
    pub value: Option<&'a [u8]>,
    /// The revision that wrote it.
    pub mod_revision: Revision,
    /// The revision that created it.
    pub create_revision: Revision,
}

impl Model {
    /// Returns the name of a node, if the node exists and has one. Log lines show it next to the uuid.
    pub fn node_name(&self, node: Uuid) -> Option<&str> {
        self.nodes.get(node)?.meta.name.as_ref().map(NodeName::as_str)
    }

    /// Returns the hashes of the file bodies that stored releases and released task sets name.
    pub fn named_blobs(&self) -> BTreeSet<Hash> {
        let mut hashes: BTreeSet<Hash> = self.common_values.values().flat_map(|profile| profile.blobs.iter().copied()).collect();
        let sources = self.releases.iter().flat_map(|release| &release.spec.tasks).filter_map(Task::source);
        hashes.extend(sources.filter_map(|source| Hash::from_source(source).ok()));
        hashes
    }

    /// Returns the model as a principal that is bound to a cluster sees it. The indexes show no objects of other
    /// clusters. The fleet stays whole, because the cluster's nodes may depend on all of it.
    ///
    /// An object that is later added to an index of the returned model is visible, so that a decision about a write
    /// sees what it adds. Whether the principal may write the object is checked elsewhere.
    #[must_use]
    pub fn visible_in(self: &Arc<Self>, within: Option<ClusterId>) -> Arc<Self> {
        let Some(cluster) = within else { return Arc::clone(self) };
        let mut visible = Self { visible_cluster: within, ..Self::clone(self) };
        for row in &KINDS {
            (row.hide)(&mut visible, self, cluster);
        }
        Arc::new(visible)
    }

    /// Hides the objects of one kind that a principal which is bound to this cluster cannot see.
    fn hide<S: Resource>(&mut self, whole: &Arc<Self>, cluster: ClusterId) {
        let (whole, rights) = (Arc::clone(whole), Rights { role: PrincipalRole::Viewer, cluster: Some(cluster) });
        let whole_model = Arc::clone(&whole);
        let is_visible =
            move |uuid| S::index(&whole).get(uuid).is_none_or(|object| rights.can_see(S::access_scope(&whole, object)));
        let short_list = move |limit| S::objects_in_cluster(&whole_model, cluster, limit);
        S::index_mut(self).show_only(is_visible, short_list);
    }

    /// Makes all objects visible again, also those that the reader of this model cannot see.
    pub fn show_all(&mut self) {
        self.visible_cluster = None;
        for row in &KINDS {
            (row.show_all)(self);
        }
    }

    /// Returns how much of the host's last report, and of the results of its tasks, was not stored.
    pub fn dropped_counts(&self, node: Uuid) -> DroppedReportCounts {
        let of_report = self.reports.get(&node).map(|record| record.left_out).unwrap_or_default();
        let of_results = self.results.get(&node).map(|record| record.dropped_counts()).unwrap_or_default();
        of_report.merge(of_results)
    }

    /// Returns the nodes whose hosts last sent more than was stored.
    pub fn nodes_with_dropped_reports(&self) -> impl Iterator<Item = Uuid> {
        let is_whole = |node: &Uuid| {
            let observed = self.observations.get(node);
            observed.is_none_or(|record| record.observation.not_taken.is_none()) && self.dropped_counts(*node).is_empty()
        };
        self.nodes.iter().map(|node| node.meta.uuid).filter(move |node| !is_whole(node))
    }

    /// Returns the nodes whose hosts have findings in their last report.
    pub fn nodes_with_host_findings(&self) -> impl Iterator<Item = Uuid> {
        self.nodes.iter().map(|node| node.meta.uuid).filter(|node| self.host_findings(*node).next().is_some())
    }

    /// Returns the findings in the last report of a node's host: what it could not use or do. The reason why its agent
    /// is stuck is not included, because it is a finding of its own.
    pub fn host_findings(&self, node: Uuid) -> impl Iterator<Item = &str> {
        let report = self.reports.get(&node).map(|record| &record.report);
        let stuck = report.and_then(|report| stuck_reason(report.facts.get(STUCK_FACT)?));
        let findings = report.into_iter().flat_map(|report| &report.findings).map(String::as_str);
        findings.filter(move |said| Some(*said) != stuck.as_deref())
    }

    /// Returns whether objects in this scope are visible.
    pub fn is_visible(&self, place: AccessScope) -> bool {
        Rights { role: PrincipalRole::Viewer, cluster: self.visible_cluster }.can_see(place)
    }

    /// Returns the access scope of an object, or `None` if it is not visible.
    pub fn access_scope(&self, kind: Kind, uuid: Uuid) -> Option<AccessScope> {
        (kinds::kind_ops(kind.name())?.access_scope)(self, uuid)
    }

    /// Returns the title of an object, or `None` if it is not visible.
    pub fn title(&self, kind: Kind, uuid: Uuid) -> Option<String> {
        (kinds::kind_ops(kind.name())?.title)(self, uuid)
    }

    /// Returns the access scope of the hosts that join with a token.
    pub fn token_scope(&self, bound: TokenTarget) -> AccessScope {
        let cluster = match bound {
            TokenTarget::Fleet => None,
            TokenTarget::Group(uuid) => self.groups.get(uuid).map(|group| group.spec.cluster),
            TokenTarget::Node(uuid) => self.fleet.cluster_of_node(NodeId(uuid)),
        };
        cluster.map_or(AccessScope::Unplaced, AccessScope::Cluster)
    }

    /// Resolves a node: computes its desired state from the fleet.
    pub fn resolve(&self, node: Uuid) -> Resolution {
        resolve_node(&self.fleet, &self.resolve_cache, NodeId(node))
    }

    /// Returns the number of nodes in a cluster or, for `None`, in no cluster.
    pub fn count_nodes_in(&self, cluster: Option<ClusterId>) -> usize {
        let in_clusters = || self.clusters.iter().map(|one| self.fleet.node_count(ClusterId(one.meta.uuid))).sum();
        cluster.map_or_else(|| self.nodes.len().saturating_sub(in_clusters()), |cluster| self.fleet.node_count(cluster))
    }

    /// Returns the kind and title of each object that refers to the given one.
    pub fn referrers<'m>(&'m self, target: &'m ObjectReference) -> impl Iterator<Item = (Kind, String)> {
        KINDS.iter().flat_map(|row| (row.referrers)(self, target).map(|name| (row.kind, name)))
    }

    /// Inserts or replaces an object, in its index and in the fleet.
    ///
    /// # Errors
    /// The errors of a release that does not compile. After an error nothing is changed.
    pub fn put<S: Resource>(
        &mut self,
        create_revision: u64,
        object: &Arc<Object<S>>,
    ) -> Result<AffectedNodes, Vec<ReleaseError>> {
        let mut changes = S::put_changes(self, object)?;
        // After a rename, the fleet has the object under its new name, so the old name is removed.
        let renamed = S::index(self)
            .get(object.meta.uuid)
            .filter(|before| before.meta.name != object.meta.name)
            .filter(|before| ObjectReference::new::<S>(before) != ObjectReference::new::<S>(object));
        changes.extend(renamed.and_then(|before| S::remove_change(before)));
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

    fn apply_changes(&mut self, changes: Vec<FleetChange>) -> AffectedNodes {
        let dirty = self.fleet.apply_all(changes);
        AffectedNodes { dirty, ..AffectedNodes::default() }
    }

    /// Adds everything that was read at a start to the fleet, in one pass. A release may not compile, because another
    /// version of the controller accepted it by other rules. The nodes that use such a release then cannot be resolved
    /// completely, and other nodes are not affected. The release is logged, and each cluster that uses it has a
    /// finding.
    pub(super) fn finish_load(&mut self) {
        let mut changes: Vec<FleetChange> = KINDS.iter().flat_map(|row| (row.load_changes)(self)).collect();
        changes.extend(self.observations.iter().map(|(node, record)| observation_change(*node, record)));
        changes.extend(
            self.reported_states.iter().map(|(node, said)| FleetChange::ReportedState(NodeId(*node), Some(Arc::clone(said)))),
        );
        drop(self.fleet.apply_all(changes));
        self.fleet.build_index(self.nodes.iter().map(|node| node.id()));
        self.fleet.set_loaded();
    }

    /// Adds one entry that was read at a start. [`Self::finish_load`] must follow when all are read.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or [`StoreError::Newer`] for a record that cannot be read.
    pub(super) fn read_entry(&mut self, key: &[u8], stored: &StoredValue<'_>) -> Result<(), StoreError> {
        match key::read_object(key) {
            Some((kind, _)) => kinds::kind_ops(kind).map_or(Ok(()), |row| (row.read_entry)(self, stored)),
            None => self.apply_record(key, stored).map(drop),
        }
        .map_err(|e| record_error(key, &e))
    }

    /// Applies one change. An entry that the model does not hold is ignored.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or [`StoreError::Newer`] for a record that can't be read.
    pub fn apply_entry(&mut self, key: &[u8], stored: &StoredValue<'_>) -> Result<AffectedNodes, StoreError> {
        let result = match key::read_object(key) {
            Some((kind, uuid)) => {
                kinds::kind_ops(kind).map_or_else(|| Ok(AffectedNodes::default()), |row| (row.apply_entry)(self, uuid, stored))
            }
            None => self.apply_record(key, stored),
        };
        result.map_err(|e| record_error(key, &e))
    }

    /// Adds an object that was read at a start to its index.
    fn load_object<S: Resource>(&mut self, stored: &StoredValue<'_>) -> Result<(), codec::BadRecord> {
        if let Some(value) = stored.value {
            S::index_mut(self).insert(stored.create_revision.get(), decode_object(value, stored)?);
        }
        Ok(())
    }

    /// Applies what a commit did to an object.
    fn apply_object<S: Resource>(&mut self, uuid: Uuid, stored: &StoredValue<'_>) -> Result<AffectedNodes, codec::BadRecord> {
        let Some(value) = stored.value else {
            return Ok(self.remove::<S>(uuid).map(|(_, reach)| reach).unwrap_or_default());
        };
        let object = decode_object::<S>(value, stored)?;
        match self.put(stored.create_revision.get(), &object) {
            Ok(reach) => Ok(reach),
            // Another version of the controller accepted the release, by other rules. The release as it was last
            // compiled stays in effect.
            Err(errors) => {
                if let Some(name) = S::name_text(&object.meta.name).and_then(|name| ReleaseRef::new(&name).ok()) {
                    self.record_broken(&name, &errors);
                }
                S::index_mut(self).insert(stored.create_revision.get(), object);
                Ok(AffectedNodes::default())
            }
        }
    }

    /// Records and logs that a stored release does not compile.
    fn record_broken(&mut self, name: &ReleaseRef, errors: &[ReleaseError]) {
        let reason = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        log::error!(release:% = name, reason; "a stored release does not compile");
        self.broken_releases.insert(name.clone(), reason.into());
    }

    /// Applies what a commit did to a record that is not an object. The prefix of the key decides which map of the
    /// model the record belongs to. A record of no map is ignored.
    fn apply_record(&mut self, key: &[u8], stored: &StoredValue<'_>) -> Result<AffectedNodes, codec::BadRecord> {
        let of_node = |(prefix, apply): &(&str, ApplyRecord)| Some((key::read_node(prefix, key)?, *apply));
        if let Some((node, apply)) = NODE_RECORDS.iter().find_map(of_node) {
            return apply(self, node, stored);
        }
        if let Some(hash) = key::read_profile(key) {
            set_record(&mut self.common_values, hash, stored)?;
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
            set_mapped(&mut self.common_parts, hash, stored, |stored: CommonValues| {
                stored.resolve_part(|hash| chunks.get(hash).cloned(), texts)
            })?;
        } else if let Some(hash) = key::read_common_values(key) {
            let parts = &self.common_parts;
            set_mapped(&mut self.common, hash, stored, |stored: CommonValues| {
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
            let line = stored.value.map(codec::decode).transpose()?;
            self.epoch_line = line.map(|record| Arc::new(Versioned { record, mod_revision: stored.mod_revision }));
            // A new epoch can change the state of every node: no host has reached that epoch yet.
            return Ok(AffectedNodes { all: true, ..AffectedNodes::default() });
        } else if key == key::SENT_SINCE.as_bytes() {
            self.sent_recorded_since = stored.value.map(codec::decode).transpose()?;
        } else if key == key::LAST_BACKUP.as_bytes() {
            let last = stored.value.map(codec::decode).transpose()?;
            self.last_backup = last.map(|record| Arc::new(Versioned { record, mod_revision: stored.mod_revision }));
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

/// A function that applies one record of a node.
type ApplyRecord = fn(&mut Model, Uuid, &StoredValue<'_>) -> Result<AffectedNodes, codec::BadRecord>;

/// The records of nodes: the prefix of their keys, and the function that applies one.
const NODE_RECORDS: [(&str, ApplyRecord); 7] = [
    (key::OBSERVATIONS, |model, node, stored| {
        set_record(&mut model.observations, node, stored)?;
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
        let (common, chunks) = (&model.common, &model.common_chunks);
        set_mapped(&mut model.released, node, stored, |stored: ReleasedRecord| {
            let chunk = |hash: &Hash| chunks.get(hash).cloned();
            stored.resolve(|name| common.get(name).cloned(), chunk, model.resolve_cache.texts())
        })?;
        Ok(AffectedNodes::default())
    }),
    (key::RESULTS, |model, node, stored| {
        let before = model.results.get(&node).cloned();
        set_record(&mut model.results, node, stored)?;
        let tasks = changed_tasks(before.as_deref(), model.results.get(&node).map(|record| &**record));
        Ok(AffectedNodes { new_results: BTreeMap::from([(node, tasks)]), ..AffectedNodes::default() })
    }),
    (key::REPORTS, |model, node, stored| {
        let before = model.reports.get(&node).cloned();
        set_record(&mut model.reports, node, stored)?;
        let is_same = report_facts(before.as_ref()).eq(report_facts(model.reports.get(&node)));
        let new_results = (!is_same).then(|| (node, BTreeSet::new())).into_iter().collect();
        Ok(AffectedNodes { new_results, ..AffectedNodes::default() })
    }),
    (key::LIVENESS, |model, node, stored| set_record(&mut model.silence, node, stored).map(|()| AffectedNodes::default())),
    (key::SENT_STATES, |model, node, stored| {
        let epoch = |model: &Model| model.sent_records.get(&node).map(|told| told.epoch);
        let before = epoch(model);
        set_record(&mut model.sent_records, node, stored)?;
        let has_changed = before.is_some() && before != epoch(model);
        let new_results = has_changed.then(|| (node, BTreeSet::new())).into_iter().collect();
        Ok(AffectedNodes { new_results, ..AffectedNodes::default() })
    }),
];

/// Returns the key prefixes of everything that the model holds.
pub(super) fn prefixes() -> impl Iterator<Item = &'static str> {
    let of_nodes = NODE_RECORDS.iter().map(|(prefix, _)| *prefix);
    let others = [key::PROFILES, key::TOKENS, key::RESOURCE_TYPES, key::SENT_SINCE, key::EPOCH_LINE, key::LAST_BACKUP];
    // A record is loaded after those that it refers to: common values after chunks and parts, task sets after all
    // three.
    let values = [key::COMMON_CHUNKS, key::COMMON_PARTS, key::COMMON_VALUES];
    [key::OBJECTS].into_iter().chain(values).chain(of_nodes).chain(others).chain(key::MARKS)
}

/// Returns the facts that an agent reports about itself, if there is a report.
fn report_facts(record: Option<&Arc<ReportRecord>>) -> impl Iterator<Item = (&String, &String)> {
    record.into_iter().flat_map(|record| agent_facts(&record.report))
}

/// Returns the tasks whose results differ between two records.
fn changed_tasks(before: Option<&ResultsRecord>, after: Option<&ResultsRecord>) -> BTreeSet<String> {
    let none = BTreeMap::new();
    let before = before.map_or(&none, |record| &record.tasks);
    let after = after.map_or(&none, |record| &record.tasks);
    let differs = |(task, outcome): &(&String, &StoredResult)| before.get(*task) != Some(outcome);
    let removed = before.keys().filter(|task| !after.contains_key(*task));
    after.iter().filter(differs).map(|(task, _)| task).chain(removed).cloned().collect()
}

fn observation_change(node: Uuid, record: &Arc<ObservationRecord>) -> FleetChange {
    FleetChange::Observation(NodeId(node), Arc::new(record.observation.clone()))
}

/// Decodes an object, and sets its `resource_version` to the revision that wrote it.
fn decode_object<S: Resource>(value: &[u8], stored: &StoredValue<'_>) -> Result<Arc<Object<S>>, codec::BadRecord> {
    let mut object: Object<S> = codec::decode(value)?;
    object.meta.resource_version = stored.mod_revision.get();
    Ok(Arc::new(object))
}

fn set_record<K: Ord + Clone, T: DeserializeOwned>(
    map: &mut OrdMap<K, Arc<T>>,
    key: K,
    stored: &StoredValue<'_>,
) -> Result<(), codec::BadRecord> {
    set_mapped(map, key, stored, Ok)
}

/// Decodes a record, converts it by `make`, and inserts the result in a map. If the record was deleted, removes its key
/// from the map.
fn set_mapped<K: Ord + Clone, T: DeserializeOwned, H>(
    map: &mut OrdMap<K, Arc<H>>,
    key: K,
    stored: &StoredValue<'_>,
    make: impl FnOnce(T) -> Result<H, codec::BadRecord>,
) -> Result<(), codec::BadRecord> {
    match stored.value {
        Some(value) => drop(map.insert(key, Arc::new(make(codec::decode(value)?)?))),
        None => drop(map.remove(&key)),
    }
    Ok(())
}

fn record_error(key: &[u8], error: &codec::BadRecord) -> StoreError {
    StoreError::unreadable(format!("{}: {error}", key.escape_ascii()), error.is_newer())
}
