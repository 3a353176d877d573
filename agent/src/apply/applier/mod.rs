//! Task types, one a file: how each is checked and applied.
//!
//! The registry of types is core's; here stands which of them this agent can do. One that it lacks is not
//! guessed at: its tasks are `unsupported`, and what requires them is not started.

mod file;
mod marker;
mod shell;

use stemma_core::task::{Leaves, TaskKind, TypedParameters, task_type};

use super::task::{Applied, Check, HostTask, Site, TaskError};
use crate::host::{HostPath, Pending};

/// How a type of task is made so.
pub trait Applier {
    /// Whether the host is as the task wants it. Changes nothing.
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<Check, TaskError>>;

    /// Makes it so; called after a check that found a difference.
    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<Applied, TaskError>>;

    /// The file that it keeps, where it keeps one: a change of that is drift.
    fn keeps(&self, site: &Site, task: &HostTask) -> Option<HostPath> {
        let _ = (site, task);
        None
    }

    /// Why it keeps no file at a path on this host, whatever the task says of it; `None`: it can.
    fn refuses(&self, site: &Site, path: &HostPath) -> Option<String> {
        let _ = (site, path);
        None
    }

    /// To whom it gives that file, where it names somebody else than who has it.
    fn gives_to(&self, site: &Site, task: &HostTask) -> Option<u32> {
        let _ = (site, task);
        None
    }

    /// Whether only the journal says that it has run. Then a change of a task that it subscribes to runs it again.
    fn is_journalled(&self, task: &HostTask) -> bool {
        let _ = task;
        false
    }

    /// How often it is tried again after a failure, and after how many seconds.
    fn retries(&self, task: &HostTask) -> (u64, u64) {
        (task.task.retries.unwrap_or(0).into(), 1)
    }
}

/// The applier of a type; `None`: this agent has none.
#[must_use]
pub fn applier(kind: TaskKind) -> Option<&'static dyn Applier> {
    match kind {
        TaskKind::File => Some(&file::File),
        TaskKind::Shell => Some(&shell::Shell),
        TaskKind::Stage | TaskKind::Group | TaskKind::Skipped => Some(&marker::Marker),
        TaskKind::CopyFiles
        | TaskKind::Sync
        | TaskKind::Service
        | TaskKind::Package
        | TaskKind::User
        | TaskKind::GroupAccount
        | TaskKind::Puppet
        | TaskKind::Reboot => None,
    }
}

/// The path that a task writes, and what it leaves there; `None`: it writes none, or cannot say which.
#[must_use]
pub fn path_of(site: &Site, task: &HostTask) -> Option<(HostPath, Leaves)> {
    let known = task_type(&task.task.kind)?;
    let (_, leaves) = known.path(&task.task.parameters)?;
    Some((applier(known.kind)?.keeps(site, task)?, leaves))
}

/// The parameters of a task as its type's own struct.
fn parameters<T: TypedParameters>(task: &HostTask) -> Result<T, TaskError> {
    T::read(&task.task.parameters).map_err(|error| TaskError::new(format!("parameters: {error}")))
}
