//! What Ironic's clients ask of a machine's life: whether it can be used, in which state its instance is, and that it is set aside.
//! Nothing here drives a machine: a target is checked and noted.

use serde_json::{Map, Value, json};
use stemma_core::catalog::Meant;
use stemma_core::object::{Node, NodeSpec, ProvisionState};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::columns::{Chosen, Row};
use super::objects::{Shown, set_fields};
use super::{nodes, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::work::Work;

/// What Ironic validates of a node. All but the first has no meaning here, and holds.
const INTERFACES: &[&str] = &[
    "deploy",
    "bios",
    "boot",
    "console",
    "firmware",
    "inspect",
    "management",
    "network",
    "power",
    "raid",
    "rescue",
    "storage",
];

/// What Ironic says of a node's states.
const STATES: &[&str] = &[
    "power_state",
    "target_power_state",
    "provision_state",
    "target_provision_state",
    "provision_updated_at",
    "last_error",
    "console_enabled",
    "raid_config",
    "target_raid_config",
    "boot_mode",
    "secure_boot",
];

/// `GET /v1/nodes/{node}/validate`.
pub(super) fn validate(api: &Api, request: &Request) -> HandlerResult {
    validated(api, request, request.part("node"))
}

/// `GET /v1/nodes/validate?node=…`.
pub(super) fn validate_named(api: &Api, request: &Request) -> HandlerResult {
    let named = [request.query.one("node")?, request.query.one("node_uuid")?];
    let name = named.into_iter().flatten().next().ok_or_else(|| {
        ApiError::new(ErrorType::RequestQuery, "which node? write /v1/nodes/validate?node=NAME").field("node")
    })?;
    validated(api, request, name)
}

fn validated(api: &Api, request: &Request, name: &str) -> HandlerResult {
    let model = api.model();
    let node = nodes::locate(&model, name, request.ironic())?;
    let mut body: Map<String, Value> =
        INTERFACES.iter().map(|name| ((*name).to_owned(), json!({"result": true}))).collect();
    if let Some(reason) = model.resolve(node.meta.uuid).unusable() {
        body.insert("deploy".to_owned(), json!({"result": false, "reason": reason}));
    }
    Ok(Reply::ok(body.into()))
}

/// `GET /v1/nodes/{node}/states`.
pub(super) fn states(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let columns = Chosen::all(request.ironic()).only(|field| STATES.contains(&field));
    Ok(Reply::ok(columns.body(&Row::new(api, &model, &node, &request.base, &Meant::default())).into()))
}

/// `PUT /v1/nodes/{node}/states/provision`. To be active, a node must be usable.
pub(super) async fn provision(api: &Api, request: &Request) -> HandlerResult {
    let target = read_target(request)?;
    let caller = request.caller()?;
    let answer = |_: &Model, _: &Node| Answer {
        location: Some(Endpoint::NodeStates.path(&[request.part("node")])),
        ..Answer::empty(202)
    };
    let edit = |work: &Work<'_>, node: &mut Node| {
        let why = (target == ProvisionState::Active).then(|| work.model.resolve(node.meta.uuid).unusable()).flatten();
        if let Some(why) = why {
            let message = format!("Failed to validate deploy or power info for node {}: {why}", node.meta.uuid);
            return Err(ApiError::new(ErrorType::ObjectInvalid, message).field("target"));
        }
        node.spec.provision_state = Some(target);
        Ok(())
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

fn read_target(request: &Request) -> Result<ProvisionState, ApiError> {
    let mut body = request.object()?;
    let target = body.remove("target");
    if let Some(other) = body.keys().next() {
        let message = format!("Unknown attribute for target: {}: nothing here drives a machine", quote(other));
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(other.clone()));
    }
    let known = || ProvisionState::TARGETS.iter().map(|(target, _)| *target).collect::<Vec<_>>().join(", ");
    target.as_ref().and_then(Value::as_str).and_then(ProvisionState::of_target).ok_or_else(|| {
        let found = target.unwrap_or_default().to_string();
        let message = format!("the target {} is not taken; these are: {}", quote(&found), known());
        ApiError::new(ErrorType::FieldInvalid, message).field("target")
    })
}

/// `PUT` and `DELETE` of `/v1/nodes/{node}/maintenance`: the node is parked, and no longer.
pub(super) async fn maintenance(api: &Api, request: &Request, parked: bool) -> HandlerResult {
    let reason = if parked { read_reason(request)? } else { None };
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, node: &mut Node| {
        let fields = [("parked", parked.into()), ("maintenance_reason", json!(reason))];
        set_fields(api, work, node, fields, &caller).map_err(as_sent)
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, |_, _| Answer::empty(202)).await
}

/// The refusal of a node's field as that of the request, which has its reason under a shorter name.
fn as_sent(refusal: ApiError) -> ApiError {
    const REASON: &str = "maintenance_reason";
    if refusal.field.as_deref() != Some(REASON) {
        return refusal;
    }
    let message = refusal.message.replacen(REASON, "reason", 1);
    ApiError { message, ..refusal.field("reason") }
}

fn read_reason(request: &Request) -> Result<Option<String>, ApiError> {
    if request.body.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let mut body = request.object()?;
    let reason = body.remove("reason");
    match (reason, body.keys().next()) {
        (_, Some(other)) => {
            let message = format!("Unknown attribute for maintenance: {}: it takes a reason", quote(other));
            Err(ApiError::new(ErrorType::FieldUnknown, message).field(other.clone()))
        }
        (None | Some(Value::Null), None) => Ok(None),
        (Some(Value::String(reason)), None) if reason.chars().count() <= 255 => Ok(Some(reason)),
        (Some(_), None) => {
            let message = "a reason is a text of at most 255 characters";
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("reason"))
        }
    }
}
