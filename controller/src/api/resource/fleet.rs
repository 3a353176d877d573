//! The fleet as a whole: the epoch of its store, and the hosts that are ahead of it.

use std::collections::BTreeSet;

use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use stemma_core::epoch::EpochLine;
use stemma_core::finding::Finding;
use stemma_core::manifest::read_value;
use stemma_core::name::is_blank;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::view;
use crate::api::http::request::{Body, HandlerResult, Reply, Request};
use crate::api::{Api, Guarding};
use crate::cache::Model;
use crate::desired::DesiredTable;
use crate::records::audit::FleetAction;
use crate::records::fleet::BackupRecord;
use crate::records::request::Answer;
use crate::records::{codec, key};
use crate::registry::admit::bad_field;
use crate::registry::{Context, Decision, Draft, Undecided, store_error};
use crate::store::{Op, Precondition};
use crate::{backup, ca};

/// Why an epoch began, where nobody says.
const RESTORED: &str = "the store was restored from an older copy";
/// The longest reason, in characters.
const MOST_REASON: usize = 255;

/// The body of `POST /v1/fleet/resume`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Resumption {
    reason: Option<String>,
}

/// The body of `POST /v1/backups`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBackup {
    revision: u64,
    bytes: u64,
    encrypted: bool,
}

/// `GET /v1/fleet`.
pub(super) fn show(api: &Api, _: &Request) -> Reply {
    let model = api.model();
    match &api.desired {
        None => {
            let (epoch, ahead) = (Uuid::nil(), ahead(&model, None));
            Reply::ok(json!({
                "epoch": epoch, "revision": model.revision.get(), "ahead": ahead, "backup": last_backup(&model),
                "findings": findings(api),
            }))
        }
        Some(desired) => Reply::ok(shown(api, &model, desired, &line(&model, desired))),
    }
}

/// `GET /v1/backup`. Who is no admin of this machine has no use for the keys of the fleet.
pub(super) async fn backup(api: &Api, _: &Request) -> HandlerResult {
    let Some(layout) = api.layout.clone().filter(|_| api.guarding == Guarding::Root) else {
        let message = "a backup has the keys of the fleet in it: root takes it on the controller's machine, by stemma-controller backup FILE";
        return Err(ApiError::new(ErrorType::AuthForbidden, message));
    };
    let store = api.registry.store();
    let snapshot = store.snapshot().await.map_err(|error| store_error(&error))?;
    let pieces = backup::pieces(store.identity(), snapshot, layout, api.registry.now().0 / 1000);
    let pieces = pieces.map_err(|_| ApiError::from(ErrorType::ServerInternal))?;
    let body = Body::File(Box::new(pieces));
    Ok(Reply { status: StatusCode::OK, headers: HeaderMap::new(), body })
}

/// `POST /v1/backups`. Only who wrote the file knows that it is whole, and where it is.
pub(super) async fn record_backup(api: &Api, request: &Request) -> HandlerResult {
    let NewBackup { revision, bytes, encrypted } =
        read_value(&request.json()?).map_err(|error| bad_field("backup", &error))?;
    let decide = |context: &Context<'_>| -> Result<Decision, Undecided> {
        let (model, mut draft) = (context.whole, Draft::default());
        let head = model.revision.get();
        if revision > head {
            let message = format!("revision {revision} is ahead of the store's, which is {head}; nothing was changed");
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field("revision").into());
        }
        let record = BackupRecord { at: context.now, revision, bytes, is_encrypted: encrypted };
        let written = model.last_backup.as_ref().map(|last| last.written);
        draft.require(Precondition::as_read(key::LAST_BACKUP, written));
        draft.entry(Op::Put { key: key::LAST_BACKUP.into(), value: codec::encode(&record) });
        draft.act(FleetAction::BackupMade { of_revision: revision });
        Ok(Decision { draft, answer: Answer::json(200, json!({"backup": shown_backup(&record)})) })
    };
    let mut caller = request.caller()?;
    let how = if encrypted { "encrypted" } else { "not encrypted" };
    caller.reason.get_or_insert_with(|| format!("a backup of revision {revision} was made, {bytes} bytes, {how}"));
    let answer = api.registry.write(&caller, decide).await?;
    Ok(Reply::written(answer, &request.base))
}

