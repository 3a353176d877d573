//! Profiles: the tasks of nodes of one kind, before conditions, and their order.
//!
//! Nodes of one release with the same [`ProfileKey`] have the same tasks. So the placement of tasks, their order on the
//! node and the barriers are computed once for all of these nodes, and sent to them under one hash. A profile contains
//! no data of a single node: no label, no fact, no value.

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
use crate::task::{KnownTypes, ObjectDemands, Phase, Policy, task_type};

/// The identity of a profile: a SHA-256 hash of the release's content and of all properties in the [`ProfileKey`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display, derive_more::Debug)]
#[display("{}", Hex(_0))]
#[debug("ProfileHash({self})")]
pub struct ProfileHash(pub [u8; 32]);

/// The properties of a node that decide its profile under a release.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileKey {
    /// The names of roles and tags that selectors are matched against.
    pub names: MatchNames,
    /// The names that selectors of privileged tasks are matched against. These are the names that operators gave to the
    /// node: its roles, the tags that were assigned by hand, and the tags that one of its roles is declared to produce.
    /// A tag that only an extension adds is omitted. `None` if no tag is omitted, or if the release has no privileged
    /// task.
    pub asserted: Option<Box<MatchNames>>,
    /// The roles of the node, without the prefix `primary-`, sorted.
    pub roles: Box<[Name]>,
    /// The effective tags of the node, without the prefix `primary-`, sorted.
    pub tags: Box<[TagName]>,
    /// The tags that the node holds as primary, without the prefix `primary-`, sorted.
    pub primaries: Box<[TagName]>,
    /// True if the node is the controller's own host, which has the name `master`.
    pub is_master: bool,
}

/// The part of a profile key that selectors are matched against: all names, or only those of [`ProfileKey::asserted`].
#[derive(Clone, Copy)]
struct SelectorInputs<'a> {
    names: &'a MatchNames,
    is_master: bool,
}

/// The tasks of nodes with the same profile key.
#[derive(Debug)]
pub struct Profile {
    /// The identity of the profile.
    pub hash: ProfileHash,
    /// The release of the nodes, or another release with the same content.
    pub release: Arc<CompiledRelease>,
    /// The properties of the nodes that decided the profile.
    pub key: ProfileKey,
    /// The ordinary tasks (those of phase `apply`) in order, including those of type `skipped`. The positions in
    /// `edges` and `waits` are indexes into this list.
    pub tasks: Box<[TaskIndex]>,
    /// The tasks of phase `drain`, which are to run before a disruptive task set, in order. No host runs them yet.
    pub drain: Box<[TaskIndex]>,
    /// The tasks of phase `cleanup`, which are to run when the node is deleted, in order. No host runs them yet.
    pub cleanup: Box<[TaskIndex]>,
    /// The tasks that a task of `tasks` names in `on_unassign` and that are not in `tasks` themselves, in the order of
    /// ids. Hosts get them with the profile, so that a host can run them once when the task that names them is no longer
    /// placed there, also without a controller. A privileged task is listed only if a privileged task names it that an
    /// operator placed on the nodes.
    pub unassign: Box<[TaskIndex]>,
    /// The order on the node, as pairs of positions in `tasks`. The first task of a pair runs before the second. Sorted
    /// and unique.
    pub edges: Box<[(u32, u32)]>,
    /// The barriers that tasks wait for. A pair is the position of a task in `tasks` and that of a barrier in
    /// `barriers`. Sorted and unique.
    pub waits: Box<[(u32, u32)]>,
    /// The barriers that `waits` refers to.
    pub barriers: Box<[Barrier]>,
    /// The privileged tasks that are placed on the nodes by names that operators gave to them, and those of `unassign`, in
    /// the order of ids.
    pub privileged: Box<[TaskIndex]>,
    /// The privileged tasks that are placed on the nodes only by a tag that an extension adds, or by the name `master`,
    /// in the order of ids. These tasks do not run.
    pub not_asserted: Box<[TaskIndex]>,
    /// The references that conditions and templates of the profile's tasks read, sorted and unique.
    pub reads: Box<[Reference]>,
    /// Tasks that wait for each other on one node, through a pattern or a cross dependency on the same node. `None` if
    /// there are no such tasks.
    pub cycle: Option<Box<[TaskIndex]>>,
    /// The tasks whose paths must be checked for each node, in the order of `tasks`. The path of such a task may equal,
    /// contain or lie below the path of another task, or a template of the task may render to a path or program that
    /// hosts reject. Empty in most releases.
    pub(crate) path_check_tasks: Box<[TaskIndex]>,
    /// The tasks of `tasks` and `unassign` that an agent does not know if it declares no task types. Empty if all tasks have
    /// a type and parameters that agents of every version know.
    pub(crate) later_tasks: Box<[TaskIndex]>,
    /// The tasks that manage packages, units, users or groups, in the order of `tasks`, if two of them want one of these in
    /// different ways. Empty in most releases.
    pub(crate) conflicting_tasks: Box<[TaskIndex]>,
    /// True if the literal path of a task may equal, contain or lie below the path of another task.
    pub may_share_plain_paths: bool,
    /// The tasks of `tasks` as a set of their indexes in the release.
    apply_tasks: FixedBitSet,
}

