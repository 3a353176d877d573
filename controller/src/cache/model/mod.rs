//! The fleet in memory as of one revision: what handlers answer from and what writes are decided on.
//!
//! Objects stand here twice, by pointer: on shelves, as they are listed and named, and in core's `Fleet`, with all
//! that follows from them for placement. Both are persistent, so a decision takes a copy of the whole, changes it
//! and throws it away, at the cost of what it changed.

mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use serde::de::DeserializeOwned;
use stemma_core::access::{Place, Rights};
use stemma_core::epoch::{EpochLine, HeldRevision};
use stemma_core::fleet::{Change, Dirty, Fleet};
use stemma_core::name::{NodeName, ReleaseRef};
use stemma_core::object::{
    AllocationSpec, ClusterId, ClusterSpec, ClusterTemplateSpec, InspectionRuleSpec, Kind, NamespaceSpec,
    NodeGroupSpec, NodeId, NodeSpec, Object, PrimarySpec, PrincipalRole, PrincipalSpec, ReleaseSpec, ReleaseTagsSpec,
    ReportLeftOut, SaidOnHost, Timestamp,
};
use stemma_core::release::ReleaseError;
use stemma_core::resolve::{Resolution, ResolveCache, resolve_node};
use stemma_core::status::{STUCK, stuck};
use stemma_core::task::Task;
use stemma_wire::message::Hash;
use uuid::Uuid;

pub use kinds::shelf::{By, Shelf};
pub use kinds::{Reference, Resource, certificate_key, content_fixed, protected, token_key};

use crate::records::common::{CommonValues, ValueList, ValuePart};
use crate::records::enrolled::{Bound, TokenRecord};
use crate::records::fleet::BackupRecord;
use crate::records::reported::{
    ObservationRecord, ProfileRecord, ReleasedRecord, ReportRecord, ResultsRecord, SeenRecord, StoredResult,
    ToldRecord, of_agent,
};
use crate::records::{codec, key};
use crate::store::{Revision, StoreError};
use kinds::KINDS;

/// Records by node.
pub type ByNode<T> = OrdMap<Uuid, Arc<T>>;

/// Everything that is stored and decides something, as of one revision. A clone is free.
#[derive(Clone, Default)]
pub struct Model {
    /// The revision of the store that this is.
    pub revision: Revision,
    /// The same objects, and what follows from them.
    pub fleet: Fleet,
    /// What was resolved before, whatever revision it was for: shared by all who read, and by drafts.
    pub memo: Arc<ResolveCache>,
    /// Releases, by `NAME@VERSION`.
    pub releases: Shelf<ReleaseSpec>,
    /// Releases that are stored and do not compile, with the reasons.
    pub broken: OrdMap<ReleaseRef, Arc<str>>,
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
    /// Allocations.
    pub allocations: Shelf<AllocationSpec>,
    /// Primaries, each named by its tag within its cluster.
    pub primaries: Shelf<PrimarySpec>,
    /// Who may ask.
    pub principals: Shelf<PrincipalSpec>,
    /// The cluster to which whoever looks at this is bound: the shelves show nothing of others.
    pub within: Option<ClusterId>,
    /// Namespaces of the catalogue.
    pub namespaces: Shelf<NamespaceSpec>,
    /// Inspection rules.
    pub rules: Shelf<InspectionRuleSpec>,
    /// When each resource type was first named by a namespace.
    pub resource_types: OrdMap<String, Arc<Timestamp>>,
    /// What hosts were seen to be.
    pub observations: ByNode<ObservationRecord>,
    /// What was said on them.
    pub said: ByNode<SaidOnHost>,
    /// What was released to them.
    pub released: ByNode<ReleasedRecord>,
    /// The profiles that these name.
    pub profiles: OrdMap<Hash, Arc<ProfileRecord>>,
    /// The values that these name.
    pub common: OrdMap<Hash, Arc<ValueList>>,
    /// The parts of these.
    pub common_parts: OrdMap<Hash, Arc<ValuePart>>,
    /// The chunks of large texts that released task sets and these parts have.
    pub common_chunks: OrdMap<Hash, Arc<str>>,
    /// What became of their tasks.
    pub results: ByNode<ResultsRecord>,
    /// What they last said beside.
    pub reports: ByNode<ReportRecord>,
    /// When their silence began or ended.
    pub seen: ByNode<SeenRecord>,
    /// What they were told last.
    pub told: ByNode<ToldRecord>,
    /// To which revision the store had come when it was first recorded what a host was told; `None`: it was not yet.
    pub told_since: Option<HeldRevision>,
    /// The epochs of the store; `None`: it is in its first one.
    pub epoch_line: Option<Arc<Entry<EpochLine>>>,
    /// The last backup, if any was made.
    pub last_backup: Option<Arc<Entry<BackupRecord>>>,
    /// Join tokens, by id.
    pub tokens: OrdMap<String, Arc<Entry<TokenRecord>>>,
    /// Marks that order writes of different objects, each with the revision that wrote it last (see [`key::MARKS`]).
    pub marks: OrdMap<String, Revision>,
}

