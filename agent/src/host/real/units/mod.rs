//! Runs commands as transient units of systemd, so that the limits of the agent's unit apply to the agent alone, and a
//! command survives the agent. `docs/agent.md` describes the units.
//!
//! The name of a unit is known before the unit starts: the agent logs it, and records it for a task. So a later agent
//! finds each unit that an agent left ([`Units::find_left`]), also after a SIGKILL. It waits for the units of tasks, and
//! stops the others, which only check the host.

mod name;
mod output;
mod system;
mod systemd;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use log::{debug, info, warn};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

pub use self::name::{COMMAND_UNIT_PATTERNS, live_owner};
use self::name::{ProcessId, owned_units, owner, unit_name};
use self::output::CommandOutput;
pub(super) use self::systemd::has_bus;
use self::systemd::{Systemd, UnitChanges, UnitEnd, UnitRequest, is_refusal, start_error};
use super::directory_service::DirectoryService;
use super::exec_error::{exec_error, find_exec_error, is_executable};
use super::prepare::{CommandSetup, memory_file, open_working_dir, prepare};
use super::spawn::TERMINATE_GRACE;
use super::{AGENT_UNIT, RealHost};
use crate::host::command::quote_environment_value;
use crate::host::{CommandPurpose, CommandResult, ExitKind, HostCommand, HostError, LeftCommand};

/// Time after the limit of a command at which systemd ends its unit, if no agent did.
const TIME_LIMIT_MARGIN: Duration = Duration::from_mins(1);

/// The directory in which systemd has a file for each transient unit that it has not forgotten.
const TRANSIENT_UNITS: &str = "/run/systemd/transient";

/// Interval at which a lost connection to systemd is established again.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which systemd is asked for the state of a running unit.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Interval at which the kept units without processes are removed, if commands run.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// The exit status by which systemd reports that it cannot execute a program (`EXIT_EXEC`).
const EXIT_EXEC: i32 = 203;

/// The variables that systemd sets for each process of a unit.
const SYSTEMD_VARIABLES: [&str; 4] = ["INVOCATION_ID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "SYSTEMD_EXEC_PID"];

/// The description of the unit of a task begins with this text. The id of the task follows.
const TASK_DESCRIPTION: &str = "Stemma: command of task ";

/// The runner of commands as units.
pub(super) struct Units {
    owner: ProcessId,
    /// The number of the next unit.
    next_number: Cell<u64>,
    /// The connection over the bus, from the first command on.
    systemd: RefCell<Option<Systemd>>,
    /// The units that have ended, until they are released.
    ended: RefCell<BTreeMap<String, EndedUnit>>,
    /// The units that have ended and still hold programs of their commands.
    kept: RefCell<Vec<String>>,
    /// The time at which the kept units without processes are removed.
    sweep_at: Cell<Instant>,
    /// The number of commands that have reached their time limit, and that this process ends.
    timing_out: Cell<usize>,
    /// The units of tasks, from before their start to the record of their end.
    running_tasks: RefCell<BTreeSet<String>>,
}

/// A unit that has ended, and that systemd has not forgotten yet.
#[derive(Clone, Copy, Debug)]
struct EndedUnit {
    has_processes: bool,
    /// True if its failure would keep it.
    may_have_failed: bool,
}

/// A unit in the set of the units of tasks.
struct RunningUnit<'a>(&'a RefCell<BTreeSet<String>>, &'a str);

impl<'a> RunningUnit<'a> {
    fn new(units: &'a RefCell<BTreeSet<String>>, unit: &'a str) -> Self {
        units.borrow_mut().insert(unit.to_owned());
        Self(units, unit)
    }
}

impl Drop for RunningUnit<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().remove(self.1);
    }
}

/// What the agent does with a unit that an earlier agent left.
#[derive(Debug, PartialEq, Eq)]
enum LeftAction<'a> {
    /// Waits for the end of the command of this task.
    Follow(&'a str),
    /// Keeps the unit while a program of its command runs.
    Keep,
    /// Kills the processes of the unit, and removes it.
    Discard,
}

