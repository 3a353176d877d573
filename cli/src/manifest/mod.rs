//! Reads manifests as people store them: files and directories, files next to them, several objects in a file.
//!
//! Files next to a manifest are included here, because a controller has no access to them. `include:` merges other
//! files into a release. `template_file:` becomes the template itself, so that its references are found when the
//! release is stored. `source:` becomes the hash of a blob that is sent before the manifest.

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
use stemma_core::task::{TEMPLATE_FILE, source_parameter};
use stemma_wire::message::Hash;

use crate::args::KindArg;
use crate::directory::{Listing, MANIFEST_EXTENSIONS, VisitedPaths};
use crate::include_path::{included_paths, read_error, resolve_include};
use crate::problem::Problems;
use crate::yaml::{self, SourcePosition, YamlDocument};

/// Maximum size of a file that a task may send, in bytes. The controller has the same limit.
const MAX_BLOB_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum size of a manifest file, in bytes.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 16 * 1024 * 1024;

/// One object as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    /// The file that contains the object.
    pub(crate) file: PathBuf,
    /// The YAML document of the object.
    pub(crate) document: YamlDocument,
    /// The JSON text of the object, with included files merged in.
    pub(crate) json: String,
    /// The included lists of tasks, in the order of the tasks.
    included_lists: Vec<IncludedTasks>,
    /// The files that templates were read from, by task index.
    templates: BTreeMap<usize, PathBuf>,
}

/// A list of tasks that was read from another file.
#[derive(Clone, Debug)]
struct IncludedTasks {
    /// The index in the release of the first task of this list.
    first_index: usize,
    file: PathBuf,
    document: YamlDocument,
    /// The path of the list in that document: `tasks`, or empty.
    prefix: &'static str,
}

/// The objects and files below several paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manifests {
    /// The objects, in the order of file names and of their position in the file.
    pub(crate) objects: Vec<Manifest>,
    /// Files to send first, by their SHA-256 in hex.
    pub(crate) blobs: BTreeMap<String, PathBuf>,
}

impl Manifest {
    /// Returns `FILE:LINE:COLUMN` of a field. A field of a task may name the task by id, such as `task ntp
    /// requires[0]`.
    pub(crate) fn locate(&self, field: &str) -> String {
        let (file, document, field) = self.locate_field(&self.with_task_index(field));
        format!("{}:{}", file.display(), document.position_of(&field))
    }

    /// Returns the place and text of an error about a field. If the text names a line of a template or of another text,
    /// the place is that line: in the file that the text was read from, or in the block of the manifest.
    pub(crate) fn locate_error(&self, field: &str, what: &str) -> (String, String) {
        let in_text = || {
            let (sentence, within) = split_text_position(what)?;
            let (file, at) = self.locate_in_text(field, within)?;
            Some((format!("{}:{at}", file.display()), sentence))
        };
        in_text().unwrap_or_else(|| (self.locate(field), what.to_owned()))
    }

    /// Returns `FILE:LINE` of a line in the text of a field. `None` if the text is neither a file nor a literal block.
    pub(crate) fn line_in_text(&self, field: &str, line: usize) -> Option<String> {
        let (file, at) = self.locate_in_text(field, SourcePosition { line, column: 1 })?;
        Some(format!("{}:{}", file.display(), at.line))
    }

    /// Returns the parameters that a task sets itself, if this is a release that contains the task.
    pub(crate) fn task_parameters(&self, task: &str) -> Option<Map<String, Value>> {
        let release: Value = serde_json::from_str(&self.json).ok()?;
        let task = release.get("tasks")?.get(task_index(&self.json, task)?)?;
        Some(task.get("parameters").and_then(Value::as_object).cloned().unwrap_or_default())
    }

    /// Converts a position in the text of a field to a file and a position in it.
    fn locate_in_text(&self, field: &str, within: SourcePosition) -> Option<(&Path, SourcePosition)> {
        let field = self.with_task_index(field);
        if let Some((at, ".parameters.template")) = parse_task_field(&field)
            && let Some(file) = self.templates.get(&at)
        {
            return Some((file.as_path(), within));
        }
        let (file, document, field) = self.locate_field(&field);
        Some((file, document.block_starts.get(&field)?.position_in_file(within)))
    }

