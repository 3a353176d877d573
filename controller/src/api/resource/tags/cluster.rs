//! The tags that are visible in a cluster, and the tags that users declare in it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_core::name::TagName;
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, TagSpec};
use stemma_wire::error::ApiError;

use super::declared::{TagCall, TagDefinitionWrite, check_unassigned, tag_answer, tag_list};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, HttpRequest, HttpResponse};
use crate::api::resource::objects::{ApiResource, set_fields};
use crate::api::resource::role_table::{declared_in, visible_tags};
use crate::api::resource::writes;
use crate::cache::Model;
use crate::registry::work::PendingWrite;

/// Returns the visible tags of the cluster that a path names, each in its JSON form.
fn tag_map(api: &Api, request: &HttpRequest) -> Result<BTreeMap<TagName, Value>, ApiError> {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let shown = visible_tags(&model.fleet.role_table(&cluster)).into_iter().map(|(name, tag)| {
        let row = tag_json(&name, &tag, declared_in(&model, &cluster, &name));
        (name, row)
    });
    Ok(shown.collect())
}

/// `GET /v1/clusters/{cluster}/tags`: the tags that are visible in the cluster.
pub(crate) fn tags(api: &Api, request: &HttpRequest) -> HandlerResult {
    Ok(HttpResponse::ok(tag_list(tag_map(api, request)?)))
}

/// `GET /v1/clusters/{cluster}/tags/{tag}`: one tag that is visible in the cluster.
pub(crate) fn tag(api: &Api, request: &HttpRequest) -> HandlerResult {
    tag_answer(tag_map(api, request)?, request.param("tag"))
}

fn tag_json(name: &TagName, tag: &TagSpec, declared: &str) -> Value {
    let mut row = json!(tag);
    row["name"] = json!(name);
    row["has_primary"] = tag.has_primary.into();
    row["declared"] = json!(declared);
    row["predefined"] = (declared == "release").into();
    row
}

/// Creates, replaces or deletes a tag that users declare in a cluster. A tag of the release is refused, and so is the
/// deletion of a tag that is assigned to nodes of the cluster.
pub(crate) async fn write_tag(api: &Api, request: &HttpRequest, call: TagCall) -> HandlerResult {
    let caller = request.caller()?;
    let write = TagDefinitionWrite::read(request, call)?;
    let name = &write.name;
    let edit = |work: &PendingWrite<'_>, cluster: &mut Cluster| {
        let model = &work.model;
        let is_known = visible_tags(&model.fleet.role_table(cluster)).contains_key(name);
        if is_known && declared_in(model, cluster, name) == "release" {
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