/// `POST /v1/fleet/resume`. It is an answer and no refusal that no host is ahead: whoever asks again has what they want.
pub(super) async fn resume(api: &Api, request: &Request) -> HandlerResult {
    let asked: Resumption = read_value(&request.json()?).map_err(|error| bad_field("fleet", &error))?;
    let reason = reason(asked.reason)?;
    let desired = api.desired.as_ref().ok_or(ApiError::from(ErrorType::ServerInternal))?;
    let random: [u8; 10] = ca::random().map_err(|_| ApiError::from(ErrorType::ServerInternal))?;
    let decide = |context: &Context<'_>| {
        let (model, mut draft) = (context.whole, Draft::default());
        let present = line(model, desired);
        let all_ahead = desired.status().all_ahead();
        let is_resumed = present.waits || !all_ahead.is_empty();
        let next = if is_resumed {
            let unknown: BTreeSet<Uuid> = all_ahead.values().map(|host| host.held.epoch).collect();
            let epoch = present.id_after(context.now.0, &random, unknown.iter().copied());
            let next = present.resumed(epoch, model.revision.get(), &reason, unknown);
            draft.act(FleetAction::Resumed { epoch_before: present.led_from(), epoch_after: next.now });
            let written = model.epoch_line.as_ref().map(|line| line.written);
            draft.require(Precondition::as_read(key::EPOCH_LINE, written));
            draft.entry(Op::Put { key: key::EPOCH_LINE.into(), value: codec::encode(&next) });
            next
        } else {
            present
        };
        let mut body = shown(api, model, desired, &next);
        body["resumed"] = is_resumed.into();
        Ok(Decision { draft, answer: Answer::json(200, body) })
    };
    let mut caller = request.caller()?;
    caller.reason.get_or_insert_with(|| reason.clone());
    let answer = api.registry.write(&caller, decide).await?;
    Ok(Reply::written(answer, &request.base))
}

fn reason(said: Option<String>) -> Result<String, ApiError> {
    let refused = |message: String| ApiError::new(ErrorType::FieldInvalid, message).field("reason");
    let Some(reason) = said else { return Ok(RESTORED.to_owned()) };
    if is_blank(&reason) {
        return Err(refused("the reason is empty: leave it out, or say why; nothing was changed".to_owned()));
    }
    let length = reason.chars().count();
    if length > MOST_REASON {
        let message = format!("the reason has {length} characters, and may have {MOST_REASON}; nothing was changed");
        return Err(refused(message));
    }
    Ok(reason)
}

/// The epochs of the store. In its first one none are stored.
fn line(model: &Model, desired: &DesiredTable) -> EpochLine {
    model.epoch_line.as_ref().map_or_else(|| (*desired.epoch_line()).clone(), |line| line.record.clone())
}

/// What is found of the controller, and of no object in particular.
fn findings(api: &Api) -> Vec<Finding> {
    api.registry.clock().finding().into_iter().collect()
}

fn shown(api: &Api, model: &Model, desired: &DesiredTable, line: &EpochLine) -> Value {
    json!({
        "epoch": line.now, "since": line.at, "reason": line.reason, "waits": line.waits, "revision": model.revision.get(),
        "ahead": ahead(model, Some((desired, line))), "hosts": hosts(api, model, desired), "unknown_hosts": unknown_hosts(api, model),
        "backup": last_backup(model), "findings": findings(api),
    })
}

/// How many of the nodes that whoever asks sees have a host, and of how many it has checked in since the controller started: what a host holds
/// is known of these alone.
fn hosts(api: &Api, model: &Model, desired: &DesiredTable) -> Value {
    let enrolled = api.identities.as_ref().map(|identities| identities.enrolled()).unwrap_or_default();
    let seen: Vec<Uuid> = enrolled.into_iter().filter(|node| model.nodes.get(*node).is_some()).collect();
    let checked_in = seen.iter().filter(|node| desired.heard(**node).is_some()).count();
    json!({"enrolled": seen.len(), "checked_in": checked_in, "running_seconds": desired.running().as_secs()})
}

/// How many hosts came that the store does not know; null for who is bound to a cluster, since they are of none.
fn unknown_hosts(api: &Api, model: &Model) -> Value {
    let identities = api.identities.as_ref().filter(|_| model.within.is_none());
    identities.map_or(Value::Null, |identities| identities.unknown().into())
}

/// The last backup; null before the first, and for who is bound to a cluster: it is of the whole fleet.
fn last_backup(model: &Model) -> Value {
    let last = model.last_backup.as_ref().filter(|_| model.within.is_none());
    last.map_or(Value::Null, |last| shown_backup(&last.record))
}

fn shown_backup(made: &BackupRecord) -> Value {
    let BackupRecord { at, revision, bytes, is_encrypted } = made;
    json!({"at": view::time(*at), "revision": revision, "bytes": bytes, "encrypted": is_encrypted})
}

/// The hosts that are ahead, of the nodes that whoever asks sees.
fn ahead(model: &Model, of: Option<(&DesiredTable, &EpochLine)>) -> Value {
    let Some((desired, line)) = of else { return json!({"nodes": 0, "highest": null, "unknown_epochs": 0}) };
    let all = desired.status().all_ahead();
    let seen = || all.iter().filter(|(node, _)| model.nodes.get(**node).is_some()).map(|(_, host)| host.held);
    let is_unknown = |epoch: &Uuid| *epoch != line.now && !line.ended.contains(epoch);
    let unknown: BTreeSet<Uuid> = seen().map(|held| held.epoch).filter(is_unknown).collect();
    json!({
        "nodes": seen().count(), "highest": seen().map(|held| held.revision).max(), "unknown_epochs": unknown.len(),
    })
}
