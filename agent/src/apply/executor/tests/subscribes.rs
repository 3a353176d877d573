//! Tasks that run again because another task has changed something.

use super::*;
use crate::host::memory::{MemoryUnit, StartBehavior};
use crate::host::system_units::ActiveState;

const RELOAD_COMMAND: &[&str] = &["reload"];

/// Returns two file tasks, and a task `note` that runs a reload if one of the files has changed. `after` contains the
/// indexes of the file tasks that the profile orders before `note`.
fn subscribing_set(content_a: &str, content_b: &str, after: &[u16]) -> TestTaskSet {
    let fields = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf-a", "/^conf-b/"]});
    TestTaskSet::default()
        .file("conf-a", &[], "/a", content_a)
        .file("conf-b", &[], "/b", content_b)
        .task("note", "shell", after, &fields)
}

fn reload_count(host: &MemoryHost) -> usize {
    host.commands_run().iter().filter(|words| *words == RELOAD_COMMAND).count()
}

/// Makes each command end with this exit status from now on.
fn set_exit_status(host: &MemoryHost, status: i32) {
    host.on_run(move |_, _| CommandResult { end: ExitKind::Status(status), output: String::new() });
}

/// Makes commands with this program fail, and all other commands succeed, from now on.
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
    assert_eq!(reload_count(&host), 1, "the command runs the first time because its own content is new");
    converge(&host, &subscribing_set("1", "1", &[0, 1]));
    assert_eq!(reload_count(&host), 1, "nothing changed");
    let outcomes = converge(&host, &subscribing_set("2", "2", &[0, 1]));
    assert_eq!(reload_count(&host), 2, "two files changed, and the command ran once");
    assert_eq!(
        outcomes.last(),
        Some(&("note".to_owned(), Outcome::Changed)),
        "the command ran after both files, in the same run"
    );
    assert_eq!(converge(&host, &subscribing_set("2", "2", &[0, 1])), []);
    assert_eq!(reload_count(&host), 2);
    converge(&host, &subscribing_set("2", "3", &[0, 1]));
    assert_eq!(reload_count(&host), 3, "the pattern matches the changed task conf-b");
}

/// The task `note` comes first in the profile and requires no task. Only `subscribes` orders it after `conf`.
#[test]
fn w02_subscribes_works_when_profile_has_no_order() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf"]});
    let set = |content: &str| TestTaskSet::default().task("note", "shell", &[], &fields).file("conf", &[], "/f", content);
    host.on_run(|host, _| CommandResult { end: ExitKind::Status(0), output: host.text("/f").unwrap_or_default() });
    for content in ["1", "2"] {
        let outcomes = converge(&host, &set(content));
        assert_eq!(outcomes, pairs(&[("conf", Outcome::Changed), ("note", Outcome::Changed)]));
        assert_eq!(
            site(&host).ledger.results().unwrap().last().unwrap().output,
            content,
            "the command ran after the file changed"
        );
    }
    assert_eq!(reload_count(&host), 2);
}

/// `conf` requires `note` (index 0), so the file is written after the command has run.
#[test]
fn w02_subscribes_waits_for_next_run_when_order_is_reversed() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf"]});
    let set = |content: &str| TestTaskSet::default().task("note", "shell", &[], &fields).file("conf", &[0], "/f", content);
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 1);
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 2, "in the first run, the file changed after the command ran");
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 2);
}

/// A mend of a file reruns the subscribing command. A rerun is no mend, so the command does not become contended.
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
    assert_eq!(reload_count(&host), 5, "reruns for a subscription do not make a task contended");
}

#[test]
fn w02_subscribes_respects_guards() {
    let host = MemoryHost::new();
    let fields = json!({"parameters": {"command": RELOAD_COMMAND, "creates": "/done"}, "subscribes": ["conf"]});
    let set = |content: &str| TestTaskSet::default().file("conf", &[], "/f", content).task("note", "shell", &[0], &fields);
    host.put("/done", "");
    assert_eq!(converge(&host, &set("1")), pairs(&[("conf", Outcome::Changed), ("note", Outcome::Unchanged)]));
    assert_eq!(reload_count(&host), 0, "the guard skips the command");
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
    assert_eq!(reload_count(&host), 3, "one more run after the failure, and then none");
}

/// In the second run, the task `other` has a type that no agent has (`teapot`), so `note` does not run.
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
    assert_eq!(reload_count(&host), 2, "the command reran, although conf did not change in this run");
}

