//! Ends unassignments of tags on nodes that the write itself does not contain. This follows from a change of a group's
//! roles, of the release, or of a role in the cluster. [`ended_unassignments`] decides when an unassignment ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::fleet::{ResolvedGroup, ended_unassignments};
use stemma_core::object::{GroupId, Kind, NodeId, NodeSpec};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::PendingWrite;

impl PendingWrite<'_> {
    /// Removes the unassignments of tags that the write ends, on nodes that the write does not contain. An unassignment
    /// ends when no role of the node produces the tag any more. So only nodes of groups whose roles, or the tags that
    /// the roles produce, have changed are checked.
    ///
    /// # Errors
    /// Fails as [`PendingWrite::update`] does.
    pub(crate) fn drop_ended_unassignments(&mut self) -> Result<(), ApiError> {
        let nodes = self.draft.audited().iter().filter(|object| object.kind == Kind::Node);
        let written: BTreeSet<Uuid> = nodes.map(|object| object.uuid).collect();
        let mut nodes: Vec<NodeId> = Vec::new();
        for group in self.groups_with_changed_roles() {
            nodes.extend(self.model.fleet.nodes_in_group(group).filter(|node| !written.contains(&node.0)));
        }
        for node in nodes {
            let Some(node_object) = self.model.nodes.get(node.0).cloned() else { continue };
            if let Some(tags) = ended_unassignments(&self.context.full_model.fleet, &self.model.fleet, node, &node_object.spec) {
                let spec = NodeSpec { tags, ..node_object.spec.clone() };
                self.update(&node_object, node_object.meta.name.clone(), spec)?;
            }
        }
        Ok(())
    }

    /// Returns the groups whose roles, or the tags that the roles produce, have changed. New groups are omitted.
    pub fn groups_with_changed_roles(&self) -> Vec<GroupId> {
        let has_other_roles = |group: &GroupId| match self.old_and_new_group(*group) {
            Some((old_group, new_group)) => !old_group.has_same_role_table(new_group) || old_group.roles != new_group.roles,
            None => false,
        };
        self.new_or_changed_groups().filter(has_other_roles).collect()
    }

    /// Returns the groups that are new, cannot be resolved, or have other values (own or inherited) after the write.
    pub(super) fn new_or_changed_groups(&self) -> impl Iterator<Item = GroupId> {
        let is_changed = |group: &GroupId| self.old_and_new_group(*group).is_none_or(|(old, new)| !Arc::ptr_eq(old, new));
        self.affected_groups().into_iter().filter(is_changed)
    }

    /// Returns a group with its inherited values, before and after the write. Returns `None` if one of the two does not
    /// exist.
    fn old_and_new_group(&self, group: GroupId) -> Option<(&Arc<ResolvedGroup>, &Arc<ResolvedGroup>)> {
        self.context.full_model.fleet.resolved_group(group).ok().zip(self.model.fleet.resolved_group(group).ok())
    }

    /// Returns the written groups, and the groups that may inherit from other written objects. If a release or its
    /// user-defined tags were written, these are all groups.
    pub(super) fn affected_groups(&self) -> BTreeSet<GroupId> {
        self.written_objects().flat_map(|(kind, uuid)| self.model.fleet.groups_below(kind, uuid)).collect()
    }
}
