//! Orders tasks by `policy: any`: an entry of a task waits for one node only, the first that has the other task.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ClusterGraph, InstancePair, NodeClass, TaskOnNode};
use crate::release::{CompiledCross, CompiledRelease, TaskIndex};
use crate::role::natural_cmp;
use crate::task::Policy;

/// The pairs that were picked, and the nodes of these pairs.
#[derive(Default)]
struct PickedPairs {
    pairs: BTreeSet<InstancePair>,
    nodes: BTreeSet<Arc<str>>,
}

impl ClusterGraph {
    /// Finds the single pairs of `policy: any`. Makes each node of these pairs a class of its own, because the pairs do
    /// not apply to the other nodes of its profile.
    pub(super) fn pick_single_pairs(&mut self) {
        let mut picked = PickedPairs::default();
        for class in &self.classes {
            for ix in &class.profile.tasks {
                self.pick_for(class, *ix, &mut picked);
            }
        }
        self.single_pairs = picked.pairs;
        let mut classes = Vec::new();
        for class in self.classes.drain(..) {
            let (alone, rest): (Vec<_>, Vec<_>) = class.nodes.into_iter().partition(|node| picked.nodes.contains(node));
            let new_class = |nodes| NodeClass { profile: Arc::clone(&class.profile), nodes };
            classes.extend(alone.into_iter().map(|node| new_class(vec![node])));
            if !rest.is_empty() {
                classes.push(new_class(rest));
            }
        }
        self.classes = classes;
    }

    /// Finds the single pairs of one task, on each node of a class.
    fn pick_for(&self, class: &NodeClass, ix: TaskIndex, picked: &mut PickedPairs) {
        let release = &class.profile.release;
        let task = release.task(ix);
        let any = |cross: &&CompiledCross| cross.policy == Policy::Any;
        let (before, after): (Vec<_>, Vec<_>) =
            (task.cross_depends.iter().filter(any).collect(), task.cross_depended_by.iter().filter(any).collect());
        if before.is_empty() && after.is_empty() {
            return;
        }
        let firsts_of = |entries: &[&CompiledCross]| -> Vec<FirstInstances> {
            entries.iter().map(|cross| self.first_instances(release, cross)).collect()
        };
        let (before, after) = (firsts_of(&before), firsts_of(&after));
        for node in &class.nodes {
            let own: TaskOnNode = (Some(Arc::clone(node)), release.id(ix).into());
            for first in before.iter().filter_map(|firsts| first_other(firsts, &own)) {
                picked.nodes.extend(first.0.clone());
                picked.pairs.insert((first, own.clone()));
            }
            for first in after.iter().filter_map(|firsts| first_other(firsts, &own)) {
                picked.nodes.extend(first.0.clone());
                picked.pairs.insert((own.clone(), first));
            }
        }
    }

    /// Returns the first two instances by name of the tasks that an entry names, on the nodes that it selects.
    fn first_instances(&self, release: &CompiledRelease, cross: &CompiledCross) -> FirstInstances {
        let by_name = |a: &TaskOnNode, b: &TaskOnNode| {
            let name = |instance: &TaskOnNode| instance.0.clone().unwrap_or_default();
            natural_cmp(&name(a), &name(b)).then_with(|| a.1.cmp(&b.1))
        };
        let is_selected = |class: &&NodeClass| class.profile.key.is_target(release.matching.roles, &cross.target);
        let mut firsts: FirstInstances = Vec::new();
        for class in self.classes.iter().filter(is_selected) {
            for ix in cross.tasks.iter().filter(|ix| class.profile.has_task(**ix)) {
                // The nodes of a class are sorted, so only its first two can be among the first two of all.
                let nodes = class.nodes.iter().take(2);
                firsts.extend(nodes.map(|node| (Some(Arc::clone(node)), Arc::from(release.id(*ix)))));
            }
        }
        firsts.sort_by(by_name);
        firsts.truncate(2);
        firsts
    }
}

/// Instances in the order in which one is picked. Two are enough, because only the instance that waits cannot be
/// picked.
type FirstInstances = Vec<TaskOnNode>;

/// Returns the first of these instances that is not `own`.
fn first_other(firsts: &[TaskOnNode], own: &TaskOnNode) -> Option<TaskOnNode> {
    firsts.iter().find(|instance| *instance != own).cloned()
}
