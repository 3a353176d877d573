//! What comes down to a group: computed once for all of its nodes, and again only when a level above changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use uuid::Uuid;

use super::{Fleet, KeptMaps, KeptTable, Missing};
use crate::host_labels::HostLabelRule;
use crate::input::{Path, Read};
use crate::key::{LabelKey, LabelValue};
use crate::labels::{Annotations, Labels, Parameters};
use crate::lifecycle::Lifecycle;
use crate::name::{Name, ObjectName, ReleaseRef};
use crate::object::{
    Cluster, ClusterId, ClusterTemplate, GroupId, Inherited, Meta, NodeGroup, NodeGroupSpec, Object, Observation,
    TemplateId, Timestamp,
};
use crate::origin::{Level, Origin, Resolved, nearest};
use crate::release::CompiledRelease;
use crate::requirement::{Field, Requirement};
use crate::role::RoleTable;

/// What each level of an object's descent provides, the farthest from the host first.
pub type Levels<'a> = Vec<(Level, &'a Inherited)>;

/// The three maps that go down the levels, folded.
#[derive(Clone, Debug, Default)]
pub struct Maps {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Annotations,
    /// Parameters.
    pub parameters: Parameters,
}

/// What the levels above its nodes make of one group.
#[derive(Clone, Debug)]
pub struct GroupFold {
    /// The group.
    pub group: Arc<NodeGroup>,
    /// Its cluster.
    pub cluster: Arc<Cluster>,
    /// The cluster's template; `None`: the cluster is its own top level.
    pub template: Option<Arc<ClusterTemplate>>,
    /// What the levels provide, folded down to the group.
    pub maps: Maps,
    /// The same down to its cluster: what it shares with the other groups of that.
    above: Arc<Maps>,
    /// Which labels flow to the hosts' label maps.
    pub host_labels: Resolved<Arc<HostLabelRule>>,
    /// The release that the nearest level names; `None`: nobody names one, so there are no tasks.
    pub release: Option<Resolved<Arc<CompiledRelease>, Level>>,
    /// What the release's roles produce in this cluster. There with the release.
    pub table: Option<Arc<RoleTable>>,
    /// The group's roles.
    pub roles: BTreeSet<Name>,
    /// What the group's requirements read of each of its nodes.
    pub(super) required: Box<[Read]>,
}

impl Maps {
    /// Folds levels, the farthest from the host first.
    pub fn of(levels: &[(Level, &Inherited)]) -> Self {
        Self {
            labels: Labels::of(levels.iter().map(|(level, said)| (*level, &said.labels))),
            annotations: Annotations::of(levels.iter().map(|(level, said)| (*level, &said.annotations))),
            parameters: Parameters::of(levels.iter().map(|(level, said)| (*level, &said.parameters))),
        }
    }

    /// One step down: what a level makes of what comes from above. What it does not change is shared.
    fn below(&self, level: Level, said: &Inherited) -> Self {
        Self {
            labels: self.labels.below(level, &said.labels),
            annotations: self.annotations.below(level, &said.annotations),
            parameters: self.parameters.below(level, &said.parameters),
        }
    }
}

