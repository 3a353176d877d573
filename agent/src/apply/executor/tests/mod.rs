//! Whole runs of a task set: order, drift, reported results, and files that a run must not change.

use std::rc::Rc;

use serde_json::json;
use stemma_wire::message::Hash;

use super::*;
use crate::apply::applier::testing::site;
use crate::apply::ledger::{Ledger, StepState};
use crate::apply::testing::TestTaskSet;
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, Dir, ExitKind, Host as _};

/// Runs a task set until no task can run any more. Returns task and outcome of each result of a check, or else of each
/// new result, and the progress of the host.
fn run_with(
    host: &MemoryHost,
    set: &TestTaskSet,
    ceiling: &Ceiling,
    purpose: RunPurpose,
) -> (Vec<(String, Outcome)>, observed::Progress) {
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let mut run = TaskRun::plan(site(host), ceiling, &set.desired(), &profile, purpose).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let open_barriers = BTreeSet::new();
    runtime.block_on(async { while run.advance(&open_barriers).await.unwrap() {} });
    let progress = run.progress();
    let results = if purpose == RunPurpose::Check { run.into_results() } else { run.save_results().unwrap() };
    (results.into_iter().map(|result| (result.task, result.outcome)).collect(), progress)
}

fn converge(host: &MemoryHost, set: &TestTaskSet) -> Vec<(String, Outcome)> {
    run_with(host, set, &Ceiling::default(), RunPurpose::Converge).0
}

fn pairs(pairs: &[(&str, Outcome)]) -> Vec<(String, Outcome)> {
    pairs.iter().map(|(task, outcome)| ((*task).to_owned(), *outcome)).collect()
}

/// The numbers are the indexes of the tasks that a task requires. No agent has the task type `teapot`.
#[test]
fn run_stops_only_dependants_when_task_fails() {
    let host = MemoryHost::new();
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: "broken".into() });
    let set = TestTaskSet::default()
        .command("bad", &[], &["false"])
        .file("after", &[0], "/after", "")
        .file("other", &[], "/other", "")
        .task("teapot", "teapot", &[], &json!({}))
        .file("behind", &[3], "/behind", "");
    let (mut outcomes, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        outcomes,
        pairs(&[
            ("after", Outcome::DependencyFailed),
            ("bad", Outcome::Failed),
            ("behind", Outcome::DependencyFailed),
            ("other", Outcome::Changed),
            ("teapot", Outcome::Unsupported),
        ])
    );
    assert_eq!((progress, host.text("/after"), host.text("/other")), (observed::Progress::Failed, None, Some(String::new())));
}

/// Regression test: a task with the mode `observe` was checked, and its guards were run, as in mode `noop`.
#[test]
fn y06_run_skips_task_when_task_mode_is_observe() {
    let guarded = json!({"mode": "observe", "parameters": {"command": ["run"], "unless": ["guard"]}});
    let file = json!({"mode": "observe", "parameters": {"path": "/o", "content": "x"}});
    let set = |mode: &str| {
        let other = json!({"mode": mode, "parameters": {"path": "/f", "content": "x"}});
        let set = TestTaskSet::default().task("o", "shell", &[], &guarded).task("file", "file", &[], &file);
        set.task("other", "file", &[], &other)
    };
    let observed_outcomes = [("o", Outcome::WouldChange), ("file", Outcome::WouldChange)];
    let host = MemoryHost::new();
    let outcomes_and_progress = run_with(&host, &set("apply"), &Ceiling::default(), RunPurpose::Converge);
    let expected = [observed_outcomes[0], observed_outcomes[1], ("other", Outcome::Changed)];
    assert_eq!(
        outcomes_and_progress,
        (pairs(&expected), observed::Progress::Converged),
        "no other task waits for the observed tasks"
    );
    assert_eq!((host.commands_run().len(), host.text("/o"), host.text("/f").as_deref()), (0, None, Some("x")));
    assert_eq!(converge(&host, &set("apply")), [], "a result is reported once");
    let noop = set("apply").mode(Mode::Noop);
    assert_eq!(run_with(&host, &noop, &Ceiling::default(), RunPurpose::Converge).1, observed::Progress::Converged);
    let check_outcomes = run_with(&host, &set("apply"), &Ceiling::default(), RunPurpose::Check).0;
    assert_eq!(check_outcomes, pairs(&[("other", Outcome::Unchanged)]), "a check reports nothing about observed tasks");
    assert_eq!(host.commands_run().len(), 0, "no guard was run");
    // A stage has nothing to run or check, whatever its mode.
    let stage_set = TestTaskSet::default().task("stage", "stage", &[], &json!({"mode": "observe"})).file("f", &[0], "/g", "x");
    converge(&host, &stage_set);
    assert_eq!(host.text("/g").as_deref(), Some("x"));
}

