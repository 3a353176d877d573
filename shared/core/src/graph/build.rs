//! From the barriers of profiles to edges between classes, and back to pairs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Class, ClusterGraph, Instance, Pair};
use crate::release::{Barrier, CompiledRelease, Source, TaskIx};
use crate::task::Policy;

/// One end of an edge: a task of a class, or a stage, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// A class, and a position among its profile's tasks.
    Task(u32, u32),
    /// A stage.
    Stage(u32),
}

/// Which nodes of the two classes an edge joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// Every node of the one with every node of the other, an instance with itself left out.
    All,
    /// Each node with itself.
    Same,
}

/// What comes first, and what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassEdge {
    /// The first.
    pub before: Point,
    /// The second.
    pub after: Point,
    /// Which nodes.
    pub reach: Reach,
}

impl ClusterGraph {
    pub(super) fn build_edges(&mut self, releases: &[Arc<CompiledRelease>]) {
        let mut edges = Vec::new();
        let index = Index::new(self);
        for (at, class) in (0..).zip(&self.classes) {
            let task = |position| Point::Task(at, position);
            for (before, after) in &class.profile.edges {
                edges.push(ClassEdge { before: task(*before), after: task(*after), reach: Reach::Same });
            }
            for (position, barrier) in &class.profile.waits {
                let barrier = &class.profile.barriers[*barrier as usize];
                if barrier.policy == Policy::All {
                    let opens = index.opens(self, &class.profile.release, barrier);
                    edges.extend(opens.map(|before| ClassEdge { before, after: task(*position), reach: Reach::All }));
                }
            }
        }
        for release in releases {
            for stage in &release.stages {
                let Some(after) = index.stage(release.id(*stage)) else { continue };
                for wait in release.stage_waits(*stage) {
                    edges.extend(index.opens(self, release, &wait).map(|before| ClassEdge {
                        before,
                        after,
                        reach: Reach::All,
                    }));
                }
            }
        }
        edges.sort_unstable();
        edges.dedup();
        // `All` sorts before `Same`, and says as much about each node's own.
        edges.dedup_by(|later, first| (later.before, later.after) == (first.before, first.after));
        edges.retain(|edge| edge.pair_count(self) > 0);
        self.edges = edges;
        self.drop_implied();
    }

    /// Takes out single pairs that an edge stands for anyway.
    fn drop_implied(&mut self) {
        if self.singles.is_empty() {
            return;
        }
        let places = Places::new(self);
        let is_implied = |(before, after): &Pair| {
            let ends = (places.find(self, before), places.find(self, after));
            let (Some(first), Some(second)) = ends else { return false };
            let from = self.edges.partition_point(|edge| (edge.before, edge.after) < (first, second));
            let edge = self.edges.get(from).filter(|edge| (edge.before, edge.after) == (first, second));
            edge.is_some_and(|edge| edge.reach == Reach::All || before.0 == after.0)
        };
        let singles = self.singles.iter().filter(|pair| !is_implied(pair)).cloned().collect();
        self.singles = singles;
    }

    pub(super) fn vertices(&self) -> Vertices {
        let mut first = Vec::with_capacity(self.classes.len());
        let mut count = 0;
        for class in &self.classes {
            first.push(count);
            count += class.profile.tasks.len();
        }
        Vertices { first, stages: count, count: count + self.stages.len() }
    }

    fn points(&self) -> impl Iterator<Item = Point> {
        let classes = (0..).zip(&self.classes);
        let tasks = classes.flat_map(|(at, class)| {
            (0..).zip(&class.profile.tasks).map(move |(position, _)| Point::Task(at, position))
        });
        tasks.chain((0..).zip(&self.stages).map(|(at, _)| Point::Stage(at)))
    }

    fn id(&self, point: Point) -> &str {
        match point {
            Point::Task(class, position) => {
                let profile = &self.classes[class as usize].profile;
                profile.release.id(profile.tasks[position as usize])
            }
            Point::Stage(at) => &self.stages[at as usize],
        }
    }

    fn node_names(&self, point: Point) -> Vec<Option<Arc<str>>> {
        match point {
            Point::Task(class, _) => self.classes[class as usize].nodes.iter().cloned().map(Some).collect(),
            Point::Stage(_) => vec![None],
        }
    }

    fn width(&self, point: Point) -> usize {
        match point {
            Point::Task(class, _) => self.classes[class as usize].nodes.len(),
            Point::Stage(_) => 1,
        }
    }
}

impl Class {
    fn position(&self, id: &str) -> Option<u32> {
        let ix = self.profile.release.find(id)?;
        self.profile.tasks.iter().position(|own| *own == ix).and_then(|at| u32::try_from(at).ok())
    }
}

impl ClassEdge {
    /// How many pairs it stands for.
    pub fn pair_count(&self, graph: &ClusterGraph) -> usize {
        let (before, after) = (graph.width(self.before), graph.width(self.after));
        match self.reach {
            Reach::Same => before,
            Reach::All if self.before == self.after => before * after - before,
            Reach::All => before * after,
        }
    }

