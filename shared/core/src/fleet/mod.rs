//! The fleet: every object of the model in memory, with the data derived from it for placement.
//!
//! A snapshot is a clone, and free, because all maps are persistent and share. [`Fleet::apply`] applies one change and
//! returns exactly the nodes that must be resolved again. Derived data (resolved groups, effective tags, primaries,
//! profiles) is stored next to the objects and updated only where the change has an effect. So an edit of one node
//! costs the same in a fleet of a hundred and of a hundred thousand.
//!
//! Objects may be added in any order, as a store returns them. A child whose parent is missing is stored, and is
//! incomplete until the parent is added.

mod apply;
mod awaited;
mod change;
mod dependents;
mod elect;
mod group;
mod host_controlled;
mod index;
mod intern;
mod lookup;
mod lost_labels;
mod missing;
mod node;
mod placement;
mod view;

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use imbl::{OrdMap, OrdSet};
use uuid::Uuid;

pub use awaited::AwaitedPrimary;
pub use change::{DirtyNodes, FleetChange};
pub use elect::{LostNodeName, MovedPrimary, PrimaryRejection, lost_node_name, moved_primaries};
pub use group::{InheritedMaps, Levels, ResolvedGroup};
pub use host_controlled::HostControlledRead;
use index::NodeIndex;
pub use index::{IRONIC_FIELDS, IndexTerm, NodeSet, normalized_text};
use intern::Interner;
use lookup::TaskLookup;
pub use lost_labels::lost_labels;
pub use missing::MissingParent;
pub(crate) use node::NodeEntry;
pub use node::ended_unassignments;
pub(crate) use node::spec_roles;
pub use view::NodeView;

use crate::catalog::Catalog;
use crate::input::Reference;
use crate::inspection::RuleSet;

use crate::name::{Name, NodeName, ReleaseRef, TagName};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, Namespace, Node, NodeGroup, NodeId, NodeSpec, Observation, Primary,
    ReleaseTags, ReportedState, TemplateId,
};
use crate::release::{CompiledRelease, Profile, ProfileHash};
use crate::role::{RoleTable, natural_cmp};
use crate::status::{SetBy, parked_by};
use crate::task::Mode;

/// Every object of the model, with the data derived from it.
#[derive(Clone, Default)]
pub struct Fleet {
    /// True if all stored objects have been applied.
    is_loaded: bool,
    releases: OrdMap<ReleaseRef, Arc<CompiledRelease>>,
    release_tags: OrdMap<Name, Arc<ReleaseTags>>,
    templates: OrdMap<TemplateId, TemplateEntry>,
    clusters: OrdMap<ClusterId, ClusterEntry>,
    groups: OrdMap<GroupId, GroupEntry>,
    nodes: OrdMap<NodeId, Arc<NodeEntry>>,
    /// Number of clusters that have nodes.
    clusters_with_nodes: usize,
    /// The pauses, holds and parks that were set on hosts themselves. Few nodes have one, so they are not stored in the
    /// node entries.
    reported_states: OrdMap<NodeId, Arc<ReportedState>>,
    /// The nodes that have a name, by name.
    by_name: OrdMap<NodeName, NodeId>,
    /// The namespaces of the catalogue of keys. The result of a node never depends on the catalogue.
    namespaces: OrdMap<Uuid, Arc<Namespace>>,
    /// The catalogue built from the namespaces at its first use. All snapshots share it until a namespace changes.
    catalog: Arc<OnceLock<Catalog>>,
    rules: RuleSet,
    /// The texts that the reports of many hosts share.
    interner: Interner,
    /// Every profile in use, with the number of nodes that have it.
    profiles: OrdMap<ProfileHash, (Arc<Profile>, u32)>,
    /// Nodes by the properties that list filters select. `None` if no index was built.
    index: Option<NodeIndex>,
}

/// A template with the clusters that name it. `object` is `None` if the template does not exist.
#[derive(Clone, Default)]
struct TemplateEntry {
    object: Option<Arc<ClusterTemplate>>,
    clusters: OrdSet<ClusterId>,
}

