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
    let mut left_out = Vec::new();
    let mut once = Once::of(paths);
    for path in paths {
        match listed(path) {
            Ok(Listing { taken, left_out: mut left }) => {
                once.keep_left_out(&mut left);
                left_out.push((path, left));
                for file in taken {
                    if once.is_new(&file) {
                        let is_listed = !once.is_named(&file);
                        files.push(ManifestFile::read(file, is_listed));
                    }
                }
            }
            Err(error) => problems.add(path.display(), format!("{error:#}")),
        }
    }
    let named = named_of(&files, left_out.iter().flat_map(|(_, left)| left));
    for (path, mut left_out) in left_out {
        left_out.retain(|file| !is_among(&named, file));
        Listing::tell_left_out(&left_out, path, MANIFESTS);
    }
    for file in files.into_iter().filter(|file| !file.is_part(&named)) {
        file.take(&mut manifests, &mut problems);
    }
    if problems.is_empty() && manifests.objects.is_empty() {
        add_empty(paths, &mut problems);
    }
    (manifests, problems)
}

/// The files that the manifests below these paths name. Standard input and what is no regular file are not read: there is no second reading of them.
pub(crate) fn named(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let of_path = |path: &PathBuf| listed(path).unwrap_or_default();
    let listings: Vec<Listing> = paths.iter().filter(|path| *path != Path::new("-")).map(of_path).collect();
    let taken = listings.iter().flat_map(|listing| &listing.taken).filter(|file| file.is_file());
    let files: Vec<ManifestFile> = taken.map(|file| ManifestFile::read(file.clone(), true)).collect();
    named_of(&files, listings.iter().flat_map(|listing| &listing.left_out))
}

/// The files that manifests name. A part that a directory leaves out by its name is read where one of them is it, and names others itself.
fn named_of<'a>(files: &[ManifestFile], left_out: impl Iterator<Item = &'a PathBuf>) -> BTreeSet<PathBuf> {
    let mut named: BTreeSet<PathBuf> = files.iter().flat_map(ManifestFile::names).collect();
    // A pipe would be waited for without end, and none is brought in.
    let mut unnamed: Vec<&PathBuf> = left_out.filter(|file| file.is_file()).collect();
    loop {
        let (parts, others): (Vec<_>, Vec<_>) = unnamed.into_iter().partition(|file| is_among(&named, file));
        if parts.is_empty() {
            return named;
        }
        named.extend(parts.into_iter().flat_map(|file| ManifestFile::read(file.clone(), true).names()));
        unnamed = others;
    }
}

/// Whether a file is one of those that manifests name, by whatever link.
pub(crate) fn is_among(named: &BTreeSet<PathBuf>, file: &Path) -> bool {
    file.canonicalize().is_ok_and(|file| named.contains(&file))
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
        self.documents.iter().flatten().flat_map(|document| named_by(&self.path, &document.value())).collect()
    }

    /// Whether it stands in a directory for another manifest to name it, and holds no object of its own.
    fn is_part(&self, named: &BTreeSet<PathBuf>) -> bool {
        self.is_listed
            && is_among(named, &self.path)
            && !self.documents.iter().flatten().any(|document| holds_object(&document.value()))
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
fn holds_object(document: &Value) -> bool {
    let is_object =
        |one: &Value| one.get("kind").and_then(Value::as_str).is_some_and(|kind| Kind::of_manifest(kind).is_some());
    document.as_array().into_iter().flatten().chain([document]).any(is_object)
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
    let release: Result<Map<String, Value>, _> = manifest.document.read_body();
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
        let part: Value = document.read_body().with_context(|| shown.to_string())?;
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
mod tests;