/// Returns what to do with a left unit. `task` is the task of which it ran the command, and `is_recorded` is true if the
/// end of that command is not recorded.
fn left_action(task: Option<&str>, is_recorded: bool, end: Option<UnitEnd>) -> LeftAction<'_> {
    match task {
        Some(task) if is_recorded || end.is_none() => LeftAction::Follow(task),
        // A successful command may have left a program, whatever it ran for.
        _ if end == Some(UnitEnd::Exited(0)) => LeftAction::Keep,
        _ => LeftAction::Discard,
    }
}

impl Units {
    pub(super) fn new() -> Self {
        Self {
            owner: ProcessId::current(),
            next_number: Cell::new(1),
            systemd: RefCell::new(None),
            ended: RefCell::default(),
            kept: RefCell::default(),
            sweep_at: Cell::new(Instant::now()),
            timing_out: Cell::new(0),
            running_tasks: RefCell::default(),
        }
    }

    /// Returns the name of a new unit, or `None` for a command that is not a unit, also if the machine has no system bus.
    pub(super) fn new_name(&self, purpose: &CommandPurpose) -> Option<String> {
        if !has_bus() {
            return None;
        }
        unit_name(purpose, self.owner, self.next_number.replace(self.next_number.get() + 1))
    }

    /// Runs a command as a unit with this name. Calls `record` before the start, and does not start the unit if that fails.
    /// Returns how the command ended and the end of its output. The unit remains until it is released. It continues if the
    /// returned future is dropped.
    pub(super) async fn run(
        &self,
        root: &Path,
        root_fd: BorrowedFd<'_>,
        directory: &DirectoryService,
        command: &HostCommand,
        unit: &str,
        record: &dyn Fn() -> Result<(), HostError>,
    ) -> Result<CommandResult, HostError> {
        let program = command.argv.first().map_or("", String::as_str);
        let io_error = |operation| HostError::io(operation, program);
        self.sweep_kept().await;
        let prepared = prepare(root, directory, command)?;
        let working_dir = command.cwd.as_ref().map_or("/", |cwd| cwd.as_str());
        if let Some(cwd) = &command.cwd {
            // The error names the part of the path that is missing. The error of systemd would be only a status.
            open_working_dir(root_fd, cwd)?;
        }
        let executable = find_program(&prepared, working_dir).map_err(|error| exec_error(program, error))?;
        let environment = environment_file(&prepared.env)?;
        let stdin = prepared.input.map_or_else(|| File::open("/dev/null"), Ok).map_err(io_error("make the input of"))?;
        let description = describe(&command.purpose);
        let is_task = matches!(command.purpose, CommandPurpose::Task(_));
        let unit_error = |error: zbus::Error| HostError::io("start a unit for", program)(io::Error::other(error));
        let systemd = self.connect().await.map_err(unit_error)?;
        let mut changes = systemd.watch(unit).await.map_err(unit_error)?;
        let output_writer = output::create(unit).map_err(io_error("make a pipe for the output of"))?;
        let mut output = CommandOutput::open(unit).map_err(io_error("open the output of"))?;
        let request = UnitRequest {
            name: unit,
            description: &description,
            program: &executable,
            argv: &prepared.argv,
            environment_file: &format!("/proc/{}/fd/{}", std::process::id(), environment.as_raw_fd()),
            unset: &SYSTEMD_VARIABLES.into_iter().filter(|&name| !command.env.contains_key(name)).collect::<Vec<_>>(),
            working_dir,
            stdin: stdin.as_fd(),
            output: output_writer.as_fd(),
            time_limit: command.timeout.saturating_add(TIME_LIMIT_MARGIN),
            is_quiet: !matches!(command.purpose, CommandPurpose::Task(_) | CommandPurpose::Hook(_)),
        };
        if let Err(error) = record() {
            output::remove(unit);
            return Err(error);
        }
        log_start(&command.purpose, unit);
        let _running = is_task.then(|| RunningUnit::new(&self.running_tasks, unit));
        if let Err(error) = systemd.start(&request).await {
            if is_refusal(&error) {
                output::remove(unit);
                return Err(HostError::io("start a unit for", program)(start_error(error)));
            }
            // The unit may run, or may start later. So its end is awaited, and the environment remains open.
            warn!(unit, error:% = error; "it is not known whether systemd has started a unit; its end is awaited");
        }
        drop(stdin);
        let end = match timeout(command.timeout, output.read_until(self.await_end(unit, &mut changes))).await {
            Ok(end) => end,
            Err(_) => output.read_until(self.time_out(unit, &mut changes)).await,
        };
        drop(environment);
        // A program that waits in a write sees this when the agent reads the rest.
        output::abandon(&output_writer);
        let result = self.finish(unit, end, Some(output)).await;
        if end == UnitEnd::Exited(EXIT_EXEC)
            && let Some(error) = find_exec_error(&executable)
        {
            return Err(exec_error(program, error));
        }
        result
    }

