//! The fleet: every object of the model in memory, with what follows from it for placement.
//!
//! A snapshot is a clone, and free: all maps are persistent and share. [`Fleet::apply`] takes one change and gives
//! the nodes that must be resolved again, exactly those: what follows from a change (folds of groups, effective
//! tags, primaries, profiles) is kept beside the objects and mended where the change reaches, so that one node's
//! edit costs the same in a fleet of a hundred and of a hundred thousand.
//!
//! Objects may come in any order, as a store gives them: a child whose parent is not there yet is kept, and counts
//! as incomplete until it is.

mod apply;
mod awaited;
mod change;
mod elect;
mod fold;
mod index;
mod lookup;
mod lost;
mod missing;
mod node;
mod open;
mod place;
mod readers;
mod share;
mod view;

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use imbl::{OrdMap, OrdSet};
use uuid::Uuid;

pub use awaited::AwaitedPrimary;
pub use change::{Change, Dirty};
pub use elect::{LostName, MovedPrimary, NotObeyed, lost_name, moved_primaries};
pub use fold::{GroupFold, Levels, Maps};
use index::Index;
pub use index::{Among, KEPT, Term, kept_form};
use lookup::LookUp;
pub use lost::lost_labels;
pub use missing::Missing;
pub(crate) use node::NodeEntry;
pub use node::ended_unassignments;
pub(crate) use node::roles_below;
pub use open::OpenRead;
use share::Shared;
pub use view::NodeView;

use crate::catalog::Catalog;
use crate::input::Reference;
use crate::inspection::RuleSet;

use crate::name::{Name, NodeName, ReleaseRef, TagName};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, Namespace, Node, NodeGroup, NodeId, NodeSpec, Observation, Primary,
    ReleaseTags, SaidOnHost, TemplateId,
};
use crate::release::{CompiledRelease, Profile, ProfileHash};
use crate::role::{RoleTable, natural_cmp};
use crate::status::{Side, parked};
use crate::task::Mode;

/// Every object of the model, and what follows from it.
#[derive(Clone, Default)]
pub struct Fleet {
    is_loaded: bool,
    releases: OrdMap<ReleaseRef, Arc<CompiledRelease>>,
    release_tags: OrdMap<Name, Arc<ReleaseTags>>,
    templates: OrdMap<TemplateId, TemplateEntry>,
    clusters: OrdMap<ClusterId, ClusterEntry>,
    groups: OrdMap<GroupId, GroupEntry>,
    nodes: OrdMap<NodeId, Arc<NodeEntry>>,
    /// How many clusters have nodes.
    peopled: usize,
    /// What was said on hosts: seldom anything, so that a node has no room for it.
    said: OrdMap<NodeId, Arc<SaidOnHost>>,
    by_name: OrdMap<NodeName, NodeId>,
    /// The catalogue: no node's answer depends on it.
    namespaces: OrdMap<Uuid, Arc<Namespace>>,
    /// What these say, made when it is first asked for: every snapshot until one of them changes has the same.
    catalog: Arc<OnceLock<Catalog>>,
    rules: RuleSet,
    shared: Shared,
    /// Every profile that some node has, with how many have it.
    profiles: OrdMap<ProfileHash, (Arc<Profile>, u32)>,
    /// Nodes by what lists are filtered by, where that is asked for.
    index: Option<Index>,
}

#[derive(Clone, Default)]
struct TemplateEntry {
    object: Option<Arc<ClusterTemplate>>,
    clusters: OrdSet<ClusterId>,
}

#[derive(Clone, Default)]
struct ClusterEntry {
    object: Option<Arc<Cluster>>,
    groups: OrdSet<GroupId>,
    /// How many nodes stand in these.
    nodes: usize,
    /// Stored choices.
    chosen: OrdMap<TagName, Arc<Primary>>,
    /// Per tag that has a primary, the nodes that could be it.
    candidates: OrdMap<TagName, Candidates>,
    /// Per such tag, who holds it.
    holders: OrdMap<TagName, NodeId>,
    /// What tasks of its nodes look up.
    lookups: OrdMap<Reference, LookUp>,
    /// What the roles of each release that its groups run produce here: one table for all of these groups.
    tables: OrdMap<ReleaseRef, KeptTable>,
    /// What comes down to its groups, which they share.
    maps: Option<KeptMaps>,
}

/// A table of roles, with what it was made of: it is good as long as that is what is there. The groups hold it; here it is found alone, so
/// that nothing of a release stays that no group runs any more.
#[derive(Clone)]
struct KeptTable {
    release: Weak<CompiledRelease>,
    beside: Option<Weak<ReleaseTags>>,
    cluster: Weak<Cluster>,
    table: Weak<RoleTable>,
}

/// What a template and a cluster provide together, and what it was made of.
#[derive(Clone)]
struct KeptMaps {
    template: Option<Weak<ClusterTemplate>>,
    cluster: Weak<Cluster>,
    maps: Weak<Maps>,
}

