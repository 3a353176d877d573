//! What decides a node's state, read from the model.

use stemma_core::object::Node;
use stemma_core::resolve::Answer;
use stemma_core::status::{Facts, Liveness, Side, Tasks};
use uuid::Uuid;

use crate::cache::Model;
use crate::records::reported::ReleasedRecord;

/// What the model says of the state of a node. Whether its agent is there, and once, stands in the table of statuses.
pub(crate) fn facts(model: &Model, node: &Node, answer: Option<&Answer>, has_error: bool) -> Facts {
    let said = model.said.get(&node.meta.uuid);
    let is_paused = answer.is_some_and(Answer::is_paused);
    Facts {
        is_placed: node.spec.nodegroup.is_some(),
        parked: Side::of(node.spec.parked, said.is_some_and(|said| said.parked.is_some())),
        paused: Side::of(is_paused, said.is_some_and(|said| said.paused)),
        is_doubled: false,
        has_error,
        liveness: Liveness::default(),
        tasks: tasks(model, node.meta.uuid),
    }
}

/// The ids of the tasks that were released to a node.
pub(crate) fn runs<'a>(model: &'a Model, released: &'a ReleasedRecord) -> impl Iterator<Item = &'a str> {
    released.runs(released.task_set.profile.and_then(|hash| model.profiles.get(&hash)).map(|profile| &**profile))
}

/// What became of the tasks that were released to a node.
pub(crate) fn tasks(model: &Model, node: Uuid) -> Tasks {
    let Some(released) = model.released.get(&node) else { return Tasks::NotReleased };
    let mut runs = runs(model, released);
    let Some(results) = model.results.get(&node) else {
        return if runs.next().is_none() { Tasks::NothingToRun } else { Tasks::Unreported };
    };
    let digest = released.digest();
    let present = |task: &str| {
        let result = &results.tasks.get(task)?.result;
        (result.task_set == digest).then(|| result.outcome.of_node())
    };
    Tasks::of_outcomes(runs.map(present))
}
