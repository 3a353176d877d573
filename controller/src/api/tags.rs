//! Tags over HTTP: assigned to a node and unassigned, and those that are a cluster's own.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemma_core::name::{Name, TagName};
use stemma_core::object::{Cluster, ClusterSpec, Node, NodeSpec, TagSpec};
use stemma_core::ownership::Manager;
use stemma_core::role::RoleTable;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{self, Shown};
use super::place::{declared, roles_of, table_of, table_of_cluster, visible};
use super::releases::{self, TagCall};
use super::request::{Outcome, Reply, Request};
use super::{Api, state, writes};
use crate::cache::Model;
use crate::registry::Answer;

/// How many nodes a refusal lists.
const MOST_LISTED: usize = 10;

/// `GET /v1/nodes/{node}/tags`: each with its origin; those that are unassigned too.
pub(super) fn tags(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(Reply::ok(shown_tags(&model, &node)))
}

fn shown_tags(model: &Model, node: &Node) -> Value {
    let roles = roles_of(model, node);
    let by_hand = &node.spec.tags;
    let table = table_of(model, node);
    let produced = |tag: &TagName| {
        let by = roles.iter().filter(|role| table.as_ref().is_some_and(|table| table.produced_by(role).contains(tag)));
        by.cloned().collect::<Vec<Name>>()
    };
    let mut names: BTreeSet<TagName> = by_hand.assigned.members().cloned().collect();
    names.extend(
        roles.iter().flat_map(|role| table.as_ref().map(|table| table.produced_by(role).to_vec()).unwrap_or_default()),
    );
    let resolved = state::resolved(model, node);
    let rows: Vec<Value> = names.iter().map(|name| {
        let assigned = by_hand.assigned.get(name).is_some();
        let unassigned = by_hand.unassigned.get(name).is_some() && !assigned;
        json!({"name": name, "roles": produced(name), "assigned": assigned, "unassigned": unassigned, "primary": resolved.primaries.contains(name)})
    }).collect();
    json!({
        "tags": rows, "effective": resolved.tags, "primary_tags": resolved.primaries,
        "assigned": by_hand.assigned.members().collect::<Vec<_>>(), "unassigned": by_hand.unassigned.members().collect::<Vec<_>>(),
    })
}

/// What is done to a node's tags.
#[derive(Clone, Debug, Default)]
struct TagWrite {
    assign: Vec<TagName>,
    unassign: Vec<TagName>,
}

/// How a request says what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeTagCall {
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
pub(super) async fn write_tags(api: &Api, request: &Request, call: NodeTagCall) -> Outcome {
    let write = TagWrite::read(request, call)?;
    let caller = objects::caller(request)?;
    let next = |model: &Model, node: &Node| write_by_hand(model, node, &write, &caller.manager);
    let answer = |model: &Model, node: &Node| match call {
        NodeTagCall::AssignOne | NodeTagCall::UnassignOne => Answer::empty(204),
        NodeTagCall::Both | NodeTagCall::Unassign => Answer::json(200, shown_tags(model, node)),
    };
    writes::change(api, request, &caller, next, answer).await
}

fn write_by_hand(model: &Model, node: &Node, write: &TagWrite, by: &Manager) -> Result<NodeSpec, ApiError> {
    let nowhere = RoleTable::default();
    let table = table_of(model, node);
    let table = table.as_deref().unwrap_or(&nowhere);
    let (roles, known) = (roles_of(model, node), visible(table));
    let mut spec = node.spec.clone();
    for tag in &write.assign {
        if !known.contains_key(tag) {
            return Err(not_visible(model, node, tag));
        }
        spec.tags = table.assign(&roles, &spec.tags, tag, by);
    }
    for tag in &write.unassign {
        spec.tags = table.unassign(&roles, &spec.tags, tag, by).map_err(|_| {
            let message = format!("node {} has no tag {}; nothing was changed", node.display_name(), quote(tag));
            ApiError::new(ErrorType::ObjectNotFound, message).field("tags")
        })?;
    }
    Ok(spec)
}

