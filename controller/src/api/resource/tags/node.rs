//! The tags of a node: assigned and unassigned.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use stemma_core::name::{Name, TagName};
use stemma_core::object::{Node, NodeSpec, NodeTags};
use stemma_core::ownership::Manager;
use stemma_core::role::RoleTable;
use stemma_wire::error::{ApiError, ErrorType, quote};

use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::api::resource::objects::Shown;
use crate::api::resource::place::{table_of, visible};
use crate::api::resource::writes;
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::work::Work;

/// `GET /v1/nodes/{node}/tags`: each with its origin; those that are unassigned too.
pub(crate) fn tags(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(Reply::ok(shown_tags(&model, &node)))
}

fn shown_tags(model: &Model, node: &Node) -> Value {
    let roles = model.fleet.roles_of(&node.spec);
    let by_hand = &node.spec.tags;
    let table = table_of(model, node);
    let produced = |tag: &TagName| {
        let by = roles
            .iter()
            .filter(|role| table.as_ref().is_some_and(|table| table.given(role, by_hand).any(|given| given == tag)));
        by.cloned().collect::<Vec<Name>>()
    };
    let mut names: BTreeSet<TagName> = by_hand.assigned.members().cloned().collect();
    names.extend(roles.iter().flat_map(|role| {
        table.as_ref().map(|table| table.given(role, by_hand).cloned().collect::<Vec<_>>()).unwrap_or_default()
    }));
    let seen = model.fleet.node_view(node.id());
    let effective = seen.as_ref().map(stemma_core::fleet::NodeView::tags).unwrap_or_default();
    let primaries = seen.map(|seen| seen.primary_tags()).unwrap_or_default();
    let rows: Vec<Value> = names.iter().map(|name| {
        let assigned = by_hand.assigned.get(name).is_some();
        let unassigned = by_hand.unassigned.get(name).is_some() && !assigned;
        json!({"name": name, "roles": produced(name), "assigned": assigned, "unassigned": unassigned, "primary": primaries.contains(name)})
    }).collect();
    json!({
        "tags": rows, "effective": effective, "decided": decided(by_hand), "primary_tags": primaries,
        "assigned": by_hand.assigned.members().collect::<Vec<_>>(), "unassigned": by_hand.unassigned.members().collect::<Vec<_>>(),
    })
}

/// What extensions decided, by role.
fn decided(by_hand: &NodeTags) -> Value {
    let rows = by_hand.decided.iter().map(|(role, made)| {
        (role.to_string(), json!({"extension": made.extension, "tags": made.tags, "question": made.question}))
    });
    rows.collect::<Map<_, _>>().into()
}

/// What is done to a node's tags.
#[derive(Clone, Debug, Default)]
struct TagWrite {
    assign: Vec<TagName>,
    unassign: Vec<TagName>,
}

/// How a request says what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeTagCall {
    /// `POST …/tags`: `{"assign": […], "unassign": […]}`.
    Both,
    /// `DELETE …/tags`: `{"tags": […]}`.
    Unassign,
    /// `PUT …/tags/{tag}`.
    AssignOne,
    /// `DELETE …/tags/{tag}`.
    UnassignOne,
}

