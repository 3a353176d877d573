//! Decides which files a manifest may include: those in the directory of the manifest or below it.
//!
//! Applying a manifest sends the files that the manifest names to the hosts of a fleet. So a manifest from an unknown
//! author must not reach files that only the person who applies it can read: `/etc/shadow` by its path, by `..`, or by
//! a link. Special files are refused too, because reading a pipe would block forever.

use std::fs::FileType;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;
use stemma_core::task::tree_rules::{MAX_TREE_DEPTH, MAX_TREE_FILES};
use stemma_core::task::{MODULES_DIR, SOURCE_DIR, TEMPLATE_FILE, task_type};

/// Returns the absolute path of the included file `name`, with links resolved. `name` is relative to `dir`. `root` is
/// the directory of the manifest.
///
/// # Errors
/// Fails if the file does not exist, is not a regular file, or is not below `root`. An absolute path is refused even if
/// it is below `root`, and so is a link that leads out of `root`.
pub(crate) fn resolve_include(root: &Path, dir: &Path, name: &str) -> Result<PathBuf> {
    match resolve(root, dir, name)? {
        (file, kind) if kind.is_file() => Ok(file),
        (_, kind) if kind.is_dir() => bail!("it is a directory, and a file is meant"),
        _ => bail!("it is not a regular file"),
    }
}

/// Returns the absolute path of the included directory `name`, as [`resolve_include`] does for a file.
///
/// # Errors
/// As [`resolve_include`]. Also fails if the path is not a directory.
pub(crate) fn resolve_included_dir(root: &Path, dir: &Path, name: &str) -> Result<PathBuf> {
    match resolve(root, dir, name)? {
        (directory, kind) if kind.is_dir() => Ok(directory),
        _ => bail!("it is not a directory"),
    }
}

/// Returns the absolute path of an included file or directory with links resolved, and its kind.
fn resolve(root: &Path, dir: &Path, name: &str) -> Result<(PathBuf, FileType)> {
    if Path::new(name).is_absolute() {
        bail!("it is an absolute path: {ADVICE}");
    }
    // The path is checked before and after links are resolved, so that each error has its own reason.
    if leaves_root(dir.strip_prefix(root).unwrap_or(Path::new("")), Path::new(name)) {
        bail!("it leads out of the manifest's directory: {ADVICE}");
    }
    let root = canonical(root).context("the manifest's directory")?;
    let file = canonical(&dir.join(name))?;
    if !file.starts_with(&root) {
        bail!("it is a link that leads out of the manifest's directory: {ADVICE}");
    }
    let kind = std::fs::metadata(&file).map_err(|error| read_error(&error))?.file_type();
    Ok((file, kind))
}

/// Returns the real paths of the existing files that a document names: included parts, templates and sources. `file` is
/// the path of the document, which is a manifest or an included part.
pub(crate) fn included_paths(file: &Path, document: &Value) -> Vec<PathBuf> {
    let items = document.as_array().into_iter().flatten();
    let mut names = Vec::new();
    // An included part may be a list of tasks, and a manifest may be a list of objects.
    for item in items.chain([document]) {
        let list = |field| item.get(field).and_then(Value::as_array).into_iter().flatten();
        names.extend(list("include").filter_map(Value::as_str));
        names.extend(list("tasks").chain([item]).flat_map(task_paths));
    }
    let dir = file.parent().unwrap_or(Path::new("."));
    let paths: Vec<PathBuf> = names.into_iter().filter_map(|name| dir.join(name).canonicalize().ok()).collect();
    paths.into_iter().flat_map(files_at).collect()
}

/// Returns the files of a directory at any depth, or the path itself if it is no directory. Links in a directory are left
/// out.
fn files_at(path: PathBuf) -> Vec<PathBuf> {
    let (mut files, mut remaining) = (Vec::new(), vec![(path, 0)]);
    while let Some((path, depth)) = remaining.pop() {
        match std::fs::symlink_metadata(&path).map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_dir() && depth < MAX_TREE_DEPTH && files.len() < MAX_TREE_FILES => {
                let entries = std::fs::read_dir(&path).into_iter().flatten();
                remaining.extend(entries.filter_map(|entry| Some((entry.ok()?.path(), depth + 1))));
            }
            Ok(kind) if kind.is_file() => files.push(path),
            Ok(_) | Err(_) => {}
        }
    }
    files
}

