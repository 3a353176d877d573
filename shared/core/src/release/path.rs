//! Paths that tasks write: which of a profile's tasks may write one path, known before anything is rendered.
//!
//! A node is looked at only for those: in most releases each task has a path of its own, and no node costs anything.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{CompiledRelease, TaskIx};
use crate::condition::{Author, Template};
use crate::input::Inputs;
use crate::task::{Leaves, Task, at_or_above, check_path, is_template, place, sure_directory, task_type};

/// Where a task puts a file, or keeps one away.
#[derive(Debug)]
pub struct TaskPath {
    text: PathText,
    /// What the task leaves there.
    pub leaves: Leaves,
    /// The place at or below which it lies, whatever its template gives; empty: anywhere.
    at_or_below: Box<str>,
}

#[derive(Debug)]
enum PathText {
    Plain(Box<str>),
    Template(Arc<dyn Template>),
}

impl TaskPath {
    /// The path of a task that writes one. A text that is no path fails by itself on the host, and meets none.
    pub(super) fn of(task: &Task, author: &dyn Author) -> Option<Self> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated())?;
        let (text, leaves) = kind.path(&task.parameters)?;
        if is_template(text) {
            let at_or_below = sure_directory(text).into();
            return Some(Self { text: PathText::Template(author.path(text)?), leaves, at_or_below });
        }
        check_path(text).ok()?;
        Some(Self { text: PathText::Plain(text.into()), leaves, at_or_below: place(text).into() })
    }

    /// Whether its author wrote it out, so that it is the same on each host.
    pub fn is_plain(&self) -> bool {
        matches!(self.text, PathText::Plain(_))
    }

    /// The path on a host with these inputs; `None`: the task fails there for want of one.
    pub(crate) fn on_host(&self, inputs: impl FnOnce() -> Inputs) -> Option<Cow<'_, str>> {
        match &self.text {
            PathText::Plain(text) => Some(Cow::Borrowed(text)),
            PathText::Template(template) => {
                let rendered = template.render(&inputs())?;
                check_path(&rendered).ok()?;
                Some(Cow::Owned(rendered))
            }
        }
    }
}

/// Those of these tasks whose paths may be, or lie above or below, that of another of them.
pub(super) fn may_meet(release: &CompiledRelease, tasks: &[TaskIx]) -> Box<[TaskIx]> {
    let at = |ix: &TaskIx| release.task(*ix).path.as_ref().map(|path| &*path.at_or_below);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for place in tasks.iter().filter_map(at) {
        *counts.entry(place).or_default() += 1;
    }
    let mut meeting = BTreeSet::new();
    for (place, count) in &counts {
        let above: Vec<&str> = at_or_above(place).skip(1).filter(|above| counts.contains_key(above)).collect();
        if *count > 1 || !above.is_empty() {
            meeting.insert(*place);
            meeting.extend(above);
        }
    }
    tasks.iter().copied().filter(|ix| at(ix).is_some_and(|place| meeting.contains(place))).collect()
}
