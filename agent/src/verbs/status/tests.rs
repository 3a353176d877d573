//! Tests of what `status` prints from the ledger of a host.

use stemma_wire::message::desired::{Barrier, TaskSet};

use super::super::converge::{check, once};
use super::*;
use crate::apply::ledger::{ACCEPTED, Ledger};
use crate::apply::testing::{TestTaskSet, accepted_state, joined_host};
use crate::host::HostPath;
use crate::host::atomic::{Attributes, ensure_dir, replace};

const CHANGED: Option<TaskEnd> = Some(TaskEnd::Outcome(Outcome::Changed));
const WOULD_CHANGE: Option<TaskEnd> = Some(TaskEnd::Outcome(Outcome::WouldChange));
const FAILED: Option<TaskEnd> = Some(TaskEnd::Outcome(Outcome::Failed));
const DRIFTED: Option<TaskEnd> = Some(TaskEnd::Outcome(Outcome::Drifted));

/// Returns the output of `status` for a task `t` with this outcome. `waits_for` describes the barrier at which the task
/// waits.
fn task_output(outcome: Option<TaskEnd>, waits_for: Option<&str>) -> TaskOutput {
    let waits_for_reboot = waits_for.is_some_and(|text| text.starts_with("a reboot"));
    let waits_for = waits_for.map(str::to_owned);
    TaskOutput { id: "t".to_owned(), outcome, waits_for, waits_for_reboot, reason: None, not_run: Vec::new() }
}

/// A file name with a dot is not valid for a hook. `status` shows an executable file with such a name as skipped.
/// Regression test: after the hook was deleted, the finding was still shown until a label changed.
#[test]
fn y08_status_shows_skipped_hook_until_deleted() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let host = joined_host(root.path(), &TestTaskSet::default());
    ensure_dir(&*host, &HostPath::from_static("/etc/stemma/hooks.d"), 0o755).unwrap();
    let is_shown = || human_status(root.path()).contains("/etc/stemma/hooks.d: skipped because of their names: \"10-a.sh\"");
    let hook = root.path().join("etc/stemma/hooks.d/10-a.sh");
    assert!(!is_shown());
    std::fs::write(&hook, "").unwrap();
    assert!(!is_shown(), "a file that is not executable is not a hook");
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(is_shown());
    std::fs::remove_file(&hook).unwrap();
    assert!(!is_shown());
}

/// Only a running agent has a connection now, so only the output with a running agent contains the duration (150 s,
/// from 1000 to 1150).
#[test]
fn w08_status_shows_connection_and_fails_when_host_is_unknown() {
    let root = tempfile::tempdir().unwrap();
    let host = joined_host(root.path(), &TestTaskSet::default());
    assert_eq!(status(root.path(), OutputFormat::Human).unwrap(), AgentExit::Done);
    let dir = ensure_dir(&*host, &HostPath::from_static("/var/lib/stemma-agent/sync"), 0o700).unwrap();
    for (state, exit, with_agent, without_agent) in [
        ("connected", AgentExit::Done, "connected to https://c:1 for 2 min: x", "state: connected to https://c:1: x"),
        ("unserved", AgentExit::Done, "not served by https://c:1 for 2 min: x", "state: not served by https://c:1: x"),
        (
            "unknown",
            AgentExit::Failed,
            "state     no longer known to its controllers; its tasks: converged",
            "`stemma-agent join`",
        ),
        (
            "shared",
            AgentExit::Done,
            "shares its identity with another at https://c:1",
            "no agent runs on this host; last known state",
        ),
    ] {
        let record = serde_json::json!({"standing": state, "url": "https://c:1", "cause": "x", "since": 1000});
        replace(&*host, &*dir, "connection.json", record.to_string().as_bytes(), &Attributes::with_mode(0o600)).unwrap();
        assert_eq!(status(root.path(), OutputFormat::Human).unwrap(), exit, "{state}");
        let output = collect(&LocalHost::open(root.path()).unwrap()).unwrap();
        let text = human_text(&output, 1150);
        assert!(text.contains(without_agent) && !text.contains("for 2 min"), "no agent runs: {text}");
        let text = human_text(&StatusOutput { agent_runs: None, ..output }, 1150);
        assert!(text.contains("whether an agent runs on this host is not known; last"), "{text}");
        let text = human_text(
            &StatusOutput { agent_runs: Some(true), ..collect(&LocalHost::open(root.path()).unwrap()).unwrap() },
            1150,
        );
        assert!(text.contains(with_agent), "{text}");
    }
}

