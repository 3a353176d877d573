//! Writes: create, delete, labels, traits, roles, tags, tokens.

use anyhow::{Result, bail};
use hyper::Method;
use serde_json::{Value, json};

use crate::api::{Api, Body, Write, escaped};
use crate::args::{Create, Kind, NewLabels, Output, Role, Tag, TagFields, TagOwner, Token, Trait};
use crate::command::{label, question};
use crate::exit::Exit;

/// `create`.
pub(crate) async fn create(api: &mut Api, what: Create) -> Result<()> {
    let (kind, path, name, mut body, labels) = match what {
        Create::Clustertemplate { name, release, labels } => {
            ("clustertemplate", "/v1/clustertemplates".to_owned(), name, json!({"release": release}), labels)
        }
        Create::Cluster { name, cluster_template, labels } => {
            ("cluster", "/v1/clusters".to_owned(), name, json!({"cluster_template_id": cluster_template}), labels)
        }
        Create::Nodegroup { cluster, name, roles, labels } => {
            let path = format!("/v1/clusters/{}/nodegroups", escaped(&cluster));
            ("nodegroup", path, name, json!({"roles": roles}), labels)
        }
        Create::Node { name, nodegroup, labels } => {
            ("node", "/v1/nodes".to_owned(), name, json!({"nodegroup": nodegroup}), labels)
        }
    };
    body["name"] = Value::from(name.as_str());
    add_labels(&mut body, &labels)?;
    let map = body.as_object_mut().expect("a body was made as a map");
    map.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty()));
    api.send(Write::json(Method::POST, path, Body::Json, &body)).await?;
    done(api, &format!("{kind} {name} created"));
    Ok(())
}

/// `delete`.
pub(crate) async fn delete(api: &mut Api, kind: Kind, name: &str) -> Result<()> {
    api.within_radius(kind, name).await?;
    api.send(Write::empty(Method::DELETE, kind.path(name)?)).await?;
    done(api, &format!("{} {name} deleted", kind.name()));
    Ok(())
}

fn add_labels(body: &mut Value, labels: &NewLabels) -> Result<()> {
    if !labels.labels.is_empty() {
        body["labels"] = Value::Object(label::patch(&labels.labels)?);
    }
    if labels.merge_labels {
        body["merge_labels"] = Value::Bool(true);
    }
    Ok(())
}

/// `trait`.
pub(crate) async fn traits(api: &mut Api, what: Trait, output: Output) -> Result<()> {
    match what {
        Trait::List { node } => list_traits(api, &node, output).await,
        Trait::Add { node, traits } => {
            for name in &traits {
                api.send(Write::empty(Method::PUT, trait_path(&node, name))).await?;
            }
            done(api, &format!("node {node} has {}", traits.join(", ")));
            Ok(())
        }
        Trait::Remove { node, all: true, .. } => {
            api.send(Write::empty(Method::DELETE, format!("{}/traits", Kind::Node.path(&node)?))).await?;
            done(api, &format!("node {node}: all traits that operators gave are gone"));
            Ok(())
        }
        Trait::Remove { node, traits, all: false } => {
            if traits.is_empty() {
                bail!("which? name traits, or say --all");
            }
            for name in &traits {
                api.send(Write::empty(Method::DELETE, trait_path(&node, name))).await?;
            }
            done(api, &format!("node {node} no longer has {}", traits.join(", ")));
            Ok(())
        }
        Trait::Suppress { node, traits } => suppress(api, &node, traits).await,
    }
}

async fn list_traits(api: &mut Api, node: &str, output: Output) -> Result<()> {
    let object = api.get(&Kind::Node.path(node)?).await?;
    let sources = object.get("trait_sources").cloned().unwrap_or_default();
    match output {
        Output::Json | Output::Yaml => question::print(&sources, output),
        _ => {
            let rows = sources
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, from)| vec![name.clone(), crate::output::cell(Some(from))]);
            say!("{}", crate::output::table(&["trait", "from"], rows));
            Ok(())
        }
    }
}

async fn suppress(api: &mut Api, node: &str, traits: Vec<String>) -> Result<()> {
    let path = Kind::Node.path(node)?;
    let object = api.get(&path).await?;
    let present = object.get("suppressed_traits").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut all: Vec<String> = present.iter().filter_map(Value::as_str).map(str::to_owned).chain(traits).collect();
    all.sort();
    all.dedup();
    api.send(Write::json(Method::PATCH, path, Body::Merge, &json!({"suppressed_traits": all}))).await?;
    done(api, &format!("node {node}: suppressed {}", all.join(", ")));
    Ok(())
}

fn trait_path(node: &str, name: &str) -> String {
    format!("/v1/nodes/{}/traits/{}", escaped(node), escaped(name))
}

