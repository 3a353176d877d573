//! The kinds of which one object is one change of the fleet and nothing has to be worked out: the levels above nodes, the tags
//! beside releases, stored choices of primaries, and the namespaces of the catalogue.

use std::collections::BTreeSet;

use stemma_core::fleet::Change;
use stemma_core::manifest::check_tags_beside;
use stemma_core::name::{CLUSTER_PATHS, Name, NamespaceName, ObjectName, TagName};
use stemma_core::object::{
    Association, ClusterId, ClusterSpec, ClusterTemplateSpec, Definition, GroupId, Kind, Member, NamespaceSpec,
    NamespaceTag, NodeGroupSpec, Object, PrimarySpec, ReleaseTagsSpec, TemplateId,
};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::{KIB, LEVEL, MIB, Reference, Resource, release_exists};
use crate::cache::model::Model;

impl Resource for ReleaseTagsSpec {
    const MOST_BYTES: usize = MIB;

    fn check_bounds(
        &self,
        before: Option<&Self>,
        _names: &dyn stemma_core::manifest::Names,
    ) -> Result<(), stemma_core::manifest::BodyError> {
        check_tags_beside(before, self)
    }

    named_by!(Name);
    kept_in!(release_tags, ReleaseTags);

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveReleaseTags(object.meta.name.clone()))
    }
}

fn names<M: Member>(spec: &NamespaceSpec) -> BTreeSet<String> {
    M::all(spec).iter().map(|member| member.name().to_owned()).collect()
}

/// The first that is there no longer. One that is gone where one is new has another name now.
fn gone(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Option<String> {
    let mut gone = before.difference(after);
    let first = gone.next()?;
    let is_renamed = gone.next().is_none() && before.len() == after.len();
    (!is_renamed).then(|| first.clone())
}

/// The refusal to delete something of a namespace that is protected, in Glance's words.
pub fn protected(namespace: &NamespaceName, what: &str, name: &str) -> ApiError {
    let message = format!("Metadata definition {what} {name} is protected and cannot be deleted.");
    let advice = format!("nothing was changed; set `protected` of namespace {} to false first", quote(namespace));
    ApiError::new(ErrorType::ObjectProtected, message).detail(advice)
}

impl Resource for NamespaceSpec {
    bounded!(4 * MIB);
    named_by!(NamespaceName, of_new);
    kept_in!(namespaces, Namespace);

    /// While it is protected nothing in it goes, whatever write would take it away. What gets another name stays.
    fn check_change(before: &Object<Self>, next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        if !before.spec.protected {
            return Ok(());
        }
        let properties = |spec: &Self| spec.properties.keys().cloned().collect();
        let lists = [
            ("property", gone(&properties(&before.spec), &properties(&next.spec))),
            (Association::WORD, gone(&names::<Association>(&before.spec), &names::<Association>(&next.spec))),
            (Definition::WORD, gone(&names::<Definition>(&before.spec), &names::<Definition>(&next.spec))),
            (NamespaceTag::WORD, gone(&names::<NamespaceTag>(&before.spec), &names::<NamespaceTag>(&next.spec))),
        ];
        let first = lists.into_iter().find_map(|(word, gone)| Some((word, gone?)));
        first.map_or(Ok(()), |(word, gone)| Err(protected(&next.meta.name, word, &gone)))
    }

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveNamespace(object.meta.uuid))
    }
}

impl Resource for ClusterTemplateSpec {
    bounded!(LEVEL);
    named_by!(ObjectName but &[]);
    kept_in!(templates, Template);

    fn references(&self) -> Vec<Reference> {
        self.release.iter().map(Reference::release).collect()
    }

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveTemplate(TemplateId(object.meta.uuid)))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}

impl Resource for ClusterSpec {
    bounded!(LEVEL);
    named_by!(ObjectName but CLUSTER_PATHS);
    kept_in!(clusters, Cluster);

    fn references(&self) -> Vec<Reference> {
        let template = self.cluster_template.map(|id| Reference::uuid(Kind::ClusterTemplate, id.0));
        template.into_iter().chain(self.release.as_ref().map(Reference::release)).collect()
    }

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveCluster(ClusterId(object.meta.uuid)))
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(ClusterId(object.meta.uuid))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}

impl Resource for NodeGroupSpec {
    bounded!(LEVEL);
    named_by!(ObjectName but &[]);
    kept_in!(groups, NodeGroup);

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    fn references(&self) -> Vec<Reference> {
        let cluster = Reference::uuid(Kind::Cluster, self.cluster.0);
        std::iter::once(cluster).chain(self.release.as_ref().map(Reference::release)).collect()
    }

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveNodeGroup(GroupId(object.meta.uuid)))
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(object.spec.cluster)
    }

    fn full_title(model: &Model, object: &Object<Self>) -> String {
        let cluster = model.clusters.get(object.spec.cluster.0);
        cluster.map_or_else(|| Self::title(object), |cluster| format!("{}/{}", cluster.meta.name, object.meta.name))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}

/// It refers to nothing: a primary ends with its cluster or its node, and holds neither.
impl Resource for PrimarySpec {
    const MOST_BYTES: usize = 64 * KIB;

    fn check_bounds(
        &self,
        _before: Option<&Self>,
        _names: &dyn stemma_core::manifest::Names,
    ) -> Result<(), stemma_core::manifest::BodyError> {
        let Self { cluster: _, node: _, since: _, epoch: _ } = self;
        Ok(())
    }

    named_by!(TagName);
    kept_in!(primaries, Primary);

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemovePrimary(object.spec.cluster, object.meta.name.clone()))
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(object.spec.cluster)
    }
}
