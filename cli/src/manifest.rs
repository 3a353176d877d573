//! Manifests as people keep them: files and directories, parts beside them, several objects to a file.
//!
//! What stands beside a manifest is brought in here, since a controller has no files: `include:` merges other
//! files into a release, `template_file:` becomes the template itself (so that its references are found when the
//! release is stored), `source:` becomes the hash of a blob that is sent before the manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use stemma_core::digest::Hex;
use stemma_core::json;
use stemma_core::name::is_blank;
use stemma_core::task::{TEMPLATE_FILE, source_of};
use stemma_wire::message::Hash;

use crate::args::Kind;
use crate::beside::{beside, named_by, unreadable};
use crate::directory::{Listing, MANIFESTS, Once};
use crate::problem::Problems;
use crate::yaml::{self, Document, Place};

/// The largest file that a task may bring, as the controller takes it.
const MAX_BLOB: u64 = 64 * 1024 * 1024;
/// The largest manifest file, in bytes.
pub(crate) const MAX_MANIFEST: u64 = 16 * 1024 * 1024;

/// One object as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    /// The file that it stands in.
    pub(crate) file: PathBuf,
    /// Its document there.
    pub(crate) document: Document,
    /// Its JSON text, with what stood beside it brought in.
    pub(crate) json: String,
    /// Where tasks that were included stand, in their order.
    included: Vec<Included>,
    /// The files that templates came from, by the place of their task.
    templates: BTreeMap<usize, PathBuf>,
}

/// A list of tasks that came from another file.
#[derive(Clone, Debug)]
struct Included {
    /// The place of its first task among the release's.
    first: usize,
    file: PathBuf,
    document: Document,
    /// What stands before `[0]` in that document: `tasks`, or nothing.
    list: &'static str,
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
    /// `FILE:LINE:COLUMN` of one of its fields. A task's may be named by its id, as `task ntp requires[0]`.
    pub(crate) fn place(&self, field: &str) -> String {
        let (file, document, field) = self.standing(&self.by_index(field));
        format!("{}:{}", file.display(), document.place_of(&field))
    }

    /// The place of what is wrong with a field, and the sentence. Where that names a line of a template or of another text, the place is that
    /// line: of the file that the text came from, or of the manifest that it stands in as a block.
    pub(crate) fn told(&self, field: &str, what: &str) -> (String, String) {
        let in_text = || {
            let (sentence, within) = within_text(what)?;
            let (file, at) = self.in_text(field, within)?;
            Some((format!("{}:{at}", file.display()), sentence))
        };
        in_text().unwrap_or_else(|| (self.place(field), what.to_owned()))
    }

    /// `FILE:LINE` of a line of a text that a field holds; `None` where that is neither a file of its own nor a block.
    pub(crate) fn line_in_text(&self, field: &str, line: usize) -> Option<String> {
        let (file, at) = self.in_text(field, Place { line, column: 1 })?;
        Some(format!("{}:{}", file.display(), at.line))
    }

    /// The parameters of a task that it has itself, of a release.
    pub(crate) fn parameters_of(&self, task: &str) -> Option<Map<String, Value>> {
        let release: Value = serde_json::from_str(&self.json).ok()?;
        let task = release.get("tasks")?.get(task_index(&self.json, task)?)?;
        Some(task.get("parameters").and_then(Value::as_object).cloned().unwrap_or_default())
    }

    /// The file and the place in it of a place in a text that a field holds.
    fn in_text(&self, field: &str, within: Place) -> Option<(&Path, Place)> {
        let field = self.by_index(field);
        if let Some((at, ".parameters.template")) = task_at(&field)
            && let Some(file) = self.templates.get(&at)
        {
            return Some((file.as_path(), within));
        }
        let (file, document, field) = self.standing(&field);
        Some((file, document.texts.get(&field)?.of_text(within)))
    }

    /// A field with a task's place for its id.
    fn by_index(&self, field: &str) -> String {
        let Some(rest) = field.strip_prefix("task ") else { return field.to_owned() };
        let (id, field) = rest.split_once(' ').unwrap_or((rest, ""));
        task_index(&self.json, id).map_or_else(|| "tasks".to_owned(), |index| format!("tasks[{index}].{field}"))
    }

