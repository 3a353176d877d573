//! Writes: create, delete, pause and resume, tags.

use anyhow::{Error, Result};
use serde_json::{Value, json};
use stemma_wire::endpoint::{Endpoint, Method};

use crate::api::{Api, Write};
use crate::args::{Create, Kind, NewLabels, Output, Pausing, Tag, TagFields, TagOwner, Wanted};
use crate::command::done::Done;
use crate::command::each::{Object, Objects, Step, each};
use crate::command::written::is_said;
use crate::command::{allocation, label, node, question};
use crate::exit::Exit;
use crate::output::{cell, table};

/// `create`.
pub(crate) async fn create(api: &mut Api, what: Create, output: Output) -> Result<()> {
    let (kind, write, name, mut body, labels) = match what {
        Create::Clustertemplate { name, release, labels } => {
            ("clustertemplate", Write::to(Endpoint::CreateTemplate, &[]), name, json!({"release": release}), labels)
        }
        Create::Cluster { name, cluster_template, labels } => (
            "cluster",
            Write::to(Endpoint::CreateCluster, &[]),
            name,
            json!({"cluster_template_id": cluster_template}),
            labels,
        ),
        Create::Nodegroup { cluster, name, roles, labels } => {
            let write = Kind::Cluster.write(Endpoint::CreateGroup, &cluster, &[])?;
            ("nodegroup", write, format!("{cluster}/{name}"), json!({"roles": roles}), labels)
        }
        Create::Node { name, nodegroup, labels } => {
            ("node", Write::to(Endpoint::CreateNode, &[]), name, json!({"nodegroup": nodegroup}), labels)
        }
        Create::Allocation { name, wanted } => return allocate(api, name.as_deref(), &wanted, output).await,
    };
    body["name"] =
        Value::from(name.rsplit_once('/').filter(|_| kind == "nodegroup").map_or(name.as_str(), |(_, own)| own));
    add_labels(&mut body, kind, &labels)?;
    let map = body.as_object_mut().expect("a body was made as a map");
    map.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty()));
    let answer = api.send(write.json(&body)).await?;
    Done { kind, name: &name, sentence: format!("{kind} {name} created"), answer }.say(api, output).await
}

/// `create allocation`. One that found no node is there, and says why; the command fails then.
async fn allocate(api: &mut Api, name: Option<&str>, wanted: &Wanted, output: Output) -> Result<()> {
    let Wanted { resource_class, traits, requirement, candidate_node, nodegroup, owner } = wanted;
    let mut body = json!({
        "name": name, "resource_class": resource_class, "traits": traits, "requirements": requirement,
        "candidate_nodes": candidate_node, "nodegroup": nodegroup, "owner": owner,
    });
    body.as_object_mut().expect("made as a map").retain(|_, value| is_said(value));
    let answer = api.send(Write::to(Endpoint::CreateAllocation, &[]).json(&body)).await?;
    let text = |field: &str| answer.get(field).and_then(Value::as_str).map(str::to_owned);
    let name = text("name").or_else(|| text("uuid")).unwrap_or_default();
    let node = allocation::node(api, &answer).await?;
    let sentence = match (&node, allocation::why(&answer)) {
        (Some(node), Some(why)) => format!("allocation {name} has node {node}: {why}"),
        (Some(node), None) => format!("allocation {name} has node {node}"),
        (None, _) => format!("allocation {name} created without a node, in state {}", cell(answer.get("state"))),
    };
    let failed = text("last_error").map(|error| unallocated(&name, &answer, &error, api.is_dry()));
    Done { kind: "allocation", name: &name, sentence, answer }.say(api, output).await?;
    failed.map_or(Ok(()), Err)
}

/// The error of an allocation that found no node. It is there all the same, unless it was only tried out.
fn unallocated(name: &str, answer: &Value, error: &str, is_dry: bool) -> Error {
    if is_dry {
        return Exit::Error.because(error);
    }
    let state = cell(answer.get("state"));
    let next = allocation::next(name, answer);
    Exit::Error.after_others(format!("allocation {name} is there in state {state}: {error}\n  next: {next}"))
}

/// `delete`.
pub(crate) async fn delete(api: &mut Api, objects: &Objects, output: Output) -> Result<()> {
    let plan = async |_: &mut Api, object: &Object| {
        let kind = object.kind();
        let row = kind.row(Method::Delete, "").expect("an object of every kind can be deleted");
        Ok(Step::of(kind.write(row, &object.name, &[])?, format!("{object} deleted")))
    };
    each(api, objects, output, plan).await
}

