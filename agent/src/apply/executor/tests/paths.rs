//! Two tasks of one path: it is the first one's.

use serde_json::Value;

use super::*;

fn set(first: &Value, second: &Value) -> Set {
    let task = |parameters: &Value| json!({"parameters": parameters});
    Set::default()
        .task("a", "file", &[], &task(first))
        .reads("labels.at", "z")
        .task("b", "file", &[], &task(second))
        .reads("labels.at", "z")
        .command("after-b", &[1], &["true"])
}

#[test]
fn y01_a_path_is_written_for_the_first_of_two_tasks_and_never_for_the_second() {
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
        assert_eq!(
            BTreeSet::from_iter(outcomes),
            [("a", changed), ("b", refused), ("after-b", stopped)].into(),
            "{second}"
        );
        let why = &told.iter().find(|one| one.task == "b").unwrap().message;
        assert!(why.starts_with("parameters.path: ") && why.contains("task a") && why.contains(path), "{why}");
        assert_eq!(host.text(path).as_deref(), Some("a"));
        // Of all looks after it, none writes.
        for _ in 0..3 {
            let (told, progress) = run_with(&host, &set, &Ceiling::default(), Purpose::Converge);
            assert_eq!((told, progress), (pairs(&[("b", refused)]), observed::Progress::Failed), "{second}");
        }
        let mut checked = run_with(&host, &set, &Ceiling::default(), Purpose::Check).0;
        checked.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(checked[..2], pairs(&[("a", Outcome::Unchanged), ("after-b", stopped)]), "{second}");
        assert_eq!(checked[2..], pairs(&[("b", refused)]), "{second}");
    }
}

/// It was said to write it.
#[test]
fn y01_of_a_first_task_that_is_refused_its_path_it_is_said_that_nobody_writes_it() {
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
        assert!(said.contains(&format!("is refused it ({}", of("a").message)) && said.contains(why), "{said}");
        assert!(!said.contains("writes it"), "{said}");
        assert_eq!(host.text(second), None);
    }
}

#[test]
fn y01_what_is_drift_of_the_first_is_mended_and_the_second_stays_refused() {
    let host = MemoryHost::new();
    let set = set(&json!({"path": "/z", "content": "a"}), &json!({"path": "/z", "content": "b"}));
    for _ in 0..6 {
        host.put("/z", "edited");
        let told = converge(&host, &set);
        assert!(told.contains(&("b".to_owned(), Outcome::Failed)), "{told:?}");
        assert_ne!(host.text("/z").as_deref(), Some("b"));
    }
}

/// It had the path and wrote nothing there, so that nobody did.
#[test]
fn y01_a_task_that_is_only_observed_has_no_path() {
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
        let set = Set::default().task("a", "file", &[], &file(first.0, first.1));
        let set = set.task("b", "file", &[], &file(second.0, second.1));
        let (mut all, progress) = run_with(&host, &set, &Ceiling::default(), Purpose::Converge);
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
fn y01_tasks_that_do_not_run_together_take_no_path_from_each_other() {
    let b = || json!({"parameters": {"path": "/z", "content": "b"}});
    let both_absent = |set: Set| set.task("b", "file", &[], &json!({"parameters": {"path": "/z", "absent": true}}));
    let only_file = Ceiling { task_types: Some(vec!["file".into()]) };
    for (set, ceiling, content) in [
        (
            Set::default()
                .task("a", "file", &[], &json!({"phase": "cleanup", "parameters": {"path": "/z", "content": "a"}}))
                .task("b", "file", &[], &b()),
            Ceiling::default(),
            Some("b"),
        ),
        // One that this host does not take writes nothing.
        (
            Set::default()
                .task("a", "file", &[], &json!({"parameters": {"path": "/z", "content": "a", "validate": ["true"]}}))
                .task("b", "file", &[], &b()),
            only_file,
            Some("b"),
        ),
        (
            both_absent(Set::default().task("a", "file", &[], &json!({"parameters": {"path": "/z", "absent": true}}))),
            Ceiling::default(),
            None,
        ),
    ] {
        let host = MemoryHost::new();
        let (told, _) = run_with(&host, &set, &ceiling, Purpose::Converge);
        assert!(!told.contains(&("b".to_owned(), Outcome::Failed)), "{told:?}");
        assert_eq!(host.text("/z").as_deref(), content);
    }
}
