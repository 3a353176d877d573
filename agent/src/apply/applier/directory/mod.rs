//! `directory`: a directory with its owner and mode, or no directory.
//!
//! What the author does not set stays as it is. A directory is removed with its content only if the author says so.

use stemma_core::task::DirectoryParameters;

use super::placement::{
    apply_default_acl, check_dir_path, create_parent, is_trusted_dir, one_line, open_parent, owner_uid, parse_mode, wrong_kind,
};
use super::tree_removal::{TreeContent, list_tree, remove_tree};
use super::{Applier, parameters};
use crate::apply::listing::list_names;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::atomic::check_creatable;
use crate::host::{Dir, FileKind, HostError, HostPath, Pending, ReplaceBlocker, Stat};

/// The mode of a new directory, if the author sets none.
const DEFAULT_MODE: u32 = 0o755;

/// An open directory with its metadata.
type PresentDir = (Box<dyn Dir>, Stat);

/// The applier of `directory` tasks.
pub(super) struct DirectoryApplier;

/// The directory that a task wants at its path, and the directory that exists there.
struct DirectoryState {
    path: HostPath,
    parent: Option<Box<dyn Dir>>,
    /// The existing directory with its metadata, or `None` if nothing is there.
    present: Option<PresentDir>,
    desired: DesiredDirectory,
}

/// The state that a task wants at its path.
enum DesiredDirectory {
    /// A directory.
    Present(DirectoryRights),
    /// Nothing. The existing directory is removed only if it is empty.
    Absent,
    /// Nothing. The content of the existing directory is removed too.
    AbsentTree,
}

/// Owner, group and mode of a directory.
struct DirectoryRights {
    /// The owner, or `None` to leave it unchanged.
    user: Option<u32>,
    /// The group, or `None` to leave it unchanged.
    group: Option<u32>,
    mode: u32,
    /// True if the author set the mode.
    is_mode_explicit: bool,
    /// The mode of directories that are created above.
    dir_mode: u32,
}

impl Applier for DirectoryApplier {
    fn managed_paths(&self, site: &Site, task: &HostTask) -> Vec<HostPath> {
        let path = parameters(task)
            .and_then(|parameters: DirectoryParameters| render_path(&TaskTemplates::new(site, task), &parameters));
        path.into_iter().collect()
    }

    fn path_refusal(&self, site: &Site, path: &HostPath) -> Option<String> {
        check_dir_path(site, "parameters.path", path, false)
            .and_then(|()| read_present(open_parent(site, path)?.as_deref(), path))
            .err()
            .map(|error| error.message)
    }

    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let state = read_state(site, task)?;
            if state.is_converged() {
                return Ok(CheckResult::Converged);
            }
            // If the change is not possible, the result is `Blocked` and not an error, so that it also has the diff.
            Ok(match state.check_changeable(site).await {
                Ok(content) => CheckResult::Drifted { diff: state.diff(&content), message: state.unrequested_change() },
                Err(error) => CheckResult::Blocked { diff: state.diff(&TreeContent::default()), message: error.message },
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let state = read_state(site, task)?;
            let content = state.check_changeable(site).await.map_err(TaskError::without_effect)?;
            match &state.desired {
                DesiredDirectory::Present(rights) => make_directory(site, task, &state, rights)?,
                DesiredDirectory::Absent | DesiredDirectory::AbsentTree => remove_directory(site, &state).await?,
            }
            Ok(ApplyResult { message: state.unrequested_change(), diff: state.diff(&content), ..ApplyResult::default() })
        })
    }
}

impl DirectoryState {
    /// Returns whether the directory has the owner, group and mode that the task wants, or is absent as the task wants it.
    fn is_converged(&self) -> bool {
        match (&self.present, &self.desired) {
            (Some((_, stat)), DesiredDirectory::Present(rights)) => rights.matches(stat),
            (None, DesiredDirectory::Present(_)) => false,
            (present, DesiredDirectory::Absent | DesiredDirectory::AbsentTree) => present.is_none(),
        }
    }

