//! The tasks of a profile as this host reads them: each task and its place in the order.

use std::collections::BTreeMap;
use std::rc::Rc;

use stemma_core::release::is_sent_observed;
use stemma_core::release::name_selector::NamePattern;
use stemma_core::task::tree_rules::ignored_patterns;
use stemma_core::task::{
    Concurrency, Mode, PathClaims, PathConflict, PathContent, PathPatterns, Phase, Task, TaskKind, task_type,
};
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{InputValue, Profile, ProfileTask};
use stemma_wire::message::observed::Outcome;

use super::graph::{TaskGraph, TaskState, Vertex};
use crate::apply::applier::{Applier, applier, written_paths};
use crate::apply::clean_ups::DueCleanUp;
use crate::apply::ledger::Desired;
use crate::apply::task::{HostTask, Site, content_digest};
use crate::config::Ceiling;
use crate::host::HostError;
use crate::paths;

/// A task of a profile, as this host plans to run or refuse it.
pub(super) struct PlannedTask {
    pub(super) id: String,
    pub(super) content: [u8; 32],
    pub(super) readiness: Readiness,
    /// Indexes of the tasks that this task subscribes to. Empty unless the type of this task acts on a refresh.
    pub(super) subscribes: Vec<usize>,
    /// Ids of the tasks that subscribe to this task and act on a refresh. They are requested to run again when it changes
    /// something.
    pub(super) refreshes: Vec<String>,
}

/// The ability of this host to run a task.
pub(super) enum Readiness {
    /// The task can run. `is_exclusive` is true if no other task may run at the same time. `blobs` are the file
    /// contents that the task needs. `is_refreshed` is true if the type of the task acts again after a change of a task that it
    /// subscribes to.
    Runnable { applier: &'static dyn Applier, is_exclusive: bool, is_refreshed: bool, task: Rc<HostTask>, blobs: Vec<Hash> },
    /// The task cannot run. Contains the outcome to report and the reason.
    Refused(Outcome, String),
}

impl PlannedTask {
    /// Reads a task of a profile and creates its vertex. A task for another phase than apply, or one that the node does
    /// not run (except a marker), is skipped. Otherwise, a task whose own mode is `observe` is observed.
    pub(super) fn from_profile(
        site: &Site,
        ceiling: &Ceiling,
        desired: &Desired,
        task: &ProfileTask,
        mode: Mode,
    ) -> (Vertex, Self) {
        let readiness = readiness(site, ceiling, &desired.task_set.inputs, task);
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

    /// Reads a clean-up and creates its vertex. A clean-up waits for no other host, and its phase does not matter. It is
    /// refused if its blob is not on this host, because no controller sends a blob of an earlier task set.
    pub(super) fn from_clean_up(
        site: &Site,
        ceiling: &Ceiling,
        clean_up: &DueCleanUp,
        mode: Mode,
    ) -> Result<(Vertex, Self), HostError> {
        let mut readiness = readiness(site, ceiling, &clean_up.inputs, &clean_up.task);
        if !has_blobs(site, &readiness)? {
            let message = "parameters.source: this host no longer has the blob, and it is sent only with the task set that had this \
                 task; nothing was changed. Place the task that names it in on_unassign here again";
            readiness = Readiness::Refused(Outcome::Failed, message.to_owned());
        }
        let state = if is_observed(&clean_up.task) { TaskState::Observed } else { TaskState::Waiting };
        let planned = Self {
            id: clean_up.task.id.clone(),
            content: content_digest(&clean_up.task, &clean_up.inputs),
            readiness,
            subscribes: Vec::new(),
            refreshes: Vec::new(),
        };
        Ok((vertex(&clean_up.task, &planned.readiness, state, mode), planned))
    }

    /// Returns the task, or `None` if it cannot run on this host.
    pub(super) fn host_task(&self) -> Option<Rc<HostTask>> {
        match &self.readiness {
            Readiness::Runnable { task, .. } => Some(task.clone()),
            Readiness::Refused(..) => None,
        }
    }

    /// Returns the key of the tasks that one change can make together with this task. `None` if it is changed alone.
    pub(super) fn batch_key(&self, site: &Site) -> Option<String> {
        match &self.readiness {
            Readiness::Runnable { applier, task, .. } => applier.batch_key(site, task),
            Readiness::Refused(..) => None,
        }
    }

    /// Returns the paths that the task writes, each with what is there afterwards, and the patterns of what it ignores
    /// below. Returns no path if the task writes none, or its path cannot be determined.
    fn written_paths(&self, site: &Site) -> (Vec<(String, PathContent)>, PathPatterns) {
        let Readiness::Runnable { task, .. } = &self.readiness else { return Default::default() };
        (written_paths(site, task), ignored_patterns(&task.task.parameters))
    }

    /// Returns the field of the path that the task writes.
    fn path_field(&self) -> &'static str {
        let Readiness::Runnable { task, .. } = &self.readiness else { return "parameters.path" };
        task_type(&task.task.kind).map_or("parameters.path", |kind| kind.path_field())
    }

