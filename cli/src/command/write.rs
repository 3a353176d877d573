//! Commands that write: `stemma create`, `delete`, `pause`, `resume` and `tag`.

use anyhow::{Error, Result};
use serde_json::{Value, json};
use stemma_wire::endpoint::{Endpoint, Method};

use crate::api::{ApiClient, WriteRequest};
use crate::args::{
    AllocationArgs, CreateCommand, KindArg, NewLabelArgs, Output, PauseArgs, TagCommand, TagFieldArgs, TagOwnerArgs,
};
use crate::command::batch::{TargetObject, Targets, WritePlan, run_batch};
use crate::command::manifest::is_set;
use crate::command::report::WriteReport;
use crate::command::{allocation, label, node, read};
use crate::exit::Exit;
use crate::output::{cell_text, table};

/// Runs `stemma create`. Fields that the user did not give are left out of the request.
pub(crate) async fn create(api: &mut ApiClient, command: CreateCommand, output: Output) -> Result<()> {
    let (kind, write, name, mut body, labels) = match command {
        CreateCommand::Clustertemplate { name, release, labels } => (
            "clustertemplate",
            WriteRequest::with_parameters(Endpoint::CreateTemplate, &[]),
            name,
            json!({"release": release}),
            labels,
        ),
        CreateCommand::Cluster { name, cluster_template, labels } => (
            "cluster",
            WriteRequest::with_parameters(Endpoint::CreateCluster, &[]),
            name,
            json!({"cluster_template_id": cluster_template}),
            labels,
        ),
        CreateCommand::Nodegroup { cluster, name, roles, labels } => {
            let write = KindArg::Cluster.write_request(Endpoint::CreateGroup, &cluster, &[])?;
            ("nodegroup", write, format!("{cluster}/{name}"), json!({"roles": roles}), labels)
        }
        CreateCommand::Node { name, nodegroup, labels } => {
            ("node", WriteRequest::with_parameters(Endpoint::CreateNode, &[]), name, json!({"nodegroup": nodegroup}), labels)
        }
        CreateCommand::Allocation { name, wanted } => return allocate(api, name.as_deref(), &wanted, output).await,
    };
    // The printed name of a node group contains its cluster, and the name in the request does not.
    body["name"] = Value::from(name.rsplit_once('/').filter(|_| kind == "nodegroup").map_or(name.as_str(), |(_, group)| group));
    add_labels(&mut body, kind, &labels)?;
    let map = body.as_object_mut().expect("a body was created as a map");
    map.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty()));
    let response = api.send(write.with_json(&body)).await?;
    WriteReport { kind, name: &name, sentence: format!("{kind} {name} created"), answer: response }.print(api, output).await
}

/// Runs `stemma create allocation`. If no node fits, the controller stores the allocation with the reason, and the
/// command fails.
async fn allocate(api: &mut ApiClient, name: Option<&str>, args: &AllocationArgs, output: Output) -> Result<()> {
    let AllocationArgs { resource_class, traits, requirement, candidate_node, nodegroup, owner } = args;
    let mut body = json!({
        "name": name, "resource_class": resource_class, "traits": traits, "requirements": requirement,
        "candidate_nodes": candidate_node, "nodegroup": nodegroup, "owner": owner,
    });
    body.as_object_mut().expect("created as a map").retain(|_, value| is_set(value));
    let response = api.send(WriteRequest::with_parameters(Endpoint::CreateAllocation, &[]).with_json(&body)).await?;
    let text = |field: &str| response.get(field).and_then(Value::as_str).map(str::to_owned);
    let name = text("name").or_else(|| text("uuid")).unwrap_or_default();
    let node = allocation::node_name(api, &response).await?;
    let sentence = match (&node, allocation::reason(&response)) {
        (Some(node), Some(reason)) => format!("allocation {name} has node {node}: {reason}"),
        (Some(node), None) => format!("allocation {name} has node {node}"),
        (None, _) => format!("allocation {name} created without a node, in state {}", cell_text(response.get("state"))),
    };
    let failure = text("last_error").map(|error| unallocated_error(&name, &response, &error, api.is_dry()));
    WriteReport { kind: "allocation", name: &name, sentence, answer: response }.print(api, output).await?;
    failure.map_or(Ok(()), Err)
}

