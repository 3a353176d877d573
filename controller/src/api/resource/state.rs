//! Where a node stands: what resolve says of it, what it said of itself, what became of its tasks.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value, json};
use stemma_core::finding::{Finding, Severity, rule};
use stemma_core::object::{Held, Node, NodeId, Timestamp};
use stemma_core::resolve::Resolution;
use stemma_core::status::{self, Facts, Liveness, Status};
use stemma_core::traits::{NodeTraits, TraitSource};
use uuid::Uuid;

use super::view;
use crate::api::Api;
use crate::cache::Model;
use crate::reconcile::facts;

/// A node's traits with their sources.
pub(super) fn traits(model: &Model, node: &Node) -> NodeTraits {
    model.fleet.node_view(node.id()).map(|view| view.traits()).unwrap_or_default()
}

/// Each trait's sources.
pub(super) fn trait_sources(traits: &NodeTraits) -> impl Serialize {
    let texts = |sources: &[TraitSource]| sources.iter().map(ToString::to_string).collect::<Vec<_>>();
    view::Entries(move || traits.sources().iter().map(move |(name, sources)| (name, texts(sources))))
}

/// The labels that a host reported.
pub(super) fn reported(model: &Model, node: &Node) -> BTreeMap<String, String> {
    let record = model.observations.get(&node.meta.uuid);
    let labels = record.into_iter().flat_map(|record| record.observation.labels.iter());
    labels.map(|label| (label.key.to_string(), label.value.to_string())).collect()
}

/// What was said on the host itself, kept apart from what operators say of it; `null`: nothing.
pub(super) fn said(model: &Model, node: &Node) -> Value {
    let Some(said) = model.said.get(&node.meta.uuid) else { return Value::Null };
    let until = |held| match held {
        Held::UntilTakenBack => Value::Null,
        Held::Until(end) => view::time(end).into(),
    };
    json!({
        "paused": said.paused,
        "hold": said.held().map(|(held, reason)| json!({"until": until(held), "reason": reason})),
        "parked": said.parked.as_ref().map(|reason| json!({"reason": **reason})),
    })
}

/// Whether a node's agent is there.
pub(super) fn liveness(api: &Api, node: Uuid) -> Liveness {
    api.desired.as_ref().map_or(Liveness::Absent, |desired| desired.status().liveness(node))
}

/// How many of these nodes stand in each state, as of the reconciler's last pass.
pub(super) fn counts(api: &Api, nodes: impl Iterator<Item = NodeId>) -> Value {
    let status = api.desired.as_ref().map(|desired| desired.status());
    json!(status.map(|status| status.count(nodes.map(|node| node.0))).unwrap_or_default())
}

/// When a node was last heard of, as far as anybody knows: what is in memory is newer than what is stored.
pub(super) fn last_seen(api: &Api, model: &Model, node: Uuid) -> Option<Timestamp> {
    let heard = api.desired.as_ref().and_then(|desired| desired.heard(node));
    if let Some(ago) = heard.and_then(|ago| u64::try_from(ago.as_millis()).ok()) {
        return Some(Timestamp(api.registry.now().0.saturating_sub(ago)));
    }
    let seen = model.seen.get(&node).map(|seen| seen.since);
    let said =
        [model.observations.get(&node).map(|record| record.at), model.reports.get(&node).map(|record| record.at)];
    said.into_iter().chain([seen]).flatten().max()
}

/// The word for where a node stands, with its reason.
pub(super) fn status(api: &Api, model: &Model, node: &Node, answer: &Resolution, findings: &[Finding]) -> Status {
    let has_error = findings.iter().any(|finding| finding.severity == Severity::Error);
    let facts = facts::facts(model, node, answer.answer().map(|answer| &**answer), has_error);
    let is_doubled = doubled(api, node).is_some();
    Facts { liveness: liveness(api, node.meta.uuid), is_doubled, ..facts }.status()
}

/// That two hosts check in with a node's identity.
pub(super) fn doubled(api: &Api, node: &Node) -> Option<Finding> {
    let [one, other] = api.desired.as_ref()?.two_hosts(node.meta.uuid)?;
    let message = format!(
        "two hosts check in with its identity, from {one} and {other}: a disk or container was copied, and each takes the other's place; \
         stop the agent of the copy, remove its state, and let it join as a node of its own"
    );
    Some(Finding::of(rule::IDENTITY_DOUBLED, format!("node/{}", node.display_name()), message))
}

/// Why a node has not succeeded in a task (so far).
pub(super) fn why_not_done(api: &Api, model: &Model, node: Uuid, task: &str) -> String {
    let is_paused = model.said.get(&node).is_some_and(|said| said.paused);
    let outcome = facts::news(model, node).find(|news| news.task == task).map(|news| news.outcome);
    status::why_not_done(task, is_paused, liveness(api, node), outcome)
}

/// The first task that failed, of those that were released: the task, its sentence and since when.
pub(super) fn last_error(model: &Model, node: &Node) -> Option<String> {
    status::last_error(facts::news(model, node.meta.uuid), view::time)
}

/// What a host said, and what became of its tasks.
pub(super) fn report(model: &Model, node: &Node) -> Value {
    let id = node.meta.uuid;
    let current: BTreeSet<&str> = facts::news(model, id).map(|news| news.task).collect();
    // Each fact is the text of a JSON value.
    let fact =
        |(path, text): (&str, &str)| (path.to_owned(), serde_json::from_str(text).unwrap_or_else(|_| json!(text)));
    json!({
        "observation": model.observations.get(&id).map(|record| json!({
            "at": view::time(record.at), "facts": record.observation.facts.iter().map(fact).collect::<Map<_, _>>(),
            "traits": record.observation.traits,
            "labels": reported(model, node), "label_sources": record.label_sources,
        })),
        "report": model.reports.get(&id).map(|record| json!({"at": view::time(record.at), "report": record.report})),
        "results": model.results.get(&id).map(|record| record.tasks.values().map(|task| json!({
            "at": view::time(task.at), "task": task.result.task, "outcome": task.result.outcome, "message": task.result.message,
            "output": task.result.output, "diff": task.result.diff, "duration_ms": task.result.duration_ms, "is_current": current.contains(task.result.task.as_str()),
        })).collect::<Vec<_>>()),
    })
}
