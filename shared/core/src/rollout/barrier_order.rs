//! Finds what comes before a barrier because its task is a stage or a marker.
//!
//! The groups of a cluster may run different releases, and stages of one name are one stage. So the predecessors of a
//! barrier come from all releases of the cluster. A wave asks for them when it adds a profile.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::digest::ReleaseHash;
use crate::fleet::Fleet;
use crate::object::ClusterId;
use crate::release::{Barrier, BarrierScope, CompiledRelease, Profile, TaskIndex};
use crate::task::Policy;

/// The identity of a point. It includes the release, because a task's index is valid only in its own release.
pub(super) type PointKey = (ReleaseHash, TaskIndex, String, Policy);

/// Returns the releases that the groups of a cluster run.
pub(super) fn releases(fleet: &Fleet, cluster: ClusterId) -> BTreeMap<ReleaseHash, Arc<CompiledRelease>> {
    let releases = fleet.resolved_groups(cluster).filter_map(|resolved| resolved.release.as_ref());
    releases.map(|release| (release.value.hash, Arc::clone(&release.value))).collect()
}

/// The order of a cluster, as far as barriers depend on stages and markers.
pub(super) struct BarrierOrder<'a> {
    releases: BTreeMap<ReleaseHash, Arc<CompiledRelease>>,
    profiles: Vec<&'a Arc<Profile>>,
    /// The direct predecessors of the barriers that were looked up so far.
    predecessors: BTreeMap<PointKey, Rc<[ReleaseBarrier]>>,
}

/// A barrier, with the release of its task.
pub(super) type ReleaseBarrier = (Arc<CompiledRelease>, Barrier);

impl<'a> BarrierOrder<'a> {
    pub(super) fn new(fleet: &'a Fleet, cluster: ClusterId) -> Self {
        let profiles: BTreeMap<_, _> = fleet.profiles_in_cluster(cluster).map(|profile| (profile.hash, profile)).collect();
        let profiles = profiles.into_values().collect();
        Self { releases: releases(fleet, cluster), profiles, predecessors: BTreeMap::new() }
    }

    /// Returns what comes before a barrier in addition to its own task, directly or through other stages and markers,
    /// each once. For a stage this is everything that the stage waits for in any release that has it. For a marker it
    /// is what the marker waits for on other nodes.
    pub(super) fn predecessors(&mut self, release: &Arc<CompiledRelease>, barrier: &Barrier) -> Vec<ReleaseBarrier> {
        let (mut seen, mut targets) = (BTreeSet::new(), Vec::new());
        let mut next = vec![(Arc::clone(release), barrier.clone())];
        while let Some((release, barrier)) = next.pop() {
            for (release, wait) in &*self.direct_predecessors(&release, &barrier) {
                if seen.insert(point_key(release, wait)) {
                    next.push((Arc::clone(release), wait.clone()));
                    if !matches!(wait.scope, BarrierScope::Stage) {
                        targets.push((Arc::clone(release), wait.clone()));
                    }
                }
            }
        }
        targets
    }

    /// Returns the barriers that come directly before a barrier, because its task is a stage or a marker.
    fn direct_predecessors(&mut self, release: &Arc<CompiledRelease>, barrier: &Barrier) -> Rc<[ReleaseBarrier]> {
        let (releases, profiles) = (&self.releases, &self.profiles);
        let before = self.predecessors.entry(point_key(release, barrier)).or_insert_with(|| match barrier.scope {
            BarrierScope::Stage => stage_predecessors(releases, release.id(barrier.task)),
            BarrierScope::Anywhere | BarrierScope::Everyone | BarrierScope::Tags(_) | BarrierScope::Roles(_) => {
                marker_predecessors(releases, profiles, release, barrier)
            }
        });
        Rc::clone(before)
    }
}

/// Returns what a stage waits for in the releases that have it.
fn stage_predecessors(releases: &BTreeMap<ReleaseHash, Arc<CompiledRelease>>, stage: &str) -> Rc<[ReleaseBarrier]> {
    let stages = releases.values().flat_map(|release| release.stages.iter().map(move |ix| (release, *ix)));
    let all = stages.filter(|(release, ix)| release.id(*ix) == stage);
    all.flat_map(|(release, ix)| release.stage_waits(ix).into_iter().map(|wait| (Arc::clone(release), wait))).collect()
}

/// Returns the barriers at which nodes wait before the task of a barrier, for the nodes on which that task is a marker.
fn marker_predecessors(
    releases: &BTreeMap<ReleaseHash, Arc<CompiledRelease>>,
    profiles: &[&Arc<Profile>],
    release: &CompiledRelease,
    barrier: &Barrier,
) -> Rc<[ReleaseBarrier]> {
    let is_marker = |release: &CompiledRelease, ix: TaskIndex| release.task(ix).is_skipped_type();
    let id = release.id(barrier.task);
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

/// Returns the identity of the point that a barrier waits for.
pub(super) fn point_key(release: &CompiledRelease, barrier: &Barrier) -> PointKey {
    (release.hash, barrier.task, barrier.scope.to_string(), barrier.policy)
}

/// Returns the task that a node of a profile must complete for a barrier of a release. `None` if the barrier does not
/// select the profile. In another release, the task with the same id counts.
pub(super) fn barrier_task(release: &CompiledRelease, barrier: &Barrier, profile: &Profile) -> Option<TaskIndex> {
    let is_same_release = profile.release.hash == release.hash;
    let ix = match (is_same_release, &barrier.scope) {
        (true, _) => Some(barrier.task),
        (false, BarrierScope::Stage | BarrierScope::Anywhere) => None,
        (false, _) => profile.release.task_index(release.id(barrier.task)),
    };
    ix.filter(|ix| profile.has_task(*ix) && profile.key.is_in_scope(release.matching.roles, &barrier.scope))
}