/// What comes down the levels.
impl Fleet {
    /// What a template provides; nothing where it is not there.
    pub fn levels_to_template(&self, id: TemplateId) -> Levels<'_> {
        self.template(id).map(|template| (Level::ClusterTemplate, &template.spec.inherited)).into_iter().collect()
    }

    /// What a cluster and its template provide; nothing where the cluster is not there.
    pub fn levels_to_cluster(&self, id: ClusterId) -> Levels<'_> {
        let Some(cluster) = self.cluster(id) else { return Vec::new() };
        let template = cluster.spec.cluster_template.map(|id| self.levels_to_template(id));
        let mut levels = template.unwrap_or_default();
        levels.push((Level::Cluster, &cluster.spec.inherited));
        levels
    }

    /// What a group and the levels above it provide; nothing where the group is not there.
    pub fn levels_to_group(&self, id: GroupId) -> Levels<'_> {
        let Some(group) = self.group(id) else { return Vec::new() };
        let mut levels = self.levels_to_cluster(group.spec.cluster);
        levels.push((Level::NodeGroup, &group.spec.inherited));
        levels
    }

    /// The release that the groups of a cluster run where they name none themselves.
    pub fn cluster_release<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a ReleaseRef> {
        let template = cluster.spec.cluster_template.and_then(|id| self.template(id));
        named_release(template.map(|template| &**template), cluster, None).map(|named| named.value)
    }

    /// What comes down to what stands in a cluster and in no group of it, as in a group that says nothing; `None`: something is missing.
    pub(crate) fn fold_of_cluster(&self, id: ClusterId, name: ObjectName) -> Option<GroupFold> {
        let cluster = self.cluster(id)?;
        let template = cluster.spec.cluster_template.and_then(|id| self.template(id));
        let group = Object { meta: Meta::new(Uuid::nil(), name, Timestamp(0)), spec: NodeGroupSpec::new(id) };
        let fold = GroupFold::new(&Arc::new(group), cluster, template, self).ok()?;
        Some(GroupFold { maps: (*fold.above).clone(), ..fold })
    }

    /// What roles produce, and which tags can be seen, in a cluster.
    pub fn cluster_table(&self, cluster: &Cluster) -> RoleTable {
        self.table(self.cluster_release(cluster), cluster)
    }

    /// The same under a release that is there: the table that groups of the cluster have already, where it is still good or the new one
    /// says the same.
    fn shared_table(&self, release: &Arc<CompiledRelease>, cluster: &Arc<Cluster>) -> Arc<RoleTable> {
        let kept = self.kept_table(release, cluster);
        let table = kept.and_then(|kept| kept.table.upgrade());
        if let Some(table) = &table
            && kept.is_some_and(|kept| self.is_good(kept, release, cluster))
        {
            return Arc::clone(table);
        }
        let made = self.table(Some(&release.name), cluster);
        table.filter(|table| **table == made).unwrap_or_else(|| Arc::new(made))
    }

    /// What comes down to the groups of a cluster: what they have already, where it is still good.
    fn shared_maps(&self, cluster: &Arc<Cluster>, template: Option<&Arc<ClusterTemplate>>) -> Arc<Maps> {
        let kept = self.clusters.get(&ClusterId(cluster.meta.uuid)).and_then(|entry| entry.maps.as_ref());
        let kept = kept.filter(|kept| kept.is_of(cluster, template)).and_then(|kept| kept.maps.upgrade());
        let made = || {
            let of_template = template.map(|template| (Level::ClusterTemplate, &template.spec.inherited));
            let levels: Levels<'_> =
                of_template.into_iter().chain([(Level::Cluster, &cluster.spec.inherited)]).collect();
            Arc::new(Maps::of(&levels))
        };
        kept.unwrap_or_else(made)
    }

    /// Keeps what comes down to a group for the others of its cluster.
    fn keep_maps(&mut self, fold: &GroupFold) {
        let Some(entry) = self.clusters.get(&fold.cluster_id()) else { return };
        let template = fold.template.as_ref();
        let is_kept = |kept: &KeptMaps| is_of(&kept.maps, &fold.above) && kept.is_of(&fold.cluster, template);
        if entry.maps.as_ref().is_some_and(is_kept) {
            return;
        }
        let (template, cluster) = (template.map(Arc::downgrade), Arc::downgrade(&fold.cluster));
        let kept = KeptMaps { template, cluster, maps: Arc::downgrade(&fold.above) };
        if let Some(entry) = self.clusters.get_mut(&fold.cluster_id()) {
            entry.maps = Some(kept);
        }
    }

    fn kept_table(&self, release: &CompiledRelease, cluster: &Cluster) -> Option<&KeptTable> {
        self.clusters.get(&ClusterId(cluster.meta.uuid))?.tables.get(&release.name)
    }

    /// Whether a table was made of what is there.
    fn is_good(&self, kept: &KeptTable, release: &Arc<CompiledRelease>, cluster: &Arc<Cluster>) -> bool {
        let is_beside = match (&kept.beside, self.release_tags(&release.name.name)) {
            (Some(kept), Some(beside)) => is_of(kept, beside),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_beside && is_of(&kept.release, release) && is_of(&kept.cluster, cluster)
    }

    /// Keeps the table of a group, and what comes down to it, for the others of its cluster. Those of the cluster as it was are made again when they are asked for.
    pub(super) fn keep_shared(&mut self, fold: &GroupFold) {
        self.keep_maps(fold);
        let GroupFold { release: Some(release), table: Some(table), cluster, .. } = fold else { return };
        let release = &release.value;
        let is_kept = |kept: &KeptTable| is_of(&kept.table, table) && self.is_good(kept, release, cluster);
        if self.kept_table(release, cluster).is_some_and(is_kept) {
            return;
        }
        let kept = KeptTable {
            release: Arc::downgrade(release),
            beside: self.release_tags(&release.name.name).map(Arc::downgrade),
            cluster: Arc::downgrade(cluster),
            table: Arc::downgrade(table),
        };
        if let Some(entry) = self.clusters.get_mut(&fold.cluster_id()) {
            entry.tables.insert(release.name.clone(), kept);
        }
    }

    /// The same under a release. Of one that is not there, only the tags beside it are seen.
    fn table(&self, release: Option<&ReleaseRef>, cluster: &Cluster) -> RoleTable {
        let beside = release.and_then(|release| self.release_tags(&release.name));
        let beside = beside.into_iter().flat_map(|tags| &tags.spec.tags).chain(&cluster.spec.tags);
        match release.and_then(|release| self.release(release)) {
            Some(release) => {
                RoleTable::new(&release.roles, &release.tags, beside, &cluster.spec.roles).deciding(&release.extensions)
            }
            None => RoleTable::new(&BTreeMap::new(), &BTreeMap::new(), beside, &cluster.spec.roles),
        }
    }
}

