//! Magnum's actions on a cluster, as far as they have a meaning here: another cluster template, with its release.

use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::object::{Cluster, ClusterSpec};
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::objects::{Shown, read_body, update};
use super::writes;
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::work::Work;

/// `POST /v1/clusters/{cluster}/actions/upgrade`. The cluster takes over the template's release: one of its own would hide that.
pub(super) async fn upgrade(api: &Api, request: &Request) -> HandlerResult {
    let template = read_upgrade(request.object()?)?;
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, cluster: &mut Cluster| {
        let found = work.model.templates.find(None, &template);
        let has_release = found.is_some_and(|found| found.spec.release.is_some());
        let own = if has_release { Value::Null } else { json!(cluster.spec.release.as_ref().map(ToString::to_string)) };
        let body = json!({"cluster_template": template, "release": own});
        let fields = body.as_object().cloned().unwrap_or_default();
        cluster.spec = update(api, work, &cluster.spec, &read_body::<ClusterSpec>(fields)?, &caller, BodyShape::Own)
            .map_err(|refusal| ClusterSpec::refuse_new(refusal, request))?;
        Ok(())
    };
    let answer = |_: &Model, cluster: &Cluster| Answer::json(202, json!({"uuid": cluster.meta.uuid}));
    writes::change(api, request, &caller, edit, answer).await
}

/// `POST /v1/clusters/{cluster}/actions/resize`.
pub(super) fn resize(api: &Api, request: &Request) -> HandlerResult {
    ClusterSpec::locate(&api.model(), request)?;
    let message = "a cluster isn't resized: it has the nodes that are in its groups";
    let advice = "`stemma node move NODE --nodegroup CLUSTER/GROUP` places a node; nothing was changed";
    Err(ApiError::new(ErrorType::ActionUnsupported, message).detail(advice))
}

/// The template's name or uuid, out of the body that Magnum's clients send.
fn read_upgrade(mut body: Map<String, Value>) -> Result<String, ApiError> {
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
            let message = "a cluster template is named by its name or uuid";
            Err(ApiError::new(ErrorType::FieldInvalid, message).field("cluster_template"))
        }
    }
}