/// Regression test: `status` did not show the note `untold`, which the controllers show. If the agent had started with
/// a damaged key, `status` printed `connected to`. The table checks the reason alone, the rest of the test the printed
/// text. `None` as `agent_runs` means that it is not known whether an agent runs.
#[test]
fn y06_status_explains_why_host_gets_no_updates() {
    let record = |state| ConnectionRecord { state, url: "https://c:1".to_owned(), cause: String::new(), since: 1000 };
    let (connected, unserved) = (Some(record(ConnectionState::Connected)), Some(record(ConnectionState::Unserved)));
    let (unknown, shared) = (Some(record(ConnectionState::Unknown)), Some(record(ConnectionState::Shared)));
    let no_agent = Some("no agent runs on this host");
    let damaged = Some("no agent is connected to its controllers, because its identity or key is damaged");
    for (agent_runs, has_damaged_identity, connection, reason) in [
        (Some(true), false, &None, None),
        (Some(true), false, &connected, None),
        (Some(true), false, &unserved, Some("no controller serves it")),
        (Some(true), false, &unknown, None),
        (Some(true), false, &shared, None),
        (Some(true), true, &connected, damaged),
        (Some(true), true, &None, damaged),
        (Some(false), false, &None, no_agent),
        (Some(false), false, &connected, no_agent),
        (Some(false), true, &unserved, no_agent),
        (None, false, &unserved, None),
    ] {
        assert_eq!(
            disconnect_reason(agent_runs, has_damaged_identity, connection.as_ref()),
            reason,
            "{agent_runs:?} {connection:?}"
        );
    }
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default());
    let output = || collect(&LocalHost::open(root.path()).unwrap()).unwrap();
    let text = human_text(&output(), 1150);
    assert!(text.contains("untold    it gets no updates: no agent runs on this host\n"), "{text}");
    let text = human_text(&StatusOutput { agent_runs: Some(true), untold: damaged, connection: connected, ..output() }, 1150);
    let expected = "no agent is connected to its controllers, because its identity or key is damaged; last known state: \
                connected to https://c:1\n";
    assert!(text.contains(&format!("contact   {expected}")), "{text}");
    let unjoined_root = tempfile::tempdir().unwrap();
    assert!(!human_status(unjoined_root.path()).contains("untold"), "the host has not joined");
}

