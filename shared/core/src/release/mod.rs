//! Releases, compiled: names checked and resolved to indexes once, when a release is stored.
//!
//! Resolve runs for every node of a fleet, so nothing in it looks a name up, reads a pattern or parses a condition.
//! [`compile`] does all of that, and refuses what can never work: an unknown task, a cycle, a broken pattern, a
//! template that reads what it may not. What is only odd becomes a finding.

mod circle;
mod compile;
mod content;
mod cycle;
mod error;
pub mod fuel;
mod gather;
mod judge;
mod library;
mod names;
mod path;
mod profile;
pub mod select;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use compile::{compile, compile_each, compile_set};
pub use content::{has_same_content, is_sent_observed, is_sent_untranslated, sent_definition};
pub use cycle::topological;
pub use error::ReleaseError;
pub use judge::{refused, refused_of_task};
pub use names::{OddName, odd_field, odd_name};
pub(crate) use path::OnHost;
pub use path::{TaskName, TaskPath};
pub use profile::{Barrier, Place, Profile, ProfileHash, Source};
use select::NameSelector;

use crate::condition::Condition;
use crate::digest::ReleaseHash;
use crate::finding::Finding;
use crate::input::{Need, Reference};
use crate::name::{Name, ReleaseRef, TagName};
use crate::object::{ExtensionUse, Matching, RoleSpec, TagSpec};
use crate::task::{Phase, Policy, Task};

/// A task of a compiled release, by its place in the order of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskIx(pub u32);

impl TaskIx {
    /// The place as an index.
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// A release with everything it imports, ready to be resolved.
#[derive(Debug)]
pub struct CompiledRelease {
    /// Name and version.
    pub name: ReleaseRef,
    /// The content's, its imports' included. The name is no part of it.
    pub hash: ReleaseHash,
    /// Roles, those of the imports among them.
    pub roles: BTreeMap<Name, RoleSpec>,
    /// Predefined tags, those of the imports among them.
    pub tags: BTreeMap<TagName, TagSpec>,
    /// How strictly roles and tags are kept apart.
    pub matching: Matching,
    /// Roles whose tags an extension decides.
    pub extensions: Vec<ExtensionUse>,
    /// All tasks, groups and stages, in the order of their ids.
    pub tasks: Box<[CompiledTask]>,
    /// The stages, in the order of their ids.
    pub stages: Box<[TaskIx]>,
    /// The tasks that are privileged and run, in the order of their ids.
    pub privileged: Box<[TaskIx]>,
    /// What it imports, directly.
    pub imports: Vec<ReleaseRef>,
    /// What it imports, directly or through another.
    pub all_imports: std::collections::BTreeSet<ReleaseRef>,
    /// What is odd about it.
    pub findings: Vec<Finding>,
}

/// One task, its names resolved.
#[derive(Debug)]
pub struct CompiledTask {
    /// As its author wrote it.
    pub task: Arc<Task>,
    /// SHA-256 of its canonical JSON.
    pub definition: [u8; 32],
    /// What its templates read, sorted, each once.
    pub references: Box<[Reference]>,
    /// Without what one of its templates fails, sorted, each once.
    pub needs: Box<[Need]>,
    /// What can leave it out.
    pub condition: Option<Arc<dyn Condition>>,
    /// The same as its author wrote it; empty without one. All nodes that it leaves the task out of share it.
    pub condition_text: Arc<str>,
    /// Where it puts a file, or keeps one away.
    pub path: Option<TaskPath>,
    /// What else it names on its host by a template.
    pub names: Box<[TaskName]>,
    /// Whether a `|raw` stands in its script: only an admin may store it.
    pub raw: bool,
    /// Its position in an order of all tasks that heeds every dependency, where there is one.
    pub rank: u32,
    /// The groups that list it.
    pub groups: Box<[TaskIx]>,
    /// What it subscribes to.
    pub subscribes: Box<[TaskIx]>,
    /// What runs once where it no longer falls.
    pub on_unassign: Option<TaskIx>,
    pub(crate) placement: Placement,
    pub(crate) requires: Box<[TaskIx]>,
    pub(crate) required_for: Box<[TaskIx]>,
    pub(crate) cross_depends: Box<[Cross]>,
    pub(crate) cross_depended_by: Box<[Cross]>,
}

/// Where a task falls by its own selectors.
#[derive(Debug)]
pub(crate) enum Placement {
    /// By these tags, roles ignored.
    Tags(NameSelector),
    /// By these roles.
    Roles(NameSelector),
}

/// An entry of `cross_depends` or `cross_depended_by`, resolved.
#[derive(Debug)]
pub(crate) struct Cross {
    /// The tasks that its name means.
    pub(crate) tasks: Box<[TaskIx]>,
    /// Where they are looked for.
    pub(crate) target: Target,
    /// Every instance, or one.
    pub(crate) policy: Policy,
}

/// Where an entry looks.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// On the same node (`self`).
    Same,
    /// Among the stages (`null`).
    Stages,
    /// On every node that has a role or a tag, never `master`.
    Everyone,
    /// On the nodes that these tags match.
    Tags(Arc<NameSelector>),
    /// On the nodes that these roles match.
    Roles(Arc<NameSelector>),
}