/// The nodes of a cluster that have a tag which has a primary.
#[derive(Clone, Default)]
struct Candidates {
    /// All of them: a choice holds while its node is one.
    all: OrdSet<NodeId>,
    /// Those that are not parked: without a choice, the first of them holds the tag.
    ready: OrdSet<Ranked>,
}

#[derive(Clone)]
struct GroupEntry {
    object: Option<Arc<NodeGroup>>,
    nodes: OrdSet<NodeId>,
    fold: Result<Arc<GroupFold>, Vec<Missing>>,
    profiles: OrdMap<ProfileHash, ProfileUse>,
}

/// The nodes of a group that have a profile.
#[derive(Clone)]
struct ProfileUse {
    profile: Arc<Profile>,
    nodes: OrdSet<NodeId>,
}

/// A node in the order of names, digits compared as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranked {
    name: Arc<str>,
    id: NodeId,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        natural_cmp(&self.name, &other.name).then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ranked {
    fn of(node: &Node) -> Self {
        Self { name: node.display_name().into(), id: node.id() }
    }
}

impl Default for GroupEntry {
    fn default() -> Self {
        Self { object: None, nodes: OrdSet::new(), fold: Err(Vec::new()), profiles: OrdMap::new() }
    }
}

/// Objects, by uuid or name.
impl Fleet {
    /// A fleet of nothing, still to be read: every answer is incomplete until [`Fleet::set_loaded`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that everything that is stored has been applied.
    pub fn set_loaded(&mut self) {
        self.is_loaded = true;
    }

    /// Whether everything that is stored has been applied.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// A release, compiled.
    pub fn release(&self, name: &ReleaseRef) -> Option<&Arc<CompiledRelease>> {
        self.releases.get(name)
    }

    /// All releases, by name and version.
    pub fn releases(&self) -> impl Iterator<Item = &Arc<CompiledRelease>> {
        self.releases.values()
    }

    /// User-defined tags beside a release.
    pub fn release_tags(&self, name: &Name) -> Option<&Arc<ReleaseTags>> {
        self.release_tags.get(name)
    }

    /// A template.
    pub fn template(&self, id: TemplateId) -> Option<&Arc<ClusterTemplate>> {
        self.templates.get(&id)?.object.as_ref()
    }

    /// All templates.
    pub fn templates(&self) -> impl Iterator<Item = &Arc<ClusterTemplate>> {
        self.templates.values().filter_map(|entry| entry.object.as_ref())
    }

    /// A cluster.
    pub fn cluster(&self, id: ClusterId) -> Option<&Arc<Cluster>> {
        self.clusters.get(&id)?.object.as_ref()
    }

