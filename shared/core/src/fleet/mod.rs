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

/// The stored objects from which nodes are resolved, in memory, with the data derived from the objects.
#[derive(Clone, Default)]
pub struct Fleet {
    /// True if all stored objects have been applied to the fleet.
    is_loaded: bool,
    releases: OrdMap<ReleaseRef, Arc<CompiledRelease>>,
    release_tags: OrdMap<Name, Arc<ReleaseTags>>,
    templates: OrdMap<TemplateId, TemplateEntry>,
    clusters: OrdMap<ClusterId, ClusterEntry>,
    groups: OrdMap<GroupId, GroupEntry>,
    nodes: OrdMap<NodeId, Arc<NodeEntry>>,
    /// Number of clusters that have nodes.
    clusters_with_nodes: usize,
    /// The pauses, holds and parks that were set on hosts themselves, by node. Few nodes have an entry here.
    reported_states: OrdMap<NodeId, Arc<ReportedState>>,
    /// The nodes that have a name, by name.
    by_name: OrdMap<NodeName, NodeId>,
    /// The namespaces of the catalogue of keys. The desired state of a node does not depend on the catalogue.
    namespaces: OrdMap<Uuid, Arc<Namespace>>,
    /// The catalogue built from the namespaces at its first use. Clones of the fleet share it until a namespace
    /// changes.
    catalog: Arc<OnceLock<Catalog>>,
    rules: RuleSet,
    /// The texts of facts and the sets of traits of all reports, each stored once.
    interner: Interner,
    /// Every profile (the tasks of nodes with the same tags, roles and primaries) that a node has, with the number of
    /// its nodes.
    profiles: OrdMap<ProfileHash, (Arc<Profile>, u32)>,
    /// The index of nodes, from which list filters find nodes without reading each node. `None` if no index was built.
    index: Option<NodeIndex>,
}

/// A cluster template with the clusters that name it. `object` is `None` if a cluster names the template and it does
/// not exist.
#[derive(Clone, Default)]
struct TemplateEntry {
    object: Option<Arc<ClusterTemplate>>,
    clusters: OrdSet<ClusterId>,
}

/// A cluster with its groups and primaries. `object` is `None` if a group or a stored choice names the cluster and it
/// does not exist.
#[derive(Clone, Default)]
struct ClusterEntry {
    object: Option<Arc<Cluster>>,
    groups: OrdSet<GroupId>,
    /// Number of nodes in the groups of the cluster.
    nodes: usize,
    /// The stored choices of primaries, by tag. The field `primaries` of the cluster overrules them.
    stored_choices: OrdMap<TagName, Arc<Primary>>,
    /// The nodes of the cluster that have a tag, for each tag with `has_primary`. A tag that no node has is omitted.
    candidates: OrdMap<TagName, PrimaryCandidates>,
    /// The node that is primary of a tag, by tag. A tag without a primary is omitted.
    holders: OrdMap<TagName, NodeId>,
    /// The look-ups of other nodes that tasks of the cluster make.
    lookups: OrdMap<Reference, TaskLookup>,
    /// The cached role table for each release that groups of the cluster run or ran before, shared by these groups.
    tables: OrdMap<ReleaseRef, CachedTable>,
    /// The cached maps that the cluster and its template provide. All groups of the cluster share them.
    maps: Option<CachedMaps>,
}

/// A cached role table (the tags that each role of a release produces in a cluster) with the objects that it was built
/// from. The table is outdated if another object is stored in place of one of these. All references are weak, so that
/// the cache does not hold a release that no group runs any more in memory. The groups own the table.
#[derive(Clone)]
struct CachedTable {
    release: Weak<CompiledRelease>,
    release_tags: Option<Weak<ReleaseTags>>,
    cluster: Weak<Cluster>,
    table: Weak<RoleTable>,
}

/// The cached labels, annotations and parameters that a cluster and its template provide together, with the objects
/// that these maps were built from. The references are weak, so that the cache keeps none of them in memory.
#[derive(Clone)]
struct CachedMaps {
    template: Option<Weak<ClusterTemplate>>,
    cluster: Weak<Cluster>,
    maps: Weak<InheritedMaps>,
}

