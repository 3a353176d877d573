//! The order and the barriers of random clusters, compared with a computation for each node and task from the
//! manifests.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_core::fleet::{Fleet, FleetChange};
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Meta, Node, NodeId, Object, PrimarySpec, Timestamp};
use stemma_core::resolve::{ResolveCache, resolve_fleet};
use stemma_core::rollout::{Completion, TaskResults, Wave};
use uuid::Uuid;

use crate::fleet_fixture::{build_objects, to_changes};

/// Names of the tags. Only the primary of tag `z` has tag `primary-z`.
const TAG_NAMES: [&str; 4] = ["x", "y", "z", "primary-z"];
/// Index of tag `z`, which has a primary.
const Z: usize = 2;
/// Index of tag `primary-z`.
const PRIMARY_Z: usize = 3;
/// Number of tasks in each case.
const TASK_COUNT: usize = 6;

/// A generated task: its tag, whether it is a marker (`type: skipped`), the tasks that it requires on its own node, and
/// its dependencies on tasks of nodes with a tag. It depends only on tasks with a lower index.
#[derive(Clone, Debug)]
struct GeneratedTask {
    tag: usize,
    is_marker: bool,
    requires: Vec<usize>,
    crosses: Vec<GeneratedCross>,
}

/// A dependency on a task of the nodes with a tag, which may include the own node: the index of the task, the index of
/// the tag, and whether the success of one node is enough (policy `any`).
type GeneratedCross = (usize, usize, bool);

/// A generated node: its tags, the index of the task that is skipped on the node by a condition, and whether the node
/// is parked. An index after the last task skips nothing, and the index of a marker has no effect.
#[derive(Clone, Debug)]
struct GeneratedNode {
    tags: Vec<usize>,
    skipped_task: usize,
    is_parked: bool,
}

/// A generated case. `done` contains the (node, task) pairs that succeeded. `chosen` is the node that was chosen as the
/// primary of tag `z`, parked or not. Without a chosen node, the primary is the first node by name that has the tag and
/// is not parked.
#[derive(Clone, Debug)]
struct GeneratedCase {
    tasks: Vec<GeneratedTask>,
    nodes: Vec<GeneratedNode>,
    done: BTreeSet<(usize, usize)>,
    chosen: Option<usize>,
}

/// The names of a node and of a task on it.
type NodeTask = (String, String);
/// The generated parts of a task: the index of its tag, whether it is a marker, the required tasks, and the
/// dependencies on tasks of other nodes.
type TaskParts = (usize, bool, Vec<usize>, Vec<GeneratedCross>);

/// Generates a case. Dependencies on later tasks are removed, and a chosen primary always has tag `z`.
fn case_strategy() -> impl Strategy<Value = GeneratedCase> {
    let is_marker = prop::bool::weighted(0.3);
    let task =
        (0..TAG_NAMES.len(), is_marker, vec(0..TASK_COUNT, 0..3), vec((0..TASK_COUNT, 0..TAG_NAMES.len(), any::<bool>()), 0..3));
    let tasks = vec(task, TASK_COUNT).prop_map(|tasks| {
        let task = |(index, parts)| {
            let (tag, is_marker, requires, crosses): TaskParts = parts;
            let (requires, crosses) = (requires.into_iter(), crosses.into_iter());
            GeneratedTask {
                tag,
                is_marker,
                requires: requires.filter(|dependency| *dependency < index).collect(),
                crosses: crosses.filter(|(dependency, ..)| *dependency < index).collect(),
            }
        };
        tasks.into_iter().enumerate().map(task).collect()
    });
    let tags = prop::sample::subsequence((0..=Z).collect::<Vec<_>>(), 0..=Z + 1);
    // In half of the cases, the condition of no task is false on the node.
    let node = (tags, 0..2 * TASK_COUNT, prop::bool::weighted(0.2));
    let nodes = vec(
        node.prop_map(|(tags, skipped_index, is_parked)| GeneratedNode { tags, skipped_task: skipped_index, is_parked }),
        1..5,
    );
    // A case has at most four nodes, so some of the pairs may be about no node of the case.
    let done = prop::collection::btree_set((0..5_usize, 0..TASK_COUNT), 0..12);
    (tasks, nodes, done, prop::option::weighted(0.8, 0..5_usize)).prop_map(|(tasks, nodes, done, chosen)| {
        let holders: Vec<_> = (0..nodes.len()).filter(|node| nodes[*node].tags.contains(&Z)).collect();
        // The remainder makes any generated number an index of a node with tag `z`.
        let chosen = chosen.filter(|_| !holders.is_empty()).map(|chosen| holders[chosen % holders.len()]);
        GeneratedCase { tasks, nodes, done, chosen }
    })
}