#[test]
fn w02_subscribes_ignores_change_when_rejected_by_validate() {
    let host = MemoryHost::new();
    let set = |content: &str| {
        let conf = json!({"parameters": {"path": "/a", "content": content, "validate": ["test", "{path}"]}});
        let note = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["conf"]});
        TestTaskSet::default().task("conf", "file", &[], &conf).task("note", "shell", &[], &note)
    };
    let fail = |word| fail_program(&host, word);
    // No program has an empty name, so all commands succeed.
    fail("");
    converge(&host, &set("1"));
    fail("test");
    assert!(converge(&host, &set("2")).contains(&("conf".to_owned(), Outcome::Failed)));
    converge(&host, &set("1"));
    assert_eq!(reload_count(&host), 1, "the file did not change");
    assert!(!site(&host).ledger.should_refresh("note").unwrap());
    fail("reload");
    assert!(converge(&host, &set("3")).contains(&("note".to_owned(), Outcome::Failed)));
    fail("test");
    converge(&host, &set("2"));
    assert!(site(&host).ledger.should_refresh("note").unwrap(), "a pending rerun from an earlier run remains");
}

/// `note` subscribes to `a` and `b`. In the second run, `a` fails without a change. `b` changes its file, or fails too.
#[test]
fn w02_subscribes_is_cancelled_unless_another_task_changed() {
    let note = json!({"parameters": {"command": RELOAD_COMMAND}, "subscribes": ["a", "b"]});
    let conf = |path: &str, content: &str, validate: &[&str], retries: u8| json!({"retries": retries, "parameters": {"path": path, "content": content, "validate": validate}});
    let set = |content: &str, validate_of_b: &[&str], retries: [u8; 2]| {
        TestTaskSet::default()
            .task("a", "file", &[], &conf("/a", content, &["test", "{path}"], retries[0]))
            .task("b", "file", &[], &conf("/b", content, validate_of_b, retries[1]))
            .task("note", "shell", &[], &note)
    };
    // The task that is retried ends last.
    for (validate_of_b, retries, is_pending) in [
        (&["true"][..], [1, 0], true),
        (&["true"], [0, 1], true),
        (&["test", "{path}"], [1, 0], false),
        (&["test", "{path}"], [0, 1], false),
    ] {
        let host = MemoryHost::new();
        // No program has an empty name, so all commands succeed.
        fail_program(&host, "");
        converge(&host, &set("1", validate_of_b, retries));
        fail_program(&host, "test");
        let outcomes = converge(&host, &set("2", validate_of_b, retries));
        assert!(outcomes.contains(&("a".to_owned(), Outcome::Failed)), "{outcomes:?}");
        assert_eq!(outcomes.contains(&("b".to_owned(), Outcome::Changed)), is_pending, "{outcomes:?}");
        assert_eq!(site(&host).ledger.should_refresh("note").unwrap(), is_pending, "{validate_of_b:?} {retries:?}");
    }
}

/// In each round, the power is cut before another of the calls of a run that changes a file. After the next run, the
/// subscribing command has run again, unless the power was cut while it was recorded as begun.
#[test]
fn w02_subscribes_survives_power_cut_at_any_call() {
    let changed_set = || subscribing_set("2", "1", &[0, 1]);
    let start_host = || {
        let host = MemoryHost::new();
        converge(&host, &subscribing_set("1", "1", &[0, 1]));
        host.restart();
        host
    };
    let uninterrupted_host = start_host();
    converge(&uninterrupted_host, &changed_set());
    for call in 0..uninterrupted_host.calls() {
        let host = start_host();
        host.crash_before(call);
        let profile: Profile = postcard::from_bytes(&changed_set().profile().1).unwrap();
        let task_run = TaskRun::plan(site(&host), &Ceiling::default(), &changed_set().desired(), &profile, RunPurpose::Converge);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        if let Ok(mut run) = task_run {
            let open_barriers = BTreeSet::new();
            let _ = runtime.block_on(async {
                while run.advance(&open_barriers).await? {}
                anyhow::Ok(())
            });
            let _ = run.save_results();
        }
        host.cut_power();
        let is_begun = site(&host).ledger.step("note").unwrap().is_some_and(|step| step.state == StepState::Begun);
        converge(&host, &changed_set());
        let is_pending = site(&host).ledger.should_refresh("note").unwrap();
        assert!(
            is_begun || reload_count(&host) >= 2,
            "crashed before call {call}: the file changed, but the command did not run again"
        );
        assert_eq!(is_pending, is_begun, "crashed before call {call}: the rerun is pending only if the command was interrupted");
    }
}

