//! The clean-ups: tasks that run once when the task that names them in `on_unassign` is no longer placed here.

use serde_json::Value;

use super::*;
use crate::apply::ledger::{CLEAN_UPS, CleanUpStep};

/// A task set with a base task, and with `conf`, which names `undo` in `on_unassign`. The host gets `undo` only for that.
fn set_with_conf() -> TestTaskSet {
    let conf = json!({"on_unassign": "undo", "parameters": {"path": "/etc/app", "content": "x"}});
    set_with(&conf, &json!({"parameters": {"command": ["undo"]}}))
}

/// Returns a task set with a base task, the task `conf` with these fields, and the task `undo` for `on_unassign`.
fn set_with(conf: &Value, undo: &Value) -> TestTaskSet {
    let kind = |fields: &Value| if fields["parameters"]["path"].is_null() { "shell" } else { "file" };
    base_set().task("conf", kind(conf), &[], conf).unassign_task("undo", kind(undo), undo)
}

fn base_set() -> TestTaskSet {
    TestTaskSet::default().file("base", &[], "/etc/base", "b")
}

/// Returns the words of the commands that ran on a host.
fn commands(host: &MemoryHost) -> Vec<String> {
    host.commands_run().iter().map(|words| words.join(" ")).collect()
}

const UNDO: &str = "on_unassign/undo";

#[test]
fn clean_up_runs_once_when_task_is_no_longer_placed() {
    let host = MemoryHost::new();
    assert_eq!(converge(&host, &set_with_conf()).len(), 2, "`undo` is no task of the set");
    assert_eq!(converge(&host, &set_with_conf()), [], "nothing is due while `conf` is placed");
    assert_eq!(commands(&host), Vec::<String>::new());
    let without_conf = base_set();
    let expected = pairs(&[(UNDO, Outcome::Changed), ("base", Outcome::Unchanged)]);
    assert_eq!(converge(&host, &without_conf), expected, "it runs before the other tasks");
    assert_eq!(commands(&host), ["undo"]);
    for _ in 0..2 {
        assert_eq!(converge(&host, &without_conf), []);
    }
    converge(&host, &base_set().with_release(2));
    assert_eq!(commands(&host), ["undo"], "another task set does not repeat it");
    // The task comes back and falls away once more.
    converge(&host, &set_with_conf());
    converge(&host, &without_conf);
    assert_eq!(commands(&host), ["undo", "undo"], "each removal of the task runs it once");
}

#[test]
fn failed_clean_up_is_retried_until_success() {
    let host = MemoryHost::new();
    converge(&host, &set_with_conf());
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: "no".into() });
    let without_conf = base_set();
    let (outcomes, progress) = run_with(&host, &without_conf, &Ceiling::default(), RunPurpose::Converge);
    assert_eq!(outcomes, pairs(&[(UNDO, Outcome::Failed), ("base", Outcome::Unchanged)]), "the other tasks run nevertheless");
    assert_eq!(progress, observed::Progress::Failed);
    let reports = crate::apply::clean_ups::reports(&site(&host)).unwrap();
    assert_eq!(
        serde_json::json!(reports),
        json!([{"task": "conf", "on_unassign": "undo", "state": "failed",
        "message": "the command ended with status 1"}])
    );
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    let (outcomes, progress) = run_with(&host, &without_conf, &Ceiling::default(), RunPurpose::Converge);
    assert_eq!((outcomes, progress), (pairs(&[(UNDO, Outcome::Changed)]), observed::Progress::Converged));
    converge(&host, &without_conf);
    assert_eq!(commands(&host), ["undo", "undo"]);
}

#[test]
fn pending_clean_up_is_dropped_when_task_returns() {
    let host = MemoryHost::new();
    converge(&host, &set_with_conf());
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: String::new() });
    converge(&host, &base_set());
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(0), output: String::new() });
    assert!(converge(&host, &set_with_conf()).iter().all(|(task, _)| task != UNDO));
    assert_eq!(commands(&host), ["undo"], "only the failed run");
}

/// A clean-up that runs needs nothing of the new task set: neither its definition nor its inputs.
#[test]
fn clean_up_uses_inputs_of_last_task_set() {
    let host = MemoryHost::new();
    let conf = json!({"on_unassign": "undo", "parameters": {"path": "/etc/app", "content": "x"}});
    let undo = json!({"parameters": {"path": "/etc/gone-{{ labels.tier }}", "content": "bye"}});
    converge(&host, &set_with(&conf, &undo).with_input("labels.tier", "gold"));
    converge(&host, &TestTaskSet::default());
    assert_eq!(host.text("/etc/gone-gold").as_deref(), Some("bye"));
}

