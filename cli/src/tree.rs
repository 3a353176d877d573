//! Finds the paths to read for manifests: the named paths, and with `-R` the directories below them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use stemma_core::finding::join_first;
use stemma_core::name::is_run_parts_name;

use crate::args::ManifestArgs;
use crate::directory::{Listing, VisitedPaths};
use crate::manifest;
use crate::output::printable;

/// The maximum number of skipped directories that a warning lists by name.
const MAX_NAMES: usize = 5;
/// The end of the warning about directories that `-R` skips: the rule for the names of the directories that it reads.
const RECURSION_RULE: &str =
    "-R reads a directory with a name of letters, digits, - and _; any directory is read by its own path";

/// A directory from which manifests are read.
pub(crate) struct ManifestDirectory {
    /// The path of the directory.
    pub(crate) path: PathBuf,
    /// The named manifest file in the directory, or the directory itself if the directory is read.
    pub(crate) source: PathBuf,
}

/// Returns the directories from which manifests are read: named directories, the directories of named files, and with
/// `-R` the directories below named directories, except those that `-R` skips. A directory may occur several times.
///
/// # Errors
/// Fails if a directory can't be read.
pub(crate) fn directories(files: &ManifestArgs) -> Result<Vec<ManifestDirectory>> {
    let mut directories = Vec::new();
    for path in files.paths.iter().filter(|path| *path != Path::new("-")) {
        if !path.is_dir() {
            let directory = path.parent().unwrap_or(Path::new("."));
            directories.push(ManifestDirectory { path: directory.to_owned(), source: path.clone() });
            continue;
        }
        let subdirs = if files.recursive { Subdirectories::find(path)? } else { Subdirectories::default() };
        directories.extend(
            [path.clone()].into_iter().chain(subdirs.included).map(|path| ManifestDirectory { source: path.clone(), path }),
        );
    }
    Ok(directories)
}

/// Returns the named paths, each once. With `-R`, the directories below a path follow that path. Prints warnings. With
/// `-R`, a warning lists directories that are skipped because of their names, except those that contain only included
/// parts. Without `-R`, a warning names the first directory below a path that contains manifests, which are not read.
///
/// # Errors
/// Fails if a directory can't be read.
pub(crate) fn expanded_paths(files: &ManifestArgs) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut skipped = Vec::new();
    let mut visited = VisitedPaths::new(&files.paths);
    for path in &files.paths {
        if !visited.visit(path) {
            continue;
        }
        paths.push(path.clone());
        let mut subdirectories = Subdirectories::find(path)?;
        if files.recursive {
            visited.retain_new(&mut subdirectories.skipped);
            paths.extend(subdirectories.included.into_iter().filter(|dir| visited.visit(dir)));
            skipped.push((path, subdirectories.skipped));
            continue;
        }
        let unread_dir = subdirectories.included.iter().find(|dir| !visited.is_named(dir) && has_objects(dir));
        // A directory below two of the paths is reported once.
        if let Some(dir) = unread_dir.filter(|dir| visited.visit(dir)) {
            errln!("warning: {}: contains manifests that are not read; -R also reads the directories below", dir.display());
        }
    }
    if skipped.iter().any(|(_, directories)| !directories.is_empty()) {
        let included = manifest::included_files(&paths);
        for (path, mut directories) in skipped {
            directories.retain(|dir| !has_only_parts(dir, &included));
            Subdirectories::warn_skipped(&directories, path, RECURSION_RULE);
        }
    }
    Ok(paths)
}

/// Returns whether a directory contains parts that manifests include, and no other manifest files or directories. Such
/// a directory is not reported as skipped.
fn has_only_parts(dir: &Path, included: &BTreeSet<PathBuf>) -> bool {
    let has_included = dir.canonicalize().is_ok_and(|dir| included.iter().any(|file| file.starts_with(&dir)));
    let is_all_included = |listing: Listing| listing.files.iter().all(|file| manifest::is_included(included, file));
    let is_flat = || Subdirectories::find(dir).is_ok_and(|subdirs| subdirs.included.is_empty() && subdirs.skipped.is_empty());
    has_included && is_flat() && manifest::list_files(dir).is_ok_and(is_all_included)
}

/// The directories below a path, except hidden ones and links, which could form a loop.
#[derive(Default)]
pub(crate) struct Subdirectories {
    /// The directories to read, in the order of their names, each before those below it.
    pub(crate) included: Vec<PathBuf>,
    /// The directories that are skipped because of their names. A directory to read has a name of letters, digits, `-`
    /// and `_`, as the name of a manifest file before its extension.
    pub(crate) skipped: Vec<PathBuf>,
}

impl Subdirectories {
    /// Finds the directories below a path. The result is empty for a file.
    ///
    /// # Errors
    /// Fails if a directory can't be read.
    pub(crate) fn find(path: &Path) -> Result<Self> {
        let mut subdirectories = Self::default();
        subdirectories.add(path).with_context(|| path.display().to_string())?;
        Ok(subdirectories)
    }

    /// Adds the directories below a path, in the order of their names, each before those below it.
    fn add(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            return Ok(());
        }
        let mut children = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && !entry.file_name().as_encoded_bytes().starts_with(b".") {
                children.push(entry.path());
            }
        }
        children.sort();
        for dir in children {
            if is_run_parts_name(&dir.file_name().unwrap_or_default().to_string_lossy()) {
                self.included.push(dir.clone());
                self.add(&dir)?;
            } else {
                self.skipped.push(dir);
            }
        }
        Ok(())
    }

    /// Prints one warning with the skipped directories below `path`, followed by `rule`, which explains why they are
    /// skipped. Prints nothing if there are none.
    pub(crate) fn warn_skipped(skipped: &[PathBuf], path: &Path, rule: &str) {
        if skipped.is_empty() {
            return;
        }
        let name = |dir: &PathBuf| printable(&dir.strip_prefix(path).unwrap_or(dir).to_string_lossy());
        let names: Vec<String> = skipped.iter().map(name).collect();
        errln!(
            "warning: {}: directories left out: {}; {rule}",
            path.display(),
            join_first(names.iter().map(String::as_str), MAX_NAMES)
        );
    }
}

/// Returns whether a manifest file directly in a directory has a line that begins with `kind:`. An included part has no
/// such line.
fn has_objects(dir: &Path) -> bool {
    let has_kind = |file: &PathBuf| {
        let text = manifest::read_text(file, manifest::MAX_MANIFEST_BYTES).unwrap_or_default();
        text.lines().any(|line| line.starts_with("kind:"))
    };
    manifest::list_files(dir).is_ok_and(|listing| listing.files.iter().any(has_kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a directory was reported as skipped although manifests included all of its files.
    #[test]
    fn y08_has_only_parts_requires_inclusion_of_all_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["inc.d", "old.d", "both.d", "deep.d/more"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        let include = "include: [inc.d/tasks.yaml, inc.d/more.inc, both.d/a.yaml, deep.d/a.yaml]";
        std::fs::write(path("site.yaml"), format!("kind: Release\nname: r\n{include}\n")).unwrap();
        for name in ["inc.d/tasks.yaml", "inc.d/more.inc", "both.d/a.yaml", "both.d/b.yaml", "deep.d/a.yaml", "old.d/a.yaml"] {
            std::fs::write(path(name), "[]\n").unwrap();
        }
        let included = manifest::included_files(&[dir.path().to_owned()]);
        for (name, expected) in [("inc.d", true), ("old.d", false), ("both.d", false), ("deep.d", false)] {
            assert_eq!(has_only_parts(&path(name), &included), expected, "{name}");
        }
    }
}