/// Returns the error for an allocation without a node. Except in a dry run, the allocation exists nevertheless, so the
/// error also contains the next step.
fn unallocated_error(name: &str, allocation: &Value, error: &str, is_dry: bool) -> Error {
    if is_dry {
        return Exit::Error.with_message(error);
    }
    let state = cell_text(allocation.get("state"));
    let next = allocation::next_step(name, allocation);
    Exit::Error.partial_failure(format!("allocation {name} exists in state {state}: {error}\n  next: {next}"))
}

/// Runs `stemma delete` and `stemma token delete`. Each object is deleted in a separate write.
pub(crate) async fn delete(api: &mut ApiClient, objects: &Targets, output: Output) -> Result<()> {
    let plan = async |_: &mut ApiClient, object: &TargetObject| {
        let kind = object.kind_arg();
        let endpoint = kind.endpoint(Method::Delete, "").expect("an object of every kind can be deleted");
        Ok(WritePlan::from_write(kind.write_request(endpoint, &object.name, &[])?, format!("{object} deleted")))
    };
    run_batch(api, objects, output, plan).await
}

/// Runs `stemma pause`, or `stemma resume` if `should_pause` is false. An object that already is in this state is not
/// written.
pub(crate) async fn pause(api: &mut ApiClient, args: &PauseArgs, should_pause: bool, output: Output) -> Result<()> {
    let objects = Targets::from_args(api, &args.object_args()).await?;
    let verb = if should_pause { "paused" } else { "resumed" };
    let plan = async |api: &mut ApiClient, object: &TargetObject| {
        let endpoint = match object.kind_arg() {
            KindArg::Cluster => Endpoint::PatchCluster,
            KindArg::Nodegroup => Endpoint::PatchGroup,
            KindArg::Node => {
                let sentence =
                    "clusters and node groups are paused; a node is held, or parked: stemma node hold, stemma node park";
                return Err(Exit::Usage.with_message(sentence));
            }
            other => {
                return Err(Exit::Usage.with_message(format!("{} has no hosts to pause", other.name_with_article())));
            }
        };
        let current = read::read_object(api, object.kind_arg(), &object.name).await?;
        if current.get("paused").is_some_and(is_set) == should_pause {
            let sentence = if should_pause { "is paused already" } else { "is not paused" };
            return Ok(WritePlan::no_change(format!("{object} {sentence}"), current));
        }
        let write = object.kind_arg().write_request(endpoint, &object.name, &[])?.with_json(&json!({"paused": should_pause}));
        let write = write.without_force(args.overwrite);
        Ok(WritePlan::from_write(write, format!("{object} {verb}")))
    };
    run_batch(api, &objects, output, plan).await
}

/// Adds the labels of the command line and `merge_labels` to the body of a new object. By default the labels merge with
/// those of the levels above, as labels in a manifest do. A template has no level above it.
fn add_labels(body: &mut Value, kind: &str, labels: &NewLabelArgs) -> Result<()> {
    if !labels.labels.is_empty() {
        body["labels"] = Value::Object(label::parse_new_labels(&labels.labels)?);
    }
    let merges_by_default = !labels.labels.is_empty() && kind != "clustertemplate";
    if let Some(merge) = labels.merge_labels.or(merges_by_default.then_some(true)) {
        body["merge_labels"] = merge.into();
    }
    Ok(())
}

