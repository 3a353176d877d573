//! Nodes, in Ironic's shapes: its bodies, filters, pages and refusals, and beside them what Stemma knows of a host.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::name::{NodeName, is_uuid_like, odd_host_uuid};
use stemma_core::object::{Kind, Node, NodeSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::{Endpoint, Minor, since};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::columns::{Chosen, Row, is_known, since_of};
use super::filter::Filter;
use super::lists::{Detail, Rows};
use super::objects::Shown;
use super::{state, view};
use crate::api::Api;
use crate::api::http::query::{BadQuery, Page, Parameters};
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::api::http::version::{IRONIC_VERSION, Service};
use crate::cache::Model;
use crate::registry::Undecided;
use crate::registry::work::{Work, not_found};

/// What a list shows where neither fields nor detail are asked for (as Ironic).
const DEFAULT: &[&str] = &["uuid", "name", "instance_uuid", "maintenance", "power_state", "provision_state", "links"];
/// What Stemma's own lists show beside, where a client names no version of Ironic's.
const OWN: &[&str] =
    &["nodegroup", "state", "connected", "roles", "tags", "mode", "labels", "traits", "resource_version"];

impl Shown for NodeSpec {
    const LEVEL: Option<Level> = Some(Level::Node);
    const LIST: &'static str = "nodes";

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

    fn above<'m>(model: &'m Model, spec: &Self) -> view::Chain<'m> {
        view::above_node(model, spec)
    }

    fn remove(work: &mut Work<'_>, node: &Arc<Node>) -> Result<(), Undecided> {
        work.delete_node(node)
    }

    fn path(object: &Node) -> String {
        Endpoint::GetNode.path(&[&object.meta.uuid.to_string()])
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        if let Some(maintenance) = body.remove("maintenance") {
            body.insert("parked".into(), maintenance);
        }
        if body.contains_key("traits") {
            let message = "Cannot patch /traits: a node's traits are a resource of their own";
            let advice = "PUT /v1/nodes/{node}/traits, or `stemma trait add`";
            return Err(ApiError::new(ErrorType::FieldUnknown, message).field("traits").detail(advice));
        }
        Ok(())
    }

    fn no_name() -> Result<Option<NodeName>, ApiError> {
        Ok(None)
    }
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
    Chosen::all(version).body(&Row::new(api, model, node, base))
}

/// Reads `fields`: trimmed, in lower case, each once (as Ironic).
fn read_fields(parameters: &Parameters, version: Minor) -> Result<Option<Vec<String>>, ApiError> {
    let mut given = parameters.all("fields").peekable();
    if given.peek().is_none() {
        return Ok(None);
    }
    let too_old = || {
        ApiError::new(
            ErrorType::RequestNotAcceptable,
            format!("a field asked for is not there in version 1.{}", version.0),
        )
    };
    if version < since::FIELDS {
        return Err(too_old());
    }
    let names = given.flat_map(|text| text.split(',')).map(|name| name.trim().to_ascii_lowercase());
    let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    for name in &names {
        if name == "links" || !is_known(name) {
            return Err(ApiError::from(BadQuery::value(
                "fields",
                name,
                "it is no field of a node that can be asked for",
            )));
        }
        if version < since_of(name) {
            return Err(too_old());
        }
    }
    Ok(Some(names))
}

/// `GET /v1/nodes` and `GET /v1/nodes/detail`.
pub(super) fn list(api: &Api, request: &Request, detail: Detail) -> HandlerResult {
    let parameters = &request.query;
    let model = api.model();
    let columns = columns(request, detail == Detail::Whole)?;
    check_marker(&Page::read(parameters)?)?;
    let filter = Filter::read(api, &model, request.ironic(), parameters)?;
    let deleting = parameters.flag("deleting")?.unwrap_or(false);
    let keeps = |node: &Node| !deleting && filter.keeps(api, &model, node);
    let rows = Rows::read(request, model.nodes.iter(), keeps)?;
    let (api, model, base) = (api.clone(), Arc::clone(&model), request.base.clone());
    Ok(rows.written(NodeSpec::LIST, move |node, text| columns.write(&Row::new(&api, &model, node, &base), text)))
}

fn columns(request: &Request, detail_path: bool) -> Result<Chosen, ApiError> {
    let (parameters, version) = (&request.query, request.ironic());
    let detail = parameters.flag("detail")?;
    let fields = read_fields(parameters, version)?;
    let refuse = |value: &str, rule: &str| Err(BadQuery::value("detail", value, rule).into());
    let all = Chosen::all(version);
    match (detail, fields) {
        (Some(_), _) if version < since::DETAIL => refuse("…", "it is there from version 1.43 on"),
        (Some(true), Some(_)) => refuse("true", "it can't be asked for together with fields"),
        (_, Some(_)) if detail_path => refuse("…", "fields can't be chosen in the detailed list"),
        (_, Some(fields)) => Ok(all.only(fields.iter().map(String::as_str))),
        (Some(true), None) => Ok(whole(request)),
        (_, None) if detail_path => Ok(whole(request)),
        (_, None) => {
            let ironics = request.headers.contains_key(IRONIC_VERSION);
            let own = if ironics { &[][..] } else { OWN };
            Ok(all.only(DEFAULT.iter().chain(own).copied()))
        }
    }
}

/// All columns. openstacksdk makes arguments of a body's fields, and has an argument `connection` of its own.
fn whole(request: &Request) -> Chosen {
    let is_ironics = request.headers.contains_key(IRONIC_VERSION);
    Chosen::all(request.ironic()).without(if is_ironics { &["connection"] } else { &[] })
}

fn check_marker(page: &Page) -> Result<(), ApiError> {
    match &page.marker {
        Some(marker) if marker.parse::<Uuid>().is_err() => {
            Err(ApiError::from(BadQuery::value("marker", marker, "it is the uuid of a node")))
        }
        _ => Ok(()),
    }
}

/// `GET /v1/nodes/{node}`.
pub(super) fn get(api: &Api, request: &Request) -> HandlerResult {
    let model = api.model();
    let fields = read_fields(&request.query, request.ironic())?;
    let node = NodeSpec::locate(&model, request)?;
    let chosen = |fields: Vec<String>| Chosen::all(request.ironic()).only(fields.iter().map(String::as_str));
    let columns = fields.map_or_else(|| whole(request), chosen);
    let body = columns.body(&Row::new(api, &model, &node, &request.base));
    Ok(Reply::ok(body.into()).tagged(node.meta.resource_version))
}

/// A field of a later version than the request's is refused, as Ironic refuses it.
fn check_version(fields: &Map<String, Value>, version: Minor) -> Result<(), ApiError> {
    let since: BTreeMap<&str, Minor> = [("name", since::NAMES), ("resource_class", since::RESOURCE_CLASS)].into();
    match since.iter().find(|(name, since)| version < **since && fields.contains_key(**name)) {
        Some((name, _)) => {
            let message = format!("the field {name} is not there in version 1.{}", version.0);
            Err(ApiError::new(ErrorType::RequestNotAcceptable, message).field(*name))
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
