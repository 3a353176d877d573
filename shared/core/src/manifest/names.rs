//! Resolves the names and uuids of other objects in a body.

use crate::object::{ClusterId, GroupId, Kind, NodeId, TemplateId};
use crate::traits::TraitNames;

/// A lookup of the objects that a body refers to, from names (or uuids, in the controller) to ids, and back to names.
pub trait NameResolver {
    /// Returns the id of the cluster template with this name.
    fn template(&self, name: &str) -> Option<TemplateId>;
    /// Returns the id of the cluster with this name.
    fn cluster(&self, name: &str) -> Option<ClusterId>;
    /// Returns the id of the group with this name in the cluster with this name.
    fn group(&self, cluster: &str, group: &str) -> Option<GroupId>;
    /// Returns the id of the node with this name or uuid. Only allocations need this, and they have no manifest. So a
    /// resolver for manifests uses the default, which returns `None`.
    fn node(&self, _name: &str) -> Option<NodeId> {
        None
    }
    /// Returns the name of the cluster template with this id.
    fn template_name(&self, id: TemplateId) -> Option<String>;
    /// Returns the name of the group with this id, as `CLUSTER/GROUP`.
    fn group_name(&self, id: GroupId) -> Option<String>;
    /// Returns the names of all objects of a kind, for hints at a similar name. For a group this is `CLUSTER/GROUP`.
    fn all_names(&self, kind: Kind) -> Vec<String>;
    /// Returns the names of the valid traits: the standard traits, and those that the site defines.
    fn trait_names(&self) -> &TraitNames;
}
