//! The HTTP handlers of roles: they add and remove roles of a node, and change which tags a cluster's roles give.

use serde_json::{Value, json};
use stemma_core::name::{Name, NameKind};
use stemma_core::object::{Cluster, ClusterSpec, Node, NodeSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{ApiResource, set_fields};
use super::role_table::table_for_node;
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;

/// Handles `GET /v1/nodes/{node}/roles`: returns all roles of the node, its own roles, and those of its group.
pub(super) fn roles(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(HttpResponse::ok(roles_json(&model, &node)))
}

/// Returns the body of the response: all effective roles of the node (`roles`), its own (`own`), and those of its group
/// (`of_nodegroup`).
fn roles_json(model: &Model, node: &Node) -> Value {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let group_roles = group.map(|group| group.spec.roles.clone()).unwrap_or_default();
    json!({"roles": model.fleet.roles_of_spec(&node.spec), "own": node.spec.roles, "of_nodegroup": group_roles})
}

/// An operation on the roles of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleCall {
    /// `POST`: adds roles.
    Add,
    /// `PUT`: replaces the node's own roles.
    Replace,
    /// `DELETE`: removes roles.
    Remove,
    /// `POST …/refresh`: removes the stored decisions about which tags the roles in the request give to the node, so
    /// that the extensions decide again.
    Refresh,
}

/// Handles a write of a node's own roles. If one role is not valid, the node is unchanged. The roles are those in the
/// path, or else those in the body of the request.
pub(super) async fn write_roles(api: &Api, request: &HttpRequest, call: RoleCall) -> HandlerResult {
    let request_roles = match request.param("role") {
        "" => read_roles(request)?,
        role => vec![parse_role_name(role)?],
    };
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, node: &mut Node| {
        let (model, roles) = (&work.model, &node.spec.roles);
        let mut new_roles = match call {
            RoleCall::Add => check_roles(model, node, &request_roles)?.iter().chain(roles).cloned().collect(),
            RoleCall::Replace => check_roles(model, node, &request_roles)?.to_vec(),
            RoleCall::Remove => match request_roles.iter().find(|role| !roles.contains(role)) {
                Some(role) => return Err(not_own_role_error(model, node, role)),
                None => roles.iter().filter(|role| !request_roles.contains(role)).cloned().collect(),
            },
            RoleCall::Refresh => {
                check_extension_roles(model, node, &request_roles)?;
                node.spec.tags.decided.retain(|role, _| !request_roles.contains(role));
                roles.clone()
            }
        };
        new_roles.sort();
        new_roles.dedup();
        set_fields(api, work, node, [("roles", json!(new_roles))], &caller)
    };
    let answer = |model: &Model, node: &Node| StoredAnswer::json(200, roles_json(model, node));
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

/// Reads the roles in the body of a request: `{"roles": […]}`. Fails for any other field, and for an invalid name.
fn read_roles(request: &HttpRequest) -> Result<Vec<Name>, ApiError> {
    let mut body = request.object()?;
    let roles = body.remove("roles");
    if let Some(key) = body.keys().next() {
        return Err(ApiError::new(ErrorType::FieldUnknown, format!("this call accepts {{\"roles\": […]}}, not {}", quote(key)))
            .field(key.clone()));
    }
    let expected_body = "this call accepts {\"roles\": […]}";
    let roles = match roles {
        Some(Value::Array(roles)) => roles,
        Some(_) => return Err(ApiError::new(ErrorType::FieldInvalid, expected_body).field("roles")),
        None => return Err(ApiError::new(ErrorType::FieldMissing, expected_body).field("roles")),
    };
    let parse = |(index, value): (usize, &Value)| {
        let invalid = |reason: String| ApiError::new(ErrorType::FieldInvalid, reason).field(format!("roles[{index}]"));
        let text = value.as_str().ok_or_else(|| invalid("a role is a text".to_owned()))?;
        Name::new(text).map_err(|reason| invalid(reason.to_string()))
    };
    roles.iter().enumerate().map(parse).collect()
}

/// Reads the name of a role from the path of a request.
fn parse_role_name(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|error| ApiError::new(ErrorType::RoleInvalid, error.to_string()).field("roles"))
}

