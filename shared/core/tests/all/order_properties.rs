//! The order and the barriers of random clusters, beside the same worked out node by node and task by task from the manifests.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_core::fleet::{Change, Fleet};
use stemma_core::name::TagName;
use stemma_core::object::{ClusterId, Meta, Node, NodeId, Object, PrimarySpec, Timestamp};
use stemma_core::resolve::{ResolveCache, resolve_fleet};
use stemma_core::rollout::{Done, TaskResults, Wave};
use uuid::Uuid;

use crate::made::{changes, objects};

/// The last one is had by the primary of the one before it alone.
const TAGS: [&str; 4] = ["x", "y", "z", "primary-z"];
const Z: usize = 2;
const PRIMARY_Z: usize = 3;
const TASKS: usize = 6;

/// A task: its tag; whether it is a marker (`type: skipped`); what it requires on its own node, and, by tag, on others. Both name tasks
/// before it.
#[derive(Clone, Debug)]
struct Task {
    tag: usize,
    is_marker: bool,
    requires: Vec<usize>,
    crosses: Vec<Cross>,
}

/// A task and a tag, and whether one node that has succeeded is enough.
type Cross = (usize, usize, bool);

/// A node: its tags, the task that its condition leaves out there (a number beyond all tasks: none), and whether it is parked.
#[derive(Clone, Debug)]
struct Host {
    tags: Vec<usize>,
    left_out: usize,
    is_parked: bool,
}

/// Tasks, nodes, in which tasks which nodes have succeeded, and which of the holders of a tag was chosen as its primary, parked or not. Where
/// none was, it is the first by name of those that are not parked.
#[derive(Clone, Debug)]
struct Case {
    tasks: Vec<Task>,
    nodes: Vec<Host>,
    done: BTreeSet<(usize, usize)>,
    chosen: Option<usize>,
}

type Instance = (String, String);
/// A tag, whether it is a marker, tasks, and tasks with tags.
type Drawn = (usize, bool, Vec<usize>, Vec<Cross>);

fn case() -> impl Strategy<Value = Case> {
    let is_marker = prop::bool::weighted(0.3);
    let task = (0..TAGS.len(), is_marker, vec(0..TASKS, 0..3), vec((0..TASKS, 0..TAGS.len(), any::<bool>()), 0..3));
    let tasks = vec(task, TASKS).prop_map(|tasks| {
        let task = |(at, drawn)| {
            let (tag, is_marker, requires, crosses): Drawn = drawn;
            let (requires, crosses) = (requires.into_iter(), crosses.into_iter());
            Task {
                tag,
                is_marker,
                requires: requires.filter(|other| *other < at).collect(),
                crosses: crosses.filter(|(other, ..)| *other < at).collect(),
            }
        };
        tasks.into_iter().enumerate().map(task).collect()
    });
    let tags = prop::sample::subsequence((0..=Z).collect::<Vec<_>>(), 0..=Z + 1);
    let node = (tags, 0..2 * TASKS, prop::bool::weighted(0.2));
    let nodes = vec(node.prop_map(|(tags, left_out, is_parked)| Host { tags, left_out, is_parked }), 1..5);
    let done = prop::collection::btree_set((0..5_usize, 0..TASKS), 0..12);
    (tasks, nodes, done, prop::option::weighted(0.8, 0..5_usize)).prop_map(|(tasks, nodes, done, chosen)| {
        let holders: Vec<_> = (0..nodes.len()).filter(|node| nodes[*node].tags.contains(&Z)).collect();
        let chosen = chosen.filter(|_| !holders.is_empty()).map(|chosen| holders[chosen % holders.len()]);
        Case { tasks, nodes, done, chosen }
    })
}

