//! The handlers of a release's tags: those that its content declares, and those that users declare in addition. A tag
//! that a user declares applies to all versions of the release.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::name::TagName;
use stemma_core::object::{Release, ReleaseSpec, ReleaseTags, ReleaseTagsSpec};
use stemma_core::role::RoleTable;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::declared::{TagCall, TagDefinitionWrite, check_unassigned, tag_answer, tag_json, tag_list};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::api::resource::changes::{Changes, LostLabels};
use crate::api::resource::objects::ApiResource;
use crate::api::resource::role_table::release_name_of_node;
use crate::api::resource::writes::{commit, with_warnings};
use crate::cache::Model;

/// Returns the object with the tags that users declared for a release in addition to its content. They apply to all
/// versions of the release. Returns `None` if users have not declared any.
fn release_tags<'a>(model: &'a Model, release: &Release) -> Option<&'a Arc<ReleaseTags>> {
    model.release_tags.get_by_name(None, &release.meta.name.name)
}

/// Returns the tags that a release's content and users declare, each in its JSON form. The path of the request names
/// the release. Tags that the release imports, and undeclared tags that its roles give, are not included.
fn tag_map(api: &Api, request: &HttpRequest) -> Result<BTreeMap<TagName, Value>, ApiError> {
    let model = api.model();
    let release = ReleaseSpec::locate(&model, request)?;
    let user_tags = release_tags(&model, &release).into_iter().flat_map(|object| &object.spec.tags);
    let tags = user_tags.map(|tag| (tag, false)).chain(release.spec.tags.iter().map(|tag| (tag, true)));
    Ok(tags.map(|((name, tag), predefined)| (name.clone(), tag_json(name, tag, predefined))).collect())
}

/// Returns the release that the path of the request names, and its role table, with the tags that users declare for the
/// release and without the changes that clusters make. If the release does not compile, its imports cannot be resolved.
/// Then the table lacks the imported roles and tags.
fn release_role_table(api: &Api, request: &HttpRequest) -> Result<(Arc<Release>, RoleTable), ApiError> {
    let model = api.model();
    let release = ReleaseSpec::locate(&model, request)?;
    let user_tags = release_tags(&model, &release).into_iter().flat_map(|object| &object.spec.tags);
    let (roles, tags) = match model.fleet.release(&release.meta.name) {
        Some(compiled) => (&compiled.roles, &compiled.tags),
        None => (&release.spec.roles, &release.spec.tags),
    };
    let table = RoleTable::new(roles, tags, user_tags, &BTreeMap::new());
    Ok((release, table))
}

/// Handles `GET /v1/releases/{release}/roles`: returns the roles of a release, each with the tags that it gives.
pub(crate) fn roles(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (_, table) = release_role_table(api, request)?;
    let roles: BTreeMap<_, _> = table.roles().map(|(role, tags)| (role, json!({"tags": tags}))).collect();
    Ok(HttpResponse::ok(json!({"roles": roles})))
}

/// Handles `GET /v1/releases/{release}/roles/{role}/tags`: returns the tags that one role gives.
pub(crate) fn tags_of_role(api: &Api, request: &HttpRequest) -> HandlerResult {
    let (release, table) = release_role_table(api, request)?;
    let role = request.param("role");
    let Some((_, tags)) = table.roles().find(|(name, _)| name.as_str() == role) else {
        let message = format!("Role {} of release {} could not be found.", quote(role), release.meta.name);
        return Err(ApiError::new(ErrorType::ObjectNotFound, message));
    };
    let user_tags = release_tags(&api.model(), &release).map(|object| object.spec.tags.clone()).unwrap_or_default();
    let tag_entry = |tag: &TagName| {
        let spec = table.tag(tag).cloned().unwrap_or_default();
        (tag.clone(), tag_json(tag, &spec, !user_tags.contains_key(tag)))
    };
    Ok(HttpResponse::ok(tag_list(tags.iter().map(tag_entry).collect())))
}

/// Handles `GET /v1/releases/{release}/tags`: returns the tags that the release's content declares, and those that
/// users declare in addition.
pub(crate) fn tags(api: &Api, request: &HttpRequest) -> HandlerResult {
    Ok(HttpResponse::ok(tag_list(tag_map(api, request)?)))
}

/// Handles `GET /v1/releases/{release}/tags/{tag}`: returns one tag of a release.
pub(crate) fn tag(api: &Api, request: &HttpRequest) -> HandlerResult {
    tag_answer(tag_map(api, request)?, request.param("tag"))
}

/// Handles a request that creates, replaces or deletes a tag that users declare for a release. The content of the
/// release is not changed. Fails for a tag that the content declares, if [`TagDefinitionWrite::apply`] fails, and for
/// the deletion of a tag that is assigned to a node whose release is any version of this one.
pub(crate) async fn write_tag(api: &Api, request: &HttpRequest, call: TagCall) -> HandlerResult {
    let caller = request.caller()?;
    let write = TagDefinitionWrite::read(request, call)?;
    let name = &write.name;
    let new_uuid = Uuid::now_v7();
    commit(api, request, &caller, |work| {
        let release = ReleaseSpec::locate(&work.model, request)?;
        if release.spec.tags.contains_key(name) {
            return Err(write.predefined_error().into());
        }
        let old_tags = release_tags(&work.model, &release).cloned();
        let mut spec = old_tags.as_ref().map(|tags| tags.spec.clone()).unwrap_or_default();
        let old_fields = json!({"tags": spec.tags});
        write.apply(&mut spec.tags)?;
        let changes = Changes::default().field_changes(&old_fields, &json!({"tags": spec.tags}));
        if write.is_delete() {
            check_unassigned(&work.model, name, |node| {
                release_name_of_node(&work.model, node).is_some_and(|full_name| full_name.name == release.meta.name.name)
            })?;
        }
        match old_tags {
            Some(old_tags) => drop(work.update::<ReleaseTagsSpec>(&old_tags, old_tags.meta.name.clone(), spec)?),
            None => drop(work.create::<ReleaseTagsSpec>(new_uuid, release.meta.name.name.clone(), spec)?),
        }
        Ok(with_warnings(write.answer(), None, request, changes, &LostLabels::default(), work))
    })
    .await
}
