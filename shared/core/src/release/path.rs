//! Paths that tasks write: which of a profile's tasks may have none on a host, known before anything is rendered.
//!
//! A node is looked at only for those: in most releases each task has a path of its own that is written out, and no node costs anything.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{CompiledRelease, TaskIx};
use crate::condition::{Author, Template};
use crate::input::Inputs;
use crate::task::{
    Leaves, Names, PathRefused, Task, at_or_above, check_path, check_put, is_template, spellings, sure_directory,
    task_type,
};

/// Where a task puts a file, or keeps one away.
#[derive(Debug)]
pub struct TaskPath {
    text: PathText,
    /// What the task leaves there.
    pub leaves: Leaves,
    /// The spellings of what it lies at or below, whatever its template gives; the empty text: anywhere.
    at_or_below: Box<[String]>,
}

/// A template by which a task names a path or a program of its host, besides the path that it writes.
#[derive(Debug)]
pub struct TaskName {
    /// The field, as `parameters.creates`.
    pub field: Box<str>,
    template: Arc<dyn Template>,
    names: Names,
}

#[derive(Debug)]
enum PathText {
    Plain(Box<str>),
    Template(Arc<dyn Template>),
}

/// What is known of a task's path on a host.
pub(crate) enum OnHost<'a> {
    /// It.
    Path(Cow<'a, str>),
    /// The template alone, which cannot be rendered: what it reads is not there.
    Unknown(&'a str),
    /// What the template gives is no path that a host takes.
    Refused(PathRefused),
}

impl TaskPath {
    /// The path of a task that writes one: one that hosts neither run nor check writes none. A text that is no path fails by itself on the host,
    /// and meets none.
    pub(super) fn of(task: &Task, author: &dyn Author) -> Option<Self> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated() && !task.is_observed())?;
        let (text, leaves) = kind.path(&task.parameters)?;
        if is_template(text) {
            let at_or_below = sure_directory(text).into();
            return Some(Self { text: PathText::Template(author.path(text)?), leaves, at_or_below });
        }
        check_path(text).ok()?;
        Some(Self { text: PathText::Plain(text.into()), leaves, at_or_below: spellings(text).into() })
    }

    /// Whether its author wrote it out, so that it is the same on each host.
    pub fn is_plain(&self) -> bool {
        matches!(self.text, PathText::Plain(_))
    }

    /// The path on a host with these inputs.
    pub(crate) fn on_host(&self, inputs: impl FnOnce() -> Inputs) -> OnHost<'_> {
        match &self.text {
            PathText::Plain(text) => OnHost::Path(Cow::Borrowed(text)),
            PathText::Template(template) => {
                let Some(rendered) = template.render(&inputs()) else { return OnHost::Unknown(template.spelled()) };
                match check_path(&rendered).and_then(|()| check_put(&rendered)) {
                    Ok(()) => OnHost::Path(Cow::Owned(rendered)),
                    Err(refused) => OnHost::Refused(refused),
                }
            }
        }
    }
}

impl TaskName {
    /// The templates of a task that hosts run or check. What is written out is judged where the release is written.
    pub(super) fn all_of(task: &Task, author: &dyn Author) -> Box<[Self]> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated() && !task.is_observed());
        let named = kind.into_iter().flat_map(|kind| kind.names(&task.parameters));
        let templates = named.filter(|one| is_template(one.text)).filter_map(|one| {
            Some(Self { field: one.field.into(), template: author.path(one.text)?, names: one.names })
        });
        templates.collect()
    }

    /// Why no host takes what the template gives with these inputs; `None`: hosts take it, or nobody knows what it gives.
    pub(crate) fn refused(&self, inputs: &Inputs) -> Option<String> {
        self.names.check(&self.template.render(inputs)?).err()
    }
}

/// Those of these tasks whose paths may be, or lie above or below, that of another of them, or may be none that a host takes,
/// and those with other templates of that kind. Beside them: whether a path that is written out may be that of another task.
pub(super) fn may_lack_paths(release: &CompiledRelease, tasks: &[TaskIx]) -> (Box<[TaskIx]>, bool) {
    let at = |ix: &TaskIx| release.task(*ix).path.as_ref().map(|path| &*path.at_or_below).unwrap_or_default();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for spelling in tasks.iter().flat_map(at) {
        *counts.entry(spelling.as_str()).or_default() += 1;
    }
    let mut meeting = BTreeSet::new();
    for (place, count) in &counts {
        let above: Vec<&str> = at_or_above(place).skip(1).filter(|above| counts.contains_key(above)).collect();
        if *count > 1 || !above.is_empty() {
            meeting.insert(*place);
            meeting.extend(above);
        }
    }
    let may_be_none = |ix: &TaskIx| {
        let task = release.task(*ix);
        !task.names.is_empty() || task.path.as_ref().is_some_and(|path| !path.is_plain())
    };
    let may_share = |ix: &TaskIx| at(ix).iter().any(|spelling| meeting.contains(spelling.as_str()));
    let is_plain = |ix: &TaskIx| release.task(*ix).path.as_ref().is_some_and(TaskPath::is_plain);
    let may_share_plain = tasks.iter().any(|ix| is_plain(ix) && may_share(ix));
    (tasks.iter().copied().filter(|ix| may_be_none(ix) || may_share(ix)).collect(), may_share_plain)
}