    /// Finds the units of commands that an earlier agent left. Returns those of tasks, and stops the others. `started` has
    /// the unit whose end is not recorded, by task.
    ///
    /// A unit that is not in `started` and has ended holds only a program that its command started.
    ///
    /// # Errors
    /// If systemd cannot be asked. Also if the machine has no system bus while systemd has a unit that is in `started`.
    pub(super) async fn find_left(self: &Rc<Self>, started: &BTreeMap<String, String>) -> Result<Vec<LeftCommand>, HostError> {
        if !has_bus() {
            return match started.values().find(|unit| has_transient_unit(unit)) {
                Some(unit) => Err(HostError::io("follow", unit)(io::Error::other("there is no system bus: start dbus.socket"))),
                None => Ok(Vec::new()),
            };
        }
        let bus_error = |error: zbus::Error| HostError::io("list the units of", "systemd")(io::Error::other(error));
        let systemd = self.connect().await.map_err(bus_error)?;
        let mut left = Vec::new();
        for (unit, description) in systemd.list(&COMMAND_UNIT_PATTERNS).await.map_err(bus_error)? {
            if owner(&unit).is_none_or(ProcessId::is_alive) {
                continue;
            }
            let task = description.strip_prefix(TASK_DESCRIPTION);
            let is_recorded = task.is_some_and(|task| started.get(task) == Some(&unit));
            // The changes are collected before the state is read, so that no change is lost in between.
            let mut changes = systemd.watch(&unit).await.map_err(bus_error)?;
            let end = systemd.end(&unit).await.map_err(bus_error)?;
            match left_action(task, is_recorded, end) {
                LeftAction::Follow(task) => left.push((task.to_owned(), is_recorded, unit, changes, end)),
                LeftAction::Keep => self.kept.borrow_mut().push(unit),
                LeftAction::Discard => {
                    if end.is_none() {
                        warn!(unit = unit.as_str(); "the agent that ran this unit has ended: it is stopped");
                        self.kill(&unit, Signal::KILL).await;
                        self.await_end_briefly(&unit, &mut changes).await;
                    }
                    self.discard(&unit, EndedUnit { has_processes: true, may_have_failed: true }).await;
                }
            }
        }
        self.sweep_at.set(Instant::now());
        self.sweep_kept().await;
        output::sweep(|unit| live_owner(unit).is_none() && left.iter().all(|command| command.2 != unit));
        let commands = left.into_iter().map(|(task, is_recorded, unit, changes, end)| {
            if end.is_none() {
                info!(task = task.as_str(), unit = unit.as_str(); "an earlier agent started the command of this task: waiting for its end");
            }
            let result = Rc::clone(self).follow(unit.clone(), changes, end);
            let units = Rc::clone(self);
            let release = async move { units.release(&unit).await };
            LeftCommand { task, is_recorded, result: Box::pin(result), release: Box::pin(release) }
        });
        Ok(commands.collect())
    }

