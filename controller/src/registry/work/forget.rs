//! Unassignments that end by a write of something else than their node: of its group's roles, the release, or what a cluster makes
//! of a role. When one ends is said by [`ended_unassignments`].

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::fleet::{GroupFold, ended_unassignments};
use stemma_core::object::{GroupId, Kind, NodeId, NodeSpec};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::Work;

impl Work<'_> {
    /// Forgets what the write ends on nodes that it does not write itself: those of the groups for which roles, or what
    /// they produce, are others now.
    ///
    /// # Errors
    /// As [`Work::update`].
    pub(crate) fn forget(&mut self) -> Result<(), ApiError> {
        let nodes = self.draft.touched().iter().filter(|one| one.kind == Kind::Node);
        let written: BTreeSet<Uuid> = nodes.map(|one| one.uuid).collect();
        let mut nodes: Vec<NodeId> = Vec::new();
        for group in self.changed_groups() {
            nodes.extend(self.model.fleet.nodes_of(group).filter(|node| !written.contains(&node.0)));
        }
        for node in nodes {
            let Some(before) = self.model.nodes.get(node.0).cloned() else { continue };
            if let Some(tags) = ended_unassignments(&self.context.whole.fleet, &self.model.fleet, node, &before.spec) {
                let spec = NodeSpec { tags, ..before.spec.clone() };
                self.update(&before, before.meta.name.clone(), spec)?;
            }
        }
        Ok(())
    }

    /// The groups whose roles, or what these produce, are others now.
    pub fn changed_groups(&self) -> Vec<GroupId> {
        let changed = |group: &GroupId| match self.folds(*group) {
            Some((before, after)) => !before.produces_like(after) || before.roles != after.roles,
            None => false,
        };
        self.refolded().filter(changed).collect()
    }

    /// The groups to which something else comes down now, or that are new.
    pub(super) fn refolded(&self) -> impl Iterator<Item = GroupId> {
        let is_another = |group: &GroupId| self.folds(*group).is_none_or(|(before, after)| !Arc::ptr_eq(before, after));
        self.groups_below().into_iter().filter(is_another)
    }

    fn folds(&self, group: GroupId) -> Option<(&Arc<GroupFold>, &Arc<GroupFold>)> {
        self.context.whole.fleet.fold(group).ok().zip(self.model.fleet.fold(group).ok())
    }

    /// The groups that were written, and those below what was.
    pub(super) fn groups_below(&self) -> BTreeSet<GroupId> {
        self.written().flat_map(|(kind, uuid)| self.model.fleet.groups_below(kind, uuid)).collect()
    }
}
