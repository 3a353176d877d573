//! What has a name in a list of a namespace: resource types, objects and tags.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::field::truth;
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{check_member_name, read_value};
use stemma_core::name::{near, suggest};
use stemma_core::object::{Association, Kind, Member, Namespace, NamespaceSpec, NamespaceTag, Timestamp};
use stemma_wire::endpoint::Header;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::super::objects::{Shown as _, read_body, update};
use super::super::writes;
use super::body::{Listed, check_written, time};
use super::page::{Page, limit};
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::Caller;
use crate::registry::admit::{bad_field, of_part};
use crate::registry::work::{Work, check_unprotected};

/// The list of one kind in a namespace, changed.
fn edited<M: Listed>(
    api: &Api,
    work: &Work<'_>,
    spec: &NamespaceSpec,
    caller: &Caller,
    edit: impl FnOnce(&mut Vec<M>),
) -> Result<NamespaceSpec, ApiError> {
    let mut members = M::all(spec).to_vec();
    edit(&mut members);
    let body = read_body::<NamespaceSpec>([(M::LIST.to_owned(), json!(members))].into_iter().collect())?;
    update(api, work, spec, &body, caller, BodyShape::Own)
}

fn read<M: Listed>(request: &Request) -> Result<M, ApiError> {
    let body = request.object()?;
    check_written(&body)?;
    read_value(&body.into()).map_err(|error| bad_field(M::WORD, &error))
}

fn find<'n, M: Listed>(namespace: &'n Namespace, name: &str) -> Result<&'n M, ApiError> {
    let missing = || {
        let known = M::all(&namespace.spec).iter().map(Member::name);
        let message = format!(
            "Namespace {} has no {} {}{}.",
            namespace.meta.name,
            M::WORD,
            quote(name),
            suggest(near(name, known))
        );
        ApiError::new(ErrorType::ObjectNotFound, message)
    };
    namespace.spec.member(name).ok_or_else(missing)
}

fn check_free<M: Listed>(namespace: &Namespace, name: &str) -> Result<(), ApiError> {
    if namespace.spec.member::<M>(name).is_none() {
        return Ok(());
    }
    let message = format!("Namespace {} has a {} {} already.", namespace.meta.name, M::WORD, quote(name));
    Err(ApiError::new(ErrorType::ObjectExists, message).field("name"))
}

/// Checks a name that nothing of the kind has yet; `field` is where it stands in the body.
fn check_new<M: Listed>(name: &str, field: &str) -> Result<(), ApiError> {
    check_member_name(name).map_err(|error| bad_field(M::WORD, &error.within(field)))
}

/// The refusal of one of them in its list, as that of a request whose body is it alone.
fn of_member<M: Listed>(refusal: ApiError, at: usize) -> ApiError {
    of_part(refusal, &format!("{}[{at}]", M::LIST))
}

/// The answer that shows one of them.
fn one<M: Listed>(status: u16, namespace: &Namespace, name: &str) -> Answer {
    let shown = namespace.spec.member::<M>(name).map(|member| Value::Object(member.shown(namespace)));
    Answer::json(status, shown.unwrap_or_default())
}

/// `POST`: adds one.
pub(in super::super) async fn create<M: Listed>(api: &Api, request: &Request) -> HandlerResult {
    add(api, request, read::<M>(request)?).await
}

async fn add<M: Listed>(api: &Api, request: &Request, member: M) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        check_free::<M>(namespace, member.name())?;
        check_new::<M>(member.name(), "name")?;
        let at = M::all(&namespace.spec).len();
        namespace.spec = edited::<M>(api, work, &namespace.spec, &caller, |all| all.push(member.clone()))
            .map_err(|refusal| of_member::<M>(refusal, at))?;
        Ok(())
    };
    let answer = |_: &Model, namespace: &Namespace| one::<M>(201, namespace, member.name());
    writes::change(api, request, &caller, edit, answer).await
}

/// `GET` of one.
pub(in super::super) fn get<M: Listed>(api: &Api, request: &Request) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let member = find::<M>(&namespace, request.part(M::PART))?;
    Ok(Reply::ok(member.shown(&namespace).into()).tagged(namespace.meta.resource_version))
}

/// `PUT`: replaces one, under the name that the body gives.
pub(in super::super) async fn put<M: Listed>(api: &Api, request: &Request) -> HandlerResult {
    let (caller, name, next) = (request.caller()?, request.part(M::PART), read::<M>(request)?);
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        find::<M>(namespace, name)?;
        if next.name() != name {
            check_free::<M>(namespace, next.name())?;
            check_new::<M>(next.name(), "name")?;
        }
        let replace = |all: &mut Vec<M>| {
            for member in all.iter_mut().filter(|member| member.name() == name) {
                member.clone_from(&next);
            }
        };
        let at = M::all(&namespace.spec).iter().position(|member| member.name() == name).unwrap_or_default();
        namespace.spec =
            edited(api, work, &namespace.spec, &caller, replace).map_err(|refusal| of_member::<M>(refusal, at))?;
        Ok(())
    };
    let answer = |_: &Model, namespace: &Namespace| one::<M>(200, namespace, next.name());
    writes::change(api, request, &caller, edit, answer).await
}