impl GeneratedCase {
    /// Returns the manifests of the case: tasks `t0` and following, and nodes `n0` and following. A label of each node
    /// names the task that conditions skip.
    fn documents(&self) -> Vec<Value> {
        let task = |(index, task): (usize, &GeneratedTask)| {
            let cross = |(dependency, tag, is_any): &GeneratedCross| {
                let policy = if *is_any { "any" } else { "all" };
                json!({"name": format!("t{dependency}"), "tags": [TAG_NAMES[*tag]], "policy": policy})
            };
            let crosses: Vec<_> = task.crosses.iter().map(cross).collect();
            let requires: Vec<_> = task.requires.iter().map(|dependency| format!("t{dependency}")).collect();
            let mut document = json!({
                "id": format!("t{index}"), "type": "skipped", "tags": [TAG_NAMES[task.tag]], "requires": requires,
                "cross_depends": crosses,
            });
            if !task.is_marker {
                document["type"] = json!("shell");
                document["parameters"] = json!({"script": "true"});
                document["condition"] = json!(format!("labels.left_out != 't{index}'"));
            }
            document
        };
        let tasks: Vec<_> = self.tasks.iter().enumerate().map(task).collect();
        let roles: BTreeMap<_, _> = TAG_NAMES[..=Z].iter().map(|tag| (*tag, json!({"tags": [tag]}))).collect();
        let tags: BTreeMap<_, _> =
            TAG_NAMES[..=Z].iter().map(|tag| (*tag, json!({"has_primary": *tag == TAG_NAMES[Z]}))).collect();
        let mut documents = vec![
            json!({"kind": "Release", "name": "r", "version": "1", "roles": roles, "tags": tags, "tasks": tasks}),
            json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
            json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}),
        ];
        documents.extend(self.nodes.iter().enumerate().map(|(index, node)| {
            let roles: Vec<_> = node.tags.iter().map(|tag| TAG_NAMES[*tag]).collect();
            let labels = json!({"left_out": format!("t{}", node.skipped_task)});
            json!({
                "kind": "Node", "name": format!("n{index}"), "nodegroup": "c/g", "roles": roles, "labels": labels,
                "parked": node.is_parked,
            })
        }));
        documents
    }

    /// Builds the fleet of the case, with the chosen primary of tag `z` if there is one.
    fn fleet(&self) -> Fleet {
        let mut fleet = Fleet::new();
        fleet.apply_all(to_changes(build_objects(&self.documents())));
        if let Some(index) = self.chosen {
            let is_chosen = |node: &&Arc<Node>| node.display_name() == format!("n{index}");
            let node = fleet.nodes().find(is_chosen).unwrap().id();
            let cluster = ClusterId(fleet.clusters().next().unwrap().meta.uuid);
            let meta = Meta::new(Uuid::nil(), TagName::new(TAG_NAMES[Z]).unwrap(), Timestamp(0));
            let spec = PrimarySpec { cluster, node, since: Timestamp(0), epoch: 1 };
            fleet.apply_all([FleetChange::Primary(Arc::new(Object { meta, spec }))]);
        }
        fleet.set_loaded();
        fleet
    }

    /// Returns the node that is the primary of tag `z`.
    fn primary(&self) -> Option<usize> {
        let can_be_primary = |node: &usize| self.nodes[*node].tags.contains(&Z) && !self.nodes[*node].is_parked;
        self.chosen.or_else(|| (0..self.nodes.len()).find(can_be_primary))
    }

    fn has_tag(&self, node: usize, tag: usize) -> bool {
        self.nodes[node].tags.contains(&tag) || (tag == PRIMARY_Z && self.primary() == Some(node))
    }

    /// Returns whether a task is placed on a node. A task that a condition skips is placed too, and is treated as done.
    fn has_task(&self, node: usize, task: usize) -> bool {
        self.has_tag(node, self.tasks[task].tag)
    }

    /// Returns whether a task succeeded on a node. A task that the condition skips there is treated as done.
    fn is_done(&self, node: usize, task: usize) -> bool {
        self.done.contains(&(node, task)) || self.nodes[node].skipped_task == task
    }

    /// Returns the nodes that have both the task and the tag.
    fn nodes_with_tag(&self, task: usize, tag: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |node| self.has_tag(*node, tag) && self.has_task(*node, task))
    }

    /// Returns the nodes whose task must run before the task with this dependency. With policy `any`, the result is
    /// only the first node by name.
    fn nodes_before(&self, (task, tag, is_any): &GeneratedCross) -> impl Iterator<Item = usize> {
        self.nodes_with_tag(*task, *tag).take(if *is_any { 1 } else { usize::MAX })
    }

    /// Returns all pairs of (node, task) whose first member must run before the second, from the dependencies of each
    /// task on each node.
    fn expected_order(&self) -> BTreeSet<(NodeTask, NodeTask)> {
        let instance = |node: usize, task: usize| (format!("n{node}"), format!("t{task}"));
        let mut pairs = BTreeSet::new();
        for node in 0..self.nodes.len() {
            for (task_index, task) in self.tasks.iter().enumerate().filter(|(task_index, _)| self.has_task(node, *task_index)) {
                let on_own_node = task
                    .requires
                    .iter()
                    .filter(|dependency| self.has_task(node, **dependency))
                    .map(|dependency| (node, *dependency));
                let on_selected_nodes =
                    task.crosses.iter().flat_map(|cross| self.nodes_before(cross).map(|earlier_node| (earlier_node, cross.0)));
                pairs.extend(
                    on_own_node
                        .chain(on_selected_nodes)
                        .map(|(earlier_node, dependency)| (instance(earlier_node, dependency), instance(node, task_index))),
                );
            }
        }
        pairs
    }

    /// Returns the tasks that must run before a task on the same node: the required tasks, and the tasks of a
    /// dependency on all nodes with a tag, if this node has the tag.
    fn tasks_before_on_node(&self, node: usize, task: usize) -> impl Iterator<Item = usize> {
        let GeneratedTask { requires, crosses, .. } = &self.tasks[task];
        let own_crosses = crosses.iter().filter(move |(_, tag, is_any)| !is_any && self.has_tag(node, *tag));
        requires
            .iter()
            .copied()
            .chain(own_crosses.map(|cross| cross.0))
            .filter(move |dependency| self.has_task(node, *dependency))
    }

    /// Returns whether a node has finished a task. A node has finished a marker when it has finished all tasks before
    /// the marker.
    fn is_complete(&self, node: usize, task: usize) -> bool {
        if self.tasks[task].is_marker {
            self.tasks_before_on_node(node, task).all(|earlier| self.is_complete(node, earlier))
        } else {
            self.is_done(node, task)
        }
    }

    /// Returns the dependencies of a marker on tasks of other nodes. Includes the dependencies of all markers that
    /// precede this marker on the node.
    fn crosses_before_marker(&self, node: usize, marker: usize) -> Vec<GeneratedCross> {
        let markers = self.tasks_before_on_node(node, marker).filter(|earlier| self.tasks[*earlier].is_marker);
        let crosses_before = markers.flat_map(|earlier| self.crosses_before_marker(node, earlier));
        self.tasks[marker].crosses.iter().copied().chain(crosses_before).collect()
    }

    /// Returns the selected nodes that have not finished the task. With policy `any`, returns none as soon as one
    /// selected node has finished the task. Parked nodes are excluded.
    fn pending_nodes(&self, (task, tag, is_any): &GeneratedCross) -> BTreeSet<usize> {
        // Other nodes do not wait for parked nodes.
        let selected: BTreeSet<_> = self.nodes_with_tag(*task, *tag).filter(|node| !self.nodes[*node].is_parked).collect();
        let (done, pending): (BTreeSet<_>, _) = selected.iter().partition(|node| self.is_complete(**node, *task));
        if *is_any && !done.is_empty() { BTreeSet::new() } else { pending }
    }

    /// Returns whether the dependency is on a marker, and something before that marker is not finished on other nodes.
    fn has_pending_marker(&self, (task, tag, _): &GeneratedCross) -> bool {
        let mut crosses = self.nodes_with_tag(*task, *tag).flat_map(|node| self.crosses_before_marker(node, *task));
        self.tasks[*task].is_marker
            && crosses.any(|cross| !self.pending_nodes(&cross).is_empty() || self.has_pending_marker(&cross))
    }

    /// Returns the closed barriers of a node: the awaited task and, unless the task is a marker, the nodes that have
    /// not finished the task. These may include the node itself, which alone closes no barrier.
    fn expected_closed_barriers(&self, node: usize) -> BTreeSet<(String, Option<BTreeSet<usize>>)> {
        let placed_tasks = self.tasks.iter().enumerate().filter(|(task_index, _)| self.has_task(node, *task_index));
        let closed_barriers = placed_tasks.flat_map(|(_, task)| &task.crosses).filter_map(|cross| {
            let pending = self.pending_nodes(cross);
            let is_closed = pending.iter().any(|pending_node| *pending_node != node) || self.has_pending_marker(cross);
            is_closed.then(|| (format!("t{}", cross.0), (!self.tasks[cross.0].is_marker).then_some(pending)))
        });
        closed_barriers.collect()
    }
}