    /// Replaces the task id at the start of a field with the index of the task.
    fn with_task_index(&self, field: &str) -> String {
        let Some(rest) = field.strip_prefix("task ") else { return field.to_owned() };
        let (id, field) = rest.split_once(' ').unwrap_or((rest, ""));
        task_index(&self.json, id).map_or_else(|| "tasks".to_owned(), |index| format!("tasks[{index}].{field}"))
    }

    /// Returns the file and document that contain a field, and its path there.
    fn locate_field(&self, field: &str) -> (&Path, &YamlDocument, String) {
        match self.included_field(field) {
            Some((included, field)) => (included.file.as_path(), &included.document, field),
            None => (self.file.as_path(), &self.document, field.to_owned()),
        }
    }

    /// Returns the included list that contains a field of a task, and the path of the field in it. `None` if the
    /// release's own file contains the field.
    fn included_field(&self, field: &str) -> Option<(&IncludedTasks, String)> {
        let (at, rest) = parse_task_field(field)?;
        let included = self.included_lists.iter().rev().find(|included| included.first_index <= at)?;
        Some((included, format!("{}[{}]{rest}", included.prefix, at - included.first_index)))
    }
}

/// Splits a field of a task into the task index and the rest: `tasks[2].id` is `.id` of the third task.
fn parse_task_field(field: &str) -> Option<(usize, &str)> {
    let (at, rest) = field.strip_prefix("tasks[")?.split_once(']')?;
    Some((at.parse().ok()?, rest))
}

/// Splits an error text into the text without the line and column that it names, and this position.
fn split_text_position(what: &str) -> Option<(String, SourcePosition)> {
    let from = if what.starts_with("line ") { 0 } else { what.find(": line ")? + ": ".len() };
    let (place, rest) = what[from..].strip_prefix("line ")?.split_once(": ")?;
    let (line, column) = place.split_once(", column ")?;
    let place = SourcePosition { line: line.parse().ok()?, column: column.parse().ok()? };
    Some((format!("{}{rest}", &what[..from]), place))
}

/// Returns the index of a task in its release. If two tasks have the id, this is the later one, which is the duplicate.
fn task_index(json: &str, id: &str) -> Option<usize> {
    let release: Value = serde_json::from_str(json).ok()?;
    let has_id = |task: &Value| task.get("id").and_then(Value::as_str) == Some(id);
    release.get("tasks")?.as_array()?.iter().rposition(has_id)
}

/// Reads every manifest below the paths. A file that is reached by two paths is read once.
///
/// # Errors
/// [`Problems`] if a path can't be read, a text is not YAML, or a file next to a manifest is missing or too large.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Manifests> {
    let (manifests, problems) = read_all(paths);
    problems.into_result()?;
    Ok(manifests)
}

/// Like [`read`], but returns what could be read together with the problems.
pub(crate) fn read_all(paths: &[PathBuf]) -> (Manifests, Problems) {
    let mut manifests = Manifests::default();
    let mut problems = Problems::default();
    let mut files = Vec::new();
    let mut skipped = Vec::new();
    let mut visited = VisitedPaths::new(paths);
    for path in paths {
        match list_files(path) {
            Ok(Listing { files: taken, skipped: mut skipped_files }) => {
                visited.retain_new(&mut skipped_files);
                skipped.push((path, skipped_files));
                for file in taken {
                    if visited.visit(&file) {
                        let is_listed = !visited.is_named(&file);
                        files.push(CandidateFile::read(file, is_listed));
                    }
                }
            }
            Err(error) => problems.add(path.display(), format!("{error:#}")),
        }
    }
    let included = included_by(&files, skipped.iter().flat_map(|(_, left)| left));
    for (path, mut skipped) in skipped {
        skipped.retain(|file| !is_included(&included, file));
        Listing::warn_skipped(&skipped, path, MANIFEST_EXTENSIONS);
    }
    for file in files.into_iter().filter(|file| !file.is_include_part(&included)) {
        file.move_into(&mut manifests, &mut problems);
    }
    if problems.is_empty() && manifests.objects.is_empty() {
        add_empty(paths, &mut problems);
    }
    (manifests, problems)
}

/// Returns the files that the manifests below these paths include. Standard input and special files are not read,
/// because they can be read only once.
pub(crate) fn included_files(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let of_path = |path: &PathBuf| list_files(path).unwrap_or_default();
    let listings: Vec<Listing> = paths.iter().filter(|path| *path != Path::new("-")).map(of_path).collect();
    let taken = listings.iter().flat_map(|listing| &listing.files).filter(|file| file.is_file());
    let files: Vec<CandidateFile> = taken.map(|file| CandidateFile::read(file.clone(), true)).collect();
    included_by(&files, listings.iter().flat_map(|listing| &listing.skipped))
}

