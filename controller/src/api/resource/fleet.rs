//! The fleet as a whole: the epoch of its store, the hosts that are ahead of the store, and its backups. A host is
//! ahead if it holds a later revision than this store sent to it, or one of an unknown epoch.

use std::collections::BTreeSet;

use hyper::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use stemma_core::epoch::EpochHistory;
use stemma_core::finding::Finding;
use stemma_core::manifest::read_value;
use stemma_core::name::is_blank;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::view;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse, ResponseBody};
use crate::api::{Api, ListenerAuth};
use crate::cache::Model;
use crate::desired::DesiredTable;
use crate::records::audit::FleetAction;
use crate::records::fleet::BackupRecord;
use crate::records::request::StoredAnswer;
use crate::records::{codec, key};
use crate::registry::admit::bad_field;
use crate::registry::{Context, Decision, DecisionError, Draft, store_error};
use crate::store::{Op, Precondition};
use crate::{backup, ca};

/// The default reason for a new epoch.
const RESTORED_REASON: &str = "the store was restored from an older copy";
/// Maximum length of the reason for a new epoch, in characters.
const MAX_REASON_CHARS: usize = 255;

/// The body of `POST /v1/fleet/resume`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ResumeFleetBody {
    reason: Option<String>,
}

/// The body of `POST /v1/backups`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordBackupBody {
    revision: u64,
    bytes: u64,
    encrypted: bool,
}

/// `GET /v1/fleet`: shows the epoch, the last backup, and counts of hosts (enrolled, checked in, ahead of the store).
pub(super) fn show(api: &Api, _: &HttpRequest) -> HttpResponse {
    let model = api.model();
    match &api.desired {
        // In a test without agents, there is no table of desired states, and thus no epoch.
        None => {
            let (epoch, ahead) = (Uuid::nil(), hosts_ahead(&model, None));
            HttpResponse::ok(json!({
                "epoch": epoch, "revision": model.revision.get(), "ahead": ahead, "backup": last_backup(&model),
                "findings": findings(api),
            }))
        }
        Some(desired) => HttpResponse::ok(fleet_json(api, &model, desired, &epoch_history(&model, desired))),
    }
}

/// `GET /v1/backup`: returns a backup of the store, sent in pieces. Only root on the controller's machine may read a
/// backup, because it contains the keys of the fleet.
pub(super) async fn backup(api: &Api, _: &HttpRequest) -> HandlerResult {
    let Some(layout) = api.layout.clone().filter(|_| api.listener_auth == ListenerAuth::Root) else {
        let message = "a backup contains the keys of the fleet: root creates it on the controller's machine, with stemma-controller backup FILE";
        return Err(ApiError::new(ErrorType::AuthForbidden, message));
    };
    let store = api.registry.store();
    let snapshot = store.snapshot().await.map_err(|error| store_error(&error))?;
    let pieces = backup::stream(store.identity(), snapshot, layout, api.registry.now().0 / 1000);
    let pieces = pieces.map_err(|_| ApiError::from(ErrorType::ServerInternal))?;
    let body = ResponseBody::FileStream(Box::new(pieces));
    Ok(HttpResponse { status: StatusCode::OK, headers: HeaderMap::new(), body })
}

