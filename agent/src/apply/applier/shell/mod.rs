//! `shell`: a command run without a shell, or a shell text.
//!
//! With a guard (`creates`, `unless`, `only_if`) the host itself says whether there is something to do. Without
//! one only the journal can: it is written before the command is begun and after it has ended, so it runs once
//! for each content of its own definition and inputs, and a run that a crash cut off is `unknown`, never repeated
//! by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use stemma_core::task::{OnInterrupt, ShellParameters, WordsOrText, check_argument, check_variable, check_words};
use stemma_wire::message::observed::Outcome;

use super::{Applier, parameters};
use crate::apply::ledger::{PROGRESS, Step, StepState};
use crate::apply::rendering::Texts;
use crate::apply::task::{Applied, Check, HostTask, Left, Site, TaskError};
use crate::host::{Command, End, Finished, HostError, HostPath, Pending};

/// How long a command may take where nobody says: as Fuel's.
const TIMEOUT_SECONDS: u64 = 300;

/// How long a guard may take.
const GUARD: Duration = Duration::from_mins(1);

/// What a shell runs whose text comes by its standard input. Everyone on a host can read the arguments of a process, and a
/// text with a secret in it is no argument.
const FROM_INPUT: &str = ". /proc/self/fd/0";

/// Stands before that text, on its first line, so that no command in it reads the text.
const LET_GO: &str = "exec </dev/null; ";

/// The type.
pub(super) struct Shell;

/// A command that is ready to run, and what guards it.
struct Prepared {
    command: Command,
    creates: Option<HostPath>,
    unless: Option<Command>,
    only_if: Option<Command>,
}

