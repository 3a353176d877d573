//! Decides which files of a directory are read, by their names. The rule for names is that of `run-parts`, Debian's
//! tool that runs all programs of a directory.
//!
//! Editors, package managers and people leave other files next to the manifests, such as `.site.yaml`, `site.yaml~` and
//! `site.yaml.rpmsave`. Reading such a file would apply what somebody has removed. Ignoring it silently could hide a
//! file that should be read, so each skipped file is reported. A file that never was a manifest, such as a script or a
//! template, is not reported.

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
/// Suffixes that mark a backup, such as `bak` in `site.yaml.bak`.
const BACKUP_EXTENSIONS: &[&str] = &[
    "backup", "bad", "bak", "copy", "disabled", "dist", "new", "off", "old", "orig", "part", "pacnew", "pacorig", "pacsave",
    "rej", "rpmnew", "rpmorig", "rpmsave", "sav", "save", "swn", "swo", "swp", "swx", "temp", "tmp",
];
/// Maximum number of skipped files that one warning names.
const MAX_NAMES: usize = 5;

/// The files directly in a directory. Both lists are sorted by path.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The files to read.
    pub(crate) files: Vec<PathBuf>,
    /// The files that are not read although they resemble files to read: backups, hidden files, pipes and their like.
    pub(crate) skipped: Vec<PathBuf>,
}

