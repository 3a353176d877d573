//! What a host says of itself, from its ledger.

use stemma_wire::message::desired::{Barrier, TaskSet};

use super::super::converge::{check, once};
use super::*;
use crate::apply::ledger::{ACCEPTED, Ledger};
use crate::apply::testing::{Set, accepted, joined};
use crate::host::HostPath;
use crate::host::atomic::{Attributes, ensure_dir, replace};

const CHANGED: Option<Ended> = Some(Ended::As(Outcome::Changed));
const WOULD_CHANGE: Option<Ended> = Some(Ended::As(Outcome::WouldChange));
const FAILED: Option<Ended> = Some(Ended::As(Outcome::Failed));
const DRIFTED: Option<Ended> = Some(Ended::As(Outcome::Drifted));

/// A task that ended so, or waits for this.
fn task(outcome: Option<Ended>, waits_for: Option<&str>) -> Task {
    Task { id: "t".to_owned(), outcome, waits_for: waits_for.map(str::to_owned), reason: None }
}

/// It was shown until a label changed.
#[test]
fn y08_a_hook_that_is_not_run_is_shown_while_it_is_there() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let host = joined(root.path(), &Set::default());
    ensure_dir(&*host, &HostPath::own("/etc/stemma/hooks.d"), 0o755).unwrap();
    let is_shown = || shown(root.path()).contains("/etc/stemma/hooks.d: left out by their names: \"10-a.sh\"");
    let hook = root.path().join("etc/stemma/hooks.d/10-a.sh");
    assert!(!is_shown());
    std::fs::write(&hook, "").unwrap();
    assert!(!is_shown(), "it cannot be executed");
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(is_shown());
    std::fs::remove_file(&hook).unwrap();
    assert!(!is_shown());
}

#[test]
fn w08_a_host_that_its_controllers_no_longer_know_says_so_and_is_no_success() {
    let root = tempfile::tempdir().unwrap();
    let host = joined(root.path(), &Set::default());
    assert_eq!(status(root.path(), Output::Human).unwrap(), Exit::Done);
    let dir = ensure_dir(&*host, &HostPath::own("/var/lib/stemma-agent/sync"), 0o700).unwrap();
    for (standing, exit, said, without) in [
        ("connected", Exit::Done, "connected to https://c:1 for 2 min: x", "it was connected to https://c:1: x"),
        ("unserved", Exit::Done, "not served by https://c:1 for 2 min: x", "it was not served by https://c:1: x"),
        (
            "unknown",
            Exit::Failed,
            "state     no longer known to its controllers; its tasks: converged",
            "`stemma-agent join`",
        ),
        ("shared", Exit::Done, "shares its identity with another at https://c:1", "no agent runs on this host; when"),
    ] {
        let noted = serde_json::json!({"standing": standing, "url": "https://c:1", "cause": "x", "since": 1000});
        replace(&*host, &*dir, "connection.json", noted.to_string().as_bytes(), &Attributes::mode(0o600)).unwrap();
        assert_eq!(status(root.path(), Output::Human).unwrap(), exit, "{standing}");
        let found = collect(&Local::open(root.path()).unwrap()).unwrap();
        let text = human(&found, 1150);
        assert!(text.contains(without) && !text.contains("for 2 min"), "no agent runs: {text}");
        let text = human(&Status { agent_runs: None, ..found }, 1150);
        assert!(text.contains("whether an agent runs on this host is not known; when"), "{text}");
        let text =
            human(&Status { agent_runs: Some(true), ..collect(&Local::open(root.path()).unwrap()).unwrap() }, 1150);
        assert!(text.contains(said), "{text}");
    }
}

