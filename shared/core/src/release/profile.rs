//! Profiles: the tasks of nodes of one kind, before conditions, and their order.
//!
//! Nodes whose names selectors match in the same way, under the same release, run the same tasks. So the placement, the
//! order on the node and the barriers are computed once for all of these nodes, and sent to them under one hash. A
//! profile contains no data of a single node: no label, no fact, no value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fixedbitset::FixedBitSet;

use super::cycle::topological_order;
use super::name_selector::{NamePattern, NameSelector};
use super::path::path_check_tasks;
use super::{CompiledRelease, CompiledTask, DependencyTarget, TaskIndex, TaskPlacement};
use crate::digest::{Hex, sha256};
use crate::input::{Read, Reference};
use crate::name::{Name, PRIMARY_PREFIX, TagName};
use crate::object::{PrimaryMatching, RoleMatching};
use crate::role::MatchNames;
use crate::task::{Phase, Policy};

/// The identity of a profile: the content of the release, the names that selectors match, and the primaries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[display("{}", Hex(_0))]
#[debug("ProfileHash({self})")]
pub struct ProfileHash(pub [u8; 32]);

/// The inputs that decide a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileKey {
    /// The names that selectors match against.
    pub names: MatchNames,
    /// The names that selectors of privileged tasks match against: those that operators assigned. `None` if operators
    /// assigned all of the names, or if the release has no privileged task.
    pub asserted: Option<Box<MatchNames>>,
    /// The roles, by plain name and sorted.
    pub roles: Box<[Name]>,
    /// The effective tags, by plain name and sorted.
    pub tags: Box<[TagName]>,
    /// The tags held as primary, by plain name and sorted.
    pub primaries: Box<[TagName]>,
    /// True if the node is the controller's own host.
    pub is_master: bool,
}

/// The part of a profile key that selectors are matched against: all names, or only those that operators assigned.
#[derive(Clone, Copy)]
struct SelectorInputs<'a> {
    names: &'a MatchNames,
    is_master: bool,
}

/// The tasks of nodes with the same profile key.
#[derive(Debug)]
pub struct Profile {
    /// The identity.
    pub hash: ProfileHash,
    /// The release.
    pub release: Arc<CompiledRelease>,
    /// The inputs that decided the profile.
    pub key: ProfileKey,
    /// The tasks of phase `apply` in order, including those of type `skipped`. Positions below are indexes into this
    /// list.
    pub tasks: Box<[TaskIndex]>,
    /// The tasks of phase `drain`, in order.
    pub drain: Box<[TaskIndex]>,
    /// The tasks of phase `cleanup`, in order.
    pub cleanup: Box<[TaskIndex]>,
    /// The order on the node, as pairs of positions in `tasks`. The first comes before the second. Sorted and unique.
    pub edges: Box<[(u32, u32)]>,
    /// The barriers that tasks wait for, as pairs of positions in `tasks` and in `barriers`. Sorted and unique.
    pub waits: Box<[(u32, u32)]>,
    /// The barriers that `waits` refers to.
    pub barriers: Box<[Barrier]>,
    /// The privileged tasks that names assigned by operators place on the nodes, in the order of ids.
    pub privileged: Box<[TaskIndex]>,
    /// The privileged tasks that only other names place on the nodes, in the order of ids. These do not run.
    pub not_asserted: Box<[TaskIndex]>,
    /// The references that conditions and templates of its tasks read, sorted and unique.
    pub reads: Box<[Reference]>,
    /// A cycle of tasks that wait for each other on one node, through a pattern or a dependency on the same node.
    pub cycle: Option<Box<[TaskIndex]>>,
    /// The tasks of `tasks` whose path must be checked for each node: it may be that of another task, or a template may
    /// render to a path or a program that hosts reject. In order, and empty in most releases.
    pub(crate) path_check_tasks: Box<[TaskIndex]>,
    /// True if a literal path may be that of another task.
    pub may_share_plain_paths: bool,
    /// The set of `tasks`, by index in the release.
    apply_tasks: FixedBitSet,
}