    /// Returns the reason why the task cannot manage a file at its path on this host. Returns `None` if it can, or has
    /// no path.
    fn path_refusal(&self, site: &Site) -> Option<String> {
        let Readiness::Runnable { applier, task, .. } = &self.readiness else { return None };
        applier.path_refusal(site, applier.managed_paths(site, task).first()?)
    }
}

impl Readiness {
    /// Returns whether the task is for another phase than apply (a drain or a cleanup), so that an executor skips it.
    fn is_other_phase(&self) -> bool {
        matches!(self, Self::Runnable { task, .. } if task.task.phase != Phase::Apply)
    }
}

/// Gives each path to the first task that runs and writes the path. Refuses later tasks with the same path, or one
/// above or below it, because two tasks would forever undo each other's changes. Tasks that only delete files do not
/// conflict. Observed tasks are ignored, because they do nothing and must not block a task that writes the path.
pub(super) fn assign_paths(site: &Site, tasks: &mut [PlannedTask], graph: &TaskGraph) {
    let mut claims = PathClaims::default();
    for index in (0..tasks.len()).filter(|index| !graph.is_skipped(*index) && !graph.is_observed(*index)) {
        let (paths, ignored) = tasks[index].written_paths(site);
        if let Err(conflict) = claims.claim_all(index, &paths, &ignored) {
            let reason = path_taken_message(site, &conflict, &tasks[conflict.first_claim.owner]);
            let field = tasks[index].path_field();
            tasks[index].readiness = Readiness::Refused(Outcome::Failed, format!("{field}: {reason}"));
        }
    }
}

/// Returns the reason why a task does not get a path that the task `first` has. If `first` cannot manage a file at the
/// path either, the message states this too.
fn path_taken_message(site: &Site, conflict: &PathConflict<usize>, first: &PlannedTask) -> String {
    let Some(reason) = first.path_refusal(site) else { return conflict.message(&first.id) };
    format!(
        "{} meets {}, the path of task {}, which comes first and is refused this path ({reason}): only one task may write a path, so the host does not run \
         this one either; remove one of the two, or give it another path",
        conflict.path, conflict.first_claim.path, first.id
    )
}

/// Orders each task after the tasks that it subscribes to. If the type of the subscriber acts on a refresh, also adds it to
/// their `refreshes`, so that it runs again after their changes. Reads the subscriptions from the definitions of the tasks,
/// because an older controller does not order the profile by them. If a profile orders two tasks the other way round,
/// the order of the profile applies.
pub(super) fn link_subscribers(tasks: &mut [PlannedTask], graph: &mut TaskGraph) {
    for index in 0..tasks.len() {
        let Readiness::Runnable { task, is_refreshed, .. } = &tasks[index].readiness else { continue };
        let (id, is_refreshed) = (task.task.id.clone(), *is_refreshed && task.task.phase == Phase::Apply);
        // An entry of `subscribes` is the id of a task or a pattern.
        let patterns: Vec<_> = task.task.subscribes.iter().filter_map(|name| NamePattern::new(name).ok()).collect();
        let is_named = |other: &str| task.task.subscribes.iter().any(|name| name == other);
        let is_subscribed =
            |other: &str| other != id && (is_named(other) || patterns.iter().any(|pattern| pattern.matches(other)));
        let subscribes: Vec<usize> = (0..tasks.len()).filter(|earlier| is_subscribed(&tasks[*earlier].id)).collect();
        for &earlier in &subscribes {
            graph.add_edge(earlier, index);
            if is_refreshed {
                tasks[earlier].refreshes.push(id.clone());
            }
        }
        tasks[index].subscribes = if is_refreshed { subscribes } else { Vec::new() };
    }
}

/// Returns whether a task can run on this host. A task is refused if its definition or an input cannot be read, if this
/// agent has no applier for its type, or if the host's ceiling (the allowed task types in `agent.toml`) does not have
/// the type. A task that writes files and would run a command is also refused if the ceiling does not have `shell`.
fn readiness(site: &Site, ceiling: &Ceiling, inputs: &BTreeMap<String, InputValue>, profile: &ProfileTask) -> Readiness {
    let task = match HostTask::new(profile, inputs) {
        Ok(task) => task,
        Err(error) => return Readiness::Refused(Outcome::Unsupported, error.to_string()),
    };
    let kind = task.task.kind.clone();
    let Some((type_def, applier)) = task_type(&kind).and_then(|type_def| Some((type_def, applier(type_def.kind)?))) else {
        return Readiness::Refused(Outcome::Unsupported, format!("this agent has no task type {kind:?}"));
    };
    let refusal = |text: String| Readiness::Refused(Outcome::Unsupported, format!("{text} (ceiling.task_types in agent.toml)"));
    // The ceiling may contain the name of the type or the other name that the task writes (a name of Fuel).
    if !ceiling.allows(type_def.name) && !ceiling.allows(&kind) {
        return refusal(format!("this host does not allow {kind} tasks"));
    }
    if matches!(type_def.kind, TaskKind::File | TaskKind::Link | TaskKind::Sync | TaskKind::CopyFiles)
        && !ceiling.allows("shell")
        && let Some(command) = command_run_by_file(site, applier, &task)
    {
        return refusal(format!("this host does not allow shell tasks, and {command}"));
    }
    let blobs = task.task.sources().into_iter().filter_map(|(_, source)| Hash::from_source(source).ok()).collect();
    let (is_exclusive, is_refreshed) = (type_def.concurrency == Concurrency::Alone, type_def.is_refreshed);
    Readiness::Runnable { applier, is_exclusive, is_refreshed, task: Rc::new(task), blobs }
}

/// Returns a text about the command that a task that writes files would run: by `validate`, or by a hook that it writes. Returns
/// `None` if the task would run no command.
fn command_run_by_file(site: &Site, applier: &dyn Applier, task: &HostTask) -> Option<&'static str> {
    // If `validate` is present, only an empty list sets no command.
    let is_set = task.task.parameters.get("validate").is_some_and(|words| words.as_array().is_none_or(|list| !list.is_empty()));
    if is_set {
        return Some("`validate` runs a command");
    }
    applier.managed_paths(site, task).iter().any(paths::is_hook).then_some("files in hooks.d are run as commands")
}