/// A record with the revision that wrote it, which a commit that builds on it requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<T> {
    /// The record.
    pub record: T,
    /// The revision.
    pub written: Revision,
}

/// Whom a change of the store reaches.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Nodes whose answer may be another.
    pub dirty: Dirty,
    /// Nodes whose tasks went on, each with the tasks of which something else is known now; also nodes whose hosts came into the present epoch of the
    /// store, with none.
    pub moved: BTreeMap<Uuid, BTreeSet<String>>,
    /// Nodes that are gone.
    pub gone: BTreeSet<Uuid>,
    /// What was touched is unknown: the whole store was read again.
    pub everything: bool,
}

impl Reach {
    /// Takes in what another change reached.
    pub fn extend(&mut self, other: Self) {
        self.dirty.extend(other.dirty);
        for (node, tasks) in other.moved {
            self.moved.entry(node).or_default().extend(tasks);
        }
        self.gone.extend(other.gone);
        self.everything |= other.everything;
    }
}

/// The value of a key at one revision.
pub struct StoredValue<'a> {
    /// The value; `None`: nothing.
    pub value: Option<&'a [u8]>,
    /// The revision that wrote it.
    pub written: Revision,
    /// The revision that made it.
    pub made: Revision,
}

impl Model {
    /// What a node is called, where it is there and has a name: lines of the log say it beside the uuid.
    pub fn node_name(&self, node: Uuid) -> Option<&str> {
        self.nodes.get(node)?.meta.name.as_ref().map(NodeName::as_str)
    }

    /// The file bodies that stored releases and released task sets name.
    pub fn named_blobs(&self) -> BTreeSet<Hash> {
        let mut named: BTreeSet<Hash> = self.profiles.values().flat_map(|one| one.blobs.iter().copied()).collect();
        let sources = self.releases.iter().flat_map(|release| &release.spec.tasks).filter_map(Task::source);
        named.extend(sources.filter_map(|source| Hash::of_source(source).ok()));
        named
    }

    /// The model as a principal sees it that is bound to a cluster: objects of other clusters are on no shelf. The fleet stays whole,
    /// since the answers of the cluster's nodes may depend on all of it.
    ///
    /// An object that is put on a shelf later is seen, so that a decision sees its own writes. Whether the principal may write it is
    /// asked elsewhere.
    #[must_use]
    pub fn seen_within(self: &Arc<Self>, within: Option<ClusterId>) -> Arc<Self> {
        let Some(cluster) = within else { return Arc::clone(self) };
        let mut seen = Self { within, ..Self::clone(self) };
        for row in &KINDS {
            (row.hide)(&mut seen, self, cluster);
        }
        Arc::new(seen)
    }

    fn hide<S: Resource>(&mut self, whole: &Arc<Self>, cluster: ClusterId) {
        let (whole, rights) = (Arc::clone(whole), Rights { role: PrincipalRole::Viewer, within: Some(cluster) });
        let standing = Arc::clone(&whole);
        let seen = move |uuid| S::shelf(&whole).get(uuid).is_none_or(|object| rights.sees(S::place(&whole, object)));
        let few = move |most| S::standing_in(&standing, cluster, most);
        S::shelf_mut(self).see_only(seen, few);
    }

    /// Shows everything again, also what whoever looks at this does not see.
    pub fn show_all(&mut self) {
        self.within = None;
        for row in &KINDS {
            (row.show_all)(self);
        }
    }