/// `pause` and `resume`.
pub(crate) async fn pause(api: &mut Api, what: &Pausing, paused: bool, output: Output) -> Result<()> {
    let objects = Objects::of(api, &what.named()).await?;
    let became = if paused { "paused" } else { "resumed" };
    let plan = async |api: &mut Api, object: &Object| {
        let row = match object.kind() {
            Kind::Cluster => Endpoint::PatchCluster,
            Kind::Nodegroup => Endpoint::PatchGroup,
            Kind::Node => {
                let sentence = "clusters and node groups are paused; a node is held, or parked: stemma node hold, stemma node park";
                return Err(Exit::Usage.because(sentence));
            }
            other => return Err(Exit::Usage.because(format!("{} has no hosts to pause", other.with_article()))),
        };
        let present = question::one(api, object.kind(), &object.name).await?;
        if present.get("paused").is_some_and(is_said) == paused {
            let sentence = if paused { "is paused already" } else { "is not paused" };
            return Ok(Step::nothing(format!("{object} {sentence}"), present));
        }
        let write = object.kind().write(row, &object.name, &[])?.json(&json!({"paused": paused}));
        let write = write.overwriting(what.overwrite);
        Ok(Step::of(write, format!("{object} {became}")))
    };
    each(api, &objects, output, plan).await
}

/// Labels of a new object, which merge as a manifest's do; nothing stands above a template.
fn add_labels(body: &mut Value, kind: &str, labels: &NewLabels) -> Result<()> {
    if !labels.labels.is_empty() {
        body["labels"] = Value::Object(label::of_new(&labels.labels)?);
    }
    let merges = !labels.labels.is_empty() && kind != "clustertemplate";
    if let Some(merge) = labels.merge_labels.or(merges.then_some(true)) {
        body["merge_labels"] = merge.into();
    }
    Ok(())
}

/// `tag`.
pub(crate) async fn tag(api: &mut Api, what: Tag, output: Output) -> Result<()> {
    let (write, name, became) = match what {
        Tag::List { owner } => return list_tags(api, &owner, output).await,
        Tag::Assign(what) => return node::tags(api, &what, true, output).await,
        Tag::Unassign(what) => return node::tags(api, &what, false, output).await,
        Tag::Delete { names, owner, overwrite } => return delete_tags(api, &names, &owner, overwrite, output).await,
        Tag::Create { name, owner, fields, overwrite } => {
            let row = owned(&owner, Endpoint::CreateClusterTag, Endpoint::CreateReleaseTag);
            (tag_write(row, None, overwrite).json(&tag_body(&name, &fields)), name, "created")
        }
        Tag::Update { name, owner, fields, overwrite } => {
            let (read, of) = owned(&owner, Endpoint::GetClusterTag, Endpoint::GetReleaseTag);
            let row = owned(&owner, Endpoint::PutClusterTag, Endpoint::PutReleaseTag);
            // What is not said stays as it is.
            let mut body = api.get(&read.path(&[of, &name])).await?;
            for (field, value) in tag_body(&name, &fields).as_object().into_iter().flatten() {
                body[field] = value.clone();
            }
            (tag_write(row, Some(&name), overwrite).json(&body), name, "updated")
        }
    };
    let answer = api.send(write).await?;
    Done { kind: "tag", name: &name, sentence: format!("tag {name} {became}"), answer }.say(api, output).await
}

async fn delete_tags(api: &mut Api, names: &[String], owner: &TagOwner, overwrite: bool, output: Output) -> Result<()> {
    let row = owned(owner, Endpoint::DeleteClusterTag, Endpoint::DeleteReleaseTag);
    let plan = async |_: &mut Api, tag: &Object| {
        let bare = tag.name.strip_prefix("tag/").unwrap_or(&tag.name);
        Ok(Step::of(tag_write(row, Some(bare), overwrite), format!("{tag} deleted")))
    };
    each(api, &Objects::named("tag", names), output, plan).await
}

async fn list_tags(api: &mut Api, owner: &TagOwner, output: Output) -> Result<()> {
    let (row, owner) = owned(owner, Endpoint::ListClusterTags, Endpoint::ListReleaseTags);
    let tags = api.get(&row.path(&[owner])).await?;
    let columns = ["name", "declared", "role", "has_primary", "title"];
    let row = |tag: &Value| columns.iter().map(|column| cell(tag.get(column))).collect();
    let names = question::items(&tags).filter_map(|tag| tag.get("name")?.as_str());
    question::print_list(&tags, ("tag", names), || table(&columns, question::items(&tags).map(row)), output)
}

/// The row for the owner of user-defined tags, and the owner's name.
fn owned(owner: &TagOwner, of_cluster: Endpoint, of_release: Endpoint) -> (Endpoint, &str) {
    match (&owner.cluster, &owner.release) {
        (Some(cluster), _) => (of_cluster, cluster),
        (None, release) => (of_release, release.as_deref().unwrap_or_default()),
    }
}

/// A write of a user-defined tag. Those of a cluster are its managers', those beside a release are nobody's.
fn tag_write((row, owner): (Endpoint, &str), tag: Option<&str>, overwrite: bool) -> Write {
    let parameters: Vec<&str> = std::iter::once(owner).chain(tag).collect();
    let write = Write::to(row, &parameters);
    let is_owned = matches!(row, Endpoint::CreateClusterTag | Endpoint::PutClusterTag | Endpoint::DeleteClusterTag);
    if is_owned { write.overwriting(overwrite) } else { write }
}

fn tag_body(name: &str, fields: &TagFields) -> Value {
    let mut body = json!({"name": name, "role": fields.role, "has_primary": fields.has_primary, "title": fields.title});
    body.as_object_mut().expect("made as a map").retain(|_, value| !value.is_null());
    body
}
