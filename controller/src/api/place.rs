//! Roles and tags: giving and taking roles, assigning and unassigning tags, a cluster's own tags and changes of roles.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stemma_core::name::{Name, ReleaseRef, TagName};
use stemma_core::object::{Cluster, ClusterSpec, Node, NodeSpec, RoleChange, TagSpec};
use stemma_core::ownership::Said;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{self, Shown};
use super::releases::{self, TagCall};
use super::request::{Outcome, Reply, Request};
use super::{Api, state};
use crate::cache::Model;
use crate::registry::work::{Work, check_presumed};
use crate::registry::Answer;

/// How many nodes a refusal lists.
const MOST_LISTED: usize = 10;

/// `GET /v1/nodes/{node}/roles`.
pub fn roles(api: &Api, request: &Request) -> Outcome {
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
pub enum RoleCall {
    /// `POST`: gives.
    Give,
    /// `PUT`: replaces.
    Replace,
    /// `DELETE`: takes.
    Take,
}

/// Changes a node's own roles, all or none.
pub async fn write_roles(api: &Api, request: &Request, call: RoleCall) -> Outcome {
    let named = match request.part("role") {
        "" => read_roles(request)?,
        role => vec![role_name(role)?],
    };
    let outcome = change(api, request, |model, node| {
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
        forget_unassigned(model, node, &mut spec);
        Ok(spec)
    }, |model, node| Answer::json(200, shown_roles(model, node)));
    outcome.await
}

fn read_roles(request: &Request) -> Result<Vec<Name>, ApiError> {
    let mut body = request.object()?;
    let roles = body.remove("roles");
    if let Some(other) = body.keys().next() {
        return Err(ApiError::new(ErrorType::FieldUnknown, format!("this call takes {{\"roles\": […]}}, not {}", quote(other))).field(other.clone()));
    }
    let Some(Value::Array(roles)) = roles else {
        return Err(ApiError::new(ErrorType::FieldMissing, "this call takes {\"roles\": […]}").field("roles"));
    };
    let name = |value: &Value| value.as_str().map_or_else(|| Err(ApiError::new(ErrorType::RoleInvalid, "a role is a text").field("roles")), role_name);
    roles.iter().map(name).collect()
}

fn role_name(text: &str) -> Result<Name, ApiError> {
    Name::new(text).map_err(|e| ApiError::new(ErrorType::RoleInvalid, e.to_string()).field("roles"))
}

/// A role that the node's release does not have is refused where it is given by name; one that a release has lost
/// meanwhile stays, as a finding.
fn check_roles(model: &Model, node: &Node, roles: &[Name]) -> Result<(), ApiError> {
    let Some(release) = release_of(model, node) else { return Ok(()) };
    let known = roles_of_release(model, &release);
    match roles.iter().find(|role| !known.contains_key(*role)) {
        Some(role) => {
            let names: Vec<String> = known.keys().map(ToString::to_string).collect();
            let message = format!("the release {release} has no role {}; nothing was changed", quote(role));
            Err(ApiError::new(ErrorType::RoleInvalid, message).field("roles").detail(format!("its roles are {}", names.join(", "))))
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

/// An unassignment lasts while some role of the node produces the tag, and is forgotten with the last of them.
fn forget_unassigned(model: &Model, node: &Node, spec: &mut NodeSpec) {
    let produced = produced(model, &Node { meta: node.meta.clone(), spec: spec.clone() });
    let forgotten: BTreeMap<TagName, Option<Said<()>>> =
        spec.tags.unassigned.members().filter(|tag| !produced.contains_key(*tag)).map(|tag| (tag.clone(), None)).collect();
    if !forgotten.is_empty() {
        let nobody = stemma_core::ownership::Manager::new("stemma").expect("a short name");
        spec.tags.unassigned = spec.tags.unassigned.patch(&nobody, &forgotten);
    }
}

/// The release that a node runs: of the nearest level that names one.
pub fn release_of(model: &Model, node: &Node) -> Option<ReleaseRef> {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0))?;
    let cluster = model.clusters.get(group.spec.cluster.0)?;
    release_of_cluster(model, cluster, group.spec.release.as_ref())
}

fn release_of_cluster(model: &Model, cluster: &Cluster, nearer: Option<&ReleaseRef>) -> Option<ReleaseRef> {
    let template = cluster.spec.cluster_template.and_then(|id| model.templates.get(id.0));
    nearer.or(cluster.spec.release.as_ref()).or_else(|| template?.spec.release.as_ref()).cloned()
}

/// A release and what it imports.
fn whole_release<'a>(model: &'a Model, name: &ReleaseRef) -> Vec<&'a stemma_core::object::ReleaseSpec> {
    let (mut open, mut seen, mut specs) = (vec![name.clone()], BTreeSet::new(), Vec::new());
    while let Some(name) = open.pop() {
        if let Some(release) = seen.insert(name.to_string()).then(|| model.releases.named(None, &name.to_string())).flatten() {
            open.extend(release.spec.imports.iter().cloned());
            specs.push(&release.spec);
        }
    }
    specs
}

