//! Tests of the output of `once` and `check`, and of the order in which processes wait.

use std::process::{Child, Stdio};

use stemma_core::task::Mode;
use stemma_wire::message::Revision;
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{LocalState, Progress, Report};

use super::*;
use crate::apply::ledger::{OPEN_BARRIERS, OpenBarriers, REPORT, STAGING_DIRS};
use crate::apply::leftovers::StagingDirs;
use crate::apply::testing::{TestTaskSet, joined_host};

/// The environment variable with the root of the host on which [`agent_process_runs_for_other_test`] runs the agent.
const ROOT_VARIABLE: &str = "STEMMA_TEST_ROOT";

/// Runs an agent in a process that another test starts, because the lock of a host belongs to a process. Does nothing
/// unless that test set [`ROOT_VARIABLE`].
#[test]
fn agent_process_runs_for_other_test() {
    if let Some(path) = std::env::var_os(ROOT_VARIABLE) {
        run(Path::new(&path)).unwrap();
    }
}

/// The environment variable with the root directory of a host. A process that another test starts holds the lock of
/// that host, as `once` does while its tasks run. Other processes cannot wake this process.
const LOCK_VARIABLE: &str = "STEMMA_TEST_LOCKED";

/// Holds the lock of a host, as `once` does, in a process that another test starts. Does nothing unless that test set
/// [`LOCK_VARIABLE`].
#[test]
fn once_process_holds_lock_for_other_test() {
    if let Some(path) = std::env::var_os(LOCK_VARIABLE) {
        let local = LocalHost::open(Path::new(&path)).unwrap();
        let _lock = lock(&local, Duration::from_mins(1)).unwrap().unwrap();
        std::thread::sleep(Duration::from_mins(10));
    }
}

/// Waits until `holds` returns true. Panics with the text `description` after two minutes.
fn wait_until(description: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !holds() {
        assert!(Instant::now() < deadline, "{description}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn y02_once_requests_reconcile_again_when_number_was_overwritten() {
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default());
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "verbs::converge::tests::once_process_holds_lock_for_other_test"]).env(LOCK_VARIABLE, root.path());
    let lock_process = AgentProcess(command.stdout(Stdio::null()).spawn().unwrap());
    let local = LocalHost::open(root.path()).unwrap();
    wait_until("the other process has the lock", || local.is_running() == Some(true));
    let path = root.path().to_owned();
    let once_thread = std::thread::spawn(move || once(&path).unwrap());
    let requested_number = || local.site.ledger.get(&RECONCILE_REQUESTED).unwrap();
    wait_until("once requests a reconcile", || requested_number() == Some(1));
    // Overwrites the request, as another `once` does that read the number earlier.
    local.site.ledger.put(&RECONCILE_REQUESTED, &0).unwrap();
    wait_until("once requests the reconcile again", || requested_number() == Some(1));
    drop(lock_process);
    assert_eq!(once_thread.join().unwrap(), AgentExit::Done);
}

/// A process that is killed at the end of the test, even if the test fails.
struct AgentProcess(Child);

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts an agent in another process, and waits until the agent can be woken.
fn start_agent(root: &Path) -> AgentProcess {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "verbs::converge::tests::agent_process_runs_for_other_test"]).env(ROOT_VARIABLE, root);
    let agent = AgentProcess(command.stdout(Stdio::null()).spawn().unwrap());
    let local = LocalHost::open(root).unwrap();
    let deadline = Instant::now() + Duration::from_mins(2);
    while wake(&local.host).unwrap() == WakeResult::NotRunning {
        assert!(Instant::now() < deadline, "the agent does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    agent
}

/// In this test, the guard of the task creates the file `flag`, so this file shows whether the guard was run.
#[test]
fn w10_11_commands_refuse_state_when_writable_by_others() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let flag = root.path().join("flag");
    let guards = serde_json::json!({"command": ["true"], "unless": ["touch", flag.display().to_string()]});
    let task = serde_json::json!({"parameters": guards});
    joined_host(root.path(), &TestTaskSet::default().task("c", "shell", &[], &task));
    let accepted = root.path().join("var/lib/stemma-agent/apply/accepted");
    std::fs::set_permissions(&accepted, std::fs::Permissions::from_mode(0o666)).unwrap();
    for (verb, result) in
        [("once", once(root.path())), ("check", check(root.path(), OutputFormat::Json)), ("refill", refill(root.path()))]
    {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("/apply/accepted can be written by others (mode 0666)"), "{verb}: {message}");
    }
    assert!(!flag.exists() && !root.path().join("run/stemma").exists(), "no verb ran the guard or wrote files");
    std::fs::set_permissions(&accepted, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(check(root.path(), OutputFormat::Json).unwrap(), AgentExit::Done);
    assert!(flag.exists(), "the guard was run");
    assert_eq!(refill(root.path()).unwrap(), AgentExit::Done);
}

