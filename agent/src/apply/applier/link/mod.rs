//! `link`: a symbolic link to a path, or no link.
//!
//! The new link is made under a temporary name and replaces the old one by a rename, so that the path is never without
//! a link. Owner and group of a link have no effect, and are not managed.

use stemma_core::digest::sha256;
use stemma_core::task::LinkParameters;
use stemma_core::task::name_rules::link_target_error;
use stemma_core::task::tree_rules::system_link_error;

use super::placement::{apply_default_acl, changed_error, create_parent, one_line, open_parent, parse_mode, wrong_kind};
use super::{Applier, parameters};
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::atomic::{StagedFile, check_creatable};
use crate::host::{Dir, FileKind, FileVersion, HostError, HostPath, Pending};

/// The applier of `link` tasks.
pub(super) struct LinkApplier;

/// The link that a task wants at its path, and the link that exists there.
struct LinkState {
    path: HostPath,
    parent: Option<Box<dyn Dir>>,
    /// The version of the existing link, which shows a later change.
    version: Option<FileVersion>,
    /// The target of the existing link, or `None` if there is none.
    present: Option<String>,
    /// The target of the wanted link, or `None` if the task wants no link.
    desired: Option<String>,
    /// The mode of directories that are created for the link.
    dir_mode: u32,
}

impl Applier for LinkApplier {
    fn managed_paths(&self, site: &Site, task: &HostTask) -> Vec<HostPath> {
        let path =
            parameters(task).and_then(|parameters: LinkParameters| render_path(&TaskTemplates::new(site, task), &parameters));
        path.into_iter().collect()
    }

    fn written_digest(&self, site: &Site, task: &HostTask) -> Option<[u8; 32]> {
        read_state(site, task).ok()?.desired.map(|target| sha256(target.as_bytes()))
    }

    fn path_refusal(&self, site: &Site, path: &HostPath) -> Option<String> {
        let read = || {
            let parent = open_parent(site, path)?;
            read_link(parent.as_deref(), path)
        };
        read().err().map(|error: TaskError| error.message)
    }

    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let state = read_state(site, task)?;
            if state.present == state.desired {
                return Ok(CheckResult::Converged);
            }
            let diff = state.diff();
            Ok(match state.check_replaceable(site) {
                Ok(()) => CheckResult::Drifted { diff, message: String::new() },
                Err(error) => CheckResult::Blocked { diff, message: error.sentence() },
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let state = read_state(site, task)?;
            state.check_replaceable(site).map_err(|error| TaskError::from(error).without_effect())?;
            match &state.desired {
                Some(target) => replace_link(site, task, &state, target)?,
                None => remove_link(&state)?,
            }
            Ok(ApplyResult { diff: state.diff(), ..ApplyResult::default() })
        })
    }
}

impl LinkState {
    /// Checks that the link can be replaced, removed or created. Changes nothing.
    fn check_replaceable(&self, site: &Site) -> Result<(), HostError> {
        match &self.parent {
            Some(parent) if self.present.is_some() => parent.check_replaceable(self.path.name()),
            _ => check_creatable(&*site.host, &self.path),
        }
    }

    /// Returns the diff from the existing target to the wanted one.
    fn diff(&self) -> String {
        let header = |side: &Option<String>| if side.is_some() { self.path.as_str() } else { "/dev/null" };
        let line = |sign: char, side: &Option<String>| {
            side.as_ref().map_or_else(String::new, |target| format!("{sign}link to {}\n", one_line(target)))
        };
        let (old, new) = (&self.present, &self.desired);
        format!("--- {}\n+++ {}\n{}{}", header(old), header(new), line('-', old), line('+', new))
    }

    /// Fails if the link is not the one that [`read_state`] found. Otherwise the task would overwrite or delete a change by
    /// another program.
    fn check_unchanged(&self, parent: &dyn Dir) -> Result<(), TaskError> {
        if parent.version(self.path.name())? == self.version { Ok(()) } else { Err(changed_error(&self.path).without_effect()) }
    }
}

/// Reads the link at the task's path and computes the target that the task wants. Changes nothing.
fn read_state(site: &Site, task: &HostTask) -> Result<LinkState, TaskError> {
    let parameters: LinkParameters = parameters(task)?;
    let texts = TaskTemplates::new(site, task);
    let path = render_path(&texts, &parameters)?;
    let desired = parameters.target.as_ref().map(|template| render_target(&texts, template)).transpose()?;
    if let Some(error) = system_link_error(path.as_str(), desired.is_none()) {
        return Err(TaskError::new(format!("parameters.path: {error}; nothing was changed")));
    }
    let parent = open_parent(site, &path)?;
    // The version is read before the target, so that a change of the link in the meantime is noticed.
    let version = parent.as_deref().map(|dir| dir.version(path.name())).transpose()?.flatten();
    let present = read_link(parent.as_deref(), &path)?;
    let dir_mode = match &parameters.dir_mode {
        Some(text) => parse_mode("dir_mode", text)?,
        None if parent.is_none() && desired.is_some() => apply_default_acl(site, &path, 0o755, true)?,
        None => 0o755,
    };
    Ok(LinkState { path, parent, version, present, desired, dir_mode })
}

/// Renders the template of the path of the link.
fn render_path(texts: &TaskTemplates<'_>, parameters: &LinkParameters) -> Result<HostPath, TaskError> {
    texts.path("parameters.path", parameters.path.as_deref().unwrap_or_default())
}

/// Renders the template of the target of the link. Everyone on the host can read a link, so it must not read a secret.
fn render_target(texts: &TaskTemplates<'_>, template: &str) -> Result<String, TaskError> {
    let target = texts.name("parameters.target", template)?;
    match link_target_error(&target) {
        Some(error) => Err(TaskError::new(format!("parameters.target: {error}"))),
        None => Ok(target),
    }
}

/// Returns the target of the link at a path, or `None` if nothing is there. Fails if the path has another kind of file.
fn read_link(parent: Option<&dyn Dir>, path: &HostPath) -> Result<Option<String>, TaskError> {
    let Some(parent) = parent else { return Ok(None) };
    match parent.stat(path.name())? {
        None => Ok(None),
        Some(stat) if stat.kind == FileKind::Link => Ok(parent.read_link(path.name())?),
        Some(stat) => Err(wrong_kind(path, FileKind::Link, stat.kind)),
    }
}

/// Makes the link under a temporary name, and renames it to its path. Creates missing directories.
fn replace_link(site: &Site, task: &HostTask, state: &LinkState, target: &str) -> Result<(), TaskError> {
    let host = &*site.host;
    let created_dir;
    let parent = if let Some(parent) = &state.parent {
        &**parent
    } else {
        created_dir = create_parent(site, task, &state.path, state.dir_mode)?;
        &*created_dir
    };
    if state.present.is_none() {
        site.ledger.note_creation(&task.task.id, state.path.as_str())?;
    }
    let staged = StagedFile::link(host, parent, state.path.name(), target)?;
    if let Err(error) = state.check_unchanged(parent) {
        // An error of this removal is ignored, because a later pass removes the link.
        let _ = staged.discard(parent);
        return Err(error);
    }
    Ok(staged.commit(parent, state.path.name())?)
}

/// Removes the link. Does nothing if there is none.
fn remove_link(state: &LinkState) -> Result<(), TaskError> {
    if let (Some(parent), Some(_)) = (&state.parent, &state.present) {
        state.check_unchanged(&**parent)?;
        parent.remove(state.path.name())?;
        parent.sync()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
