//! What every host would refuse of a task, known as soon as it is written: its type, and what its type takes.
//!
//! It is judged where a release is written (admission, and `stemma validate`), by [`mistakes`] alone. A release that is stored
//! already is read, compiled and served whatever stands in it; what its tasks' types do not take is a finding there.

use super::{TASK_TYPES, Task, task_type};
use crate::finding::{Finding, rule};
use crate::name::{ReleaseRef, cut, near, suggest};

/// Each thing that is wrong with a task, with the path of its field.
///
/// Of a task that an import left untranslated there is nothing: it never starts.
pub fn mistakes(task: &Task) -> Vec<(String, String)> {
    if task.is_untranslated() {
        return Vec::new();
    }
    match task_type(&task.kind) {
        Some(kind) => kind.parameters.map(|takes| takes.mistakes(&task.parameters)).unwrap_or_default(),
        None => vec![("type".to_owned(), unknown_type(&task.kind))],
    }
}

/// What the types of a release's own tasks do not take, as findings of the release.
pub fn judge(release: &ReleaseRef, tasks: &[Task]) -> Vec<Finding> {
    let of_task = |task: &Task| {
        let found = mistakes(task).into_iter().filter(|_| task_type(&task.kind).is_some());
        let finding = |(field, message): (String, String)| {
            Finding::of(rule::TASK_PARAMETERS, format!("release/{release} task {} {field}", task.id), message)
        };
        found.map(finding).collect::<Vec<_>>()
    };
    tasks.iter().flat_map(of_task).collect()
}

fn unknown_type(kind: &str) -> String {
    let names = || TASK_TYPES.iter().map(|known| known.name);
    match near(kind, names()) {
        Some(near) => format!("{:?} is no type of task{}: mend its spelling", cut(kind), suggest(Some(near))),
        None => {
            format!("{:?} is no type of task: take one of {}", cut(kind), names().collect::<Vec<_>>().join(", "))
        }
    }
}
