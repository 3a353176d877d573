//! The resource of cluster templates, in the form of Magnum's API.

use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::object::{ClusterTemplate, ClusterTemplateSpec, Kind};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

use super::objects::ApiResource;
use crate::api::http::request::HttpRequest;
use crate::cache::Model;
use crate::registry::DecisionError;
use crate::registry::work::{PendingWrite, not_found};

impl ApiResource for ClusterTemplateSpec {
    const LEVEL: Option<Level> = Some(Level::ClusterTemplate);
    const LIST: &'static str = "clustertemplates";
    const IS_ADD_CREATE_ONLY: bool = true;

    /// Finds the template that the path of the request names, by name or uuid.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<ClusterTemplate>, ApiError> {
        let id = request.param("template");
        model.templates.find(None, id).cloned().ok_or_else(|| not_found(Kind::ClusterTemplate, id))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    /// Deletes the template. Fails if a cluster uses it.
    fn remove(work: &mut PendingWrite<'_>, template: &Arc<ClusterTemplate>) -> Result<(), DecisionError> {
        work.delete_unused(template)
    }

    fn path(object: &ClusterTemplate) -> String {
        Endpoint::GetTemplate.path(&[&object.meta.uuid.to_string()])
    }

    /// Removes the read-only fields `uuid` and `links` from the body of a write, so that a client of Magnum can send
    /// back a template that it has read. Fails if the body has the field `merge_labels`.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        // Magnum's templates have no field `merge_labels`, and Magnum's API refuses it. A template is the highest
        // level, so there are no inherited labels with which its labels could merge.
        if body.contains_key("merge_labels") {
            let advice = "a template is the top level: there is nothing that its labels could merge with";
            return Err(ApiError::new(ErrorType::FieldUnknown, "Unknown attribute merge_labels")
                .field("merge_labels")
                .detail(advice));
        }
        body.retain(|name, _| !matches!(name.as_str(), "uuid" | "links"));
        Ok(())
    }
}