/// Returns whether this host has all blobs that a task needs.
fn has_blobs(site: &Site, readiness: &Readiness) -> Result<bool, HostError> {
    let Readiness::Runnable { blobs, .. } = readiness else { return Ok(true) };
    for hash in blobs {
        if !site.ledger.has_body(*hash)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the vertex of a task, with its requirements and barriers. The caller sets afterwards whether it is a marker.
fn vertex(task: &ProfileTask, readiness: &Readiness, state: TaskState, mode: Mode) -> Vertex {
    let (exclusive, failure_allowed) = match readiness {
        Readiness::Runnable { is_exclusive, task, .. } => (*is_exclusive, !task.task.fail_on_error),
        Readiness::Refused(..) => (false, false),
    };
    Vertex {
        state,
        requires: task.after.iter().map(|&requirement| usize::from(requirement)).collect(),
        // A host that changes nothing does not wait for tasks of other hosts.
        barriers: if mode == Mode::Apply { task.barriers.clone() } else { Vec::new() },
        is_exclusive: exclusive,
        is_failure_allowed: failure_allowed,
        is_marker: false,
    }
}

/// Returns whether the type of a task is `skipped`. Such a task only marks a place in the order and, unlike a `stage`
/// or `group`, has no outcome. Only the type matters, neither the inputs nor the host's ceiling.
#[must_use]
pub fn is_marker(task: &ProfileTask) -> bool {
    serde_json::from_str(&task.definition).is_ok_and(|task| is_marker_type(&task))
}

/// Returns whether the task's own mode is `observe`, so that no host runs or checks the task.
#[must_use]
pub fn is_observed(task: &ProfileTask) -> bool {
    is_sent_observed(&task.definition)
}

/// Returns whether the type of a task is `skipped`, so that the task only marks a place in the order.
fn is_marker_type(task: &Task) -> bool {
    task_type(&task.kind).is_some_and(|definition| definition.kind == TaskKind::Skipped)
}

/// Returns whether each task of a profile requires only tasks that are listed before it.
#[must_use]
pub fn is_topologically_sorted(profile: &Profile) -> bool {
    profile.tasks.iter().enumerate().all(|(index, task)| task.after.iter().all(|&requirement| usize::from(requirement) < index))
}