    /// Checks that the directory can be created, changed or removed. Changes nothing. Returns the entries that are removed
    /// with the directory.
    async fn check_changeable(&self, site: &Site) -> Result<TreeContent, TaskError> {
        let (Some(parent), Some((dir, _))) = (&self.parent, &self.present) else {
            check_creatable(&*site.host, &self.path)?;
            return Ok(TreeContent::default());
        };
        let blocker = parent.check_replaceable(self.path.name());
        match (&self.desired, blocker) {
            // Only these obstacles prevent a change of owner and mode.
            (DesiredDirectory::Present(_), Err(error)) => match error {
                HostError::NotReplaceable { by, .. }
                    if !matches!(by, ReplaceBlocker::Immutable | ReplaceBlocker::AppendOnly | ReplaceBlocker::ReadOnly) =>
                {
                    Ok(TreeContent::default())
                }
                error => Err(error.into()),
            },
            (DesiredDirectory::Present(_), Ok(())) => Ok(TreeContent::default()),
            (DesiredDirectory::Absent | DesiredDirectory::AbsentTree, Err(error)) => Err(error.into()),
            (DesiredDirectory::Absent, Ok(())) => {
                self.check_empty(&**dir)?;
                Ok(TreeContent::default())
            }
            (DesiredDirectory::AbsentTree, Ok(())) => match parent.dir(self.path.name())? {
                Some(dir) => list_tree(&self.path, dir).await,
                None => Ok(TreeContent::default()),
            },
        }
    }

    /// Fails if the directory has entries. The error names the first ones.
    fn check_empty(&self, dir: &dyn Dir) -> Result<(), TaskError> {
        let mut names = dir.names()?;
        names.extend(dir.non_utf8_names()?.into_iter().map(|(name, _)| name));
        if names.is_empty() {
            return Ok(());
        }
        Err(TaskError::new(format!(
            "{} is not empty, and is left as it was: it has {}; remove these, or set `recursive: true` to remove all that is in it",
            self.path,
            one_line(&list_names(&names))
        )))
    }

    /// Returns a sentence about a change of the mode that the author did not request, or an empty text.
    fn unrequested_change(&self) -> String {
        match (&self.present, &self.desired) {
            (Some((_, stat)), DesiredDirectory::Present(rights)) if !rights.is_mode_explicit && rights.mode != stat.mode => {
                format!("mode {:04o} becomes {:04o}", stat.mode, rights.mode)
            }
            _ => String::new(),
        }
    }

    /// Returns the diff of the rights of the directory. `content` is what is removed with it.
    fn diff(&self, content: &TreeContent) -> String {
        let path = self.path.as_str();
        let (mut old, mut new) = (Vec::new(), Vec::new());
        let old_stat = self.present.as_ref().map(|(_, stat)| stat);
        if let Some(stat) = old_stat {
            old = vec!["directory".to_owned(), format!("mode {:04o}", stat.mode), format!("owner {}:{}", stat.user, stat.group)];
        }
        if let DesiredDirectory::Present(rights) = &self.desired {
            let owner = |new_id: Option<u32>, old_id: Option<u32>| {
                new_id.or(old_id).map_or_else(|| "the agent's".to_owned(), |number| number.to_string())
            };
            let user = owner(rights.user, old_stat.map(|stat| stat.user));
            let group = owner(rights.group, old_stat.map(|stat| stat.group));
            new = vec!["directory".to_owned(), format!("mode {:04o}", rights.mode), format!("owner {user}:{group}")];
        }
        let header = |lines: &[String]| if lines.is_empty() { "/dev/null" } else { path };
        let mut text = format!("--- {}\n+++ {}\n", header(&old), header(&new));
        // A line that both sides have is no difference.
        for line in old.iter().filter(|line| !new.contains(line)) {
            text.push_str(&format!("-{line}\n"));
        }
        for line in new.iter().filter(|line| !old.contains(line)) {
            text.push_str(&format!("+{line}\n"));
        }
        for entry in &content.first_entries {
            text.push_str(&format!("-{}\n", one_line(entry)));
        }
        match content.count - content.first_entries.len() {
            0 => {}
            more => text.push_str(&format!("… {more} more entries\n")),
        }
        text
    }
}

