//! Clusters, in Magnum's format.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::fleet::Levels;
use stemma_core::labels::BodyShape;
use stemma_core::name::ObjectName;
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, Kind, NodeGroupSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::{Endpoint, min_versions};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::objects::ApiResource;
use super::{groups, state, view};
use crate::api::Api;
use crate::api::http::request::HttpRequest;
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::DecisionError;
use crate::registry::work::{PendingWrite, not_found};

impl ApiResource for ClusterSpec {
    const LEVEL: Option<Level> = Some(Level::Cluster);
    const LIST: &'static str = "clusters";
    const UPSTREAM_NAMES: &'static [(&'static str, &'static str)] = &[("cluster_template_id", "cluster_template")];
    const SHAPE: BodyShape = BodyShape::Magnum;
    const CREATED_STATUS: u16 = 202;
    const IS_NAME_FIXED: bool = true;
    const COMPUTED: &'static [&'static str] = &["api_address", "stack_id", "status", "status_reason"];

    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Cluster>, ApiError> {
        let id = request.param("cluster");
        model.clusters.find(None, id).cloned().ok_or_else(|| not_found(Kind::Cluster, id))
    }

    /// Adds the fields that are computed: the template, the fields that are inherited from the template, the release,
    /// the states and numbers of nodes, and the status that Magnum's clients expect.
    fn complete(api: &Api, model: &Model, object: &Cluster, body: &mut Map<String, Value>) {
        let template = object.spec.cluster_template.and_then(|id| model.templates.get(id.0));
        body.insert("cluster_template_id".into(), json!(template.map(|template| template.meta.uuid)));
        if let Some(template) = template {
            view::inherit_fields(body, &template.spec.extra, TEMPLATE_FIELDS);
        }
        let nodes = model.fleet.nodes_in_cluster(ClusterId(object.meta.uuid));
        body.insert("node_states".into(), state::state_counts(api, model, nodes));
        let release = model.fleet.cluster_release(object);
        body.insert("effective_release".into(), json!(release.map(ToString::to_string)));
        groups::count_cluster_nodes(model, ClusterId(object.meta.uuid), body);
        // Magnum's clients wait for this status. Stemma has no Heat stack, so the uuid of the cluster is its stack id.
        body.insert("status".into(), "CREATE_COMPLETE".into());
        body.insert("status_reason".into(), Value::Null);
        body.insert("cluster_id".into(), object.meta.uuid.to_string().into());
        body.insert("stack_id".into(), object.meta.uuid.to_string().into());
    }

    /// Returns a new uuid, and the name of a new cluster, which it removes from the body. A client of Magnum must also
    /// name a cluster template, as in Magnum. Only clients of `OpenStack` send the header `OpenStack-API-Version`.
    fn identify(request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, ObjectName), ApiError> {
        let uuid = Uuid::now_v7();
        let is_magnum_client = request.header_text("openstack-api-version").is_some();
        let name = new_name(fields, uuid, is_magnum_client)?;
        let has_template = ["cluster_template_id", "cluster_template"].iter().any(|n| !fields.get(*n).is_none_or(Value::is_null));
        if is_magnum_client && !has_template {
            return Err(ApiError::new(ErrorType::FieldMissing, "Mandatory field missing: cluster_template_id")
                .field("cluster_template_id"));
        }
        Ok((uuid, name))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    /// Creates the cluster's two default groups, as Magnum does. Returns the response body, with only the uuid.
    fn after_create(
        _api: &Api,
        work: &mut PendingWrite<'_>,
        _request: &HttpRequest,
        cluster: &Cluster,
    ) -> Result<Map<String, Value>, ApiError> {
        create_default_groups(work, cluster)?;
        Ok([("uuid".to_owned(), json!(cluster.meta.uuid))].into_iter().collect())
    }

    /// Changes the status for a template that does not exist from 400 to 404 for version 1.10 and later, as in Magnum.
    fn create_error(refusal: ApiError, request: &HttpRequest) -> ApiError {
        let is_unknown_template = refusal.kind == ErrorType::ReferenceDangling
            && refusal.field.as_deref() == Some("cluster_template")
            && request.magnum_version() >= min_versions::TEMPLATE_NOT_FOUND;
        if is_unknown_template { ApiError { kind: ErrorType::ObjectNotFound, ..refusal } } else { refusal }
    }

    /// Returns the levels above a cluster: its template, if it has one.
    fn parent_levels<'m>(model: &'m Model, spec: &Self) -> Levels<'m> {
        spec.cluster_template.map(|id| model.fleet.template_levels(id)).unwrap_or_default()
    }

    fn remove(work: &mut PendingWrite<'_>, cluster: &Arc<Cluster>) -> Result<(), DecisionError> {
        work.delete_cluster(cluster)
    }

    fn path(object: &Cluster) -> String {
        Endpoint::GetCluster.path(&[&object.meta.uuid.to_string()])
    }

    /// Refuses fields that Magnum refuses to set. Removes other read-only fields, because a client may send back a part
    /// of an answer that it read before.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        if let Some(name) =
            ["stack_id", "cluster_id", "created_at", "updated_at", "api_address"].iter().find(|name| body.contains_key(**name))
        {
            return Err(ApiError::new(ErrorType::FieldInvalid, format!("Cannot set read only field {name}.")).field(*name));
        }
        for name in ["uuid", "status", "status_reason", "links", "labels_overridden", "labels_added", "labels_skipped"] {
            body.remove(name);
        }
        Ok(())
    }

    /// Returns the response to a JSON patch. As in Magnum, it contains only the uuid.
    fn patch_answer(object: &Cluster, _body: Map<String, Value>) -> StoredAnswer {
        StoredAnswer::json(202, json!({"uuid": object.meta.uuid}))
    }
}

