//! `shell`: a command that runs without a shell, or a shell script.
//!
//! With a guard (`creates`, `unless`, `only_if`), the host itself shows whether the command must run. Without a guard
//! only the journal in the ledger shows it. The journal is written before the command starts and after it ends. So a
//! command that succeeded runs again only if its definition or inputs change, or if a task that it subscribes to
//! changes something. A command that a crash interrupted is `unknown` and is not repeated automatically, except with
//! `on_interrupt: again`, a new definition or new inputs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use log::debug;
use stemma_core::task::{OnInterrupt, ShellParameters, WordsOrText, check_argument, check_variable, check_words};
use stemma_wire::message::observed::Outcome;

use super::{Applier, parameters};
use crate::apply::ledger::{PROGRESS, Step, StepState};
use crate::apply::left_commands::LeftResult;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, FailureEffect, HostTask, Site, TaskError};
use crate::host::{CommandPurpose, CommandResult, ExitKind, HostCommand, HostError, HostPath, Pending};

/// Timeout of a command for which the task sets no timeout, in seconds. Fuel, whose tasks can be imported, has the same
/// default.
const DEFAULT_TIMEOUT_SECONDS: u64 = 300;

/// Timeout of a guard: a command that decides whether the task's command must run.
const GUARD_TIMEOUT: Duration = Duration::from_mins(1);

/// The argument that makes a shell read its script from standard input. Everyone on a host can read the arguments of a
/// process, so a script with a secret must not be an argument.
const SOURCE_STDIN: &str = ". /proc/self/fd/0";

/// Text in front of a script that the shell reads from standard input. It makes `/dev/null` the standard input of the
/// commands in the script, so that no command reads the rest of the script.
const CLOSE_STDIN: &str = "exec </dev/null; ";

/// The applier of `shell` tasks.
pub(super) struct ShellApplier;

/// A command that is ready to run, with its guards: conditions that decide whether the command must run.
struct PreparedCommand {
    command: HostCommand,
    creates: Option<HostPath>,
    unless: Option<HostCommand>,
    only_if: Option<HostCommand>,
}

impl Applier for ShellApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            site.left.find(&*site.host, &site.ledger).await?;
            let left_result = site.left.await_ends(&task.task.id).await;
            if let Some(LeftResult { is_success: false, message, output }) = left_result {
                return Err(TaskError { output, ..TaskError::new(message) });
            }
            let prepared = prepare_command(site, task)?;
            let result = if prepared.is_guarded() { check_guards(site, &prepared).await } else { check_journal(site, task) };
            match (result, left_result) {
                (Ok(CheckResult::Converged), Some(left)) => Ok(CheckResult::Completed(ApplyResult {
                    message: left.message,
                    output: left.output,
                    ..ApplyResult::default()
                })),
                (Err(error), _) if error.effect == FailureEffect::Unknown => {
                    Err(unrecorded_unit(site, task)?.map_or(error, |unit| unrecorded_error(&unit)))
                }
                (result, _) => result,
            }
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let mut prepared = prepare_command(site, task)?;
            prepared.command.unit = site.host.new_unit(&prepared.command.purpose);
            let (id, unit, is_guarded) = (&task.task.id, prepared.command.unit.as_deref(), prepared.is_guarded());
            // The journal has an entry of a command without guards: begun before its run, and done or failed after it.
            let step = |state| Step { task: id.clone(), content: task.content, state };
            let has_begun = Cell::new(false);
            let record = || {
                if unit.is_some() {
                    site.ledger.set_started_unit(id, unit)?;
                }
                if !is_guarded {
                    site.ledger.set_step(&step(StepState::Begun))?;
                }
                has_begun.set(true);
                Ok(())
            };
            let result = match site.host.run_recorded(&prepared.command, &record).await {
                Err(error) if !has_begun.get() => return Err(TaskError::from(error).without_effect()),
                result => result,
            };
            if !is_guarded {
                // The journal entry remains `Begun`, because nobody knows how the command ended.
                if let Err(error @ HostError::CommandLost { .. }) = result {
                    return Err(TaskError { effect: FailureEffect::Unknown, ..error.into() });
                }
                let is_success = result.as_ref().is_ok_and(|result| result.end.is_success());
                let journal_result = site.ledger.set_step(&step(if is_success { StepState::Done } else { StepState::Failed }));
                if let Err(error) = journal_result {
                    return Err(unjournalled_error(result, &error));
                }
            }
            release_unit(site, id, unit).await;
            apply_result(result?)
        })
    }

    fn is_journalled(&self, task: &HostTask) -> bool {
        let is_guarded = |shell: &ShellParameters| shell.creates.is_some() || shell.unless.is_some() || shell.only_if.is_some();
        parameters::<ShellParameters>(task).is_ok_and(|shell| !is_guarded(&shell))
    }

    fn retry_policy(&self, task: &HostTask) -> (u64, u64) {
        let parameters = parameters::<ShellParameters>(task).ok();
        let (retries, interval) = parameters.map_or((None, None), |shell| (shell.retries, shell.interval));
        // A parameter of the command takes precedence over the field of the task. Both numbers are limited.
        (retries.or(task.task.retries.map(u64::from)).unwrap_or(0).min(100), interval.unwrap_or(1).min(3600))
    }
}

