//! The handlers of principals, with their roles and clusters. The credentials of principals are handled in
//! [`super::credentials`].

use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use stemma_core::manifest::read_value;
use stemma_core::name::is_blank;
use stemma_core::object::{ClusterId, Kind, Object, Principal, PrincipalRole, PrincipalSpec, Timestamp};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::changes::{Changes, LostLabels};
use super::writes::{self, with_changes};
use super::{changes, lists, view};
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::cache::model::Resource as _;
use crate::records::audit::PartAction;
use crate::records::request::StoredAnswer;
use crate::registry::admit::bad_field;
use crate::registry::work::{PendingWrite, check_revision, not_found};
use crate::registry::{Caller, DecisionError};

/// Maximum length of a description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 255;

/// The body of a new principal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreatePrincipalBody {
    name: String,
    role: PrincipalRole,
    cluster: Option<String>,
    description: Option<String>,
}

/// The body of a merge patch of a principal. `null` removes a field.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PatchPrincipalBody {
    #[serde(deserialize_with = "deserialize_role")]
    role: Option<PrincipalRole>,
    #[serde(deserialize_with = "deserialize_patch")]
    cluster: Option<FieldPatch>,
    #[serde(deserialize_with = "deserialize_patch")]
    description: Option<FieldPatch>,
}

/// The change of one field of a principal.
#[derive(Debug)]
enum FieldPatch {
    /// The new value.
    Set(String),
    /// The field is removed.
    Remove,
}

impl FieldPatch {
    fn into_text(self) -> Option<String> {
        match self {
            Self::Set(text) => Some(text),
            Self::Remove => None,
        }
    }
}

/// Reads the role in a merge patch. `null` is refused, because every principal has a role.
fn deserialize_role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PrincipalRole>, D::Error> {
    PrincipalRole::deserialize(deserializer).map(Some)
}

fn deserialize_patch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FieldPatch>, D::Error> {
    Ok(Some(Option::deserialize(deserializer)?.map_or(FieldPatch::Remove, FieldPatch::Set)))
}

/// `GET /v1/principals`: a page of principals, optionally of one role or one cluster.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let role = request.query.text("role")?.map(|text| {
        let read = serde_json::from_value::<PrincipalRole>(text.into());
        read.map_err(|_| BadQuery::bad_value("role", text, "it is viewer, operator or admin"))
    });
    let role = role.transpose()?;
    let cluster = request.query.text("cluster")?.map(|id| {
        let found = model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
        found.ok_or_else(|| not_found(Kind::Cluster, id).field("cluster"))
    });
    let cluster = cluster.transpose()?;
    let keeps = |one: &&Arc<Principal>| {
        role.is_none_or(|wanted| one.spec.role == wanted) && (cluster.is_none() || one.spec.cluster == cluster)
    };
    let now = api.registry.now();
    lists::list_rows(request, "uuid", model.principals.iter().filter(keeps).map(|one| principal_json(&model, one, now)).collect())
}

/// `GET /v1/principals/{principal}`.
pub(super) fn get(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let principal = find(&model, request.param("principal"))?;
    Ok(HttpResponse::ok(principal_json(&model, &principal, api.registry.now())).with_etag(principal.meta.resource_version))
}

/// `POST /v1/principals`: creates a principal. Unless the body names a cluster, the principal of a caller that is bound
/// to a cluster is bound to the same cluster.
pub(super) async fn create(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let wanted: CreatePrincipalBody = read_value(&request.json()?).map_err(|error| bad_field("principal", &error))?;
    let name = PrincipalSpec::parse_name(&wanted.name)?;
    let description = check_description(wanted.description)?;
    let uuid = Uuid::now_v7();
    commit(api, request, &caller, |work| {
        let cluster = wanted.cluster.as_deref().map(|id| find_cluster(&work.model, id)).transpose()?;
        let cluster = cluster.or(work.model.visible_cluster);
        let spec = PrincipalSpec { role: wanted.role, cluster, description: description.clone(), ..PrincipalSpec::default() };
        let principal = work.create(uuid, name.clone(), spec)?.object;
        let location = Some(Endpoint::GetPrincipal.path(&[&name]));
        Ok(StoredAnswer { location, ..StoredAnswer::json(201, principal_json(&work.model, &principal, work.now())) })
    })
    .await
}

/// `PATCH /v1/principals/{principal}`: applies a merge patch to a principal. Credentials that callers with fewer rights
/// issued are revoked if the principal gets more rights.
pub(super) async fn patch(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, revision) = (request.caller()?, request.if_match()?);
    let body = Value::Object(request.object()?);
    let changed: PatchPrincipalBody = read_value(&body).map_err(|error| bad_field("principal", &error))?;
    let description = changed.description.map(|change| check_description(change.into_text())).transpose()?;
    let new_cluster = changed.cluster.map(FieldPatch::into_text);
    commit(api, request, &caller, |work| {
        let before = find(&work.model, request.param("principal"))?;
        check_revision(&before, revision)?;
        let mut spec = before.spec.clone();
        spec.role = changed.role.unwrap_or(spec.role);
        if let Some(wanted) = &new_cluster {
            spec.cluster = wanted.as_deref().map(|id| find_cluster(&work.model, id)).transpose()?;
        }
        if let Some(description) = &description {
            spec.description.clone_from(description);
        }
        // This must precede the write. Afterwards, credentials that were issued by callers with fewer rights would have
        // the principal's new rights.
        let ended = spec.revoke_by_lesser_rights(before.spec.rights(), work.now());
        let written = work.update(&before, before.meta.name.clone(), spec)?.object;
        if !ended.is_empty() {
            work.draft().set_part(PartAction::Revoked, ended.join(", "));
        }
        let mut changes =
            Changes::default().field_changes(&principal_fields(work.before(), &before), &principal_fields(&work.model, &written));
        changes.as_array_mut().expect("a list").extend(ended.iter().map(|field| changes::end_change(field)));
        let answer = StoredAnswer::json(200, principal_json(&work.model, &written, work.now()));
        Ok(with_changes(answer, request, changes, &LostLabels::default(), work))
    })
    .await
}

