//! Clusters, in Magnum's shapes.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stemma_core::labels::BodyShape;
use stemma_core::manifest::Fields;
use stemma_core::name::ObjectName;
use stemma_core::object::{Cluster, ClusterId, ClusterSpec, Kind, NodeGroupSpec};
use stemma_core::origin::Level;
use stemma_wire::endpoint::{Minor, since};
use stemma_wire::error::{ApiError, ErrorType, quote};
use uuid::Uuid;

use super::lists::Rows;
use super::objects::{self, Shown, read_body};
use super::writes::{New, create};
use super::{kept, lists, view};
use crate::api::Api;
use crate::api::http::request::{Outcome, Reply, Request};
use crate::cache::Model;
use crate::records::request::Answer;
use crate::registry::Undecided;
use crate::registry::names::ModelNames;
use crate::registry::work::{Work, not_found};

impl Shown for ClusterSpec {
    const LEVEL: Option<Level> = Some(Level::Cluster);
    const KEEPS_NAME: bool = true;

    fn locate(model: &Model, request: &Request) -> Result<Arc<Cluster>, ApiError> {
        let id = request.part("cluster");
        model.clusters.find(None, id).cloned().ok_or_else(|| not_found(Kind::Cluster, id))
    }

    fn show(api: &Api, model: &Model, object: &Cluster, base: &str) -> Map<String, Value> {
        let mut body = Map::new();
        view::meta(&mut body, &object.meta);
        body.insert("name".into(), object.meta.name.to_string().into());
        body.extend(objects::fields_of(&object.spec, &ModelNames::new(model, &api.traits)));
        let template = object.spec.cluster_template.and_then(|id| model.templates.get(id.0));
        body.insert("cluster_template_id".into(), template.map_or(Value::Null, |t| json!(t.meta.uuid)));
        if let Some(template) = template {
            for name in
                ["flavor_id", "master_flavor_id", "floating_ip_enabled", "master_lb_enabled", "docker_volume_size"]
            {
                if let Some(value) = template.spec.extra.get(name) {
                    body.entry(name).or_insert_with(|| value.clone());
                }
            }
        }
        kept::fill(Self::EXTRA, &mut body);
        body.insert("status".into(), "CREATE_COMPLETE".into());
        body.insert("status_reason".into(), Value::Null);
        body.insert("cluster_id".into(), object.meta.uuid.to_string().into());
        body.insert("stack_id".into(), object.meta.uuid.to_string().into());
        view::maps(&mut body, &Self::above(model, &object.spec), Level::Cluster, &object.spec.inherited);
        body.insert("links".into(), view::links(base, &Self::path(object)));
        body
    }

    fn above<'m>(model: &'m Model, spec: &Self) -> view::Chain<'m> {
        view::above_cluster(model, spec)
    }

    fn remove(work: &mut Work<'_>, cluster: &Arc<Cluster>) -> Result<(), Undecided> {
        work.delete_cluster(cluster)
    }

    fn path(object: &Cluster) -> String {
        format!("clusters/{}", object.meta.uuid)
    }

    fn has_hosts(model: &Model, object: &Cluster) -> bool {
        let here = |group: Uuid| model.groups.get(group).is_some_and(|g| g.spec.cluster.0 == object.meta.uuid);
        model.nodes.iter().any(|node| node.spec.nodegroup.is_some_and(|g| here(g.0)))
    }

    fn adapt(body: &mut Map<String, Value>) -> Result<(), ApiError> {
        if let Some(template) = body.remove("cluster_template_id") {
            if body.contains_key("cluster_template") {
                let message = "cluster_template_id and cluster_template are two names of one field; give one of them";
                return Err(ApiError::new(ErrorType::FieldInvalid, message).field("cluster_template"));
            }
            body.insert("cluster_template".into(), template);
        }
        if let Some(name) = ["stack_id", "cluster_id", "created_at", "updated_at", "api_address"]
            .iter()
            .find(|name| body.contains_key(**name))
        {
            return Err(
                ApiError::new(ErrorType::FieldInvalid, format!("Cannot set read only field {name}.")).field(*name)
            );
        }
        for name in ["uuid", "status", "status_reason", "links", "labels_overridden", "labels_added", "labels_skipped"]
        {
            body.remove(name);
        }
        Ok(())
    }

    fn patched(object: &Cluster, _body: Map<String, Value>) -> Answer {
        Answer::json(202, json!({"uuid": object.meta.uuid}))
    }
}

