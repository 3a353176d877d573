//! The HTTP handlers of a node's tags: they list all tags of a node, and assign and unassign tags.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use stemma_core::name::{Name, TagName};
use stemma_core::object::{Node, NodeSpec, NodeTags};
use stemma_core::ownership::Manager;
use stemma_core::role::RoleTable;
use stemma_wire::error::{ApiError, ErrorType, quote};

use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::api::resource::objects::ApiResource;
use crate::api::resource::role_table::{table_for_node, visible_tags};
use crate::api::resource::writes;
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;

/// Handles `GET /v1/nodes/{node}/tags`: returns each tag of the node with its origin, and also the unassigned tags.
pub(crate) fn tags(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(HttpResponse::ok(tags_json(&model, &node)))
}

/// Returns the tags of a node as JSON. The list has an entry for each tag that a role gives or an operator assigned.
/// Separate fields list the effective tags, the tags of which the node is primary, the assigned and unassigned tags,
/// and the tags that extensions chose.
fn tags_json(model: &Model, node: &Node) -> Value {
    let roles = model.fleet.roles_of_spec(&node.spec);
    let node_tags = &node.spec.tags;
    let table = table_for_node(model, node);
    let roles_with_tag = |tag: &TagName| {
        let tag_roles = roles.iter().filter(|role| {
            table.as_ref().is_some_and(|table| table.produced_tags(role, node_tags).any(|role_tag| role_tag == tag))
        });
        tag_roles.cloned().collect::<Vec<Name>>()
    };
    let mut names: BTreeSet<TagName> = node_tags.assigned.members().cloned().collect();
    names.extend(roles.iter().flat_map(|role| {
        table.as_ref().map(|table| table.produced_tags(role, node_tags).cloned().collect::<Vec<_>>()).unwrap_or_default()
    }));
    let view = model.fleet.node_view(node.id());
    let effective = view.as_ref().map(stemma_core::fleet::NodeView::tags).unwrap_or_default();
    let primaries = view.map(|node_view| node_view.primary_tags()).unwrap_or_default();
    let entries: Vec<Value> = names.iter().map(|name| {
        let assigned = node_tags.assigned.get(name).is_some();
        // An assigned tag counts as assigned, even if the unassigned tags contain it too.
        let unassigned = node_tags.unassigned.get(name).is_some() && !assigned;
        json!({"name": name, "roles": roles_with_tag(name), "assigned": assigned, "unassigned": unassigned, "primary": primaries.contains(name)})
    }).collect();
    json!({
        "tags": entries, "effective": effective, "decided": extension_tags(node_tags), "primary_tags": primaries,
        "assigned": node_tags.assigned.members().collect::<Vec<_>>(), "unassigned": node_tags.unassigned.members().collect::<Vec<_>>(),
    })
}

/// Returns the tags that extensions chose for a node, by role. In each entry, `question` is the hash of the request
/// that the extension answered.
fn extension_tags(node_tags: &NodeTags) -> Value {
    let entries = node_tags.decided.iter().map(|(role, decision)| {
        (role.to_string(), json!({"extension": decision.extension, "tags": decision.tags, "question": decision.question}))
    });
    entries.collect::<Map<_, _>>().into()
}

/// The tags that a request assigns to a node, and those that it unassigns.
#[derive(Clone, Debug, Default)]
struct NodeTagWrite {
    assign: Vec<TagName>,
    unassign: Vec<TagName>,
}

/// The forms of a request that assigns or unassigns tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeTagCall {
    /// `POST …/tags` with `{"assign": […], "unassign": […]}`: assigns and unassigns tags.
    Both,
    /// `DELETE …/tags` with `{"tags": […]}`: unassigns tags.
    Unassign,
    /// `PUT …/tags/{tag}`: assigns one tag.
    AssignOne,
    /// `DELETE …/tags/{tag}`: unassigns one tag.
    UnassignOne,
}

impl NodeTagWrite {
    /// Reads the tags to assign and to unassign. A request for one tag names it in the path, any other request has
    /// lists in its body. The list `tags` is an alternative name for `assign` in a `POST`, and for `unassign` in a
    /// `DELETE`.
    fn read(request: &HttpRequest, call: NodeTagCall) -> Result<Self, ApiError> {
        let path_tag = || parse_tag_name(request.param("tag")).map(|tag| vec![tag]);
        let mut write = Self::default();
        match call {
            NodeTagCall::AssignOne => write.assign = path_tag()?,
            NodeTagCall::UnassignOne => write.unassign = path_tag()?,
            NodeTagCall::Both | NodeTagCall::Unassign => {
                for (field, value) in request.object()? {
                    match field.as_str() {
                        "assign" | "tags" if call == NodeTagCall::Both => write.assign.extend(parse_tag_list(&field, &value)?),
                        "unassign" | "tags" => write.unassign.extend(parse_tag_list(&field, &value)?),
                        key => {
                            let message = format!("this call accepts {{\"assign\": […], \"unassign\": […]}}, not {}", quote(key));
                            return Err(ApiError::new(ErrorType::FieldUnknown, message).field(key));
                        }
                    }
                }
            }
        }
        Ok(write)
    }
}

