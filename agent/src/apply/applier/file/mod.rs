//! `file`: one file from a content, a template or a blob, or none there.
//!
//! The new file is whole, with its rights, before it has the name; `validate` sees it then, and the old one
//! stands until it said yes. What was replaced is kept in the ledger for undo.

mod difference;

use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stemma_core::digest::sha256;
use stemma_core::task::{FileParameters, check_beside, check_put, check_words, file_mode};
use stemma_wire::message::Hash;

use super::{Applier, parameters};
use crate::apply::ledger::UndoNote;
use crate::apply::rendering::Texts;
use crate::apply::task::{Applied, Check, HostTask, Site, TaskError};
use crate::host::atomic::{Attributes, Staged, Staging, check_makeable, ensure_dir};
use crate::host::extras::within_default;
use crate::host::{Command, Dir, Extras, FileVersion, Host, HostError, HostPath, Look, Pending, Stat};

/// The largest file that is written: a blob.
const LARGEST: u64 = 64 * 1024 * 1024;

/// The largest file that stands in memory, is compared line by line, and is kept for undo when it is replaced.
const IN_MEMORY: u64 = 1024 * 1024;

/// How long `validate` may take.
const VALIDATE: Duration = Duration::from_mins(1);

/// What stands for the staged file in the items of `validate` while values are put in: no text that anybody means has this noncharacter.
const STAGED: &str = "\u{10FFFF}path\u{10FFFF}";

/// The type.
pub(super) struct File;

/// What the task wants, and what is there.
struct FileState {
    path: HostPath,
    parent: Option<Box<dyn Dir>>,
    /// Which version of the file all this was read of, or an earlier one; `None`: nothing was there.
    seen: Option<FileVersion>,
    present: Option<Present>,
    wanted: Option<Wanted>,
    dir_mode: u32,
    validate: Vec<String>,
    /// Whether what is there may hold a secret: a task that reads secrets wrote it, or writes it now.
    is_secret: bool,
}

struct Present {
    stat: Stat,
    /// Why they are not known matters where they are to be kept alone.
    extras: Result<Extras, HostError>,
    content: Content,
}

struct Wanted {
    content: Content,
    attributes: Attributes,
    /// Whether the author said which mode it has.
    is_mode_said: bool,
    /// What changes of the rights without having been asked for.
    unasked: Vec<String>,
}

/// What a file holds.
#[derive(PartialEq, Eq)]
enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// What has this hash; too much to be kept in memory.
    Large(Hash, u64),
    /// More than any file that is written has, or than is kept of one that is to go: what it is makes no difference.
    Unread(u64),
}

impl Applier for File {
    fn keeps(&self, site: &Site, task: &HostTask) -> Option<HostPath> {
        let parameters: FileParameters = parameters(task).ok()?;
        path(&Texts::new(site, task), &parameters).ok()
    }

    fn refuses(&self, site: &Site, path: &HostPath) -> Option<String> {
        look_at(site, path).err().map(|error| error.message)
    }

    fn gives_to(&self, site: &Site, task: &HostTask) -> Option<u32> {
        let parameters: FileParameters = parameters(task).ok()?;
        user(site, parameters.owner.as_ref()?).ok()
    }

    fn check<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<Check, TaskError>> {
        Box::pin(async move {
            let state = state(site, task)?;
            if state.is_so() {
                return Ok(Check::AsItShould);
            }
            let (diff, blocked) = (state.diff(), state.check_replaceable(&*site.host));
            Ok(match blocked {
                Ok(()) => Check::Differs { diff, message: state.loses() },
                Err(error) => Check::Blocked { diff, message: error.message },
            })
        })
    }

    fn apply<'a>(&'a self, site: &'a Site, task: &'a HostTask) -> Pending<'a, Result<Applied, TaskError>> {
        Box::pin(async move {
            let state = state(site, task)?;
            state.check_replaceable(&*site.host)?;
            let diff = state.diff();
            let output = match &state.wanted {
                Some(wanted) => replace(site, task, &state, wanted).await?,
                None => remove(site, task, &state)?,
            };
            Ok(Applied { message: state.loses(), output, diff })
        })
    }
}

