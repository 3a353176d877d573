//! Reads manifests from files and directories, with the files that they include. A file may contain several objects.
//!
//! Included files are read here, because a controller has no access to them. `include:` merges other files into a
//! release. `template_file:` is replaced with the text of the template, so that the controller finds its references
//! when it stores the release. `source:` is replaced with the hash of a blob, which is sent before the manifest.

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
use stemma_core::shares::Shares;
use stemma_core::task::tree_rules::{MAX_TREE_DEPTH, MAX_TREE_FILES, relative_path_error};
use stemma_core::task::{Parameter, TEMPLATE_FILE, set_source, task_type};
use stemma_wire::message::{Hash, MAX_BLOB_BYTES, MAX_UNNAMED_BLOB_BYTES, MIN_BLOB_BYTES};

use crate::args::KindArg;
use crate::directory::{Listing, MANIFEST_EXTENSIONS, VisitedPaths};
use crate::include_path::{included_paths, read_error, resolve_include, resolve_included_dir};
use crate::problem::Problems;
use crate::yaml::{self, SourcePosition, YamlDocument};

/// The maximum size of all files of a `source_dir`, in bytes. By default (`unnamed_files_mebibytes`), a controller stores no
/// more of one sender before a release names the files.
const MAX_TREE_BYTES: u64 = Shares::from_total(MAX_UNNAMED_BLOB_BYTES).max_per_principal;

/// The maximum size of a manifest file, of a file that it includes, and of a file to import, in bytes.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 16 * 1024 * 1024;

/// One object of a manifest file, as it is sent to the controller.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    /// The file that contains the object.
    pub(crate) file: PathBuf,
    /// The YAML document of the object.
    pub(crate) document: YamlDocument,
    /// The JSON text of the object. In a release, the text or hash of each file replaces its name.
    pub(crate) json: String,
    /// The included lists of tasks, in the order in which their tasks are in the release.
    included_lists: Vec<IncludedTasks>,
    /// The template file of each task that has one, by the index of the task in the release.
    templates: BTreeMap<usize, PathBuf>,
}

/// A list of tasks that was read from another file.
#[derive(Clone, Debug)]
struct IncludedTasks {
    /// The index that the first task of this list has in the release.
    first_index: usize,
    file: PathBuf,
    document: YamlDocument,
    /// The path of the list in `document`: `tasks`, or empty if the document itself is the list.
    prefix: &'static str,
}

/// The objects that were read from several paths, and the files that their tasks send to hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manifests {
    /// The objects, in the order of the paths, of the file names in a directory, and of their positions in the file.
    pub(crate) objects: Vec<Manifest>,
    /// The files to send to the controller before the objects, by their SHA-256 in hex.
    pub(crate) blobs: BTreeMap<String, PathBuf>,
}

impl Manifest {
    /// Returns `FILE:LINE:COLUMN` of a field, or of the nearest enclosing field that is in the manifest or the included
    /// file. A field of a task may name the task by id, such as `task ntp requires[0]`.
    pub(crate) fn locate(&self, field: &str) -> String {
        let (file, document, field) = self.locate_field(&self.with_task_index(field));
        format!("{}:{}", file.display(), document.position_of(&field))
    }

    /// Returns the place and the text of an error about a field. If `message` contains a position in the text of the
    /// field (`line L, column C: `), and that text is in a template file or a literal block (`|`), the place is the
    /// position there, and the returned text omits it.
    pub(crate) fn locate_error(&self, field: &str, message: &str) -> (String, String) {
        let in_text = || {
            let (sentence, position) = split_text_position(message)?;
            let (file, file_position) = self.locate_in_text(field, position)?;
            Some((format!("{}:{file_position}", file.display()), sentence))
        };
        in_text().unwrap_or_else(|| (self.locate(field), message.to_owned()))
    }

    /// Returns `FILE:LINE` of a line in the text of a field. `line` counts from 1 in that text. `None` if the text is
    /// neither in a template file nor in a literal block (`|`) of the manifest.
    pub(crate) fn line_in_text(&self, field: &str, line: usize) -> Option<String> {
        let (file, position) = self.locate_in_text(field, SourcePosition { line, column: 1 })?;
        Some(format!("{}:{}", file.display(), position.line))
    }

