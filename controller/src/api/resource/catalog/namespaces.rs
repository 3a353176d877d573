//! Namespaces.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::catalog::{self, prefixed, without_read_only};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::Fields as _;
use stemma_core::name::NamespaceName;
use stemma_core::object::{
    Association, Dates, Definition, Kind, Member, Namespace, NamespaceSpec, NamespaceTag, Object, Visibility,
};
use stemma_core::origin::Level;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::super::objects::{Shown, read_body, update};
use super::super::writes;
use super::body::{self, check_written};
use super::page::Page;
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::cache::model::Resource;
use crate::records::request::Answer;
use crate::registry::Undecided;
use crate::registry::work::{Work, not_found};

/// How many namespaces a page has where no `limit` is given.
const A_PAGE: usize = 25;
/// The fields that a PUT replaces, where one that it leaves out is given up.
const REPLACED: [&str; 5] = ["display_name", "description", "visibility", "protected", "owner"];
/// What stands in a namespace: a PUT checks it, and leaves it as it is.
const WITHIN: [&str; 4] = [Association::LIST, "properties", Definition::LIST, NamespaceTag::LIST];

impl Shown for NamespaceSpec {
    const LEVEL: Option<Level> = None;
    const LIST: &'static str = "namespaces";

    fn locate(model: &Model, request: &Request) -> Result<Arc<Namespace>, ApiError> {
        let id = request.part("namespace");
        model.namespaces.named(None, id).cloned().ok_or_else(|| not_found(Kind::Namespace, id))
    }

    fn path(namespace: &Namespace) -> String {
        Endpoint::GetNamespace.path(&[&namespace.meta.name])
    }

    fn show(_api: &Api, _model: &Model, namespace: &Namespace, _base: &str) -> Map<String, Value> {
        body::whole(namespace)
    }

    fn identify(request: &Request, fields: &mut Map<String, Value>) -> Result<(Uuid, NamespaceName), ApiError> {
        check_written(fields)?;
        fields.entry("owner").or_insert_with(|| request.principal().into());
        Ok((Uuid::now_v7(), take_name(fields)?))
    }

    fn blank(_model: &Model, _request: &Request) -> Result<Self, ApiError> {
        Ok(Self::default())
    }

    fn made(
        _api: &Api,
        _work: &mut Work<'_>,
        _request: &Request,
        namespace: &Namespace,
    ) -> Result<Map<String, Value>, ApiError> {
        Ok(body::made(namespace))
    }

    fn remove(work: &mut Work<'_>, namespace: &Arc<Object<Self>>) -> Result<(), Undecided> {
        work.delete_namespace(namespace)
    }

    /// Clients send back the read-only fields of an answer that they read before. They are dropped.
    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        without_read_only(body);
        Ok(())
    }
}

fn take_name(fields: &mut Map<String, Value>) -> Result<NamespaceName, ApiError> {
    match fields.remove("namespace") {
        Some(Value::String(name)) => NamespaceSpec::parse_name(&name).map_err(|refusal| refusal.field("namespace")),
        Some(_) => Err(ApiError::new(ErrorType::FieldInvalid, "namespace is a text").field("namespace")),
        None => Err(ApiError::new(ErrorType::FieldMissing, "'namespace' is a required property").field("namespace")),
    }
}

/// `GET` of a page.
pub(in super::super) fn list(api: &Api, request: &Request) -> HandlerResult {
    let parameters = &request.query;
    let page = Page::read(parameters, "namespace")?.of_at_most(A_PAGE);
    let visibility = match parameters.one("visibility")? {
        None => None,
        Some("public") => Some(Visibility::Public),
        Some("private") => Some(Visibility::Private),
        Some(other) => return Err(BadQuery::value("visibility", other, "it is public or private").into()),
    };
    let types = parameters.list("resource_types")?;
    let keeps = |namespace: &Namespace| {
        let applies = |name: &&str| namespace.spec.member::<Association>(name).is_some();
        visibility.is_none_or(|wanted| wanted == namespace.spec.visibility)
            && types.as_ref().is_none_or(|types| types.iter().any(applies))
    };
    let model = api.model();
    let kept = model.namespaces.iter().filter(|namespace| keeps(namespace)).collect();
    let of = |one: &&Arc<Namespace>| {
        let meta = &one.meta;
        (meta.name.to_string(), Dates { created_at: meta.created_at, updated_at: meta.updated_at })
    };
    let rows = page.cut(kept, Kind::Namespace, of)?;
    let last = rows.last().filter(|_| Some(rows.len()) == page.limit).map(|row| row.meta.name.to_string());
    let rows: Vec<Value> = rows.into_iter().map(|namespace| body::row(namespace).into()).collect();
    let mut body = json!({
        "namespaces": rows, "first": link(request, None),
        "schema": Endpoint::GetSchema.path(&["namespaces"]),
    });
    if let Some(last) = last {
        body["next"] = link(request, Some(&last)).into();
    }
    Ok(Reply::ok(body))
}

/// The list's address with the request's parameters, from a marker on.
fn link(request: &Request, marker: Option<&str>) -> String {
    let own = request.query.pairs().filter(|(name, _)| *name != "marker");
    let pairs = own.chain(marker.map(|marker| ("marker", marker)));
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    let path = Endpoint::ListNamespaces.path(&[]);
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// `POST`: with everything that the body puts into it.
pub(in super::super) async fn create(api: &Api, request: &Request) -> HandlerResult {
    writes::post::<NamespaceSpec>(api, request).await
}

/// `GET` of one, with its properties named as on the resource type that is asked for, and its owners where they are.
pub(in super::super) fn get(api: &Api, request: &Request) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let mut shown = match request.query.one("resource_type")? {
        None => body::whole(&namespace),
        Some(name) => {
            let spec = prefixed(&namespace.spec, name);
            body::whole(&Namespace { meta: namespace.meta.clone(), spec })
        }
    };
    if request.query.flag("owners")? == Some(true) {
        shown.insert("field_owners".into(), json!(namespace.spec.owners_ref()));
    }
    Ok(Reply::ok(shown.into()).tagged(namespace.meta.resource_version))
}

/// `PUT`: replaces its own fields, and renames it.
pub(in super::super) async fn put(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let mut fields = request.object()?;
    check_written(&fields)?;
    let name = take_name(&mut fields)?;
    fields.entry("owner").or_insert_with(|| caller.who.name.clone().into());
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        let within = read_body::<NamespaceSpec>(fields.clone())?;
        // It is checked beside what is stored, which may be sent back whatever it is called.
        update(api, work, &namespace.spec, &within, &caller, BodyShape::Own)?;
        let mut own = fields.clone();
        own.retain(|name, _| !WITHIN.contains(&name.as_str()));
        for field in REPLACED {
            own.entry(field).or_insert(Value::Null);
        }
        namespace.meta.name = name.clone();
        let own = read_body::<NamespaceSpec>(own)?;
        namespace.spec = update(api, work, &namespace.spec, &own, &caller, BodyShape::Own)?;
        Ok(())
    };
    let answer = |_: &Model, namespace: &Namespace| Answer::json(200, body::own(namespace).into());
    writes::change(api, request, &caller, edit, answer).await
}

/// `GET /v2/schemas/metadefs/{schema}`.
pub(in super::super) fn schema(_api: &Api, request: &Request) -> HandlerResult {
    let name = request.part("schema");
    let missing = || ApiError::new(ErrorType::ObjectNotFound, format!("there is no schema {}", quote(name)));
    catalog::schema(name).map(Reply::ok).ok_or_else(missing)
}