/// `POST /v1/backups`: records a backup as the last one. Only the client knows that its file is complete, so the client
/// sends this request. Fails if the revision of the backup is ahead of the store.
pub(super) async fn record_backup(api: &Api, request: &HttpRequest) -> HandlerResult {
    let RecordBackupBody { revision, bytes, encrypted } =
        read_value(&request.json()?).map_err(|error| bad_field("backup", &error))?;
    let decide = |context: &Context<'_>| -> Result<Decision, DecisionError> {
        let (model, mut draft) = (context.full_model, Draft::default());
        let head = model.revision.get();
        if revision > head {
            let message = format!("revision {revision} is ahead of the store's, which is {head}; nothing was changed");
            return Err(ApiError::new(ErrorType::FieldInvalid, message).field("revision").into());
        }
        let record = BackupRecord { at: context.now, revision, bytes, is_encrypted: encrypted };
        let last_revision = model.last_backup.as_ref().map(|last| last.mod_revision);
        draft.add_precondition(Precondition::unchanged_since(key::LAST_BACKUP, last_revision));
        draft.add_op(Op::Put { key: key::LAST_BACKUP.into(), value: codec::encode(&record) });
        draft.set_action(FleetAction::BackupMade { of_revision: revision });
        Ok(Decision { draft, answer: StoredAnswer::json(200, json!({"backup": backup_json(&record)})) })
    };
    let mut caller = request.caller()?;
    let encryption = if encrypted { "encrypted" } else { "not encrypted" };
    caller.reason.get_or_insert_with(|| format!("a backup of revision {revision} was made, {bytes} bytes, {encryption}"));
    let answer = api.registry.write(&caller, decide).await?;
    Ok(HttpResponse::from_answer(answer, &request.base_url))
}

/// `POST /v1/fleet/resume`: starts a new epoch of the store after a restore. Hosts that are ahead of the restored store
/// accept the new epoch. If the fleet does not wait and no host is ahead, the request succeeds and changes nothing, so
/// that a client can repeat it.
pub(super) async fn resume(api: &Api, request: &HttpRequest) -> HandlerResult {
    let requested: ResumeFleetBody = read_value(&request.json()?).map_err(|error| bad_field("fleet", &error))?;
    let reason = check_reason(requested.reason)?;
    let desired = api.desired.as_ref().ok_or(ApiError::from(ErrorType::ServerInternal))?;
    let random: [u8; 10] = ca::random_bytes().map_err(|_| ApiError::from(ErrorType::ServerInternal))?;
    let decide = |context: &Context<'_>| {
        let (model, mut draft) = (context.full_model, Draft::default());
        let history = epoch_history(model, desired);
        let hosts_ahead = desired.status().hosts_ahead();
        let is_resumed = history.waits || !hosts_ahead.is_empty();
        let new_history = if is_resumed {
            let unknown_epochs: BTreeSet<Uuid> = hosts_ahead.values().map(|host| host.held.epoch).collect();
            let epoch = history.next_id(context.now.0, &random, unknown_epochs.iter().copied());
            let new_history = history.with_resume(epoch, model.revision.get(), &reason, unknown_epochs);
            draft.set_action(FleetAction::Resumed { epoch_before: history.resumed_from(), epoch_after: new_history.now });
            let last_revision = model.epoch_history.as_ref().map(|line| line.mod_revision);
            draft.add_precondition(Precondition::unchanged_since(key::EPOCH_LINE, last_revision));
            draft.add_op(Op::Put { key: key::EPOCH_LINE.into(), value: codec::encode(&new_history) });
            new_history
        } else {
            history
        };
        let mut body = fleet_json(api, model, desired, &new_history);
        body["resumed"] = is_resumed.into();
        Ok(Decision { draft, answer: StoredAnswer::json(200, body) })
    };
    let mut caller = request.caller()?;
    caller.reason.get_or_insert_with(|| reason.clone());
    let answer = api.registry.write(&caller, decide).await?;
    Ok(HttpResponse::from_answer(answer, &request.base_url))
}

/// Returns the reason for a new epoch, or the default reason if the request has none. Fails if the reason is blank or
/// too long.
fn check_reason(requested: Option<String>) -> Result<String, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorType::FieldInvalid, message).field("reason");
    let Some(reason) = requested else { return Ok(RESTORED_REASON.to_owned()) };
    if is_blank(&reason) {
        return Err(invalid("the reason is empty: leave it out, or give the reason; nothing was changed".to_owned()));
    }
    let length = reason.chars().count();
    if length > MAX_REASON_CHARS {
        let message = format!("the reason has {length} characters, and may have {MAX_REASON_CHARS}; nothing was changed");
        return Err(invalid(message));
    }
    Ok(reason)
}