/// A point that opens when each selected node has succeeded in a task. Tasks of other nodes wait for it. Its text, with
/// the id of the task, identifies it on the controller and on hosts.
#[derive(Clone, Debug, derive_more::Display)]
#[display("{}{scope}", match policy { Policy::All => "", Policy::Any => "any of " })]
pub struct Barrier {
    /// The task.
    pub task: TaskIndex,
    /// The nodes on which the task counts.
    pub scope: BarrierScope,
    /// Whether every node must succeed, or one.
    pub policy: Policy,
}

/// The nodes that a barrier waits for. A node never waits for its own instance of the waiting task.
#[derive(Clone, Debug, derive_more::Display)]
pub enum BarrierScope {
    /// The task is a stage. The barrier opens with everything that the stage waits for.
    #[display("stage")]
    Stage,
    /// Every node that has the task, regardless of its roles and tags.
    #[display("anywhere")]
    Anywhere,
    /// Every node that has a role or a tag, never `master`.
    #[display("*")]
    Everyone,
    /// The nodes that these tags match.
    #[display("tags {_0}")]
    Tags(Arc<NameSelector>),
    /// The nodes that these roles match.
    #[display("roles {_0}")]
    Roles(Arc<NameSelector>),
}

/// What must have ended before a node passes a marker (`type: skipped`), also through other markers before it.
pub(crate) struct MarkerPredecessors<'a> {
    /// The tasks that are not markers, in order.
    pub(crate) tasks: Vec<TaskIndex>,
    /// The barriers that the marker and these markers wait for.
    pub(crate) barriers: Vec<&'a Barrier>,
}

impl ProfileKey {
    /// Returns the hash of the profile for this key under a release.
    pub fn profile_hash(&self, release: &CompiledRelease) -> ProfileHash {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&release.hash.0);
        bytes.push(u8::from(self.is_master));
        let mut list = |items: &mut dyn Iterator<Item = &str>| {
            for item in items {
                bytes.extend_from_slice(item.as_bytes());
                bytes.push(0);
            }
            bytes.push(1);
        };
        list(&mut self.names.role_names());
        list(&mut self.names.tag_names());
        list(&mut self.roles.iter().map(Name::as_str));
        list(&mut self.tags.iter().map(TagName::as_str));
        list(&mut self.primaries.iter().map(TagName::as_str));
        if let Some(asserted) = &self.asserted {
            list(&mut asserted.role_names());
            list(&mut asserted.tag_names());
        }
        ProfileHash(sha256(&bytes))
    }

    /// Returns whether the target of a cross dependency includes nodes with this key.
    pub(crate) fn is_target(&self, matching: RoleMatching, target: &DependencyTarget) -> bool {
        match target {
            DependencyTarget::Same | DependencyTarget::Stages => false,
            DependencyTarget::Everyone => self.selector_inputs().has_name() && !self.is_master,
            DependencyTarget::Tags(selector) => self.selector_inputs().matches_tags(selector),
            DependencyTarget::Roles(selector) => self.selector_inputs().matches_roles(matching, selector),
        }
    }

    /// Returns whether the scope of a barrier includes nodes with this key.
    pub(crate) fn is_in_scope(&self, matching: RoleMatching, source: &BarrierScope) -> bool {
        match source {
            BarrierScope::Stage => false,
            BarrierScope::Anywhere => true,
            BarrierScope::Everyone => self.selector_inputs().has_name() && !self.is_master,
            BarrierScope::Tags(selector) => self.selector_inputs().matches_tags(selector),
            BarrierScope::Roles(selector) => self.selector_inputs().matches_roles(matching, selector),
        }
    }

    fn selector_inputs(&self) -> SelectorInputs<'_> {
        SelectorInputs { names: &self.names, is_master: self.is_master }
    }

    /// Returns the names that operators assigned. The controller's own host does not count as `master` here, because a
    /// host that joins may choose its name itself.
    fn asserted_inputs(&self) -> SelectorInputs<'_> {
        SelectorInputs { names: self.asserted.as_deref().unwrap_or(&self.names), is_master: false }
    }
}