    /// Gives every pair that it stands for.
    pub fn pairs(&self, graph: &ClusterGraph, give: &mut dyn FnMut(Pair)) {
        let (first, second): (Arc<str>, Arc<str>) = (graph.id(self.before).into(), graph.id(self.after).into());
        let after = graph.node_names(self.after);
        for (at, node) in graph.node_names(self.before).into_iter().enumerate() {
            let others = match self.reach {
                Reach::Same => &after[at..=at],
                Reach::All => &after[..],
            };
            for other in others.iter().filter(|other| self.before != self.after || **other != node) {
                give(((node.clone(), Arc::clone(&first)), (other.clone(), Arc::clone(&second))));
            }
        }
    }
}

/// Where tasks stand, by release.
struct Index {
    stages: BTreeMap<Arc<str>, u32>,
    /// Per class, the position of each task of its release; `u32::MAX`: it does not fall there.
    positions: Vec<Vec<u32>>,
}

impl Index {
    fn new(graph: &ClusterGraph) -> Self {
        let positions = graph.classes.iter().map(|class| {
            let mut positions = vec![u32::MAX; class.profile.release.tasks.len()];
            for (position, ix) in (0..).zip(&class.profile.tasks) {
                positions[ix.at()] = position;
            }
            positions
        });
        Self { stages: graph.stages.iter().cloned().zip(0..).collect(), positions: positions.collect() }
    }

    fn stage(&self, id: &str) -> Option<Point> {
        self.stages.get(id).copied().map(Point::Stage)
    }

    /// Everything that must be done before a barrier of a release opens.
    fn opens<'a>(
        &'a self,
        graph: &'a ClusterGraph,
        release: &'a Arc<CompiledRelease>,
        barrier: &'a Barrier,
    ) -> impl Iterator<Item = Point> + 'a {
        let stage = match barrier.source {
            Source::Stage => self.stage(release.id(barrier.task)),
            Source::Anywhere | Source::Everyone | Source::Tags(_) | Source::Roles(_) => None,
        };
        let tasks = (0..).zip(&graph.classes).filter_map(move |(at, class)| {
            let own = class.profile.release.hash == release.hash;
            let is_source = match barrier.source {
                Source::Stage => false,
                Source::Anywhere => own,
                Source::Everyone | Source::Tags(_) | Source::Roles(_) => {
                    class.profile.place.is_source(release.matching.roles, &barrier.source)
                }
            };
            let position = is_source.then(|| self.position(at, class, release, barrier.task))??;
            Some(Point::Task(at, position))
        });
        stage.into_iter().chain(tasks)
    }

    /// The position of a task in a class. The class may run another release; then its task of the same id is meant.
    fn position(&self, at: u32, class: &Class, release: &CompiledRelease, ix: TaskIx) -> Option<u32> {
        let ix =
            if class.profile.release.hash == release.hash { ix } else { class.profile.release.find(release.id(ix))? };
        Some(self.positions[at as usize][ix.at()]).filter(|position| *position != u32::MAX)
    }
}

/// The classes by the names of their nodes.
pub(super) struct Places(BTreeMap<Arc<str>, Vec<u32>>);

impl Places {
    pub(super) fn new(graph: &ClusterGraph) -> Self {
        let mut places: BTreeMap<Arc<str>, Vec<u32>> = BTreeMap::new();
        for (at, class) in (0..).zip(&graph.classes) {
            class.nodes.iter().for_each(|node| places.entry(Arc::clone(node)).or_default().push(at));
        }
        Self(places)
    }

    /// Where a task of a node stands: what is picked of many is no stage.
    pub(super) fn find(&self, graph: &ClusterGraph, (node, id): &Instance) -> Option<Point> {
        let found = |at: &u32| Some(Point::Task(*at, graph.classes[*at as usize].position(id)?));
        self.0.get(node.as_ref()?)?.iter().find_map(found)
    }
}

/// The classes' tasks and the stages, numbered.
pub(super) struct Vertices {
    first: Vec<usize>,
    stages: usize,
    count: usize,
}

impl Vertices {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Which stage a number means, if it means one.
    pub(super) fn stage(&self, at: usize) -> Option<usize> {
        at.checked_sub(self.stages)
    }

    pub(super) fn at(&self, point: Point) -> usize {
        match point {
            Point::Task(class, position) => self.first[class as usize] + position as usize,
            Point::Stage(at) => self.stages + at as usize,
        }
    }

    /// One node of each class stands for it; a task that waits for itself on other nodes takes two.
    pub(super) fn spell(&self, graph: &ClusterGraph, cycle: &[usize]) -> Vec<Instance> {
        let points: Vec<Point> =
            cycle.iter().filter_map(|at| graph.points().find(|point| self.at(*point) == *at)).collect();
        let named =
            |point: &Point, nth: usize| (graph.node_names(*point).get(nth).cloned().flatten(), graph.id(*point).into());
        let mut path: Vec<Instance> = points.iter().map(|point| named(point, 0)).collect();
        if let [only] = points.as_slice() {
            path.push(named(only, 1));
        }
        path.extend(path.first().cloned());
        path
    }
}