impl PreparedCommand {
    /// Returns whether the command has a guard, so that the host itself shows whether the command must run.
    fn is_guarded(&self) -> bool {
        self.creates.is_some() || self.unless.is_some() || self.only_if.is_some()
    }
}

/// Runs a command of a task that needs no journal. On a host with systemd it is a unit of its own, so that it continues if
/// this agent ends. The ledger has the unit until the end of the command.
pub(super) async fn run_in_unit(site: &Site, task: &str, mut command: HostCommand) -> Result<CommandResult, HostError> {
    command.unit = site.host.new_unit(&command.purpose);
    let unit = command.unit.as_deref();
    let record = || if unit.is_some() { site.ledger.set_started_unit(task, unit) } else { Ok(()) };
    let result = site.host.run_recorded(&command, &record).await;
    release_unit(site, task, unit).await;
    result
}

/// Removes the unit of a task from the record after the end of its command, and releases it. An error of the record is only
/// logged: the next agent finds that the unit has ended or is gone.
async fn release_unit(site: &Site, task: &str, unit: Option<&str>) {
    let Some(unit) = unit else { return };
    if let Err(error) = site.ledger.set_started_unit(task, None) {
        debug!(task, error = error.sentence().as_str(); "the unit of a task remains in the record");
    }
    site.host.release_unit(unit).await;
}

/// Checks a command without guards by its journal entry, which each run writes. The task has converged if the command
/// succeeded with the same content (definition and inputs). If a run with the same content was interrupted, or if the
/// entry is lost, the check fails with the effect `Unknown`, unless the task may run again (`on_interrupt: again`).
fn check_journal(site: &Site, task: &HostTask) -> Result<CheckResult, TaskError> {
    let drifted_result = |message: &str| CheckResult::Drifted { diff: String::new(), message: message.into() };
    let unknown_error = |reason: &str| {
        let id = &task.task.id;
        let message = format!("{reason}; check the host, then run `stemma-agent resolve-unknown {id} done|again`");
        Err(TaskError { effect: FailureEffect::Unknown, ..TaskError::new(message) })
    };
    let may_repeat = task.task.on_interrupt == OnInterrupt::Again;
    let step = match site.ledger.step(&task.task.id)? {
        None if !may_repeat && is_step_lost(site, task)? => {
            return unknown_error("its journal entry is lost, so it is unknown whether it ran");
        }
        step => step.filter(|step| step.content == task.content),
    };
    let Some(step) = step else { return Ok(drifted_result("it has not run with this definition and these inputs")) };
    match step.state {
        StepState::Done => Ok(CheckResult::Converged),
        StepState::Failed => Ok(drifted_result("it has not succeeded yet")),
        StepState::Begun if may_repeat => Ok(drifted_result("it was begun and interrupted, and may run again")),
        StepState::Begun | StepState::Unknown => unknown_error("it was begun, and its end is not known"),
    }
}

/// Returns the unit of the command of a task, if systemd has it. This process did not start it, and does not apply tasks: a
/// process that does waits for the command, and records its end.
pub(super) fn unrecorded_unit(site: &Site, task: &HostTask) -> Result<Option<String>, HostError> {
    Ok(site.ledger.started_unit(&task.task.id)?.filter(|unit| site.host.has_unit(unit)))
}

/// Returns the error of a check while the command of the task runs or has ended, and no agent has recorded its end.
pub(super) fn unrecorded_error(unit: &str) -> TaskError {
    let message = format!("its command runs or has ended in {unit}, and no agent runs: the next agent records its end");
    TaskError { effect: FailureEffect::Unknown, ..TaskError::new(message) }
}