    /// Returns the parameters of the task with this id, as they are sent to the controller: the files that the task names
    /// are replaced with their text or hash. `None` if the object is not a release with such a task.
    pub(crate) fn task_parameters(&self, task: &str) -> Option<Map<String, Value>> {
        let release: Value = serde_json::from_str(&self.json).ok()?;
        let task = release.get("tasks")?.get(task_index(&self.json, task)?)?;
        Some(task.get("parameters").and_then(Value::as_object).cloned().unwrap_or_default())
    }

    /// Returns the file that contains the text of a field, and converts a position in the text to a position in that
    /// file. `None` if the text is neither a template file nor a literal block.
    fn locate_in_text(&self, field: &str, position_in_text: SourcePosition) -> Option<(&Path, SourcePosition)> {
        let field = self.with_task_index(field);
        if let Some((index, ".parameters.template")) = parse_task_field(&field)
            && let Some(file) = self.templates.get(&index)
        {
            return Some((file.as_path(), position_in_text));
        }
        let (file, document, field) = self.locate_field(&field);
        Some((file, document.block_starts.get(&field)?.position_in_file(position_in_text)))
    }

    /// Converts a field that names its task by id: `task ntp requires[0]` becomes `tasks[3].requires[0]`. Returns
    /// `tasks` if no task has the id. A field that does not begin with `task ` is returned unchanged.
    fn with_task_index(&self, field: &str) -> String {
        let Some(rest) = field.strip_prefix("task ") else { return field.to_owned() };
        let (id, field) = rest.split_once(' ').unwrap_or((rest, ""));
        task_index(&self.json, id).map_or_else(|| "tasks".to_owned(), |index| format!("tasks[{index}].{field}"))
    }

    /// Returns the file and the document that contain a field, and the path of the field in the document.
    fn locate_field(&self, field: &str) -> (&Path, &YamlDocument, String) {
        match self.included_field(field) {
            Some((included, field)) => (included.file.as_path(), &included.document, field),
            None => (self.file.as_path(), &self.document, field.to_owned()),
        }
    }

    /// Returns the included list that contains a field of a task, and the path of the field in it. `None` if the
    /// release's own file contains the field.
    fn included_field(&self, field: &str) -> Option<(&IncludedTasks, String)> {
        let (index, rest) = parse_task_field(field)?;
        // The last list that begins at or before the index contains the task.
        let included = self.included_lists.iter().rev().find(|included| included.first_index <= index)?;
        Some((included, format!("{}[{}]{rest}", included.prefix, index - included.first_index)))
    }
}

/// Splits the path of a field into the task index and the rest: `tasks[2].id` is `.id` of the third task. `None` if the
/// field is not in a task.
fn parse_task_field(field: &str) -> Option<(usize, &str)> {
    let (index, rest) = field.strip_prefix("tasks[")?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

/// Removes `line L, column C: ` from an error text. Returns the rest of the text, and this position. `None` if the text
/// contains no position. The position is at the start of the text, or after the first `: ` that the word `line` follows.
fn split_text_position(message: &str) -> Option<(String, SourcePosition)> {
    let start = if message.starts_with("line ") { 0 } else { message.find(": line ")? + ": ".len() };
    let (position, rest) = message[start..].strip_prefix("line ")?.split_once(": ")?;
    let (line, column) = position.split_once(", column ")?;
    let position = SourcePosition { line: line.parse().ok()?, column: column.parse().ok()? };
    Some((format!("{}{rest}", &message[..start]), position))
}

/// Returns the index of the task with this id in a release. `json` is the JSON text of the release. If two tasks have
/// the id, returns the index of the later one, because an error is about the duplicate.
fn task_index(json: &str, id: &str) -> Option<usize> {
    let release: Value = serde_json::from_str(json).ok()?;
    let has_id = |task: &Value| task.get("id").and_then(Value::as_str) == Some(id);
    release.get("tasks")?.as_array()?.iter().rposition(has_id)
}

/// Reads the manifests at the paths and directly in directories, each file once. Prints a warning about skipped files.
///
/// # Errors
/// Fails with [`Problems`] if a path can't be read, a text is not YAML, a release is invalid, a file that a release
/// names is missing or too large, or no path contains an object.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Manifests> {
    let (manifests, problems) = read_all(paths);
    problems.into_result()?;
    Ok(manifests)
}