impl FileState {
    fn is_so(&self) -> bool {
        match (&self.present, &self.wanted) {
            (None, None) => true,
            (Some(present), Some(wanted)) => {
                present.content.is(&wanted.content) && wanted.attributes.describe(&present.stat)
            }
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Whether the new file can be validated, and the old one replaced with all that is to be kept of it. Before anything is written: each try
    /// would leave an unfinished file in an append-only directory.
    fn check_replaceable(&self, host: &dyn Host) -> Result<(), TaskError> {
        let refused = |error: String| TaskError::new(error).before_the_change();
        if self.wanted.is_some() && !self.validate.is_empty() {
            check_words(&self.validate).map_err(|why| refused(format!("parameters.validate: {why}")))?;
        }
        if let Some(Present { extras: Err(unknown), .. }) = &self.present
            && self.wanted.as_ref().is_some_and(|wanted| wanted.attributes.extras.is_none())
        {
            return Err(refused(unknown.sentence()));
        }
        let checked = match (&self.parent, self.path.parent()) {
            (Some(dir), _) => dir.check_replaceable(self.path.name()),
            (None, Some(parent)) => check_makeable(host, &parent),
            (None, None) => Ok(()),
        };
        checked.map_err(|error| refused(error.sentence()))
    }

    /// What the file has and the new one has not, though the task does not say so: known beforehand, and a sentence, since a sensitive task
    /// reports no diff.
    fn loses(&self) -> String {
        let lost = self.lost().map(|lost| format!("the new file is without {lost}"));
        let unasked =
            self.wanted.as_ref().map(|wanted| wanted.unasked.join(", ")).filter(|changes| !changes.is_empty());
        lost.into_iter().chain(unasked).collect::<Vec<_>>().join("; ")
    }

    fn lost(&self) -> Option<String> {
        let (present, wanted) = self.present.as_ref().zip(self.wanted.as_ref())?;
        let kept = wanted.attributes.extras.as_ref()?;
        match &present.extras {
            Ok(extras) => extras.lost(kept),
            Err(_) => Some("its extended attributes and flags, which cannot be read".to_owned()),
        }
    }

    fn diff(&self) -> String {
        let old = self.present.as_ref().map(|present| {
            let stat = &present.stat;
            let rights = format!("mode {:04o}, owner {}:{}", stat.mode, stat.user, stat.group);
            difference::Side { content: &present.content, rights }
        });
        let new = self.wanted.as_ref().map(|wanted| {
            let was = self.present.as_ref().map(|present| present.stat);
            let shown = |wanted: Option<u32>, was: Option<u32>| {
                wanted.or(was).map_or_else(|| "the agent's".to_owned(), |number| number.to_string())
            };
            let (user, group) = (was.map(|stat| stat.user), was.map(|stat| stat.group));
            let Attributes { user: to_user, group: to_group, mode, .. } = wanted.attributes;
            let lost = self.lost().map_or_else(String::new, |lost| format!(", without {lost}"));
            let rights = format!("mode {mode:04o}, owner {}:{}{lost}", shown(to_user, user), shown(to_group, group));
            difference::Side { content: &wanted.content, rights }
        });
        if self.is_secret {
            return difference::withheld(self.path.as_str(), old.as_ref(), new.as_ref());
        }
        difference::unified(self.path.as_str(), old.as_ref(), new.as_ref())
    }
}

impl Content {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bytes(one), Self::Bytes(other)) => one == other,
            (Self::Large(one, _), Self::Large(other, _)) => one == other,
            (Self::Unread(_), _) | (_, Self::Unread(_)) => false,
            (Self::Bytes(bytes), Self::Large(hash, size)) | (Self::Large(hash, size), Self::Bytes(bytes)) => {
                bytes.len() as u64 == *size && sha256(bytes) == hash.0
            }
        }
    }
}

