//! What a task about an account must change, and the loop that changes it: one tool at a time, and a new plan after each.
//! So an agent that is killed between two tools continues with the plan of the account that it finds.

use std::fmt::Display;
use std::time::{Duration, Instant};

use super::database::{GROUP_SHADOW, SHADOW};
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::{AccountKind, CommandPurpose, ExitKind, Host, HostCommand, HostError, HostPath};

/// Time limit of one tool.
const TOOL_TIMEOUT: Duration = Duration::from_mins(5);

/// Maximum time for which a tool is repeated while another program holds the lock of the account files.
const MAX_LOCK_WAIT: Duration = Duration::from_mins(1);

/// Time between two attempts of a tool that waits for the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of tools that one task runs. A task needs at most five.
const MAX_STEPS: usize = 12;

/// Maximum number of times that the same tool is run with the same arguments in a row. `usermod --unlock` removes one of
/// the two marks that `passwd --lock` of some systems sets.
const MAX_REPEATS: usize = 2;

/// The differences between an account and its task.
#[derive(Debug, Default)]
pub(super) struct AccountPlan {
    /// The attributes that differ. The account is as the task describes it if there are none.
    pub(super) differences: Vec<Difference>,
    /// The reason why the task cannot change the account. It begins a sentence without an end.
    pub(super) refusal: Option<String>,
    /// The reason why the account cannot be changed yet, which an earlier task may remove, such as a missing group.
    pub(super) missing: Option<String>,
    /// Sentences without an end about the state of the host, which people must know and no task changes.
    pub(super) remarks: Vec<String>,
    /// The next tool to run.
    pub(super) step: Option<ToolCall>,
}

/// An attribute of an account that differs from the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    attribute: &'static str,
    /// The value on the host. `None` if there is none.
    old: Option<String>,
    /// The value of the task. `None` if the task removes the attribute.
    new: Option<String>,
}

/// A tool to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolCall {
    /// The program and its arguments.
    pub(super) argv: Vec<String>,
    /// True for a program of the shadow tools, which gets the root directory as an option. The arguments of other
    /// programs contain the root directory.
    pub(super) is_shadow_tool: bool,
    /// A sentence without an end about an effect that people do not expect, or empty.
    pub(super) note: String,
}

impl ToolCall {
    /// Creates a step of a program of the shadow tools.
    pub(super) fn shadow<T: AsRef<str>>(words: &[T]) -> Self {
        let argv = words.iter().map(|word| word.as_ref().to_owned()).collect();
        Self { argv, is_shadow_tool: true, note: String::new() }
    }
}

impl AccountPlan {
    /// Adds a difference between two values, unless they are equal.
    pub(super) fn compare(&mut self, attribute: &'static str, old: &dyn Display, new: &dyn Display) {
        let (old, new) = (old.to_string(), new.to_string());
        if old != new {
            self.differences.push(Difference { attribute, old: Some(old), new: Some(new) });
        }
    }

    /// Adds an attribute that the account gets.
    pub(super) fn add(&mut self, attribute: &'static str, new: &dyn Display) {
        self.differences.push(Difference { attribute, old: None, new: Some(new.to_string()) });
    }

    /// Adds an attribute that the account loses.
    pub(super) fn remove(&mut self, attribute: &'static str, old: &dyn Display) {
        self.differences.push(Difference { attribute, old: Some(old.to_string()), new: None });
    }

    /// Returns whether an attribute differs.
    pub(super) fn has(&self, attribute: &str) -> bool {
        self.differences.iter().any(|difference| difference.attribute == attribute)
    }

    /// Returns the result of a check. `account` is the kind and the name of the account.
    pub(super) fn check_result(&self, account: &str) -> CheckResult {
        if self.differences.is_empty() {
            return CheckResult::Converged;
        }
        let diff = self.diff(account);
        if let Some(refusal) = &self.refusal {
            return CheckResult::Blocked { diff, message: format!("{refusal}; nothing was changed") };
        }
        let attributes: Vec<_> = self.differences.iter().map(|difference| difference.attribute).collect();
        let missing = self.missing.as_ref().map(|missing| format!(" ({missing})")).unwrap_or_default();
        let change = format!("{account}: would change {}{missing}", attributes.join(", "));
        let sentences: Vec<_> = [change].into_iter().chain(self.remarks.iter().cloned()).collect();
        CheckResult::Drifted { diff, message: sentences.join("; ") }
    }

