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

/// Only the primary of the tag before it has the last tag.
const TAG_NAMES: [&str; 4] = ["x", "y", "z", "primary-z"];
const Z: usize = 2;
const PRIMARY_Z: usize = 3;
const TASK_COUNT: usize = 6;

/// A task: its tag, whether it is a marker (`type: skipped`), and its dependencies on its own node and, by tag, on
/// other nodes. Both refer to earlier tasks.
#[derive(Clone, Debug)]
struct GeneratedTask {
    tag: usize,
    is_marker: bool,
    requires: Vec<usize>,
    crosses: Vec<GeneratedCross>,
}

/// A task, a tag, and whether one successful node is enough.
type GeneratedCross = (usize, usize, bool);

/// A node: its tags, the task that its condition skips (no task if the number is too large), and whether it is parked.
#[derive(Clone, Debug)]
struct GeneratedNode {
    tags: Vec<usize>,
    skipped_task: usize,
    is_parked: bool,
}

/// Tasks, nodes, the (node, task) pairs that succeeded, and the holder that was chosen as the tag's primary, parked or
/// not. If none was chosen, the primary is the first by name that is not parked.
#[derive(Clone, Debug)]
struct GeneratedCase {
    tasks: Vec<GeneratedTask>,
    nodes: Vec<GeneratedNode>,
    done: BTreeSet<(usize, usize)>,
    chosen: Option<usize>,
}

type NodeTask = (String, String);
/// The tag, whether it is a marker, the required tasks, and the cross dependencies.
type TaskParts = (usize, bool, Vec<usize>, Vec<GeneratedCross>);

fn case_strategy() -> impl Strategy<Value = GeneratedCase> {
    let is_marker = prop::bool::weighted(0.3);
    let task =
        (0..TAG_NAMES.len(), is_marker, vec(0..TASK_COUNT, 0..3), vec((0..TASK_COUNT, 0..TAG_NAMES.len(), any::<bool>()), 0..3));
    let tasks = vec(task, TASK_COUNT).prop_map(|tasks| {
        let task = |(at, drawn)| {
            let (tag, is_marker, requires, crosses): TaskParts = drawn;
            let (requires, crosses) = (requires.into_iter(), crosses.into_iter());
            GeneratedTask {
                tag,
                is_marker,
                requires: requires.filter(|other| *other < at).collect(),
                crosses: crosses.filter(|(other, ..)| *other < at).collect(),
            }
        };
        tasks.into_iter().enumerate().map(task).collect()
    });
    let tags = prop::sample::subsequence((0..=Z).collect::<Vec<_>>(), 0..=Z + 1);
    let node = (tags, 0..2 * TASK_COUNT, prop::bool::weighted(0.2));
    let nodes = vec(node.prop_map(|(tags, left_out, is_parked)| GeneratedNode { tags, skipped_task: left_out, is_parked }), 1..5);
    let done = prop::collection::btree_set((0..5_usize, 0..TASK_COUNT), 0..12);
    (tasks, nodes, done, prop::option::weighted(0.8, 0..5_usize)).prop_map(|(tasks, nodes, done, chosen)| {
        let holders: Vec<_> = (0..nodes.len()).filter(|node| nodes[*node].tags.contains(&Z)).collect();
        let chosen = chosen.filter(|_| !holders.is_empty()).map(|chosen| holders[chosen % holders.len()]);
        GeneratedCase { tasks, nodes, done, chosen }
    })
}

