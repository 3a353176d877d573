//! Which files of a directory are read: by their names, as run-parts takes the programs of a directory.
//!
//! Editors, package managers and people leave files beside those that are meant, as `.site.yaml`, `site.yaml~` and `site.yaml.rpmsave`. To read one would
//! apply what somebody had put away. To pass it over without a word would hide a file that was meant, so it is said; what never was a
//! manifest, as a script or a template, is not.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use stemma_core::name::is_run_parts_name;

use crate::output::printable;

/// What manifests end with.
pub(crate) const MANIFESTS: &[&str] = &["yaml", "yml", "json"];
/// What a namespace of the catalogue ends with.
pub(crate) const NAMESPACES: &[&str] = &["json"];
/// What stands behind the ending of a file that was put away.
const PUT_AWAY: &[&str] = &[
    "backup", "bad", "bak", "copy", "disabled", "dist", "new", "off", "old", "orig", "part", "pacnew", "pacorig",
    "pacsave", "rej", "rpmnew", "rpmorig", "rpmsave", "sav", "save", "swn", "swo", "swp", "swx", "temp", "tmp",
];
/// How many of those that are left out are named.
const FEW: usize = 5;

/// The files right in a directory, in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Those that are read.
    pub(crate) taken: Vec<PathBuf>,
    /// Those that look as if they were meant, and are not read.
    pub(crate) left_out: Vec<PathBuf>,
}

impl Listing {
    /// Of a directory, by what the names end with.
    ///
    /// # Errors
    /// When it can't be read.
    pub(crate) fn of(directory: &Path, endings: &[&str]) -> io::Result<Self> {
        let mut listing = Self::default();
        for entry in std::fs::read_dir(directory)? {
            let file = entry?.path();
            match Named::of(file.file_name().unwrap_or_default(), endings) {
                // Also a directory and a link that leads nowhere, whose names are in the error then. A pipe would be waited for without end.
                Named::Meant if file.is_file() || file.is_dir() || !file.exists() => listing.taken.push(file),
                Named::LeftOver if file.is_dir() => {}
                Named::Meant | Named::LeftOver => listing.left_out.push(file),
                Named::Otherwise => {}
            }
        }
        listing.taken.sort();
        listing.left_out.sort();
        Ok(listing)
    }

    /// Says what is left out of a directory and of those below it, in one line for each reason.
    pub(crate) fn tell_left_out(left_out: &[PathBuf], directory: &Path, endings: &[&str]) {
        for line in Self::warnings(left_out, directory, endings) {
            tell!("{line}");
        }
    }

    /// What is left out: by its name, or since it is no regular file.
    fn warnings(left_out: &[PathBuf], directory: &Path, endings: &[&str]) -> Vec<String> {
        let is_meant = |file: &&PathBuf| Named::of(file.file_name().unwrap_or_default(), endings) == Named::Meant;
        let (no_files, by_name): (Vec<&PathBuf>, Vec<&PathBuf>) = left_out.iter().partition(is_meant);
        let forms: Vec<String> = endings.iter().map(|ending| format!("NAME.{ending}")).collect();
        let rule = format!("{} is read, with a NAME of letters, digits, - and _", forms.join(", "));
        [(by_name, rule.as_str()), (no_files, "no pipe, socket or device is read")]
            .into_iter()
            .filter(|(files, _)| !files.is_empty())
            .map(|(files, rule)| {
                let names = few(&files, directory);
                format!(
                    "warning: {}: left out: {names}; of a directory {rule}; any file is read by its own path",
                    directory.display()
                )
            })
            .collect()
    }
}

