//! Which paths are read for manifests: what was named, and with `-R` the directories below.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::args::Files;
use crate::manifest;

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
        let below = if files.recursive { below(path).with_context(|| path.display().to_string())? } else { Vec::new() };
        all.extend([path.clone()].into_iter().chain(below).map(|path| Directory { of: path.clone(), path }));
    }
    Ok(all)
}

/// The paths that were named, each followed by the directories below it where `-R` was said. Where it was not, and manifests stand there,
/// that is told.
///
/// # Errors
/// When a directory can't be read.
pub(crate) fn paths(files: &Files) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for path in &files.paths {
        paths.push(path.clone());
        let below = below(path).with_context(|| path.display().to_string())?;
        if files.recursive {
            paths.extend(below);
        } else if let Some(dir) = below.iter().find(|dir| has_objects(dir)) {
            tell!(
                "warning: {}: manifests stand there and are not read; -R reads the directories below too",
                dir.display()
            );
        }
    }
    Ok(paths)
}

/// The directories below one, in the order of their names; not hidden ones, and no links, which could lead in a circle.
fn below(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let mut own = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && !entry.file_name().as_encoded_bytes().starts_with(b".") {
            own.push(entry.path());
        }
    }
    own.sort();
    let mut all = Vec::new();
    for dir in own {
        let further = below(&dir)?;
        all.push(dir);
        all.extend(further);
    }
    Ok(all)
}

/// Whether a file right in a directory says a kind: what a manifest includes says none.
fn has_objects(dir: &Path) -> bool {
    let says_kind = |file: &PathBuf| {
        let text = manifest::text(file, manifest::MAX_MANIFEST).unwrap_or_default();
        text.lines().any(|line| line.starts_with("kind:"))
    };
    manifest::listed(dir).is_ok_and(|listing| listing.taken.iter().any(says_kind))
}
