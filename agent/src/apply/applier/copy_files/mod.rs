//! `copy_files`: copies of single files, from blobs or from the host. Nothing is removed.

use stemma_core::task::tree_rules::{agent_source_error, copy_paths_error};
use stemma_core::task::{CopyFilesParameters, FileCopy};
use stemma_wire::message::Hash;

use super::body::{FileSource, parse_blob, version_mark};
use super::placement::{
    apply_default_acl, changed_error, check_single_link, create_parent, limited_lines, one_line, open_parent, owner_uid,
    parse_mode, wrong_kind,
};
use super::{Applier, ManagedObject, parameters};
use crate::apply::ledger::{CopiedFile, ObjectKind, TreeRecord};
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::atomic::{Attributes, check_creatable};
use crate::host::{Dir, FileKind, FileVersion, HostError, HostPath, Pending};

/// The applier of `copy_files` tasks.
pub(super) struct CopyFilesApplier;

/// One file of a task.
struct CopyState {
    path: HostPath,
    parent: Option<Box<dyn Dir>>,
    source: CopySource,
    attributes: Attributes,
    /// The version of the existing file, or `None` if there is none.
    version: Option<FileVersion>,
    /// What was known about the file, or what a comparison has found out.
    known: Option<CopiedFile>,
    /// True if the file must be written.
    is_different: bool,
}

/// The source of one file, with an open directory.
enum CopySource {
    Blob(Hash),
    HostFile { dir: Box<dyn Dir>, name: String, version: FileVersion },
}

impl CopySource {
    fn as_file_source(&self) -> FileSource<'_> {
        match self {
            Self::Blob(hash) => FileSource::Blob(*hash),
            Self::HostFile { dir, name, version } => FileSource::HostFile { dir: &**dir, name, version: *version },
        }
    }
}

impl Applier for CopyFilesApplier {
    fn managed_paths(&self, site: &Site, task: &HostTask) -> Vec<HostPath> {
        let Ok(parameters) = parameters::<CopyFilesParameters>(task) else { return Vec::new() };
        let texts = TaskTemplates::new(site, task);
        let paths = parameters.files.iter().enumerate().map(|(index, item)| render_path(&texts, index, &item.dst));
        paths.collect::<Result<_, _>>().unwrap_or_default()
    }

    fn managed_objects(&self, site: &Site, task: &HostTask) -> Option<Vec<ManagedObject>> {
        let parameters: CopyFilesParameters = parameters(task).ok()?;
        let paths = self.managed_paths(site, task);
        // The digest of a file from the host is not known.
        let object = |(path, item): (&HostPath, &FileCopy)| ManagedObject {
            digest: Hash::from_source(&item.src).ok().map(|hash| hash.0),
            ..ManagedObject::new((ObjectKind::File, path.to_string()), true)
        };
        (!paths.is_empty()).then(|| paths.iter().zip(&parameters.files).map(object).collect())
    }

    fn path_refusal(&self, site: &Site, path: &HostPath) -> Option<String> {
        let look = || open_parent(site, path)?.map_or(Ok(None), |parent| read_version(&*parent, path));
        look().err().map(|error| error.message)
    }

    fn file_owner(&self, site: &Site, task: &HostTask) -> Option<u32> {
        let parameters: CopyFilesParameters = parameters(task).ok()?;
        owner_uid(site, parameters.owner.as_ref()?).ok()
    }

    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let states = read_states(site, task).await?;
            store_record(site, task, &states);
            if states.iter().all(|state| !state.is_different) {
                return Ok(CheckResult::Converged);
            }
            let diff = diff(&states);
            Ok(match check_replaceable(site, &states) {
                Ok(()) => CheckResult::Drifted { diff, message: String::new() },
                Err(error) => CheckResult::Blocked { diff, message: error.sentence() },
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let mut states = read_states(site, task).await?;
            check_replaceable(site, &states).map_err(|error| TaskError::from(error).without_effect())?;
            let dir_mode = dir_mode(task)?;
            let diff = diff(&states);
            let mut result = Ok(());
            for state in states.iter_mut().filter(|state| state.is_different) {
                tokio::task::yield_now().await;
                result = write(site, task, state, dir_mode);
                if result.is_err() {
                    break;
                }
            }
            store_record(site, task, &states);
            result?;
            Ok(ApplyResult { diff, ..ApplyResult::default() })
        })
    }
}

