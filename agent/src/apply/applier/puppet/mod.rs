//! `puppet`: Puppet code, run by the host's own `puppet apply`.
//!
//! A check is a run with `--noop`, which costs about as much as a run. So a check without a difference is valid for a while
//! ([`RecentChecks`]). The code is no template. Values of the task reach it only as facts and as data of Hiera, so no value
//! can become Puppet code.
//!
//! The exit status of `puppet apply --detailed-exitcodes` has two bits: 2 if resources changed, 4 if resources failed. It is
//! 1 if the run failed as a whole, for example because the code does not compile. With `--noop`, it is 0 even if resources
//! differ, so the summary of the run decides ([`summary`]).

mod staging;
mod summary;

use std::time::Duration;

use serde_json::{Map, Value};
use stemma_core::task::tree_rules::relative_path_error;
use stemma_core::task::{PuppetParameters, check_variable, is_template};
use stemma_wire::message::Hash;

use super::shell::{run_in_unit, unrecorded_error, unrecorded_unit};
use super::{Applier, parameters};
use crate::apply::recent_checks::RecentChecks;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{CommandPurpose, CommandResult, ExitKind, HostCommand, HostError, HostPath, Pending};
use staging::StagedRun;
pub use staging::{remove_left_files, sweep};
use summary::PuppetSummary;

/// Time limit of a run for which the task sets none, in seconds. Fuel has the same default.
const DEFAULT_TIMEOUT_SECONDS: u64 = 3600;

/// The places of Puppet: of its vendor's packages, and of distributions.
const PROGRAMS: [&str; 3] = ["/opt/puppetlabs/bin/puppet", "/usr/bin/puppet", "/usr/local/bin/puppet"];

/// Maximum size of the Puppet code of a task, in bytes.
const MAX_CODE_BYTES: u64 = 4 * 1024 * 1024;

/// Maximum number of Puppet's errors in a message. The output has all.
const MAX_ERRORS: usize = 2;

/// Maximum size of one error of Puppet in a message, in bytes.
const MAX_ERROR_BYTES: usize = 400;

/// The message for a host without Puppet.
const NO_PUPPET: &str = "Puppet is not installed on this host";

/// The applier of `puppet` tasks.
pub(super) struct PuppetApplier;

/// Whether a run of Puppet changes the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunMode {
    /// Puppet only reports what it would change.
    Noop,
    /// Puppet changes the host.
    Apply,
}

/// The rendered parameters of a task.
struct PuppetRun {
    /// The Puppet code that must be staged, or the path of a manifest that is on the host.
    code: Code,
    /// The files of modules that must be staged, each with its blob.
    modules: Vec<(String, Hash)>,
    module_path: Option<String>,
    hiera: Map<String, Value>,
    facts: Vec<(String, String)>,
    cwd: Option<HostPath>,
    timeout: Duration,
    /// The place of the time limit, for a message: a parameter or a field of the task.
    timeout_field: &'static str,
    /// True if the output may contain a secret, so that no message repeats it.
    is_secret: bool,
}

/// The Puppet code of a task.
enum Code {
    /// The code itself, and the parameter that has it.
    Text(&'static str, Vec<u8>),
    /// A manifest on the host.
    OnHost(HostPath),
}

impl Applier for PuppetApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            site.left.find(&*site.host, &site.ledger).await?;
            let left_result = site.left.await_ends(&task.task.id).await;
            // A second Puppet at the same time would report what the first one is about to change.
            if let Some(unit) = unrecorded_unit(site, task)? {
                return Err(unrecorded_error(&unit));
            }
            if left_result.is_some() {
                remove_left_files(site, &task.task.id).await;
            }
            let run = prepare(site, task)?;
            if left_result.is_none()
                && site.memory.get::<RecentChecks>().is_valid(&task.task.id, task.content, site.host.uptime())
            {
                return Ok(CheckResult::Converged);
            }
            let Some(program) = find_program(site)? else {
                let message = format!("{NO_PUPPET}, so nothing could be checked: would run it");
                return Ok(CheckResult::Drifted { diff: String::new(), message });
            };
            let (result, summary) = run_puppet(site, task, &run, program, RunMode::Noop).await?;
            let check = check_result(&run, result, summary)?;
            match (check, left_result) {
                (CheckResult::Converged, Some(left)) => {
                    record_check(site, task);
                    Ok(CheckResult::Completed(ApplyResult {
                        message: left.message,
                        output: left.output,
                        ..ApplyResult::default()
                    }))
                }
                (CheckResult::Converged, None) => {
                    record_check(site, task);
                    Ok(CheckResult::Converged)
                }
                (check, _) => Ok(check),
            }
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let run = prepare(site, task)?;
            let Some(program) = find_program(site)? else {
                let message = format!(
                    "{NO_PUPPET} ({}): install it, for example by a `package` task that this one requires; nothing was run",
                    PROGRAMS.join(", ")
                );
                return Err(TaskError::new(message).without_effect());
            };
            site.memory.get::<RecentChecks>().invalidate(&task.task.id);
            let (result, summary) = run_puppet(site, task, &run, program, RunMode::Apply).await?;
            let result = apply_result(&run, result, summary)?;
            record_check(site, task);
            Ok(result)
        })
    }

    /// A change of another task may change what Puppet would do, and the last check may still be valid.
    fn is_refresh_needed(&self, _: &HostTask) -> bool {
        true
    }
}