/// Nothing on the host said what its controllers call `untold`, and it said `connected to` where its agent had started with a damaged key.
#[test]
fn y06_a_host_says_why_it_is_not_told_what_changes() {
    let at = |standing| Connection { standing, url: "https://c:1".to_owned(), cause: String::new(), since: 1000 };
    let (connected, unserved) = (Some(at(Standing::Connected)), Some(at(Standing::Unserved)));
    let (unknown, shared) = (Some(at(Standing::Unknown)), Some(at(Standing::Shared)));
    let no_agent = Some("no agent runs on this host");
    let damaged = Some("no agent speaks with its controllers, since its identity or key is damaged");
    for (agent_runs, is_apart, connection, said) in [
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
        assert_eq!(untold(agent_runs, is_apart, connection.as_ref()), said, "{agent_runs:?} {connection:?}");
    }
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default());
    let found = || collect(&Local::open(root.path()).unwrap()).unwrap();
    let text = human(&found(), 1150);
    assert!(text.contains("untold    it is not told what changes: no agent runs on this host\n"), "{text}");
    let text = human(&Status { agent_runs: Some(true), untold: damaged, connection: connected, ..found() }, 1150);
    let said = "no agent speaks with its controllers, since its identity or key is damaged; when one last did, it was \
                connected to https://c:1\n";
    assert!(text.contains(&format!("contact   {said}")), "{text}");
    let fresh = tempfile::tempdir().unwrap();
    assert!(!shown(fresh.path()).contains("untold"), "it has not joined");
}

