//! The handlers of releases, the versioned libraries of roles, tags and tasks.

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

use super::maps::{MapCall, read_map_patch, unwrap_map};
use super::objects::{ApiResource, read_body, update};
use super::{patching, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::request::StoredAnswer;
use crate::registry::DecisionError;
use crate::registry::maps::MapName;
use crate::registry::work::{PendingWrite, not_found};

impl ApiResource for ReleaseSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "releases";

    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Release>, ApiError> {
        let id = request.param("release");
        model.releases.find(None, id).cloned().ok_or_else(|| not_found(Kind::Release, id))
    }

    fn name_fields(name: &ReleaseRef) -> Map<String, Value> {
        let version = name.version.as_ref().map(ToString::to_string);
        Map::from_iter([("name".to_owned(), name.name.to_string().into()), ("version".to_owned(), json!(version))])
    }

    /// Removes the name and the version from the fields of a patch, and returns the release's name after the patch.
    /// What the patch omits is unchanged. The field `name` may also contain both, as NAME@VERSION.
    fn rename(before: &Release, fields: &mut Map<String, Value>) -> Result<ReleaseRef, ApiError> {
        let is_whole = fields.get("name").and_then(Value::as_str).is_some_and(|name| name.contains('@'));
        for (field, value) in Self::name_fields(&before.meta.name) {
            if field == "name" || !is_whole {
                fields.entry(field).or_insert(value);
            }
        }
        take_name(fields)
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

    fn identify(_request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, ReleaseRef), ApiError> {
        Ok((Uuid::now_v7(), take_name(fields)?))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    fn remove(work: &mut PendingWrite<'_>, release: &Arc<Release>) -> Result<(), DecisionError> {
        work.delete_unused(release)
    }

    fn path(object: &Release) -> String {
        Endpoint::GetRelease.path(&[&object.meta.name.to_string()])
    }

    fn check_blobs(api: &Api, spec: &Self) -> Result<(), ApiError> {
        for task in &spec.tasks {
            let Some(source) = task.source() else { continue };
            let field = format!("tasks.{}.parameters.source", task.id);
            let hash = Hash::from_source(source).map_err(|error| {
                let message = format!("the source {} of task {}: {error}", quote(source), quote(&task.id));
                ApiError::new(ErrorType::FieldInvalid, message).field(field.clone())
            })?;
            if !matches!(api.blobs.contains(hash), Ok(true)) {
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

/// Removes `name` and `version` from a body and returns the name of the release.
fn take_name(fields: &mut Map<String, Value>) -> Result<ReleaseRef, ApiError> {
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

/// `GET /v1/releases/{release}/tasks`: lists the release's own tasks, without imported ones.
pub(super) fn tasks(api: &Api, request: &HttpRequest) -> HandlerResult {
    let release = ReleaseSpec::locate(&api.model(), request)?;
    Ok(HttpResponse::ok(json!({"tasks": release.spec.tasks})).with_etag(release.meta.resource_version))
}

/// Handles a request for the labels or the annotations of a release. These are plain fields: no other object inherits
/// them, and each map is owned as a whole.
pub(super) async fn write_map(api: &Api, request: &HttpRequest, call: MapCall) -> HandlerResult {
    let caller = request.caller()?;
    let named = MapName::from_name(request.param("map")).filter(|map| *map != MapName::Parameters);
    let Some(named) = named else {
        return Err(ApiError::new(ErrorType::PathUnknown, "a release has only labels and annotations"));
    };
    let map = named.name();
    if matches!(call, MapCall::Owners | MapCall::Tombstones) {
        let message =
            "a release's labels are owned as a whole, by the manager that wrote them last; single keys can't be transferred";
        return Err(ApiError::new(ErrorType::ObjectInvalid, message));
    }
    let change =
        if matches!(call, MapCall::Merge) { read_map_patch(map, request)? } else { unwrap_map(&mut request.object()?, named)? };
    let edit = |work: &PendingWrite<'_>, release: &mut Release| {
        let present = if map == "labels" { json!(release.spec.labels) } else { json!(release.spec.annotations) };
        let next = if matches!(call, MapCall::Merge) { patching::merge_json(present, &change) } else { change.clone() };
        let body = read_body::<ReleaseSpec>([(map.to_owned(), next)].into_iter().collect())?;
        release.spec = update(api, work, &release.spec, &body, &caller, BodyShape::Native)?;
        Ok(())
    };
    let answer = |model: &Model, release: &Release| {
        StoredAnswer::json(200, ReleaseSpec::show(api, model, release, &request.base_url).into())
    };
    writes::change(api, request, &caller, edit, answer).await
}
