//! Whole runs of a task set: order, drift, reported results, and what stays untouched.

use std::rc::Rc;

use serde_json::json;
use stemma_wire::message::Hash;

use super::*;
use crate::apply::ledger::{Ledger, StepState};
use crate::apply::testing::TestTaskSet;
use crate::host::memory::MemoryHost;
use crate::host::{CommandResult, Dir, ExitKind, Host as _};

fn site(host: &MemoryHost) -> Site {
    let ledger = Ledger::open(Rc::new(host.clone())).unwrap();
    Site::new(Rc::new(host.clone()), Rc::new(ledger))
}

/// Runs a set to its end. Returns the reported results and the progress of the host.
fn run_with(
    host: &MemoryHost,
    set: &TestTaskSet,
    ceiling: &Ceiling,
    purpose: RunPurpose,
) -> (Vec<(String, Outcome)>, observed::Progress) {
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let mut run = TaskRun::plan(site(host), ceiling, &set.desired(), &profile, purpose).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let open = BTreeSet::new();
    runtime.block_on(async { while run.advance(&open).await.unwrap() {} });
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
    let (mut told, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
    told.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        told,
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

/// It used to be checked, with its guards, as in mode `noop`.
#[test]
fn y06_run_skips_task_when_task_mode_is_observe() {
    let guarded = json!({"mode": "observe", "parameters": {"command": ["run"], "unless": ["guard"]}});
    let file = json!({"mode": "observe", "parameters": {"path": "/o", "content": "x"}});
    let set = |mode: &str| {
        let other = json!({"mode": mode, "parameters": {"path": "/f", "content": "x"}});
        let set = TestTaskSet::default().task("o", "shell", &[], &guarded).task("file", "file", &[], &file);
        set.task("other", "file", &[], &other)
    };
    let observed = [("o", Outcome::WouldChange), ("file", Outcome::WouldChange)];
    let host = MemoryHost::new();
    let told = run_with(&host, &set("apply"), &Ceiling::default(), RunPurpose::Converge);
    let all = [observed[0], observed[1], ("other", Outcome::Changed)];
    assert_eq!(told, (pairs(&all), observed::Progress::Converged), "nobody waits for it");
    assert_eq!((host.commands_run().len(), host.text("/o"), host.text("/f").as_deref()), (0, None, Some("x")));
    assert_eq!(converge(&host, &set("apply")), [], "it is told once");
    let noop = set("apply").mode(Mode::Noop);
    assert_eq!(run_with(&host, &noop, &Ceiling::default(), RunPurpose::Converge).1, observed::Progress::Converged);
    let checked = run_with(&host, &set("apply"), &Ceiling::default(), RunPurpose::Check).0;
    assert_eq!(checked, pairs(&[("other", Outcome::Unchanged)]), "a look has nothing to say of it");
    assert_eq!(host.commands_run().len(), 0, "no guard was run");
    // A marker has nothing to run or check, whatever its mode.
    let place = TestTaskSet::default().task("stage", "stage", &[], &json!({"mode": "observe"})).file("f", &[0], "/g", "x");
    converge(&host, &place);
    assert_eq!(host.text("/g").as_deref(), Some("x"));
}

#[test]
fn y06_dependant_explains_stop_when_requirement_is_observed() {
    let host = MemoryHost::new();
    let seen = json!({"mode": "observe", "parameters": {"command": ["run"]}});
    let set = TestTaskSet::default().task("o", "shell", &[], &seen).file("after", &[0], "/a", "").file("last", &[1], "/b", "");
    let results = results(&host, &set);
    let said: Vec<_> = results.iter().map(|one| (one.task.as_str(), one.outcome, one.message.as_str())).collect();
    let why = "Not run: o, which it requires, is neither run nor checked, since its mode is observe.";
    assert_eq!(
        said,
        [
            ("o", Outcome::WouldChange, "its mode is observe: it is neither run nor checked"),
            ("after", Outcome::DependencyFailed, why),
            ("last", Outcome::DependencyFailed, why),
        ]
    );
    assert_eq!((host.commands_run().len(), host.text("/a"), host.text("/b")), (0, None, None));
}

/// The host used to report `failed`, and its controllers `converged`.
#[test]
fn y06_host_converges_when_only_marker_follows_observed_task() {
    let seen = json!({"mode": "observe", "parameters": {"path": "/o", "content": "x"}});
    let set = || TestTaskSet::default().task("o", "file", &[], &seen).marker("sk", &[0]);
    let told = ("o", Outcome::WouldChange);
    for (set, told, ends) in [
        (set(), vec![told], observed::Progress::Converged),
        (set().marker("last", &[1]), vec![told], observed::Progress::Converged),
        (set().file("after", &[1], "/a", ""), vec![told, ("after", Outcome::DependencyFailed)], observed::Progress::Failed),
    ] {
        let host = MemoryHost::new();
        let ended = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
        assert_eq!(ended, (pairs(&told), ends));
        assert_eq!((host.text("/o"), host.text("/a")), (None, None));
    }
}

/// An older agent checked it. An upgrade alone reports nothing.
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
    let next = set.with_release(2);
    assert_eq!(converge(&host, &next), pairs(&[("o", Outcome::WouldChange)]), "of the next one it is told");
}

/// The host used to report that something would change and nothing had failed. Its controller reported a failure.
#[test]
fn y06_progress_is_failed_in_noop_when_other_tasks_would_change() {
    use observed::Progress::{Failed, Idle};
    let would = || TestTaskSet::default().file("would", &[], "/would", "x");
    let teapot = || TestTaskSet::default().task("teapot", "teapot", &[], &json!({}));
    for (name, set, mode, progress) in [
        ("nothing failed", would(), Mode::Noop, Idle),
        ("what cannot run comes first", teapot().file("would", &[], "/would", "x"), Mode::Noop, Failed),
        ("it comes last", would().task("teapot", "teapot", &[], &json!({})), Mode::Noop, Failed),
        ("a path is another task's", would().file("second", &[], "/would", "y"), Mode::Noop, Failed),
        ("a directory is in the way", would().file("dir", &[], "/dir", "y"), Mode::Noop, Failed),
        ("nothing was begun", teapot().file("would", &[], "/would", "x"), Mode::Observe, Idle),
    ] {
        let host = MemoryHost::new();
        host.put("/dir/f", "");
        let set = set.mode(mode);
        // The second run reports nothing.
        for _ in 0..2 {
            let stands = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge).1;
            assert_eq!((stands, host.text("/would")), (progress, None), "{name}");
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
    let told = run.save_results().unwrap();
    let said: Vec<&str> = told.iter().filter(|one| one.task != "bad").map(|one| one.message.as_str()).collect();
    assert_eq!(said, ["Not run: bad, which it requires, failed."; 2]);
}

#[test]
fn dependant_is_reported_again_when_stopped_by_another_task() {
    let host = MemoryHost::new();
    let checked = |path: &str, by: &str| json!({"parameters": {"path": path, "content": "x", "validate": [by]}});
    let set = TestTaskSet::default()
        .task("a", "file", &[], &checked("/a", "one"))
        .task("b", "file", &[], &checked("/b", "two"))
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
        let told = run.save_results().unwrap().into_iter().filter(|result| result.task == "c");
        told.map(|result| result.message).collect::<Vec<_>>()
    };
    assert_eq!(run("one"), ["Not run: a, which it requires, failed."]);
    assert_eq!(run("one"), [""; 0], "it is the same");
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
    assert_eq!(converge(&host, &set()), pairs(&[("f", Outcome::Changed)]), "drift is mended, and told");
    assert_eq!(converge(&host, &set().with_release(2)), pairs(&[("f", Outcome::Unchanged)]), "another task set");
}

#[test]
fn drift_is_reported_but_not_mended_when_task_only_reports() {
    let host = MemoryHost::new();
    let set = |content: &str| {
        let fields = json!({"on_drift": "report", "parameters": {"path": "/f", "content": content}});
        TestTaskSet::default().task("f", "file", &[], &fields)
    };
    assert_eq!(converge(&host, &set("x")), pairs(&[("f", Outcome::Changed)]), "first it is made so");
    host.put("/f", "edited");
    assert_eq!(converge(&host, &set("x")), pairs(&[("f", Outcome::Drifted)]));
    assert_eq!(host.text("/f").as_deref(), Some("edited"));
    assert_eq!(converge(&host, &set("y")), pairs(&[("f", Outcome::Changed)]), "other content is no drift");
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

#[test]
fn interrupted_command_counts_as_failed_until_resolved() {
    let host = MemoryHost::new();
    let set = TestTaskSet::default().command("c", &[], &["a"]).file("f", &[0], "/f", "");
    converge(&host, &set);
    let ledger = site(&host).ledger;
    let mut step = ledger.step("c").unwrap().unwrap();
    step.state = StepState::Begun;
    ledger.set_step(&step).unwrap();
    host.delete("/f");
    let told = converge(&host, &set);
    assert_eq!(told, pairs(&[("c", Outcome::Unknown), ("f", Outcome::DependencyFailed)]));
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
    let ceiling = Ceiling { task_types: Some(vec!["file".into()]) };
    let set = TestTaskSet::default().command("c", &[], &["a"]).file("f", &[], "/f", "");
    let (told, _) = run_with(&host, &set, &ceiling, RunPurpose::Converge);
    assert_eq!(told, pairs(&[("c", Outcome::Unsupported), ("f", Outcome::Changed)]));
    assert_eq!(host.commands_run(), Vec::<Vec<String>>::new());
}

#[test]
fn check_reports_all_and_changes_nothing() {
    let host = MemoryHost::new();
    host.put("/g", "same");
    let set = TestTaskSet::default().file("f", &[], "/f", "x").file("g", &[], "/g", "same").command("c", &[], &["a"]);
    site(&host);
    host.restart();
    let (told, _) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Check);
    assert_eq!(told, pairs(&[("f", Outcome::WouldChange), ("g", Outcome::Unchanged), ("c", Outcome::WouldChange)]));
    assert_eq!(host.calls(), 0);
}

#[test]
fn task_waits_when_blob_is_missing() {
    let host = MemoryHost::new();
    let hash = stemma_core::digest::sha256(b"blob");
    let source = format!("sha256:{}", Hash(hash));
    let set = TestTaskSet::default().task("f", "file", &[], &json!({"parameters": {"path": "/f", "source": source}}));
    let (told, progress) = run_with(&host, &set, &Ceiling::default(), RunPurpose::Converge);
    assert_eq!((told, progress), (vec![], observed::Progress::Waiting));
    site(&host).ledger.store_body(Hash(hash), b"blob").unwrap();
    assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Changed)]));
}

