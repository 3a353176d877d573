//! Unassignments that end. One lasts while some role of the node produces its tag, and is forgotten with the last of
//! them, whatever write that goes by: of the node's own roles, its group's, a move, the release, what a cluster
//! makes of a role. Else the tag would be missing when the role comes back, by a word that nobody remembers.
//!
//! It is forgotten when its tag *ceases* to be produced. One that a manifest says of a tag which nothing produces yet
//! stays as it was said, so that applying it again changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemma_core::fleet::GroupFold;
use stemma_core::name::{Name, TagName};
use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, NodeSpec, NodeTags};
use stemma_core::ownership::OwnedMap;
use stemma_core::role::RoleTable;
use uuid::Uuid;

use super::Work;
use crate::cache::Model;
use crate::registry::Undecided;

impl Work<'_> {
    /// Forgets what the write ends on nodes that it does not write itself: those of the groups for which roles, or what
    /// they produce, are others now.
    ///
    /// # Errors
    /// [`Undecided`].
    pub(crate) fn forget(&mut self) -> Result<(), Undecided> {
        let nodes = self.draft.touched().iter().filter(|one| one.kind == Kind::Node);
        let written: BTreeSet<Uuid> = nodes.map(|one| one.uuid).collect();
        let mut nodes: Vec<NodeId> = Vec::new();
        for group in self.changed_groups() {
            nodes.extend(self.model.fleet.nodes_of(group).filter(|node| !written.contains(&node.0)));
        }
        for node in nodes {
            let Some(before) = self.model.nodes.get(node.0).cloned() else { continue };
            if let Some(tags) = left(self.sight.model, &self.model, node.0, &before.spec) {
                let spec = NodeSpec { tags, ..before.spec.clone() };
                self.update(&before, before.meta.name.clone(), spec)?;
            }
        }
        Ok(())
    }

    /// The groups below what was written whose roles, or what these produce, are others now.
    fn changed_groups(&self) -> Vec<GroupId> {
        let fleet = &self.model.fleet;
        let changed = |group: &GroupId| match (self.sight.model.fleet.fold(*group), fleet.fold(*group)) {
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

/// A node's tags by hand without the unassignments that end; `None`: none does.
pub(in crate::registry) fn left(then: &Model, now: &Model, node: Uuid, spec: &NodeSpec) -> Option<NodeTags> {
    if spec.tags.unassigned.is_empty() {
        return None;
    }
    let before = Produced::of(then, &then.nodes.get(node)?.spec)?;
    let after = Produced::of(now, spec)?;
    let ends = |tag: &TagName| before.has(tag) && !after.has(tag);
    if !spec.tags.unassigned.members().any(ends) {
        return None;
    }
    let kept = spec.tags.unassigned.iter().filter(|(tag, _)| !ends(tag));
    let unassigned = OwnedMap::from_entries(kept.map(|(tag, entry)| (tag.clone(), entry.clone())));
    Some(NodeTags { unassigned, ..spec.tags.clone() })
}

/// What the roles of a node produce.
struct Produced {
    table: Option<Arc<RoleTable>>,
    roles: BTreeSet<Name>,
}

impl Produced {
    /// `None`: something above the node is missing, so nobody knows.
    fn of(model: &Model, spec: &NodeSpec) -> Option<Self> {
        let fold: Option<&GroupFold> = match spec.nodegroup {
            Some(group) => Some(model.fleet.fold(group).ok()?),
            None => None,
        };
        let of_group = fold.into_iter().flat_map(|fold| &fold.roles);
        let roles = of_group.chain(&spec.roles).cloned().collect();
        Some(Self { table: fold.and_then(|fold| fold.table.clone()), roles })
    }

    fn has(&self, tag: &TagName) -> bool {
        self.table.as_ref().is_some_and(|table| table.is_produced(&self.roles, tag))
    }
}
