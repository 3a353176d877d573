//! Unassignments that end by a write of something else than their node: of its group's roles, the release, or what a cluster makes
//! of a role. When one ends is said by [`ended_unassignments`].

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, NodeSpec};
use stemma_wire::error::ApiError;
use uuid::Uuid;

use super::Work;
use crate::cache::model::ended_unassignments;

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
            if let Some(tags) = ended_unassignments(self.context.whole, &self.model, node.0, &before.spec) {
                let spec = NodeSpec { tags, ..before.spec.clone() };
                self.update(&before, before.meta.name.clone(), spec)?;
            }
        }
        Ok(())
    }

    /// The groups below what was written whose roles, or what these produce, are others now.
    fn changed_groups(&self) -> Vec<GroupId> {
        let fleet = &self.model.fleet;
        let changed = |group: &GroupId| match (self.context.whole.fleet.fold(*group), fleet.fold(*group)) {
            (Ok(before), Ok(after)) => {
                !Arc::ptr_eq(before, after) && (before.table != after.table || before.roles != after.roles)
            }
            _ => false,
        };
        self.groups_below().into_iter().filter(changed).collect()
    }

    /// The groups that were written, and those below what was.
    pub(super) fn groups_below(&self) -> BTreeSet<GroupId> {
        let mut below: BTreeSet<GroupId> = BTreeSet::new();
        let fleet = &self.model.fleet;
        for touched in self.draft.touched() {
            match touched.kind {
                Kind::NodeGroup => drop(below.insert(GroupId(touched.uuid))),
                Kind::Cluster => below.extend(fleet.groups_of(ClusterId(touched.uuid))),
                Kind::Release | Kind::ReleaseTags | Kind::ClusterTemplate => {
                    below.extend(fleet.groups().map(|group| GroupId(group.meta.uuid)));
                    break;
                }
                _ => {}
            }
        }
        below
    }
}
