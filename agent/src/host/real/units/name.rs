//! Names of the units in which commands run. A name contains the process that started the unit, so that a later agent
//! recognises the units that an agent left.

use std::fs;

use crate::host::CommandPurpose;

/// The prefixes of all units of commands, as patterns for a list of units.
pub const COMMAND_UNIT_PATTERNS: [&str; 4] = ["stemma-task-*", "stemma-guard-*", "stemma-validation-*", "stemma-hook-*"];

/// Maximum length of the part of a name that stands for a task or hook. A name of a unit has at most 255 characters.
const MAX_LABEL_CHARS: usize = 64;

/// A process. Its id alone does not identify it, because the kernel uses ids again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessId {
    id: u32,
    /// The time at which the process started, in clock ticks since the boot.
    start: u64,
}

impl ProcessId {
    /// Returns the id of this process.
    pub(super) fn current() -> Self {
        let id = std::process::id();
        Self { id, start: start_time(id).unwrap_or(0) }
    }

    /// Returns whether the process still exists.
    pub(super) fn is_alive(self) -> bool {
        start_time(self.id) == Some(self.start)
    }
}

/// Returns the start time of a process, in clock ticks since the boot. Returns `None` if there is no such process, also if
/// it has ended and its parent has not read its end (a zombie).
fn start_time(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is the name in brackets, which may contain blanks and brackets. The state and the start time are
    // the fields 3 and 22.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok();
    if matches!(state, "Z" | "X") { None } else { start }
}

/// Returns the name of a new unit. `number` distinguishes the units that a process starts. Returns `None` for a command
/// that is not a unit.
pub(super) fn unit_name(purpose: &CommandPurpose, owner: ProcessId, number: u64) -> Option<String> {
    let (kind, id) = match purpose {
        CommandPurpose::Agent => return None,
        CommandPurpose::Task(id) => ("task", id),
        CommandPurpose::Guard(id) => ("guard", id),
        CommandPurpose::Validation(id) => ("validation", id),
        CommandPurpose::Hook(name) => ("hook", name),
    };
    let label: String = id.chars().take(MAX_LABEL_CHARS).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    Some(format!("stemma-{kind}-{label}-{}-{}-{number}.service", owner.id, owner.start))
}

/// Returns a pattern for the names of all units that a process starts.
pub(super) fn owned_units(owner: ProcessId) -> String {
    format!("stemma-*-{}-{}-*.service", owner.id, owner.start)
}

/// Returns the id of the process that started a unit, if this process still exists.
#[must_use]
pub fn live_owner(name: &str) -> Option<u32> {
    owner(name).filter(|owner| owner.is_alive()).map(|owner| owner.id)
}

/// Returns the process that started a unit, from the unit's name. Returns `None` for the name of any other unit.
pub(super) fn owner(name: &str) -> Option<ProcessId> {
    let mut parts = name.strip_prefix("stemma-")?.strip_suffix(".service")?.rsplitn(4, '-');
    let (number, start, id) = (parts.next()?, parts.next()?, parts.next()?);
    number.parse::<u64>().ok()?;
    Some(ProcessId { id: id.parse().ok()?, start: start.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_name_contains_owner() {
        let process = ProcessId::current();
        for purpose in [
            CommandPurpose::Task("install-nginx".into()),
            CommandPurpose::Task("a/b c\u{e4}".into()),
            CommandPurpose::Guard("task-1".into()),
            CommandPurpose::Validation("x".repeat(300)),
            CommandPurpose::Hook("10-reload".into()),
        ] {
            let name = unit_name(&purpose, process, 7).unwrap();
            assert!(name.len() < 255 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)), "{name}");
            assert_eq!(owner(&name), Some(process), "{name}");
            assert_eq!(live_owner(&name), Some(process.id), "{name}");
            assert_eq!(live_owner(&unit_name(&purpose, ProcessId { start: 0, ..process }, 7).unwrap()), None);
        }
        assert_eq!(unit_name(&CommandPurpose::Agent, process, 7), None);
    }

    #[test]
    fn owner_rejects_names_of_other_units() {
        for name in ["stemma-agent.service", "stemma-task-a.service", "stemma-task-a-b-c-d.service", "ssh.service"] {
            assert_eq!(owner(name), None, "{name}");
        }
    }

    /// An id that is in use again belongs to another process, with another start time.
    #[test]
    fn process_is_alive_only_with_same_start_time() {
        let current = ProcessId::current();
        assert!(current.is_alive());
        assert!(!ProcessId { start: current.start + 1, ..current }.is_alive());
    }

    #[test]
    fn process_without_read_end_is_not_alive() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = ProcessId { id: child.id(), start: start_time(child.id()).unwrap() };
        assert!(process.is_alive());
        drop(child.stdin.take());
        // This waits for the end of the process, and does not read it.
        let child_id = rustix::process::Pid::from_child(&child);
        rustix::process::waitid(
            rustix::process::WaitId::Pid(child_id),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .unwrap();
        assert!(!process.is_alive());
        child.wait().unwrap();
    }
}
