//! Ends unassignments of tags that a write of another object than the node ends: of the group's roles, the release, or
//! the cluster's change of a role. [`ended_unassignments`] decides when an unassignment ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::fleet::{ResolvedGroup, ended_unassignments};
use stemma_core::object::{GroupId, Kind, NodeId, NodeSpec};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::PendingWrite;

impl PendingWrite<'_> {
    /// Removes the unassignments that the write ends on nodes that it does not write. These are nodes of groups whose
    /// roles, or the tags that the roles produce, changed.
    ///
    /// # Errors
    /// As [`PendingWrite::update`].
    pub(crate) fn drop_ended_unassignments(&mut self) -> Result<(), ApiError> {
        let nodes = self.draft.audited().iter().filter(|object| object.kind == Kind::Node);
        let written: BTreeSet<Uuid> = nodes.map(|object| object.uuid).collect();
        let mut nodes: Vec<NodeId> = Vec::new();
        for group in self.changed_groups() {
            nodes.extend(self.model.fleet.nodes_in_group(group).filter(|node| !written.contains(&node.0)));
        }
        for node in nodes {
            let Some(before) = self.model.nodes.get(node.0).cloned() else { continue };
            if let Some(tags) = ended_unassignments(&self.context.full_model.fleet, &self.model.fleet, node, &before.spec) {
                let spec = NodeSpec { tags, ..before.spec.clone() };
                self.update(&before, before.meta.name.clone(), spec)?;
            }
        }
        Ok(())
    }

    /// Returns the groups whose roles, or the tags that the roles produce, changed.
    pub fn changed_groups(&self) -> Vec<GroupId> {
        let changed = |group: &GroupId| match self.folds(*group) {
            Some((before, after)) => !before.has_same_role_output(after) || before.roles != after.roles,
            None => false,
        };
        self.changed_folds().filter(changed).collect()
    }

    /// Returns the groups that are new or inherit something else after the write.
    pub(super) fn changed_folds(&self) -> impl Iterator<Item = GroupId> {
        let is_changed = |group: &GroupId| self.folds(*group).is_none_or(|(before, after)| !Arc::ptr_eq(before, after));
        self.affected_groups().into_iter().filter(is_changed)
    }

    fn folds(&self, group: GroupId) -> Option<(&Arc<ResolvedGroup>, &Arc<ResolvedGroup>)> {
        self.context.full_model.fleet.resolved_group(group).ok().zip(self.model.fleet.resolved_group(group).ok())
    }

    /// Returns the written groups, and the groups below other written objects.
    pub(super) fn affected_groups(&self) -> BTreeSet<GroupId> {
        self.written_objects().flat_map(|(kind, uuid)| self.model.fleet.groups_below(kind, uuid)).collect()
    }
}
