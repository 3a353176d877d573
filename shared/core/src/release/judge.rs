//! What is refused where a release is written, and taken where one is read.

use std::collections::BTreeSet;

use super::ReleaseError;
use super::circle::{OfStages, circle};
use crate::condition::Author;
use crate::object::ReleaseSpec;
use crate::task::{Task, mistakes, task_type};

/// What every host would refuse of a release's own tasks. A task that stands as it is in `before`, the release as it was stored,
/// was taken under the rules of then, and does not keep the rest from being mended.
pub fn refused(spec: &ReleaseSpec, before: Option<&ReleaseSpec>, author: &dyn Author) -> Vec<ReleaseError> {
    let is_new = |task: &&_| before.is_none_or(|before| !before.tasks.contains(task));
    let error = |id: &str, (field, reason)| ReleaseError::Field { field: format!("task {id} {field}"), reason };
    let tasks = spec.tasks.iter().filter(is_new);
    let mistaken = tasks.flat_map(|task| refused_of_task(task, author).into_iter().map(|one| error(&task.id, one)));
    let ids = |path: &[String]| path.iter().cloned().collect::<BTreeSet<_>>();
    let known = before.and_then(through_stages).map(|path| ids(&path));
    let circle = through_stages(spec).filter(|path| known != Some(ids(path)));
    mistaken.chain(circle.map(|path| ReleaseError::Cycle { path })).collect()
}

/// What every host would refuse of one task, and the names by which it reads that nothing can have, each with the path of its text.
pub fn refused_of_task(task: &Task, author: &dyn Author) -> Vec<(String, String)> {
    let mut found = mistakes(task, author);
    found.extend(odd_names(task, author));
    found
}

/// The names by which a task's templates and its condition read and that nothing can have, with the path of the text. Of a task that an
/// import left untranslated there is nothing: it never starts.
fn odd_names(task: &Task, author: &dyn Author) -> Vec<(String, String)> {
    if task.is_untranslated() {
        return Vec::new();
    }
    let mut found = Vec::new();
    if let Some(kind) = task_type(&task.kind) {
        for text in kind.template_texts(&task.parameters) {
            let odd = kind.read(&text, author).unwrap_or_default().odd_names.into_iter();
            found.extend(odd.map(|odd| (text.path.clone(), odd.to_string())));
        }
    }
    // One that cannot be read is refused where the release is compiled.
    if let Some(Ok(condition)) = task.condition.as_deref().map(|text| author.condition(text)) {
        found.extend(condition.odd_names().iter().map(|odd| ("condition".to_owned(), odd.to_string())));
    }
    found
}

/// Tasks that wait for each other by what stages say of tasks alone: whatever else closes a circle does not compile.
fn through_stages(spec: &ReleaseSpec) -> Option<Vec<String>> {
    let tasks: Vec<&Task> = spec.tasks.iter().collect();
    let is_plain = circle(&tasks, OfStages::Stages).is_some();
    circle(&tasks, OfStages::All).filter(|_| !is_plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::condition::testing::OneSecret;

    fn task(id: &str, kind: &str, path: &str) -> Task {
        let parameters = json!({"path": path, "content": "x"});
        Task { parameters: parameters.as_object().cloned().expect("a map"), ..Task::new(id, kind) }
    }

    #[test]
    fn what_was_stored_is_not_judged_again() {
        let spec = |tasks: &[Task]| ReleaseSpec { tasks: tasks.to_vec(), ..ReleaseSpec::default() };
        let (bad, good, odd) = (task("a", "file", "etc/a"), task("b", "file", "/b"), task("c", "flie", "/c"));
        let old = spec(std::slice::from_ref(&bad));
        let says = |now: &[Task], before| -> Vec<String> {
            refused(&spec(now), before, &OneSecret).iter().map(ToString::to_string).collect()
        };
        let of_a = "task a parameters.path: path \"etc/a\" is relative; write it from `/` on";
        let of_c = "task c type: \"flie\" is no type of task (did you mean \"file\"?): mend its spelling";
        assert_eq!(says(&[bad.clone(), good.clone(), odd.clone()], None), [of_a, of_c]);
        assert_eq!(says(&[bad, good, odd], Some(&old)), [of_c]);
        let edited = Task { sensitive: true, ..task("a", "file", "etc/a") };
        assert_eq!(says(&[edited], Some(&old)), [of_a]);
    }

    #[test]
    fn y06_a_circle_through_a_stage_is_refused_of_a_release_that_was_not_stored_so() {
        let stage = Task { requires: vec!["a".to_owned()], ..Task::new("st", "stage") };
        let a = Task { requires: vec!["st".to_owned()], ..Task::new("a", "skipped") };
        let spec = ReleaseSpec { tasks: vec![stage, a], ..ReleaseSpec::default() };
        let says = |before| refused(&spec, before, &OneSecret).iter().map(ToString::to_string).collect::<Vec<_>>();
        let circle = ["tasks wait for each other: a -> st -> a; take one of these dependencies away"];
        let other = ["tasks wait for each other: st -> a -> st; take one of these dependencies away"];
        let said = says(None);
        assert!(said == circle || said == other, "{said:?}");
        assert_eq!(says(Some(&spec)), [""; 0], "it was taken once");
        assert_eq!(says(Some(&ReleaseSpec::default())), said);
    }
}