fn not_visible(model: &Model, node: &Node, tag: &TagName) -> ApiError {
    let cluster = model.cluster_of(node.meta.uuid).and_then(|id| model.clusters.get(id.0));
    let whose = cluster.map_or_else(
        || "the node stands in no cluster".to_owned(),
        |c| format!("it is not visible in cluster {}", c.meta.name),
    );
    let message = format!(
        "the tag {} can't be assigned to node {}: {whose}; nothing was changed",
        quote(tag),
        node.display_name()
    );
    let advice = "a tag is predefined in the release, or created with `stemma tag create`";
    ApiError::new(ErrorType::TagUnknown, message).field("tags").detail(advice)
}

/// `GET /v1/clusters/{cluster}/tags`: the tags that are visible there.
pub(super) fn cluster_tags(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let tags = visible(&table_of_cluster(&model, &cluster));
    let rows: Vec<Value> =
        tags.iter().map(|(name, tag)| shown_tag(name, tag, declared(&model, &cluster, name))).collect();
    Ok(Reply::ok(json!({"tags": rows})))
}

fn shown_tag(name: &TagName, tag: &TagSpec, declared: &str) -> Value {
    let mut row = json!(tag);
    row["name"] = json!(name);
    row["has_primary"] = tag.has_primary.into();
    row["declared"] = json!(declared);
    row["predefined"] = (declared == "release").into();
    row
}

/// `GET /v1/clusters/{cluster}/tags/{tag}`.
pub(super) fn cluster_tag(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let name = request.part("tag");
    let tags = visible(&table_of_cluster(&model, &cluster));
    let found = tags
        .iter()
        .find(|(tag, _)| ***tag == *name)
        .map(|(name, tag)| Reply::ok(shown_tag(name, tag, declared(&model, &cluster, name))));
    found.ok_or_else(|| ApiError::new(ErrorType::ObjectNotFound, format!("Tag {} could not be found.", quote(name))))
}

/// Changes the user-defined tags of a cluster.
pub(super) async fn write_cluster_tag(api: &Api, request: &Request, call: TagCall) -> Outcome {
    let caller = objects::caller(request)?;
    let (name, tag) = releases::read_tag(request, call)?;
    let next = |model: &Model, cluster: &Cluster| {
        let is_known = visible(&table_of_cluster(model, cluster)).contains_key(&name);
        if is_known && declared(model, cluster, &name) == "release" {
            return Err(releases::predefined(&name));
        }
        let mut spec = cluster.spec.clone();
        releases::change_tags(&mut spec.tags, &name, tag.clone(), call)?;
        if call == TagCall::Delete {
            refuse_assigned(model, &name, |node| {
                let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
                group.is_some_and(|g| g.spec.cluster.0 == cluster.meta.uuid)
            })?;
        }
        Ok(spec)
    };
    let answer = |_: &Model, _: &Cluster| releases::tag_answer(call, &name, tag.as_ref());
    writes::change(api, request, &caller, next, answer).await
}

/// Refuses to delete a tag that is assigned, and names the nodes.
pub(super) fn refuse_assigned(model: &Model, tag: &TagName, sees_it: impl Fn(&Node) -> bool) -> Result<(), ApiError> {
    let holders = model.nodes.iter().filter(|node| node.spec.tags.assigned.get(tag).is_some() && sees_it(node));
    let names: Vec<String> = holders.map(|node| node.display_name()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let listed = names.iter().take(MOST_LISTED).cloned().collect::<Vec<_>>().join(", ");
    let more =
        if names.len() > MOST_LISTED { format!(" and {} more", names.len() - MOST_LISTED) } else { String::new() };
    let message = format!("the tag {tag} is assigned to {listed}{more}; nothing was deleted");
    Err(ApiError::new(ErrorType::ObjectInUse, message)
        .detail("unassign it there first: `stemma tag unassign NODE TAG`"))
}
