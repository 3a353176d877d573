//! `apply`: files first as blobs, then every object in one request, all or none.

use anyhow::{Context as _, Result};
use hyper::Method;
use serde_json::{Value, json};

use crate::api::{Api, Body, Write, escaped};
use crate::args::{Files, Output};
use crate::command::question;
use crate::manifest::{self, Manifests};
use crate::output::{cell, table};

/// Applies what the files hold.
pub(crate) async fn apply(
    api: &mut Api,
    files: &Files,
    force: bool,
    adopt: Option<&str>,
    output: Output,
) -> Result<()> {
    let manifests = manifest::read(&files.paths)?;
    send_blobs(api, &manifests).await?;
    let mut query = vec![format!("force={force}")];
    query.extend(adopt.map(|from| format!("adopt={}", escaped(from))));
    let objects: Vec<&str> = manifests.objects.iter().map(|object| object.json.as_str()).collect();
    let body = format!("{{\"objects\":[{}]}}", objects.join(","));
    let applied = api
        .send(Write::text(Method::POST, format!("/v1/apply?{}", query.join("&")), Body::Json, body))
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
    let place = text.find("objects[").and_then(|start| {
        let rest = &text[start + "objects[".len()..];
        let (index, after) = rest.split_once(']')?;
        let field: String =
            after.trim_start_matches('.').chars().take_while(|letter| !": \n".contains(*letter)).collect();
        Some(manifests.objects.get(index.parse::<usize>().ok()?)?.place(&field))
    });
    match place {
        Some(place) => error.context(place),
        None => error,
    }
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
