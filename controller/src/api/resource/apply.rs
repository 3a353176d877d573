//! Several objects at once: all of them, or none.

use serde_json::{Map, Value, json};
use stemma_core::finding::strictly;
use stemma_core::manifest::{Author, Document, Key, read_document, write};
use stemma_core::object::{ClusterId, ClusterSpec, ClusterTemplateSpec, Kind, NodeGroupSpec, NodeSpec, ReleaseSpec};
use stemma_core::ownership::{InvalidOwner, Manager};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::changes::Changes;
use super::objects::Shown;
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Request};
use crate::records::request::Answer;
use crate::registry::admit::{bad_body, bad_field};
use crate::registry::names::ModelNames;
use crate::registry::work::Work;

/// The most objects of one apply.
const MOST_OBJECTS: usize = 2_000;

/// `POST /v1/apply`.
pub(super) async fn post(api: &Api, request: &Request) -> HandlerResult {
    let parameters = &request.query;
    let caller = request.caller()?;
    let force = parameters.flag("force")?.unwrap_or(false);
    let strict = parameters.flag("strict")?.unwrap_or(false);
    let bad_manager = |e: InvalidOwner| ApiError::new(ErrorType::RequestQuery, e.to_string()).field("adopt");
    let adopt = parameters.one("adopt")?.map(Manager::new).transpose().map_err(bad_manager)?;
    let author = Author::Apply { manager: &caller.manager, force, adopt: adopt.as_ref() };
    let documents = read(request.object()?)?;
    writes::commit(api, request, &caller, |work| {
        let (before, mut changes) = (work.model.clone(), Changes::default());
        let mut rows: Vec<Value> = Vec::new();
        for (at, document) in &documents {
            rows.push(apply_one(api, work, document, author, &mut changes).map_err(|e| within(e, *at, document))?);
        }
        // With what the write ends on nodes that it does not name.
        work.forget()?;
        let lost = changes.lost_labels(&before, &work.model, work.reach().dirty.nodes()).to_json();
        let findings = super::findings::of_write(work);
        if let Some(counted) = strictly(&findings).filter(|_| strict) {
            let message = format!("a strict apply, and {counted}; nothing was changed");
            return Err(ApiError::new(ErrorType::FindingStrict, message).extra("findings", json!(findings)).into());
        }
        Ok(Answer::json(200, json!({"revision": null, "objects": rows, "lost_labels": lost, "findings": findings})))
    })
    .await
}

/// Reads the objects, and sorts them so that what is referred to comes first.
fn read(mut body: Map<String, Value>) -> Result<Vec<(usize, Document)>, ApiError> {
    let objects = body.remove("objects");
    // The digest that a diff gave: whoever sends one wants to be refused when it no longer holds, and there is no diff yet.
    if let Some(other) = body.keys().next() {
        return Err(ApiError::new(
            ErrorType::FieldUnknown,
            format!("an apply is {{\"objects\": […]}}, without {}", quote(other)),
        )
        .field(other.clone()));
    }
    let Some(Value::Array(objects)) = objects else {
        return Err(ApiError::new(ErrorType::FieldMissing, "an apply is {\"objects\": […]}").field("objects"));
    };
    if objects.len() > MOST_OBJECTS {
        return Err(ApiError::new(
            ErrorType::FieldInvalid,
            format!("at most {MOST_OBJECTS} objects are applied at once, these are {}", objects.len()),
        )
        .field("objects"));
    }
    let mut documents = Vec::new();
    for (at, object) in objects.into_iter().enumerate() {
        let document = read_document(&object.to_string()).map_err(|e| {
            let error = bad_field(&Kind::Node.word(), &e);
            ApiError {
                message: format!("object {at}: {e}"),
                field: Some(format!("objects[{at}].{}", e.field)),
                ..error
            }
        })?;
        if let Some((before, _)) = documents.iter().find(|(_, other): &&(usize, Document)| other.key == document.key) {
            let message = format!(
                "{} stands in this apply twice, as object {before} and object {at}; keep one of them",
                document.key
            );
            return Err(ApiError::new(ErrorType::ObjectInvalid, message).field(format!("objects[{at}]")));
        }
        documents.push((at, document));
    }
    documents.sort_by_key(|(_, document)| document.key.kind());
    sort_imports(&mut documents);
    Ok(documents)
}

