//! The check of a release's tasks against the registry of types, as findings.

use super::{Task, task_type};
use crate::finding::{Finding, rule};
use crate::name::ReleaseRef;

/// What is wrong with the parameters of a release's own tasks: each such task would fail on every host.
///
/// Tasks that an import left untranslated are left out: they never start.
pub fn judge(release: &ReleaseRef, tasks: &[Task]) -> Vec<Finding> {
    let judged = tasks.iter().filter(|task| !task.is_untranslated());
    judged.flat_map(|task| judge_task(release, task)).collect()
}

fn judge_task(release: &ReleaseRef, task: &Task) -> Vec<Finding> {
    let Some(takes) = task_type(&task.kind).and_then(|kind| kind.parameters) else { return Vec::new() };
    let found = |(field, message): (String, String)| {
        Finding::of(rule::TASK_PARAMETERS, format!("release/{release} task {} {field}", task.id), message)
    };
    takes.mistakes(&task.parameters).into_iter().map(found).collect()
}