impl SelectorInputs<'_> {
    fn has_name(self) -> bool {
        !(self.names.roles.is_empty() && self.names.tags.is_empty())
    }

    fn matches_tags(self, selector: &NameSelector) -> bool {
        selector.matches(self.names.tag_names()) || (self.is_master && selector.can_match_master())
    }

    fn matches_roles(self, matching: RoleMatching, selector: &NameSelector) -> bool {
        let matched = match matching {
            RoleMatching::Own => selector.matches(self.names.role_names()),
            RoleMatching::Tags => selector.matches(self.names.tag_names()),
        };
        matched || (self.is_master && selector.can_match_master())
    }

    /// Returns whether a task is placed on the nodes, by its own selectors or by those of a group that lists it.
    fn is_placed(self, release: &CompiledRelease, task: &CompiledTask) -> bool {
        let by = |task: &CompiledTask| match &task.placement {
            TaskPlacement::Tags(selector) => self.matches_tags(selector),
            TaskPlacement::Roles(selector) => self.matches_roles(release.matching.roles, selector),
        };
        !task.task.is_group() && !task.task.is_stage() && (by(task) || task.groups.iter().any(|ix| by(release.task(*ix))))
    }
}

impl CompiledRelease {
    /// Returns the privileged tasks whose placement or condition can change when another node becomes primary of a tag.
    pub(crate) fn privileged_by_primary(&self, tag: &str) -> Vec<&CompiledTask> {
        let primary = format!("{PRIMARY_PREFIX}{tag}");
        let held = match self.matching.primary {
            PrimaryMatching::Adds => vec![tag, primary.as_str()],
            PrimaryMatching::Replaces => vec![primary.as_str()],
        };
        let is_placed = |task: &CompiledTask| match &task.placement {
            TaskPlacement::Tags(selector) | TaskPlacement::Roles(selector) => {
                selector.matches(held.iter().copied()) != selector.matches([tag])
            }
        };
        let is_moved = |task: &CompiledTask| is_placed(task) || task.groups.iter().any(|ix| is_placed(self.task(*ix)));
        let reads_tag = |task: &CompiledTask| {
            let mut references = task.condition.iter().flat_map(|condition| condition.references());
            references.any(|reference| is_decided_by_primary(reference.read(), tag, &held))
        };
        let privileged = self.privileged.iter().map(|ix| self.task(*ix));
        privileged.filter(|&task| is_moved(task) || reads_tag(task)).collect()
    }
}

impl Profile {
    /// Computes the profile for a key under a release.
    pub fn new(release: &Arc<CompiledRelease>, key: ProfileKey) -> Self {
        let placed: Vec<TaskIndex> = (0..)
            .map(TaskIndex)
            .zip(&release.tasks)
            .filter(|(_, task)| key.selector_inputs().is_placed(release, task))
            .map(|(ix, _)| ix)
            .collect();
        let privileged = release.privileged.iter().copied().filter(|ix| placed.binary_search(ix).is_ok());
        let (privileged, not_asserted): (Vec<_>, Vec<_>) =
            privileged.partition(|ix| key.asserted_inputs().is_placed(release, release.task(*ix)));
        let in_phase = |phase: Phase| placed.iter().copied().filter(|ix| release.task(*ix).phase() == phase).collect::<Vec<_>>();
        let apply = order_tasks(release, &key, in_phase(Phase::Apply));
        let drain = order_tasks(release, &key, in_phase(Phase::Drain));
        let cleanup = order_tasks(release, &key, in_phase(Phase::Cleanup));
        let collector = BarrierCollector::from_tasks(release, &key, &apply.tasks);
        let (may_lack_paths, may_share_plain_paths) = path_check_tasks(release, &apply.tasks);
        let cycle = [apply.cycle, drain.cycle, cleanup.cycle].into_iter().flatten().next();
        Self {
            hash: key.profile_hash(release),
            release: Arc::clone(release),
            privileged: privileged.into(),
            not_asserted: not_asserted.into(),
            reads: profile_reads(release, &placed),
            key,
            path_check_tasks: may_lack_paths,
            may_share_plain_paths,
            apply_tasks: apply.tasks.iter().map(|ix| ix.as_usize()).collect(),
            tasks: apply.tasks.into(),
            edges: apply.edges.into(),
            drain: drain.tasks.into(),
            cleanup: cleanup.tasks.into(),
            waits: collector.waits.into(),
            barriers: collector.barriers.into(),
            cycle: cycle.map(Into::into),
        }
    }

