//! Nodes, in Ironic's shapes: its bodies, filters, pages and refusals, and beside them what Stemma knows of a host.

use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::catalog::Meant;
use stemma_core::fleet::{Among, Levels};
use stemma_core::name::{NodeName, is_uuid_like, odd_host_uuid};
use stemma_core::object::{Kind, Node, NodeId, NodeSpec};
use stemma_core::origin::Level;
use stemma_core::selector::Selector;
use stemma_wire::endpoint::{Endpoint, Minor, field_since, since};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::columns::{Chosen, Row};
use super::filter::Filter;
use super::lists::{Detail, Rows};
use super::objects::{Shown, check_computed};
use super::{node_filters, state, stored};
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::api::http::version::Service;
use crate::cache::Model;
use crate::cache::model::By;
use crate::registry::Undecided;
use crate::registry::work::{Work, not_found};

impl Shown for NodeSpec {
    const LEVEL: Option<Level> = Some(Level::Node);
    const LIST: &'static str = "nodes";
    const FILTERS: &'static [Filter<Self>] = node_filters::FILTERS;
    const RENAMED: &'static [(&'static str, &'static str)] = &[("maintenance", "parked")];
    const COMPUTED: &'static [&'static str] = &["boot_mode", "secure_boot"];

    /// From the index, where one is kept.
    fn walk<'m>(
        model: &'m Model,
        among: Among,
        by: By,
        behind: Option<&Node>,
        last_first: bool,
    ) -> Box<dyn Iterator<Item = &'m Arc<Node>> + 'm> {
        let own = model.within.map(|cluster| model.fleet.among_cluster(cluster));
        let among = Among::AllOf([among].into_iter().chain(own).collect());
        let found: Option<Box<dyn Iterator<Item = NodeId>>> = match by {
            By::Made => model.fleet.walk(among, behind.map(Node::id), last_first).map(|found| Box::new(found) as _),
            By::Name => model.fleet.walk_by_name(&among, behind, last_first),
        };
        match found {
            Some(found) => Box::new(found.filter_map(|id| model.nodes.get(id.0))),
            None => Box::new(model.nodes.walk(by, behind, last_first)),
        }
    }

    fn locate(model: &Model, request: &Request) -> Result<Arc<Node>, ApiError> {
        locate(model, request.part("node"), request.ironic())
    }

    fn show(api: &Api, model: &Model, object: &Node, base: &str) -> Map<String, Value> {
        shown(api, model, object, base, Service::Baremetal.range().1)
    }

    fn identify(request: &Request, fields: &mut Map<String, Value>) -> Result<(Uuid, Option<NodeName>), ApiError> {
        check_version(fields, request.ironic())?;
        if ["driver", "name"].iter().all(|field| fields.get(*field).is_none_or(Value::is_null)) {
            let message = "a node needs a name, or (as in Ironic's API) a driver";
            return Err(ApiError::new(ErrorType::FieldMissing, message).field("driver"));
        }
        Ok((new_uuid(fields)?, new_name(fields)?))
    }

    fn blank(_model: &Model, _request: &Request) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    fn made(api: &Api, work: &mut Work<'_>, request: &Request, node: &Node) -> Result<Map<String, Value>, ApiError> {
        Ok(shown(api, &work.model, node, &request.base, request.ironic()))
    }

    fn above<'m>(model: &'m Model, spec: &Self) -> Levels<'m> {
        spec.nodegroup.map(|id| model.fleet.levels_to_group(id)).unwrap_or_default()
    }

    fn is_selected(model: &Model, node: &Node, selector: &Selector) -> bool {
        model.fleet.selects(node, selector)
    }

    fn remove(work: &mut Work<'_>, node: &Arc<Node>) -> Result<(), Undecided> {
        work.delete_node(node)
    }

    fn path(object: &Node) -> String {
        Endpoint::GetNode.path(&[&object.meta.uuid.to_string()])
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        check_reports(body.get("reports").is_some_and(|said| !said.is_null()))?;
        if body.contains_key("traits") {
            let message = "Cannot patch /traits: a node's traits are a resource of their own";
            let advice = "PUT /v1/nodes/{node}/traits, or `stemma trait add`";
            return Err(ApiError::new(ErrorType::FieldUnknown, message).field("traits").detail(advice));
        }
        Ok(())
    }

    fn check_fixed(_model: &Model, spec: &Self, fields: &Map<String, Value>) -> Result<(), ApiError> {
        check_computed(spec, |name| fields.get(name).cloned())
    }

    fn no_name() -> Result<Option<NodeName>, ApiError> {
        Ok(None)
    }
}

/// Refuses what a host alone reports.
///
/// # Errors
/// Where a body has it.
pub(super) fn check_reports(says_any: bool) -> Result<(), ApiError> {
    if !says_any {
        return Ok(());
    }
    let message = "reports is a field of manifests for `stemma resolve` without a controller; a controller takes them from hosts alone";
    Err(ApiError::new(ErrorType::FieldInvalid, message).field("reports"))
}

