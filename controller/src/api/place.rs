//! Roles and tags: giving and taking roles, assigning and unassigning tags, a cluster's own tags and changes of roles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::name::{Name, ReleaseRef, TagName};
use stemma_core::object::{Cluster, ClusterSpec, Node, NodeSpec, RoleChange, TagSpec};
use stemma_core::ownership::Manager;
use stemma_core::role::RoleTable;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{self, Shown};
use super::releases::{self, TagCall};
use super::request::{Outcome, Reply, Request};
use super::{Api, state};
use crate::cache::Model;
use crate::registry::Answer;
use crate::registry::work::{Work, check_presumed};

/// How many nodes a refusal lists.
const MOST_LISTED: usize = 10;

/// `GET /v1/nodes/{node}/roles`.
pub(super) fn roles(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(Reply::ok(shown_roles(&model, &node)))
}

fn shown_roles(model: &Model, node: &Node) -> Value {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let of_group = group.map(|g| g.spec.roles.clone()).unwrap_or_default();
    let all: BTreeSet<&Name> = of_group.iter().chain(&node.spec.roles).collect();
    json!({"roles": all, "own": node.spec.roles, "of_nodegroup": of_group})
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
}

/// Changes a node's own roles, all or none.
pub(super) async fn write_roles(api: &Api, request: &Request, call: RoleCall) -> Outcome {
    let named = match request.part("role") {
        "" => read_roles(request)?,
        role => vec![role_name(role)?],
    };
    let caller = objects::caller(request)?;
    let outcome = change(
        api,
        request,
        |model, node| {
            let mut spec = node.spec.clone();
            match call {
                RoleCall::Give => {
                    check_roles(model, node, &named)?;
                    spec.roles.extend(named.iter().filter(|role| !node.spec.roles.contains(role)).cloned());
                }
                RoleCall::Replace => {
                    check_roles(model, node, &named)?;
                    spec.roles.clone_from(&named);
                }
                RoleCall::Take => {
                    if let Some(role) = named.iter().find(|role| !node.spec.roles.contains(role)) {
                        return Err(not_its_own(model, node, role));
                    }
                    spec.roles.retain(|role| !named.contains(role));
                }
            }
            spec.roles.sort();
            spec.roles.dedup();
            if let Some(table) = table_of(model, node) {
                let next = Node { meta: node.meta.clone(), spec: spec.clone() };
                spec.tags = table.forget(&roles_of(model, &next), &spec.tags, &caller.manager);
            }
            Ok(spec)
        },
        |model, node| Answer::json(200, shown_roles(model, node)),
    );
    outcome.await
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
    let Some(Value::Array(roles)) = roles else {
        return Err(ApiError::new(ErrorType::FieldMissing, "this call takes {\"roles\": […]}").field("roles"));
    };
    let name = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| Err(ApiError::new(ErrorType::RoleInvalid, "a role is a text").field("roles")), role_name)
    };
    roles.iter().map(name).collect()
}

fn role_name(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|e| ApiError::new(ErrorType::RoleInvalid, e.to_string()).field("roles"))
}

/// A role that the node's release does not have is refused where it is given by name; one that a release has lost
/// meanwhile stays, as a finding.
fn check_roles(model: &Model, node: &Node, roles: &[Name]) -> Result<(), ApiError> {
    let Some(table) = table_of(model, node) else { return Ok(()) };
    match roles.iter().find(|role| !table.has_role(role)) {
        Some(role) => {
            let names: Vec<&str> = table.roles().map(|(name, _)| name.as_str()).collect();
            let message = format!("the node's release has no role {}; nothing was changed", quote(role));
            Err(ApiError::new(ErrorType::RoleInvalid, message)
                .field("roles")
                .detail(format!("its roles are {}", names.join(", "))))
        }
        None => Ok(()),
    }
}

fn not_its_own(model: &Model, node: &Node, role: &Name) -> ApiError {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let message = format!("node {} has no role {} of its own; nothing was changed", node.display_name(), quote(role));
    let error = ApiError::new(ErrorType::RoleInvalid, message).field("roles");
    if group.is_some_and(|g| g.spec.roles.contains(role)) { error.detail("its node group gives it") } else { error }
}

/// What roles produce, and which tags can be seen, where a node stands; none for one without a release.
fn table_of(model: &Model, node: &Node) -> Option<Arc<RoleTable>> {
    model.fleet.fold(node.spec.nodegroup?).ok()?.table.clone()
}

/// The roles of a node, its group's and its own.
fn roles_of(model: &Model, node: &Node) -> BTreeSet<Name> {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    group.into_iter().flat_map(|group| &group.spec.roles).chain(&node.spec.roles).cloned().collect()
}

/// The release that a node runs: of the nearest level that names one.
pub(crate) fn release_of(model: &Model, node: &Node) -> Option<ReleaseRef> {
    let fold = model.fleet.fold(node.spec.nodegroup?).ok()?;
    fold.release.as_ref().map(|release| release.value.name.clone())
}

