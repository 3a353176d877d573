//! Creates a copy of the workspace with many mutants in one program, and builds the test programs from the copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::mutant::{Mutant, MutantKind};
use super::switch::{SELECTOR_SOURCE, mutants_on_lines, with_switches};
use crate::cargo::workspace_root;

/// A copy of the workspace in a temporary directory. Dropping this value removes the directory.
pub(super) struct WorkspaceCopy(tempfile::TempDir);

/// The test programs of a package, and the mutants that they contain.
pub(super) struct BuiltTests {
    /// The programs. Those with unit tests come before those with integration tests.
    pub(super) programs: Vec<PathBuf>,
    /// The working directory of the tests.
    pub(super) dir: PathBuf,
    /// The numbers of the mutants in the programs.
    pub(super) mutants: BTreeSet<usize>,
}

impl WorkspaceCopy {
    /// Copies all files that git tracks or does not ignore to a directory next to the checkout. So the files that tests
    /// expect next to the checkout are also next to the copy.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written.
    pub(super) fn create() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(".mutants-").tempdir_in(workspace_root().parent().unwrap_or(Path::new("/")))?;
        let output =
            Command::new("git").args(["ls-files", "-coz", "--exclude-standard"]).current_dir(workspace_root()).output()?;
        ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
        for file in String::from_utf8(output.stdout)?.split_terminator('\0') {
            let (from, to) = (workspace_root().join(file), dir.path().join(file));
            if from.is_file() {
                fs::create_dir_all(to.parent().context("a file is in a directory")?)?;
                fs::copy(&from, &to).with_context(|| format!("cannot copy {file}"))?;
            }
        }
        Ok(Self(dir))
    }

    /// Builds the tests of a package with those of its remaining mutants that compile together. `remaining` has the
    /// indexes of mutants in `mutants`. Returns `None` if no remaining mutant compiles and can be put behind a switch.
    ///
    /// # Errors
    /// Fails if the copy does not compile and no mutant is found to be the cause.
    pub(super) fn build(&self, package: &str, mutants: &[Mutant], remaining: &BTreeSet<usize>) -> Result<Option<BuiltTests>> {
        let candidates = remaining.iter().map(|number| (*number, &mutants[*number]));
        let mut chosen: BTreeMap<usize, &Mutant> = candidates.filter(|(_, mutant)| mutant.package == package).collect();
        let files: BTreeSet<&str> = chosen.values().map(|mutant| mutant.file.as_str()).collect();
        let Some(file) = files.first() else { return Ok(None) };
        self.add_selector(file)?;
        loop {
            self.write_files(&files, &chosen)?;
            let messages = self.build_tests(package)?;
            let failed = self.failed_mutants(&messages, &chosen)?;
            if failed.is_empty() {
                let is_present = |number: &usize| self.is_in_file(*number, chosen[number]);
                let mutants: BTreeSet<usize> = chosen.keys().copied().filter(is_present).collect();
                let has_mutants = !mutants.is_empty();
                let built = BuiltTests { programs: test_programs(&messages)?, dir: package_dir(&messages)?, mutants };
                return Ok(has_mutants.then_some(built));
            }
            println!("   {} of {} mutants do not compile with the others", failed.len(), chosen.len());
            chosen.retain(|number, _| !failed.contains(number));
        }
    }

    /// Adds the function that selects the mutant to the root file of the crate that contains `file`, unless it is
    /// there.
    fn add_selector(&self, file: &str) -> Result<()> {
        let source = file.split_once("src/").context("a mutant is below src")?.0;
        let path = self.0.path().join(source).join("src/lib.rs");
        let text = fs::read_to_string(&path)?;
        if text.contains(SELECTOR_SOURCE) {
            return Ok(());
        }
        Ok(fs::write(path, text + SELECTOR_SOURCE)?)
    }

    /// Writes each file to the copy, with the mutants of `chosen` that belong to the file.
    fn write_files(&self, files: &BTreeSet<&str>, chosen: &BTreeMap<usize, &Mutant>) -> Result<()> {
        for file in files {
            let file_mutants = chosen.iter().filter(|(_, mutant)| mutant.file == *file);
            let file_mutants: Vec<_> = file_mutants.map(|(number, mutant)| (*number, *mutant)).collect();
            let text = fs::read_to_string(workspace_root().join(file))?;
            fs::write(self.0.path().join(file), with_switches(&text, &file_mutants).with_context(|| (*file).to_owned())?)?;
        }
        Ok(())
    }

    /// Returns whether a file in the copy contains a mutant. A mutant that no condition at run time can activate is not
    /// in its file.
    fn is_in_file(&self, number: usize, mutant: &Mutant) -> bool {
        let text = fs::read_to_string(self.0.path().join(&mutant.file)).unwrap_or_default();
        text.contains(&format!("/*mutant {number}*/"))
    }

    /// Builds the tests of a package in the copy. Returns the messages of the compiler, also if the build fails.
    fn build_tests(&self, package: &str) -> Result<Vec<Value>> {
        let arguments = ["test", "--no-run", "--lib", "--tests", "--message-format=json", "--package", package];
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).current_dir(self.0.path()).stderr(Stdio::null());
        cargo.env("CARGO_TARGET_DIR", workspace_root().join("target/mutants/switched")).env("CARGO_PROFILE_DEV_DEBUG", "0");
        // The tests run about a thousand times. The optimized build saves more time than it costs.
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        let output = cargo.output().context("cannot start cargo")?;
        let lines = String::from_utf8(output.stdout)?;
        Ok(lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Returns the numbers of the mutants that cause the compiler errors. Empty if the build succeeded. Tries three
    /// ways to find them, from the most to the least precise. Fails if none finds a mutant.
    fn failed_mutants(&self, messages: &[Value], chosen: &BTreeMap<usize, &Mutant>) -> Result<BTreeSet<usize>> {
        if messages.iter().any(|message| message["reason"] == "build-finished" && message["success"] == true) {
            return Ok(BTreeSet::new());
        }
        let errors = || messages.iter().filter(|message| message["message"]["level"] == "error");
        let spans = |code: Option<&'static str>| {
            let matching = errors().filter(move |error| code.is_none_or(|code| error["message"]["code"]["code"] == code));
            matching.flat_map(|error| error["message"]["spans"].as_array().into_iter().flatten())
        };
        let is_chosen = |number: &usize| chosen.contains_key(number);
        let is_arm = |number: &usize| chosen.get(number).is_some_and(|mutant| mutant.kind == MutantKind::Arm);
        // First way: the mutants on the lines of an error.
        let mut failed: BTreeSet<usize> =
            spans(None).flat_map(|span| self.mutants_at(span, mutants_on_lines)).filter(is_chosen).collect();
        if failed.is_empty() {
            // Second way: the compiler reports a missing match arm at the start of the `match`. The first removed arm
            // after that start is the cause.
            failed = spans(Some(NOT_EXHAUSTIVE))
                .filter_map(|span| self.mutants_at(span, all_after).into_iter().find(is_arm))
                .collect();
        }
        if failed.is_empty() {
            // Third way: the last mutant before an error.
            failed = spans(None).flat_map(|span| self.mutants_at(span, nearest_before)).filter(is_chosen).collect();
        }
        if failed.is_empty() {
            let message = errors().find_map(|error| error["message"]["rendered"].as_str());
            bail!("the copy does not compile, and no mutant is the cause: {}", message.unwrap_or("cargo printed no error"));
        }
        Ok(failed)
    }

    /// Calls `find` with the text of a file, and with the first and last line of a compiler span in it. Returns the
    /// numbers of the mutants that `find` returns.
    fn mutants_at(&self, span: &Value, find: impl Fn(&str, usize, usize) -> Vec<usize>) -> Vec<usize> {
        let file = self.0.path().join(span["file_name"].as_str().unwrap_or_default());
        let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
        let line = |member: &str| span[member].as_u64().and_then(|line| usize::try_from(line).ok()).unwrap_or(0);
        find(&text, line("line_start"), line("line_end"))
    }
}