/// Returns the files that manifests include. A directory may skip an included part because of its name. Such a part is
/// read too, and may include other files.
fn included_by<'a>(files: &[CandidateFile], skipped: impl Iterator<Item = &'a PathBuf>) -> BTreeSet<PathBuf> {
    let mut included: BTreeSet<PathBuf> = files.iter().flat_map(CandidateFile::included_paths).collect();
    // Reading a pipe would block forever, and a pipe is never included.
    let mut unnamed: Vec<&PathBuf> = skipped.filter(|file| file.is_file()).collect();
    loop {
        let (parts, others): (Vec<_>, Vec<_>) = unnamed.into_iter().partition(|file| is_included(&included, file));
        if parts.is_empty() {
            return included;
        }
        included.extend(parts.into_iter().flat_map(|file| CandidateFile::read(file.clone(), true).included_paths()));
        unnamed = others;
    }
}

/// Returns whether manifests include this file, through any link.
pub(crate) fn is_included(included: &BTreeSet<PathBuf>, file: &Path) -> bool {
    file.canonicalize().is_ok_and(|file| included.contains(&file))
}

/// Adds a problem for paths that contain no object, with where to put one.
fn add_empty(paths: &[PathBuf], problems: &mut Problems) {
    let mut by_message: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        let message = match path.as_path() {
            input if input == Path::new("-") => "no object here: standard input contains none",
            directory if directory.is_dir() => {
                "no object here: a manifest is NAME.yaml, NAME.yml or NAME.json right in the directory, with a NAME of letters, digits, - and _"
            }
            _ => {
                "no object here: the file contains none; an object begins with its kind, such as `kind: Node` (`stemma fields` lists the kinds)"
            }
        };
        by_message.entry(message).or_default().push(path.clone());
    }
    for (message, paths) in by_message {
        problems.add(path_list(&paths), message);
    }
}

/// A file that may contain manifests.
struct CandidateFile {
    path: PathBuf,
    /// True if the file was found in a directory, and not named itself.
    is_from_directory: bool,
    /// The documents of the file, or the place and text of the error.
    documents: Result<Vec<YamlDocument>, (String, String)>,
}

impl CandidateFile {
    fn read(path: PathBuf, is_listed: bool) -> Self {
        let documents = read_file(&path);
        Self { path, is_from_directory: is_listed, documents }
    }

    /// Returns the files that its documents include.
    fn included_paths(&self) -> Vec<PathBuf> {
        self.documents.iter().flatten().flat_map(|document| included_paths(&self.path, &document.to_value())).collect()
    }

    /// Returns whether the file was found in a directory, is included by a manifest and contains no object of its own.
    fn is_include_part(&self, included: &BTreeSet<PathBuf>) -> bool {
        self.is_from_directory
            && is_included(included, &self.path)
            && !self.documents.iter().flatten().any(|document| has_object(&document.to_value()))
    }

    /// Adds the objects of the file to `to`, or the error of reading the file to `problems`.
    fn move_into(self, to: &mut Manifests, problems: &mut Problems) {
        match self.documents {
            Ok(documents) => {
                for document in documents {
                    add_document(to, &self.path, document, problems);
                }
            }
            Err((place, what)) => problems.add(place, what),
        }
    }
}

/// Returns whether a document is an object of a known kind, or a list with one.
fn has_object(document: &Value) -> bool {
    let is_object =
        |value: &Value| value.get("kind").and_then(Value::as_str).is_some_and(|kind| KindArg::from_manifest_kind(kind).is_some());
    document.as_array().into_iter().flatten().chain([document]).any(is_object)
}

/// Reads the documents of a file. An error is a place, such as `FILE:LINE:COLUMN`, and a text.
fn read_file(file: &Path) -> Result<Vec<YamlDocument>, (String, String)> {
    let text = read_text(file, MAX_MANIFEST_BYTES).map_err(|error| (file.display().to_string(), format!("{error:#}")))?;
    let text = without_bom(&text);
    check_json(file, text).map_err(|error| {
        let place = format!("{}:{}:{}", file.display(), error.line(), error.column());
        (place, format!("not JSON: {error}; a .json file must be JSON"))
    })?;
    yaml::read_documents(text).map_err(|error| (format!("{}:{}", file.display(), error.at), error.what))
}

