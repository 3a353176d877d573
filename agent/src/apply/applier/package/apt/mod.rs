//! Changes of packages by apt.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use log::{info, warn};
use stemma_core::task::compare_debian_versions;

use super::apt_output::{
    NATIVE, explain_failure, find_candidate, has_dpkg_begun, has_lock_error, has_version, may_have_old_lists, unknown_version,
    warnings,
};
use super::begin_refresh;
use super::command::CommandRunner;
use super::dpkg::{Database, read_database};
use super::locks::{APT_LOCKS, find_holder, holder_text, wait_for_locks};
use super::request::{PackageRequest, PackageTarget, VersionRule};
use super::state::{BrokenState, PackageChanges, PackageSnapshot, PackageState, diff_snapshots};
use crate::apply::listing::list_names;
use crate::apply::task::{ApplyResult, CheckResult, Site, TaskError};
use crate::host::{CommandResult, HostError, HostPath};

/// The directory of the lists of available packages.
const LISTS: &str = "/var/lib/apt/lists";

/// Options of each `apt-get`. Changed configuration files stay as they are. A name is never a pattern, so that a wrong name
/// installs nothing else. The locks were free when the command was started, so it waits only for a short time.
const APT_GET: &[&str] = &[
    "apt-get",
    "-y",
    "-q",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "Dpkg::Use-Pty=0",
    "-o",
    "DPkg::Lock::Timeout=60",
    "-o",
    "APT::Cmd::Pattern-Only=true",
    "-o",
    "APT::Get::AutomaticRemove=false",
];

/// The pattern of the line with which a simulation of apt removes the agent.
const AGENT_REMOVAL: &str = "^(Remv|Purg) stemma-agent[: ]";

/// Number of attempts of a command that does not get a lock.
const MAX_LOCK_ATTEMPTS: usize = 3;

/// The use of apt for one task.
pub(super) struct Apt<'a> {
    runner: CommandRunner<'a>,
    request: &'a PackageRequest,
    /// What went wrong when the lists were refreshed, or empty.
    refresh_warnings: RefCell<String>,
}

/// Compares the host with what a task requires.
pub(super) fn check(site: &Site, request: &PackageRequest, database: &Database) -> Result<CheckResult, HostError> {
    let changes = compare(request, database);
    let Some(message) = find_blocker(request, database, &changes) else {
        return Ok(if changes.is_empty() {
            CheckResult::Converged
        } else {
            CheckResult::Drifted { message: changes.would_message(request), diff: changes.diff }
        });
    };
    // While another package manager works, packages are half-configured in between.
    Ok(match find_holder(&*site.host, APT_LOCKS)? {
        Some((_, holder)) => {
            let message = format!("another package manager ({}) is at work", holder_text(&holder));
            CheckResult::Drifted { message, diff: changes.diff }
        }
        None => CheckResult::Blocked { message, diff: changes.diff },
    })
}

fn compare(request: &PackageRequest, database: &Database) -> PackageChanges {
    PackageChanges::new(request, &named_packages(request, database), compare_debian_versions)
}

fn named_packages(request: &PackageRequest, database: &Database) -> Vec<PackageState> {
    request.names.iter().map(|name| database.package(name)).collect()
}

fn snapshot(request: &PackageRequest, database: &Database) -> PackageSnapshot {
    PackageSnapshot { named: named_packages(request, database), installed: database.installed() }
}

