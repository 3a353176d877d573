//! Appliers, which check and apply tasks: a module for each task type, and `marker` for the three that do nothing.
//!
//! The crate `stemma_core` registers all types. This module lists those that this agent supports. Tasks of other types
//! end as `unsupported`, and tasks that require them are not started.

mod account;
mod body;
mod copy_files;
mod directory;
mod file;
mod link;
mod marker;
mod package;
mod placement;
pub mod puppet;
mod reboot;
mod shell;
mod sync;
#[cfg(test)]
pub(in crate::apply) mod testing;
mod tree_removal;
mod unit;

use std::rc::Rc;

use stemma_core::task::{PathContent, TaskKind, TypedParameters, task_type};

use super::ledger::{HostObject, ObjectKind};
use super::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{HostError, HostPath, Pending};
use crate::watch::WatchScope;

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

    /// Returns whether a task that was applied has not ended, because it waits for an event on the host, such as a reboot.
    /// The task then has no result yet, and the tasks that require it wait. By default, an applied task has ended.
    ///
    /// # Errors
    /// [`HostError`] from the ledger.
    fn is_deferred(&self, site: &Site, task: &HostTask) -> Result<bool, HostError> {
        let _ = (site, task);
        Ok(false)
    }

    /// Returns the paths of the files, links, directories or trees that the task manages. Returns none if it manages none, or if
    /// a path cannot be determined. Later changes of these files by others are drift.
    fn managed_paths(&self, site: &Site, task: &HostTask) -> Vec<HostPath> {
        let _ = (site, task);
        Vec::new()
    }

    /// Returns the paths whose later changes let the agent check the task soon. By default, these are [`Self::managed_paths`].
    /// The number is bounded, so changes of other paths may be found only by the next scheduled check.
    fn watched_paths(&self, site: &Site, task: &HostTask) -> Vec<(HostPath, WatchScope)> {
        self.managed_paths(site, task).into_iter().map(|path| (path, WatchScope::File)).collect()
    }

    /// Returns the objects of the host that the task manages, as the module `orphans` records and reports them. By default, this
    /// is the file, link or directory of [`Self::managed_paths`]. Returns `None` if they cannot be determined, for example
    /// because a template fails. A task of a type with other objects (packages, units, accounts) overrides this, and
    /// [`Self::has_object`].
    fn managed_objects(&self, site: &Site, task: &HostTask) -> Option<Vec<ManagedObject>> {
        let definition = task_type(&task.task.kind)?;
        let Some(target) = definition.write_target else { return Some(Vec::new()) };
        let path = self.managed_paths(site, task).into_iter().next()?;
        let kind = match target.content {
            PathContent::File | PathContent::Absent => ObjectKind::File,
            PathContent::Link => ObjectKind::Link,
            PathContent::Directory | PathContent::Tree => ObjectKind::Directory,
        };
        let (_, content) = definition.written_path(&task.task.parameters)?;
        Some(vec![ManagedObject::new((kind, path.to_string()), content != PathContent::Absent)])
    }

    /// Returns whether an object that a task of this type left still exists on the host. Files, directories and links are
    /// checked by their paths, and not by this function. Must be cheap: no process is started.
    ///
    /// # Errors
    /// [`HostError`] if this cannot be determined now. The object then remains recorded, and is not reported.
    fn has_object(&self, site: &Site, object: &HostObject) -> Result<bool, HostError> {
        let _ = (site, object);
        Ok(true)
    }

    /// Returns whether an object that still exists is reported as one that a task left. By default, each is. A service
    /// is reported only while it is enabled or runs. Otherwise it remains recorded, because it may run again: systemd starts
    /// a failing service again after a pause. Must be cheap, as [`Self::has_object`].
    fn is_left_now(&self, site: &Site, object: &HostObject) -> bool {
        let _ = (site, object);
        true
    }

    /// Returns the SHA-256 digest of the content of the single file that the task writes as a whole, or of the target of its
    /// link. Returns `None` for a task with other objects, or if the digest cannot be determined.
    fn written_digest(&self, site: &Site, task: &HostTask) -> Option<[u8; 32]> {
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

/// An object of the host that a task manages, such as a file or a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedObject {
    /// The kind and the name of the object.
    pub key: HostObject,
    /// True if the object exists after the task succeeded, and stays when the task is removed. False for an object that
    /// the task makes sure is absent.
    pub is_left: bool,
    /// SHA-256 digest of the content of a file, if the parameters of the task name it. For another file, see
    /// [`Applier::written_digest`].
    pub digest: Option<[u8; 32]>,
    /// The number of files in a directory that the task manages too, if they are too many to be named.
    pub content_count: Option<u64>,
}

impl ManagedObject {
    /// Creates an object without a digest and without unnamed content.
    #[must_use]
    pub const fn new(key: HostObject, is_left: bool) -> Self {
        Self { key, is_left, digest: None, content_count: None }
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
        TaskKind::Reboot => Some(&reboot::RebootApplier),
        TaskKind::Puppet => Some(&puppet::PuppetApplier),
        TaskKind::Stage | TaskKind::Group | TaskKind::Skipped => Some(&marker::MarkerApplier),
        TaskKind::CopyFiles => Some(&copy_files::CopyFilesApplier),
        TaskKind::Sync => Some(&sync::SyncApplier),
    }
}

/// Returns all paths that a task writes, each with what is there afterwards. Returns none if the task writes no path or
/// its path cannot be determined.
#[must_use]
pub fn written_paths(site: &Site, task: &HostTask) -> Vec<(String, PathContent)> {
    let Some(definition) = task_type(&task.task.kind) else { return Vec::new() };
    let managed = applier(definition.kind).map(|applier| applier.managed_paths(site, task)).unwrap_or_default();
    let Some(top) = managed.first() else { return Vec::new() };
    let written = stemma_core::task::written_paths(definition, &task.task.parameters);
    // The managed paths may be templates in `written`. The other paths are below the first one.
    let (templates, others) = written.split_at(managed.len().min(written.len()));
    let Some((top_template, _)) = templates.first() else { return Vec::new() };
    let below =
        others.iter().filter_map(|(text, content)| Some((format!("{top}{}", text.strip_prefix(top_template)?), *content)));
    let own = managed.iter().zip(templates).map(|(path, (_, content))| (path.to_string(), *content));
    below.chain(own).collect()
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
