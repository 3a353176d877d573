//! Decides which files of a directory are read, by their names, as `run-parts` decides for programs.
//!
//! Editors, package managers and people leave other files next to the manifests, such as `.site.yaml`, `site.yaml~` and
//! `site.yaml.rpmsave`. Reading one would apply what somebody has removed. Ignoring it silently could hide a file that
//! should be read, so a skipped file is reported. A file that never was a manifest, such as a script or a template, is
//! not reported.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use stemma_core::name::is_run_parts_name;

use crate::output::printable;

/// File extensions of manifests.
pub(crate) const MANIFEST_EXTENSIONS: &[&str] = &["yaml", "yml", "json"];
/// File extensions of catalogue namespaces.
pub(crate) const NAMESPACE_EXTENSIONS: &[&str] = &["json"];
/// Suffixes that mark a backup, after the file's own extension.
const BACKUP_EXTENSIONS: &[&str] = &[
    "backup", "bad", "bak", "copy", "disabled", "dist", "new", "off", "old", "orig", "part", "pacnew", "pacorig", "pacsave",
    "rej", "rpmnew", "rpmorig", "rpmsave", "sav", "save", "swn", "swo", "swp", "swx", "temp", "tmp",
];
/// Maximum number of skipped files that a warning names.
const MAX_NAMES: usize = 5;

/// The files directly in a directory, in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The files to read.
    pub(crate) files: Vec<PathBuf>,
    /// The files that look like manifests and are not read.
    pub(crate) skipped: Vec<PathBuf>,
}

impl Listing {
    /// Lists a directory, for files with these extensions.
    ///
    /// # Errors
    /// Fails if the directory can't be read.
    pub(crate) fn read(directory: &Path, endings: &[&str]) -> io::Result<Self> {
        let mut listing = Self::default();
        for entry in std::fs::read_dir(directory)? {
            let file = entry?.path();
            match FileNameClass::from_name(file.file_name().unwrap_or_default(), endings) {
                // Directories and dangling links are listed too, so that the error names them. A pipe is skipped,
                // because reading it would block forever.
                FileNameClass::Regular if file.is_file() || file.is_dir() || !file.exists() => listing.files.push(file),
                FileNameClass::Leftover if file.is_dir() => {}
                FileNameClass::Regular | FileNameClass::Leftover => listing.skipped.push(file),
                FileNameClass::Other => {}
            }
        }
        listing.files.sort();
        listing.skipped.sort();
        Ok(listing)
    }

    /// Reports the skipped files of a directory and of those below it, in one line for each reason.
    pub(crate) fn warn_skipped(skipped: &[PathBuf], directory: &Path, endings: &[&str]) {
        for line in Self::skip_warnings(skipped, directory, endings) {
            errln!("{line}");
        }
    }

    /// Returns a warning for each reason: the name, or not a regular file.
    fn skip_warnings(skipped: &[PathBuf], directory: &Path, endings: &[&str]) -> Vec<String> {
        let is_regular_name =
            |file: &&PathBuf| FileNameClass::from_name(file.file_name().unwrap_or_default(), endings) == FileNameClass::Regular;
        let (special, by_name): (Vec<&PathBuf>, Vec<&PathBuf>) = skipped.iter().partition(is_regular_name);
        let forms: Vec<String> = endings.iter().map(|ending| format!("NAME.{ending}")).collect();
        let rule = format!("{} is read, with a NAME of letters, digits, - and _", forms.join(", "));
        [(by_name, rule.as_str()), (special, "no pipe, socket or device is read")]
            .into_iter()
            .filter(|(files, _)| !files.is_empty())
            .map(|(files, rule)| {
                let names = first_names(&files, directory);
                format!(
                    "warning: {}: left out: {names}; of a directory {rule}; any file is read by its own path",
                    directory.display()
                )
            })
            .collect()
    }
}

