//! Changes of packages by dnf, and the database of rpm.

use std::collections::BTreeMap;

use stemma_core::task::compare_rpm_versions;

use super::begin_refresh;
use super::command::CommandRunner;
use super::locks::{RPM_LOCKS, wait_for_locks};
use super::request::{PackageRequest, PackageTarget, VersionRule};
use super::state::{PackageChanges, PackageSnapshot, PackageState, diff_snapshots};
use crate::apply::listing::list_names;
use crate::apply::task::{ApplyResult, CheckResult, FailureEffect, Site, TaskError};
use crate::host::{CommandResult, ExitKind};

/// The format in which `rpm -q` writes a package: name, architecture and version.
const QUERY_FORMAT: &str = "%{NAME}\t%{ARCH}\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\n";

/// The pattern of the line with which dnf lists the agent among the packages that it would remove.
const AGENT_REMOVAL: &str = "^ *stemma-agent +";

/// Number of packages for which rpm is asked at once, so that its output is not cut.
const QUERY_SIZE: usize = 20;

/// Texts of dnf from which it follows that its metadata may be too old.
const OLD_METADATA_TEXTS: &[&str] = &["No match for argument", "No package ", "Status code: 404"];

/// Maximum number of lines of an error of dnf in a message.
const MAX_ERROR_LINES: usize = 3;

/// A line of dnf before it runs the first script of a package.
const TRANSACTION_BEGINS: &str = "Running transaction";

/// The line of dnf about a transaction that has begun and failed.
const TRANSACTION_FAILED: &str = "Error: Transaction failed";

/// The use of dnf and rpm for one task.
pub(super) struct Dnf<'a> {
    runner: CommandRunner<'a>,
    request: &'a PackageRequest,
}

impl<'a> Dnf<'a> {
    pub(super) fn new(site: &'a Site, task: &'a str, request: &'a PackageRequest) -> Self {
        Self { runner: CommandRunner { site, task, timeout: request.timeout }, request }
    }

    /// Compares the host with what the task requires.
    pub(super) async fn check(&self) -> Result<CheckResult, TaskError> {
        self.refuse_hold()?;
        let changes = self.changes(&self.states().await?);
        Ok(if changes.is_empty() {
            CheckResult::Converged
        } else {
            CheckResult::Drifted { message: changes.would_message(self.request), diff: changes.diff }
        })
    }

    /// Brings the packages into the state that the task requires.
    pub(super) async fn apply(&self) -> Result<ApplyResult, TaskError> {
        self.refuse_hold()?;
        wait_for_locks(self.runner.site, RPM_LOCKS, self.request.lock_timeout).await?;
        let old = self.states().await.map_err(TaskError::without_effect)?;
        let changes = self.changes(&old);
        if changes.is_empty() {
            return Ok(ApplyResult {
                message: "another package manager has made the change".to_owned(),
                ..ApplyResult::default()
            });
        }
        let mut output = String::new();
        for words in change_words(self.request, &changes.packages, &old) {
            self.keep_agent(&changes.packages, &words).await?;
            output = self.run(words).await?;
        }
        let new = self.states().await?;
        let remaining_changes = self.changes(&new);
        if !remaining_changes.is_empty() {
            let diff = remaining_changes.one_line();
            let names = self.request.names.iter().map(|name| rpm_name(name)).collect::<Vec<_>>().join(" ");
            let message = format!(
                "dnf ended without an error, but these packages are not as required: {diff}: `dnf list --showduplicates {names}` lists the versions \
                 that the repositories of this host have"
            );
            return Err(TaskError { output, ..TaskError::new(message) });
        }
        let snapshot = |named| PackageSnapshot { named, installed: BTreeMap::new() };
        let verb = if matches!(self.request.target, PackageTarget::Present(_)) { "installed" } else { "removed" };
        Ok(ApplyResult {
            message: format!("{verb} {}", list_names(&changes.packages)),
            output,
            diff: diff_snapshots(&snapshot(old), &snapshot(new), None),
            ..ApplyResult::default()
        })
    }

    /// Fails if the task holds packages.
    fn refuse_hold(&self) -> Result<(), TaskError> {
        if self.request.hold.is_none() {
            return Ok(());
        }
        let message = "parameters.hold: is not supported with dnf: remove it, and write the version in a file task for the plugin \
                       versionlock; nothing was changed";
        Err(TaskError::new(message).without_effect())
    }

    /// Simulates a removal of packages, and fails if the removal would remove the agent too.
    async fn keep_agent(&self, names: &[String], words: &[String]) -> Result<(), TaskError> {
        if matches!(self.request.target, PackageTarget::Present(_)) {
            return Ok(());
        }
        let words: Vec<&str> = words.iter().map(|word| if word == "-y" { "--assumeno" } else { word.as_str() }).collect();
        self.runner.keep_agent(names, AGENT_REMOVAL, &words).await
    }

    fn changes(&self, states: &[PackageState]) -> PackageChanges {
        PackageChanges::new(self.request, states, compare_rpm_versions)
    }

    /// Asks rpm for the packages of the task.
    async fn states(&self) -> Result<Vec<PackageState>, TaskError> {
        let mut states = Vec::new();
        for names in self.request.names.chunks(QUERY_SIZE) {
            let rpm_names: Vec<String> = names.iter().map(|name| rpm_name(name)).collect();
            let mut words = vec!["rpm", "-q", "--qf", QUERY_FORMAT, "--"];
            words.extend(rpm_names.iter().map(String::as_str));
            let result = self.runner.read(&words).await?;
            // The status is the number of packages that are not installed, and also that of an error.
            if let Some(error) = result.output.lines().find(|line| line.starts_with("error:")) {
                return Err(TaskError {
                    message: format!("rpm cannot read its database: {error}"),
                    output: result.output.clone(),
                    ..TaskError::default()
                });
            }
            states.extend(names.iter().map(|name| find_state(name, &result.output)));
        }
        // A name that is provided counts only for a task that accepts any version.
        if matches!(self.request.target, PackageTarget::Present(VersionRule::Any)) {
            for state in states.iter_mut().filter(|state| state.version.is_none()) {
                state.provider = self.provider(&state.name).await?;
            }
        }
        Ok(states)
    }

