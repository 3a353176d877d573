//! `stemma release import --fuel`: reads a task library of Fuel (an `OpenStack` installer) from its own files, and
//! stores it as a release.
//!
//! The translation is a pure function in the crate `stemma-core`; this module reads the files. Fuel has tasks in many
//! files `tasks.yaml` below its modules. The tags that its roles produce are in the fixture `openstack.yaml`, or in a
//! plugin's `node_roles.yaml`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use stemma_author::SyntaxReader;
use stemma_core::manifest::{BodyError, ManifestObjects, assemble, read_document};
use stemma_core::name::ReleaseRef;
use stemma_core::ownership::Manager;
use stemma_core::release::fuel::{self, FuelImport};
use stemma_core::release::{CompiledRelease, check_changed_tasks, compile};
use stemma_wire::endpoint::Endpoint;

use crate::api::{ApiClient, ApiRefusal, WriteRequest};
use crate::args::{GlobalArgs, Output};
use crate::command::read;
use crate::command::report::{change_lines, print_dry_run};
use crate::directory::Listing;
use crate::manifest::{MAX_MANIFEST_BYTES, read_text};
use crate::output::{cell_text, printable};
use crate::problem::Problems;
use crate::tree::Subdirectories;
use crate::yaml::{read_documents, to_block};

/// Name of the manager of an import, if `--manager` is not given.
const DEFAULT_MANAGER: &str = "fuel-import";
/// Names of the files of Fuel that contain a list of tasks.
const TASK_FILES: &[&str] = &["tasks.yaml", "tasks.yml", "deployment_tasks.yaml"];
/// File extensions of YAML, the format of the files to read.
const YAML_EXTENSIONS: &[&str] = &["yaml", "yml"];
/// Names of the files in Fuel's plugins that consist of a map of roles.
const ROLE_FILES: &[&str] = &["node_roles.yaml"];
/// Maximum depth of subdirectories. A library with a deeper directory is refused.
const MAX_DEPTH: usize = 16;

/// The arguments of `stemma release import`.
pub(crate) struct ReleaseImport<'a> {
    pub(crate) path: &'a Path,
    pub(crate) graph: &'a str,
    pub(crate) name: &'a str,
    pub(crate) version: Option<&'a str>,
    /// True if the import also changes fields that another manager owns.
    pub(crate) force: bool,
}

/// Translates Fuel's task library and stores it as a release. With `--dry-run` the controller only checks the write.
/// With `-o manifest`, `-o yaml` and `-o json` the release is printed, and no controller is contacted.
///
/// # Errors
/// If the library can't be read or translated, or the controller refuses the release. If no controller is contacted,
/// for what [`check_release`] refuses.
pub(crate) async fn import_release(global: &GlobalArgs, args: ReleaseImport<'_>) -> Result<()> {
    let full_name = args.version.map_or_else(|| args.name.to_owned(), |version| format!("{}@{version}", args.name));
    let name: ReleaseRef = full_name.parse().with_context(|| format!("{full_name:?} is not a release name"))?;
    let files = read_files(args.path)?;
    let import = files.translate(args.graph).with_context(|| args.path.display().to_string())?;
    let compiled = compile_release(&name, &import)?;
    let manifest = release_manifest(&args, &import)?;
    let is_printed = matches!(global.output, Output::Json | Output::Yaml | Output::Manifest);
    for finding in import.findings.iter().chain(&compiled.findings) {
        let finding = printable(&finding.to_string());
        // Standard output then contains only the release or its name, so the findings are on standard error.
        if is_printed || global.dry_run || global.output == Output::Name {
            errln!("{finding}");
        } else {
            outln!("{finding}");
        }
    }
    // Then no controller is contacted, so this program checks what a controller would refuse.
    if is_printed {
        print_release(&manifest, &import, global.output)?;
        return check_release(&name, &manifest);
    }
    let mut api = ApiClient::new(&GlobalArgs {
        manager: Some(global.manager.clone().unwrap_or(DEFAULT_MANAGER.to_owned())),
        ..global.clone()
    })?;
    let answer = store_release(&mut api, &manifest, args.force).await?;
    if global.dry_run {
        print_release(&manifest, &import, global.output)?;
        print_decision(&name, &answer);
        print_dry_run(&api);
        return Ok(());
    }
    if global.output == Output::Name {
        outln!("release/{name}");
        return Ok(());
    }
    outln!(
        "release {name} stored: {} roles, {} tags, {} tasks",
        import.spec.roles.len(),
        import.spec.tags.len(),
        import.spec.tasks.len()
    );
    outln!("{}", summary(&import));
    Ok(())
}