impl Case {
    fn documents(&self) -> Vec<Value> {
        let task = |(at, task): (usize, &Task)| {
            let cross = |(of, tag, is_any): &Cross| {
                let policy = if *is_any { "any" } else { "all" };
                json!({"name": format!("t{of}"), "tags": [TAGS[*tag]], "policy": policy})
            };
            let crosses: Vec<_> = task.crosses.iter().map(cross).collect();
            let requires: Vec<_> = task.requires.iter().map(|of| format!("t{of}")).collect();
            let mut document = json!({
                "id": format!("t{at}"), "type": "skipped", "tags": [TAGS[task.tag]], "requires": requires,
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
        let roles: BTreeMap<_, _> = TAGS[..=Z].iter().map(|tag| (*tag, json!({"tags": [tag]}))).collect();
        let tags: BTreeMap<_, _> =
            TAGS[..=Z].iter().map(|tag| (*tag, json!({"has_primary": *tag == TAGS[Z]}))).collect();
        let mut documents = vec![
            json!({"kind": "Release", "name": "r", "version": "1", "roles": roles, "tags": tags, "tasks": tasks}),
            json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
            json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}),
        ];
        documents.extend(self.nodes.iter().enumerate().map(|(at, node)| {
            let roles: Vec<_> = node.tags.iter().map(|tag| TAGS[*tag]).collect();
            let labels = json!({"left_out": format!("t{}", node.left_out)});
            json!({
                "kind": "Node", "name": format!("n{at}"), "nodegroup": "c/g", "roles": roles, "labels": labels,
                "parked": node.is_parked,
            })
        }));
        documents
    }

    fn fleet(&self) -> Fleet {
        let mut fleet = Fleet::new();
        fleet.apply_all(changes(objects(&self.documents())));
        if let Some(at) = self.chosen {
            let is_it = |node: &&Arc<Node>| node.display_name() == format!("n{at}");
            let node = fleet.nodes().find(is_it).unwrap().id();
            let cluster = ClusterId(fleet.clusters().next().unwrap().meta.uuid);
            let meta = Meta::new(Uuid::nil(), TagName::new(TAGS[Z]).unwrap(), Timestamp(0));
            let spec = PrimarySpec { cluster, node, since: Timestamp(0), epoch: 1 };
            fleet.apply_all([Change::Primary(Arc::new(Object { meta, spec }))]);
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

    /// Whether a task falls to a node. One that a condition leaves out there keeps its place in the order, and is done.
    fn has(&self, node: usize, task: usize) -> bool {
        self.has_tag(node, self.tasks[task].tag)
    }

    fn is_done(&self, node: usize, task: usize) -> bool {
        self.done.contains(&(node, task)) || self.nodes[node].left_out == task
    }

    /// The nodes with this tag that have the task.
    fn meant(&self, task: usize, tag: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |node| self.has_tag(*node, tag) && self.has(*node, task))
    }

    /// Those of them after which a task of another node comes: of a dependency on any of them the first by name stands for all.
    fn before(&self, (of, tag, is_any): &Cross) -> impl Iterator<Item = usize> {
        self.meant(*of, *tag).take(if *is_any { 1 } else { usize::MAX })
    }

    fn order(&self) -> BTreeSet<(Instance, Instance)> {
        let instance = |node: usize, task: usize| (format!("n{node}"), format!("t{task}"));
        let mut pairs = BTreeSet::new();
        for node in 0..self.nodes.len() {
            for (at, task) in self.tasks.iter().enumerate().filter(|(at, _)| self.has(node, *at)) {
                let own = task.requires.iter().filter(|of| self.has(node, **of)).map(|of| (node, *of));
                let others = task.crosses.iter().flat_map(|cross| self.before(cross).map(|other| (other, cross.0)));
                pairs.extend(own.chain(others).map(|(other, of)| (instance(other, of), instance(node, at))));
            }
        }
        pairs
    }

    /// What comes before a task on its own node.
    fn before_here(&self, node: usize, task: usize) -> impl Iterator<Item = usize> {
        let Task { requires, crosses, .. } = &self.tasks[task];
        let own = crosses.iter().filter(move |(_, tag, is_any)| !is_any && self.has_tag(node, *tag));
        requires.iter().copied().chain(own.map(|cross| cross.0)).filter(move |of| self.has(node, *of))
    }

    /// Whether a node is done with a task, or with all that comes before a marker there.
    fn is_past(&self, node: usize, task: usize) -> bool {
        if self.tasks[task].is_marker {
            self.before_here(node, task).all(|before| self.is_past(node, before))
        } else {
            self.is_done(node, task)
        }
    }

    /// What a node waits for before a marker and before the markers that come before it there.
    fn crosses_before(&self, node: usize, marker: usize) -> Vec<Cross> {
        let markers = self.before_here(node, marker).filter(|before| self.tasks[*before].is_marker);
        let before = markers.flat_map(|before| self.crosses_before(node, before));
        self.tasks[marker].crosses.iter().copied().chain(before).collect()
    }

    /// The nodes that have not done what a cross dependency means, each task for itself; none where any node is enough, and one has.
    fn left(&self, (of, tag, is_any): &Cross) -> BTreeSet<usize> {
        // Who is parked stands outside.
        let meant: BTreeSet<_> = self.meant(*of, *tag).filter(|other| !self.nodes[*other].is_parked).collect();
        let (done, left): (BTreeSet<_>, _) = meant.iter().partition(|other| self.is_past(**other, *of));
        if *is_any && !done.is_empty() { BTreeSet::new() } else { left }
    }

    /// Whether a marker still waits for other nodes.
    fn is_marker_behind(&self, (of, tag, _): &Cross) -> bool {
        let mut crosses = self.meant(*of, *tag).flat_map(|node| self.crosses_before(node, *of));
        self.tasks[*of].is_marker && crosses.any(|cross| !self.left(&cross).is_empty() || self.is_marker_behind(&cross))
    }

    /// What a node waits for: for each barrier that is shut, the task and, where it is no marker, the nodes that have not succeeded in it.
    fn shut(&self, node: usize) -> BTreeSet<(String, Option<BTreeSet<usize>>)> {
        let here = self.tasks.iter().enumerate().filter(|(at, _)| self.has(node, *at));
        let waits = here.flat_map(|(_, task)| &task.crosses).filter_map(|cross| {
            let left = self.left(cross);
            let is_shut = left.iter().any(|other| *other != node) || self.is_marker_behind(cross);
            is_shut.then(|| (format!("t{}", cross.0), (!self.tasks[cross.0].is_marker).then_some(left)))
        });
        waits.collect()
    }
}

/// What became of the tasks of a case.
struct Results<'a> {
    case: &'a Case,
    nodes: BTreeMap<NodeId, usize>,
}

impl TaskResults for Results<'_> {
    fn task_set(&self, _node: NodeId) -> Option<[u8; 32]> {
        Some([0; 32])
    }