/// The roles of a release, each with the tags that it produces.
fn roles_of_release(model: &Model, name: &ReleaseRef) -> BTreeMap<Name, BTreeSet<TagName>> {
    let mut roles: BTreeMap<Name, BTreeSet<TagName>> = BTreeMap::new();
    for spec in whole_release(model, name) {
        for (role, said) in &spec.roles {
            let own = || TagName::new(role).ok().into_iter().collect();
            roles.insert(role.clone(), said.tags.as_ref().map_or_else(own, |tags| tags.iter().cloned().collect()));
        }
    }
    if let Some(beside) = model.release_tags.named(None, &name.name) {
        for (tag, said) in &beside.spec.tags {
            if let Some(produced) = said.role.as_ref().and_then(|role| roles.get_mut(role)) {
                produced.insert(tag.clone());
            }
        }
    }
    roles
}

/// The tags that a node's roles produce, each with the first role that does.
fn produced(model: &Model, node: &Node) -> BTreeMap<TagName, Name> {
    let Some(group) = node.spec.nodegroup.and_then(|id| model.groups.get(id.0)) else { return BTreeMap::new() };
    let Some(cluster) = model.clusters.get(group.spec.cluster.0) else { return BTreeMap::new() };
    let Some(release) = release_of(model, node) else { return BTreeMap::new() };
    let mut by_role = roles_of_release(model, &release);
    for (role, change) in &cluster.spec.roles {
        let tags = by_role.entry(role.clone()).or_default();
        tags.extend(change.add_tags.iter().cloned());
        change.remove_tags.iter().for_each(|tag| drop(tags.remove(tag)));
    }
    for (tag, said) in &cluster.spec.tags {
        if let Some(tags) = said.role.as_ref().and_then(|role| by_role.get_mut(role)) {
            tags.insert(tag.clone());
        }
    }
    let roles = group.spec.roles.iter().chain(&node.spec.roles);
    let pairs = roles.flat_map(|role| by_role.get(role).into_iter().flatten().map(move |tag| (tag.clone(), role.clone())));
    let mut produced = BTreeMap::new();
    for (tag, role) in pairs {
        produced.entry(tag).or_insert(role);
    }
    produced
}

/// The tags that are visible in a cluster, each with where it is declared.
fn visible(model: &Model, cluster: &Cluster, release: Option<&ReleaseRef>) -> BTreeMap<TagName, (TagSpec, &'static str)> {
    let mut tags = BTreeMap::new();
    if let Some(release) = release {
        for spec in whole_release(model, release) {
            tags.extend(spec.tags.iter().map(|(name, tag)| (name.clone(), (tag.clone(), "release"))));
            let produced = spec.roles.iter().flat_map(|(role, said)| match &said.tags {
                Some(tags) => tags.clone(),
                None => TagName::new(role).into_iter().collect(),
            });
            for tag in produced {
                tags.entry(tag).or_insert_with(|| (TagSpec::default(), "release"));
            }
        }
        if let Some(beside) = model.release_tags.named(None, &release.name) {
            tags.extend(beside.spec.tags.iter().map(|(name, tag)| (name.clone(), (tag.clone(), "beside"))));
        }
    }
    tags.extend(cluster.spec.tags.iter().map(|(name, tag)| (name.clone(), (tag.clone(), "cluster"))));
    tags
}