/// A cluster with its groups and primaries. `object` is `None` if the cluster does not exist, but a group or a stored
/// choice names it.
#[derive(Clone, Default)]
struct ClusterEntry {
    object: Option<Arc<Cluster>>,
    groups: OrdSet<GroupId>,
    /// Number of nodes in the groups of the cluster.
    nodes: usize,
    /// The stored choices of primaries.
    stored_choices: OrdMap<TagName, Arc<Primary>>,
    /// For each tag that has a primary, the nodes of the cluster that have the tag.
    candidates: OrdMap<TagName, PrimaryCandidates>,
    /// The node that holds each tag as primary.
    holders: OrdMap<TagName, NodeId>,
    /// The look-ups that tasks of the cluster's nodes make.
    lookups: OrdMap<Reference, TaskLookup>,
    /// The role table of each release that groups of the cluster run. The groups with one release share it.
    tables: OrdMap<ReleaseRef, CachedTable>,
    /// The maps that the groups of the cluster inherit from the cluster and its template, and share.
    maps: Option<CachedMaps>,
}

/// A role table with the objects that it was built from. The table is current while these are the stored objects. All
/// references are weak, because the groups own the table. So nothing remains of a release that no group runs any more.
#[derive(Clone)]
struct CachedTable {
    release: Weak<CompiledRelease>,
    release_tags: Option<Weak<ReleaseTags>>,
    cluster: Weak<Cluster>,
    table: Weak<RoleTable>,
}

/// The maps that a template and a cluster provide together, with the objects that they were built from. The references
/// are weak, as those of [`CachedTable`].
#[derive(Clone)]
struct CachedMaps {
    template: Option<Weak<ClusterTemplate>>,
    cluster: Weak<Cluster>,
    maps: Weak<InheritedMaps>,
}

/// The nodes of a cluster that have a tag with a primary.
#[derive(Clone, Default)]
struct PrimaryCandidates {
    /// All nodes that have the tag. The choice of a primary is valid while its node is one of them.
    all: OrdSet<NodeId>,
    /// The nodes that have the tag and are not parked. Without a valid choice, the first of them holds the tag.
    ready: OrdSet<RankedNode>,
}

/// A group with its nodes. `object` is `None` if the group does not exist, but a node names it.
#[derive(Clone)]
struct GroupEntry {
    object: Option<Arc<NodeGroup>>,
    nodes: OrdSet<NodeId>,
    /// The group with everything that it inherits, or the objects that are missing.
    resolved: Result<Arc<ResolvedGroup>, Vec<MissingParent>>,
    /// The profiles of the group's nodes.
    profiles: OrdMap<ProfileHash, ProfileNodes>,
}

/// The nodes of a group that have a profile.
#[derive(Clone)]
struct ProfileNodes {
    profile: Arc<Profile>,
    nodes: OrdSet<NodeId>,
}

/// A node in the order of names. Digits are compared as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RankedNode {
    name: Arc<str>,
    id: NodeId,
}

impl Ord for RankedNode {
    fn cmp(&self, other: &Self) -> Ordering {
        natural_cmp(&self.name, &other.name).then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for RankedNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl RankedNode {
    fn new(node: &Node) -> Self {
        Self { name: node.display_name().into(), id: node.id() }
    }
}

impl Default for GroupEntry {
    fn default() -> Self {
        Self { object: None, nodes: OrdSet::new(), resolved: Err(Vec::new()), profiles: OrdMap::new() }
    }
}

/// Lookups of objects, by uuid or name.
impl Fleet {
    /// Returns an empty fleet that is still being loaded. Every result is incomplete until [`Fleet::set_loaded`] is
    /// called.
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks the fleet as loaded, after all stored objects have been applied.
    pub fn set_loaded(&mut self) {
        self.is_loaded = true;
    }

    /// Returns whether all stored objects have been applied.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Returns a compiled release.
    pub fn release(&self, name: &ReleaseRef) -> Option<&Arc<CompiledRelease>> {
        self.releases.get(name)
    }

    /// Returns all releases, by name and version.
    pub fn releases(&self) -> impl Iterator<Item = &Arc<CompiledRelease>> {
        self.releases.values()
    }

    /// Returns the user-defined tags of a release.
    pub fn release_tags(&self, name: &Name) -> Option<&Arc<ReleaseTags>> {
        self.release_tags.get(name)
    }

    /// Returns a template.
    pub fn template(&self, id: TemplateId) -> Option<&Arc<ClusterTemplate>> {
        self.templates.get(&id)?.object.as_ref()
    }

    /// Returns all templates.
    pub fn templates(&self) -> impl Iterator<Item = &Arc<ClusterTemplate>> {
        self.templates.values().filter_map(|entry| entry.object.as_ref())
    }

    /// Returns a cluster.
    pub fn cluster(&self, id: ClusterId) -> Option<&Arc<Cluster>> {
        self.clusters.get(&id)?.object.as_ref()
    }

    /// Returns all clusters.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<Cluster>> {
        self.clusters.values().filter_map(|entry| entry.object.as_ref())
    }

    /// Returns a group.
    pub fn group(&self, id: GroupId) -> Option<&Arc<NodeGroup>> {
        self.groups.get(&id)?.object.as_ref()
    }

    /// Returns the cluster of a group.
    pub fn cluster_of_group(&self, id: GroupId) -> Option<ClusterId> {
        Some(self.group(id)?.spec.cluster)
    }

    /// Returns the cluster of a node.
    pub fn cluster_of_node(&self, id: NodeId) -> Option<ClusterId> {
        self.cluster_of_group(self.node(id)?.spec.nodegroup?)
    }

    /// Returns all groups.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<NodeGroup>> {
        self.groups.values().filter_map(|entry| entry.object.as_ref())
    }