/// `DELETE` of one.
pub(in super::super) async fn remove<M: Listed>(api: &Api, request: &Request) -> HandlerResult {
    let (caller, name) = (request.caller()?, request.part(M::PART));
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        find::<M>(namespace, name)?;
        namespace.spec = edited::<M>(api, work, &namespace.spec, &caller, |all| all.retain(|one| one.name() != name))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| Answer::empty(204)).await
}

/// `DELETE` of all.
pub(in super::super) async fn clear<M: Listed>(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        check_unprotected(namespace)?;
        namespace.spec = edited::<M>(api, work, &namespace.spec, &caller, Vec::clear)?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| Answer::empty(204)).await
}

/// `POST` of a tag by its path alone.
pub(in super::super) async fn create_tag(api: &Api, request: &Request) -> HandlerResult {
    if !request.body.is_empty() {
        return Err(ApiError::new(ErrorType::RequestMalformed, "A body is not expected with this request."));
    }
    add(api, request, NamespaceTag { name: request.part(NamespaceTag::PART).to_owned() }).await
}

/// `POST` of a list of tags: replaces those that are there, or adds to them. An empty list changes nothing.
pub(in super::super) async fn replace_tags(api: &Api, request: &Request) -> HandlerResult {
    let caller = request.caller()?;
    let given = read_tags(request)?;
    let append = appends(request)?;
    let edit = |work: &Work<'_>, namespace: &mut Namespace| {
        let mut names = BTreeSet::new();
        for (at, tag) in given.iter().enumerate() {
            let field = format!("tags[{at}].name");
            if !names.insert(&tag.name) {
                let message = format!("the tag {} stands there twice; nothing was changed", quote(&tag.name));
                return Err(ApiError::new(ErrorType::ObjectExists, message).field(field));
            }
            let stands = namespace.spec.member::<NamespaceTag>(&tag.name).is_some();
            if !stands {
                check_new::<NamespaceTag>(&tag.name, &field)?;
            } else if append {
                check_free::<NamespaceTag>(namespace, &tag.name).map_err(|refusal| refusal.field(field))?;
            }
        }
        let replace = |all: &mut Vec<NamespaceTag>| {
            if !append && !given.is_empty() {
                all.clear();
            }
            all.extend(given.iter().cloned());
        };
        namespace.spec = edited(api, work, &namespace.spec, &caller, replace)?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| Answer::json(201, json!({"tags": given}))).await
}

/// Whether the tags are added to those that are there. Glance takes any word that it does not know for a no, and so takes all tags away
/// for a misspelt one.
fn appends(request: &Request) -> Result<bool, ApiError> {
    let Some(append) = request.header(Header::Append) else { return Ok(false) };
    truth(&append).ok_or_else(|| {
        let message =
            format!("{} is {}, neither true nor false; nothing was changed", Header::Append.name(), quote(&append));
        ApiError::new(ErrorType::RequestMalformed, message)
            .detail("write True to add to the tags that are there, or False to replace them")
    })
}

fn read_tags(request: &Request) -> Result<Vec<NamespaceTag>, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Tags {
        tags: Vec<NamespaceTag>,
    }
    let body = request.object()?;
    read_value::<Tags>(&body.into()).map(|body| body.tags).map_err(|error| bad_field("tags", &error))
}

/// `GET` of a namespace's tags: a page of their names.
pub(in super::super) fn list_tags(api: &Api, request: &Request) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let page = Page::read(&request.query, "name")?;
    let of = |tag: &NamespaceTag| (tag.name.clone(), namespace.spec.dates_of::<NamespaceTag>(&tag.name));
    let tags = page.cut(namespace.spec.tags.clone(), Kind::Namespace, of)?;
    Ok(Reply::ok(json!({"tags": tags})).tagged(namespace.meta.resource_version))
}

/// `GET` of a namespace's objects. Glance looks at `limit` and gives all of them.
pub(in super::super) fn list_definitions(api: &Api, request: &Request) -> HandlerResult {
    if limit(&request.query)? == Some(0) {
        return Err(BadQuery::value("limit", "0", "it is a whole number from 1 on").into());
    }
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let objects: Vec<Value> = namespace.spec.objects.iter().map(|object| object.shown(&namespace).into()).collect();
    let body = json!({"objects": objects, "schema": "v2/schemas/metadefs/objects"});
    Ok(Reply::ok(body).tagged(namespace.meta.resource_version))
}

/// `GET` of what a namespace applies to.
pub(in super::super) fn list_associations(api: &Api, request: &Request) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let associations = namespace.spec.resource_type_associations.iter();
    let associations: Vec<Value> = associations.map(|one: &Association| one.shown(&namespace).into()).collect();
    let body = json!({"resource_type_associations": associations});
    Ok(Reply::ok(body).tagged(namespace.meta.resource_version))
}

/// `GET /v2/metadefs/resource_types`: those that a namespace applies to, or once did.
pub(in super::super) fn list_resource_types(api: &Api, _request: &Request) -> Reply {
    let model = api.model();
    let row = |(name, made): (&String, &Arc<Timestamp>)| json!({"name": name, "created_at": time(**made), "updated_at": time(**made)});
    let types: Vec<Value> = model.resource_types.iter().map(row).collect();
    Reply::ok(json!({"resource_types": types}))
}
