//! Tasks that wait at a barrier for other hosts.

use std::collections::BTreeMap;

use anyhow::Result;
use stemma_core::task::Mode;
use stemma_wire::message::desired::{Barrier, Profile};

use super::LocalHost;
use crate::apply::executor::is_marker;
use crate::apply::ledger::{Desired, OPEN_BARRIERS, TaskRecord};

/// Returns the tasks that have not begun because a barrier is closed, each with that barrier. A task that comes after a
/// waiting task waits too, and is returned with the barrier of the earlier task.
pub(super) fn waiting_tasks<'a>(
    local: &LocalHost,
    desired: &Desired,
    profile: &'a Profile,
    records: &BTreeMap<String, TaskRecord>,
) -> Result<BTreeMap<&'a str, &'a Barrier>> {
    if desired.mode() == Mode::Observe {
        return Ok(BTreeMap::new());
    }
    let open = local.site.ledger.get(&OPEN_BARRIERS)?.filter(|open| open.task_set == desired.digest);
    let is_open = |barrier: &Barrier| open.as_ref().is_some_and(|barriers| barriers.open.contains(barrier));
    let mut waits: Vec<Option<&Barrier>> = Vec::new();
    for task in &profile.tasks {
        // A task can only come after earlier tasks of the list.
        let inherited = || task.after.iter().find_map(|&before| waits.get(usize::from(before)).copied().flatten());
        let is_pending = is_marker(task) || (desired.task_set.runs_task(&task.id) && !records.contains_key(&task.id));
        let closed = task.barriers.iter().find(|barrier| !is_open(barrier));
        let barrier = if is_pending { closed.or_else(inherited) } else { None };
        waits.push(barrier);
    }
    let tasks = profile.tasks.iter().zip(waits).filter(|(task, _)| !is_marker(task));
    Ok(tasks.filter_map(|(task, barrier)| Some((task.id.as_str(), barrier?))).collect())
}