/// Regression test: without the profile, `check` printed nothing and ended as if no task would change the host.
#[test]
fn check_fails_when_profile_is_not_on_host() {
    let root = tempfile::tempdir().unwrap();
    joined_host(
        root.path(),
        &TestTaskSet::default().task("c", "shell", &[], &serde_json::json!({"parameters": {"script": "true"}})),
    );
    let bodies = root.path().join("var/lib/stemma-agent/apply/bodies");
    for body in std::fs::read_dir(bodies).unwrap() {
        std::fs::remove_file(body.unwrap().path()).unwrap();
    }
    assert_eq!(check(root.path(), OutputFormat::Human).unwrap(), AgentExit::Failed);
}

#[test]
fn w08_status_shows_whether_agent_runs() {
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default());
    let shows_no_agent = || status::human_status(root.path()).contains("no agent runs on this host");
    assert!(shows_no_agent());
    let agent = start_agent(root.path());
    assert!(!shows_no_agent());
    drop(agent);
    assert!(shows_no_agent());
}

#[test]
fn w08_once_waits_for_reconcile_when_agent_runs() {
    let root = tempfile::tempdir().unwrap();
    let flag = root.path().join("flag");
    let script = format!("echo it is not there; test -e {}", flag.display());
    let parameters = serde_json::json!({"parameters": {"script": script}});
    joined_host(root.path(), &TestTaskSet::default().task("c", "shell", &[], &parameters));
    let mut agent = start_agent(root.path());
    assert_eq!(once(root.path()).unwrap(), AgentExit::Failed);
    std::fs::write(&flag, "").unwrap();
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done, "the agent checked the task again");
    assert_eq!(agent.0.try_wait().unwrap(), None, "the agent still runs, so it applied the task");
    drop(agent);
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done, "once applies the task without an agent");
}

/// The last column of a table in docs/agent.md contains the exit statuses of each command.
#[test]
fn y09_once_and_check_exit_as_documented_without_desired_state() {
    let page = include_str!("../../../../docs/agent.md");
    let documented_statuses = |verb: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{verb}"))).unwrap();
        row.trim_end_matches('|').rsplit('|').next().unwrap().split(',').map(str::trim).collect::<Vec<_>>()
    };
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default());
    std::fs::remove_file(root.path().join("var/lib/stemma-agent/apply/accepted")).unwrap();
    let condition = "no desired state has come yet";
    let once = format!("{} also where {condition}", once(root.path()).unwrap().status());
    let check = format!("{} {condition}", check(root.path(), OutputFormat::Human).unwrap().status());
    assert!(
        documented_statuses("once").contains(&once.as_str()) && documented_statuses("check").contains(&check.as_str()),
        "{once}, {check}"
    );
}

