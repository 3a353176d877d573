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
    spellings, task_type, written_paths,
};

/// The path where a task puts a file, or makes sure that there is none.
#[derive(Debug)]
pub struct TaskPath {
    text: PathText,
    /// The content that the task leaves at the path: a file, or none.
    pub path_content: PathContent,
    /// The path with its known link resolved, then the path as written if it differs: `/run/x` and `/var/run/x` for
    /// `/var/run/x`. A path in `/var/mail` or `/var/spool/mail` has both of these spellings. If the path is a template,
    /// these are the spellings of the directory that contains the path whatever the values are. The empty text means
    /// any directory.
    spellings: Box<[String]>,
}

/// A template by which a task names a path or a program of its host, other than the path that it writes.
#[derive(Debug)]
pub struct HostPathTemplate {
    /// The field, such as `parameters.creates`.
    pub field: Box<str>,
    template: Arc<dyn Template>,
    resource: NamedResource,
}

/// The text that names a path.
#[derive(Debug)]
enum PathText {
    Plain(Box<str>),
    Template(Arc<dyn Template>),
}

/// The path of a task on a host, as far as it is known.
pub(crate) enum RenderedPath<'a> {
    /// The valid path.
    Path(Cow<'a, str>),
    /// The normalized text of the template, which cannot be rendered, for example because a value is absent.
    Unknown(&'a str),
    /// The reason why hosts reject the path to which the template renders.
    Refused(PathRefused),
}

impl TaskPath {
    /// Returns the paths that a task writes. None if the task writes no path, or if hosts neither run nor check it. An
    /// invalid literal path is omitted: the host rejects such a path, so it cannot conflict with another one.
    pub(super) fn from_task(task: &Task, parser: &dyn TemplateParser) -> Box<[Self]> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated() && !task.is_observed());
        let paths = kind.map(|kind| written_paths(kind, &task.parameters)).unwrap_or_default();
        paths.into_iter().filter_map(|(text, path_content)| Self::new(&text, path_content, parser)).collect()
    }

    /// Returns a path that a task writes, or `None` for an invalid literal path or template.
    fn new(text: &str, path_content: PathContent, parser: &dyn TemplateParser) -> Option<Self> {
        if is_template(text) {
            let at_or_below = known_directories(text).into();
            return Some(Self { text: PathText::Template(parser.parse_path(text)?), path_content, spellings: at_or_below });
        }
        check_path(text).ok()?;
        Some(Self { text: PathText::Plain(text.into()), path_content, spellings: spellings(text).into() })
    }

    /// Returns whether the path is literal, and so the same on each host.
    pub fn is_plain(&self) -> bool {
        matches!(self.text, PathText::Plain(_))
    }

    /// Returns the path on a host, rendered if it is a template. `inputs` returns the host's inputs, and is called only
    /// for a template.
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
    /// Returns the templates by which a task names paths and programs of its host. Literal texts are omitted, because
    /// they are checked when the release is written. Returns none for a task that hosts neither run nor check.
    pub(super) fn from_task(task: &Task, parser: &dyn TemplateParser) -> Box<[Self]> {
        let kind = task_type(&task.kind).filter(|_| !task.is_untranslated() && !task.is_observed());
        let texts = kind.into_iter().flat_map(|kind| kind.resource_texts(&task.parameters));
        let templates = texts.filter(|entry| is_template(entry.text)).filter_map(|entry| {
            Some(Self { field: entry.field.into(), template: parser.parse_path(entry.text)?, resource: entry.resource })
        });
        templates.collect()
    }

    /// Returns why hosts reject the text to which the template renders with these inputs. `None` if hosts accept the
    /// text, or if the template cannot be rendered, for example because a value is absent.
    pub(crate) fn rejection(&self, inputs: &Inputs) -> Option<String> {
        self.resource.check_rendered(&self.template.render(inputs)?).err()
    }
}

/// Returns the tasks whose paths must be checked for each node, and whether the literal path of a task may equal,
/// contain or lie below the path of another task.
///
/// A task must be checked if its path may equal, contain or lie below the path of another task, if its path is a
/// template, or if another template of it names a path or a program.
pub(super) fn path_check_tasks(release: &CompiledRelease, tasks: &[TaskIndex]) -> (Box<[TaskIndex]>, bool) {
    let paths = |ix: &TaskIndex| release.task(*ix).paths.iter().flat_map(|path| path.spellings.iter());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for spelling in tasks.iter().flat_map(paths) {
        *counts.entry(spelling.as_str()).or_default() += 1;
    }
    let mut shared_paths = BTreeSet::new();
    for (path, count) in &counts {
        // The first of the ancestors is the path itself.
        let outer_paths: Vec<&str> = ancestors(path).skip(1).filter(|outer| counts.contains_key(outer)).collect();
        if *count > 1 || !outer_paths.is_empty() {
            shared_paths.insert(*path);
            shared_paths.extend(outer_paths);
        }
    }
    let may_be_unusable = |ix: &TaskIndex| {
        let task = release.task(*ix);
        !task.host_paths.is_empty() || task.paths.iter().any(|path| !path.is_plain())
    };
    let may_share = |ix: &TaskIndex| paths(ix).any(|spelling| shared_paths.contains(spelling.as_str()));
    let is_plain = |ix: &TaskIndex| release.task(*ix).paths.iter().any(TaskPath::is_plain);
    let may_share_plain = tasks.iter().any(|ix| is_plain(ix) && may_share(ix));
    (tasks.iter().copied().filter(|ix| may_be_unusable(ix) || may_share(ix)).collect(), may_share_plain)
}
