//! Allocations, in Ironic's format. The controller chooses a node when the allocation is created.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::name::ObjectName;
use stemma_core::object::{Allocation, AllocationDecision, AllocationSpec, Kind, NodeId, NodeSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::filter::{self, FilterContext, FilterDef, FilterMatch};
use super::nodes;
use super::objects::ApiResource;
use crate::api::Api;
use crate::api::http::request::HttpRequest;
use crate::cache::Model;
use crate::registry::DecisionError;
use crate::registry::work::{PendingWrite, not_found};

/// Removes from an allocation's body what a caller that is bound to a cluster cannot see: candidate nodes of other
/// clusters, and the number of candidates unless only nodes of the caller's cluster were considered.
fn hide_other_clusters(model: &Model, spec: &AllocationSpec, body: &mut Map<String, Value>) {
    if body.contains_key("candidate_nodes") {
        let visible_nodes = spec.candidate_nodes.iter().filter(|node| model.nodes.get(node.0).is_some());
        body.insert("candidate_nodes".into(), json!(visible_nodes.collect::<Vec<_>>()));
    }
    if let Some(Value::Object(explanation)) = body.get_mut("explanation").filter(|_| spec.within != model.visible_cluster) {
        explanation.remove("candidates");
    }
}

impl ApiResource for AllocationSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "allocations";
    const FILTERS: &'static [FilterDef<Self>] = FILTERS;

    /// Finds the allocation that the path names by its name or uuid, or by its node.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Allocation>, ApiError> {
        // A path below a node refers to the allocation of that node.
        if request.params.iter().any(|(name, _)| name == "node") {
            let node = NodeSpec::locate(model, request)?;
            let no_allocation = || {
                let message = format!("the node {} has no allocation", quote(&node.display_name()));
                ApiError::new(ErrorType::ObjectNotFound, message)
            };
            return model.node_allocation(&node).cloned().ok_or_else(no_allocation);
        }
        let id = request.param("allocation");
        model.allocations.find(None, id).cloned().ok_or_else(|| not_found(Kind::Allocation, id))
    }

    /// Returns the uuid and the optional name of a new allocation, removed from its body. A missing uuid is created.
    fn identify(_request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, Option<ObjectName>), ApiError> {
        let name = match fields.remove("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => <Self as crate::cache::model::Resource>::parse_name(&name)?,
            Some(_) => {
                return Err(ApiError::new(ErrorType::FieldInvalid, "an allocation's name is a text").field("name"));
            }
        };
        Ok((nodes::new_uuid(fields)?, name))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    /// Marks the chosen node, if any, as used by the new allocation. Returns the response body.
    fn after_create(
        api: &Api,
        work: &mut PendingWrite<'_>,
        request: &HttpRequest,
        allocation: &Allocation,
    ) -> Result<Map<String, Value>, ApiError> {
        work.assign_node(allocation)?;
        Ok(Self::show(api, &work.model, allocation, &request.base_url))
    }

    fn remove(work: &mut PendingWrite<'_>, allocation: &Arc<Allocation>) -> Result<(), DecisionError> {
        work.delete_allocation(allocation)
    }

    fn path(object: &Allocation) -> String {
        Endpoint::GetAllocation.path(&[&object.meta.uuid.to_string()])
    }

    /// Adds the state, the chosen node and the reason of the choice to an allocation's body, and the defaults that
    /// Ironic shows. Hides other clusters from a caller that is bound to a cluster.
    fn complete(_api: &Api, model: &Model, object: &Allocation, body: &mut Map<String, Value>) {
        let spec = &object.spec;
        body.insert("state".into(), spec.state_name().into());
        body.insert("node_uuid".into(), json!(spec.chosen_node()));
        let (error, explanation) = match &spec.decision {
            None => (None, None),
            Some(AllocationDecision::Chosen { because, .. }) => (None, Some(because)),
            Some(AllocationDecision::Failed { reason }) => {
                (Some(format!("Failed to process allocation {}: {reason}", object.meta.uuid)), None)
            }
        };
        body.insert("last_error".into(), json!(error));
        body.insert("explanation".into(), json!(explanation));
        if model.visible_cluster.is_some() {
            hide_other_clusters(model, spec, body);
        }
        for (field, default) in [("traits", json!([])), ("candidate_nodes", json!([])), ("owner", Value::Null)] {
            body.entry(field).or_insert(default);
        }
    }

    fn default_name() -> Result<Option<ObjectName>, ApiError> {
        Ok(None)
    }

    /// Refuses the field `node`, with which Ironic's clients record that a node is already in use.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        match body.remove("node") {
            None | Some(Value::Null) => Ok(()),
            Some(_) => {
                let message = "an allocation chooses its node, and cannot be created for a node that is in use";
                let advice = "name it in candidate_nodes";
                Err(ApiError::new(ErrorType::FieldUnknown, message).field("node").detail(advice))
            }
        }
    }
}

/// The filters of a list of allocations, as Ironic has them.
const FILTERS: &[FilterDef<AllocationSpec>] = &[
    FilterDef { name: "node", read: by_node },
    FilterDef {
        name: "resource_class",
        read: |ctx, name| filter::text_filter(ctx, name, |allocation, class| *class == allocation.spec.resource_class),
    },
    FilterDef {
        name: "state",
        read: |ctx, name| filter::text_filter(ctx, name, |allocation, state| *state == *allocation.spec.state_name()),
    },
    FilterDef {
        name: "owner",
        read: |ctx, name| filter::text_filter(ctx, name, |allocation, owner| allocation.spec.owner.as_deref() == Some(owner)),
    },
];

/// Reads the filter `node`, which matches the allocation for which this node was chosen.
fn by_node(context: &FilterContext<'_>, name: &'static str) -> Result<Option<FilterMatch<AllocationSpec>>, ApiError> {
    let Some(id) = context.query().text(name)? else { return Ok(None) };
    let node: NodeId = nodes::locate(context.model, id, context.request.ironic_version())?.id();
    Ok(Some(FilterMatch::new(move |_, _, allocation: &Allocation| allocation.spec.chosen_node() == Some(node))))
}
