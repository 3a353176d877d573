//! Checks that reject a release when it is written. A stored release is read without them.

use std::collections::BTreeSet;

use super::ReleaseError;
use super::task_cycle::{StageDependencies, task_cycle};
use crate::condition::TemplateParser;
use crate::object::ReleaseSpec;
use crate::task::{Task, check_task, task_type};

/// Returns the errors of a release's own tasks: the errors of each task ([`task_errors`]), and a cycle through a stage.
/// Skips each task and cycle that the stored release has too. They were accepted under older rules, and must not
/// prevent corrections of other tasks.
pub fn check_changed_tasks(spec: &ReleaseSpec, stored: Option<&ReleaseSpec>, parser: &dyn TemplateParser) -> Vec<ReleaseError> {
    let is_new = |task: &&_| stored.is_none_or(|stored| !stored.tasks.contains(task));
    let field_error = |id: &str, (field, reason)| ReleaseError::Field { field: format!("task {id} {field}"), reason };
    let tasks = spec.tasks.iter().filter(is_new);
    let errors = tasks.flat_map(|task| task_errors(task, parser).into_iter().map(|entry| field_error(&task.id, entry)));
    let id_set = |path: &[String]| path.iter().cloned().collect::<BTreeSet<_>>();
    // A search may begin the same cycle at another task, so cycles are compared as sets of ids.
    let stored_cycle = stored.and_then(stage_cycle).map(|path| id_set(&path));
    let new_cycle = stage_cycle(spec).filter(|path| stored_cycle != Some(id_set(path)));
    errors.chain(new_cycle.map(|path| ReleaseError::Cycle { path })).collect()
}

/// Returns the errors of one task, each as the path of its field and the reason: the errors of [`check_task`], and each
/// name in a template or condition that no object can have.
pub fn task_errors(task: &Task, parser: &dyn TemplateParser) -> Vec<(String, String)> {
    let mut errors = check_task(task, parser);
    errors.extend(impossible_names(task, parser));
    errors
}

/// Returns an error for each name in a task's templates and condition that no object can have, such as a reserved word.
/// Each error has the path of the text's field. A task that an import left untranslated never starts, so it has none.
fn impossible_names(task: &Task, parser: &dyn TemplateParser) -> Vec<(String, String)> {
    if task.is_untranslated() {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if let Some(kind) = task_type(&task.kind) {
        for text in kind.template_texts(&task.parameters) {
            let names = kind.read_template(&text, parser).unwrap_or_default().impossible_names.into_iter();
            errors.extend(names.map(|reason| (text.path.clone(), reason.to_string())));
        }
    }
    // A condition that cannot be parsed is rejected when the release is compiled.
    if let Some(Ok(condition)) = task.condition.as_deref().map(|text| parser.parse_condition(text)) {
        errors.extend(condition.impossible_names().iter().map(|error| ("condition".to_owned(), error.to_string())));
    }
    errors
}

/// Returns the ids of tasks that wait for each other, if they do so only because a stage depends on tasks. Returns
/// `None` if there is also another cycle, which the compilation of the release reports.
fn stage_cycle(spec: &ReleaseSpec) -> Option<Vec<String>> {
    let tasks: Vec<&Task> = spec.tasks.iter().collect();
    // A plain cycle exists without the dependencies of stages on tasks that are not stages.
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
        let (relative_path, valid, unknown_type) = (task("a", "file", "etc/a"), task("b", "file", "/b"), task("c", "flie", "/c"));
        let stored_spec = spec(std::slice::from_ref(&relative_path));
        let error_texts = |new_tasks: &[Task], stored| -> Vec<String> {
            check_changed_tasks(&spec(new_tasks), stored, &OneSecret).iter().map(ToString::to_string).collect()
        };
        let path_error = "task a parameters.path: path \"etc/a\" is relative; write it from `/` on";
        let type_error = "task c type: \"flie\" is not a type of task (did you mean \"file\"?): correct its spelling";
        assert_eq!(error_texts(&[relative_path.clone(), valid.clone(), unknown_type.clone()], None), [path_error, type_error]);
        assert_eq!(error_texts(&[relative_path, valid, unknown_type], Some(&stored_spec)), [type_error]);
        let edited = Task { sensitive: true, ..task("a", "file", "etc/a") };
        assert_eq!(error_texts(&[edited], Some(&stored_spec)), [path_error]);
    }

    #[test]
    fn y06_check_changed_tasks_rejects_stage_cycle_when_new() {
        let stage = Task { requires: vec!["a".to_owned()], ..Task::new("st", "stage") };
        let a = Task { requires: vec!["st".to_owned()], ..Task::new("a", "skipped") };
        let spec = ReleaseSpec { tasks: vec![stage, a], ..ReleaseSpec::default() };
        let error_texts =
            |stored| check_changed_tasks(&spec, stored, &OneSecret).iter().map(ToString::to_string).collect::<Vec<_>>();
        let cycle_from_task = ["tasks wait for each other: a -> st -> a; remove one of these dependencies"];
        let cycle_from_stage = ["tasks wait for each other: st -> a -> st; remove one of these dependencies"];
        let errors = error_texts(None);
        assert!(errors == cycle_from_task || errors == cycle_from_stage, "{errors:?}");
        assert_eq!(error_texts(Some(&spec)), [""; 0], "the stored release has the same cycle");
        assert_eq!(error_texts(Some(&ReleaseSpec::default())), errors);
    }
}
