//! Node groups, in Magnum's shapes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::Fields;
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, Kind, NodeGroup, NodeGroupSpec};
use stemma_core::origin::Level;
use stemma_wire::error::{ApiError, ErrorType};
use uuid::Uuid;

use super::lists::Rows;
use super::objects::{self, Shown, read_body};
use super::writes::{self, New, create, shown_new};
use super::{kept, lists, view};
use crate::api::Api;
use crate::api::http::request::{Outcome, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::Undecided;
use crate::registry::names::ModelNames;
use crate::registry::work::{Work, not_found};

impl Shown for NodeGroupSpec {
    const LEVEL: Option<Level> = Some(Level::NodeGroup);

    fn locate(model: &Model, request: &Request) -> Result<Arc<NodeGroup>, ApiError> {
        let cluster = ClusterSpec::locate(model, request)?;
        let id = request.part("group");
        model.groups.find(Some(cluster.meta.uuid), id).cloned().ok_or_else(|| not_found(Kind::NodeGroup, id))
    }

    fn show(api: &Api, model: &Model, object: &NodeGroup, base: &str) -> Map<String, Value> {
        let mut body = Map::new();
        view::meta(&mut body, &object.meta);
        body.insert("id".into(), object.meta.uuid.as_u64_pair().1.into());
        body.insert("name".into(), object.meta.name.to_string().into());
        body.extend(objects::fields_of(&object.spec, &ModelNames::new(model, &api.traits)));
        let cluster = model.clusters.get(object.spec.cluster.0);
        body.insert("cluster".into(), cluster.map_or(Value::Null, |c| c.meta.name.to_string().into()));
        body.insert("cluster_id".into(), object.spec.cluster.0.to_string().into());
        body.insert("stack_id".into(), object.spec.cluster.0.to_string().into());
        fill_from_parents(&mut body, model, cluster);
        kept::fill(Self::EXTRA, &mut body);
        body.insert("status".into(), "CREATE_COMPLETE".into());
        body.insert("status_reason".into(), Value::Null);
        view::maps(&mut body, &Self::above(model, &object.spec), Level::NodeGroup, &object.spec.inherited);
        body.insert("links".into(), view::links(base, &Self::path(object)));
        body
    }

    fn above<'m>(model: &'m Model, spec: &Self) -> view::Chain<'m> {
        view::above_group(model, spec)
    }

    /// The default groups go with their cluster (as Magnum).
    fn remove(work: &mut Work<'_>, group: &Arc<NodeGroup>) -> Result<(), Undecided> {
        if group.spec.extra.get("is_default") == Some(&json!(true)) {
            let message = "Deleting a default nodegroup is not supported.";
            return Err(ApiError::new(ErrorType::ObjectInvalid, message).detail("it goes with its cluster").into());
        }
        work.delete_group(group)
    }

    fn path(object: &NodeGroup) -> String {
        format!("clusters/{}/nodegroups/{}", object.spec.cluster, object.meta.uuid)
    }

    fn has_hosts(model: &Model, object: &NodeGroup) -> bool {
        model.nodes.iter().any(|node| node.spec.nodegroup.is_some_and(|g| g.0 == object.meta.uuid))
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        if body.get("role").and_then(Value::as_str) == Some("master") {
            return Err(ApiError::new(
                ErrorType::FieldInvalid,
                "Creating master nodegroups is currently not supported.",
            )
            .field("role"));
        }
        for name in [
            "uuid",
            "id",
            "cluster",
            "cluster_id",
            "status",
            "status_reason",
            "links",
            "labels_overridden",
            "labels_added",
            "labels_skipped",
        ] {
            body.remove(name);
        }
        Ok(())
    }

    fn patched(_object: &NodeGroup, body: Map<String, Value>) -> Answer {
        Answer::json(202, body.into())
    }
}

fn fill_from_parents(body: &mut Map<String, Value>, model: &Model, cluster: Option<&Arc<Cluster>>) {
    let template = cluster.and_then(|c| c.spec.cluster_template).and_then(|id| model.templates.get(id.0));
    let extras = cluster.map(|c| &c.spec.extra).into_iter().chain(template.map(|t| &t.spec.extra));
    for extra in extras {
        for name in ["flavor_id", "image_id", "docker_volume_size"] {
            if let Some(value) = extra.get(name) {
                body.entry(name).or_insert_with(|| value.clone());
            }
        }
    }
}

/// What a list of Magnum's shows of a node group.
const LISTED: &[&str] = &[
    "uuid",
    "name",
    "flavor_id",
    "image_id",
    "node_count",
    "role",
    "min_node_count",
    "max_node_count",
    "is_default",
    "stack_id",
    "status",
    "merge_labels",
    "cluster",
    "roles",
    "labels",
    "links",
    "resource_version",
];

/// `GET /v1/clusters/{cluster}/nodegroups`.
pub(super) fn list(api: &Api, request: &Request) -> Outcome {
    let model = api.cache().model();
    let cluster = ClusterSpec::locate(&model, request)?;
    let selector = lists::selector(&request.query)?;
    let role = request.query.one("role")?;
    let labels = |object: &NodeGroup| {
        let mut chain = view::above_group(&model, &object.spec);
        chain.push((Level::NodeGroup, &object.spec.inherited));
        view::Folds::of(&chain).label_map()
    };
    let of_role = |object: &NodeGroup| {
        role.is_none_or(|role| object.spec.extra.get("role").and_then(Value::as_str).unwrap_or("worker") == role)
    };
    let keeps = |object: &NodeGroup| {
        object.spec.cluster.0 == cluster.meta.uuid
            && of_role(object)
            && lists::selected(selector.as_ref(), || labels(object))
    };
    let rows = Rows::read(request, model.groups.iter(), keeps, |object| object.meta.name.to_string())?;
    let (api, model, base) = (api.clone(), Arc::clone(&model), request.base.clone());
    Ok(rows.reply("nodegroups", move |object| {
        let mut body = NodeGroupSpec::show(&api, &model, object, &base);
        body.retain(|name, _| LISTED.contains(&name.as_str()));
        body
    }))
}

/// `POST /v1/clusters/{cluster}/nodegroups`.
pub(super) async fn post(api: &Api, request: &Request) -> Outcome {
    let caller = request.caller()?;
    let mut fields = request.object()?;
    let name = writes::name_of_new::<NodeGroupSpec>(&mut fields)?;
    let body = read_body::<NodeGroupSpec>(fields)?;
    let uuid = Uuid::now_v7();
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let cluster = ClusterSpec::locate(&work.model, request)?;
        let spec = NodeGroupSpec::new(ClusterId(cluster.meta.uuid));
        let new = New { uuid, name: name.clone(), spec, body: &body, caller: &caller, shape: BodyShape::Magnum };
        let made = create(api, &mut work, new)?.object;
        let answer = shown_new(202, &made, NodeGroupSpec::show(api, &work.model, &made, &request.base));
        work.finish(answer)
    });
    Ok(Reply::written(answer.await?, &request.base))
}
