//! What comes down to a group: computed once for all of its nodes, and again only when a level above changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Missing;
use crate::host_labels::HostLabelRule;
use crate::input::{Path, Read};
use crate::key::{LabelKey, LabelValue};
use crate::labels::{Annotations, Labels, Parameters};
use crate::lifecycle::Lifecycle;
use crate::name::{Name, ReleaseRef};
use crate::object::{Cluster, ClusterId, ClusterTemplate, Inherited, NodeGroup, Observation, ReleaseTags};
use crate::origin::{Level, Origin, Resolved, nearest};
use crate::release::CompiledRelease;
use crate::requirement::{Field, Requirement};
use crate::role::RoleTable;

/// What the levels above its nodes make of one group.
#[derive(Clone, Debug)]
pub struct GroupFold {
    /// The group.
    pub group: Arc<NodeGroup>,
    /// Its cluster.
    pub cluster: Arc<Cluster>,
    /// The cluster's template; `None`: the cluster is its own top level.
    pub template: Option<Arc<ClusterTemplate>>,
    /// Labels, folded down to the group.
    pub labels: Labels,
    /// Annotations, folded down to the group.
    pub annotations: Annotations,
    /// Parameters, folded down to the group.
    pub parameters: Parameters,
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

/// Where a fold looks its parts up.
pub(super) trait Parts {
    /// A release.
    fn release(&self, name: &ReleaseRef) -> Option<Arc<CompiledRelease>>;
    /// User-defined tags beside a release.
    fn release_tags(&self, name: &Name) -> Option<&ReleaseTags>;
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
        parts: &impl Parts,
    ) -> Result<Self, Missing> {
        let top = template.map(|template| &template.spec.inherited);
        let levels = [
            top.map(|said| (Level::ClusterTemplate, said)),
            Some((Level::Cluster, &cluster.spec.inherited)),
            Some((Level::NodeGroup, &group.spec.inherited)),
        ];
        let levels: Vec<(Level, &Inherited)> = levels.into_iter().flatten().collect();
        let named = nearest(
            [
                (Level::ClusterTemplate, template.and_then(|template| template.spec.release.as_ref())),
                (Level::Cluster, cluster.spec.release.as_ref()),
                (Level::NodeGroup, group.spec.release.as_ref()),
            ]
            .into_iter()
            .filter_map(|(level, name)| Some((level, name?))),
        );
        let release = named
            .map(|said| match parts.release(said.value) {
                Some(value) => Ok(Resolved { value, origin: said.origin }),
                None => Err(Missing::Release(said.value.clone())),
            })
            .transpose()?;
        let table = release.as_ref().map(|release| Arc::new(table(&release.value, cluster, parts)));
        Ok(Self {
            labels: Labels::of(levels.iter().map(|(level, said)| (*level, &said.labels))),
            annotations: Annotations::of(levels.iter().map(|(level, said)| (*level, &said.annotations))),
            parameters: Parameters::of(levels.iter().map(|(level, said)| (*level, &said.parameters))),
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
    pub(super) fn places_like(&self, other: &Self) -> bool {
        let release = |fold: &Self| fold.release.as_ref().map(|release| release.value.hash);
        self.cluster_id() == other.cluster_id()
            && release(self) == release(other)
            && self.table == other.table
            && self.roles == other.roles
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
        let rule = &self.host_labels.value;
        let accepted = seen.labels.iter().filter(|label| rule.accepts(&label.key));
        accepted
            .filter_map(|label| Some((LabelKey::new(&label.key).ok()?, LabelValue::new(&label.value).ok()?)))
            .collect()
    }

    /// Whether a node's host fills a key, unless a level speaks for it.
    pub(super) fn fills(&self, seen: &Observation, key: &LabelKey) -> bool {
        self.host_labels.value.accepts(key) && seen.labels.iter().any(|label| *label.key == **key)
    }

    /// Whether a host's reported labels could become effective here at all.
    pub fn accepts_labels(&self, seen: &Observation) -> bool {
        seen.labels.iter().any(|label| self.host_labels.value.accepts(&label.key))
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

fn table(release: &CompiledRelease, cluster: &Cluster, parts: &impl Parts) -> RoleTable {
    let beside = parts.release_tags(&release.name.name);
    let beside = beside.into_iter().flat_map(|tags| &tags.spec.tags);
    RoleTable::new(&release.roles, &release.tags, beside.chain(&cluster.spec.tags), &cluster.spec.roles)
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