/// The fields of Magnum's API that a cluster's body has from the template, if the cluster does not set them.
const TEMPLATE_FIELDS: &[&str] =
    &["flavor_id", "master_flavor_id", "floating_ip_enabled", "master_lb_enabled", "docker_volume_size"];

/// Removes the name of a new cluster from its body, and returns it. Without a name, returns a name that is built from
/// the uuid. For a client of Magnum, the name must begin with a letter, as in Magnum.
fn new_name(fields: &mut Map<String, Value>, uuid: Uuid, is_magnum_client: bool) -> Result<ObjectName, ApiError> {
    let invalid = |reason: String| ApiError::new(ErrorType::FieldInvalid, reason).field("name");
    let name = match fields.remove("name") {
        // The last eight hexadecimal digits of a new uuid are random.
        None | Some(Value::Null) => format!("cluster-{}", &uuid.simple().to_string()[24..]),
        Some(Value::String(name)) => name,
        Some(invalid_name) => return Err(invalid(format!("a cluster's name is a text, not {invalid_name}"))),
    };
    if is_magnum_client && !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(invalid(format!("a cluster's name begins with a letter, {} does not", quote(&name))));
    }
    ObjectName::new(&name).map_err(|e| invalid(e.to_string()))
}

/// Creates the groups `default-master` and `default-worker` of a new cluster, with the node counts that the client
/// requested.
fn create_default_groups(work: &mut PendingWrite<'_>, cluster: &Cluster) -> Result<(), ApiError> {
    // Each group has a name, a role in Magnum's API, and a field of the cluster with the requested number of nodes.
    for (name, role, field) in [("default-master", "master", "master_count"), ("default-worker", "worker", "node_count")] {
        let mut spec = NodeGroupSpec::new(ClusterId(cluster.meta.uuid));
        spec.extra.insert("is_default".into(), true.into());
        spec.extra.insert("role".into(), role.into());
        if let Some(count) = cluster.spec.extra.get(field) {
            spec.extra.insert("node_count".into(), count.clone());
        }
        let name = ObjectName::new(name).expect("the names of the default groups are valid");
        work.create(Uuid::now_v7(), name, spec)?;
    }
    Ok(())
}