/// `DELETE /v1/principals/{principal}`.
pub(super) async fn delete(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, revision) = (request.caller()?, request.if_match()?);
    commit(api, request, &caller, |work| {
        let principal = find(&work.model, request.param("principal"))?;
        check_revision(&principal, revision)?;
        let changes = Changes::default().field_changes(&principal_fields(&work.model, &principal), &json!({}));
        work.delete_unused(&principal)?;
        Ok(with_changes(StoredAnswer::empty(204), request, changes, &LostLabels::default(), work))
    })
    .await
}

/// Commits a write of principals. In a fleet of an older version, which has no principals, it also stores the first
/// admin.
///
/// # Errors
/// Fails if `decide` does, or if the write itself is refused.
pub(super) async fn commit(
    api: &Api,
    request: &HttpRequest,
    caller: &Caller,
    decide: impl Fn(&mut PendingWrite<'_>) -> Result<StoredAnswer, DecisionError>,
) -> HandlerResult {
    writes::commit(api, request, caller, |work| {
        ensure_first_admin(api, work)?;
        decide(work)
    })
    .await
}

/// Stores the first admin if there is no principal yet.
///
/// # Errors
/// As [`PendingWrite::create`].
pub(super) fn ensure_first_admin(api: &Api, work: &mut PendingWrite<'_>) -> Result<(), ApiError> {
    api.first_admin.as_deref().map_or(Ok(()), |first| work.store_first_admin(first))
}

/// Finds a principal by name or uuid.
///
/// # Errors
/// Fails if there is no such principal.
pub(super) fn find(model: &Model, id: &str) -> Result<Arc<Principal>, ApiError> {
    model.principals.find(None, id).cloned().ok_or_else(|| not_found(Kind::Principal, id))
}

fn find_cluster(model: &Model, id: &str) -> Result<ClusterId, ApiError> {
    let found = model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
    found
        .ok_or_else(|| ApiError::new(ErrorType::ReferenceDangling, format!("there is no cluster {}", quote(id))).field("cluster"))
}

/// Returns a description if it is valid: one line of limited length. An empty one removes the description.
fn check_description(text: Option<String>) -> Result<Option<String>, ApiError> {
    let is_shown = |text: &String| text.is_empty() || !is_blank(text);
    let is_line = |text: &String| text.chars().count() <= MAX_DESCRIPTION_CHARS && !text.chars().any(char::is_control);
    let is_fine = |text: &String| is_shown(text) && is_line(text);
    if text.as_ref().is_none_or(is_fine) {
        return Ok(text.filter(|text| !text.is_empty()));
    }
    let message = format!("a description is one line of at most {MAX_DESCRIPTION_CHARS} characters, and not of blanks alone");
    Err(ApiError::new(ErrorType::FieldInvalid, message).field("description"))
}

/// Returns the fields of a principal as a write reports them.
fn principal_fields(model: &Model, principal: &Principal) -> Value {
    principal_fields_with(&cluster_name(model, principal), principal)
}

/// Returns the fields of a principal as a write reports them. `cluster` is the name of its cluster.
pub(super) fn principal_fields_with(cluster: &Value, principal: &Principal) -> Value {
    let spec = &principal.spec;
    let all = json!({"role": spec.role, "cluster": cluster, "description": spec.description});
    let present = all.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    present.map(|(name, value)| (name.clone(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}

fn cluster_name(model: &Model, principal: &Principal) -> Value {
    let cluster = principal.spec.cluster.and_then(|id| model.clusters.get(id.0));
    cluster.map(|cluster| cluster.meta.name.to_string()).into()
}

/// Returns a principal as the API shows it, with the credentials that have not ended at the time `now`. Secrets and
/// their hashes are never shown.
fn principal_json(model: &Model, principal: &Object<PrincipalSpec>, now: Timestamp) -> Value {
    let spec = &principal.spec;
    let time = |at: Timestamp| view::format_time(at);
    let certificate = |one: &stemma_core::object::PrincipalCertificate| {
        json!({
            "serial": one.serial, "issued_at": time(one.issued_at), "ends_at": time(one.ends_at),
            "revoked_at": one.revoked_at.map(time),
        })
    };
    let token = |one: &stemma_core::object::BearerToken| json!({"id": one.id, "issued_at": time(one.issued_at), "ends_at": time(one.ends_at)});
    let mut body = serde_json::Map::new();
    view::add_meta(&mut body, &principal.meta);
    body.insert("name".into(), principal.meta.name.to_string().into());
    body.insert("role".into(), json!(spec.role));
    body.insert("cluster".into(), cluster_name(model, principal));
    body.insert("description".into(), json!(spec.description));
    let certificates = spec.certificates.iter().filter(|one| one.ends_at > now);
    let tokens = spec.tokens.iter().filter(|one| one.ends_at > now);
    body.insert("certificates".into(), certificates.map(certificate).collect());
    body.insert("tokens".into(), tokens.map(token).collect());
    body.into()
}