impl Listing {
    /// Lists the files of a directory. A file to read has one of these extensions and a valid name.
    ///
    /// # Errors
    /// Fails if the directory can't be read.
    pub(crate) fn read(directory: &Path, extensions: &[&str]) -> io::Result<Self> {
        let mut listing = Self::default();
        for entry in std::fs::read_dir(directory)? {
            let file = entry?.path();
            match FileNameClass::from_name(file.file_name().unwrap_or_default(), extensions) {
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

    /// Warns of skipped files below a directory, in one line for each reason. The `extensions` are those of the files
    /// that are read.
    pub(crate) fn warn_skipped(skipped: &[PathBuf], directory: &Path, extensions: &[&str]) {
        for line in Self::skip_warnings(skipped, directory, extensions) {
            errln!("{line}");
        }
    }

    /// Returns one warning for each reason why files are skipped: their name is not accepted, or they are special files
    /// (pipes, sockets or devices).
    fn skip_warnings(skipped: &[PathBuf], directory: &Path, suffixes: &[&str]) -> Vec<String> {
        let is_regular_name =
            |file: &&PathBuf| FileNameClass::from_name(file.file_name().unwrap_or_default(), suffixes) == FileNameClass::Regular;
        let (special_files, misnamed_files): (Vec<&PathBuf>, Vec<&PathBuf>) = skipped.iter().partition(is_regular_name);
        let forms: Vec<String> = suffixes.iter().map(|suffix| format!("NAME.{suffix}")).collect();
        let rule = format!("{} is read, with a NAME of letters, digits, - and _", forms.join(", "));
        [(misnamed_files, rule.as_str()), (special_files, "no pipe, socket or device is read")]
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

/// Returns the paths of the first files, relative to a directory, and the number of the remaining files.
fn first_names(files: &[&PathBuf], directory: &Path) -> String {
    let name = |file: &&PathBuf| printable(&file.strip_prefix(directory).unwrap_or(file).to_string_lossy());
    let mut names: Vec<String> = files.iter().take(MAX_NAMES).map(name).collect();
    if let omitted @ 1.. = files.len().saturating_sub(MAX_NAMES) {
        names.push(format!("{omitted} more"));
    }
    names.join(", ")
}

/// The paths that the user named, and the paths that were visited. A path is read only once, and reported as skipped
/// only once, even if the user names it several times or in several forms.
pub(crate) struct VisitedPaths {
    named_paths: BTreeSet<PathBuf>,
    visited_paths: BTreeSet<PathBuf>,
}

impl VisitedPaths {
    /// Creates a value with the paths that the user named. No path is visited yet.
    pub(crate) fn new(named_paths: &[PathBuf]) -> Self {
        Self { named_paths: named_paths.iter().map(|path| canonical_path(path)).collect(), visited_paths: BTreeSet::new() }
    }

    /// Returns whether the user named this path itself. Such a path is read even if a listing of its directory would
    /// skip it.
    pub(crate) fn is_named(&self, path: &Path) -> bool {
        self.named_paths.contains(&canonical_path(path))
    }

    /// Records a visited path. Returns whether this is the first visit.
    pub(crate) fn visit(&mut self, path: &Path) -> bool {
        self.visited_paths.insert(canonical_path(path))
    }

    /// Removes the paths that the user named, and those that were visited before. The remaining paths count as visited.
    pub(crate) fn retain_new(&mut self, skipped: &mut Vec<PathBuf>) {
        skipped.retain(|path| !self.is_named(path) && self.visit(path));
    }
}

/// Returns one form of a path for all its spellings. Links to directories are resolved. A link to a file is a path of
/// its own, so an object that is read through both paths is refused as a duplicate. `-` (standard input) is unchanged.
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

/// The class of a file, which depends on its name. It decides whether the file is read, reported as skipped, or
/// ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileNameClass {
    /// A file to read. Its name consists of a stem that run-parts accepts, a dot, and an extension.
    Regular,
    /// A file that resembles a file to read by its extension, but has another form of name: a hidden file, a copy that an
    /// editor or package manager created, or a name with other characters (`site copy.yaml`, `site.YAML`).
    Leftover,
    /// Any other file. It is ignored.
    Other,
}

impl FileNameClass {
    /// Classifies a file name. The `extensions` are those of the files to read.
    fn from_name(name: &OsStr, extensions: &[&str]) -> Self {
        let name = name.to_string_lossy();
        let is_extension = |text: &str| extensions.iter().any(|extension| text.eq_ignore_ascii_case(extension));
        match name.rsplit_once('.') {
            // Of the names with one of these extensions, only those with a valid stem and a lower-case extension are
            // read.
            Some((stem, extension)) if extensions.contains(&extension) && is_run_parts_name(stem) => return Self::Regular,
            Some((_, extension)) if is_extension(extension) => return Self::Leftover,
            _ => {}
        }
        // The other forms have the extension in the middle of the name. The text before the first dot is not an
        // extension.
        let parts: Vec<&str> = name.split('.').skip(1).collect();
        let is_hidden = name.starts_with('.') && parts.iter().any(|part| is_extension(part));
        // `site.yaml~`, `#site.yaml#`, `site.yaml (copy)`.
        let has_suffix = |part: &&str| {
            part.split_once(|letter: char| !letter.is_ascii_alphanumeric()).is_some_and(|(extension, _)| is_extension(extension))
        };
        // `site.yaml.bak`.
        let is_backup = parts.windows(2).any(|pair| is_extension(pair[0]) && is_backup_mark(pair[1]));
        if is_hidden || is_backup || parts.iter().any(has_suffix) { Self::Leftover } else { Self::Other }
    }
}

/// Returns whether a part of a file name marks a backup. Such a part is a known word, a number, or a mark of dpkg, ucf
/// or an editor (`~1~`).
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

    /// A file in a directory is the same path through a link to the directory (`link`) or with `..`. A link to a file
    /// (`b.yaml`) is a path of its own.
    #[test]
    fn y08_visited_paths_are_equal_when_spelled_differently() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("site/sub")).unwrap();
        fs::write(path("site/a.yaml"), "").unwrap();
        symlink("site", path("link")).unwrap();
        symlink("a.yaml", path("site/b.yaml")).unwrap();
        let mut visited = VisitedPaths::new(&[path("link"), path("site/./.a.yaml")]);
        assert!(visited.is_named(&path("site")) && visited.is_named(&path("site/sub/..")), "a directory");
        assert!(visited.is_named(&path("link/.a.yaml")), "a named file that does not exist");
        assert!(!visited.is_named(&path("site/a.yaml")));
        for (name, is_new) in [
            ("site/a.yaml", true),
            ("link/a.yaml", false),
            ("site/sub/../a.yaml", false),
            ("site/b.yaml", true),
            ("site/sub", true),
            ("link/sub/", false),
        ] {
            assert_eq!(visited.visit(&path(name)), is_new, "{name}");
        }
        assert!(visited.visit(Path::new("-")) && !visited.visit(Path::new("-")), "standard input is read once");
        assert!(visited.visit(Path::new("./-")), "./- is a file");
    }

    /// `.#b.yaml` is the lock file of an editor. A directory and a dangling link with a valid name are listed among the
    /// files to read, because the caller decides whether they are an error. The socket is skipped.
    #[test]
    fn y08_listing_skips_socket_and_leftover_of_editor() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("b.yaml"), "").unwrap();
        symlink("b.yaml", path("a.yaml")).unwrap();
        symlink("none", path("gone.yaml")).unwrap();
        symlink("ann@host.1", path(".#b.yaml")).unwrap();
        fs::create_dir(path("dir.yaml")).unwrap();
        fs::create_dir(path(".dir.yaml")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket.yaml")).unwrap();
        let Listing { files, skipped } = Listing::read(directory.path(), MANIFEST_EXTENSIONS).unwrap();
        assert_eq!(files, ["a.yaml", "b.yaml", "dir.yaml", "gone.yaml"].map(path));
        assert_eq!(skipped, [".#b.yaml", "socket.yaml"].map(path));
        let warnings = Listing::skip_warnings(&skipped, directory.path(), MANIFEST_EXTENSIONS);
        let prefix = format!("warning: {}: left out: ", directory.path().display());
        let warnings: Vec<&str> = warnings.iter().map(|line| line.strip_prefix(&prefix).unwrap()).collect();
        assert_eq!(
            warnings,
            [
                ".#b.yaml; of a directory NAME.yaml, NAME.yml, NAME.json is read, with a NAME of letters, digits, - and _; any file is read \
                 by its own path",
                "socket.yaml; of a directory no pipe, socket or device is read; any file is read by its own path",
            ]
        );
    }
}
