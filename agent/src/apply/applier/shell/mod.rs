//! `shell`: a command that runs without a shell, or a shell script.
//!
//! With a guard (`creates`, `unless`, `only_if`), the host itself shows whether the command must run. Without a guard
//! only the journal in the ledger shows it. The journal is written before the command starts and after it ends. So a
//! command runs once, and again only if its definition or inputs change. A command that a crash interrupted is
//! `unknown` and is never repeated automatically.

use std::collections::BTreeMap;
use std::time::Duration;

use stemma_core::task::{OnInterrupt, ShellParameters, WordsOrText, check_argument, check_variable, check_words};
use stemma_wire::message::observed::Outcome;

use super::{Applier, parameters};
use crate::apply::ledger::{PROGRESS, Step, StepState};
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, FailureEffect, HostTask, Site, TaskError};
use crate::host::{CommandResult, ExitKind, HostCommand, HostError, HostPath, Pending};

/// Timeout of a command if the author sets none, in seconds: the same as in Fuel.
const DEFAULT_TIMEOUT_SECONDS: u64 = 300;

/// Timeout of a guard.
const GUARD_TIMEOUT: Duration = Duration::from_mins(1);

/// The command of a shell that reads its script from standard input. Everyone on a host can read the arguments of a
/// process, so a script with a secret must not be one.
const SOURCE_STDIN: &str = ". /proc/self/fd/0";

/// Text in front of a script that the shell reads from standard input. It closes standard input, so that no command in
/// the script reads the rest of the script.
const CLOSE_STDIN: &str = "exec </dev/null; ";

/// The applier of `shell` tasks.
pub(super) struct ShellApplier;

/// A command that is ready to run, with its guards.
struct PreparedCommand {
    command: HostCommand,
    creates: Option<HostPath>,
    unless: Option<HostCommand>,
    only_if: Option<HostCommand>,
}

impl Applier for ShellApplier {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let prepared = prepare(site, task)?;
            if !prepared.is_guarded() {
                return check_journal(site, task);
            }
            check_guards(site, &prepared).await
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let prepared = prepare(site, task)?;
            let step = |state| Step { task: task.task.id.clone(), content: task.content, state };
            if !prepared.is_guarded() {
                site.ledger.set_step(&step(StepState::Begun))?;
            }
            let finished = site.host.run(&prepared.command).await;
            if !prepared.is_guarded() {
                let done = finished.as_ref().is_ok_and(|finished| finished.end.is_success());
                let stored = site.ledger.set_step(&step(if done { StepState::Done } else { StepState::Failed }));
                if let Err(error) = stored {
                    return Err(unjournalled_error(finished, &error));
                }
            }
            apply_result(finished?)
        })
    }

    fn is_journalled(&self, task: &HostTask) -> bool {
        let is_guarded = |read: &ShellParameters| read.creates.is_some() || read.unless.is_some() || read.only_if.is_some();
        parameters::<ShellParameters>(task).is_ok_and(|read| !is_guarded(&read))
    }

    fn retry_policy(&self, task: &HostTask) -> (u64, u64) {
        let parameters = parameters::<ShellParameters>(task).ok();
        let (retries, interval) = parameters.map_or((None, None), |read| (read.retries, read.interval));
        (retries.or(task.task.retries.map(u64::from)).unwrap_or(0).min(100), interval.unwrap_or(1).min(3600))
    }
}

impl PreparedCommand {
    fn is_guarded(&self) -> bool {
        self.creates.is_some() || self.unless.is_some() || self.only_if.is_some()
    }
}