impl DirectoryRights {
    /// Returns whether a directory has these rights.
    fn matches(&self, stat: &Stat) -> bool {
        self.mode == stat.mode
            && self.user.is_none_or(|user| user == stat.user)
            && self.group.is_none_or(|group| group == stat.group)
    }
}

/// Reads the directory at the task's path and computes the rights that the task wants. Changes nothing.
fn read_state(site: &Site, task: &HostTask) -> Result<DirectoryState, TaskError> {
    let parameters: DirectoryParameters = parameters(task)?;
    let texts = TaskTemplates::new(site, task);
    let path = render_path(&texts, &parameters)?;
    check_dir_path(site, "parameters.path", &path, parameters.absent && parameters.recursive)?;
    let parent = open_parent(site, &path)?;
    let present = read_present(parent.as_deref(), &path)?;
    let desired = match (parameters.absent, parameters.recursive) {
        (true, false) => DesiredDirectory::Absent,
        (true, true) => DesiredDirectory::AbsentTree,
        (false, true) => {
            return Err(TaskError::new("parameters.recursive: works only with `absent: true`; nothing was changed"));
        }
        (false, false) => {
            let stat = present.as_ref().map(|(_, stat)| stat);
            DesiredDirectory::Present(desired_rights(site, &path, &parameters, stat)?)
        }
    };
    Ok(DirectoryState { path, parent, present, desired })
}

/// Renders the template of the path of the directory.
fn render_path(texts: &TaskTemplates<'_>, parameters: &DirectoryParameters) -> Result<HostPath, TaskError> {
    texts.path("parameters.path", parameters.path.as_deref().unwrap_or_default())
}

/// Opens the directory at a path, or returns `None` if nothing is there. Fails if the path has another kind of file.
fn read_present(parent: Option<&dyn Dir>, path: &HostPath) -> Result<Option<PresentDir>, TaskError> {
    let Some(parent) = parent else { return Ok(None) };
    let Some(stat) = parent.stat(path.name())? else { return Ok(None) };
    if stat.kind != FileKind::Directory {
        return Err(wrong_kind(path, FileKind::Directory, stat.kind));
    }
    let Some(dir) = parent.dir(path.name())? else { return Ok(None) };
    // The metadata is that of the open directory, because someone may have replaced the entry in between.
    let stat = dir.own_stat()?;
    Ok(Some((dir, stat)))
}

/// Returns owner, group and mode that the directory gets.
///
/// An existing directory keeps a mode that the author does not set. There is one exception: if the directory gets another
/// owner, and the former one may have made it to read or change what others put into it (S67), then only its owner keeps
/// the right to write.
fn desired_rights(
    site: &Site,
    path: &HostPath,
    parameters: &DirectoryParameters,
    present: Option<&Stat>,
) -> Result<DirectoryRights, TaskError> {
    let user = parameters.owner.as_ref().map(|owner| owner_uid(site, owner)).transpose()?;
    let group = parameters.group.as_ref().map(|group| site.host.group_id(group)).transpose()?;
    let explicit_mode = parameters.mode.as_ref().map(|text| parse_mode("mode", text)).transpose()?;
    let (agent_user, _) = site.host.user_and_group();
    let mode = match (explicit_mode, present) {
        (Some(mode), _) => mode,
        (None, None) => apply_default_acl(site, path, DEFAULT_MODE, true)?,
        (None, Some(stat)) => {
            let is_foreign = stat.user != 0 && stat.user != agent_user && user.is_some_and(|user| user != stat.user);
            if is_foreign && !is_trusted_dir(site, path)? { stat.mode & DEFAULT_MODE } else { stat.mode }
        }
    };
    let dir_mode = match &parameters.dir_mode {
        Some(text) => parse_mode("dir_mode", text)?,
        None if present.is_none() => apply_default_acl(site, path, DEFAULT_MODE, true)?,
        None => DEFAULT_MODE,
    };
    Ok(DirectoryRights { user, group, mode, is_mode_explicit: explicit_mode.is_some(), dir_mode })
}