#[test]
fn task_waits_an_hour_when_file_is_contended() {
    let host = MemoryHost::new();
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    converge(&host, &set);
    for _ in 0..3 {
        host.put("/f", "theirs");
        assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Changed)]));
    }
    host.put("/f", "theirs");
    assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Drifted)]));
    assert_eq!(host.text("/f").as_deref(), Some("theirs"));
    host.advance_time(std::time::Duration::from_hours(1));
    assert_eq!(converge(&host, &set), pairs(&[("f", Outcome::Changed)]));
}

#[test]
fn secret_is_stored_only_in_task_file() {
    const VALUE: &str = "hunter2";
    let secret = "{{ secret('db') }}";
    for (kind, parameters, outcome, said, put) in [
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
        // In the second round the file exists already, with another value.
        for round in ["first", "again"] {
            let results = results(&host, &set);
            let [result] = results.as_slice() else { panic!("{parameters} {round}: {results:?}") };
            assert_eq!(result.outcome, outcome, "{parameters} {round}: {result:?}");
            assert!(result.message.starts_with(said), "{result:?}");
            assert_eq!((result.output.as_str(), result.diff.as_str()), ("", ""), "{parameters}");
            assert!(!result.message.contains(VALUE), "{result:?}");
            let expected = if put { vec!["/f"] } else { vec![] };
            assert_eq!(files_containing(&*host.root().unwrap(), "", VALUE), expected, "{parameters} {round}");
            if !put {
                break;
            }
            let dir = host.root().unwrap();
            assert_eq!(dir.stat("f").unwrap().unwrap().mode, 0o600, "a new file with a secret in it is its owner's");
            host.put("/f", "password=hunter2, of the older kind\n");
            host.chmod("/f", 0o600);
        }
    }
}