/// Checks a command without guards by its journal entry.
fn check_journal(site: &Site, task: &HostTask) -> Result<CheckResult, TaskError> {
    let differs = |message: &str| CheckResult::Drifted { diff: String::new(), message: message.into() };
    let unknown = |how: &str| {
        let id = &task.task.id;
        let message = format!("{how}; check the host, then run `stemma-agent resolve-unknown {id} done|again`");
        Err(TaskError { effect: FailureEffect::Unknown, ..TaskError::new(message) })
    };
    let may_repeat = task.task.on_interrupt == OnInterrupt::Again;
    let step = match site.ledger.step(&task.task.id)? {
        None if !may_repeat && is_step_lost(site, task)? => {
            return unknown("its journal entry is lost, so it is unknown whether it ran");
        }
        step => step.filter(|step| step.content == task.content),
    };
    let Some(step) = step else { return Ok(differs("it has not run with this definition and these inputs")) };
    match step.state {
        StepState::Done => Ok(CheckResult::Converged),
        StepState::Failed => Ok(differs("it has not succeeded yet")),
        StepState::Begun if may_repeat => Ok(differs("it was begun and interrupted, and may run again")),
        StepState::Begun | StepState::Unknown => unknown("it was begun and nobody saw it end"),
    }
}

/// Returns whether a task without a journal entry once had one: the entry was damaged and set aside, or the progress
/// record says that the task ran with this content.
fn is_step_lost(site: &Site, task: &HostTask) -> Result<bool, HostError> {
    let id = &task.task.id;
    let ended = site.ledger.get(&PROGRESS)?.unwrap_or_default().tasks.remove(id);
    let has_run = ended.is_some_and(|ended| {
        let ran = matches!(ended.outcome, Outcome::Changed | Outcome::Unchanged | Outcome::Drifted | Outcome::Unknown);
        ran && ended.content == task.content
    });
    Ok(has_run || site.ledger.is_step_set_aside(id)?)
}