/// Reads the manifests at the paths, as [`read`] does. Returns the manifests without errors, and the problems of the
/// others.
pub(crate) fn read_all(paths: &[PathBuf]) -> (Manifests, Problems) {
    let mut manifests = Manifests::default();
    let mut problems = Problems::default();
    let mut files = Vec::new();
    let mut skipped = Vec::new();
    let mut visited = VisitedPaths::new(paths);
    for path in paths {
        match list_files(path) {
            Ok(Listing { files: listed_files, skipped: mut skipped_files }) => {
                visited.retain_new(&mut skipped_files);
                skipped.push((path, skipped_files));
                for file in listed_files {
                    if visited.visit(&file) {
                        // A file that the user names is never left out as an included part.
                        let is_listed = !visited.is_named(&file);
                        files.push(CandidateFile::read(file, is_listed));
                    }
                }
            }
            Err(error) => problems.add(path.display(), format!("{error:#}")),
        }
    }
    // An included part is neither read as an object nor reported as skipped.
    let included = find_included(&files, skipped.iter().flat_map(|(_, skipped_files)| skipped_files));
    for (path, mut skipped) in skipped {
        skipped.retain(|file| !is_included(&included, file));
        Listing::warn_skipped(&skipped, path, MANIFEST_EXTENSIONS);
    }
    for file in files.into_iter().filter(|file| !file.is_include_part(&included)) {
        file.move_into(&mut manifests, &mut problems);
    }
    if problems.is_empty() && manifests.objects.is_empty() {
        add_no_object_problem(paths, &mut problems);
    }
    (manifests, problems)
}

/// Returns the real paths of the files that the manifests at these paths name: included parts, template files and
/// sources. Standard input and special files are not read, because they can be read only once.
pub(crate) fn included_files(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let list_path = |path: &PathBuf| list_files(path).unwrap_or_default();
    let listings: Vec<Listing> = paths.iter().filter(|path| *path != Path::new("-")).map(list_path).collect();
    let regular_files = listings.iter().flat_map(|listing| &listing.files).filter(|file| file.is_file());
    // `true` (from a directory) has no effect on the files that a file includes.
    let files: Vec<CandidateFile> = regular_files.map(|file| CandidateFile::read(file.clone(), true)).collect();
    find_included(&files, listings.iter().flat_map(|listing| &listing.skipped))
}

/// Returns the real paths of the files that `files` name: included parts, template files and sources. `skipped` has the
/// files that a listing skips because of their names. Such a file is read only if it is an included part, because a
/// part may name more files. An included part that is neither in `files` nor in `skipped` is not read.
fn find_included<'a>(files: &[CandidateFile], skipped: impl Iterator<Item = &'a PathBuf>) -> BTreeSet<PathBuf> {
    let mut included: BTreeSet<PathBuf> = files.iter().flat_map(CandidateFile::included_paths).collect();
    // Reading a pipe would block forever, and a pipe is never included.
    let mut candidates: Vec<&PathBuf> = skipped.filter(|file| file.is_file()).collect();
    loop {
        let (parts, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|file| is_included(&included, file));
        if parts.is_empty() {
            return included;
        }
        // `true` (from a directory) has no effect on the files that a part includes.
        included.extend(parts.into_iter().flat_map(|file| CandidateFile::read(file.clone(), true).included_paths()));
        candidates = others;
    }
}

/// Returns whether `file` is among the included files, after its links are resolved.
pub(crate) fn is_included(included: &BTreeSet<PathBuf>, file: &Path) -> bool {
    file.canonicalize().is_ok_and(|file| included.contains(&file))
}

