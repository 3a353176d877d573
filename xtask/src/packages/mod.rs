//! `cargo xtask packages`: builds `stemma-controller`, `stemma-agent` and `stemma` as .deb and .rpm, into
//! `target/packages`.
//!
//! The programs are built first. Then [`stage`] lays out each package's files from one table, and debhelper and
//! rpmbuild pack these files. All times in the packages are the time of the last commit, or `SOURCE_DATE_EPOCH` if it
//! is set. So the same source produces the same bytes.

mod contents;
mod libraries;
mod licences;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cargo::{command, run_step, succeeds};

#[derive(Args)]
pub(crate) struct PackagesOptions {
    /// Pack the debug programs that tests use, with fast compression, instead of a release build.
    #[arg(long)]
    pub(crate) dev: bool,
    /// The revision of the packages, after the version. Packages of a revision other than 1 are put into a separate
    /// directory.
    #[arg(long, default_value_t = 1)]
    pub(crate) revision: u32,
    /// Also check with lintian and rpmlint, check the requirements for shared libraries, and build the packages twice to
    /// check that both builds have the same bytes.
    #[arg(long)]
    pub(crate) check: bool,
}

/// The programs that build and check packages. Each has arguments with which it succeeds if it is installed, and the
/// Debian packages that contain it.
pub(crate) const TOOLS: [(&str, &[&str], &[&str]); 4] = [
    ("dh", &["--list"], &["debhelper", "dpkg-dev", "fakeroot"]),
    ("rpmbuild", &["--version"], &["rpm"]),
    ("lintian", &["--version"], &["lintian"]),
    ("rpmlint", &["--version"], &["rpmlint"]),
];

/// Builds the packages, and with `--check` checks them.
pub(crate) fn run(options: &PackagesOptions) -> Result<()> {
    for (program, probe, packages) in TOOLS {
        ensure!(succeeds(program, probe), "{program} is needed: apt-get install {}", packages.join(" "));
    }
    let mut build = vec!["build", "--quiet", "--workspace", "--bins"];
    run_step("pages of the packages and programs of the tests", command("cargo", &build))?;
    if !options.dev {
        build.push("--release");
        // The generator of the manual pages is not needed as a release build, because it is in no package.
        build.extend(["--exclude", "stemma-packaging", "--exclude", "xtask"]);
        run_step("programs, released", command("cargo", &build))?;
    }
    let output_dir = package_directory(options.revision)?;
    let packed = build_packages(options, &output_dir)?;
    for package in &packed {
        println!("{}", package.display());
    }
    if options.check {
        lint_packages(&packed)?;
        libraries::check_libraries(&programs_directory(options, &target_directory()?), &packed)?;
        check_reproducible(options, &packed)?;
    }
    Ok(())
}

/// Returns the output directory for a revision.
fn package_directory(revision: u32) -> Result<PathBuf> {
    let packages_dir = target_directory()?.join("packages");
    Ok(if revision == 1 { packages_dir } else { packages_dir.join(format!("revision-{revision}")) })
}