/// Checks a command by its guards. It is converged if `creates` exists, if `unless` succeeds, or if `only_if` fails.
async fn check_guards(site: &Site, prepared: &PreparedCommand) -> Result<CheckResult, TaskError> {
    if let Some(path) = &prepared.creates
        && exists(site, path)?
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

fn exists(site: &Site, path: &HostPath) -> Result<bool, TaskError> {
    Ok(site.host.parent_dir(path)?.map(|dir| dir.stat(path.name())).transpose()?.flatten().is_some())
}

/// Runs a guard and returns whether it succeeds. A guard that a signal or its timeout ended is an error, because it
/// gave no answer.
async fn run_guard(site: &Site, name: &str, command: &HostCommand) -> Result<bool, TaskError> {
    let finished = site.host.run(command).await?;
    match finished.end {
        ExitKind::Status(status) => Ok(status == 0),
        ExitKind::Signal(_) | ExitKind::TimedOut => {
            let message = format!("{name} {}", finished.end.sentence());
            Err(TaskError { output: finished.output, ..TaskError::new(message) })
        }
    }
}

/// Returns the error for a command whose end could not be written to the journal. Its outcome is `unknown`, because the
/// journal still says that it was begun, and a retry could run it twice.
fn unjournalled_error(finished: Result<CommandResult, HostError>, error: &HostError) -> TaskError {
    let (how, output) = match finished {
        Ok(finished) => (finished.end.sentence(), finished.output),
        Err(failed) => (failed.sentence(), String::new()),
    };
    let message = format!("the command {how}, which could not be recorded ({}); it is not run again", error.sentence());
    TaskError { effect: FailureEffect::Unknown, message, output }
}

/// Returns the output of a command that succeeded, or an error that says how it ended.
fn apply_result(finished: CommandResult) -> Result<ApplyResult, TaskError> {
    if finished.end.is_success() {
        return Ok(ApplyResult { output: finished.output, ..ApplyResult::default() });
    }
    let message = format!("the command {}", finished.end.sentence());
    Err(TaskError { output: finished.output, ..TaskError::new(message) })
}

/// Renders the parameters of a task into its command and guards. The guards run in the same directory, environment and
/// user as the command, with a timeout of their own.
fn prepare(site: &Site, task: &HostTask) -> Result<PreparedCommand, TaskError> {
    let parameters: ShellParameters = parameters(task)?;
    let texts = &TaskTemplates::new(site, task);
    let (field, seconds) = match (parameters.timeout, task.task.timeout_seconds) {
        (Some(seconds), _) => ("parameters.timeout", seconds),
        (None, Some(seconds)) => ("timeout_seconds", seconds),
        (None, None) => ("", DEFAULT_TIMEOUT_SECONDS),
    };
    // 0 is refused today, but may be stored from before.
    if seconds == 0 {
        let message = "is not a time in which a command could end: write seconds from 1 on, or remove it; nothing was run";
        return Err(TaskError::new(format!("{field}: {message}")));
    }
    let base = HostCommand {
        argv: Vec::new(),
        script: None,
        cwd: parameters.cwd.as_deref().map(|cwd| texts.directory("parameters.cwd", cwd)).transpose()?.flatten(),
        env: env(texts, &parameters.env)?,
        user: parameters.user.clone(),
        input: Vec::new(),
        timeout: Duration::from_secs(seconds),
    };
    let guard = |name: &str, guard: Option<&WordsOrText>| -> Result<Option<HostCommand>, TaskError> {
        guard
            .map(|guard| Ok(HostCommand { timeout: GUARD_TIMEOUT, ..guard_command(texts, name, guard, base.clone())? }))
            .transpose()
    };
    Ok(PreparedCommand {
        creates: path(texts, "creates", parameters.creates.as_deref())?,
        unless: guard("unless", parameters.unless.as_ref())?,
        only_if: guard("only_if", parameters.only_if.as_ref())?,
        command: command(texts, &parameters, base)?,
    })
}

/// Returns the command of a task, from `script`, `cmd` or `command`. `base` has everything but the command itself.
fn command(texts: &TaskTemplates<'_>, parameters: &ShellParameters, base: HostCommand) -> Result<HostCommand, TaskError> {
    if let Some(script) = &parameters.script {
        return shell_command(texts, "script", texts.script("parameters.script", script)?, base);
    }
    match &parameters.cmd {
        Some(cmd) => shell_command(texts, "cmd", cmd.clone(), base),
        None => Ok(HostCommand { argv: render_words(texts, "command", &parameters.command)?, ..base }),
    }
}

/// Returns the command of a guard: words run without a shell, and a text runs in one.
fn guard_command(
    texts: &TaskTemplates<'_>,
    name: &str,
    guard: &WordsOrText,
    base: HostCommand,
) -> Result<HostCommand, TaskError> {
    match guard {
        WordsOrText::Words(words) => Ok(HostCommand { argv: render_words(texts, name, words)?, ..base }),
        WordsOrText::Text(text) => shell_command(texts, name, texts.script(&format!("parameters.{name}"), text)?, base),
    }
}

/// Renders the words of a command and checks that the host can run them.
fn render_words(texts: &TaskTemplates<'_>, name: &str, words: &[String]) -> Result<Vec<String>, TaskError> {
    let rendered = texts.words(&format!("parameters.{name}"), words)?;
    check_words(&rendered).map_err(|why| invalid_parameter(name, &why))?;
    Ok(rendered)
}

/// Returns the command that runs a script in `/bin/sh`. A script that may contain a secret is passed on standard input,
/// because everyone on the host can read arguments.
fn shell_command(texts: &TaskTemplates<'_>, name: &str, script: String, base: HostCommand) -> Result<HostCommand, TaskError> {
    check_argument(&script).map_err(|why| invalid_parameter(name, &why))?;
    let argv = |text: String| vec!["/bin/sh".into(), "-c".into(), text];
    Ok(if texts.may_have_secrets() {
        HostCommand { argv: argv(SOURCE_STDIN.into()), script: Some(format!("{CLOSE_STDIN}{script}")), ..base }
    } else {
        HostCommand { argv: argv(script), ..base }
    })
}

fn invalid_parameter(name: &str, why: &str) -> TaskError {
    TaskError::new(format!("parameters.{name}: {why}"))
}

fn path(texts: &TaskTemplates<'_>, name: &str, text: Option<&str>) -> Result<Option<HostPath>, TaskError> {
    text.map(|text| texts.path(&format!("parameters.{name}"), text)).transpose()
}

/// Renders the values of the environment variables and checks each variable.
fn env(texts: &TaskTemplates<'_>, env: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, TaskError> {
    env.iter()
        .map(|(name, value)| {
            let value = texts.text(&format!("parameters.env.{name}"), value)?;
            check_variable(name, &value).map_err(|why| invalid_parameter("env", &why))?;
            Ok((name.clone(), value))
        })
        .collect()
}

#[cfg(test)]
mod tests;