fn state(site: &Site, task: &HostTask) -> Result<FileState, TaskError> {
    let parameters: FileParameters = parameters(task)?;
    let texts = Texts::new(site, task);
    let path = path(&texts, &parameters)?;
    let parent = place(site, &path)?;
    // Before all else, so that a later change is noticed, whatever was read of it.
    let seen = parent.as_deref().map(|dir| dir.version(path.name())).transpose()?.flatten();
    let present = parent.as_deref().map(|dir| present(dir, &path, parameters.absent)).transpose()?.flatten();
    // Of a file that is to go, nothing is kept.
    let kept = present.as_ref().filter(|_| !parameters.absent);
    let attributes = attributes(site, task, (&path, &parameters), kept)?;
    let unasked = kept.map_or_else(Vec::new, |present| unasked(&present.stat, &attributes, &parameters));
    let is_mode_said = parameters.mode.is_some();
    let wanted =
        content(site, &texts, &parameters)?.map(|content| Wanted { content, attributes, is_mode_said, unasked });
    let dir_mode = match &parameters.dir_mode {
        Some(text) => mode("dir_mode", text)?,
        None if parent.is_none() && !parameters.absent => within_list(site, &path, 0o755, true)?,
        None => 0o755,
    };
    let validate = validate_words(&texts, &parameters.validate)?;
    let is_secret = task.is_sensitive() || site.ledger.is_secret_path(&path)?;
    Ok(FileState { path, parent, seen, present, wanted, dir_mode, validate, is_secret })
}

/// The directory that a file is put into; `None`: it is not there yet. Nothing of the agent's own is a task's, and no link is followed.
fn place(site: &Site, path: &HostPath) -> Result<Option<Box<dyn Dir>>, TaskError> {
    check_put(path.as_str())
        .and_then(|()| check_beside(path.as_str(), site.label_map.as_str()))
        .map_err(|error| TaskError::new(format!("parameters.path: {error}")))?;
    Ok(site.host.parent_of(path)?)
}

/// Whether there can be a file at a path: it may be a task's, and nothing is in the way.
fn look_at(site: &Site, path: &HostPath) -> Result<(), TaskError> {
    if let Some(dir) = place(site, path)? {
        dir.look(path.name())?;
    }
    Ok(())
}

/// The items of `validate`, rendered, with [`STAGED`] where its author wrote `{path}`. A value in which that stands is put in as it is.
fn validate_words(texts: &Texts<'_>, items: &[String]) -> Result<Vec<String>, TaskError> {
    const FIELD: &str = "parameters.validate";
    if texts.words(FIELD, items)?.iter().any(|item| item.contains(STAGED)) {
        return Err(TaskError::new(format!(
            "{FIELD}: a value in it has the noncharacter U+10FFFF around `path`, which stands for the new file here; take it out of the value"
        )));
    }
    let marked: Vec<String> = items.iter().map(|item| item.replace("{path}", STAGED)).collect();
    texts.words(FIELD, &marked)
}

fn path(texts: &Texts<'_>, parameters: &FileParameters) -> Result<HostPath, TaskError> {
    texts.path("parameters.path", parameters.path.as_deref().unwrap_or_default())
}

/// File rights that an author wrote.
fn mode(field: &str, text: &str) -> Result<u32, TaskError> {
    file_mode(text).ok_or_else(|| {
        TaskError::new(format!("parameters.{field}: {text:?} is no mode; write octal digits as \"0644\""))
    })
}

fn present(dir: &dyn Dir, path: &HostPath, is_to_go: bool) -> Result<Option<Present>, TaskError> {
    let read = if is_to_go { IN_MEMORY } else { LARGEST };
    // Reading refuses what is no plain file of one name (S65); only then is anything replaced.
    let Some(Look { stat, extras }) = dir.look(path.name())? else { return Ok(None) };
    if stat.size > read {
        return Ok(Some(Present { stat, extras, content: Content::Unread(stat.size) }));
    }
    let (mut bytes, mut digest, mut size) = (Vec::new(), Sha256::new(), 0);
    let there = dir.pieces(path.name(), LARGEST, &mut |piece| {
        size += piece.len() as u64;
        bytes.extend_from_slice(piece);
        if size > IN_MEMORY {
            digest.update(&bytes);
            bytes.clear();
        }
        Ok(())
    })?;
    if !there {
        return Ok(None);
    }
    let is_large = size > IN_MEMORY;
    let content = if is_large { Content::Large(Hash(digest.finalize().into()), size) } else { Content::Bytes(bytes) };
    Ok(Some(Present { stat, extras, content }))
}

/// What the file is to hold; `None`: it is to be gone. Exactly one of them is given, or the parameters were not read.
fn content(site: &Site, texts: &Texts<'_>, parameters: &FileParameters) -> Result<Option<Content>, TaskError> {
    if let Some(content) = &parameters.content {
        return Ok(Some(Content::Bytes(content.clone().into_bytes())));
    }
    if let Some(template) = &parameters.template {
        return Ok(Some(Content::Bytes(texts.text("parameters.template", template)?.into_bytes())));
    }
    parameters.source.as_ref().map(|source| blob(site, source)).transpose()
}

