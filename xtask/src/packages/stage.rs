//! Lays out what is packed: each package's files as they are installed, and what debhelper and rpmbuild want beside them.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::contents::{Content, PACKAGES, owner};
use super::licences::Libraries;
use crate::cargo::root;

/// What is packed.
pub(super) struct Stage {
    /// The directory of the programs.
    pub(super) programs: PathBuf,
    /// The program that writes pages and completions.
    pub(super) pages: PathBuf,
    /// How hard it is packed, 0 to 9.
    pub(super) level: u8,
    pub(super) version: Version,
}

/// What the packages are called, and of which time they are.
pub(super) struct Version {
    pub(super) number: &'static str,
    pub(super) revision: u32,
    pub(super) seconds: u64,
}

/// The places in which the forms differ.
struct Places {
    units: &'static str,
    zsh: &'static str,
}

/// Debhelper of Debian 12 knows units here alone.
const DEB: Places = Places { units: "lib/systemd/system", zsh: "usr/share/zsh/vendor-completions" };
const RPM: Places = Places { units: "usr/lib/systemd/system", zsh: "usr/share/zsh/site-functions" };

impl Stage {
    /// What `dpkg-buildpackage` is run in.
    ///
    /// # Errors
    /// When a file is missing.
    pub(super) fn deb(&self, to: &Path) -> Result<()> {
        let debian = to.join("debian");
        self.fill(&root().join("packaging/debian"), &debian)?;
        self.trees(to, &DEB)?;
        fs::copy(root().join("CHANGELOG.md"), to.join("CHANGELOG.md"))?;
        let Version { number, revision, seconds } = self.version;
        let at = date(seconds, "+%a, %d %b %Y %H:%M:%S +0000")?;
        let entry = format!(
            "stemma ({number}-{revision}) unstable; urgency=medium\n\n  * What changed is in changelog.gz.\n\n -- Stemma \
             <stemma@stemma.example>  {at}\n"
        );
        fs::write(debian.join("changelog"), entry)?;
        let libraries = Libraries::read()?;
        for (package, _) in PACKAGES {
            fs::write(debian.join(format!("{package}.copyright")), copyright(&libraries.of(package)))?;
        }
        Ok(())
    }

    /// What `rpmbuild` is run in.
    ///
    /// # Errors
    /// When a file is missing.
    pub(super) fn rpm(&self, to: &Path) -> Result<()> {
        self.fill(&root().join("packaging/rpm"), to)?;
        self.trees(to, &RPM)?;
        let libraries = Libraries::read()?;
        for (package, _) in PACKAGES {
            let tree = to.join("tree").join(package);
            let (licence, doc) =
                (tree.join("usr/share/licenses").join(package), tree.join("usr/share/doc").join(package));
            put(&root().join("LICENSE"), &licence.join("LICENSE"), 0o644)?;
            put(&root().join("CHANGELOG.md"), &doc.join("CHANGELOG.md"), 0o644)?;
            fs::write(licence.join("LIBRARIES"), copyright(&libraries.of(package)))?;
            fs::write(to.join(format!("{package}.files")), files(&tree, &tree)?)?;
        }
        Ok(())
    }

