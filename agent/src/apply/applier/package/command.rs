//! The commands of package managers.

use std::time::Duration;

use log::{info, warn};
use stemma_core::task::{AGENT_PACKAGE, AGENT_REMOVES_ITSELF};

use super::super::shell::run_in_unit;
use crate::apply::listing::list_names;
use crate::apply::task::{Site, TaskError};
use crate::host::{CommandPurpose, CommandResult, ExitKind, Host, HostCommand, HostError, HostPath};

/// Environment variables with which package managers ask no question, and write their messages in English.
const ENVIRONMENT: &[(&str, &str)] =
    &[("DEBIAN_FRONTEND", "noninteractive"), ("APT_LISTCHANGES_FRONTEND", "none"), ("LC_ALL", "C.UTF-8"), ("LANGUAGE", "C")];

/// The time limit of a command that only reads.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// The start of the message of `systemd-inhibit` if logind cannot be reached. Then it has not run the command.
const INHIBIT_FAILED: &str = "Failed to inhibit";

/// A script of the shell that runs a command, and writes only the lines of its output that match the extended regular expression
/// `$1`. The front of a long output is cut, and no line that counts may be missing.
const MATCH_SCRIPT: &str = r#"pattern=$1; shift; output=$("$@" 2>&1); status=$?
printf '%s\n' "$output" | grep -E -- "$pattern"; [ $? -le 1 ] || status=127; exit $status"#;

/// The status of a simulation that is complete, and those with which dnf and apt refuse a change.
const SIMULATED: &[i32] = &[0, 1, 100];

/// Runs the commands of one task.
pub(super) struct CommandRunner<'a> {
    pub(super) site: &'a Site,
    /// The id of the task.
    pub(super) task: &'a str,
    /// The time limit of each command that changes something.
    pub(super) timeout: Duration,
}

impl CommandRunner<'_> {
    /// Runs a command that changes packages. On a host with systemd it is a unit of its own, so that it continues if this agent
    /// ends. Until it ends, the host is not shut down without force.
    ///
    /// # Errors
    /// If the command cannot be run. A command that fails is not an error.
    pub(super) async fn change(&self, words: &[&str]) -> Result<CommandResult, TaskError> {
        if has_logind(&*self.site.host)? {
            let why = format!("--why=the task {} changes packages", self.task);
            let inhibit = ["systemd-inhibit", "--what=shutdown:sleep:idle", "--mode=block", "--who=Stemma", &why];
            let result = self.run_in_unit(&[&inhibit, words].concat()).await?;
            if !(result.end == ExitKind::Status(1) && result.output.contains(INHIBIT_FAILED)) {
                return Ok(result);
            }
            warn!(task = self.task, output = result.output.trim_end(); "the system cannot be kept from a shutdown");
        } else {
            info!(task = self.task; "without logind, the system is not kept from a shutdown");
        }
        self.run_in_unit(words).await
    }

    /// Runs a command that only reads, as a child process.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub(super) async fn read(&self, words: &[&str]) -> Result<CommandResult, TaskError> {
        let command = HostCommand { timeout: READ_TIMEOUT, purpose: CommandPurpose::Agent, ..self.command(words) };
        Ok(self.site.host.run(&command).await?)
    }

    /// Checks that the removal of packages does not remove the agent, which depends on other packages. `words` simulate the removal.
    /// Their output has a line that matches `pattern` if the agent is removed too.
    ///
    /// # Errors
    /// If the agent is removed too, or if the removal cannot be simulated.
    pub(super) async fn keep_agent(&self, names: &[String], pattern: &str, words: &[&str]) -> Result<(), TaskError> {
        let words = [&["sh", "-c", MATCH_SCRIPT, "sh", pattern], words].concat();
        let result = self.read(&words).await.map_err(TaskError::without_effect)?;
        let names = list_names(names);
        let message = match result.end {
            _ if result.output.contains(AGENT_PACKAGE) => {
                format!(
                    "parameters.name: the removal of {names} removes {AGENT_PACKAGE} too, which needs it: {AGENT_REMOVES_ITSELF}"
                )
            }
            ExitKind::Status(status) if SIMULATED.contains(&status) => return Ok(()),
            end => format!("the removal of {names} could not be simulated: the command {}", end.sentence()),
        };
        let message = format!("{message}; nothing was changed");
        Err(TaskError { output: result.output, ..TaskError::new(message).without_effect() })
    }

    async fn run_in_unit(&self, words: &[&str]) -> Result<CommandResult, TaskError> {
        Ok(run_in_unit(self.site, self.task, self.command(words)).await?)
    }

    /// Returns a command, which runs inside of the agent's root directory.
    fn command(&self, words: &[&str]) -> HostCommand {
        let root = self.site.host.system_root();
        let root = root.to_string_lossy();
        let chroot: &[&str] = if root == "/" { &[] } else { &["chroot", &root] };
        let argv = [chroot, words].concat().into_iter().map(str::to_owned).collect();
        let env = ENVIRONMENT.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let purpose = CommandPurpose::Task(self.task.to_owned());
        HostCommand { env, purpose, ..HostCommand::new(argv, self.timeout) }
    }
}

/// Returns whether logind can keep the system from a shutdown: systemd runs the host, and the system bus is there.
fn has_logind(host: &dyn Host) -> Result<bool, HostError> {
    for path in ["/run/systemd/system", "/run/dbus/system_bus_socket", "/usr/bin/systemd-inhibit"] {
        if !path_exists(host, path)? {
            return Ok(false);
        }
    }
    Ok(host.system_root() == std::path::Path::new("/"))
}

/// Returns whether the host has an entry at this path, of any kind.
pub(super) fn path_exists(host: &dyn Host, path: &str) -> Result<bool, HostError> {
    Ok(host.stat(&HostPath::from_static(path))?.is_some())
}