/// Returns the roles if the node can have them. Fails if a role that is not the node's own yet is a reserved word, or
/// if the node's release lacks a role. If the node has no release, only the first of these checks is made.
fn check_roles<'r>(model: &Model, node: &Node, roles: &'r [Name]) -> Result<&'r [Name], ApiError> {
    let mut new_roles = roles.iter().filter(|role| !node.spec.roles.contains(role));
    if let Some(error) = new_roles.find_map(|role| Name::for_new_declaration(role, NameKind::Role).err()) {
        return Err(ApiError::new(ErrorType::RoleInvalid, format!("{error}; nothing was changed")).field("roles"));
    }
    let Some(table) = table_for_node(model, node) else { return Ok(roles) };
    match roles.iter().find(|role| !table.has_role(role)) {
        Some(role) => {
            let names: Vec<&str> = table.roles().map(|(name, _)| name.as_str()).collect();
            let message = format!("the node's release has no role {}; nothing was changed", quote(role));
            Err(ApiError::new(ErrorType::RoleInvalid, message)
                .field("roles")
                .detail(format!("its roles are {}", names.join(", "))))
        }
        None => Ok(roles),
    }
}

/// Checks each of these roles. Fails if the node lacks the role, or if no extension (a program that the controller
/// asks) decides which tags the role gives to the node.
fn check_extension_roles(model: &Model, node: &Node, roles: &[Name]) -> Result<(), ApiError> {
    let (node_roles, table) = (model.fleet.roles_of_spec(&node.spec), table_for_node(model, node));
    let is_decided = |role: &Name| node_roles.contains(role) && table.as_ref().is_some_and(|table| table.decider(role).is_some());
    let Some(role) = roles.iter().find(|role| !is_decided(role)) else { return Ok(()) };
    let name = node.display_name();
    let message = format!("no extension decides what role {} gives node {name}; nothing was changed", quote(role));
    Err(ApiError::new(ErrorType::RoleInvalid, message).field("roles"))
}

/// Returns the error for a removal of a role that is not the node's own. If the group of the node has the role, the
/// error mentions this.
fn not_own_role_error(model: &Model, node: &Node, role: &Name) -> ApiError {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let message = format!("node {} has no role {} of its own; nothing was changed", node.display_name(), quote(role));
    let error = ApiError::new(ErrorType::RoleInvalid, message).field("roles");
    if group.is_some_and(|group| group.spec.roles.contains(role)) { error.detail("its node group gives it") } else { error }
}

/// Handles `GET /v1/clusters/{cluster}/roles`: returns the tags that the cluster adds to its roles or removes from
/// them.
pub(super) fn cluster_roles(api: &Api, request: &HttpRequest) -> HandlerResult {
    let cluster = ClusterSpec::locate(&api.model(), request)?;
    Ok(HttpResponse::ok(json!({"roles": cluster.spec.roles})).with_etag(cluster.meta.resource_version))
}

/// Handles `PUT /v1/clusters/{cluster}/roles`: replaces the tags that the cluster adds to its roles or removes from
/// them.
pub(super) async fn write_cluster_roles(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let mut body = request.object()?;
    let roles = body.remove("roles").ok_or_else(|| {
        ApiError::new(ErrorType::FieldMissing, "this call accepts {\"roles\": {ROLE: {\"add_tags\", \"remove_tags\"}}}")
            .field("roles")
    })?;
    let edit =
        |work: &PendingWrite<'_>, cluster: &mut Cluster| set_fields(api, work, cluster, [("roles", roles.clone())], &caller);
    let answer = |_: &Model, cluster: &Cluster| StoredAnswer::json(200, json!({"roles": cluster.spec.roles}));
    writes::change::<ClusterSpec>(api, request, &caller, edit, answer).await
}
