//! Why a label, tag, task or trait of a node is as it is: from the lines of descent that resolve keeps, folding
//! nothing again.

use serde_json::{Value, json};
use stemma_core::input::Read;
use stemma_core::key::LabelValue;
use stemma_core::labels::{Line, Outcome as Came};
use stemma_core::name::PRIMARY_PREFIX;
use stemma_core::object::{NodeId, NodeSpec};
use stemma_core::origin::Level;
use stemma_core::resolve::{Answer, Outcome};
use stemma_core::role::TagOrigin;
use stemma_core::task::Mode;
use stemma_core::traits::TraitSource;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::Shown;
use super::{resolved, state};
use crate::api::Api;
use crate::api::http::request::{self, Reply, Request};
use crate::cache::Model;

/// `GET /v1/nodes/{node}/explain?label=|tag=|task=|trait=`.
pub(super) fn get(api: &Api, request: &Request) -> request::Outcome {
    let parameters = &request.query;
    let model = api.cache().model();
    let node = NodeSpec::locate(&model, request)?;
    let answer = match model.resolve(node.meta.uuid) {
        Outcome::Complete(answer) => answer,
        Outcome::Incomplete(missing) => return Err(resolved::incomplete(&missing)),
    };
    let asked = |name| parameters.one(name);
    let mut body = match (asked("label")?, asked("tag")?, asked("task")?, asked("trait")?) {
        (Some(key), None, None, None) => label(&model, &answer, key),
        (None, Some(tag), None, None) => explain_tag(&model, &answer, tag),
        (None, None, Some(task), None) => explain_task(&model, &answer, task)?,
        (None, None, None, Some(name)) => explain_trait(&answer, name),
        _ => {
            let message = "explain takes one of label, tag, task and trait";
            return Err(ApiError::new(ErrorType::RequestQuery, message));
        }
    };
    body["node"] = node.display_name().into();
    body["group"] = json!(answer.place());
    Ok(Reply::ok(body))
}

fn label(model: &Model, answer: &Answer, key: &str) -> Value {
    let labels = answer.labels();
    let line = labels.line(key);
    let reported = model.observations.get(&answer.node().meta.uuid);
    let said = reported.and_then(|record| {
        let label = record.observation.labels.iter().find(|label| *label.key == *key)?;
        Some((label.value.to_string(), label.source.to_string()))
    });
    let taken =
        line.and_then(Line::effective).is_some_and(|effective| effective.origin == stemma_core::origin::Origin::Host);
    let reported: Vec<Value> = said.iter().map(|(value, source)| {
        json!({"value": value, "source": source, "result": if taken { "wins" } else { "decides nothing: host_labels.accept does not name it, or an operator does" }})
    }).collect();
    let flows = answer.host_labels().decide(&labels).flows.contains(key);
    json!({
        "label": key,
        "value": line.and_then(Line::value).map(LabelValue::as_str),
        "levels": levels(answer, line),
        "reported": reported,
        "used_by": used_by(answer, key),
        "flows_to": if flows { vec!["/run/stemma/labels.json", "node label map"] } else { vec!["/run/stemma/labels.json"] },
    })
}

/// What each level says, the farthest from the host first; a level that says nothing is there too.
fn levels(answer: &Answer, line: Option<&Line<LabelValue>>) -> Vec<Value> {
    let row = |level: Level, object: String| {
        let said = line.and_then(|line| line.outcomes().find(|(statement, _)| statement.level == level));
        match said {
            None => {
                json!({"level": level.name(), "object": object, "says": null, "stops": false, "merges": true, "owners": [], "result": "says nothing"})
            }
            Some((statement, came)) => json!({
                "level": level.name(), "object": object, "says": statement.said.value().map(LabelValue::as_str), "stops": statement.said.is_tombstone(),
                "merges": statement.merges, "owners": *statement.owners, "result": result(came),
                "since": statement.since_ms.map(|ms| super::view::time(stemma_core::object::Timestamp(ms))),
            }),
        }
    };
    let mut rows = Vec::new();
    if let Some(fold) = answer.fold() {
        rows.extend(fold.template.as_ref().map(|template| row(Level::ClusterTemplate, template.meta.name.to_string())));
        rows.push(row(Level::Cluster, fold.cluster.meta.name.to_string()));
        rows.push(row(Level::NodeGroup, fold.place()));
    }
    rows.push(row(Level::Node, answer.node().display_name()));
    rows
}