impl Applier for Shell {
    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<Check, TaskError>> {
        Box::pin(async move {
            let prepared = prepare(site, task)?;
            if !prepared.is_guarded() {
                return journalled(site, task);
            }
            check_guards(site, &prepared).await
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<Applied, TaskError>> {
        Box::pin(async move {
            let prepared = prepare(site, task)?;
            let note = |state| Step { task: task.task.id.clone(), content: task.content, state };
            if !prepared.is_guarded() {
                site.ledger.set_step(&note(StepState::Begun))?;
            }
            let finished = site.host.run(&prepared.command).await;
            if !prepared.is_guarded() {
                let done = finished.as_ref().is_ok_and(|finished| finished.end.is_success());
                let kept = site.ledger.set_step(&note(if done { StepState::Done } else { StepState::Failed }));
                if let Err(error) = kept {
                    return Err(unnoted(finished, &error));
                }
            }
            ended(finished?)
        })
    }

    fn is_journalled(&self, task: &HostTask) -> bool {
        let is_guarded =
            |read: &ShellParameters| read.creates.is_some() || read.unless.is_some() || read.only_if.is_some();
        parameters::<ShellParameters>(task).is_ok_and(|read| !is_guarded(&read))
    }

    fn retries(&self, task: &HostTask) -> (u64, u64) {
        let parameters = parameters::<ShellParameters>(task).ok();
        let (retries, interval) = parameters.map_or((None, None), |read| (read.retries, read.interval));
        (retries.or(task.task.retries.map(u64::from)).unwrap_or(0).min(100), interval.unwrap_or(1).min(3600))
    }
}

impl Prepared {
    fn is_guarded(&self) -> bool {
        self.creates.is_some() || self.unless.is_some() || self.only_if.is_some()
    }
}

/// What the journal says of a command without guards.
fn journalled(site: &Site, task: &HostTask) -> Result<Check, TaskError> {
    let differs = |message: &str| Check::Differs { diff: String::new(), message: message.into() };
    let unknown = |how: &str| {
        let id = &task.task.id;
        let message = format!("{how}; look, then run `stemma-agent resolve-unknown {id} done|again`");
        Err(TaskError { left: Left::Unknown, ..TaskError::new(message) })
    };
    let may_repeat = task.task.on_interrupt == OnInterrupt::Again;
    let step = match site.ledger.step(&task.task.id)? {
        None if !may_repeat && is_step_lost(site, task)? => {
            return unknown("its record in the journal is lost, and nobody knows whether it ran");
        }
        step => step.filter(|step| step.content == task.content),
    };
    let Some(step) = step else { return Ok(differs("it has not run with this definition and these inputs")) };
    match step.state {
        StepState::Done => Ok(Check::AsItShould),
        StepState::Failed => Ok(differs("it has not ended well yet")),
        StepState::Begun if may_repeat => Ok(differs("it was begun and interrupted, and may run again")),
        StepState::Begun | StepState::Unknown => unknown("it was begun and nobody saw it end"),
    }
}

/// Whether a task without a line in the journal had one: the line was set aside, or its end with this content was told.
fn is_step_lost(site: &Site, task: &HostTask) -> Result<bool, HostError> {
    let id = &task.task.id;
    let ended = site.ledger.get(&PROGRESS)?.unwrap_or_default().tasks.remove(id);
    let has_run = ended.is_some_and(|ended| {
        let ran = matches!(ended.outcome, Outcome::Changed | Outcome::Unchanged | Outcome::Drifted | Outcome::Unknown);
        ran && ended.content == task.content
    });
    Ok(has_run || site.ledger.is_step_set_aside(id)?)
}

async fn check_guards(site: &Site, prepared: &Prepared) -> Result<Check, TaskError> {
    if let Some(path) = &prepared.creates
        && exists(site, path)?
    {
        return Ok(Check::AsItShould);
    }
    if let Some(unless) = &prepared.unless
        && guard(site, "unless", unless).await?
    {
        return Ok(Check::AsItShould);
    }
    if let Some(only_if) = &prepared.only_if
        && !guard(site, "only_if", only_if).await?
    {
        return Ok(Check::AsItShould);
    }
    let message = format!("would run {}", prepared.command.argv.first().map_or("", String::as_str));
    Ok(Check::Differs { diff: String::new(), message })
}

fn exists(site: &Site, path: &HostPath) -> Result<bool, TaskError> {
    Ok(site.host.parent_of(path)?.map(|dir| dir.stat(path.name())).transpose()?.flatten().is_some())
}

/// Whether a guard says yes; one that did not end by itself says nothing.
async fn guard(site: &Site, name: &str, command: &Command) -> Result<bool, TaskError> {
    let finished = site.host.run(command).await?;
    match finished.end {
        End::Status(status) => Ok(status == 0),
        End::Signal(_) | End::TimedOut => {
            let message = format!("{name} {}", finished.end.sentence());
            Err(TaskError { output: finished.output, ..TaskError::new(message) })
        }
    }
}

/// It has run, and the journal still says that it was begun: trying again now could run it twice.
fn unnoted(finished: Result<Finished, HostError>, error: &HostError) -> TaskError {
    let (how, output) = match finished {
        Ok(finished) => (finished.end.sentence(), finished.output),
        Err(failed) => (failed.sentence(), String::new()),
    };
    let message =
        format!("the command {how}, which could not be written down ({}); it is not run again", error.sentence());
    TaskError { left: Left::Unknown, message, output }
}

fn ended(finished: Finished) -> Result<Applied, TaskError> {
    if finished.end.is_success() {
        return Ok(Applied { output: finished.output, ..Applied::default() });
    }
    let message = format!("the command {}", finished.end.sentence());
    Err(TaskError { output: finished.output, ..TaskError::new(message) })
}

fn prepare(site: &Site, task: &HostTask) -> Result<Prepared, TaskError> {
    let parameters: ShellParameters = parameters(task)?;
    let texts = &Texts::new(site, task);
    let (field, seconds) = match (parameters.timeout, task.task.timeout_seconds) {
        (Some(seconds), _) => ("parameters.timeout", seconds),
        (None, Some(seconds)) => ("timeout_seconds", seconds),
        (None, None) => ("", TIMEOUT_SECONDS),
    };
    // Only one that was stored before 0 was refused has it.
    if seconds == 0 {
        let message =
            "is no time in which a command could end: write seconds from 1 on, or take it out; nothing was run";
        return Err(TaskError::new(format!("{field}: {message}")));
    }
    let base = Command {
        argv: Vec::new(),
        script: None,
        cwd: parameters.cwd.as_deref().map(|cwd| texts.directory("parameters.cwd", cwd)).transpose()?.flatten(),
        env: env(texts, &parameters.env)?,
        user: parameters.user.clone(),
        input: Vec::new(),
        timeout: Duration::from_secs(seconds),
    };
    let guard = |name: &str, guard: Option<&WordsOrText>| -> Result<Option<Command>, TaskError> {
        guard
            .map(|guard| Ok(Command { timeout: GUARD, ..guard_command(texts, name, guard, base.clone())? }))
            .transpose()
    };
    Ok(Prepared {
        creates: path(texts, "creates", parameters.creates.as_deref())?,
        unless: guard("unless", parameters.unless.as_ref())?,
        only_if: guard("only_if", parameters.only_if.as_ref())?,
        command: command(texts, &parameters, base)?,
    })
}

fn command(texts: &Texts<'_>, parameters: &ShellParameters, base: Command) -> Result<Command, TaskError> {
    if let Some(script) = &parameters.script {
        return shell(texts, "script", texts.script("parameters.script", script)?, base);
    }
    match &parameters.cmd {
        Some(cmd) => shell(texts, "cmd", cmd.clone(), base),
        None => Ok(Command { argv: words(texts, "command", &parameters.command)?, ..base }),
    }
}

fn guard_command(texts: &Texts<'_>, name: &str, guard: &WordsOrText, base: Command) -> Result<Command, TaskError> {
    match guard {
        WordsOrText::Words(words) => Ok(Command { argv: self::words(texts, name, words)?, ..base }),
        WordsOrText::Text(text) => shell(texts, name, texts.script(&format!("parameters.{name}"), text)?, base),
    }
}

fn words(texts: &Texts<'_>, name: &str, words: &[String]) -> Result<Vec<String>, TaskError> {
    let rendered = texts.words(&format!("parameters.{name}"), words)?;
    check_words(&rendered).map_err(|why| refused(name, &why))?;
    Ok(rendered)
}

fn shell(texts: &Texts<'_>, name: &str, script: String, base: Command) -> Result<Command, TaskError> {
    check_argument(&script).map_err(|why| refused(name, &why))?;
    let argv = |text: String| vec!["/bin/sh".into(), "-c".into(), text];
    Ok(if texts.read_secrets() {
        Command { argv: argv(FROM_INPUT.into()), script: Some(format!("{LET_GO}{script}")), ..base }
    } else {
        Command { argv: argv(script), ..base }
    })
}

fn refused(name: &str, why: &str) -> TaskError {
    TaskError::new(format!("parameters.{name}: {why}"))
}

fn path(texts: &Texts<'_>, name: &str, text: Option<&str>) -> Result<Option<HostPath>, TaskError> {
    text.map(|text| texts.path(&format!("parameters.{name}"), text)).transpose()
}

fn env(texts: &Texts<'_>, env: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, TaskError> {
    env.iter()
        .map(|(name, value)| {
            let value = texts.text(&format!("parameters.env.{name}"), value)?;
            check_variable(name, &value).map_err(|why| refused("env", &why))?;
            Ok((name.clone(), value))
        })
        .collect()
}

#[cfg(test)]
mod tests;