/// The first of these files by their paths below a directory, and how many more there are.
fn few(files: &[&PathBuf], directory: &Path) -> String {
    let name = |file: &&PathBuf| printable(&file.strip_prefix(directory).unwrap_or(file).to_string_lossy());
    let mut names: Vec<String> = files.iter().take(FEW).map(name).collect();
    if let more @ 1.. = files.len().saturating_sub(FEW) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

/// What was named and what was met, so that a path is read once and said once to be left out, however often and in whichever way it is named.
pub(crate) struct Once {
    named: BTreeSet<PathBuf>,
    seen: BTreeSet<PathBuf>,
}

impl Once {
    /// Of the paths that were named.
    pub(crate) fn of(named: &[PathBuf]) -> Self {
        Self { named: named.iter().map(|path| identity(path)).collect(), seen: BTreeSet::new() }
    }

    /// Whether the path was named itself: then it is read, whatever its directory leaves out.
    pub(crate) fn is_named(&self, path: &Path) -> bool {
        self.named.contains(&identity(path))
    }

    /// Whether the path is met for the first time.
    pub(crate) fn is_new(&mut self, path: &Path) -> bool {
        self.seen.insert(identity(path))
    }

    /// Keeps of what a directory leaves out by its names that which nobody named and which was not said before.
    pub(crate) fn keep_left_out(&mut self, left_out: &mut Vec<PathBuf>) {
        left_out.retain(|path| !self.is_named(path) && self.is_new(path));
    }
}

/// One path for every way of writing it. A link to a file stays a file of its own: an object that two names lead to is refused where it is read, and
/// not passed over.
fn identity(path: &Path) -> PathBuf {
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

/// What a name says of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// It is meant: a word that run-parts would take, a dot, and an ending.
    Meant,
    /// It is like one that is meant: hidden, or left by a program.
    LeftOver,
    /// It is something else.
    Otherwise,
}

impl Named {
    fn of(name: &OsStr, endings: &[&str]) -> Self {
        let name = name.to_string_lossy();
        let is_ending = |text: &str| endings.iter().any(|ending| text.eq_ignore_ascii_case(ending));
        match name.rsplit_once('.') {
            Some((word, ending)) if endings.contains(&ending) && is_run_parts_name(word) => return Self::Meant,
            Some((_, ending)) if is_ending(ending) => return Self::LeftOver,
            _ => {}
        }
        let parts: Vec<&str> = name.split('.').skip(1).collect();
        let is_hidden = name.starts_with('.') && parts.iter().any(|part| is_ending(part));
        // `site.yaml~`, `#site.yaml#`, `site.yaml (copy)`.
        let goes_on = |part: &&str| {
            part.split_once(|letter: char| !letter.is_ascii_alphanumeric()).is_some_and(|(ending, _)| is_ending(ending))
        };
        // `site.yaml.bak`.
        let is_put_away = parts.windows(2).any(|pair| is_ending(pair[0]) && is_mark(pair[1]));
        if is_hidden || is_put_away || parts.iter().any(goes_on) { Self::LeftOver } else { Self::Otherwise }
    }
}

/// Whether a part of a name says that a file was put away: a known word, a number, one of dpkg's, of ucf's, or of an editor's (`~1~`).
fn is_mark(part: &str) -> bool {
    let part = part.trim_end_matches(['~', '#']).to_ascii_lowercase();
    let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_dpkg = ["dpkg-", "ucf-", "~"].iter().any(|start| part.starts_with(start));
    is_number || is_of_dpkg || PUT_AWAY.contains(&part.as_str())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// What is taken is what `run-parts --list` lists of the same words without their endings (debianutils 5.7, run-parts(8)).
    #[test]
    fn y08_a_file_of_a_directory_is_read_by_a_name_that_run_parts_would_take() {
        for name in ["site.yaml", "10-site.yml", "a_b.json", "SITE.yaml", "0.yaml", "-.yaml"] {
            assert_eq!(Named::of(name.as_ref(), MANIFESTS), Named::Meant, "{name}");
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
            assert_eq!(Named::of(name.as_ref(), MANIFESTS), Named::LeftOver, "{name}");
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
            assert_eq!(Named::of(name.as_ref(), MANIFESTS), Named::Otherwise, "{name}");
        }
        assert_eq!(Named::of("site.yaml".as_ref(), NAMESPACES), Named::Otherwise);
    }

    #[test]
    fn y08_a_path_is_the_same_however_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("site/sub")).unwrap();
        fs::write(path("site/a.yaml"), "").unwrap();
        symlink("site", path("link")).unwrap();
        symlink("a.yaml", path("site/b.yaml")).unwrap();
        let mut once = Once::of(&[path("link"), path("site/./.a.yaml")]);
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
            assert_eq!(once.is_new(&path(name)), is_new, "{name}");
        }
        assert!(once.is_new(Path::new("-")) && !once.is_new(Path::new("-")), "standard input is read once");
        assert!(once.is_new(Path::new("./-")), "and this is a file");
    }

    #[test]
    fn y08_what_is_no_file_is_left_out_and_a_link_that_leads_nowhere_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("b.yaml"), "").unwrap();
        symlink("b.yaml", path("a.yaml")).unwrap();
        symlink("none", path("gone.yaml")).unwrap();
        symlink("ann@host.1", path(".#b.yaml")).unwrap();
        fs::create_dir(path("dir.yaml")).unwrap();
        fs::create_dir(path(".dir.yaml")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket.yaml")).unwrap();
        let Listing { taken, left_out } = Listing::of(directory.path(), MANIFESTS).unwrap();
        assert_eq!(taken, ["a.yaml", "b.yaml", "dir.yaml", "gone.yaml"].map(path));
        assert_eq!(left_out, [".#b.yaml", "socket.yaml"].map(path));
        let told = Listing::warnings(&left_out, directory.path(), MANIFESTS);
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
