//! What a group inherits. It is computed once for all nodes of the group, and again only when the group or a level
//! above the group changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use uuid::Uuid;

use super::{CachedMaps, CachedTable, Fleet, MissingParent};
use crate::host_labels::HostLabelRule;
use crate::input::{Path, Read};
use crate::key::{LabelKey, LabelValue};
use crate::labels::{Annotations, Labels, Parameters};
use crate::lifecycle::Lifecycle;
use crate::name::{Name, ObjectName, ReleaseRef};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, Inherited, Meta, NodeGroup, NodeGroupSpec, Object, Observation, TemplateId,
    Timestamp,
};
use crate::origin::{Level, Origin, ValueWithOrigin, nearest_value};
use crate::release::CompiledRelease;
use crate::requirement::{Requirement, RequirementField};
use crate::role::RoleTable;

/// The levels that apply to an object, each with the values that it provides. The level farthest from the host comes
/// first.
pub type Levels<'a> = Vec<(Level, &'a Inherited)>;

/// The labels, annotations and parameters that several levels provide together.
#[derive(Clone, Debug, Default)]
pub struct InheritedMaps {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Annotations,
    /// Parameters.
    pub parameters: Parameters,
}

/// A node group with everything that its nodes inherit.
#[derive(Clone, Debug)]
pub struct ResolvedGroup {
    /// The node group itself.
    pub group: Arc<NodeGroup>,
    /// The cluster of the group.
    pub cluster: Arc<Cluster>,
    /// The template of the cluster, or `None` if the cluster names no template.
    pub template: Option<Arc<ClusterTemplate>>,
    /// The labels, annotations and parameters of all levels down to the group.
    pub maps: InheritedMaps,
    /// The labels, annotations and parameters of the levels down to the cluster, shared with the other groups of the
    /// cluster.
    cluster_maps: Arc<InheritedMaps>,
    /// The rule for host labels: which labels are exported to the host label map, and which keys the group accepts from
    /// hosts.
    pub host_labels: ValueWithOrigin<Arc<HostLabelRule>>,
    /// The release of the nearest level that names one. `None` if no level names a release. The nodes then have no
    /// tasks.
    pub release: Option<ValueWithOrigin<Arc<CompiledRelease>, Level>>,
    /// The tags that each role produces in this cluster, and all definitions of tags. `None` if there is no release.
    pub role_table: Option<Arc<RoleTable>>,
    /// The roles that the group gives its nodes.
    pub roles: BTreeSet<Name>,
    /// What the requirements of the group read of a node. A requirement with a path that no value can have is omitted.
    pub(super) required_reads: Box<[Read]>,
}

impl InheritedMaps {
    /// Merges the maps of several levels. The level farthest from the host must come first.
    pub fn from_levels(levels: &[(Level, &Inherited)]) -> Self {
        Self {
            labels: Labels::from_levels(levels.iter().map(|(level, inherited)| (*level, &inherited.labels))),
            annotations: Annotations::from_levels(levels.iter().map(|(level, inherited)| (*level, &inherited.annotations))),
            parameters: Parameters::from_levels(levels.iter().map(|(level, inherited)| (*level, &inherited.parameters))),
        }
    }

    /// Returns the maps merged with those of one more level. A map that the level does not change is shared with the
    /// result.
    fn with_level(&self, level: Level, inherited: &Inherited) -> Self {
        Self {
            labels: self.labels.with_level(level, &inherited.labels),
            annotations: self.annotations.with_level(level, &inherited.annotations),
            parameters: self.parameters.with_level(level, &inherited.parameters),
        }
    }
}

