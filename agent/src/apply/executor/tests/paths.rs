//! Two tasks with the same path: the path belongs to the first task, and the second task is refused.

use serde_json::Value;

use super::*;

/// Returns the file tasks `a` and `b` with these parameters, and a command `after-b` that requires `b`. Both file tasks
/// read the label `at`, whose value is `z`.
fn two_file_set(first: &Value, second: &Value) -> TestTaskSet {
    let task = |parameters: &Value| json!({"parameters": parameters});
    TestTaskSet::default()
        .task("a", "file", &[], &task(first))
        .with_input("labels.at", "z")
        .task("b", "file", &[], &task(second))
        .with_input("labels.at", "z")
        .command("after-b", &[1], &["true"])
}

#[test]
fn y01_path_belongs_to_first_task_when_two_share_path() {
    let parameters_of_a = json!({"path": "/etc/z", "content": "a"});
    for (first, second, path) in [
        (parameters_of_a.clone(), json!({"path": "/etc/z", "content": "b"}), "/etc/z"),
        (parameters_of_a.clone(), json!({"path": "/etc/z", "content": "a"}), "/etc/z"),
        (parameters_of_a.clone(), json!({"path": "/etc/z", "absent": true}), "/etc/z"),
        (parameters_of_a.clone(), json!({"path": "/etc/z/y", "content": "b"}), "/etc/z"),
        (parameters_of_a, json!({"path": "/etc/{{ labels.at }}", "content": "b"}), "/etc/z"),
        // Usual hosts have the links `/var/run` (to `/run`) and `/bin` (to `/usr/bin`).
        (json!({"path": "/run/z", "content": "a"}), json!({"path": "/var/run/z", "content": "b"}), "/run/z"),
        (json!({"path": "/bin/z/y", "content": "a"}), json!({"path": "/usr/bin/z", "absent": true}), "/bin/z/y"),
    ] {
        let host = MemoryHost::new();
        let set = two_file_set(&first, &second);
        let task_results = results(&host, &set);
        let outcomes: Vec<_> = task_results.iter().map(|result| (result.task.as_str(), result.outcome)).collect();
        let [refused, changed, stopped] = [Outcome::Failed, Outcome::Changed, Outcome::DependencyFailed];
        assert_eq!(BTreeSet::from_iter(outcomes), [("a", changed), ("b", refused), ("after-b", stopped)].into(), "{second}");
        let message = &task_results.iter().find(|result| result.task == "b").unwrap().message;
        assert!(message.starts_with("parameters.path: ") && message.contains("task a") && message.contains(path), "{message}");
        assert_eq!(host.text(path).as_deref(), Some("a"));
        // Later runs write nothing.
        for _ in 0..3 {
            let (task_results, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
            assert_eq!((task_results, progress), (pairs(&[("b", refused)]), observed::Progress::Failed), "{second}");
        }
        let mut check_results = run_with(&host, &set, &Ceiling::default(), RunPurpose::Check).0;
        check_results.sort_by(|a, b| a.0.cmp(&b.0));
        // Sorted by name: a, after-b, b.
        assert_eq!(check_results[..2], pairs(&[("a", Outcome::Unchanged), ("after-b", stopped)]), "{second}");
        assert_eq!(check_results[2..], pairs(&[("b", refused)]), "{second}");
    }
}

/// Regression test: the message claimed that the first task writes the path, although that task is refused too. The
/// reasons are a link, a file that the agent owns, and a directory at the path of the file.
#[test]
fn y01_refusal_says_nobody_writes_path_when_first_is_refused() {
    for (first, second, reason) in [
        ("/bin/x", "/usr/bin/x", "/bin"),
        ("/etc/stemma/node-labels", "/etc/stemma/node-labels", "/etc/stemma/node-labels"),
        ("/srv/dir", "/srv/dir/x", "/srv/dir"),
    ] {
        let host = MemoryHost::new();
        host.put_link("/bin");
        host.put("/srv/dir/y", "theirs");
        let file = |path: &str| json!({"path": path, "content": "x"});
        let task_results = results(&host, &two_file_set(&file(first), &file(second)));
        let result_of = |id: &str| task_results.iter().find(|result| result.task == id).unwrap();
        assert_eq!((result_of("a").outcome, result_of("b").outcome), (Outcome::Failed, Outcome::Failed), "{first}");
        let message = &result_of("b").message;
        assert!(message.starts_with(&format!("parameters.path: {second} meets {first}, the path of task a, ")), "{message}");
        assert!(
            message.contains(&format!("is refused this path ({}", result_of("a").message)) && message.contains(reason),
            "{message}"
        );
        assert!(!message.contains("writes it"), "{message}");
        assert_eq!(host.text(second), None);
    }
}

#[test]
fn y01_second_task_stays_refused_while_file_drifts() {
    let host = MemoryHost::new();
    let set = two_file_set(&json!({"path": "/z", "content": "a"}), &json!({"path": "/z", "content": "b"}));
    for _ in 0..6 {
        host.put("/z", "edited");
        let outcomes = converge(&host, &set);
        assert!(outcomes.contains(&("b".to_owned(), Outcome::Failed)), "{outcomes:?}");
        assert_ne!(host.text("/z").as_deref(), Some("b"));
    }
}

/// Regression test: an observed task got the path, although such a task writes nothing. So no task wrote the file.
#[test]
fn y01_observed_task_claims_no_path() {
    let file = |mode: &str, path: &str| json!({"mode": mode, "parameters": {"path": path, "content": path}});
    let (would_change, changed) = (Outcome::WouldChange, Outcome::Changed);
    // Mode and path of each of the two tasks, their outcomes, and the path that is written.
    for (first, second, expected, written_path) in [
        (("observe", "/z"), ("apply", "/z"), [would_change, changed], Some("/z")),
        (("apply", "/z"), ("observe", "/z"), [changed, would_change], Some("/z")),
        (("observe", "/z"), ("observe", "/z"), [would_change, would_change], None),
        (("observe", "/z"), ("apply", "/z/y"), [would_change, changed], Some("/z/y")),
        (("apply", "/z/y"), ("observe", "/z"), [changed, would_change], Some("/z/y")),
    ] {
        let host = MemoryHost::new();
        let set = TestTaskSet::default().task("a", "file", &[], &file(first.0, first.1));
        let set = set.task("b", "file", &[], &file(second.0, second.1));
        let (mut outcomes, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
        outcomes.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(outcomes, pairs(&[("a", expected[0]), ("b", expected[1])]), "{first:?} {second:?}");
        assert_eq!(progress, observed::Progress::Converged, "{first:?} {second:?}");
        for path in ["/z", "/z/y"] {
            let content = host.text(path);
            assert_eq!(content.as_deref(), written_path.filter(|written_path| *written_path == path), "{first:?} {second:?}");
        }
    }
}

#[test]
fn y01_tasks_share_path_when_not_in_conflict() {
    let fields_of_b = || json!({"parameters": {"path": "/z", "content": "b"}});
    let add_absent_b = |set: TestTaskSet| set.task("b", "file", &[], &json!({"parameters": {"path": "/z", "absent": true}}));
    let only_file = Ceiling { task_types: Some(vec!["file".into()]) };
    for (set, ceiling, content) in [
        // A task of the phase `cleanup` does not run together with the others.
        (
            TestTaskSet::default()
                .task("a", "file", &[], &json!({"phase": "cleanup", "parameters": {"path": "/z", "content": "a"}}))
                .task("b", "file", &[], &fields_of_b()),
            Ceiling::default(),
            Some("b"),
        ),
        // This host accepts only file tasks. It refuses task a, which also runs the command of `validate`.
        (
            TestTaskSet::default()
                .task("a", "file", &[], &json!({"parameters": {"path": "/z", "content": "a", "validate": ["true"]}}))
                .task("b", "file", &[], &fields_of_b()),
            only_file,
            Some("b"),
        ),
        (
            // Both tasks want the path to be absent.
            add_absent_b(TestTaskSet::default().task("a", "file", &[], &json!({"parameters": {"path": "/z", "absent": true}}))),
            Ceiling::default(),
            None,
        ),
    ] {
        let host = MemoryHost::new();
        let (outcomes, _) = run_with(&host, &set, &ceiling, RunPurpose::Converge);
        assert!(!outcomes.contains(&("b".to_owned(), Outcome::Failed)), "{outcomes:?}");
        assert_eq!(host.text("/z").as_deref(), content);
    }
}