/// The compiler's error code of a `match` that does not cover all cases.
const NOT_EXHAUSTIVE: &str = "E0004";

/// Returns the last mutant that begins on or before a line. The compiler sometimes reports an error on a later line
/// than the mutant that causes the error.
fn nearest_before(text: &str, line: usize, _: usize) -> Vec<usize> {
    mutants_on_lines(text, 1, line).pop().into_iter().collect()
}

/// Returns the mutants on a line and after it, in the order of the text.
fn all_after(text: &str, line: usize, _: usize) -> Vec<usize> {
    mutants_on_lines(text, line, usize::MAX)
}

/// Returns the directory of the package that was built, in which its tests run.
fn package_dir(messages: &[Value]) -> Result<PathBuf> {
    let artifact = messages.iter().find(|message| message["profile"]["test"] == true);
    let manifest = artifact.and_then(|message| message["manifest_path"].as_str()).context("a test program was built")?;
    Ok(Path::new(manifest).parent().context("a manifest is in a directory")?.to_owned())
}

/// Returns the test programs that were built, those with unit tests before those with integration tests.
fn test_programs(messages: &[Value]) -> Result<Vec<PathBuf>> {
    let artifacts = messages.iter().filter(|message| message["profile"]["test"] == true);
    let mut programs: Vec<(bool, PathBuf)> = artifacts
        .filter_map(|message| Some((message["target"]["kind"][0] == "test", message["executable"].as_str()?.into())))
        .collect();
    // False sorts before true, so the programs with unit tests come first.
    programs.sort();
    ensure!(!programs.is_empty(), "no test program was built");
    Ok(programs.into_iter().map(|(_, program)| program).collect())
}