#[test]
fn y06_dependant_explains_stop_when_requirement_is_observed() {
    let host = MemoryHost::new();
    let observed_command = json!({"mode": "observe", "parameters": {"command": ["run"]}});
    let set = TestTaskSet::default().task("o", "shell", &[], &observed_command).file("after", &[0], "/a", "").file(
        "last",
        &[1],
        "/b",
        "",
    );
    let results = results(&host, &set);
    let reported: Vec<_> = results.iter().map(|result| (result.task.as_str(), result.outcome, result.message.as_str())).collect();
    let expected_message = "Not run: o, which it requires, is neither run nor checked, since its mode is observe.";
    assert_eq!(
        reported,
        [
            ("o", Outcome::WouldChange, "its mode is observe: it is neither run nor checked"),
            ("after", Outcome::DependencyFailed, expected_message),
            ("last", Outcome::DependencyFailed, expected_message),
        ]
    );
    assert_eq!((host.commands_run().len(), host.text("/a"), host.text("/b")), (0, None, None));
}

/// Regression test: the host reported `failed`, while the controllers showed it as `converged`.
#[test]
fn y06_host_converges_when_only_marker_follows_observed_task() {
    let observed_file = json!({"mode": "observe", "parameters": {"path": "/o", "content": "x"}});
    let set = || TestTaskSet::default().task("o", "file", &[], &observed_file).marker("sk", &[0]);
    let expected = ("o", Outcome::WouldChange);
    for (set, expected, expected_progress) in [
        (set(), vec![expected], observed::Progress::Converged),
        (set().marker("last", &[1]), vec![expected], observed::Progress::Converged),
        (set().file("after", &[1], "/a", ""), vec![expected, ("after", Outcome::DependencyFailed)], observed::Progress::Failed),
    ] {
        let host = MemoryHost::new();
        let outcomes_and_progress = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
        assert_eq!(outcomes_and_progress, (pairs(&expected), expected_progress));
        assert_eq!((host.text("/o"), host.text("/a")), (None, None));
    }
}

/// An agent of an older version checked a task with the mode `observe`, and stored another outcome. After an upgrade of
/// the agent, the same task set reports nothing.
#[test]
fn y06_observed_task_keeps_earlier_result_of_same_task_set() {
    let host = MemoryHost::new();
    let set = TestTaskSet::default().task("o", "shell", &[], &json!({"mode": "observe", "parameters": {"command": ["run"]}}));
    converge(&host, &set);
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    let mut progress = ledger.get(&PROGRESS).unwrap().unwrap();
    progress.tasks.get_mut("o").unwrap().outcome = Outcome::Unchanged;
    ledger.put(&PROGRESS, &progress).unwrap();
    drop(ledger);
    assert_eq!(converge(&host, &set), []);
    let next_set = set.with_release(2);
    assert_eq!(converge(&host, &next_set), pairs(&[("o", Outcome::WouldChange)]), "the next task set reports the task again");
}