/// `role`.
pub(crate) async fn role(api: &mut Api, what: Role) -> Result<()> {
    match what {
        Role::Add { node, roles } => {
            let path = format!("{}/roles", Kind::Node.path(&node)?);
            api.send(Write::json(Method::POST, path, Body::Json, &json!({"roles": roles}))).await?;
            done(api, &format!("node {node} has role {}", roles.join(", ")));
        }
        Role::Remove { node, roles } => {
            let path = format!("{}/roles", Kind::Node.path(&node)?);
            api.send(Write::json(Method::DELETE, path, Body::Json, &json!({"roles": roles}))).await?;
            done(api, &format!("node {node} no longer has role {}", roles.join(", ")));
        }
    }
    Ok(())
}

/// `tag`.
pub(crate) async fn tag(api: &mut Api, what: Tag, output: Output) -> Result<()> {
    match what {
        Tag::List { owner } => {
            let tags = api.get(&tags_path(&owner)).await?;
            match output {
                Output::Json | Output::Yaml => question::print(&tags, output)?,
                _ => say!("{}", tag_table(&tags)),
            }
        }
        Tag::Create { name, owner, fields } => {
            let body = tag_body(&name, &fields);
            api.send(Write::json(Method::POST, tags_path(&owner), Body::Json, &body)).await?;
            done(api, &format!("tag {name} created"));
        }
        Tag::Update { name, owner, fields } => {
            let path = format!("{}/{}", tags_path(&owner), escaped(&name));
            api.send(Write::json(Method::PUT, path, Body::Json, &tag_body(&name, &fields))).await?;
            done(api, &format!("tag {name} updated"));
        }
        Tag::Delete { name, owner } => {
            api.send(Write::empty(Method::DELETE, format!("{}/{}", tags_path(&owner), escaped(&name)))).await?;
            done(api, &format!("tag {name} deleted"));
        }
        Tag::Assign { node, tags } => {
            hand(api, Method::POST, &node, &tags).await?;
            done(api, &format!("node {node}: assigned {}", tags.join(", ")));
        }
        Tag::Unassign { node, tags } => {
            hand(api, Method::DELETE, &node, &tags).await?;
            done(api, &format!("node {node}: unassigned {}", tags.join(", ")));
        }
    }
    Ok(())
}

/// Assigns or unassigns several tags by hand, all or none.
async fn hand(api: &mut Api, method: Method, node: &str, tags: &[String]) -> Result<()> {
    let path = format!("{}/tags", Kind::Node.path(node)?);
    api.send(Write::json(method, path, Body::Json, &json!({"tags": tags}))).await?;
    Ok(())
}

fn tags_path(owner: &TagOwner) -> String {
    match (&owner.cluster, &owner.release) {
        (Some(cluster), _) => format!("/v1/clusters/{}/tags", escaped(cluster)),
        (None, release) => format!("/v1/releases/{}/tags", escaped(release.as_deref().unwrap_or_default())),
    }
}

fn tag_body(name: &str, fields: &TagFields) -> Value {
    let mut body = json!({"name": name, "role": fields.role, "has_primary": fields.has_primary, "title": fields.title});
    body.as_object_mut().expect("made as a map").retain(|_, value| !value.is_null());
    body
}

fn tag_table(tags: &Value) -> String {
    let list = tags.as_object().and_then(|map| map.values().find_map(Value::as_array));
    let columns = ["name", "role", "has_primary", "title"];
    let row = |tag: &Value| columns.iter().map(|column| crate::output::cell(tag.get(column))).collect();
    crate::output::table(&columns, list.into_iter().flatten().map(row))
}

/// `token`.
pub(crate) async fn token(api: &mut Api, what: Token, output: Output) -> Result<()> {
    match what {
        Token::Create { nodegroup, node, uses, ttl_seconds } => {
            let mut body = json!({"nodegroup": nodegroup, "node": node, "uses": uses, "ttl_seconds": ttl_seconds});
            body.as_object_mut().expect("made as a map").retain(|_, value| !value.is_null());
            let made = api.send(Write::json(Method::POST, "/v1/join-tokens", Body::Json, &body)).await?;
            match output {
                Output::Json | Output::Yaml => question::print(&made, output)?,
                _ if api.is_dry() => {}
                _ => {
                    let token = made.get("token").and_then(Value::as_str);
                    say!("{}", token.ok_or_else(|| Exit::Error.because("the answer holds no token"))?);
                }
            }
            Ok(())
        }
        Token::List => question::get(api, Kind::Token, &[], &crate::args::Filter::default(), output).await,
        Token::Delete { id } => delete(api, Kind::Token, &id).await,
        Token::CaHash => unreachable!("it needs no controller and was answered before"),
    }
}

/// One line for people, once something was done.
pub(crate) fn done(api: &Api, sentence: &str) {
    if !api.is_dry() {
        say!("{}", crate::output::printable(sentence));
    }
}
