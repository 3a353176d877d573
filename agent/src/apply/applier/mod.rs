//! Task types, one a file: how each is checked and applied.
//!
//! The registry of types is core's; here stands which of them this agent can do. One that it lacks is not
//! guessed at: its tasks are `unsupported`, and what requires them is not started.

mod file;
mod marker;
mod parameters;
mod shell;

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

    /// How often it is tried again after a failure, and after how many seconds.
    fn retries(&self, task: &HostTask) -> (u32, u64) {
        (task.task.retries.unwrap_or(0), 1)
    }
}

/// The applier of a type by its name in core's registry; `None`: this agent has none.
#[must_use]
pub fn applier(name: &str) -> Option<&'static dyn Applier> {
    match name {
        "file" => Some(&file::File),
        "shell" => Some(&shell::Shell),
        "stage" | "group" | "skipped" => Some(&marker::Marker),
        _ => None,
    }
}