/// Regression test: the host reported `Idle`, because a task would change, although another task had failed. The
/// controller showed a failure.
#[test]
fn y06_progress_is_failed_in_noop_when_other_tasks_would_change() {
    use observed::Progress::{Failed, Idle};
    let file_set = || TestTaskSet::default().file("would", &[], "/would", "x");
    let unsupported_set = || TestTaskSet::default().task("teapot", "teapot", &[], &json!({}));
    for (name, set, mode, progress) in [
        ("nothing failed", file_set(), Mode::Noop, Idle),
        ("the unsupported task comes first", unsupported_set().file("would", &[], "/would", "x"), Mode::Noop, Failed),
        ("the unsupported task comes last", file_set().task("teapot", "teapot", &[], &json!({})), Mode::Noop, Failed),
        ("two tasks have the same path", file_set().file("second", &[], "/would", "y"), Mode::Noop, Failed),
        ("a directory is in the way", file_set().file("dir", &[], "/dir", "y"), Mode::Noop, Failed),
        ("a host that only observes starts no task", unsupported_set().file("would", &[], "/would", "x"), Mode::Observe, Idle),
    ] {
        let host = MemoryHost::new();
        host.put("/dir/f", "");
        let set = set.mode(mode);
        // The second run reports nothing.
        for _ in 0..2 {
            let run_progress = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge).1;
            assert_eq!((run_progress, host.text("/would")), (progress, None), "{name}");
        }
    }
}

#[test]
fn dependant_names_root_failure_when_stopped() {
    let host = MemoryHost::new();
    host.on_run(|_, _| CommandResult { end: ExitKind::Status(1), output: "broken".into() });
    let set = TestTaskSet::default().command("bad", &[], &["false"]).file("after", &[0], "/a", "").file("last", &[1], "/b", "");
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let mut run = TaskRun::plan(site(&host), &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { while run.advance(&BTreeSet::new()).await.unwrap() {} });
    let results = run.save_results().unwrap();
    let messages: Vec<&str> =
        results.iter().filter(|result| result.task != "bad").map(|result| result.message.as_str()).collect();
    assert_eq!(messages, ["Not run: bad, which it requires, failed."; 2]);
}

#[test]
fn dependant_is_reported_again_when_stopped_by_another_task() {
    let host = MemoryHost::new();
    let validated_file = |path: &str, validate_program: &str| json!({"parameters": {"path": path, "content": "x", "validate": [validate_program]}});
    let set = TestTaskSet::default()
        .task("a", "file", &[], &validated_file("/a", "one"))
        .task("b", "file", &[], &validated_file("/b", "two"))
        .file("c", &[0, 1], "/c", "");
    let run = |failing: &'static str| {
        host.on_run(move |_, command| {
            let status = i32::from(command.argv.iter().any(|word| word == failing));
            CommandResult { end: ExitKind::Status(status), output: String::new() }
        });
        let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
        let mut run = TaskRun::plan(site(&host), &Ceiling::default(), &set.desired(), &profile, RunPurpose::Converge).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async { while run.advance(&BTreeSet::new()).await.unwrap() {} });
        let results_of_c = run.save_results().unwrap().into_iter().filter(|result| result.task == "c");
        results_of_c.map(|result| result.message).collect::<Vec<_>>()
    };
    assert_eq!(run("one"), ["Not run: a, which it requires, failed."]);
    assert_eq!(run("one"), [""; 0], "the same result is not reported again");
    host.put("/b", "edited");
    assert_eq!(run("two"), ["Not run: b, which it requires, failed."]);
}

#[test]
fn result_is_reported_again_when_changed_or_newly_released() {
    let host = MemoryHost::new();
    let set = || TestTaskSet::default().file("f", &[], "/f", "x");
    assert_eq!(converge(&host, &set()), pairs(&[("f", Outcome::Changed)]));
    assert_eq!(converge(&host, &set()), []);
    host.put("/f", "edited");
    assert_eq!(converge(&host, &set()), pairs(&[("f", Outcome::Changed)]), "drift is mended and reported");
    assert_eq!(converge(&host, &set().with_release(2)), pairs(&[("f", Outcome::Unchanged)]), "another task set");
}