/// Regression test: `status` printed only `converged` or `idle` (not a node state), even if an operator had paused,
/// held or parked the node.
#[test]
fn y06_status_shows_held_paused_and_parked() {
    let now = 1_800_000_000;
    let hold = |seconds: u64| Some((now + seconds, "a disk".to_owned()));
    let reason = "a disk".to_owned();
    let (done, new) = (vec![task_output(CHANGED, None)], vec![task_output(None, None)]);
    let default_state = LocalState::default;
    for (known, local, tasks, expected) in [
        (Known::default(), default_state(), &done, ""),
        (
            Known { hold: hold(7200), ..Known::default() },
            default_state(),
            &new,
            ", held (a disk) for 2 h more: it keeps its task set",
        ),
        (Known { hold: Some((now, reason.clone())), ..Known::default() }, default_state(), &done, ""),
        (
            Known { hold: Some((u64::MAX, String::new())), paused: true, ..Known::default() },
            default_state(),
            &done,
            ", paused by an operator (its nodegroup or cluster), held until that is ended: it keeps its task set",
        ),
        (
            Known::default(),
            LocalState { hold: hold(60), ..default_state() },
            &new,
            ", held (a disk) for 1 min more: a newer task set waits",
        ),
        (
            Known::default(),
            LocalState { hold: hold(60), ..default_state() },
            &done,
            ", held (a disk) for 1 min more: it keeps its task set",
        ),
        (Known { parked: true, ..Known::default() }, default_state(), &done, ", parked by an operator"),
        (
            Known::default(),
            LocalState { parked: Some(reason), paused: true, ..default_state() },
            &done,
            ", paused on this host, parked on this host (a disk)",
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        joined_host(root.path(), &TestTaskSet::default());
        let status = collect(&LocalHost::open(root.path()).unwrap()).unwrap();
        let held = hold_text(&Desired { known: known.clone(), ..TestTaskSet::default().desired() }, &local, tasks, now);
        let is_paused_by_operator = known.paused;
        let status =
            StatusOutput { is_paused_by_operator, paused: local.paused, parked: parked_text(&known, local), held, ..status };
        assert_eq!(status.state_text(), format!("converged{expected}"));
    }
}

/// Regression test: before the first task set was released, `status` printed `converged`. For a held host, it also
/// printed that the host retains its task set.
#[test]
fn y06_status_shows_waiting_when_no_task_set_was_released() {
    // The end of this hold is the maximum, so it lasts until `unhold`. Its reason is `x`.
    let hold = || Some((u64::MAX, "x".to_owned()));
    for (hold, paused, state) in [
        (hold(), false, "waiting, held (x) until that is ended: no task set was released yet"),
        (None, true, "waiting, paused by an operator (its nodegroup or cluster)"),
        (
            hold(),
            true,
            "waiting, paused by an operator (its nodegroup or cluster), held (x) until that is ended: no task set was released yet",
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        let host = joined_host(root.path(), &TestTaskSet::default());
        let known = Known { hold, paused, ..TestTaskSet::default().desired().known };
        let desired = Desired { known, task_set: TaskSet::default(), ..TestTaskSet::default().desired() };
        Ledger::open(host).unwrap().put(&ACCEPTED, &accepted_state(1, &desired)).unwrap();
        assert_eq!(once(root.path()).unwrap(), AgentExit::Done, "{state}");
        // There is nothing to check yet.
        assert_eq!(check(root.path(), OutputFormat::Json).unwrap(), AgentExit::NotFound, "{state}");
        assert_eq!(status(root.path(), OutputFormat::Human).unwrap(), AgentExit::Done);
        assert_eq!(collect(&LocalHost::open(root.path()).unwrap()).unwrap().state_text(), state);
    }
    // Nothing withholds a task set of these hosts: no level names a release for the first one, and the others are in no
    // nodegroup.
    for (group, paused, state) in [
        ("prod/web", false, "converged"),
        ("", false, "unplaced"),
        ("", true, "unplaced, paused by an operator (its nodegroup or cluster)"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let host = joined_host(root.path(), &TestTaskSet::default());
        let known = Known { group: group.to_owned(), paused, ..TestTaskSet::default().desired().known };
        let desired = Desired { known, task_set: TaskSet::default(), ..TestTaskSet::default().desired() };
        Ledger::open(host).unwrap().put(&ACCEPTED, &accepted_state(1, &desired)).unwrap();
        assert_eq!(check(root.path(), OutputFormat::Json).unwrap(), AgentExit::Done);
        assert_eq!(collect(&LocalHost::open(root.path()).unwrap()).unwrap().state_text(), state);
    }
}

/// Regression test: if a directory was in the place of a label file, `once` and `check` exited with 0, and `status`
/// printed `converged`.
#[test]
fn y06_status_shows_stuck_when_directory_replaces_label_file() {
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default().label("tier", "gold"));
    let file = root.path().join("run/stemma/labels.json");
    std::fs::create_dir_all(&file).unwrap();
    let run_verbs = || {
        let once = once(root.path()).unwrap();
        (once, check(root.path(), OutputFormat::Json).unwrap(), status(root.path(), OutputFormat::Human).unwrap())
    };
    assert_eq!(run_verbs(), (AgentExit::Failed, AgentExit::Failed, AgentExit::Failed));
    let state = || collect(&LocalHost::open(root.path()).unwrap()).unwrap().state_text();
    let expected = "stuck: /run/stemma: cannot replace /run/stemma/labels.json: Is a directory (os error 21): a directory is in the place of the \
                file: move it away";
    assert_eq!(state(), expected);
    let env_file = std::fs::read_to_string(root.path().join("run/stemma/labels.env")).unwrap();
    assert_eq!(env_file, "STEMMA_LABEL_TIER=\"gold\"\n", "the other files are written");
    std::fs::remove_dir(&file).unwrap();
    assert_eq!(run_verbs(), (AgentExit::Done, AgentExit::Done, AgentExit::Done));
    assert_eq!((state().as_str(), std::fs::read_to_string(&file).unwrap().as_str()), ("converged", "{\"tier\":\"gold\"}\n"));
}

/// `conf` requires `app` through the marker `m` (the numbers are the indexes of required tasks), so `status` shows the
/// barrier of `app` for `conf` too.
#[test]
fn y06_status_describes_barrier_of_waiting_task_and_dependants() {
    let root = tempfile::tempdir().unwrap();
    let barrier = Barrier { task: "db-up".into(), selector: "tags db".into() };
    let set = TestTaskSet::default().command("app", &[], &["true"]).with_barrier(barrier).marker("m", &[0]);
    joined_host(root.path(), &set.command("conf", &[1], &["true"]).command("free", &[], &["true"]));
    let text = human_status(root.path());
    for line in [
        "app                      waiting for db-up on tags db",
        "conf                     waiting for db-up on tags db",
        "free                     not yet",
    ] {
        assert!(text.contains(&format!("task      {line}\n")), "{text}");
    }
    for (selector, expected) in [
        ("stage", "stage t"),
        ("anywhere", "t on every node that has it"),
        ("*", "t on every node with a role or a tag"),
        ("any of roles x", "t on any of roles x"),
        ("any of anywhere", "t on any node that has it"),
        ("any of *", "t on any node with a role or a tag"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let barrier = Barrier { task: "t".into(), selector: selector.into() };
        joined_host(root.path(), &TestTaskSet::default().command("app", &[], &["true"]).with_barrier(barrier));
        let text = human_status(root.path());
        assert!(text.contains(&format!("waiting for {expected}\n")), "{text}");
    }
}

/// Regression test: `status` printed `waiting` or `converged` where the controllers showed `blocked`, `drifted` or
/// `noop`.
#[test]
fn y06_state_text_matches_state_of_controllers() {
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default());
    // A task here is a pair: its outcome, and the barrier at which it waits.
    let (done, would_change, pending) = ((CHANGED, None), (WOULD_CHANGE, None), (None, None));
    let (waiting, drifted) = ((None, Some("a on tags x")), (DRIFTED, None));
    for (progress, tasks, state) in [
        (Progress::Waiting, vec![done, waiting], "waiting for other hosts"),
        (Progress::Waiting, vec![done, (None, Some("a reboot"))], "waiting for a reboot"),
        (Progress::Waiting, vec![waiting, pending], "waiting"),
        (Progress::Waiting, vec![done], "waiting"),
        (Progress::Running, vec![waiting], "running"),
        (Progress::Failed, vec![(FAILED, None), waiting], "failed"),
        (Progress::Converged, vec![done, would_change], "noop"),
        (Progress::Idle, vec![would_change], "noop"),
        (Progress::Idle, vec![would_change, pending], "waiting"),
        (Progress::Idle, vec![would_change, waiting], "waiting for other hosts"),
        (Progress::Idle, vec![done, (FAILED, None), pending], "failed"),
        (Progress::Failed, vec![(FAILED, None), would_change], "failed"),
        (Progress::Converged, vec![done, drifted], "drifted"),
        (Progress::Idle, vec![would_change, drifted], "drifted"),
        // Waiting comes before drifted, as in the controllers' order of states (`blocked`, `changing`, `drifted`).
        (Progress::Waiting, vec![drifted, waiting], "waiting for other hosts"),
        (Progress::Waiting, vec![drifted, waiting, pending], "waiting"),
        (Progress::Idle, vec![drifted, waiting], "waiting for other hosts"),
        (Progress::Idle, vec![drifted, pending], "waiting"),
        (Progress::Waiting, vec![drifted, done], "drifted"),
        (Progress::Running, vec![drifted, pending], "running"),
        (Progress::Failed, vec![(FAILED, None), drifted], "failed"),
        (Progress::Converged, vec![done], "converged"),
        (Progress::Converged, vec![], "converged"),
        // The report belongs to the previous task set. This happens if the agent is killed after it accepted the next.
        (Progress::Converged, vec![done, pending], "waiting"),
        (Progress::Converged, vec![waiting], "waiting for other hosts"),
    ] {
        let status = collect(&LocalHost::open(root.path()).unwrap()).unwrap();
        let tasks = tasks.into_iter().map(|(outcome, waits_for)| task_output(outcome, waits_for)).collect();
        assert_eq!(StatusOutput { progress, tasks, ..status }.state_text(), state);
    }
}

/// Regression test: `status` printed `idle`, which is not a state of a node. For a node that was removed from its
/// group, it printed `converged`. All hosts of the table are also paused on the host itself. A `None` among the tasks
/// is a task without an outcome.
#[test]
fn y06_state_text_is_node_state_when_observing_or_unplaced() {
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default());
    let waiting_text = "waiting, paused on this host: its mode is observe, so no task is run or checked";
    for (mode, group, progress, tasks, state) in [
        ("observe", Some("c/g"), Progress::Idle, vec![None], waiting_text),
        ("observe", Some("c/g"), Progress::Idle, vec![CHANGED, None], waiting_text),
        ("observe", Some("c/g"), Progress::Running, vec![CHANGED, None], "running, paused on this host"),
        ("observe", Some("c/g"), Progress::Idle, vec![], "converged, paused on this host"),
        (
            "observe",
            Some("c/g"),
            Progress::Idle,
            vec![Some(TaskEnd::Outcome(Outcome::Unchanged))],
            "converged, paused on this host",
        ),
        ("observe", Some("c/g"), Progress::Idle, vec![CHANGED, FAILED], "failed, paused on this host"),
        ("observe", Some("c/g"), Progress::Idle, vec![WOULD_CHANGE], "noop, paused on this host"),
        ("observe", Some("c/g"), Progress::Idle, vec![Some(TaskEnd::Observed)], "converged, paused on this host"),
        ("apply", Some("c/g"), Progress::Idle, vec![None], "waiting, paused on this host"),
        ("apply", Some("c/g"), Progress::Idle, vec![CHANGED], "converged, paused on this host"),
        ("apply", Some("c/g"), Progress::Idle, vec![FAILED, None], "failed, paused on this host"),
        ("apply", None, Progress::Converged, vec![], "unplaced, paused on this host"),
        ("observe", None, Progress::Idle, vec![], "unplaced, paused on this host"),
    ] {
        let status = collect(&LocalHost::open(root.path()).unwrap()).unwrap();
        let (mode, group) = (Some(mode.to_owned()), group.map(str::to_owned));
        let tasks = tasks.into_iter().map(|outcome| task_output(outcome, None)).collect();
        let status = StatusOutput { mode, group, progress, tasks, paused: true, ..status };
        assert_eq!(status.state_text(), state);
    }
}

/// Regression test: for a host without results, `status` printed `idle`, which is not a state of a node.
#[test]
fn y06_status_shows_waiting_before_tasks_are_known() {
    let state = |root: &Path| collect(&LocalHost::open(root).unwrap()).unwrap().state_text();
    let unjoined_root = tempfile::tempdir().unwrap();
    assert_eq!(state(unjoined_root.path()), "waiting", "the host has not joined");
    let root = tempfile::tempdir().unwrap();
    let set = TestTaskSet::default().file("f", &[], "/f", "x");
    joined_host(root.path(), &set);
    assert_eq!(state(root.path()), "waiting", "no task has begun");
    let profile = root.path().join(format!("var/lib/stemma-agent/apply/bodies/{}", set.profile().0));
    std::fs::remove_file(profile).unwrap();
    assert_eq!(state(root.path()), "waiting", "the profile with the tasks has not arrived");
}

/// Regression test: in the first half second of each new task set, `status` printed `idle` although commands ran.
#[test]
fn y06_status_shows_running_once_task_set_is_accepted() {
    let default_state = LocalState::default;
    let (done, pending, waiting) = ((WOULD_CHANGE, None), (None, None), (None, Some("a on tags x")));
    let held_state = || LocalState { hold: Some((u64::MAX, String::new())), ..default_state() };
    let paused = LocalState { paused: true, ..default_state() };
    let parked = LocalState { parked: Some("a disk".to_owned()), ..default_state() };
    for (progress, mode, local, tasks, is_running) in [
        (Progress::Idle, Mode::Apply, default_state(), vec![pending, pending], true),
        (Progress::Idle, Mode::Apply, default_state(), vec![done, pending], true),
        (Progress::Converged, Mode::Apply, default_state(), vec![pending], true),
        (Progress::Idle, Mode::Noop, default_state(), vec![pending], true),
        // The tasks have begun, so the hold does not stop this task set, but only the next one.
        (Progress::Idle, Mode::Apply, held_state(), vec![done, pending], true),
        // No task can start: each one is done, waits at a barrier, or is not run in this mode. In mode `noop`, all
        // tasks are checked at once, so a task without a result among others is not about to start.
        (Progress::Idle, Mode::Apply, default_state(), vec![], false),
        (Progress::Idle, Mode::Apply, default_state(), vec![done], false),
        (Progress::Idle, Mode::Apply, default_state(), vec![waiting], false),
        (Progress::Idle, Mode::Observe, default_state(), vec![pending], false),
        (Progress::Idle, Mode::Noop, default_state(), vec![done, pending], false),
        // Running is not allowed.
        (Progress::Idle, Mode::Apply, held_state(), vec![pending], false),
        (Progress::Idle, Mode::Apply, paused, vec![pending], false),
        (Progress::Idle, Mode::Apply, parked, vec![pending], false),
        // The reported progress is more specific than `running`.
        (Progress::Waiting, Mode::Apply, default_state(), vec![pending], false),
        (Progress::Failed, Mode::Apply, default_state(), vec![pending], false),
    ] {
        let tasks: Vec<_> = tasks.into_iter().map(|(outcome, waits_for)| task_output(outcome, waits_for)).collect();
        let result = is_starting(progress, &TestTaskSet::default().mode(mode).desired(), &local, &tasks);
        assert_eq!(result, is_running, "{progress:?} {mode:?} {local:?} {}", tasks.len());
    }
    let mut parked = TestTaskSet::default().desired();
    parked.known.parked = true;
    assert!(!is_starting(Progress::Idle, &parked, &default_state(), &[task_output(None, None)]));
}

#[test]
fn words_returns_variant_name_in_lower_case() {
    assert_eq!((words(Outcome::Unchanged), words(Progress::Running)), ("unchanged".into(), "running".into()));
    assert_eq!(words(Outcome::WouldChange), "would change");
}

/// Regression test: `status` and `explain` printed all trailing empty lines of an output.
#[test]
fn y09_reason_lines_omits_trailing_blank_lines() {
    for (output, expected) in [
        (format!("one\n\ntwo\n{}", "\n".repeat(500)), &["m", "one", "", "two"][..]),
        ("  indented\n \t\n".to_owned(), &["m", "  indented"]),
        ("\n\n".to_owned(), &["m"]),
        (String::new(), &["m"]),
    ] {
        let reason = Reason { message: "m".to_owned(), output };
        assert_eq!(reason_lines(&reason).collect::<Vec<_>>(), expected);
    }
}

/// Regression test: the finding about the damaged identity stated that this host gets no updates, even if an agent that
/// had started before the damage still got them. No line showed the connection to the controllers.
#[test]
fn y06_status_shows_whether_agent_gets_updates_when_identity_is_damaged() {
    let root = tempfile::tempdir().unwrap();
    joined_host(root.path(), &TestTaskSet::default());
    std::fs::write(root.path().join("var/lib/stemma-agent/identity.json"), "{").unwrap();
    let text = human_status(root.path());
    let expected = "an agent that is started now applies what this host has but gets no updates, and one that was started earlier gets updates \
                until it stops";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("contact   no agent runs on this host\n"), "{text}");
}

