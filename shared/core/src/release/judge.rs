//! What is refused where a release is written, and taken where one is read.

use super::ReleaseError;
use crate::condition::Author;
use crate::object::ReleaseSpec;
use crate::task::mistakes;

/// What every host would refuse of a release's own tasks. A task that stands as it is in `before`, the release as it was stored,
/// was taken under the rules of then, and does not keep the rest from being mended.
pub fn refused(spec: &ReleaseSpec, before: Option<&ReleaseSpec>, author: &dyn Author) -> Vec<ReleaseError> {
    let is_new = |task: &&_| before.is_none_or(|before| !before.tasks.contains(task));
    let error = |id: &str, (field, reason)| ReleaseError::Field { field: format!("task {id} {field}"), reason };
    let tasks = spec.tasks.iter().filter(is_new);
    tasks.flat_map(|task| mistakes(task, author).into_iter().map(|one| error(&task.id, one))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::condition::testing::OneSecret;
    use crate::task::Task;

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
}