    /// The file and document that a field stands in, and what it is called there.
    fn standing(&self, field: &str) -> (&Path, &Document, String) {
        match self.included_field(field) {
            Some((included, field)) => (included.file.as_path(), &included.document, field),
            None => (self.file.as_path(), &self.document, field.to_owned()),
        }
    }

    fn included_field(&self, field: &str) -> Option<(&Included, String)> {
        let (at, rest) = task_at(field)?;
        let included = self.included.iter().rev().find(|included| included.first <= at)?;
        Some((included, format!("{}[{}]{rest}", included.list, at - included.first)))
    }
}

/// The place of the task that a field is of, and what stands behind it: `tasks[2].id` is `.id` of the third.
fn task_at(field: &str) -> Option<(usize, &str)> {
    let (at, rest) = field.strip_prefix("tasks[")?.split_once(']')?;
    Some((at.parse().ok()?, rest))
}

/// A sentence without the line and column of a text that it names, and those.
fn within_text(what: &str) -> Option<(String, Place)> {
    let from = if what.starts_with("line ") { 0 } else { what.find(": line ")? + ": ".len() };
    let (place, rest) = what[from..].strip_prefix("line ")?.split_once(": ")?;
    let (line, column) = place.split_once(", column ")?;
    let place = Place { line: line.parse().ok()?, column: column.parse().ok()? };
    Some((format!("{}{rest}", &what[..from]), place))
}

/// The place of a task in its release; of two with one id the later, which is the one too many.
fn task_index(json: &str, id: &str) -> Option<usize> {
    let release: Value = serde_json::from_str(json).ok()?;
    let is_it = |task: &Value| task.get("id").and_then(Value::as_str) == Some(id);
    release.get("tasks")?.as_array()?.iter().rposition(is_it)
}

/// Reads every manifest below the paths; a file to which two of them lead is read once.
///
/// # Errors
/// [`Problems`]: a path that can't be read, text that is no YAML, a file beside a manifest that is missing or too large.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Manifests> {
    let (manifests, problems) = read_all(paths);
    problems.check()?;
    Ok(manifests)
}

/// The same, with what can be read beside what is wrong with the rest.
pub(crate) fn read_all(paths: &[PathBuf]) -> (Manifests, Problems) {
    let mut manifests = Manifests::default();
    let mut problems = Problems::default();
    let mut files = Vec::new();
    let mut once = Once::of(paths);
    for path in paths {
        match listed(path) {
            Ok(mut listing) => {
                once.keep_left_out(&mut listing.left_out);
                listing.tell_left_out(path, MANIFESTS);
                for file in listing.taken {
                    if once.is_new(&file) {
                        let is_listed = !once.is_named(&file);
                        files.push(ManifestFile::read(file, is_listed));
                    }
                }
            }
            Err(error) => problems.add(path.display(), format!("{error:#}")),
        }
    }
    let named: BTreeSet<PathBuf> = files.iter().flat_map(ManifestFile::names).collect();
    for file in files.into_iter().filter(|file| !file.is_part(&named)) {
        file.take(&mut manifests, &mut problems);
    }
    if problems.is_empty() && manifests.objects.is_empty() {
        add_empty(paths, &mut problems);
    }
    (manifests, problems)
}

/// Says of paths that no object is there, and where one would be looked for.
fn add_empty(paths: &[PathBuf], problems: &mut Problems) {
    let mut by_what: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        let what = match path.as_path() {
            input if input == Path::new("-") => "no object here: standard input holds none",
            directory if directory.is_dir() => {
                "no object here: a manifest is NAME.yaml, NAME.yml or NAME.json right in the directory, with a NAME of letters, digits, - and _"
            }
            _ => {
                "no object here: the file holds none; one begins with its kind, as `kind: Node` (`stemma fields` lists the kinds)"
            }
        };
        by_what.entry(what).or_default().push(path.clone());
    }
    for (what, paths) in by_what {
        problems.add(shown(&paths), what);
    }
}