/// A dependency of tasks of a node on a stage, or on a task of the nodes in a scope. The barrier opens when that task
/// has succeeded on all of these nodes or on any one, or when everything that the stage waits for has succeeded. The
/// displayed text of the barrier (policy and scope) and the id of its task together identify the barrier on the
/// controller and on hosts.
#[derive(Clone, Debug, derive_more::Display)]
#[display("{}{scope}", match policy { Policy::All => "", Policy::Any => "any of " })]
pub struct Barrier {
    /// The task that must succeed, or the stage.
    pub task: TaskIndex,
    /// The nodes on which the task must succeed, or `Stage` for a stage.
    pub scope: BarrierScope,
    /// The number of these nodes on which the task must succeed: all, or any one.
    pub policy: Policy,
}

/// The nodes that a barrier waits for, all of the same cluster. Only nodes on which the barrier's task is placed count.
/// If a task waits for itself on several nodes, a node does not wait for its own run of the task.
#[derive(Clone, Debug, derive_more::Display)]
pub enum BarrierScope {
    /// No node, because the task is a stage. The barrier opens when everything that the stage waits for has succeeded.
    #[display("stage")]
    Stage,
    /// Every node with the same release that has the task, regardless of its roles and tags.
    #[display("anywhere")]
    Anywhere,
    /// Every node that has a role or a tag, except the controller's own host (`master`).
    #[display("*")]
    Everyone,
    /// The nodes that these tags match.
    #[display("tags {_0}")]
    Tags(Arc<NameSelector>),
    /// The nodes that these roles match.
    #[display("roles {_0}")]
    Roles(Arc<NameSelector>),
}

/// The tasks and barriers that a node must complete before it passes a marker, a task of type `skipped` that runs
/// nothing. A marker before the marker is replaced by the tasks and barriers before it.
pub(crate) struct MarkerPredecessors<'a> {
    /// The tasks directly before the marker that are not markers, in order.
    pub(crate) tasks: Vec<TaskIndex>,
    /// The barriers that the marker, or a marker before it, waits for.
    pub(crate) barriers: Vec<&'a Barrier>,
}