    /// Waits for the end of the unit of a task that an earlier agent left, and returns its result. `end` is its end if it
    /// had ended when it was found, and `changes` are the changes since then.
    async fn follow(
        self: Rc<Self>,
        unit: String,
        mut changes: UnitChanges,
        end: Option<UnitEnd>,
    ) -> Result<CommandResult, HostError> {
        let _running = RunningUnit::new(&self.running_tasks, &unit);
        let mut output = CommandOutput::open(&unit).ok();
        let end = match (end, &mut output) {
            (Some(end), _) => end,
            (None, Some(output)) => output.read_until(self.await_end(&unit, &mut changes)).await,
            (None, None) => self.await_end(&unit, &mut changes).await,
        };
        self.finish(&unit, end, output).await
    }

    /// Returns whether this process may end while commands run, because the next agent waits for those of tasks, and stops the
    /// others. Without `in_any_stop`, it may only do so if systemd restarts the agent and a command of a task runs. Returns
    /// `false` while one of them starts, because its start needs this process, or has ended, because its end is about to be
    /// recorded.
    pub(super) async fn may_leave_commands(&self, in_any_stop: bool) -> bool {
        let units = self.running_tasks.borrow().clone();
        if units.is_empty() {
            return in_any_stop && has_bus();
        }
        // Only this process knows that the command has reached its time limit, and may end it with status 0.
        if self.timing_out.get() > 0 && !in_any_stop {
            return false;
        }
        let may_leave = async {
            let systemd = self.connect().await?;
            let mut may_leave = in_any_stop || systemd.is_restarting(AGENT_UNIT).await?;
            for unit in &units {
                may_leave = may_leave && systemd.is_running(unit).await?;
            }
            zbus::Result::Ok(may_leave)
        };
        // If systemd cannot be asked, a stop does not wait until the agent is killed.
        let may_leave = timeout(TERMINATE_GRACE, may_leave).await.ok().and_then(Result::ok).unwrap_or(in_any_stop);
        may_leave && *self.running_tasks.borrow() == units
    }

    /// Returns a connection to systemd, and keeps it for further calls.
    async fn connect(&self) -> zbus::Result<Systemd> {
        if let Some(systemd) = self.systemd.borrow().as_ref().filter(|systemd| !systemd.is_closed()) {
            return Ok(systemd.clone());
        }
        let systemd = Systemd::connect().await?;
        if self.systemd.borrow().is_none() {
            // The names of guards are known in advance by this line: each of them is logged at level `debug` only.
            info!(unit = owned_units(self.owner).as_str(); "commands run in units with these names");
        }
        *self.systemd.borrow_mut() = Some(systemd.clone());
        Ok(systemd)
    }

    /// Waits for the end of a unit. Asks systemd for its state from time to time, because signals are lost if the bus is
    /// restarted, or if systemd executes itself again and so gets another name on the bus.
    async fn await_end(&self, unit: &str, changes: &mut UnitChanges) -> UnitEnd {
        loop {
            match timeout(POLL_INTERVAL, changes.end()).await {
                Ok(Some(end)) => return end,
                Ok(None) => sleep(RECONNECT_INTERVAL).await,
                Err(_) => {}
            }
            match self.refresh(unit).await {
                Ok((_, Some(end))) => return end,
                Ok((new_changes, None)) => *changes = new_changes,
                Err(error) => warn!(unit, error:% = error; "systemd cannot be asked for the end of a command; it is asked again"),
            }
        }
    }

    /// Returns the changes of a unit from this moment on, and its end if it has ended.
    async fn refresh(&self, unit: &str) -> zbus::Result<(UnitChanges, Option<UnitEnd>)> {
        let mut systemd = self.connect().await?;
        if !systemd.is_current().await {
            *self.systemd.borrow_mut() = None;
            systemd = self.connect().await?;
        }
        // The changes are collected before the state is read, so that no change is lost in between.
        let changes = systemd.watch(unit).await?;
        Ok((changes, systemd.end(unit).await?))
    }