/// Adds the problem that none of the paths contains an object, with advice for each kind of path. Paths with the same
/// advice share one message.
fn add_no_object_problem(paths: &[PathBuf], problems: &mut Problems) {
    let mut by_message: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        let message = match path.as_path() {
            stdin if stdin == Path::new("-") => "no object here: standard input contains none",
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
    /// True if the file is from the listing of a directory. False if the command names the file.
    is_from_directory: bool,
    /// The documents of the file, or the place and the text of the error that prevented reading them.
    documents: Result<Vec<YamlDocument>, (String, String)>,
}

impl CandidateFile {
    /// Reads a file. `is_listed` is true if the file is from the listing of a directory. Stores an error instead of the
    /// documents. Later, the error is reported, unless the file is only a part that a manifest includes.
    fn read(path: PathBuf, is_listed: bool) -> Self {
        let documents = read_file(&path);
        Self { path, is_from_directory: is_listed, documents }
    }

    /// Returns the real paths of the included parts, template files and sources that this file names.
    fn included_paths(&self) -> Vec<PathBuf> {
        self.documents.iter().flatten().flat_map(|document| included_paths(&self.path, &document.to_value())).collect()
    }

    /// Returns whether the file is only a part that a manifest includes. Such a file is from the listing of a
    /// directory, is included, and contains no object.
    fn is_include_part(&self, included: &BTreeSet<PathBuf>) -> bool {
        self.is_from_directory
            && is_included(included, &self.path)
            && !self.documents.iter().flatten().any(|document| has_object(&document.to_value()))
    }

    /// Adds the objects of the file to `manifests`, and the errors of the file and of its objects to `problems`.
    fn move_into(self, manifests: &mut Manifests, problems: &mut Problems) {
        match self.documents {
            Ok(documents) => {
                for document in documents {
                    add_document(manifests, &self.path, document, problems);
                }
            }
            Err((place, message)) => problems.add(place, message),
        }
    }
}

/// Returns whether a document is an object of a known kind, or a list that contains such an object.
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

/// Checks that a `.json` file is JSON. YAML accepts more, such as a comma after the last member. Numbers are not
/// converted, so a number of any size is accepted.
fn check_json(file: &Path, text: &str) -> Result<(), serde_json::Error> {
    let is_json = file.extension().is_some_and(|end| end == "json") && !text.trim().is_empty();
    if !is_json || serde_json::from_str::<&RawValue>(text).is_ok() {
        return Ok(());
    }
    // Parses the text again as a value, because that error message is more precise.
    serde_json::from_str::<Value>(text).map(drop)
}

/// Joins the paths with commas.
fn path_list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Lists the manifest files directly in a directory. If `path` is not a directory, lists `path`, whatever its name is.
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
/// Fails if the file can't be read, is not UTF-8, or is larger than `limit` bytes.
pub(crate) fn read_text(file: &Path, limit: u64) -> Result<String> {
    // The size of a device or a pipe is unknown, so at most one byte more than the limit is read.
    let read = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(limit + 1).read_to_end(&mut bytes).map(|_| bytes).map_err(|error| read_error(&error))
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

/// Adds the objects of a document to `manifests`. A document in JSON or YAML is one object or a list of objects. Adds the
/// errors of the document and of its included files to `problems`.
fn add_document(manifests: &mut Manifests, file: &Path, document: YamlDocument, problems: &mut Problems) {
    if document.json.starts_with('[') {
        let items: Vec<Box<RawValue>> = serde_json::from_str(&document.json).unwrap_or_default();
        for (index, item) in items.iter().enumerate() {
            let part = YamlDocument { json: item.get().to_owned(), ..document.sub_document(&format!("[{index}]")) };
            add_document(manifests, file, part, problems);
        }
        return;
    }
    let (json, included, templates) = (String::new(), Vec::new(), BTreeMap::new());
    let mut manifest = Manifest { file: file.to_owned(), document, json, included_lists: included, templates };
    match resolve_includes(manifests, &mut manifest) {
        Ok(json) => {
            manifest.json = json;
            manifests.objects.push(manifest);
        }
        Err(errors) => {
            for (field, error) in &errors {
                problems.add(manifest.locate(field), format!("{error:#}"));
            }
        }
    }
}

/// Returns the JSON text of an object. For a release, merges the included files into the text, and adds to `manifests`
/// the files that the tasks send to hosts. Also stores in `manifest` which tasks and templates come from which file.
/// The text of other kinds is left unchanged. Each error has the path of its field.
fn resolve_includes(manifests: &mut Manifests, manifest: &mut Manifest) -> Result<String, Vec<(String, anyhow::Error)>> {
    let error_at = |field: &str| {
        let field = field.to_owned();
        move |error: anyhow::Error| vec![(field, error)]
    };
    let json = manifest.document.json.clone();
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_str(&json).map_err(|_| error_at("")(anyhow!("an object is a map with a `kind`")))?;
    if fields.get("kind").is_none_or(|kind| kind.get() != "\"Release\"") {
        return Ok(json);
    }
    check_version(fields.get("version").copied()).map_err(error_at("version"))?;
    let release: Result<Map<String, Value>, _> = manifest.document.read_body();
    let mut release = release.map_err(|error| vec![(error.field.clone(), error.into())])?;
    let dir = manifest.file.parent().unwrap_or(Path::new(".")).to_owned();
    if let Some(include) = release.remove("include") {
        for part in string_items(&include).context("include").map_err(error_at("include"))? {
            let path = join_path(&dir, part).context("include").map_err(error_at("include"))?;
            // Refuses a path that leads out of the directory of the manifest.
            let part = resolve_include(&dir, &dir, part).with_context(|| path.display().to_string());
            let included = part.and_then(|_| include_part(&mut release, manifest, &path));
            included.context("include").map_err(error_at("include"))?;
        }
    }
    let tasks = release.get_mut("tasks").and_then(Value::as_array_mut).into_iter().flatten();
    let include = |(index, task)| {
        // The error is a pair: the path of the parameter, and the reason.
        let error = load_task_files(manifests, manifest, index, task).err()?;
        Some((format!("tasks[{index}].parameters{}", error.0), error.1))
    };
    let errors: Vec<_> = tasks.enumerate().filter_map(include).collect();
    if errors.is_empty() { Ok(Value::Object(release).to_string()) } else { Err(errors) }
}

/// Refuses a version that is written as a number, because 2026.10 would become 2026.1.
fn check_version(version: Option<&RawValue>) -> Result<()> {
    match version.map(RawValue::get) {
        Some(number) if number.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
            bail!("version {number} is a number, and 2026.10 would be 2026.1: write it as text, version: \"{number}\"")
        }
        _ => Ok(()),
    }
}

/// Returns the path of the file `name` in the directory `dir`. Fails if the name is empty or blank.
fn join_path(dir: &Path, name: &str) -> Result<PathBuf> {
    if is_blank(name) {
        bail!("is empty: name a file");
    }
    Ok(dir.join(name))
}

/// Returns the file names in a list. Fails if the value is not a list of texts.
fn string_items(list: &Value) -> Result<Vec<&str>> {
    let items = list.as_array().context("must be a list of file names")?;
    items.iter().map(|item| item.as_str().context("must be a list of file names")).collect()
}

/// Merges the documents of an included file into a release as [`merge`] does, and records them in
/// `manifest.included_lists`. A document is a list of tasks, or a map with fields of a release.
fn include_part(release: &mut Map<String, Value>, manifest: &mut Manifest, file: &Path) -> Result<()> {
    let file_name = file.display();
    let text = read_text(file, MAX_MANIFEST_BYTES).with_context(|| file_name.to_string())?;
    for document in yaml::read_documents(without_bom(&text)).with_context(|| file_name.to_string())? {
        let part: Value = document.read_body().with_context(|| file_name.to_string())?;
        let (fields, prefix) = match part {
            Value::Array(_) => ([("tasks".to_owned(), part)].into_iter().collect(), ""),
            Value::Object(fields) => (fields, "tasks"),
            _ => bail!("{file_name}: a part of a release is a map, or a list of tasks"),
        };
        let task_count = release.get("tasks").and_then(Value::as_array).map_or(0, Vec::len);
        merge(release, fields, file)?;
        manifest.included_lists.push(IncludedTasks { first_index: task_count, file: file.to_owned(), document, prefix });
    }
    Ok(())
}

/// Merges the fields of an included part into a release: lists are appended, and maps are joined. Fails for a duplicate
/// key, for a field that is neither a list nor a map, and for a field that has another type in the release.
fn merge(release: &mut Map<String, Value>, fields: Map<String, Value>, file: &Path) -> Result<()> {
    for (name, value) in fields {
        match (release.entry(name.clone()).or_insert_with(|| empty_of_same_type(&value)), value) {
            (Value::Array(target), Value::Array(added)) => target.extend(added),
            (Value::Object(target), Value::Object(added)) => {
                for (key, value) in added {
                    if target.insert(key.clone(), value).is_some() {
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

/// Reads the files that a task names, relative to the file that contains the task. The text of `template_file` becomes
/// the parameter `template`, and each file of a directory (`source_dir`, `modules_dir`) a source. The file of a source
/// is added to the blobs, and its hash becomes the value. A source that is already a hash is only checked. An error has
/// the path of the parameter, such as `.source`.
fn load_task_files(
    manifests: &mut Manifests,
    manifest: &mut Manifest,
    index: usize,
    task: &mut Value,
) -> Result<(), (String, anyhow::Error)> {
    let field = format!("tasks[{index}]");
    let file = manifest.included_field(&field).map_or(&manifest.file, |(included, _)| &included.file);
    let dir = file.parent().unwrap_or(Path::new(".")).to_owned();
    let root = &manifest.file.parent().unwrap_or(Path::new(".")).to_owned();
    let id = task.get("id").and_then(Value::as_str).unwrap_or("without an id").to_owned();
    let kind = task.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let describe_file = |name: &str, path: &Path| format!("task {id}: {name}: {}", path.display());
    let Some(parameters) = task.get_mut("parameters").and_then(Value::as_object_mut) else { return Ok(()) };
    if let Some(name) = parameters.remove(TEMPLATE_FILE.name) {
        let wrap = |error: anyhow::Error| (".template_file".to_owned(), error);
        let name = name.as_str().with_context(|| format!("task {id}: template_file must be the name of a file")).map_err(wrap)?;
        let path = join_path(&dir, name).with_context(|| format!("task {id}: template_file")).map_err(wrap)?;
        let template = resolve_include(root, &dir, name).and_then(|file| read_text(&file, MAX_MANIFEST_BYTES));
        let template = template.with_context(|| describe_file("template_file", &path)).map_err(wrap)?;
        if parameters.insert("template".to_owned(), Value::String(template)).is_some() {
            return Err(wrap(anyhow!("task {id}: template and template_file are both set: keep one of them")));
        }
        manifest.templates.insert(index, path);
    }
    let Some(kind) = task_type(&kind) else { return Ok(()) };
    // Of the parameters that only manifests have, all but `template_file` are directories.
    if let Some((Parameter { name, .. }, files_name)) = kind.manifest_only {
        let expanded = expand_directory(root, &dir, parameters, [name, files_name]);
        expanded.with_context(|| format!("task {id}: {name}")).map_err(|error| (format!(".{name}"), error))?;
    }
    let sources: Vec<_> = kind.sources(parameters).into_iter().map(|(field, source)| (field, source.to_owned())).collect();
    for (field, name) in sources {
        // The place of an error is that of the whole parameter, which may be a map or a list.
        let wrap = |error: anyhow::Error| (format!(".{}", field.split(['.', '[']).next().unwrap_or(&field)), error);
        // The value is already the hash of a stored blob, so it is only checked.
        if name.starts_with("sha256:") {
            Hash::from_source(&name).with_context(|| format!("task {id}: {field} {name:?}")).map_err(wrap)?;
            continue;
        }
        let path = join_path(&dir, &name).with_context(|| format!("task {id}: {field}")).map_err(wrap)?;
        let hash_and_file = resolve_include(root, &dir, &name).and_then(|file| Ok((hash_file(&file)?, file)));
        let (hash, file) = hash_and_file.with_context(|| describe_file(&field, &path)).map_err(wrap)?;
        set_source(parameters, &field, format!("sha256:{hash}"));
        manifests.blobs.insert(hash, file);
    }
    Ok(())
}

/// Replaces the parameter `dir_name` of a task, which is a directory, by `files_name`, which names each file of the
/// directory. Does nothing if the task has no such parameter.
fn expand_directory(
    root: &Path,
    dir: &Path,
    parameters: &mut Map<String, Value>,
    [dir_name, files_name]: [&str; 2],
) -> Result<()> {
    let Some(name) = parameters.remove(dir_name) else { return Ok(()) };
    let name = name.as_str().context("must be the name of a directory")?;
    if parameters.contains_key(files_name) {
        bail!("{files_name} and {dir_name} are both set: keep one of them");
    }
    join_path(dir, name)?;
    let source_dir = resolve_included_dir(root, dir, name).with_context(|| name.to_owned())?;
    let (mut files, mut total_bytes) = (Map::new(), 0);
    let base = name.trim_end_matches('/');
    add_directory(&source_dir, (base, ""), &mut files, &mut total_bytes).with_context(|| name.to_owned())?;
    if files.is_empty() {
        bail!("{name}: it has no file");
    }
    parameters.insert(files_name.to_owned(), Value::Object(files));
    Ok(())
}

/// Adds the files of a directory to `files`, each with its name relative to the manifest. `base` is the name of the whole
/// tree, and `prefix` the path of the directory in it.
fn add_directory(
    directory: &Path,
    (base, prefix): (&str, &str),
    files: &mut Map<String, Value>,
    total_bytes: &mut u64,
) -> Result<()> {
    let mut entries = std::fs::read_dir(directory).map_err(|error| read_error(&error))?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { bail!("{prefix}{}: its name is not UTF-8", name.display()) };
        let path = format!("{prefix}{name}");
        if let Some(error) = relative_path_error(&path) {
            bail!("{error}");
        }
        // The metadata of a directory entry is that of a link itself.
        let metadata = entry.metadata().map_err(|error| read_error(&error)).with_context(|| path.clone())?;
        if metadata.is_dir() {
            if path.split('/').count() >= MAX_TREE_DEPTH {
                bail!("{path}: it is more than {MAX_TREE_DEPTH} directories deep");
            }
            add_directory(&entry.path(), (base, &format!("{path}/")), files, total_bytes)?;
            continue;
        }
        if !metadata.is_file() {
            bail!(
                "{path}: it is a link or a special file, and only files and directories are sent: remove it, or name the files one by one (files)"
            );
        }
        check_blob_size(metadata.len()).with_context(|| path.clone())?;
        *total_bytes += metadata.len().max(MIN_BLOB_BYTES);
        if files.len() == MAX_TREE_FILES || *total_bytes > MAX_TREE_BYTES {
            bail!(
                "the directory has more than {MAX_TREE_FILES} files or {MAX_TREE_BYTES} bytes (a file counts as at least {MIN_BLOB_BYTES}): send an archive as one file, or fetch it on the host with a shell task"
            );
        }
        files.insert(path.clone(), Value::String(format!("{base}/{path}")));
    }
    Ok(())
}

/// Fails if a file of this size is too large for a blob.
fn check_blob_size(size: u64) -> Result<()> {
    if size > MAX_BLOB_BYTES as u64 {
        bail!("has {size} bytes, more than the limit of {MAX_BLOB_BYTES} for a blob: fetch it on the host with a shell task");
    }
    Ok(())
}

/// Returns the SHA-256 of a file in hex. Fails if the file is larger than [`MAX_BLOB_BYTES`].
fn hash_file(file: &Path) -> Result<String> {
    let size = std::fs::metadata(file).map_err(|error| read_error(&error))?.len();
    check_blob_size(size)?;
    let bytes = std::fs::read(file).map_err(|error| read_error(&error))?;
    Ok(Hex(&Sha256::digest(&bytes)).to_string())
}

#[cfg(test)]
mod tests;