    /// How much of its host's last report, and of what became of its tasks, was not kept.
    pub fn left_out(&self, node: Uuid) -> ReportLeftOut {
        let of_report = self.reports.get(&node).map(|record| record.left_out).unwrap_or_default();
        let of_results = self.results.get(&node).map(|record| record.left_out()).unwrap_or_default();
        of_report.and(of_results)
    }

    /// The nodes whose hosts last said more than was kept.
    pub fn nodes_with_left_out(&self) -> impl Iterator<Item = Uuid> {
        let is_whole = |node: &Uuid| {
            let observed = self.observations.get(node);
            observed.is_none_or(|record| record.observation.not_taken.is_none()) && self.left_out(*node).is_nothing()
        };
        self.nodes.iter().map(|node| node.meta.uuid).filter(move |node| !is_whole(node))
    }

    /// The nodes whose hosts have findings of their own in their last report.
    pub fn nodes_with_findings_of_hosts(&self) -> impl Iterator<Item = Uuid> {
        self.nodes.iter().map(|node| node.meta.uuid).filter(|node| self.findings_of_host(*node).next().is_some())
    }

    /// What a node's host could not use or do, as it said last. Why its agent is stuck is not among it: that is a finding by itself.
    pub fn findings_of_host(&self, node: Uuid) -> impl Iterator<Item = &str> {
        let report = self.reports.get(&node).map(|record| &record.report);
        let stuck = report.and_then(|report| stuck(report.facts.get(STUCK)?));
        let said = report.into_iter().flat_map(|report| &report.findings).map(String::as_str);
        said.filter(move |said| Some(*said) != stuck.as_deref())
    }

    /// Whether what stands there is seen.
    pub fn sees(&self, place: Place) -> bool {
        Rights { role: PrincipalRole::Viewer, within: self.within }.sees(place)
    }

    /// Where an object stands; `None` for one that is not seen.
    pub fn place_of(&self, kind: Kind, uuid: Uuid) -> Option<Place> {
        (kinds::row(kind.name())?.place)(self, uuid)
    }

    /// What an object is called; `None` for one that is not seen.
    pub fn title_of(&self, kind: Kind, uuid: Uuid) -> Option<String> {
        (kinds::row(kind.name())?.title)(self, uuid)
    }

    /// Where hosts will stand that join with a token.
    pub fn place_of_bound(&self, bound: Bound) -> Place {
        let cluster = match bound {
            Bound::Fleet => None,
            Bound::Group(uuid) => self.groups.get(uuid).map(|group| group.spec.cluster),
            Bound::Node(uuid) => self.fleet.cluster_of_node(NodeId(uuid)),
        };
        cluster.map_or(Place::Nowhere, Place::Cluster)
    }

    /// What a node is to be.
    pub fn resolve(&self, node: Uuid) -> Resolution {
        resolve_node(&self.fleet, &self.memo, NodeId(node))
    }

    /// How many nodes stand in a cluster; `None`: in none.
    pub fn count_in(&self, cluster: Option<ClusterId>) -> usize {
        let in_clusters = || self.clusters.iter().map(|one| self.fleet.count_of(ClusterId(one.meta.uuid))).sum();
        cluster.map_or_else(|| self.nodes.len().saturating_sub(in_clusters()), |cluster| self.fleet.count_of(cluster))
    }