    /// Ends a unit that has reached its time limit: sends SIGTERM to all its processes, and SIGKILL each time the unit has not
    /// ended after [`TERMINATE_GRACE`]. Waits until the unit has ended, because nothing else of its task may run before. If
    /// the unit ended before a signal, returns that end: its message from systemd was lost.
    async fn time_out(&self, unit: &str, changes: &mut UnitChanges) -> UnitEnd {
        self.timing_out.set(self.timing_out.get() + 1);
        let (mut signal, mut is_signalled) = (Signal::TERM, false);
        // Signals of an old connection may have been lost.
        let mut end = self.refresh(unit).await.ok().and_then(|(new_changes, end)| {
            *changes = new_changes;
            end
        });
        while end.is_none() {
            // SIGKILL follows only after SIGTERM was sent.
            if self.kill(unit, signal).await {
                (signal, is_signalled) = (Signal::KILL, true);
            }
            end = self.await_end_briefly(unit, changes).await;
        }
        self.timing_out.set(self.timing_out.get() - 1);
        match end {
            Some(end) if !is_signalled => end,
            _ => UnitEnd::TimedOut,
        }
    }

    /// Waits for the end of a unit for [`TERMINATE_GRACE`]. Returns `None` if the unit has not ended, or systemd cannot be
    /// asked.
    async fn await_end_briefly(&self, unit: &str, changes: &mut UnitChanges) -> Option<UnitEnd> {
        if let Ok(end) = timeout(TERMINATE_GRACE, self.await_end(unit, changes)).await {
            return Some(end);
        }
        let (new_changes, end) = self.refresh(unit).await.ok()?;
        *changes = new_changes;
        end
    }

