//! Builds the edges between classes from the barriers of profiles, and pairs from edges.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ClusterGraph, InstancePair, NodeClass, TaskOnNode};
use crate::release::{Barrier, BarrierScope, CompiledRelease, TaskIndex};
use crate::task::Policy;

/// A task or a stage at one end of an edge. A task at an end represents the task on all nodes of one class (the nodes
/// with the same profile).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeEnd {
    /// The index of a class, and the position of a task among the tasks of the profile of the class.
    Task(u32, u32),
    /// The stage with this index among the stages of the graph.
    Stage(u32),
}

/// The pairs of nodes that an edge joins: one of its first with one of its second class. A stage counts as one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeScope {
    /// Every node of the first class with every node of the second class. If both ends are the same task, a node is not
    /// joined with itself.
    All,
    /// Each node with itself. Both ends are tasks of the same class.
    Same,
}

/// An edge in the order of tasks: the task or stage `after` waits for `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassEdge {
    /// The task or stage that runs first.
    pub before: EdgeEnd,
    /// The task or stage that waits for `before`.
    pub after: EdgeEnd,
    /// The pairs of nodes for which one task waits for the other.
    pub scope: EdgeScope,
}

impl ClusterGraph {
    /// Builds the edges of the graph: from the order of tasks on each node, from barriers of tasks with `policy: all`,
    /// and from what stages wait for (all selected nodes, whatever the policy). A barrier of a task with `policy: any`
    /// gives single pairs instead of edges. Removes the single pairs that an edge covers.
    pub(super) fn build_edges(&mut self, releases: &[Arc<CompiledRelease>]) {
        let mut edges = Vec::new();
        let positions = TaskPositions::new(self);
        for (class_index, class) in (0..).zip(&self.classes) {
            let task = |position| EdgeEnd::Task(class_index, position);
            for (before, after) in &class.profile.edges {
                edges.push(ClassEdge { before: task(*before), after: task(*after), scope: EdgeScope::Same });
            }
            // A pair of `waits` is the position of a task, and the index of a barrier that the task waits for.
            for (position, barrier) in &class.profile.waits {
                let barrier = &class.profile.barriers[*barrier as usize];
                if barrier.policy == Policy::All {
                    let predecessors = positions.barrier_predecessors(self, &class.profile.release, barrier);
                    edges.extend(predecessors.map(|before| ClassEdge { before, after: task(*position), scope: EdgeScope::All }));
                }
            }
        }
        for release in releases {
            for stage in &release.stages {
                let Some(after) = positions.stage(release.id(*stage)) else { continue };
                for barrier in release.stage_waits(*stage) {
                    edges.extend(positions.barrier_predecessors(self, release, &barrier).map(|before| ClassEdge {
                        before,
                        after,
                        scope: EdgeScope::All,
                    }));
                }
            }
        }
        edges.sort_unstable();
        edges.dedup();
        // Of two edges with the same ends, the first is retained. `All` sorts before `Same`, and joins each node with
        // itself too, because the ends are different tasks.
        edges.dedup_by(|later_edge, first_edge| (later_edge.before, later_edge.after) == (first_edge.before, first_edge.after));
        edges.retain(|edge| edge.pair_count(self) > 0);
        self.edges = edges;
        self.remove_covered_pairs();
    }

    /// Removes the single pairs (of `policy: any`) that an edge of the graph covers too.
    fn remove_covered_pairs(&mut self) {
        if self.single_pairs.is_empty() {
            return;
        }
        let classes = ClassByNode::new(self);
        let is_implied = |(before, after): &InstancePair| {
            let ends = (classes.task_end(self, before), classes.task_end(self, after));
            let (Some(first), Some(second)) = ends else { return false };
            let edge_index = self.edges.partition_point(|edge| (edge.before, edge.after) < (first, second));
            let edge = self.edges.get(edge_index).filter(|edge| (edge.before, edge.after) == (first, second));
            // An edge with scope `Same` covers only a pair on one node. The first part of an instance is its node.
            edge.is_some_and(|edge| edge.scope == EdgeScope::All || before.0 == after.0)
        };
        let remaining_pairs = self.single_pairs.iter().filter(|pair| !is_implied(pair)).cloned().collect();
        self.single_pairs = remaining_pairs;
    }

    /// Numbers the tasks of all classes and the stages, so that a search for cycles can use the numbers as vertices.
    pub(super) fn vertices(&self) -> Vertices {
        let mut first_index = Vec::with_capacity(self.classes.len());
        let mut count = 0;
        for class in &self.classes {
            first_index.push(count);
            count += class.profile.tasks.len();
        }
        Vertices { first_index, first_stage: count, count: count + self.stages.len() }
    }

