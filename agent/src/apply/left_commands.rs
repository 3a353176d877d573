//! The commands of tasks that an earlier agent left running when it was killed or restarted. They run in units of their
//! own, so this agent waits for their end and records it, before anything else of their tasks runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::FutureExt as _;
use futures_util::future::{Shared, join_all};
use log::{info, warn};
use tokio::sync::Mutex;

use super::ledger::{Ledger, STARTED_UNITS, Step, StepState};
use crate::host::{CommandResult, Host, HostError, LeftCommand, Pending};

/// The commands that an earlier agent left, by task.
pub struct LeftCommands {
    /// The lock is held while the host is asked, because two searches would divide the output of a command between them.
    search: Mutex<SearchState>,
    commands: RefCell<BTreeMap<String, Vec<Shared<Pending<'static, LeftEnd>>>>>,
}

/// Whether the host must still be asked for the commands. No command of a task may be started before that.
#[derive(Clone, Copy)]
enum SearchState {
    /// The commands are known.
    Done,
    /// This agent has applied nothing yet. So all refreshes that are due were due before it started.
    First,
    /// The first search failed, and the agent may have requested refreshes since.
    Repeated,
}

/// The end of a command that an earlier agent left. `None` if it is not known, or the command was not started.
type LeftEnd = Option<LeftResult>;

/// The result of a command that an earlier agent left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftResult {
    /// True if the command succeeded.
    pub is_success: bool,
    /// One sentence about the end.
    pub message: String,
    /// The end of the command's output.
    pub output: String,
}

impl Default for LeftCommands {
    /// Returns the commands of a process that does not apply tasks: none.
    fn default() -> Self {
        Self { search: Mutex::new(SearchState::Done), commands: RefCell::default() }
    }
}

impl LeftCommands {
    /// Lets the next [`Self::find`] ask the host for the commands. The caller must be the only process that applies
    /// tasks.
    pub async fn search(&self) {
        *self.search.lock().await = SearchState::First;
    }

    /// Asks the host for the commands, if this must still be done, and begins to wait for their ends. Removes from the
    /// record of started units those that systemd no longer has. The end of such a command is not known.
    ///
    /// # Errors
    /// [`HostError`]. The next call asks again.
    pub async fn find(&self, host: &dyn Host, ledger: &Rc<Ledger>) -> Result<(), HostError> {
        let mut search = self.search.lock().await;
        let is_first_search = match *search {
            SearchState::Done => return Ok(()),
            SearchState::First => true,
            SearchState::Repeated => false,
        };
        *search = SearchState::Repeated;
        let mut started = ledger.get(&STARTED_UNITS)?.unwrap_or_default();
        let left = host.find_left_commands(started.clone()).await?;
        // A command that was started for a refresh is that refresh. Otherwise it would run again after its end. In a later
        // search, the refresh may have been requested while the command ran.
        if is_first_search {
            let recorded = left.iter().filter(|command| command.is_recorded).map(|command| command.task.clone());
            ledger.clear_refresh(&recorded.collect::<Vec<_>>())?;
        }
        *search = SearchState::Done;
        started.retain(|task, _| left.iter().any(|command| command.is_recorded && command.task == *task));
        let mut commands = self.commands.borrow_mut();
        for command in left {
            let task = command.task.clone();
            let end: Pending<'static, LeftEnd> = Box::pin(record_end(ledger.clone(), command));
            commands.entry(task).or_default().push(end.shared());
        }
        if ledger.get(&STARTED_UNITS)?.is_some_and(|recorded| recorded != started) {
            ledger.put(&STARTED_UNITS, &started)?;
        }
        Ok(())
    }

    /// Returns a future that waits for the ends of all commands, so that they are recorded even if no task is checked.
    /// Returns `None` if there is no command.
    pub fn all_ends(&self) -> Option<Pending<'static, ()>> {
        let ends: Vec<_> = self.commands.borrow().values().flatten().cloned().collect();
        if ends.is_empty() { None } else { Some(Box::pin(async { drop(join_all(ends).await) })) }
    }

    /// Returns the tasks with a command whose end no check of the task has waited for yet.
    pub fn tasks(&self) -> Vec<String> {
        self.commands.borrow().keys().cloned().collect()
    }

    /// Waits for the ends of the commands of a task. Returns the first result, or rather the first failure. Returns each
    /// result only once.
    pub async fn await_ends(&self, task: &str) -> Option<LeftResult> {
        let ends = self.commands.borrow().get(task).cloned()?;
        let result = join_all(ends).await.into_iter().flatten().min_by_key(|result| result.is_success);
        self.commands.borrow_mut().remove(task);
        result
    }
}

