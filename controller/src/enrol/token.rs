//! Join tokens: `id.secret`, made by operators, the secret told once and hashed at rest.

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
use crate::cache::model::Entry;
use crate::records::audit::{FleetAction, PartAction};
use crate::records::enrolled::{AgentRecord, Bound, Hex, TokenRecord, agent_key, token_key};
use crate::records::request::Answer;
use crate::records::{codec, key};
use crate::registry::admit::bad_field;
use crate::registry::names::{group_at, group_path, no_group_at};
use crate::registry::work::Work;
use crate::registry::{Caller, Context, Registry, Undecided};
use crate::store::{Op, Precondition, Revision};

/// How often a token may be used, unless said otherwise.
const DEFAULT_USES: u32 = 1;
/// The most uses of one token.
const MOST_USES: u32 = 100_000;
/// For how long it is good, unless said otherwise.
const DEFAULT_TTL_S: u64 = 30 * 60;
/// The longest that it is good for.
const LONGEST_TTL_S: u64 = 30 * 24 * 3600;

/// An agent's record as it was read, with the revision that wrote it.
pub(super) type Known = Option<(AgentRecord, Revision)>;

/// The body of `POST /v1/join-tokens`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// `CLUSTER/GROUP`, or the group's uuid.
    nodegroup: Option<String>,
    /// A node's name or uuid.
    node: Option<String>,
    uses: Option<u32>,
    ttl_seconds: Option<u64>,
    mode: Option<Mode>,
    /// SHA-256 of a secret that the client made and keeps: then no answer, and nothing that is kept of one, holds it.
    secret_sha256: Option<Hex<32>>,
}

/// Looks a shown token up; whether it is still good is not looked at. `None`: there is no such one, or its secret is another. What is
/// wrong takes as long as what is right.
pub(crate) fn find<'a>(model: &'a Model, text: &str) -> Option<&'a TokenRecord> {
    let (id, secret) = text.split_once('.').unwrap_or((text, ""));
    let shown: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    let token = model.tokens.get(id);
    let expected = token.map_or([0; 32], |token| token.record.secret_sha256.0);
    let equal = bool::from(shown.ct_eq(&expected));
    token.filter(|_| equal).map(|token| &token.record)
}

/// Makes a token: 201 with `{"id", "token", "expires_at", …}`. A client that sent `secret_sha256` is answered without `token`: it
/// puts `ID.SECRET` together itself, also from the answer to the same request sent again. Where the secret is made here it is
/// told once, and the record of the request is without it: sent again, the request makes no second token, and the answer says
/// in `warning` what to do.
///
/// # Errors
/// An unknown field or name, a number out of bounds, a node that has a host, what the store says.
pub async fn create(registry: &Registry, caller: &Caller, body: &Value) -> Result<Answer, ApiError> {
    let wanted: Wanted = read_value(body).map_err(|error| bad_field("join token", &error))?;
    let (uses, ttl_s) = (wanted.uses.unwrap_or(DEFAULT_USES), wanted.ttl_seconds.unwrap_or(DEFAULT_TTL_S));
    check_bounds("uses", uses.into(), MOST_USES.into())?;
    check_bounds("ttl_seconds", ttl_s, LONGEST_TTL_S)?;
    let id = stemma_core::digest::Hex(&super::random::<8>()?).to_string();
    let secret = URL_SAFE_NO_PAD.encode(super::random::<32>()?);
    let secret_sha256 = wanted.secret_sha256.unwrap_or_else(|| Hex(Sha256::digest(secret.as_bytes()).into()));
    let answer = registry
        .write(caller, |context| {
            let record = TokenRecord {
                id: id.clone(),
                secret_sha256,
                uses_left: uses,
                uses,
                expires_at: Timestamp(context.now.0.saturating_add(ttl_s * 1000)),
                spent_at: None,
                bound: bound(context.model, &wanted)?,
                mode: wanted.mode,
                created_at: context.now,
                created_by: caller.who.name.clone(),
                maker: caller.who.principal(context.whole).map(|maker| maker.meta.uuid),
                within: caller.who.rights.within,
            };
            check_place(context, record.bound)?;
            let mut work = Work::on(context);
            work.check_joining(record.bound)?;
            check_no_host(context, record.bound)?;
            let entry = Entry { record: record.clone(), written: Revision::default() };
            work.model.tokens.insert(id.clone(), Arc::new(entry));
            note(&mut work, &record, FleetAction::TokenMade { token: id.clone() });
            work.draft().require(Precondition::absent(token_key(&id)));
            work.draft().entry(Op::Put { key: token_key(&id).into(), value: codec::encode(&record) });
            if let Some(maker) = record.maker {
                work.draft().entry(Op::Put { key: key::maker(maker).into(), value: Bytes::new() });
            }
            let answer = Answer::json(201, view(context.model, &record));
            work.finish(Answer { location: Some(Endpoint::GetToken.path(&[&id])), ..answer })
        })
        .await?;
    Ok(match wanted.secret_sha256 {
        Some(_) => answer,
        None => with_secret(answer, caller, &id, &secret),
    })
}