/// A release comes after those of this apply that it imports. What stands in a cycle keeps its place, and is refused
/// as an import that is not there.
fn sort_imports(documents: &mut Vec<(usize, Document)>) {
    let releases = documents.iter().take_while(|(_, d)| d.key.kind() == Kind::Release).count();
    let mut waiting: Vec<_> = documents.drain(..releases).collect();
    let mut sorted: Vec<(usize, Document)> = Vec::new();
    while !waiting.is_empty() {
        let waits = |document: &Document, waiting: &[(usize, Document)]| {
            let imports: Vec<String> =
                document.body.get("imports").and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
            waiting.iter().any(|(_, other)| {
                other.key != document.key && imports.iter().any(|i| format!("release/{i}") == other.key.to_string())
            })
        };
        let next = waiting.iter().position(|(_, document)| !waits(document, &waiting)).unwrap_or(0);
        sorted.push(waiting.remove(next));
    }
    documents.splice(0..0, sorted);
}

/// Applies one object, and gives its line of the answer.
fn apply_one(
    api: &Api,
    work: &mut Work<'_>,
    document: &Document,
    author: Author<'_>,
    changes: &mut Changes,
) -> Result<Value, ApiError> {
    match &document.key {
        Key::Release(name) => put(api, work, document, name.clone(), ReleaseSpec::default(), author, changes),
        Key::ClusterTemplate(name) => {
            put(api, work, document, name.clone(), ClusterTemplateSpec::default(), author, changes)
        }
        Key::Cluster(name) => put(api, work, document, name.clone(), ClusterSpec::default(), author, changes),
        Key::NodeGroup { cluster, name } => {
            let parent = work.model.clusters.find(None, cluster).cloned().ok_or_else(|| {
                let message = format!("there is no cluster {}", quote(cluster));
                ApiError::new(ErrorType::ReferenceDangling, message)
                    .field("cluster")
                    .detail("create the cluster first, or apply it together with this group")
            })?;
            put(api, work, document, name.clone(), NodeGroupSpec::new(ClusterId(parent.meta.uuid)), author, changes)
        }
        Key::Node(name) => put(api, work, document, Some(name.clone()), NodeSpec::default(), author, changes),
    }
}

fn put<S: Shown>(
    api: &Api,
    work: &mut Work<'_>,
    document: &Document,
    name: S::Name,
    new: S,
    author: Author<'_>,
    changes: &mut Changes,
) -> Result<Value, ApiError> {
    let before = S::name_text(&name).and_then(|text| S::shelf(&work.model).named(new.scope(), &text)).cloned();
    if document.body.get("reports").is_some_and(|raw| raw.get() != "null") {
        let message = "reports stands in a manifest for `stemma resolve` without a controller; a controller takes them from hosts alone";
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("reports"));
    }
    if let (Some(uuid), Some(before)) = (document.uuid, &before)
        && uuid != before.meta.uuid
    {
        let message = format!("{} has the uuid {}, not {uuid}", document.key, before.meta.uuid);
        return Err(ApiError::new(ErrorType::FieldInvalid, message).field("uuid"));
    }
    let mut spec = before.as_ref().map_or(new, |object| object.spec.clone());
    write(&mut spec, &document.body, author, &ModelNames::new(&work.model, &api.traits), work.now().0)
        .map_err(bad_body::<S>)?;
    // File bodies are sent before a write that is made, not before one that is tried out.
    if !work.is_dry_run() {
        S::check_bodies(api, &spec)?;
    }
    let model = work.model.clone();
    let written = match &before {
        Some(before) => work.update(before, before.meta.name.clone(), spec)?,
        None => work.create(document.uuid.unwrap_or_else(Uuid::now_v7), name, spec)?,
    };
    let name = document.key.to_string();
    let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name);
    let mut row = json!({"kind": S::KIND, "name": name, "uuid": written.object.meta.uuid, "action": written.action});
    if let Some(before) = &before {
        row["changes"] = changes.of(api, (&model, before), (&work.model, &written.object));
    }
    Ok(row)
}

/// Says which object of the apply is meant.
fn within(error: ApiError, at: usize, document: &Document) -> ApiError {
    let field =
        error.field.as_deref().map_or_else(|| format!("objects[{at}]"), |field| format!("objects[{at}].{field}"));
    ApiError { message: format!("{}: {}", document.key, error.message), field: Some(field), ..error }
}