/// Returns the first of these files, as paths relative to a directory, and the number of the others.
fn first_names(files: &[&PathBuf], directory: &Path) -> String {
    let name = |file: &&PathBuf| printable(&file.strip_prefix(directory).unwrap_or(file).to_string_lossy());
    let mut names: Vec<String> = files.iter().take(MAX_NAMES).map(name).collect();
    if let more @ 1.. = files.len().saturating_sub(MAX_NAMES) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

/// The paths that were named or visited. Each path is read once and reported as skipped once, however often and in
/// whatever form it is named.
pub(crate) struct VisitedPaths {
    named_paths: BTreeSet<PathBuf>,
    seen_paths: BTreeSet<PathBuf>,
}

impl VisitedPaths {
    /// Starts with the paths that were named.
    pub(crate) fn new(named: &[PathBuf]) -> Self {
        Self { named_paths: named.iter().map(|path| canonical_path(path)).collect(), seen_paths: BTreeSet::new() }
    }

    /// Returns whether the path was named itself. Then it is read even if its directory would skip it.
    pub(crate) fn is_named(&self, path: &Path) -> bool {
        self.named_paths.contains(&canonical_path(path))
    }

    /// Records the path. Returns whether it is visited for the first time.
    pub(crate) fn visit(&mut self, path: &Path) -> bool {
        self.seen_paths.insert(canonical_path(path))
    }

    /// Removes the skipped paths that were named themselves or are already recorded.
    pub(crate) fn retain_new(&mut self, skipped: &mut Vec<PathBuf>) {
        skipped.retain(|path| !self.is_named(path) && self.visit(path));
    }
}

/// Returns the same path for every spelling of it. A link to a file stays a separate path, so an object that is read
/// through two names is refused as a duplicate, not ignored.
fn canonical_path(path: &Path) -> PathBuf {
    if path == Path::new("-") {
        return path.to_owned();
    }
    if path.is_dir() {
        return path.canonicalize().unwrap_or_else(|_| path.to_owned());
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (directory.canonicalize(), path.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => path.to_owned(),
    }
}

/// The class of a file, by its name. It decides whether the file is read, reported or ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileNameClass {
    /// A file to read: a name that run-parts accepts, a dot, and an extension.
    Regular,
    /// A hidden file, or one that a program left there, with the extension of a file to read.
    Leftover,
    /// Any other file.
    Other,
}

impl FileNameClass {
    /// Classifies a file name. `endings` are the extensions of the files to read.
    fn from_name(name: &OsStr, endings: &[&str]) -> Self {
        let name = name.to_string_lossy();
        let is_ending = |text: &str| endings.iter().any(|ending| text.eq_ignore_ascii_case(ending));
        match name.rsplit_once('.') {
            Some((word, ending)) if endings.contains(&ending) && is_run_parts_name(word) => return Self::Regular,
            Some((_, ending)) if is_ending(ending) => return Self::Leftover,
            _ => {}
        }
        let parts: Vec<&str> = name.split('.').skip(1).collect();
        let is_hidden = name.starts_with('.') && parts.iter().any(|part| is_ending(part));
        // `site.yaml~`, `#site.yaml#`, `site.yaml (copy)`.
        let has_suffix = |part: &&str| {
            part.split_once(|letter: char| !letter.is_ascii_alphanumeric()).is_some_and(|(ending, _)| is_ending(ending))
        };
        // `site.yaml.bak`.
        let is_backup = parts.windows(2).any(|pair| is_ending(pair[0]) && is_backup_mark(pair[1]));
        if is_hidden || is_backup || parts.iter().any(has_suffix) { Self::Leftover } else { Self::Other }
    }
}

/// Returns whether a part of a name marks a backup: a known word, a number, or a mark of dpkg, ucf or an editor
/// (`~1~`).
fn is_backup_mark(part: &str) -> bool {
    let part = part.trim_end_matches(['~', '#']).to_ascii_lowercase();
    let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_tool_mark = ["dpkg-", "ucf-", "~"].iter().any(|start| part.starts_with(start));
    is_number || is_tool_mark || BACKUP_EXTENSIONS.contains(&part.as_str())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The accepted names are those that `run-parts --list` accepts, without their extensions (debianutils 5.7,
    /// run-parts(8)).
    #[test]
    fn y08_listing_reads_file_with_run_parts_name() {
        for name in ["site.yaml", "10-site.yml", "a_b.json", "SITE.yaml", "0.yaml", "-.yaml"] {
            assert_eq!(FileNameClass::from_name(name.as_ref(), MANIFEST_EXTENSIONS), FileNameClass::Regular, "{name}");
        }
        for name in [
            ".yaml",
            ".site.yaml",
            ".#site.yaml",
            "site.bak.yaml",
            "site copy.yaml",
            "site~.yaml",
            "größe.yaml",
            "site.YAML",
            "site.Json",
            "site.yaml~",
            "#site.yaml#",
            "site.yaml.~1~",
            "site.yaml (copy)",
            "site.yaml_old",
            ".site.yaml.swp",
            "site.yaml.swo",
            "site.yaml.bak",
            "site.yaml.BAK",
            "site.yaml.bak~",
            "site.yaml.orig",
            "site.yaml.rej",
            "site.yaml.old",
            "site.yaml.1",
            "site.yaml.rpmsave",
            "site.yaml.rpmnew",
            "site.yaml.dpkg-old",
            "site.yaml.dpkg-dist",
            "site.yaml.ucf-dist",
            "site.yaml.pacnew",
            "site.yaml.save",
            "site.yaml.tmp",
            "site.yaml-",
            ".site.yaml.x7Jq2a~",
        ] {
            assert_eq!(FileNameClass::from_name(name.as_ref(), MANIFEST_EXTENSIONS), FileNameClass::Leftover, "{name}");
        }
        for name in [
            "README",
            "README.md",
            "nginx.conf.j2",
            "prometheus.yaml.j2",
            "app.json.tmpl",
            "tasks.inc",
            "deploy.sh",
            "yaml",
            "json",
            "site.yamlx",
            ".git",
            ".gitignore",
            "site.bak",
            "site~",
            "Makefile",
            "site.yaml.gpg",
        ] {
            assert_eq!(FileNameClass::from_name(name.as_ref(), MANIFEST_EXTENSIONS), FileNameClass::Other, "{name}");
        }
        assert_eq!(FileNameClass::from_name("site.yaml".as_ref(), NAMESPACE_EXTENSIONS), FileNameClass::Other);
    }

    #[test]
    fn y08_canonical_path_ignores_spelling() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("site/sub")).unwrap();
        fs::write(path("site/a.yaml"), "").unwrap();
        symlink("site", path("link")).unwrap();
        symlink("a.yaml", path("site/b.yaml")).unwrap();
        let mut once = VisitedPaths::new(&[path("link"), path("site/./.a.yaml")]);
        assert!(once.is_named(&path("site")) && once.is_named(&path("site/sub/..")), "a directory");
        assert!(once.is_named(&path("link/.a.yaml")), "a file, also one that is not there");
        assert!(!once.is_named(&path("site/a.yaml")));
        for (name, is_new) in [
            ("site/a.yaml", true),
            ("link/a.yaml", false),
            ("site/sub/../a.yaml", false),
            ("site/b.yaml", true),
            ("site/sub", true),
            ("link/sub/", false),
        ] {
            assert_eq!(once.visit(&path(name)), is_new, "{name}");
        }
        assert!(once.visit(Path::new("-")) && !once.visit(Path::new("-")), "standard input is read once");
        assert!(once.visit(Path::new("./-")), "and this is a file");
    }

    #[test]
    fn y08_listing_skips_non_files_and_reports_dangling_links() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("b.yaml"), "").unwrap();
        symlink("b.yaml", path("a.yaml")).unwrap();
        symlink("none", path("gone.yaml")).unwrap();
        symlink("ann@host.1", path(".#b.yaml")).unwrap();
        fs::create_dir(path("dir.yaml")).unwrap();
        fs::create_dir(path(".dir.yaml")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket.yaml")).unwrap();
        let Listing { files: taken, skipped: left_out } = Listing::read(directory.path(), MANIFEST_EXTENSIONS).unwrap();
        assert_eq!(taken, ["a.yaml", "b.yaml", "dir.yaml", "gone.yaml"].map(path));
        assert_eq!(left_out, [".#b.yaml", "socket.yaml"].map(path));
        let told = Listing::skip_warnings(&left_out, directory.path(), MANIFEST_EXTENSIONS);
        let begins = format!("warning: {}: left out: ", directory.path().display());
        let told: Vec<&str> = told.iter().map(|line| line.strip_prefix(&begins).unwrap()).collect();
        assert_eq!(
            told,
            [
                ".#b.yaml; of a directory NAME.yaml, NAME.yml, NAME.json is read, with a NAME of letters, digits, - and _; any file is read \
                 by its own path",
                "socket.yaml; of a directory no pipe, socket or device is read; any file is read by its own path",
            ]
        );
    }
}
