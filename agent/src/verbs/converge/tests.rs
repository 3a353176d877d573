//! What `once` and `check` say, and who waits for whom.

use std::process::{Child, Stdio};

use stemma_core::task::Mode;
use stemma_wire::message::Revision;
use stemma_wire::message::desired::Barrier;
use stemma_wire::message::observed::{LocalState, Progress, Report};

use super::*;
use crate::apply::ledger::{OPEN_BARRIERS, OpenBarriers, REPORT, STAGING_DIRS};
use crate::apply::leftovers::StagingDirs;
use crate::apply::testing::{Set, joined};

/// Where the agent of another test's process has its root.
const ROOT: &str = "STEMMA_TEST_ROOT";

/// The agent that another test starts: the lock of a host is held by a process. Without that test there is nothing to do.
#[test]
fn an_agent_for_another_test() {
    if let Some(path) = std::env::var_os(ROOT) {
        run(Path::new(&path)).unwrap();
    }
}

/// Where a process of another test is to hold the lock, as `once` does while its tasks run: nobody can wake it.
const LOCKED: &str = "STEMMA_TEST_LOCKED";

#[test]
fn another_once_for_another_test() {
    if let Some(path) = std::env::var_os(LOCKED) {
        let local = Local::open(Path::new(&path)).unwrap();
        let _lock = lock(&local, Duration::from_mins(1)).unwrap().unwrap();
        std::thread::sleep(Duration::from_mins(10));
    }
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_mins(2);
    while !holds() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn y02_once_asks_again_where_another_one_wrote_over_its_number() {
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default());
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "verbs::converge::tests::another_once_for_another_test"]).env(LOCKED, root.path());
    let other = Agent(command.stdout(Stdio::null()).spawn().unwrap());
    let local = Local::open(root.path()).unwrap();
    until("the other one has the lock", || local.is_running() == Some(true));
    let path = root.path().to_owned();
    let this = std::thread::spawn(move || once(&path).unwrap());
    let asked = || local.site.ledger.get(&LOOK_ASKED).unwrap();
    until("it has asked", || asked() == Some(1));
    // One that read the number before.
    local.site.ledger.put(&LOOK_ASKED, &0).unwrap();
    until("it asks again", || asked() == Some(1));
    drop(other);
    assert_eq!(this.join().unwrap(), Exit::Done);
}

/// It ends with the test, also with one that fails.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn agent(root: &Path) -> Agent {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "verbs::converge::tests::an_agent_for_another_test"]).env(ROOT, root);
    let agent = Agent(command.stdout(Stdio::null()).spawn().unwrap());
    let local = Local::open(root).unwrap();
    let limit = Instant::now() + Duration::from_mins(2);
    while wake(&local.host).unwrap() == Woken::Nobody {
        assert!(Instant::now() < limit, "the agent does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    agent
}

#[test]
fn w10_11_no_verb_acts_on_a_state_that_others_could_write() {
    use std::os::unix::fs::PermissionsExt as _;

    let root = tempfile::tempdir().unwrap();
    let flag = root.path().join("flag");
    let guards = serde_json::json!({"command": ["true"], "unless": ["touch", flag.display().to_string()]});
    let task = serde_json::json!({"parameters": guards});
    joined(root.path(), &Set::default().task("c", "shell", &[], &task));
    let accepted = root.path().join("var/lib/stemma-agent/apply/accepted");
    std::fs::set_permissions(&accepted, std::fs::Permissions::from_mode(0o666)).unwrap();
    for (verb, ended) in
        [("once", once(root.path())), ("check", check(root.path(), Output::Json)), ("refill", refill(root.path()))]
    {
        let refused = ended.unwrap_err().to_string();
        assert!(refused.contains("/apply/accepted can be written by others (mode 0666)"), "{verb}: {refused}");
    }
    assert!(!flag.exists() && !root.path().join("run/stemma").exists(), "nothing of it was done");
    std::fs::set_permissions(&accepted, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(check(root.path(), Output::Json).unwrap(), Exit::Done);
    assert!(flag.exists(), "the guard was asked");
    assert_eq!(refill(root.path()).unwrap(), Exit::Done);
}

#[test]
fn w08_status_says_whether_an_agent_runs() {
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default());
    let runs = || status::shown(root.path()).contains("no agent runs on this host");
    assert!(runs());
    let agent = agent(root.path());
    assert!(!runs());
    drop(agent);
    assert!(runs());
}

#[test]
fn w08_once_beside_a_running_agent_waits_for_its_run_and_ends_as_alone() {
    let root = tempfile::tempdir().unwrap();
    let flag = root.path().join("flag");
    let script = format!("echo it is not there; test -e {}", flag.display());
    let parameters = serde_json::json!({"parameters": {"script": script}});
    joined(root.path(), &Set::default().task("c", "shell", &[], &parameters));
    let mut agent = agent(root.path());
    assert_eq!(once(root.path()).unwrap(), Exit::Failed);
    std::fs::write(&flag, "").unwrap();
    assert_eq!(once(root.path()).unwrap(), Exit::Done, "it looked again");
    assert_eq!(agent.0.try_wait().unwrap(), None, "it was done by the agent");
    drop(agent);
    assert_eq!(once(root.path()).unwrap(), Exit::Done, "alone");
}

#[test]
fn y09_without_a_desired_state_once_and_check_end_as_the_page_says() {
    let page = include_str!("../../../../docs/agent.md");
    let ends = |verb: &str| {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{verb}"))).unwrap();
        row.trim_end_matches('|').rsplit('|').next().unwrap().split(',').map(str::trim).collect::<Vec<_>>()
    };
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default());
    std::fs::remove_file(root.path().join("var/lib/stemma-agent/apply/accepted")).unwrap();
    let none = "no desired state has come yet";
    let once = format!("{} also where {none}", once(root.path()).unwrap().status());
    let check = format!("{} {none}", check(root.path(), Output::Human).unwrap().status());
    assert!(ends("once").contains(&once.as_str()) && ends("check").contains(&check.as_str()), "{once}, {check}");
}