/// Stores the release, or lets the controller check the write in a dry run. Returns the response. If other managers own
/// fields, the error names the options that resolve this.
async fn store_release(api: &mut ApiClient, manifest: &Value, force: bool) -> Result<Value> {
    let path = format!("{}?force={force}", Endpoint::Apply.path(&[]));
    let result = api.send(WriteRequest::new(Endpoint::Apply, path).with_json(&json!({"objects": [manifest]}))).await;
    result.map_err(|error| match error.downcast_ref::<ApiRefusal>() {
        Some(refusal) if !refusal.conflicts.is_empty() => refusal
            .exit()
            .with_message(format!("{refusal}\n  --force takes them over; --manager NAME imports under the owner's name")),
        _ => error,
    })
}

/// Prints the effect that the release would have: the action on it (such as `created`) and its changed fields. `answer`
/// is the response to a dry run.
fn print_decision(name: &ReleaseRef, answer: &Value) {
    let Some(object) = answer.pointer("/objects/0") else { return };
    errln!("release {name} would be {}", printable(&cell_text(object.get("action"))));
    for line in change_lines(object) {
        errln!("  {line}");
    }
}

/// Fails for what a controller would refuse: invalid fields of the manifest, and tasks that every host would refuse.
/// The error lists all problems.
fn check_release(name: &ReleaseRef, manifest: &Value) -> Result<()> {
    let mut problems = Problems::default();
    match parse_objects(manifest) {
        Ok(objects) => {
            let errors = objects.releases.iter().flat_map(|release| check_changed_tasks(&release.spec, None, &SyntaxReader));
            errors.for_each(|error| problems.add(name, error));
        }
        Err(errors) => errors.into_iter().for_each(|error| problems.add(name, error)),
    }
    problems.into_result()
}

/// Parses the manifest by the rules of the controller. Returns all errors if there are any.
fn parse_objects(manifest: &Value) -> Result<ManifestObjects, Vec<BodyError>> {
    // The manager has no effect on the errors.
    let manager = Manager::new(DEFAULT_MANAGER).expect("the name of the manager is valid");
    let document = read_document(&manifest.to_string()).map_err(|error| vec![error])?;
    assemble(&[document], &manager).map_err(|errors| errors.into_iter().map(|(_, error)| error).collect())
}

/// Prints the release as JSON or YAML, and the summary of the import. In JSON output, the summary is on standard error.
fn print_release(manifest: &Value, import: &FuelImport, output: Output) -> Result<()> {
    match output {
        Output::Json => {
            read::print_value(manifest, output)?;
            errln!("{}", summary(import));
        }
        _ => {
            out!("{}", to_block(manifest));
            outln!("# {}", summary(import));
        }
    }
    Ok(())
}

/// Returns the summary of the import in one line: how many of the imported tasks can run and why the others do not, and what
/// else has no effect here.
fn summary(import: &FuelImport) -> String {
    let mut parts = vec![runnable_summary(import)];
    if import.dropped_dependencies > 0 {
        parts.push(format!("dropped dependencies on tasks that the graph does not have: {}", import.dropped_dependencies));
    }
    if !import.fields_without_effect.is_empty() {
        let fields = import.fields_without_effect.iter().map(|(field, count)| format!("{field} {count}"));
        parts.push(format!("numbers of tasks with a field without effect: {}", fields.collect::<Vec<_>>().join(", ")));
    }
    parts.join("; ")
}

/// Returns how many of the imported tasks can run, by type, and why the others do not. Tasks that only mark a place in the
/// order are not counted.
fn runnable_summary(import: &FuelImport) -> String {
    let types = import.types.iter().map(|(kind, count)| format!("{kind} {} of {}", count.runnable, count.total));
    let types = types.collect::<Vec<_>>().join(", ");
    let (runnable, total) = (import.runnable(), import.total());
    let runnable_text = format!("{runnable} of {total} tasks can run");
    if total == 0 {
        return runnable_text;
    }
    let runnable_text = format!("{runnable_text} ({types})");
    if runnable == total {
        return runnable_text;
    }
    let reasons: Vec<String> = import.reasons.iter().map(|(reason, count)| format!("{count} have {reason}")).collect();
    let mut reason_text = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
    if import.reasons.values().sum::<usize>() > total - runnable {
        reason_text.push_str(" (a task may have several reasons)");
    }
    format!("{runnable_text}; {} are resolved but never started{reason_text}", total - runnable)
}

