//! `apply`: files first as blobs, then every object in one request, all or none.

use anyhow::{Context as _, Result};
use hyper::Method;
use serde_json::{Value, json};

use crate::api::{Api, Body, Write};
use crate::args::{Files, Kind, Output};
use crate::command::{label, question};
use crate::manifest::{self, Manifests};
use crate::output::{cell, table};

/// Applies what the files hold.
///
/// # Errors
/// What is wrong with the files, and the controller's refusal with the file and line that it means.
pub(crate) async fn apply(
    api: &mut Api,
    files: &Files,
    force: bool,
    adopt: Option<&str>,
    output: Output,
) -> Result<()> {
    let manifests = manifest::read(&files.paths)?;
    let present = present(api, &manifests).await?;
    present.iter().for_each(Present::say_lost);
    let objects: Vec<(Kind, String)> = present.iter().map(|one| (one.kind, one.name.clone())).collect();
    api.within_radius_of(&objects).await?;
    if let Some(from) = adopt {
        adopt_keys(api, &present, from).await?;
    }
    send_blobs(api, &manifests).await?;
    let objects: Vec<&str> = manifests.objects.iter().map(|object| object.json.as_str()).collect();
    let body = format!("{{\"objects\":[{}]}}", objects.join(","));
    let applied = api
        .send(Write::text(Method::POST, format!("/v1/apply?force={force}"), Body::Json, body))
        .await
        .map_err(|error| placed(error, &manifests))?;
    if api.is_dry() {
        return Ok(());
    }
    match output {
        Output::Json | Output::Yaml => question::print(&applied, output),
        _ => {
            print_actions(&applied);
            Ok(())
        }
    }
}

/// An object of the files that is there already.
struct Present {
    kind: Kind,
    name: String,
    /// As its file says it.
    said: Value,
    /// As the controller has it.
    object: Value,
}

impl Present {
    /// Says which inherited keys hosts lose; what other managers provide stays as it is.
    fn say_lost(&self) {
        let mut after = label::provided(&self.object);
        after.extend(self.said.get("labels").and_then(Value::as_object).cloned().unwrap_or_default());
        let merge = self.said.get("merge_labels").and_then(Value::as_bool);
        label::say_lost(&format!("{} {}", self.kind.name(), self.name), &self.object, &after, merge);
    }
}

/// Those that are there and stand on a level of labels.
async fn present(api: &mut Api, manifests: &Manifests) -> Result<Vec<Present>> {
    let mut present = Vec::new();
    for manifest in &manifests.objects {
        let said: Value = serde_json::from_str(&manifest.json)?;
        let text = |field: &str| said.get(field).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = match text("kind") {
            "ClusterTemplate" => (Kind::Clustertemplate, text("name").to_owned()),
            "Cluster" => (Kind::Cluster, text("name").to_owned()),
            "NodeGroup" => (Kind::Nodegroup, format!("{}/{}", text("cluster"), text("name"))),
            "Node" => (Kind::Node, text("name").to_owned()),
            _ => continue,
        };
        if let Some(object) = api.find(&kind.path(&name)?).await? {
            present.push(Present { kind, name, said, object });
        }
    }
    Ok(present)
}

/// Hands the keys that the files name from one manager to this one, so that the apply meets no conflict over them.
async fn adopt_keys(api: &mut Api, present: &[Present], from: &str) -> Result<()> {
    let to = api.manager().context("--adopt takes keys over for a manager: say which with --manager")?.to_owned();
    for one in present {
        for (map, owners) in
            [("labels", "label_owners"), ("annotations", "annotation_owners"), ("parameters", "parameter_owners")]
        {
            let said = one.said.get(map).and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key);
            let owned = |key: &&String| {
                let owners =
                    one.object.get(owners).and_then(|owners| owners.get(key.as_str())).and_then(Value::as_array);
                owners.into_iter().flatten().filter_map(Value::as_str).any(|owner| is_of(owner, from))
            };
            let keys: Vec<&String> = said.filter(owned).collect();
            if !keys.is_empty() {
                let path = format!("{}/{map}/owners", one.kind.path(&one.name)?);
                let body = json!({"from": from, "to": to, "keys": keys});
                api.send(Write::json(Method::POST, path, Body::Json, &body)).await?;
            }
        }
    }
    Ok(())
}

/// Whether an owner, as `git:apply`, is a manager's.
fn is_of(owner: &str, manager: &str) -> bool {
    owner == manager || owner.split_once(':').is_some_and(|(name, _)| name == manager)
}

async fn send_blobs(api: &mut Api, manifests: &Manifests) -> Result<()> {
    for (hash, path) in &manifests.blobs {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        api.send(Write::file(format!("/v1/blobs/{hash}"), bytes)).await.with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// An error about `objects[2].labels` with the file and line that it means.
fn placed(error: anyhow::Error, manifests: &Manifests) -> anyhow::Error {
    let text = error.to_string();
    let place = meant(&text).and_then(|(index, field)| Some(manifests.objects.get(index)?.place(&field)));
    match place {
        Some(place) => error.context(place),
        None => error,
    }
}

/// Which object an error means, and which field of it: its own, else the first key that it names.
fn meant(text: &str) -> Option<(usize, String)> {
    let (index, rest) = text.split_once("objects[")?.1.split_once(']')?;
    let field: String = rest.trim_start_matches('.').chars().take_while(|letter| !": \n".contains(*letter)).collect();
    let keyed = |word: &&str| ["labels.", "annotations.", "parameters."].iter().any(|map| word.starts_with(map));
    let key = rest.split_whitespace().find(keyed).unwrap_or_default();
    let field = if field.is_empty() { key.to_owned() } else { field };
    Some((index.parse().ok()?, field))
}

fn print_actions(applied: &Value) {
    let rows = applied
        .get("objects")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|object| vec![cell(object.get("kind")), cell(object.get("name")), cell(object.get("action"))]);
    say!("{}", table(&["kind", "name", "action"], rows));
    print_findings(applied.get("findings").unwrap_or(&json!([])));
}

/// Findings, the gravest first as they came.
pub(crate) fn print_findings(findings: &Value) {
    for finding in findings.as_array().into_iter().flatten() {
        say!("{} {}: {}", cell(finding.get("severity")), cell(finding.get("object")), cell(finding.get("message")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_means_an_object_and_a_field() {
        for (text, expected) in [
            ("objects[2].labels: cluster/c: key x is none", Some((2, "labels"))),
            ("objects[0].tasks[1].id: is missing", Some((0, "tasks[1].id"))),
            ("objects[0]: clustertemplate/base: labels.ntp is \"a\" by git:apply", Some((0, "labels.ntp"))),
            ("objects[1]: cluster/c is there twice", Some((1, ""))),
            ("no such thing", None),
        ] {
            assert_eq!(meant(text), expected.map(|(index, field)| (index, field.to_owned())), "{text}");
        }
    }
}
