//! The actions on clusters in Magnum's API. `upgrade` gives a cluster another cluster template, and thereby the release
//! of that template. `resize` is refused.

use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::object::{Cluster, ClusterSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{ApiResource, read_body, update};
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::work::PendingWrite;

/// `POST /v1/clusters/{cluster}/actions/upgrade`: gives the cluster another cluster template. If that template has a
/// release, the cluster's own release is removed, because it would override the release of the template.
pub(super) async fn upgrade(api: &Api, request: &HttpRequest) -> HandlerResult {
    let template = parse_upgrade(request.object()?)?;
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, cluster: &mut Cluster| {
        let new_template = work.model.templates.find(None, &template);
        let has_release = new_template.is_some_and(|found| found.spec.release.is_some());
        let release = if has_release { Value::Null } else { json!(cluster.spec.release.as_ref().map(ToString::to_string)) };
        let body = json!({"cluster_template": template, "release": release});
        let fields = body.as_object().cloned().unwrap_or_default();
        cluster.spec = update(api, work, &cluster.spec, &read_body::<ClusterSpec>(fields)?, &caller, BodyShape::Native)
            .map_err(|refusal| ClusterSpec::create_error(refusal, request))?;
        Ok(())
    };
    let answer = |_: &Model, cluster: &Cluster| StoredAnswer::json(202, json!({"uuid": cluster.meta.uuid}));
    writes::change(api, request, &caller, edit, answer).await
}

/// `POST /v1/clusters/{cluster}/actions/resize`: always fails, because the size of a cluster is the number of nodes in
/// its groups.
pub(super) fn resize(api: &Api, request: &HttpRequest) -> HandlerResult {
    ClusterSpec::locate(&api.model(), request)?;
    let message = "a cluster cannot be resized: it has the nodes that are in its groups";
    let advice = "`stemma node move NODE --nodegroup CLUSTER/GROUP` places a node; nothing was changed";
    Err(ApiError::new(ErrorType::ActionUnsupported, message).detail(advice))
}

/// Returns the name or uuid of the new template from the body of an upgrade. Fails if the body has another field.
/// Magnum's options `nodegroup` and `max_batch_size` are refused too, except the batch size that Magnum's client always
/// sends.
fn parse_upgrade(mut body: Map<String, Value>) -> Result<String, ApiError> {
    let unsupported = |field: &str, message: &str, advice: &str| {
        let advice = format!("{advice}; nothing was changed");
        Err(ApiError::new(ErrorType::ActionUnsupported, message).field(field).detail(advice))
    };
    if body.remove("nodegroup").is_some_and(|group| !group.is_null()) {
        let message = "one group can't be upgraded by itself: all groups have their cluster's template";
        return unsupported("nodegroup", message, "upgrade the cluster, or set the group's own release");
    }
    // Magnum's client always sends 1.
    if body.remove("max_batch_size").is_some_and(|size| size != 1 && !size.is_null()) {
        let message = "an upgrade has no batch size of its own";
        return unsupported("max_batch_size", message, "the cluster's own limits decide how many hosts change at once");
    }
    let template = body.remove("cluster_template");
    if let Some(name) = body.keys().next() {
        let message = format!("Unknown attribute for argument cluster_upgrade_req: {}", quote(name));
        return Err(ApiError::new(ErrorType::FieldUnknown, message).field(name.clone()));
    }
    match template {
        Some(Value::String(template)) => Ok(template),
        None | Some(Value::Null) => {
            let message = "Mandatory field missing: cluster_template";
            Err(ApiError::new(ErrorType::FieldMissing, message).field("cluster_template"))
        }
        Some(_) => {
            let message = "cluster_template must be the name or uuid of a cluster template";
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("cluster_template"))
        }
    }
}
