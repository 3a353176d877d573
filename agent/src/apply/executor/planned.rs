//! The tasks of a profile as this host reads them: each task and its place in the order.

use std::rc::Rc;

use stemma_core::release::is_sent_observed;
use stemma_core::release::name_selector::NamePattern;
use stemma_core::task::{Exclusive, Mode, PathClaims, PathConflict, PathContent, Phase, Task, TaskKind, task_type};
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{Profile, ProfileTask};
use stemma_wire::message::observed::Outcome;

use super::graph::{TaskGraph, TaskState, Vertex};
use crate::apply::applier::{Applier, applier, written_path};
use crate::apply::ledger::Desired;
use crate::apply::task::{HostTask, Site, content_digest};
use crate::config::Ceiling;
use crate::host::HostPath;
use crate::paths;

/// A task, with whether it can run here.
pub(super) struct PlannedTask {
    pub(super) id: String,
    pub(super) content: [u8; 32],
    pub(super) readiness: Readiness,
    /// Indexes of the tasks that this task subscribes to.
    pub(super) subscribes: Vec<usize>,
    /// Ids of the tasks that run again when this task has changed something.
    pub(super) refreshes: Vec<String>,
}

/// Whether a task can run on this host.
pub(super) enum Readiness {
    /// The task can run. `alone`: no other task may run at the same time. `is_command`: the task runs again when a task
    /// that it subscribes to has changed something. Tasks of other types need no such request, because their check sees
    /// on the host itself whether they must run. `blob`: the blob that the task needs.
    Runnable { applier: &'static dyn Applier, alone: bool, is_command: bool, task: Rc<HostTask>, blob: Option<Hash> },
    /// The task cannot run. Contains the outcome to report and the reason.
    Refused(Outcome, String),
}

impl PlannedTask {
    /// Reads a task of a profile and creates its vertex. The vertex is skipped if the node does not run the task or the
    /// task is for another phase, and observed if the task's own mode is `observe`.
    pub(super) fn from_profile(
        site: &Site,
        ceiling: &Ceiling,
        desired: &Desired,
        task: &ProfileTask,
        mode: Mode,
    ) -> (Vertex, Self) {
        let readiness = readiness(site, ceiling, desired, task);
        let is_marker = match &readiness {
            Readiness::Runnable { task, .. } => is_marker_type(&task.task),
            Readiness::Refused(..) => is_marker(task),
        };
        let is_skipped = (!desired.task_set.runs_task(&task.id) && !is_marker) || readiness.is_other_phase();
        let state = if is_skipped {
            TaskState::Skipped
        } else if is_observed(task) {
            TaskState::Observed
        } else {
            TaskState::Waiting
        };
        let vertex = Vertex { is_marker, ..vertex(task, &readiness, state, mode) };
        (
            vertex,
            Self {
                id: task.id.clone(),
                content: content_digest(task, &desired.task_set.inputs),
                readiness,
                subscribes: Vec::new(),
                refreshes: Vec::new(),
            },
        )
    }

    /// Returns the path that the task writes and whether a file is there afterwards, or `None` if the task writes no
    /// path or its path cannot be determined.
    fn written_path(&self, site: &Site) -> Option<(HostPath, PathContent)> {
        let Readiness::Runnable { task, .. } = &self.readiness else { return None };
        written_path(site, task)
    }