/// Returns whether a task without a journal entry once had an entry. That is the case if the entry was damaged and set
/// aside (renamed), or if the progress record shows that the task ran with the same content.
fn is_step_lost(site: &Site, task: &HostTask) -> Result<bool, HostError> {
    let id = &task.task.id;
    let record = site.ledger.get(&PROGRESS)?.unwrap_or_default().tasks.remove(id);
    let has_run = record.is_some_and(|record| {
        // A task with the outcome `Failed` may run again without the journal entry, so this outcome is not listed.
        let was_run = matches!(record.outcome, Outcome::Changed | Outcome::Unchanged | Outcome::Drifted | Outcome::Unknown);
        was_run && record.content == task.content
    });
    Ok(has_run || site.ledger.is_step_set_aside(id)?)
}

/// Checks a command by its guards. The task has converged, so that the command need not run, if `creates` exists, if
/// `unless` succeeds, or if `only_if` fails.
async fn check_guards(site: &Site, prepared: &PreparedCommand) -> Result<CheckResult, TaskError> {
    if let Some(path) = &prepared.creates
        && site.host.stat(path)?.is_some()
    {
        return Ok(CheckResult::Converged);
    }
    if let Some(unless) = &prepared.unless
        && run_guard(site, "unless", unless).await?
    {
        return Ok(CheckResult::Converged);
    }
    if let Some(only_if) = &prepared.only_if
        && !run_guard(site, "only_if", only_if).await?
    {
        return Ok(CheckResult::Converged);
    }
    let message = format!("would run {}", prepared.command.argv.first().map_or("", String::as_str));
    Ok(CheckResult::Drifted { diff: String::new(), message })
}

/// Runs the command of a guard, and returns whether it ended with status 0. Fails if a signal or the timeout ended the
/// command, because its result is then not known.
async fn run_guard(site: &Site, name: &str, command: &HostCommand) -> Result<bool, TaskError> {
    let result = site.host.run(command).await?;
    match result.end {
        ExitKind::Status(status) => Ok(status == 0),
        ExitKind::Signal(_) | ExitKind::TimedOut => {
            let message = format!("{name} {}", result.end.sentence());
            Err(TaskError { output: result.output, ..TaskError::new(message) })
        }
    }
}

/// Returns the error for a command whose end could not be written to the journal. The effect is `Unknown`, because the
/// journal still shows the command as begun. A retry could run the command twice.
fn unjournalled_error(result: Result<CommandResult, HostError>, error: &HostError) -> TaskError {
    let (ending, output) = match result {
        Ok(result) => (result.end.sentence(), result.output),
        Err(run_error) => (run_error.sentence(), String::new()),
    };
    let message = format!("the command {ending}, which could not be recorded ({}); it is not run again", error.sentence());
    TaskError { effect: FailureEffect::Unknown, message, output }
}

/// Returns the output of a command that succeeded. Otherwise fails with a message about the end of the command: its
/// exit status, a signal or the timeout.
fn apply_result(command_result: CommandResult) -> Result<ApplyResult, TaskError> {
    if command_result.end.is_success() {
        return Ok(ApplyResult { output: command_result.output, ..ApplyResult::default() });
    }
    let message = format!("the command {}", command_result.end.sentence());
    Err(TaskError { output: command_result.output, ..TaskError::new(message) })
}

