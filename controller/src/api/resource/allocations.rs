//! Allocations, in Ironic's shapes: a node for what is asked for, decided where it is asked.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::name::ObjectName;
use stemma_core::object::{Allocation, AllocationDecision, AllocationSpec, Kind, NodeId, NodeSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::filter::{self, Asked, Filter, Kept};
use super::nodes;
use super::objects::Shown;
use crate::api::Api;
use crate::api::http::request::Request;
use crate::cache::Model;
use crate::registry::Undecided;
use crate::registry::work::{Work, not_found};

/// Leaves out what whoever is bound to a cluster does not see: nodes elsewhere that it might have had and, where the whole fleet was asked,
/// how many there were.
fn hide_others(model: &Model, spec: &AllocationSpec, body: &mut Map<String, Value>) {
    if body.contains_key("candidate_nodes") {
        let seen = spec.candidate_nodes.iter().filter(|node| model.nodes.get(node.0).is_some());
        body.insert("candidate_nodes".into(), json!(seen.collect::<Vec<_>>()));
    }
    if let Some(Value::Object(because)) = body.get_mut("explanation").filter(|_| spec.within != model.within) {
        because.remove("candidates");
    }
}

impl Shown for AllocationSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "allocations";
    const FILTERS: &'static [Filter<Self>] = FILTERS;

    fn locate(model: &Model, request: &Request) -> Result<Arc<Allocation>, ApiError> {
        // Below a node's path there is the one that it has.
        if request.path.iter().any(|(name, _)| name == "node") {
            let node = NodeSpec::locate(model, request)?;
            let missing = || {
                let message = format!("the node {} has no allocation", quote(&node.display_name()));
                ApiError::new(ErrorType::ObjectNotFound, message)
            };
            return model.allocation_of(&node).cloned().ok_or_else(missing);
        }
        let id = request.part("allocation");
        model.allocations.find(None, id).cloned().ok_or_else(|| not_found(Kind::Allocation, id))
    }

    fn identify(_request: &Request, fields: &mut Map<String, Value>) -> Result<(Uuid, Option<ObjectName>), ApiError> {
        let name = match fields.remove("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => <Self as crate::cache::model::Resource>::parse_name(&name)?,
            Some(_) => {
                return Err(ApiError::new(ErrorType::FieldInvalid, "an allocation's name is a text").field("name"));
            }
        };
        Ok((nodes::new_uuid(fields)?, name))
    }

    fn blank(_model: &Model, _request: &Request) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    fn made(
        api: &Api,
        work: &mut Work<'_>,
        request: &Request,
        allocation: &Allocation,
    ) -> Result<Map<String, Value>, ApiError> {
        work.take_node(allocation)?;
        Ok(Self::show(api, &work.model, allocation, &request.base))
    }

    fn remove(work: &mut Work<'_>, allocation: &Arc<Allocation>) -> Result<(), Undecided> {
        work.delete_allocation(allocation)
    }

    fn path(object: &Allocation) -> String {
        Endpoint::GetAllocation.path(&[&object.meta.uuid.to_string()])
    }

    fn complete(_api: &Api, model: &Model, object: &Allocation, body: &mut Map<String, Value>) {
        let spec = &object.spec;
        body.insert("state".into(), spec.state().into());
        body.insert("node_uuid".into(), json!(spec.node()));
        let (error, because) = match &spec.decision {
            None => (None, None),
            Some(AllocationDecision::Chosen { because, .. }) => (None, Some(because)),
            Some(AllocationDecision::Failed { reason }) => {
                (Some(format!("Failed to process allocation {}: {reason}", object.meta.uuid)), None)
            }
        };
        body.insert("last_error".into(), json!(error));
        body.insert("explanation".into(), json!(because));
        if model.within.is_some() {
            hide_others(model, spec, body);
        }
        for (field, empty) in [("traits", json!([])), ("candidate_nodes", json!([])), ("owner", Value::Null)] {
            body.entry(field).or_insert(empty);
        }
    }

    fn no_name() -> Result<Option<ObjectName>, ApiError> {
        Ok(None)
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        match body.remove("node") {
            None | Some(Value::Null) => Ok(()),
            Some(_) => {
                let message = "an allocation chooses its node; one that is in use already is not taken over";
                let advice = "name it in candidate_nodes";
                Err(ApiError::new(ErrorType::FieldUnknown, message).field("node").detail(advice))
            }
        }
    }
}

/// As Ironic's: by the node that was chosen, the class, the state and the owner.
const FILTERS: &[Filter<AllocationSpec>] = &[
    Filter { name: "node", read: by_node },
    Filter {
        name: "resource_class",
        read: |asked, name| filter::text(asked, name, |one, class| *class == one.spec.resource_class),
    },
    Filter { name: "state", read: |asked, name| filter::text(asked, name, |one, state| *state == *one.spec.state()) },
    Filter {
        name: "owner",
        read: |asked, name| filter::text(asked, name, |one, owner| one.spec.owner.as_deref() == Some(owner)),
    },
];

fn by_node(asked: &Asked<'_>, name: &'static str) -> Result<Option<Kept<AllocationSpec>>, ApiError> {
    let Some(id) = asked.query().text(name)? else { return Ok(None) };
    let node: NodeId = nodes::locate(asked.model, id, asked.request.ironic())?.id();
    Ok(Some(Kept::those(move |_, _, one: &Allocation| one.spec.node() == Some(node))))
}
