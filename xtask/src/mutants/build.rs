//! A copy of the workspace with all mistakes in one program, and the test programs of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::mistake::{Genre, Mistake};
use super::switch::{CHOSEN, on_lines, switched};
use crate::cargo::root;

/// A copy of the workspace, removed when it is dropped.
pub(super) struct Copy(tempfile::TempDir);

/// Test programs of a package, and which mistakes are in them.
pub(super) struct Built {
    /// The library's own first.
    pub(super) programs: Vec<PathBuf>,
    /// Where its tests run.
    pub(super) dir: PathBuf,
    pub(super) mistakes: BTreeSet<usize>,
}

impl Copy {
    /// Copies what is tracked, or would be, to a directory beside the checkout: tests find there what is given beside it.
    ///
    /// # Errors
    /// When something cannot be read or written.
    pub(super) fn make() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(".mutants-").tempdir_in(root().parent().unwrap_or(Path::new("/")))?;
        let listed =
            Command::new("git").args(["ls-files", "-coz", "--exclude-standard"]).current_dir(root()).output()?;
        ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
        for file in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            let (from, to) = (root().join(file), dir.path().join(file));
            if from.is_file() {
                fs::create_dir_all(to.parent().context("a file stands in a directory")?)?;
                fs::copy(&from, &to).with_context(|| format!("cannot copy {file}"))?;
            }
        }
        Ok(Self(dir))
    }

    /// Builds the tests of a package with as many of its mistakes as build together, of those that are left; `None` where none does.
    ///
    /// # Errors
    /// When the copy does not build without any.
    pub(super) fn build(&self, package: &str, mistakes: &[Mistake], left: &BTreeSet<usize>) -> Result<Option<Built>> {
        let of_package = left.iter().map(|number| (*number, &mistakes[*number]));
        let mut chosen: BTreeMap<usize, &Mistake> =
            of_package.filter(|(_, mistake)| mistake.package == package).collect();
        let files: BTreeSet<&str> = chosen.values().map(|mistake| mistake.file.as_str()).collect();
        let Some(file) = files.first() else { return Ok(None) };
        self.let_choose(file)?;
        loop {
            self.write(&files, &chosen)?;
            let messages = self.cargo(package)?;
            let wrong = self.wrong(&messages, &chosen)?;
            if wrong.is_empty() {
                let holds = |number: &usize| self.holds(*number, chosen[number]);
                let mistakes: BTreeSet<usize> = chosen.keys().copied().filter(holds).collect();
                let is_any = !mistakes.is_empty();
                let built = Built { programs: programs(&messages)?, dir: package_dir(&messages)?, mistakes };
                return Ok(is_any.then_some(built));
            }
            println!("   {} of {} mistakes do not build with the others", wrong.len(), chosen.len());
            chosen.retain(|number, _| !wrong.contains(number));
        }
    }

    /// Adds to the root of a file's crate what says which mistake is made.
    fn let_choose(&self, file: &str) -> Result<()> {
        let source = file.split_once("src/").context("a mistake stands below src")?.0;
        let path = self.0.path().join(source).join("src/lib.rs");
        let text = fs::read_to_string(&path)?;
        if text.contains(CHOSEN) {
            return Ok(());
        }
        Ok(fs::write(path, text + CHOSEN)?)
    }

    /// Writes each file with the mistakes that are chosen for it.
    fn write(&self, files: &BTreeSet<&str>, chosen: &BTreeMap<usize, &Mistake>) -> Result<()> {
        for file in files {
            let of_file = chosen.iter().filter(|(_, mistake)| mistake.file == *file);
            let of_file: Vec<_> = of_file.map(|(number, mistake)| (*number, *mistake)).collect();
            let text = fs::read_to_string(root().join(file))?;
            fs::write(self.0.path().join(file), switched(&text, &of_file).with_context(|| (*file).to_owned())?)?;
        }
        Ok(())
    }

    /// Whether a mistake stands in its file: a place that no switch can stand before has none.
    fn holds(&self, number: usize, mistake: &Mistake) -> bool {
        let text = fs::read_to_string(self.0.path().join(&mistake.file)).unwrap_or_default();
        text.contains(&format!("/*mutant {number}*/"))
    }

    /// Builds the tests of a package; what the compiler says, a message each.
    fn cargo(&self, package: &str) -> Result<Vec<Value>> {
        let arguments = ["test", "--no-run", "--lib", "--tests", "--message-format=json", "--package", package];
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).current_dir(self.0.path()).stderr(Stdio::null());
        cargo.env("CARGO_TARGET_DIR", root().join("target/mutants/switched")).env("CARGO_PROFILE_DEV_DEBUG", "0");
        // The tests run a thousand times: what they save is more than it costs to build them so once.
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        let output = cargo.output().context("cannot start cargo")?;
        let lines = String::from_utf8(output.stdout)?;
        Ok(lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The mistakes that errors of the compiler are about; none where it built.
    fn wrong(&self, messages: &[Value], chosen: &BTreeMap<usize, &Mistake>) -> Result<BTreeSet<usize>> {
        if messages.iter().any(|message| message["reason"] == "build-finished" && message["success"] == true) {
            return Ok(BTreeSet::new());
        }
        let errors = || messages.iter().filter(|message| message["message"]["level"] == "error");
        let spans = |code: Option<&'static str>| {
            let of_code =
                errors().filter(move |error| code.is_none_or(|code| error["message"]["code"]["code"] == code));
            of_code.flat_map(|error| error["message"]["spans"].as_array().into_iter().flatten())
        };
        let is_chosen = |number: &usize| chosen.contains_key(number);
        let is_arm = |number: &usize| chosen.get(number).is_some_and(|mistake| mistake.genre == Genre::Arm);
        let mut wrong: BTreeSet<usize> =
            spans(None).flat_map(|span| self.at(span, on_lines)).filter(is_chosen).collect();
        if wrong.is_empty() {
            // A `match` without an arm is told of where it begins.
            wrong =
                spans(Some(NOT_EXHAUSTIVE)).filter_map(|span| self.at(span, behind).into_iter().find(is_arm)).collect();
        }
        if wrong.is_empty() {
            wrong = spans(None).flat_map(|span| self.at(span, before)).filter(is_chosen).collect();
        }
        if wrong.is_empty() {
            let said = errors().find_map(|error| error["message"]["rendered"].as_str());
            bail!("the copy does not build, and not for a mistake in it: {}", said.unwrap_or("cargo said nothing"));
        }
        Ok(wrong)
    }

    /// The mistakes that `find` finds by the lines of a place in a file.
    fn at(&self, span: &Value, find: impl Fn(&str, usize, usize) -> Vec<usize>) -> Vec<usize> {
        let file = self.0.path().join(span["file_name"].as_str().unwrap_or_default());
        let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
        let line = |member: &str| span[member].as_u64().and_then(|line| usize::try_from(line).ok()).unwrap_or(0);
        find(&text, line("line_start"), line("line_end"))
    }
}