    /// Adds the reason why the tools cannot write the files of the accounts, such as an immutable file, if they must.
    ///
    /// # Errors
    /// [`TaskError`] if a file cannot be examined.
    pub(super) fn examine_files(mut self, host: &dyn Host, kind: AccountKind) -> Result<Self, TaskError> {
        for path in self.written_files(kind) {
            let path = HostPath::from_static(path);
            let Some(dir) = host.parent_dir(&path)? else { continue };
            match dir.check_replaceable(path.name()) {
                Ok(()) => {}
                Err(error @ HostError::NotReplaceable { .. }) => {
                    self.refusal.get_or_insert(error.sentence());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self)
    }

    /// Returns the files that the shadow tools write for the differences.
    fn written_files(&self, kind: AccountKind) -> Vec<&'static str> {
        let is_entry = |difference: &Difference| !["home directory", "groups"].contains(&difference.attribute);
        let (has_entry, is_user) = (self.differences.iter().any(is_entry), kind == AccountKind::User);
        let mut files = Vec::new();
        if is_user && has_entry {
            files.extend([AccountKind::User.file(), SHADOW]);
        }
        if self.has("user") || self.has("groups") || (!is_user && has_entry) {
            files.extend([AccountKind::Group.file(), GROUP_SHADOW]);
        }
        files
    }

    /// Returns the differences as a diff.
    fn diff(&self, account: &str) -> String {
        let mut text = format!("--- {account}\n+++ {account}\n");
        for Difference { attribute, old, new } in &self.differences {
            for (sign, value) in [('-', old), ('+', new)] {
                if let Some(value) = value {
                    text.push_str(&format!("{sign}{attribute}: {value}\n"));
                }
            }
        }
        text
    }
}

/// Held by the task that changes accounts. Two tasks can name one account, and `useradd` looks for the account before it locks
/// the files: it would create the account twice.
#[derive(Default)]
struct AccountLock(tokio::sync::Mutex<()>);

/// Brings an account into the state that its task describes. `plan` compares both. `account` is the kind and the name of
/// the account. Waits for other tasks that change accounts.
///
/// # Errors
/// [`TaskError`] if a tool fails, or if the account cannot be changed.
pub(super) async fn converge(
    site: &Site,
    task: &HostTask,
    account: &str,
    plan: impl Fn() -> Result<AccountPlan, TaskError>,
) -> Result<ApplyResult, TaskError> {
    let lock = site.memory.get::<AccountLock>();
    let _guard = lock.0.lock().await;
    let mut result = ApplyResult::default();
    let (mut notes, mut last_step, mut repeats) = (Vec::new(), None, 0);
    for number in 0..MAX_STEPS {
        let is_first = number == 0;
        let unchanged = |error: TaskError| if is_first { error.without_effect() } else { error };
        let current = plan().map_err(unchanged)?;
        if is_first {
            result.diff = current.diff(account);
        }
        if current.differences.is_empty() {
            if !is_first {
                notes.extend(current.remarks);
            }
            result.message = notes.join("; ");
            return Ok(result);
        }
        let only_root = (site.host.user_and_group().0 != 0).then(|| "only an agent of root can change accounts".to_owned());
        if let Some(reason) = current.refusal.or(current.missing).or(only_root) {
            let end = if is_first { "; nothing was changed" } else { "; what was changed before remains" };
            return Err(unchanged(TaskError::new(format!("{reason}{end}"))));
        }
        let Some(step) = current.step else { break };
        repeats = if last_step.as_ref() == Some(&step) { repeats + 1 } else { 1 };
        if repeats > MAX_REPEATS {
            break;
        }
        let output = run_tool(site, task, &step).await.map_err(unchanged_if_unstarted(is_first))?;
        if !output.trim().is_empty() {
            result.output.push_str(&output);
        }
        if !step.note.is_empty() {
            notes.push(step.note.clone());
        }
        last_step = Some(step);
    }
    let tool = last_step.map_or_else(String::new, |step| step.argv.join(" "));
    let message =
        format!("{account} is not as the task describes it, although `{tool}` succeeded: another program may change it too");
    Err(TaskError { output: result.output, ..TaskError::new(message) })
}

/// Returns a function that marks the error of a tool as one without an effect, if no tool ran before. A shadow tool that
/// fails leaves the files as they were.
fn unchanged_if_unstarted(is_first: bool) -> impl FnOnce(TaskError) -> TaskError {
    move |error| if is_first && error.output.contains(LOCK_MESSAGE) { error.without_effect() } else { error }
}

/// The message of the shadow tools if another program holds the lock of a file.
const LOCK_MESSAGE: &str = "cannot lock";

/// Runs a tool, and repeats it while another program holds the lock of the account files. Returns its output.
async fn run_tool(site: &Site, task: &HostTask, step: &ToolCall) -> Result<String, TaskError> {
    let mut argv = step.argv.clone();
    let root = site.host.system_root();
    if step.is_shadow_tool && root != std::path::Path::new("/") {
        argv.splice(1..1, ["--root".to_owned(), root.display().to_string()]);
    }
    let program = argv.first().cloned().unwrap_or_default();
    let purpose = CommandPurpose::Task(task.task.id.clone());
    let command = HostCommand { purpose, ..HostCommand::new(argv, TOOL_TIMEOUT) };
    let start = Instant::now();
    loop {
        let result = site.host.run(&command).await.map_err(|error| start_error(&error))?;
        if result.end.is_success() {
            return Ok(result.output);
        }
        let is_lock_held = matches!(result.end, ExitKind::Status(_)) && result.output.contains(LOCK_MESSAGE);
        if is_lock_held && start.elapsed() < MAX_LOCK_WAIT {
            tokio::time::sleep(LOCK_INTERVAL).await;
            continue;
        }
        let reason = if is_lock_held { lock_reason(&result.output) } else { String::new() };
        let message = format!("{program} {}{reason}", result.end.sentence());
        return Err(TaskError { output: result.output, ..TaskError::new(message) });
    }
}

/// Returns the reason why a tool could not lock the account files. If another lock file stops the tool, such as one
/// that a power cut left, its output names the file and the process that is written in it.
pub(super) fn lock_reason(output: &str) -> String {
    let mut sentences = output.lines().filter_map(|line| line.split_once(": ")).map(|(_, sentence)| sentence.trim());
    match sentences.find(|sentence| sentence.contains(".lock")) {
        Some(sentence) => format!(
            ": for a minute, a lock file has stopped it ({sentence}): end the process that holds it, or remove the file if that process does not change accounts"
        ),
        None => ": for a minute, another program has held the lock of the account files; `fuser -v /etc/.pwd.lock` may show it"
            .to_owned(),
    }
}

/// Returns the error of a tool that could not be started.
fn start_error(error: &HostError) -> TaskError {
    let advice = if error.has_kind(std::io::ErrorKind::NotFound) {
        ": install the package with the shadow tools (`passwd` on Debian, `shadow-utils` on Fedora)"
    } else {
        ""
    };
    TaskError::new(format!("{}{advice}", error.sentence()))
}
