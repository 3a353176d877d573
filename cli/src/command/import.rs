//! `release import --fuel`: another system's library, read from its own files and stored as a release.
//!
//! The translation is core's and pure; here are the files. Fuel keeps tasks in many `tasks.yaml` below its modules,
//! and what its roles produce in the fixture `openstack.yaml` or a plugin's `node_roles.yaml`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use stemma_author::Reader;
use stemma_core::manifest::{BodyError, Objects, assemble, read_document};
use stemma_core::name::ReleaseRef;
use stemma_core::ownership::Manager;
use stemma_core::release::fuel::{self, FuelImport};
use stemma_core::release::{CompiledRelease, compile, refused};
use stemma_wire::endpoint::Endpoint;

use crate::api::{Api, Refusal, Write};
use crate::args::{Global, Output};
use crate::command::done::{change_lines, note_dry_run};
use crate::command::question;
use crate::directory::Listing;
use crate::manifest::{MAX_MANIFEST, text};
use crate::output::{cell, printable};
use crate::problem::Problems;
use crate::tree::Below;
use crate::yaml::{block, documents};

/// Under whose name an import writes, unless said.
const MANAGER: &str = "fuel-import";
/// Files that hold a list of tasks.
const TASKS: &[&str] = &["tasks.yaml", "tasks.yml", "deployment_tasks.yaml"];
/// What the files that are read end with.
const ENDINGS: &[&str] = &["yaml", "yml"];
/// Files that are a map of roles as they stand, in Fuel's plugins.
const ROLES: &[&str] = &["node_roles.yaml"];
/// The deepest directory that is looked into.
const MAX_DEPTH: usize = 16;

/// What to import, and as what.
pub(crate) struct Import<'a> {
    pub(crate) path: &'a Path,
    pub(crate) graph: &'a str,
    pub(crate) name: &'a str,
    pub(crate) version: Option<&'a str>,
    /// Take over what another manager owns.
    pub(crate) force: bool,
}

/// Translates, and stores the release, which `--dry-run` has the controller decide alone. Under `-o manifest`, `-o yaml` and `-o json` the release is
/// printed and no controller is asked.
///
/// # Errors
/// What can't be read or translated, and the controller's refusal; where none is asked, what one would refuse.
pub(crate) async fn release(global: &Global, what: Import<'_>) -> Result<()> {
    let shown = what.version.map_or_else(|| what.name.to_owned(), |version| format!("{}@{version}", what.name));
    let name: ReleaseRef = shown.parse().with_context(|| format!("{shown:?} is no release's name"))?;
    let found = read(what.path)?;
    let import = found.translate(what.graph).with_context(|| what.path.display().to_string())?;
    let compiled = compiled(&name, &import)?;
    let manifest = manifest(&what, &import)?;
    let is_printed = matches!(global.output, Output::Json | Output::Yaml | Output::Manifest);
    for finding in import.findings.iter().chain(&compiled.findings) {
        let finding = printable(&finding.to_string());
        if is_printed || global.dry_run || global.output == Output::Name {
            tell!("{finding}");
        } else {
            say!("{finding}");
        }
    }
    if is_printed {
        print(&manifest, &import, global.output)?;
        return check(&name, &manifest);
    }
    let mut api =
        Api::new(&Global { manager: Some(global.manager.clone().unwrap_or(MANAGER.to_owned())), ..global.clone() })?;
    let answer = store(&mut api, &manifest, what.force).await?;
    if global.dry_run {
        print(&manifest, &import, global.output)?;
        tell_decided(&name, &answer);
        note_dry_run(&api);
        return Ok(());
    }
    if global.output == Output::Name {
        say!("release/{name}");
        return Ok(());
    }
    say!(
        "release {name} stored: {} roles, {} tags, {} tasks",
        import.spec.roles.len(),
        import.spec.tags.len(),
        import.spec.tasks.len()
    );
    say!("{}", summary(&import));
    Ok(())
}

/// Has the controller store the release, or decide that alone; its answer.
async fn store(api: &mut Api, manifest: &Value, force: bool) -> Result<Value> {
    let path = format!("{}?force={force}", Endpoint::Apply.path(&[]));
    let sent = api.send(Write::at(Endpoint::Apply, path).json(&json!({"objects": [manifest]}))).await;
    sent.map_err(|error| match error.downcast_ref::<Refusal>() {
        Some(refusal) if !refusal.conflicts.is_empty() => refusal
            .exit()
            .because(format!("{refusal}\n  --force takes them over; --manager NAME imports under the owner's name")),
        _ => error,
    })
}

/// Says what would become of the release, as the controller decided it.
fn tell_decided(name: &ReleaseRef, answer: &Value) {
    let Some(object) = answer.pointer("/objects/0") else { return };
    tell!("release {name} would be {}", printable(&cell(object.get("action"))));
    for line in change_lines(object) {
        tell!("  {line}");
    }
}

