//! Checks that reject a release when it is written, but not when a stored one is read.

use std::collections::BTreeSet;

use super::ReleaseError;
use super::task_cycle::{StageDependencies, task_cycle};
use crate::condition::TemplateParser;
use crate::object::ReleaseSpec;
use crate::task::{Task, check_task, task_type};

/// Returns the errors in a release's own tasks for which every host would reject them. A task that is equal in
/// `before`, the stored release, is not checked: it was accepted under older rules, and must not prevent corrections of
/// other tasks.
pub fn check_changed_tasks(spec: &ReleaseSpec, before: Option<&ReleaseSpec>, parser: &dyn TemplateParser) -> Vec<ReleaseError> {
    let is_new = |task: &&_| before.is_none_or(|before| !before.tasks.contains(task));
    let error = |id: &str, (field, reason)| ReleaseError::Field { field: format!("task {id} {field}"), reason };
    let tasks = spec.tasks.iter().filter(is_new);
    let errors = tasks.flat_map(|task| task_errors(task, parser).into_iter().map(|entry| error(&task.id, entry)));
    let ids = |path: &[String]| path.iter().cloned().collect::<BTreeSet<_>>();
    let stored_cycle = before.and_then(stage_cycle).map(|path| ids(&path));
    let new_cycle = stage_cycle(spec).filter(|path| stored_cycle != Some(ids(path)));
    errors.chain(new_cycle.map(|path| ReleaseError::Cycle { path })).collect()
}

/// Returns the errors of one task, each with the path of its field: errors for which every host would reject the task,
/// and names that it reads and that nothing can have.
pub fn task_errors(task: &Task, parser: &dyn TemplateParser) -> Vec<(String, String)> {
    let mut errors = check_task(task, parser);
    errors.extend(impossible_names(task, parser));
    errors
}

/// Returns the names that a task's templates and condition read and that nothing can have, each with the path of the
/// text. Returns none for a task that an import left untranslated, because it never starts.
fn impossible_names(task: &Task, parser: &dyn TemplateParser) -> Vec<(String, String)> {
    if task.is_untranslated() {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if let Some(kind) = task_type(&task.kind) {
        for text in kind.template_texts(&task.parameters) {
            let names = kind.read_template(&text, parser).unwrap_or_default().impossible_names.into_iter();
            errors.extend(names.map(|odd| (text.path.clone(), odd.to_string())));
        }
    }
    // A condition that cannot be parsed is rejected when the release is compiled.
    if let Some(Ok(condition)) = task.condition.as_deref().map(|text| parser.parse_condition(text)) {
        errors.extend(condition.impossible_names().iter().map(|error| ("condition".to_owned(), error.to_string())));
    }
    errors
}

/// Returns a cycle that closes only through dependencies of stages on tasks. Any other cycle is reported when the
/// release is compiled.
fn stage_cycle(spec: &ReleaseSpec) -> Option<Vec<String>> {
    let tasks: Vec<&Task> = spec.tasks.iter().collect();
    let has_plain_cycle = task_cycle(&tasks, StageDependencies::OnStages).is_some();
    task_cycle(&tasks, StageDependencies::All).filter(|_| !has_plain_cycle)
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
    fn check_changed_tasks_skips_task_when_unchanged() {
        let spec = |tasks: &[Task]| ReleaseSpec { tasks: tasks.to_vec(), ..ReleaseSpec::default() };
        let (bad, good, odd) = (task("a", "file", "etc/a"), task("b", "file", "/b"), task("c", "flie", "/c"));
        let old = spec(std::slice::from_ref(&bad));
        let says = |now: &[Task], before| -> Vec<String> {
            check_changed_tasks(&spec(now), before, &OneSecret).iter().map(ToString::to_string).collect()
        };
        let of_a = "task a parameters.path: path \"etc/a\" is relative; write it from `/` on";
        let of_c = "task c type: \"flie\" is not a type of task (did you mean \"file\"?): correct its spelling";
        assert_eq!(says(&[bad.clone(), good.clone(), odd.clone()], None), [of_a, of_c]);
        assert_eq!(says(&[bad, good, odd], Some(&old)), [of_c]);
        let edited = Task { sensitive: true, ..task("a", "file", "etc/a") };
        assert_eq!(says(&[edited], Some(&old)), [of_a]);
    }

    #[test]
    fn y06_check_changed_tasks_rejects_stage_cycle_when_new() {
        let stage = Task { requires: vec!["a".to_owned()], ..Task::new("st", "stage") };
        let a = Task { requires: vec!["st".to_owned()], ..Task::new("a", "skipped") };
        let spec = ReleaseSpec { tasks: vec![stage, a], ..ReleaseSpec::default() };
        let says = |before| check_changed_tasks(&spec, before, &OneSecret).iter().map(ToString::to_string).collect::<Vec<_>>();
        let circle = ["tasks wait for each other: a -> st -> a; remove one of these dependencies"];
        let other = ["tasks wait for each other: st -> a -> st; remove one of these dependencies"];
        let said = says(None);
        assert!(said == circle || said == other, "{said:?}");
        assert_eq!(says(Some(&spec)), [""; 0], "it was taken once");
        assert_eq!(says(Some(&ReleaseSpec::default())), said);
    }
}