/// Regression test: `once` printed nothing on success.
#[test]
fn y09_once_prints_task_outcomes() {
    for (outcomes, expected) in [
        (vec![("changed", 2), ("unchanged", 3)], "5 tasks: 2 changed, 3 unchanged\n"),
        (vec![("unchanged", 1)], "1 task: 1 unchanged\n"),
        (vec![], "no task has run\n"),
    ] {
        let outcomes = outcomes.into_iter().map(|(outcome, count): (&str, usize)| (outcome.to_owned(), count));
        let outcomes = outcomes.collect();
        assert_eq!(summary_text(&outcomes), expected);
    }
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default().file("a", &[], "/srv/a", "x").file("b", &[], "/srv/b", "y"));
    let run = || {
        let local = LocalHost::open(root.path()).unwrap();
        let baseline = RunBaseline::load(&local).unwrap();
        drop(local);
        assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
        let local = LocalHost::open(root.path()).unwrap();
        let tasks = local.site.ledger.get(&PROGRESS).unwrap().unwrap().tasks;
        summary_text(&baseline.outcomes(&local.site.ledger, &tasks).unwrap())
    };
    assert_eq!(run(), "2 tasks: 2 changed\n");
    assert_eq!(run(), "2 tasks: 2 unchanged\n", "the second run changes nothing");
    std::fs::write(root.path().join("srv/a"), "edited").unwrap();
    assert_eq!(run(), "2 tasks: 1 changed, 1 unchanged\n");
}

/// Regression test: if a signal stopped `once`, it exited with 0. It also printed that no task was applied, although
/// some tasks were.
#[test]
fn y02_once_prints_progress_when_interrupted_or_paused() {
    use Outcome::{Changed, Failed, Unchanged};
    for (count, task_outcomes, progress_text, rest_text) in [
        (5, vec![Changed, Changed], "2 of 5 tasks (2 changed)", "3 have not run"),
        (4, vec![Failed, Changed, Unchanged], "3 of 4 tasks (1 changed, 1 failed, 1 unchanged)", "1 has not run"),
        (1, vec![], "0 of 1 task", "1 has not run"),
    ] {
        let summary = RunSummary { task_count: count, outcomes: task_outcomes };
        let expected = format!("stopped by SIGINT after {progress_text}: {rest_text}; run `stemma-agent once` again\n");
        assert_eq!(interrupted_message("SIGINT", &summary), expected);
        let expected_pause = match summary.outcomes.len() {
            0 => "no task was applied, labels were".to_owned(),
            _ => format!("it was after {progress_text}, and no other was begun; labels were applied"),
        };
        let expected_pause =
            format!("this host is paused: {expected_pause}; run `stemma-agent resume`, then `stemma-agent once`\n");
        assert_eq!(StopReason::Paused.sentence(&stopped_message(&summary)), expected_pause);
    }
}

/// Regression test: without a running agent, `status` still showed that tasks run, as the last agent had reported.
#[test]
fn y02_status_shows_no_running_task_when_agent_is_stopped() {
    let root = tempfile::tempdir().unwrap();
    let host = joined_host(root.path(), &TestTaskSet::default().file("f", &[], "/srv/f", "x"));
    let report = Report { progress: Progress::Running, ..Report::default() };
    Ledger::open(host).unwrap().put(&REPORT, &report).unwrap();
    assert!(status::human_status(root.path()).contains("state     waiting\n"));
}

/// In this test, two tasks write the same path, and the mode is `observe`. A controller shows this node as `failed`
/// because of the finding, so `check` must fail too. `once` and `status` end with 0.
#[test]
fn y01_check_reports_path_conflict_in_mode_observe() {
    let root = tempfile::tempdir().unwrap();
    let set = TestTaskSet::default().file("a", &[], "/srv/z", "a").file("b", &[], "/srv/z", "b");
    joined_host(root.path(), &set.mode(Mode::Observe));
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
    assert_eq!(status(root.path(), OutputFormat::Human).unwrap(), AgentExit::Done);
    assert!(status::human_status(root.path()).contains("state     waiting: its mode is observe"));
    assert_eq!(check(root.path(), OutputFormat::Human).unwrap(), AgentExit::Failed);
    let page = include_str!("../../../../docs/agent.md");
    assert!(page.contains("mode `observe` where two tasks write one path"), "the difference between the verbs is documented");
}

