//! One node, resolved.

use std::sync::Arc;

use uuid::Uuid;

use super::answer::{AllUnmet, Answer, Resolution, TaskSet};
use super::memory::{Base, ProfileReads};
use crate::fleet::{Fleet, Missing, NodeEntry, NodeView};
use crate::name::NodeName;
use crate::object::{ClusterId, Meta, NodeId, NodeSpec, Object, Timestamp};
use crate::release::Profile;
use crate::release::select::MASTER;
use crate::shared_text::SharedTexts;

pub use super::memory::ResolveCache;

/// Resolves one node: what it is told, or what is missing for that.
pub fn resolve_node(fleet: &Fleet, cache: &ResolveCache, id: NodeId) -> Resolution {
    if !fleet.is_loaded() {
        return Resolution::Incomplete(vec![Missing::Store]);
    }
    let Some(entry) = fleet.entry(id) else { return Resolution::Incomplete(vec![Missing::Node(id)]) };
    let fold = match entry.node.spec.nodegroup.map(|group| fleet.fold(group)) {
        None => None,
        Some(Ok(fold)) => Some(fold),
        Some(Err(missing)) => return Resolution::Incomplete(missing),
    };
    let view = NodeView::new(fleet, entry, fold.map(|fold| &**fold));
    let task_set = entry.profile.as_ref().zip(fold).map(|(profile, fold)| cache.task_set(&view, fold, profile));
    let unmet = view.unmet();
    Resolution::Complete(Arc::new(Answer {
        entry: Arc::clone(entry),
        ruled: view.ruled().clone(),
        said: fleet.said(id).cloned(),
        fold: fold.cloned(),
        task_set,
        unmet: (!unmet.is_empty()).then(|| Box::new(AllUnmet(unmet))),
    }))
}

/// What falls to a cluster's `master` where no node has that name: it has what the cluster gives, and no labels, facts or group of its
/// own.
pub(super) fn pseudo_task_set(fleet: &Fleet, cluster: ClusterId, profile: &Arc<Profile>) -> TaskSet {
    let fold = MASTER.parse().ok().and_then(|name| fleet.fold_of_cluster(cluster, name));
    let name = NodeName::new(MASTER).ok();
    let node = Object { meta: Meta::new(Uuid::nil(), name, Timestamp(0)), spec: NodeSpec::default() };
    let entry = NodeEntry::bare(Arc::new(node)).with_profile(Some(Arc::clone(profile)));
    let view = NodeView::new(fleet, &entry, fold.as_ref());
    let reads = Arc::new(ProfileReads::of(profile));
    Base::new(&view, profile, reads, (&Arc::default(), &SharedTexts::default())).task_set(&[])
}
