//! What a profile says, read for this host: what each task is, and where it stands in the order.

use std::rc::Rc;

use stemma_core::release::is_sent_observed;
use stemma_core::release::select::Pattern;
use stemma_core::task::{Claims, Exclusive, Leaves, Mode, PathTaken, Phase, Task, TaskKind, task_type};
use stemma_wire::message::Hash;
use stemma_wire::message::desired::{Profile, ProfileTask};
use stemma_wire::message::observed::Outcome;

use super::graph::{Graph, TaskState, Vertex};
use crate::apply::applier::{Applier, applier, path_of};
use crate::apply::ledger::Desired;
use crate::apply::task::{HostTask, Site, content};
use crate::config::Ceiling;
use crate::host::HostPath;
use crate::paths;

/// A task with what became of reading it.
pub(super) struct Planned {
    pub(super) id: String,
    pub(super) content: [u8; 32],
    pub(super) kind: Readiness,
    /// The tasks that it subscribes to, by their places.
    pub(super) subscribes: Vec<usize>,
    /// The tasks that run again when it has changed something.
    pub(super) refreshes: Vec<String>,
}

/// Whether a task can be run on this host.
pub(super) enum Readiness {
    /// It can. `alone`: nothing runs beside it. `is_command`: it runs again for what it subscribes to; other types look at the
    /// host itself.
    Runnable { applier: &'static dyn Applier, alone: bool, is_command: bool, task: Rc<HostTask>, blob: Option<Hash> },
    /// It cannot, and why.
    Refused(Outcome, String),
}

impl Planned {
    /// Reads a task of a profile, and places it.
    pub(super) fn read(
        site: &Site,
        ceiling: &Ceiling,
        desired: &Desired,
        task: &ProfileTask,
        mode: Mode,
    ) -> (Vertex, Self) {
        let kind = ready(site, ceiling, desired, task);
        let is_marker = match &kind {
            Readiness::Runnable { task, .. } => is_marker_type(&task.task),
            Readiness::Refused(..) => is_marker(task),
        };
        let left_out = (!desired.task_set.runs(&task.id) && !is_marker) || kind.is_another_phase();
        let state = if left_out {
            TaskState::LeftOut
        } else if is_observed(task) {
            TaskState::Observed
        } else {
            TaskState::Waiting
        };
        let vertex = Vertex { is_marker, ..vertex(task, &kind, state, mode) };
        (
            vertex,
            Self {
                id: task.id.clone(),
                content: content(task, &desired.task_set.inputs),
                kind,
                subscribes: Vec::new(),
                refreshes: Vec::new(),
            },
        )
    }

    /// The path that it writes, and what it leaves there; `None`: it writes none, or cannot say which.
    fn path(&self, site: &Site) -> Option<(HostPath, Leaves)> {
        let Readiness::Runnable { task, .. } = &self.kind else { return None };
        path_of(site, task)
    }

