//! Compiled releases. Names are checked and resolved to indexes once, when a release is stored or the store is loaded.
//!
//! Resolve runs for every node of a fleet. So [`mod@compile`] looks up the names of tasks and parses the selectors,
//! templates and conditions of tasks beforehand, once for all nodes. It rejects what can never work: an unknown task, a
//! cycle, an invalid pattern, a template that reads a value which it must not read. A suspicious release is stored with
//! a finding.

mod check;
mod compile;
mod content;
mod cycle;
mod error;
pub mod fuel;
mod gather;
mod impossible_name;
mod library;
pub mod name_selector;
mod path;
mod profile;
mod task_cycle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use check::{check_changed_tasks, task_errors};
pub use compile::{compile, compile_each, compile_set};
pub use content::{has_same_content, is_sent_observed, is_sent_untranslated, sent_definition};
pub use cycle::topological_order;
pub use error::ReleaseError;
pub use impossible_name::{ImpossibleName, impossible_field, impossible_name};
use name_selector::NameSelector;
pub(crate) use path::RenderedPath;
pub use path::{HostPathTemplate, TaskPath};
pub use profile::{Barrier, BarrierScope, Profile, ProfileHash, ProfileKey};

use crate::condition::Condition;
use crate::digest::ReleaseHash;
use crate::finding::Finding;
use crate::input::{Reference, RequiredReference};
use crate::name::{Name, ReleaseRef, TagName};
use crate::object::{ExtensionUse, Matching, RoleSpec, TagSpec};
use crate::task::{PathPatterns, Phase, Policy, Task};

/// The index of a task in the tasks of its compiled release, which are in the order of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskIndex(pub u32);

impl TaskIndex {
    /// Returns the index as a `usize`.
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// A release with the content of all its imports, checked and parsed, so that nodes can be resolved with it.
#[derive(Debug)]
pub struct CompiledRelease {
    /// The name and version of the release.
    pub name: ReleaseRef,
    /// The hash of the release's content and of that of its imports. The release's name is not part of the content.
    pub hash: ReleaseHash,
    /// The roles, including those of the imports.
    pub roles: BTreeMap<Name, RoleSpec>,
    /// The tags that the release and its imports declare under `tags`.
    pub tags: BTreeMap<TagName, TagSpec>,
    /// The rules by which selectors match nodes: those of the release itself, also for the tasks of its imports.
    pub matching: Matching,
    /// The extensions that decide which tags roles give to nodes: those of the release, then those of its imports. If
    /// several name a role, the first decides.
    pub extensions: Vec<ExtensionUse>,
    /// All tasks, groups and stages of the release and its imports, in the order of their ids.
    pub tasks: Box<[CompiledTask]>,
    /// The stages, in the order of their ids.
    pub stages: Box<[TaskIndex]>,
    /// The tasks that run on hosts and that only an admin may place, in the order of their ids.
    pub privileged: Box<[TaskIndex]>,
    /// The releases that this release imports directly.
    pub imports: Vec<ReleaseRef>,
    /// The releases that this release imports directly or through another import.
    pub all_imports: BTreeSet<ReleaseRef>,
    /// Problems that do not prevent the release from being stored.
    pub findings: Vec<Finding>,
}

/// A task whose names of other tasks are resolved to indexes, and whose texts are parsed.
#[derive(Debug)]
pub struct CompiledTask {
    /// The task as its author wrote it.
    pub task: Arc<Task>,
    /// SHA-256 of the task's canonical JSON, without the field `foreign`.
    pub definition: [u8; 32],
    /// The references that the task's templates read, such as `labels.ntp`, sorted and unique.
    pub references: Box<[Reference]>,
    /// The references without which a template of the task fails, in some renderings or in each, sorted and unique.
    pub needs: Box<[RequiredReference]>,
    /// The condition that can leave the task out.
    pub condition: Option<Arc<dyn Condition>>,
    /// The condition as its author wrote it, or an empty text if there is none. All nodes on which the condition leaves
    /// the task out share this text.
    pub condition_text: Arc<str>,
    /// The paths where the task puts a file or directory, or makes sure that there is none. Without those that are literal
    /// and invalid. Empty if the task has no such path, or if hosts neither run nor check the task.
    pub paths: Box<[TaskPath]>,
    /// The patterns of what the task neither writes nor removes below its path.
    pub ignored: PathPatterns,
    /// The other templates that name a path or a program of the host. Empty if hosts neither run nor check the task.
    pub host_paths: Box<[HostPathTemplate]>,
    /// The task's position in an order of all tasks that respects every dependency, if such an order exists.
    pub rank: u32,
    /// The groups that list the task.
    pub groups: Box<[TaskIndex]>,
    /// The tasks that this task subscribes to: it runs again after one of them has changed something.
    pub subscribes: Box<[TaskIndex]>,
    /// The task that runs once on a node when this task is no longer placed there.
    pub on_unassign: Option<TaskIndex>,
    pub(crate) placement: TaskPlacement,
    /// The tasks and stages that this task's `requires` and `subscribes` select, without `required_for` of other tasks.
    pub(crate) requires: Box<[TaskIndex]>,
    /// The tasks and stages that this task's `required_for` selects, without `requires` of other tasks.
    pub(crate) required_for: Box<[TaskIndex]>,
    /// The entries of `cross_depends`: tasks on selected nodes (perhaps its own), or stages, that this task waits for.
    pub(crate) cross_depends: Box<[CompiledCross]>,
    /// The entries of `cross_depended_by`: tasks on selected nodes (perhaps its own), or stages, that wait for this
    /// task.
    pub(crate) cross_depended_by: Box<[CompiledCross]>,
}

/// The task's own selector, which places it on nodes.
#[derive(Debug)]
pub(crate) enum TaskPlacement {
    /// Places the task on the nodes that have a matching tag. The task's `roles` are ignored.
    Tags(NameSelector),
    /// Places the task on the nodes that have a matching role.
    Roles(NameSelector),
}

/// A resolved entry of `cross_depends` or `cross_depended_by`.
#[derive(Debug)]
pub(crate) struct CompiledCross {
    /// The tasks that the entry's name or pattern matches.
    pub(crate) tasks: Box<[TaskIndex]>,
    /// The nodes on which the entry orders these tasks.
    pub(crate) target: DependencyTarget,
    /// The number of these nodes on which a task must succeed: all, or any one.
    pub(crate) policy: Policy,
}

/// The nodes that an entry of a cross dependency selects.
#[derive(Clone, Debug)]
pub(crate) enum DependencyTarget {
    /// The node of the task that has the entry (`self`).
    Same,
    /// No node: the entry selects stages (`null`).
    Stages,
    /// Every node that has a role or a tag, except the controller's own host (`master`).
    Everyone,
    /// The nodes that these tags match.
    Tags(Arc<NameSelector>),
    /// The nodes that these roles match.
    Roles(Arc<NameSelector>),
}

impl CompiledRelease {
    /// Returns the names of this release and all its imports, without those that have no version. The controller pins
    /// these versions (fixes their content) when it releases a task set of this release to a node.
    pub fn versions(&self) -> impl Iterator<Item = &ReleaseRef> {
        self.all_imports.iter().chain([&self.name]).filter(|name| name.version.is_some())
    }