#[test]
fn drift_is_reported_but_not_mended_when_task_only_reports() {
    let host = MemoryHost::new();
    let set = |content: &str| {
        let fields = json!({"on_drift": "report", "parameters": {"path": "/f", "content": content}});
        TestTaskSet::default().task("f", "file", &[], &fields)
    };
    assert_eq!(converge(&host, &set("x")), pairs(&[("f", Outcome::Changed)]), "the first run creates the file");
    host.put("/f", "edited");
    assert_eq!(converge(&host, &set("x")), pairs(&[("f", Outcome::Drifted)]));
    assert_eq!(host.text("/f").as_deref(), Some("edited"));
    assert_eq!(converge(&host, &set("y")), pairs(&[("f", Outcome::Changed)]), "new content in the task set is not drift");
}

#[test]
fn unguarded_command_runs_again_only_for_new_content() {
    let host = MemoryHost::new();
    let set = |word: &str, other: &str| TestTaskSet::default().command("c", &[], &[word]).file("f", &[], "/f", other);
    converge(&host, &set("a", "1"));
    converge(&host, &set("a", "1"));
    converge(&host, &set("a", "2"));
    assert_eq!(host.commands_run(), [["a"]], "a change of another task does not run it again");
    converge(&host, &set("b", "2"));
    assert_eq!(host.commands_run(), [["a"], ["b"]]);
}

/// The test writes the journal entries: `Begun` shows an interrupted run, and `Done` is the answer of an operator.
#[test]
fn interrupted_command_is_unknown_until_resolved() {
    let host = MemoryHost::new();
    let set = TestTaskSet::default().command("c", &[], &["a"]).file("f", &[0], "/f", "");
    converge(&host, &set);
    let ledger = site(&host).ledger;
    let mut step = ledger.step("c").unwrap().unwrap();
    step.state = StepState::Begun;
    ledger.set_step(&step).unwrap();
    host.delete("/f");
    let outcomes = converge(&host, &set);
    assert_eq!(outcomes, pairs(&[("c", Outcome::Unknown), ("f", Outcome::DependencyFailed)]));
    step.state = StepState::Done;
    ledger.set_step(&step).unwrap();
    assert_eq!(converge(&host, &set), pairs(&[("c", Outcome::Unchanged), ("f", Outcome::Changed)]));
    assert_eq!(host.commands_run().len(), 1);
}

#[test]
fn task_retries_as_often_as_configured() {
    let host = MemoryHost::new();
    host.on_run(|host, _| {
        let status = i32::from(host.commands_run().len() < 3);
        CommandResult { end: ExitKind::Status(status), output: String::new() }
    });
    let fields = json!({"parameters": {"command": ["a"], "retries": 2, "interval": 30}});
    assert_eq!(converge(&host, &TestTaskSet::default().task("c", "shell", &[], &fields)), pairs(&[("c", Outcome::Changed)]));
    assert_eq!(host.commands_run().len(), 3);
}

#[test]
fn sensitive_task_result_omits_output_and_diff() {
    let host = MemoryHost::new();
    let fields = json!({"sensitive": true, "parameters": {"path": "/f", "content": "hunter2"}});
    converge(&host, &TestTaskSet::default().task("f", "file", &[], &fields));
    let result = site(&host).ledger.results().unwrap().remove(0);
    assert_eq!((result.output.as_str(), result.diff.as_str()), ("", ""));
}

#[test]
fn run_respects_host_ceiling() {
    let host = MemoryHost::new();
    // The configuration of this host allows only file tasks.
    let ceiling = Ceiling { task_types: Some(vec!["file".into()]) };
    let set = TestTaskSet::default().command("c", &[], &["a"]).file("f", &[], "/f", "");
    let (outcomes, _) = run_with(&host, &set, &ceiling, RunPurpose::Converge);
    assert_eq!(outcomes, pairs(&[("c", Outcome::Unsupported), ("f", Outcome::Changed)]));
    assert_eq!(host.commands_run(), Vec::<Vec<String>>::new());
}

