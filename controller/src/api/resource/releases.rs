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

    /// Finds the release that the path of the request names, as `NAME@VERSION` or by uuid.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Release>, ApiError> {
        let id = request.param("release");
        model.releases.find(None, id).cloned().ok_or_else(|| not_found(Kind::Release, id))
    }

    /// Returns the fields `name` and `version` of a release with this name. The version is `null` if the release has
    /// none.
    fn name_fields(name: &ReleaseRef) -> Map<String, Value> {
        let version = name.version.as_ref().map(ToString::to_string);
        Map::from_iter([("name".to_owned(), name.name.to_string().into()), ("version".to_owned(), json!(version))])
    }

    /// Removes the fields `name` and `version` from a patch, and returns the release's name after the patch. A field
    /// that the patch omits is unchanged. The field `name` may also contain the whole text NAME@VERSION. Then the old
    /// version is not added.
    fn rename(old_release: &Release, fields: &mut Map<String, Value>) -> Result<ReleaseRef, ApiError> {
        let has_version_in_name = fields.get("name").and_then(Value::as_str).is_some_and(|name| name.contains('@'));
        for (field, value) in Self::name_fields(&old_release.meta.name) {
            if field == "name" || !has_version_in_name {
                fields.entry(field).or_insert(value);
            }
        }
        remove_name(fields)
    }

    /// Adds `labels`, `annotations`, `roles`, `tags` and `tasks` where they are empty, so that each body has them.
    fn complete(_api: &Api, _model: &Model, _object: &Release, body: &mut Map<String, Value>) {
        for name in ["labels", "annotations", "roles", "tags"] {
            body.entry(name).or_insert_with(|| json!({}));
        }
        body.entry("tasks").or_insert_with(|| json!([]));
    }

    /// Adds the number of the release's tasks to its entry in a list.
    fn summarize(object: &Release, row: &mut Map<String, Value>) {
        row.insert("task_count".into(), object.spec.tasks.len().into());
    }

    fn labels(_model: &Model, object: &Release) -> BTreeMap<String, String> {
        object.spec.labels.clone()
    }

    /// Returns a new uuid and the name for a new release. Removes the name from the fields of its body.
    fn identify(_request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, ReleaseRef), ApiError> {
        Ok((Uuid::now_v7(), remove_name(fields)?))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    /// Deletes the release. Fails if another object uses it.
    fn remove(work: &mut PendingWrite<'_>, release: &Arc<Release>) -> Result<(), DecisionError> {
        work.delete_unused(release)
    }

    fn path(object: &Release) -> String {
        Endpoint::GetRelease.path(&[&object.meta.name.to_string()])
    }

    /// Checks that the controller has the content of each file that a task has as its `source`. Otherwise it fails, and
    /// the error contains the request that the client must send first.
    fn check_blobs(api: &Api, spec: &Self) -> Result<(), ApiError> {
        let sources = spec.tasks.iter().flat_map(|task| task.sources().into_iter().map(move |source| (task, source)));
        for (task, (field, source)) in sources {
            let field = format!("tasks.{}.parameters.{field}", task.id);
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

    /// Removes `uuid` and `links`, which only the controller sets, so that a client can send them back.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        body.retain(|name, _| !matches!(name.as_str(), "uuid" | "links"));
        Ok(())
    }
}

/// Removes `name` and `version` from a body, and returns both as the name of a release. Fails if the name is missing,
/// or if a field is not text.
fn remove_name(fields: &mut Map<String, Value>) -> Result<ReleaseRef, ApiError> {
    let invalid = |field: &str, reason: String| ApiError::new(ErrorType::FieldInvalid, reason).field(field);
    let Some(Value::String(name)) = fields.remove("name") else {
        return Err(ApiError::new(ErrorType::FieldMissing, "a release needs a name, a text").field("name"));
    };
    match fields.remove("version") {
        None | Some(Value::Null) => ReleaseSpec::parse_name(&name),
        Some(Value::String(version)) => ReleaseSpec::parse_name(&format!("{name}@{version}")),
        Some(not_text) => {
            let reason = format!("version is text: write \"{not_text}\" (a bare 2026.10 would be the number 2026.1)");
            Err(invalid("version", reason))
        }
    }
}

/// Handles `GET /v1/releases/{release}/tasks`: lists the tasks that the release itself contains, without those of
/// imported releases.
pub(super) fn tasks(api: &Api, request: &HttpRequest) -> HandlerResult {
    let release = ReleaseSpec::locate(&api.model(), request)?;
    Ok(HttpResponse::ok(json!({"tasks": release.spec.tasks})).with_etag(release.meta.resource_version))
}

/// Handles a write of the labels or the annotations of a release. No other object inherits either map. Each map has one
/// owner as a whole, so its single keys have no owners and no tombstones.
pub(super) async fn write_map(api: &Api, request: &HttpRequest, call: MapCall) -> HandlerResult {
    let caller = request.caller()?;
    let map = MapName::from_name(request.param("map")).filter(|map| *map != MapName::Parameters);
    let Some(map) = map else {
        return Err(ApiError::new(ErrorType::PathUnknown, "a release has only labels and annotations"));
    };
    let field = map.name();
    if matches!(call, MapCall::Owners | MapCall::Tombstones) {
        let message =
            "a release's labels are owned as a whole, by the manager that wrote them last; single keys can't be transferred";
        return Err(ApiError::new(ErrorType::ObjectInvalid, message));
    }
    let values =
        if matches!(call, MapCall::Merge) { read_map_patch(field, request)? } else { unwrap_map(&mut request.object()?, map)? };
    let edit = |work: &PendingWrite<'_>, release: &mut Release| {
        let old_values = if field == "labels" { json!(release.spec.labels) } else { json!(release.spec.annotations) };
        let new_values = if matches!(call, MapCall::Merge) { patching::merge_json(old_values, &values) } else { values.clone() };
        let body = read_body::<ReleaseSpec>([(field.to_owned(), new_values)].into_iter().collect())?;
        release.spec = update(api, work, &release.spec, &body, &caller, BodyShape::Native)?;
        Ok(())
    };
    let answer = |model: &Model, release: &Release| {
        StoredAnswer::json(200, ReleaseSpec::show(api, model, release, &request.base_url).into())
    };
    writes::change(api, request, &caller, edit, answer).await
}