    /// Returns the index of the task with this id.
    pub fn task_index(&self, id: &str) -> Option<TaskIndex> {
        let position = self.tasks.binary_search_by(|task| task.task.id.as_str().cmp(id)).ok()?;
        u32::try_from(position).ok().map(TaskIndex)
    }

    /// Returns the task at an index of this release.
    pub fn task(&self, ix: TaskIndex) -> &CompiledTask {
        &self.tasks[ix.as_usize()]
    }

    /// Returns whether only an admin may place a task, because the task or a group that lists it is marked as
    /// privileged.
    pub(crate) fn is_privileged(&self, ix: TaskIndex) -> bool {
        self.privileged.binary_search(&ix).is_ok()
    }

    /// Returns the id of a task.
    pub fn id(&self, ix: TaskIndex) -> &str {
        &self.tasks[ix.as_usize()].task.id
    }

    /// Returns the tasks that nothing places and that need no placement, because hosts get them for a task that names
    /// them in `on_unassign`.
    pub(crate) fn clean_up_tasks(&self) -> BTreeSet<TaskIndex> {
        let named_tasks = (0..).map(TaskIndex).zip(&self.tasks).filter_map(|(ix, task)| {
            let target = task.on_unassign.filter(|target| *target != ix)?;
            let is_sent = task.phase() == Phase::Apply && (!self.is_privileged(target) || self.is_privileged(ix));
            is_sent.then_some(target)
        });
        let is_placed = |task: &CompiledTask| task.selector_text().is_some() || !task.groups.is_empty();
        named_tasks.filter(|target| !is_placed(self.task(*target))).collect()
    }

    /// Returns the selectors that place a task on nodes, as a text for messages: the task's own selector, and those of
    /// the groups that list the task.
    pub(crate) fn placement_text(&self, ix: TaskIndex) -> String {
        let task = self.task(ix);
        let group_text = |ix: &TaskIndex| {
            let group = self.task(*ix);
            let selector = group.selector_text().unwrap_or_else(|| "nothing".to_owned());
            format!("group {} (placed by {selector})", group.task.id)
        };
        let texts: Vec<String> = task.selector_text().into_iter().chain(task.groups.iter().map(group_text)).collect();
        if texts.is_empty() { "nothing: give it tags or roles".to_owned() } else { texts.join(", or ") }
    }
}

impl CompiledTask {
    /// Returns the phase in which the task runs.
    pub fn phase(&self) -> Phase {
        self.task.phase
    }

    /// Returns whether the task is a marker that never runs (`type: skipped`).
    pub(crate) fn is_marker_type(&self) -> bool {
        self.task.kind == "skipped"
    }

    /// Returns whether the task runs on hosts and only an admin may place it. Either the task or a group that lists it
    /// must be marked as privileged. Groups, stages and skipped tasks never run. `tasks` are all tasks of the release.
    fn is_effectively_privileged(&self, tasks: &[Self]) -> bool {
        let is_marked = || self.task.privileged || self.groups.iter().any(|ix| tasks[ix.as_usize()].task.privileged);
        !self.task.is_marker() && is_marked()
    }

    /// Returns the task's own selector as a text for messages, such as `roles web`. `None` if the selector is empty, so
    /// that it matches no node.
    fn selector_text(&self) -> Option<String> {
        let (kind, names) = match &self.placement {
            TaskPlacement::Tags(selector) => ("tags", selector.to_string()),
            TaskPlacement::Roles(selector) => ("roles", selector.to_string()),
        };
        (!names.is_empty()).then(|| format!("{kind} {names}"))
    }
}