/// A file that may hold manifests.
struct ManifestFile {
    path: PathBuf,
    /// Whether it was found in a directory, and not named itself.
    is_listed: bool,
    /// What it holds; or what is wrong with it, and where.
    documents: Result<Vec<Document>, (String, String)>,
}

impl ManifestFile {
    fn read(path: PathBuf, is_listed: bool) -> Self {
        let documents = read_file(&path);
        Self { path, is_listed, documents }
    }

    /// The files that its documents name.
    fn names(&self) -> Vec<PathBuf> {
        self.documents.iter().flatten().flat_map(|document| named_by(&self.path, &document.json)).collect()
    }

    /// Whether it stands in a directory for another manifest to name it, and holds no object of its own.
    fn is_part(&self, named: &BTreeSet<PathBuf>) -> bool {
        let is_named = || self.path.canonicalize().is_ok_and(|path| named.contains(&path));
        self.is_listed && is_named() && !self.documents.iter().flatten().any(|document| holds_object(&document.json))
    }

    fn take(self, to: &mut Manifests, problems: &mut Problems) {
        match self.documents {
            Ok(documents) => {
                for document in documents {
                    read_document(to, &self.path, document, problems);
                }
            }
            Err((place, what)) => problems.add(place, what),
        }
    }
}

/// Whether a document is an object of a known kind, or a list of such.
fn holds_object(document: &str) -> bool {
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    let is_object =
        |one: &Value| one.get("kind").and_then(Value::as_str).is_some_and(|kind| Kind::of_manifest(kind).is_some());
    document.as_array().into_iter().flatten().chain([&document]).any(is_object)
}

fn read_file(file: &Path) -> Result<Vec<Document>, (String, String)> {
    let text = text(file, MAX_MANIFEST).map_err(|error| (file.display().to_string(), format!("{error:#}")))?;
    let text = unmarked(&text);
    check_json(file, text).map_err(|error| {
        let place = format!("{}:{}:{}", file.display(), error.line(), error.column());
        (place, format!("no JSON: {error}; a file that ends with .json is JSON alone"))
    })?;
    yaml::documents(text).map_err(|error| (format!("{}:{}", file.display(), error.at), error.what))
}

/// A text without the byte order mark that programs of Windows put before it.
pub(crate) fn unmarked(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// A file that is called JSON must be some: YAML takes more, as a comma after the last member. Its numbers are left to who reads them.
fn check_json(file: &Path, text: &str) -> Result<(), serde_json::Error> {
    let is_json = file.extension().is_some_and(|end| end == "json") && !text.trim().is_empty();
    if !is_json || serde_json::from_str::<&RawValue>(text).is_ok() {
        return Ok(());
    }
    // For its sentence, which knows more.
    serde_json::from_str::<Value>(text).map(drop)
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A file is itself; of a directory the manifests right in it, by name.
pub(crate) fn listed(path: &Path) -> Result<Listing> {
    if !path.is_dir() {
        return Ok(Listing { taken: vec![path.to_owned()], left_out: Vec::new() });
    }
    let mut listing = Listing::of(path, MANIFESTS).map_err(|error| unreadable(&error))?;
    listing.taken.retain(|file| !file.is_dir());
    Ok(listing)
}

/// A file's text, or standard input's for `-`.
///
/// # Errors
/// When it can't be read, is no UTF-8, or is larger than `limit` bytes.
pub(crate) fn text(file: &Path, limit: u64) -> Result<String> {
    // A device or a pipe has no size to be asked for.
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        from.take(limit + 1).read_to_end(&mut bytes).map(|_| bytes).map_err(|error| unreadable(&error))
    };
    let bytes = if file == Path::new("-") {
        read(&mut std::io::stdin())?
    } else {
        read(&mut File::open(file).map_err(|error| unreadable(&error))?)?
    };
    if bytes.len() as u64 > limit {
        bail!("holds more than the {limit} bytes that are taken: split it");
    }
    Ok(json::utf_8(bytes)?)
}

/// A JSON file may hold one document or an array of them.
fn read_document(to: &mut Manifests, file: &Path, document: Document, problems: &mut Problems) {
    if document.json.starts_with('[') {
        let items: Vec<Box<RawValue>> = serde_json::from_str(&document.json).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let part = Document { json: item.get().to_owned(), ..document.below(&format!("[{index}]")) };
            read_document(to, file, part, problems);
        }
        return;
    }
    let (json, included, templates) = (String::new(), Vec::new(), BTreeMap::new());
    let mut manifest = Manifest { file: file.to_owned(), document, json, included, templates };
    match complete(to, &mut manifest) {
        Ok(json) => {
            manifest.json = json;
            to.objects.push(manifest);
        }
        Err(wrong) => wrong.iter().for_each(|(field, error)| problems.add(manifest.place(field), format!("{error:#}"))),
    }
}

