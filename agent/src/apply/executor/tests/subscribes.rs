//! Tasks that run again because another task has changed something.

use super::*;

const RELOAD_COMMAND: &[&str] = &["reload"];

/// A task that reloads if one of two files has changed. `after` has the files that the profile orders before it.
fn subscribing_set(a: &str, b: &str, after: &[u16]) -> TestTaskSet {
    let fields = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf-a", "/^conf-b/"]});
    TestTaskSet::default().file("conf-a", &[], "/a", a).file("conf-b", &[], "/b", b).task("note", "shell", after, &fields)
}

fn reload_count(host: &MemoryHost) -> usize {
    host.commands_run().iter().filter(|words| *words == RELOAD_COMMAND).count()
}

/// Makes the command end with this status from now on.
fn set_exit_status(host: &MemoryHost, status: i32) {
    host.on_run(move |_, _| CommandResult { end: ExitKind::Status(status), output: String::new() });
}

/// Makes commands with this program fail from now on.
fn fail_program(host: &MemoryHost, program: &'static str) {
    host.on_run(move |_, command| CommandResult {
        end: ExitKind::Status(i32::from(command.argv[0] == program)),
        output: String::new(),
    });
}

#[test]
fn w02_subscribes_reruns_task_once_when_several_changed() {
    let host = MemoryHost::new();
    converge(&host, &subscribing_set("1", "1", &[0, 1]));
    assert_eq!(reload_count(&host), 1, "the first time, for its own content");
    converge(&host, &subscribing_set("1", "1", &[0, 1]));
    assert_eq!(reload_count(&host), 1, "nothing changed");
    let told = converge(&host, &subscribing_set("2", "2", &[0, 1]));
    assert_eq!(reload_count(&host), 2, "two changed, and it ran once");
    assert_eq!(told.last(), Some(&("note".to_owned(), Outcome::Changed)), "after both, in the same run");
    assert_eq!(converge(&host, &subscribing_set("2", "2", &[0, 1])), []);
    assert_eq!(reload_count(&host), 2);
    converge(&host, &subscribing_set("2", "3", &[0, 1]));
    assert_eq!(reload_count(&host), 3, "one that a pattern names");
}

#[test]
fn w02_subscribes_works_when_profile_has_no_order() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf"]});
    let set = |content: &str| TestTaskSet::default().task("note", "shell", &[], &fields).file("conf", &[], "/f", content);
    host.on_run(|host, _| CommandResult { end: ExitKind::Status(0), output: host.text("/f").unwrap_or_default() });
    for content in ["1", "2"] {
        let told = converge(&host, &set(content));
        assert_eq!(told, pairs(&[("conf", Outcome::Changed), ("note", Outcome::Changed)]));
        assert_eq!(site(&host).ledger.results().unwrap().last().unwrap().output, content, "after what changed");
    }
    assert_eq!(reload_count(&host), 2);
}

#[test]
fn w02_subscribes_waits_for_next_run_when_order_is_reversed() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf"]});
    let set = |content: &str| TestTaskSet::default().task("note", "shell", &[], &fields).file("conf", &[0], "/f", content);
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 1);
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 2, "it changed after it");
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 2);
}

#[test]
fn w02_subscribes_counts_mend_as_change_and_rerun_as_none() {
    let host = MemoryHost::new();
    converge(&host, &subscribing_set("1", "1", &[0, 1]));
    for mends in 1..=3 {
        host.put("/a", "edited");
        converge(&host, &subscribing_set("1", "1", &[0, 1]));
        assert_eq!(reload_count(&host), 1 + mends);
    }
    converge(&host, &subscribing_set("1", "2", &[0, 1]));
    assert_eq!(reload_count(&host), 5, "what runs for another one is not contended");
}

#[test]
fn w02_subscribes_respects_guards() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": RELOAD_COMMAND, "creates": "/done"}, "subscribes": ["conf"]});
    let set = |content: &str| TestTaskSet::default().file("conf", &[], "/f", content).task("note", "shell", &[0], &fields);
    host.put("/done", "");
    assert_eq!(converge(&host, &set("1")), pairs(&[("conf", Outcome::Changed), ("note", Outcome::Unchanged)]));
    assert_eq!(reload_count(&host), 0, "its guard says that there is nothing to do");
    host.delete("/done");
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 1);
}

#[test]
fn w02_subscribes_stays_pending_when_rerun_fails() {
    let host = MemoryHost::new();
    converge(&host, &subscribing_set("1", "1", &[0, 1]));
    set_exit_status(&host, 1);
    assert!(converge(&host, &subscribing_set("2", "1", &[0, 1])).contains(&("note".to_owned(), Outcome::Failed)));
    assert!(site(&host).ledger.should_refresh("note").unwrap());
    set_exit_status(&host, 0);
    converge(&host, &subscribing_set("2", "1", &[0, 1]));
    converge(&host, &subscribing_set("2", "1", &[0, 1]));
    assert_eq!(reload_count(&host), 3, "again after the failure, and then no more");
}