/// Returns what prevents the changes and how to mend it, or `None` if nothing does.
fn find_blocker(request: &PackageRequest, database: &Database, changes: &PackageChanges) -> Option<String> {
    let broken = database.broken();
    if !broken.is_empty() && (!changes.packages.is_empty() || names_any(request, &broken)) {
        return Some(BrokenState::message(&broken));
    }
    // dpkg has no record of a virtual package that it could hold.
    let mut providers = changes.hold.iter().map(|name| (name, database.package(name).provider));
    if let Some((name, provider)) = providers.find_map(|(name, provider)| Some((name, provider?))) {
        return Some(format!(
            "parameters.hold: {name} is a virtual package, which cannot be held: name {provider}, which provides it; nothing was changed"
        ));
    }
    if request.hold.is_some() || changes.held.is_empty() {
        return None;
    }
    let names = list_names(&changes.held);
    let advice = match request.target {
        PackageTarget::Present(_) => "write `hold: true` or `hold: false` in the task, or run",
        PackageTarget::Absent { .. } => "run",
    };
    let command = format!("apt-mark unhold {}", changes.held.join(" "));
    Some(format!("{names}: held, so that nothing changes its version: {advice} `{command}` on the host; nothing was changed"))
}

/// Returns whether a task names one of these packages.
fn names_any(request: &PackageRequest, packages: &[(String, BrokenState)]) -> bool {
    let is_named = |package: &str| request.names.iter().any(|name| name.split(':').next() == Some(package));
    packages.iter().any(|(name, _)| is_named(name))
}

impl<'a> Apt<'a> {
    pub(super) fn new(site: &'a Site, task: &'a str, request: &'a PackageRequest) -> Self {
        let runner = CommandRunner { site, task, timeout: request.timeout };
        Self { runner, request, refresh_warnings: RefCell::default() }
    }

    /// Brings the packages into the state that the task requires.
    pub(super) async fn apply(&self) -> Result<ApplyResult, TaskError> {
        self.wait_for_locks(self.request.lock_timeout).await?;
        let (old, changes) = self.plan(&*self.database().await.map_err(TaskError::without_effect)?)?;
        if changes.is_empty() {
            return Ok(ApplyResult {
                message: "another package manager has made the change".to_owned(),
                ..ApplyResult::default()
            });
        }
        let mut output = String::new();
        if !changes.packages.is_empty() {
            output = self.change_unheld(&changes).await?.output;
        }
        self.finish(&old, &changes, output, Some(&[])).await
    }

    /// Returns the packages before the change, and what must change. Fails if something prevents the changes.
    fn plan(&self, database: &Database) -> Result<(PackageSnapshot, PackageChanges), TaskError> {
        let changes = compare(self.request, database);
        match find_blocker(self.request, database, &changes) {
            Some(message) => Err(TaskError::new(message).without_effect()),
            None => Ok((snapshot(self.request, database), changes)),
        }
    }

    /// Sets or clears holds after a transaction. Then checks that the packages are as the task requires, and returns what has
    /// changed. The diff has the packages that no task names, without `ignored`. It has none of them if `ignored` is `None`.
    async fn finish(
        &self,
        old: &PackageSnapshot,
        changes: &PackageChanges,
        output: String,
        ignored: Option<&[String]>,
    ) -> Result<ApplyResult, TaskError> {
        let remaining_changes = compare(self.request, &*self.database().await?);
        if !remaining_changes.hold.is_empty() {
            self.mark(self.request.hold == Some(true), &remaining_changes.hold).await?;
        }
        let database = self.database().await?;
        let remaining_changes = compare(self.request, &database);
        if !remaining_changes.is_empty() {
            let diff = remaining_changes.one_line();
            let message = format!("apt-get ended without an error, but these packages are not as required: {diff}");
            return Err(TaskError { output, ..TaskError::new(message) });
        }
        let new = snapshot(self.request, &database);
        let (message, diff) = (done_message(self.request, changes, &new), diff_snapshots(old, &new, ignored));
        Ok(ApplyResult { message, output, diff, ..ApplyResult::default() })
    }