/// The nodes of a cluster that can be primary of a tag.
#[derive(Clone, Default)]
struct PrimaryCandidates {
    /// All nodes that have the tag. A chosen node remains primary while it is one of them.
    members: OrdSet<NodeId>,
    /// The nodes that have the tag and are not parked, by name. If no chosen node has the tag, the first of them is
    /// primary.
    unparked: OrdSet<RankedNode>,
}

/// A node group with its nodes. `object` is `None` if a node names the group and it does not exist.
#[derive(Clone)]
struct GroupEntry {
    object: Option<Arc<NodeGroup>>,
    nodes: OrdSet<NodeId>,
    /// The group with everything that it inherits, or the first missing object, as in [`Fleet::resolved_group`].
    resolved: Result<Arc<ResolvedGroup>, Vec<MissingParent>>,
    /// The profiles that nodes of the group have, each with these nodes.
    profiles: OrdMap<ProfileHash, ProfileNodes>,
}

/// A profile with the nodes of one group that have it.
#[derive(Clone)]
struct ProfileNodes {
    profile: Arc<Profile>,
    nodes: OrdSet<NodeId>,
}

/// A node in a list that is sorted by name, with digits compared as numbers.
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

/// Reads the stored objects and the data derived from them.
impl Fleet {
    /// Returns an empty fleet that is not loaded yet. No node can be resolved until the caller has applied all stored
    /// objects and calls [`Fleet::set_loaded`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks the fleet as loaded. The caller must have applied all stored objects before.
    pub fn set_loaded(&mut self) {
        self.is_loaded = true;
    }

    /// Returns whether all stored objects have been applied.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Returns the compiled release with this name and version.
    pub fn release(&self, name: &ReleaseRef) -> Option<&Arc<CompiledRelease>> {
        self.releases.get(name)
    }

    /// Returns all releases, by name and version.
    pub fn releases(&self) -> impl Iterator<Item = &Arc<CompiledRelease>> {
        self.releases.values()
    }

    /// Returns the user-defined tags of a release, which apply to all its versions.
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

    /// Returns the cluster that a group names. The cluster may be missing.
    pub fn cluster_of_group(&self, id: GroupId) -> Option<ClusterId> {
        Some(self.group(id)?.spec.cluster)
    }

    /// Returns the cluster that the group of a node names. The cluster may be missing.
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

    /// Returns a group with everything that its nodes inherit.
    ///
    /// # Errors
    /// The first of these objects that is missing: the group, its cluster, the template of the cluster, the release.
    pub fn resolved_group(&self, id: GroupId) -> Result<&Arc<ResolvedGroup>, Vec<MissingParent>> {
        let Some(entry) = self.groups.get(&id) else { return Err(vec![MissingParent::NodeGroup(id)]) };
        entry.resolved.as_ref().map_err(Clone::clone)
    }

    /// Returns the groups of a cluster with everything that their nodes inherit. A group with a missing object above
    /// it, or with a missing release, is omitted.
    pub fn resolved_groups(&self, id: ClusterId) -> impl Iterator<Item = &Arc<ResolvedGroup>> {
        self.groups_in_cluster(id).filter_map(|group| self.resolved_group(group).ok())
    }

    /// Returns the group of a node with this spec, with everything that its nodes inherit. Returns `None` if the spec
    /// names no group, or if the group, an object above it or the release is missing.
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

    /// Returns the facts, traits and labels that the host of a node reported last, or `None` if it has not reported.
    pub fn observation(&self, id: NodeId) -> Option<&Arc<Observation>> {
        self.nodes.get(&id)?.observation.as_ref()
    }

    /// Returns the pause, hold and park that were set on a host itself, or `None` if nothing is set.
    pub fn reported_state(&self, id: NodeId) -> Option<&Arc<ReportedState>> {
        self.reported_states.get(&id)
    }

    /// Returns whether barriers wait for the tasks of a node. They do if the mode of the node is `apply`, and it is not
    /// parked, neither by its spec nor on its host.
    pub fn counts_for_barriers(&self, id: NodeId) -> bool {
        let Some(entry) = self.nodes.get(&id).filter(|entry| !self.is_excluded(entry)) else { return false };
        let group = entry.node.spec.nodegroup.and_then(|group| self.group(group));
        entry.mode(group.map(|group| &**group)).value == Mode::Apply
    }

    /// Returns who parked a node: an operator, or someone on the host. If both did, returns the operator. Returns
    /// `None` if the node is not parked.
    pub fn parked_by(&self, node: &Node) -> Option<SetBy> {
        parked_by(&node.spec, self.reported_state(node.id()).map(|state| &**state)).next().map(|(set_by, _)| set_by)
    }

