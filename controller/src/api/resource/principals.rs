//! Principals: who may ask, as what, and where. By what each is known is beside ([`super::credentials`]).

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
use super::writes::{self, tell};
use super::{changes, lists, view};
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::cache::model::Resource as _;
use crate::records::audit::PartAction;
use crate::records::request::Answer;
use crate::registry::admit::bad_field;
use crate::registry::work::{Work, check_presumed, not_found};
use crate::registry::{Caller, Undecided};

/// The longest description, in characters.
const MOST_DESCRIPTION: usize = 255;

/// The body of a new principal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    name: String,
    role: PrincipalRole,
    cluster: Option<String>,
    description: Option<String>,
}

/// The body of a change; `null` takes away.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Changed {
    #[serde(deserialize_with = "given")]
    role: Option<PrincipalRole>,
    #[serde(deserialize_with = "said")]
    cluster: Option<Said>,
    #[serde(deserialize_with = "said")]
    description: Option<Said>,
}

/// What a change says of a field.
#[derive(Debug)]
enum Said {
    /// It is this from now on.
    Text(String),
    /// It is taken away.
    Nothing,
}

impl Said {
    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Nothing => None,
        }
    }
}

/// What every principal has is changed and never taken away.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PrincipalRole>, D::Error> {
    PrincipalRole::deserialize(from).map(Some)
}

fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Said>, D::Error> {
    Ok(Some(Option::deserialize(from)?.map_or(Said::Nothing, Said::Text)))
}