#[test]
fn check_reports_all_and_changes_nothing() {
    let host = MemoryHost::new();
    host.put("/g", "same");
    let set = TestTaskSet::default().file("f", &[], "/f", "x").file("g", &[], "/g", "same").command("c", &[], &["a"]);
    // Opens the ledger once, so that its directories exist before the calls are counted.
    site(&host);
    host.restart();
    let (outcomes, _) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Check);
    assert_eq!(outcomes, pairs(&[("f", Outcome::WouldChange), ("g", Outcome::Unchanged), ("c", Outcome::WouldChange)]));
    assert_eq!(host.calls(), 0);
}

#[test]
fn task_waits_when_blob_is_missing() {
    let host = MemoryHost::new();
    let hash = stemma_core::digest::sha256(b"blob");
    let source = format!("sha256:{}", Hash(hash));
    let set = TestTaskSet::default().task("f", "file", &[], &json!({"parameters": {"path": "/f", "source": source}}));
    let (outcomes, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
    assert_eq!((outcomes, progress), (vec![], observed::Progress::Waiting));
    site(&host).ledger.store_body(Hash(hash), b"blob").unwrap();
    assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Changed)]));
}

#[test]
fn task_waits_an_hour_when_file_is_contended() {
    let host = MemoryHost::new();
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    converge(&host, &set);
    // After three mends within an hour, the task is contended: the agent no longer mends the file.
    for _ in 0..3 {
        host.put("/f", "theirs");
        assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Changed)]));
    }
    host.put("/f", "theirs");
    assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Drifted)]));
    assert_eq!(host.text("/f").as_deref(), Some("theirs"));
    host.advance_time(Duration::from_hours(1));
    assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Changed)]));
}

#[test]
fn secret_is_stored_only_in_task_file() {
    const VALUE: &str = "hunter2";
    let secret = "{{ secret('db') }}";
    // Type and parameters of the task, its outcome, the start of its message, and whether it writes the secret to `/f`.
    for (kind, parameters, outcome, expected_message, is_written) in [
        ("file", json!({"path": "/f", "template": format!("password={secret}\n")}), Outcome::Changed, "", true),
        ("file", json!({"path": "/f", "template": secret, "validate": ["no"]}), Outcome::Failed, "validate ended", false),
        ("file", json!({"path": format!("/{secret}"), "content": ""}), Outcome::Failed, "parameters.path: line 1", false),
        ("file", json!({"path": "/f", "template": "{{ secret('db') + 1 }}"}), Outcome::Failed, "parameters.template", false),
        ("shell", json!({"script": format!("echo {secret}")}), Outcome::Changed, "", false),
        ("shell", json!({"command": ["no"], "env": {"DB": secret}}), Outcome::Failed, "the command ended", false),
        ("shell", json!({"command": ["no", secret]}), Outcome::Failed, "parameters.command: line 1", false),
        ("shell", json!({"command": [secret]}), Outcome::Failed, "parameters.command: line 1", false),
        ("shell", json!({"command": ["a"], "creates": format!("/{secret}")}), Outcome::Failed, "parameters.creates", false),
        ("shell", json!({"command": ["a"], "unless": ["no", secret]}), Outcome::Failed, "parameters.unless: line 1", false),
    ] {
        let host = MemoryHost::new();
        host.on_run(|_, command| CommandResult {
            end: ExitKind::Status(i32::from(command.argv[0] == "no")),
            output: command.argv.join(" "),
        });
        host.put("/run/credentials/stemma-agent.service/db", VALUE);
        let set = TestTaskSet::default().task("t", kind, &[], &json!({"parameters": parameters})).with_secret("db");
        // In the second round, the file exists already, with another text. A task that does not write the secret has no
        // second round.
        for round in ["first", "again"] {
            let results = results(&host, &set);
            let [result] = results.as_slice() else { panic!("{parameters} {round}: {results:?}") };
            assert_eq!(result.outcome, outcome, "{parameters} {round}: {result:?}");
            assert!(result.message.starts_with(expected_message), "{result:?}");
            assert_eq!((result.output.as_str(), result.diff.as_str()), ("", ""), "{parameters}");
            assert!(!result.message.contains(VALUE), "{result:?}");
            let expected = if is_written { vec!["/f"] } else { vec![] };
            assert_eq!(files_containing(&*host.root().unwrap(), "", VALUE), expected, "{parameters} {round}");
            if !is_written {
                break;
            }
            let dir = host.root().unwrap();
            assert_eq!(dir.stat("f").unwrap().unwrap().mode, 0o600, "only its owner can read a new file with a secret");
            host.put("/f", "password=hunter2, of the older kind\n");
            host.chmod("/f", 0o600);
        }
    }
}