    /// Makes the changes of several tasks in one transaction, as far as nothing prevents it. Returns the results of the tasks
    /// that were in the transaction, by the index of the task. The caller applies the others alone. The tasks name different
    /// packages.
    ///
    /// # Errors
    /// If the transaction could not begin. The caller applies all tasks alone, so that the error belongs to the task that
    /// causes it.
    pub(super) async fn apply_together(tasks: &[Self]) -> Result<BTreeMap<usize, Result<ApplyResult, TaskError>>, TaskError> {
        let Some(first) = tasks.first() else { return Ok(BTreeMap::new()) };
        first.wait_for_locks(tasks.iter().map(|task| task.request.lock_timeout).max().unwrap_or_default()).await?;
        let database = first.database().await?;
        let mut planned = Vec::new();
        for (index, task) in tasks.iter().enumerate() {
            // A package that is held must first be released, so its task is alone.
            if let Ok((old, changes)) = task.plan(&database)
                && !changes.packages.is_empty()
                && changes.held.is_empty()
                && task.prepare().await.is_ok()
            {
                planned.push((index, task, old, changes));
            }
        }
        if planned.len() < 2 {
            return Ok(BTreeMap::new());
        }
        let changes: Vec<_> = planned.iter().map(|(_, task, _, changes)| (task.request, changes.packages.as_slice())).collect();
        let (words, names) = (change_words(&changes), planned.iter().flat_map(|(_, task, ..)| task.request.names.clone()));
        let names: Vec<String> = names.collect();
        first.keep_agent(&names, &words).await?;
        let run = first.run_fresh(&words).await?;
        if !run.end.is_success() && !has_dpkg_begun(&run) {
            return Err(first.failure(run).await);
        }
        let (mut results, mut have_others) = (BTreeMap::new(), false);
        for (index, task, old, changes) in &planned {
            // Packages that no task names are in the diff of the first task only.
            let ignored = (!have_others).then_some(names.as_slice());
            let result = task.finish_together(old, changes, run.clone(), ignored).await;
            have_others |= result.is_ok();
            results.insert(*index, result);
        }
        // A failure outside of the packages that tasks name, such as that of a trigger, belongs to the first task.
        if !run.end.is_success() && results.values().all(Result::is_ok) {
            results.insert(planned[0].0, Err(first.failure(run).await));
        }
        Ok(results)
    }

    /// Returns the result of a task in a transaction of several tasks that has begun. If the transaction failed, the task has
    /// failed too unless its own packages are as it requires.
    async fn finish_together(
        &self,
        old: &PackageSnapshot,
        changes: &PackageChanges,
        run: CommandResult,
        ignored: Option<&[String]>,
    ) -> Result<ApplyResult, TaskError> {
        if !run.end.is_success() {
            let database = self.database().await?;
            if !compare(self.request, &database).packages.is_empty() || names_any(self.request, &database.broken()) {
                return Err(self.failure(run).await);
            }
        }
        self.finish(old, changes, run.output, ignored).await
    }

    async fn wait_for_locks(&self, limit: Duration) -> Result<(), TaskError> {
        wait_for_locks(self.runner.site, APT_LOCKS, limit).await
    }

    async fn database(&self) -> Result<Rc<Database>, TaskError> {
        let site = self.runner.site;
        let database = read_database(&*site.host, &site.memory.get()).await?;
        database.ok_or_else(|| TaskError::new("/var/lib/dpkg/status is missing"))
    }

    /// Installs or removes packages. A package that is held, and that the task may change, is not held in between.
    async fn change_unheld(&self, changes: &PackageChanges) -> Result<CommandResult, TaskError> {
        if !changes.held.is_empty() {
            self.mark(false, &changes.held).await?;
        }
        let result = self.change(changes).await;
        if result.is_err() && self.request.hold == Some(true) && !changes.held.is_empty() {
            // If this fails too, the next check finds that the hold is missing.
            if let Err(error) = self.mark(true, &changes.held).await {
                warn!(task = self.runner.task, error = error.message.as_str(); "the hold could not be restored");
            }
        }
        result
    }

    async fn change(&self, changes: &PackageChanges) -> Result<CommandResult, TaskError> {
        self.prepare().await?;
        let words = change_words(&[(self.request, &changes.packages)]);
        self.keep_agent(&changes.packages, &words).await?;
        let result = self.run_fresh(&words).await?;
        if result.end.is_success() { Ok(result) } else { Err(self.failure(result).await) }
    }

