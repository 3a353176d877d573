//! Releases: the task library.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::name::ReleaseRef;
use stemma_core::object::{Kind, Release, ReleaseSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use stemma_wire::message::Hash;
use uuid::Uuid;

use super::maps::{MapCall, merged_map, wrapped};
use super::objects::{Shown, read_body, update};
use super::{patching, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::request::Answer;
use crate::registry::Undecided;
use crate::registry::maps::MapName;
use crate::registry::work::{Work, not_found};

impl Shown for ReleaseSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "releases";

    fn locate(model: &Model, request: &Request) -> Result<Arc<Release>, ApiError> {
        let id = request.part("release");
        model.releases.find(None, id).cloned().ok_or_else(|| not_found(Kind::Release, id))
    }

    fn named(name: &ReleaseRef) -> Map<String, Value> {
        let version = name.version.as_ref().map(ToString::to_string);
        Map::from_iter([("name".to_owned(), name.name.to_string().into()), ("version".to_owned(), json!(version))])
    }

    /// Its name and version, each as it is where a patch leaves it out. A name may also be given whole, as NAME@VERSION.
    fn rename(before: &Release, fields: &mut Map<String, Value>) -> Result<ReleaseRef, ApiError> {
        let is_whole = fields.get("name").and_then(Value::as_str).is_some_and(|name| name.contains('@'));
        for (field, own) in Self::named(&before.meta.name) {
            if field == "name" || !is_whole {
                fields.entry(field).or_insert(own);
            }
        }
        name_of(fields)
    }

    fn complete(_api: &Api, _model: &Model, _object: &Release, body: &mut Map<String, Value>) {
        for name in ["labels", "annotations", "roles", "tags"] {
            body.entry(name).or_insert_with(|| json!({}));
        }
        body.entry("tasks").or_insert_with(|| json!([]));
    }

    fn summarize(object: &Release, row: &mut Map<String, Value>) {
        row.insert("task_count".into(), object.spec.tasks.len().into());
    }

    fn labels(_model: &Model, object: &Release) -> BTreeMap<String, String> {
        object.spec.labels.clone()
    }

    fn identify(_request: &Request, fields: &mut Map<String, Value>) -> Result<(Uuid, ReleaseRef), ApiError> {
        Ok((Uuid::now_v7(), name_of(fields)?))
    }

    fn blank(_model: &Model, _request: &Request) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    fn remove(work: &mut Work<'_>, release: &Arc<Release>) -> Result<(), Undecided> {
        work.delete_unused(release)
    }

    fn path(object: &Release) -> String {
        Endpoint::GetRelease.path(&[&object.meta.name.to_string()])
    }

    fn check_bodies(api: &Api, spec: &Self) -> Result<(), ApiError> {
        for task in &spec.tasks {
            let Some(source) = task.source() else { continue };
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

/// The name of a release from its body's `name` and `version`.
fn name_of(fields: &mut Map<String, Value>) -> Result<ReleaseRef, ApiError> {
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

/// `GET /v1/releases/{release}/tasks`.
pub(super) fn tasks(api: &Api, request: &Request) -> HandlerResult {
    let release = ReleaseSpec::locate(&api.model(), request)?;
    Ok(Reply::ok(json!({"tasks": release.spec.tasks})).tagged(release.meta.resource_version))
}

/// The calls of a release's own labels and annotations: plain maps, inherited by nobody, owned as one field each.
pub(super) async fn write_map(api: &Api, request: &Request, call: MapCall) -> HandlerResult {
    let caller = request.caller()?;
    let named = MapName::named(request.part("map")).filter(|map| *map != MapName::Parameters);
    let Some(named) = named else {
        return Err(ApiError::new(ErrorType::PathUnknown, "a release has labels and annotations alone"));
    };
    let map = named.name();
    if matches!(call, MapCall::Owners | MapCall::Tombstones) {
        let message =
            "a release's labels are owned together, by who wrote them last; there is nothing to hand over key by key";
        return Err(ApiError::new(ErrorType::ObjectInvalid, message));
    }
    let given = if matches!(call, MapCall::Merge) {
        merged_map(map, request)?
    } else {
        wrapped(&mut request.object()?, named)?
    };
    let edit = |work: &Work<'_>, release: &mut Release| {
        let present = if map == "labels" { json!(release.spec.labels) } else { json!(release.spec.annotations) };
        let next = if matches!(call, MapCall::Merge) { patching::merged(present, &given) } else { given.clone() };
        let body = read_body::<ReleaseSpec>([(map.to_owned(), next)].into_iter().collect())?;
        release.spec = update(api, work, &release.spec, &body, &caller, BodyShape::Own)?;
        Ok(())
    };
    let answer = |model: &Model, release: &Release| {
        Answer::json(200, ReleaseSpec::show(api, model, release, &request.base).into())
    };
    writes::change(api, request, &caller, edit, answer).await
}
