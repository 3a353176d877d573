//! Inspection rules, in Ironic's shapes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::name::ObjectName;
use stemma_core::object::{InspectionRule, InspectionRuleSpec, Kind};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::filter::{self, Filter};
use super::nodes;
use super::objects::{Shown, selector};
use crate::api::Api;
use crate::api::http::request::Request;
use crate::cache::Model;
use crate::registry::Undecided;
use crate::registry::work::{Work, not_found};

impl Shown for InspectionRuleSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "inspection_rules";
    const IS_APPLIED_TO: bool = false;
    const FILTERS: &'static [Filter<Self>] = &[
        Filter { name: "selector", read: selector },
        Filter { name: "phase", read: |asked, name| filter::text(asked, name, |_, phase| phase == "main") },
    ];

    fn locate(model: &Model, request: &Request) -> Result<Arc<InspectionRule>, ApiError> {
        let id = request.part("rule");
        model.rules.find(None, id).cloned().ok_or_else(|| not_found(Kind::InspectionRule, id))
    }

    fn identify(_request: &Request, fields: &mut Map<String, Value>) -> Result<(Uuid, Option<ObjectName>), ApiError> {
        let name = match fields.remove("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => <Self as crate::cache::model::Resource>::parse_name(&name)?,
            Some(_) => return Err(ApiError::new(ErrorType::FieldInvalid, "a rule's name is a text").field("name")),
        };
        Ok((nodes::new_uuid(fields)?, name))
    }

    fn blank(_model: &Model, _request: &Request) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    fn remove(work: &mut Work<'_>, rule: &Arc<InspectionRule>) -> Result<(), Undecided> {
        work.delete_unused(rule)
    }

    fn path(object: &InspectionRule) -> String {
        Endpoint::GetInspectionRule.path(&[&object.meta.uuid.to_string()])
    }

    /// As Ironic's: fields stand there also at their defaults, and of a sensitive rule without what they hold.
    fn complete(_api: &Api, _model: &Model, object: &InspectionRule, body: &mut Map<String, Value>) {
        for field in ["conditions", "actions"] {
            let empty = if object.spec.sensitive { Value::Null } else { json!([]) };
            body.entry(field).or_insert(empty);
        }
        body.entry("description").or_insert(Value::Null);
        for field in ["sensitive", "grants"] {
            body.entry(field).or_insert_with(|| false.into());
        }
        body.entry("phase").or_insert_with(|| "main".into());
        body.entry("labels").or_insert_with(|| json!({}));
    }

    fn labels(_model: &Model, object: &InspectionRule) -> BTreeMap<String, String> {
        object.spec.labels.clone()
    }

    fn no_name() -> Result<Option<ObjectName>, ApiError> {
        Ok(None)
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        body.retain(|name, _| !matches!(name.as_str(), "uuid" | "links" | "created_at" | "updated_at"));
        Ok(())
    }
}