    /// Simulates a removal of packages, and fails if the removal would remove the agent too. An installation removes no package.
    async fn keep_agent(&self, names: &[String], words: &[String]) -> Result<(), TaskError> {
        if matches!(self.request.target, PackageTarget::Present(_)) {
            return Ok(());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.runner.keep_agent(names, AGENT_REMOVAL, &[&["apt-get", "-s"], &words[1..]].concat()).await
    }

    /// Refreshes the lists of available packages if an installation needs it. Fails if apt has no version that the task allows.
    async fn prepare(&self) -> Result<(), TaskError> {
        if matches!(self.request.target, PackageTarget::Absent { .. }) {
            return Ok(());
        }
        if !self.has_lists()? {
            self.refresh_lists().await?;
        }
        self.check_exact_version().await?;
        self.check_candidate().await
    }

    /// Runs a command, again with fresh lists of available packages if they may be too old. A command that fails is not an error.
    async fn run_fresh(&self, words: &[String]) -> Result<CommandResult, TaskError> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        loop {
            let result = self.run(&words).await?;
            if result.end.is_success() || !may_have_old_lists(&result) || !self.refresh_lists().await? {
                return Ok(result);
            }
        }
    }

    /// Returns the error of a command that failed, with the packages that dpkg has left in the middle.
    async fn failure(&self, result: CommandResult) -> TaskError {
        let broken = self.database().await.map(|database| database.broken()).unwrap_or_default();
        let (message, effect) = explain_failure(self.request, &result, &self.refresh_warnings.borrow(), &broken);
        TaskError { effect, message, output: result.output }
    }

    /// Runs a command, again if it does not get a lock: another package manager may begin its work between the wait for the
    /// locks and the command.
    async fn run(&self, words: &[&str]) -> Result<CommandResult, TaskError> {
        let mut attempt = 1;
        loop {
            let result = self.runner.change(words).await?;
            if result.end.is_success() || !has_lock_error(&result) || attempt == MAX_LOCK_ATTEMPTS {
                return Ok(result);
            }
            attempt += 1;
            self.wait_for_locks(self.request.lock_timeout).await?;
        }
    }

    /// Sets or clears the hold of packages.
    async fn mark(&self, is_held: bool, names: &[String]) -> Result<(), TaskError> {
        let mut words = vec!["apt-mark", if is_held { "hold" } else { "unhold" }];
        words.extend(names.iter().map(String::as_str));
        let result = self.run(&words).await?;
        if result.end.is_success() {
            return Ok(());
        }
        let message = format!("apt-mark {} {} {}", words[1], list_names(names), result.end.sentence());
        Err(TaskError { output: result.output, ..TaskError::new(message) })
    }

    /// Returns whether apt has lists of available packages.
    fn has_lists(&self) -> Result<bool, HostError> {
        let Some(dir) = self.runner.site.host.dir(&HostPath::from_static(LISTS))? else { return Ok(false) };
        Ok(dir.names()?.iter().any(|name| name.contains("_Packages") || name.ends_with("Release")))
    }

    /// Refreshes the lists of available packages. Returns `false` if this run has refreshed them already. A failure is no
    /// error, because the lists of other sources may be enough.
    async fn refresh_lists(&self) -> Result<bool, TaskError> {
        let site = self.runner.site;
        if !begin_refresh(site) {
            return Ok(false);
        }
        info!(task = self.runner.task; "apt refreshes its lists of packages");
        let words = [APT_GET, &["update"]].concat();
        let result = self.run(&words).await?;
        let text = warnings(&result.output);
        if !result.end.is_success() || !text.is_empty() {
            warn!(task = self.runner.task, output = text.as_str(); "apt could not refresh all of its lists");
        }
        *self.refresh_warnings.borrow_mut() = text;
        Ok(true)
    }