/// The task `last` requires the reboot, and `other` does not.
#[test]
fn status_and_explain_show_reboot_awaited_by_task() {
    use crate::verbs::explain::task_reasons;

    let root = tempfile::tempdir().unwrap();
    let set = TestTaskSet::default().task("boot", "reboot", &[], &serde_json::json!({}));
    let set = set.file("last", &[0], "/last", "x").file("other", &[], "/other", "x");
    joined_host(root.path(), &set);
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
    let text = human_status(root.path());
    for line in [
        "state     waiting for a reboot\n",
        "task      boot                     waiting for a reboot: `stemma node reboot web-1`\n",
        "task      last                     waiting for a reboot: `stemma node reboot web-1`\n",
        "task      other                    changed\n",
        "reboot    wanted for less than a minute\n            by task boot: the task asks for it",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(task_reasons(root.path(), "last")[0], "waiting for a reboot: `stemma node reboot web-1`");
    assert_eq!((root.path().join("last").exists(), root.path().join("other").exists()), (false, true));
}

/// The state of the agent is on a disk without room. `once` fails and says why, `status` says so too, and both recover.
#[test]
fn f07_status_says_disk_is_full_until_space_is_free() {
    use crate::apply::testing::{SmallDisk, store_accepted};

    let root = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::new(root.path().join("var/lib/stemma-agent"), "1m") else { return };
    let set = |content: &str| TestTaskSet::default().file("f", &[], "/f", content);
    let host = joined_host(root.path(), &set("1"));
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
    store_accepted(&host, 2, &set("2"));
    let filler = disk.0.join("filler");
    // The write ends at the first error, when the disk has no room any more.
    assert!(std::fs::write(&filler, vec![0; 2 * 1024 * 1024]).is_err());
    let end = once(root.path());
    assert!(!matches!(end, Ok(AgentExit::Done)), "{end:?}");
    let text = human_status(root.path());
    assert!(text.contains("state     stuck: ") && text.contains("No space left on device"), "{text}");
    let content = std::fs::read_to_string(root.path().join("f")).unwrap();
    assert!(["1", "2"].contains(&content.as_str()), "the file is whole: {content:?}");
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(once(root.path()).unwrap(), AgentExit::Done);
    let text = human_status(root.path());
    assert!(text.contains("state     converged\n") && !text.contains("No space left"), "{text}");
    assert_eq!(std::fs::read_to_string(root.path().join("f")).unwrap(), "2");
}
