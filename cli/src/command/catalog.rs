//! `stemma catalog import`: stores namespaces in the catalogue, from files with metadata definitions of Glance
//! (`OpenStack`'s image service). On request, it also stores the built-in namespaces. Either all of the namespaces are
//! stored or none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use stemma_core::catalog::{builtin_namespaces, merge_namespace, remove_read_only_members, to_authored};
use stemma_core::json;
use stemma_core::manifest::{MAX_DEPTH, assemble, read_document, with_label_texts};
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::quote;

use crate::api::{ApiClient, WriteRequest};
use crate::args::{GlobalArgs, ImportMode, KindArg};
use crate::command::apply::print_applied;
use crate::command::manifest::is_set;
use crate::command::report::print_dry_run;
use crate::directory::{Listing, NAMESPACE_EXTENSIONS, VisitedPaths};
use crate::exit::Exit;
use crate::manifest::{MAX_MANIFEST_BYTES, read_text, without_bom};
use crate::source_map::SourceMap;

/// Name of the manager of an import, if `--manager` is not given.
const DEFAULT_MANAGER: &str = "catalog-import";

/// Text that replaces the file name as the source of a built-in namespace.
const BUILTIN_SOURCE: &str = "built-in namespaces";

/// A namespace of the catalogue to import.
struct ImportItem {
    /// Path of the file, or [`BUILTIN_SOURCE`].
    source: String,
    /// Name of the namespace.
    name: String,
    /// JSON body of the namespace, including the field `kind`.
    body: Map<String, Value>,
}

/// Imports the namespaces in the paths, and the built-in namespaces if `with_builtin` is set.
///
/// # Errors
/// If a file is not a namespace, or the controller refuses the write. With status 6 if [`ImportMode::Diff`] finds a
/// difference.
pub(crate) async fn import(global: &GlobalArgs, paths: &[PathBuf], with_builtin: bool, mode: ImportMode) -> Result<()> {
    let items = read_items(paths, with_builtin)?;
    let global = GlobalArgs {
        manager: Some(global.manager.clone().unwrap_or(DEFAULT_MANAGER.to_owned())),
        dry_run: global.dry_run || mode == ImportMode::Diff,
        ..global.clone()
    };
    let api = &mut ApiClient::new(&global)?;
    let mut objects = Vec::new();
    for item in items {
        objects.extend(request_body(api, item, mode).await?.map(Value::Object));
    }
    send_objects(api, &global, objects, mode).await
}

/// Returns the namespaces to import. Fails if two sources contain a namespace of the same name.
fn read_items(paths: &[PathBuf], with_builtin: bool) -> Result<Vec<ImportItem>> {
    let builtin = if with_builtin { builtin_namespaces() } else { Vec::new() };
    let builtin = builtin.into_iter().map(|body| parse_item(BUILTIN_SOURCE.to_owned(), body));
    let from_files = list_files(paths)?.into_iter().map(|file| read_file(&file));
    let items = builtin.chain(from_files).collect::<Result<Vec<ImportItem>>>()?;
    let mut source_by_name = BTreeMap::new();
    for ImportItem { source: place, name, .. } in &items {
        if let Some(first) = source_by_name.insert(name, place) {
            bail!("{place}: namespace {} is in {first} too: keep one of them", quote(name));
        }
    }
    Ok(items)
}

/// Returns the body to send for a namespace. Returns `None` and prints a note if the namespace is stored already and
/// `mode` is [`ImportMode::Keep`]. If the body depends on what is stored, it contains the revision of the stored
/// namespace, or 0 if none is stored. The controller then refuses the write if the stored namespace has changed.
async fn request_body(api: &mut ApiClient, item: ImportItem, mode: ImportMode) -> Result<Option<Map<String, Value>>> {
    if matches!(mode, ImportMode::Diff | ImportMode::Overwrite) {
        return Ok(Some(item.body));
    }
    let (mut body, revision) = match (api.find_tagged(&KindArg::Namespace.path(&item.name)?).await?, mode) {
        (Some((Value::Object(stored), revision)), ImportMode::Merge) => (extended_fields(&to_authored(stored), item), revision),
        (Some(_), _) => {
            let advice = "--diff shows what would change, --merge and --overwrite change it";
            errln!("namespace {} is stored already and stays unchanged: {advice}", item.name);
            return Ok(None);
        }
        (None, _) => (item.body, 0),
    };
    body.insert("kind".to_owned(), KindArg::Namespace.manifest_name().into());
    body.insert("resource_version".to_owned(), revision.into());
    Ok(Some(body))
}