    /// Fails if apt does not know a version that ends with `+`. It would then install the version without the `+`.
    async fn check_exact_version(&self) -> Result<(), TaskError> {
        let PackageTarget::Present(VersionRule::Exact(version)) = &self.request.target else { return Ok(()) };
        if !version.ends_with('+') {
            return Ok(());
        }
        let name = &self.request.names[0];
        loop {
            let result = self.runner.read(&["apt-cache", "policy", name]).await?;
            if has_version(&result.output, version) {
                return Ok(());
            }
            if !self.refresh_lists().await? {
                let message = format!("{}; nothing was changed", unknown_version(name, version));
                return Err(TaskError { output: result.output, ..TaskError::new(message).without_effect() });
            }
        }
    }

    /// Fails if apt would install a version that is lower than the task allows.
    async fn check_candidate(&self) -> Result<(), TaskError> {
        let PackageTarget::Present(VersionRule::AtLeast(min_version)) = &self.request.target else { return Ok(()) };
        let name = &self.request.names[0];
        loop {
            let result = self.runner.read(&["apt-cache", "policy", name]).await?;
            let candidate = find_candidate(&result.output);
            if candidate.as_ref().is_some_and(|candidate| compare_debian_versions(candidate, min_version).is_ge()) {
                return Ok(());
            }
            if !self.refresh_lists().await? {
                let known = candidate.map_or_else(|| "none".to_owned(), |candidate| format!("{candidate} at most"));
                let message = format!(
                    "parameters.min_version: apt would install {known} of {name}, and the task needs {min_version}: add a source that has it, \
                     or lower min_version; nothing was changed"
                );
                return Err(TaskError { output: result.output, ..TaskError::new(message).without_effect() });
            }
        }
    }
}

/// Returns the command that installs or removes packages of one or more tasks. The tasks have the same [`batch_key`].
fn change_words(changes: &[(&PackageRequest, &[String])]) -> Vec<String> {
    let mut words: Vec<String> = APT_GET.iter().map(|word| (*word).to_owned()).collect();
    let Some((first, _)) = changes.first() else { return words };
    if let PackageTarget::Present(rule) = &first.target {
        words.extend(["-o".to_owned(), format!("APT::Install-Recommends={}", first.recommends), "--no-remove".to_owned()]);
        if matches!(rule, VersionRule::Exact(_)) {
            words.push("--allow-downgrades".to_owned());
        }
    }
    words.push(first.target.verb().to_owned());
    for (request, packages) in changes {
        words.extend(packages.iter().map(|name| match &request.target {
            PackageTarget::Present(VersionRule::Exact(version)) => format!("{}={version}", full_name(name)),
            _ => full_name(name),
        }));
    }
    words
}

/// Returns the name of a package as a word of `apt-get`. If apt knows no package with the name `demo+`, it reads the word as the
/// installation of `demo`. It does not do so after an architecture.
fn full_name(name: &str) -> String {
    if name.ends_with('+') { format!("{name}{NATIVE}") } else { name.to_owned() }
}

/// Returns a key that is equal for tasks whose packages one command can install or remove.
pub(super) fn batch_key(request: &PackageRequest) -> String {
    let is_exact = matches!(request.target, PackageTarget::Present(VersionRule::Exact(_)));
    format!("{} recommends={} exact={is_exact} timeout={}", request.target.verb(), request.recommends, request.timeout.as_secs())
}

/// Returns what a task has changed, in one sentence.
fn done_message(request: &PackageRequest, changes: &PackageChanges, new: &PackageSnapshot) -> String {
    let with_version = |name: &String| {
        let state = new.named.iter().find(|state| state.name == *name);
        state.and_then(|state| state.version.as_ref()).map_or_else(|| name.clone(), |version| format!("{name} {version}"))
    };
    let names: Vec<String> = changes.packages.iter().map(with_version).collect();
    match (names.is_empty(), &request.target) {
        (true, _) => {
            format!("{} {}", if request.hold == Some(true) { "held" } else { "no longer held:" }, list_names(&changes.hold))
        }
        (false, PackageTarget::Present(_)) => format!("installed {}", list_names(&names)),
        (false, PackageTarget::Absent { .. }) => format!("removed {}", list_names(&names)),
    }
}

#[cfg(test)]
mod tests;
