//! The HTTP handlers of principals: they read and write a principal's role, cluster and description. The module
//! [`super::credentials`] handles the tokens and certificates of principals.

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

/// The body of the request that creates a principal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreatePrincipalBody {
    name: String,
    role: PrincipalRole,
    cluster: Option<String>,
    description: Option<String>,
}

/// The body of a merge patch of a principal. In `cluster` and `description`, `null` removes the field. An omitted field
/// is unchanged.
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

/// The change of one text field of a principal by a merge patch.
#[derive(Debug)]
enum FieldPatch {
    /// The new value.
    Set(String),
    /// The field is removed, because the patch contains `null`.
    Remove,
}

impl FieldPatch {
    /// Returns the new text, or `None` if the patch removes the field.
    fn into_text(self) -> Option<String> {
        match self {
            Self::Set(text) => Some(text),
            Self::Remove => None,
        }
    }
}

/// Reads the role of a merge patch, for serde. `null` is an error, because every principal has a role.
fn deserialize_role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PrincipalRole>, D::Error> {
    PrincipalRole::deserialize(deserializer).map(Some)
}

/// Reads an optional field of a merge patch, for serde. `null` removes the field. (If the patch omits the field, serde
/// does not call this function.)
fn deserialize_patch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FieldPatch>, D::Error> {
    Ok(Some(Option::deserialize(deserializer)?.map_or(FieldPatch::Remove, FieldPatch::Set)))
}

/// Handles `GET /v1/principals`: returns one page of principals. The query can limit the list to one role or one
/// cluster.
pub(super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let role = request.query.text("role")?.map(|text| {
        let parsed = serde_json::from_value::<PrincipalRole>(text.into());
        parsed.map_err(|_| BadQuery::bad_value("role", text, "it is viewer, operator or admin"))
    });
    let role = role.transpose()?;
    let cluster = request.query.text("cluster")?.map(|id| {
        let cluster_id = model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
        cluster_id.ok_or_else(|| not_found(Kind::Cluster, id).field("cluster"))
    });
    let (cluster, now) = (cluster.transpose()?, api.registry.now());
    let is_listed = |principal: &&Arc<Principal>| {
        role.is_none_or(|role| principal.spec.role == role) && (cluster.is_none() || principal.spec.cluster == cluster)
    };
    let rows = model.principals.iter().filter(is_listed).map(|principal| principal_json(&model, principal, now));
    lists::list_rows(request, "uuid", rows.collect())
}

/// Handles `GET /v1/principals/{principal}`: returns one principal.
pub(super) fn get(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let principal = find(&model, request.param("principal"))?;
    Ok(HttpResponse::ok(principal_json(&model, &principal, api.registry.now())).with_etag(principal.meta.resource_version))
}

/// Handles `POST /v1/principals`: creates a principal. If the body names no cluster and the caller is bound to a
/// cluster, the new principal is bound to the caller's cluster.
pub(super) async fn create(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let body: CreatePrincipalBody = read_value(&request.json()?).map_err(|error| bad_field("principal", &error))?;
    let name = PrincipalSpec::parse_name(&body.name)?;
    let description = check_description(body.description)?;
    let uuid = Uuid::now_v7();
    commit(api, request, &caller, |work| {
        let cluster = body.cluster.as_deref().map(|id| find_cluster(&work.model, id)).transpose()?;
        let cluster = cluster.or(work.model.visible_cluster);
        let spec = PrincipalSpec { role: body.role, cluster, description: description.clone(), ..PrincipalSpec::default() };
        let principal = work.create(uuid, name.clone(), spec)?.object;
        let location = Some(Endpoint::GetPrincipal.path(&[&name]));
        Ok(StoredAnswer { location, ..StoredAnswer::json(201, principal_json(&work.model, &principal, work.now())) })
    })
    .await
}

/// Handles `PATCH /v1/principals/{principal}`: applies a merge patch to a principal. If the principal gets more rights,
/// this also revokes its credentials whose issuers had fewer rights than the new ones, or unknown rights.
pub(super) async fn patch(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, revision) = (request.caller()?, request.if_match()?);
    let body = Value::Object(request.object()?);
    let patch: PatchPrincipalBody = read_value(&body).map_err(|error| bad_field("principal", &error))?;
    let description = patch.description.map(|change| check_description(change.into_text())).transpose()?;
    let new_cluster = patch.cluster.map(FieldPatch::into_text);
    commit(api, request, &caller, |work| {
        let old_principal = find(&work.model, request.param("principal"))?;
        check_revision(&old_principal, revision)?;
        let mut spec = old_principal.spec.clone();
        spec.role = patch.role.unwrap_or(spec.role);
        if let Some(cluster) = &new_cluster {
            spec.cluster = cluster.as_deref().map(|id| find_cluster(&work.model, id)).transpose()?;
        }
        if let Some(description) = &description {
            spec.description.clone_from(description);
        }
        // This must precede the write. Otherwise a credential that a caller with fewer rights issued would have the
        // principal's new rights.
        let revoked_credentials = spec.revoke_created_with_fewer_rights(old_principal.spec.rights(), work.now());
        let new_principal = work.update(&old_principal, old_principal.meta.name.clone(), spec)?.object;
        if !revoked_credentials.is_empty() {
            work.draft().set_part(PartAction::Revoked, revoked_credentials.join(", "));
        }
        let mut changes = Changes::default()
            .field_changes(&principal_fields(work.old_model(), &old_principal), &principal_fields(&work.model, &new_principal));
        changes
            .as_array_mut()
            .expect("changes are a list")
            .extend(revoked_credentials.iter().map(|field| changes::revocation_change(field)));
        let answer = StoredAnswer::json(200, principal_json(&work.model, &new_principal, work.now()));
        Ok(with_changes(answer, request, changes, &LostLabels::default(), work))
    })
    .await
}