/// The path of a clean-up belongs to a task of the new task set, which runs after it.
#[test]
fn clean_up_runs_before_task_with_same_path() {
    let host = MemoryHost::new();
    let conf = json!({"on_unassign": "undo", "parameters": {"path": "/etc/app", "content": "x"}});
    let undo = json!({"parameters": {"path": "/etc/app", "absent": true}});
    converge(&host, &set_with(&conf, &undo));
    let outcomes = converge(&host, &TestTaskSet::default().file("new", &[], "/etc/app", "y"));
    assert_eq!(outcomes, pairs(&[(UNDO, Outcome::Changed), ("new", Outcome::Changed)]));
    assert_eq!(host.text("/etc/app").as_deref(), Some("y"));
}

#[test]
fn clean_up_changes_nothing_when_host_only_checks() {
    let host = MemoryHost::new();
    converge(&host, &set_with_conf());
    let noop = base_set().mode(Mode::Noop);
    let would_change = run_with(&host, &noop, &Ceiling::default(), RunPurpose::Converge).0;
    assert!(would_change.contains(&(UNDO.to_owned(), Outcome::WouldChange)), "{would_change:?}");
    let checked = run_with(&host, &base_set(), &Ceiling::default(), RunPurpose::Check).0;
    assert!(checked.contains(&(UNDO.to_owned(), Outcome::WouldChange)), "{checked:?}");
    assert_eq!(commands(&host), Vec::<String>::new());
    let step = |host: &MemoryHost| site(host).ledger.get(&CLEAN_UPS).unwrap().unwrap()["conf"].step;
    assert_eq!(step(&host), CleanUpStep::Assigned, "a check records nothing");
    converge(&host, &base_set());
    assert_eq!((commands(&host), step(&host)), (vec!["undo".to_owned()], CleanUpStep::Done));
}

/// The ceiling of the host also holds for clean-ups.
#[test]
fn clean_up_is_refused_when_ceiling_excludes_type() {
    let host = MemoryHost::new();
    converge(&host, &set_with_conf());
    let ceiling = Ceiling { task_types: Some(vec!["file".into()]) };
    let outcomes = run_with(&host, &base_set(), &ceiling, RunPurpose::Converge).0;
    assert_eq!(outcomes, pairs(&[(UNDO, Outcome::Unsupported), ("base", Outcome::Unchanged)]));
    assert_eq!(commands(&host), Vec::<String>::new());
}

/// Two tasks that name the same clean-up fall away at once. The clean-up of the later task runs first.
#[test]
fn clean_ups_run_once_each_in_reverse_order() {
    let host = MemoryHost::new();
    let task = |on_unassign: &str, path: &str| json!({"on_unassign": on_unassign, "parameters": {"path": path, "content": "x"}});
    let command = |word: &str| json!({"parameters": {"command": [word]}});
    let set = TestTaskSet::default()
        .task("first", "file", &[], &task("undo-a", "/a"))
        .task("second", "file", &[], &task("undo-b", "/b"))
        .task("third", "file", &[], &task("undo-a", "/c"))
        .unassign_task("undo-a", "shell", &command("undo-a"))
        .unassign_task("undo-b", "shell", &command("undo-b"));
    converge(&host, &set);
    converge(&host, &TestTaskSet::default());
    assert_eq!(commands(&host), ["undo-a", "undo-b"]);
}

/// A task that is placed and that its condition leaves out has not fallen away.
#[test]
fn clean_up_is_not_due_when_condition_leaves_task_out() {
    let host = MemoryHost::new();
    converge(&host, &set_with_conf());
    converge(&host, &set_with_conf().leave_out("conf", "condition is false: x"));
    assert_eq!(commands(&host), Vec::<String>::new());
    converge(&host, &base_set());
    assert_eq!(commands(&host), ["undo"]);
}

/// In each round, the power is cut before another of the calls of a run in which a task falls away. After the next run,
/// the command has run once, unless the power was cut while it was recorded as begun: then a person must decide.
#[test]
fn clean_up_runs_once_when_power_is_cut() {
    let start_host = || {
        let host = MemoryHost::new();
        converge(&host, &set_with_conf());
        host.restart();
        host
    };
    let uninterrupted_host = start_host();
    converge(&uninterrupted_host, &base_set());
    let mut unknown_count = 0;
    for call in 0..uninterrupted_host.calls() {
        let host = start_host();
        host.crash_before(call);
        let profile: Profile = postcard::from_bytes(&base_set().profile().1).unwrap();
        let task_run = TaskRun::plan(site(&host), &Ceiling::default(), &base_set().desired(), &profile, RunPurpose::Converge);
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
        let is_begun = site(&host).ledger.step(UNDO).unwrap().is_some_and(|step| step.state == StepState::Begun);
        unknown_count += usize::from(is_begun);
        let outcomes = converge(&host, &base_set());
        assert_eq!(outcomes.contains(&(UNDO.to_owned(), Outcome::Unknown)), is_begun, "crashed before call {call}");
        assert!(is_begun || commands(&host).len() == 1, "crashed before call {call}: {:?}", commands(&host));
        converge(&host, &base_set());
        assert!(commands(&host).len() <= 1, "crashed before call {call}: {:?}", commands(&host));
    }
    assert!(unknown_count > 0, "at least one crash interrupted the command");
}