    /// Returns whether a node is parked. Barriers exclude a parked node. The election of primaries excludes it too,
    /// unless the node was chosen by `primaries` or by a stored choice.
    fn is_excluded(&self, entry: &NodeEntry) -> bool {
        self.parked_by(&entry.node).is_some()
    }

    /// Returns the profile of a node: its tags, roles and primaries, with the tasks that follow from them. Returns
    /// `None` if the node has no group, if its group has no release, or if an object above the node is missing.
    pub fn profile(&self, id: NodeId) -> Option<&Arc<Profile>> {
        self.nodes.get(&id)?.profile.as_ref()
    }

    /// Returns the profiles that nodes of a cluster have, group by group. If nodes of several groups have the same
    /// profile, it is returned once for each group.
    pub fn profiles_in_cluster(&self, id: ClusterId) -> impl Iterator<Item = &Arc<Profile>> {
        self.profile_nodes_in_cluster(id).map(|(profile, _)| profile)
    }

    /// Returns the profiles that nodes of a cluster have, group by group. Each profile has the nodes of the group that
    /// have it.
    pub fn profile_nodes_in_cluster(&self, id: ClusterId) -> impl Iterator<Item = (&Arc<Profile>, &OrdSet<NodeId>)> {
        self.groups_in_cluster(id).flat_map(|group| self.profile_nodes_in_group(group))
    }

    /// Returns the profiles that nodes of a group have, each with these nodes.
    pub(crate) fn profile_nodes_in_group(&self, id: GroupId) -> impl Iterator<Item = (&Arc<Profile>, &OrdSet<NodeId>)> {
        let profiles = self.groups.get(&id).into_iter().flat_map(|entry| entry.profiles.values());
        profiles.map(|profile_nodes| (&profile_nodes.profile, &profile_nodes.nodes))
    }

    /// Returns whether the condition of a privileged task on a node of the cluster looks up other nodes.
    pub fn has_privileged_lookup(&self, id: ClusterId) -> bool {
        let looks_up = self.clusters.get(&id).is_some_and(|entry| !entry.lookups.is_empty());
        looks_up && self.profiles_in_cluster(id).any(|profile| profile.has_privileged_lookup())
    }

    /// Returns the tags that have a primary in a cluster, each with the node that is primary.
    pub fn holders(&self, id: ClusterId) -> impl Iterator<Item = (&TagName, NodeId)> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.holders.iter().map(|(tag, node)| (tag, *node)))
    }

    /// Returns the name or uuid of the node that a cluster's `primaries` contains for a tag. The node need not exist.
    pub fn named_primary(&self, id: ClusterId, tag: &str) -> Option<&str> {
        Some(self.cluster(id)?.spec.primaries.get(tag)?.as_str())
    }

    /// Returns the stored choices of primaries in a cluster. A stored choice can differ from the current primary.
    pub fn primaries(&self, id: ClusterId) -> impl Iterator<Item = &Arc<Primary>> {
        self.clusters.get(&id).into_iter().flat_map(|entry| entry.stored_choices.values())
    }

    /// Returns the catalogue of keys. It is built at the first call after a change of a namespace.
    pub fn catalog(&self) -> &Catalog {
        self.catalog.get_or_init(|| Catalog::new(self.namespaces.values()))
    }

    /// Returns the inspection rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Returns whether a node of the group has this profile, and `resolved` is still the current form of the group.
    pub(crate) fn is_profile_used(&self, group: GroupId, profile: &ProfileHash, resolved: &Arc<ResolvedGroup>) -> bool {
        let Some(entry) = self.groups.get(&group) else { return false };
        entry.profiles.contains_key(profile) && entry.resolved.as_ref().is_ok_and(|current| Arc::ptr_eq(current, resolved))
    }

    /// Returns a node with the data that is derived from it.
    pub(crate) fn entry(&self, id: NodeId) -> Option<&Arc<NodeEntry>> {
        self.nodes.get(&id)
    }

    /// Returns the node that is primary of a tag in a cluster.
    pub fn holder(&self, cluster: ClusterId, tag: &str) -> Option<NodeId> {
        self.clusters.get(&cluster)?.holders.get(tag).copied()
    }
}
