//! Join tokens of the form `id.secret`. Operators create them. The secret is returned once, and stored as a hash.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stemma_core::manifest::read_value;
use stemma_core::object::{GroupId, Node, Timestamp};
use stemma_core::task::Mode;
use stemma_core::time;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use subtle::ConstantTimeEq;

use crate::cache::Model;
use crate::cache::model::Versioned;
use crate::records::audit::{FleetAction, PartAction};
use crate::records::enrolled::{AgentRecord, HexBytes, TokenRecord, TokenTarget, agent_key, token_key};
use crate::records::request::StoredAnswer;
use crate::records::{codec, key};
use crate::registry::admit::bad_field;
use crate::registry::names::{group_at, group_not_found, group_path};
use crate::registry::work::PendingWrite;
use crate::registry::{Caller, Context, DecisionError, Registry};
use crate::store::{Op, Precondition, Revision};

/// Default number of hosts that can join with a token.
const DEFAULT_USES: u32 = 1;
/// Maximum number of hosts that can join with a token.
const MAX_USES: u32 = 100_000;
/// Default lifetime of a token, in seconds.
const DEFAULT_TTL_S: u64 = 30 * 60;
/// Maximum lifetime of a token, in seconds.
const MAX_TTL_S: u64 = 30 * 24 * 3600;

/// The stored record of a node's agent, and the revision that wrote it. `None` if no agent has joined as the node.
pub(super) type ReadAgent = Option<(AgentRecord, Revision)>;

/// The body of `POST /v1/join-tokens`, which creates a token.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateTokenBody {
    /// `CLUSTER/GROUP`, or the group's uuid.
    nodegroup: Option<String>,
    /// The name or uuid of a node.
    node: Option<String>,
    uses: Option<u32>,
    ttl_seconds: Option<u64>,
    mode: Option<Mode>,
    /// SHA-256 of a secret that the client created. If it is set, neither the response nor the stored copy of the
    /// response contains the secret.
    secret_sha256: Option<HexBytes<32>>,
}

/// Finds the token with the id and the secret in `text`. Returns `None` if no token has this id, or if its secret
/// differs. Does not check whether the token is still valid. The comparison takes as long for a wrong secret as for the
/// right one, so that its duration reveals nothing.
pub(crate) fn find<'a>(model: &'a Model, text: &str) -> Option<&'a TokenRecord> {
    let (id, secret) = text.split_once('.').unwrap_or((text, ""));
    let presented: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    let token = model.tokens.get(id);
    // For an unknown id, a comparison with zeros takes the same time.
    let expected = token.map_or([0; 32], |token| token.record.secret_sha256.0);
    let is_equal = bool::from(presented.ct_eq(&expected));
    token.filter(|_| is_equal).map(|token| &token.record)
}

/// Creates a join token: 201 with `{"id", "token", "expires_at", …}`.
///
/// If the client sent `secret_sha256`, the response has no `token`. The client builds the token `ID.SECRET` itself. If
/// the controller creates the secret, the first response contains the token, and the stored copy of the response does
/// not. If the client then repeats the request, no second token is created, and `warning` of the response explains what
/// to do.
///
/// # Errors
/// Fails if a field or name is unknown, a number is out of range, the node has a host, or the caller may not create a
/// token for this target. Also any error of the store.
pub async fn create(registry: &Registry, caller: &Caller, body: &Value) -> Result<StoredAnswer, ApiError> {
    let request: CreateTokenBody = read_value(body).map_err(|error| bad_field("join token", &error))?;
    let (uses, ttl_s) = (request.uses.unwrap_or(DEFAULT_USES), request.ttl_seconds.unwrap_or(DEFAULT_TTL_S));
    check_bounds("uses", uses.into(), MAX_USES.into())?;
    check_bounds("ttl_seconds", ttl_s, MAX_TTL_S)?;
    let id = stemma_core::digest::Hex(&super::random_bytes::<8>()?).to_string();
    let secret = URL_SAFE_NO_PAD.encode(super::random_bytes::<32>()?);
    let secret_sha256 = request.secret_sha256.unwrap_or_else(|| HexBytes(Sha256::digest(secret.as_bytes()).into()));
    let answer = registry
        .write(caller, |context| {
            let record = TokenRecord {
                id: id.clone(),
                secret_sha256,
                uses_left: uses,
                uses,
                expires_at: Timestamp(context.now.0.saturating_add(ttl_s * 1000)),
                spent_at: None,
                bound: token_target(context.model, &request)?,
                mode: request.mode,
                created_at: context.now,
                created_by: caller.requester.name.clone(),
                maker: caller.requester.principal(context.full_model).map(|maker| maker.meta.uuid),
                within: caller.requester.rights.cluster,
            };
            check_scope(context, record.bound)?;
            let mut work = PendingWrite::new(context);
            work.check_joining(record.bound)?;
            check_no_host(context, record.bound)?;
            let entry = Versioned { record: record.clone(), mod_revision: Revision::default() };
            work.model.tokens.insert(id.clone(), Arc::new(entry));
            record_in_audit(&mut work, &record, FleetAction::TokenMade { token: id.clone() });
            work.draft().add_precondition(Precondition::absent(token_key(&id)));
            work.draft().add_op(Op::Put { key: token_key(&id).into(), value: codec::encode(&record) });
            // So no token is created concurrently with a write that deletes the principal or changes its rights.
            if let Some(maker) = record.maker {
                work.draft().add_op(Op::Put { key: key::maker_mark(maker).into(), value: Bytes::new() });
            }
            let answer = StoredAnswer::json(201, token_json(context.model, &record));
            work.finish(StoredAnswer { location: Some(Endpoint::GetToken.path(&[&id])), ..answer })
        })
        .await?;
    Ok(match request.secret_sha256 {
        Some(_) => answer,
        None => add_secret_or_warning(answer, caller, &id, &secret),
    })
}