/// Returns the epochs of the store. Before the first restore or resume, no epochs are stored, and the first epoch is in
/// the table of desired states.
fn epoch_history(model: &Model, desired: &DesiredTable) -> EpochHistory {
    model.epoch_history.as_ref().map_or_else(|| (*desired.epoch_line()).clone(), |stored| stored.record.clone())
}

/// Returns the finding that the clock of the controller is suspect, or no finding.
fn findings(api: &Api) -> Vec<Finding> {
    api.registry.clock().finding().into_iter().collect()
}

/// Returns the answer that shows the fleet. `history` are the epochs of the store.
fn fleet_json(api: &Api, model: &Model, desired: &DesiredTable, history: &EpochHistory) -> Value {
    json!({
        "epoch": history.now, "since": history.at, "reason": history.reason, "waits": history.waits, "revision": model.revision.get(),
        "ahead": hosts_ahead(model, Some((desired, history))), "hosts": host_counts(api, model, desired), "unknown_hosts": unknown_hosts(api, model),
        "backup": last_backup(model), "findings": findings(api),
    })
}

/// Counts the visible nodes whose hosts are enrolled, and those whose hosts have checked in since the controller
/// started. The controller knows which revision a host holds only after the host has checked in.
fn host_counts(api: &Api, model: &Model, desired: &DesiredTable) -> Value {
    let enrolled = api.identities.as_ref().map(|identities| identities.enrolled_nodes()).unwrap_or_default();
    let visible: Vec<Uuid> = enrolled.into_iter().filter(|node| model.nodes.get(*node).is_some()).collect();
    let checked_in = visible.iter().filter(|node| desired.time_since_contact(**node).is_some()).count();
    json!({"enrolled": visible.len(), "checked_in": checked_in, "running_seconds": desired.uptime().as_secs()})
}

/// Returns the number of hosts that presented a valid certificate since the controller started and are not in the
/// store. Such hosts belong to no cluster, so a caller that is bound to a cluster gets `null`.
fn unknown_hosts(api: &Api, model: &Model) -> Value {
    let identities = api.identities.as_ref().filter(|_| model.visible_cluster.is_none());
    identities.map_or(Value::Null, |identities| identities.unknown_count().into())
}

/// Returns the last backup, or `null` if there is none. A backup is of the whole fleet, so a caller that is bound to a
/// cluster gets `null` too.
fn last_backup(model: &Model) -> Value {
    let last = model.last_backup.as_ref().filter(|_| model.visible_cluster.is_none());
    last.map_or(Value::Null, |last| backup_json(&last.record))
}

fn backup_json(record: &BackupRecord) -> Value {
    let BackupRecord { at, revision, bytes, is_encrypted } = record;
    json!({"at": view::format_time(*at), "revision": revision, "bytes": bytes, "encrypted": is_encrypted})
}

/// Counts the visible nodes whose hosts are ahead of the store. Also returns the highest revision that such a host
/// holds, and the number of epochs that such hosts hold and the store does not know. `source` is `None` in a test
/// without agents, where no host is ahead.
fn hosts_ahead(model: &Model, source: Option<(&DesiredTable, &EpochHistory)>) -> Value {
    let Some((desired, history)) = source else { return json!({"nodes": 0, "highest": null, "unknown_epochs": 0}) };
    let ahead = desired.status().hosts_ahead();
    let held_states = || ahead.iter().filter(|(node, _)| model.nodes.get(**node).is_some()).map(|(_, host)| host.held);
    let is_unknown = |epoch: &Uuid| *epoch != history.now && !history.ended.contains(epoch);
    let unknown_epochs: BTreeSet<Uuid> = held_states().map(|state| state.epoch).filter(is_unknown).collect();
    json!({
        "nodes": held_states().count(), "highest": held_states().map(|state| state.revision).max(), "unknown_epochs": unknown_epochs.len(),
    })
}