/// The host said `converged` or `idle` alone, which is no state, whatever an operator had said of it.
#[test]
fn y06_status_says_held_paused_by_an_operator_and_parked() {
    let now = 1_800_000_000;
    let hold = |seconds: u64| Some((now + seconds, "a disk".to_owned()));
    let text = "a disk".to_owned();
    let (done, new) = (vec![task(CHANGED, None)], vec![task(None, None)]);
    let nothing = LocalState::default;
    for (known, said, tasks, expected) in [
        (Known::default(), nothing(), &done, ""),
        (
            Known { hold: hold(7200), ..Known::default() },
            nothing(),
            &new,
            ", held (a disk) for 2 h more: it keeps its task set",
        ),
        (Known { hold: Some((now, text.clone())), ..Known::default() }, nothing(), &done, ""),
        (
            Known { hold: Some((u64::MAX, String::new())), paused: true, ..Known::default() },
            nothing(),
            &done,
            ", paused by an operator (its nodegroup or cluster), held until that is ended: it keeps its task set",
        ),
        (
            Known::default(),
            LocalState { hold: hold(60), ..nothing() },
            &new,
            ", held (a disk) for 1 min more: a newer task set waits",
        ),
        (
            Known::default(),
            LocalState { hold: hold(60), ..nothing() },
            &done,
            ", held (a disk) for 1 min more: it keeps its task set",
        ),
        (Known { parked: true, ..Known::default() }, nothing(), &done, ", parked by an operator"),
        (
            Known::default(),
            LocalState { parked: Some(text), paused: true, ..nothing() },
            &done,
            ", paused on this host, parked on this host (a disk)",
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        joined(root.path(), &Set::default());
        let status = collect(&Local::open(root.path()).unwrap()).unwrap();
        let held = words_of_hold(&Desired { known: known.clone(), ..Set::default().desired() }, &said, tasks, now);
        let is_paused_by_operator = known.paused;
        let status =
            Status { is_paused_by_operator, paused: said.paused, parked: parked(&known, said), held, ..status };
        assert_eq!(status.state(), format!("converged{expected}"));
    }
}

/// It said `converged`, and of one that is held that it keeps its task set.
#[test]
fn y06_a_host_to_which_no_task_set_was_released_waits_and_keeps_none() {
    let hold = || Some((u64::MAX, "x".to_owned()));
    for (hold, paused, state) in [
        (hold(), false, "waiting, held (x) until that is ended: no task set has come yet"),
        (None, true, "waiting, paused by an operator (its nodegroup or cluster)"),
        (
            hold(),
            true,
            "waiting, paused by an operator (its nodegroup or cluster), held (x) until that is ended: no task set has come yet",
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        let host = joined(root.path(), &Set::default());
        let known = Known { hold, paused, ..Set::default().desired().known };
        let desired = Desired { known, task_set: TaskSet::default(), ..Set::default().desired() };
        Ledger::open(host).unwrap().put(&ACCEPTED, &accepted(1, &desired)).unwrap();
        assert_eq!(once(root.path()).unwrap(), Exit::Done, "{state}");
        assert_eq!(check(root.path(), Output::Json).unwrap(), Exit::NotFound, "{state}");
        assert_eq!(status(root.path(), Output::Human).unwrap(), Exit::Done);
        assert_eq!(collect(&Local::open(root.path()).unwrap()).unwrap().state(), state);
    }
    // A node of which no level names a release, and one in no nodegroup, have no tasks to wait for.
    for (group, paused, state) in [
        ("prod/web", false, "converged"),
        ("", false, "unplaced"),
        ("", true, "unplaced, paused by an operator (its nodegroup or cluster)"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let host = joined(root.path(), &Set::default());
        let known = Known { group: group.to_owned(), paused, ..Set::default().desired().known };
        let desired = Desired { known, task_set: TaskSet::default(), ..Set::default().desired() };
        Ledger::open(host).unwrap().put(&ACCEPTED, &accepted(1, &desired)).unwrap();
        assert_eq!(check(root.path(), Output::Json).unwrap(), Exit::Done);
        assert_eq!(collect(&Local::open(root.path()).unwrap()).unwrap().state(), state);
    }
}

/// `once` and `check` ended with 0, and `status` said `converged`.
#[test]
fn y06_a_directory_in_the_place_of_a_label_file_makes_the_host_stuck_until_it_goes() {
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default().label("tier", "gold"));
    let file = root.path().join("run/stemma/labels.json");
    std::fs::create_dir_all(&file).unwrap();
    let ends = || {
        let once = once(root.path()).unwrap();
        (once, check(root.path(), Output::Json).unwrap(), status(root.path(), Output::Human).unwrap())
    };
    assert_eq!(ends(), (Exit::Failed, Exit::Failed, Exit::Failed));
    let state = || collect(&Local::open(root.path()).unwrap()).unwrap().state();
    let said = "stuck: /run/stemma: cannot replace /run/stemma/labels.json: Is a directory (os error 21): a directory stands in the place of the \
                file: move it away";
    assert_eq!(state(), said);
    let beside = std::fs::read_to_string(root.path().join("run/stemma/labels.env")).unwrap();
    assert_eq!(beside, "STEMMA_LABEL_TIER=\"gold\"\n", "the rest is written");
    std::fs::remove_dir(&file).unwrap();
    assert_eq!(ends(), (Exit::Done, Exit::Done, Exit::Done));
    assert_eq!(
        (state().as_str(), std::fs::read_to_string(&file).unwrap().as_str()),
        ("converged", "{\"tier\":\"gold\"}\n")
    );
}

#[test]
fn y06_a_task_at_a_barrier_says_what_it_waits_for_and_so_does_what_comes_after_it() {
    let root = tempfile::tempdir().unwrap();
    let barrier = Barrier { task: "db-up".into(), selector: "tags db".into() };
    let set = Set::default().command("app", &[], &["true"]).behind(barrier).marker("m", &[0]);
    joined(root.path(), &set.command("conf", &[1], &["true"]).command("free", &[], &["true"]));
    let text = shown(root.path());
    for line in [
        "app                      waiting for db-up on tags db",
        "conf                     waiting for db-up on tags db",
        "free                     not yet",
    ] {
        assert!(text.contains(&format!("task      {line}\n")), "{text}");
    }
    for (selector, said) in [
        ("stage", "stage t"),
        ("anywhere", "t on every node that has it"),
        ("*", "t on every node with a role or a tag"),
        ("any of roles x", "t on any of roles x"),
        ("any of anywhere", "t on any node that has it"),
        ("any of *", "t on any node with a role or a tag"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let barrier = Barrier { task: "t".into(), selector: selector.into() };
        joined(root.path(), &Set::default().command("app", &[], &["true"]).behind(barrier));
        let text = shown(root.path());
        assert!(text.contains(&format!("waiting for {said}\n")), "{text}");
    }
}

/// It said `waiting` and `converged`, where its controllers said that it is blocked, drifted or in noop.
#[test]
fn y06_the_state_says_whom_all_that_is_open_waits_for_and_that_a_task_would_change_or_drifted() {
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default());
    let (done, would, open) = ((CHANGED, None), (WOULD_CHANGE, None), (None, None));
    let (behind, drifted) = ((None, Some("a on tags x")), (DRIFTED, None));
    for (progress, tasks, state) in [
        (Progress::Waiting, vec![done, behind], "waiting for other hosts"),
        (Progress::Waiting, vec![behind, open], "waiting"),
        (Progress::Waiting, vec![done], "waiting"),
        (Progress::Running, vec![behind], "running"),
        (Progress::Failed, vec![(FAILED, None), behind], "failed"),
        (Progress::Converged, vec![done, would], "noop"),
        (Progress::Idle, vec![would], "noop"),
        (Progress::Idle, vec![would, open], "waiting"),
        (Progress::Idle, vec![would, behind], "waiting for other hosts"),
        (Progress::Idle, vec![done, (FAILED, None), open], "failed"),
        (Progress::Failed, vec![(FAILED, None), would], "failed"),
        (Progress::Converged, vec![done, drifted], "drifted"),
        (Progress::Idle, vec![would, drifted], "drifted"),
        // What waits comes before what drifted, as in the controllers' order of states (`blocked`, `changing`, `drifted`).
        (Progress::Waiting, vec![drifted, behind], "waiting for other hosts"),
        (Progress::Waiting, vec![drifted, behind, open], "waiting"),
        (Progress::Idle, vec![drifted, behind], "waiting for other hosts"),
        (Progress::Idle, vec![drifted, open], "waiting"),
        (Progress::Waiting, vec![drifted, done], "drifted"),
        (Progress::Running, vec![drifted, open], "running"),
        (Progress::Failed, vec![(FAILED, None), drifted], "failed"),
        (Progress::Converged, vec![done], "converged"),
        (Progress::Converged, vec![], "converged"),
        // What was reported is of the task set before, as where the agent was killed when it had taken the next one.
        (Progress::Converged, vec![done, open], "waiting"),
        (Progress::Converged, vec![behind], "waiting for other hosts"),
    ] {
        let status = collect(&Local::open(root.path()).unwrap()).unwrap();
        let tasks = tasks.into_iter().map(|(outcome, waits_for)| task(outcome, waits_for)).collect();
        assert_eq!(Status { progress, tasks, ..status }.state(), state);
    }
}

/// It said `idle`, which is no state of a node, and `converged` where its node was taken out of its group.
#[test]
fn y06_the_state_of_a_host_that_observes_or_is_in_no_nodegroup_is_that_of_its_node() {
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default());
    let waits = "waiting, paused on this host: its mode is observe, so no task is run or checked";
    for (mode, group, progress, tasks, state) in [
        ("observe", Some("c/g"), Progress::Idle, vec![None], waits),
        ("observe", Some("c/g"), Progress::Idle, vec![CHANGED, None], waits),
        ("observe", Some("c/g"), Progress::Running, vec![CHANGED, None], "running, paused on this host"),
        ("observe", Some("c/g"), Progress::Idle, vec![], "converged, paused on this host"),
        (
            "observe",
            Some("c/g"),
            Progress::Idle,
            vec![Some(Ended::As(Outcome::Unchanged))],
            "converged, paused on this host",
        ),
        ("observe", Some("c/g"), Progress::Idle, vec![CHANGED, FAILED], "failed, paused on this host"),
        ("observe", Some("c/g"), Progress::Idle, vec![WOULD_CHANGE], "noop, paused on this host"),
        ("observe", Some("c/g"), Progress::Idle, vec![Some(Ended::Observed)], "converged, paused on this host"),
        ("apply", Some("c/g"), Progress::Idle, vec![None], "waiting, paused on this host"),
        ("apply", Some("c/g"), Progress::Idle, vec![CHANGED], "converged, paused on this host"),
        ("apply", Some("c/g"), Progress::Idle, vec![FAILED, None], "failed, paused on this host"),
        ("apply", None, Progress::Converged, vec![], "unplaced, paused on this host"),
        ("observe", None, Progress::Idle, vec![], "unplaced, paused on this host"),
    ] {
        let status = collect(&Local::open(root.path()).unwrap()).unwrap();
        let (mode, group) = (Some(mode.to_owned()), group.map(str::to_owned));
        let tasks = tasks.into_iter().map(|outcome| task(outcome, None)).collect();
        let status = Status { mode, group, progress, tasks, paused: true, ..status };
        assert_eq!(status.state(), state);
    }
}

/// It said `idle`, which is no state of a node.
#[test]
fn y06_a_host_waits_before_anything_came_and_before_it_knows_its_tasks() {
    let state = |root: &Path| collect(&Local::open(root).unwrap()).unwrap().state();
    let fresh = tempfile::tempdir().unwrap();
    assert_eq!(state(fresh.path()), "waiting", "it has not joined");
    let root = tempfile::tempdir().unwrap();
    let set = Set::default().file("f", &[], "/f", "x");
    joined(root.path(), &set);
    assert_eq!(state(root.path()), "waiting", "no task has begun");
    let profile = root.path().join(format!("var/lib/stemma-agent/apply/bodies/{}", set.profile().0));
    std::fs::remove_file(profile).unwrap();
    assert_eq!(state(root.path()), "waiting", "its tasks are on their way");
}

/// It said `idle` for half a second of each new task set, while its commands ran.
#[test]
fn y06_a_host_runs_tasks_from_the_moment_at_which_their_set_is_accepted() {
    let nothing = LocalState::default;
    let (done, open, behind) = ((WOULD_CHANGE, None), (None, None), (None, Some("a on tags x")));
    let held = || LocalState { hold: Some((u64::MAX, String::new())), ..nothing() };
    let paused = LocalState { paused: true, ..nothing() };
    let parked = LocalState { parked: Some("a disk".to_owned()), ..nothing() };
    for (reported, mode, said, tasks, runs) in [
        (Progress::Idle, Mode::Apply, nothing(), vec![open, open], true),
        (Progress::Idle, Mode::Apply, nothing(), vec![done, open], true),
        (Progress::Converged, Mode::Apply, nothing(), vec![open], true),
        (Progress::Idle, Mode::Noop, nothing(), vec![open], true),
        (Progress::Idle, Mode::Apply, held(), vec![done, open], true),
        // Nothing is to run.
        (Progress::Idle, Mode::Apply, nothing(), vec![], false),
        (Progress::Idle, Mode::Apply, nothing(), vec![done], false),
        (Progress::Idle, Mode::Apply, nothing(), vec![behind], false),
        (Progress::Idle, Mode::Observe, nothing(), vec![open], false),
        (Progress::Idle, Mode::Noop, nothing(), vec![done, open], false),
        // Something forbids it.
        (Progress::Idle, Mode::Apply, held(), vec![open], false),
        (Progress::Idle, Mode::Apply, paused, vec![open], false),
        (Progress::Idle, Mode::Apply, parked, vec![open], false),
        // The report says more.
        (Progress::Waiting, Mode::Apply, nothing(), vec![open], false),
        (Progress::Failed, Mode::Apply, nothing(), vec![open], false),
    ] {
        let tasks: Vec<_> = tasks.into_iter().map(|(outcome, waits_for)| task(outcome, waits_for)).collect();
        let found = is_beginning(reported, &Set::default().mode(mode).desired(), &said, &tasks);
        assert_eq!(found, runs, "{reported:?} {mode:?} {said:?} {}", tasks.len());
    }
    let mut parked = Set::default().desired();
    parked.known.parked = true;
    assert!(!is_beginning(Progress::Idle, &parked, &nothing(), &[task(None, None)]));
}

#[test]
fn a_word_is_the_variants_name_in_lower_case() {
    assert_eq!((words(Outcome::Unchanged), words(Progress::Running)), ("unchanged".into(), "running".into()));
    assert_eq!(words(Outcome::WouldChange), "would change");
}

/// `status` and `explain` printed as many empty lines.
#[test]
fn y09_blank_lines_at_the_end_of_an_output_are_not_shown() {
    for (output, expected) in [
        (format!("one\n\ntwo\n{}", "\n".repeat(500)), &["m", "one", "", "two"][..]),
        ("  indented\n \t\n".to_owned(), &["m", "  indented"]),
        ("\n\n".to_owned(), &["m"]),
        (String::new(), &["m"]),
    ] {
        let reason = Reason { message: "m".to_owned(), output };
        assert_eq!(sentences(&reason).collect::<Vec<_>>(), expected);
    }
}

/// The finding said that this host hears of nothing new, also beside an agent that had started before and was still told; no line said how it
/// stands with its controllers.
#[test]
fn y06_a_host_whose_identity_is_damaged_says_whether_its_agent_hears_of_anything_new() {
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default());
    std::fs::write(root.path().join("var/lib/stemma-agent/identity.json"), "{").unwrap();
    let text = shown(root.path());
    let said = "an agent that is started so keeps what this host holds and hears of nothing new, and one that runs since before hears of it \
                until it ends";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("contact   no agent runs on this host\n"), "{text}");
}