/// Adds the token with its secret, which the controller created, to the response. If the response is the stored one of
/// an earlier request, adds a warning instead, because the secret is not stored. `new_id` is the id of the token that
/// this request would create.
pub(crate) fn add_secret_or_warning(mut answer: StoredAnswer, caller: &Caller, new_id: &str, secret: &str) -> StoredAnswer {
    let Value::Object(body) = &mut answer.body else { return answer };
    match body.get("id").and_then(Value::as_str).map(str::to_owned) {
        // A dry run creates no token, so it has no secret to show.
        _ if caller.dry_run => {}
        Some(id) if id == new_id => drop(body.insert("token".into(), format!("{new_id}.{secret}").into())),
        id => {
            let id = id.unwrap_or_default();
            answer.warning =
                Some(format!("token {id} was created before, and its secret is shown only once: delete it and create another"));
        }
    }
    answer
}

/// Returns the join tokens that the caller may see, the newest last. Each of `targets` is a filter: only tokens with
/// this target are returned.
pub fn list(model: &Model, targets: &[TokenTarget]) -> Vec<Value> {
    let tokens = model.tokens.values().map(|token| &token.record);
    let is_match = |token: &&TokenRecord| {
        model.is_visible(model.token_scope(token.bound)) && targets.iter().all(|target| *target == token.bound)
    };
    let mut tokens: Vec<&TokenRecord> = tokens.filter(is_match).collect();
    tokens.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    tokens.iter().map(|token| token_json(model, token)).collect()
}

/// Returns a join token in the form of the API, without its secret.
///
/// # Errors
/// Fails if no token has this id, or if the caller may not see it.
pub fn get(model: &Model, id: &str) -> Result<Value, ApiError> {
    Ok(token_json(model, &visible_token(model, id)?.record))
}

/// Deletes a join token. `answer` builds the response from the token in the form of the API.
///
/// # Errors
/// Fails if no token has this id, or if the caller may not see or write it. Also any error of the store.
pub async fn delete(
    registry: &Registry,
    caller: &Caller,
    id: &str,
    answer: impl Fn(&PendingWrite<'_>, &Value) -> StoredAnswer,
) -> Result<StoredAnswer, ApiError> {
    registry
        .write(caller, |context| {
            let token = visible_token(context.model, id)?;
            check_scope(context, token.record.bound)?;
            let mut work = PendingWrite::new(context);
            work.draft().add_precondition(Precondition::unchanged(token_key(id), token.mod_revision));
            work.draft().add_op(Op::Delete { key: token_key(id).into() });
            record_in_audit(&mut work, &token.record, FleetAction::TokenDeleted { token: id.to_owned() });
            let answer = answer(&work, &token_json(context.model, &token.record));
            work.finish(answer)
        })
        .await
}

/// Adds the token's node or group to the audit event, and the token as the changed part of that object. If the token is
/// bound to neither, or if its node or group no longer exists, sets `action` as the action on the fleet instead.
fn record_in_audit(work: &mut PendingWrite<'_>, token: &TokenRecord, action: FleetAction) {
    let node = if let TokenTarget::Node(id) = token.bound { work.model.nodes.get(id).cloned() } else { None };
    let group = if let TokenTarget::Group(id) = token.bound { work.model.groups.get(id).cloned() } else { None };
    match (node, group) {
        (Some(node), _) => work.draft().audit_unchanged(&*node),
        (None, Some(group)) => work.draft().audit_unchanged(&*group),
        (None, None) => return work.draft().set_action(action),
    }
    let is_deleted = matches!(action, FleetAction::TokenDeleted { .. });
    let part_action = if is_deleted { PartAction::Deleted } else { PartAction::Made };
    work.draft().set_part(part_action, format!("join-tokens.{}", token.id));
}

/// Returns the token with this id. Fails if there is none, or if the caller may not see it.
fn visible_token<'m>(model: &'m Model, id: &str) -> Result<&'m Versioned<TokenRecord>, ApiError> {
    let token = model.tokens.get(id).filter(|token| model.is_visible(model.token_scope(token.record.bound)));
    let not_found_error = || ApiError::new(ErrorType::ObjectNotFound, format!("there is no join token {}", quote(id)));
    token.map(|token| &**token).ok_or_else(not_found_error)
}

