//! Node groups, in Magnum's shapes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::object::{ClusterId, ClusterSpec, GroupId, Kind, NodeGroup, NodeGroupSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

use super::objects::Shown;
use super::place::table_of_cluster;
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
        // What somebody said of it stands only while no node is there.
        let nodes = model.fleet.nodes_of(GroupId(object.meta.uuid)).count();
        if nodes > 0 || !body.contains_key("node_count") && !object.spec.extra.contains_key("is_default") {
            body.insert("node_count".into(), nodes.into());
        }
        body.insert("node_states".into(), state::counts(api, model.fleet.nodes_of(GroupId(object.meta.uuid))));
        body.insert("status".into(), "CREATE_COMPLETE".into());
        body.insert("status_reason".into(), Value::Null);
    }

    fn is_listed(field: &str) -> bool {
        LISTED.contains(&field)
    }

    /// The groups of the cluster that the path names. A role that is asked for is Magnum's or one that their nodes have. A group is a
    /// worker where nobody says otherwise (as Magnum), unless the cluster's release has a role of that name: then that one is meant.
    fn filter(model: &Model, request: &Request) -> Result<impl Fn(&NodeGroup) -> bool, ApiError> {
        let cluster = ClusterSpec::locate(model, request)?;
        let unsaid = Some("worker").filter(|role| !table_of_cluster(model, &cluster).has_role(role));
        let cluster = cluster.meta.uuid;
        let roles = request.query.list("role")?.unwrap_or_default();
        let has = move |group: &NodeGroup, role: &str| {
            let magnums = group.spec.extra.get("role").and_then(Value::as_str).or(unsaid);
            magnums == Some(role) || group.spec.roles.iter().any(|own| own.as_str() == role)
        };
        Ok(move |group: &NodeGroup| group.spec.cluster.0 == cluster && roles.iter().all(|role| has(group, role)))
    }

    fn blank(model: &Model, request: &Request) -> Result<Self, ApiError> {
        Ok(Self::new(ClusterId(ClusterSpec::locate(model, request)?.meta.uuid)))
    }

    fn above<'m>(model: &'m Model, spec: &Self) -> view::Chain<'m> {
        view::above_group(model, spec)
    }

    /// The default groups go with their cluster (as Magnum).
    fn remove(work: &mut Work<'_>, group: &Arc<NodeGroup>) -> Result<(), Undecided> {
        if group.spec.extra.get("is_default") == Some(&json!(true)) {
            let message = "Deleting a default nodegroup is not supported.";
            return Err(ApiError::new(ErrorType::ObjectInvalid, message).detail("it goes with its cluster").into());
        }
        work.delete_group(group)
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

/// What a list of Magnum's shows of a node group.
const LISTED: &[&str] = &[
    "uuid",
    "name",
    "flavor_id",
    "image_id",
    "node_count",
    "role",
    "min_node_count",
    "max_node_count",
    "is_default",
    "stack_id",
    "status",
    "merge_labels",
    "cluster",
    "roles",
    "mode",
    "release",
    "node_states",
    "labels",
    "links",
    "resource_version",
];