/// Returns the file names in the parameters of a task: the file of its template, its sources, and its directory of files.
fn task_paths(task: &Value) -> impl Iterator<Item = &str> {
    let parameters = task.get("parameters").and_then(Value::as_object);
    let template = parameters.and_then(|parameters| parameters.get(TEMPLATE_FILE.name)?.as_str());
    let directories = [SOURCE_DIR.name, MODULES_DIR.name];
    let directories = directories.into_iter().filter_map(move |name| parameters?.get(name)?.as_str());
    let kind = task.get("type").and_then(Value::as_str).and_then(task_type);
    let sources = kind.zip(parameters).map(|(kind, parameters)| kind.sources(parameters)).unwrap_or_default();
    template.into_iter().chain(directories).chain(sources.into_iter().map(|(_, source)| source))
}

/// The advice for an include that leads out of the manifest's directory.
const ADVICE: &str = "put the file at or below the manifest's directory, and name it relative to the manifest";

/// Returns whether the path `name` leads above the root directory. `name` is relative to `dir`, and `dir` is relative
/// to the root.
fn leaves_root(dir: &Path, name: &Path) -> bool {
    let mut depth = dir.components().count();
    for component in name.components() {
        match component {
            Component::ParentDir if depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    false
}

/// Returns the absolute path with links resolved. An empty path means the current directory.
fn canonical(path: &Path) -> Result<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    path.canonicalize().map_err(|error| read_error(&error))
}

/// Converts an error of reading a file to an error whose text explains the cause to a person.
pub(crate) fn read_error(error: &std::io::Error) -> anyhow::Error {
    use std::io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => anyhow!("there is no such file or directory"),
        Kind::PermissionDenied => anyhow!("it may not be read: {error}"),
        Kind::InvalidData => anyhow!("it is no text in UTF-8"),
        Kind::IsADirectory => anyhow!("it is a directory, and a file is meant"),
        _ => anyhow!("it can't be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn resolve_include_accepts_only_regular_files_below_manifest() {
        let site = tempfile::tempdir().unwrap();
        let root = site.path().join("site");
        fs::create_dir_all(root.join("parts")).unwrap();
        fs::write(site.path().join("outside"), "secret").unwrap();
        fs::write(root.join("a.bin"), "a").unwrap();
        fs::write(root.join("parts/b.bin"), "b").unwrap();
        symlink("../outside", root.join("out")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("parts/b.bin", root.join("in")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let find = |dir: &Path, name: &str| match resolve_include(&root, dir, name) {
            Ok(file) => file.strip_prefix(root.canonicalize().unwrap()).unwrap().display().to_string(),
            Err(error) => format!("{error:#}"),
        };
        for (name, expected) in [
            ("a.bin", "a.bin"),
            ("./parts/../a.bin", "a.bin"),
            ("in", "parts/b.bin"),
            ("/etc/passwd", "it is an absolute path: "),
            ("../outside", "it leads out of the manifest's directory: "),
            ("../../../../../../etc/shadow", "it leads out of the manifest's directory: "),
            ("out", "it is a link that leads out of the manifest's directory: "),
            ("up/outside", "it is a link that leads out of the manifest's directory: "),
            ("socket", "it is not a regular file"),
            ("parts", "it is a directory"),
            ("none", "there is no such file"),
        ] {
            let result = find(&root, name);
            assert!(result.starts_with(expected), "{name}: {result}");
        }
        assert_eq!(find(&root.join("parts"), "../a.bin"), "a.bin", "a file in a subdirectory may include a file of the root");
        assert!(find(&root.join("parts"), "../../outside").starts_with("it leads out"));
    }
}