/// What an author does not say stays as it is, where root, the agent's user or the owner that is named has the file, and where
/// nobody else may write the directory: root gave the file to a service then. Elsewhere another user's file says nothing: its
/// owner may have made it beforehand, to read or to run what comes into it (S67). It is replaced by one of the agent's, as where
/// nothing stood, that nobody may read who could not read that one.
fn attributes(
    site: &Site,
    task: &HostTask,
    (path, parameters): (&HostPath, &FileParameters),
    present: Option<&Present>,
) -> Result<Attributes, TaskError> {
    let (own_user, own_group) = site.host.identity();
    let owner = parameters.owner.as_ref().map(|owner| user(site, owner)).transpose()?;
    let new = if task.reads_secrets() { 0o600 } else { 0o644 };
    let mut attributes = match present {
        None => of_new(site, task, (path, parameters), new)?,
        Some(Present { stat, extras, .. }) if stat.user == own_user || stat.user == 0 => {
            Attributes::of(stat, extras.as_ref().ok().cloned())
        }
        // Upper bits are given by a task or by root.
        Some(Present { stat, extras, .. }) if Some(stat.user) == owner || is_closed(site, path)? => {
            Attributes { mode: stat.mode & 0o777, ..Attributes::of(stat, extras.as_ref().ok().cloned()) }
        }
        Some(Present { stat, extras, .. }) => {
            // Its owner, its group and whoever its list names are among all others then. Where the list cannot be read, it may deny somebody.
            let others = extras.as_ref().map_or(0, |extras| extras.of_everybody(stat.mode));
            let group = match extras {
                Ok(extras) if stat.group == own_group => extras.without_acl(stat.mode) & 0o070,
                Ok(_) | Err(_) => others << 3,
            };
            let (mode, extras) = (stat.mode & 0o700 | group | others, Some(Extras::default()));
            Attributes { user: Some(own_user), group: Some(own_group), mode: mode & new, extras }
        }
    };
    if task.reads_secrets() {
        attributes.mode &= !0o007;
    }
    if let Some(text) = &parameters.mode {
        attributes.mode = mode("mode", text)?;
    }
    attributes.user = owner.or(attributes.user);
    if let Some(group) = &parameters.group {
        attributes.group = Some(site.host.group(group)?);
    }
    if let Some(present) = present {
        if parameters.mode.is_none() {
            attributes.mode &= left_to_others(present, &attributes);
        }
        attributes.extras = attributes.extras.map(|extras| extras.with_mode(present.stat.mode, attributes.mode));
    }
    Ok(attributes)
}

/// What a file has where nothing stood. A list that the directory gives may be somebody else's: none reads a secret by it, and none what stands
/// in a directory of theirs. Where no mode is said, nobody has more than that list gives, also where the file is without it.
fn of_new(
    site: &Site,
    task: &HostTask,
    (path, parameters): (&HostPath, &FileParameters),
    mode: u32,
) -> Result<Attributes, TaskError> {
    let has_list = !task.reads_secrets() && is_closed(site, path)?;
    let is_said = parameters.mode.is_some() || parameters.absent;
    let mode = if is_said { mode } else { within_list(site, path, mode, has_list)? };
    let extras = (!has_list).then(Extras::default);
    Ok(Attributes { extras, ..Attributes::mode(mode) })
}

/// What the default list that governs a path leaves of a mode that nobody said.
fn within_list(site: &Site, path: &HostPath, mode: u32, has_list: bool) -> Result<u32, HostError> {
    let list = site.host.default_list(path)?;
    Ok(list.map_or(mode, |list| within_default(&list, mode, has_list)))
}

/// The bits of a mode that may be left where the owner or the group is another one from now on. Who it was is among all others then, or among
/// the group and them, and has no more than before. Nobody runs it as an owner or a group that was not asked for: setuid and setgid go, both
/// with either, as chown(2) has it, since the new group may run what it could not, and the new owner write it. The sticky bit goes with
/// the owner, of whom alone it would be kept at the next look.
fn left_to_others(present: &Present, attributes: &Attributes) -> u32 {
    let Present { stat, extras, .. } = present;
    let is_another = |wanted: Option<u32>, was: u32| wanted.is_some_and(|wanted| wanted != was);
    let (of_owner, of_group) =
        (stat.mode >> 6 & 7, extras.as_ref().map_or(0, |extras| extras.without_acl(stat.mode)) >> 3 & 7);
    let mut left = 0o7777;
    if is_another(attributes.user, stat.user) {
        left &= 0o700 | of_owner << 3 | of_owner;
    }
    if is_another(attributes.group, stat.group) {
        left &= 0o1770 | of_group;
    }
    left
}