    /// Returns all possible ends of an edge: the tasks of each class, then the stages.
    fn ends(&self) -> impl Iterator<Item = EdgeEnd> {
        let classes = (0..).zip(&self.classes);
        let tasks = classes
            .flat_map(|(index, class)| (0..).zip(&class.profile.tasks).map(move |(position, _)| EdgeEnd::Task(index, position)));
        tasks.chain((0..).zip(&self.stages).map(|(index, _)| EdgeEnd::Stage(index)))
    }

    /// Returns the id of the task or stage at an end of an edge.
    fn id(&self, end: EdgeEnd) -> &str {
        match end {
            EdgeEnd::Task(class, position) => {
                let profile = &self.classes[class as usize].profile;
                profile.release.id(profile.tasks[position as usize])
            }
            EdgeEnd::Stage(index) => &self.stages[index as usize],
        }
    }

    /// Returns the names of the nodes that have the task. For a stage, which runs on no node, returns a single `None`.
    fn node_names(&self, end: EdgeEnd) -> Vec<Option<Arc<str>>> {
        match end {
            EdgeEnd::Task(class, _) => self.classes[class as usize].nodes.iter().cloned().map(Some).collect(),
            EdgeEnd::Stage(_) => vec![None],
        }
    }

    /// Returns the number of instances of an end: one for each node that has the task, or one for a stage.
    fn instance_count(&self, end: EdgeEnd) -> usize {
        match end {
            EdgeEnd::Task(class, _) => self.classes[class as usize].nodes.len(),
            EdgeEnd::Stage(_) => 1,
        }
    }
}

impl NodeClass {
    /// Returns the position of the task with this id among the tasks of the class. Returns `None` if the nodes of the
    /// class do not have the task.
    fn position(&self, id: &str) -> Option<u32> {
        let index = self.profile.release.task_index(id)?;
        self.profile.tasks.iter().position(|task| *task == index).and_then(|position| u32::try_from(position).ok())
    }
}

impl ClassEdge {
    /// Returns the number of pairs of instances that the edge joins.
    pub fn pair_count(&self, graph: &ClusterGraph) -> usize {
        let (first_width, second_width) = (graph.instance_count(self.before), graph.instance_count(self.after));
        match self.scope {
            EdgeScope::Same => first_width,
            // A node is not joined with itself.
            EdgeScope::All if self.before == self.after => first_width * second_width - first_width,
            EdgeScope::All => first_width * second_width,
        }
    }

    /// Calls `visit` with each pair of instances that the edge joins. The second instance of a pair waits for the
    /// first.
    pub fn for_each_pair(&self, graph: &ClusterGraph, visit: &mut dyn FnMut(InstancePair)) {
        let (first_id, second_id): (Arc<str>, Arc<str>) = (graph.id(self.before).into(), graph.id(self.after).into());
        let waiting_nodes = graph.node_names(self.after);
        for (index, node) in graph.node_names(self.before).into_iter().enumerate() {
            let others = match self.scope {
                // Both ends have the same class, so the nodes are in the same order.
                EdgeScope::Same => &waiting_nodes[index..=index],
                EdgeScope::All => &waiting_nodes[..],
            };
            for other in others.iter().filter(|other| self.before != self.after || **other != node) {
                visit(((node.clone(), Arc::clone(&first_id)), (other.clone(), Arc::clone(&second_id))));
            }
        }
    }
}

/// The positions of tasks and stages in a graph, for finding the ends of edges.
struct TaskPositions {
    /// The index of each stage, by its id.
    stages: BTreeMap<Arc<str>, u32>,
    /// For each class, a list by the index of a task in the release. An item is the position of the task among the
    /// tasks of the class, or `u32::MAX` if the nodes of the class do not have the task.
    positions: Vec<Vec<u32>>,
}

impl TaskPositions {
    /// Builds the positions of all tasks and stages of a graph.
    fn new(graph: &ClusterGraph) -> Self {
        let positions = graph.classes.iter().map(|class| {
            let mut positions = vec![u32::MAX; class.profile.release.tasks.len()];
            for (position, task) in (0..).zip(&class.profile.tasks) {
                positions[task.as_usize()] = position;
            }
            positions
        });
        Self { stages: graph.stages.iter().cloned().zip(0..).collect(), positions: positions.collect() }
    }

    /// Returns the end for a stage, or `None` if no release in the cluster has the stage.
    fn stage(&self, id: &str) -> Option<EdgeEnd> {
        self.stages.get(id).copied().map(EdgeEnd::Stage)
    }

