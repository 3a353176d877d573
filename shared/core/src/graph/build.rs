//! Builds the edges between classes from the barriers of profiles, and pairs from edges.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ClusterGraph, InstancePair, NodeClass, TaskOnNode};
use crate::release::{Barrier, BarrierScope, CompiledRelease, TaskIndex};
use crate::task::Policy;

/// One end of an edge: a task of a class, or a stage, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeEnd {
    /// The index of a class, and a position among its profile's tasks.
    Task(u32, u32),
    /// The index of a stage.
    Stage(u32),
}

/// The pairs of nodes of two classes that an edge joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeScope {
    /// Every node of the first with every node of the second, but no instance with itself.
    All,
    /// Each node with itself.
    Same,
}

/// An edge of the order: `after` waits for `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassEdge {
    /// The task or stage that comes first.
    pub before: EdgeEnd,
    /// The task or stage that waits.
    pub after: EdgeEnd,
    /// The pairs of nodes that the edge joins.
    pub scope: EdgeScope,
}

impl ClusterGraph {
    /// Builds the edges from the order on each node, from barriers with `policy: all`, and from what stages wait for.
    /// `policy: any` gives single pairs instead of edges.
    pub(super) fn build_edges(&mut self, releases: &[Arc<CompiledRelease>]) {
        let mut edges = Vec::new();
        let index = TaskPositions::new(self);
        for (at, class) in (0..).zip(&self.classes) {
            let task = |position| EdgeEnd::Task(at, position);
            for (before, after) in &class.profile.edges {
                edges.push(ClassEdge { before: task(*before), after: task(*after), scope: EdgeScope::Same });
            }
            for (position, barrier) in &class.profile.waits {
                let barrier = &class.profile.barriers[*barrier as usize];
                if barrier.policy == Policy::All {
                    let opens = index.barrier_predecessors(self, &class.profile.release, barrier);
                    edges.extend(opens.map(|before| ClassEdge { before, after: task(*position), scope: EdgeScope::All }));
                }
            }
        }
        for release in releases {
            for stage in &release.stages {
                let Some(after) = index.stage(release.id(*stage)) else { continue };
                for wait in release.stage_waits(*stage) {
                    edges.extend(index.barrier_predecessors(self, release, &wait).map(|before| ClassEdge {
                        before,
                        after,
                        scope: EdgeScope::All,
                    }));
                }
            }
        }
        edges.sort_unstable();
        edges.dedup();
        // `All` sorts before `Same`, and covers each node's own pair too.
        edges.dedup_by(|later, first| (later.before, later.after) == (first.before, first.after));
        edges.retain(|edge| edge.pair_count(self) > 0);
        self.edges = edges;
        self.drop_implied();
    }

    /// Removes the single pairs that an edge already covers.
    fn drop_implied(&mut self) {
        if self.single_pairs.is_empty() {
            return;
        }
        let places = ClassByNode::new(self);
        let is_implied = |(before, after): &InstancePair| {
            let ends = (places.task_end(self, before), places.task_end(self, after));
            let (Some(first), Some(second)) = ends else { return false };
            let from = self.edges.partition_point(|edge| (edge.before, edge.after) < (first, second));
            let edge = self.edges.get(from).filter(|edge| (edge.before, edge.after) == (first, second));
            edge.is_some_and(|edge| edge.scope == EdgeScope::All || before.0 == after.0)
        };
        let singles = self.single_pairs.iter().filter(|pair| !is_implied(pair)).cloned().collect();
        self.single_pairs = singles;
    }

    /// Numbers the tasks of the classes and the stages as vertices.
    pub(super) fn vertices(&self) -> Vertices {
        let mut first = Vec::with_capacity(self.classes.len());
        let mut count = 0;
        for class in &self.classes {
            first.push(count);
            count += class.profile.tasks.len();
        }
        Vertices { first_index: first, stages: count, count: count + self.stages.len() }
    }