    /// Why it can keep no file at its path on this host; `None`: it can, or has no path.
    fn refusal(&self, site: &Site) -> Option<String> {
        let Readiness::Runnable { applier, task, .. } = &self.kind else { return None };
        applier.refuses(site, &applier.keeps(site, task)?)
    }
}

impl Readiness {
    /// Tasks for a drain or a cleanup have their own time.
    fn is_another_phase(&self) -> bool {
        matches!(self, Self::Runnable { task, .. } if task.task.phase != Phase::Apply)
    }
}

/// Gives each path to the first task that has it and runs, in order, and refuses the others: two would undo each other's work for ever. One that
/// is neither run nor checked by its mode has none: nobody would write the path, or a task would fail that does nothing.
pub(super) fn give_paths(site: &Site, tasks: &mut [Planned], graph: &Graph) {
    let mut claims = Claims::default();
    for at in (0..tasks.len()).filter(|at| !graph.is_left_out(*at) && !graph.is_observed(*at)) {
        let Some((path, leaves)) = tasks[at].path(site) else { continue };
        if let Err(taken) = claims.claim(at, path.as_str(), leaves) {
            let why = sentence(site, &taken, &tasks[taken.first.by]);
            tasks[at].kind = Readiness::Refused(Outcome::Failed, format!("parameters.path: {why}"));
        }
    }
}

/// Why a path is not the second task's. Where the first one is refused its own, nobody writes there.
fn sentence(site: &Site, taken: &PathTaken<usize>, first: &Planned) -> String {
    let Some(why) = first.refusal(site) else { return taken.sentence(&first.id) };
    format!(
        "{} meets {}, the path of task {}, which comes first and is refused it ({why}): one path is one task's, so the host does nothing for \
         this one either; take one of the two out, or give it another path",
        taken.path, taken.first.path, first.id
    )
}

/// Puts each task after those that it subscribes to, and notes with these whom they refresh. It is read from the definitions,
/// since a profile of an older controller has no order for it. Where that profile has the opposite order, this stays.
pub(super) fn subscribe(tasks: &mut [Planned], graph: &mut Graph) {
    for at in 0..tasks.len() {
        let Readiness::Runnable { task, is_command, .. } = &tasks[at].kind else { continue };
        let (id, is_command) = (task.task.id.clone(), *is_command && task.task.phase == Phase::Apply);
        let patterns: Vec<_> = task.task.subscribes.iter().filter_map(|name| Pattern::new(name).ok()).collect();
        let is_named = |other: &str| task.task.subscribes.iter().any(|name| name == other);
        let is_meant =
            |other: &str| other != id && (is_named(other) || patterns.iter().any(|pattern| pattern.matches(other)));
        let subscribes: Vec<usize> = (0..tasks.len()).filter(|before| is_meant(&tasks[*before].id)).collect();
        for &before in &subscribes {
            graph.put_after(before, at);
            if is_command {
                tasks[before].refreshes.push(id.clone());
            }
        }
        tasks[at].subscribes = if is_command { subscribes } else { Vec::new() };
    }
}

fn ready(site: &Site, ceiling: &Ceiling, desired: &Desired, profile: &ProfileTask) -> Readiness {
    let task = match HostTask::new(profile, &desired.task_set.inputs) {
        Ok(task) => task,
        Err(unreadable) => return Readiness::Refused(Outcome::Unsupported, unreadable.to_string()),
    };
    let kind = task.task.kind.clone();
    let Some((known, applier)) = task_type(&kind).and_then(|known| Some((known, applier(known.kind)?))) else {
        return Readiness::Refused(Outcome::Unsupported, format!("this agent has no task type {kind:?}"));
    };
    let refused =
        |why: String| Readiness::Refused(Outcome::Unsupported, format!("{why} (ceiling.task_types in agent.toml)"));
    if !ceiling.takes(known.name) && !ceiling.takes(&kind) {
        return refused(format!("this host takes no {kind} tasks"));
    }
    if known.kind == TaskKind::File
        && !ceiling.takes("shell")
        && let Some(command) = command_of_file(site, applier, &task)
    {
        return refused(format!("this host takes no shell tasks, and {command}"));
    }
    let blob = task.task.source().and_then(|source| Hash::of_source(source).ok());
    let (alone, is_command) = (known.exclusive == Exclusive::Alone, known.kind == TaskKind::Shell);
    Readiness::Runnable { applier, alone, is_command, task: Rc::new(task), blob }
}

/// How a file task would have a command run: by what it writes, or before it does.
fn command_of_file(site: &Site, applier: &dyn Applier, task: &HostTask) -> Option<&'static str> {
    let validates =
        task.task.parameters.get("validate").is_some_and(|words| words.as_array().is_none_or(|all| !all.is_empty()));
    if validates {
        return Some("`validate` runs a command");
    }
    applier.keeps(site, task).is_some_and(|path| paths::is_hook(&path)).then_some("what lies in hooks.d is run")
}

fn vertex(task: &ProfileTask, kind: &Readiness, state: TaskState, mode: Mode) -> Vertex {
    let (alone, forgiven) = match kind {
        Readiness::Runnable { alone, task, .. } => (*alone, !task.task.fail_on_error),
        Readiness::Refused(..) => (false, false),
    };
    Vertex {
        state,
        after: task.after.iter().map(|&before| usize::from(before)).collect(),
        // A host that only looks stands outside of the order across hosts.
        barriers: if mode == Mode::Apply { task.barriers.clone() } else { Vec::new() },
        alone,
        forgiven,
        is_marker: false,
    }
}

/// Whether a task is only a place in the order. Neither its inputs nor this host's ceiling matter then: it does nothing.
#[must_use]
pub fn is_marker(task: &ProfileTask) -> bool {
    serde_json::from_str(&task.definition).is_ok_and(|task| is_marker_type(&task))
}

/// Whether a task is neither run nor checked on any host, by its own mode.
#[must_use]
pub fn is_observed(task: &ProfileTask) -> bool {
    is_sent_observed(&task.definition)
}

fn is_marker_type(task: &Task) -> bool {
    task_type(&task.kind).is_some_and(|known| known.kind == TaskKind::Skipped)
}

/// Whether every task of a profile names only what comes before it.
#[must_use]
pub fn is_in_order(profile: &Profile) -> bool {
    profile.tasks.iter().enumerate().all(|(at, task)| task.after.iter().all(|&before| usize::from(before) < at))
}