    /// Returns the tasks, or the stage, that must be done before a barrier of a release opens. A barrier of scope
    /// `Anywhere` belongs to a stage or task of one release, so it waits only for nodes with that release.
    fn barrier_predecessors<'a>(
        &'a self,
        graph: &'a ClusterGraph,
        release: &'a Arc<CompiledRelease>,
        barrier: &'a Barrier,
    ) -> impl Iterator<Item = EdgeEnd> + 'a {
        let stage = match barrier.scope {
            BarrierScope::Stage => self.stage(release.id(barrier.task)),
            BarrierScope::Anywhere | BarrierScope::Everyone | BarrierScope::Tags(_) | BarrierScope::Roles(_) => None,
        };
        let tasks = (0..).zip(&graph.classes).filter_map(move |(class_index, class)| {
            let is_same_release = class.profile.release.hash == release.hash;
            let is_in_scope = match barrier.scope {
                BarrierScope::Stage => false,
                BarrierScope::Anywhere => is_same_release,
                BarrierScope::Everyone | BarrierScope::Tags(_) | BarrierScope::Roles(_) => {
                    class.profile.key.is_in_scope(release.matching.roles, &barrier.scope)
                }
            };
            let position = is_in_scope.then(|| self.position(class_index, class, release, barrier.task))??;
            Some(EdgeEnd::Task(class_index, position))
        });
        stage.into_iter().chain(tasks)
    }

    /// Returns the position of a task among the tasks of a class. If the class runs another release than `release`,
    /// this is the position of the task with the same id. Returns `None` if the nodes of the class do not have the
    /// task.
    fn position(&self, class_index: u32, class: &NodeClass, release: &CompiledRelease, task: TaskIndex) -> Option<u32> {
        let task =
            if class.profile.release.hash == release.hash { task } else { class.profile.release.task_index(release.id(task))? };
        Some(self.positions[class_index as usize][task.as_usize()]).filter(|position| *position != u32::MAX)
    }
}

/// The indexes of the classes of each node, by the name of the node.
pub(super) struct ClassByNode(BTreeMap<Arc<str>, Vec<u32>>);

impl ClassByNode {
    /// Builds the list of classes for each node name in a graph.
    pub(super) fn new(graph: &ClusterGraph) -> Self {
        let mut classes: BTreeMap<Arc<str>, Vec<u32>> = BTreeMap::new();
        for (index, class) in (0..).zip(&graph.classes) {
            class.nodes.iter().for_each(|node| classes.entry(Arc::clone(node)).or_default().push(index));
        }
        Self(classes)
    }

    /// Returns the end for a task on a node. Returns `None` if the node does not have the task. Also returns `None` for
    /// a stage, which a barrier with `policy: any` never selects.
    pub(super) fn task_end(&self, graph: &ClusterGraph, (node, id): &TaskOnNode) -> Option<EdgeEnd> {
        let end_in = |class_index: &u32| Some(EdgeEnd::Task(*class_index, graph.classes[*class_index as usize].position(id)?));
        self.0.get(node.as_ref()?)?.iter().find_map(end_in)
    }
}

/// The numbering of tasks and stages as vertices. The tasks of each class come first, in the order of the classes. The
/// stages follow.
pub(super) struct Vertices {
    /// The vertex number of the first task of each class.
    first_index: Vec<usize>,
    /// The number of the first stage, as a vertex.
    first_stage: usize,
    /// Total number of vertices.
    count: usize,
}

impl Vertices {
    /// Returns the number of vertices.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the index of the stage with this vertex number, or `None` if the number is that of a task.
    pub(super) fn stage(&self, vertex: usize) -> Option<usize> {
        vertex.checked_sub(self.first_stage)
    }

    /// Returns the vertex number of a task or stage. The tasks of a class (the nodes with the same tasks) have
    /// consecutive numbers.
    pub(super) fn index_of(&self, end: EdgeEnd) -> usize {
        match end {
            EdgeEnd::Task(class, position) => self.first_index[class as usize] + position as usize,
            EdgeEnd::Stage(index) => self.first_stage + index as usize,
        }
    }

    /// Converts a cycle of vertex numbers to tasks on nodes. The first node of each class represents the class. If a
    /// task waits for itself on other nodes, the first two nodes of the class are used. The first instance is repeated
    /// at the end, so that the cycle is closed.
    pub(super) fn cycle_instances(&self, graph: &ClusterGraph, cycle: &[usize]) -> Vec<TaskOnNode> {
        let ends: Vec<_> = cycle.iter().filter_map(|vertex| graph.ends().find(|end| self.index_of(*end) == *vertex)).collect();
        let instance =
            |end: &EdgeEnd, node_index: usize| (graph.node_names(*end).get(node_index).cloned().flatten(), graph.id(*end).into());
        let mut path: Vec<TaskOnNode> = ends.iter().map(|end| instance(end, 0)).collect();
        if let [single_end] = ends.as_slice() {
            path.push(instance(single_end, 1));
        }
        path.extend(path.first().cloned());
        path
    }
}
