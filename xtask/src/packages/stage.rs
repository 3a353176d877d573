//! Lays out the files of each package in directories as they are installed, and writes the files that debhelper and
//! rpmbuild need.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::contents::{PACKAGES, PackageContent, package_of_page};
use super::licences::DependencyGraph;
use crate::cargo::workspace_root;

/// The inputs from which the files of all packages are laid out.
pub(super) struct PackageStage {
    /// The directory of the built programs.
    pub(super) programs: PathBuf,
    /// The program that generates manual pages and completions.
    pub(super) page_generator: PathBuf,
    /// The compression level of the packages, 0 to 9.
    pub(super) compression_level: u8,
    pub(super) version: PackageVersion,
}

/// The version of the packages, and the time of their files.
pub(super) struct PackageVersion {
    pub(super) number: &'static str,
    pub(super) revision: u32,
    /// The time of all files, in seconds since 1970.
    pub(super) unix_seconds: u64,
}

/// The installation directories that differ between .deb and .rpm.
struct FormatPaths {
    /// The directory of systemd units.
    units: &'static str,
    /// The directory of completions for zsh.
    zsh: &'static str,
}

/// The directories in a .deb. Debhelper of Debian 12 finds units only in `lib/systemd/system`.
const DEB: FormatPaths = FormatPaths { units: "lib/systemd/system", zsh: "usr/share/zsh/vendor-completions" };
/// The directories in an .rpm.
const RPM: FormatPaths = FormatPaths { units: "usr/lib/systemd/system", zsh: "usr/share/zsh/site-functions" };

impl PackageStage {
    /// Lays out the directory `to`, in which `dpkg-buildpackage` runs.
    ///
    /// # Errors
    /// If a file is missing.
    pub(super) fn stage_deb(&self, to: &Path) -> Result<()> {
        let debian = to.join("debian");
        self.copy_templates(&workspace_root().join("packaging/debian"), &debian)?;
        self.stage_trees(to, &DEB)?;
        fs::copy(workspace_root().join("CHANGELOG.md"), to.join("CHANGELOG.md"))?;
        let PackageVersion { number, revision, unix_seconds: seconds } = self.version;
        let date = format_date(seconds, "+%a, %d %b %Y %H:%M:%S +0000")?;
        let entry = format!(
            "stemma ({number}-{revision}) unstable; urgency=medium\n\n  * What changed is in changelog.gz.\n\n -- Stemma \
             <stemma@stemma.example>  {date}\n"
        );
        fs::write(debian.join("changelog"), entry)?;
        let libraries = DependencyGraph::load()?;
        for (package, _) in PACKAGES {
            fs::write(debian.join(format!("{package}.copyright")), copyright_text(&libraries.licence_lines(package)))?;
        }
        Ok(())
    }

    /// Lays out the directory `to`, in which `rpmbuild` runs.
    ///
    /// # Errors
    /// If a file is missing.
    pub(super) fn stage_rpm(&self, to: &Path) -> Result<()> {
        self.copy_templates(&workspace_root().join("packaging/rpm"), to)?;
        self.stage_trees(to, &RPM)?;
        let libraries = DependencyGraph::load()?;
        for (package, _) in PACKAGES {
            let tree = to.join("tree").join(package);
            let (licence, doc) = (tree.join("usr/share/licenses").join(package), tree.join("usr/share/doc").join(package));
            copy_file(&workspace_root().join("LICENSE"), &licence.join("LICENSE"), 0o644)?;
            copy_file(&workspace_root().join("CHANGELOG.md"), &doc.join("CHANGELOG.md"), 0o644)?;
            fs::write(licence.join("LIBRARIES"), copyright_text(&libraries.licence_lines(package)))?;
            fs::write(to.join(format!("{package}.files")), file_list(&tree, &tree)?)?;
        }
        Ok(())
    }