/// Compiles the release, which checks it. Fails with all errors of the release.
fn compile_release(name: &ReleaseRef, import: &FuelImport) -> Result<std::sync::Arc<CompiledRelease>> {
    compile(name, &import.spec, &|_| None, &SyntaxReader).map_err(|errors| {
        let mut problems = Problems::default();
        for error in errors {
            problems.add(name, error);
        }
        problems.into()
    })
}

/// Returns the manifest of the imported release.
fn release_manifest(args: &ReleaseImport<'_>, import: &FuelImport) -> Result<Value> {
    let mut manifest = Map::from_iter([("kind".to_owned(), "Release".into()), ("name".to_owned(), args.name.into())]);
    if let Some(version) = args.version {
        manifest.insert("version".to_owned(), version.into());
    }
    match serde_json::to_value(&import.spec)? {
        Value::Object(spec) => manifest.extend(spec),
        _ => bail!("a release is a map"),
    }
    Ok(Value::Object(manifest))
}

/// The content of the imported files. If `file` is set, the other fields are empty. A list of tasks sets only `tasks`.
#[derive(Debug, Default)]
struct ImportedFiles {
    /// The content of a single file that contains whole task graphs. `None` if a directory or a list of tasks was read.
    file: Option<Value>,
    tasks: Vec<Value>,
    roles: Map<String, Value>,
    tags: Map<String, Value>,
}

impl ImportedFiles {
    /// Translates the content into a release. `graph` selects a task graph, if a single file contains several.
    fn translate(&self, graph: &str) -> Result<FuelImport> {
        let mut import = match &self.file {
            Some(file) => fuel::import_file(file, graph)?,
            None => fuel::import(&self.tasks, &self.roles, &self.tags)?,
        };
        import.drop_dangling_dependencies();
        Ok(import)
    }

    /// Adds the roles and tags in `roles_metadata` and `tags_metadata` of a document. Fuel's fixtures have these in the
    /// `fields` of list items, so the items of a list and the value of `fields` are searched too.
    fn add_metadata(&mut self, document: &Value) {
        for (field, target) in [("roles_metadata", &mut self.roles), ("tags_metadata", &mut self.tags)] {
            if let Some(Value::Object(entries)) = document.get(field) {
                target.extend(entries.clone());
            }
        }
        for nested in document.as_array().into_iter().flatten().chain(document.get("fields")) {
            self.add_metadata(nested);
        }
    }
}

/// Reads a task library: the task and role files below a directory, or a single file with tasks or graphs. Of a single
/// file, only the first YAML document is used. Fails if the directory contains no tasks or the file is empty.
fn read_files(path: &Path) -> Result<ImportedFiles> {
    let mut imported = ImportedFiles::default();
    if path.is_dir() {
        let subdirectories = Subdirectories::find(path)?;
        let files = yaml_files(path, &subdirectories).with_context(|| path.display().to_string())?;
        Subdirectories::warn_skipped(&subdirectories.skipped, path, "one with a name of letters, digits, - and _ is read");
        Listing::warn_skipped(&files.skipped, path, YAML_EXTENSIONS);
        files.files.iter().try_for_each(|file| read_file(&mut imported, file, path))?;
        if imported.tasks.is_empty() {
            bail!("no tasks below {}: Fuel stores them in files called {}", path.display(), TASK_FILES.join(" or "));
        }
        if imported.roles.is_empty() {
            errln!(
                "warning: no roles below {0}: without them no role produces a tag; put Fuel's openstack.yaml into {0}",
                path.display()
            );
        }
        return Ok(imported);
    }
    let documents = parse_file(path)?;
    match documents.into_iter().next() {
        Some(Value::Array(tasks)) => imported.tasks = tasks,
        Some(file) => imported.file = Some(file),
        None => bail!("{} is empty", path.display()),
    }
    Ok(imported)
}

