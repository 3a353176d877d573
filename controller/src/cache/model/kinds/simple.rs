//! The kinds whose objects need no computation before the fleet uses them: templates, clusters, node groups, tags of
//! releases, stored choices of primaries, and namespaces of the catalogue. A write of such an object is one change to
//! the fleet.

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

    /// Checks the number and size of the declared tags. `old_spec` is the spec before the write.
    fn check_bounds(
        &self,
        old_spec: Option<&Self>,
        _names: &dyn stemma_core::manifest::NameResolver,
    ) -> Result<(), stemma_core::manifest::BodyError> {
        check_release_tags_bounds(old_spec, self)
    }

    named_by!(Name);
    indexed_in!(release_tags, ReleaseTags);

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveReleaseTags(object.meta.name.clone()))
    }
}

/// Returns the names of all members of one sort (`M`) in a namespace, for example its definitions.
fn member_names<M: NamedItem>(spec: &NamespaceSpec) -> BTreeSet<String> {
    M::items(spec).iter().map(|member| member.item_name().to_owned()).collect()
}

/// Returns the first member that a write removes, or `None` if it removes none. If the write removes one member and
/// adds one, it is a rename, which does not count as a removal.
fn first_removed(old_names: &BTreeSet<String>, new_names: &BTreeSet<String>) -> Option<String> {
    let mut removed = old_names.difference(new_names);
    let first_name = removed.next()?;
    let is_renamed = removed.next().is_none() && old_names.len() == new_names.len();
    (!is_renamed).then(|| first_name.clone())
}

/// Returns the error for a deletion in a protected namespace, in the words of Glance's API. `item_word` is the word for
/// the deleted thing.
pub fn protected_error(namespace: &NamespaceName, item_word: &str, name: &str) -> ApiError {
    let message = format!("Metadata definition {item_word} {name} is protected and cannot be deleted.");
    let advice = format!("nothing was changed; set `protected` of namespace {} to false first", quote(namespace));
    ApiError::new(ErrorType::ObjectProtected, message).detail(advice)
}

impl Resource for NamespaceSpec {
    size_limited!(4 * MIB);
    named_by!(NamespaceName, for_new_namespace);
    indexed_in!(namespaces, Namespace);

    /// Fails if the write removes a member (such as a property) from a protected namespace. A rename of a member is
    /// allowed.
    fn check_change(old_object: &Object<Self>, new_object: &Object<Self>, _model: &Model) -> Result<(), ApiError> {
        if !old_object.spec.protected {
            return Ok(());
        }
        let properties = |spec: &Self| spec.properties.keys().cloned().collect();
        let removed_members = [
            ("property", first_removed(&properties(&old_object.spec), &properties(&new_object.spec))),
            (
                Association::ITEM_NAME,
                first_removed(&member_names::<Association>(&old_object.spec), &member_names::<Association>(&new_object.spec)),
            ),
            (
                Definition::ITEM_NAME,
                first_removed(&member_names::<Definition>(&old_object.spec), &member_names::<Definition>(&new_object.spec)),
            ),
            (
                NamespaceTag::ITEM_NAME,
                first_removed(&member_names::<NamespaceTag>(&old_object.spec), &member_names::<NamespaceTag>(&new_object.spec)),
            ),
        ];
        let first_removal = removed_members.into_iter().find_map(|(word, removed)| Some((word, removed?)));
        first_removal.map_or(Ok(()), |(word, removed)| Err(protected_error(&new_object.meta.name, word, &removed)))
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveNamespace(object.meta.uuid))
    }
}

impl Resource for ClusterTemplateSpec {
    size_limited!(MAX_LEVEL_BYTES);
    named_by!(ObjectName but &[]);
    indexed_in!(templates, Template);

    /// Returns the reference to the template's release, if it names one.
    fn references(&self) -> Vec<ObjectReference> {
        self.release.iter().map(ObjectReference::for_release).collect()
    }

    fn remove_change(object: &Object<Self>) -> Option<FleetChange> {
        Some(FleetChange::RemoveTemplate(TemplateId(object.meta.uuid)))
    }

    /// Fails if the template names a release that is not stored.
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        check_release_exists(model, "release", self.release.as_ref())
    }
}

impl Resource for ClusterSpec {
    size_limited!(MAX_LEVEL_BYTES);
    named_by!(ObjectName but RESERVED_CLUSTER_NAMES);
    indexed_in!(clusters, Cluster);

    /// Returns references to the cluster's template and release, if it names them.
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

    /// Fails if the cluster names a release that is not stored.
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        check_release_exists(model, "release", self.release.as_ref())
    }
}

impl Resource for NodeGroupSpec {
    size_limited!(MAX_LEVEL_BYTES);
    named_by!(ObjectName but &[]);
    indexed_in!(groups, NodeGroup);

    /// Returns the group's cluster: names of groups are unique in their cluster.
    fn scope(&self) -> Option<Uuid> {
        Some(self.cluster.0)
    }

    /// Returns references to the group's cluster and, if it names one, its release.
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

    /// Returns the title CLUSTER/GROUP, because the name of a group is only unique in its cluster.
    fn full_title(model: &Model, object: &Object<Self>) -> String {
        let cluster = model.clusters.get(object.spec.cluster.0);
        cluster.map_or_else(|| Self::title(object), |cluster| format!("{}/{}", cluster.meta.name, object.meta.name))
    }

    /// Fails if the group names a release that is not stored.
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        check_release_exists(model, "release", self.release.as_ref())
    }
}

/// The resource of a stored choice of a primary. The choice does not count as a reference to its cluster and node, so
/// they can be deleted. The choice is then deleted with them.
impl Resource for PrimarySpec {
    const MAX_BYTES: usize = 64 * KIB;

    /// Checks nothing: all fields have a fixed size.
    fn check_bounds(
        &self,
        _old_spec: Option<&Self>,
        _names: &dyn stemma_core::manifest::NameResolver,
    ) -> Result<(), stemma_core::manifest::BodyError> {
        // The pattern lists all fields, so a new field is a compile error until it is considered here.
        let Self { cluster: _, node: _, since: _, epoch: _ } = self;
        Ok(())
    }

    named_by!(TagName);
    indexed_in!(primaries, Primary);

    /// Returns the primary's cluster: a tag has at most one primary in a cluster.
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
