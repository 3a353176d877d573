//! Tasks of a release that wait for each other by exact names. What a pattern closes depends on placement.

use std::collections::BTreeMap;

use super::cycle::find_cycle;
use crate::task::Task;

/// Which dependencies of a stage count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfStages {
    /// Those on whatever it names.
    All,
    /// Those on stages.
    Stages,
}

/// The ids of tasks that wait for each other, the first one at the end again; `a -> b` where a comes before b.
pub(super) fn circle(tasks: &[&Task], of_stages: OfStages) -> Option<Vec<String>> {
    let index: BTreeMap<&str, usize> = tasks.iter().enumerate().map(|(at, task)| (task.id.as_str(), at)).collect();
    let mut edges = Vec::new();
    for (at, task) in tasks.iter().enumerate().filter(|(_, task)| !task.is_group()) {
        let counts = |other: &usize| {
            let is_of_stages = !task.is_stage() || of_stages == OfStages::All || tasks[*other].is_stage();
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