/// The compiler's code of a `match` in which a case is missing.
const NOT_EXHAUSTIVE: &str = "E0004";

/// The nearest mistake before a line: what stands in its way is sometimes told of after it alone.
fn before(text: &str, line: usize, _: usize) -> Vec<usize> {
    on_lines(text, 1, line).pop().into_iter().collect()
}

/// The mistakes behind a line.
fn behind(text: &str, line: usize, _: usize) -> Vec<usize> {
    on_lines(text, line, usize::MAX)
}

/// Where the tests of the package run that was built.
fn package_dir(messages: &[Value]) -> Result<PathBuf> {
    let tested = messages.iter().find(|message| message["profile"]["test"] == true);
    let manifest = tested.and_then(|message| message["manifest_path"].as_str()).context("a test program was built")?;
    Ok(Path::new(manifest).parent().context("a manifest stands in a directory")?.to_owned())
}

/// The test programs that were built, the library's own first.
fn programs(messages: &[Value]) -> Result<Vec<PathBuf>> {
    let tested = messages.iter().filter(|message| message["profile"]["test"] == true);
    let mut programs: Vec<(bool, PathBuf)> = tested
        .filter_map(|message| Some((message["target"]["kind"][0] == "test", message["executable"].as_str()?.into())))
        .collect();
    programs.sort();
    ensure!(!programs.is_empty(), "no test program was built");
    Ok(programs.into_iter().map(|(_, program)| program).collect())
}