    /// Returns every task on the nodes, of all phases, in the order of ids.
    pub fn all_tasks(&self) -> Vec<TaskIndex> {
        let mut tasks: Vec<_> = self.tasks.iter().chain(&self.drain).chain(&self.cleanup).copied().collect();
        tasks.sort_unstable();
        tasks
    }

    /// Returns the index of a reference in `reads`. One of the tasks must read it.
    pub(crate) fn read_index(&self, reference: &Reference) -> u32 {
        let at = self.reads.binary_search(reference).expect("a profile reads whatever its tasks read");
        u32::try_from(at).expect("a profile has fewer reads than u32 counts")
    }

    /// Returns whether nodes with this profile need a check of their tasks' paths: two tasks may write one path, or a
    /// task may name a path or a program that hosts reject.
    pub fn should_check_paths(&self) -> bool {
        !self.path_check_tasks.is_empty()
    }

    /// Returns whether the nodes have the task, in phase `apply`.
    pub fn has_task(&self, ix: TaskIndex) -> bool {
        self.apply_tasks.contains(ix.as_usize())
    }

    /// Returns the ids of the privileged tasks that this profile has and another lacks. A task with the same id but
    /// another definition counts as another task.
    pub fn additional_privileged(&self, other: Option<&Self>) -> Vec<&str> {
        let known_definitions: BTreeSet<&[u8; 32]> =
            other.into_iter().flat_map(Self::privileged_tasks).map(|task| &task.definition).collect();
        let new = self.privileged_tasks().filter(|task| !known_definitions.contains(&task.definition));
        new.map(|task| task.task.id.as_str()).collect()
    }

    /// Returns whether a privileged task has a condition. Such a task may be on a node without running there.
    pub fn has_privileged_condition(&self) -> bool {
        self.privileged_tasks().any(|task| task.condition.is_some())
    }

    /// Returns whether a condition of a privileged task looks up other nodes.
    pub(crate) fn has_privileged_lookup(&self) -> bool {
        let conditions = self.privileged_tasks().filter_map(|task| task.condition.as_ref());
        let mut references = conditions.flat_map(|condition| condition.references());
        references.any(|reference| matches!(reference.read(), Read::Nodes { .. } | Read::Primary { .. }))
    }

    pub(crate) fn privileged_tasks(&self) -> impl Iterator<Item = &CompiledTask> {
        self.privileged.iter().map(|ix| self.release.task(*ix))
    }

    /// Returns whether a task waits for itself on other nodes of the same profile. A single node does not wait, but
    /// each further one closes a cycle.
    pub fn has_self_wait(&self) -> bool {
        self.waits.iter().any(|(at, barrier)| {
            let barrier = &self.barriers[*barrier as usize];
            barrier.task == self.tasks[*at as usize] && self.key.is_in_scope(self.release.matching.roles, &barrier.scope)
        })
    }

    /// Returns the barriers that must open before a task runs: the barriers of the task and of its predecessors on the
    /// node, each with the task that waits for it.
    pub fn barriers_before(&self, ix: TaskIndex) -> Vec<(TaskIndex, &Barrier)> {
        let waits = self.waits_before(ix);
        waits.map(|(at, barrier)| (self.tasks[*at as usize], &self.barriers[*barrier as usize])).collect()
    }