#[test]
fn w10_02_replacement_hides_old_content_when_file_held_secret() {
    const VALUE: &str = "hunter2";
    let secret = json!({"path": "/etc/app", "template": "pw={{ secret('db') }}\n"});
    for (id, after) in [
        ("t", json!({"path": "/etc/app", "content": "plain\n"})),
        ("other", json!({"path": "/etc/app", "content": "plain\n"})),
        ("t", json!({"path": "/etc/app", "absent": true})),
        ("other", json!({"path": "/etc/app", "absent": true})),
    ] {
        let host = MemoryHost::new();
        host.put("/run/credentials/stemma-agent.service/db", VALUE);
        let with = TestTaskSet::default().task("t", "file", &[], &json!({"parameters": secret})).with_secret("db");
        results(&host, &with);
        assert_eq!(host.text("/etc/app").as_deref(), Some("pw=hunter2\n"));
        let without = || TestTaskSet::default().task(id, "file", &[], &json!({"parameters": after}));
        let checked = run_to_end(&host, &without(), RunPurpose::Check);
        let told = results(&host, &without());
        for result in checked.iter().chain(&told) {
            assert!(!format!("{result:?}").contains(VALUE), "{id} {after}: {result:?}");
            assert!(result.diff.contains("lines are withheld"), "{result:?}");
        }
        assert_eq!(told[0].outcome, Outcome::Changed);
        assert_eq!(files_containing(&*host.root().unwrap(), "", VALUE), Vec::<String>::new(), "{id} {after}");
        // Restoring the old content restores the value.
        host.put("/etc/app", "pw=hunter2\n");
        assert!(results(&host, &without()).iter().all(|result| !result.diff.contains(VALUE)));
    }
}