    /// Returns all ends that an edge can have: the tasks of each class, then the stages.
    fn ends(&self) -> impl Iterator<Item = EdgeEnd> {
        let classes = (0..).zip(&self.classes);
        let tasks =
            classes.flat_map(|(at, class)| (0..).zip(&class.profile.tasks).map(move |(position, _)| EdgeEnd::Task(at, position)));
        tasks.chain((0..).zip(&self.stages).map(|(at, _)| EdgeEnd::Stage(at)))
    }

    /// Returns the id of the task or stage.
    fn id(&self, point: EdgeEnd) -> &str {
        match point {
            EdgeEnd::Task(class, position) => {
                let profile = &self.classes[class as usize].profile;
                profile.release.id(profile.tasks[position as usize])
            }
            EdgeEnd::Stage(at) => &self.stages[at as usize],
        }
    }

    /// Returns the names of the nodes that have the task, or `None` for a stage.
    fn node_names(&self, point: EdgeEnd) -> Vec<Option<Arc<str>>> {
        match point {
            EdgeEnd::Task(class, _) => self.classes[class as usize].nodes.iter().cloned().map(Some).collect(),
            EdgeEnd::Stage(_) => vec![None],
        }
    }

    /// Returns the number of instances: one for each node that has the task, or one for a stage.
    fn width(&self, point: EdgeEnd) -> usize {
        match point {
            EdgeEnd::Task(class, _) => self.classes[class as usize].nodes.len(),
            EdgeEnd::Stage(_) => 1,
        }
    }
}

impl NodeClass {
    /// Returns the position of a task among the tasks of the class, by its id.
    fn position(&self, id: &str) -> Option<u32> {
        let ix = self.profile.release.task_index(id)?;
        self.profile.tasks.iter().position(|task| *task == ix).and_then(|at| u32::try_from(at).ok())
    }
}

impl ClassEdge {
    /// Returns the number of pairs that the edge stands for.
    pub fn pair_count(&self, graph: &ClusterGraph) -> usize {
        let (before, after) = (graph.width(self.before), graph.width(self.after));
        match self.scope {
            EdgeScope::Same => before,
            EdgeScope::All if self.before == self.after => before * after - before,
            EdgeScope::All => before * after,
        }
    }

    /// Calls `give` with each pair that the edge stands for.
    pub fn for_each_pair(&self, graph: &ClusterGraph, give: &mut dyn FnMut(InstancePair)) {
        let (first, second): (Arc<str>, Arc<str>) = (graph.id(self.before).into(), graph.id(self.after).into());
        let after = graph.node_names(self.after);
        for (at, node) in graph.node_names(self.before).into_iter().enumerate() {
            let others = match self.scope {
                EdgeScope::Same => &after[at..=at],
                EdgeScope::All => &after[..],
            };
            for other in others.iter().filter(|other| self.before != self.after || **other != node) {
                give(((node.clone(), Arc::clone(&first)), (other.clone(), Arc::clone(&second))));
            }
        }
    }
}

/// The positions of tasks and stages in the graph, by release.
struct TaskPositions {
    stages: BTreeMap<Arc<str>, u32>,
    /// Per class, the position of each task of its release. `u32::MAX` if the task is not placed on the class.
    positions: Vec<Vec<u32>>,
}

impl TaskPositions {
    fn new(graph: &ClusterGraph) -> Self {
        let positions = graph.classes.iter().map(|class| {
            let mut positions = vec![u32::MAX; class.profile.release.tasks.len()];
            for (position, ix) in (0..).zip(&class.profile.tasks) {
                positions[ix.as_usize()] = position;
            }
            positions
        });
        Self { stages: graph.stages.iter().cloned().zip(0..).collect(), positions: positions.collect() }
    }

    /// Returns the end of a stage, if a release in the cluster has the stage.
    fn stage(&self, id: &str) -> Option<EdgeEnd> {
        self.stages.get(id).copied().map(EdgeEnd::Stage)
    }