    /// Returns the tasks that wait for the selected barriers, in the order in which they run. A marker does nothing, so
    /// the tasks that follow it are returned instead. If only markers wait, the markers themselves are returned.
    pub fn tasks_waiting_at(&self, is_selected: impl Fn(&Barrier) -> bool) -> Vec<TaskIndex> {
        let is_marker = |ix: TaskIndex| self.release.task(ix).is_skipped_type();
        let selected = self.waits.iter().filter(|(_, barrier)| is_selected(&self.barriers[*barrier as usize]));
        let positions: BTreeSet<u32> = selected.map(|(at, _)| *at).collect();
        let task = |at: &u32| self.tasks[*at as usize];
        let mut after_markers: BTreeSet<u32> = positions.iter().copied().filter(|at| is_marker(task(at))).collect();
        // Edges are sorted, so those of later tasks come later in the list.
        for (first, second) in &self.edges {
            if after_markers.contains(first) {
                after_markers.insert(*second);
            }
        }
        let waits = |at: &u32| !is_marker(task(at)) && (positions.contains(at) || after_markers.contains(at));
        let waiting: Vec<TaskIndex> = (0..).take(self.tasks.len()).filter(waits).map(|at| task(&at)).collect();
        if waiting.is_empty() { positions.iter().map(task).collect() } else { waiting }
    }

    /// Returns the barriers that must open before a task runs, as indexes in `barriers`.
    pub(crate) fn barrier_indexes_before(&self, ix: TaskIndex) -> BTreeSet<usize> {
        self.waits_before(ix).map(|(_, barrier)| *barrier as usize).collect()
    }

    fn waits_before(&self, ix: TaskIndex) -> impl Iterator<Item = &(u32, u32)> {
        let before = self.predecessors_while(ix, |_| true);
        self.waits.iter().filter(move |(at, _)| before.contains(at))
    }

    /// Returns the positions of a task and its predecessors on the node. The predecessors of a task are included only
    /// if `leads_on` accepts that task.
    fn predecessors_while(&self, ix: TaskIndex, leads_on: impl Fn(TaskIndex) -> bool) -> BTreeSet<u32> {
        let is_task = |at: &u32| self.tasks[*at as usize] == ix;
        let mut positions: BTreeSet<u32> = (0..).take(self.tasks.len()).filter(is_task).collect();
        // Edges of later tasks come later in the list, so one backward pass finds all predecessors.
        for (first, second) in self.edges.iter().rev() {
            if positions.contains(second) && leads_on(self.tasks[*second as usize]) {
                positions.insert(*first);
            }
        }
        positions
    }

    /// Returns what must have ended when the node passes a marker. This must be derived from its predecessors, because
    /// a marker does not run and no host reports it.
    pub(crate) fn marker_predecessors(&self, marker: TaskIndex) -> MarkerPredecessors<'_> {
        let is_marker = |ix: TaskIndex| self.release.task(ix).is_skipped_type();
        let positions = self.predecessors_while(marker, is_marker);
        let (markers, tasks): (BTreeSet<u32>, BTreeSet<u32>) =
            positions.into_iter().partition(|at| is_marker(self.tasks[*at as usize]));
        let waits = self.waits.iter().filter(|(at, _)| markers.contains(at));
        MarkerPredecessors {
            tasks: tasks.into_iter().map(|at| self.tasks[at as usize]).collect(),
            barriers: waits.map(|(_, barrier)| &self.barriers[*barrier as usize]).collect(),
        }
    }
}