#[test]
fn w10_13_command_is_unknown_and_not_rerun_when_record_is_lost() {
    let set = || TestTaskSet::default().command("c", &[], &["deploy"]);
    let steps = "/var/lib/stemma-agent/apply/steps";
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
        assert_eq!(converge(&host, &set()), [], "{damage:?}: nor at the next look");
        assert_eq!(host.commands_run().len(), 1, "{damage:?}");
        let aside = site(&host).ledger.set_aside_records().unwrap();
        assert_eq!(aside.len(), usize::from(damage != "deleted"), "{aside:?}");
    }
}

#[test]
fn w10_16_file_task_runs_no_command_when_ceiling_forbids_shell() {
    let files = Ceiling { task_types: Some(vec!["file".into()]) };
    let both = Ceiling { task_types: Some(vec!["file".into(), "shell".into()]) };
    for (parameters, said) in [
        (json!({"path": "/f", "content": "", "validate": ["touch", "/x"]}), "`validate` runs a command"),
        (json!({"path": "/etc/stemma/hooks.d/10-a", "content": "", "mode": "0755"}), "files in hooks.d are run as commands"),
        (json!({"path": "/etc/stemma/hooks.d/sub/10-a", "content": ""}), "files in hooks.d are run as commands"),
        (json!({"path": "/etc/stemma/hooks.d", "absent": true}), "files in hooks.d are run as commands"),
    ] {
        let host = MemoryHost::new();
        let set = TestTaskSet::default().task("t", "file", &[], &json!({"parameters": parameters}));
        let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
        for (ceiling, refused) in [(&files, true), (&both, false), (&Ceiling::default(), false)] {
            let run = TaskRun::plan(site(&host), ceiling, &set.desired(), &profile, RunPurpose::Converge).unwrap();
            let is_refused = match &run.tasks[0].readiness {
                Readiness::Refused(Outcome::Unsupported, why) => why.contains(said),
                _ => false,
            };
            assert_eq!(is_refused, refused, "{parameters}");
        }
        assert_eq!(run_with(&host, &set, &files, RunPurpose::Converge).0, pairs(&[("t", Outcome::Unsupported)]));
        assert_eq!((host.commands_run().len(), host.list("/etc/stemma/hooks.d").len()), (0, 0));
    }
    let plain = TestTaskSet::default().file("t", &[], "/f", "");
    let host = MemoryHost::new();
    assert_eq!(run_with(&host, &plain, &files, RunPurpose::Converge).0, pairs(&[("t", Outcome::Changed)]));
}

fn run_to_end(host: &MemoryHost, set: &TestTaskSet, purpose: RunPurpose) -> Vec<TaskResult> {
    let profile: Profile = postcard::from_bytes(&set.profile().1).unwrap();
    let mut run = TaskRun::plan(site(host), &Ceiling::default(), &set.desired(), &profile, purpose).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let open = BTreeSet::new();
    runtime.block_on(async { while run.advance(&open).await.unwrap() {} });
    if purpose == RunPurpose::Check { run.into_results() } else { run.save_results().unwrap() }
}

/// Runs a set to its end. Returns the complete results.
fn results(host: &MemoryHost, set: &TestTaskSet) -> Vec<TaskResult> {
    run_to_end(host, set, RunPurpose::Converge)
}

/// Returns the files below a directory that contain a text, except the credentials.
fn files_containing(dir: &dyn Dir, at: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in dir.names().unwrap() {
        let path = format!("{at}/{name}");
        if let Some(below) = dir.dir(&name).ok().flatten().filter(|_| path != "/run/credentials") {
            found.extend(files_containing(&*below, &path, text));
        } else if let Ok(Some(bytes)) = dir.read(&name, 1 << 20)
            && String::from_utf8_lossy(&bytes).contains(text)
        {
            found.push(path);
        }
    }
    found
}

mod leftovers;
mod paths;
mod subscribes;