    /// Returns the groups of a cluster.
    pub fn groups_in_cluster(&self, id: ClusterId) -> impl Iterator<Item = GroupId> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.groups.iter().copied())
    }

    /// Returns a group with everything that it inherits.
    ///
    /// # Errors
    /// The missing parents or release.
    pub fn resolved_group(&self, id: GroupId) -> Result<&Arc<ResolvedGroup>, Vec<MissingParent>> {
        let Some(entry) = self.groups.get(&id) else { return Err(vec![MissingParent::NodeGroup(id)]) };
        entry.resolved.as_ref().map_err(Clone::clone)
    }

    /// Returns the resolved groups of a cluster. Groups with a missing parent or release are omitted.
    pub fn resolved_groups(&self, id: ClusterId) -> impl Iterator<Item = &Arc<ResolvedGroup>> {
        self.groups_in_cluster(id).filter_map(|group| self.resolved_group(group).ok())
    }

    /// Returns the resolved group of a node with this spec. `None` if the node has no group, or a parent or release is
    /// missing.
    pub fn resolved_parent(&self, spec: &NodeSpec) -> Option<&Arc<ResolvedGroup>> {
        self.resolved_group(spec.nodegroup?).ok()
    }

    /// Returns a node.
    pub fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        Some(&self.nodes.get(&id)?.node)
    }

    /// Returns the node with this name.
    pub fn node_by_name(&self, name: &str) -> Option<&Arc<Node>> {
        self.node(*self.by_name.get(name)?)
    }

    /// Returns all nodes, by uuid.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().map(|entry| &entry.node)
    }

    /// Returns the nodes of a group, by uuid.
    pub fn nodes_in_group(&self, id: GroupId) -> impl Iterator<Item = NodeId> {
        self.groups.get(&id).into_iter().flat_map(|entry| entry.nodes.iter().copied())
    }

    /// Returns the nodes of a cluster, group by group.
    pub fn nodes_in_cluster(&self, id: ClusterId) -> impl Iterator<Item = NodeId> {
        self.groups_in_cluster(id).flat_map(|group| self.nodes_in_group(group))
    }

    /// Returns the report of a host, or `None` if it has not reported.
    pub fn observation(&self, id: NodeId) -> Option<&Arc<Observation>> {
        self.nodes.get(&id)?.observation.as_ref()
    }

    /// Returns the pause, hold and park that were set on a host itself, or `None` if nothing is set.
    pub fn reported_state(&self, id: NodeId) -> Option<&Arc<ReportedState>> {
        self.reported_states.get(&id)
    }

    /// Returns whether barriers wait for a node. They wait for a node whose mode is `apply`, and which is parked
    /// neither by its spec nor on its host.
    pub fn counts_for_barriers(&self, id: NodeId) -> bool {
        let Some(entry) = self.nodes.get(&id).filter(|entry| !self.is_excluded(entry)) else { return false };
        let group = entry.node.spec.nodegroup.and_then(|group| self.group(group));
        entry.mode(group.map(|group| &**group)).value == Mode::Apply
    }

    /// Returns whether an operator or someone on the host parked a node. If both did, returns the operator. `None` if
    /// the node is not parked.
    pub fn parked_by(&self, node: &Node) -> Option<SetBy> {
        parked_by(&node.spec, self.reported_state(node.id()).map(|state| &**state)).next().map(|(side, _)| side)
    }

    /// Returns whether a node is excluded from budgets, from barriers and from the election of primaries.
    fn is_excluded(&self, entry: &NodeEntry) -> bool {
        self.parked_by(&entry.node).is_some()
    }

    /// Returns the profile of a node. `None` if the node has no group, or an object above it is missing, or its group
    /// has no release.
    pub fn profile(&self, id: NodeId) -> Option<&Arc<Profile>> {
        self.nodes.get(&id)?.profile.as_ref()
    }

    /// Returns the profiles that nodes of a cluster have, group by group. A profile of several groups is returned once
    /// for each.
    pub fn profiles_in_cluster(&self, id: ClusterId) -> impl Iterator<Item = &Arc<Profile>> {
        self.profile_nodes_in_cluster(id).map(|(profile, _)| profile)
    }

    /// Returns the profiles of a cluster, each with the nodes of one group that have it.
    pub fn profile_nodes_in_cluster(&self, id: ClusterId) -> impl Iterator<Item = (&Arc<Profile>, &OrdSet<NodeId>)> {
        self.groups_in_cluster(id).flat_map(|group| self.profile_nodes_in_group(group))
    }

    /// Returns the profiles of a group, each with its nodes.
    pub(crate) fn profile_nodes_in_group(&self, id: GroupId) -> impl Iterator<Item = (&Arc<Profile>, &OrdSet<NodeId>)> {
        let profiles = self.groups.get(&id).into_iter().flat_map(|entry| entry.profiles.values());
        profiles.map(|used| (&used.profile, &used.nodes))
    }

    /// Returns whether conditions of privileged tasks on nodes of a cluster read other nodes.
    pub fn has_privileged_lookup(&self, id: ClusterId) -> bool {
        let looks_up = self.clusters.get(&id).is_some_and(|entry| !entry.lookups.is_empty());
        looks_up && self.profiles_in_cluster(id).any(|profile| profile.has_privileged_lookup())
    }

    /// Returns each tag of a cluster that has a primary, with the node that holds it.
    pub fn holders(&self, id: ClusterId) -> impl Iterator<Item = (&TagName, NodeId)> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.holders.iter().map(|(tag, node)| (tag, *node)))
    }

    /// Returns the node name that a cluster's `primaries:` has for a tag. The node need not exist.
    pub fn named_primary(&self, id: ClusterId, tag: &str) -> Option<&str> {
        Some(self.cluster(id)?.spec.primaries.get(tag)?.as_str())
    }

    /// Returns the stored choices of primaries in a cluster.
    pub fn primaries(&self, id: ClusterId) -> impl Iterator<Item = &Arc<Primary>> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.stored_choices.values())
    }

    /// Returns the catalogue of keys.
    pub fn catalog(&self) -> &Catalog {
        self.catalog.get_or_init(|| Catalog::new(self.namespaces.values()))
    }

    /// Returns the inspection rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Returns whether a node of a group has a profile, and `resolved` is still the current resolved form of the group.
    pub(crate) fn is_profile_used(&self, group: GroupId, profile: &ProfileHash, resolved: &Arc<ResolvedGroup>) -> bool {
        let Some(entry) = self.groups.get(&group) else { return false };
        entry.profiles.contains_key(profile) && entry.resolved.as_ref().is_ok_and(|own| Arc::ptr_eq(own, resolved))
    }

    /// Returns a node with its derived data.
    pub(crate) fn entry(&self, id: NodeId) -> Option<&Arc<NodeEntry>> {
        self.nodes.get(&id)
    }

    /// Returns the node that holds a tag of a cluster as primary.
    pub fn holder(&self, cluster: ClusterId, tag: &str) -> Option<NodeId> {
        self.clusters.get(&cluster)?.holders.get(tag).copied()
    }
}
