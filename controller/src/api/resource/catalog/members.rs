//! The named items of a namespace: resource type associations, objects and tags.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::field::parse_boolean;
use stemma_core::labels::BodyShape;
use stemma_core::manifest::{check_member_name, read_value};
use stemma_core::name::{closest_match, did_you_mean};
use stemma_core::object::{Association, Kind, NamedItem, Namespace, NamespaceSpec, NamespaceTag, Timestamp};
use stemma_wire::endpoint::RouteHeader;
use stemma_wire::error::{ApiError, ErrorType, quote};

use super::super::objects::{ApiResource as _, read_body, update};
use super::super::writes;
use super::body::{NamespaceItem, check_read_only, format_time};
use super::page::{SortedPageQuery, read_limit};
use crate::api::Api;
use crate::api::http::query::BadQuery;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::cache::Model;
use crate::records::request::StoredAnswer;
use crate::registry::Caller;
use crate::registry::admit::{bad_field, part_refusal};
use crate::registry::work::{PendingWrite, check_unprotected};

/// Returns the spec of a catalogue namespace after `edit` has changed the list of its items of one type. The new list
/// is checked like an update whose body has only this field, and the caller then owns the field.
fn edit_list<M: NamespaceItem>(
    api: &Api,
    work: &PendingWrite<'_>,
    spec: &NamespaceSpec,
    caller: &Caller,
    edit: impl FnOnce(&mut Vec<M>),
) -> Result<NamespaceSpec, ApiError> {
    let mut members = M::items(spec).to_vec();
    edit(&mut members);
    let body = read_body::<NamespaceSpec>([(M::LIST.to_owned(), json!(members))].into_iter().collect())?;
    update(api, work, spec, &body, caller, BodyShape::Native)
}

/// Reads an item from the body of a request. Fails if the body has a read-only field.
fn read_item<M: NamespaceItem>(request: &HttpRequest) -> Result<M, ApiError> {
    let body = request.object()?;
    check_read_only(&body)?;
    read_value(&body.into()).map_err(|error| bad_field(M::ITEM_NAME, &error))
}

/// Finds an item of a namespace by its name. The error suggests the most similar name.
fn find_item<'n, M: NamespaceItem>(namespace: &'n Namespace, name: &str) -> Result<&'n M, ApiError> {
    let not_found_error = || {
        let names = M::items(&namespace.spec).iter().map(NamedItem::item_name);
        let message = format!(
            "Namespace {} has no {} {}{}.",
            namespace.meta.name,
            M::ITEM_NAME,
            quote(name),
            did_you_mean(closest_match(name, names))
        );
        ApiError::new(ErrorType::ObjectNotFound, message)
    };
    namespace.spec.item(name).ok_or_else(not_found_error)
}

/// Fails if the namespace already has an item of this type with this name.
fn check_name_free<M: NamespaceItem>(namespace: &Namespace, name: &str) -> Result<(), ApiError> {
    if namespace.spec.item::<M>(name).is_none() {
        return Ok(());
    }
    let message = format!("Namespace {} has a {} {} already.", namespace.meta.name, M::ITEM_NAME, quote(name));
    Err(ApiError::new(ErrorType::ObjectExists, message).field("name"))
}

/// Checks the name of a new item. Stored names are not checked again, because an older version accepted longer names.
/// `field` is the place of the name in the body.
fn check_new_name<M: NamespaceItem>(name: &str, field: &str) -> Result<(), ApiError> {
    check_member_name(name).map_err(|error| bad_field(M::ITEM_NAME, &error.prefixed(field)))
}

/// Converts the error about an item of a namespace into the error for a request whose body is only the item. `index` is
/// the index of the item in the namespace's list. For example, the field `tags[2].name` becomes `name`.
fn item_error<M: NamespaceItem>(refusal: ApiError, index: usize) -> ApiError {
    part_refusal(refusal, &format!("{}[{index}]", M::LIST))
}

/// Returns the answer that shows one item.
fn item_answer<M: NamespaceItem>(status: u16, namespace: &Namespace, name: &str) -> StoredAnswer {
    let shown = namespace.spec.item::<M>(name).map(|member| Value::Object(member.to_json(namespace)));
    StoredAnswer::json(status, shown.unwrap_or_default())
}

