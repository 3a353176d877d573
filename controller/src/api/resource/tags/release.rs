//! The tags of a release: those of its content, and those that people declare beside it, whatever its version.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stemma_core::name::TagName;
use stemma_core::object::{Release, ReleaseSpec, ReleaseTags, ReleaseTagsSpec};
use stemma_core::role::RoleTable;
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::declared::{TagCall, TagWrite, refuse_assigned, shown_tag, tag_list, tag_named};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::api::resource::changes::{Changes, LostLabels};
use crate::api::resource::objects::Shown;
use crate::api::resource::place::release_of;
use crate::api::resource::writes::{commit, warn};
use crate::cache::Model;

/// The tags beside a release, whatever its version.
fn beside<'a>(model: &'a Model, release: &Release) -> Option<&'a Arc<ReleaseTags>> {
    model.release_tags.named(None, &release.meta.name.name)
}

/// The tags of the release that a path names, each as it is shown.
fn shown(api: &Api, request: &Request) -> Result<BTreeMap<TagName, Value>, ApiError> {
    let model = api.model();
    let release = ReleaseSpec::locate(&model, request)?;
    let beside = beside(&model, &release).into_iter().flat_map(|beside| &beside.spec.tags);
    let shown = beside.map(|tag| (tag, false)).chain(release.spec.tags.iter().map(|tag| (tag, true)));
    Ok(shown.map(|((name, tag), predefined)| (name.clone(), shown_tag(name, tag, predefined))).collect())
}

/// What the roles of the release that a path names produce where no cluster changes it. One that does not compile has its own alone.
fn produced(api: &Api, request: &Request) -> Result<(Arc<Release>, RoleTable), ApiError> {
    let model = api.model();
    let release = ReleaseSpec::locate(&model, request)?;
    let beside = beside(&model, &release).into_iter().flat_map(|beside| &beside.spec.tags);
    let (roles, tags) = match model.fleet.release(&release.meta.name) {
        Some(compiled) => (&compiled.roles, &compiled.tags),
        None => (&release.spec.roles, &release.spec.tags),
    };
    let table = RoleTable::new(roles, tags, beside, &BTreeMap::new());
    Ok((release, table))
}

/// `GET /v1/releases/{release}/roles`.
pub(crate) fn roles(api: &Api, request: &Request) -> HandlerResult {
    let (_, table) = produced(api, request)?;
    let roles: BTreeMap<_, _> = table.roles().map(|(role, tags)| (role, json!({"tags": tags}))).collect();
    Ok(Reply::ok(json!({"roles": roles})))
}

/// `GET /v1/releases/{release}/roles/{role}/tags`.
pub(crate) fn tags_of_role(api: &Api, request: &Request) -> HandlerResult {
    let (release, table) = produced(api, request)?;
    let role = request.part("role");
    let Some((_, tags)) = table.roles().find(|(name, _)| name.as_str() == role) else {
        let message = format!("Role {} of release {} could not be found.", quote(role), release.meta.name);
        return Err(ApiError::new(ErrorType::ObjectNotFound, message));
    };
    let beside = beside(&api.model(), &release).map(|beside| beside.spec.tags.clone()).unwrap_or_default();
    let shown = |tag: &TagName| {
        let spec = table.tag(tag).cloned().unwrap_or_default();
        (tag.clone(), shown_tag(tag, &spec, !beside.contains_key(tag)))
    };
    Ok(Reply::ok(tag_list(tags.iter().map(shown).collect())))
}

/// `GET /v1/releases/{release}/tags`.
pub(crate) fn tags(api: &Api, request: &Request) -> HandlerResult {
    Ok(Reply::ok(tag_list(shown(api, request)?)))
}

/// `GET /v1/releases/{release}/tags/{tag}`.
pub(crate) fn tag(api: &Api, request: &Request) -> HandlerResult {
    tag_named(shown(api, request)?, request.part("tag"))
}

/// Changes the user-defined tags beside a release: they are no part of its content.
pub(crate) async fn write_tag(api: &Api, request: &Request, call: TagCall) -> HandlerResult {
    let caller = request.caller()?;
    let write = TagWrite::read(request, call)?;
    let name = &write.name;
    let new_uuid = Uuid::now_v7();
    commit(api, request, &caller, |work| {
        let release = ReleaseSpec::locate(&work.model, request)?;
        if release.spec.tags.contains_key(name) {
            return Err(write.of_predefined().into());
        }
        let before = beside(&work.model, &release).cloned();
        let mut spec = before.as_ref().map(|tags| tags.spec.clone()).unwrap_or_default();
        let old = json!({"tags": spec.tags});
        write.change(&mut spec.tags)?;
        let changes = Changes::default().between(&old, &json!({"tags": spec.tags}));
        if write.deletes() {
            refuse_assigned(&work.model, name, |node| {
                release_of(&work.model, node).is_some_and(|r| r.name == release.meta.name.name)
            })?;
        }
        match before {
            Some(before) => drop(work.update::<ReleaseTagsSpec>(&before, before.meta.name.clone(), spec)?),
            None => drop(work.create::<ReleaseTagsSpec>(new_uuid, release.meta.name.name.clone(), spec)?),
        }
        Ok(warn(write.answer(), None, request, changes, &LostLabels::default(), work))
    })
    .await
}