/// Removes the byte order mark that Windows programs put before a text.
pub(crate) fn without_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Checks that a `.json` file is JSON. YAML accepts more, such as a comma after the last member. Numbers are not parsed
/// here.
fn check_json(file: &Path, text: &str) -> Result<(), serde_json::Error> {
    let is_json = file.extension().is_some_and(|end| end == "json") && !text.trim().is_empty();
    if !is_json || serde_json::from_str::<&RawValue>(text).is_ok() {
        return Ok(());
    }
    // Parses again as a value, because its error message is more precise.
    serde_json::from_str::<Value>(text).map(drop)
}

fn path_list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns a file itself, or the manifests directly in a directory, by name.
pub(crate) fn list_files(path: &Path) -> Result<Listing> {
    if !path.is_dir() {
        return Ok(Listing { files: vec![path.to_owned()], skipped: Vec::new() });
    }
    let mut listing = Listing::read(path, MANIFEST_EXTENSIONS).map_err(|error| read_error(&error))?;
    listing.files.retain(|file| !file.is_dir());
    Ok(listing)
}

/// Reads the text of a file, or of standard input for `-`.
///
/// # Errors
/// Fails if it can't be read, is not UTF-8, or is larger than `limit` bytes.
pub(crate) fn read_text(file: &Path, limit: u64) -> Result<String> {
    // A device or a pipe has no size to check in advance.
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        from.take(limit + 1).read_to_end(&mut bytes).map(|_| bytes).map_err(|error| read_error(&error))
    };
    let bytes = if file == Path::new("-") {
        read(&mut std::io::stdin())?
    } else {
        read(&mut File::open(file).map_err(|error| read_error(&error))?)?
    };
    if bytes.len() as u64 > limit {
        bail!("is larger than the limit of {limit} bytes: split it");
    }
    Ok(json::decode_utf8(bytes)?)
}

/// Adds the objects of a document. A JSON file may contain one object or an array of them.
fn add_document(to: &mut Manifests, file: &Path, document: YamlDocument, problems: &mut Problems) {
    if document.json.starts_with('[') {
        let items: Vec<Box<RawValue>> = serde_json::from_str(&document.json).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let part = YamlDocument { json: item.get().to_owned(), ..document.sub_document(&format!("[{index}]")) };
            add_document(to, file, part, problems);
        }
        return;
    }
    let (json, included, templates) = (String::new(), Vec::new(), BTreeMap::new());
    let mut manifest = Manifest { file: file.to_owned(), document, json, included_lists: included, templates };
    match resolve_includes(to, &mut manifest) {
        Ok(json) => {
            manifest.json = json;
            to.objects.push(manifest);
        }
        Err(errors) => {
            for (field, error) in &errors {
                problems.add(manifest.locate(field), format!("{error:#}"));
            }
        }
    }
}

/// Includes the files next to a release. The text of other kinds is left unchanged. Each error names its field.
fn resolve_includes(to: &mut Manifests, manifest: &mut Manifest) -> Result<String, Vec<(String, anyhow::Error)>> {
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
        for part in string_items(&include).context("include").map_err(at("include"))? {
            let path = join_path(&dir, part).context("include").map_err(at("include"))?;
            let part = resolve_include(&dir, &dir, part).with_context(|| path.display().to_string());
            let included = part.and_then(|_| include_part(&mut release, manifest, &path));
            included.context("include").map_err(at("include"))?;
        }
    }
    let tasks = release.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten();
    let include = |(index, task)| {
        let error = load_task_files(to, manifest, index, task).err()?;
        Some((format!("tasks[{index}].parameters{}", error.0), error.1))
    };
    let errors: Vec<_> = tasks.enumerate().filter_map(include).collect();
    if errors.is_empty() { Ok(Value::Object(release).to_string()) } else { Err(errors) }
}

/// Refuses a version that is written as a number: 2026.10 would become 2026.1.
fn check_version(version: Option<&RawValue>) -> Result<()> {
    match version.map(RawValue::get) {
        Some(number) if number.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
            bail!("version {number} is a number, and 2026.10 would be 2026.1: write it as text, version: \"{number}\"")
        }
        _ => Ok(()),
    }
}

/// Returns the path of an included file. Fails if the name is empty.
fn join_path(dir: &Path, name: &str) -> Result<PathBuf> {
    if is_blank(name) {
        bail!("is empty: name a file");
    }
    Ok(dir.join(name))
}

