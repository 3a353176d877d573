//! The handlers of namespaces, the objects of the catalogue.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::catalog::{self, remove_read_only_members, with_prefixed_properties};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::SpecFields as _;
use stemma_core::name::NamespaceName;
use stemma_core::object::{
    Association, Dates, Definition, Kind, NamedItem, Namespace, NamespaceSpec, NamespaceTag, Object, Visibility,
};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::super::objects::{ApiResource, read_body, update};
use super::super::writes;
use super::body::{self, check_read_only};
use super::page::SortedPageQuery;
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::request::StoredAnswer;
use crate::registry::DecisionError;
use crate::registry::work::{PendingWrite, not_found};

/// Maximum number of namespaces on a page if the request has no `limit`.
const DEFAULT_PAGE_ROWS: usize = 25;
/// The fields that a PUT replaces. If its body lacks one, the field is removed, and `owner` becomes the caller.
const REPLACED_FIELDS: [&str; 5] = ["display_name", "description", "visibility", "protected", "owner"];
/// The fields with the items of a namespace. A PUT checks the items in its body, and leaves the stored items unchanged.
const ITEM_FIELDS: [&str; 4] = [Association::LIST, "properties", Definition::LIST, NamespaceTag::LIST];

impl ApiResource for NamespaceSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "namespaces";

    /// Finds the namespace that the path names.
    fn locate(model: &Model, request: &HttpRequest) -> Result<Arc<Namespace>, ApiError> {
        let id = request.param("namespace");
        model.namespaces.get_by_name(None, id).cloned().ok_or_else(|| not_found(Kind::Namespace, id))
    }

    fn path(namespace: &Namespace) -> String {
        Endpoint::GetNamespace.path(&[&namespace.meta.name])
    }

    fn show(_api: &Api, _model: &Model, namespace: &Namespace, _base: &str) -> Map<String, Value> {
        body::full_body(namespace)
    }

    /// Returns a new uuid and the name of a new namespace. Removes the name from the body. If the body names no owner,
    /// the caller becomes the owner.
    fn identify(request: &HttpRequest, fields: &mut Map<String, Value>) -> Result<(Uuid, NamespaceName), ApiError> {
        check_read_only(fields)?;
        fields.entry("owner").or_insert_with(|| request.principal_name().into());
        Ok((Uuid::now_v7(), take_name(fields)?))
    }

    fn new_spec(_model: &Model, _request: &HttpRequest) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    /// Returns the response body for a new namespace. No other object is created with it.
    fn after_create(
        _api: &Api,
        _work: &mut PendingWrite<'_>,
        _request: &HttpRequest,
        namespace: &Namespace,
    ) -> Result<Map<String, Value>, ApiError> {
        Ok(body::created_body(namespace))
    }

    fn remove(work: &mut PendingWrite<'_>, namespace: &Arc<Object<Self>>) -> Result<(), DecisionError> {
        work.delete_namespace(namespace)
    }

    /// Removes read-only fields from a body and its items, because a client may send back an earlier answer.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        remove_read_only_members(body);
        Ok(())
    }
}

/// Removes the name of the namespace from a body, and returns it. Fails if the name is missing or not valid.
fn take_name(fields: &mut Map<String, Value>) -> Result<NamespaceName, ApiError> {
    match fields.remove("namespace") {
        Some(Value::String(name)) => NamespaceSpec::parse_name(&name).map_err(|refusal| refusal.field("namespace")),
        Some(_) => Err(ApiError::new(ErrorType::FieldInvalid, "namespace is a text").field("namespace")),
        None => Err(ApiError::new(ErrorType::FieldMissing, "'namespace' is a required property").field("namespace")),
    }
}