impl GeneratedCase {
    fn documents(&self) -> Vec<Value> {
        let task = |(at, task): (usize, &GeneratedTask)| {
            let cross = |(of, tag, is_any): &GeneratedCross| {
                let policy = if *is_any { "any" } else { "all" };
                json!({"name": format!("t{of}"), "tags": [TAG_NAMES[*tag]], "policy": policy})
            };
            let crosses: Vec<_> = task.crosses.iter().map(cross).collect();
            let requires: Vec<_> = task.requires.iter().map(|of| format!("t{of}")).collect();
            let mut document = json!({
                "id": format!("t{at}"), "type": "skipped", "tags": [TAG_NAMES[task.tag]], "requires": requires,
                "cross_depends": crosses,
            });
            if !task.is_marker {
                document["type"] = json!("shell");
                document["parameters"] = json!({"script": "true"});
                document["condition"] = json!(format!("labels.left_out != 't{at}'"));
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
        documents.extend(self.nodes.iter().enumerate().map(|(at, node)| {
            let roles: Vec<_> = node.tags.iter().map(|tag| TAG_NAMES[*tag]).collect();
            let labels = json!({"left_out": format!("t{}", node.skipped_task)});
            json!({
                "kind": "Node", "name": format!("n{at}"), "nodegroup": "c/g", "roles": roles, "labels": labels,
                "parked": node.is_parked,
            })
        }));
        documents
    }

    fn fleet(&self) -> Fleet {
        let mut fleet = Fleet::new();
        fleet.apply_all(to_changes(build_objects(&self.documents())));
        if let Some(at) = self.chosen {
            let is_it = |node: &&Arc<Node>| node.display_name() == format!("n{at}");
            let node = fleet.nodes().find(is_it).unwrap().id();
            let cluster = ClusterId(fleet.clusters().next().unwrap().meta.uuid);
            let meta = Meta::new(Uuid::nil(), TagName::new(TAG_NAMES[Z]).unwrap(), Timestamp(0));
            let spec = PrimarySpec { cluster, node, since: Timestamp(0), epoch: 1 };
            fleet.apply_all([FleetChange::Primary(Arc::new(Object { meta, spec }))]);
        }
        fleet.set_loaded();
        fleet
    }

    fn primary(&self) -> Option<usize> {
        let may_be = |node: &usize| self.nodes[*node].tags.contains(&Z) && !self.nodes[*node].is_parked;
        self.chosen.or_else(|| (0..self.nodes.len()).find(may_be))
    }

    fn has_tag(&self, node: usize, tag: usize) -> bool {
        self.nodes[node].tags.contains(&tag) || (tag == PRIMARY_Z && self.primary() == Some(node))
    }

    /// Returns whether a task is placed on a node. A task that a condition skips keeps its place in the order, and
    /// counts as done.
    fn has_task(&self, node: usize, task: usize) -> bool {
        self.has_tag(node, self.tasks[task].tag)
    }

    fn is_done(&self, node: usize, task: usize) -> bool {
        self.done.contains(&(node, task)) || self.nodes[node].skipped_task == task
    }

    /// Returns the nodes with this tag that have the task.
    fn nodes_with_tag(&self, task: usize, tag: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |node| self.has_tag(*node, tag) && self.has_task(*node, task))
    }

    /// Returns those of them that come before the dependent task. For a dependency on any node, only the first by name
    /// counts.
    fn nodes_before(&self, (of, tag, is_any): &GeneratedCross) -> impl Iterator<Item = usize> {
        self.nodes_with_tag(*of, *tag).take(if *is_any { 1 } else { usize::MAX })
    }

    fn expected_order(&self) -> BTreeSet<(NodeTask, NodeTask)> {
        let instance = |node: usize, task: usize| (format!("n{node}"), format!("t{task}"));
        let mut pairs = BTreeSet::new();
        for node in 0..self.nodes.len() {
            for (at, task) in self.tasks.iter().enumerate().filter(|(at, _)| self.has_task(node, *at)) {
                let own = task.requires.iter().filter(|of| self.has_task(node, **of)).map(|of| (node, *of));
                let others = task.crosses.iter().flat_map(|cross| self.nodes_before(cross).map(|other| (other, cross.0)));
                pairs.extend(own.chain(others).map(|(other, of)| (instance(other, of), instance(node, at))));
            }
        }
        pairs
    }

    /// Returns the tasks that come before a task on its own node.
    fn tasks_before_on_node(&self, node: usize, task: usize) -> impl Iterator<Item = usize> {
        let GeneratedTask { requires, crosses, .. } = &self.tasks[task];
        let own = crosses.iter().filter(move |(_, tag, is_any)| !is_any && self.has_tag(node, *tag));
        requires.iter().copied().chain(own.map(|cross| cross.0)).filter(move |of| self.has_task(node, *of))
    }

    /// Returns whether a node has finished a task, or everything before it if it is a marker.
    fn is_complete(&self, node: usize, task: usize) -> bool {
        if self.tasks[task].is_marker {
            self.tasks_before_on_node(node, task).all(|before| self.is_complete(node, before))
        } else {
            self.is_done(node, task)
        }
    }

    /// Returns the cross dependencies of a marker, and of the markers before it on that node.
    fn pending_crosses(&self, node: usize, marker: usize) -> Vec<GeneratedCross> {
        let markers = self.tasks_before_on_node(node, marker).filter(|before| self.tasks[*before].is_marker);
        let before = markers.flat_map(|before| self.pending_crosses(node, before));
        self.tasks[marker].crosses.iter().copied().chain(before).collect()
    }

    /// Returns the selected nodes that have not finished the task. Returns none if any node is enough and one has
    /// finished.
    fn pending_nodes(&self, (of, tag, is_any): &GeneratedCross) -> BTreeSet<usize> {
        // Parked nodes are excluded.
        let meant: BTreeSet<_> = self.nodes_with_tag(*of, *tag).filter(|other| !self.nodes[*other].is_parked).collect();
        let (done, left): (BTreeSet<_>, _) = meant.iter().partition(|other| self.is_complete(**other, *of));
        if *is_any && !done.is_empty() { BTreeSet::new() } else { left }
    }

    /// Returns whether the task is a marker that still waits for other nodes.
    fn has_pending_marker(&self, (of, tag, _): &GeneratedCross) -> bool {
        let mut crosses = self.nodes_with_tag(*of, *tag).flat_map(|node| self.pending_crosses(node, *of));
        self.tasks[*of].is_marker
            && crosses.any(|cross| !self.pending_nodes(&cross).is_empty() || self.has_pending_marker(&cross))
    }

    /// Returns the closed barriers of a node: the task and, unless it is a marker, the nodes that have not succeeded.
    fn expected_closed_barriers(&self, node: usize) -> BTreeSet<(String, Option<BTreeSet<usize>>)> {
        let here = self.tasks.iter().enumerate().filter(|(at, _)| self.has_task(node, *at));
        let waits = here.flat_map(|(_, task)| &task.crosses).filter_map(|cross| {
            let left = self.pending_nodes(cross);
            let is_shut = left.iter().any(|other| *other != node) || self.has_pending_marker(cross);
            is_shut.then(|| (format!("t{}", cross.0), (!self.tasks[cross.0].is_marker).then_some(left)))
        });
        waits.collect()
    }
}

/// The results of the tasks of a case.
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