/// `POST`: adds an item (a resource type association or an object definition) to a namespace of the catalogue.
pub(in super::super) async fn create<M: NamespaceItem>(api: &Api, request: &HttpRequest) -> HandlerResult {
    add_item(api, request, read_item::<M>(request)?).await
}

/// Adds an item to a namespace. Fails if the namespace already has an item with this name.
async fn add_item<M: NamespaceItem>(api: &Api, request: &HttpRequest, member: M) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        check_name_free::<M>(namespace, member.item_name())?;
        check_new_name::<M>(member.item_name(), "name")?;
        // The new item becomes the last of the list.
        let index = M::items(&namespace.spec).len();
        namespace.spec = edit_list::<M>(api, work, &namespace.spec, &caller, |items| items.push(member.clone()))
            .map_err(|refusal| item_error::<M>(refusal, index))?;
        Ok(())
    };
    let answer = |_: &Model, namespace: &Namespace| item_answer::<M>(201, namespace, member.item_name());
    writes::change(api, request, &caller, edit, answer).await
}

/// Handles `GET` of an item (an object definition or a tag) of a namespace of the catalogue.
pub(in super::super) fn get<M: NamespaceItem>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let member = find_item::<M>(&namespace, request.param(M::NAME_PARAM))?;
    Ok(HttpResponse::ok(member.to_json(&namespace).into()).with_etag(namespace.meta.resource_version))
}

/// `PUT`: replaces an item of a namespace. If the body has another name, the item is renamed.
pub(in super::super) async fn put<M: NamespaceItem>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, name, new_item) = (request.caller()?, request.param(M::NAME_PARAM), read_item::<M>(request)?);
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        find_item::<M>(namespace, name)?;
        if new_item.item_name() != name {
            check_name_free::<M>(namespace, new_item.item_name())?;
            check_new_name::<M>(new_item.item_name(), "name")?;
        }
        let replace = |members: &mut Vec<M>| {
            for member in members.iter_mut().filter(|member| member.item_name() == name) {
                member.clone_from(&new_item);
            }
        };
        let index = M::items(&namespace.spec).iter().position(|member| member.item_name() == name).unwrap_or_default();
        namespace.spec =
            edit_list(api, work, &namespace.spec, &caller, replace).map_err(|refusal| item_error::<M>(refusal, index))?;
        Ok(())
    };
    let answer = |_: &Model, namespace: &Namespace| item_answer::<M>(200, namespace, new_item.item_name());
    writes::change(api, request, &caller, edit, answer).await
}

/// `DELETE` of an item of a namespace.
pub(in super::super) async fn remove<M: NamespaceItem>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (caller, name) = (request.caller()?, request.param(M::NAME_PARAM));
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        find_item::<M>(namespace, name)?;
        namespace.spec = edit_list::<M>(api, work, &namespace.spec, &caller, |vec| vec.retain(|item| item.item_name() != name))?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| StoredAnswer::empty(204)).await
}

/// `DELETE` of all items of one type. Fails if the namespace is protected.
pub(in super::super) async fn clear<M: NamespaceItem>(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        check_unprotected(namespace)?;
        namespace.spec = edit_list::<M>(api, work, &namespace.spec, &caller, Vec::clear)?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| StoredAnswer::empty(204)).await
}

/// `POST` of a tag whose name is in the path.
pub(in super::super) async fn create_tag(api: &Api, request: &HttpRequest) -> HandlerResult {
    if !request.body.is_empty() {
        return Err(ApiError::new(ErrorType::RequestMalformed, "A body is not expected with this request."));
    }
    add_item(api, request, NamespaceTag { name: request.param(NamespaceTag::NAME_PARAM).to_owned() }).await
}