/// Adds the secret that was made here. Only what the registry keeps of an answer is without it.
pub(crate) fn with_secret(mut answer: Answer, caller: &Caller, id: &str, secret: &str) -> Answer {
    let Value::Object(body) = &mut answer.body else { return answer };
    match body.get("id").and_then(Value::as_str).map(str::to_owned) {
        _ if caller.dry_run => {}
        Some(made) if made == id => drop(body.insert("token".into(), format!("{id}.{secret}").into())),
        made => {
            let made = made.unwrap_or_default();
            answer.warning =
                Some(format!("token {made} was made before and its secret is told once: delete it and make another"));
        }
    }
    answer
}

/// The tokens that are still on record and for all of these, the newest last.
pub fn list(model: &Model, bound: &[Bound]) -> Vec<Value> {
    let tokens = model.tokens.values().map(|token| &token.record);
    let is_asked = |token: &&TokenRecord| {
        model.sees(model.place_of_bound(token.bound)) && bound.iter().all(|wanted| *wanted == token.bound)
    };
    let mut tokens: Vec<&TokenRecord> = tokens.filter(is_asked).collect();
    tokens.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
    tokens.iter().map(|token| view(model, token)).collect()
}

/// One token, without its secret.
///
/// # Errors
/// When there is none of this id.
pub fn get(model: &Model, id: &str) -> Result<Value, ApiError> {
    Ok(view(model, &seen(model, id)?.record))
}

/// Takes a token back; `answer` says what is answered, of what a list shows of it.
///
/// # Errors
/// When there is none of this id; what the store says.
pub async fn delete(
    registry: &Registry,
    caller: &Caller,
    id: &str,
    answer: impl Fn(&Work<'_>, &Value) -> Answer,
) -> Result<Answer, ApiError> {
    registry
        .write(caller, |context| {
            let token = seen(context.model, id)?;
            check_place(context, token.record.bound)?;
            let mut work = Work::on(context);
            work.draft().require(Precondition::unchanged(token_key(id), token.written));
            work.draft().entry(Op::Delete { key: token_key(id).into() });
            note(&mut work, &token.record, FleetAction::TokenDeleted { token: id.to_owned() });
            let answer = answer(&work, &view(context.model, &token.record));
            work.finish(answer)
        })
        .await
}

/// Names in the audit what a token is for, and the token as a part of it; of one that is for no node and no group, what was done.
fn note(work: &mut Work<'_>, token: &TokenRecord, action: FleetAction) {
    let node = if let Bound::Node(id) = token.bound { work.model.nodes.get(id).cloned() } else { None };
    let group = if let Bound::Group(id) = token.bound { work.model.groups.get(id).cloned() } else { None };
    match (node, group) {
        (Some(node), _) => work.draft().note(&*node),
        (None, Some(group)) => work.draft().note(&*group),
        (None, None) => return work.draft().act(action),
    }
    let is_deleted = matches!(action, FleetAction::TokenDeleted { .. });
    let done = if is_deleted { PartAction::Deleted } else { PartAction::Made };
    work.draft().name_part(done, format!("join-tokens.{}", token.id));
}

/// The token of an id, where it is seen.
fn seen<'m>(model: &'m Model, id: &str) -> Result<&'m Entry<TokenRecord>, ApiError> {
    let token = model.tokens.get(id).filter(|token| model.sees(model.place_of_bound(token.record.bound)));
    let missing = || ApiError::new(ErrorType::ObjectNotFound, format!("there is no join token {}", quote(id)));
    token.map(|token| &**token).ok_or_else(missing)
}