/// Records that the task has no difference to its host now.
fn record_check(site: &Site, task: &HostTask) {
    site.memory.get::<RecentChecks>().record(&task.task.id, task.content, site.host.uptime());
}

/// Returns the path of Puppet on this host, or `None` if it is not installed.
fn find_program(site: &Site) -> Result<Option<HostPath>, HostError> {
    for path in PROGRAMS.map(HostPath::from_static) {
        match site.host.stat(&path) {
            Ok(Some(_)) => return Ok(Some(path)),
            Ok(None) | Err(HostError::Link { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Renders the parameters of a task.
fn prepare(site: &Site, task: &HostTask) -> Result<PuppetRun, TaskError> {
    let parameters: PuppetParameters = parameters(task)?;
    let templates = &TaskTemplates::new(site, task);
    let code = match (&parameters.manifest, &parameters.source, &parameters.puppet_manifest) {
        (Some(text), ..) => Code::Text("parameters.manifest", text.clone().into_bytes()),
        (None, Some(source), _) => Code::Text("parameters.source", blob(site, source)?),
        (None, None, path) => Code::OnHost(templates.path("parameters.puppet_manifest", path.as_deref().unwrap_or_default())?),
    };
    let facts = parameters.facts.iter().map(|(name, text)| {
        let (field, variable) = (format!("parameters.facts.{name}"), format!("FACTER_{name}"));
        let value = templates.text(&field, text)?;
        check_variable(&variable, &value).map_err(|error| TaskError::new(format!("{field}: {error}")))?;
        Ok((variable, value))
    });
    let facts = facts.collect::<Result<_, TaskError>>()?;
    let hiera = parameters
        .hiera
        .iter()
        .map(|(key, value)| Ok((key.clone(), render_data(templates, &format!("parameters.hiera.{key}"), value)?)));
    let modules = parameters.modules.iter().map(|(path, source)| module_file(path, source));
    let (timeout_field, seconds) = match (parameters.timeout, task.task.timeout_seconds) {
        (Some(seconds), _) => ("parameters.timeout", seconds),
        (None, Some(seconds)) => ("timeout_seconds", seconds),
        (None, None) => ("the default of parameters.timeout", DEFAULT_TIMEOUT_SECONDS),
    };
    Ok(PuppetRun {
        code,
        modules: modules.collect::<Result<_, TaskError>>()?,
        module_path: parameters.puppet_modules.clone(),
        hiera: hiera.collect::<Result<_, TaskError>>()?,
        facts,
        cwd: parameters.cwd.as_deref().map(|cwd| templates.directory("parameters.cwd", cwd)).transpose()?.flatten(),
        timeout: Duration::from_secs(seconds),
        timeout_field,
        is_secret: task.is_sensitive(),
    })
}

/// Returns the content of a blob. The executor starts a task only after its blob has arrived.
fn blob(site: &Site, source: &str) -> Result<Vec<u8>, TaskError> {
    let hash = Hash::from_source(source).map_err(|error| TaskError::new(format!("parameters.source: {source:?}: {error}")))?;
    if let Some(size) = site.ledger.body_size(hash)?.filter(|size| *size > MAX_CODE_BYTES) {
        let message = format!(
            "parameters.source: {source} has {size} bytes, and Puppet code has at most {MAX_CODE_BYTES}; nothing was run"
        );
        return Err(TaskError::new(message).without_effect());
    }
    let bytes = site.ledger.body(hash)?;
    bytes.ok_or_else(|| TaskError::new(format!("parameters.source: the blob {source} has not arrived yet")).without_effect())
}

/// Checks a file of a module: its path below the directory of modules, and the name of its blob.
fn module_file(path: &str, source: &str) -> Result<(String, Hash), TaskError> {
    let field_error = |reason: String| TaskError::new(format!("parameters.modules: {reason}"));
    if let Some(reason) = relative_path_error(path) {
        return Err(field_error(reason));
    }
    let hash = Hash::from_source(source).map_err(|error| field_error(format!("{path}: {source:?}: {error}")))?;
    Ok((path.to_owned(), hash))
}

/// Renders the texts in data for Hiera, at any depth. Hiera replaces `%{…}` in texts. In a rendered text, this may come from
/// a value, so it is escaped. In a text that is no template, it is the author's.
fn render_data(templates: &TaskTemplates<'_>, field: &str, value: &Value) -> Result<Value, TaskError> {
    Ok(match value {
        Value::String(text) if is_template(text) => Value::String(templates.text(field, text)?.replace("%{", "%{literal('%')}{")),
        Value::Array(items) => {
            let items = items.iter().enumerate().map(|(index, item)| render_data(templates, &format!("{field}[{index}]"), item));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(map) => {
            let entries =
                map.iter().map(|(key, item)| Ok((key.clone(), render_data(templates, &format!("{field}.{key}"), item)?)));
            Value::Object(entries.collect::<Result<_, TaskError>>()?)
        }
        other => other.clone(),
    })
}

/// Stages the code and data of a task, runs Puppet, and removes what was staged. Returns how Puppet ended, and the summary
/// of the run, if Puppet has written one.
async fn run_puppet(
    site: &Site,
    task: &HostTask,
    run: &PuppetRun,
    program: HostPath,
    mode: RunMode,
) -> Result<(CommandResult, Option<PuppetSummary>), TaskError> {
    let staged = StagedRun::new(site, &task.task.id, run).await.map_err(TaskError::without_effect)?;
    let mut command = HostCommand {
        cwd: run.cwd.clone(),
        env: run.facts.iter().cloned().collect(),
        ..HostCommand::new(staged.arguments(site, run, &program, mode), run.timeout)
    };
    let result = match mode {
        RunMode::Noop => {
            command.purpose = CommandPurpose::Guard(task.task.id.clone());
            site.host.run(&command).await
        }
        RunMode::Apply => {
            command.purpose = CommandPurpose::Task(task.task.id.clone());
            run_in_unit(site, &task.task.id, command).await
        }
    };
    let summary = staged.summary();
    let name_fields = |result: CommandResult| CommandResult { output: staged.name_fields(site, run, &result.output), ..result };
    let result = result.map(name_fields);
    staged.remove(site).await;
    Ok((result?, summary))
}

/// Returns the result of a run with `--noop`.
fn check_result(run: &PuppetRun, result: CommandResult, summary: Option<PuppetSummary>) -> Result<CheckResult, TaskError> {
    let CommandResult { end, output } = result;
    let summary = match (end, summary) {
        (ExitKind::Status(0 | 4 | 6), Some(summary)) => summary,
        (end, _) => {
            let reason = failure_reason(run, end, &output);
            let message = format!("`puppet apply --noop` {}, so nothing is known about the host{reason}", end.sentence());
            return Err(TaskError { output, ..TaskError::new(message).without_effect() });
        }
    };
    if summary.is_converged() && end.is_success() {
        return Ok(CheckResult::Converged);
    }
    let message = format!("Puppet would change {} of {} resources", summary.out_of_sync, summary.total);
    Ok(CheckResult::Drifted { diff: output, message })
}

/// Returns the result of a run that may change the host.
fn apply_result(run: &PuppetRun, result: CommandResult, summary: Option<PuppetSummary>) -> Result<ApplyResult, TaskError> {
    let CommandResult { end, output } = result;
    let counts = summary.map(|summary| format!(": {}", summary.sentence())).unwrap_or_default();
    match end {
        ExitKind::Status(status @ (0 | 2)) => {
            let message = format!("Puppet has run{counts}");
            Ok(ApplyResult { message, output, is_unchanged: status == 0, ..ApplyResult::default() })
        }
        ExitKind::Status(4 | 6) => {
            let message = format!("Puppet could not apply all resources{counts}");
            Err(TaskError { output, ..TaskError::new(message) })
        }
        end => {
            let message = format!("`puppet apply` {}{}", end.sentence(), failure_reason(run, end, &output));
            Err(TaskError { output, ..TaskError::new(message) })
        }
    }
}

/// Returns the end of the message about a run that failed as a whole: Puppet's own errors, or what the end usually means.
fn failure_reason(run: &PuppetRun, end: ExitKind, output: &str) -> String {
    let errors = if run.is_secret { String::new() } else { first_errors(output) };
    match end {
        ExitKind::TimedOut => format!(
            ": it takes longer than {} s ({}); raise that limit, or find what it waits for",
            run.timeout.as_secs(),
            run.timeout_field
        ),
        _ if !errors.is_empty() => format!(": {errors}"),
        ExitKind::Status(1) => " (the code does not compile, or a module or a value is missing)".to_owned(),
        ExitKind::Status(_) | ExitKind::Signal(_) => String::new(),
    }
}

/// Returns the first errors in the output of Puppet, each shortened.
fn first_errors(output: &str) -> String {
    let shorten = |line: &str| {
        let end = line.floor_char_boundary(MAX_ERROR_BYTES);
        format!("{}{}", &line[..end], if end < line.len() { "…" } else { "" })
    };
    let errors = output.lines().map(str::trim).filter(|line| line.starts_with("Error: "));
    errors.take(MAX_ERRORS).map(shorten).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