/// What changes of the rights of a file that is there, and was not asked for: for a sentence, since a sensitive task reports no diff.
fn unasked(stat: &Stat, attributes: &Attributes, parameters: &FileParameters) -> Vec<String> {
    let mut changes = Vec::new();
    if parameters.mode.is_none() && attributes.mode != stat.mode {
        changes.push(format!("mode {:04o} becomes {:04o}", stat.mode, attributes.mode));
    }
    for (name, asked, wanted, was) in [
        ("owner", &parameters.owner, attributes.user, stat.user),
        ("group", &parameters.group, attributes.group, stat.group),
    ] {
        if let Some(wanted) = wanted.filter(|wanted| asked.is_none() && *wanted != was) {
            changes.push(format!("{name} {was} becomes {wanted}"));
        }
    }
    changes
}

/// Whether the directory that a file lies in, and each above it, is written by root and the agent's user alone.
fn is_closed(site: &Site, path: &HostPath) -> Result<bool, HostError> {
    path.parent().map_or(Ok(true), |parent| Ok(site.host.open_to_others(&parent)?.is_none()))
}

/// The owner that an author named.
fn user(site: &Site, owner: &str) -> Result<u32, TaskError> {
    let (user, (own_user, _)) = (site.host.user(owner)?, site.host.identity());
    if own_user != 0 && user != own_user {
        return Err(TaskError::new(format!("parameters.owner: {owner} is another user, and the agent is not root")));
    }
    Ok(user)
}

fn blob(site: &Site, source: &str) -> Result<Content, TaskError> {
    let hash =
        Hash::of_source(source).map_err(|error| TaskError::new(format!("parameters.source: {source:?}: {error}")))?;
    let absent = || TaskError::new(format!("parameters.source: the blob {source} is not on this host yet"));
    match site.ledger.body_size(hash)?.ok_or_else(absent)? {
        size if size > IN_MEMORY => Ok(Content::Large(hash, size)),
        _ => Ok(Content::Bytes(site.ledger.body(hash)?.ok_or_else(absent)?)),
    }
}

async fn replace(site: &Site, task: &HostTask, state: &FileState, wanted: &Wanted) -> Result<String, TaskError> {
    let host = &*site.host;
    let made;
    let dir = match (&state.parent, state.path.parent()) {
        (Some(dir), _) => &**dir,
        (None, Some(parent)) => {
            made = ensure_dir(host, &parent, state.dir_mode)?;
            &*made
        }
        (None, None) => unreachable!("the root is always there"),
    };
    let (staged, output) = accepted(site, task, state, wanted, dir).await.map_err(TaskError::before_the_change)?;
    staged.commit(dir, state.path.name())?;
    Ok(output)
}

/// The new file beside the old one, which is kept for undo, and what `validate` said when it took it.
async fn accepted(
    site: &Site,
    task: &HostTask,
    state: &FileState,
    wanted: &Wanted,
    dir: &dyn Dir,
) -> Result<(Staged, String), TaskError> {
    let staged = stage(site, dir, state.path.name(), wanted)?;
    let judged = async {
        let whole = dir.version(staged.name())?;
        check_mode_kept(state, wanted, whole.as_ref())?;
        let output = validate(site, state, staged.name()).await?;
        // By its path: the directory may be another one too.
        let now = site.host.parent_of(&state.path)?;
        if now.as_deref().map(|dir| dir.version(staged.name())).transpose()?.flatten() != whole {
            let path = &state.path;
            let message = format!(
                "the new file, or its directory, was changed or replaced while it was checked (validate may only look at {{path}}): \
                 {path} is left as it was"
            );
            return Err(TaskError { output, ..TaskError::new(message) });
        }
        check_unchanged(state, dir)?;
        keep(site, task, state)?;
        Ok(output)
    };
    match judged.await {
        Ok(output) => Ok((staged, output)),
        Err(error) => {
            // What cannot be taken away now is swept later, and says less than why it is not put in its place.
            let _ = staged.discard(dir);
            Err(error)
        }
    }
}

