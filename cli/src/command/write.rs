//! Writes: create, delete, labels, traits, roles, tags, tokens.

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use stemma_wire::endpoint::{Endpoint, Method};

use crate::api::{Api, Write};
use crate::args::{Create, Kind, NewLabels, Output, Role, Tag, TagFields, TagOwner, Trait};
use crate::command::done::Done;
use crate::command::{label, question};
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
    };
    body["name"] =
        Value::from(name.rsplit_once('/').filter(|_| kind == "nodegroup").map_or(name.as_str(), |(_, own)| own));
    add_labels(&mut body, kind, &labels)?;
    let map = body.as_object_mut().expect("a body was made as a map");
    map.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty()));
    let answer = api.send(write.json(&body)).await?;
    Done { kind, name: &name, sentence: format!("{kind} {name} created"), answer }.say(api, output).await
}

/// `delete`.
pub(crate) async fn delete(api: &mut Api, kind: Kind, name: &str, output: Output) -> Result<()> {
    let row = kind.row(Method::Delete, "").expect("an object of every kind can be deleted");
    let answer = api.send(kind.write(row, name, &[])?).await?;
    Done { kind: kind.name(), name, sentence: format!("{} {name} deleted", kind.name()), answer }.say(api, output).await
}

/// Labels of a new object, which merge as a manifest's do; nothing stands above a template.
fn add_labels(body: &mut Value, kind: &str, labels: &NewLabels) -> Result<()> {
    if !labels.labels.is_empty() {
        let given = label::patch(&labels.labels, &[])?;
        if let Some((key, _)) = given.iter().find(|(_, value)| value.is_null()) {
            bail!(
                "--labels sets KEY=VALUE, and {key:?} has no value: `stemma label … --not-inherited {key}` stops one"
            );
        }
        body["labels"] = Value::Object(given);
    }
    let merges = !labels.labels.is_empty() && kind != "clustertemplate";
    if let Some(merge) = labels.merge_labels.or(merges.then_some(true)) {
        body["merge_labels"] = merge.into();
    }
    Ok(())
}

/// One line about a node.
async fn of_node(api: &mut Api, node: &str, sentence: String, answer: Value, output: Output) -> Result<()> {
    Done { kind: "node", name: Kind::Node.bare(node), sentence, answer }.say(api, output).await
}

/// `trait`.
pub(crate) async fn traits(api: &mut Api, what: Trait, output: Output) -> Result<()> {
    match what {
        Trait::List { node } => list_traits(api, &node, output).await,
        Trait::Add { node, traits } => {
            each_trait(api, Endpoint::AddNodeTrait, &node, &traits, "was given").await?;
            of_node(api, &node, format!("node {node} has {}", traits.join(", ")), Value::Null, output).await
        }
        Trait::Remove { node, all: true, .. } => {
            api.send(Kind::Node.write(Endpoint::DeleteNodeTraits, &node, &[])?).await?;
            let sentence = format!("node {node}: all traits that operators gave are gone");
            of_node(api, &node, sentence, Value::Null, output).await
        }
        Trait::Remove { node, traits, all: false } => {
            if traits.is_empty() {
                bail!("which? name traits, or say --all");
            }
            each_trait(api, Endpoint::DeleteNodeTrait, &node, &traits, "has lost").await?;
            of_node(api, &node, format!("node {node} no longer has {}", traits.join(", ")), Value::Null, output).await
        }
        Trait::Suppress { node, traits } => suppress(api, &node, traits, output).await,
    }
}

/// Each trait is a request of its own; where one fails, what was done before it is said.
async fn each_trait(api: &mut Api, row: Endpoint, node: &str, traits: &[String], became: &str) -> Result<()> {
    for (at, name) in traits.iter().enumerate() {
        let sent = api.send(Kind::Node.write(row, node, &[name])?).await;
        sent.with_context(|| match &traits[..at] {
            [] => format!("trait {name}"),
            done => format!("node {node} {became} {}, but not {name}", done.join(", ")),
        })?;
    }
    Ok(())
}

async fn list_traits(api: &mut Api, node: &str, output: Output) -> Result<()> {
    let object = api.get(&Kind::Node.path(node)?).await?;
    let sources = object.get("trait_sources").cloned().unwrap_or_default();
    let rows = || sources.as_object().into_iter().flatten();
    let row = |(name, from): (&String, &Value)| vec![name.clone(), cell(Some(from))];
    let shown = || table(&["trait", "from"], rows().map(row));
    question::print_list(&sources, ("trait", rows().map(|(name, _)| name.as_str())), shown, output)
}