/// What a controller would refuse of the release: of the fields of its manifest, and of its tasks what every host would.
fn check(name: &ReleaseRef, manifest: &Value) -> Result<()> {
    let mut problems = Problems::default();
    match objects(manifest) {
        Ok(objects) => {
            let errors = objects.releases.iter().flat_map(|release| refused(&release.spec, None, &Reader));
            errors.for_each(|error| problems.add(name, error));
        }
        Err(errors) => errors.into_iter().for_each(|error| problems.add(name, error)),
    }
    problems.check()
}

/// What a manifest says, read as a controller reads it.
fn objects(manifest: &Value) -> Result<Objects, Vec<BodyError>> {
    let manager = Manager::new(MANAGER).expect("the name is a manager's");
    let document = read_document(&manifest.to_string()).map_err(|error| vec![error])?;
    assemble(&[document], &manager).map_err(|errors| errors.into_iter().map(|(_, error)| error).collect())
}

fn print(manifest: &Value, import: &FuelImport, output: Output) -> Result<()> {
    match output {
        Output::Json => {
            question::print(manifest, output)?;
            tell!("{}", summary(import));
        }
        _ => {
            say_part!("{}", block(manifest));
            say!("# {}", summary(import));
        }
    }
    Ok(())
}

/// The last line: markers stand for a place in the order, and are neither run nor counted.
fn summary(import: &FuelImport) -> String {
    let waiting = import.total - import.runnable;
    format!(
        "{} of {} tasks can run; {waiting} rest on what is not translated, and are resolved and never started",
        import.runnable, import.total
    )
}

fn compiled(name: &ReleaseRef, import: &FuelImport) -> Result<std::sync::Arc<CompiledRelease>> {
    compile(name, &import.spec, &|_| None, &Reader).map_err(|errors| {
        let mut problems = Problems::default();
        for error in errors {
            problems.add(name, error);
        }
        problems.into()
    })
}

fn manifest(what: &Import<'_>, import: &FuelImport) -> Result<Value> {
    let mut manifest = Map::from_iter([("kind".to_owned(), "Release".into()), ("name".to_owned(), what.name.into())]);
    if let Some(version) = what.version {
        manifest.insert("version".to_owned(), version.into());
    }
    match serde_json::to_value(&import.spec)? {
        Value::Object(spec) => manifest.extend(spec),
        _ => bail!("a release is a map"),
    }
    Ok(Value::Object(manifest))
}

/// What was found in files.
#[derive(Debug, Default)]
struct Found {
    /// One JSON file with several graphs.
    file: Option<Value>,
    tasks: Vec<Value>,
    roles: Map<String, Value>,
    tags: Map<String, Value>,
}

impl Found {
    fn translate(&self, graph: &str) -> Result<FuelImport> {
        Ok(match &self.file {
            Some(file) => fuel::import_file(file, graph)?,
            None => fuel::import(&self.tasks, &self.roles, &self.tags)?,
        })
    }

    /// Takes in the roles and tags of a release, wherever the document keeps them.
    fn metadata(&mut self, document: &Value) {
        for (field, to) in [("roles_metadata", &mut self.roles), ("tags_metadata", &mut self.tags)] {
            if let Some(Value::Object(more)) = document.get(field) {
                to.extend(more.clone());
            }
        }
        for inner in document.as_array().into_iter().flatten().chain(document.get("fields")) {
            self.metadata(inner);
        }
    }
}

fn read(path: &Path) -> Result<Found> {
    let mut found = Found::default();
    if path.is_dir() {
        let below = Below::of(path)?;
        let files = yaml_files(path, &below).with_context(|| path.display().to_string())?;
        Below::tell_left_out(&below.left_out, path, "one with a name of letters, digits, - and _ is read");
        Listing::tell_left_out(&files.left_out, path, ENDINGS);
        files.taken.iter().try_for_each(|file| read_file(&mut found, file, path))?;
        if found.tasks.is_empty() {
            bail!("no tasks below {}: Fuel keeps them in files called {}", path.display(), TASKS.join(" or "));
        }
        if found.roles.is_empty() {
            tell!(
                "warning: no roles below {0}: without them no role produces a tag; put Fuel's openstack.yaml into {0}",
                path.display()
            );
        }
        return Ok(found);
    }
    let documents = parsed(path)?;
    match documents.into_iter().next() {
        Some(Value::Array(tasks)) => found.tasks = tasks,
        Some(file) => found.file = Some(file),
        None => bail!("{} holds nothing", path.display()),
    }
    Ok(found)
}

/// Every YAML file of a directory and those below it, in the order of their paths; what a link leads to is not read. Below the directory only files
/// of tasks are said to be left out, since nothing else is read there.
fn yaml_files(top: &Path, below: &Below) -> Result<Listing> {
    let mut files = Listing::default();
    for dir in std::iter::once(top).chain(below.read.iter().map(PathBuf::as_path)) {
        if dir.strip_prefix(top).is_ok_and(|inner| inner.components().count() > MAX_DEPTH) {
            bail!("{} is nested deeper than {MAX_DEPTH} directories", dir.display());
        }
        let Listing { taken, left_out } = Listing::of(dir, ENDINGS)?;
        let is_file = |file: &PathBuf| std::fs::symlink_metadata(file).is_ok_and(|found| found.is_file());
        files.taken.extend(taken.into_iter().filter(is_file));
        files.left_out.extend(left_out.into_iter().filter(|file| dir == top || was_of_tasks(file)));
    }
    files.taken.sort();
    files.left_out.sort();
    Ok(files)
}