/// Runs `stemma tag`: lists, creates, updates and deletes tags, and assigns them to nodes or unassigns them.
pub(crate) async fn tag(api: &mut ApiClient, command: TagCommand, output: Output) -> Result<()> {
    let (write, name, verb) = match command {
        TagCommand::List { owner } => return list_tags(api, &owner, output).await,
        TagCommand::Assign(args) => return node::assign_tags(api, &args, true, output).await,
        TagCommand::Unassign(args) => return node::assign_tags(api, &args, false, output).await,
        TagCommand::Delete { names, owner, overwrite } => {
            return delete_tags(api, &names, &owner, overwrite, output).await;
        }
        TagCommand::Create { name, owner, fields, overwrite } => {
            let endpoint = endpoint_for_owner(&owner, Endpoint::CreateClusterTag, Endpoint::CreateReleaseTag);
            // A new tag has no path of its own yet.
            (tag_write(endpoint, None, overwrite).with_json(&tag_body(&name, &fields)), name, "created")
        }
        TagCommand::Update { name, owner, fields, overwrite } => {
            let (read_endpoint, owner_name) = endpoint_for_owner(&owner, Endpoint::GetClusterTag, Endpoint::GetReleaseTag);
            let endpoint = endpoint_for_owner(&owner, Endpoint::PutClusterTag, Endpoint::PutReleaseTag);
            // The request replaces the whole tag, so it starts with the stored fields.
            let mut body = api.get(&read_endpoint.path(&[owner_name, &name])).await?;
            for (field, value) in tag_body(&name, &fields).as_object().into_iter().flatten() {
                body[field] = value.clone();
            }
            (tag_write(endpoint, Some(&name), overwrite).with_json(&body), name, "updated")
        }
    };
    let response = api.send(write).await?;
    WriteReport { kind: "tag", name: &name, sentence: format!("tag {name} {verb}"), answer: response }.print(api, output).await
}

/// Runs `stemma tag delete`. Each tag is deleted in a separate write.
async fn delete_tags(api: &mut ApiClient, names: &[String], owner: &TagOwnerArgs, overwrite: bool, output: Output) -> Result<()> {
    let endpoint = endpoint_for_owner(owner, Endpoint::DeleteClusterTag, Endpoint::DeleteReleaseTag);
    let plan = async |_: &mut ApiClient, tag: &TargetObject| {
        let tag_name = tag.name.strip_prefix("tag/").unwrap_or(&tag.name);
        Ok(WritePlan::from_write(tag_write(endpoint, Some(tag_name), overwrite), format!("{tag} deleted")))
    };
    run_batch(api, &Targets::from_names("tag", names), output, plan).await
}

/// Runs `stemma tag list`: prints the tags that are visible in a cluster or release.
async fn list_tags(api: &mut ApiClient, owner: &TagOwnerArgs, output: Output) -> Result<()> {
    let (endpoint, owner) = endpoint_for_owner(owner, Endpoint::ListClusterTags, Endpoint::ListReleaseTags);
    let tags = api.get(&endpoint.path(&[owner])).await?;
    let columns = ["name", "declared", "role", "has_primary", "title"];
    let row = |tag: &Value| columns.iter().map(|column| cell_text(tag.get(column))).collect();
    let names = read::list_items(&tags).filter_map(|tag| tag.get("name")?.as_str());
    read::print_list(&tags, ("tag", names), || table(&columns, read::list_items(&tags).map(row)), output)
}

/// Returns the endpoint for the owner of a user-defined tag, and the owner's name. The owner is a cluster or a release.
fn endpoint_for_owner(owner: &TagOwnerArgs, for_cluster: Endpoint, for_release: Endpoint) -> (Endpoint, &str) {
    match (&owner.cluster, &owner.release) {
        (Some(cluster), _) => (for_cluster, cluster),
        // The command line requires one of the two options.
        (None, release) => (for_release, release.as_deref().unwrap_or_default()),
    }
}

/// Builds a write of a user-defined tag. The tags of a cluster belong to managers, so the write fails if it would
/// change another manager's tags, unless `overwrite` is set. The tags of a release have no managers.
fn tag_write((endpoint, owner): (Endpoint, &str), tag: Option<&str>, overwrite: bool) -> WriteRequest {
    let parameters: Vec<&str> = std::iter::once(owner).chain(tag).collect();
    let write = WriteRequest::with_parameters(endpoint, &parameters);
    let is_owned = matches!(endpoint, Endpoint::CreateClusterTag | Endpoint::PutClusterTag | Endpoint::DeleteClusterTag);
    if is_owned { write.without_force(overwrite) } else { write }
}

/// Returns the request body for a user-defined tag, without the fields that the user did not give.
fn tag_body(name: &str, fields: &TagFieldArgs) -> Value {
    let mut body = json!({"name": name, "role": fields.role, "has_primary": fields.has_primary, "title": fields.title});
    body.as_object_mut().expect("created as a map").retain(|_, value| !value.is_null());
    body
}
