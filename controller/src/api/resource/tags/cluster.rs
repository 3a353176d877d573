//! The handlers of a cluster's tags: the tags that its nodes can have, and the tags that users declare in the cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_core::name::TagName;
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, TagSpec};
use stemma_wire::error::ApiError;

use super::declared::{TagCall, TagDefinitionWrite, check_unassigned, tag_answer, tag_list};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::api::resource::objects::{ApiResource, set_fields};
use crate::api::resource::role_table::{declaration_place, visible_tags};
use crate::api::resource::writes;
use crate::cache::Model;
use crate::registry::work::PendingWrite;

/// Returns the tags that the cluster's nodes can have, each in its JSON form. The path of the request names the
/// cluster.
fn tag_map(api: &Api, request: &HttpRequest) -> Result<BTreeMap<TagName, Value>, ApiError> {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let entries = visible_tags(&model.fleet.role_table(&cluster)).into_iter().map(|(name, tag)| {
        let tag_body = tag_json(&name, &tag, declaration_place(&model, &cluster, &name));
        (name, tag_body)
    });
    Ok(entries.collect())
}

/// Handles `GET /v1/clusters/{cluster}/tags`: lists the tags that the cluster's nodes can have.
pub(crate) fn tags(api: &Api, request: &HttpRequest) -> HandlerResult {
    Ok(HttpResponse::ok(tag_list(tag_map(api, request)?)))
}

/// Handles `GET /v1/clusters/{cluster}/tags/{tag}`: returns one tag that the cluster's nodes can have.
pub(crate) fn tag(api: &Api, request: &HttpRequest) -> HandlerResult {
    tag_answer(tag_map(api, request)?, request.param("tag"))
}

/// Returns a tag as a cluster shows it. `declared` is the place of the declaration: `cluster`, `release` or `beside`
/// (users added the tag to the release without an edit of its content). A tag with the place `release` is `predefined`.
fn tag_json(name: &TagName, tag: &TagSpec, declared: &str) -> Value {
    let mut body = json!(tag);
    body["name"] = json!(name);
    // The JSON of a `TagSpec` omits `has_primary` if it is false.
    body["has_primary"] = tag.has_primary.into();
    body["declared"] = json!(declared);
    body["predefined"] = (declared == "release").into();
    body
}

/// Handles a request that creates, replaces or deletes a tag that users declare in a cluster. Fails for a tag that only
/// the release's content or a role defines, and for the deletion of a tag that is assigned to nodes of the cluster.
pub(crate) async fn write_tag(api: &Api, request: &HttpRequest, call: TagCall) -> HandlerResult {
    let caller = request.caller()?;
    let write = TagDefinitionWrite::read(request, call)?;
    let name = &write.name;
    let edit = |work: &PendingWrite<'_>, cluster: &mut Cluster| {
        let model = &work.model;
        let is_visible = visible_tags(&model.fleet.role_table(cluster)).contains_key(name);
        if is_visible && declaration_place(model, cluster, name) == "release" {
            return Err(write.predefined_error());
        }
        let mut tags = cluster.spec.tags.clone();
        write.apply(&mut tags)?;
        set_fields(api, work, cluster, [("tags", json!(tags))], &caller)?;
        if write.is_delete() {
            check_unassigned(model, name, |node| model.fleet.cluster_of_node(node.id()) == Some(ClusterId(cluster.meta.uuid)))?;
        }
        Ok(())
    };
    let answer = |_: &Model, _: &Cluster| write.answer();
    writes::change::<ClusterSpec>(api, request, &caller, edit, answer).await
}