    /// Returns everything that must be done before a barrier of a release opens.
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
        let tasks = (0..).zip(&graph.classes).filter_map(move |(at, class)| {
            let is_same_release = class.profile.release.hash == release.hash;
            let is_source = match barrier.scope {
                BarrierScope::Stage => false,
                BarrierScope::Anywhere => is_same_release,
                BarrierScope::Everyone | BarrierScope::Tags(_) | BarrierScope::Roles(_) => {
                    class.profile.key.is_in_scope(release.matching.roles, &barrier.scope)
                }
            };
            let position = is_source.then(|| self.position(at, class, release, barrier.task))??;
            Some(EdgeEnd::Task(at, position))
        });
        stage.into_iter().chain(tasks)
    }

    /// Returns the position of a task of a release in a class. If the class runs another release, this is the position
    /// of the task with the same id.
    fn position(&self, at: u32, class: &NodeClass, release: &CompiledRelease, ix: TaskIndex) -> Option<u32> {
        let ix =
            if class.profile.release.hash == release.hash { ix } else { class.profile.release.task_index(release.id(ix))? };
        Some(self.positions[at as usize][ix.as_usize()]).filter(|position| *position != u32::MAX)
    }
}

/// The classes by the names of their nodes.
pub(super) struct ClassByNode(BTreeMap<Arc<str>, Vec<u32>>);

impl ClassByNode {
    pub(super) fn new(graph: &ClusterGraph) -> Self {
        let mut places: BTreeMap<Arc<str>, Vec<u32>> = BTreeMap::new();
        for (at, class) in (0..).zip(&graph.classes) {
            class.nodes.iter().for_each(|node| places.entry(Arc::clone(node)).or_default().push(at));
        }
        Self(places)
    }

    /// Returns the edge end of a task on a node, or `None` if the node does not have the task. A stage has no end here,
    /// because `policy: any` never picks a stage.
    pub(super) fn task_end(&self, graph: &ClusterGraph, (node, id): &TaskOnNode) -> Option<EdgeEnd> {
        let end_in = |at: &u32| Some(EdgeEnd::Task(*at, graph.classes[*at as usize].position(id)?));
        self.0.get(node.as_ref()?)?.iter().find_map(end_in)
    }
}

/// The numbers of the tasks and stages as vertices. The tasks come first, class by class, then the stages.
pub(super) struct Vertices {
    /// The number of the first task of each class.
    first_index: Vec<usize>,
    /// The number of the first stage.
    stages: usize,
    /// Number of all vertices.
    count: usize,
}

impl Vertices {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the stage with this number, or `None` if it is the number of a task.
    pub(super) fn stage(&self, at: usize) -> Option<usize> {
        at.checked_sub(self.stages)
    }

    /// Returns the number of a task or stage.
    pub(super) fn index_of(&self, point: EdgeEnd) -> usize {
        match point {
            EdgeEnd::Task(class, position) => self.first_index[class as usize] + position as usize,
            EdgeEnd::Stage(at) => self.stages + at as usize,
        }
    }

    /// Converts a cycle of vertices to tasks on nodes. One node represents each class. If a task waits for itself on
    /// other nodes, two nodes represent the class.
    pub(super) fn cycle_instances(&self, graph: &ClusterGraph, cycle: &[usize]) -> Vec<TaskOnNode> {
        let ends: Vec<EdgeEnd> = cycle.iter().filter_map(|at| graph.ends().find(|point| self.index_of(*point) == *at)).collect();
        let instance =
            |point: &EdgeEnd, nth: usize| (graph.node_names(*point).get(nth).cloned().flatten(), graph.id(*point).into());
        let mut path: Vec<TaskOnNode> = ends.iter().map(|point| instance(point, 0)).collect();
        if let [only] = ends.as_slice() {
            path.push(instance(only, 1));
        }
        path.extend(path.first().cloned());
        path
    }
}