/// Renders the path of one copy.
fn render_path(texts: &TaskTemplates<'_>, index: usize, template: &str) -> Result<HostPath, TaskError> {
    texts.path(&format!("parameters.files[{index}].dst"), template)
}

/// Fails if two copies have one path, if one is below another, or if a file is its own copy. The controller has checked only
/// paths without templates.
fn check_paths(texts: &TaskTemplates<'_>, parameters: &CopyFilesParameters) -> Result<(), TaskError> {
    let render = |(index, item): (usize, &FileCopy)| {
        let src = if item.src.starts_with('/') {
            texts.path(&format!("parameters.files[{index}].src"), &item.src)?.to_string()
        } else {
            item.src.clone()
        };
        Ok((src, render_path(texts, index, &item.dst)?.to_string()))
    };
    let paths = parameters.files.iter().enumerate().map(render).collect::<Result<Vec<_>, TaskError>>()?;
    match copy_paths_error(&paths.iter().map(|(src, dst)| (&**src, &**dst)).collect::<Vec<_>>()) {
        Some((index, error)) => Err(TaskError::new(format!("parameters.files[{index}]: {error}; nothing was changed"))),
        None => Ok(()),
    }
}

/// Returns the mode of directories that the author set.
fn dir_mode(task: &HostTask) -> Result<Option<u32>, TaskError> {
    let parameters: CopyFilesParameters = parameters(task)?;
    parameters.dir_mode.as_ref().map(|text| parse_mode("dir_mode", text)).transpose()
}

/// Compares each file of the task with its source. Changes nothing.
async fn read_states(site: &Site, task: &HostTask) -> Result<Vec<CopyState>, TaskError> {
    let parameters: CopyFilesParameters = parameters(task)?;
    let texts = TaskTemplates::new(site, task);
    check_paths(&texts, &parameters)?;
    let record = site.ledger.tree_record(&task.task.id)?;
    let mut states = Vec::new();
    for (index, item) in parameters.files.iter().enumerate() {
        tokio::task::yield_now().await;
        states.push(read_state(site, &texts, &parameters, (index, item), &record)?);
    }
    Ok(states)
}

/// Compares one file of the task with its source. Changes nothing.
fn read_state(
    site: &Site,
    texts: &TaskTemplates<'_>,
    parameters: &CopyFilesParameters,
    (index, item): (usize, &FileCopy),
    record: &TreeRecord,
) -> Result<CopyState, TaskError> {
    let path = render_path(texts, index, &item.dst)?;
    let source = open_source(site, texts, index, &item.src)?;
    let parent = open_parent(site, &path)?;
    let version = parent.as_deref().map(|parent| read_version(parent, &path)).transpose()?.flatten();
    let (agent_user, agent_group) = site.host.user_and_group();
    let user = parameters.owner.as_ref().map_or(Ok(agent_user), |owner| owner_uid(site, owner))?;
    let group = parameters.group.as_ref().map_or(Ok(agent_group), |group| site.host.group_id(group))?;
    let mode = match (&parameters.mode, source.as_file_source().mode()) {
        (Some(text), _) => parse_mode("mode", text)?,
        (None, Some(mode)) => mode,
        (None, None) => 0o644,
    };
    let attributes = Attributes { user: Some(user), group: Some(group), ..Attributes::with_mode(mode) };
    let mut state =
        CopyState { known: record.get(path.as_str()).copied(), path, parent, source, attributes, version, is_different: true };
    if let (Some(parent), Some(version)) = (&state.parent, &state.version) {
        let source = state.source.as_file_source();
        let is_equal =
            || source.is_equal(site, (&**parent, state.path.name()), version, |pair| state.known.as_ref() == Some(pair));
        // A file with several hard links is replaced, not written through.
        state.is_different = parameters.overwrite != Some(false)
            && !(version.stat.links == 1 && state.attributes.matches(&version.stat) && is_equal()?);
        if !state.is_different && parameters.overwrite != Some(false) {
            state.known = Some(CopiedFile { source: source.mark(), copy: version_mark(version) });
        }
    }
    Ok(state)
}