/// Returns the fields of the given namespace that add to the stored namespace, merged with the stored values. Other
/// fields are not sent, so their owners remain unchanged.
fn extended_fields(stored: &Map<String, Value>, item: ImportItem) -> Map<String, Value> {
    let mut fields = merge_namespace(stored.clone(), item.body);
    fields.retain(|name, value| is_set(value) && stored.get(name) != Some(value));
    fields.insert("namespace".to_owned(), item.name.into());
    fields
}

/// Applies the namespaces in one request and prints the result. What other managers own is taken over. With
/// [`ImportMode::Diff`], the request is a dry run, and the function fails if a namespace differs from what is stored.
async fn send_objects(api: &mut ApiClient, global: &GlobalArgs, objects: Vec<Value>, mode: ImportMode) -> Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    // A partial apply changes only the fields that are sent. It takes over only these.
    let path = format!("{}?force=true&partial={}", Endpoint::Apply.path(&[]), mode == ImportMode::Merge);
    let applied = api.send(WriteRequest::new(Endpoint::Apply, path).with_json(&json!({"objects": objects}))).await?;
    print_applied(api, &applied, &SourceMap::new(&[]), global.output).await?;
    print_dry_run(api);
    let results = applied.get("objects").and_then(Value::as_array).into_iter().flatten();
    let differing = results.filter(|object| object.get("action").and_then(Value::as_str) != Some("unchanged")).count();
    if mode == ImportMode::Diff && differing > 0 {
        let sentence = format!("{differing} of {} namespaces differ from the stored ones", objects.len());
        return Err(Exit::Differs.with_message(sentence));
    }
    Ok(())
}

/// Reads a namespace from a JSON file. Fails for a repeated key, for more than [`MAX_DEPTH`] levels of nesting, and for
/// what the controller would refuse.
fn read_file(file: &Path) -> Result<ImportItem> {
    let place = file.display().to_string();
    let text = read_text(file, MAX_MANIFEST_BYTES).with_context(|| place.clone())?;
    // The text is checked before it becomes a map, because a map has no repeated keys and changes numbers.
    let raw: &RawValue = serde_json::from_str(without_bom(&text)).with_context(|| place.clone())?;
    if json::nesting_depth(raw.get()) > MAX_DEPTH {
        bail!("{place}: more than {MAX_DEPTH} levels of nesting");
    }
    check_duplicate_keys(raw).with_context(|| place.clone())?;
    let body = json::parse_value(&with_label_texts(raw)).with_context(|| place.clone())?;
    parse_item(place, body)
}

/// Fails if a JSON object, at any depth, has a repeated key. A parser would use the last value and silently drop the
/// first.
fn check_duplicate_keys(raw: &RawValue) -> Result<()> {
    if !raw.get().starts_with('{') {
        return json::items(raw).into_iter().try_for_each(check_duplicate_keys);
    }
    let mut keys = BTreeSet::new();
    for (key, value) in json::members(raw)? {
        check_duplicate_keys(value)?;
        if let Some(repeated) = keys.replace(key) {
            bail!("the key {repeated:?} is repeated in one object: keep one of them; nothing was changed");
        }
    }
    Ok(())
}

/// Parses a namespace by the rules of the controller. An error names the source of the namespace.
fn parse_item(place: String, body: Value) -> Result<ImportItem> {
    match parse_namespace(body) {
        Ok((name, body)) => Ok(ImportItem { source: place, name, body }),
        Err(error) => Err(error.context(place)),
    }
}

