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
use stemma_wire::endpoint::{Endpoint, Minor, field_min_version, min_versions};
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

    /// Returns the nodes of a set in the order of a list, from the indexes of the fleet if they can give that order.
    fn walk<'m>(
        model: &'m Model,
        among: NodeSet,
        by: ListOrder,
        after: Option<&Node>,
        descending: bool,
    ) -> Box<dyn Iterator<Item = &'m Arc<Node>> + 'm> {
        let in_cluster = model.visible_cluster.map(|cluster| model.fleet.cluster_set(cluster));
        let among = NodeSet::AllOf([among].into_iter().chain(in_cluster).collect());
        let ids: Option<Box<dyn Iterator<Item = NodeId>>> = match by {
            ListOrder::Created => model.fleet.walk(among, after.map(Node::id), descending).map(|found| Box::new(found) as _),
            ListOrder::Name => model.fleet.walk_by_name(&among, after, descending),
        };
        match ids {
            Some(ids) => Box::new(ids.filter_map(|id| model.nodes.get(id.0))),
            None => Box::new(model.nodes.iter_from(by, after, descending)),
        }
    }

    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Node>, ApiError> {
        locate(model, request.param("node"), request.ironic_version())
    }

    fn show(api: &Api, model: &Model, object: &Node, base: &str) -> Map<String, Value> {
        node_body(api, model, object, base, OpenStackApi::Baremetal.version_range().1)
    }

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

    fn after_create(
        api: &Api,
        work: &mut PendingWrite<'_>,
        request: &HttpRequest,
        node: &Node,
    ) -> Result<Map<String, Value>, ApiError> {
        Ok(node_body(api, &work.model, node, &request.base_url, request.ironic_version()))
    }

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

/// Finds a node as Ironic does. A text in the form of a uuid is a uuid, and must be in its canonical form. Any other
/// text must be a name.
///
/// # Errors
/// [`ErrorType::FieldInvalid`] if the text is neither; [`ErrorType::ObjectNotFound`] if there is no such node.
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
    if version < min_versions::NAMES {
        return Err(missing());
    }
    model.nodes.get_by_name(None, id).cloned().ok_or_else(missing)
}

/// Returns the whole body of a node, with the fields that exist in this version of Ironic's API.
fn node_body(api: &Api, model: &Model, node: &Node, base: &str, version: Minor) -> Map<String, Value> {
    ColumnSet::all(version).body(&NodeRow::new(api, model, node, base, &SuggestionCache::default()))
}

/// `GET /v1/nodes` and `GET /v1/nodes/detail`: a page of nodes with the selected columns.
pub(super) fn list(api: &Api, request: &HttpRequest, detail: Detail) -> HandlerResult {
    let model = api.model();
    let columns = columns(request, detail == Detail::Full)?;
    let rows = ListPage::read(api, &model, request)?;
    let (api, model, base, cache) = (api.clone(), Arc::clone(&model), request.base_url.clone(), SuggestionCache::default());
    let row = move |node: &Node, text: &mut Vec<u8>| columns.write(&NodeRow::new(&api, &model, node, &base, &cache), text);
    Ok(rows.into_stream(NodeSpec::LIST, row))
}

/// Returns the columns of a list: the fields that the request selects, all of them for details, or the default ones.
/// `detail_path` is true for `/v1/nodes/detail`.
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

/// Returns all columns that the client can read. openstacksdk turns the fields of a body into arguments and has an
/// argument `connection` of its own, so Ironic's clients do not get that column.
fn all_columns(request: &HttpRequest) -> ColumnSet {
    ColumnSet::all(request.ironic_version()).without(if request.versions.is_ironic_client { &["connection"] } else { &[] })
}

/// `GET /v1/nodes/{node}`: one node, with the fields that the request selects.
pub(super) fn get(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    let chosen = || ColumnSet::all(request.ironic_version()).only(|field| request.fields.has(field, true));
    let columns = if request.fields.requested.is_some() { chosen() } else { all_columns(request) };
    let cache = SuggestionCache::default();
    let mut body = columns.body(&NodeRow::new(api, &model, &node, &request.base_url, &cache).single());
    stored::add_stored(api, &model, request, &node.spec, &mut body)?;
    Ok(HttpResponse::ok(body.into()).with_etag(node.meta.resource_version))
}

/// Fails if a field is newer than the request's version, as in Ironic.
fn check_version(fields: &Map<String, Value>, version: Minor) -> Result<(), ApiError> {
    match fields.keys().find(|name| version < field_min_version(name)) {
        Some(name) => {
            let message = format!("the field {name} does not exist in version 1.{}", version.0);
            Err(ApiError::new(ErrorType::RequestNotAcceptable, message).field(name.as_str()))
        }
        None => Ok(()),
    }
}

pub(super) fn new_uuid(fields: &mut Map<String, Value>) -> Result<Uuid, ApiError> {
    let Some(value) = fields.remove("uuid").filter(|value| !value.is_null()) else { return Ok(Uuid::now_v7()) };
    let invalid = || ApiError::new(ErrorType::FieldInvalid, format!("Invalid UUID: {}", quote(&value.to_string()))).field("uuid");
    let uuid = value.as_str().and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
    match host_uuid_error(uuid) {
        Some(why) => Err(invalid().detail(why)),
        None => Ok(uuid),
    }
}

fn new_name(fields: &mut Map<String, Value>) -> Result<Option<NodeName>, ApiError> {
    match fields.remove("name") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => <NodeSpec as crate::cache::model::Resource>::parse_name(&name),
        Some(other) => Err(ApiError::new(ErrorType::FieldInvalid, format!("a node's name is a text, not {other}")).field("name")),
    }
}

/// `GET /v1/nodes/{node}/report`: what the host reported, and the results of its tasks.
pub(super) fn report(api: &Api, request: &HttpRequest) -> HandlerResult {
    let model = api.model();
    let node = NodeSpec::locate(&model, request)?;
    Ok(HttpResponse::ok(state::report_json(&model, &node)))
}