/// Inheritance through the levels.
impl Fleet {
    /// Returns a template as the only level, with the values that it provides. Empty if the template does not exist.
    pub fn template_levels(&self, id: TemplateId) -> Levels<'_> {
        self.template(id).map(|template| (Level::ClusterTemplate, &template.spec.inherited)).into_iter().collect()
    }

    /// Returns the levels down to a cluster: its template and the cluster. Empty if the cluster does not exist.
    pub fn cluster_levels(&self, id: ClusterId) -> Levels<'_> {
        let Some(cluster) = self.cluster(id) else { return Vec::new() };
        let template = cluster.spec.cluster_template.map(|id| self.template_levels(id));
        let mut levels = template.unwrap_or_default();
        levels.push((Level::Cluster, &cluster.spec.inherited));
        levels
    }

    /// Returns the levels down to a group: the template, the cluster and the group. Empty if the group does not exist.
    pub fn group_levels(&self, id: GroupId) -> Levels<'_> {
        let Some(group) = self.group(id) else { return Vec::new() };
        let mut levels = self.cluster_levels(group.spec.cluster);
        levels.push((Level::NodeGroup, &group.spec.inherited));
        levels
    }

    /// Returns the name of the release that the groups of a cluster run if they name no release themselves: that of the
    /// cluster, else that of its template. The release need not exist. Returns `None` if neither names one.
    pub fn cluster_release<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a ReleaseRef> {
        let template = cluster.spec.cluster_template.and_then(|id| self.template(id));
        named_release(template.map(|template| &**template), cluster, None).map(|release| release.value)
    }

    /// Returns what a node inherits that is in a cluster but in no group, such as the pseudo node `master`. The result
    /// is that of a group with this name that sets nothing. Returns `None` if the cluster or its release does not
    /// exist.
    pub(crate) fn resolve_without_group(&self, id: ClusterId, name: ObjectName) -> Option<ResolvedGroup> {
        let cluster = self.cluster(id)?;
        let template = cluster.spec.cluster_template.and_then(|id| self.template(id));
        let group = Object { meta: Meta::new(Uuid::nil(), name, Timestamp(0)), spec: NodeGroupSpec::new(id) };
        let resolved = ResolvedGroup::new(&Arc::new(group), cluster, template, self).ok()?;
        // The maps contain only the levels that exist, so not the group.
        Some(ResolvedGroup { maps: (*resolved.cluster_maps).clone(), ..resolved })
    }

    /// Returns the role table of a cluster under its own release (or that of its template): the tags that each role
    /// produces, and the tags that the release and users declare.
    pub fn role_table(&self, cluster: &Cluster) -> RoleTable {
        self.role_table_for(self.cluster_release(cluster), cluster)
    }

    /// Returns the role table of a cluster under an existing release. Reuses the cached table of the cluster if it was
    /// built from the current objects, or if it equals a newly built table.
    fn shared_role_table(&self, release: &Arc<CompiledRelease>, cluster: &Arc<Cluster>) -> Arc<RoleTable> {
        let cached = self.cached_table(release, cluster);
        let table = cached.and_then(|entry| entry.table.upgrade());
        if let Some(table) = &table
            && cached.is_some_and(|entry| self.is_current(entry, release, cluster))
        {
            return Arc::clone(table);
        }
        let new_table = self.role_table_for(Some(&release.name), cluster);
        table.filter(|table| **table == new_table).unwrap_or_else(|| Arc::new(new_table))
    }

    /// Returns the maps that the groups of a cluster inherit from the cluster and its template. Reuses the cached maps
    /// if they were built from these objects.
    fn shared_maps(&self, cluster: &Arc<Cluster>, template: Option<&Arc<ClusterTemplate>>) -> Arc<InheritedMaps> {
        let cached = self.clusters.get(&ClusterId(cluster.meta.uuid)).and_then(|entry| entry.maps.as_ref());
        let cached = cached.filter(|cache| cache.is_built_from(cluster, template)).and_then(|cache| cache.maps.upgrade());
        let build = || {
            let template_level = template.map(|template| (Level::ClusterTemplate, &template.spec.inherited));
            let levels: Levels<'_> = template_level.into_iter().chain([(Level::Cluster, &cluster.spec.inherited)]).collect();
            Arc::new(InheritedMaps::from_levels(&levels))
        };
        cached.unwrap_or_else(build)
    }

    /// Caches the maps that a group inherits from its cluster, so that the other groups of the cluster share them.
    fn cache_maps(&mut self, group: &ResolvedGroup) {
        let Some(entry) = self.clusters.get(&group.cluster_id()) else { return };
        let template = group.template.as_ref();
        let is_cached =
            |cached: &CachedMaps| points_to(&cached.maps, &group.cluster_maps) && cached.is_built_from(&group.cluster, template);
        if entry.maps.as_ref().is_some_and(is_cached) {
            return;
        }
        let (template, cluster) = (template.map(Arc::downgrade), Arc::downgrade(&group.cluster));
        let cached = CachedMaps { template, cluster, maps: Arc::downgrade(&group.cluster_maps) };
        if let Some(entry) = self.clusters.get_mut(&group.cluster_id()) {
            entry.maps = Some(cached);
        }
    }

    /// Returns the cached role table of a cluster under a release, if there is one. The table may be outdated.
    fn cached_table(&self, release: &CompiledRelease, cluster: &Cluster) -> Option<&CachedTable> {
        self.clusters.get(&ClusterId(cluster.meta.uuid))?.tables.get(&release.name)
    }

    /// Returns whether a cached role table was built from this release, the stored tags of the release, and this
    /// cluster.
    fn is_current(&self, cached: &CachedTable, release: &Arc<CompiledRelease>, cluster: &Arc<Cluster>) -> bool {
        let has_same_tags = match (&cached.release_tags, self.release_tags(&release.name.name)) {
            (Some(cached), Some(tags)) => points_to(cached, tags),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        has_same_tags && points_to(&cached.release, release) && points_to(&cached.cluster, cluster)
    }

    /// Caches the role table and the inherited maps of a group in the entry of its cluster, so that the other groups of
    /// the cluster share them. The values of the group replace older ones, which were built from other objects.
    pub(super) fn cache_shared(&mut self, group: &ResolvedGroup) {
        self.cache_maps(group);
        let ResolvedGroup { release: Some(release), role_table: Some(table), cluster, .. } = group else { return };
        let release = &release.value;
        let is_cached = |cached: &CachedTable| points_to(&cached.table, table) && self.is_current(cached, release, cluster);
        if self.cached_table(release, cluster).is_some_and(is_cached) {
            return;
        }
        let cached = CachedTable {
            release: Arc::downgrade(release),
            release_tags: self.release_tags(&release.name.name).map(Arc::downgrade),
            cluster: Arc::downgrade(cluster),
            table: Arc::downgrade(table),
        };
        if let Some(entry) = self.clusters.get_mut(&group.cluster_id()) {
            entry.tables.insert(release.name.clone(), cached);
        }
    }

    /// Builds the role table of a cluster under a release. If the release does not exist, the table has only the
    /// user-defined tags of the release and of the cluster, and the roles that these tags or the cluster name.
    fn role_table_for(&self, release: Option<&ReleaseRef>, cluster: &Cluster) -> RoleTable {
        let tags = release.and_then(|release| self.release_tags(&release.name));
        let tags = tags.into_iter().flat_map(|tags| &tags.spec.tags).chain(&cluster.spec.tags);
        match release.and_then(|release| self.release(release)) {
            Some(release) => {
                RoleTable::new(&release.roles, &release.tags, tags, &cluster.spec.roles).with_extensions(&release.extensions)
            }
            None => RoleTable::new(&BTreeMap::new(), &BTreeMap::new(), tags, &cluster.spec.roles),
        }
    }
}