    /// Who refers to something: the kind, and what each is called.
    pub fn users<'m>(&'m self, to: &'m Reference) -> impl Iterator<Item = (Kind, String)> {
        KINDS.iter().flat_map(|row| (row.users)(self, to).map(|name| (row.kind, name)))
    }

    /// Puts an object in its place, here and in the fleet.
    ///
    /// # Errors
    /// What is wrong with a release; nothing was changed.
    pub fn put<S: Resource>(&mut self, made: u64, object: &Arc<Object<S>>) -> Result<Reach, Vec<ReleaseError>> {
        let mut changes = S::put_changes(self, object)?;
        // What stands in the fleet under its name no longer stands there under the one that it had.
        let renamed = S::shelf(self)
            .get(object.meta.uuid)
            .filter(|before| before.meta.name != object.meta.name)
            .filter(|before| Reference::to::<S>(before) != Reference::to::<S>(object));
        changes.extend(renamed.and_then(|before| S::remove_change(before)));
        for change in &changes {
            if let Change::Release(compiled) = change {
                self.broken.remove(&compiled.name);
            }
            if let Change::RemoveRelease(name) = change {
                self.broken.remove(name);
            }
        }
        let reach = self.apply(changes);
        S::shelf_mut(self).put(made, Arc::clone(object));
        Ok(reach)
    }

    /// Takes an object away, here and from the fleet.
    pub fn remove<S: Resource>(&mut self, uuid: Uuid) -> Option<(Arc<Object<S>>, Reach)> {
        let object = S::shelf_mut(self).take(uuid)?;
        let change = S::remove_change(&object);
        if let Some(Change::RemoveRelease(name)) = &change {
            self.broken.remove(name);
        }
        let mut reach = self.apply(change.into_iter().collect());
        if S::KIND == Kind::Node {
            reach.gone.insert(uuid);
        }
        Some((object, reach))
    }

    fn apply(&mut self, changes: Vec<Change>) -> Reach {
        let dirty = self.fleet.apply_all(changes);
        Reach { dirty, ..Reach::default() }
    }

    /// Puts everything that was read at a start into the fleet, in one pass. A release that does not compile (another program
    /// admitted it, by other rules) leaves its users incomplete and all others as they are; it is logged here, and is a finding
    /// of each cluster that it is missing in.
    pub(super) fn settle(&mut self) {
        let mut changes: Vec<Change> = KINDS.iter().flat_map(|row| (row.load_changes)(self)).collect();
        changes.extend(self.observations.iter().map(|(node, seen)| observation(*node, seen)));
        changes.extend(self.said.iter().map(|(node, said)| Change::Said(NodeId(*node), Some(Arc::clone(said)))));
        drop(self.fleet.apply_all(changes));
        self.fleet.keep_index(self.nodes.iter().map(|node| node.id()));
        self.fleet.set_loaded();
    }

    /// Takes in one entry that was read at a start; [`Self::settle`] follows when all are read.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or [`StoreError::Newer`] for a record that can't be read.
    pub(super) fn read(&mut self, key: &[u8], now: &StoredValue<'_>) -> Result<(), StoreError> {
        match key::read_object(key) {
            Some((kind, _)) => kinds::row(kind).map_or(Ok(()), |row| (row.read)(self, now)),
            None => self.take_record(key, now).map(drop),
        }
        .map_err(|e| unreadable(key, &e))
    }

    /// Takes in one change. What the model does not hold is passed over.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or [`StoreError::Newer`] for a record that can't be read.
    pub fn take(&mut self, key: &[u8], now: &StoredValue<'_>) -> Result<Reach, StoreError> {
        let taken = match key::read_object(key) {
            Some((kind, uuid)) => {
                kinds::row(kind).map_or_else(|| Ok(Reach::default()), |row| (row.take)(self, uuid, now))
            }
            None => self.take_record(key, now),
        };
        taken.map_err(|e| unreadable(key, &e))
    }

    /// Puts an object that was read at a start on its shelf.
    fn read_object<S: Resource>(&mut self, now: &StoredValue<'_>) -> Result<(), codec::BadRecord> {
        if let Some(value) = now.value {
            S::shelf_mut(self).put(now.made.get(), read_object(value, now)?);
        }
        Ok(())
    }

    /// Takes in what a commit made of an object.
    fn take_object<S: Resource>(&mut self, uuid: Uuid, now: &StoredValue<'_>) -> Result<Reach, codec::BadRecord> {
        let Some(value) = now.value else {
            return Ok(self.remove::<S>(uuid).map(|(_, reach)| reach).unwrap_or_default());
        };
        let object = read_object::<S>(value, now)?;
        match self.put(now.made.get(), &object) {
            Ok(reach) => Ok(reach),
            // Another program admitted it, by other rules. What was compiled before holds.
            Err(errors) => {
                if let Some(name) = S::name_text(&object.meta.name).and_then(|name| ReleaseRef::new(&name).ok()) {
                    self.note_broken(&name, &errors);
                }
                S::shelf_mut(self).put(now.made.get(), object);
                Ok(Reach::default())
            }
        }
    }

    fn note_broken(&mut self, name: &ReleaseRef, errors: &[ReleaseError]) {
        let reason = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        log::error!(release:% = name, reason; "a stored release does not compile");
        self.broken.insert(name.clone(), reason.into());
    }

    fn take_record(&mut self, key: &[u8], now: &StoredValue<'_>) -> Result<Reach, codec::BadRecord> {
        let of_node = |(prefix, take): &(&str, TakeRecord)| Some((key::read_node(prefix, key)?, *take));
        if let Some((node, take)) = OF_NODES.iter().find_map(of_node) {
            return take(self, node, now);
        }
        if let Some(hash) = key::read_profile(key) {
            set(&mut self.profiles, hash, now)?;
        } else if let Some(hash) = key::read_common_chunk(key) {
            match now.value {
                Some(value) => {
                    let mut chunk: Arc<str> = codec::decode::<String>(value)?.into();
                    self.memo.texts().share([&mut chunk].into_iter());
                    self.common_chunks.insert(hash, chunk);
                }
                None => drop(self.common_chunks.remove(&hash)),
            }
        } else if let Some(hash) = key::read_common_part(key) {
            let (chunks, texts) = (&self.common_chunks, self.memo.texts());
            set_made(&mut self.common_parts, hash, now, |stored: CommonValues| {
                stored.held(|hash| chunks.get(hash).cloned(), texts)
            })?;
        } else if let Some(hash) = key::read_common(key) {
            let parts = &self.common_parts;
            set_made(&mut self.common, hash, now, |stored: CommonValues| stored.list(|name| parts.get(name).cloned()))?;
        } else if let Some(token) = key::read_token(key) {
            match now.value {
                Some(value) => {
                    let entry = Entry { record: codec::decode(value)?, written: now.written };
                    self.tokens.insert(token.to_owned(), Arc::new(entry));
                }
                None => drop(self.tokens.remove(token)),
            }
        } else if key == key::EPOCH_LINE.as_bytes() {
            let line = now.value.map(codec::decode).transpose()?;
            self.epoch_line = line.map(|record| Arc::new(Entry { record, written: now.written }));
            // Whose host has come in the present epoch is another matter in another one.
            return Ok(Reach { everything: true, ..Reach::default() });
        } else if key == key::TOLD_SINCE.as_bytes() {
            self.told_since = now.value.map(codec::decode).transpose()?;
        } else if key == key::LAST_BACKUP.as_bytes() {
            let last = now.value.map(codec::decode).transpose()?;
            self.last_backup = last.map(|record| Arc::new(Entry { record, written: now.written }));
        } else if let Some(name) = key::read_resource_type(key) {
            set(&mut self.resource_types, name.to_owned(), now)?;
        } else if let Some(mark) = key::read_mark(key) {
            match now.value {
                Some(_) => drop(self.marks.insert(mark.to_owned(), now.written)),
                None => drop(self.marks.remove(mark)),
            }
        }
        Ok(Reach::default())
    }
}

