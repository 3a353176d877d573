//! The kinds of which one object is one change of the fleet and nothing has to be worked out: the levels above nodes, the tags
//! beside releases, stored choices of primaries, and the namespaces of the catalogue.

use stemma_core::fleet::Change;
use stemma_core::name::{Name, NamespaceName, ObjectName, TagName};
use stemma_core::object::{
    ClusterId, ClusterSpec, ClusterTemplateSpec, GroupId, Kind, NamespaceSpec, NodeGroupSpec, Object, PrimarySpec,
    ReleaseTagsSpec, TemplateId,
};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::{Reference, Resource, release_exists};
use crate::cache::model::Model;

impl Resource for ReleaseTagsSpec {
    named_by!(Name);
    kept_in!(release_tags, ReleaseTags);

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveReleaseTags(object.meta.name.clone()))
    }
}

impl Resource for NamespaceSpec {
    named_by!(NamespaceName);
    kept_in!(namespaces, Namespace);

    fn remove_change(object: &Object<Self>) -> Option<Change> {
        Some(Change::RemoveNamespace(object.meta.uuid))
    }
}

impl Resource for ClusterTemplateSpec {
    named_by!(ObjectName);
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
    named_by!(ObjectName);
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
    named_by!(ObjectName);
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

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        release_exists(model, "release", self.release.as_ref())
    }
}

/// It refers to nothing: a primary ends with its cluster or its node, and holds neither.
impl Resource for PrimarySpec {
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
