//! Resolves the names and uuids of other objects in a body.

use crate::object::{ClusterId, GroupId, Kind, NodeId, TemplateId};
use crate::traits::TraitNames;

/// Looks up other objects by name or uuid, among those that the caller knows.
pub trait NameResolver {
    /// Returns the cluster template of that name.
    fn template(&self, name: &str) -> Option<TemplateId>;
    /// Returns the cluster of that name.
    fn cluster(&self, name: &str) -> Option<ClusterId>;
    /// Returns the group of that name in that cluster.
    fn group(&self, cluster: &str, group: &str) -> Option<GroupId>;
    /// Returns the node of that name or uuid. Manifests refer to no node.
    fn node(&self, _name: &str) -> Option<NodeId> {
        None
    }
    /// Returns a template's name.
    fn template_name(&self, id: TemplateId) -> Option<String>;
    /// Returns a group as `CLUSTER/GROUP`.
    fn group_name(&self, id: GroupId) -> Option<String>;
    /// Returns the names of all objects of a kind, in the form that fields use.
    fn all_names(&self, kind: Kind) -> Vec<String>;
    /// Returns the known traits: the standard ones and the site's.
    fn trait_names(&self) -> &TraitNames;
}
