//! Finds tasks of a release that wait for each other by exact names. Cycles through patterns depend on the placement of
//! tasks, so they are found when a profile is computed.

use std::collections::BTreeMap;

use super::cycle::find_cycle;
use crate::task::Task;

/// The dependencies declared by stages that the search for a cycle includes. Those of other tasks are all included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StageDependencies {
    /// All dependencies that a stage declares.
    All,
    /// Only the dependencies on other stages that a stage declares.
    OnStages,
}

/// Returns the ids of tasks that wait for each other, in order, with the first id repeated at the end. Each task comes
/// before the next one. `None` if no tasks wait for each other by exact names.
pub(super) fn task_cycle(tasks: &[&Task], stage_dependencies: StageDependencies) -> Option<Vec<String>> {
    let by_id: BTreeMap<&str, usize> = tasks.iter().enumerate().map(|(position, task)| (task.id.as_str(), position)).collect();
    let mut edges = Vec::new();
    for (position, task) in tasks.iter().enumerate().filter(|(_, task)| !task.is_group()) {
        let is_included = |other: &usize| {
            let is_stage_included = !task.is_stage() || stage_dependencies == StageDependencies::All || tasks[*other].is_stage();
            !tasks[*other].is_group() && is_stage_included
        };
        let indexes_of = |names: &[String]| -> Vec<usize> {
            names.iter().filter_map(|name| by_id.get(name.as_str()).copied()).filter(is_included).collect()
        };
        for names in [&task.requires, &task.subscribes] {
            edges.extend(indexes_of(names).into_iter().map(|first| (first, position)));
        }
        edges.extend(indexes_of(&task.required_for).into_iter().map(|second| (position, second)));
    }
    let cycle = find_cycle(tasks.len(), &edges)?;
    Some(cycle.iter().chain(cycle.first()).map(|position| tasks[*position].id.clone()).collect())
}