impl KeptMaps {
    /// Whether it was made of these.
    fn is_of(&self, cluster: &Arc<Cluster>, template: Option<&Arc<ClusterTemplate>>) -> bool {
        let is_template = match (&self.template, template) {
            (Some(kept), Some(template)) => is_of(kept, template),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_template && is_of(&self.cluster, cluster)
    }
}

/// Whether one is the other. What is kept holds its place, so nothing else can stand there.
fn is_of<T>(kept: &Weak<T>, one: &Arc<T>) -> bool {
    std::ptr::eq(kept.as_ptr(), Arc::as_ptr(one))
}

/// The release that the level nearest to the hosts names.
fn named_release<'a>(
    template: Option<&'a ClusterTemplate>,
    cluster: &'a Cluster,
    group: Option<&'a NodeGroup>,
) -> Option<Resolved<&'a ReleaseRef, Level>> {
    let said = [
        (Level::ClusterTemplate, template.and_then(|template| template.spec.release.as_ref())),
        (Level::Cluster, cluster.spec.release.as_ref()),
        (Level::NodeGroup, group.and_then(|group| group.spec.release.as_ref())),
    ];
    nearest(said.into_iter().filter_map(|(level, name)| Some((level, name?))))
}

impl GroupFold {
    /// Folds the levels down to a group.
    ///
    /// # Errors
    /// The release that is named and not there.
    pub(super) fn new(
        group: &Arc<NodeGroup>,
        cluster: &Arc<Cluster>,
        template: Option<&Arc<ClusterTemplate>>,
        fleet: &Fleet,
    ) -> Result<Self, Missing> {
        let named = named_release(template.map(|template| &**template), cluster, Some(group));
        let release = named
            .map(|said| match fleet.release(said.value) {
                Some(value) => Ok(Resolved { value: Arc::clone(value), origin: said.origin }),
                None => Err(Missing::Release(said.value.clone())),
            })
            .transpose()?;
        let table = release.as_ref().map(|release| fleet.shared_table(&release.value, cluster));
        let above = fleet.shared_maps(cluster, template);
        Ok(Self {
            maps: above.below(Level::NodeGroup, &group.spec.inherited),
            above,
            host_labels: host_labels(group, cluster, template),
            release,
            table,
            roles: group.spec.roles.iter().cloned().collect(),
            required: group.spec.requirements.0.iter().filter_map(read_by).collect(),
            group: Arc::clone(group),
            cluster: Arc::clone(cluster),
            template: template.map(Arc::clone),
        })
    }

    /// `CLUSTER/GROUP`.
    pub fn place(&self) -> String {
        format!("{}/{}", self.cluster.meta.name, self.group.meta.name)
    }