impl ProfileKey {
    /// Returns the hash of the profile for this key under a release. In the hashed bytes, 0 ends each name and 1 ends
    /// each list, so different keys give different bytes.
    pub fn profile_hash(&self, release: &CompiledRelease) -> ProfileHash {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&release.hash.0);
        bytes.push(u8::from(self.is_master));
        let mut add_list = |items: &mut dyn Iterator<Item = &str>| {
            for item in items {
                bytes.extend_from_slice(item.as_bytes());
                bytes.push(0);
            }
            bytes.push(1);
        };
        add_list(&mut self.names.role_names());
        add_list(&mut self.names.tag_names());
        add_list(&mut self.roles.iter().map(Name::as_str));
        add_list(&mut self.tags.iter().map(TagName::as_str));
        add_list(&mut self.primaries.iter().map(TagName::as_str));
        if let Some(asserted) = &self.asserted {
            add_list(&mut asserted.role_names());
            add_list(&mut asserted.tag_names());
        }
        ProfileHash(sha256(&bytes))
    }

    /// Returns whether the target of a cross dependency includes nodes with this key by their roles or tags.
    pub(crate) fn is_target(&self, matching: RoleMatching, target: &DependencyTarget) -> bool {
        match target {
            DependencyTarget::Same | DependencyTarget::Stages => false,
            DependencyTarget::Everyone => self.selector_inputs().has_name() && !self.is_master,
            DependencyTarget::Tags(selector) => self.selector_inputs().matches_tags(selector),
            DependencyTarget::Roles(selector) => self.selector_inputs().matches_roles(matching, selector),
        }
    }

    /// Returns whether the scope of a barrier includes nodes with this key. For `Anywhere`, the caller checks that the
    /// nodes have the same release.
    pub(crate) fn is_in_scope(&self, matching: RoleMatching, scope: &BarrierScope) -> bool {
        match scope {
            BarrierScope::Stage => false,
            BarrierScope::Anywhere => true,
            BarrierScope::Everyone => self.selector_inputs().has_name() && !self.is_master,
            BarrierScope::Tags(selector) => self.selector_inputs().matches_tags(selector),
            BarrierScope::Roles(selector) => self.selector_inputs().matches_roles(matching, selector),
        }
    }

    /// Returns the inputs of selectors with all names.
    fn selector_inputs(&self) -> SelectorInputs<'_> {
        SelectorInputs { names: &self.names, is_master: self.is_master }
    }

    /// Returns the inputs of selectors with only the names that operators gave to the node, for privileged tasks (see
    /// `asserted`). The node does not count as `master` here, because a host that joins may choose its name itself.
    fn asserted_inputs(&self) -> SelectorInputs<'_> {
        SelectorInputs { names: self.asserted.as_deref().unwrap_or(&self.names), is_master: false }
    }
}

impl SelectorInputs<'_> {
    /// Returns whether the nodes have a role or a tag.
    fn has_name(self) -> bool {
        !(self.names.roles.is_empty() && self.names.tags.is_empty())
    }

    /// Returns whether a tag selector matches the nodes.
    fn matches_tags(self, selector: &NameSelector) -> bool {
        selector.matches(self.names.tag_names()) || (self.is_master && selector.can_match_master())
    }

    /// Returns whether a role selector matches nodes with this profile key, by their roles or their tags (`matching`).
    fn matches_roles(self, matching: RoleMatching, selector: &NameSelector) -> bool {
        let matched = match matching {
            RoleMatching::Own => selector.matches(self.names.role_names()),
            RoleMatching::Tags => selector.matches(self.names.tag_names()),
        };
        matched || (self.is_master && selector.can_match_master())
    }

    /// Returns whether a task is placed on the nodes, by its own selector or by that of a group that lists the task.
    /// Groups and stages are placed on no node.
    fn is_placed(self, release: &CompiledRelease, task: &CompiledTask) -> bool {
        let admits = |task: &CompiledTask| match &task.placement {
            TaskPlacement::Tags(selector) => self.matches_tags(selector),
            TaskPlacement::Roles(selector) => self.matches_roles(release.matching.roles, selector),
        };
        !task.task.is_group() && !task.task.is_stage() && (admits(task) || task.groups.iter().any(|ix| admits(release.task(*ix))))
    }
}

