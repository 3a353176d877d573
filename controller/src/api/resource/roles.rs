//! Roles over HTTP: given to a node and taken from it, and what a cluster changes in what they give.

use serde_json::{Value, json};
use stemma_core::name::{Name, NameKind};
use stemma_core::object::{Cluster, ClusterSpec, Node, NodeSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{Shown, set_fields};
use super::place::table_of;
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::work::Work;

/// `GET /v1/nodes/{node}/roles`.
pub(super) fn roles(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(Reply::ok(shown_roles(&model, &node)))
}

fn shown_roles(model: &Model, node: &Node) -> Value {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let of_group = group.map(|g| g.spec.roles.clone()).unwrap_or_default();
    json!({"roles": model.fleet.roles_of(&node.spec), "own": node.spec.roles, "of_nodegroup": of_group})
}

/// What is done to a node's roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleCall {
    /// `POST`: gives.
    Give,
    /// `PUT`: replaces.
    Replace,
    /// `DELETE`: takes.
    Take,
    /// `POST …/refresh`: has extensions decide again what they give.
    Refresh,
}

/// Changes a node's own roles, all or none.
pub(super) async fn write_roles(api: &Api, request: &Request, call: RoleCall) -> HandlerResult {
    let named = match request.part("role") {
        "" => read_roles(request)?,
        role => vec![role_name(role)?],
    };
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, node: &mut Node| {
        let (model, roles) = (&work.model, &node.spec.roles);
        let mut next = match call {
            RoleCall::Give => check_roles(model, node, &named)?.iter().chain(roles).cloned().collect(),
            RoleCall::Replace => check_roles(model, node, &named)?.to_vec(),
            RoleCall::Take => match named.iter().find(|role| !roles.contains(role)) {
                Some(role) => return Err(not_its_own(model, node, role)),
                None => roles.iter().filter(|role| !named.contains(role)).cloned().collect(),
            },
            RoleCall::Refresh => {
                check_decided(model, node, &named)?;
                node.spec.tags.decided.retain(|role, _| !named.contains(role));
                roles.clone()
            }
        };
        next.sort();
        next.dedup();
        set_fields(api, work, node, [("roles", json!(next))], &caller)
    };
    let answer = |model: &Model, node: &Node| Answer::json(200, shown_roles(model, node));
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

fn read_roles(request: &Request) -> Result<Vec<Name>, ApiError> {
    let mut body = request.object()?;
    let roles = body.remove("roles");
    if let Some(other) = body.keys().next() {
        return Err(ApiError::new(
            ErrorType::FieldUnknown,
            format!("this call takes {{\"roles\": […]}}, not {}", quote(other)),
        )
        .field(other.clone()));
    }
    let takes = "this call takes {\"roles\": […]}";
    let roles = match roles {
        Some(Value::Array(roles)) => roles,
        Some(_) => return Err(ApiError::new(ErrorType::FieldInvalid, takes).field("roles")),
        None => return Err(ApiError::new(ErrorType::FieldMissing, takes).field("roles")),
    };
    let named = |(at, value): (usize, &Value)| {
        let wrong = |why: String| ApiError::new(ErrorType::FieldInvalid, why).field(format!("roles[{at}]"));
        let text = value.as_str().ok_or_else(|| wrong("a role is a text".to_owned()))?;
        Name::new(text).map_err(|why| wrong(why.to_string()))
    };
    roles.iter().enumerate().map(named).collect()
}

fn role_name(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|e| ApiError::new(ErrorType::RoleInvalid, e.to_string()).field("roles"))
}

/// A role that the node's release does not have is refused where it is given by name, and so is a reserved word; one that a release has lost
/// meanwhile stays, as a finding.
fn check_roles<'r>(model: &Model, node: &Node, roles: &'r [Name]) -> Result<&'r [Name], ApiError> {
    let mut new = roles.iter().filter(|role| !node.spec.roles.contains(role));
    if let Some(why) = new.find_map(|role| Name::of_new(role, NameKind::Role).err()) {
        return Err(ApiError::new(ErrorType::RoleInvalid, format!("{why}; nothing was changed")).field("roles"));
    }
    let Some(table) = table_of(model, node) else { return Ok(roles) };
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

/// Refuses to ask again about roles that the node does not have, or of which no extension decides.
fn check_decided(model: &Model, node: &Node, roles: &[Name]) -> Result<(), ApiError> {
    let (own, table) = (model.fleet.roles_of(&node.spec), table_of(model, node));
    let decides = |role: &Name| own.contains(role) && table.as_ref().is_some_and(|table| table.decider(role).is_some());
    let Some(role) = roles.iter().find(|role| !decides(role)) else { return Ok(()) };
    let name = node.display_name();
    let message = format!("no extension decides what role {} gives node {name}; nothing was changed", quote(role));
    Err(ApiError::new(ErrorType::RoleInvalid, message).field("roles"))
}

fn not_its_own(model: &Model, node: &Node, role: &Name) -> ApiError {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let message = format!("node {} has no role {} of its own; nothing was changed", node.display_name(), quote(role));
    let error = ApiError::new(ErrorType::RoleInvalid, message).field("roles");
    if group.is_some_and(|g| g.spec.roles.contains(role)) { error.detail("its node group gives it") } else { error }
}

/// `GET /v1/clusters/{cluster}/roles`.
pub(super) fn cluster_roles(api: &Api, request: &Request) -> HandlerResult {
    let cluster = ClusterSpec::locate(&api.model(), request)?;
    Ok(Reply::ok(json!({"roles": cluster.spec.roles})).tagged(cluster.meta.resource_version))
}

/// `PUT /v1/clusters/{cluster}/roles`.
pub(super) async fn write_cluster_roles(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let mut body = request.object()?;
    let roles = body.remove("roles").ok_or_else(|| {
        ApiError::new(ErrorType::FieldMissing, "this call takes {\"roles\": {ROLE: {\"add_tags\", \"remove_tags\"}}}")
            .field("roles")
    })?;
    let edit =
        |work: &Work<'_>, cluster: &mut Cluster| set_fields(api, work, cluster, [("roles", roles.clone())], &caller);
    let answer = |_: &Model, cluster: &Cluster| Answer::json(200, json!({"roles": cluster.spec.roles}));
    writes::change::<ClusterSpec>(api, request, &caller, edit, answer).await
}