/// `GET` of a page of namespaces. The parameters `visibility` and `resource_types` select namespaces.
pub(in super::super) fn list(api: &Api, request: &HttpRequest) -> HandlerResult {
    let parameters = &request.query;
    let page = SortedPageQuery::read(parameters, "namespace")?.with_default_limit(DEFAULT_PAGE_ROWS);
    let visibility = match parameters.get("visibility")? {
        None => None,
        Some("public") => Some(Visibility::Public),
        Some("private") => Some(Visibility::Private),
        Some(other) => return Err(BadQuery::bad_value("visibility", other, "it is public or private").into()),
    };
    let types = parameters.list("resource_types")?;
    let is_match = |namespace: &Namespace| {
        let has_type = |name: &&str| namespace.spec.item::<Association>(name).is_some();
        visibility.is_none_or(|requested| requested == namespace.spec.visibility)
            && types.as_ref().is_none_or(|types| types.iter().any(has_type))
    };
    let model = api.model();
    let matches = model.namespaces.iter().filter(|namespace| is_match(namespace)).collect();
    let sort_keys = |namespace: &&Arc<Namespace>| {
        let meta = &namespace.meta;
        (meta.name.to_string(), Dates { created_at: meta.created_at, updated_at: meta.updated_at })
    };
    let rows = page.page_rows(matches, Kind::Namespace, sort_keys)?;
    // Only after a full page there may be a next page.
    let last = rows.last().filter(|_| Some(rows.len()) == page.limit).map(|row| row.meta.name.to_string());
    let rows: Vec<Value> = rows.into_iter().map(|namespace| body::list_row(namespace).into()).collect();
    let mut body = json!({
        "namespaces": rows, "first": list_link(request, None),
        "schema": Endpoint::GetSchema.path(&["namespaces"]),
    });
    if let Some(last) = last {
        body["next"] = list_link(request, Some(&last)).into();
    }
    Ok(HttpResponse::ok(body))
}

/// Returns the path of the list with the parameters of the request, except that `marker` replaces the marker of the
/// request.
fn list_link(request: &HttpRequest, marker: Option<&str>) -> String {
    let without_marker = request.query.pairs().filter(|(name, _)| *name != "marker");
    let pairs = without_marker.chain(marker.map(|marker| ("marker", marker)));
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    let path = Endpoint::ListNamespaces.path(&[]);
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// `POST`: creates a namespace with all items of the body.
pub(in super::super) async fn create(api: &Api, request: &HttpRequest) -> HandlerResult {
    writes::post::<NamespaceSpec>(api, request).await
}

/// `GET` of one namespace. With `resource_type`, the prefix of the association with that type is added to the name of
/// each property. With `owners`, the owners of fields are included.
pub(in super::super) fn get(api: &Api, request: &HttpRequest) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let mut answer = match request.query.get("resource_type")? {
        None => body::full_body(&namespace),
        Some(name) => {
            let spec = with_prefixed_properties(&namespace.spec, name);
            body::full_body(&Namespace { meta: namespace.meta.clone(), spec })
        }
    };
    if request.query.flag("owners")? == Some(true) {
        answer.insert("field_owners".into(), json!(namespace.spec.owners()));
    }
    Ok(HttpResponse::ok(answer.into()).with_etag(namespace.meta.resource_version))
}

/// `PUT`: replaces the namespace's own fields except absent `labels`, and leaves its items unchanged. Without `owner`,
/// the caller becomes the owner. If the body has another name, the namespace is renamed.
pub(in super::super) async fn put(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let mut fields = request.object()?;
    check_read_only(&fields)?;
    let name = take_name(&mut fields)?;
    fields.entry("owner").or_insert_with(|| caller.requester.name.clone().into());
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        let body_spec = read_body::<NamespaceSpec>(fields.clone())?;
        // The items in the body are only checked. The name of a stored item is accepted even if a new item could not
        // have it, because a client may send back a body that it read.
        update(api, work, &namespace.spec, &body_spec, &caller, BodyShape::Native)?;
        let mut own_fields = fields.clone();
        own_fields.retain(|name, _| !ITEM_FIELDS.contains(&name.as_str()));
        // `null` removes a stored field that the body lacks.
        for field in REPLACED_FIELDS {
            own_fields.entry(field).or_insert(Value::Null);
        }
        namespace.meta.name = name.clone();
        let own_spec = read_body::<NamespaceSpec>(own_fields)?;
        namespace.spec = update(api, work, &namespace.spec, &own_spec, &caller, BodyShape::Native)?;
        Ok(())
    };
    let answer = |_: &Model, namespace: &Namespace| StoredAnswer::json(200, body::own_fields(namespace).into());
    writes::change(api, request, &caller, edit, answer).await
}

/// `GET /v2/schemas/metadefs/{schema}`: returns the JSON schema of namespaces or their items.
pub(in super::super) fn schema(_api: &Api, request: &HttpRequest) -> HandlerResult {
    let name = request.param("schema");
    let not_found_error = || ApiError::new(ErrorType::ObjectNotFound, format!("there is no schema {}", quote(name)));
    catalog::schema(name).map(HttpResponse::ok).ok_or_else(not_found_error)
}