    #[test]
    fn order_contains_exactly_requested_pairs(case in case_strategy()) {
        let answer = resolve_fleet(&case.fleet(), &ResolveCache::new()).unwrap();
        let said = serde_json::to_value(&answer).unwrap();
        let instance = |one: &Value| (one[0].as_str().unwrap().to_owned(), one[1].as_str().unwrap().to_owned());
        let pairs: Vec<_> =
            said["order"].as_array().unwrap().iter().map(|pair| (instance(&pair[0]), instance(&pair[1]))).collect();
        prop_assert_eq!(pairs.iter().cloned().collect::<BTreeSet<_>>(), case.expected_order());
        prop_assert_eq!(pairs.len(), case.expected_order().len(), "each pair stands once");
        for (name, node) in said["nodes"].as_object().unwrap() {
            let tasks: Vec<_> = node["tasks"].as_array().unwrap().iter().map(|task| task.as_str().unwrap()).collect();
            let at: usize = name[1..].parse().unwrap();
            let runs =
                |task: &usize| case.has_task(at, *task) && case.nodes[at].skipped_task != *task && !case.tasks[*task].is_marker;
            let expected: BTreeSet<_> = (0..TASK_COUNT).filter(runs).map(|task| format!("t{task}")).collect();
            prop_assert_eq!(tasks.iter().map(|task| (*task).to_owned()).collect::<BTreeSet<_>>(), expected);
            let place = |task: &str| tasks.iter().position(|one| *one == task);
            let own = pairs.iter().filter(|(first, second)| first.0 == *name && second.0 == *name);
            for (first, second) in own {
                let places = place(&first.1).zip(place(&second.1));
                prop_assert!(places.is_none_or(|(first, second)| first < second), "{:?} in {:?}", (first, second), tasks);
            }
        }
    }

    #[test]
    fn barrier_is_closed_while_selected_node_has_not_succeeded(case in case_strategy()) {
        let fleet = case.fleet();
        let number = |id: NodeId| fleet.node(id).unwrap().display_name()[1..].parse().unwrap();
        let nodes = fleet.nodes().map(|node| (node.id(), number(node.id()))).collect();
        let results = CaseResults { case: &case, nodes };
        let cluster = ClusterId(fleet.clusters().next().unwrap().meta.uuid);
        let wave = Wave::new(&fleet, cluster, &results);
        for (id, node) in &results.nodes {
            let profile = fleet.profile(*id).unwrap();
            let shut = wave.closed_barriers(*id).into_iter().map(|at| {
                let task = &profile.release.task(profile.barriers[at].task).task;
                let nodes = wave.awaited_nodes(profile.hash, at).iter().map(|one| results.nodes[one]).collect();
                (task.id.clone(), (task.kind != "skipped").then_some(nodes))
            });
            prop_assert_eq!(shut.collect::<BTreeSet<_>>(), case.expected_closed_barriers(*node), "n{}", node);
        }
    }
}