/// Checks that the file system keeps the mode that an author said (FAT keeps none): each pass would find another one and write the file again.
fn check_mode_kept(state: &FileState, wanted: &Wanted, made: Option<&FileVersion>) -> Result<(), TaskError> {
    let (path, said) = (&state.path, wanted.attributes.mode);
    match made.map(|made| made.stat.mode).filter(|kept| wanted.is_mode_said && *kept != said) {
        Some(kept) => Err(TaskError::new(format!(
            "parameters.mode: the file system of {path} does not keep it: {said:04o} becomes {kept:04o}; {path} is left as it was: \
             take mode out, write \"{kept:04o}\", or name a path on another file system"
        ))),
        None => Ok(()),
    }
}

/// Checks that what is to be replaced is still what was looked at: what somebody else made of it since would be undone in silence.
fn check_unchanged(state: &FileState, dir: &dyn Dir) -> Result<(), TaskError> {
    let path = &state.path;
    if dir.version(path.name())? == state.seen {
        return Ok(());
    }
    Err(TaskError::new(format!(
        "{path} was changed by somebody else meanwhile: it is left as it is, and looked at anew in the next pass"
    )))
}

fn stage(site: &Site, dir: &dyn Dir, name: &str, wanted: &Wanted) -> Result<Staged, TaskError> {
    let host = &*site.host;
    let hash = match &wanted.content {
        Content::Bytes(bytes) => return Ok(Staged::write(host, dir, name, bytes, &wanted.attributes)?),
        Content::Large(hash, _) => *hash,
        Content::Unread(_) => unreachable!("what a task wants is known"),
    };
    let mut staging = Staging::begin(host, dir, name, &wanted.attributes)?;
    let lost = match site.ledger.copy_body(hash, &mut staging) {
        Ok(true) => return Ok(staging.finish(dir)?),
        Ok(false) => TaskError::new("parameters.source: the blob on this host has changed; it is fetched again"),
        Err(error) => error.into(),
    };
    staging.discard(dir);
    Err(lost)
}

/// Runs `validate` on the staged file; `{path}` in it is where that lies.
async fn validate(site: &Site, state: &FileState, staged: &str) -> Result<String, TaskError> {
    if state.validate.is_empty() {
        return Ok(String::new());
    }
    let outside = site.host.outside(&state.path);
    let staged = outside.parent().unwrap_or(Path::new("/")).join(staged).display().to_string();
    let argv = state.validate.iter().map(|item| item.replace(STAGED, &staged)).collect();
    let finished = site.host.run(&Command::new(argv, VALIDATE)).await?;
    if finished.end.is_success() {
        return Ok(finished.output);
    }
    let message = format!("validate {}: {} is left as it was", finished.end.sentence(), state.path);
    Err(TaskError { output: finished.output, ..TaskError::new(message) })
}

fn remove(site: &Site, task: &HostTask, state: &FileState) -> Result<String, TaskError> {
    if let (Some(dir), Some(_)) = (&state.parent, &state.present) {
        check_unchanged(state, &**dir).map_err(TaskError::before_the_change)?;
        keep(site, task, state)?;
        dir.remove(state.path.name())?;
        dir.sync()?;
    }
    Ok(String::new())
}

/// Keeps what is about to be replaced; not where that may hold a secret.
fn keep(site: &Site, task: &HostTask, state: &FileState) -> Result<(), TaskError> {
    if state.is_secret {
        return Ok(());
    }
    let bytes = match state.present.as_ref().map(|present| &present.content) {
        // Too large to be kept.
        Some(Content::Large(..) | Content::Unread(_)) => return Ok(()),
        Some(Content::Bytes(bytes)) => Some(bytes.clone()),
        None => None,
    };
    let present = state.present.as_ref();
    site.ledger.keep_replaced(&UndoNote {
        task: task.task.id.clone(),
        path: state.path.to_string(),
        bytes,
        attributes: present.map(|Present { stat, extras, .. }| {
            // The list is not kept, and without it the group has less than the mode shows.
            let mode = extras.as_ref().map_or(stat.mode, |extras| extras.without_acl(stat.mode));
            (stat.user, stat.group, mode)
        }),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests;