impl CompiledRelease {
    /// Returns what a stage waits for: other stages, and tasks on the nodes that have them.
    pub(crate) fn stage_waits(&self, stage: TaskIndex) -> Vec<Barrier> {
        let stage_task = self.task(stage);
        let mut waits = Vec::new();
        let mut add = |task: TaskIndex, source: BarrierScope, policy| waits.push(Barrier { task, scope: source, policy });
        for (ix, before) in stage_task.requires.iter().map(|ix| (*ix, &self.task(*ix).task)).filter(|(_, task)| !task.is_group())
        {
            add(ix, if before.is_stage() { BarrierScope::Stage } else { BarrierScope::Anywhere }, Policy::All);
        }
        for cross in &stage_task.cross_depends {
            for ix in &cross.tasks {
                match (&cross.target, self.task(*ix).task.is_stage()) {
                    (DependencyTarget::Same | DependencyTarget::Stages, true) if *ix != stage => {
                        add(*ix, BarrierScope::Stage, Policy::All);
                    }
                    (DependencyTarget::Same | DependencyTarget::Stages, _) | (_, true) => {}
                    (target, false) => add(*ix, barrier_scope(target), cross.policy),
                }
            }
        }
        for (ix, task) in (0..).map(TaskIndex).zip(&self.tasks) {
            let to_stages = |target: &DependencyTarget| match target {
                DependencyTarget::Stages => true,
                DependencyTarget::Same => task.task.is_stage(),
                DependencyTarget::Everyone | DependencyTarget::Tags(_) | DependencyTarget::Roles(_) => false,
            };
            let by_cross = task.cross_depended_by.iter().any(|cross| to_stages(&cross.target) && cross.tasks.contains(&stage));
            if ix != stage && !task.task.is_group() && (by_cross || task.required_for.contains(&stage)) {
                let source = if task.task.is_stage() { BarrierScope::Stage } else { BarrierScope::Anywhere };
                add(ix, source, Policy::All);
            }
        }
        waits
    }
}

struct TaskOrder {
    tasks: Vec<TaskIndex>,
    edges: Vec<(u32, u32)>,
    cycle: Option<Vec<TaskIndex>>,
}

/// Sorts the tasks of one phase by their dependencies on the node, and returns the edges between them and a cycle.
fn order_tasks(release: &CompiledRelease, key: &ProfileKey, mut tasks: Vec<TaskIndex>) -> TaskOrder {
    let positions: BTreeMap<TaskIndex, usize> = tasks.iter().copied().zip(0..).collect();
    let mut edges = Vec::new();
    for (at, ix) in tasks.iter().enumerate() {
        let task = release.task(*ix);
        let local = |cross: &&super::CompiledCross| {
            let same = matches!(cross.target, DependencyTarget::Same);
            same || (cross.policy == Policy::All && key.is_target(release.matching.roles, &cross.target))
        };
        let before = task.cross_depends.iter().filter(local).flat_map(|cross| &*cross.tasks).chain(&task.requires);
        edges.extend(before.filter_map(|ix| positions.get(ix)).map(|before| (*before, at)));
        let after = task.cross_depended_by.iter().filter(local).flat_map(|cross| &*cross.tasks).chain(&task.required_for);
        edges.extend(after.filter_map(|ix| positions.get(ix)).map(|after| (at, *after)));
    }
    edges.retain(|(before, after)| before != after);
    let (order, cycle) = match topological_order(tasks.len(), &edges, |at| release.task(tasks[at]).rank) {
        Ok(order) => (order, None),
        Err(cycle) => ((0..tasks.len()).collect(), Some(cycle.into_iter().map(|at| tasks[at]).collect())),
    };
    let mut index = vec![0; tasks.len()];
    for (to, from) in order.iter().enumerate() {
        index[*from] = u32::try_from(to).expect("a release has fewer tasks than u32 counts");
    }
    let mut edges: Vec<_> = edges.into_iter().map(|(before, after)| (index[before], index[after])).collect();
    edges.sort_unstable();
    edges.dedup();
    tasks = order.into_iter().map(|at| tasks[at]).collect();
    TaskOrder { tasks, edges, cycle }
}

/// Collects the barriers of a profile without duplicates.
#[derive(Default)]
struct BarrierCollector {
    waits: Vec<(u32, u32)>,
    barriers: Vec<Barrier>,
    indexes: BTreeMap<(TaskIndex, String, bool), u32>,
}