fn string_items(list: &Value) -> Result<Vec<&str>> {
    let items = list.as_array().context("takes a list of file names")?;
    items.iter().map(|item| item.as_str().context("takes a list of file names")).collect()
}

/// Merges a part into a release. A part has the list and map fields of a release. A duplicate key is an error.
fn include_part(release: &mut Map<String, Value>, manifest: &mut Manifest, file: &Path) -> Result<()> {
    let shown = file.display();
    let text = read_text(file, MAX_MANIFEST_BYTES).with_context(|| shown.to_string())?;
    for document in yaml::read_documents(without_bom(&text)).with_context(|| shown.to_string())? {
        let part: Value = document.read_body().with_context(|| shown.to_string())?;
        let (fields, list) = match part {
            Value::Array(_) => ([("tasks".to_owned(), part)].into_iter().collect(), ""),
            Value::Object(fields) => (fields, "tasks"),
            _ => bail!("{shown}: a part of a release is a map, or a list of tasks"),
        };
        let first = release.get("tasks").and_then(Value::as_array).map_or(0, Vec::len);
        merge(release, fields, file)?;
        manifest.included_lists.push(IncludedTasks { first_index: first, file: file.to_owned(), document, prefix: list });
    }
    Ok(())
}

/// Merges the fields of a part into a release: lists are appended, and maps are joined.
fn merge(release: &mut Map<String, Value>, fields: Map<String, Value>, file: &Path) -> Result<()> {
    for (name, value) in fields {
        match (release.entry(name.clone()).or_insert_with(|| empty_of_same_type(&value)), value) {
            (Value::Array(to), Value::Array(more)) => to.extend(more),
            (Value::Object(to), Value::Object(more)) => {
                for (key, value) in more {
                    if to.insert(key.clone(), value).is_some() {
                        bail!("{}: {name}.{key} is defined twice: keep one of them", file.display());
                    }
                }
            }
            _ => bail!("{}: {name} can't be included: only lists and maps can", file.display()),
        }
    }
    Ok(())
}

/// Returns an empty list for a list, an empty map for a map, and null for any other value.
fn empty_of_same_type(value: &Value) -> Value {
    match value {
        Value::Array(_) => Value::Array(Vec::new()),
        Value::Object(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

/// Includes the files that a task names, relative to the file that contains the task. An error names the parameter,
/// such as `.source`.
fn load_task_files(
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
        let name = name.as_str().with_context(|| format!("task {id}: template_file takes a file's name")).map_err(at)?;
        let path = join_path(&dir, name).with_context(|| format!("task {id}: template_file")).map_err(at)?;
        let template = resolve_include(root, &dir, name).and_then(|file| read_text(&file, MAX_MANIFEST_BYTES));
        let template = template.with_context(|| named("template_file", &path)).map_err(at)?;
        if parameters.insert("template".to_owned(), Value::String(template)).is_some() {
            return Err(at(anyhow!("task {id}: template and template_file are both set: keep one of them")));
        }
        manifest.templates.insert(index, path);
    }
    let source = source_parameter(&kind, parameters).map(str::to_owned);
    if let Some(name) = source {
        if name.starts_with("sha256:") {
            let named = Hash::from_source(&name).with_context(|| format!("task {id}: source {name:?}"));
            return named.map(|_| ()).map_err(|error| (".source", error));
        }
        let path = join_path(&dir, &name).with_context(|| format!("task {id}: source"));
        let path = path.map_err(|error| (".source", error))?;
        let hashed = resolve_include(root, &dir, &name).and_then(|file| Ok((hash_file(&file)?, file)));
        let (hash, file) = hashed.with_context(|| named("source", &path)).map_err(|error| (".source", error))?;
        parameters.insert("source".to_owned(), Value::String(format!("sha256:{hash}")));
        to.blobs.insert(hash, file);
    }
    Ok(())
}

/// Returns the SHA-256 of a file in hex. Fails if the file is too large for a blob.
fn hash_file(file: &Path) -> Result<String> {
    let size = std::fs::metadata(file).map_err(|error| read_error(&error))?.len();
    if size > MAX_BLOB_BYTES {
        bail!("has {size} bytes, more than the limit of {MAX_BLOB_BYTES} for a blob: fetch it on the host with a shell task");
    }
    let bytes = std::fs::read(file).map_err(|error| read_error(&error))?;
    Ok(Hex(&Sha256::digest(&bytes)).to_string())
}

#[cfg(test)]
mod tests;
