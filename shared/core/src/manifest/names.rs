//! Whose names a body may use: what its fields are looked up in.

use crate::object::{ClusterId, GroupId, Kind, NodeId, TemplateId};
use crate::traits::TraitNames;

/// Other objects by name or uuid, as the caller knows them.
pub trait Names {
    /// The cluster template of that name.
    fn template(&self, name: &str) -> Option<TemplateId>;
    /// The cluster of that name.
    fn cluster(&self, name: &str) -> Option<ClusterId>;
    /// The group of that name in that cluster.
    fn group(&self, cluster: &str, group: &str) -> Option<GroupId>;
    /// The node of that name or uuid; manifests name none.
    fn node(&self, _name: &str) -> Option<NodeId> {
        None
    }
    /// A template's name.
    fn template_name(&self, id: TemplateId) -> Option<String>;
    /// A group as `CLUSTER/GROUP`.
    fn group_name(&self, id: GroupId) -> Option<String>;
    /// The names of all objects of a kind, as fields name them.
    fn all(&self, kind: Kind) -> Vec<String>;
    /// The traits that are known: the standard ones and the site's.
    fn traits(&self) -> &TraitNames;
}