/// It said nothing where all was well.
#[test]
fn y09_once_says_what_became_of_the_tasks() {
    for (outcomes, expected) in [
        (vec![("changed", 2), ("unchanged", 3)], "5 tasks: 2 changed, 3 unchanged\n"),
        (vec![("unchanged", 1)], "1 task: 1 unchanged\n"),
        (vec![], "no task has run\n"),
    ] {
        let outcomes = outcomes.into_iter().map(|(outcome, count): (&str, usize)| (outcome.to_owned(), count));
        let outcomes = outcomes.collect();
        assert_eq!(summary(&outcomes), expected);
    }
    let root = tempfile::tempdir().unwrap();
    joined(root.path(), &Set::default().file("a", &[], "/srv/a", "x").file("b", &[], "/srv/b", "y"));
    let run = || {
        let local = Local::open(root.path()).unwrap();
        let before = Before::of(&local).unwrap();
        drop(local);
        assert_eq!(once(root.path()).unwrap(), Exit::Done);
        let local = Local::open(root.path()).unwrap();
        let tasks = local.site.ledger.get(&PROGRESS).unwrap().unwrap().tasks;
        summary(&before.outcomes(&local.site.ledger, &tasks).unwrap())
    };
    assert_eq!(run(), "2 tasks: 2 changed\n");
    assert_eq!(run(), "2 tasks: 2 unchanged\n", "what it changed before is not changed again");
    std::fs::write(root.path().join("srv/a"), "edited").unwrap();
    assert_eq!(run(), "2 tasks: 1 changed, 1 unchanged\n");
}

/// `once` ended with 0 where a signal had stopped it, and said of tasks that it had applied that none was.
#[test]
fn y02_once_says_how_far_it_came_where_a_signal_or_a_pause_cut_it_short() {
    use Outcome::{Changed, Failed, Unchanged};
    for (tasks, ended, far, left) in [
        (5, vec![Changed, Changed], "2 of 5 tasks (2 changed)", "3 have not run"),
        (4, vec![Failed, Changed, Unchanged], "3 of 4 tasks (1 changed, 1 failed, 1 unchanged)", "1 has not run"),
        (1, vec![], "0 of 1 task", "1 has not run"),
    ] {
        let course = Course { tasks, ended };
        let said = format!("stopped by SIGINT after {far}: {left}; run `stemma-agent once` again\n");
        assert_eq!(cut_short("SIGINT", &course), said);
        let paused = match course.ended.len() {
            0 => "no task was applied, labels were".to_owned(),
            _ => format!("it was after {far}, and no other was begun; labels were applied"),
        };
        let paused = format!("this host is paused: {paused}; run `stemma-agent resume`, then `stemma-agent once`\n");
        assert_eq!(Stop::Paused.sentence(&stopped_after(&course)), paused);
    }
}

/// Where no agent ran, the host went on saying what the last one had reported while it ran tasks.
#[test]
fn y02_no_task_is_said_to_run_where_no_agent_does() {
    let root = tempfile::tempdir().unwrap();
    let host = joined(root.path(), &Set::default().file("f", &[], "/srv/f", "x"));
    let report = Report { progress: Progress::Running, ..Report::default() };
    Ledger::open(host).unwrap().put(&REPORT, &report).unwrap();
    assert!(status::shown(root.path()).contains("state     waiting\n"));
}