/// Whether a file that is left out by its name was one of tasks: `tasks.yaml~`, `.tasks.yaml.swp`, `tasks.bak.yaml`.
fn was_of_tasks(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_between = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    let word = name.split(is_between).find(|word| !word.is_empty()).unwrap_or_default();
    TASKS.iter().any(|tasks| tasks.split_once('.').is_some_and(|(known, _)| known == word))
}

/// Tasks stand at any depth; roles and tags right in the directory, since modules keep other YAML below.
fn read_file(to: &mut Found, file: &Path, top: &Path) -> Result<()> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if TASKS.contains(&name) {
        for document in parsed(file)? {
            match document {
                Value::Array(tasks) => to.tasks.extend(tasks),
                _ => bail!("{}: a file of tasks is a list of them", file.display()),
            }
        }
    } else if file.parent() == Some(top) {
        for document in parsed(file)? {
            match document {
                Value::Object(roles) if ROLES.contains(&name) => to.roles.extend(roles),
                document => to.metadata(&document),
            }
        }
    }
    Ok(())
}

fn parsed(file: &Path) -> Result<Vec<Value>> {
    let text = text(file, MAX_MANIFEST).with_context(|| file.display().to_string())?;
    let documents = documents(&text).with_context(|| file.display().to_string())?;
    documents.iter().map(|document| document.read().with_context(|| file.display().to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn y08_directories_that_were_put_away_or_hidden_are_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lib", "lib/astute", "lib.bak", "lib~", ".git", "lib/d 1"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("tasks.yaml"), "[]").unwrap();
        }
        let below = Below::of(dir.path()).unwrap();
        let names = |paths: &[PathBuf]| {
            let name = |path: &PathBuf| path.strip_prefix(dir.path()).unwrap().display().to_string();
            paths.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(&yaml_files(dir.path(), &below).unwrap().taken), ["lib/astute/tasks.yaml", "lib/tasks.yaml"]);
        assert_eq!(names(&below.left_out), ["lib/d 1", "lib.bak", "lib~"]);
    }

    #[test]
    fn y08_files_of_tasks_that_were_put_away_are_neither_read_nor_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("lib/astute")).unwrap();
        let left_out = [
            ".openstack.yaml",
            "lib/.tasks.yaml.swp",
            "lib/astute/deployment_tasks.yaml.orig",
            "lib/astute/tasks.yaml~",
            "lib/tasks copy.yaml",
            "lib/tasks.bak.yaml",
            "lib/tasks.yml.rpmsave",
            "openstack.yaml.bak",
        ];
        let read = ["lib/astute/hiera.yaml", "lib/tasks.yaml", "openstack.yaml"];
        // What is never read of modules, whatever its name, is not said.
        let others = ["lib/astute/hiera.yaml.bak", "lib/.fixtures.yml", "README.md", "lib/tasks.rb"];
        for name in left_out.iter().chain(&read).chain(&others) {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let files = yaml_files(dir.path(), &Below::of(dir.path()).unwrap()).unwrap();
        let paths = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>();
        assert_eq!(files.left_out, paths(&left_out));
        assert_eq!(files.taken, paths(&read));
    }

    #[test]
    fn a_directory_gives_tasks_of_any_depth_and_metadata_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(
            "openstack.yaml",
            "- pk: 1\n  fields: &base\n    roles_metadata: {controller: {tags: [controller, database]}}\n    tags_metadata: {database: {has_primary: true}}\n- pk: 2\n  fields: {<<: *base}\n",
        );
        put(
            "a/b/tasks.yaml",
            "- {id: deploy_start, type: stage}\n- id: db\n  type: shell\n  version: 2.1.0\n  tags: [database]\n  requires: [deploy_start]\n  parameters: {cmd: /bin/true, timeout: 180}\n",
        );
        put("a/b/other.yaml", "roles_metadata: {ignored: {}}\n");
        put(
            "c/tasks.yaml",
            "- id: web\n  type: puppet\n  groups: [controller]\n  condition: {yaql_exp: 'changed($)'}\n  cross-depends: [{name: db}]\n",
        );
        let found = read(dir.path()).unwrap();
        assert_eq!(found.roles.keys().collect::<Vec<_>>(), ["controller"]);
        let import = found.translate("default").unwrap();
        let ids: Vec<&str> = import.spec.tasks.iter().map(|task| task.id.as_str()).collect();
        assert_eq!(ids, ["deploy_start", "db", "web"]);
        assert_eq!(
            summary(&import),
            "1 of 2 tasks can run; 1 rest on what is not translated, and are resolved and never started"
        );
        let name = "fuel@1".parse().unwrap();
        assert!(compiled(&name, &import).is_ok());
    }

    #[test]
    fn a_directory_without_tasks_says_where_fuel_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tasks.yaml or tasks.yml"), "{error}");
    }
}
