//! The kinds whose objects are applied to the fleet as they are, each by one change: the levels above nodes, the tags
//! of releases, stored choices of primaries, and the namespaces of the catalogue.

use std::collections::BTreeSet;

use stemma_core::fleet::FleetChange;
use stemma_core::manifest::check_release_tags_bounds;
use stemma_core::name::{Name, NamespaceName, ObjectName, RESERVED_CLUSTER_NAMES, TagName};
use stemma_core::object::{
    Association, ClusterId, ClusterSpec, ClusterTemplateSpec, Definition, GroupId, Kind, NamedItem, NamespaceSpec, NamespaceTag,
    NodeGroupSpec, Object, PrimarySpec, ReleaseTagsSpec, TemplateId,
};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::{KIB, MAX_LEVEL_BYTES, MIB, ObjectReference, Resource, check_release_exists};
use crate::cache::model::Model;

impl Resource for ReleaseTagsSpec {
    const MAX_BYTES: usize = MIB;

    fn check_bounds(
        &self,
        before: Option<&Self>,
        _names: &dyn stemma_core::manifest::NameResolver,
    ) -> Result<(), stemma_core::manifest::BodyError> {
        check_release_tags_bounds(before, self)
    }

    named_by!(Name);
    indexed_in!(release_tags, ReleaseTags);

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveReleaseTags(object.meta.name.clone()))
    }
}

fn member_names<M: NamedItem>(spec: &NamespaceSpec) -> BTreeSet<String> {
    M::items(spec).iter().map(|member| member.item_name().to_owned()).collect()
}

/// Returns the first removed member. If exactly one member was removed and one was added, this is a rename, and
/// nothing counts as removed.
fn first_removed(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Option<String> {
    let mut removed = before.difference(after);
    let first = removed.next()?;
    let is_renamed = removed.next().is_none() && before.len() == after.len();
    (!is_renamed).then(|| first.clone())
}

/// Returns the error for a deletion from a protected namespace, in Glance's words.
pub fn protected_error(namespace: &NamespaceName, what: &str, name: &str) -> ApiError {
    let message = format!("Metadata definition {what} {name} is protected and cannot be deleted.");
    let advice = format!("nothing was changed; set `protected` of namespace {} to false first", quote(namespace));
    ApiError::new(ErrorType::ObjectProtected, message).detail(advice)
}

impl Resource for NamespaceSpec {
    size_limited!(4 * MIB);
    named_by!(NamespaceName, for_new_namespace);
    indexed_in!(namespaces, Namespace);

    /// Refuses a write that removes a property or another member from a protected namespace. A rename is allowed.
    fn check_change(before: &Object<Self>, next: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        if !before.spec.protected {
            return Ok(());
        }
        let properties = |spec: &Self| spec.properties.keys().cloned().collect();
        let lists = [
            ("property", first_removed(&properties(&before.spec), &properties(&next.spec))),
            (
                Association::ITEM_NAME,
                first_removed(&member_names::<Association>(&before.spec), &member_names::<Association>(&next.spec)),
            ),
            (
                Definition::ITEM_NAME,
                first_removed(&member_names::<Definition>(&before.spec), &member_names::<Definition>(&next.spec)),
            ),
            (
                NamespaceTag::ITEM_NAME,
                first_removed(&member_names::<NamespaceTag>(&before.spec), &member_names::<NamespaceTag>(&next.spec)),
            ),
        ];
        let first = lists.into_iter().find_map(|(word, removed)| Some((word, removed?)));
        first.map_or(Ok(()), |(word, removed)| Err(protected_error(&next.meta.name, word, &removed)))
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveNamespace(object.meta.uuid))
    }
}

impl Resource for ClusterTemplateSpec {
    size_limited!(MAX_LEVEL_BYTES);
    named_by!(ObjectName but &[]);
    indexed_in!(templates, Template);

    fn references(&self) -> Vec<ObjectReference> {
        self.release.iter().map(ObjectReference::for_release).collect()
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveTemplate(TemplateId(object.meta.uuid)))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        check_release_exists(model, "release", self.release.as_ref())
    }
}

impl Resource for ClusterSpec {
    size_limited!(MAX_LEVEL_BYTES);
    named_by!(ObjectName but RESERVED_CLUSTER_NAMES);
    indexed_in!(clusters, Cluster);

    fn references(&self) -> Vec<ObjectReference> {
        let template = self.cluster_template.map(|id| ObjectReference::for_uuid(Kind::ClusterTemplate, id.0));
        template.into_iter().chain(self.release.as_ref().map(ObjectReference::for_release)).collect()
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveCluster(ClusterId(object.meta.uuid)))
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(ClusterId(object.meta.uuid))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        check_release_exists(model, "release", self.release.as_ref())
    }
}

impl Resource for NodeGroupSpec {
    size_limited!(MAX_LEVEL_BYTES);
    named_by!(ObjectName but &[]);
    indexed_in!(groups, NodeGroup);

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    fn references(&self) -> Vec<ObjectReference> {
        let cluster = ObjectReference::for_uuid(Kind::Cluster, self.cluster.0);
        std::iter::once(cluster).chain(self.release.as_ref().map(ObjectReference::for_release)).collect()
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveNodeGroup(GroupId(object.meta.uuid)))
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(object.spec.cluster)
    }

    fn full_title(model: &Model, object: &Object<Self>) -> String {
        let cluster = model.clusters.get(object.spec.cluster.0);
        cluster.map_or_else(|| Self::title(object), |cluster| format!("{}/{}", cluster.meta.name, object.meta.name))
    }

    fn check(&self, model: &Model) -> Result<(), ApiError> {
        check_release_exists(model, "release", self.release.as_ref())
    }
}

/// A stored choice of a primary. It counts as a reference to neither its cluster nor its node, so it does not prevent
/// their deletion, and is deleted with them.
impl Resource for PrimarySpec {
    const MAX_BYTES: usize = 64 * KIB;

    fn check_bounds(
        &self,
        _before: Option<&Self>,
        _names: &dyn stemma_core::manifest::NameResolver,
    ) -> Result<(), stemma_core::manifest::BodyError> {
        let Self { cluster: _, node: _, since: _, epoch: _ } = self;
        Ok(())
    }

    named_by!(TagName);
    indexed_in!(primaries, Primary);

    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemovePrimary(object.spec.cluster, object.meta.name.clone()))
    }

    fn cluster(_model: &Model, object: &Object<Self>) -> Option<ClusterId> {
        Some(object.spec.cluster)
    }
}
