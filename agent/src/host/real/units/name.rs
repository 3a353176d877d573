//! Names of the units in which commands run. A name contains what a later agent must know about the unit: for which
//! task it runs, and which process started it.

use std::fs;

use stemma_core::digest::{Hex, sha256};

use crate::host::CommandPurpose;

/// The prefixes of all units of commands, as patterns for a list of units.
pub(super) const PATTERNS: [&str; 4] = ["stemma-task-*", "stemma-guard-*", "stemma-validation-*", "stemma-hook-*"];

/// Maximum length of the readable part of a name. A name of a unit has at most 255 characters.
const MAX_LABEL_CHARS: usize = 64;

/// Number of bytes of the digest that distinguishes ids with the same readable part.
const KEY_BYTES: usize = 8;

/// A process. Its id alone does not identify it, because the kernel uses ids again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessId {
    id: u32,
    /// The time at which the process started, in clock ticks since the boot.
    start: u64,
}

/// The parts of a unit's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitName {
    /// True if the command changes the host for a task.
    pub(super) is_task: bool,
    /// A part of the digest of the task's id, or of the hook's name.
    pub(super) key: String,
    /// The process that started the unit.
    pub(super) owner: ProcessId,
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

/// Returns the start time of a process, in clock ticks since the boot. Returns `None` if there is no such process.
fn start_time(id: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is the name in brackets, which may contain blanks and brackets. The start time is field 22.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
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
    Some(format!("stemma-{kind}-{label}-{}-{}-{}-{number}.service", key(id), owner.id, owner.start))
}

/// Returns the part of a unit's name that identifies a task or hook.
pub(super) fn key(id: &str) -> String {
    Hex(&sha256(id.as_bytes())[..KEY_BYTES]).to_string()
}

/// Parses the name of a unit. Returns `None` for the name of any other unit.
pub(super) fn parse(name: &str) -> Option<UnitName> {
    let mut parts = name.strip_prefix("stemma-")?.strip_suffix(".service")?.rsplitn(5, '-');
    let (_number, start, id, key) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_task = parts.next()?.starts_with("task-");
    let owner = ProcessId { id: id.parse().ok()?, start: start.parse().ok()? };
    (key.len() == 2 * KEY_BYTES).then(|| UnitName { is_task, key: key.to_owned(), owner })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_name_is_parsed_with_owner_and_key() {
        let owner = ProcessId::current();
        for (purpose, is_task, id) in [
            (CommandPurpose::Task("install-nginx".into()), true, "install-nginx"),
            (CommandPurpose::Task("a/b c\u{e4}".into()), true, "a/b c\u{e4}"),
            (CommandPurpose::Guard("task-1".into()), false, "task-1"),
            (CommandPurpose::Validation("x".repeat(300)), false, &"x".repeat(300)),
            (CommandPurpose::Hook("10-reload".into()), false, "10-reload"),
        ] {
            let name = unit_name(&purpose, owner, 7).unwrap();
            assert!(name.len() < 255 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)), "{name}");
            assert_eq!(parse(&name), Some(UnitName { is_task, key: key(id), owner }), "{name}");
        }
        assert_eq!(unit_name(&CommandPurpose::Agent, owner, 7), None);
    }

    #[test]
    fn parse_rejects_names_of_other_units() {
        for name in ["stemma-agent.service", "stemma-task-a.service", "stemma-task-a-b-c-d-e.service", "ssh.service"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    /// An id that is in use again belongs to another process, with another start time.
    #[test]
    fn process_is_alive_only_with_same_start_time() {
        let current = ProcessId::current();
        assert!(current.is_alive());
        assert!(!ProcessId { start: current.start + 1, ..current }.is_alive());
    }
}