/// `GET /v1/nodes/{node}/tags`: each with its origin; those that are unassigned too.
pub fn tags(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(Reply::ok(shown_tags(&model, &node)))
}

fn shown_tags(model: &Model, node: &Node) -> Value {
    let produced = produced(model, node);
    let tags = state::resolved(model, node);
    let mut rows = Vec::new();
    let names: BTreeSet<&TagName> = produced.keys().chain(node.spec.tags.assigned.members()).collect();
    for name in names {
        let assigned = node.spec.tags.assigned.get(name).is_some();
        let unassigned = node.spec.tags.unassigned.get(name).is_some();
        rows.push(json!({
            "name": name, "role": produced.get(name), "assigned": assigned, "unassigned": unassigned && !assigned,
            "primary": tags.primaries.contains(name),
        }));
    }
    let effective: Vec<&TagName> = tags.tags.iter().collect();
    json!({"tags": rows, "effective": effective, "primary_tags": tags.primaries,
        "assigned": node.spec.tags.assigned.members().collect::<Vec<_>>(), "unassigned": node.spec.tags.unassigned.members().collect::<Vec<_>>()})
}

/// What is done to a node's tags.
#[derive(Clone, Debug, Default)]
struct TagWrite {
    assign: Vec<TagName>,
    unassign: Vec<TagName>,
}

/// How a request says what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeTagCall {
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
                        "assign" if call == NodeTagCall::Both => write.assign = tag_list(&field, &value)?,
                        "tags" if call == NodeTagCall::Both => write.assign = tag_list(&field, &value)?,
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
    let refused = || ApiError::new(ErrorType::FieldInvalid, format!("{field} is a list of tags")).field(field);
    value.as_array().ok_or_else(refused)?.iter().map(|tag| tag_name(tag.as_str().ok_or_else(refused)?)).collect()
}

fn tag_name(text: &str) -> Result<TagName, ApiError> {
    TagName::new(text).map_err(|e| ApiError::new(ErrorType::FieldInvalid, e.to_string()).field("tags"))
}

/// Assigns and unassigns tags of a node, all or none.
pub async fn write_tags(api: &Api, request: &Request, call: NodeTagCall) -> Outcome {
    let write = TagWrite::read(request, call)?;
    let caller = objects::caller(request)?;
    let outcome = change(api, request, |model, node| {
        check_visible(model, node, &write)?;
        let produced = produced(model, node);
        let mut spec = node.spec.clone();
        let mut assigned = BTreeMap::new();
        let mut unassigned = BTreeMap::new();
        for tag in &write.assign {
            // What a role produces is taken back by ending its unassignment; anything else is assigned.
            if node.spec.tags.unassigned.get(tag).is_some() {
                unassigned.insert(tag.clone(), None);
            }
            if !produced.contains_key(tag) || node.spec.tags.unassigned.get(tag).is_none() {
                assigned.insert(tag.clone(), Some(Said::Value(())));
            }
        }
        for tag in &write.unassign {
            let was = node.spec.tags.assigned.get(tag).is_some();
            if !was && !produced.contains_key(tag) {
                let message = format!("node {} has no tag {}; nothing was changed", node.display_name(), quote(tag));
                return Err(ApiError::new(ErrorType::ObjectNotFound, message).field("tags"));
            }
            assigned.insert(tag.clone(), None);
            if produced.contains_key(tag) {
                unassigned.insert(tag.clone(), Some(Said::Value(())));
            }
        }
        spec.tags.assigned = spec.tags.assigned.patch(&caller.manager, &assigned);
        spec.tags.unassigned = spec.tags.unassigned.patch(&caller.manager, &unassigned);
        Ok(spec)
    }, |model, node| match call {
        NodeTagCall::AssignOne | NodeTagCall::UnassignOne => Answer::empty(204),
        NodeTagCall::Both | NodeTagCall::Unassign => Answer::json(200, shown_tags(model, node)),
    });
    outcome.await
}