/// Handles `DELETE /v1/principals/{principal}`: deletes a principal, and reports the removed fields as changes.
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

/// Commits a write of principals, which `decide` makes. A fleet that an older version created has no principals. In
/// this case the same commit also stores the first admin.
///
/// # Errors
/// Fails if `decide` fails, or if the commit is refused.
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

/// Stores the first admin that the controller was started with, if the fleet has no principal yet.
///
/// # Errors
/// Fails as [`PendingWrite::create`] does.
pub(super) fn ensure_first_admin(api: &Api, work: &mut PendingWrite<'_>) -> Result<(), ApiError> {
    api.first_admin.as_deref().map_or(Ok(()), |first_admin| work.store_first_admin(first_admin))
}

/// Finds a principal by name or uuid.
///
/// # Errors
/// Fails if there is no such principal.
pub(super) fn find(model: &Model, id: &str) -> Result<Arc<Principal>, ApiError> {
    model.principals.find(None, id).cloned().ok_or_else(|| not_found(Kind::Principal, id))
}

/// Finds a cluster by name or uuid, and returns its id. Fails if there is no such cluster.
fn find_cluster(model: &Model, id: &str) -> Result<ClusterId, ApiError> {
    let cluster_id = model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
    cluster_id
        .ok_or_else(|| ApiError::new(ErrorType::ReferenceDangling, format!("there is no cluster {}", quote(id))).field("cluster"))
}

/// Checks a description: one line of at most [`MAX_DESCRIPTION_CHARS`] characters, not only blanks. Returns `None` for
/// the empty text, which removes the description.
fn check_description(text: Option<String>) -> Result<Option<String>, ApiError> {
    let is_visible_or_empty = |text: &String| text.is_empty() || !is_blank(text);
    let is_short_line = |text: &String| text.chars().count() <= MAX_DESCRIPTION_CHARS && !text.chars().any(char::is_control);
    let is_valid = |text: &String| is_visible_or_empty(text) && is_short_line(text);
    if text.as_ref().is_none_or(is_valid) {
        return Ok(text.filter(|text| !text.is_empty()));
    }
    let message = format!("a description is one line of at most {MAX_DESCRIPTION_CHARS} characters, and not of blanks alone");
    Err(ApiError::new(ErrorType::FieldInvalid, message).field("description"))
}

/// Returns the fields of a principal, for the list of changes in the response of a write. The cluster is given by name.
fn principal_fields(model: &Model, principal: &Principal) -> Value {
    principal_fields_with(&cluster_name(model, principal), principal)
}

/// Returns the fields of a principal that have a value, for the list of changes in the response of a write. `cluster`
/// is the name of the principal's cluster, or `null`.
pub(super) fn principal_fields_with(cluster: &Value, principal: &Principal) -> Value {
    let spec = &principal.spec;
    let fields = json!({"role": spec.role, "cluster": cluster, "description": spec.description});
    let fields_with_value = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    fields_with_value.map(|(name, value)| (name.clone(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}

/// Returns the name of the principal's cluster, or `null` if it has none.
fn cluster_name(model: &Model, principal: &Principal) -> Value {
    let cluster = principal.spec.cluster.and_then(|id| model.clusters.get(id.0));
    cluster.map(|cluster| cluster.meta.name.to_string()).into()
}

/// Returns a principal as the API shows it. Of its credentials, the result has those that have not expired at the time
/// `now`, but neither their secrets nor their hashes.
fn principal_json(model: &Model, principal: &Object<PrincipalSpec>, now: Timestamp) -> Value {
    let spec = &principal.spec;
    let time = |at: Timestamp| view::format_time(at);
    let certificate = |credential: &stemma_core::object::PrincipalCertificate| {
        json!({
            "serial": credential.serial, "issued_at": time(credential.issued_at), "ends_at": time(credential.ends_at),
            "revoked_at": credential.revoked_at.map(time),
        })
    };
    let token = |credential: &stemma_core::object::BearerToken| json!({"id": credential.id, "issued_at": time(credential.issued_at), "ends_at": time(credential.ends_at)});
    let mut body = serde_json::Map::new();
    view::add_meta(&mut body, &principal.meta);
    body.insert("name".into(), principal.meta.name.to_string().into());
    body.insert("role".into(), json!(spec.role));
    body.insert("cluster".into(), cluster_name(model, principal));
    body.insert("description".into(), json!(spec.description));
    let certificates = spec.certificates.iter().filter(|credential| credential.ends_at > now);
    let tokens = spec.tokens.iter().filter(|credential| credential.ends_at > now);
    body.insert("certificates".into(), certificates.map(certificate).collect());
    body.insert("tokens".into(), tokens.map(token).collect());
    body.into()
}
