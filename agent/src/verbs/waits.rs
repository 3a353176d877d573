//! What waits at a barrier for other hosts.

use std::collections::BTreeMap;

use anyhow::Result;
use stemma_core::task::Mode;
use stemma_wire::message::desired::{Barrier, Profile};

use super::Local;
use crate::apply::executor::is_marker;
use crate::apply::ledger::{Desired, OPEN_BARRIERS, Performed};

/// The tasks that have not begun because a barrier is shut: before them, or before one that they come after. Each with that barrier.
pub(super) fn waiting<'a>(
    local: &Local,
    desired: &Desired,
    profile: &'a Profile,
    ended: &BTreeMap<String, Performed>,
) -> Result<BTreeMap<&'a str, &'a Barrier>> {
    if desired.mode() == Mode::Observe {
        return Ok(BTreeMap::new());
    }
    let open = local.site.ledger.get(&OPEN_BARRIERS)?.filter(|open| open.task_set == desired.digest);
    let is_open = |barrier: &Barrier| open.as_ref().is_some_and(|barriers| barriers.open.contains(barrier));
    let mut waits: Vec<Option<&Barrier>> = Vec::new();
    for task in &profile.tasks {
        // A task comes after earlier ones alone.
        let behind = || task.after.iter().find_map(|&before| waits.get(usize::from(before)).copied().flatten());
        let here = is_marker(task) || (desired.task_set.runs(&task.id) && !ended.contains_key(&task.id));
        let shut = task.barriers.iter().find(|barrier| !is_open(barrier));
        let at = if here { shut.or_else(behind) } else { None };
        waits.push(at);
    }
    let of_task = profile.tasks.iter().zip(waits).filter(|(task, _)| !is_marker(task));
    Ok(of_task.filter_map(|(task, barrier)| Some((task.id.as_str(), barrier?))).collect())
}