impl CachedMaps {
    /// Returns whether the cached maps were built from this cluster and this template.
    fn is_built_from(&self, cluster: &Arc<Cluster>, template: Option<&Arc<ClusterTemplate>>) -> bool {
        let has_same_template = match (&self.template, template) {
            (Some(cached), Some(template)) => points_to(cached, template),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        has_same_template && points_to(&self.cluster, cluster)
    }
}

/// Returns whether a cached weak pointer refers to this object. The memory of an object is not freed while a weak
/// pointer to it exists. So no other object can have the same address.
fn points_to<T>(cached: &Weak<T>, object: &Arc<T>) -> bool {
    std::ptr::eq(cached.as_ptr(), Arc::as_ptr(object))
}

/// Returns the release that applies: that of the nearest of these levels that names one.
fn named_release<'a>(
    template: Option<&'a ClusterTemplate>,
    cluster: &'a Cluster,
    group: Option<&'a NodeGroup>,
) -> Option<ValueWithOrigin<&'a ReleaseRef, Level>> {
    let releases = [
        (Level::ClusterTemplate, template.and_then(|template| template.spec.release.as_ref())),
        (Level::Cluster, cluster.spec.release.as_ref()),
        (Level::NodeGroup, group.and_then(|group| group.spec.release.as_ref())),
    ];
    nearest_value(releases.into_iter().filter_map(|(level, name)| Some((level, name?))))
}

