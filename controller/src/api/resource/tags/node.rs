//! The tags of a node: shows all of them, and assigns and unassigns tags.

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

/// `GET /v1/nodes/{node}/tags`: each tag with its origin, including unassigned tags.
pub(crate) fn tags(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(HttpResponse::ok(tags_json(&model, &node)))
}

/// Returns the tags of a node: a row for each tag that a role produces or that is assigned, the effective tags, the
/// tags of which the node is primary, and what operators and extensions decided.
fn tags_json(model: &Model, node: &Node) -> Value {
    let roles = model.fleet.roles_of_spec(&node.spec);
    let by_hand = &node.spec.tags;
    let table = table_for_node(model, node);
    let produced = |tag: &TagName| {
        let sources = roles
            .iter()
            .filter(|role| table.as_ref().is_some_and(|table| table.produced_tags(role, by_hand).any(|one| one == tag)));
        sources.cloned().collect::<Vec<Name>>()
    };
    let mut names: BTreeSet<TagName> = by_hand.assigned.members().cloned().collect();
    names.extend(roles.iter().flat_map(|role| {
        table.as_ref().map(|table| table.produced_tags(role, by_hand).cloned().collect::<Vec<_>>()).unwrap_or_default()
    }));
    let view = model.fleet.node_view(node.id());
    let effective = view.as_ref().map(stemma_core::fleet::NodeView::tags).unwrap_or_default();
    let primaries = view.map(|seen| seen.primary_tags()).unwrap_or_default();
    let rows: Vec<Value> = names.iter().map(|name| {
        let assigned = by_hand.assigned.get(name).is_some();
        let unassigned = by_hand.unassigned.get(name).is_some() && !assigned;
        json!({"name": name, "roles": produced(name), "assigned": assigned, "unassigned": unassigned, "primary": primaries.contains(name)})
    }).collect();
    json!({
        "tags": rows, "effective": effective, "decided": extension_tags(by_hand), "primary_tags": primaries,
        "assigned": by_hand.assigned.members().collect::<Vec<_>>(), "unassigned": by_hand.unassigned.members().collect::<Vec<_>>(),
    })
}

/// Returns the tags that extensions decided for a node, by the role for which they were asked.
fn extension_tags(by_hand: &NodeTags) -> Value {
    let rows = by_hand.decided.iter().map(|(role, made)| {
        (role.to_string(), json!({"extension": made.extension, "tags": made.tags, "question": made.question}))
    });
    rows.collect::<Map<_, _>>().into()
}

/// The tags of a node to assign and to unassign.
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
    /// Reads the tags to assign and to unassign from the path or the body of a request.
    fn read(request: &HttpRequest, call: NodeTagCall) -> Result<Self, ApiError> {
        let path_tag = || tag_name(request.param("tag")).map(|tag| vec![tag]);
        let mut write = Self::default();
        match call {
            NodeTagCall::AssignOne => write.assign = path_tag()?,
            NodeTagCall::UnassignOne => write.unassign = path_tag()?,
            NodeTagCall::Both | NodeTagCall::Unassign => {
                for (field, value) in request.object()? {
                    match field.as_str() {
                        "assign" | "tags" if call == NodeTagCall::Both => write.assign = tag_list(&field, &value)?,
                        "unassign" | "tags" => write.unassign = tag_list(&field, &value)?,
                        other => {
                            let message = format!("this call takes {{\"assign\": […], \"unassign\": […]}}, not {}", quote(other));
                            return Err(ApiError::new(ErrorType::FieldUnknown, message).field(other));
                        }
                    }
                }
            }
        }
        Ok(write)
    }
}

fn tag_list(field: &str, value: &Value) -> Result<Vec<TagName>, ApiError> {
    let invalid = || ApiError::new(ErrorType::FieldInvalid, format!("{field} is a list of tags")).field(field);
    value.as_array().ok_or_else(invalid)?.iter().map(|tag| tag_name(tag.as_str().ok_or_else(invalid)?)).collect()
}

fn tag_name(text: &str) -> Result<TagName, ApiError> {
    TagName::new(text).map_err(|e| ApiError::new(ErrorType::FieldInvalid, e.to_string()).field("tags"))
}

/// Assigns and unassigns tags of a node, all or none.
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

/// Assigns and unassigns the tags of a request in a node's spec. Fails if a tag to assign is not visible to the node,
/// or if a tag to unassign is not a tag of the node.
fn write_operator_tags(
    model: &Model,
    node: &mut Node,
    write: &NodeTagWrite,
    call: NodeTagCall,
    manager: &Manager,
) -> Result<(), ApiError> {
    let empty = RoleTable::default();
    let table = table_for_node(model, node);
    let table = table.as_deref().unwrap_or(&empty);
    let (roles, known) = (model.fleet.roles_of_spec(&node.spec), visible_tags(table));
    for tag in &write.assign {
        if !known.contains_key(tag) {
            return Err(tag_not_visible(model, node, tag, call));
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

/// Returns the error for a tag that cannot be assigned because it is not visible to the node. If the tag was in a list
/// and nothing declares it, the error is [`ErrorType::ObjectNotFound`]. Otherwise it is [`ErrorType::TagUnknown`]: the
/// tag exists elsewhere, or the path names an existing node, for which 404 would be wrong.
fn tag_not_visible(model: &Model, node: &Node, tag: &TagName, call: NodeTagCall) -> ApiError {
    let cluster = model.fleet.cluster_of_node(node.id()).and_then(|id| model.clusters.get(id.0));
    let whose = cluster
        .map_or_else(|| "the node is in no cluster".to_owned(), |c| format!("it is not visible in cluster {}", c.meta.name));
    let is_found = call == NodeTagCall::AssignOne || cluster.is_none() || is_declared(model, tag);
    let kind = if is_found { ErrorType::TagUnknown } else { ErrorType::ObjectNotFound };
    let message =
        format!("the tag {} can't be assigned to node {}: {whose}; nothing was changed", quote(tag), node.display_name());
    let advice = "a tag is predefined in the release, or created with `stemma tag create`";
    ApiError::new(kind, message).field("tags").detail(advice)
}

/// Returns whether a visible release or cluster declares the tag.
fn is_declared(model: &Model, tag: &TagName) -> bool {
    model.clusters.iter().any(|cluster| cluster.spec.tags.contains_key(tag))
        || model.release_tags.iter().any(|object| object.spec.tags.contains_key(tag))
        || model.fleet.releases().any(|release| release.tags.contains_key(tag))
}
