//! Cluster templates, in Magnum's shapes.

use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::object::{ClusterTemplate, ClusterTemplateSpec, Kind};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};

use super::objects::Shown;
use crate::api::http::request::Request;
use crate::cache::Model;
use crate::registry::Undecided;
use crate::registry::work::{Work, not_found};

impl Shown for ClusterTemplateSpec {
    const LEVEL: Option<Level> = Some(Level::ClusterTemplate);
    const LIST: &'static str = "clustertemplates";
    const ADD_IS_NEW: bool = true;

    fn locate(model: &Model, request: &Request) -> Result<Arc<ClusterTemplate>, ApiError> {
        let id = request.part("template");
        model.templates.find(None, id).cloned().ok_or_else(|| not_found(Kind::ClusterTemplate, id))
    }

    fn blank(_model: &Model, _request: &Request) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    fn remove(work: &mut Work<'_>, template: &Arc<ClusterTemplate>) -> Result<(), Undecided> {
        work.delete_unused(template)
    }

    fn path(object: &ClusterTemplate) -> String {
        Endpoint::GetTemplate.path(&[&object.meta.uuid.to_string()])
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        // Magnum's templates have no such flag, and its API refuses it; as the top level they have nothing to merge with.
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