/// The same task (`t`) or another one replaces or deletes a file that held a secret. No result and no stored file
/// contains the secret.
#[test]
fn w10_02_replacement_hides_old_content_when_file_held_secret() {
    const VALUE: &str = "hunter2";
    let secret = json!({"path": "/etc/app", "template": "pw={{ secret('db') }}\n"});
    for (id, next_parameters) in [
        ("t", json!({"path": "/etc/app", "content": "plain\n"})),
        ("other", json!({"path": "/etc/app", "content": "plain\n"})),
        ("t", json!({"path": "/etc/app", "absent": true})),
        ("other", json!({"path": "/etc/app", "absent": true})),
    ] {
        let host = MemoryHost::new();
        host.put("/run/credentials/stemma-agent.service/db", VALUE);
        let secret_set = TestTaskSet::default().task("t", "file", &[], &json!({"parameters": secret})).with_secret("db");
        results(&host, &secret_set);
        assert_eq!(host.text("/etc/app").as_deref(), Some("pw=hunter2\n"));
        let plain_set = || TestTaskSet::default().task(id, "file", &[], &json!({"parameters": next_parameters}));
        let check_results = run_to_end(&host, &plain_set(), RunPurpose::Check);
        let run_results = results(&host, &plain_set());
        for result in check_results.iter().chain(&run_results) {
            assert!(!format!("{result:?}").contains(VALUE), "{id} {next_parameters}: {result:?}");
            assert!(result.diff.contains("lines are withheld"), "{result:?}");
        }
        assert_eq!(run_results[0].outcome, Outcome::Changed);
        assert_eq!(files_containing(&*host.root().unwrap(), "", VALUE), Vec::<String>::new(), "{id} {next_parameters}");
        // If the old content returns to the file, the file contains the value again. No result may show the value.
        host.put("/etc/app", "pw=hunter2\n");
        assert!(results(&host, &plain_set()).iter().all(|result| !result.diff.contains(VALUE)));
    }
}

#[test]
fn w10_13_command_is_unknown_and_not_rerun_when_record_is_lost() {
    let set = || TestTaskSet::default().command("c", &[], &["deploy"]);
    let steps = "/var/lib/stemma-agent/apply/steps";
    // The journal entry is deleted, or replaced by one of these texts: empty, cut after its first line, or without any
    // format.
    for damage in ["deleted", "", "stemmaL\n", "damaged"] {
        let host = MemoryHost::new();
        assert_eq!(converge(&host, &set()), pairs(&[("c", Outcome::Changed)]));
        let [name] = &host.list(steps)[..] else { panic!("one record") };
        let path = format!("{steps}/{name}");
        match damage {
            "deleted" => host.delete(&path),
            text => host.put(&path, text),
        }
        assert_eq!(converge(&host, &set()), pairs(&[("c", Outcome::Unknown)]), "{damage:?}");
        assert_eq!(converge(&host, &set()), [], "{damage:?}: the next run reports nothing");
        assert_eq!(host.commands_run().len(), 1, "{damage:?}");
        let set_aside = site(&host).ledger.set_aside_records().unwrap();
        assert_eq!(set_aside.len(), usize::from(damage != "deleted"), "{set_aside:?}");
    }
}

