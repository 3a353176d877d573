//! Node groups, in Magnum's shapes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::fleet::Levels;
use stemma_core::labels::BodyShape;
use stemma_core::object::{ClusterId, ClusterSpec, GroupId, Kind, NodeGroup, NodeGroupSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

use super::filter::{Asked, Filter, Kept};
use super::objects::{Shown, selector};
use super::{state, view};
use crate::api::Api;
use crate::api::http::request::Request;
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::Undecided;
use crate::registry::work::{Work, not_found};

impl Shown for NodeGroupSpec {
    const LEVEL: Option<Level> = Some(Level::NodeGroup);
    const LIST: &'static str = "nodegroups";
    const SHAPE: BodyShape = BodyShape::Magnum;
    const CREATED: u16 = 202;
    const COMPUTED: &'static [&'static str] = &["stack_id", "status", "status_reason"];
    const FILTERS: &'static [Filter<Self>] = &[
        Filter { name: "cluster", read: of_cluster },
        Filter { name: "selector", read: selector },
        Filter { name: "role", read: by_role },
    ];

    fn locate(model: &Model, request: &Request) -> Result<Arc<NodeGroup>, ApiError> {
        let cluster = ClusterSpec::locate(model, request)?;
        let id = request.part("group");
        model.groups.find(Some(cluster.meta.uuid), id).cloned().ok_or_else(|| not_found(Kind::NodeGroup, id))
    }

    fn complete(api: &Api, model: &Model, object: &NodeGroup, body: &mut Map<String, Value>) {
        let cluster = model.clusters.get(object.spec.cluster.0);
        body.insert("id".into(), object.meta.uuid.as_u64_pair().1.into());
        body.insert("cluster".into(), json!(cluster.map(|cluster| &cluster.meta.name)));
        body.insert("cluster_id".into(), object.spec.cluster.0.to_string().into());
        body.insert("stack_id".into(), object.spec.cluster.0.to_string().into());
        let template = cluster.and_then(|c| c.spec.cluster_template).and_then(|id| model.templates.get(id.0));
        for above in cluster.map(|c| &c.spec.extra).into_iter().chain(template.map(|t| &t.spec.extra)) {
            view::take_over(body, above, &["flavor_id", "image_id", "docker_volume_size"]);
        }
        let nodes = model.fleet.nodes_of(GroupId(object.meta.uuid)).count();
        count_nodes(body, "node_count", nodes, is_default(&object.spec));
        let fold = model.fleet.fold(GroupId(object.meta.uuid)).ok();
        let release = fold.and_then(|fold| fold.release.as_ref());
        body.insert("effective_release".into(), json!(release.map(|release| release.value.name.to_string())));
        body.insert("effective_mode".into(), json!(object.spec.mode.unwrap_or_default()));
        body.insert("node_states".into(), state::counts(api, model, model.fleet.nodes_of(GroupId(object.meta.uuid))));
        body.insert("status".into(), "CREATE_COMPLETE".into());
        body.insert("status_reason".into(), Value::Null);
    }

    fn blank(model: &Model, request: &Request) -> Result<Self, ApiError> {
        Ok(Self::new(ClusterId(ClusterSpec::locate(model, request)?.meta.uuid)))
    }

    fn above<'m>(model: &'m Model, spec: &Self) -> Levels<'m> {
        model.fleet.levels_to_cluster(spec.cluster)
    }

    /// A group stays in its cluster. What is there may be said again, as a body is sent back that was read.
    fn check_fixed(model: &Model, spec: &Self, fields: &Map<String, Value>) -> Result<(), ApiError> {
        let cluster = spec.cluster.0;
        let name = model.clusters.get(cluster).map(|cluster| cluster.meta.name.to_string());
        let uuid = cluster.to_string();
        let is_own = |said: &Value| said.as_str().is_some_and(|said| said == uuid || Some(said) == name.as_deref());
        for field in ["cluster", "cluster_id"] {
            if let Some(said) = fields.get(field).filter(|said| !is_own(said)) {
                let message = format!("{field} of this node group is {uuid} and cannot be {said}; nothing was changed");
                let advice = "make a node group in the other cluster, and move the nodes: `stemma node move`";
                return Err(ApiError::new(ErrorType::FieldInvalid, message).field(field).detail(advice));
            }
        }
        Ok(())
    }

    /// The default groups go with their cluster (as Magnum).
    fn remove(work: &mut Work<'_>, group: &Arc<NodeGroup>) -> Result<(), Undecided> {
        if is_default(&group.spec) {
            let message = "Deleting a default nodegroup is not supported.";
            return Err(ApiError::new(ErrorType::ObjectInvalid, message).detail("it goes with its cluster").into());
        }
        work.delete_unused(group)
    }

    fn path(object: &NodeGroup) -> String {
        Endpoint::GetGroup.path(&[&object.spec.cluster.to_string(), &object.meta.uuid.to_string()])
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        if body.get("role").and_then(Value::as_str) == Some("master") {
            return Err(ApiError::new(
                ErrorType::FieldInvalid,
                "Creating master nodegroups is currently not supported.",
            )
            .field("role"));
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

    fn patched(_object: &NodeGroup, body: Map<String, Value>) -> Answer {
        Answer::json(202, body.into())
    }
}

/// Whether a group came with its cluster, as Magnum makes it.
fn is_default(group: &NodeGroupSpec) -> bool {
    group.extra.get("is_default") == Some(&json!(true))
}

/// Counts the nodes of a cluster, its masters (the nodes of groups that have Magnum's role of that name) apart.
pub(super) fn count_nodes_of(model: &Model, cluster: ClusterId, body: &mut Map<String, Value>) {
    let (mut nodes, mut masters, mut is_magnums) = (0, 0, false);
    for (id, group) in model.fleet.groups_of(cluster).filter_map(|id| Some((id, model.groups.get(id.0)?))) {
        is_magnums |= is_default(&group.spec);
        let is_master = group.spec.extra.get("role").is_some_and(|role| role == "master");
        *if is_master { &mut masters } else { &mut nodes } += model.fleet.nodes_of(id).count();
    }
    count_nodes(body, "node_count", nodes, is_magnums);
    count_nodes(body, "master_count", masters, is_magnums);
}

/// Puts the number of nodes that are there in place of the number that a client of Magnum's asked for. That one stands while there is none.
fn count_nodes(body: &mut Map<String, Value>, field: &str, nodes: usize, is_magnums: bool) {
    if nodes > 0 || !(is_magnums || body.contains_key(field)) {
        body.insert(field.to_owned(), nodes.into());
    }
}

/// The groups of the cluster that the path names.
fn of_cluster(asked: &Asked<'_>, _name: &'static str) -> Result<Option<Kept<NodeGroupSpec>>, ApiError> {
    let cluster = ClusterSpec::locate(asked.model, asked.request)?.meta.uuid;
    Ok(Some(Kept::those(move |_, _, group: &NodeGroup| group.spec.cluster.0 == cluster)))
}

/// A role that is asked for is Magnum's or one that their nodes have. A group is a worker where nobody says otherwise (as Magnum),
/// unless the cluster's release has a role of that name: then that one is meant.
fn by_role(asked: &Asked<'_>, name: &'static str) -> Result<Option<Kept<NodeGroupSpec>>, ApiError> {
    let Some(roles) = asked.query().list(name)? else { return Ok(None) };
    let roles: Vec<String> = roles.into_iter().map(str::to_owned).collect();
    let cluster = ClusterSpec::locate(asked.model, asked.request)?;
    let unsaid = Some("worker").filter(|role| !asked.model.fleet.cluster_table(&cluster).has_role(role));
    let has = move |group: &NodeGroup, role: &str| {
        let magnums = group.spec.extra.get("role").and_then(Value::as_str).or(unsaid);
        magnums == Some(role) || group.spec.roles.iter().any(|own| own.as_str() == role)
    };
    Ok(Some(Kept::those(move |_, _, group: &NodeGroup| roles.iter().all(|role| has(group, role)))))
}