/// Brings in what stands beside a release; other kinds stay as they are, to the letter. Each error names its field.
fn complete(to: &mut Manifests, manifest: &mut Manifest) -> Result<String, Vec<(String, anyhow::Error)>> {
    let at = |field: &str| {
        let field = field.to_owned();
        move |error: anyhow::Error| vec![(field, error)]
    };
    let json = manifest.document.json.clone();
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_str(&json).map_err(|_| at("")(anyhow!("an object is a map with a `kind`")))?;
    if fields.get("kind").is_none_or(|kind| kind.get() != "\"Release\"") {
        return Ok(json);
    }
    check_version(fields.get("version").copied()).map_err(at("version"))?;
    let release: Result<Map<String, Value>, _> = manifest.document.read();
    let mut release = release.map_err(|error| vec![(error.field.clone(), error.into())])?;
    let dir = manifest.file.parent().unwrap_or(Path::new(".")).to_owned();
    if let Some(include) = release.remove("include") {
        for part in names(&include).context("include").map_err(at("include"))? {
            let path = joined(&dir, part).context("include").map_err(at("include"))?;
            let part = beside(&dir, &dir, part).with_context(|| path.display().to_string());
            let included = part.and_then(|_| include_part(&mut release, manifest, &path));
            included.context("include").map_err(at("include"))?;
        }
    }
    let tasks = release.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten();
    let brought = |(index, task)| {
        let wrong = bring_in(to, manifest, index, task).err()?;
        Some((format!("tasks[{index}].parameters{}", wrong.0), wrong.1))
    };
    let wrong: Vec<_> = tasks.enumerate().filter_map(brought).collect();
    if wrong.is_empty() { Ok(Value::Object(release).to_string()) } else { Err(wrong) }
}

fn check_version(version: Option<&RawValue>) -> Result<()> {
    match version.map(RawValue::get) {
        Some(number) if number.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
            bail!("version {number} is a number, and 2026.10 would be 2026.1: write it as text, version: \"{number}\"")
        }
        _ => Ok(()),
    }
}

/// The path of what a manifest names; nothing names none.
fn joined(dir: &Path, name: &str) -> Result<PathBuf> {
    if is_blank(name) {
        bail!("is empty: name a file");
    }
    Ok(dir.join(name))
}

fn names(list: &Value) -> Result<Vec<&str>> {
    let items = list.as_array().context("takes a list of file names")?;
    items.iter().map(|item| item.as_str().context("takes a list of file names")).collect()
}

/// A part has the fields of a release that are lists or maps; what stands twice is an error.
fn include_part(release: &mut Map<String, Value>, manifest: &mut Manifest, file: &Path) -> Result<()> {
    let shown = file.display();
    let text = text(file, MAX_MANIFEST).with_context(|| shown.to_string())?;
    for document in yaml::documents(unmarked(&text)).with_context(|| shown.to_string())? {
        let part: Value = document.read().with_context(|| shown.to_string())?;
        let (fields, list) = match part {
            Value::Array(_) => ([("tasks".to_owned(), part)].into_iter().collect(), ""),
            Value::Object(fields) => (fields, "tasks"),
            _ => bail!("{shown}: a part of a release is a map, or a list of tasks"),
        };
        let first = release.get("tasks").and_then(Value::as_array).map_or(0, Vec::len);
        merge(release, fields, file)?;
        manifest.included.push(Included { first, file: file.to_owned(), document, list });
    }
    Ok(())
}