#[test]
fn w10_16_file_task_runs_no_command_when_ceiling_forbids_shell() {
    let file_only = Ceiling { task_types: Some(vec!["file".into()]) };
    let file_and_shell = Ceiling { task_types: Some(vec!["file".into(), "shell".into()]) };
    for (parameters, reason) in [
        (json!({"path": "/f", "content": "", "validate": ["touch", "/x"]}), "`validate` runs a command"),
        (json!({"path": "/etc/stemma/hooks.d/10-a", "content": "", "mode": "0755"}), "files in hooks.d are run as commands"),
        (json!({"path": "/etc/stemma/hooks.d/sub/10-a", "content": ""}), "files in hooks.d are run as commands"),
        (json!({"path": "/etc/stemma/hooks.d", "absent": true}), "files in hooks.d are run as commands"),
    ] {
        let host = MemoryHost::new();
        let set = TestTaskSet::default().task("t", "file", &[], &json!({"parameters": parameters}));
        let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
        // The default ceiling allows every type.
        for (ceiling, should_refuse) in [(&file_only, true), (&file_and_shell, false), (&Ceiling::default(), false)] {
            let run = TaskRun::plan(site(&host), ceiling, &set.desired(), &profile, RunPurpose::Converge).unwrap();
            let is_refused = match &run.tasks[0].readiness {
                Readiness::Refused(Outcome::Unsupported, message) => message.contains(reason),
                _ => false,
            };
            assert_eq!(is_refused, should_refuse, "{parameters}");
        }
        assert_eq!(run_with(&host, &set, &file_only, RunPurpose::Converge).0, pairs(&[("t", Outcome::Unsupported)]));
        assert_eq!((host.commands_run().len(), host.list("/etc/stemma/hooks.d").len()), (0, 0));
    }
    let plain_set = TestTaskSet::default().file("t", &[], "/f", "");
    let host = MemoryHost::new();
    assert_eq!(run_with(&host, &plain_set, &file_only, RunPurpose::Converge).0, pairs(&[("t", Outcome::Changed)]));
}

/// Runs a task set until no task can run any more. Returns all results of a check, or else the new results.
fn run_to_end(host: &MemoryHost, set: &TestTaskSet, purpose: RunPurpose) -> Vec<TaskResult> {
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let mut run = TaskRun::plan(site(host), &Ceiling::default(), &set.desired(), &profile, purpose).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let open_barriers = BTreeSet::new();
    runtime.block_on(async { while run.advance(&open_barriers).await.unwrap() {} });
    if purpose == RunPurpose::Check { run.into_results() } else { run.save_results().unwrap() }
}

/// Converges the host to a task set. Returns the new results.
fn results(host: &MemoryHost, set: &TestTaskSet) -> Vec<TaskResult> {
    run_to_end(host, set, RunPurpose::Converge)
}

/// Returns the paths of the files below `dir` that contain `text`, without the credentials. `dir_path` is the path of
/// `dir`.
fn files_containing(dir: &dyn Dir, dir_path: &str, text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for name in dir.names().unwrap() {
        let path = format!("{dir_path}/{name}");
        if let Some(subdirectory) = dir.dir(&name).ok().flatten().filter(|_| path != "/run/credentials") {
            paths.extend(files_containing(&*subdirectory, &path, text));
        } else if let Ok(Some(bytes)) = dir.read(&name, 1 << 20)
            && String::from_utf8_lossy(&bytes).contains(text)
        {
            paths.push(path);
        }
    }
    paths
}

mod batch;
mod clean_ups;
mod ending;
mod hostile;
mod leftovers;
mod paths;
mod reboot;
mod subscribes;