    /// Copies what packs, with this packing's own words.
    fn fill(&self, from: &Path, to: &Path) -> Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            let target = to.join(path.file_name().context("a name")?);
            let Version { number, revision, seconds } = self.version;
            let text = fs::read_to_string(&path)?
                .replace("@VERSION@", number)
                .replace("@REVISION@", &revision.to_string())
                .replace("@LEVEL@", &self.level.to_string())
                .replace("@RPM_DATE@", &date(seconds, "+%a %b %d %Y")?);
            fs::write(&target, text)?;
            fs::set_permissions(&target, fs::metadata(&path)?.permissions())?;
        }
        Ok(())
    }

    /// Each package's files below `tree/PACKAGE`.
    fn trees(&self, to: &Path, places: &Places) -> Result<()> {
        let made = to.join("pages");
        self.made(&made)?;
        for (package, contents) in PACKAGES {
            let tree = to.join("tree").join(package);
            for content in contents {
                match *content {
                    Content::Program => self.program(package, &made, &tree, places)?,
                    Content::Unit(name) => {
                        put(&root().join("systemd").join(name), &tree.join(places.units).join(name), 0o644)?;
                    }
                    Content::File(path, place) => put(&root().join(path), &tree.join(place), 0o644)?,
                    Content::Executable(path, place) => put(&root().join(path), &tree.join(place), 0o755)?,
                    Content::Each(directory, place) => {
                        each(&root().join(directory), |path, name| put(path, &tree.join(place).join(name), 0o644))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A program, its pages and its completions.
    fn program(&self, package: &str, made: &Path, tree: &Path, places: &Places) -> Result<()> {
        put(&self.programs.join(package), &tree.join("usr/bin").join(package), 0o755)?;
        each(&made.join("man"), |path, name| {
            let section = name.rsplit('.').next().unwrap_or_default();
            if owner(name) != package {
                return Ok(());
            }
            put(path, &tree.join("usr/share/man").join(format!("man{section}")).join(name), 0o644)
        })?;
        for (shell, name, place) in [
            ("bash", package.to_owned(), "usr/share/bash-completion/completions"),
            ("zsh", format!("_{package}"), places.zsh),
            ("fish", format!("{package}.fish"), "usr/share/fish/vendor_completions.d"),
        ] {
            put(&made.join("completions").join(shell).join(&name), &tree.join(place).join(&name), 0o644)?;
        }
        Ok(())
    }

    /// Pages and completions: of the tables, and of `stemma`'s own verb.
    fn made(&self, to: &Path) -> Result<()> {
        let written = Command::new(&self.pages).arg(to).status().context("stemma-pages cannot be started")?;
        ensure!(written.success(), "stemma-pages: {written}");
        for (shell, name) in [("bash", "stemma"), ("zsh", "_stemma"), ("fish", "stemma.fish")] {
            let output = Command::new(self.programs.join("stemma")).args(["completion", shell]).output()?;
            ensure!(output.status.success(), "stemma completion {shell}: {}", output.status);
            fs::write(to.join("completions").join(shell).join(name), output.stdout)?;
        }
        // As bash finds it: by the command's name alone.
        for program in ["stemma-agent", "stemma-controller"] {
            let directory = to.join("completions/bash");
            fs::rename(directory.join(format!("{program}.bash")), directory.join(program))?;
        }
        Ok(())
    }
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a place has a directory")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(fs::set_permissions(to, Permissions::from_mode(mode))?)
}

/// Each file of a directory, by its name; directories in it are left out.
fn each(directory: &Path, mut act: impl FnMut(&Path, &str) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_file() {
            act(&path, &path.file_name().context("a name")?.to_string_lossy())?;
        }
    }
    Ok(())
}

/// A time in the words of a form; `date` knows them all.
fn date(seconds: u64, form: &str) -> Result<String> {
    let output = Command::new("date").env("LC_ALL", "C").args(["-u", "-d", &format!("@{seconds}"), form]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The file `copyright`, in Debian's form.
fn copyright(libraries: &[String]) -> String {
    let listed: String = libraries.iter().map(|line| format!("  {line}\n")).collect();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: stemma\nSource: \
         https://stemma.example\n\nFiles: *\nCopyright: 2026 the authors of Stemma\nLicense: Apache-2.0\nComment:\n The program holds these \
         libraries, each under the licence that stands behind it.\n{listed}\nLicense: Apache-2.0\n On Debian systems its text is in \
         /usr/share/common-licenses/Apache-2.0.\n"
    )
}

/// The files of a tree as `%files` takes them, with the directories that are the package's own.
fn files(tree: &Path, at: &Path) -> Result<String> {
    let mut list = String::new();
    let mut entries = fs::read_dir(at)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        let place = format!("/{}", path.strip_prefix(tree)?.display());
        if path.is_dir() {
            if place.contains("/stemma") {
                let _ = writeln!(list, "%dir %attr(0755,root,root) {place}");
            }
            list.push_str(&files(tree, &path)?);
            continue;
        }
        let (kind, end) = match place.as_str() {
            _ if place.starts_with("/etc/") => ("%config(noreplace) ", ""),
            _ if place.starts_with("/usr/share/licenses/") => ("%license ", ""),
            _ if place.starts_with("/usr/share/doc/") => ("%doc ", ""),
            _ if place.starts_with("/usr/share/man/") => ("", ".gz"),
            _ => ("", ""),
        };
        let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
        let _ = writeln!(list, "{kind}%attr({mode:04o},root,root) {place}{end}");
    }
    Ok(list)
}