    /// Returns the name of an installed package that provides a name.
    async fn provider(&self, name: &str) -> Result<Option<String>, TaskError> {
        let result = self.runner.read(&["rpm", "-q", "--whatprovides", "--qf", "%{NAME}\n", "--", name]).await?;
        Ok(result.output.lines().next().filter(|_| result.end.is_success()).map(str::to_owned))
    }

    /// Runs a command of dnf, again with fresh metadata if the metadata may be too old. Returns its output.
    async fn run(&self, words: Vec<String>) -> Result<String, TaskError> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        loop {
            let result = self.runner.change(&words).await?;
            if result.end.is_success() {
                return Ok(result.output);
            }
            let may_be_old =
                !has_transaction_begun(&result) && OLD_METADATA_TEXTS.iter().any(|text| result.output.contains(text));
            if may_be_old && begin_refresh(self.runner.site) {
                words.insert(1, "--refresh");
                continue;
            }
            let reason = error_text(&result.output).unwrap_or_else(|| format!("it {}", result.end.sentence()));
            let message = format!("dnf could not {} {}: {reason}", self.request.target.verb(), list_names(&self.request.names));
            let effect = if may_be_old { FailureEffect::Unchanged } else { FailureEffect::Partial };
            return Err(TaskError { effect, message, output: result.output });
        }
    }
}

/// Returns whether a transaction may have begun in a command that failed. Later lines may be those of scripts of packages.
fn has_transaction_begun(result: &CommandResult) -> bool {
    let is_mark = |line: &str| line.trim_end() == TRANSACTION_BEGINS || line.starts_with(TRANSACTION_FAILED);
    !matches!(result.end, ExitKind::Status(_)) || result.output.lines().any(is_mark)
}

/// Returns the last error in the output of dnf, and that of a script of a package. The text of an error can be on the lines
/// below `Error:`, and the error itself at the end of a line of progress.
fn error_text(output: &str) -> Option<String> {
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    let script_error = lines.iter().rfind(|line| line.starts_with("error: ") && line.contains("scriptlet failed"));
    let error = lines.iter().enumerate().rev().find_map(|(index, line)| Some((index, &line[line.find("Error:")?..])));
    let error = error.map(|(index, error)| {
        let details = lines[index + 1..].iter().filter(|line| !line.is_empty() && !line.starts_with("(try to"));
        let details = details.take_while(|_| error == "Error:").take(MAX_ERROR_LINES).copied();
        std::iter::once(error).chain(details).collect::<Vec<_>>().join(" ")
    });
    let texts: Vec<String> = error.into_iter().chain(script_error.map(|line| (*line).to_owned())).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns the name of a package as rpm and dnf have it: `glibc:i686` is `glibc.i686`.
fn rpm_name(name: &str) -> String {
    name.replace(':', ".")
}

/// Finds a package in the output of `rpm -q`. If several versions of it are installed, returns the highest.
fn find_state(name: &str, output: &str) -> PackageState {
    let (base_name, architecture) = name.split_once(':').map_or((name, None), |(base, architecture)| (base, Some(architecture)));
    let versions = output.lines().filter_map(|line| {
        let mut fields = line.split('\t');
        let (name, found_architecture, version) = (fields.next()?, fields.next()?, fields.next()?);
        let is_wanted = name == base_name && architecture.is_none_or(|architecture| architecture == found_architecture);
        is_wanted.then(|| version.to_owned())
    });
    let version = versions.max_by(|left, right| compare_rpm_versions(left, right));
    PackageState { name: name.to_owned(), has_configuration: version.is_some(), version, ..PackageState::default() }
}

/// Returns the commands that install, upgrade or remove packages.
fn change_words(request: &PackageRequest, packages: &[String], states: &[PackageState]) -> Vec<Vec<String>> {
    let options = [
        "dnf",
        "-y",
        "--setopt=exit_on_lock=True",
        "--setopt=clean_requirements_on_remove=False",
        if request.recommends { "--setopt=install_weak_deps=True" } else { "--setopt=install_weak_deps=False" },
    ];
    let command = |verb: &str, names: Vec<String>| {
        let words = options.iter().copied().chain([verb]).map(str::to_owned);
        (!names.is_empty()).then(|| words.chain(names).collect::<Vec<_>>())
    };
    let is_installed = |name: &String| states.iter().any(|state| state.name == *name && state.version.is_some());
    let names =
        |select: &dyn Fn(&String) -> bool| packages.iter().filter(|name| select(name)).map(|name| rpm_name(name)).collect();
    match &request.target {
        PackageTarget::Absent { .. } => command("remove", names(&|_| true)).into_iter().collect(),
        PackageTarget::Present(VersionRule::Exact(version)) => {
            let with_version = |name: &String| format!("{}-{version}", rpm_name(name));
            command("install", packages.iter().map(with_version).collect()).into_iter().collect()
        }
        // `install` leaves an installed package at its version.
        PackageTarget::Present(_) => {
            let commands = [command("install", names(&|name| !is_installed(name))), command("upgrade", names(&is_installed))];
            commands.into_iter().flatten().collect()
        }
    }
}

#[cfg(test)]
mod tests;