/// The release that a cluster's groups run where they say nothing.
fn release_of_cluster(model: &Model, cluster: &Cluster) -> Option<ReleaseRef> {
    let template = cluster.spec.cluster_template.and_then(|id| model.templates.get(id.0));
    cluster.spec.release.as_ref().or_else(|| template?.spec.release.as_ref()).cloned()
}

/// What roles produce, and which tags can be seen, in a cluster.
fn table_of_cluster(model: &Model, cluster: &Cluster) -> RoleTable {
    let release = release_of_cluster(model, cluster);
    let beside = release.as_ref().and_then(|release| model.release_tags.named(None, &release.name));
    let user_tags = beside.into_iter().flat_map(|beside| &beside.spec.tags).chain(&cluster.spec.tags);
    match release.and_then(|release| model.fleet.release(&release).cloned()) {
        Some(release) => RoleTable::new(&release.roles, &release.tags, user_tags, &cluster.spec.roles),
        None => RoleTable::new(&BTreeMap::new(), &BTreeMap::new(), user_tags, &cluster.spec.roles),
    }
}

/// The tags that a table shows: those that are declared, and those that roles produce undeclared.
fn visible(table: &RoleTable) -> BTreeMap<TagName, TagSpec> {
    let produced = table.roles().flat_map(|(_, tags)| tags).map(|tag| (tag.clone(), TagSpec::default()));
    let mut tags: BTreeMap<TagName, TagSpec> = produced.collect();
    tags.extend(table.tags().map(|(name, tag)| (name.clone(), tag.clone())));
    tags
}

/// Where a tag that can be seen in a cluster is declared.
fn declared(model: &Model, cluster: &Cluster, tag: &TagName) -> &'static str {
    if cluster.spec.tags.contains_key(tag) {
        return "cluster";
    }
    let release = release_of_cluster(model, cluster);
    let beside = release.and_then(|release| model.release_tags.named(None, &release.name));
    if beside.is_some_and(|beside| beside.spec.tags.contains_key(tag)) { "beside" } else { "release" }
}

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
    change(api, request, next, answer).await
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

async fn change(
    api: &Api,
    request: &Request,
    next: impl Fn(&Model, &Node) -> Result<NodeSpec, ApiError>,
    answer: impl Fn(&Model, &Node) -> Answer,
) -> Outcome {
    let (caller, presumed) = (objects::caller(request)?, request.presumed()?);
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let before = NodeSpec::locate(&work.model, request)?;
        check_presumed(&before, presumed)?;
        let spec = next(&work.model, &before)?;
        let written = work.update(&before, before.meta.name.clone(), spec)?;
        let answer = answer(&work.model, &written.object);
        work.finish(answer)
    });
    Ok(Reply::written(answer.await?, &request.base))
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
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let before = ClusterSpec::locate(&work.model, request)?;
        let is_known = visible(&table_of_cluster(&work.model, &before)).contains_key(&name);
        if is_known && declared(&work.model, &before, &name) == "release" {
            return Err(releases::predefined(&name).into());
        }
        let mut spec = before.spec.clone();
        releases::change_tags(&mut spec.tags, &name, tag.clone(), call)?;
        if call == TagCall::Delete {
            refuse_assigned(&work.model, &name, |node| {
                let group = node.spec.nodegroup.and_then(|id| work.model.groups.get(id.0));
                group.is_some_and(|g| g.spec.cluster.0 == before.meta.uuid)
            })?;
        }
        work.update(&before, before.meta.name.clone(), spec)?;
        work.finish(releases::tag_answer(call, &name, tag.as_ref()))
    });
    Ok(Reply::written(answer.await?, &request.base))
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

/// `GET /v1/clusters/{cluster}/roles`.
pub(super) fn cluster_roles(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let cluster = ClusterSpec::locate(&api.cache().model(), request)?;
    Ok(Reply::ok(json!({"roles": cluster.spec.roles})).tagged(cluster.meta.resource_version))
}

/// `PUT /v1/clusters/{cluster}/roles`.
pub(super) async fn write_cluster_roles(api: &Api, request: &Request) -> Outcome {
    let (caller, presumed) = (objects::caller(request)?, request.presumed()?);
    let mut body = request.object()?;
    let roles = body.remove("roles").ok_or_else(|| {
        ApiError::new(ErrorType::FieldMissing, "this call takes {\"roles\": {ROLE: {\"add_tags\", \"remove_tags\"}}}")
            .field("roles")
    })?;
    let roles: BTreeMap<Name, RoleChange> = serde_json::from_value(roles)
        .map_err(|e| ApiError::new(ErrorType::RoleInvalid, e.to_string()).field("roles"))?;
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let before = ClusterSpec::locate(&work.model, request)?;
        check_presumed(&before, presumed)?;
        let mut spec = before.spec.clone();
        spec.roles.clone_from(&roles);
        let written = work.update(&before, before.meta.name.clone(), spec)?;
        work.finish(Answer::json(200, json!({"roles": written.object.spec.roles})))
    });
    Ok(Reply::written(answer.await?, &request.base))
}
