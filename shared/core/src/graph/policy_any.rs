//! Orders tasks by `policy: any`. A dependency with this policy waits for one node only: the first node by name that
//! has the other task.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ClusterGraph, InstancePair, NodeClass, TaskOnNode};
use crate::release::{CompiledCross, CompiledRelease, TaskIndex};
use crate::role::natural_cmp;
use crate::task::Policy;

/// The pairs of instances that `policy: any` orders, and the nodes that were picked for these pairs.
#[derive(Default)]
struct PickedPairs {
    pairs: BTreeSet<InstancePair>,
    nodes: BTreeSet<Arc<str>>,
}

impl ClusterGraph {
    /// Finds and stores the pairs of instances (tasks on nodes) that `policy: any` orders. Each node that was picked
    /// for a pair becomes a class of its own, because the pair does not apply to the other nodes of its profile.
    pub(super) fn pick_single_pairs(&mut self) {
        let mut picked = PickedPairs::default();
        for class in &self.classes {
            for task in &class.profile.tasks {
                self.pick_pairs_of_task(class, *task, &mut picked);
            }
        }
        self.single_pairs = picked.pairs;
        let mut classes = Vec::new();
        for class in self.classes.drain(..) {
            let (picked_nodes, rest): (Vec<_>, Vec<_>) = class.nodes.into_iter().partition(|node| picked.nodes.contains(node));
            let new_class = |nodes| NodeClass { profile: Arc::clone(&class.profile), nodes };
            classes.extend(picked_nodes.into_iter().map(|node| new_class(vec![node])));
            if !rest.is_empty() {
                classes.push(new_class(rest));
            }
        }
        self.classes = classes;
    }

    /// Adds to `picked` the pairs of instances that a task's cross dependencies with `policy: any` order, for the task
    /// on each node of a class, and the picked nodes. The task waits for one instance of each such `cross_depends`
    /// entry, and one instance of each such `cross_depended_by` entry waits for the task.
    fn pick_pairs_of_task(&self, class: &NodeClass, task_index: TaskIndex, picked: &mut PickedPairs) {
        let release = &class.profile.release;
        let task = release.task(task_index);
        let is_any = |cross: &&CompiledCross| cross.policy == Policy::Any;
        let (predecessors, successors): (Vec<_>, Vec<_>) =
            (task.cross_depends.iter().filter(is_any).collect(), task.cross_depended_by.iter().filter(is_any).collect());
        if predecessors.is_empty() && successors.is_empty() {
            return;
        }
        let candidates_of = |entries: &[&CompiledCross]| -> Vec<FirstInstances> {
            entries.iter().map(|cross| self.first_instances(release, cross)).collect()
        };
        let (predecessors, successors) = (candidates_of(&predecessors), candidates_of(&successors));
        for node in &class.nodes {
            let instance: TaskOnNode = (Some(Arc::clone(node)), release.id(task_index).into());
            for picked_instance in predecessors.iter().filter_map(|candidates| first_other(candidates, &instance)) {
                picked.nodes.extend(picked_instance.0.clone());
                picked.pairs.insert((picked_instance, instance.clone()));
            }
            for picked_instance in successors.iter().filter_map(|candidates| first_other(candidates, &instance)) {
                picked.nodes.extend(picked_instance.0.clone());
                picked.pairs.insert((instance.clone(), picked_instance));
            }
        }
    }

    /// Returns the instances of the tasks that a cross dependency (`cross_depends` or `cross_depended_by`) names, on
    /// the nodes that the dependency selects. Only the first two instances, sorted by the name of the node, are
    /// returned.
    fn first_instances(&self, release: &CompiledRelease, cross: &CompiledCross) -> FirstInstances {
        let by_name = |left: &TaskOnNode, right: &TaskOnNode| {
            let name = |instance: &TaskOnNode| instance.0.clone().unwrap_or_default();
            natural_cmp(&name(left), &name(right)).then_with(|| left.1.cmp(&right.1))
        };
        let is_selected = |class: &&NodeClass| class.profile.key.is_target(release.matching.roles, &cross.target);
        let mut candidates: FirstInstances = Vec::new();
        for class in self.classes.iter().filter(is_selected) {
            for task in cross.tasks.iter().filter(|task| class.profile.has_task(**task)) {
                // The nodes of a class are sorted, so only its first two can be among the first two of all.
                let nodes = class.nodes.iter().take(2);
                candidates.extend(nodes.map(|node| (Some(Arc::clone(node)), Arc::from(release.id(*task)))));
            }
        }
        candidates.sort_by(by_name);
        candidates.truncate(2);
        candidates
    }
}

/// The first two instances, sorted by the name of the node, or fewer. The first one is picked, unless it would be
/// paired with itself. Then the second one is picked, so two are enough.
type FirstInstances = Vec<TaskOnNode>;

/// Returns the first of these instances that is not `excluded_instance`.
fn first_other(candidates: &[TaskOnNode], excluded_instance: &TaskOnNode) -> Option<TaskOnNode> {
    candidates.iter().find(|instance| *instance != excluded_instance).cloned()
}
