//! `cargo xtask packages`: `stemma-controller`, `stemma-agent` and `stemma` as .deb and .rpm, into `target/packages`.
//!
//! The programs are built first; [`stage`] lays out each package's files once, from one table, and debhelper and rpmbuild pack the same
//! trees. Times in the packages are those of the last commit (`SOURCE_DATE_EPOCH` goes first), so that the same source gives the same bytes.

mod contents;
mod licences;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cargo::{command, runs, step};

#[derive(Args)]
pub(crate) struct Options {
    /// Of the programs as tests have them: no release is built, and the packages are packed fast.
    #[arg(long)]
    pub(crate) dev: bool,
    /// The packages' own number, behind the version; each but the first has a directory of its own.
    #[arg(long, default_value_t = 1)]
    pub(crate) revision: u32,
    /// Also look with lintian and rpmlint, and pack it all a second time: each byte must be the same.
    #[arg(long)]
    pub(crate) check: bool,
}

/// The programs that pack and look, each with what shows that it is there and the package that brings it.
pub(crate) const TOOLS: [(&str, &[&str], &[&str]); 4] = [
    ("dh", &["--list"], &["debhelper", "dpkg-dev", "fakeroot"]),
    ("rpmbuild", &["--version"], &["rpm"]),
    ("lintian", &["--version"], &["lintian"]),
    ("rpmlint", &["--version"], &["rpmlint"]),
];

pub(crate) fn run(options: &Options) -> Result<()> {
    for (program, shows, packages) in TOOLS {
        ensure!(runs(program, shows), "{program} is needed: apt-get install {}", packages.join(" "));
    }
    let mut build = vec!["build", "--quiet", "--workspace", "--bins"];
    step("pages of the packages and programs of the tests", command("cargo", &build))?;
    if !options.dev {
        build.push("--release");
        // The pages' program links all three, and is part of no package.
        build.extend(["--exclude", "stemma-packaging", "--exclude", "xtask"]);
        step("programs, released", command("cargo", &build))?;
    }
    let to = directory(options.revision)?;
    let packed = pack(options, &to)?;
    for package in &packed {
        println!("{}", package.display());
    }
    if options.check {
        check(&packed)?;
        same_again(options, &packed)?;
    }
    Ok(())
}

/// Where the packages of a revision are put.
fn directory(revision: u32) -> Result<PathBuf> {
    let to = target()?.join("packages");
    Ok(if revision == 1 { to } else { to.join(format!("revision-{revision}")) })
}

/// Where cargo builds.
fn target() -> Result<PathBuf> {
    let metadata = command("cargo", &["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).context("cargo metadata")?;
    Ok(metadata["target_directory"].as_str().context("a target directory")?.into())
}

/// Packs all three in both forms, and moves them to their directory in the place of those that were there.
fn pack(options: &Options, to: &Path) -> Result<Vec<PathBuf>> {
    let version = stage::Version { number: env!("CARGO_PKG_VERSION"), revision: options.revision, seconds: seconds()? };
    let below = target()?;
    let work = tempfile::tempdir_in(&below)?;
    let stage = stage::Stage {
        programs: below.join(if options.dev { "debug" } else { "release" }),
        pages: below.join("debug/stemma-pages"),
        level: if options.dev { 0 } else { 6 },
        version,
    };
    let (deb, rpm) = (work.path().join("deb/source"), work.path().join("rpm"));
    stage.deb(&deb)?;
    stage.rpm(&rpm)?;
    let mut build = Command::new("dpkg-buildpackage");
    build.args(["--build=binary", "--unsigned-source", "--unsigned-changes", "--no-check-builddeps"]).current_dir(&deb);
    quiet("dpkg-buildpackage", build)?;
    let mut build = Command::new("rpmbuild");
    let top = format!("_topdir {}", rpm.display());
    build.args(["-bb", "--quiet", "--define", &top, "stemma.spec"]).current_dir(&rpm);
    build.env("SOURCE_DATE_EPOCH", stage.version.seconds.to_string());
    quiet("rpmbuild", build)?;
    fs::create_dir_all(to)?;
    for old in packages_in(to)? {
        fs::remove_file(old)?;
    }
    for made in [packages_in(&work.path().join("deb"))?, packages_below(&rpm.join("RPMS"))?].concat() {
        fs::copy(&made, to.join(made.file_name().context("a package has a name")?))?;
    }
    let packed = packages_in(to)?;
    ensure!(
        packed.len() == 2 * contents::PACKAGES.len(),
        "{packed:?}: {} packages of each form were to be made",
        contents::PACKAGES.len()
    );
    Ok(packed)
}

/// The time that packages are of.
fn seconds() -> Result<u64> {
    if let Ok(said) = std::env::var("SOURCE_DATE_EPOCH") {
        return said.parse().context("SOURCE_DATE_EPOCH is a number of seconds");
    }
    let output = command("git", &["log", "-1", "--format=%ct"]).output().context("git says when the source is of")?;
    let said = String::from_utf8(output.stdout)?;
    said.trim()
        .parse()
        .context("this is no checkout of git: set SOURCE_DATE_EPOCH to the seconds that the packages are of")
}

/// Runs a program whose output is shown only when it fails.
fn quiet(name: &str, mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        bail!("{name}: {}\n{out}{err}", output.status);
    }
    Ok(())
}

fn packages_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_package =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb" || extension == "rpm");
    let mut packages: Vec<PathBuf> = entries.into_iter().filter(is_package).collect();
    packages.sort();
    Ok(packages)
}

/// The same in each of its directories: rpmbuild makes one an architecture.
fn packages_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let below = fs::read_dir(directory)?.map(|entry| packages_in(&entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(below.concat())
}

/// What the distributions' own tools say of them: nothing, but for what `packaging` overrides and why.
fn check(packed: &[PathBuf]) -> Result<()> {
    let of =
        |form: &str| packed.iter().filter(|path| path.extension().is_some_and(|is| is == form)).collect::<Vec<_>>();
    let mut lintian = command("lintian", &["--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root"]);
    lintian.args(of("deb"));
    step("lintian", lintian)?;
    let mut rpmlint = command("rpmlint", &["--config", "packaging/rpm/rpmlint.toml"]);
    rpmlint.args(of("rpm"));
    let output = rpmlint.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    // Its status tells errors alone.
    let found: Vec<&str> = said.lines().filter(|line| line.contains(": E: ") || line.contains(": W: ")).collect();
    ensure!(output.status.success() && found.is_empty(), "rpmlint:\n{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("== rpmlint: ok");
    Ok(())
}

/// Packs it all once more, elsewhere.
fn same_again(options: &Options, packed: &[PathBuf]) -> Result<()> {
    let again = tempfile::tempdir_in(target()?)?;
    for (one, other) in packed.iter().zip(pack(options, again.path())?) {
        ensure!(fs::read(one)? == fs::read(&other)?, "{}: packed again it has other bytes", one.display());
    }
    println!("== packed twice: the same bytes");
    Ok(())
}