/// Returns cargo's target directory.
fn target_directory() -> Result<PathBuf> {
    let metadata = command("cargo", &["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).context("cargo metadata")?;
    Ok(metadata["target_directory"].as_str().context("a target directory")?.into())
}

/// Returns the directory of the built programs that are packed, below cargo's target directory.
fn programs_directory(options: &PackagesOptions, target_dir: &Path) -> PathBuf {
    target_dir.join(if options.dev { "debug" } else { "release" })
}

/// Packs the built programs into all packages, which replace those in the output directory. Returns their paths.
fn build_packages(options: &PackagesOptions, output_dir: &Path) -> Result<Vec<PathBuf>> {
    let version = stage::PackageVersion {
        number: env!("CARGO_PKG_VERSION"),
        revision: options.revision,
        unix_seconds: source_date_epoch()?,
    };
    let target_dir = target_directory()?;
    let work = tempfile::tempdir_in(&target_dir)?;
    let stage = stage::PackageStage {
        programs: programs_directory(options, &target_dir),
        page_generator: target_dir.join("debug/stemma-pages"),
        compression_level: if options.dev { 0 } else { 6 },
        version,
    };
    let (deb, rpm) = (work.path().join("deb/source"), work.path().join("rpm"));
    stage.stage_deb(&deb)?;
    stage.stage_rpm(&rpm)?;
    let mut build = Command::new("dpkg-buildpackage");
    build.args(["--build=binary", "--unsigned-source", "--unsigned-changes", "--no-check-builddeps"]).current_dir(&deb);
    run_quietly("dpkg-buildpackage", build)?;
    let mut build = Command::new("rpmbuild");
    let top = format!("_topdir {}", rpm.display());
    build.args(["-bb", "--quiet", "--define", &top, "stemma.spec"]).current_dir(&rpm);
    build.env("SOURCE_DATE_EPOCH", stage.version.unix_seconds.to_string());
    run_quietly("rpmbuild", build)?;
    fs::create_dir_all(output_dir)?;
    for old_package in list_packages(output_dir)? {
        fs::remove_file(old_package)?;
    }
    for package in [list_packages(&work.path().join("deb"))?, find_packages(&rpm.join("RPMS"))?].concat() {
        fs::copy(&package, output_dir.join(package.file_name().context("a package has a name")?))?;
    }
    let packed = list_packages(output_dir)?;
    ensure!(
        packed.len() == 2 * contents::PACKAGES.len(),
        "{packed:?}: expected {} packages of each format",
        contents::PACKAGES.len()
    );
    Ok(packed)
}

/// Returns the time of all files in the packages, in seconds since 1970: `SOURCE_DATE_EPOCH`, or the time of the last
/// commit.
fn source_date_epoch() -> Result<u64> {
    if let Ok(seconds) = std::env::var("SOURCE_DATE_EPOCH") {
        return seconds.parse().context("SOURCE_DATE_EPOCH must be a number of seconds");
    }
    let output = command("git", &["log", "-1", "--format=%ct"]).output().context("cannot read the commit time from git")?;
    let output_text = String::from_utf8(output.stdout)?;
    output_text
        .trim()
        .parse()
        .context("this is not a git checkout: set SOURCE_DATE_EPOCH to the time of the packages, in seconds")
}

/// Runs a program and shows its output only if it fails.
fn run_quietly(name: &str, mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        bail!("{name}: {}\n{out}{err}", output.status);
    }
    Ok(())
}

/// Returns the packages directly in a directory, sorted.
fn list_packages(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb" || extension == "rpm");
    let mut packages: Vec<PathBuf> = entries.into_iter().filter(is_package).collect();
    packages.sort();
    Ok(packages)
}

/// Returns the packages in each subdirectory, because rpmbuild creates one subdirectory per architecture.
fn find_packages(directory: &Path) -> Result<Vec<PathBuf>> {
    let below = fs::read_dir(directory)?.map(|entry| list_packages(&entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(below.concat())
}

/// Runs lintian and rpmlint. Fails if they report an error or a warning. Files in `packaging` list findings that are
/// allowed, with a reason.
fn lint_packages(packed: &[PathBuf]) -> Result<()> {
    let with_extension =
        |form: &str| packed.iter().filter(|path| path.extension().is_some_and(|ext| ext == form)).collect::<Vec<_>>();
    let mut lintian = command("lintian", &["--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root"]);
    lintian.args(with_extension("deb"));
    run_step("lintian", lintian)?;
    let mut rpmlint = command("rpmlint", &["--config", "packaging/rpm/rpmlint.toml"]);
    rpmlint.args(with_extension("rpm"));
    let output = rpmlint.output()?;
    let output_text = String::from_utf8_lossy(&output.stdout);
    // The exit status reports only errors, not warnings.
    let problems: Vec<&str> = output_text.lines().filter(|line| line.contains(": E: ") || line.contains(": W: ")).collect();
    ensure!(output.status.success() && problems.is_empty(), "rpmlint:\n{output_text}{}", String::from_utf8_lossy(&output.stderr));
    println!("== rpmlint: ok");
    Ok(())
}

/// Builds the packages again in another directory, and fails if a byte differs.
fn check_reproducible(options: &PackagesOptions, packed: &[PathBuf]) -> Result<()> {
    let second_dir = tempfile::tempdir_in(target_directory()?)?;
    for (first, second) in packed.iter().zip(build_packages(options, second_dir.path())?) {
        ensure!(fs::read(first)? == fs::read(&second)?, "{}: the second build has other bytes", first.display());
    }
    println!("== packed twice: the same bytes");
    Ok(())
}
