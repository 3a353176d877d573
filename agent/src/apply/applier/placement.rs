//! What the appliers of files, directories and links share: the directory in which they write, and owner and mode of
//! what they create.

use stemma_core::task::{check_not_agent_path, check_writable, parse_file_mode};

use crate::apply::task::{HostTask, Site, TaskError};
use crate::host::command::escape_controls;
use crate::host::extras::mode_under_acl;
use crate::host::{Dir, HostError, HostPath};

/// Opens the parent directory of a file, or returns `None` if the directory does not exist. Fails if tasks must not
/// write the path, if the agent itself manages it, or if a directory of the path is a link or another kind of file.
pub(super) fn open_parent(site: &Site, path: &HostPath) -> Result<Option<Box<dyn Dir>>, TaskError> {
    check_writable(path.as_str())
        .and_then(|()| check_not_agent_path(path.as_str(), site.label_map.as_str()))
        .map_err(|error| TaskError::new(format!("parameters.path: {error}")))?;
    Ok(site.host.parent_dir(path)?)
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