fn check_visible(model: &Model, node: &Node, write: &TagWrite) -> Result<(), ApiError> {
    let group = node.spec.nodegroup.and_then(|id| model.groups.get(id.0));
    let cluster = group.and_then(|g| model.clusters.get(g.spec.cluster.0));
    let known = cluster.map(|cluster| visible(model, cluster, release_of(model, node).as_ref())).unwrap_or_default();
    match write.assign.iter().find(|tag| !known.contains_key(*tag)) {
        None => Ok(()),
        Some(tag) => {
            let whose = cluster.map_or_else(|| "the node stands in no cluster".to_owned(), |c| format!("it is not visible in cluster {}", c.meta.name));
            let message = format!("the tag {} can't be assigned to node {}: {whose}; nothing was changed", quote(tag), node.display_name());
            Err(ApiError::new(ErrorType::TagUnknown, message).field("tags").detail("a tag is predefined in the release, or created with `stemma tag create`"))
        }
    }
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
pub fn cluster_tags(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let release = release_of_cluster(&model, &cluster, None);
    let rows: Vec<Value> = visible(&model, &cluster, release.as_ref()).iter().map(|(name, tag)| shown_tag(name, tag)).collect();
    Ok(Reply::ok(json!({"tags": rows})))
}

fn shown_tag(name: &TagName, (tag, declared): &(TagSpec, &str)) -> Value {
    let mut row = json!(tag);
    row["name"] = json!(name);
    row["has_primary"] = tag.has_primary.into();
    row["declared"] = json!(declared);
    row["predefined"] = (*declared == "release").into();
    row
}

/// `GET /v1/clusters/{cluster}/tags/{tag}`.
pub fn cluster_tag(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let model = api.cache().model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let name = request.part("tag");
    let tags = visible(&model, &cluster, release_of_cluster(&model, &cluster, None).as_ref());
    let found = tags.iter().find(|(tag, _)| ***tag == *name).map(|(name, tag)| Reply::ok(shown_tag(name, tag)));
    found.ok_or_else(|| ApiError::new(ErrorType::ObjectNotFound, format!("Tag {} could not be found.", quote(name))))
}

/// Changes the user-defined tags of a cluster.
pub async fn write_cluster_tag(api: &Api, request: &Request, call: TagCall) -> Outcome {
    let caller = objects::caller(request)?;
    let (name, tag) = releases::read_tag(request, call)?;
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let before = ClusterSpec::locate(&work.model, request)?;
        let release = release_of_cluster(&work.model, &before, None);
        let declared = visible(&work.model, &before, release.as_ref()).remove(&name);
        if declared.is_some_and(|(_, declared)| declared == "release") && !before.spec.tags.contains_key(&name) {
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
pub fn refuse_assigned(model: &Model, tag: &TagName, sees_it: impl Fn(&Node) -> bool) -> Result<(), ApiError> {
    let holders = model.nodes.iter().filter(|node| node.spec.tags.assigned.get(tag).is_some() && sees_it(node));
    let names: Vec<String> = holders.map(|node| node.display_name()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let listed = names.iter().take(MOST_LISTED).cloned().collect::<Vec<_>>().join(", ");
    let more = if names.len() > MOST_LISTED { format!(" and {} more", names.len() - MOST_LISTED) } else { String::new() };
    let message = format!("the tag {tag} is assigned to {listed}{more}; nothing was deleted");
    Err(ApiError::new(ErrorType::ObjectInUse, message).detail("unassign it there first: `stemma tag unassign NODE TAG`"))
}

/// `GET /v1/clusters/{cluster}/roles`.
pub fn cluster_roles(api: &Api, request: &Request) -> Outcome {
    request.query(&[&["at_least"]])?;
    let cluster = ClusterSpec::locate(&api.cache().model(), request)?;
    Ok(Reply::ok(json!({"roles": cluster.spec.roles})).tagged(cluster.meta.resource_version))
}

/// `PUT /v1/clusters/{cluster}/roles`.
pub async fn write_cluster_roles(api: &Api, request: &Request) -> Outcome {
    let (caller, presumed) = (objects::caller(request)?, request.presumed()?);
    let mut body = request.object()?;
    let roles = body.remove("roles").ok_or_else(|| ApiError::new(ErrorType::FieldMissing, "this call takes {\"roles\": {ROLE: {\"add_tags\", \"remove_tags\"}}}").field("roles"))?;
    let roles: BTreeMap<Name, RoleChange> = serde_json::from_value(roles).map_err(|e| ApiError::new(ErrorType::RoleInvalid, e.to_string()).field("roles"))?;
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