/// `GET /v1/principals`.
pub(super) fn list(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let role = request.query.text("role")?.map(|text| {
        let read = serde_json::from_value::<PrincipalRole>(text.into());
        read.map_err(|_| BadQuery::value("role", text, "it is viewer, operator or admin"))
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
    lists::of_rows(request, "uuid", model.principals.iter().filter(keeps).map(|one| shown(&model, one, now)).collect())
}

/// `GET /v1/principals/{principal}`.
pub(super) fn get(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let principal = named(&model, request.part("principal"))?;
    Ok(Reply::ok(shown(&model, &principal, api.registry.now())).tagged(principal.meta.resource_version))
}

/// `POST /v1/principals`. Who is bound to a cluster makes those that are bound to it.
pub(super) async fn create(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let wanted: Wanted = read_value(&request.json()?).map_err(|error| bad_field("principal", &error))?;
    let name = PrincipalSpec::parse_name(&wanted.name)?;
    let description = described(wanted.description)?;
    let uuid = Uuid::now_v7();
    commit(api, request, &caller, |work| {
        let cluster = wanted.cluster.as_deref().map(|id| cluster(&work.model, id)).transpose()?;
        let cluster = cluster.or(work.model.within);
        let spec =
            PrincipalSpec { role: wanted.role, cluster, description: description.clone(), ..PrincipalSpec::default() };
        let made = work.create(uuid, name.clone(), spec)?.object;
        let location = Some(Endpoint::GetPrincipal.path(&[&name]));
        Ok(Answer { location, ..Answer::json(201, shown(&work.model, &made, work.now())) })
    })
    .await
}

/// `PATCH /v1/principals/{principal}`, a merge patch.
pub(super) async fn patch(api: &Api, request: &Request) -> HandlerResult {
    let (caller, presumed) = (request.caller()?, request.presumed()?);
    let body = Value::Object(request.object()?);
    let changed: Changed = read_value(&body).map_err(|error| bad_field("principal", &error))?;
    let description = changed.description.map(|said| described(said.text())).transpose()?;
    let moved = changed.cluster.map(Said::text);
    commit(api, request, &caller, |work| {
        let before = named(&work.model, request.part("principal"))?;
        check_presumed(&before, presumed)?;
        let mut spec = before.spec.clone();
        spec.role = changed.role.unwrap_or(spec.role);
        if let Some(wanted) = &moved {
            spec.cluster = wanted.as_deref().map(|id| cluster(&work.model, id)).transpose()?;
        }
        if let Some(description) = &description {
            spec.description.clone_from(description);
        }
        // Before it is stored: from then on it would be good for more.
        let ended = spec.end_lesser(before.spec.rights(), work.now());
        let written = work.update(&before, before.meta.name.clone(), spec)?.object;
        if !ended.is_empty() {
            work.draft().name_part(PartAction::Revoked, ended.join(", "));
        }
        let mut changes = Changes::default().between(&fields(work.before(), &before), &fields(&work.model, &written));
        changes.as_array_mut().expect("a list").extend(ended.iter().map(|field| changes::ended(field)));
        let answer = Answer::json(200, shown(&work.model, &written, work.now()));
        Ok(tell(answer, request, changes, &LostLabels::default(), work))
    })
    .await
}

/// `DELETE /v1/principals/{principal}`.
pub(super) async fn delete(api: &Api, request: &Request) -> HandlerResult {
    let (caller, presumed) = (request.caller()?, request.presumed()?);
    commit(api, request, &caller, |work| {
        let principal = named(&work.model, request.part("principal"))?;
        check_presumed(&principal, presumed)?;
        let gone = Changes::default().between(&fields(&work.model, &principal), &json!({}));
        work.delete_unused(&principal)?;
        Ok(tell(Answer::empty(204), request, gone, &LostLabels::default(), work))
    })
    .await
}

/// Makes a request's write of principals. In a fleet of before there were any the first admin is stored with it.
///
/// # Errors
/// What `decide` refuses, and what is refused of every write.
pub(super) async fn commit(
    api: &Api,
    request: &Request,
    caller: &Caller,
    decide: impl Fn(&mut Work<'_>) -> Result<Answer, Undecided>,
) -> HandlerResult {
    writes::commit(api, request, caller, |work| {
        keep_first(api, work)?;
        decide(work)
    })
    .await
}

/// Stores the first admin where there is no principal yet.
///
/// # Errors
/// As [`Work::create`].
pub(super) fn keep_first(api: &Api, work: &mut Work<'_>) -> Result<(), ApiError> {
    api.first_admin.as_deref().map_or(Ok(()), |first| work.keep_first_admin(first))
}

/// The principal of a name or uuid.
///
/// # Errors
/// When there is none.
pub(super) fn named(model: &Model, id: &str) -> Result<Arc<Principal>, ApiError> {
    model.principals.find(None, id).cloned().ok_or_else(|| not_found(Kind::Principal, id))
}

fn cluster(model: &Model, id: &str) -> Result<ClusterId, ApiError> {
    let found = model.clusters.find(None, id).map(|cluster| ClusterId(cluster.meta.uuid));
    found.ok_or_else(|| {
        ApiError::new(ErrorType::ReferenceDangling, format!("there is no cluster {}", quote(id))).field("cluster")
    })
}

fn described(text: Option<String>) -> Result<Option<String>, ApiError> {
    let is_shown = |text: &String| text.is_empty() || !is_blank(text);
    let is_line = |text: &String| text.chars().count() <= MOST_DESCRIPTION && !text.chars().any(char::is_control);
    let is_fine = |text: &String| is_shown(text) && is_line(text);
    if text.as_ref().is_none_or(is_fine) {
        return Ok(text.filter(|text| !text.is_empty()));
    }
    let message =
        format!("a description is one line of at most {MOST_DESCRIPTION} characters, and not of blanks alone");
    Err(ApiError::new(ErrorType::FieldInvalid, message).field("description"))
}

/// What a write says of a principal's fields.
fn fields(model: &Model, principal: &Principal) -> Value {
    fields_with(&cluster_name(model, principal), principal)
}

/// The same, where its cluster is called so.
pub(super) fn fields_with(cluster: &Value, principal: &Principal) -> Value {
    let spec = &principal.spec;
    let all = json!({"role": spec.role, "cluster": cluster, "description": spec.description});
    let said = all.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    said.map(|(name, value)| (name.clone(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}

fn cluster_name(model: &Model, principal: &Principal) -> Value {
    let cluster = principal.spec.cluster.and_then(|id| model.clusters.get(id.0));
    cluster.map(|cluster| cluster.meta.name.to_string()).into()
}

/// A principal as the API shows it, with what it is known by at this time: never a secret, nor the hash of one.
fn shown(model: &Model, principal: &Object<PrincipalSpec>, now: Timestamp) -> Value {
    let spec = &principal.spec;
    let time = |at: Timestamp| view::time(at);
    let certificate = |one: &stemma_core::object::PrincipalCertificate| {
        json!({
            "serial": one.serial, "issued_at": time(one.issued_at), "ends_at": time(one.ends_at),
            "revoked_at": one.revoked_at.map(time),
        })
    };
    let token = |one: &stemma_core::object::BearerToken| json!({"id": one.id, "issued_at": time(one.issued_at), "ends_at": time(one.ends_at)});
    let mut body = serde_json::Map::new();
    view::meta(&mut body, &principal.meta);
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