/// Lists the YAML files of a directory and of its subdirectories, sorted by path. Symbolic links are not followed. In
/// the subdirectories, a skipped file is reported only if it resembles a task file, because no other files are read
/// there.
fn yaml_files(top_directory: &Path, subdirectories: &Subdirectories) -> Result<Listing> {
    let mut files = Listing::default();
    for dir in std::iter::once(top_directory).chain(subdirectories.included.iter().map(PathBuf::as_path)) {
        if dir.strip_prefix(top_directory).is_ok_and(|relative_path| relative_path.components().count() > MAX_DEPTH) {
            bail!("{} is nested deeper than {MAX_DEPTH} directories", dir.display());
        }
        let Listing { files: listed, skipped } = Listing::read(dir, YAML_EXTENSIONS)?;
        let is_file = |file: &PathBuf| std::fs::symlink_metadata(file).is_ok_and(|metadata| metadata.is_file());
        files.files.extend(listed.into_iter().filter(is_file));
        files.skipped.extend(skipped.into_iter().filter(|file| dir == top_directory || is_discarded_task_file(file)));
    }
    files.files.sort();
    files.skipped.sort();
    Ok(files)
}

/// Returns whether a skipped file resembles a task file by its name, such as `tasks.yaml~`, `.tasks.yaml.swp` or
/// `tasks.bak.yaml`.
fn is_discarded_task_file(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_separator = |character: char| !character.is_ascii_alphanumeric() && character != '_';
    let word = name.split(is_separator).find(|word| !word.is_empty()).unwrap_or_default();
    TASK_FILES.iter().any(|task_file| task_file.split_once('.').is_some_and(|(stem, _)| stem == word))
}

/// Adds the content of a file to `imported`. Task files are read in every directory. Roles and tags are read only from
/// the top directory, because the YAML files of modules have another purpose.
fn read_file(imported: &mut ImportedFiles, file: &Path, top_directory: &Path) -> Result<()> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if TASK_FILES.contains(&name) {
        for document in parse_file(file)? {
            match document {
                Value::Array(tasks) => imported.tasks.extend(tasks),
                _ => bail!("{}: a task file must be a list of tasks", file.display()),
            }
        }
    } else if file.parent() == Some(top_directory) {
        for document in parse_file(file)? {
            match document {
                Value::Object(roles) if ROLE_FILES.contains(&name) => imported.roles.extend(roles),
                document => imported.add_metadata(&document),
            }
        }
    }
    Ok(())
}

