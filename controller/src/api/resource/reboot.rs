//! `POST /v1/nodes/{node}/reboot`: requests a reboot of a node's host.
//!
//! The request is no field of the node. It is a lease that this controller sends to the node's agent until the host has
//! booted, or some minutes are over. A controller that is restarted within this time forgets it. The audit log contains
//! each request.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use stemma_core::object::{Kind, Node, NodeSpec};
use stemma_core::resolve::Resolution;
use stemma_core::status::{BOOT_FACT, Liveness};
use stemma_core::task::Mode;
use stemma_wire::error::{ApiError, ErrorType};
use stemma_wire::message::Revision;
use uuid::Uuid;

use super::objects::ApiResource;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::desired::DesiredTable;
use crate::records::audit::PartAction;
use crate::records::key;
use crate::records::request::StoredAnswer;
use crate::registry::work::{PendingWrite, check_revision};
use crate::registry::{Context, Decision, DecisionError};
use crate::store::Op;

/// The part of the node that the audit event names.
const AUDITED_PART: &str = "reboot";

/// Handles a request for a reboot: checks that the host can be told, records the request in the audit log, and grants the
/// lease.
pub(super) async fn request_reboot(api: &Api, request: &HttpRequest) -> HandlerResult {
    let desired = api.desired.as_ref().ok_or(ApiError::from(ErrorType::ServerInternal))?;
    let (caller, if_match) = (request.caller()?, request.if_match()?);
    // The node and the boot that the reboot ends. `None` if an earlier request with the same key is answered again.
    let decided: Mutex<Option<(Uuid, Uuid)>> = Mutex::default();
    let decide = |context: &Context<'_>| -> Result<Decision, DecisionError> {
        let node = NodeSpec::locate(context.model, request)?;
        check_revision(&node, if_match)?;
        let uuid = node.meta.uuid;
        if let Some(scope) = context.model.access_scope(Kind::Node, uuid) {
            context.check_access(Some(request.endpoint), scope, || format!("node {}", node.display_name()))?;
        }
        let boot_id = check_rebootable(context.model, desired, &node)?;
        *decided.lock().unwrap_or_else(PoisonError::into_inner) = Some((uuid, boot_id));
        let mut work = PendingWrite::new(context);
        work.draft().audit_unchanged(&*node);
        work.draft().set_part(PartAction::Requested, AUDITED_PART.to_owned());
        // The mark orders this write and a deletion of the node.
        let mark = key::reference_mark(Kind::Node, &uuid);
        work.draft().add_op(Op::Put { key: mark.into(), value: Bytes::new() });
        work.finish(StoredAnswer::empty(202))
    };
    let answer = api.registry.write(&caller, decide).await?;
    let decided = decided.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some((node, boot_id)) = decided.filter(|_| !caller.dry_run) {
        // The model contains the commit of the audit event, so this revision is later than that of any earlier lease.
        let revision = Revision(api.model().revision.get());
        desired.grant_reboot(node, boot_id.into_bytes(), revision);
    }
    Ok(HttpResponse::from_answer(answer, &request.base_url))
}

/// Returns the id of the present boot of a node's host, if the host can be told to reboot.
///
/// # Errors
/// Fails with the reason why the host would not reboot: nobody is connected, its agent cannot do it, or its mode forbids
/// changes.
fn check_rebootable(model: &Model, desired: &DesiredTable, node: &Node) -> Result<Uuid, ApiError> {
    let (uuid, name) = (node.meta.uuid, node.display_name());
    let refuse = |reason: &str| {
        let message = format!("the host of node {name} cannot be rebooted now: {reason}; nothing was requested");
        Err(ApiError::new(ErrorType::ActionUnsupported, message))
    };
    if desired.liveness(uuid) != Liveness::Connected {
        return refuse("its agent is not connected");
    }
    if desired.duplicate_hosts(uuid).is_some() {
        return refuse("two hosts check in with its identity");
    }
    if let Resolution::Complete(resolved) = model.resolve(uuid)
        && resolved.mode().value != Mode::Apply
    {
        return refuse("its mode is not apply");
    }
    if model.reported_states.get(&uuid).is_some_and(|state| state.paused) {
        return refuse("it is paused on its host");
    }
    let boot_id = model.reports.get(&uuid).and_then(|record| record.report.facts.get(BOOT_FACT));
    match boot_id.and_then(|text| serde_json::from_str::<Uuid>(text).ok()).filter(|boot_id| !boot_id.is_nil()) {
        Some(boot_id) => Ok(boot_id),
        None => refuse("its agent is of an older version, which does not reboot its host"),
    }
}