/// Finds a node as Ironic does: a text like a uuid is one as it stands, any other must be a name.
///
/// # Errors
/// [`ErrorType::FieldInvalid`] for what is neither; [`ErrorType::ObjectNotFound`].
pub(super) fn locate(model: &Model, id: &str, version: Minor) -> Result<Arc<Node>, ApiError> {
    let missing = || not_found(Kind::Node, id);
    if is_uuid_like(id) {
        let uuid: Uuid = id.parse().map_err(|_| missing())?;
        return model.nodes.get(uuid).filter(|_| uuid.to_string() == id).cloned().ok_or_else(missing);
    }
    if !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)) || id.len() > 255 {
        let message = format!("Expected UUID or name for node: {}.", quote(id));
        return Err(ApiError::new(ErrorType::FieldInvalid, message));
    }
    if version < since::NAMES {
        return Err(missing());
    }
    model.nodes.named(None, id).cloned().ok_or_else(missing)
}

/// A node's whole body, as far as a client's version knows it.
fn shown(api: &Api, model: &Model, node: &Node, base: &str, version: Minor) -> Map<String, Value> {
    Chosen::all(version).body(&Row::new(api, model, node, base, &Meant::default()))
}

/// `GET /v1/nodes` and `GET /v1/nodes/detail`.
pub(super) fn list(api: &Api, request: &Request, detail: Detail) -> HandlerResult {
    let model = api.model();
    let columns = columns(request, detail == Detail::Whole)?;
    let rows = Rows::read(api, &model, request)?;
    let (api, model, base, meant) = (api.clone(), Arc::clone(&model), request.base.clone(), Meant::default());
    let row = move |node: &Node, text: &mut Vec<u8>| columns.write(&Row::new(&api, &model, node, &base, &meant), text);
    Ok(rows.written(NodeSpec::LIST, row))
}

fn columns(request: &Request, detail_path: bool) -> Result<Chosen, ApiError> {
    let detail = request.query.flag("detail")?;
    let refuse = |value: &str, rule: &str| Err(BadQuery::value("detail", value, rule).into());
    match (detail, &request.fields.named) {
        (Some(true), Some(_)) => refuse("true", "it can't be asked for together with fields"),
        (_, Some(_)) if detail_path => refuse("…", "fields can't be chosen in the detailed list"),
        (Some(true), None) => Ok(whole(request)),
        (_, None) if detail_path => Ok(whole(request)),
        (_, _) => Ok(Chosen::all(request.ironic()).only(|field| request.fields.has(field, false))),
    }
}

/// All columns. openstacksdk makes arguments of a body's fields, and has an argument `connection` of its own.
fn whole(request: &Request) -> Chosen {
    Chosen::all(request.ironic()).without(if request.versions.is_ironics { &["connection"] } else { &[] })
}

/// `GET /v1/nodes/{node}`.
pub(super) fn get(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let chosen = || Chosen::all(request.ironic()).only(|field| request.fields.has(field, true));
    let columns = if request.fields.named.is_some() { chosen() } else { whole(request) };
    let meant = Meant::default();
    let mut body = columns.body(&Row::new(api, &model, &node, &request.base, &meant).alone());
    stored::add(api, &model, request, &node.spec, &mut body)?;
    Ok(Reply::ok(body.into()).tagged(node.meta.resource_version))
}

/// A field of a later version than the request's is refused, as Ironic refuses it.
fn check_version(fields: &Map<String, Value>, version: Minor) -> Result<(), ApiError> {
    match fields.keys().find(|name| version < field_since(name)) {
        Some(name) => {
            let message = format!("the field {name} is not there in version 1.{}", version.0);
            Err(ApiError::new(ErrorType::RequestNotAcceptable, message).field(name.as_str()))
        }
        None => Ok(()),
    }
}

pub(super) fn new_uuid(fields: &mut Map<String, Value>) -> Result<Uuid, ApiError> {
    let Some(given) = fields.remove("uuid").filter(|value| !value.is_null()) else { return Ok(Uuid::now_v7()) };
    let invalid =
        || ApiError::new(ErrorType::FieldInvalid, format!("Invalid UUID: {}", quote(&given.to_string()))).field("uuid");
    let uuid = given.as_str().and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
    match odd_host_uuid(uuid) {
        Some(why) => Err(invalid().detail(why)),
        None => Ok(uuid),
    }
}

fn new_name(fields: &mut Map<String, Value>) -> Result<Option<NodeName>, ApiError> {
    match fields.remove("name") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => <NodeSpec as crate::cache::model::Resource>::parse_name(&name),
        Some(other) => {
            Err(ApiError::new(ErrorType::FieldInvalid, format!("a node's name is a text, not {other}")).field("name"))
        }
    }
}

/// `GET /v1/nodes/{node}/report`: what the host said, and what became of its tasks.
pub(super) fn report(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(Reply::ok(state::report(&model, &node)))
}