/// Reads a YAML file. Returns each document as a JSON value.
fn parse_file(file: &Path) -> Result<Vec<Value>> {
    let text = read_text(file, MAX_MANIFEST_BYTES).with_context(|| file.display().to_string())?;
    let documents = read_documents(&text).with_context(|| file.display().to_string())?;
    documents.iter().map(|document| document.read().with_context(|| file.display().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with a backup name (`lib.bak`, `lib~`) or an invalid name (`d 1`) is skipped and reported. The
    /// hidden `.git` is skipped without a report.
    #[test]
    fn y08_import_skips_hidden_and_discarded_directories() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lib", "lib/astute", "lib.bak", "lib~", ".git", "lib/d 1"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("tasks.yaml"), "[]").unwrap();
        }
        let subdirectories = Subdirectories::find(dir.path()).unwrap();
        let names = |paths: &[PathBuf]| {
            let name = |path: &PathBuf| path.strip_prefix(dir.path()).unwrap().display().to_string();
            paths.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(&yaml_files(dir.path(), &subdirectories).unwrap().files), ["lib/astute/tasks.yaml", "lib/tasks.yaml"]);
        assert_eq!(names(&subdirectories.skipped), ["lib/d 1", "lib.bak", "lib~"]);
    }

    /// In the top directory, each skipped YAML file is reported. In a subdirectory, a skipped file is reported only
    /// if its name resembles that of a task file.
    #[test]
    fn y08_import_reports_task_file_when_discarded() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("lib/astute")).unwrap();
        let skipped_files = [
            ".openstack.yaml",
            "lib/.tasks.yaml.swp",
            "lib/astute/deployment_tasks.yaml.orig",
            "lib/astute/tasks.yaml~",
            "lib/tasks copy.yaml",
            "lib/tasks.bak.yaml",
            "lib/tasks.yml.rpmsave",
            "openstack.yaml.bak",
        ];
        let accepted_files = ["lib/astute/hiera.yaml", "lib/tasks.yaml", "openstack.yaml"];
        // Files of modules that are never read, whatever their name, are not reported.
        let others = ["lib/astute/hiera.yaml.bak", "lib/.fixtures.yml", "README.md", "lib/tasks.rb"];
        for name in skipped_files.iter().chain(&accepted_files).chain(&others) {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let files = yaml_files(dir.path(), &Subdirectories::find(dir.path()).unwrap()).unwrap();
        let paths = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>();
        assert_eq!(files.skipped, paths(&skipped_files));
        assert_eq!(files.files, paths(&accepted_files));
    }

    /// Tasks are read from every directory, and roles and tags only from the top directory. Of the two tasks that are
    /// not stages, only `db` can run, because the condition of `web` is not translated.
    #[test]
    fn import_reads_nested_tasks_and_own_metadata() {
        let dir = tempfile::tempdir().unwrap();
        let write_file = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write_file(
            "openstack.yaml",
            "- pk: 1\n  fields: &base\n    roles_metadata: {controller: {tags: [controller, database]}}\n    tags_metadata: {database: {has_primary: true}}\n- pk: 2\n  fields: {<<: *base}\n",
        );
        write_file(
            "a/b/tasks.yaml",
            "- {id: deploy_start, type: stage}\n- id: db\n  type: shell\n  version: 2.1.0\n  tags: [database]\n  requires: [deploy_start]\n  parameters: {cmd: /bin/true, timeout: 180}\n",
        );
        write_file("a/b/other.yaml", "roles_metadata: {ignored: {}}\n");
        write_file(
            "c/tasks.yaml",
            "- id: web\n  type: puppet\n  groups: [controller]\n  condition: {yaql_exp: 'changed($)'}\n  cross-depends: [{name: db}]\n",
        );
        let imported = read_files(dir.path()).unwrap();
        assert_eq!(imported.roles.keys().collect::<Vec<_>>(), ["controller"]);
        let import = imported.translate("default").unwrap();
        let ids: Vec<&str> = import.spec.tasks.iter().map(|task| task.id.as_str()).collect();
        assert_eq!(ids, ["deploy_start", "db", "web"]);
        assert_eq!(
            summary(&import),
            "1 of 2 tasks can run (puppet 0 of 1, shell 1 of 1); 1 are resolved but never started: 1 have an expression"
        );
        let name = "fuel@1".parse().unwrap();
        assert!(compile_release(&name, &import).is_ok());
    }

    /// Fuel ignores a dependency on a task that the graph does not have. Without this, the release does not compile.
    #[test]
    fn import_drops_and_counts_dangling_dependencies() {
        let tasks = json!([
            {"id": "a", "type": "shell", "role": "*", "parameters": {"cmd": "true"}, "required_for": ["b", "gone"],
                "requires": ["/no-match/"], "cross-depends": [{"name": "gone"}], "test_pre": {"cmd": "true"}},
            {"id": "b", "type": "shell", "role": "*", "condition": "x", "parameters": {"cmd": "{CLUSTER_ID}"}, "stage": "x"},
        ]);
        let imported = ImportedFiles { tasks: tasks.as_array().unwrap().clone(), ..ImportedFiles::default() };
        let import = imported.translate("default").unwrap();
        assert_eq!(
            summary(&import),
            "1 of 2 tasks can run (shell 1 of 2); 1 are resolved but never started: 1 have an expression, 1 have a placeholder \
             (a task may have several reasons); dropped dependencies on tasks that the graph does not have: 2; \
             numbers of tasks with a field without effect: stage 1, test_pre 1"
        );
        let finding = import.findings.iter().find(|finding| finding.code == "fuel.reference").unwrap();
        assert_eq!(
            finding.to_string(),
            "warning fuel.reference task/a: dropped, as in Fuel, because the graph has no such task: required_for gone, cross-depends gone"
        );
        assert_eq!(import.spec.tasks[0].required_for, ["b"]);
        assert!(compile_release(&"fuel@1".parse().unwrap(), &import).is_ok());
    }

    #[test]
    fn import_lists_task_file_names_when_tasks_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let error = read_files(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tasks.yaml or tasks.yml"), "{error}");
    }
}
