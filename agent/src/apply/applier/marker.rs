//! `stage`, `group`, `skipped`: tasks that only mark a place in the order and do nothing.

use super::Applier;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::Pending;

/// The applier of `stage`, `group` and `skipped` tasks, which only mark a place in the order of tasks and do nothing.
pub(super) struct MarkerApplier;

impl Applier for MarkerApplier {
    fn check<'a>(&'a self, _: &'a Site, _: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(std::future::ready(Ok(CheckResult::Converged)))
    }

    fn apply<'a>(&'a self, _: &'a Site, _: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(std::future::ready(Ok(ApplyResult::default())))
    }
}