/// Parses a JSON list of tag names. `field` is the name of the list for errors.
fn parse_tag_list(field: &str, value: &Value) -> Result<Vec<TagName>, ApiError> {
    let invalid = || ApiError::new(ErrorType::FieldInvalid, format!("{field} is a list of tags")).field(field);
    value.as_array().ok_or_else(invalid)?.iter().map(|tag| parse_tag_name(tag.as_str().ok_or_else(invalid)?)).collect()
}

/// Parses the name of an existing tag, which may also be a word that is now reserved.
fn parse_tag_name(text: &str) -> Result<TagName, ApiError> {
    TagName::new(text).map_err(|error| ApiError::new(ErrorType::FieldInvalid, error.to_string()).field("tags"))
}

/// Handles a request that assigns and unassigns tags of a node. If one tag is refused, nothing is changed.
pub(crate) async fn write_tags(api: &Api, request: &HttpRequest, call: NodeTagCall) -> HandlerResult {
    let write = NodeTagWrite::read(request, call)?;
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, node: &mut Node| write_operator_tags(&work.model, node, &write, call, &caller.manager);
    let answer = |model: &Model, node: &Node| match call {
        NodeTagCall::AssignOne | NodeTagCall::UnassignOne => StoredAnswer::empty(204),
        NodeTagCall::Both | NodeTagCall::Unassign => StoredAnswer::json(200, tags_json(model, node)),
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

/// Assigns and unassigns the tags of a request in a node's spec, with `manager` as their owner. Fails if a tag to
/// assign is neither declared for the node nor given by a role of its release or cluster, or if the node does not have
/// a tag to unassign. A `POST` also fails for a tag that is assigned already.
fn write_operator_tags(
    model: &Model,
    node: &mut Node,
    write: &NodeTagWrite,
    call: NodeTagCall,
    manager: &Manager,
) -> Result<(), ApiError> {
    let no_roles = RoleTable::default();
    let table = table_for_node(model, node);
    let table = table.as_deref().unwrap_or(&no_roles);
    let (roles, assignable_tags) = (model.fleet.roles_of_spec(&node.spec), visible_tags(table));
    for tag in &write.assign {
        if !assignable_tags.contains_key(tag) {
            return Err(tag_not_visible_error(model, node, tag, call));
        }
        if node.spec.tags.assigned.get(tag).is_some() && call == NodeTagCall::Both {
            let message = format!("tag {tag} is assigned to node {} already; nothing was changed", node.display_name());
            return Err(ApiError::new(ErrorType::TagAssigned, message).field("assign"));
        }
        node.spec.tags = table.assign(&roles, &node.spec.tags, tag, manager);
    }
    for tag in &write.unassign {
        node.spec.tags = table.unassign(&roles, &node.spec.tags, tag, manager).map_err(|_| {
            let message = format!("node {} has no tag {}; nothing was changed", node.display_name(), quote(tag));
            ApiError::new(ErrorType::ObjectNotFound, message).field("tags")
        })?;
    }
    Ok(())
}

/// Returns the error for a tag that cannot be assigned, because neither the node's release nor its cluster declares it.
/// If the node is in a cluster, the body of the request lists the tag, and no release or cluster declares it, the error
/// is [`ErrorType::ObjectNotFound`]. Otherwise it is [`ErrorType::TagUnknown`]. If the path contains the tag, the error
/// is always `TagUnknown`, because a 404 would mean that the node in the path does not exist.
fn tag_not_visible_error(model: &Model, node: &Node, tag: &TagName, call: NodeTagCall) -> ApiError {
    let cluster = model.fleet.cluster_of_node(node.id()).and_then(|id| model.clusters.get(id.0));
    let reason = cluster.map(|cluster| format!("it is not visible in cluster {}", cluster.meta.name));
    let reason = reason.unwrap_or_else(|| "the node is in no cluster".to_owned());
    let exists = call == NodeTagCall::AssignOne || cluster.is_none() || is_declared(model, tag);
    let error_type = if exists { ErrorType::TagUnknown } else { ErrorType::ObjectNotFound };
    let message =
        format!("the tag {} can't be assigned to node {}: {reason}; nothing was changed", quote(tag), node.display_name());
    let advice = "a tag is predefined in the release, or created with `stemma tag create`";
    ApiError::new(error_type, message).field("tags").detail(advice)
}

/// Returns whether any cluster or release that the caller may see declares the tag.
fn is_declared(model: &Model, tag: &TagName) -> bool {
    model.clusters.iter().any(|cluster| cluster.spec.tags.contains_key(tag))
        || model.release_tags.iter().any(|object| object.spec.tags.contains_key(tag))
        || model.fleet.releases().any(|release| release.tags.contains_key(tag))
}
