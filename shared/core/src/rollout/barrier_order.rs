//! Finds the barriers that come before a barrier because its task is a stage or a marker (a task of type `skipped`,
//! which runs nothing).
//!
//! The groups of a cluster may run different releases, and the stages of all releases that have one name are one stage.
//! So the predecessors of a barrier come from all releases of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::digest::ReleaseHash;
use crate::fleet::Fleet;
use crate::object::ClusterId;
use crate::release::{Barrier, BarrierScope, CompiledRelease, Profile, TaskIndex};
use crate::task::Policy;

/// The identity of a point: a task on the nodes that a barrier selects. It is the release, the task, the text of the
/// barrier's scope, and its policy. The release is necessary, because a task's index is valid only in its own release.
pub(super) type PointKey = (ReleaseHash, TaskIndex, String, Policy);

/// Returns the releases that the groups of a cluster run, by the hash of their content.
pub(super) fn releases(fleet: &Fleet, cluster: ClusterId) -> BTreeMap<ReleaseHash, Arc<CompiledRelease>> {
    let releases = fleet.resolved_groups(cluster).filter_map(|resolved_group| resolved_group.release.as_ref());
    releases.map(|release| (release.value.hash, Arc::clone(&release.value))).collect()
}

/// The order of the barriers of a cluster, as far as it follows from stages and markers.
pub(super) struct BarrierOrder<'a> {
    releases: BTreeMap<ReleaseHash, Arc<CompiledRelease>>,
    profiles: Vec<&'a Arc<Profile>>,
    /// The direct predecessors of the barriers that were looked up so far.
    predecessors: BTreeMap<PointKey, Rc<[ReleaseBarrier]>>,
}

/// A barrier, with the release of its task.
pub(super) type ReleaseBarrier = (Arc<CompiledRelease>, Barrier);

impl<'a> BarrierOrder<'a> {
    /// Collects the releases and profiles of a cluster.
    pub(super) fn new(fleet: &'a Fleet, cluster: ClusterId) -> Self {
        let profiles: BTreeMap<_, _> = fleet.profiles_in_cluster(cluster).map(|profile| (profile.hash, profile)).collect();
        let profiles = profiles.into_values().collect();
        Self { releases: releases(fleet, cluster), profiles, predecessors: BTreeMap::new() }
    }

    /// Returns the barriers that come before a barrier, directly or through other stages and markers, each once. The
    /// barriers of stages are omitted, because a stage runs on no node.
    ///
    /// Before the barrier of a stage comes everything that the stage waits for in any release that has the stage.
    /// Before the barrier of a marker comes everything on other nodes that the marker waits for. The barrier of any
    /// other task has no predecessors.
    pub(super) fn predecessors(&mut self, release: &Arc<CompiledRelease>, barrier: &Barrier) -> Vec<ReleaseBarrier> {
        let (mut visited, mut found) = (BTreeSet::new(), Vec::new());
        let mut pending = vec![(Arc::clone(release), barrier.clone())];
        while let Some((release, barrier)) = pending.pop() {
            for (release, predecessor) in &*self.direct_predecessors(&release, &barrier) {
                if visited.insert(point_key(release, predecessor)) {
                    pending.push((Arc::clone(release), predecessor.clone()));
                    if !matches!(predecessor.scope, BarrierScope::Stage) {
                        found.push((Arc::clone(release), predecessor.clone()));
                    }
                }
            }
        }
        found
    }

    /// Returns the barriers that come directly before a barrier, because the barrier's task is a stage or a marker.
    /// Empty if the task is neither. The result is cached.
    fn direct_predecessors(&mut self, release: &Arc<CompiledRelease>, barrier: &Barrier) -> Rc<[ReleaseBarrier]> {
        let (releases, profiles) = (&self.releases, &self.profiles);
        let predecessors = self.predecessors.entry(point_key(release, barrier)).or_insert_with(|| match barrier.scope {
            BarrierScope::Stage => stage_predecessors(releases, release.id(barrier.task)),
            BarrierScope::Anywhere | BarrierScope::Everyone | BarrierScope::Tags(_) | BarrierScope::Roles(_) => {
                marker_predecessors(releases, profiles, release, barrier)
            }
        });
        Rc::clone(predecessors)
    }
}

/// Returns the barriers that a stage waits for in the releases that have the stage.
fn stage_predecessors(releases: &BTreeMap<ReleaseHash, Arc<CompiledRelease>>, stage: &str) -> Rc<[ReleaseBarrier]> {
    let stages = releases.values().flat_map(|release| release.stages.iter().map(move |ix| (release, *ix)));
    let stages = stages.filter(|(release, ix)| release.id(*ix) == stage);
    stages.flat_map(|(release, ix)| release.stage_waits(ix).into_iter().map(|wait| (Arc::clone(release), wait))).collect()
}

/// Returns the barriers at which nodes wait before they pass the task of `barrier`. Considers only the nodes that
/// `barrier` selects and on which this task is a marker.
fn marker_predecessors(
    releases: &BTreeMap<ReleaseHash, Arc<CompiledRelease>>,
    profiles: &[&Arc<Profile>],
    release: &CompiledRelease,
    barrier: &Barrier,
) -> Rc<[ReleaseBarrier]> {
    let is_marker = |release: &CompiledRelease, ix: TaskIndex| release.task(ix).is_marker_type();
    let id = release.id(barrier.task);
    // If the task is a marker in no release, the profiles need not be searched.
    if !releases.values().any(|release| release.task_index(id).is_some_and(|ix| is_marker(release, ix))) {
        return Rc::default();
    }
    let mut waits = Vec::new();
    for profile in profiles {
        let ix = barrier_task(release, barrier, profile).filter(|ix| is_marker(&profile.release, *ix));
        let barriers = ix.map(|ix| profile.marker_predecessors(ix).barriers).unwrap_or_default();
        waits.extend(barriers.into_iter().map(|barrier| (Arc::clone(&profile.release), barrier.clone())));
    }
    waits.into()
}

/// Returns the identity of the point at which a barrier waits: its task on the nodes that it selects.
pub(super) fn point_key(release: &CompiledRelease, barrier: &Barrier) -> PointKey {
    (release.hash, barrier.task, barrier.scope.to_string(), barrier.policy)
}

/// Returns the task that a node of a profile must complete before a barrier of a release opens. `None` if the barrier
/// does not select the profile. If the profile has another release, this is the task with the same id in that release.
pub(super) fn barrier_task(release: &CompiledRelease, barrier: &Barrier, profile: &Profile) -> Option<TaskIndex> {
    let is_same_release = profile.release.hash == release.hash;
    let ix = match (is_same_release, &barrier.scope) {
        (true, _) => Some(barrier.task),
        // Such a barrier selects no node with another release.
        (false, BarrierScope::Stage | BarrierScope::Anywhere) => None,
        (false, _) => profile.release.task_index(release.id(barrier.task)),
    };
    ix.filter(|ix| profile.has_task(*ix) && profile.key.is_in_scope(release.matching.roles, &barrier.scope))
}