/// Takes in one record of a node.
type TakeRecord = fn(&mut Model, Uuid, &StoredValue<'_>) -> Result<Reach, codec::BadRecord>;

/// The records of nodes: how their keys begin, and what is done with one.
const OF_NODES: [(&str, TakeRecord); 7] = [
    (key::OBSERVATIONS, |model, node, now| {
        set(&mut model.observations, node, now)?;
        let change = match model.observations.get(&node) {
            Some(seen) => observation(node, seen),
            None => Change::RemoveObservation(NodeId(node)),
        };
        Ok(model.apply(vec![change]))
    }),
    (key::SAID, |model, node, now| {
        set(&mut model.said, node, now)?;
        Ok(model.apply(vec![Change::Said(NodeId(node), model.said.get(&node).cloned())]))
    }),
    (key::RELEASED, |model, node, now| {
        let (common, chunks) = (&model.common, &model.common_chunks);
        set_made(&mut model.released, node, now, |stored: ReleasedRecord| {
            let chunk = |hash: &Hash| chunks.get(hash).cloned();
            stored.held(|name| common.get(name).cloned(), chunk, model.memo.texts())
        })?;
        Ok(Reach::default())
    }),
    (key::RESULTS, |model, node, now| {
        let before = model.results.get(&node).cloned();
        set(&mut model.results, node, now)?;
        let tasks = changed_tasks(before.as_deref(), model.results.get(&node).map(|record| &**record));
        Ok(Reach { moved: BTreeMap::from([(node, tasks)]), ..Reach::default() })
    }),
    (key::REPORTS, |model, node, now| {
        let before = model.reports.get(&node).cloned();
        set(&mut model.reports, node, now)?;
        let is_same = facts_of_agent(before.as_ref()).eq(facts_of_agent(model.reports.get(&node)));
        let moved = (!is_same).then(|| (node, BTreeSet::new())).into_iter().collect();
        Ok(Reach { moved, ..Reach::default() })
    }),
    (key::SEEN, |model, node, now| set(&mut model.seen, node, now).map(|()| Reach::default())),
    (key::TOLD, |model, node, now| {
        let epoch = |model: &Model| model.told.get(&node).map(|told| told.epoch);
        let before = epoch(model);
        set(&mut model.told, node, now)?;
        let follows = before.is_some() && before != epoch(model);
        let moved = follows.then(|| (node, BTreeSet::new())).into_iter().collect();
        Ok(Reach { moved, ..Reach::default() })
    }),
];

/// How the keys of all that the model holds begin.
pub(super) fn prefixes() -> impl Iterator<Item = &'static str> {
    let of_nodes = OF_NODES.iter().map(|(prefix, _)| *prefix);
    let others = [key::PROFILES, key::TOKENS, key::RESOURCE_TYPES, key::TOLD_SINCE, key::EPOCH_LINE, key::LAST_BACKUP];
    // Released task sets name common values.
    let values = [key::COMMON_CHUNKS, key::COMMON_PARTS, key::COMMON];
    [key::OBJECTS].into_iter().chain(values).chain(of_nodes).chain(others).chain(key::MARKS)
}