    /// All clusters.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<Cluster>> {
        self.clusters.values().filter_map(|entry| entry.object.as_ref())
    }

    /// A group.
    pub fn group(&self, id: GroupId) -> Option<&Arc<NodeGroup>> {
        self.groups.get(&id)?.object.as_ref()
    }

    /// The cluster of a group.
    pub fn cluster_of_group(&self, id: GroupId) -> Option<ClusterId> {
        Some(self.group(id)?.spec.cluster)
    }

    /// The cluster that a node stands in.
    pub fn cluster_of_node(&self, id: NodeId) -> Option<ClusterId> {
        self.cluster_of_group(self.node(id)?.spec.nodegroup?)
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<NodeGroup>> {
        self.groups.values().filter_map(|entry| entry.object.as_ref())
    }

    /// The groups of a cluster.
    pub fn groups_of(&self, id: ClusterId) -> impl Iterator<Item = GroupId> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.groups.iter().copied())
    }

    /// What comes down to a group.
    ///
    /// # Errors
    /// What is missing above it.
    pub fn fold(&self, id: GroupId) -> Result<&Arc<GroupFold>, Vec<Missing>> {
        let Some(entry) = self.groups.get(&id) else { return Err(vec![Missing::NodeGroup(id)]) };
        entry.fold.as_ref().map_err(Clone::clone)
    }

    /// What comes down to the groups of a cluster, but for those above which something is missing.
    pub fn folds_of(&self, id: ClusterId) -> impl Iterator<Item = &Arc<GroupFold>> {
        self.groups_of(id).filter_map(|group| self.fold(group).ok())
    }

    /// What comes down to a node with this spec; none where it is unplaced, or something above it is missing.
    pub fn fold_above(&self, spec: &NodeSpec) -> Option<&Arc<GroupFold>> {
        self.fold(spec.nodegroup?).ok()
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        Some(&self.nodes.get(&id)?.node)
    }

    /// The node of a name.
    pub fn node_named(&self, name: &str) -> Option<&Arc<Node>> {
        self.node(*self.by_name.get(name)?)
    }

    /// All nodes, by uuid.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().map(|entry| &entry.node)
    }

    /// The nodes of a group, by uuid.
    pub fn nodes_of(&self, id: GroupId) -> impl Iterator<Item = NodeId> {
        self.groups.get(&id).into_iter().flat_map(|entry| entry.nodes.iter().copied())
    }

    /// The nodes of a cluster, group by group.
    pub fn nodes_of_cluster(&self, id: ClusterId) -> impl Iterator<Item = NodeId> {
        self.groups_of(id).flat_map(|group| self.nodes_of(group))
    }

    /// What a host said, if it ever did.
    pub fn observation(&self, id: NodeId) -> Option<&Arc<Observation>> {
        self.nodes.get(&id)?.observation.as_ref()
    }

    /// What was said on a host itself; `None`: nothing.
    pub fn said(&self, id: NodeId) -> Option<&Arc<SaidOnHost>> {
        self.said.get(&id)
    }

    /// Whether barriers wait for a node: it is parked neither by its spec nor on its host, and is to apply.
    pub fn takes_part(&self, id: NodeId) -> bool {
        let Some(entry) = self.nodes.get(&id).filter(|entry| !self.is_set_aside(entry)) else { return false };
        let group = entry.node.spec.nodegroup.and_then(|group| self.group(group));
        entry.mode(group.map(|group| &**group)).value == Mode::Apply
    }

    /// Who parked a node, if anybody did.
    pub fn parked(&self, node: &Node) -> Option<Side> {
        parked(&node.spec, self.said(node.id()).map(|said| &**said)).next().map(|(side, _)| side)
    }

    /// Whether a node is out of budgets and barriers, and passed over where a primary is chosen.
    fn is_set_aside(&self, entry: &NodeEntry) -> bool {
        self.parked(&entry.node).is_some()
    }

    /// What a node is placed by; `None`: unplaced, or something above it is missing.
    pub fn profile(&self, id: NodeId) -> Option<&Arc<Profile>> {
        self.nodes.get(&id)?.profile.as_ref()
    }

    /// The profiles that nodes of a cluster have, group by group: one that several groups have comes once for each.
    pub fn profiles_of(&self, id: ClusterId) -> impl Iterator<Item = &Arc<Profile>> {
        self.placed_in(id).map(|(profile, _)| profile)
    }

    /// The same, each with the nodes of the group that have it.
    pub fn placed_in(&self, id: ClusterId) -> impl Iterator<Item = (&Arc<Profile>, &OrdSet<NodeId>)> {
        self.groups_of(id).flat_map(|group| self.placed_in_group(group))
    }

    /// The same of one group.
    pub(crate) fn placed_in_group(&self, id: GroupId) -> impl Iterator<Item = (&Arc<Profile>, &OrdSet<NodeId>)> {
        let profiles = self.groups.get(&id).into_iter().flat_map(|entry| entry.profiles.values());
        profiles.map(|used| (&used.profile, &used.nodes))
    }

    /// Whether conditions of privileged tasks on nodes of a cluster look other nodes up.
    pub fn has_privileged_look_up(&self, id: ClusterId) -> bool {
        let looks_up = self.clusters.get(&id).is_some_and(|entry| !entry.lookups.is_empty());
        looks_up && self.profiles_of(id).any(|profile| profile.has_privileged_look_up())
    }

    /// Who holds each tag of a cluster that has a primary.
    pub fn holders(&self, id: ClusterId) -> impl Iterator<Item = (&TagName, NodeId)> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.holders.iter().map(|(tag, node)| (tag, *node)))
    }

    /// The node that a cluster's `primaries:` names for a tag, whether or not it is there.
    pub fn named_primary(&self, id: ClusterId, tag: &str) -> Option<&str> {
        Some(self.cluster(id)?.spec.primaries.get(tag)?.as_str())
    }

    /// The stored choices of primaries in a cluster.
    pub fn primaries(&self, id: ClusterId) -> impl Iterator<Item = &Arc<Primary>> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.chosen.values())
    }

    /// What the catalogue says of keys.
    pub fn catalog(&self) -> &Catalog {
        self.catalog.get_or_init(|| Catalog::of(self.namespaces.values()))
    }

    /// The inspection rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Whether nodes of a group have a profile under this very fold.
    pub(crate) fn uses(&self, group: GroupId, profile: &ProfileHash, fold: &Arc<GroupFold>) -> bool {
        let Some(entry) = self.groups.get(&group) else { return false };
        entry.profiles.contains_key(profile) && entry.fold.as_ref().is_ok_and(|own| Arc::ptr_eq(own, fold))
    }

    pub(crate) fn entry(&self, id: NodeId) -> Option<&Arc<NodeEntry>> {
        self.nodes.get(&id)
    }

    /// Who holds a tag of a cluster as primary.
    pub fn holder(&self, cluster: ClusterId, tag: &str) -> Option<NodeId> {
        self.clusters.get(&cluster)?.holders.get(tag).copied()
    }
}