/// A controller says `failed`, since it has the finding.
#[test]
fn y01_a_host_in_mode_observe_says_by_check_that_two_tasks_write_one_path() {
    let root = tempfile::tempdir().unwrap();
    let set = Set::default().file("a", &[], "/srv/z", "a").file("b", &[], "/srv/z", "b");
    joined(root.path(), &set.mode(Mode::Observe));
    assert_eq!(once(root.path()).unwrap(), Exit::Done);
    assert_eq!(status(root.path(), Output::Human).unwrap(), Exit::Done);
    assert!(status::shown(root.path()).contains("state     waiting: its mode is observe"));
    assert_eq!(check(root.path(), Output::Human).unwrap(), Exit::Failed);
    let page = include_str!("../../../../docs/agent.md");
    assert!(page.contains("mode `observe` where two tasks write one path"), "what each of them says is documented");
}

/// `once` ended with 0 and said nothing, as where all was done.
#[test]
fn w08_once_says_how_many_tasks_wait_at_a_barrier_and_is_no_success() {
    let root = tempfile::tempdir().unwrap();
    let barrier = Barrier { task: "db".into(), selector: "tag=db".into() };
    let path = |name: &str| root.path().join(name).display().to_string();
    let set = Set::default().command("first", &[], &["touch", &path("first")]);
    let set = set.command("app", &[0], &["touch", &path("app")]).behind(barrier.clone());
    let set = set.command("conf", &[1], &["touch", &path("conf")]);
    let host = joined(root.path(), &set);
    assert_eq!(once(root.path()).unwrap(), Exit::Waits);
    let local = Local::open(root.path()).unwrap();
    let performed = local.site.ledger.get(&PROGRESS).unwrap().unwrap().tasks;
    let (profile, desired) = (postcard::from_bytes(&set.profile().1).unwrap(), set.desired());
    let waiting: Vec<_> = waiting(&local, &desired, &profile, &performed).unwrap().into_keys().collect();
    assert_eq!(waiting, ["app", "conf"], "conf is behind it");
    assert!(root.path().join("first").exists() && !root.path().join("app").exists());
    drop(local);

    let open = BTreeSet::from([barrier]);
    let opened = OpenBarriers { task_set: desired.digest, revision: Revision(1), open };
    Ledger::open(host).unwrap().put(&OPEN_BARRIERS, &opened).unwrap();
    assert_eq!(once(root.path()).unwrap(), Exit::Done);
    assert!(root.path().join("conf").exists());
}

#[test]
fn x05_once_on_a_paused_host_takes_away_what_a_killed_agent_left() {
    let root = tempfile::tempdir().unwrap();
    let host = joined(root.path(), &Set::default().file("f", &[], "/srv/f", "x"));
    let left = root.path().join("srv/.stemma-0123456789abcdef");
    std::fs::create_dir_all(left.parent().unwrap()).unwrap();
    std::fs::write(&left, "secret").unwrap();
    let ledger = Ledger::open(host).unwrap();
    ledger.put(&STAGING_DIRS, &StagingDirs::from([("/srv".to_owned(), BTreeSet::new())])).unwrap();
    ledger.put(&LOCAL, &LocalState { paused: true, ..LocalState::default() }).unwrap();
    drop(ledger);
    assert_eq!(once(root.path()).unwrap(), Exit::Failed, "no task was applied");
    assert!(!left.exists() && !root.path().join("srv/f").exists());
}

#[test]
fn y06_a_task_that_is_only_observed_is_no_failure_and_is_said_by_status_and_explain() {
    let root = tempfile::tempdir().unwrap();
    let fields = serde_json::json!({"mode": "observe", "parameters": {"script": "exit 3"}});
    joined(root.path(), &Set::default().task("seen", "shell", &[], &fields).file("f", &[], "/srv/f", "x"));
    assert_eq!(once(root.path()).unwrap(), Exit::Done);
    let text = status::shown(root.path());
    let task =
        "task      seen                     observed\n            its mode is observe: it is neither run nor checked\n";
    assert!(text.contains(task) && text.contains("state     converged\n"), "{text}");
    let why = super::super::explain::why(root.path(), "seen");
    assert_eq!(why, ["last: observed", "  its mode is observe: it is neither run nor checked"]);
}

#[test]
fn w08_why_a_task_failed_is_said_by_status_and_explain() {
    let root = tempfile::tempdir().unwrap();
    let parameters = serde_json::json!({"parameters": {"script": "echo out of paper; exit 3"}});
    joined(root.path(), &Set::default().task("print", "shell", &[], &parameters));
    assert_eq!(once(root.path()).unwrap(), Exit::Failed);
    let text = status::shown(root.path());
    assert!(text.contains("print                    failed\n            the command ended with status 3\n"), "{text}");
    assert!(text.contains("            out of paper\n"), "{text}");
    let why = super::super::explain::why(root.path(), "print");
    assert!(why.join("\n").contains("last: failed\n  the command ended with status 3\n  out of paper"), "{why:?}");
}
