//! The resource of inspection rules, in the form of Ironic's API.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::name::ObjectName;
use stemma_core::object::{InspectionRule, InspectionRuleSpec, Kind};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::filter::{self, FilterDef};
use super::nodes;
use super::objects::{ApiResource, by_selector};
use crate::api::Api;
use crate::api::http::request::HttpRequest;
use crate::cache::Model;
use crate::registry::DecisionError;
use crate::registry::work::{PendingWrite, not_found};

impl ApiResource for InspectionRuleSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "inspection_rules";
    const ACCEPTS_APPLY_PATCH: bool = false;
    const FILTERS: &'static [FilterDef<Self>] = &[
        FilterDef { name: "selector", read: by_selector },
        FilterDef { name: "phase", read: |ctx, name| filter::text_filter(ctx, name, |_, phase| phase == "main") },
    ];

    /// Finds the rule that the path of the request names, by name or uuid.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<InspectionRule>, ApiError> {
        let id = request.param("rule");
        model.rules.find(None, id).cloned().ok_or_else(|| not_found(Kind::InspectionRule, id))
    }

    /// Returns the uuid and the optional name of a new rule. Removes both from the fields of its body.
    fn identify(_request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, Option<ObjectName>), ApiError> {
        let name = match fields.remove("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => <Self as crate::cache::model::Resource>::parse_name(&name)?,
            Some(_) => return Err(ApiError::new(ErrorType::FieldInvalid, "a rule's name is a text").field("name")),
        };
        Ok((nodes::new_uuid(fields)?, name))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    /// Deletes the rule. Fails if another object uses it.
    fn remove(work: &mut PendingWrite<'_>, rule: &Arc<InspectionRule>) -> Result<(), DecisionError> {
        work.delete_unused(rule)
    }

    fn path(object: &InspectionRule) -> String {
        Endpoint::GetInspectionRule.path(&[&object.meta.uuid.to_string()])
    }

    /// Adds the fields that a stored rule omits because they have their defaults, so that each rule has the same fields
    /// in the API. For a sensitive rule, `conditions` and `actions` are `null`, because their values are not shown.
    fn complete(_api: &Api, _model: &Model, object: &InspectionRule, body: &mut Map<String, Value>) {
        for field in ["conditions", "actions"] {
            let value = if object.spec.sensitive { Value::Null } else { json!([]) };
            body.entry(field).or_insert(value);
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

    /// Returns no name, because a patch may remove the name of a rule.
    fn default_name() -> Result<Option<ObjectName>, ApiError> {
        Ok(None)
    }

    /// Removes fields that only the controller sets, so that a client can send back what it has read.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        body.retain(|name, _| !matches!(name.as_str(), "uuid" | "links" | "created_at" | "updated_at"));
        Ok(())
    }
}
