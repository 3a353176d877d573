//! If two tasks have the same path, it belongs to the first.

use serde_json::Value;

use super::*;

fn set(first: &Value, second: &Value) -> TestTaskSet {
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
    let a = json!({"path": "/etc/z", "content": "a"});
    for (first, second, path) in [
        (a.clone(), json!({"path": "/etc/z", "content": "b"}), "/etc/z"),
        (a.clone(), json!({"path": "/etc/z", "content": "a"}), "/etc/z"),
        (a.clone(), json!({"path": "/etc/z", "absent": true}), "/etc/z"),
        (a.clone(), json!({"path": "/etc/z/y", "content": "b"}), "/etc/z"),
        (a, json!({"path": "/etc/{{ labels.at }}", "content": "b"}), "/etc/z"),
        (json!({"path": "/run/z", "content": "a"}), json!({"path": "/var/run/z", "content": "b"}), "/run/z"),
        (json!({"path": "/bin/z/y", "content": "a"}), json!({"path": "/usr/bin/z", "absent": true}), "/bin/z/y"),
    ] {
        let host = MemoryHost::new();
        let set = set(&first, &second);
        let told = results(&host, &set);
        let outcomes: Vec<_> = told.iter().map(|one| (one.task.as_str(), one.outcome)).collect();
        let [refused, changed, stopped] = [Outcome::Failed, Outcome::Changed, Outcome::DependencyFailed];
        assert_eq!(BTreeSet::from_iter(outcomes), [("a", changed), ("b", refused), ("after-b", stopped)].into(), "{second}");
        let why = &told.iter().find(|one| one.task == "b").unwrap().message;
        assert!(why.starts_with("parameters.path: ") && why.contains("task a") && why.contains(path), "{why}");
        assert_eq!(host.text(path).as_deref(), Some("a"));
        // No later check writes anything.
        for _ in 0..3 {
            let (told, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
            assert_eq!((told, progress), (pairs(&[("b", refused)]), observed::Progress::Failed), "{second}");
        }
        let mut checked = run_with(&host, &set, &Ceiling::default(), RunPurpose::Check).0;
        checked.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(checked[..2], pairs(&[("a", Outcome::Unchanged), ("after-b", stopped)]), "{second}");
        assert_eq!(checked[2..], pairs(&[("b", refused)]), "{second}");
    }
}

/// It used to be reported as the task that writes the path.
#[test]
fn y01_refusal_says_nobody_writes_path_when_first_is_refused() {
    for (first, second, why) in [
        ("/bin/x", "/usr/bin/x", "/bin"),
        ("/etc/stemma/node-labels", "/etc/stemma/node-labels", "/etc/stemma/node-labels"),
        ("/srv/dir", "/srv/dir/x", "/srv/dir"),
    ] {
        let host = MemoryHost::new();
        host.put_link("/bin");
        host.put("/srv/dir/y", "theirs");
        let file = |path: &str| json!({"path": path, "content": "x"});
        let told = results(&host, &set(&file(first), &file(second)));
        let of = |id: &str| told.iter().find(|one| one.task == id).unwrap();
        assert_eq!((of("a").outcome, of("b").outcome), (Outcome::Failed, Outcome::Failed), "{first}");
        let said = &of("b").message;
        assert!(said.starts_with(&format!("parameters.path: {second} meets {first}, the path of task a, ")), "{said}");
        assert!(said.contains(&format!("is refused this path ({}", of("a").message)) && said.contains(why), "{said}");
        assert!(!said.contains("writes it"), "{said}");
        assert_eq!(host.text(second), None);
    }
}

#[test]
fn y01_first_task_mends_drift_while_second_stays_refused() {
    let host = MemoryHost::new();
    let set = set(&json!({"path": "/z", "content": "a"}), &json!({"path": "/z", "content": "b"}));
    for _ in 0..6 {
        host.put("/z", "edited");
        let told = converge(&host, &set);
        assert!(told.contains(&("b".to_owned(), Outcome::Failed)), "{told:?}");
        assert_ne!(host.text("/z").as_deref(), Some("b"));
    }
}

/// It used to get the path without writing it, so nobody wrote it.
#[test]
fn y01_observed_task_claims_no_path() {
    let file = |mode: &str, path: &str| json!({"mode": mode, "parameters": {"path": path, "content": path}});
    let (observed, changed) = (Outcome::WouldChange, Outcome::Changed);
    for (first, second, told, written) in [
        (("observe", "/z"), ("apply", "/z"), [observed, changed], Some("/z")),
        (("apply", "/z"), ("observe", "/z"), [changed, observed], Some("/z")),
        (("observe", "/z"), ("observe", "/z"), [observed, observed], None),
        (("observe", "/z"), ("apply", "/z/y"), [observed, changed], Some("/z/y")),
        (("apply", "/z/y"), ("observe", "/z"), [changed, observed], Some("/z/y")),
    ] {
        let host = MemoryHost::new();
        let set = TestTaskSet::default().task("a", "file", &[], &file(first.0, first.1));
        let set = set.task("b", "file", &[], &file(second.0, second.1));
        let (mut all, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
        all.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(all, pairs(&[("a", told[0]), ("b", told[1])]), "{first:?} {second:?}");
        assert_eq!(progress, observed::Progress::Converged, "{first:?} {second:?}");
        for path in ["/z", "/z/y"] {
            let content = host.text(path);
            assert_eq!(content.as_deref(), written.filter(|written| *written == path), "{first:?} {second:?}");
        }
    }
}

#[test]
fn y01_tasks_share_path_when_never_run_together() {
    let b = || json!({"parameters": {"path": "/z", "content": "b"}});
    let both_absent = |set: TestTaskSet| set.task("b", "file", &[], &json!({"parameters": {"path": "/z", "absent": true}}));
    let only_file = Ceiling { task_types: Some(vec!["file".into()]) };
    for (set, ceiling, content) in [
        (
            TestTaskSet::default()
                .task("a", "file", &[], &json!({"phase": "cleanup", "parameters": {"path": "/z", "content": "a"}}))
                .task("b", "file", &[], &b()),
            Ceiling::default(),
            Some("b"),
        ),
        // A task that this host does not accept writes nothing.
        (
            TestTaskSet::default()
                .task("a", "file", &[], &json!({"parameters": {"path": "/z", "content": "a", "validate": ["true"]}}))
                .task("b", "file", &[], &b()),
            only_file,
            Some("b"),
        ),
        (
            both_absent(TestTaskSet::default().task("a", "file", &[], &json!({"parameters": {"path": "/z", "absent": true}}))),
            Ceiling::default(),
            None,
        ),
    ] {
        let host = MemoryHost::new();
        let (told, _) = run_with(&host, &set, &ceiling, RunPurpose::Converge);
        assert!(!told.contains(&("b".to_owned(), Outcome::Failed)), "{told:?}");
        assert_eq!(host.text("/z").as_deref(), content);
    }
}
