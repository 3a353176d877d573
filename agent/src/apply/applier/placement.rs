//! What the appliers of files, directories, links and trees share: the directory in which they write, owner and mode of
//! what they create, and their errors and diffs.

use std::fmt::Display;

use stemma_core::task::tree_rules::{agent_parent_error, system_dir_error};
use stemma_core::task::{check_not_agent_path, check_writable, is_at_or_below, parse_file_mode};

use crate::apply::task::{HostTask, Site, TaskError};
use crate::host::atomic::ensure_dir;
use crate::host::command::escape_controls;
use crate::host::extras::mode_under_acl;
use crate::host::{Dir, FileKind, HostError, HostPath, Stat};

/// Maximum number of lines in the diff of several files.
pub(super) const MAX_DIFF_LINES: usize = 50;

/// Opens the parent directory of a file, or returns `None` if the directory does not exist. Fails if tasks must not
/// write the path, if the agent itself manages it, or if a directory of the path is a link or another kind of file.
pub(super) fn open_parent(site: &Site, path: &HostPath) -> Result<Option<Box<dyn Dir>>, TaskError> {
    check_writable(path.as_str())
        .and_then(|()| check_not_agent_path(path.as_str(), site.label_map.as_str()))
        .map_err(|error| TaskError::new(format!("parameters.path: {error}")))?;
    Ok(site.host.parent_dir(path)?)
}

/// Fails if the agent has files below a directory or, if everything in it may be removed (`is_emptied`), if the operating
/// system or the agent needs what is there. `field` is the field of the path.
pub(super) fn check_dir_path(site: &Site, field: &str, path: &HostPath, is_emptied: bool) -> Result<(), TaskError> {
    let text = path.as_str();
    let mut error = agent_parent_error(text);
    if is_emptied {
        let has_label_map = is_at_or_below(site.label_map.as_str(), text);
        let label_map_error = || format!("{text:?} has {} of the agent below it: name another directory", site.label_map);
        error = error.or_else(|| system_dir_error(text)).or_else(|| has_label_map.then(label_map_error));
    }
    error.map_or(Ok(()), |error| Err(TaskError::new(format!("{field}: {error}; nothing was changed"))))
}

/// Returns the error that another kind of file is at a path.
pub(super) fn wrong_kind(path: &HostPath, wanted: FileKind, found: FileKind) -> TaskError {
    HostError::WrongKind { path: path.to_string(), wanted: wanted.as_str(), found: found.as_str() }.into()
}

/// Fails if a file to copy has several hard links. Such a file is not read, because another of its links can be a file that
/// whoever made this one may not read. `field` is the field of the source.
pub(super) fn check_single_link(field: &str, path: &dyn Display, stat: &Stat) -> Result<(), TaskError> {
    if stat.links < 2 {
        return Ok(());
    }
    let message = format!(
        "{field}: {path} has {} hard links, and such a file is not copied: replace it by a copy of its own, or leave it out; nothing was changed",
        stat.links
    );
    Err(TaskError::new(message))
}

/// Returns the error that a file is not the version that was compared. The task would overwrite or delete a change by another
/// program.
pub(super) fn changed_error(path: &dyn Display) -> TaskError {
    TaskError::new(format!(
        "{path} was changed by another program during this pass: it is left unchanged, and checked again in the next pass"
    ))
}

/// Parses the file mode that an author wrote.
pub(super) fn parse_mode(field: &str, text: &str) -> Result<u32, TaskError> {
    parse_file_mode(text)
        .ok_or_else(|| TaskError::new(format!("parameters.{field}: {text:?} is not a file mode; write octal digits as \"0644\"")))
}

/// Returns a mode that no author set, restricted to the rights in the directory's default access control list, if there
/// is one. `has_list` is true if the new file or directory inherits the list.
pub(super) fn apply_default_acl(site: &Site, path: &HostPath, mode: u32, has_list: bool) -> Result<u32, HostError> {
    let list = site.host.default_acl(path)?;
    Ok(list.map_or(mode, |list| mode_under_acl(&list, mode, has_list)))
}

/// Returns whether only root and the agent's user can write the directory of a file and each of its parent directories.
pub(super) fn is_trusted_dir(site: &Site, path: &HostPath) -> Result<bool, HostError> {
    path.parent().map_or(Ok(true), |parent| Ok(site.host.first_untrusted_dir(&parent)?.is_none()))
}

/// Returns the uid of the owner that the author set. Fails if this is not the agent's own user and the agent is not
/// root.
pub(super) fn owner_uid(site: &Site, owner: &str) -> Result<u32, TaskError> {
    let (user, (agent_user, _)) = (site.host.user_id(owner)?, site.host.user_and_group());
    if agent_user != 0 && user != agent_user {
        return Err(TaskError::new(format!("parameters.owner: {owner} is another user, and the agent is not root")));
    }
    Ok(user)
}

/// Returns a path or name as one line for a diff or message, with control characters escaped.
pub(super) fn one_line(text: &str) -> String {
    escape_controls(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Returns the first lines of a diff, and the number of the others. `count` is the number of all lines.
pub(super) fn limited_lines(lines: &[String], count: usize) -> String {
    let first_lines = lines.get(..MAX_DIFF_LINES).unwrap_or(lines);
    let more = match count - first_lines.len() {
        0 => String::new(),
        more => format!("… {more} more lines\n"),
    };
    format!("{}{more}", first_lines.concat())
}

/// Creates the missing directories above a path with this mode, and returns the directory of the path.
pub(super) fn create_parent(site: &Site, task: &HostTask, path: &HostPath, mode: u32) -> Result<Box<dyn Dir>, TaskError> {
    let Some(parent) = path.parent() else { return Ok(site.host.root()?) };
    note_created_parents(site, task, &parent)?;
    Ok(ensure_dir(&*site.host, &parent, mode)?)
}

/// Notes that a task is about to create the missing directories of a path, so that they can be removed with what the task
/// leaves in them.
///
/// # Errors
/// [`HostError`]. The caller must then not create the directories.
pub(super) fn note_created_parents(site: &Site, task: &HostTask, dir: &HostPath) -> Result<(), HostError> {
    let mut next_dir = Some(dir.clone());
    while let Some(dir) = next_dir {
        if site.host.dir(&dir)?.is_some() {
            break;
        }
        site.ledger.note_creation(&task.task.id, dir.as_str())?;
        next_dir = dir.parent();
    }
    Ok(())
}
