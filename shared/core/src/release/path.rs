//! Paths that tasks write. Finds the tasks of a profile whose path may be unusable on a host, before anything is
//! rendered.
//!
//! When nodes are resolved, only these tasks are checked. In most releases each task has a literal path of its own, so
//! no check is needed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{CompiledRelease, TaskIndex};
use crate::condition::{Template, TemplateParser};
use crate::input::Inputs;
use crate::task::{
    NamedResource, PathContent, PathRefused, Task, ancestors, check_path, check_writable, is_template, known_directories,
    spellings, task_type,
};

/// The path where a task puts a file, or makes sure that there is none.
#[derive(Debug)]
pub struct TaskPath {
    text: PathText,
    /// What the task leaves at the path.
    pub path_content: PathContent,
    /// Spellings of the path itself, or for a template of the directory that contains the path whatever is filled in.
    /// The empty text means any directory.
    at_or_below: Box<[String]>,
}

/// A template by which a task names a path or a program of its host, other than the path that it writes.
#[derive(Debug)]
pub struct HostPathTemplate {
    /// The field, such as `parameters.creates`.
    pub field: Box<str>,
    template: Arc<dyn Template>,
    resource: NamedResource,
}

#[derive(Debug)]
enum PathText {
    Plain(Box<str>),
    Template(Arc<dyn Template>),
}

/// The path of a task on a host, as far as it is known.
pub(crate) enum RenderedPath<'a> {
    /// The path.
    Path(Cow<'a, str>),
    /// The text of the template. It cannot be rendered, because a value that it reads is absent.
    Unknown(&'a str),
    /// The template renders to a path that hosts reject.
    Refused(PathRefused),
}

impl TaskPath {
    /// Returns the path of a task that writes one. A task that hosts neither run nor check writes none. An invalid
    /// literal path fails on the host by itself and conflicts with no other, so it yields `None` too.
    pub(super) fn from_task(task: &Task, parser: &dyn TemplateParser) -> Option<Self> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated() && !task.is_observed())?;
        let (text, content) = kind.written_path(&task.parameters)?;
        if is_template(text) {
            let at_or_below = known_directories(text).into();
            return Some(Self { text: PathText::Template(parser.parse_path(text)?), path_content: content, at_or_below });
        }
        check_path(text).ok()?;
        Some(Self { text: PathText::Plain(text.into()), path_content: content, at_or_below: spellings(text).into() })
    }

    /// Returns whether the path is literal, and so the same on each host.
    pub fn is_plain(&self) -> bool {
        matches!(self.text, PathText::Plain(_))
    }

    /// Returns the path on a host with these inputs, rendered if it is a template.
    pub(crate) fn host_path(&self, inputs: impl FnOnce() -> Inputs) -> RenderedPath<'_> {
        match &self.text {
            PathText::Plain(text) => RenderedPath::Path(Cow::Borrowed(text)),
            PathText::Template(template) => {
                let Some(rendered) = template.render(&inputs()) else {
                    return RenderedPath::Unknown(template.normalized_text());
                };
                match check_path(&rendered).and_then(|()| check_writable(&rendered)) {
                    Ok(()) => RenderedPath::Path(Cow::Owned(rendered)),
                    Err(refused) => RenderedPath::Refused(refused),
                }
            }
        }
    }
}

impl HostPathTemplate {
    /// Returns the templates of a task that hosts run or check. Literal texts are checked when the release is written.
    pub(super) fn from_task(task: &Task, parser: &dyn TemplateParser) -> Box<[Self]> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated() && !task.is_observed());
        let texts = kind.into_iter().flat_map(|kind| kind.resource_texts(&task.parameters));
        let templates = texts.filter(|one| is_template(one.text)).filter_map(|one| {
            Some(Self { field: one.field.into(), template: parser.parse_path(one.text)?, resource: one.resource })
        });
        templates.collect()
    }

    /// Returns why hosts reject what the template renders to with these inputs. Returns `None` if they accept it or if
    /// it cannot be rendered.
    pub(crate) fn rejection(&self, inputs: &Inputs) -> Option<String> {
        self.resource.check_rendered(&self.template.render(inputs)?).err()
    }
}

/// Returns the tasks whose paths must be checked for each node, and whether a literal path may be that of another task.
///
/// These are the tasks whose path may equal, contain or lie below that of another, those whose path is a template, and
/// those with other templates that name a path or a program.
pub(super) fn path_check_tasks(release: &CompiledRelease, tasks: &[TaskIndex]) -> (Box<[TaskIndex]>, bool) {
    let paths = |ix: &TaskIndex| release.task(*ix).path.as_ref().map(|path| &*path.at_or_below).unwrap_or_default();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for spelling in tasks.iter().flat_map(paths) {
        *counts.entry(spelling.as_str()).or_default() += 1;
    }
    let mut shared = BTreeSet::new();
    for (path, count) in &counts {
        let above: Vec<&str> = ancestors(path).skip(1).filter(|above| counts.contains_key(above)).collect();
        if *count > 1 || !above.is_empty() {
            shared.insert(*path);
            shared.extend(above);
        }
    }
    let may_be_unusable = |ix: &TaskIndex| {
        let task = release.task(*ix);
        !task.host_paths.is_empty() || task.path.as_ref().is_some_and(|path| !path.is_plain())
    };
    let may_share = |ix: &TaskIndex| paths(ix).iter().any(|spelling| shared.contains(spelling.as_str()));
    let is_plain = |ix: &TaskIndex| release.task(*ix).path.as_ref().is_some_and(TaskPath::is_plain);
    let may_share_plain = tasks.iter().any(|ix| is_plain(ix) && may_share(ix));
    (tasks.iter().copied().filter(|ix| may_be_unusable(ix) || may_share(ix)).collect(), may_share_plain)
}