/// Refuses to write a token by which hosts would join where who asks may not.
fn check_place(context: &Context<'_>, bound: Bound) -> Result<(), ApiError> {
    let place = context.model.place_of_bound(bound);
    context.check_place(Some(Endpoint::CreateToken), place, || "the token".to_owned())
}

/// Refuses a token for a node whose host has joined: no host could join with it.
fn check_no_host(context: &Context<'_>, bound: Bound) -> Result<(), Undecided> {
    let Bound::Node(uuid) = bound else { return Ok(()) };
    match context.model.nodes.get(uuid) {
        Some(node) if not_joined(context, node)?.is_none() => Err(has_host(node).field("node").into()),
        Some(_) | None => Ok(()),
    }
}

/// A node whose agent has not joined, or is gone; `None` for one that has. It is judged by the record on whose revision the commit is
/// conditioned: what is known in memory comes after a commit, and of two hosts with one name who join at once both would
/// find nobody there.
pub(super) fn not_joined(context: &Context<'_>, node: &Arc<Node>) -> Result<Option<(Arc<Node>, Known)>, Undecided> {
    let known: Known = context.record(&agent_key(node.meta.uuid))?;
    let has_joined = known.as_ref().is_some_and(|(record, _)| !record.retired);
    Ok((!has_joined).then(|| (Arc::clone(node), known)))
}

/// The refusal to let a host join as a node that has one.
pub(super) fn has_host(node: &Node) -> ApiError {
    let name = node.display_name();
    let message =
        format!("{name} already has a host. To replace it: `stemma delete node {name}`, then make a new token.");
    ApiError::new(ErrorType::ObjectExists, message)
}

fn check_bounds(field: &str, value: u64, most: u64) -> Result<(), ApiError> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(ApiError::new(ErrorType::FieldInvalid, format!("{field} is {value}, and may be 1 to {most}")).field(field))
}

fn bound(model: &Model, wanted: &Wanted) -> Result<Bound, ApiError> {
    let dangling = |field: &str, name: &str| {
        ApiError::new(ErrorType::ReferenceDangling, format!("there is no {field} {}", quote(name))).field(field)
    };
    match (&wanted.node, &wanted.nodegroup) {
        (Some(_), Some(_)) => {
            Err(ApiError::new(ErrorType::FieldInvalid, "a token is bound to a node or to a node group, not to both")
                .field("node"))
        }
        (None, None) => Ok(Bound::Fleet),
        (Some(name), None) => {
            let node = model.nodes.find(None, name).ok_or_else(|| dangling("node", name))?;
            Ok(Bound::Node(node.meta.uuid))
        }
        (None, Some(path)) => {
            let group =
                group_at(model, path).ok_or_else(|| dangling("nodegroup", path).detail(no_group_at(model, path)))?;
            Ok(Bound::Group(group.meta.uuid))
        }
    }
}

/// A token as the API shows it.
fn view(model: &Model, token: &TokenRecord) -> Value {
    let (mut node, mut nodegroup) = (Value::Null, Value::Null);
    match token.bound {
        Bound::Fleet => {}
        Bound::Node(uuid) => {
            let name = model.nodes.get(uuid).and_then(|node| node.meta.name.as_ref());
            node = name.map_or_else(|| uuid.to_string(), ToString::to_string).into();
        }
        Bound::Group(uuid) => {
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
        "created_at": date(token.created_at),
        "created_by": token.created_by,
        "expires_at": date(token.expires_at),
    })
}

/// RFC 3339, in UTC, and ends in `Z` as Glance's dates do; those of objects end in `+00:00`, as other `OpenStack` services write them.
fn date(at: Timestamp) -> Value {
    let whole_seconds = at.0 - at.0 % 1000;
    time::spell(whole_seconds).map_or(Value::Null, Value::from)
}