/// Regression test: if a task waited at a barrier, `once` exited with 0 and printed nothing, as if all tasks were done.
#[test]
fn w08_once_counts_tasks_at_barrier_and_exits_nonzero() {
    let root = tempfile::tempdir().unwrap();
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let path = |name: &str| root.path().join(name).display().to_string();
    // The numbers are the indexes of the tasks that a task requires. The barrier is that of `app`.
    let set = TestTaskSet::default().command("first", &[], &["touch", &path("first")]);
    let set = set.command("app", &[0], &["touch", &path("app")]).with_barrier(barrier.clone());
    let set = set.command("conf", &[1], &["touch", &path("conf")]);
    let host = joined_host(root.path(), &set);
    assert_eq!(once(root.path()).unwrap(), AgentExit::Waits);
    let local = LocalHost::open(root.path()).unwrap();
    let task_records = local.site.ledger.get(&PROGRESS).unwrap().unwrap().tasks;
    let (profile, desired) = (postcard::from_bytes(&set.profile().1).unwrap(), set.desired());
    let waiting_ids: Vec<_> = waiting_tasks(&local, &desired, &profile, &task_records).unwrap().into_keys().collect();
    assert_eq!(waiting_ids, ["app", "conf"], "conf waits too, because it requires app");
    assert!(root.path().join("first").exists() && !root.path().join("app").exists());
    drop(local);

    let open = BTreeSet::from([barrier]);
    let open_barriers = OpenBarriers { task_set: desired.digest, revision: Revision(1), open };
    Ledger::open(host).unwrap().put(&OPEN_BARRIERS, &open_barriers).unwrap();
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
    assert!(root.path().join("conf").exists());
}

/// A killed agent left an unfinished file in a recorded directory. `once` deletes it although the host is paused.
#[test]
fn x05_once_sweeps_leftovers_when_host_is_paused() {
    let root = tempfile::tempdir().unwrap();
    let host = joined_host(root.path(), &TestTaskSet::default().file("f", &[], "/srv/f", "x"));
    let leftover = root.path().join("srv/.stemma-0123456789abcdef");
    std::fs::create_dir_all(leftover.parent().unwrap()).unwrap();
    std::fs::write(&leftover, "secret").unwrap();
    let ledger = Ledger::open(host).unwrap();
    ledger.put(&STAGING_DIRS, &StagingDirs::from([("/srv".to_owned(), BTreeSet::new())])).unwrap();
    ledger.put(&LOCAL_STATE, &LocalState { paused: true, ..LocalState::default() }).unwrap();
    drop(ledger);
    assert_eq!(once(root.path()).unwrap(), AgentExit::Failed, "no task was applied");
    assert!(!leftover.exists() && !root.path().join("srv/f").exists());
}

#[test]
fn y06_status_and_explain_show_observed_task_without_failure() {
    let root = tempfile::tempdir().unwrap();
    let fields = serde_json::json!({"mode": "observe", "parameters": {"script": "exit 3"}});
    joined_host(root.path(), &TestTaskSet::default().task("seen", "shell", &[], &fields).file("f", &[], "/srv/f", "x"));
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
    let text = status::human_status(root.path());
    let task = "task      seen                     observed\n            its mode is observe: it is neither run nor checked\n";
    assert!(text.contains(task) && text.contains("state     converged\n"), "{text}");
    let reasons = super::super::explain::task_reasons(root.path(), "seen");
    assert_eq!(reasons, ["last: observed", "  its mode is observe: it is neither run nor checked"]);
}

#[test]
fn w08_status_and_explain_show_reason_when_task_failed() {
    let root = tempfile::tempdir().unwrap();
    let parameters = serde_json::json!({"parameters": {"script": "echo out of paper; exit 3"}});
    joined_host(root.path(), &TestTaskSet::default().task("print", "shell", &[], &parameters));
    assert_eq!(once(root.path()).unwrap(), AgentExit::Failed);
    let text = status::human_status(root.path());
    assert!(text.contains("print                    failed\n            the command ended with status 3\n"), "{text}");
    assert!(text.contains("            out of paper\n"), "{text}");
    let reasons = super::super::explain::task_reasons(root.path(), "print");
    assert!(reasons.join("\n").contains("last: failed\n  the command ended with status 3\n  out of paper"), "{reasons:?}");
}

/// At the limit of the unit, systemd would kill the agent, and the unit would be `failed`.
#[test]
fn stop_ends_before_limit_of_unit() {
    let unit = include_str!("../../../../systemd/stemma-agent.service");
    let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s')).unwrap();
    assert!(MAX_STOP_DURATION + LEAVE_INTERVAL < Duration::from_secs(limit.parse().unwrap()));
}