    /// Returns why the task cannot manage a file at its path on this host, or `None` if it can or has no path.
    fn path_refusal(&self, site: &Site) -> Option<String> {
        let Readiness::Runnable { applier, task, .. } = &self.readiness else { return None };
        applier.path_refusal(site, &applier.managed_path(site, task)?)
    }
}

impl Readiness {
    /// Returns whether the task is for a drain or a cleanup, so that it does not run when the tasks are applied.
    fn is_other_phase(&self) -> bool {
        matches!(self, Self::Runnable { task, .. } if task.task.phase != Phase::Apply)
    }
}

/// Gives each path to the first task in the order that writes it and runs. Refuses later tasks with the same path,
/// because two tasks would forever undo each other's changes. Observed tasks take no part: such a task would keep the
/// path from a task that writes it, or would itself be refused although it does nothing.
pub(super) fn assign_paths(site: &Site, tasks: &mut [PlannedTask], graph: &TaskGraph) {
    let mut claims = PathClaims::default();
    for at in (0..tasks.len()).filter(|at| !graph.is_skipped(*at) && !graph.is_observed(*at)) {
        let Some((path, content)) = tasks[at].written_path(site) else { continue };
        if let Err(taken) = claims.claim(at, path.as_str(), content) {
            let why = path_taken_message(site, &taken, &tasks[taken.first_claim.owner]);
            tasks[at].readiness = Readiness::Refused(Outcome::Failed, format!("parameters.path: {why}"));
        }
    }
}

/// Returns why a task does not get a path that the task `first` has. If `first` cannot manage a file there either, the
/// message says that no task writes the path.
fn path_taken_message(site: &Site, taken: &PathConflict<usize>, first: &PlannedTask) -> String {
    let Some(why) = first.path_refusal(site) else { return taken.message(&first.id) };
    format!(
        "{} meets {}, the path of task {}, which comes first and is refused this path ({why}): only one task may write a path, so the host does not run \
         this one either; remove one of the two, or give it another path",
        taken.path, taken.first_claim.path, first.id
    )
}

/// Orders each task after the tasks that it subscribes to, and adds it to the refreshes of those tasks. Reads the
/// subscriptions from the definitions, because the profile of an older controller does not order tasks by them. If a
/// profile orders two tasks the other way round, its order is kept.
pub(super) fn link_subscribers(tasks: &mut [PlannedTask], graph: &mut TaskGraph) {
    for at in 0..tasks.len() {
        let Readiness::Runnable { task, is_command, .. } = &tasks[at].readiness else { continue };
        let (id, is_command) = (task.task.id.clone(), *is_command && task.task.phase == Phase::Apply);
        let patterns: Vec<_> = task.task.subscribes.iter().filter_map(|name| NamePattern::new(name).ok()).collect();
        let is_named = |other: &str| task.task.subscribes.iter().any(|name| name == other);
        let is_subscribed =
            |other: &str| other != id && (is_named(other) || patterns.iter().any(|pattern| pattern.matches(other)));
        let subscribes: Vec<usize> = (0..tasks.len()).filter(|before| is_subscribed(&tasks[*before].id)).collect();
        for &before in &subscribes {
            graph.add_edge(before, at);
            if is_command {
                tasks[before].refreshes.push(id.clone());
            }
        }
        tasks[at].subscribes = if is_command { subscribes } else { Vec::new() };
    }
}

/// Returns whether a task can run on this host. It cannot if its definition cannot be read, if this agent has no
/// applier for its type, or if the host's ceiling does not allow the type.
fn readiness(site: &Site, ceiling: &Ceiling, desired: &Desired, profile: &ProfileTask) -> Readiness {
    let task = match HostTask::new(profile, &desired.task_set.inputs) {
        Ok(task) => task,
        Err(unreadable) => return Readiness::Refused(Outcome::Unsupported, unreadable.to_string()),
    };
    let kind = task.task.kind.clone();
    let Some((known, applier)) = task_type(&kind).and_then(|known| Some((known, applier(known.kind)?))) else {
        return Readiness::Refused(Outcome::Unsupported, format!("this agent has no task type {kind:?}"));
    };
    let refused = |why: String| Readiness::Refused(Outcome::Unsupported, format!("{why} (ceiling.task_types in agent.toml)"));
    if !ceiling.allows(known.name) && !ceiling.allows(&kind) {
        return refused(format!("this host does not allow {kind} tasks"));
    }
    if known.kind == TaskKind::File
        && !ceiling.allows("shell")
        && let Some(command) = command_run_by_file(site, applier, &task)
    {
        return refused(format!("this host does not allow shell tasks, and {command}"));
    }
    let blob = task.task.source().and_then(|source| Hash::from_source(source).ok());
    let (alone, is_command) = (known.exclusive == Exclusive::Alone, known.kind == TaskKind::Shell);
    Readiness::Runnable { applier, alone, is_command, task: Rc::new(task), blob }
}

/// Returns how a file task would run a command: by `validate`, or by the file that it writes.
fn command_run_by_file(site: &Site, applier: &dyn Applier, task: &HostTask) -> Option<&'static str> {
    let validates = task.task.parameters.get("validate").is_some_and(|words| words.as_array().is_none_or(|all| !all.is_empty()));
    if validates {
        return Some("`validate` runs a command");
    }
    applier.managed_path(site, task).is_some_and(|path| paths::is_hook(&path)).then_some("files in hooks.d are run as commands")
}

/// Returns the vertex of a task, with its requirements and barriers. `from_profile` sets whether it is a marker.
fn vertex(task: &ProfileTask, readiness: &Readiness, state: TaskState, mode: Mode) -> Vertex {
    let (exclusive, failure_allowed) = match readiness {
        Readiness::Runnable { alone, task, .. } => (*alone, !task.task.fail_on_error),
        Readiness::Refused(..) => (false, false),
    };
    Vertex {
        state,
        requires: task.after.iter().map(|&before| usize::from(before)).collect(),
        // A host that changes nothing takes no part in the order across hosts.
        barriers: if mode == Mode::Apply { task.barriers.clone() } else { Vec::new() },
        exclusive,
        failure_allowed,
        is_marker: false,
    }
}

/// Returns whether a task only marks a place in the order. As it does nothing, neither its inputs nor this host's
/// ceiling matter.
#[must_use]
pub fn is_marker(task: &ProfileTask) -> bool {
    serde_json::from_str(&task.definition).is_ok_and(|task| is_marker_type(&task))
}

/// Returns whether the task's own mode says that no host runs or checks it.
#[must_use]
pub fn is_observed(task: &ProfileTask) -> bool {
    is_sent_observed(&task.definition)
}

fn is_marker_type(task: &Task) -> bool {
    task_type(&task.kind).is_some_and(|known| known.kind == TaskKind::Skipped)
}

/// Returns whether every task of a profile requires only tasks before it.
#[must_use]
pub fn is_topologically_sorted(profile: &Profile) -> bool {
    profile.tasks.iter().enumerate().all(|(at, task)| task.after.iter().all(|&before| usize::from(before) < at))
}
