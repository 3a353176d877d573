//! Manifests as people keep them: files and directories, parts beside them, several objects to a file.
//!
//! What stands beside a manifest is brought in here, since a controller has no files: `include:` merges other
//! files into a release, `template_file:` becomes the template itself (so that its references are found when the
//! release is stored), `source:` becomes the hash of a blob that is sent before the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::yaml::{self, Document};

/// The largest file that a task may bring, as the controller takes it.
const MAX_BLOB: u64 = 64 * 1024 * 1024;
/// The largest manifest file.
const MAX_MANIFEST: u64 = 16 * 1024 * 1024;

/// One object as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    /// The file that it stands in.
    pub(crate) file: PathBuf,
    /// Its document there.
    pub(crate) document: Document,
    /// Its JSON text, with what stood beside it brought in.
    pub(crate) json: String,
}

/// What several paths hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manifests {
    /// In the order of the files' names and their place there.
    pub(crate) objects: Vec<Manifest>,
    /// Files to be sent first, by their SHA-256 in hex.
    pub(crate) blobs: BTreeMap<String, PathBuf>,
}

impl Manifest {
    /// `FILE:LINE` of one of its fields.
    pub(crate) fn place(&self, field: &str) -> String {
        format!("{}:{}", self.file.display(), self.document.line_of(field))
    }
}

