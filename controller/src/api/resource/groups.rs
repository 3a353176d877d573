//! Node groups, in Magnum's format.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::fleet::Levels;
use stemma_core::labels::BodyShape;
use stemma_core::object::{ClusterId, ClusterSpec, GroupId, Kind, NodeGroup, NodeGroupSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

use super::filter::{FilterContext, FilterDef, FilterMatch};
use super::objects::{ApiResource, by_selector};
use super::{state, view};
use crate::api::Api;
use crate::api::http::request::HttpRequest;
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::DecisionError;
use crate::registry::work::{PendingWrite, not_found};

impl ApiResource for NodeGroupSpec {
    const LEVEL: Option<Level> = Some(Level::NodeGroup);
    const LIST: &'static str = "nodegroups";
    const SHAPE: BodyShape = BodyShape::Magnum;
    const CREATED_STATUS: u16 = 202;
    const COMPUTED: &'static [&'static str] = &["stack_id", "status", "status_reason"];
    const FILTERS: &'static [FilterDef<Self>] = &[
        FilterDef { name: "cluster", read: by_cluster },
        FilterDef { name: "selector", read: by_selector },
        FilterDef { name: "role", read: by_role },
    ];

    /// Finds the group that the path names, within its cluster.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<NodeGroup>, ApiError> {
        let cluster = ClusterSpec::locate(model, request)?;
        let id = request.param("group");
        model.groups.find(Some(cluster.meta.uuid), id).cloned().ok_or_else(|| not_found(Kind::NodeGroup, id))
    }

    /// Adds the fields that are computed: the cluster, the number and states of nodes, the release, the mode, and the
    /// fields that Magnum's clients expect.
    fn complete(api: &Api, model: &Model, object: &NodeGroup, body: &mut Map<String, Value>) {
        let cluster = model.clusters.get(object.spec.cluster.0);
        // In Magnum's API, the `id` of a group is a number. Half of the uuid is used as this number.
        body.insert("id".into(), object.meta.uuid.as_u64_pair().1.into());
        body.insert("cluster".into(), json!(cluster.map(|cluster| &cluster.meta.name)));
        body.insert("cluster_id".into(), object.spec.cluster.0.to_string().into());
        body.insert("stack_id".into(), object.spec.cluster.0.to_string().into());
        let template = cluster.and_then(|c| c.spec.cluster_template).and_then(|id| model.templates.get(id.0));
        for parent_fields in cluster.map(|c| &c.spec.extra).into_iter().chain(template.map(|t| &t.spec.extra)) {
            view::inherit_fields(body, parent_fields, &["flavor_id", "image_id", "docker_volume_size"]);
        }
        let nodes = model.fleet.nodes_in_group(GroupId(object.meta.uuid)).count();
        set_node_count(body, "node_count", nodes, is_default(&object.spec));
        let resolved_group = model.fleet.resolved_group(GroupId(object.meta.uuid)).ok();
        let release = resolved_group.and_then(|resolved_group| resolved_group.release.as_ref());
        body.insert("effective_release".into(), json!(release.map(|release| release.value.name.to_string())));
        body.insert("effective_mode".into(), json!(object.spec.mode.unwrap_or_default()));
        body.insert("node_states".into(), state::state_counts(api, model, model.fleet.nodes_in_group(GroupId(object.meta.uuid))));
        body.insert("status".into(), "CREATE_COMPLETE".into());
        body.insert("status_reason".into(), Value::Null);
    }

    /// Returns the spec of a new group in the cluster that the path names.
    fn new_spec(model: &Model, request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::new(ClusterId(ClusterSpec::locate(model, request)?.meta.uuid)))
    }

    fn parent_levels<'m>(model: &'m Model, spec: &Self) -> Levels<'m> {
        model.fleet.cluster_levels(spec.cluster)
    }

    /// Refuses a body that names another cluster, because a group cannot change its cluster. The group's own cluster is
    /// accepted, because clients send back a body that they read.
    fn check_fixed(model: &Model, spec: &Self, fields: &Map<String, Value>) -> Result<(), ApiError> {
        let cluster = spec.cluster.0;
        let name = model.clusters.get(cluster).map(|cluster| cluster.meta.name.to_string());
        let uuid = cluster.to_string();
        let is_current = |value: &Value| value.as_str().is_some_and(|value| value == uuid || Some(value) == name.as_deref());
        for field in ["cluster", "cluster_id"] {
            if let Some(value) = fields.get(field).filter(|value| !is_current(value)) {
                let message = format!("{field} of this node group is {uuid} and cannot be {value}; nothing was changed");
                let advice = "create a node group in the other cluster, and move the nodes: `stemma node move`";
                return Err(ApiError::new(ErrorType::FieldInvalid, message).field(field).detail(advice));
            }
        }
        Ok(())
    }

    /// Deletes a group. A default group is refused, because it is deleted only together with its cluster, as in Magnum.
    fn remove(work: &mut PendingWrite<'_>, group: &Arc<NodeGroup>) -> Result<(), DecisionError> {
        if is_default(&group.spec) {
            let message = "Deleting a default nodegroup is not supported.";
            return Err(ApiError::new(ErrorType::ObjectInvalid, message).detail("it is deleted with its cluster").into());
        }
        work.delete_unused(group)
    }

    fn path(object: &NodeGroup) -> String {
        Endpoint::GetGroup.path(&[&object.spec.cluster.to_string(), &object.meta.uuid.to_string()])
    }

    /// Refuses Magnum's role `master` for a group. Removes some read-only fields, because a client may send back a part
    /// of an answer that it read before.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        if body.get("role").and_then(Value::as_str) == Some("master") {
            return Err(
                ApiError::new(ErrorType::FieldInvalid, "Creating master nodegroups is currently not supported.").field("role")
            );
        }
        for name in [
            "uuid",
            "id",
            "cluster",
            "cluster_id",
            "stack_id",
            "status",
            "status_reason",
            "links",
            "labels_overridden",
            "labels_added",
            "labels_skipped",
        ] {
            body.remove(name);
        }
        Ok(())
    }

    fn patch_answer(_object: &NodeGroup, body: Map<String, Value>) -> StoredAnswer {
        StoredAnswer::json(202, body.into())
    }
}