#[test]
fn w02_subscribes_stays_pending_when_other_requirement_fails() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf"]});
    let set = |content: &str, kind: &str| {
        let other = json!({"parameters": {"path": "/other", "content": ""}});
        let set = TestTaskSet::default().file("conf", &[], "/f", content).task("other", kind, &[], &other);
        set.task("note", "shell", &[0, 1], &fields)
    };
    converge(&host, &set("1", "file"));
    assert!(converge(&host, &set("2", "teapot")).contains(&("note".to_owned(), Outcome::DependencyFailed)));
    converge(&host, &set("2", "file"));
    assert_eq!(reload_count(&host), 2, "conf did not change in this run");
}

#[test]
fn w02_subscribes_ignores_change_when_rejected_by_validate() {
    let host = MemoryHost::new();
    let set = |content: &str| {
        let conf = json!({"parameters": {"path": "/a", "content": content, "validate": ["test", "{path}"]}});
        let note = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf"]});
        TestTaskSet::default().task("conf", "file", &[], &conf).task("note", "shell", &[], &note)
    };
    let refuses = |word| fail_program(&host, word);
    refuses("");
    converge(&host, &set("1"));
    refuses("test");
    assert!(converge(&host, &set("2")).contains(&("conf".to_owned(), Outcome::Failed)));
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 1, "the file is as it was");
    assert!(!site(&host).ledger.should_refresh("note").unwrap());
    refuses("reload");
    assert!(converge(&host, &set("3")).contains(&("note".to_owned(), Outcome::Failed)));
    refuses("test");
    converge(&host, &set("2"));
    assert!(site(&host).ledger.should_refresh("note").unwrap(), "a wish of before is kept");
}

#[test]
fn w02_subscribes_is_cancelled_unless_another_task_changed() {
    let note = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["a", "b"]});
    let conf = |path: &str, content: &str, validate: &[&str], retries: u8| json!({"retries": retries, "parameters": {"path": path, "content": content, "validate": validate}});
    let set = |content: &str, of_b: &[&str], retries: [u8; 2]| {
        TestTaskSet::default()
            .task("a", "file", &[], &conf("/a", content, &["test", "{path}"], retries[0]))
            .task("b", "file", &[], &conf("/b", content, of_b, retries[1]))
            .task("note", "shell", &[], &note)
    };
    // The task that is retried ends last.
    for (of_b, retries, is_kept) in [
        (&["true"][..], [1, 0], true),
        (&["true"], [0, 1], true),
        (&["test", "{path}"], [1, 0], false),
        (&["test", "{path}"], [0, 1], false),
    ] {
        let host = MemoryHost::new();
        fail_program(&host, "");
        converge(&host, &set("1", of_b, retries));
        fail_program(&host, "test");
        let told = converge(&host, &set("2", of_b, retries));
        assert!(told.contains(&("a".to_owned(), Outcome::Failed)), "{told:?}");
        assert_eq!(told.contains(&("b".to_owned(), Outcome::Changed)), is_kept, "{told:?}");
        assert_eq!(site(&host).ledger.should_refresh("note").unwrap(), is_kept, "{of_b:?} {retries:?}");
    }
}

#[test]
fn w02_subscribes_survives_power_cut_at_any_call() {
    let changed = || subscribing_set("2", "1", &[0, 1]);
    let started = || {
        let host = MemoryHost::new();
        converge(&host, &subscribing_set("1", "1", &[0, 1]));
        host.restart();
        host
    };
    let whole = started();
    converge(&whole, &changed());
    for call in 0..whole.calls() {
        let host = started();
        host.crash_before(call);
        let profile: Profile = postcard::from_bytes(&changed().profile().1).unwrap();
        let cut = TaskRun::plan(site(&host), &Ceiling::default(), &changed().desired(), &profile, RunPurpose::Converge);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        if let Ok(mut run) = cut {
            let open = BTreeSet::new();
            let _ = runtime.block_on(async {
                while run.advance(&open).await? {}
                anyhow::Ok(())
            });
            let _ = run.save_results();
        }
        host.cut_power();
        let begun = site(&host).ledger.step("note").unwrap().is_some_and(|step| step.state == StepState::Begun);
        converge(&host, &changed());
        let is_unknown = site(&host).ledger.should_refresh("note").unwrap();
        assert!(begun || reload_count(&host) >= 2, "died before call {call}: the change was made, and nobody was told");
        assert_eq!(is_unknown, begun, "died before call {call}: it is kept until it has succeeded, and no longer");
    }
}

#[test]
fn w02_subscribes_check_shows_tasks_to_rerun() {
    let host = MemoryHost::new();
    let look = |set: &TestTaskSet| run_with(&host, set, &Ceiling::default(), RunPurpose::Check).0;
    converge(&host, &subscribing_set("1", "1", &[0, 1]));
    let told = look(&subscribing_set("2", "1", &[0, 1]));
    assert!(told.contains(&("note".to_owned(), Outcome::WouldChange)), "{told:?}");
    assert_eq!(reload_count(&host), 1);
    assert!(look(&subscribing_set("1", "1", &[0, 1])).contains(&("note".to_owned(), Outcome::Unchanged)));
}