fn merge(release: &mut Map<String, Value>, fields: Map<String, Value>, file: &Path) -> Result<()> {
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
    Ok(())
}

fn empty_like(value: &Value) -> Value {
    match value {
        Value::Array(_) => Value::Array(Vec::new()),
        Value::Object(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

/// Takes in the files that a task names, relative to the file that the task stands in.
/// An error names the parameter, as `.source`.
fn bring_in(
    to: &mut Manifests,
    manifest: &mut Manifest,
    index: usize,
    task: &mut Value,
) -> Result<(), (&'static str, anyhow::Error)> {
    let field = format!("tasks[{index}]");
    let file = manifest.included_field(&field).map_or(&manifest.file, |(included, _)| &included.file);
    let dir = file.parent().unwrap_or(Path::new(".")).to_owned();
    let root = &manifest.file.parent().unwrap_or(Path::new(".")).to_owned();
    let id = task.get("id").and_then(Value::as_str).unwrap_or("without an id").to_owned();
    let kind = task.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let named = |name: &str, path: &Path| format!("task {id}: {name}: {}", path.display());
    let Some(parameters) = task.get_mut("parameters").and_then(Value::as_object_mut) else { return Ok(()) };
    if let Some(name) = parameters.remove(TEMPLATE_FILE.name) {
        let at = |error: anyhow::Error| (".template_file", error);
        let name =
            name.as_str().with_context(|| format!("task {id}: template_file takes a file's name")).map_err(at)?;
        let path = joined(&dir, name).with_context(|| format!("task {id}: template_file")).map_err(at)?;
        let template = beside(root, &dir, name).and_then(|file| text(&file, MAX_MANIFEST));
        let template = template.with_context(|| named("template_file", &path)).map_err(at)?;
        if parameters.insert("template".to_owned(), Value::String(template)).is_some() {
            return Err(at(anyhow!("task {id}: template and template_file stand side by side: keep one of them")));
        }
        manifest.templates.insert(index, path);
    }
    let source = source_of(&kind, parameters).map(str::to_owned);
    if let Some(name) = source {
        if name.starts_with("sha256:") {
            let named = Hash::of_source(&name).with_context(|| format!("task {id}: source {name:?}"));
            return named.map(|_| ()).map_err(|error| (".source", error));
        }
        let path = joined(&dir, &name).with_context(|| format!("task {id}: source"));
        let path = path.map_err(|error| (".source", error))?;
        let hashed = beside(root, &dir, &name).and_then(|file| Ok((hash(&file)?, file)));
        let (hash, file) = hashed.with_context(|| named("source", &path)).map_err(|error| (".source", error))?;
        parameters.insert("source".to_owned(), Value::String(format!("sha256:{hash}")));
        to.blobs.insert(hash, file);
    }
    Ok(())
}

fn hash(file: &Path) -> Result<String> {
    let size = std::fs::metadata(file).map_err(|error| unreadable(&error))?.len();
    if size > MAX_BLOB {
        bail!("has {size} bytes, more than the {MAX_BLOB} that a blob may have: fetch it on the host, by a shell task");
    }
    let bytes = std::fs::read(file).map_err(|error| unreadable(&error))?;
    Ok(Hex(&Sha256::digest(&bytes)).to_string())
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
    fn a_file_without_an_end_is_refused_at_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let endless = dir.path().join("endless.yaml");
        std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
        let refused = text(&endless, 4096).unwrap_err().to_string();
        assert_eq!(refused, "holds more than the 4096 bytes that are taken: split it");
    }

    /// The same as YAML and as a body of the API gives them.
    #[test]
    fn y04_a_json_file_keeps_the_text_of_any_number() {
        let text = r#"{"kind": "Cluster", "name": "c", "labels": {"a": 1e400, "b": -1e400, "c": 18446744073709551616, "d": 1.10}}"#;
        for name in ["a.json", "a.yaml"] {
            let dir = dir(&[(name, text)]);
            let manifests = read(&[dir.path().to_owned()]).unwrap();
            let json = &manifests.objects[0].json;
            for number in ["1e400", "-1e400", "18446744073709551616", "1.10"] {
                assert!(json.contains(number), "{name}: {number}: {json}");
            }
        }
        let dir = dir(&[("a.json", r#"{"kind": "Cluster", "name": "c",}"#)]);
        assert!(read(&[dir.path().to_owned()]).unwrap_err().to_string().contains("no JSON"));
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
        assert!(manifests.objects[3].place("name").ends_with("b.yml:6:1"));
    }

    #[test]
    fn a_file_that_is_called_json_is_json() {
        let dir = dir(&[("a.json", "{\"kind\": \"Node\", \"name\": \"x\",}\n")]);
        let error = read(&[dir.path().join("a.json")]).unwrap_err().to_string();
        assert!(error.contains("a.json:1:30: no JSON: trailing comma at line 1 column 30; "), "{error}");
    }

    #[test]
    fn y09_a_byte_order_mark_is_no_part_of_a_manifest() {
        for (name, text) in
            [("a.json", "\u{feff}{\"kind\": \"Node\", \"name\": \"x\"}"), ("a.yaml", "\u{feff}{kind: Node, name: x}\n")]
        {
            let dir = dir(&[(name, text)]);
            let manifests = read(&[dir.path().to_owned()]).unwrap();
            assert_eq!(manifests.objects[0].json, r#"{"kind":"Node","name":"x"}"#);
        }
    }

    #[test]
    fn y09_a_file_in_utf_16_is_said_to_be_in_that() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.json", "a.yaml"] {
            let file = dir.path().join(name);
            for text in ["\u{feff}{\"kind\": \"Node\", \"name\": \"x\"}", "{\"kind\": \"Node\", \"name\": \"x\"}"] {
                for bytes in [
                    text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
                    text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
                ] {
                    std::fs::write(&file, &bytes).unwrap();
                    let error = read(std::slice::from_ref(&file)).unwrap_err().to_string();
                    let expected = format!("{name}: it is a text in UTF-16: save it in UTF-8");
                    assert!(error.contains(&expected), "{text:?}: {error}");
                }
            }
            std::fs::write(&file, b"{\"kind\": \"\xff\"}").unwrap();
            let error = read(std::slice::from_ref(&file)).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: it is no text in UTF-8")), "{error}");
        }
    }

    /// A part was read as a manifest, and refused the whole directory.
    #[test]
    fn y09_what_a_manifest_names_is_no_manifest_of_its_directory() {
        let dir = dir(&[
            ("site.yaml", "kind: Release\nname: r\ninclude: [a-part.yaml, b-part.yml]\n"),
            ("a-part.yaml", "- {id: a, type: file, parameters: {source: deploy.yaml}}\n"),
            ("b-part.yml", "tasks: [{id: b, type: file, parameters: {template_file: z.json}}]\n"),
            ("deploy.yaml", "kind: Deployment\n"),
            ("z.json", "{{ labels.z }}\n"),
        ]);
        let manifests = read(&[dir.path().to_owned()]).unwrap();
        assert_eq!((manifests.objects.len(), manifests.blobs.len()), (1, 1));
        let named = |name: &str| read(&[dir.path().join(name)]);
        assert_eq!(named("a-part.yaml").unwrap().objects.len(), 1, "what is named itself is read");
        assert!(named("z.json").unwrap_err().to_string().contains("no JSON"));
        std::fs::write(dir.path().join("deploy.yaml"), "kind: Cluster\nname: c\n").unwrap();
        assert_eq!(
            read(&[dir.path().to_owned()]).unwrap().objects.len(),
            2,
            "an object is one, whoever names its file"
        );
    }

    #[test]
    fn y08_a_file_that_is_named_twice_is_read_once_and_one_that_is_named_is_no_part() {
        let node = |name: &str| format!("kind: Node\nname: {name}\n");
        let dir = dir(&[
            ("a.yaml", &node("a")),
            ("b.yaml", &node("b")),
            (".c.yaml", &node("c")),
            ("r.yaml", "kind: Release\nname: r\ninclude: [tasks.yaml]\n"),
            ("tasks.yaml", "- {id: t, type: stage}\n"),
        ]);
        let top = dir.path().to_owned();
        let path = |name: &str| top.join(name);
        let names = |paths: &[PathBuf]| -> Vec<String> {
            let objects = read(paths).unwrap().objects;
            let name = |object: &Manifest| {
                serde_json::from_str::<Value>(&object.json).unwrap()["name"].as_str().unwrap().to_owned()
            };
            objects.iter().map(name).collect()
        };
        for (paths, expected) in [
            (vec![top.clone(), top.join("."), path("a.yaml")], &["a", "b", "r"][..]),
            (vec![path("b.yaml"), top.clone()], &["b", "a", "r"]),
            (vec![path("a.yaml"), path("./a.yaml")], &["a"]),
            (vec![top.clone(), path(".c.yaml")], &["a", "b", "r", "c"]),
        ] {
            assert_eq!(names(&paths), expected, "{paths:?}");
        }
        let objects = read(&[top.clone(), path("tasks.yaml")]).unwrap().objects;
        assert_eq!(objects.len(), 4, "what was named is no part, so it is said later that it is no object");
    }

    #[test]
    fn y09_it_is_said_of_a_file_a_directory_and_standard_input_that_no_object_is_there() {
        let dir = dir(&[("empty.yaml", ""), ("none.yaml", "# kind: Node\n")]);
        let top = dir.path().to_owned();
        let of_files = "no object here: the file holds none; one begins with its kind";
        let of_directory = "no object here: a manifest is NAME.yaml, NAME.yml or NAME.json right in the directory";
        for (paths, expected) in [
            (vec![top.join("empty.yaml")], format!("{}: {of_files}", top.join("empty.yaml").display())),
            (
                vec![top.join("empty.yaml"), top.join("none.yaml")],
                format!("{0}/empty.yaml, {0}/none.yaml: {of_files}", top.display()),
            ),
            (vec![top.clone()], format!("{}: {of_directory}", top.display())),
        ] {
            let error = read(&paths).unwrap_err().to_string();
            assert!(error.starts_with(&expected), "{error}");
            assert!(paths == [top.clone()] || !error.contains("right in the directory"), "{error}");
        }
    }

    /// It was said at the task, and the line counted from the beginning of the text.
    #[test]
    fn y09_what_is_wrong_with_a_template_is_said_at_its_line_of_its_file() {
        let dir = dir(&[
            (
                "site.yaml",
                "kind: Release\nname: r\ninclude: [more.inc]\ntasks:\n- id: a\n  type: file\n  parameters: {template_file: t.j2}\n\
                 - id: b\n  type: file\n  parameters:\n    template: |\n      x\n      {{ y }}\n\
                 - {id: c, type: file, parameters: {template: \"x\\n{{ y }}\"}}\n",
            ),
            ("more.inc", "- id: d\n  type: shell\n  parameters:\n    script: |\n      x\n"),
            ("t.j2", "x\n{% for %}\n"),
        ]);
        let manifests = read(&[dir.path().join("site.yaml")]).unwrap();
        let told = |field: &str, what: &str| {
            let (place, what) = manifests.objects[0].told(field, what);
            format!("{}: {what}", place.strip_prefix(&format!("{}/", dir.path().display())).unwrap())
        };
        let wrong = "parameters.template: line 2, column 4: `y`: there is no: line 1, column 1: y";
        for (field, what, expected) in [
            (
                "task a parameters.template",
                wrong,
                "t.j2:2:4: parameters.template: `y`: there is no: line 1, column 1: y",
            ),
            (
                "task b parameters.template",
                wrong,
                "site.yaml:13:10: parameters.template: `y`: there is no: line 1, column 1: y",
            ),
            (
                "task c parameters.template",
                wrong,
                "site.yaml:14:36: parameters.template: line 2, column 4: `y`: there is no: line 1, column 1: y",
            ),
            ("tasks[1].parameters.template", "line 2, column 4: z", "site.yaml:13:10: z"),
            ("task d parameters.script", "line 1, column 2: z", "more.inc:5:8: z"),
            ("task a parameters.template", "is no text", "site.yaml:7:3: is no text"),
            ("task a id", "line 1, column 1: z", "site.yaml:5:3: line 1, column 1: z"),
        ] {
            assert_eq!(told(field, what), expected, "{field}: {what}");
        }
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
    fn each_file_that_is_missing_is_told() {
        let task = |id: &str, name: &str| format!("- {{id: {id}, type: file, parameters: {{{name}: {id}.none}}}}\n");
        let text = format!("kind: Release\nname: r\ntasks:\n{}{}", task("a", "source"), task("b", "template_file"));
        let dir = dir(&[("m.yaml", &text), ("n.yaml", &text)]);
        let error = read(&[dir.path().to_owned()]).unwrap_err().to_string();
        for (file, line, says) in [("m", 4, "task a: source"), ("m", 5, "task b: template_file"), ("n", 5, "task b")] {
            let place = format!("{file}.yaml:{line}:");
            assert!(error.lines().any(|told| told.contains(&place) && told.contains(says)), "{place} {says}: {error}");
        }
    }

    /// A file of that name was read, or the manifest's directory was called the wrong file.
    #[test]
    fn x06_no_path_is_made_of_an_empty_name() {
        for name in ["", " ", "\u{200b}"] {
            let release = |rest: &str| format!("kind: Release\nname: r\n{rest}\n");
            let task = |parameter: &str| {
                release(&format!("tasks: [{{id: a, type: file, parameters: {{{parameter}: \"{name}\"}}}}]"))
            };
            for (text, expected) in [
                (task("source"), "task a: source: is empty: name a file"),
                (task("template_file"), "task a: template_file: is empty: name a file"),
                (release(&format!("include: [\"{name}\"]")), "include: is empty: name a file"),
            ] {
                let dir = dir(&[("m.yaml", &text), (" ", ""), ("\u{200b}", "")]);
                let error = format!("{:#}", read(&[dir.path().join("m.yaml")]).unwrap_err());
                assert!(error.contains("m.yaml:3:") && error.contains(expected), "{name:?}: {error}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_file() {
        for (text, expected) in [
            ("kind: Release\nname: r\ntasks: [{id: a, parameters: {template_file: none.j2}}]\n", "task a"),
            ("kind: Release\nname: r\ninclude: [none.inc]\n", "none.inc"),
            ("kind: Release\nversion: 2026.10\n", "m.yaml:2:1: version 2026.10 is a number"),
            (
                "kind: Release\nname: r\ntasks: [{id: a, type: file, parameters: {source: 'sha256:AB'}}]\n",
                "task a: source \"sha256:AB\": it names no blob",
            ),
            (
                "kind: Release\nname: r\ntasks: [{id: a, type: file,\n parameters: {mode: 18446744073709551616}}]\n",
                "m.yaml:4:15: tasks[0].parameters.mode: number out of range: 18446744073709551616 does not fit into 64 bits",
            ),
            ("- 1\n", "an object is a map with a `kind`"),
            ("kind: Release\n\"say \\\"x\\\"\": 1\nversion: 1\n", "m.yaml:3:1: version 1 is a number"),
            ("# nothing\n", "no object here"),
            (
                "kind: Release\nname: r\ntasks: [{id: a, type: file,\n parameters: {source: /etc/passwd}}]\n",
                "m.yaml:4:15: task a: source: /etc/passwd: it is an absolute path",
            ),
            (
                "kind: Release\nname: r\ntasks: [{id: a, parameters: {template_file: ../../etc/shadow}}]\n",
                "it leads out of the manifest's directory",
            ),
            ("kind: Release\nname: r\ninclude: [../x.inc]\n", "it leads out of the manifest's directory"),
        ] {
            let dir = dir(&[("m.yaml", text)]);
            let error = format!("{:#}", read(&[dir.path().join("m.yaml")]).unwrap_err());
            assert!(error.contains(expected) && error.contains(".yaml"), "{error}");
        }
    }
}