/// The results of the tasks of a case. `nodes` contains the index of each node in the case.
struct CaseResults<'a> {
    case: &'a GeneratedCase,
    nodes: BTreeMap<NodeId, usize>,
}

impl TaskResults for CaseResults<'_> {
    fn task_set(&self, _node: NodeId) -> Option<[u8; 32]> {
        Some([0; 32])
    }

    fn completion(&self, node: NodeId, task: &str) -> Completion {
        let is_done = self.case.is_done(self.nodes[&node], task[1..].parse().unwrap());
        if is_done { Completion::Succeeded } else { Completion::Pending }
    }

    fn is_inactive(&self, _node: NodeId) -> bool {
        false
    }

    fn has_failed(&self, _node: NodeId, _task: &str) -> bool {
        false
    }

    fn is_withheld(&self, _node: NodeId) -> bool {
        false
    }

    fn is_released(&self, _node: NodeId, _task: &str) -> bool {
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    /// Compares the order of the whole cluster with the expected pairs. Also compares the tasks of each node, and
    /// checks that their list respects the order.
    #[test]
    fn order_contains_exactly_requested_pairs(case in case_strategy()) {
        let fleet_output = resolve_fleet(&case.fleet(), &ResolveCache::new()).unwrap();
        let output = serde_json::to_value(&fleet_output).unwrap();
        let instance = |pair: &Value| (pair[0].as_str().unwrap().to_owned(), pair[1].as_str().unwrap().to_owned());
        let pairs: Vec<_> =
            output["order"].as_array().unwrap().iter().map(|pair| (instance(&pair[0]), instance(&pair[1]))).collect();
        prop_assert_eq!(pairs.iter().cloned().collect::<BTreeSet<_>>(), case.expected_order());
        prop_assert_eq!(pairs.len(), case.expected_order().len(), "each pair is listed once");
        for (name, node) in output["nodes"].as_object().unwrap() {
            let tasks: Vec<_> = node["tasks"].as_array().unwrap().iter().map(|task| task.as_str().unwrap()).collect();
            // The number in the name is the index of the node.
            let node_index: usize = name[1..].parse().unwrap();
            let is_run =
                |task: &usize| case.has_task(node_index, *task) && case.nodes[node_index].skipped_task != *task && !case.tasks[*task].is_marker;
            let expected: BTreeSet<_> = (0..TASK_COUNT).filter(is_run).map(|task| format!("t{task}")).collect();
            prop_assert_eq!(tasks.iter().map(|task| (*task).to_owned()).collect::<BTreeSet<_>>(), expected);
            let position_of = |task: &str| tasks.iter().position(|id| *id == task);
            let own_pairs = pairs.iter().filter(|(first, second)| first.0 == *name && second.0 == *name);
            for (first, second) in own_pairs {
                let positions = position_of(&first.1).zip(position_of(&second.1));
                prop_assert!(positions.is_none_or(|(first, second)| first < second), "{:?} in {:?}", (first, second), tasks);
            }
        }
    }

    /// Compares the closed barriers of each node, and the nodes that each barrier waits for. The nodes of a barrier on
    /// a marker (type `skipped`) are not compared.
    #[test]
    fn barrier_is_closed_while_selected_node_has_not_succeeded(case in case_strategy()) {
        let fleet = case.fleet();
        let node_index = |id: NodeId| fleet.node(id).unwrap().display_name()[1..].parse().unwrap();
        let nodes = fleet.nodes().map(|node| (node.id(), node_index(node.id()))).collect();
        let results = CaseResults { case: &case, nodes };
        let cluster = ClusterId(fleet.clusters().next().unwrap().meta.uuid);
        let wave = Wave::new(&fleet, cluster, &results);
        for (id, node) in &results.nodes {
            let profile = fleet.profile(*id).unwrap();
            let closed_barriers = wave.closed_barriers(*id).into_iter().map(|position| {
                let task = &profile.release.task(profile.barriers[position].task).task;
                let nodes = wave.awaited_nodes(profile.hash, position).iter().map(|id| results.nodes[id]).collect();
                (task.id.clone(), (task.kind != "skipped").then_some(nodes))
            });
            prop_assert_eq!(closed_barriers.collect::<BTreeSet<_>>(), case.expected_closed_barriers(*node), "n{}", node);
        }
    }
}
