//! Which files a manifest may bring in: those that stand beside it.
//!
//! Whoever applies a manifest sends what it names to every host of a fleet. So a manifest that came from elsewhere
//! must not reach what its reader alone may see: `/etc/shadow` by its path, by `..`, or by a link. What is no regular
//! file (a pipe would be waited for without end) is no part of a manifest either.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;
use stemma_core::task::{TEMPLATE_FILE, source_of};

/// The file of that name, relative to `dir`, links followed: a regular one at or below `root`.
///
/// # Errors
/// When it is none, or can't be found.
pub(crate) fn beside(root: &Path, dir: &Path, name: &str) -> Result<PathBuf> {
    if Path::new(name).is_absolute() {
        bail!("it is an absolute path: {ADVICE}");
    }
    if leads_out(dir.strip_prefix(root).unwrap_or(Path::new("")), Path::new(name)) {
        bail!("it leads out of the manifest's directory: {ADVICE}");
    }
    let root = canonical(root).context("the manifest's directory")?;
    let file = canonical(&dir.join(name))?;
    if !file.starts_with(&root) {
        bail!("it is a link that leads out of the manifest's directory: {ADVICE}");
    }
    let kind = std::fs::metadata(&file).map_err(|error| unreadable(&error))?.file_type();
    match kind {
        _ if kind.is_file() => Ok(file),
        _ if kind.is_dir() => bail!("it is a directory, and a file is meant"),
        _ => bail!("it is no regular file, and only such a file is taken"),
    }
}

/// The files that a document of a manifest, or of a part of one, names: parts, templates and bodies.
pub(crate) fn named_by(file: &Path, document: &Value) -> Vec<PathBuf> {
    let several = document.as_array().into_iter().flatten();
    let mut names = Vec::new();
    // A part may be a list of tasks, and a file a list of objects.
    for one in several.chain([document]) {
        let list = |field| one.get(field).and_then(Value::as_array).into_iter().flatten();
        names.extend(list("include").filter_map(Value::as_str));
        names.extend(list("tasks").chain([one]).flat_map(of_task));
    }
    let dir = file.parent().unwrap_or(Path::new("."));
    names.into_iter().filter_map(|name| dir.join(name).canonicalize().ok()).collect()
}

fn of_task(task: &Value) -> impl Iterator<Item = &str> {
    let parameters = task.get("parameters").and_then(Value::as_object);
    let template = parameters.and_then(|parameters| parameters.get(TEMPLATE_FILE.name)?.as_str());
    let kind = task.get("type").and_then(Value::as_str).unwrap_or_default();
    template.into_iter().chain(parameters.and_then(|parameters| source_of(kind, parameters)))
}

const ADVICE: &str = "put the file at or below the manifest's directory, and name it relative to the manifest";

/// Whether the steps go above where the first path began.
fn leads_out(below: &Path, name: &Path) -> bool {
    let mut depth = below.components().count();
    for step in name.components() {
        match step {
            Component::ParentDir if depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    false
}

fn canonical(path: &Path) -> Result<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    path.canonicalize().map_err(|error| unreadable(&error))
}

/// Why a file can't be read, in words.
pub(crate) fn unreadable(error: &std::io::Error) -> anyhow::Error {
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
    fn only_regular_files_at_or_below_the_manifest_are_taken() {
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
        let from = |dir: &Path, name: &str| match beside(&root, dir, name) {
            Ok(file) => file.strip_prefix(root.canonicalize().unwrap()).unwrap().display().to_string(),
            Err(error) => format!("{error:#}"),
        };
        for (name, says) in [
            ("a.bin", "a.bin"),
            ("./parts/../a.bin", "a.bin"),
            ("in", "parts/b.bin"),
            ("/etc/passwd", "it is an absolute path: "),
            ("../outside", "it leads out of the manifest's directory: "),
            ("../../../../../../etc/shadow", "it leads out of the manifest's directory: "),
            ("out", "it is a link that leads out of the manifest's directory: "),
            ("up/outside", "it is a link that leads out of the manifest's directory: "),
            ("socket", "it is no regular file"),
            ("parts", "it is a directory"),
            ("none", "there is no such file"),
        ] {
            let said = from(&root, name);
            assert!(said.starts_with(says), "{name}: {said}");
        }
        assert_eq!(from(&root.join("parts"), "../a.bin"), "a.bin", "what was included stands below, and may look up");
        assert!(from(&root.join("parts"), "../../outside").starts_with("it leads out"));
    }
}
