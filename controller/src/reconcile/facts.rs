//! What the model says of a node, for the decisions of `stemma_core::status`.

use std::sync::Arc;

use stemma_core::object::Node;
use stemma_core::resolve::Answer;
use stemma_core::status::{Facts, Liveness, Side, TaskNews, Tasks};
use uuid::Uuid;

use crate::cache::Model;
use crate::records::reported::{ReleasedRecord, TaskOutcome};

/// What the model says of the state of a node. The table of statuses adds whether its agent is there, and whether two hosts have its identity.
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
    let results = model.results.get(&node);
    let outcomes = |released| {
        let digest = ReleasedRecord::digest(released);
        let outcome = move |task: &str| Some(results?.of(digest, task)?.result.outcome.of_node());
        runs(model, released).map(outcome)
    };
    Tasks::of(model.released.get(&node).map(Arc::as_ref).map(outcomes), results.is_some())
}

/// What is known of the tasks that were released to a node, in their order.
pub(crate) fn news(model: &Model, node: Uuid) -> impl Iterator<Item = TaskNews<'_>> {
    let known = model.released.get(&node).zip(model.results.get(&node));
    known.into_iter().flat_map(|(released, results)| {
        let digest = released.digest();
        runs(model, released).filter_map(move |task| {
            let TaskOutcome { at, result } = results.of(digest, task)?;
            Some(TaskNews { task, outcome: result.outcome.of_node(), message: &result.message, since: *at })
        })
    })
}