impl CompiledRelease {
    /// The versions whose content a release to a node fixes: its own, and those of all that it imports.
    pub fn versions(&self) -> impl Iterator<Item = &ReleaseRef> {
        self.all_imports.iter().chain([&self.name]).filter(|name| name.version.is_some())
    }

    /// The task of that id.
    pub fn find(&self, id: &str) -> Option<TaskIx> {
        let at = self.tasks.binary_search_by(|t| t.task.id.as_str().cmp(id)).ok()?;
        u32::try_from(at).ok().map(TaskIx)
    }

    /// The task at an index that this release gave.
    pub fn task(&self, ix: TaskIx) -> &CompiledTask {
        &self.tasks[ix.at()]
    }

    /// The id of a task.
    pub fn id(&self, ix: TaskIx) -> &str {
        &self.tasks[ix.at()].task.id
    }

    /// What places a task, for people: its own selector, and those of the groups that list it.
    pub(crate) fn placement_text(&self, ix: TaskIx) -> String {
        let task = self.task(ix);
        let of_group = |ix: &TaskIx| {
            let group = self.task(*ix);
            let by = group.selector_text().unwrap_or_else(|| "nothing".to_owned());
            format!("group {} (placed by {by})", group.task.id)
        };
        let texts: Vec<String> = task.selector_text().into_iter().chain(task.groups.iter().map(of_group)).collect();
        if texts.is_empty() { "nothing: give it tags or roles".to_owned() } else { texts.join(", or ") }
    }
}

impl CompiledTask {
    /// When it runs.
    pub fn phase(&self) -> Phase {
        self.task.phase
    }

    /// Whether it is only a marker that never runs (`type: skipped`).
    pub(crate) fn is_skipped_type(&self) -> bool {
        self.task.kind == "skipped"
    }

    /// Whether it runs on hosts and is placed by an admin alone: it says so, or a group does that lists it. A group and a stage run nowhere, and
    /// a skipped task never does. `tasks`: all of its release.
    fn is_privileged(&self, tasks: &[Self]) -> bool {
        let runs = !self.task.is_group() && !self.task.is_stage() && !self.is_skipped_type();
        runs && (self.task.privileged || self.groups.iter().any(|ix| tasks[ix.at()].task.privileged))
    }

    /// The text of its own selector, for people; `None`: it places nothing.
    fn selector_text(&self) -> Option<String> {
        let (what, names) = match &self.placement {
            Placement::Tags(selector) => ("tags", selector.to_string()),
            Placement::Roles(selector) => ("roles", selector.to_string()),
        };
        (!names.is_empty()).then(|| format!("{what} {names}"))
    }
}
