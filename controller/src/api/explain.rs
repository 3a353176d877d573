//! Why a label, tag, task or trait of a node is as it is: from the lines of descent that resolve keeps, folding
//! nothing again.

use serde_json::{Value, json};
use stemma_core::input::Read;
use stemma_core::key::LabelValue;
use stemma_core::labels::{Line, Outcome as Came};
use stemma_core::object::NodeSpec;
use stemma_core::origin::Level;
use stemma_core::resolve::{Answer, Outcome};
use stemma_core::role::TagOrigin;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::Shown;
use super::request::{self, Reply, Request, bad_query};
use super::{Api, resolved, state};
use crate::cache::Model;

/// `GET /v1/nodes/{node}/explain?label=|tag=|task=|trait=`.
pub(super) fn get(api: &Api, request: &Request) -> request::Outcome {
    let parameters = request.query(&[&["label", "tag", "task", "trait", "at_least"]])?;
    let model = api.cache().model();
    let node = NodeSpec::locate(&model, request)?;
    let answer = match model.resolve(node.meta.uuid) {
        Outcome::Complete(answer) => answer,
        Outcome::Incomplete(missing) => return Err(resolved::incomplete(&missing)),
    };
    let asked = |name| parameters.one(name).map_err(bad_query);
    let mut body = match (asked("label")?, asked("tag")?, asked("task")?, asked("trait")?) {
        (Some(key), None, None, None) => label(&model, &answer, key),
        (None, Some(tag), None, None) => explain_tag(&answer, tag),
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

fn explain_tag(answer: &Answer, tag: &str) -> Value {
    let node = answer.node();
    let table = answer.fold().and_then(|fold| fold.table.as_ref());
    let effective = table.map(|table| table.effective_tags(&answer.roles(), &node.spec.tags)).unwrap_or_default();
    let origin = effective.iter().find(|(name, _)| ***name == *tag).map(|(_, origin)| origin);
    let unassigned = node.spec.tags.unassigned.members().any(|name| **name == *tag);
    let primary = answer.task_set().is_some_and(|set| set.primary_tags().iter().any(|name| **name == *tag));
    let why = match origin {
        Some(TagOrigin::Roles(roles)) => {
            let names: Vec<&str> = roles.iter().map(stemma_core::name::Name::as_str).collect();
            format!("the node has {}, which produce it", names.join(", "))
        }
        Some(TagOrigin::Assigned) => "it was assigned by hand".to_owned(),
        None if unassigned => "a role produces it, and it was unassigned by hand".to_owned(),
        None => "no role of the node produces it, and it was not assigned".to_owned(),
    };
    json!({"tag": tag, "has": origin.is_some(), "primary": primary, "origin": origin.map(resolved::tag_origin), "why": why})
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
        "task": id, "release": release.name.to_string(), "runs": falls && left_out.is_none(), "why": why, "reads": references,
        "released": model.released.get(&answer.node().meta.uuid).is_some_and(|released| state::runs(model, released).iter().any(|task| task == id)),
        "last": outcome.map(|o| json!({"at": super::view::time(o.at), "outcome": o.result.outcome, "message": o.result.message})),
    }))
}

fn explain_trait(answer: &Answer, name: &str) -> Value {
    let traits = answer.traits();
    let sources: Vec<String> = traits
        .sources()
        .iter()
        .filter(|(own, _)| ***own == *name)
        .flat_map(|(_, sources)| sources.iter().map(state::source))
        .collect();
    let suppressed = answer.node().spec.suppressed_traits.iter().any(|own| **own == *name);
    json!({"trait": name, "has": traits.has(name), "sources": sources, "suppressed": suppressed})
}