    /// Copies the packaging files of a format, and replaces placeholders such as `@VERSION@` in them.
    fn copy_templates(&self, from: &Path, to: &Path) -> Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            let target = to.join(path.file_name().context("a name")?);
            let PackageVersion { number, revision, unix_seconds: seconds } = self.version;
            let text = fs::read_to_string(&path)?
                .replace("@VERSION@", number)
                .replace("@REVISION@", &revision.to_string())
                .replace("@LEVEL@", &self.compression_level.to_string())
                .replace("@RPM_DATE@", &format_date(seconds, "+%a %b %d %Y")?);
            fs::write(&target, text)?;
            fs::set_permissions(&target, fs::metadata(&path)?.permissions())?;
        }
        Ok(())
    }

    /// Lays out each package's files in the directory `tree/PACKAGE` below `to`.
    fn stage_trees(&self, to: &Path, paths: &FormatPaths) -> Result<()> {
        let pages = to.join("pages");
        self.generate_pages(&pages)?;
        for (package, contents) in PACKAGES {
            let tree = to.join("tree").join(package);
            for content in contents {
                match *content {
                    PackageContent::Program => self.stage_program(package, &pages, &tree, paths)?,
                    PackageContent::Unit(name) => {
                        copy_file(&workspace_root().join("systemd").join(name), &tree.join(paths.units).join(name), 0o644)?;
                    }
                    PackageContent::File(path, target) => {
                        copy_file(&workspace_root().join(path), &tree.join(target), 0o644)?;
                    }
                    PackageContent::Executable(path, target) => {
                        copy_file(&workspace_root().join(path), &tree.join(target), 0o755)?;
                    }
                    PackageContent::Directory(directory, target) => {
                        for_each_file(&workspace_root().join(directory), |path, name| {
                            copy_file(path, &tree.join(target).join(name), 0o644)
                        })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Lays out a program, its manual pages and its completions in the directory `tree`.
    fn stage_program(&self, package: &str, pages: &Path, tree: &Path, format_paths: &FormatPaths) -> Result<()> {
        copy_file(&self.programs.join(package), &tree.join("usr/bin").join(package), 0o755)?;
        for_each_file(&pages.join("man"), |path, name| {
            let section = name.rsplit('.').next().unwrap_or_default();
            if package_of_page(name) != package {
                return Ok(());
            }
            copy_file(path, &tree.join("usr/share/man").join(format!("man{section}")).join(name), 0o644)
        })?;
        for (shell, name, target) in [
            ("bash", package.to_owned(), "usr/share/bash-completion/completions"),
            ("zsh", format!("_{package}"), format_paths.zsh),
            ("fish", format!("{package}.fish"), "usr/share/fish/vendor_completions.d"),
        ] {
            copy_file(&pages.join("completions").join(shell).join(&name), &tree.join(target).join(&name), 0o644)?;
        }
        Ok(())
    }

    /// Generates the manual pages and completions of all programs in the directory `to`.
    fn generate_pages(&self, to: &Path) -> Result<()> {
        let status = Command::new(&self.page_generator).arg(to).status().context("stemma-pages cannot be started")?;
        ensure!(status.success(), "stemma-pages: {status}");
        for (shell, name) in [("bash", "stemma"), ("zsh", "_stemma"), ("fish", "stemma.fish")] {
            let output = Command::new(self.programs.join("stemma")).args(["completion", shell]).output()?;
            ensure!(output.status.success(), "stemma completion {shell}: {}", output.status);
            fs::write(to.join("completions").join(shell).join(name), output.stdout)?;
        }
        // bash finds completions only in a file with the exact name of the command.
        for program in ["stemma-agent", "stemma-controller"] {
            let directory = to.join("completions/bash");
            fs::rename(directory.join(format!("{program}.bash")), directory.join(program))?;
        }
        Ok(())
    }
}

/// Copies a file. Creates the target directory, and sets the mode of the copy.
fn copy_file(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a place has a directory")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(fs::set_permissions(to, Permissions::from_mode(mode))?)
}

/// Calls `action` with the path and name of each file in a directory. Subdirectories are skipped.
fn for_each_file(directory: &Path, mut action: impl FnMut(&Path, &str) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_file() {
            action(&path, &path.file_name().context("a name")?.to_string_lossy())?;
        }
    }
    Ok(())
}

/// Formats a time, in seconds since 1970, with the program `date` in UTC.
fn format_date(seconds: u64, format: &str) -> Result<String> {
    let output = Command::new("date").env("LC_ALL", "C").args(["-u", "-d", &format!("@{seconds}"), format]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Returns the text of the `copyright` file in Debian's format. `libraries` has a line for each library.
fn copyright_text(libraries: &[String]) -> String {
    let listed: String = libraries.iter().map(|line| format!("  {line}\n")).collect();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: stemma\nSource: \
         https://stemma.example\n\nFiles: *\nCopyright: 2026 the authors of Stemma\nLicense: Apache-2.0\nComment:\n The program holds these \
         libraries, each under the licence after its name.\n{listed}\nLicense: Apache-2.0\n On Debian systems its text is in \
         /usr/share/common-licenses/Apache-2.0.\n"
    )
}

/// Returns the lines of `%files` in an RPM spec for the files below `dir`. Paths in the lines begin with `/`, which
/// stands for `tree`. A directory belongs to the package, and is listed too, if its path contains `/stemma`. rpmbuild
/// compresses manual pages, so their lines end in `.gz`.
fn file_list(tree: &Path, dir: &Path) -> Result<String> {
    let mut list = String::new();
    let mut entries = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort();
    for path in entries {
        let installed_path = format!("/{}", path.strip_prefix(tree)?.display());
        if path.is_dir() {
            if installed_path.contains("/stemma") {
                let _ = writeln!(list, "%dir %attr(0755,root,root) {installed_path}");
            }
            list.push_str(&file_list(tree, &path)?);
            continue;
        }
        let (kind, suffix) = match installed_path.as_str() {
            _ if installed_path.starts_with("/etc/") => ("%config(noreplace) ", ""),
            _ if installed_path.starts_with("/usr/share/licenses/") => ("%license ", ""),
            _ if installed_path.starts_with("/usr/share/doc/") => ("%doc ", ""),
            _ if installed_path.starts_with("/usr/share/man/") => ("", ".gz"),
            _ => ("", ""),
        };
        let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
        let _ = writeln!(list, "{kind}%attr({mode:04o},root,root) {installed_path}{suffix}");
    }
    Ok(list)
}