#[test]
fn w02_subscribes_check_shows_tasks_to_rerun() {
    let host = MemoryHost::new();
    let check = |set: &TestTaskSet| run_with(&host, set, &Ceiling::default(), RunPurpose::Check).0;
    converge(&host, &subscribing_set("1", "1", &[0, 1]));
    let outcomes = check(&subscribing_set("2", "1", &[0, 1]));
    assert!(outcomes.contains(&("note".to_owned(), Outcome::WouldChange)), "{outcomes:?}");
    assert_eq!(reload_count(&host), 1);
    assert!(check(&subscribing_set("1", "1", &[0, 1])).contains(&("note".to_owned(), Outcome::Unchanged)));
}

/// The refresh was requested while the command that an earlier agent started ran. The first search for such commands
/// failed, for example because there was no bus.
#[test]
fn subscriber_runs_again_after_left_command() {
    let host = MemoryHost::new();
    let set = subscribing_set("1", "1", &[0, 1]);
    converge(&host, &set);
    let site = site(&host);
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        site.left.search().await;
        host.fail_search();
        site.left.find(&host, &site.ledger).await.unwrap_err();
        site.ledger.request_refresh(&["note".to_owned()]).unwrap();
        host.leave_command("note", ExitKind::Status(0));
        let mut run = TaskRun::plan(site.clone(), &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap();
        while run.advance(&BTreeSet::new()).await.unwrap() {}
    });
    assert_eq!(reload_count(&host), 2);
    assert!(!site.ledger.should_refresh("note").unwrap());
}

/// Returns a set with two files, and a task for the unit `app.service` that subscribes to both.
fn unit_set(content: &str, parameters: &serde_json::Value) -> TestTaskSet {
    let fields = json!({"subscribes": ["a", "b"], "retries": 3, "parameters": parameters});
    TestTaskSet::default().file("a", &[], "/a", content).file("b", &[], "/b", content).task("app", "service", &[], &fields)
}

fn unit_outcome(outcomes: &[(String, Outcome)]) -> Option<Outcome> {
    outcomes.iter().find(|(task, _)| task == "app").map(|(_, outcome)| *outcome)
}

#[test]
fn unit_restarts_once_when_several_files_changed() {
    let host = MemoryHost::new();
    host.put_unit("app.service", MemoryUnit::new(ActiveState::Active, "enabled"));
    let running = json!({"unit": "app", "state": "running"});
    for content in ["1", "2"] {
        let outcomes = converge(&host, &unit_set(content, &running));
        assert_eq!(unit_outcome(&outcomes), Some(Outcome::Changed));
        assert_eq!(host.take_unit_changes(), ["restart app.service"]);
        assert_eq!(converge(&host, &unit_set(content, &running)), []);
        assert_eq!(host.take_unit_changes(), Vec::<String>::new());
    }
    // A unit that does not run and need not run is left as it is, and the refresh is settled.
    host.update_unit("app.service", |unit| unit.status.active_state = ActiveState::Inactive);
    let outcomes = converge(&host, &unit_set("3", &json!({"unit": "app"})));
    assert_eq!(unit_outcome(&outcomes), Some(Outcome::Unchanged));
    assert!(!site(&host).ledger.should_refresh("app").unwrap());
    assert_eq!(host.take_unit_changes(), Vec::<String>::new());
}

/// The task has three retries. Another start would interrupt the one that runs.
#[test]
fn unit_starts_once_when_start_hangs_with_retries() {
    let host = MemoryHost::new();
    host.put_unit("app.service", MemoryUnit::new(ActiveState::Inactive, "disabled"));
    host.update_unit("app.service", |unit| unit.behavior = StartBehavior::Hangs);
    let running = json!({"unit": "app", "state": "running"});
    for _ in 0..2 {
        converge(&host, &unit_set("1", &running));
        assert_eq!(site(&host).ledger.get(&PROGRESS).unwrap().unwrap().tasks["app"].outcome, Outcome::Failed);
    }
    assert_eq!(host.take_unit_changes(), ["start app.service"]);
    host.update_unit("app.service", |unit| unit.behavior = StartBehavior::Fails);
    host.update_unit("app.service", |unit| unit.status.active_state = ActiveState::Inactive);
    converge(&host, &unit_set("1", &running));
    let starts = host.take_unit_changes().into_iter().filter(|change| change == "start app.service").count();
    assert_eq!(starts, 4, "a start that fails is retried");
}