fn result(came: Came) -> String {
    match came {
        Came::Wins => "wins".to_owned(),
        Came::OverriddenBy(level) => format!("overridden by the {level}"),
        Came::Stops => "stops what is above".to_owned(),
        Came::StoppedBy(level) => format!("stopped by the {level}"),
        Came::ReplacedBy(level) => format!("not merged by the {level}"),
        Came::NoEffect => "null where nothing is merged: no effect".to_owned(),
        Came::Shadowed => "an operator says otherwise".to_owned(),
        Came::Restricted => "restricted for hosts".to_owned(),
    }
}

/// The tasks of the node that read a label.
fn used_by(answer: &Answer, key: &str) -> Vec<String> {
    let Some(set) = answer.task_set() else { return Vec::new() };
    let release = &set.profile.release;
    let reads = |read: &Read| match read {
        Read::Label(name) => **name == *key,
        Read::LabelsWithPrefix(prefix) => key.starts_with(&**prefix),
        _ => false,
    };
    let using = set.profile.tasks.iter().filter(|ix| release.task(**ix).references.iter().any(|r| reads(r.read())));
    using.map(|ix| release.id(*ix).to_owned()).collect()
}

fn explain_tag(model: &Model, answer: &Answer, tag: &str) -> Value {
    if let Some(plain) = tag.strip_prefix(PRIMARY_PREFIX) {
        return explain_primary(model, answer, tag, plain);
    }
    let node = answer.node();
    let table = answer.fold().and_then(|fold| fold.table.as_ref());
    let effective = table.map(|table| table.effective_tags(&answer.roles(), &node.spec.tags)).unwrap_or_default();
    let origin = effective.iter().find(|(name, _)| ***name == *tag).map(|(_, origin)| origin);
    let unassigned = node.spec.tags.unassigned.members().any(|name| **name == *tag);
    let primary = answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|name| **name == *tag));
    let mut why = match origin {
        Some(TagOrigin::Roles(roles)) => {
            let names: Vec<&str> = roles.iter().map(stemma_core::name::Name::as_str).collect();
            format!("the node has {}, which produce it", names.join(", "))
        }
        Some(TagOrigin::Assigned) => "it was assigned by hand".to_owned(),
        None if unassigned => "a role produces it, and it was unassigned by hand".to_owned(),
        None => "no role of the node produces it, and it was not assigned".to_owned(),
    };
    if primary && !is_matched(answer, tag) {
        why += &format!("; selectors match it as {PRIMARY_PREFIX}{tag}, in the place of {tag}");
    }
    json!({"tag": tag, "has": origin.is_some(), "primary": primary, "holder": holder(model, answer, tag), "origin": origin.map(resolved::tag_origin), "why": why})
}

/// A name that selectors know and nobody assigns: it is where the tag behind it is held as primary.
fn explain_primary(model: &Model, answer: &Answer, tag: &str, plain: &str) -> Value {
    let has = is_matched(answer, tag);
    let holder = holder(model, answer, plain);
    let why = match &holder {
        _ if has && is_matched(answer, plain) => {
            format!("it holds {plain} as primary, and selectors match it by both names")
        }
        _ if has => format!("it holds {plain} as primary, and selectors match {tag} in the place of {plain}"),
        Some(holder) => format!("{holder} holds {plain} as primary"),
        None => format!("no node of the cluster holds {plain} as primary"),
    };
    json!({"tag": tag, "has": has, "primary": has, "primary_of": plain, "holder": holder, "origin": null, "why": why})
}

/// Whether a tag selector of this name matches the node.
fn is_matched(answer: &Answer, tag: &str) -> bool {
    answer.task_set().is_some_and(|set| set.profile.place.names.tag_names().any(|name| name == tag))
}

