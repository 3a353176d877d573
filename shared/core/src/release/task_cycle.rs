//! Finds tasks of a release that wait for each other by exact names. Cycles through patterns depend on the placement of
//! tasks, so they are found when a profile is computed.

use std::collections::BTreeMap;

use super::cycle::find_cycle;
use crate::task::Task;

/// The dependencies of stages that the search includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StageDependencies {
    /// All of its dependencies.
    All,
    /// Only those on other stages.
    OnStages,
}

/// Returns the ids of tasks that wait for each other, with the first one repeated at the end. In `a -> b`, a comes
/// before b.
pub(super) fn task_cycle(tasks: &[&Task], of_stages: StageDependencies) -> Option<Vec<String>> {
    let index: BTreeMap<&str, usize> = tasks.iter().enumerate().map(|(at, task)| (task.id.as_str(), at)).collect();
    let mut edges = Vec::new();
    for (at, task) in tasks.iter().enumerate().filter(|(_, task)| !task.is_group()) {
        let counts = |other: &usize| {
            let is_of_stages = !task.is_stage() || of_stages == StageDependencies::All || tasks[*other].is_stage();
            !tasks[*other].is_group() && is_of_stages
        };
        let others = |names: &[String]| -> Vec<usize> {
            names.iter().filter_map(|name| index.get(name.as_str()).copied()).filter(counts).collect()
        };
        for names in [&task.requires, &task.subscribes] {
            edges.extend(others(names).into_iter().map(|before| (before, at)));
        }
        edges.extend(others(&task.required_for).into_iter().map(|after| (at, after)));
    }
    let cycle = find_cycle(tasks.len(), &edges)?;
    Some(cycle.iter().chain(cycle.first()).map(|at| tasks[*at].id.clone()).collect())
}
