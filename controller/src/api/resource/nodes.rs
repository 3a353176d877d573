//! Nodes, with the bodies, filters, pages and errors of Ironic's API, and additional fields for what Stemma knows of a
//! host.

use std::sync::Arc;

use serde_json::{Map, Value};
use stemma_core::catalog::SuggestionCache;
use stemma_core::fleet::{Levels, NodeSet};
use stemma_core::name::{NodeName, host_uuid_error, is_uuid_like};
use stemma_core::object::{Kind, Node, NodeId, NodeSpec};
use stemma_core::origin::Level;
use stemma_core::selector::Selector;
use stemma_wire::endpoint::{Endpoint, MinorVersion, field_min_version, min_versions};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::columns::{ColumnSet, NodeRow};
use super::filter::FilterDef;
use super::lists::{Detail, ListPage};
use super::objects::{ApiResource, check_computed};
use super::{node_filters, state, stored};
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::api::http::version::OpenStackApi;
use crate::cache::Model;
use crate::cache::model::ListOrder;
use crate::registry::DecisionError;
use crate::registry::work::{PendingWrite, not_found};

impl ApiResource for NodeSpec {
    const LEVEL: Option<Level> = Some(Level::Node);
    const LIST: &'static str = "nodes";
    const FILTERS: &'static [FilterDef<Self>] = node_filters::FILTERS;
    const UPSTREAM_NAMES: &'static [(&'static str, &'static str)] = &[("maintenance", "parked")];
    const COMPUTED: &'static [&'static str] = &["boot_mode", "secure_boot"];

    /// Returns the nodes of a set in the order of a list, beginning after the node `after`. If the fleet has no index,
    /// returns all visible nodes, also those outside the set.
    fn walk<'m>(
        model: &'m Model,
        candidates: NodeSet,
        order: ListOrder,
        after: Option<&Node>,
        is_descending: bool,
    ) -> Box<dyn Iterator<Item = &'m Arc<Node>> + 'm> {
        let in_cluster = model.visible_cluster.map(|cluster| model.fleet.cluster_set(cluster));
        let candidates = NodeSet::AllOf([candidates].into_iter().chain(in_cluster).collect());
        let ids: Option<Box<dyn Iterator<Item = NodeId>>> = match order {
            ListOrder::Created => model.fleet.walk(candidates, after.map(Node::id), is_descending).map(|ids| Box::new(ids) as _),
            ListOrder::Name => model.fleet.walk_by_name(&candidates, after, is_descending),
        };
        match ids {
            Some(ids) => Box::new(ids.filter_map(|id| model.nodes.get(id.0))),
            None => Box::new(model.nodes.iter_from(order, after, is_descending)),
        }
    }

    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Node>, ApiError> {
        locate(model, request.param("node"), request.ironic_version())
    }

    fn show(api: &Api, model: &Model, object: &Node, base: &str) -> Map<String, Value> {
        node_body(api, model, object, base, OpenStackApi::Baremetal.version_range().1)
    }

    /// Removes the uuid and the name of a new node from its body, and returns them. A node needs a name or, as in
    /// Ironic, a driver.
    fn identify(request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, Option<NodeName>), ApiError> {
        check_version(fields, request.ironic_version())?;
        if ["driver", "name"].iter().all(|field| fields.get(*field).is_none_or(Value::is_null)) {
            let message = "a node needs a name, or (as in Ironic's API) a driver";
            return Err(ApiError::new(ErrorType::FieldMissing, message).field("driver"));
        }
        Ok((new_uuid(fields)?, new_name(fields)?))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    /// Returns the response body, with the fields that exist in the client's version of Ironic's API.
    fn after_create(
        api: &Api,
        work: &mut PendingWrite<'_>,
        request: &HttpRequest,
        node: &Node,
    ) -> Result<Map<String, Value>, ApiError> {
        Ok(node_body(api, &work.model, node, &request.base_url, request.ironic_version()))
    }

    /// Returns the levels above a node: its group and the levels above the group.
    fn parent_levels<'m>(model: &'m Model, spec: &Self) -> Levels<'m> {
        spec.nodegroup.map(|id| model.fleet.group_levels(id)).unwrap_or_default()
    }

    fn is_selected(model: &Model, node: &Node, selector: &Selector) -> bool {
        model.fleet.selects(node, selector)
    }

    fn remove(work: &mut PendingWrite<'_>, node: &Arc<Node>) -> Result<(), DecisionError> {
        work.delete_node(node)
    }

    fn path(object: &Node) -> String {
        Endpoint::GetNode.path(&[&object.meta.uuid.to_string()])
    }

    /// Refuses fields that a write of a node cannot change: `reports` and `traits`.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        check_no_reports(body.get("reports").is_some_and(|value| !value.is_null()))?;
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

    fn default_name() -> Result<Option<NodeName>, ApiError> {
        Ok(None)
    }
}

/// Refuses a body with the field `reports`, because only hosts report.
///
/// # Errors
/// Fails if `has_reports` is true.
pub(super) fn check_no_reports(has_reports: bool) -> Result<(), ApiError> {
    if !has_reports {
        return Ok(());
    }
    let message =
        "reports is a field of manifests for `stemma resolve` without a controller; a controller accepts reports from hosts only";
    Err(ApiError::new(ErrorType::FieldInvalid, message).field("reports"))
}

