//! `file`: creates one file from a content, a template or a blob, or ensures that there is none.
//!
//! The new file is written completely and gets its rights under a temporary name. The command `validate` checks the
//! file there, and the old file stays until `validate` succeeds. The replaced file is stored in the ledger for undo,
//! unless it is too large or may hold a secret.

mod diff;

use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stemma_core::digest::sha256;
use stemma_core::task::{FileParameters, check_words};
use stemma_wire::message::Hash;

use super::placement::{apply_default_acl, changed_error, create_parent, is_trusted_dir, open_parent, owner_uid, parse_mode};
use super::{Applier, parameters};
use crate::apply::ledger::UndoNote;
use crate::apply::rendering::TaskTemplates;
use crate::apply::task::{ApplyResult, CheckResult, HostTask, Site, TaskError};
use crate::host::atomic::{Attributes, StagedFile, UnfinishedFile, check_creatable};
use crate::host::{CommandPurpose, Dir, Extras, FileDetails, FileVersion, Host, HostCommand, HostError, HostPath, Pending, Stat};

/// Maximum size of a file that a task writes or reads, in bytes. It is the maximum size of a blob.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Maximum size of a file or blob held in memory, in bytes. Only such a file is compared by line and stored for undo.
const MAX_IN_MEMORY_BYTES: u64 = 1024 * 1024;

/// Timeout of `validate`, the command that checks a new file before it gets its name.
const VALIDATE_TIMEOUT: Duration = Duration::from_mins(1);

/// Placeholder for the path of the staged file (the new file under its temporary name) in the words of `validate`,
/// while these words are rendered. It contains a Unicode noncharacter, so it does not occur in ordinary values.
const STAGED_PATH_PLACEHOLDER: &str = "\u{10FFFF}path\u{10FFFF}";

/// The applier of `file` tasks.
pub(super) struct FileApplier;

/// The file that a task wants at its path, and the file that exists there.
struct FileState {
    path: HostPath,
    parent: Option<Box<dyn Dir>>,
    /// Version of the existing file, or `None` if there was no file. The version is read before content and rights, so
    /// that a later change of the file is noticed.
    version: Option<FileVersion>,
    /// The existing file, or `None` if there is none.
    present: Option<ExistingFile>,
    /// The wanted file, or `None` if the task wants no file at the path.
    desired: Option<DesiredFile>,
    /// Mode of the parent directories that the task creates.
    dir_mode: u32,
    /// Words of the command that checks the new file. Empty if the author set none.
    validate: Vec<String>,
    /// True if this task, or another that ever managed the path, is sensitive (has `sensitive` or reads a secret). The
    /// diff then shows no lines, and the existing file is not stored for undo.
    is_secret: bool,
}

/// The file that exists at the path of the task.
struct ExistingFile {
    stat: Stat,
    /// Access control list, extended attributes and flags of the file, or the error of reading them. This error fails
    /// the task only if the new file must preserve the extras.
    extras: Result<Extras, HostError>,
    content: FileContent,
}

/// The file that the task wants at its path.
struct DesiredFile {
    content: FileContent,
    attributes: Attributes,
    /// True if the author set the mode.
    is_mode_explicit: bool,
    /// Changes of owner, group or mode that the author did not request.
    unrequested_changes: Vec<String>,
}

/// The content of a file.
#[derive(PartialEq, Eq)]
enum FileContent {
    /// The bytes themselves.
    Bytes(Vec<u8>),
    /// Hash and size of a content that is too large for memory.
    Hashed(Hash, u64),
    /// Size of the content of an existing file that was not read. The size is above the limit for written files or, if
    /// the task deletes the file, above the limit for undo. Such a content matches no wanted content.
    Oversized(u64),
}

impl Applier for FileApplier {
    fn managed_paths(&self, site: &Site, task: &HostTask) -> Vec<HostPath> {
        let path =
            parameters(task).and_then(|parameters: FileParameters| render_path(&TaskTemplates::new(site, task), &parameters));
        path.into_iter().collect()
    }

