//! Releases: the task library.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::object::{Kind, Release, ReleaseSpec};
use stemma_core::origin::Level;
use stemma_core::task::task_type;
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::Hash;

use super::lists::Rows;
use super::maps::MapCall;
use super::objects::{self, Shown, read_body};
use super::{lists, patching, view, writes};
use crate::api::Api;
use crate::api::http::request::{Outcome, Reply, Request};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::request::Answer;
use crate::registry::Undecided;
use crate::registry::names::ModelNames;
use crate::registry::work::{Work, check_presumed, not_found};

impl Shown for ReleaseSpec {
    const LEVEL: Option<Level> = None;

    fn locate(model: &Model, request: &Request) -> Result<Arc<Release>, ApiError> {
        let id = request.part("release");
        model.releases.find(None, id).cloned().ok_or_else(|| not_found(Kind::Release, id))
    }

    fn show(api: &Api, model: &Model, object: &Release, base: &str) -> Map<String, Value> {
        let mut body = Map::new();
        view::meta(&mut body, &object.meta);
        body.insert("name".into(), object.meta.name.name.to_string().into());
        body.insert("version".into(), json!(object.meta.name.version.as_ref().map(ToString::to_string)));
        body.extend(objects::fields_of(&object.spec, &ModelNames::new(model, &api.traits)));
        for (name, empty) in [
            ("labels", json!({})),
            ("annotations", json!({})),
            ("roles", json!({})),
            ("tags", json!({})),
            ("tasks", json!([])),
        ] {
            body.entry(name).or_insert(empty);
        }
        body.insert("links".into(), view::links(base, &Self::path(object)));
        body
    }

    fn remove(work: &mut Work<'_>, release: &Arc<Release>) -> Result<(), Undecided> {
        work.delete_release(release)
    }

    fn path(object: &Release) -> String {
        format!("releases/{}", object.meta.name)
    }

    fn check_bodies(api: &Api, spec: &Self) -> Result<(), ApiError> {
        for task in &spec.tasks {
            if task_type(&task.kind).is_none_or(|known| known.name != "file") {
                continue;
            }
            let Some(source) = task.parameters.get("source").and_then(Value::as_str) else { continue };
            let field = format!("tasks.{}.parameters.source", task.id);
            let hash = Hash::of_source(source).map_err(|error| {
                let message = format!("the source {} of task {}: {error}", quote(source), quote(&task.id));
                ApiError::new(ErrorType::FieldInvalid, message).field(field.clone())
            })?;
            if !matches!(api.blobs.has(hash), Ok(true)) {
                let message = format!("the file body {source} of task {} was not sent", quote(&task.id));
                let advice = format!("PUT /v1/blobs/{hash} first; `stemma apply` does so by itself");
                return Err(ApiError::new(ErrorType::BlobMissing, message).field(field).detail(advice));
            }
        }
        Ok(())
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        body.retain(|name, _| !matches!(name.as_str(), "uuid" | "links"));
        Ok(())
    }
}

/// `GET /v1/releases`: without their tasks, which can be many.
pub(super) fn list(api: &Api, request: &Request) -> Outcome {
    let model = api.cache().model();
    let selector = lists::selector(&request.query)?;
    let keeps = |object: &Release| lists::selected(selector.as_ref(), || object.spec.labels.clone());
    let rows = Rows::read(request, model.releases.iter(), keeps, |object| object.meta.name.to_string())?;
    let (api, model, base) = (api.clone(), Arc::clone(&model), request.base.clone());
    Ok(rows.reply("releases", move |object| {
        let mut body = ReleaseSpec::show(&api, &model, object, &base);
        let tasks = body.remove("tasks").and_then(|tasks| tasks.as_array().map(Vec::len));
        body.insert("task_count".into(), tasks.unwrap_or_default().into());
        body
    }))
}

/// The name of a release from its body's `name` and `version`.
fn name_of(fields: &mut Map<String, Value>) -> Result<<ReleaseSpec as stemma_core::object::Spec>::Name, ApiError> {
    let invalid = |field: &str, reason: String| ApiError::new(ErrorType::FieldInvalid, reason).field(field);
    let Some(Value::String(name)) = fields.remove("name") else {
        return Err(ApiError::new(ErrorType::FieldMissing, "a release needs a name, a text").field("name"));
    };
    match fields.remove("version") {
        None | Some(Value::Null) => ReleaseSpec::parse_name(&name),
        Some(Value::String(version)) => ReleaseSpec::parse_name(&format!("{name}@{version}")),
        Some(other) => {
            let reason = format!("version is text: write \"{other}\" (a bare 2026.10 would be the number 2026.1)");
            Err(invalid("version", reason))
        }
    }
}

/// `POST /v1/releases`.
pub(super) async fn post(api: &Api, request: &Request) -> Outcome {
    let mut fields = request.object()?;
    let name = name_of(&mut fields)?;
    writes::post::<ReleaseSpec>(api, request, name, fields).await
}

/// `GET /v1/releases/{release}/tasks`.
pub(super) fn tasks(api: &Api, request: &Request) -> Outcome {
    let release = ReleaseSpec::locate(&api.cache().model(), request)?;
    Ok(Reply::ok(json!({"tasks": release.spec.tasks})).tagged(release.meta.resource_version))
}

/// The calls of a release's own labels and annotations: plain maps, inherited by nobody, owned as one field each.
pub(super) async fn write_map(api: &Api, request: &Request, call: MapCall) -> Outcome {
    let caller = request.caller()?;
    let map = request.part("map");
    if !matches!(map, "labels" | "annotations") {
        return Err(ApiError::new(ErrorType::PathUnknown, "a release has labels and annotations alone"));
    }
    if matches!(call, MapCall::Owners | MapCall::Tombstones) {
        let message =
            "a release's labels are owned together, by who wrote them last; there is nothing to hand over key by key";
        return Err(ApiError::new(ErrorType::ObjectInvalid, message));
    }
    let (mut body, presumed) = (request.object()?, request.presumed()?);
    let given = match body.remove(map) {
        Some(given) if body.is_empty() => given,
        _ if matches!(call, MapCall::Merge) => Value::Object(request.object()?),
        _ => {
            return Err(
                ApiError::new(ErrorType::FieldMissing, format!("this call takes {{\"{map}\": {{…}}}}")).field(map)
            );
        }
    };
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let before = ReleaseSpec::locate(&work.model, request)?;
        check_presumed(&before, presumed)?;
        let present = if map == "labels" { json!(before.spec.labels) } else { json!(before.spec.annotations) };
        let next = if matches!(call, MapCall::Merge) { patching::merged(present, &given) } else { given.clone() };
        let fields: Map<String, Value> = [(map.to_owned(), next)].into_iter().collect();
        let body = read_body::<ReleaseSpec>(fields)?;
        let spec = objects::update(api, &work, &before.spec, &body, &caller, BodyShape::Own)?;
        let written = work.update(&before, before.meta.name.clone(), spec)?;
        let shown = ReleaseSpec::show(api, &work.model, &written.object, &request.base);
        work.finish(Answer::json(200, shown.into()))
    });
    Ok(Reply::written(answer.await?, &request.base))
}