/// The node of the same cluster that holds the tag as primary.
fn holder(model: &Model, answer: &Answer, tag: &str) -> Option<String> {
    let cluster = answer.fold()?.cluster_id();
    let holds = |id: &NodeId| match model.resolve(id.0) {
        Outcome::Complete(answer) => {
            answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|own| **own == *tag))
        }
        Outcome::Incomplete(_) => false,
    };
    let chosen: Vec<NodeId> = model.fleet.primaries(cluster).map(|primary| primary.spec.node).collect();
    let holder = chosen.into_iter().chain([answer.id()]).find(holds)?;
    model.nodes.get(holder.0).map(|node| node.display_name())
}

/// What keeps a host from running what it was told to, or from being told more, a sentence each.
fn set_aside(answer: &Answer) -> Vec<String> {
    let because = |reason: &str| if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let mut said = Vec::new();
    let on_host = answer.said();
    if on_host.is_some_and(|said| said.paused) {
        said.push("it is paused on its host, which applies nothing until it is resumed there".to_owned());
    }
    if let Some(hold) = answer.hold() {
        said.push(format!("it is held{}: it keeps the task set that it has", because(&hold.reason)));
    }
    if let Some((_, reason)) = on_host.and_then(|said| said.hold.as_ref()) {
        said.push(format!("it is held on its host{}: it keeps the task set that it has", because(reason)));
    }
    if answer.is_parked() {
        said.push("it is parked: out of budgets, barriers and primaries".to_owned());
    }
    if let Some(reason) = on_host.and_then(|said| said.parked.as_ref()) {
        said.push(format!("it is parked on its host{}: out of budgets, barriers and primaries", because(reason)));
    }
    if answer.is_paused() {
        said.push("its node group or cluster is paused: no new task set is given".to_owned());
    }
    match answer.mode().value {
        Mode::Observe => said.push("its mode is observe: no task is even checked".to_owned()),
        Mode::Noop => said.push("its mode is noop: tasks are checked, and nothing is changed".to_owned()),
        Mode::Apply => {}
    }
    said
}

fn explain_task(model: &Model, answer: &Answer, id: &str) -> Result<Value, ApiError> {
    let unknown = || ApiError::new(ErrorType::ObjectNotFound, format!("the node's release has no task {}", quote(id)));
    let Some(set) = answer.task_set() else {
        return Ok(json!({"task": id, "runs": false, "why": "the node is unplaced, or no level names a release"}));
    };
    let release = &set.profile.release;
    let ix = release.find(id).ok_or_else(unknown)?;
    let falls = set.profile.all().contains(&ix);
    let left_out = set.left_out.iter().find(|(one, _)| *one == ix).map(|(_, why)| why.to_string());
    let placed = release.task(ix).placement_text();
    let why = match (falls, &left_out) {
        (false, _) => format!("it does not fall to this node: it is placed by {placed}"),
        (true, Some(reason)) => format!("it falls to this node by {placed}, and is left out: {reason}"),
        (true, None) => format!("it falls to this node by {placed}"),
    };
    let outcome = model.results.get(&answer.node().meta.uuid).and_then(|results| results.tasks.get(id));
    let references: Vec<String> = release.task(ix).references.iter().map(ToString::to_string).collect();
    Ok(json!({
        "task": id, "release": answer.release().map(|named| named.name.to_string()), "runs": falls && left_out.is_none(), "why": why, "reads": references,
        "released": model.released.get(&answer.node().meta.uuid).is_some_and(|released| state::runs(model, released).iter().any(|task| task == id)),
        "set_aside": set_aside(answer),
        "last": outcome.map(|o| json!({"at": super::view::time(o.at), "outcome": o.result.outcome, "message": o.result.message})),
    }))
}

fn explain_trait(answer: &Answer, name: &str) -> Value {
    let traits = answer.traits();
    let mut sources: Vec<String> = traits
        .sources()
        .iter()
        .filter(|(own, _)| ***own == *name)
        .flat_map(|(_, sources)| sources.iter().map(state::source))
        .collect();
    let suppressed = answer.node().spec.suppressed_traits.iter().any(|own| **own == *name);
    let detected = answer.observation().is_some_and(|seen| seen.traits.iter().any(|own| **own == *name));
    if suppressed && sources.is_empty() && detected {
        sources.push(state::source(&TraitSource::Detected));
    }
    json!({"trait": name, "has": traits.has(name), "sources": sources, "suppressed": suppressed})
}