/// Waits for the end of a command, and records it in the journal, as the agent that started it would have done.
async fn record_end(ledger: Rc<Ledger>, command: LeftCommand) -> LeftEnd {
    let LeftCommand { task, is_recorded, result, release } = command;
    // Other processes on this host see that the task runs.
    let _guard = ledger.mark_applying(&task);
    let result = result.await;
    if is_recorded && let Err(error) = record_result(&ledger, &task, &result) {
        warn!(task = task.as_str(), error = error.sentence().as_str(); "the end of a command could not be recorded");
    }
    release.await;
    match result {
        Ok(result) => {
            let is_success = result.end.is_success();
            if is_success {
                info!(task = task.as_str(); "the command that an earlier agent started has succeeded");
            }
            let message = format!("the command that an earlier agent started {}", result.end.sentence());
            Some(LeftResult { is_success, message, output: result.output })
        }
        Err(error) => {
            warn!(task = task.as_str(), error = error.sentence().as_str(); "the command that an earlier agent started has no result");
            None
        }
    }
}

/// Records the end of a command in the journal entry of its task. A command that systemd did not start has failed, and may
/// run again. The entry of a command whose end is not known remains `Begun`. A command with guards has no entry.
fn record_result(ledger: &Ledger, task: &str, result: &Result<CommandResult, HostError>) -> Result<(), HostError> {
    let state = match result {
        Ok(result) if result.end.is_success() => Some(StepState::Done),
        Err(HostError::CommandLost { .. }) => None,
        Ok(_) | Err(_) => Some(StepState::Failed),
    };
    if let Some(state) = state
        && let Some(step) = ledger.step(task)?.filter(|step| step.state == StepState::Begun)
    {
        ledger.set_step(&Step { state, ..step })?;
    }
    ledger.set_started_unit(task, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ExitKind;
    use crate::host::memory::MemoryHost;

    fn ledger(host: &MemoryHost) -> Rc<Ledger> {
        Rc::new(Ledger::open(Rc::new(host.clone())).unwrap())
    }

    /// A task with `subscribes` may restart the agent, so the refresh must not be due again after its command. If the
    /// first search fails, the agent may request the refresh before the next search, and it is due after the command.
    #[tokio::test]
    async fn left_command_clears_refresh_of_first_search() {
        for fails_first in [false, true] {
            let host = MemoryHost::new();
            let (ledger, left) = (ledger(&host), LeftCommands::default());
            ledger.request_refresh(&["t".to_owned(), "other".to_owned()]).unwrap();
            left.search().await;
            if fails_first {
                host.fail_search();
                left.find(&host, &ledger).await.unwrap_err();
            }
            host.leave_command("t", ExitKind::Status(0));
            left.find(&host, &ledger).await.unwrap();
            assert_eq!(ledger.should_refresh("t").unwrap(), fails_first);
            assert!(ledger.should_refresh("other").unwrap());
        }
    }

    /// The task is no longer in the profile, so nothing checks it.
    #[tokio::test]
    async fn all_ends_records_command_without_check() {
        let host = MemoryHost::new();
        let (ledger, left) = (ledger(&host), LeftCommands::default());
        ledger.set_step(&Step { task: "t".into(), content: [1; 32], state: StepState::Begun }).unwrap();
        ledger.set_started_unit("t", Some("unit")).unwrap();
        ledger.set_started_unit("gone", Some("other")).unwrap();
        host.leave_command("t", ExitKind::Status(0));
        left.find(&host, &ledger).await.unwrap();
        assert!(left.all_ends().is_none(), "a process that applies no tasks finds no command");
        left.search().await;
        left.find(&host, &ledger).await.unwrap();
        left.all_ends().unwrap().await;
        assert_eq!(ledger.step("t").unwrap().unwrap().state, StepState::Done);
        assert_eq!(ledger.get(&STARTED_UNITS).unwrap(), Some(BTreeMap::new()));
    }

    /// The agent was killed while systemd started the unit. The command did not run, so it is not `unknown`.
    #[tokio::test]
    async fn command_without_start_is_recorded_as_failed() {
        let host = MemoryHost::new();
        let (ledger, left) = (ledger(&host), LeftCommands::default());
        ledger.set_step(&Step { task: "t".into(), content: [1; 32], state: StepState::Begun }).unwrap();
        host.leave_unstarted_command("t");
        left.search().await;
        left.find(&host, &ledger).await.unwrap();
        assert_eq!(left.await_ends("t").await, None);
        assert_eq!(ledger.step("t").unwrap().unwrap().state, StepState::Failed);
    }

    #[tokio::test]
    async fn await_ends_returns_failure_once() {
        let host = MemoryHost::new();
        let (ledger, left) = (ledger(&host), LeftCommands::default());
        host.leave_command("t", ExitKind::Status(0));
        host.leave_command("t", ExitKind::Status(3));
        left.search().await;
        left.find(&host, &ledger).await.unwrap();
        let failure = left.await_ends("t").await.unwrap();
        assert!(!failure.is_success);
        assert_eq!(failure.message, "the command that an earlier agent started ended with status 3");
        assert_eq!(left.await_ends("t").await, None);
    }
}