/// What an agent says of itself in a report, where there is one.
fn facts_of_agent(record: Option<&Arc<ReportRecord>>) -> impl Iterator<Item = (&String, &String)> {
    record.into_iter().flat_map(|record| of_agent(&record.report))
}

/// The tasks of which two records say something else.
fn changed_tasks(before: Option<&ResultsRecord>, after: Option<&ResultsRecord>) -> BTreeSet<String> {
    let none = BTreeMap::new();
    let before = before.map_or(&none, |record| &record.tasks);
    let after = after.map_or(&none, |record| &record.tasks);
    let differs = |(task, outcome): &(&String, &StoredResult)| before.get(*task) != Some(outcome);
    let gone = before.keys().filter(|task| !after.contains_key(*task));
    after.iter().filter(differs).map(|(task, _)| task).chain(gone).cloned().collect()
}

fn observation(node: Uuid, seen: &Arc<ObservationRecord>) -> Change {
    Change::Observation(NodeId(node), Arc::new(seen.observation.clone()))
}

fn read_object<S: Resource>(value: &[u8], now: &StoredValue<'_>) -> Result<Arc<Object<S>>, codec::BadRecord> {
    let mut object: Object<S> = codec::decode(value)?;
    object.meta.resource_version = now.written.get();
    Ok(Arc::new(object))
}

fn set<K: Ord + Clone, T: DeserializeOwned>(
    map: &mut OrdMap<K, Arc<T>>,
    key: K,
    now: &StoredValue<'_>,
) -> Result<(), codec::BadRecord> {
    set_made(map, key, now, Ok)
}

/// Holds what is made of a record.
fn set_made<K: Ord + Clone, T: DeserializeOwned, H>(
    map: &mut OrdMap<K, Arc<H>>,
    key: K,
    now: &StoredValue<'_>,
    make: impl FnOnce(T) -> Result<H, codec::BadRecord>,
) -> Result<(), codec::BadRecord> {
    match now.value {
        Some(value) => drop(map.insert(key, Arc::new(make(codec::decode(value)?)?))),
        None => drop(map.remove(&key)),
    }
    Ok(())
}

fn unreadable(key: &[u8], error: &codec::BadRecord) -> StoreError {
    StoreError::unreadable(format!("{}: {error}", key.escape_ascii()), error.is_newer())
}
