//! The order and the barriers of random clusters, beside the same worked out node by node and task by task from the manifests.

#![allow(clippy::unwrap_used, reason = "outside of its tests, too, a test program may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use stemma_author::Reader;
use stemma_core::fleet::{Change, Fleet};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::object::{ClusterId, NodeId};
use stemma_core::ownership::Manager;
use stemma_core::release::compile_set;
use stemma_core::resolve::{ResolveCache, resolve_fleet};
use stemma_core::rollout::{TaskResults, Wave};

const TAGS: [&str; 3] = ["x", "y", "z"];
const TASKS: usize = 6;

/// A task: its tag; what it requires on its own node, and, by tag, on others. Both name tasks before it.
#[derive(Clone, Debug)]
struct Task {
    tag: usize,
    requires: Vec<usize>,
    crosses: Vec<(usize, usize)>,
}

/// Tasks, the tags of each node, and in which tasks which nodes have succeeded.
#[derive(Clone, Debug)]
struct Case {
    tasks: Vec<Task>,
    nodes: Vec<Vec<usize>>,
    done: BTreeSet<(usize, usize)>,
}

type Instance = (String, String);
/// A tag, tasks, and tasks with tags.
type Drawn = (usize, Vec<usize>, Vec<(usize, usize)>);

fn case() -> impl Strategy<Value = Case> {
    let task = (0..TAGS.len(), vec(0..TASKS, 0..3), vec((0..TASKS, 0..TAGS.len()), 0..3));
    let tasks = vec(task, TASKS).prop_map(|tasks| {
        let task = |(at, drawn)| {
            let (tag, requires, crosses): Drawn = drawn;
            let (requires, crosses) = (requires.into_iter(), crosses.into_iter());
            Task {
                tag,
                requires: requires.filter(|other| *other < at).collect(),
                crosses: crosses.filter(|(other, _)| *other < at).collect(),
            }
        };
        tasks.into_iter().enumerate().map(task).collect()
    });
    let nodes = vec(prop::sample::subsequence((0..TAGS.len()).collect::<Vec<_>>(), 0..=TAGS.len()), 1..5);
    let done = prop::collection::btree_set((0..5_usize, 0..TASKS), 0..12);
    (tasks, nodes, done).prop_map(|(tasks, nodes, done)| Case { tasks, nodes, done })
}

impl Case {
    fn documents(&self) -> Vec<Value> {
        let task = |(at, task): (usize, &Task)| {
            let crosses: Vec<_> =
                task.crosses.iter().map(|(of, tag)| json!({"name": format!("t{of}"), "tags": [TAGS[*tag]]})).collect();
            let requires: Vec<_> = task.requires.iter().map(|of| format!("t{of}")).collect();
            json!({
                "id": format!("t{at}"), "type": "shell", "tags": [TAGS[task.tag]], "parameters": {"script": "true"},
                "requires": requires, "cross_depends": crosses,
            })
        };
        let tasks: Vec<_> = self.tasks.iter().enumerate().map(task).collect();
        let roles: BTreeMap<_, _> = TAGS.iter().map(|tag| (*tag, json!({"tags": [tag]}))).collect();
        let tags: BTreeMap<_, _> = TAGS.iter().map(|tag| (*tag, json!({}))).collect();
        let mut documents = vec![
            json!({"kind": "Release", "name": "r", "version": "1", "roles": roles, "tags": tags, "tasks": tasks}),
            json!({"kind": "Cluster", "name": "c", "release": "r@1"}),
            json!({"kind": "NodeGroup", "cluster": "c", "name": "g"}),
        ];
        documents.extend(self.nodes.iter().enumerate().map(|(at, tags)| {
            let roles: Vec<_> = tags.iter().map(|tag| TAGS[*tag]).collect();
            json!({"kind": "Node", "name": format!("n{at}"), "nodegroup": "c/g", "roles": roles})
        }));
        documents
    }

    fn fleet(&self) -> Fleet {
        let documents: Vec<_> = self.documents().iter().map(|one| read_document(&one.to_string()).unwrap()).collect();
        let objects = assemble(&documents, &Manager::new("test").unwrap()).unwrap();
        let specs = objects.releases.iter().map(|one| (one.meta.name.clone(), one.spec.clone())).collect();
        let mut fleet = Fleet::new();
        fleet.apply_all(compile_set(&specs, &Reader).unwrap().into_values().map(Change::Release));
        fleet.apply_all(objects.clusters.into_iter().map(|one| Change::Cluster(Arc::new(one))));
        fleet.apply_all(objects.groups.into_iter().map(|one| Change::NodeGroup(Arc::new(one))));
        fleet.apply_all(objects.nodes.into_iter().map(|one| Change::Node(Arc::new(one))));
        fleet.set_loaded();
        fleet
    }

    fn has(&self, node: usize, task: usize) -> bool {
        self.nodes[node].contains(&self.tasks[task].tag)
    }

    /// The nodes with this tag that have the task.
    fn meant(&self, task: usize, tag: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |node| self.nodes[*node].contains(&tag) && self.has(*node, task))
    }

    fn order(&self) -> BTreeSet<(Instance, Instance)> {
        let instance = |node: usize, task: usize| (format!("n{node}"), format!("t{task}"));
        let mut pairs = BTreeSet::new();
        for node in 0..self.nodes.len() {
            for (at, task) in self.tasks.iter().enumerate().filter(|(at, _)| self.has(node, *at)) {
                let own = task.requires.iter().filter(|of| self.has(node, **of)).map(|of| (node, *of));
                let others = task.crosses.iter().flat_map(|(of, tag)| self.meant(*of, *tag).map(|other| (other, *of)));
                pairs.extend(own.chain(others).map(|(other, of)| (instance(other, of), instance(node, at))));
            }
        }
        pairs
    }

    /// What a node waits for: for each barrier that is shut, the task and the nodes that have not succeeded in it.
    fn shut(&self, node: usize) -> BTreeSet<(String, BTreeSet<usize>)> {
        let here = self.tasks.iter().enumerate().filter(|(at, _)| self.has(node, *at));
        let crosses = here.flat_map(|(_, task)| &task.crosses);
        let waits = crosses.map(|(of, tag)| {
            let left: BTreeSet<_> = self.meant(*of, *tag).filter(|other| !self.done.contains(&(*other, *of))).collect();
            (format!("t{of}"), left)
        });
        waits.filter(|(_, left)| left.iter().any(|other| *other != node)).collect()
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

    fn has_succeeded(&self, node: NodeId, task: &str) -> bool {
        self.case.done.contains(&(self.nodes[&node], task[1..].parse().unwrap()))
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
            let place = |task: &str| tasks.iter().position(|one| *one == task).unwrap();
            let own = pairs.iter().filter(|(first, second)| first.0 == *name && second.0 == *name);
            for (first, second) in own {
                prop_assert!(place(&first.1) < place(&second.1), "{} before {} in {:?}", first.1, second.1, tasks);
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
            let release = &fleet.profile(*id).unwrap().release;
            let shut = wave.shut(*id).into_iter().map(|(barrier, left)| {
                (release.task(barrier.task).task.id.clone(), left.iter().map(|one| results.nodes[one]).collect())
            });
            prop_assert_eq!(shut.collect::<BTreeSet<_>>(), case.shut(*node), "n{}", node);
        }
    }
}
