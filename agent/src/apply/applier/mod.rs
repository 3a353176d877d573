//! Appliers, which check and apply tasks: a module for each task type, and `marker` for the three that do nothing.
//!
//! The crate `stemma_core` registers all types. This module lists those that this agent supports. Tasks of other types
//! end as `unsupported`, and tasks that require them are not started.

mod account;
mod directory;
mod file;
mod link;
mod marker;
mod package;
mod placement;
mod shell;
mod tree_removal;
mod unit;

use std::rc::Rc;

use stemma_core::task::{PathContent, TaskKind, TypedParameters, task_type};

use super::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{HostPath, Pending};

/// An object that checks and applies the tasks of one type, or of several similar types.
pub trait Applier {
    /// Checks whether the host is in the state that the task describes. If the effect of a task on the host cannot be
    /// checked ([`Self::is_journalled`]), checks the journal in the ledger instead. Applies nothing.
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>>;

    /// Brings the host into the state that the task describes. The caller has checked the task before. The check found
    /// a difference, or the task must run again because a task that it subscribes to has changed something.
    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>>;

    /// Brings the host into the state that the task describes, after a task that it subscribes to has changed something. By
    /// default this is [`Self::apply`].
    fn refresh<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        self.apply(site, task)
    }

    /// Returns a key that is equal for tasks that one change can make together ([`Self::apply_together`]). Returns `None` for a
    /// task that is changed alone.
    fn batch_key(&self, site: &Site, task: &HostTask) -> Option<String> {
        let _ = (site, task);
        None
    }

    /// Makes the changes of several tasks with the same [`Self::batch_key`], as [`Self::apply`] does for one. Returns the result
    /// of each task, in their order.
    fn apply_together<'a>(
        &'a self,
        site: &'a Site,
        tasks: &'a [Rc<HostTask>],
    ) -> Pending<'a, Vec<Result<ApplyResult, TaskError>>> {
        Box::pin(async move {
            let mut results = Vec::new();
            for task in tasks {
                results.push(self.apply(site, task).await);
            }
            results
        })
    }

    /// Returns whether a refresh makes the task act although its check finds no difference. By default, this is so if the
    /// check only reads the journal.
    fn is_refresh_needed(&self, task: &HostTask) -> bool {
        self.is_journalled(task)
    }

    /// Returns the file that the task manages, or `None` if it manages no file or its path cannot be determined. Later
    /// changes of that file by others are drift.
    fn managed_path(&self, site: &Site, task: &HostTask) -> Option<HostPath> {
        let _ = (site, task);
        None
    }

    /// Returns the reason why no task can manage a file at this path on this host, or `None` if a task can.
    fn path_refusal(&self, site: &Site, path: &HostPath) -> Option<String> {
        let _ = (site, path);
        None
    }

    /// Returns the uid to which the task sets the owner of the file that it manages. Returns `None` if the task does
    /// not set the owner, or if the uid cannot be determined.
    fn file_owner(&self, site: &Site, task: &HostTask) -> Option<u32> {
        let _ = (site, task);
        None
    }

    /// Returns whether only the journal in the ledger (the agent's stored state) shows that the task ran, because its
    /// effect on the host cannot be checked. Such a task runs again when a task that it subscribes to changes
    /// something.
    fn is_journalled(&self, task: &HostTask) -> bool {
        let _ = task;
        false
    }

    /// Returns the number of retries after a failure, and the time between two attempts in seconds.
    fn retry_policy(&self, task: &HostTask) -> (u64, u64) {
        (task.task.retries.unwrap_or(0).into(), 1)
    }
}

/// Returns the applier of a task type, or `None` if this agent does not support the type.
#[must_use]
pub fn applier(kind: TaskKind) -> Option<&'static dyn Applier> {
    match kind {
        TaskKind::File => Some(&file::FileApplier),
        TaskKind::Directory => Some(&directory::DirectoryApplier),
        TaskKind::Link => Some(&link::LinkApplier),
        TaskKind::Shell => Some(&shell::ShellApplier),
        TaskKind::Service => Some(&unit::UnitApplier),
        TaskKind::Package => Some(&package::PackageApplier),
        TaskKind::User => Some(&account::UserApplier),
        TaskKind::GroupAccount => Some(&account::GroupApplier),
        TaskKind::Stage | TaskKind::Group | TaskKind::Skipped => Some(&marker::MarkerApplier),
        TaskKind::CopyFiles | TaskKind::Sync | TaskKind::Puppet | TaskKind::Reboot => None,
    }
}

/// Returns the path that a task writes and whether a file is there afterwards, or `None` if the task writes no path or
/// its path cannot be determined.
#[must_use]
pub fn written_path(site: &Site, task: &HostTask) -> Option<(HostPath, PathContent)> {
    let definition = task_type(&task.task.kind)?;
    let (_, content) = definition.written_path(&task.task.parameters)?;
    Some((applier(definition.kind)?.managed_path(site, task)?, content))
}

/// Parses the parameters of a task as the struct of its task type. Fails if a parameter is invalid, or if parameters
/// contradict each other.
fn parameters<T: TypedParameters>(task: &HostTask) -> Result<T, TaskError> {
    let parsed = T::parse(&task.task.parameters).map_err(|error| TaskError::new(format!("parameters: {error}")))?;
    let errors = task_type(&task.task.kind).map(|kind| kind.combination_errors(&task.task.parameters)).unwrap_or_default();
    match errors.into_iter().next() {
        Some((field, message)) => Err(TaskError::new(format!("{field}: {message}; nothing was changed")).without_effect()),
        None => Ok(parsed),
    }
}
