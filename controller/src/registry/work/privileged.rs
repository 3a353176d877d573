//! Keeps privileged tasks from being placed by who is no admin.
//!
//! It is asked of what a write makes of the nodes that it reaches, and not of the fields that it writes: so there is no list of ways to
//! place a task that could lack one. Taking a task away, and leaving it where it stands, is free to all who may write.

use std::collections::BTreeMap;

use serde_json::json;
use stemma_core::finding::first_few;
use stemma_core::fleet::Fleet;
use stemma_core::name::Name;
use stemma_core::object::{ClusterId, GroupId, Kind, NodeId, NodeTags, PrincipalRole};
use stemma_wire::error::{ApiError, ErrorType};

use super::Work;
use crate::records::enrolled::Bound;
use crate::registry::names::group_path;

/// How many tasks a refusal names.
const FEW: usize = 3;

/// What of a cluster must stay as it was when a write was decided.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Guard {
    /// Nothing.
    #[default]
    Nothing,
    /// What its levels give nodes.
    Levels,
    /// That, and its nodes.
    All,
}

impl Work<'_> {
    /// Places nodes with the rights of another than who asks: of who made the token by which a host joins.
    pub fn place_as(&mut self, role: PrincipalRole) {
        self.places_as = role;
    }

    /// Refuses a write by which privileged tasks come to nodes, unless an admin makes it.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks and the first of the nodes.
    pub(super) fn check_privileged(&self) -> Result<(), ApiError> {
        if self.places_as == PrincipalRole::Admin {
            return Ok(());
        }
        let reached: Vec<NodeId> = self.reached().filter(|node| !self.newly_privileged(*node).is_empty()).collect();
        let told: Vec<NodeId> = reached.iter().copied().filter(|node| self.is_told_of(*node)).collect();
        let Some(first) = told.first().or(reached.first()) else { return Ok(()) };
        let name = told.first().and_then(|node| self.model.fleet.node(*node)).map(|node| node.display_name());
        let at = match (&name, told.len()) {
            (Some(name), 1) => format!("node {name}"),
            (Some(name), all) => format!("node {name} and {} more", all - 1),
            (None, _) => "a node".to_owned(),
        };
        let refusal = forbidden(&self.newly_privileged(*first), &at);
        let refusal = match name {
            Some(name) => refusal.extra("object", json!(format!("node/{name}"))),
            None => refusal,
        };
        Err(match self.nearest_to_node(*first) {
            Some(written) => refusal.extra("written", json!(written)),
            None => refusal,
        })
    }

    /// The privileged tasks that come to a node.
    fn newly_privileged(&self, node: NodeId) -> Vec<&str> {
        let Some(profile) = self.model.fleet.profile(node).filter(|profile| !profile.privileged.is_empty()) else {
            return Vec::new();
        };
        profile.privileged_beyond(self.context.whole.fleet.profile(node).map(AsRef::as_ref))
    }

    /// Refuses a token by which hosts would join that get privileged tasks, unless an admin makes it. It is asked again when a host joins:
    /// what the group gives its nodes may be something else by then.
    ///
    /// # Errors
    /// [`ErrorType::AuthForbidden`], with the tasks and the group.
    pub fn check_joining(&self, bound: Bound) -> Result<(), ApiError> {
        let Bound::Group(group) = bound else { return Ok(()) };
        let profile = self.model.fleet.profile_of_joining(GroupId(group));
        let tasks = profile.as_ref().map(|profile| profile.privileged_beyond(None)).unwrap_or_default();
        if tasks.is_empty() || self.places_as == PrincipalRole::Admin {
            return Ok(());
        }
        let group = group_path(&self.model, GroupId(group)).unwrap_or_else(|| group.to_string());
        Err(forbidden(&tasks, &format!("hosts that join node group {group}")))
    }

    /// The clusters of which something must stay as it was when a write of who is no admin was decided. Two such writes of different
    /// objects, of which neither places a privileged task, could do it together.
    pub(super) fn guarded(&self) -> BTreeMap<ClusterId, Guard> {
        let mut clusters = BTreeMap::new();
        if self.places_as == PrincipalRole::Admin {
            return clusters;
        }
        let (before, after) = (&self.context.whole.fleet, &self.model.fleet);
        let nodes = self.written().filter(|(kind, _)| *kind == Kind::Node).map(|(_, uuid)| NodeId(uuid));
        for node in nodes.filter(|node| placed_by(before, *node) != placed_by(after, *node)) {
            clusters.extend(after.cluster_of_node(node).map(|cluster| (cluster, Guard::Levels)));
        }
        let is_another = |group: &GroupId| match (before.fold(*group), after.fold(*group)) {
            (Ok(before), Ok(after)) => !after.places_like(before),
            (before, after) => before.is_ok() || after.is_ok(),
        };
        for group in self.refolded().filter(is_another) {
            clusters.extend(after.cluster_of_group(group).map(|cluster| (cluster, Guard::All)));
        }
        clusters
    }
}

/// What of a node's own decides which tasks fall to it.
fn placed_by(fleet: &Fleet, node: NodeId) -> Option<(Option<GroupId>, &[Name], &NodeTags)> {
    let spec = &fleet.node(node)?.spec;
    Some((spec.nodegroup, &*spec.roles, &spec.tags))
}

fn forbidden(tasks: &[&str], at: &str) -> ApiError {
    let (word, are, them) = if tasks.len() == 1 { ("task", "is", "it") } else { ("tasks", "are", "them") };
    let tasks = first_few(tasks.iter().copied(), FEW);
    let message =
        format!("{word} {tasks} {are} privileged, and an admin alone places {them} on {at}; nothing was changed");
    let advice = "an admin makes this write, or the join token by which the host joins";
    ApiError::new(ErrorType::AuthForbidden, message).detail(advice)
}