/// `POST` of a list of tags: replaces the tags of a namespace or, with the header `X-Openstack-Append: True`, adds to
/// them. If tags are added, a tag that the namespace already has is an error. An empty list changes nothing.
pub(in super::super) async fn replace_tags(api: &Api, request: &HttpRequest) -> HandlerResult {
    let caller = request.caller()?;
    let tags = read_tags(request)?;
    let is_append = should_append(request)?;
    let edit = |work: &PendingWrite<'_>, namespace: &mut Namespace| {
        let mut names = BTreeSet::new();
        for (index, tag) in tags.iter().enumerate() {
            let field = format!("tags[{index}].name");
            if !names.insert(&tag.name) {
                let message = format!("the tag {} is in the list twice; nothing was changed", quote(&tag.name));
                return Err(ApiError::new(ErrorType::ObjectExists, message).field(field));
            }
            let exists = namespace.spec.item::<NamespaceTag>(&tag.name).is_some();
            if !exists {
                check_new_name::<NamespaceTag>(&tag.name, &field)?;
            } else if is_append {
                check_name_free::<NamespaceTag>(namespace, &tag.name).map_err(|refusal| refusal.field(field))?;
            }
        }
        let replace = |stored_tags: &mut Vec<NamespaceTag>| {
            if !is_append && !tags.is_empty() {
                stored_tags.clear();
            }
            stored_tags.extend(tags.iter().cloned());
        };
        namespace.spec = edit_list(api, work, &namespace.spec, &caller, replace)?;
        Ok(())
    };
    writes::change(api, request, &caller, edit, |_, _| StoredAnswer::json(201, json!({"tags": tags}))).await
}

/// Returns whether the header `X-Openstack-Append` requests that tags are added instead of replaced. Glance reads an
/// unknown word as false, so a misspelled word removes all tags. In Stemma an unknown word is an error.
fn should_append(request: &HttpRequest) -> Result<bool, ApiError> {
    let Some(append) = request.header(RouteHeader::Append) else { return Ok(false) };
    parse_boolean(&append).ok_or_else(|| {
        let message =
            format!("{} is {}, neither true nor false; nothing was changed", RouteHeader::Append.name(), quote(&append));
        ApiError::new(ErrorType::RequestMalformed, message)
            .detail("write True to add to the existing tags, or False to replace them")
    })
}

fn read_tags(request: &HttpRequest) -> Result<Vec<NamespaceTag>, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TagListBody {
        tags: Vec<NamespaceTag>,
    }
    let body = request.object()?;
    read_value::<TagListBody>(&body.into()).map(|body| body.tags).map_err(|error| bad_field("tags", &error))
}

/// `GET` of a namespace's tags: returns a page of their names.
pub(in super::super) fn list_tags(api: &Api, request: &HttpRequest) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let page = SortedPageQuery::read(&request.query, "name")?;
    let sort_keys = |tag: &NamespaceTag| (tag.name.clone(), namespace.spec.item_dates::<NamespaceTag>(&tag.name));
    let tags = page.page_rows(namespace.spec.tags.clone(), Kind::Namespace, sort_keys)?;
    Ok(HttpResponse::ok(json!({"tags": tags})).with_etag(namespace.meta.resource_version))
}

/// `GET` of the object definitions of a catalogue namespace. As in Glance, `limit` is checked but has no effect: all
/// definitions are returned.
pub(in super::super) fn list_definitions(api: &Api, request: &HttpRequest) -> HandlerResult {
    if read_limit(&request.query)? == Some(0) {
        return Err(BadQuery::bad_value("limit", "0", "it is a whole number, 1 or more").into());
    }
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let objects: Vec<Value> = namespace.spec.objects.iter().map(|object| object.to_json(&namespace).into()).collect();
    let body = json!({"objects": objects, "schema": "v2/schemas/metadefs/objects"});
    Ok(HttpResponse::ok(body).with_etag(namespace.meta.resource_version))
}

/// `GET` of a namespace's resource type associations.
pub(in super::super) fn list_associations(api: &Api, request: &HttpRequest) -> HandlerResult {
    let namespace = NamespaceSpec::locate(&api.model(), request)?;
    let associations = namespace.spec.resource_type_associations.iter();
    let associations: Vec<Value> = associations.map(|association: &Association| association.to_json(&namespace).into()).collect();
    let body = json!({"resource_type_associations": associations});
    Ok(HttpResponse::ok(body).with_etag(namespace.meta.resource_version))
}

/// `GET /v2/metadefs/resource_types`: lists the resource types with which namespaces are or were associated, also if no
/// association remains.
pub(in super::super) fn list_resource_types(api: &Api, _request: &HttpRequest) -> HttpResponse {
    let model = api.model();
    let row = |(name, created_at): (&String, &Arc<Timestamp>)| json!({"name": name, "created_at": format_time(**created_at), "updated_at": format_time(**created_at)});
    let types: Vec<Value> = model.resource_types.iter().map(row).collect();
    HttpResponse::ok(json!({"resource_types": types}))
}