impl ResolvedGroup {
    /// Merges the levels down to a group.
    ///
    /// # Errors
    /// [`MissingParent::Release`] if the release that applies does not exist.
    pub(super) fn new(
        group: &Arc<NodeGroup>,
        cluster: &Arc<Cluster>,
        template: Option<&Arc<ClusterTemplate>>,
        fleet: &Fleet,
    ) -> Result<Self, MissingParent> {
        let release_ref = named_release(template.map(|template| &**template), cluster, Some(group));
        let release = release_ref
            .map(|release_ref| match fleet.release(release_ref.value) {
                Some(value) => Ok(ValueWithOrigin { value: Arc::clone(value), origin: release_ref.origin }),
                None => Err(MissingParent::Release(release_ref.value.clone())),
            })
            .transpose()?;
        let role_table = release.as_ref().map(|release| fleet.shared_role_table(&release.value, cluster));
        let cluster_maps = fleet.shared_maps(cluster, template);
        Ok(Self {
            maps: cluster_maps.with_level(Level::NodeGroup, &group.spec.inherited),
            cluster_maps,
            host_labels: nearest_host_labels(group, cluster, template),
            release,
            role_table,
            roles: group.spec.roles.iter().cloned().collect(),
            required_reads: group.spec.requirements.0.iter().filter_map(requirement_read).collect(),
            group: Arc::clone(group),
            cluster: Arc::clone(cluster),
            template: template.map(Arc::clone),
        })
    }