impl TagWrite {
    fn read(request: &Request, call: NodeTagCall) -> Result<Self, ApiError> {
        let one = || tag_name(request.part("tag")).map(|tag| vec![tag]);
        let mut write = Self::default();
        match call {
            NodeTagCall::AssignOne => write.assign = one()?,
            NodeTagCall::UnassignOne => write.unassign = one()?,
            NodeTagCall::Both | NodeTagCall::Unassign => {
                for (field, value) in request.object()? {
                    match field.as_str() {
                        "assign" | "tags" if call == NodeTagCall::Both => write.assign = tag_list(&field, &value)?,
                        "unassign" | "tags" => write.unassign = tag_list(&field, &value)?,
                        other => {
                            let message =
                                format!("this call takes {{\"assign\": […], \"unassign\": […]}}, not {}", quote(other));
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
    let refused = || ApiError::new(ErrorType::FieldInvalid, format!("{field} is a list of tags")).field(field);
    value.as_array().ok_or_else(refused)?.iter().map(|tag| tag_name(tag.as_str().ok_or_else(refused)?)).collect()
}

fn tag_name(text: &str) -> Result<TagName, ApiError> {
    TagName::new(text).map_err(|e| ApiError::new(ErrorType::FieldInvalid, e.to_string()).field("tags"))
}

/// Assigns and unassigns tags of a node, all or none.
pub(crate) async fn write_tags(api: &Api, request: &Request, call: NodeTagCall) -> HandlerResult {
    let write = TagWrite::read(request, call)?;
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, node: &mut Node| write_by_hand(&work.model, node, &write, call, &caller.manager);
    let answer = |model: &Model, node: &Node| match call {
        NodeTagCall::AssignOne | NodeTagCall::UnassignOne => Answer::empty(204),
        NodeTagCall::Both | NodeTagCall::Unassign => Answer::json(200, shown_tags(model, node)),
    };
    writes::change::<NodeSpec>(api, request, &caller, edit, answer).await
}

fn write_by_hand(
    model: &Model,
    node: &mut Node,
    write: &TagWrite,
    call: NodeTagCall,
    by: &Manager,
) -> Result<(), ApiError> {
    let nowhere = RoleTable::default();
    let table = table_of(model, node);
    let table = table.as_deref().unwrap_or(&nowhere);
    let (roles, known) = (model.fleet.roles_of(&node.spec), visible(table));
    for tag in &write.assign {
        if !known.contains_key(tag) {
            return Err(not_visible(model, node, tag, call));
        }
        if node.spec.tags.assigned.get(tag).is_some() && call == NodeTagCall::Both {
            let message = format!("tag {tag} is assigned to node {} already; nothing was changed", node.display_name());
            return Err(ApiError::new(ErrorType::TagAssigned, message).field("assign"));
        }
        node.spec.tags = table.assign(&roles, &node.spec.tags, tag, by);
    }
    for tag in &write.unassign {
        node.spec.tags = table.unassign(&roles, &node.spec.tags, tag, by).map_err(|_| {
            let message = format!("node {} has no tag {}; nothing was changed", node.display_name(), quote(tag));
            ApiError::new(ErrorType::ObjectNotFound, message).field("tags")
        })?;
    }
    Ok(())
}

/// The refusal of a tag that is not visible where the node stands. In a list one that nobody declares is not found; a path that names
/// one is that of a node, which is there.
fn not_visible(model: &Model, node: &Node, tag: &TagName, call: NodeTagCall) -> ApiError {
    let cluster = model.fleet.cluster_of_node(node.id()).and_then(|id| model.clusters.get(id.0));
    let whose = cluster.map_or_else(
        || "the node is in no cluster".to_owned(),
        |c| format!("it is not visible in cluster {}", c.meta.name),
    );
    let is_found = call == NodeTagCall::AssignOne || cluster.is_none() || is_declared(model, tag);
    let kind = if is_found { ErrorType::TagUnknown } else { ErrorType::ObjectNotFound };
    let message = format!(
        "the tag {} can't be assigned to node {}: {whose}; nothing was changed",
        quote(tag),
        node.display_name()
    );
    let advice = "a tag is predefined in the release, or created with `stemma tag create`";
    ApiError::new(kind, message).field("tags").detail(advice)
}

/// Whether a release or a cluster that is seen declares the tag.
fn is_declared(model: &Model, tag: &TagName) -> bool {
    model.clusters.iter().any(|cluster| cluster.spec.tags.contains_key(tag))
        || model.release_tags.iter().any(|beside| beside.spec.tags.contains_key(tag))
        || model.fleet.releases().any(|release| release.tags.contains_key(tag))
}