    fn written_digest(&self, site: &Site, task: &HostTask) -> Option<[u8; 32]> {
        let parameters: FileParameters = parameters(task).ok()?;
        // The name of a blob is its digest, so the blob need not be read.
        if let Some(source) = &parameters.source {
            return Hash::from_source(source).ok().map(|hash| hash.0);
        }
        match desired_content(site, &TaskTemplates::new(site, task), &parameters).ok()?? {
            FileContent::Bytes(bytes) => Some(sha256(&bytes)),
            FileContent::Hashed(hash, _) => Some(hash.0),
            FileContent::Oversized(_) => None,
        }
    }

    fn path_refusal(&self, site: &Site, path: &HostPath) -> Option<String> {
        check_path(site, path).err().map(|error| error.message)
    }

    fn file_owner(&self, site: &Site, task: &HostTask) -> Option<u32> {
        let parameters: FileParameters = parameters(task).ok()?;
        owner_uid(site, parameters.owner.as_ref()?).ok()
    }

    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<CheckResult, TaskError>> {
        Box::pin(async move {
            let state = read_state(site, task)?;
            if state.is_converged() {
                return Ok(CheckResult::Converged);
            }
            // If the file cannot be replaced, the result is `Blocked` and not an error, so that it also has the diff.
            let (diff, precheck) = (state.diff(), state.check_replaceable(&*site.host));
            Ok(match precheck {
                Ok(()) => CheckResult::Drifted { diff, message: state.loss_message() },
                Err(error) => CheckResult::Blocked { diff, message: error.message },
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<ApplyResult, TaskError>> {
        Box::pin(async move {
            let state = read_state(site, task)?;
            state.check_replaceable(&*site.host)?;
            let diff = state.diff();
            let output = match &state.desired {
                Some(desired_file) => replace_file(site, task, &state, desired_file).await?,
                None => remove_file(site, task, &state)?,
            };
            Ok(ApplyResult { message: state.loss_message(), output, diff, ..ApplyResult::default() })
        })
    }
}

impl FileState {
    /// Returns whether the existing file has the content, mode, owner and group that the task wants, or the file is
    /// absent as the task wants it. Extended attributes and flags are not compared.
    fn is_converged(&self) -> bool {
        match (&self.present, &self.desired) {
            (None, None) => true,
            (Some(file), Some(desired)) => file.content.matches(&desired.content) && desired.attributes.matches(&file.stat),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Checks that the words of `validate` are a valid command, that the old file can be replaced or deleted, or a
    /// missing one created, and that the extras of the old file can be preserved. Callers check this before they write
    /// anything, because each failed attempt would leave an unfinished file in an append-only directory.
    fn check_replaceable(&self, host: &dyn Host) -> Result<(), TaskError> {
        let refusal = |error: String| TaskError::new(error).without_effect();
        if self.desired.is_some() && !self.validate.is_empty() {
            check_words(&self.validate).map_err(|reason| refusal(format!("parameters.validate: {reason}")))?;
        }
        // If the wanted attributes name no extras, the new file must get those of the old file, which must be readable.
        if let Some(ExistingFile { extras: Err(read_error), .. }) = &self.present
            && self.desired.as_ref().is_some_and(|desired_file| desired_file.attributes.extras.is_none())
        {
            return Err(refusal(read_error.sentence()));
        }
        let result = match (&self.parent, self.path.parent()) {
            (Some(dir), _) => dir.check_replaceable(self.path.name()),
            (None, Some(parent)) => check_creatable(host, &parent),
            (None, None) => Ok(()),
        };
        result.map_err(|error| refusal(error.sentence()))
    }

    /// Returns a sentence about the extras that are lost with the old file, and about changes of owner, group or mode
    /// that the author did not request. Returns an empty text if there are none. The diff shows the same, but a
    /// sensitive task reports no diff.
    fn loss_message(&self) -> String {
        let lost = self.lost_extras().map(|lost| format!("the new file is without {lost}"));
        let unrequested =
            self.desired.as_ref().map(|file| file.unrequested_changes.join(", ")).filter(|changes| !changes.is_empty());
        lost.into_iter().chain(unrequested).collect::<Vec<_>>().join("; ")
    }

    /// Returns a text that names the extras of the existing file (access control list, extended attributes, flags) that
    /// the new file will not have. Returns `None` if nothing is lost.
    fn lost_extras(&self) -> Option<String> {
        let (existing_file, desired_file) = self.present.as_ref().zip(self.desired.as_ref())?;
        let new_extras = desired_file.attributes.extras.as_ref()?;
        match &existing_file.extras {
            Ok(extras) => extras.missing_in(new_extras),
            Err(_) => Some("its extended attributes and flags, which cannot be read".to_owned()),
        }
    }

    /// Returns the diff from the existing file to the wanted file. The headers show mode, owner and group of each, and
    /// the attributes and flags that are lost. The lines of a file that may hold a secret are left out.
    fn diff(&self) -> String {
        let old = self.present.as_ref().map(|present| {
            let stat = &present.stat;
            let rights = format!("mode {:04o}, owner {}:{}", stat.mode, stat.user, stat.group);
            diff::FileSide { content: &present.content, rights }
        });
        let new = self.desired.as_ref().map(|desired_file| {
            let old_stat = self.present.as_ref().map(|present| present.stat);
            let owner = |new_id: Option<u32>, old_id: Option<u32>| {
                new_id.or(old_id).map_or_else(|| "the agent's".to_owned(), |number| number.to_string())
            };
            let (user, group) = (old_stat.map(|stat| stat.user), old_stat.map(|stat| stat.group));
            let Attributes { user: new_user, group: new_group, mode, .. } = desired_file.attributes;
            let lost = self.lost_extras().map_or_else(String::new, |lost| format!(", without {lost}"));
            let rights = format!("mode {mode:04o}, owner {}:{}{lost}", owner(new_user, user), owner(new_group, group));
            diff::FileSide { content: &desired_file.content, rights }
        });
        if self.is_secret {
            return diff::redacted_diff(self.path.as_str(), old.as_ref(), new.as_ref());
        }
        diff::unified_diff(self.path.as_str(), old.as_ref(), new.as_ref())
    }
}

impl FileContent {
    /// Returns whether two contents are equal. If only the hash of one content is known, compares the hashes. An
    /// oversized content equals no other content.
    fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(bytes), Self::Bytes(other)) => bytes == other,
            (Self::Hashed(hash, _), Self::Hashed(other, _)) => hash == other,
            (Self::Oversized(_), _) | (_, Self::Oversized(_)) => false,
            (Self::Bytes(bytes), Self::Hashed(hash, size)) | (Self::Hashed(hash, size), Self::Bytes(bytes)) => {
                bytes.len() as u64 == *size && sha256(bytes) == hash.0
            }
        }
    }
}

/// Reads the file at the task's path and computes the file that the task wants there. Changes nothing.
fn read_state(site: &Site, task: &HostTask) -> Result<FileState, TaskError> {
    let parameters: FileParameters = parameters(task)?;
    let texts = TaskTemplates::new(site, task);
    let path = render_path(&texts, &parameters)?;
    let parent = open_parent(site, &path)?;
    // The version is read before the content, so that a change of the file in the meantime is noticed.
    let version = parent.as_deref().map(|dir| dir.version(path.name())).transpose()?.flatten();
    let present = parent.as_deref().map(|dir| read_present(dir, &path, parameters.absent)).transpose()?.flatten();
    // `preserved_file` is the existing file from which the new file gets the attributes that the author does not set.
    // It is `None` if the task deletes the file.
    let preserved_file = present.as_ref().filter(|_| !parameters.absent);
    let attributes = desired_attributes(site, task, (&path, &parameters), preserved_file)?;
    let unrequested_changes =
        preserved_file.map_or_else(Vec::new, |present| unrequested_changes(&present.stat, &attributes, &parameters));
    let is_mode_explicit = parameters.mode.is_some();
    let desired = desired_content(site, &texts, &parameters)?.map(|content| DesiredFile {
        content,
        attributes,
        is_mode_explicit,
        unrequested_changes,
    });
    let dir_mode = match &parameters.dir_mode {
        Some(text) => parse_mode("dir_mode", text)?,
        // The task will create directories, which inherit the default access control list (`true`).
        None if parent.is_none() && !parameters.absent => apply_default_acl(site, &path, 0o755, true)?,
        None => 0o755,
    };
    let validate = validate_command(&texts, &parameters.validate)?;
    let is_secret = task.is_sensitive() || site.ledger.is_secret_path(&path)?;
    Ok(FileState { path, parent, version, present, desired, dir_mode, validate, is_secret })
}

/// Fails if no task can manage a file at a path: if tasks may not write there, if a directory of the path is a link or
/// another kind of file, or if the path has something other than a plain file with one hard link.
fn check_path(site: &Site, path: &HostPath) -> Result<(), TaskError> {
    if let Some(dir) = open_parent(site, path)? {
        // Fails if something other than a plain file has the name, or if the file has several hard links.
        dir.details(path.name())?;
    }
    Ok(())
}

/// Renders the words of the command `validate`. Each `{path}` that the author wrote becomes
/// [`STAGED_PATH_PLACEHOLDER`], which [`run_validate`] later replaces by the path of the new file. A `{path}` inside a
/// rendered value stays as it is. A value must not contain the placeholder.
fn validate_command(texts: &TaskTemplates<'_>, items: &[String]) -> Result<Vec<String>, TaskError> {
    const FIELD: &str = "parameters.validate";
    if texts.words(FIELD, items)?.iter().any(|item| item.contains(STAGED_PATH_PLACEHOLDER)) {
        return Err(TaskError::new(format!(
            "{FIELD}: a value contains the noncharacter U+10FFFF around `path`, which is reserved for the path of the new file; remove it from the value"
        )));
    }
    let marked_items: Vec<String> = items.iter().map(|item| item.replace("{path}", STAGED_PATH_PLACEHOLDER)).collect();
    texts.words(FIELD, &marked_items)
}

/// Renders the template of the path of the file that the task manages, and returns the path.
fn render_path(texts: &TaskTemplates<'_>, parameters: &FileParameters) -> Result<HostPath, TaskError> {
    texts.path("parameters.path", parameters.path.as_deref().unwrap_or_default())
}

/// Reads the file that exists at a path. A large file is hashed instead of held in memory. A file that is to be deleted
/// (`absent`) is read only if it is small enough to be stored for undo.
fn read_present(dir: &dyn Dir, path: &HostPath, absent: bool) -> Result<Option<ExistingFile>, TaskError> {
    let limit = if absent { MAX_IN_MEMORY_BYTES } else { MAX_FILE_BYTES };
    // `details` fails unless the name is a plain file without other hard links (S65). So nothing else is ever replaced.
    let Some(FileDetails { stat, extras }) = dir.details(path.name())? else { return Ok(None) };
    if stat.size > limit {
        return Ok(Some(ExistingFile { stat, extras, content: FileContent::Oversized(stat.size) }));
    }
    let (mut bytes, mut digest, mut size) = (Vec::new(), Sha256::new(), 0);
    let exists = dir.read_chunks(path.name(), MAX_FILE_BYTES, &mut |piece| {
        size += piece.len() as u64;
        bytes.extend_from_slice(piece);
        // Above the limit, all bytes that were read so far are hashed and dropped, and then each further piece.
        if size > MAX_IN_MEMORY_BYTES {
            digest.update(&bytes);
            bytes.clear();
        }
        Ok(())
    })?;
    if !exists {
        return Ok(None);
    }
    let is_large = size > MAX_IN_MEMORY_BYTES;
    let content = if is_large { FileContent::Hashed(Hash(digest.finalize().into()), size) } else { FileContent::Bytes(bytes) };
    Ok(Some(ExistingFile { stat, extras, content }))
}

/// Returns the content that the task wants, or `None` if the file is to be deleted. The parser of the parameters
/// ensures that exactly one of `content`, `template`, `source` and `absent` is set.
fn desired_content(
    site: &Site,
    texts: &TaskTemplates<'_>,
    parameters: &FileParameters,
) -> Result<Option<FileContent>, TaskError> {
    if let Some(content) = &parameters.content {
        return Ok(Some(FileContent::Bytes(content.clone().into_bytes())));
    }
    if let Some(template) = &parameters.template {
        return Ok(Some(FileContent::Bytes(texts.text("parameters.template", template)?.into_bytes())));
    }
    parameters.source.as_ref().map(|source| blob_content(site, source)).transpose()
}

/// Returns owner, group, mode and extras of the new file. Attributes that the author does not set stay unchanged if the
/// existing file belongs to root, to the agent's user or to the owner in the task. They also stay if only root and the
/// agent can write the directory, because then root gave the file to a service. In other directories another user may
/// have created the file in advance, to read or run what the task writes into it (S67). Such a file is replaced by one
/// that the agent owns, and nobody may read the new file who could not read the old one.
///
/// A mode that the author does not set can lose bits. If the task reads a secret, others get no rights. Setuid, setgid
/// and sticky stay only if the old file belongs to root or to the agent's user. See also [`mode_mask_after_chown`].
fn desired_attributes(
    site: &Site,
    task: &HostTask,
    (path, parameters): (&HostPath, &FileParameters),
    present: Option<&ExistingFile>,
) -> Result<Attributes, TaskError> {
    let (agent_user, agent_group) = site.host.user_and_group();
    let owner = parameters.owner.as_ref().map(|owner| owner_uid(site, owner)).transpose()?;
    let default_mode = if task.reads_secrets() { 0o600 } else { 0o644 };
    let mut attributes = match present {
        None => new_file_attributes(site, task, (path, parameters), default_mode)?,
        Some(ExistingFile { stat, extras, .. }) if stat.user == agent_user || stat.user == 0 => {
            Attributes::from_stat(stat, extras.as_ref().ok().cloned())
        }
        // Only a task or root may set setuid, setgid and sticky.
        Some(ExistingFile { stat, extras, .. }) if Some(stat.user) == owner || is_trusted_dir(site, path)? => {
            Attributes { mode: stat.mode & 0o777, ..Attributes::from_stat(stat, extras.as_ref().ok().cloned()) }
        }
        Some(ExistingFile { stat, extras, .. }) => {
            // The former owner, its group and the users in the file's access control list then fall under "others". So
            // others get only the rights that each of these had. If the list is unreadable it may deny some of them
            // access, so others get none.
            let others = extras.as_ref().map_or(0, |extras| extras.common_rights(stat.mode));
            let group = match extras {
                Ok(extras) if stat.group == agent_group => extras.without_acl(stat.mode) & 0o070,
                Ok(_) | Err(_) => others << 3,
            };
            let (mode, extras) = (stat.mode & 0o700 | group | others, Some(Extras::default()));
            Attributes { user: Some(agent_user), group: Some(agent_group), mode: mode & default_mode, extras }
        }
    };
    if task.reads_secrets() {
        attributes.mode &= !0o007;
    }
    if let Some(text) = &parameters.mode {
        attributes.mode = parse_mode("mode", text)?;
    }
    attributes.user = owner.or(attributes.user);
    if let Some(group) = &parameters.group {
        attributes.group = Some(site.host.group_id(group)?);
    }
    if let Some(present) = present {
        if parameters.mode.is_none() {
            attributes.mode &= mode_mask_after_chown(present, &attributes);
        }
        attributes.extras = attributes.extras.map(|extras| extras.with_mode(present.stat.mode, attributes.mode));
    }
    Ok(attributes)
}

/// Returns the attributes of a file at a path where there was no file. Another user may have set the default access
/// control list of the directory. So a file with secrets, or in a directory that others can write, gets no list. If the
/// task sets no mode, nobody gets more rights than the default list grants, even if the file gets no list.
fn new_file_attributes(
    site: &Site,
    task: &HostTask,
    (path, parameters): (&HostPath, &FileParameters),
    mode: u32,
) -> Result<Attributes, TaskError> {
    // `has_list` is true if the file inherits the default list of the directory.
    let has_list = !task.reads_secrets() && is_trusted_dir(site, path)?;
    // A file that is to be deleted needs no mode, so the list is not read for it.
    let is_explicit = parameters.mode.is_some() || parameters.absent;
    let mode = if is_explicit { mode } else { apply_default_acl(site, path, mode, has_list)? };
    // Empty extras remove the inherited list. `None` leaves the list on the file.
    let extras = (!has_list).then(Extras::default);
    Ok(Attributes { extras, ..Attributes::with_mode(mode) })
}

/// Returns a mask of the mode bits that may stay when owner or group change. The former owner then belongs to "group"
/// or "others", and the former group to "others". Neither must get more rights than before. Setuid and setgid are
/// removed if the owner or the group changes, as in chown(2). Otherwise the new group could run, or the new owner
/// write, a file that acts as another user. Sticky is removed if the owner changes, because the next check would not
/// preserve it for a file of another user.
fn mode_mask_after_chown(present: &ExistingFile, attributes: &Attributes) -> u32 {
    let ExistingFile { stat, extras, .. } = present;
    let is_changed = |new_id: Option<u32>, old_id: u32| new_id.is_some_and(|new_id| new_id != old_id);
    let (owner_bits, group_bits) =
        (stat.mode >> 6 & 7, extras.as_ref().map_or(0, |extras| extras.without_acl(stat.mode)) >> 3 & 7);
    let mut allowed = 0o7777;
    // Group and others get at most the rights that the former owner had.
    if is_changed(attributes.user, stat.user) {
        allowed &= 0o700 | owner_bits << 3 | owner_bits;
    }
    // Others get at most the rights that the former group had. Sticky may stay.
    if is_changed(attributes.group, stat.group) {
        allowed &= 0o1770 | group_bits;
    }
    allowed
}

/// Returns a sentence for each change of owner, group or mode of an existing file that the author did not request. The
/// diff shows the same, but a sensitive task reports no diff.
fn unrequested_changes(stat: &Stat, attributes: &Attributes, parameters: &FileParameters) -> Vec<String> {
    let mut changes = Vec::new();
    if parameters.mode.is_none() && attributes.mode != stat.mode {
        changes.push(format!("mode {:04o} becomes {:04o}", stat.mode, attributes.mode));
    }
    for (name, author_value, new_id, old_id) in
        [("owner", &parameters.owner, attributes.user, stat.user), ("group", &parameters.group, attributes.group, stat.group)]
    {
        if let Some(new_id) = new_id.filter(|new_id| author_value.is_none() && *new_id != old_id) {
            changes.push(format!("{name} {old_id} becomes {new_id}"));
        }
    }
    changes
}

/// Returns the content of the blob that `source` names: its bytes, or hash and size if it is large. Fails if the blob
/// is not in the ledger.
fn blob_content(site: &Site, source: &str) -> Result<FileContent, TaskError> {
    let hash = Hash::from_source(source).map_err(|error| TaskError::new(format!("parameters.source: {source:?}: {error}")))?;
    let missing_error = || TaskError::new(format!("parameters.source: the blob {source} is not on this host yet"));
    match site.ledger.body_size(hash)?.ok_or_else(missing_error)? {
        size if size > MAX_IN_MEMORY_BYTES => Ok(FileContent::Hashed(hash, size)),
        _ => Ok(FileContent::Bytes(site.ledger.body(hash)?.ok_or_else(missing_error)?)),
    }
}

/// Replaces the existing file, if there is one, by the file that the task wants. Creates missing directories. Returns
/// the output of the command `validate`.
async fn replace_file(site: &Site, task: &HostTask, state: &FileState, desired_file: &DesiredFile) -> Result<String, TaskError> {
    let created_dir;
    let dir = if let Some(dir) = &state.parent {
        &**dir
    } else {
        created_dir = create_parent(site, task, &state.path, state.dir_mode)?;
        &*created_dir
    };
    let (staged, output) = stage_validated(site, task, state, desired_file, dir).await.map_err(TaskError::without_effect)?;
    staged.commit(dir, state.path.name())?;
    Ok(output)
}

/// Stages the new file (writes it under a temporary name) in the directory of the old one, runs `validate`, and stores
/// the old file for undo ([`back_up`]). Returns the staged file and the output of `validate`. If `validate` fails, or
/// if the old or the staged file was changed in the meantime, removes the staged file and fails.
async fn stage_validated(
    site: &Site,
    task: &HostTask,
    state: &FileState,
    desired_file: &DesiredFile,
    dir: &dyn Dir,
) -> Result<(StagedFile, String), TaskError> {
    let staged = stage_file(site, dir, state.path.name(), desired_file)?;
    let validation = async {
        let staged_version = dir.version(staged.name())?;
        check_mode_stored(state, desired_file, staged_version.as_ref())?;
        let output = run_validate(site, task, state, staged.name()).await?;
        // The directory is opened again by its path, because `validate` may have replaced the directory too.
        let current_dir = site.host.parent_dir(&state.path)?;
        if current_dir.as_deref().map(|dir| dir.version(staged.name())).transpose()?.flatten() != staged_version {
            let path = &state.path;
            let message = format!(
                "the new file, or its directory, was changed or replaced while it was checked (validate may only read {{path}}): \
                 {path} is left as it was"
            );
            return Err(TaskError { output, ..TaskError::new(message) });
        }
        check_unchanged(state, dir)?;
        back_up(site, task, state)?;
        Ok(output)
    };
    match validation.await {
        Ok(output) => Ok((staged, output)),
        Err(error) => {
            // An error of this removal is ignored, because the error of the validation is more useful. A later pass
            // removes the staged file.
            let _ = staged.discard(dir);
            Err(error)
        }
    }
}

/// Fails if the file system did not store the mode that the author set on the staged file (FAT stores none). Otherwise
/// each pass would find a difference and write the file again.
fn check_mode_stored(state: &FileState, desired: &DesiredFile, version: Option<&FileVersion>) -> Result<(), TaskError> {
    let (path, mode) = (&state.path, desired.attributes.mode);
    match version.map(|version| version.stat.mode).filter(|stored_mode| desired.is_mode_explicit && *stored_mode != mode) {
        Some(stored_mode) => Err(TaskError::new(format!(
            "parameters.mode: the file system of {path} does not store it: {mode:04o} becomes {stored_mode:04o}; {path} is left as it was: \
             remove mode, write \"{stored_mode:04o}\", or name a path on another file system"
        ))),
        None => Ok(()),
    }
}

/// Fails if the file at the path is not the version that [`read_state`] found. Otherwise the task would silently
/// overwrite or delete a change by another program.
fn check_unchanged(state: &FileState, dir: &dyn Dir) -> Result<(), TaskError> {
    if dir.version(state.path.name())? == state.version { Ok(()) } else { Err(changed_error(&state.path)) }
}

/// Writes the new file under a temporary name in the directory of the old file. A large blob is copied from the ledger
/// in pieces. Fails if the copy does not have the expected hash.
fn stage_file(site: &Site, dir: &dyn Dir, name: &str, desired_file: &DesiredFile) -> Result<StagedFile, TaskError> {
    let host = &*site.host;
    let hash = match &desired_file.content {
        FileContent::Bytes(bytes) => return Ok(StagedFile::write(host, dir, name, bytes, &desired_file.attributes)?),
        FileContent::Hashed(hash, _) => *hash,
        FileContent::Oversized(_) => unreachable!("the content that a task wants is never oversized"),
    };
    let mut staging = UnfinishedFile::begin(host, dir, name, &desired_file.attributes)?;
    let error = match site.ledger.copy_body(hash, &mut staging) {
        Ok(true) => return Ok(staging.finish(dir)?),
        Ok(false) => TaskError::new("parameters.source: the blob on this host has changed; it is fetched again"),
        Err(error) => error.into(),
    };
    staging.discard(dir);
    Err(error)
}

/// Runs the command `validate` on the staged file (the new file under its temporary name), and returns its output.
/// Returns an empty output if the author set no such command. Fails if the command fails.
async fn run_validate(site: &Site, task: &HostTask, state: &FileState, staged: &str) -> Result<String, TaskError> {
    if state.validate.is_empty() {
        return Ok(String::new());
    }
    let real_path = site.host.system_path(&state.path);
    let staged = real_path.parent().unwrap_or(Path::new("/")).join(staged).display().to_string();
    let argv = state.validate.iter().map(|item| item.replace(STAGED_PATH_PLACEHOLDER, &staged)).collect();
    let purpose = CommandPurpose::Validation(task.task.id.clone());
    let finished = site.host.run(&HostCommand { purpose, ..HostCommand::new(argv, VALIDATE_TIMEOUT) }).await?;
    if finished.end.is_success() {
        return Ok(finished.output);
    }
    let message = format!("validate {}: {} is left as it was", finished.end.sentence(), state.path);
    Err(TaskError { output: finished.output, ..TaskError::new(message) })
}

/// Deletes the existing file, and stores it for undo before ([`back_up`]). Fails if the file was changed after it was
/// read. Does nothing if there is no file. The returned output is empty, because no command runs.
fn remove_file(site: &Site, task: &HostTask, state: &FileState) -> Result<String, TaskError> {
    if let (Some(dir), Some(_)) = (&state.parent, &state.present) {
        check_unchanged(state, &**dir).map_err(TaskError::without_effect)?;
        back_up(site, task, state)?;
        dir.remove(state.path.name())?;
        dir.sync()?;
    }
    Ok(String::new())
}

/// Stores the existing file for undo before it is replaced or deleted. Stores nothing if the file may hold a secret or
/// is too large. If there is no file, stores a note without content, from which the agent later knows that the task created
/// the file.
fn back_up(site: &Site, task: &HostTask, state: &FileState) -> Result<(), TaskError> {
    if state.is_secret && state.present.is_some() {
        return Ok(());
    }
    let bytes = match state.present.as_ref().map(|present| &present.content) {
        // Too large to store.
        Some(FileContent::Hashed(..) | FileContent::Oversized(_)) => return Ok(()),
        Some(FileContent::Bytes(bytes)) => Some(bytes.clone()),
        None => None,
    };
    let present = state.present.as_ref();
    site.ledger.store_undo(&UndoNote {
        task: task.task.id.clone(),
        path: state.path.to_string(),
        bytes,
        attributes: present.map(|ExistingFile { stat, extras, .. }| {
            // The access control list is not stored. With a list, the group bits of the mode can show more rights than
            // the group has. So the mode that the file would have without a list is stored.
            let mode = extras.as_ref().map_or(stat.mode, |extras| extras.without_acl(stat.mode));
            (stat.user, stat.group, mode)
        }),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests;