    /// Returns the name of the group as `CLUSTER/GROUP`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.cluster.meta.name, self.group.meta.name)
    }

    /// Returns the id of the cluster.
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId(self.cluster.meta.uuid)
    }

    /// Returns the lifecycle fields that each level sets. The level farthest from the host comes first.
    pub fn lifecycle(&self) -> Vec<(Level, Lifecycle)> {
        let template_level = self.template.as_ref().map(|template| (Level::ClusterTemplate, template.spec.inherited.lifecycle));
        let lower_levels =
            [(Level::Cluster, self.cluster.spec.inherited.lifecycle), (Level::NodeGroup, self.group.spec.inherited.lifecycle)];
        template_level.into_iter().chain(lower_levels).collect()
    }

    /// Returns whether two groups place nodes in the same way (give a node the same tags and tasks). They do if they
    /// have the same cluster and roles, equal role tables, and releases with the same content.
    pub fn has_same_placement(&self, other: &Self) -> bool {
        let release = |group: &Self| group.release.as_ref().map(|release| release.value.hash);
        self.cluster_id() == other.cluster_id()
            && release(self) == release(other)
            && self.has_same_role_table(other)
            && self.roles == other.roles
    }

    /// Returns whether two groups have equal role tables.
    pub fn has_same_role_table(&self, other: &Self) -> bool {
        match (&self.role_table, &other.role_table) {
            // Most groups of a cluster share one table.
            (Some(table), Some(other_table)) => Arc::ptr_eq(table, other_table) || table == other_table,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Returns whether the tags of two groups have the same ready probes (checks of a tag on its hosts). Two releases
    /// with different probes may still place nodes in the same way.
    pub(super) fn has_same_probes<'a>(&'a self, other: &'a Self) -> bool {
        let probes = |group: &'a Self| {
            let tags = group.role_table.iter().flat_map(|table| table.tags());
            tags.filter(|(_, spec)| !spec.ready.is_empty()).map(|(tag, spec)| (tag, &spec.ready))
        };
        probes(self).eq(probes(other))
    }

    /// Returns the labels of a report that the group accepts from the host. An invalid key or value is omitted.
    pub fn accepted_labels(&self, observation: &Observation) -> BTreeMap<LabelKey, LabelValue> {
        self.iter_accepted(observation).collect()
    }

    /// Iterates over the labels of a report that the group accepts from the host. An invalid key or value is omitted.
    fn iter_accepted<'a>(&'a self, observation: &'a Observation) -> impl Iterator<Item = (LabelKey, LabelValue)> {
        let accepted = observation.labels.iter().filter(|label| self.host_labels.value.is_accepted(&label.key));
        accepted.filter_map(|label| Some((LabelKey::new(&label.key).ok()?, LabelValue::new(&label.value).ok()?)))
    }

    /// Returns whether a report has a label with this key that the group accepts from the host. The label has an effect
    /// only if no level decides the key.
    pub(super) fn can_fill(&self, observation: &Observation, key: &LabelKey) -> bool {
        self.iter_accepted(observation).any(|(accepted_key, _)| accepted_key == *key)
    }

    /// Returns whether a report has at least one label that the group accepts from the host.
    pub(crate) fn has_accepted_labels(&self, observation: &Observation) -> bool {
        self.iter_accepted(observation).next().is_some()
    }
}

/// Returns a reference to the value of a node that a requirement tests, not the value itself. Returns `None` if the
/// requirement has a path that no fact, parameter or property can have.
fn requirement_read(requirement: &Requirement) -> Option<Read> {
    let field = match requirement {
        Requirement::Trait { name, .. } => return Some(Read::Trait(name.as_str().into())),
        Requirement::Field { field, .. } => field,
    };
    match field {
        RequirementField::Label(key) => Some(Read::Label(key.as_str().into())),
        RequirementField::Parameter(key) => Path::new([key.as_str()]).map(Read::Parameter),
        RequirementField::Property(name) => Path::new(["properties", name]).map(Read::Node),
        RequirementField::Fact(name) => Path::new(name.split('.')).map(Read::Fact),
    }
}

/// Returns the host label rule of the nearest of these levels that has one. A rule that does not compile is ignored,
/// because a write of such a rule is refused.
fn nearest_host_labels(
    group: &NodeGroup,
    cluster: &Cluster,
    template: Option<&Arc<ClusterTemplate>>,
) -> ValueWithOrigin<Arc<HostLabelRule>> {
    let rules = [
        (Level::ClusterTemplate, template.and_then(|template| template.spec.host_labels.as_ref())),
        (Level::Cluster, cluster.spec.host_labels.as_ref()),
        (Level::NodeGroup, group.spec.host_labels.as_ref()),
    ];
    let compiled = rules.into_iter().filter_map(|(level, rule)| Some((level, rule?.compile().ok()?)));
    nearest_value(compiled).map_or_else(
        || ValueWithOrigin { value: Arc::default(), origin: Origin::Default },
        |rule| ValueWithOrigin { value: Arc::new(rule.value), origin: Origin::Level(rule.origin) },
    )
}