/// Finds a node as Ironic does. A text that looks like a uuid must be the canonical form of the node's uuid. Any other
/// text must be the node's name. In a `version` of Ironic's API without names, no node is found by name.
///
/// # Errors
/// [`ErrorType::FieldInvalid`] if the text can be neither a uuid nor a name. [`ErrorType::ObjectNotFound`] if there is
/// no such node.
pub(super) fn locate(model: &Model, id: &str, version: MinorVersion) -> Result<Arc<Node>, ApiError> {
    let no_such_node = || not_found(Kind::Node, id);
    if is_uuid_like(id) {
        let uuid: Uuid = id.parse().map_err(|_| no_such_node())?;
        return model.nodes.get(uuid).filter(|_| uuid.to_string() == id).cloned().ok_or_else(no_such_node);
    }
    if !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)) || id.len() > 255 {
        let message = format!("Expected UUID or name for node: {}.", quote(id));
        return Err(ApiError::new(ErrorType::FieldInvalid, message));
    }
    if version < min_versions::NAMES {
        return Err(no_such_node());
    }
    model.nodes.get_by_name(None, id).cloned().ok_or_else(no_such_node)
}

/// Returns the whole body of a node, with the fields that exist in this version of Ironic's API.
fn node_body(api: &Api, model: &Model, node: &Node, base: &str, version: MinorVersion) -> Map<String, Value> {
    ColumnSet::all(version).body(&NodeRow::new(api, model, node, base, &SuggestionCache::default()))
}

/// `GET /v1/nodes` and `GET /v1/nodes/detail`: returns a page of nodes with the selected columns.
pub(super) fn list(api: &Api, request: &HttpRequest, detail: Detail) -> HandlerResult {
    let model = api.model();
    let columns = columns(request, detail == Detail::Full)?;
    let rows = ListPage::read(api, &model, request)?;
    let (api, model, base, cache) = (api.clone(), Arc::clone(&model), request.base_url.clone(), SuggestionCache::default());
    let row = move |node: &Node, text: &mut Vec<u8>| columns.write(&NodeRow::new(&api, &model, node, &base, &cache), text);
    Ok(rows.into_stream(NodeSpec::LIST, row))
}

/// Returns the columns of a list: the fields that the request selects, all fields for a list with details, or else the
/// default ones. `detail_path` is true for `/v1/nodes/detail`. A request for all details that also selects fields is
/// refused, as in Ironic.
fn columns(request: &HttpRequest, detail_path: bool) -> Result<ColumnSet, ApiError> {
    let detail = request.query.flag("detail")?;
    let refuse = |value: &str, rule: &str| Err(BadQuery::bad_value("detail", value, rule).into());
    match (detail, &request.fields.requested) {
        (Some(true), Some(_)) => refuse("true", "it can't be combined with fields"),
        (_, Some(_)) if detail_path => refuse("…", "fields can't be chosen in the detailed list"),
        (Some(true), None) => Ok(all_columns(request)),
        (_, None) if detail_path => Ok(all_columns(request)),
        (_, _) => Ok(ColumnSet::all(request.ironic_version()).only(|field| request.fields.has(field, false))),
    }
}

/// Returns all columns that the client can read. `OpenStack`'s Python library passes the fields of a body as arguments,
/// and already has an argument `connection`. So Ironic's clients do not get that column.
fn all_columns(request: &HttpRequest) -> ColumnSet {
    ColumnSet::all(request.ironic_version()).without(if request.versions.is_ironic_client { &["connection"] } else { &[] })
}

/// `GET /v1/nodes/{node}`: returns one node, with the fields that the request selects.
pub(super) fn get(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let selected_columns = || ColumnSet::all(request.ironic_version()).only(|field| request.fields.has(field, true));
    let columns = if request.fields.requested.is_some() { selected_columns() } else { all_columns(request) };
    let cache = SuggestionCache::default();
    let mut body = columns.body(&NodeRow::new(api, &model, &node, &request.base_url, &cache).single());
    stored::add_stored(api, &model, request, &node.spec, &mut body)?;
    Ok(HttpResponse::ok(body.into()).with_etag(node.meta.resource_version))
}

/// Fails if a field is newer than the request's version, as in Ironic.
fn check_version(fields: &Map<String, Value>, version: MinorVersion) -> Result<(), ApiError> {
    match fields.keys().find(|name| version < field_min_version(name)) {
        Some(name) => {
            let message = format!("the field {name} does not exist in version 1.{}", version.0);
            Err(ApiError::new(ErrorType::RequestNotAcceptable, message).field(name.as_str()))
        }
        None => Ok(()),
    }
}

/// Removes the uuid of a new object from its body, and returns it. Without a uuid, returns a new one. Fails if a host
/// could not have this uuid.
pub(super) fn new_uuid(fields: &mut Map<String, Value>) -> Result<Uuid, ApiError> {
    let Some(value) = fields.remove("uuid").filter(|value| !value.is_null()) else { return Ok(Uuid::now_v7()) };
    let invalid = || ApiError::new(ErrorType::FieldInvalid, format!("Invalid UUID: {}", quote(&value.to_string()))).field("uuid");
    let uuid = value.as_str().and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
    match host_uuid_error(uuid) {
        Some(reason) => Err(invalid().detail(reason)),
        None => Ok(uuid),
    }
}

/// Removes the name of a new node from its body, and returns it. A node may have no name.
fn new_name(fields: &mut Map<String, Value>) -> Result<Option<NodeName>, ApiError> {
    match fields.remove("name") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => <NodeSpec as crate::cache::model::Resource>::parse_name(&name),
        Some(value) => Err(ApiError::new(ErrorType::FieldInvalid, format!("a node's name is a text, not {value}")).field("name")),
    }
}

/// `GET /v1/nodes/{node}/report`: returns what the host reported, and the results of its tasks.
pub(super) fn report(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(HttpResponse::ok(state::report_json(&model, &node)))
}