/// Opens the source of a file.
fn open_source(site: &Site, texts: &TaskTemplates<'_>, index: usize, template: &str) -> Result<CopySource, TaskError> {
    let field = format!("files[{index}].src");
    if !template.starts_with('/') {
        return Ok(CopySource::Blob(parse_blob(&field, template)?));
    }
    let path = texts.path(&format!("parameters.{field}"), template)?;
    if let Some(error) = agent_source_error(path.as_str()) {
        return Err(TaskError::new(format!("parameters.{field}: {error}; nothing was changed")));
    }
    let missing_error = || TaskError::new(format!("parameters.{field}: {path} does not exist; nothing was changed"));
    let dir = site.host.parent_dir(&path)?.ok_or_else(missing_error)?;
    let version = dir.version(path.name())?.ok_or_else(missing_error)?;
    if version.stat.kind != FileKind::File {
        return Err(wrong_kind(&path, FileKind::File, version.stat.kind));
    }
    check_single_link(&format!("parameters.{field}"), &path, &version.stat)?;
    Ok(CopySource::HostFile { dir, name: path.name().to_owned(), version })
}

/// Returns the version of the file at a path, or `None` if nothing is there. Fails if another kind of file is there.
fn read_version(parent: &dyn Dir, path: &HostPath) -> Result<Option<FileVersion>, TaskError> {
    match parent.version(path.name())? {
        Some(version) if version.stat.kind != FileKind::File => Err(wrong_kind(path, FileKind::File, version.stat.kind)),
        version => Ok(version),
    }
}

/// Checks that each file can be replaced or created. Changes nothing.
fn check_replaceable(site: &Site, states: &[CopyState]) -> Result<(), HostError> {
    states.iter().filter(|state| state.is_different).try_for_each(|state| match &state.parent {
        Some(parent) if state.version.is_some() => parent.check_replaceable(state.path.name()),
        _ => check_creatable(&*site.host, &state.path),
    })
}

/// Writes one file. Creates missing directories.
fn write(site: &Site, task: &HostTask, state: &mut CopyState, dir_mode: Option<u32>) -> Result<(), TaskError> {
    let created_dir;
    // An earlier file of the task may have created the directory.
    let parent = if let Some(parent) = &state.parent {
        &**parent
    } else {
        let mode = dir_mode.map_or_else(|| apply_default_acl(site, &state.path, 0o755, true), Ok)?;
        created_dir = create_parent(site, task, &state.path, mode)?;
        &*created_dir
    };
    if parent.version(state.path.name())? != state.version {
        return Err(changed_error(&state.path));
    }
    if state.version.is_none() {
        site.ledger.note_creation(&task.task.id, state.path.as_str())?;
    }
    state.known = Some(state.source.as_file_source().write(site, (parent, state.path.name()), &state.attributes)?);
    state.is_different = false;
    Ok(())
}

/// Stores what is known about the files, so that the next check need not read them. An error is ignored, because then they
/// are read again.
fn store_record(site: &Site, task: &HostTask, states: &[CopyState]) {
    let known = states.iter().filter_map(|state| Some((state.path.to_string(), state.known?)));
    let _ = site.ledger.set_tree_record(&task.task.id, &known.collect());
}

/// Returns the diff of the task: a line for each file that is written.
fn diff(states: &[CopyState]) -> String {
    let lines = states.iter().filter(|state| state.is_different);
    let lines: Vec<String> = lines
        .map(|state| format!("{}{}\n", if state.version.is_some() { '~' } else { '+' }, one_line(state.path.as_str())))
        .collect();
    limited_lines(&lines, lines.len())
}

#[cfg(test)]
mod tests;