/// Fails if the caller may not create or delete a token for this target.
fn check_scope(context: &Context<'_>, target: TokenTarget) -> Result<(), ApiError> {
    let scope = context.model.token_scope(target);
    context.check_access(Some(Endpoint::CreateToken), scope, || "the token".to_owned())
}

/// Fails if the token is for a node whose host has joined, because no host could join with it.
fn check_no_host(context: &Context<'_>, target: TokenTarget) -> Result<(), DecisionError> {
    let TokenTarget::Node(uuid) = target else { return Ok(()) };
    match context.model.nodes.get(uuid) {
        Some(node) if find_unjoined(context, node)?.is_none() => Err(has_host_error(node).field("node").into()),
        Some(_) | None => Ok(()),
    }
}

/// Returns the node if no agent has joined as the node, or if its agent is retired (invalid). Otherwise returns `None`.
/// The second value is the record of the retired agent, if there is one.
///
/// The decision reads the record in the store, and the commit requires it unchanged. The cache is updated after a
/// commit. If two hosts joined at once under one name, both would find the node free in the cache.
pub(super) fn find_unjoined(context: &Context<'_>, node: &Arc<Node>) -> Result<Option<(Arc<Node>, ReadAgent)>, DecisionError> {
    let agent: ReadAgent = context.record(&agent_key(node.meta.uuid))?;
    let has_joined = agent.as_ref().is_some_and(|(record, _)| !record.retired);
    Ok((!has_joined).then(|| (Arc::clone(node), agent)))
}

/// Builds the error for a node that already has a host, so that no other host can join as the node.
pub(super) fn has_host_error(node: &Node) -> ApiError {
    let name = node.display_name();
    let message = format!("{name} already has a host. To replace it: `stemma delete node {name}`, then make a new token.");
    ApiError::new(ErrorType::ObjectExists, message)
}

/// Fails if `value`, a number in a request, is not from 1 to `max`. `field` is its field, for the error.
fn check_bounds(field: &str, value: u64, max: u64) -> Result<(), ApiError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(ApiError::new(ErrorType::FieldInvalid, format!("{field} is {value}, and may be 1 to {max}")).field(field))
}

/// Returns the target of the token that a request creates: a node, a node group, or the whole fleet if the request
/// names neither. Fails if the request names both, or if the node or group does not exist.
fn token_target(model: &Model, request: &CreateTokenBody) -> Result<TokenTarget, ApiError> {
    let not_found = |field: &str, name: &str| {
        ApiError::new(ErrorType::ReferenceDangling, format!("there is no {field} {}", quote(name))).field(field)
    };
    match (&request.node, &request.nodegroup) {
        (Some(_), Some(_)) => {
            Err(ApiError::new(ErrorType::FieldInvalid, "a token is bound to a node or to a node group, not to both")
                .field("node"))
        }
        (None, None) => Ok(TokenTarget::Fleet),
        (Some(name), None) => {
            let node = model.nodes.find(None, name).ok_or_else(|| not_found("node", name))?;
            Ok(TokenTarget::Node(node.meta.uuid))
        }
        (None, Some(path)) => {
            let group = group_at(model, path).ok_or_else(|| not_found("nodegroup", path).detail(group_not_found(model, path)))?;
            Ok(TokenTarget::Group(group.meta.uuid))
        }
    }
}

/// Builds the form of a token in the API.
fn token_json(model: &Model, token: &TokenRecord) -> Value {
    let (mut node, mut nodegroup) = (Value::Null, Value::Null);
    match token.bound {
        TokenTarget::Fleet => {}
        TokenTarget::Node(uuid) => {
            let name = model.nodes.get(uuid).and_then(|node| node.meta.name.as_ref());
            node = name.map_or_else(|| uuid.to_string(), ToString::to_string).into();
        }
        TokenTarget::Group(uuid) => {
            nodegroup = group_path(model, GroupId(uuid)).unwrap_or_else(|| uuid.to_string()).into();
        }
    }
    json!({
        "id": token.id,
        "node": node,
        "nodegroup": nodegroup,
        "mode": token.mode,
        "uses": token.uses,
        "uses_left": token.uses_left,
        "created_at": format_date(token.created_at),
        "created_by": token.created_by,
        "expires_at": format_date(token.expires_at),
    })
}

/// Formats a time as in RFC 3339, in UTC and with `Z`, as Glance does. Times of objects end in `+00:00`, as in other
/// `OpenStack` services.
fn format_date(at: Timestamp) -> Value {
    let whole_seconds = at.0 - at.0 % 1000;
    time::format(whole_seconds).map_or(Value::Null, Value::from)
}