/// Renders the parameters of a task into its command and guards. The guards have the same directory, environment and
/// user as the command, but the timeout [`GUARD_TIMEOUT`].
fn prepare_command(site: &Site, task: &HostTask) -> Result<PreparedCommand, TaskError> {
    let parameters: ShellParameters = parameters(task)?;
    let templates = &TaskTemplates::new(site, task);
    let (field, seconds) = match (parameters.timeout, task.task.timeout_seconds) {
        (Some(seconds), _) => ("parameters.timeout", seconds),
        (None, Some(seconds)) => ("timeout_seconds", seconds),
        (None, None) => ("", DEFAULT_TIMEOUT_SECONDS),
    };
    // New releases with the timeout 0 are refused, but older versions of the controller stored such releases.
    if seconds == 0 {
        let message = "is not a valid timeout: write a number of seconds from 1 on, or remove it; nothing was run";
        return Err(TaskError::new(format!("{field}: {message}")));
    }
    let base = HostCommand {
        argv: Vec::new(),
        script: None,
        // `directory` returns `None` for `/`, in which a command without a directory runs.
        cwd: parameters.cwd.as_deref().map(|cwd| templates.directory("parameters.cwd", cwd)).transpose()?.flatten(),
        env: render_env(templates, &parameters.env)?,
        user: parameters.user.clone(),
        input: Vec::new(),
        timeout: Duration::from_secs(seconds),
        purpose: CommandPurpose::Task(task.task.id.clone()),
        unit: None,
    };
    let guard = |name: &str, guard: Option<&WordsOrText>| -> Result<Option<HostCommand>, TaskError> {
        guard
            .map(|guard| {
                Ok(HostCommand {
                    timeout: GUARD_TIMEOUT,
                    purpose: CommandPurpose::Guard(task.task.id.clone()),
                    ..guard_command(templates, name, guard, base.clone())?
                })
            })
            .transpose()
    };
    Ok(PreparedCommand {
        creates: render_path(templates, "creates", parameters.creates.as_deref())?,
        unless: guard("unless", parameters.unless.as_ref())?,
        only_if: guard("only_if", parameters.only_if.as_ref())?,
        command: task_command(templates, &parameters, base)?,
    })
}

/// Returns the command of a task, from its parameter `script`, `cmd` or `command`. `base` has everything except the
/// command itself, for example the environment and the timeout.
fn task_command(templates: &TaskTemplates<'_>, params: &ShellParameters, base: HostCommand) -> Result<HostCommand, TaskError> {
    if let Some(script) = &params.script {
        return shell_command(templates, "script", templates.script("parameters.script", script)?, base);
    }
    match &params.cmd {
        // `cmd` comes from Fuel and is not a template.
        Some(cmd) => shell_command(templates, "cmd", cmd.clone(), base),
        None => Ok(HostCommand { argv: render_words(templates, "command", &params.command)?, ..base }),
    }
}

/// Returns the command of a guard. A list of words runs without a shell, and a text runs as a script in a shell.
fn guard_command(
    templates: &TaskTemplates<'_>,
    name: &str,
    guard: &WordsOrText,
    base: HostCommand,
) -> Result<HostCommand, TaskError> {
    match guard {
        WordsOrText::Words(words) => Ok(HostCommand { argv: render_words(templates, name, words)?, ..base }),
        WordsOrText::Text(text) => shell_command(templates, name, templates.script(&format!("parameters.{name}"), text)?, base),
    }
}

/// Renders the words of a command and checks that the host can run them.
fn render_words(templates: &TaskTemplates<'_>, name: &str, words: &[String]) -> Result<Vec<String>, TaskError> {
    let rendered = templates.words(&format!("parameters.{name}"), words)?;
    check_words(&rendered).map_err(|reason| invalid_parameter(name, &reason))?;
    Ok(rendered)
}

/// Returns the command that runs a script in `/bin/sh`. A script that may contain a secret is passed on standard input,
/// because everyone on the host can read arguments.
fn shell_command(templates: &TaskTemplates<'_>, name: &str, script: String, base: HostCommand) -> Result<HostCommand, TaskError> {
    check_argument(&script).map_err(|reason| invalid_parameter(name, &reason))?;
    let argv = |text: String| vec!["/bin/sh".into(), "-c".into(), text];
    Ok(if templates.may_have_secrets() {
        HostCommand { argv: argv(SOURCE_STDIN.into()), script: Some(format!("{CLOSE_STDIN}{script}")), ..base }
    } else {
        HostCommand { argv: argv(script), ..base }
    })
}

fn invalid_parameter(name: &str, reason: &str) -> TaskError {
    TaskError::new(format!("parameters.{name}: {reason}"))
}

/// Renders the parameter `name` as a path. Returns `None` if the parameter is not set.
fn render_path(templates: &TaskTemplates<'_>, name: &str, text: Option<&str>) -> Result<Option<HostPath>, TaskError> {
    text.map(|text| templates.path(&format!("parameters.{name}"), text)).transpose()
}

/// Renders the values of the environment variables. Fails if a name or a value is not valid for the system.
fn render_env(templates: &TaskTemplates<'_>, env: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, TaskError> {
    env.iter()
        .map(|(name, value)| {
            let value = templates.text(&format!("parameters.env.{name}"), value)?;
            check_variable(name, &value).map_err(|reason| invalid_parameter("env", &reason))?;
            Ok((name.clone(), value))
        })
        .collect()
}

#[cfg(test)]
mod tests;