/// What a list of Magnum's shows of a cluster.
const LISTED: &[&str] = &[
    "uuid",
    "name",
    "cluster_template_id",
    "keypair",
    "docker_volume_size",
    "labels",
    "node_count",
    "status",
    "master_flavor_id",
    "flavor_id",
    "create_timeout",
    "master_count",
    "health_status",
    "links",
    "cluster_id",
    "merge_labels",
    "resource_version",
];

/// `GET /v1/clusters` and `GET /v1/clusters/detail`.
pub(super) fn list(api: &Api, request: &Request, detail: bool) -> Outcome {
    let model = api.cache().model();
    let selector = lists::selector(&request.query)?;
    let labels = |object: &Cluster| {
        let mut chain = view::above_cluster(&model, &object.spec);
        chain.push((Level::Cluster, &object.spec.inherited));
        view::Folds::of(&chain).label_map()
    };
    let keeps = |object: &Cluster| lists::selected(selector.as_ref(), || labels(object));
    let rows = Rows::read(request, model.clusters.iter(), keeps, |object| object.meta.name.to_string())?;
    let (api, model, base) = (api.clone(), Arc::clone(&model), request.base.clone());
    Ok(rows.reply("clusters", move |object| {
        let mut body = ClusterSpec::show(&api, &model, object, &base);
        if !detail {
            body.retain(|name, _| LISTED.contains(&name.as_str()));
        }
        body
    }))
}

/// `POST /v1/clusters`: the cluster, and its two default groups, as Magnum makes them.
pub(super) async fn post(api: &Api, request: &Request) -> Outcome {
    let caller = request.caller()?;
    let mut fields = request.object()?;
    let uuid = Uuid::now_v7();
    let name = new_name(&mut fields, uuid)?;
    let is_magnums = request.text("openstack-api-version").is_some();
    if is_magnums
        && ["cluster_template_id", "cluster_template"].iter().all(|n| fields.get(*n).is_none_or(Value::is_null))
    {
        return Err(ApiError::new(ErrorType::FieldMissing, "Mandatory field missing: cluster_template_id")
            .field("cluster_template_id"));
    }
    let body = read_body::<ClusterSpec>(fields)?;
    let answer = api.registry.write(&caller, |sight| {
        let mut work = Work::on(sight);
        let spec = ClusterSpec::default();
        let new = New { uuid, name: name.clone(), spec, body: &body, caller: &caller, shape: BodyShape::Magnum };
        let made = create(api, &mut work, new).map_err(|e| unknown_template(e, request.magnum()))?.object;
        default_groups(&mut work, &made)?;
        let location = Some(format!("/v1/{}", ClusterSpec::path(&made)));
        let shown = json!({"uuid": made.meta.uuid});
        work.finish(Answer { location, ..Answer::json(202, shown) })
    });
    Ok(Reply::written(answer.await?, &request.base))
}

/// Magnum answers 404 for a template that is not there, and 400 below its version 1.10.
fn unknown_template(error: ApiError, version: Minor) -> Undecided {
    if error.kind == ErrorType::ReferenceDangling
        && error.field.as_deref() == Some("cluster_template")
        && version >= since::TEMPLATE_NOT_FOUND
    {
        return ApiError { kind: ErrorType::ObjectNotFound, ..error }.into();
    }
    error.into()
}

fn new_name(fields: &mut Map<String, Value>, uuid: Uuid) -> Result<ObjectName, ApiError> {
    let invalid = |reason: String| ApiError::new(ErrorType::FieldInvalid, reason).field("name");
    let name = match fields.remove("name") {
        None | Some(Value::Null) => format!("cluster-{}", &uuid.simple().to_string()[24..]),
        Some(Value::String(name)) => name,
        Some(other) => return Err(invalid(format!("a cluster's name is a text, not {other}"))),
    };
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(invalid(format!("a cluster's name begins with a letter, {} does not", quote(&name))));
    }
    ObjectName::new(&name).map_err(|e| invalid(e.to_string()))
}

fn default_groups(work: &mut Work<'_>, cluster: &Cluster) -> Result<(), ApiError> {
    for (name, role, count) in
        [("default-master", "master", "master_count"), ("default-worker", "worker", "node_count")]
    {
        let mut spec = NodeGroupSpec::new(ClusterId(cluster.meta.uuid));
        spec.extra.insert("is_default".into(), true.into());
        spec.extra.insert("role".into(), role.into());
        if let Some(count) = cluster.spec.extra.get(count) {
            spec.extra.insert("node_count".into(), count.clone());
        }
        let name = ObjectName::new(name).expect("the names of the default groups are names");
        work.create(Uuid::now_v7(), name, spec)?;
    }
    Ok(())
}
