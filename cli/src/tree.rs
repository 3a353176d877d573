//! Which paths are read for manifests: what was named, and with `-R` the directories below.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use stemma_core::finding::first_few;
use stemma_core::name::is_run_parts_name;

use crate::args::Files;
use crate::directory::{Listing, Once};
use crate::manifest;
use crate::output::printable;

/// How many directories that are left out are named.
const FEW: usize = 5;
/// Which directories `-R` reads.
const RULE: &str =
    "-R reads a directory with a name of letters, digits, - and _; any directory is read by its own path";

/// A directory that manifests are read of.
pub(crate) struct Directory {
    /// It.
    pub(crate) path: PathBuf,
    /// What is read there: a file that was named, or the directory itself.
    pub(crate) of: PathBuf,
}

/// The directories that manifests are read of: those that were named, those of files that were named, and with `-R` those below.
///
/// # Errors
/// When a directory can't be read.
pub(crate) fn directories(files: &Files) -> Result<Vec<Directory>> {
    let mut all = Vec::new();
    for path in files.paths.iter().filter(|path| *path != Path::new("-")) {
        if !path.is_dir() {
            let directory = path.parent().unwrap_or(Path::new("."));
            all.push(Directory { path: directory.to_owned(), of: path.clone() });
            continue;
        }
        let below = if files.recursive { Below::of(path)? } else { Below::default() };
        all.extend([path.clone()].into_iter().chain(below.read).map(|path| Directory { of: path.clone(), path }));
    }
    Ok(all)
}

/// The paths that were named, each followed by the directories below it where `-R` was said, and each once; those that are left out by their names
/// are told. Where it was not said, and manifests stand there, that is told.
///
/// # Errors
/// When a directory can't be read.
pub(crate) fn paths(files: &Files) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut left_out = Vec::new();
    let mut once = Once::of(&files.paths);
    for path in &files.paths {
        if !once.is_new(path) {
            continue;
        }
        paths.push(path.clone());
        let mut below = Below::of(path)?;
        if files.recursive {
            once.keep_left_out(&mut below.left_out);
            paths.extend(below.read.into_iter().filter(|dir| once.is_new(dir)));
            left_out.push((path, below.left_out));
            continue;
        }
        let passed_over = below.read.iter().find(|dir| !once.is_named(dir) && has_objects(dir));
        if let Some(dir) = passed_over.filter(|dir| once.is_new(dir)) {
            tell!(
                "warning: {}: manifests stand there and are not read; -R reads the directories below too",
                dir.display()
            );
        }
    }
    if left_out.iter().any(|(_, directories)| !directories.is_empty()) {
        let named = manifest::named(&paths);
        for (path, mut directories) in left_out {
            directories.retain(|dir| !is_of_parts(dir, &named));
            Below::tell_left_out(&directories, path, RULE);
        }
    }
    Ok(paths)
}

/// Whether manifests bring in files of a directory, and nothing else stands there that would be read: then nothing of it is left out.
fn is_of_parts(dir: &Path, named: &BTreeSet<PathBuf>) -> bool {
    let has_named = dir.canonicalize().is_ok_and(|dir| named.iter().any(|file| file.starts_with(&dir)));
    let is_all_named = |listing: Listing| listing.taken.iter().all(|file| manifest::is_among(named, file));
    let is_flat = || Below::of(dir).is_ok_and(|below| below.read.is_empty() && below.left_out.is_empty());
    has_named && is_flat() && manifest::listed(dir).is_ok_and(is_all_named)
}

/// The directories below one, but for hidden ones and links, which could lead in a circle.
#[derive(Default)]
pub(crate) struct Below {
    /// Those that are read, in the order of their names, each before those below it.
    pub(crate) read: Vec<PathBuf>,
    /// Those that are left out by their names, as files are: what was put away is not read, nor passed over without a word.
    pub(crate) left_out: Vec<PathBuf>,
}

impl Below {
    /// Those below a path; of a file there are none.
    ///
    /// # Errors
    /// When a directory can't be read.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let mut below = Self::default();
        below.add(path).with_context(|| path.display().to_string())?;
        Ok(below)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            return Ok(());
        }
        let mut own = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && !entry.file_name().as_encoded_bytes().starts_with(b".") {
                own.push(entry.path());
            }
        }
        own.sort();
        for dir in own {
            if is_run_parts_name(&dir.file_name().unwrap_or_default().to_string_lossy()) {
                self.read.push(dir.clone());
                self.add(&dir)?;
            } else {
                self.left_out.push(dir);
            }
        }
        Ok(())
    }

    /// Says what is left out, in one line, and what is read by this rule.
    pub(crate) fn tell_left_out(left_out: &[PathBuf], path: &Path, rule: &str) {
        if left_out.is_empty() {
            return;
        }
        let name = |dir: &PathBuf| printable(&dir.strip_prefix(path).unwrap_or(dir).to_string_lossy());
        let names: Vec<String> = left_out.iter().map(name).collect();
        tell!(
            "warning: {}: directories left out: {}; {rule}",
            path.display(),
            first_few(names.iter().map(String::as_str), FEW)
        );
    }
}

/// Whether a file right in a directory says a kind: what a manifest includes says none.
fn has_objects(dir: &Path) -> bool {
    let says_kind = |file: &PathBuf| {
        let text = manifest::text(file, manifest::MAX_MANIFEST).unwrap_or_default();
        text.lines().any(|line| line.starts_with("kind:"))
    };
    manifest::listed(dir).is_ok_and(|listing| listing.taken.iter().any(says_kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory was said to be left out though all of it was read.
    #[test]
    fn y08_a_directory_of_parts_is_not_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["inc.d", "old.d", "both.d", "deep.d/more"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        let include = "include: [inc.d/tasks.yaml, inc.d/more.inc, both.d/a.yaml, deep.d/a.yaml]";
        std::fs::write(path("site.yaml"), format!("kind: Release\nname: r\n{include}\n")).unwrap();
        for name in
            ["inc.d/tasks.yaml", "inc.d/more.inc", "both.d/a.yaml", "both.d/b.yaml", "deep.d/a.yaml", "old.d/a.yaml"]
        {
            std::fs::write(path(name), "[]\n").unwrap();
        }
        let named = manifest::named(&[dir.path().to_owned()]);
        for (name, expected) in [("inc.d", true), ("old.d", false), ("both.d", false), ("deep.d", false)] {
            assert_eq!(is_of_parts(&path(name), &named), expected, "{name}");
        }
    }
}