/// Returns whether a group is a default group, which was created together with its cluster, as in Magnum.
fn is_default(group: &NodeGroupSpec) -> bool {
    group.extra.get("is_default") == Some(&json!(true))
}

/// Adds the numbers of nodes and masters to a cluster's body. Masters are the nodes of groups with Magnum's role
/// `master`. They are not counted as nodes.
pub(super) fn count_cluster_nodes(model: &Model, cluster: ClusterId, body: &mut Map<String, Value>) {
    let (mut nodes, mut masters, mut is_from_magnum) = (0, 0, false);
    for (id, group) in model.fleet.groups_in_cluster(cluster).filter_map(|id| Some((id, model.groups.get(id.0)?))) {
        is_from_magnum |= is_default(&group.spec);
        let is_master = group.spec.extra.get("role").is_some_and(|role| role == "master");
        *if is_master { &mut masters } else { &mut nodes } += model.fleet.nodes_in_group(id).count();
    }
    set_node_count(body, "node_count", nodes, is_from_magnum);
    set_node_count(body, "master_count", masters, is_from_magnum);
}

/// Sets a node count in a body to the actual number of nodes. If there are no nodes, the count that a client of Magnum
/// requested stays in the body. Otherwise that client would report that its request was ignored. If `is_from_magnum` is
/// true and no count was requested, the field is omitted here, and later gets Magnum's default.
fn set_node_count(body: &mut Map<String, Value>, field: &str, nodes: usize, is_from_magnum: bool) {
    if nodes > 0 || !(is_from_magnum || body.contains_key(field)) {
        body.insert(field.to_owned(), nodes.into());
    }
}

/// Returns the filter that limits each list of groups to those of the cluster in the path. It does not read the query.
fn by_cluster(context: &FilterContext<'_>, _name: &'static str) -> Result<Option<FilterMatch<NodeGroupSpec>>, ApiError> {
    let cluster = ClusterSpec::locate(context.model, context.request)?.meta.uuid;
    Ok(Some(FilterMatch::new(move |_, _, group: &NodeGroup| group.spec.cluster.0 == cluster)))
}

/// Reads the filter `role`. A group matches if each role in the query is either the group's own role in Magnum's API or
/// among the roles that the group gives to its nodes. As in Magnum, a group without a role of its own is a `worker`.
/// But if the cluster or its release has a role `worker`, such a group is a `worker` only if it gives this role.
fn by_role(context: &FilterContext<'_>, name: &'static str) -> Result<Option<FilterMatch<NodeGroupSpec>>, ApiError> {
    let Some(roles) = context.query().list(name)? else { return Ok(None) };
    let roles: Vec<String> = roles.into_iter().map(str::to_owned).collect();
    let cluster = ClusterSpec::locate(context.model, context.request)?;
    let default_role = Some("worker").filter(|role| !context.model.fleet.role_table(&cluster).has_role(role));
    let gives_role = move |group: &NodeGroup, role: &str| {
        let own_role = group.spec.extra.get("role").and_then(Value::as_str).or(default_role);
        own_role == Some(role) || group.spec.roles.iter().any(|given_role| given_role.as_str() == role)
    };
    Ok(Some(FilterMatch::new(move |_, _, group: &NodeGroup| roles.iter().all(|role| gives_role(group, role)))))
}