impl BarrierCollector {
    fn from_tasks(release: &CompiledRelease, key: &ProfileKey, tasks: &[TaskIndex]) -> Self {
        let mut collector = Self::default();
        for (at, ix) in (0..).zip(tasks) {
            collector.add_declared(release, at, *ix);
        }
        let positions: BTreeMap<TaskIndex, u32> = tasks.iter().copied().zip(0..).collect();
        for (ix, task) in (0..).map(TaskIndex).zip(&release.tasks).filter(|(_, task)| !task.task.is_group()) {
            let successors = task.required_for.iter().filter(|_| task.task.is_stage());
            for at in successors.filter_map(|after| positions.get(after)) {
                collector.add(*at, ix, BarrierScope::Stage, Policy::All);
            }
            for cross in task.cross_depended_by.iter().filter(|cross| cross.policy == Policy::All) {
                if key.is_target(release.matching.roles, &cross.target) {
                    let source = if task.task.is_stage() { BarrierScope::Stage } else { BarrierScope::Anywhere };
                    let after = cross.tasks.iter().filter(|after| **after != ix || !task.task.is_stage());
                    for at in after.filter_map(|after| positions.get(after)) {
                        collector.add(*at, ix, source.clone(), Policy::All);
                    }
                }
            }
        }
        collector.waits.sort_unstable();
        collector.waits.dedup();
        collector
    }

    /// Adds the barriers that the task itself declares.
    fn add_declared(&mut self, release: &CompiledRelease, at: u32, ix: TaskIndex) {
        let task = release.task(ix);
        for stage in task.requires.iter().filter(|ix| release.task(**ix).task.is_stage()) {
            self.add(at, *stage, BarrierScope::Stage, Policy::All);
        }
        for cross in &task.cross_depends {
            for before in &cross.tasks {
                match (&cross.target, release.task(*before).task.is_stage()) {
                    (DependencyTarget::Stages, true) => self.add(at, *before, BarrierScope::Stage, Policy::All),
                    (DependencyTarget::Same | DependencyTarget::Stages, _) | (_, true) => {}
                    (target, false) => self.add(at, *before, barrier_scope(target), cross.policy),
                }
            }
        }
    }

    /// Adds a barrier for which the task at a position waits. Equal barriers are stored once.
    fn add(&mut self, at: u32, task: TaskIndex, source: BarrierScope, policy: Policy) {
        let next = u32::try_from(self.barriers.len()).expect("a release has fewer barriers than u32 counts");
        let key = (task, source.to_string(), policy == Policy::Any);
        let barrier = *self.indexes.entry(key).or_insert(next);
        if barrier == next {
            self.barriers.push(Barrier { task, scope: source, policy });
        }
        self.waits.push((at, barrier));
    }
}

/// Returns the nodes for which a barrier waits if a cross dependency has this target.
fn barrier_scope(target: &DependencyTarget) -> BarrierScope {
    match target {
        DependencyTarget::Everyone | DependencyTarget::Same | DependencyTarget::Stages => BarrierScope::Everyone,
        DependencyTarget::Tags(selector) => BarrierScope::Tags(Arc::clone(selector)),
        DependencyTarget::Roles(selector) => BarrierScope::Roles(Arc::clone(selector)),
    }
}

/// Returns the references that the templates and conditions of these tasks read, sorted and unique.
fn profile_reads(release: &CompiledRelease, placed: &[TaskIndex]) -> Box<[Reference]> {
    let mut reads = Vec::new();
    for ix in placed {
        let task = release.task(*ix);
        reads.extend(task.references.iter().cloned());
        reads.extend(task.condition.iter().flat_map(|condition| condition.references()).cloned());
    }
    reads.sort();
    reads.dedup();
    reads.into()
}

/// Returns whether the value of a read may change when another node becomes primary of a tag. `held` are the names that
/// the primary has for the tag.
fn is_decided_by_primary(read: &Read, tag: &str, held: &[&str]) -> bool {
    match read {
        Read::Primary { tag: read, .. } => **read == *tag,
        Read::Tag(name) => held.contains(&&**name) != (**name == *tag),
        Read::Nodes { query, .. } => query.names().any(|name| {
            NamePattern::new(name).is_ok_and(|pattern| held.iter().any(|held| pattern.matches(held)) != pattern.matches(tag))
        }),
        Read::Label(_)
        | Read::LabelsWithPrefix(_)
        | Read::Parameter(_)
        | Read::Trait(_)
        | Read::Fact(_)
        | Read::Node(_)
        | Read::Cluster(_)
        | Read::Secret(_) => false,
    }
}