/// Returns the name of a namespace, and its body with `kind` and without read-only fields. Fails for what the
/// controller would refuse.
fn parse_namespace(body: Value) -> Result<(String, Map<String, Value>)> {
    let Value::Object(mut body) = body else { bail!("not a namespace: a namespace is a JSON object") };
    remove_read_only_members(&mut body);
    let kind = KindArg::Namespace.manifest_name();
    if body.insert("kind".to_owned(), kind.into()).is_some_and(|other| other != kind) {
        bail!("not a namespace: it has another `kind`");
    }
    let document = read_document(&Value::Object(body.clone()).to_string())?;
    // The controller assembles a manifest in the same way. Only the errors matter here, so the manager has no effect.
    // An error is a pair of the document's index and the error itself.
    assemble(std::slice::from_ref(&document), &Manager::new(DEFAULT_MANAGER)?).map_err(|mut errors| errors.swap_remove(0).1)?;
    let name = body.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((name, body))
}

/// Returns the named files and the files in the named directories, each once.
fn list_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut visited = VisitedPaths::new(paths);
    for path in paths {
        let path_files = if path.is_dir() { list_directory(path, &mut visited)? } else { vec![path.clone()] };
        files.extend(path_files.into_iter().filter(|file| visited.visit(file)));
    }
    Ok(files)
}

/// Returns the namespace files directly in a directory, and warns of skipped files. Fails if there is no file to read.
fn list_directory(path: &Path, visited: &mut VisitedPaths) -> Result<Vec<PathBuf>> {
    let mut listing = Listing::read(path, NAMESPACE_EXTENSIONS).with_context(|| path.display().to_string())?;
    visited.retain_new(&mut listing.skipped);
    Listing::warn_skipped(&listing.skipped, path, NAMESPACE_EXTENSIONS);
    if listing.files.is_empty() {
        bail!("{} contains no *.json file", path.display());
    }
    Ok(listing.files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: label values were parsed as numbers, and written in another form (`1.10` as `1.1`).
    #[test]
    fn y04_import_keeps_number_text_of_labels() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("q.json");
        let labels = r#"{"a": 1.10, "b": 1e2, "c": -0, "d": 1e400, "e": 18446744073709551616, "f": "1.10"}"#;
        std::fs::write(&file, format!(r#"{{"namespace": "Q", "labels": {labels}}}"#)).unwrap();
        let expected = [("a", "1.10"), ("b", "1e2"), ("c", "-0"), ("d", "1e400"), ("e", "18446744073709551616"), ("f", "1.10")];
        let expected: Map<String, Value> = expected.into_iter().map(|(key, text)| (key.to_owned(), text.into())).collect();
        assert_eq!(read_file(&file).unwrap().body["labels"], Value::Object(expected));
    }

    /// Regression test: if a key was repeated, the last value was used and the first was lost. `\u0061` is the letter
    /// a.
    #[test]
    fn y05_read_file_rejects_repeated_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("q.json");
        let property = r#"{"title": "A", "type": "string"}"#;
        for (text, key) in [
            (format!(r#"{{"namespace": "Q", "properties": {{"a": {property}}}, "properties": {{}}}}"#), "properties"),
            (format!(r#"{{"namespace": "Q", "properties": {{"a": {property}, "\u0061": {property}}}}}"#), "a"),
            (r#"{"namespace": "Q", "objects": [{"name": "o", "name": "p"}]}"#.to_owned(), "name"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = format!("{:#}", read_file(&file).err().unwrap());
            let expected = format!("{}: the key {key:?} is repeated in one object: keep one of them", file.display());
            assert!(error.starts_with(&expected), "{error}");
        }
        std::fs::write(&file, format!(r#"{{"namespace": "Q", "properties": {{"a": {property}, "b": {property}}}}}"#)).unwrap();
        assert_eq!(read_file(&file).unwrap().name, "Q", "a key may occur in two objects");
    }
}
