//! Finds the tasks of this host that wait at a barrier for tasks of other hosts.

use std::collections::BTreeMap;

use anyhow::Result;
use stemma_core::task::Mode;
use stemma_wire::message::desired::{Barrier, Profile};

use super::LocalHost;
use crate::apply::executor::is_marker;
use crate::apply::ledger::{Desired, OPEN_BARRIERS, TaskRecord};

/// Returns the tasks that have not begun because a barrier is closed: the id of each task with that barrier. A task
/// that requires a waiting task waits too, and is returned with the barrier of the required task. `records` contains
/// the tasks that have ended. In mode `observe`, no task waits.
pub(super) fn waiting_tasks<'a>(
    local: &LocalHost,
    desired: &Desired,
    profile: &'a Profile,
    records: &BTreeMap<String, TaskRecord>,
) -> Result<BTreeMap<&'a str, &'a Barrier>> {
    if desired.mode() == Mode::Observe {
        return Ok(BTreeMap::new());
    }
    let open_barriers = local.site.ledger.get(&OPEN_BARRIERS)?.filter(|open_barriers| open_barriers.task_set == desired.digest);
    let is_open = |barrier: &Barrier| open_barriers.as_ref().is_some_and(|open_barriers| open_barriers.open.contains(barrier));
    let mut barriers: Vec<Option<&Barrier>> = Vec::new();
    for task in &profile.tasks {
        // A task requires only tasks before it in the list, so their barriers are already in `barriers`.
        let inherited_barrier = || task.after.iter().find_map(|&index| barriers.get(usize::from(index)).copied().flatten());
        // A marker never has a record. Of the other tasks, this host runs only those that no condition leaves out.
        let is_pending = is_marker(task) || (desired.task_set.runs_task(&task.id) && !records.contains_key(&task.id));
        let closed_barrier = task.barriers.iter().find(|barrier| !is_open(barrier));
        let barrier = if is_pending { closed_barrier.or_else(inherited_barrier) } else { None };
        barriers.push(barrier);
    }
    let tasks = profile.tasks.iter().zip(barriers).filter(|(task, _)| !is_marker(task));
    Ok(tasks.filter_map(|(task, barrier)| Some((task.id.as_str(), barrier?))).collect())
}
