//! `catalog import`: namespaces from Glance's files, or those that come with this program, put into the stored catalogue when that is
//! asked for, all of them or none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use stemma_core::catalog::{as_written, builtin, merged, without_read_only};
use stemma_core::json;
use stemma_core::manifest::{MAX_DEPTH, assemble, read_document, with_label_texts};
use stemma_core::ownership::Manager;
use stemma_wire::endpoint::Endpoint;
use stemma_wire::error::quote;

use crate::api::{Api, Write};
use crate::args::{Global, Kind, Mode};
use crate::command::apply::print_applied;
use crate::command::done::note_dry_run;
use crate::command::written::is_said;
use crate::directory::{Listing, NAMESPACES, Once};
use crate::exit::Exit;
use crate::manifest::{MAX_MANIFEST, text, unmarked};
use crate::place::Places;

/// Under whose name an import writes, unless said.
const MANAGER: &str = "catalog-import";

/// What stands in the place of a file for what comes with the program.
const BUILTIN: &str = "what comes with this program";

/// A namespace to import.
struct Given {
    /// Where it stands.
    place: String,
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
    let given = given(paths, with_builtin)?;
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

/// The namespaces to import, each of which stands in one place.
fn given(paths: &[PathBuf], with_builtin: bool) -> Result<Vec<Given>> {
    let of_program = if with_builtin { builtin() } else { Vec::new() };
    let of_program = of_program.into_iter().map(|body| read(BUILTIN.to_owned(), body));
    let of_files = files(paths)?.into_iter().map(|file| read_file(&file));
    let given = of_program.chain(of_files).collect::<Result<Vec<Given>>>()?;
    let mut seen = BTreeMap::new();
    for Given { place, name, .. } in &given {
        if let Some(before) = seen.insert(name, place) {
            bail!("{place}: namespace {} is in {before} too: keep one of them", quote(name));
        }
    }
    Ok(given)
}

/// What is sent of a namespace, if anything. If the decision used the stored namespace, the write is refused when the namespace has changed since.
async fn to_send(api: &mut Api, given: Given, mode: Mode) -> Result<Option<Map<String, Value>>> {
    if matches!(mode, Mode::Diff | Mode::Overwrite) {
        return Ok(Some(given.body));
    }
    let (mut body, revision) = match (api.find_tagged(&Kind::Namespace.path(&given.name)?).await?, mode) {
        (Some((Value::Object(stored), revision)), Mode::Merge) => (added(&as_written(stored), given), revision),
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

/// What a namespace has not of a given one: of a field to which that adds, the field as it becomes. Other fields are not sent, and so stay
/// whose they are.
fn added(stored: &Map<String, Value>, given: Given) -> Map<String, Value> {
    let mut fields = merged(stored.clone(), given.body);
    fields.retain(|name, value| is_said(value) && stored.get(name) != Some(value));
    fields.insert("namespace".to_owned(), given.name.into());
    fields
}

async fn send(api: &mut Api, global: &Global, objects: Vec<Value>, mode: Mode) -> Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    let path = format!("{}?force=true&partial={}", Endpoint::Apply.path(&[]), mode == Mode::Merge);
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

fn read_file(file: &Path) -> Result<Given> {
    let place = file.display().to_string();
    let text = text(file, MAX_MANIFEST).with_context(|| place.clone())?;
    let raw: &RawValue = serde_json::from_str(unmarked(&text)).with_context(|| place.clone())?;
    if json::nesting(raw.get()) > MAX_DEPTH {
        bail!("{place}: more than {MAX_DEPTH} levels of nesting");
    }
    check_keys(raw).with_context(|| place.clone())?;
    let body = json::value(&with_label_texts(raw)).with_context(|| place.clone())?;
    read(place, body)
}

/// Refuses an object in which a key stands twice: the last would win, and what the first says would be lost.
fn check_keys(raw: &RawValue) -> Result<()> {
    if !raw.get().starts_with('{') {
        return json::items(raw).into_iter().try_for_each(check_keys);
    }
    let mut seen = BTreeSet::new();
    for (key, value) in json::members(raw)? {
        check_keys(value)?;
        if let Some(twice) = seen.replace(key) {
            bail!("the key {twice:?} stands twice in one object: keep one of them; nothing was changed");
        }
    }
    Ok(())
}

/// Reads a namespace as the controller will, so that an error names the file.
fn read(place: String, body: Value) -> Result<Given> {
    match checked(body) {
        Ok((name, body)) => Ok(Given { place, name, body }),
        Err(error) => Err(error.context(place)),
    }
}

/// The name of a namespace, and its body with `kind`.
fn checked(body: Value) -> Result<(String, Map<String, Value>)> {
    let Value::Object(mut body) = body else { bail!("it is no namespace: a JSON object is one") };
    without_read_only(&mut body);
    let kind = Kind::Namespace.manifest_name();
    if body.insert("kind".to_owned(), kind.into()).is_some_and(|other| other != kind) {
        bail!("it is no namespace: its kind is another");
    }
    let document = read_document(&Value::Object(body.clone()).to_string())?;
    assemble(std::slice::from_ref(&document), &Manager::new(MANAGER)?).map_err(|mut errors| errors.swap_remove(0).1)?;
    let name = body.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((name, body))
}

/// The files, and those of the directories, each once.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut once = Once::of(paths);
    for path in paths {
        let taken = if path.is_dir() { of_directory(path, &mut once)? } else { vec![path.clone()] };
        files.extend(taken.into_iter().filter(|file| once.is_new(file)));
    }
    Ok(files)
}

fn of_directory(path: &Path, once: &mut Once) -> Result<Vec<PathBuf>> {
    let mut listing = Listing::of(path, NAMESPACES).with_context(|| path.display().to_string())?;
    once.keep_left_out(&mut listing.left_out);
    Listing::tell_left_out(&listing.left_out, path, NAMESPACES);
    if listing.taken.is_empty() {
        bail!("{} holds no *.json", path.display());
    }
    Ok(listing.taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They were read as numbers, and written as others.
    #[test]
    fn y04_a_namespace_keeps_the_text_of_its_labels_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("q.json");
        let labels = r#"{"a": 1.10, "b": 1e2, "c": -0, "d": 1e400, "e": 18446744073709551616, "f": "1.10"}"#;
        std::fs::write(&file, format!(r#"{{"namespace": "Q", "labels": {labels}}}"#)).unwrap();
        let expected =
            [("a", "1.10"), ("b", "1e2"), ("c", "-0"), ("d", "1e400"), ("e", "18446744073709551616"), ("f", "1.10")];
        let expected: Map<String, Value> =
            expected.into_iter().map(|(key, text)| (key.to_owned(), text.into())).collect();
        assert_eq!(read_file(&file).unwrap().body["labels"], Value::Object(expected));
    }

    /// The last one won, and what the first said was lost.
    #[test]
    fn y05_a_file_in_which_a_key_stands_twice_is_refused_as_a_body_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("q.json");
        let property = r#"{"title": "A", "type": "string"}"#;
        for (text, key) in [
            (format!(r#"{{"namespace": "Q", "properties": {{"a": {property}}}, "properties": {{}}}}"#), "properties"),
            (format!(r#"{{"namespace": "Q", "properties": {{"a": {property}, "\u0061": {property}}}}}"#), "a"),
            (r#"{"namespace": "Q", "objects": [{"name": "o", "name": "p"}]}"#.to_owned(), "name"),
        ] {
            std::fs::write(&file, text).unwrap();
            let said = format!("{:#}", read_file(&file).err().unwrap());
            let expected = format!("{}: the key {key:?} stands twice in one object: keep one of them", file.display());
            assert!(said.starts_with(&expected), "{said}");
        }
        std::fs::write(&file, format!(r#"{{"namespace": "Q", "properties": {{"a": {property}, "b": {property}}}}}"#))
            .unwrap();
        assert_eq!(read_file(&file).unwrap().name, "Q", "a key of another object is another");
    }
}