/// Reads every manifest below the paths.
///
/// # Errors
/// For a path that can't be read, text that is no YAML, and a file beside a manifest that is missing or too large.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Manifests> {
    let mut manifests = Manifests::default();
    for path in paths {
        for file in files(path)? {
            let text = text(&file, MAX_MANIFEST)?;
            let documents = yaml::documents(&text).with_context(|| format!("{} is no manifest", file.display()))?;
            for document in documents {
                read_document(&mut manifests, &file, document)?;
            }
        }
    }
    if manifests.objects.is_empty() {
        bail!("no object in {}: manifests are *.yaml, *.yml or *.json", shown(paths));
    }
    Ok(manifests)
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A file is itself; of a directory the manifests right in it, by name.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
        let file = entry?.path();
        let is_manifest = file.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if is_manifest && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn text(file: &Path, limit: u64) -> Result<String> {
    if file == Path::new("-") {
        return std::io::read_to_string(std::io::Read::take(std::io::stdin(), limit)).context("standard input");
    }
    let size = std::fs::metadata(file).with_context(|| file.display().to_string())?.len();
    if size > limit {
        bail!("{} has {size} bytes, more than the {limit} that are taken", file.display());
    }
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

/// A JSON file may hold one document or an array of them.
fn read_document(to: &mut Manifests, file: &Path, document: Document) -> Result<()> {
    if document.json.starts_with('[') {
        let items: Vec<Box<RawValue>> = serde_json::from_str(&document.json)?;
        for (index, item) in items.iter().enumerate() {
            let part = Document { json: item.get().to_owned(), ..document.below(&format!("[{index}]")) };
            read_document(to, file, part)?;
        }
        return Ok(());
    }
    let json = complete(to, file, &document)?;
    to.objects.push(Manifest { file: file.to_owned(), document, json });
    Ok(())
}

/// Brings in what stands beside a release; other kinds stay as they are, to the letter.
fn complete(to: &mut Manifests, file: &Path, document: &Document) -> Result<String> {
    let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(&document.json)
        .with_context(|| format!("{}:{}: an object is a map with a `kind`", file.display(), document.line))?;
    if fields.get("kind").is_none_or(|kind| kind.get() != "\"Release\"") {
        return Ok(document.json.clone());
    }
    let mut release: serde_json::Map<String, Value> = serde_json::from_str(&document.json)?;
    if let Some(version) =
        fields.get("version").filter(|version| version.get().starts_with(|c: char| c.is_ascii_digit()))
    {
        let place = format!("{}:{}", file.display(), document.line_of("version"));
        bail!(
            "{place}: version {version} is a number, and 2026.10 would be 2026.1: write it as text, version: \"{version}\""
        );
    }
    let dir = file.parent().unwrap_or(Path::new("."));
    if let Some(include) = release.remove("include") {
        for part in names(&include).with_context(|| format!("{}: include", file.display()))? {
            merge(&mut release, &dir.join(part)).with_context(|| format!("{}: include", file.display()))?;
        }
    }
    for task in release.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten() {
        bring_in(to, dir, task).with_context(|| {
            let id = task.get("id").and_then(Value::as_str).unwrap_or("without an id");
            format!("{}: task {id}", file.display())
        })?;
    }
    Ok(Value::Object(release).to_string())
}

fn names(list: &Value) -> Result<Vec<&str>> {
    let items = list.as_array().context("takes a list of file names")?;
    items.iter().map(|item| item.as_str().context("takes a list of file names")).collect()
}

/// A part has the fields of a release that are lists or maps; what stands twice is an error.
fn merge(release: &mut serde_json::Map<String, Value>, file: &Path) -> Result<()> {
    let text = text(file, MAX_MANIFEST)?;
    for document in yaml::documents(&text).with_context(|| format!("{} is no part of a release", file.display()))? {
        let part: Value = serde_json::from_str(&document.json)?;
        let fields = match part {
            Value::Array(_) => [("tasks".to_owned(), part)].into_iter().collect(),
            Value::Object(fields) => fields,
            _ => bail!("{}: a part of a release is a map, or a list of tasks", file.display()),
        };
        for (name, value) in fields {
            match (release.entry(name.clone()).or_insert_with(|| empty_like(&value)), value) {
                (Value::Array(to), Value::Array(more)) => to.extend(more),
                (Value::Object(to), Value::Object(more)) => {
                    for (key, value) in more {
                        if to.insert(key.clone(), value).is_some() {
                            bail!("{}: {name}.{key} stands twice: keep one of them", file.display());
                        }
                    }
                }
                _ => bail!("{}: {name} can't be included: only lists and maps can", file.display()),
            }
        }
    }
    Ok(())
}

fn empty_like(value: &Value) -> Value {
    match value {
        Value::Array(_) => Value::Array(Vec::new()),
        Value::Object(_) => Value::Object(serde_json::Map::new()),
        _ => Value::Null,
    }
}

fn bring_in(to: &mut Manifests, dir: &Path, task: &mut Value) -> Result<()> {
    let Some(parameters) = task.get_mut("parameters").and_then(Value::as_object_mut) else { return Ok(()) };
    if let Some(name) = parameters.remove("template_file") {
        let name = name.as_str().context("template_file takes a file's name")?;
        let template = text(&dir.join(name), MAX_MANIFEST).context("template_file")?;
        if parameters.insert("template".to_owned(), Value::String(template)).is_some() {
            bail!("template and template_file stand side by side: keep one of them");
        }
    }
    let source = parameters.get("source").and_then(Value::as_str).filter(|source| !is_hash(source)).map(str::to_owned);
    if let Some(name) = source {
        let path = dir.join(&name);
        let hash = hash(&path).context("source")?;
        parameters.insert("source".to_owned(), Value::String(format!("sha256:{hash}")));
        to.blobs.insert(hash, path);
    }
    Ok(())
}

/// A source that names a blob already.
fn is_hash(source: &str) -> bool {
    source.strip_prefix("sha256:").is_some_and(|hash| hash.len() == 64)
}

fn hash(file: &Path) -> Result<String> {
    let size = std::fs::metadata(file).with_context(|| file.display().to_string())?.len();
    if size > MAX_BLOB {
        bail!("{} has {size} bytes, more than the {MAX_BLOB} that a blob may have", file.display());
    }
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_directory_gives_its_manifests_by_name_and_labels_keep_their_text() {
        let dir = dir(&[
            ("b.yml", "kind: Cluster\nname: c\nlabels: {n: 1.10}\n---\nkind: Cluster\nname: d\n"),
            ("a.json", r#"[{"kind": "Node", "name": "x"}, {"kind": "Node", "name": "y"}]"#),
            ("notes.txt", "not a manifest"),
        ]);
        let manifests = read(&[dir.path().to_owned()]).unwrap();
        let all: Vec<&str> = manifests.objects.iter().map(|object| object.json.as_str()).collect();
        assert_eq!(
            all,
            [
                r#"{"kind":"Node","name":"x"}"#,
                r#"{"kind":"Node","name":"y"}"#,
                r#"{"kind":"Cluster","name":"c","labels":{"n":1.10}}"#,
                r#"{"kind":"Cluster","name":"d"}"#
            ]
        );
        assert!(manifests.objects[3].place("name").ends_with("b.yml:6"));
    }

    #[test]
    fn what_stands_beside_a_release_is_brought_in() {
        let dir = dir(&[
            (
                "site.yaml",
                "kind: Release\nname: r\ninclude: [more.inc]\ntasks:\n- {id: a, type: file, parameters: {template_file: t.j2}}\n",
            ),
            ("more.inc", "tasks:\n- {id: b, type: file, parameters: {source: blob.bin}}\ntags: {x: {}}\n"),
            ("t.j2", "{{ labels.a }}\n"),
            ("blob.bin", "abc"),
        ]);
        let manifests = read(&[dir.path().join("site.yaml")]).unwrap();
        let release: Value = serde_json::from_str(&manifests.objects[0].json).unwrap();
        assert_eq!(release["tasks"][0]["parameters"]["template"], "{{ labels.a }}\n");
        // The SHA-256 of "abc" as FIPS 180-2 gives it.
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(release["tasks"][1]["parameters"]["source"], format!("sha256:{hash}"));
        assert_eq!(manifests.blobs.keys().collect::<Vec<_>>(), [hash]);
        assert!(release.get("include").is_none());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_file() {
        for (text, expected) in [
            ("kind: Release\nname: r\ntasks: [{id: a, parameters: {template_file: none.j2}}]\n", "task a"),
            ("kind: Release\nname: r\ninclude: [none.inc]\n", "none.inc"),
            ("kind: Release\nversion: 2026.10\n", "m.yaml:2: version 2026.10 is a number"),
            ("- 1\n", "an object is a map with a `kind`"),
            ("# nothing\n", "no object in"),
        ] {
            let dir = dir(&[("m.yaml", text)]);
            let error = format!("{:#}", read(&[dir.path().join("m.yaml")]).unwrap_err());
            assert!(error.contains(expected) && error.contains(".yaml"), "{error}");
        }
    }
}