impl CompiledRelease {
    /// Returns the privileged tasks that a node can gain or lose when it becomes primary of a tag: their placement or
    /// their condition depends on the primary.
    pub(crate) fn privileged_by_primary(&self, tag: &str) -> Vec<&CompiledTask> {
        let primary_name = format!("{PRIMARY_PREFIX}{tag}");
        let primary_names = match self.matching.primary {
            PrimaryMatching::Adds => vec![tag, primary_name.as_str()],
            PrimaryMatching::Replaces => vec![primary_name.as_str()],
        };
        let is_changed = |task: &CompiledTask| match &task.placement {
            TaskPlacement::Tags(selector) | TaskPlacement::Roles(selector) => {
                // A node that has the tag and is not its primary has only the name `tag`.
                selector.matches(primary_names.iter().copied()) != selector.matches([tag])
            }
        };
        let is_moved = |task: &CompiledTask| is_changed(task) || task.groups.iter().any(|ix| is_changed(self.task(*ix)));
        let reads_tag = |task: &CompiledTask| {
            let mut references = task.condition.iter().flat_map(|condition| condition.references());
            references.any(|reference| is_decided_by_primary(reference.read(), tag, &primary_names))
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
        let (mut privileged, not_asserted): (Vec<_>, Vec<_>) =
            privileged.partition(|ix| key.asserted_inputs().is_placed(release, release.task(*ix)));
        let in_phase = |phase: Phase| placed.iter().copied().filter(|ix| release.task(*ix).phase() == phase).collect::<Vec<_>>();
        let apply = order_tasks(release, &key, in_phase(Phase::Apply));
        let drain = order_tasks(release, &key, in_phase(Phase::Drain));
        let cleanup = order_tasks(release, &key, in_phase(Phase::Cleanup));
        let collector = BarrierCollector::from_tasks(release, &key, &apply.tasks);
        let (tasks_with_path_check, may_share_plain_paths) = path_check_tasks(release, &apply.tasks);
        let cycle = [apply.cycle, drain.cycle, cleanup.cycle].into_iter().flatten().next();
        let unassign = unassign_tasks(release, &apply.tasks, &privileged);
        privileged.extend(unassign.iter().copied().filter(|ix| release.is_privileged(*ix)));
        privileged.sort_unstable();
        privileged.dedup();
        let later_tasks = later_tasks(release, apply.tasks.iter().chain(&unassign));
        let reads = profile_reads(release, placed.iter().chain(&unassign));
        Self {
            hash: key.profile_hash(release),
            release: Arc::clone(release),
            privileged: privileged.into(),
            not_asserted: not_asserted.into(),
            reads,
            unassign: unassign.into(),
            key,
            path_check_tasks: tasks_with_path_check,
            later_tasks,
            may_share_plain_paths,
            conflicting_tasks: conflicting_tasks(release, &apply.tasks),
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

    /// Returns every task that is placed on the nodes, of all phases, and those of `unassign`, in the order of ids.
    pub fn all_tasks(&self) -> Vec<TaskIndex> {
        let mut tasks: Vec<_> = self.placed_tasks().chain(self.unassign.iter().copied()).collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }

    /// Returns every task that is placed on the nodes, of all phases.
    pub fn placed_tasks(&self) -> impl Iterator<Item = TaskIndex> {
        self.tasks.iter().chain(&self.drain).chain(&self.cleanup).copied()
    }

    /// Returns the tasks of phase `apply` that name a task in `on_unassign`.
    pub fn tasks_that_unassign(&self, ix: TaskIndex) -> impl Iterator<Item = TaskIndex> {
        self.tasks.iter().copied().filter(move |task| self.release.task(*task).on_unassign == Some(ix))
    }

    /// Returns the index of a reference in `reads`. One of the profile's tasks must read the reference.
    pub(crate) fn read_index(&self, reference: &Reference) -> u32 {
        let position = self.reads.binary_search(reference).expect("a profile reads whatever its tasks read");
        u32::try_from(position).expect("a profile has fewer reads than u32 counts")
    }

    /// Returns whether nodes with this profile need a check of their tasks' paths: the paths of two tasks may be equal
    /// or one below the other, or a task may name a path or a program that hosts reject.
    pub fn should_check_paths(&self) -> bool {
        !self.path_check_tasks.is_empty()
    }

    /// Returns whether tasks of a node with this profile may want one object in different ways.
    pub fn may_have_conflicts(&self) -> bool {
        !self.conflicting_tasks.is_empty()
    }

    /// Returns whether a task is one of the profile's tasks of phase `apply`.
    pub fn has_task(&self, ix: TaskIndex) -> bool {
        self.apply_tasks.contains(ix.as_usize())
    }

    /// Returns the ids of the privileged tasks that this profile has and `other` lacks. A task with the same id but
    /// another definition is another task. Without `other`, returns all of them.
    pub fn additional_privileged(&self, other: Option<&Self>) -> Vec<&str> {
        let known_definitions: BTreeSet<&[u8; 32]> =
            other.into_iter().flat_map(Self::privileged_tasks).map(|task| &task.definition).collect();
        let additional = self.privileged_tasks().filter(|task| !known_definitions.contains(&task.definition));
        additional.map(|task| task.task.id.as_str()).collect()
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

    /// Returns the privileged tasks that are placed on the nodes by names that operators gave to them.
    pub(crate) fn privileged_tasks(&self) -> impl Iterator<Item = &CompiledTask> {
        self.privileged.iter().map(|ix| self.release.task(*ix))
    }

    /// Returns whether a task waits for itself on other nodes of the same profile. If only one node has the profile,
    /// nothing waits. Two nodes would wait for each other for ever.
    pub fn has_self_wait(&self) -> bool {
        self.waits.iter().any(|(position, barrier)| {
            let barrier = &self.barriers[*barrier as usize];
            barrier.task == self.tasks[*position as usize] && self.key.is_in_scope(self.release.matching.roles, &barrier.scope)
        })
    }

    /// Returns the barriers that must open before a task runs: those of the task and of its predecessors on the node.
    /// Each barrier comes with the task that waits for it.
    pub fn barriers_before(&self, ix: TaskIndex) -> Vec<(TaskIndex, &Barrier)> {
        let waits = self.waits_before(ix);
        waits.map(|(position, barrier)| (self.tasks[*position as usize], &self.barriers[*barrier as usize])).collect()
    }

    /// Returns the tasks that wait for the selected barriers, in the order in which the tasks run. A marker (`type:
    /// skipped`) runs nothing, so the tasks after the marker are returned instead. If only markers wait, the markers
    /// themselves are returned.
    pub fn tasks_waiting_at(&self, is_selected: impl Fn(&Barrier) -> bool) -> Vec<TaskIndex> {
        let is_marker = |ix: TaskIndex| self.release.task(ix).is_marker_type();
        let selected = self.waits.iter().filter(|(_, barrier)| is_selected(&self.barriers[*barrier as usize]));
        let positions: BTreeSet<u32> = selected.map(|(index, _)| *index).collect();
        let task_at = |index: &u32| self.tasks[*index as usize];
        let mut after_markers: BTreeSet<u32> = positions.iter().copied().filter(|index| is_marker(task_at(index))).collect();
        // Edges are sorted, so those of later tasks come later in the list.
        for (first, second) in &self.edges {
            if after_markers.contains(first) {
                after_markers.insert(*second);
            }
        }
        let is_waiting = |index: &u32| !is_marker(task_at(index)) && (positions.contains(index) || after_markers.contains(index));
        let waiting: Vec<TaskIndex> = (0..).take(self.tasks.len()).filter(is_waiting).map(|index| task_at(&index)).collect();
        if waiting.is_empty() { positions.iter().map(task_at).collect() } else { waiting }
    }

    /// Returns the barriers that must open before a task runs, as indexes in `barriers`.
    pub(crate) fn barrier_indexes_before(&self, ix: TaskIndex) -> BTreeSet<usize> {
        self.waits_before(ix).map(|(_, barrier)| *barrier as usize).collect()
    }

    /// Returns whether the second task waits on the node until the first one has ended, directly or through other tasks.
    pub fn is_before(&self, first: TaskIndex, second: TaskIndex) -> bool {
        let mut positions = self.predecessors_while(second, |_| true).into_iter();
        first != second && positions.any(|position| self.tasks[position as usize] == first)
    }

    /// Returns the entries of `waits` for a task and its predecessors on the node.
    fn waits_before(&self, ix: TaskIndex) -> impl Iterator<Item = &(u32, u32)> {
        let positions = self.predecessors_while(ix, |_| true);
        self.waits.iter().filter(move |(position, _)| positions.contains(position))
    }

    /// Returns the positions of a task and of its predecessors on the node. The search goes back beyond a task only if
    /// `should_continue` accepts that task.
    fn predecessors_while(&self, ix: TaskIndex, should_continue: impl Fn(TaskIndex) -> bool) -> BTreeSet<u32> {
        let is_task = |position: &u32| self.tasks[*position as usize] == ix;
        let mut positions: BTreeSet<u32> = (0..).take(self.tasks.len()).filter(is_task).collect();
        // Edges of later tasks come later in the list, so one backward pass finds all predecessors.
        for (first, second) in self.edges.iter().rev() {
            if positions.contains(second) && should_continue(self.tasks[*second as usize]) {
                positions.insert(*first);
            }
        }
        positions
    }

    /// Returns the tasks and barriers that a node must complete before it passes a marker. No host reports a marker,
    /// because it runs nothing. So its result follows from the results of these tasks and barriers.
    pub(crate) fn marker_predecessors(&self, marker: TaskIndex) -> MarkerPredecessors<'_> {
        let is_marker = |ix: TaskIndex| self.release.task(ix).is_marker_type();
        let positions = self.predecessors_while(marker, is_marker);
        let (markers, tasks): (BTreeSet<u32>, BTreeSet<u32>) =
            positions.into_iter().partition(|position| is_marker(self.tasks[*position as usize]));
        let waits = self.waits.iter().filter(|(position, _)| markers.contains(position));
        MarkerPredecessors {
            tasks: tasks.into_iter().map(|position| self.tasks[position as usize]).collect(),
            barriers: waits.map(|(_, barrier)| &self.barriers[*barrier as usize]).collect(),
        }
    }
}

impl CompiledRelease {
    /// Returns the barriers that a stage waits for: other stages, and tasks on the nodes that have these tasks or on
    /// those that a cross dependency selects.
    pub(crate) fn stage_waits(&self, stage: TaskIndex) -> Vec<Barrier> {
        let stage_task = self.task(stage);
        let mut waits = Vec::new();
        let mut add = |task: TaskIndex, node_scope: BarrierScope, policy| waits.push(Barrier { task, scope: node_scope, policy });
        for (ix, prev) in stage_task.requires.iter().map(|ix| (*ix, &self.task(*ix).task)).filter(|(_, task)| !task.is_group()) {
            add(ix, if prev.is_stage() { BarrierScope::Stage } else { BarrierScope::Anywhere }, Policy::All);
        }
        for cross in &stage_task.cross_depends {
            for ix in &cross.tasks {
                // A stage is on no node, so its target `self` selects stages, as `null` does. An entry waits for
                // nothing if it selects stages and names a task, or selects nodes and names a stage.
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
            let is_target = |target: &DependencyTarget| match target {
                DependencyTarget::Stages => true,
                DependencyTarget::Same => task.task.is_stage(),
                DependencyTarget::Everyone | DependencyTarget::Tags(_) | DependencyTarget::Roles(_) => false,
            };
            let is_cross = task.cross_depended_by.iter().any(|cross| is_target(&cross.target) && cross.tasks.contains(&stage));
            if ix != stage && !task.task.is_group() && (is_cross || task.required_for.contains(&stage)) {
                let node_scope = if task.task.is_stage() { BarrierScope::Stage } else { BarrierScope::Anywhere };
                add(ix, node_scope, Policy::All);
            }
        }
        waits
    }
}

/// The tasks of one phase in order.
struct TaskOrder {
    tasks: Vec<TaskIndex>,
    /// Pairs of positions in `tasks`. The first task of a pair runs before the second.
    edges: Vec<(u32, u32)>,
    /// Tasks that wait for each other. If there are such tasks, `tasks` is in the order of ids.
    cycle: Option<Vec<TaskIndex>>,
}

/// Sorts the tasks of one phase by their dependencies on the node. A cross dependency is one of them if it selects the
/// same node, or all nodes of a set that includes this node. If tasks wait for each other, the tasks are in the order
/// of ids.
fn order_tasks(release: &CompiledRelease, key: &ProfileKey, mut tasks: Vec<TaskIndex>) -> TaskOrder {
    let positions: BTreeMap<TaskIndex, usize> = tasks.iter().copied().zip(0..).collect();
    let mut edges = Vec::new();
    for (position, ix) in tasks.iter().enumerate() {
        let task = release.task(*ix);
        let is_local = |cross: &&super::CompiledCross| {
            let is_same_node = matches!(cross.target, DependencyTarget::Same);
            is_same_node || (cross.policy == Policy::All && key.is_target(release.matching.roles, &cross.target))
        };
        let predecessors = task.cross_depends.iter().filter(is_local).flat_map(|cross| &*cross.tasks).chain(&task.requires);
        edges.extend(predecessors.filter_map(|ix| positions.get(ix)).map(|first| (*first, position)));
        let successors = task.cross_depended_by.iter().filter(is_local).flat_map(|cross| &*cross.tasks).chain(&task.required_for);
        edges.extend(successors.filter_map(|ix| positions.get(ix)).map(|second| (position, *second)));
    }
    edges.retain(|(first, second)| first != second);
    let (order, cycle) = match topological_order(tasks.len(), &edges, |position| release.task(tasks[position]).rank) {
        Ok(order) => (order, None),
        Err(cycle) => ((0..tasks.len()).collect(), Some(cycle.into_iter().map(|position| tasks[position]).collect())),
    };
    let mut new_positions = vec![0; tasks.len()];
    for (new_position, old_position) in order.iter().enumerate() {
        new_positions[*old_position] = u32::try_from(new_position).expect("a release has fewer tasks than u32 counts");
    }
    let mut edges: Vec<_> = edges.into_iter().map(|(first, second)| (new_positions[first], new_positions[second])).collect();
    edges.sort_unstable();
    edges.dedup();
    tasks = order.into_iter().map(|position| tasks[position]).collect();
    TaskOrder { tasks, edges, cycle }
}

/// Collects the barriers of a profile without duplicates.
#[derive(Default)]
struct BarrierCollector {
    waits: Vec<(u32, u32)>,
    barriers: Vec<Barrier>,
    /// The index of each barrier in `barriers`, by its task, the text of its scope, and whether its policy is `any`.
    indexes: BTreeMap<(TaskIndex, String, bool), u32>,
}

impl BarrierCollector {
    /// Collects the barriers that the tasks of a profile wait for. A task declares a barrier itself, with
    /// `cross_depends` or by naming a stage in `requires`. Another task or a stage can declare a barrier for it, with
    /// `cross_depended_by`. A stage can also do so with `required_for`.
    fn from_tasks(release: &CompiledRelease, key: &ProfileKey, tasks: &[TaskIndex]) -> Self {
        let mut collector = Self::default();
        for (position, ix) in (0..).zip(tasks) {
            collector.add_declared(release, position, *ix);
        }
        let positions: BTreeMap<TaskIndex, u32> = tasks.iter().copied().zip(0..).collect();
        for (ix, task) in (0..).map(TaskIndex).zip(&release.tasks).filter(|(_, task)| !task.task.is_group()) {
            let successors = task.required_for.iter().filter(|_| task.task.is_stage());
            for position in successors.filter_map(|other| positions.get(other)) {
                collector.add(*position, ix, BarrierScope::Stage, Policy::All);
            }
            for cross in task.cross_depended_by.iter().filter(|cross| cross.policy == Policy::All) {
                if key.is_target(release.matching.roles, &cross.target) {
                    let node_scope = if task.task.is_stage() { BarrierScope::Stage } else { BarrierScope::Anywhere };
                    // A stage does not wait for itself.
                    let waiting_tasks = cross.tasks.iter().filter(|other| **other != ix || !task.task.is_stage());
                    for position in waiting_tasks.filter_map(|other| positions.get(other)) {
                        collector.add(*position, ix, node_scope.clone(), Policy::All);
                    }
                }
            }
        }
        collector.waits.sort_unstable();
        collector.waits.dedup();
        collector
    }

    /// Adds the barriers that a task declares for itself, by stages in its `requires` and by its `cross_depends`.
    fn add_declared(&mut self, release: &CompiledRelease, position: u32, ix: TaskIndex) {
        let task = release.task(ix);
        for stage in task.requires.iter().filter(|ix| release.task(**ix).task.is_stage()) {
            self.add(position, *stage, BarrierScope::Stage, Policy::All);
        }
        for cross in &task.cross_depends {
            for predecessor in &cross.tasks {
                // An entry adds no barrier if it selects the same node, if it selects stages and names a task, or if it
                // selects nodes and names a stage.
                match (&cross.target, release.task(*predecessor).task.is_stage()) {
                    (DependencyTarget::Stages, true) => self.add(position, *predecessor, BarrierScope::Stage, Policy::All),
                    (DependencyTarget::Same | DependencyTarget::Stages, _) | (_, true) => {}
                    (target, false) => self.add(position, *predecessor, barrier_scope(target), cross.policy),
                }
            }
        }
    }

    /// Adds a barrier that the task at a position waits for. Equal barriers are stored once.
    fn add(&mut self, position: u32, task: TaskIndex, node_scope: BarrierScope, policy: Policy) {
        let new_index = u32::try_from(self.barriers.len()).expect("a release has fewer barriers than u32 counts");
        let key = (task, node_scope.to_string(), policy == Policy::Any);
        let barrier = *self.indexes.entry(key).or_insert(new_index);
        if barrier == new_index {
            self.barriers.push(Barrier { task, scope: node_scope, policy });
        }
        self.waits.push((position, barrier));
    }
}

/// Returns the nodes that a barrier waits for if a cross dependency has this target. Callers handle the targets `Same`
/// and `Stages` themselves.
fn barrier_scope(target: &DependencyTarget) -> BarrierScope {
    match target {
        DependencyTarget::Everyone | DependencyTarget::Same | DependencyTarget::Stages => BarrierScope::Everyone,
        DependencyTarget::Tags(selector) => BarrierScope::Tags(Arc::clone(selector)),
        DependencyTarget::Roles(selector) => BarrierScope::Roles(Arc::clone(selector)),
    }
}

/// Returns the tasks that these tasks name in `on_unassign`, in the order of ids: those that hosts can run and that are not
/// among these tasks themselves ([`Profile::unassign`]). `privileged` are the privileged tasks that operators placed.
fn unassign_tasks(release: &CompiledRelease, tasks: &[TaskIndex], privileged: &[TaskIndex]) -> Vec<TaskIndex> {
    let named_tasks = tasks.iter().filter_map(|ix| {
        let target = release.task(*ix).on_unassign?;
        let is_permitted = !release.is_privileged(target) || privileged.binary_search(ix).is_ok();
        is_permitted.then_some(target)
    });
    let runs = |ix: &TaskIndex| !release.task(*ix).task.is_marker();
    let mut targets: Vec<TaskIndex> = named_tasks.filter(runs).filter(|target| !tasks.contains(target)).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Returns the tasks that manage objects by a name, in the order of `tasks`, if two of them want one object in different
/// ways ([`Profile::conflicting_tasks`]). Otherwise returns none.
fn conflicting_tasks(release: &CompiledRelease, tasks: &[TaskIndex]) -> Box<[TaskIndex]> {
    let mut demands = ObjectDemands::default();
    let has_conflict = tasks.iter().any(|ix| demands.add(*ix, &release.task(*ix).task).is_some());
    let manages_objects =
        |ix: &TaskIndex| task_type(&release.task(*ix).task.kind).is_some_and(|kind| kind.named_object.is_some());
    if has_conflict { tasks.iter().copied().filter(manages_objects).collect() } else { Box::default() }
}

/// Returns those of these tasks that an agent does not know if it declares no task types ([`Profile::later_tasks`]).
fn later_tasks<'a>(release: &CompiledRelease, tasks: impl Iterator<Item = &'a TaskIndex>) -> Box<[TaskIndex]> {
    let undeclared_types = KnownTypes::undeclared();
    tasks.copied().filter(|ix| undeclared_types.unknown_feature(&release.task(*ix).task).is_some()).collect()
}

/// Returns the references that the templates and conditions of these tasks read, sorted and unique.
fn profile_reads<'a>(release: &CompiledRelease, tasks: impl Iterator<Item = &'a TaskIndex>) -> Box<[Reference]> {
    let mut reads = Vec::new();
    for ix in tasks {
        let task = release.task(*ix);
        reads.extend(task.references.iter().cloned());
        reads.extend(task.condition.iter().flat_map(|condition| condition.references()).cloned());
    }
    reads.sort();
    reads.dedup();
    reads.into()
}

/// Returns whether the value of a read may change when another node becomes primary of a tag. `names` are the names
/// that the primary has for the tag. A node that is not primary has only the name `tag`.
fn is_decided_by_primary(read: &Read, tag: &str, names: &[&str]) -> bool {
    match read {
        Read::Primary { tag: read_tag, .. } => **read_tag == *tag,
        Read::Tag(name) => names.contains(&&**name) != (**name == *tag),
        Read::Nodes { query, .. } => query.names().any(|name| {
            NamePattern::new(name).is_ok_and(|pattern| names.iter().any(|name| pattern.matches(name)) != pattern.matches(tag))
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
