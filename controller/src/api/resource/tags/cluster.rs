//! The tags that are visible in a cluster, and those of its own.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stemma_core::name::TagName;
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, TagSpec};
use stemma_wire::error::ApiError;

use super::declared::{TagCall, TagWrite, refuse_assigned, tag_list, tag_named};
use crate::api::Api;
use crate::api::http::request::{HandlerResult, Reply, Request};
use crate::api::resource::objects::{Shown, set_fields};
use crate::api::resource::place::{declared, visible};
use crate::api::resource::writes;
use crate::cache::Model;
use crate::registry::work::Work;

/// The tags that are visible in the cluster that a path names, each as it is shown.
fn shown(api: &Api, request: &Request) -> Result<BTreeMap<TagName, Value>, ApiError> {
    let model = api.model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let shown = visible(&model.fleet.cluster_table(&cluster)).into_iter().map(|(name, tag)| {
        let row = shown_tag(&name, &tag, declared(&model, &cluster, &name));
        (name, row)
    });
    Ok(shown.collect())
}

/// `GET /v1/clusters/{cluster}/tags`: the tags that are visible there.
pub(crate) fn tags(api: &Api, request: &Request) -> HandlerResult {
    Ok(Reply::ok(tag_list(shown(api, request)?)))
}

/// `GET /v1/clusters/{cluster}/tags/{tag}`.
pub(crate) fn tag(api: &Api, request: &Request) -> HandlerResult {
    tag_named(shown(api, request)?, request.part("tag"))
}

fn shown_tag(name: &TagName, tag: &TagSpec, declared: &str) -> Value {
    let mut row = json!(tag);
    row["name"] = json!(name);
    row["has_primary"] = tag.has_primary.into();
    row["declared"] = json!(declared);
    row["predefined"] = (declared == "release").into();
    row
}

/// Changes the user-defined tags of a cluster.
pub(crate) async fn write_tag(api: &Api, request: &Request, call: TagCall) -> HandlerResult {
    let caller = request.caller()?;
    let write = TagWrite::read(request, call)?;
    let name = &write.name;
    let edit = |work: &Work<'_>, cluster: &mut Cluster| {
        let model = &work.model;
        let is_known = visible(&model.fleet.cluster_table(cluster)).contains_key(name);
        if is_known && declared(model, cluster, name) == "release" {
            return Err(write.of_predefined());
        }
        let mut tags = cluster.spec.tags.clone();
        write.change(&mut tags)?;
        set_fields(api, work, cluster, [("tags", json!(tags))], &caller)?;
        if write.deletes() {
            refuse_assigned(model, name, |node| {
                model.fleet.cluster_of_node(node.id()) == Some(ClusterId(cluster.meta.uuid))
            })?;
        }
        Ok(())
    };
    let answer = |_: &Model, _: &Cluster| write.answer();
    writes::change::<ClusterSpec>(api, request, &caller, edit, answer).await
}