async fn suppress(api: &mut Api, node: &str, traits: Vec<String>, output: Output) -> Result<()> {
    let object = api.get(&Kind::Node.path(node)?).await?;
    let present = object.get("suppressed_traits").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut all: Vec<String> = present.iter().filter_map(Value::as_str).map(str::to_owned).chain(traits).collect();
    all.sort();
    all.dedup();
    let body = json!({"suppressed_traits": all});
    let revision = object.get("resource_version").and_then(Value::as_u64);
    // The whole list, unless someone else wrote meanwhile.
    let write = Kind::Node.write(Endpoint::PatchNode, node, &[])?;
    let answer = api.send(write.json(&body).if_still_at(revision)).await?;
    of_node(api, node, format!("node {node}: suppressed {}", all.join(", ")), answer, output).await
}

/// `role`.
pub(crate) async fn role(api: &mut Api, what: Role, output: Output) -> Result<()> {
    let (row, node, roles, has) = match what {
        Role::Add { node, roles } => (Endpoint::GiveNodeRoles, node, roles, "has"),
        Role::Remove { node, roles } => (Endpoint::TakeNodeRoles, node, roles, "no longer has"),
    };
    let answer = api.send(Kind::Node.write(row, &node, &[])?.json(&json!({"roles": roles}))).await?;
    of_node(api, &node, format!("node {node} {has} role {}", roles.join(", ")), answer, output).await
}

/// `tag`.
pub(crate) async fn tag(api: &mut Api, what: Tag, output: Output) -> Result<()> {
    let (write, name, became) = match what {
        Tag::List { owner } => return list_tags(api, &owner, output).await,
        Tag::Assign { node, tags } => {
            return hand(api, Endpoint::AssignNodeTags, &node, &tags, "assigned", output).await;
        }
        Tag::Unassign { node, tags } => {
            return hand(api, Endpoint::UnassignNodeTags, &node, &tags, "unassigned", output).await;
        }
        Tag::Create { name, owner, fields } => {
            let (row, owner) = owned(&owner, Endpoint::CreateClusterTag, Endpoint::CreateReleaseTag);
            (Write::to(row, &[owner]).json(&tag_body(&name, &fields)), name, "created")
        }
        Tag::Update { name, owner, fields } => {
            let (row, owner) = owned(&owner, Endpoint::PutClusterTag, Endpoint::PutReleaseTag);
            (Write::to(row, &[owner, &name]).json(&tag_body(&name, &fields)), name, "updated")
        }
        Tag::Delete { name, owner } => {
            let (row, owner) = owned(&owner, Endpoint::DeleteClusterTag, Endpoint::DeleteReleaseTag);
            (Write::to(row, &[owner, &name]), name, "deleted")
        }
    };
    let answer = api.send(write).await?;
    Done { kind: "tag", name: &name, sentence: format!("tag {name} {became}"), answer }.say(api, output).await
}

async fn list_tags(api: &mut Api, owner: &TagOwner, output: Output) -> Result<()> {
    let (row, owner) = owned(owner, Endpoint::ListClusterTags, Endpoint::ListReleaseTags);
    let tags = api.get(&row.path(&[owner])).await?;
    let columns = ["name", "role", "has_primary", "title"];
    let row = |tag: &Value| columns.iter().map(|column| cell(tag.get(column))).collect();
    let names = question::items(&tags).filter_map(|tag| tag.get("name")?.as_str());
    question::print_list(&tags, ("tag", names), || table(&columns, question::items(&tags).map(row)), output)
}

/// Assigns or unassigns several tags by hand, all or none.
async fn hand(api: &mut Api, row: Endpoint, node: &str, tags: &[String], became: &str, output: Output) -> Result<()> {
    let answer = api.send(Kind::Node.write(row, node, &[])?.json(&json!({"tags": tags}))).await?;
    of_node(api, node, format!("node {node}: {became} {}", tags.join(", ")), answer, output).await
}

/// The row for the owner of user-defined tags, and the owner's name.
fn owned(owner: &TagOwner, of_cluster: Endpoint, of_release: Endpoint) -> (Endpoint, &str) {
    match (&owner.cluster, &owner.release) {
        (Some(cluster), _) => (of_cluster, cluster),
        (None, release) => (of_release, release.as_deref().unwrap_or_default()),
    }
}

fn tag_body(name: &str, fields: &TagFields) -> Value {
    let mut body = json!({"name": name, "role": fields.role, "has_primary": fields.has_primary, "title": fields.title});
    body.as_object_mut().expect("made as a map").retain(|_, value| !value.is_null());
    body
}