/// Creates the directory, or changes owner, group and mode of the existing one.
fn make_directory(site: &Site, task: &HostTask, state: &DirectoryState, rights: &DirectoryRights) -> Result<(), TaskError> {
    let created_dir;
    let (dir, old_mode) = match &state.present {
        Some((dir, stat)) => (&**dir, stat.mode),
        None => {
            created_dir = create(site, task, state, rights)?;
            let mode = created_dir.own_stat()?.mode;
            (&*created_dir, mode)
        }
    };
    // A new directory keeps the setgid bit that it inherits, if the author sets no mode.
    let mode = if state.present.is_none() && !rights.is_mode_explicit { old_mode } else { rights.mode };
    let present = dir.own_stat()?;
    let is_changed = |new_id: Option<u32>, old_id: u32| new_id.is_some_and(|new_id| new_id != old_id);
    if is_changed(rights.user, present.user) || is_changed(rights.group, present.group) {
        // The new owner and group never have rights that only the former ones should have had.
        set_mode(dir, old_mode & mode)?;
        dir.set_owner(rights.user, rights.group)?;
    }
    set_mode(dir, mode)?;
    dir.sync()?;
    let stored_mode = dir.own_stat()?.mode;
    if rights.is_mode_explicit && stored_mode != mode {
        return Err(TaskError::new(format!(
            "parameters.mode: the file system of {} does not store it: {mode:04o} becomes {stored_mode:04o}: remove mode, write \"{stored_mode:04o}\", or \
             name a path on another file system",
            state.path
        )));
    }
    Ok(())
}

/// Sets the mode of a directory, if it has another one.
fn set_mode(dir: &dyn Dir, mode: u32) -> Result<(), HostError> {
    if dir.own_stat()?.mode == mode { Ok(()) } else { dir.set_mode(mode) }
}

/// Creates the directory and those above it, durably. Until it has its owner and group, only the agent may use it.
fn create(site: &Site, task: &HostTask, state: &DirectoryState, rights: &DirectoryRights) -> Result<Box<dyn Dir>, TaskError> {
    let created_parent;
    let parent = if let Some(parent) = &state.parent {
        &**parent
    } else {
        created_parent = create_parent(site, task, &state.path, rights.dir_mode)?;
        &*created_parent
    };
    site.ledger.note_creation(&task.task.id, state.path.as_str())?;
    let changes_owner = rights.user.is_some() || rights.group.is_some();
    let first_mode = if changes_owner && rights.is_mode_explicit { rights.mode & 0o700 } else { rights.mode };
    parent.make_dir(state.path.name(), first_mode)?;
    parent.sync()?;
    let dir = parent.dir(state.path.name())?;
    dir.ok_or_else(|| TaskError::new(format!("{} was removed by another program during this pass", state.path)))
}

/// Removes the directory, with its content if the task says so. Does nothing if there is none.
async fn remove_directory(site: &Site, state: &DirectoryState) -> Result<(), TaskError> {
    if let (Some(parent), Some(_)) = (&state.parent, &state.present) {
        match state.desired {
            DesiredDirectory::AbsentTree => remove_tree(&*site.host, &**parent, &state.path).await?,
            DesiredDirectory::Absent | DesiredDirectory::Present(_) => parent.remove_dir(state.path.name())?,
        }
        parent.sync()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