    /// Sends a signal to all processes of a unit. Returns whether systemd has done so.
    async fn kill(&self, unit: &str, signal: Signal) -> bool {
        match self.connect().await {
            Ok(systemd) => systemd.kill(unit, signal.as_raw()).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Returns the result of a unit that has ended, with the rest of its output. The unit remains until it is released.
    async fn finish(&self, unit: &str, end: UnitEnd, output: Option<CommandOutput>) -> Result<CommandResult, HostError> {
        // If it is not known whether the unit has processes, it is treated as if it has.
        let has_processes = match self.connect().await {
            Ok(systemd) => systemd.has_processes(unit).await.unwrap_or(true),
            Err(_) => true,
        };
        let output = match output {
            Some(output) => output.into_text(has_processes).await,
            None => String::new(),
        };
        output::remove(unit);
        let kind = match end {
            UnitEnd::Exited(status) => Ok(ExitKind::Status(status)),
            UnitEnd::Killed(signal) => Ok(ExitKind::Signal(signal)),
            UnitEnd::TimedOut => Ok(ExitKind::TimedOut),
            UnitEnd::NotStarted => {
                let reason = format!("systemd could not start it: `journalctl -u {unit}` shows the reason");
                Err(HostError::io("start the unit", unit)(io::Error::other(reason)))
            }
            UnitEnd::Unknown => return Err(HostError::CommandLost { unit: unit.to_owned() }),
        };
        if end == UnitEnd::Exited(0) && has_processes {
            info!(unit; "a program that the command started continues in its unit");
            self.kept.borrow_mut().push(unit.to_owned());
        } else {
            // A unit whose processes are killed may fail afterwards.
            let may_have_failed = has_processes || end.may_fail_unit();
            self.ended.borrow_mut().insert(unit.to_owned(), EndedUnit { has_processes, may_have_failed });
        }
        Ok(CommandResult { end: kind?, output })
    }

    /// Removes a unit that has ended, and kills its processes, if it has any. Does nothing if the unit has not ended, or holds
    /// a program that its successful command started.
    pub(super) async fn release(&self, unit: &str) {
        let ended = self.ended.borrow_mut().remove(unit);
        if let Some(ended) = ended {
            self.discard(unit, ended).await;
        }
    }

    /// Removes a unit that has ended, and kills its processes, if it has any. If it may have failed, also forgets its
    /// failure, which would keep it. A unit that ends later may remain as failed.
    async fn discard(&self, unit: &str, EndedUnit { has_processes, may_have_failed }: EndedUnit) {
        let discarded = async {
            let systemd = self.connect().await?;
            if has_processes {
                let _ = systemd.kill(unit, Signal::KILL.as_raw()).await;
            }
            systemd.discard(unit, may_have_failed).await
        };
        if let Err(error) = discarded.await {
            debug!(unit, error:% = error; "the unit cannot be discarded");
        }
    }

    /// Removes the kept units whose programs have ended, at most once in [`SWEEP_INTERVAL`].
    async fn sweep_kept(&self) {
        if Instant::now() < self.sweep_at.get() || self.kept.borrow().is_empty() {
            return;
        }
        self.sweep_at.set(Instant::now() + SWEEP_INTERVAL);
        let kept = self.kept.take();
        let Ok(systemd) = self.connect().await else {
            self.kept.borrow_mut().extend(kept);
            return;
        };
        for unit in kept {
            if systemd.has_processes(&unit).await.unwrap_or(true) {
                self.kept.borrow_mut().push(unit);
            } else {
                self.discard(&unit, EndedUnit { has_processes: false, may_have_failed: true }).await;
            }
        }
    }
}

/// Returns whether systemd has a transient unit. This needs no bus.
pub(super) fn has_transient_unit(unit: &str) -> bool {
    Path::new(TRANSIENT_UNITS).join(unit).exists()
}

/// Logs the name of a unit before it starts.
fn log_start(purpose: &CommandPurpose, unit: &str) {
    match purpose {
        CommandPurpose::Task(task) => info!(task = task.as_str(), unit; "the command of a task starts"),
        CommandPurpose::Hook(name) => info!(name = name.as_str(), unit; "a hook starts"),
        CommandPurpose::Guard(task) | CommandPurpose::Validation(task) => {
            debug!(task = task.as_str(), unit; "a check of a task starts");
        }
        CommandPurpose::Agent => {}
    }
}

/// Returns the description of a unit.
fn describe(purpose: &CommandPurpose) -> String {
    match purpose {
        CommandPurpose::Task(task) => format!("{TASK_DESCRIPTION}{task}"),
        CommandPurpose::Guard(task) => format!("Stemma: guard of task {task}"),
        CommandPurpose::Validation(task) => format!("Stemma: validation of task {task}"),
        CommandPurpose::Hook(name) => format!("Stemma: hook {name}"),
        CommandPurpose::Agent => "Stemma: command of the agent".to_owned(),
    }
}

/// Returns the absolute path of a command's program. A name without a slash is searched in the command's `PATH`, and any
/// other relative path begins in the working directory.
fn find_program(setup: &CommandSetup, working_dir: &str) -> io::Result<String> {
    let program = setup.argv.first().map_or("", String::as_str);
    if program.contains('/') {
        return Ok(Path::new(working_dir).join(program).display().to_string());
    }
    let directories = setup.env.get("PATH").map_or("", String::as_str).split(':').filter(|directory| directory.starts_with('/'));
    let is_program = |path: &PathBuf| !program.is_empty() && path.metadata().is_ok_and(|metadata| is_executable(&metadata));
    let found = directories.map(|directory| Path::new(directory).join(program)).find(is_program);
    found.map(|path| path.display().to_string()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// Returns a file in memory with the environment, in the format of `EnvironmentFile=`. The environment is not a property
/// of the unit, because every user of the host can read properties.
fn environment_file(env: &BTreeMap<String, String>) -> Result<File, HostError> {
    let mut text = String::new();
    for (name, value) in env {
        if !is_variable_name(name) {
            let error =
                io::Error::new(io::ErrorKind::InvalidInput, "systemd passes only names of letters, digits and `_`: rename it");
            return Err(HostError::io("pass the environment variable", name)(error));
        }
        text.push_str(&format!("{name}=\"{}\"\n", quote_environment_value(value)));
    }
    memory_file(text.as_bytes()).map_err(HostError::io("make", "the environment of a command"))
}

/// Returns whether systemd passes an environment variable with this name.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl RealHost {
    /// Returns whether this process may end while commands run, because the next agent waits for those of tasks, and stops the
    /// others. Without `in_any_stop`, it may only do so if systemd restarts the agent and a command of a task runs. Returns
    /// `false` if commands are child processes.
    pub async fn may_leave_commands(&self, in_any_stop: bool) -> bool {
        match &self.units {
            Some(units) => units.may_leave_commands(in_any_stop).await,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
