//! `catalog import`: namespaces from Glance's files, or those that come with this program, put into the stored catalogue when that is
//! asked for, all of them or none.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use stemma_core::catalog::{as_written, builtin, merged, without_read_only};
use stemma_core::manifest::{assemble, read_document};
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::Endpoint;

use crate::api::{Api, Write};
use crate::args::{Global, Kind, Mode};
use crate::command::apply::print_applied;
use crate::command::done::note_dry_run;
use crate::exit::Exit;
use crate::manifest::{MAX_MANIFEST, text};
use crate::place::Places;

/// Under whose name an import writes, unless said.
const MANAGER: &str = "catalog-import";

/// A namespace to import.
struct Given {
    /// Its name.
    name: String,
    /// Its body, with `kind`.
    body: Map<String, Value>,
}

/// Imports what the paths hold, and what comes with the program where that is asked for.
///
/// # Errors
/// A file that holds no namespace; the controller's refusal; status 6 where a comparison finds a difference.
pub(crate) async fn import(global: &Global, paths: &[PathBuf], with_builtin: bool, mode: Mode) -> Result<()> {
    let mut given = Vec::new();
    if with_builtin {
        for body in builtin() {
            given.push(read(body).context("what comes with this program")?);
        }
    }
    for file in files(paths)? {
        let place = || file.display().to_string();
        let body: Value = serde_json::from_str(&text(&file, MAX_MANIFEST)?).with_context(place)?;
        given.push(read(body).with_context(place)?);
    }
    let global = Global {
        manager: Some(global.manager.clone().unwrap_or(MANAGER.to_owned())),
        dry_run: global.dry_run || mode == Mode::Diff,
        ..global.clone()
    };
    let api = &mut Api::new(&global)?;
    let mut objects = Vec::new();
    for one in given {
        objects.extend(to_send(api, one, mode).await?.map(Value::Object));
    }
    send(api, &global, objects, mode).await
}

/// What is sent of a namespace, if anything. If the decision used the stored namespace, the write is refused when the namespace has changed since.
async fn to_send(api: &mut Api, given: Given, mode: Mode) -> Result<Option<Map<String, Value>>> {
    if matches!(mode, Mode::Diff | Mode::Overwrite) {
        return Ok(Some(given.body));
    }
    let (mut body, revision) = match (api.find_tagged(&Kind::Namespace.path(&given.name)?).await?, mode) {
        (Some((Value::Object(stored), revision)), Mode::Merge) => (merged(as_written(stored), given.body), revision),
        (Some(_), _) => {
            let advice = "--diff shows what would change, --merge and --overwrite change it";
            tell!("namespace {} is stored already and stays as it is: {advice}", given.name);
            return Ok(None);
        }
        (None, _) => (given.body, 0),
    };
    body.insert("kind".to_owned(), Kind::Namespace.manifest_name().into());
    body.insert("resource_version".to_owned(), revision.into());
    Ok(Some(body))
}

async fn send(api: &mut Api, global: &Global, objects: Vec<Value>, mode: Mode) -> Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    let path = format!("{}?force=true", Endpoint::Apply.path(&[]));
    let applied = api.send(Write::at(Endpoint::Apply, path).json(&json!({"objects": objects}))).await?;
    print_applied(api, &applied, &Places::of(&[]), global.output).await?;
    note_dry_run(api);
    let actions = applied.get("objects").and_then(Value::as_array).into_iter().flatten();
    let differ = actions.filter(|one| one.get("action").and_then(Value::as_str) != Some("unchanged")).count();
    if mode == Mode::Diff && differ > 0 {
        let sentence = format!("{differ} of {} namespaces are not stored as they are imported", objects.len());
        return Err(Exit::Differs.because(sentence));
    }
    Ok(())
}

/// Reads a namespace as the controller will, so that an error names the file.
fn read(body: Value) -> Result<Given> {
    let Value::Object(mut body) = body else { bail!("it is no namespace: a JSON object is one") };
    without_read_only(&mut body);
    let kind = Kind::Namespace.manifest_name();
    if body.insert("kind".to_owned(), kind.into()).is_some_and(|other| other != kind) {
        bail!("it is no namespace: its kind is another");
    }
    let document = read_document(&Value::Object(body.clone()).to_string())?;
    assemble(std::slice::from_ref(&document), &Manager::new(MANAGER)?).map_err(|mut errors| errors.swap_remove(0).1)?;
    let name = body.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Given { name, body })
}

/// The files, and those of the directories.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() { files.extend(of_directory(path)?) } else { files.push(path.clone()) }
    }
    Ok(files)
}

fn of_directory(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
    let all: std::io::Result<Vec<PathBuf>> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files = all.with_context(|| path.display().to_string())?;
    files.retain(|file| file.extension().is_some_and(|ends| ends == "json"));
    if files.is_empty() {
        bail!("{} holds no *.json", path.display());
    }
    files.sort();
    Ok(files)
}