    /// The cluster's id.
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId(self.cluster.meta.uuid)
    }

    /// What each level says of the lifecycle fields, the farthest from the host first.
    pub fn lifecycle(&self) -> Vec<(Level, Lifecycle)> {
        let top = self.template.as_ref().map(|template| (Level::ClusterTemplate, template.spec.inherited.lifecycle));
        let below = [
            (Level::Cluster, self.cluster.spec.inherited.lifecycle),
            (Level::NodeGroup, self.group.spec.inherited.lifecycle),
        ];
        top.into_iter().chain(below).collect()
    }

    /// Whether nodes are placed by the same release, table and roles as under another fold, in the same cluster.
    pub fn places_like(&self, other: &Self) -> bool {
        let release = |fold: &Self| fold.release.as_ref().map(|release| release.value.hash);
        self.cluster_id() == other.cluster_id()
            && release(self) == release(other)
            && self.produces_like(other)
            && self.roles == other.roles
    }

    /// Whether roles produce what they produce under another fold.
    pub fn produces_like(&self, other: &Self) -> bool {
        match (&self.table, &other.table) {
            // Most groups of a cluster share one.
            (Some(own), Some(other)) => Arc::ptr_eq(own, other) || own == other,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Whether tags have the same ready probes as under another fold. Another release can have others and place nodes alike.
    pub(super) fn probes_like<'a>(&'a self, other: &'a Self) -> bool {
        let probes = |fold: &'a Self| {
            let tags = fold.table.iter().flat_map(|table| table.tags());
            tags.filter(|(_, spec)| !spec.ready.is_empty()).map(|(tag, spec)| (tag, &spec.ready))
        };
        probes(self).eq(probes(other))
    }

    /// The labels that a host reported and that it may fill.
    pub fn accepted(&self, seen: &Observation) -> BTreeMap<LabelKey, LabelValue> {
        self.taken(seen).collect()
    }

    fn taken<'a>(&'a self, seen: &'a Observation) -> impl Iterator<Item = (LabelKey, LabelValue)> {
        let accepted = seen.labels.iter().filter(|label| self.host_labels.value.accepts(&label.key));
        accepted.filter_map(|label| Some((LabelKey::new(&label.key).ok()?, LabelValue::new(&label.value).ok()?)))
    }

    /// Whether a node's host fills a key, unless a level speaks for it.
    pub(super) fn fills(&self, seen: &Observation, key: &LabelKey) -> bool {
        self.taken(seen).any(|(taken, _)| taken == *key)
    }

    /// Whether one of a host's reported labels may become effective here.
    pub(crate) fn accepts_labels(&self, seen: &Observation) -> bool {
        self.taken(seen).next().is_some()
    }
}

/// What a requirement reads of a node; `None`: a path that no fact can have.
fn read_by(requirement: &Requirement) -> Option<Read> {
    let field = match requirement {
        Requirement::Trait { name, .. } => return Some(Read::Trait(name.as_str().into())),
        Requirement::Field { field, .. } => field,
    };
    match field {
        Field::Label(key) => Some(Read::Label(key.as_str().into())),
        Field::Parameter(key) => Path::new([key.as_str()]).map(Read::Parameter),
        Field::Property(name) => Path::new(["properties", name]).map(Read::Node),
        Field::Fact(name) => Path::new(name.split('.')).map(Read::Fact),
    }
}

/// The nearest level's rule. One that does not compile is refused where it is written, and is left aside here.
fn host_labels(
    group: &NodeGroup,
    cluster: &Cluster,
    template: Option<&Arc<ClusterTemplate>>,
) -> Resolved<Arc<HostLabelRule>> {
    let said = [
        (Level::ClusterTemplate, template.and_then(|template| template.spec.host_labels.as_ref())),
        (Level::Cluster, cluster.spec.host_labels.as_ref()),
        (Level::NodeGroup, group.spec.host_labels.as_ref()),
    ];
    let compiled = said.into_iter().filter_map(|(level, rule)| Some((level, rule?.compile().ok()?)));
    nearest(compiled).map_or_else(
        || Resolved { value: Arc::default(), origin: Origin::Default },
        |said| Resolved { value: Arc::new(said.value), origin: Origin::Level(said.origin) },
    )
}
