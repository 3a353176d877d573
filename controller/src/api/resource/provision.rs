//! Ironic's endpoints for the life of a machine: whether the machine can be used, its provision state, and its
//! maintenance mode. No handler here controls a machine: a requested provision state is only checked and stored.

use serde_json::{Map, Value, json};
use stemma_core::catalog::SuggestionCache;
use stemma_core::object::{Node, NodeSpec, ProvisionState};
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::columns::{ColumnSet, NodeRow};
use super::objects::{ApiResource, set_fields};
use super::{nodes, writes};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;

/// The names of the node interfaces that Ironic's `validate` reports. Here only `deploy` is really checked, and the
/// others always pass.
const INTERFACES: &[&str] =
    &["deploy", "bios", "boot", "console", "firmware", "inspect", "management", "network", "power", "raid", "rescue", "storage"];

/// The names of the node fields in Ironic's response to `GET …/states`.
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

/// Handles `GET /v1/nodes/{node}/validate`: reports whether the node can be used.
pub(super) fn validate(api: &Api, request: &HttpRequest) -> HandlerResult {
    validate_node(api, request, request.param("node"))
}

/// Handles `GET /v1/nodes/validate?node=…` or `…?node_uuid=…`: reports whether the node in the query can be used.
pub(super) fn validate_named(api: &Api, request: &HttpRequest) -> HandlerResult {
    let parameters = [request.query.get("node")?, request.query.get("node_uuid")?];
    let name =
        parameters.into_iter().flatten().next().ok_or_else(|| {
            ApiError::new(ErrorType::RequestQuery, "which node? write /v1/nodes/validate?node=NAME").field("node")
        })?;
    validate_node(api, request, name)
}

/// Returns the response of `validate` for the node with this name or uuid. `deploy` fails with a reason if the node
/// cannot be used. All other interfaces pass.
fn validate_node(api: &Api, request: &HttpRequest, name: &str) -> HandlerResult {
    let model = api.model();
    let node = nodes::locate(&model, name, request.ironic_version())?;
    let mut body: Map<String, Value> = INTERFACES.iter().map(|name| ((*name).to_owned(), json!({"result": true}))).collect();
    if let Some(reason) = model.resolve(node.meta.uuid).unusable_reason() {
        body.insert("deploy".to_owned(), json!({"result": false, "reason": reason}));
    }
    Ok(HttpResponse::ok(body.into()))
}

/// Handles `GET /v1/nodes/{node}/states`: returns the fields of the node that Ironic calls its states.
pub(super) fn states(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let columns = ColumnSet::all(request.ironic_version()).only(|field| STATES.contains(&field));
    Ok(HttpResponse::ok(columns.body(&NodeRow::new(api, &model, &node, &request.base_url, &SuggestionCache::default())).into()))
}

/// Handles `PUT /v1/nodes/{node}/states/provision`: stores the provision state to which the requested target leads.
/// Fails for the state `active` if the node cannot be used.
pub(super) async fn set_provision_state(api: &Api, request: &HttpRequest) -> HandlerResult {
    let target = read_target(request)?;
    let caller = request.caller()?;
    let answer = |_: &Model, _: &Node| StoredAnswer {
        location: Some(Endpoint::NodeStates.path(&[request.param("node")])),
        ..StoredAnswer::empty(202)
    };
    let edit = |work: &PendingWrite<'_>, node: &mut Node| {
        let reason = (target == ProvisionState::Active).then(|| work.model.resolve(node.meta.uuid).unusable_reason()).flatten();
        if let Some(reason) = reason {
            let message = format!("Failed to validate deploy or power info for node {}: {reason}", node.meta.uuid);
            return Err(ApiError::new(ErrorType::ObjectInvalid, message).field("target"));
        }
        node.spec.provision_state = Some(target);
        Ok(())
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

/// Reads the body `{"target": TARGET}`, and returns the provision state to which the target leads, such as `available`
/// for `provide`. Fails for any other field, and for an unknown target.
fn read_target(request: &HttpRequest) -> Result<ProvisionState, ApiError> {
    let mut body = request.object()?;
    let target = body.remove("target");
    if let Some(unknown_field) = body.keys().next() {
        let message = format!("Unknown attribute for target: {}: nothing here controls a machine", quote(unknown_field));
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(unknown_field.clone()));
    }
    let target_names = || ProvisionState::TARGETS.iter().map(|(target, _)| *target).collect::<Vec<_>>().join(", ");
    target.as_ref().and_then(Value::as_str).and_then(ProvisionState::from_target).ok_or_else(|| {
        let given_target = target.unwrap_or_default().to_string();
        let message = format!("unknown target {}; the targets are: {}", quote(&given_target), target_names());
        ApiError::new(ErrorType::FieldInvalid, message).field("target")
    })
}

/// Handles `PUT` and `DELETE` of `/v1/nodes/{node}/maintenance`: parks or unparks the node, as `parked` requires.
/// Ironic's maintenance is the same as Stemma's park.
pub(super) async fn set_maintenance(api: &Api, request: &HttpRequest, parked: bool) -> HandlerResult {
    let reason = if parked { read_reason(request)? } else { None };
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, node: &mut Node| {
        let fields = [("parked", parked.into()), ("maintenance_reason", json!(reason))];
        set_fields(api, work, node, fields, &caller).map_err(with_request_field)
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, |_, _| StoredAnswer::empty(202)).await
}

/// Renames the field in an error about the node's field `maintenance_reason`: in the body of the request, this field is
/// called `reason`. Other errors are returned unchanged.
fn with_request_field(error: ApiError) -> ApiError {
    const REASON: &str = "maintenance_reason";
    if error.field.as_deref() != Some(REASON) {
        return error;
    }
    let message = error.message.replacen(REASON, "reason", 1);
    ApiError { message, ..error.field("reason") }
}

/// Reads the reason for a park from the body of a request: `{"reason": TEXT}`. Returns `None` if the body is empty or
/// has no reason.
fn read_reason(request: &HttpRequest) -> Result<Option<String>, ApiError> {
    if request.body.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let mut body = request.object()?;
    let reason = body.remove("reason");
    match (reason, body.keys().next()) {
        (_, Some(unknown_field)) => {
            let message = format!("Unknown attribute for maintenance: {}: the only attribute is reason", quote(unknown_field));
            Err(ApiError::new(ErrorType::FieldUnknown, message).field(unknown_field.clone()))
        }
        (None | Some(Value::Null), None) => Ok(None),
        (Some(Value::String(reason)), None) if reason.chars().count() <= 255 => Ok(Some(reason)),
        (Some(_), None) => {
            let message = "a reason is a text of at most 255 characters";
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("reason"))
        }
    }
}
