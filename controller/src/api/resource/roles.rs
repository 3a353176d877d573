//! Roles over HTTP: adding and removing roles of a node, and a cluster's changes to what roles produce.

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

/// `GET /v1/nodes/{node}/roles`: the node's roles, and which of them are its own or its group's.
pub(super) fn roles(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(HttpResponse::ok(roles_json(&model, &node)))
}

fn roles_json(model: &Model, node: &Node) -> Value {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let of_group = group.map(|g| g.spec.roles.clone()).unwrap_or_default();
    json!({"roles": model.fleet.roles_of_spec(&node.spec), "own": node.spec.roles, "of_nodegroup": of_group})
}

/// An operation on a node's roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleCall {
    /// `POST`: adds roles.
    Add,
    /// `PUT`: replaces the node's own roles.
    Replace,
    /// `DELETE`: removes roles.
    Remove,
    /// `POST …/refresh`: lets extensions decide again what the roles produce.
    Refresh,
}

/// Changes a node's own roles, all or none.
pub(super) async fn write_roles(api: &Api, request: &HttpRequest, call: RoleCall) -> HandlerResult {
    let named = match request.param("role") {
        "" => read_roles(request)?,
        role => vec![role_name(role)?],
    };
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, node: &mut Node| {
        let (model, roles) = (&work.model, &node.spec.roles);
        let mut next = match call {
            RoleCall::Add => check_roles(model, node, &named)?.iter().chain(roles).cloned().collect(),
            RoleCall::Replace => check_roles(model, node, &named)?.to_vec(),
            RoleCall::Remove => match named.iter().find(|role| !roles.contains(role)) {
                Some(role) => return Err(not_own_role(model, node, role)),
                None => roles.iter().filter(|role| !named.contains(role)).cloned().collect(),
            },
            RoleCall::Refresh => {
                check_extension_roles(model, node, &named)?;
                node.spec.tags.decided.retain(|role, _| !named.contains(role));
                roles.clone()
            }
        };
        next.sort();
        next.dedup();
        set_fields(api, work, node, [("roles", json!(next))], &caller)
    };
    let answer = |model: &Model, node: &Node| StoredAnswer::json(200, roles_json(model, node));
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

/// Reads the roles in the body of a request: `{"roles": […]}`.
fn read_roles(request: &HttpRequest) -> Result<Vec<Name>, ApiError> {
    let mut body = request.object()?;
    let roles = body.remove("roles");
    if let Some(other) = body.keys().next() {
        return Err(ApiError::new(ErrorType::FieldUnknown, format!("this call takes {{\"roles\": […]}}, not {}", quote(other)))
            .field(other.clone()));
    }
    let takes = "this call takes {\"roles\": […]}";
    let roles = match roles {
        Some(Value::Array(roles)) => roles,
        Some(_) => return Err(ApiError::new(ErrorType::FieldInvalid, takes).field("roles")),
        None => return Err(ApiError::new(ErrorType::FieldMissing, takes).field("roles")),
    };
    let parse = |(at, value): (usize, &Value)| {
        let invalid = |why: String| ApiError::new(ErrorType::FieldInvalid, why).field(format!("roles[{at}]"));
        let text = value.as_str().ok_or_else(|| invalid("a role is a text".to_owned()))?;
        Name::new(text).map_err(|why| invalid(why.to_string()))
    };
    roles.iter().enumerate().map(parse).collect()
}

fn role_name(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|e| ApiError::new(ErrorType::RoleInvalid, e.to_string()).field("roles"))
}

/// Fails if the node's release lacks one of these roles, or if a role that is new to the node is a reserved word. (A
/// role that the node has stays on it when a later release no longer has the role, with a finding.) Returns the roles.
fn check_roles<'r>(model: &Model, node: &Node, roles: &'r [Name]) -> Result<&'r [Name], ApiError> {
    let mut new = roles.iter().filter(|role| !node.spec.roles.contains(role));
    if let Some(why) = new.find_map(|role| Name::for_new_declaration(role, NameKind::Role).err()) {
        return Err(ApiError::new(ErrorType::RoleInvalid, format!("{why}; nothing was changed")).field("roles"));
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

/// Fails if the node lacks one of these roles, or if no extension decides what the role produces.
fn check_extension_roles(model: &Model, node: &Node, roles: &[Name]) -> Result<(), ApiError> {
    let (own, table) = (model.fleet.roles_of_spec(&node.spec), table_for_node(model, node));
    let decides = |role: &Name| own.contains(role) && table.as_ref().is_some_and(|table| table.decider(role).is_some());
    let Some(role) = roles.iter().find(|role| !decides(role)) else { return Ok(()) };
    let name = node.display_name();
    let message = format!("no extension decides what role {} gives node {name}; nothing was changed", quote(role));
    Err(ApiError::new(ErrorType::RoleInvalid, message).field("roles"))
}

fn not_own_role(model: &Model, node: &Node, role: &Name) -> ApiError {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let message = format!("node {} has no role {} of its own; nothing was changed", node.display_name(), quote(role));
    let error = ApiError::new(ErrorType::RoleInvalid, message).field("roles");
    if group.is_some_and(|g| g.spec.roles.contains(role)) { error.detail("its node group gives it") } else { error }
}

/// `GET /v1/clusters/{cluster}/roles`: the cluster's changes to what roles produce.
pub(super) fn cluster_roles(api: &Api, request: &HttpRequest) -> HandlerResult {
    let cluster = ClusterSpec::locate(&api.model(), request)?;
    Ok(HttpResponse::ok(json!({"roles": cluster.spec.roles})).with_etag(cluster.meta.resource_version))
}

/// `PUT /v1/clusters/{cluster}/roles`: replaces the cluster's changes to what roles produce.
pub(super) async fn write_cluster_roles(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let mut body = request.object()?;
    let roles = body.remove("roles").ok_or_else(|| {
        ApiError::new(ErrorType::FieldMissing, "this call takes {\"roles\": {ROLE: {\"add_tags\", \"remove_tags\"}}}")
            .field("roles")
    })?;
    let edit =
        |work: &PendingWrite<'_>, cluster: &mut Cluster| set_fields(api, work, cluster, [("roles", roles.clone())], &caller);
    let answer = |_: &Model, cluster: &Cluster| StoredAnswer::json(200, json!({"roles": cluster.spec.roles}));
    writes::change::<ClusterSpec>(api, request, &caller, edit, answer).await
}