    fn done(&self, node: NodeId, task: &str) -> Done {
        let is_done = self.case.is_done(self.nodes[&node], task[1..].parse().unwrap());
        if is_done { Done::Succeeded } else { Done::NotYet }
    }

    fn is_set_aside(&self, _node: NodeId) -> bool {
        false
    }

    fn has_failed(&self, _node: NodeId, _task: &str) -> bool {
        false
    }

    fn keeps_its_set(&self, _node: NodeId) -> bool {
        false
    }

    fn was_released(&self, _node: NodeId, _task: &str) -> bool {
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..ProptestConfig::default() })]

    #[test]
    fn the_order_has_the_pairs_that_the_tasks_ask_for(case in case()) {
        let answer = resolve_fleet(&case.fleet(), &ResolveCache::new()).unwrap();
        let said = serde_json::to_value(&answer).unwrap();
        let instance = |one: &Value| (one[0].as_str().unwrap().to_owned(), one[1].as_str().unwrap().to_owned());
        let pairs: Vec<_> =
            said["order"].as_array().unwrap().iter().map(|pair| (instance(&pair[0]), instance(&pair[1]))).collect();
        prop_assert_eq!(pairs.iter().cloned().collect::<BTreeSet<_>>(), case.order());
        prop_assert_eq!(pairs.len(), case.order().len(), "each pair stands once");
        for (name, node) in said["nodes"].as_object().unwrap() {
            let tasks: Vec<_> = node["tasks"].as_array().unwrap().iter().map(|task| task.as_str().unwrap()).collect();
            let at: usize = name[1..].parse().unwrap();
            let runs =
                |task: &usize| case.has(at, *task) && case.nodes[at].left_out != *task && !case.tasks[*task].is_marker;
            let expected: BTreeSet<_> = (0..TASKS).filter(runs).map(|task| format!("t{task}")).collect();
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
    fn a_barrier_is_shut_while_a_node_that_it_means_has_not_succeeded(case in case()) {
        let fleet = case.fleet();
        let number = |id: NodeId| fleet.node(id).unwrap().display_name()[1..].parse().unwrap();
        let nodes = fleet.nodes().map(|node| (node.id(), number(node.id()))).collect();
        let results = Results { case: &case, nodes };
        let cluster = ClusterId(fleet.clusters().next().unwrap().meta.uuid);
        let wave = Wave::new(&fleet, cluster, &results);
        for (id, node) in &results.nodes {
            let profile = fleet.profile(*id).unwrap();
            let shut = wave.shut_places(*id).into_iter().map(|at| {
                let task = &profile.release.task(profile.barriers[at].task).task;
                let nodes = wave.awaited(profile.hash, at).iter().map(|one| results.nodes[one]).collect();
                (task.id.clone(), (task.kind != "skipped").then_some(nodes))
            });
            prop_assert_eq!(shut.collect::<BTreeSet<_>>(), case.shut(*node), "n{}", node);
        }
    }
}
