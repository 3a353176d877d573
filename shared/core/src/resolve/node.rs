//! Resolves one node.

use std::sync::Arc;

use uuid::Uuid;

use super::cache::{GroupBase, ProfileReads};
use super::resolved_node::{Resolution, ResolvedNode, TaskSet, UnmetRequirements};
use crate::fleet::{Fleet, MissingParent, NodeEntry, NodeView};
use crate::name::NodeName;
use crate::object::{ClusterId, Meta, NodeId, NodeSpec, Object, Timestamp};
use crate::release::Profile;
use crate::release::name_selector::MASTER;
use crate::shared_text::SharedTexts;

pub use super::cache::ResolveCache;

/// Resolves one node. Returns its desired state, or the objects that are missing to compute it.
pub fn resolve_node(fleet: &Fleet, cache: &ResolveCache, id: NodeId) -> Resolution {
    if !fleet.is_loaded() {
        return Resolution::Incomplete(vec![MissingParent::Store]);
    }
    let Some(entry) = fleet.entry(id) else { return Resolution::Incomplete(vec![MissingParent::Node(id)]) };
    let group = match entry.node.spec.nodegroup.map(|group_id| fleet.resolved_group(group_id)) {
        None => None,
        Some(Ok(group)) => Some(group),
        Some(Err(missing)) => return Resolution::Incomplete(missing),
    };
    let view = NodeView::new(fleet, entry, group.map(|group| &**group));
    let task_set = entry.profile.as_ref().zip(group).map(|(profile, group)| cache.task_set(&view, group, profile));
    let unmet_requirements = view.unmet_requirements();
    Resolution::Complete(Arc::new(ResolvedNode {
        entry: Arc::clone(entry),
        rule_outcome: view.rule_outcome().clone(),
        reported_state: fleet.reported_state(id).cloned(),
        group: group.cloned(),
        task_set,
        unmet_requirements: (!unmet_requirements.is_empty()).then(|| Box::new(UnmetRequirements(unmet_requirements))),
    }))
}

/// Returns the task set with the tasks that are placed on `master`, the controller's own host, for a cluster without a
/// node of that name. The task set is resolved for a pseudo node without labels, facts and group. So all values come
/// from the cluster.
pub(super) fn pseudo_task_set(fleet: &Fleet, cluster: ClusterId, profile: &Arc<Profile>) -> TaskSet {
    let resolved_group = MASTER.parse().ok().and_then(|name| fleet.resolve_without_group(cluster, name));
    let name = NodeName::new(MASTER).ok();
    let node = Object { meta: Meta::new(Uuid::nil(), name, Timestamp(0)), spec: NodeSpec::default() };
    let entry = NodeEntry::new(Arc::new(node)).with_profile(Some(Arc::clone(profile)));
    let view = NodeView::new(fleet, &entry, resolved_group.as_ref());
    let reads = Arc::new(ProfileReads::from_profile(profile));
    GroupBase::new(&view, profile, reads, (&Arc::default(), &SharedTexts::default())).build_task_set(&[])
}
